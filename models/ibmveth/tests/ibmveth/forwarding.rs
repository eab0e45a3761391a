//! Forwarding by the hypervisor: known and unknown destinations, trunks, VLANs, groups.

use ibmveth::{AdapterPlace, Attributes, Firmware, SettingError, TxError};
use packet::Packet;
use wire::MacAddr;

use crate::common::*;

/// A frame that is not IP, with a tag or without.
fn frame(world: &World, dst: MacAddr, src: u8, vid: Option<u16>) -> Packet {
    let mut bytes = [&dst.0[..], &mac(src).0].concat();
    if let Some(vid) = vid {
        bytes.extend([0x81, 0]);
        bytes.extend((0x6000 | vid).to_be_bytes());
    }
    bytes.extend([0x88, 0xb5]);
    bytes.extend([7; 100]);
    Packet::with_data(&world.mem, &bytes).unwrap()
}

/// Tags of the frames that each adapter receives.
fn received(world: &mut World) -> Vec<Vec<Option<u16>>> {
    let tag = |pkt: &Packet| {
        let bytes = pkt.to_vec();
        (bytes[12..14] == [0x81, 0]).then(|| u16::from_be_bytes([bytes[14], bytes[15]]) & 0xfff)
    };
    (0..world.adapters.len()).map(|at| world.receive(at).iter().map(tag).collect()).collect()
}

fn send(world: &mut World, from: usize, dst: MacAddr, vid: Option<u16>) {
    let pkt = frame(world, dst, from as u8 + 1, vid);
    world.send(from, pkt).unwrap();
}

const NONE: Vec<Option<u16>> = Vec::new();

#[test]
fn known_destination_has_it_alone_and_unknown_ones_the_trunk() {
    let mut world = World::pair();
    world.add(AdapterPlace::trunk(mac(3), 1, Vec::new()), config());
    send(&mut world, 0, mac(2), None);
    assert_eq!(received(&mut world), [NONE, vec![None], NONE]);
    send(&mut world, 0, mac(9), None);
    assert_eq!(received(&mut world), [NONE, NONE, vec![None]]);
    // From the outside to a guest, and to an unknown address.
    send(&mut world, 2, mac(1), None);
    send(&mut world, 2, mac(9), None);
    assert_eq!(received(&mut world), [vec![None], NONE, NONE]);
    assert_eq!(world.lan.counters().no_receiver, 1);
    assert_eq!(world.adapters[2].counters().tx_packets, 2);
}

#[test]
fn frame_without_trunk_to_unknown_is_dropped_and_counts_as_sent() {
    let mut world = World::pair();
    send(&mut world, 0, mac(9), None);
    assert_eq!((received(&mut world), world.lan.counters().no_receiver), (vec![NONE, NONE], 1));
    assert_eq!((world.adapters[0].counters().tx_packets, world.adapters[0].counters().tx_dropped), (1, 0));
}

#[test]
fn best_open_trunk_takes_over_and_gives_back() {
    let mut world = World::pair();
    for (last, priority) in [(3, 2), (4, 1)] {
        world.add(AdapterPlace::trunk(mac(last), priority, Vec::new()), config());
    }
    let word = |world: &mut World, at: usize| {
        let unit = world.units[at];
        world.lan.illan_attributes(unit, Attributes::NONE, Attributes::NONE).unwrap()
    };
    assert_eq!((word(&mut world, 2).priority(), word(&mut world, 3).priority()), (2, 1));
    let round = |world: &mut World, active: usize| {
        let standby = 5 - active;
        send(world, 0, mac(9), None);
        let mut want = vec![NONE; 4];
        want[active] = vec![None];
        assert_eq!(received(world), want);
        for (at, is_active) in [(active, true), (standby, false)] {
            assert_eq!(word(world, at).contains(Attributes::ACTIVE_TRUNK), is_active);
            assert_eq!(
                (world.adapters[at].is_active_trunk(), world.adapters[at].features().frag_list),
                (is_active, is_active)
            );
        }
    };
    round(&mut world, 3);
    // A standby trunk sends its own frames, and no others.
    let pkt = frame(&world, mac(1), 9, None);
    world.send(2, pkt).unwrap();
    assert_eq!(received(&mut world), [NONE, NONE, NONE, NONE]);
    send(&mut world, 2, mac(1), None);
    assert_eq!(received(&mut world), [vec![None], NONE, NONE, NONE]);
    // A standby trunk receives no groups.
    send(&mut world, 0, MacAddr::BROADCAST, None);
    assert_eq!(received(&mut world), [NONE, vec![None], NONE, vec![None]]);
    world.adapters[3].close(&mut world.lan);
    world.receive(2);
    assert!(world.adapters[2].is_active_trunk());
    send(&mut world, 0, mac(9), None);
    assert_eq!(received(&mut world), [NONE, NONE, vec![None], NONE]);
    world.adapters[3].open(&mut world.lan).unwrap();
    received(&mut world);
    round(&mut world, 3);
}

