//! A receiver that records every outcome, and fragments to send to it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use base::{Counters, DropReason, Instant, Mib, Origin, PortId};
use packet::{Cut, Memory, Packet};
use reassembly::{Config, Limits, Policy, Reassembly, ReassemblyContext, Verdict};
use wire::ip::Info;
use wire::{FragInfo, FragOffset, Protocol, Version, frag, icmpv6, ipv4, ipv6};

pub(crate) const BOTH: [Version; 2] = [Version::V4, Version::V6];

/// Default input link.
pub(crate) const LINK: PortId = PortId(3);

/// One fragment to be sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub(crate) at: usize,
    pub(crate) len: usize,
    pub(crate) more: bool,
    pub(crate) id: u32,
    /// Added to every byte of payload.
    pub(crate) change: u8,
    pub(crate) tos: u8,
    pub(crate) dont_fragment: bool,
    pub(crate) protocol: Protocol,
    /// The reserved byte of an IPv6 fragment header.
    pub(crate) reserved: u8,
    /// The last byte of the source address, and of the destination.
    pub(crate) src: u8,
    pub(crate) dst: u8,
}

/// Bytes `at..at + len` of the datagram; others follow.
pub(crate) fn part(at: usize, len: usize) -> Piece {
    Piece {
        at,
        len,
        more: true,
        id: 0x1234,
        change: 0,
        tos: 0,
        dont_fragment: false,
        protocol: Protocol::UDP,
        reserved: 0,
        src: 1,
        dst: 2,
    }
}

/// Bytes `at..at + len` of the datagram, and its end.
pub(crate) fn last(at: usize, len: usize) -> Piece {
    Piece { more: false, ..part(at, len) }
}

/// The byte at `at` of every datagram's payload.
pub(crate) fn byte_at(at: usize) -> u8 {
    (at % 251) as u8 ^ (at >> 8) as u8
}

pub(crate) fn payload(at: usize, len: usize) -> impl Iterator<Item = u8> {
    (at..at + len).map(byte_at)
}

fn addresses(version: Version, src: u8, dst: u8) -> (IpAddr, IpAddr) {
    let of = |last: u8| match version {
        Version::V4 => IpAddr::V4(Ipv4Addr::new(192, 0, 2, last)),
        Version::V6 => IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last.into())),
    };
    (of(src), of(dst))
}

impl Piece {
    /// The fragment as it is on the wire.
    pub(crate) fn bytes(self, version: Version) -> Vec<u8> {
        let mut bytes = match addresses(version, self.src, self.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let mut header = ipv4::Ipv4Header::new(src, dst, self.protocol, (20 + self.len) as u16);
                header.set_tos(self.tos);
                header.set_id(self.id as u16);
                header.set_fragment(FragOffset::from_bytes(self.at).unwrap(), self.more);
                header.set_dont_fragment(self.dont_fragment);
                header.fill_check();
                header.as_bytes().to_vec()
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                let mut header = ipv6::Ipv6Header::new(src, dst, Protocol::FRAGMENT, (8 + self.len) as u16);
                header.set_traffic_class(self.tos);
                let offset = FragOffset::from_bytes(self.at).unwrap();
                let fragment = frag::FragHeader::new(self.protocol, FragInfo { offset, more: self.more, id: self.id });
                let mut bytes = [header.as_bytes(), fragment.as_bytes()].concat();
                bytes[41] = self.reserved;
                bytes
            }
            _ => unreachable!("both addresses are of one family"),
        };
        bytes.extend(payload(self.at, self.len).map(|byte| byte.wrapping_add(self.change)));
        bytes
    }

    /// The datagram of `len` bytes of payload that this is the first fragment of.
    pub(crate) fn whole(self, version: Version, len: usize) -> Vec<u8> {
        let mut bytes = match addresses(version, self.src, self.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let mut header = ipv4::Ipv4Header::new(src, dst, self.protocol, (20 + len) as u16);
                header.set_tos(self.tos);
                header.set_id(self.id as u16);
                header.set_dont_fragment(self.dont_fragment);
                header.fill_check();
                header.as_bytes().to_vec()
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                let mut header = ipv6::Ipv6Header::new(src, dst, self.protocol, len as u16);
                header.set_traffic_class(self.tos);
                header.as_bytes().to_vec()
            }
            _ => unreachable!("both addresses are of one family"),
        };
        bytes.extend(payload(0, len));
        bytes
    }
}

/// Changes of the counters.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Moved {
    pub(crate) requests: u64,
    pub(crate) oks: u64,
    pub(crate) fails: u64,
    pub(crate) timeouts: u64,
    /// Shown for IPv4 only.
    pub(crate) overlaps: u64,
    /// IPv6 only.
    pub(crate) header_errors: u64,
}

impl Moved {
    pub(crate) fn counters(self, version: Version) -> Counters {
        match version {
            Version::V4 => Counters::ZERO
                .with(Mib::IpReasmReqds, self.requests)
                .with(Mib::IpReasmOKs, self.oks)
                .with(Mib::IpReasmFails, self.fails)
                .with(Mib::IpReasmTimeout, self.timeouts)
                .with(Mib::IpExtReasmOverlaps, self.overlaps),
            Version::V6 => Counters::ZERO
                .with(Mib::Ip6ReasmReqds, self.requests)
                .with(Mib::Ip6ReasmOKs, self.oks)
                .with(Mib::Ip6ReasmFails, self.fails)
                .with(Mib::Ip6ReasmTimeout, self.timeouts)
                .with(Mib::Ip6InHdrErrors, self.header_errors),
        }
    }
}

