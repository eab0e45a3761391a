//! Descriptors' ends and duplicates, what becomes of their process, and interface requests on any socket.

use libc::{c_char, c_int, c_ulong, uid_t};

use crate::errno::returned;
use crate::{interfaces, next, session, spare, table};

/// Has a new descriptor, made by `duplicate`, looked at as the old one is. There are two from then on, so neither's end is
/// the connection's: that is noted first.
fn noted(from: c_int, duplicate: impl FnOnce() -> c_int) -> c_int {
    table::mark(from);
    let to = duplicate();
    if to >= 0 {
        table::duplicated(from, to);
    }
    to
}

/// `close(2)`.
///
/// # Safety
/// As the manual page says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn close(fd: c_int) -> c_int {
    if spare::keep(fd) {
        // At the C library's a thread can be cancelled before anything is closed, and would close it again.
        drop(session::Fd(fd));
        return 0;
    }
    // SAFETY: passed on.
    unsafe { next::close(fd) }
}

/// `epoll_ctl(2)`.
///
/// # Safety
/// As the manual page says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn epoll_ctl(
    epoll: c_int,
    command: c_int,
    fd: c_int,
    event: *mut libc::epoll_event,
) -> c_int {
    // It knows what it was given as long as that is open anywhere.
    table::mark(fd);
    // SAFETY: passed on.
    unsafe { next::epoll_ctl(epoll, command, fd, event) }
}

/// `dup(2)`.
///
/// # Safety
/// As the manual page says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn dup(fd: c_int) -> c_int {
    // SAFETY: passed on.
    noted(fd, || unsafe { next::dup(fd) })
}

/// `dup2(2)`.
///
/// # Safety
/// As the manual page says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn dup2(fd: c_int, to: c_int) -> c_int {
    // SAFETY: passed on.
    noted(fd, || unsafe { next::dup2(fd, to) })
}

/// `dup3(2)`.
///
/// # Safety
/// As the manual page says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
    // SAFETY: passed on.
    noted(fd, || unsafe { next::dup3(fd, to, flags) })
}

/// `posix_spawn_file_actions_adddup2(3)`.
///
/// # Safety
/// As the manual page says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn posix_spawn_file_actions_adddup2(
    actions: *mut libc::posix_spawn_file_actions_t,
    fd: c_int,
    to: c_int,
) -> c_int {
    table::mark(fd);
    // SAFETY: passed on.
    unsafe { next::posix_spawn_file_actions_adddup2(actions, fd, to) }
}

macro_rules! becomes {
    ($($name:ident($($arg:ident: $type:ty),*);)*) => {$(
        #[doc = concat!("`", stringify!($name), "(2)`: whoever the process is then has no connection that it has not.")]
        ///
        /// # Safety
        /// As the manual page says.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C-unwind" fn $name($($arg: $type),*) -> c_int {
            spare::given_away();
            spare::let_go();
            // SAFETY: passed on.
            let done = unsafe { next::$name($($arg),*) };
            // Another thread may have made or left one meanwhile.
            spare::given_away();
            spare::let_go();
            done
        }
    )*};
}

becomes! {
    setuid(user: uid_t);
    seteuid(user: uid_t);
    setreuid(real: uid_t, user: uid_t);
    setresuid(real: uid_t, user: uid_t, saved: uid_t);
    unshare(what: c_int);
    setns(fd: c_int, kind: c_int);
}

fn fcntl_noted(fd: c_int, command: c_int, call: impl FnOnce() -> c_int) -> c_int {
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => noted(fd, call),
        libc::F_GETFD | libc::F_GETFL => call(),
        _ => {
            table::mark(fd);
            call()
        }
    }
}

/// `fcntl(2)`. Its variable argument, where there is one, is an int or a pointer and comes where a third argument does.
///
/// # Safety
/// As the manual page says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn fcntl(fd: c_int, command: c_int, argument: c_ulong) -> c_int {
    // SAFETY: passed on.
    fcntl_noted(fd, command, || unsafe { next::fcntl(fd, command, argument) })
}

/// `fcntl(2)` by its name for large files.
///
/// # Safety
/// As the manual page says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn fcntl64(fd: c_int, command: c_int, argument: c_ulong) -> c_int {
    // SAFETY: passed on.
    fcntl_noted(fd, command, || unsafe { next::fcntl64(fd, command, argument) })
}

/// `ioctl(2)`: what asks for network interfaces is answered by the gateway.
///
/// # Safety
/// As the manual page says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_char) -> c_int {
    // The C library passes on 32 bits of it, and programs do not agree on its sign.
    if let Some(what) = interfaces::Request::of(request as u32)
        && session::gateway().is_some()
        && table::socket_inode(fd).is_some()
    {
        // SAFETY: these requests all take a `struct ifreq`.
        return returned(unsafe { interfaces::serve(what, argument.cast()) });
    }
    table::mark(fd);
    // SAFETY: passed on.
    unsafe { next::ioctl(fd, request, argument) }
}
