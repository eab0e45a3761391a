//! Forgeries by an attacker on the path: copies of ESP packets, changed without a key.

use base::DropReason;
use packet::Packet;
use wire::{esp, ipv4};

/// Distance of a forgery's sequence number from its original's: beyond the numbers of the good flow.
const AHEAD: u32 = 100_000;

/// Bytes of ESP in a truncated forgery: too few for an ICV.
const SHORT: usize = 16;

/// A kind of forgery, made from a good packet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Forgery {
    /// SPI of no SA.
    UnknownSpi,
    /// A future sequence number, and a changed byte of ciphertext.
    WrongIcv,
    /// A copy of the packet itself.
    Replayed,
    /// A future sequence number, truncated.
    Truncated,
}

impl Forgery {
    pub(super) const ALL: [Self; 4] = [Self::UnknownSpi, Self::WrongIcv, Self::Replayed, Self::Truncated];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::UnknownSpi => "unknown-spi",
            Self::WrongIcv => "wrong-icv",
            Self::Replayed => "replayed",
            Self::Truncated => "truncated",
        }
    }

    /// Drop reason of the forgery.
    pub(super) const fn reason(self) -> DropReason {
        match self {
            Self::UnknownSpi => DropReason::EspNoState,
            Self::WrongIcv => DropReason::EspIcv,
            Self::Replayed => DropReason::EspReplay,
            Self::Truncated => DropReason::EspTruncated,
        }
    }

    /// Turns a packet of raw ESP over IPv4 into a forgery.
    pub(super) fn make(self, pkt: &mut Packet) {
        if self == Self::Truncated {
            pkt.trim(ipv4::Ipv4Header::LEN + SHORT);
        }
        let bytes = pkt.head_mut().expect("a page of its own");
        let (ip, esp) = bytes.split_at_mut(ipv4::Ipv4Header::LEN);
        let (spi, rest) = esp.split_at_mut(size_of::<u32>());
        let (seq, text) = rest.split_at_mut(esp::EspHeader::LEN - size_of::<u32>());
        if matches!(self, Self::WrongIcv | Self::Truncated) {
            let original = u32::from_be_bytes(*seq.first_chunk().expect("four bytes"));
            seq.copy_from_slice(&original.wrapping_add(AHEAD).to_be_bytes());
        }
        match self {
            Self::UnknownSpi => spi[0] ^= 0x80,
            Self::WrongIcv => text[text.len() / 2] ^= 1,
            Self::Replayed => {}
            Self::Truncated => {
                let header = ipv4::Ipv4Header::mut_from(ip).expect("an IPv4 header");
                header.set_total_len((ipv4::Ipv4Header::LEN + SHORT) as u16);
                header.fill_check();
            }
        }
    }
}
