//! Settings that change under traffic: lost frames are counted, and delivered ones are correct.

use ibmveth::{Firmware, FragListMode, TxOffloads};
use link::Link;
use offload::Features;
use sim::Rng;

use crate::site::*;

/// One change, by number.
fn change(site: &mut Site, number: u64) {
    let sets = [TxOffloads::NONE, TxOffloads::CSUM, TxOffloads::ALL];
    let lan = std::sync::Arc::clone(&site.lan);
    match number % 12 {
        0..=2 => site.trunk.set_offloads(sets[number as usize % 3]).unwrap(),
        3..=5 => site.guest.set_offloads(&mut lan.lock().unwrap(), sets[number as usize % 3]).unwrap(),
        6 => site.trunk.configure(|adapter, lan| adapter.set_pool_count(lan, 1, 32 + number as usize % 32)).unwrap(),
        7 => site.guest.set_pool_count(&mut lan.lock().unwrap(), 4, 16 + number as usize % 32).unwrap(),
        8 => {
            let active = site.trunk.adapter().pool(2).unwrap().active;
            site.trunk.configure(|adapter, lan| adapter.set_pool_active(lan, 2, !active)).unwrap();
        }
        9 => {
            let mtu = [1500, 9000][number as usize % 2];
            site.trunk.set_mtu(Some(mtu)).unwrap();
            let mut port = site.node.datapath.ports.get(TRUNK).unwrap().config.clone();
            port.mtu = mtu.into();
            site.node.datapath.set_port(TRUNK, port);
        }
        10 => site.guest.set_mtu(&mut lan.lock().unwrap(), [1500, 9000][number as usize % 2]).unwrap(),
        _ => {
            let modes = [FragListMode::Cut, FragListMode::Linearize, FragListMode::InPlace];
            site.trunk.set_frag_list_mode(modes[number as usize % 3]);
        }
    }
}

#[test]
fn change_between_send_and_receipt_loses_what_is_counted() {
    let mut site = Site::new(Firmware::CURRENT, config(), config(), Features::NONE);
    let mut rng = Rng::new(35);
    let (mut lost_frames, mut lost_any) = (0, 0);
    for round in 0..600 {
        let flow = flows()[round % 2];
        let load = Load::ALL[round % 5];
        let vid = [None, Some(VLAN)][round / 2 % 2];
        let before = (site.trunk.adapter().counters().rx_lost, site.guest.counters().rx_lost);
        site.guest_sends(load.packet(&site.node.mem, &flow), vid);
        site.wire_brings(load.packet(&site.node.mem, &flow.reversed()), vid);
        if rng.below(2) == 0 {
            change(&mut site, rng.below(1000) as u64);
        }
        let packets = site.drain_wire();
        let out = finished(&site.node.mem, packets);
        let packets = site.drain_guest();
        let back = finished(&site.node.mem, packets);
        let after = (site.trunk.adapter().counters().rx_lost, site.guest.counters().rx_lost);
        // The load arrives complete, or not at all and is counted as lost.
        for (got, want, lost) in [
            (out, load.frames(&flow, STATION, GUEST, vid), after.0 - before.0),
            (back, load.frames(&flow.reversed(), GUEST, STATION, vid), after.1 - before.1),
        ] {
            assert!(got == if lost == 0 { want } else { Vec::new() }, "round {round}, {load:?}, {lost} lost");
            lost_frames += lost;
            lost_any += u64::from(lost > 0);
        }
    }
    assert!(lost_any > 20, "{lost_any}");
    let guest = site.guest.counters().rx_lost;
    assert_eq!(lost_frames, site.trunk.stats().rx_dropped + guest);
    assert_eq!((site.node.drops(), site.trunk.stats().tx_dropped, site.lan().counters().no_buffer), (Vec::new(), 0, 0));
}

#[test]
fn change_between_bursts_loses_nothing() {
    let mut site = Site::new(Firmware::CURRENT, config(), config(), Features::NONE);
    for round in 0..600 {
        change(&mut site, round as u64);
        for flow in flows() {
            let load = Load::ALL[round % 5];
            site.guest_sends(load.packet(&site.node.mem, &flow), None);
            let packets = site.drain_wire();
            let got = finished(&site.node.mem, packets);
            assert!(got == load.frames(&flow, STATION, GUEST, None), "round {round}, {load:?}");
            site.wire_brings(load.packet(&site.node.mem, &flow.reversed()), None);
            let packets = site.drain_guest();
            let got = finished(&site.node.mem, packets);
            assert!(got == load.frames(&flow.reversed(), GUEST, STATION, None), "round {round}, {load:?}");
        }
    }
    assert_eq!((site.trunk.adapter().counters().rx_lost, site.guest.counters().rx_lost), (0, 0));
}

#[test]
fn frames_that_wait_are_fitted_again_when_offloads_go() {
    // Fat frames for the trunk are queued in the bridge when its large send is disabled.
    let mut site = Site::new(Firmware::CURRENT, config(), config(), Features::NONE);
    for flow in flows().map(sim::Flow::reversed) {
        site.trunk.set_offloads(TxOffloads::ALL).unwrap();
        site.flush();
        site.wire_brings(Load::Fat.packet(&site.node.mem, &flow), None);
        site.drain_guest();
        site.trunk.set_offloads(TxOffloads::NONE).unwrap();
        site.wire_brings(Load::Fat.packet(&site.node.mem, &flow), None);
        let packets = site.drain_guest();
        assert_eq!(packets.len(), 5, "cut by the datapath: the adapter does not");
        assert_eq!(site.trunk.adapter().counters().tx_cut, 0);
        let frames = finished(&site.node.mem, packets);
        assert!(frames == Load::Fat.frames(&flow, GUEST, STATION, None));
    }
}
