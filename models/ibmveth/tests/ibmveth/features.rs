//! Attribute word and offloads: negotiated, set, refused, and displayed.

use ibmveth::{AdapterConfig, AdapterPlace, Attributes, Firmware, Refusal, SettingError, Stats, Style, TxOffloads};
use offload::CsumOffload;

use crate::common::*;

fn query(world: &mut World, at: usize) -> Attributes {
    let unit = world.units[at];
    world.lan.illan_attributes(unit, Attributes::NONE, Attributes::NONE).unwrap()
}

#[test]
fn word_is_read_reset_and_set_by_one_call() {
    let mut world = World::new(Firmware::CURRENT);
    let unit = world.lan.add_adapter(AdapterPlace::trunk(mac(1), 7, Vec::new())).unwrap();
    let fixed = Attributes::PADDED_CSUM
        | Attributes::LARGE_SEND_SUPPORT
        | Attributes::RX_MULTI_BUFFER
        | Attributes::of_priority(7);
    let bits = [Attributes::IPV4_TCP_CSUM, Attributes::IPV6_TCP_CSUM, Attributes::LARGE_SEND_ENABLED];
    // From every set of settable bits to every other set.
    for from in 0..8 {
        for to in 0..8 {
            let of = |number: u64| {
                bits.iter()
                    .enumerate()
                    .filter(|(at, _)| number >> at & 1 == 1)
                    .fold(Attributes::NONE, |all, (_, &bit)| all | bit)
            };
            let (reset, set) = (of(from) & !of(to), of(to) & !of(from));
            world.lan.illan_attributes(unit, Attributes::SETTABLE & !of(from), of(from)).unwrap();
            assert_eq!(world.lan.illan_attributes(unit, reset, set), Ok(fixed | of(to)), "{from} to {to}");
            assert_eq!(world.lan.illan_attributes(unit, Attributes::NONE, Attributes::NONE), Ok(fixed | of(to)));
        }
    }
}

#[test]
fn bit_that_cannot_be_changed_is_refused_and_nothing_is() {
    let without = |bits: Attributes| Firmware { attributes: Some(Attributes::ALL & !bits), ..Firmware::CURRENT };
    let none = Attributes::NONE;
    let cases = [
        (Firmware::CURRENT, Attributes::ACTIVE_TRUNK, none),
        (Firmware::CURRENT, none, Attributes::ACTIVE_TRUNK),
        (Firmware::CURRENT, none, Attributes::of_priority(1)),
        (Firmware::CURRENT, none, Attributes::PADDED_CSUM),
        (Firmware::CURRENT, none, Attributes(1 << 63)),
        (Firmware::CURRENT, Attributes::IPV4_TCP_CSUM, Attributes::SETTABLE),
        (without(Attributes::IPV4_TCP_CSUM), none, Attributes::SETTABLE),
        (without(Attributes::LARGE_SEND_SUPPORT), none, Attributes::LARGE_SEND_ENABLED),
    ];
    for (firmware, reset, set) in cases {
        let mut world = World::new(firmware);
        let unit = world.lan.add_adapter(AdapterPlace::guest(mac(1))).unwrap();
        let before = world.lan.illan_attributes(unit, none, none);
        assert_eq!(world.lan.illan_attributes(unit, reset, set), Err(Refusal::Parameter), "{reset:?} {set:?}");
        assert_eq!(world.lan.illan_attributes(unit, none, none), before);
    }
    let mut world = World::new(Firmware { attributes: None, ..Firmware::CURRENT });
    let unit = world.lan.add_adapter(AdapterPlace::guest(mac(1))).unwrap();
    assert_eq!(world.lan.illan_attributes(unit, none, none), Err(Refusal::Function));
}

#[test]
fn defaults_are_what_the_hypervisor_agrees_to() {
    let without = |bits: Attributes| Firmware { attributes: Some(Attributes::ALL & !bits), ..Firmware::CURRENT };
    let old = AdapterConfig { style: Style::Old, ..config() };
    let cases = [
        (Firmware::CURRENT, config(), CsumOffload::Both, [true, true], [1, 1, 1]),
        (Firmware::CURRENT, old, CsumOffload::Both, [false, false], [1, 1, 0]),
        (without(Attributes::IPV4_TCP_CSUM), config(), CsumOffload::Ipv6, [false, true], [0, 1, 1]),
        (without(Attributes::IPV6_TCP_CSUM), config(), CsumOffload::Ipv4, [true, false], [1, 0, 1]),
        (without(Attributes::PADDED_CSUM), config(), CsumOffload::None, [false, false], [0, 0, 0]),
        (without(Attributes::LARGE_SEND_SUPPORT), config(), CsumOffload::Both, [false, false], [1, 1, 0]),
        (without(Attributes::LARGE_SEND_ENABLED), config(), CsumOffload::Both, [false, false], [1, 1, 0]),
        (Firmware { attributes: None, ..Firmware::CURRENT }, config(), CsumOffload::None, [false, false], [0, 0, 0]),
    ];
    for (firmware, config, csum, tso, enabled) in cases {
        let mut world = World::new(firmware);
        world.add(AdapterPlace::guest(mac(1)), config);
        let features = world.adapters[0].features();
        let stats = world.adapters[0].stats();
        assert_eq!((features.csum, [features.tso4, features.tso6]), (csum, tso), "{firmware:?}");
        let got = [stats.fw_enabled_ipv4_csum, stats.fw_enabled_ipv6_csum, stats.fw_enabled_large_send];
        assert_eq!(got, enabled, "{firmware:?}");
    }
}

