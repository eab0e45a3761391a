//! Choice between encryption by a device, in software, or a drop.

use base::{DropReason, Mib};
use packet::{Esp, Packet};
use sim::{Faults, Flow};
use xfrm::OffloadMode;

use super::{DETOUR, Lane, SEGMENTS};
use crate::common::*;
use crate::gateways::*;

#[test]
fn route_flap_leaks_no_clear_packet_and_loses_none() {
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

#[test]
fn packet_a_device_cannot_seal_is_sealed_in_software() {
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
    // The device encrypts for the last of nested SAs; a packet that does not fit is encrypted in software, and
    // fragmented after ESP.
    let mut lane = Lane::over(Tunnel { nested: true, ..raw }, OffloadMode::Crypto);
    lane.send();
    assert_eq!((lane.carry(OUTSIDE), lane.device.stats().sealed), (SEGMENTS, SEGMENTS as u64));
    assert_eq!(lane.received.bytes, lane.sent);
    let mut lane = Lane::over(TUNNELS[0], OffloadMode::Crypto);
    let mut config = lane.near.datapath.ports.get(OUTSIDE).unwrap().config.clone();
    config.mtu = 1280;
    lane.near.datapath.set_port(OUTSIDE, config);
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
fn packet_mode_has_no_software_fallback() {
    let drops = |lane: &Lane| (lane.near.drops(), lane.near.datapath.counters.get(Mib::XfrmOutError));
    let mut lane = Lane::new(OffloadMode::Packet);
    lane.detour();
    lane.send();
    assert_eq!(drops(&lane), (vec![(1, DropReason::EspWrongDevice, 1)], 0));
    let mut lane = Lane::new(OffloadMode::Packet);
    lane.device.set_faults(Faults { busy: true, ..Faults::default() });
    lane.send();
    assert_eq!(drops(&lane), (vec![(1, DropReason::EspDevice, 1)], 1));
    // Queued packets are for this device only.
    let mut lane = Lane::new(OffloadMode::Packet);
    lane.send();
    assert_eq!(lane.waiting(OUTSIDE).len(), 1, "unsegmented");
    let mut config = lane.near.datapath.ports.get(OUTSIDE).unwrap().config.clone();
    config.features.esp = false;
    lane.near.datapath.set_port(OUTSIDE, config);
    assert_eq!(lane.waiting(OUTSIDE), []);
    assert_eq!(drops(&lane), (vec![(1, DropReason::EspWrongDevice, 1)], 0));
    // The device has the replay window: a packet that bypasses the device is not decrypted here.
    let mut lane = Lane::new(OffloadMode::Packet);
    lane.far.rx(NOW, INSIDE, vec![lane.flow.reversed().fat_tcp(&lane.far.mem, 0, 2 * 1000, 1000)]);
    for frame in lane.far.tx(OUTSIDE) {
        lane.near.rx_bytes(NOW, OUTSIDE, &frame.to_vec());
    }
    assert_eq!(lane.near.drops(), [(2, DropReason::EspMismatch, 2)]);
    assert_eq!(lane.near.datapath.counters.get(Mib::XfrmInStateMismatch), 2);
}
