//! Capture of the frames on a wire.

use packet::{Buf, Packet};
use wire::ip::Info;
use wire::{Protocol, udp};

use crate::Rng;

/// An event of a frame.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Seen {
    /// Number of the wire.
    pub wire: usize,
    /// Receiving end of the wire.
    pub end: usize,
    /// Number of the frame, unique on its wire.
    pub frame: u64,
    /// Fate of the frame.
    pub fate: Fate,
}

/// Fate of a frame: sent, and then lost or received, perhaps more than once.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Fate {
    /// The frame was sent, with these bytes.
    Sent(Vec<u8>),
    /// The frame was lost.
    Lost,
    /// The frame reached the other end.
    Arrived {
        /// Whether a bit of the frame was flipped.
        damaged: bool,
    },
}

/// A frame, whose IP header begins at `l3`, with a bit flipped behind its outer headers; `None` if there are no bytes
/// behind them.
pub(crate) fn flip(frame: &Packet, l3: usize, rng: &mut Rng) -> Option<Packet> {
    let mut bytes = frame.to_vec();
    let ip = bytes.get(l3..)?;
    let info = Info::parse(ip, ip.len()).ok()?;
    let start = l3 + info.header_len + if info.protocol == Protocol::UDP { udp::UdpHeader::LEN } else { 0 };
    let inside = bytes.get_mut(start..).filter(|inside| !inside.is_empty())?;
    let at = rng.below(inside.len());
    inside[at] ^= 1 << rng.below(8);
    let mut flipped = Packet::from_buf(Buf::foreign(bytes));
    flipped.meta = frame.meta.clone();
    Some(flipped)
}
