//! Malformed rings of a driver, against a back end.

use super::*;

#[test]
fn chain_of_any_pieces_is_gathered() {
    for indirect in [false, true] {
        let mut raw = Raw::new(|all| all);
        let bytes = frame(3, 700);
        let buffers = raw.tx().buffers;
        raw.poke(buffers, &[&[0; 12], &bytes[..]].concat());
        // The header itself is in three pieces, and one piece is empty.
        let lens = [1, 10, 1, 0, 6, 300, 394];
        let table = buffers + TX_BUFFER as u64;
        let mut at = buffers;
        for (index, &len) in lens.iter().enumerate() {
            let index = index as u16;
            let is_last = usize::from(index) + 1 == lens.len();
            let (flags, next) = if is_last { (0, 0) } else { (NEXT, index + 1) };
            if indirect {
                let rest = (u64::from(flags) << 32) | (u64::from(next) << 48) | u64::from(len);
                raw.poke(table + 16 * u64::from(index), &[at.to_le_bytes(), rest.to_le_bytes()].concat());
            } else {
                raw.tx().ring.describe(index, at, len, flags, next);
            }
            at += u64::from(len);
        }
        if indirect {
            raw.tx().ring.describe(0, table, 16 * lens.len() as u32, INDIRECT, 0);
        }
        raw.offer();
        let (got, err) = raw.recv();
        assert_eq!((bytes_of(&got), err), (vec![bytes], None));
        assert_eq!(raw.tx().ring.take_back(), Ok(Some((0, 0))));
    }
}

#[test]
fn malformed_ring_closes_the_connection_with_one_error() {
    type Lie = fn(&mut Raw);
    const INDIRECT_DESC: u64 = 1 << 28;
    fn single(raw: &mut Raw, addr: u64, len: u32, flags: u16, next: u16) {
        raw.tx().ring.describe(0, addr, len, flags, next);
        raw.offer();
    }
    fn table(raw: &mut Raw, entries: &[[u64; 2]], len: u32) {
        let at = raw.tx().buffers;
        let bytes: Vec<u8> = entries.iter().flatten().flat_map(|word| word.to_le_bytes()).collect();
        raw.poke(at, &bytes);
        single(raw, at, len, INDIRECT, 0);
    }
    fn flags(flags: u16, next: u16, len: u32) -> u64 {
        (u64::from(flags) << 32) | (u64::from(next) << 48) | u64::from(len)
    }
    const END: u64 = BASE + (1 << 40);
    let cases: [(&str, Lie); 17] = [
        ("loop of descriptors", |raw| {
            let at = raw.tx().buffers;
            raw.tx().ring.describe(1, at, 10, NEXT, 0);
            single(raw, at, 10, NEXT, 1);
        }),
        ("loop of descriptors", |raw| {
            let at = raw.tx().buffers;
            single(raw, at, 10, NEXT, 0);
        }),
        ("descriptor 16 beyond the table", |raw| {
            let at = raw.tx().buffers;
            single(raw, at, 10, NEXT, 16);
        }),
        ("descriptor 65535 beyond the table", |raw| {
            let at = available_at(16) + 4;
            raw.offer();
            raw.tx().ring.window.store_u16(at, u16::MAX, Ordering::Relaxed);
        }),
        ("available index 17 ahead", |raw| {
            raw.tx().ring.window.store_u16(available_at(16) + 2, 17, Ordering::Relaxed);
        }),
        ("available index 65535 ahead", |raw| {
            raw.tx().ring.window.store_u16(available_at(16) + 2, u16::MAX, Ordering::Relaxed);
        }),
        ("20 bytes at 0x0 outside of guest memory", |raw| single(raw, 0, 20, 0, 0)),
        ("20 bytes at 0xffffffffffffffff outside of guest memory", |raw| single(raw, u64::MAX, 20, 0, 0)),
        ("4294967295 bytes at 0x10100000000 outside of guest memory", |raw| single(raw, END, u32::MAX, 0, 0)),
        ("100000 bytes at ", |raw| {
            // The last 50 000 bytes are past the end.
            let sixteen = 16 * TX_BUFFER as u64;
            let at = raw.tx().buffers + sixteen - 50_000;
            single(raw, at, 100_000, 0, 0);
        }),
        ("descriptor of the wrong direction", |raw| {
            let at = raw.tx().buffers;
            single(raw, at, 20, WRITE, 0);
        }),
        ("malformed indirect table", |raw| table(raw, &[[0, 0]], 0)),
        ("malformed indirect table", |raw| table(raw, &[[0, 0]], 17)),
        ("malformed indirect table", |raw| table(raw, &[[BASE, flags(INDIRECT, 0, 16)]], 16)),
        ("descriptor 7 beyond the table", |raw| table(raw, &[[BASE, flags(NEXT, 7, 16)]], 16)),
        ("loop of descriptors", |raw| table(raw, &[[BASE, flags(NEXT, 0, 16)]], 16)),
        ("32 bytes at 0x10100000000 outside of guest memory", |raw| single(raw, END, 32, INDIRECT, 0)),
    ];
    for (number, (want, lie)) in cases.into_iter().enumerate() {
        // The front end itself requests no indirect descriptors.
        let mut raw = Raw::new(|all| all | INDIRECT_DESC);
        lie(&mut raw);
        let (got, err) = raw.recv();
        let err = err.unwrap_or_else(|| panic!("case {number}: {want}: {got:?}"));
        assert!(err.starts_with(&format!("vm0: vhost-user: connection closed: {want}")), "case {number}: {err}");
        assert_eq!((got.len(), raw.recv().1), (0, None), "case {number}: once");
        assert_eq!((raw.back.guest().violations, raw.back.guest().connected), (1, false));
        // The next front end is served.
        let Raw { back, .. } = raw;
        let mut raw = Raw::of(back, |all| all);
        assert_eq!(raw.send([0; 12], &frame(1, 64)).len(), 1);
    }
}

