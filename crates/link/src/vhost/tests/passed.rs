//! Ports of guests that another process takes, with a connection that goes on.

use std::io::Read;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use base::ShardCount;
use rustix::event::{EventfdFlags, eventfd};
use rustix::pipe::pipe;

use super::*;
use crate::vhost::back::{VhostPairs, end_listening, listening_path, open_queues, open_shards};
use crate::vhost::passed::{ConnectionState, PassedConnection, VringState};
use crate::vhost::ring::Place;
use crate::{Acquired, Duplicates};

/// The listener of a port.
fn listener(back: &VhostUser) -> OwnedFd {
    let duplicates: Duplicates = Link::duplicate(back).unwrap().unwrap();
    Acquired::of_shards(vec![duplicates]).descriptors.pop().unwrap()
}

fn config_of(back: &VhostUser, pairs: u16) -> VhostConfig {
    VhostConfig { pairs, ..VhostConfig::new("vm0", &back.socket, MAC) }
}

/// The port of the next process.
fn next_of(back: &VhostUser, config: &VhostConfig) -> VhostUser {
    open_shards(config, ShardCount::ONE, Some(listener(back))).unwrap().0
}

/// The connection as another process gets it, with duplicates of the descriptors.
fn received(passed: &PassedConnection) -> PassedConnection {
    let descriptors = passed.descriptors().map(|fd| fd.try_clone_to_owned().unwrap());
    PassedConnection::of_descriptors(passed.state.clone(), descriptors.collect()).unwrap()
}

/// Replaces a port by that of the next process.
fn replace(back: &mut VhostUser, pairs: u16) {
    let mut next = next_of(back, &config_of(back, pairs));
    let passed = back.pass().unwrap().unwrap();
    next.take(Some(received(&passed))).unwrap();
    *back = next;
    drop(passed);
    refit(back);
}

/// Numbered frames.
fn numbered(mem: &Memory, numbers: std::ops::Range<u32>) -> Vec<Packet> {
    numbers.map(|number| Packet::with_data(mem, &frame(number, 100)).unwrap()).collect()
}

#[test]
fn frames_go_on_both_ways_and_the_front_end_sees_nothing() {
    const EVENT_IDX: u64 = 1 << 29;
    const INDIRECT_MRG: u64 = 1 << 28 | 1 << 15;
    for (without, pairs) in [(0, 1), (EVENT_IDX, 1), (INDIRECT_MRG, 2), (0, 3)] {
        let mut wire = Wire::without(without, pairs, |config| config.ring_size = 64);
        for round in 0..4 {
            for to_guest in [true, false] {
                let burst = numbered(&wire.mem, 0..40);
                let want = bytes_of(&burst);
                let mut got = bytes_of(&wire.carry(to_guest, burst));
                // Frames of several pairs come in any order.
                got.sort_unstable_by_key(|bytes| want.iter().position(|other| other == bytes));
                assert_eq!(got, want, "{without:#x} {pairs} {round} {to_guest}");
            }
            if without & INDIRECT_MRG == 0 {
                assert_eq!(wire.carry(round % 2 == 0, vec![fat(&Memory::heap(), 30_000)]).len(), 1);
            }
            replace(&mut wire.back, pairs);
            let guest = wire.back.guest();
            assert!(guest.connected && guest.running, "{guest:?}");
            assert_eq!((guest.connections, guest.violations), (0, 0));
            assert_eq!((wire.front.guest().connections, wire.front.guest().violations), (1, 0));
        }
    }
}

#[test]
fn frames_on_the_way_are_neither_lost_nor_repeated() {
    let mut wire = Wire::new(1, |config| config.ring_size = 64);
    let (mut to_guest, mut from_guest) = (Vec::new(), Vec::new());
    for round in 0..200 {
        // A part of what is in the rings has been moved, and none of it is taken back by the front end.
        let numbers = round * 30..(round + 1) * 30;
        let mut burst = numbered(&wire.mem, numbers.clone());
        assert_eq!(wire.front.send(&mut burst).unwrap(), Sent::All);
        if round % 3 == 0 {
            wire.back.recv(&wire.mem, &mut from_guest).unwrap();
        }
        let mut burst = numbered(&wire.mem, numbers);
        let mut rest = burst.split_off(10);
        assert_eq!(wire.back.send(&mut burst).unwrap(), Sent::All);
        replace(&mut wire.back, 1);
        assert_eq!(wire.back.send(&mut rest).unwrap(), Sent::All);
        wire.back.recv(&wire.mem, &mut from_guest).unwrap();
        wire.front.recv(&wire.mem, &mut to_guest).unwrap();
    }
    let want = bytes_of(&numbered(&wire.mem, 0..6000));
    assert_eq!(bytes_of(&from_guest), want);
    assert_eq!(bytes_of(&to_guest), want);
}

