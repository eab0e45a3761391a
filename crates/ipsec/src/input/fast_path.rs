//! Fast path for a run of ESP packets of one SA behind equal headers: the receive template of the first applies to all.
//!
//! Input has three tiers. A packet that matches a receive template ([`OpenJob::match_next`]) skips the header checks
//! and, while its SA is far from its limits ([`Sa::may_skip_admission`]), admission. Before or after decryption it may
//! leave this tier. A decrypted packet that decapsulation would not change ([`OpenJob::is_noop_decap`]) skips
//! decapsulation and goes to [`DecryptSink::take_plain`]. All other packets take every step ([`accept`]).

use std::ops::ControlFlow;

use base::{Counters, Instant};
use packet::{Burst, Memory, Packet};
use wire::esp::EspHeader;
use wire::{Protocol, Spi, Version, ip};

use super::accept::accept;
use super::decrypted::{DecryptSink, Decrypted};
use super::refused::refuse;
use crate::crypto::queue::is_task;
use crate::ipsec::Ipsec;
use crate::open_job::{NextMatch, OpenJob, Piece};
use crate::replay::Replay;
use crate::sa::Sa;

/// Result of a run.
#[derive(Debug)]
pub struct RunSummary<T> {
    /// Number of packets in it.
    pub packets: u64,
    /// The version of their IP headers.
    pub version: Version,
    /// Value that the consumer broke off with, if it did.
    pub broken: Option<T>,
}

impl Ipsec {
    /// Opens the packets at the front of `burst` that match a receive template, and gives `sink` their contents, until
    /// it breaks off; packets for crypto threads come from [`pass_opened`](Self::pass_opened). The packets of a run are
    /// raw ESP of one SA, behind equal headers. `l3` returns the offset of a packet's IP header, if the packet
    /// qualifies. `None` without a match. [`invalidate_templates`](Self::invalidate_templates) invalidates the
    /// templates.
    #[inline]
    pub fn open_run<T: DecryptSink>(
        &mut self,
        mem: &Memory,
        now: Instant,
        burst: &mut Burst<'_>,
        l3: impl Fn(&Packet) -> Option<usize>,
        counters: &mut Counters,
        sink: &mut T,
    ) -> Option<RunSummary<T::Break>> {
        let Self { sad, crypto, nat, esp_drops, .. } = self;
        let first = burst.first()?;
        let spi = spi_of(first.head().get(l3(first)?..)?)?;
        if !crypto.opens_at_once(spi) {
            return self.collect_run(now, burst, l3, counters, sink);
        }
        let job = crypto.recent_mut(spi)?;
        let sa = sad.get_mut(job.sa)?;
        let mut run = RunSummary { packets: 0, version: job.outer.info.version(), broken: None };
        while let Some(next) = next_of(sa, job, burst, &l3) {
            burst.look_ahead();
            let Some(mut inside) = burst.next().map(Packet::into_head) else { break };
            run.packets += 1;
            let passed = match sa.replay.check(next.seq) {
                Ok(seq) => {
                    let state = job.open_now(&mut inside, next.at, seq);
                    if sa.pass_noop_decap(job, (seq, next.id, state), &mut inside, mem, now) {
                        if let ControlFlow::Break(with) = sink.take_plain(inside, &job.outer.meta) {
                            run.broken = Some(with);
                            break;
                        }
                        continue;
                    }
                    let piece = Piece { seq, id: next.id, trace: 0, state, inside };
                    accept(sa, &mut nat.seen, job, piece, mem, now)
                }
                Err(why) => Err(refuse(sa, why)),
            };
            let inner = match passed {
                Ok(content) => Decrypted::Packet(content),
                Err((mib, reason)) => {
                    counters.count(mib);
                    esp_drops.opened(reason, job, 0);
                    Decrypted::Dropped(reason, job.outer.meta.origin.get())
                }
            };
            if let ControlFlow::Break(with) = sink.take(inner) {
                run.broken = Some(with);
                break;
            }
        }
        (run.packets > 0).then_some(run)
    }

