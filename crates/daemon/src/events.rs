//! Events that other threads send to the main thread.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::Sender;

/// An event for the main thread.
pub(crate) enum Event {
    /// A signal has arrived.
    Signal(i32),
    /// A request of the client at the other end of a connection to apply a file, which the client may have opened.
    Load { file: PathBuf, opened: Option<File>, client: OwnedFd, reply: Sender<Result<String, String>> },
    /// A client's request to save the state that netlink clients have set.
    Save { reply: Sender<Result<String, String>> },
    /// The next gateway, at the other end of this socket, takes over. Its configuration may have a host side.
    TakeOver { to: Arc<OwnedFd>, has_host_side: bool },
    /// A link has a device that was made again, without the addresses and routes of the file.
    DeviceMade,
    /// The worker has ended.
    WorkerEnded,
    /// Another thread has panicked or returned an error, for this reason.
    ThreadEnded(String),
}
