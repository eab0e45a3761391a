//! A gateway whose device does ESP, and one that does it in software: they understand each other, and whatever happens,
//! nothing goes out in clear.

use std::collections::HashSet;
use std::time::Duration;

use base::{Counters, DropReason, LinkId, Mib};
use ipsec::device::{Faults, Offload, OffloadMode, SoftDevice, SoftStats};
use ipsec::{Dir, Mode, SaConfig, SaDir, SaFlags};
use offload::Features;
use packet::{Esp, EspStatus, Packet};
use sim::{Fate, Flow, Medium, Node, PortOptions, Wire, World, esp, policy, unique_mask};

use crate::common::*;
use crate::gateways::*;
use crate::path_mtu::too_big;

const SECOND: Duration = Duration::from_secs(1);
const SEGMENTS: usize = 40;
const MODES: [OffloadMode; 2] = [OffloadMode::Crypto, OffloadMode::Packet];

/// Another link to the other gateway, without a device.
const DETOUR: LinkId = LinkId(3);

const RAW: [Tunnel; 2] = [TUNNELS[0], TUNNELS[2]];

/// The prefixes behind the gateways, by family and gateway.
const NETS: [[&str; 2]; 2] = [["10.1.0.0/16", "10.2.0.0/16"], ["fd00:1::/32", "fd00:2::/32"]];

/// Gives gateway `at` its SAs and policies, on its device if there is one.
fn configure(node: &mut Node, at: usize, tunnel: Tunnel, mode: Option<OffloadMode>) {
    let packet_mode = mode == Some(OffloadMode::Packet);
    for from in 0..2 {
        let dir = if from == at { SaDir::Out } else { SaDir::In };
        let offload = mode.map(|mode| Offload { dev: OUTSIDE, dir, mode });
        let sas = tunnel.sas(from);
        for (nth, sa) in sas.iter().enumerate() {
            let offload = offload.filter(|_| nth + 1 == sas.len());
            node.path.ipsec.add_sa(&SaConfig { offload, ..sa.clone() }, unique_mask()).unwrap();
        }
        let dirs = if from == at { &[Dir::Out][..] } else { &[Dir::In, Dir::Fwd] };
        for (net, &dir) in NETS.iter().flat_map(|net| dirs.iter().map(move |dir| (net, dir))) {
            let offload = (packet_mode && dir != Dir::Fwd).then_some(OUTSIDE);
            let policy = policy(dir, net[from], net[1 - from], &sas);
            node.path.ipsec.add_policy(ipsec::PolicyConfig { offload, ..policy }).unwrap();
        }
    }
}

/// The two gateways with a tunnel between them. The first has a device on its wire that does what `mode` says.
fn world_with(tunnel: Tunnel, mode: OffloadMode, seed: u64) -> (World, SoftDevice) {
    let mut world = gateways(if tunnel.udp { Medium::UdpSocket } else { Medium::Cable }, seed);
    let device = SoftDevice::new(true, true);
    world.nodes[0].attach(OUTSIDE, &device);
    configure(&mut world.nodes[0], 0, tunnel, Some(mode));
    configure(&mut world.nodes[1], 1, tunnel, None);
    world.watch(WIRE);
    (world, device)
}

/// What must not be seen: every run of 16 bytes of what was sent.
#[derive(Default)]
struct Secrets(HashSet<[u8; 16]>);

impl Secrets {
    fn note(&mut self, pkt: &Packet) {
        self.0.extend(pkt.to_vec()[60..].windows(16).map(|run| <[u8; 16]>::try_from(run).unwrap()));
    }

    fn check(&self, frame: &[u8]) {
        let seen = frame.windows(16).find(|run| self.0.contains(*run));
        assert!(seen.is_none() && !self.0.is_empty(), "in clear on the wire: {frame:02x?}");
    }

    fn check_wire(&self, world: &mut World) -> usize {
        let seen = world.take_seen();
        let frames = seen.iter().filter_map(|seen| if let Fate::Sent(frame) = &seen.fate { Some(frame) } else { None });
        frames.inspect(|frame| self.check(frame)).count()
    }
}

/// A fat packet of `SEGMENTS` segments that begins at `seq`.
fn fat(node: &Node, flow: &Flow, mss: u16, seq: usize) -> Packet {
    flow.fat_tcp(&node.mem, seq as u32, SEGMENTS * usize::from(mss), mss)
}

