//! Offsets of a packet's headers, found in its bytes.
//!
//! Offsets declared by a guest or a TUN device are never trusted. Lengths are those of the packet itself: the length
//! fields of a fat packet's IP header are rewritten for each segment.

use base::DropReason;
use packet::{Csum, GsoKind, Memory, Packet};
use wire::ipv6::Chain;
use wire::{Malformed, Protocol, Version, checksum as sums, ipv4, ipv6, tcp, udp};

/// Layout of a packet's headers, all of which lie in its head.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Headers {
    /// Version of the IP header.
    pub version: Version,
    /// Protocol behind the IP headers.
    pub protocol: Protocol,
    /// Whether the packet is a fragment, which may lack the transport header.
    pub(crate) fragment: bool,
    /// Offset of the IP header.
    pub(crate) l3: usize,
    /// Offset of the transport header, behind IPv4 options and IPv6 extension headers.
    pub(crate) l4: usize,
    /// Offset of the payload.
    pub end: usize,
}

/// Parses the headers of a packet, whose IP header begins at `l3`, with `parse`, after pulling as many bytes into the
/// head as `parse` needs.
pub(crate) fn bring_in<T>(
    mem: &Memory,
    pkt: &mut Packet,
    l3: usize,
    parse: impl Fn(&[u8], usize) -> Result<T, Malformed>,
) -> Result<T, DropReason> {
    loop {
        match parse(pkt.head(), pkt.len()) {
            Ok(headers) => return Ok(headers),
            Err(Malformed::OutsideHead) => {
                // Each iteration pulls more bytes, up to the complete packet.
                let more = (2 * pkt.headlen()).max(l3.saturating_add(128)).min(pkt.len());
                if more == pkt.headlen() || !pkt.may_pull(mem, more)? {
                    return Err(Malformed::OutsideHead.into());
                }
            }
            Err(why) => return Err(why.into()),
        }
    }
}

impl Headers {
    /// Finds the headers of a packet whose IP header begins at `l3`, and pulls them into the head.
    pub(crate) fn find(mem: &Memory, pkt: &mut Packet, l3: usize) -> Result<Self, DropReason> {
        bring_in(mem, pkt, l3, |head, len| Self::parse(head, len, l3))
    }

    /// Headers from an earlier parse, of a packet that begins with its IP header and is not a fragment.
    pub(crate) fn of_parts(version: Version, protocol: Protocol, l4: usize, end: usize) -> Self {
        Self { version, protocol, fragment: false, l3: 0, l4, end }
    }

    /// Parses the headers of a packet of `len` bytes, whose first bytes are in `head`.
    pub(crate) fn parse(head: &[u8], len: usize, l3: usize) -> Result<Self, Malformed> {
        let outside = |why| if head.len() < len { Malformed::OutsideHead } else { why };
        let ip = head.get(l3..).unwrap_or_default();
        let version = Version::of(ip).map_err(|why| if ip.is_empty() { outside(why) } else { why })?;
        let (ip_header_len, protocol, fragment) = match version {
            Version::V4 => {
                let header = ipv4::Ipv4Header::ref_from(ip).map_err(outside)?;
                if header.header_len() < ipv4::Ipv4Header::LEN {
                    return Err(Malformed::Ipv4HeaderLen);
                }
                (header.header_len(), header.protocol(), header.fragment().is_some())
            }
            Version::V6 => {
                let chain = Chain::walk(ip, len - l3).map_err(|why| match why {
                    Malformed::Ipv6Short => outside(why),
                    why => why,
                })?;
                (chain.offset, chain.protocol, chain.fragment.is_some())
            }
        };
        let l4 = l3 + ip_header_len;
        let transport = head.get(l4..).unwrap_or_default();
        let transport_len = match protocol {
            _ if fragment => 0,
            Protocol::TCP => {
                let header = tcp::TcpHeader::ref_from(transport).map_err(outside)?;
                if header.header_len() < tcp::TcpHeader::LEN {
                    return Err(Malformed::TcpDataOffset);
                }
                header.header_len()
            }
            Protocol::UDP => udp::UdpHeader::ref_from(transport).map_err(outside).map(|_| udp::UdpHeader::LEN)?,
            _ => 0,
        };
        let end = l4 + transport_len;
        if end > head.len() {
            return Err(outside(if end > l4 { Malformed::TcpShort } else { Malformed::Ipv4Short }));
        }
        Ok(Self { version, protocol, fragment, l3, l4, end })
    }

