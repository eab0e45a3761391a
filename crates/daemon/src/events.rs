//! Events that other threads send to the main thread.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};

use config::Meter;
use ctl::{LoadStage, Reply};

/// A client's request to apply a file.
pub(crate) struct LoadRequest {
    pub(crate) file: PathBuf,
    /// The file, if the client has opened it.
    pub(crate) opened: Option<File>,
    pub(crate) client: OwnedFd,
    pub(crate) progress: Arc<LoadProgress>,
    pub(crate) reply: Sender<Result<String, String>>,
}

/// Progress of a load, for the thread of the client.
#[derive(Debug)]
pub(crate) struct LoadProgress {
    pub(crate) meter: Meter,
    stage: Mutex<LoadStage>,
}

impl Default for LoadProgress {
    fn default() -> Self {
        Self { meter: Meter::default(), stage: Mutex::new(LoadStage::Waiting) }
    }
}

impl LoadProgress {
    pub(crate) fn enter(&self, stage: LoadStage) {
        *self.stage.lock().unwrap_or_else(PoisonError::into_inner) = stage;
    }

    /// The progress, as a reply.
    pub(crate) fn reply(&self) -> Reply {
        let (read, len) = self.meter.get();
        Reply::Loading { stage: *self.stage.lock().unwrap_or_else(PoisonError::into_inner), read, len }
    }
}

/// An event for the main thread.
pub(crate) enum Event {
    /// A signal has arrived.
    Signal(i32),
    /// A request of the client at the other end of a connection to apply a file.
    Load(LoadRequest),
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