#[test]
fn a_device_and_software_understand_each_other_both_ways() {
    for mode in MODES {
        for tunnel in RAW {
            for there in flows() {
                let (mut world, device) = world_with(tunnel, mode, 1);
                let mss = tunnel.mss(&there);
                let mut secrets = Secrets::default();
                for (from, flow) in [there, there.reversed()].iter().enumerate() {
                    let pkt = fat(&world.nodes[from], flow, mss, 0);
                    secrets.note(&pkt);
                    world.hosts[from].send(pkt);
                    world.run(SECOND);
                    let got = world.hosts[1 - from].take();
                    let mut received = Received::default();
                    got.iter().for_each(|pkt| received.take(flow, pkt));
                    assert_eq!((received.bytes, got.len()), (SEGMENTS * usize::from(mss), 1), "{mode:?} {tunnel:?}");
                }
                assert_eq!(secrets.check_wire(&mut world), 2 * SEGMENTS);
                let n = SEGMENTS as u64;
                let want = SoftStats { sealed: n, opened: n, ..SoftStats::default() };
                assert_eq!(device.stats(), want, "{mode:?} {tunnel:?}");
                world.nodes[0].path.ipsec.update_all_stats();
                let [near, far] = [0, 1].map(|at| {
                    let sas = world.nodes[at].path.ipsec.sad().iter();
                    sas.map(|sa| (sa.spi(), sa.stats().packets, sa.stats().bytes)).collect::<Vec<_>>()
                });
                assert_eq!(near, far, "{mode:?} {tunnel:?}");
                assert!(near.iter().all(|sa| sa.1 == n), "{near:?}");
                for node in &world.nodes {
                    assert_eq!((node.drops(), node.pages_in_use()), (vec![], 0), "{mode:?} {tunnel:?}");
                }
            }
        }
    }
}

#[test]
fn in_crypto_mode_nobody_counts_anything_else_than_in_software() {
    let count = |mode: Option<OffloadMode>, tunnel: Tunnel, flow: &Flow| {
        let (mut world, device) = world_with(tunnel, OffloadMode::Crypto, 1);
        device.set_faults(Faults { busy: mode.is_none(), ..Faults::default() });
        for (from, flow) in [*flow, flow.reversed()].iter().enumerate() {
            let pkt = fat(&world.nodes[from], flow, tunnel.mss(flow), 0);
            world.hosts[from].send(pkt);
            world.run(SECOND);
        }
        let opened = device.stats().opened + device.stats().sealed;
        let counters: Vec<Counters> = world.nodes.iter().map(|node| node.path.counters.clone()).collect();
        let oseq: Vec<u64> = world.nodes[0].path.ipsec.sad().iter().map(ipsec::Sa::oseq).collect();
        (counters, oseq, opened)
    };
    for tunnel in RAW {
        for flow in flows() {
            let (offloaded, seqs, by_device) = count(Some(OffloadMode::Crypto), tunnel, &flow);
            let (software, want, not) = count(None, tunnel, &flow);
            assert_eq!((offloaded, seqs), (software, want), "{tunnel:?}");
            assert_eq!((by_device, not), (2 * SEGMENTS as u64, 0));
        }
    }
}

#[test]
fn a_bad_wire_does_a_device_no_more_harm_than_software() {
    for mode in MODES {
        for seed in 0..6 {
            let tunnel = RAW[seed as usize % 2];
            let [there, _] = flows();
            let (mut world, device) = world_with(tunnel, mode, seed);
            world.set_wire(WIRE, Wire::new(Medium::Cable, 1500).troubled(20, 50, 20, 100));
            let (mss, mut secrets) = (tunnel.mss(&there), Secrets::default());
            let ways = [there, there.reversed()];
            let mut received = [Received::default(), Received::default()];
            for at in 0..30 {
                for (from, flow) in ways.iter().enumerate() {
                    let pkt = fat(&world.nodes[from], flow, mss, at * SEGMENTS * usize::from(mss));
                    secrets.note(&pkt);
                    world.hosts[from].send(pkt);
                }
                // Now and then the device has no time.
                device.set_faults(Faults { busy: mode == OffloadMode::Crypto && at % 3 == 2, ..Faults::default() });
                world.run(Duration::from_micros(200));
            }
            world.run(SECOND);
            for (from, flow) in ways.iter().enumerate() {
                world.hosts[1 - from].take().iter().for_each(|pkt| received[from].take(flow, pkt));
            }
            secrets.check_wire(&mut world);
            let stats = world.stats[WIRE];
            let bytes = (received[0].bytes + received[1].bytes) as u64;
            assert_eq!(bytes, (stats.frames - stats.lost) * u64::from(mss), "{mode:?} {seed} {stats:?}");
            assert!(stats.lost > 0 && stats.twice > 0 && device.stats().sealed > 0 && device.stats().opened > 0);
            assert_eq!(world.nodes.iter().map(Node::pages_in_use).sum::<usize>(), 0, "{mode:?} {seed}");
        }
    }
}

