//! Socket of key managers: IKE messages to and from the node's IKE ports (see [`ctl::ike`]).
//!
//! It is a datagram socket at the path `NAME.ike` beside the control socket, for this user alone. A message that no key
//! manager reads in time is lost, as on the network.
//!
//! The file of a program's socket under `fatpath exec` is named after the port that the program has claimed, so that the
//! next gateway of that name sends messages to programs that run on:
//!
//! `NAME.ike-RANDOM-FPPPP[ADDRESS]`: 16 hexadecimal digits, the family 4 or 6, four hexadecimal digits of the port, and those
//! of the address, unless it is any.

use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixDatagram};
use std::path::{Path, PathBuf};

use client::CliError;
use ctl::ike::{IKE_HEADER_LEN, IkeHeader, MAX_IKE_LEN, requested_port};
use datapath::IkeMessage;

use crate::files;

/// Limit of datagrams received from key managers in one call.
const BURST: usize = 64;

/// Separator between the socket's path and the random suffix in the socket path of a program under `fatpath exec`.
const LISTENER: &str = "-";

/// File of the socket. Drop removes the file, and the files of listeners that have ended.
#[derive(Debug)]
pub(crate) struct IkeFile(PathBuf);

impl IkeFile {
    /// The file of a socket that another gateway has made at `path`.
    pub(crate) fn of_earlier(path: &Path) -> Self {
        Self(path.to_owned())
    }

    /// Leaves the file to the next gateway, which has the socket.
    pub(crate) fn leave(self) {
        std::mem::forget(self);
    }
}

impl Drop for IkeFile {
    fn drop(&mut self) {
        // Another process may have removed it already.
        let _ = files::remove(&self.0);
        running_listeners(&self.0);
    }
}

/// Sockets of programs that have claimed a port of the gateway whose socket is at `path`, and that run. Files of the others
/// are removed.
fn running_listeners(path: &Path) -> Vec<(SocketAddr, UnixAddr)> {
    let found = path.parent().and_then(|dir| fs::read_dir(dir).ok()).into_iter().flatten().filter_map(Result::ok);
    let is_running = |file: &Path| {
        let connect = || UnixDatagram::unbound().and_then(|probe| probe.connect(file));
        !reached(file, connect)
            .is_err_and(|err| matches!(err.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound))
    };
    let mut running = Vec::new();
    for file in found.map(|entry| entry.path()) {
        let Some(claim) = claim_of(path, &file) else { continue };
        let claim = claim.filter(|_| is_running(&file)).zip(UnixAddr::from_pathname(&file).ok());
        if claim.is_none() {
            let _ = files::remove(&file);
        }
        running.extend(claim);
    }
    running
}

/// Calls what takes a right to send to the socket at `file`. A gateway of another user than the program's has its opener give it the right.
fn reached(file: &Path, call: impl Fn() -> io::Result<()>) -> io::Result<()> {
    match call() {
        Err(err) if err.kind() == io::ErrorKind::PermissionDenied && files::share(file).is_ok() => call(),
        done => done,
    }
}

/// Tells whether `file` is named as the socket of a program that registers with the socket at `path`.
fn is_listener(path: &Path, file: &Path) -> bool {
    claim_of(path, file).is_some()
}

/// Port that the name of a program's socket claims, at an address or at any; `Some(None)`: the name has no claim. `None`:
/// `file` is not named as the socket of a program that registers with the socket at `path`.
fn claim_of(path: &Path, file: &Path) -> Option<Option<SocketAddr>> {
    let (own, name) = (path.file_name()?.to_str()?, file.file_name()?.to_str()?);
    let rest = name.strip_prefix(own)?.strip_prefix(LISTENER)?;
    let is_hex = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let (_, claim) = rest.split_at_checked(16).filter(|(random, _)| is_hex(random))?;
    if claim.is_empty() {
        return Some(None);
    }
    let claim = claim.strip_prefix(LISTENER).filter(|claim| is_hex(claim))?;
    let (port, addr) = (u16::from_str_radix(claim.get(1..5)?, 16).ok()?, claim.get(5..)?);
    let ip = match (claim.get(..1)?, addr.len()) {
        ("4", 0) => IpAddr::from([0; 4]),
        ("6", 0) => IpAddr::from([0_u16; 8]),
        ("4", 8) => IpAddr::from(u32::from_str_radix(addr, 16).ok()?.to_be_bytes()),
        ("6", 32) => IpAddr::from(u128::from_str_radix(addr, 16).ok()?.to_be_bytes()),
        _ => return None,
    };
    Some(Some(SocketAddr::new(ip, port)))
}

