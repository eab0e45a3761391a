//! Feature bits of virtio-net (virtio 1.2 §5.1.3, §6), and the corresponding offloads of a link.

use offload::{CsumOffload, Features};
use packet::{Csum, Packet};

use crate::offloads::{Offloads, TX_CSUM, TX_TSO4, TX_TSO6, TX_USO};
use crate::virtio::{GSO_ECN, GSO_NONE, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, Header, NEEDS_CSUM};

/// `VIRTIO_NET_F_CSUM`: the guest sends unfinished checksums.
const CSUM: u64 = 1 << 0;
/// `VIRTIO_NET_F_GUEST_CSUM`: the guest takes unfinished checksums.
const GUEST_CSUM: u64 = 1 << 1;
/// `VIRTIO_NET_F_GUEST_TSO4`.
const GUEST_TSO4: u64 = 1 << 7;
/// `VIRTIO_NET_F_GUEST_TSO6`.
const GUEST_TSO6: u64 = 1 << 8;
/// `VIRTIO_NET_F_GUEST_ECN`.
const GUEST_ECN: u64 = 1 << 9;
/// `VIRTIO_NET_F_HOST_TSO4`.
const HOST_TSO4: u64 = 1 << 11;
/// `VIRTIO_NET_F_HOST_TSO6`.
const HOST_TSO6: u64 = 1 << 12;
/// `VIRTIO_NET_F_HOST_ECN`.
const HOST_ECN: u64 = 1 << 13;
/// `VIRTIO_NET_F_MRG_RXBUF`.
const MRG_RXBUF: u64 = 1 << 15;
/// `VIRTIO_NET_F_STATUS`, which the front end implements.
const STATUS: u64 = 1 << 16;
/// `VIRTIO_NET_F_CTRL_VQ`, which the front end implements.
const CTRL_VQ: u64 = 1 << 17;
/// `VIRTIO_NET_F_MQ`.
const MQ: u64 = 1 << 22;
/// `VIRTIO_F_ANY_LAYOUT`.
const ANY_LAYOUT: u64 = 1 << 27;
/// `VIRTIO_F_INDIRECT_DESC`.
const INDIRECT_DESC: u64 = 1 << 28;
/// `VIRTIO_F_EVENT_IDX`.
const EVENT_IDX: u64 = 1 << 29;
/// `VHOST_USER_F_PROTOCOL_FEATURES`.
const PROTOCOL_FEATURES: u64 = 1 << 30;
/// `VIRTIO_F_VERSION_1`.
const VERSION_1: u64 = 1 << 32;
/// `VIRTIO_NET_F_GUEST_USO4`.
const GUEST_USO4: u64 = 1 << 54;
/// `VIRTIO_NET_F_GUEST_USO6`.
const GUEST_USO6: u64 = 1 << 55;
/// `VIRTIO_NET_F_HOST_USO`.
const HOST_USO: u64 = 1 << 56;

/// Features without which a link moves plain frames.
const OFFLOADS: u64 = CSUM
    | GUEST_CSUM
    | GUEST_TSO4
    | GUEST_TSO6
    | GUEST_ECN
    | GUEST_USO4
    | GUEST_USO6
    | HOST_TSO4
    | HOST_TSO6
    | HOST_ECN
    | HOST_USO;

/// Features that do not change the form of frames.
const TRANSPORT: u64 =
    MRG_RXBUF | STATUS | CTRL_VQ | MQ | ANY_LAYOUT | INDIRECT_DESC | EVENT_IDX | PROTOCOL_FEATURES | VERSION_1;

/// Bytes of the header in front of a frame, with `num_buffers`.
pub(super) const LONG_HEADER: usize = 12;

/// Feature bits that were offered, or negotiated.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Bits(pub(super) u64);

impl Bits {
    /// Features offered to a guest.
    pub(super) const fn offered(offloads: bool) -> Self {
        Self(if offloads { OFFLOADS | TRANSPORT } else { TRANSPORT })
    }

    /// Features requested by our driver: none that need a control queue.
    pub(super) const fn requested(offloads: bool, several_pairs: bool) -> Self {
        let all = Self::offered(offloads).0 & !(STATUS | CTRL_VQ | INDIRECT_DESC);
        Self(if several_pairs { all } else { all & !MQ })
    }

    /// Subset of `offered` that may be negotiated (virtio 1.2 §5.1.3.1). Without mergeable buffers no receive offload
    /// is used: no buffer can hold a fat frame.
    pub(super) const fn among(self, offered: Self) -> Self {
        let mut bits = self.0 & offered.0;
        if bits & MRG_RXBUF == 0 || bits & GUEST_CSUM == 0 {
            bits &= !(GUEST_TSO4 | GUEST_TSO6 | GUEST_ECN | GUEST_USO4 | GUEST_USO6);
        }
        if bits & CSUM == 0 {
            bits &= !(HOST_TSO4 | HOST_TSO6 | HOST_ECN | HOST_USO);
        }
        Self(bits)
    }

