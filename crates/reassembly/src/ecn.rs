//! ECN of a datagram whose fragments have different codepoints (RFC 3168 §5.3).

use base::DropReason;
use wire::Ecn;

/// Codepoints of the fragments so far.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Seen(u8);

impl Seen {
    /// Adds the codepoint of a fragment.
    pub(crate) fn add(&mut self, ecn: Ecn) {
        self.0 |= 1 << ecn as u8;
    }

    /// TOS or traffic class of the datagram, whose first fragment has `tos`: a congestion mark on one fragment marks
    /// the datagram (Linux's `ip_frag_ecn_table`).
    ///
    /// # Errors
    /// [`DropReason::FragmentEcn`] if only some fragments are not ECN-capable: a codepoint was changed on the way.
    pub(crate) fn join(self, tos: u8) -> Result<u8, DropReason> {
        const NOT_ECT: u8 = 1 << Ecn::NotEct as u8;
        const CE: u8 = 1 << Ecn::Ce as u8;
        match self.0 {
            seen if seen & NOT_ECT != 0 && seen != NOT_ECT => Err(DropReason::FragmentEcn),
            seen if seen & CE != 0 => Ok(Ecn::Ce.in_tos(tos)),
            _ => Ok(tos),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_sixteen_combinations_are_as_linux_has_them() {
        // Result for a first fragment with ECT(1), by the set of codepoints seen: CE ECT(0) ECT(1) Not-ECT from the
        // highest bit.
        let cases = [
            (0b0000, Ok(0xb9)),
            (0b0001, Ok(0xb9)),
            (0b0010, Ok(0xb9)),
            (0b0011, Err(())),
            (0b0100, Ok(0xb9)),
            (0b0101, Err(())),
            (0b0110, Ok(0xb9)),
            (0b0111, Err(())),
            (0b1000, Ok(0xbb)),
            (0b1001, Err(())),
            (0b1010, Ok(0xbb)),
            (0b1011, Err(())),
            (0b1100, Ok(0xbb)),
            (0b1101, Err(())),
            (0b1110, Ok(0xbb)),
            (0b1111, Err(())),
        ];
        for (set, want) in cases {
            let mut seen = Seen::default();
            for (bit, ecn) in [(0, Ecn::NotEct), (1, Ecn::Ect1), (2, Ecn::Ect0), (3, Ecn::Ce)] {
                if set >> bit & 1 == 1 {
                    seen.add(ecn);
                }
            }
            assert_eq!(seen.join(0xb9), want.map_err(|()| DropReason::FragmentEcn), "{set:#06b}");
        }
    }
}
