//! IKE ports of the gateway: a key manager that binds port 500 or 4500 sends and receives IKE through the gateway's
//! socket `NAME.ike`, if a link of the gateway has that port. The key manager's descriptor becomes a Unix datagram
//! socket; the header of each message on it is converted to addresses and, on port 4500, to the non-ESP marker (RFC
//! 3948 §2.2), and back.
//!
//! A process has at most one such socket for each port and family. It outlives the gateway: the next one of that name finds it by
//! its file, and it is connected to none, because a connected socket receives from its peer alone.

mod address;

use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering::Relaxed};

use libc::{c_int, c_void, iovec, msghdr, sockaddr, socklen_t, ssize_t, timespec};

use crate::errno::{Errno, checked};
use crate::fd::Fd;
use crate::libc_next;
use crate::table::socket_inode;
use crate::{gateway, session};

use address::{End, HEADER, ends, header, put_destination, source};

/// Port of IKE.
const IKE_PORT: u16 = 500;
/// Port of ESP in UDP.
const ENCAP_PORT: u16 = 4500;
/// Non-ESP marker, in front of IKE on the port of ESP in UDP.
const MARKER: [u8; 4] = [0; 4];
/// Maximum length of a message.
const MAX_LEN: usize = 65_507;
/// Timeout for the gateway's answer whether it has a port, the same as that of its worker.
const PATIENCE: timespec = timespec { tv_sec: 5, tv_nsec: 0 };

/// Socket of a key manager.
struct Place {
    is_v6: bool,
    port: u16,
    fd: AtomicI32,
    inode: AtomicU64,
    /// Destination address of the last message; zeros before the first.
    local: [AtomicU64; 2],
}

impl Place {
    const fn new(is_v6: bool, port: u16) -> Self {
        let (fd, inode) = (AtomicI32::new(-1), AtomicU64::new(0));
        Self { is_v6, port, fd, inode, local: [const { AtomicU64::new(0) }; 2] }
    }

    fn marker(&self) -> &'static [u8] {
        if self.port == ENCAP_PORT { &MARKER } else { &[] }
    }

    fn set_local(&self, addr: [u8; 16]) {
        for (word, bytes) in self.local.iter().zip(addr.as_chunks().0) {
            word.store(u64::from_ne_bytes(*bytes), Relaxed);
        }
    }

    fn local(&self) -> [u8; 16] {
        let mut addr = [0; 16];
        for (word, bytes) in self.local.iter().zip(addr.as_chunks_mut().0) {
            *bytes = word.load(Relaxed).to_ne_bytes();
        }
        addr
    }
}

static PLACES: [Place; 4] = [
    Place::new(false, IKE_PORT),
    Place::new(false, ENCAP_PORT),
    Place::new(true, IKE_PORT),
    Place::new(true, ENCAP_PORT),
];

/// The key manager's socket with descriptor `fd`, if any.
fn place(fd: c_int) -> Option<&'static Place> {
    // A closed descriptor may have been reused.
    let mut places = PLACES.iter().filter(|place| place.fd.load(Relaxed) == fd).peekable();
    places.peek()?;
    let inode = socket_inode(fd)?;
    places.find(|place| place.inode.load(Relaxed) == inode)
}

/// Tells whether `fd` is a key manager's socket.
pub(crate) fn is(fd: c_int) -> bool {
    place(fd).is_some()
}

