//! Pairs of queues that one shard serves: bursts from the guest and to it.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use arrayvec::ArrayVec;
use base::DropReason;
use offload::Features;
use packet::{CopyReason, Cut, Memory, Packet};
use wire::eth::EthHeader;

use super::device::{Vring, Vrings, lock};
use super::features::Bits;
use super::frames::{Delivered, Scratch};
use super::queues::{BURST_BYTES, BURST_DESCRIPTORS, BURST_PACKETS, MAX_LOOKS, MAX_PAIRS};
use super::ring::{BadRing, Ring};
use crate::flow_hash::FlowHash;
use crate::{LinkStats, Sent};

/// State that the first shard tells the others, and the others the first.
#[derive(Debug)]
pub(super) struct Shared {
    /// Negotiated features; [`NONE`](Self::NONE) without a guest.
    features: AtomicU64,
    /// Reason to close the connection, of any shard.
    fault: Mutex<Option<String>>,
    /// Eventfd of the first shard.
    first: OwnedFd,
}

impl Shared {
    /// No features: no driver negotiates all bits.
    const NONE: u64 = u64::MAX;

    pub(super) fn new(first: OwnedFd) -> Self {
        Self { features: AtomicU64::new(Self::NONE), fault: Mutex::default(), first }
    }

    pub(super) fn features(&self) -> Option<Bits> {
        match self.features.load(Ordering::Relaxed) {
            Self::NONE => None,
            bits => Some(Bits(bits)),
        }
    }

    pub(super) fn set_features(&self, features: Option<Bits>) {
        self.features.store(features.map_or(Self::NONE, |bits| bits.0), Ordering::Relaxed);
    }

    /// Takes the reason to close the connection, if there is one.
    pub(super) fn take_fault(&self) -> Option<String> {
        lock(&self.fault).take()
    }

    /// Stops a ring that violates the rules, and has the first shard close the connection. The caller has the queue locked: closing the
    /// connection locks it, too, and discards older reasons after that.
    #[cold]
    fn stop(&self, vring: &mut Vring, bad: Option<BadRing>) {
        // Rings that turn to zeros may look like a violation of the rules as well.
        let why = match bad {
            Some(bad) if !vring.memory.is_lost() => bad.to_string(),
            _ => "the guest's memory went away".to_owned(),
        };
        vring.ring = None;
        lock(&self.fault).get_or_insert(why);
        ring_bell(&self.first);
    }
}

/// Makes an eventfd readable.
fn ring_bell(event: &OwnedFd) {
    // Cannot fail: the counter never reaches its maximum.
    let _ = rustix::io::write(event, &1_u64.to_ne_bytes());
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
            own: (shard..vrings.len() / 2).step_by(shards).collect(),
            scratch: Scratch::default(),
            flow_hash: FlowHash::default(),
            next: 0,
            owed: 0,
            again,
            shared,
        }
    }

    /// Makes the link's descriptor readable again.
    pub(super) fn come_again(&self) {
        ring_bell(&self.again);
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
        let (mut packets, mut bytes, mut descriptors) = (0, 0, 0);
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

    /// Sends packets from the front of a burst, and removes them. `current` are the features that the burst is fitted to.
    ///
    /// A guest that has enabled none of the shard's own pairs receives by others.
    pub(super) fn deliver(&mut self, stats: &mut LinkStats, current: &Features, burst: &mut Vec<Packet>) -> Sent {
        let vrings = Arc::clone(&self.vrings);
        let ready = |pairs: &mut dyn Iterator<Item = usize>| {
            let locked = pairs.map(|pair| lock(&vrings[2 * pair])).filter(|vring| vring.is_ready());
            locked.collect::<ArrayVec<MutexGuard<'_, Vring>, { MAX_PAIRS as usize }>>()
        };
        let mut ready_vrings = ready(&mut self.own.iter().copied());
        if ready_vrings.is_empty() && self.own.len() < vrings.len() / 2 {
            // In the order of their numbers, as any thread that locks several.
            ready_vrings = ready(&mut (0..vrings.len() / 2));
        }
        let (mut gone, mut looks) = (0, 0);
        let mut sent = Sent::All;
        while let Some(packet) = burst.get_mut(gone) {
            let pair = self.flow_hash.queue(packet, EthHeader::LEN, ready_vrings.len());
            let vring = ready_vrings.get_mut(pair).map(|vring| &mut **vring);
            let Some(Vring { ring: Some(ring), memory, features, stats: counts, .. }) = vring else {
                stats.tx_drop(DropReason::LinkDown);
                gone += 1;
                continue;
            };
            let is_one = packet.meta.cut.packets() <= 1;
            match self.scratch.deliver(ring, memory, *features, current, packet) {
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
                    self.shared.stop(&mut ready_vrings[pair], Some(bad));
                    break;
                }
            }
            ring.want_kicks(false);
            if is_one { gone += 1 } else { packet.skip_frames(1) }
        }
        for vring in &mut ready_vrings {
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

/// Size of a ring, 0 if it does not run.
pub(super) fn size_of_ring(vring: &Vring) -> u16 {
    vring.ring.as_ref().map_or(0, Ring::size)
}
