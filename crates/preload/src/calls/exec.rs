//! Functions that start programs: each program gets the library's variables, and a program that would not load the
//! library is refused.

use std::ffi::CStr;
use std::mem::ManuallyDrop;

use libc::{c_int, pid_t, posix_spawn_file_actions_t, posix_spawnattr_t};

use crate::environment::{restored, shell_command};
use crate::errno::{Errno, returned};
use crate::program_memory::{List, Stream, Text};
use crate::replaced::{exported, replaced};
use crate::{libc_next, start_check, sys};

/// The shell of system(3) and popen(3).
const SHELL: &CStr = c"/bin/sh";

/// `execve(2)`.
pub(super) fn execute(path: Text<'_>, arguments: List<'_>, environment: List<'_>) -> c_int {
    // SAFETY: the arguments' types have what the manual page requires.
    let run = |environment: List<'_>| unsafe { libc_next::execve(path, arguments, environment) };
    started(start_check::check(libc::AT_FDCWD, path), environment, run)
}

/// `execvpe(3)`.
pub(super) fn execute_found(file: Text<'_>, arguments: List<'_>, environment: List<'_>) -> c_int {
    // SAFETY: the arguments' types have what the manual page requires.
    let run = |environment: List<'_>| unsafe { libc_next::execvpe(file, arguments, environment) };
    started(start_check::check_found(file), environment, run)
}

/// Calls `run` with the environment to which the library's variables are added, if the program may be started.
fn started(checked: Result<(), Errno>, environment: List<'_>, run: impl FnOnce(List<'_>) -> c_int) -> c_int {
    returned(checked.and_then(|()| restored(environment, run)))
}

/// Same as [`started`], but returns the error's number.
fn spawned(checked: Result<(), Errno>, environment: List<'_>, run: impl FnOnce(List<'_>) -> c_int) -> c_int {
    checked.and_then(|()| restored(environment, run)).unwrap_or_else(|Errno(errno)| errno)
}

exported! {
    /// `execve(2)`.
    fn execve(path: Text<'_>, arguments: List<'_>, environment: List<'_>) -> c_int {
        execute(path, arguments, environment)
    }

    /// `execv(3)`.
    fn execv(path: Text<'_>, arguments: List<'_>) -> c_int {
        execute(path, arguments, sys::environment())
    }

    /// `execvpe(3)`.
    fn execvpe(file: Text<'_>, arguments: List<'_>, environment: List<'_>) -> c_int {
        execute_found(file, arguments, environment)
    }

    /// `execvp(3)`.
    fn execvp(file: Text<'_>, arguments: List<'_>) -> c_int {
        execute_found(file, arguments, sys::environment())
    }

    /// `fexecve(3)`.
    fn fexecve(fd: c_int, arguments: List<'_>, environment: List<'_>) -> c_int {
        // SAFETY: the arguments' types have what the manual page requires.
        let run = |environment: List<'_>| unsafe { libc_next::fexecve(fd, arguments, environment) };
        started(start_check::check_open(fd), environment, run)
    }

    /// `execveat(2)`.
    fn execveat(
        at: c_int, path: Text<'_>, arguments: List<'_>, environment: List<'_>, flags: c_int,
    ) -> c_int {
        let is_empty = path.get().is_some_and(CStr::is_empty);
        let checked = if is_empty && flags & libc::AT_EMPTY_PATH != 0 {
            start_check::check_open(at)
        } else {
            start_check::check(at, path)
        };
        // SAFETY: the arguments' types have what the manual page requires.
        let run = |environment: List<'_>| unsafe { libc_next::execveat(at, path, arguments, environment, flags) };
        started(checked, environment, run)
    }

    /// `posix_spawn(3)`, which returns the error's number.
    fn posix_spawn(
        process: *mut pid_t, path: Text<'_>, actions: *const posix_spawn_file_actions_t,
        attributes: *const posix_spawnattr_t, arguments: List<'_>, environment: List<'_>,
    ) -> c_int {
        // SAFETY: the other arguments are the program's.
        let run =
            |environment: List<'_>| unsafe { libc_next::posix_spawn(process, path, actions, attributes, arguments, environment) };
        spawned(start_check::check(libc::AT_FDCWD, path), environment, run)
    }

    /// `posix_spawnp(3)`, which returns the error's number.
    fn posix_spawnp(
        process: *mut pid_t, file: Text<'_>, actions: *const posix_spawn_file_actions_t,
        attributes: *const posix_spawnattr_t, arguments: List<'_>, environment: List<'_>,
    ) -> c_int {
        // SAFETY: the other arguments are the program's.
        let run =
            |environment: List<'_>| unsafe { libc_next::posix_spawnp(process, file, actions, attributes, arguments, environment) };
        spawned(start_check::check_found(file), environment, run)
    }
}

replaced! {
    /// `system(3)`. Null tests whether a shell exists.
    fn system(command: Text<'_>) -> c_int, next {
        let Some(text) = command.get() else { return next() };
        // SAFETY: the argument's type has what the manual page requires.
        returned(by_shell(text, |command| unsafe { libc_next::system(command) }))
    }

    /// `popen(3)`.
    fn popen(command: Text<'_>, mode: Text<'_>) -> Stream<'static>, next {
        let Some(text) = command.get() else { return next() };
        // SAFETY: the arguments' types have what the manual page requires.
        returned(by_shell(text, |command| unsafe { libc_next::popen(command, mode) }))
    }
}

/// Calls `run` with a shell command that sets the library's variables for its children, or with `command` itself if the
/// program's environment contains them.
///
/// # Errors
/// `EPERM`: the shell would not load the library.
fn by_shell<T>(command: &CStr, run: impl FnOnce(Text<'_>) -> T) -> Result<T, Errno> {
    start_check::check(libc::AT_FDCWD, SHELL.into())?;
    let Some(script) = shell_command(command) else { return Ok(run(command.into())) };
    // If the thread is cancelled in `run`, the string leaks: this frame must not need a destructor.
    let script = ManuallyDrop::new(script);
    let done = run(script.as_c_str().into());
    drop(ManuallyDrop::into_inner(script));
    Ok(done)
}
