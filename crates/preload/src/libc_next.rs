//! Replaced functions of the C library, or of the next preloaded library (`RTLD_NEXT`).
//!
//! They are called directly, so a thread may be cancelled in them. A frame of this library that waits in one must not
//! need a destructor.

use std::ffi::CStr;
use std::mem::transmute;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{
    DIR, FILE, c_char, c_int, c_long, c_uint, c_ulong, c_void, epoll_event, fd_set, iovec, mmsghdr, msghdr, nfds_t,
    pollfd, sigset_t, size_t, sockaddr, socklen_t, ssize_t, timespec, timeval,
};

use crate::stream_functions::Functions;

/// Address of the next function `name`, cached in `found`. Concurrent look-ups return the same address.
fn find(found: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    let known = found.load(Ordering::Relaxed);
    if !known.is_null() {
        return known;
    }
    // SAFETY: the name is a C string.
    let address = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    found.store(address, Ordering::Relaxed);
    address
}

/// Name of a function, for the dynamic linker.
macro_rules! name {
    ($name:ident) => {
        const {
            match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!("no NUL inside"),
            }
        }
    };
}

macro_rules! next {
    ($($name:ident($($arg:ident: $type:ty),*) -> $returned:ty;)*) => {
        /// Cached addresses of the functions.
        #[allow(non_upper_case_globals, reason = "statics have the names of the functions")]
        mod found {
            use super::{AtomicPtr, c_void, ptr};

            $(pub(super) static $name: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());)*
        }

        /// Looks up all functions. A look-up takes the linker's lock, for which a signal handler or a child of `vfork`
        /// must not wait.
        pub(crate) fn find_all() {
            $(find(&found::$name, name!($name));)*
        }

        $(
            #[doc = concat!("`", stringify!($name), "(2)` or `(3)`.")]
            ///
            /// # Safety
            /// As the manual page requires.
            pub(crate) unsafe fn $name($($arg: $type),*) -> $returned {
                type Function = Option<unsafe extern "C-unwind" fn($($type),*) -> $returned>;
                // SAFETY: the C library's function of this name has this type; a function with a variable argument
                // receives it where this library's callers passed it.
                match unsafe { transmute::<*mut c_void, Function>(find(&found::$name, name!($name))) } {
                    // SAFETY: the caller meets the requirements of the manual page.
                    Some(function) => unsafe { function($($arg),*) },
                    None => crate::errno::returned(Err(crate::errno::Errno(libc::ENOSYS))),
                }
            }
        )*
    };
}

