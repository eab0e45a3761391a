//! Bursts of ESP: the output equals that of the same packets one by one.

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex};

use base::{DropReason, Instant, Mib};
use ipsec::SaStats;
use ipsec::crypto::{Crypto, Pool, Task};
use offload::Features;
use packet::{Memory, Packet};
use sim::{Flow, Node, PortOptions, Rng, link_pair, policy};
use wire::Spi;
use xfrm::{Action, Algorithm, Dir, Lifetime, Limits, PolicyConfig, SaConfig, Selector};

use crate::common::*;
use crate::gateways::*;

/// Bytes of payload in a segment.
const PAYLOAD: usize = 1300;

/// Segments of each flow: more than one crypto task holds.
const SEGMENTS: u32 = 24;

/// Segments of each of two flows, one in a tunnel over IPv4 and one in a tunnel over IPv6, and a function that makes
/// their receiver.
fn sealed(limit: u64) -> (Vec<Vec<u8>>, impl Fn() -> Node) {
    sealed_by(limit, [Spi(0x1000), Spi(0x2000)], false)
}

/// As [`sealed`], by SAs with these SPIs, which may be equal; the first SA may have the NULL cipher.
fn sealed_by(limit: u64, spis: [Spi; 2], is_null: bool) -> (Vec<Vec<u8>>, impl Fn() -> Node) {
    let sas = move |nth: usize| {
        let sa = [TUNNELS[0], TUNNELS[2]][nth].sas(0).remove(0);
        let algorithm = if nth == 0 && is_null { Algorithm::null() } else { sa.algorithm };
        [SaConfig { spi: spis[nth], algorithm, ..sa }]
    };
    let mut near = gateways(sim::Medium::Cable, 1).nodes.remove(0);
    let flows = [Flow::new("10.1.0.1", "10.2.0.1"), Flow::new("fd00:1::1", "fd00:2::1")];
    let nets = [("10.1.0.0/16", "10.2.0.0/16"), ("fd00:1::/32", "fd00:2::/32")];
    let mut elsewhere = Node::new();
    let mut frames = Vec::new();
    for (nth, (flow, net)) in flows.iter().zip(nets).enumerate() {
        link_pair(&mut near, &mut elsewhere, net, &sas(nth));
        for nth in 0..SEGMENTS {
            near.rx_bytes(NOW, INSIDE, &flow.tcp(nth * PAYLOAD as u32, PAYLOAD));
            frames.extend(near.tx(OUTSIDE).iter().map(Packet::to_vec));
        }
    }
    let receiver = move || {
        let mut far = Node::new();
        far.port(INSIDE.0, PortOptions::BARE.mtu(9000), &["10.2.0.254/16", "fd00:2::254/32"]);
        far.port(OUTSIDE.0, PortOptions::BARE, &["192.0.2.2/24", "2001:db8::2/64"]);
        for (nth, (src, dst)) in nets.into_iter().enumerate() {
            let mut sas = sas(nth);
            sas[0].lifetime.hard = Limits { packets: limit, ..Limits::NONE };
            far.datapath.ipsec.add_sa(&sas[0], sim::unique_mask()).unwrap();
            for dir in [Dir::In, Dir::Fwd] {
                far.datapath.ipsec.add_policy(policy(dir, src, dst, &sas)).unwrap();
            }
        }
        far
    };
    (frames, receiver)
}

/// Reorders, duplicates, corrupts or truncates frames at random.
fn disturb(rng: &mut Rng, frames: &mut Vec<Vec<u8>>) {
    for _ in 0..rng.below(12) {
        let (at, other) = (rng.below(frames.len()), rng.below(frames.len()));
        match rng.below(5) {
            0 => frames.swap(at, other),
            1 => frames.insert(at, frames[other].clone()),
            // Anywhere: in the outer header, the SPI, the sequence number, the ciphertext, the ICV.
            2 | 3 => {
                let len = if rng.happens(500) { 60 } else { frames[at].len() };
                if let Some(byte) = frames[at].get_mut(rng.below(len.max(1))) {
                    *byte ^= 1 << rng.below(8);
                }
            }
            _ => {
                let len = rng.below(frames[at].len().max(1));
                frames[at].truncate(len);
            }
        }
    }
}

