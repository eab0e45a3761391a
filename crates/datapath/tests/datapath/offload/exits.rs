//! The ways out for packets that a device is to encrypt, and the ways in for packets that it has decrypted: none of them carries
//! plaintext.

use std::time::Duration;

use base::{DropReason, Mib, PortId};
use datapath::TapPoints;
use fib::Known;
use offload::Features;
use packet::{Esp, Packet};
use qdisc::{Depth, LinkLayer, Options, RateSpec, Tbf};
use sim::{Medium, PortOptions, SoftDevice};
use wire::{EtherType, eth};
use xfrm::OffloadMode;

use super::{Lane, MODES, SEGMENTS, Secrets, configure};
use crate::common::*;
use crate::gateways::*;
use crate::host_side::{add_devices_to, up};

/// The link below a virtual device.
const LOWER: PortId = PortId(4);

/// The VLAN of a VLAN device.
const VID: u16 = 5;

/// Virtual device above [`LOWER`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Above {
    Vlan,
    Bridge,
}

/// A lane whose [`OUTSIDE`] is that virtual device, which claims to have the device of its SAs.
fn lane_above(above: Above, mode: OffloadMode) -> Lane {
    let mut world = gateways(Medium::Cable, 1);
    let mut far = world.nodes.pop().unwrap();
    let mut near = world.nodes.pop().unwrap();
    let features = Features { frames: false, ..Features::ALL };
    near.port(LOWER.0, PortOptions::ethernet(1).features(features), &[]);
    match above {
        Above::Vlan => {
            near.port(OUTSIDE.0, PortOptions::ethernet(1).features(features), &[]);
            near.datapath.set_vlan(OUTSIDE, LOWER, VID).unwrap();
        }
        Above::Bridge => {
            near.datapath.remove_port(NOW, &near.mem, OUTSIDE);
            near.datapath.add_bridge(OUTSIDE, "br0".to_owned(), mac(1), 1500).unwrap();
            near.datapath.set_bridge(NOW, &near.mem, LOWER, Some(OUTSIDE)).unwrap();
        }
    }
    let device = SoftDevice::new(true, true);
    near.attach(OUTSIDE, &device);
    let known = Known::Permanent(mac(2));
    near.datapath.set_neighbour(NOW, &near.mem, OUTSIDE, ENDS[0][1].parse().unwrap(), known, 0);
    configure(&mut near, 0, TUNNELS[0], Some(mode));
    configure(&mut far, 1, TUNNELS[0], None);
    let [flow, _] = flows();
    let mss = TUNNELS[0].mss(&flow);
    Lane { near, far, device, flow, mss, sent: 0, secrets: Secrets::default(), received: Received::default() }
}

#[test]
fn esp_for_a_device_leaves_a_virtual_device_encrypted() {
    for above in [Above::Vlan, Above::Bridge] {
        for is_traced in [false, true] {
            let mut lane = lane_above(above, OffloadMode::Crypto);
            if is_traced {
                lane.near.datapath.set_trace(crate::trace::every(), 1000);
            }
            lane.send();
            assert_eq!(lane.waiting(OUTSIDE), [], "{above:?}");
            let l3 = if above == Above::Vlan { 18 } else { 14 };
            let frames = lane.near.tx(LOWER);
            assert_eq!(frames.len(), SEGMENTS, "{above:?}");
            for frame in frames {
                let bytes = frame.to_vec();
                lane.secrets.check(&bytes);
                assert_eq!((frame.meta.esp, bytes[12..14] == [0x81, 0]), (None, above == Above::Vlan));
                lane.far.rx_bytes(NOW, OUTSIDE, &bytes[l3..]);
            }
            lane.far.tx(INSIDE).iter().for_each(|pkt| lane.received.take(&lane.flow, pkt));
            assert_eq!((lane.received.bytes, lane.device.stats().sealed), (lane.sent, 0), "{above:?}");
            assert_eq!((lane.near.drops(), lane.far.drops()), (vec![], vec![]), "{above:?}");
        }
        // Only its device numbers the packets of an SA in packet mode.
        let mut lane = lane_above(above, OffloadMode::Packet);
        lane.send();
        assert_eq!(lane.near.drops(), [(1, DropReason::EspWrongDevice, 1)], "{above:?}");
        assert!(lane.near.tx(LOWER).is_empty() && lane.waiting(OUTSIDE).is_empty(), "{above:?}");
    }
}

