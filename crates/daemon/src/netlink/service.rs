//! The thread that serves netlink's clients.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use client::CliError;
use link::Discard;
use netlink::{Groups, Outbox, To};
use nlsock::{BusyPoll, MAX_DATA, MAX_HEAD, ToDaemon, protocol};
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::SocketFlags;
use rustix::process::{Resource, getrlimit};
use zeroize::{Zeroize, Zeroizing};

use super::client::{Client, Gone, Received, inode_of_socket};
use super::idle::IdleDetector;
use super::protocols::Shared;
use crate::acceptor::{Accepted, Acceptor};
use crate::command::{Handle, same};
use crate::event_queue::{EventQueue, KernelEvent};
use crate::files;
use crate::notifications;
use crate::privilege::{Peer, Privilege};
use crate::threads::{Pulse, Threads};

/// Limits of clients at a time. A connection above a limit is closed at once.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Limits {
    /// All clients.
    clients: usize,
    /// Read-only clients.
    readers: usize,
    /// Read-only clients of one user.
    of_reader: usize,
}

impl Limits {
    const MOST: Self = Self { clients: 1024, readers: 512, of_reader: 64 };

    /// Limits for a process with that many descriptors. Links, files and other sockets need descriptors as well.
    fn of(descriptors: u64) -> Self {
        let Self { clients, readers, of_reader } = Self::MOST;
        let share = |parts: u64| usize::try_from(descriptors / parts).unwrap_or(usize::MAX);
        Self { clients: clients.min(share(2)), readers: readers.min(share(4)), of_reader: of_reader.min(share(8)) }
    }
}

/// The token of the listening socket.
const LISTENER: u64 = 0;
/// The token of the worker's event queue.
const EVENTS: u64 = 1;
/// The token of the epoll set of read-only clients. Clients' tokens follow it.
const READERS: u64 = 2;

/// Listening socket. Drop removes its file.
#[derive(Debug)]
pub(crate) struct NetlinkServer {
    path: PathBuf,
    listener: OwnedFd,
    /// Socket of the gateway before, for the thread.
    taken: Taken,
    queue: Arc<EventQueue>,
    /// Whether the next gateway has the socket.
    is_left: bool,
}

/// Listening socket that the thread is to take.
type Taken = Arc<Mutex<Option<OwnedFd>>>;

impl Drop for NetlinkServer {
    fn drop(&mut self) {
        if self.is_left {
            return;
        }
        if let Err(err) = files::remove(&self.path) {
            tracing::warn!("{}: {err}", self.path.display());
        }
    }
}

impl NetlinkServer {
    /// Listens at `path`, where every user may connect: clients without privileges may read. Serves clients in the
    /// background.
    ///
    /// # Errors
    /// The socket or a descriptor cannot be made.
    pub(crate) fn start(
        path: &Path,
        shared: Shared,
        worker: &Handle,
        discard: &Discard,
        threads: &Threads,
    ) -> Result<Self, CliError> {
        let failed = |what: &str, err: io::Error| CliError::failed(format!("{}: {what}: {err}", path.display()));
        let listener = listen(path).map_err(|err| failed("bind", err))?;
        let own = listener.try_clone().map_err(|err| failed("dup", err))?;
        let service = Service::new(listener, shared, worker, discard.clone());
        let service = service.map_err(|err| failed("epoll", err.into()))?;
        let queue = Arc::clone(&service.queue);
        let (path_of, taken, events) = (path.to_owned(), Arc::clone(&service.taken), Arc::clone(&queue));
        let server = Self { path: path_of, listener: own, taken, queue: events, is_left: false };
        let pulse = threads.watch("netlink", move |_| queue.wake());
        threads.spawn("netlink", move || service.run(&pulse)).map_err(|err| failed("cannot start a thread", err))?;
        Ok(server)
    }
}

