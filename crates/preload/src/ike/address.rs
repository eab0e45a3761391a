//! Internet addresses as `sockaddr`, as control messages, and in headers on the gateway's socket.

use std::mem::{self, MaybeUninit};

use libc::{c_int, c_void, cmsghdr, in_pktinfo, in6_pktinfo, msghdr, sockaddr, sockaddr_in, sockaddr_in6, socklen_t};

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
    ///
    /// # Safety
    /// `address`, if not null, points to `len` readable bytes.
    pub(super) unsafe fn read(address: *const sockaddr, len: socklen_t) -> Option<Self> {
        let len = len as usize;
        if address.is_null() || len < mem::size_of::<u16>() {
            return None;
        }
        let mut addr = [0; 16];
        // SAFETY: two bytes are readable.
        match c_int::from(unsafe { address.cast::<u16>().read_unaligned() }) {
            libc::AF_INET if len >= mem::size_of::<sockaddr_in>() => {
                // SAFETY: the buffer is long enough, and any bytes are valid.
                let v4 = unsafe { address.cast::<sockaddr_in>().read_unaligned() };
                addr[..4].copy_from_slice(&v4.sin_addr.s_addr.to_ne_bytes());
                Some(Self { is_v6: false, addr, port: u16::from_be(v4.sin_port) })
            }
            libc::AF_INET6 if len >= mem::size_of::<sockaddr_in6>() => {
                // SAFETY: the buffer is long enough, and any bytes are valid.
                let v6 = unsafe { address.cast::<sockaddr_in6>().read_unaligned() };
                Some(Self { is_v6: true, addr: v6.sin6_addr.s6_addr, port: u16::from_be(v6.sin6_port) })
            }
            _ => None,
        }
    }

    /// Writes the address as a message's source, truncated to the buffer, and its length.
    ///
    /// # Safety
    /// `message.msg_name` points to `message.msg_namelen` writable bytes.
    pub(super) unsafe fn write(self, message: &mut msghdr) {
        if self.is_v6 {
            // SAFETY: any bytes are a valid address.
            let mut address: sockaddr_in6 = unsafe { mem::zeroed() };
            address.sin6_family = libc::AF_INET6 as u16;
            (address.sin6_port, address.sin6_addr.s6_addr) = (self.port.to_be(), self.addr);
            // SAFETY: as the caller promises.
            unsafe { put_name(message, &address) };
        } else {
            // SAFETY: any bytes are a valid address.
            let mut address: sockaddr_in = unsafe { mem::zeroed() };
            address.sin_family = libc::AF_INET as u16;
            (address.sin_port, address.sin_addr.s_addr) = (self.port.to_be(), self.v4());
            // SAFETY: as the caller promises.
            unsafe { put_name(message, &address) };
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

/// # Safety
/// As [`End::write`].
unsafe fn put_name<T>(message: &mut msghdr, address: &T) {
    if message.msg_name.is_null() {
        return;
    }
    let room = mem::size_of::<T>().min(message.msg_namelen as usize);
    // SAFETY: both buffers are at least that long.
    unsafe { std::ptr::copy_nonoverlapping(std::ptr::from_ref(address).cast::<u8>(), message.msg_name.cast(), room) };
    message.msg_namelen = mem::size_of::<T>() as socklen_t;
}

/// Control message with the destination of a received message, or the source of a message to send.
#[repr(C)]
#[derive(Clone, Copy)]
struct PktInfo<T> {
    header: cmsghdr,
    info: T,
}

/// Length of a control message, without padding.
const fn len_of<T>() -> usize {
    mem::size_of::<cmsghdr>() + mem::size_of::<T>()
}

/// Source address in a message's control messages, if present.
///
/// # Safety
/// As `sendmsg(2)`.
pub(super) unsafe fn source(message: &msghdr, is_v6: bool) -> Option<[u8; 16]> {
    let mut addr = [0; 16];
    if is_v6 {
        // SAFETY: as the caller promises.
        let info: in6_pktinfo = unsafe { control(message, libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) }?;
        addr = info.ipi6_addr.s6_addr;
    } else {
        // SAFETY: as the caller promises.
        let info: in_pktinfo = unsafe { control(message, libc::IPPROTO_IP, libc::IP_PKTINFO) }?;
        addr[..4].copy_from_slice(&info.ipi_spec_dst.s_addr.to_ne_bytes());
    }
    Some(addr).filter(|addr| *addr != [0; 16])
}

/// Contents of the first control message, if its level and type match.
///
/// # Safety
/// As `sendmsg(2)`; any bytes are a valid `T`.
unsafe fn control<T: Copy>(message: &msghdr, level: c_int, kind: c_int) -> Option<T> {
    if message.msg_control.is_null() || message.msg_controllen < len_of::<T>() {
        return None;
    }
    let mut control = MaybeUninit::<PktInfo<T>>::zeroed();
    // SAFETY: both buffers are that long.
    unsafe {
        std::ptr::copy_nonoverlapping(message.msg_control.cast::<u8>(), control.as_mut_ptr().cast(), len_of::<T>());
    }
    // SAFETY: any bytes are valid.
    let PktInfo { header, info } = unsafe { control.assume_init() };
    ((header.cmsg_level, header.cmsg_type) == (level, kind)).then_some(info)
}

/// Adds the destination of a received message as a control message, if the buffer has space.
///
/// # Safety
/// The message's buffer for control messages is writable.
pub(super) unsafe fn put_destination(message: &mut msghdr, local: End) {
    if local.is_v6 {
        let info = in6_pktinfo { ipi6_addr: libc::in6_addr { s6_addr: local.addr }, ipi6_ifindex: 0 };
        // SAFETY: as the caller promises.
        unsafe { put_control(message, libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, info) };
    } else {
        let addr = libc::in_addr { s_addr: local.v4() };
        let info = in_pktinfo { ipi_ifindex: 0, ipi_spec_dst: addr, ipi_addr: addr };
        // SAFETY: as the caller promises.
        unsafe { put_control(message, libc::IPPROTO_IP, libc::IP_PKTINFO, info) };
    }
}

/// # Safety
/// As [`put_destination`].
unsafe fn put_control<T: Copy>(message: &mut msghdr, level: c_int, kind: c_int, info: T) {
    let len = len_of::<T>();
    if message.msg_control.is_null() || message.msg_controllen < len {
        message.msg_controllen = 0;
        return;
    }
    let control = PktInfo { header: cmsghdr { cmsg_len: len, cmsg_level: level, cmsg_type: kind }, info };
    let to: *mut c_void = message.msg_control;
    // SAFETY: the length was checked; the padding of the structure is not copied.
    unsafe { std::ptr::copy_nonoverlapping((&raw const control).cast::<u8>(), to.cast(), len) };
    message.msg_controllen = len.next_multiple_of(mem::align_of::<cmsghdr>()).min(message.msg_controllen);
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
            // SAFETY: an empty message is all zeros.
            let mut message: msghdr = unsafe { mem::zeroed() };
            (message.msg_name, message.msg_namelen) = (room.as_mut_ptr().cast(), 64);
            // SAFETY: the buffer is that long.
            unsafe { end.write(&mut message) };
            let len = message.msg_namelen;
            // SAFETY: `len` bytes were written.
            assert_eq!(unsafe { End::read(room.as_ptr().cast(), len) }, Some(end));
            // SAFETY: the length is shorter than an address.
            assert_eq!(unsafe { End::read(room.as_ptr().cast(), len - 1) }, None);
        }
    }

    #[test]
    fn answer_comes_from_the_address_that_its_message_came_to() {
        for end in [V4, V6] {
            let mut room = [0_u64; 8];
            // SAFETY: an empty message is all zeros.
            let mut message: msghdr = unsafe { mem::zeroed() };
            (message.msg_control, message.msg_controllen) = (room.as_mut_ptr().cast(), 64);
            // SAFETY: the buffer is that long.
            unsafe { put_destination(&mut message, end) };
            assert!(message.msg_controllen > 0 && message.msg_controllen.is_multiple_of(8));
            // SAFETY: the buffer contains the control message just written.
            assert_eq!(unsafe { source(&message, end.is_v6) }, Some(end.addr));
            // SAFETY: as before.
            assert_eq!(unsafe { source(&message, !end.is_v6) }, None);
            message.msg_controllen = 8;
            // SAFETY: the buffer is that long.
            unsafe { put_destination(&mut message, end) };
            assert_eq!(message.msg_controllen, 0, "no room");
        }
    }
}
