//! Fields of a received packet that GRO compares; each is read only once.

use packet::{Csum, Memory, Meta, Packet};
use wire::ipv6::Chain;
use wire::tcp::{self, Flags};
use wire::{Malformed, Protocol, Version, checksum as sums, ipv4, ipv6, udp};

use crate::checksum;
use crate::headers::Headers;

/// Key of a flow. Packets of different flows may be reordered.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Flow {
    /// Source, then destination; both IPv4 addresses in the first word.
    addresses: [u64; 4],
    ports: u32,
    version: Version,
    protocol: Protocol,
}

/// A packet of a flow that GRO may hold.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    pub(super) flow: Flow,
    pub(super) version: Version,
    pub(super) protocol: Protocol,
    /// Offset of the transport header.
    pub(super) l4: u16,
    /// Offset of the payload.
    pub(super) end: u16,
    /// Bytes of payload.
    pub(super) payload: u32,
    /// IPv4's identification.
    pub(super) id: u16,
    pub(super) dont_fragment: bool,
    /// TCP's sequence number.
    pub(super) seq: u32,
    pub(super) flags: Flags,
    /// The sum of the addresses and the protocol: the pseudo-header's without the length.
    pseudo: u32,
}

/// Readable part of a packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct View<'a> {
    /// Bytes in the packet's head.
    pub(super) head: &'a [u8],
    /// Length of the whole packet.
    pub(super) len: usize,
    pub(super) meta: &'a Meta,
}

/// Class of a packet for GRO.
#[derive(Debug)]
pub(super) enum Class {
    /// A segment of a flow that may be held.
    Segment(Arrival),
    /// A packet of such a flow that is never merged; it must not be reordered.
    Odd,
    /// A packet that GRO ignores.
    Other,
}

/// Flags that the last segment determines.
pub(super) const LAST: Flags = Flags::from_bits(Flags::FIN.bits() | Flags::PSH.bits());

/// Flags after which a flow is flushed (Linux `tcp_gro_receive`).
pub(super) const ENDING: Flags =
    Flags::from_bits(LAST.bits() | Flags::URG.bits() | Flags::RST.bits() | Flags::SYN.bits());

impl Class {
    /// Parses a packet that begins with its IP header, after pulling the headers into its head if necessary.
    #[inline]
    pub(super) fn of(mem: &Memory, pkt: &mut Packet, with_udp: bool) -> Self {
        match Self::parse(View::of(pkt), with_udp) {
            Ok(class) => class,
            Err(Malformed::OutsideHead) => Self::of_pieces(mem, pkt, with_udp),
            Err(_) => Self::Odd,
        }
    }

    #[cold]
    fn of_pieces(mem: &Memory, pkt: &mut Packet, with_udp: bool) -> Self {
        let found = Headers::find(mem, pkt, 0);
        found.ok().and_then(|_| Self::parse(View::of(pkt), with_udp).ok()).unwrap_or(Self::Odd)
    }

    /// Parses a packet whose headers may exceed its head.
    ///
    /// # Errors
    /// [`Malformed::OutsideHead`] if the headers exceed the head; the fault of the headers.
    #[inline]
    pub(super) fn parse(view: View<'_>, with_udp: bool) -> Result<Self, Malformed> {
        match Version::of(view.head) {
            Ok(Version::V4) => parse_v4(view, with_udp),
            Ok(Version::V6) => parse_v6(view, with_udp),
            Err(_) if view.head.len() < view.len && view.head.is_empty() => Err(Malformed::OutsideHead),
            Err(_) => Ok(Self::Other),
        }
    }
}

impl<'a> View<'a> {
    pub(super) fn of(pkt: &'a Packet) -> Self {
        Self { head: pkt.head(), len: pkt.len(), meta: &pkt.meta }
    }

    /// Error for bytes that are missing in the head: the packet's fragments may contain them.
    #[cold]
    fn outside(&self, why: Malformed) -> Malformed {
        if self.head.len() < self.len { Malformed::OutsideHead } else { why }
    }
}

fn may_merge(protocol: Protocol, with_udp: bool) -> bool {
    protocol == Protocol::TCP || (with_udp && protocol == Protocol::UDP)
}

