//! The control socket: one thread per client, which calls the worker or the main thread and writes the reply.
//!
//! A client can neither delay the worker (it runs calls between two bursts) nor fill memory: lines of requests and the
//! number of clients are limited, and a capture that is read too slowly loses packets instead of holding them.

use std::convert::Infallible;
use std::fs::{File, Permissions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use client::{CliError, passing};
use ctl::request::MAX_REQUEST_LEN;
use ctl::{Reply, Request, Shown, procfs};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use rustix::net::SocketFlags;

use super::acceptor::Acceptor;
use super::capture::stream_capture;
use super::command::Handle;
use super::confine;
use super::events::Event;
use super::host::{Entrance, HostSide};
use super::monitor::{stream_drops, stream_events};
use super::netlink::Shared;
use super::replace::offer::{self, Offer};
use super::show::show;
use super::threads::{Pulse, Threads};
use super::trace::stream_traces;
use crate::files;

/// Limit of simultaneous clients; a further client is refused and may retry.
const MAX_CLIENTS: usize = 32;

/// Longest time that a client may take to read its reply.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);

/// State for serving clients' commands.
#[derive(Clone, Debug)]
struct Served {
    worker: Handle,
    shared: Shared,
    host_side: HostSide,
    events: Sender<Event>,
    offer: Arc<Offer>,
}

/// Listening socket. Drop removes its file.
#[derive(Debug)]
pub(crate) struct Server {
    path: PathBuf,
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
        let listener = files::listen(path, files::SocketRole::Control).map_err(|err| match err.kind() {
            io::ErrorKind::AddrInUse => is_running(path),
            _ => not_made(path, "bind", &err),
        })?;
        Ok(Self { path: path.to_owned(), listener: listener.into(), is_left: false })
    }

    /// Serves the clients of a socket of the gateway before, which is bound to `path`.
    pub(crate) fn take(listener: OwnedFd, path: &Path) -> Self {
        Self { path: path.to_owned(), listener: listener.into(), is_left: false }
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
        offer: Offer,
        threads: &Threads,
    ) -> Result<(), CliError> {
        let failed = |err: io::Error| CliError::failed(format!("{}: {err}", self.path.display()));
        let listener = self.listener.try_clone().map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let mut acceptor = Acceptor::new(listener.into(), "control socket");
        let host_side = shared.lock().host_side.clone();
        let (worker, shared, events, offer) = (worker.clone(), shared.clone(), events.clone(), Arc::new(offer));
        let served = Served { worker, shared, host_side, events, offer };
        let starter = threads.clone();
        let pinged = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|err| failed(err.into()))?;
        let pinged = Arc::new(pinged);
        let pinger = Arc::clone(&pinged);
        let pulse = threads.watch("control", move |_| {
            // A full counter already wakes the thread.
            let _ = rustix::io::write(&pinger, &1_u64.to_ne_bytes());
        });
        let run = move || accept(&mut acceptor, &pinged, &pulse, &served, &starter);
        threads.spawn("control", run).map_err(failed)
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
    let clients = Arc::new(AtomicUsize::new(0));
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
            Ok(Some(accepted)) => UnixStream::from(accepted.fd),
            Ok(None) => continue,
            Err(err) => {
                tracing::debug!("control socket: accept: {err}");
                thread::sleep(Duration::from_millis(100));
                continue;
            }
        };
        if clients.fetch_add(1, Ordering::Relaxed) >= MAX_CLIENTS {
            clients.fetch_sub(1, Ordering::Relaxed);
            let message = format!("{MAX_CLIENTS} clients are connected already");
            let _ = (&stream).write_all(Reply::Error { message }.to_line().as_bytes());
            continue;
        }
        let (served, clients) = (served.clone(), Arc::clone(&clients));
        let spawned = threads.spawn("client", {
            let clients = Arc::clone(&clients);
            move || -> Result<(), Infallible> {
                if let Err(err) = serve(&stream, &served) {
                    tracing::debug!("a control client disconnected: {err}");
                }
                clients.fetch_sub(1, Ordering::Relaxed);
                Ok(())
            }
        });
        if let Err(err) = spawned {
            clients.fetch_sub(1, Ordering::Relaxed);
            tracing::warn!("control socket: cannot start a thread: {err}");
        }
    }
}

