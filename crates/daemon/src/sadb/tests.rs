//! Tests of notifications to clients of `NETLINK_XFRM` about larval SAs, and about SAs that end.

use std::net::IpAddr;
use std::thread;
use std::time::Duration;

use base::{Counters, DropReason, Instant};
use config::Config;
use ipsec::{Decision, Opened, Train};
use netlink::error::errno;
use netlink::xfrm::convert;
use netlink::xfrm::layout::{Addr, LifetimeCfg, PolicyInfo, ReplayEsn, SaInfo, Selector, Tmpl};
use netlink::xfrm::nums::{group, mode, proto};
use netlink::xfrm::{Counts, Database, Event, NewSa, NewSpi, Policy, Replay, SaQuery};
use netlink::{Error, Groups};
use packet::Packet;
use wire::{FlowKey, Protocol};
use xfrm::{Aevents, Flowi, Mark, SaFlags};

use super::{Alone, WorkerSadb};
use crate::command::channels;
use crate::event_queue::KernelEvent;
use crate::node::Node;
use crate::records::wall_clock;
use crate::worker::{SharedWorker, Worker};

const INET: u16 = 2;

fn addr(last: u8) -> IpAddr {
    IpAddr::from([192, 0, 2, last])
}

/// The SA for which a key manager allocates an SPI.
fn info() -> SaInfo {
    SaInfo {
        daddr: addr(2).into(),
        saddr: addr(1).into(),
        proto: proto::ESP,
        family: INET,
        mode: mode::TUNNEL,
        ..SaInfo::default()
    }
}

/// A node whose policy requires an SA with that SPI for packets to 10.0.0.0/8.
fn node(spi: u32) -> Alone {
    let mut alone = Alone::new(true);
    add_policy(&mut alone, spi, NONE);
    alone
}

/// Adds a policy that requires an SA with that SPI, for packets with that mark.
fn add_policy(alone: &mut Alone, spi: u32, mark: Mark) {
    let sel = Selector {
        family: INET,
        prefixlen_d: 8,
        daddr: Addr::from(IpAddr::from([10, 0, 0, 0])),
        ..Selector::default()
    };
    let template = Tmpl {
        daddr: addr(2).into(),
        saddr: addr(1).into(),
        spi,
        proto: proto::ESP,
        family: INET,
        reqid: 7,
        mode: mode::TUNNEL,
        algos: [u32::MAX; 3],
        ..Tmpl::default()
    };
    let info = PolicyInfo { sel, lft: LifetimeCfg::INFINITE, dir: 1, ..PolicyInfo::default() };
    let policy = Policy { info, templates: vec![template], mark, ..Policy::default() };
    alone.database().add_policy(Box::new(policy), false).unwrap();
}

/// Sends a packet that has no SA, and returns the number of larval SAs afterwards.
fn send(alone: &mut Alone) -> usize {
    send_marked(alone, 0)
}

fn send_marked(alone: &mut Alone, mark: u32) -> usize {
    let key = FlowKey { src: addr(9), dst: IpAddr::from([10, 0, 0, 1]), protocol: Protocol::UDP, sport: 1, dport: 2 };
    let flow = Flowi { mark, ..key.into() };
    let ipsec = &mut alone.node().datapath.ipsec;
    let decision = ipsec.lookup(Instant::ZERO, &flow, &mut Counters::default());
    assert_eq!(decision, Decision::Drop(DropReason::PolicyNoState));
    ipsec.sad().larvae().count()
}

fn query(spi: u32, mark: Mark) -> SaQuery {
    SaQuery { daddr: addr(2).into(), spi: Ok(spi), family: INET, proto: proto::ESP, mark }
}

const NONE: Mark = Mark::ANY;

#[test]
fn acquires_go_to_their_group_only() {
    let mut alone = node(0);
    for (members, want) in
        [(&[][..], 0), (&[group::EXPIRE, group::MAPPING], 0), (&[group::SA], 0), (&[group::ACQUIRE], 1)]
    {
        let mut groups = Groups::default();
        members.iter().for_each(|&group| groups.set(group, true));
        alone.subscribe(groups);
        assert_eq!(send(&mut alone), want, "{members:?}");
    }
}

#[test]
fn acquire_has_the_spi_of_the_template() {
    let mut alone = node(0x1234);
    alone.listen(true);
    assert_eq!((send(&mut alone), send(&mut alone)), (1, 1));
    let events = alone.events();
    let [KernelEvent::Xfrm(Event::Acquire(acquire))] = &events[..] else { panic!("{events:?}") };
    assert_eq!((acquire.spi, acquire.policy.templates[0].spi), (0x1234, 0x1234));
    assert_eq!(alone.database().find_sa(&query(0x1234, NONE)).unwrap().info.reqid, 7);
}

