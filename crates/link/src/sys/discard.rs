//! Closes descriptors whose last close may block.
//!
//! The last close of a socket with `SO_LINGER` blocks for as long as its owner has set, and so does the last close of a
//! Unix socket that holds such a socket in an unread message (`SCM_RIGHTS`). A client that sends such a descriptor
//! would block the thread that closes it. A task that is exiting does not linger (Linux `inet_release`, `PF_EXITING`),
//! so the last close is left to a thread that exits:
//!
//! 1. The thread `discard` has a table of descriptors of its own (`CLONE_FILES` undone), and adds a duplicate of the descriptor to
//!    be closed (pidfd_getfd(2)). The caller's close is then not the last one, and does not block.
//! 2. For each batch it starts a thread that copies that table, closes its own copies, which are not the last ones, and
//!    lets that thread exit with the last ones.
//!
//! These tables hold no other descriptors of the process, so they keep no others open.

use std::convert::Infallible;
use std::ffi::c_uint;
use std::io;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ops::Deref;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;

use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};

use super::check;

/// Largest number of descriptors that one exiting thread closes.
const BATCH: usize = 256;

/// Stack size of an exiting thread.
const STACK: usize = 64 << 10;

/// Handle of the thread that closes sockets of links, once it is started; `None` inside if it cannot be.
static LINKS: OnceLock<Option<Discard>> = OnceLock::new();

/// Lowest descriptors of the thread's own table, which stay open: copies of its process's pidfd, at the numbers of
/// standard streams, so that nothing is written to a descriptor that is being closed.
const KEPT: c_uint = 3;

/// Request of a caller to the thread.
#[derive(Debug)]
struct Request {
    /// A descriptor of the process's table.
    fd: RawFd,
    /// Reply channel: whether a duplicate is in the thread's table.
    taken: SyncSender<bool>,
    /// Disconnected when the caller has closed the descriptor.
    closed: Receiver<Infallible>,
}

/// Handle by which callers reach the thread `discard`.
#[derive(Clone, Debug)]
pub struct Discard {
    requests: Sender<Request>,
    /// Descriptors that the thread had no room for.
    left: Arc<Mutex<Vec<OwnedFd>>>,
}

/// Work of the thread `discard`.
#[derive(Debug)]
pub struct DiscardThread {
    requests: Receiver<Request>,
}

/// Makes both ends.
pub fn discard() -> (Discard, DiscardThread) {
    let (sender, requests) = channel();
    (Discard { requests: sender, left: Arc::default() }, DiscardThread { requests })
}

impl Discard {
    /// Closes `fd` without blocking. If the thread has no room for a duplicate, `fd` stays open until a later call.
    pub fn close(&self, fd: OwnedFd) {
        let mut left = self.left();
        left.push(fd);
        *left = left.drain(..).filter_map(|fd| self.hand_over(fd)).collect();
    }

    /// Closes a descriptor once the thread has a duplicate; returns it if there is none.
    fn hand_over(&self, fd: OwnedFd) -> Option<OwnedFd> {
        let (taken, answer) = sync_channel(1);
        let (_closing, closed) = channel();
        let request = Request { fd: fd.as_raw_fd(), taken, closed };
        if self.requests.send(request).is_ok() && answer.recv() == Ok(true) {
            // This is not the last close: the thread waits for it, until `_closing` is dropped.
            drop(fd);
            return None;
        }
        Some(fd)
    }

    fn left(&self) -> MutexGuard<'_, Vec<OwnedFd>> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DiscardThread {
    /// Serves until all handles are dropped. The calling thread has no other use afterwards, since its table of
    /// descriptors is its own. Descriptors that the process has open at the call are copied to that table and closed in
    /// it at once. The thread blocks all signals: a handler that writes to a descriptor of the process would write to
    /// another one here, or to none.
    ///
    /// # Errors
    /// The thread cannot have a table of its own, or cannot block signals.
    pub fn run(self) -> io::Result<()> {
        block_signals()?;
        own_table()?;
        close_from(0)?;
        // The descriptors lie in this thread's table, which ends with it.
        let [process, _, _] =
            [(); KEPT as usize].map(|()| pidfd_open(getpid(), PidfdFlags::empty()).map(ManuallyDrop::new));
        let process = process?;
        let take = |Request { fd, taken, closed }| {
            let own = pidfd_getfd(&*process, fd, PidfdGetfdFlags::empty());
            // The key is valid in this thread's table only, and found again by its address range.
            let _ = taken.send(own.map(IntoRawFd::into_raw_fd).is_ok());
            closed
        };
        while let Ok(first) = self.requests.recv() {
            let others = self.requests.try_iter().take(BATCH);
            let closed: Vec<_> = std::iter::once(first).chain(others).map(take).collect();
            for closed in closed {
                // No message comes: it returns when the sender is dropped.
                let _ = closed.recv();
            }
            close_by_exit();
        }
        Ok(())
    }
}

/// A socket from or to another process, which a thread of the links closes when it is dropped.
#[derive(Debug)]
pub(crate) struct Discarded<T: Into<OwnedFd>>(Option<T>);

impl<T: Into<OwnedFd>> Discarded<T> {
    pub(crate) const fn new(socket: T) -> Self {
        Self(Some(socket))
    }
}

impl<T: Into<OwnedFd>> Deref for Discarded<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect("it is there until it is dropped")
    }
}

