//! SAs of a node of several shards: each has one owner, and all shards have the same ones.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::common::{HERE, NAT_T, THERE, mask, sa, udp_packet};
use base::{Counters, DropReason, Instant, Prefix, ShardCount, ShardId, ShardPlace};
use ipsec::{Decision, Event, Ipsec, SharedChange, SpiRequest, Train};
use packet::{Memory, Packet};
use wire::{FlowKey, Protocol, Spi, Version};
use xfrm::{Dir, Flowi, Level, Lifetime, Limits, Mark, Mode, PolicyConfig, SaConfig, SaDir, Selector, Template};

const fn at(millis: u64) -> Instant {
    Instant::from_nanos(millis * 1_000_000)
}

const COUNT: ShardCount = ShardCount::new(3).unwrap();

/// The shards of a node, with a listener.
fn shards() -> Vec<Ipsec> {
    let shard = |id| {
        let mut ipsec = Ipsec::of_shard(ShardPlace { id, count: COUNT });
        ipsec.set_listener(true);
        ipsec
    };
    COUNT.all().map(shard).collect()
}

/// Makes a change in all shards.
fn all<T: std::fmt::Debug + PartialEq>(shards: &mut [Ipsec], mut change: impl FnMut(&mut Ipsec) -> T) -> T {
    let mut done: Vec<T> = shards.iter_mut().map(&mut change).collect();
    assert!(done.windows(2).all(|pair| pair[0] == pair[1]), "{done:?}");
    done.remove(0)
}

/// Makes the changes that shards have caused, in all of them; returns these.
fn follow(shards: &mut [Ipsec], now: Instant) -> Vec<SharedChange> {
    let changes: Vec<SharedChange> =
        shards.iter_mut().flat_map(|shard| shard.take_shared().collect::<Vec<_>>()).collect();
    for &change in &changes {
        shards.iter_mut().for_each(|shard| shard.follow(now, change));
    }
    changes
}

fn out(spi: u32) -> SaConfig {
    SaConfig { spi: Spi(spi), ..sa() }
}

/// An SA in the other direction.
fn back(spi: u32) -> SaConfig {
    SaConfig { src: THERE[0], dst: HERE[0], ..out(spi) }
}

fn flow(sport: u16) -> Flowi {
    let (src, dst) = ("10.1.0.1".parse().unwrap(), "10.2.0.1".parse().unwrap());
    FlowKey { src, dst, protocol: Protocol::UDP, sport, dport: 53 }.into()
}

fn policy() -> PolicyConfig {
    let template = Template {
        src: Some(HERE[0]),
        dst: Some(THERE[0]),
        spi: None,
        mode: Mode::Tunnel,
        reqid: 1,
        level: Level::Required,
    };
    let any = Selector::new(Prefix::ANY_V4, Prefix::ANY_V4);
    PolicyConfig { templates: vec![template], ..PolicyConfig::new(Dir::Out, any) }
}

fn larvae(shards: &mut [Ipsec]) -> Vec<(u32, Spi, Option<u32>)> {
    all(shards, |shard| {
        let mut larvae: Vec<_> = shard.sad().larvae().map(|larval| (larval.seq, larval.spi, larval.cpu)).collect();
        larvae.sort_unstable();
        larvae
    })
}

/// Numbers of the events of each shard.
fn events(shards: &mut [Ipsec]) -> Vec<usize> {
    shards.iter_mut().map(|shard| shard.take_events().count()).collect()
}

