//! The program `fatpath`: the command line of the daemon and of its clients.
//!
//! # Decides
//! Names of commands, their arguments, and the text that they print.
//!
//! # Leaves to others
//! The gateway (crate [`daemon`]), the control socket (crate [`client`]), contents of requests and replies (crate
//! [`ctl`]), measurements (program `fatpath-bench`, which this program starts for `demo` and `bench`: so it links
//! neither the simulator nor the models that only measurements need), and metrics (program `fatpath-see`, in the same way: so it links
//! no HTTP).
//!
//! # Limits
//! `fatpath exec` waits 5 seconds for the answer about the host side (`PATIENCE` in `enter.rs`). All other limits are those of
//! [`client`].
//!
//! # Standards
//! No RFC.
#![forbid(unsafe_code)]

mod capture;
mod check;
mod cli;
mod config_page;
mod doctor;
mod down;
mod enter;
mod exec;
mod exec_with_gateway;
mod explain;
mod genkey;
mod isolation;
mod load;
mod man_pages;
mod measure;
mod monitor;
mod own_gateway;
mod pair;
mod progress;
mod save;
mod show;
mod status;
mod stream;
mod trace;
mod trial;
mod up;

use std::process::ExitCode;

use cli::{Cli, Command, StatusArgs};
use client::{CliError, command_line};

#[global_allocator]
static ALLOCATOR: packet::Allocations = packet::Allocations;

fn main() -> ExitCode {
    let cli: Cli = match command_line::parse() {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    let instance = match cli.instance() {
        Ok(instance) => instance,
        Err(err) => return command_line::exit_code(Err(err)),
    };
    let only = cli.has_instance().then_some(instance.as_str());
    let command = cli.command.unwrap_or(Command::Status(StatusArgs::once(false)));
    command_line::exit_code(run(command, &instance, only))
}

/// Runs a command for the gateway `instance`, and returns the exit code of its success. `only`: the gateway, if it was
/// chosen.
fn run(command: Command, instance: &str, only: Option<&str>) -> Result<ExitCode, CliError> {
    let done = match command {
        Command::Status(args) => return status::main(&args, only),
        Command::Show(args) => match args.what {
            Some(what) => show::main(&args, what, instance),
            None => return status::main(&StatusArgs::once(args.json), only),
        },
        Command::Run(args) => {
            args.parent.map(own_gateway::end_with).transpose()?;
            daemon::run(&args.config, args.state_place(), instance, args.options())
        }
        Command::Pair(args) => pair::main(&args),
        Command::Up(args) => up::up(&args.name),
        Command::Down(args) => down::main(&args),
        Command::Check(args) => check::main(&args),
        Command::Genkey(args) => genkey::main(&args),
        Command::Load(args) => load::main(&args, instance),
        Command::Save(_) => save::main(instance),
        Command::Measure(command) => measure::main(&command).map(|never| match never {}),
        Command::See(command) => measure::see(&command).map(|never| match never {}),
        Command::Capture(args) => capture::main(&args, instance),
        Command::Trace(args) => trace::main(&args, instance),
        Command::Monitor(args) => monitor::main(&args, instance),
        Command::Explain(args) => explain::main(&args),
        Command::Exec(args) if !args.config.is_empty() => return exec_with_gateway::main(&args, instance),
        Command::Exec(args) => exec::main(&args, instance),
        Command::Doctor(args) => return doctor::main(&args),
        Command::Try => return trial::main(),
        Command::Ip(args) => exec::ip(&args, instance),
        Command::Opener(args) => daemon::open_for_gateway(args.work),
        Command::Completions(args) => man_pages::completions(&args),
        Command::Man(args) => man_pages::man(&args),
    };
    done.map(|()| ExitCode::SUCCESS)
}