#[test]
fn vlans_have_trunks_and_members_of_their_own() {
    let mut world = World::new(Firmware::CURRENT);
    let guest =
        |last, pvid, vlans: &[u16]| AdapterPlace { pvid, vlans: vlans.to_vec(), ..AdapterPlace::guest(mac(last)) };
    world.add(guest(1, 1, &[5]), config());
    world.add(guest(2, 5, &[]), config());
    world.add(AdapterPlace::trunk(mac(3), 1, vec![5]), config());
    world.add(AdapterPlace::trunk(mac(4), 2, vec![5, 6]), config());
    // The tag stays on the way to the trunk, and is removed for an adapter whose untagged VLAN it names.
    send(&mut world, 0, mac(9), Some(5));
    send(&mut world, 0, mac(2), Some(5));
    assert_eq!(received(&mut world), [NONE, vec![None], vec![Some(5)], NONE]);
    // Untagged frames of VLAN 5 are tagged for the others.
    send(&mut world, 1, mac(9), None);
    send(&mut world, 1, mac(1), None);
    assert_eq!(received(&mut world), [vec![Some(5)], NONE, vec![Some(5)], NONE]);
    // A guest neither reaches another VLAN, nor sends in a VLAN of which it is not a member.
    send(&mut world, 0, mac(2), None);
    send(&mut world, 0, mac(9), Some(6));
    assert_eq!(received(&mut world), [NONE, NONE, vec![None], NONE]);
    // VLAN 6 has only the second trunk, which is active there.
    received(&mut world);
    assert!(world.adapters[2].is_active_trunk() && world.adapters[3].is_active_trunk());
    // A priority tag names no VLAN.
    send(&mut world, 0, mac(9), Some(0));
    assert_eq!(received(&mut world), [NONE, NONE, vec![None], NONE]);
}

#[test]
fn tag_keeps_its_priority() {
    let mut world = World::new(Firmware::CURRENT);
    world.add(AdapterPlace { vlans: vec![5], ..AdapterPlace::guest(mac(1)) }, config());
    world.add(AdapterPlace::trunk(mac(2), 1, vec![5]), config());
    let pkt = frame(&world, mac(9), 1, Some(5));
    let want = pkt.to_vec();
    world.send(0, pkt).unwrap();
    assert_eq!(world.receive(1)[0].to_vec(), want);
}

#[test]
fn group_frame_reaches_members_whose_filter_has_it() {
    let group = |last| MacAddr([1, 0, 0x5e, 0, 0, last]);
    for groups in [0, 1, 2, 3] {
        let mut world = World::pair();
        let place = AdapterPlace { filter_slots: 2, ..AdapterPlace::guest(mac(3)) };
        world.add(place, config());
        world.add(AdapterPlace::trunk(mac(4), 1, Vec::new()), config());
        let list: Vec<MacAddr> = (1..=groups).map(group).collect();
        let World { lan, adapters, .. } = &mut world;
        adapters[2].set_groups(lan, false, &list);
        for last in 1..=4 {
            send(&mut world, 0, group(last), None);
        }
        // More groups than slots: all are received.
        let count = if groups > 2 { 4 } else { usize::from(groups) };
        assert_eq!(received(&mut world), [NONE, NONE, vec![None; count], vec![None; 4]], "{groups}");
        let World { lan, adapters, .. } = &mut world;
        adapters[2].set_groups(lan, true, &[]);
        // Promiscuous mode survives a reopen.
        adapters[2].set_mtu(lan, 1400).unwrap();
        send(&mut world, 0, group(9), None);
        assert_eq!(received(&mut world), [NONE, NONE, vec![None], vec![None]]);
    }
}

#[test]
fn broadcast_goes_to_many_by_several_calls() {
    let mut world = World::new(Firmware { copies_per_call: 2, ..Firmware::CURRENT });
    for last in 1..=7 {
        world.add(AdapterPlace::guest(mac(last)), config());
    }
    send(&mut world, 3, MacAddr::BROADCAST, None);
    let mut want = vec![vec![None]; 7];
    want[3].clear();
    assert_eq!((received(&mut world), world.adapters[3].counters().tx_retries), (want, 2));
}

#[test]
fn place_that_cannot_be_is_refused() {
    let mut world = World::new(Firmware::CURRENT);
    let good = AdapterPlace::trunk(mac(1), 1, Vec::new());
    let cases = [
        (AdapterPlace { pvid: 0, ..good.clone() }, SettingError::Range(0)),
        (AdapterPlace { pvid: 4095, ..good.clone() }, SettingError::Range(4095)),
        (AdapterPlace { vlans: vec![5, 4095], ..good.clone() }, SettingError::Range(4095)),
        (AdapterPlace { vlans: (2..23).collect(), ..good.clone() }, SettingError::Range(21)),
        (AdapterPlace { trunk: Some(0), ..good.clone() }, SettingError::Range(0)),
        (AdapterPlace { trunk: Some(16), ..good.clone() }, SettingError::Range(16)),
        (AdapterPlace { mac: MacAddr::BROADCAST, ..good.clone() }, SettingError::Address),
    ];
    for (place, want) in cases {
        assert_eq!(world.lan.add_adapter(place).map(drop), Err(want));
    }
    world.add(good, config());
    let pkt = frame(&world, mac(9), 1, None);
    world.adapters[0].close(&mut world.lan);
    assert_eq!(world.send(0, pkt), Err(TxError::Closed));
}
