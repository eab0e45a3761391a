//! Netlink's clients: one thread serves all of them.
//!
//! It owns nothing that packets meet: requests change the model ([`Protocols`]), and the worker is told what has changed
//! before the client is answered. What a client asks for is done whether it reads the answers or not, as in Linux: what it
//! has no room for is lost to it, and it is told so, but for its dump, which waits.

mod client;
mod closing;
mod host;
mod rest;
mod sysctl;

use std::collections::HashMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use control::netlink::rtnl::{Model, Rtnl};
use control::netlink::{Groups, Outbox, To, xfrm};
use nlsock::{Lookout, MAX_DATA, MAX_HEAD, protocol};
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use zeroize::Zeroize;

use super::command::Handle;
use super::news::{Bell, Listeners, News};
use super::node::Open;
use super::sadb::{self, WorkerSadb};
use crate::error::CliError;
use client::{Client, Gone};
use closing::Closing;
pub(crate) use host::{WorkerHost, apply, known, neighbours, shown};
use rest::Rest;
use sysctl::Sysctl;

/// Rtnetlink, over the worker.
type Route = Rtnl<WorkerHost>;

/// `NETLINK_XFRM`, over the worker.
type Xfrm = xfrm::Xfrm<WorkerSadb>;

/// Clients at a time; the next one has to wait until one goes.
const MAX_CLIENTS: usize = 1024;

/// Of these, clients that may not change anything; and of one user of that kind.
const MAX_READERS: usize = 512;
const MAX_OF_READER: usize = 64;

/// The token of the listening socket.
const LISTENER: u64 = 0;
/// The token of what the worker rings. Clients' begin behind it.
const BELL: u64 = 1;

/// What netlink's clients ask and change.
#[derive(Debug)]
pub(crate) struct Protocols {
    pub(crate) rtnl: Route,
    pub(crate) xfrm: Xfrm,
    pub(crate) sysctl: Sysctl,
}

/// [`Protocols`], for one at a time.
#[derive(Clone, Debug)]
pub(crate) struct Shared(Arc<Mutex<Protocols>>);

impl Shared {
    /// A node of nothing, over that worker, whose links `open` opens.
    pub(crate) fn new(worker: &Handle, open: Open) -> Self {
        let rtnl = Rtnl { model: Model::default(), host: WorkerHost::new(worker.clone(), open) };
        let xfrm = Xfrm::new(WorkerSadb(worker.clone()));
        let sysctl = Sysctl::new(worker.clone());
        Self(Arc::new(Mutex::new(Protocols { rtnl, xfrm, sysctl })))
    }

    /// Keeps others from changing anything.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Protocols> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The listening socket. Its file goes when this is dropped.
#[derive(Debug)]
pub(crate) struct NetlinkServer {
    path: PathBuf,
}

impl Drop for NetlinkServer {
    fn drop(&mut self) {
        if let Err(err) = std::fs::remove_file(&self.path) {
            tracing::warn!("{}: {err}", self.path.display());
        }
    }
}

impl NetlinkServer {
    /// Listens at `path`, to which everybody may connect: who may not change anything may still look. Serves clients in
    /// the background.
    ///
    /// # Errors
    /// What cannot be made there.
    pub(crate) fn start(path: &Path, shared: Shared, worker: &Handle) -> Result<Self, CliError> {
        let failed = |what: &str, err: io::Error| CliError::failed(format!("{}: {what}: {err}", path.display()));
        match std::fs::remove_file(path) {
            Err(err) if err.kind() != io::ErrorKind::NotFound => return Err(failed("cannot replace it", err)),
            _ => {}
        }
        let listener = listen(path).map_err(|err| failed("bind", err.into()))?;
        let server = Self { path: path.to_owned() };
        let service = Service::new(listener, shared, worker).map_err(|err| failed("epoll", err.into()))?;
        thread::Builder::new()
            .name("netlink".to_owned())
            .spawn(move || {
                if let Err(err) = service.run() {
                    tracing::error!("netlink: epoll: {err}; its clients are no longer served");
                }
            })
            .map_err(|err| failed("cannot start a thread", err))?;
        Ok(server)
    }
}

impl NetlinkServer {
    /// Is found at `path` from now on, and no longer where it was.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn move_to(&mut self, path: &Path) -> Result<(), CliError> {
        std::fs::rename(&self.path, path).map_err(|err| CliError::failed(format!("{}: {err}", path.display())))?;
        path.clone_into(&mut self.path);
        Ok(())
    }
}

fn listen(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::fs::chmod(path, Mode::from_raw_mode(0o666))?;
    rustix::net::listen(&socket, 128)?;
    Ok(socket)
}

/// The thread's own.
struct Service {
    epoll: Arc<OwnedFd>,
    listener: OwnedFd,
    shared: Shared,
    clients: HashMap<u64, Client>,
    closing: Closing,
    last_token: u64,
    outbox: Outbox,
    buffer: Vec<u8>,
    worker: Handle,
    /// What the worker tells, and who listens to that: of `NETLINK_XFRM`'s groups, and of rtnetlink's.
    bell: Arc<Bell>,
    heard: [Groups; 2],
    /// Looks for what is asked next, if that was promised to whom was answered last.
    lookout: Lookout,
    rest: Rest,
    prompt: bool,
}

