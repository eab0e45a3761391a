//! The daemon: a gateway or router as a process, for `fatpath run` and the clients that ask it. [`run`] is the whole of
//! it.
//!
//! # Decides
//! Threads, the time at which the configuration or a program's request takes effect, the state that is kept over a
//! restart, the replacement of a running gateway by the next one, and permissions of users. [`check`] tries files out
//! without a device; [`load_config`] reads one alone.
//!
//! Threads: the worker, which alone touches packets; crypto threads, if configured; the netlink thread, for all netlink
//! clients; one per control client, and `control` and `view`, which accept them; `signals`, `state` (sequence numbers),
//! `host-side` and `devices` (changes by other programs); and the main one, which handles their events. The main thread plans the next
//! configuration, where planning may fail and take its time, and hands it to the worker as a whole.
//!
//! A program that calls [`run`] also calls [`open_for_gateway`] when its first argument is `opener`: the daemon starts its own
//! program so, as the processes that have its capabilities.
//!
//! # Leaves to others
//! Packets (crate `datapath` and those below), system calls of links (crate [`link`]), contents of files and requests
//! (crates `config`, `ctl` and `netlink`), paths of sockets and form of errors (crate [`client`]), and the command line
//! (program `fatpath`).
//!
//! # Limits
//! - 32 control clients and 16 that only look (`Access` in `server.rs`), each with 5 seconds to read its answer (`WRITE_TIMEOUT`).
//! - 1024 netlink clients, of which 512 may be read-only, 64 of one user, and fewer if the process may have few
//!   descriptors (`Limits` in `netlink/service.rs`).
//! - Configuration files of 256 MiB (`MAX_LEN` in `config_file.rs`).
//! - Memory: `[limits] memory`, or nine tenths of the system's limits (`budget.rs`).
//! - 10 000 routes on the host side (`MAX_ROUTES` in `host/requested.rs`).
//! - 1024 events, traces or captured packets that wait for a slow reader (`QUEUE` in `monitor.rs`, `trace.rs` and
//!   `capture.rs`).
//!
//! # Standards
//! No RFC.
//!
//! # Layers
//! The modules form layers, each of which uses those below it:
//!
//! | layer | modules |
//! |---|---|
//! | the daemon | this one, `daemon`, `dry_run` |
//! | other threads, which know a handle to the worker and the node | `store`, `sa_warnings`, `planner`, `netlink`, `host`, `server`, `replace`, `monitor`, `capture`, `trace`, `device::guard` |
//! | the worker's thread | `running`, `worker` |
//! | calls that other threads send to it | `command` |
//! | functions over the node | `snapshot`, `rows`, `apply`, `notifications`, `links`, `host_ports`, `sadb` |
//! | the node: all that the worker owns | `node` |
//! | its parts | `sadb::pending`, `slot`, `host_device`, `ike`, `captures`, `traces`, `monitors`, `event_queue`, `poller`, and `plan` with `xfrm` |
//! | helpers | `records`, `translate`, `device`, `open`, `files`, `opener`, `replace::held`, `rtnetlink`, `threads`, `events`, `confine`, `budget`, `unix_socket`, `viewers`, `acceptor`, `privilege`, `random`, `journal`, `framing`, `sa_name` and others |

mod acceptor;
mod apply;
mod as_text;
mod bridges;
mod budget;
mod capture;
mod captures;
mod command;
mod config_file;
mod confine;
mod crypto;
mod daemon;
mod device;
mod dry_run;
mod event_queue;
mod events;
mod files;
mod framing;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod host;
mod host_device;
mod host_ports;
mod ike;
mod ip_batch;
mod journal;
mod links;
mod monitor;
mod monitors;
mod netlink;
mod node;
mod notifications;
mod open;
mod opener;
mod pace;
mod path_hash;
mod places;
mod plan;
mod planner;
mod poller;
mod priority;
mod privilege;
mod processors;
mod random;
mod records;
mod reload_summary;
mod replace;
mod rows;
mod rtnetlink;
mod running;
mod sa_name;
mod sa_warnings;
mod sadb;
mod server;
mod service;
mod show;
mod slot;
mod snapshot;
mod store;
mod sums;
mod threads;
mod trace;
mod trace_parts;
mod traces;
mod translate;
mod unix_socket;
mod viewers;
mod worker;
mod xfrm;