#[inline]
fn parse_v4(view: View<'_>, with_udp: bool) -> Result<Class, Malformed> {
    let View { head, len, .. } = view;
    let header = ipv4::Ipv4Header::ref_from(head).map_err(|why| view.outside(why))?;
    if !may_merge(header.protocol(), with_udp) {
        return Ok(Class::Other);
    }
    // Only a header without options, not of a fragment, with a correct checksum and the packet's length.
    let reserved_bit = header.as_bytes()[6] & 0x80 != 0;
    let plain = header.header_len() == ipv4::Ipv4Header::LEN && header.fragment().is_none() && !reserved_bit;
    if !plain || header.total_len() != len || !header.check_ok() {
        return Ok(Class::Odd);
    }
    let (src, dst) = (header.src().to_bits(), header.dst().to_bits());
    let flow = Flow {
        addresses: [u64::from(src) << 32 | u64::from(dst), 0, 0, 0],
        ports: 0,
        version: Version::V4,
        protocol: header.protocol(),
    };
    let dont_fragment = header.dont_fragment();
    let arrival = Arrival {
        flow,
        version: Version::V4,
        protocol: header.protocol(),
        l4: ipv4::Ipv4Header::LEN as u16,
        end: 0,
        payload: 0,
        id: header.id(),
        dont_fragment,
        seq: 0,
        flags: Flags::NONE,
        pseudo: 0,
    };
    arrival.with_transport(view)
}

#[inline]
fn parse_v6(view: View<'_>, with_udp: bool) -> Result<Class, Malformed> {
    let View { head, len, .. } = view;
    let header = ipv6::Ipv6Header::ref_from(head).map_err(|why| view.outside(why))?;
    let (protocol, l4) = match header.next_header() {
        direct @ (Protocol::TCP | Protocol::UDP) => (direct, ipv6::Ipv6Header::LEN),
        _ => match behind_options(head, len)? {
            Some(found) => found,
            None => return Ok(Class::Odd),
        },
    };
    if !may_merge(protocol, with_udp) {
        return Ok(Class::Other);
    }
    if ipv6::Ipv6Header::LEN + header.payload_len() != len {
        return Ok(Class::Odd);
    }
    let (src, dst) = (header.src().to_bits(), header.dst().to_bits());
    let flow = Flow {
        addresses: [(src >> 64) as u64, src as u64, (dst >> 64) as u64, dst as u64],
        ports: 0,
        version: Version::V6,
        protocol,
    };
    let arrival = Arrival {
        flow,
        version: Version::V6,
        protocol,
        l4: l4 as u16,
        end: 0,
        payload: 0,
        id: 0,
        dont_fragment: true,
        seq: 0,
        flags: Flags::NONE,
        pseudo: 0,
    };
    arrival.with_transport(view)
}

/// The upper layer behind hop-by-hop and destination options, or another protocol. `None` for fragments, and behind a
/// routing header, where the checksum covers an address other than the header's.
#[cold]
fn behind_options(head: &[u8], len: usize) -> Result<Option<(Protocol, usize)>, Malformed> {
    let chain = Chain::walk(head, len)?;
    let mut next = ipv6::Ipv6Header::ref_from(head)?.next_header();
    let mut at = ipv6::Ipv6Header::LEN;
    while at < chain.offset {
        if !matches!(next, Protocol::HOP_BY_HOP | Protocol::DEST_OPTS) {
            return Ok(None);
        }
        let header = wire::ext::ExtHeader::ref_from(&head[at..])?;
        (next, at) = (header.next_header(), at + header.header_len());
    }
    Ok(Some((chain.protocol, chain.offset)))
}

impl Arrival {
    #[inline]
    fn with_transport(mut self, view: View<'_>) -> Result<Class, Malformed> {
        let transport = &view.head[usize::from(self.l4)..];
        let len = view.len - usize::from(self.l4);
        if self.protocol == Protocol::UDP {
            let header = udp::UdpHeader::ref_from(transport).map_err(|why| view.outside(why))?;
            self.flow.ports = u32::from(header.sport()) << 16 | u32::from(header.dport());
            self.end = self.l4 + udp::UdpHeader::LEN as u16;
            if header.len() != len || header.check() == 0 {
                return Ok(Class::Odd);
            }
        } else {
            let header = tcp::TcpHeader::ref_from(transport).map_err(|why| view.outside(why))?;
            let header_len = header.header_len();
            if header_len < tcp::TcpHeader::LEN || header_len > len {
                return Ok(Class::Odd);
            }
            if header_len > transport.len() {
                return Err(Malformed::OutsideHead);
            }
            self.flow.ports = u32::from(header.sport()) << 16 | u32::from(header.dport());
            self.end = self.l4 + header_len as u16;
            (self.seq, self.flags) = (header.seq(), header.flags());
        }
        self.payload = (view.len - usize::from(self.end)) as u32;
        let addresses = match self.version {
            Version::V4 => &view.head[12..20],
            Version::V6 => &view.head[8..40],
        };
        self.pseudo = checksum::sum_words(addresses) + u32::from(self.protocol.0);
        Ok(Class::Segment(self))
    }

