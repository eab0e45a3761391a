//! Writer of the state while the gateway runs: a thread that keeps sequence numbers ahead and compacts the journal, and
//! the writes that a program or a reload asks for.

use std::convert::Infallible;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use client::CliError;
use netlink::Saved;

use super::collect::{Collected, OfFiles, limited};
use super::file::Keep;
use super::restore::lifetimes;
use super::sealed::{SealedSa, SealedSas};
use super::sequence_checkpoint::Checkpointer;
use crate::command::Handle;
use crate::journal;
use crate::netlink::{Protocols, Shared};
use crate::sa_name::SaName;
use crate::threads::Threads;

/// Interval of the thread's checks.
const PERIOD: Duration = Duration::from_secs(1);

/// Interval of attempts to write the state after a failure.
const RETRY: Duration = Duration::from_secs(60);

/// Writer of the state. One call at a time [begins](Self::begin) and [ends](Self::finish) a write.
#[derive(Clone, Debug)]
pub(crate) struct Keeper {
    pub(crate) checkpointer: Checkpointer,
    shared: Shared,
    worker: Handle,
    /// Objects that the files define, and that are not written.
    of_files: Arc<Mutex<OfFiles>>,
    boot: Arc<str>,
    /// Held during a write. It is locked before all other locks. The time of the last failure.
    writing: Arc<Mutex<Option<Instant>>>,
}

/// State that is to be written, with the number of the journal's file that continues it.
#[derive(Debug)]
pub(crate) struct Begun {
    collected: Collected,
    journal: u64,
    /// Whether the journal had all changes until now.
    was_on: bool,
}

impl Keeper {
    /// Writer of the state of the machine's boot `boot`.
    pub(crate) fn new(
        checkpointer: Checkpointer,
        shared: &Shared,
        worker: &Handle,
        of_files: OfFiles,
        boot: &str,
    ) -> Self {
        Self {
            checkpointer,
            shared: shared.clone(),
            worker: worker.clone(),
            of_files: Arc::new(Mutex::new(of_files)),
            boot: boot.into(),
            writing: Arc::default(),
        }
    }

