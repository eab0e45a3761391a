//! Larval SAs: acquired by packets or by a reserved SPI, and packets held for them.

use std::net::IpAddr;
use std::time::Duration;

use crate::common::{HERE, Pair, THERE, mask, sa, udp_packet};
use base::{Counters, DropReason, Instant, Mib, PortId};
use ipsec::{Acquire, Decision, Event, Ipsec, Released, SpiRequest};
use packet::{Memory, Packet};
use wire::{FlowKey, Protocol, Spi, Version};
use xfrm::{
    Action, ConfigError, Dir, Flowi, Level, Lifetime, Limits, Mark, Mode, PolicyConfig, PortMask, SaConfig, SaDir,
    Selector, Template,
};

const fn at(millis: u64) -> Instant {
    Instant::from_nanos(millis * 1_000_000)
}

fn template() -> Template {
    let (src, dst) = (Some(HERE[0]), Some(THERE[0]));
    Template { src, dst, spi: None, mode: Mode::Tunnel, reqid: 1, level: Level::Required }
}

/// A node that needs a missing SA.
fn node(listens: bool) -> Ipsec {
    let mut node = Ipsec::new();
    let any = Selector::new(base::Prefix::ANY_V4, base::Prefix::ANY_V4);
    node.add_policy(PolicyConfig { templates: vec![template()], ..PolicyConfig::new(Dir::Out, any) }).unwrap();
    node.set_listener(listens);
    node.handle_timeout(at(0), &mut Counters::default());
    node
}

fn flow(sport: u16) -> Flowi {
    let (src, dst) = ("10.1.0.1".parse().unwrap(), "10.2.0.1".parse().unwrap());
    let key = FlowKey { src, dst, protocol: Protocol::UDP, sport, dport: 53 };
    Flowi { link: Some(PortId(7)), ..key.into() }
}

fn acquires(node: &mut Ipsec) -> Vec<Acquire> {
    let events = node.take_events().map(|event| if let Event::Acquire(it) = event { it } else { panic!("{event:?}") });
    events.collect()
}

const NO_STATE: Decision = Decision::Drop(DropReason::PolicyNoState);

#[test]
fn no_acquire_without_a_listener() {
    let mut node = node(false);
    let mut counters = Counters::ZERO;
    for n in 1..=3 {
        assert_eq!(node.lookup(at(1), &flow(n), &mut counters), NO_STATE);
    }
    assert_eq!(counters, Counters::ZERO.with(Mib::XfrmOutNoStates, 3));
    assert!(node.sad().is_empty() && node.take_events().next().is_none());
}

#[test]
fn first_packet_sends_acquire_and_others_wait() {
    let mut node = node(true);
    let mut counters = Counters::ZERO;
    assert_eq!(node.lookup(at(1), &flow(1000), &mut counters), NO_STATE);
    let [acquire] = acquires(&mut node)[..] else { panic!("one acquire is sent") };
    let (src, dst): (IpAddr, IpAddr) = (flow(0).key.src, flow(0).key.dst);
    let selector = Selector {
        protocol: Some(Protocol::UDP),
        sport: PortMask::exactly(1000),
        dport: PortMask::exactly(53),
        dev: Some(PortId(7)),
        ..Selector::new(base::Prefix::host(src), base::Prefix::host(dst))
    };
    let want = Acquire {
        seq: acquire.seq,
        src: HERE[0],
        dst: THERE[0],
        template: template(),
        selector,
        policy: 9,
        mark: Mark::ANY,
        if_id: 0,
        cpu: None,
    };
    assert_eq!((acquire, acquire.seq != 0), (want, true));
    let larval = node.sad().larvae().next().unwrap();
    assert_eq!((larval.spi, larval.selector), (Spi(0), Some(selector)));
    for sport in [1000, 1001] {
        assert_eq!(node.lookup(at(2), &flow(sport), &mut counters), NO_STATE);
    }
    assert_eq!(counters, Counters::ZERO.with(Mib::XfrmOutNoStates, 3));
    assert!(acquires(&mut node).is_empty());
    // The answer replaces the larval SA.
    let id = node.add_sa(&SaConfig { acquire_seq: acquire.seq, ..sa() }, mask()).unwrap();
    assert_eq!((node.sad().larvae().count(), node.sad().len()), (0, 1));
    assert_eq!(node.lookup(at(3), &flow(1001), &mut counters), Decision::Protect([id].into_iter().collect()));
}

