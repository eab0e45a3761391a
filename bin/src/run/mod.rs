//! `fatpath run`: the daemon.
//!
//! Four kinds of threads: the worker, which alone touches packets; one per control client; one for all of netlink's; and
//! this one, which waits for signals. What the node is to become is planned here, where it may fail and take its time, and handed to the
//! worker as a whole.

mod capture;
mod command;
mod crypto;
mod features;
mod ike;
mod monitor;
mod netlink;
mod news;
mod node;
mod poller;
mod priority;
mod reassembly;
mod rehearse;
mod sadb;
mod server;
mod service;
mod snapshot;
mod store;
mod worker;
mod xfrm;

#[cfg(any(test, feature = "fuzzing"))]
pub use sadb::Alone;

use std::any::Any;
use std::convert::Infallible;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use control::Config;
use control::sysctl::Settings;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle as SignalsHandle, Signals};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use crate::cli::RunArgs;
use crate::client::socket_path;
use crate::config_file;
use crate::error::CliError;
use crate::lines::{self, IpLines};
use command::{Command, Handle, WorkerGone};
use ike::{IkeFile, IkeSocket};
use netlink::{NetlinkServer, Shared};
use node::{Node, Plan};
pub(crate) use rehearse::{Made, rehearse};
use server::Server;
use store::{Collected, Keeper, OfFiles, Store};
use worker::Worker;

/// How long the worker may take to end.
const END_LIMIT: Duration = Duration::from_millis(1500);

/// Which log lines are wanted.
const LOG_VARIABLE: &str = "FATPATH_LOG";

/// Runs a gateway until SIGTERM or SIGINT.
///
/// # Errors
/// If the configuration is wrong, something that it needs is missing, or the worker fails.
pub(crate) fn main(args: &RunArgs) -> Result<(), CliError> {
    start_log()?;
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).map_err(|err| failed("catch signals", &err))?;
    let sources = config_file::load_all(&args.config)?;
    let store = args.state.as_deref().map(Store::open).transpose()?;
    let socket = socket_path(&args.instance);
    server::check_vacant(&socket)?;

    raise_descriptor_limit();
    let mut daemon = Daemon::start(sources.config, sources.file, &socket, signals.handle())?;
    let server = Server::bind(&socket)?;
    let is_ended = || signals.pending().any(|signal| signal != SIGHUP);
    let Some(mut netlink) = daemon.carry_out(&socket, &sources.lines, is_ended)? else {
        return daemon.worker.stop();
    };
    if let Some(store) = store {
        daemon.restore(store)?;
    }
    netlink.move_to(&socket.with_extension("netlink"))?;
    daemon.worker.hold(false).map_err(CliError::failed)?;
    let (events, happened) = channel();
    server.serve(&daemon.worker.handle, &events)?;
    tracing::info!("{}: running with {}", args.instance, daemon.links());
    pass_on(signals, events).map_err(|err| failed("start a thread", &err))?;
    service::ready(&format!("running with {}", daemon.links()));
    daemon.run(&args.instance, happened)
}

/// What the daemon waits for.
enum Event {
    /// A signal has come.
    Signal(i32),
    /// A client asks to become what a file says.
    Load { file: PathBuf, reply: Sender<Result<String, String>> },
    /// A client asks to save what programs have set.
    Save { reply: Sender<Result<String, String>> },
    /// The worker has ended.
    WorkerEnded,
}

/// Has a thread pass signals on as events.
fn pass_on(mut signals: Signals, events: Sender<Event>) -> io::Result<()> {
    thread::Builder::new().name("signals".to_owned()).spawn(move || {
        signals.forever().try_for_each(|signal| events.send(Event::Signal(signal)).ok());
        // Only the end of the worker ends the signals. At the daemon's own end nobody listens any more.
        let _ = events.send(Event::WorkerEnded);
    })?;
    Ok(())
}

/// Log lines go to standard error.
fn start_log() -> Result<(), CliError> {
    let filter = match std::env::var(LOG_VARIABLE) {
        Ok(wanted) => log_filter(&wanted)?,
        Err(_) => EnvFilter::new("info"),
    };
    let ansi = io::stderr().is_terminal();
    // A log that nobody reads any more, or a full disk, is no reason to end.
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).with_ansi(ansi);
    log.log_internal_errors(false).with_target(false).init();
    Ok(())
}

/// What is logged if `wanted` is: a level, or several for parts of the program. A word that is no level would be taken for a part,
/// and nothing be logged of the others.
fn log_filter(wanted: &str) -> Result<EnvFilter, CliError> {
    let level = |part: &str| part.rsplit('=').next().unwrap_or_default().trim().to_owned();
    let mut levels = wanted.split(',').map(level).filter(|level| !level.is_empty());
    if let Some(wrong) = levels.find(|level| level.parse::<LevelFilter>().is_err()) {
        let text = format!("{LOG_VARIABLE}: {wrong} is no level; use error, warn, info, debug, trace or off.");
        return Err(CliError::failed(text));
    }
    EnvFilter::try_new(wanted).map_err(|err| CliError::failed(format!("{LOG_VARIABLE}: {err}.")))
}

