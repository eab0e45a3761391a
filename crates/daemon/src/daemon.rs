//! Running gateway: its start, and changes on a signal or at a client's request.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Mutex, MutexGuard};

use client::CliError;
use config::Config;
use config::model::{HostSide as HostSideKind, LinkKind};
use config::settings::Settings;
use ctl::LoadStage;
use link::Discard;
use packet::Allocations;
use signal_hook::consts::SIGHUP;
use signal_hook::iterator::Handle as SignalsHandle;

use super::acceptor;
use super::budget;
use super::device;
use super::events::{Event, LoadProgress, LoadRequest};
use super::host::HostSide;
use super::ike::{IkeFile, IkeSocket};
use super::netlink::{NetlinkServer, Protocols, Shared};
use super::node::since_boot;
use super::open::open;
use super::opener::child::Child;
use super::opener::request::ForClient;
use super::path_hash;
use super::plan::Plan;
use super::planner::Planner;
use super::reload_summary::summary;
use super::replace::held::{self, Socket};
use super::replace::kept;
use super::replace::offer::{self, Offer};
use super::running::Running;
use super::service;
use super::store::sealed::{self, SealedSas};
use super::store::{self, Checkpointer, Collected, Found, Keep, Keeper, KeptState, OfFiles, Resumed};
use super::threads::{Threads, Watchdog};
use crate::command::{WorkerGone, same};
use crate::config_file;
use crate::ip_batch::{self, IpLines};
use crate::journal::Journal;

/// A running gateway.
pub(super) struct Daemon {
    file: Option<PathBuf>,
    /// File of `ip` lines that ran at start; together with `file` it is the gateway's configuration.
    lines: Option<String>,
    planner: Planner,
    pub(super) worker: Running,
    ike: IkePlace,
    /// Whether the addresses and routes of devices are this gateway's, and not those of the one that it replaces.
    has_devices: bool,
    /// State that netlink clients see and change.
    shared: Shared,
    /// Writer of the state that netlink clients have set.
    keeper: Option<Keeper>,
    /// Objects of the configuration, if they were listed before the state is restored.
    of_files: Option<OfFiles>,
}

/// Outcome of a gateway's run.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum RunEnd {
    /// The gateway is over.
    Over,
    /// The next gateway has its sockets, or the service manager has them until then.
    HandedOver,
}

/// SAs with a time limit that an earlier gateway has passed on.
pub(super) struct EarlierSas {
    /// The SAs, or the reason for which they cannot be read.
    sealed: Result<SealedSas, String>,
    /// Whether the service manager has them.
    is_stored: bool,
}

impl EarlierSas {
    /// SAs in the service manager's store.
    pub(super) fn stored() -> Option<Self> {
        Some(Self { sealed: SealedSas::open(service::stored(sealed::NAME)?), is_stored: true })
    }

    /// SAs in the memory that a gateway has passed as it was replaced.
    pub(super) fn passed(memory: OwnedFd) -> Self {
        Self { sealed: SealedSas::open(memory), is_stored: false }
    }

    /// Gives them up, as no state is kept, and with it no policies.
    pub(super) fn discard(self) {
        tracing::warn!("SAs of the earlier gateway are not restored: no state is kept");
        if self.is_stored
            && let Err(err) = service::remove(sealed::NAME)
        {
            tracing::warn!("service manager: {err}");
        }
    }
}

/// Summary of a gateway's links, displayed as `2 links: tun0, wan; wan is down (eth1: SIOCGIFFLAGS: Network is down)`.
pub(super) struct LinkSummary {
    names: String,
    /// Names of links that are down, each with the reason.
    failed: Vec<(String, String)>,
}

impl fmt::Display for LinkSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.names)?;
        self.failed.iter().try_for_each(|(name, why)| write!(f, "; {name} is down ({why})"))
    }
}

impl LinkSummary {
    /// Logs `done` and the links, as a warning if one is down.
    pub(super) fn log(&self, done: &str) {
        if self.failed.is_empty() {
            tracing::info!("{done} with {self}");
        } else {
            tracing::warn!("{done} with {self}");
        }
    }
}

