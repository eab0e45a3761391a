//! Packets of ESP that follow each other, of one SA and behind equal headers: what was found out about the first is true of
//! all of them.

use std::ops::ControlFlow;
use std::vec::Drain;

use base::{Counters, Instant};
use packet::{Memory, Packet};
use wire::Version;

use super::{Inner, Taker, accept, refuse};
use crate::gateway::Ipsec;
use crate::open_job::Piece;

/// What a run was.
#[derive(Debug)]
pub struct Run<T> {
    /// How many packets there were in it.
    pub packets: u64,
    /// The version of their IP headers.
    pub version: Version,
    /// What it was broken off with, if it was.
    pub broken: Option<T>,
}

impl Ipsec {
    /// Opens the packets at the front of `burst` that go on where the one before them ended, and gives `taker` what
    /// is inside, until it breaks off; what is for crypto threads comes from [`pass_opened`](Self::pass_opened). They are raw
    /// ESP of the same SA, behind equal headers. `l3` says where a packet's IP header begins, if it may be one of them.
    /// `None` if there is none.
    #[inline]
    pub fn open_run<T: Taker>(
        &mut self,
        mem: &Memory,
        now: Instant,
        burst: &mut Drain<'_, Packet>,
        l3: impl Fn(&Packet) -> Option<usize>,
        counters: &mut Counters,
        taker: &mut T,
    ) -> Option<Run<T::Left>> {
        let Self { sad, crypto, nat, .. } = self;
        let collects = crypto.collecting.is_some();
        let job = crypto.like_last_mut()?;
        let sa = sad.get_mut(job.sa)?;
        let mut run = Run { packets: 0, version: job.outer.info.version(), broken: None };
        while sa.is_at_ease()
            && let Some(pkt) = burst.as_slice().first()
            && let Some(next) = l3(pkt).and_then(|l3| job.next_in_line(pkt, l3))
            && let Some(mut buf) = burst.next().map(Packet::into_head)
        {
            run.packets += 1;
            if let ([_, soon, ..], false) = (burst.as_slice(), collects) {
                soon.prefetch();
            }
            buf.pull(next.at);
            let passed = match sa.replay.check(next.seq) {
                Ok(seq) if collects => {
                    job.push(next.len, seq, next.id);
                    job.push_buf(buf, 0);
                    if job.is_task() { break } else { continue }
                }
                Ok(seq) => {
                    let state = job.open_now(&mut buf, seq);
                    if sa.passes_plainly(job, seq, state, buf.bytes(), now) {
                        if let ControlFlow::Break(with) = taker.take_plain(buf, &job.outer.meta) {
                            run.broken = Some(with);
                            break;
                        }
                        continue;
                    }
                    accept(sa, &mut nat.seen, job, Piece { seq, id: next.id, state, inside: buf }, mem, now)
                }
                Err(why) => Err(refuse(sa, why)),
            };
            let inner = match passed {
                Ok(content) => Inner::Content(content),
                Err((mib, reason)) => {
                    counters.count(mib);
                    Inner::Dropped(reason, job.outer.meta.link)
                }
            };
            if let ControlFlow::Break(with) = taker.take(inner) {
                run.broken = Some(with);
                break;
            }
        }
        crypto.close_if_large(now);
        (run.packets > 0).then_some(run)
    }
}
