//! `SIGBUS` handler for guest memory that its owner truncates: an access beyond the end of the file would otherwise end
//! the process because of one guest. The handler replaces the mapping by zeroed private memory and marks it lost; a
//! link checks [`Watch::is_lost`] after each burst and closes the connection.
//!
//! Invariant 1: a range in [`RANGES`] is one live mapping of guest memory, from [`Watch::new`] until the watch is
//! dropped, which is before the memory is unmapped. A thread that faults in a range holds that mapping, so the range
//! does not change under its handler. Other ranges may change: so a range is one word, and a handler never reads the
//! start of one mapping with the length of another.

use std::ffi::{c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::sync::Mutex;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Bytes of the smallest pages, in which mappings are counted.
const PAGE: u64 = 4096;

/// Mappings of guest memory in one process.
const MAX_RANGES: usize = 16_384;

/// Bits of the number of pages in the word of a range: mappings of less than 1 TiB. Above them is the number of the
/// first page, of addresses of 48 bits, which the kernel uses unless a hint is given.
const COUNT_BITS: u32 = 28;

/// One mapping.
struct Range {
    /// First page and number of pages; 0 if there is none.
    pages: AtomicU64,
    lost: AtomicBool,
}

impl Range {
    /// Start and length of the mapping, as of one moment.
    fn get(&self) -> (usize, usize) {
        let pages = self.pages.load(Ordering::Acquire);
        (((pages >> COUNT_BITS) * PAGE) as usize, ((pages & ((1 << COUNT_BITS) - 1)) * PAGE) as usize)
    }
}

static RANGES: [Range; MAX_RANGES] =
    [const { Range { pages: AtomicU64::new(0), lost: AtomicBool::new(false) } }; MAX_RANGES];

/// Ranges above this are unused.
static USED: AtomicUsize = AtomicUsize::new(0);

/// Lock for changes of [`RANGES`].
static CHANGE: Mutex<()> = Mutex::new(());

/// Whether the handler is installed; changed under the lock.
static IS_INSTALLED: AtomicBool = AtomicBool::new(false);

/// Handler that was installed before this one.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// Registration of one mapping, whose loss is detected.
#[derive(Debug)]
pub(super) struct Watch(usize);

impl Watch {
    /// Watches a mapping of whole pages, which the caller keeps until the watch is dropped.
    pub(super) fn new(start: usize, len: usize) -> io::Result<Self> {
        let pages = word(start as u64, len as u64)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "mapping of 1 TiB or more"))?;
        let _changing = CHANGE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if !IS_INSTALLED.load(Ordering::Relaxed) {
            install()?;
            IS_INSTALLED.store(true, Ordering::Relaxed);
        }
        let free = RANGES.iter().position(|range| range.pages.load(Ordering::Relaxed) == 0);
        let free = free.ok_or_else(|| io::Error::other("too many mappings of guest memory"))?;
        RANGES[free].lost.store(false, Ordering::Relaxed);
        RANGES[free].pages.store(pages, Ordering::Release);
        USED.fetch_max(free + 1, Ordering::Release);
        Ok(Self(free))
    }

    /// Tells whether the memory was lost: reads since then may have returned zeros.
    pub(super) fn is_lost(&self) -> bool {
        RANGES[self.0].lost.load(Ordering::Relaxed)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _changing = CHANGE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        RANGES[self.0].pages.store(0, Ordering::Release);
    }
}

/// A mapping as the word of a range; `None` if it is not of whole pages, too long, or beyond addresses of 48 bits.
fn word(start: u64, len: u64) -> Option<u64> {
    let (first, count) = (start / PAGE, len / PAGE);
    let is_whole = start.is_multiple_of(PAGE) && len.is_multiple_of(PAGE);
    let fits = first >> (u64::BITS - COUNT_BITS) == 0 && count >> COUNT_BITS == 0;
    (is_whole && fits && count > 0).then_some((first << COUNT_BITS) | count)
}

/// Mapping that contains an address: its range, start and length.
fn mapping_at(at: usize) -> Option<(&'static Range, usize, usize)> {
    let used = USED.load(Ordering::Acquire);
    RANGES[..used].iter().find_map(|range| {
        let (start, len) = range.get();
        (at.wrapping_sub(start) < len).then_some((range, start, len))
    })
}

