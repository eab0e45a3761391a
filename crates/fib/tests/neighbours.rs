//! State machine of neighbours: one row for each transition, and the limits.

use std::net::IpAddr;
use std::time::Duration;

use base::{DropReason, Instant, PortId, Rate};
use fib::{Action, Known, Limits, LladdrUpdate, Neighbours, Resolution};
use packet::{Memory, Packet, Pool};
use wire::MacAddr;

const LINK: PortId = PortId(1);
const A: MacAddr = MacAddr([2, 0, 0, 0, 0, 0xa]);
const B: MacAddr = MacAddr([2, 0, 0, 0, 0, 0xb]);
const OUR_HOP: &str = "10.0.0.2";

struct World {
    mem: Memory,
    now: Instant,
    neighbours: Neighbours,
    actions: Vec<Action>,
}

impl World {
    fn new() -> Self {
        Self::with(Limits::default())
    }

    fn with(limits: Limits) -> Self {
        let (mem, neighbours) = (Memory::heap(), Neighbours::new(limits));
        Self { mem, now: Instant::from_nanos(1_000), neighbours, actions: Vec::new() }
    }

    fn send(&mut self, hop: IpAddr, data: &[u8]) -> Resolution {
        let packet = Packet::with_data(&self.mem, data).unwrap();
        self.neighbours.resolve(self.now, &self.mem, LINK, hop, packet, &mut self.actions)
    }

    /// Sends to the usual next hop, and returns the result.
    fn try_send(&mut self, data: &[u8]) -> String {
        show_resolution(self.send(hop(), data))
    }

    fn learn(&mut self, update: LladdrUpdate) {
        self.neighbours.learn(self.now, LINK, hop(), update, &mut self.actions);
    }

    /// Resolves `addr`, which answers from A.
    fn confirm(&mut self, addr: IpAddr) {
        assert!(matches!(self.send(addr, b"first"), Resolution::Queued), "{addr}");
        self.neighbours.learn(self.now, LINK, addr, advertised(A, true, true), &mut self.actions);
        assert_eq!(self.state_of(addr), "REACHABLE");
    }

    /// Handles a request of `addr` for an address of this node.
    fn ask(&mut self, link: PortId, addr: IpAddr) {
        self.neighbours.learn(self.now, link, addr, LladdrUpdate::Solicitation(B), &mut self.actions);
    }

    /// Advances the time, with each timeout at its own instant.
    fn pass(&mut self, secs: f64) {
        let until = self.now + Duration::from_secs_f64(secs);
        while let Some(at) = self.neighbours.poll_timeout().filter(|&at| at <= until) {
            assert!(at >= self.now, "a time-out in the past");
            self.now = at;
            self.neighbours.handle_timeout(at, &mut self.actions);
        }
        self.neighbours.check_invariants();
        self.now = until;
    }

    fn state(&self) -> &'static str {
        self.state_of(hop())
    }

    fn state_of(&self, addr: IpAddr) -> &'static str {
        self.neighbours.iter().find(|entry| entry.addr == addr).map_or("none", |entry| entry.state.name())
    }

    /// Actions since the last call, in short form.
    fn done(&mut self) -> Vec<String> {
        self.actions.drain(..).map(show).collect()
    }
}

fn hop() -> IpAddr {
    OUR_HOP.parse().unwrap()
}

fn show_resolution(resolution: Resolution) -> String {
    match resolution {
        Resolution::Send(to, _) => format!("send {to}"),
        Resolution::Queued => "queued".to_owned(),
        Resolution::Dropped(_, reason) => reason.name().to_owned(),
    }
}

fn show(action: Action) -> String {
    let text = |packet: Packet| String::from_utf8_lossy(&packet.to_vec()).into_owned();
    match action {
        Action::Solicit { target, unicast_to: None, .. } => format!("who has {target}?"),
        Action::Solicit { target, unicast_to: Some(mac), .. } => format!("{mac}, have you {target}?"),
        Action::Send { to, packet, .. } => format!("send {:?} to {to}", text(packet)),
        Action::Answer { frame, .. } => format!("answer of {} bytes", frame.len()),
        Action::Drop { packet, reason, .. } => format!("drop {:?}: {}", text(packet), reason.name()),
        Action::Conflict { addr, station, .. } => format!("{station} uses our {addr}"),
    }
}

fn advertised(mac: impl Into<Option<MacAddr>>, solicited: bool, overrides: bool) -> LladdrUpdate {
    LladdrUpdate::Advertised { mac: mac.into(), solicited, overrides }
}