/// The socket of IKE messages, and the sockets registered with it.
#[derive(Debug)]
pub(crate) struct IkeSocket {
    socket: UnixDatagram,
    path: PathBuf,
    /// Receiver of messages to ports that no listener has claimed.
    manager: Option<UnixAddr>,
    /// Sockets that have claimed a port, each at one address or, with the unspecified address, at any.
    listeners: Vec<(SocketAddr, UnixAddr)>,
    buffer: Vec<u8>,
}

impl IkeSocket {
    /// Creates the socket at `path`, and replaces a stale file.
    ///
    /// # Errors
    /// The socket cannot be made.
    pub(crate) fn open(path: &Path) -> Result<(Self, IkeFile), CliError> {
        let failed = |what: &str, err: io::Error| CliError::failed(format!("{}: {what}: {err}", path.display()));
        let socket = files::listen(path, files::SocketRole::Ike).map_err(|err| failed("bind", err))?;
        let socket = UnixDatagram::from(socket);
        socket.set_nonblocking(true).map_err(|err| failed("cannot be made non-blocking", err))?;
        Ok((Self::of_earlier(socket, path), IkeFile(path.to_owned())))
    }

    /// The socket that is bound to `path`, which another gateway may have made.
    pub(crate) fn of_earlier(socket: UnixDatagram, path: &Path) -> Self {
        // One byte more than the largest datagram, so that a longer one is detected.
        let buffer = vec![0; IKE_HEADER_LEN + MAX_IKE_LEN + 1];
        let mut opened = Self { socket, path: path.to_owned(), manager: None, listeners: Vec::new(), buffer };
        running_listeners(path).into_iter().for_each(|(at, program)| opened.listen(at, program));
        opened
    }

    /// Descriptor to poll.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Sends a message to the key manager.
    pub(crate) fn deliver(&mut self, message: &IkeMessage) {
        let listener = self.listener(message.local);
        let manager =
            listener.and_then(|at| self.listeners.get(at)).map(|(_, manager)| manager).or(self.manager.as_ref());
        let Some(manager) = manager else {
            tracing::debug!(peer = %message.peer, "IKE message dropped: no key manager has registered");
            return;
        };
        let header = IkeHeader { peer: message.peer, local: message.local };
        let datagram = [&header.to_bytes()[..], &message.bytes].concat();
        if let Err(err) = self.send(&datagram, manager) {
            tracing::debug!("{manager:?}: {err}");
            // The receiver is gone. A receiver that is only slow loses this message alone.
            if matches!(err.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound) {
                match listener {
                    Some(at) => {
                        let (_, manager) = self.listeners.swap_remove(at);
                        self.forget(&manager);
                    }
                    None => self.manager = None,
                }
            }
        }
    }

    fn send(&self, datagram: &[u8], to: &UnixAddr) -> io::Result<()> {
        let send = || self.socket.send_to_addr(datagram, to).map(drop);
        match to.as_pathname() {
            Some(file) => reached(file, send),
            None => send(),
        }
    }

    /// Index of the listener for messages to `local`: a claim of the address takes precedence over a claim of any
    /// address.
    fn listener(&self, local: SocketAddr) -> Option<usize> {
        let any = if local.is_ipv4() { IpAddr::from([0; 4]) } else { IpAddr::from([0_u16; 8]) };
        let find =
            |ip| self.listeners.iter().position(|(listener, _)| (listener.ip(), listener.port()) == (ip, local.port()));
        find(local.ip()).or_else(|| find(any))
    }

    /// Sends messages for the port and address `at`, or for the port at any address, to `manager`, in place of an earlier
    /// listener of the same claim.
    fn listen(&mut self, at: SocketAddr, manager: UnixAddr) {
        let before =
            self.listeners.iter().position(|(listener, _)| *listener == at).map(|at| self.listeners.swap_remove(at));
        self.listeners.push((at, manager));
        before.iter().for_each(|(_, manager)| self.forget(manager));
    }

    /// Removes the file of a listener without claims.
    fn forget(&self, manager: &UnixAddr) {
        let listens = self.listeners.iter().any(|(_, other)| is_same(other, manager));
        if let Some(file) = manager.as_pathname().filter(|file| !listens && is_listener(&self.path, file)) {
            // Another process may have removed it already.
            let _ = files::remove(file);
        }
    }