#[test]
fn owner_of_an_sa_is_chosen_by_direction_spi_and_cpu() {
    let by_spi = |spi| COUNT.owner_of_spi(spi);
    // SPIs of three owners.
    let spis: Vec<u32> = COUNT.all().map(|id| (0x100..).find(|&spi| by_spi(spi) == id).unwrap()).collect();
    let dir = |config: SaConfig, dir| SaConfig { dir: Some(dir), ..config };
    let sends = |config: SaConfig| SaConfig { dir: Some(SaDir::Out), replay_window: 0, ..config };
    let cpu = |config: SaConfig, cpu| SaConfig { cpu: Some(cpu), ..config };
    // (SAs before, the SA, its owner)
    let cases = [
        (vec![], out(spis[2]), 2),
        (vec![], dir(back(spis[1]), SaDir::In), 1),
        (vec![sends(out(spis[2]))], dir(back(spis[1]), SaDir::In), 1),
        (vec![back(spis[1])], out(spis[2]), 1),
        (vec![back(spis[1])], SaConfig { reqid: 0, ..out(spis[2]) }, 2),
        (vec![back(spis[1])], SaConfig { reqid: 2, ..out(spis[2]) }, 2),
        // The newest one, of those that do not send.
        (vec![back(spis[1]), back(spis[2])], sends(out(spis[0])), 2),
        (vec![back(spis[1]), sends(back(spis[2]))], sends(out(spis[0])), 1),
        (vec![back(spis[1])], cpu(out(spis[2]), 0), 0),
        (vec![back(spis[1])], cpu(out(spis[2]), 7), 1),
        (vec![], cpu(dir(back(spis[1]), SaDir::In), 2), 1),
    ];
    for (before, config, want) in cases {
        let mut shards = shards();
        for config in before.iter().chain([&config]) {
            all(&mut shards, |shard| shard.add_sa(config, 7).unwrap());
        }
        let owner = all(&mut shards, |shard| {
            let id = shard.sad().named(config.dst, config.spi, config.mark).unwrap();
            shard.sa(id).unwrap().owner()
        });
        assert_eq!(owner, ShardId(want), "{config:?} after {before:?}");
    }
}

#[test]
fn only_the_owner_seals_and_takes_a_number() {
    let (mut shards, mem) = (shards(), Memory::heap());
    let config = out(0x1000);
    let number = mask();
    let id = all(&mut shards, |shard| shard.add_sa(&config, number).unwrap());
    let owner = shards[0].sa(id).unwrap().owner();
    let mut sent = 0;
    for (at_shard, shard) in COUNT.all().zip(&mut shards) {
        let (mut sealed, mut counters) = (Vec::new(), Counters::ZERO);
        let pkt = Packet::with_data(&mem, &udp_packet(Version::V4, 20)).unwrap();
        let result = shard.seal(&mem, at(1), id, pkt, Train::None, 1500, &mut sealed, &mut counters);
        let is_owner = at_shard == owner;
        assert_eq!(result, if is_owner { Ok(()) } else { Err(DropReason::EspState) });
        let sa = shard.sa(id).unwrap();
        assert_eq!((sealed.len(), sa.oseq(), sa.stats().packets), if is_owner { (1, 1, 1) } else { (0, 0, 0) });
        assert_eq!(shard.owner_elsewhere(id), (!is_owner).then_some(owner));
        // All know what the MTU depends on.
        assert_eq!(sa.inner_mtu(1500), 1446, "{at_shard}");
        sent += sealed.len();
    }
    assert_eq!(sent, 1);
}

#[test]
fn missing_sa_is_requested_once_and_reported_by_the_first_shard() {
    let mut shards = shards();
    all(&mut shards, |shard| shard.add_policy(policy()).unwrap());
    let mut counters = Counters::ZERO;
    for shard in &mut shards[1..] {
        for sport in 1..4 {
            assert_eq!(shard.lookup(at(1), &flow(sport), &mut counters), Decision::Drop(DropReason::PolicyNoState));
        }
    }
    assert_eq!(larvae(&mut shards), []);
    let changes = follow(&mut shards, at(1));
    assert_eq!(changes.len(), 2, "each shard asks once: {changes:?}");
    assert_eq!((larvae(&mut shards).len(), events(&mut shards)), (1, vec![1, 0, 0]), "two shards ask for one SA");
    shards[1].lookup(at(2), &flow(9), &mut counters);
    assert_eq!(follow(&mut shards, at(2)), []);
    // It ends by the first shard's clock, in all shards.
    shards.iter_mut().for_each(|shard| shard.handle_timeout(at(31_000), &mut counters));
    assert_eq!((larvae(&mut shards).len(), follow(&mut shards, at(31_000)).len()), (1, 1));
    assert_eq!((larvae(&mut shards).len(), events(&mut shards)), (0, vec![1, 0, 0]));
    // An SA that was added before the request is known needs none.
    shards[2].lookup(at(32_000), &flow(1), &mut counters);
    all(&mut shards, |shard| shard.add_sa(&out(0x1000), 7).unwrap());
    assert_eq!(follow(&mut shards, at(32_000)).len(), 1);
    assert_eq!(larvae(&mut shards), []);
}

