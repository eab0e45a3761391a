//! Reconnection of netlink sockets after a restart of the gateway (docs/decisions/0041).
//!
//! A thread of the program's process, the keeper, has a duplicate of the gateway's end of each connection on which the
//! program waits: otherwise the connection would hang up with the gateway. The keeper hands these ends, with the state
//! in the sockets' slots, to the next gateway, which reports lost data to the programs' sockets. Without a gateway for
//! [`PATIENCE`], the keeper replies to outstanding requests itself, so that the program does not block any longer.
//!
//! The keeper has its own descriptor table. The program's table contains one additional socket, the channel, which
//! carries the gateway's ends to the keeper.

use std::mem::{self, ManuallyDrop};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{AcqRel, Relaxed, Release};
use std::thread;
use std::time::{Duration, Instant};

use libc::{c_int, c_uint, pollfd};
use nlsock::{FromDaemon, ToDaemon, option, protocol};
use sync::{NotStarted, Starter};

use crate::bypass_ports;
use crate::connection::{awaited, connected, send_calls};
use crate::deferred_setup::Calls;
use crate::errno::Errno;
use crate::fd::{Fd, out_of_the_way};
use crate::plain::zeroed;
use crate::switches::{SWITCHES, is_on};
use crate::sys::{self, Rights};
use crate::table::{self, FILE, Outstanding, SentRequest, Slot};

/// Time between attempts to connect to the next gateway.
const RETRY: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Time without a gateway after which outstanding requests fail.
const PATIENCE: Duration = Duration::from_secs(2);

/// Size of the keeper's stack; most of its pages are never touched.
const STACK: usize = 256 << 10;

/// Channel to the keeper, which is started at the first use. The program may have closed the channel's descriptor, like
/// any descriptor that it did not open.
static CHANNEL: Starter = Starter::new();

/// Whether netlink sockets exist that are not kept yet.
static IS_ONE_NEW: AtomicBool = AtomicBool::new(false);

/// Records a new netlink socket.
pub(crate) fn note_new() {
    IS_ONE_NEW.store(true, Release);
}

/// Hands all new netlink sockets to the keeper, before the program blocks. Costs one load if there are none.
#[inline]
pub(crate) fn keep_new() {
    if IS_ONE_NEW.load(Relaxed) && IS_ONE_NEW.swap(false, AcqRel) {
        let is_new = |slot: &Slot| slot.protocol.load(Relaxed) != FILE && !slot.is_kept.load(Relaxed);
        table::live(is_new).for_each(|(fd, slot)| keep(fd, slot));
    }
}

/// Requests that the gateway send its end of a socket's connection to the keeper. Without a keeper, the socket hangs up
/// with the gateway.
pub(crate) fn keep(fd: c_int, slot: &Slot) {
    if slot.is_kept.swap(true, AcqRel) {
        return;
    }
    let Some(channel) = channel() else { return };
    let mut calls = Calls::deferred(slot);
    calls.push(ToDaemon::Keep { name: slot.connection() });
    if send_calls(fd, calls.as_bytes(), Some(&channel)).is_ok() {
        calls.mark_sent(slot);
    }
}

/// Channel to the keeper, which is started on first use.
fn channel() -> Option<ManuallyDrop<Fd>> {
    let started = || match start() {
        Ok(channel) => {
            let inode = table::socket_inode(channel.0).unwrap_or(0);
            Ok((channel.keep(), inode))
        }
        Err(Errno(libc::ECONNREFUSED)) => Err(NotStarted::Yet),
        Err(_) => Err(NotStarted::Ever),
    };
    CHANNEL.get(table::socket_inode, started).map(|fd| ManuallyDrop::new(Fd(fd)))
}

