//! Pairs of queues that one shard serves: bursts from the guest and to it.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arrayvec::ArrayVec;
use base::DropReason;
use offload::Features;
use packet::{CopyReason, Cut, Memory, Packet};
use wire::eth::EthHeader;

use super::device::{Vring, Vrings, lock};
use super::features::Bits;
use super::frames::{Delivered, Scratch};
use super::queues::{BURST_BYTES, BURST_DESCRIPTORS, BURST_PACKETS, MAX_LOOKS, MAX_PAIRS};
use super::ring::BadRing;
use crate::flow_hash::FlowHash;
use crate::offloads::{BY_CONFIGURATION, Offloads};
use crate::{Common, LinkStats, Sent};

/// Reason that an offload is off without a front end.
const NO_GUEST: &str = "no guest";

/// Reason that an offload is off that the guest did not negotiate.
const NOT_NEGOTIATED: &str = "not negotiated by the guest";

/// Features of a link of one shard.
#[derive(Debug)]
pub(super) struct Negotiation {
    /// Negotiated features; `None` without a guest.
    bits: Option<Bits>,
    /// Offloads towards the guest.
    features: Features,
    /// False offers the guest no offload.
    is_offered: bool,
}

impl Negotiation {
    /// Features without a guest, and the offloads that are off.
    pub(super) fn without_guest(is_offered: bool) -> (Self, Offloads) {
        let mut offloads = Offloads::EMPTY;
        let features = Bits::default().features(&mut offloads, NO_GUEST);
        (Self { bits: None, features, is_offered }, offloads)
    }

    /// Offloads towards the guest.
    pub(super) fn features(&self) -> Features {
        self.features
    }

    /// Follows a negotiation, and updates the list of offloads.
    pub(super) fn follow(&mut self, negotiated: Option<Bits>, offloads: &mut Offloads) {
        if negotiated == self.bits {
            return;
        }
        self.bits = negotiated;
        let unless = match negotiated {
            _ if !self.is_offered => BY_CONFIGURATION,
            Some(_) => NOT_NEGOTIATED,
            None => NO_GUEST,
        };
        self.features = negotiated.unwrap_or_default().features(offloads, unless);
    }
}

/// State that the first shard tells the others, and the others the first.
#[derive(Debug)]
pub(super) struct Shared {
    /// Pairs by which the guest can receive, a bit each, as of the last message.
    ready: AtomicU64,
    /// Whether a shard has stopped a ring that violates the rules.
    has_fault: AtomicBool,
    /// Pairs of the first shard. It sends what shards without a pair hand over, so without one of these there is no carrier.
    of_first: u64,
    /// Eventfds of the shards, in their order.
    shards: Vec<OwnedFd>,
}

impl Shared {
    /// State of so many pairs, which are dealt to the shards with these eventfds.
    pub(super) fn new(shards: Vec<OwnedFd>, pairs: u16) -> Self {
        let of_first = bits(&own_pairs(0, shards.len(), pairs.into()));
        Self { ready: AtomicU64::new(0), has_fault: AtomicBool::new(false), of_first, shards }
    }

    /// Makes the descriptors of all shards' links readable.
    pub(super) fn wake_all(&self) {
        self.shards.iter().for_each(wake);
    }

    /// Sets the pairs by which the guest can receive. Returns whether they have changed.
    pub(super) fn set_ready(&self, ready: u64) -> bool {
        self.ready.swap(ready, Ordering::Relaxed) != ready
    }

    /// Tells whether the guest can receive by a pair of the first shard.
    pub(super) fn has_carrier(&self) -> bool {
        self.are_of_first(self.ready.load(Ordering::Relaxed))
    }

    /// Tells whether one of these pairs is the first shard's.
    pub(super) fn are_of_first(&self, pairs: u64) -> bool {
        pairs & self.of_first != 0
    }

    /// Tells whether a shard has stopped a ring since the last call.
    pub(super) fn take_fault(&self) -> bool {
        self.has_fault.load(Ordering::Relaxed) && self.has_fault.swap(false, Ordering::Acquire)
    }

