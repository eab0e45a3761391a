//! Violations: a hypervisor with invalid entries, and a partition with invalid descriptors.

use ibmveth::{
    AdapterPlace, Attributes, BufDesc, Firmware, FrameFlags, Lan, LanCounters, Refusal, RxEntry, TxOffloads,
};
use packet::Cut;

use crate::common::*;

#[test]
fn impossible_entry_resets_the_adapter_once() {
    let name = |pool: u64, index: u64| pool << 32 | index;
    let entries = [
        ("no such pool", RxEntry::new(true, FrameFlags::NONE, 8, 60, name(5, 0))),
        ("all ones", RxEntry::new(true, FrameFlags::NONE, 8, 60, u64::MAX)),
        ("no such place", RxEntry::new(true, FrameFlags::NONE, 8, 60, name(0, 16))),
        ("an inactive pool", RxEntry::new(true, FrameFlags::NONE, 8, 60, name(2, 0))),
        ("no such buffer, without a frame", RxEntry::invalid(true, name(9, 0))),
        ("longer than the buffer", RxEntry::new(true, FrameFlags::NONE, 8, 505, name(0, 0))),
        ("a length of 32 bits", RxEntry::new(true, FrameFlags::NONE, u16::MAX, u32::MAX, name(0, 0))),
        ("shorter than a header", RxEntry::new(true, FrameFlags::NONE, 8, 13, name(0, 0))),
    ];
    for (case, entry) in entries {
        let mut world = World::pair();
        world.lan.corrupt_rx_entry(world.units[1], 0, entry.encode());
        assert_eq!(world.receive(1).len(), 0, "{case}");
        // The next poll resets the adapter, and traffic continues.
        assert_eq!(world.receive(1).len(), 0, "{case}");
        assert_eq!((world.adapters[1].counters().resets, world.adapters[1].is_open()), (1, true), "{case}");
        let pkt = plain(&world.mem, &flows()[0].tcp(1, 1000), mac(2), mac(1));
        world.send(0, pkt).unwrap();
        assert_eq!(world.receive(1).len(), 1, "{case}");
        assert_eq!(world.adapters[1].counters().resets, 1, "{case}");
    }
}

/// A pair whose second adapter is reset by the next poll.
fn reset_due() -> World {
    let mut world = World::pair();
    world.lan.corrupt_rx_entry(world.units[1], 0, RxEntry::invalid(true, u64::MAX).encode());
    world.receive(1);
    world
}

/// A pair whose second adapter has left the LAN for a reset, and cannot register again.
fn locked_out() -> World {
    let mut world = reset_due();
    // A hypervisor without this adapter.
    let mut other = Lan::new(Firmware::CURRENT);
    for _ in 0..3 {
        assert_eq!(world.adapters[1].poll(&mut other, &world.mem, 64, &mut Vec::new()), 0);
        assert_eq!((world.adapters[1].counters().resets, world.adapters[1].is_open()), (1, false));
    }
    // Removing the unit frees everything that the hostile guest left behind.
    world.lan.free(world.units[1]).unwrap();
    world
}

#[test]
fn reset_that_is_refused_is_tried_until_it_succeeds() {
    type Change = fn(&mut World);
    let changes: [(&str, Change); 4] = [
        ("none", |_| {}),
        ("pool", |world| world.adapters[1].set_pool_count(&mut world.lan, 0, 8).unwrap()),
        ("MTU", |world| world.adapters[1].set_mtu(&mut world.lan, 1400).unwrap()),
        ("offloads", |world| world.set(1, TxOffloads::NONE).unwrap()),
    ];
    for (case, change) in changes {
        let mut world = locked_out();
        change(&mut world);
        assert_eq!((world.receive(1).len(), world.adapters[1].is_open()), (0, true), "{case}");
        for _ in 0..3 {
            let pkt = plain(&world.mem, &flows()[0].tcp(1, 1000), mac(2), mac(1));
            world.send(0, pkt).unwrap();
            assert_eq!((world.receive(1).len(), world.adapters[1].counters().resets), (1, 1), "{case}");
        }
    }
}

#[test]
fn reset_that_is_due_ends_with_close_and_open() {
    let mut world = locked_out();
    world.adapters[1].close(&mut world.lan);
    assert_eq!((world.receive(1).len(), world.adapters[1].is_open()), (0, false), "closed by its operator");
    for mut world in [locked_out(), reset_due()] {
        world.adapters[1].close(&mut world.lan);
        world.adapters[1].open(&mut world.lan).unwrap();
        let lost = world.adapters[1].counters().rx_lost;
        let pkt = plain(&world.mem, &flows()[0].tcp(1, 1000), mac(2), mac(1));
        world.send(0, pkt).unwrap();
        // A reset would lose the frame.
        assert_eq!((world.receive(1).len(), world.adapters[1].counters().rx_lost), (1, lost));
    }
}