/// A daemon waits for descriptors: kicks that have come to the process before are not waited for again.
#[test]
fn frames_that_were_kicked_before_wake_the_next_process() {
    let mut wire = Wire::new(1, |_| {});
    let mut burst = numbered(&wire.mem, 0..5);
    assert_eq!(wire.front.send(&mut burst).unwrap(), Sent::All);
    // The kick is taken, and the frames are not.
    wait(&wire.back);
    replace(&mut wire.back, 1);
    wait(&wire.back);
    let mut got = Vec::new();
    wire.back.recv(&wire.mem, &mut got).unwrap();
    assert_eq!(got.len(), 5);
    let mut burst = numbered(&wire.mem, 5..7);
    assert_eq!(wire.front.send(&mut burst).unwrap(), Sent::All);
    wait(&wire.back);
    wire.back.recv(&wire.mem, &mut got).unwrap();
    assert_eq!(got.len(), 7);
}

#[test]
fn shards_of_the_next_process_serve_the_pairs() {
    let count = |count: u8| ShardCount::new(count).unwrap();
    let mut wire = Wire::new(4, |_| {});
    let mut burst: Vec<Packet> = Vec::new();
    for (shards, round) in [(2, 0), (3, 1), (1, 2)] {
        let config = config_of(&wire.back, 4);
        let (mut next, mut others): (VhostUser, Vec<VhostPairs>) =
            open_shards(&config, count(shards), Some(listener(&wire.back))).unwrap();
        burst.extend((0..60).map(|number| flow(&wire.mem, number)));
        assert_eq!(wire.front.send(&mut burst).unwrap(), Sent::All);
        next.take(Some(received(&wire.back.pass().unwrap().unwrap()))).unwrap();
        wire.back = next;
        let mut got = Vec::new();
        // Each is woken, and receives its own.
        wait(&wire.back);
        wire.back.recv(&wire.mem, &mut got).unwrap();
        let of_first = got.len();
        for other in &mut others {
            wait(other);
            other.recv(&wire.mem, &mut got).unwrap();
        }
        assert_eq!(got.len(), 60, "{shards} {round}");
        assert_eq!(of_first == 60, shards == 1, "{of_first}");
        assert!(others.iter().all(|other| !other.is_elsewhere()));
        refit(&mut wire.back);
        let burst = (0..50).map(|number| flow(&wire.mem, number)).collect();
        assert_eq!(wire.carry(true, burst).len(), 50);
    }
}

/// A datagram of a flow.
fn flow(mem: &Memory, number: u16) -> Packet {
    let mut ip = ipv4::Ipv4Header::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), Protocol::UDP, 60);
    ip.fill_check();
    let udp = wire::udp::UdpHeader::new(1000 + number, 9, 40);
    let bytes = [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0], ip.as_bytes(), udp.as_bytes(), &[7; 32]].concat();
    Packet::with_data(mem, &bytes).unwrap()
}

fn message(request: u32, flags: u32, body: &[u8]) -> Vec<u8> {
    [&[request, flags, body.len() as u32].map(u32::to_ne_bytes).concat(), body].concat()
}

/// The next answer of a back end that handles messages.
fn answer(raw: &mut Raw, len: usize) -> Vec<u8> {
    let mut socket = raw.session.socket.try_clone().unwrap();
    socket.set_nonblocking(true).unwrap();
    let mut answer = vec![0; len];
    until(|| {
        raw.back.recv(&raw.mem, &mut Vec::new()).unwrap();
        socket.read_exact(&mut answer).is_ok()
    });
    answer
}

