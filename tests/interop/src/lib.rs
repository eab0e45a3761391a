//! A real Linux kernel as peer: Debian's user-mode-linux, run as a process on the host's own root file system.

#![forbid(unsafe_code)]

mod uml;

pub use uml::{Uml, XSTATE_LIBRARY};
