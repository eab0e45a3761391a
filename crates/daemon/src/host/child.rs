//! The daemon's handle of the process that creates its host side.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::order::{Answer, Order, receive, send};

/// Timeout of an order.
const PATIENCE: Duration = Duration::from_secs(10);

/// The running program, also if its file was replaced.
const PROGRAM: &str = "/proc/self/exe";

/// The process that creates a host side. It ends when the handle is dropped.
#[derive(Debug)]
pub(super) struct Maker {
    /// `None` while the handle is being dropped.
    socket: Option<OwnedFd>,
    child: Child,
}

impl Maker {
    /// Starts the process.
    ///
    /// # Errors
    /// Error of the call that the system refuses.
    pub(super) fn start() -> Result<Self, String> {
        let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let (ours, theirs) = pair.map_err(|err| format!("socketpair: {err}"))?;
        set_socket_timeout(&ours, Timeout::Recv, Some(PATIENCE)).map_err(|err| format!("SO_RCVTIMEO: {err}"))?;
        let mut command = Command::new(PROGRAM);
        command.arg("host-maker").stdin(Stdio::from(theirs)).stdout(Stdio::null());
        let child = command.spawn().map_err(|err| format!("{PROGRAM}: {err}"))?;
        Ok(Self { socket: Some(ours), child })
    }

    /// Sends an order with descriptors, and waits until the process has carried it out.
    ///
    /// # Errors
    /// Text of the failure.
    pub(super) fn ask(&self, order: &Order, with: &[BorrowedFd<'_>]) -> Result<(Answer, Vec<OwnedFd>), String> {
        let socket = self.socket.as_ref().ok_or("it has ended")?;
        let failed = |err: std::io::Error| format!("the process of the host side: {err}");
        send(socket, order, with).map_err(failed)?;
        match receive(socket.as_fd()).map_err(failed)? {
            None => Err("the process of the host side has ended".to_owned()),
            Some((Answer::Refused(why), _)) => Err(why),
            Some(answered) => Ok(answered),
        }
    }
}

impl Drop for Maker {
    fn drop(&mut self) {
        // The process reads end of file and ends. One that hangs in a system call is killed when that returns.
        self.socket = None;
        for _ in 0..50 {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
