//! Full neighbour tables as a list of operations: packets to next hops, messages, settings by the operator and time, on
//! two links. After each operation the invariants hold, each table is within its limit, permanent entries exist, and no
//! packet is lost.

use std::net::IpAddr;
use std::time::Duration;

use base::{Instant, PortId, Rate};
use fib::{Action, Known, Limits, LladdrUpdate, Neighbours, NudState, Resolution};
use packet::{Memory, Packet};
use sim::Choices;
use wire::MacAddr;

const ENTRIES: usize = 8;

/// The operator's permanent neighbours, which no other operation sets or removes.
const PERMANENT: u8 = 4;

struct World {
    mem: Memory,
    now: Instant,
    neighbours: Neighbours,
    actions: Vec<Action>,
    /// Number of packets passed in, and number of those returned, sent or dropped.
    handed: usize,
    ended: usize,
}

impl World {
    fn new() -> Self {
        let limits = Limits {
            entries: ENTRIES,
            solicitations: Rate::new(100, 64),
            resolutions: Rate::new(100, 64),
            waiting_packets: 3,
            waiting_bytes_table: 16_384,
            waiting_bytes_total: 24_576,
            ..Limits::default()
        };
        let mut world = Self {
            mem: Memory::heap(),
            now: Instant::ZERO,
            neighbours: Neighbours::new(limits),
            actions: Vec::new(),
            handed: 0,
            ended: 0,
        };
        for n in 0..PERMANENT {
            let addr = address(n, true);
            world.neighbours.set(world.now, PortId(1), addr, Known::Permanent(mac(n)), &mut world.actions);
        }
        world
    }

    fn step(&mut self, choices: &mut Choices<'_>) {
        let op = choices.byte();
        let link = PortId(1 + u32::from(op >> 7));
        let addr = address(PERMANENT + choices.byte() % 120, op & 0x40 == 0);
        let lladdr = mac(choices.byte() & 3);
        match op & 0x3f {
            0..16 => {
                let packet = Packet::with_data(&self.mem, &[op; 40]).expect("memory");
                self.handed += 1;
                let resolution = self.neighbours.resolve(self.now, &self.mem, link, addr, packet, &mut self.actions);
                self.ended += usize::from(!matches!(resolution, Resolution::Queued));
            }
            16..32 => self.learn(link, addr, LladdrUpdate::Solicitation(lladdr)),
            32..48 => {
                let mac = (op & 4 == 0).then_some(lladdr);
                let heard = LladdrUpdate::Advertised { mac, solicited: op & 1 != 0, overrides: op & 2 != 0 };
                self.learn(link, addr, heard);
            }
            48..52 => {
                let known = [Known::Reachable(lladdr), Known::Stale(lladdr), Known::Nothing][usize::from(op & 3) % 3];
                self.neighbours.set(self.now, link, addr, known, &mut self.actions);
            }
            52..54 => {
                self.neighbours.watch(op & 1 == 0);
                self.neighbours.take_changed();
            }
            54 => self.neighbours.remove_link(PortId(2), &mut self.actions),
            _ => {
                self.now = self.now + Duration::from_millis(20 * u64::from(choices.byte()));
                self.neighbours.handle_timeout(self.now, &mut self.actions);
                assert!(self.neighbours.poll_timeout().is_none_or(|at| at > self.now), "a deadline has passed");
            }
        }
        for action in self.actions.drain(..) {
            self.ended += usize::from(matches!(action, Action::Send { .. } | Action::Drop { .. }));
        }
    }

    fn learn(&mut self, link: PortId, addr: IpAddr, heard: LladdrUpdate) {
        self.neighbours.learn(self.now, link, addr, heard, &mut self.actions);
    }

    fn check(&self) {
        self.neighbours.check_invariants();
        for link in [PortId(1), PortId(2)] {
            for v4 in [true, false] {
                let of_table = self.neighbours.iter().filter(|it| it.link == link && it.addr.is_ipv4() == v4);
                let evictable = of_table.filter(|it| it.state != NudState::Permanent).count();
                assert!(evictable <= ENTRIES, "{evictable} entries");
            }
        }
        for n in 0..PERMANENT {
            assert_eq!(self.neighbours.mac(PortId(1), address(n, true)), Some(mac(n)), "a permanent entry");
        }
        let waiting: usize = self.neighbours.iter().map(|it| it.queued).sum();
        assert_eq!(self.ended + waiting, self.handed, "packets");
    }
}

/// Runs one input.
pub fn target(input: &[u8]) {
    let mut choices = Choices::new(input);
    let mut world = World::new();
    for _ in 0..400 {
        if choices.is_over() {
            break;
        }
        world.step(&mut choices);
        world.check();
    }
    for link in [PortId(1), PortId(2)] {
        world.neighbours.remove_link(link, &mut world.actions);
    }
    world.actions.clear();
    assert!(world.neighbours.is_empty());
    assert_eq!(world.mem.small().in_use() + world.mem.large().in_use(), 0, "pages");
}

fn address(n: u8, v4: bool) -> IpAddr {
    if v4 { IpAddr::from([10, 0, 0, n]) } else { IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, u16::from(n)]) }
}

fn mac(n: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, n])
}