#[test]
fn request_without_a_place_for_its_event_is_taken_back() {
    let mut shards = shards();
    all(&mut shards, |shard| shard.add_policy(policy()).unwrap());
    shards[1].lookup(at(1), &flow(1), &mut Counters::default());
    shards[0].set_listener(false);
    assert_eq!(follow(&mut shards, at(1)).len(), 1);
    assert_eq!(larvae(&mut shards).len(), 1);
    let changes = follow(&mut shards, at(1));
    assert!(matches!(changes[..], [SharedChange::LarvalEnded { is_reported: false, .. }]), "{changes:?}");
    assert_eq!((larvae(&mut shards), events(&mut shards)), (vec![], vec![0; 3]));
}

#[test]
fn owner_ends_an_sa_and_all_shards_remove_it() {
    let after = |seconds| Some(Duration::from_secs(seconds));
    let lifetime =
        Lifetime { soft: Limits { added: after(5), ..Limits::NONE }, hard: Limits { added: after(9), ..Limits::NONE } };
    let mut shards = shards();
    let id = all(&mut shards, |shard| shard.add_sa(&SaConfig { lifetime, ..out(0x1000) }, 7).unwrap());
    let owner = usize::from(shards[0].sa(id).unwrap().owner().0);
    let pass = |shards: &mut [Ipsec], now| {
        shards.iter_mut().for_each(|shard| shard.handle_timeout(now, &mut Counters::default()));
        let changes = follow(shards, now);
        (changes, events(shards))
    };
    let by_owner = |n| (0..3).map(|shard| if shard == owner { n } else { 0 }).collect::<Vec<_>>();
    assert_eq!(pass(&mut shards, at(1)), (vec![], vec![0; 3]));
    assert_eq!(pass(&mut shards, at(5001)), (vec![SharedChange::SaDying { sa: id, renewals: 0 }], by_owner(1)));
    assert!(all(&mut shards, |shard| shard.sa(id).unwrap().is_dying()));
    assert_eq!(pass(&mut shards, at(9001)), (vec![SharedChange::SaEnded { sa: id }], by_owner(1)));
    assert!(all(&mut shards, |shard| shard.sa(id).is_none()));
    // The slot is given again in all shards alike.
    all(&mut shards, |shard| shard.add_sa(&out(0x1001), 7).unwrap());
}

#[test]
fn allocated_spis_are_of_each_shard_in_turn() {
    let mut shards = shards();
    let mut owners = BTreeMap::<ShardId, u32>::new();
    let request = |cpu, min, max| SpiRequest {
        src: THERE[0],
        dst: HERE[0],
        mode: Mode::Tunnel,
        reqid: 1,
        mark: Mark::ANY,
        if_id: 0,
        dir: None,
        cpu,
        seq: 0,
        min,
        max,
    };
    let alloc = |shards: &mut [Ipsec], request: &SpiRequest| {
        all(shards, |shard| {
            let mut state = 1_u32;
            let mut random = || {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                state
            };
            shard.alloc_spi(at(1), request, &mut random).unwrap().spi
        })
    };
    for n in 0..12 {
        let wanted = SpiRequest { reqid: n, ..request(None, 0x1_0000, 0xff_ffff) };
        let spi = alloc(&mut shards, &wanted);
        *owners.entry(COUNT.owner_of_spi(spi.0)).or_default() += 1;
        // The SA receives, though it does not say so, and another one sends to that end.
        let config = SaConfig { reqid: n, ..back(spi.0) };
        all(&mut shards, |shard| shard.update_sa(&config, 7).unwrap());
        let sa = shards[0].sad().named(config.dst, spi, Mark::ANY).and_then(|id| shards[0].sa(id)).unwrap();
        assert_eq!(sa.owner(), COUNT.owner_of_spi(spi.0));
    }
    assert_eq!(owners.into_values().collect::<Vec<_>>(), [4; 3]);
    for cpu in 0..3 {
        let wanted = SpiRequest { reqid: 50 + cpu, ..request(Some(cpu), 0x1_0000, 0xff_ffff) };
        assert_eq!(COUNT.owner_of_spi(alloc(&mut shards, &wanted).0), ShardId(cpu as u8));
    }
    // A range without one of the owner gives another one.
    assert_eq!(alloc(&mut shards, &SpiRequest { reqid: 99, ..request(None, 7, 7) }), Spi(7));
}

