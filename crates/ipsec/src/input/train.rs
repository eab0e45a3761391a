//! Input of a train of ESP in UDP, or of a packet in pieces, packet by packet.

use base::{Counters, DropReason, Instant, Mib, SaId};
use packet::{Csum, Cut, Memory, Meta, Packet};
use wire::esp::EspHeader;
use wire::ip::Info;
use wire::{Protocol, Spi};

use super::arrival::{Arrival, NotHere};
use super::refused::Uncounted;
use super::{ENCAP_PEEK, Kind, Opened, PEEK, decap, kind};
use crate::ipsec::Ipsec;
use crate::pieces::Pieces;

impl Ipsec {
    /// Submits a train whose packets are of `size` bytes and have IPv4 identifications that go up by `id_step`.
    #[allow(clippy::too_many_arguments, reason = "cores get their state and the packet as parameters")]
    pub(super) fn submit_train(
        &mut self,
        mem: &Memory,
        now: Instant,
        mut pkt: Packet,
        info: &Info,
        payload_at: usize,
        (size, id_step): (usize, u16),
        opened: &mut Opened,
        counters: &mut Counters,
    ) {
        let mut headers = std::mem::take(&mut self.headers);
        headers.clear();
        headers.extend_from_slice(&pkt.head()[..payload_at]);
        let meta = pkt.meta.clone();
        pkt.pull(payload_at);
        let mut left = pkt.len();
        let mut storage = std::mem::take(&mut self.pieces);
        let mut pieces = Pieces::new(pkt, &mut storage);
        let is_udp = info.protocol == Protocol::UDP;
        let arrival = Arrival { now, info, headers: &headers, meta: &meta, is_udp };
        let mut train = TrainInput { arrival, held: 0, has_job: false, id: info.id, last: None };
        loop {
            let n = left.min(size);
            left -= n;
            train.next(self, mem, &mut pieces, n, opened, counters);
            train.id = train.id.wrapping_add(id_step);
            if left == 0 {
                break;
            }
        }
        train.flush(self, &mut pieces);
        drop(pieces);
        (self.pieces, self.headers) = (storage, headers);
    }
}

/// Counter and reason of a packet that finds no memory (Linux `esp_input`).
const fn not_opened(why: DropReason) -> Uncounted {
    (Mib::XfrmInStateProtoError, why)
}

/// Progress of a train's input.
struct TrainInput<'a> {
    arrival: Arrival<'a>,
    /// Number of admitted bytes at the front, which are contiguous.
    held: usize,
    /// Whether the open batch matches the packet before.
    has_job: bool,
    /// The IPv4 identification of the current packet.
    id: u16,
    /// The SA of the packet before.
    last: Option<(Spi, SaId)>,
}

