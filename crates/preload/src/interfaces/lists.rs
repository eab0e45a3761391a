//! `if_nameindex(3)` and `getifaddrs(3)`. The C library's versions use internal sockets that no preloaded library can
//! replace. Results have the C library's memory layout, so that its own functions free them.

use std::{mem, ptr, slice};

use libc::{c_char, c_int, c_uint, c_void, if_nameindex as NameIndex, ifaddrs, sockaddr, sockaddr_in, sockaddr_in6};

use super::exchange::{Address, Link, addresses, links};
use crate::errno::{Errno, returned};
use crate::plain::{Plain, zeroed};
use crate::program_memory::{InOut, Room};
use crate::replaced::replaced;
use crate::{gateway, sys};

replaced! {
    /// `if_nameindex(3)`.
    fn if_nameindex() -> *mut NameIndex, next {
        if gateway::address().is_none() { next() } else { returned(links().and_then(|links| names(&links))) }
    }

    /// `getifaddrs(3)`.
    fn getifaddrs(list: InOut<'_, *mut ifaddrs>) -> c_int, next {
        if gateway::address().is_none() {
            return next();
        }
        let made = links().and_then(|links| lay_out(&entries(&links, &addresses()?)));
        returned(made.and_then(|first| list.write(first)).map(|()| 0))
    }
}

/// List for `if_nameindex(3)`.
fn names(links: &[Link]) -> Result<*mut NameIndex, Errno> {
    // The additional element ends the list.
    let list = sys::calloc(links.len() + 1, mem::size_of::<NameIndex>()).cast::<NameIndex>();
    if list.is_null() {
        return Err(Errno(libc::ENOBUFS));
    }
    for (at, link) in links.iter().enumerate() {
        // SAFETY: the buffer is that long. The C library frees each name.
        let name = unsafe { libc::strndup(link.name.as_ptr().cast(), link.name.len()) };
        let element = list.wrapping_add(at);
        // SAFETY: the list has an element for every link.
        unsafe { element.write(NameIndex { if_index: link.index as c_uint, if_name: name }) };
    }
    Ok(list)
}

/// Bytes of a `sockaddr`, long enough for every family.
type Socket = [u8; 36];

/// Element of the list.
#[derive(Debug)]
struct Entry<'a> {
    name: &'a [u8],
    flags: u32,
    addr: Option<Socket>,
    netmask: Option<Socket>,
    /// Broadcast address or peer address.
    other: Option<Socket>,
    data: &'a [u8],
}

/// Elements for all interfaces, then for all addresses, as in the C library.
fn entries<'a>(links: &'a [Link], addresses: &'a [Address]) -> Vec<Entry<'a>> {
    let of_links = links.iter().map(|link| Entry {
        name: &link.name,
        flags: link.flags,
        addr: packet_address(link, &link.address),
        netmask: None,
        other: packet_address(link, &link.broadcast),
        data: &link.stats,
    });
    let of_addresses = addresses.iter().filter_map(|address| {
        let link = links.iter().find(|link| link.index == address.index)?;
        let differs = address.peer != address.own;
        let other = if differs { Some(&address.peer) } else { address.broadcast.as_ref() };
        Some(Entry {
            name: address.label.as_deref().unwrap_or(&link.name),
            flags: link.flags,
            addr: ip_address(address, &address.own),
            netmask: ip_address(address, &mask(address)),
            other: other.and_then(|other| ip_address(address, other)),
            data: &[],
        })
    });
    of_links.chain(of_addresses).collect()
}

/// Bytes of `value`, padded with zeros.
fn socket<T: Plain>(value: &T) -> Socket {
    const { assert!(mem::size_of::<T>() <= mem::size_of::<Socket>(), "an address has room") };
    let mut bytes = [0; mem::size_of::<Socket>()];
    Room::from(bytes.as_mut_slice()).write(slice::from_ref(value));
    bytes
}

/// `struct sockaddr_ll`, whose address may exceed its declared length.
fn packet_address(link: &Link, lladdr: &[u8]) -> Option<Socket> {
    let mut address: libc::sockaddr_ll = zeroed();
    address.sll_family = libc::AF_PACKET as u16;
    (address.sll_ifindex, address.sll_hatype) = (link.index, link.kind);
    address.sll_halen = u8::try_from(lladdr.len()).ok()?;
    let at = mem::offset_of!(libc::sockaddr_ll, sll_addr);
    let mut bytes = socket(&address);
    bytes.get_mut(at..at + lladdr.len())?.copy_from_slice(lladdr);
    Some(bytes)
}

fn ip_address(of: &Address, octets: &[u8]) -> Option<Socket> {
    if c_int::from(of.family) == libc::AF_INET {
        let mut address: sockaddr_in = zeroed();
        address.sin_family = libc::AF_INET as u16;
        address.sin_addr.s_addr = u32::from_ne_bytes(octets.try_into().ok()?);
        return Some(socket(&address));
    }
    let mut address: sockaddr_in6 = zeroed();
    address.sin6_family = libc::AF_INET6 as u16;
    address.sin6_addr.s6_addr = octets.try_into().ok()?;
    let is_link_local = octets.starts_with(&[0xfe]) && octets.get(1).is_some_and(|byte| byte & 0xc0 == 0x80);
    if is_link_local {
        address.sin6_scope_id = of.index as u32;
    }
    Some(socket(&address))
}