/// Path of the key manager's socket. The socket is made when a link first has IKE, and stays until the daemon ends.
struct IkePlace {
    path: PathBuf,
    file: Option<IkeFile>,
}

impl IkePlace {
    /// Opens the socket for `plan`, if `plan` is the first that needs one. Drop of the returned value removes the
    /// socket's file, unless [`keep`](Self::keep) takes the value.
    fn open_for(&self, plan: &mut Plan) -> Result<Option<IkeFile>, CliError> {
        if self.file.is_some() || plan.ike.is_empty() {
            return Ok(None);
        }
        if let Some(passed) = held::take_socket(Socket::Ike) {
            // The gateway before has the file until it hands over.
            plan.ike_socket = Some(IkeSocket::of_earlier(passed.into(), &self.path));
            return Ok(None);
        }
        let (socket, file) = IkeSocket::open(&self.path)?;
        plan.ike_socket = Some(socket);
        Ok(Some(file))
    }

    fn keep(&mut self, file: Option<IkeFile>) {
        self.file = file.or_else(|| self.file.take());
    }

    /// Takes the file of the gateway before, or removes it, if `is_needed` is false.
    fn take(&mut self, is_needed: bool) {
        let file = self.file.take().unwrap_or_else(|| IkeFile::of_earlier(&self.path));
        self.file = Some(file).filter(|_| is_needed);
    }
}

/// Path to which the netlink socket beside the control socket is bound. It is renamed when the gateway is ready, and keeps the name for its
/// connections (getsockname(2)).
pub(super) fn netlink_starting(socket: &Path) -> PathBuf {
    socket.with_extension("starting")
}

impl Daemon {
    /// Starts a worker with `config`, read from `file`. The worker does not start to forward yet: while the node is
    /// incomplete, traffic that must be protected might pass in clear. A gateway that `replaces` another one leaves devices as they are
    /// until it [has taken over](Self::take_over).
    pub(super) fn start(
        config: Config,
        file: Option<PathBuf>,
        socket: &Path,
        signals: SignalsHandle,
        replaces: bool,
    ) -> Result<Self, CliError> {
        let memory = config.limits.memory;
        let (planner, mut plan) = Planner::default().plan(config)?;
        budget::admit_key(memory)
            .map_err(|why| CliError::bad_config(format!("{why}; the configuration needs more.")))?;
        budget::set_key(memory);
        if !replaces {
            device::change(&[], &planner.devices()).map_err(CliError::failed)?;
        }
        let mut ike = IkePlace { path: socket.with_extension("ike"), file: None };
        let ike_file = ike.open_for(&mut plan)?;
        ike.keep(ike_file);
        let count = planner.config().worker.count;
        let worker = Running::start(count, &signals).map_err(|err| CliError::system("start the workers", &err))?;
        worker.hold(true).map_err(CliError::failed)?;
        let mappings = plan.mappings();
        worker.apply(plan).map_err(CliError::failed)?;
        let shared = Shared::new(&worker.handle, open);
        {
            let mut protocols = shared.lock();
            planner.publish(&worker.handle, &mut protocols, mappings).map_err(CliError::failed)?;
            protocols.sysctl.follow(Settings::of(planner.config()));
            protocols.rtnl.model.set_max_routes(planner.config().limits.tables.routes);
            let path_hash = path_hash::of(protocols.sysctl.settings().path_hash);
            protocols.rtnl.model.set_path_hash(path_hash);
        }
        let has_devices = !replaces;
        Ok(Self { file, lines: None, planner, worker, ike, has_devices, shared, keeper: None, of_files: None })
    }

    /// Lists the objects of the configuration, which takes its time, before the gateway takes over from another one.
    ///
    /// # Errors
    /// The worker does not answer.
    pub(super) fn prepare_restore(&mut self) -> Result<(), CliError> {
        let collected = Collected::of(&mut self.shared.lock()).map_err(CliError::failed)?;
        self.of_files = Some(OfFiles::all(collected));
        Ok(())
    }

    /// Checks that the state at `path`, which the gateway before has written lately, needs no link that is missing here.
    ///
    /// # Errors
    /// Exit code 2: it does, or cannot be read.
    pub(super) fn check_links(&self, path: &Path) -> Result<(), CliError> {
        store::check_links(path, &self.shared.lock().rtnl.model)
    }

