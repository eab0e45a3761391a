//! A connection to the gateway: made by `socket(2)`, told things by calls that the gateway answers.

use std::ffi::CStr;
use std::mem::{self, MaybeUninit};
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use libc::{c_int, c_long, c_void, iovec, sockaddr_un, socklen_t};
use nlsock::{Answer, ToDaemon, protocol};

use crate::errno::{Errno, checked};
use crate::next;
use crate::spare;
use crate::sysctl;
use crate::table::{self, Past, Slot};
use crate::unsaid::{self, Calls, HELLO, PORT};

/// Names the gateway's netlink socket.
const VARIABLE: &CStr = c"FATPATH_NETLINK";

/// The gateway's address; `None` if there is none.
static GATEWAY: OnceLock<Option<sockaddr_un>> = OnceLock::new();

/// Read before the program runs, which may change its environment.
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

extern "C" fn start() {
    next::find_all();
    if gateway().is_some() {
        spare::start();
        sysctl::find_inherited();
    }
}

/// The gateway's address.
pub(crate) fn gateway() -> Option<&'static sockaddr_un> {
    GATEWAY.get_or_init(address).as_ref()
}

fn address() -> Option<sockaddr_un> {
    // SAFETY: the name is a C string.
    let value = unsafe { libc::getenv(VARIABLE.as_ptr()) };
    if value.is_null() {
        return None;
    }
    // SAFETY: what the environment holds is C strings, and nobody changes it before the program runs.
    let path = unsafe { CStr::from_ptr(value) }.to_bytes_with_nul();
    // SAFETY: any bytes are a valid address, zeros the empty one.
    let mut address: sockaddr_un = unsafe { mem::zeroed() };
    address.sun_family = libc::AF_UNIX as u16;
    let room = address.sun_path.get_mut(..path.len())?;
    room.iter_mut().zip(path).for_each(|(to, &byte)| *to = byte as _);
    Some(address)
}

/// The address of the gateway's socket for key managers, which is beside its netlink socket.
pub(crate) fn ike_socket() -> Option<sockaddr_un> {
    beside(b".ike")
}

/// The address of a socket with another ending than the gateway's netlink socket.
pub(crate) fn beside(ending: &[u8]) -> Option<sockaddr_un> {
    let mut address = *gateway()?;
    let path = address.sun_path.map(|byte| byte as u8);
    let len = path.iter().position(|&byte| byte == 0)?;
    let stem = path.get(..len)?.strip_suffix(b".netlink")?.len();
    let end = address.sun_path.get_mut(stem..)?;
    end.fill(0);
    end.iter_mut().zip(ending).for_each(|(to, &byte)| *to = byte as _);
    Some(address)
}

/// Whether the gateway serves sockets of `protocol`.
pub(crate) fn is_served(protocol: c_int) -> bool {
    [protocol::ROUTE, protocol::XFRM, protocol::GENERIC].iter().any(|&served| u32::try_from(protocol) == Ok(served))
}

/// A descriptor that is closed when this is dropped. All is done by plain system calls: they are no points at which a
/// thread can be cancelled.
#[derive(Debug)]
pub(crate) struct Fd(pub(crate) c_int);

impl Fd {
    /// The descriptor, which stays open.
    pub(crate) fn keep(self) -> c_int {
        let fd = self.0;
        mem::forget(self);
        fd
    }
}

impl Drop for Fd {
    fn drop(&mut self) {
        // SAFETY: it is this value's own descriptor.
        unsafe { libc::syscall(libc::SYS_close, self.0) };
    }
}

/// `socket(AF_NETLINK, …)`.
///
/// # Errors
/// `ECONNREFUSED`: there is no gateway; else as `socket(2)`.
pub(crate) fn socket(kind: c_int, protocol: c_int) -> Result<c_int, Errno> {
    let flags = kind & (libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC);
    let cloexec = flags & libc::SOCK_CLOEXEC;
    let age = spare::age();
    let (fd, uses) = match spare::take(cloexec) {
        Some(spare) => spare,
        None => (connected(cloexec)?, 0),
    };
    let protocol = u32::try_from(protocol).map_err(|_| Errno(libc::EPROTONOSUPPORT))?;
    if flags & libc::SOCK_NONBLOCK != 0 {
        let on: c_int = 1;
        // SAFETY: the request takes a pointer to an int.
        checked(unsafe { libc::syscall(libc::SYS_ioctl, fd.0, libc::FIONBIO, &raw const on) } as c_int)?;
    }
    spare::note_usual(fd.0, uses);
    let is_marked = flags != libc::SOCK_CLOEXEC;
    table::enter(fd.0, protocol, (kind & !flags) as u32, HELLO, Past { age, uses, is_marked })?;
    Ok(fd.keep())
}