#[test]
fn message_half_sent_is_answered_by_the_next_process() {
    let mut raw = Raw::new(|all| all);
    let mut socket = raw.session.socket.try_clone().unwrap();
    // SET_OWNER with a request for a reply: GET_FEATURES and REPLY_ACK are known.
    let with_reply = message(3, 1 | 8, &[]);
    for split in [0, 1, 11, 12] {
        socket.write_all(&with_reply[..split]).unwrap();
        raw.back.recv(&raw.mem, &mut Vec::new()).unwrap();
        replace(&mut raw.back, 1);
        socket.write_all(&with_reply[split..]).unwrap();
        assert_eq!(answer(&mut raw, 20)[12..], [0; 8], "{split}");
    }
    // Protocol features are known as well: the reply to GET_QUEUE_NUM is that of the present link.
    socket.write_all(&message(17, 1, &[])).unwrap();
    replace(&mut raw.back, 5);
    assert_eq!(answer(&mut raw, 20)[12], 5);
    // And features: others are refused while rings run.
    socket.write_all(&message(2, 1 | 8, &0_u64.to_ne_bytes())).unwrap();
    until(|| raw.back.recv(&raw.mem, &mut Vec::new()).is_err());
}

#[test]
fn ring_that_is_stopped_and_started_again_goes_on() {
    let mut raw = Raw::new(|all| all);
    assert_eq!(bytes_of(&raw.send([0; 12], &frame(1, 60))), [frame(1, 60)]);
    let mut socket = raw.session.socket.try_clone().unwrap();
    replace(&mut raw.back, 1);
    // GET_VRING_BASE: one chain was taken.
    socket.write_all(&message(11, 1, &[1, 0, 0, 0, 0, 0, 0, 0])).unwrap();
    assert_eq!(answer(&mut raw, 20)[12..], [1, 0, 0, 0, 1, 0, 0, 0]);
    // A ring that does not run is passed, too.
    replace(&mut raw.back, 1);
    let queues = raw.back.guest().queues;
    assert_eq!(queues.iter().map(|queue| queue.running).collect::<Vec<_>>(), [true, false]);
    socket.write_all(&message(10, 1, &[1, 0, 0, 0, 1, 0, 0, 0])).unwrap();
    // Without a kick descriptor.
    socket.write_all(&message(12, 1, &[1, 1, 0, 0, 0, 0, 0, 0])).unwrap();
    until(|| {
        raw.back.recv(&raw.mem, &mut Vec::new()).unwrap();
        raw.back.guest().queues[1].running
    });
    replace(&mut raw.back, 1);
    assert_eq!(bytes_of(&raw.send([0; 12], &frame(2, 60))), [frame(2, 60)]);
}

/// A connection that is refused is closed, and the port serves the next front end.
fn is_refused(name: &str, mut raw: Raw, config: &VhostConfig, change: impl FnOnce(&mut PassedConnection), why: &str) {
    let mut next = next_of(&raw.back, config);
    let passed = raw.back.pass().unwrap().unwrap();
    let mut received = received(&passed);
    change(&mut received);
    let found = next.take(Some(received)).expect_err(name);
    assert!(found.contains(why), "{name}: {found}");
    let guest = next.guest();
    let rings = guest.queues.iter().any(|queue| queue.running || queue.enabled || queue.size > 0);
    assert!(!guest.connected && !guest.running && guest.regions == 0 && !rings, "{name}: {guest:?}");
    // Although this process has a duplicate of the socket.
    let mut socket = raw.session.socket.try_clone().unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let end = socket.read(&mut [0]);
    assert!(matches!(end, Ok(0)) || end.is_err_and(|err| err.kind() == std::io::ErrorKind::ConnectionReset), "{name}");
    drop(passed);
    if config.memory > 1 << 30 {
        assert_eq!(Raw::of(next, |all| all).send([0; 12], &frame(1, 60)).len(), 1, "{name}");
    }
}