/// Lets this process have as many descriptors as it may: each client has one, and each queue of a link.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    if let Err(err) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::warn!("limit of descriptors: {err}");
    }
}

fn failed(what: &str, err: &io::Error) -> CliError {
    CliError::failed(format!("{what}: {err}"))
}

/// A gateway that runs.
struct Daemon {
    file: Option<PathBuf>,
    /// A file of `ip` lines that were carried out at start, and make what it is together with `file`.
    lines: Option<String>,
    node: Node,
    worker: Running,
    ike: IkePlace,
    /// What netlink's clients see and change.
    shared: Shared,
    /// Where what they have set is saved, and what of the node is not theirs.
    saved: Option<(Keeper, OfFiles)>,
}

/// Where the key manager's socket is. It is made when a link first has IKE, and stays.
struct IkePlace {
    path: PathBuf,
    file: Option<IkeFile>,
}

impl IkePlace {
    /// Opens the socket that `plan` takes along, if it is the first that needs one. Its file goes with what is returned,
    /// unless it is [kept](Self::keep).
    fn open_for(&self, plan: &mut Plan) -> Result<Option<IkeFile>, CliError> {
        if self.file.is_some() || plan.ike.is_empty() {
            return Ok(None);
        }
        let (socket, file) = IkeSocket::open(&self.path)?;
        plan.ike_socket = Some(socket);
        Ok(Some(file))
    }

    fn keep(&mut self, file: Option<IkeFile>) {
        self.file = file.or_else(|| self.file.take());
    }
}

impl Daemon {
    /// Starts a worker that is what `config` says, of `file`, and holds it: until the node is whole, what is to be protected
    /// might pass in clear.
    fn start(config: Config, file: Option<PathBuf>, socket: &Path, signals: SignalsHandle) -> Result<Self, CliError> {
        let (node, mut plan) = Node::default().plan(config)?;
        let mut ike = IkePlace { path: socket.with_extension("ike"), file: None };
        let ike_file = ike.open_for(&mut plan)?;
        ike.keep(ike_file);
        let worker = Running::start(signals).map_err(|err| failed("start the worker", &err))?;
        worker.hold(true).map_err(CliError::failed)?;
        worker.apply(plan).map_err(CliError::failed)?;
        let shared = Shared::new(&worker.handle, node::open);
        node.tell(&worker.handle, &mut shared.lock()).map_err(CliError::failed)?;
        shared.lock().sysctl.follow(Settings::of(node.config()));
        Ok(Self { file, lines: None, node, worker, ike, shared, saved: None })
    }

    /// Does what signals and clients ask for until the daemon is to end, or the worker has ended.
    fn run(mut self, instance: &str, happened: Receiver<Event>) -> Result<(), CliError> {
        for event in happened {
            match event {
                Event::Signal(SIGHUP) => {
                    service::reloading();
                    let outcome = self.reload();
                    self.tell_of_reload(instance, &outcome);
                }
                Event::Load { file, reply } => {
                    let outcome = self.load(file);
                    self.tell_of_reload(instance, &outcome);
                    // Whoever asked may have lost patience.
                    let _ = reply.send(outcome.map(|()| self.links()));
                }
                Event::Save { reply } => {
                    let outcome = self.save();
                    match &outcome {
                        Ok(what) => tracing::info!("{instance}: {what}"),
                        Err(why) => tracing::error!("{instance}: not saved: {why}"),
                    }
                    // As above.
                    let _ = reply.send(outcome);
                }
                Event::Signal(_) => {
                    tracing::info!("{instance}: ending");
                    service::stopping();
                    return self.end();
                }
                Event::WorkerEnded => break,
            }
        }
        Err(self.worker.failure())
    }

    /// Tells the service manager and the log what has become of a reload.
    fn tell_of_reload(&self, instance: &str, outcome: &Result<(), String>) {
        let links = self.links();
        match outcome {
            Ok(()) => {
                service::ready(&format!("running with {links}"));
                tracing::info!("{instance}: reloaded, running with {links}");
            }
            Err(why) => {
                service::ready(&format!("running with {links}; not reloaded: {why}"));
                tracing::error!("{instance}: not reloaded, nothing has changed: {why}");
            }
        }
    }