#[test]
fn indirect_descriptors_are_refused_unless_negotiated() {
    let mut raw = Raw::new(|all| all & !(1 << 28));
    let at = raw.tx().buffers;
    raw.tx().ring.describe(0, at, 16, INDIRECT, 0);
    raw.offer();
    assert!(raw.recv().1.is_some_and(|err| err.ends_with("malformed indirect table")));
}

#[test]
fn malformed_rx_buffer_closes_the_connection() {
    type Lie = fn(u64) -> (u64, u32, u16);
    let cases: [(&str, Lie); 3] = [
        ("descriptor of the wrong direction", |at| (at, 2000, 0)),
        ("2000 bytes at 0x10 outside of guest memory", |_| (16, 2000, WRITE)),
        ("buffers of a few bytes", |at| (at, 1, NEXT | WRITE)),
    ];
    for (want, lie) in cases {
        let mut raw = Raw::new(|all| all);
        let queue = &mut raw.session.queues[0];
        let (addr, len, flags) = lie(queue.buffers);
        for index in 0..16 {
            // Chains of sixteen descriptors.
            let last = index == 15;
            queue.ring.describe(index, addr, len, if last { flags & !NEXT } else { flags }, index + 1);
        }
        for _ in 0..16 {
            queue.ring.offer(0, RX_BUFFER as u32);
        }
        queue.ring.publish();
        let mut burst = vec![long(&frame(1, 60_000))];
        let sent = raw.back.send(&mut burst);
        if want.starts_with("buffers") {
            // Too few buffers: the frame will never fit.
            assert_eq!(sent.unwrap(), Sent::All);
            assert_eq!(raw.back.stats().dropped_for(DropReason::PacketTooBig), 1);
            continue;
        }
        let err = sent.unwrap_err().to_string();
        assert!(err.ends_with(want), "{err}");
        assert_eq!(raw.back.guest().violations, 1);
    }
}

#[test]
fn malformed_header_drops_its_frame_alone() {
    let mut raw = Raw::new(|all| all & !(1 << 56));
    let tcp = fat(&raw.mem, 3000).to_vec();
    let header = |flags: u8, gso: u8, hdr_len: u16, size: u16, start: u16, offset: u16| {
        let mut bytes = [0; 12];
        bytes[..2].copy_from_slice(&[flags, gso]);
        for (at, value) in [hdr_len, size, start, offset].into_iter().enumerate() {
            bytes[2 + 2 * at..4 + 2 * at].copy_from_slice(&value.to_le_bytes());
        }
        bytes
    };
    let good = header(1, 1, 66, 1448, 34, 16);
    assert_eq!(raw.send(good, &tcp).len(), 1);
    let bad = [
        ("beyond the frame", header(1, 0, 0, 0, 4000, 16)),
        ("headers beyond the frame", header(1, 1, 9000, 1448, 34, 16)),
        ("segments of nothing", header(1, 1, 66, 0, 34, 16)),
        ("another protocol", header(1, 4, 66, 1448, 34, 16)),
        ("a type that was not negotiated", header(1, 5, 66, 1448, 34, 16)),
        ("a type that there is not", header(1, 77, 66, 1448, 34, 16)),
    ];
    for (number, (case, header)) in bad.into_iter().enumerate() {
        assert_eq!(raw.send(header, &tcp).len(), 0, "{case}");
        assert_eq!(raw.back.stats().dropped_for(DropReason::VirtioHeader), number as u64 + 1, "{case}");
    }
    // Too short and too long frames.
    assert_eq!(raw.send([0; 12], &tcp[..13]).len(), 0);
    assert_eq!(raw.back.stats().dropped_for(DropReason::EthTruncated), 1);
    assert_eq!(raw.send([0; 12], &vec![1; 66_000]).len(), 0);
    assert_eq!(raw.back.stats().dropped_for(DropReason::PacketTooBig), 1);
    assert_eq!(raw.send(good, &tcp).len(), 1, "the connection is as it was");
}

#[test]
fn data_valid_from_a_guest_is_ignored() {
    let mut raw = Raw::new(|all| all);
    let tcp = fat(&raw.mem, 1000).to_vec();
    let mut header = [0; 12];
    header[0] = DATA_VALID;
    let got = raw.send(header, &tcp);
    assert_eq!((got.len(), got[0].meta.csum), (1, Csum::None));
}