#[test]
fn damaged_state_is_refused_and_the_port_is_free() {
    type Damage = fn(&mut ConnectionState);
    let cases: [(&str, Damage, &str); 26] = [
        ("features", |state| state.features = Some(1 << 63), "message 2: "),
        ("protocol features", |state| state.protocol = 1 << 8, "message 16: "),
        ("file", |state| state.regions[0].file = 9, "6 descriptors of 15"),
        ("length", |state| state.regions[0].len <<= 20, "memory region 0: "),
        ("no length", |state| state.regions[0].len = 0, "memory region 0: "),
        ("part of a page", |state| state.regions[0].len -= 1, "memory region 0: "),
        ("offset", |state| state.regions[0].offset = u64::MAX, "memory region 0: "),
        ("guest address", |state| state.regions[0].guest_addr += 1, "memory region 0: "),
        ("end of memory", |state| state.regions[0].guest_addr = u64::MAX - 4095, "memory region 0: "),
        ("user address", |state| state.regions[0].user_addr = 0, "queue 0: "),
        ("overlap", |state| state.regions.push(region(state, 4096)), "memory region 1: "),
        ("many regions", |state| state.regions = vec![state.regions[0]; 129], "129 memory regions of 128"),
        ("no region", |state| state.regions.clear(), "descriptors of 5"),
        ("many queues", |state| state.queues.push(VringState::default()), "3 queues of 2"),
        ("size", |state| state.queues[0].size = 17, "queue 0: "),
        ("large size", |state| state.queues[1].size = 65_535, "queue 1: "),
        ("no size", |state| state.queues[0].size = 0, "queue 0: "),
        ("no place", |state| state.queues[0].place = None, "queue 0: "),
        ("table", |state| place(state).descriptors += 8, "queue 1: "),
        ("available ring", |state| place(state).available = u64::MAX, "queue 1: "),
        ("used ring", |state| place(state).used += 2, "queue 1: "),
        ("next", |state| state.queues[1].next = 30_000, "queue 1: available index"),
        ("used", |state| state.queues[1].used = Some(5), "queue 1: used index"),
        ("not running", |state| state.queues[1].used = None, "queue 1: a ring that did not run"),
        ("not started", |state| state.queues[1].is_started = false, "queue 1: "),
        ("no kick", |state| state.queues[1].has_kick = false, "6 descriptors of 5"),
    ];
    fn region(state: &ConnectionState, above: u64) -> crate::vhost::passed::RegionState {
        let mut region = state.regions[0];
        region.guest_addr += above;
        region
    }
    fn place(state: &mut ConnectionState) -> &mut Place {
        state.queues[1].place.as_mut().unwrap()
    }
    for (name, damage, why) in cases {
        let raw = Raw::new(|all| all);
        let config = config_of(&raw.back, 1);
        is_refused(name, raw, &config, |passed| damage(&mut passed.state), why);
    }
}

#[test]
fn other_descriptors_are_refused_and_the_port_is_free() {
    // Of the socket, the file, and two eventfds for each queue.
    type Descriptor = fn(&VhostUser) -> OwnedFd;
    let kinds: [(&str, usize, Descriptor); 7] = [
        ("its first descriptor is no connection", 0, |_| pipe().unwrap().0),
        ("its first descriptor is no connection", 0, listener),
        ("memory region 0: ", 1, |_| eventfd(0, EventfdFlags::CLOEXEC).unwrap()),
        ("memory region 0: ", 1, |_| std::fs::File::open("/proc/self/exe").unwrap().into()),
        ("queue 0: ", 2, |_| pipe().unwrap().0),
        ("queue 0: ", 3, |_| std::fs::File::open("/dev/null").unwrap().into()),
        ("queue 1: ", 4, listener),
    ];
    for (why, at, other) in kinds {
        let raw = Raw::new(|all| all);
        let (config, other) = (config_of(&raw.back, 1), other(&raw.back));
        let front = raw.session.socket.try_clone().unwrap();
        let change = |passed: &mut PassedConnection| {
            let mut descriptors: Vec<OwnedFd> =
                passed.descriptors().map(|fd| fd.try_clone_to_owned().unwrap()).collect();
            descriptors[at] = other;
            *passed = PassedConnection::of_descriptors(passed.state.clone(), descriptors).unwrap();
            if at == 0 {
                // The connection itself is not among them.
                let _ = front.shutdown(std::net::Shutdown::Read);
            }
        };
        is_refused(why, raw, &config, change, why);
    }
    assert!(PassedConnection::of_descriptors(passed_state(), Vec::new()).is_none());
}

