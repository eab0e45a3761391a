//! A connection to the gateway: made by `socket(2)`, told things by calls that the gateway answers.

use std::ffi::{CStr, CString};
use std::mem::{self, MaybeUninit};
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use libc::{c_char, c_int, c_long, c_void, iovec, sockaddr_un, socklen_t};
use nlsock::{Answer, ToDaemon, protocol};

use crate::environment;
use crate::errno::{Errno, checked};
use crate::next;
use crate::reconnect;
use crate::sysctl;
use crate::table::{self, Slot};
use crate::unsaid::{self, Calls, HELLO, PORT};
use crate::vrf_exec;

/// Names the gateway's netlink socket.
const VARIABLE: &CStr = c"FATPATH_NETLINK";

/// Stands behind the socket's path when the program was started on the gateway's host side.
const ON_HOST_SIDE: &[u8] = b",host-side";

/// Stands behind that, before the name of the VRF that the program's Internet sockets are bound to.
const IN_VRF: &[u8] = b",vrf=";

/// The gateway that a program was started for.
struct Gateway {
    /// The address of its netlink socket.
    address: sockaddr_un,
    /// Whether the program's other sockets are on its host side.
    is_on_host_side: bool,
    /// VRF that the program's Internet sockets are bound to.
    vrf: Option<CString>,
}

/// The gateway; `None` if there is none.
static GATEWAY: OnceLock<Option<Gateway>> = OnceLock::new();

/// Read before the program runs, which may change its environment.
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn(c_int, *const *const c_char) = start;

extern "C" fn start(count: c_int, arguments: *const *const c_char) {
    next::find_all();
    vrf_exec::refuse(count, arguments);
    if gateway().is_some() {
        sysctl::find_inherited();
    }
}

/// The gateway's address.
pub(crate) fn gateway() -> Option<&'static sockaddr_un> {
    found().map(|gateway| &gateway.address)
}

/// Whether the program was started on the gateway's host side, whose kernel has its sockets other than netlink.
pub(crate) fn is_on_host_side() -> bool {
    found().is_some_and(|gateway| gateway.is_on_host_side)
}

fn found() -> Option<&'static Gateway> {
    GATEWAY.get_or_init(find).as_ref()
}

fn find() -> Option<Gateway> {
    // SAFETY: the name is a C string.
    let value = unsafe { libc::getenv(VARIABLE.as_ptr()) };
    if value.is_null() {
        return None;
    }
    // SAFETY: what the environment holds is C strings, which are not changed before the program runs.
    let value = unsafe { CStr::from_ptr(value) };
    let (path, is_on_host_side, vrf) = path_of(value.to_bytes());
    // SAFETY: any bytes are a valid address, zeros the empty one.
    let mut address: sockaddr_un = unsafe { mem::zeroed() };
    address.sun_family = libc::AF_UNIX as u16;
    // A zero byte ends the path.
    let room = address.sun_path.get_mut(..=path.len())?;
    room.iter_mut().zip(path).for_each(|(to, &byte)| *to = byte as _);
    environment::keep(value);
    Some(Gateway { address, is_on_host_side, vrf: vrf.and_then(|name| CString::new(name).ok()) })
}

/// The path that the variable's value names, whether the program is on the gateway's host side, and the VRF of its sockets. A name of a
/// device has no comma.
fn path_of(value: &[u8]) -> (&[u8], bool, Option<&[u8]>) {
    let last = value.iter().rposition(|&byte| byte == b',').unwrap_or(value.len());
    let (front, vrf) = match value[last..].strip_prefix(IN_VRF) {
        Some(name) => (&value[..last], Some(name)),
        None => (value, None),
    };
    match front.strip_suffix(ON_HOST_SIDE) {
        Some(path) => (path, true, vrf),
        None => (value, false, None),
    }
}

/// The VRF that the program's Internet sockets are bound to.
pub(crate) fn vrf() -> Option<&'static CStr> {
    found()?.vrf.as_deref()
}

/// The address of the gateway's socket for key managers, which is beside its netlink socket.
pub(crate) fn ike_socket() -> Option<sockaddr_un> {
    beside(b".ike")
}

