//! Commands that write tasks: the mover. Each write of an existing key names the revision that it has seen, so that of two movers one loses.

use std::process::Command;

use base::Prefix;
use client::CliError;
use fleet::{Key, MetaValue, TaskState, TaskValue};
use ila::Locator;

use crate::config::AgentConfig;
use crate::drain::{FleetState, sir_text};
use crate::etcd::{CallError, Etcd, Found, Write};
use crate::random::Random;

/// Connection of a command.
#[derive(Debug)]
pub(crate) struct Mover {
    etcd: Etcd,
    config: AgentConfig,
}

fn failed(err: &CallError) -> CliError {
    CliError::failed(err.to_string())
}

/// A write's key has changed, or its task was not as expected.
fn lost(sir: &str) -> CliError {
    CliError::failed(format!("{sir}: another mover has changed the task"))
}

impl Mover {
    /// Connects to the first member that answers.
    ///
    /// # Errors
    /// None does.
    pub(crate) async fn connect(config: AgentConfig) -> Result<Self, CliError> {
        let mut last = None;
        for endpoint in &config.endpoints {
            match Etcd::connect(endpoint).await {
                Ok(etcd) => return Ok(Self { etcd, config }),
                Err(err) => last = Some(format!("{endpoint}: {err}")),
            }
        }
        Err(CliError::failed(last.unwrap_or_default()))
    }

    /// Makes the fleet's identity, unless it has one.
    ///
    /// # Errors
    /// No answer, or a refusal.
    pub(crate) async fn init(&self) -> Result<bool, CliError> {
        let mut random = Random::new();
        let uuid = format!("{:016x}{:016x}", random.bits(), random.bits());
        let key = Key::Meta.text(&self.config.settings.fleet);
        let write = Write { key, value: Some(MetaValue::new(uuid).to_bytes()), expected: Some(0) };
        self.etcd.write(&[write], 0).await.map_err(|err| failed(&err))
    }

    /// Key of a task.
    fn key(&self, sir: Prefix) -> Result<String, CliError> {
        let std::net::IpAddr::V6(addr) = sir.addr() else {
            return Err(CliError::failed(format!("Invalid SIR prefix {sir}: an IPv6 prefix of 64 bits")));
        };
        if sir.len() != 64 {
            return Err(CliError::failed(format!("Invalid SIR prefix {sir}: an IPv6 prefix of 64 bits")));
        }
        let domain = self.config.settings.domains.iter().find(|domain| domain.prefix.contains(sir.addr()));
        let domain = domain.ok_or_else(|| CliError::failed(format!("Invalid SIR prefix {sir}: no domain has it")))?;
        Ok(Key::Task { domain: domain.name.clone(), sir: Locator::of(addr) }.text(&self.config.settings.fleet))
    }

    async fn find(&self, sir: &str, key: &str) -> Result<(Found, TaskValue), CliError> {
        let (found, _) = self.etcd.get(key).await.map_err(|err| failed(&err))?;
        let found = found.ok_or_else(|| CliError::failed(format!("{sir}: no such task")))?;
        let task = TaskValue::parse(&found.value).map_err(|refusal| CliError::failed(format!("{sir}: {refusal}")))?;
        Ok((found, task))
    }

    async fn write(&self, sir: &str, key: String, value: Option<Vec<u8>>, expected: u64) -> Result<(), CliError> {
        let write = Write { key, value, expected: Some(expected) };
        if self.etcd.write(&[write], 0).await.map_err(|err| failed(&err))? { Ok(()) } else { Err(lost(sir)) }
    }

    /// Adds a task.
    ///
    /// # Errors
    /// The task exists.
    pub(crate) async fn add(&self, sir: Prefix, node: &str, locator: Locator) -> Result<(), CliError> {
        let key = self.key(sir)?;
        self.write(&sir.to_string(), key, Some(TaskValue::here(node, locator).to_bytes()), 0).await
    }

    /// Removes a task.
    ///
    /// # Errors
    /// There is none.
    pub(crate) async fn remove(&self, sir: Prefix) -> Result<(), CliError> {
        let key = self.key(sir)?;
        let sir = sir.to_string();
        let (found, _) = self.find(&sir, &key).await?;
        self.write(&sir, key, None, found.revision).await
    }

    /// Moves a task: prepares its new node, runs `command`, which moves the task itself, and then tells all nodes. If the command fails, the
    /// task stays where it is; a move that had begun before stays on the way, since the task may have moved then.
    ///
    /// # Errors
    /// The command fails, or another mover has changed the task.
    pub(crate) async fn move_task(
        &self,
        sir: Prefix,
        to: &str,
        locator: Locator,
        command: &[String],
    ) -> Result<(), CliError> {
        let key = self.key(sir)?;
        self.move_key(&sir.to_string(), key, to, locator, command).await
    }