impl Service {
    fn new(listener: OwnedFd, shared: Shared, worker: &Handle) -> Result<Self, Errno> {
        let epoll = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        epoll::add(&epoll, &listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
        // One byte more than a datagram may have, so that a longer one is seen to be.
        let buffer = vec![0; MAX_HEAD + MAX_DATA + 1];
        let (clients, closing, outbox) = (HashMap::new(), Closing::default(), Outbox::default());
        let bell = Arc::new(Bell::new()?);
        epoll::add(&epoll, bell.fd(), EventData::new_u64(BELL), EventFlags::IN)?;
        let (worker, heard) = (worker.clone(), Default::default());
        let (lookout, rest, prompt, last_token) = (Lookout::new(), Rest::default(), false, BELL);
        Ok(Self {
            epoll,
            listener,
            shared,
            clients,
            closing,
            last_token,
            outbox,
            buffer,
            worker,
            bell,
            heard,
            lookout,
            rest,
            prompt,
        })
    }

    fn run(mut self) -> Result<(), Errno> {
        loop {
            for event in self.wait()? {
                match event.data.u64() {
                    LISTENER => self.accept(),
                    BELL => self.tell_news(),
                    token => self.serve(token, event.flags),
                }
            }
        }
    }

    /// Waits until somebody wants something.
    fn wait(&mut self) -> Result<Vec<epoll::Event>, Errno> {
        let (mut room, now) = ([const { MaybeUninit::uninit() }; 64], Timespec::default());
        let mut found = |limit| match epoll::wait(&self.epoll, &mut room[..], limit) {
            Ok((found, _)) => Ok(found.to_vec()),
            Err(Errno::INTR) => Ok(Vec::new()),
            Err(err) => Err(err),
        };
        if std::mem::take(&mut self.prompt) {
            let soon = self.lookout.look(|| found(Some(&now)).ok().filter(|found| !found.is_empty()));
            if let Some(soon) = soon {
                return Ok(soon);
            }
        }
        found(None)
    }

    fn accept(&mut self) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let client = match rustix::net::accept_with(&self.listener, flags) {
            Ok(fd) => Client::new(fd, &self.closing, &self.epoll),
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => return,
            Err(err) => Err(err),
        };
        let added = client.and_then(|client| {
            if !self.has_room_for(&client) {
                tracing::debug!(uid = client.uid, "netlink: too many clients");
                return Ok(());
            }
            self.last_token += 1;
            epoll::add(&self.epoll, client.fd(), EventData::new_u64(self.last_token), EventFlags::IN)?;
            self.clients.insert(self.last_token, client);
            Ok(())
        });
        if let Err(err) = added {
            tracing::warn!("netlink: accept: {err}");
            thread::sleep(std::time::Duration::from_millis(10));
        }
    }

    /// Who may not change anything can neither take the places of those who may, nor those of others. What is being closed has its
    /// place still.
    fn has_room_for(&self, new: &Client) -> bool {
        let others = self.clients.values();
        match new.privileged {
            true => self.clients.len() < MAX_CLIENTS,
            false => {
                let readers = others.clone().filter(|client| !client.privileged).count();
                let readers = readers + self.closing.all(MAX_OF_READER);
                let own = others.filter(|client| client.uid == new.uid).count() + self.closing.of(new.uid);
                readers < MAX_READERS && own < MAX_OF_READER
            }
        }
    }

    /// Does what a client asks for, or goes on with what it has asked for.
    fn serve(&mut self, token: u64, flags: EventFlags) {
        let served = self.try_serve(token, flags);
        let Some(client) = self.clients.get_mut(&token) else { return };
        if served.and_then(|()| wait_for(&self.epoll, token, client)).is_err() {
            // The descriptor leaves epoll as it is closed.
            self.clients.remove(&token);
        }
        self.note_listeners();
    }

    /// The groups of a protocol that somebody listens to.
    fn listeners(&self, protocol: u32) -> Groups {
        self.clients.values().fold(Groups::default(), |all, client| all.union(client.groups(protocol)))
    }

    /// Has the worker know who listens to what happens by itself: nobody is asked for SAs who does not.
    fn note_listeners(&mut self) {
        let heard = [protocol::XFRM, protocol::ROUTE].map(|protocol| self.listeners(protocol));
        if heard != self.heard {
            let bell = Arc::clone(&self.bell);
            // If it has ended, nothing will happen any more.
            let _ = self.worker.call(move |worker| worker.set_bell(heard, bell));
            self.heard = heard;
        }
    }

