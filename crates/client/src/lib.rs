//! A client of a running gateway: its sockets, one connection to it, the programs that reach it, and how a command fails.
//!
//! The daemon, `fatpath` and `fatpath-bench` share this crate. It decides where the sockets of a gateway are ([`socket_path`],
//! [`netlink_path`]; `FATPATH_RUNDIR`), how a request is sent and its reply awaited ([`Client`]), by which variables a program reaches a
//! gateway instead of the kernel ([`gateway_program`]), how descriptors are sent ([`passing`]), what a failure looks like ([`CliError`]:
//! one line on standard error and an exit code), and which words `demo` and `bench` take ([`BenchCommand`]): `fatpath` explains them and
//! `fatpath-bench` obeys them.
//!
//! It leaves to crate [`ctl`] what requests and replies say, to [`launch`] which programs can be started on a gateway, to the daemon
//! what it answers, and to the programs all other commands.
//!
//! Limits: a reply within 10 seconds and 256 MiB; eight descriptors in a message.
#![forbid(unsafe_code)]

mod bench_command;
pub mod command_line;
mod control_socket;
mod descriptor_limit;
mod error;
mod find_program;
pub mod gateway_program;
mod output;
pub mod passing;

pub use bench_command::{BenchArgs, BenchCommand, BenchName, DemoArgs};
pub use control_socket::{Client, ROOTS_RUN_DIR, netlink_path, own_socket_path, socket_path, unreachable};
pub use descriptor_limit::raise_descriptor_limit;
pub use error::CliError;
pub use find_program::{find_sibling, system_ip};
pub use output::print;

/// Environment variable with the path of `fatpath` for `fatpath-bench`, which runs this program's gateways.
pub const PROGRAM_VARIABLE: &str = "FATPATH_PROGRAM";
