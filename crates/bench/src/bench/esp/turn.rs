//! One turn of the sending gateway, or of the receiving one.

use base::{DropReason, Instant, PortId};
use packet::{Buf, Csum, Cut, Memory, Packet};

use super::forgery::Forgery;
use super::gateway::{EspGateway, Holding, LAN, MTU, Pair, WAN};
use super::load::{Source, in_bursts};
use super::setting::{Traffic, Way};
use crate::bench::case::{Copied, Turn};

/// Room in front of each received packet.
const HEADROOM: usize = 32;

/// Alignment of packets in a page that holds several.
const ALIGN: usize = 64;

/// The sending gateway: from the device to the wire.
#[derive(Debug)]
pub(super) struct Sending {
    gateway: EspGateway,
    source: Source,
    bursts: Vec<Vec<Packet>>,
    expected: Expected,
    holding: Holding,
}

/// Input of the receiving gateway.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Arrivals {
    /// The good flow.
    Good,
    /// The same number of forgeries.
    Forged(Forgery),
    /// A good packet and a forgery alternately.
    Mixed(Forgery),
}

/// The receiving gateway: from the wire to the device.
#[derive(Debug)]
pub(super) struct Receiving {
    pair: Pair,
    source: Source,
    /// Input of the sending gateway.
    plain: Vec<Vec<Packet>>,
    /// Input of the receiving gateway.
    bursts: Vec<Vec<Packet>>,
    frames: Vec<Packet>,
    arrivals: Arrivals,
    /// Earlier packets of the good flow, the originals of forgeries.
    earlier: Vec<Vec<u8>>,
    expected: Expected,
}

/// Numbers of packets that a gateway should have processed.
#[derive(Clone, Copy, Debug, Default)]
struct Expected {
    /// Bytes of payload in one turn of the good flow.
    per_turn: usize,
    /// Turns of the good flow.
    good: u64,
    /// Number of forged packets, and their drop reason.
    forged: u64,
    forgery: Option<DropReason>,
}

impl EspGateway {
    /// Runs simultaneous bursts from one link to the other, which accepts all packets.
    fn run(&mut self, from: PortId, to: PortId, bursts: &mut [Vec<Packet>]) {
        for burst in bursts {
            self.datapath.receive_burst(Instant::ZERO, &self.mem, from, burst);
            self.datapath.take_tx(to).expect("a port").clear();
        }
        self.datapath.finish(Instant::ZERO, &self.mem);
        self.datapath.take_tx(to).expect("a port").clear();
    }
}

impl Sending {
    pub(super) fn new(pair: Pair, traffic: Traffic) -> Self {
        let source = Source::new(pair.inner_mtu(), pair.way, traffic);
        let expected = Expected::of(&pair, traffic);
        Self { source, gateway: pair.near, bursts: Vec::new(), expected, holding: pair.holding }
    }

    /// A gateway with every offload that forwards in clear.
    pub(super) fn in_clear(traffic: Traffic) -> Self {
        Self {
            gateway: EspGateway::new(0, Way::Fat, true),
            source: Source::new(MTU, Way::Fat, traffic),
            bursts: Vec::new(),
            expected: Expected { per_turn: traffic.load(MTU).payload, ..Expected::default() },
            holding: Holding::default(),
        }
    }

    /// Number of packets that the gateway has forwarded.
    #[cfg(test)]
    pub(super) fn forwarded(&self) -> u64 {
        self.gateway.datapath.forwarded.packets
    }
}

impl Turn for Sending {
    fn prepare(&mut self) {
        self.source.fill(&self.gateway.mem, &mut self.bursts);
        self.expected.good += 1;
    }

    fn run(&mut self) {
        self.gateway.run(LAN, WAN, &mut self.bursts);
    }

    fn warm(&mut self) {
        self.prepare();
        self.holding.set(true);
        self.run();
        self.holding.set(false);
    }

    fn copied(&self) -> Copied {
        Copied::of(&self.gateway.mem)
    }

    fn check(&self) -> Result<(), String> {
        self.expected.check(&self.gateway)
    }
}

impl Receiving {
    pub(super) fn new(pair: Pair, traffic: Traffic, arrivals: Arrivals) -> Self {
        let source = Source::new(pair.inner_mtu(), pair.way, traffic);
        let expected = Expected::of(&pair, traffic);
        let mut turn = Self {
            pair,
            source,
            plain: Vec::new(),
            bursts: Vec::new(),
            frames: Vec::new(),
            arrivals: Arrivals::Good,
            earlier: Vec::new(),
            expected,
        };
        if arrivals != Arrivals::Good {
            turn.seal();
            turn.remember();
            turn.receive();
            turn.run();
            turn.arrivals = arrivals;
        }
        turn.expected.forgery = arrivals.forgery().map(Forgery::reason);
        turn
    }