#[test]
fn tbf_segments_a_packet_for_a_device_in_packet_mode() {
    let mut lane = Lane::new(OffloadMode::Packet);
    let rate = RateSpec { rate: 1 << 30, overhead: 0, mpu: 0, link_layer: LinkLayer::ETHERNET };
    let tbf = Tbf { rate, burst: Depth::Bytes(4 << 10), peak: None, limit: 1 << 20 };
    lane.near.datapath.set_qdisc(NOW, &lane.near.mem, OUTSIDE, Some(Options::Tbf(tbf))).unwrap();
    lane.send();
    let mut sent = 0;
    for millis in 1..=SEGMENTS {
        let marks = lane.waiting(OUTSIDE);
        assert!(!marks.is_empty() && marks.iter().all(|esp| matches!(esp, Some(Esp::Protect(_)))), "{marks:?}");
        sent += lane.carry(OUTSIDE);
        if sent == SEGMENTS {
            break;
        }
        lane.near.timeout(NOW + Duration::from_millis(millis as u64));
    }
    assert_eq!((sent, lane.received.bytes, lane.near.drops()), (SEGMENTS, lane.sent, vec![]));
}

/// Lane over Ethernet with a device of the host side, whose packet sockets are promiscuous.
fn watched(mode: OffloadMode) -> Lane {
    let mut lane = Lane::new(mode);
    let mut config = lane.near.datapath.ports.get(OUTSIDE).unwrap().config.clone();
    config.mac = Some(mac(1));
    lane.near.datapath.set_port(OUTSIDE, config);
    add_devices_to(&mut lane.near, &[OUTSIDE]);
    assert!(lane.near.datapath.set_watched(OUTSIDE, true));
    lane
}

#[test]
fn packet_sockets_get_no_copy_of_esp_for_a_device() {
    for mode in MODES {
        let mut lane = watched(mode);
        let known = Known::Permanent(mac(2));
        lane.near.datapath.set_neighbour(NOW, &lane.near.mem, OUTSIDE, ENDS[0][1].parse().unwrap(), known, 0);
        lane.send();
        assert!(lane.waiting(OUTSIDE).iter().all(Option::is_some), "{mode:?}");
        assert_eq!(up(&mut lane.near, OUTSIDE).len(), 0, "{mode:?}");
    }
}

#[test]
fn unresolved_esp_for_a_device_is_dropped_without_an_error() {
    let mut lane = watched(OffloadMode::Crypto);
    lane.near.rx(NOW, INSIDE, vec![lane.flow.fat_tcp(&lane.near.mem, 0, 2 * 1000, 1000)]);
    assert_eq!(lane.near.waiting(), 2);
    for seconds in 1..10 {
        lane.near.timeout(NOW + Duration::from_secs(seconds));
    }
    assert_eq!(lane.near.drops(), [(1, DropReason::NeighbourFailed, 2)]);
    assert_eq!(lane.near.datapath.counters.get(Mib::IcmpOutMsgs), 0);
    assert!(lane.near.tx(INSIDE).is_empty());
}

/// Frames that the device of [`OUTSIDE`] has decrypted in place.
fn opened(lane: &mut Lane) -> Vec<Packet> {
    lane.far.rx(NOW, INSIDE, vec![lane.flow.reversed().fat_tcp(&lane.far.mem, 0, 2 * 1000, 1000)]);
    let frames = lane.far.tx(OUTSIDE);
    let copies = frames.iter().map(|frame| Packet::with_data(&lane.near.mem, &frame.to_vec()).unwrap());
    let mut frames: Vec<_> = copies.collect();
    lane.near.from_wire(NOW, OUTSIDE, &mut frames);
    assert!(frames.iter().all(|pkt| matches!(pkt.meta.esp, Some(Esp::Opened { .. }))));
    frames
}

