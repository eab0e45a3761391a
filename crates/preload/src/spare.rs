//! A connection that the program is done with, for the next socket that it makes.
//!
//! `ip` makes a socket for each line of a batch about SAs. To connect and to hang up wakes the gateway twice, and costs
//! more than what the line asks for. So a connection that is closed stays, one at a time, and becomes the next socket.
//!
//! It stays if nobody else can hold it and nothing of it is left: closed by the process that made it, before any
//! duplicate, fork or message could give it to others ([`given_away`]), with nobody waiting for it and not known to
//! `epoll`, with nothing of its kernel's socket changed but the sizes of its buffers, in no group, bound to no port that
//! was asked for, and all answered that was asked. And only if it is the superuser's: others have few places at the
//! gateway. What is done without the C library to share a connection is not seen, as everywhere in this library.

use std::sync::atomic::Ordering::{AcqRel, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64};

use libc::{c_int, c_long, c_void};

use crate::errno::{Errno, checked};
use crate::next;
use crate::session::{self, Fd};
use crate::table::{self, Slot};

/// Where a spare connection lies, out of the way of those that the program has. With a lower limit there is none.
const FROM: c_int = 1000;

/// In place of its descriptor: there is none, or a thread is just putting it there or taking it.
const NONE: c_int = -1;
const BUSY: c_int = -2;

static FD: AtomicI32 = AtomicI32::new(NONE);
/// What is known of it: its inode number, its age, and how often it was a socket.
static INODE: AtomicU64 = AtomicU64::new(0);
static AGE: AtomicU32 = AtomicU32::new(0);
static USES: AtomicU32 = AtomicU32::new(0);

/// The process whose it is: children of `vfork` see this memory, other children a copy of it.
static OWNER: AtomicI32 = AtomicI32::new(0);

/// How often descriptors may have got to another process.
static GIVEN_AWAY: AtomicU32 = AtomicU32::new(0);

/// Has `fork` be seen.
pub(crate) fn start() {
    OWNER.store(own_process(), Relaxed);
    // SAFETY: the handlers call what may be called there. Without them, which takes memory, nothing is kept.
    if unsafe { libc::pthread_atfork(Some(given_away), Some(given_away), Some(forked)) } != 0 {
        OWNER.store(0, Relaxed);
    }
}

/// Has no connection that is in use now be kept: another process may have it, or this one becomes another.
pub(crate) extern "C" fn given_away() {
    GIVEN_AWAY.fetch_add(1, SeqCst);
}

/// In a child of `fork`, whose parent has all its connections.
extern "C" fn forked() {
    given_away();
    drop(found(FD.swap(NONE, AcqRel), INODE.load(Relaxed)));
    OWNER.store(own_process(), Relaxed);
}

/// The spare connection, if it is still there: a program that closes whatever is open may have something else there.
fn found(spare: c_int, inode: u64) -> Option<Fd> {
    (spare >= 0 && table::socket_inode(spare) == Some(inode)).then(|| Fd(spare))
}

/// Hangs up the spare connection.
pub(crate) fn let_go() {
    let errno = Errno::last();
    drop(take_it().and_then(|spare| found(spare.fd, spare.inode)));
    errno.set();
}

/// What tells connections that were made before descriptors got away from those made later.
pub(crate) fn age() -> u32 {
    GIVEN_AWAY.load(SeqCst)
}

fn own_process() -> c_int {
    // SAFETY: it takes nothing.
    unsafe { libc::getpid() }
}

/// Whether the process is the superuser's. Who connected was so, too, if nothing got away since ([`given_away`]).
fn is_superuser() -> bool {
    // SAFETY: it takes nothing.
    unsafe { libc::geteuid() == 0 }
}

/// Keeps the connection that `fd` is, which its program is about to close, if that is so as the module says. True: it is
/// kept, and `fd` is no socket of the program's any more.
pub(crate) fn keep(fd: c_int) -> bool {
    let errno = Errno::last();
    let kept = table::get(fd).is_some_and(|slot| slot.is_as_new() && keep_as_spare(fd, slot));
    errno.set();
    kept
}