#[cfg(any(test, feature = "fuzzing"))]
pub use sadb::Alone;

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf, absolute};
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use client::{CliError, gateway_program, own_socket_path, raise_descriptor_limit, roots_socket_path, view_socket};
use config::Config;
use config::model::HostSide;
pub use confine::LinkRight;
use confine::{Places, Sandbox, User, UserIds};
use driver::DriverKind;
use packet::Allocations;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use self::netlink::start_discard;
pub use config::Meter;
use config_file::Sources;
pub use config_file::{Warning, expand as expand_config, load as load_config};
use daemon::{Daemon, EarlierSas, RunEnd};
pub use device::{Removed, remove as remove_devices};
pub use dry_run::{ObjectCounts, check};
use events::Event;
pub use host::place as host_place;
use node::{Node, since_boot};
use opener::child::{self, Child};
use opener::files::{Directory, Named};
pub use opener::process::OpenerWork;
use replace::earlier::{EarlierGateway, Taken};
use replace::guests;
use replace::held::{self, Socket};
use replace::kept::{self, KeptNames};
use server::{Access, Server};
pub use store::check_state;
use store::{KeptState, Store};
use threads::Threads;

/// Environment variable that selects log lines.
const LOG_VARIABLE: &str = "FATPATH_LOG";

/// Time between two looks at links that are opened after a gateway was replaced, and the number of looks.
const LINKS_INTERVAL: Duration = Duration::from_millis(10);
const LINKS_PATIENCE: u32 = 50;

/// Option of the command line for a gateway that replaces another one.
const REPLACE: &str = "--replace";

/// Place of the state that a gateway keeps over a restart.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum StatePlace<'a> {
    /// A file in the directory of this user's states. If it cannot be made, the gateway runs without.
    Default,
    /// A file.
    File(&'a Path),
    /// No state is kept.
    None,
}

/// Options of a gateway.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RunOptions {
    /// Whether the gateway replaces the running one of its name.
    pub replaces: bool,
    /// Whether the devices that the gateway makes stay when it ends, until they are [removed](remove_devices).
    pub keeps_devices: bool,
    /// Whether the gateway restricts its own process.
    pub is_confined: bool,
    /// Name or number of the user that a gateway of root changes to; `None`: `fatpath`, if the host has it.
    pub user: Option<String>,
    /// Kinds of links that a reload or a program may add, besides those of the configuration. Without any, and without a
    /// TOML file, all.
    pub allowed_links: Vec<LinkRight>,
}