    /// As [`open_run`](Self::open_run), for packets that threads decrypt, or that come behind batched ones: they are
    /// batched.
    fn collect_run<T: DecryptSink>(
        &mut self,
        now: Instant,
        burst: &mut Burst<'_>,
        l3: impl Fn(&Packet) -> Option<usize>,
        counters: &mut Counters,
        sink: &mut T,
    ) -> Option<RunSummary<T::Break>> {
        let Self { sad, crypto, esp_drops, .. } = self;
        let spi_of = |pkt: &Packet| spi_of(pkt.head().get(l3(pkt)?..)?);
        let version = crypto.template_mut(spi_of(burst.first()?)?)?.outer.info.version();
        let mut run = RunSummary { packets: 0, version, broken: None };
        // A packet that finds the pool full is counted by the code that refuses it.
        while !crypto.is_open_full()
            && let Some(spi) = burst.first().and_then(spi_of)
            && let Some(job) = crypto.template_mut(spi).filter(|job| job.outer.info.version() == version)
            && let Some(sa) = sad.get_mut(job.sa)
            && let Some(next) = first_of(sa, job, burst, &l3)
        {
            let origin = job.outer.meta.origin.get();
            burst.look_ahead();
            let Some(buf) = burst.next().map(Packet::into_head) else { break };
            run.packets += 1;
            let refused = match sa.replay.check(next.seq) {
                Ok(seq) => {
                    let job = crypto.collect(now, spi);
                    job.push_whole(next, seq, buf);
                    grow(sa, job, burst, &l3, &mut run.packets)
                }
                Err(why) => Some(why),
            };
            if let Some(why) = refused {
                let (mib, reason) = refuse(sa, why);
                counters.count(mib);
                if let Some(job) = crypto.template_mut(spi) {
                    esp_drops.opened(reason, job, 0);
                }
                if let ControlFlow::Break(with) = sink.take(Decrypted::Dropped(reason, origin)) {
                    run.broken = Some(with);
                    break;
                }
            }
        }
        crypto.close_if_large(now, false);
        (run.packets > 0).then_some(run)
    }
}

/// The SPI of a packet with ESP right behind an IP header without options.
#[inline]
fn spi_of(packet: &[u8]) -> Option<Spi> {
    let esp_at = Version::of(packet).ok()?.header_len();
    let esp = packet.get(esp_at..).filter(|_| ip::plain_protocol(packet) == Some(Protocol::ESP))?;
    EspHeader::ref_from(esp).ok().map(EspHeader::spi)
}

/// Adds packets of `burst` to `job` while they match and the job is too small for a thread. Some: the last packet is
/// refused. Counts them.
#[inline]
fn grow(
    sa: &Sa,
    job: &mut OpenJob,
    burst: &mut Burst<'_>,
    l3: &impl Fn(&Packet) -> Option<usize>,
    packets: &mut u64,
) -> Option<Replay> {
    while !is_task(job)
        && let Some(next) = next_of(sa, job, burst, l3)
    {
        burst.look_ahead();
        let buf = burst.next()?.into_head();
        *packets += 1;
        match sa.replay.check(next.seq) {
            Ok(seq) => job.push_whole(next, seq, buf),
            Err(why) => return Some(why),
        }
    }
    None
}

/// As [`next_of`], outlined for the slow case.
#[inline(never)]
fn first_of(
    sa: &Sa,
    job: &mut OpenJob,
    burst: &Burst<'_>,
    l3: &impl Fn(&Packet) -> Option<usize>,
) -> Option<NextMatch> {
    next_of(sa, job, burst, l3)
}

/// Match of the packet at the front of a burst with `job`.
#[expect(clippy::inline_always, reason = "a call would write what it finds of a packet to memory")]
#[inline(always)]
fn next_of(sa: &Sa, job: &mut OpenJob, burst: &Burst<'_>, l3: &impl Fn(&Packet) -> Option<usize>) -> Option<NextMatch> {
    let pkt = burst.first().filter(|_| sa.may_skip_admission())?;
    job.match_next(pkt, l3(pkt)?)
}
