//! Replaced functions of the C library, or of the next preloaded library (`RTLD_NEXT`).
//!
//! They are called directly, so a thread may be cancelled in them. A frame of this library that waits in one must not
//! need a destructor.

use std::ffi::CStr;
use std::mem::transmute;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{
    c_char, c_int, c_long, c_uint, c_ulong, c_void, epoll_event, fd_set, nfds_t, pollfd, sigset_t, size_t, sockaddr,
    socklen_t, ssize_t, timespec, timeval,
};

use crate::callbacks::{Functions, Glob};
use crate::program_memory::{Bytes, CountedMessage, Directory, In, InOut, List, Message, Room, Stream, Text};

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
    realpath(path: Text<'_>, into: *mut c_char) -> *mut c_char;
    __realpath_chk(path: Text<'_>, into: *mut c_char, room: size_t) -> *mut c_char;
    glob(pattern: Text<'_>, flags: c_int, failed: *mut c_void, into: InOut<'_, Glob>) -> c_int;
    glob64(pattern: Text<'_>, flags: c_int, failed: *mut c_void, into: InOut<'_, Glob>) -> c_int;
    bind(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int;
    connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int;
    getsockname(fd: c_int, address: *mut sockaddr, len: InOut<'_, socklen_t>) -> c_int;
    getpeername(fd: c_int, address: *mut sockaddr, len: InOut<'_, socklen_t>) -> c_int;
    listen(fd: c_int, backlog: c_int) -> c_int;
    accept(fd: c_int, address: *mut sockaddr, len: InOut<'_, socklen_t>) -> c_int;
    accept4(fd: c_int, address: *mut sockaddr, len: InOut<'_, socklen_t>, flags: c_int) -> c_int;
    shutdown(fd: c_int, how: c_int) -> c_int;
    setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int;
    getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: InOut<'_, socklen_t>) -> c_int;
    send(fd: c_int, bytes: *const c_void, len: size_t, flags: c_int) -> ssize_t;
    sendto(fd: c_int, bytes: *const c_void, len: size_t, flags: c_int, to: *const sockaddr, to_len: socklen_t)
        -> ssize_t;
    sendmsg(fd: c_int, message: In<'_, Message<Bytes<'_>>>, flags: c_int) -> ssize_t;
    sendmmsg(fd: c_int, messages: InOut<'_, CountedMessage<Bytes<'_>>>, count: c_uint, flags: c_int) -> c_int;
    write(fd: c_int, bytes: *const c_void, len: size_t) -> ssize_t;
    writev(fd: c_int, pieces: *const Bytes<'_>, count: c_int) -> ssize_t;
    recv(fd: c_int, bytes: *mut c_void, len: size_t, flags: c_int) -> ssize_t;
    recvfrom(fd: c_int, bytes: *mut c_void, len: size_t, flags: c_int, from: *mut sockaddr, from_len: InOut<'_, socklen_t>)
        -> ssize_t;
    recvmsg(fd: c_int, message: InOut<'_, Message<Room<'_>>>, flags: c_int) -> ssize_t;
    recvmmsg(fd: c_int, messages: InOut<'_, CountedMessage<Room<'_>>>, count: c_uint, flags: c_int,
        timeout: InOut<'_, timespec>) -> c_int;
    read(fd: c_int, bytes: *mut c_void, len: size_t) -> ssize_t;
    readv(fd: c_int, pieces: *const Room<'_>, count: c_int) -> ssize_t;
    __recv_chk(fd: c_int, bytes: *mut c_void, len: size_t, room: size_t, flags: c_int) -> ssize_t;
    __recvfrom_chk(fd: c_int, bytes: *mut c_void, len: size_t, room: size_t, flags: c_int, from: *mut sockaddr,
        from_len: InOut<'_, socklen_t>) -> ssize_t;
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
    chroot(path: Text<'_>) -> c_int;
    prctl(option: c_int, second: c_ulong, third: c_ulong, fourth: c_ulong, fifth: c_ulong) -> c_int;
    syscall(number: c_long, first: c_long, second: c_long, third: c_long, fourth: c_long, fifth: c_long,
        sixth: c_long) -> c_long;
    unshare(what: c_int) -> c_int;
    setns(fd: c_int, kind: c_int) -> c_int;
    fcntl(fd: c_int, command: c_int, argument: c_ulong) -> c_int;
    fcntl64(fd: c_int, command: c_int, argument: c_ulong) -> c_int;
    open(path: Text<'_>, flags: c_int, mode: c_uint) -> c_int;
    open64(path: Text<'_>, flags: c_int, mode: c_uint) -> c_int;
    openat(at: c_int, path: Text<'_>, flags: c_int, mode: c_uint) -> c_int;
    openat64(at: c_int, path: Text<'_>, flags: c_int, mode: c_uint) -> c_int;
    fopen(path: Text<'_>, mode: Text<'_>) -> Stream<'static>;
    fopen64(path: Text<'_>, mode: Text<'_>) -> Stream<'static>;
    creat(path: Text<'_>, mode: c_uint) -> c_int;
    creat64(path: Text<'_>, mode: c_uint) -> c_int;
    __open_2(path: Text<'_>, flags: c_int) -> c_int;
    __open64_2(path: Text<'_>, flags: c_int) -> c_int;
    __openat_2(at: c_int, path: Text<'_>, flags: c_int) -> c_int;
    __openat64_2(at: c_int, path: Text<'_>, flags: c_int) -> c_int;
    freopen(path: Text<'_>, mode: Text<'_>, stream: Stream<'_>) -> Stream<'static>;
    freopen64(path: Text<'_>, mode: Text<'_>, stream: Stream<'_>) -> Stream<'static>;
    fopencookie(cookie: *mut c_void, mode: Text<'_>, functions: Functions) -> Stream<'static>;
    fflush(stream: Stream<'_>) -> c_int;
    fflush_unlocked(stream: Stream<'_>) -> c_int;
    fclose(stream: Stream<'_>) -> c_int;
    stat(path: Text<'_>, into: InOut<'_, libc::stat>) -> c_int;
    stat64(path: Text<'_>, into: InOut<'_, libc::stat>) -> c_int;
    lstat(path: Text<'_>, into: InOut<'_, libc::stat>) -> c_int;
    lstat64(path: Text<'_>, into: InOut<'_, libc::stat>) -> c_int;
    fstatat(at: c_int, path: Text<'_>, into: InOut<'_, libc::stat>, flags: c_int) -> c_int;
    fstatat64(at: c_int, path: Text<'_>, into: InOut<'_, libc::stat>, flags: c_int) -> c_int;
    statx(at: c_int, path: Text<'_>, flags: c_int, mask: c_uint, into: InOut<'_, libc::statx>) -> c_int;
    access(path: Text<'_>, mode: c_int) -> c_int;
    eaccess(path: Text<'_>, mode: c_int) -> c_int;
    euidaccess(path: Text<'_>, mode: c_int) -> c_int;
    faccessat(at: c_int, path: Text<'_>, mode: c_int, flags: c_int) -> c_int;
    opendir(path: Text<'_>) -> Directory<'static>;
    readdir(dir: Directory<'_>) -> *mut libc::dirent;
    readdir64(dir: Directory<'_>) -> *mut libc::dirent;
    closedir(dir: Directory<'_>) -> c_int;
    rewinddir(dir: Directory<'_>) -> ();
    telldir(dir: Directory<'_>) -> c_long;
    seekdir(dir: Directory<'_>, at: c_long) -> ();
    dirfd(dir: Directory<'_>) -> c_int;
    if_nameindex() -> *mut libc::if_nameindex;
    getifaddrs(list: InOut<'_, *mut libc::ifaddrs>) -> c_int;
    if_nametoindex(name: Text<'_>) -> c_uint;
    if_indextoname(index: c_uint, name: InOut<'_, [u8; libc::IFNAMSIZ]>) -> InOut<'_, [u8; libc::IFNAMSIZ]>;
    ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int;
    execve(path: Text<'_>, arguments: List<'_>, environment: List<'_>) -> c_int;
    execvpe(file: Text<'_>, arguments: List<'_>, environment: List<'_>) -> c_int;
    fexecve(fd: c_int, arguments: List<'_>, environment: List<'_>) -> c_int;
    execveat(at: c_int, path: Text<'_>, arguments: List<'_>, environment: List<'_>,
        flags: c_int) -> c_int;
    posix_spawn(process: *mut libc::pid_t, path: Text<'_>, actions: *const libc::posix_spawn_file_actions_t,
        attributes: *const libc::posix_spawnattr_t, arguments: List<'_>, environment: List<'_>)
        -> c_int;
    posix_spawnp(process: *mut libc::pid_t, file: Text<'_>, actions: *const libc::posix_spawn_file_actions_t,
        attributes: *const libc::posix_spawnattr_t, arguments: List<'_>, environment: List<'_>)
        -> c_int;
    system(command: Text<'_>) -> c_int;
    popen(command: Text<'_>, mode: Text<'_>) -> Stream<'static>;
}
