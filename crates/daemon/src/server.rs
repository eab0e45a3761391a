//! The control socket, and the view socket, whose clients only look: one thread per client, which calls the worker or the main thread
//! and writes the reply.
//!
//! A client can neither delay the worker (it runs calls between two bursts) nor fill memory: lines of requests and the
//! number of clients are limited, and a capture that is read too slowly loses packets instead of holding them. Clients that only look
//! have less: a [pace](Pace) in common, a few streams and tables at a time, and a time for each request and reply.

use std::convert::Infallible;
use std::fs::{File, Permissions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use client::{CliError, passing};
use ctl::request::MAX_REQUEST_LEN;
use ctl::{Reply, Request, Shown, StateKind, procfs};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use rustix::net::SocketFlags;
use rustix::net::sockopt::socket_peercred;

use super::acceptor::Acceptor;
use super::capture::stream_capture;
use super::command::Handle;
use super::confine;
use super::events::{Event, LoadProgress, LoadRequest};
use super::host::{Entrance, HostSide};
use super::monitor::{stream_drops, stream_events};
use super::netlink::Shared;
use super::pace::Pace;
use super::places::{ClientPlaces, NoPlace, PlaceLimits, TakenPlace};
use super::replace::offer::{self, Offer};
use super::show::{Reader, show};
use super::threads::{Pulse, Threads};
use super::trace::{TraceRequest, stream_traces};
use crate::files;

/// Longest time that a client may take to read its reply.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);

/// Longest time that a client of the view socket may take from one reply to the end of its next request: others may want its place.
const IDLE_LIMIT: Duration = Duration::from_secs(30);

/// Time between two reports of a load's progress.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(500);

/// Rights of the clients of a socket.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Access {
    /// All requests: the control socket, of the gateway's user.
    Full,
    /// Requests that only look: the view socket, of its group too.
    Look,
}

impl Access {
    /// Name of the thread that accepts clients.
    const fn thread(self) -> &'static str {
        match self {
            Self::Full => "control",
            Self::Look => "view",
        }
    }

    /// Name of the socket in the log.
    const fn name(self) -> &'static str {
        match self {
            Self::Full => "control socket",
            Self::Look => "view socket",
        }
    }

    /// Limits of simultaneous clients; a further client is refused and may retry.
    const fn clients(self) -> PlaceLimits {
        match self {
            Self::Full => PlaceLimits { all: 32, of_user: 32 },
            Self::Look => PlaceLimits { all: 16, of_user: 4 },
        }
    }

    /// Refuses a request by its name.
    fn admit(self, request: Request) -> Result<Request, String> {
        match request.only_looks() {
            Err(name) if self == Self::Look => Err(format!(
                "{name}: refused by this socket, which only shows; the control socket is for the gateway's user"
            )),
            _ => Ok(request),
        }
    }
}

/// Limits of the clients of a view socket: any user of the machine may be one, and nothing else keeps them from
/// each other and from the gateway's own.
#[derive(Debug)]
struct Viewing {
    pace: Pace,
    /// Monitors and traces.
    streams: Arc<ClientPlaces>,
    /// Tables with their texts, until the client has read them.
    tables: Arc<ClientPlaces>,
    /// As [`tables`](Self::tables), of sums of SAs: a scrape does not wait for other tables.
    sums: Arc<ClientPlaces>,
}

impl Default for Viewing {
    fn default() -> Self {
        let tables = PlaceLimits { all: 4, of_user: 1 };
        Self {
            pace: Pace::default(),
            streams: ClientPlaces::new(PlaceLimits { all: 8, of_user: 2 }),
            tables: ClientPlaces::new(tables),
            sums: ClientPlaces::new(tables),
        }
    }
}

impl Viewing {
    /// Waits for the place of a user's reply, if its size grows with a table.
    fn place(&self, what: StateKind, user: u32) -> Option<TakenPlace> {
        match what {
            StateKind::Summary | StateKind::Links | StateKind::Counters | StateKind::Drops => None,
            StateKind::SaSums => Some(self.sums.wait(user)),
            _ => Some(self.tables.wait(user)),
        }
    }
}

