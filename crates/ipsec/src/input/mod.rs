//! ESP input: decryption of a received packet or train, and decapsulation.
//!
//! Packets of a train are decrypted in place. A forged packet costs a look-up and one pass of the cipher at most, and
//! never a copy before its SA is known. The order of checks and the counters are those of Linux's `xfrm_input` and
//! `esp_input`. The way of a received packet or train:
//!
//! ```text
//! submit_open        the offset of ESP (esp_at); room in the ciphers' queue
//!   submit_one       a packet in one piece: ESP, a keepalive or IKE (kind)
//!   submit_train     a train or a packet in pieces: TrainInput::next for each packet, by its kind
//! Arrival::find      the SA by its SPI, checks, the sequence number (Arrival::admit)
//! join_or_begin      the batch of that SA that is open (crypto::batcher), or a new one
//! OpenJob::push      the packet in the batch; push_buf: its bytes
//! Queue::close       the batch goes to a crypto thread, or to the queue of this one (work)
//! OpenJob::run       decryption on a thread; without one, OpenJob::next decrypts as packets are passed on
//! pass_opened        the batches that are done, in the order of submission
//!   pass_plain       packets that decapsulation does not change (pass_noop_decap): DecryptSink::take_plain
//!   pass, accept     all others: the SA, the window, the peer's address
//!     decap          tunnel or transport mode: DecryptSink::take
//! ```
//!
//! [`open_run`](Ipsec::open_run) (fast_path.rs) takes packets of a template from the burst to the sink, past these steps.

mod accept;
mod arrival;
mod decap;
mod decrypted;
mod fast_path;
mod refused;
mod train;

use std::ops::ControlFlow;

use base::{Counters, DropReason, Instant, Mib, ShardId};
use offload::ip_headers;
use packet::{Cut, Memory, Packet};
use wire::esp::EspHeader;
use wire::ip::Info;
use wire::{Protocol, udp};

use crate::ipsec::Ipsec;

use accept::{pass, pass_plain};
use arrival::{Arrival, NotHere};

pub use decrypted::{DecryptSink, Decrypted, FnSink, InnerPacket};
pub use fast_path::RunSummary;

/// Results of decrypting a train. The caller reuses it for the next train, after it has taken its contents.
#[derive(Debug, Default)]
pub struct Opened {
    /// Decrypted packets: in tunnel mode the inner packets, in transport mode the packets without ESP. Their `sec_path`
    /// names the SA.
    pub packets: Vec<Packet>,
    /// UDP packets that are not ESP: IKE, behind its non-ESP marker (RFC 3948 §2.2).
    pub not_esp: Vec<Packet>,
    /// NAT keepalives (RFC 3948 §2.3), which end here.
    pub keepalives: u64,
    /// Packets of a train whose SAs other shards own, each with its shard: they are to be opened there.
    pub elsewhere: Vec<(ShardId, Packet)>,
    /// Reasons of the dropped packets, which are counted.
    pub drops: Vec<DropReason>,
}

/// Number of bytes of a packet that are read before decryption.
const PEEK: usize = EspHeader::LEN + 8;

/// Number of bytes of a UDP payload that tell whether it is ESP.
pub const ENCAP_PEEK: usize = EspHeader::LEN + 1;

/// Kind of a packet of a train.
enum Kind {
    Esp,
    Keepalive,
    NotEsp,
}

