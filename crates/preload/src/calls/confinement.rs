//! Calls by which a program shuts itself in. The library makes a connection for its look-ups before ([`kept`]).

use libc::{c_int, c_long, c_ulong};

use crate::kept;
use crate::program_memory::Text;
use crate::replaced::replaced;

replaced! {
    /// `chroot(2)`.
    fn chroot(path: Text<'_>) -> c_int, next {
        kept::make(false);
        next()
    }

    /// `prctl(2)`. Its variable arguments are passed like any others.
    fn prctl(option: c_int, second: c_ulong, third: c_ulong, fourth: c_ulong, fifth: c_ulong) -> c_int, next {
        match option {
            // Programs without capabilities, and libseccomp, do this first.
            libc::PR_SET_NO_NEW_PRIVS => kept::make(false),
            libc::PR_SET_SECCOMP => kept::make(true),
            _ => {}
        }
        next()
    }

    /// `syscall(2)`, by which programs call `seccomp(2)`. Six arguments are passed on, whatever their number.
    fn syscall(
        number: c_long, first: c_long, second: c_long, third: c_long, fourth: c_long, fifth: c_long, sixth: c_long,
    ) -> c_long, next {
        const SET_MODE_FILTER: c_long = libc::SECCOMP_SET_MODE_FILTER as c_long;
        if number == libc::SYS_seccomp && first == SET_MODE_FILTER {
            kept::make(true);
        }
        next()
    }
}