    /// Whether the configuration has a host side.
    pub(super) fn has_host_side(&self) -> bool {
        self.planner.config().host.side != HostSideKind::Off
    }

    /// Takes over the devices and the key managers' socket of the gateway before, which has stopped.
    pub(super) fn take_over(&mut self) {
        // Another program's route may be in the way by now; packets are forwarded nonetheless.
        if let Err(why) = device::change(&[], &self.planner.devices()) {
            tracing::error!("{why}; a reload sets addresses and routes of devices");
        }
        self.has_devices = true;
        self.take_ike();
        if let Some(network) = held::take_socket(Socket::HostSide)
            && self.has_host_side()
        {
            HostSide::take(network);
        }
    }

    /// Takes over the present numbers of devices.
    fn renumber(&mut self) {
        // The gateway ends if the worker does not answer.
        if let Ok(devices) = self.worker.handle.call(|node| node.tun_links()) {
            self.planner.renumber(&devices);
        }
    }

    /// Sets addresses and routes of the file on devices that were made again.
    fn set_devices(&mut self) {
        if !self.has_devices {
            return;
        }
        self.renumber();
        if let Err(why) = device::change(&[], &self.planner.devices()) {
            tracing::error!("{why}; a reload sets addresses and routes of devices");
        }
    }

    /// Takes over the file of the key managers' socket that an earlier gateway has left.
    pub(super) fn take_ike(&mut self) {
        let has_ike = self.worker.handle.call(|node| node.ike.is_some());
        self.ike.take(has_ike.unwrap_or(false));
    }

    /// Leaves the file of the key managers' socket to the next gateway, which has the socket.
    pub(super) fn leave_ike(&mut self) {
        if let Some(file) = self.ike.file.take() {
            file.leave();
        }
    }

    /// Sockets and place of the state for the next gateway, besides links and the host side.
    pub(super) fn offer(&self, listeners: Vec<(Socket, OwnedFd)>) -> Offer {
        let state = self.keeper.as_ref().map(|keeper| keeper.checkpointer.path());
        let state = state.map(|path| std::path::absolute(&path).unwrap_or(path));
        Offer { listeners, state, keeper: self.keeper.clone(), next: Mutex::default() }
    }

    /// Whether the files have SAs.
    pub(super) fn has_sas(&self) -> bool {
        // A worker that does not reply is reported elsewhere.
        self.worker.handle.call(|node| node.datapath.ipsec.sad().len()).is_ok_and(|sas| sas > 0)
    }

    /// Makes the host side, if the configuration has one: then there is a process for it, or the reason for which it was
    /// not started. Its content follows.
    pub(super) fn start_host_side(&self, opener: Option<Result<Child, String>>, socket: &Path, threads: &Threads) {
        self.make_host_side(opener, socket, threads).begin_host_side();
    }

    /// As [`start_host_side`](Self::start_host_side), of a gateway that replaces another one. True: the host side has the content that
    /// the gateway before has left, and [is to follow](Self::follow_host_side) the node when packets are forwarded.
    pub(super) fn attach_host_side(
        &self,
        opener: Option<Result<Child, String>>,
        socket: &Path,
        threads: &Threads,
    ) -> bool {
        let mut protocols = self.make_host_side(opener, socket, threads);
        let is_attached = protocols.host_side.attach(&protocols.rtnl.model);
        if !is_attached {
            protocols.begin_host_side();
        }
        is_attached
    }

    /// Reconciles the host side with the node.
    pub(super) fn follow_host_side(&self) {
        self.shared.lock().begin_host_side();
    }

