//! System calls that this library makes for itself, and functions of the C library. The calls are made by their numbers: they
//! are no cancellation points, and no other library's.

use std::ffi::CStr;
use std::{mem, ptr};

use libc::{c_int, c_long, c_uint, c_void, pid_t, pollfd, sigset_t, size_t, timespec, uid_t};

use crate::errno::{Errno, checked};
use crate::fd::Fd;
use crate::plain::{Plain, zeroed};
use crate::program_memory::{List, Stream, Text};

// SAFETY: the functions are declared as in the manual pages, and the types of the arguments, or the functions below, meet
// what these require.
unsafe extern "C" {
    /// The program's environment (environ(7)).
    static environ: List<'static>;
    /// The program's name, without its directory.
    pub(crate) safe static program_invocation_short_name: Text<'static>;

    safe fn getenv(name: Text<'_>) -> Text<'static>;
    pub(crate) safe fn getpid() -> pid_t;
    pub(crate) safe fn geteuid() -> uid_t;
    pub(crate) safe fn _exit(status: c_int) -> !;
    pub(crate) safe fn malloc(len: size_t) -> *mut c_void;
    pub(crate) safe fn calloc(count: size_t, len: size_t) -> *mut c_void;
    pub(crate) safe fn sigfillset(set: &mut sigset_t) -> c_int;
    pub(crate) safe fn pthread_sigmask(how: c_int, set: Option<&sigset_t>, before: Option<&mut sigset_t>) -> c_int;
    safe fn pthread_atfork(before: Option<Handler>, in_parent: Option<Handler>, in_child: Option<Handler>) -> c_int;
    safe fn fileno(stream: Stream<'_>) -> c_int;
    safe fn fdopen(fd: c_int, mode: Text<'_>) -> Stream<'static>;
    safe fn fstat(fd: c_int, into: &mut libc::stat) -> c_int;
    safe fn fstatfs(fd: c_int, into: &mut libc::statfs) -> c_int;
    safe fn dladdr(address: *const c_void, into: &mut libc::Dl_info) -> c_int;
    safe fn memfd_create(name: Text<'_>, flags: c_uint) -> c_int;
}

type Handler = extern "C" fn();

/// The program's environment.
pub(crate) fn environment() -> List<'static> {
    // SAFETY: the C library's variable always exists; a program that changes it while it starts another races with
    // itself.
    unsafe { (&raw const environ).read_volatile() }
}

/// Variable of the program's environment.
pub(crate) fn variable(name: &CStr) -> Option<&'static CStr> {
    getenv(name.into()).get()
}

/// File of the library that has an address.
pub(crate) fn file_of(address: *const c_void) -> Option<&'static CStr> {
    let mut found: libc::Dl_info = zeroed();
    // SAFETY: the loader's names are C strings. This library, at least, stays.
    (dladdr(address, &mut found) != 0).then(|| unsafe { Text::new(found.dli_fname) })?.get()
}

/// Calls `handler` in each child of `fork` from now on.
pub(crate) fn at_fork(handler: Handler) {
    // Without memory the handler is not registered.
    let _ = pthread_atfork(None, None, Some(handler));
}

/// Descriptor of a stream; `None`: null.
pub(crate) fn number(stream: Stream<'_>) -> Option<c_int> {
    (!stream.is_null()).then(|| fileno(stream))
}

/// Stream of a descriptor; null: `errno` has the error.
pub(crate) fn stream(fd: c_int, mode: &CStr) -> Stream<'static> {
    fdopen(fd, mode.into())
}

/// Status of the file of a descriptor.
pub(crate) fn status(fd: c_int) -> Option<libc::stat> {
    let mut status = zeroed();
    (fstat(fd, &mut status) == 0).then_some(status)
}

/// Type of the file system that the file of a descriptor is on: `PROC_SUPER_MAGIC` and others.
pub(crate) fn file_system(fd: c_int) -> Option<libc::__fsword_t> {
    let mut on: libc::statfs = zeroed();
    (fstatfs(fd, &mut on) == 0).then_some(on.f_type)
}

/// `memfd_create(2)`.
///
/// # Errors
/// As the call.
pub(crate) fn memory_file(name: &CStr, flags: c_uint) -> Result<Fd, Errno> {
    checked(memfd_create(name.into(), flags)).map(Fd)
}

/// Result of a system call.
fn done(returned: c_long) -> Result<usize, Errno> {
    usize::try_from(returned).map_err(|_| Errno::last())
}

