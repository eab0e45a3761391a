//! Signals of an eventfd that another process shares, without a write: as completions of asynchronous I/O (io_submit(2),
//! `IOCB_FLAG_RESFD`).
//!
//! A write blocks while the counter is full, unless `O_NONBLOCK` is set. Both are in the other process's hands, at any
//! moment. A completion adds 1 to the counter, or nothing to a full one, and never blocks (Linux `eventfd_signal`). The
//! I/O that completes is a read of no bytes of `/dev/null`, within the call.

use std::ffi::{c_int, c_long, c_ulong};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;
use std::sync::{Mutex, OnceLock, PoisonError};

/// Completions that the kernel keeps until they are read. All contexts of a machine share a limit (`fs.aio-max-nr`, 65 536).
const QUEUE: c_int = 128;

/// `IOCB_CMD_PREAD`.
const PREAD: u16 = 0;

/// `IOCB_FLAG_RESFD`.
const RESFD: u32 = 1;

/// `struct iocb` of `linux/aio_abi.h`.
#[repr(C)]
#[derive(Debug, Default)]
struct Iocb {
    data: u64,
    /// The key, which the kernel writes, and flags, in an order that depends on the byte order.
    key_and_flags: [u32; 2],
    opcode: u16,
    priority: i16,
    fd: u32,
    buffer: u64,
    len: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    eventfd: u32,
}

/// `struct io_event` of `linux/aio_abi.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Event {
    data: u64,
    iocb: u64,
    result: i64,
    second_result: i64,
}

/// Context of asynchronous I/O, which all links of the process share: destroying one takes milliseconds.
#[derive(Debug)]
pub(crate) struct Context {
    id: c_ulong,
    null: File,
}

/// The process's context, created by the first call.
///
/// # Errors
/// The kernel has no asynchronous I/O (`ENOSYS`), or the machine's limit is reached (`EAGAIN`).
pub(crate) fn context() -> io::Result<&'static Context> {
    static CONTEXT: OnceLock<Context> = OnceLock::new();
    static CREATION: Mutex<()> = Mutex::new(());
    let _creating = CREATION.lock().unwrap_or_else(PoisonError::into_inner);
    if CONTEXT.get().is_none() {
        let null = File::open("/dev/null")?;
        let mut id: c_ulong = 0;
        // SAFETY: the kernel writes one number to `id`.
        check(unsafe { libc::syscall(libc::SYS_io_setup, QUEUE, &raw mut id) })?;
        let _ = CONTEXT.set(Context { id, null });
    }
    CONTEXT.get().ok_or_else(|| io::ErrorKind::Other.into())
}

impl Context {
    /// Adds 1 to the counter of an eventfd, unless the counter is full. Never blocks.
    pub(crate) fn signal(&self, eventfd: BorrowedFd<'_>) {
        let mut read = Iocb {
            opcode: PREAD,
            fd: self.null.as_raw_fd() as u32,
            flags: RESFD,
            eventfd: eventfd.as_raw_fd() as u32,
            ..Iocb::default()
        };
        let mut list = [&raw mut read];
        // `EAGAIN`: the queue of completions is full. Other threads may fill it again meanwhile.
        while let Err(err) = self.submit(&mut list)
            && err.kind() == io::ErrorKind::WouldBlock
            && self.discard_completions() > 0
        {}
    }

    fn submit(&self, list: &mut [*mut Iocb; 1]) -> io::Result<()> {
        let one: c_long = 1;
        // SAFETY: the list has one pointer, to a structure that outlives the call. The kernel copies the structure, and
        // the buffer has no bytes.
        check(unsafe { libc::syscall(libc::SYS_io_submit, self.id, one, list.as_mut_ptr()) })?;
        Ok(())
    }

    /// Empties the queue of completions; returns the number of discarded ones.
    #[cold]
    fn discard_completions(&self) -> usize {
        let mut events = [Event::default(); QUEUE as usize];
        let none: c_long = 0;
        let most = c_long::from(QUEUE);
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let (to, now) = (events.as_mut_ptr(), ptr::from_mut(&mut now));
        // SAFETY: the kernel writes at most `most` events, for which `events` has room, and reads the time.
        let read = check(unsafe { libc::syscall(libc::SYS_io_getevents, self.id, none, most, to, now) });
        read.unwrap_or(0) as usize
    }
}

/// Result of a system call, from its return value.
fn check(answer: c_long) -> io::Result<c_long> {
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer) }
}