/// A gateway alone, whose packets a test carries to the other one.
struct Lane {
    near: Node,
    far: Node,
    device: SoftDevice,
    flow: Flow,
    mss: u16,
    sent: usize,
    secrets: Secrets,
    received: Received,
}

impl Lane {
    fn new(mode: OffloadMode) -> Self {
        Self::over(TUNNELS[0], mode)
    }

    fn over(tunnel: Tunnel, mode: OffloadMode) -> Self {
        let (mut world, device) = world_with(tunnel, mode, 1);
        let far = world.nodes.pop().unwrap();
        let near = world.nodes.pop().unwrap();
        let [flow, _] = flows();
        let mss = tunnel.mss(&flow);
        Self { near, far, device, flow, mss, sent: 0, secrets: Secrets::default(), received: Received::default() }
    }

    /// The guest sends a fat packet, which waits on some link then.
    fn send(&mut self) {
        let pkt = fat(&self.near, &self.flow, self.mss, self.sent);
        self.sent += SEGMENTS * usize::from(self.mss);
        self.secrets.note(&pkt);
        self.near.rx(NOW, INSIDE, vec![pkt]);
    }

    /// What waits on a link goes over the wire to the other gateway, whose guest gets what is inside.
    fn carry(&mut self, link: LinkId) -> usize {
        let mut frames = self.near.tx(link);
        self.near.to_wire(NOW, link, &mut frames);
        let mut wire = Vec::new();
        for frame in frames {
            assert_eq!(frame.meta.esp, None);
            offload::fit(&self.near.mem, &Features::NONE, frame, 0, &mut wire).unwrap();
        }
        wire.iter().for_each(|frame| self.secrets.check(&frame.to_vec()));
        let count = wire.len();
        let copies = wire.iter().map(|frame| Packet::with_data(&self.far.mem, &frame.to_vec()).unwrap()).collect();
        self.far.rx(NOW, OUTSIDE, copies);
        self.far.tx(INSIDE).iter().for_each(|pkt| self.received.take(&self.flow, pkt));
        count
    }

    fn waiting(&mut self, link: LinkId) -> Vec<Option<Esp>> {
        let waiting = self.near.path.take_tx(link).unwrap().iter();
        waiting.flat_map(|pkt| std::iter::repeat_n(pkt.meta.esp, pkt.meta.cut.packets() as usize)).collect()
    }

    fn detour(&mut self) {
        self.near.port(DETOUR.0, PortOptions::BARE, &[]);
        self.near.route("192.0.2.2/32", None, DETOUR);
    }
}

#[test]
fn a_route_that_flips_takes_nothing_out_in_clear_and_loses_nothing() {
    let mut lane = Lane::new(OffloadMode::Crypto);
    lane.send();
    assert!(lane.waiting(OUTSIDE).iter().all(|esp| matches!(esp, Some(Esp::Seal { .. }))));
    lane.detour();
    lane.send();
    assert_eq!(lane.waiting(OUTSIDE).len(), SEGMENTS, "what waits goes where it was going");
    assert_eq!(lane.waiting(DETOUR), vec![None; SEGMENTS], "sealed here");
    assert_eq!((lane.carry(OUTSIDE), lane.carry(DETOUR)), (SEGMENTS, SEGMENTS));
    assert_eq!((lane.received.bytes, lane.device.stats().sealed), (lane.sent, SEGMENTS as u64));
    assert_eq!((lane.near.drops(), lane.far.drops()), (vec![], vec![]));
}

