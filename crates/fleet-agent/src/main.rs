//! The program `fatpath-fleet`: keeps the mappings and routes of one gateway as a store, etcd, has them for a fleet of nodes.
//!
//! # Decides
//! Members of etcd and the time at which another one is tried ([`store`]), gRPC as etcd takes it ([`etcd`]), requests to the gateway
//! ([`gateway`]), the file of the last state ([`saved_file`]), and commands: roles and users of etcd ([`init`]), and certificates
//! ([`authority`]).
//!
//! # Leaves to others
//! Operations of the gateway and withdrawals (crate [`fleet`]); paths of sockets and exit codes (crate [`client`]). HTTP/2 is crate `h2`'s,
//! by tokio, and TLS is rustls's with ciphers of ring: none of them is in the gateway or in the preloaded library.
//!
//! # Limits
//! A member answers a PING in 2 seconds, a change in 1, a page of 10 000 keys in 10, and gives a sign of life every 5 seconds; a message has
//! at most 64 MiB. The next member is tried after 0.1 to 30 seconds. The state is saved once a second at most.
//!
//! # Standards
//! RFC 9113 (HTTP/2) as h2 has it; RFC 8446 (TLS 1.3) as rustls has it; RFC 5280 §4.1 (names and times of certificates); etcd's API version 3
//! over gRPC; RFC 3549 §2.2 (netlink).
#![forbid(unsafe_code)]