fn pool(threads: usize) -> Box<Pool> {
    Box::new(Pool::new(NonZeroUsize::new(threads).unwrap(), |_| {}).unwrap())
}

/// Output and counters of a node.
#[derive(Debug, PartialEq)]
struct Made {
    /// The bytes of each packet inside, as the wire would have them, by their flow.
    inside: BTreeMap<Vec<u8>, Vec<Vec<u8>>>,
    drops: Vec<(u32, base::DropReason, u64)>,
    counted: Vec<(&'static str, u64)>,
    sas: Vec<(Spi, SaStats, u64)>,
}

fn made(node: &mut Node) -> Made {
    let mut inside: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for pkt in node.tx(INSIDE) {
        let mut cut = Vec::new();
        match pkt.meta.cut.gso() {
            Some(_) => offload::gso::segment(&node.mem, &Features::NONE, pkt, 0, &mut cut).unwrap(),
            None => cut.push(pkt),
        }
        for segment in cut {
            let bytes = segment.to_vec();
            let addresses_and_ports = if bytes[0] >> 4 == 4 { &bytes[12..24] } else { &bytes[8..44] };
            inside.entry(addresses_and_ports.to_vec()).or_default().push(bytes);
        }
    }
    let xfrm = Mib::ALL.iter().filter(|mib| mib.name().starts_with("Xfrm"));
    let counted = xfrm.map(|&mib| (mib.name(), node.datapath.counters.get(mib))).filter(|&(_, n)| n > 0).collect();
    let sas = node.datapath.ipsec.sad().iter().map(|sa| (sa.spi(), sa.stats(), sa.replay().top())).collect();
    Made { inside, drops: node.drops(), counted, sas }
}

/// Receives a packet without receive templates from earlier packets.
fn receive_alone(node: &mut Node, frame: &[u8]) {
    node.datapath.ipsec.invalidate_templates();
    node.rx_bytes(NOW, OUTSIDE, frame);
}

/// Receives one of several bursts.
fn receive_burst(node: &mut Node, frames: &[Vec<u8>]) {
    let mut burst = frames.iter().map(|frame| Packet::with_data(&node.mem, frame).unwrap()).collect();
    node.datapath.receive_burst(NOW, &node.mem, OUTSIDE, &mut burst);
}

#[test]
fn burst_of_esp_is_opened_as_its_packets_one_by_one() {
    let mut merged = 0;
    for seed in 0..400 {
        let mut rng = Rng::new(seed);
        let limit = if rng.happens(300) { rng.below(20) as u64 + 1 } else { u64::MAX };
        let spis = [Spi(0x1000), Spi(0x1000 + rng.below(2) as u32)];
        let (mut frames, receiver) = sealed_by(limit, spis, rng.happens(250));
        if rng.happens(500) {
            // In turn.
            let other = frames.split_off(SEGMENTS as usize);
            frames = frames.into_iter().zip(other).flat_map(|(one, other)| [one, other]).collect();
        }
        disturb(&mut rng, &mut frames);
        let [mut one_by_one, mut at_once] = [receiver(), receiver()];
        for frame in &frames {
            receive_alone(&mut one_by_one, frame);
        }
        let burst = frames.iter().map(|frame| Packet::with_data(&at_once.mem, frame).unwrap()).collect();
        at_once.rx(NOW, OUTSIDE, burst);
        merged += usize::from(at_once.datapath.forwarded.packets < one_by_one.datapath.forwarded.packets);
        let (want, at_once_packets) = (made(&mut one_by_one), at_once.datapath.forwarded.packets);
        assert_eq!(made(&mut at_once), want, "seed {seed}");
        let [mut in_parts, mut by_threads] = [receiver(), receiver()];
        by_threads.datapath.ipsec.set_crypto(Some(pool(1 + seed as usize % 2)));
        while !frames.is_empty() {
            let rest = frames.split_off((rng.below(frames.len()) + 1).min(1 + rng.below(80)));
            for node in [&mut in_parts, &mut by_threads] {
                receive_burst(node, &frames);
            }
            frames = rest;
        }
        for node in [&mut in_parts, &mut by_threads] {
            node.datapath.finish(NOW, &node.mem);
        }
        assert_eq!(in_parts.datapath.forwarded.packets, at_once_packets, "seed {seed} in parts");
        assert_eq!(made(&mut in_parts), want, "seed {seed} in parts");
        // A packet refused while others are in flight may have another drop reason.
        let refused = |made: &Made| made.drops.iter().map(|(.., n)| n).sum::<u64>();
        let accepted =
            |made: &Made| made.sas.iter().map(|(_, sa, top)| (sa.packets, sa.bytes, *top)).collect::<Vec<_>>();
        let got = made(&mut by_threads);
        assert_eq!((refused(&got), accepted(&got)), (refused(&want), accepted(&want)), "seed {seed} by threads");
        assert_eq!(got.inside, want.inside, "seed {seed} by threads");
    }
    assert!(merged > 300, "{merged} bursts were merged");
}

/// The receive template predicts the next header and compares it as a whole: a difference in any bit is a mismatch.
#[test]
fn every_bit_of_a_header_within_a_burst_counts() {
    let (frames, receiver) = sealed(u64::MAX);
    // Outer header, SPI and sequence number of a packet in the middle of each flow's.
    for (at, headers) in [(7, 20 + 8), (SEGMENTS as usize + 7, 40 + 8)] {
        for bit in 0..8 * headers {
            let mut frames = frames.clone();
            frames[at][bit / 8] ^= 1 << (bit % 8);
            let [mut one_by_one, mut at_once] = [receiver(), receiver()];
            frames.iter().for_each(|frame| receive_alone(&mut one_by_one, frame));
            let burst = frames.iter().map(|frame| Packet::with_data(&at_once.mem, frame).unwrap()).collect();
            at_once.rx(NOW, OUTSIDE, burst);
            assert_eq!(made(&mut at_once), made(&mut one_by_one), "bit {bit} of packet {at}");
        }
    }
}

/// Any configuration change invalidates the receive templates.
#[test]
fn configuration_change_applies_to_the_next_packet() {
    let sa = || TUNNELS[0].sas(0).remove(0);
    let changes: [fn(&mut Node, &SaConfig); 8] = [
        |node, _| {
            let fib = &mut node.datapath.fib;
            let routes: Vec<_> = fib.routes().map(|(table, route)| (table, *route)).collect();
            for (table, route) in routes.iter().filter(|(_, route)| route.kind.dev() == Some(OUTSIDE)) {
                assert!(fib.remove(*table, route));
            }
        },
        |node, _| node.datapath.fib.set_rules(true, vec![]),
        |node, sa| drop(node.datapath.ipsec.remove_sa(sa.dst, sa.spi, 0)),
        |node, sa| {
            let lifetime = Lifetime { hard: Limits { packets: 1, ..Limits::NONE }, ..sa.lifetime };
            node.datapath.ipsec.update_sa(&SaConfig { lifetime, ..sa.clone() }, sim::unique_mask()).unwrap();
        },
        |node, sa| {
            let selector = Some(Selector::new("172.16.0.0/12".parse().unwrap(), "10.2.0.0/16".parse().unwrap()));
            node.datapath.ipsec.replace_sa(&SaConfig { selector, ..sa.clone() }).unwrap();
        },
        |node, _| {
            for dir in [Dir::In, Dir::Fwd] {
                let blocked = policy(dir, "10.1.0.0/16", "10.2.0.0/16", &[]);
                node.datapath.ipsec.update_policy(PolicyConfig { action: Action::Block, ..blocked }).unwrap();
            }
        },
        |node, _| node.datapath.set_up(NOW, &Memory::heap(), INSIDE, false),
        |node, _| _ = node.port(OUTSIDE.0, PortOptions::ethernet(2), &[]),
    ];
    let (frames, receiver) = sealed(u64::MAX);
    let (before, after) = frames[..SEGMENTS as usize].split_at(SEGMENTS as usize / 2);
    let run = |change: &dyn Fn(&mut Node), receive: fn(&mut Node, &[u8])| {
        let mut node = receiver();
        before.iter().for_each(|frame| receive(&mut node, frame));
        change(&mut node);
        after.iter().for_each(|frame| receive(&mut node, frame));
        made(&mut node)
    };
    let receive = |node: &mut Node, frame: &[u8]| node.rx_bytes(NOW, OUTSIDE, frame);
    let unchanged = run(&|_| {}, receive);
    for (nth, change) in changes.iter().enumerate() {
        let change = |node: &mut Node| change(node, &sa());
        let changed = run(&change, receive);
        assert!(changed == run(&change, receive_alone), "change {nth} is not seen");
        assert!(changed != unchanged, "change {nth} makes no difference");
    }
}

/// No copy of a removed SA's key is kept, even if no further packet arrives.
#[test]
fn receive_template_is_dropped_with_its_sa() {
    let (frames, receiver) = sealed(u64::MAX);
    let mut node = receiver();
    let is_kept = |node: &Node| format!("{:?}", node.datapath.ipsec).contains("PooledBox(Some(");
    node.rx_bytes(NOW, OUTSIDE, &frames[0]);
    assert!(is_kept(&node), "the template of the last packet is cached");
    let sa = TUNNELS[0].sas(0).remove(0);
    drop(node.datapath.ipsec.remove_sa(sa.dst, sa.spi, 0));
    node.datapath.finish(NOW, &node.mem);
    assert!(!is_kept(&node), "it is forgotten with its SA");
}

/// Crypto device that returns no task while it is busy.
#[derive(Debug, Default)]
struct Device {
    tasks: Vec<Task>,
    is_busy: Arc<AtomicBool>,
    /// Number of tasks given to the device.
    given: Arc<AtomicUsize>,
}

impl Crypto for Device {
    fn work(&mut self, _: Instant, todo: &mut VecDeque<Task>, done: &mut Vec<Task>) {
        self.given.fetch_add(todo.len(), Relaxed);
        self.tasks.extend(todo.drain(..));
        if !self.is_busy.load(Relaxed) {
            self.tasks.iter_mut().for_each(Task::run);
            done.append(&mut self.tasks);
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        None
    }
}

/// The template of a removed SA is not kept even if a device had some of the SA's packets at that time.
#[test]
fn late_decryption_of_a_removed_sa_makes_no_template() {
    let (frames, receiver) = sealed(u64::MAX);
    let mut node = receiver();
    let is_kept = |node: &Node| format!("{:?}", node.datapath.ipsec).contains("PooledBox(Some(");
    let device = Device::default();
    let is_busy = Arc::clone(&device.is_busy);
    node.datapath.ipsec.set_crypto(Some(Box::new(device)));
    node.rx_bytes(NOW, OUTSIDE, &frames[0]);
    assert!(is_kept(&node), "the template of the last packet is cached");
    is_busy.store(true, Relaxed);
    node.rx_bytes(NOW, OUTSIDE, &frames[1]);
    let sa = TUNNELS[0].sas(0).remove(0);
    drop(node.datapath.ipsec.remove_sa(sa.dst, sa.spi, 0));
    node.datapath.finish(NOW, &node.mem);
    is_busy.store(false, Relaxed);
    node.datapath.finish(NOW, &node.mem);
    assert!(!node.datapath.ipsec.is_pending());
    assert!(!is_kept(&node), "it is forgotten with its SA");
}

/// The queue for a crypto device is bounded, also for packets that match a template.
#[test]
fn stalled_crypto_device_gets_a_bounded_number_of_packets() {
    const MOST: u64 = 1000;
    let (frames, receiver) = sealed(u64::MAX);
    let mut node = receiver();
    let device = Device::default();
    let is_busy = Arc::clone(&device.is_busy);
    node.datapath.ipsec.set_crypto(Some(Box::new(device)));
    node.rx_bytes(NOW, OUTSIDE, &frames[0]);
    is_busy.store(true, Relaxed);
    // All are copies of one packet, which the replay check finds after decryption.
    (0..MOST + 100).for_each(|_| receive_burst(&mut node, &frames[1..2]));
    assert_eq!(node.drops(), [(OUTSIDE.0, DropReason::CryptoQueueFull, 100)]);
    is_busy.store(false, Relaxed);
    node.datapath.finish(NOW, &node.mem);
    let replays = (OUTSIDE.0, DropReason::EspReplay, MOST - 1);
    assert!(node.drops().contains(&replays) && !node.datapath.ipsec.is_pending(), "{:?}", node.drops());
}

/// Frames of `sas` SAs, each to one guest, in the order of SAs that `next` gives, and a function that makes their
/// receiver.
fn sealed_by_many(sas: u32, segments: u32, mut next: impl FnMut(u32) -> u32) -> (Vec<Vec<u8>>, impl Fn() -> Node) {
    let sa = |nth: u32| {
        let sa = TUNNELS[0].sas(0).remove(0);
        [SaConfig { spi: Spi(0x1000 + nth), reqid: 1 + nth, ..sa }]
    };
    let guest = |nth: u32| format!("10.2.{}.{}", nth / 200, 1 + nth % 200);
    let net = move |nth| ("10.1.0.0/16", format!("{}/32", guest(nth)));
    let (mut near, mut elsewhere) = (gateways(sim::Medium::Cable, 1).nodes.remove(0), Node::new());
    for nth in 0..sas {
        link_pair(&mut near, &mut elsewhere, (net(nth).0, &net(nth).1), &sa(nth));
    }
    let mut frames = Vec::new();
    let mut sent = vec![0; sas as usize];
    for at in 0..segments {
        let nth = next(at);
        let seq = &mut sent[nth as usize];
        near.rx_bytes(NOW, INSIDE, &Flow::new("10.1.0.1", &guest(nth)).tcp(*seq, 100));
        *seq += 100;
        frames.extend(near.tx(OUTSIDE).iter().map(Packet::to_vec));
    }
    let receiver = move || {
        let mut far = Node::new();
        far.port(INSIDE.0, PortOptions::BARE.mtu(9000), &["10.2.255.254/16"]);
        far.port(OUTSIDE.0, PortOptions::BARE, &["192.0.2.2/24"]);
        for nth in 0..sas {
            far.datapath.ipsec.add_sa(&sa(nth)[0], sim::unique_mask()).unwrap();
            for dir in [Dir::In, Dir::Fwd] {
                far.datapath.ipsec.add_policy(policy(dir, net(nth).0, &net(nth).1, &sa(nth))).unwrap();
            }
        }
        far
    };
    (frames, receiver)
}

/// The output for very many SAs equals that for a few, for any number of cached templates and crypto threads.
#[test]
fn esp_of_more_sas_than_templates_is_opened() {
    const SAS: u32 = 300;
    let mut rng = Rng::new(1);
    // Each once, then some more often than others.
    let (frames, receiver) = sealed_by_many(SAS, 4 * SAS, |at| match at {
        0..SAS => at,
        _ => {
            let few = rng.happens(500);
            rng.below(if few { 30 } else { SAS as usize }) as u32
        }
    });
    let mut one_by_one = receiver();
    frames.iter().for_each(|frame| receive_alone(&mut one_by_one, frame));
    let want = made(&mut one_by_one);
    assert_eq!((want.inside.len(), &want.drops), (SAS as usize, &vec![]));
    for threads in 0..3 {
        let mut at_once = receiver();
        if threads > 0 {
            at_once.datapath.ipsec.set_crypto(Some(pool(threads)));
        }
        frames.chunks(64).for_each(|frames| receive_burst(&mut at_once, frames));
        at_once.datapath.finish(NOW, &at_once.mem);
        let remembered = format!("{:?}", at_once.datapath.ipsec).matches("PooledBox(Some(").count();
        assert_eq!(remembered, 256, "with {threads} threads");
        assert_eq!(made(&mut at_once), want, "with {threads} threads");
    }
}

/// If there are more SAs than cached templates, the SAs in use have theirs cached.
#[test]
fn template_of_an_sa_in_use_again_is_cached() {
    const SAS: u32 = 600;
    const BUSY: u32 = 100;
    // Each once, then a few again and again.
    let (frames, receiver) = sealed_by_many(SAS, SAS + 3 * BUSY, |at| if at < SAS { at } else { at % BUSY });
    let mut node = receiver();
    frames.chunks(64).for_each(|frames| receive_burst(&mut node, frames));
    node.datapath.finish(NOW, &node.mem);
    let ipsec = format!("{:?}", node.datapath.ipsec);
    let is_remembered = |nth: &u32| ipsec.contains(&format!("{:?}: PooledBox(Some(", Spi(0x1000 + nth)));
    assert_eq!((0..BUSY).filter(is_remembered).count(), BUSY as usize);
}

/// Tasks that threads finish while a burst is taken in make room for more of it.
#[test]
fn burst_beyond_the_task_queue_is_opened_without_loss() {
    const SAS: u32 = 200;
    let (frames, receiver) = sealed_by_many(SAS, 7 * SAS, |at| at % SAS);
    let (mut one_by_one, mut node) = (receiver(), receiver());
    frames.iter().for_each(|frame| receive_alone(&mut one_by_one, frame));
    node.datapath.ipsec.set_crypto(Some(Box::<Device>::default()));
    let (each_once, the_rest) = frames.split_at(SAS as usize);
    receive_burst(&mut node, each_once);
    receive_burst(&mut node, the_rest);
    node.datapath.finish(NOW, &node.mem);
    let (want, made) = (made(&mut one_by_one), made(&mut node));
    assert_eq!(made.drops, []);
    assert_eq!(made, want);
}

/// Packets of alternating tunnels make one task per SA, not one per packet.
#[test]
fn packets_of_alternating_sas_are_batched_per_sa() {
    const SAS: u32 = 10;
    let (frames, receiver) = sealed_by_many(SAS, 12 * SAS, |at| at % SAS);
    let (mut one_by_one, mut node) = (receiver(), receiver());
    frames.iter().for_each(|frame| receive_alone(&mut one_by_one, frame));
    let device = Device::default();
    let given = Arc::clone(&device.given);
    node.datapath.ipsec.set_crypto(Some(Box::new(device)));
    for frames in frames.chunks(6 * SAS as usize) {
        let before = given.load(Relaxed);
        receive_burst(&mut node, frames);
        assert_eq!(given.load(Relaxed) - before, SAS as usize);
    }
    node.datapath.finish(NOW, &node.mem);
    assert_eq!(made(&mut node), made(&mut one_by_one));
}

/// Crypto device that returns tasks only to a blocking wait.
#[derive(Debug, Default)]
struct Reluctant(Vec<Task>);

impl Crypto for Reluctant {
    fn work(&mut self, now: Instant, todo: &mut VecDeque<Task>, done: &mut Vec<Task>) {
        self.help(now, todo, done);
        self.0.iter_mut().for_each(Task::run);
        done.append(&mut self.0);
    }