/// Starts a keeper and waits until its descriptor table is separate. Returns the channel.
///
/// # Errors
/// `ECONNREFUSED`: the keeper cannot connect to the gateway, such as after `chroot(2)`; it would take the gateway of
/// connected sockets for gone. `EAGAIN`: no keeper can be started.
fn start() -> Result<Fd, Errno> {
    watch_forks();
    let [own, keepers] = sys::socket_pair(libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC)?;
    let (own, number) = (out_of_the_way(own), keepers.0);
    // The keeper inherits the mask, so that signals are handled by the program's threads.
    let mask = block_signals();
    let thread = thread::Builder::new().name("fatpath".to_owned()).stack_size(STACK);
    let started = thread.spawn(move || run(number));
    let mut is_running = [0];
    if started.is_ok() {
        // A failure leaves zero.
        let _ = sys::read(own.0, &mut is_running);
    }
    sys::pthread_sigmask(libc::SIG_SETMASK, Some(&mask), None);
    match is_running[0] {
        RUNNING => Ok(own),
        WITHOUT_GATEWAY => Err(Errno(libc::ECONNREFUSED)),
        _ => Err(Errno(libc::EAGAIN)),
    }
}

/// Blocks all signals in this thread. Returns the previous mask.
fn block_signals() -> libc::sigset_t {
    let (mut all, mut before) = (zeroed(), zeroed());
    sys::sigfillset(&mut all);
    sys::pthread_sigmask(libc::SIG_BLOCK, Some(&all), Some(&mut before));
    before
}

/// Calls [`forked`] in each child of `fork` from now on.
pub(crate) fn watch_forks() {
    static IS_REGISTERED: AtomicBool = AtomicBool::new(false);
    if !IS_REGISTERED.swap(true, Relaxed) {
        sys::at_fork(forked);
    }
}

/// Handler in a child of `fork`, which has the sockets but no keeper: one is started when the child blocks. Nor does the
/// gateway know the child's capabilities yet.
extern "C" fn forked() {
    drop(CHANNEL.take(table::socket_inode).map(Fd));
    for slot in table::all() {
        slot.is_kept.store(false, Relaxed);
        slot.is_gone.store(false, Relaxed);
        slot.is_claim_due.store(true, Relaxed);
    }
    note_new();
}

/// Main loop of the keeper. `number` is the descriptor of the keeper's end of the channel.
fn run(number: c_int) {
    // The working and root directories become the keeper's own, too, so that a `chroot` of the program does not change
    // them.
    let is_alone = sys::separate_thread()
        && sys::close_range(number as c_uint + 1, c_uint::MAX)
        && (number == 0 || sys::close_range(0, number as c_uint - 1));
    let lifeline = if is_alone { connected(libc::SOCK_CLOEXEC).ok().filter(is_served) } else { None };
    let outcome = match (is_alone, &lifeline) {
        (false, _) => 0,
        (true, None) => WITHOUT_GATEWAY,
        (true, Some(_)) => RUNNING,
    };
    // The program's thread waits for it.
    let _ = sys::write(number, &[outcome]);
    if outcome == RUNNING {
        Keeper { channel: Some(Fd(number)), lifeline, gone_since: None, kept: Vec::new() }.run();
    }
}

/// Bytes by which a keeper reports its start.
const RUNNING: u8 = 1;
const WITHOUT_GATEWAY: u8 = 2;

/// Waits until the gateway serves a new connection. Returns false if it does not.
fn is_served(connection: &Fd) -> bool {
    let mut calls = Calls::new();
    calls.push(ToDaemon::Hello { protocol: nlsock::protocol::ROUTE });
    awaited(connection.0, calls.as_bytes(), || ()).is_ok()
}

/// Gateway's end of a connection.
struct Kept {
    end: Fd,
    /// The socket's [`Slot::connection`].
    connection: u64,
    /// Number of datagrams that the program had sent when outstanding requests last [failed](Self::fail_requests).
    failed: Option<u32>,
}