#[test]
fn acquire_answer_without_seq_is_matched_by_its_values() {
    for (answer, is_one) in [
        (sa(), true),
        (SaConfig { reqid: 2, ..sa() }, false),
        (SaConfig { mode: Mode::Transport, ..sa() }, false),
        (SaConfig { if_id: 3, ..sa() }, false),
        (SaConfig { mark: Mark::exactly(3), ..sa() }, false),
    ] {
        let mut node = node(true);
        node.lookup(at(1), &flow(1), &mut Counters::default());
        node.add_sa(&answer, mask()).unwrap();
        assert_eq!(node.sad().larvae().count(), usize::from(!is_one), "{answer:?}");
    }
}

#[test]
fn acquire_without_answer_is_repeated_after_its_timeout() {
    let mut node = node(true);
    for round in 0..3 {
        let start = at(round * 40_000);
        node.lookup(start, &flow(1), &mut Counters::default());
        assert_eq!(acquires(&mut node).len(), 1, "round {round}");
        assert_eq!(node.poll_timeout(), Some(start + Duration::from_secs(30)));
        node.handle_timeout(at(round * 40_000 + 29_999), &mut Counters::default());
        assert_eq!(node.sad().larvae().count(), 1);
        node.handle_timeout(at(round * 40_000 + 30_000), &mut Counters::default());
        let events: Vec<Event> = node.take_events().collect();
        let [Event::SaExpired(gone)] = &events[..] else { panic!("{events:?}") };
        assert_eq!((gone.hard, gone.spi, gone.dst, node.sad().larvae().count()), (true, Spi(0), THERE[0], 0));
    }
    node.set_acq_expires(Duration::from_secs(2));
    node.lookup(at(500_000), &flow(1), &mut Counters::default());
    assert_eq!(node.poll_timeout(), Some(at(502_000)));
}

#[test]
fn template_spi_in_use_by_another_sa_is_an_error() {
    let mut node = Ipsec::new();
    let any = Selector::new(base::Prefix::ANY_V4, base::Prefix::ANY_V4);
    let templates = vec![Template { spi: Some(sa().spi), ..template() }];
    node.add_policy(PolicyConfig { templates, ..PolicyConfig::new(Dir::Out, any) }).unwrap();
    node.set_listener(true);
    node.add_sa(&SaConfig { mode: Mode::Transport, ..sa() }, mask()).unwrap();
    let mut counters = Counters::ZERO;
    assert_eq!(node.lookup(at(1), &flow(1), &mut counters), NO_STATE);
    assert_eq!(counters, Counters::ZERO.with(Mib::XfrmOutPolError, 1));
    assert!(acquires(&mut node).is_empty());
}

/// A node whose policies, one for each mark of `marks`, require an SA with the SPI of [`sa`].
fn node_with_spi_in_template(marks: &[Mark]) -> Ipsec {
    let mut node = Ipsec::new();
    let any = Selector::new(base::Prefix::ANY_V4, base::Prefix::ANY_V4);
    for &mark in marks {
        let templates = vec![Template { spi: Some(sa().spi), ..template() }];
        node.add_policy(PolicyConfig { templates, mark, ..PolicyConfig::new(Dir::Out, any) }).unwrap();
    }
    node.set_listener(true);
    node
}

