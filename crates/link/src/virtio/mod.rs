//! The virtio-net header (virtio 1.2 §5.1.6), converted to [`Meta`](packet::Meta) and back.
//!
//! The header of a received frame comes from its sender, a guest for example, and [`decode()`] trusts none of it. A
//! checksum is *written* at the offset in the header, and could change the frame's destination after the forwarding
//! decision. So only the checksum of TCP or UDP right behind the IP header stays partial; any other checksum is
//! completed before the frame is parsed. Segments are cut at `csum_start` only if the frame's own headers lead there.

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
/// `VIRTIO_NET_HDR_GSO_ECN`, a flag of the TCP types.
pub(crate) const GSO_ECN: u8 = 0x80;

/// `struct virtio_net_hdr` in the byte order of this machine, as TUN and packet sockets use it.
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
    /// Start of the summed bytes, from the frame's first byte.
    pub csum_start: u16,
    /// Offset of the checksum field from `csum_start`.
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

    /// Reads a header of a virtio device, which is little-endian on any machine (virtio 1.2 §1.4).
    pub fn from_le_bytes(bytes: [u8; HEADER_LEN]) -> Self {
        Self::from_bytes(bytes).swapped_if_big()
    }

    /// Writes a little-endian header for a virtio device.
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

/// Metadata decoded from a received frame's header.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Decoded {
    /// State of the checksum.
    pub csum: Csum,
    /// Whether the frame is fat, with its segmentation.
    pub cut: Cut,
    /// Offset and bytes to write that turn a complete checksum into the partial one of `csum`. Set for a fat frame that
    /// arrived with a complete checksum, as from a card with hardware GRO.
    pub seed: Option<(usize, [u8; 2])>,
    /// Offset of the IP header (the frame's end if there is none), if the checksum is not that of TCP or UDP right
    /// behind the IP header: such a checksum is completed before the frame is parsed.
    pub complete: Option<usize>,
}

impl Decoded {
    /// Applies the metadata to a just received packet, whose pages are exclusive.
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
            // The packet's own transport checksum is unknown.
            packet.meta.csum = Csum::None;
        }
        Ok(())
    }
}

/// Outermost header of a frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Framing {
    /// An Ethernet header.
    Ethernet,
    /// An IP header.
    Ip,
}