fn keep_as_spare(fd: c_int, slot: &Slot) -> bool {
    let made = slot.age.load(Relaxed);
    let is_own = made == age() && is_superuser() && OWNER.load(Relaxed) == own_process();
    if !is_own || FD.compare_exchange(NONE, BUSY, AcqRel, Relaxed).is_err() {
        return false;
    }
    let connection = slot.connection();
    INODE.store(slot.inode(), Relaxed);
    AGE.store(made, Relaxed);
    USES.store(slot.uses.load(Relaxed), Relaxed);
    // SAFETY: it takes no pointers.
    let spare = unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_DUPFD_CLOEXEC, FROM) } as c_int;
    if spare >= 0 {
        table::forget(slot, connection);
    }
    FD.store(spare.max(NONE), SeqCst);
    // Of this and what a thread does that becomes somebody else, the other's first step is seen by one at least.
    if made != age() {
        let_go();
    }
    spare >= 0
}

/// A spare connection, and what is known of it. Its descriptor may be something else by now.
#[derive(Debug)]
struct Spare {
    fd: c_int,
    inode: u64,
    age: u32,
    uses: u32,
}

fn take_it() -> Option<Spare> {
    let spare = FD.load(SeqCst);
    if spare < 0 || OWNER.load(Relaxed) != own_process() || FD.compare_exchange(spare, BUSY, AcqRel, Relaxed).is_err() {
        return None;
    }
    let (inode, [age, uses]) = (INODE.load(Relaxed), [&AGE, &USES].map(|word| word.load(Relaxed)));
    FD.store(NONE, Release);
    Some(Spare { fd: spare, inode, age, uses })
}

/// A connection for a new socket, and how often it was one; with `FD_CLOEXEC`, if that is among the `flags` of
/// `socket(2)`.
pub(crate) fn take(flags: c_int) -> Option<(Fd, u32)> {
    if FD.load(Relaxed) == NONE {
        return None;
    }
    let errno = Errno::last();
    // To duplicate and to close what is something else by now would let go of that one's locks.
    let is_there = |spare: &Spare| table::socket_inode(spare.fd) == Some(spare.inode);
    let taken = take_it().filter(is_there).and_then(|spare| {
        let command = if flags & libc::SOCK_CLOEXEC != 0 { libc::F_DUPFD_CLOEXEC } else { libc::F_DUPFD };
        // SAFETY: it takes no pointers.
        let fd = unsafe { libc::syscall(libc::SYS_fcntl, spare.fd, command, 0) };
        let fd = checked(fd as c_int).map(Fd);
        // Whatever is asked of it from here on is asked of what was found to be it.
        let is_it = fd.as_ref().is_ok_and(|fd| table::socket_inode(fd.0) == Some(spare.inode));
        drop(if is_it { Some(Fd(spare.fd)) } else { found(spare.fd, spare.inode) });
        let is_own = is_it && spare.age == age() && is_superuser();
        fd.ok().filter(|fd| is_own && is_quiet(fd) && reset_sizes(fd)).map(|fd| (fd, spare.uses + 1))
    });
    errno.set();
    taken
}

/// The sizes of a new connection's buffers; 0 before there was one.
static USUAL: [AtomicI32; 2] = [const { AtomicI32::new(0) }; 2];
const SIZES: [c_int; 2] = [libc::SO_RCVBUF, libc::SO_SNDBUF];

/// Gives a connection's buffers the sizes that new ones have. False: the kernel does not let it.
fn reset_sizes(fd: &Fd) -> bool {
    SIZES.iter().zip(&USUAL).all(|(&size, usual)| {
        // The kernel doubles what it is told.
        let half = usual.load(Relaxed) / 2;
        let len = std::mem::size_of::<c_int>() as libc::socklen_t;
        // SAFETY: the value is an int.
        let set = unsafe { next::setsockopt(fd.0, libc::SOL_SOCKET, size, (&raw const half).cast(), len) };
        half != 0 && set == 0 && session::option(fd.0, size) == Some(2 * half)
    })
}

/// Whether the gateway is there and has said nothing.
fn is_quiet(fd: &Fd) -> bool {
    let (nothing, none): (*mut c_void, c_long) = (std::ptr::null_mut(), 0);
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    // SAFETY: no byte is written.
    let found = unsafe { libc::syscall(libc::SYS_recvfrom, fd.0, nothing, none, flags, nothing, nothing) };
    found < 0 && Errno::last() == Errno(libc::EAGAIN)
}

/// Notes the sizes of a new connection's buffers; `uses`: how often it was a socket.
pub(crate) fn note_usual(fd: c_int, uses: u32) {
    if uses == 0 && USUAL.iter().any(|usual| usual.load(Relaxed) == 0) {
        for (size, usual) in SIZES.into_iter().zip(&USUAL) {
            usual.store(session::option(fd, size).unwrap_or(0), Relaxed);
        }
    }
}