/// A client's request for an SA with that SPI for the policy of [`node`].
fn sa(spi: u32) -> Box<NewSa> {
    let file = format!(
        "[[sa]]\nsrc = \"192.0.2.1\"\ndst = \"192.0.2.2\"\nspi = {spi}\nreqid = 7\nmode = \"tunnel\"\n\
         enc = \"ecb(cipher_null)\"\n"
    );
    Box::new(convert::new_sa(&Config::from_toml(&file, "f").unwrap().sas[0]))
}

#[test]
fn larval_sa_with_the_policys_spi_is_completed_by_an_update() {
    let mut alone = node(0x1234);
    alone.listen(true);
    assert_eq!(send(&mut alone), 1);
    alone.events();
    assert_eq!(alone.database().add_sa(sa(0x1234), false).unwrap_err(), Error::new(errno::EEXIST));
    alone.database().add_sa(sa(0x1234), true).unwrap();
    let sad = alone.node().datapath.ipsec.sad();
    assert_eq!((sad.len(), sad.larvae().count()), (1, 0));
}

#[test]
fn acquired_sa_has_no_name_until_it_has_an_spi() {
    let mut alone = node(0);
    alone.listen(true);
    assert_eq!(send(&mut alone), 1);
    let not_there = Error::new(errno::ESRCH);
    assert_eq!(alone.database().find_sa(&query(0, NONE)).unwrap_err(), not_there);
    assert_eq!(alone.database().remove_sa(&query(0, NONE)).unwrap_err(), not_there);
    assert_eq!(send(&mut alone), 1, "it is still to come");
}

#[test]
fn allocated_spi_is_found_and_freed_by_its_mark() {
    let mut alone = Alone::new(true);
    let mark = Mark { value: 5, mask: 0xff };
    let info = info();
    let request = NewSpi { info, min: 0x100, max: 0x100, mark, if_id: 0, dir: 1, cpu: None };
    assert_eq!(alone.database().alloc_spi(Box::new(request)).unwrap().info.spi, 0x100);
    for other in [NONE, Mark { value: 6, mask: 0xff }] {
        let database = alone.database();
        assert_eq!(database.find_sa(&query(0x100, other)).unwrap_err(), Error::new(errno::ESRCH));
        assert_eq!(database.remove_sa(&query(0x100, other)).unwrap_err(), Error::new(errno::ESRCH));
    }
    assert_eq!(alone.database().find_sa(&query(0x100, mark)).unwrap().mark, mark);
    assert_eq!(alone.database().remove_sa(&query(0x100, mark)).unwrap().info.spi, 0x100);
    assert!(alone.is_empty());
}

#[test]
fn alloc_spi_returns_the_larval_sa_of_its_seq() {
    // Each mark has a larval SA, and all of them get the same SPI.
    let mut alone = Alone::new(true);
    alone.listen(true);
    for value in 1..=8 {
        add_policy(&mut alone, 0x1234, Mark { value, mask: u32::MAX });
        assert_eq!(send_marked(&mut alone, value), value as usize);
    }
    for event in alone.events() {
        let KernelEvent::Xfrm(Event::Acquire(acquire)) = event else { panic!("{event:?}") };
        let info = SaInfo { seq: acquire.seq, ..info() };
        let request = NewSpi { info, min: 0x100, max: 0x1ff, mark: acquire.policy.mark, if_id: 0, dir: 0, cpu: None };
        let given = alone.database().alloc_spi(Box::new(request)).unwrap();
        assert_eq!((given.info.seq, given.info.spi, given.mark), (acquire.seq, 0x1234, acquire.policy.mark));
    }
}

#[test]
fn lost_sa_expires_for_a_key_manager_alone() {
    let mut alone = Alone::new(true);
    let request = NewSpi { info: info(), min: 0x100, max: 0x100, mark: NONE, if_id: 0, dir: 0, cpu: None };
    alone.database().alloc_spi(Box::new(request)).unwrap();
    alone.node().datapath.ipsec.hold_lost();
    let group = |groups: &[u32]| {
        groups.iter().fold(Groups::default(), |mut all, &group| {
            all.set(group, true);
            all
        })
    };
    for others in [&[group::EXPIRE][..], &[group::ACQUIRE], &[]] {
        alone.subscribe(group(others));
        assert!(alone.events().is_empty(), "{others:?}");
    }
    alone.subscribe(group(&[group::ACQUIRE, group::EXPIRE]));
    let events = alone.events();
    let [KernelEvent::Xfrm(Event::Expire { info, hard: true, .. })] = &events[..] else { panic!("{events:?}") };
    assert_eq!((info.spi, info.proto, info.daddr), (0x100, proto::ESP, self::info().daddr));
    assert!(alone.is_empty());
}

