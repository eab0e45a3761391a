//! The port of ESP in UDP, which a gateway's `udp` link has: a key manager that binds port 4500 of IPv4 gets IKE from
//! there and sends it there, by the gateway's socket `NAME.ike`. Its descriptor becomes a Unix datagram socket; what
//! stands in front of each message there becomes addresses and the non-ESP marker (RFC 3948 §2.2), and the other way.
//!
//! A process has one such socket.

use std::mem::{self, MaybeUninit};
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering::Relaxed};

use libc::{c_int, c_void, cmsghdr, in_pktinfo, iovec, msghdr, sockaddr, sockaddr_in, socklen_t, ssize_t};

use crate::errno::{Errno, checked};
use crate::next;
use crate::session::{self, Fd};
use crate::table::socket_inode;

/// The port of ESP in UDP.
const PORT: u16 = 4500;
/// What stands in front of each message on the gateway's socket: peer and own address, 40 bytes.
const HEADER: usize = 40;
/// What stands in front of IKE on the port of ESP.
const MARKER: [u8; 4] = [0; 4];
/// The longest message.
const MAX_LEN: usize = 65_507;

static FD: AtomicI32 = AtomicI32::new(-1);
static INODE: AtomicU64 = AtomicU64::new(0);
/// The address that the last message was sent to, in network byte order; 0 for none yet.
static LOCAL: AtomicU32 = AtomicU32::new(0);

/// Whether `fd` is the key manager's socket.
pub(crate) fn is(fd: c_int) -> bool {
    FD.load(Relaxed) == fd && socket_inode(fd).is_some_and(|inode| inode == INODE.load(Relaxed))
}

/// An IPv4 address, if it is one.
///
/// # Safety
/// `address`, if not null, points to as many bytes as `len` says.
unsafe fn ipv4(address: *const sockaddr, len: socklen_t) -> Option<sockaddr_in> {
    if address.is_null() || (len as usize) < mem::size_of::<sockaddr_in>() {
        return None;
    }
    // SAFETY: it is long enough, and any bytes are valid.
    let address = unsafe { address.cast::<sockaddr_in>().read_unaligned() };
    (c_int::from(address.sin_family) == libc::AF_INET).then_some(address)
}

/// Binds the port of ESP in UDP, if that is what is asked for and the gateway has it. `None`: it is not.
///
/// # Safety
/// As [`ipv4`].
pub(crate) unsafe fn bind(fd: c_int, to: *const sockaddr, len: socklen_t) -> Option<Result<(), Errno>> {
    // SAFETY: the caller's word.
    let address = unsafe { ipv4(to, len) }.filter(|address| u16::from_be(address.sin_port) == PORT)?;
    if option(fd, libc::SO_TYPE) != Some(libc::SOCK_DGRAM) || option(fd, libc::SO_DOMAIN) != Some(libc::AF_INET) {
        return None;
    }
    let connection = connected()?;
    LOCAL.store(address.sin_addr.s_addr, Relaxed);
    Some(replace(fd, &connection))
}

fn option(fd: c_int, name: c_int) -> Option<c_int> {
    let (mut value, mut len): (c_int, socklen_t) = (0, mem::size_of::<c_int>() as socklen_t);
    // SAFETY: there is room for an int.
    let done = unsafe { next::getsockopt(fd, libc::SOL_SOCKET, name, (&raw mut value).cast(), &raw mut len) };
    (done == 0).then_some(value)
}

/// A socket that the gateway knows to be the key manager's. `None`: the gateway has no port for IKE.
fn connected() -> Option<Fd> {
    let address = session::ike_socket()?;
    let flags = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
    // SAFETY: it takes no pointers.
    let fd = Fd(checked(unsafe { next::socket(libc::AF_UNIX, flags, 0) }).ok()?);
    let family = libc::AF_UNIX as u16;
    // Without a name it is given one.
    // SAFETY: the address is two bytes long.
    let bound = unsafe { libc::syscall(libc::SYS_bind, fd.0, &raw const family, mem::size_of::<u16>()) };
    // SAFETY: the address is that long.
    let done = unsafe { libc::syscall(libc::SYS_connect, fd.0, &raw const address, mem::size_of_val(&address)) };
    // SAFETY: no bytes are sent.
    let told = unsafe { libc::syscall(libc::SYS_sendto, fd.0, &raw const family, 0, libc::MSG_NOSIGNAL, 0, 0) };
    (bound == 0 && done == 0 && told == 0).then_some(fd)
}