fn passed_state() -> ConnectionState {
    Raw::new(|all| all).back.pass().unwrap().unwrap().state.clone()
}

/// A guest gains nothing by its memory, which it writes meanwhile.
#[test]
fn ring_that_the_guest_changes_meanwhile_is_refused() {
    type Change = fn(&mut Raw);
    let used = used_at(16) + 2;
    assert_eq!(used % 2, 0);
    let changes: [(&str, Change); 3] = [
        ("queue 1: used index 7, and 1 before", |raw| {
            raw.tx().ring.window.store_u16(used_at(16) + 2, 7, Ordering::Relaxed);
        }),
        ("queue 1: used index 0, and 1 before", |raw| {
            raw.tx().ring.window.store_u16(used_at(16) + 2, 0, Ordering::Relaxed);
        }),
        ("queue 1: available index 17 ahead", |raw| {
            raw.tx().ring.window.store_u16(available_at(16) + 2, 18, Ordering::Relaxed);
        }),
    ];
    for (why, change) in changes {
        let mut raw = Raw::new(|all| all);
        assert_eq!(raw.send([0; 12], &frame(1, 60)).len(), 1);
        change(&mut raw);
        let config = config_of(&raw.back, 1);
        is_refused(why, raw, &config, |_| {}, why);
    }
}

#[test]
fn limits_of_the_next_link_count() {
    let raw = Raw::new(|all| all);
    let less = VhostConfig { memory: 1 << 16, ..config_of(&raw.back, 1) };
    is_refused("memory", raw, &less, |_| {}, "more than 65536 bytes of memory; raise `memory` of the link");
    let raw = Raw::new(|all| all);
    let plain = VhostConfig { offloads: false, ..config_of(&raw.back, 1) };
    is_refused("offloads", raw, &plain, |_| {}, "message 2: ");
}

#[test]
fn guest_that_violates_the_rules_is_not_passed() {
    let mut raw = Raw::new(|all| all);
    let shards = ShardCount::ONE;
    assert_eq!(shards.get(), 1);
    let addr = raw.tx().buffers;
    raw.tx().ring.describe(0, addr, 100, WRITE, 0);
    raw.offer();
    lock(&raw.back.device).vrings.iter().for_each(|vring| lock(vring).stop_for("a fault".to_owned()));
    assert_eq!(raw.back.pass().unwrap_err(), "a fault");
    // A program that has only looked for a listener has none to pass.
    let mut back = back_end(1);
    let probe = UnixStream::connect(&back.socket).unwrap();
    back.recv(&Memory::heap(), &mut Vec::new()).unwrap();
    assert!(back.guest().connected);
    drop(probe);
    assert!(back.pass().unwrap().is_none());
}

#[test]
fn front_end_without_a_message_yet_is_passed() {
    let mut back = back_end(1);
    let mut front = UnixStream::connect(&back.socket).unwrap();
    back.recv(&Memory::heap(), &mut Vec::new()).unwrap();
    assert!(back.guest().connected);
    let mut next = next_of(&back, &config_of(&back, 1));
    let passed = back.pass().unwrap().unwrap();
    next.take(Some(received(&passed))).unwrap();
    drop((back, passed));
    // `VHOST_USER_GET_FEATURES`.
    std::io::Write::write_all(&mut front, &[1_u32, 1, 0].map(u32::to_ne_bytes).concat()).unwrap();
    front.set_read_timeout(Some(std::time::Duration::from_secs(10))).unwrap();
    wait(&next);
    next.recv(&Memory::heap(), &mut Vec::new()).unwrap();
    let mut reply = [0; 20];
    std::io::Read::read_exact(&mut front, &mut reply).unwrap();
    assert_eq!(reply[..4], 1_u32.to_ne_bytes());
}

#[test]
fn listener_whose_file_is_gone_is_refused() {
    let back = back_end(1);
    assert_eq!(listening_path(&listener(&back)), Some(back.socket.clone()));
    assert_eq!(listening_path(&pipe().unwrap().0), None);
    std::fs::remove_file(&back.socket).unwrap();
    let err = open_shards(&config_of(&back, 1), ShardCount::ONE, Some(listener(&back))).unwrap_err();
    assert!(err.to_string().contains("the file of the socket that another process has is gone"), "{err}");
}

