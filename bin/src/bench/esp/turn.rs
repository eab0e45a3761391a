//! One turn of the sending gateway, or of the receiving one.

use base::{Instant, LinkId};
use packet::{Buf, Memory, Packet};

use super::gateway::{Gateway, LAN, Pair, WAN};
use super::load::{Source, Traffic, in_bursts};
use crate::bench::case::Turn;

/// Room in front of each packet that is received.
const HEADROOM: usize = 32;

/// Where packets start in a page that holds several.
const ALIGN: usize = 64;

/// The sending gateway: from the device to the wire.
#[derive(Debug)]
pub(super) struct Sending {
    gateway: Gateway,
    source: Source,
    bursts: Vec<Vec<Packet>>,
    expected: Expected,
}

/// The receiving gateway: from the wire to the device.
#[derive(Debug)]
pub(super) struct Receiving {
    pair: Pair,
    source: Source,
    /// What the sending gateway is handed.
    plain: Vec<Vec<Packet>>,
    /// What the receiving gateway is handed.
    bursts: Vec<Vec<Packet>>,
    frames: Vec<Packet>,
    expected: Expected,
}

/// What a gateway should have forwarded by now.
#[derive(Clone, Copy, Debug, Default)]
struct Expected {
    per_turn: usize,
    turns: u64,
}

impl Gateway {
    /// Runs bursts from one link to the other, which takes what it is given.
    fn run(&mut self, from: LinkId, to: LinkId, bursts: &mut [Vec<Packet>]) {
        for burst in bursts {
            self.path.handle_rx(Instant::ZERO, &self.mem, from, burst);
            self.path.take_tx(to).expect("a port").clear();
        }
    }
}

impl Sending {
    pub(super) fn new(pair: Pair, traffic: Traffic) -> Self {
        let source = Source::new(&pair, traffic);
        let expected = Expected::of(&pair, traffic);
        Self { source, gateway: pair.near, bursts: Vec::new(), expected }
    }
}

impl Turn for Sending {
    fn prepare(&mut self) {
        self.source.fill(&self.gateway.mem, &mut self.bursts);
        self.expected.turns += 1;
    }

    fn run(&mut self) {
        self.gateway.run(LAN, WAN, &mut self.bursts);
    }

    fn copied(&self) -> u64 {
        self.gateway.mem.copies().total_bytes()
    }

    fn check(&self) -> Result<(), String> {
        self.expected.check(&self.gateway)
    }
}

impl Receiving {
    pub(super) fn new(pair: Pair, traffic: Traffic) -> Self {
        let source = Source::new(&pair, traffic);
        let expected = Expected::of(&pair, traffic);
        Self { pair, source, plain: Vec::new(), bursts: Vec::new(), frames: Vec::new(), expected }
    }
}

impl Turn for Receiving {
    fn prepare(&mut self) {
        let Pair { near, far, .. } = &mut self.pair;
        self.source.fill(&near.mem, &mut self.plain);
        for burst in &mut self.plain {
            near.path.handle_rx(Instant::ZERO, &near.mem, LAN, burst);
            self.frames.append(near.path.take_tx(WAN).expect("a port"));
        }
        let mut ring = Ring { mem: &far.mem, page: None };
        in_bursts(self.frames.drain(..).map(|frame| ring.receive(&frame)), &mut self.bursts);
        self.expected.turns += 1;
    }

    fn run(&mut self) {
        self.pair.far.run(WAN, LAN, &mut self.bursts);
    }

    fn copied(&self) -> u64 {
        self.pair.far.mem.copies().total_bytes()
    }

    fn check(&self) -> Result<(), String> {
        self.expected.check(&self.pair.far)
    }
}

/// Memory that a device receives into: large pages, each for as many packets as fit.
struct Ring<'m> {
    mem: &'m Memory,
    page: Option<Buf>,
}

impl Ring<'_> {
    /// What arrives of a frame.
    fn receive(&mut self, frame: &Packet) -> Packet {
        let stride = (HEADROOM + frame.len()).next_multiple_of(ALIGN);
        let mut page = self.page.take().filter(|page| page.len() >= stride).unwrap_or_else(|| {
            let mut page = self.mem.large().take(0).expect("a heap without limit");
            let all = page.tailroom();
            page.put(all);
            page
        });
        let mut buf = page.split_to(stride);
        self.page = Some(page);
        buf.pull(HEADROOM);
        buf.trim(frame.len());
        buf.bytes_mut().expect("a page of its own").copy_from_slice(frame.head());
        Packet::from_buf(buf)
    }
}

impl Expected {
    fn of(pair: &Pair, traffic: Traffic) -> Self {
        Self { per_turn: pair.load(traffic).payload, turns: 0 }
    }

    /// Fails if a gateway dropped something, or has forwarded less than it was given.
    fn check(self, gateway: &Gateway) -> Result<(), String> {
        let drops: Vec<String> =
            gateway.path.ports.drop_counts().map(|(_, reason, count)| format!("{} {count}", reason.name())).collect();
        if !drops.is_empty() {
            return Err(format!("packets were dropped: {}", drops.join(", ")));
        }
        let (got, want) = (gateway.path.forwarded.bytes, self.per_turn as u64 * self.turns);
        // The headers are forwarded as well.
        if got > want { Ok(()) } else { Err(format!("{got} bytes were forwarded instead of more than {want}")) }
    }
}
