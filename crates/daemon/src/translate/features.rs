//! Offloads of a link, in `ethtool`'s terms and in those of the datapath.

use config::features::FeatureSet;
use config::model::LinkKind;
use link::Link;
use offload::{CsumOffload, Features};

/// Offloads that a link supports for sent packets, and GRO of received ones.
pub(crate) fn of(link: &dyn Link) -> FeatureSet {
    let Features { sg, frag_list, csum, tso4, tso6, uso, tso_ecn, .. } = link.features();
    let csum = match csum {
        CsumOffload::None => FeatureSet::NONE,
        CsumOffload::Ipv4 => FeatureSet::IP_CSUM,
        CsumOffload::Ipv6 => FeatureSet::IPV6_CSUM,
        CsumOffload::Both => FeatureSet::IP_CSUM | FeatureSet::IPV6_CSUM,
        CsumOffload::Any => FeatureSet::HW_CSUM,
    };
    let each = [
        (FeatureSet::SG, sg),
        (FeatureSet::FRAGLIST, frag_list),
        (FeatureSet::TSO, tso4),
        (FeatureSet::TSO6, tso6),
        (FeatureSet::UDP_SEGMENTATION, uso),
        (FeatureSet::TSO_ECN, tso_ecn),
    ];
    each.into_iter().fold(csum | FeatureSet::OF_NODE, |all, (feature, has)| all | feature.only_if(has)).coherent()
}

/// Offloads that the datapath leaves to a link: those of `features` that `on` enables.
pub(crate) fn limited(features: Features, on: FeatureSet) -> Features {
    let csum = match features.csum {
        CsumOffload::Any if on.has(FeatureSet::HW_CSUM) => CsumOffload::Any,
        CsumOffload::Any | CsumOffload::None => CsumOffload::None,
        by_family => match (
            by_family.completes_v4() && on.has(FeatureSet::IP_CSUM),
            by_family.completes_v6() && on.has(FeatureSet::IPV6_CSUM),
        ) {
            (true, true) => CsumOffload::Both,
            (true, false) => CsumOffload::Ipv4,
            (false, true) => CsumOffload::Ipv6,
            (false, false) => CsumOffload::None,
        },
    };
    Features {
        sg: features.sg && on.has(FeatureSet::SG),
        frag_list: features.frag_list && on.has(FeatureSet::FRAGLIST),
        csum,
        tso4: features.tso4 && on.has(FeatureSet::TSO),
        tso6: features.tso6 && on.has(FeatureSet::TSO6),
        uso: features.uso && on.has(FeatureSet::UDP_SEGMENTATION),
        tso_ecn: features.tso_ecn && on.has(FeatureSet::TSO_ECN),
        ..features
    }
}

/// Offloads of a link that cannot be switched while it is open, in the link and in the datapath.
pub(crate) fn always(link: &dyn Link, kind: &LinkKind, has_esp_device: bool) -> FeatureSet {
    let has = |names: &[&str]| link.offloads().iter().any(|offload| offload.on && names.contains(&offload.name));
    let ethernet = matches!(link.layer(), link::Layer::Ethernet(_));
    let each = [
        (FeatureSet::GSO, true),
        (FeatureSet::UDP_GRO_FORWARDING, true),
        (FeatureSet::ESP, has_esp_device),
        (FeatureSet::VLAN_CHALLENGED, !ethernet),
        // The kernel has verified the checksums of a UDP socket's datagrams.
        (FeatureSet::RX_CSUM, kind.bind().is_some() || has(&["rx-checksum", "rx-super-packets"])),
        (FeatureSet::GRO_HW, has(&["rx-tso4", "rx-tso6", "rx-uso", "rx-super-packets", "rx-gro"])),
    ];
    each.into_iter().fold(FeatureSet::NONE, |all, (feature, has)| all | feature.only_if(has))
}

/// The feature for the offload of that name ([`link::Offload::name`]), if it can be switched.
pub(crate) fn of_offload(name: &str) -> Option<FeatureSet> {
    Some(match name {
        "tx-checksum" => FeatureSet::HW_CSUM,
        "tx-tso4" => FeatureSet::TSO,
        "tx-tso6" => FeatureSet::TSO6,
        "tx-uso" => FeatureSet::UDP_SEGMENTATION,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use link::memory::{self, End};

    use super::*;

    /// An in-memory link with those features.
    fn with(features: Features) -> Box<dyn Link> {
        let end = |name| End { features, ..End::new(name) };
        let (link, _) = memory::pair(end("a"), end("b"));
        Box::new(link)
    }

    #[test]
    fn offload_switched_off_is_left_to_no_link() {
        let all = of(&*with(Features::ALL));
        assert_eq!(all, FeatureSet::SWITCHED & !FeatureSet::IP_CSUM & !FeatureSet::IPV6_CSUM);
        assert_eq!(limited(Features::ALL, all), Features::ALL);
        let none = Features { frames: true, ..Features::NONE };
        assert_eq!(limited(Features::ALL, FeatureSet::NONE), none);
        type Off = fn(&mut Features);
        let cases: [(FeatureSet, Off); 7] = [
            (FeatureSet::SG, |features| features.sg = false),
            (FeatureSet::FRAGLIST, |features| features.frag_list = false),
            (FeatureSet::HW_CSUM, |features| features.csum = CsumOffload::None),
            (FeatureSet::TSO, |features| features.tso4 = false),
            (FeatureSet::TSO6, |features| features.tso6 = false),
            (FeatureSet::TSO_ECN, |features| features.tso_ecn = false),
            (FeatureSet::UDP_SEGMENTATION, |features| features.uso = false),
        ];
        for (off, want) in cases {
            let mut features = Features::ALL;
            want(&mut features);
            assert_eq!(limited(Features::ALL, all & !off), features, "{off:?}");
        }
    }

    #[test]
    fn checksums_are_those_that_a_link_has_and_that_are_on() {
        let has = [CsumOffload::None, CsumOffload::Ipv4, CsumOffload::Ipv6, CsumOffload::Both, CsumOffload::Any];
        for csum in has {
            let features = Features { csum, ..Features::NONE };
            assert_eq!(limited(features, of(&*with(features))).csum, csum);
            assert_eq!(limited(features, FeatureSet::SG).csum, CsumOffload::None);
        }
        let both = Features { csum: CsumOffload::Both, ..Features::NONE };
        assert_eq!(limited(both, FeatureSet::IP_CSUM).csum, CsumOffload::Ipv4);
        assert_eq!(limited(both, FeatureSet::IPV6_CSUM | FeatureSet::HW_CSUM).csum, CsumOffload::Ipv6);
    }
}
