//! Check of programs before they are started: a program that would not load this library is refused.

use std::ffi::CStr;
use std::fmt::{self, Display, Formatter, Write};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering::Relaxed};

use launch::NotLoadable;
use libc::c_int;

use crate::environment;
use crate::errno::Errno;
use crate::program_memory::Text;
use crate::{report, sys};

/// Search path of execvp(3) without a `PATH`.
const DEFAULT_PATH: &CStr = c"/bin:/usr/bin";

/// Checks the program at `path`, relative to the directory `at`.
///
/// # Errors
/// `EPERM`: the program would not load this library; the reason is printed.
pub(crate) fn check(at: c_int, path: Text<'_>) -> Result<(), Errno> {
    let Some(path) = path.get().filter(|_| environment::is_kept() && (at >= 0 || at == libc::AT_FDCWD)) else {
        return Ok(());
    };
    // SAFETY: the descriptor is not -1. With a closed one the call fails, and nothing is checked.
    let at = unsafe { BorrowedFd::borrow_raw(at) };
    launch::check(at, path).map_err(|refused| refuse(path, refused))
}

/// Checks the program that `fd` refers to.
///
/// # Errors
/// As [`check`].
pub(crate) fn check_open(fd: c_int) -> Result<(), Errno> {
    if fd < 0 || !environment::is_kept() {
        return Ok(());
    }
    // SAFETY: as above.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    launch::check_open(fd).map_err(|refused| refuse(c"a program by its descriptor", refused))
}

/// Checks the program `file`, found like execvp(3) finds it.
///
/// # Errors
/// As [`check`].
pub(crate) fn check_found(file: Text<'_>) -> Result<(), Errno> {
    let Some(name) = file.get().filter(|_| environment::is_kept()) else { return Ok(()) };
    if name.is_empty() || name.to_bytes().contains(&b'/') {
        return check(libc::AT_FDCWD, file);
    }
    let path = sys::variable(c"PATH").unwrap_or(DEFAULT_PATH);
    launch::check_found(path.to_bytes(), name.to_bytes()).map_err(|refused| refuse(name, refused))
}

/// Prints the reason for which a program is not started. A shell that searches several directories may find the same
/// file by another path next, for which nothing is printed.
fn refuse(path: &CStr, refused: NotLoadable) -> Errno {
    static PROCESS: AtomicI32 = AtomicI32::new(0);
    static INODE: AtomicU64 = AtomicU64::new(0);
    static PATH: AtomicU64 = AtomicU64::new(0);
    let process = sys::getpid();
    let hash = hash(path.to_bytes());
    let is_same_file = PROCESS.load(Relaxed) == process && INODE.load(Relaxed) == refused.inode;
    if !is_same_file || PATH.load(Relaxed) == hash {
        PROCESS.store(process, Relaxed);
        INODE.store(refused.inode, Relaxed);
        PATH.store(hash, Relaxed);
        report::line(format_args!("{}: {}.", Shown(path), refused.reason));
    }
    Errno(libc::EPERM)
}

/// FNV-1a hash.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Path without control characters, for a terminal.
struct Shown<'a>(&'a CStr);

impl Display for Shown<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for chunk in self.0.to_bytes().utf8_chunks() {
            for char in chunk.valid().chars() {
                f.write_char(if char.is_control() { '?' } else { char })?;
            }
            if !chunk.invalid().is_empty() {
                f.write_char('?')?;
            }
        }
        Ok(())
    }
}