/// Slices in whose place a stream begins: it changes all workers.
const STREAM_SLICES: u32 = 5;

/// State for serving clients' commands.
#[derive(Clone, Debug)]
struct Served {
    access: Access,
    worker: Handle,
    shared: Shared,
    host_side: HostSide,
    events: Sender<Event>,
    offer: Arc<Offer>,
    viewing: Arc<Viewing>,
}

impl Served {
    /// Limits of the clients, if these only look.
    fn viewing(&self) -> Option<&Viewing> {
        (self.access == Access::Look).then_some(&*self.viewing)
    }
}

/// Listening socket. Drop removes its file.
#[derive(Debug)]
pub(crate) struct Server {
    path: PathBuf,
    access: Access,
    listener: UnixListener,
    /// Whether the next gateway has the socket.
    is_left: bool,
}

/// Fails if a process listens at `path`.
///
/// # Errors
/// An instance of this name listens there.
pub(crate) fn check_vacant(path: &Path) -> Result<(), CliError> {
    match UnixStream::connect(path) {
        Err(_) => Ok(()),
        Ok(_) => Err(is_running(path)),
    }
}

fn is_running(path: &Path) -> CliError {
    CliError::failed(format!(
        "{}: an instance of this name is running; stop it or choose another --instance",
        path.display()
    ))
}

/// Makes the directory of the socket at `path`. All users read one of root, whatever the file mode creation mask is: programs connect to
/// sockets there, whose own modes are their limits.
///
/// # Errors
/// The system's, with a remedy.
pub(crate) fn make_dir(path: &Path) -> Result<(), CliError> {
    let made = match path.parent() {
        None => Ok(()),
        Some(dir) if confine::is_of_root() => make_public(dir),
        Some(dir) => std::fs::create_dir_all(dir),
    };
    made.map_err(|err| not_made(path, "cannot make its directory", &err))
}

/// Makes a directory, and those above it, that all users read. One that exists stays as it is.
fn make_public(dir: &Path) -> io::Result<()> {
    if dir.as_os_str().is_empty() || dir.is_dir() {
        return Ok(());
    }
    dir.parent().map_or(Ok(()), make_public)?;
    match std::fs::create_dir(dir) {
        Ok(()) => std::fs::set_permissions(dir, Permissions::from_mode(0o755)),
        Err(_) if dir.is_dir() => Ok(()),
        Err(err) => Err(err),
    }
}

/// Failure to make the socket at `path`, with a remedy if the user may not.
fn not_made(path: &Path, what: &str, err: &io::Error) -> CliError {
    let hint = match err.kind() {
        io::ErrorKind::PermissionDenied => {
            "; set XDG_RUNTIME_DIR or FATPATH_RUNDIR to a directory in which this user may make sockets"
        }
        _ => "",
    };
    CliError::failed(format!("{}: {what}: {err}{hint}", path.display()))
}

impl Server {
    /// Listens at `path`, where only this user may connect. Clients wait until they are [served](Self::serve).
    ///
    /// # Errors
    /// The socket cannot be made.
    pub(crate) fn bind(path: &Path) -> Result<Self, CliError> {
        Self::bind_as(path, Access::Full)
    }

    /// Listens at `path` for clients that only look: this user's, and those of the [group](super::viewers).
    ///
    /// # Errors
    /// As [`Self::bind`].
    pub(crate) fn bind_view(path: &Path) -> Result<Self, CliError> {
        Self::bind_as(path, Access::Look)
    }