/// Runs the gateway `instance` until SIGTERM or SIGINT: from configuration files, and with the state that an earlier
/// run has kept in `state`.
///
/// # Errors
/// The configuration is wrong, a resource is missing, or the worker fails.
pub fn run(config: &[PathBuf], state: StatePlace<'_>, instance: &str, options: RunOptions) -> Result<(), CliError> {
    // The log may have a socket of its own from here on.
    let taken = service::take_passed();
    start_log(instance)?;
    service::started_ms();
    device::set_owner(instance, options.keeps_devices);
    let mut sandbox = Sandbox::begin(options.is_confined, taken)?;
    let resumed = opener::request::resume().map_err(CliError::failed)?;
    // A new start is that of the user, and reads no users any more.
    let has_choice = options.is_confined && !opener::inherited::is_started_anew();
    let user = if has_choice { User::of_gateway(options.user.as_deref())? } else { None };
    // Openers are in the group, too.
    viewers::join();
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).map_err(|err| CliError::system("catch signals", &err))?;
    budget::start();
    let mut sources = config_file::load_all(config)?;
    sources.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    let socket = if confine::is_of_root() { roots_socket_path(instance) } else { own_socket_path(instance) };
    server::make_dir(&socket)?;
    // Each client and each queue of a link needs a descriptor, also one that is passed.
    if let Err(err) = raise_descriptor_limit() {
        tracing::warn!("limit of descriptors: {err}");
    }
    let mut stored = kept::take();
    let replaced = match options.replaces {
        true => Some(EarlierGateway::connect(instance, &socket)?),
        false => {
            // Connections to the socket of a service wait in its manager.
            if !held::has_socket(Socket::Control) {
                server::check_vacant(&socket)?;
            }
            None
        }
    };
    let mut kept = None;
    let mut earlier = None;
    let state_file = match &replaced {
        // The gateway before has the state, perhaps by another path to it.
        Some(replaced) => fit(&mut sources.config, state, instance, replaced)?,
        None => {
            kept = read_state(state, instance, &socket)?;
            earlier = EarlierSas::stored();
            kept.as_ref().map(|kept| kept.store.path().to_owned())
        }
    };
    let directories = directories(config, &sources, &socket, state_file.as_deref());
    let user = user.map_or(Ok(None), |user| within_reach(user, &directories, &mut sandbox))?;
    let directories = without_reachable(directories, user.as_ref().map(|user| user.ids));
    let asked = Asked { config, sources: &sources, options: &options, instance, socket: &socket, user, directories };
    let Openers { links, mut host_side } = Openers::start(&mut sandbox, &asked, resumed)?;
    sandbox.restrict_files(places(&asked, links.is_some()));
    opener::calls::begin();
    held::remove_ended();
    let (events, happened) = channel();
    let threads = Threads::new(events.clone());
    let mut daemon = Daemon::start(sources.config, sources.file, &socket, signals.handle(), replaced.is_some())?;
    // The workers have their priorities.
    confine::settle_priority();
    let mut openers = links.iter().map(opener::request::Started::child).chain(host_side.iter().flatten());
    openers.try_for_each(|opener| opener.watch(&threads)).map_err(|err| CliError::system("start a thread", &err))?;
    let discard = start_discard(&threads)?;
    let starting = daemon.host_side().starting();
    // A start that may have to begin anew leaves the host side as it is.
    let mut has_changes = kept.as_ref().is_some_and(KeptState::has_changes);
    if !has_changes && replaced.is_none() {
        daemon.start_host_side(host_side.take(), &socket, &threads);
    }
    if stored.is_some() {
        daemon.take_ike();
    }
    let listen = || match held::take_socket(Socket::Control) {
        Some(listener) => Ok(Server::take(listener, &socket, Access::Full)),
        None => Server::bind(&socket),
    };
    let mut server = replaced.is_none().then(listen).transpose()?;
    // A reload that is asked for before the gateway runs is done when it does.
    let mut is_reloading = false;
    let mut is_ended = || {
        let pending: Vec<i32> = signals.pending().collect();
        is_reloading |= pending.contains(&SIGHUP);
        pending.iter().any(|signal| *signal != SIGHUP)
    };
    let Some(mut netlink) = daemon.carry_out(&socket, &sources.lines, &discard, &threads, &mut is_ended)? else {
        return daemon.end();
    };
    let (mut taken, mut is_attached) = (None, false);
    if let Some(replaced) = replaced {
        if let Some(path) = &state_file {
            daemon.prepare_restore()?;
            daemon.check_links(path).map_err(|err| not_replaced(instance, err))?;
        }
        Allocations::trim();
        if is_ended() {
            tracing::info!("{instance}: ending; the running gateway goes on");
            return daemon.end();
        }
        let mut took = replaced.take_over(daemon.has_host_side())?;
        daemon.take_over();
        kept = read_state(state, instance, &socket)?;
        earlier = took.sas.take().map(EarlierSas::passed);
        has_changes = kept.as_ref().is_some_and(KeptState::has_changes);
        if !has_changes {
            is_attached = daemon.attach_host_side(host_side.take(), &socket, &threads);
        }
        server = Some(listen()?);
        taken = Some(took);
    }
    let Some(server) = server else { return Err(CliError::failed("there is no control socket")) };
    let view = view_server(&socket);
    // A gateway that leaves no device behind is not meant to be restarted.
    if state == StatePlace::None && options.keeps_devices && daemon.has_sas() {
        tracing::warn!(
            "--state none: after a restart SAs with static keys begin their sequence numbers again, and peers drop their packets"
        );
    }
    let earlier = match &kept {
        Some(_) => earlier,
        None => earlier.and_then(|earlier| {
            earlier.discard();
            None
        }),
    };
    if let Some(kept) = kept
        && daemon.restore(kept, earlier, &threads)?
    {
        tracing::info!(
            "{instance}: programs had changed objects of the configuration, which count again; starting anew"
        );
        if stored.is_some() {
            // The program gets these sockets again.
            server.leave();
            if let Some(view) = view {
                view.leave();
            }
            daemon.leave_ike();
        } else {
            drop((server, view));
        }
        drop((netlink, starting));
        daemon.end()?;
        return Err(start_anew(links, host_side.and_then(Result::ok)));
    }
    if has_changes {
        daemon.start_host_side(host_side.take(), &socket, &threads);
    }
    // Clients find a gateway that is confined.
    opener::request::ready().map_err(CliError::failed)?;
    sandbox.filter(instance);
    let netlink_path = socket.with_extension("netlink");
    match held::take_socket(Socket::Netlink) {
        Some(listener) => netlink.take(listener, &netlink_path)?,
        None => netlink.move_to(&netlink_path)?,
    }
    // A device whose queue is open here is none that can be removed.
    let unused = held::close();
    if let Some(stored) = &stored {
        stored.remove(&unused);
    }
    take_guests(stored.as_mut(), &daemon);
    device::guard(&daemon.worker.handle, &threads).map_err(|err| CliError::system("start a thread", &err))?;
    if taken.is_none() {
        // Frees the memory that reading the file and planning took, before the worker would merge it between packets.
        Allocations::trim();
    }
    daemon.worker.hold(false).map_err(CliError::failed)?;
    if let Some(taken) = taken {
        report(instance, &taken, &unused, &daemon);
    }
    daemon.worker.watch(&threads);
    sa_warnings::start(&daemon.worker.handle, &threads)?;
    let failed = |err: io::Error| CliError::system("duplicate a socket", &err);
    let listeners = || -> Result<Vec<(Socket, OwnedFd)>, CliError> {
        let mut all = vec![
            (Socket::Control, server.listener().map_err(failed)?),
            (Socket::Netlink, netlink.listener().map_err(failed)?),
        ];
        if let Some(view) = &view {
            all.push((Socket::View, view.listener().map_err(failed)?));
        }
        Ok(all)
    };
    let (own, of_next) = (listeners()?, listeners()?);
    let offer = Arc::new(daemon.offer(of_next));
    for server in [&server].into_iter().chain(&view) {
        server.serve(&daemon.worker.handle, daemon.shared(), &events, &offer, &threads)?;
    }
    if let Some(stored) = stored {
        stored.release();
    }
    let links = daemon.links();
    links.log(&format!("{instance}: running"));
    if is_reloading {
        // The receiver is this thread's.
        let _ = events.send(Event::Signal(SIGHUP));
    }
    pass_on(signals, events, &threads).map_err(|err| CliError::system("start a thread", &err))?;
    service::ready(&format!("running with {links}"));
    starting.succeeded();
    if is_attached {
        daemon.follow_host_side();
    }
    let (end, outcome) = daemon.run(instance, happened, &own, &threads);
    // The next gateway has the sockets, however this one ends.
    if end == RunEnd::HandedOver {
        server.leave();
        if let Some(view) = view {
            view.leave();
        }
        netlink.leave();
    }
    outcome
}

