//! Messages of front ends in any order, with and without descriptors, complete, in parts and arbitrary; guests' memory
//! is truncated and rings are used in between. A violation closes the connection with one error, no descriptor is
//! leaked, and the next front end is served.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::ftruncate;
use rustix::pipe::pipe;
use sim::Choices;

use crate::vhost::{GUEST_LEN, Guest, PAGE, Port, USER, check_descriptors, open_descriptors};

/// Numbers of the protocol's messages.
const KNOWN: [u32; 20] = [1, 2, 3, 4, 5, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 34, 36, 37, 38];

const VALUES: [u64; 12] = [0, 1, 2, 3, 16, 256, 65_536, PAGE, GUEST_LEN / 2, USER, USER + GUEST_LEN / 2, u64::MAX];

/// Descriptors for messages.
struct Files {
    event: OwnedFd,
    pipe: OwnedFd,
    device: OwnedFd,
}

/// Runs one input.
pub fn target(input: &[u8]) {
    let descriptors = open_descriptors();
    {
        let mut port = Port::new();
        let mut input = Choices::new(input);
        let files = Files {
            event: eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd"),
            pipe: pipe().expect("a pipe").0,
            device: std::fs::File::open("/dev/zero").expect("a device").into(),
        };
        let mut guest = Guest::new(&port);
        for _ in 0..64 {
            if input.is_over() {
                break;
            }
            if input.once_in(12) {
                drop(guest);
                port.settle();
                guest = Guest::new(&port);
            }
            step(&mut input, &mut port, &guest, &files);
        }
        port.turn(&[60]);
        guest.check_guards();
        drop(guest);
        port.settle();
        port.check_serves();
    }
    check_descriptors(descriptors);
}

fn step(input: &mut Choices<'_>, port: &mut Port, guest: &Guest, files: &Files) {
    match input.byte() % 16 {
        0 => {
            let n = usize::from(input.byte());
            let bytes = input.bytes(n);
            guest.send(bytes, &beside(input, guest, files));
        }
        1 => guest.set_up(1 << 30 | input.pick(&VALUES), 1 << (input.byte() % 6)),
        2 => {
            let at = input.word();
            guest.poke(at.into(), &input.word().to_le_bytes());
        }
        3 if input.once_in(8) => {
            let _ = ftruncate(&guest.file, u64::from(input.byte()) * 512);
        }
        4..7 => {
            port.turn(&[60, 1000]);
        }
        7 => {
            let index = u64::from(input.byte() % 5);
            guest.say(input.pick(&[8, 10, 11, 18]), flags(input), &[index | (value(input) << 32)], &[]);
        }
        8 => {
            let words = [value(input), value(input), value(input), value(input), value(input)];
            guest.say(input.pick(&[9, 37, 38]), flags(input), &words, &beside(input, guest, files));
        }
        9 => {
            let index = u64::from(input.byte() % 5) | (u64::from(input.once_in(4)) << 8);
            guest.say(input.pick(&[12, 13, 14]), flags(input), &[index], &beside(input, guest, files));
        }
        10 => {
            let count = u64::from(input.byte() % 4);
            let mut words = vec![count];
            for _ in 0..count {
                words.extend([value(input), value(input), value(input), value(input)]);
            }
            guest.say(5, flags(input), &words, &beside(input, guest, files));
        }
        _ => {
            let request = if input.once_in(8) { input.byte().into() } else { input.pick(&KNOWN) };
            let words: Vec<u64> = (0..input.byte() % 6).map(|_| value(input)).collect();
            guest.say(request, flags(input), &words, &beside(input, guest, files));
        }
    }
}

/// Version 1 in most cases, with and without a requested reply.
fn flags(input: &mut Choices<'_>) -> u32 {
    if input.once_in(16) { input.word().into() } else { input.pick(&[1, 9]) }
}

fn value(input: &mut Choices<'_>) -> u64 {
    if input.once_in(6) { u64::from(input.word()) << (input.byte() % 64) } else { input.pick(&VALUES) }
}

/// Descriptors of any kind, or none.
fn beside<'a>(input: &mut Choices<'_>, guest: &'a Guest, files: &'a Files) -> Vec<BorrowedFd<'a>> {
    let count = input.pick(&[0, 0, 1, 1, 1, 2, 3, 40]);
    let kind = input.byte();
    let one = |at: u8| match kind.wrapping_add(at) % 8 {
        0..4 => guest.file.as_fd(),
        4..6 => files.event.as_fd(),
        6 => files.pipe.as_fd(),
        _ => files.device.as_fd(),
    };
    (0..count).map(one).collect()
}
