//! What comes out of ESP packets, as it is handed on.

use base::{DropReason, LinkId};
use packet::{Buf, Meta, Packet};

use crate::open_job::OpenJob;

/// What came out of one ESP packet.
#[derive(Debug)]
pub enum Inner<'a> {
    /// A packet.
    Content(Content<'a>),
    /// Nothing, of what came by that link. The counter is counted.
    Dropped(DropReason, LinkId),
}

/// A packet that was inside of ESP. It is dropped unless it is taken.
#[derive(Debug)]
pub struct Content<'a> {
    pub(super) job: &'a mut OpenJob,
}

impl Content<'_> {
    /// Its bytes, if they lie in one buffer, and what is known about it.
    #[inline]
    pub fn plain(&self) -> Option<(&[u8], &Meta)> {
        let OpenJob { outer, bufs, front, .. } = &*self.job;
        if front.is_some() {
            return None;
        }
        Some((bufs.last()?.bytes(), &outer.meta))
    }

    /// The buffer that all of it lies in, if it is [`plain`](Self::plain).
    ///
    /// # Panics
    /// When it is not.
    #[inline]
    pub fn into_buf(self) -> Buf {
        assert!(self.job.front.is_none(), "what lies in two buffers is taken for one");
        self.job.bufs.pop().expect("taken once")
    }

    /// As a packet.
    pub fn into_packet(self) -> Packet {
        let Self { job } = self;
        let front = job.front.take();
        let behind = job.bufs.pop().expect("taken once");
        let mut pkt = match front {
            None => Packet::from_buf(behind),
            Some(front) => {
                let mut pkt = Packet::from_buf(front);
                pkt.push_frag(behind).expect("the first slot");
                pkt
            }
        };
        pkt.meta = job.outer.meta.clone();
        pkt
    }
}
