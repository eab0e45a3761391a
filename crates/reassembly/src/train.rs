//! Batch of consecutive fragments of one datagram with equal headers: the checks of the first apply to all.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use base::Domain;
use packet::{Burst, Csum, Cut, PackedOrigin, Packet};
use wire::{Ecn, FragOffset, Protocol, Version, frag, ipv4, ipv6};

use crate::fragment_meta::{FirstFragment, FragmentRange, upper_len};
use crate::key::Key;
use crate::user::ReassemblyContext;

/// Bytes of headers in front of an IPv6 fragment.
const V6_LEN: usize = ipv6::Ipv6Header::LEN + frag::FragHeader::LEN;

/// Batch of fragments of one datagram: their common header fields.
///
/// Only headers without options, and without extension headers other than the fragment header, qualify. A fragment
/// belongs to the train if its headers are valid, and all their bits are equal except lengths, offset, checksum, and
/// reserved fields without a meaning.
#[derive(Clone, Copy, Debug)]
pub struct Train {
    origin: PackedOrigin,
    domain: Domain,
    version: Version,
    protocol: Protocol,
    tos: u8,
    dont_fragment: bool,
    id: u32,
    headers: [[u8; 8]; V6_LEN / 8],
}

/// Mask of the bits in IPv4's first 16 bytes that are equal in all fragments of a datagram: all except total length,
/// MF, offset and checksum.
const SAME_V4: [u64; 2] = [
    u64::from_ne_bytes([0xff, 0xff, 0, 0, 0xff, 0xff, 0xc0, 0]),
    u64::from_ne_bytes([0xff, 0xff, 0, 0, 0xff, 0xff, 0xff, 0xff]),
];

/// Mask of the equal bits in the IPv6 header and the fragment header: all except payload length, offset, M and reserved
/// bits.
const SAME_V6: [u64; V6_LEN / 8] = [
    u64::from_ne_bytes([0xff, 0xff, 0xff, 0xff, 0, 0, 0xff, 0xff]),
    u64::MAX,
    u64::MAX,
    u64::MAX,
    u64::MAX,
    u64::from_ne_bytes([0xff, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]),
];

impl Train {
    /// The train that may begin with `pkt`, whose IP header begins at `l3`, if the packet has the form of a fragment.
    /// Validity is checked when the train is taken.
    #[inline(always)]
    pub fn of(pkt: &Packet, l3: usize) -> Option<Self> {
        let head = pkt.head().get(l3..)?;
        match head.first()? {
            0x45 => Self::of_v4(pkt.meta.origin, head),
            0x60..=0x6f => Self::of_v6(pkt.meta.origin, head),
            _ => None,
        }
    }

    #[inline(always)]
    fn of_v4(origin: PackedOrigin, head: &[u8]) -> Option<Self> {
        let bytes: &[u8; ipv4::Ipv4Header::LEN] = head.first_chunk()?;
        if bytes[6] & 0x3f | bytes[7] == 0 {
            return None;
        }
        let header = ipv4::Ipv4Header::ref_from(bytes).ok()?;
        // Word by word: a move right after smaller stores would stall.
        let (words, &[a, b, c, d]) = (bytes.as_chunks().0, bytes.last_chunk()?);
        let headers = [words[0], words[1], [a, b, c, d, 0, 0, 0, 0], [0; 8], [0; 8], [0; 8]];
        let protocol = header.protocol();
        let tos = header.tos();
        let dont_fragment = header.dont_fragment();
        Some(Self {
            origin,
            domain: Domain::DEFAULT,
            version: Version::V4,
            protocol,
            tos,
            dont_fragment,
            id: header.id().into(),
            headers,
        })
    }

