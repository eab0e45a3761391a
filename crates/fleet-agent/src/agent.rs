//! The agent: a loop around the core, with a thread for the gateway and one for the file.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc as blocking};
use std::thread;
use std::time::{Duration, Instant};

use client::CliError;
use fleet::{Changes, Dump, Op, Reconciler, Status};
use tokio::sync::mpsc;
use tokio::time::sleep_until;

use crate::config::AgentConfig;
use crate::control::{self, ControlRequest, FULL_PERCENT, Report, percent_of};
use crate::etcd::MemberStatus;
use crate::gateway::{Gateway, LinkChanges, Refused};
use crate::random::Random;
use crate::saved_file::SavedFile;
use crate::store::{FromStore, Look, OwnKeys, Store};

/// Time between two attempts to reach the gateway, and between two looks whether it is there.
const GATEWAY_RETRY: Duration = Duration::from_millis(200);

/// Shortest time from one dump of the gateway to the next because of links that come up.
const DUMP_EVERY: Duration = Duration::from_secs(10);

/// Shortest time between two writes of the file.
const SAVE_EVERY: Duration = Duration::from_secs(1);

/// Snapshots and events that wait for the agent.
const STORE_QUEUE: usize = 64;

/// VRFs that a line of the log names.
const MAX_NAMED: usize = 10;

/// Message of the gateway's thread.
#[derive(Debug)]
enum FromGateway {
    /// The gateway is there, with this state; with the number of the connection.
    Attached(u64, Dump),
    /// Operations are carried out.
    Done,
    Refused(Op, Refused),
    /// The gateway is gone.
    Detached(String),
}

/// Operations for one connection to the gateway. A later one ignores them: its dump does not have them.
#[derive(Debug)]
struct Ops {
    connection: u64,
    ops: Vec<Op>,
}

/// Work of the file's thread.
#[derive(Debug, Default)]
struct FileState {
    /// Changes are being written.
    is_saving: AtomicBool,
    /// The agent ends: a write that fails is not tried again.
    is_ending: AtomicBool,
}

/// State of the agent.
#[derive(Debug)]
struct Agent {
    core: Reconciler,
    started: Instant,
    looks: mpsc::Sender<Look>,
    to_gateway: blocking::Sender<Ops>,
    /// Number of the connection to the gateway.
    connection: u64,
    /// The gateway's thread has operations.
    is_busy: bool,
    is_attached: bool,
    member: Option<String>,
    /// Reason for which no member is connected.
    failure: Option<String>,
    /// Reason for which the store refuses this node's keys.
    denied: Option<String>,
    to_file: blocking::Sender<Changes>,
    file: Arc<FileState>,
    last_save: Instant,
    last_answer: Option<Instant>,
    /// Revision up to which the store has passed on all changes.
    synced: u64,
    member_status: Option<MemberStatus>,
    quota_bytes: u64,
    /// The store's size was a warning.
    is_full: bool,
    /// VRFs that the gateway lacks, which have been named.
    missing_vrfs: BTreeSet<String>,
    last_status: Status,
}

/// Runs an agent until SIGTERM or SIGINT.
///
/// # Errors
/// The file cannot be opened, or another agent of the gateway runs.
pub(crate) fn run(config: AgentConfig) -> Result<(), CliError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build();
    let runtime = runtime.map_err(|err| CliError::system("start a thread", &err))?;
    runtime.block_on(serve(config))
}