/// Rows X34 and X96: the numbers of a train are taken in one step, or none of them.
#[test]
fn numbers_that_run_out_within_a_train_stop_it_whole_and_with_esn_it_goes_on() {
    const LEFT: usize = 10;
    let last = u64::from(u32::MAX) - LEFT as u64;
    for (esn, by_device) in [(false, true), (true, true), (true, false)] {
        let mut lane = Lane::new(OffloadMode::Crypto);
        let sa = TUNNELS[0].sas(0).remove(0);
        let sa = SaConfig { flags: SaFlags { esn, ..sa.flags }, ..sa };
        let offload = Some(Offload { dev: OUTSIDE, dir: SaDir::Out, mode: OffloadMode::Crypto });
        let ends = [SaConfig { oseq: last, offload, ..sa.clone() }, SaConfig { seq: last, ..sa.clone() }];
        for (node, config) in [&mut lane.near, &mut lane.far].into_iter().zip(ends) {
            node.path.ipsec.remove_sa(sa.dst, sa.spi, 0).unwrap();
            node.path.ipsec.add_sa(&config, unique_mask()).unwrap();
        }
        let oseq = |lane: &Lane| {
            let ipsec = &lane.near.path.ipsec;
            ipsec.sa(ipsec.sad().by_spi(sa.dst, sa.spi, 0).unwrap()).unwrap().oseq()
        };
        if !esn {
            lane.send();
            assert!(lane.waiting(OUTSIDE).is_empty());
            assert_eq!(lane.near.drops(), [(1, DropReason::EspSequenceOverflow, 1)]);
            assert_eq!((lane.near.path.counters.get(Mib::XfrmOutStateSeqError), oseq(&lane)), (1, last));
            // What there are numbers for still goes.
            let mss = usize::from(lane.mss);
            let pkt = lane.flow.fat_tcp(&lane.near.mem, 0, LEFT * mss, lane.mss);
            lane.near.rx(NOW, INSIDE, vec![pkt]);
            assert_eq!((lane.carry(OUTSIDE), lane.received.bytes, oseq(&lane)), (LEFT, LEFT * mss, u32::MAX.into()));
            continue;
        }
        lane.send();
        let highs = lane.waiting(OUTSIDE).into_iter().map(|esp| match esp {
            Some(Esp::Seal { high, .. }) => high,
            other => panic!("{other:?}"),
        });
        assert!(highs.eq((0..SEGMENTS).map(|at| u32::from(at >= LEFT))), "the upper half moves within the train");
        if !by_device {
            let mut config = lane.near.path.ports.get(OUTSIDE).unwrap().config.clone();
            config.features.esp = false;
            lane.near.path.set_port(OUTSIDE, config);
            assert_eq!(lane.waiting(OUTSIDE), vec![None; SEGMENTS]);
        }
        assert_eq!((lane.carry(OUTSIDE), lane.received.bytes), (SEGMENTS, lane.sent));
        assert_eq!(lane.device.stats().sealed, if by_device { SEGMENTS as u64 } else { 0 });
        assert_eq!((lane.near.drops(), lane.far.drops(), oseq(&lane)), (vec![], vec![], last + SEGMENTS as u64));
    }
}

#[test]
fn a_link_that_loses_its_device_mid_queue_gets_what_waits_sealed() {
    // `ethtool -K … esp-hw-offload off`, and the kernel's refusal of an offload.
    for by_refit in [false, true] {
        let mut lane = Lane::new(OffloadMode::Crypto);
        lane.send();
        lane.send();
        let mut config = lane.near.path.ports.get(OUTSIDE).unwrap().config.clone();
        config.features.esp = false;
        let Node { path, mem, .. } = &mut lane.near;
        if by_refit {
            path.refit(mem, OUTSIDE, config.features);
        } else {
            path.set_port(OUTSIDE, config);
        }
        assert_eq!(lane.waiting(OUTSIDE), vec![None; 2 * SEGMENTS]);
        lane.send();
        assert_eq!(lane.waiting(OUTSIDE), vec![None; 3 * SEGMENTS]);
        assert_eq!(lane.carry(OUTSIDE), 3 * SEGMENTS);
        assert_eq!((lane.received.bytes, lane.device.stats()), (lane.sent, SoftStats::default()));
        assert_eq!((lane.near.drops(), lane.far.drops()), (vec![], vec![]));
    }
}

