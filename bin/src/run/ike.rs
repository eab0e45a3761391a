//! The socket of a key manager: IKE messages to and from the ports of ESP in UDP (see [`control::ike`]).
//!
//! It is a datagram socket with a name, `NAME.ike` beside the control socket, that only this user may use. A message that
//! nobody takes in time is lost, as on the network.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::{Path, PathBuf};

use control::ike::{IKE_HEADER_LEN, IkeHeader, MAX_IKE_LEN};
use path::IkeMessage;

use super::server::private;
use crate::error::CliError;

/// Datagrams that are taken from a key manager at once.
const BURST: usize = 64;

/// The socket's file, which goes when this is dropped.
#[derive(Debug)]
pub(crate) struct IkeFile(PathBuf);

impl Drop for IkeFile {
    fn drop(&mut self) {
        // Somebody may have removed it already.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The socket, and who listens at it.
#[derive(Debug)]
pub(crate) struct IkeSocket {
    socket: UnixDatagram,
    manager: Option<SocketAddr>,
    buffer: Vec<u8>,
}

impl IkeSocket {
    /// Makes the socket at `path`, where there may be one that was left behind.
    ///
    /// # Errors
    /// What cannot be made there.
    pub(crate) fn open(path: &Path) -> Result<(Self, IkeFile), CliError> {
        let failed = |what: &str, err: io::Error| CliError::failed(format!("{}: {what}: {err}", path.display()));
        if let Some(dir) = path.parent() {
            std::fs::create_dir_all(dir).map_err(|err| failed("cannot make its directory", err))?;
        }
        match std::fs::remove_file(path) {
            Err(err) if err.kind() != io::ErrorKind::NotFound => return Err(failed("cannot replace it", err)),
            _ => {}
        }
        let socket = private(|| UnixDatagram::bind(path)).map_err(|err| failed("bind", err))?;
        socket.set_nonblocking(true).map_err(|err| failed("cannot be made non-blocking", err))?;
        // One byte more than any datagram may have, so that a longer one is seen to be.
        let buffer = vec![0; IKE_HEADER_LEN + MAX_IKE_LEN + 1];
        Ok((Self { socket, manager: None, buffer }, IkeFile(path.to_owned())))
    }

    /// What to wait for.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Hands a message to the key manager.
    pub(crate) fn deliver(&mut self, message: &IkeMessage) {
        let Some(manager) = &self.manager else {
            tracing::debug!(peer = %message.peer, "IKE, but no key manager has said that it is there");
            return;
        };
        let header = IkeHeader { peer: message.peer, local: message.local };
        let datagram = [&header.to_bytes()[..], &message.bytes].concat();
        if let Err(err) = self.socket.send_to_addr(&datagram, manager) {
            tracing::debug!("{manager:?}: {err}");
            // It is gone. One that is only slow loses this message alone.
            if matches!(err.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound) {
                self.manager = None;
            }
        }
    }

    /// Gives `each` the messages that the key manager sends.
    pub(crate) fn receive(&mut self, mut each: impl FnMut(&IkeMessage)) {
        for _ in 0..BURST {
            let Ok((len, from)) = self.socket.recv_from(&mut self.buffer) else { return };
            if !from.is_unnamed() {
                self.manager = Some(from);
            }
            match IkeHeader::parse(&self.buffer[..len]) {
                Some((IkeHeader { peer, local }, message)) => {
                    each(&IkeMessage { local, peer, bytes: message.to_vec() });
                }
                None if len == 0 => {}
                None => tracing::warn!("a key manager has sent {len} bytes that are no IKE message behind its header"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_go_to_whoever_spoke_last() {
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
        socket.receive(|message| seen.push(message.clone()));
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
}
