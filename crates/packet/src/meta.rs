//! Metadata that travels with a packet's bytes.

use arrayvec::ArrayVec;
use base::{Domain, Origin, PortId, SaId};

/// Metadata of a packet.
#[derive(Clone, Debug, Default)]
pub struct Meta {
    /// Origin of the packet.
    pub origin: PackedOrigin,
    /// Kind of link-layer destination of the packet's frame.
    pub pkt_type: PktType,
    /// State of the packet's transport checksum.
    pub csum: Csum,
    /// Whether the packet is fat, a fragment, or several packets.
    pub cut: Cut,
    /// Tag control information of an 802.1Q tag that was removed from the bytes (IEEE 802.1Q §9.6).
    pub vlan: Option<u16>,
    /// Mark for policies and SAs (Linux `skb->mark`).
    pub mark: u32,
    /// The SAs that protected the packet on reception, outermost first.
    pub sec_path: SecPath,
    /// State of the packet's ESP offload to a device.
    pub esp: Option<Esp>,
    /// Number of the packet's trace; 0 if the packet is not traced.
    pub trace: u16,
    /// Maker of the packet as it is.
    pub maker: Maker,
}

/// Maker of a packet: one that is changed since is of no maker.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Maker {
    /// The network, a stage of this node, or not known.
    #[default]
    Other,
    /// A socket of the host side.
    Socket,
    /// An SA of this node, which has sealed the packet, or keeps its NAT mapping alive by it.
    Sa,
}

/// An [`Origin`] in four bytes; by default the origin of this node's packets, outside all VRFs.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct PackedOrigin(u32);

/// Link-layer destination of a received frame (Linux `skb->pkt_type`). A packet to a group is not forwarded and causes
/// no error message (RFC 1122 §3.2.2, RFC 1812 §5.3.4).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum PktType {
    /// This station alone, or a link without stations (`PACKET_HOST`).
    #[default]
    Host,
    /// A group or every station (`PACKET_MULTICAST`, `PACKET_BROADCAST`).
    Group,
    /// This node, in a message that the link itself has made for it: no packet of the network (`PACKET_LOOPBACK`).
    Loopback,
}

/// Offload of a packet's ESP to a device, requested or done (Linux `struct xfrm_offload`).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Esp {
    /// The packet is laid out as ESP, in clear. The SA's device encrypts it; no other device may send the packet in
    /// this state.
    Seal {
        /// The SA.
        sa: SaId,
        /// Upper half of the sequence number. The field of the initialisation vector holds the vector's seed.
        high: u32,
    },
    /// The device of this SA encapsulates the packet, fat or not, in ESP; no other device may send the packet in this
    /// state.
    Protect(SaId),
    /// The receiving device has processed the packet's ESP.
    Opened {
        /// SA that the device used.
        sa: SaId,
        /// Result.
        status: EspStatus,
    },
}

/// Result of decryption by a device (Linux `CRYPTO_*` of `xfrm_offload.status`).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum EspStatus {
    /// The ICV is right, and the packet was decrypted in place.
    Success,
    /// The ICV is wrong (`CRYPTO_TUNNEL_ESP_AUTH_FAILED`, `CRYPTO_TRANSPORT_ESP_AUTH_FAILED`).
    AuthFailed,
    /// The protocol is not the SA's (`CRYPTO_INVALID_PROTOCOL`).
    BadProtocol,
    /// The packet is malformed (`CRYPTO_INVALID_PACKET_SYNTAX`).
    BadSyntax,
    /// Any other error (`CRYPTO_GENERIC_ERROR`).
    Failed,
}

/// The SAs that a packet passed, outermost first. At most six, as in Linux (`XFRM_MAX_DEPTH`).
pub type SecPath = ArrayVec<SaId, 6>;

/// State of a packet's transport checksum. Linux's `ip_summed`.
///
/// The variant takes four bytes, since it provides the niche for an `Option` of a packet: a niche of one byte would
/// split the move of a packet into overlapping stores, which would stall a later load.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[repr(u32)]
pub enum Csum {
    /// Unknown: the receiver verifies the checksum.
    #[default]
    None,
    /// A device or another trusted party has verified it.
    Unnecessary,
    /// Sum of all data bytes from the first one, folded but not inverted.
    Complete(u16),
    /// To be completed: the sum from `start` to the end goes to `start + offset`, which holds the pseudo-header's sum
    /// until then. `start` counts from the first data byte.
    Partial {
        /// Start of the transport header.
        start: u16,
        /// Offset of the checksum field in the transport header.
        offset: u16,
    },
}

/// Division of the data: a single packet, a fat packet (to be segmented), several packets in one buffer, or a fragment;
/// never a combination.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Cut {
    /// An ordinary packet.
    #[default]
    Whole,
    /// Fat packet, to be segmented at the transport header where a [partial](Csum::Partial) checksum starts: directly
    /// behind the IP headers, or inside a tunnel.
    Gso(Gso),
    /// Complete packets in one buffer, for a device that supports this form.
    Frames(Frames),
    /// One fragment of a datagram (RFC 791 §3.2, RFC 8200 §4.5), or a complete datagram that its device fragments.
    Fragment,
}