#[test]
fn nothing_waits_in_clear_for_a_device_that_is_unloaded() {
    for mode in MODES {
        for other in [false, true] {
            let mut lane = Lane::new(mode);
            lane.send();
            let waiting = lane.waiting(OUTSIDE).len() as u64;
            let Node { path, mem, .. } = &mut lane.near;
            // The link may say for a while yet that it does ESP.
            let other = other.then(|| Box::new(SoftDevice::new(true, true)) as Box<dyn ipsec::device::Device>);
            path.set_device(NOW, mem, OUTSIDE, other);
            assert!(lane.waiting(OUTSIDE).is_empty(), "{mode:?}");
            assert_eq!((lane.device.load(), lane.near.path.ipsec.sad().len()), ((0, 0), 0), "{mode:?}");
            let reason = match mode {
                OffloadMode::Crypto => DropReason::PolicyNoState,
                OffloadMode::Packet => DropReason::EspWrongDevice,
            };
            assert_eq!(lane.near.drops(), [(1, reason, waiting)], "{mode:?}");
            assert_eq!(lane.near.pages_in_use(), 0, "{mode:?}");
        }
    }
}

#[test]
fn what_waits_for_a_neighbour_is_left_to_the_device_only_if_it_still_can() {
    for esp in [true, false] {
        let mut lane = Lane::new(OffloadMode::Crypto);
        let mut config = lane.near.path.ports.get(OUTSIDE).unwrap().config.clone();
        config.mac = Some(mac(1));
        lane.near.path.set_port(OUTSIDE, config.clone());
        lane.near.rx(NOW, INSIDE, vec![lane.flow.fat_tcp(&lane.near.mem, 0, 2 * 1000, 1000)]);
        assert_eq!(lane.near.waiting(), 2);
        let asked = lane.near.tx(OUTSIDE);
        assert_eq!(asked.len(), 1, "an ARP request");
        config.features.esp = esp;
        lane.near.path.set_port(OUTSIDE, config);
        let mut reply = asked[0].to_vec();
        // Its operation is 2 now, and sender and target change places (RFC 826).
        let (ours, theirs) = (reply[22..32].to_vec(), [&[2, 0, 0, 0, 0, 2][..], &reply[38..42]].concat());
        reply[21] = 2;
        reply[22..32].copy_from_slice(&theirs);
        reply[32..42].copy_from_slice(&ours);
        reply[..6].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
        lane.near.rx_bytes(NOW, OUTSIDE, &reply);
        let marks = lane.waiting(OUTSIDE);
        assert_eq!((marks.len(), marks.iter().all(Option::is_some), marks.iter().any(Option::is_some)), (2, esp, esp));
    }
}