#[test]
fn shard_sends_by_the_sa_of_its_cpu_else_by_that_of_all() {
    let mut shards = shards();
    all(&mut shards, |shard| shard.add_policy(PolicyConfig { cpu_acquire: true, ..policy() }).unwrap());
    let mut counters = Counters::ZERO;
    let of_cpu = |spi, cpu| SaConfig { cpu: Some(cpu), ..out(spi) };
    // One of another CPU is never used: one for all is asked for.
    let second = all(&mut shards, |shard| shard.add_sa(&of_cpu(0x1001, 1), 7).unwrap());
    assert_eq!(shards[0].lookup(at(1), &flow(1), &mut counters), Decision::Drop(DropReason::PolicyNoState));
    follow(&mut shards, at(1));
    assert_eq!(larvae(&mut shards).iter().map(|&(.., cpu)| cpu).collect::<Vec<_>>(), [None]);
    let of_all = all(&mut shards, |shard| shard.add_sa(&out(0x1000), 7).unwrap());
    assert_eq!(larvae(&mut shards), []);
    let by = |id| Decision::Protect([id].into_iter().collect());
    let wants = [by(of_all), by(second), by(of_all)];
    for round in 0..3 {
        for (shard, want) in shards.iter_mut().zip(&wants) {
            assert_eq!(shard.lookup(at(2), &flow(round), &mut counters), *want);
        }
        follow(&mut shards, at(2));
        // Shards without one ask once, each with its number.
        let cpus: Vec<_> = larvae(&mut shards).iter().map(|&(.., cpu)| cpu).collect();
        assert_eq!(cpus, [Some(0), Some(2)], "round {round}");
    }
    let asked: Vec<_> = shards[0]
        .take_events()
        .filter_map(|it| if let Event::Acquire(it) = it { Some(it.cpu) } else { None })
        .collect();
    assert_eq!(asked, [None, Some(0), Some(2)]);
    let third = all(&mut shards, |shard| shard.add_sa(&of_cpu(0x1002, 2), 7).unwrap());
    assert_eq!(larvae(&mut shards).len(), 1, "the request is answered");
    assert_eq!(shards[2].lookup(at(3), &flow(1), &mut counters), by(third));
    // The number of a shard that does not exist is never this shard's.
    all(&mut shards, |shard| shard.add_sa(&of_cpu(0x1007, 7), 7).unwrap());
    assert_eq!(shards[0].lookup(at(3), &flow(1), &mut counters), by(of_all));
}

