//! IKE ports of the gateway: a key manager that binds port 500 or 4500 sends and receives IKE through the gateway's
//! socket `NAME.ike`, if a link of the gateway has that port. The key manager's descriptor becomes a Unix datagram
//! socket; the header of each message on it is converted to addresses and, on port 4500, to the non-ESP marker (RFC
//! 3948 §2.2), and back.
//!
//! A process has at most one such socket for each port and family. It outlives the gateway: the next one of that name finds it by
//! its file, and it is connected to none, because a connected socket receives from its peer alone.

mod address;

use std::sync::atomic::{AtomicI32, AtomicU64, Ordering::Relaxed};

use libc::{c_int, sockaddr, ssize_t, timespec};

use crate::connection::unix_socket;
use crate::errno::{Errno, checked};
use crate::fd::{self, Fd, control};
use crate::plain::zeroed;
use crate::program_memory::{Bytes, Message, Room};
use crate::table::socket_inode;
use crate::{gateway, libc_next, session, sys};

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
pub(crate) fn bind(fd: c_int, to: Bytes<'_>) -> Option<Result<(), Errno>> {
    let local = End::read(to)?;
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
    let fd = unix_socket(libc::SOCK_DGRAM | libc::SOCK_CLOEXEC).ok()?;
    let name = format!(".ike-{:016x}", u64::from_ne_bytes(sys::random().ok()?));
    let own = gateway::beside(format!("{name}-{}", local.claim()).as_bytes());
    // Of a name that would be too long the next gateway does not know the port.
    let own = own.or_else(|| gateway::beside(name.as_bytes()))?;
    sys::bind(fd.0, &own).and_then(|()| sys::connect(fd.0, &address)).ok()?;
    Some(fd)
}

/// Asks the gateway to send messages for `local` to `fd`; returns whether the gateway has that port.
///
/// # Errors
/// `EAGAIN`: no answer before the timeout `limit`.
fn has_port(fd: c_int, local: End, limit: timespec) -> Result<bool, Errno> {
    let request = header(End { addr: [0; 16], port: 0, ..local }, local);
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    sys::send(fd, &request, flags)?;
    // The call below reports a failure.
    let _ = sys::poll(&mut [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }], Some(limit));
    let mut answer = [0_u8; HEADER];
    Ok(sys::receive(fd, &mut answer, flags)? == HEADER && answer == request)
}

/// Replaces `fd` by the connection, which becomes a socket without a peer.
fn replace(fd: c_int, place: &Place, by: &Fd) -> Result<(), Errno> {
    // An address of zeros has the family of none.
    sys::connect(by.0, &zeroed::<sockaddr>())?;
    let flags = control(fd, libc::F_GETFD, 0)?;
    let state = control(fd, libc::F_GETFL, 0)?;
    fd::replace(by, fd, if flags & libc::FD_CLOEXEC != 0 { libc::O_CLOEXEC } else { 0 })?;
    control(fd, libc::F_SETFL, state)?;
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
pub(crate) fn send(fd: c_int, message: &Message<Bytes<'_>>, flags: c_int) -> Result<ssize_t, Errno> {
    let place = place(fd).ok_or(Errno(libc::EBADF))?;
    let peer = End::read(message.name());
    let peer = peer.filter(|peer| peer.is_v6 == place.is_v6).ok_or(Errno(libc::EDESTADDRREQ))?;
    let mut bytes = [0_u8; HEADER + MAX_LEN];
    let mut len = HEADER;
    for piece in message.pieces()? {
        if piece.len() > bytes.len() - len {
            return Err(Errno(libc::EMSGSIZE));
        }
        if piece.copy_to(&mut bytes[len..]) < piece.len() {
            return Err(Errno(libc::EFAULT));
        }
        len += piece.len();
    }
    let (whole, marker) = (len - HEADER, place.marker());
    // The gateway itself sends NAT keepalives, which have no marker.
    if whole <= marker.len() || !bytes[HEADER..].starts_with(marker) {
        return Ok(whole as ssize_t);
    }
    let addr = source(message.control(), place.is_v6).unwrap_or_else(|| place.local());
    let local = End { is_v6: place.is_v6, addr, port: place.port };
    if local.is_any() {
        return Err(Errno(libc::EADDRNOTAVAIL));
    }
    // The header replaces the marker.
    let start = marker.len();
    bytes[start..start + HEADER].copy_from_slice(&header(peer, local));
    let piece = [Bytes::from(&bytes[start..len])];
    let gateway = gateway::ike_socket().ok_or(Errno(libc::ECONNREFUSED))?;
    let out = Message::new(&piece).to(&gateway);
    // SAFETY: the message's type has what the manual page requires.
    checked(unsafe { libc_next::sendmsg(fd, (&out).into(), flags | libc::MSG_NOSIGNAL) })?;
    Ok(whole as ssize_t)
}

/// Receives one message.
///
/// # Errors
/// As `recvmsg(2)`.
pub(crate) fn receive(fd: c_int, message: &mut Message<Room<'_>>, flags: c_int) -> Result<ssize_t, Errno> {
    let place = place(fd).ok_or(Errno(libc::EBADF))?;
    let marker = place.marker();
    let &[first] = message.pieces()? else { return Err(Errno(libc::EINVAL)) };
    if first.len() < marker.len() {
        return Err(Errno(libc::EINVAL));
    }
    let mut head = [0_u8; HEADER];
    let into = [head.as_mut_slice().into(), first.skip(marker.len())];
    let mut from = Message::new(&into);
    // SAFETY: the message's type has what the manual page requires.
    let len = checked(unsafe { libc_next::recvmsg(fd, (&mut from).into(), flags) })?;
    let flags = from.flags() & libc::MSG_TRUNC;
    first.write(marker);
    let [peer, local] = ends(&head);
    place.set_local(local.addr);
    message.set_flags(flags);
    peer.write(message);
    let used = put_destination(message.control(), local);
    message.set_control_len(used);
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