#[test]
fn template_with_spi_causes_one_acquire() {
    let mut node = node_with_spi_in_template(&[Mark::ANY]);
    let mut counters = Counters::ZERO;
    for sport in [1, 1, 2, 3] {
        assert_eq!(node.lookup(at(1), &flow(sport), &mut counters), NO_STATE);
    }
    assert_eq!(counters, Counters::ZERO.with(Mib::XfrmOutNoStates, 4));
    assert_eq!(acquires(&mut node)[..].iter().map(|it| it.template.spi).collect::<Vec<_>>(), [Some(sa().spi)]);
    assert_eq!(node.sad().larvae().map(|it| it.spi).collect::<Vec<_>>(), [sa().spi]);
    // No other request gets the SPI meanwhile, and only an update completes it (Linux `xfrm_state_add`).
    let (min, max) = (sa().spi.0, sa().spi.0);
    assert_eq!(promise(&mut node, at(1), &request(min, max), &mut || 0), Err(ConfigError::NoSpi));
    assert_eq!(node.add_sa(&sa(), mask()), Err(ConfigError::Exists));
    assert_eq!((node.sad().larvae().count(), node.sad().len()), (1, 0));
    let id = node.update_sa(&SaConfig { dir: Some(SaDir::Out), replay_window: 0, ..sa() }, mask()).unwrap();
    assert_eq!((node.sad().larvae().count(), node.sad().len()), (0, 1));
    assert_eq!(node.lookup(at(3), &flow(1), &mut counters), Decision::Protect([id].into_iter().collect()));
}

#[test]
fn acquire_is_matched_by_seq_with_another_spi() {
    let mut node = node_with_spi_in_template(&[Mark::ANY]);
    node.lookup(at(1), &flow(1), &mut Counters::default());
    let acquire_seq = acquires(&mut node)[0].seq;
    node.add_sa(&SaConfig { spi: Spi(0x2222), ..sa() }, mask()).unwrap();
    assert_eq!(node.sad().larvae().count(), 1);
    node.add_sa(&SaConfig { spi: Spi(0x3333), acquire_seq, ..sa() }, mask()).unwrap();
    assert_eq!(node.sad().larvae().count(), 0);
}

#[test]
fn requested_spi_is_used_for_its_template_only() {
    let mut node = node_with_spi_in_template(&[Mark::exactly(1), Mark::exactly(2)]);
    let mut counters = Counters::ZERO;
    for mark in [1, 2, 2, 1] {
        assert_eq!(node.lookup(at(1), &Flowi { mark, ..flow(1) }, &mut counters), NO_STATE);
    }
    let marks: Vec<Mark> = acquires(&mut node).iter().map(|it| it.mark).collect();
    assert_eq!(marks, [Mark::exactly(1), Mark::exactly(2)], "each policy acquires its own SA");
    // An acquire of another number requests the reserved SPI.
    let other = Selector::new("10.3.0.0/16".parse().unwrap(), base::Prefix::ANY_V4);
    let templates = vec![Template { spi: Some(sa().spi), reqid: 5, ..template() }];
    node.add_policy(PolicyConfig { templates, mark: Mark::exactly(2), ..PolicyConfig::new(Dir::Out, other) }).unwrap();
    let key = FlowKey { src: "10.3.0.1".parse().unwrap(), ..flow(1).key };
    let mut clash = Counters::ZERO;
    node.remove_policy(&PolicyConfig { mark: Mark::exactly(2), ..any_v4() }.key()).unwrap();
    assert_eq!(node.lookup(at(1), &Flowi { key, mark: 2, ..flow(1) }, &mut clash), NO_STATE);
    assert_eq!(clash, Counters::ZERO.with(Mib::XfrmOutPolError, 1));
    // An SA of one mark ends the larval state of that mark only.
    for mark in [1, 2] {
        node.update_sa(&SaConfig { mark: Mark::exactly(mark), ..sa() }, mask()).unwrap();
        assert_eq!(node.sad().larvae().count(), 2 - mark as usize);
    }
}

fn any_v4() -> PolicyConfig {
    PolicyConfig::new(Dir::Out, Selector::new(base::Prefix::ANY_V4, base::Prefix::ANY_V4))
}

