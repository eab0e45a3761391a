//! FIFOs: limits, order, counters.

mod common;

use base::Instant;
use common::{Cutter, HEADER, Pkt};
use qdisc::{Dropped, Kind, Options, OptionsError, Qdisc, Refusal, Stats};

const NOW: Instant = Instant::ZERO;

fn fifo(options: Options) -> Qdisc<Pkt> {
    Qdisc::new(NOW, options).unwrap()
}

/// Queues packets of these payloads, numbered from 0, and returns the dropped ones.
fn enqueue(qdisc: &mut Qdisc<Pkt>, payloads: &[u32]) -> Vec<Dropped<Pkt>> {
    let mut dropped = Vec::new();
    for (number, &payload) in payloads.iter().enumerate() {
        qdisc.enqueue(Pkt::new(number as u64, payload), &mut Cutter::default(), &mut dropped);
    }
    dropped
}

fn full(number: u64, payload: u32) -> Dropped<Pkt> {
    Dropped { pkt: Pkt::new(number, payload), reason: Refusal::Full }
}

#[test]
fn pfifo_counts_a_fat_packet_as_one_of_its_limit() {
    let mut qdisc = fifo(Options::Pfifo { limit: 2 });
    assert_eq!(enqueue(&mut qdisc, &[100, 64_240, 100]), [full(2, 100)]);
    let fat = u64::from(64_240 + 44 * HEADER);
    assert_eq!(qdisc.stats(), Stats { drops: 1, qlen: 2, backlog: 154 + fat, ..Stats::default() });

    assert_eq!(qdisc.dequeue(NOW), Some(Pkt::new(0, 100)));
    assert_eq!(qdisc.dequeue(NOW), Some(Pkt::new(1, 64_240)));
    assert_eq!(qdisc.dequeue(NOW), None);
    assert_eq!(qdisc.stats(), Stats { bytes: 154 + fat, packets: 45, drops: 1, ..Stats::default() });
}

#[test]
fn bfifo_lets_in_as_many_bytes_as_its_limit() {
    // Two segments of 1514 bytes and a packet of 154.
    let payloads = [2920, 100];
    for (limit, want) in [
        (3182, vec![]),
        (3181, vec![full(1, 100)]),
        (3027, vec![full(0, 2920)]),
        (0, vec![full(0, 2920), full(1, 100)]),
    ] {
        assert_eq!(enqueue(&mut fifo(Options::Bfifo { limit }), &payloads), want, "limit {limit}");
    }
}

#[test]
fn fifo_without_room_for_one_packet_drops_all() {
    let mut qdisc = fifo(Options::Pfifo { limit: 0 });
    assert_eq!(enqueue(&mut qdisc, &[1, 1]).len(), 2);
    assert_eq!(qdisc.stats(), Stats { drops: 2, ..Stats::default() });
    assert_eq!(qdisc.poll_timeout(), None);
}

#[test]
fn lower_limit_keeps_the_packets_that_wait() {
    let mut qdisc = fifo(Options::Pfifo { limit: 10 });
    enqueue(&mut qdisc, &[1; 10]);
    qdisc.change(NOW, Options::Pfifo { limit: 3 }).unwrap();
    assert_eq!(qdisc.options(), &Options::Pfifo { limit: 3 });
    assert_eq!(enqueue(&mut qdisc, &[2]), [full(0, 2)]);
    let sent: Vec<u64> = std::iter::from_fn(|| qdisc.dequeue(NOW)).map(|pkt| pkt.number).collect();
    assert_eq!(sent, (0..10).collect::<Vec<_>>());
    assert_eq!(enqueue(&mut qdisc, &[1; 4]).len(), 1);
}

#[test]
fn options_of_another_kind_change_nothing() {
    let mut qdisc = fifo(Options::Pfifo { limit: 10 });
    enqueue(&mut qdisc, &[1]);
    assert_eq!(qdisc.change(NOW, Options::Bfifo { limit: 0 }), Err(OptionsError::KindMismatch));
    assert_eq!(qdisc.options().kind(), Kind::Pfifo);
    assert_eq!(qdisc.stats().qlen, 1);
}

#[test]
fn end_of_a_discipline_hands_out_its_packets_in_order() {
    let mut qdisc = fifo(Options::Pfifo { limit: 10 });
    enqueue(&mut qdisc, &[1, 2, 3]);
    assert_eq!(qdisc.reset(NOW).map(|pkt| pkt.number).collect::<Vec<_>>(), [0, 1, 2]);
}

#[test]
fn kinds_have_the_names_that_tc_writes() {
    assert_eq!(Kind::ALL.map(Kind::name), ["pfifo", "bfifo", "tbf"]);
}