/// Binds an IKE port, if the gateway has it. `None`: the kernel has to bind the port.
///
/// # Safety
/// `to`, if not null, points to `len` readable bytes.
pub(crate) unsafe fn bind(fd: c_int, to: *const sockaddr, len: socklen_t) -> Option<Result<(), Errno>> {
    // SAFETY: as the caller promises.
    let local = unsafe { End::read(to, len) }?;
    let place = PLACES.iter().find(|place| (place.is_v6, place.port) == (local.is_v6, local.port))?;
    let domain = if local.is_v6 { libc::AF_INET6 } else { libc::AF_INET };
    if session::option(fd, libc::SOL_SOCKET, libc::SO_TYPE) != Some(libc::SOCK_DGRAM)
        || session::option(fd, libc::SOL_SOCKET, libc::SO_DOMAIN) != Some(domain)
    {
        return None;
    }
    let connection = connected(local)?;
    match has_port(connection.0, local, PATIENCE) {
        Ok(false) => None,
        Ok(true) => {
            place.set_local(local.addr);
            Some(replace(fd, place, &connection))
        }
        // The port may be the gateway's, so the host must not bind it.
        Err(errno) => Some(Err(errno)),
    }
}

/// Connects a socket to the gateway; `None` if the gateway does not accept IKE. The socket's name is a file in the
/// directory of the gateway's sockets, which is reachable from another network namespace, and which the gateway removes
/// after use. It says which port the program claims, for the next gateway of that name.
fn connected(local: End) -> Option<Fd> {
    let address = gateway::ike_socket()?;
    let flags = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
    // SAFETY: the call takes no pointers.
    let fd = Fd(checked(unsafe { libc_next::socket(libc::AF_UNIX, flags, 0) }).ok()?);
    let mut random = [0_u8; 8];
    // SAFETY: the buffer is that long.
    let got = unsafe { libc::syscall(libc::SYS_getrandom, random.as_mut_ptr(), random.len(), 0) };
    checked(got as c_int).ok()?;
    let name = format!(".ike-{:016x}", u64::from_ne_bytes(random));
    let own = gateway::beside(format!("{name}-{}", local.claim()).as_bytes());
    // Of a name that would be too long the next gateway does not know the port.
    let own = own.or_else(|| gateway::beside(name.as_bytes()))?;
    // SAFETY: the address is that long.
    let bound = unsafe { libc::syscall(libc::SYS_bind, fd.0, &raw const own, mem::size_of_val(&own)) };
    // SAFETY: the address is that long.
    let done = unsafe { libc::syscall(libc::SYS_connect, fd.0, &raw const address, mem::size_of_val(&address)) };
    (bound == 0 && done == 0).then_some(fd)
}

/// Asks the gateway to send messages for `local` to `fd`; returns whether the gateway has that port.
///
/// # Errors
/// `EAGAIN`: no answer before the timeout `limit`.
fn has_port(fd: c_int, local: End, mut limit: timespec) -> Result<bool, Errno> {
    let request = header(End { addr: [0; 16], port: 0, ..local }, local);
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    let no_address = ptr::null::<c_void>();
    let none = 0_usize;
    // SAFETY: the buffer is that long.
    let sent = unsafe { libc::syscall(libc::SYS_sendto, fd, request.as_ptr(), HEADER, flags, no_address, none) };
    checked(sent as c_int)?;
    let mut ready = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry is passed and its count is one, and the limit may be written.
    unsafe { libc::syscall(libc::SYS_ppoll, &raw mut ready, 1_usize, &raw mut limit, no_address, none) };
    let mut answer = [0_u8; HEADER];
    // SAFETY: the buffer is that long.
    let got = unsafe { libc::syscall(libc::SYS_recvfrom, fd, answer.as_mut_ptr(), HEADER, flags, no_address, none) };
    Ok(checked(got as c_int)? == HEADER as c_int && answer == request)
}

/// Replaces `fd` by the connection, which becomes a socket without a peer.
fn replace(fd: c_int, place: &Place, by: &Fd) -> Result<(), Errno> {
    // SAFETY: an address is all zeros, and its family is that of none.
    let no_peer: sockaddr = unsafe { mem::zeroed() };
    // SAFETY: the address is that long.
    let done = unsafe { libc::syscall(libc::SYS_connect, by.0, &raw const no_peer, mem::size_of_val(&no_peer)) };
    checked(done as c_int)?;
    // SAFETY: the call takes no pointers.
    let flags = unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_GETFD) };
    // SAFETY: the call takes no pointers.
    let state = unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_GETFL) };
    let close_on_exec = if flags as c_int & libc::FD_CLOEXEC != 0 { libc::O_CLOEXEC } else { 0 };
    // SAFETY: the call takes no pointers.
    checked(unsafe { libc::syscall(libc::SYS_dup3, by.0, fd, close_on_exec) } as c_int)?;
    // SAFETY: the call takes no pointers.
    checked(unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_SETFL, state) } as c_int)?;
    place.inode.store(socket_inode(fd).ok_or(Errno(libc::EBADF))?, Relaxed);
    place.fd.store(fd, Relaxed);
    Ok(())
}