/// The view socket: that of the gateway before, or a new one. The gateway also runs without.
fn view_server(socket: &Path) -> Option<Server> {
    let path = view_socket(socket);
    let view = match held::take_socket(Socket::View) {
        Some(listener) => Server::take_view(listener, &path),
        None => Server::bind_view(&path),
    };
    view.inspect_err(|err| tracing::warn!("no view socket: {}", err.message)).ok()
}

/// Opens and reads the state, if the gateway keeps one.
fn read_state(state: StatePlace<'_>, instance: &str, socket: &Path) -> Result<Option<KeptState>, CliError> {
    let store = match state {
        StatePlace::Default => Store::open_default(instance, socket.parent())?,
        StatePlace::File(path) => Some(Store::open(path)?),
        StatePlace::None => None,
    };
    store.map(KeptState::read).transpose()
}

/// The reason for which the running gateway goes on.
fn not_replaced(instance: &str, mut err: CliError) -> CliError {
    err.message = format!("{instance}: not replaced: {}", err.message);
    err
}

/// Checks that a configuration and a place of the state fit the gateway that is replaced: the number of workers, the file, and that this
/// version can read it. Returns the path of the state.
fn fit(
    config: &mut Config,
    state: StatePlace<'_>,
    instance: &str,
    replaced: &EarlierGateway,
) -> Result<Option<PathBuf>, CliError> {
    let refused = |why: String| CliError::failed(format!("{instance}: not replaced: {why}"));
    if config.worker.is_auto && config.feature_of_one_worker().is_none() {
        config.worker.count = replaced.workers;
    }
    let (new, now) = (config.worker.count.get(), replaced.workers.get());
    if new != now {
        return Err(refused(format!("worker.count is {new}, and {now} in the running gateway; restart it")));
    }
    let own = match state {
        StatePlace::Default => Store::default_path(instance),
        StatePlace::File(path) => Some(path.to_owned()),
        StatePlace::None => None,
    };
    let place = |path: &PathBuf| std::fs::canonicalize(path).unwrap_or_else(|_| path.clone());
    if own.as_ref().map(place) == replaced.state.as_ref().map(place) {
        // Such as a state of a newer version.
        own.as_ref().map_or(Ok(()), |path| check_state(path)).map_err(|err| not_replaced(instance, err))?;
        return Ok(own);
    }
    Err(refused(match &replaced.state {
        Some(path) => format!("the running gateway keeps its state in {}; use --state with that file", path.display()),
        None => "the running gateway keeps no state; use --state none, or restart it".to_owned(),
    }))
}

