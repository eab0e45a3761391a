//! Requests of `ioctl` that change an IPv4 address (Linux `devinet_ioctl`), as requests of rtnetlink.

use std::net::Ipv4Addr;

use libc::c_int;

use super::exchange::{Address, CREATE, EXCL, IFA_RT_PRIORITY, Link, LinkKey, addresses, change, link, put_attribute};
use super::ipv4::{Part, is_ipv4, octets};
use super::lists::mask;
use crate::errno::Errno;

/// Sets a part of the first address of `device` with the label `name`; `Part::Own` adds the address, if there is none.
///
/// # Errors
/// `ENODEV`: the interface does not exist; `EADDRNOTAVAIL`: it has no such address; `EINVAL`: the value is none for
/// that part; the gateway's error.
pub(super) fn set(part: Part, device: &[u8], name: &[u8], given: &libc::sockaddr) -> Result<(), Errno> {
    let value = octets(given).ok_or(Errno(libc::EINVAL))?;
    let device = link(LinkKey::Name(device))?;
    let all = addresses()?;
    let old = labelled(&all, &device, name);
    let new = match (part, old) {
        (Part::Own, _) => own(&device, name, value, old)?,
        (_, None) => return Err(Errno(libc::EADDRNOTAVAIL)),
        (Part::Peer, Some(old)) => Some(with_peer(old, value)?),
        (Part::Broadcast, Some(old)) => Some(Address { broadcast: some(value), ..old.clone() }),
        (Part::Netmask, Some(old)) => Some(with_mask(&device, old, value)?),
    };
    replace(old, new.as_ref())
}

/// Deletes the first address with the label `name`, as `SIOCSIFFLAGS` does for a label that is set down.
///
/// # Errors
/// `EADDRNOTAVAIL`: there is no such address; the gateway's error.
pub(super) fn set_label_flags(device: &Link, name: &[u8], flags: i16) -> Result<(), Errno> {
    let all = addresses()?;
    let old = labelled(&all, device, name).ok_or(Errno(libc::EADDRNOTAVAIL))?;
    if c_int::from(flags) & libc::IFF_UP == 0 { replace(Some(old), None) } else { Ok(()) }
}

fn labelled<'a>(all: &'a [Address], device: &Link, name: &[u8]) -> Option<&'a Address> {
    all.iter().find(|address| {
        let label = address.label.as_deref().unwrap_or(&device.name);
        is_ipv4(address) && address.index == device.index && label == name
    })
}

/// Address with the mask and the broadcast address of its class; `None` for 0.0.0.0, which stands for no address.
fn own(device: &Link, name: &[u8], value: [u8; 4], old: Option<&Address>) -> Result<Option<Address>, Errno> {
    let of_class = class_len(value).ok_or(Errno(libc::EINVAL))?;
    if value == [0; 4] {
        return Ok(None);
    }
    if let Some(old) = old.filter(|old| old.own == value) {
        return Ok(Some(old.clone()));
    }
    let has = |flag: c_int| device.flags & flag as u32 != 0;
    let prefix_len = if has(libc::IFF_POINTOPOINT) { 32 } else { of_class };
    let mut new = Address {
        family: libc::AF_INET as u8,
        prefix_len,
        scope: if value[0] == 127 { libc::RT_SCOPE_HOST } else { libc::RT_SCOPE_UNIVERSE },
        index: device.index,
        label: Some(if name.contains(&b':') { name.to_vec() } else { device.name.clone() }),
        own: value.to_vec(),
        peer: value.to_vec(),
        broadcast: None,
        lifetimes: None,
        metric: None,
    };
    if !has(libc::IFF_POINTOPOINT) && has(libc::IFF_BROADCAST) && prefix_len < 31 {
        new.broadcast = Some(highest(&new));
    }
    Ok(Some(new))
}

fn with_peer(old: &Address, value: [u8; 4]) -> Result<Address, Errno> {
    if old.peer != value {
        class_len(value).ok_or(Errno(libc::EINVAL))?;
    }
    Ok(Address { peer: value.to_vec(), ..old.clone() })
}

/// Address with another mask. A broadcast address that is the old network's becomes the new network's.
fn with_mask(device: &Link, old: &Address, value: [u8; 4]) -> Result<Address, Errno> {
    let bits = u32::from_be_bytes(value);
    if bits.leading_ones() + bits.trailing_zeros() < u32::BITS {
        return Err(Errno(libc::EINVAL));
    }
    let mut new = Address { prefix_len: bits.leading_ones() as u8, ..old.clone() };
    let follows = old.broadcast.as_ref() == Some(&highest(old));
    if device.flags & libc::IFF_BROADCAST as u32 != 0 && new.prefix_len < 31 && follows {
        new.broadcast = Some(highest(&new));
    }
    Ok(new)
}

fn some(value: [u8; 4]) -> Option<Vec<u8>> {
    (value != [0; 4]).then(|| value.to_vec())
}

/// Highest address of an address's network.
fn highest(of: &Address) -> Vec<u8> {
    of.own.iter().zip(mask(of)).map(|(own, mask)| own | !mask).collect()
}

