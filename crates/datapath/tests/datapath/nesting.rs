//! Nested SAs: the maximum for a packet, and one more.

use base::{DropReason, Mib};
use sim::{Flow, Medium, World, esp, link_pair, policy};
use xfrm::{Action, Dir, Mode, SaConfig};

use crate::common::*;
use crate::gateways::{ENDS, gateways};

const SECOND: std::time::Duration = std::time::Duration::from_secs(1);

/// `n` transport SAs from one gateway to the other, the innermost first.
fn sas(v6: bool, from: usize, n: u32) -> Vec<SaConfig> {
    let ends = ENDS[usize::from(v6)];
    (0..n).map(|at| esp(ends[from], ends[1 - from], 0x100 * (at + 1) + from as u32, Mode::Transport, false)).collect()
}

/// Gateways whose own packets to each other go through `n` SAs.
fn nested(v6: bool, n: u32) -> World {
    let mut world = gateways(Medium::Cable, 1);
    let ends = ENDS[usize::from(v6)];
    let [a, b] = &mut world.nodes[..] else { panic!("two gateways") };
    link_pair(a, b, (ends[0], ends[1]), &sas(v6, 0, n));
    link_pair(b, a, (ends[1], ends[0]), &sas(v6, 1, n));
    world
}

#[test]
fn five_transport_sas_work_both_ways() {
    for v6 in [false, true] {
        let mut world = nested(v6, 5);
        let ends = ENDS[usize::from(v6)];
        let flow = Flow::new(ends[0], ends[1]);
        for len in [0, 100, 1200] {
            world.hosts[0].send_bytes(&flow.ping(1, len));
            world.run(SECOND);
        }
        let [echos, replies] =
            if v6 { [Mib::Icmp6InEchos, Mib::Icmp6InEchoReplies] } else { [Mib::IcmpInEchos, Mib::IcmpInEchoReps] };
        assert_eq!(world.nodes[1].datapath.counters.get(echos), 3, "v6 {v6}: {:?}", world.nodes[1].drops());
        assert_eq!(world.nodes[0].datapath.counters.get(replies), 3, "v6 {v6}: {:?}", world.nodes[0].drops());
        assert_eq!(world.nodes[1].drops(), [], "v6 {v6}");
        for (node, from) in [(0, 0), (1, 0), (0, 1), (1, 1)] {
            for sa in sas(v6, from, 5) {
                let ipsec = &world.nodes[node].datapath.ipsec;
                let stats = ipsec.sad().by_spi(sa.dst, sa.spi, 0).and_then(|id| ipsec.sa(id)).unwrap().stats();
                assert_eq!(stats.packets, 3, "v6 {v6}, node {node}, SPI {:#x}", sa.spi.0);
            }
        }
    }
}

#[test]
fn packet_too_long_for_five_sas_gets_one_error() {
    let mut world = nested(false, 5);
    let [here, there] = ENDS[0];
    // A guest with the gateway's own address sends to the other gateway.
    let flow = Flow::new(here, there);
    let mtu = sas(false, 0, 5).iter().fold(1500, |mtu, sa| crate::gateways::overhead(sa).inner_mtu(mtu));
    assert_eq!(mtu, 1322);
    for (len, fits) in [(mtu - 28, true), (mtu - 27, false)] {
        let frames = world.stats[crate::gateways::WIRE].frames;
        world.hosts[0].send_bytes(&flow.udp(len));
        world.run(SECOND);
        assert_eq!(world.stats[crate::gateways::WIRE].frames > frames, fits, "{len}");
    }
    let drops = world.nodes[0].drops();
    assert_eq!(drops.iter().filter(|drop| drop.1 == DropReason::PacketTooBig).map(|drop| drop.2).sum::<u64>(), 1);
}

#[test]
fn six_sa_policy_and_seventh_esp_layer_are_refused() {
    let mut world = nested(false, 5);
    let [here, there] = ENDS[0];
    let inner = sas(false, 0, 7);
    let node = &mut world.nodes[0];
    let six = policy(Dir::Out, here, there, &inner[..6]);
    node.datapath.ipsec.update_policy(six).unwrap();
    let pkt = Flow::new(here, there).ping(1, 10);
    node.rx_bytes(NOW, INSIDE, &pkt);
    assert_eq!((node.tx(OUTSIDE).len(), node.datapath.counters.get(Mib::XfrmOutPolError)), (0, 1));
    assert_eq!(node.drops(), [(1, DropReason::PolicyDepth, 1)]);

    // Seven layers by two nodes: each adds the maximum.
    let sealed = |sas: &[SaConfig], bytes: &[u8]| {
        let mut node = sim::Node::new();
        node.port(INSIDE.0, sim::PortOptions::BARE.mtu(9000), &[]);
        node.port(OUTSIDE.0, sim::PortOptions::BARE.mtu(9000), &[]);
        node.route("0.0.0.0/0", None, OUTSIDE);
        for sa in sas {
            node.datapath.ipsec.add_sa(sa, sim::unique_mask()).unwrap();
        }
        node.datapath.ipsec.add_policy(policy(Dir::Out, here, there, sas)).unwrap();
        node.rx_bytes(NOW, INSIDE, bytes);
        only(node.tx(OUTSIDE)).to_vec()
    };
    for (layers, opened) in [(6, true), (7, false)] {
        let first = sealed(&inner[..layers - 4], &pkt);
        let all = sealed(&inner[layers - 4..layers], &first);
        let mut far = sim::Node::new();
        far.port(OUTSIDE.0, sim::PortOptions::BARE.mtu(9000), &[&format!("{there}/24")]);
        for sa in &inner[..layers] {
            far.datapath.ipsec.add_sa(sa, sim::unique_mask()).unwrap();
        }
        far.datapath.ipsec.set_default_policy(Dir::In, Action::Allow);
        far.rx_bytes(NOW, OUTSIDE, &all);
        assert_eq!(far.datapath.counters.get(Mib::IcmpInEchos), u64::from(opened), "{layers}: {:?}", far.drops());
        assert_eq!(far.datapath.counters.get(Mib::XfrmInBufferError), u64::from(!opened));
    }
}