    /// Passes on what the worker tells.
    fn tell_news(&mut self) {
        let rung = self.bell.take();
        for of in [protocol::XFRM, protocol::ROUTE] {
            let listeners = self.listeners(of);
            self.outbox.clear();
            self.announce(&rung.news, of, listeners);
            self.broadcast(of, None);
        }
        if rung.lost {
            let Self { clients, epoll, .. } = self;
            let told = [(protocol::XFRM, sadb::told()), (protocol::ROUTE, Listeners::told())];
            clients.retain(|&token, client| {
                if told.iter().any(|&(protocol, told)| client.groups(protocol).intersects(told)) {
                    client.lose();
                }
                wait_for(epoll, token, client).is_ok()
            });
        }
    }

    /// Writes what of `news` is a protocol's.
    fn announce(&mut self, news: &[News], of: u32, listeners: Groups) {
        let Self { outbox, shared, .. } = self;
        let rtnl = &shared.lock().rtnl;
        for news in news {
            match (news, of) {
                (News::Xfrm(event), protocol::XFRM) => event.announce(listeners, outbox),
                (News::Link(now), protocol::ROUTE) => rtnl.tell_link(now, listeners, outbox),
                (News::Neighbour { now, gone }, protocol::ROUTE) => rtnl.tell_neighbour(now, *gone, listeners, outbox),
                _ => {}
            }
        }
    }

    fn try_serve(&mut self, token: u64, flags: EventFlags) -> Result<(), Gone> {
        if flags.contains(EventFlags::OUT) {
            let client = self.clients.get_mut(&token).ok_or(Gone)?;
            client.go_on(&mut self.shared.lock(), &mut self.outbox)?;
        }
        if !flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) {
            return Ok(());
        }
        let client = self.clients.get_mut(&token).ok_or(Gone)?;
        let Some((len, answer)) = client.receive(&mut self.buffer)? else { return Ok(()) };
        if len == self.buffer.len() {
            return Err(Gone);
        }
        self.outbox.clear();
        // Others' groups and ports are asked for while this one is changed.
        let mut client = self.clients.remove(&token).ok_or(Gone)?;
        let clients = &self.clients;
        let listeners = |protocol| {
            let others = clients.values().map(|other| other.groups(protocol));
            others.fold(client.groups(protocol), Groups::union)
        };
        let own = [protocol::ROUTE, protocol::XFRM, protocol::GENERIC].map(|number| (number, listeners(number)));
        let of = |number: u32| own.iter().find(|(own, _)| *own == number).map_or(Groups::default(), |(_, of)| *of);
        let pid = client.pid;
        let port = |protocol, wish| choose_port(clients, protocol, wish, pid);
        let (datagram, outbox) = (&self.buffer[..len], &mut self.outbox);
        let handled = client.handle(datagram, answer, &mut self.shared.lock(), of, port, outbox);
        // Only while no packet needs the processor for this.
        self.prompt = self.rest.is_long(self.worker.bursts(), Instant::now()) && self.lookout.is_worth_it();
        let delivered = handled.and_then(|()| client.deliver(&self.outbox, self.prompt));
        let (spoken, is_file) = (client.protocol(), client.is_file());
        if is_file || spoken.is_some() {
            self.clients.insert(token, client);
        }
        let Some(spoken) = spoken.filter(|_| !is_file) else {
            return delivered;
        };
        self.broadcast(spoken, Some(token));
        if spoken == protocol::XFRM {
            // Keys were asked for or said.
            self.buffer[..len].zeroize();
            self.outbox.wipe();
        }
        delivered
    }

    /// Tells everybody who listens what is in the outbox for them, which came of what `requester` asked for.
    fn broadcast(&mut self, protocol: u32, requester: Option<u64>) {
        let Self { outbox, clients, epoll, .. } = self;
        for (to, bytes) in outbox.iter() {
            let To::Group { group, echoed } = to else { continue };
            clients.retain(|&token, client| {
                let spared = echoed && requester == Some(token);
                if spared || !client.groups(protocol).has(group) {
                    return true;
                }
                client.notify(group, bytes).and_then(|()| wait_for(epoll, token, client)).is_ok()
            });
        }
    }
}

/// Has epoll wait for what a client is to be served for next.
fn wait_for(epoll: &OwnedFd, token: u64, client: &mut Client) -> Result<(), Gone> {
    let Some(interest) = client.new_interest() else { return Ok(()) };
    epoll::modify(epoll, client.fd(), EventData::new_u64(token), interest).map_err(|_| Gone)
}

/// A port that no other client of the protocol has: the one that is wished for, or the process's number, or any.
fn choose_port(clients: &HashMap<u64, Client>, protocol: u32, wish: u32, pid: u32) -> Result<u32, i32> {
    let free = |port: u32| port != 0 && clients.values().all(|other| other.name() != Some((protocol, port)));
    if wish != 0 {
        return if free(wish) { Ok(wish) } else { Err(nlsock::errno::EADDRINUSE) };
    }
    // As Linux's `netlink_autobind`: the numbers of no process.
    let others = (0..=MAX_CLIENTS as u32).map(|n| u32::MAX - 4095 - n);
    std::iter::once(pid).chain(others).find(|&port| free(port)).ok_or(nlsock::errno::EADDRINUSE)
}
