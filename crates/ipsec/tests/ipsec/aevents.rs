//! Reports of an SA's numbers while it is used.

use std::time::Duration;

use crate::common::{Pair, sa, udp_packet};
use base::{Counters, Instant};
use ipsec::{Aevent, Event, Ipsec, Train};
use packet::Packet;
use wire::Version;
use xfrm::{Aevents, SaConfig};

const fn at(millis: u64) -> Instant {
    Instant::from_nanos(millis * 1_000_000)
}

/// Advances the time, and returns the reports.
fn events(node: &mut Ipsec, now: Instant) -> Vec<Event> {
    node.handle_timeout(now, &mut Counters::default());
    node.take_events().collect()
}

#[test]
fn burst_is_reported_once_by_each_end() {
    let time = Some(Duration::from_millis(200));
    let mut pair = Pair::new(&SaConfig { aevents: Aevents { packets: None, time }, ..sa() });
    for node in [&mut pair.sender, &mut pair.receiver] {
        node.set_listener(true);
        assert_eq!(events(node, at(0)), []);
    }
    let carry = |pair: &mut Pair, packets| {
        for n in 0..packets {
            let inner = Packet::with_data(&pair.mem, &udp_packet(Version::V4, n)).unwrap();
            let sealed = pair.seal(inner, Train::None).remove(0);
            assert_eq!(pair.open(sealed).len(), 1);
        }
    };
    let (out_sa, in_sa) = (pair.out_sa, pair.in_sa);
    let event = |by_time| [out_sa, in_sa].map(|sa| Event::Numbers(Aevent { sa, by_time }));
    carry(&mut pair, 5);
    for node in [&mut pair.sender, &mut pair.receiver] {
        assert_eq!(events(node, at(1)), [], "no listener of numbers");
        node.enable_numbers(true);
    }
    // Two packets are the default limit.
    carry(&mut pair, 9);
    let both = |pair: &mut Pair, now| [events(&mut pair.sender, now), events(&mut pair.receiver, now)].concat();
    assert_eq!(both(&mut pair, at(2)), event(false));
    assert_eq!(both(&mut pair, at(3)), []);
    carry(&mut pair, 1);
    assert_eq!(both(&mut pair, at(4)), []);
    assert_eq!(pair.sender.poll_timeout(), Some(at(202)));
    assert_eq!(both(&mut pair, at(202)), event(true));
    assert_eq!(both(&mut pair, at(402)), [], "nothing has changed");
    assert_eq!(pair.sender.poll_timeout(), None);
    carry(&mut pair, 1);
    assert_eq!(both(&mut pair, at(900)), event(true), "a later change is reported at once");
}