next! {
    socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    realpath(path: *const c_char, into: *mut c_char) -> *mut c_char;
    __realpath_chk(path: *const c_char, into: *mut c_char, room: size_t) -> *mut c_char;
    glob(pattern: *const c_char, flags: c_int, failed: *mut c_void, into: *mut c_void) -> c_int;
    glob64(pattern: *const c_char, flags: c_int, failed: *mut c_void, into: *mut c_void) -> c_int;
    bind(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int;
    connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int;
    getsockname(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int;
    getpeername(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int;
    listen(fd: c_int, backlog: c_int) -> c_int;
    accept(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int;
    accept4(fd: c_int, address: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int;
    shutdown(fd: c_int, how: c_int) -> c_int;
    setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int;
    getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int;
    send(fd: c_int, bytes: *const c_void, len: size_t, flags: c_int) -> ssize_t;
    sendto(fd: c_int, bytes: *const c_void, len: size_t, flags: c_int, to: *const sockaddr, to_len: socklen_t)
        -> ssize_t;
    sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int;
    write(fd: c_int, bytes: *const c_void, len: size_t) -> ssize_t;
    writev(fd: c_int, pieces: *const iovec, count: c_int) -> ssize_t;
    recv(fd: c_int, bytes: *mut c_void, len: size_t, flags: c_int) -> ssize_t;
    recvfrom(fd: c_int, bytes: *mut c_void, len: size_t, flags: c_int, from: *mut sockaddr, from_len: *mut socklen_t)
        -> ssize_t;
    recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    recvmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec) -> c_int;
    read(fd: c_int, bytes: *mut c_void, len: size_t) -> ssize_t;
    readv(fd: c_int, pieces: *const iovec, count: c_int) -> ssize_t;
    __recv_chk(fd: c_int, bytes: *mut c_void, len: size_t, room: size_t, flags: c_int) -> ssize_t;
    __recvfrom_chk(fd: c_int, bytes: *mut c_void, len: size_t, room: size_t, flags: c_int, from: *mut sockaddr,
        from_len: *mut socklen_t) -> ssize_t;
    __read_chk(fd: c_int, bytes: *mut c_void, len: size_t, room: size_t) -> ssize_t;
    poll(fds: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int;
    __poll_chk(fds: *mut pollfd, count: nfds_t, timeout_ms: c_int, room: size_t) -> c_int;
    ppoll(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    __ppoll_chk(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t, room: size_t) -> c_int;
    select(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval) -> c_int;
    pselect(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *const timespec,
        mask: *const sigset_t) -> c_int;
    epoll_wait(fd: c_int, events: *mut epoll_event, room: c_int, timeout_ms: c_int) -> c_int;
    epoll_pwait(fd: c_int, events: *mut epoll_event, room: c_int, timeout_ms: c_int, mask: *const sigset_t) -> c_int;
    epoll_pwait2(fd: c_int, events: *mut epoll_event, room: c_int, timeout: *const timespec, mask: *const sigset_t)
        -> c_int;
    dup(fd: c_int) -> c_int;
    dup2(fd: c_int, to: c_int) -> c_int;
    dup3(fd: c_int, to: c_int, flags: c_int) -> c_int;
    chroot(path: *const c_char) -> c_int;
    prctl(option: c_int, second: c_ulong, third: c_ulong, fourth: c_ulong, fifth: c_ulong) -> c_int;
    syscall(number: c_long, first: c_long, second: c_long, third: c_long, fourth: c_long, fifth: c_long,
        sixth: c_long) -> c_long;
    unshare(what: c_int) -> c_int;
    setns(fd: c_int, kind: c_int) -> c_int;
    fcntl(fd: c_int, command: c_int, argument: c_ulong) -> c_int;
    fcntl64(fd: c_int, command: c_int, argument: c_ulong) -> c_int;
    open(path: *const c_char, flags: c_int, mode: c_uint) -> c_int;
    open64(path: *const c_char, flags: c_int, mode: c_uint) -> c_int;
    openat(at: c_int, path: *const c_char, flags: c_int, mode: c_uint) -> c_int;
    openat64(at: c_int, path: *const c_char, flags: c_int, mode: c_uint) -> c_int;
    fopen(path: *const c_char, mode: *const c_char) -> *mut FILE;
    fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE;
    creat(path: *const c_char, mode: c_uint) -> c_int;
    creat64(path: *const c_char, mode: c_uint) -> c_int;
    __open_2(path: *const c_char, flags: c_int) -> c_int;
    __open64_2(path: *const c_char, flags: c_int) -> c_int;
    __openat_2(at: c_int, path: *const c_char, flags: c_int) -> c_int;
    __openat64_2(at: c_int, path: *const c_char, flags: c_int) -> c_int;
    freopen(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE;
    freopen64(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE;
    fopencookie(cookie: *mut c_void, mode: *const c_char, functions: Functions) -> *mut FILE;
    fflush(stream: *mut FILE) -> c_int;
    fflush_unlocked(stream: *mut FILE) -> c_int;
    fclose(stream: *mut FILE) -> c_int;
    stat(path: *const c_char, into: *mut libc::stat) -> c_int;
    stat64(path: *const c_char, into: *mut libc::stat) -> c_int;
    lstat(path: *const c_char, into: *mut libc::stat) -> c_int;
    lstat64(path: *const c_char, into: *mut libc::stat) -> c_int;
    fstatat(at: c_int, path: *const c_char, into: *mut libc::stat, flags: c_int) -> c_int;
    fstatat64(at: c_int, path: *const c_char, into: *mut libc::stat, flags: c_int) -> c_int;
    statx(at: c_int, path: *const c_char, flags: c_int, mask: c_uint, into: *mut libc::statx) -> c_int;
    access(path: *const c_char, mode: c_int) -> c_int;
    eaccess(path: *const c_char, mode: c_int) -> c_int;
    euidaccess(path: *const c_char, mode: c_int) -> c_int;
    faccessat(at: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int;
    opendir(path: *const c_char) -> *mut DIR;
    readdir(dir: *mut DIR) -> *mut libc::dirent;
    readdir64(dir: *mut DIR) -> *mut libc::dirent;
    closedir(dir: *mut DIR) -> c_int;
    rewinddir(dir: *mut DIR) -> ();
    telldir(dir: *mut DIR) -> c_long;
    seekdir(dir: *mut DIR, at: c_long) -> ();
    dirfd(dir: *mut DIR) -> c_int;
    if_nameindex() -> *mut libc::if_nameindex;
    getifaddrs(list: *mut *mut libc::ifaddrs) -> c_int;
    if_nametoindex(name: *const c_char) -> c_uint;
    if_indextoname(index: c_uint, name: *mut c_char) -> *mut c_char;
    ioctl(fd: c_int, request: c_ulong, argument: *mut c_char) -> c_int;
    execve(path: *const c_char, arguments: *const *const c_char, environment: *const *const c_char) -> c_int;
    execvpe(file: *const c_char, arguments: *const *const c_char, environment: *const *const c_char) -> c_int;
    fexecve(fd: c_int, arguments: *const *const c_char, environment: *const *const c_char) -> c_int;
    execveat(at: c_int, path: *const c_char, arguments: *const *const c_char, environment: *const *const c_char,
        flags: c_int) -> c_int;
    posix_spawn(process: *mut libc::pid_t, path: *const c_char, actions: *const libc::posix_spawn_file_actions_t,
        attributes: *const libc::posix_spawnattr_t, arguments: *const *const c_char, environment: *const *const c_char)
        -> c_int;
    posix_spawnp(process: *mut libc::pid_t, file: *const c_char, actions: *const libc::posix_spawn_file_actions_t,
        attributes: *const libc::posix_spawnattr_t, arguments: *const *const c_char, environment: *const *const c_char)
        -> c_int;
    system(command: *const c_char) -> c_int;
    popen(command: *const c_char, mode: *const c_char) -> *mut FILE;
}