impl NetlinkServer {
    /// Moves the socket to `path`.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn move_to(&mut self, path: &Path) -> Result<(), CliError> {
        files::rename(&self.path, path).map_err(|err| CliError::failed(format!("{}: {err}", path.display())))?;
        path.clone_into(&mut self.path);
        Ok(())
    }

    /// Serves the clients of a socket of the gateway before, which is bound to `path`, in place of this one.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn take(&mut self, listener: OwnedFd, path: &Path) -> Result<(), CliError> {
        let failed = |err: io::Error| CliError::failed(format!("{}: {err}", path.display()));
        let own = listener.try_clone().map_err(failed)?;
        files::remove(&self.path).map_err(failed)?;
        path.clone_into(&mut self.path);
        self.listener = own;
        *self.taken.lock().unwrap_or_else(PoisonError::into_inner) = Some(listener);
        self.queue.wake();
        Ok(())
    }

    /// Duplicate of the socket, for the next gateway.
    ///
    /// # Errors
    /// Error of fcntl(2).
    pub(crate) fn listener(&self) -> io::Result<OwnedFd> {
        self.listener.try_clone()
    }

    /// Leaves the socket to the next gateway.
    pub(crate) fn leave(mut self) {
        self.is_left = true;
    }
}

/// Starts the thread that closes descriptors of clients. It must start before any link is opened: its copy of the
/// descriptor table would keep links open until the copy is closed.
pub(crate) fn start_discard(threads: &Threads) -> Result<Discard, CliError> {
    let (discard, thread) = link::discard();
    threads.spawn("discard", move || thread.run()).map_err(|err| CliError::system("start a thread", &err))?;
    Ok(discard)
}

fn listen(path: &Path) -> io::Result<OwnedFd> {
    let socket = files::listen(path, files::SocketRole::Netlink)?;
    rustix::io::ioctl_fionbio(&socket, true)?;
    Ok(socket)
}

/// State of netlink's thread.
struct Service {
    epoll: Arc<OwnedFd>,
    /// The epoll set of the read-only clients, which is itself in `epoll`.
    readers: Arc<OwnedFd>,
    acceptor: Acceptor,
    limits: Limits,
    shared: Shared,
    clients: HashMap<u64, Client>,
    discard: Discard,
    last_token: u64,
    outbox: Outbox,
    buffer: Vec<u8>,
    worker: Handle,
    /// Event queue of the worker, and the groups of `NETLINK_XFRM` and of rtnetlink with members.
    queue: Arc<EventQueue>,
    groups: [Groups; 2],
    /// UDP ports that bypass policies.
    bypass: BTreeSet<u16>,
    /// Busy-polls for the next request of the client that was answered last, if the answer announced it.
    busy_poll: BusyPoll,
    idle: IdleDetector,
    prompt: bool,
    /// Listening socket that replaces the acceptor's.
    taken: Taken,
    /// Whether the present requests have come within a busy poll: their client has more of them.
    is_burst: bool,
    /// Whether the host side waits for the end of a burst.
    host_side_waits: bool,
}