    fn make_host_side(
        &self,
        opener: Option<Result<Child, String>>,
        socket: &Path,
        threads: &Threads,
    ) -> MutexGuard<'_, Protocols> {
        let protocols = self.shared.lock();
        let again = self.shared.clone();
        let follow = move || again.lock().follow_host_side();
        if let Some(opener) = opener {
            let config = self.planner.config().host;
            protocols.host_side.start(config, opener, socket, &self.worker.handle, threads, follow);
        }
        protocols
    }

    /// Serves signals and clients until the daemon has to end, or a thread has failed.
    pub(super) fn run(
        mut self,
        instance: &str,
        happened: Receiver<Event>,
        listeners: &[(Socket, OwnedFd)],
        threads: &Threads,
    ) -> (RunEnd, Result<(), CliError>) {
        let mut watchdog = service::watchdog_limit().map(|limit| Watchdog::new(threads.clone(), limit));
        while let Some(event) = next_event(&happened, &mut watchdog) {
            match event {
                Event::Signal(SIGHUP) => {
                    service::reloading();
                    let outcome = self.reload();
                    Allocations::trim();
                    self.notify_reload(instance, &outcome);
                }
                Event::Load(LoadRequest { file, opened, client, progress, reply }) => {
                    let outcome = ForClient::begin(client.as_fd())
                        .map_err(|err| format!("duplicate a descriptor: {err}"))
                        .and_then(|_for_client| self.load(file, opened, &progress));
                    Allocations::trim();
                    self.notify_reload(instance, &outcome);
                    // The client may have timed out.
                    let _ = reply.send(outcome.map(|changes| format!("{}{changes}", self.links())));
                }
                Event::DeviceMade => self.set_devices(),
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
                    return self.end_for(listeners);
                }
                Event::TakeOver { to, has_host_side } => match self.hand_over(&to, has_host_side) {
                    Ok(end) => {
                        let next = offer::successor(&to).unwrap_or_default();
                        match end {
                            RunEnd::HandedOver => tracing::info!("{instance}: handed over to process {next}, ending"),
                            RunEnd::Over => {
                                tracing::error!("{instance}: process {next}, which has taken over, is gone; ending");
                            }
                        }
                        if let Err(err) = self.worker.stop() {
                            tracing::error!("{instance}: {}", err.message);
                        }
                        return (end, Ok(()));
                    }
                    Err(why) => {
                        tracing::error!("{instance}: not handed over: {why}");
                        offer::go_on(&to, &why);
                    }
                },
                Event::WorkerEnded => break,
                Event::ThreadEnded(why) => {
                    tracing::error!(message_id = logging::id::FAILED, reason = why, "{instance}: {why}");
                    // The worker still runs: its sequence numbers are saved. The error to report is the thread's.
                    let _ = self.end();
                    return (RunEnd::Over, Err(CliError::failed(why)));
                }
            }
        }
        (RunEnd::Over, Err(self.worker.failure()))
    }

    /// Reports the outcome of a reload to the service manager and the log.
    fn notify_reload(&self, instance: &str, outcome: &Result<String, String>) {
        let mut links = self.links();
        match outcome {
            Ok(changes) => {
                service::ready(&format!("running with {links}"));
                links.names += changes;
                links.log(&format!("{instance}: reloaded, running"));
            }
            Err(why) => {
                let first = why.lines().next().unwrap_or_default();
                service::ready(&format!("running with {links}; not reloaded: {first}"));
                for why in why.lines() {
                    let message_id = logging::id::NOT_RELOADED;
                    tracing::error!(message_id, reason = why, "{instance}: not reloaded, nothing has changed: {why}");
                }
            }
        }
    }

    /// Applies the present content of the gateway's file, or changes nothing and returns the reason.
    fn reload(&mut self) -> Result<String, String> {
        if let Some(lines) = &self.lines {
            return Err(ip_batch::only_at_start(lines));
        }
        let file = self.file.clone().ok_or("it was started without a file; `fatpath load` gives it one")?;
        self.load(file, None, &LoadProgress::default())
    }

    /// Applies `file`, which becomes the gateway's file, and returns a summary of the changes; or changes nothing and
    /// returns the reason. `opened`: the file, if a client has opened it.
    fn load(&mut self, file: PathBuf, opened: Option<File>, progress: &LoadProgress) -> Result<String, String> {
        progress.enter(LoadStage::Reading);
        let loaded = config_file::load_opened(&file, opened, &progress.meter);
        let (mut config, warnings) = loaded.map_err(|err| err.messages())?;
        progress.enter(LoadStage::Planning);
        let named = |why: String| format!("{}: {why}", file.display());
        if config.host != self.planner.config().host {
            return Err(named("[host] is another one, which only a start can change; restart the gateway".to_owned()));
        }
        if config.worker.is_auto && config.feature_of_one_worker().is_none() {
            // The CPUs may be others by now.
            config.worker.count = self.planner.config().worker.count;
        }
        if config.worker.count != self.planner.config().worker.count {
            let (new, now) = (config.worker.count.get(), self.planner.config().worker.count.get());
            let beside = config.feature_of_one_worker().filter(|_| config.worker.is_auto);
            let beside = beside.map(|feature| format!(" beside {feature}")).unwrap_or_default();
            return Err(named(format!(
                "worker.count is {new}{beside}, and {now} when the gateway started; only a start can change it: restart the gateway"
            )));
        }
        let keeper = self.keeper.clone();
        let writing = keeper.as_ref().map(Keeper::lock);
        // The lock keeps netlink clients from changing the node meanwhile.
        let shared = self.shared.clone();
        let mut protocols = shared.lock();
        self.planner.follow(&protocols.rtnl.model);
        self.renumber();
        let memory = config.limits.memory;
        let (planner, mut plan) = self.planner.plan(config).map_err(|err| named(err.message))?;
        budget::admit_key(memory).map_err(named)?;
        let ike = self.ike.open_for(&mut plan).map_err(|err| named(err.message))?;
        let settings = netlink::sysctl::reloaded(
            *protocols.sysctl.settings(),
            &Settings::of(self.planner.config()),
            &Settings::of(planner.config()),
        );
        if settings.vrf_strict_mode
            && let Some(table) = shared_vrf_table(planner.config())
        {
            return Err(named(format!("two VRFs have table {table}, and net.vrf.strict_mode is 1.")));
        }
        plan.settings = plan.settings.map(|_| settings);
        if let Some(keeper) = &keeper {
            keeper.checkpointer.reserve(planner.config().sas.iter().map(|sa| (store::name_of(sa), sa.oseq)));
        }
        let changed = device::change(&self.planner.devices(), &planner.devices()).map_err(named)?;
        progress.enter(LoadStage::Applying);
        let mappings = plan.mappings();
        if let Err(why) = self.worker.apply(plan) {
            changed.undo();
            return Err(named(why));
        }
        progress.enter(LoadStage::Publishing);
        protocols.sysctl.follow(settings);
        protocols.rtnl.model.set_max_routes(settings.tables.routes);
        protocols.rtnl.model.set_path_hash(path_hash::of(settings.path_hash));
        budget::set_key(memory);
        self.ike.keep(ike);
        let changes = summary(self.planner.config(), planner.config());
        (self.planner, self.file, self.lines) = (planner, Some(file), None);
        warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
        self.planner.publish(&self.worker.handle, &mut protocols, mappings)?;
        protocols.begin_host_side();
        if let Some(keeper) = &keeper {
            keeper.follow(OfFiles::loaded(Collected::of(&mut protocols)?, self.planner.config()));
            // Changes of programs before are of no use: the file has replaced their objects.
            let begun = Keeper::begin(&mut protocols);
            drop(protocols);
            if let Err(err) = begun.and_then(|begun| keeper.finish(begun, Keep::Later)) {
                tracing::error!(message_id = logging::id::NOT_SAVED, reason = %err, "the state is not written: {err}");
            }
        }
        drop(writing);
        Ok(changes)
    }

    /// Serves netlink clients beside the control socket `socket`, at a path unknown to clients, and runs `lines` there.
    /// `None`: `is_ended` became true before all lines had run.
    ///
    /// # Errors
    /// A line fails, or the socket cannot be made.
    pub(super) fn carry_out(
        &mut self,
        socket: &Path,
        lines: &[IpLines],
        discard: &Discard,
        threads: &Threads,
        mut is_ended: impl FnMut() -> bool,
    ) -> Result<Option<NetlinkServer>, CliError> {
        let starting = netlink_starting(socket);
        let server = NetlinkServer::start(&starting, self.shared.clone(), &self.worker.handle, discard, threads)?;
        self.lines = lines.first().map(|lines| lines.name().to_owned());
        for lines in lines {
            if !lines.carry_out(&starting, &mut is_ended)? {
                return Ok(None);
            }
        }
        self.planner.follow(&self.shared.lock().rtnl.model);
        Ok(Some(server))
    }

    /// Restores the state that `kept` holds on top of the configuration, and then the SAs in `earlier`; keeps the state from
    /// now on. True: a program had changed an object of the configuration, so that the node is not what the configuration
    /// and the state, which is written now, make it; a new start does that.
    ///
    /// # Errors
    /// The state cannot be restored.
    pub(super) fn restore(
        &mut self,
        kept: KeptState,
        earlier: Option<EarlierSas>,
        threads: &Threads,
    ) -> Result<bool, CliError> {
        let has_changes = kept.has_changes();
        let listed = self.of_files.take().filter(|_| !has_changes);
        let KeptState { store, found, records, next, boot } = kept;
        let Found { mut state, journal: first, is_of_boot, saved_sas } = found;
        let place = store.path().to_owned();
        let gone = |gone: WorkerGone| CliError::failed(gone.to_string());
        let shared = self.shared.clone();
        let mut protocols = shared.lock();
        let (made, of_files) = match listed {
            Some(of_files) => (None, of_files),
            None => {
                let before = Collected::of(&mut protocols).map_err(CliError::failed)?;
                (has_changes.then(|| before.fingerprint()), OfFiles::all(before))
            }
        };
        store::skip(&state.checkpoints, of_files.sas(), &self.worker.handle).map_err(gone)?;
        let counts = store::restore(&mut state, &place, &of_files, &mut protocols)?;
        log_restored(&place, ["saved request", "saved requests"], counts);
        let mut is_changed = false;
        if let Some(made) = made {
            let replayed = store::replay(records, &state, &place, &mut protocols)?;
            log_restored(&place, ["later change by a program", "later changes by programs"], replayed.counts);
            store::reserve_added(&mut state.checkpoints, &replayed.added, &self.worker.handle).map_err(gone)?;
            let now = Collected::of(&mut protocols).map_err(CliError::failed)?;
            is_changed = !now.fingerprint().has_all_of(&made);
        }
        if !is_changed && let Some(earlier) = earlier {
            self.resume(earlier, &mut protocols);
        }
        // No client is connected yet, so that larval SAs are those that state and journal name.
        self.worker.handle.change(|node| node.datapath.ipsec.hold_lost(), same).map_err(gone)?;
        protocols.follow_host_side();
        self.planner.follow(&protocols.rtnl.model);
        // Files without a change are written again.
        let mut journal = Journal::new(&place, if is_of_boot && !has_changes { first } else { next });
        if is_of_boot && !has_changes {
            let failed = |err: io::Error| CliError::failed(format!("{}: journal: {err}", place.display()));
            journal.rotate().map_err(failed)?;
        }
        protocols.journal = Some(journal);
        drop(protocols);
        let worker = &self.worker.handle;
        let checkpointer = Checkpointer::start(store, state.checkpoints, of_files.sas(), saved_sas, worker)?;
        let keeper = Keeper::new(checkpointer, &shared, worker, of_files, &boot);
        if !is_of_boot || has_changes {
            keeper.keep(Keep::Later).map_err(CliError::failed)?;
        }
        keeper.start(threads)?;
        self.keeper = Some(keeper);
        Ok(is_changed)
    }

    /// Restores the SAs that an earlier gateway has passed on. A failure is logged, and key managers are told that the SAs are
    /// gone.
    fn resume(&self, earlier: EarlierSas, protocols: &mut Protocols) {
        // No later gateway gets the SAs: each sends its numbers once.
        let removed = if earlier.is_stored { service::remove(sealed::NAME) } else { Ok(()) };
        let removed = removed.map_err(|err| format!("the service manager has them still: {err}"));
        if let (Err(why), Err(_)) = (&removed, &earlier.sealed) {
            tracing::warn!("SAs of the earlier gateway: {why}");
        }
        let resumed = earlier.sealed.and_then(|sealed| {
            removed?;
            store::resume(sealed, protocols, &self.worker.handle).map_err(|gone| gone.to_string())
        });
        match resumed {
            Ok(Resumed { done, ended, left_out }) => tracing::info!(
                "SAs of the earlier gateway: {done} restored, {ended} at their end, {left_out} of the configuration or unfit for it"
            ),
            Err(why) => tracing::error!("SAs of the earlier gateway are not restored: {why}"),
        }
    }

    /// Saves the state that netlink clients have set. Returns a summary and the file's path.
    fn save(&mut self) -> Result<String, String> {
        let keeper = self.keeper.as_ref().ok_or("this gateway keeps no state; start it without --state none")?;
        keeper.keep(Keep::Saved)
    }

    /// State that netlink clients see and change.
    pub(super) const fn shared(&self) -> &Shared {
        &self.shared
    }

    /// The gateway's own network namespace.
    pub(super) fn host_side(&self) -> HostSide {
        self.shared.lock().host_side.clone()
    }

    /// Leaves links and sockets to the service manager, if there is one and devices stay.
    fn leave_links(&mut self, listeners: &[(Socket, OwnedFd)]) -> RunEnd {
        if listeners.is_empty() || !device::keeps() || self.worker.hold(true).is_err() {
            return RunEnd::Over;
        }
        if !kept::store(&self.worker.handle, listeners) {
            return RunEnd::Over;
        }
        acceptor::leave();
        self.leave_ike();
        RunEnd::HandedOver
    }

    /// Ends the gateway, after a last save.
    pub(super) fn end(self) -> Result<(), CliError> {
        self.end_for(&[]).1
    }

    /// Ends the gateway, after a last save. The service manager keeps its links and the sockets `listeners`, unless there are none.
    fn end_for(mut self, listeners: &[(Socket, OwnedFd)]) -> (RunEnd, Result<(), CliError>) {
        let host_side = self.host_side();
        let shared = self.shared.clone();
        // Held until the process ends: no request is carried out whose effect the next gateway would not have.
        let mut held = None;
        let mut sas = None;
        if let Some(keeper) = &self.keeper {
            let protocols = held.insert(shared.lock());
            sas = self.stop_sending(keeper, protocols);
        }
        match sas {
            Some((memory, count)) => store_sas(&memory, count),
            // Those of an earlier run, which it may not have removed.
            None => service::discard(sealed::NAME),
        }
        // Behind the SAs, for which a small store has room.
        let end = self.leave_links(listeners);
        host_side.end();
        if self.has_devices
            && !device::keeps()
            && let Err(why) = device::change(&self.planner.devices(), &[])
        {
            tracing::warn!("{why}");
        }
        let ended = self.worker.stop();
        std::mem::forget(held);
        (end, ended)
    }

    /// Pauses the workers, saves the numbers of SAs, and seals those with a time limit.
    fn stop_sending(&self, keeper: &Keeper, protocols: &mut Protocols) -> Option<(OwnedFd, usize)> {
        let noted = self.worker.hold(true).and_then(|()| keeper.end(protocols));
        if let Err(err) = noted {
            let message_id = logging::id::NOT_SAVED;
            tracing::warn!(message_id, reason = %err, "sequence numbers of SAs were not saved: {err}");
        }
        keeper.seal(protocols).unwrap_or_else(|err| {
            tracing::error!("SAs with a time limit end with the gateway: {err}");
            None
        })
    }

    /// Hands over to the next gateway, at the other end of `to`. [`RunEnd::Over`]: that gateway is gone, and this one has stopped.
    ///
    /// # Errors
    /// Nothing has changed, and the gateway goes on.
    fn hand_over(&mut self, to: &OwnedFd, has_host_side: bool) -> Result<RunEnd, String> {
        let keeper = self.keeper.clone();
        let writing = keeper.as_ref().map(Keeper::lock);
        let shared = self.shared.clone();
        let mut protocols = shared.lock();
        // Packets are forwarded meanwhile, and programs wait.
        match &keeper {
            Some(keeper) => {
                keeper.hand_over(&mut protocols).map_err(|err| format!("the state is not written: {err}"))?;
            }
            // Programs may have added some since the request.
            None => offer::admit_without_state(&self.worker.handle)?,
        }
        if !offer::is_waiting(to) {
            return Err("the next gateway has ended".to_owned());
        }
        device::hold_guard(true);
        let stopped = since_boot();
        if let Err(err) = self.worker.hold(true) {
            // A late worker pauses when it comes to it, and resumes then.
            let _ = self.worker.hold(false);
            device::hold_guard(false);
            return Err(err);
        }
        let sas = keeper.as_ref().and_then(|keeper| self.stop_sending(keeper, &mut protocols));
        acceptor::leave();
        if has_host_side {
            protocols.host_side.leave();
        }
        offer::pass_guests(to, &self.worker.handle);
        offer::close_links(&self.worker.handle);
        if let Some(keeper) = &keeper {
            keeper.checkpointer.close();
        }
        let handed_over = offer::hand_over(to, stopped, sas.as_ref().map(|(memory, _)| memory));
        if handed_over.is_ok() {
            self.leave_ike();
        }
        if !has_host_side {
            protocols.host_side.end();
        }
        // Until the process ends no request is carried out whose effect the next gateway would not have.
        std::mem::forget((writing, protocols));
        Ok(if handed_over.is_ok() { RunEnd::HandedOver } else { RunEnd::Over })
    }

    /// Summary of the running links.
    pub(super) fn links(&self) -> LinkSummary {
        let names: Vec<&str> = self.planner.config().links.iter().map(|link| link.name.as_str()).collect();
        let names = match names.len() {
            0 => "no links".to_owned(),
            1 => format!("1 link: {}", names[0]),
            n => format!("{n} links: {}", names.join(", ")),
        };
        // A worker that does not reply is reported elsewhere.
        let shards = self.worker.handle.gather(|node| node.failed_links()).unwrap_or_default();
        // A link may have failed in several workers, or with one's queue alone.
        let mut failed: Vec<(String, String)> = Vec::new();
        for (name, why) in shards.into_iter().flatten() {
            if !failed.iter().any(|(known, _)| *known == name) {
                failed.push((name, why));
            }
        }
        LinkSummary { names, failed }
    }
}

