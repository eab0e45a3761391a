//! Checksums and segmentation of TCP frames by the hypervisor, for receivers that have not negotiated these offloads.
//!
//! Independent of the adapter's code and of crate `offload`, so that tests check one against the other.

use wire::{Protocol, checksum, tcp};

/// Buffers for changed frames, kept for their storage.
#[derive(Debug, Default)]
pub(super) struct FrameStorage {
    /// A whole frame.
    pub(super) frame: Vec<u8>,
    /// A segment.
    pub(super) segment: Vec<u8>,
}

/// Header offsets of a TCP frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Tcp {
    l3: usize,
    l4: usize,
    /// Begin and end of the payload. Bytes behind it are padding.
    payload: usize,
    end: usize,
    pub(super) is_v4: bool,
}

impl Tcp {
    /// Maximum length of a frame's headers.
    pub(super) const HEADERS: usize = 14 + 4 + 60 + 60;

    /// Parses a frame of `len` bytes, whose first bytes are in `head`. `None` without TCP directly behind an IP header,
    /// or if the frame is truncated.
    pub(super) fn find(head: &[u8], len: usize) -> Option<Self> {
        let (ethertype, l3) = match u16::from_be_bytes(*head.get(12..)?.first_chunk()?) {
            0x8100 => (u16::from_be_bytes(*head.get(16..)?.first_chunk()?), 18),
            ethertype => (ethertype, 14),
        };
        let ip = head.get(l3..)?;
        let (l4, protocol, end, is_v4) = match ethertype {
            0x0800 => {
                let header_len = usize::from(ip.first()? & 0xf) * 4;
                let is_fragment = u16::from_be_bytes(*ip.get(6..)?.first_chunk()?) & 0x3fff != 0;
                let total = u16::from_be_bytes(*ip.get(2..)?.first_chunk()?);
                if ip[0] >> 4 != 4 || header_len < 20 || is_fragment {
                    return None;
                }
                (l3 + header_len, *ip.get(9)?, l3 + usize::from(total), true)
            }
            0x86dd => {
                let payload = u16::from_be_bytes(*ip.get(4..)?.first_chunk()?);
                (l3 + 40, *ip.get(6)?, l3 + 40 + usize::from(payload), false)
            }
            _ => return None,
        };
        let header_len = usize::from(head.get(l4 + 12)? >> 4) * 4;
        let payload = l4 + header_len;
        let is_whole = Protocol(protocol) == Protocol::TCP && header_len >= 20 && payload <= end && end <= len;
        (is_whole && payload <= head.len()).then_some(Self { l3, l4, payload, end, is_v4 })
    }

    /// Tells whether the IPv4 checksum field holds the mark of a fat frame in the old style, which the hypervisor does
    /// not change.
    pub(super) fn is_marked(&self, head: &[u8]) -> bool {
        self.is_v4 && head[self.l3 + 10..self.l3 + 12] == [0xff, 0xff]
    }

    /// Computes the TCP checksum of a frame.
    pub(super) fn complete(&self, frame: &mut [u8]) {
        let at = self.l4 + tcp::CHECK_AT;
        frame[at..at + 2].fill(0);
        let addresses = if self.is_v4 { self.l3 + 12..self.l3 + 20 } else { self.l3 + 8..self.l3 + 40 };
        let len = (self.end - self.l4) as u32;
        let pseudo = checksum::add(checksum::sum(&frame[addresses]), u32::from(Protocol::TCP.0) + len);
        let check = checksum::finish(checksum::add(pseudo, checksum::sum(&frame[self.l4..self.end])));
        frame[at..at + 2].copy_from_slice(&check.to_be_bytes());
    }

    /// Number of segments of at most `mss` bytes of payload.
    pub(super) fn segments(&self, mss: u16) -> usize {
        (self.end - self.payload).div_ceil(usize::from(mss).max(1)).max(1)
    }

    /// Writes segment `index` of a frame, with its checksums.
    pub(super) fn cut(&self, frame: &[u8], mss: u16, index: usize, segment: &mut Vec<u8>) {
        let from = self.payload + index * usize::from(mss);
        let to = (from + usize::from(mss)).min(self.end);
        let is_last = to == self.end;
        segment.clear();
        segment.extend_from_slice(&frame[..self.payload]);
        segment.extend_from_slice(&frame[from..to]);
        let l3 = self.l3;
        if self.is_v4 {
            let total = (segment.len() - l3) as u16;
            segment[l3 + 2..l3 + 4].copy_from_slice(&total.to_be_bytes());
            let id = u16::from_be_bytes([segment[l3 + 4], segment[l3 + 5]]).wrapping_add(index as u16);
            segment[l3 + 4..l3 + 6].copy_from_slice(&id.to_be_bytes());
            segment[l3 + 10..l3 + 12].fill(0);
            let check = checksum::finish(checksum::sum(&segment[l3..self.l4]));
            segment[l3 + 10..l3 + 12].copy_from_slice(&check.to_be_bytes());
        } else {
            let payload = (segment.len() - l3 - 40) as u16;
            segment[l3 + 4..l3 + 6].copy_from_slice(&payload.to_be_bytes());
        }
        let seq_at = self.l4 + tcp::SEQ_AT;
        let seq = segment[seq_at..].first_chunk().map_or(0, |seq| u32::from_be_bytes(*seq));
        let seq = seq.wrapping_add((from - self.payload) as u32);
        segment[seq_at..seq_at + 4].copy_from_slice(&seq.to_be_bytes());
        let flags = &mut segment[self.l4 + 13];
        if !is_last {
            *flags &= !0x09; // FIN, PSH
        }
        if index > 0 {
            *flags &= !0x80; // CWR
        }
        Self { end: segment.len(), ..*self }.complete(segment);
    }
}
