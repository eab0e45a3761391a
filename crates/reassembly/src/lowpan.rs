//! 6LoWPAN fragments (RFC 4944 §5.3, Linux `net/ieee802154/6lowpan/reassembly.c`).

use base::{DropReason, Instant};
use packet::{Csum, Memory, Packet};
use wire::Ecn;

use crate::contiguous::CopyPolicy;
use crate::fragment_meta::FragmentRange;
use crate::key::Key;
use crate::queue::Added;
use crate::reassembly::{End, Reassembly};
use crate::table::Table;
use crate::verdict::{Count, Verdict};

/// A station of a wireless personal area network (IEEE 802.15.4 §7.2.1).
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct LinkAddr {
    /// The network.
    pub pan: u16,
    /// The station in it.
    pub station: Station,
}

/// A station's address in its network.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Station {
    /// Given by the network.
    Short(u16),
    /// An address of the station's own, of 64 bits.
    Extended(u64),
}

/// Fields of the fragment header, and of the frame around it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LowpanInfo {
    /// Source.
    pub src: LinkAddr,
    /// Destination.
    pub dst: LinkAddr,
    /// Bytes of the datagram as it was before compression, at most 2047.
    pub size: u16,
    /// Tag of the datagram.
    pub tag: u16,
    /// Offset of the fragment in the datagram, in blocks of 8 bytes.
    pub offset: u8,
}

/// Datagrams that are taken: the IPv6 header must fit, and no IPv6 link needs to carry more.
const SIZES: std::ops::RangeInclusive<u16> = 40..=1280;

impl LinkAddr {
    /// All of it as a number that no other address has.
    pub(crate) fn to_bits(self) -> u128 {
        let (mode, station) = match self.station {
            Station::Short(addr) => (0, addr.into()),
            Station::Extended(addr) => (1, addr),
        };
        mode << 80 | u128::from(self.pan) << 64 | u128::from(station)
    }
}

impl LowpanInfo {
    /// Reads a fragment header. Returns what it says of a frame between these stations, and how many bytes it has: 4 in
    /// front of the first fragment, 5 in front of others. `None` for anything else.
    pub fn parse(src: LinkAddr, dst: LinkAddr, bytes: &[u8]) -> Option<(Self, usize)> {
        let &[high, low, tag_high, tag_low, ref rest @ ..] = bytes else { return None };
        let (offset, header_len) = match high >> 3 {
            0b11000 => (0, 4),
            0b11100 => (*rest.first()?, 5),
            _ => return None,
        };
        let size = u16::from_be_bytes([high & 7, low]);
        Some((Self { src, dst, size, tag: u16::from_be_bytes([tag_high, tag_low]), offset }, header_len))
    }

    /// Range of a fragment of `len` bytes.
    pub(crate) fn span(&self, len: usize) -> FragmentRange {
        let offset = usize::from(self.offset) * 8;
        let end = offset + len;
        let more = end != usize::from(self.size);
        FragmentRange { offset, end, more, header_len: 0, ecn: Ecn::NotEct, dont_fragment: false }
    }
}

impl Reassembly {
    /// Takes in a 6LoWPAN fragment: its bytes alone, as they were before compression, of which `info` says the rest, with
    /// the link it came in by in its `meta`. The first begins with the IPv6 header. Nothing is answered and nothing
    /// counted, and nothing joined for good.
    ///
    /// Pieces may come in any order; Linux, and [`Policy::Linux`](crate::Policy::Linux), drop what comes before the end of
    /// what is there. An overlap ends the datagram (RFC 4944 §5.3), where Linux drops the fragment alone.
    pub fn handle_lowpan(&mut self, now: Instant, mem: &Memory, mut pkt: Packet, info: &LowpanInfo) -> Verdict {
        let span = info.span(pkt.len());
        let reason = if !SIZES.contains(&info.size) {
            Some(DropReason::FragmentTooLong)
        } else if span.end > usize::from(info.size) {
            Some(DropReason::FragmentEnd)
        } else if pkt.is_empty() {
            Some(DropReason::FragmentEmpty)
        } else if span.more && !span.end.is_multiple_of(8) {
            Some(DropReason::FragmentLength)
        } else {
            None
        };
        if let Some(reason) = reason {
            return Verdict::Drop { reason, packets: 1 };
        }
        self.thin_out(mem, Table::Lowpan, &mut pkt);
        if !self.table(Table::Lowpan).admits(&pkt) {
            return Verdict::Drop { reason: DropReason::FragmentMemory, packets: 1 };
        }
        if let Csum::Partial { .. } = pkt.meta.csum {
            pkt.meta.csum = Csum::None;
        }
        let id = u32::from(info.size) << 16 | u32::from(info.tag);
        let key = Key::lowpan(pkt.meta.origin.port(), [info.src, info.dst].map(LinkAddr::to_bits), id);
        let how = CopyPolicy { joins: false, ..self.how(key.context()) };
        let cache = self.table(Table::Lowpan);
        let id = cache.find_or_open(now, key);
        if cache.wants_order() && span.offset < cache.queue(id).highest() {
            return Verdict::Drop { reason: DropReason::FragmentOverlap, packets: 1 };
        }
        let end = match cache.add(id, mem, pkt, (&span, None), how) {
            Ok(Added::Whole) => End::Whole,
            Ok(Added::Nearer | Added::Hardly) => End::Waits,
            Err(refused) => End::Refused(refused),
        };
        self.conclude(Table::Lowpan, id, end, 0, mem, how, Count(None))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_told_by_their_first_five_bits() {
        let src = LinkAddr { pan: 1, station: Station::Short(2) };
        let dst = LinkAddr { pan: 1, station: Station::Extended(3) };
        let info = |size, tag, offset| LowpanInfo { src, dst, size, tag, offset };
        let cases: [(&[u8], _); 9] = [
            (&[0b1100_0101, 0x00, 0x12, 0x34], Some((info(1280, 0x1234, 0), 4))),
            (&[0b1110_0111, 0xff, 0, 1, 255], Some((info(2047, 1, 255), 5))),
            (&[0b1110_0000, 40, 0, 1, 0, 9, 9], Some((info(40, 1, 0), 5))),
            (&[0b1110_0000, 40, 0, 1], None),
            (&[0b1100_0000, 40, 0], None),
            (&[], None),
            (&[0b0100_0001, 0, 0, 0, 0], None),
            (&[0b1101_0000, 0, 0, 0, 0], None),
            (&[0b1111_0000, 0, 0, 0, 0], None),
        ];
        for (bytes, want) in cases {
            assert_eq!(LowpanInfo::parse(src, dst, bytes), want, "{bytes:x?}");
        }
    }

    #[test]
    fn no_two_stations_have_the_same_number() {
        let short = |pan, addr| LinkAddr { pan, station: Station::Short(addr) }.to_bits();
        let long = |pan, addr| LinkAddr { pan, station: Station::Extended(addr) }.to_bits();
        let all = [short(0, 1), short(1, 1), short(1, 2), long(1, 1), long(1, 2), long(2, u64::MAX), long(3, 0)];
        for (at, one) in all.iter().enumerate() {
            assert!(!all[at + 1..].contains(one));
        }
    }
}