impl Ipsec {
    /// Opens `pkt`, which begins with its IP header and carries ESP or ESP in UDP: one packet, or a train
    /// ([`GsoKind::Udp`](packet::GsoKind::Udp)) of them. It is addressed to this node, or to one that it [opens
    /// for](crate::sad::Sad::opens_for_others), and is no fragment. An outer UDP checksum is not verified, because the
    /// ICV is the stronger check.
    pub fn open(&mut self, mem: &Memory, now: Instant, mut pkt: Packet, opened: &mut Opened, counters: &mut Counters) {
        match ip_headers(mem, &mut pkt) {
            Ok(info) => self.submit_open(mem, now, pkt, &info, opened, counters),
            Err(reason) => refuse_headers(reason, opened, counters),
        }
        self.work(now);
        let mut each = FnSink(|inner: Decrypted<'_>| match inner {
            Decrypted::Packet(content) => opened.packets.push(content.into_packet()),
            Decrypted::Dropped(reason, _) => opened.drops.push(reason),
        });
        let ControlFlow::Continue(()) = self.pass_opened(mem, now, counters, &mut each);
        self.invalidate_templates();
    }

    /// As [`open`](Self::open), for a packet whose IP headers are `info` ([`ip_headers`]); but decrypted packets come
    /// from [`pass_opened`](Self::pass_opened), at the latest after [`work`](Self::work). Packets that are not ESP, and
    /// reasons of immediate drops, are in `opened`.
    pub fn submit_open(
        &mut self,
        mem: &Memory,
        now: Instant,
        mut pkt: Packet,
        info: &Info,
        opened: &mut Opened,
        counters: &mut Counters,
    ) {
        if self.crypto.is_open_full() {
            counters.count(Mib::XfrmInError);
            opened.drops.push(DropReason::CryptoQueueFull);
            self.esp_drops.arrived(DropReason::CryptoQueueFull, info, &[], &pkt.meta);
            return;
        }
        let payload_at = match esp_at(mem, &mut pkt, info) {
            Ok(at) => at,
            Err(reason) => {
                self.esp_drops.arrived(reason, info, &[], &pkt.meta);
                return refuse_headers(reason, opened, counters);
            }
        };
        let is_udp = info.protocol == Protocol::UDP;
        let len = pkt.len() - payload_at;
        match pkt.meta.cut.gso() {
            Some(gso) if usize::from(gso.size) < len => {
                let (size, id_step) = (usize::from(gso.size).max(1), u16::from(!gso.fixed_id));
                self.submit_train(mem, now, pkt, info, payload_at, (size, id_step), opened, counters);
            }
            _ => self.submit_one(mem, now, pkt, info, payload_at, is_udp, opened, counters),
        }
        self.crypto.close_if_large(now, false);
    }

    /// Tells whether decrypted packets wait to be [passed on](Self::pass_opened).
    #[inline]
    pub fn has_opened(&self) -> bool {
        self.crypto.passing.is_some() || self.crypto.opening.has_first()
    }

    /// Hands in the open batch if this thread decrypts it and can pass its packets on at once.
    #[inline]
    pub fn close_here(&mut self, now: Instant) -> bool {
        let closes = self.crypto.is_inline() && self.crypto.batcher.latest().is_some_and(|job| job.may_be_template);
        if closes {
            self.crypto.close(now);
        }
        closes
    }

    /// Invalidates the receive templates. The caller does so when their assumptions may have changed: whose packets
    /// these are, the link that they arrive by, or SAs and policies (see [`generation`](Self::generation)).
    pub fn invalidate_templates(&mut self) {
        self.crypto.invalidate_templates();
    }

    /// Submits a packet that is no train.
    #[allow(clippy::too_many_arguments, reason = "cores get their state and the packet as parameters")]
    #[inline]
    fn submit_one(
        &mut self,
        mem: &Memory,
        now: Instant,
        mut pkt: Packet,
        info: &Info,
        payload_at: usize,
        is_udp: bool,
        opened: &mut Opened,
        counters: &mut Counters,
    ) {
        let len = pkt.len() - payload_at;
        let mut front = [0; PEEK];
        let front = &mut front[..len.min(PEEK)];
        pkt.read_at(payload_at, front);
        match if is_udp { kind(&front[..len.min(ENCAP_PEEK)]) } else { Kind::Esp } {
            Kind::Esp => {}
            Kind::Keepalive => return opened.keepalives += 1,
            Kind::NotEsp => {
                pkt.meta.cut = Cut::Whole;
                return opened.not_esp.push(pkt);
            }
        }
        if !pkt.is_linear() || pkt.head_mut().is_none() {
            return self.submit_train(mem, now, pkt, info, payload_at, (len.max(1), 0), opened, counters);
        }
        let arrival = Arrival { now, info, headers: &pkt.head()[..payload_at], meta: &pkt.meta, is_udp };
        match arrival.find(&mut self.sad, None, front, len) {
            Ok((id, seq)) => {
                arrival.join_or_begin(self, id).push(len, seq, info.id);
                let job = self.crypto.batcher.latest_mut().expect("just joined");
                job.trace_last(pkt.meta.trace);
                job.push_buf(pkt.into_head(), payload_at);
            }
            Err(NotHere::Elsewhere(owner)) => opened.elsewhere.push((owner, pkt)),
            Err(NotHere::Refused((mib, reason))) => {
                self.esp_drops.arrived(reason, info, front, &pkt.meta);
                counters.count(mib);
                opened.drops.push(reason);
            }
        }
    }

    /// Gives `sink` decrypted packets, in the order of their submission, until the first that is in flight, or `sink`
    /// breaks off.
    #[inline]
    pub fn pass_opened<T: DecryptSink>(
        &mut self,
        mem: &Memory,
        now: Instant,
        counters: &mut Counters,
        sink: &mut T,
    ) -> ControlFlow<T::Break> {
        let Self { sad, crypto, nat, esp_drops, .. } = self;
        loop {
            let Some(job) = &mut crypto.passing else {
                let Some(job) = crypto.opening.pop() else { return ControlFlow::Continue(()) };
                job.begin_passing();
                crypto.passing = Some(job);
                continue;
            };
            while let Some(piece) = pass_plain(sad, job, mem, now, sink)? {
                let trace = piece.trace;
                let passed = pass(sad, &mut nat.seen, job, piece, mem, now);
                if !nat.seen.is_empty() {
                    nat.follow_peers(sad);
                }
                match passed {
                    Ok(content) => sink.take(Decrypted::Packet(content))?,
                    Err((mib, reason)) => {
                        counters.count(mib);
                        esp_drops.opened(reason, job, trace);
                        sink.take(Decrypted::Dropped(reason, job.outer.meta.origin.get()))?;
                    }
                }
            }
            if let Some(done) = crypto.passing.take() {
                if done.is_offloaded {
                    sad.advance_esn(done.sa);
                }
                crypto.keep(done);
            }
        }
    }
}