#[test]
fn what_speaks_against_a_device_is_sealed_in_software() {
    let options = |lane: &mut Lane| {
        let plain = lane.flow.tcp(0, 100);
        let mut bytes = [&plain[..20], &[1, 1, 1, 0], &plain[20..]].concat();
        bytes[0] = 0x46;
        edit_v4(&bytes, |header| header.set_total_len(plain.len() as u16 + 4))
    };
    let extension = |_: &mut Lane| {
        let plain = Flow::new("fd00:1::1", "fd00:2::1").tcp(0, 100);
        let mut bytes = [&plain[..40], &[6, 0, 1, 4, 0, 0, 0, 0], &plain[40..]].concat();
        bytes[6] = 60;
        bytes[4..6].copy_from_slice(&(plain.len() as u16 - 40 + 8).to_be_bytes());
        bytes
    };
    let plain = |lane: &mut Lane| lane.flow.tcp(0, 100);
    type Make<'a> = &'a dyn Fn(&mut Lane) -> Vec<u8>;
    let raw = TUNNELS[0];
    let cases: [(&str, Tunnel, Make<'_>, u64); 6] = [
        ("nothing", raw, &plain, 1),
        ("IPv4 options", raw, &options, 0),
        ("IPv6 extension headers", raw, &extension, 0),
        ("UDP around ESP", TUNNELS[1], &plain, 0),
        (
            "another link",
            raw,
            &|lane| {
                lane.detour();
                lane.flow.tcp(0, 100)
            },
            0,
        ),
        (
            "a device without time",
            raw,
            &|lane| {
                lane.device.set_faults(Faults { busy: true, ..Faults::default() });
                lane.flow.tcp(0, 100)
            },
            0,
        ),
    ];
    for (what, tunnel, make, sealed) in cases {
        let mut lane = Lane::over(tunnel, OffloadMode::Crypto);
        let bytes = make(&mut lane);
        let pkt = Packet::with_data(&lane.near.mem, &bytes).unwrap();
        lane.secrets.note(&pkt);
        lane.near.rx(NOW, INSIDE, vec![pkt]);
        let link = if what == "another link" { DETOUR } else { OUTSIDE };
        let mut frames = lane.near.tx(link);
        lane.near.to_wire(NOW, link, &mut frames);
        let frame = only(frames);
        lane.secrets.check(&frame.to_vec());
        lane.far.rx_bytes(NOW, OUTSIDE, &frame.to_vec());
        assert_eq!(only(lane.far.tx(INSIDE)).len(), bytes.len(), "{what}");
        assert_eq!((lane.device.stats().sealed, lane.near.drops()), (sealed, vec![]), "{what}");
    }
    // Of SAs in a row the last is the device's; one that does not fit is fragmented behind ESP, in software.
    let mut lane = Lane::over(Tunnel { nested: true, ..raw }, OffloadMode::Crypto);
    lane.send();
    assert_eq!((lane.carry(OUTSIDE), lane.device.stats().sealed), (SEGMENTS, SEGMENTS as u64));
    assert_eq!(lane.received.bytes, lane.sent);
    let mut lane = Lane::over(TUNNELS[0], OffloadMode::Crypto);
    let mut config = lane.near.path.ports.get(OUTSIDE).unwrap().config.clone();
    config.mtu = 1280;
    lane.near.path.set_port(OUTSIDE, config);
    let bytes = Flow::new("fd00:1::1", "fd00:2::1").tcp(0, 1200);
    lane.near.rx_bytes(NOW, INSIDE, &bytes);
    let fragments = lane.near.tx(OUTSIDE);
    assert_eq!((fragments.len(), fragments.iter().any(|pkt| pkt.meta.esp.is_some())), (2, false));
    for fragment in &fragments {
        lane.far.rx_bytes(NOW, OUTSIDE, &fragment.to_vec());
    }
    assert_eq!(only(lane.far.tx(INSIDE)).len(), bytes.len());
}

#[test]
fn in_packet_mode_there_is_no_other_way() {
    let drops = |lane: &Lane| (lane.near.drops(), lane.near.path.counters.get(Mib::XfrmOutError));
    let mut lane = Lane::new(OffloadMode::Packet);
    lane.detour();
    lane.send();
    assert_eq!(drops(&lane), (vec![(1, DropReason::EspWrongDevice, 1)], 0));
    let mut lane = Lane::new(OffloadMode::Packet);
    lane.device.set_faults(Faults { busy: true, ..Faults::default() });
    lane.send();
    assert_eq!(drops(&lane), (vec![(1, DropReason::EspDevice, 1)], 1));
    // What waits is for this device alone.
    let mut lane = Lane::new(OffloadMode::Packet);
    lane.send();
    assert_eq!(lane.waiting(OUTSIDE).len(), 1, "fat, as it came");
    let mut config = lane.near.path.ports.get(OUTSIDE).unwrap().config.clone();
    config.features.esp = false;
    lane.near.path.set_port(OUTSIDE, config);
    assert_eq!(lane.waiting(OUTSIDE), []);
    assert_eq!(drops(&lane), (vec![(1, DropReason::EspWrongDevice, 1)], 0));
    // The replay window is the device's: what goes by it is not opened here.
    let mut lane = Lane::new(OffloadMode::Packet);
    lane.far.rx(NOW, INSIDE, vec![lane.flow.reversed().fat_tcp(&lane.far.mem, 0, 2 * 1000, 1000)]);
    for frame in lane.far.tx(OUTSIDE) {
        lane.near.rx_bytes(NOW, OUTSIDE, &frame.to_vec());
    }
    assert_eq!(lane.near.drops(), [(2, DropReason::EspMismatch, 2)]);
    assert_eq!(lane.near.path.counters.get(Mib::XfrmInStateMismatch), 2);
}

#[test]
fn what_neighbours_are_told_has_its_number_from_the_device_that_counts() {
    let (here, there) = ("2001:db8::1", "2001:db8::2");
    for (mode, by_device) in MODES.into_iter().zip([1, 2]) {
        let mut node = Node::new();
        node.port(OUTSIDE.0, PortOptions { mac: Some(mac(1)), ..PortOptions::BARE }, &[&format!("{here}/64")]);
        let device = SoftDevice::new(true, true);
        node.attach(OUTSIDE, &device);
        let sa = esp(here, there, 0x1000, Mode::Transport, false);
        let offload = Some(Offload { dev: OUTSIDE, dir: SaDir::Out, mode });
        node.path.ipsec.add_sa(&SaConfig { offload, ..sa.clone() }, unique_mask()).unwrap();
        let offload = (mode == OffloadMode::Packet).then_some(OUTSIDE);
        let policy = policy(Dir::Out, here, there, &[sa]);
        node.path.ipsec.add_policy(ipsec::PolicyConfig { offload, ..policy }).unwrap();
        let ask = Flow::new(there, here);
        let header = wire::eth::Header::new(mac(1), mac(2), wire::EtherType::IPV6);
        let mut frames = Vec::new();
        for packet in [solicitation(&ask, mac(2)), ask.ping(1, 100)] {
            node.rx_bytes(NOW, OUTSIDE, &[header.as_bytes(), &packet].concat());
            frames.extend(node.tx(OUTSIDE));
        }
        node.to_wire(NOW, OUTSIDE, &mut frames);
        let numbers: Vec<_> = frames.iter().map(|frame| frame.to_vec()[58..62].to_vec()).collect();
        assert_eq!(numbers, [[0, 0, 0, 1], [0, 0, 0, 2]], "{mode:?}");
        assert_eq!((device.stats().sealed, node.drops()), (by_device, vec![]), "{mode:?}");
    }
}

#[test]
fn a_path_that_is_too_narrow_for_what_a_device_has_sealed_is_known_as_such() {
    for mode in MODES {
        let mut lane = Lane::new(mode);
        let too_narrow = |spi: u8| {
            let quote = Flow::new(ENDS[0][0], ENDS[0][1]).raw(wire::Protocol::ESP, &[0, 0, 0x10, spi, 0, 0, 0, 1]);
            too_big(false, 1300, ENDS[0][0], &quote)
        };
        lane.near.rx_bytes(NOW, OUTSIDE, &too_narrow(0));
        assert_eq!(lane.near.drops(), [(2, DropReason::IcmpQuote, 1)], "{mode:?}: nothing was sent yet");
        lane.send();
        assert_eq!(lane.carry(OUTSIDE), SEGMENTS);
        lane.near.rx_bytes(NOW, OUTSIDE, &too_narrow(1));
        assert_eq!(lane.near.path.path_mtus_learnt, 0, "{mode:?}: the SA to receive by");
        lane.near.rx_bytes(NOW, OUTSIDE, &too_narrow(0));
        assert_eq!(lane.near.path.path_mtus_learnt, 1, "{mode:?}");
        lane.send();
        assert!(lane.waiting(OUTSIDE).is_empty(), "{mode:?}");
        let said = told(&only(lane.near.tx(INSIDE))).message;
        assert_eq!(said, Message::V4(wire::icmp::Message::FragNeeded { mtu: 1246 }), "{mode:?}");
    }
}

#[test]
fn what_a_device_says_is_counted_exactly() {
    let cases = [
        (EspStatus::AuthFailed, Mib::XfrmInStateProtoError, DropReason::EspIcv, 1),
        (EspStatus::BadProtocol, Mib::XfrmInStateProtoError, DropReason::EspFormat, 0),
        (EspStatus::BadSyntax, Mib::XfrmInBufferError, DropReason::EspDevice, 0),
        (EspStatus::Failed, Mib::XfrmInBufferError, DropReason::EspDevice, 0),
    ];
    for mode in MODES {
        for (status, mib, reason, failed) in cases {
            let mut lane = Lane::new(mode);
            lane.device.set_faults(Faults { status: Some(status), ..Faults::default() });
            lane.far.rx(NOW, INSIDE, vec![lane.flow.reversed().fat_tcp(&lane.far.mem, 0, 3 * 1000, 1000)]);
            let frames = lane.far.tx(OUTSIDE);
            let mut frames: Vec<_> =
                frames.iter().map(|frame| Packet::with_data(&lane.near.mem, &frame.to_vec()).unwrap()).collect();
            lane.near.from_wire(NOW, OUTSIDE, &mut frames);
            lane.near.rx(NOW, OUTSIDE, frames);
            assert_eq!(lane.near.drops(), [(2, reason, 3)], "{mode:?} {status:?}");
            let outer = if mode == OffloadMode::Crypto { 3 } else { 0 };
            let want = counters([(mib, 3), (Mib::IpInReceives, outer), (Mib::IpInDelivers, outer)]);
            assert_eq!(lane.near.path.counters, want, "{mode:?} {status:?}");
            let stats: Vec<_> = lane.near.path.ipsec.sad().iter().map(|sa| sa.stats().failed).collect();
            assert_eq!(stats, [0, 3 * failed], "{mode:?} {status:?}");
            assert!(lane.near.tx(INSIDE).is_empty());
        }
    }
}

#[test]
fn what_a_device_has_decrypted_goes_nowhere_but_to_its_sa() {
    // The address is no more the node's, so the frame would be forwarded as it is: in clear.
    let mut lane = Lane::new(OffloadMode::Crypto);
    lane.far.rx(NOW, INSIDE, vec![lane.flow.reversed().fat_tcp(&lane.far.mem, 0, 2 * 1000, 1000)]);
    let frames = lane.far.tx(OUTSIDE);
    let mut frames: Vec<_> =
        frames.iter().map(|frame| Packet::with_data(&lane.near.mem, &frame.to_vec()).unwrap()).collect();
    lane.near.from_wire(NOW, OUTSIDE, &mut frames);
    lane.near.path.fib = fib::Fib::default();
    lane.near.route("192.0.2.1/32", None, INSIDE);
    lane.near.rx(NOW, OUTSIDE, frames);
    assert_eq!(lane.near.drops(), [(2, DropReason::EspDevice, 2)]);
    assert!(lane.near.tx(INSIDE).is_empty());
}

#[test]
fn a_device_that_goes_down_under_load_takes_its_sas_and_policies_along() {
    for removed in [false, true] {
        for mode in MODES {
            let mut lane = Lane::new(mode);
            lane.send();
            lane.carry(OUTSIDE);
            lane.send();
            let waiting = lane.waiting(OUTSIDE).len() as u64;
            let policies = if mode == OffloadMode::Packet { 4 } else { 0 };
            assert_eq!(lane.device.load(), (2, policies));
            let Node { path, mem, .. } = &mut lane.near;
            if removed {
                path.remove_port(NOW, mem, OUTSIDE);
            } else {
                path.set_up(NOW, mem, OUTSIDE, false);
                path.set_up(NOW, mem, OUTSIDE, true);
            }
            assert_eq!((lane.device.load(), lane.near.path.ipsec.sad().len()), ((0, 0), 0), "{mode:?}");
            assert_eq!(lane.near.path.ipsec.spd().len(), 6 - policies, "{mode:?}");
            assert_eq!(lane.near.drops(), [(1, DropReason::LinkDown, waiting)], "{mode:?}");
            // Without a policy packets would pass: who offloads policies blocks what has none.
            lane.near.path.ipsec.set_default_policy(Dir::Out, ipsec::Action::Block);
            lane.send();
            assert!(removed || lane.near.tx(OUTSIDE).is_empty(), "{mode:?}");
            let reason = match mode {
                _ if removed => DropReason::LinkDown,
                OffloadMode::Crypto => DropReason::PolicyNoState,
                OffloadMode::Packet => DropReason::PolicyBlock,
            };
            assert!(lane.near.drops().iter().any(|&(_, why, n)| why == reason && n > 0), "{mode:?}");
            assert_eq!(lane.received.bytes, SEGMENTS * usize::from(lane.mss), "{mode:?}");
            drop(lane.near.tx(INSIDE));
            assert_eq!(lane.near.pages_in_use(), 0, "{mode:?}");
        }
    }
}
