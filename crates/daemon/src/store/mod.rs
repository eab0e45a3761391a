//! State that programs have set, kept in a file over a restart (`--state`, `fatpath save`).
//!
//! The file is an embedded database, which is written as a whole in one transaction, so that after a crash it holds
//! either the state before or the state after; a [journal](crate::journal) has the changes since. Both hold netlink
//! requests, which a gateway carries out at start: the state's on top of its configuration, then the journal's.
//!
//! The file has two states: one that `fatpath save` has written, and a later one, which counts until the machine is
//! booted. Sequence numbers of SAs are common to both.

mod collect;
mod file;
mod keeper;
mod restore;
mod sequence_checkpoint;

pub(crate) use collect::{Collected, OfFiles};
pub(crate) use file::{Found, Keep, Store};
pub(crate) use keeper::Keeper;
pub(crate) use restore::{Counts, replay, restore};
pub(crate) use sequence_checkpoint::{Checkpointer, reserve_added, skip};

use crate::journal::{self, Record};
use crate::sa_name::SaName;
use client::CliError;

/// State and journal that a start finds.
#[derive(Debug)]
pub(crate) struct KeptState {
    pub(crate) store: Store,
    pub(crate) found: Found,
    pub(crate) records: Vec<Record>,
    /// Number of the next file of the journal.
    pub(crate) next: u64,
    /// Present boot of the machine.
    pub(crate) boot: String,
}

impl KeptState {
    /// Reads the state in `store`, and the journal, if this boot of the machine has written it.
    ///
    /// # Errors
    /// Exit code 2: one of them is damaged.
    pub(crate) fn read(store: Store) -> Result<Self, CliError> {
        let boot = boot();
        let mut found = store.read(&boot)?;
        found.is_of_boot &= !boot.is_empty();
        if !found.is_of_boot {
            journal::remove_from(store.path(), found.journal);
        }
        let (records, next) = journal::read(store.path(), found.journal).map_err(|(path, why)| {
            let text = "Move it away to start with the state before it.";
            CliError::bad_config(format!("{}: no journal that can be carried out: {why}. {text}", path.display()))
        })?;
        Ok(Self { store, found, records, next, boot })
    }

    /// Whether programs have changed the node since the state was written.
    pub(crate) fn has_changes(&self) -> bool {
        self.records.iter().any(|record| matches!(record, Record::Request(..) | Record::Setting(..)))
    }
}

/// Name of an SA of a configuration.
pub(crate) fn name_of(sa: &xfrm::SaConfig) -> SaName {
    SaName { dst: sa.dst, spi: sa.spi.0, mark: sa.mark }
}

/// Present boot of the machine, which no other one has; empty if the kernel does not tell.
fn boot() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}
