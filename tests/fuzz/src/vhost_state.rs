//! State of a guest's connection that another process has left, with fields of any value and descriptors of any kind. It is refused,
//! and the connection closed, or the guest goes on; nothing is read or written outside of the regions of the state, no descriptor
//! is leaked, and the next guest is served.

use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::ftruncate;
use rustix::pipe::pipe;
use serde_json::Value;
use sim::Choices;

use crate::vhost::{Guest, PAGE, Port, avail_at, check_descriptors, open_descriptors, used_at};

/// Values of fields.
const VALUES: [u64; 14] = [0, 1, 2, 3, 16, 127, 128, 255, 4096, 65_535, 1 << 30, 1 << 32, (1 << 32) + 0x800, u64::MAX];

/// Runs one input.
pub fn target(input: &[u8]) {
    let descriptors = open_descriptors();
    {
        let mut port = Port::new();
        let mut input = Choices::new(input);
        let guest = Guest::new(&port);
        guest.set_up(1 << 30 | 1 << 32 | input.pick(&[0, 1 << 29, 1 << 28]), 1 << (input.byte() % 5));
        let has_regions = port.wait_for_guest() && pass(&mut input, &mut port, &guest);
        if has_regions {
            guest.check_guards();
        }
        drop(guest);
        port.settle();
        port.check_serves();
    }
    check_descriptors(descriptors);
}

/// Passes a guest on. Returns whether its regions are those of before.
fn pass(input: &mut Choices<'_>, port: &mut Port, guest: &Guest) -> bool {
    let passed = port.pass();
    let mut state = serde_json::to_value(&passed.state).expect("JSON");
    let mut descriptors: Vec<OwnedFd> =
        passed.descriptors().map(|fd| fd.try_clone_to_owned().expect("a descriptor")).collect();
    drop(passed);
    let regions = state["regions"].clone();
    for _ in 0..input.byte() % 4 {
        change(input, &mut state, 4);
    }
    for _ in 0..input.byte() % 3 {
        replace(input, &mut descriptors, guest);
    }
    // The guest writes its rings meanwhile, or its memory goes.
    match input.byte() % 8 {
        0 => guest.poke(used_at(u64::from(input.byte() % 4)) + 2, &input.word().to_le_bytes()),
        1 => guest.poke(avail_at(u64::from(input.byte() % 4)) + 2, &input.word().to_le_bytes()),
        2 => drop(ftruncate(&guest.file, u64::from(input.byte()) * 512)),
        _ => {}
    }
    let has_regions = state["regions"] == regions;
    port.take(state, descriptors);
    for _ in 0..4 {
        let at = u64::from(input.word());
        guest.poke(at % PAGE, &input.word().to_le_bytes());
        port.turn(&[60, 1000]);
    }
    has_regions
}

/// Changes one place of a state, at most so deep.
fn change(input: &mut Choices<'_>, place: &mut Value, depth: u8) {
    let (at, is_here) = (usize::from(input.byte()), depth == 0 || input.once_in(8));
    let below = match place {
        Value::Array(items) if !is_here && !items.is_empty() => {
            let len = items.len();
            items.get_mut(at % len)
        }
        Value::Object(fields) if !is_here && !fields.is_empty() => {
            let len = fields.len();
            fields.values_mut().nth(at % len)
        }
        _ => None,
    };
    if let Some(below) = below {
        return change(input, below, depth - 1);
    }
    *place = value(input, place);
}

fn value(input: &mut Choices<'_>, before: &Value) -> Value {
    match before {
        Value::Array(items) => {
            // Once more, or fewer, or very many.
            let mut items = items.clone();
            match input.byte() % 4 {
                0 => items.clear(),
                1 => drop(items.pop()),
                2 => items.extend(items.clone()),
                _ => items = items.iter().cycle().take(usize::from(input.word()) % 300).cloned().collect(),
            }
            items.into()
        }
        Value::Bool(is_set) if !input.once_in(8) => (!is_set).into(),
        Value::Number(number) if input.once_in(2) => {
            let number = number.as_u64().unwrap_or_default();
            number.wrapping_add(input.pick(&[1, 2, 8, 4096, u64::MAX])).into()
        }
        _ if input.once_in(16) => Value::Null,
        _ => input.pick(&VALUES).into(),
    }
}

/// Replaces, removes or exchanges descriptors.
fn replace(input: &mut Choices<'_>, descriptors: &mut Vec<OwnedFd>, guest: &Guest) {
    let (at, other) = (usize::from(input.byte()), usize::from(input.byte()));
    if descriptors.is_empty() {
        return;
    }
    let (at, other) = (at % descriptors.len(), other % descriptors.len());
    let made = match input.byte() % 8 {
        0 => pipe().expect("a pipe").0,
        1 => eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd"),
        2 => guest.file.as_fd().try_clone_to_owned().expect("a file"),
        3 => std::fs::File::open("/dev/zero").expect("a device").into(),
        4 => std::os::unix::net::UnixStream::pair().expect("sockets").0.into(),
        5 => return drop(descriptors.remove(at)),
        6 => return descriptors.swap(at, other),
        _ => return descriptors.push(eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd")),
    };
    descriptors[at] = made;
}