/// Bytes of a client, with the descriptors that came with the last of them.
#[derive(Debug)]
struct Received<'a> {
    stream: &'a UnixStream,
    descriptors: Vec<OwnedFd>,
}

impl Read for Received<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let (len, descriptors) = passing::receive(self.stream, buffer)?;
        if !descriptors.is_empty() {
            self.descriptors = descriptors;
        }
        Ok(len)
    }
}

/// Serves one client until it disconnects.
fn serve(stream: &UnixStream, served: &Served) -> io::Result<()> {
    let Served { worker, shared, host_side, events, offer } = served;
    stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
    let mut lines = BufReader::new(Received { stream, descriptors: Vec::new() });
    let mut line = String::new();
    loop {
        line.clear();
        if (&mut lines).take(MAX_REQUEST_LEN as u64 + 2).read_line(&mut line)? == 0 {
            return Ok(());
        }
        let descriptors = std::mem::take(&mut lines.get_mut().descriptors);
        let reply = match Request::from_line(line.trim_end()) {
            Ok(Request::Ping) => Reply::Pong { version: env!("CARGO_PKG_VERSION").to_owned(), pid: std::process::id() },
            Ok(Request::Show { what }) => match show(what, worker, shared) {
                Ok(shown) => Reply::Show { shown },
                Err(err) => Reply::Error { message: err.to_string() },
            },
            Ok(Request::Load { file }) => match load(events, file.into(), descriptors, stream) {
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
            Ok(Request::StatFile { name }) => stat_file(&name, worker, shared),
            Ok(Request::Monitor) => return stream_events(stream, worker),
            Ok(Request::MonitorDrops) => return stream_drops(stream, worker),
            Ok(Request::Trace { filter, packets }) => return stream_traces(stream, worker, &filter, packets),
            Ok(Request::Capture { link, after_gro }) => return stream_capture(stream, worker, link, after_gro),
            Err(message) => Reply::Error { message },
        };
        let bad = matches!(reply, Reply::Error { .. });
        (&mut &*stream).write_all(reply.to_line().as_bytes())?;
        if bad && !line.ends_with('\n') {
            // The end of a line that was too long would be parsed as requests.
            return Ok(());
        }
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
fn stat_file(name: &str, worker: &Handle, shared: &Shared) -> Reply {
    let none = || Reply::Error { message: format!("there is no file named {name}") };
    let Some(what) = procfs::shows(name) else { return none() };
    match show(what, worker, shared).map(|shown| procfs::text(name, &shown)) {
        Ok(Some(text)) => Reply::StatFile { text },
        Ok(None) => none(),
        Err(err) => Reply::Error { message: err.to_string() },
    }
}

/// Requests the main thread to apply a file, that of the first descriptor if there is one, and waits for the outcome.
fn load(
    events: &Sender<Event>,
    file: PathBuf,
    descriptors: Vec<OwnedFd>,
    client: &UnixStream,
) -> Result<String, String> {
    let opened = descriptors.into_iter().next().map(File::from);
    let client = client.as_fd().try_clone_to_owned().map_err(|err| format!("duplicate a descriptor: {err}"))?;
    ask(events, |reply| Event::Load { file, opened, client, reply })
}

/// Requests the main thread to save the state that netlink clients have set, and waits for the outcome.
fn save(events: &Sender<Event>) -> Result<String, String> {
    ask(events, |reply| Event::Save { reply })
}

fn ask(events: &Sender<Event>, what: impl FnOnce(Sender<Result<String, String>>) -> Event) -> Result<String, String> {
    let (reply, answer) = channel();
    let gone = || "the gateway is ending".to_owned();
    events.send(what(reply)).map_err(|_| gone())?;
    answer.recv().unwrap_or_else(|_| Err(gone()))
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
