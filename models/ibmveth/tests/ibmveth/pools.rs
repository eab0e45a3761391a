//! Pools of receive buffers: best fit, exhaustion, refill, and the rules of their settings.

use ibmveth::{AdapterConfig, AdapterPlace, Attributes, Firmware, PoolConfig, SettingError};
use packet::Packet;

use crate::common::*;

/// A frame of `len` bytes that is not IP.
fn frame(world: &World, len: usize) -> Packet {
    let mut bytes = [&mac(2).0[..], &mac(1).0, &[0x88, 0xb5]].concat();
    bytes.resize(len, 7);
    Packet::with_data(&world.mem, &bytes).unwrap()
}

fn all_active() -> AdapterConfig {
    AdapterConfig { pools: POOLS.map(|pool| PoolConfig { active: true, ..pool }), ..config() }
}

fn world(config: AdapterConfig) -> World {
    let mut world = World::new(Firmware::CURRENT);
    world.add(AdapterPlace::guest(mac(1)), all_active());
    world.add(AdapterPlace::guest(mac(2)), config);
    world
}

fn available(world: &World) -> [usize; 5] {
    [0, 1, 2, 3, 4].map(|at| world.adapters[1].available(at))
}

#[test]
fn frame_is_received_by_the_smallest_buffer_that_holds_it() {
    // Eight bytes of each buffer are the handle.
    let cases = [
        (200, 0),
        (504, 0),
        (505, 1),
        (2040, 1),
        (2041, 2),
        (16_376, 2),
        (16_377, 3),
        (32_760, 3),
        (32_761, 4),
        (65_528, 4),
    ];
    for (len, pool) in cases {
        let mut world = world(all_active());
        let pkt = frame(&world, len);
        world.send(0, pkt).unwrap();
        // The adapter still owns the buffer, which leaves its pool when the frame is received.
        let mut out = Vec::new();
        let config = world.adapters[1].pool(pool).unwrap();
        assert_eq!(world.adapters[1].poll(&mut world.lan, &world.mem, 1, &mut out), 1);
        assert_eq!(out[0].len(), len);
        assert_eq!(out[0].head_buf().tailroom(), config.size - 8 - len, "{len}: pool {pool}");
        let mut want = [16; 5];
        want[pool] -= 1;
        assert_eq!(available(&world), want, "{len}: not below seven eighths");
    }
}

#[test]
fn exhausted_pool_leaves_frames_to_the_next_one() {
    for last in 0..5 {
        // Pools below `last` are too short for the frame; pool `last` is the first that holds it, before longer ones.
        let mut world = world(all_active());
        let len = [200, 600, 3000, 17_000, 33_000][last];
        let buffers = 16 * (5 - last);
        for _ in 0..buffers + 3 {
            let pkt = frame(&world, len);
            world.send(0, pkt).unwrap();
        }
        assert_eq!(world.lan.counters().no_buffer, 3);
        assert_eq!(world.adapters[0].counters().tx_packets, buffers as u64 + 3, "dropped by the peer counts as sent");
        let got = world.receive(1);
        assert_eq!(got.len(), buffers);
        assert!(got.iter().all(|pkt| pkt.len() == len));
        let stats = world.adapters[1].stats();
        assert_eq!(stats.rx_no_buffer, 3);
        assert_eq!(stats.replenish_add_buff_success, 80 + buffers as u64);
        assert_eq!((available(&world), world.lan.posted(world.units[1])), ([16; 5], 80));
        // Traffic continues.
        let pkt = frame(&world, len);
        world.send(0, pkt).unwrap();
        assert_eq!(world.receive(1).len(), 1);
    }
}

#[test]
fn inactive_pools_have_no_buffers() {
    let mut world = world(config());
    assert_eq!(available(&world), [16, 16, 0, 0, 16]);
    for _ in 0..17 {
        let pkt = frame(&world, 3000);
        world.send(0, pkt).unwrap();
    }
    assert_eq!((world.receive(1).len(), world.adapters[1].stats().rx_no_buffer), (16, 1));
}

#[test]
fn pool_is_refilled_below_seven_eighths() {
    let mut world = world(all_active());
    let mut added = 80;
    for taken in 1..=3 {
        let pkt = frame(&world, 300);
        world.send(0, pkt).unwrap();
        drop(world.receive(1));
        // The pool refills at seven eighths: 14 buffers of 16.
        added += if taken == 3 { 3 } else { 0 };
        assert_eq!(world.adapters[1].stats().replenish_add_buff_success, added);
        assert_eq!(available(&world)[0], if taken == 3 { 16 } else { 16 - taken });
    }
}

#[test]
fn buffers_are_added_one_by_one_without_the_call_for_more() {
    let firmware = Firmware { attributes: Some(Attributes::ALL & !Attributes::RX_MULTI_BUFFER), ..Firmware::CURRENT };
    let mut world = World::new(firmware);
    world.add(AdapterPlace::guest(mac(1)), all_active());
    let stats = world.adapters[0].stats();
    assert_eq!((stats.replenish_add_buff_success, stats.replenish_add_buff_failure), (80, 0));
    assert_eq!(world.lan.posted(world.units[0]), 80);
}

