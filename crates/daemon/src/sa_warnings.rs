//! Warnings of SAs whose packets are refused: a peer with another key, or one that was restarted without its sequence
//! numbers. They are derived from counters, at most once a second, so that packets do nothing for them. Without packets the
//! thread sleeps.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::IpAddr;
use std::thread;
use std::time::{Duration, Instant};

use base::DropReason;
use client::CliError;

use crate::command::{Handle, WorkerGone};
use crate::node::Node;
use crate::threads::Threads;

/// Least time between two looks.
const PERIOD: Duration = Duration::from_secs(1);

/// Least time between two warnings of an SA.
const PAUSE: Duration = Duration::from_secs(60);

/// Number of warnings of one look; the other SAs are counted.
const MAX_WARNINGS: usize = 10;

/// Number of SAs in one request to the worker, which moves packets between two requests.
const CHUNK: usize = 512;

/// Starts the thread that looks.
///
/// # Errors
/// The system's error.
pub(crate) fn start(worker: &Handle, threads: &Threads) -> Result<(), CliError> {
    let worker = worker.clone();
    let spawned = threads.spawn("sa-warnings", move || -> Result<(), Infallible> {
        let mut warner = Warner::default();
        loop {
            worker.wait_for_burst(warner.bursts);
            // A worker that has ended is reported elsewhere.
            let _ = warner.look(&worker);
            thread::sleep(PERIOD);
        }
    });
    spawned.map_err(|err| CliError::system("start a thread", &err))
}

/// Counters of an SA.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
struct SaCounts {
    received: u64,
    failed: u64,
    replays: u64,
}

/// An SA that has refused packets.
#[derive(Clone, Copy, Debug)]
struct Refusing {
    /// Place among all SAs, which no other SA gets.
    born: u64,
    src: IpAddr,
    spi: u32,
    counts: SaCounts,
}

/// Counters of an SA at the last warning, or when it last received more packets than it refused.
#[derive(Debug, Default)]
struct Seen {
    counts: SaCounts,
    warned: Option<Instant>,
}

#[derive(Debug, Default)]
struct Warner {
    /// Number of the worker's bursts at the last look.
    bursts: u32,
    /// Packets that all SAs had refused at the last look.
    refused: u64,
    seen: HashMap<u64, Seen>,
}

impl Warner {
    /// Warns of SAs. A worker that has received no packets since the last look is not woken.
    fn look(&mut self, worker: &Handle) -> Result<(), WorkerGone> {
        let bursts = worker.bursts();
        if bursts == self.bursts {
            return Ok(());
        }
        let refused = worker.gather(|node| refused(node))?.into_iter().sum();
        self.bursts = bursts;
        if refused != self.refused {
            self.refused = refused;
            let (mut found, mut below) = (Vec::new(), u64::MAX);
            loop {
                let parts = worker.gather(move |node| refusing(node, below))?;
                let Some(last) = parts.iter().filter_map(|(last, _)| *last).max() else { break };
                // What is below it in one shard is read again.
                let above = |sa: &Refusing| sa.born >= last;
                found.extend(parts.into_iter().flat_map(|(_, part)| part).filter(above));
                below = last;
            }
            let lines = self.warnings(&found, Instant::now());
            for (reason, line) in lines.iter().take(MAX_WARNINGS) {
                tracing::warn!(message_id = logging::id::SA_REFUSES, reason = reason.name(), "{line}");
            }
            if let Some(others) = lines.len().checked_sub(MAX_WARNINGS).filter(|others| *others > 0) {
                tracing::warn!("{others} other SAs refuse their packets, too");
            }
        }
        Ok(())
    }

    /// Lines for SAs that have refused more packets than they have received since they were last looked at, with the reason of most drops.
    fn warnings(&mut self, found: &[Refusing], now: Instant) -> Vec<(DropReason, String)> {
        let mut lines = Vec::new();
        let mut seen: HashMap<u64, Seen> = HashMap::with_capacity(found.len());
        for sa in found {
            let mut before = self.seen.remove(&sa.born).unwrap_or_default();
            let is_pause = before.warned.is_some_and(|at| now.duration_since(at) < PAUSE);
            let failed = sa.counts.failed.saturating_sub(before.counts.failed);
            let replays = sa.counts.replays.saturating_sub(before.counts.replays);
            let received = sa.counts.received.saturating_sub(before.counts.received);
            if !is_pause && failed + replays > 0 {
                before.counts = sa.counts;
                if received < failed + replays {
                    before.warned = Some(now);
                    let reason = if failed >= replays { DropReason::EspIcv } else { DropReason::EspReplay };
                    lines.push((reason, line(sa, failed, replays)));
                }
            }
            seen.insert(sa.born, before);
        }
        self.seen = seen;
        lines
    }
}

