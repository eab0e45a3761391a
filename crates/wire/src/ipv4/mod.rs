//! The IPv4 header and its options (RFC 791 §3.1, RFC 1122 §3.2.1, RFC 6864).

use std::net::Ipv4Addr;

use zerocopy::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

mod options;

pub use options::{Ipv4Option, Ipv4Options, blank_uncopied_options, check_options, keep_recorded, record_visit};

use crate::{Ecn, FragInfo, FragOffset, Malformed, Protocol, checksum};

/// Maximum header length by IHL: 15 words, which include 40 bytes of options.
pub const MAX_HEADER_LEN: usize = 60;

/// Maximum length of options.
pub const MAX_OPTIONS: usize = MAX_HEADER_LEN - Ipv4Header::LEN;

/// Offset of the protocol field.
pub const PROTOCOL_AT: usize = 9;

const DONT_FRAGMENT: u16 = 0x4000;
const MORE_FRAGMENTS: u16 = 0x2000;

/// The fixed 20 bytes of an IPv4 header.
#[derive(Clone, Copy, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned)]
#[repr(C)]
pub struct Ipv4Header {
    version_ihl: u8,
    tos: u8,
    total_len: U16,
    id: U16,
    flags_offset: U16,
    ttl: u8,
    protocol: Protocol,
    check: U16,
    src: [u8; 4],
    dst: [u8; 4],
}

header!(Ipv4Header, 20, Malformed::Ipv4Short);

impl Ipv4Header {
    /// A header without options, with TTL 64 and everything else zero. [`Ipv4Header::fill_check`] comes last.
    pub const fn new(src: Ipv4Addr, dst: Ipv4Addr, protocol: Protocol, total_len: u16) -> Self {
        Self {
            version_ihl: 0x45,
            tos: 0,
            total_len: U16::new(total_len),
            id: U16::ZERO,
            flags_offset: U16::ZERO,
            ttl: 64,
            protocol,
            check: U16::ZERO,
            src: src.octets(),
            dst: dst.octets(),
        }
    }

    /// The version field, which is 4 after a `parse`.
    #[inline]
    pub const fn version(&self) -> u8 {
        self.version_ihl >> 4
    }

    /// The header's length in bytes with options, from IHL: 0 to 60, and 20 to 60 after a `parse`.
    #[inline]
    pub const fn header_len(&self) -> usize {
        (self.version_ihl & 0x0f) as usize * 4
    }

    /// Sets IHL from a length in bytes with options; an incomplete last word does not count.
    ///
    /// # Panics
    /// If `len` is not within 20 to 60.
    pub const fn set_header_len(&mut self, len: usize) {
        assert!(len >= Self::LEN && len <= MAX_HEADER_LEN, "no IPv4 header has this length");
        self.version_ihl = 0x40 | (len / 4) as u8;
    }

    /// DSCP and ECN in one byte.
    #[inline]
    pub const fn tos(&self) -> u8 {
        self.tos
    }

    /// DSCP, 6 bits (RFC 2474).
    pub const fn dscp(&self) -> u8 {
        self.tos >> 2
    }

    /// ECN, 2 bits (RFC 3168).
    pub const fn ecn(&self) -> Ecn {
        Ecn::from_tos(self.tos)
    }

    /// Changes DSCP and ECN, without the checksum.
    pub const fn set_tos(&mut self, tos: u8) {
        self.tos = tos;
    }

    /// Changes DSCP and ECN, and updates the checksum (RFC 1624).
    pub const fn replace_tos(&mut self, tos: u8) {
        let word = (self.version_ihl as u16) << 8;
        self.check = U16::new(checksum::replace2(self.check.get(), word | self.tos as u16, word | tos as u16));
        self.tos = tos;
    }

    /// Adds to the identification, and updates the checksum.
    #[inline]
    pub const fn raise_id(&mut self, step: u16) {
        let (id, check) = raised_id(self.id.get(), self.check.get(), step);
        (self.id, self.check) = (U16::new(id), U16::new(check));
    }

    /// Length of header and payload, from the header.
    #[inline]
    pub const fn total_len(&self) -> usize {
        self.total_len.get() as usize
    }

    /// Changes the total length.
    pub const fn set_total_len(&mut self, len: u16) {
        self.total_len = U16::new(len);
    }