impl Kept {
    /// Slot of the socket; `None`: the program has closed the socket in this process.
    fn slot(&self) -> Option<&'static Slot> {
        table::by_connection(self.connection)
    }

    /// Discards data that the gateway has not received, so that calls that wait for an answer fail.
    fn drain(&self) {
        // No datagram is empty.
        while sys::receive(self.end.0, &mut [0], libc::MSG_DONTWAIT).is_ok_and(|len| len > 0) {}
    }

    /// Replies to outstanding requests with `ECONNREFUSED`, or reports lost replies (`ENOBUFS`) if it is unknown which
    /// ones are outstanding. Without effect while the program has something to receive, as that may be the reply.
    fn fail_requests(&mut self) {
        let Some(slot) = self.slot() else { return };
        let Some((outstanding, requests)) = slot.outstanding().filter(|&(_, sent)| self.failed != Some(sent)) else {
            return;
        };
        if has_unreceived(self.end.0) {
            return;
        }
        let mut datagram = Vec::new();
        match outstanding {
            Outstanding::Reply(request) => {
                datagram.extend(FromDaemon::Answer { prompt: false, last: true }.to_word());
                datagram.extend(refusal(request, slot.port.load(Relaxed)));
            }
            Outstanding::Others => datagram.extend(FromDaemon::Overrun.to_word()),
        }
        // A failure is tried again.
        if sys::send(self.end.0, &datagram, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL).is_ok_and(|sent| sent > 0) {
            self.failed = Some(requests);
        }
    }
}

/// Tells whether the other end of a connection has not received all datagrams yet (unix(7), `SIOCOUTQ`).
fn has_unreceived(end: c_int) -> bool {
    sys::unreceived(end) != Ok(0)
}

/// Message `NLMSG_ERROR` with `ECONNREFUSED`, in reply to a request of `port`. It has the request's header alone
/// (Linux `netlink_ack`, `NLM_F_CAPPED`).
fn refusal(request: SentRequest, port: u32) -> Vec<u8> {
    let SentRequest { kind, flags, seq } = request;
    let header = |len: usize, kind: u16, flags: u16| {
        let words = [len as u32, seq, port].map(u32::to_ne_bytes);
        [&words[0][..], &kind.to_ne_bytes(), &flags.to_ne_bytes(), &words[1], &words[2]].concat()
    };
    let len = 2 * SentRequest::HEADER + mem::size_of::<c_int>();
    [
        header(len, libc::NLMSG_ERROR as u16, libc::NLM_F_CAPPED as u16),
        (-libc::ECONNREFUSED).to_ne_bytes().to_vec(),
        header(SentRequest::HEADER, kind, flags),
    ]
    .concat()
}

/// Thread that keeps the gateway's ends of the program's connections.
struct Keeper {
    /// Channel; `None`: the program has closed its end.
    channel: Option<Fd>,
    /// Connection of the keeper itself, which hangs up with the gateway; `None` while no gateway runs.
    lifeline: Option<Fd>,
    /// Time since which no gateway listens.
    gone_since: Option<Instant>,
    kept: Vec<Kept>,
}

impl Keeper {
    fn run(mut self) {
        while self.channel.is_some() || !self.kept.is_empty() {
            let looked = self.wait();
            let mut ready = looked.iter().map(|looked| looked.revents != 0);
            let (news, gone) = (ready.next() == Some(true), ready.next() == Some(true));
            // A connection has hung up when all processes have closed their end.
            self.kept.retain(|_| ready.next() != Some(true));
            if news {
                self.take();
            }
            if gone {
                self.lifeline = None;
                self.mark_gone();
            }
            if self.lifeline.is_none() {
                self.reconnect();
            }
            if self.gone_since.is_some_and(|since| since.elapsed() >= PATIENCE) {
                self.kept.iter_mut().for_each(Kept::fail_requests);
            }
        }
    }

    /// Waits for an event, or until the next connection attempt.
    fn wait(&self) -> Vec<pollfd> {
        let number = |fd: &Option<Fd>| fd.as_ref().map_or(-1, |fd| fd.0);
        let channel = pollfd { fd: number(&self.channel), events: libc::POLLIN, revents: 0 };
        let hangup = |fd| pollfd { fd, events: 0, revents: 0 };
        let kept = self.kept.iter().map(|kept| hangup(kept.end.0));
        let mut looked: Vec<pollfd> = [channel, hangup(number(&self.lifeline))].into_iter().chain(kept).collect();
        // A failure counts as no event.
        let _ = sys::poll(&mut looked, if self.lifeline.is_some() { None } else { Some(RETRY) });
        looked
    }

