//! Removal of a device while packets are queued for it.

use base::DropReason;
use sim::{Node, SoftDevice, SoftStats};
use xfrm::Dir;
use xfrm::OffloadMode;

use super::{Lane, MODES, SEGMENTS};
use crate::common::*;

#[test]
fn queued_packets_are_sealed_when_a_link_loses_its_device() {
    // `ethtool -K … esp-hw-offload off`, and the kernel's refusal of an offload.
    for by_refit in [false, true] {
        let mut lane = Lane::new(OffloadMode::Crypto);
        lane.send();
        lane.send();
        let mut config = lane.near.datapath.ports.get(OUTSIDE).unwrap().config.clone();
        config.features.esp = false;
        let Node { datapath, mem, .. } = &mut lane.near;
        if by_refit {
            datapath.refit(NOW, mem, OUTSIDE, config.features);
        } else {
            datapath.set_port(OUTSIDE, config);
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
            let Node { datapath, mem, .. } = &mut lane.near;
            // The link's features may still include ESP for a while.
            let other = other.then(|| Box::new(SoftDevice::new(true, true)) as Box<dyn ipsec::device::Device>);
            datapath.set_device(NOW, mem, OUTSIDE, other);
            assert!(lane.waiting(OUTSIDE).is_empty(), "{mode:?}");
            assert_eq!((lane.device.load(), lane.near.datapath.ipsec.sad().len()), ((0, 0), 0), "{mode:?}");
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
fn packet_held_for_a_neighbour_is_sealed_if_device_cannot() {
    for esp in [true, false] {
        let mut lane = Lane::new(OffloadMode::Crypto);
        let mut config = lane.near.datapath.ports.get(OUTSIDE).unwrap().config.clone();
        config.mac = Some(mac(1));
        lane.near.datapath.set_port(OUTSIDE, config.clone());
        lane.near.rx(NOW, INSIDE, vec![lane.flow.fat_tcp(&lane.near.mem, 0, 2 * 1000, 1000)]);
        assert_eq!(lane.near.waiting(), 2);
        let request = lane.near.tx(OUTSIDE);
        assert_eq!(request.len(), 1, "an ARP request");
        config.features.esp = esp;
        lane.near.datapath.set_port(OUTSIDE, config);
        let mut reply = request[0].to_vec();
        // The request becomes a reply: operation 2, sender and target exchanged (RFC 826).
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
fn device_down_under_load_removes_its_sas_and_policies() {
    for removed in [false, true] {
        for mode in MODES {
            let mut lane = Lane::new(mode);
            lane.send();
            lane.carry(OUTSIDE);
            lane.send();
            let waiting = lane.waiting(OUTSIDE).len() as u64;
            let policies = if mode == OffloadMode::Packet { 4 } else { 0 };
            assert_eq!(lane.device.load(), (2, policies));
            let Node { datapath, mem, .. } = &mut lane.near;
            if removed {
                datapath.remove_port(NOW, mem, OUTSIDE);
            } else {
                datapath.set_up(NOW, mem, OUTSIDE, false);
                datapath.set_up(NOW, mem, OUTSIDE, true);
            }
            assert_eq!((lane.device.load(), lane.near.datapath.ipsec.sad().len()), ((0, 0), 0), "{mode:?}");
            assert_eq!(lane.near.datapath.ipsec.spd().len(), 6 - policies, "{mode:?}");
            assert_eq!(lane.near.drops(), [(1, DropReason::LinkDown, waiting)], "{mode:?}");
            // Without a policy packets would pass, so the default policy of a setup with offloaded policies is to
            // block.
            lane.near.datapath.ipsec.set_default_policy(Dir::Out, xfrm::Action::Block);
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