mod agent;
mod authority;
mod config;
mod control;
mod drain;
mod etcd;
mod gateway;
mod init;
mod log;
mod metrics;
mod mover;
mod pages;
mod random;
mod saved_file;
mod store;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use base::Prefix;
use clap::{Args, Command, CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use client::{CliError, command_line};
use ila::Locator;

use config::AgentConfig;
use control::{FULL_PERCENT, ReportText, percent_of};
use init::InitArgs;
use mover::Mover;

/// Mappings and routes of a fleet of nodes, from etcd
#[derive(Debug, Parser)]
#[command(name = "fatpath-fleet", version = env!("FATPATH_VERSION"), max_term_width = 100, disable_help_subcommand = true)]
struct Cli {
    /// Command
    #[command(subcommand)]
    command: FleetCommand,
}

/// The file of a node's agent.
#[derive(Args, Clone, Debug)]
struct ConfigArg {
    /// File of the node
    #[arg(short, long, value_name = "FILE")]
    config: PathBuf,
}

/// The gateway of an agent.
#[derive(Args, Clone, Debug)]
struct InstanceArg {
    /// Name of the agent's gateway
    #[arg(long, value_name = "NAME")]
    instance: Option<String>,
}

#[derive(Debug, Subcommand)]
enum FleetCommand {
    /// Keeps a gateway as the store has it, until SIGTERM
    Run(ConfigArg),
    /// Shows the state of a running agent
    Status {
        #[command(flatten)]
        instance: InstanceArg,
        /// JSON
        #[arg(long)]
        json: bool,
    },
    /// Prints the metrics of an agent, in the text format of Prometheus
    Metrics {
        #[command(flatten)]
        instance: InstanceArg,
        /// Directory of node_exporter's textfile collector, in which a file is replaced
        #[arg(long, value_name = "DIR")]
        textfile: Option<PathBuf>,
    },
    /// Lets a running agent take the store as it is: held withdrawals are carried out
    Approve(InstanceArg),
    /// Makes what a fleet's store lacks: its identity, roles and users; certificates too with --ca
    Init(InitArgs),
    /// Adds a task
    Add {
        #[command(flatten)]
        config: ConfigArg,
        /// SIR prefix of the task, such as 2001:db8:0:a::/64
        sir: Prefix,
        /// Name of its node
        node: String,
        /// Locator at that node, such as fd00:0:1:7
        locator: Locator,
    },
    /// Moves a task to another node
    Move {
        #[command(flatten)]
        config: ConfigArg,
        /// SIR prefix of the task
        sir: Prefix,
        /// Name of the other node
        node: String,
        /// Locator at that node
        locator: Locator,
        /// Command that moves the task itself, after the other node is prepared
        #[arg(last = true, value_name = "COMMAND")]
        command: Vec<String>,
    },
    /// Moves all tasks of a node to others
    Drain {
        #[command(flatten)]
        config: ConfigArg,
        /// Name of the node
        node: String,
        /// Node that takes them, may be repeated; all others that are alive if there is none
        #[arg(long, value_name = "NODE")]
        to: Vec<String>,
        /// Command that moves a task itself, with FATPATH_TASK, FATPATH_FROM, FATPATH_TO and FATPATH_LOCATOR
        #[arg(last = true, value_name = "COMMAND")]
        command: Vec<String>,
    },
    /// Removes a task
    Remove {
        #[command(flatten)]
        config: ConfigArg,
        /// SIR prefix of the task
        sir: Prefix,
    },
    /// Prints the completion script of a shell
    Completions {
        /// Shell
        shell: Shell,
    },
    /// Writes the man pages into a directory
    Man {
        /// Directory
        dir: PathBuf,
    },
}

/// The command line.
fn program() -> Command {
    Cli::command()
}

fn main() -> ExitCode {
    let cli: Cli = match command_line::parse() {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    command_line::exit_code(carry_out(cli.command).map(|()| ExitCode::SUCCESS))
}

fn carry_out(command: FleetCommand) -> Result<(), CliError> {
    match command {
        FleetCommand::Run(ConfigArg { config }) => {
            log::start();
            agent::run(AgentConfig::read(&config)?)
        }
        FleetCommand::Status { instance, json } => {
            let reply = control::ask(&client::instance_or_default(instance.instance.as_deref())?, "status")?;
            let text = if json { reply } else { status_text(&reply)? };
            client::print(text.as_bytes())
        }
        FleetCommand::Metrics { instance, textfile } => {
            print_metrics(&client::instance_or_default(instance.instance.as_deref())?, textfile.as_deref())
        }
        FleetCommand::Approve(InstanceArg { instance }) => {
            control::ask(&client::instance_or_default(instance.as_deref())?, "approve").map(drop)
        }
        FleetCommand::Init(args) => init::run(&args),
        FleetCommand::Add { config, sir, node, locator } => {
            with_mover(config.config, async |mover| mover.add(sir, &node, locator).await)
        }
        FleetCommand::Move { config, sir, node, locator, command } => {
            with_mover(config.config, async |mover| mover.move_task(sir, &node, locator, &command).await)
        }
        FleetCommand::Drain { config, node, to, command } => {
            with_mover(config.config, async |mover| mover.drain(&node, &to, &command).await)
        }
        FleetCommand::Remove { config, sir } => with_mover(config.config, async |mover| mover.remove(sir).await),
        FleetCommand::Completions { shell } => pages::completions(program(), shell),
        FleetCommand::Man { dir } => pages::man(program(), &dir),
    }
}

/// Runs a command that writes to the store.
fn with_mover(config: PathBuf, work: impl AsyncFnOnce(&Mover) -> Result<(), CliError>) -> Result<(), CliError> {
    let config = AgentConfig::read(&config)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build();
    let runtime = runtime.map_err(|err| CliError::system("start a thread", &err))?;
    runtime.block_on(async { work(&Mover::connect(config).await?).await })
}

/// Prints the metrics of an agent, or writes them to a file. An agent that does not answer has a metric that says so.
fn print_metrics(instance: &str, dir: Option<&Path>) -> Result<(), CliError> {
    let report = control::ask(instance, "status").and_then(|reply| read_report(&reply));
    if let Err(err) = &report {
        eprintln!("{err}");
    }
    let text = metrics::text(instance, report.ok().as_ref());
    match dir {
        None => client::print(text.as_bytes()),
        Some(dir) => {
            metrics::write_file(dir, instance, &text).map_err(|err| CliError::system(&dir.display().to_string(), &err))
        }
    }
}

fn read_report(reply: &str) -> Result<ReportText, CliError> {
    serde_json::from_str(reply).map_err(|err| CliError::failed(err.to_string()))
}

/// Text of `fatpath-fleet status`.
fn status_text(reply: &str) -> Result<String, CliError> {
    let report = read_report(reply)?;
    let member = match (&report.member, &report.failure) {
        (Some(member), _) => member.clone(),
        (None, Some(why)) => format!("none is connected ({why})"),
        (None, None) => "none is connected".to_owned(),
    };
    let gateway = if report.gateway { "connected" } else { "not connected" };
    let behind = report.behind.map(|behind| format!(", {behind} behind")).unwrap_or_default();
    let age = report.answer_age_ms.map(|ms| format!(", last answer {}.{} s ago", ms / 1000, ms % 1000 / 100));
    let age = age.unwrap_or_default();
    let mut text = format!(
        "store     {member}, revision {}{behind}{age}\ngateway   {gateway}, {} mappings, {} routes\nfleet     {} nodes, {} tasks, {} networks\n",
        report.revision, report.mappings, report.routes, report.nodes, report.tasks, report.networks
    );
    if let Some(why) = &report.denied {
        text += &format!("denied    this node's keys: {why}\n");
    }
    if let Some(bytes) = report.store_bytes {
        let quota = report.store_quota_bytes;
        let percent = percent_of(bytes, quota);
        let advice = if percent >= FULL_PERCENT { ": compact and defragment etcd, or raise its quota" } else { "" };
        text += &format!("size      {} of {} MiB, {percent} %{advice}\n", bytes >> 20, quota >> 20);
    }
    for error in &report.store_errors {
        text += &format!("etcd      {error}\n");
    }
    if report.withdrawals != 0 {
        text += &format!("waiting   {} withdrawals\n", report.withdrawals);
    }
    if let Some(held) = &report.held {
        text += &format!("held      {held}: `fatpath-fleet approve` takes the store as it is\n");
    }
    if report.refused_by_gateway != 0 {
        text += &format!("gateway   refuses {} operations, which are tried again\n", report.refused_by_gateway);
    }
    for vrf in &report.missing_vrfs {
        text += &format!("missing   VRF {vrf}: networks in it wait for it\n");
    }
    for (key, why) in &report.refused {
        text += &format!("ignored   {key}: {why}\n");
    }
    Ok(text)
}