    /// Stops a ring that violates the rules, and has the first shard close the connection.
    #[cold]
    fn stop(&self, vring: &mut Vring, bad: Option<BadRing>) {
        // Rings that turn to zeros may look like a violation of the rules as well.
        let why = match bad {
            Some(bad) if !vring.memory.is_lost() => bad.to_string(),
            _ => "the guest's memory went away".to_owned(),
        };
        vring.stop_for(why);
        self.has_fault.store(true, Ordering::Release);
        self.shards.first().into_iter().for_each(wake);
    }
}

/// Makes an eventfd readable, for the thread that polls it.
fn wake(event: &OwnedFd) {
    // Cannot fail: the counter never reaches its maximum.
    let _ = rustix::io::write(event, &1_u64.to_ne_bytes());
}

/// Numbers of the pairs of a shard.
fn own_pairs(shard: usize, shards: usize, pairs: usize) -> Vec<usize> {
    (shard..pairs).step_by(shards).collect()
}

/// A bit for each pair.
fn bits(pairs: &[usize]) -> u64 {
    pairs.iter().fold(0, |bits, pair| bits | 1 << pair)
}

/// Pairs of queues that a shard serves.
#[derive(Debug)]
pub(super) struct Pairs {
    vrings: Vrings,
    /// Numbers of the pairs.
    own: Vec<usize>,
    scratch: Scratch,
    flow_hash: FlowHash,
    /// Place in `own` of the pair to receive from next.
    next: usize,
    /// Bytes copied to the guest that are not in the ledger yet.
    owed: usize,
    /// Eventfd that is readable when a burst ended before the rings were empty.
    again: OwnedFd,
    pub(super) shared: Arc<Shared>,
}

impl Pairs {
    /// The pairs of a shard among `shards`.
    pub(super) fn new(vrings: &Vrings, shard: usize, shards: usize, again: OwnedFd, shared: Arc<Shared>) -> Self {
        Self {
            vrings: Arc::clone(vrings),
            own: own_pairs(shard, shards, vrings.len() / 2),
            scratch: Scratch::default(),
            flow_hash: FlowHash::default(),
            next: 0,
            owed: 0,
            again,
            shared,
        }
    }

    /// Tells whether the guest can receive by one of the pairs.
    pub(super) fn is_ready(&self) -> bool {
        self.shared.ready.load(Ordering::Relaxed) & bits(&self.own) != 0
    }

    /// Makes the link's descriptor readable again.
    pub(super) fn come_again(&self) {
        wake(&self.again);
    }

    /// The eventfd, for another writer.
    pub(super) fn again(&self) -> io::Result<OwnedFd> {
        self.again.try_clone()
    }

    /// Enters copies in the ledger.
    pub(super) fn settle(&mut self, mem: &Memory) {
        if self.owed > 0 {
            mem.copied(CopyReason::Guest, std::mem::take(&mut self.owed));
        }
    }