#[test]
fn listener_without_acquires_still_gets_expiries() {
    let mut node = node(true);
    let lifetime =
        Lifetime { hard: Limits { added: Some(Duration::from_secs(1)), ..Limits::NONE }, ..Lifetime::default() };
    node.add_sa(&SaConfig { reqid: 9, lifetime, ..sa() }, mask()).unwrap();
    node.enable_acquires(false);
    node.set_listener(true);
    let mut counters = Counters::ZERO;
    assert_eq!(node.lookup(at(1), &flow(1), &mut counters), NO_STATE);
    assert_eq!(counters, Counters::ZERO.with(Mib::XfrmOutNoStates, 1));
    assert_eq!(node.sad().larvae().count(), 0);
    node.handle_timeout(at(1), &mut counters);
    node.handle_timeout(at(2000), &mut counters);
    let events: Vec<Event> = node.take_events().collect();
    let [Event::SaExpired(gone)] = &events[..] else { panic!("{events:?}") };
    assert_eq!((gone.spi, gone.hard), (sa().spi, true));
    node.enable_acquires(true);
    assert_eq!(node.lookup(at(2001), &flow(1), &mut counters), NO_STATE);
    assert_eq!(acquires(&mut node).len(), 1);
}

#[test]
fn lost_acquire_is_sent_again_by_the_next_packet() {
    let mut node = Ipsec::new();
    let any = Selector::new(base::Prefix::ANY_V4, base::Prefix::ANY_V4);
    let transport = Template { src: None, dst: None, mode: Mode::Transport, ..template() };
    node.add_policy(PolicyConfig { templates: vec![transport], ..PolicyConfig::new(Dir::Out, any) }).unwrap();
    node.set_listener(true);
    let to = |n: u32| Flowi { key: FlowKey { dst: IpAddr::V4((0x0a00_0000 + n).into()), ..flow(1).key }, ..flow(1) };
    for n in 1..=ipsec::MAX_EVENTS as u32 + 2 {
        assert_eq!(node.lookup(at(1), &to(n), &mut Counters::default()), NO_STATE);
    }
    assert_eq!((node.sad().larvae().count(), node.lost_events()), (ipsec::MAX_EVENTS, 2));
    assert_eq!(acquires(&mut node).len(), ipsec::MAX_EVENTS);
    let last = to(ipsec::MAX_EVENTS as u32 + 2);
    assert_eq!(node.lookup(at(2), &last, &mut Counters::default()), NO_STATE);
    assert_eq!(acquires(&mut node).iter().map(|it| it.dst).collect::<Vec<_>>(), [last.key.dst]);
}

fn request(min: u32, max: u32) -> SpiRequest {
    SpiRequest {
        src: HERE[0],
        dst: THERE[0],
        mode: Mode::Tunnel,
        reqid: 1,
        mark: Mark::ANY,
        if_id: 0,
        dir: Some(SaDir::In),
        cpu: None,
        seq: 0,
        min,
        max,
    }
}

/// The reserved SPI.
fn promise(
    node: &mut Ipsec,
    now: Instant,
    request: &SpiRequest,
    random: &mut dyn FnMut() -> u32,
) -> Result<Spi, ConfigError> {
    node.alloc_spi(now, request, random).map(|larval| larval.spi)
}

#[test]
fn spis_are_allocated_until_the_range_is_used_up() {
    let mut node = Ipsec::new();
    let mut state = 1_u32;
    let mut random = move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state
    };
    assert_eq!(promise(&mut node, at(0), &request(9, 8), &mut random), Err(ConfigError::SpiRange(9, 8)));
    assert_eq!(promise(&mut node, at(0), &request(0, 0), &mut random), Err(ConfigError::NoSpi), "0 is never chosen");
    assert_eq!(promise(&mut node, at(0), &request(7, 7), &mut random), Ok(Spi(7)));
    // Reserved for one destination, reserved for all.
    let elsewhere = SpiRequest { dst: HERE[0], ..request(7, 7) };
    assert_eq!(promise(&mut node, at(0), &elsewhere, &mut random), Err(ConfigError::NoSpi));
    node.add_sa(&SaConfig { spi: Spi(0x105), ..sa() }, mask()).unwrap();
    let mut got: Vec<u32> =
        (0..15).map(|_| promise(&mut node, at(0), &request(0x100, 0x10f), &mut random).unwrap().0).collect();
    assert_eq!(promise(&mut node, at(0), &request(0x100, 0x10f), &mut random), Err(ConfigError::NoSpi));
    assert!(got.windows(2).any(|pair| pair[0] > pair[1]), "at random: {got:x?}");
    got.push(0x105);
    got.sort_unstable();
    assert_eq!(got, (0x100..=0x10f).collect::<Vec<_>>());
    assert!(node.alloc_spi(at(0), &request(0, u32::MAX), &mut random).is_ok());
    node.handle_timeout(at(30_000), &mut Counters::default());
    assert_eq!(node.sad().larvae().count(), 0);
    assert_eq!(promise(&mut node, at(30_000), &request(7, 7), &mut random), Ok(Spi(7)), "free again");
}

