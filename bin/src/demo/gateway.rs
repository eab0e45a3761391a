//! A gateway process: started from a file in its namespace, asked over its control socket, ended with the measurement.

use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use control::state::{CountersState, LinkState};
use control::{Reply, Request, Shown, What};
use rustix::process::{Pid, Signal, kill_process};

use super::config::{Keys, gateway_toml};
use super::failure::{Failure, tail};
use super::process::{Scratch, command, end};
use super::stop::Stop;
use super::topology::{Side, Topology};
use crate::client::Client;

/// How long a gateway may take until it answers.
const START_LIMIT: Duration = Duration::from_secs(5);
/// How long it may take to end after SIGTERM, before it is killed.
const END_LIMIT: Duration = Duration::from_secs(2);

/// A running gateway, ended on drop.
#[derive(Debug)]
pub(super) struct Gateway {
    name: String,
    instance: String,
    child: Child,
    socket: PathBuf,
    log: PathBuf,
}

impl Gateway {
    /// Starts the gateway of one side and waits until it answers and its host is joined to it.
    pub(super) fn start(
        topology: &Topology,
        scratch: &Scratch,
        side: Side,
        fat: bool,
        keys: &Keys,
        stop: &Stop,
    ) -> Result<Self, Failure> {
        let instance = format!("demo-{}-{}", std::process::id(), side.letter());
        let name = format!("gateway {}", side.letter());
        let config = gateway_toml(topology.deployment(), side, fat, keys);
        let config = scratch.write(&format!("{instance}.toml"), &config)?;
        let log = scratch.write(&format!("{instance}.log"), "")?;
        // The one before may have been killed and have left its socket behind.
        let socket = scratch.path().join(format!("{instance}.sock"));
        let _ = fs::remove_file(&socket);
        let spawn = || -> io::Result<Child> {
            let stderr = File::options().append(true).open(&log)?;
            // What runs is this very program, even if its file has been replaced meanwhile.
            let mut command = command("/proc/self/exe");
            command.arg0("fatpath").arg("run").arg("-c").arg(&config).args(["--instance", &instance]);
            command.env("FATPATH_RUNDIR", scratch.path()).stdout(Stdio::null()).stderr(stderr);
            command.spawn()
        };
        let inside = topology.gateway(side);
        let child = inside.enter(|| spawn().map_err(|err| Failure::step(format!("start {name}"), err)))?;
        let mut gateway = Self { name, instance, child, socket, log };
        stop.wait(&format!("{} to answer", gateway.name), START_LIMIT, || gateway.answers())
            .map_err(|failure| gateway.explain(failure))?;
        topology.attach(side, fat, stop).map_err(|failure| gateway.explain(failure))?;
        Ok(gateway)
    }

    /// How messages call it.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Its process.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its links.
    pub(super) fn links(&self) -> Result<Vec<LinkState>, Failure> {
        match self.show(What::Links)? {
            Shown::Links(links) => Ok(links),
            other => Err(self.confused(&other)),
        }
    }

    /// Its counters.
    pub(super) fn counters(&self) -> Result<CountersState, Failure> {
        match self.show(What::Counters)? {
            Shown::Counters(counters) => Ok(counters),
            other => Err(self.confused(&other)),
        }
    }

    /// Its drops that are not zero, in words, for a message about packets that did not arrive.
    pub(super) fn drops(&self) -> Result<String, Failure> {
        let drops = match self.show(What::Drops)? {
            Shown::Drops(drops) => drops,
            other => return Err(self.confused(&other)),
        };
        let words = drops.iter().filter(|drop| drop.count > 0).map(|drop| {
            let link = drop.link.as_deref().unwrap_or("itself");
            format!("{link} {} {}", drop.reason, drop.count)
        });
        let words: Vec<String> = words.collect();
        Ok(format!("{} dropped {}", self.name, if words.is_empty() { "nothing".to_owned() } else { words.join(", ") }))
    }

    /// Fails, with its last words, if it has ended by itself.
    pub(super) fn check(&mut self) -> Result<(), Failure> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(Failure::step(format!("{} ended ({status})", self.name), self.last_words())),
            Err(err) => Err(Failure::step(&self.name, err)),
        }
    }

    fn answers(&mut self) -> Result<Option<()>, Failure> {
        self.check()?;
        Ok(self.ask(&Request::Ping).ok().map(drop))
    }

    /// One question on a connection of its own.
    fn ask(&self, request: &Request) -> Result<Reply, Failure> {
        let answer = Client::connect_at(&self.instance, self.socket.clone()).and_then(|mut client| client.ask(request));
        answer.map_err(|err| Failure::step(&self.name, err.message))
    }

    fn show(&self, what: What) -> Result<Shown, Failure> {
        match self.ask(&Request::Show { what })? {
            Reply::Show { shown } => Ok(shown),
            other => Err(self.confused(&other)),
        }
    }

    fn confused(&self, answer: &impl std::fmt::Debug) -> Failure {
        Failure::step(&self.name, format!("answered another question: {answer:?}"))
    }

    /// Adds what the gateway wrote last to a failure that is not its own end.
    fn explain(&mut self, failure: Failure) -> Failure {
        if matches!(failure, Failure::Interrupted) {
            return failure;
        }
        match self.check() {
            Err(ended) => ended,
            Ok(()) => match self.last_words() {
                words if words.is_empty() => failure,
                words => Failure::step(failure.to_string(), words),
            },
        }
    }

    fn last_words(&self) -> String {
        tail(&fs::read_to_string(&self.log).unwrap_or_default())
    }
}

impl Drop for Gateway {
    /// SIGTERM, then SIGKILL.
    fn drop(&mut self) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        // The child is ours and not reaped, so its number is still its own.
        let asked = pid.is_some_and(|pid| kill_process(pid, Signal::TERM).is_ok());
        let start = Instant::now();
        while asked && start.elapsed() < END_LIMIT {
            match self.child.try_wait() {
                Ok(None) => thread::sleep(Duration::from_millis(4)),
                Ok(Some(_)) => return,
                Err(_) => break,
            }
        }
        end(&mut self.child);
    }
}