async fn serve(config: AgentConfig) -> Result<(), CliError> {
    let failed = |err: io::Error| CliError::system(&config.state.display().to_string(), &err);
    let file = SavedFile::open(&config.state).map_err(failed)?;
    let mut settings = config.settings.clone();
    // Agents that start together do not look together.
    let mut random = Random::new();
    settings.look_every += random.below(settings.look_every / 5);
    let mut core = Reconciler::new(settings.clone());
    match file.load() {
        Ok(saved) => core.restore(saved),
        Err(err) => tracing::error!("{}: {err}: starting without the saved state", config.state.display()),
    }
    let status = core.status();
    tracing::info!(
        "{}: {} tasks and {} nodes at revision {}",
        config.state.display(),
        status.tasks,
        status.nodes,
        status.revision
    );

    let mut requests = control::listen(&config.instance)?;
    let (looks, looks_of_agent) = mpsc::channel(1);
    let (to_agent, mut from_store) = mpsc::channel(STORE_QUEUE);
    let own = OwnKeys { node: config.own, networks: config.networks };
    let store = Store::new(config.endpoints, settings, Some(own), to_agent, looks_of_agent);
    tokio::spawn(store.run());
    let (to_gateway, ops) = blocking::channel();
    let (from_thread, mut from_gateway) = mpsc::unbounded_channel();
    let path = client::netlink_path(&config.instance);
    thread::Builder::new()
        .name("gateway".to_owned())
        .spawn(move || drive_gateway(&path, &ops, &from_thread))
        .map_err(|err| CliError::system("start a thread", &err))?;
    let (to_file, changes) = blocking::channel();
    let file_state = Arc::new(FileState::default());
    let of_saver = Arc::clone(&file_state);
    let saver = thread::Builder::new()
        .name("file".to_owned())
        .spawn(move || save_changes(&file, &of_saver, &changes))
        .map_err(|err| CliError::system("start a thread", &err))?;

    let started = Instant::now();
    let mut agent = Agent {
        core,
        started,
        looks,
        to_gateway,
        connection: 0,
        is_busy: false,
        is_attached: false,
        member: None,
        failure: None,
        denied: None,
        to_file,
        file: file_state,
        last_save: started,
        last_answer: None,
        synced: 0,
        member_status: None,
        quota_bytes: config.quota_bytes,
        is_full: false,
        missing_vrfs: BTreeSet::new(),
        last_status: Status::default(),
    };
    let mut signals = StopSignals::new()?;
    loop {
        let deadline = agent.turn();
        tokio::select! {
            biased;
            () = signals.wait() => break,
            message = from_gateway.recv() => match message {
                Some(message) => agent.gateway(message),
                None => return Err(CliError::failed("the gateway's thread has ended".to_owned())),
            },
            Some(message) = from_store.recv() => agent.store(message),
            Some(request) = requests.recv() => agent.answer(request),
            () = sleep_until(deadline.into()) => {}
        }
    }
    agent.file.is_ending.store(true, Ordering::Relaxed);
    if let Some(changes) = agent.core.take_unsaved() {
        let _ = agent.to_file.send(changes);
    }
    drop(agent);
    let _ = saver.join();
    Ok(())
}

impl Agent {
    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Does what can be done now, and returns the time of the next turn.
    fn turn(&mut self) -> Instant {
        let now = self.now();
        self.core.timeout(now);
        if self.core.begin_look() && self.looks.try_send(Look { known: self.core.revision() }).is_err() {
            // One waits already.
            tracing::debug!("a look is in progress");
        }
        if !self.is_busy && self.is_attached {
            let ops = self.core.operations();
            if !ops.is_empty() {
                self.is_busy = true;
                let _ = self.to_gateway.send(Ops { connection: self.connection, ops });
            }
        }
        let save_at = self.last_save + SAVE_EVERY;
        let mut next = now + Duration::from_secs(1);
        if self.started + now >= save_at
            && !self.file.is_saving.load(Ordering::Acquire)
            && let Some(changes) = self.core.take_unsaved()
        {
            self.last_save = Instant::now();
            self.file.is_saving.store(true, Ordering::Release);
            let _ = self.to_file.send(changes);
        }
        self.log_status();
        if let Some(deadline) = self.core.deadline() {
            next = next.min(deadline.max(now + Duration::from_millis(1)));
        }
        self.started + next
    }

    fn gateway(&mut self, message: FromGateway) {
        let now = self.now();
        match message {
            FromGateway::Attached(connection, dump) => {
                tracing::info!("gateway: {} mappings and {} routes", dump.mappings.len(), dump.routes.len());
                self.connection = connection;
                self.is_attached = true;
                self.is_busy = false;
                self.core.attach(now, &dump);
            }
            FromGateway::Done => self.is_busy = false,
            FromGateway::Refused(op, Refused(errno)) => {
                tracing::warn!("gateway refuses {op:?}: {}", io::Error::from_raw_os_error(errno));
                self.core.refused(now, &op);
            }
            FromGateway::Detached(why) => {
                if self.is_attached {
                    tracing::warn!("gateway: {why}");
                }
                self.is_attached = false;
                self.core.detach();
            }
        }
    }

