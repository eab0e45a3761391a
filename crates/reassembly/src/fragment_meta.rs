//! Position of a fragment in its datagram, and header fields that apply to the complete datagram.

use base::DropReason;
use packet::Packet;
use wire::ip::Info;
use wire::ipv6::{self, Ipv6};
use wire::{Ecn, FragInfo, Malformed, Protocol, Version, ext, frag, icmpv6, tcp, udp};

/// A fragment's headers, and its range in the datagram.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FragmentMeta {
    pub(crate) info: Info,
    /// Start and end of the fragment's payload in the datagram's payload, in bytes.
    pub(crate) offset: usize,
    pub(crate) end: usize,
    /// The more-fragments flag.
    pub(crate) more: bool,
    /// Length of the fragment's headers, including an IPv6 fragment header.
    pub(crate) header_len: usize,
    /// Offset of the next-header byte that names the IPv6 fragment header.
    pub(crate) next_header_at: usize,
}

/// Header fields of a first fragment that apply to the complete datagram.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct FirstFragment {
    pub(crate) version: Version,
    pub(crate) tos: u8,
    /// Illegal header at the start of the fragmentable part.
    pub(crate) misplaced: Option<IllegalNextHeader>,
    /// Length of the fragment's headers, including an IPv6 fragment header, and of its IP headers alone.
    pub(crate) header_len: u16,
    pub(crate) ip_len: u16,
    /// Offset of the next-header byte that names the IPv6 fragment header.
    pub(crate) next_header_at: u16,
    /// Length of the fragment without trailing bytes.
    pub(crate) len: u32,
}

/// A header behind the fragment header for which reassembly refuses the datagram.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum IllegalNextHeader {
    /// Another fragment header.
    Fragment,
    /// Hop-by-hop options directly behind the fragment header. Without the fragment header they might be in a legal
    /// place, and the upper-layer header could not be found from the complete datagram's headers. Linux refuses them as
    /// well.
    HopByHop,
}

/// Range of a fragment in its datagram, and header fields that apply to the complete datagram.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FragmentRange {
    /// Start and end, in bytes.
    pub(crate) offset: usize,
    pub(crate) end: usize,
    /// The more-fragments flag.
    pub(crate) more: bool,
    /// Length of the fragment's headers.
    pub(crate) header_len: usize,
    pub(crate) ecn: Ecn,
    pub(crate) dont_fragment: bool,
}

/// An ICMPv6 parameter problem (RFC 8200 §4.5, RFC 7112 §5).
#[derive(Clone, Copy, Debug)]
pub(crate) struct ParameterProblem {
    pub(crate) reason: DropReason,
    pub(crate) code: icmpv6::Problem,
    pub(crate) pointer: usize,
}

impl FragmentMeta {
    /// Range and headers of an IPv4 fragment. Except in the last fragment, bytes beyond a multiple of 8 are ignored (as
    /// in Linux).
    pub(crate) fn v4(info: &Info, fragment: FragInfo) -> Self {
        let len = info.payload_len();
        let len = if fragment.more { len / 8 * 8 } else { len };
        let offset = fragment.offset.bytes();
        Self {
            info: *info,
            offset,
            end: offset + len,
            more: fragment.more,
            header_len: info.header_len,
            next_header_at: info.next_header_at,
        }
    }

    /// Range and headers of an IPv6 fragment. Its headers lie in the packet's head.
    ///
    /// # Errors
    /// A chain of headers without a fragment header.
    pub(crate) fn v6(pkt: &Packet, info: &Info) -> Result<Self, Malformed> {
        let chain = Ipv6::parse_head(pkt.head(), pkt.len())?.chain()?;
        let found = chain.fragment.ok_or(Malformed::FragShort)?;
        let header_len = found.place.offset + frag::FragHeader::LEN;
        let len = info.total_len.checked_sub(header_len).ok_or(Malformed::Ipv6Extension)?;
        let offset = found.info.offset.bytes();
        Ok(Self {
            info: *info,
            offset,
            end: offset + len,
            more: found.info.more,
            header_len,
            next_header_at: found.place.next_header_at,
        })
    }

    /// Header fields that apply to the complete datagram, if this is the first fragment.
    pub(crate) fn first(&self) -> Option<FirstFragment> {
        let [header_len, ip_len, next_header_at] =
            [self.header_len, self.info.header_len, self.next_header_at].map(|place| place as u16);
        (self.offset == 0).then(|| FirstFragment {
            version: self.info.version(),
            tos: self.info.tos,
            misplaced: self.misplaced(),
            header_len,
            ip_len,
            next_header_at,
            len: self.span().packet_len() as u32,
        })
    }

    /// Range in the datagram.
    pub(crate) fn span(&self) -> FragmentRange {
        let Self { offset, end, more, header_len, .. } = *self;
        FragmentRange { offset, end, more, header_len, ecn: self.info.ecn(), dont_fragment: self.info.dont_fragment }
    }

    /// Illegal header behind the fragment header of a first fragment.
    pub(crate) fn misplaced(&self) -> Option<IllegalNextHeader> {
        match self.info.protocol {
            _ if self.info.version() == Version::V4 || !self.info.has_transport() => None,
            Protocol::FRAGMENT => Some(IllegalNextHeader::Fragment),
            Protocol::HOP_BY_HOP if self.info.header_len == self.header_len => Some(IllegalNextHeader::HopByHop),
            _ => None,
        }
    }

