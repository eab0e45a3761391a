//! Chain of IPv6 extension headers (RFC 8200 §4): finds the upper layer and its offset, and the offset for a fragment
//! or ESP header.
//!
//! The walk stops in front of headers that it cannot parse: an upper-layer header, ESP, AH, an unknown header, and also
//! a second fragment header or hop-by-hop options that do not come first. A header of the last two kinds is reported as
//! an upper protocol without a listener, since RFC 8200 §4 requires the reply to an unrecognised next header.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ipv6::{Ipv6, NEXT_HEADER_AT};
use crate::{FragInfo, Malformed, Protocol, checksum, frag, ipv6};

/// Maximum number of extension headers in a walk. The longest order of RFC 8200 §4.1 without AH and ESP has five.
pub const MAX_EXTENSIONS: usize = 8;

/// First bytes of all extension headers except the fragment header.
#[derive(Clone, Copy, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned)]
#[repr(C)]
pub struct ExtHeader {
    next_header: Protocol,
    len_blocks: u8,
}

header!(ExtHeader, 2, Malformed::Ipv6Extension);

impl ExtHeader {
    /// A header of `len` bytes in total; `None` if `len` is not 8 to 2048 in steps of 8.
    pub const fn new(next_header: Protocol, len: usize) -> Option<Self> {
        if len < 8 || len > 2048 || !len.is_multiple_of(8) {
            return None;
        }
        Some(Self { next_header, len_blocks: (len / 8 - 1) as u8 })
    }

    /// Protocol that follows this extension header.
    pub const fn next_header(&self) -> Protocol {
        self.next_header
    }

    /// Length in bytes, 8 to 2048.
    pub const fn header_len(&self) -> usize {
        (self.len_blocks as usize + 1) * 8
    }
}

/// A place in the chain where another header can be inserted: behind `offset` bytes of headers, named by the
/// next-header byte at `next_header_at`. Both count from the IPv6 header.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Place {
    /// Length of the headers in front of the place.
    pub offset: usize,
    /// Offset of the byte that names the next header.
    pub next_header_at: usize,
}

/// The fragment header of a chain.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Fragment {
    /// Place of the fragment header, and of the byte that names it.
    pub place: Place,
    /// Position of the packet in its datagram.
    pub info: FragInfo,
}

/// Result of a walk over the chain. All offsets count from the IPv6 header.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Chain {
    /// Header at which the walk stopped. In a fragment after the first: the next header that the fragment header names,
    /// which is absent from this fragment.
    pub protocol: Protocol,
    /// Offset of the header `protocol`.
    pub offset: usize,
    /// Offset of the byte that names the header `protocol`.
    pub next_header_at: usize,
    /// The fragment header, if there is one.
    pub fragment: Option<Fragment>,
    /// End of the headers that routers read: behind the last routing header, else behind the hop-by-hop options, else
    /// behind the IPv6 header. The place of a fragment header (RFC 8200 §4.5), and of ESP in transport mode (RFC 4303
    /// §3.1.1), so that destination options for the last node are encrypted. Linux differs in one case: without a
    /// routing header it leaves destination options outside.
    pub per_fragment_end: Place,
}

impl Chain {
    /// Walks from the IPv6 header at the front of `head` through a packet of `packet_len` bytes, whose payload length
    /// was checked.
    ///
    /// # Errors
    /// [`Malformed::Ipv6Extension`] when a header runs past the packet, [`Malformed::OutsideHead`] when past the head
    /// alone, [`Malformed::Ipv6ExtensionCount`] after [`MAX_EXTENSIONS`].
    #[inline]
    pub fn walk(head: &[u8], packet_len: usize) -> Result<Self, Malformed> {
        let protocol = ipv6::Ipv6Header::ref_from(head)?.next_header();
        let place = Place { offset: ipv6::Ipv6Header::LEN, next_header_at: NEXT_HEADER_AT };
        let start = Self {
            protocol,
            offset: place.offset,
            next_header_at: place.next_header_at,
            fragment: None,
            per_fragment_end: place,
        };
        if is_extension(protocol) { start.walk_extensions(head, packet_len) } else { Ok(start) }
    }

    /// Finds the upper layer in `payload`, which begins with the header `protocol`: its protocol and offset. `None` in a fragment,
    /// and if the headers run past the payload or are too many.
    pub fn upper_layer(protocol: Protocol, payload: &[u8]) -> Option<(Protocol, usize)> {
        let place = Place { offset: 0, next_header_at: 0 };
        let start = Self { protocol, offset: 0, next_header_at: 0, fragment: None, per_fragment_end: place };
        let chain = start.walk_extensions(payload, payload.len()).ok()?;
        chain.fragment.is_none().then_some((chain.protocol, chain.offset))
    }

