//! Counters of saved and configured SAs over a restart, so that no SA sends a sequence number twice.
//!
//! A peer drops numbers that it has seen, so an SA has to send higher numbers after a restart than it sent before, also
//! if the process died before it could save the last one. Therefore numbers are saved ahead of their use: the SA has
//! not reached the checkpoint in the file. A thread checks every second, and advances the checkpoints that an SA comes
//! near. Initialisation vectors do not depend on this: they begin at a new random value at each start.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use client::CliError;
use ipsec::Ipsec;
use wire::Spi;

use super::file::{Keep, State, Store};
use crate::command::{Handle, WorkerGone, same};
use crate::node::Node;
use crate::sa_name::{Checkpoint, SaName};

/// Distance by which a number is saved ahead of its use. A restart skips as many at most, and an SA without ESN has
/// only 2⁸ times as many. A second's packets have to fit in half of it.
const LEAD: u64 = 1 << 24;

/// Number of SAs in one request to the worker, which moves packets between two requests.
const CHUNK: usize = 512;

impl Checkpoint {
    /// The next checkpoint of an SA with the counters `now` and this checkpoint: advanced if the SA has come near.
    fn moved(self, now: Now) -> Self {
        let ahead = now.checkpoint.oseq.saturating_add(LEAD).min(now.last);
        let near = now.checkpoint.oseq.saturating_add(LEAD / 2) > self.oseq;
        let later = |before: [u64; 2], now: [u64; 2]| [before[0].max(now[0]), before[1].max(now[1])];
        Self {
            oseq: if near { self.oseq.max(ahead) } else { self.oseq },
            seq: self.seq.max(now.checkpoint.seq),
            used: later(self.used, now.checkpoint.used),
        }
    }
}

/// Current counters of an SA.
#[derive(Clone, Copy, Debug)]
struct Now {
    checkpoint: Checkpoint,
    /// The last number that the SA can send.
    last: u64,
}

fn now(ipsec: &Ipsec, name: &SaName) -> Option<Now> {
    let sad = ipsec.sad();
    let sa = sad.get(sad.named(name.dst, Spi(name.spi), name.mark)?).filter(|sa| sad.owns(sa))?;
    let stats = sa.stats();
    let checkpoint = Checkpoint { oseq: sa.oseq(), seq: sa.replay().top(), used: [stats.bytes, stats.packets] };
    let last = if sa.flags().esn || sa.flags().oseq_may_wrap { u64::MAX } else { u32::MAX.into() };
    Some(Now { checkpoint, last })
}

/// Counters of the SAs in `names` that exist, of their owners.
fn ask(worker: &Handle, names: &[SaName]) -> Result<HashMap<SaName, Now>, WorkerGone> {
    let mut found = HashMap::with_capacity(names.len());
    for chunk in names.chunks(CHUNK) {
        let chunk = chunk.to_vec();
        let here = worker.gather(move |node| {
            let ipsec = &node.datapath.ipsec;
            chunk.into_iter().filter_map(|name| Some((name, now(ipsec, &name)?))).collect::<Vec<_>>()
        })?;
        found.extend(here.into_iter().flatten());
    }
    Ok(found)
}

/// The store, with checkpoints that are kept ahead.
#[derive(Clone, Debug)]
pub(crate) struct Checkpointer(Arc<Mutex<Checkpoints>>);

#[derive(Debug)]
struct Checkpoints {
    store: Store,
    checkpoints: HashMap<SaName, Checkpoint>,
    /// SAs that `fatpath save` has written, whose checkpoints stay.
    saved: HashSet<SaName>,
    /// Whether the last attempt to advance checkpoints failed.
    failing: bool,
    /// Whether the gateway ends.
    is_over: bool,
}

/// Advances SAs that were not restored past every number that they may have sent before.
///
/// # Errors
/// The worker does not answer.
pub(crate) fn skip(
    checkpoints: &HashMap<SaName, Checkpoint>,
    names: impl Iterator<Item = SaName>,
    worker: &Handle,
) -> Result<(), WorkerGone> {
    let due: Vec<(SaName, u64)> = names.filter_map(|name| Some((name, checkpoints.get(&name)?.oseq))).collect();
    for chunk in due.chunks(CHUNK) {
        let chunk = chunk.to_vec();
        let skip = move |node: &mut Node| {
            let ipsec = &mut node.datapath.ipsec;
            for (name, oseq) in chunk {
                if let Some(id) = ipsec.sad().named(name.dst, Spi(name.spi), name.mark)
                    && let Some(sa) = ipsec.sa_mut(id)
                {
                    sa.skip_to(oseq);
                }
            }
        };
        worker.change(skip, same)?;
    }
    Ok(())
}

