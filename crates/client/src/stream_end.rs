//! End of a stream from a gateway by this side: at a signal, or when the reader of the output is gone.

use std::io;
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::event::{PollFd, PollFlags, poll};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Handle with which another thread ends a stream.
#[derive(Clone, Debug)]
pub struct StreamEnd(Arc<Stream>);

#[derive(Debug)]
struct Stream {
    connection: UnixStream,
    is_ended: AtomicBool,
}

impl StreamEnd {
    /// Handle for the stream of a connection.
    pub fn new(connection: UnixStream) -> Self {
        Self(Arc::new(Stream { connection, is_ended: AtomicBool::new(false) }))
    }

    /// Whether this side has ended the stream.
    pub fn is_ended(&self) -> bool {
        self.0.is_ended.load(Ordering::Acquire)
    }

    fn end(&self) {
        self.0.is_ended.store(true, Ordering::Release);
        // The call fails only if the gateway has closed the connection already.
        let _ = self.0.connection.shutdown(Shutdown::Both);
    }

    /// Ends the stream at SIGINT and SIGTERM, so that its reader ends after what it has read.
    ///
    /// # Errors
    /// Errors of sigaction(2) and clone(2).
    pub fn at_signals(&self) -> io::Result<()> {
        let mut signals = Signals::new([SIGINT, SIGTERM])?;
        let end = self.clone();
        thread::Builder::new().name("signals".to_owned()).spawn(move || {
            if signals.forever().next().is_some() {
                end.end();
            }
        })?;
        Ok(())
    }

    /// Ends the stream when `output` loses its reader: without bytes to write, a write would not report it.
    ///
    /// # Errors
    /// Errors of fcntl(2) and clone(2).
    pub fn with_reader(&self, output: impl AsFd) -> io::Result<()> {
        let output = output.as_fd().try_clone_to_owned()?;
        let end = self.clone();
        thread::Builder::new().name("reader".to_owned()).spawn(move || {
            // No events are requested: poll(2) reports a hang-up and an error in any case.
            let mut fds = [PollFd::new(&output, PollFlags::empty())];
            while poll(&mut fds, None) == Err(rustix::io::Errno::INTR) {}
            if fds[0].revents().intersects(PollFlags::ERR | PollFlags::HUP) {
                end.end();
            }
        })?;
        Ok(())
    }
}
