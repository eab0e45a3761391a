//! Header offsets in the driver's parser: only TCP directly behind an IP header.

use wire::eth::EtherType;
use wire::{Protocol, checksum, eth, ipv4, tcp, vlan};

/// Maximum length of the headers that the driver parses, with a tag and options.
pub(crate) const MAX_HEADERS: usize =
    eth::EthHeader::LEN + vlan::VlanHeader::LEN + ipv4::MAX_HEADER_LEN + tcp::MAX_HEADER_LEN;

/// Bytes of an IPv6 header.
const IPV6_LEN: usize = 40;

/// Mark of a fat frame in the old style in the IPv4 checksum field, where no valid checksum has this value.
pub(crate) const OLD_MARK: u16 = 0xffff;

/// Offset of the checksum in an IPv4 header.
const IPV4_CHECK_AT: usize = 10;

/// Offset of a frame's IP header, behind the Ethernet header and a tag.
pub(crate) fn l3(head: &[u8]) -> Option<(EtherType, usize)> {
    let ethertype = |at: usize| head.get(at..)?.first_chunk().map(|bytes| EtherType(u16::from_be_bytes(*bytes)));
    match ethertype(12)? {
        EtherType::VLAN => Some((ethertype(16)?, eth::EthHeader::LEN + vlan::VlanHeader::LEN)),
        known => Some((known, eth::EthHeader::LEN)),
    }
}

/// Layout of a frame with TCP.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Layout {
    /// Whether the IP header is IPv4.
    pub(crate) is_v4: bool,
    pub(crate) l3: usize,
    pub(crate) l4: usize,
    /// Offset of the payload.
    pub(crate) payload: usize,
    /// End of the frame according to its IP header; further bytes are padding.
    pub(crate) end: usize,
}

impl Layout {
    /// Parses a frame of `len` bytes, whose first bytes are in `head`. `None` without a complete TCP header directly
    /// behind the IP header, or if the frame is truncated or a fragment.
    pub(crate) fn find(head: &[u8], len: usize) -> Option<Self> {
        let (ethertype, l3) = l3(head)?;
        let ip = head.get(l3..)?;
        let word = |at: usize| Some(u16::from_be_bytes(*ip.get(at..)?.first_chunk()?));
        let (is_v4, l4, protocol, end) = match ethertype {
            EtherType::IPV4 => {
                let header_len = usize::from(ip.first()? & 0xf) * 4;
                let is_plain = ip[0] >> 4 == 4 && header_len >= ipv4::Ipv4Header::LEN && word(6)? & 0x3fff == 0;
                if !is_plain {
                    return None;
                }
                (true, l3 + header_len, *ip.get(ipv4::PROTOCOL_AT)?, l3 + usize::from(word(2)?))
            }
            EtherType::IPV6 => (false, l3 + IPV6_LEN, *ip.get(6)?, l3 + IPV6_LEN + usize::from(word(4)?)),
            _ => return None,
        };
        let header_len = usize::from(head.get(l4 + tcp::FLAGS_AT)? >> 4) * 4;
        let payload = l4 + header_len;
        let is_tcp = Protocol(protocol) == Protocol::TCP && header_len >= tcp::TcpHeader::LEN;
        (is_tcp && payload <= head.len() && payload <= end && end <= len).then_some(Self {
            is_v4,
            l3,
            l4,
            payload,
            end,
        })
    }

    /// Offset of the TCP checksum.
    pub(crate) const fn check_at(&self) -> usize {
        self.l4 + tcp::CHECK_AT
    }

    /// The TCP checksum field.
    pub(crate) fn check(&self, head: &[u8]) -> u16 {
        u16::from_be_bytes([head[self.check_at()], head[self.check_at() + 1]])
    }

    /// Writes the TCP checksum field.
    pub(crate) fn set_check(&self, head: &mut [u8], check: u16) {
        head[self.check_at()..self.check_at() + 2].copy_from_slice(&check.to_be_bytes());
    }

    /// Writes the sum of the pseudo-header as the TCP checksum.
    pub(crate) fn put_pseudo(&self, head: &mut [u8]) {
        let addresses = if self.is_v4 { self.l3 + 12..self.l3 + 20 } else { self.l3 + 8..self.l3 + 40 };
        let len = (self.end - self.l4) as u32;
        let pseudo = checksum::add(checksum::sum(&head[addresses]), u32::from(Protocol::TCP.0) + len);
        self.set_check(head, checksum::fold(pseudo));
    }

    /// Tells whether the frame has the mark of the old style.
    pub(crate) fn is_marked(&self, head: &[u8]) -> bool {
        let at = self.l3 + IPV4_CHECK_AT;
        self.is_v4 && head[at..at + 2] == OLD_MARK.to_be_bytes()
    }

    /// Writes the mark of the old style.
    pub(crate) fn mark(&self, head: &mut [u8]) {
        let at = self.l3 + IPV4_CHECK_AT;
        head[at..at + 2].copy_from_slice(&OLD_MARK.to_be_bytes());
    }

    /// Recomputes the IPv4 checksum.
    pub(crate) fn rebuild_ip_check(&self, head: &mut [u8]) {
        let at = self.l3 + IPV4_CHECK_AT;
        head[at..at + 2].fill(0);
        let check = checksum::finish(checksum::sum(&head[self.l3..self.l4]));
        head[at..at + 2].copy_from_slice(&check.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use sim::Flow;

    use super::*;

    fn frame(flow: &Flow, tag: bool, ip: &[u8]) -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
        if tag {
            frame.extend([0x81, 0, 0, 5]);
        }
        frame.extend(if flow.src.is_ipv4() { [8, 0] } else { [0x86, 0xdd] });
        frame.extend(ip);
        frame
    }

    #[test]
    fn layout_is_of_whole_tcp_alone() {
        for flow in [Flow::new("10.0.0.1", "10.0.0.2"), Flow::new("fd00::1", "fd00::2")] {
            for tag in [false, true] {
                let good = frame(&flow, tag, &flow.tcp(1, 100));
                let layout = Layout::find(&good, good.len()).unwrap();
                let l3 = if tag { 18 } else { 14 };
                let l4 = l3 + if layout.is_v4 { 20 } else { 40 };
                assert_eq!((layout.l3, layout.l4, layout.end), (l3, l4, good.len()));
                assert_eq!(layout.end - layout.payload, 100);
                // Bytes past the end are padding; a frame one byte short is truncated, and so is a head without all
                // headers.
                assert_eq!(Layout::find(&good, good.len() + 6).unwrap().end, good.len());
                assert_eq!(Layout::find(&good, good.len() - 1), None);
                assert_eq!(Layout::find(&good[..layout.payload], good.len()), Some(layout));
                for len in 0..layout.payload {
                    assert_eq!(Layout::find(&good[..len], good.len()), None, "{len}");
                }
                let udp = frame(&flow, tag, &flow.udp(100));
                assert_eq!(Layout::find(&udp, udp.len()), None);
                if layout.is_v4 {
                    for (at, byte) in [(0, 0x44), (0, 0x65), (6, 0x20), (7, 1)] {
                        let mut bad = good.clone();
                        bad[l3 + at] = byte;
                        assert_eq!(Layout::find(&bad, bad.len()), None, "{at} {byte}");
                    }
                }
            }
        }
    }
}
