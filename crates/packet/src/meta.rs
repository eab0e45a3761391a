//! Metadata that travels with a packet's bytes.

use arrayvec::ArrayVec;
use base::{Domain, LinkId, Origin, SaId};

/// Metadata of a packet.
#[derive(Clone, Debug, Default)]
pub struct Meta {
    /// Place where it entered this node.
    pub origin: PackedOrigin,
    /// Link-layer destination of the frame that it came in.
    pub pkt_type: PktType,
    /// State of its transport checksum.
    pub csum: Csum,
    /// Whether it is to be cut, or has been.
    pub cut: Cut,
    /// The tag control information of an 802.1Q tag that is not in the bytes (IEEE 802.1Q §9.6).
    pub vlan: Option<u16>,
    /// Mark for policies and SAs (Linux `skb->mark`).
    pub mark: u32,
    /// The SAs that protected it on its way in, outermost first.
    pub sec_path: SecPath,
    /// Offload of its ESP to a device.
    pub esp: Option<Esp>,
    /// Number under which the packet is traced; 0 if it is not.
    pub trace: u16,
    /// Whether a socket of the host side has sent it as it is.
    pub of_socket: bool,
}

/// An [`Origin`] in four bytes; by default that of a packet of this node, outside all VRFs.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct PackedOrigin(u32);

/// Link-layer destination of a received frame (Linux `skb->pkt_type`). What came to a group goes no further than this node,
/// and is answered by no error (RFC 1122 §3.2.2, RFC 1812 §5.3.4).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum PktType {
    /// This station alone, or a link without stations (`PACKET_HOST`).
    #[default]
    Host,
    /// A group or every station (`PACKET_MULTICAST`, `PACKET_BROADCAST`).
    Group,
}

/// Offload of a packet's ESP to a device, requested or done (Linux `struct xfrm_offload`).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Esp {
    /// It is laid out as ESP and in clear. The device that its SA is on seals it: no other device may send it so.
    Seal {
        /// The SA.
        sa: SaId,
        /// The upper half of its sequence number. What its initialisation vector is made from is where that goes.
        high: u32,
    },
    /// The device that this SA is on puts it into ESP, fat or not: no other device may send it so.
    Protect(SaId),
    /// The device it came by has looked into its ESP.
    Opened {
        /// By which SA.
        sa: SaId,
        /// With what success.
        status: EspStatus,
    },
}

/// Status of a packet that a device was to decrypt (Linux `CRYPTO_*` of `xfrm_offload.status`).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum EspStatus {
    /// The ICV is right, and the packet is decrypted where it lay.
    Success,
    /// The ICV is wrong (`CRYPTO_TUNNEL_ESP_AUTH_FAILED`, `CRYPTO_TRANSPORT_ESP_AUTH_FAILED`).
    AuthFailed,
    /// It is not of the SA's protocol (`CRYPTO_INVALID_PROTOCOL`).
    BadProtocol,
    /// It is malformed (`CRYPTO_INVALID_PACKET_SYNTAX`).
    BadSyntax,
    /// Anything else (`CRYPTO_GENERIC_ERROR`).
    Failed,
}

/// The SAs that a packet came through, outermost first. Linux accepts six at most (`XFRM_MAX_DEPTH`).
pub type SecPath = ArrayVec<SaId, 6>;

/// State of a packet's transport checksum. Linux's `ip_summed`.
///
/// The variant takes four bytes, since it holds the niche of an `Option` of a packet: a niche of one byte would split the move of
/// a packet into overlapping stores, for which a processor waits.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[repr(u32)]
pub enum Csum {
    /// Nothing is known: the receiver verifies the checksum.
    #[default]
    None,
    /// A device or another trusted party has verified it.
    Unnecessary,
    /// The sum of all data bytes, folded but not inverted, counted from the first one.
    Complete(u16),
    /// Still to be made: the sum from `start` to the end goes to `start + offset`, where the pseudo-header's sum is.
    /// `start` counts from the first data byte.
    Partial {
        /// Start of the transport header.
        start: u16,
        /// Offset of the checksum field in it.
        offset: u16,
    },
}

/// A packet is whole, or fat (still to be cut to wire size), or several in one buffer, or a fragment; never two of these.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Cut {
    /// An ordinary packet.
    #[default]
    Whole,
    /// Still to be cut into segments, at the transport header where a [partial](Csum::Partial) checksum starts: right behind the
    /// IP headers, or inside a tunnel.
    Gso(Gso),
    /// Cut already: whole packets in one buffer, for a device that takes them so.
    Frames(Frames),
    /// One fragment of a datagram (RFC 791 §3.2, RFC 8200 §4.5), or a whole one to be fragmented by a device that does it.
    Fragment,
}