#[test]
fn policy_that_one_shard_uses_does_not_end_idle() {
    let used = Some(Duration::from_secs(10));
    let lifetime = Lifetime { hard: Limits { used, ..Limits::NONE }, ..Lifetime::default() };
    let mut shards = shards();
    all(&mut shards, |shard| shard.add_policy(PolicyConfig { lifetime, ..policy() }).unwrap());
    let mut counters = Counters::ZERO;
    for seconds in 0..30 {
        let now = at(seconds * 1000);
        shards.iter_mut().for_each(|shard| shard.handle_timeout(now, &mut counters));
        for sport in 0..3 {
            shards[1].lookup(now, &flow(sport), &mut counters);
        }
        follow(&mut shards, now);
        assert_eq!(all(&mut shards, |shard| shard.spd().len()), 1, "after {seconds} s");
    }
    events(&mut shards);
    let now = at(40_000);
    shards.iter_mut().for_each(|shard| shard.handle_timeout(now, &mut counters));
    assert_eq!(all(&mut shards, |shard| shard.spd().len()), 1, "before the change");
    let changes = follow(&mut shards, now);
    assert!(changes.iter().any(|it| matches!(it, SharedChange::PolicyEnded { .. })), "{changes:?}");
    assert_eq!(all(&mut shards, |shard| shard.spd().len()), 0);
    let ended: Vec<usize> = shards
        .iter_mut()
        .map(|shard| shard.take_events().filter(|it| matches!(it, Event::PolicyExpired(_))).count())
        .collect();
    assert_eq!(ended, [1, 0, 0]);
}

#[test]
fn policy_in_use_does_not_end_before_its_idle_time() {
    for limit in [1, 10] {
        let used = Some(Duration::from_secs(limit));
        let lifetime = Lifetime { hard: Limits { used, ..Limits::NONE }, ..Lifetime::default() };
        let mut shards = shards();
        all(&mut shards, |shard| shard.add_policy(PolicyConfig { lifetime, ..policy() }).unwrap());
        let mut counters = Counters::ZERO;
        let mut last = 0;
        // Uses by another shard, of which it tells one a second, until 900 ms after the last that it has told.
        for millis in (0..15_900).step_by(50) {
            let now = at(millis);
            shards.iter_mut().for_each(|shard| shard.handle_timeout(now, &mut counters));
            follow(&mut shards, now);
            shards[1].lookup(now, &flow(1), &mut counters);
            last = millis;
            follow(&mut shards, now);
        }
        for millis in (last..).step_by(50) {
            let now = at(millis);
            shards.iter_mut().for_each(|shard| shard.handle_timeout(now, &mut counters));
            follow(&mut shards, now);
            if all(&mut shards, |shard| shard.spd().len()) == 0 {
                let idle = millis - last;
                assert!((limit * 1000..=limit * 1000 + 1000).contains(&idle), "{limit} s: after {idle} ms");
                break;
            }
            assert!(millis < last + 20_000, "{limit} s: it does not end");
        }
    }
}

#[test]
fn spi_of_a_rekey_has_the_owner_of_the_old_one() {
    let mut shards = shards();
    let request = SpiRequest {
        src: THERE[0],
        dst: HERE[0],
        mode: Mode::Tunnel,
        reqid: 1,
        mark: Mark::ANY,
        if_id: 0,
        dir: Some(SaDir::In),
        cpu: None,
        seq: 0,
        min: 0x1_0000,
        max: 0xff_ffff,
    };
    for before in COUNT.all() {
        let old = (0x100..).find(|&spi| COUNT.owner_of_spi(spi) == before).unwrap();
        all(&mut shards, |shard| shard.add_sa(&SaConfig { dir: Some(SaDir::In), ..back(old) }, 7).unwrap());
        for round in 0..4_u32 {
            let spi = all(&mut shards, |shard| {
                let mut state = 77 + round;
                let mut random = || {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    state
                };
                shard.alloc_spi(at(1), &request, &mut random).unwrap().spi
            });
            assert_eq!(COUNT.owner_of_spi(spi.0), before);
            let sas =
                [SaConfig { dir: Some(SaDir::In), ..back(spi.0) }, out(0x5000 + u32::from(before.0) * 16 + round)];
            all(&mut shards, |shard| shard.update_sa(&sas[0], 7).unwrap());
            let id = all(&mut shards, |shard| shard.add_sa(&sas[1], 7).unwrap());
            assert_eq!(shards[0].sa(id).unwrap().owner(), before, "both directions, round {round}");
        }
    }
}