    fn help(&mut self, _: Instant, todo: &mut VecDeque<Task>, _: &mut Vec<Task>) {
        self.0.extend(todo.drain(..));
    }

    fn poll_timeout(&self) -> Option<Instant> {
        None
    }
}

#[test]
fn burst_is_taken_in_whole_before_waiting_for_threads() {
    let (frames, receiver) = sealed(u64::MAX);
    let [mut one_by_one, mut node] = [receiver(), receiver()];
    node.datapath.ipsec.set_crypto(Some(Box::<Reluctant>::default()));
    frames.iter().for_each(|frame| receive_alone(&mut one_by_one, frame));
    for frames in frames.chunks(5) {
        receive_burst(&mut node, frames);
        assert!(node.datapath.ipsec.is_pending() && node.datapath.take_tx(INSIDE).unwrap().is_empty());
    }
    node.datapath.finish(NOW, &node.mem);
    assert!(!node.datapath.ipsec.is_pending());
    assert_eq!(made(&mut node), made(&mut one_by_one));
}

/// Records each offer: the number of tasks, and the `more` flag.
#[derive(Debug, Default)]
struct Offered(Arc<Mutex<Vec<(usize, bool)>>>);

impl Crypto for Offered {
    fn take(&mut self, _: Instant, todo: &mut VecDeque<Task>, more: bool) {
        self.0.lock().unwrap().push((todo.len(), more));
    }