/// Puts the connection in the place of `fd`.
fn replace(fd: c_int, by: &Fd) -> Result<(), Errno> {
    // SAFETY: it takes no pointers.
    let flags = unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_GETFD) };
    // SAFETY: it takes no pointers.
    let state = unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_GETFL) };
    let close_on_exec = if flags as c_int & libc::FD_CLOEXEC != 0 { libc::O_CLOEXEC } else { 0 };
    // SAFETY: it takes no pointers.
    checked(unsafe { libc::syscall(libc::SYS_dup3, by.0, fd, close_on_exec) } as c_int)?;
    // SAFETY: it takes no pointers.
    checked(unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_SETFL, state) } as c_int)?;
    INODE.store(socket_inode(fd).ok_or(Errno(libc::EBADF))?, Relaxed);
    FD.store(fd, Relaxed);
    Ok(())
}

/// Whether an option of the socket is one that the gateway sees to: that UDP carries ESP, and that IKE passes policies.
pub(crate) const fn is_granted(level: c_int, name: c_int) -> bool {
    const IP_XFRM_POLICY: c_int = 17;
    const IPV6_XFRM_POLICY: c_int = 35;
    const UDP_ENCAP: c_int = 100;
    matches!(
        (level, name),
        (libc::IPPROTO_IP, IP_XFRM_POLICY) | (libc::IPPROTO_IPV6, IPV6_XFRM_POLICY) | (libc::IPPROTO_UDP, UDP_ENCAP)
    )
}

/// A control message with the address that a message came to, or is to come from.
#[repr(C)]
#[derive(Clone, Copy)]
struct PktInfo {
    header: cmsghdr,
    info: in_pktinfo,
}

/// The length of one, without what pads it.
const PKTINFO: usize = mem::size_of::<cmsghdr>() + mem::size_of::<in_pktinfo>();

/// Sends one message.
///
/// # Errors
/// As `sendmsg(2)`; `EDESTADDRREQ` without a peer.
///
/// # Safety
/// As `sendmsg(2)`.
pub(crate) unsafe fn send(fd: c_int, message: &msghdr, flags: c_int) -> Result<ssize_t, Errno> {
    // SAFETY: the caller's word.
    let peer = unsafe { ipv4(message.msg_name.cast(), message.msg_namelen) }.ok_or(Errno(libc::EDESTADDRREQ))?;
    // SAFETY: the caller's word.
    let pieces = unsafe { crate::calls::pieces(message.msg_iov, message.msg_iovlen) }?;
    let mut bytes = [0_u8; HEADER + MAX_LEN];
    let mut len = HEADER;
    for piece in pieces {
        let room = bytes.get_mut(len..).and_then(|rest| rest.get_mut(..piece.iov_len)).ok_or(Errno(libc::EMSGSIZE))?;
        // SAFETY: the caller's word, and there is as much room.
        unsafe { std::ptr::copy_nonoverlapping(piece.iov_base.cast::<u8>(), room.as_mut_ptr(), piece.iov_len) };
        len += piece.iov_len;
    }
    let whole = len - HEADER;
    // The gateway keeps the way through a NAT open by itself: a keepalive has nothing behind a marker.
    if whole <= MARKER.len() || bytes[HEADER..HEADER + MARKER.len()] != MARKER {
        return Ok(whole as ssize_t);
    }
    // SAFETY: the caller's word.
    let local = unsafe { source(message) }.unwrap_or_else(|| LOCAL.load(Relaxed));
    let head = header(&peer, local);
    // The header takes the marker's place.
    let start = MARKER.len();
    bytes[start..start + HEADER].copy_from_slice(&head);
    let mut piece = iovec { iov_base: bytes[start..].as_mut_ptr().cast(), iov_len: len - start };
    // SAFETY: a message without anything is all zeros.
    let mut out: msghdr = unsafe { mem::zeroed() };
    (out.msg_iov, out.msg_iovlen) = (&raw mut piece, 1);
    // SAFETY: what it points to lives here.
    checked(unsafe { next::sendmsg(fd, &raw const out, flags | libc::MSG_NOSIGNAL) })?;
    Ok(whole as ssize_t)
}

/// The header of a message from the port of ESP at `local` to `peer`.
fn header(peer: &sockaddr_in, local: u32) -> [u8; HEADER] {
    let mut head = [0; HEADER];
    head[0] = 4;
    head[2..4].copy_from_slice(&peer.sin_port.to_ne_bytes());
    head[4..8].copy_from_slice(&peer.sin_addr.s_addr.to_ne_bytes());
    head[20..22].copy_from_slice(&PORT.to_be_bytes());
    head[24..28].copy_from_slice(&local.to_ne_bytes());
    head
}

