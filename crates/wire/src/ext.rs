//! The chain of IPv6 extension headers (RFC 8200 §4): what the upper layer is, where it begins, and where a fragment
//! or ESP header goes.
//!
//! The walk stops in front of what it cannot read: an upper-layer header, ESP, AH, an unknown header, and also a
//! second fragment header or hop-by-hop options that do not come first. These two are then reported as the upper
//! protocol, which no one listens to: RFC 8200 §4 answers them as an unrecognised next header.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ipv6::NEXT_HEADER_AT;
use crate::{FragInfo, Malformed, Protocol, frag, ipv6};

/// How many extension headers are walked. The longest order of RFC 8200 §4.1 that we can read has five.
pub const MAX_EXTENSIONS: usize = 8;

/// What all extension headers but the fragment header begin with.
#[derive(Clone, Copy, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned)]
#[repr(C)]
pub struct Header {
    next_header: Protocol,
    len_blocks: u8,
}

header!(Header, 2, Malformed::Ipv6Extension);

impl Header {
    /// A header of `len` bytes in all; `None` if that is not 8 to 2048 in steps of 8.
    pub const fn new(next_header: Protocol, len: usize) -> Option<Self> {
        if len < 8 || len > 2048 || !len.is_multiple_of(8) {
            return None;
        }
        Some(Self { next_header, len_blocks: (len / 8 - 1) as u8 })
    }

    /// What follows this extension header.
    pub const fn next_header(&self) -> Protocol {
        self.next_header
    }

    /// Its length in bytes, 8 to 2048.
    pub const fn header_len(&self) -> usize {
        (self.len_blocks as usize + 1) * 8
    }
}

/// A place in the chain where another header can be put: behind `offset` bytes of headers, named by the next-header
/// byte at `next_header_at`. Both count from the IPv6 header.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Place {
    /// How many bytes of headers come before.
    pub offset: usize,
    /// Where the byte is that says what follows.
    pub next_header_at: usize,
}

/// The fragment header of a chain.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Fragment {
    /// Where the fragment header begins and what names it.
    pub place: Place,
    /// Which part of which datagram the packet is.
    pub info: FragInfo,
}

/// What a walk over the chain found. All offsets count from the IPv6 header.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Chain {
    /// What the walk stopped in front of. In a fragment after the first, what the fragment header says, which is
    /// not what the bytes are.
    pub protocol: Protocol,
    /// Where that begins.
    pub offset: usize,
    /// Where the byte is that names it.
    pub next_header_at: usize,
    /// The fragment header, if there is one.
    pub fragment: Option<Fragment>,
    /// Where the headers end that routers read: behind the last routing header, else behind the hop-by-hop options,
    /// else behind the IPv6 header. A fragment header goes here (RFC 8200 §4.5), and so does ESP in transport mode
    /// (RFC 4303 §3.1.1), which leaves the destination options that are for the last node protected inside. Linux
    /// differs in one case: it puts destination options outside when there is no routing header.
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
        let protocol = ipv6::Header::ref_from(head)?.next_header();
        let place = Place { offset: ipv6::Header::LEN, next_header_at: NEXT_HEADER_AT };
        let start = Self {
            protocol,
            offset: place.offset,
            next_header_at: place.next_header_at,
            fragment: None,
            per_fragment_end: place,
        };
        if is_extension(protocol) { start.walk_extensions(head, packet_len) } else { Ok(start) }
    }

    fn walk_extensions(mut self, head: &[u8], packet_len: usize) -> Result<Self, Malformed> {
        for _ in 0..MAX_EXTENSIONS {
            let here = Place { offset: self.offset, next_header_at: self.next_header_at };
            let len = match self.protocol {
                Protocol::HOP_BY_HOP if here.offset != ipv6::Header::LEN => return Ok(self),
                Protocol::FRAGMENT if self.fragment.is_some() => return Ok(self),
                Protocol::FRAGMENT => {
                    let header = bytes_at(head, packet_len, here.offset, frag::Header::LEN)?;
                    self.fragment = Some(Fragment { place: here, info: frag::Header::ref_from(header)?.info() });
                    frag::Header::LEN
                }
                Protocol::HOP_BY_HOP | Protocol::ROUTING | Protocol::DEST_OPTS => {
                    let start = bytes_at(head, packet_len, here.offset, 8)?;
                    let len = Header::ref_from(start)?.header_len();
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

const fn is_extension(protocol: Protocol) -> bool {
    matches!(protocol, Protocol::HOP_BY_HOP | Protocol::ROUTING | Protocol::FRAGMENT | Protocol::DEST_OPTS)
}

/// The `len` bytes at `offset`, which the packet must have and the head must hold.
fn bytes_at(head: &[u8], packet_len: usize, offset: usize, len: usize) -> Result<&[u8], Malformed> {
    let end = offset + len; // at most MAX_EXTENSIONS * 2048 above the IPv6 header
    if end > packet_len {
        return Err(Malformed::Ipv6Extension);
    }
    head.get(offset..end).ok_or(Malformed::OutsideHead)
}

/// What a node does with a hop-by-hop or destination option that it does not know (RFC 8200 §4.2).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Unrecognised {
    /// Skips it.
    Skip,
    /// Drops the packet.
    Drop,
    /// Drops the packet and sends Parameter Problem, code 2.
    Report,
    /// As [`Unrecognised::Report`], but not if the destination was a group.
    ReportUnicast,
}

/// An option of a hop-by-hop or destination options header.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Opt<'a> {
    /// Its type.
    pub kind: u8,
    /// Where its type byte is, from the start of the extension header.
    pub at: usize,
    /// What follows its length byte.
    pub data: &'a [u8],
}

impl Opt<'_> {
    /// Router alert (RFC 2711).
    pub const ROUTER_ALERT: u8 = 5;

    /// What to do if its type is unknown.
    pub const fn if_unrecognised(self) -> Unrecognised {
        match self.kind >> 6 {
            0 => Unrecognised::Skip,
            1 => Unrecognised::Drop,
            2 => Unrecognised::Report,
            _ => Unrecognised::ReportUnicast,
        }
    }
}

/// The options of one extension header, without padding. Ends after an error.
#[derive(Clone, Debug)]
pub struct Options<'a> {
    header: &'a [u8],
    at: usize,
}

impl<'a> Options<'a> {
    /// The options of the hop-by-hop or destination options header at the front of `bytes`.
    ///
    /// # Errors
    /// [`Malformed::Ipv6Extension`] if the header is not all there.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let len = Header::ref_from(bytes)?.header_len();
        let header = bytes.get(..len).ok_or(Malformed::Ipv6Extension)?;
        Ok(Self { header, at: Header::LEN })
    }
}

impl<'a> Iterator for Options<'a> {
    type Item = Result<Opt<'a>, Malformed>;

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
                return Some(Ok(Opt { kind, at, data }));
            }
        }
    }
}