/// Netmask of an address.
pub(super) fn mask(of: &Address) -> Vec<u8> {
    let bits = (0..of.own.len()).map(|at| usize::from(of.prefix_len).saturating_sub(at * 8).min(8) as u32);
    bits.map(|bits| u8::MAX.checked_shl(8 - bits).unwrap_or(0)).collect()
}

/// Lengths of a name and of statistics, which follow their element.
const NAME: usize = libc::IFNAMSIZ;
const DATA: usize = 256;

/// Element with the data that it points to.
#[repr(C)]
struct Laid {
    element: ifaddrs,
    name: [u8; NAME],
    data: [u8; DATA],
    sockets: [Socket; 3],
}

const _: () = assert!(mem::offset_of!(Laid, data).is_multiple_of(mem::align_of::<u64>()), "statistics are numbers");

/// Builds the list in one allocation, which `freeifaddrs` of the C library frees by its first entry.
fn lay_out(entries: &[Entry<'_>]) -> Result<*mut ifaddrs, Errno> {
    if entries.is_empty() {
        return Ok(ptr::null_mut());
    }
    // Zeros are null pointers, and empty names.
    let all = sys::calloc(entries.len(), mem::size_of::<Laid>()).cast::<Laid>();
    if all.is_null() {
        return Err(Errno(libc::ENOMEM));
    }
    for (at, entry) in entries.iter().enumerate() {
        let laid = all.wrapping_add(at);
        // SAFETY: the allocation has space for every element, zeroed, and no other reference to it exists.
        let laid = unsafe { &mut *laid };
        let (room, _) = laid.name.split_at_mut(NAME - 1);
        room.iter_mut().zip(entry.name).for_each(|(to, &byte)| *to = byte);
        laid.element.ifa_name = laid.name.as_mut_ptr().cast::<c_char>();
        laid.element.ifa_flags = entry.flags;
        let [addr, netmask, other] = &mut laid.sockets;
        laid.element.ifa_addr = place(addr, entry.addr.as_ref());
        laid.element.ifa_netmask = place(netmask, entry.netmask.as_ref());
        laid.element.ifa_ifu = place(other, entry.other.as_ref());
        if !entry.data.is_empty() {
            laid.data.iter_mut().zip(entry.data).for_each(|(to, &byte)| *to = byte);
            laid.element.ifa_data = laid.data.as_mut_ptr().cast::<c_void>();
        }
        if at + 1 < entries.len() {
            // The element is the first field of its allocation.
            laid.element.ifa_next = all.wrapping_add(at + 1).cast::<ifaddrs>();
        }
    }
    Ok(all.cast::<ifaddrs>())
}

fn place(room: &mut Socket, from: Option<&Socket>) -> *mut sockaddr {
    let Some(from) = from else { return ptr::null_mut() };
    *room = *from;
    room.as_mut_ptr().cast::<sockaddr>()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(own: &[u8], prefix_len: u8) -> Address {
        let (own, peer) = (own.to_vec(), own.to_vec());
        let family = if own.len() == 4 { libc::AF_INET } else { libc::AF_INET6 } as u8;
        Address {
            family,
            prefix_len,
            scope: 0,
            index: 2,
            label: None,
            own,
            peer,
            broadcast: None,
            lifetimes: None,
            metric: None,
        }
    }

    #[test]
    fn a_mask_has_as_many_ones_as_a_prefix_is_long() {
        let cases: [(u8, [u8; 4]); 5] =
            [(0, [0; 4]), (1, [128, 0, 0, 0]), (20, [255, 255, 240, 0]), (32, [255; 4]), (99, [255; 4])];
        for (len, want) in cases {
            assert_eq!(mask(&address(&[10, 0, 0, 1], len)), want, "{len}");
        }
    }

    #[test]
    fn a_list_is_one_piece_of_memory_that_ends() {
        let link =
            Link { index: 2, name: b"eth0".to_vec(), address: vec![2; 6], stats: vec![1; 96], ..Link::default() };
        let (links, addresses) = ([link], [address(&[10, 0, 0, 1], 8), address(&[0xfe; 16], 64), address(&[1; 3], 8)]);
        let entries = entries(&links, &addresses);
        assert_eq!(entries.len(), 4);
        let first = lay_out(&entries).unwrap();
        let (mut at, mut seen) = (first, Vec::new());
        while !at.is_null() {
            // SAFETY: the list has just been created.
            let element = unsafe { &*at };
            // SAFETY: the name is a C string.
            let name = unsafe { std::ffi::CStr::from_ptr(element.ifa_name) };
            // SAFETY: a present address begins with its family.
            let family = unsafe { element.ifa_addr.as_ref() }.map(|addr| addr.sa_family);
            seen.push((name.to_bytes().to_vec(), family, element.ifa_data.is_null()));
            at = element.ifa_next;
        }
        // SAFETY: the list is one allocation, and has no other owner.
        unsafe { libc::free(first.cast()) };
        let eth0 = || b"eth0".to_vec();
        let [packet, v4, v6] = [libc::AF_PACKET, libc::AF_INET, libc::AF_INET6].map(|it| Some(it as u16));
        let want = [(eth0(), packet, false), (eth0(), v4, true), (eth0(), v6, true), (eth0(), None, true)];
        assert_eq!(seen, want);
        assert!(lay_out(&[]).unwrap().is_null());
    }
}