    /// Becomes what its file says now, or stays what it is and says why.
    fn reload(&mut self) -> Result<(), String> {
        if let Some(lines) = &self.lines {
            return Err(lines::only_at_start(lines));
        }
        let file = self.file.clone().ok_or("it was started without a file; `fatpath load` gives it one")?;
        self.load(file)
    }

    /// Becomes what `file` says, which is its file from now on; or stays what it is and says why.
    fn load(&mut self, file: PathBuf) -> Result<(), String> {
        let config = config_file::load(&file).map_err(|err| err.message)?;
        let named = |why: String| format!("{}: {why}", file.display());
        // Nobody changes the node by netlink meanwhile.
        let shared = self.shared.clone();
        let mut protocols = shared.lock();
        self.node.follow(&protocols.rtnl.model);
        let (node, mut plan) = self.node.plan(config).map_err(|err| named(err.message))?;
        let ike = self.ike.open_for(&mut plan).map_err(|err| named(err.message))?;
        let settings =
            protocols.sysctl.settings().reloaded(&Settings::of(self.node.config()), &Settings::of(node.config()));
        plan.settings = plan.settings.map(|_| settings);
        self.worker.apply(plan).map_err(named)?;
        protocols.sysctl.follow(settings);
        self.ike.keep(ike);
        (self.node, self.file, self.lines) = (node, Some(file), None);
        self.node.tell(&self.worker.handle, &mut protocols)?;
        if let Some((keeper, of_files)) = &mut self.saved {
            *of_files = OfFiles::loaded(Collected::of(&mut protocols)?, self.node.config());
            keeper.follow(of_files.sas());
        }
        Ok(())
    }

    /// Serves netlink's clients beside the control socket `socket`, where nobody finds that, and carries `lines` out. `None`:
    /// `is_ended` came before that was done.
    ///
    /// # Errors
    /// Of the lines, or of the socket.
    fn carry_out(
        &mut self,
        socket: &Path,
        lines: &[IpLines],
        mut is_ended: impl FnMut() -> bool,
    ) -> Result<Option<NetlinkServer>, CliError> {
        let starting = socket.with_extension("starting");
        let server = NetlinkServer::start(&starting, self.shared.clone(), &self.worker.handle)?;
        self.lines = lines.first().map(|lines| lines.name().to_owned());
        for lines in lines {
            if !lines.carry_out(&starting, &mut is_ended)? {
                return Ok(None);
            }
        }
        self.node.follow(&self.shared.lock().rtnl.model);
        Ok(Some(server))
    }

    /// Becomes what `store` holds, beside what it is; and keeps that from now on.
    ///
    /// # Errors
    /// It cannot.
    fn restore(&mut self, store: Store) -> Result<(), CliError> {
        let mut state = store.read()?;
        let shared = self.shared.clone();
        let mut protocols = shared.lock();
        let of_files = OfFiles::all(Collected::of(&mut protocols).map_err(CliError::failed)?);
        store::skip(&state.marks, of_files.sas(), &self.worker.handle)
            .map_err(|gone| CliError::failed(gone.to_string()))?;
        let [done, left] = store::restore(&mut state, store.path(), &mut protocols)?;
        self.node.follow(&protocols.rtnl.model);
        let (place, all) = (store.path().display(), done + left);
        match left {
            0 => tracing::info!("{place}: {all} saved requests restored"),
            _ => tracing::info!("{place}: {done} of {all} saved requests restored; the configuration has the others"),
        }
        let keeper = Keeper::start(store, state.marks, of_files.sas(), &self.worker.handle)?;
        self.saved = Some((keeper, of_files));
        Ok(())
    }

    /// Keeps what programs have set, over a restart. What that is, in words, and where.
    fn save(&mut self) -> Result<String, String> {
        let (keeper, of_files) = self.saved.as_ref().ok_or("this gateway was started without --state FILE")?;
        let (state, what) = Collected::of(&mut self.shared.lock())?.without(of_files);
        let file = keeper.save(state, of_files.sas(), &self.worker.handle)?;
        Ok(format!("{what}: saved to {file}"))
    }

    /// Ends.
    fn end(self) -> Result<(), CliError> {
        if let Some((keeper, _)) = &self.saved {
            let noted = self.worker.hold(true).and_then(|()| keeper.end(&self.worker.handle));
            if let Err(err) = noted {
                tracing::warn!("where SAs are was not saved: {err}");
            }
        }
        self.worker.stop()
    }

    /// `2 links: tun0, wan`.
    fn links(&self) -> String {
        let names: Vec<&str> = self.node.config().links.iter().map(|link| link.name.as_str()).collect();
        match names.len() {
            0 => "no links".to_owned(),
            1 => format!("1 link: {}", names[0]),
            n => format!("{n} links: {}", names.join(", ")),
        }
    }
}