#[test]
fn larval_sa_is_completed_by_update_and_not_by_add() {
    let mut pair = Pair::new(&SaConfig { spi: Spi(0x1001), ..sa() });
    pair.receiver = Ipsec::new();
    let config = SaConfig { spi: Spi(0x1001), dir: Some(SaDir::In), ..sa() };
    pair.receiver.alloc_spi(at(0), &request(0x1001, 0x1001), &mut || 5).unwrap();
    let wire = {
        let inner = Packet::with_data(&pair.mem, &udp_packet(Version::V4, 9)).unwrap();
        pair.seal(inner, ipsec::Train::None).remove(0)
    };
    assert_eq!(pair.refuse(&wire.to_vec()), [DropReason::EspState]);
    assert_eq!(pair.received, Counters::ZERO.with(Mib::XfrmAcquireError, 1));
    assert_eq!(pair.receiver.add_sa(&config, mask()), Err(ConfigError::Exists));
    let reversed = SaConfig { dir: Some(SaDir::Out), replay_window: 0, ..config.clone() };
    assert_eq!(pair.receiver.update_sa(&reversed, mask()), Err(ConfigError::DirReversed));
    pair.in_sa = pair.receiver.update_sa(&config, mask()).unwrap();
    assert_eq!((pair.receiver.sad().larvae().count(), pair.receiver.sad().len()), (0, 1));
    assert_eq!(pair.open(wire).len(), 1);
    // The larval SA is complete: it does not time out.
    pair.receiver.handle_timeout(at(60_000), &mut Counters::default());
    assert!(pair.receiver.sa(pair.in_sa).is_some());
}