/// `read(2)`.
///
/// # Errors
/// As the call.
pub(crate) fn read(fd: c_int, into: &mut [u8]) -> Result<usize, Errno> {
    // SAFETY: the buffer is that long.
    done(unsafe { libc::syscall(libc::SYS_read, fd, into.as_mut_ptr(), into.len()) })
}

/// `write(2)`.
///
/// # Errors
/// As the call.
pub(crate) fn write(fd: c_int, bytes: &[u8]) -> Result<usize, Errno> {
    // SAFETY: the buffer is that long.
    done(unsafe { libc::syscall(libc::SYS_write, fd, bytes.as_ptr(), bytes.len()) })
}

/// `pwrite(2)`, at the front of the file.
///
/// # Errors
/// As the call.
pub(crate) fn write_front(fd: c_int, bytes: &[u8]) -> Result<usize, Errno> {
    // SAFETY: the buffer is that long.
    done(unsafe { libc::syscall(libc::SYS_pwrite64, fd, bytes.as_ptr(), bytes.len(), 0) })
}

/// Opens a file to read it.
///
/// # Errors
/// As `open(2)`.
pub(crate) fn open(path: &CStr) -> Result<Fd, Errno> {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    // SAFETY: the path is a C string.
    done(unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags) }).map(|fd| Fd(fd as c_int))
}

/// Target of a symbolic link; `None`: it is none.
pub(crate) fn link<'a>(path: &CStr, room: &'a mut [u8]) -> Option<&'a [u8]> {
    // SAFETY: the path is a C string, and the buffer is that long.
    let len =
        unsafe { libc::syscall(libc::SYS_readlinkat, libc::AT_FDCWD, path.as_ptr(), room.as_mut_ptr(), room.len()) };
    room.get(..done(len).ok()?)
}

/// `pipe(2)`: the end to read from, and the one to write to.
///
/// # Errors
/// As the call.
pub(crate) fn pipe() -> Result<[Fd; 2], Errno> {
    let mut ends: [c_int; 2] = [0; 2];
    // SAFETY: the buffer has space for two descriptors.
    done(unsafe { libc::syscall(libc::SYS_pipe2, ends.as_mut_ptr(), libc::O_CLOEXEC) })?;
    Ok(ends.map(Fd))
}

/// `socketpair(2)` of Unix sockets.
///
/// # Errors
/// As the call.
pub(crate) fn socket_pair(kind: c_int) -> Result<[Fd; 2], Errno> {
    let mut ends: [c_int; 2] = [0; 2];
    // SAFETY: the buffer has space for two descriptors.
    done(unsafe { libc::syscall(libc::SYS_socketpair, libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) })?;
    Ok(ends.map(Fd))
}

/// `socket(2)` with a last argument that has no meaning to the kernel.
///
/// # Errors
/// As the call.
pub(crate) fn marked_socket(domain: c_int, kind: c_int, protocol: c_int, mark: c_long) -> Result<Fd, Errno> {
    // SAFETY: the call takes no pointers.
    done(unsafe { libc::syscall(libc::SYS_socket, domain, kind, protocol, 0, 0, mark) }).map(|fd| Fd(fd as c_int))
}

/// `connect(2)`.
///
/// # Errors
/// As the call.
pub(crate) fn connect<T: Plain>(fd: c_int, address: &T) -> Result<(), Errno> {
    // SAFETY: the address is that long.
    done(unsafe { libc::syscall(libc::SYS_connect, fd, ptr::from_ref(address), mem::size_of::<T>()) }).map(drop)
}

/// `bind(2)`.
///
/// # Errors
/// As the call.
pub(crate) fn bind<T: Plain>(fd: c_int, address: &T) -> Result<(), Errno> {
    // SAFETY: the address is that long.
    done(unsafe { libc::syscall(libc::SYS_bind, fd, ptr::from_ref(address), mem::size_of::<T>()) }).map(drop)
}

/// Address of a Unix socket's peer; `None`: there is none.
pub(crate) fn peer(fd: c_int) -> Option<libc::sockaddr_un> {
    let mut peer: libc::sockaddr_un = zeroed();
    let mut len = mem::size_of_val(&peer) as libc::socklen_t;
    // SAFETY: the buffer is that long.
    done(unsafe { libc::syscall(libc::SYS_getpeername, fd, &raw mut peer, &raw mut len) }).ok().map(|_| peer)
}

/// `setsockopt(2)`.
///
/// # Errors
/// As the call.
pub(crate) fn set_option<T: Plain>(fd: c_int, level: c_int, name: c_int, value: &[T]) -> Result<(), Errno> {
    // SAFETY: the value is that long.
    done(unsafe { libc::syscall(libc::SYS_setsockopt, fd, level, name, value.as_ptr(), mem::size_of_val(value)) })
        .map(drop)
}

