//! A client of a running gateway: its sockets, one connection to it, the programs that reach it, and the form of
//! errors. The daemon, `fatpath`, `fatpath-bench` and `fatpath-see` share this crate.
//!
//! # Decides
//! - Paths of a gateway's sockets: [`socket_path`], [`view_socket`], [`netlink_path`]; `FATPATH_RUNDIR`.
//! - Sending of a request and waiting for its reply: [`Client`], and the socket that a command which only looks connects to.
//! - Variables by which a program reaches a gateway instead of the kernel: [`gateway_program`].
//! - Passing of descriptors: [`passing`].
//! - Whole blocks of a capture ([`Capture`]), and the end of a stream at a signal or with its reader ([`StreamEnd`]).
//! - Form of a failure: [`CliError`], one line on standard error and an exit code.
//! - Arguments of `demo` and `bench`: [`BenchCommand`]. `fatpath` explains them and `fatpath-bench` obeys them. Those of `metrics`,
//!   `top` and `web`, which `fatpath-see` obeys: [`SeeCommand`].
//!
//! # Leaves to others
//! Contents of requests and replies ([`ctl`]), check and filter of programs that are started on a gateway ([`launch`]),
//! answers (crate `daemon`), and all other commands (the programs `fatpath`, `fatpath-bench` and `fatpath-see`).
//!
//! # Limits
//! A gateway answers within 10 seconds (`ANSWER_LIMIT` in `control_socket.rs`), with at most 256 MiB (`MAX_REPLY_LEN`
//! there). A message carries at most 8 descriptors (`MAX_DESCRIPTORS` in `passing.rs`), a block of a capture 1 MiB (`MAX_BLOCK_LEN` in
//! `capture.rs`).
//!
//! # Standards
//! No RFC. Blocks of pcapng (draft-ietf-opsawg-pcapng).
#![forbid(unsafe_code)]

mod bench_command;
mod capture;
pub mod command_line;
mod control_socket;
mod descriptor_limit;
mod error;
mod find_program;
pub mod gateway_program;
mod output;
pub mod passing;
mod see_command;
mod stream_end;

pub use bench_command::{BenchArgs, BenchCommand, BenchName, DemoArgs, PlotArgs};
pub use capture::{Capture, Captured};
pub use control_socket::{
    Client, ROOTS_RUN_DIR, gateways, instance_name, instance_or_default, is_running, may_look, netlink_path,
    own_socket_path, roots_socket_path, socket_path, state_dir, unreachable, view_socket,
};
pub use descriptor_limit::raise_descriptor_limit;
pub use error::CliError;
pub use find_program::{find_program, find_sibling, system_ip};
pub use output::print;
pub use see_command::{MetricsArgs, SeeCommand, TopArgs, WebArgs};
pub use stream_end::StreamEnd;

/// Environment variable with the path of `fatpath` for `fatpath-bench`, which runs this program's gateways.
pub const PROGRAM_VARIABLE: &str = "FATPATH_PROGRAM";