/// The address of a socket with another ending than the gateway's netlink socket; `None` if it has no room for it.
pub(crate) fn beside(ending: &[u8]) -> Option<sockaddr_un> {
    let mut address = *gateway()?;
    let path = address.sun_path.map(|byte| byte as u8);
    let len = path.iter().position(|&byte| byte == 0)?;
    let stem = path.get(..len)?.strip_suffix(b".netlink")?.len();
    // A zero byte ends the path.
    let end = address.sun_path.get_mut(stem..).filter(|end| end.len() > ending.len())?;
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
    let fd = connected(flags & libc::SOCK_CLOEXEC)?;
    let protocol = u32::try_from(protocol).map_err(|_| Errno(libc::EPROTONOSUPPORT))?;
    if flags & libc::SOCK_NONBLOCK != 0 {
        let on: c_int = 1;
        // SAFETY: the request takes a pointer to an int.
        checked(unsafe { libc::syscall(libc::SYS_ioctl, fd.0, libc::FIONBIO, &raw const on) } as c_int)?;
    }
    table::enter(fd.0, protocol, (kind & !flags) as u32, HELLO)?;
    reconnect::note_new();
    if holds_net_admin() {
        // A protocol that is not served is told of when it is told again.
        let _ = introduced(fd.0, protocol);
    }
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
    if holds_net_admin() {
        introduced(fd.0, protocol)?;
    } else {
        let mut calls = Calls::new();
        calls.push(ToDaemon::Hello { protocol });
        tell(fd.0, calls.as_bytes(), None)?;
    }
    Ok(fd)
}

/// Tells the gateway a connection's protocol before anything else, and waits for the answer: with that the gateway has judged
/// the capabilities of a process that is not root.
fn introduced(fd: c_int, protocol: u32) -> Result<Answer, Errno> {
    let mut calls = Calls::new();
    calls.push(ToDaemon::Hello { protocol });
    awaited(fd, calls.as_bytes(), || ())
}

/// Whether the process is not root and holds `CAP_NET_ADMIN`.
fn holds_net_admin() -> bool {
    const VERSION_3: u32 = 0x2008_0522;
    const CAP_NET_ADMIN: u32 = 12;
    // `struct __user_cap_header_struct`, and twice `struct __user_cap_data_struct`: effective, permitted, inheritable.
    let (mut header, mut sets) = ([VERSION_3, 0], [[0_u32; 3]; 2]);
    // SAFETY: it takes nothing.
    if unsafe { libc::geteuid() } == 0 {
        return false;
    }
    // SAFETY: the kernel reads and writes no more than `header` and `sets` have.
    let done = unsafe { libc::syscall(libc::SYS_capget, header.as_mut_ptr(), sets.as_mut_ptr()) };
    done == 0 && sets[0][1] >> CAP_NET_ADMIN & 1 == 1
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

/// Tells the gateway what a connection's slot holds: at once, unless the program is still making the socket. One that
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
    check_gateway(slot)?;
    let calls = Calls::unsaid(slot);
    tell(fd, calls.as_bytes(), None)?;
    calls.are_said(slot);
    Ok(())
}

/// # Errors
/// `ECONNREFUSED`: the gateway is gone.
fn check_gateway(slot: &Slot) -> Result<(), Errno> {
    if slot.is_gone.load(Relaxed) { Err(Errno(libc::ECONNREFUSED)) } else { Ok(()) }
}

/// Tells the gateway the ports of other connections of the protocol, before `own` asks for one of them.
pub(crate) fn tell_ports(own: &Slot) {
    let protocol = own.protocol.load(Relaxed);
    let has_port = |slot: &Slot| unsaid::is_noted(slot, PORT) && slot.protocol.load(Relaxed) == protocol;
    let is_other = |slot: &Slot| !std::ptr::eq(slot, own);
    for (fd, slot) in table::live(|slot| is_other(slot) && has_port(slot)) {
        // Its descriptor may be something else's by now, but this one is what it is. That the gateway is gone shows in
        // the next call.
        if let Some(same) = duplicate(fd).filter(|same| table::socket_inode(same.0) == Some(slot.inode())) {
            let _ = tell_unsaid(same.0, slot);
        }
    }
}

/// Another descriptor of what `fd` is, which the program does not know.
pub(crate) fn duplicate(fd: c_int) -> Option<Fd> {
    // SAFETY: it takes no pointers.
    let same = unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_DUPFD_CLOEXEC, 0) };
    checked(same as c_int).ok().map(Fd)
}