/// Checkpoints of the SAs `added` by a journal, whose numbers the state does not have: behind all numbers that the lead
/// allowed. They replace those of earlier SAs with these names, and the SAs continue at them.
///
/// # Errors
/// The worker does not answer.
pub(crate) fn reserve_added(
    checkpoints: &mut HashMap<SaName, Checkpoint>,
    added: &[SaName],
    worker: &Handle,
) -> Result<(), WorkerGone> {
    for (name, now) in ask(worker, added)? {
        let before = checkpoints.get(&name).map_or(0, |before| before.oseq);
        let ahead = now.checkpoint.oseq.saturating_add(LEAD).min(now.last);
        checkpoints.insert(name, Checkpoint { oseq: before.max(ahead), ..now.checkpoint });
    }
    skip(checkpoints, added.iter().copied(), worker)
}

impl Checkpointer {
    /// Keeps the checkpoints in `store` ahead: `checkpoints`, at which SAs have been restored, and those of `others`.
    /// All are advanced before a packet is sent. `saved`: SAs whose checkpoints stay.
    ///
    /// # Errors
    /// They cannot be moved.
    pub(crate) fn start(
        store: Store,
        mut checkpoints: HashMap<SaName, Checkpoint>,
        others: impl Iterator<Item = SaName>,
        saved: impl IntoIterator<Item = SaName>,
        worker: &Handle,
    ) -> Result<Self, CliError> {
        add_names(&mut checkpoints, others);
        let saved = saved.into_iter().collect();
        let mut kept = Checkpoints { store, checkpoints, saved, failing: false, is_over: false };
        let moved = kept.move_ahead(worker);
        moved.map_err(|err| CliError::failed(format!("{}: {err}", kept.store.path().display())))?;
        Ok(Self(Arc::new(Mutex::new(kept))))
    }

    fn lock(&self) -> MutexGuard<'_, Checkpoints> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Advances checkpoints, and those of the SAs `added` by programs, which replace earlier SAs with their names. False if
    /// that failed, or the gateway ends.
    pub(crate) fn look(&self, added: &[SaName], worker: &Handle) -> bool {
        let mut kept = self.lock();
        if kept.is_over {
            return false;
        }
        kept.begin(added);
        kept.look(worker)
    }

    /// Reserves numbers for SAs that a file is about to add, each with its first number.
    pub(crate) fn reserve(&self, sas: impl Iterator<Item = (SaName, u64)>) {
        let mut kept = self.lock();
        let new = sas
            .filter(|(name, _)| !kept.checkpoints.contains_key(name))
            .map(|(name, first)| (name, Checkpoint { oseq: first.saturating_add(LEAD), ..Checkpoint::default() }));
        let new: HashMap<SaName, Checkpoint> = new.collect();
        if new.is_empty() {
            return;
        }
        match kept.store.checkpoint(new.iter()) {
            Ok(()) => kept.checkpoints.extend(new),
            // The next look tries again.
            Err(err) => {
                add_names(&mut kept.checkpoints, new.into_keys());
                kept.log_failure(&err.to_string());
            }
        }
    }

    /// Path of the store.
    pub(crate) fn path(&self) -> PathBuf {
        self.lock().store.path().to_owned()
    }

    /// Length of the store in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.lock().store.len()
    }

    /// Writes `state` to the file, with checkpoints for its SAs and for `others`.
    ///
    /// # Errors
    /// The file cannot be written, and keeps its old content.
    pub(crate) fn save(
        &self,
        mut state: State,
        (keep, boot, journal): (Keep, &str, u64),
        others: Vec<SaName>,
        worker: &Handle,
    ) -> Result<(), String> {
        let mut kept = self.lock();
        if kept.is_over {
            return Err("the gateway is ending".to_owned());
        }
        let of_state = || state.sas.iter().map(|(name, _)| *name);
        let saved: HashSet<SaName> = match keep {
            Keep::Saved => of_state().collect(),
            Keep::Later => std::mem::take(&mut kept.saved),
        };
        let names: HashSet<SaName> = of_state().chain(others).chain(saved.iter().copied()).collect();
        let names: Vec<SaName> = names.into_iter().collect();
        let written = ask(worker, &names).map_err(|gone| gone.to_string()).and_then(|now| {
            let checkpoint = |name: &SaName| {
                let before = kept.checkpoints.get(name).copied().unwrap_or_default();
                now.get(name).map_or(before, |now| before.moved(*now))
            };
            state.checkpoints = names.iter().map(|name| (*name, checkpoint(name))).collect();
            kept.store.replace(&state, keep, boot, journal).map_err(|err| err.to_string())
        });
        kept.saved = saved;
        written.map_err(|err| format!("{}: {err}", kept.store.path().display()))?;
        kept.checkpoints = state.checkpoints;
        Ok(())
    }

    /// Saves the exact counters of the SAs, which no longer send, and of those `added` by programs.
    ///
    /// # Errors
    /// They cannot be saved; the SAs continue farther ahead then.
    pub(crate) fn end(&self, added: &[SaName], worker: &Handle) -> Result<(), String> {
        let mut kept = self.lock();
        kept.begin(added);
        kept.is_over = true;
        let names: Vec<SaName> = kept.checkpoints.keys().copied().collect();
        let now = ask(worker, &names).map_err(|gone| gone.to_string())?;
        let exact: HashMap<SaName, Checkpoint> = now.iter().map(|(name, now)| (*name, now.checkpoint)).collect();
        if !exact.is_empty() {
            kept.store.checkpoint(exact.iter()).map_err(|err| format!("{}: {err}", kept.store.path().display()))?;
        }
        Ok(())
    }
}

