//! The daemon's handle of the process of its host side.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, shutdown, socketpair};

use super::order::{Answer, Order, receive, send};

/// Timeout of an order.
const PATIENCE: Duration = Duration::from_secs(10);

/// Timeout of the process's end.
const END: Duration = Duration::from_millis(100);

/// The running program, also if its file was replaced.
const PROGRAM: &str = "/proc/self/exe";

/// Variable of a gateway that starts anew: standard input is the socket of the process that it has started before.
const VARIABLE: &str = "FATPATH_HOST_MAKER";

/// The process of a host side, from the gateway's start to its end. It ends when the handle is dropped.
#[derive(Debug)]
pub(crate) struct Maker {
    socket: OwnedFd,
    /// Number of the last order.
    number: u64,
}

impl Maker {
    /// Starts the process, with the rights that this one has now; or takes it over from a gateway that has started anew as
    /// this one.
    ///
    /// # Errors
    /// Error of the call that the system refuses.
    pub(crate) fn start() -> Result<Self, String> {
        let socket = match std::env::var_os(VARIABLE) {
            Some(_) => io::stdin().as_fd().try_clone_to_owned().map_err(|err| format!("standard input: {err}"))?,
            None => spawn()?,
        };
        set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE)).map_err(|err| format!("SO_RCVTIMEO: {err}"))?;
        Ok(Self { socket, number: 0 })
    }

    /// Passes the process on to the program that `command` executes in place of this one. No order was sent to it.
    ///
    /// # Errors
    /// Error of dup(2).
    pub(crate) fn pass_on(self, command: &mut Command) -> io::Result<()> {
        command.stdin(Stdio::from(self.socket.try_clone()?)).env(VARIABLE, "stdin");
        // A drop ends the process.
        std::mem::forget(self);
        Ok(())
    }

    /// Sends an order with descriptors, and waits until the process has carried it out.
    ///
    /// # Errors
    /// Text of the failure.
    pub(super) fn ask(&mut self, order: &Order, with: &[BorrowedFd<'_>]) -> Result<(Answer, Vec<OwnedFd>), String> {
        let socket = self.socket.as_fd();
        let failed = |err: io::Error| format!("the process of the host side: {err}");
        self.number = self.number.wrapping_add(1);
        send(socket, self.number, order, with).map_err(failed)?;
        loop {
            match receive(socket).map_err(failed)? {
                None => return Err("the process of the host side has ended".to_owned()),
                // The answer to an order that was given up.
                Some((number, _, _)) if number != self.number => {}
                Some((_, Answer::Refused(why), _)) => return Err(why),
                Some((_, answer, descriptors)) => return Ok((answer, descriptors)),
            }
        }
    }
}

impl Drop for Maker {
    fn drop(&mut self) {
        // The process reads end of file and ends, which is end of file here. One that hangs in a system call ends later.
        let ended = shutdown(&self.socket, Shutdown::Write)
            .and_then(|()| set_socket_timeout(&self.socket, Timeout::Recv, Some(END)))
            .map_err(io::Error::from)
            .and_then(|()| receive::<Answer>(&self.socket));
        if let Err(err) = ended {
            tracing::debug!("the process of the host side: {err}");
        }
    }
}

/// Starts the process. Returns its socket.
fn spawn() -> Result<OwnedFd, String> {
    let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
    let (ours, theirs) = pair.map_err(|err| format!("socketpair: {err}"))?;
    let mut command = Command::new(PROGRAM);
    // Signals of the terminal go to this program.
    command.arg("host-maker").stdin(Stdio::from(theirs)).stdout(Stdio::null()).process_group(0);
    command.spawn().map_err(|err| format!("{PROGRAM}: {err}"))?;
    Ok(ours)
}
