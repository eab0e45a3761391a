//! `glob(3)` for names of `/proc/sys/net`: `sysctl` looks up each name by a pattern. The C library reads directories
//! without calling this library, unless callbacks are set.

use libc::{c_int, c_void};

use super::Name;
use super::directory::{closedir, opendir, readdir};
use super::stat::{lstat, stat};
use crate::callbacks::Glob;
use crate::libc_next;
use crate::program_memory::{InOut, Text};
use crate::replaced::replaced;

/// Flag to use the callbacks of the `glob_t` (`GLOB_ALTDIRFUNC`).
const ALTDIRFUNC: c_int = 1 << 6;

macro_rules! globs {
    ($($name:ident;)*) => {
        replaced! {$(
            #[doc = concat!("`", stringify!($name), "(3)`.")]
            fn $name(pattern: Text<'_>, flags: c_int, failed: *mut c_void, into: InOut<'_, Glob>) -> c_int, next {
                let is_ours = flags & ALTDIRFUNC == 0 && Name::of(libc::AT_FDCWD, pattern).is_some();
                if !is_ours || into.read().and_then(|glob| into.write(with_callbacks(glob))).is_err() {
                    return next();
                }
                // SAFETY: the callbacks are the functions of this library.
                unsafe { libc_next::$name(pattern, flags | ALTDIRFUNC, failed, into) }
            }
        )*}
    };
}

globs! { glob; glob64; }

fn with_callbacks(mut glob: Glob) -> Glob {
    glob.opendir = opendir as *const c_void;
    glob.readdir = readdir as *const c_void;
    glob.closedir = closedir as *const c_void;
    glob.lstat = lstat as *const c_void;
    glob.stat = stat as *const c_void;
    glob
}