    async fn move_key(
        &self,
        sir: &str,
        key: String,
        to: &str,
        locator: Locator,
        command: &[String],
    ) -> Result<(), CliError> {
        let (found, task) = self.find(sir, &key).await?;
        if task.state == TaskState::Moving
            && (task.to.as_deref(), task.to_locator.as_deref()) != (Some(to), Some(&locator.to_string()))
        {
            return Err(CliError::failed(format!("{sir}: the task moves to another node already")));
        }
        if task.node == to && task.state == TaskState::Here {
            return Err(CliError::failed(format!("{sir}: the task is at {to} already")));
        }
        if task.state == TaskState::Here {
            self.write(sir, key.clone(), Some(task.moving(to, locator).to_bytes()), found.revision).await?;
        }
        let variables = [
            ("FATPATH_TASK", sir.to_owned()),
            ("FATPATH_FROM", task.node.clone()),
            ("FATPATH_TO", to.to_owned()),
            ("FATPATH_LOCATOR", locator.to_string()),
        ];
        let outcome = run(command, variables).await;
        if let Err(err) = &outcome
            && task.state == TaskState::Moving
        {
            return Err(CliError::failed(format!(
                "{sir}: {}; the move to {to} had begun before, and the task may be at either node: move it again",
                err.messages()
            )));
        }
        let (found, moving) = self.find(sir, &key).await?;
        if moving != task.moving(to, locator) {
            return Err(lost(sir));
        }
        let place = if outcome.is_ok() {
            TaskValue::here(to, locator)
        } else {
            let at = task.locator.parse().map_err(|_| CliError::failed(format!("{sir}: invalid locator")))?;
            TaskValue::here(&task.node, at)
        };
        self.write(sir, key, Some(place.to_bytes()), found.revision).await?;
        outcome
    }

    /// Moves all tasks of a node to the nodes `to`, or to all others that are alive, and names each. A move that was begun goes on.
    ///
    /// # Errors
    /// No node takes the tasks, or some of them have stayed: their names are printed.
    pub(crate) async fn drain(&self, node: &str, to: &[String], command: &[String]) -> Result<(), CliError> {
        let fleet = &self.config.settings.fleet;
        let plan = self.state().await?.drain(fleet, node, to).map_err(CliError::failed)?;
        for planned in plan.moves {
            let sir = sir_text(planned.sir);
            let moved = self.move_key(&sir, planned.key, &planned.to, planned.locator, command).await;
            match moved {
                Ok(()) => client::print(format!("{sir} {} {}\n", planned.to, planned.locator).as_bytes())?,
                Err(err) => eprintln!("{}", err.messages()),
            }
        }
        // Tasks that have come meanwhile are not missed.
        let left = self.state().await?.drain(fleet, node, to).map_err(CliError::failed)?;
        for (key, why) in &left.stuck {
            eprintln!("{}: {why}", key.strip_prefix(&Key::root(fleet)).unwrap_or(key).escape_debug());
        }
        match left.moves.len() + left.stuck.len() {
            0 => Ok(()),
            count => Err(CliError::failed(format!("{node}: not empty, {count} tasks are left"))),
        }
    }

    /// State of the fleet at one revision.
    async fn state(&self) -> Result<FleetState, CliError> {
        let fleet = &self.config.settings.fleet;
        let mut state = FleetState::default();
        let mut revision = 0;
        for prefix in [Key::nodes(fleet), Key::all_alive(fleet), Key::tasks(fleet)] {
            let (found, at) = self.etcd.prefix(&prefix, revision).await.map_err(|err| failed(&err))?;
            revision = at;
            for found in found {
                state.take(fleet, &found.key, &found.value);
            }
        }
        Ok(state)
    }
}

/// Runs the command that moves a task, on a thread of its own: the connection is kept alive meanwhile.
async fn run<const N: usize>(command: &[String], variables: [(&'static str, String); N]) -> Result<(), CliError> {
    let [program, args @ ..] = command else { return Ok(()) };
    let mut command = Command::new(program);
    command.args(args).envs(variables);
    let status = tokio::task::spawn_blocking(move || command.status()).await;
    match status.map_err(|err| CliError::failed(format!("{program}: {err}")))? {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(CliError::failed(format!("{program}: {status}"))),
        Err(err) => Err(CliError::system(program, &err)),
    }
}
