//! Header prediction (V. Jacobson): the most likely headers of a flow's next packet are those of the last one, advanced
//! by one step. A packet that matches needs no further checks.

use crate::ipv4;

const WINDOW: usize = Prediction::WINDOW;

/// Offsets of an IPv4 header's identification and checksum.
const ID_AT: usize = 4;
const CHECK_AT: usize = 10;

/// Window of bytes, aligned for vector loads.
#[derive(Clone, Copy, Debug)]
#[repr(align(16))]
struct Aligned([u8; WINDOW]);

/// Predicted headers of the next packet of a flow.
#[derive(Clone, Debug)]
pub struct Prediction {
    bytes: Aligned,
    /// Mask of the bits that are known and equal in every later packet; zero beyond the headers.
    known: Aligned,
    /// Length of the packet; 0 without a prediction.
    len: usize,
    number: RisingNumber,
    /// Step of IPv4's identification.
    id_step: u16,
    rising: Rising,
}

/// Fields that change from packet to packet, stored apart from the bytes that are compared together: a vector load that
/// spans recent stores would stall.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
struct Rising {
    number: u32,
    /// IPv4's identification and checksum, if the identification increases.
    id: u16,
    check: u16,
}

/// A 32-bit field that increases from packet to packet: the sequence number of TCP or ESP.
#[derive(Clone, Copy, Debug, Default)]
pub struct RisingNumber {
    /// Offset.
    pub at: usize,
    /// Step.
    pub step: u32,
}

impl Default for Prediction {
    /// A prediction that no packet matches.
    fn default() -> Self {
        Self {
            bytes: Aligned([0; WINDOW]),
            known: Aligned([0; WINDOW]),
            len: 0,
            number: RisingNumber::default(),
            id_step: 0,
            rising: Rising::default(),
        }
    }
}

impl Prediction {
    /// Number of compared bytes: the window has to include all headers, as it does for IPv6 with TCP timestamps.
    /// Shorter packets are not predicted.
    pub const WINDOW: usize = 80;

    /// Clears the prediction until the next [`set`](Self::set).
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// Predicts the packet after one of `len` bytes that begins with `front` and has `headers` bytes of valid headers.
    /// In the next packet `number` has increased by its step, and the identification of an IPv4 header at the front by
    /// `id_step` (0 for IPv6); the bits `ignored` from an offset on are unknown.
    pub fn set(
        &mut self,
        front: &[u8],
        headers: usize,
        len: usize,
        id_step: u16,
        number: RisingNumber,
        ignored: (usize, &[u8]),
    ) {
        self.clear();
        let (Some(front), 0..=WINDOW) = (front.first_chunk::<WINDOW>(), headers) else { return };
        (self.bytes, self.len, self.number, self.id_step) = (Aligned(*front), len, number, id_step);
        self.known.0 = std::array::from_fn(|at| if at < headers { 0xff } else { 0 });
        self.forget(ignored);
        self.forget((number.at, &[0xff; 4]));
        if id_step != 0 {
            self.forget((ID_AT, &[0xff; 2]));
            self.forget((CHECK_AT, &[0xff; 2]));
        }
        self.rising = self.rising_in(front);
        self.advance();
    }

    /// Removes these bits, from an offset on, from the comparison.
    fn forget(&mut self, (at, bits): (usize, &[u8])) {
        self.known.0.iter_mut().skip(at).zip(bits).for_each(|(known, bits)| *known &= !bits);
    }

    #[inline]
    fn rising_in(&self, front: &[u8; WINDOW]) -> Rising {
        let half = |at: usize| if self.id_step == 0 { 0 } else { u16::from_be_bytes([front[at], front[at + 1]]) };
        let number = front.get(self.number.at..).and_then(<[u8]>::first_chunk);
        let number = number.map_or(0, |&number| u32::from_be_bytes(number));
        Rising { number, id: half(ID_AT), check: half(CHECK_AT) }
    }

    /// Tells whether a packet of `len` bytes that begins with `front` is the predicted one.
    #[inline]
    pub fn is(&self, front: &[u8], len: usize) -> bool {
        let Some(theirs) = front.first_chunk::<WINDOW>() else { return false };
        // Compares the complete window, as its constant length is faster than a loop over the headers.
        let words = self.bytes.0.as_chunks().0.iter().zip(theirs.as_chunks().0).zip(self.known.0.as_chunks().0);
        let differs = words.fold(0, |any, ((ours, theirs), known)| {
            any | (u64::from_ne_bytes(*ours) ^ u64::from_ne_bytes(*theirs)) & u64::from_ne_bytes(*known)
        });
        differs == 0 && len == self.len && self.rising_in(theirs) == self.rising
    }