/// Goes on with the connections of guests that an earlier gateway has passed.
fn take_guests(stored: Option<&mut KeptNames>, daemon: &Daemon) {
    let mut passed = held::take_guests();
    if !passed.is_empty() {
        link::vhost::start_closing();
    }
    if let Some(Err(err)) = stored.map(KeptNames::remove_guests) {
        tracing::warn!("guests reconnect: the service manager has them still: {err}");
        passed.drain(..).for_each(|guest| guest.connection.close());
    }
    guests::take(&daemon.worker.handle, passed);
}

/// Logs that this gateway has replaced another one, without its links `unused`, and opens the links whose devices that one had until now.
fn report(instance: &str, taken: &Taken, unused: &[String], daemon: &Daemon) {
    let stood = since_boot().since(taken.stopped);
    let dropped = match unused {
        [] => String::new(),
        names => format!("; its links {} are closed", names.join(", ")),
    };
    tracing::info!(
        "{instance}: took over from process {}; packets waited for {:.1} ms{dropped}",
        taken.pid,
        stood.as_secs_f64() * 1e3
    );
    // A worker that has ended is reported elsewhere.
    let _ = daemon.worker.handle.call(|node| node.look_at_links(node.now()));
    let are_held = |node: &mut Node| {
        let mut down = node.slots.iter().flatten().filter_map(|slot| slot.down.as_ref());
        down.any(|down| down.is_gone)
    };
    // The report of the start has the links as they are then.
    for _ in 0..LINKS_PATIENCE {
        if !daemon.worker.handle.call(are_held).unwrap_or(false) {
            return;
        }
        thread::sleep(LINKS_INTERVAL);
    }
}

/// Carries out the orders of the gateway that has started this process, by its own program with the argument `opener`.
///
/// # Errors
/// Standard input is no socket of a gateway.
pub fn open_for_gateway(work: OpenerWork) -> Result<(), CliError> {
    match work {
        OpenerWork::Links => opener::main(),
        OpenerWork::HostSide => host::open(),
    }
}

/// Processes with the capabilities of a gateway.
struct Openers {
    /// Opener of links, if it has a capability. It ends when this value is dropped.
    links: Option<opener::request::Started>,
    /// Opener of the host side, if the configuration has one.
    host_side: Option<Result<Child, String>>,
}

/// Start of a gateway.
struct Asked<'a> {
    config: &'a [PathBuf],
    sources: &'a Sources,
    options: &'a RunOptions,
    instance: &'a str,
    socket: &'a Path,
    /// User to change to.
    user: Option<User>,
    /// Directories of the gateway's files.
    directories: Vec<Directory>,
}

