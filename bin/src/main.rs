//! The program `fatpath`: the command line of the daemon and of its clients.
//!
//! # Decides
//! Names of commands, their arguments, and the text that they print.
//!
//! # Leaves to others
//! The gateway (crate [`daemon`]), the control socket (crate [`client`]), contents of requests and replies (crate
//! [`ctl`]), and measurements (program `fatpath-bench`, which this program starts for `demo` and `bench`: so it links
//! neither the simulator nor the models that only measurements need).
//!
//! # Limits
//! `fatpath capture` reads blocks of at most 1 MiB (`MAX_BLOCK_LEN` in `capture.rs`); `fatpath exec` waits 5 seconds
//! for the answer about the host side (`PATIENCE` in `enter.rs`). All other limits are those of [`client`].
//!
//! # Standards
//! No RFC.
#![forbid(unsafe_code)]

mod capture;
mod check;
mod cli;
mod down;
mod enter;
mod exec;
mod explain;
mod load;
mod man_pages;
mod measure;
mod monitor;
mod save;
mod show;
mod stream;
mod trace;

use std::process::ExitCode;

use cli::{Cli, Command};
use client::command_line;

#[global_allocator]
static ALLOCATOR: packet::Allocations = packet::Allocations;

fn main() -> ExitCode {
    let cli: Cli = match command_line::parse() {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    command_line::exit_code(match cli.command {
        Command::Run(args) => daemon::run(&args.config, args.state.as_deref(), &args.instance, !args.ephemeral),
        Command::Down(args) => down::main(&args),
        Command::Check(args) => check::main(&args),
        Command::Load(args) => load::main(&args),
        Command::Save(args) => save::main(&args),
        Command::Show(args) => show::main(&args),
        Command::Measure(_) => measure::main(),
        Command::Capture(args) => capture::main(&args),
        Command::Trace(args) => trace::main(&args),
        Command::Monitor(args) => monitor::main(&args),
        Command::Explain(args) => explain::main(&args),
        Command::Exec(args) => exec::main(&args),
        Command::Ip(args) => exec::ip(&args),
        Command::HostMaker => daemon::make_host_side(),
        Command::Completions(args) => man_pages::completions(&args),
        Command::Man(args) => man_pages::man(&args),
    })
}