    #[inline(always)]
    fn of_v6(origin: PackedOrigin, head: &[u8]) -> Option<Self> {
        let bytes: &[u8; V6_LEN] = head.first_chunk()?;
        // Other next headers may be further IPv6 extension headers.
        let protocol = Protocol(bytes[ipv6::Ipv6Header::LEN]);
        let ends = matches!(protocol, Protocol::UDP | Protocol::TCP | Protocol::ICMPV6 | Protocol::ESP);
        if bytes[ipv6::NEXT_HEADER_AT] != Protocol::FRAGMENT.0 || !ends {
            return None;
        }
        let mut headers = [[0; 8]; V6_LEN / 8];
        headers.as_flattened_mut().copy_from_slice(bytes);
        let (tos, id) = (bytes[0] << 4 | bytes[1] >> 4, u32::from_be_bytes(*bytes.last_chunk()?));
        Some(Self {
            origin,
            domain: Domain::DEFAULT,
            version: Version::V6,
            protocol,
            tos,
            dont_fragment: true,
            id,
            headers,
        })
    }

    /// The same train in another L3 domain.
    #[inline(always)]
    #[must_use]
    pub fn in_domain(self, domain: Domain) -> Self {
        Self { domain, ..self }
    }

    /// IPv4 or IPv6.
    #[inline]
    pub fn version(&self) -> Version {
        self.version
    }

    /// Source and destination.
    #[inline(always)]
    pub fn addresses(&self) -> [IpAddr; 2] {
        match self.version {
            Version::V4 => self.addresses_v4().map(|addr| IpAddr::V4(Ipv4Addr::from_bits(addr))),
            Version::V6 => self.addresses_v6().map(|addr| IpAddr::V6(Ipv6Addr::from_bits(addr))),
        }
    }

    #[inline(always)]
    fn addresses_v4(&self) -> [u32; 2] {
        let [.., [_, _, _, _, src @ ..], [dst @ .., _, _, _, _], _, _, _] = self.headers;
        [src, dst].map(u32::from_be_bytes)
    }

    #[inline(always)]
    fn addresses_v6(&self) -> [u128; 2] {
        let at = |at: usize| {
            let [high, low] = [self.headers[at], self.headers[at + 1]];
            u128::from(u64::from_be_bytes(high)) << 64 | u128::from(u64::from_be_bytes(low))
        };
        [at(1), at(3)]
    }

    fn ecn(&self) -> Ecn {
        Ecn::from_tos(self.tos)
    }

    /// Offset of the IP header of the first packet of `burst`, with the packet's range, if the packet belongs to the
    /// train.
    #[inline(always)]
    pub(crate) fn peek(
        &self,
        burst: &Burst<'_>,
        l3: &impl Fn(&Packet) -> Option<usize>,
    ) -> Option<(usize, FragmentRange)> {
        let first = burst.first()?;
        let at = l3(first)?;
        Some((at, self.read(first, at)?))
    }

