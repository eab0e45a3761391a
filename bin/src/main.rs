//! The `fatpath` program: the daemon and its command line.
#![forbid(unsafe_code)]

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: packet::Allocations = packet::Allocations;

fn main() -> ExitCode {
    program::main()
}