#[test]
fn buffer_received_twice_resets_the_adapter() {
    let mut world = World::pair();
    let pkt = plain(&world.mem, &flows()[0].tcp(1, 1000), mac(2), mac(1));
    world.send(0, pkt).unwrap();
    let entry = world.lan.rx_entry(world.units[1], 0);
    world.lan.corrupt_rx_entry(world.units[1], 1, entry);
    assert_eq!(world.receive(1).len(), 1);
    world.receive(1);
    assert_eq!(world.adapters[1].counters().resets, 1);
}

#[test]
fn entry_without_frame_gives_the_buffer_back() {
    let mut world = World::pair();
    world.lan.corrupt_rx_entry(world.units[1], 0, RxEntry::invalid(true, 3).encode());
    assert_eq!(world.receive(1).len(), 0);
    let stats = world.adapters[1].stats();
    assert_eq!((stats.rx_invalid_buffer, world.adapters[1].available(0)), (1, 16));
    assert_eq!(world.adapters[1].counters().resets, 0);
}

#[test]
fn overwritten_handle_costs_the_frame_and_no_buffer() {
    let mut world = World::pair();
    let mut raw = Raw::new(&mut world, AdapterPlace::guest(mac(9)), Attributes::NONE);
    // The buffer posted last, in the eighth region, is used next.
    world.lan.io(raw.unit).bytes_mut(8 << 17, 8).unwrap().fill(0xee);
    for _ in 0..2 {
        let pkt = plain(&world.mem, &flows()[0].tcp(1, 10), mac(9), mac(1));
        world.send(0, pkt).unwrap();
    }
    let (entry, _) = raw.receive(&mut world).unwrap();
    assert_eq!((entry.is_valid(), entry.correlator), (false, 7));
    let (entry, _) = raw.receive(&mut world).unwrap();
    assert_eq!((entry.is_valid(), entry.correlator), (true, 6));
    let counters = world.lan.counters();
    let got = (counters.overwritten, counters.no_buffer, world.lan.no_buffer(raw.unit), counters.copies);
    assert_eq!(got, (1, 0, 0, 1));
}

#[test]
fn each_lost_frame_is_counted_by_its_reason() {
    // The hypervisor completes checksums and segments fat frames for this receiver.
    for (len, frames, completed, cut) in [(1000, 1, 1, 0), (2800, 2, 0, 1)] {
        let mut world = World::pair();
        world.set(0, TxOffloads::ALL).unwrap();
        let raw = Raw::new(&mut world, AdapterPlace::guest(mac(9)), Attributes::NONE);
        world.lan.io(raw.unit).bytes_mut(8 << 17, 8).unwrap().fill(0xee);
        // The handle of the first of eight buffers is overwritten. After the eighth frame no buffers are left.
        for sent in 1..=10 {
            let mut pkt = fat(&world.mem, &flows()[0], len, 9, 1);
            if cut == 0 {
                pkt.meta.cut = Cut::Whole;
            }
            world.send(0, pkt).unwrap();
            let got = world.lan.counters();
            let copies = (sent * frames - 1).min(7);
            let want = LanCounters {
                copies,
                overwritten: 1,
                no_buffer: (sent * frames).saturating_sub(8),
                cut: cut * sent,
                completed: completed * copies,
                ..got
            };
            assert_eq!(got, want, "{len} bytes, frame {sent}");
        }
        assert_eq!(world.lan.no_buffer(raw.unit), world.lan.counters().no_buffer);
    }
}