/// Installs the handler.
fn install() -> io::Result<()> {
    let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = on_bus_fault;
    let mut before = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: `before` has room for one, and nothing is changed.
    super::check(unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), before.as_mut_ptr()) })?;
    // SAFETY: zeroed, and written by the call above.
    let before = unsafe { before.assume_init() };
    // Set once, under the lock, before our handler can run. If the call below fails, the next attempt finds the same
    // handler.
    let _ = BEFORE.set(before);
    // SAFETY: a structure of numbers and an optional function pointer, of which zeros are a value.
    let mut action = unsafe { MaybeUninit::<libc::sigaction>::zeroed().assume_init() };
    action.sa_sigaction = handler as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
    // SAFETY: the handler makes only async-signal-safe calls.
    super::check(unsafe { libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()) })?;
    Ok(())
}

/// Replaces a lost mapping by zeroed memory. Other faults go to the previous handler. A signal that was sent by a
/// process ends this process, unless it was ignored before: the standard library's handler would remove ours and
/// continue.
extern "C" fn on_bus_fault(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the system passes a filled `siginfo_t` to a handler with `SA_SIGINFO`.
    let info_ref = unsafe { &*info };
    // A signal that a process sent has its numbers where a fault has an address (sigaction(2)).
    if info_ref.si_code <= 0 {
        if BEFORE.get().is_none_or(|before| before.sa_sigaction != libc::SIG_IGN) {
            end_by(signal);
            // SAFETY: sends this thread the signal, which no longer has a handler.
            unsafe { libc::raise(signal) };
        }
        return;
    }
    // SAFETY: a fault has an address.
    let at = unsafe { info_ref.si_addr() } as usize;
    if mapping_at(at).is_some_and(|(range, start, len)| replace(range, start, len)) {
        return;
    }
    let before = BEFORE.get();
    let handler = before.map_or(libc::SIG_DFL, |before| before.sa_sigaction);
    if handler == libc::SIG_DFL || handler == libc::SIG_IGN {
        // The faulting access is repeated, and then meets the default action.
        end_by(signal);
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

/// Restores the default action of a signal, which ends the process.
fn end_by(signal: c_int) {
    // SAFETY: an async-signal-safe call.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

/// Replaces a lost mapping by zeroed memory. Tells whether that was possible.
fn replace(range: &Range, start: usize, len: usize) -> bool {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
    // Marked first, so that no thread reads the zeros without the mark.
    range.lost.store(true, Ordering::Release);
    // SAFETY: by invariant 1 the range is a mapping of guest memory, which no reference points into: it is accessed by
    // raw pointers and atomic operations, for which zeroed memory does as well.
    let new = unsafe { libc::mmap(start as *mut c_void, len, access, flags, -1, 0) };
    new != libc::MAP_FAILED
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn sent_signal_ends_the_process() {
        const CHILD: &str = "FATPATH_TEST_SENT_SIGBUS";
        if std::env::var_os(CHILD).is_some() {
            let _watch = Watch::new(PAGE as usize, PAGE as usize).unwrap();
            // SAFETY: sends this thread a signal.
            unsafe { libc::raise(libc::SIGBUS) };
            return;
        }
        let mut again = Command::new(std::env::current_exe().unwrap());
        again.args(["--exact", "sys::bus_faults::tests::sent_signal_ends_the_process"]).env(CHILD, "1");
        let status = again.output().unwrap().status;
        assert_eq!(status.signal(), Some(libc::SIGBUS), "{status}");
    }

    #[test]
    fn mapping_is_one_word_up_to_a_tebibyte() {
        let top = (1 << 48) - PAGE;
        assert_eq!(word(top, PAGE), Some((((1 << 36) - 1) << COUNT_BITS) | 1));
        assert_eq!(word(PAGE, (1 << 40) - PAGE), Some((1 << COUNT_BITS) | ((1 << COUNT_BITS) - 1)));
        for (start, len) in [(1 << 48, PAGE), (PAGE, 1 << 40), (PAGE, 0), (PAGE + 1, PAGE), (PAGE, PAGE + 1)] {
            assert_eq!(word(start, len), None, "{len:#x} at {start:#x}");
        }
    }

    #[test]
    fn range_changed_by_another_thread_is_never_read_in_halves() {
        let pairs: [(usize, usize); 2] = [(1 << 46, 1 << 39), ((1 << 46) + (1 << 38), 4096)];
        let words = pairs.map(|(start, len)| word(start as u64, len as u64).unwrap());
        let range = Range { pages: AtomicU64::new(words[0]), lost: AtomicBool::new(false) };
        let end = Instant::now() + Duration::from_millis(300);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while Instant::now() < end {
                    for word in words.iter().cycle().take(1000) {
                        range.pages.store(*word, Ordering::Release);
                    }
                }
            });
            while Instant::now() < end {
                for _ in 0..1000 {
                    let found = range.get();
                    assert!(pairs.contains(&found), "{found:x?} is neither mapping");
                }
            }
        });
    }
}