    fn store(&mut self, message: FromStore) {
        let now = self.now();
        match message {
            FromStore::Connected(member) => {
                tracing::info!("{member}: connected");
                self.member = Some(member);
                self.failure = None;
            }
            FromStore::Disconnected(why) => {
                self.member = None;
                self.failure = Some(why);
            }
            FromStore::Denied(why) => self.denied = why,
            FromStore::Snapshot(snapshot) => {
                self.last_answer = Some(Instant::now());
                self.synced = snapshot.revision;
                self.core.snapshot(now, &snapshot);
            }
            FromStore::Events(events) => {
                self.last_answer = Some(Instant::now());
                self.core.events(now, &events);
            }
            FromStore::Answer(revision) => {
                self.last_answer = Some(Instant::now());
                self.synced = self.synced.max(revision);
            }
            FromStore::Member(status) => {
                self.last_answer = Some(Instant::now());
                self.log_size(&status);
                self.member_status = Some(status);
            }
            FromStore::Doubt => self.core.request_look(),
        }
    }

    fn answer(&mut self, request: ControlRequest) {
        match request {
            ControlRequest::Status(answer) => {
                let _ = answer.send(Report {
                    status: self.core.status(),
                    refused: self.core.refused_keys(),
                    missing_vrfs: self.core.missing_vrfs(),
                    member: self.member.clone(),
                    failure: self.failure.clone(),
                    denied: self.denied.clone(),
                    has_gateway: self.is_attached,
                    answer_age: self.last_answer.map(|at| at.elapsed()),
                    synced: self.synced,
                    member_status: self.member_status.clone(),
                    quota_bytes: self.quota_bytes,
                });
            }
            ControlRequest::Approve(answer) => {
                tracing::info!("approved: the store as it is");
                let now = self.now();
                self.core.approve(now);
                let _ = answer.send(());
            }
        }
    }

    /// Logs that the store becomes full, once.
    fn log_size(&mut self, status: &MemberStatus) {
        let percent = percent_of(status.db_bytes, self.quota_bytes);
        let is_full = percent >= FULL_PERCENT;
        if is_full && !self.is_full {
            let MemberStatus { db_bytes, .. } = status;
            tracing::warn!("etcd's database has {db_bytes} bytes, {percent} % of its quota: compact and defragment it");
        }
        self.is_full = is_full;
    }

    /// Logs what an operator has to look at, when it changes.
    fn log_status(&mut self) {
        let status = self.core.status();
        if status.hold != self.last_status.hold {
            match status.hold {
                Some(hold) => {
                    tracing::warn!("nothing is withdrawn: {hold}; `fatpath-fleet approve` takes the store as it is");
                }
                None => tracing::info!("withdrawals are carried out again"),
            }
        }
        if self.is_attached {
            let missing: BTreeSet<String> = self.core.missing_vrfs().into_iter().collect();
            if let Some(names) = new_names(&missing, &self.missing_vrfs) {
                tracing::info!("the gateway has no VRF {names}: networks in it wait");
            }
            self.missing_vrfs = missing;
        }
        if status.refused != self.last_status.refused {
            for (refusal, count) in &status.refused {
                tracing::warn!("{count} objects are left alone: {refusal}");
            }
        }
        self.last_status = status;
    }
}

/// Names that have not been named yet, the first ten of them; `None` if there are none.
fn new_names(names: &BTreeSet<String>, named: &BTreeSet<String>) -> Option<String> {
    let new: Vec<&str> = names.difference(named).map(String::as_str).collect();
    let (first, others) = new.split_at(new.len().min(MAX_NAMED));
    let others = if others.is_empty() { String::new() } else { format!(" and {} more", others.len()) };
    (!new.is_empty()).then(|| format!("{}{others}", first.join(", ")))
}

/// Thread of the gateway: connects, dumps, and carries out operations.
fn drive_gateway(path: &Path, ops: &blocking::Receiver<Ops>, to_agent: &mpsc::UnboundedSender<FromGateway>) {
    let mut number = 0;
    loop {
        let why = match connection(&mut number, path, ops, to_agent) {
            Ok(()) => return,
            Err(err) => err.to_string(),
        };
        if to_agent.send(FromGateway::Detached(why)).is_err() {
            return;
        }
        thread::sleep(GATEWAY_RETRY);
    }
}