/// A connection of which the gateway knows nothing yet.
///
/// # Errors
/// `ECONNREFUSED` if there is no gateway.
pub(crate) fn connected(flags: c_int) -> Result<Fd, Errno> {
    let address = gateway().ok_or(Errno(libc::ECONNREFUSED))?;
    // SAFETY: it takes no pointers.
    let fd = Fd(checked(unsafe { next::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | flags, 0) })?);
    let len = mem::size_of::<sockaddr_un>();
    // SAFETY: the address is that long.
    let done = unsafe { libc::syscall(libc::SYS_connect, fd.0, &raw const *address, len) };
    checked(done as c_int).map_err(|errno| match errno.0 {
        libc::ENOENT => Errno(libc::ECONNREFUSED),
        _ => errno,
    })?;
    Ok(fd)
}

/// A connection of this library's own, on which requests can be sent.
///
/// # Errors
/// As [`socket`].
pub(crate) fn own(protocol: u32) -> Result<Fd, Errno> {
    let fd = connected(libc::SOCK_CLOEXEC)?;
    let mut calls = Calls::new();
    calls.push(ToDaemon::Hello { protocol, number: 0 });
    tell(fd.0, calls.as_bytes(), None)?;
    Ok(fd)
}

/// Chooses a port for a connection that has none, as binding to any, sending and connecting do (Linux
/// `netlink_autobind`). The gateway is told when there is something to be told.
pub(crate) fn autobind(slot: &Slot) {
    if slot.port.load(Relaxed) == 0 {
        choose_port(slot);
        unsaid::note(slot, PORT);
    }
}

/// Gives a connection the process's number, or if another has that, a number of no process's that no other has.
pub(crate) fn choose_port(slot: &Slot) {
    // SAFETY: it takes nothing.
    let own = unsafe { libc::getpid() } as u32;
    // Noted first: of two threads that choose at the same time, one at least sees the other.
    slot.port.store(own, SeqCst);
    let protocol = slot.protocol.load(Relaxed);
    let has_it = |other: &Slot| {
        !std::ptr::eq(other, slot) && other.port.load(SeqCst) == own && other.protocol.load(Relaxed) == protocol
    };
    if table::live(has_it).next().is_some() {
        slot.port.store(1 << 31 | (slot.inode() % OTHER_PORTS) as u32, SeqCst);
    }
}

/// From 2 to the 31 on, as many numbers are ports of no process (Linux `netlink_autobind`).
const OTHER_PORTS: u64 = (1 << 31) - 4096;

/// Has the gateway know what a connection's slot holds: at once, unless the program is still making the socket. One that
/// only listens sends nothing that this could go with.
///
/// # Errors
/// `ECONNREFUSED` if it is gone.
pub(crate) fn say(fd: c_int, slot: &Slot, what: u32) -> Result<(), Errno> {
    unsaid::note(slot, what);
    if unsaid::is_noted(slot, HELLO) { Ok(()) } else { tell_unsaid(fd, slot) }
}

/// Tells the gateway what it was not told yet.
///
/// # Errors
/// `ECONNREFUSED` if it is gone.
pub(crate) fn tell_unsaid(fd: c_int, slot: &Slot) -> Result<(), Errno> {
    let calls = Calls::unsaid(slot);
    tell(fd, calls.as_bytes(), None)?;
    calls.are_said(slot);
    Ok(())
}

/// Has the gateway know which ports other connections of the protocol have, before `own` asks for one of them, and which
/// are sockets' no more.
pub(crate) fn tell_ports(own: &Slot) {
    spare::let_go();
    let protocol = own.protocol.load(Relaxed);
    let has_port = |slot: &Slot| unsaid::is_noted(slot, PORT) && slot.protocol.load(Relaxed) == protocol;
    let had_port = |slot: &Slot| unsaid::is_noted(slot, HELLO) && slot.uses.load(Relaxed) != 0;
    let is_other = |slot: &Slot| !std::ptr::eq(slot, own);
    for (fd, slot) in table::live(|slot| is_other(slot) && (has_port(slot) || had_port(slot))) {
        // Its descriptor may be something else's by now, but this one is what it is. That the gateway is gone shows in
        // the next call.
        if let Some(same) = duplicate(fd).filter(|same| table::socket_inode(same.0) == Some(slot.inode())) {
            let _ = tell_unsaid(same.0, slot);
        }
    }
}

/// Another descriptor of what `fd` is, which the program does not know.
fn duplicate(fd: c_int) -> Option<Fd> {
    // SAFETY: it takes no pointers.
    let same = unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_DUPFD_CLOEXEC, 0) };
    checked(same as c_int).ok().map(Fd)
}

