//! The MSS of forwarded SYNs, lowered to the path MTU.

use std::time::Duration;

use base::PortId;
use sim::{Flow, PortOptions};

use crate::common::*;
use crate::gateways::*;

const SECOND: Duration = Duration::from_secs(1);

/// Length of the MSS that fits `mtu`.
fn most(flow: &Flow, mtu: u16) -> u16 {
    mtu - flow.version().header_len() as u16 - 20
}

#[test]
fn syn_is_lowered_to_the_narrower_link_both_ways() {
    for (clamped, is_lowered) in
        [(vec![], false), (vec![INSIDE], true), (vec![OUTSIDE], true), (vec![PortId(7)], false)]
    {
        for flow in flows() {
            let mut node = router_with(PortOptions::BARE.mtu(1400), PortOptions::BARE.mtu(9000));
            node.datapath.set_clamp_mss(clamped.clone());
            for (from, to, flow) in [(INSIDE, OUTSIDE, flow), (OUTSIDE, INSIDE, flow.reversed())] {
                for (mss, fits) in [(1460, most(&flow, 1400)), (most(&flow, 1400), most(&flow, 1400)), (500, 500)] {
                    node.rx_bytes(NOW, from, &syn(&flow, mss, false));
                    let want = syn(&flow, if is_lowered { fits } else { mss }, false);
                    let at = flow.version().header_len();
                    assert_eq!(only(node.tx(to)).to_vec()[at..], want[at..], "{clamped:?} {mss}");
                }
                // Other segments pass unchanged.
                node.rx_bytes(NOW, from, &flow.tcp(1, 10));
                assert_eq!(only(node.tx(to)).to_vec()[20..], flow.tcp(1, 10)[20..]);
            }
        }
    }
}

#[test]
fn syn_is_lowered_to_the_tunnel_both_ways_by_one_gateway() {
    for tunnel in TUNNELS {
        for flow in flows() {
            let mut world = tunnelled(tunnel, 1);
            world.nodes[0].datapath.set_clamp_mss(vec![OUTSIDE]);
            // MSS of a segment with timestamps, and the length of the timestamps.
            let want = tunnel.mss(&flow) + 12;
            for (from, flow) in [(0, flow), (1, flow.reversed())] {
                let pkt = packet::Packet::with_data(&world.hosts[from].mem, &syn(&flow, 8960, true)).unwrap();
                world.hosts[from].send(pkt);
                world.run(SECOND);
                let got = only(world.hosts[1 - from].take()).to_vec();
                let at = flow.version().header_len();
                assert_eq!(got[at..], syn(&flow, want, true)[at..], "{tunnel:?} from {from}");
            }
        }
    }
}

#[test]
fn malformed_options_of_a_syn_pass_as_they_are() {
    let [flow, _] = flows();
    for options in [
        [2, 4, 0x23, 0, 1, 1, 9, 0],
        [2, 3, 0x23, 0, 0, 0, 0, 0],
        [2, 40, 0x23, 0, 0, 0, 0, 0],
        [1, 1, 1, 1, 1, 1, 1, 2],
    ] {
        let mut node = router();
        node.datapath.set_clamp_mss(vec![OUTSIDE]);
        let mut bytes = syn(&flow, 9000, false);
        bytes[20 + 32..20 + 40].copy_from_slice(&options);
        node.rx_bytes(NOW, INSIDE, &bytes);
        assert_eq!(only(node.tx(OUTSIDE)).to_vec()[20..], bytes[20..], "{options:?}");
    }
}
