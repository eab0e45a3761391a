//! Limits of SAs and policies: by use and by time, soft and hard.

use std::sync::Arc;
use std::time::Duration;

use crate::common::{HERE, Pair, THERE, fat, mask, sa, udp_packet};
use base::{Counters, DropReason, Instant, Mib, Prefix};
use ipsec::{Decision, Event, Ipsec, State, Train};
use packet::Packet;
use wire::{FlowKey, Spi, Version};
use xfrm::{Action, Dir, Level, Lifetime, Limits, Mode, PolicyConfig, Request, SaConfig, Selector, Template};

const fn at(millis: u64) -> Instant {
    Instant::from_nanos(millis * 1_000_000)
}

const fn secs(secs: u64) -> Option<Duration> {
    Some(Duration::from_secs(secs))
}

fn limits(bytes: u64, packets: u64) -> Limits {
    Limits { bytes, packets, ..Limits::NONE }
}

/// Advances the time, and returns the events: whether hard, and the SPI.
fn pass(node: &mut Ipsec, now: Instant) -> Vec<(bool, u32)> {
    let mut counters = Counters::ZERO;
    node.handle_timeout(now, &mut counters);
    assert_eq!(counters, Counters::ZERO);
    events(node)
}

fn events(node: &mut Ipsec) -> Vec<(bool, u32)> {
    let events = node.take_events().map(|event| match event {
        Event::SaExpired(it) => (it.hard, it.spi.0),
        Event::PolicyExpired(it) => (it.hard, it.index),
        other => panic!("{other:?}"),
    });
    events.collect()
}

/// Two nodes whose SA has these limits.
fn pair(soft: Limits, hard: Limits) -> Pair {
    let mut pair = Pair::new(&SaConfig { lifetime: Lifetime { soft, hard }, ..sa() });
    pair.sender.set_listener(true);
    pair.receiver.set_listener(true);
    pair
}

/// Sends a packet with `len` bytes inside, if the SA still may.
fn send(pair: &mut Pair, len: usize) -> Result<Packet, DropReason> {
    let inner = Packet::with_data(&pair.mem, &udp_packet(Version::V4, len)).unwrap();
    let mut out = Vec::new();
    pair.sender.seal(&pair.mem, at(1), pair.out_sa, inner, Train::None, 1500, &mut out, &mut pair.sent)?;
    Ok(out.remove(0))
}

//= test RFC 4301 §4.4.2.1 hard-limit
#[test]
fn packet_after_hard_limit_is_refused_and_soft_limit_told_once() {
    // 100 bytes inside each.
    let cases = [
        // (soft, hard, packets before the soft event, packets before the hard one)
        (limits(u64::MAX, 2), limits(u64::MAX, 4), 2, 4),
        (limits(200, u64::MAX), limits(400, u64::MAX), 2, 4),
        (limits(101, u64::MAX), limits(301, u64::MAX), 2, 4),
        (Limits::NONE, limits(300, 9), 99, 3),
        (limits(u64::MAX, 0), limits(u64::MAX, 1), 0, 1),
        (Limits::NONE, limits(0, u64::MAX), 99, 0),
    ];
    for (soft, hard, soft_after, sent) in cases {
        let mut pair = pair(soft, hard);
        for n in 0..sent {
            assert!(send(&mut pair, 72).is_ok(), "packet {n}: {soft:?} {hard:?}");
            let want = if n == soft_after { vec![(false, 0x1000)] } else { vec![] };
            assert_eq!(events(&mut pair.sender), want, "packet {n}: {soft:?} {hard:?}");
        }
        assert_eq!(pair.sent, Counters::ZERO);
        assert_eq!(send(&mut pair, 72).err(), Some(DropReason::EspExpired));
        let sa = pair.sender.sa(pair.out_sa).unwrap();
        assert_eq!((sa.state(), sa.stats().packets, sa.oseq()), (State::Expired, sent, sent));
        assert_eq!(send(&mut pair, 72).err(), Some(DropReason::EspState));
        let want = Counters::ZERO.with(Mib::XfrmOutStateExpired, 1).with(Mib::XfrmOutStateInvalid, 1);
        assert_eq!(pair.sent, want);
        assert_eq!((pair.sender.poll_timeout(), events(&mut pair.sender)), (Some(Instant::ZERO), vec![]));
        assert_eq!(pass(&mut pair.sender, at(2)), [(true, 0x1000)]);
        assert!(pair.sender.is_idle() && pair.sender.poll_timeout().is_none());
    }
}