    /// Changes the total length, and updates the checksum.
    #[inline]
    pub const fn replace_total_len(&mut self, len: u16) {
        self.check = U16::new(checksum::replace2(self.check.get(), self.total_len.get(), len));
        self.total_len = U16::new(len);
    }

    /// Changes the protocol of the payload, and updates the checksum.
    #[inline]
    pub const fn replace_protocol(&mut self, protocol: Protocol) {
        self.check = U16::new(checksum::replace2(self.check.get(), self.protocol.0 as u16, protocol.0 as u16));
        self.protocol = protocol;
    }

    /// Identification, which matters only for fragments (RFC 6864).
    #[inline]
    pub const fn id(&self) -> u16 {
        self.id.get()
    }

    /// Changes the identification.
    pub const fn set_id(&mut self, id: u16) {
        self.id = U16::new(id);
    }

    /// The DF flag.
    #[inline]
    pub const fn dont_fragment(&self) -> bool {
        self.flags_offset.get() & DONT_FRAGMENT != 0
    }

    /// Changes DF.
    pub const fn set_dont_fragment(&mut self, on: bool) {
        let rest = self.flags_offset.get() & !DONT_FRAGMENT;
        self.flags_offset = U16::new(if on { rest | DONT_FRAGMENT } else { rest });
    }

    /// The MF flag.
    pub const fn more_fragments(&self) -> bool {
        self.flags_offset.get() & MORE_FRAGMENTS != 0
    }

    /// Offset of the payload in its datagram.
    pub const fn frag_offset(&self) -> FragOffset {
        FragOffset::from_low_bits(self.flags_offset.get())
    }

    /// Changes offset and MF, and keeps DF.
    pub const fn set_fragment(&mut self, offset: FragOffset, more: bool) {
        let flags = self.flags_offset.get() & DONT_FRAGMENT | if more { MORE_FRAGMENTS } else { 0 };
        self.flags_offset = U16::new(flags | offset.blocks());
    }

    /// Position in the datagram; `None` for a packet that is not a fragment.
    #[inline]
    pub const fn fragment(&self) -> Option<FragInfo> {
        if self.flags_offset.get() & (MORE_FRAGMENTS | FragOffset::MAX.blocks()) == 0 {
            return None;
        }
        Some(FragInfo { offset: self.frag_offset(), more: self.more_fragments(), id: self.id.get() as u32 })
    }

    /// Time to live.
    #[inline]
    pub const fn ttl(&self) -> u8 {
        self.ttl
    }

    /// Changes the TTL, without the checksum.
    pub const fn set_ttl(&mut self, ttl: u8) {
        self.ttl = ttl;
    }

    /// Decrements the TTL, and updates the checksum (RFC 1141, RFC 1624; Linux `ip_decrease_ttl`). Returns the new TTL;
    /// zero stays zero.
    #[inline]
    pub const fn decrement_ttl(&mut self) -> u8 {
        if let Some(ttl) = self.ttl.checked_sub(1) {
            let low = self.protocol.0 as u16;
            let (old, new) = ((self.ttl as u16) << 8 | low, (ttl as u16) << 8 | low);
            self.check = U16::new(checksum::replace2(self.check.get(), old, new));
            self.ttl = ttl;
        }
        self.ttl
    }

    /// Protocol of the payload.
    #[inline]
    pub const fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// Changes the protocol of the payload.
    pub const fn set_protocol(&mut self, protocol: Protocol) {
        self.protocol = protocol;
    }

    /// Tells whether the checksum of a header without options is right (RFC 1122 §3.2.1.2).
    #[inline]
    pub fn check_ok(&self) -> bool {
        let (words, _) = self.as_bytes().as_chunks::<4>();
        // Byte order does not matter for all ones (RFC 1071 §2B).
        let sum: u64 = words.iter().map(|&word| u64::from(u32::from_ne_bytes(word))).sum();
        checksum::fold(checksum::add(sum as u32, (sum >> 32) as u32)) == 0xffff
    }

    /// The header checksum as stored.
    pub const fn check(&self) -> u16 {
        self.check.get()
    }

    /// Computes the checksum of a header without options. For a header with options see [`fill_check`].
    #[inline]
    pub fn fill_check(&mut self) {
        self.check = U16::ZERO;
        self.check = U16::new(checksum::finish(checksum::sum(self.as_bytes())));
    }