const IP_XFRM_POLICY: c_int = 17;
const IPV6_XFRM_POLICY: c_int = 35;

/// Tells whether an option sets a policy of the socket.
pub(crate) const fn is_policy(level: c_int, name: c_int) -> bool {
    matches!((level, name), (libc::IPPROTO_IP, IP_XFRM_POLICY) | (libc::IPPROTO_IPV6, IPV6_XFRM_POLICY))
}

/// Tells whether the gateway implements an option: ESP in UDP, or bypass of policies for IKE.
pub(crate) const fn is_granted(level: c_int, name: c_int) -> bool {
    const UDP_ENCAP: c_int = 100;
    is_policy(level, name) || matches!((level, name), (libc::IPPROTO_UDP, UDP_ENCAP))
}

/// Sends one message.
///
/// # Errors
/// As `sendmsg(2)`; `EDESTADDRREQ` without a peer.
///
/// # Safety
/// As `sendmsg(2)`.
pub(crate) unsafe fn send(fd: c_int, message: &msghdr, flags: c_int) -> Result<ssize_t, Errno> {
    let place = place(fd).ok_or(Errno(libc::EBADF))?;
    // SAFETY: as the caller promises.
    let peer = unsafe { End::read(message.msg_name.cast(), message.msg_namelen) };
    let peer = peer.filter(|peer| peer.is_v6 == place.is_v6).ok_or(Errno(libc::EDESTADDRREQ))?;
    // SAFETY: as the caller promises.
    let pieces = unsafe { crate::calls::pieces(message.msg_iov, message.msg_iovlen) }?;
    let mut bytes = [0_u8; HEADER + MAX_LEN];
    let mut len = HEADER;
    for piece in pieces {
        let room = bytes.get_mut(len..).and_then(|rest| rest.get_mut(..piece.iov_len)).ok_or(Errno(libc::EMSGSIZE))?;
        // SAFETY: as the caller promises, and the buffer is that long.
        unsafe { ptr::copy_nonoverlapping(piece.iov_base.cast::<u8>(), room.as_mut_ptr(), piece.iov_len) };
        len += piece.iov_len;
    }
    let (whole, marker) = (len - HEADER, place.marker());
    // The gateway itself sends NAT keepalives, which have no marker.
    if whole <= marker.len() || !bytes[HEADER..].starts_with(marker) {
        return Ok(whole as ssize_t);
    }
    // SAFETY: as the caller promises.
    let addr = unsafe { source(message, place.is_v6) }.unwrap_or_else(|| place.local());
    let local = End { is_v6: place.is_v6, addr, port: place.port };
    if local.is_any() {
        return Err(Errno(libc::EADDRNOTAVAIL));
    }
    // The header replaces the marker.
    let start = marker.len();
    bytes[start..start + HEADER].copy_from_slice(&header(peer, local));
    let mut piece = iovec { iov_base: bytes[start..].as_mut_ptr().cast(), iov_len: len - start };
    // SAFETY: an empty message is all zeros.
    let mut out: msghdr = unsafe { mem::zeroed() };
    (out.msg_iov, out.msg_iovlen) = (&raw mut piece, 1);
    let mut gateway = gateway::ike_socket().ok_or(Errno(libc::ECONNREFUSED))?;
    (out.msg_name, out.msg_namelen) = ((&raw mut gateway).cast(), mem::size_of_val(&gateway) as socklen_t);
    // SAFETY: the message points to locals of this frame.
    checked(unsafe { libc_next::sendmsg(fd, &raw const out, flags | libc::MSG_NOSIGNAL) })?;
    Ok(whole as ssize_t)
}