/// Tells the gateway something of a connection and waits until it has done it.
///
/// # Errors
/// What the gateway answers; `ECONNREFUSED` if it is gone.
pub(crate) fn call(fd: c_int, slot: &Slot, what: ToDaemon<'_>) -> Result<Answer, Errno> {
    let mut calls = Calls::unsaid(slot);
    calls.push(what);
    awaited(fd, calls.as_bytes(), || calls.are_said(slot))
}

/// Tells the gateway something and waits for what comes of the last of it. `sent`: it is on its way.
///
/// # Errors
/// What the gateway answers; `ECONNREFUSED` if it is gone.
pub(crate) fn awaited(fd: c_int, bytes: &[u8], sent: impl FnOnce()) -> Result<Answer, Errno> {
    let mut ends = [0; 2];
    // SAFETY: there is room for two descriptors.
    checked(unsafe { libc::syscall(libc::SYS_pipe2, ends.as_mut_ptr(), libc::O_CLOEXEC) } as c_int)?;
    let (answers, theirs) = (Fd(ends[0]), Fd(ends[1]));
    tell(fd, bytes, Some(&theirs))?;
    sent();
    drop(theirs);
    let mut bytes = [0; Answer::LEN];
    loop {
        // SAFETY: there is room for as many bytes.
        let read = unsafe { libc::syscall(libc::SYS_read, answers.0, bytes.as_mut_ptr(), bytes.len()) };
        match checked(read as c_int) {
            Err(Errno(libc::EINTR)) => {}
            Ok(len) if len as usize == Answer::LEN => break,
            _ => return Err(Errno(libc::ECONNREFUSED)),
        }
    }
    let answer = Answer::from_bytes(bytes);
    if answer.error == 0 { Ok(answer) } else { Err(Errno(answer.error)) }
}

/// A socket's option of `SOL_SOCKET` that is an int, as the kernel has it.
pub(crate) fn option(fd: c_int, name: c_int) -> Option<c_int> {
    let (mut value, mut len): (c_int, socklen_t) = (0, mem::size_of::<c_int>() as socklen_t);
    // SAFETY: there is room for an int.
    let done = unsafe { next::getsockopt(fd, libc::SOL_SOCKET, name, (&raw mut value).cast(), &raw mut len) };
    (done == 0).then_some(value)
}

/// A control message with one descriptor.
#[repr(C)]
struct Rights {
    header: libc::cmsghdr,
    fd: c_int,
}

/// Tells the gateway something, with the place for its answer to the last of it.
///
/// # Errors
/// `ECONNREFUSED` if it is gone.
pub(crate) fn tell(fd: c_int, bytes: &[u8], answer_to: Option<&Fd>) -> Result<(), Errno> {
    let mut piece = iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: a message without anything is all zeros.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (&raw mut piece, 1);
    let mut rights = MaybeUninit::<Rights>::zeroed();
    if let Some(Fd(answer_to)) = answer_to {
        let header = libc::cmsghdr {
            cmsg_len: mem::size_of::<libc::cmsghdr>() + mem::size_of::<c_int>(),
            cmsg_level: libc::SOL_SOCKET,
            cmsg_type: libc::SCM_RIGHTS,
        };
        rights.write(Rights { header, fd: *answer_to });
        message.msg_control = rights.as_mut_ptr().cast();
        message.msg_controllen = mem::size_of::<Rights>();
    }
    loop {
        // SAFETY: all that the message points to lives here.
        let sent = unsafe { libc::syscall(libc::SYS_sendmsg, fd, &raw const message, libc::MSG_NOSIGNAL) };
        match checked(sent as c_int).map_err(refused) {
            Ok(_) => return Ok(()),
            Err(Errno(libc::EINTR)) => {}
            Err(Errno(libc::EAGAIN)) => wait_for_room(fd),
            Err(errno) => return Err(errno),
        }
    }
}

/// Waits until a non-blocking connection takes something.
pub(crate) fn wait_for_room(fd: c_int) {
    let mut wanted = libc::pollfd { fd, events: libc::POLLOUT, revents: 0 };
    let forever: *const c_void = std::ptr::null();
    let none: c_long = 0;
    // SAFETY: one place is given and one is told of. A failure shows at the next attempt to send.
    unsafe { libc::syscall(libc::SYS_ppoll, &raw mut wanted, 1, forever, forever, none) };
}

/// That the gateway is gone, as Linux says that a netlink protocol has nobody behind it.
pub(crate) fn refused(errno: Errno) -> Errno {
    match errno.0 {
        libc::EPIPE | libc::ECONNRESET | libc::ENOTCONN => Errno(libc::ECONNREFUSED),
        _ => errno,
    }
}
