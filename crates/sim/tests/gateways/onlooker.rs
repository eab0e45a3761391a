//! Observer of every frame between the gateways, with the keys.

use std::collections::{BTreeSet, HashMap};

use base::{Counters, Instant};
use ipsec::{Ipsec, Opened};
use packet::{Memory, Packet};
use sim::{Fate, Seen, unique_mask};
use wire::ip::Info;
use wire::{EtherType, Protocol, eth, nd, udp};

use crate::ledger::{Ledger, Unit};
use crate::site::Site;
use crate::traffic::MAGIC;

/// Opens sealed packets, in the order of each wire.
pub(crate) struct Onlooker {
    pub(crate) mem: Memory,
    /// State by wire and receiving end. Each IPsec instance gets its sender's numbers in order, so it infers every
    /// upper half correctly.
    shadows: [[Ipsec; 2]; 2],
    known: Vec<u32>,
    frames: HashMap<(usize, u64), Option<Sealed>>,
    windows: HashMap<u32, Window>,
    /// Counts by receiving end.
    pub(crate) esp: [Frames; 2],
}

/// Counts of the ESP frames of one direction, by their fate.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Frames {
    pub(crate) sent: u64,
    pub(crate) lost: u64,
    /// Copies that arrived, including damaged ones.
    pub(crate) arrived: u64,
    pub(crate) damaged: u64,
    /// Packets within the replay window.
    pub(crate) accepted: u64,
    /// Packets with nested ESP.
    pub(crate) peeled: u64,
}

/// Decrypted contents of a frame with ESP.
#[derive(Clone, Debug)]
struct Sealed {
    /// The SPI and the full sequence number of each SA, the outermost first.
    layers: Vec<(u32, u64)>,
    unit: Unit,
}

/// The anti-replay window of an SA by RFC 4303 §3.4.3.
#[derive(Debug, Default)]
struct Window {
    top: u64,
    seen: BTreeSet<u64>,
}

impl Window {
    fn accept(&mut self, size: u32, seq: u64) -> bool {
        let is_old = seq + u64::from(size) <= self.top;
        self.top = self.top.max(seq);
        !is_old && self.seen.insert(seq)
    }
}

impl Onlooker {
    pub(crate) fn new() -> Self {
        Self {
            mem: Memory::heap(),
            shadows: std::array::from_fn(|_| std::array::from_fn(|_| Ipsec::new())),
            known: Vec::new(),
            frames: HashMap::new(),
            windows: HashMap::new(),
            esp: [Frames::default(); 2],
        }
    }

    /// Processes the events since the last call.
    pub(crate) fn look(&mut self, site: &mut Site, ledger: &mut Ledger) {
        for (lane, from, spi) in site.spis().collect::<Vec<_>>() {
            if !self.known.contains(&spi) {
                self.known.push(spi);
                for wire in 0..2 {
                    self.shadows[wire][1 - from].add_sa(&site.shadow_of(lane, spi), unique_mask()).unwrap();
                }
            }
        }
        let l3 = if site.plan.ethernet { eth::EthHeader::LEN } else { 0 };
        let (now, clear) = (site.world.now(), site.plan.is_clear());
        for Seen { wire, end, frame, fate } in site.world.take_seen() {
            match fate {
                Fate::Sent(bytes) => {
                    assert!(clear || !has_payload(&bytes), "payload in clear: {bytes:02x?}");
                    let sealed = is_esp(&bytes, l3, site.plan.udp).then(|| {
                        self.esp[end].sent += 1;
                        let mut inside = bytes[l3..].to_vec();
                        let layers = 1 + usize::from(site.plan.around.is_some());
                        let layers = (0..layers).map(|_| self.open(now, (wire, end), &mut inside)).collect();
                        Sealed { layers, unit: ledger.ways[1 - end].put_on_wire(wire, &inside) }
                    });
                    self.frames.insert((wire, frame), sealed);
                }
                Fate::Lost => {
                    self.esp[end].lost += u64::from(self.frames[&(wire, frame)].is_some());
                }
                Fate::Arrived { damaged } => {
                    let Some(Sealed { layers, unit }) = &self.frames[&(wire, frame)] else { continue };
                    let esp = &mut self.esp[end];
                    esp.arrived += 1;
                    if damaged {
                        esp.damaged += 1;
                        continue;
                    }
                    let mut accept =
                        |&(spi, seq): &(u32, u64)| self.windows.entry(spi).or_default().accept(site.plan.window, seq);
                    let accepted = layers.iter().take_while(|&layer| accept(layer)).count();
                    esp.accepted += accepted as u64;
                    esp.peeled += accepted.min(layers.len() - 1) as u64;
                    if accepted == layers.len() {
                        ledger.ways[1 - end].arrive(*unit);
                    }
                }
            }
        }
    }

    /// Opens an ESP packet, and returns its SPI and full sequence number, which is above all earlier ones on its wire.
    fn open(&mut self, now: Instant, (wire, end): (usize, usize), packet: &mut Vec<u8>) -> (u32, u64) {
        let pkt = Packet::with_data(&self.mem, packet).unwrap();
        let (mut opened, mut counters) = (Opened::default(), Counters::ZERO);
        let shadow = &mut self.shadows[wire][end];
        let tops = |shadow: &Ipsec| shadow.sad().iter().map(|sa| (sa.spi().0, sa.replay().top())).collect::<Vec<_>>();
        let before = tops(shadow);
        shadow.open(&self.mem, now, pkt, &mut opened, &mut counters);
        assert_eq!(opened.packets.len(), 1, "{:?} {counters:?}: {packet:02x?}", opened.drops);
        let after = tops(shadow).into_iter().zip(before).find(|(after, before)| after > before);
        let ((spi, seq), _) = after.unwrap_or_else(|| panic!("overtaken on wire {wire}: {packet:02x?}"));
        *packet = opened.packets[0].to_vec();
        (spi, seq)
    }
}

/// Tells whether a frame holds a host's payload in clear.
fn has_payload(frame: &[u8]) -> bool {
    frame.windows(MAGIC.len()).any(|window| window == MAGIC)
}

/// Tells whether a frame is ESP in the form of the plan; otherwise it is neighbour discovery.
fn is_esp(frame: &[u8], l3: usize, udp: bool) -> bool {
    if l3 > 0 && eth::EthHeader::ref_from(frame).unwrap().ethertype() == EtherType::ARP {
        return false;
    }
    let ip = &frame[l3..];
    let info = Info::parse(ip, ip.len()).unwrap();
    assert!(info.fragment.is_none(), "a fragment outside: {frame:02x?}");
    let payload = info.payload(ip);
    if info.protocol == Protocol::ICMPV6 && l3 > 0 {
        assert!(nd::is_discovery(payload[0]), "in clear: {frame:02x?}");
        return false;
    }
    if udp {
        let ports = udp::UdpHeader::ref_from(payload).map(|header| (header.sport(), header.dport()));
        assert_eq!((info.protocol, ports), (Protocol::UDP, Ok((4500, 4500))), "in clear: {frame:02x?}");
    } else {
        assert_eq!(info.protocol, Protocol::ESP, "in clear: {frame:02x?}");
    }
    true
}