impl Openers {
    /// Starts the openers, and gives up the rights of this process. `resumed`: the opener of links of a gateway that has started anew as
    /// this one.
    ///
    /// # Errors
    /// The opener of links cannot be started, or the gateway's user cannot be changed to. Without an opener of the host side there is
    /// only no host side.
    fn start(
        sandbox: &mut Sandbox,
        asked: &Asked<'_>,
        resumed: Option<opener::request::Started>,
    ) -> Result<Self, CliError> {
        let Asked { config, sources, options, instance, socket, user, directories } = asked;
        let has_host_side = sources.config.host.side != HostSide::Off;
        let host_side = has_host_side.then(|| {
            let (opener, missing) = host::start_opener(socket, sandbox.is_on())?;
            sandbox.note_opener("the host side", missing);
            Ok(opener)
        });
        let rights = rights(config, sources, &options.allowed_links);
        let places = places(asked, true);
        // What the gateway may write is no evidence.
        let is_safe = |file: &PathBuf| {
            let cannot_write = |file: &PathBuf| !places.may_write(file);
            let is_beyond_reach = user.as_ref().is_none_or(|user| user.ids.beyond_reach(file).is_ok());
            is_beyond_reach && cannot_write(file) && file.canonicalize().is_ok_and(|file| cannot_write(&file))
        };
        let utf8 = |path: &PathBuf| path.to_str().is_some();
        let gateway = opener::Gateway {
            instance: (*instance).to_owned(),
            keeps_devices: options.keeps_devices,
            rights: Some(rights.clone()),
            of_file: of_file(sources),
            file: sources.file.as_ref().and_then(|file| absolute(file).ok()).filter(is_safe).filter(utf8),
            sockets: spellings(socket)
                .into_iter()
                .chain(spellings(&daemon::netlink_starting(socket)))
                .filter(utf8)
                .collect(),
            has_host_side,
            user: user.as_ref().map(|user| user.ids),
        };
        let links = match resumed {
            Some(resumed) => Some(resumed),
            None if sandbox.is_on() && opener::request::is_needed(&gateway) => {
                let (links, missing) = opener::request::start(gateway, directories).map_err(CliError::failed)?;
                sandbox.note_opener("links", missing);
                Some(links)
            }
            None => None,
        };
        sandbox.give_up_rights(rights, user.as_ref())?;
        Ok(Self { links, host_side })
    }
}

/// Rights to open links of the kinds in the file.
fn of_file(sources: &Sources) -> BTreeSet<LinkRight> {
    sources.config.links.iter().filter_map(|link| link.kind.driver().and_then(LinkRight::kept_for)).collect()
}

/// Paths to which a socket may have been bound: as it is given, as an opener binds it, and without symbolic links.
fn spellings(socket: &Path) -> Vec<PathBuf> {
    let dir = socket.parent().and_then(|dir| dir.canonicalize().ok());
    let resolved = dir.zip(socket.file_name()).map(|(dir, name)| dir.join(name));
    let all = [Some(socket.to_owned()), absolute(socket).ok(), resolved].into_iter().flatten();
    all.collect::<BTreeSet<_>>().into_iter().collect()
}

/// The user, if the gateway's files are in places that it can have.
///
/// # Errors
/// They are not, and the user was chosen. Another one is left out.
fn within_reach(user: User, directories: &[Directory], sandbox: &mut Sandbox) -> Result<Option<User>, CliError> {
    match check_reach(&user, directories) {
        Ok(()) => Ok(Some(user)),
        Err(why) if user.is_chosen() => Err(CliError::failed(why)),
        Err(why) => {
            sandbox.leave_out(&user, &why);
            Ok(None)
        }
    }
}

/// The directories but those of earlier guests that the user may change: their sockets stay.
fn without_reachable(directories: Vec<Directory>, user: Option<UserIds>) -> Vec<Directory> {
    let is_beyond_reach = |path: &Path| user.is_none_or(|user| user.beyond_reach(path).is_ok());
    let stays = |directory: &Directory| match directory.files {
        Named::EarlierGuest(_) => is_beyond_reach(&directory.path),
        _ => true,
    };
    directories.into_iter().filter(stays).collect()
}

/// Checks that a gateway's user cannot change the places of its files, in which its opener works as root, and finds programs' sockets.
///
/// # Errors
/// The first place that does not fit, with a remedy.
fn check_reach(user: &User, directories: &[Directory]) -> Result<(), String> {
    for Directory { path, files } in directories {
        let file = match files {
            Named::Configuration(name) | Named::State(name) | Named::BackEnd(name) => path.join(name),
            Named::Sockets | Named::Guests | Named::Guest(_) => path.clone(),
            // The gateway does without.
            Named::EarlierGuest(_) => continue,
        };
        let beyond_reach = user.ids.beyond_reach(&file).map(drop);
        let listed = if *files == Named::Sockets { user.ids.may_list(path) } else { Ok(()) };
        for (found, remedy) in [
            (beyond_reach, "give it to root, with write access for root alone"),
            (listed, "let all users read it (chmod a+rx)"),
        ] {
            match found {
                Err(err) if err.kind() == io::ErrorKind::PermissionDenied => {
                    return Err(format!("{}: {err}; {remedy}, or run the gateway with --user root", file.display()));
                }
                // What does not exist is reported by the work with it.
                _ => {}
            }
        }
    }
    Ok(())
}