#[test]
fn front_end_that_comes_between_is_served_by_the_next_process() {
    let mem = Memory::heap();
    let mut back = back_end(1);
    let mut next = next_of(&back, &config_of(&back, 1));
    // While both have the listener, the first accepts.
    let first = UnixStream::connect(&back.socket).unwrap();
    next.recv(&mem, &mut Vec::new()).unwrap();
    assert!(!is_readable(&next) && !next.guest().connected);
    back.recv(&mem, &mut Vec::new()).unwrap();
    assert!(back.guest().connected);
    drop(first);
    until(|| {
        back.recv(&mem, &mut Vec::new()).unwrap();
        !back.guest().connected
    });
    assert!(back.pass().unwrap().is_none());
    let _second = UnixStream::connect(&back.socket).unwrap();
    back.recv(&mem, &mut Vec::new()).unwrap();
    assert!(!back.guest().connected);
    drop(back);
    next.take(None).unwrap();
    wait(&next);
    next.recv(&mem, &mut Vec::new()).unwrap();
    assert!(next.guest().connected);
}

#[test]
fn file_of_the_socket_goes_with_the_port_that_has_it() {
    let mut back = back_end(1);
    let socket = back.socket.clone();
    drop(next_of(&back, &config_of(&back, 1)));
    assert!(socket.exists(), "a process that does not take over leaves it");
    assert!(UnixStream::connect(&socket).is_ok());
    let mut next = next_of(&back, &config_of(&back, 1));
    assert!(back.pass().unwrap().is_none());
    drop(back);
    assert!(socket.exists());
    next.take(None).unwrap();
    drop(next);
    assert!(!socket.exists());
    // A port without a successor.
    let mut back = back_end(1);
    let (socket, passed, other) = (back.socket.clone(), listener(&back), listener(&back));
    assert!(back.pass().unwrap().is_none());
    drop(back);
    let ended = end_listening(passed).unwrap();
    assert!(UnixStream::connect(&socket).is_err() && ended.path().as_ref() == Some(&socket));
    ended.remove_file().unwrap();
    assert!(!socket.exists());
    // Another program has the path by now.
    let _other = UnixListener::bind(&socket).unwrap();
    end_listening(other).unwrap().remove_file().unwrap();
    assert!(UnixStream::connect(&socket).is_ok());
    assert!(end_listening(pipe().unwrap().0).is_none());
    assert!(end_listening(UnixStream::pair().unwrap().0.into()).is_none());
    std::fs::remove_file(&socket).unwrap();
}

#[test]
fn socket_of_another_program_at_the_path_stays() {
    for at in ["before the port is made", "before it is taken", "later"] {
        let mut back = back_end(1);
        let (socket, mut others) = (back.socket.clone(), Vec::new());
        let mut other = |now| {
            if now == at {
                std::fs::remove_file(&socket).unwrap();
                others.push(UnixListener::bind(&socket).unwrap());
            }
        };
        other("before the port is made");
        let mut next = next_of(&back, &config_of(&back, 1));
        other("before it is taken");
        assert!(back.pass().unwrap().is_none());
        drop(back);
        next.take(None).unwrap();
        other("later");
        drop(next);
        assert!(UnixStream::connect(&socket).is_ok(), "{at}");
        std::fs::remove_file(&socket).unwrap();
    }
}

#[test]
fn descriptor_that_listens_elsewhere_is_refused() {
    let (back, other) = (back_end(1), back_end(1));
    let error = |descriptors| open_queues(&config_of(&back, 1), ShardCount::ONE, descriptors).unwrap_err().to_string();
    let elsewhere = "vm0: bind: the socket of another process listens elsewhere";
    assert_eq!(error(vec![listener(&other)]), elsewhere);
    assert_eq!(error(vec![UnixStream::pair().unwrap().0.into()]), elsewhere);
    assert!(error(vec![pipe().unwrap().0]).starts_with("vm0: bind: "));
    assert!(error(vec![listener(&back), listener(&back)]).starts_with("vm0: descriptors: 2 are not those"));
    assert!(back.socket.exists() && UnixStream::connect(&back.socket).is_ok());
}