#[test]
fn data_valid_is_set_for_a_verified_checksum() {
    let mut raw = Raw::new(|all| all);
    let queue = &mut raw.session.queues[0];
    queue.ring.describe(0, queue.buffers, RX_BUFFER as u32, WRITE, 0);
    queue.ring.offer(0, RX_BUFFER as u32);
    queue.ring.publish();
    let mut packet = Packet::with_data(&raw.mem, &frame(1, 100)).unwrap();
    packet.meta.csum = Csum::Unnecessary;
    assert_eq!(raw.back.send(&mut vec![packet]).unwrap(), Sent::All);
    let mut pieces = Vec::new();
    let addr = raw.session.queues[0].buffers;
    assert!(raw.session.memory.locate(addr, 12, &mut pieces));
    let mut header = [9; 12];
    raw.session.memory.read(pieces[0], 0, &mut header);
    assert_eq!(header, [DATA_VALID, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0]);
    assert_eq!(raw.session.queues[0].ring.take_back(), Ok(Some((0, 112))));
}

#[test]
fn malformed_used_ring_disconnects_the_front_end() {
    fn used(wire: &mut Wire, number: u16, id: u32, len: u32) -> String {
        // The rings of the front end's receive queue, as the back end sees them.
        let running = wire.front.queue_for_test(0);
        let at = used_at(256) + 4;
        running.window.store_u32(at, id);
        running.window.store_u32(at + 4, len);
        running.window.store_u16(used_at(256) + 2, number, Ordering::Release);
        wire.front.recv(&wire.mem, &mut Vec::new()).unwrap_err().to_string()
    }
    let cases = [
        (1, 256, 10, "used descriptor 256 that was not lent"),
        (1, 0, 5000, "used length 5000 beyond the buffer"),
        (257, 0, 10, "used index 257 ahead"),
    ];
    for (number, id, len, want) in cases {
        let mut wire = Wire::new(1, |_| {});
        let err = used(&mut wire, number, id, len);
        assert_eq!(err, format!("u0: vhost-user: connection closed: {want}"));
        let mut none = Vec::new();
        until(|| {
            let _ = wire.back.recv(&wire.mem, &mut none);
            wire.front.recv(&wire.mem, &mut none).unwrap();
            wire.front.guest().connections == 2
        });
    }
}

#[test]
fn used_length_of_a_transmit_chain_is_ignored() {
    let mut wire = Wire::new(1, |_| {});
    for number in 0..3_usize {
        let sent = frame(1, 200);
        let burst = vec![Packet::with_data(&wire.mem, &sent).unwrap()];
        assert_eq!(bytes_of(&wire.carry(false, burst)), [sent]);
        // As devices do that report the number of bytes read.
        wire.front.queue_for_test(1).window.store_u32(used_at(256) + 8 + 8 * number, 212);
    }
    assert_eq!((wire.front.guest().connections, wire.front.guest().violations), (1, 0));
}

#[test]
fn ring_with_random_writes_never_panics_the_back_end() {
    let mut back = back_end(1);
    let mut closed = 0;
    let mut random = 88_172_645_463_325_252_u64;
    let mut next = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    let end = Instant::now() + Duration::from_millis(1500);
    while Instant::now() < end {
        let Raw { back: again, mut session, mem } = Raw::of(back, |all| all);
        back = again;
        // Buffers to begin with.
        for queue in 0..2 {
            let at = session.queues[queue].buffers;
            let flags = if queue == 0 { WRITE } else { 0 };
            for index in 0..16 {
                session.queues[queue].ring.describe(index, at + 4096 * u64::from(index), 200, flags, 0);
                session.queues[queue].ring.offer(index, 200);
            }
            session.queues[queue].ring.publish();
        }
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let seed = next();
            let (session, stop) = (&session, &stop);
            let windows = [session.queues[0].ring.window.clone(), session.queues[1].ring.window.clone()];
            scope.spawn(move || {
                let mut random = seed | 1;
                while !stop.load(Ordering::Relaxed) {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let value = random >> 33;
                    let at = ((value as usize >> 8) % (used_at(16) + 6 + 8 * 16)) & !1;
                    // Mostly small numbers, which are plausible at first.
                    let number = if value & 7 == 0 { value as u16 } else { value as u16 & 15 };
                    windows[value as usize & 1].store_u16(at, number, Ordering::Relaxed);
                }
            });
            let mut burst: Vec<Packet> = (0..8).map(|n| Packet::with_data(&mem, &frame(n, 300)).unwrap()).collect();
            for _ in 0..500 {
                let mut got = Vec::new();
                let received = back.recv(&mem, &mut got);
                let sent = received.and_then(|()| back.send(&mut burst));
                if sent.is_err() {
                    closed += 1;
                    break;
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
        drop(session);
        // The front end was disconnected, unless it left by itself.
        if back.guest().connected {
            until(|| back.recv(&mem, &mut Vec::new()).is_err());
        }
    }
    assert!(closed > 0, "nothing was found to be wrong");
}
