//! Queues of packets that wait for an SA, unless they are dropped at once (Linux `xdst_queue_output`,
//! `xfrm_policy_queue_process`; `xfrm_larval_drop=0`).

use std::collections::VecDeque;
use std::time::Duration;

use base::{DropReason, Instant, PortId};
use hashbrown::HashMap;
use packet::{Memory, Packet};
use xfrm::Flowi;

use crate::spd::PolicyId;
use crate::timers::{Timer, Timers};

/// Maximum number of packets that wait for one policy when another one is accepted (`XFRM_MAX_QUEUE_LEN`): 101 wait.
const MAX_PER_POLICY: usize = 100;
/// Maximum number of packets that wait for all policies together. Linux has no such limit.
pub const MAX_HELD: usize = 1024;
/// Maximum truesize of all of them: one packet may have a page of 64 KiB.
pub const MAX_HELD_BYTES: usize = 8 << 20;
/// Time until the first check whether the SA exists (`XFRM_QUEUE_TMO_MIN`).
const FIRST_RETRY: Duration = Duration::from_millis(100);
/// Time between checks after which there is no further one (`XFRM_QUEUE_TMO_MAX`).
const LAST_RETRY: Duration = Duration::from_secs(60);

/// A packet that leaves the queue.
#[derive(Debug)]
pub enum Released {
    /// To be sent as if it had just come; with the link that it was to leave by.
    Again(Packet, Option<PortId>),
    /// Dropped: the SA did not come.
    Dropped(Packet, DropReason),
}

/// Packets that wait, by policy.
#[derive(Debug, Default)]
pub(crate) struct Holds {
    queues: HashMap<PolicyId, Queue, foldhash::fast::RandomState>,
    timers: Timers<PolicyId>,
    held: usize,
    /// Truesize of the packets that wait.
    bytes: usize,
    released: Vec<Released>,
}

#[derive(Debug)]
struct Queue {
    /// The flow of the first packet, for which the SA is looked up again.
    flow: Flowi,
    /// Packets, each with the link that it was to leave by.
    packets: VecDeque<(Packet, Option<PortId>)>,
    retry_after: Duration,
    timer: Timer,
}

impl Holds {
    /// Queues a packet of `flow`.
    ///
    /// # Errors
    /// The packet, if the queue is full.
    pub(crate) fn push(
        &mut self,
        mem: &Memory,
        now: Instant,
        policy: PolicyId,
        flow: &Flowi,
        mut pkt: Packet,
    ) -> Result<(), (Packet, DropReason)> {
        let waiting = self.queues.get(&policy).map_or(0, |queue| queue.packets.len());
        let is_full = self.held >= MAX_HELD || self.bytes + pkt.truesize() > MAX_HELD_BYTES;
        if waiting > MAX_PER_POLICY || is_full {
            return Err((pkt, DropReason::PolicyQueueFull));
        }
        pkt.release_device_frames(mem);
        let queue = self.queues.entry(policy).or_insert_with(|| {
            let mut timer = Timer::default();
            self.timers.set(policy, &mut timer, Some(now + FIRST_RETRY));
            Queue { flow: *flow, packets: VecDeque::new(), retry_after: FIRST_RETRY, timer }
        });
        self.bytes += pkt.truesize();
        queue.packets.push_back((pkt, flow.link));
        self.held += 1;
        Ok(())
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// A policy whose next check for an SA is due, and the flow to check.
    pub(crate) fn pop(&mut self, now: Instant) -> Option<(PolicyId, Flowi)> {
        let policy = self.timers.pop(now)?;
        let queue = self.queues.get_mut(&policy)?;
        queue.timer.clear();
        Some((policy, queue.flow))
    }

    /// The flow of the oldest packet that waits for a policy.
    pub(crate) fn first_flow(&self, policy: PolicyId) -> Option<Flowi> {
        self.queues.get(&policy).map(|queue| queue.flow)
    }

    /// Doubles the time until the next check, up to a limit.
    pub(crate) fn wait_longer(&mut self, now: Instant, policy: PolicyId) {
        match self.queues.get_mut(&policy) {
            Some(queue) if queue.retry_after < LAST_RETRY => {
                queue.retry_after *= 2;
                self.timers.set(policy, &mut queue.timer, Some(now + queue.retry_after));
            }
            _ => self.purge(policy, DropReason::PolicyNoState),
        }
    }

    /// Moves packets that wait for a policy to the one that has replaced it.
    pub(crate) fn rename(&mut self, from: PolicyId, to: PolicyId) {
        if from == to {
            return;
        }
        if let Some(mut queue) = self.queues.remove(&from) {
            self.timers.set(from, &mut queue.timer, None);
            self.timers.set(to, &mut queue.timer, Some(Instant::ZERO));
            self.queues.insert(to, queue);
        }
    }

    /// Releases the packets of a policy.
    pub(crate) fn release(&mut self, policy: PolicyId) {
        let packets = self.take(policy);
        self.released.extend(packets.into_iter().map(|(pkt, link)| Released::Again(pkt, link)));
    }

    /// Drops the packets of a policy.
    pub(crate) fn purge(&mut self, policy: PolicyId, reason: DropReason) {
        let packets = self.take(policy);
        self.released.extend(packets.into_iter().map(|(pkt, _)| Released::Dropped(pkt, reason)));
    }

    fn take(&mut self, policy: PolicyId) -> VecDeque<(Packet, Option<PortId>)> {
        let Some(mut queue) = self.queues.remove(&policy) else { return VecDeque::new() };
        self.timers.set(policy, &mut queue.timer, None);
        self.held -= queue.packets.len();
        self.bytes -= queue.packets.iter().map(|(pkt, _)| pkt.truesize()).sum::<usize>();
        queue.packets
    }

    pub(crate) const fn len(&self) -> usize {
        self.held
    }

    /// Released and dropped packets, in order.
    pub(crate) fn take_released(&mut self) -> Vec<Released> {
        std::mem::take(&mut self.released)
    }

    pub(crate) fn has_released(&self) -> bool {
        !self.released.is_empty()
    }
}