/// The worker's thread.
struct Running {
    handle: Handle,
    thread: JoinHandle<io::Result<()>>,
    /// Nothing comes here; it is closed when the worker has ended.
    ended: Receiver<Infallible>,
}

/// Tells everybody that the worker has ended, also when it panicked.
struct Ending {
    signals: SignalsHandle,
    _ended: Sender<Infallible>,
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.signals.close();
    }
}

impl Running {
    fn start(signals: SignalsHandle) -> io::Result<Self> {
        let (handle, inbox) = command::channel()?;
        let worker = Worker::new(inbox)?;
        Self::spawn(handle, signals, || worker.run())
    }

    fn spawn(
        handle: Handle,
        signals: SignalsHandle,
        work: impl FnOnce() -> io::Result<()> + Send + 'static,
    ) -> io::Result<Self> {
        let (sender, ended) = channel();
        let ending = Ending { signals, _ended: sender };
        let thread = thread::Builder::new().name("worker".to_owned()).spawn(move || {
            let _ending = ending;
            priority::go_first();
            work()
        })?;
        Ok(Self { handle, thread, ended })
    }

    /// Has the worker become what `plan` says, however long that takes: the next plan begins where this one ends.
    fn apply(&self, plan: Plan) -> Result<(), String> {
        let (reply, answer) = channel();
        self.handle.send(Command::Apply(Box::new(plan), reply)).map_err(|gone| gone.to_string())?;
        answer.recv().unwrap_or_else(|_| Err(WorkerGone.to_string()))
    }

    /// Has no packet move from now on, or has them move again.
    fn hold(&self, held: bool) -> Result<(), String> {
        self.handle.call(move |worker| worker.hold(held)).map_err(|gone| gone.to_string())
    }

    /// Ends the worker.
    fn stop(self) -> Result<(), CliError> {
        // If it does not take the command it has ended, and says why below.
        let _ = self.handle.send(Command::Stop);
        match self.ended.recv_timeout(END_LIMIT) {
            Err(RecvTimeoutError::Timeout) => {
                Err(CliError::failed(format!("the worker did not end within {} ms", END_LIMIT.as_millis())))
            }
            Err(RecvTimeoutError::Disconnected) => match self.thread.join() {
                Ok(Ok(())) => Ok(()),
                Ok(Err(err)) => Err(failed("the worker ended", &err)),
                Err(panic) => Err(panicked(&*panic)),
            },
            Ok(never) => match never {},
        }
    }

    /// Why the worker ended although nobody told it to.
    fn failure(self) -> CliError {
        match self.thread.join() {
            Ok(Ok(())) => CliError::failed("the worker ended"),
            Ok(Err(err)) => failed("the worker ended", &err),
            Err(panic) => panicked(&*panic),
        }
    }
}

fn panicked(panic: &(dyn Any + Send)) -> CliError {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    CliError::failed(format!("the worker panicked: {}", text.unwrap_or("without a message")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is said of a worker that does `work` and is not told to stop.
    fn said_of(work: fn() -> io::Result<()>) -> String {
        let mut signals = Signals::new([SIGHUP]).unwrap();
        let (handle, _inbox) = command::channel().unwrap();
        let worker = Running::spawn(handle, signals.handle(), work).unwrap();
        assert_eq!(signals.forever().next(), None);
        worker.failure().message
    }

    #[test]
    fn a_word_that_is_no_level_is_refused() {
        for wrong in ["wanr", "verbose", "info,wanr", "fatpath=loud"] {
            let said = log_filter(wrong).unwrap_err().message;
            assert!(said.contains("is no level; use error, warn, info"), "{said}");
        }
        for right in ["info", "WARN", "off", "fatpath=debug,warn", ""] {
            log_filter(right).unwrap();
        }
    }

    #[test]
    fn a_worker_that_ends_ends_the_wait_and_says_why() {
        assert_eq!(said_of(|| Ok(())), "the worker ended");
        assert_eq!(said_of(|| Err(io::Error::other("epoll: no"))), "the worker ended: epoll: no");
        assert_eq!(said_of(|| panic!("7 is not 8")), "the worker panicked: 7 is not 8");
        assert_eq!(said_of(|| panic!("{} is not 8", 6 + 1)), "the worker panicked: 7 is not 8");
    }

    #[test]
    fn a_worker_stops_when_it_is_told_and_answers_nobody_after() {
        let signals = Signals::new([SIGHUP]).unwrap();
        let worker = Running::start(signals.handle()).unwrap();
        let handle = worker.handle.clone();
        let shown = handle.show(control::What::Links).map_err(|gone| gone.to_string());
        assert_eq!(shown, Ok(control::Shown::Links(Vec::new())));
        assert_eq!(worker.stop().map_err(|err| err.message), Ok(()));
        assert!(handle.show(control::What::Links).is_err());
    }
}