/// Rights to open links that a gateway keeps.
fn rights(config: &[PathBuf], sources: &Sources, allowed: &[LinkRight]) -> BTreeSet<LinkRight> {
    // The kinds of links that programs and lines of `ip` make are not known.
    let has_all_in_toml = sources.lines.is_empty() && !config.is_empty();
    if allowed.is_empty() && !has_all_in_toml {
        return BTreeSet::from(LinkRight::ALL);
    }
    of_file(sources).into_iter().chain(allowed.iter().copied()).collect()
}

/// Directories of the files that a gateway reads, makes and removes after its start. A path that is no text has none.
fn directories(config: &[PathBuf], sources: &Sources, socket: &Path, state: Option<&Path>) -> Vec<Directory> {
    type OfName = fn(String) -> Named;
    let guests = sources.config.links.iter().filter_map(|link| match link.kind.driver()? {
        DriverKind::VhostUser { socket, .. } => Some((Path::new(socket), Named::Guest as OfName)),
        DriverKind::VirtioUser { socket, .. } => Some((Path::new(socket), Named::BackEnd as OfName)),
        _ => None,
    });
    let config = config.iter().filter(|file| !config_file::is_stdin(file));
    let config = config.map(|file| (file.as_path(), Named::Configuration as OfName));
    let state = state.map(|state| (state, Named::State as OfName));
    let sockets = (socket, (|_| Named::Sockets) as OfName);
    let resolved = |dir: &Path| dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    let mut directories: Vec<Directory> = Vec::new();
    // Directories that have files of gateways, of this one and of others.
    let mut of_gateways = BTreeSet::new();
    for (file, named) in config.chain(state).chain([sockets]).chain(guests) {
        let Ok(file) = absolute(file) else { continue };
        let (Some(dir), Some(name)) = (file.parent(), file.file_name().and_then(|name| name.to_str())) else {
            continue;
        };
        let files = match named(name.to_owned()) {
            // A reload may add some there.
            Named::Guest(_) if !of_gateways.contains(&resolved(dir)) => Named::Guests,
            files => files,
        };
        if matches!(files, Named::Sockets | Named::State(_)) {
            of_gateways.insert(resolved(dir));
        }
        let directory = Directory { path: dir.to_owned(), files };
        if dir.to_str().is_some() && !directories.contains(&directory) {
            directories.push(directory);
        }
    }
    let is_covered = |path: &Path, name: &str| {
        directories.iter().any(|directory| {
            directory.path == path
                && match &directory.files {
                    Named::Guests => true,
                    Named::Guest(own) => own == name,
                    _ => false,
                }
        })
    };
    // The socket of a port that the file lacks is removed.
    let earlier = held::listening_paths().into_iter().filter(|path| path.is_absolute()).filter_map(|path| {
        let (dir, name) = (path.parent()?, path.file_name()?.to_str()?.to_owned());
        let is_socket = path.symlink_metadata().is_ok_and(|found| found.file_type().is_socket());
        let is_missing = is_socket && dir.to_str().is_some() && !is_covered(dir, &name);
        is_missing.then(|| Directory { path: dir.to_owned(), files: Named::EarlierGuest(name) })
    });
    let earlier: Vec<_> = earlier.collect();
    directories.extend(earlier);
    directories
}

/// Places that a gateway reaches after its start, by itself or by its opener.
fn places(Asked { config, sources, socket, directories, .. }: &Asked<'_>, has_opener: bool) -> Places {
    let mut places = if has_opener { Places::of_opener() } else { Places::default() };
    config.iter().filter(|file| !config_file::is_stdin(file)).for_each(|file| places.read_beside(file));
    for Directory { path, files } in directories {
        if !matches!(files, Named::Configuration(_) | Named::BackEnd(_)) {
            places.write_in(path);
        }
    }
    // Programs have sockets there.
    socket.parent().iter().for_each(|dir| places.list(dir));
    if !sources.lines.is_empty() {
        let programs = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&programs).for_each(|dir| places.search(&dir));
        gateway_program::library().iter().filter_map(|file| file.parent()).for_each(|dir| places.search(dir));
    }
    places
}