/// Receives one message.
///
/// # Errors
/// As `recvmsg(2)`.
///
/// # Safety
/// As `recvmsg(2)`.
pub(crate) unsafe fn receive(fd: c_int, message: &mut msghdr, flags: c_int) -> Result<ssize_t, Errno> {
    let place = place(fd).ok_or(Errno(libc::EBADF))?;
    let marker = place.marker();
    // SAFETY: as the caller promises.
    let pieces = unsafe { crate::calls::pieces(message.msg_iov, message.msg_iovlen) }?;
    let [first, ..] = pieces else { return Err(Errno(libc::EINVAL)) };
    if pieces.len() != 1 || first.iov_len < marker.len() {
        return Err(Errno(libc::EINVAL));
    }
    let mut head = [0_u8; HEADER];
    let mut into = [
        iovec { iov_base: head.as_mut_ptr().cast(), iov_len: HEADER },
        iovec {
            iov_base: first.iov_base.cast::<u8>().wrapping_add(marker.len()).cast::<c_void>(),
            iov_len: first.iov_len - marker.len(),
        },
    ];
    // SAFETY: an empty message is all zeros.
    let mut from: msghdr = unsafe { mem::zeroed() };
    (from.msg_iov, from.msg_iovlen) = (into.as_mut_ptr(), into.len());
    // SAFETY: the header is a local, and the other buffers are valid as the caller promises.
    let len = checked(unsafe { libc_next::recvmsg(fd, &raw mut from, flags) })?;
    // SAFETY: the buffer has space for the marker.
    unsafe { ptr::copy_nonoverlapping(marker.as_ptr(), first.iov_base.cast(), marker.len()) };
    let [peer, local] = ends(&head);
    place.set_local(local.addr);
    message.msg_flags = from.msg_flags & libc::MSG_TRUNC;
    // SAFETY: as the caller promises.
    unsafe { peer.write(message) };
    // SAFETY: as the caller promises.
    unsafe { put_destination(message, local) };
    Ok(len.saturating_sub(HEADER as ssize_t) + marker.len() as ssize_t)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixDatagram;

    use super::*;

    #[test]
    fn name_of_a_socket_has_family_port_and_address() {
        let end = |is_v6, first: &[u8], port| {
            let mut addr = [0; 16];
            addr[..first.len()].copy_from_slice(first);
            End { is_v6, addr, port }.claim()
        };
        assert_eq!(end(false, &[], 4500), "41194");
        assert_eq!(end(true, &[], 500), "601f4");
        assert_eq!(end(false, &[192, 0, 2, 7], 4500), "41194c0000207");
        assert_eq!(end(true, &[0x20, 1, 0xd, 0xb8], 4500), "6119420010db8000000000000000000000000");
    }

    #[test]
    fn a_gateway_that_says_nothing_is_no_gateway_without_the_port() {
        let (here, gateway) = UnixDatagram::pair().unwrap();
        let local = End { is_v6: false, addr: [0; 16], port: IKE_PORT };
        let limit = timespec { tv_sec: 0, tv_nsec: 1_000_000 };
        let ask = || has_port(here.as_raw_fd(), local, limit).map_err(|errno| errno.0);
        assert_eq!(ask(), Err(libc::EAGAIN));
        let mut request = [0; HEADER];
        assert_eq!(gateway.recv(&mut request).unwrap(), HEADER);
        for (answer, want) in [(&request[..], true), (&[], false), (&request[1..], false)] {
            gateway.send(answer).unwrap();
            assert_eq!(ask(), Ok(want));
        }
        drop(gateway);
        assert_eq!(ask(), Err(libc::ECONNREFUSED));
    }
}