#[test]
fn descriptor_that_cannot_be_is_refused() {
    let mut world = World::pair();
    let raw = Raw::new(&mut world, AdapterPlace::guest(mac(9)), Attributes::SETTABLE);
    let frame = plain(&world.mem, &flows()[0].tcp(1, 100), mac(2), mac(9)).to_vec();
    let len = frame.len();
    let at = raw.map(&mut world, &frame);
    let desc = |len: usize, address: u32| BufDesc::new(FrameFlags::NONE, len, address);
    let good = desc(len, at);
    let large = BufDesc::new(FrameFlags::LARGE, len, at);
    let cases: [(&str, &[BufDesc], u16); 14] = [
        ("none", &[], 0),
        ("not valid", &[BufDesc(good.0 & !(1 << 63))], 0),
        ("address 0", &[desc(len, 0)], 0),
        ("no region", &[desc(len, 0xfffe_0000)], 0),
        ("behind the end", &[desc(len + 1, at)], 0),
        ("24 bits of length", &[desc(BufDesc::MAX_LEN, at)], 0),
        ("shorter than a header", &[desc(13, at)], 0),
        ("header in pieces", &[desc(14, at), desc(len - 14, at + 14)], 0),
        ("a piece without bytes", &[good, desc(0, at)], 0),
        ("flags that differ", &[desc(50, at), BufDesc::new(FrameFlags::CSUM_GOOD, len - 50, at + 50)], 0),
        ("seven descriptors", &[desc(20, at); 7], 0),
        ("fat without MSS", &[large], 0),
        ("fat with a small MSS", &[large], 223),
        ("the last one not mapped", &[desc(50, at), desc(50, 1)], 0),
    ];
    for (case, descs, mss) in cases {
        assert_eq!(world.lan.send(raw.unit, descs, 0, mss).result, Err(Refusal::Parameter), "{case}");
    }
    assert_eq!(world.receive(1).len(), 0);
    assert_eq!(world.lan.send(raw.unit, &[desc(18, at), desc(len - 18, at + 18)], 0, 0).result, Ok(()));
    assert_eq!(world.receive(1)[0].to_vec(), frame);
    // A correlator past all adapters ends the call.
    let answer = world.lan.send(raw.unit, &[good], u64::MAX, 0);
    assert_eq!(answer.result, Ok(()));
}

#[test]
fn flags_that_were_not_negotiated_are_refused() {
    for (set, flags, want) in [
        (Attributes::NONE, FrameFlags::NO_CSUM, Err(Refusal::Parameter)),
        (Attributes::NONE, FrameFlags::LARGE, Err(Refusal::Parameter)),
        (Attributes::NONE, FrameFlags::CSUM_GOOD, Ok(())),
        (Attributes::IPV6_TCP_CSUM, FrameFlags::NO_CSUM, Ok(())),
        (Attributes::LARGE_SEND_ENABLED, FrameFlags::LARGE, Ok(())),
    ] {
        let mut world = World::pair();
        let raw = Raw::new(&mut world, AdapterPlace::guest(mac(9)), set);
        let frame = plain(&world.mem, &flows()[0].tcp(1, 1000), mac(2), mac(9)).to_vec();
        assert_eq!(raw.send(&mut world, &frame, flags, 224), want, "{set:?} {flags:?}");
    }
}

#[test]
fn calls_out_of_order_are_refused() {
    let mut world = World::pair();
    let unit = world.units[0];
    assert_eq!(world.lan.register(unit, 10, mac(1)), Err(Refusal::Parameter), "open");
    assert_eq!(world.lan.change_mac(unit, wire::MacAddr::BROADCAST), Err(Refusal::Parameter));
    world.adapters[0].close(&mut world.lan);
    assert_eq!(world.lan.free(unit), Err(Refusal::Parameter));
    assert_eq!(world.lan.add_buffer(unit, BufDesc::UNUSED), Err(Refusal::Parameter));
    assert_eq!(world.lan.send(unit, &[BufDesc::UNUSED], 0, 0).result, Err(Refusal::Parameter));
    for entries in [0, usize::MAX] {
        assert_eq!(world.lan.register(unit, entries, mac(1)), Err(Refusal::Parameter));
    }
    world.lan.register(unit, 1, mac(1)).unwrap();
    let raw = Raw::new(&mut world, AdapterPlace::guest(mac(9)), Attributes::NONE);
    let address = raw.map(&mut world, &[0; 100]);
    let desc = |len| BufDesc::new(FrameFlags::NONE, len, address);
    assert_eq!(world.lan.add_buffer(raw.unit, desc(21)), Err(Refusal::Parameter), "too short");
    assert_eq!(world.lan.add_buffers(raw.unit, &[]), Err(Refusal::Parameter));
    assert_eq!(world.lan.add_buffers(raw.unit, &[desc(100); 9]), Err(Refusal::Parameter));
    // As many buffers as the queue has entries.
    for _ in 8..64 {
        world.lan.add_buffer(raw.unit, desc(100)).unwrap();
    }
    assert_eq!(world.lan.add_buffer(raw.unit, desc(100)), Err(Refusal::Resource));
    let old = Firmware { attributes: None, ..Firmware::CURRENT };
    assert_eq!(World::new(old).lan.add_buffers(unit, &[desc(100)]), Err(Refusal::Function));
}
