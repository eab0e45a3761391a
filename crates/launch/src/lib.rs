//! Checks and system call filter for programs that are started on a gateway with its netlink.
//!
//! `fatpath exec` preloads a library (`preload`) before the C library. [`check`] decides whether a program would load
//! it; `fatpath exec` calls it for the program that it starts, and the library for each one that such a program starts.
//! [`filter`] is a seccomp filter for calls that bypass the library: system calls without the C library, and programs
//! that were started without [`check`]. Such a call fails with `EPERM` instead of reaching the host's kernel.
//!
//! Left to `preload`: everything that such a program does through the C library. Limits: the filter keeps programs from
//! changing the host's network by mistake. It is no sandbox: inherited or received descriptors are not checked, nor are
//! files of `/proc` and `/sys`.

#![deny(unsafe_code)]

pub mod filter;
mod loadable;
mod sys;

pub use loadable::{NotLoadable, Reason, check, check_found, check_open};
