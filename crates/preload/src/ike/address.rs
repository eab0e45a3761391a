//! Internet addresses as `sockaddr`, as control messages, and in headers on the gateway's socket.

use std::{mem, slice};

use libc::{c_int, cmsghdr, in_pktinfo, in6_pktinfo, sockaddr_in, sockaddr_in6};

use crate::plain::{Plain, zeroed};
use crate::program_memory::{Bytes, Message, Room};

/// Length of the header of each message on the gateway's socket: addresses of the peer and of this node.
pub(super) const HEADER: usize = 40;

/// Address and port. An IPv4 address is in the first four bytes, and the others are zero.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct End {
    pub(super) is_v6: bool,
    pub(super) addr: [u8; 16],
    pub(super) port: u16,
}

impl End {
    /// Tells whether the address is unspecified.
    pub(super) fn is_any(self) -> bool {
        self.addr == [0; 16]
    }

    /// Port and address in the name of a socket: the family 4 or 6, four hexadecimal digits of the port, and those of the address,
    /// unless it is any.
    pub(super) fn claim(self) -> String {
        use std::fmt::Write as _;
        let Self { is_v6, addr, port } = self;
        let mut text = format!("{}{port:04x}", if is_v6 { 6 } else { 4 });
        let len = if self.is_any() {
            0
        } else if is_v6 {
            16
        } else {
            4
        };
        addr.iter().take(len).for_each(|byte| {
            let _ = write!(text, "{byte:02x}");
        });
        text
    }

    /// Parses an address of `bind(2)` or `sendmsg(2)`, if IPv4 or IPv6.
    pub(super) fn read(address: Bytes<'_>) -> Option<Self> {
        let mut addr = [0; 16];
        match c_int::from(address.read::<u16>()?) {
            libc::AF_INET => {
                let v4: sockaddr_in = address.read()?;
                addr[..4].copy_from_slice(&v4.sin_addr.s_addr.to_ne_bytes());
                Some(Self { is_v6: false, addr, port: u16::from_be(v4.sin_port) })
            }
            libc::AF_INET6 => {
                let v6: sockaddr_in6 = address.read()?;
                Some(Self { is_v6: true, addr: v6.sin6_addr.s6_addr, port: u16::from_be(v6.sin6_port) })
            }
            _ => None,
        }
    }

    /// Writes the address as a message's source, truncated to the buffer, and its length.
    pub(super) fn write(self, message: &mut Message<Room<'_>>) {
        if self.is_v6 {
            let mut address: sockaddr_in6 = zeroed();
            address.sin6_family = libc::AF_INET6 as u16;
            (address.sin6_port, address.sin6_addr.s6_addr) = (self.port.to_be(), self.addr);
            message.put_name(&address);
        } else {
            let mut address: sockaddr_in = zeroed();
            address.sin_family = libc::AF_INET as u16;
            (address.sin_port, address.sin_addr.s_addr) = (self.port.to_be(), self.v4());
            message.put_name(&address);
        }
    }

    /// IPv4 address, in network byte order.
    fn v4(self) -> u32 {
        u32::from_ne_bytes([self.addr[0], self.addr[1], self.addr[2], self.addr[3]])
    }
}

/// Header of a message between `peer` and `local`.
pub(super) fn header(peer: End, local: End) -> [u8; HEADER] {
    let mut head = [0; HEADER];
    head[0] = if local.is_v6 { 6 } else { 4 };
    for (at, end) in [(2, peer), (20, local)] {
        head[at..at + 2].copy_from_slice(&end.port.to_be_bytes());
    }
    head[4..20].copy_from_slice(&peer.addr);
    head[24..40].copy_from_slice(&local.addr);
    head
}

/// Addresses of the peer and of this node in a header.
pub(super) fn ends(head: &[u8; HEADER]) -> [End; 2] {
    let end = |port_at: usize, addr_at: usize| {
        let mut addr = [0; 16];
        addr.copy_from_slice(&head[addr_at..addr_at + 16]);
        End { is_v6: head[0] == 6, addr, port: u16::from_be_bytes([head[port_at], head[port_at + 1]]) }
    };
    [end(2, 4), end(20, 24)]
}