    fn walk_extensions(mut self, head: &[u8], packet_len: usize) -> Result<Self, Malformed> {
        for _ in 0..MAX_EXTENSIONS {
            let here = Place { offset: self.offset, next_header_at: self.next_header_at };
            let len = match self.protocol {
                Protocol::HOP_BY_HOP if here.offset != ipv6::Ipv6Header::LEN => return Ok(self),
                Protocol::FRAGMENT if self.fragment.is_some() => return Ok(self),
                Protocol::FRAGMENT => {
                    let header = bytes_at(head, packet_len, here.offset, frag::FragHeader::LEN)?;
                    self.fragment = Some(Fragment { place: here, info: frag::FragHeader::ref_from(header)?.info() });
                    frag::FragHeader::LEN
                }
                Protocol::HOP_BY_HOP | Protocol::ROUTING | Protocol::DEST_OPTS => {
                    let start = bytes_at(head, packet_len, here.offset, 8)?;
                    let len = ExtHeader::ref_from(start)?.header_len();
                    bytes_at(head, packet_len, here.offset, len)?;
                    len
                }
                _ => return Ok(self),
            };
            let was = self.protocol;
            self.protocol = Protocol(head[here.offset]);
            self.offset = here.offset + len;
            self.next_header_at = here.offset;
            if matches!(was, Protocol::HOP_BY_HOP | Protocol::ROUTING) && self.fragment.is_none() {
                self.per_fragment_end = Place { offset: self.offset, next_header_at: self.next_header_at };
            }
            if self.fragment.is_some_and(|fragment| !fragment.info.is_first()) {
                return Ok(self);
            }
        }
        if is_extension(self.protocol) { Err(Malformed::Ipv6ExtensionCount) } else { Ok(self) }
    }
}

impl Ipv6<'_> {
    /// Walks the extension headers.
    ///
    /// # Errors
    /// As [`Chain::walk`].
    #[inline]
    pub fn chain(&self) -> Result<Chain, Malformed> {
        Chain::walk(self.head, self.total_len())
    }

    /// Tells whether the checksum of `chain`'s upper-layer protocol is right, if that protocol has a checksum with a
    /// pseudo-header (TCP, UDP, ICMPv6; RFC 8200 §8.1). Only for a complete packet that is all in the head.
    pub fn transport_check_ok(&self, chain: &Chain) -> bool {
        let payload = self.head.get(chain.offset..).unwrap_or_default();
        let pseudo = checksum::pseudo_v6(self.header().src(), self.header().dst(), chain.protocol, payload.len());
        checksum::fold(checksum::add(pseudo, checksum::sum(payload))) == 0xffff
    }
}

const fn is_extension(protocol: Protocol) -> bool {
    matches!(protocol, Protocol::HOP_BY_HOP | Protocol::ROUTING | Protocol::FRAGMENT | Protocol::DEST_OPTS)
}

/// The `len` bytes at `offset`, if they are in the packet and in the head.
fn bytes_at(head: &[u8], packet_len: usize, offset: usize, len: usize) -> Result<&[u8], Malformed> {
    let end = offset + len; // at most MAX_EXTENSIONS * 2048 above the IPv6 header
    if end > packet_len {
        return Err(Malformed::Ipv6Extension);
    }
    head.get(offset..end).ok_or(Malformed::OutsideHead)
}

/// Action on an unknown hop-by-hop or destination option (RFC 8200 §4.2).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Unrecognised {
    /// The option is skipped.
    Skip,
    /// The packet is dropped.
    Drop,
    /// The packet is dropped, and a Parameter Problem with code 2 is sent.
    Report,
    /// As [`Unrecognised::Report`], but without the message if the destination is a group.
    ReportUnicast,
}

/// An option of a hop-by-hop or destination options header.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ExtOption<'a> {
    /// Type.
    pub kind: u8,
    /// Offset of the type byte from the start of the extension header.
    pub at: usize,
    /// Bytes behind the length byte.
    pub data: &'a [u8],
}

impl ExtOption<'_> {
    /// Router alert (RFC 2711).
    pub const ROUTER_ALERT: u8 = 5;

    /// Action on the option if its type is unknown.
    pub const fn if_unrecognised(self) -> Unrecognised {
        match self.kind >> 6 {
            0 => Unrecognised::Skip,
            1 => Unrecognised::Drop,
            2 => Unrecognised::Report,
            _ => Unrecognised::ReportUnicast,
        }
    }
}

/// The options of one extension header, without padding. Iteration ends after an error.
#[derive(Clone, Debug)]
pub struct ExtOptions<'a> {
    header: &'a [u8],
    at: usize,
}