    /// Marks the sockets as without a gateway.
    fn mark_gone(&self) {
        self.kept.iter().filter_map(Kept::slot).for_each(|slot| slot.is_gone.store(true, Release));
    }

    /// Hands the sockets to the next gateway, if it runs.
    fn reconnect(&mut self) {
        let lifeline = match connected(libc::SOCK_CLOEXEC) {
            Ok(lifeline) => lifeline,
            Err(errno) => {
                // Another process's keeper may have handed the sockets to a gateway that is gone, too.
                self.mark_gone();
                self.kept.iter().for_each(Kept::drain);
                if errno == Errno(libc::ECONNREFUSED) {
                    self.gone_since.get_or_insert_with(Instant::now);
                }
                return;
            }
        };
        self.gone_since = None;
        // A gateway that is shutting down still listens for a moment, and one with too many clients does not serve the
        // connection.
        if !is_served(&lifeline) {
            return;
        }
        for kept in &self.kept {
            let Some(slot) = kept.slot() else { continue };
            // Another process's keeper may have handed the socket over, with the privilege of that process alone.
            slot.is_claim_due.store(true, Release);
            // The program may send as soon as the loss is reported: its data follows the call.
            slot.is_gone.store(false, Release);
            if send_calls(lifeline.0, &adopt(slot), Some(&kept.end)).is_err() {
                self.mark_gone();
                return;
            }
        }
        self.lifeline = Some(lifeline);
    }

    /// Receives new ends from the channel.
    fn take(&mut self) {
        while let Some(fd) = self.channel.as_ref() {
            match receive(fd.0) {
                Ok(kept) => self.kept.extend(kept),
                Err(Errno(libc::EAGAIN)) => return,
                Err(_) => self.channel = None,
            }
        }
    }
}

/// Call with which the gateway adopts a socket, with the socket's state.
fn adopt(slot: &Slot) -> Vec<u8> {
    let mut bytes = ToDaemon::Adopt { lost: slot.expects_something(), state: &[] }.head().as_bytes().to_vec();
    let some = |word: u32| Some(word).filter(|&word| word != 0);
    let hello = ToDaemon::Hello { protocol: slot.protocol.load(Relaxed) };
    let room = some(slot.room.load(Relaxed)).map(ToDaemon::RecvRoom);
    let len = some(slot.recv_len.load(Relaxed)).map(ToDaemon::RecvLen);
    let port = some(slot.port.load(Relaxed)).map(ToDaemon::Port);
    let switches = SWITCHES.into_iter().filter(|&option| is_on(slot, option));
    let switches = switches.map(|option| ToDaemon::SetOption { option, value: 1 });
    let groups = (1..).zip(slot.groups.iter()).flat_map(|(word, bits)| {
        let bits = bits.load(Relaxed);
        (0..u32::BITS).filter(move |bit| bits >> bit & 1 != 0).map(move |bit| (word - 1) * u32::BITS + bit + 1)
    });
    let groups = groups.map(|group| ToDaemon::SetOption { option: option::ADD_MEMBERSHIP, value: group });
    let is_of_xfrm = slot.protocol.load(Relaxed) == protocol::XFRM;
    let bypass = bypass_ports::all().map(ToDaemon::Bypass).filter(|_| is_of_xfrm);
    for call in [Some(hello), room, len, port].into_iter().flatten().chain(switches).chain(groups).chain(bypass) {
        bytes.extend_from_slice(call.head().as_bytes());
    }
    bytes
}

/// Receives the gateway's end of a connection from the channel. `None`: unexpected data.
///
/// # Errors
/// `EAGAIN`: the channel is empty; `EPIPE`: the channel is closed.
fn receive(channel: c_int) -> Result<Option<Kept>, Errno> {
    let mut connection = [0; mem::size_of::<u64>()];
    let mut rights = [Rights::NONE];
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    if sys::receive_message(channel, &mut connection, &mut rights, flags)? == 0 {
        return Err(Errno(libc::EPIPE));
    }
    let [rights] = rights;
    let connection = u64::from_ne_bytes(connection);
    Ok(rights.received().map(|end| Kept { end, connection, failed: None }))
}
