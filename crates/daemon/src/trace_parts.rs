//! Parts of a packet's trace, one of each shard that it has passed, joined to one.

use std::time::{Duration, Instant};

use base::{ShardCount, ShardId};
use ctl::trace::{PacketTrace, TraceStep};

/// Name of the step after which a packet continues in another shard.
pub(crate) const HAND_OVER: &str = "hand-over";

/// Longest wait for the other parts of a trace.
const PATIENCE: Duration = Duration::from_millis(200);

/// Limit of traces that wait for other parts.
const MOST_WAITING: usize = 1024;

/// Steps of a packet in one shard.
#[derive(Debug)]
pub(crate) struct TracePart {
    pub(crate) shard: ShardId,
    pub(crate) trace: PacketTrace,
}

/// Traces of which some parts are known. Shards deliver them in any order.
#[derive(Debug)]
pub(crate) struct TraceJoiner {
    count: ShardCount,
    waiting: Vec<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    packet: u16,
    /// By their times.
    steps: Vec<(ShardId, TraceStep)>,
    until: Instant,
}

impl Waiting {
    /// Tells whether each hand-over is followed by a step of another shard, from the first step of the shard that has chosen the packet on.
    fn is_complete(&self, count: ShardCount) -> bool {
        let chosen_by = usize::from(self.packet.saturating_sub(1)) % count.get();
        let continues = |pair: &[(ShardId, TraceStep)]| match pair {
            [(shard, step), (next, _)] => step.step != HAND_OVER || shard != next,
            _ => true,
        };
        self.steps.first().is_some_and(|(shard, _)| usize::from(shard.0) == chosen_by)
            && self.steps.last().is_some_and(|(_, step)| step.step != HAND_OVER)
            && self.steps.windows(2).all(continues)
    }

    fn joined(self) -> PacketTrace {
        PacketTrace { packet: self.packet, steps: self.steps.into_iter().map(|(_, step)| step).collect() }
    }
}

impl TraceJoiner {
    /// Parts of the shards of a node.
    pub(crate) fn new(count: ShardCount) -> Self {
        Self { count, waiting: Vec::new() }
    }

    /// Adds a part.
    pub(crate) fn add(&mut self, now: Instant, part: TracePart) {
        let TracePart { shard, trace: PacketTrace { packet, steps } } = part;
        let at = self.waiting.iter().position(|waiting| waiting.packet == packet).unwrap_or_else(|| {
            self.waiting.push(Waiting { packet, steps: Vec::new(), until: now + PATIENCE });
            self.waiting.len() - 1
        });
        let waiting = &mut self.waiting[at];
        waiting.steps.extend(steps.into_iter().map(|step| (shard, step)));
        waiting.steps.sort_by(|(_, a), (_, b)| a.time.total_cmp(&b.time));
    }

    /// A trace that is complete, or has waited long enough.
    pub(crate) fn take(&mut self, now: Instant) -> Option<PacketTrace> {
        let is_crowded = self.waiting.len() > MOST_WAITING;
        let is_due = |waiting: &Waiting| is_crowded || waiting.until <= now || waiting.is_complete(self.count);
        let at = self.waiting.iter().position(is_due)?;
        Some(self.waiting.remove(at).joined())
    }

    /// All traces that wait.
    pub(crate) fn take_all(&mut self) -> impl Iterator<Item = PacketTrace> {
        self.waiting.drain(..).map(Waiting::joined)
    }

    /// Time until [`take`](Self::take) has to be called, if no part comes.
    pub(crate) fn limit(&self, now: Instant) -> Option<Duration> {
        self.waiting.iter().map(|waiting| waiting.until.saturating_duration_since(now)).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Part of packet 2, which the second of two shards has chosen.
    fn part(shard: u8, steps: &[(f64, &str)]) -> TracePart {
        let step = |&(time, step): &(f64, &str)| TraceStep {
            time,
            step: step.to_owned(),
            dev: None,
            detail: None,
            flow: None,
            len: 0,
            head: 0,
            slots: 0,
            children: 0,
            truesize: 0,
            csum: String::new(),
            gso: None,
            fragment: false,
        };
        TracePart { shard: ShardId(shard), trace: PacketTrace { packet: 2, steps: steps.iter().map(step).collect() } }
    }

    fn words(trace: &PacketTrace) -> Vec<&str> {
        trace.steps.iter().map(|step| step.step.as_str()).collect()
    }

    #[test]
    fn parts_in_any_order_are_joined_by_time() {
        let parts = || {
            [
                part(1, &[(1.0, "input"), (2.0, HAND_OVER)]),
                part(0, &[(3.0, "local"), (4.0, HAND_OVER)]),
                part(1, &[(5.0, "output"), (6.0, "queued")]),
            ]
        };
        // Those of one shard come in their order.
        for [first, second, third] in [[0, 1, 2], [1, 0, 2], [0, 2, 1]] {
            let now = Instant::now();
            let mut joiner = TraceJoiner::new(ShardCount::new(2).unwrap());
            let mut parts = parts().map(Some);
            for at in [first, second] {
                joiner.add(now, parts[at].take().unwrap());
                assert_eq!(joiner.take(now), None);
            }
            joiner.add(now, parts[third].take().unwrap());
            let joined = joiner.take(now).unwrap();
            assert_eq!(words(&joined), ["input", HAND_OVER, "local", HAND_OVER, "output", "queued"]);
            assert_eq!((joiner.take(now), joiner.limit(now)), (None, None));
        }
    }

    #[test]
    fn trace_of_one_shard_waits_for_no_other() {
        let (now, mut joiner) = (Instant::now(), TraceJoiner::new(ShardCount::ONE));
        joiner.add(now, part(0, &[(1.0, "input"), (2.0, "queued")]));
        assert_eq!(joiner.take(now).map(|trace| trace.steps.len()), Some(2));
    }

    #[test]
    fn part_that_never_comes_is_waited_for_no_longer_than_a_while() {
        let (now, mut joiner) = (Instant::now(), TraceJoiner::new(ShardCount::new(2).unwrap()));
        joiner.add(now, part(1, &[(1.0, "input"), (2.0, HAND_OVER)]));
        assert_eq!((joiner.take(now), joiner.limit(now)), (None, Some(PATIENCE)));
        assert_eq!(joiner.take(now + PATIENCE).map(|trace| trace.steps.len()), Some(2));
        joiner.add(now, part(1, &[(1.0, "input"), (2.0, HAND_OVER)]));
        assert_eq!(joiner.take_all().count(), 1);
    }

    #[test]
    fn many_traces_that_wait_are_not_held() {
        let (now, mut joiner) = (Instant::now(), TraceJoiner::new(ShardCount::new(2).unwrap()));
        for packet in 0..2000 {
            let mut part = part(1, &[(1.0, HAND_OVER)]);
            part.trace.packet = packet;
            joiner.add(now, part);
            while joiner.take(now).is_some() {}
        }
        assert_eq!(joiner.take_all().count(), MOST_WAITING);
    }
}