fn line(sa: &Refusing, failed: u64, replays: u64) -> String {
    let Refusing { src, spi, .. } = sa;
    let packets = |n: u64| if n == 1 { "1 packet".to_owned() } else { format!("{n} packets") };
    let why = match (failed, replays) {
        (1, 0) => "1 packet fails its ICV: another key, or the peer was restarted without state".to_owned(),
        (n, 0) => format!("{n} packets fail their ICV: another key, or the peer was restarted without state"),
        (0, n) => {
            format!("{} received before: the peer was restarted without state, or packets are repeated", packets(n))
        }
        (n, m) => format!(
            "{} with a wrong ICV, {} received before: the peer was restarted without state",
            packets(n),
            packets(m)
        ),
    };
    format!("SA {spi:#x} from {src}: {why}")
}

/// Number of packets that SAs have refused.
fn refused(node: &Node) -> u64 {
    let counts = node.datapath.ports.drop_counts();
    counts.filter(|(_, reason, _)| matches!(reason, DropReason::EspIcv | DropReason::EspReplay)).map(|(.., n)| n).sum()
}

/// SAs that have refused packets, of at most [`CHUNK`] below a place; and the place of the last of all these, `None` if
/// there are no others.
fn refusing(node: &Node, below: u64) -> (Option<u64>, Vec<Refusing>) {
    let mut last = None;
    let sas = node.datapath.ipsec.sad().by_birth(below).rev().take(CHUNK);
    let found = sas.inspect(|(born, _)| last = Some(*born)).filter_map(|(born, sa)| {
        let stats = sa.stats();
        let counts = SaCounts {
            received: stats.packets,
            failed: stats.failed,
            replays: stats.replay.saturating_add(stats.replay_window),
        };
        (counts.failed + counts.replays > 0).then(|| Refusing { born, src: sa.src(), spi: sa.spi().0, counts })
    });
    let found = found.collect();
    (last, found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::channels;

    #[test]
    fn worker_without_packets_is_not_woken() {
        let (handle, [inbox]) = channels().unwrap();
        let mut warner = Warner::default();
        assert!(warner.look(&handle).is_ok() && !inbox.has_operations());
        inbox.wake_up(false, true);
        thread::scope(|scope| {
            let look = scope.spawn(|| warner.look(&handle).is_ok());
            while !inbox.has_operations() {
                thread::yield_now();
            }
            drop(inbox);
            assert!(!look.join().unwrap(), "the worker has ended");
        });
        assert_eq!(warner.bursts, 0, "the next look asks again");
    }

    #[test]
    fn sa_that_refuses_more_than_it_receives_is_named_once_a_minute() {
        let mut warner = Warner::default();
        let begin = Instant::now();
        let mut at = |seconds: u64, received, failed, replays| {
            let counts = SaCounts { received, failed, replays };
            let sa = Refusing { born: 4, src: "192.0.2.1".parse().unwrap(), spi: 0x1000, counts };
            let lines = warner.warnings(&[sa], begin + Duration::from_secs(seconds));
            lines.into_iter().map(|(_, line)| line).collect::<Vec<_>>().join("; ")
        };
        let icv =
            "SA 0x1000 from 192.0.2.1: 5 packets fail their ICV: another key, or the peer was restarted without state";
        assert_eq!(at(0, 100, 3, 1), "", "most are received");
        assert_eq!(at(1, 102, 8, 1), icv);
        assert_eq!(at(2, 102, 9, 1), "");
        assert_eq!(at(60, 102, 10, 1), "");
        assert_eq!(at(61, 102, 13, 1), icv);
        let replays = "SA 0x1000 from 192.0.2.1: 1 packet received before: the peer was restarted without state, or packets are repeated";
        assert_eq!(at(200, 102, 13, 2), replays);
        assert_eq!(at(300, 900, 20, 2), "");
        assert!(warner.warnings(&[], begin).is_empty() && warner.seen.is_empty());
    }
}