    /// The features with host and guest offloads exchanged.
    pub(super) fn swapped(self) -> Self {
        const PAIRS: [(u64, u64); 5] = [
            (CSUM, GUEST_CSUM),
            (HOST_TSO4, GUEST_TSO4),
            (HOST_TSO6, GUEST_TSO6),
            (HOST_ECN, GUEST_ECN),
            (HOST_USO, GUEST_USO4 | GUEST_USO6),
        ];
        let mut bits = self.0 & !OFFLOADS;
        for (host, guest) in PAIRS {
            bits |= if self.has(host) { guest } else { 0 } | if self.has(guest) { host } else { 0 };
        }
        Self(bits)
    }

    const fn has(self, bits: u64) -> bool {
        self.0 & bits == bits
    }

    /// Tells whether frames of a guest may be in several buffers.
    pub(super) const fn mergeable(self) -> bool {
        self.has(MRG_RXBUF)
    }

    pub(super) const fn indirect(self) -> bool {
        self.has(INDIRECT_DESC)
    }

    pub(super) const fn event_index(self) -> bool {
        self.has(EVENT_IDX)
    }

    /// Tells whether rings have to be enabled by a message.
    pub(super) const fn protocol_features(self) -> bool {
        self.has(PROTOCOL_FEATURES)
    }

    /// Bytes of the header in front of a frame (virtio 1.2 §5.1.6.1: a legacy device without mergeable buffers has no
    /// `num_buffers`).
    pub(super) const fn header_len(self) -> usize {
        if self.has(VERSION_1) || self.has(MRG_RXBUF) { LONG_HEADER } else { crate::virtio::HEADER_LEN }
    }

    /// Tells whether a header of the guest uses negotiated features only.
    pub(super) fn allow(self, header: &Header) -> bool {
        let csum = header.flags & NEEDS_CSUM == 0 || self.has(CSUM);
        let gso = match header.gso_type & !GSO_ECN {
            GSO_NONE => header.gso_type == GSO_NONE,
            GSO_TCPV4 => self.has(CSUM | HOST_TSO4),
            GSO_TCPV6 => self.has(CSUM | HOST_TSO6),
            GSO_UDP_L4 => self.has(CSUM | HOST_USO),
            _ => false,
        };
        csum && gso && (header.gso_type & GSO_ECN == 0 || self.has(HOST_ECN))
    }

    /// Tells whether verified checksums may be marked `DATA_VALID`.
    pub(super) const fn takes_valid(self) -> bool {
        self.has(GUEST_CSUM)
    }

    /// Offloads of the guest's receive side; for each that is off, the reason.
    pub(super) fn features(self, offloads: &mut Offloads, unless: &str) -> Features {
        let uso = GUEST_CSUM | GUEST_USO4 | GUEST_USO6;
        let all = [
            (TX_CSUM, GUEST_CSUM),
            (TX_TSO4, GUEST_CSUM | GUEST_TSO4),
            (TX_TSO6, GUEST_CSUM | GUEST_TSO6),
            (TX_USO, uso),
        ];
        *offloads = Offloads::EMPTY;
        for (name, bits) in
            [("rx-checksum", CSUM), ("rx-tso4", HOST_TSO4), ("rx-tso6", HOST_TSO6), ("rx-uso", HOST_USO)]
                .into_iter()
                .chain(all)
        {
            offloads.add(name, if self.has(bits) { Ok(None) } else { Err(unless.to_owned()) });
        }
        Features { tso_ecn: self.has(GUEST_ECN), frames: true, ..offloads.features() }
    }
}

/// Tells whether a packet fits a link with these features.
pub(super) fn takes(features: &Features, packet: &Packet) -> bool {
    let csum = !matches!(packet.meta.csum, Csum::Partial { .. }) || features.csum != CsumOffload::None;
    csum && packet.meta.cut.gso().is_none_or(|gso| features.cuts(gso, packet.len()))
}

/// Names of the bits, for display.
pub(super) fn names(bits: u64) -> impl Iterator<Item = &'static str> {
    const NAMES: [(u64, &str); 20] = [
        (CSUM, "csum"),
        (GUEST_CSUM, "guest_csum"),
        (GUEST_TSO4, "guest_tso4"),
        (GUEST_TSO6, "guest_tso6"),
        (GUEST_ECN, "guest_ecn"),
        (HOST_TSO4, "host_tso4"),
        (HOST_TSO6, "host_tso6"),
        (HOST_ECN, "host_ecn"),
        (MRG_RXBUF, "mrg_rxbuf"),
        (STATUS, "status"),
        (CTRL_VQ, "ctrl_vq"),
        (MQ, "mq"),
        (ANY_LAYOUT, "any_layout"),
        (INDIRECT_DESC, "indirect_desc"),
        (EVENT_IDX, "event_idx"),
        (PROTOCOL_FEATURES, "protocol_features"),
        (VERSION_1, "version_1"),
        (GUEST_USO4, "guest_uso4"),
        (GUEST_USO6, "guest_uso6"),
        (HOST_USO, "host_uso"),
    ];
    NAMES.into_iter().filter(move |&(bit, _)| bits & bit != 0).map(|(_, name)| name)
}
