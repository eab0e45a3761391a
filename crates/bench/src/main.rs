//! The program `fatpath-bench`: `fatpath demo` and `fatpath bench`, and what only they need.
//!
//! `bench` compares one mechanism with its own absence, on links in memory in this process; `demo` measures gateways of the program
//! `fatpath` end to end, in network namespaces of its own. This program decides what is measured, in which turns, and how figures are
//! shown. It leaves the words of both commands to [`client`], packets to the crates that it measures, hosts and wires to [`sim`] and
//! [`ibmveth`], and the gateways of a demo to `fatpath`, which starts this program and tells it its own path; started by hand, it looks for
//! `fatpath` beside itself and in `PATH`.
//!
//! Limits: `demo` needs root and /dev/net/tun. Allocations are counted, by an allocator of this program's own.
#![forbid(unsafe_code)]

mod bench;
mod demo;
mod figures;
mod progress;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use client::{BenchCommand, command_line};

#[global_allocator]
static ALLOCATOR: packet::Allocations = packet::Allocations;

/// Measurements of fatpath: `fatpath demo` and `fatpath bench`
#[derive(Debug, Parser)]
#[command(name = "fatpath-bench", version, max_term_width = 100, disable_help_subcommand = true)]
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
    command_line::exit_code(match cli.command {
        Command::Measure(BenchCommand::Demo(args)) => demo::main(&args),
        Command::Measure(BenchCommand::Bench(args)) => bench::main(&args),
        Command::VhostBackEnd(args) => bench::vhost_back_end(&args.sockets),
    })
}
