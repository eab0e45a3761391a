//! IPv4 addresses by ioctl (netdevice(7); Linux `devinet_ioctl`, `inet_gifconf`).

use libc::{c_char, c_int, sockaddr, sockaddr_in};

use super::exchange::{Address, LinkKey, addresses, link, links};
use super::ifreq::InterfaceRequest;
use super::lists::mask;
use crate::errno::Errno;
use crate::program_memory::{InOut, Room};

/// Part of an address.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Part {
    /// `SIOCGIFADDR`, `SIOCSIFADDR`.
    Own,
    /// `SIOCGIFDSTADDR`, `SIOCSIFDSTADDR`.
    Peer,
    /// `SIOCGIFBRDADDR`, `SIOCSIFBRDADDR`.
    Broadcast,
    /// `SIOCGIFNETMASK`, `SIOCSIFNETMASK`.
    Netmask,
}

/// Requested part of a device's first address with the label `name`, or of the address `given`, if the device has it.
///
/// # Errors
/// `ENODEV`: the interface does not exist; `EADDRNOTAVAIL`: the interface has no such address.
pub(super) fn part(part: Part, device: &[u8], name: &[u8], given: &sockaddr) -> Result<sockaddr, Errno> {
    let device = link(LinkKey::Name(device))?;
    let all = addresses()?;
    let named = named(&all, device.index, &device.name, name, octets(given));
    let address = named.ok_or(Errno(libc::EADDRNOTAVAIL))?;
    Ok(internet(&match part {
        Part::Own => address.own.clone(),
        Part::Peer => address.peer.clone(),
        Part::Broadcast => address.broadcast.clone().unwrap_or_default(),
        Part::Netmask => mask(address),
    }))
}

/// First IPv4 address of an interface with the label `key`; or the one equal to `given`, if present.
fn named<'a>(
    all: &'a [Address],
    index: c_int,
    device: &[u8],
    key: &[u8],
    given: Option<[u8; 4]>,
) -> Option<&'a Address> {
    let is_named = |address: &&Address| {
        let label = address.label.as_deref().unwrap_or(device);
        is_ipv4(address) && address.index == index && label == key
    };
    let mut of_name = all.iter().filter(is_named);
    let mut copy = of_name.clone();
    let same = given.and_then(|given| copy.find(|address| address.own == given));
    same.or_else(|| of_name.next())
}

pub(super) fn is_ipv4(address: &Address) -> bool {
    c_int::from(address.family) == libc::AF_INET && address.own.len() == 4
}

/// Offset of the four bytes of an address in a `struct sockaddr_in`, after its family and port.
const AT: usize = 2;

/// IPv4 address in a `struct sockaddr_in`; `None` for another family.
pub(super) fn octets(addr: &sockaddr) -> Option<[u8; 4]> {
    let bytes = addr.sa_data.map(|byte| byte as u8);
    let octets = bytes.get(AT..)?.first_chunk()?;
    (c_int::from(addr.sa_family) == libc::AF_INET).then_some(*octets)
}

/// `struct sockaddr_in` with the given address.
fn internet(octets: &[u8]) -> sockaddr {
    const { assert!(size_of::<sockaddr>() == size_of::<sockaddr_in>(), "one takes the other's place") };
    let mut sa_data = [0 as c_char; 14];
    sa_data.iter_mut().skip(AT).zip(octets).for_each(|(to, &byte)| *to = byte as c_char);
    sockaddr { sa_family: libc::AF_INET as u16, sa_data }
}

/// `SIOCGIFCONF`: all IPv4 addresses, as many as fit; without a buffer, their total length.
///
/// # Errors
/// Error in the gateway's answer; `EFAULT`; `EINVAL`: the buffer's length is negative.
pub(super) fn list(place: InOut<'_, InterfaceList>) -> Result<(), Errno> {
    let InterfaceList { len, buffer } = place.read()?;
    let room = usize::try_from(len).map_err(|_| Errno(libc::EINVAL))? / InterfaceRequest::LEN * InterfaceRequest::LEN;
    let (links, all) = (links()?, addresses()?);
    let found = all.iter().filter(|address| is_ipv4(address)).filter_map(|address| {
        let link = links.iter().find(|link| link.index == address.index)?;
        let name = address.label.as_deref().unwrap_or(&link.name);
        Some(InterfaceRequest::new(name, &internet(&address.own)).bytes())
    });
    let found = found.collect::<Vec<_>>().concat();
    // SAFETY: the buffer is that long.
    unsafe { Room::new(buffer, room) }.write(&found);
    let len = if buffer.is_null() { found.len() } else { found.len().min(room) };
    let len = c_int::try_from(len).map_err(|_| Errno(libc::EINVAL))?;
    place.write(InterfaceList { len, buffer })
}

/// `struct ifconf`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct InterfaceList {
    /// Length of the buffer in bytes.
    len: c_int,
    buffer: *mut u8,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(index: c_int, label: Option<&str>, own: &[u8]) -> Address {
        let family = if own.len() == 4 { libc::AF_INET } else { libc::AF_INET6 } as u8;
        let (label, own, peer) = (label.map(|label| label.as_bytes().to_vec()), own.to_vec(), own.to_vec());
        Address {
            family,
            prefix_len: 24,
            scope: 0,
            index,
            label,
            own,
            peer,
            broadcast: None,
            lifetimes: None,
            metric: None,
        }
    }

    #[test]
    fn an_address_is_the_first_of_its_name_or_the_one_that_is_given() {
        let all = [
            address(2, None, &[0xfe; 16]),
            address(3, None, &[10, 0, 0, 3]),
            address(2, Some("eth0:1"), &[10, 0, 0, 9]),
            address(2, Some("eth0"), &[10, 0, 0, 1]),
            address(2, None, &[10, 0, 0, 2]),
        ];
        let last = |key: &str, given: Option<u8>| {
            let given = given.map(|last| [10, 0, 0, last]);
            named(&all, 2, b"eth0", key.as_bytes(), given).map(|address| address.own[3])
        };
        let cases = [
            ("eth0", None, Some(1)),
            ("eth0", Some(2), Some(2)),
            ("eth0", Some(9), Some(1)),
            ("eth0:1", None, Some(9)),
            ("eth0:2", None, None),
        ];
        for (key, given, want) in cases {
            assert_eq!(last(key, given), want, "{key} {given:?}");
        }
    }

    #[test]
    fn an_address_comes_back_out_of_its_structure() {
        let addr = internet(&[192, 0, 2, 7]);
        assert_eq!(octets(&addr), Some([192, 0, 2, 7]));
        assert_eq!(octets(&sockaddr { sa_family: libc::AF_INET6 as u16, ..addr }), None);
        assert_eq!(octets(&internet(&[])), Some([0; 4]));
    }
}
