//! Calls by which a program shuts itself in. The library makes a connection for its look-ups before ([`kept`]).

use libc::{c_char, c_int, c_long, c_ulong};

use crate::{kept, libc_next};

/// `chroot(2)`.
///
/// # Safety
/// As the manual page requires.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn chroot(path: *const c_char) -> c_int {
    kept::make(false);
    // SAFETY: passed on.
    unsafe { libc_next::chroot(path) }
}

/// `prctl(2)`. Its variable arguments are passed like any others.
///
/// # Safety
/// As the manual page requires.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn prctl(
    option: c_int,
    second: c_ulong,
    third: c_ulong,
    fourth: c_ulong,
    fifth: c_ulong,
) -> c_int {
    match option {
        // Programs without capabilities, and libseccomp, do this first.
        libc::PR_SET_NO_NEW_PRIVS => kept::make(false),
        libc::PR_SET_SECCOMP => kept::make(true),
        _ => {}
    }
    // SAFETY: passed on.
    unsafe { libc_next::prctl(option, second, third, fourth, fifth) }
}

/// `syscall(2)`, by which programs call `seccomp(2)`. Six arguments are passed on, whatever their number.
///
/// # Safety
/// As the manual page requires.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn syscall(
    number: c_long,
    first: c_long,
    second: c_long,
    third: c_long,
    fourth: c_long,
    fifth: c_long,
    sixth: c_long,
) -> c_long {
    const SET_MODE_FILTER: c_long = libc::SECCOMP_SET_MODE_FILTER as c_long;
    if number == libc::SYS_seccomp && first == SET_MODE_FILTER {
        kept::make(true);
    }
    // SAFETY: passed on.
    unsafe { libc_next::syscall(number, first, second, third, fourth, fifth, sixth) }
}