    /// Receives one burst from the guest's transmit rings.
    pub(super) fn receive(&mut self, stats: &mut LinkStats, mem: &Memory, out: &mut Vec<Packet>) {
        let pairs = self.own.len();
        let mut packets = 0;
        let mut bytes = 0;
        let mut descriptors = 0;
        let mut has_more = false;
        let before = out.len();
        for turn in 0..pairs {
            let at = (self.next + turn) % pairs;
            let mut vring = lock(&self.vrings[2 * self.own[at] + 1]);
            let Vring { ring: Some(ring), memory, features, enabled, stats: counts, .. } = &mut *vring else {
                continue;
            };
            let bytes_before = bytes;
            let mut bad = None;
            loop {
                if packets >= BURST_PACKETS || bytes >= BURST_BYTES || descriptors >= BURST_DESCRIPTORS {
                    self.next = (at + 1) % pairs;
                    has_more = true;
                    break;
                }
                match self.scratch.receive(ring, memory, *features, mem) {
                    // A guest that moves its index back and forth reaches the burst's end, too.
                    Ok(None) if ring.want_kicks(true) => descriptors += 1,
                    Ok(None) => break,
                    Ok(Some(received)) => {
                        ring.want_kicks(false);
                        counts.chains += 1;
                        packets += 1;
                        descriptors += received.descriptors;
                        match received.packet {
                            // Frames of a queue that is not enabled have no effect.
                            _ if !*enabled => stats.rx_drop(DropReason::LinkDown),
                            Ok(packet) => {
                                bytes += packet.len();
                                stats.received(&packet);
                                out.push(packet);
                            }
                            Err(reason) => stats.rx_drop(reason),
                        }
                    }
                    Err(err) => {
                        bad = Some(err);
                        break;
                    }
                }
            }
            counts.copied += (bytes - bytes_before) as u64;
            vring.publish();
            if bad.is_some() || vring.memory.is_lost() {
                self.shared.stop(&mut vring, bad);
            }
            if has_more {
                break;
            }
        }
        stats.rx_calls += u64::from(out.len() > before);
        mem.copied(CopyReason::Guest, bytes);
        if has_more {
            self.come_again();
        }
    }

    /// Sends packets from the front of a burst, and removes them. Without a pair by which the guest can receive, they are dropped.
    pub(super) fn deliver(
        &mut self,
        common: &mut Common,
        negotiation: &mut Negotiation,
        burst: &mut Vec<Packet>,
    ) -> Sent {
        let vrings = Arc::clone(&self.vrings);
        let own = self.own.iter().map(|pair| lock(&vrings[2 * pair]));
        let mut ready: ArrayVec<_, { MAX_PAIRS as usize }> = own.filter(|vring| vring.is_ready()).collect();
        if let Some(vring) = ready.first() {
            negotiation.follow(Some(vring.features), &mut common.offloads);
        }
        if common.features != negotiation.features {
            common.features = negotiation.features;
            return Sent::Refit;
        }
        let stats = &mut common.stats;
        let mut gone = 0;
        let mut looks = 0;
        let mut sent = Sent::All;
        while let Some(packet) = burst.get_mut(gone) {
            let pair = self.flow_hash.queue(packet, EthHeader::LEN, ready.len());
            let vring = ready.get_mut(pair).map(|vring| &mut **vring);
            let Some(Vring { ring: Some(ring), memory, features, stats: counts, .. }) = vring else {
                stats.tx_drop(DropReason::LinkDown);
                gone += 1;
                continue;
            };
            let is_one = packet.meta.cut.packets() <= 1;
            match self.scratch.deliver(ring, memory, *features, &negotiation.features, packet) {
                Ok(Delivered::Sent { bytes, chains }) => {
                    self.owed += bytes;
                    counts.copied += bytes as u64;
                    counts.chains += u64::from(chains);
                    match packet.meta.cut {
                        Cut::Frames(_) => stats.sent_first_frame(packet),
                        Cut::Whole | Cut::Gso(_) | Cut::Fragment => stats.sent(packet),
                    }
                }
                Ok(Delivered::Full) => {
                    looks += 1;
                    if ring.want_kicks(true) {
                        if looks < MAX_LOOKS {
                            continue;
                        }
                        self.come_again();
                    }
                    counts.full += 1;
                    sent = Sent::Busy;
                    break;
                }
                Ok(Delivered::Dropped(reason)) => stats.tx_drop(reason),
                Err(bad) => {
                    self.shared.stop(&mut ready[pair], Some(bad));
                    break;
                }
            }
            ring.want_kicks(false);
            if is_one { gone += 1 } else { packet.skip_frames(1) }
        }
        for vring in &mut ready {
            vring.publish();
            if vring.memory.is_lost() {
                self.shared.stop(vring, None);
            }
        }
        stats.tx_calls += u64::from(gone > 0);
        burst.drain(..gone);
        sent
    }
}
