//! A connection that the program is done with, for the next socket that it makes.
//!
//! `ip` makes a socket for each line of a batch about SAs. To connect and to hang up wakes the gateway twice, and costs
//! more than what the line asks for. So the last connection that was closed stays, and becomes the next socket.
//!
//! Nobody can tell, because only such connections stay as nobody else can hold and nothing is left of: closed by this
//! process, before any duplicate, fork or message could give it to others ([`given_away`]), not known to `epoll`, with
//! nothing of its kernel's socket changed but the sizes of its buffers, and all answered that was asked. Who calls the
//! kernel without the C library to share a connection is not seen, as everywhere in this library.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64};

use libc::{c_int, c_long, c_void};

use crate::errno::{Errno, checked};
use crate::session::Fd;
use crate::table::{self, Slot};

/// Where a spare connection lies, out of the way of those that the program has.
const FROM: c_int = 200;

/// In place of its descriptor: there is none, or a thread is just putting it there or taking it.
const NONE: c_int = -1;
const BUSY: c_int = -2;

static FD: AtomicI32 = AtomicI32::new(NONE);
/// What is known of it: its inode number, the user who connected, its age, how often it was a socket.
static INODE: AtomicU64 = AtomicU64::new(0);
static USER: AtomicU32 = AtomicU32::new(0);
static AGE: AtomicU32 = AtomicU32::new(0);
static USES: AtomicU32 = AtomicU32::new(0);

/// The process whose it is: children of `vfork` see this memory, other children a copy of it.
static OWNER: AtomicI32 = AtomicI32::new(0);

/// How often descriptors may have got to another process.
static GIVEN_AWAY: AtomicU32 = AtomicU32::new(0);

/// Has `fork` be seen.
pub(crate) fn start() {
    OWNER.store(own_process(), Relaxed);
    // SAFETY: both handlers call what may be called there. Without them, which takes memory, nothing is kept.
    if unsafe { libc::pthread_atfork(None, Some(given_away), Some(forked)) } != 0 {
        OWNER.store(0, Relaxed);
    }
}

/// Has no connection that is in use now be kept: another process may have it.
pub(crate) extern "C" fn given_away() {
    GIVEN_AWAY.fetch_add(1, Relaxed);
}

/// In a child of `fork`, whose parent has all its connections.
extern "C" fn forked() {
    given_away();
    let spare = FD.swap(NONE, AcqRel);
    if spare >= 0 && table::socket_inode(spare) == Some(INODE.load(Relaxed)) {
        drop(Fd(spare));
    }
    OWNER.store(own_process(), Relaxed);
}

/// What tells connections that were made before descriptors got away from those made later.
pub(crate) fn age() -> u32 {
    GIVEN_AWAY.load(Relaxed)
}

fn own_process() -> c_int {
    // SAFETY: it takes nothing.
    unsafe { libc::getpid() }
}

fn own_user() -> u32 {
    // SAFETY: it takes nothing.
    unsafe { libc::geteuid() }
}

/// Keeps the connection that `fd` is, which its program is about to close, if nobody can tell.
pub(crate) fn keep(fd: c_int) {
    let Some(slot) = table::get(fd).filter(|slot| slot.is_as_new() && slot.age.load(Relaxed) == age()) else { return };
    if OWNER.load(Relaxed) != own_process() || FD.compare_exchange(NONE, BUSY, AcqRel, Relaxed).is_err() {
        return;
    }
    let inode = slot.inode();
    INODE.store(inode, Relaxed);
    USER.store(slot.user.load(Relaxed), Relaxed);
    AGE.store(slot.age.load(Relaxed), Relaxed);
    USES.store(slot.uses.load(Relaxed), Relaxed);
    // SAFETY: it takes no pointers. Where there is no room, none is kept.
    let spare = unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_DUPFD_CLOEXEC, FROM) } as c_int;
    if spare >= 0 {
        table::forget(slot, inode);
    }
    FD.store(spare.max(NONE), Release);
}

/// A connection for a new socket, and how often it was one; with `FD_CLOEXEC`, if that is among the `flags` of
/// `socket(2)`.
pub(crate) fn take(flags: c_int) -> Option<(Fd, u32)> {
    let spare = FD.load(Acquire);
    if spare < 0 || OWNER.load(Relaxed) != own_process() || FD.compare_exchange(spare, BUSY, AcqRel, Relaxed).is_err() {
        return None;
    }
    let (inode, uses) = (INODE.load(Relaxed), USES.load(Relaxed));
    // The gateway looked at who connected.
    let is_own = USER.load(Relaxed) == own_user() && AGE.load(Relaxed) == age();
    FD.store(NONE, Release);
    // A program that closes whatever is open may have something else there by now.
    let spare = (table::socket_inode(spare) == Some(inode)).then_some(Fd(spare))?;
    let command = if flags & libc::SOCK_CLOEXEC != 0 { libc::F_DUPFD_CLOEXEC } else { libc::F_DUPFD };
    // SAFETY: it takes no pointers.
    let fd = unsafe { libc::syscall(libc::SYS_fcntl, spare.0, command, 0) };
    let fd = Fd(checked(fd as c_int).ok()?);
    (is_own && is_quiet(&fd)).then_some((fd, uses + 1))
}

/// Whether the gateway is there and has said nothing.
fn is_quiet(fd: &Fd) -> bool {
    let (nothing, none): (*mut c_void, c_long) = (std::ptr::null_mut(), 0);
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    // SAFETY: no byte is written.
    let found = unsafe { libc::syscall(libc::SYS_recvfrom, fd.0, nothing, none, flags, nothing, nothing) };
    found < 0 && Errno::last() == Errno(libc::EAGAIN)
}

/// Notes of a new connection what [`keep`] will want to know.
pub(crate) fn note(slot: &Slot, uses: u32) {
    slot.age.store(age(), Relaxed);
    slot.user.store(own_user(), Relaxed);
    slot.uses.store(uses, Relaxed);
}