/// Limits of every table alike.
pub(crate) fn limited(policy: Policy, high_thresh: usize, max_distance: u32) -> Config {
    let Config { v4, v6, .. } = Config::default();
    let [v4, v6] = [v4, v6].map(|it| Limits { high_thresh, ..it });
    Config { policy, v4, v6, max_distance, ..Config::default() }
}

/// Unlimited.
pub(crate) fn no_limits() -> Config {
    limited(Policy::Fair, usize::MAX, 0)
}

/// An ICMPv6 parameter problem: drop reason, code, pointer.
pub(crate) type Refused = (DropReason, icmpv6::Problem, usize);

pub(crate) struct World {
    pub(crate) version: Version,
    pub(crate) mem: Memory,
    pub(crate) reassembly: Reassembly,
    pub(crate) counters: Counters,
    pub(crate) now: Instant,
    pub(crate) link: PortId,
    pub(crate) context: ReassemblyContext,
    pub(crate) delivered: Vec<Packet>,
    pub(crate) refused: Vec<Refused>,
    /// Reason and bytes of each dropped packet, in order.
    pub(crate) dropped: Vec<(DropReason, u64)>,
    /// Packets sent.
    pub(crate) sent: u64,
}

impl World {
    pub(crate) fn new(version: Version) -> Self {
        Self::with_config(version, Config::default())
    }

    pub(crate) fn with_config(version: Version, config: Config) -> Self {
        Self {
            version,
            mem: Memory::heap(),
            reassembly: Reassembly::new(config),
            counters: Counters::ZERO,
            now: Instant::ZERO,
            link: LINK,
            context: ReassemblyContext::LOCAL,
            delivered: Vec::new(),
            refused: Vec::new(),
            dropped: Vec::new(),
            sent: 0,
        }
    }

    pub(crate) fn send(&mut self, piece: Piece) {
        let bytes = piece.bytes(self.version);
        let pkt = Packet::with_data(&self.mem, &bytes).unwrap();
        self.send_packet(pkt, &bytes);
    }

    pub(crate) fn send_all(&mut self, pieces: &[Piece]) {
        pieces.iter().for_each(|&piece| self.send(piece));
    }

    /// Sends a packet of any geometry, with these bytes.
    pub(crate) fn send_packet(&mut self, mut pkt: Packet, bytes: &[u8]) {
        let info = Info::parse(bytes, bytes.len()).unwrap();
        pkt.meta.origin = Origin::Port(self.link).into();
        pkt.meta.cut = if info.fragment.is_some() { Cut::Fragment } else { Cut::Whole };
        self.sent += 1;
        let Self { now, mem, context, counters, .. } = self;
        let verdict = self.reassembly.handle_fragment(*now, mem, *context, pkt, &info, counters);
        self.note(verdict, bytes);
    }

    /// Records the outcome for a fragment with these bytes.
    pub(crate) fn note(&mut self, verdict: Verdict, bytes: &[u8]) {
        match verdict {
            Verdict::Whole { pkt, .. } => {
                pkt.check_invariants();
                assert_eq!(pkt.meta.cut, Cut::Whole);
                self.delivered.push(pkt);
            }
            Verdict::Held => {}
            Verdict::Restarted { packets } => self.dropped.push((DropReason::FragmentDistance, packets)),
            Verdict::Drop { reason, packets } => self.dropped.push((reason, packets)),
            Verdict::Refuse { pkt, reason, code, pointer } => {
                if !matches!(reason, DropReason::FragmentNested | DropReason::ProtocolUnknown) {
                    assert_eq!(pkt.to_vec(), bytes, "the quoted fragment is unchanged");
                }
                self.refused.push((reason, code, pointer));
            }
        }
        let evicted = self.reassembly.drain_evicted().map(|it| (DropReason::FragmentEvicted, it.packets));
        self.dropped.extend(evicted);
        self.reassembly.check_invariants();
    }

    /// Times out all queues. Returns the packets that the time exceeded messages quote, with their summaries.
    pub(crate) fn drain(&mut self) -> Vec<(Vec<u8>, Info)> {
        let mut expired = Vec::new();
        while let Some(deadline) = self.reassembly.poll_timeout() {
            self.now = deadline;
            self.reassembly.handle_timeout(self.now, |_| true, &mut self.counters, &mut expired);
            self.reassembly.check_invariants();
        }
        assert_eq!((self.reassembly.queues(), self.reassembly.memory()), (0, 0));
        let mut quoted = Vec::new();
        for it in expired {
            self.dropped.push((DropReason::FragmentTimeout, it.packets));
            assert_eq!(it.origin, Origin::Port(self.link));
            quoted.extend(it.first.map(|(pkt, info)| (pkt.to_vec(), info)));
        }
        quoted
    }

    /// The bytes of the delivered datagrams.
    pub(crate) fn bytes(&self) -> Vec<Vec<u8>> {
        self.delivered.iter().map(Packet::to_vec).collect()
    }

    /// Checks that only delivered datagrams hold pages.
    pub(crate) fn assert_pages_came_home(&mut self) {
        self.delivered.clear();
        assert_eq!((self.mem.small().in_use(), self.mem.large().in_use()), (0, 0));
    }
}