impl Service {
    fn new(listener: OwnedFd, shared: Shared, worker: &Handle, discard: Discard) -> Result<Self, Errno> {
        let [epoll, readers] = [(); 2].map(|()| epoll::create(epoll::CreateFlags::CLOEXEC));
        let (epoll, readers) = (Arc::new(epoll?), Arc::new(readers?));
        let acceptor = Acceptor::new(listener, "netlink");
        epoll::add(&epoll, &acceptor, EventData::new_u64(LISTENER), EventFlags::IN)?;
        epoll::add(&epoll, &readers, EventData::new_u64(READERS), EventFlags::IN)?;
        // One byte more than the largest datagram, so that a longer one is detected.
        let buffer = vec![0; MAX_HEAD + MAX_DATA + 1];
        let (clients, outbox) = (HashMap::new(), Outbox::default());
        let limits = Limits::of(getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX));
        let queue = Arc::new(EventQueue::new()?);
        epoll::add(&epoll, queue.fd(), EventData::new_u64(EVENTS), EventFlags::IN)?;
        let (worker, groups) = (worker.clone(), Default::default());
        let (busy_poll, idle, prompt, last_token) = (BusyPoll::new(), IdleDetector::default(), false, READERS);
        Ok(Self {
            epoll,
            readers,
            acceptor,
            limits,
            shared,
            clients,
            discard,
            last_token,
            outbox,
            buffer,
            worker,
            queue,
            groups,
            bypass: BTreeSet::new(),
            busy_poll,
            idle,
            prompt,
            taken: Taken::default(),
            is_burst: false,
            host_side_waits: false,
        })
    }

    fn run(mut self, pulse: &Pulse) -> Result<(), Errno> {
        loop {
            self.turn()?;
            pulse.answer();
        }
    }

    /// Waits for ready clients, and serves all that may change the node, then one read-only client.
    fn turn(&mut self) -> Result<(), Errno> {
        let mut is_reader_ready = false;
        for event in self.wait()? {
            match event.data.u64() {
                LISTENER => self.accept(),
                EVENTS => {
                    self.take_listener()?;
                    self.notify_clients();
                }
                READERS => is_reader_ready = true,
                token => self.serve(token, event.flags),
            }
        }
        if is_reader_ready {
            self.serve_reader()?;
        }
        self.expire();
        Ok(())
    }

    /// Accepts clients of the socket that the gateway before has passed, from then on.
    fn take_listener(&mut self) -> Result<(), Errno> {
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(listener) = taken {
            let acceptor = Acceptor::new(listener, "netlink");
            epoll::add(&self.epoll, &acceptor, EventData::new_u64(LISTENER), EventFlags::IN)?;
            // The close of the former socket removes it from epoll.
            self.acceptor = acceptor;
        }
        Ok(())
    }

    /// Serves one of the read-only clients, in round robin: epoll moves each reported client behind the others.
    fn serve_reader(&mut self) -> Result<(), Errno> {
        let (mut room, now) = ([const { MaybeUninit::uninit() }; 1], Timespec::default());
        match epoll::wait(&self.readers, &mut room[..], Some(&now)) {
            Ok((found, _)) => {
                let found = found.first().map(|event| (event.data.u64(), event.flags));
                if let Some((token, flags)) = found {
                    self.serve(token, flags);
                }
                Ok(())
            }
            Err(Errno::INTR) => Ok(()),
            Err(err) => Err(err),
        }
    }

    /// Waits for a request of a client, or an event of the worker.
    fn wait(&mut self) -> Result<Vec<epoll::Event>, Errno> {
        let (mut room, now) = ([const { MaybeUninit::uninit() }; 64], Timespec::default());
        let mut found = |limit| match epoll::wait(&self.epoll, &mut room[..], limit) {
            Ok((found, _)) => Ok(found.to_vec()),
            Err(Errno::INTR) => Ok(Vec::new()),
            Err(err) => Err(err),
        };
        if std::mem::take(&mut self.prompt) {
            let soon = self.busy_poll.poll(|| found(Some(&now)).ok().filter(|found| !found.is_empty()));
            if let Some(soon) = soon {
                self.is_burst = true;
                return Ok(soon);
            }
        }
        self.is_burst = false;
        if std::mem::take(&mut self.host_side_waits) {
            self.shared.lock().follow_host_side();
        }
        let end = self.shared.lock().rtnl.until_expiry();
        found(end.map(|end| Timespec { tv_sec: end.as_secs() as i64, tv_nsec: end.subsec_nanos().into() }).as_ref())
    }

    /// Removes addresses whose lifetime has ended, and sends the notifications.
    fn expire(&mut self) {
        let listeners = self.listeners(protocol::ROUTE);
        self.outbox.clear();
        let mut protocols = self.shared.lock();
        if protocols.rtnl.until_expiry().is_none_or(|left| !left.is_zero()) {
            return;
        }
        protocols.rtnl.expire(listeners, &mut self.outbox);
        protocols.follow_host_side();
        drop(protocols);
        self.broadcast(protocol::ROUTE, None);
    }

    fn accept(&mut self) {
        let accepted = match self.acceptor.accept(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(None) => return,
            Ok(Some(accepted)) => self.admit(accepted),
            Err(err) => Err(err),
        };
        if let Err(err) = accepted {
            tracing::debug!("netlink: accept: {err}");
            // A connection that cannot be accepted stays ready, so the thread would spin without a pause.
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Adds a client that has connected, if the limits allow it.
    fn admit(&mut self, accepted: Accepted) -> Result<(), Errno> {
        let Accepted { fd, is_reserved } = accepted;
        let judge = || Peer::of(&fd).and_then(|peer| Ok((peer.privilege()?, peer)));
        let (privilege, peer) = match judge() {
            Err(Errno::MFILE | Errno::NFILE) => {
                self.acceptor.make_room();
                let judged = judge();
                self.acceptor.refill();
                judged?
            }
            judged => judged?,
        };
        let client = self.client(fd, peer, privilege)?;
        if (is_reserved && !client.privileged) || !self.has_room_for(&client) {
            tracing::debug!(uid = client.uid, "netlink: too many clients");
            return Ok(());
        }
        self.add(client).map(drop)
    }

    /// A client that has connected.
    fn client(&self, fd: OwnedFd, peer: Peer, privilege: Privilege) -> Result<Client, Errno> {
        let epoll = if privilege == Privilege::Full { &self.epoll } else { &self.readers };
        Client::new(fd, peer, privilege, &self.discard, epoll)
    }

    /// Adds a client, and returns its token.
    fn add(&mut self, client: Client) -> Result<u64, Errno> {
        self.last_token += 1;
        epoll::add(&client.epoll, client.fd(), EventData::new_u64(self.last_token), EventFlags::IN)?;
        self.clients.insert(self.last_token, client);
        Ok(self.last_token)
    }

    /// Tells whether one more client is within the limits. Unprivileged clients have a separate limit, in total and per
    /// user, so they cannot use up the slots of privileged clients or other users.
    fn has_room_for(&self, new: &Client) -> bool {
        let Limits { clients, readers, of_reader } = self.limits;
        let others = self.clients.values().filter(|client| !client.privileged);
        match new.privileged {
            true => self.clients.len() < clients,
            false => {
                others.clone().count() < readers && others.filter(|client| client.uid == new.uid).count() < of_reader
            }
        }
    }

    /// Serves a request of a client, or continues an earlier one.
    fn serve(&mut self, token: u64, flags: EventFlags) {
        let served = self.try_serve(token, flags);
        let Some(client) = self.clients.get_mut(&token) else { return };
        if served.and_then(|()| wait_for(token, client)).is_err() {
            // The close removes the descriptor from epoll.
            self.clients.remove(&token);
        }
        self.note_clients();
    }

    /// Groups of a protocol that have members.
    fn listeners(&self, protocol: u32) -> Groups {
        self.clients.values().fold(Groups::default(), |all, client| all.union(client.groups(protocol)))
    }

    /// Notifies the worker which groups have members, as SAs send events only to listeners, and which UDP ports bypass
    /// policies.
    fn note_clients(&mut self) {
        let groups = [protocol::XFRM, protocol::ROUTE].map(|protocol| self.listeners(protocol));
        if groups != self.groups {
            let queue = Arc::clone(&self.queue);
            // A worker that has ended has no more events.
            let _ = self.worker.call(move |node| notifications::listen(node, groups, queue));
            self.groups = groups;
        }
        let bypass: BTreeSet<u16> = self.clients.values().flat_map(Client::bypass).copied().collect();
        if bypass != self.bypass {
            let ports = bypass.iter().copied().collect();
            let _ = self.worker.change(move |node| node.datapath.set_bypass_ports(ports), same);
            self.bypass = bypass;
        }
    }

    /// Forwards the worker's events, and notifies the listeners that have lost events.
    fn notify_clients(&mut self) {
        let pending = self.queue.take();
        for (of, queue) in [(protocol::XFRM, pending.xfrm), (protocol::ROUTE, pending.route)] {
            let listeners = self.listeners(of);
            self.outbox.clear();
            self.announce(&queue.events, listeners);
            self.broadcast(of, None);
            if !listeners.intersects(queue.lost) {
                continue;
            }
            self.clients.retain(|&token, client| {
                if client.groups(of).intersects(queue.lost) {
                    client.lose();
                }
                wait_for(token, client).is_ok()
            });
        }
    }

    /// Writes events of one protocol for its listeners.
    fn announce(&mut self, events: &[KernelEvent], listeners: Groups) {
        let Self { outbox, shared, .. } = self;
        let mut protocols = shared.lock();
        let rtnl = &mut protocols.rtnl;
        for event in events {
            match event {
                KernelEvent::Xfrm(event) => event.announce(listeners, outbox),
                KernelEvent::Link(now) => rtnl.notify_link(now, listeners, outbox),
                KernelEvent::Neighbour { now, gone } => rtnl.notify_neighbour(now, *gone, listeners, outbox),
                KernelEvent::Fdb { bridge, change } => rtnl.notify_fdb(*bridge, change, listeners, outbox),
            }
        }
        protocols.follow_host_side();
    }

    fn try_serve(&mut self, token: u64, flags: EventFlags) -> Result<(), Gone> {
        let client = self.clients.get_mut(&token).ok_or(Gone)?;
        if flags.intersects(EventFlags::OUT | EventFlags::HUP | EventFlags::ERR) {
            client.go_on(&mut self.shared.lock(), &mut self.outbox)?;
        }
        let has_input = flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR);
        let input = match client.take_unserved() {
            Some(messages) => ClientInput::Unserved(messages),
            None if !client.takes_datagrams() || !has_input => return Ok(()),
            None => match client.receive(&mut self.buffer)? {
                Some(received) if received.len == self.buffer.len() => return Err(Gone),
                Some(received) => ClientInput::Datagram(received),
                None => return Ok(()),
            },
        };
        let is_file = client.is_file();
        let input = match input {
            ClientInput::Datagram(received) => {
                let first = ToDaemon::calls(&self.buffer[..received.len]).next().flatten();
                if let Some(ToDaemon::Adopt { lost, state }) = first.filter(|_| !is_file) {
                    let state = state.to_vec();
                    return self.adopt(token, received.answer.ok_or(Gone)?, lost, &state);
                }
                ClientInput::Datagram(received)
            }
            unserved @ ClientInput::Unserved(_) => unserved,
        };
        self.outbox.clear();
        // `choose_port` and `listeners` read the other clients while this one is changed.
        let mut client = self.clients.remove(&token).ok_or(Gone)?;
        let clients = &self.clients;
        let listeners =
            |protocol| clients.values().map(|other| other.groups(protocol)).fold(Groups::default(), Groups::union);
        let pid = client.pid;
        let port = |protocol, wish| choose_port(clients, protocol, wish, pid);
        let mut protocols = self.shared.lock();
        let outbox = &mut self.outbox;
        let (handled, len) = match input {
            ClientInput::Datagram(received) => {
                let noted = client.note_sender(&received);
                let Received { len, answer, .. } = received;
                let datagram = &self.buffer[..len];
                (noted.and_then(|()| client.handle(datagram, answer, &mut protocols, listeners, port, outbox)), len)
            }
            ClientInput::Unserved(messages) => (client.request(&messages, &mut protocols, listeners, port, outbox), 0),
        };
        // A single request is answered when sockets of the host side see its effect; of a burst, routes follow together.
        self.host_side_waits = self.is_burst && protocols.may_host_side_wait();
        if !self.host_side_waits {
            protocols.follow_host_side();
        }
        drop(protocols);
        // Busy-polls only while no packet needs the CPU.
        self.prompt = self.idle.is_long(self.worker.bursts(), Instant::now()) && self.busy_poll.should_poll();
        let delivered = handled.and_then(|()| client.deliver(&self.outbox, self.prompt));
        let (number, is_file) = (client.protocol(), client.is_file());
        if is_file || number.is_some() {
            self.clients.insert(token, client);
        }
        let Some(number) = number.filter(|_| !is_file) else {
            return delivered;
        };
        self.broadcast(number, Some(token));
        if number == protocol::XFRM {
            // Requests or answers may contain keys.
            self.buffer[..len].zeroize();
            self.outbox.wipe();
        }
        delivered
    }

    /// Serves a socket that an earlier gateway served, unless it is served already. `fd`: the gateway's end of the
    /// socket, which the client `sender` has sent.
    fn adopt(&mut self, sender: u64, fd: OwnedFd, lost: bool, state: &[u8]) -> Result<(), Gone> {
        let sender = self.clients.get(&sender).ok_or(Gone)?;
        let Some(inode) = inode_of_socket(fd.as_fd()) else {
            sender.close_later([fd]);
            return Err(Gone);
        };
        let known = self.clients.iter().find(|(_, client)| client.kept == Some(inode)).map(|(&token, _)| token);
        if let Some(known) = known {
            sender.close_later([fd]);
            // After `fork`, parent and child may have joined different groups.
            return self.clients.get_mut(&known).ok_or(Gone)?.restore(state);
        }
        let mut client = sender.adopt(fd, inode);
        if !self.has_room_for(&client) {
            tracing::warn!(uid = client.uid, "netlink: too many clients: a program's socket is closed");
            return Ok(());
        }
        client.restore(state)?;
        if lost {
            client.lose();
        }
        let token = self.add(client).map_err(|_| Gone)?;
        wait_for(token, self.clients.get_mut(&token).ok_or(Gone)?)
    }

    /// Sends the outbox to all members of its groups; `requester` is the client that caused it.
    fn broadcast(&mut self, protocol: u32, requester: Option<u64>) {
        let Self { outbox, clients, .. } = self;
        for (to, bytes) in outbox.iter() {
            let To::Group { group, echoed } = to else { continue };
            clients.retain(|&token, client| {
                let is_skipped = echoed && requester == Some(token);
                if is_skipped || !client.groups(protocol).has(group) {
                    return true;
                }
                client.notify(group, bytes).and_then(|()| wait_for(token, client)).is_ok()
            });
        }
    }
}