impl<'a> ExtOptions<'a> {
    /// The options of the hop-by-hop or destination options header at the front of `bytes`.
    ///
    /// # Errors
    /// [`Malformed::Ipv6Extension`] if the header is truncated.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let len = ExtHeader::ref_from(bytes)?.header_len();
        let header = bytes.get(..len).ok_or(Malformed::Ipv6Extension)?;
        Ok(Self { header, at: ExtHeader::LEN })
    }
}

impl<'a> Iterator for ExtOptions<'a> {
    type Item = Result<ExtOption<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        const PAD1: u8 = 0;
        const PADN: u8 = 1;
        loop {
            let at = self.at;
            let &kind = self.header.get(at)?;
            if kind == PAD1 {
                self.at += 1;
                continue;
            }
            let data = self.header.get(at + 1).and_then(|&len| self.header.get(at + 2..at + 2 + usize::from(len)));
            let Some(data) = data else {
                self.at = self.header.len();
                return Some(Err(Malformed::Ipv6Option));
            };
            self.at = at + 2 + data.len();
            if kind != PADN {
                return Some(Ok(ExtOption { kind, at, data }));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::*;
    use crate::FragOffset;

    const HBH: u8 = 0;
    const ROUTING: u8 = 43;
    const FRAGMENT: u8 = 44;
    const DEST: u8 = 60;
    const TCP: u8 = 6;

    /// An IPv6 packet whose next headers are `kinds`, each of eight bytes except the last, which is empty.
    fn packet(kinds: &[u8]) -> Vec<u8> {
        let (&first, rest) = kinds.split_first().unwrap();
        let payload_len = rest.len() as u16 * 8;
        let (src, dst) = (Ipv6Addr::LOCALHOST, Ipv6Addr::LOCALHOST);
        let mut bytes = ipv6::Ipv6Header::new(src, dst, Protocol(first), payload_len).as_bytes().to_vec();
        for &next in rest {
            bytes.extend([next, 0, 0, 0, 0, 0, 0, 0]);
        }
        bytes
    }

    fn walk(bytes: &[u8]) -> Result<Chain, Malformed> {
        Chain::walk(bytes, bytes.len())
    }

    #[test]
    fn esp_and_fragment_headers_go_behind_what_routers_read() {
        // The chain, the offset of ESP, and the byte that then names ESP (RFC 4303 §3.1.1, RFC 8200 §4.5).
        let cases: [(&[u8], usize, usize); 9] = [
            (&[TCP], 40, 6),
            (&[FRAGMENT, ROUTING, TCP], 40, 6),
            (&[HBH, TCP], 48, 40),
            (&[ROUTING, TCP], 48, 40),
            (&[DEST, TCP], 40, 6),
            (&[HBH, DEST, TCP], 48, 40),
            (&[DEST, ROUTING, TCP], 56, 48),
            (&[HBH, DEST, ROUTING, DEST, TCP], 64, 56),
            (&[HBH, ROUTING, FRAGMENT, DEST, TCP], 56, 48),
        ];
        for (kinds, offset, next_header_at) in cases {
            let chain = walk(&packet(kinds)).unwrap();
            assert_eq!(chain.per_fragment_end, Place { offset, next_header_at }, "{kinds:?}");
            assert_eq!((chain.protocol, chain.offset), (Protocol::TCP, 40 + 8 * (kinds.len() - 1)), "{kinds:?}");
            let named_at = if kinds.len() == 1 { 6 } else { chain.offset - 8 };
            assert_eq!(chain.next_header_at, named_at, "{kinds:?}");
        }
    }

    #[test]
    fn the_walk_stops_in_front_of_what_it_cannot_read() {
        let cases: [(&[u8], u8, usize); 6] = [
            (&[59], 59, 40),
            (&[50], 50, 40),
            (&[DEST, 51, TCP], 51, 48),
            (&[DEST, HBH, TCP], HBH, 48),
            (&[HBH, HBH, TCP], HBH, 48),
            (&[FRAGMENT, FRAGMENT, TCP], FRAGMENT, 48),
        ];
        for (kinds, protocol, offset) in cases {
            let chain = walk(&packet(kinds)).unwrap();
            assert_eq!((chain.protocol, chain.offset), (Protocol(protocol), offset), "{kinds:?}");
        }
    }

    #[test]
    fn a_fragment_header_is_found_with_what_names_it() {
        let mut bytes = packet(&[HBH, FRAGMENT, DEST, TCP]);
        let info = FragInfo { offset: FragOffset::ZERO, more: true, id: 9 };
        frag::FragHeader::new(Protocol::DEST_OPTS, info).write(&mut bytes[48..]).unwrap();
        let chain = walk(&bytes).unwrap();
        let place = Place { offset: 48, next_header_at: 40 };
        assert_eq!(chain.fragment, Some(Fragment { place, info }));
        assert_eq!((chain.protocol, chain.offset), (Protocol::TCP, 64));

        let info = FragInfo { offset: FragOffset::from_bytes(8).unwrap(), ..info };
        frag::FragHeader::new(Protocol::DEST_OPTS, info).write(&mut bytes[48..]).unwrap();
        let chain = walk(&bytes).unwrap();
        assert_eq!((chain.protocol, chain.offset), (Protocol::DEST_OPTS, 56), "what follows is payload");
    }

    #[test]
    fn a_chain_of_eight_is_walked_and_one_of_nine_is_not() {
        let mut kinds = vec![DEST; MAX_EXTENSIONS];
        kinds.push(TCP);
        assert_eq!(walk(&packet(&kinds)).map(|chain| chain.offset), Ok(40 + 8 * MAX_EXTENSIONS));
        kinds.insert(0, DEST);
        assert_eq!(walk(&packet(&kinds)), Err(Malformed::Ipv6ExtensionCount));
    }

    #[test]
    fn a_header_may_end_with_the_packet_and_not_behind_it() {
        let mut bytes = packet(&[HBH, DEST, 59]);
        bytes[49] = 1;
        bytes.extend([0; 8]);
        // (bytes in the head, bytes in the packet)
        let cases = [
            (64, 64, Ok(64)),
            (64, 63, Err(Malformed::Ipv6Extension)),
            (63, 64, Err(Malformed::OutsideHead)),
            (55, 64, Err(Malformed::OutsideHead)),
            (56, 56, Err(Malformed::Ipv6Extension)),
            (40, 64, Err(Malformed::OutsideHead)),
            (40, 40, Err(Malformed::Ipv6Extension)),
            (39, 64, Err(Malformed::Ipv6Short)),
        ];
        for (head_len, packet_len, want) in cases {
            let got = Chain::walk(&bytes[..head_len], packet_len).map(|chain| chain.offset);
            assert_eq!(got, want, "{head_len} of {packet_len} bytes there");
        }
        let cut = packet(&[FRAGMENT, TCP]);
        assert_eq!(walk(&cut[..47]), Err(Malformed::Ipv6Extension));
    }

    #[test]
    fn an_extension_header_is_8_to_2048_bytes_in_blocks_of_8() {
        for (len, want) in [(0, None), (8, Some(0)), (12, None), (2048, Some(255)), (2056, None)] {
            let header = ExtHeader::new(Protocol::TCP, len);
            assert_eq!(header.map(|header| header.as_bytes()[1]), want, "{len}");
            assert!(header.is_none_or(|header| header.header_len() == len));
        }
    }

    #[test]
    fn options_say_what_to_do_with_them_if_unknown() {
        let bytes = [TCP, 1, 0, 1, 1, 0, 0x1e, 0, 0x5e, 1, 9, 0x9e, 0, 0xde, 1, 7];
        let seen: Vec<_> = ExtOptions::parse(&bytes).unwrap().map(Result::unwrap).collect();
        let want = [
            (0x1e, 6, &[][..], Unrecognised::Skip),
            (0x5e, 8, &[9], Unrecognised::Drop),
            (0x9e, 11, &[], Unrecognised::Report),
            (0xde, 13, &[7], Unrecognised::ReportUnicast),
        ];
        assert_eq!(seen.len(), want.len());
        for (option, (kind, at, data, action)) in seen.into_iter().zip(want) {
            assert_eq!((option, option.if_unrecognised()), (ExtOption { kind, at, data }, action));
        }
    }

    #[test]
    fn an_option_stays_within_its_header() {
        let bad = Some(Err(Malformed::Ipv6Option));
        let cases: [(&[u8; 8], _); 4] = [
            (&[TCP, 0, 5, 4, 0, 0, 0, 0], Some(Ok(ExtOption { kind: 5, at: 2, data: &[0; 4] }))),
            (&[TCP, 0, 5, 5, 0, 0, 0, 0], bad),
            (&[TCP, 0, 0, 0, 0, 0, 0, 5], bad),
            (&[TCP, 0, 1, 4, 0, 0, 0, 0], None),
        ];
        for (bytes, want) in cases {
            let mut options = ExtOptions::parse(bytes).unwrap();
            assert_eq!(options.next(), want, "{bytes:?}");
            assert_eq!(options.next(), None, "{bytes:?}");
        }
        assert_eq!(ExtOptions::parse(&[TCP, 1, 0, 0, 0, 0, 0, 0]).err(), Some(Malformed::Ipv6Extension));
    }
}