    /// Refuses a first fragment without its upper-layer header (Linux's `ipv6frag_thdr_truncated`).
    pub(crate) fn check_header_chain(&self, pkt: &Packet) -> Result<(), ParameterProblem> {
        //= RFC 8200 §4.5 header-chain: a first fragment without all headers up to the upper layer's is answered with an error
        if self.offset > 0 || self.has_upper_layer(pkt) {
            return Ok(());
        }
        let (reason, code) = (DropReason::FragmentHeaderChain, icmpv6::Problem::HEADER_CHAIN);
        Err(ParameterProblem { reason, code, pointer: 0 })
    }

    /// Tells whether a first fragment holds all headers. If the summary stops at an extension header, the next header
    /// must be present too (RFC 7112 §2).
    fn has_upper_layer(&self, pkt: &Packet) -> bool {
        let Info { mut protocol, header_len: mut at, total_len, .. } = self.info;
        for _ in 0..ext::MAX_EXTENSIONS {
            let mut start = [0; frag::FragHeader::LEN];
            match protocol {
                Protocol::NO_NEXT => return true,
                Protocol::AH | Protocol::HOP_BY_HOP | Protocol::ROUTING | Protocol::DEST_OPTS | Protocol::FRAGMENT => {
                    if at + start.len() > total_len || !pkt.read_at(at, &mut start) {
                        return false;
                    }
                }
                _ => return at + upper_len(protocol) <= total_len,
            }
            let blocks = usize::from(start[1]);
            at += match protocol {
                Protocol::AH => (blocks + 2) * 4,
                // Only a first fragment has headers behind its fragment header.
                Protocol::FRAGMENT if u16::from_be_bytes([start[2], start[3]]) >> 3 > 0 => return true,
                Protocol::FRAGMENT => frag::FragHeader::LEN,
                _ => (blocks + 1) * 8,
            };
            protocol = Protocol(start[0]);
        }
        true
    }

    /// Checks the lengths for which RFC 8200 §4.5 requires a parameter problem.
    pub(crate) fn check_lengths(&self) -> Result<(), ParameterProblem> {
        /// Offset of the payload length in an IPv6 header.
        const PAYLOAD_LEN_AT: usize = 4;
        /// Offset of the fragment offset in a fragment header.
        const OFFSET_AT: usize = 2;
        let code = icmpv6::Problem::FIELD;
        //= RFC 8200 §4.5 too-long: a fragment that ends beyond 65 535 bytes is answered with a pointer to its offset
        if self.end > usize::from(u16::MAX) {
            let pointer = self.header_len - frag::FragHeader::LEN + OFFSET_AT;
            return Err(ParameterProblem { reason: DropReason::FragmentTooLong, code, pointer });
        }
        //= RFC 8200 §4.5 multiple-of-8: a fragment before the last whose length is no multiple of 8 is answered
        //=   with a pointer to the payload length
        if self.more && !self.end.is_multiple_of(8) {
            return Err(ParameterProblem { reason: DropReason::FragmentLength, code, pointer: PAYLOAD_LEN_AT });
        }
        Ok(())
    }

    /// Length field of a datagram that consists of this fragment alone.
    ///
    /// # Errors
    /// [`DropReason::FragmentTooLong`] if the length exceeds the field.
    pub(crate) fn whole_len(&self) -> Result<u16, DropReason> {
        whole_len(self.info.version(), self.header_len, self.end)
    }
}

impl ParameterProblem {
    /// An illegal header, at `header_at`, and named by the byte at `next_header_at`.
    pub(crate) const fn misplaced(which: IllegalNextHeader, header_at: usize, next_header_at: usize) -> Self {
        match which {
            IllegalNextHeader::Fragment => {
                let (reason, code) = (DropReason::FragmentNested, icmpv6::Problem::FIELD);
                Self { reason, code, pointer: header_at }
            }
            IllegalNextHeader::HopByHop => {
                let (reason, code) = (DropReason::ProtocolUnknown, icmpv6::Problem::NEXT_HEADER);
                Self { reason, code, pointer: next_header_at }
            }
        }
    }
}

impl FirstFragment {
    /// Length field of a complete datagram with `payload` bytes of payload.
    ///
    /// # Errors
    /// [`DropReason::FragmentTooLong`] if the length exceeds the field.
    pub(crate) fn whole_len(&self, payload: usize) -> Result<u16, DropReason> {
        whole_len(self.version, self.header_len.into(), payload)
    }
}

fn whole_len(version: Version, header_len: usize, payload: usize) -> Result<u16, DropReason> {
    let headers = match version {
        Version::V4 => header_len,
        Version::V6 => header_len - frag::FragHeader::LEN - ipv6::Ipv6Header::LEN,
    };
    u16::try_from(headers + payload).map_err(|_| DropReason::FragmentTooLong)
}

impl FragmentRange {
    /// Length of the fragment's packet with headers, without trailing bytes.
    pub(crate) fn packet_len(&self) -> usize {
        self.header_len + self.len()
    }

    /// Length of the fragment's payload.
    pub(crate) fn len(&self) -> usize {
        self.end - self.offset
    }
}

/// Minimum length of the upper-layer header in a first fragment (Linux's `ipv6frag_thdr_truncated`).
pub(crate) const fn upper_len(protocol: Protocol) -> usize {
    match protocol {
        Protocol::TCP => tcp::TcpHeader::LEN,
        Protocol::UDP => udp::UdpHeader::LEN,
        Protocol::ICMPV6 => icmpv6::Icmpv6Header::LEN,
        _ => 1,
    }
}