/// Ends receiving on a socket.
pub(crate) fn shut_down_reading(fd: c_int) {
    // SAFETY: the call takes no pointers.
    unsafe { libc::syscall(libc::SYS_shutdown, fd, libc::SHUT_RD) };
}

/// `send(2)`.
///
/// # Errors
/// As the call.
pub(crate) fn send(fd: c_int, bytes: &[u8], flags: c_int) -> Result<usize, Errno> {
    let nowhere: *const c_void = ptr::null();
    // SAFETY: the buffer is that long.
    done(unsafe { libc::syscall(libc::SYS_sendto, fd, bytes.as_ptr(), bytes.len(), flags, nowhere, 0_usize) })
}

/// `recv(2)`.
///
/// # Errors
/// As the call.
pub(crate) fn receive(fd: c_int, into: &mut [u8], flags: c_int) -> Result<usize, Errno> {
    let nothing: *mut c_void = ptr::null_mut();
    // SAFETY: the buffer is that long.
    done(unsafe { libc::syscall(libc::SYS_recvfrom, fd, into.as_mut_ptr(), into.len(), flags, nothing, nothing) })
}

/// Control message with one descriptor.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rights {
    header: libc::cmsghdr,
    fd: c_int,
    padding: c_int,
}

impl Rights {
    /// Space for a message to receive.
    pub(crate) const NONE: Self = Self { header: zeroed(), fd: -1, padding: 0 };

    pub(crate) const fn of(fd: &Fd) -> Self {
        let header = libc::cmsghdr {
            cmsg_len: mem::size_of::<libc::cmsghdr>() + mem::size_of::<c_int>(),
            cmsg_level: libc::SOL_SOCKET,
            cmsg_type: libc::SCM_RIGHTS,
        };
        Self { header, fd: fd.0, padding: 0 }
    }

    /// The received descriptor, if any.
    pub(crate) fn received(self) -> Option<Fd> {
        let is_one = self.header.cmsg_level == libc::SOL_SOCKET && self.header.cmsg_type == libc::SCM_RIGHTS;
        is_one.then_some(Fd(self.fd))
    }
}

/// `sendmsg(2)` of bytes, with descriptors.
///
/// # Errors
/// As the call.
pub(crate) fn send_message(fd: c_int, bytes: &[u8], rights: &[Rights], flags: c_int) -> Result<usize, Errno> {
    let mut piece = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut message: libc::msghdr = zeroed();
    (message.msg_iov, message.msg_iovlen) = (&raw mut piece, 1);
    (message.msg_control, message.msg_controllen) = (rights.as_ptr().cast_mut().cast(), mem::size_of_val(rights));
    // SAFETY: all buffers of the message are in this frame, or the caller's.
    done(unsafe { libc::syscall(libc::SYS_sendmsg, fd, &raw const message, flags) })
}

/// `recvmsg(2)` of bytes, with descriptors.
///
/// # Errors
/// As the call.
pub(crate) fn receive_message(fd: c_int, into: &mut [u8], rights: &mut [Rights], flags: c_int) -> Result<usize, Errno> {
    let mut piece = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    let mut message: libc::msghdr = zeroed();
    (message.msg_iov, message.msg_iovlen) = (&raw mut piece, 1);
    (message.msg_control, message.msg_controllen) = (rights.as_mut_ptr().cast(), mem::size_of_val(rights));
    // SAFETY: all buffers of the message are in this frame, or the caller's.
    done(unsafe { libc::syscall(libc::SYS_recvmsg, fd, &raw mut message, flags) })
}

/// `ppoll(2)` without a mask; without a limit it waits for an event.
///
/// # Errors
/// As the call.
pub(crate) fn poll(fds: &mut [pollfd], limit: Option<timespec>) -> Result<usize, Errno> {
    // The kernel writes the rest of the time.
    let mut limit = limit;
    let limit = limit.as_mut().map_or(ptr::null_mut(), ptr::from_mut);
    let (no_mask, no_len): (*const c_void, usize) = (ptr::null(), 0);
    // SAFETY: the array is that long.
    done(unsafe { libc::syscall(libc::SYS_ppoll, fds.as_mut_ptr(), fds.len(), limit, no_mask, no_len) })
}

/// Switches a descriptor's non-blocking mode on.
///
/// # Errors
/// As `ioctl(2)`.
pub(crate) fn set_non_blocking(fd: c_int) -> Result<(), Errno> {
    let on: c_int = 1;
    // SAFETY: the request takes a pointer to an int.
    done(unsafe { libc::syscall(libc::SYS_ioctl, fd, libc::FIONBIO, &raw const on) }).map(drop)
}

