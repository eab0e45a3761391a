//! Pattern of one flow's headers: the bits that are equal in all its packets.

use crate::{Prediction, Version, ipv4, ipv6};

/// Maximum length of compared headers: IPv6 and TCP with every option, and some extension headers.
const LONGEST: usize = 128;

/// Length of most headers.
const SHORT: usize = 64;

/// Number of bytes in a comparison step.
const CHUNK: usize = 8;

/// The headers of a flow's first packet, with a mask of the bits that are equal in all its packets.
#[derive(Clone, Debug)]
pub struct Pattern {
    len: usize,
    bytes: [u8; LONGEST],
    /// Mask of shared bits; zero behind the headers.
    stays: [u8; LONGEST],
    /// Prediction of the next packet, if any.
    pub next: Prediction,
}

impl Default for Pattern {
    /// A pattern that matches nothing.
    fn default() -> Self {
        Self { len: 0, bytes: [0; LONGEST], stays: [0; LONGEST], next: Prediction::default() }
    }
}

impl Pattern {
    /// Sets the pattern to these headers, with all bits in the mask. Headers shorter than 8 bytes or longer than 128
    /// give a pattern that matches nothing.
    pub fn set(&mut self, headers: &[u8]) -> &mut Self {
        self.len = 0;
        self.next.clear();
        if let Some(bytes) = self.bytes.get_mut(..headers.len())
            && headers.len() >= CHUNK
        {
            bytes.copy_from_slice(headers);
            self.stays = [0; LONGEST];
            self.stays[..headers.len()].fill(0xff);
            self.len = headers.len();
        }
        self
    }

    /// Removes `bits` from the mask, from offset `at` on.
    pub fn free(&mut self, at: usize, bits: &[u8]) -> &mut Self {
        self.stays.iter_mut().skip(at).zip(bits).for_each(|(stays, bits)| *stays &= !bits);
        self
    }

    /// Removes the fields that change from packet to packet from the mask, for the IP header at the front: the length,
    /// and IPv4's identification and checksum.
    pub fn free_ip(&mut self, version: Version) -> &mut Self {
        match version {
            Version::V4 => self.free(2, &[0xff; 4]).free(10, &[0xff; 2]),
            Version::V6 => self.free(4, &[0xff; 2]),
        }
    }

    /// Tells whether `packet` equals the pattern in the bits of the mask.
    #[inline]
    pub fn matches(&self, packet: &[u8]) -> bool {
        match packet.first_chunk::<SHORT>() {
            // Bytes behind the pattern are masked out, and a loop of constant length is unrolled.
            Some(theirs) if self.len.wrapping_sub(1) < SHORT => {
                let chunks = self.bytes.as_chunks().0.iter().zip(theirs.as_chunks().0).zip(self.stays.as_chunks().0);
                chunks.fold(0, |any, ((ours, theirs), stays)| any | differ(ours, theirs, stays)) == 0
            }
            _ => self.matches_any(packet),
        }
    }

    /// As [`matches`](Self::matches), for all lengths.
    fn matches_any(&self, packet: &[u8]) -> bool {
        let Self { len, bytes, stays, .. } = self;
        let (Some(ours), Some(theirs), Some(stays)) = (bytes.get(..*len), packet.get(..*len), stays.get(..*len)) else {
            return false;
        };
        // The last chunk ends with the headers, and may overlap the one before it.
        let (Some(our_last), Some(their_last), Some(last_stays)) =
            (ours.last_chunk(), theirs.last_chunk(), stays.last_chunk())
        else {
            return false;
        };
        let whole = ours.as_chunks().0.iter().zip(theirs.as_chunks().0).zip(stays.as_chunks().0);
        let last = differ(our_last, their_last, last_stays);
        whole.fold(last, |any, ((ours, theirs), stays)| any | differ(ours, theirs, stays)) == 0
    }

    /// Tells whether the fields outside of the mask are right in the IP header at the front of a packet of `len` bytes
    /// that [matches](Self::matches): the length, and in IPv4 the checksum, provided that the first packet's checksum
    /// was right.
    #[inline]
    pub fn is_right(&self, version: Version, packet: &[u8], len: usize) -> bool {
        /// The sum of the fields that change (RFC 1624 §2), in native byte order.
        fn varying(header: &ipv4::Ipv4Header) -> i32 {
            let word = |at: usize| i32::from(u16::from_ne_bytes([header.as_bytes()[at], header.as_bytes()[at + 1]]));
            word(2) + word(4) + word(10)
        }
        match version {
            Version::V4 => match (ipv4::Ipv4Header::ref_from(&self.bytes), ipv4::Ipv4Header::ref_from(packet)) {
                (Ok(ours), Ok(theirs)) => theirs.total_len() == len && (varying(theirs) - varying(ours)) % 0xffff == 0,
                _ => false,
            },
            Version::V6 => ipv6::Ipv6Header::ref_from(packet)
                .is_ok_and(|header| ipv6::Ipv6Header::LEN + header.payload_len() == len),
        }
    }
}

