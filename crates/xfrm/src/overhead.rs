//! Maximum length of an inner packet (Linux `xfrm_state_mtu` and `esp4`, `esp6` beneath it).

use wire::Version;
use wire::esp::{EspHeader, TRAILER_LEN};
use wire::udp;

use crate::algorithm::Algorithm;
use crate::mode::Mode;
use crate::sa::SaConfig;
use crate::table::Enc;

/// Bytes that an SA adds to a packet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Overhead {
    /// Tunnel or transport.
    pub mode: Mode,
    /// The family of the outer header.
    pub outer: Version,
    /// Whether there is a UDP header around ESP.
    pub udp: bool,
    /// Bytes of initialisation vector in each packet.
    pub iv_len: usize,
    /// Bytes of integrity check value in each packet.
    pub icv_len: usize,
    /// Alignment of the encrypted bytes, at least 4.
    pub align: usize,
}

impl Overhead {
    /// Bytes that an SA adds.
    pub fn of(sa: &SaConfig) -> Self {
        let (iv_len, align) = match &sa.algorithm {
            Algorithm::Aead { .. } | Algorithm::Separate { enc: Enc::CtrAes, .. } => (8, 4),
            Algorithm::Separate { enc: Enc::CbcAes, .. } => (16, 16),
            Algorithm::Separate { enc: Enc::Null, .. } => (0, 4),
        };
        let (mode, udp) = (sa.mode, sa.encap.is_some());
        let icv_len = usize::from(sa.algorithm.icv_bits() / 8);
        Self { mode, outer: Version::of_addr(sa.dst), udp, iv_len, icv_len, align }
    }

    /// The largest inner packet, in bytes with its IP header, that leaves as at most `mtu` bytes. 0 when none does.
    pub const fn inner_mtu(&self, mtu: usize) -> usize {
        let outer = self.outer.header_len();
        // In transport mode the packet keeps its own IP header, which is outside the encrypted bytes.
        let (tunnel, own) = match self.mode {
            Mode::Tunnel => (outer, 0),
            Mode::Transport => (0, outer),
        };
        let encap = if self.udp { udp::UdpHeader::LEN } else { 0 };
        let fixed = EspHeader::LEN + self.iv_len + tunnel + encap + self.icv_len + own;
        match mtu.checked_sub(fixed) {
            Some(text) if text >= self.align => text - text % self.align + own - TRAILER_LEN,
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Mode::{Transport, Tunnel};
    use Version::{V4, V6};

    #[test]
    fn inner_mtus_at_1500_are_those_of_linux() {
        // (mode, outer, udp, iv, icv, align): AES-GCM has an IV of 8, CBC of 16 with a block of 16; SHA-1 cuts to 12.
        let cases = [
            ((Transport, V4, false, 8, 16, 4), 1466),
            ((Transport, V6, false, 8, 16, 4), 1466),
            ((Tunnel, V4, false, 8, 16, 4), 1446),
            ((Tunnel, V6, false, 8, 16, 4), 1426),
            ((Transport, V4, false, 8, 12, 4), 1470),
            ((Tunnel, V4, true, 8, 16, 4), 1438),
            ((Tunnel, V4, false, 16, 12, 16), 1438),
            ((Tunnel, V6, false, 16, 12, 16), 1422),
            ((Transport, V4, false, 16, 12, 16), 1458),
            ((Transport, V6, false, 16, 12, 16), 1462),
            ((Tunnel, V4, false, 0, 12, 4), 1458),
        ];
        for ((mode, outer, udp, iv_len, icv_len, align), want) in cases {
            let overhead = Overhead { mode, outer, udp, iv_len, icv_len, align };
            assert_eq!(overhead.inner_mtu(1500), want, "{overhead:?}");
        }
    }

    #[test]
    fn a_packet_of_the_inner_mtu_fits_and_one_byte_more_does_not() {
        for mode in [Transport, Tunnel] {
            for outer in [V4, V6] {
                for (udp, mtu, align) in [(false, 1500, 4), (true, 1500, 16), (true, 1281, 4), (false, 9000, 8)] {
                    let overhead = Overhead { mode, outer, udp, iv_len: 8, icv_len: 16, align };
                    let outside = |inner: usize| {
                        let own = if mode == Transport { outer.header_len() } else { 0 };
                        let text = inner - own;
                        let sealed = 8 + 8 + text + wire::esp::trailer_len(text, align) + 16;
                        outer.header_len() + if udp { 8 } else { 0 } + sealed
                    };
                    let inner = overhead.inner_mtu(mtu);
                    assert!(outside(inner) <= mtu && outside(inner + 1) > mtu, "{overhead:?} at {mtu}: {inner}");
                }
            }
        }
    }

    #[test]
    fn a_link_too_small_for_the_overhead_carries_nothing() {
        let overhead = Overhead { mode: Tunnel, outer: V6, udp: true, iv_len: 8, icv_len: 16, align: 4 };
        assert_eq!([0, 80, 83, 84].map(|mtu| overhead.inner_mtu(mtu)), [0, 0, 0, 2]);
        let overhead = Overhead { mode: Transport, udp: false, ..overhead };
        assert_eq!([0, 72, 75, 76].map(|mtu| overhead.inner_mtu(mtu)), [0, 0, 0, 42]);
    }
}
