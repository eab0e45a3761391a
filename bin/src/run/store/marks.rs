//! Counters of SAs over a restart: of those that are saved, and of those of the configuration, which send no number
//! twice.
//!
//! A peer drops numbers that it has seen, so an SA has to send higher numbers after a restart than it sent before, also
//! if the process died before it could save the last one. Therefore numbers are saved ahead of their use: the mark in
//! the file is one that the SA has not reached. A thread looks every second, and moves marks that an SA comes near.
//! Initialisation vectors do not depend on this: each start draws them from another random place.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use ipsec::Ipsec;
use wire::Spi;

use super::file::{State, Store};
use super::names::{Mark, SaName};
use crate::error::CliError;
use crate::run::command::{Handle, WorkerGone};
use crate::run::threads::Threads;

/// Distance by which a number is saved ahead of its use. A restart skips as many at most, and an SA without ESN has
/// only 2⁸ times as many. A second's packets have to fit in half of it.
const LEAP: u64 = 1 << 24;

/// Interval at which the thread looks.
const PERIOD: Duration = Duration::from_secs(1);

/// SAs that are asked for at once: the worker moves packets between two answers.
const CHUNK: usize = 512;

impl Mark {
    /// The mark of an SA that is `now` there and had this mark: ahead again, if it has come near.
    fn moved(self, now: Now) -> Self {
        let ahead = now.mark.oseq.saturating_add(LEAP).min(now.last);
        let near = now.mark.oseq.saturating_add(LEAP / 2) > self.oseq;
        let later = |before: [u64; 2], now: [u64; 2]| [before[0].max(now[0]), before[1].max(now[1])];
        Self {
            oseq: if near { self.oseq.max(ahead) } else { self.oseq },
            seq: self.seq.max(now.mark.seq),
            used: later(self.used, now.mark.used),
        }
    }
}

/// Counters of an SA now.
#[derive(Clone, Copy, Debug)]
struct Now {
    mark: Mark,
    /// The last number that it can send.
    last: u64,
}

fn now(ipsec: &Ipsec, name: &SaName) -> Option<Now> {
    let sa = ipsec.sa(ipsec.sad().named(name.dst, Spi(name.spi), name.mark)?)?;
    let stats = sa.stats();
    let mark = Mark { oseq: sa.oseq(), seq: sa.replay().top(), used: [stats.bytes, stats.packets] };
    let last = if sa.flags().esn || sa.flags().oseq_may_wrap { u64::MAX } else { u32::MAX.into() };
    Some(Now { mark, last })
}

/// Counters of those of `names` that exist.
fn ask(worker: &Handle, names: &[SaName]) -> Result<HashMap<SaName, Now>, WorkerGone> {
    let mut found = HashMap::with_capacity(names.len());
    for chunk in names.chunks(CHUNK) {
        let chunk = chunk.to_vec();
        let here = worker.call(move |node| {
            let ipsec = &node.datapath.ipsec;
            chunk.into_iter().filter_map(|name| Some((name, now(ipsec, &name)?))).collect::<Vec<_>>()
        })?;
        found.extend(here);
    }
    Ok(found)
}

/// The store, and the thread that keeps its marks ahead.
#[derive(Clone, Debug)]
pub(crate) struct Keeper(Arc<Mutex<Kept>>);

#[derive(Debug)]
struct Kept {
    store: Store,
    marks: HashMap<SaName, Mark>,
    /// Whether the last try to move marks failed.
    failing: bool,
}

/// Advances SAs that were not restored past every number that they may have sent before.
///
/// # Errors
/// The worker does not answer.
pub(crate) fn skip(
    marks: &HashMap<SaName, Mark>,
    names: impl Iterator<Item = SaName>,
    worker: &Handle,
) -> Result<(), WorkerGone> {
    let marked: Vec<(SaName, u64)> = names.filter_map(|name| Some((name, marks.get(&name)?.oseq))).collect();
    for chunk in marked.chunks(CHUNK) {
        let chunk = chunk.to_vec();
        worker.call(move |node| {
            let ipsec = &mut node.datapath.ipsec;
            for (name, oseq) in chunk {
                if let Some(id) = ipsec.sad().named(name.dst, Spi(name.spi), name.mark)
                    && let Some(sa) = ipsec.sa_mut(id)
                {
                    sa.skip_to(oseq);
                }
            }
        })?;
    }
    Ok(())
}

