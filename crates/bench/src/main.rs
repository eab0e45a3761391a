//! The program `fatpath-bench`: `fatpath demo`, `fatpath bench` and `fatpath plot`, and what only they need.
//!
//! # Decides
//! Measurements, their turns, and the form of figures. `bench` compares one mechanism with its own absence, on links in
//! memory in this process; `demo` measures gateways of the program `fatpath` end to end, in network namespaces of its
//! own.
//!
//! # Leaves to others
//! Arguments of both commands (crate [`client`]), packets (the crates that are measured), hosts and wires (crates
//! [`sim`] and [`ibmveth`]), and the gateways of a demo (program `fatpath`, which starts this program and tells it its
//! own path; started by hand, it looks for `fatpath` beside itself and in `PATH`).
//!
//! # Limits
//! `demo` needs root, of a user namespace at least; a gateway has 5 seconds to start (`START_LIMIT` in `demo/gateway.rs`).
//! Allocations are counted, by an allocator of this program's own.
//!
//! # Standards
//! No RFC.
#![forbid(unsafe_code)]

mod bench;
mod demo;
mod figures;
mod plot;
mod progress;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use client::{BenchCommand, command_line};

#[global_allocator]
static ALLOCATOR: packet::Allocations = packet::Allocations;

/// Measurements of fatpath: `fatpath demo`, `fatpath bench` and `fatpath plot`
#[derive(Debug, Parser)]
#[command(name = "fatpath-bench", version = env!("FATPATH_VERSION"), max_term_width = 100, disable_help_subcommand = true)]
struct Cli {
    /// Measurement
    #[command(subcommand)]
    command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
enum Command {
    #[command(flatten)]
    Measure(BenchCommand),
    /// Receive frames by vhost-user until standard input ends, for `fatpath bench vhost`
    #[command(hide = true)]
    VhostBackEnd(VhostBackEndArgs),
}

/// Arguments of `vhost-back-end`.
#[derive(Args, Debug)]
struct VhostBackEndArgs {
    /// Sockets of its ports
    #[arg(value_name = "PATH", required = true)]
    sockets: Vec<PathBuf>,
}

fn main() -> ExitCode {
    let cli: Cli = match command_line::parse() {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    let done = match cli.command {
        Command::Measure(BenchCommand::Demo(args)) => demo::main(&args),
        Command::Measure(BenchCommand::Bench(args)) => bench::main(&args),
        Command::Measure(BenchCommand::Plot(args)) => plot::main(&args),
        Command::VhostBackEnd(args) => bench::vhost_back_end(&args.sockets),
    };
    command_line::exit_code(done.map(|()| ExitCode::SUCCESS))
}