/// Passes SAs with a time limit, which no longer send, to the service manager for the next gateway.
fn store_sas(memory: &OwnedFd, count: usize) {
    if service::store(sealed::NAME, memory.as_fd()) {
        tracing::info!("{count} SAs with a time limit are passed to the service manager");
    } else {
        tracing::warn!("{count} SAs with a time limit end with the gateway: no service manager keeps them");
    }
}

/// Logs the number of restored objects.
fn log_restored(place: &Path, [one, many]: [&str; 2], counts: store::Counts) {
    let store::Counts { done, of_files, left_out } = counts;
    let (place, all) = (place.display(), done + of_files + left_out);
    let what = if all == 1 { one } else { many };
    match (of_files, left_out) {
        (0, 0) => tracing::info!("{place}: {all} {what} restored"),
        (_, 0) => tracing::info!("{place}: {done} of {all} {what} restored; the configuration has the others"),
        _ => tracing::info!("{place}: {done} of {all} {what} restored; {left_out} do not fit the configuration"),
    }
}

/// Waits for the next event. Meanwhile feeds the service manager's watchdog, and reads the limits of memory.
fn next_event(happened: &Receiver<Event>, watchdog: &mut Option<Watchdog>) -> Option<Event> {
    loop {
        budget::refresh();
        if watchdog.as_mut().is_some_and(Watchdog::is_well) {
            service::well();
        }
        let timeout = watchdog.as_ref().map_or(budget::PERIOD, |watchdog| watchdog.timeout().min(budget::PERIOD));
        match happened.recv_timeout(timeout) {
            Ok(event) => return Some(event),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return None,
        }
    }
}

/// Table that two VRFs of a configuration share.
fn shared_vrf_table(config: &Config) -> Option<u32> {
    let mut seen = BTreeSet::new();
    let tables = config.links.iter().filter_map(|link| match link.kind {
        LinkKind::Vrf { table } => Some(table),
        _ => None,
    });
    tables.into_iter().find(|table| !seen.insert(*table))
}