    /// Source.
    #[inline]
    pub const fn src(&self) -> Ipv4Addr {
        let [a, b, c, d] = self.src;
        Ipv4Addr::new(a, b, c, d)
    }

    /// Destination.
    #[inline]
    pub const fn dst(&self) -> Ipv4Addr {
        let [a, b, c, d] = self.dst;
        Ipv4Addr::new(a, b, c, d)
    }

    /// Changes the source, without checksums.
    pub const fn set_src(&mut self, src: Ipv4Addr) {
        self.src = src.octets();
    }

    /// Changes the destination, without checksums.
    pub const fn set_dst(&mut self, dst: Ipv4Addr) {
        self.dst = dst.octets();
    }
}

/// Adds `step` to an identification, and returns the identification with the new checksum of its header: the two
/// changes add up to zero modulo 65535 (RFC 1624 §3); the wrap by 65536 counts as one.
#[inline]
pub(crate) const fn raised_id(id: u16, check: u16, step: u16) -> (u16, u16) {
    let (id, wraps) = id.overflowing_add(step);
    let (check, borrows) = check.overflowing_sub(step.wrapping_sub(wraps as u16));
    (id, check.wrapping_sub(borrows as u16))
}

/// Computes the checksum of the header at the front of `packet`, options included.
///
/// # Errors
/// The header is truncated, or its IHL is below five words.
pub fn fill_check(packet: &mut [u8]) -> Result<(), Malformed> {
    let len = Ipv4Header::ref_from(packet)?.header_len();
    if len < Ipv4Header::LEN {
        return Err(Malformed::Ipv4HeaderLen);
    }
    let whole = packet.get_mut(..len).ok_or(Malformed::Ipv4Short)?;
    Ipv4Header::mut_from(whole)?.check = U16::ZERO;
    let check = checksum::finish(checksum::sum(whole));
    Ipv4Header::mut_from(whole)?.check = U16::new(check);
    Ok(())
}

/// An IPv4 packet with valid version and lengths. The checksum is verified on request.
#[derive(Clone, Copy, Debug)]
pub struct Ipv4<'a> {
    header: &'a Ipv4Header,
    whole_header: &'a [u8],
    payload: &'a [u8],
}

impl<'a> Ipv4<'a> {
    /// Parses a packet that is completely in `packet`; bytes beyond its total length are not part of it.
    ///
    /// # Errors
    /// A wrong version or length.
    #[inline]
    pub fn parse(packet: &'a [u8]) -> Result<Self, Malformed> {
        Self::parse_head(packet, packet.len())
    }

    /// Parses a packet of `packet_len` bytes, whose first bytes are in `head`. For a quote in an ICMP error, which is
    /// truncated, `packet_len` is `usize::MAX`.
    ///
    /// # Errors
    /// A wrong version or length.
    #[inline]
    pub fn parse_head(head: &'a [u8], packet_len: usize) -> Result<Self, Malformed> {
        let header = Ipv4Header::ref_from(head)?;
        if header.version() != 4 {
            return Err(Malformed::Ipv4Version);
        }
        let (header_len, total_len) = (header.header_len(), header.total_len());
        if header_len < Ipv4Header::LEN {
            return Err(Malformed::Ipv4HeaderLen);
        }
        if total_len < header_len {
            return Err(Malformed::Ipv4TotalLen);
        }
        if total_len > packet_len {
            return Err(Malformed::IpTruncated);
        }
        let (whole_header, rest) = head.split_at_checked(header_len).ok_or(Malformed::OutsideHead)?;
        let payload = &rest[..rest.len().min(total_len - header_len)];
        Ok(Self { header, whole_header, payload })
    }