#[test]
fn larval_sa_cannot_be_expired() {
    let mut alone = node(0x1234);
    alone.listen(true);
    assert_eq!(send(&mut alone), 1);
    alone.events();
    for hard in [false, true] {
        let refused = alone.database().expire_sa(&query(0x1234, NONE), hard).unwrap_err();
        assert_eq!(refused, Error::text(errno::EINVAL, "SA must be in VALID state"), "{hard}");
    }
    assert!(alone.events().is_empty());
    assert_eq!(send(&mut alone), 1, "it is still to come");
}

#[test]
fn aevents_go_to_group_members_at_the_sas_thresholds() {
    let mut alone = Alone::new(true);
    let limits = Aevents { packets: Some(3), time: Some(Duration::from_millis(500)) };
    alone.database().add_sa(Box::new(NewSa { aevents: limits, ..*sa(0x1000) }), false).unwrap();
    // Sends `packets` packets, and returns the notifications: the last number sent, and whether the timer caused it.
    let send = |alone: &mut Alone, packets: u32, tenths: u32| {
        alone.let_pass(Duration::ZERO);
        let node = alone.node();
        let id = node.datapath.ipsec.sad().iter().next().unwrap().id();
        for _ in 0..packets {
            let mut inner = vec![0x45, 0, 0, 20, 0, 0, 0, 0, 64, 59, 0, 0, 10, 0, 0, 9, 10, 0, 0, 1];
            let sum = wire::checksum::finish(wire::checksum::sum(&inner));
            inner[10..12].copy_from_slice(&sum.to_be_bytes());
            let pkt = Packet::with_data(&node.mem, &inner).unwrap();
            let (now, mut out) = (node.now(), Vec::new());
            let Node { datapath, mem, .. } = &mut *node;
            datapath.ipsec.seal(mem, now, id, pkt, Train::None, 1500, &mut out, &mut Counters::default()).unwrap();
        }
        alone.let_pass(Duration::from_millis(100) * tenths);
        let events = alone.events().into_iter().map(|events| match events {
            KernelEvent::Xfrm(Event::Numbers { sa, by_time }) => {
                (convert::begins_at(Some(&sa.replay), SaFlags::default()).0, by_time)
            }
            other => panic!("{other:?}"),
        });
        events.collect::<Vec<_>>()
    };
    assert_eq!(send(&mut alone, 9, 0), []);
    let mut groups = Groups::default();
    groups.set(group::AEVENTS, true);
    alone.subscribe(groups);
    assert_eq!(send(&mut alone, 1, 0), [(10, false)]);
    assert_eq!(send(&mut alone, 2, 4), []);
    assert_eq!(send(&mut alone, 0, 1), [(12, true)]);
    assert_eq!(send(&mut alone, 8, 0), [(20, false)]);
    // A client that sets other limits gets notifications by these.
    let counts = Counts { aevents: Aevents { packets: Some(1), time: None }, ..Counts::default() };
    alone.database().set_counts(&query(0x1000, NONE), counts).unwrap();
    let shown = alone.database().find_sa(&query(0x1000, NONE)).unwrap();
    assert_eq!((shown.replay_thresh, shown.etimer_thresh), (1, 5));
    assert_eq!(send(&mut alone, 1, 0), [(21, false)]);
    alone.subscribe(Groups::default());
    assert_eq!(send(&mut alone, 9, 100), []);
}