    fn bind_as(path: &Path, access: Access) -> Result<Self, CliError> {
        let role = match access {
            Access::Full => files::SocketRole::Control,
            Access::Look => files::SocketRole::View,
        };
        let listener = files::listen(path, role).map_err(|err| match err.kind() {
            io::ErrorKind::AddrInUse => is_running(path),
            _ => not_made(path, "bind", &err),
        })?;
        Ok(Self { path: path.to_owned(), access, listener: listener.into(), is_left: false })
    }

    /// Serves the clients of a socket of the gateway before, which is bound to `path`.
    pub(crate) fn take(listener: OwnedFd, path: &Path, access: Access) -> Self {
        Self { path: path.to_owned(), access, listener: listener.into(), is_left: false }
    }

    /// Serves the view clients of a socket of the gateway before, with the rights that it gets now. If only a new file can have the group,
    /// or the old one may not be changed, it is replaced.
    ///
    /// # Errors
    /// As [`Self::bind_view`].
    pub(crate) fn take_view(listener: OwnedFd, path: &Path) -> Result<Self, CliError> {
        let taken = Self::take(listener, path, Access::Look);
        match files::admit_viewers(path) {
            Ok(()) => return Ok(taken),
            Err(err) => tracing::info!("{}: made anew: {err}", path.display()),
        }
        // Removes the file.
        drop(taken);
        Self::bind_view(path)
    }

    /// Duplicate of the socket, for the next gateway.
    ///
    /// # Errors
    /// Error of fcntl(2).
    pub(crate) fn listener(&self) -> io::Result<OwnedFd> {
        self.listener.as_fd().try_clone_to_owned()
    }

    /// Leaves the socket to the next gateway.
    pub(crate) fn leave(mut self) {
        self.is_left = true;
    }

    /// Serves clients in the background.
    ///
    /// # Errors
    /// No thread can be started.
    pub(crate) fn serve(
        &self,
        worker: &Handle,
        shared: &Shared,
        events: &Sender<Event>,
        offer: &Arc<Offer>,
        threads: &Threads,
    ) -> Result<(), CliError> {
        let failed = |err: io::Error| CliError::failed(format!("{}: {err}", self.path.display()));
        let listener = self.listener.try_clone().map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let access = self.access;
        let mut acceptor = Acceptor::new(listener.into(), access.name());
        let host_side = shared.lock().host_side.clone();
        let (worker, shared, events, offer) = (worker.clone(), shared.clone(), events.clone(), Arc::clone(offer));
        let served = Served { access, worker, shared, host_side, events, offer, viewing: Arc::default() };
        let starter = threads.clone();
        let pinged = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|err| failed(err.into()))?;
        let pinged = Arc::new(pinged);
        let pinger = Arc::clone(&pinged);
        let pulse = threads.watch(access.thread(), move |_| {
            // A full counter already wakes the thread.
            let _ = rustix::io::write(&pinger, &1_u64.to_ne_bytes());
        });
        let run = move || accept(&mut acceptor, &pinged, &pulse, &served, &starter);
        threads.spawn(access.thread(), run).map_err(failed)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !self.is_left
            && let Err(err) = files::remove(&self.path)
        {
            tracing::warn!("{}: {err}", self.path.display());
        }
    }
}