impl<T: Into<OwnedFd>> Drop for Discarded<T> {
    fn drop(&mut self) {
        // A thread that began here would be one of a start, with rights that its process gives up later.
        match (self.0.take(), LINKS.get()) {
            (Some(socket), Some(Some(discard))) => discard.close(socket.into()),
            (socket, _) => drop(socket),
        }
    }
}

/// Handle of the thread that closes sockets of links, which the first call starts; `None` if the thread cannot be started. The
/// first call comes before a link may be closed: the thread's copy of the table would keep the link's descriptors open.
pub(crate) fn of_links() -> Option<&'static Discard> {
    let start = || {
        let (discard, thread) = discard();
        let started = thread::Builder::new().name("discard-links".to_owned()).spawn(move || thread.run());
        started.ok().map(|_| discard)
    };
    LINKS.get_or_init(start).as_ref()
}

/// Blocks all signals in the calling thread and in threads that it starts.
fn block_signals() -> io::Result<()> {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the pointer is valid for writes; `sigfillset` initialises the set.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    // SAFETY: the set is initialised, and the null pointer requests no previous mask.
    let error = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), ptr::null_mut()) };
    if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error)) }
}

/// Starts a thread that closes, by its exit, all descriptors of the calling thread's table from [`KEPT`] on. If it
/// cannot be started they stay open until the next call.
fn close_by_exit() {
    let (ready, is_ready) = sync_channel(1);
    let (end, may_end) = channel::<Infallible>();
    let work = move || {
        // The caller waits for the answer.
        let _ = ready.send(own_table().is_ok());
        // No message comes: it returns when the caller has closed its own descriptors.
        let _ = may_end.recv();
    };
    let copying = thread::Builder::new().name("discard-exit".to_owned()).stack_size(STACK).spawn(work);
    if copying.is_ok() && is_ready.recv() == Ok(true) {
        // It cannot fail for a non-empty range.
        let _ = close_from(KEPT);
    }
    drop(end);
}

/// Gives the calling thread a table of descriptors of its own, a copy of the process's.
pub(super) fn own_table() -> io::Result<()> {
    // SAFETY: no memory is touched. Descriptors of values that others own are copied, and closed by number only.
    check(unsafe { libc::unshare(libc::CLONE_FILES) })?;
    Ok(())
}

/// Closes all descriptors of the calling thread's own table but two.
pub(super) fn close_all_but(mut kept: [RawFd; 2]) -> io::Result<()> {
    kept.sort_unstable();
    let [first, second] = kept.map(|fd| fd as c_uint);
    if first > 0 {
        close_range(0, first - 1)?;
    }
    if first + 1 < second {
        close_range(first + 1, second - 1)?;
    }
    close_from(second + 1)
}

/// Closes all descriptors of the calling thread's table from `first` on.
fn close_from(first: c_uint) -> io::Result<()> {
    close_range(first, c_uint::MAX)
}

fn close_range(first: c_uint, last: c_uint) -> io::Result<()> {
    // SAFETY: by the callers, the table is the calling thread's own, and no value of this thread owns one of these.
    let closed = unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
    check(closed as i32)?;
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use std::io::{IoSlice, Read};
    use std::mem::MaybeUninit;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixDatagram;
    use std::time::{Duration, Instant};

    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg, sockopt};

    use super::*;

    /// Connection whose last close blocks for an hour, unless its other end reads.
    pub(crate) fn lingering() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        sockopt::set_socket_recv_buffer_size(&listener, 4096).unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (far, _) = listener.accept().unwrap();
        near.set_nonblocking(true).unwrap();
        while rustix::io::write(&near, &[0; 1 << 16]).is_ok() {}
        sockopt::set_socket_linger(&near, Some(Duration::from_secs(3600))).unwrap();
        (near, far)
    }

    fn exiting() -> usize {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        tasks.filter(|task| std::fs::read(task.path().join("comm")).is_ok_and(|comm| comm == b"discard-exit\n")).count()
    }

    #[test]
    fn close_of_lingering_socket_does_not_block() {
        let (discard, thread) = discard();
        let thread = std::thread::spawn(move || thread.run());
        let mut far_ends = Vec::new();
        for nested in [false, true].repeat(20) {
            let (near, far) = lingering();
            let (near, number) = (OwnedFd::from(near), far_ends.len());
            far_ends.push(far);
            if !nested {
                discard.close(near);
                continue;
            }
            let (one, other) = UnixDatagram::pair().unwrap();
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let (mut control, fds) = (SendAncillaryBuffer::new(&mut space), [near.as_fd()]);
            assert!(control.push(SendAncillaryMessage::ScmRights(&fds)), "{number}");
            sendmsg(&one, &[IoSlice::new(b"x")], &mut control, SendFlags::empty()).unwrap();
            drop((one, near));
            discard.close(other.into());
        }
        // No call has blocked for an hour. Nor do the exiting threads.
        let limit = Instant::now() + Duration::from_secs(60);
        while exiting() > 0 {
            assert!(Instant::now() < limit, "{} threads wait", exiting());
            std::thread::sleep(Duration::from_millis(10));
        }
        for mut far in far_ends {
            far.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            far.read_to_end(&mut Vec::new()).unwrap();
        }
        assert!(discard.left().is_empty());
        drop(discard);
        thread.join().unwrap().unwrap();
    }
}