#[test]
fn request_of_one_cpu_stays_when_an_sa_for_all_answers_it() {
    let mut shards = shards();
    all(&mut shards, |shard| shard.add_policy(PolicyConfig { cpu_acquire: true, ..policy() }).unwrap());
    all(&mut shards, |shard| shard.add_sa(&out(0x1000), 7).unwrap());
    let mut counters = Counters::ZERO;
    shards[1].lookup(at(1), &flow(1), &mut counters);
    follow(&mut shards, at(1));
    let [(seq, _, Some(1))] = larvae(&mut shards)[..] else { panic!("one request") };
    for spi in 0x2000..0x2003 {
        let answer = SaConfig { acquire_seq: seq, ..out(spi) };
        all(&mut shards, |shard| shard.add_sa(&answer, 7).unwrap());
        shards[1].lookup(at(2), &flow(1), &mut counters);
        assert_eq!(follow(&mut shards, at(2)), [], "it asks once until the request ends");
    }
    all(&mut shards, |shard| shard.add_sa(&SaConfig { cpu: Some(1), acquire_seq: seq, ..out(0x2003) }, 7).unwrap());
    assert_eq!(larvae(&mut shards), []);
}

#[test]
fn first_packets_of_a_burst_to_several_peers_request_an_sa_each() {
    let mut shards = shards();
    let template =
        Template { src: None, dst: None, spi: None, mode: Mode::Transport, reqid: 1, level: Level::Required };
    all(&mut shards, |shard| shard.add_policy(PolicyConfig { templates: vec![template], ..policy() }).unwrap());
    for last in [1, 2, 3, 2, 1] {
        let key = FlowKey { dst: [10, 2, 0, last].into(), ..flow(1).key };
        shards[1].lookup(at(1), &key.into(), &mut Counters::default());
    }
    assert_eq!(follow(&mut shards, at(1)).len(), 3);
    assert_eq!((larvae(&mut shards).len(), events(&mut shards)), (3, vec![3, 0, 0]));
}

#[test]
fn soft_limit_that_was_replaced_meanwhile_does_not_count() {
    let lifetime = |soft| Lifetime {
        soft: Limits { added: Some(Duration::from_secs(soft)), ..Limits::NONE },
        ..Lifetime::default()
    };
    let mut shards = shards();
    let id = all(&mut shards, |shard| shard.add_sa(&SaConfig { lifetime: lifetime(5), ..out(0x1000) }, 7).unwrap());
    for now in [at(1), at(5001)] {
        shards.iter_mut().for_each(|shard| shard.handle_timeout(now, &mut Counters::default()));
    }
    all(&mut shards, |shard| shard.update_sa(&SaConfig { lifetime: lifetime(60), ..out(0x1000) }, 7).unwrap());
    assert_eq!(follow(&mut shards, at(5002)).len(), 1);
    assert!(!all(&mut shards, |shard| shard.sa(id).unwrap().is_dying()));
}

#[test]
fn moved_peer_is_followed_by_all_shards() {
    let mut shards = shards();
    let config = SaConfig { encap: NAT_T, ..out(0x1000) };
    let id = all(&mut shards, |shard| shard.add_sa(&config, 7).unwrap());
    let received = SaConfig { encap: NAT_T, ..back(0x2000) };
    let into = all(&mut shards, |shard| shard.add_sa(&received, 7).unwrap());
    let [old, new] = [4501, 7000].map(|port| std::net::SocketAddr::new(THERE[0], port));
    let mapping = ipsec::Mapping { sa: into, dst: HERE[0], spi: Spi(0x2000), reqid: 1, old, new, followed: true };
    shards.iter_mut().for_each(|shard| shard.follow(at(1), SharedChange::PeerMoved(mapping)));
    assert_eq!(all(&mut shards, |shard| shard.sa(id).unwrap().moved_to()), Some(new));
    // An SA that is gone meanwhile moves nothing.
    all(&mut shards, |shard| shard.remove_sa_of(into).is_some());
    shards.iter_mut().for_each(|shard| shard.follow(at(2), SharedChange::PeerMoved(mapping)));
}