    /// Predicts the packet after the predicted one.
    #[inline]
    pub const fn advance(&mut self) {
        let Rising { number, id, check } = self.rising;
        let (id, check) = ipv4::raised_id(id, check, self.id_step);
        self.rising = Rising { number: number.wrapping_add(self.number.step), id, check };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checksum;

    const NUMBER: RisingNumber = RisingNumber { at: 24, step: 0x7000_0001 };

    /// An IPv4 packet of `len` bytes that contains a number.
    fn v4(len: usize, id: u16, number: u32) -> Vec<u8> {
        let mut packet: Vec<u8> = (0..len).map(|at| at as u8).collect();
        packet[..12].copy_from_slice(&[0x45, 3, 0, 0, 0, 0, 0x40, 0, 64, 6, 0, 0]);
        packet[2..4].copy_from_slice(&(len as u16).to_be_bytes());
        packet[4..6].copy_from_slice(&id.to_be_bytes());
        let check = checksum::finish(checksum::sum(&packet[..20]));
        packet[10..12].copy_from_slice(&check.to_be_bytes());
        packet[24..28].copy_from_slice(&number.to_be_bytes());
        packet
    }

    #[test]
    fn the_packets_of_a_flow_are_predicted_one_after_the_other() {
        for id_step in [0_u16, 1, 0x1234, 0xffff] {
            let mut prediction = Prediction::default();
            for n in 0..200_u16 {
                let packet = v4(100, id_step.wrapping_mul(n), NUMBER.step.wrapping_mul(n.into()));
                // Zero has two forms in ones' complement; a packet with the other form is checked in full.
                assert!(n == 0 || prediction.is(&packet, packet.len()) || packet[10..12] == [0, 0], "{id_step} {n}");
                match n {
                    0 => prediction.set(&packet, 28, packet.len(), id_step, NUMBER, (0, &[])),
                    _ if prediction.is(&packet, packet.len()) => prediction.advance(),
                    _ => prediction.set(&packet, 28, packet.len(), id_step, NUMBER, (0, &[])),
                }
            }
        }
        let v6 = |number: u32| {
            let mut packet: Vec<u8> = (0..120).collect();
            packet[..6].copy_from_slice(&[0x60, 0, 0, 0, 0, 80]);
            packet[24..28].copy_from_slice(&number.to_be_bytes());
            packet
        };
        let mut prediction = Prediction::default();
        prediction.set(&v6(1), 48, 120, 0, RisingNumber { step: 1, ..NUMBER }, (0, &[]));
        assert!(prediction.is(&v6(2), 120) && !prediction.is(&v6(2), 121) && !prediction.is(&v6(3), 120));
        // With TCP and its timestamps.
        prediction.set(&v6(1), 40 + 32, 120, 0, RisingNumber { step: 1, ..NUMBER }, (0, &[]));
        assert!(prediction.is(&v6(2), 120) && !prediction.is(&v6(3), 120));
    }

    #[test]
    fn prediction_with_any_other_difference_does_not_match() {
        let mut prediction = Prediction::default();
        prediction.set(&v4(90, 7, 5), 40, 90, 1, NUMBER, (30, &[0xff, 0x0f]));
        let next = v4(90, 8, 5 + NUMBER.step);
        assert!(prediction.is(&next, 90) && !prediction.is(&next, 89) && !prediction.is(&next[..79], 90));
        for bit in 0..8 * next.len() {
            let mut other = next.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            let is_ignored = (240..252).contains(&bit) || bit >= 320;
            assert_eq!(prediction.is(&other, 90), is_ignored, "bit {bit}");
        }
        prediction.clear();
        assert!(!prediction.is(&next, 90));
    }

    #[test]
    fn prediction_of_headers_that_do_not_fit_is_none() {
        let packet = v4(90, 7, 5);
        for (front, headers) in [(&packet[..79], 40), (&packet[..], 81)] {
            let mut prediction = Prediction::default();
            prediction.set(front, headers, 90, 0, RisingNumber::default(), (0, &[]));
            assert!(!prediction.is(&packet, 90), "{headers}");
        }
    }
}