    /// Fields of another TCP packet of the same flow, with headers of the same length.
    pub(super) fn anew(&self, View { head, len, .. }: View<'_>) -> Option<Self> {
        let id = match self.version {
            Version::V4 => ipv4::Ipv4Header::ref_from(head).ok()?.id(),
            Version::V6 => 0,
        };
        let header = tcp::TcpHeader::ref_from(head.get(self.l4.into()..)?).ok()?;
        let payload = len.checked_sub(self.end.into())? as u32;
        Some(Self { payload, id, seq: header.seq(), flags: header.flags(), ..*self })
    }

    /// Tells whether this packet may start a held flow.
    #[inline]
    pub(super) fn may_be_first(&self) -> bool {
        self.payload > 0 && !self.flags.intersects(ENDING)
    }

    /// Tells whether TCP directly follows an IP header without options.
    #[inline]
    pub(super) fn is_plain_tcp(&self) -> bool {
        self.protocol == Protocol::TCP && usize::from(self.l4) == self.version.header_len()
    }

    /// Offset of the checksum in the transport header.
    fn check_at(&self) -> u16 {
        if self.protocol == Protocol::UDP { udp::CHECK_AT as u16 } else { tcp::CHECK_AT as u16 }
    }

    /// Tells whether the transport checksum is right, by its state or by the bytes; `sum` returns the partial sum of
    /// the bytes from an offset on. A partial checksum must be that of the transport header: a guest may declare
    /// another offset.
    #[inline]
    pub(super) fn check_ok(&self, view: View<'_>, sum: impl FnOnce(usize) -> u32) -> bool {
        let l4 = usize::from(self.l4);
        let transport = match view.meta.csum {
            Csum::Unnecessary => return true,
            Csum::Partial { start, offset } => return (start, offset) == (self.l4, self.check_at()),
            Csum::None => sum(l4),
            // An IPv4 header with a correct checksum sums to zero.
            Csum::Complete(all) if self.version == Version::V4 => all.into(),
            Csum::Complete(all) => sums::sub(u32::from(all), sums::sum(&view.head[..l4])),
        };
        let pseudo = self.pseudo + (view.len - l4) as u32;
        sums::fold(sums::add(pseudo, transport)) == 0xffff
    }
}

impl Flow {
    /// Key of a packet with TCP directly behind an IP header without options; `None` for any other.
    #[inline]
    pub(super) fn of_plain_tcp(head: &[u8]) -> Option<Self> {
        if !wire::ip::is_plain_tcp(head) {
            return None;
        }
        let version = Version::of(head).ok()?;
        let word = |at: usize| head.get(at..)?.first_chunk().map(|&word| u64::from_be_bytes(word));
        let addresses = match version {
            Version::V4 => [word(12)?, 0, 0, 0],
            Version::V6 => [word(8)?, word(16)?, word(24)?, word(32)?],
        };
        let ports = u32::from_be_bytes(*head.get(version.header_len()..)?.first_chunk()?);
        Some(Self { addresses, ports, version, protocol: Protocol::TCP })
    }

    /// The bucket of the flow.
    #[inline]
    pub(super) fn bucket(&self, buckets: usize) -> usize {
        let Self { addresses: [a, b, c, d], ports, .. } = *self;
        let mixed = a ^ b.rotate_left(16) ^ c.rotate_left(32) ^ d.rotate_left(48) ^ u64::from(ports);
        (mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as usize % buckets
    }

    /// Tells whether the IP packet that begins with `head` has this flow's source and destination.
    pub(super) fn has_addresses_of(&self, head: &[u8]) -> bool {
        let addresses = match Version::of(head) {
            Ok(Version::V4) => head.first_chunk::<20>().map(|ip| {
                let (_, both) = ip.split_at(12);
                [both.iter().fold(0, |bits, &byte| bits << 8 | u64::from(byte)), 0, 0, 0]
            }),
            Ok(Version::V6) => ipv6::Ipv6Header::ref_from(head).ok().map(|header| {
                let (src, dst) = (header.src().to_bits(), header.dst().to_bits());
                [(src >> 64) as u64, src as u64, (dst >> 64) as u64, dst as u64]
            }),
            Err(_) => None,
        };
        addresses == Some(self.addresses)
    }
}