    /// The fixed part of the header.
    #[inline]
    pub const fn header(&self) -> &'a Ipv4Header {
        self.header
    }

    /// The header's length with options, 20 to 60 bytes.
    #[inline]
    pub const fn header_len(&self) -> usize {
        self.whole_header.len()
    }

    /// Length of header and payload.
    #[inline]
    pub const fn total_len(&self) -> usize {
        self.header.total_len()
    }

    /// Length of the payload, inside or outside the head.
    #[inline]
    pub const fn payload_len(&self) -> usize {
        self.total_len() - self.header_len()
    }

    /// Bytes of the payload in the head.
    #[inline]
    pub const fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// The options as bytes, 0 to 40.
    #[inline]
    pub fn option_bytes(&self) -> &'a [u8] {
        &self.whole_header[Ipv4Header::LEN..]
    }

    /// Iterates over the options.
    pub fn options(&self) -> Ipv4Options<'a> {
        Ipv4Options::new(self.option_bytes())
    }

    /// Tells whether the header checksum is right (RFC 1122 §3.2.1.2).
    #[inline]
    pub fn check_ok(&self) -> bool {
        // Nearly every header has no options, and a sum over a constant length needs no loop.
        let sum = match self.whole_header.as_array::<{ Ipv4Header::LEN }>() {
            Some(fixed) => checksum::sum(fixed),
            None => checksum::sum(self.whole_header),
        };
        sum == 0xffff
    }

    /// Tells whether the checksum of a transport protocol with a pseudo-header (TCP, UDP) is right. Only for a packet
    /// that is completely in the head.
    pub fn transport_check_ok(&self) -> bool {
        let header = self.header;
        let pseudo = checksum::pseudo_v4(header.src(), header.dst(), header.protocol(), self.payload_len());
        checksum::fold(checksum::add(pseudo, checksum::sum(self.payload))) == 0xffff
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: Ipv4Addr = Ipv4Addr::new(192, 168, 0, 1);
    const THERE: Ipv4Addr = Ipv4Addr::new(192, 168, 0, 199);

    /// A header with the known checksum 0xb861.
    const KNOWN: [u8; 20] =
        [0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0xb8, 0x61, 0xc0, 0xa8, 0, 1, 0xc0, 0xa8, 0, 0xc7];

    #[test]
    fn a_built_header_is_the_known_one() {
        let mut header = Ipv4Header::new(HERE, THERE, Protocol::UDP, 0x73);
        header.set_dont_fragment(true);
        header.fill_check();
        assert_eq!(header.as_bytes(), KNOWN);
        let packet = Ipv4::parse_head(&KNOWN, 0x73).unwrap();
        assert!(packet.check_ok());
        assert_eq!((packet.header().src(), packet.header().dst(), packet.payload_len()), (HERE, THERE, 0x73 - 20));
    }

    #[test]
    fn version_and_lengths_are_checked_at_each_boundary() {
        // (first byte, total length, bytes in the head, bytes in the packet)
        let cases = [
            (0x45, 20, 20, 20, Ok((20, 0))),
            (0x45, 20, 19, 19, Err(Malformed::Ipv4Short)),
            (0x45, 19, 20, 20, Err(Malformed::Ipv4TotalLen)),
            (0x45, 21, 20, 20, Err(Malformed::IpTruncated)),
            (0x45, 21, 20, 21, Ok((20, 1))),
            (0x45, 20, 46, 46, Ok((20, 0))), // an Ethernet frame's padding
            (0x44, 20, 20, 20, Err(Malformed::Ipv4HeaderLen)),
            (0x46, 24, 24, 24, Ok((24, 0))),
            (0x46, 23, 24, 24, Err(Malformed::Ipv4TotalLen)),
            (0x46, 24, 23, 24, Err(Malformed::OutsideHead)),
            (0x4f, 60, 60, 60, Ok((60, 0))),
            (0x55, 20, 20, 20, Err(Malformed::Ipv4Version)),
            (0x35, 20, 20, 20, Err(Malformed::Ipv4Version)),
            (0x45, 65_535, 60, 65_535, Ok((20, 65_515))),
            (0x45, 65_535, 60, 65_534, Err(Malformed::IpTruncated)),
            (0x45, 65_535, 28, usize::MAX, Ok((20, 65_515))), // quoted by an ICMP error
        ];
        for (first, total_len, head_len, packet_len, want) in cases {
            let mut head = [0; 60];
            Ipv4Header::new(HERE, THERE, Protocol::UDP, total_len).write(&mut head).unwrap();
            head[0] = first;
            let got = Ipv4::parse_head(&head[..head_len], packet_len).map(|ip| (ip.header_len(), ip.payload_len()));
            assert_eq!(got, want, "{first:#x}, {total_len} bytes, {head_len} of {packet_len} there");
        }
    }

    #[test]
    fn a_payload_ends_where_the_header_says() {
        let mut bytes = Ipv4Header::new(HERE, THERE, Protocol::UDP, 22).as_bytes().to_vec();
        bytes.extend([1, 2, 3]);
        assert_eq!(Ipv4::parse(&bytes).unwrap().payload(), [1, 2]);
        assert_eq!(Ipv4::parse_head(&bytes[..21], 22).unwrap().payload(), [1]);
    }

    #[test]
    fn the_checksum_follows_what_is_replaced_through_every_value() {
        for value in 0..=u8::MAX {
            let mut header = Ipv4Header::new(HERE, THERE, Protocol(value.wrapping_mul(7)), 20);
            header.set_ttl(value);
            header.fill_check();
            assert_eq!(header.decrement_ttl(), value.saturating_sub(1));
            header.replace_tos(value);
            header.replace_protocol(Protocol(value));
            header.replace_total_len(u16::from(value) << 8 | 0x0f);
            let mut afresh = header;
            afresh.fill_check();
            assert_eq!(header, afresh, "{value}");
        }
    }

    #[test]
    fn the_checksum_follows_an_identification_that_goes_up() {
        for id in [0, 1, 0x7fff, 0xfffe, 0xffff] {
            for step in (0..=0xffff).step_by(0x0fff).chain([1, 2, 0xfffe]) {
                let mut bytes = [0x45, 3, 0, 90, 0, 0, 0x40, 0, 64, 6, 0, 0, 10, 1, 0, 1, 10, 2, 0, 9];
                bytes[4..6].copy_from_slice(&u16::to_be_bytes(id));
                let check = checksum::finish(checksum::sum(&bytes));
                bytes[10..12].copy_from_slice(&check.to_be_bytes());
                let header = Ipv4Header::mut_from(&mut bytes).unwrap();
                header.raise_id(step);
                assert_eq!((header.id(), header.check_ok()), (id.wrapping_add(step), true), "{id:#x} by {step:#x}");
            }
        }
    }

    #[test]
    fn fragments_are_distinguished_from_whole_packets() {
        let mut header = Ipv4Header::new(HERE, THERE, Protocol::UDP, 20);
        header.set_id(7);
        header.set_dont_fragment(true);
        assert_eq!(header.fragment(), None);
        let cases = [(0, true), (8, false), (65_528, true), (0, false)];
        for (bytes, more) in cases {
            let offset = FragOffset::from_bytes(bytes).unwrap();
            header.set_fragment(offset, more);
            let want = (bytes != 0 || more).then_some(FragInfo { offset, more, id: 7 });
            assert_eq!(header.fragment(), want, "offset {bytes}, more {more}");
            assert!(header.dont_fragment());
        }
        header.set_dont_fragment(false);
        assert!(!header.dont_fragment());
    }

    #[test]
    fn options_are_under_the_checksum() {
        let mut header = Ipv4Header::new(HERE, THERE, Protocol::UDP, 24);
        header.set_header_len(24);
        let mut bytes = [header.as_bytes(), &[148, 4, 0, 0]].concat();
        fill_check(&mut bytes).unwrap();
        let packet = Ipv4::parse(&bytes).unwrap();
        assert!(packet.check_ok());
        assert_eq!(
            packet.options().collect::<Vec<_>>(),
            [Ok(Ipv4Option { kind: Ipv4Option::ROUTER_ALERT, data: &[0, 0] })]
        );
        bytes[23] = 1;
        assert!(!Ipv4::parse(&bytes).unwrap().check_ok());
        assert_eq!(fill_check(&mut bytes[..23]), Err(Malformed::Ipv4Short));
        bytes[0] = 0x44;
        assert_eq!(fill_check(&mut bytes), Err(Malformed::Ipv4HeaderLen));
    }

    #[test]
    fn a_transport_checksum_is_checked_with_its_pseudo_header() {
        // Length and ports of a DNS reply, with a checksum computed by hand.
        let mut bytes = Ipv4Header::new(HERE, THERE, Protocol::UDP, 29).as_bytes().to_vec();
        bytes.extend([0, 53, 4, 0, 0, 9, 0, 0, 0xab]);
        let words = 0xc0a8 + 0x0001 + 0xc0a8 + 0x00c7 + 17 + 9 + 0x35 + 0x400 + 9 + 0xab00u32;
        let check = !((words & 0xffff) + (words >> 16)) as u16;
        bytes[26..28].copy_from_slice(&check.to_be_bytes());
        assert!(Ipv4::parse(&bytes).unwrap().transport_check_ok());
        bytes[28] ^= 1;
        assert!(!Ipv4::parse(&bytes).unwrap().transport_check_ok());
    }
}
