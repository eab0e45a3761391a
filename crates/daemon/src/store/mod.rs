//! State that programs have set, kept in a file over a restart (`--state`, `fatpath save`).
//!
//! The file is an embedded database, which is written as a whole in one transaction, so that after a crash it holds
//! either the state before or the state after; a [journal](crate::journal) has the changes since. Both hold netlink
//! requests, which a gateway carries out at start: the state's on top of its configuration, then the journal's.
//!
//! SAs with a time limit are in no file: [`sealed`] memory has them over an orderly restart.
//!
//! The file has two states: one that `fatpath save` has written, and a later one, which counts until the machine is
//! booted. Sequence numbers of SAs are common to both.

mod collect;
mod file;
mod keeper;
mod restore;
pub(crate) mod sealed;
mod sequence_checkpoint;

pub(crate) use collect::{Collected, OfFiles};
pub(crate) use file::{Found, Keep, Store};
pub(crate) use keeper::Keeper;
pub(crate) use restore::{Counts, Resumed, replay, restore, resume};
pub(crate) use sequence_checkpoint::{Checkpointer, reserve_added, skip};

use std::path::Path;
use std::thread;
use std::time::Duration;

use crate::journal::{self, Record};
use crate::sa_name::SaName;
use client::CliError;
use netlink::rtnl::Model;
use restore::check_state_links;

/// Copies of a state that are made until one is readable.
const COPIES: u32 = 5;

/// Time between two copies.
const COPY_INTERVAL: Duration = Duration::from_millis(100);

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
        let (records, next) = read_journal(store.path(), found.journal)?;
        Ok(Self { store, found, records, next, boot })
    }

    /// Whether programs have changed the node since the state was written.
    pub(crate) fn has_changes(&self) -> bool {
        self.records.iter().any(|record| matches!(record, Record::Request(..) | Record::Setting(..)))
    }
}

/// Checks that this version can read the state at `path` and its journal. A running gateway may have the file open.
/// Nothing is changed.
///
/// # Errors
/// Those of a start, and a file that does not exist.
pub fn check_state(path: &Path) -> Result<(), CliError> {
    check_copy(path, |_| Ok(()))
}

/// As [`check_state`], and checks that the links that the state needs are in `model`. Its journal is left aside.
///
/// # Errors
/// Those of [`check_state`], and exit code 2: a link is missing.
pub(crate) fn check_links(path: &Path, model: &Model) -> Result<(), CliError> {
    check_copy(path, |mut found| check_state_links(&mut found.state, path, model))
}

fn check_copy(path: &Path, further: impl Fn(Found) -> Result<(), CliError>) -> Result<(), CliError> {
    let boot = boot();
    let check = || {
        let found = Store::open_copy(path)?.read(&boot)?;
        if found.is_of_boot && !boot.is_empty() {
            read_journal(path, found.journal)?;
        }
        further(found)
    };
    // A copy that was torn by a write is followed by another one.
    let mut outcome = check();
    for _ in 1..COPIES {
        if outcome.is_ok() {
            break;
        }
        thread::sleep(COPY_INTERVAL);
        outcome = check();
    }
    outcome
}

/// Records of the journal of `state` from the file `number` on, and the number of the next file.
fn read_journal(state: &Path, number: u64) -> Result<(Vec<Record>, u64), CliError> {
    journal::read(state, number).map_err(|(path, why)| {
        let text = "Move it away to start with the state before it.";
        CliError::bad_config(format!("{}: no journal that can be carried out: {why}. {text}", path.display()))
    })
}

/// Name of an SA of a configuration.
pub(crate) fn name_of(sa: &xfrm::SaConfig) -> SaName {
    SaName { dst: sa.dst, spi: sa.spi.0, mark: sa.mark }
}

/// Present boot of the machine, which no other one has; empty if the kernel does not tell.
fn boot() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}