    /// Passes the messages of key managers to `each`. `has_port` decides on claims of ports.
    pub(crate) fn receive(&mut self, has_port: impl Fn(SocketAddr) -> bool, mut each: impl FnMut(IkeMessage)) {
        for _ in 0..BURST {
            let Ok((len, from)) = self.socket.recv_from(&mut self.buffer) else { return };
            let datagram = &self.buffer[..len];
            if let Some(at) = requested_port(datagram) {
                let has_port = has_port(at);
                // A sender that does not read the reply, or has no name, gets none.
                let _ = self.send(if has_port { datagram } else { &[] }, &from);
                if has_port && !from.is_unnamed() {
                    self.listen(at, from);
                } else {
                    self.forget(&from);
                }
                continue;
            }
            if !from.is_unnamed() && !self.listeners.iter().any(|(_, who)| is_same(who, &from)) {
                self.manager = Some(from);
            }
            match IkeHeader::parse(datagram) {
                Some((IkeHeader { peer, local }, message)) => {
                    each(IkeMessage { local, peer, bytes: message.to_vec() });
                }
                None if len == 0 => {}
                None => tracing::warn!("a key manager has sent {len} bytes without an IKE message behind the header"),
            }
        }
    }
}

/// Tells whether two names are equal. Names that the kernel assigned have no path.
fn is_same(one: &UnixAddr, other: &UnixAddr) -> bool {
    match (one.as_pathname(), one.as_abstract_name()) {
        (Some(path), _) => other.as_pathname() == Some(path),
        (None, Some(name)) => other.as_abstract_name() == Some(name),
        (None, None) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_go_to_the_last_sender() {
        let dir = std::env::temp_dir().join(format!("fatpath-ike-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let (path, manager_path) = (dir.join("x.ike"), dir.join("manager"));
        let (mut socket, file) = IkeSocket::open(&path).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&path).unwrap().permissions());
        assert_eq!(mode & 0o077, 0, "{mode:o}");
        let message = IkeMessage {
            local: "192.0.2.1:4500".parse().unwrap(),
            peer: "192.0.2.2:9".parse().unwrap(),
            bytes: vec![7],
        };
        socket.deliver(&message);
        let manager = UnixDatagram::bind(&manager_path).unwrap();
        manager.set_nonblocking(true).unwrap();
        manager.connect(&path).unwrap();
        let mut seen = Vec::new();
        let datagram = [&IkeHeader { peer: message.peer, local: message.local }.to_bytes()[..], &[7]].concat();
        let too_long = vec![4; IKE_HEADER_LEN + MAX_IKE_LEN + 1];
        for sent in [&datagram[..], &datagram[..IKE_HEADER_LEN], &[1, 2, 3], &too_long, &[]] {
            manager.send(sent).unwrap();
        }
        socket.receive(|_| true, |message| seen.push(message));
        assert_eq!(seen, std::slice::from_ref(&message), "what is wrong is refused, and ends nothing");
        socket.deliver(&message);
        let mut got = [0; 100];
        assert_eq!(manager.recv(&mut got).map(|len| got[..len].to_vec()).unwrap(), datagram);
        drop(manager);
        socket.deliver(&message);
        assert!(socket.manager.is_none(), "it is gone");
        drop(file);
        assert!(!path.exists());
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn listener_of_a_port_receives_its_messages() {
        let dir = std::env::temp_dir().join(format!("fatpath-ike-ports-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("x.ike");
        let (mut socket, _file) = IkeSocket::open(&path).unwrap();
        let asking = |name: &str| {
            let manager = UnixDatagram::bind(dir.join(name)).unwrap();
            manager.set_nonblocking(true).unwrap();
            manager.connect(&path).unwrap();
            manager
        };
        let request =
            |local: &str| IkeHeader { peer: "0.0.0.0:0".parse().unwrap(), local: local.parse().unwrap() }.to_bytes();
        let received = |manager: &UnixDatagram| {
            let mut bytes = [0; 100];
            manager.recv(&mut bytes).ok().map(|len| bytes[..len].to_vec())
        };
        let has_port = |at: SocketAddr| at.port() != 501;
        let [all, ike, encap, one] = ["all", "ike", "encap", "one"].map(asking);
        all.send(&[]).unwrap();
        let granted = [(&ike, "0.0.0.0:500"), (&one, "192.0.2.7:4500"), (&encap, "192.0.2.8:4500")];
        for (manager, local) in [&granted[..], &[(&encap, "0.0.0.0:4500")]].concat() {
            manager.send(&request(local)).unwrap();
            socket.receive(has_port, |message| panic!("{message:?}"));
            assert_eq!(received(manager).unwrap(), request(local), "granted");
        }
        ike.send(&request("0.0.0.0:501")).unwrap();
        socket.receive(has_port, |message| panic!("{message:?}"));
        assert!(received(&ike).unwrap().is_empty(), "refused");
        let mut deliver = |local: &str| {
            let (local, peer) = (local.parse().unwrap(), "192.0.2.2:9".parse().unwrap());
            socket.deliver(&IkeMessage { local, peer, bytes: vec![7] });
            [&ike, &encap, &one, &all].map(|manager| received(manager).is_some())
        };
        for (local, whose) in [
            ("192.0.2.1:500", [true, false, false, false]),
            ("192.0.2.1:4500", [false, true, false, false]),
            ("192.0.2.7:4500", [false, false, true, false]),
            ("192.0.2.8:4500", [false, true, false, false]),
            ("192.0.2.7:500", [true, false, false, false]),
            ("192.0.2.1:4501", [false, false, false, true]),
            ("[2001:db8::1]:500", [false, false, false, true]),
        ] {
            assert_eq!(deliver(local), whose, "{local}");
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn socket_files_of_unused_listeners_are_removed() {
        let dir = std::env::temp_dir().join(format!("fatpath-ike-files-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("x.ike");
        let left = dir.join("x.ike-0123456789abcdef");
        let others =
            ["x.ike-0123456789abcde", "x.ike-0123456789abcdeg", "y.ike-0123456789abcdef"].map(|name| dir.join(name));
        for file in others.iter().chain([&left]) {
            std::fs::write(file, "").unwrap();
        }
        let (mut socket, file) = IkeSocket::open(&path).unwrap();
        assert!(!left.exists(), "it was left behind");
        let request = |port: u16| {
            let local = SocketAddr::new(IpAddr::from([192, 0, 2, 1]), port);
            IkeHeader { peer: "0.0.0.0:0".parse().unwrap(), local }.to_bytes()
        };
        let [first, second, refused] = ["1", "2", "3"].map(|digit| dir.join(format!("x.ike-{}", digit.repeat(16))));
        let mut ask = |file: &Path, port| {
            let manager = UnixDatagram::bind(file).unwrap();
            manager.send_to(&request(port), &path).unwrap();
            socket.receive(|at| at.port() == 500, |message| panic!("{message:?}"));
            manager
        };
        let _first = ask(&first, 500);
        assert!(first.exists());
        let _refused = ask(&refused, 501);
        assert!(!refused.exists(), "it listens at nothing");
        let _second = ask(&second, 500);
        assert!(!first.exists() && second.exists(), "the second stands in place of the first");
        drop(file);
        assert!(!path.exists() && !second.exists());
        assert!(others.iter().all(|file| file.exists()), "they are not listeners of this gateway");
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn next_gateway_finds_programs_by_names_of_their_sockets() {
        let dir = std::env::temp_dir().join(format!("fatpath-ike-next-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("x.ike");
        let program = |claim: &str| {
            let file = dir.join(format!("x.ike-0123456789abcdef-{claim}"));
            let socket = UnixDatagram::bind(&file).unwrap();
            socket.set_nonblocking(true).unwrap();
            (socket, file)
        };
        let (any, any_file) = program("41194");
        let (one, _) = program("41194c0000207");
        let (v6, _) = program("601f420010db8000000000000000000000001");
        let (ended, ended_file) = program("401f4");
        drop(ended);
        for wrong in ["4", "41194c00002", "51194", "4119g", "4+194", "4119420010db8000000000000000000000001"] {
            std::fs::write(dir.join(format!("x.ike-0123456789abcdef-{wrong}")), "").unwrap();
        }
        let (mut socket, file) = IkeSocket::open(&path).unwrap();
        assert!(any_file.exists() && !ended_file.exists());
        let mut deliver = |local: &str| {
            let (local, peer) = (local.parse().unwrap(), "192.0.2.2:9".parse().unwrap());
            socket.deliver(&IkeMessage { local, peer, bytes: vec![7] });
            [&any, &one, &v6].map(|program| program.recv(&mut [0; 100]).is_ok())
        };
        assert_eq!(deliver("192.0.2.1:4500"), [true, false, false]);
        assert_eq!(deliver("192.0.2.7:4500"), [false, true, false]);
        assert_eq!(deliver("[2001:db8::1]:500"), [false, false, true]);
        assert_eq!(deliver("192.0.2.1:500"), [false; 3]);
        // The end of a gateway leaves what runs on.
        drop((v6, socket, file));
        let left = std::fs::read_dir(&dir).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
        let left = left.filter(|name| claim_of(&path, Path::new(name)).is_some()).count();
        assert_eq!((left, any_file.exists()), (2, true));
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