impl TrainInput<'_> {
    /// Submits the next `n` bytes, by their kind.
    #[inline]
    fn next(
        &mut self,
        ipsec: &mut Ipsec,
        mem: &Memory,
        pieces: &mut Pieces<'_>,
        n: usize,
        opened: &mut Opened,
        counters: &mut Counters,
    ) {
        if !pieces.has_in_place(self.held + n) {
            self.flush(ipsec, pieces);
        }
        let front: [u8; PEEK] = pieces.peek(self.held);
        let front = &front[..n.min(PEEK)];
        let Arrival { info, meta, is_udp, .. } = self.arrival;
        match if is_udp { kind(&front[..n.min(ENCAP_PEEK)]) } else { Kind::Esp } {
            Kind::Esp => {
                let not_here = self.admit(ipsec, mem, pieces, front, n).err();
                if let Some(NotHere::Elsewhere(owner)) = not_here {
                    self.flush(ipsec, pieces);
                    self.take_out(mem, pieces, n, opened, |opened, pkt| opened.elsewhere.push((owner, pkt)));
                    return;
                }
                if let Some(NotHere::Refused((mib, reason))) = not_here {
                    self.flush(ipsec, pieces);
                    pieces.skip(n);
                    counters.count(mib);
                    ipsec.esp_drops.arrived(reason, info, front, meta);
                    opened.drops.push(reason);
                }
            }
            Kind::Keepalive => {
                self.flush(ipsec, pieces);
                pieces.skip(n);
                opened.keepalives += 1;
            }
            Kind::NotEsp => {
                self.flush(ipsec, pieces);
                if let Some(reason) = self.take_out(mem, pieces, n, opened, |opened, pkt| opened.not_esp.push(pkt)) {
                    ipsec.esp_drops.arrived(reason, info, &[], meta);
                }
            }
        }
    }

    /// Makes a packet of its own of the next `n` bytes, for `put`. Some: there is no memory, and they are dropped.
    #[cold]
    fn take_out(
        &mut self,
        mem: &Memory,
        pieces: &mut Pieces<'_>,
        n: usize,
        opened: &mut Opened,
        put: impl FnOnce(&mut Opened, Packet),
    ) -> Option<DropReason> {
        let Arrival { info, headers, meta, .. } = self.arrival;
        match decap::datagram(mem, info, headers, self.id, pieces, n) {
            Ok(mut pkt) => {
                pkt.meta = Meta { csum: Csum::Unnecessary, cut: Cut::Whole, esp: None, ..meta.clone() };
                put(opened, pkt);
                None
            }
            Err(reason) => {
                opened.drops.push(reason);
                Some(reason)
            }
        }
    }

    /// Finds the SA of a packet that begins with `front`, and queues it for decryption.
    #[inline]
    fn admit(
        &mut self,
        ipsec: &mut Ipsec,
        mem: &Memory,
        pieces: &mut Pieces<'_>,
        front: &[u8],
        n: usize,
    ) -> Result<(), NotHere> {
        let (id, seq) = self.arrival.find(&mut ipsec.sad, self.last, front, n)?;
        if self.last.is_none_or(|(_, last)| last != id) {
            self.flush(ipsec, pieces);
            self.last = EspHeader::ref_from(front).ok().map(|header| (header.spi(), id));
            self.has_job = false;
        }
        if self.held == 0 && !pieces.join_in_place(n) {
            let opens_elsewhere = || ipsec.sad.get(id).is_some_and(|sa| sa.cipher.opens_elsewhere());
            if self.arrival.meta.esp.is_none() && opens_elsewhere() {
                return self.admit_pieces(ipsec, mem, pieces, (id, seq), n).map_err(|why| not_opened(why).into());
            }
            pieces.make_writable(mem, n).map_err(not_opened)?;
        }
        if !self.has_job {
            self.arrival.join_or_begin(ipsec, id);
            self.has_job = true;
        }
        let job = ipsec.crypto.batcher.latest_mut().expect("begun with the first that is held");
        job.push(n, seq, self.id);
        job.trace_last(self.arrival.meta.trace);
        self.held += n;
        if ipsec.crypto.has_task() {
            self.flush(ipsec, pieces);
            ipsec.crypto.close_latest(self.arrival.now);
            self.has_job = false;
        }
        Ok(())
    }

    /// Queues a packet for a cipher that reads it from the pieces in which it arrived, and writes it to a page of its
    /// own.
    #[cold]
    fn admit_pieces(
        &mut self,
        ipsec: &mut Ipsec,
        mem: &Memory,
        pieces: &mut Pieces<'_>,
        (id, seq): (SaId, u64),
        n: usize,
    ) -> Result<(), DropReason> {
        let mut whole = mem.take(Memory::HEADROOM, n)?;
        whole.put(n).ok_or(DropReason::NoMemory)?;
        ipsec.crypto.close(self.arrival.now);
        let job = self.arrival.join_or_begin(ipsec, id);
        job.push(n, seq, self.id);
        job.trace_last(self.arrival.meta.trace);
        job.push_buf(whole, 0);
        pieces.move_to(n, job.pieces_mut());
        ipsec.crypto.close(self.arrival.now);
        self.has_job = false;
        Ok(())
    }

    /// Takes the admitted bytes off the front.
    fn flush(&mut self, ipsec: &mut Ipsec, pieces: &mut Pieces<'_>) {
        if let (1.., Some(job)) = (self.held, ipsec.crypto.batcher.latest_mut()) {
            job.push_buf(pieces.take(self.held), 0);
        }
        self.held = 0;
    }
}