    /// Seals the packets of one turn at the sending gateway.
    fn seal(&mut self) {
        let near = &mut self.pair.near;
        self.source.fill(&near.mem, &mut self.plain);
        for burst in &mut self.plain {
            near.datapath.handle_rx(Instant::ZERO, &near.mem, LAN, burst);
            near.datapath.take_tx(WAN).expect("a port").drain(..).for_each(|pkt| pkt.into_frames(&mut self.frames));
        }
        self.expected.good += 1;
    }

    /// Keeps the sealed packets, for later forgeries.
    fn remember(&mut self) {
        self.earlier.clear();
        self.earlier.extend(self.frames.iter().map(Packet::to_vec));
    }

    /// Writes the sealed packets, with forgeries among them, into pages of the receiving gateway's device.
    fn receive(&mut self) {
        let mut ring = Ring { mem: &self.pair.far.mem, page: None };
        let Some(forgery) = self.arrivals.forgery() else {
            return in_bursts(
                self.frames.drain(..).map(|frame| ring.receive(frame.head(), frame.meta.cut)),
                &mut self.bursts,
            );
        };
        let mut good = self.frames.drain(..);
        let mixed = self.earlier.iter().flat_map(|earlier| {
            let good = good.next().map(|frame| ring.receive(frame.head(), frame.meta.cut));
            let mut forged = ring.receive(earlier, Cut::Whole);
            forgery.make(&mut forged);
            good.into_iter().chain([forged])
        });
        in_bursts(mixed, &mut self.bursts);
        self.expected.forged += self.earlier.len() as u64;
    }
}

impl Arrivals {
    const fn forgery(self) -> Option<Forgery> {
        match self {
            Self::Good => None,
            Self::Forged(forgery) | Self::Mixed(forgery) => Some(forgery),
        }
    }
}

impl Turn for Receiving {
    fn prepare(&mut self) {
        if matches!(self.arrivals, Arrivals::Forged(_)) {
            return self.receive();
        }
        self.seal();
        let sealed = match self.arrivals {
            Arrivals::Mixed(_) => self.frames.iter().map(Packet::to_vec).collect(),
            _ => Vec::new(),
        };
        self.receive();
        self.earlier = sealed;
    }

    fn run(&mut self) {
        self.pair.far.run(WAN, LAN, &mut self.bursts);
    }

    fn warm(&mut self) {
        self.prepare();
        self.pair.holding.set(true);
        self.run();
        self.pair.holding.set(false);
    }

    fn copied(&self) -> Copied {
        Copied::of(&self.pair.far.mem)
    }

    fn check(&self) -> Result<(), String> {
        self.expected.check(&self.pair.far)
    }
}

/// Receive memory of a device: large pages, each for as many packets as fit.
struct Ring<'m> {
    mem: &'m Memory,
    page: Option<Buf>,
}

impl Ring<'_> {
    /// Packet that a device receives from a frame.
    fn receive(&mut self, frame: &[u8], cut: Cut) -> Packet {
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
        buf.bytes_mut().expect("a page of its own").copy_from_slice(frame);
        let mut pkt = Packet::from_buf(buf);
        // GRO of a socket verifies the checksums of segments that it merges.
        pkt.meta.csum = if cut == Cut::Whole { Csum::None } else { Csum::Unnecessary };
        pkt.meta.cut = cut;
        pkt
    }
}

impl Expected {
    fn of(pair: &Pair, traffic: Traffic) -> Self {
        Self { per_turn: pair.load(traffic).payload, ..Self::default() }
    }

    /// Fails if a gateway dropped a packet that was not forged, or forwarded less than its input.
    fn check(self, gateway: &EspGateway) -> Result<(), String> {
        let drops = gateway.datapath.ports.drop_counts().map(|(_, reason, count)| (reason, count));
        let (forged, others): (Vec<_>, Vec<_>) = drops.partition(|&(reason, _)| Some(reason) == self.forgery);
        if let Some((reason, count)) = others.first() {
            return Err(format!("{count} packets were dropped: {}", reason.name()));
        }
        let dropped = forged.first().map_or(0, |&(_, count)| count);
        if dropped != self.forged {
            return Err(format!("{dropped} of {} forged packets were dropped", self.forged));
        }
        let (got, want) = (gateway.datapath.forwarded.bytes, self.per_turn as u64 * self.good);
        // The headers are forwarded as well.
        if got > want { Ok(()) } else { Err(format!("{got} bytes were forwarded instead of more than {want}")) }
    }
}
