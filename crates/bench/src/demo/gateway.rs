//! A gateway process: started from a file in its namespace, queried over its control socket, ended with the
//! measurement.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::time::Duration;

use client::Client;
use ctl::state::{CountersState, DropState, LinkState, WorkerState};
use ctl::{Reply, Request, Shown, StateKind};
use testbed::{Daemon, Failure, Namespace, Opened, Scratch, Stop, command};

use super::config::{Keys, gateway_toml};
use super::machine::fatpath;
use super::topology::{Side, Topology};

/// Longest time that a gateway may take until it answers.
const START_LIMIT: Duration = Duration::from_secs(5);

/// A running gateway, ended on drop.
#[derive(Debug)]
pub(crate) struct Gateway {
    daemon: Daemon,
    instance: String,
    socket: PathBuf,
}

impl Gateway {
    /// Starts the gateway of one side, waits until it answers, and connects its host to it.
    pub(super) fn start(
        topology: &Topology,
        scratch: &Scratch,
        side: Side,
        fat: bool,
        keys: &Keys,
        stop: &Stop,
    ) -> Result<Self, Failure> {
        let config = gateway_toml(topology.deployment(), side, fat, keys);
        let mut gateway = Self::launch(topology, scratch, side, &config, stop)?;
        topology.attach(side, fat, stop).map_err(|failure| gateway.daemon.explain(failure))?;
        Ok(gateway)
    }

    /// Starts the gateway of one side with a configuration and waits until it answers.
    pub(super) fn launch(
        topology: &Topology,
        scratch: &Scratch,
        side: Side,
        config: &str,
        stop: &Stop,
    ) -> Result<Self, Failure> {
        Self::launch_in(topology.gateway(side), scratch, side, config, stop)
    }

    /// Starts a gateway with a configuration in a namespace, named by a side, and waits until it answers.
    pub(crate) fn launch_in(
        inside: &Namespace,
        scratch: &Scratch,
        side: Side,
        config: &str,
        stop: &Stop,
    ) -> Result<Self, Failure> {
        let instance = format!("demo-{}-{}", std::process::id(), side.letter());
        let name = format!("gateway {}", side.letter());
        let config = scratch.write(&format!("{instance}.toml"), config)?;
        // An earlier gateway may have been killed and have left its socket behind.
        let socket = scratch.path().join(format!("{instance}.sock"));
        let _ = fs::remove_file(&socket);
        let program = fatpath()?;
        let run = || {
            let mut command = command(&program);
            command.arg0("fatpath").args(["run", "--ephemeral", "-c"]).arg(&config);
            command.args(["--instance", &instance, "--state", "none"]);
            command.env("FATPATH_RUNDIR", scratch.path());
            command
        };
        let daemon = Daemon::start(name, &instance, scratch, inside, run)?;
        let mut gateway = Self { daemon, instance, socket };
        stop.wait(&format!("{} to answer", gateway.name()), START_LIMIT, || gateway.answers())
            .map_err(|failure| gateway.daemon.explain(failure))?;
        Ok(gateway)
    }

    /// The network namespace of its host side.
    pub(super) fn host_side(&self) -> Result<Opened, Failure> {
        Opened::at(&self.socket.with_extension("netns"))
    }

    /// Name of the gateway in messages.
    pub(super) fn name(&self) -> &str {
        self.daemon.name()
    }

    /// Name of the gateway's instance.
    pub(super) fn instance(&self) -> &str {
        &self.instance
    }

    /// Process number of the gateway.
    pub(crate) fn pid(&self) -> u32 {
        self.daemon.pid()
    }

    /// Links of the gateway.
    pub(crate) fn links(&self) -> Result<Vec<LinkState>, Failure> {
        match self.show(StateKind::Links)? {
            Shown::Links(links) => Ok(links),
            other => Err(self.confused(&other)),
        }
    }

    /// Workers of the gateway.
    pub(crate) fn workers(&self) -> Result<Vec<WorkerState>, Failure> {
        match self.show(StateKind::Workers)? {
            Shown::Workers(workers) => Ok(workers),
            other => Err(self.confused(&other)),
        }
    }

    /// Counters of the gateway.
    pub(super) fn counters(&self) -> Result<CountersState, Failure> {
        match self.show(StateKind::Counters)? {
            Shown::Counters(counters) => Ok(counters),
            other => Err(self.confused(&other)),
        }
    }

    /// Number of packets that the gateway has dropped, by reason.
    pub(super) fn dropped(&self) -> Result<BTreeMap<String, u64>, Failure> {
        let mut dropped = BTreeMap::new();
        for drop in self.drop_counts()? {
            *dropped.entry(drop.reason).or_default() += drop.count;
        }
        Ok(dropped)
    }

    fn drop_counts(&self) -> Result<Vec<DropState>, Failure> {
        match self.show(StateKind::Drops)? {
            Shown::Drops(drops) => Ok(drops),
            other => Err(self.confused(&other)),
        }
    }

    /// Non-zero drop counters in words, for a message about packets that did not arrive.
    pub(crate) fn drops(&self) -> Result<String, Failure> {
        let drops = self.drop_counts()?;
        let words = drops.iter().filter(|drop| drop.count > 0).map(|drop| {
            let link = drop.link.as_deref().unwrap_or("itself");
            format!("{link} {} {}", drop.reason, drop.count)
        });
        let words: Vec<String> = words.collect();
        Ok(format!(
            "{} dropped {}",
            self.name(),
            if words.is_empty() { "nothing".to_owned() } else { words.join(", ") }
        ))
    }

    /// Fails, with its last error lines, if it has ended by itself.
    pub(crate) fn check(&mut self) -> Result<(), Failure> {
        self.daemon.check()
    }

    fn answers(&mut self) -> Result<Option<()>, Failure> {
        self.check()?;
        Ok(self.ask(&Request::Ping).ok().map(drop))
    }

    /// Sends one request on a new connection.
    fn ask(&self, request: &Request) -> Result<Reply, Failure> {
        let answer = Client::connect_at(&self.instance, self.socket.clone()).and_then(|mut client| client.ask(request));
        answer.map_err(|err| Failure::step(self.name(), err.message))
    }

    fn show(&self, what: StateKind) -> Result<Shown, Failure> {
        match self.ask(&Request::Show { what })? {
            Reply::Show { shown } => Ok(shown),
            other => Err(self.confused(&other)),
        }
    }

    fn confused(&self, answer: &impl std::fmt::Debug) -> Failure {
        Failure::step(self.name(), format!("unexpected reply: {answer:?}"))
    }
}