#[test]
fn lost_sas_expire_when_they_are_asked_for_and_others_stay() {
    let mut node = node(true);
    for spi in [9, 7] {
        promise(&mut node, at(0), &request(spi, spi), &mut || 0).unwrap();
    }
    node.hold_lost();
    promise(&mut node, at(0), &request(8, 8), &mut || 0).unwrap();
    assert_eq!(node.take_events().count(), 0);
    node.expire_lost();
    let ended: Vec<(u32, bool, IpAddr)> = node
        .take_events()
        .map(|event| match event {
            Event::SaExpired(it) => (it.spi.0, it.hard, it.dst),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(ended, [(9, true, THERE[0]), (7, true, THERE[0])]);
    node.expire_lost();
    assert_eq!((node.take_events().count(), node.sad().larvae().map(|it| it.spi.0).collect::<Vec<_>>()), (0, vec![8]));
}

#[test]
fn acquired_sa_with_promised_spi_is_completed_by_an_update() {
    let mut node = node(true);
    node.lookup(at(1), &flow(1), &mut Counters::default());
    let seq = acquires(&mut node)[0].seq;
    let spi_request = SpiRequest { seq, dir: None, ..request(0x1001, 0x1001) };
    let larval = node.alloc_spi(at(1), &spi_request, &mut || 0).unwrap();
    assert_eq!((larval.seq, larval.spi), (seq, Spi(0x1001)));
    let config = SaConfig { spi: Spi(0x1001), dir: Some(SaDir::Out), replay_window: 0, ..sa() };
    assert_eq!(node.add_sa(&config, mask()), Err(ConfigError::Exists));
    node.update_sa(&config, mask()).unwrap();
    assert_eq!((node.sad().larvae().count(), node.sad().len()), (0, 1));
}

#[test]
fn an_update_of_an_sa_that_is_there_makes_no_second_one() {
    let mut node = node_with_spi_in_template(&[Mark::ANY]);
    let config = SaConfig { mark: Mark::exactly(1), ..sa() };
    let id = node.add_sa(&config, mask()).unwrap();
    // The policy is for other marks, and requires an SA with that very SPI.
    node.lookup(at(1), &flow(1), &mut Counters::default());
    assert_eq!(node.sad().larvae().map(|it| (it.spi, it.mark)).collect::<Vec<_>>(), [(sa().spi, Mark::ANY)]);
    assert_eq!(node.update_sa(&config, mask()), Ok(id));
    assert_eq!((node.sad().larvae().count(), node.sad().len()), (1, 1));
}

#[test]
fn acquire_is_matched_by_seq_only_with_equal_mark() {
    for (mark, is_one) in [(1, true), (2, false)] {
        let asking = || {
            let mut node = Ipsec::new();
            let templates = vec![template()];
            node.add_policy(PolicyConfig { templates, mark: Mark::exactly(1), ..any_v4() }).unwrap();
            node.set_listener(true);
            node.lookup(at(1), &Flowi { mark: 1, ..flow(1) }, &mut Counters::default());
            let seq = acquires(&mut node)[0].seq;
            (node, seq)
        };
        let mark = Mark::exactly(mark);
        let (mut node, acquire_seq) = asking();
        node.add_sa(&SaConfig { acquire_seq, mark, ..sa() }, mask()).unwrap();
        assert_eq!(node.sad().larvae().count(), usize::from(!is_one), "{mark:?}");
        let (mut node, seq) = asking();
        let given = node.alloc_spi(at(1), &SpiRequest { seq, mark, ..request(7, 7) }, &mut || 0).unwrap().seq;
        assert_eq!((given == seq, node.sad().larvae().count()), (is_one, 2 - usize::from(is_one)), "{mark:?}");
    }
}

fn packet(mem: &Memory, n: usize) -> Packet {
    Packet::with_data(mem, &udp_packet(Version::V4, n)).unwrap()
}

/// Queues packets, as a datapath does.
fn hold(node: &mut Ipsec, mem: &Memory, now: Instant, n: usize, counters: &mut Counters) -> Result<(), DropReason> {
    match node.lookup(now, &flow(1), counters) {
        Decision::Hold(policy) => node.hold(mem, now, policy, &flow(1), packet(mem, n)).map_err(|(_, reason)| reason),
        other => panic!("{other:?}"),
    }
}

#[test]
fn packets_that_are_held_leave_in_order_when_the_sa_is_there() {
    let mem = Memory::heap();
    let mut node = node(true);
    node.set_larval_drop(false);
    let mut counters = Counters::ZERO;
    for n in 0..=100 {
        assert_eq!(hold(&mut node, &mem, at(1), n, &mut counters), Ok(()), "packet {n}");
    }
    assert_eq!(hold(&mut node, &mem, at(1), 101, &mut counters), Err(DropReason::PolicyQueueFull));
    assert_eq!((node.held(), acquires(&mut node).len(), counters.clone()), (101, 1, Counters::ZERO));
    let Decision::Hold(policy) = node.lookup(at(1), &flow(1), &mut counters) else { panic!() };
    assert!(!node.release_if_ready(policy), "what they wait for is not there");
    // Looked up after 0.1 s, then after twice as long each time.
    for due in [101, 301, 701] {
        assert_eq!(node.poll_timeout(), Some(at(due)));
        node.handle_timeout(at(due), &mut counters);
        assert!(node.take_released().is_empty());
    }
    node.add_sa(&sa(), mask()).unwrap();
    node.handle_timeout(at(702), &mut counters);
    assert!(node.take_released().is_empty(), "not before it is looked up again");
    node.handle_timeout(at(1501), &mut counters);
    let lens: Vec<usize> = node
        .take_released()
        .into_iter()
        .map(|it| if let Released::Again(pkt, _) = it { pkt.len() - 28 } else { panic!("{it:?}") })
        .collect();
    assert_eq!((lens, node.held()), ((0..=100).collect(), 0));
    assert_eq!(counters, Counters::ZERO);
}

#[test]
fn packet_does_not_overtake_released_packets() {
    let mem = Memory::heap();
    let mut node = node(true);
    node.set_larval_drop(false);
    let mut counters = Counters::ZERO;
    hold(&mut node, &mem, at(1), 1, &mut counters).unwrap();
    let id = node.add_sa(&sa(), mask()).unwrap();
    // The SA exists, and one older packet still waits.
    let Decision::Hold(policy) = node.lookup(at(2), &flow(1), &mut counters) else { panic!() };
    assert!(node.release_if_ready(policy), "there is nothing to wait for");
    assert_eq!((node.take_released().len(), node.held(), node.release_if_ready(policy)), (1, 0, false));
    assert_eq!(node.lookup(at(2), &flow(1), &mut counters), Decision::Protect([id].into_iter().collect()));
    assert_eq!(counters, Counters::ZERO);
}

#[test]
fn packet_with_an_sa_does_not_wait_for_the_sa_of_another() {
    let mem = Memory::heap();
    let mut node = Ipsec::new();
    node.set_larval_drop(false);
    let any = Selector::new(base::Prefix::ANY_V4, base::Prefix::ANY_V4);
    let template = Template { src: None, dst: None, mode: Mode::Transport, ..template() };
    node.add_policy(PolicyConfig { templates: vec![template], ..PolicyConfig::new(Dir::Out, any) }).unwrap();
    let mut counters = Counters::ZERO;
    hold(&mut node, &mem, at(1), 1, &mut counters).unwrap();
    let other = Flowi { key: FlowKey { src: HERE[0], dst: THERE[0], ..flow(1).key }, ..flow(1) };
    let id = node.add_sa(&SaConfig { mode: Mode::Transport, ..sa() }, mask()).unwrap();
    assert_eq!(node.lookup(at(2), &other, &mut counters), Decision::Protect([id].into_iter().collect()));
    assert_eq!((node.held(), counters), (1, Counters::ZERO));
}

#[test]
fn each_held_packet_is_checked_by_itself() {
    let mem = Memory::heap();
    let mut node = node(true);
    node.set_larval_drop(false);
    let mut counters = Counters::ZERO;
    for sport in [1, 2] {
        let Decision::Hold(policy) = node.lookup(at(1), &flow(sport), &mut counters) else { panic!() };
        node.hold(&mem, at(1), policy, &flow(sport), packet(&mem, 1)).unwrap();
    }
    let any = Selector::new(base::Prefix::ANY_V4, base::Prefix::ANY_V4);
    let selector = Selector { protocol: Some(Protocol::UDP), sport: PortMask::exactly(1), ..any };
    let block = PolicyConfig { action: Action::Block, priority: 0, ..PolicyConfig::new(Dir::Out, selector) };
    let general = node.spd().iter().next().unwrap().config.clone();
    node.update_policy(PolicyConfig { priority: 9, ..general }).unwrap();
    node.add_policy(block).unwrap();
    node.handle_timeout(at(101), &mut counters);
    let released = node.take_released();
    assert!(matches!(released[..], [Released::Again(..), Released::Again(..)]), "{released:?}");
    assert_eq!(counters, Counters::ZERO);
    assert_eq!(node.lookup(at(101), &flow(1), &mut counters), Decision::Drop(DropReason::PolicyBlock));
    assert!(matches!(node.lookup(at(101), &flow(2), &mut counters), Decision::Hold(_)));
    assert_eq!(counters, Counters::ZERO.with(Mib::XfrmOutPolBlock, 1));
}

#[test]
fn packets_held_without_an_answer_are_dropped() {
    let mem = Memory::heap();
    let mut node = node(false);
    node.set_larval_drop(false);
    let mut counters = Counters::ZERO;
    hold(&mut node, &mem, at(0), 9, &mut counters).unwrap();
    let mut attempts = 0;
    while let Some(due) = node.poll_timeout() {
        node.handle_timeout(due, &mut counters);
        attempts += 1;
        for released in node.take_released() {
            assert!(matches!(released, Released::Dropped(_, DropReason::PolicyNoState)));
            assert_eq!((due, attempts), (at(204_700), 11), "0.1 s, doubled until it is a minute or more");
        }
    }
    assert_eq!(node.held(), 0);
    // They are dropped with their policy.
    hold(&mut node, &mem, at(0), 9, &mut counters).unwrap();
    let key = node.spd().iter().next().unwrap().config.key();
    node.remove_policy(&key).unwrap();
    assert_eq!((node.held(), node.take_released().len(), node.poll_timeout()), (0, 1, None));
}

#[test]
fn held_packets_are_bounded() {
    let mem = Memory::heap();
    let mut node = Ipsec::new();
    node.set_larval_drop(false);
    let mut held = 0;
    let mut refused = 0;
    for net in 0..20_u8 {
        let dst: base::Prefix = format!("10.{net}.0.0/16").parse().unwrap();
        let selector = Selector::new(base::Prefix::ANY_V4, dst);
        node.add_policy(PolicyConfig { templates: vec![template()], ..PolicyConfig::new(Dir::Out, selector) }).unwrap();
        let mut flow = flow(1);
        flow.key.dst = dst.addr();
        for _ in 0..101 {
            let Decision::Hold(policy) = node.lookup(at(0), &flow, &mut Counters::default()) else { panic!() };
            match node.hold(&mem, at(0), policy, &flow, packet(&mem, 1)) {
                Ok(()) => held += 1,
                Err(_) => refused += 1,
            }
        }
    }
    assert_eq!((held, held + refused), (ipsec::MAX_HELD, 2020));
    drop(node);
    assert_eq!((mem.small().in_use(), mem.large().in_use()), (0, 0));
}

#[test]
fn held_packets_are_bounded_by_their_truesize() {
    let mem = Memory::heap();
    let mut node = Ipsec::new();
    node.set_larval_drop(false);
    let net = |n: u8| -> base::Prefix { format!("10.{n}.0.0/16").parse().unwrap() };
    for n in 0..4 {
        let selector = Selector::new(base::Prefix::ANY_V4, net(n));
        node.add_policy(PolicyConfig { templates: vec![template()], ..PolicyConfig::new(Dir::Out, selector) }).unwrap();
    }
    // A page of 66 KiB each.
    let large = udp_packet(Version::V4, 1).len();
    let packet = || {
        let mut buf = mem.take(Memory::HEADROOM, 60_000).unwrap();
        buf.put(large).unwrap().copy_from_slice(&udp_packet(Version::V4, 1));
        Packet::from_buf(buf)
    };
    let hold = |node: &mut Ipsec, n: u8| {
        let mut flow = flow(1);
        flow.key.dst = net(n).addr();
        let Decision::Hold(policy) = node.lookup(at(0), &flow, &mut Counters::default()) else { panic!() };
        node.hold(&mem, at(0), policy, &flow, packet())
    };
    let fill = |node: &mut Ipsec| (0..400).filter(|n| hold(node, (n % 4) as u8).is_ok()).count();
    let held = fill(&mut node);
    let each = packet().truesize();
    assert_eq!(held, ipsec::MAX_HELD_BYTES / each, "packets of {each} bytes");
    let refused = hold(&mut node, 0).err().map(|(_, reason)| reason);
    assert_eq!(refused, Some(DropReason::PolicyQueueFull));
    // Packets that are dropped with their policy make room.
    let key = node.spd().iter().next().unwrap().config.key();
    node.remove_policy(&key).unwrap();
    let dropped = node.take_released().len();
    assert!(dropped > 20 && held - dropped == node.held());
    let again = (0..400).filter(|n| hold(&mut node, 1 + (n % 3) as u8).is_ok()).count();
    assert_eq!(again, dropped);
}
