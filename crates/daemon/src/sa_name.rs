//! Names of SAs in the file, and their checkpoints.

use std::net::{IpAddr, Ipv6Addr};

use netlink::xfrm::Numbers;

/// Name of an SA.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) struct SaName {
    pub(crate) dst: IpAddr,
    pub(crate) spi: u32,
    pub(crate) mark: xfrm::Mark,
}

impl SaName {
    const LEN: usize = 29;

    /// The name as bytes, as in the file.
    pub(crate) fn to_bytes(self) -> [u8; Self::LEN] {
        let (family, addr) = match self.dst {
            IpAddr::V4(addr) => (4, addr.to_ipv6_mapped()),
            IpAddr::V6(addr) => (6, addr),
        };
        let mut bytes = [0; Self::LEN];
        bytes[0] = family;
        bytes[1..17].copy_from_slice(&addr.octets());
        bytes[17..21].copy_from_slice(&self.spi.to_be_bytes());
        bytes[21..25].copy_from_slice(&self.mark.value.to_be_bytes());
        bytes[25..].copy_from_slice(&self.mark.mask.to_be_bytes());
        bytes
    }

    /// The name with those bytes.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::LEN] = bytes.try_into().ok()?;
        let word = |at: usize| bytes[at..].first_chunk().map_or(0, |word| u32::from_be_bytes(*word));
        let addr = Ipv6Addr::from(*bytes[1..].first_chunk::<16>()?);
        let dst = match bytes[0] {
            4 => addr.to_ipv4_mapped()?.into(),
            6 => addr.into(),
            _ => return None,
        };
        Some(Self { dst, spi: word(17), mark: xfrm::Mark { value: word(21), mask: word(25) } })
    }
}

/// Counters at which an SA continues.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Checkpoint {
    /// Upper bound of the sent numbers.
    pub(crate) oseq: u64,
    /// All numbers up to it count as received.
    pub(crate) seq: u64,
    /// Bytes and packets that the SA has processed.
    pub(crate) used: [u64; 2],
}

impl Checkpoint {
    /// The sequence numbers of an SA that continues at the checkpoint.
    pub(crate) const fn numbers(self) -> Numbers {
        Numbers { oseq: self.oseq, seq: self.seq, used: self.used }
    }
}
