//! Batch path: fragments of one datagram that arrive together share one look-up and one accounting.

use base::{Counters, Instant};
use packet::{Burst, Cut, Memory, Packet};

use crate::cache::QUEUE_SIZE;
use crate::contiguous::CopyPolicy;
use crate::page_waste::{copy_to_small_page, wastes_page, wastes_pages};
use crate::queue::{Added, Refused};
use crate::reassembly::{End, Reassembly};
use crate::train::Train;
use crate::verdict::{Count, Verdict};

impl Reassembly {
    /// Takes the fragments of this train at the front of `burst`, for local delivery, as
    /// [`handle_fragment`](Self::handle_fragment) would one by one; stops at the first that must not only be held. `l3`
    /// returns the offset of a packet's IP header, if the packet qualifies. Returns the number of taken fragments;
    /// `None` if none is taken and each fragment has to be handled singly.
    pub fn handle_train(
        &mut self,
        now: Instant,
        mem: &Memory,
        train: &Train,
        burst: &mut Burst<'_>,
        l3: impl Fn(&Packet) -> Option<usize>,
        counters: &mut Counters,
    ) -> Option<(u64, Verdict)> {
        let version = train.version();
        let how = self.how();
        let mut count = Count::new(counters, version);
        let cache = self.table(version);
        let room = cache.room()?;
        let gathering = cache.gathering();
        let mut next = Some(train.peek(burst, &l3)?);
        let key = train.key();
        // An empty table needs no look-up.
        let hash = (cache.queues() > 0).then(|| cache.hash(&key));
        let waiting = hash.and_then(|hash| cache.find(hash, &key));
        let restarted = waiting.map_or(0, |id| cache.restart_if_too_far(id, now));
        if restarted > 0 {
            count.fail();
        }
        let id = waiting.unwrap_or_else(|| cache.open());
        let (queue, spare) = cache.queue_mut(id);
        let before = queue.charged();
        // A datagram without a queue is charged when its queue is created.
        let queue_size = if waiting.is_some() { 0 } else { QUEUE_SIZE };
        let room = (room + before).saturating_sub(queue_size);
        let held = queue.fragments();
        let moves = how.joins && !how.copies;
        let is_short = how.spares && !gathering.is_plenty(0);
        let wastes_pages = is_short && wastes_pages(train, queue, burst, &l3);
        let (mut packets, mut grew) = (0_u32, false);
        let end = loop {
            let (Some((at, span)), Some(pkt)) = (next, burst.first()) else { break End::Waits };
            packets += 1;
            burst.look_ahead();
            let is_copied = wastes_pages && wastes_page(pkt);
            let is_moved = moves && !is_copied && !(how.spares && pkt.head_buf().is_scarce_frame(mem));
            let csum = pkt.meta.csum;
            let added = if !is_moved {
                None
            } else if queue.is_empty() {
                queue.begin(&span, train.first(&span), || Some((burst.next()?, at)))
            } else if span.offset == 0 {
                queue.add_front(&span, train.first(&span), spare, || Some((burst.next()?, at)))
            } else if pkt.truesize() <= 4 * span.len() {
                queue.add_slot(&span, csum, spare, || Some((burst.next()?, at + span.header_len)))
            } else {
                let bytes = pkt.head().get(at + span.header_len..at + span.packet_len());
                let added = bytes.and_then(|bytes| queue.add_copy(mem, &span, csum, bytes));
                if added.is_some() {
                    burst.next();
                }
                added
            };
            let added = match added {
                Some(added) => Ok(added),
                None => {
                    let Some(mut pkt) = burst.next() else { break End::Waits };
                    if is_copied {
                        copy_to_small_page(mem, &mut pkt);
                    }
                    pkt.pull(at);
                    pkt.meta.cut = Cut::Fragment;
                    let uncharged = (queue.charged() + queue_size).wrapping_sub(before).cast_signed();
                    let how = CopyPolicy { gathers_from: gathering.from(uncharged), ..how };
                    queue.add(mem, pkt, &span, train.first(&span), how, spare)
                }
            };
            match added {
                Ok(Added::Whole) => break End::Whole,
                Ok(added) => grew |= added == Added::Nearer,
                Err(refused) => break End::Refused(refused),
            }
            if queue.charged() > room {
                break End::Waits;
            }
            if restarted > 0 {
                break End::Waits;
            }
            next = train.peek(burst, &l3);
        };
        if queue.fragments() > held {
            queue.came_by(train.origin());
        }
        count.requests(packets.into());
        let waits = waiting.is_some()
            || match end {
                End::Waits => true,
                End::Whole | End::Refused(Refused::Datagram(_)) => false,
                End::Refused(Refused::Fragment(_)) => queue.fragments() > 0,
            };
        if waits {
            // The first of the waiting packets is counted for its source already; the others are charged here.
            let (before, more) = match waiting {
                Some(_) => (before, packets - 1),
                None => {
                    let hash = hash.unwrap_or_else(|| cache.hash(&key));
                    (cache.enlist(now, id, (hash, key)), packets)
                }
            };
            cache.note_added(id, before, more, grew);
        } else {
            cache.note_passed(&key, packets);
        }
        let verdict = self.conclude(version, id, end, restarted, mem, how, count);
        Some((packets.into(), verdict))
    }
}