impl Keeper {
    /// Keeps `store`, and ahead of their use `marks`, at which SAs have been restored, and those of `others`. All are moved
    /// before a packet is sent.
    ///
    /// # Errors
    /// They cannot be moved.
    pub(crate) fn start(
        store: Store,
        mut marks: HashMap<SaName, Mark>,
        others: impl Iterator<Item = SaName>,
        worker: &Handle,
        threads: &Threads,
    ) -> Result<Self, CliError> {
        add_names(&mut marks, others);
        let failed = |path: &std::path::Path, err: &dyn std::fmt::Display| {
            CliError::failed(format!("{}: {err}", path.display()))
        };
        let path = store.path().to_owned();
        let mut kept = Kept { store, marks, failing: false };
        kept.move_ahead(worker).map_err(|err| failed(&path, &err))?;
        let keeper = Self(Arc::new(Mutex::new(kept)));
        let (theirs, worker) = (keeper.clone(), worker.clone());
        // The thread answers once in each period, without being woken.
        let pulse = threads.watch("state", |_| ());
        let spawned = threads.spawn("state", move || -> Result<(), Infallible> {
            loop {
                thread::sleep(PERIOD);
                theirs.lock().look(&worker);
                pulse.answer();
            }
        });
        spawned.map_err(|err| failed(&path, &err))?;
        Ok(keeper)
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps marks of these, too.
    pub(crate) fn follow(&self, names: impl Iterator<Item = SaName>) {
        add_names(&mut self.lock().marks, names);
    }

    /// Writes `state` to the file, with marks for its SAs and for `others`.
    ///
    /// # Errors
    /// The file cannot be written, and holds what it held.
    pub(crate) fn save(
        &self,
        mut state: State,
        others: impl Iterator<Item = SaName>,
        worker: &Handle,
    ) -> Result<String, String> {
        let mut kept = self.lock();
        let names: Vec<SaName> = state.sas.iter().map(|(name, _)| *name).chain(others).collect();
        let now = ask(worker, &names).map_err(|gone| gone.to_string())?;
        let mark = |name: &SaName| {
            let before = kept.marks.get(name).copied().unwrap_or_default();
            now.get(name).map_or(before, |now| before.moved(*now))
        };
        state.marks = names.iter().map(|name| (*name, mark(name))).collect();
        kept.store.replace(&state).map_err(|err| format!("{}: {err}", kept.store.path().display()))?;
        kept.marks = state.marks;
        Ok(kept.store.path().display().to_string())
    }

    /// Notes where the SAs are that send no more.
    ///
    /// # Errors
    /// Why it could not be noted; they begin farther ahead then.
    pub(crate) fn end(&self, worker: &Handle) -> Result<(), String> {
        let mut kept = self.lock();
        let names: Vec<SaName> = kept.marks.keys().copied().collect();
        let now = ask(worker, &names).map_err(|gone| gone.to_string())?;
        let exact: HashMap<SaName, Mark> = now.iter().map(|(name, now)| (*name, now.mark)).collect();
        if !exact.is_empty() {
            kept.store.mark(exact.iter()).map_err(|err| format!("{}: {err}", kept.store.path().display()))?;
        }
        // The gateway ends: its marks are not moved ahead again.
        kept.marks.clear();
        Ok(())
    }
}

fn add_names(marks: &mut HashMap<SaName, Mark>, names: impl Iterator<Item = SaName>) {
    for name in names {
        marks.entry(name).or_default();
    }
}

impl Kept {
    /// Moves marks, and tells when that begins or ceases to fail.
    fn look(&mut self, worker: &Handle) {
        match (self.move_ahead(worker), self.failing) {
            (Ok(()), true) => tracing::info!("{}: sequence numbers are saved again", self.store.path().display()),
            (Err(err), false) => tracing::error!(
                "{}: sequence numbers cannot be saved: {err}; peers would drop packets sent after a restart",
                self.store.path().display()
            ),
            (outcome, _) => return self.failing = outcome.is_err(),
        }
        self.failing = !self.failing;
    }

    fn move_ahead(&mut self, worker: &Handle) -> Result<(), String> {
        let names: Vec<SaName> = self.marks.keys().copied().collect();
        let now = ask(worker, &names).map_err(|gone| gone.to_string())?;
        let moved = now.iter().filter_map(|(name, now)| {
            let before = self.marks.get(name)?;
            let mark = before.moved(*now);
            (mark != *before).then_some((*name, mark))
        });
        let moved: HashMap<SaName, Mark> = moved.collect();
        if !moved.is_empty() {
            self.store.mark(moved.iter()).map_err(|err| err.to_string())?;
            self.marks.extend(moved);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mark_is_ahead_of_sent_numbers_and_moves_when_they_near_it() {
        let esn = u64::MAX;
        let max = u64::from(u32::MAX);
        let cases = [
            // (mark, sent, the last number, moved)
            (0, 0, esn, LEAP),
            (LEAP, 0, esn, LEAP),
            (LEAP, LEAP / 2, esn, LEAP),
            (LEAP, LEAP / 2 + 1, esn, LEAP / 2 + 1 + LEAP),
            (LEAP, 5 * LEAP, esn, 6 * LEAP),
            (7 * LEAP, 0, esn, 7 * LEAP), // it was made anew under its old name
            (max - 5, max - 9, max, max),
            (max, max, max, max),
            (max - 5, max - 9, esn, max - 9 + LEAP),
            (esn - 1, esn - 2, esn, esn),
        ];
        for (mark, sent, last, want) in cases {
            let now = Now { mark: Mark { oseq: sent, ..Mark::default() }, last };
            let moved = Mark { oseq: mark, ..Mark::default() }.moved(now);
            assert_eq!(moved.oseq, want, "{mark:#x} with {sent:#x} sent");
            assert_eq!(moved.moved(now), moved);
        }
    }

    #[test]
    fn received_numbers_and_counters_never_go_back() {
        let mark = Mark { oseq: LEAP, seq: 90, used: [10, 3] };
        let now = |seq, used| Now { mark: Mark { oseq: 0, seq, used }, last: u64::MAX };
        assert_eq!(mark.moved(now(100, [20, 4])), Mark { oseq: LEAP, seq: 100, used: [20, 4] });
        assert_eq!(mark.moved(now(4, [0, 0])), mark);
    }
}
