//! Offloads of a device: the set that `ethtool -k` shows.

use packet::{Gso, GsoKind, Packet};
use wire::{Protocol, Version};

use crate::headers::Headers;

/// Offloads of a device. Software does the work of missing offloads.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Features {
    /// Sends packets with page fragments (`NETIF_F_SG`).
    pub sg: bool,
    /// Sends packets with children (`NETIF_F_FRAGLIST`). Requires `sg`.
    pub frag_list: bool,
    /// Sends several packets in one buffer without a split ([`Cut::Frames`](packet::Cut)).
    pub frames: bool,
    /// Checksums that the device completes.
    pub csum: CsumOffload,
    /// Segments TCP over IPv4 (`NETIF_F_TSO`), and completes the segments' checksums.
    pub tso4: bool,
    /// Segments TCP over IPv6 (`NETIF_F_TSO6`), and completes the segments' checksums.
    pub tso6: bool,
    /// Segments UDP trains (`NETIF_F_GSO_UDP_L4`), and completes the segments' checksums.
    pub uso: bool,
    /// Sets CWR on the first segment only, when it segments TCP (`NETIF_F_TSO_ECN`).
    pub tso_ecn: bool,
    /// Fragments UDP datagrams that exceed the path MTU and are marked [`Cut::Fragment`](packet::Cut), as a socket does
    /// (`NETIF_F_GSO_UDP`). The stack makes no fragments for such a device.
    pub ufo: bool,
    /// Encrypts prepared ESP, or encapsulates packets, for the SAs on the device (`NETIF_F_HW_ESP`). A packet that
    /// needs other work of which the device is incapable is processed in software.
    pub esp: bool,
    /// Exclusive limit of a fat packet's length, in bytes with all headers.
    pub gso_max_size: usize,
    /// Maximum number of segments of a fat packet.
    pub gso_max_segs: usize,
}

/// Transport checksums that a device completes from [`Csum::Partial`](packet::Csum::Partial).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CsumOffload {
    /// No checksum.
    None,
    /// TCP and UDP over IPv4 (`NETIF_F_IP_CSUM`).
    Ipv4,
    /// TCP and UDP over IPv6 without extension headers (`NETIF_F_IPV6_CSUM`).
    Ipv6,
    /// TCP and UDP of both families, by protocol.
    Both,
    /// Any checksum, by start and offset (`NETIF_F_HW_CSUM`), as in a virtio-net header.
    Any,
}

impl Features {
    /// A device without offloads, for linear, finished packets.
    pub const NONE: Self = Self {
        sg: false,
        frag_list: false,
        frames: false,
        csum: CsumOffload::None,
        tso4: false,
        tso6: false,
        uso: false,
        tso_ecn: false,
        ufo: false,
        esp: false,
        gso_max_size: 65_536,
        gso_max_segs: 65_535,
    };
    /// Offloads for packets that are segmented before they are fragmented or encrypted: by reference, with complete
    /// checksums.
    pub const BY_REFERENCE: Self = Self { sg: true, ..Self::NONE };

    /// A device with all offloads except fragmentation and ESP.
    pub const ALL: Self = Self {
        sg: true,
        frag_list: true,
        frames: true,
        csum: CsumOffload::Any,
        tso4: true,
        tso6: true,
        uso: true,
        tso_ecn: true,
        ..Self::NONE
    };

    /// Tells whether the device segments a packet of `len` bytes, headers included, according to `gso`.
    ///
    /// Linux's `gso_features_check` and `skb_gso_ok`; a device that cannot complete checksums cannot segment
    /// (`netdev_fix_features`).
    pub fn cuts(&self, gso: &Gso, len: usize) -> bool {
        let kind = match gso.kind {
            GsoKind::TcpV4 => self.tso4 && self.csum.completes_v4(),
            GsoKind::TcpV6 => self.tso6 && self.csum.completes_v6(),
            GsoKind::Udp => self.uso && self.csum.completes_v4() && self.csum.completes_v6(),
        };
        let ecn = self.tso_ecn || !gso.ecn;
        kind && ecn && len < self.gso_max_size && usize::from(gso.segs) <= self.gso_max_segs
    }

    /// Tells whether the device can send the packet's fragments and children.
    pub(crate) fn takes_pieces_of(&self, pkt: &Packet) -> bool {
        pkt.is_linear() || (self.sg && (self.frag_list || pkt.frag_list().is_empty()))
    }
}

impl CsumOffload {
    /// Tells whether the device completes checksums of TCP and UDP over IPv4.
    pub const fn completes_v4(self) -> bool {
        matches!(self, Self::Ipv4 | Self::Both | Self::Any)
    }

    /// Tells whether the device completes checksums of TCP and UDP over IPv6 without extension headers.
    pub const fn completes_v6(self) -> bool {
        matches!(self, Self::Ipv6 | Self::Both | Self::Any)
    }

    /// Tells whether the device completes the checksum of a packet with these headers (Linux
    /// `skb_csum_hwoffload_help`).
    pub(crate) fn completes(self, headers: &Headers) -> bool {
        let known = matches!(headers.protocol, Protocol::TCP | Protocol::UDP);
        match headers.version {
            _ if self == Self::Any => true,
            Version::V4 => known && self.completes_v4(),
            Version::V6 => known && self.completes_v6() && headers.plain(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAT: Gso = Gso { kind: GsoKind::TcpV4, size: 1448, segs: 45, ecn: false, fixed_id: false };

    #[test]
    fn a_device_cuts_what_it_names_within_its_limits() {
        let all = Features::ALL;
        let cases = [
            (all, FAT, 65_535, true),
            (all, FAT, 65_536, false),
            (Features { gso_max_segs: 45, ..all }, FAT, 65_000, true),
            (Features { gso_max_segs: 44, ..all }, FAT, 65_000, false),
            (Features { tso4: false, ..all }, FAT, 65_000, false),
            (Features { tso6: false, uso: false, ..all }, FAT, 65_000, true),
            (all, Gso { ecn: true, ..FAT }, 65_000, true),
            (Features { tso_ecn: false, ..all }, Gso { ecn: true, ..FAT }, 65_000, false),
            (Features { tso6: false, ..all }, Gso { kind: GsoKind::TcpV6, ..FAT }, 65_000, false),
            (Features { uso: false, ..all }, Gso { kind: GsoKind::Udp, ..FAT }, 65_000, false),
            (Features { csum: CsumOffload::Ipv6, ..all }, FAT, 65_000, false),
            (Features { csum: CsumOffload::Ipv4, ..all }, FAT, 65_000, true),
            (Features { csum: CsumOffload::Ipv6, ..all }, Gso { kind: GsoKind::TcpV6, ..FAT }, 65_000, true),
            (Features { csum: CsumOffload::Ipv4, ..all }, Gso { kind: GsoKind::Udp, ..FAT }, 65_000, false),
            (Features::NONE, FAT, 65_000, false),
        ];
        for (features, gso, len, want) in cases {
            assert_eq!(features.cuts(&gso, len), want, "{features:?} {gso:?} {len}");
        }
    }
}