/// Length of a control message with a `T`, without padding.
const fn len_of<T>() -> usize {
    mem::size_of::<cmsghdr>() + mem::size_of::<T>()
}

/// Source address in control messages, if present.
pub(super) fn source(messages: Bytes<'_>, is_v6: bool) -> Option<[u8; 16]> {
    let mut addr = [0; 16];
    if is_v6 {
        let info: in6_pktinfo = control(messages, libc::IPPROTO_IPV6, libc::IPV6_PKTINFO)?;
        addr = info.ipi6_addr.s6_addr;
    } else {
        let info: in_pktinfo = control(messages, libc::IPPROTO_IP, libc::IP_PKTINFO)?;
        addr[..4].copy_from_slice(&info.ipi_spec_dst.s_addr.to_ne_bytes());
    }
    Some(addr).filter(|addr| *addr != [0; 16])
}

/// Contents of the first control message, if its level and type match.
fn control<T: Plain>(messages: Bytes<'_>, level: c_int, kind: c_int) -> Option<T> {
    let header: cmsghdr = messages.read()?;
    let info = messages.skip(mem::size_of::<cmsghdr>()).read()?;
    ((header.cmsg_level, header.cmsg_type) == (level, kind)).then_some(info)
}

/// Writes the destination of a received message as a control message, if the buffer has space. Returns the length with
/// padding.
pub(super) fn put_destination(room: Room<'_>, local: End) -> usize {
    if local.is_v6 {
        let info = in6_pktinfo { ipi6_addr: libc::in6_addr { s6_addr: local.addr }, ipi6_ifindex: 0 };
        put_control(room, libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info)
    } else {
        let addr = libc::in_addr { s_addr: local.v4() };
        let info = in_pktinfo { ipi_ifindex: 0, ipi_spec_dst: addr, ipi_addr: addr };
        put_control(room, libc::IPPROTO_IP, libc::IP_PKTINFO, &info)
    }
}

fn put_control<T: Plain>(room: Room<'_>, level: c_int, kind: c_int, info: &T) -> usize {
    let len = len_of::<T>();
    if room.len() < len {
        return 0;
    }
    room.write(&[cmsghdr { cmsg_len: len, cmsg_level: level, cmsg_type: kind }]);
    room.skip(mem::size_of::<cmsghdr>()).write(slice::from_ref(info));
    len.next_multiple_of(mem::align_of::<cmsghdr>()).min(room.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    const V4: End = End { is_v6: false, addr: [192, 0, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], port: 500 };
    const V6: End = End { is_v6: true, addr: [0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1], port: 4500 };

    #[test]
    fn a_header_gives_back_its_ends() {
        for end in [V4, V6] {
            let peer = End { port: 61_000, ..end };
            assert_eq!(ends(&header(peer, end)), [peer, end]);
        }
        assert_eq!(header(V4, V4)[..8], [4, 0, 1, 0xf4, 192, 0, 2, 1]);
    }

    #[test]
    fn an_address_is_read_as_it_was_written() {
        for end in [V4, V6] {
            let mut room = [0_u8; 64];
            let mut message = Message::new(&[]).with_name(&mut room);
            end.write(&mut message);
            let len = message.name_len();
            assert_eq!(End::read(room[..len].into()), Some(end));
            assert_eq!(End::read(room[..len - 1].into()), None);
        }
    }

    #[test]
    fn answer_comes_from_the_address_that_its_message_came_to() {
        for end in [V4, V6] {
            let mut room = [0_u8; 64];
            let len = put_destination(room.as_mut_slice().into(), end);
            assert!(len > 0 && len.is_multiple_of(8));
            assert_eq!(source(room[..len].into(), end.is_v6), Some(end.addr));
            assert_eq!(source(room[..len].into(), !end.is_v6), None);
            assert_eq!(put_destination(room[..8].as_mut().into(), end), 0, "no room");
        }
    }
}
