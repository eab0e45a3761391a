//! Queueing disciplines: queues of packets in front of their link.
//!
//! A [`Qdisc`] is a queue with a limit, of one of three kinds ([`Options`]):
//!
//! | kind | limit | packets leave |
//! |---|---|---|
//! | `pfifo` | packets | at once |
//! | `bfifo` | bytes | at once |
//! | `tbf` | bytes | as one or two token buckets allow |
//!
//! Packets stay fat. A fat packet is one entry of the queue, and its length is that of all its segments on the wire, headers
//! included ([`Geometry::wire_len`]). Only `tbf` cuts, and only a packet that is longer than its buckets are deep while its
//! segments are not: the caller's [`Segmenter`] makes segments of it before they are queued.
//!
//! Disciplines see no more of packets than their [`Geometry`]. They read no clock: the time is a parameter of [`Qdisc::dequeue`], and
//! [`Qdisc::poll_timeout`] is the time at which the next packet may leave.
//!
//! Differences from Linux:
//!
//! - A packet that costs more than a full bucket waits until the bucket is full, and leaves the bucket negative. Such a packet was
//!   queued before a change of options, or costs more than its length (`mpu`). In Linux it stays at the head for ever, with
//!   all packets behind it.
//! - After a pause the bucket of the peak rate is filled for the whole pause. Linux fills both buckets for at most the time that fills
//!   the main one.
//! - A `tbf` without a rate is refused also when its burst is given in bytes. Linux sends 1 GB/s then.
//!
//! Tokens are whole nanoseconds, as in Linux, so a packet costs up to one nanosecond too little: full packets at 10 Gbit/s leave 0.02 % too
//! fast, packets of 154 bytes at 100 Gbit/s 3 %.
//!
//! Left to others: classes and filters; size tables (`stab`); the numbers and names that a discipline has in netlink.
//!
//! Follows Linux `sch_fifo.c`, `sch_tbf.c`, and `psched_l2t_ns` of `sch_generic.h`.
#![forbid(unsafe_code)]

mod bucket;
mod geometry;
mod options;
mod qdisc;
mod rate;
mod stats;

pub use geometry::{CannotSegment, Geometry, Queued, Segmenter};
pub use options::{Depth, Kind, Options, OptionsError, Peak, Tbf};
pub use qdisc::{Dropped, Qdisc, Refusal};
pub use rate::{LinkLayer, RateSpec};
pub use stats::Stats;