//= test RFC 4301 §4.4.2.1 hard-limit
#[test]
fn received_packets_end_an_sa_at_the_exact_limit() {
    for train in [false, true] {
        let mut pair = pair(limits(u64::MAX, 1), limits(u64::MAX, 3));
        let mut sender = Pair::new(&sa());
        let wire: Vec<Packet> = (0..6)
            .map(|_| {
                let inner = Packet::with_data(&sender.mem, &udp_packet(Version::V4, 40)).unwrap();
                sender.seal(inner, Train::None).remove(0)
            })
            .collect();
        let mut opened = 0;
        if train {
            // Admitted together, and checked one by one.
            let Pair { mem, receiver, opened: out, received, .. } = &mut pair;
            for mut pkt in wire {
                let info = offload::ip_headers(mem, &mut pkt).unwrap();
                receiver.submit_open(mem, at(9), pkt, &info, out, received);
            }
            receiver.work(at(9));
            let std::ops::ControlFlow::Continue(()) = receiver.pass_opened(
                mem,
                at(9),
                received,
                &mut ipsec::FnSink(|inner: ipsec::Decrypted<'_>| {
                    opened += usize::from(!matches!(inner, ipsec::Decrypted::Dropped(..)));
                }),
            );
        } else {
            opened = wire.into_iter().map(|pkt| pair.open(pkt).len()).sum();
        }
        assert_eq!(opened, 3);
        let want = Counters::ZERO.with(Mib::XfrmInStateExpired, 1).with(Mib::XfrmInStateInvalid, 2);
        assert_eq!(pair.received, want, "as a train: {train}");
        assert_eq!(events(&mut pair.receiver), [(false, 0x1000)]);
        assert_eq!(pass(&mut pair.receiver, at(10)), [(true, 0x1000)]);
        assert!(pair.receiver.is_idle());
    }
}

#[test]
fn super_packet_is_sent_up_to_the_hard_limit() {
    let (bytes, csum, cut) = fat(Version::V4, true, 1000, 10_000);
    for (hard, sent) in [(limits(u64::MAX, 4), 4), (limits(3000, u64::MAX), 3), (limits(u64::MAX, 10), 10)] {
        let mut pair = pair(Limits::NONE, hard);
        let mut pkt = Packet::with_data(&pair.mem, &bytes).unwrap();
        (pkt.meta.csum, pkt.meta.cut) = (csum, cut);
        let mut out = Vec::new();
        let got = pair.sender.seal(&pair.mem, at(1), pair.out_sa, pkt, Train::None, 1500, &mut out, &mut pair.sent);
        assert_eq!(out.len(), sent, "{hard:?}");
        assert_eq!(got, if sent == 10 { Ok(()) } else { Err(DropReason::EspExpired) });
        assert_eq!(pair.sender.sa(pair.out_sa).unwrap().stats().packets, sent as u64);
        assert_eq!(pair.sent.get(Mib::XfrmOutStateExpired), u64::from(sent != 10));
    }
}

//= test RFC 4301 §4.4.2.1 hard-limit
#[test]
fn sa_ends_by_time_since_added_and_since_used() {
    let by = |added, used| Limits { added, used, ..Limits::NONE };
    let mut pair = pair(by(secs(10), None), by(secs(20), None));
    assert_eq!(pass(&mut pair.sender, at(1000)), []);
    let cases = [(10_999, vec![]), (11_000, vec![(false, 0x1000)]), (20_999, vec![]), (21_000, vec![(true, 0x1000)])];
    for (millis, want) in cases {
        assert_eq!(pass(&mut pair.sender, at(millis)), want, "at {millis} ms");
    }
    assert!(pair.sender.is_idle());

    let mut pair = self::pair(by(None, secs(1)), by(None, secs(2)));
    assert_eq!(pass(&mut pair.sender, at(1)), []);
    assert_eq!(pair.sender.poll_timeout(), None, "it was not used yet");
    send(&mut pair, 72).unwrap();
    assert_eq!(pair.sender.poll_timeout(), Some(at(1001)));
    assert_eq!(pass(&mut pair.sender, at(1001)), [(false, 0x1000)]);
    assert!(pair.sender.sa(pair.out_sa).unwrap().is_dying());
    send(&mut pair, 72).unwrap();
    assert_eq!(pass(&mut pair.sender, at(2000)), []);
    assert_eq!(pass(&mut pair.sender, at(2001)), [(true, 0x1000)]);
    let mut out = Vec::new();
    let inner = Packet::with_data(&pair.mem, &udp_packet(Version::V4, 9)).unwrap();
    let gone = pair.sender.seal(&pair.mem, at(3000), pair.out_sa, inner, Train::None, 1500, &mut out, &mut pair.sent);
    assert_eq!(gone, Err(DropReason::PolicyNoState));
    // All ones mean never (`XFRM_INF`), and so do zero seconds.
    let mut pair = self::pair(by(secs(u64::MAX), None), by(secs(u64::MAX), secs(u64::MAX)));
    assert_eq!((pass(&mut pair.sender, at(1)), pair.sender.poll_timeout()), (vec![], None));
}

