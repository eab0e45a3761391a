//! Descriptors that a program was started with, and a descriptor in place of another one.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::io::{DupFlags, dup3};

/// First descriptor after standard input, output and error.
const FIRST: RawFd = 3;

/// Directory with an entry for each descriptor of this process.
const DIRECTORY: &str = "/proc/self/fd";

/// Takes the descriptors that this process has inherited, but for its standard streams: closes them, and returns those that
/// `is_passed` names by their numbers, as its service manager has passed them (sd_listen_fds(3)). To be called once, at the
/// start of `main`, before anything in this process owns a descriptor.
///
/// # Errors
/// `/proc` is not there; all stay open then.
pub fn take_inherited(is_passed: impl Fn(RawFd) -> bool) -> io::Result<Vec<OwnedFd>> {
    let number = |entry: io::Result<fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse::<RawFd>().ok();
    let listed: BTreeSet<RawFd> =
        fs::read_dir(DIRECTORY)?.filter_map(number).filter(|number| *number >= FIRST).collect();
    // The descriptor of the directory is listed, and closed by now.
    let is_open = |number: &RawFd| fs::symlink_metadata(format!("{DIRECTORY}/{number}")).is_ok();
    // SAFETY: the descriptor is open, and by the condition above no value of this process owns it.
    let inherited = listed.into_iter().filter(is_open).map(|number| (number, unsafe { OwnedFd::from_raw_fd(number) }));
    Ok(inherited.filter(|(number, _)| is_passed(*number)).map(|(_, descriptor)| descriptor).collect())
}

/// Replaces what the descriptor of `owner` refers to by what `other` refers to, and closes it (dup3(2)).
///
/// # Errors
/// Error of the system; nothing has changed.
pub(crate) fn replace(owner: &mut impl AsRawFd, other: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: `owner` is borrowed exclusively, and owns the descriptor of this number before and after the call: only its description
    // is another one. The value here closes nothing.
    let mut owned = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(owner.as_raw_fd()) });
    Ok(dup3(other, &mut owned, DupFlags::CLOEXEC)?)
}