/// The same packets in frames to the station `mac(1)`, with these bytes between the addresses and the EtherType.
fn framed(lane: &Lane, packets: &[Packet], tag: &[u8]) -> Vec<Packet> {
    let header = eth::EthHeader::new(mac(1), mac(2), EtherType::IPV4);
    let (addresses, ethertype) = header.as_bytes().split_at(12);
    let frame = |pkt: &Packet| {
        let bytes = [addresses, tag, ethertype, &pkt.to_vec()].concat();
        let mut frame = Packet::with_data(&lane.near.mem, &bytes).unwrap();
        frame.meta.esp = pkt.meta.esp;
        frame
    };
    packets.iter().map(frame).collect()
}

#[test]
fn decrypted_frame_is_neither_bridged_nor_received_by_a_vlan() {
    // The mark is of a device that decrypts frames which it should leave alone.
    let tag = [0x81, 0, 0, VID as u8];
    let zero = [0x81, 0, 0, 0, 0x81, 0, 0, VID as u8];
    for (above, tag) in [(Above::Vlan, &tag[..]), (Above::Vlan, &zero[..]), (Above::Bridge, &[][..])] {
        let mut lane = Lane::new(OffloadMode::Crypto);
        let packets = opened(&mut lane);
        let mut lane = lane_above(above, OffloadMode::Crypto);
        let other = PortId(6);
        lane.near.port(other.0, PortOptions::ethernet(6), &[]);
        if above == Above::Bridge {
            lane.near.datapath.set_bridge(NOW, &lane.near.mem, other, Some(OUTSIDE)).unwrap();
        }
        let frames = framed(&lane, &packets, tag);
        lane.near.rx(NOW, LOWER, frames);
        let by = if above == Above::Bridge { LOWER } else { OUTSIDE };
        assert_eq!(lane.near.drops(), [(by.0, DropReason::EspDevice, 2)], "{above:?} {tag:?}");
        assert!([other, INSIDE].into_iter().all(|link| lane.near.tx(link).is_empty()), "{above:?}");
    }
}

#[test]
fn decrypted_packet_with_faulty_headers_causes_no_error() {
    let mut lane = Lane::over(TUNNELS[2], OffloadMode::Crypto);
    let packets = opened(&mut lane);
    // Destination options with an unknown option, of a type that causes an ICMP error (RFC 8200 §4.2).
    let mut bytes = packets[0].to_vec();
    let payload_len = u16::from_be_bytes([bytes[4], bytes[5]]) + 8;
    bytes[4..6].copy_from_slice(&payload_len.to_be_bytes());
    let next = std::mem::replace(&mut bytes[6], wire::Protocol::DEST_OPTS.0);
    bytes.splice(40..40, [next, 0, 0x9e, 4, 0, 0, 0, 0]);
    for mark in [None, packets[0].meta.esp] {
        let mut pkt = Packet::with_data(&lane.near.mem, &bytes).unwrap();
        pkt.meta.esp = mark;
        lane.near.rx(NOW, OUTSIDE, vec![pkt]);
        assert_eq!(lane.near.tx(OUTSIDE).len(), usize::from(mark.is_none()), "{mark:?}");
    }
    assert_eq!(lane.near.drops(), [(2, DropReason::Ipv6Header, 2)]);
}

#[test]
fn decrypted_packet_is_captured_and_goes_to_its_sa() {
    let mut lane = Lane::new(OffloadMode::Crypto);
    lane.near.datapath.set_tap(OUTSIDE, TapPoints { wire: false, fat: true });
    let packets = opened(&mut lane);
    lane.near.rx(NOW, OUTSIDE, packets);
    // Both ESP packets, and the decrypted ones, which GRO has coalesced.
    assert_eq!((lane.near.datapath.take_tapped().count(), lane.near.drops()), (3, vec![]));
    assert_eq!(only(lane.near.tx(INSIDE)).len(), lane.flow.tcp_headers() + 2000);
}
