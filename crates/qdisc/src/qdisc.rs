//! Queueing discipline of a link: enqueue, dequeue, counters.

use std::collections::VecDeque;

use base::Instant;

use crate::bucket::Buckets;
use crate::geometry::{Queued, Segmenter};
use crate::options::{Options, OptionsError};
use crate::stats::Stats;

/// Reason why a packet was not queued.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Refusal {
    /// The queue's limit is reached.
    Full,
    /// The packet, and each of its segments, exceeds the depth of the buckets.
    TooLong,
}

/// Refused packet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Dropped<T> {
    /// The packet.
    pub pkt: T,
    /// Reason.
    pub reason: Refusal,
}

/// Queueing discipline of one link.
#[derive(Debug)]
pub struct Qdisc<T> {
    options: Options,
    shaper: Option<Shaper>,
    queue: VecDeque<Entry<T>>,
    /// Bytes in `queue`, counted as on the wire.
    queued_bytes: u64,
    /// Counters, without `qlen` and `backlog`, which [`Qdisc::stats`] fills in.
    counted: Stats,
    /// Segments of the packet in segmentation; otherwise empty.
    segments: Vec<T>,
}

/// Queued packet, with its lengths at the time of queueing.
#[derive(Debug)]
struct Entry<T> {
    pkt: T,
    /// Bytes on the wire.
    len: u32,
    segs: u32,
}

impl<T: Queued> Entry<T> {
    fn new(pkt: T) -> Self {
        let geometry = pkt.geometry();
        Self { pkt, len: geometry.wire_len(), segs: geometry.segs.max(1) }
    }
}

/// State of a filter; a FIFO has none.
#[derive(Clone, Copy, Debug)]
struct Shaper {
    buckets: Buckets,
    /// Maximum length of a queued packet, in bytes.
    max_len: u32,
}

impl Shaper {
    /// Shaper with these options and full buckets; `None` for a FIFO.
    fn new(now: Instant, options: &Options) -> Result<Option<Self>, OptionsError> {
        let tbf = match options {
            Options::Pfifo { .. } | Options::Bfifo { .. } => return Ok(None),
            Options::Tbf(tbf) => tbf,
        };
        let (rate, peak, max_len) = tbf.buckets()?;
        Ok(Some(Self { buckets: Buckets::full(now, rate, peak), max_len }))
    }
}

impl<T: Queued> Qdisc<T> {
    /// Creates an empty discipline; the buckets of a filter are full.
    ///
    /// # Errors
    /// [`OptionsError`]: a filter's rates and depths contradict each other.
    pub fn new(now: Instant, options: Options) -> Result<Self, OptionsError> {
        Ok(Self {
            options,
            shaper: Shaper::new(now, &options)?,
            queue: VecDeque::new(),
            queued_bytes: 0,
            counted: Stats::default(),
            segments: Vec::new(),
        })
    }

    /// Current options.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Changes the options; the kind stays. Queued packets stay, also above a reduced limit; the buckets of a filter
    /// are full again, as in Linux.
    ///
    /// # Errors
    /// [`OptionsError`]; the discipline is unchanged.
    pub fn change(&mut self, now: Instant, options: Options) -> Result<(), OptionsError> {
        if options.kind() != self.options.kind() {
            return Err(OptionsError::KindMismatch);
        }
        self.shaper = Shaper::new(now, &options)?;
        self.options = options;
        Ok(())
    }

    /// Queues a packet, or segments it and queues the segments. Refused packets are counted and appended to `dropped`.
    pub fn enqueue(&mut self, pkt: T, segmenter: &mut impl Segmenter<T>, dropped: &mut Vec<Dropped<T>>) {
        let geometry = pkt.geometry();
        let max_len = self.shaper.map_or(u32::MAX, |shaper| shaper.max_len);
        if geometry.wire_len() > max_len && geometry.is_fat() && geometry.seg_len <= max_len {
            self.cut(pkt, max_len, segmenter, dropped);
        } else {
            self.push(Entry::new(pkt), max_len, dropped);
        }
    }

    /// Dequeues the next packet, if it may leave now. A packet that has to wait is counted as overlimit at each call.
    pub fn dequeue(&mut self, now: Instant) -> Option<T> {
        let len = self.queue.front()?.len;
        if let Some(shaper) = &mut self.shaper {
            if now < shaper.buckets.ready_at(len) {
                self.counted.overlimits += 1;
                return None;
            }
            shaper.buckets.take(now, len);
        }
        let Entry { pkt, len, segs } = self.queue.pop_front()?;
        self.queued_bytes -= u64::from(len);
        self.counted.bytes += u64::from(len);
        self.counted.packets += u64::from(segs);
        Some(pkt)
    }

    /// Earliest time at which [`Qdisc::dequeue`] returns a packet; `None` for an empty queue. May be in the past.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let len = self.queue.front()?.len;
        Some(self.shaper.map_or(Instant::ZERO, |shaper| shaper.buckets.ready_at(len)))
    }

    /// Counters, and the length of the queue.
    pub fn stats(&self) -> Stats {
        let qlen = u32::try_from(self.queue.len()).unwrap_or(u32::MAX);
        Stats { qlen, backlog: self.queued_bytes, ..self.counted }
    }

    /// Empties the queue, and fills the buckets of a filter (Linux `qdisc_reset`). Counters stay. Returns the queued
    /// packets, in order.
    pub fn reset(&mut self, now: Instant) -> impl Iterator<Item = T> + use<T> {
        if let Some(shaper) = &mut self.shaper {
            shaper.buckets.refill(now);
        }
        self.queued_bytes = 0;
        std::mem::take(&mut self.queue).into_iter().map(|entry| entry.pkt)
    }

    /// Segments a packet, and queues as many segments as the limit allows (Linux `tbf_segment`).
    fn cut(&mut self, fat: T, max_len: u32, segmenter: &mut impl Segmenter<T>, dropped: &mut Vec<Dropped<T>>) {
        let mut segments = std::mem::take(&mut self.segments);
        if segmenter.segment(fat, &mut segments).is_err() {
            self.counted.drops += 1;
        }
        for segment in segments.drain(..) {
            self.push(Entry::new(segment), max_len, dropped);
        }
        self.segments = segments;
    }

    /// Queues a packet of at most `max_len` bytes, if the limit allows it.
    fn push(&mut self, entry: Entry<T>, max_len: u32, dropped: &mut Vec<Dropped<T>>) {
        let bytes = self.queued_bytes + u64::from(entry.len);
        let has_room = match self.options {
            Options::Pfifo { limit } => self.queue.len() < limit as usize,
            Options::Bfifo { limit } => bytes <= u64::from(limit),
            Options::Tbf(tbf) => bytes <= u64::from(tbf.limit),
        };
        let reason = if entry.len > max_len {
            Refusal::TooLong
        } else if !has_room {
            Refusal::Full
        } else {
            self.queued_bytes = bytes;
            self.queue.push_back(entry);
            return;
        };
        self.counted.drops += 1;
        dropped.push(Dropped { pkt: entry.pkt, reason });
    }
}