/// A world in which the neighbour is in that state, with link-layer address A if the state has one.
fn in_state(state: &str) -> World {
    let mut world = World::new();
    match state {
        "none" => {}
        "INCOMPLETE" => drop(world.send(hop(), b"waits")),
        "FAILED" => {
            world.send(hop(), b"lost");
            world.pass(3.0);
        }
        "REACHABLE" => {
            world.learn(LladdrUpdate::Solicitation(A));
            world.learn(advertised(A, true, true));
        }
        "STALE" => world.learn(LladdrUpdate::Solicitation(A)),
        "DELAY" | "PROBE" => {
            world.learn(LladdrUpdate::Solicitation(A));
            world.send(hop(), b"probes");
            world.pass(if state == "PROBE" { 5.5 } else { 0.5 });
        }
        other => panic!("no state {other}"),
    }
    assert_eq!(world.state(), state);
    world.actions.clear();
    world
}

#[test]
fn unknown_neighbour_fails_after_three_solicitations() {
    let mut world = World::new();
    assert_eq!(world.try_send(b"one"), "queued");
    assert_eq!(world.try_send(b"two"), "queued");
    assert_eq!(world.done(), ["who has 10.0.0.2?"]);
    world.pass(0.999);
    assert_eq!(world.done(), [""; 0]);
    world.pass(0.001);
    assert_eq!(world.done(), ["who has 10.0.0.2?"]);
    world.pass(1.0);
    assert_eq!(world.done(), ["who has 10.0.0.2?"]);
    assert_eq!(world.state(), "INCOMPLETE");
    world.pass(1.0);
    assert_eq!(world.done(), [r#"drop "one": NeighbourFailed"#, r#"drop "two": NeighbourFailed"#]);
    assert_eq!(world.state(), "FAILED");
    // A further packet starts another resolution; without a packet the entry is removed.
    assert_eq!(world.try_send(b"three"), "queued");
    assert_eq!(world.done(), ["who has 10.0.0.2?"]);
    assert_eq!(world.state(), "INCOMPLETE");
    world.pass(3.0 + 59.9);
    assert_eq!(world.state(), "FAILED");
    world.pass(0.2);
    assert_eq!(world.state(), "none");
    assert_eq!(world.neighbours.poll_timeout(), None);
}

#[test]
fn origin_of_an_entry_is_kept_as_long_as_the_entry() {
    let mut world = World::new();
    let protocol = |world: &World| world.neighbours.get(LINK, hop()).map(|it| it.protocol);
    let set = |world: &mut World, known| world.neighbours.set(world.now, LINK, hop(), known, &mut Vec::new());
    world.neighbours.set_protocol(LINK, hop(), 4);
    set(&mut world, Known::Permanent(A));
    assert_eq!(protocol(&world), Some(0));
    world.neighbours.set_protocol(LINK, hop(), 4);
    set(&mut world, Known::Stale(B));
    assert_eq!(protocol(&world), Some(4));
    set(&mut world, Known::Nothing);
    assert_eq!(protocol(&world), None);
    set(&mut world, Known::Permanent(A));
    assert_eq!(protocol(&world), Some(0));
}

#[test]
fn neighbours_removed_with_their_link_are_reported() {
    let mut world = World::new();
    world.neighbours.watch(true);
    world.neighbours.set(world.now, LINK, hop(), Known::Permanent(A), &mut world.actions);
    let was = world.neighbours.get(LINK, hop()).unwrap();
    world.neighbours.remove_link(LINK, &mut world.actions);
    let changed = world.neighbours.take_changed();
    assert_eq!((changed.entries, changed.removed, changed.is_truncated), (vec![], vec![was], false));
    assert!(world.neighbours.take_changed().removed.is_empty());
}

#[test]
fn held_packets_leave_in_order_when_answer_comes() {
    let mut world = World::new();
    for data in ["1", "2", "3"] {
        assert_eq!(world.try_send(data.as_bytes()), "queued");
    }
    world.pass(1.5);
    world.learn(advertised(A, true, false));
    let want = [
        "who has 10.0.0.2?",
        "who has 10.0.0.2?",
        r#"send "1" to 02:00:00:00:00:0a"#,
        r#"send "2" to 02:00:00:00:00:0a"#,
        r#"send "3" to 02:00:00:00:00:0a"#,
    ];
    assert_eq!(world.done(), want);
    assert_eq!(world.state(), "REACHABLE");
    assert_eq!(world.try_send(b"4"), "send 02:00:00:00:00:0a");
    assert_eq!(world.mem.small().in_use(), 0);
}

#[test]
fn stale_neighbour_is_probed_only_when_used() {
    let mut world = in_state("REACHABLE");
    world.pass(29.9);
    assert_eq!(world.state(), "REACHABLE");
    world.pass(0.2);
    assert_eq!(world.state(), "STALE");
    world.pass(1000.0);
    assert_eq!(world.state(), "STALE");
    assert_eq!(world.done(), [""; 0]);
    assert_eq!(world.try_send(b"again"), "send 02:00:00:00:00:0a");
    assert_eq!(world.state(), "DELAY");
    world.pass(4.9);
    assert_eq!(world.try_send(b"again"), "send 02:00:00:00:00:0a");
    assert_eq!((world.state(), world.done()), ("DELAY", vec![]));
    world.pass(0.1);
    assert_eq!(world.state(), "PROBE");
    assert_eq!(world.done(), ["02:00:00:00:00:0a, have you 10.0.0.2?"]);
    assert_eq!(world.try_send(b"still"), "send 02:00:00:00:00:0a");
    world.pass(2.0);
    assert_eq!(world.done(), ["02:00:00:00:00:0a, have you 10.0.0.2?"; 2]);
    assert_eq!(world.state(), "PROBE");
    world.pass(1.0);
    assert_eq!((world.state(), world.done()), ("FAILED", vec![]));
}

#[test]
fn message_moves_each_state_as_rfc_4861_appendix_c_says() {
    #[rustfmt::skip]
    let rows = [
        // state before, message, state after, link-layer address after
        ("none", LladdrUpdate::Solicitation(A), "STALE", Some(A)),
        ("none", advertised(A, true, true), "none", None),
        ("none", advertised(A, false, true), "none", None),
        ("INCOMPLETE", LladdrUpdate::Solicitation(B), "STALE", Some(B)),
        ("INCOMPLETE", advertised(None, true, true), "INCOMPLETE", None),
        ("INCOMPLETE", advertised(B, true, false), "REACHABLE", Some(B)),
        ("INCOMPLETE", advertised(B, true, true), "REACHABLE", Some(B)),
        ("INCOMPLETE", advertised(B, false, false), "STALE", Some(B)),
        ("INCOMPLETE", advertised(B, false, true), "STALE", Some(B)),
        ("FAILED", LladdrUpdate::Solicitation(B), "STALE", Some(B)),
        ("FAILED", advertised(B, true, true), "REACHABLE", Some(B)),
        ("FAILED", advertised(None, true, true), "FAILED", None),
        ("REACHABLE", LladdrUpdate::Solicitation(A), "REACHABLE", Some(A)),
        ("REACHABLE", LladdrUpdate::Solicitation(B), "STALE", Some(B)),
        ("REACHABLE", advertised(A, true, false), "REACHABLE", Some(A)),
        ("REACHABLE", advertised(A, false, true), "REACHABLE", Some(A)),
        ("REACHABLE", advertised(None, false, true), "REACHABLE", Some(A)),
        ("REACHABLE", advertised(B, true, false), "STALE", Some(A)),
        ("REACHABLE", advertised(B, false, false), "STALE", Some(A)),
        ("REACHABLE", advertised(B, true, true), "REACHABLE", Some(B)),
        ("REACHABLE", advertised(B, false, true), "STALE", Some(B)),
        ("STALE", LladdrUpdate::Solicitation(A), "STALE", Some(A)),
        ("STALE", LladdrUpdate::Solicitation(B), "STALE", Some(B)),
        ("STALE", advertised(A, true, false), "REACHABLE", Some(A)),
        ("STALE", advertised(None, true, false), "REACHABLE", Some(A)),
        ("STALE", advertised(A, false, true), "STALE", Some(A)),
        ("STALE", advertised(B, true, false), "STALE", Some(A)),
        ("STALE", advertised(B, true, true), "REACHABLE", Some(B)),
        ("STALE", advertised(B, false, true), "STALE", Some(B)),
        ("DELAY", LladdrUpdate::Solicitation(A), "DELAY", Some(A)),
        ("DELAY", LladdrUpdate::Solicitation(B), "STALE", Some(B)),
        ("DELAY", advertised(A, true, false), "REACHABLE", Some(A)),
        ("DELAY", advertised(A, false, false), "DELAY", Some(A)),
        ("DELAY", advertised(B, true, false), "DELAY", Some(A)),
        ("DELAY", advertised(B, false, true), "STALE", Some(B)),
        ("PROBE", LladdrUpdate::Solicitation(A), "PROBE", Some(A)),
        ("PROBE", LladdrUpdate::Solicitation(B), "STALE", Some(B)),
        ("PROBE", advertised(None, true, true), "REACHABLE", Some(A)),
        ("PROBE", advertised(A, false, true), "PROBE", Some(A)),
        ("PROBE", advertised(B, true, false), "PROBE", Some(A)),
        ("PROBE", advertised(B, true, true), "REACHABLE", Some(B)),
        ("PROBE", advertised(B, false, true), "STALE", Some(B)),
    ];
    for (from, update, to, mac) in rows {
        let mut world = in_state(from);
        world.learn(update);
        let now = world.neighbours.iter().next();
        assert_eq!((world.state(), now.and_then(|entry| entry.mac)), (to, mac), "{from} on {update:?}");
        // An entry with an address has no waiting packets, and only a state that ends by itself has a timeout.
        let sent = world.done();
        let want = usize::from(from == "INCOMPLETE" && mac.is_some());
        assert_eq!(sent.iter().filter(|line| line.starts_with("send \"waits\"")).count(), want, "{from} on {update:?}");
        assert_eq!(sent.len(), want, "{from} on {update:?}");
        let timed = !matches!(to, "STALE" | "none");
        assert_eq!(world.neighbours.poll_timeout().is_some(), timed, "{from} on {update:?}");
    }
}

#[test]
fn a_confirmation_begins_the_reachable_time_again() {
    let mut world = in_state("REACHABLE");
    world.pass(20.0);
    world.learn(advertised(A, true, true));
    world.pass(20.0);
    assert_eq!(world.state(), "REACHABLE");
    world.pass(10.0);
    assert_eq!(world.state(), "STALE");
}

#[test]
fn oldest_held_packet_is_dropped_when_queue_is_full() {
    let mut world = World::with(Limits { waiting_packets: 3, ..Limits::default() });
    for data in ["1", "2", "3", "4", "5"] {
        assert_eq!(world.try_send(data.as_bytes()), "queued");
    }
    let want = ["who has 10.0.0.2?", r#"drop "1": NeighbourQueueFull"#, r#"drop "2": NeighbourQueueFull"#];
    assert_eq!(world.done(), want);
    assert_eq!(world.neighbours.iter().map(|entry| entry.queued).collect::<Vec<_>>(), [3]);
    assert_eq!(world.mem.small().in_use(), 3);
}

#[test]
fn held_packets_are_limited_by_truesize() {
    let small = Packet::with_data(&Memory::heap(), b"small").unwrap().truesize();
    let mut world = World::with(Limits { waiting_bytes: 2 * small, ..Limits::default() });
    for data in ["1", "2", "3"] {
        assert_eq!(world.try_send(data.as_bytes()), "queued");
    }
    assert_eq!(world.done()[1..], [r#"drop "1": NeighbourQueueFull"#]);
    // One packet may always wait, whatever its size.
    let mut world = World::with(Limits { waiting_bytes: 1, ..Limits::default() });
    assert_eq!(world.try_send(b"large"), "queued");
}

#[test]
fn packets_for_many_neighbours_are_bounded_together() {
    let small = Packet::with_data(&Memory::heap(), b"small").unwrap().truesize();
    let mut world = World::with(Limits { waiting_bytes_total: 3 * small, ..Limits::default() });
    let outcomes: Vec<_> =
        (0..5u8).map(|n| show_resolution(world.send(IpAddr::from([10, 0, 0, n]), b"scan"))).collect();
    let full = DropReason::NeighbourQueueFull.name();
    assert_eq!(outcomes, ["queued", "queued", "queued", full, full]);
    // All of them are still solicited, and memory that one queue releases is available to the others.
    assert_eq!(world.done().len(), 5);
    world.neighbours.learn(
        world.now,
        LINK,
        IpAddr::from([10, 0, 0, 0]),
        LladdrUpdate::Solicitation(A),
        &mut world.actions,
    );
    assert_eq!(show_resolution(world.send(IpAddr::from([10, 0, 0, 4]), b"scan")), "queued");
    world.pass(3.0);
    assert_eq!(world.done().iter().filter(|line| line.starts_with("drop")).count(), 3);
    assert_eq!(world.mem.small().in_use(), 0);
}

#[test]
fn scan_does_not_evict_confirmed_neighbours() {
    let limits = Limits { entries: 64, resolutions: Rate::new(1000, 1000), ..Limits::default() };
    let mut world = World::with(limits);
    world.learn(LladdrUpdate::Solicitation(A));
    world.learn(advertised(A, true, true));
    let stale: IpAddr = "10.0.0.3".parse().unwrap();
    world.neighbours.learn(world.now, LINK, stale, LladdrUpdate::Solicitation(B), &mut world.actions);
    for n in 0..10_000u32 {
        let target = IpAddr::from((0x0a01_0000 + n).to_be_bytes());
        assert!(matches!(world.send(target, b"scan"), Resolution::Queued), "{target}");
        assert!(world.neighbours.len() <= 64);
        if n % 100 == 0 {
            world.pass(0.1);
        }
    }
    assert_eq!(world.state(), "REACHABLE");
    assert!(world.neighbours.iter().any(|entry| entry.addr == stale && entry.state.name() == "STALE"));
    // Every evicted packet is accounted for, and the resolution of the last next hop is in progress.
    let last = IpAddr::from((0x0a01_0000u32 + 9_999).to_be_bytes());
    assert!(world.neighbours.iter().any(|entry| entry.addr == last && entry.queued == 1));
    let dropped = world.done().iter().filter(|line| line.contains("NeighbourFailed")).count();
    let waiting: usize = world.neighbours.iter().map(|entry| entry.queued).sum();
    assert_eq!(dropped + waiting, 10_000);
    assert_eq!(world.mem.small().in_use(), waiting);
}

#[test]
fn a_table_full_of_reachable_neighbours_gives_up_one_at_a_time() {
    let mut world = World::with(Limits { entries: 16, ..Limits::default() });
    for n in 0..20u8 {
        world.now = world.now + Duration::from_millis(1);
        let addr = IpAddr::from([10, 0, 1, n]);
        world.neighbours.learn(world.now, LINK, addr, LladdrUpdate::Solicitation(A), &mut world.actions);
        world.neighbours.learn(world.now, LINK, addr, advertised(A, true, true), &mut world.actions);
        assert_eq!(world.neighbours.len(), usize::from(n + 1).min(16));
    }
    let mut left: Vec<_> = world.neighbours.iter().map(|entry| entry.addr).collect();
    left.sort();
    assert_eq!(left[0], IpAddr::from([10, 0, 1, 4]), "the eldest went");
}

#[test]
fn permanent_neighbours_are_never_evicted() {
    let mut world = World::with(Limits { entries: 4, ..Limits::default() });
    let permanent = |n| IpAddr::from([10, 0, 1, n]);
    for n in 0..10 {
        world.neighbours.set(world.now, LINK, permanent(n), Known::Permanent(A), &mut world.actions);
    }
    for n in 0..100 {
        assert!(matches!(world.send(IpAddr::from([10, 0, 2, n]), b"scan"), Resolution::Queued));
    }
    assert!((0..10).all(|n| world.neighbours.is_resolved(LINK, permanent(n))));
    assert_eq!(world.neighbours.len(), 10 + 4);
    // An entry that is no longer permanent counts like the others.
    for n in 0..10 {
        world.neighbours.set(world.now, LINK, permanent(n), Known::Stale(A), &mut world.actions);
    }
    world.neighbours.set(world.now, LINK, permanent(0), Known::Nothing, &mut world.actions);
    for n in 100..120 {
        assert!(matches!(world.send(IpAddr::from([10, 0, 2, n]), b"scan"), Resolution::Queued));
    }
    assert!(world.neighbours.len() <= 13, "one goes for each that comes");
}

/// A scan of a network must not empty a device's receive ring.
#[test]
fn waiting_packet_gives_its_device_frames_back() {
    let mut world = World::with(Limits { waiting_packets: 32, ..Limits::default() });
    let ring = Pool::bounded(Memory::SMALL, 1);
    for n in 0..40u8 {
        let mut frame = ring.take(0).expect("the frame came back");
        frame.put(4).unwrap().copy_from_slice(&[1, 2, 3, n]);
        let waits = Packet::from_buf(frame);
        let got = world.neighbours.resolve(world.now, &world.mem, LINK, hop(), waits, &mut world.actions);
        assert_eq!(show_resolution(got), "queued");
    }
    world.actions.clear();
    world.learn(LladdrUpdate::Solicitation(B));
    let sent = world.actions.drain(..).filter_map(|action| match action {
        Action::Send { packet, .. } => Some(packet.to_vec()),
        _ => None,
    });
    assert!(sent.eq((8..40).map(|n| vec![1, 2, 3, n])), "the last 32");
}

#[test]
fn groups_need_no_neighbour() {
    let mut world = World::new();
    let cases = [("224.0.0.251", "send 01:00:5e:00:00:fb"), ("ff02::1:ff00:7", "send 33:33:ff:00:00:07")];
    for (group, want) in cases {
        assert_eq!(show_resolution(world.send(group.parse().unwrap(), b"all")), want);
    }
    assert!(world.neighbours.is_empty() && world.actions.is_empty());
}

#[test]
fn same_address_on_two_links_is_two_neighbours() {
    let mut world = in_state("INCOMPLETE");
    let other = PortId(2);
    world.neighbours.learn(world.now, other, hop(), LladdrUpdate::Solicitation(B), &mut world.actions);
    assert_eq!(world.neighbours.len(), 2);
    world.neighbours.remove_link(LINK, &mut world.actions);
    assert_eq!(world.done(), [r#"drop "waits": NeighbourFailed"#]);
    let left: Vec<_> = world.neighbours.iter().map(|entry| (entry.link, entry.mac)).collect();
    assert_eq!(left, [(other, Some(B))]);
    assert_eq!(world.neighbours.poll_timeout(), None);
}

/// Rates without a limit, for tests of a full table.
fn full_table(entries: usize) -> Limits {
    let unlimited = Rate::new(1_000_000, 1_000_000);
    Limits { entries, solicitations: unlimited, resolutions: unlimited, ..Limits::default() }
}

/// The `n`th address from 10.1.0.0 on.
fn nth(n: u32) -> IpAddr {
    IpAddr::from((0x0a01_0000 + n).to_be_bytes())
}

#[test]
fn asking_again_confirms_no_neighbour() {
    let mut world = World::new();
    for _ in 0..100 {
        world.ask(LINK, hop());
        world.pass(1.0);
        assert_eq!(world.state(), "STALE");
    }
    assert_eq!(world.done(), [""; 0], "nothing is sent to a station that asks");
}

#[test]
fn solicitation_flood_evicts_no_awaited_neighbour() {
    let mut world = World::with(full_table(16));
    assert_eq!(world.try_send(b"waits"), "queued");
    let stale: IpAddr = "10.0.0.3".parse().unwrap();
    world.ask(LINK, stale);
    for n in 0..10_000 {
        world.ask(LINK, nth(n));
    }
    assert_eq!((world.state(), world.state_of(stale)), ("INCOMPLETE", "none"));
    assert_eq!(world.neighbours.len(), 16);
    world.learn(advertised(A, true, true));
    assert_eq!(world.done(), ["who has 10.0.0.2?", r#"send "waits" to 02:00:00:00:00:0a"#]);
    assert_eq!(world.state(), "REACHABLE");
}

#[test]
fn solicitation_flood_evicts_no_neighbour_being_probed() {
    let mut world = World::with(full_table(16));
    // The neighbour has sent a solicitation, and is used for the first time.
    world.ask(LINK, hop());
    assert_eq!(world.try_send(b"first"), "send 02:00:00:00:00:0b");
    for n in 0..10_000 {
        world.ask(LINK, nth(n));
    }
    assert_eq!(world.state(), "DELAY");
    world.pass(5.0);
    assert_eq!((world.state(), world.done()), ("PROBE", vec!["02:00:00:00:00:0b, have you 10.0.0.2?".to_owned()]));
}

#[test]
fn confirmed_neighbour_outlives_floods_whatever_its_state() {
    // A neighbour that has answered once, in each state that it can reach.
    for (state, secs) in [("REACHABLE", 0.0), ("STALE", 31.0), ("DELAY", 31.0), ("PROBE", 31.0), ("FAILED", 31.0)] {
        let mut world = World::with(full_table(16));
        world.confirm(hop());
        world.pass(secs);
        if !matches!(state, "REACHABLE" | "STALE") {
            assert_eq!(world.try_send(b"again"), "send 02:00:00:00:00:0a");
            world.pass(match state {
                "DELAY" => 0.0,
                "PROBE" => 5.0,
                _ => 8.0,
            });
        }
        for n in 0..10_000 {
            world.ask(LINK, nth(n));
            let _ = world.send(nth(20_000 + n), b"scan");
        }
        assert_eq!(world.state(), state);
        world.neighbours.check_invariants();
    }
}

#[test]
fn table_full_of_confirmed_neighbours_admits_no_asker() {
    let mut world = World::with(full_table(16));
    (0..16).for_each(|n| world.confirm(nth(n)));
    world.ask(LINK, hop());
    assert_eq!((world.state(), world.neighbours.len()), ("none", 16));
    // A packet's next hop replaces the least recently used entry.
    assert!(matches!(world.send(nth(0), b"in use"), Resolution::Send(..)));
    assert_eq!(world.try_send(b"waits"), "queued");
    assert_eq!([0, 1, 2].map(|n| world.state_of(nth(n))), ["REACHABLE", "none", "REACHABLE"]);
    assert_eq!(world.neighbours.len(), 16);
}

#[test]
fn scan_leaves_three_quarters_to_confirmed_neighbours() {
    let mut world = World::with(full_table(16));
    (0..16).for_each(|n| world.confirm(nth(n)));
    for n in 0..10_000 {
        let _ = world.send(nth(20_000 + n), b"scan");
    }
    let confirmed: Vec<_> = (0..16).filter(|&n| world.state_of(nth(n)) == "REACHABLE").collect();
    assert_eq!(confirmed, (4..16).collect::<Vec<_>>(), "the oldest went");
}

#[test]
fn askers_make_a_limited_number_of_entries_a_second() {
    let mut world = World::new();
    let other = PortId(2);
    (0..10_000).for_each(|n| world.ask(LINK, nth(n)));
    assert_eq!(world.neighbours.len(), 256);
    // Another link and the other family have separate budgets.
    world.ask(other, nth(0));
    world.ask(LINK, "fd00::2".parse().unwrap());
    assert_eq!(world.neighbours.len(), 258);
    world.pass(0.5);
    (0..10_000).for_each(|n| world.ask(LINK, nth(10_000 + n)));
    assert_eq!(world.neighbours.len(), 258 + 128);
    // The link-layer address of a known station may still change.
    world.neighbours.learn(world.now, LINK, nth(0), LladdrUpdate::Solicitation(A), &mut world.actions);
    assert_eq!(world.neighbours.mac(LINK, nth(0)), Some(A));
}

#[test]
fn packets_start_a_limited_number_of_resolutions_a_second() {
    let mut world = World::new();
    let count = |world: &mut World, from: u32| {
        let outcomes = (from..from + 10_000).map(|n| show_resolution(world.send(nth(n), b"scan")));
        outcomes.filter(|outcome| outcome == "queued").count()
    };
    assert_eq!(count(&mut world, 0), 256);
    assert_eq!(world.done().len(), 256, "one solicitation each");
    assert_eq!(show_resolution(world.send(nth(9_999), b"scan")), DropReason::NeighbourRateLimited.name());
    // Another link and the other family have separate budgets.
    let v6: IpAddr = "fd00::2".parse().unwrap();
    assert_eq!(show_resolution(world.send(v6, b"other family")), "queued");
    world.pass(0.5);
    assert_eq!(count(&mut world, 20_000), 128);
    // Further packets for a next hop in resolution need no budget.
    assert_eq!(show_resolution(world.send(nth(20_000), b"more")), "queued");
}

#[test]
fn neighbour_that_has_answered_is_resolved_again_in_a_scan() {
    let mut world = World::new();
    world.confirm(hop());
    world.pass(31.0);
    assert_eq!(world.try_send(b"again"), "send 02:00:00:00:00:0a");
    world.pass(8.0);
    assert_eq!(world.state(), "FAILED");
    for n in 0..10_000 {
        let _ = world.send(nth(n), b"scan");
    }
    world.actions.clear();
    assert_eq!(world.try_send(b"waits"), "queued");
    assert_eq!(world.done(), ["who has 10.0.0.2?"]);
    // A neighbour that has never answered is limited.
    assert_eq!(show_resolution(world.send(nth(9_999), b"scan")), DropReason::NeighbourRateLimited.name());
}

#[test]
fn claimed_answer_without_a_question_confirms_nothing() {
    let mut world = World::with(full_table(16));
    for n in 0..16 {
        world.ask(LINK, nth(n));
        world.neighbours.learn(world.now, LINK, nth(n), advertised(B, true, true), &mut world.actions);
    }
    // REACHABLE as in RFC 4861 §7.2.5, but with the same worth in a full table as before.
    assert_eq!(world.state_of(nth(0)), "REACHABLE");
    world.ask(LINK, hop());
    assert_eq!((world.state_of(nth(0)), world.state()), ("none", "STALE"));
}

#[test]
fn packets_that_wait_leave_room_to_those_of_other_links() {
    let small = Packet::with_data(&Memory::heap(), b"small").unwrap().truesize();
    let mut world = World::with(Limits { waiting_bytes_table: 2 * small, ..Limits::default() });
    let full = DropReason::NeighbourQueueFull.name();
    let outcomes: Vec<_> = (0..3).map(|n| show_resolution(world.send(nth(n), b"scan"))).collect();
    assert_eq!(outcomes, ["queued", "queued", full]);
    let packet = Packet::with_data(&world.mem, b"other").unwrap();
    let other = world.neighbours.resolve(world.now, &world.mem, PortId(2), hop(), packet, &mut world.actions);
    assert_eq!(show_resolution(other), "queued");
}

#[test]
fn changes_are_reported_at_a_limited_rate() {
    let mut world = World::new();
    world.neighbours.watch(true);
    let flip = |world: &mut World| {
        for n in 0..5_000 {
            world.learn(LladdrUpdate::Solicitation(if n % 2 == 0 { A } else { B }));
        }
    };
    flip(&mut world);
    let changed = world.neighbours.take_changed();
    assert_eq!((changed.entries.len(), changed.is_truncated), (1024, true));
    flip(&mut world);
    let changed = world.neighbours.take_changed();
    assert_eq!((changed.entries.len(), changed.is_truncated), (0, true));
    world.pass(0.5);
    flip(&mut world);
    assert_eq!(world.neighbours.take_changed().entries.len(), 500);
}

#[test]
fn full_table_evicts_one_entry_for_each_that_comes() {
    let mut world = World::with(full_table(64));
    world.neighbours.watch(true);
    for n in 0..400 {
        if n % 2 == 0 {
            world.ask(LINK, nth(n));
        } else {
            let _ = world.send(nth(n), b"scan");
        }
        let changed = world.neighbours.take_changed().entries;
        let gone = changed.iter().filter(|&&(_, addr)| world.state_of(addr) == "none").count();
        assert_eq!(gone, usize::from(n >= 64), "at {n}");
    }
    world.neighbours.check_invariants();
}

#[test]
fn strangers_are_answered_at_a_limited_rate() {
    let mut world = World::new();
    world.confirm(hop());
    world.ask(LINK, nth(0));
    let mut answered = |addr, ms| {
        let now = world.now + Duration::from_millis(ms);
        (0..20_000).filter(|_| world.neighbours.may_answer(now, LINK, addr)).count()
    };
    // A reply to the confirmed neighbour does not count.
    assert_eq!(answered(hop(), 0), 10_001);
    assert_eq!((answered(nth(0), 0), answered(nth(1), 0)), (0, 0));
    assert_eq!(answered("fd00::2".parse().unwrap(), 0), 10_000, "the other family");
    assert_eq!(answered(nth(0), 50), 500);
    assert_eq!((answered(hop(), 50), answered(nth(1), 100), answered(hop(), 100)), (0, 500, 1));
}

/// Addresses that other shards use from now on, or `-`, by neighbour.
fn told(world: &mut World) -> Vec<String> {
    let show = |it: fib::SharedStation| format!("{} {}", it.addr, it.mac.map_or("-".to_owned(), |mac| mac.to_string()));
    world.neighbours.take_shared().map(show).collect()
}

fn shared() -> World {
    let mut world = World::new();
    world.neighbours.share();
    world
}

#[test]
fn other_shards_are_told_of_a_neighbour_while_it_needs_no_probe() {
    let mut world = shared();
    world.try_send(b"first");
    assert_eq!(told(&mut world), [""; 0], "incomplete");
    world.learn(advertised(A, true, true));
    assert_eq!(told(&mut world), [format!("{OUR_HOP} {A}")]);
    world.learn(advertised(A, true, true));
    assert_eq!(told(&mut world), [""; 0], "confirmed again");
    world.pass(30.0);
    // The first packet to a stale neighbour has to pass here.
    assert_eq!((world.state(), told(&mut world)), ("STALE", vec![format!("{OUR_HOP} -")]));
    world.try_send(b"again");
    assert_eq!((world.state(), told(&mut world)), ("DELAY", vec![format!("{OUR_HOP} {A}")]));
    world.pass(5.0);
    assert_eq!((world.state(), told(&mut world)), ("PROBE", vec![]));
    world.pass(10.0);
    assert_eq!((world.state(), told(&mut world)), ("FAILED", vec![format!("{OUR_HOP} -")]));
    world.pass(100.0);
    assert_eq!((world.state(), told(&mut world)), ("none", vec![]));
    world.try_send(b"once more");
    world.learn(advertised(B, true, true));
    assert_eq!(told(&mut world), [format!("{OUR_HOP} {B}")]);
    let station = world.neighbours.shared_station(LINK, hop());
    assert_eq!((station.link, station.addr, station.mac), (LINK, hop(), Some(B)));
}

#[test]
fn shards_are_told_again_after_each_change_of_the_operator() {
    let mut world = shared();
    let mut set = |known| {
        world.neighbours.set(world.now, LINK, hop(), known, &mut world.actions);
        told(&mut world)
    };
    assert_eq!(set(Known::Permanent(A)), [format!("{OUR_HOP} {A}")]);
    // They have forgotten it, as they make the same change.
    assert_eq!(set(Known::Permanent(A)), [format!("{OUR_HOP} {A}")]);
    assert_eq!(set(Known::Reachable(B)), [format!("{OUR_HOP} {B}")]);
    assert_eq!(set(Known::Stale(B)), [""; 0]);
    assert_eq!(set(Known::Permanent(A)), [format!("{OUR_HOP} {A}")]);
    assert_eq!(set(Known::Nothing), [""; 0]);
}

#[test]
fn other_shards_are_told_what_a_link_that_goes_down_forgets() {
    let mut world = shared();
    world.confirm(hop());
    assert_eq!(told(&mut world), [format!("{OUR_HOP} {A}")]);
    world.neighbours.remove_link(LINK, &mut world.actions);
    assert_eq!(told(&mut world), [format!("{OUR_HOP} -")], "their links may be up");
    world.confirm(hop());
    assert_eq!(told(&mut world), [format!("{OUR_HOP} {A}")]);
    // Between two calls, with the same address as before: a shard whose own link was down asks for it by a fence.
    world.neighbours.remove_link(LINK, &mut world.actions);
    world.confirm(hop());
    assert_eq!(told(&mut world), [""; 0]);
    assert_eq!(world.neighbours.shared_station(LINK, hop()).mac.map(|mac| mac.to_string()), Some(A.to_string()));
}

#[test]
fn other_shards_are_told_of_an_evicted_neighbour() {
    let mut world = World::with(Limits { entries: 2, ..Limits::default() });
    world.neighbours.share();
    let addresses: [IpAddr; 3] = [[10, 0, 0, 2], [10, 0, 0, 3], [10, 0, 0, 4]].map(IpAddr::from);
    for &addr in &addresses {
        world.confirm(addr);
    }
    let [a, b, c] = addresses;
    // The news are of the state at the call, each neighbour's once.
    assert_eq!(told(&mut world), [format!("{b} {A}"), format!("{c} {A}")]);
    world.confirm(a);
    let gone = if world.state_of(b) == "none" { b } else { c };
    let mut want = [format!("{a} {A}"), format!("{gone} -")];
    want.sort();
    let mut news = told(&mut world);
    news.sort();
    assert_eq!(news, want);
}

#[test]
fn strangers_that_ask_tell_other_shards_nothing() {
    let mut world = shared();
    world.confirm(hop());
    told(&mut world);
    for n in 0..5000_u16 {
        let [high, low] = n.to_be_bytes();
        world.ask(LINK, IpAddr::from([10, 1, high, low]));
        world.now = world.now + Duration::from_millis(5);
    }
    assert_eq!(told(&mut world), [""; 0]);
}
