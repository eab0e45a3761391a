//! Queueing disciplines: queues of packets in front of their link.
//!
//! # Decides
//! Order, rate and drops of queued packets. A [`Qdisc`] is a queue with a limit, of one of three kinds ([`Options`]):
//!
//! | kind | limit | packets leave |
//! |---|---|---|
//! | `pfifo` | packets | at once |
//! | `bfifo` | bytes | at once |
//! | `tbf` | bytes | as one or two token buckets allow |
//!
//! Packets stay fat. A fat packet is one entry of the queue, and its length is that of all its segments on the wire,
//! headers included ([`Geometry::wire_len`]). Only `tbf` cuts, and only a packet that is longer than its buckets are
//! deep while its segments are not.
//!
//! # Leaves to others
//! Packets: a discipline sees no more of them than their [`Geometry`], and the caller's [`Segmenter`] makes segments
//! (crate `datapath`, by crate `offload`). Time is a parameter of [`Qdisc::dequeue`], and [`Qdisc::poll_timeout`] is
//! the time at which the next packet may leave. Numbers and names that a discipline has in netlink are left to crate
//! `netlink`. No crate has classes and filters, or size tables (`stab`).
//!
//! # Limits
//! A queue holds as many packets or bytes as its [`Options`] say, at most 2^32 - 1. Tokens are whole nanoseconds, as in
//! Linux, so a packet costs up to one nanosecond too little: full packets at 10 Gbit/s leave 0.02 % too fast, packets
//! of 154 bytes at 100 Gbit/s 3 %.
//!
//! # Standards
//! No RFC. Follows Linux `sch_fifo.c`, `sch_tbf.c`, and `psched_l2t_ns` of `sch_generic.h`.
//!
//! # Differences from Linux
//! - A packet that costs more than a full bucket waits until the bucket is full, and leaves the bucket negative. Such a
//!   packet was queued before a change of options, or costs more than its length (`mpu`). In Linux it stays at the head
//!   for ever, with all packets behind it.
//! - After a pause the bucket of the peak rate is filled for the whole pause. Linux fills both buckets for at most the
//!   time that fills the main one.
//! - A `tbf` without a rate is refused also when its burst is given in bytes. Linux sends 1 GB/s then.
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