/// Segmentation of a fat packet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Gso {
    /// Kind of the headers of each segment.
    pub kind: GsoKind,
    /// Payload bytes of each segment except the last, which may be shorter; never 0. Linux's `gso_size`.
    pub size: u16,
    /// Number of segments. Linux's `gso_segs`.
    pub segs: u16,
    /// TCP's CWR flag is set, for the first segment only (RFC 3168 §6.1.2).
    pub ecn: bool,
    /// Every segment has the same IPv4 identification, as on reception (`SKB_GSO_TCP_FIXEDID`).
    pub fixed_id: bool,
}

/// Protocol by which a fat packet is segmented.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum GsoKind {
    /// TCP over IPv4.
    TcpV4,
    /// TCP over IPv6.
    TcpV6,
    /// UDP over IPv4 or IPv6, each segment a separate datagram (`SKB_GSO_UDP_L4`).
    Udp,
}

impl PackedOrigin {
    /// The origin.
    #[inline]
    #[must_use]
    pub const fn get(self) -> Origin {
        let number = self.0 >> 1;
        if self.0 & 1 == 1 {
            Origin::Port(PortId(number))
        } else if number == 0 {
            Origin::NODE
        } else {
            Origin::Local(Domain::vrf(PortId(number)))
        }
    }

    /// The port that received the packet.
    #[inline]
    #[must_use]
    pub const fn port(self) -> Option<PortId> {
        self.get().port()
    }

    /// Device that stands for the origin, as [`Origin::device`].
    #[inline]
    #[must_use]
    pub const fn device(self) -> PortId {
        match self.0 >> 1 {
            0 => PortId::LOOPBACK,
            number => PortId(number),
        }
    }

    /// Tells whether this node created the packet.
    #[inline]
    #[must_use]
    pub const fn is_local(self) -> bool {
        self.0 & 1 == 0
    }
}

impl From<Origin> for PackedOrigin {
    /// # Panics
    /// For a link number of 32 bits, which links of a node never have.
    #[inline]
    fn from(origin: Origin) -> Self {
        let (number, is_port) = match origin {
            Origin::Port(PortId(number)) => (number, 1),
            Origin::Local(domain) => (domain.number(), 0),
        };
        assert!(number >> 31 == 0, "{origin:?}");
        Self(number << 1 | is_port)
    }
}

impl Meta {
    /// Tells whether another packet has the same origin: the same link, kind of destination, tag, mark and SAs.
    #[inline]
    pub fn came_like(&self, other: &Self) -> bool {
        self.origin == other.origin
            && self.pkt_type == other.pkt_type
            && self.vlan == other.vlan
            && self.mark == other.mark
            && is_same_path(&self.sec_path, &other.sec_path)
    }

    /// Tells whether the packet passed the SAs `outside`, and one more.
    #[inline]
    pub fn came_through(&self, outside: &SecPath) -> bool {
        self.sec_path.len() == outside.len() + 1 && is_same_path(&self.sec_path[..outside.len()], outside)
    }
}

/// Compares SAs one by one: paths are short, and a call of `memcmp` costs more.
#[inline]
fn is_same_path(one: &[SaId], other: &[SaId]) -> bool {
    one.len() == other.len() && one.iter().zip(other).all(|(one, other)| one == other)
}

impl Csum {
    /// Updates the checksum state after a change of unsummed bytes at the back.
    pub(crate) fn data_changed(&mut self) {
        if let Self::Complete(_) = self {
            *self = Self::None;
        }
    }
}

impl Cut {
    /// Segmentation of a fat packet.
    pub fn gso(&self) -> Option<&Gso> {
        match self {
            Self::Gso(gso) => Some(gso),
            Self::Whole | Self::Frames(_) | Self::Fragment => None,
        }
    }

    /// Number of packets on the wire.
    pub fn segs(&self) -> u64 {
        match self {
            Self::Gso(gso) => u64::from(gso.segs.max(1)),
            _ => self.packets(),
        }
    }

    /// Number of wire packets, for counters.
    pub fn packets(&self) -> u64 {
        match self {
            Self::Frames(frames) => frames.count.into(),
            Self::Whole | Self::Gso(_) | Self::Fragment => 1,
        }
    }
}

/// Finished packets in one head. The room between the packets, for a link's header, counts as data of the complete
/// buffer, and belongs to none of the packets.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Frames {
    /// Bytes of each packet except the last, which may be shorter; never 0.
    pub size: u16,
    /// Distance from the first byte of a packet to the first byte of the next; at least `size`.
    pub stride: u16,
    /// Number of packets; never 0.
    pub count: u16,
}

impl Frames {
    /// Bytes of room in front of each packet except the first.
    pub(crate) const fn room(&self) -> usize {
        (self.stride - self.size) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origin_packed_is_the_same_unpacked() {
        let origins = [
            Origin::NODE,
            Origin::Port(PortId(1)),
            Origin::Port(PortId(u32::MAX >> 1)),
            Origin::Local(Domain::vrf(PortId(7))),
        ];
        for origin in origins {
            let packed = PackedOrigin::from(origin);
            assert_eq!(packed.get(), origin);
            assert_eq!((packed.port(), packed.is_local()), (origin.port(), origin.is_local()), "{origin:?}");
            assert_eq!(packed.device(), origin.device(), "{origin:?}");
        }
        assert_eq!(PackedOrigin::default().get(), Origin::NODE);
    }
}