impl Checkpointer {
    /// Closes the store, which another gateway opens.
    pub(crate) fn close(&self) {
        self.lock().store.close();
    }
}

fn add_names(checkpoints: &mut HashMap<SaName, Checkpoint>, names: impl Iterator<Item = SaName>) {
    for name in names {
        checkpoints.entry(name).or_default();
    }
}

impl Checkpoints {
    /// Begins checkpoints of SAs that programs have added. A number that an earlier SA of the name has sent is not sent
    /// again; what it has received does not count.
    fn begin(&mut self, added: &[SaName]) {
        for name in added {
            let checkpoint = self.checkpoints.entry(*name).or_default();
            *checkpoint = Checkpoint { oseq: checkpoint.oseq, ..Checkpoint::default() };
        }
    }

    /// Advances checkpoints, and logs when that begins or ceases to fail. False if it failed.
    fn look(&mut self, worker: &Handle) -> bool {
        match self.move_ahead(worker) {
            Ok(()) => {
                if std::mem::take(&mut self.failing) {
                    tracing::info!("{}: sequence numbers are saved again", self.store.path().display());
                }
                true
            }
            Err(err) => {
                self.log_failure(&err);
                false
            }
        }
    }

    fn log_failure(&mut self, err: &str) {
        if !std::mem::replace(&mut self.failing, true) {
            tracing::error!(
                message_id = logging::id::NOT_SAVED,
                reason = err,
                "{}: sequence numbers cannot be saved: {err}; peers would drop packets sent after a restart",
                self.store.path().display()
            );
        }
    }

    fn move_ahead(&mut self, worker: &Handle) -> Result<(), String> {
        let names: Vec<SaName> = self.checkpoints.keys().copied().collect();
        let now = ask(worker, &names).map_err(|gone| gone.to_string())?;
        let moved = now.iter().filter_map(|(name, now)| {
            let before = self.checkpoints.get(name)?;
            let checkpoint = before.moved(*now);
            (checkpoint != *before).then_some((*name, checkpoint))
        });
        let moved: HashMap<SaName, Checkpoint> = moved.collect();
        if !moved.is_empty() {
            self.store.checkpoint(moved.iter()).map_err(|err| err.to_string())?;
            self.checkpoints.extend(moved);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checkpoint_is_ahead_of_sent_numbers_and_moves_as_they_near() {
        let esn = u64::MAX;
        let max = u64::from(u32::MAX);
        let cases = [
            // (checkpoint, sent, the last number, advanced)
            (0, 0, esn, LEAD),
            (LEAD, 0, esn, LEAD),
            (LEAD, LEAD / 2, esn, LEAD),
            (LEAD, LEAD / 2 + 1, esn, LEAD / 2 + 1 + LEAD),
            (LEAD, 5 * LEAD, esn, 6 * LEAD),
            (7 * LEAD, 0, esn, 7 * LEAD), // created anew under its old name
            (max - 5, max - 9, max, max),
            (max, max, max, max),
            (max - 5, max - 9, esn, max - 9 + LEAD),
            (esn - 1, esn - 2, esn, esn),
        ];
        for (checkpoint, sent, last, want) in cases {
            let now = Now { checkpoint: Checkpoint { oseq: sent, ..Checkpoint::default() }, last };
            let moved = Checkpoint { oseq: checkpoint, ..Checkpoint::default() }.moved(now);
            assert_eq!(moved.oseq, want, "{checkpoint:#x} with {sent:#x} sent");
            assert_eq!(moved.moved(now), moved);
        }
    }

    #[test]
    fn received_numbers_and_counters_never_go_back() {
        let checkpoint = Checkpoint { oseq: LEAD, seq: 90, used: [10, 3] };
        let now = |seq, used| Now { checkpoint: Checkpoint { oseq: 0, seq, used }, last: u64::MAX };
        assert_eq!(checkpoint.moved(now(100, [20, 4])), Checkpoint { oseq: LEAD, seq: 100, used: [20, 4] });
        assert_eq!(checkpoint.moved(now(4, [0, 0])), checkpoint);
    }
}
