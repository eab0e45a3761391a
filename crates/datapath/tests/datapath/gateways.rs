//! Two gateways with a guest behind each, and a wire between them.

use packet::{Cut, Packet};
use sim::{End, Flow, Host, Medium, Node, PortOptions, Wire, World, esp, link_pair, stream_byte};
use wire::tcp;
use xfrm::{Mode, SaConfig};

use crate::common::*;

/// The wire between the gateways, by its number in the world.
pub(crate) const WIRE: usize = 0;

/// The gateways' outer addresses of either family.
pub(crate) const ENDS: [[&str; 2]; 2] = [["192.0.2.1", "192.0.2.2"], ["2001:db8::1", "2001:db8::2"]];

/// Kind of tunnel between two gateways.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Tunnel {
    /// Whether the outer header is IPv6's.
    pub(crate) v6: bool,
    /// Whether ESP is in UDP.
    pub(crate) udp: bool,
    /// Whether there is a tunnel in the tunnel.
    pub(crate) nested: bool,
}

/// Every kind of tunnel that is not in another.
pub(crate) const TUNNELS: [Tunnel; 4] = [
    Tunnel { v6: false, udp: false, nested: false },
    Tunnel { v6: false, udp: true, nested: false },
    Tunnel { v6: true, udp: false, nested: false },
    Tunnel { v6: true, udp: true, nested: false },
];

impl Tunnel {
    /// The SAs from one end to the other, the innermost first.
    pub(crate) fn sas(self, from: usize) -> Vec<SaConfig> {
        let ends = ENDS[usize::from(self.v6)];
        let sa = |spi, udp| esp(ends[from], ends[1 - from], spi + from as u32, Mode::Tunnel, udp);
        if self.nested { vec![sa(0x3000, false), sa(0x1000, self.udp)] } else { vec![sa(0x1000, self.udp)] }
    }

    /// The bytes of TCP payload that just fit in a segment of that flow.
    pub(crate) fn mss(self, flow: &Flow) -> u16 {
        let mtu = self.sas(0).iter().rev().fold(1500, |mtu, sa| overhead(sa).inner_mtu(mtu));
        (mtu - flow.tcp_headers()) as u16
    }
}

/// Bytes that an SA of [`esp`] adds to a packet.
pub(crate) fn overhead(sa: &SaConfig) -> xfrm::Overhead {
    let outer = wire::Version::of_addr(sa.dst);
    xfrm::Overhead { mode: sa.mode, outer, udp: sa.encap.is_some(), iv_len: 8, icv_len: 16, align: 4 }
}

/// Gateways 0 and 1 with neighbour entries for their guests, without IPsec; 10.1/16 and fd00:1::/32 are behind the
/// first, 10.2/16 and fd00:2::/32 behind the second.
pub(crate) fn gateways(medium: Medium, seed: u64) -> World {
    let mut world = World::new(seed);
    let wan = PortOptions::BARE;
    for at in 0..2 {
        let mut node = Node::new();
        let net = at + 1;
        let (inner, inner_v6) = (format!("10.{net}.0.254/16"), format!("fd00:{net}::254/32"));
        let (outer, outer_v6) = (format!("{}/24", ENDS[0][at]), format!("{}/64", ENDS[1][at]));
        node.port(INSIDE.0, PortOptions::BARE.mtu(9000), &[&inner, &inner_v6]);
        node.port(OUTSIDE.0, wan, &[&outer, &outer_v6]);
        // The guest is the host, which has the outer addresses too.
        node.datapath.set_host_role(INSIDE, datapath::HostRole::Peer);
        node.datapath.set_host_role(OUTSIDE, datapath::HostRole::SharesAddress);
        node.route(&format!("10.{}.0.0/16", 2 - at), Some(ENDS[0][1 - at]), OUTSIDE);
        node.route(&format!("fd00:{}::/32", 2 - at), Some(ENDS[1][1 - at]), OUTSIDE);
        world.add_node(node);
        world.add_host(Host::guest());
    }
    world.join(Wire::new(medium, 1500), End::Port(0, OUTSIDE), End::Port(1, OUTSIDE));
    for at in 0..2 {
        world.join(Wire::new(Medium::Guest, 0), End::Port(at, INSIDE), End::Host(at));
    }
    world
}

/// The same gateways with a tunnel between them, both ways, for both families.
pub(crate) fn tunnelled(tunnel: Tunnel, seed: u64) -> World {
    let mut world = gateways(if tunnel.udp { Medium::UdpSocket } else { Medium::Cable }, seed);
    let [a, b] = &mut world.nodes[..] else { panic!("two gateways") };
    protect(a, b, tunnel, 0);
    protect(b, a, tunnel, 1);
    world
}

fn protect(near: &mut Node, far: &mut Node, tunnel: Tunnel, from: usize) {
    let sas = tunnel.sas(from);
    let nets = [["10.1.0.0/16", "10.2.0.0/16"], ["fd00:1::/32", "fd00:2::/32"]].map(|net| (net[from], net[1 - from]));
    link_pair(near, far, nets[0], &sas);
    for dir in [xfrm::Dir::In, xfrm::Dir::Fwd] {
        far.datapath.ipsec.add_policy(sim::policy(dir, nets[1].0, nets[1].1, &sas)).unwrap();
    }
    near.datapath.ipsec.add_policy(sim::policy(xfrm::Dir::Out, nets[1].0, nets[1].1, &sas)).unwrap();
}

/// The bytes of a stream that were received.
#[derive(Debug, Default)]
pub(crate) struct Received {
    /// Offsets that were delivered.
    places: Vec<bool>,
    /// Number of bytes.
    pub(crate) bytes: usize,
}

impl Received {
    /// Takes in a TCP packet, fat or not: every byte must equal the stream's, and must not have arrived before.
    pub(crate) fn take(&mut self, flow: &Flow, pkt: &Packet) {
        let bytes = pkt.to_vec();
        let info = info_of(&bytes);
        assert_eq!((info.src, info.dst), (flow.src, flow.dst));
        let segment = tcp::Tcp::parse(info.payload(&bytes)).unwrap();
        if pkt.meta.cut == Cut::Whole {
            assert!(offload::checksum::verify(pkt, &info), "{pkt:?}");
        }
        let seq = segment.header().seq();
        let first = seq as usize;
        let end = first + segment.payload_len();
        self.places.resize(self.places.len().max(end), false);
        for (at, &byte) in segment.payload().iter().enumerate() {
            assert_eq!(byte, stream_byte(seq + at as u32), "place {}", first + at);
            assert!(!self.places[first + at], "place {} came twice", first + at);
            self.places[first + at] = true;
        }
        self.bytes += segment.payload_len();
    }
}