    /// Starts the thread.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn start(&self, threads: &Threads) -> Result<(), CliError> {
        let own = self.clone();
        // The thread answers the watchdog once in each period, without a wake-up.
        let pulse = threads.watch("state", |_| ());
        let spawned = threads.spawn("state", move || -> Result<(), Infallible> {
            loop {
                thread::sleep(PERIOD);
                own.look();
                pulse.answer();
            }
        });
        spawned.map_err(|err| CliError::failed(format!("{}: {err}", self.checkpointer.path().display())))
    }

    fn look(&self) {
        let added = self.shared.lock().journal.as_mut().map(journal::Journal::take_added).unwrap_or_default();
        let is_noted = self.checkpointer.look(&added, &self.worker);
        let length = self.checkpointer.len();
        let is_due = self.shared.lock().journal.as_mut().is_some_and(|journal| {
            match is_noted {
                true => journal.note_numbers(&added),
                false => journal.add_again(added),
            }
            journal.is_due(length)
        });
        if !is_due {
            return;
        }
        let mut failed = self.lock();
        if failed.is_some_and(|at| at.elapsed() < RETRY) {
            return;
        }
        match self.write(Keep::Later, &mut failed) {
            Ok((_, true)) => {}
            Ok((_, false)) => {
                tracing::info!("{}: changes by programs are kept again", self.checkpointer.path().display());
            }
            Err(err) => {
                tracing::error!(message_id = logging::id::NOT_SAVED, reason = %err, "the state is not written: {err}");
            }
        }
    }

    /// Locks out other writes, until the result is dropped. No other lock may be held.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Option<Instant>> {
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes the present state. Returns a summary and the file's path.
    ///
    /// # Errors
    /// The state cannot be written; the file keeps its old content.
    pub(crate) fn keep(&self, keep: Keep) -> Result<String, String> {
        let mut failed = self.lock();
        let (what, _) = self.write(keep, &mut failed)?;
        Ok(format!("{what}: saved to {}", self.checkpointer.path().display()))
    }

    /// Writes the present state. Returns a summary, and whether the journal had all changes until now.
    fn write(&self, keep: Keep, failed: &mut Option<Instant>) -> Result<(String, bool), String> {
        let begun = Self::begin(&mut self.shared.lock());
        let written = begun.and_then(|begun| {
            let was_on = begun.was_on;
            Ok((self.finish(begun, keep)?, was_on))
        });
        *failed = written.is_err().then(Instant::now);
        written
    }

    /// Collects the state, and begins a new file of the journal.
    ///
    /// # Errors
    /// The worker does not answer, or the file cannot be made.
    pub(crate) fn begin(protocols: &mut Protocols) -> Result<Begun, String> {
        let collected = Collected::of(protocols)?;
        let journal = protocols.journal.as_mut().ok_or("there is no journal")?;
        let was_on = journal.is_on();
        let number = journal.rotate().map_err(|err| format!("journal: {err}"))?;
        Ok(Begun { collected, journal: number, was_on })
    }

    /// Writes a state that has been [begun](Self::begin). Returns a summary.
    ///
    /// # Errors
    /// The file cannot be written, and keeps its old content.
    pub(crate) fn finish(&self, begun: Begun, keep: Keep) -> Result<String, String> {
        let was_on = begun.was_on;
        self.put(begun, keep).inspect_err(|_| {
            if !was_on {
                self.shared.lock().journal.iter_mut().for_each(journal::Journal::fail);
            }
        })
    }

    /// Writes the present state for the next gateway. No client changes the node until `protocols` is unlocked. The caller
    /// [locks](Self::lock) other writes out.
    ///
    /// # Errors
    /// The state cannot be written; the file keeps its old content.
    pub(crate) fn hand_over(&self, protocols: &mut Protocols) -> Result<(), String> {
        let begun = Self::begin(protocols)?;
        let was_on = begun.was_on;
        self.put(begun, Keep::Later).map(drop).inspect_err(|_| {
            if !was_on {
                protocols.journal.iter_mut().for_each(journal::Journal::fail);
            }
        })
    }

    fn put(&self, begun: Begun, keep: Keep) -> Result<String, String> {
        let Begun { collected, journal, was_on: _ } = begun;
        let (state, what, others) = {
            let of_files = self.of_files.lock().unwrap_or_else(PoisonError::into_inner);
            let (state, what) = collected.without(&of_files);
            (state, what, of_files.sas().collect())
        };
        self.checkpointer.save(state, (keep, &self.boot, journal), others, &self.worker)?;
        journal::remove_below(&self.checkpointer.path(), journal);
        Ok(what)
    }

    /// Replaces the list of objects that the files define.
    pub(crate) fn follow(&self, of_files: OfFiles) {
        *self.of_files.lock().unwrap_or_else(PoisonError::into_inner) = of_files;
    }

    /// Writes the SAs with a time limit, which no longer send, to memory for the next gateway. Returns it with their number; `None`
    /// if there are none.
    ///
    /// # Errors
    /// The worker does not answer, or the memory cannot be written.
    pub(crate) fn seal(&self, protocols: &mut Protocols) -> Result<Option<(OwnedFd, usize)>, String> {
        let (sas, links) = {
            let of_files = self.of_files.lock().unwrap_or_else(PoisonError::into_inner);
            limited(protocols, &of_files)?
        };
        if sas.is_empty() {
            return Ok(None);
        }
        let names: Vec<SaName> = sas.iter().map(|(name, _)| *name).collect();
        let times = lifetimes(&self.worker, &names).map_err(|gone| gone.to_string())?;
        let sealed = sas.into_iter().filter_map(|(name, Saved { message, .. })| {
            let (added, first_used) = *times.get(&name)?;
            Some(SealedSa { name, added, first_used, message })
        });
        let sas = SealedSas { links, sas: sealed.collect() };
        let memory = sas.seal().map_err(|err| err.to_string())?;
        Ok(Some((memory, sas.sas.len())))
    }

    /// Saves the exact counters of SAs, which no longer send.
    ///
    /// # Errors
    /// They cannot be saved.
    pub(crate) fn end(&self, protocols: &mut Protocols) -> Result<(), String> {
        let added = protocols.journal.as_mut().map(journal::Journal::take_added).unwrap_or_default();
        self.checkpointer.end(&added, &self.worker)?;
        protocols.journal.iter_mut().for_each(|journal| journal.note_numbers(&added));
        Ok(())
    }
}
