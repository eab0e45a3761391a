//! Functions that start programs: each program gets the library's variables, and a program that would not load the
//! library is refused.

use std::ffi::CStr;

use libc::{FILE, c_char, c_int, pid_t};

use crate::environment::{current, restored, shell_command};
use crate::errno::{Errno, returned};
use crate::{libc_next, start_check};

type List = *const *const c_char;

/// The shell of system(3) and popen(3).
const SHELL: &CStr = c"/bin/sh";

/// `execve(2)`.
///
/// # Safety
/// As the manual page requires.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn execve(path: *const c_char, arguments: List, environment: List) -> c_int {
    // SAFETY: as the caller promises.
    if let Err(errno) = unsafe { start_check::check(libc::AT_FDCWD, path) } {
        return returned(Err(errno));
    }
    // SAFETY: passed on.
    let run = |environment| unsafe { libc_next::execve(path, arguments, environment) };
    // SAFETY: as the caller promises.
    returned(unsafe { restored(environment, run) })
}

/// `execv(3)`.
///
/// # Safety
/// As the manual page requires.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn execv(path: *const c_char, arguments: List) -> c_int {
    // SAFETY: as the caller promises, and the program's environment is such a list.
    unsafe { execve(path, arguments, current()) }
}

/// `execvpe(3)`.
///
/// # Safety
/// As the manual page requires.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn execvpe(file: *const c_char, arguments: List, environment: List) -> c_int {
    // SAFETY: as the caller promises.
    if let Err(errno) = unsafe { start_check::check_found(file) } {
        return returned(Err(errno));
    }
    // SAFETY: passed on.
    let run = |environment| unsafe { libc_next::execvpe(file, arguments, environment) };
    // SAFETY: as the caller promises.
    returned(unsafe { restored(environment, run) })
}

/// `execvp(3)`.
///
/// # Safety
/// As the manual page requires.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn execvp(file: *const c_char, arguments: List) -> c_int {
    // SAFETY: as the caller promises, and the program's environment is such a list.
    unsafe { execvpe(file, arguments, current()) }
}

/// `fexecve(3)`.
///
/// # Safety
/// As the manual page requires.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn fexecve(fd: c_int, arguments: List, environment: List) -> c_int {
    if let Err(errno) = start_check::check_open(fd) {
        return returned(Err(errno));
    }
    // SAFETY: passed on.
    let run = |environment| unsafe { libc_next::fexecve(fd, arguments, environment) };
    // SAFETY: as the caller promises.
    returned(unsafe { restored(environment, run) })
}

/// `execveat(2)`.
///
/// # Safety
/// As the manual page requires.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn execveat(
    at: c_int,
    path: *const c_char,
    arguments: List,
    environment: List,
    flags: c_int,
) -> c_int {
    // SAFETY: as the caller promises.
    let is_empty = !path.is_null() && unsafe { *path } == 0;
    let checked = if is_empty && flags & libc::AT_EMPTY_PATH != 0 {
        start_check::check_open(at)
    } else {
        // SAFETY: as the caller promises.
        unsafe { start_check::check(at, path) }
    };
    if let Err(errno) = checked {
        return returned(Err(errno));
    }
    // SAFETY: passed on.
    let run = |environment| unsafe { libc_next::execveat(at, path, arguments, environment, flags) };
    // SAFETY: as the caller promises.
    returned(unsafe { restored(environment, run) })
}

/// `posix_spawn(3)`, which returns the error's number.
///
/// # Safety
/// As the manual page requires.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn posix_spawn(
    process: *mut pid_t,
    path: *const c_char,
    actions: *const libc::posix_spawn_file_actions_t,
    attributes: *const libc::posix_spawnattr_t,
    arguments: List,
    environment: List,
) -> c_int {
    // SAFETY: as the caller promises.
    if let Err(Errno(errno)) = unsafe { start_check::check(libc::AT_FDCWD, path) } {
        return errno;
    }
    // SAFETY: passed on.
    let run =
        |environment| unsafe { libc_next::posix_spawn(process, path, actions, attributes, arguments, environment) };
    // SAFETY: as the caller promises.
    unsafe { restored(environment, run) }.unwrap_or_else(|Errno(errno)| errno)
}

/// `posix_spawnp(3)`, which returns the error's number.
///
/// # Safety
/// As the manual page requires.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn posix_spawnp(
    process: *mut pid_t,
    file: *const c_char,
    actions: *const libc::posix_spawn_file_actions_t,
    attributes: *const libc::posix_spawnattr_t,
    arguments: List,
    environment: List,
) -> c_int {
    // SAFETY: as the caller promises.
    if let Err(Errno(errno)) = unsafe { start_check::check_found(file) } {
        return errno;
    }
    // SAFETY: passed on.
    let run =
        |environment| unsafe { libc_next::posix_spawnp(process, file, actions, attributes, arguments, environment) };
    // SAFETY: as the caller promises.
    unsafe { restored(environment, run) }.unwrap_or_else(|Errno(errno)| errno)
}

/// Calls `run` with a shell command that sets the library's variables for its children, or with `command` itself if the
/// program's environment contains them.
///
/// # Errors
/// `EPERM`: the shell would not load the library.
///
/// # Safety
/// `command` is a C string.
unsafe fn by_shell<T>(command: *const c_char, run: impl FnOnce(*const c_char) -> T) -> Result<T, Errno> {
    // SAFETY: the path is a C string.
    unsafe { start_check::check(libc::AT_FDCWD, SHELL.as_ptr()) }?;
    // SAFETY: as the caller promises.
    let Some(script) = shell_command(unsafe { CStr::from_ptr(command) }) else { return Ok(run(command)) };
    // If the thread is cancelled in `run`, the string leaks: this frame must not need a destructor.
    let script = script.into_raw();
    let done = run(script);
    // SAFETY: the pointer came from `into_raw`.
    drop(unsafe { std::ffi::CString::from_raw(script) });
    Ok(done)
}

/// `system(3)`.
///
/// # Safety
/// As the manual page requires.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn system(command: *const c_char) -> c_int {
    if command.is_null() {
        // SAFETY: a null pointer tests whether a shell exists.
        return unsafe { libc_next::system(command) };
    }
    // SAFETY: passed on.
    let run = |command| unsafe { libc_next::system(command) };
    // SAFETY: as the caller promises.
    returned(unsafe { by_shell(command, run) })
}

/// `popen(3)`.
///
/// # Safety
/// As the manual page requires.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn popen(command: *const c_char, mode: *const c_char) -> *mut FILE {
    // SAFETY: passed on.
    let run = |command| unsafe { libc_next::popen(command, mode) };
    // SAFETY: as the caller promises.
    returned(unsafe { by_shell(command, run) })
}