/// Accepts clients, and answers the watchdog when `pinged` is readable.
fn accept(
    acceptor: &mut Acceptor,
    pinged: &OwnedFd,
    pulse: &Pulse,
    served: &Served,
    threads: &Threads,
) -> Result<(), Errno> {
    let name = served.access.name();
    let clients = ClientPlaces::new(served.access.clients());
    loop {
        let mut ready = [PollFd::new(acceptor, PollFlags::IN), PollFd::new(pinged, PollFlags::IN)];
        match poll(&mut ready, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(err) => return Err(err),
        }
        // Nothing is readable while the watchdog sends no ping.
        let _ = rustix::io::read(pinged, &mut [0; 8]);
        pulse.answer();
        let stream = match acceptor.accept(SocketFlags::CLOEXEC) {
            // Descriptors of the reserve are for clients with privilege.
            Ok(Some(accepted)) if accepted.is_reserved && served.access == Access::Look => continue,
            Ok(Some(accepted)) => UnixStream::from(accepted.fd),
            Ok(None) => continue,
            Err(err) => {
                tracing::debug!("{name}: accept: {err}");
                thread::sleep(Duration::from_millis(100));
                continue;
            }
        };
        if let Some(viewing) = served.viewing() {
            viewing.pace.wait(1);
        }
        let user = user_of(&stream);
        let place = match clients.take(user) {
            Ok(place) => place,
            Err(why) => {
                let message = match why {
                    NoPlace::OfAll(count) => format!("{count} clients are connected already"),
                    NoPlace::OfUser(count) => format!("{count} clients of this user are connected already"),
                };
                let _ = (&stream).write_all(Reply::Error { message }.to_line().as_bytes());
                continue;
            }
        };
        let served = served.clone();
        let spawned = threads.spawn("client", move || -> Result<(), Infallible> {
            if let Err(err) = serve(&stream, user, &served) {
                tracing::debug!("a client of the {name} disconnected: {err}");
            }
            drop(place);
            Ok(())
        });
        if let Err(err) = spawned {
            tracing::warn!("{name}: cannot start a thread: {err}");
        }
    }
}

/// User of a client. Clients whose user is not known are of one.
fn user_of(stream: &UnixStream) -> u32 {
    socket_peercred(stream).map_or(u32::MAX, |peer| peer.uid.as_raw())
}

/// Bytes of a client, with the descriptors that came with the last of them.
#[derive(Debug)]
struct Received<'a> {
    stream: &'a UnixStream,
    descriptors: Vec<OwnedFd>,
    /// Whether descriptors are for no request: the kernel closes them, and not a thread of the gateway, which a file system could stop.
    without_descriptors: bool,
    /// Time at which the request has to be whole.
    deadline: Option<Instant>,
}

impl Read for Received<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if let Some(deadline) = self.deadline {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.stream.set_read_timeout(Some(left))?;
        }
        if self.without_descriptors {
            return (&mut &*self.stream).read(buffer);
        }
        let (len, descriptors) = passing::receive(self.stream, buffer)?;
        if !descriptors.is_empty() {
            self.descriptors = descriptors;
        }
        Ok(len)
    }
}

/// Bytes of a reply that are written at once: the kernel's timeout is for each of its buffers.
const WRITE: usize = 1 << 16;

/// Writes a reply of a client that only looks, which has [`WRITE_TIMEOUT`] to read the whole of it.
fn write_in_time(mut stream: &UnixStream, reply: &[u8]) -> io::Result<()> {
    let deadline = Instant::now() + WRITE_TIMEOUT;
    for part in reply.chunks(WRITE) {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_write_timeout(Some(left))?;
        stream.write_all(part)?;
    }
    stream.set_write_timeout(Some(WRITE_TIMEOUT))
}