#[test]
fn expiry_of_an_sa_has_all_its_counters() {
    let file = "[[sa]]\nsrc = \"192.0.2.1\"\ndst = \"192.0.2.2\"\nspi = 0x1000\nmode = \"tunnel\"\ndir = \"in\"\n\
                replay-window = 32\nlimit = { time-hard = 60 }\n\
                aead = { name = \"rfc4106(gcm(aes))\", key = \"0x000102030405060708090a0b0c0d0e0fa0a1a2a3\", icv = 128 }\n";
    let config = Config::from_toml(file, "f").unwrap();
    let mut alone = Alone::new(true);
    alone.listen(true);
    alone.database().add_sa(Box::new(convert::new_sa(&config.sas[0])), false).unwrap();
    alone.let_pass(Duration::ZERO);
    let before = wall_clock();
    let node = alone.node();
    // A forgery, by ESP's first number.
    let mut forged =
        vec![0x45, 0, 0, 80, 0, 0, 0, 0, 64, 50, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2, 0, 0, 0x10, 0, 0, 0, 0, 1];
    forged.resize(80, 7);
    let sum = wire::checksum::finish(wire::checksum::sum(&forged[..20]));
    forged[10..12].copy_from_slice(&sum.to_be_bytes());
    let pkt = Packet::with_data(&node.mem, &forged).unwrap();
    let (mut opened, now) = (Opened::default(), node.now());
    node.datapath.ipsec.open(&node.mem, now, pkt, &mut opened, &mut Counters::default());
    assert_eq!(opened.drops, [DropReason::EspIcv]);
    alone.let_pass(Duration::from_secs(61));
    let events = alone.events();
    let [KernelEvent::Xfrm(Event::Expire { info, dir: 1, hard: true, .. })] = &events[..] else { panic!("{events:?}") };
    assert_eq!(info.stats, [0, 0, 1]);
    let used = info.curlft.use_time;
    assert!(used.abs_diff(before) <= 62 && info.curlft.add_time >= before, "{used} {before}");
}

#[test]
fn the_upper_halves_of_numbers_count_where_there_are_any() {
    let replay =
        Replay::Esn(ReplayEsn { oseq: 7, seq: 8, oseq_hi: 1, seq_hi: 2, replay_window: 32, bmp: vec![1 << 7] });
    let of = |esn, oseq_may_wrap| SaFlags { esn, oseq_may_wrap, ..SaFlags::default() };
    let (oseq, seq) = (1 << 32 | 7, 2 << 32 | 8);
    for (flags, want) in [(of(false, false), (7, 8)), (of(true, false), (oseq, seq)), (of(false, true), (oseq, 8))] {
        assert_eq!(convert::begins_at(Some(&replay), flags), want, "{flags:?}");
        assert_eq!(convert::seen(&replay, flags), [want.1], "{flags:?}");
    }
}

/// Names of SAs, of larval SAs and of policies of a node, which the datapath's tables refer to.
fn replica(node: &Node) -> String {
    let (sad, spd) = (node.datapath.ipsec.sad(), node.datapath.ipsec.spd());
    let sas: Vec<_> = sad.by_birth(u64::MAX).map(|(place, sa)| (place, sa.id(), sa.spi())).collect();
    // Larval SAs are in no order.
    let mut larvae: Vec<_> = sad.larvae().map(|larval| (larval.seq, larval.spi)).collect();
    larvae.sort_unstable_by_key(|&(seq, _)| seq);
    let policies: Vec<_> = spd.by_arrival(u64::MAX).map(|(place, policy)| (place, policy.index)).collect();
    format!("{sas:?} {larvae:?} {policies:?}")
}

#[test]
fn shards_have_equal_sas_whatever_the_clients_order() {
    let (handle, inboxes) = channels::<3>().unwrap();
    let run = |inbox| thread::spawn(move || SharedWorker::new(Worker::new(inbox).unwrap()).run().unwrap());
    let workers = inboxes.map(run);
    thread::scope(|scope| {
        for client in 0..4_u32 {
            let mut database = WorkerSadb(handle.clone());
            scope.spawn(move || {
                for round in 0..50 {
                    let spi = 0x1000 + 0x100 * client + round;
                    let request =
                        NewSpi { info: info(), min: 0x8000, max: 0xffff, mark: NONE, if_id: 0, dir: 1, cpu: None };
                    let given = database.alloc_spi(Box::new(request)).unwrap();
                    database.add_sa(sa(spi), false).unwrap();
                    // Ids of removed SAs are given again.
                    if round % 3 > 0 {
                        database.remove_sa(&query(spi, NONE)).unwrap();
                        database.remove_sa(&query(given.info.spi, NONE)).unwrap();
                    }
                }
            });
        }
    });
    let all = |mut some: Vec<String>, others| {
        some.extend(others);
        some
    };
    let replicas = handle.change(|node| vec![replica(node)], all).unwrap();
    handle.stop().unwrap();
    workers.into_iter().for_each(|worker| worker.join().unwrap());
    assert_eq!(replicas.len(), 3);
    assert!(replicas[0].len() > 1000 && replicas.iter().all(|replica| *replica == replicas[0]), "{replicas:#?}");
}