/// Executes this program again, with the same arguments, in place of this process, with the openers, which have the rights that
/// this process has given up. Returns the failure.
fn start_anew(links: Option<opener::request::Started>, host_side: Option<Child>) -> CliError {
    let mut arguments = std::env::args_os();
    let mut program = Command::new("/proc/self/exe");
    if let Some(name) = arguments.next() {
        program.arg0(name);
    }
    let openers = links.iter().map(opener::request::Started::child).chain(&host_side);
    let passed = child::pass_on(openers, &mut program);
    service::pass_on();
    // The gateway that this one has replaced is gone.
    let arguments = arguments.filter(|argument| argument != REPLACE);
    CliError::system("start anew", &passed.map_or_else(|err| err, |()| program.args(arguments).exec()))
}

/// Starts a thread that forwards signals as events.
fn pass_on(mut signals: Signals, events: Sender<Event>, threads: &Threads) -> io::Result<()> {
    threads.spawn("signals", move || -> Result<(), Infallible> {
        signals.forever().try_for_each(|signal| events.send(Event::Signal(signal)).ok());
        // The loop ends only when the worker has ended. When the daemon ends, the receiver is dropped first.
        let _ = events.send(Event::WorkerEnded);
        Ok(())
    })
}

/// Sends log lines to the journal or to standard error.
fn start_log(instance: &str) -> Result<(), CliError> {
    let filter = match std::env::var(LOG_VARIABLE) {
        Ok(requested) => log_filter(&requested)?,
        Err(_) => EnvFilter::new("info"),
    };
    logging::start(filter, "fatpath", Some(instance));
    Ok(())
}

/// Filter for the value `requested`: a level, or several for parts of the program. A word that is not a level would be
/// parsed as a part, and hide the lines of all others.
fn log_filter(requested: &str) -> Result<EnvFilter, CliError> {
    let level = |part: &str| part.rsplit('=').next().unwrap_or_default().trim().to_owned();
    let mut levels = requested.split(',').map(level).filter(|level| !level.is_empty());
    if let Some(wrong) = levels.find(|level| level.parse::<LevelFilter>().is_err()) {
        let text = format!("{LOG_VARIABLE}: {wrong} is no level; use error, warn, info, debug, trace or off.");
        return Err(CliError::failed(text));
    }
    let target_of = |part: &str| part.split_once('=').map(|(target, _)| target.trim().to_owned());
    let mut targets = requested.split(',').filter_map(target_of);
    if let Some(level) = targets.find(|target| target.parse::<LevelFilter>().is_ok()) {
        let text = format!("{LOG_VARIABLE}: {level} is a level, and no part of the program; use it alone.");
        return Err(CliError::failed(text));
    }
    EnvFilter::try_new(requested).map_err(|err| CliError::failed(format!("{LOG_VARIABLE}: {err}.")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn earlier_guests_within_reach_of_the_user_are_left_out() {
        let dir = std::env::temp_dir().join(format!("fatpath-earlier-{}", std::process::id()));
        let at = |name: &str, mode| {
            let path = dir.join(name);
            std::fs::create_dir_all(&path).unwrap();
            std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
            Directory { path, files: Named::EarlierGuest("vm0".to_owned()) }
        };
        let [open, closed] = [at("open", 0o777), at("closed", 0o755)];
        let sockets = Directory { files: Named::Sockets, ..open.clone() };
        let all = vec![open, closed.clone(), sockets.clone()];
        assert_eq!(without_reachable(all.clone(), None), all);
        let user = UserIds { uid: 61_234, gid: 61_234 };
        assert_eq!(without_reachable(all, Some(user)), [closed, sockets]);
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn unknown_log_level_is_refused() {
        for wrong in ["wanr", "verbose", "info,wanr", "fatpath=loud"] {
            let error = log_filter(wrong).unwrap_err().message;
            assert!(error.contains("is no level; use error, warn, info"), "{error}");
        }
        for wrong in ["off=3", "info=debug", "fatpath=debug,warn=off"] {
            let error = log_filter(wrong).unwrap_err().message;
            assert!(error.contains("is a level, and no part of the program"), "{error}");
        }
        for right in ["info", "WARN", "off", "fatpath=debug,warn", ""] {
            log_filter(right).unwrap();
        }
    }
}