/// Serves one client of the user `user` until it disconnects.
fn serve(stream: &UnixStream, user: u32, served: &Served) -> io::Result<()> {
    let Served { access, worker, shared, host_side, events, offer, .. } = served;
    let viewing = served.viewing();
    let is_viewer = viewing.is_some();
    let reader = Reader { worker, pace: viewing.map(|viewing| &viewing.pace) };
    stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
    let received = Received { stream, descriptors: Vec::new(), without_descriptors: is_viewer, deadline: None };
    let mut lines = BufReader::new(received);
    let mut line = String::new();
    loop {
        line.clear();
        lines.get_mut().deadline = is_viewer.then(|| Instant::now() + IDLE_LIMIT);
        if (&mut lines).take(MAX_REQUEST_LEN as u64 + 2).read_line(&mut line)? == 0 {
            return Ok(());
        }
        let descriptors = std::mem::take(&mut lines.get_mut().descriptors);
        let request = Request::from_line(line.trim_end()).and_then(|request| access.admit(request));
        let is_stream = matches!(request, Ok(Request::Monitor | Request::MonitorDrops | Request::Trace { .. }));
        let stream_place = viewing.filter(|_| is_stream).map(|viewing| viewing.streams.take(user)).transpose();
        if let Some(viewing) = viewing {
            viewing.pace.wait(if matches!(stream_place, Ok(Some(_))) { STREAM_SLICES } else { 1 });
        }
        let request = request.and_then(|request| stream_place.as_ref().map(|_| request).map_err(no_stream));
        // The place of a table is kept until its text is written.
        let mut table_place = None;
        let place = |what| viewing.and_then(|viewing| viewing.place(what, user));
        let reply = match request {
            Ok(Request::Ping) => Reply::Pong { version: env!("CARGO_PKG_VERSION").to_owned(), pid: std::process::id() },
            Ok(Request::Show { what }) => {
                table_place = place(what);
                match show(what, reader, shared) {
                    Ok(shown) => Reply::Show { shown },
                    Err(err) => Reply::Error { message: err.to_string() },
                }
            }
            Ok(Request::Load { file, progress }) => match load(events, file.into(), descriptors, stream, progress) {
                Ok(running) => Reply::Loaded { running },
                Err(message) => Reply::Error { message },
            },
            Ok(Request::ShowHost) => Reply::Show { shown: Shown::Host(host_side.show()) },
            Ok(Request::EnterHost) => {
                let (reply, entrance) = enter_host(host_side);
                let entrance = entrance.iter();
                let descriptors: Vec<_> =
                    entrance.flat_map(|it| it.user.iter().chain([&it.network])).map(AsFd::as_fd).collect();
                passing::send(stream, reply.to_line().as_bytes(), &descriptors)?;
                continue;
            }
            Ok(Request::Save) => match save(events) {
                Ok(saved) => Reply::Saved { saved },
                Err(message) => Reply::Error { message },
            },
            Ok(Request::Replace { format }) => match offer::admit(stream, format, worker, offer) {
                Ok(()) => match descriptors.into_iter().next().map(Arc::new) {
                    Some(channel) => match offer::begin(&channel, offer) {
                        Ok(()) => return replace(stream, channel, served),
                        Err(message) => Reply::Error { message },
                    },
                    None => Reply::Error { message: "the request has no descriptor".to_owned() },
                },
                Err(message) => Reply::Error { message },
            },
            Ok(Request::StatFile { name }) => {
                table_place = procfs::shows(&name).and_then(place);
                stat_file(&name, reader, shared)
            }
            Ok(Request::Monitor) => return stream_events(stream, worker, is_viewer),
            Ok(Request::MonitorDrops) => return stream_drops(stream, worker),
            Ok(Request::Trace { filter, packets }) => {
                return stream_traces(stream, worker, TraceRequest { filter: &filter, packets, is_viewer });
            }
            Ok(Request::Capture { link, after_gro }) => return stream_capture(stream, worker, link, after_gro),
            Err(message) => Reply::Error { message },
        };
        let bad = matches!(reply, Reply::Error { .. });
        let text = reply.to_line();
        drop(reply);
        match viewing {
            Some(_) => write_in_time(stream, text.as_bytes())?,
            None => (&mut &*stream).write_all(text.as_bytes())?,
        }
        drop((text, table_place));
        if bad && !line.ends_with('\n') {
            // The end of a line that was too long would be parsed as requests.
            return Ok(());
        }
    }
}

/// Refusal of a stream for which there is no place.
fn no_stream(why: &NoPlace) -> String {
    match why {
        NoPlace::OfAll(count) => format!("{count} clients of this socket monitor or trace already"),
        NoPlace::OfUser(count) => format!("{count} clients of this user monitor or trace already"),
    }
}