/// The address that a message is to come from, if its control messages say.
///
/// # Safety
/// As `sendmsg(2)`.
unsafe fn source(message: &msghdr) -> Option<u32> {
    if message.msg_control.is_null() || message.msg_controllen < PKTINFO {
        return None;
    }
    let mut control = MaybeUninit::<PktInfo>::zeroed();
    // SAFETY: there are as many bytes, and as much room.
    unsafe {
        std::ptr::copy_nonoverlapping(message.msg_control.cast::<u8>(), control.as_mut_ptr().cast(), PKTINFO);
    }
    // SAFETY: any bytes are valid.
    let PktInfo { header, info } = unsafe { control.assume_init() };
    let is_one = (header.cmsg_level, header.cmsg_type) == (libc::IPPROTO_IP, libc::IP_PKTINFO);
    Some(info.ipi_spec_dst.s_addr).filter(|&addr| is_one && addr != 0)
}

/// Receives one message.
///
/// # Errors
/// As `recvmsg(2)`.
///
/// # Safety
/// As `recvmsg(2)`.
pub(crate) unsafe fn receive(fd: c_int, message: &mut msghdr, flags: c_int) -> Result<ssize_t, Errno> {
    // SAFETY: the caller's word.
    let pieces = unsafe { crate::calls::pieces(message.msg_iov, message.msg_iovlen) }?;
    let [first, ..] = pieces else { return Err(Errno(libc::EINVAL)) };
    if pieces.len() != 1 || first.iov_len < MARKER.len() {
        return Err(Errno(libc::EINVAL));
    }
    let mut head = [0_u8; HEADER];
    let mut into = [
        iovec { iov_base: head.as_mut_ptr().cast(), iov_len: HEADER },
        iovec {
            iov_base: first.iov_base.cast::<u8>().wrapping_add(MARKER.len()).cast::<c_void>(),
            iov_len: first.iov_len - MARKER.len(),
        },
    ];
    // SAFETY: a message without anything is all zeros.
    let mut from: msghdr = unsafe { mem::zeroed() };
    (from.msg_iov, from.msg_iovlen) = (into.as_mut_ptr(), into.len());
    // SAFETY: the header lives here, and the rest is the caller's.
    let len = checked(unsafe { next::recvmsg(fd, &raw mut from, flags) })?;
    // SAFETY: there is room for the marker.
    unsafe { std::ptr::copy_nonoverlapping(MARKER.as_ptr(), first.iov_base.cast(), MARKER.len()) };
    let word = |at: usize| u32::from_ne_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    LOCAL.store(word(24), Relaxed);
    message.msg_flags = from.msg_flags & libc::MSG_TRUNC;
    if !message.msg_name.is_null() {
        // SAFETY: any bytes are a valid address.
        let mut peer: sockaddr_in = unsafe { mem::zeroed() };
        peer.sin_family = libc::AF_INET as u16;
        (peer.sin_port, peer.sin_addr.s_addr) = (u16::from_ne_bytes([head[2], head[3]]), word(4));
        let room = mem::size_of::<sockaddr_in>().min(message.msg_namelen as usize);
        // SAFETY: no more is written than there is room for, nor read than there is.
        unsafe { std::ptr::copy_nonoverlapping((&raw const peer).cast::<u8>(), message.msg_name.cast(), room) };
        message.msg_namelen = mem::size_of::<sockaddr_in>() as socklen_t;
    }
    // SAFETY: the caller's word.
    unsafe { put_destination(message, word(24)) };
    Ok(len.saturating_sub(HEADER as ssize_t) + MARKER.len() as ssize_t)
}

/// Writes the address that a message came to, if there is room for it.
///
/// # Safety
/// The message's room for control messages may be written.
unsafe fn put_destination(message: &mut msghdr, addr: u32) {
    if message.msg_control.is_null() || message.msg_controllen < PKTINFO {
        message.msg_controllen = 0;
        return;
    }
    let addr = libc::in_addr { s_addr: addr };
    let header = cmsghdr { cmsg_len: PKTINFO, cmsg_level: libc::IPPROTO_IP, cmsg_type: libc::IP_PKTINFO };
    let control = PktInfo { header, info: in_pktinfo { ipi_ifindex: 0, ipi_spec_dst: addr, ipi_addr: addr } };
    // SAFETY: the room has been looked at; what pads the structure is left out.
    unsafe { std::ptr::copy_nonoverlapping((&raw const control).cast::<u8>(), message.msg_control.cast(), PKTINFO) };
    message.msg_controllen = PKTINFO.next_multiple_of(mem::align_of::<cmsghdr>()).min(message.msg_controllen);
}
