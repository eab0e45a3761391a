//! Offloads of a link, with the names and numbers of `ethtool -k` (Linux `netdev_features_t`,
//! `netdev_features_strings`, as of 6.18).

use std::ops::{BitAnd, BitOr, Not};

macro_rules! features {
    ($($(#[$doc:meta])* $name:ident = $bit:literal,)*) => {
        impl FeatureSet {
            $($(#[$doc])* pub const $name: Self = Self(1 << $bit);)*
        }
    };
}

/// Set of features. Bit `n` has the `n`th name.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct FeatureSet(pub u64);

features! {
    /// Scatter-gather: packets with a head and frags.
    SG = 0,
    /// Checksum offload of TCP and UDP over IPv4.
    IP_CSUM = 1,
    /// Checksum offload by `csum_start` and `csum_offset`, for any protocol.
    HW_CSUM = 3,
    /// Checksum offload of TCP and UDP over IPv6 without extension headers.
    IPV6_CSUM = 4,
    /// Scatter-gather of packets with a frag list.
    FRAGLIST = 6,
    /// The link carries no VLAN tags.
    VLAN_CHALLENGED = 10,
    /// Super-packets are segmented in software if the link does not segment them.
    GSO = 11,
    /// ESP may be decrypted before IP input, like in Linux's GRO. Linux has no flag for this, and no name for this bit.
    ESP_GRO = 12,
    /// Received and decapsulated packets are merged in software.
    GRO = 14,
    /// The link segments TCP over IPv4.
    TSO = 16,
    /// The link sets CWR on the first segment alone.
    TSO_ECN = 18,
    /// The link segments TCP over IPv6.
    TSO6 = 20,
    /// The link segments UDP super-packets.
    UDP_SEGMENTATION = 33,
    /// The link verifies checksums of received packets.
    RX_CSUM = 40,
    /// Sent packets are received again by this node.
    LOOPBACK = 42,
    /// The link encrypts ESP.
    ESP = 50,
    /// The link merges received packets (hardware GRO).
    GRO_HW = 55,
    /// Forwarded UDP packets are merged, too.
    UDP_GRO_FORWARDING = 59,
}

/// Feature names by bit; empty for a bit without a feature.
pub const NAMES: [&str; 64] = [
    "tx-scatter-gather",
    "tx-checksum-ipv4",
    "",
    "tx-checksum-ip-generic",
    "tx-checksum-ipv6",
    "highdma",
    "tx-scatter-gather-fraglist",
    "tx-vlan-hw-insert",
    "rx-vlan-hw-parse",
    "rx-vlan-filter",
    "vlan-challenged",
    "tx-generic-segmentation",
    "rx-esp-gro",
    "",
    "rx-gro",
    "rx-lro",
    "tx-tcp-segmentation",
    "tx-gso-robust",
    "tx-tcp-ecn-segmentation",
    "tx-tcp-mangleid-segmentation",
    "tx-tcp6-segmentation",
    "tx-fcoe-segmentation",
    "tx-gre-segmentation",
    "tx-gre-csum-segmentation",
    "tx-ipxip4-segmentation",
    "tx-ipxip6-segmentation",
    "tx-udp_tnl-segmentation",
    "tx-udp_tnl-csum-segmentation",
    "tx-gso-partial",
    "tx-tunnel-remcsum-segmentation",
    "tx-sctp-segmentation",
    "tx-esp-segmentation",
    "",
    "tx-udp-segmentation",
    "tx-gso-list",
    "tx-tcp-accecn-segmentation",
    "tx-checksum-fcoe-crc",
    "tx-checksum-sctp",
    "rx-ntuple-filter",
    "rx-hashing",
    "rx-checksum",
    "tx-nocache-copy",
    "loopback",
    "rx-fcs",
    "rx-all",
    "tx-vlan-stag-hw-insert",
    "rx-vlan-stag-hw-parse",
    "rx-vlan-stag-filter",
    "l2-fwd-offload",
    "hw-tc-offload",
    "esp-hw-offload",
    "esp-tx-csum-hw-offload",
    "rx-udp_tunnel-port-offload",
    "tls-hw-tx-offload",
    "tls-hw-rx-offload",
    "rx-gro-hw",
    "tls-hw-record",
    "rx-gro-list",
    "macsec-hw-offload",
    "rx-udp-gro-forwarding",
    "hsr-tag-ins-offload",
    "hsr-tag-rm-offload",
    "hsr-fwd-offload",
    "hsr-dup-offload",
];

impl FeatureSet {
    /// Empty set.
    pub const NONE: Self = Self(0);

    /// Checksums that a link completes (Linux `NETIF_F_CSUM_MASK`).
    pub const CSUM: Self = Self(Self::IP_CSUM.0 | Self::HW_CSUM.0 | Self::IPV6_CSUM.0);

    /// TCP segmentation (Linux `NETIF_F_ALL_TSO`, without features that no link here has).
    pub const ALL_TSO: Self = Self(Self::TSO.0 | Self::TSO6.0 | Self::TSO_ECN.0);

    /// Features of a VRF's device (Linux `vrf_setup`, without features that have no name here): packets pass
    /// unsegmented and without checksums, which the output link completes.
    pub const OF_VRF: Self = Self(
        Self::SG.0
            | Self::FRAGLIST.0
            | Self::HW_CSUM.0
            | Self::RX_CSUM.0
            | Self::GSO.0
            | Self::ALL_TSO.0
            | Self::UDP_SEGMENTATION.0,
    );

    /// Features that this node implements in software for every link.
    pub const OF_NODE: Self = Self(Self::GRO.0 | Self::ESP_GRO.0);

    /// Features that can be switched on some link: transmit offloads and GRO.
    pub const SWITCHED: Self = Self(
        Self::SG.0 | Self::FRAGLIST.0 | Self::CSUM.0 | Self::ALL_TSO.0 | Self::UDP_SEGMENTATION.0 | Self::OF_NODE.0,
    );

    /// Initial features of a link with or without `offloads` and ESP GRO, out of [`SWITCHED`](Self::SWITCHED); a client
    /// can switch them.
    pub const fn initial(offloads: bool, esp_gro: bool) -> Self {
        let requested = if offloads { Self::SWITCHED } else { Self(Self::SWITCHED.0 & !Self::OF_NODE.0) };
        if esp_gro { requested } else { Self(requested.0 & !Self::ESP_GRO.0) }
    }

    /// Whether the set contains all of `other`.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether the set is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The set itself if `on`, else the empty set.
    pub const fn only_if(self, on: bool) -> Self {
        if on { self } else { Self::NONE }
    }

    /// The set without features whose prerequisites are missing: TCP segmentation requires transmit checksums (Linux
    /// `netdev_fix_features`).
    #[must_use]
    pub fn coherent(self) -> Self {
        let needs = |set: Self, feature: Self, of: Self| if (set & of).is_empty() { set & !feature } else { set };
        let mut set = self;
        set = needs(set, Self::TSO, Self::HW_CSUM | Self::IP_CSUM);
        set = needs(set, Self::TSO6, Self::HW_CSUM | Self::IPV6_CSUM);
        set = needs(set, Self::ALL_TSO, Self::SG);
        set = needs(set, Self::TSO_ECN, Self::TSO | Self::TSO6);
        if !set.has(Self::HW_CSUM) && !set.has(Self::IP_CSUM | Self::IPV6_CSUM) {
            set = set & !Self::UDP_SEGMENTATION;
        }
        set
    }
}

impl BitAnd for FeatureSet {
    type Output = Self;

    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

impl BitOr for FeatureSet {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl Not for FeatureSet {
    type Output = Self;

    fn not(self) -> Self {
        Self(!self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_feature_has_its_name() {
        let cases = [
            (FeatureSet::SG, "tx-scatter-gather"),
            (FeatureSet::IP_CSUM, "tx-checksum-ipv4"),
            (FeatureSet::HW_CSUM, "tx-checksum-ip-generic"),
            (FeatureSet::IPV6_CSUM, "tx-checksum-ipv6"),
            (FeatureSet::FRAGLIST, "tx-scatter-gather-fraglist"),
            (FeatureSet::VLAN_CHALLENGED, "vlan-challenged"),
            (FeatureSet::GSO, "tx-generic-segmentation"),
            (FeatureSet::ESP_GRO, "rx-esp-gro"),
            (FeatureSet::GRO, "rx-gro"),
            (FeatureSet::TSO, "tx-tcp-segmentation"),
            (FeatureSet::TSO_ECN, "tx-tcp-ecn-segmentation"),
            (FeatureSet::TSO6, "tx-tcp6-segmentation"),
            (FeatureSet::UDP_SEGMENTATION, "tx-udp-segmentation"),
            (FeatureSet::RX_CSUM, "rx-checksum"),
            (FeatureSet::LOOPBACK, "loopback"),
            (FeatureSet::ESP, "esp-hw-offload"),
            (FeatureSet::GRO_HW, "rx-gro-hw"),
            (FeatureSet::UDP_GRO_FORWARDING, "rx-udp-gro-forwarding"),
        ];
        for (feature, name) in cases {
            assert_eq!(NAMES[feature.0.trailing_zeros() as usize], name);
        }
    }

    #[test]
    fn feature_that_needs_others_goes_with_them() {
        let all = FeatureSet::SWITCHED;
        let cases = [
            (FeatureSet::NONE, FeatureSet::NONE),
            (FeatureSet::GRO, FeatureSet::NONE),
            (FeatureSet::ESP_GRO, FeatureSet::NONE),
            (FeatureSet::SG, FeatureSet::ALL_TSO),
            (FeatureSet::CSUM, FeatureSet::ALL_TSO | FeatureSet::UDP_SEGMENTATION),
            (FeatureSet::TSO, FeatureSet::NONE),
            (FeatureSet::TSO | FeatureSet::TSO6, FeatureSet::TSO_ECN),
        ];
        for (off, and_off) in cases {
            assert_eq!((all & !off).coherent(), all & !off & !and_off, "{off:?}");
        }
        let generic = FeatureSet::SWITCHED & !FeatureSet::IP_CSUM & !FeatureSet::IPV6_CSUM;
        assert_eq!(generic.coherent(), generic);
        let v4 = all & !FeatureSet::HW_CSUM & !FeatureSet::IPV6_CSUM;
        assert_eq!(v4.coherent(), v4 & !FeatureSet::TSO6 & !FeatureSet::UDP_SEGMENTATION);
    }
}