/// Segmentation of a fat packet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Gso {
    /// Kind of headers in front of each segment.
    pub kind: GsoKind,
    /// Payload bytes of each segment but the last, which may be shorter; never 0. Linux's `gso_size`.
    pub size: u16,
    /// Number of segments. Linux's `gso_segs`.
    pub segs: u16,
    /// TCP's CWR flag is set and belongs to the first segment alone (RFC 3168 §6.1.2).
    pub ecn: bool,
    /// Every segment has the same IPv4 identification, as they came (`SKB_GSO_TCP_FIXEDID`).
    pub fixed_id: bool,
}

/// The protocol that a fat packet is cut by.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum GsoKind {
    /// TCP over IPv4.
    TcpV4,
    /// TCP over IPv6.
    TcpV6,
    /// UDP over either, each segment a datagram of its own (`SKB_GSO_UDP_L4`).
    Udp,
}

impl PackedOrigin {
    /// The origin.
    #[inline]
    #[must_use]
    pub const fn get(self) -> Origin {
        let number = self.0 >> 1;
        if self.0 & 1 == 1 {
            Origin::Port(LinkId(number))
        } else if number == 0 {
            Origin::NODE
        } else {
            Origin::Local(Domain::vrf(LinkId(number)))
        }
    }

    /// The port that received the packet.
    #[inline]
    #[must_use]
    pub const fn port(self) -> Option<LinkId> {
        self.get().port()
    }

    /// Device that stands for the origin, as [`Origin::device`].
    #[inline]
    #[must_use]
    pub const fn device(self) -> LinkId {
        match self.0 >> 1 {
            0 => LinkId::LOOPBACK,
            number => LinkId(number),
        }
    }

    /// Tells whether this node made the packet.
    #[inline]
    #[must_use]
    pub const fn is_local(self) -> bool {
        self.0 & 1 == 0
    }
}

impl From<Origin> for PackedOrigin {
    /// # Panics
    /// For a link whose number takes 32 bits, of which a node has none.
    #[inline]
    fn from(origin: Origin) -> Self {
        let (number, is_port) = match origin {
            Origin::Port(LinkId(number)) => (number, 1),
            Origin::Local(domain) => (domain.number(), 0),
        };
        assert!(number >> 31 == 0, "{origin:?}");
        Self(number << 1 | is_port)
    }
}

impl Meta {
    /// Tells whether another packet came the same way: by the same link, to stations of the same kind, with the same tag,
    /// through the same SAs.
    #[inline]
    pub fn came_like(&self, other: &Self) -> bool {
        self.origin == other.origin
            && self.pkt_type == other.pkt_type
            && self.vlan == other.vlan
            && is_same_path(&self.sec_path, &other.sec_path)
    }

    /// Tells whether it came through the SAs that are `outside`, and one more.
    #[inline]
    pub fn came_through(&self, outside: &SecPath) -> bool {
        self.sec_path.len() == outside.len() + 1 && is_same_path(&self.sec_path[..outside.len()], outside)
    }
}

/// Compares SAs one by one: there are few, and a call to compare memory costs more.
#[inline]
fn is_same_path(one: &[SaId], other: &[SaId]) -> bool {
    one.len() == other.len() && one.iter().zip(other).all(|(one, other)| one == other)
}

impl Csum {
    /// Keeps it true when bytes that are not summed come or go at the back.
    pub(crate) fn data_changed(&mut self) {
        if let Self::Complete(_) = self {
            *self = Self::None;
        }
    }
}

impl Cut {
    /// Segmentation, if it is fat.
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

    /// Number of packets that it stands for, for counters.
    pub fn packets(&self) -> u64 {
        match self {
            Self::Frames(frames) => frames.count.into(),
            Self::Whole | Self::Gso(_) | Self::Fragment => 1,
        }
    }
}

/// Packets with nothing left to be done, which lie in one head. Between them is room for a link's header: it counts as
/// data of the packet that they are together, and belongs to none of them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Frames {
    /// Bytes of each but the last, which may be shorter; never 0.
    pub size: u16,
    /// From the first byte of one to the first byte of the next; at least `size`.
    pub stride: u16,
    /// Number of packets; never 0.
    pub count: u16,
}

impl Frames {
    /// Bytes of room in front of each but the first.
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
            Origin::Port(LinkId(1)),
            Origin::Port(LinkId(u32::MAX >> 1)),
            Origin::Local(Domain::vrf(LinkId(7))),
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