    fn work(&mut self, _: Instant, todo: &mut VecDeque<Task>, done: &mut Vec<Task>) {
        todo.iter_mut().for_each(Task::run);
        done.extend(todo.drain(..));
    }

    fn poll_timeout(&self) -> Option<Instant> {
        None
    }
}

/// The first of several tasks has the `more` flag as soon as the next one begins; a lone task does not have it.
#[test]
fn crypto_thread_gets_more_flag_once_a_task_follows() {
    let (frames, receiver) = sealed(u64::MAX);
    let mut node = receiver();
    let offered = Arc::<Mutex<_>>::default();
    node.datapath.ipsec.set_crypto(Some(Box::new(Offered(Arc::clone(&offered)))));
    let mut offers = |frames: &[Vec<u8>]| {
        receive_burst(&mut node, frames);
        std::mem::take(&mut *offered.lock().unwrap())
    };
    assert_eq!(offers(&frames[..1]), [(1, false)], "the first packet makes the template");
    assert_eq!(offers(&frames[1..6]), [(1, false)]);
    let several = offers(&frames[6..SEGMENTS as usize]);
    assert!(several.len() > 1, "{several:?}");
    assert!(several.iter().enumerate().all(|(nth, &offer)| offer == (nth + 1, nth + 1 < several.len())), "{several:?}");
}

/// Segments of one flow that come in several bursts leave as one packet, unless their device is short of frames.
#[test]
fn packets_of_an_ample_ring_are_merged_across_bursts() {
    const BURST: usize = SEGMENTS as usize / 3;
    let (frames, receiver) = sealed(u64::MAX);
    for (of_device, is_short) in [(usize::MAX, false), (6 * BURST + 1, false), (2 * BURST, true)] {
        let (mut node, device) = (receiver(), packet::Pool::bounded(Memory::SMALL, of_device));
        for frames in frames[..SEGMENTS as usize].chunks(BURST) {
            let received = frames.iter().map(|frame| {
                let mut buf = device.take(Memory::HEADROOM).unwrap();
                buf.put(frame.len()).unwrap().copy_from_slice(frame);
                Packet::from_buf(buf)
            });
            let mut burst = received.collect();
            node.datapath.receive_burst(NOW, &node.mem, OUTSIDE, &mut burst);
            let sent = node.datapath.take_tx(INSIDE).unwrap();
            assert_eq!(sent.len(), usize::from(is_short), "with {of_device} frames");
            sent.clear();
        }
        node.datapath.finish(NOW, &node.mem);
        assert_eq!(node.datapath.take_tx(INSIDE).unwrap().len(), usize::from(!is_short), "with {of_device} frames");
    }
}

#[test]
fn burst_of_small_packets_is_sealed_by_threads_without_loss() {
    const PACKETS: u16 = 1100;
    let mut world = tunnelled(TUNNELS[0], 1);
    let [near, far] = &mut world.nodes[..] else { panic!("two gateways") };
    for node in [&mut *near, &mut *far] {
        node.datapath.ipsec.set_crypto(Some(pool(1)));
    }
    let flow = Flow::new("10.1.0.1", "10.2.0.1");
    let burst = (0..PACKETS).map(|sport| Packet::with_data(&near.mem, &Flow { sport, ..flow }.udp(20)).unwrap());
    let burst = burst.collect();
    near.rx(NOW, INSIDE, burst);
    let frames = near.tx(OUTSIDE);
    assert_eq!((frames.len(), near.drops()), (PACKETS.into(), vec![]));
    let burst = frames.iter().map(|frame| Packet::with_data(&far.mem, frame.head()).unwrap()).collect();
    far.rx(NOW, OUTSIDE, burst);
    // GRO holds packets of several independent flows.
    let mut ports: Vec<_> =
        far.tx(INSIDE).iter().map(|pkt| u16::from_be_bytes([pkt.head()[20], pkt.head()[21]])).collect();
    ports.sort_unstable();
    assert_eq!((ports, far.drops()), ((0..PACKETS).collect(), vec![]));
}
