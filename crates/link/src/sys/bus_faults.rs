//! Guest memory that its owner truncates: an access beyond the end of the file is a `SIGBUS`, which would end the process because of one guest.
//! The handler replaces the mapping by zeroed private memory and marks it lost; a link looks at [`Watch::is_lost`] after each burst and closes
//! the connection.
//!
//! Invariant 1: a range in [`RANGES`] is one live mapping of guest memory, from [`Watch::new`] until the watch is dropped, which is
//! before it is unmapped. A thread that faults in a range holds that mapping, so the range does not change under its handler.

use std::ffi::{c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::sync::Mutex;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Mappings of guest memory in one process.
const MAX_RANGES: usize = 4096;

/// One mapping; `len` is 0 if there is none.
struct Range {
    start: AtomicUsize,
    len: AtomicUsize,
    lost: AtomicBool,
}

static RANGES: [Range; MAX_RANGES] =
    [const { Range { start: AtomicUsize::new(0), len: AtomicUsize::new(0), lost: AtomicBool::new(false) } };
        MAX_RANGES];

/// Ranges above this are unused.
static USED: AtomicUsize = AtomicUsize::new(0);

/// Taken to change [`RANGES`].
static CHANGE: Mutex<()> = Mutex::new(());

/// Handler that was installed before this one.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// One mapping whose loss is noticed.
#[derive(Debug)]
pub(super) struct Watch(usize);

impl Watch {
    /// Watches a mapping, which the caller keeps until the watch is dropped.
    pub(super) fn new(start: usize, len: usize) -> io::Result<Self> {
        let _changing = CHANGE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if BEFORE.get().is_none() {
            install()?;
        }
        let free = RANGES.iter().position(|range| range.len.load(Ordering::Relaxed) == 0);
        let free = free.ok_or_else(|| io::Error::other("too many mappings of guest memory"))?;
        let range = &RANGES[free];
        range.lost.store(false, Ordering::Relaxed);
        range.start.store(start, Ordering::Relaxed);
        range.len.store(len, Ordering::Release);
        USED.fetch_max(free + 1, Ordering::Release);
        Ok(Self(free))
    }

    /// Whether the memory went away: what was read there since may be zeros.
    pub(super) fn is_lost(&self) -> bool {
        RANGES[self.0].lost.load(Ordering::Relaxed)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _changing = CHANGE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        RANGES[self.0].len.store(0, Ordering::Release);
    }
}

/// Makes ours the process's handler.
fn install() -> io::Result<()> {
    let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = on_bus_fault;
    let mut before = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: a structure of numbers and an optional function pointer, of which zeros are a value.
    let mut action = unsafe { MaybeUninit::<libc::sigaction>::zeroed().assume_init() };
    action.sa_sigaction = handler as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
    // SAFETY: `before` has room for one, and the handler does nothing that a signal handler may not.
    super::check(unsafe { libc::sigaction(libc::SIGBUS, &raw const action, before.as_mut_ptr()) })?;
    // SAFETY: zeroed, and written by the call above.
    let before = unsafe { before.assume_init() };
    // Set once: the lock is held.
    let _ = BEFORE.set(before);
    Ok(())
}

/// Puts zeroed memory in the place of a mapping that was lost; anything else goes to the handler that was there before.
extern "C" fn on_bus_fault(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the system gives a handler with `SA_SIGINFO` one that is filled in.
    let info_ref = unsafe { &*info };
    // SAFETY: for this signal it has an address.
    let at = unsafe { info_ref.si_addr() } as usize;
    let used = USED.load(Ordering::Acquire);
    for range in &RANGES[..used] {
        let len = range.len.load(Ordering::Acquire);
        let start = range.start.load(Ordering::Relaxed);
        if at.wrapping_sub(start) >= len {
            continue;
        }
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
        // SAFETY: by invariant 1 the range is a mapping of guest memory, which no reference points into: it is accessed by raw
        // pointers and atomic operations, for which zeroed memory does as well.
        let new = unsafe { libc::mmap(start as *mut c_void, len, access, flags, -1, 0) };
        range.lost.store(true, Ordering::Relaxed);
        if new != libc::MAP_FAILED {
            return;
        }
    }
    let before = BEFORE.get();
    let handler = before.map_or(libc::SIG_DFL, |before| before.sa_sigaction);
    if handler == libc::SIG_DFL || handler == libc::SIG_IGN {
        // SAFETY: the default action, which the fault then meets when it happens again.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
        return;
    }
    if before.is_some_and(|before| before.sa_flags & libc::SA_SIGINFO != 0) {
        // SAFETY: a handler that was installed as one with three arguments.
        let handler =
            unsafe { std::mem::transmute::<usize, extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void)>(handler) };
        handler(signal, info, context);
    } else {
        // SAFETY: a handler that was installed as one with one argument.
        let handler = unsafe { std::mem::transmute::<usize, extern "C" fn(c_int)>(handler) };
        handler(signal);
    }
}