/// The shared bits that differ.
#[inline]
fn differ(ours: &[u8; CHUNK], theirs: &[u8; CHUNK], stays: &[u8; CHUNK]) -> u64 {
    (u64::from_ne_bytes(*ours) ^ u64::from_ne_bytes(*theirs)) & u64::from_ne_bytes(*stays)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checksum;

    fn pattern(headers: &[u8]) -> Pattern {
        let mut pattern = Pattern::default();
        pattern.set(headers);
        pattern
    }

    #[test]
    fn every_bit_that_stays_is_compared_and_no_other() {
        for len in 0..=LONGEST + 1 {
            let headers: Vec<u8> = (0..len).map(|at| (at * 7) as u8).collect();
            // Short packets and long ones are compared by different code.
            let packet = [&headers[..], &vec![1; if len % 2 == 0 { 3 } else { SHORT }]].concat();
            let mut pattern = pattern(&headers);
            pattern.free(3, &[0xff, 0x81]).free(len, &[0xff]);
            let fits = (CHUNK..=LONGEST).contains(&len);
            assert_eq!(pattern.matches(&packet), fits, "{len}");
            assert!(len == 0 || !pattern.matches(&headers[..len - 1]), "{len}");
            for bit in 0..8 * packet.len() {
                let mut other = packet.clone();
                other[bit / 8] ^= 1 << (bit % 8);
                let is_free = (24..32).contains(&bit) || [32, 39].contains(&bit) || bit / 8 >= len;
                assert_eq!(pattern.matches(&other), fits && is_free, "{len}, bit {bit}");
            }
        }
    }

    #[test]
    fn nothing_is_left_of_what_it_was_set_to_before() {
        let mut pattern = pattern(&[7; 100]);
        pattern.free(0, &[0xff; 100]).set(&[9; 20]);
        assert!(pattern.matches(&[9; 20]) && !pattern.matches(&[7; 100]));
        pattern.set(&[]);
        assert!(!pattern.matches(&[9; 20]) && !Pattern::default().matches(&[0; 200]));
    }

    #[test]
    fn length_and_checksum_have_to_be_right() {
        let ours = v4_header(60, 7);
        let mut pattern = pattern(&ours);
        pattern.free_ip(Version::V4);
        let fits = |header: &[u8], len| pattern.matches(header) && pattern.is_right(Version::V4, header, len);
        for (len, id) in [(60, 7), (60, 8), (1500, 7), (20, 0xffff), (0xffff, 0)] {
            let theirs = v4_header(len, id);
            assert!(fits(&theirs, len.into()), "{len}, {id}");
            assert!(!fits(&theirs, usize::from(len) + 1), "{len}, {id}");
            for bit in 0..8 * theirs.len() {
                let mut theirs = theirs;
                theirs[bit / 8] ^= 1 << (bit % 8);
                let total_len = usize::from(u16::from_be_bytes([theirs[2], theirs[3]]));
                assert!(!fits(&theirs, total_len), "{len}, {id}, bit {bit}");
            }
        }
        let v6: Vec<u8> = [0x60, 1, 2, 3, 0, 60].into_iter().chain(6..40).collect();
        let mut longer = v6.clone();
        longer[4..6].copy_from_slice(&1000_u16.to_be_bytes());
        let mut pattern = Pattern::default();
        pattern.set(&v6).free_ip(Version::V6);
        assert!(pattern.matches(&longer) && pattern.is_right(Version::V6, &longer, 1040));
        assert!(!pattern.is_right(Version::V6, &longer, 1000) && !pattern.matches(&longer[..39]));
    }

    /// Each of the three changing words counts, and both zeros of ones' complement are equal.
    #[test]
    fn checksums_are_right_as_over_the_whole_header() {
        let pattern = pattern(&v4_header(1500, 1));
        for id in (0..=u16::MAX).step_by(251) {
            for check in (0..=u16::MAX).step_by(257).chain([0xfffe]) {
                let mut theirs = v4_header(1500, id);
                theirs[10..12].copy_from_slice(&check.to_be_bytes());
                let want = checksum::sum(&theirs) == 0xffff;
                assert_eq!(pattern.is_right(Version::V4, &theirs, 1500), want, "{id:#x}, {check:#x}");
            }
        }
    }

    fn v4_header(len: u16, id: u16) -> [u8; 20] {
        let mut header = [0x45, 3, 0, 0, 0, 0, 0x40, 0, 64, 6, 0, 0, 10, 1, 0, 1, 10, 2, 0, 9];
        header[2..4].copy_from_slice(&len.to_be_bytes());
        header[4..6].copy_from_slice(&id.to_be_bytes());
        let check = checksum::finish(checksum::sum(&header));
        header[10..12].copy_from_slice(&check.to_be_bytes());
        header
    }
}
