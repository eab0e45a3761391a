//! `glob(3)` for names of `/proc/sys/net`: `sysctl` looks up each name by a pattern. The C library reads directories
//! without calling this library, unless callbacks are set.

use std::ffi::c_void;

use libc::{DIR, c_char, c_int, dirent, size_t};

use super::Name;
use super::directory::{closedir, opendir, readdir};
use super::stat::{lstat, stat};
use crate::libc_next;

/// Flag to use the callbacks of the `glob_t` (`GLOB_ALTDIRFUNC`).
const ALTDIRFUNC: c_int = 1 << 6;

/// `glob_t` of the GNU C library, which is `glob64_t` on 64-bit machines.
#[repr(C)]
pub(crate) struct Glob {
    count: size_t,
    paths: *mut *mut c_char,
    offset: size_t,
    flags: c_int,
    closedir: Option<unsafe extern "C-unwind" fn(*mut DIR) -> c_int>,
    readdir: Option<unsafe extern "C-unwind" fn(*mut DIR) -> *mut dirent>,
    opendir: Option<unsafe extern "C-unwind" fn(*const c_char) -> *mut DIR>,
    lstat: Option<unsafe extern "C-unwind" fn(*const c_char, *mut libc::stat) -> c_int>,
    stat: Option<unsafe extern "C-unwind" fn(*const c_char, *mut libc::stat) -> c_int>,
}

macro_rules! globs {
    ($($name:ident;)*) => {$(
        #[doc = concat!("`", stringify!($name), "(3)`.")]
        ///
        /// # Safety
        /// As the manual page requires.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C-unwind" fn $name(
            pattern: *const c_char,
            mut flags: c_int,
            failed: *mut c_void,
            into: *mut c_void,
        ) -> c_int {
            // SAFETY: as the caller promises.
            let is_ours = flags & ALTDIRFUNC == 0 && unsafe { Name::of(libc::AT_FDCWD, pattern) }.is_some();
            // SAFETY: as the caller promises.
            if is_ours && let Some(into) = unsafe { into.cast::<Glob>().as_mut() } {
                flags |= ALTDIRFUNC;
                into.opendir = Some(opendir);
                into.readdir = Some(readdir);
                into.closedir = Some(closedir);
                into.lstat = Some(lstat);
                into.stat = Some(stat);
            }
            // SAFETY: passed on.
            unsafe { libc_next::$name(pattern, flags, failed, into) }
        }
    )*};
}

globs! { glob; glob64; }
