//! A gateway with ESP offload to a device, and one with software ESP: they interoperate, and no failure sends a packet
//! in clear.

mod both_ways;
mod decision;
mod exits;
mod gone;
mod input;
mod numbers;
mod queue;

use std::collections::HashSet;

use base::PortId;
use offload::Features;
use packet::{Esp, Packet};
use sim::{Fate, Flow, Medium, Node, PortOptions, SoftDevice, World, policy, unique_mask};
use xfrm::{Dir, SaConfig, SaDir};
use xfrm::{Offload, OffloadMode};

use crate::common::*;
use crate::gateways::*;

const SEGMENTS: usize = 40;
const MODES: [OffloadMode; 2] = [OffloadMode::Crypto, OffloadMode::Packet];

/// Another link to the other gateway, without a device.
const DETOUR: PortId = PortId(3);

/// The prefixes behind the gateways, by family and gateway.
const NETS: [[&str; 2]; 2] = [["10.1.0.0/16", "10.2.0.0/16"], ["fd00:1::/32", "fd00:2::/32"]];

/// Adds the SAs and policies of gateway `at`, on its device if there is one.
fn configure(node: &mut Node, at: usize, tunnel: Tunnel, mode: Option<OffloadMode>) {
    let packet_mode = mode == Some(OffloadMode::Packet);
    for from in 0..2 {
        let dir = if from == at { SaDir::Out } else { SaDir::In };
        let offload = mode.map(|mode| Offload { dev: OUTSIDE, dir, mode });
        let sas = tunnel.sas(from);
        for (nth, sa) in sas.iter().enumerate() {
            let offload = offload.filter(|_| nth + 1 == sas.len());
            node.datapath.ipsec.add_sa(&SaConfig { offload, ..sa.clone() }, unique_mask()).unwrap();
        }
        let dirs = if from == at { &[Dir::Out][..] } else { &[Dir::In, Dir::Fwd] };
        for (net, &dir) in NETS.iter().flat_map(|net| dirs.iter().map(move |dir| (net, dir))) {
            let offload = (packet_mode && dir != Dir::Fwd).then_some(OUTSIDE);
            let policy = policy(dir, net[from], net[1 - from], &sas);
            node.datapath.ipsec.add_policy(xfrm::PolicyConfig { offload, ..policy }).unwrap();
        }
    }
}

/// The two gateways with a tunnel between them. The first has a device on its wire with offload `mode`.
fn world_with(tunnel: Tunnel, mode: OffloadMode, seed: u64) -> (World, SoftDevice) {
    let mut world = gateways(if tunnel.udp { Medium::UdpSocket } else { Medium::Cable }, seed);
    let device = SoftDevice::new(true, true);
    world.nodes[0].attach(OUTSIDE, &device);
    configure(&mut world.nodes[0], 0, tunnel, Some(mode));
    configure(&mut world.nodes[1], 1, tunnel, None);
    world.watch(WIRE);
    (world, device)
}

/// Plaintext that must not appear on the wire: every run of 16 bytes of the packets sent.
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

/// Two gateways without a simulated wire: the test carries packets from one to the other.
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

    /// Sends a fat packet of the guest, which is then queued on a link.
    fn send(&mut self) {
        let pkt = fat(&self.near, &self.flow, self.mss, self.sent);
        self.sent += SEGMENTS * usize::from(self.mss);
        self.secrets.note(&pkt);
        self.near.rx(NOW, INSIDE, vec![pkt]);
    }

    /// Moves the packets queued on a link over the wire to the other gateway, whose guest gets the decrypted packets.
    fn carry(&mut self, link: PortId) -> usize {
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

    fn waiting(&mut self, link: PortId) -> Vec<Option<Esp>> {
        let waiting = self.near.datapath.take_tx(link).unwrap().iter();
        waiting.flat_map(|pkt| std::iter::repeat_n(pkt.meta.esp, pkt.meta.cut.packets() as usize)).collect()
    }

    fn detour(&mut self) {
        self.near.port(DETOUR.0, PortOptions::BARE, &[]);
        self.near.route("192.0.2.2/32", None, DETOUR);
    }
}
