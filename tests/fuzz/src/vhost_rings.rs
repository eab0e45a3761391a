//! Rings and buffers that a guest writes at any time: as operations between two calls, and by another thread during the
//! calls. Nothing is read or written outside of guest memory, a violation closes the connection with one error, and the
//! next guest is served.

use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::ftruncate;
use sim::Choices;

use crate::vhost::{
    Desc, GUEST_LEN, Guest, PAIRS, Port, RINGS_LEN, avail_at, check_descriptors, open_descriptors, poke, used_at,
};

/// Indirect descriptors, event index, mergeable buffers, checksums and segmentation, version 1: one choice bit for
/// each.
const FEATURES: [u64; 8] = [1 << 28, 1 << 29, 1 << 15, 1, 2, 1 << 7, 1 << 11, 1 << 32];

/// Runs one input.
pub fn target(input: &[u8]) {
    let descriptors = open_descriptors();
    {
        let mut port = Port::new();
        guest(&mut Choices::new(input), &mut port);
        port.check_serves();
    }
    check_descriptors(descriptors);
}

fn guest(input: &mut Choices<'_>, port: &mut Port) {
    let guest = Guest::new(port);
    let chosen = input.byte();
    let features = FEATURES.iter().enumerate().filter(|(bit, _)| chosen >> bit & 1 == 1).map(|(_, feature)| feature);
    let size = 1_u32 << (input.byte() % 5);
    guest.set_up(features.fold(1 << 30, |all, feature| all | feature), size);
    // A valid start.
    for queue in 0..2 * u64::from(PAIRS) {
        for index in 0..u64::from(size) {
            guest.describe(queue, index, desc(input, queue));
            poke(&guest.file, avail_at(queue) + 4 + 2 * index, &(index as u16).to_le_bytes());
        }
        poke(&guest.file, avail_at(queue) + 2, &(size as u16).to_le_bytes());
    }
    let scribbles: Vec<(u64, u16)> = (0..input.byte() % 16).map(|_| scribble(input)).collect();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        if !scribbles.is_empty() {
            let (file, is_over) = (&guest.file, &is_over);
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    for (at, value) in &scribbles {
                        poke(file, *at, &value.to_le_bytes());
                    }
                }
            });
        }
        for _ in 0..64 {
            match input.byte() % 8 {
                0..3 => {
                    let (at, value) = scribble(input);
                    poke(&guest.file, at, &value.to_le_bytes());
                }
                3 => {
                    let queue = u64::from(input.byte()) % (2 * u64::from(PAIRS));
                    guest.describe(queue, u64::from(input.byte()) % u64::from(size), desc(input, queue));
                }
                4 => {
                    let ahead = u16::from(input.byte());
                    poke(&guest.file, avail_at(u64::from(input.byte() % 4)) + 2, &ahead.to_le_bytes());
                }
                5 if input.once_in(16) => {
                    let _ = ftruncate(&guest.file, u64::from(input.byte()) * 512);
                }
                _ => {
                    let frames = [usize::from(input.word()) % 2000, 60, 1514];
                    port.turn(&frames[..usize::from(input.byte()) % 4]);
                }
            }
            if input.is_over() {
                break;
            }
        }
        for _ in 0..4 {
            port.turn(&[100]);
        }
        is_over.store(true, Ordering::Relaxed);
    });
    guest.check_guards();
    drop(guest);
    port.settle();
}

/// A descriptor, valid or with small faults.
fn desc(input: &mut Choices<'_>, queue: u64) -> Desc {
    let addr = match input.byte() % 8 {
        0 => input.pick(&[u64::MAX, GUEST_LEN - 1, GUEST_LEN, 1 << 32, GUEST_LEN / 2 - 1]),
        _ => RINGS_LEN + u64::from(input.word()) % (GUEST_LEN - RINGS_LEN),
    };
    let len = match input.byte() % 8 {
        0 => input.pick(&[0, 1, 65_600, u32::MAX, 1 << 20]),
        1 => 16 * u32::from(input.byte() % 20),
        _ => u32::from(input.word()) % 3000,
    };
    let direction = if queue.is_multiple_of(2) { 2 } else { 0 };
    let flags = if input.once_in(8) { input.word() } else { direction | input.pick(&[0, 0, 1, 1, 4]) };
    Desc { addr, len, flags, next: u16::from(input.byte() % 18) }
}

/// A write of two bytes, in most cases to the rings.
fn scribble(input: &mut Choices<'_>) -> (u64, u16) {
    let queue = u64::from(input.byte() % 4);
    let at = match input.byte() % 4 {
        0 => avail_at(queue) + 2 * u64::from(input.byte() % 20),
        1 => used_at(queue) + 2 * u64::from(input.byte() % 70),
        2 => u64::from(input.word()) % RINGS_LEN,
        _ => input.word().into(),
    };
    let value = if input.once_in(2) { input.word() } else { u16::from(input.byte() % 20) };
    (at & !1, value)
}