    /// The packets at the front of `burst` that belong to the train, with their ranges.
    pub(crate) fn ahead<'b>(
        &self,
        burst: &'b Burst<'_>,
        l3: &impl Fn(&Packet) -> Option<usize>,
    ) -> impl Iterator<Item = (&'b Packet, FragmentRange)> {
        burst.ahead().iter().map_while(|pkt| Some((pkt, self.read(pkt, l3(pkt)?)?)))
    }

    /// Origin of the fragments.
    pub(crate) fn origin(&self) -> PackedOrigin {
        self.origin
    }

    /// Range in the datagram of `pkt`, whose IP header begins at `l3`, if the packet belongs to the train.
    #[inline(always)]
    fn read(&self, pkt: &Packet, l3: usize) -> Option<FragmentRange> {
        let meta = &pkt.meta;
        let is_plain = pkt.is_linear()
            && meta.cut == Cut::Whole
            && meta.origin == self.origin
            && !matches!(meta.csum, Csum::Partial { .. })
            && meta.sec_path.is_empty()
            && meta.esp.is_none()
            && meta.vlan.is_none();
        if !is_plain {
            return None;
        }
        let head = pkt.head().get(l3..)?;
        match self.version {
            Version::V4 => self.read_v4(head),
            Version::V6 => self.read_v6(head),
        }
    }

    #[inline(always)]
    fn read_v4(&self, packet: &[u8]) -> Option<FragmentRange> {
        let header: &[u8; ipv4::Ipv4Header::LEN] = packet.first_chunk()?;
        let (words, addr) = (header.as_chunks::<8>().0, header.last_chunk::<4>()?);
        let differ = SAME_V4.iter().zip(words).zip(&self.headers).fold(0, |any, ((same, theirs), ours)| {
            any | (u64::from_ne_bytes(*theirs) ^ u64::from_ne_bytes(*ours)) & same
        });
        let sum: u64 = header.as_chunks::<4>().0.iter().map(|word| u64::from(u32::from_ne_bytes(*word))).sum();
        let total_len = usize::from(u16::from_be_bytes([header[2], header[3]]));
        let field = u16::from_be_bytes([header[6], header[7]]);
        let more = field & 0x2000 != 0;
        let offset = usize::from(field & FragOffset::MAX.blocks()) * 8;
        // The sum is 0xffff, or in one's complement a multiple of 0xffff; never zero.
        let is_right = sum.is_multiple_of(0xffff) && total_len <= packet.len() && (more || offset > 0);
        if differ != 0 || *addr != self.headers[2][..4] || !is_right {
            return None;
        }
        let len = total_len.checked_sub(ipv4::Ipv4Header::LEN)?;
        // Bytes beyond a multiple of 8 are ignored (as in Linux).
        let end = offset + if more { len & !7 } else { len };
        let (ecn, dont_fragment) = (self.ecn(), self.dont_fragment);
        Some(FragmentRange { offset, end, more, header_len: ipv4::Ipv4Header::LEN, ecn, dont_fragment })
    }

    #[inline(always)]
    fn read_v6(&self, packet: &[u8]) -> Option<FragmentRange> {
        let headers: &[u8; V6_LEN] = packet.first_chunk()?;
        let words = headers.as_chunks::<8>().0;
        let differ = SAME_V6.iter().zip(words).zip(&self.headers).fold(0, |any, ((same, theirs), ours)| {
            any | (u64::from_ne_bytes(*theirs) ^ u64::from_ne_bytes(*ours)) & same
        });
        let total_len = ipv6::Ipv6Header::LEN + usize::from(u16::from_be_bytes([headers[4], headers[5]]));
        let field = u16::from_be_bytes([headers[42], headers[43]]);
        let (offset, more) = (usize::from(field & !7), field & 1 == 1);
        if differ != 0 || total_len > packet.len() || !more && offset == 0 {
            return None;
        }
        let len = total_len.checked_sub(V6_LEN)?;
        let end = offset + len;
        // These faults require an error message.
        let is_wrong = end > usize::from(u16::MAX)
            || more && !len.is_multiple_of(8)
            || offset == 0 && len < upper_len(self.protocol);
        let (ecn, dont_fragment) = (self.ecn(), self.dont_fragment);
        (!is_wrong).then_some(FragmentRange { offset, end, more, header_len: V6_LEN, ecn, dont_fragment })
    }

    /// Header fields that apply to the complete datagram, if the range is the first fragment's.
    #[inline]
    pub(crate) fn first(&self, span: &FragmentRange) -> Option<FirstFragment> {
        let (header_len, next_header_at) = match self.version {
            Version::V4 => (ipv4::Ipv4Header::LEN, ipv4::PROTOCOL_AT),
            Version::V6 => (V6_LEN, ipv6::NEXT_HEADER_AT),
        };
        (span.offset == 0).then(|| FirstFragment {
            version: self.version,
            tos: self.tos,
            misplaced: None,
            header_len: header_len as u16,
            ip_len: header_len as u16,
            next_header_at: next_header_at as u16,
            len: span.packet_len() as u32,
        })
    }

    /// The context: the node itself.
    #[inline(always)]
    fn context(&self) -> ReassemblyContext {
        ReassemblyContext { domain: self.domain, ..ReassemblyContext::LOCAL }
    }

    /// The key of the train's datagram, for local delivery.
    #[inline(always)]
    pub(crate) fn key(&self) -> Key {
        match self.version {
            Version::V4 => Key::v4(self.context(), self.addresses_v4(), self.protocol, self.id),
            Version::V6 => Key::v6(self.context(), self.addresses_v6(), self.origin.port(), self.id),
        }
    }
}