#[test]
fn resumed_sa_ends_in_time_and_repeats_its_soft_expiry() {
    let after = |added| Limits { added: secs(added), ..Limits::NONE };
    let mut pair = Pair::new(&SaConfig { lifetime: Lifetime { soft: after(10), hard: after(60) }, ..sa() });
    let node = &mut pair.sender;
    node.resume_lifetime(pair.out_sa, at(1000), Some(at(2000)));
    assert_eq!(pass(node, at(20_000)), [], "there is no listener");
    let sa = node.sa(pair.out_sa).unwrap();
    assert_eq!((sa.is_dying(), sa.added(), sa.first_used()), (true, Some(at(1000)), Some(at(2000))));
    node.set_listener(true);
    for want in [&[(false, 0x1000)][..], &[]] {
        node.report_resumed();
        assert_eq!(events(node), want);
    }
    assert_eq!(node.poll_timeout(), Some(at(61_000)));
    assert_eq!(pass(node, at(61_000)), [(true, 0x1000)]);
}

#[test]
fn events_without_listener_are_not_kept_and_lost_ones_counted() {
    let mut node = Ipsec::new();
    let ends = Lifetime { hard: Limits { added: secs(1), ..Limits::NONE }, ..Lifetime::default() };
    let add = |node: &mut Ipsec| {
        for spi in 1..=ipsec::MAX_EVENTS as u32 + 3 {
            node.add_sa(&SaConfig { spi: Spi(spi), lifetime: ends, algorithm: xfrm::Algorithm::null(), ..sa() }, 0)
                .unwrap();
        }
    };
    add(&mut node);
    pass(&mut node, at(1));
    assert_eq!((pass(&mut node, at(2000)), node.lost_events()), (vec![], 0));
    add(&mut node);
    node.set_listener(true);
    pass(&mut node, at(2001));
    assert_eq!((pass(&mut node, at(4000)).len(), node.lost_events()), (ipsec::MAX_EVENTS, 3));
}

#[test]
fn policy_soft_expiry_is_repeated_until_hard_expiry() {
    let any = Selector::new(base::Prefix::ANY_V4, base::Prefix::ANY_V4);
    let soft = Limits { added: secs(10), bytes: 0, packets: 0, used: None };
    let hard = Limits { added: secs(90), bytes: 0, packets: 0, used: None };
    let block =
        PolicyConfig { action: Action::Block, lifetime: Lifetime { soft, hard }, ..PolicyConfig::new(Dir::Out, any) };
    let mut node = Ipsec::new();
    node.set_listener(true);
    node.add_policy(block).unwrap();
    pass(&mut node, at(0));
    let bytes = udp_packet(Version::V4, 9);
    let flow = FlowKey::parse(&bytes, bytes.len()).unwrap().into();
    for (second, want) in
        [(9, vec![]), (10, vec![(false, 9)]), (39, vec![]), (40, vec![(false, 9)]), (70, vec![(false, 9)])]
    {
        assert_eq!(pass(&mut node, at(second * 1000)), want, "at {second} s");
        let mut counters = Counters::ZERO;
        assert_eq!(node.lookup(at(second), &flow, &mut counters), Decision::Drop(DropReason::PolicyBlock));
    }
    assert_eq!(pass(&mut node, at(90_000)), [(true, 9)]);
    assert_eq!(node.lookup(at(90_000), &flow, &mut Counters::default()), Decision::Bypass);
    assert!(node.is_idle());

    // The time of use is that of the last use.
    let hard = Limits { used: secs(10), ..Limits::NONE };
    let idle = PolicyConfig { lifetime: Lifetime { hard, ..Lifetime::default() }, ..PolicyConfig::new(Dir::Out, any) };
    node.add_policy(idle).unwrap();
    pass(&mut node, at(100_000));
    node.lookup(at(105_000), &flow, &mut Counters::default());
    assert_eq!(pass(&mut node, at(114_999)), []);
    node.lookup(at(114_999), &flow, &mut Counters::default());
    assert_eq!(pass(&mut node, at(115_000)), []);
    assert_eq!(pass(&mut node, at(124_999)).len(), 1);
}