/// Reply to a client that enters the host side, with the descriptors to pass.
fn enter_host(host_side: &HostSide) -> (Reply, Option<Entrance>) {
    match host_side.entrance() {
        Ok(Some(entrance)) => {
            let descriptors = if entrance.user.is_some() { 2 } else { 1 };
            (Reply::EnterHost { descriptors, why_not: None }, Some(entrance))
        }
        Ok(None) => (Reply::EnterHost { descriptors: 0, why_not: None }, None),
        Err(why) => (Reply::EnterHost { descriptors: 0, why_not: Some(why) }, None),
    }
}

/// Serves a gateway that replaces this one: the messages of the hand-over pass by `channel`.
fn replace(stream: &UnixStream, channel: Arc<OwnedFd>, served: &Served) -> io::Result<()> {
    let Served { worker, host_side, events, offer, .. } = served;
    let state = offer.state.as_ref().map(|path| path.display().to_string());
    let workers = u8::try_from(worker.count().get()).unwrap_or(u8::MAX);
    let reply = Reply::Replacing { pid: std::process::id(), workers, state };
    (&mut &*stream).write_all(reply.to_line().as_bytes())?;
    offer::serve(channel, worker, host_side, offer, events)
}

/// A file in the format of Linux's `/proc/net`.
fn stat_file(name: &str, reader: Reader<'_>, shared: &Shared) -> Reply {
    let none = || Reply::Error { message: format!("there is no file named {name}") };
    let Some(what) = procfs::shows(name) else { return none() };
    match show(what, reader, shared).map(|shown| procfs::text(name, &shown)) {
        Ok(Some(text)) => Reply::StatFile { text },
        Ok(None) => none(),
        Err(err) => Reply::Error { message: err.to_string() },
    }
}

/// Requests the main thread to apply a file, that of the first descriptor if there is one, and waits for the outcome. Meanwhile the
/// client gets the progress, if it has asked for that.
fn load(
    events: &Sender<Event>,
    file: PathBuf,
    descriptors: Vec<OwnedFd>,
    stream: &UnixStream,
    with_progress: bool,
) -> Result<String, String> {
    let opened = descriptors.into_iter().next().map(File::from);
    let client = stream.as_fd().try_clone_to_owned().map_err(|err| format!("duplicate a descriptor: {err}"))?;
    let (reply, answer) = channel();
    let progress = Arc::new(LoadProgress::default());
    let request = LoadRequest { file, opened, client, progress: Arc::clone(&progress), reply };
    events.send(Event::Load(request)).map_err(|_| is_ending())?;
    loop {
        match answer.recv_timeout(PROGRESS_INTERVAL) {
            Ok(outcome) => return outcome,
            Err(RecvTimeoutError::Disconnected) => return Err(is_ending()),
            // The load goes on without the client.
            Err(RecvTimeoutError::Timeout) if with_progress => {
                let _ = (&mut &*stream).write_all(progress.reply().to_line().as_bytes());
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

fn is_ending() -> String {
    "the gateway is ending".to_owned()
}

/// Requests the main thread to save the state that netlink clients have set, and waits for the outcome.
fn save(events: &Sender<Event>) -> Result<String, String> {
    ask(events, |reply| Event::Save { reply })
}

fn ask(events: &Sender<Event>, what: impl FnOnce(Sender<Result<String, String>>) -> Event) -> Result<String, String> {
    let (reply, answer) = channel();
    events.send(what(reply)).map_err(|_| is_ending())?;
    answer.recv().unwrap_or_else(|_| Err(is_ending()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_without_a_run_directory_is_told_the_variables() {
        let at = |kind: io::ErrorKind| not_made(Path::new("/run/fatpath/l.sock"), "bind", &kind.into()).message;
        let denied = at(io::ErrorKind::PermissionDenied);
        let want = "/run/fatpath/l.sock: bind: permission denied; set XDG_RUNTIME_DIR or FATPATH_RUNDIR to a directory";
        assert!(denied.starts_with(want), "{denied}");
        assert_eq!(at(io::ErrorKind::StorageFull), "/run/fatpath/l.sock: bind: no storage space");
    }
}