/// Pending work of a client.
enum ClientInput {
    /// A datagram, which is in the buffer.
    Datagram(Received),
    /// Messages of an earlier datagram.
    Unserved(Zeroizing<Vec<u8>>),
}

/// Registers the client's next events with epoll.
fn wait_for(token: u64, client: &mut Client) -> Result<(), Gone> {
    let Some(interest) = client.new_interest() else { return Ok(()) };
    epoll::modify(&client.epoll, client.fd(), EventData::new_u64(token), interest).map_err(|_| Gone)
}

/// Port that no other client of the protocol has: the requested one, else the process ID, else any.
fn choose_port(clients: &HashMap<u64, Client>, protocol: u32, wish: u32, pid: u32) -> Result<u32, i32> {
    let free = |port: u32| port != 0 && clients.values().all(|other| other.name() != Some((protocol, port)));
    if wish != 0 {
        return if free(wish) { Ok(wish) } else { Err(nlsock::errno::EADDRINUSE) };
    }
    // As Linux's `netlink_autobind`: above all process IDs.
    let others = (0..=Limits::MOST.clients as u32).map(|n| u32::MAX - 4095 - n);
    std::iter::once(pid).chain(others).find(|&port| free(port)).ok_or(nlsock::errno::EADDRINUSE)
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;
    use std::sync::atomic::{AtomicU32, Ordering};

    use nlsock::ToDaemon;
    use rustix::net::{
        AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketType,
        recv, send, sendmsg, socketpair,
    };
    use signal_hook::consts::SIGHUP;
    use signal_hook::iterator::Signals;

    use super::*;
    use crate::open;
    use crate::running::Running;

    /// A service without clients, and its worker.
    fn service() -> (Service, Running) {
        let signals = Signals::new([SIGHUP]).unwrap();
        let worker = Running::start(base::ShardCount::ONE, &signals.handle()).unwrap();
        let shared = Shared::new(&worker.handle, open::open);
        let (discard, thread) = link::discard();
        thread::spawn(move || thread.run());
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let listener = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        // Tests run in parallel, and several test runs may.
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("fatpath-test-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        rustix::net::bind(&listener, &SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap()).unwrap();
        rustix::net::listen(&listener, 1).unwrap();
        (Service::new(listener, shared, &worker.handle, discard).unwrap(), worker)
    }

    /// Adds a client, and returns the client's end of the connection.
    fn connect(service: &mut Service, privileged: bool) -> OwnedFd {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let peer = Peer::of(&ours).unwrap();
        let privilege = if privileged { Privilege::Full } else { Privilege::None };
        let client = service.client(ours, peer, privilege).unwrap();
        service.add(client).unwrap();
        theirs
    }

    /// A datagram with `count` requests for the loopback link.
    fn requests(count: u32) -> Vec<u8> {
        let hello = ToDaemon::Hello { protocol: protocol::ROUTE };
        let mut datagram = [hello.head().as_bytes(), ToDaemon::Data(&[]).head().as_bytes()].concat();
        for seq in 0..count {
            let words = [32, 18 | 1 << 16, seq, 0, 0, 1, 0, 0_u32];
            datagram.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
        }
        datagram
    }

    /// Number of datagrams sent to a client since the last call.
    fn received(client: &OwnedFd) -> usize {
        let mut buffer = [0; 8192];
        let mut count = 0;
        while recv(client, &mut buffer[..], RecvFlags::DONTWAIT).is_ok_and(|(len, _)| len > 0) {
            count += 1;
        }
        count
    }

    #[test]
    fn turn_with_busy_readers_serves_privileged_first() {
        const READERS: usize = 6;
        const REQUESTS: u32 = 200;
        let (mut service, worker) = service();
        let readers = [(); READERS].map(|()| connect(&mut service, false));
        for reader in &readers {
            send(reader, &requests(REQUESTS), SendFlags::empty()).unwrap();
        }
        let root = connect(&mut service, true);
        let mut answers = [0; READERS];
        for turn in 1..=READERS {
            send(&root, &requests(1), SendFlags::empty()).unwrap();
            service.turn().unwrap();
            assert_eq!(received(&root), 1, "turn {turn}");
            answers.iter_mut().zip(&readers).for_each(|(count, reader)| *count += received(reader));
            assert_eq!(answers.iter().filter(|&&count| count > 0).count(), turn, "one in a turn, each in its turn");
            let most = *answers.iter().max().unwrap();
            assert!(most < REQUESTS as usize / 2, "one slice has answered {most} requests");
        }
        while answers != [REQUESTS as usize; READERS] {
            service.turn().unwrap();
            answers.iter_mut().zip(&readers).for_each(|(count, reader)| *count += received(reader));
        }
        worker.stop().unwrap();
    }

    #[test]
    fn reader_with_unserved_requests_is_read_no_further() {
        let (mut service, worker) = service();
        let reader = connect(&mut service, false);
        for _ in 0..3 {
            send(&reader, &requests(2000), SendFlags::empty()).unwrap();
        }
        // The client receives nothing, so answers and requests stay pending.
        for _ in 0..100 {
            service.serve_reader().unwrap();
        }
        let client = service.clients.values().next().unwrap();
        assert!(!client.takes_datagrams());
        let (mut room, now) = ([const { MaybeUninit::uninit() }; 1], Timespec::default());
        let (ready, _) = epoll::wait(&service.readers, &mut room[..], Some(&now)).unwrap();
        assert!(ready.is_empty(), "it is not ready until it receives answers");
        let mut count = 0;
        while count < 10_000 && service.clients.values().any(|client| !client.takes_datagrams()) {
            received(&reader);
            service.serve_reader().unwrap();
            count += 1;
        }
        assert!(service.clients.values().all(Client::takes_datagrams), "all is carried out in the end");
        worker.stop().unwrap();
    }

    #[test]
    fn reader_with_too_many_descriptors_is_closed() {
        let (mut service, worker) = service();
        let (pipe, _writer) = rustix::pipe::pipe().unwrap();
        let file = std::fs::File::open("/dev/null").unwrap();
        for (fds, is_refused) in [
            (vec![&pipe], false),
            (vec![&pipe; 2], true),
            (vec![&pipe; 253], true),
            (vec![&OwnedFd::from(file.try_clone().unwrap())], true),
        ] {
            let reader = connect(&mut service, false);
            let fds: Vec<_> = fds.iter().map(std::os::fd::AsFd::as_fd).collect();
            let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(fds.len()))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
            let hello = ToDaemon::Hello { protocol: protocol::ROUTE }.head();
            sendmsg(&reader, &[IoSlice::new(hello.as_bytes())], &mut control, SendFlags::empty()).unwrap();
            service.serve_reader().unwrap();
            assert_eq!(service.clients.is_empty(), is_refused, "{} descriptors", fds.len());
            service.clients.clear();
        }
        worker.stop().unwrap();
    }

    #[test]
    fn limits_leave_descriptors_for_links_and_the_privileged() {
        assert_eq!(Limits::of(u64::MAX), Limits::MOST);
        assert_eq!(Limits::of(4096), Limits::MOST);
        assert_eq!(Limits::of(1024), Limits { clients: 512, readers: 256, of_reader: 64 });
        assert_eq!(Limits::of(64), Limits { clients: 32, readers: 16, of_reader: 8 });
    }
}