#[test]
fn short_memory_is_counted_and_made_up_for() {
    let mut world = world(AdapterConfig { pool_pages: 20, ..all_active() });
    let mut held = Vec::new();
    for _ in 0..2 {
        for _ in 0..16 {
            let pkt = frame(&world, 300);
            world.send(0, pkt).unwrap();
        }
        world.adapters[1].poll(&mut world.lan, &world.mem, 16, &mut held);
    }
    // The packets hold 16 of 20 pages, later all; pool 1 gets the remaining pages.
    assert_eq!(held.len(), 32);
    assert!(world.adapters[1].stats().replenish_no_mem >= 2, "{:?}", world.adapters[1].stats());
    assert_eq!(available(&world)[0], 0);
    held.clear();
    let mut none = Vec::new();
    world.adapters[1].poll(&mut world.lan, &world.mem, 16, &mut none);
    assert_eq!(available(&world), [16; 5]);
}

#[test]
fn entitlement_limits_buffers_and_is_counted() {
    // The transmit buffer uses one region; the pool of the longest buffers comes first.
    let mut world = World::new(Firmware { io_regions: 41, ..Firmware::CURRENT });
    world.add(AdapterPlace::guest(mac(1)), all_active());
    assert_eq!([4, 3, 2, 1, 0].map(|at| world.adapters[0].available(at)), [16, 16, 8, 0, 0]);
    assert_eq!(world.adapters[0].stats().replenish_add_buff_failure, 3);
}

#[test]
fn last_pool_with_buffers_for_the_mtu_stays() {
    let mut world = World::pair();
    let World { lan, adapters, .. } = &mut world;
    let adapter = &mut adapters[0];
    // Pools 0, 1 and 4 are active; 1 and 4 hold 1500 bytes.
    assert_eq!(adapter.set_pool_active(lan, 0, false), Ok(()));
    assert_eq!(adapter.set_pool_active(lan, 4, false), Ok(()));
    assert_eq!(adapter.set_pool_active(lan, 1, false), Err(SettingError::LastPool));
    assert_eq!(adapter.set_pool_active(lan, 2, true), Ok(()));
    assert_eq!(adapter.set_pool_active(lan, 1, false), Ok(()));
    assert_eq!(adapter.set_pool_active(lan, 2, false), Err(SettingError::LastPool));
    assert_eq!(adapter.set_pool_active(lan, 3, false), Ok(()), "it is off already");
    assert_eq!([0, 1, 2, 3, 4].map(|at| adapter.available(at)), [0, 0, 16, 0, 0]);
    assert_eq!(adapter.set_pool_active(lan, 5, true), Err(SettingError::Range(5)));
}

#[test]
fn pool_settings_have_ranges_and_reopen() {
    let mut world = World::pair();
    let unit = world.units[0];
    let World { lan, adapters, .. } = &mut world;
    let adapter = &mut adapters[0];
    for count in [0, 4097] {
        assert_eq!(adapter.set_pool_count(lan, 1, count), Err(SettingError::Range(count)));
    }
    for size in [22, 131_073] {
        assert_eq!(adapter.set_pool_size(lan, 1, size), Err(SettingError::Range(size)));
    }
    assert_eq!(adapter.pool(1), Some(POOLS[1]));
    adapter.set_pool_count(lan, 1, 4096).unwrap();
    assert_eq!((adapter.available(1), lan.posted(unit)), (4096, 4096 + 32));
    adapter.set_pool_count(lan, 1, 1).unwrap();
    assert_eq!((adapter.available(1), lan.posted(unit)), (1, 33));
    adapter.set_pool_size(lan, 4, 131_072).unwrap();
    assert_eq!((adapter.pool(4).unwrap().size, adapter.available(4)), (131_072, 16));
    assert!(adapter.is_open());
    adapter.close(lan);
    adapter.set_pool_count(lan, 1, 16).unwrap();
    assert_eq!((adapter.is_open(), lan.posted(unit)), (false, 0));
}

#[test]
fn mtu_activates_pools_up_to_the_first_that_holds_it() {
    let cases = [
        (67, Err(()), 0),
        (68, Ok(()), 0),
        (490, Ok(()), 0),
        (491, Ok(()), 1),
        (1500, Ok(()), 1),
        (2026, Ok(()), 1),
        (2027, Ok(()), 2),
        (16_362, Ok(()), 2),
        (16_363, Ok(()), 3),
        (32_746, Ok(()), 3),
        (32_747, Ok(()), 4),
        (65_513, Ok(()), 4),
        (65_514, Err(()), 0),
    ];
    for (mtu, want, last) in cases {
        let pools = POOLS.map(|pool| PoolConfig { active: false, ..pool });
        let mut world = World::new(Firmware::CURRENT);
        world.add(AdapterPlace::guest(mac(1)), AdapterConfig { pools, mtu: 68, ..config() });
        let result = world.adapters[0].set_mtu(&mut world.lan, mtu);
        assert_eq!(result, want.map_err(|()| SettingError::Range(mtu)), "{mtu}");
        assert_eq!(world.adapters[0].mtu(), if want.is_ok() { mtu } else { 68 });
        for at in 0..5 {
            assert_eq!(world.adapters[0].available(at), if at <= last { 16 } else { 0 }, "{mtu}: pool {at}");
        }
    }
    // No pool holds the MTU.
    let pools = POOLS.map(|pool| PoolConfig { size: 1000, ..pool });
    let mut world = World::new(Firmware::CURRENT);
    world.add(AdapterPlace::guest(mac(1)), AdapterConfig { pools, mtu: 900, ..config() });
    assert_eq!(world.adapters[0].set_mtu(&mut world.lan, 979), Err(SettingError::Range(979)));
    assert_eq!((world.adapters[0].mtu(), world.adapters[0].set_mtu(&mut world.lan, 978)), (900, Ok(())));
}
