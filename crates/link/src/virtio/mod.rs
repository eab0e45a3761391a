//! The virtio-net header (virtio 1.2 §5.1.6): what it says of a frame, as [`Meta`](packet::Meta) and back.
//!
//! The header of a received frame comes from whoever sent it, a guest for example. [`decode`] trusts none of it. A checksum is
//! *written* where the header says, and could change the frame's destination after that was decided about. So it is left to
//! be completed later only where it is that of TCP or UDP right behind the IP header; anywhere else in the frame it is completed
//! before anything looks at the frame. Segments are cut at `csum_start` only if the frame's own headers lead there.

mod decode;
mod encode;

use base::DropReason;
use offload::checksum;
use packet::{Csum, Cut, Memory, Packet};

pub use decode::{BadHeader, decode};
pub use encode::encode;

/// Bytes of the header as TUN, TAP and packet sockets use it: without `num_buffers`.
pub const HEADER_LEN: usize = 10;

/// `VIRTIO_NET_HDR_F_NEEDS_CSUM`.
pub(crate) const NEEDS_CSUM: u8 = 1;
/// `VIRTIO_NET_HDR_F_DATA_VALID`.
pub(crate) const DATA_VALID: u8 = 2;

/// `VIRTIO_NET_HDR_GSO_NONE`.
pub(crate) const GSO_NONE: u8 = 0;
/// `VIRTIO_NET_HDR_GSO_TCPV4`.
pub(crate) const GSO_TCPV4: u8 = 1;
/// `VIRTIO_NET_HDR_GSO_TCPV6`.
pub(crate) const GSO_TCPV6: u8 = 4;
/// `VIRTIO_NET_HDR_GSO_UDP_L4`.
pub(crate) const GSO_UDP_L4: u8 = 5;
/// `VIRTIO_NET_HDR_GSO_ECN`, beside one of TCP's.
pub(crate) const GSO_ECN: u8 = 0x80;

/// `struct virtio_net_hdr`. In the byte order of this machine, as TUN and packet sockets have it.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Header {
    /// `VIRTIO_NET_HDR_F_*`.
    pub flags: u8,
    /// `VIRTIO_NET_HDR_GSO_*`.
    pub gso_type: u8,
    /// Bytes of all headers: a hint for the receiver's layout.
    pub hdr_len: u16,
    /// Payload bytes of each segment.
    pub gso_size: u16,
    /// Where the sum starts, from the frame's first byte.
    pub csum_start: u16,
    /// Where it goes, from there.
    pub csum_offset: u16,
}

impl Header {
    /// Reads a header.
    pub fn from_bytes(bytes: [u8; HEADER_LEN]) -> Self {
        let [flags, gso_type, a, b, c, d, e, f, g, h] = bytes;
        let word = |first, second| u16::from_ne_bytes([first, second]);
        Self {
            flags,
            gso_type,
            hdr_len: word(a, b),
            gso_size: word(c, d),
            csum_start: word(e, f),
            csum_offset: word(g, h),
        }
    }

    /// Reads a header of a device that is not of this machine's byte order but little-endian (virtio 1.2 §1.4).
    pub fn from_le_bytes(bytes: [u8; HEADER_LEN]) -> Self {
        Self::from_bytes(bytes).swapped_if_big()
    }

    /// Writes a header for such a device.
    pub fn to_le_bytes(self) -> [u8; HEADER_LEN] {
        self.swapped_if_big().to_bytes()
    }

    fn swapped_if_big(self) -> Self {
        Self {
            hdr_len: self.hdr_len.to_le(),
            gso_size: self.gso_size.to_le(),
            csum_start: self.csum_start.to_le(),
            csum_offset: self.csum_offset.to_le(),
            ..self
        }
    }

    /// Writes a header.
    pub fn to_bytes(self) -> [u8; HEADER_LEN] {
        let [a, b] = self.hdr_len.to_ne_bytes();
        let [c, d] = self.gso_size.to_ne_bytes();
        let [e, f] = self.csum_start.to_ne_bytes();
        let [g, h] = self.csum_offset.to_ne_bytes();
        [self.flags, self.gso_type, a, b, c, d, e, f, g, h]
    }
}

/// What a received frame's header came to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Decoded {
    /// What is known of the checksum.
    pub csum: Csum,
    /// Whether it is fat.
    pub cut: Cut,
    /// The frame is fat but its checksum field holds a finished sum, as a card leaves it that glued the segments
    /// itself. Writing these bytes at this offset makes it the partial one that `csum` says it is.
    pub seed: Option<(usize, [u8; 2])>,
    /// The checksum is not that of TCP or UDP right behind the IP header, which begins here (or nowhere, if that is the frame's
    /// end): it is completed before the frame is looked at.
    pub complete: Option<usize>,
}

impl Decoded {
    /// Notes it with a packet that was just received, in pages of its own.
    ///
    /// # Errors
    /// As [`checksum::complete`].
    pub(crate) fn apply(&self, mem: &Memory, packet: &mut Packet) -> Result<(), DropReason> {
        if let Some((at, seed)) = self.seed
            && let Some(field) = packet.head_mut().and_then(|head| head.get_mut(at..at + 2))
        {
            field.copy_from_slice(&seed);
        }
        packet.meta.csum = self.csum;
        packet.meta.cut = self.cut;
        if let Some(l3) = self.complete {
            checksum::complete(mem, packet, l3)?;
            // The packet's own transport checksum, if there is another, is as it came.
            packet.meta.csum = Csum::None;
        }
        Ok(())
    }
}

/// What a frame begins with.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Framing {
    /// An Ethernet header.
    Ethernet,
    /// An IP header.
    Ip,
}