/// Bytes that the other end of a Unix socket has not received yet (unix(7), `SIOCOUTQ`).
///
/// # Errors
/// As `ioctl(2)`.
pub(crate) fn unreceived(fd: c_int) -> Result<c_int, Errno> {
    let mut bytes: c_int = 0;
    // SAFETY: the request takes a pointer to an int.
    done(unsafe { libc::syscall(libc::SYS_ioctl, fd, libc::TIOCOUTQ, &raw mut bytes) }).map(|_| bytes)
}

/// Kind of a namespace, `CLONE_NEWNET` and others, by a file of `/proc/PID/ns`.
///
/// # Errors
/// As `ioctl(2)`.
pub(crate) fn namespace_kind(fd: c_int) -> Result<c_int, Errno> {
    const NS_GET_NSTYPE: c_int = 0xb703;
    // SAFETY: the request has no argument.
    done(unsafe { libc::syscall(libc::SYS_ioctl, fd, NS_GET_NSTYPE) }).map(|kind| kind as c_int)
}

/// Random bytes.
///
/// # Errors
/// As `getrandom(2)`.
pub(crate) fn random() -> Result<[u8; 8], Errno> {
    let mut random = [0; 8];
    // SAFETY: the buffer is that long.
    done(unsafe { libc::syscall(libc::SYS_getrandom, random.as_mut_ptr(), random.len(), 0) }).map(|_| random)
}

/// Permitted capabilities of the calling thread, the first 32; `None`: the kernel does not say.
pub(crate) fn capabilities() -> Option<u32> {
    const VERSION_3: u32 = 0x2008_0522;
    // `struct __user_cap_header_struct`, and twice `struct __user_cap_data_struct`: effective, permitted, inheritable.
    let (mut header, mut sets) = ([VERSION_3, 0], [[0_u32; 3]; 2]);
    // SAFETY: the kernel reads and writes at most the lengths of `header` and `sets`.
    let got = done(unsafe { libc::syscall(libc::SYS_capget, header.as_mut_ptr(), sets.as_mut_ptr()) });
    got.ok().map(|_| sets[0][1])
}

/// Gives the thread a table of descriptors, and directories, of its own. Returns whether it has them.
pub(crate) fn separate_thread() -> bool {
    // SAFETY: the call takes no pointers.
    done(unsafe { libc::syscall(libc::SYS_unshare, libc::CLONE_FILES | libc::CLONE_FS) }).is_ok()
}

/// Closes all descriptors from `first` to `last`. Returns whether they are closed.
pub(crate) fn close_range(first: c_uint, last: c_uint) -> bool {
    // SAFETY: the call takes no pointers.
    first > last || done(unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) }).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptor_is_received_with_its_bytes() {
        let [from, to] = socket_pair(libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC).unwrap();
        let [reader, writer] = pipe().unwrap();
        assert_eq!(send_message(from.0, b"end", &[Rights::of(&writer)], 0), Ok(3));
        drop(writer);
        let (mut bytes, mut rights) = ([0; 8], [Rights::NONE]);
        assert_eq!(receive_message(to.0, &mut bytes, &mut rights, libc::MSG_CMSG_CLOEXEC), Ok(3));
        let received = rights[0].received().unwrap();
        assert_eq!(write(received.0, &bytes[..3]), Ok(3));
        let mut written = [0; 8];
        assert_eq!((read(reader.0, &mut written), &written[..3]), (Ok(3), &b"end"[..]));
        // Bytes alone have none, and no descriptor is received where there is no space for one.
        assert_eq!(send(from.0, b"x", 0), Ok(1));
        rights = [Rights::NONE];
        assert_eq!(receive_message(to.0, &mut bytes, &mut rights, 0), Ok(1));
        assert!(rights[0].received().is_none());
        assert_eq!(receive(to.0, &mut bytes, libc::MSG_DONTWAIT), Err(Errno(libc::EAGAIN)));
    }

    #[test]
    fn wait_ends_with_an_event_or_its_limit() {
        let [reader, writer] = pipe().unwrap();
        let mut ready = [pollfd { fd: reader.0, events: libc::POLLIN, revents: 0 }];
        assert_eq!(poll(&mut ready, Some(timespec { tv_sec: 0, tv_nsec: 1_000_000 })), Ok(0));
        assert_eq!(write(writer.0, b"x"), Ok(1));
        assert_eq!((poll(&mut ready, None), ready[0].revents), (Ok(1), libc::POLLIN));
        assert_eq!(read(-1, &mut [0]), Err(Errno(libc::EBADF)));
    }
}