#[test]
fn a_new_sa_takes_over_from_a_dying_one_and_no_packet_is_lost() {
    let mut node = Ipsec::new();
    let template = Template {
        src: Some(HERE[0]),
        dst: Some(THERE[0]),
        spi: None,
        mode: Mode::Tunnel,
        reqid: 1,
        level: Level::Required,
    };
    let any = Selector::new(base::Prefix::ANY_V4, base::Prefix::ANY_V4);
    node.add_policy(PolicyConfig { templates: vec![template], ..PolicyConfig::new(Dir::Out, any) }).unwrap();
    let bytes = udp_packet(Version::V4, 9);
    let flow = FlowKey::parse(&bytes, bytes.len()).unwrap().into();
    let mut counters = Counters::ZERO;
    let mut used = |node: &mut Ipsec| match node.lookup(at(1), &flow, &mut counters) {
        Decision::Protect(bundle) => node.sa(bundle[0]).unwrap().spi().0,
        other => panic!("{other:?}"),
    };
    let soft = Limits { added: secs(1), ..Limits::NONE };
    let add = |node: &mut Ipsec, spi, soft| {
        let lifetime = Lifetime { soft, hard: Limits::NONE };
        node.add_sa(&SaConfig { spi: Spi(spi), lifetime, ..sa() }, mask()).unwrap()
    };
    add(&mut node, 1, Limits::NONE);
    assert_eq!(used(&mut node), 1);
    add(&mut node, 2, soft);
    assert_eq!(used(&mut node), 2, "the newest");
    pass(&mut node, at(0));
    pass(&mut node, at(1000));
    assert_eq!(used(&mut node), 1, "not one that is about to end");
    node.remove_sa(THERE[0], Spi(1), 0).unwrap();
    assert_eq!(used(&mut node), 2, "unless there is no other");
    add(&mut node, 3, soft);
    assert_eq!(used(&mut node), 3);
    node.remove_sa(THERE[0], Spi(2), 0).unwrap();
    assert_eq!(used(&mut node), 3);
    assert_eq!(counters, Counters::ZERO);
}

#[test]
fn an_update_renews_the_lifetime_and_can_end_it_at_once() {
    let mut pair = pair(limits(u64::MAX, 1), Limits::NONE);
    for _ in 0..2 {
        send(&mut pair, 72).unwrap();
    }
    assert!(pair.sender.sa(pair.out_sa).unwrap().is_dying());
    let longer = Lifetime { soft: limits(u64::MAX, 3), hard: limits(u64::MAX, 4) };
    pair.sender.update_sa(&SaConfig { lifetime: longer, ..sa() }, mask()).unwrap();
    assert!(!pair.sender.sa(pair.out_sa).unwrap().is_dying());
    events(&mut pair.sender);
    send(&mut pair, 72).unwrap();
    assert_eq!(events(&mut pair.sender), []);
    send(&mut pair, 72).unwrap();
    assert_eq!(events(&mut pair.sender), [(false, 0x1000)]);
    let over = Lifetime { soft: Limits::NONE, hard: limits(u64::MAX, 4) };
    pair.sender.update_sa(&SaConfig { lifetime: over, ..sa() }, mask()).unwrap();
    assert_eq!(send(&mut pair, 72).err(), Some(DropReason::EspExpired));
}

#[test]
fn request_is_kept_until_its_sa_or_policy_is_deleted() {
    let lifetime = Lifetime { hard: Limits { added: secs(60), ..Limits::NONE }, ..Lifetime::default() };
    for listening in [false, true] {
        let request = Arc::new("a request");
        let wrapped = || Some(Request::new(Arc::clone(&request)));
        let mut node = Ipsec::new();
        node.set_listener(listening);
        let id = node.add_sa(&SaConfig { lifetime, request: wrapped(), ..sa() }, mask()).unwrap();
        let selector = Selector::new(Prefix::ANY_V4, Prefix::ANY_V4);
        let policy = PolicyConfig { lifetime, request: wrapped(), ..PolicyConfig::new(Dir::Out, selector) };
        node.add_policy(policy).unwrap();
        assert_eq!(node.sa(id).unwrap().request::<Arc<&str>>(), Some(&request));
        assert_eq!(node.sa(id).unwrap().request::<u32>(), None);
        assert_eq!(Arc::strong_count(&request), 3);
        node.handle_timeout(at(0), &mut Counters::default());
        node.handle_timeout(at(61_000), &mut Counters::default());
        assert!(node.is_idle());
        let shown = node.take_events().filter(|event| {
            let request = match event {
                Event::SaExpired(it) => &it.request,
                Event::PolicyExpired(it) => &it.request,
                other => panic!("{other:?}"),
            };
            request.as_ref().is_some_and(|it| it.get::<Arc<&str>>().is_some())
        });
        assert_eq!(shown.count(), if listening { 2 } else { 0 });
        assert_eq!(Arc::strong_count(&request), 1);
    }
}
