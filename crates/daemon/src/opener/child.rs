//! The gateway's end of an opener.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{FdFlags, fcntl_setfd, retry_on_intr};
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, shutdown, socketpair};
use rustix::process::geteuid;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::inherited;
use super::message::{Incoming, receive, send};
use super::process::OpenerWork;
use crate::confine;
use crate::service;
use crate::threads::Threads;

/// Timeout of an order, below that of a change by a client: what a client was told to have failed does not happen later.
const PATIENCE: Duration = Duration::from_secs(4);

/// Longest wait of a short order for another one, such as the opening of a link: a worker may send it.
const SHORT_PATIENCE: Duration = Duration::from_millis(500);

/// Pause between looks whether another order has ended.
const PAUSE: Duration = Duration::from_micros(200);

/// Timeout of the process's end.
const END: Duration = Duration::from_millis(100);

/// The running program, also if its file was replaced.
const PROGRAM: &str = "/proc/self/exe";

/// An answer of an opener.
pub(crate) trait FromOpener: DeserializeOwned {
    /// The reason, if this is a refusal.
    ///
    /// # Errors
    /// The reason.
    fn carried_out(self) -> Result<Self, String>;
}

/// An opener, from the gateway's start to its end. It ends when the handle is dropped.
#[derive(Debug)]
pub(crate) struct Child {
    work: OpenerWork,
    /// Locked while an order is carried out.
    socket: Mutex<Numbered>,
    /// Whether a gateway that has started anew as this one has started the process.
    is_inherited: bool,
    /// Whether the gateway has the process end.
    is_over: Arc<AtomicBool>,
}

/// A socket, and the number of its last order.
#[derive(Debug)]
struct Numbered {
    socket: OwnedFd,
    number: u64,
}

impl Child {
    /// Starts the process, with the rights that this one has now; or takes it over from a gateway that has started anew as
    /// this one.
    ///
    /// # Errors
    /// Error of the call that the system refuses.
    pub(crate) fn start(work: OpenerWork) -> Result<Self, String> {
        let inherited = service::take(work.passed_name());
        let is_inherited = inherited.is_some();
        let socket = inherited.map_or_else(|| spawn(work), Ok)?;
        for of in [Timeout::Recv, Timeout::Send] {
            set_socket_timeout(&socket, of, Some(PATIENCE))
                .map_err(|err| format!("SO_RCVTIMEO, SO_SNDTIMEO: {err}"))?;
        }
        Ok(Self { work, socket: Mutex::new(Numbered { socket, number: 0 }), is_inherited, is_over: Arc::default() })
    }

    /// Whether a gateway that has started anew as this one has passed such a process on.
    pub(crate) fn is_passed_on(work: OpenerWork) -> bool {
        service::stored(work.passed_name()).is_some()
    }

    /// Whether the process was started by a gateway that has started anew as this one, and knows its work.
    pub(crate) const fn is_inherited(&self) -> bool {
        self.is_inherited
    }

    /// Whether the process belongs to another user than this one: the gateway that has started it has changed its user since.
    ///
    /// # Errors
    /// Text of the failure.
    pub(crate) fn is_of_another_user(&self) -> Result<bool, String> {
        let numbered = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        // The user that has made the pair of sockets.
        let peer = socket_peercred(&numbered.socket).map_err(|err| format!("SO_PEERCRED: {err}"))?;
        Ok(peer.uid != geteuid())
    }

