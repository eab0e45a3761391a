//! Starting a program whose netlink is a gateway's: which programs can be started, and which system calls they are refused.
//!
//! `fatpath exec` puts a library (`preload`) in front of the C library. [`check`] tells whether a program would load it;
//! `fatpath exec` asks for the program that it is told to start, the library for each one that such a program starts.
//! [`filter`] is a seccomp filter for what the library does not see: system calls that a program makes without the C library,
//! and programs that were started without [`check`]. Such a call fails with `EPERM` instead of reaching the host's kernel.
//!
//! Limits: the filter keeps programs from changing the host's network by mistake. It is no sandbox: descriptors that a
//! program inherits or is sent are not looked at, nor are files of `/proc` and `/sys`.

#![deny(unsafe_code)]

pub mod filter;
mod loadable;
mod sys;

pub use loadable::{NotLoadable, Reason, check, check_found, check_open};
