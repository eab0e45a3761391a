//! Packets of ESP that follow each other, of one SA and behind equal headers: what was found out about the first is true of
//! all of them.

use std::ops::ControlFlow;
use std::vec::Drain;

use base::{Counters, Instant};
use packet::{Memory, Packet};
use wire::Version;

use super::{Content, Inner, accept, refuse};
use crate::gateway::Ipsec;

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
    /// Tells whether a packet, whose IP header begins at `l3`, goes on where the one before it ended: raw ESP of the same
    /// SA, behind equal headers.
    #[inline]
    pub fn goes_on_with(&self, pkt: &Packet, l3: usize) -> bool {
        self.crypto.like_last().is_some_and(|job| job.goes_on_with(pkt, l3))
    }

    /// Opens the packets at the front of `burst` that [go on](Self::goes_on_with) where the one before them ended, and
    /// gives `each` what is inside, until it breaks off; what is for crypto threads comes from
    /// [`pass_opened`](Self::pass_opened). `l3` says where a packet's IP header begins, if it may be one of them. `None`
    /// if there is none.
    #[inline]
    pub fn open_run<T>(
        &mut self,
        mem: &Memory,
        now: Instant,
        burst: &mut Drain<'_, Packet>,
        l3: impl Fn(&Packet) -> Option<usize>,
        counters: &mut Counters,
        mut each: impl FnMut(Inner<'_>) -> ControlFlow<T>,
    ) -> Option<Run<T>> {
        let Self { sad, crypto, nat, .. } = self;
        let collects = crypto.collecting.is_some();
        let job = crypto.like_last_mut()?;
        let mut run = Run { packets: 0, version: job.outer.info.version(), broken: None };
        while let Some(pkt) = burst.as_slice().first()
            && let Some(l3) = l3(pkt).filter(|&l3| job.goes_on_with(pkt, l3))
            && let Some((id, seq, len)) = job.read(pkt, l3)
            && let Some(sa) = sad.get_mut(job.sa).filter(|sa| sa.is_at_ease())
        {
            let admitted = sa.replay.check(seq).map_err(|why| refuse(sa, why));
            let at = l3 + job.outer.headers.len();
            let Some(buf) = burst.next().map(Packet::into_head) else { break };
            run.packets += 1;
            let passed = match admitted {
                Ok(seq) if collects => {
                    job.push(len, seq, id);
                    job.push_buf(buf, at);
                    if job.is_task() { break } else { continue }
                }
                Ok(seq) => {
                    let piece = job.open_now(buf, at, seq, id);
                    accept(sa, &mut nat.seen, job, piece, mem, now)
                }
                Err(refused) => Err(refused),
            };
            let inner = match passed {
                Ok(()) => Inner::Content(Content { job }),
                Err((mib, reason)) => {
                    counters.count(mib);
                    Inner::Dropped(reason, job.outer.meta.link)
                }
            };
            if let ControlFlow::Break(with) = each(inner) {
                run.broken = Some(with);
                break;
            }
        }
        crypto.close_if_large(now);
        (run.packets > 0).then_some(run)
    }
}
