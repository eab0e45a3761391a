//! State that programs have set, kept in a file over a restart (`--state`, `fatpath save`).
//!
//! The file is an embedded database. A save replaces all of it in one transaction, so that after a crash it holds
//! either the state before or the state after. It holds netlink requests of programs, unchanged; a gateway carries
//! them out at start, or fails to start.

mod collect;
mod file;
mod names;
mod restore;
mod sequence_checkpoint;

pub(crate) use collect::{Collected, OfFiles};
pub(crate) use file::Store;
pub(crate) use restore::restore;
pub(crate) use sequence_checkpoint::{Checkpointer, skip};