/// Prefix length of an address's class (Linux `inet_abc_len`); `None` for groups.
fn class_len(octets: [u8; 4]) -> Option<u8> {
    if Ipv4Addr::from(octets).is_broadcast() {
        return Some(0);
    }
    match octets[0] {
        0 => Some(0),
        1..=127 => Some(8),
        128..=191 => Some(16),
        192..=223 => Some(24),
        224..=239 => None,
        240..=255 => Some(32),
    }
}

/// Replaces an address: deletes the old one, and adds the new one. If the gateway refuses the new one, the old one is
/// added again.
fn replace(old: Option<&Address>, new: Option<&Address>) -> Result<(), Errno> {
    if old == new {
        return Ok(());
    }
    let add = |address: &Address| change(libc::RTM_NEWADDR, CREATE | EXCL, &message(address));
    if let Some(old) = old {
        change(libc::RTM_DELADDR, 0, &message(old))?;
    }
    let added = new.map_or(Ok(()), add);
    if let (Err(_), Some(old)) = (added, old) {
        // The error of the new address is the one to report.
        let _ = add(old);
    }
    added
}

/// `struct ifaddrmsg` with attributes.
fn message(address: &Address) -> Vec<u8> {
    let mut body = vec![address.family, address.prefix_len, 0, address.scope];
    body.extend(address.index.to_ne_bytes());
    put_attribute(&mut body, libc::IFA_LOCAL, &address.own);
    put_attribute(&mut body, libc::IFA_ADDRESS, &address.peer);
    let label = address.label.as_ref().map(|label| [label, &b"\0"[..]].concat());
    let others = [
        (libc::IFA_BROADCAST, address.broadcast.as_ref()),
        (libc::IFA_LABEL, label.as_ref()),
        (libc::IFA_CACHEINFO, address.lifetimes.as_ref()),
        (IFA_RT_PRIORITY, address.metric.as_ref()),
    ];
    for (kind, value) in others {
        value.into_iter().for_each(|value| put_attribute(&mut body, kind, value));
    }
    body
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ethernet() -> Link {
        Link { index: 2, name: b"eth0".to_vec(), flags: (libc::IFF_UP | libc::IFF_BROADCAST) as u32, ..Link::default() }
    }

    fn text(address: &Address) -> String {
        let dotted = |bytes: &[u8]| Ipv4Addr::from(<[u8; 4]>::try_from(bytes).unwrap()).to_string();
        let broadcast = address.broadcast.as_deref().map_or("-".to_owned(), dotted);
        format!("{}/{} brd {broadcast}", dotted(&address.own), address.prefix_len)
    }

    #[test]
    fn address_has_its_class_mask_until_another_replaces_it() {
        let cases = [
            ([10, 1, 2, 3], "10.1.2.3/8 brd 10.255.255.255"),
            ([172, 16, 0, 1], "172.16.0.1/16 brd 172.16.255.255"),
            ([192, 168, 1, 2], "192.168.1.2/24 brd 192.168.1.255"),
            ([240, 0, 0, 1], "240.0.0.1/32 brd -"),
        ];
        for (value, want) in cases {
            assert_eq!(text(&own(&ethernet(), b"eth0", value, None).unwrap().unwrap()), want);
        }
        let first = own(&ethernet(), b"eth0", [10, 1, 2, 3], None).unwrap().unwrap();
        let masked = with_mask(&ethernet(), &first, [255, 255, 255, 0]).unwrap();
        assert_eq!(text(&masked), "10.1.2.3/24 brd 10.1.2.255");
        let other = Address { broadcast: Some(vec![10, 1, 2, 77]), ..first.clone() };
        let masked = with_mask(&ethernet(), &other, [255, 255, 0, 0]).unwrap();
        assert_eq!(text(&masked), "10.1.2.3/16 brd 10.1.2.77", "another broadcast address stays");
        let whole = with_mask(&ethernet(), &first, [255, 255, 255, 255]).unwrap();
        assert_eq!(text(&whole), "10.1.2.3/32 brd 10.255.255.255");
        for bad in [[255, 0, 255, 0], [0, 0, 0, 1], [127, 255, 255, 255]] {
            assert_eq!(with_mask(&ethernet(), &first, bad), Err(Errno(libc::EINVAL)));
        }
        assert_eq!(own(&ethernet(), b"eth0", [224, 0, 0, 1], None), Err(Errno(libc::EINVAL)));
        assert_eq!(own(&ethernet(), b"eth0", [0; 4], Some(&first)), Ok(None));
        assert_eq!(own(&ethernet(), b"eth0", [10, 1, 2, 3], Some(&masked)), Ok(Some(masked.clone())), "it is there");
        let tun = Link { flags: libc::IFF_POINTOPOINT as u32, ..ethernet() };
        assert_eq!(text(&own(&tun, b"eth0:1", [10, 0, 0, 1], None).unwrap().unwrap()), "10.0.0.1/32 brd -");
    }
}
