//! Checks and system call filter for programs that are started on a gateway with its netlink, and the filter of the
//! gateway itself.
//!
//! # Decides
//! - Programs that can be started: `fatpath exec` preloads a library before the C library. [`check`] decides whether a
//!   program would load it; `fatpath exec` calls it for the program that it starts, and the library for each one that
//!   such a program starts.
//! - System calls that are refused: [`filter`] is a seccomp filter for calls that bypass the library: system calls
//!   without the C library, and programs that were started without [`check`]. Such a call fails with `EPERM` instead of
//!   reaching the host's kernel.
//! - System calls of a gateway that is ready: [`sandbox`] is a seccomp filter for all its threads.
//!
//! # Leaves to others
//! Everything that such a program does through the C library (crate `preload`); variables of its environment (crate
//! `client`).
//!
//! # Limits
//! At most 5 nested interpreters of scripts, as in Linux (`MAX_SCRIPTS` in `loadable.rs`). [`filter`] keeps programs
//! from changing the host's network by mistake. It is no sandbox: inherited or received descriptors are not checked,
//! nor are files of `/proc` and `/sys`.
//!
//! # Standards
//! No RFC. Follows ld.so(8), seccomp(2) and Linux `exec_binprm`.

#![deny(unsafe_code)]

mod bpf;
pub mod filter;
mod loadable;
pub mod netfilter;
pub mod sandbox;
mod sys;

pub use loadable::{NotLoadable, Reason, check, check_found, check_open};
