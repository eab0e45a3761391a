//! Sequence numbers assigned by device or software, and their overflow.

use base::{DropReason, Mib};
use packet::Esp;
use sim::{Flow, Node, PortOptions, SoftDevice, esp, policy, unique_mask};
use xfrm::{Dir, Mode, SaConfig, SaDir, SaFlags};
use xfrm::{Offload, OffloadMode};

use super::{Lane, MODES, SEGMENTS};
use crate::common::*;
use crate::gateways::*;

/// The sequence numbers of a train are taken in one step, or none of them.
#[test]
fn train_stops_at_sequence_overflow_and_continues_with_esn() {
    const LEFT: usize = 10;
    let last = u64::from(u32::MAX) - LEFT as u64;
    for (esn, by_device) in [(false, true), (true, true), (true, false)] {
        let mut lane = Lane::new(OffloadMode::Crypto);
        let sa = TUNNELS[0].sas(0).remove(0);
        let sa = SaConfig { flags: SaFlags { esn, ..sa.flags }, ..sa };
        let offload = Some(Offload { dev: OUTSIDE, dir: SaDir::Out, mode: OffloadMode::Crypto });
        let ends = [SaConfig { oseq: last, offload, ..sa.clone() }, SaConfig { seq: last, ..sa.clone() }];
        for (node, config) in [&mut lane.near, &mut lane.far].into_iter().zip(ends) {
            node.datapath.ipsec.remove_sa(sa.dst, sa.spi, 0).unwrap();
            node.datapath.ipsec.add_sa(&config, unique_mask()).unwrap();
        }
        let oseq = |lane: &Lane| {
            let ipsec = &lane.near.datapath.ipsec;
            ipsec.sa(ipsec.sad().by_spi(sa.dst, sa.spi, 0).unwrap()).unwrap().oseq()
        };
        if !esn {
            lane.send();
            assert!(lane.waiting(OUTSIDE).is_empty());
            assert_eq!(lane.near.drops(), [(1, DropReason::EspSequenceOverflow, 1)]);
            assert_eq!((lane.near.datapath.counters.get(Mib::XfrmOutStateSeqError), oseq(&lane)), (1, last));
            // A train with enough sequence numbers left is still sent.
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
            let mut config = lane.near.datapath.ports.get(OUTSIDE).unwrap().config.clone();
            config.features.esp = false;
            lane.near.datapath.set_port(OUTSIDE, config);
            assert_eq!(lane.waiting(OUTSIDE), vec![None; SEGMENTS]);
        }
        assert_eq!((lane.carry(OUTSIDE), lane.received.bytes), (SEGMENTS, lane.sent));
        assert_eq!(lane.device.stats().sealed, if by_device { SEGMENTS as u64 } else { 0 });
        assert_eq!((lane.near.drops(), lane.far.drops(), oseq(&lane)), (vec![], vec![], last + SEGMENTS as u64));
    }
}

#[test]
fn protected_discovery_is_numbered_by_the_device() {
    let (here, there) = ("2001:db8::1", "2001:db8::2");
    for (mode, by_device) in MODES.into_iter().zip([1, 2]) {
        let mut node = Node::new();
        node.port(OUTSIDE.0, PortOptions { mac: Some(mac(1)), ..PortOptions::BARE }, &[&format!("{here}/64")]);
        let device = SoftDevice::new(true, true);
        node.attach(OUTSIDE, &device);
        let sa = esp(here, there, 0x1000, Mode::Transport, false);
        let offload = Some(Offload { dev: OUTSIDE, dir: SaDir::Out, mode });
        node.datapath.ipsec.add_sa(&SaConfig { offload, ..sa.clone() }, unique_mask()).unwrap();
        let offload = (mode == OffloadMode::Packet).then_some(OUTSIDE);
        let policy = policy(Dir::Out, here, there, &[sa]);
        node.datapath.ipsec.add_policy(xfrm::PolicyConfig { offload, ..policy }).unwrap();
        let ask = Flow::new(there, here);
        let header = wire::eth::EthHeader::new(mac(1), mac(2), wire::EtherType::IPV6);
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