/// Tells the gateway something of a connection and waits until it has done it.
///
/// # Errors
/// What the gateway answers; `ECONNREFUSED` if it is gone.
pub(crate) fn call(fd: c_int, slot: &Slot, what: ToDaemon<'_>) -> Result<Answer, Errno> {
    check_gateway(slot)?;
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

/// Waits until the gateway has sent all answers to what was sent on a connection, and the next part of its dump: it handles
/// what comes in order, and so a call that changes nothing is answered after them. A gateway that hangs is not waited for
/// longer than [`SETTLE_MS`].
pub(crate) fn settle(fd: c_int, slot: &Slot) {
    if check_gateway(slot).is_err() {
        return;
    }
    let mut ends = [0; 2];
    // SAFETY: there is room for two descriptors.
    let piped = unsafe { libc::syscall(libc::SYS_pipe2, ends.as_mut_ptr(), libc::O_CLOEXEC) };
    if piped < 0 {
        return;
    }
    let (answers, theirs) = (Fd(ends[0]), Fd(ends[1]));
    let mut calls = Calls::new();
    calls.push(ToDaemon::Hello { protocol: slot.protocol.load(Relaxed) });
    // If there is no room for this, the gateway has not read for long.
    if try_tell(fd, calls.as_bytes(), Some(&theirs), libc::MSG_DONTWAIT).is_err() {
        return;
    }
    drop(theirs);
    let mut wanted = libc::pollfd { fd: answers.0, events: libc::POLLIN, revents: 0 };
    let limit = libc::timespec { tv_sec: SETTLE_MS / 1000, tv_nsec: SETTLE_MS % 1000 * 1_000_000 };
    let (no_mask, none): (*const c_void, c_long) = (std::ptr::null(), 0);
    // SAFETY: one place is given and one is told of. Any outcome ends the wait.
    unsafe { libc::syscall(libc::SYS_ppoll, &raw mut wanted, 1, &raw const limit, no_mask, none) };
}

/// Longest wait for answers that are due, in milliseconds.
const SETTLE_MS: i64 = 5000;

/// A socket's option of `SOL_SOCKET` that is an int, as the kernel has it.
pub(crate) fn option(fd: c_int, name: c_int) -> Option<c_int> {
    let (mut value, mut len): (c_int, socklen_t) = (0, mem::size_of::<c_int>() as socklen_t);
    // SAFETY: there is room for an int.
    let done = unsafe { next::getsockopt(fd, libc::SOL_SOCKET, name, (&raw mut value).cast(), &raw mut len) };
    (done == 0).then_some(value)
}

/// A control message with one descriptor.
#[repr(C)]
pub(crate) struct Rights {
    pub(crate) header: libc::cmsghdr,
    pub(crate) fd: c_int,
}

/// Tells the gateway something, with a descriptor: the place for its answer to the last of it.
///
/// # Errors
/// `ECONNREFUSED` if it is gone.
pub(crate) fn tell(fd: c_int, bytes: &[u8], answer_to: Option<&Fd>) -> Result<(), Errno> {
    loop {
        match try_tell(fd, bytes, answer_to, 0) {
            Err(Errno(libc::EINTR)) => {}
            Err(Errno(libc::EAGAIN)) => wait_for_room(fd),
            told => return told,
        }
    }
}

/// As [`tell`], with flags of `sendmsg(2)`, once.
fn try_tell(fd: c_int, bytes: &[u8], answer_to: Option<&Fd>, flags: c_int) -> Result<(), Errno> {
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
    // SAFETY: all that the message points to lives here.
    let sent = unsafe { libc::syscall(libc::SYS_sendmsg, fd, &raw const message, flags | libc::MSG_NOSIGNAL) };
    checked(sent as c_int).map(|_| ()).map_err(refused)
}

/// Waits until a non-blocking connection takes something.
pub(crate) fn wait_for_room(fd: c_int) {
    let mut wanted = libc::pollfd { fd, events: libc::POLLOUT, revents: 0 };
    let forever: *const c_void = std::ptr::null();
    let none: c_long = 0;
    // SAFETY: one place is given and one is told of. A failure shows at the next attempt to send.
    unsafe { libc::syscall(libc::SYS_ppoll, &raw mut wanted, 1, forever, forever, none) };
}

/// Failure of a call while the gateway is gone, as Linux says that a netlink protocol has no listener.
pub(crate) fn refused(errno: Errno) -> Errno {
    match errno.0 {
        libc::EPIPE | libc::ECONNRESET | libc::ENOTCONN => Errno(libc::ECONNREFUSED),
        _ => errno,
    }
}
