//! Packets decrypted by a device, and ICMP errors about packets that it has encrypted.

use base::{DropReason, Mib};
use datapath::TapPoints;
use packet::{Esp, EspStatus, Packet};
use sim::{Faults, Flow};
use xfrm::OffloadMode;

use super::{Lane, MODES, SEGMENTS};
use crate::common::*;
use crate::fragments::fragments;
use crate::gateways::*;
use crate::path_mtu::too_big;

#[test]
fn decryption_status_of_a_device_is_counted_exactly() {
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
            assert_eq!(lane.near.datapath.counters, want, "{mode:?} {status:?}");
            let stats: Vec<_> = lane.near.datapath.ipsec.sad().iter().map(|sa| sa.stats().failed).collect();
            assert_eq!(stats, [0, 3 * failed], "{mode:?} {status:?}");
            assert!(lane.near.tx(INSIDE).is_empty());
        }
    }
}

#[test]
fn device_decrypted_packet_goes_only_to_its_sa() {
    // The address is no longer the node's, so the frame would be forwarded in clear.
    let mut lane = Lane::new(OffloadMode::Crypto);
    lane.far.rx(NOW, INSIDE, vec![lane.flow.reversed().fat_tcp(&lane.far.mem, 0, 2 * 1000, 1000)]);
    let frames = lane.far.tx(OUTSIDE);
    let mut frames: Vec<_> =
        frames.iter().map(|frame| Packet::with_data(&lane.near.mem, &frame.to_vec()).unwrap()).collect();
    lane.near.from_wire(NOW, OUTSIDE, &mut frames);
    lane.near.datapath.fib = fib::Fib::default();
    lane.near.route("192.0.2.1/32", None, INSIDE);
    lane.near.rx(NOW, OUTSIDE, frames);
    assert_eq!(lane.near.drops(), [(2, DropReason::EspDevice, 2)]);
    assert!(lane.near.tx(INSIDE).is_empty());
}

#[test]
fn device_decrypted_packet_that_is_no_esp_is_dropped_unseen() {
    let mut lane = Lane::new(OffloadMode::Crypto);
    lane.far.rx(NOW, INSIDE, vec![lane.flow.reversed().fat_tcp(&lane.far.mem, 0, 1000, 1000)]);
    let frames = lane.far.tx(OUTSIDE);
    let mut frames: Vec<_> =
        frames.iter().map(|frame| Packet::with_data(&lane.near.mem, &frame.to_vec()).unwrap()).collect();
    lane.near.from_wire(NOW, OUTSIDE, &mut frames);
    let mark = frames[0].meta.esp;
    assert!(matches!(mark, Some(Esp::Opened { .. })), "{mark:?}");
    lane.near.datapath.set_tap(OUTSIDE, TapPoints { wire: false, fat: true });
    let ping = Flow::new(ENDS[0][1], ENDS[0][0]).ping(1, 3000);
    // Fragments for the node, a whole packet for it, and one that ends too early.
    let mut marked = fragments(&lane.near.mem, &ping, 1280);
    marked.push(Packet::with_data(&lane.near.mem, &ping).unwrap());
    marked.push(Packet::with_data(&lane.near.mem, &ping[..100]).unwrap());
    marked.iter_mut().for_each(|pkt| pkt.meta.esp = mark);
    lane.near.rx(NOW, OUTSIDE, marked);
    assert_eq!(lane.near.drops(), [(2, DropReason::IpTruncated, 1), (2, DropReason::EspDevice, 4)]);
    assert_eq!(lane.near.datapath.counters.get(Mib::IpReasmReqds), 0);
    assert_eq!(lane.near.datapath.take_tapped().count(), 0);
    assert!(lane.near.tx(OUTSIDE).is_empty(), "no answer, and no error");
}

#[test]
fn path_mtu_is_learnt_for_device_sealed_packets() {
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
        assert_eq!(lane.near.datapath.path_mtus_learnt, 0, "{mode:?}: the SA to receive by");
        lane.near.rx_bytes(NOW, OUTSIDE, &too_narrow(0));
        assert_eq!(lane.near.datapath.path_mtus_learnt, 1, "{mode:?}");
        lane.send();
        assert!(lane.waiting(OUTSIDE).is_empty(), "{mode:?}");
        let said = told(&only(lane.near.tx(INSIDE))).message;
        assert_eq!(said, Message::V4(wire::icmp::IcmpMessage::FragNeeded { mtu: 1246 }), "{mode:?}");
    }
}