/// Counts a packet whose headers are too short or malformed for ESP.
fn refuse_headers(reason: DropReason, opened: &mut Opened, counters: &mut Counters) {
    counters.count(Mib::XfrmInHdrError);
    opened.drops.push(reason);
}

/// Finds the start of ESP or of the UDP payload, and trims bytes past the packet's end.
#[inline]
fn esp_at(mem: &Memory, pkt: &mut Packet, info: &Info) -> Result<usize, DropReason> {
    //= RFC 4303 §3.4.1 reassembly-first: fragmented ESP is reassembled first: a fragment is not decrypted
    if info.fragment.is_some() {
        return Err(DropReason::FragmentNotReassembled);
    }
    match info.protocol {
        Protocol::ESP => Ok(info.header_len),
        Protocol::UDP => {
            let payload_at = info.header_len + udp::UdpHeader::LEN;
            if !pkt.may_pull(mem, payload_at)? {
                return Err(DropReason::TransportHeader);
            }
            let udp = udp::Udp::parse_head(info.payload(pkt.head()), info.payload_len())?;
            pkt.trim(payload_at + udp.payload_len());
            Ok(payload_at)
        }
        _ => Err(DropReason::ProtocolUnknown),
    }
}

/// Tells whether a UDP payload is ESP; `front` is its first bytes, up to [`ENCAP_PEEK`] (RFC 3948 §2.2).
#[must_use]
#[inline]
pub fn is_esp_in_udp(front: &[u8]) -> bool {
    matches!(kind(front), Kind::Esp)
}

/// Kind of a UDP payload with the first bytes `front`, up to [`ENCAP_PEEK`] of them (Linux `__xfrm4_udp_encap_rcv`).
fn kind(front: &[u8]) -> Kind {
    match front {
        [0xff] => Kind::Keepalive,
        [0, 0, 0, 0, ..] => Kind::NotEsp,
        _ if front.len() <= EspHeader::LEN => Kind::NotEsp,
        _ => Kind::Esp,
    }
}