/// One connection to the gateway. Returns when the agent has ended. Each dump has a number: operations for the state before are ignored.
fn connection(
    number: &mut u64,
    path: &Path,
    ops: &blocking::Receiver<Ops>,
    to_agent: &mpsc::UnboundedSender<FromGateway>,
) -> io::Result<()> {
    let mut gateway = Gateway::connect(path)?;
    loop {
        *number += 1;
        let dump = gateway.dump()?;
        if to_agent.send(FromGateway::Attached(*number, dump)).is_err()
            || !serve_dump(*number, &mut gateway, ops, to_agent)?
        {
            return Ok(());
        }
    }
}

/// Carries out operations until there has to be another dump: a VRF comes or goes, or a link comes up. Returns `false` when the agent has ended.
fn serve_dump(
    number: u64,
    gateway: &mut Gateway,
    ops: &blocking::Receiver<Ops>,
    to_agent: &mpsc::UnboundedSender<FromGateway>,
) -> io::Result<bool> {
    let dumped = Instant::now();
    let mut looked = dumped;
    let mut is_stale = false;
    loop {
        if looked.elapsed() >= GATEWAY_RETRY {
            looked = Instant::now();
            let LinkChanges { has_other_vrfs, has_link_up } = gateway.link_changes()?;
            is_stale |= has_link_up;
            if has_other_vrfs || is_stale && dumped.elapsed() >= DUMP_EVERY {
                return Ok(true);
            }
        }
        match ops.recv_timeout(GATEWAY_RETRY) {
            Ok(Ops { connection, .. }) if connection != number => {}
            Ok(Ops { ops, .. }) => {
                gateway.carry_out(&ops, |op, refused| {
                    let _ = to_agent.send(FromGateway::Refused(op, refused));
                })?;
                if to_agent.send(FromGateway::Done).is_err() {
                    return Ok(false);
                }
            }
            Err(blocking::RecvTimeoutError::Disconnected) => return Ok(false),
            Err(blocking::RecvTimeoutError::Timeout) if gateway.is_alive() => {}
            Err(blocking::RecvTimeoutError::Timeout) => return Err(io::Error::other("the gateway has ended")),
        }
    }
}

/// Thread of the file. A write that fails is tried again.
fn save_changes(file: &SavedFile, state: &FileState, changes: &blocking::Receiver<Changes>) {
    while let Ok(changes) = changes.recv() {
        while let Err(err) = file.save(&changes) {
            tracing::error!("the state is not saved: {err}");
            if state.is_ending.load(Ordering::Relaxed) {
                return;
            }
            thread::sleep(SAVE_EVERY);
        }
        state.is_saving.store(false, Ordering::Release);
    }
}

/// SIGTERM and SIGINT.
#[derive(Debug)]
struct StopSignals(tokio::net::UnixStream);

impl StopSignals {
    fn new() -> Result<Self, CliError> {
        let new = || {
            let (read, write) = std::os::unix::net::UnixStream::pair()?;
            for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
                signal_hook::low_level::pipe::register(signal, write.try_clone()?)?;
            }
            read.set_nonblocking(true)?;
            tokio::net::UnixStream::from_std(read)
        };
        new().map(Self).map_err(|err: io::Error| CliError::system("handle signals", &err))
    }

    async fn wait(&mut self) {
        let _ = self.0.readable().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_name_is_named_once() {
        let names = |all: &[&str]| all.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        assert_eq!(new_names(&names(&["red", "blue"]), &names(&[])).as_deref(), Some("blue, red"));
        assert_eq!(new_names(&names(&["red", "blue"]), &names(&["red"])).as_deref(), Some("blue"));
        assert_eq!(new_names(&names(&["red"]), &names(&["blue", "red"])), None);
        let many = (10..32).map(|number| format!("v{number}")).collect();
        let printed = new_names(&many, &names(&["v10"])).unwrap();
        assert!(printed.starts_with("v11, v12") && printed.ends_with("v20 and 11 more"), "{printed}");
    }
}