#[test]
fn offloads_follow_the_rules_for_every_request() {
    for bits in 0..16u8 {
        let bit = |at: u8| bits >> at & 1 == 1;
        let wanted = TxOffloads { rx_csum: bit(0), tx_csum: bit(1), tso4: bit(2), tso6: bit(3) };
        let mut world = World::pair();
        world.set(0, wanted).unwrap();
        let tx_csum = wanted.rx_csum && wanted.tx_csum;
        let (tso4, tso6) = (wanted.tso4 && tx_csum, wanted.tso6 && tx_csum);
        assert_eq!(world.adapters[0].offloads(), TxOffloads { rx_csum: wanted.rx_csum, tx_csum, tso4, tso6 });
        let features = world.adapters[0].features();
        let csum = if tx_csum { CsumOffload::Both } else { CsumOffload::None };
        assert_eq!(
            (features.csum, features.tso4, features.tso6, features.uso),
            (csum, tso4, tso6, false),
            "{wanted:?}"
        );
        let word = query(&mut world, 0);
        assert_eq!(word.contains(Attributes::IPV4_TCP_CSUM | Attributes::IPV6_TCP_CSUM), wanted.rx_csum);
        assert_eq!(word.contains(Attributes::LARGE_SEND_ENABLED), tso4 || tso6);
        // The reverse change.
        world.set(0, TxOffloads::ALL).unwrap();
        assert!(query(&mut world, 0).contains(Attributes::SETTABLE));
    }
}

#[test]
fn refused_offload_is_an_error_and_stays_off() {
    let without = |bits: Attributes| Firmware { attributes: Some(Attributes::ALL & !bits), ..Firmware::CURRENT };
    let mut world = World::new(without(Attributes::PADDED_CSUM));
    world.add(AdapterPlace::guest(mac(1)), config());
    assert_eq!(world.set(0, TxOffloads::CSUM), Err(SettingError::Refused));
    assert_eq!((world.adapters[0].offloads(), world.adapters[0].is_open()), (TxOffloads::NONE, true));
    let mut world = World::new(without(Attributes::LARGE_SEND_ENABLED));
    world.add(AdapterPlace::guest(mac(1)), config());
    assert_eq!(world.set(0, TxOffloads::ALL), Err(SettingError::Refused));
    assert_eq!((world.adapters[0].offloads(), world.adapters[0].is_open()), (TxOffloads::CSUM, true));
    // One version of IP is enough.
    let mut world = World::new(without(Attributes::IPV4_TCP_CSUM));
    world.add(AdapterPlace::guest(mac(1)), config());
    assert_eq!(world.set(0, TxOffloads::CSUM), Ok(()));
}

#[test]
fn changed_checksums_close_and_open_the_adapter() {
    let mut world = World::pair();
    let pkt = plain(&world.mem, &flows()[0].tcp(1, 1000), mac(2), mac(1));
    world.send(0, pkt).unwrap();
    world.set(1, TxOffloads { tx_csum: false, tso4: false, tso6: false, ..TxOffloads::ALL }).unwrap();
    // Large send was turned off: it is negotiated while the adapter is closed, too.
    assert_eq!((world.adapters[1].counters().rx_lost, world.receive(1).len()), (1, 0));
    let before = world.adapters[1].stats().replenish_add_buff_success;
    world.set(1, TxOffloads { tx_csum: true, ..world.adapters[1].offloads() }).unwrap();
    assert_eq!(world.adapters[1].stats().replenish_add_buff_success, before, "nothing to agree on");
    world.set(1, TxOffloads::NONE).unwrap();
    assert_eq!(world.adapters[1].stats().replenish_add_buff_success, before + 48);
}

#[test]
fn counters_have_the_names_of_the_driver() {
    let names = [
        "replenish_task_cycles",
        "replenish_no_mem",
        "replenish_add_buff_failure",
        "replenish_add_buff_success",
        "rx_invalid_buffer",
        "rx_no_buffer",
        "tx_map_failed",
        "tx_send_failed",
        "fw_enabled_ipv4_csum",
        "fw_enabled_ipv6_csum",
        "tx_large_packets",
        "rx_large_packets",
        "fw_enabled_large_send",
    ];
    assert_eq!(Stats::default().named().map(|(name, _)| name), names);
    // Only the counters for sending and receiving one fat frame change.
    let mut world = World::pair();
    let before = [0, 1].map(|at| world.adapters[at].stats());
    let pkt = fat(&world.mem, &flows()[1], 9000, 2, 1);
    world.send(0, pkt).unwrap();
    let mut out = Vec::new();
    world.adapters[1].poll(&mut world.lan, &world.mem, 64, &mut out);
    let after = [0, 1].map(|at| world.adapters[at].stats());
    assert_eq!(after[0], Stats { tx_large_packets: 1, ..before[0] });
    let cycles = before[1].replenish_task_cycles + 1;
    assert_eq!(after[1], Stats { rx_large_packets: 1, replenish_task_cycles: cycles, ..before[1] });
}
