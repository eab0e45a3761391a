//! Results of `stat(2)` and `access(2)` for files of `/proc/sys/net`.

use libc::{c_int, c_uint};

use super::Name;
use crate::errno::{Errno, returned};
use crate::plain::zeroed;
use crate::program_memory::{InOut, Text};
use crate::replaced::replaced;

/// Status of a file, if `path` is in `/proc/sys/net`.
fn stat_at(at: c_int, path: Text<'_>, into: InOut<'_, libc::stat>) -> Option<c_int> {
    let name = Name::of(at, path)?;
    Some(returned(name.mode().and_then(|mode| {
        let mut status: libc::stat = zeroed();
        (status.st_mode, status.st_nlink, status.st_blksize) = (mode, 1, 1024);
        into.write(status).map(|()| 0)
    })))
}

macro_rules! stats {
    ($($name:ident;)*) => {
        replaced! {$(
            #[doc = concat!("`", stringify!($name), "(2)`.")]
            fn $name(path: Text<'_>, into: InOut<'_, libc::stat>) -> c_int, next {
                stat_at(libc::AT_FDCWD, path, into).unwrap_or_else(next)
            }
        )*}
    };
}

macro_rules! stats_at {
    ($($name:ident;)*) => {
        replaced! {$(
            #[doc = concat!("`", stringify!($name), "(2)`.")]
            fn $name(at: c_int, path: Text<'_>, into: InOut<'_, libc::stat>, flags: c_int) -> c_int, next {
                stat_at(at, path, into).unwrap_or_else(next)
            }
        )*}
    };
}

// On 64-bit machines the functions for large files are the same.
stats! { stat; stat64; lstat; lstat64; }
stats_at! { fstatat; fstatat64; }

/// Tells whether the program may access a file with the access `mode`, if `path` is in `/proc/sys/net`.
fn may(at: c_int, path: Text<'_>, mode: c_int) -> Option<c_int> {
    let name = Name::of(at, path)?;
    Some(returned(name.mode().and_then(|found| {
        let lacks = |requested, bits| mode & requested != 0 && found & bits == 0;
        let fails = lacks(libc::X_OK, 0o111) || lacks(libc::R_OK, 0o444);
        let writes = mode & libc::W_OK != 0 && name.connection(libc::SOCK_CLOEXEC).is_err();
        if fails || writes { Err(Errno(libc::EACCES)) } else { Ok(0) }
    })))
}

macro_rules! accesses {
    ($($name:ident;)*) => {
        replaced! {$(
            #[doc = concat!("`", stringify!($name), "`, as `access(2)`.")]
            fn $name(path: Text<'_>, mode: c_int) -> c_int, next {
                may(libc::AT_FDCWD, path, mode).unwrap_or_else(next)
            }
        )*}
    };
}

accesses! { access; eaccess; euidaccess; }

replaced! {
    /// `statx(2)`.
    fn statx(
        at: c_int, path: Text<'_>, flags: c_int, mask: c_uint, into: InOut<'_, libc::statx>,
    ) -> c_int, next {
        let Some(name) = Name::of(at, path) else { return next() };
        returned(name.mode().and_then(|mode| {
            let mut status: libc::statx = zeroed();
            (status.stx_mask, status.stx_mode) = (libc::STATX_BASIC_STATS, mode as u16);
            (status.stx_nlink, status.stx_blksize) = (1, 1024);
            into.write(status).map(|()| 0)
        }))
    }

    /// `faccessat(2)`.
    fn faccessat(at: c_int, path: Text<'_>, mode: c_int, flags: c_int) -> c_int, next {
        may(at, path, mode).unwrap_or_else(next)
    }
}
