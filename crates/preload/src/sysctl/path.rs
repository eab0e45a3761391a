//! Canonical paths of files of `/proc/sys/net`, for `realpath(3)`.

use libc::{c_char, size_t};

use super::Name;
use crate::errno::{Errno, returned};
use crate::program_memory::{Room, Text};
use crate::replaced::replaced;
use crate::sys;

/// Maximum length of a path, with its zero byte.
const MAX_LEN: usize = libc::PATH_MAX as usize;

/// Canonical path of a file of the gateway; `None` for other files. It is written to `into`, or if that is null, into a
/// new allocation.
fn resolved(path: Text<'_>, into: Room<'_>) -> Option<*mut c_char> {
    let name = Name::of(libc::AT_FDCWD, path)?;
    let written = returned(name.mode().and_then(|_| write(&name, into)));
    if !written.is_null() {
        // The C library's `readlink(2)` fails with this `errno` for a file that is no link, and `sysctl` prints it.
        Errno(libc::EINVAL).set();
    }
    Some(written)
}

fn write(name: &Name, into: Room<'_>) -> Result<*mut c_char, Errno> {
    let Name(name) = name;
    let separator: &[u8] = if name.is_empty() { b"" } else { b"/" };
    let path = [b"/proc/sys/net", separator, name, b"\0"].concat();
    if path.len() > MAX_LEN {
        return Err(Errno(libc::ENAMETOOLONG));
    }
    // SAFETY: the allocation is that long, or null.
    let into = if into.is_null() { unsafe { Room::new(sys::malloc(path.len()), path.len()) } } else { into };
    if into.is_null() {
        return Err(Errno(libc::ENOMEM));
    }
    into.write(&path);
    Ok(into.start())
}

replaced! {
    /// `realpath(3)`.
    fn realpath(path: Text<'_>, into: *mut c_char) -> *mut c_char, next {
        // SAFETY: the manual page requires that length.
        resolved(path, unsafe { Room::new(into, MAX_LEN) }).unwrap_or_else(next)
    }

    /// `realpath(3)` of a program that was built with fortified functions. With a smaller buffer the C library ends the
    /// program.
    fn __realpath_chk(path: Text<'_>, into: *mut c_char, room: size_t) -> *mut c_char, next {
        if room < MAX_LEN {
            return next();
        }
        // SAFETY: the manual page requires that length.
        resolved(path, unsafe { Room::new(into, MAX_LEN) }).unwrap_or_else(next)
    }
}