    /// Tells whether the IP header has neither extension headers nor IPv4 options.
    pub(crate) fn plain(&self) -> bool {
        self.l4 - self.l3 == self.version.header_len()
    }

    /// Tells whether a fat packet of this kind can have these headers.
    pub(crate) fn is(&self, kind: GsoKind) -> bool {
        let (version, protocol) = match kind {
            GsoKind::TcpV4 => (Version::V4, Protocol::TCP),
            GsoKind::TcpV6 => (Version::V6, Protocol::TCP),
            GsoKind::Udp => (self.version, Protocol::UDP),
        };
        (self.version, self.protocol, self.fragment) == (version, protocol, false)
    }

    /// Offset of the checksum in the transport header.
    pub(crate) fn check_at(&self) -> usize {
        if self.protocol == Protocol::UDP { udp::CHECK_AT } else { tcp::CHECK_AT }
    }

    /// Partial checksum state of a packet with these headers; `None` if an offset exceeds 16 bits.
    pub(crate) fn partial_csum(&self) -> Option<Csum> {
        let start = u16::try_from(self.l4).ok()?;
        Some(Csum::Partial { start, offset: self.check_at() as u16 })
    }

    /// The partial sum of the pseudo-header for `len` bytes of transport header and payload, from `head`'s addresses.
    pub(crate) fn pseudo(&self, head: &[u8], len: usize) -> u32 {
        let addresses = match self.version {
            Version::V4 => self.l3 + 12..self.l3 + 20,
            Version::V6 => self.l3 + 8..self.l3 + 40,
        };
        sums::add(sums::sum(&head[addresses]), u32::from(self.protocol.0) + len as u32)
    }

    /// Start of a partial checksum, if it belongs to a transport header behind this one.
    pub(crate) fn start_inside(&self, csum: Csum) -> Option<usize> {
        match csum {
            Csum::Partial { start, .. } => Some(start.into()).filter(|&start: &usize| start > self.l4),
            Csum::None | Csum::Unnecessary | Csum::Complete(_) => None,
        }
    }

    /// Writes lengths for a packet of `len` bytes, IPv4's checksum, and the pseudo-header's sum as the transport
    /// checksum: Linux's form of a packet with a checksum to be completed.
    pub(crate) fn fill(&self, head: &mut [u8], len: usize, pseudo: u32) {
        self.fill_lengths(head, len);
        self.put_pseudo(head, pseudo);
    }

    /// Writes lengths for a packet of `len` bytes, and IPv4's checksum.
    pub(crate) fn fill_lengths(&self, head: &mut [u8], len: usize) {
        let ip = &mut head[self.l3..];
        let ip_len = len - self.l3;
        match self.version {
            Version::V4 => {
                ipv4::Ipv4Header::mut_from(ip).expect("found before").set_total_len(ip_len as u16);
                ipv4::fill_check(ip).expect("found before");
            }
            Version::V6 => {
                let header = ipv6::Ipv6Header::mut_from(ip).expect("found before");
                header.set_payload_len((ip_len - ipv6::Ipv6Header::LEN) as u16);
            }
        }
        if self.protocol == Protocol::UDP {
            let transport = &mut head[self.l4..];
            udp::UdpHeader::mut_from(transport).expect("found before").set_len((len - self.l4) as u16);
        }
    }

    /// Writes the pseudo-header's sum as the transport checksum.
    pub(crate) fn put_pseudo(&self, head: &mut [u8], pseudo: u32) {
        let at = self.l4 + self.check_at();
        head[at..at + 2].copy_from_slice(&sums::fold(pseudo).to_be_bytes());
    }

    /// Maximum length of a packet, from its first byte, that the length fields of these headers permit.
    pub(crate) fn max_len(&self) -> usize {
        match self.version {
            Version::V4 => self.l3 + 65_535,
            Version::V6 if self.protocol == Protocol::UDP => self.l4 + 65_535,
            Version::V6 => self.l3 + ipv6::Ipv6Header::LEN + 65_535,
        }
    }
}