    /// Sends an order with descriptors, and waits until the process has carried it out.
    ///
    /// # Errors
    /// Text of the failure.
    pub(crate) fn ask<A: FromOpener>(
        &self,
        order: &impl Serialize,
        with: &[BorrowedFd<'_>],
    ) -> Result<(A, Vec<OwnedFd>), String> {
        self.ask_within(PATIENCE, order, with)
    }

    /// As [`ask`](Self::ask), for an order that the process carries out at once.
    ///
    /// # Errors
    /// Text of the failure; another order takes long.
    pub(crate) fn ask_shortly<A: FromOpener>(
        &self,
        order: &impl Serialize,
        with: &[BorrowedFd<'_>],
    ) -> Result<(A, Vec<OwnedFd>), String> {
        self.ask_within(SHORT_PATIENCE, order, with)
    }

    fn ask_within<A: FromOpener>(
        &self,
        limit: Duration,
        order: &impl Serialize,
        with: &[BorrowedFd<'_>],
    ) -> Result<(A, Vec<OwnedFd>), String> {
        let mut numbered = self.lock_within(limit)?;
        let failed = |err: io::Error| format!("the opener of {}: {err}", self.work.subject());
        let Numbered { socket, number } = &mut *numbered;
        *number = number.wrapping_add(1);
        send(&socket, *number, order, with).map_err(failed)?;
        loop {
            match receive::<A>(&socket).map_err(failed)? {
                Incoming::End => return Err(format!("the opener of {} has ended", self.work.subject())),
                Incoming::Whole(of, answer, descriptors) if of == *number => {
                    return answer.carried_out().map(|answer| (answer, descriptors));
                }
                // An answer to an order that was given up.
                Incoming::Whole(..) | Incoming::Rest => {}
                Incoming::Malformed(_, why) => return Err(failed(io::Error::other(why))),
            }
        }
    }
}

impl Child {
    fn lock_within(&self, limit: Duration) -> Result<MutexGuard<'_, Numbered>, String> {
        let start = Instant::now();
        loop {
            match self.socket.try_lock() {
                Ok(numbered) => return Ok(numbered),
                Err(TryLockError::Poisoned(poisoned)) => return Ok(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) if start.elapsed() >= limit => {
                    return Err(format!("the opener of {} is busy with another order", self.work.subject()));
                }
                Err(TryLockError::WouldBlock) => thread::sleep(PAUSE),
            }
        }
    }

    /// Starts a thread that waits for the end of the process. Without the one of links the gateway ends, and a service manager
    /// starts both again: routes would have no walls, and links that went would not come back. Without the one of the host
    /// side, which is logged, packets go on.
    ///
    /// # Errors
    /// Error of dup(2) or clone(2).
    pub(crate) fn watch(&self, threads: &Threads) -> io::Result<()> {
        let numbered = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        let socket = numbered.socket.try_clone()?;
        let (work, is_over) = (self.work, Arc::clone(&self.is_over));
        threads.spawn(work.passed_name(), move || {
            let mut hung_up = [PollFd::new(&socket, PollFlags::empty())];
            // An error is as the end of the process.
            let _ = retry_on_intr(|| poll(&mut hung_up, None));
            match work {
                _ if is_over.load(Ordering::Acquire) => Ok(()),
                OpenerWork::Links => Err(format!("the opener of {} has ended", work.subject())),
                OpenerWork::HostSide => {
                    tracing::error!("host side: its opener has ended; sockets there miss changes until a restart");
                    Ok(())
                }
            }
        })
    }
}

/// Leaves the sockets of openers to the program that `command` executes in place of this one. No order but those of a start was
/// sent to them.
///
/// # Errors
/// Error of fcntl(2).
pub(crate) fn pass_on<'a>(openers: impl IntoIterator<Item = &'a Child>, command: &mut Command) -> io::Result<()> {
    let mut passed = Vec::new();
    for opener in openers {
        let numbered = opener.socket.lock().unwrap_or_else(PoisonError::into_inner);
        fcntl_setfd(&numbered.socket, FdFlags::empty())?;
        passed.push((opener.work.passed_name(), numbered.socket.as_raw_fd()));
    }
    inherited::name(command, passed, confine::changed());
    Ok(())
}

impl Drop for Child {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        // The process reads end of file and ends, which is end of file here. One that hangs in a system call ends later.
        let Numbered { socket, .. } = self.socket.get_mut().unwrap_or_else(PoisonError::into_inner);
        let ended = shutdown(&*socket, Shutdown::Write)
            .and_then(|()| set_socket_timeout(&*socket, Timeout::Recv, Some(END)))
            .map_err(io::Error::from)
            .and_then(|()| receive::<serde_json::Value>(&*socket));
        if let Err(err) = ended {
            tracing::debug!("the opener of {}: {err}", self.work.subject());
        }
    }
}

/// Starts the process. Returns its socket.
fn spawn(work: OpenerWork) -> Result<OwnedFd, String> {
    let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
    let (ours, theirs) = pair.map_err(|err| format!("socketpair: {err}"))?;
    let mut command = Command::new(PROGRAM);
    // Signals of the terminal go to this program.
    command.args(["opener", work.name()]).stdin(Stdio::from(theirs)).stdout(Stdio::null()).process_group(0);
    command.spawn().map_err(|err| format!("{PROGRAM}: {err}"))?;
    Ok(ours)
}
