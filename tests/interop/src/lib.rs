//! A real Linux kernel as peer: Debian's user-mode-linux, run as a process on the host's own root file system.
//!
//! # Decides
//! Start, end and scripts of such a kernel: [`Uml`].
//!
//! # Leaves to others
//! Namespaces, processes and needs of tests (crate [`system`]); scenarios and their expected results (the tests of this
//! crate).
//!
//! # Limits
//! Booting, or one script, takes at most 60 seconds (`PATIENCE` in `uml.rs`).
//!
//! # Standards
//! No RFC.

#![forbid(unsafe_code)]

mod uml;

pub use uml::{Uml, XSTATE_LIBRARY};
