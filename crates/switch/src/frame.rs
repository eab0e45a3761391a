//! Summary of an Ethernet frame for a bridge, and the frame's destinations.

use base::PortId;
use wire::MacAddr;
use wire::eth;
use wire::vlan::Tci;

use crate::vid::Vid;

/// A frame in a bridge. Its 802.1Q tag is in metadata, never among the bytes: the caller pops the tag at ingress and
/// pushes it at egress, or leaves this to the device, so that a tag does not disable offloads.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Frame {
    /// Destination.
    pub dst: MacAddr,
    /// Source.
    pub src: MacAddr,
    /// Control information of the 802.1Q tag. A tag of another protocol, for instance 802.1ad, is payload: for this
    /// bridge the frame is untagged.
    pub tag: Option<Tci>,
    /// Whether the payload begins with a VLAN tag of any protocol.
    pub has_payload_tag: bool,
    /// Whether the frame is fat: still to be segmented to wire size.
    pub is_gso: bool,
    /// Bytes from the destination on, without FCS and without the tag in `tag`.
    pub len: usize,
}

impl Frame {
    /// Summary of the frame with this header, whose outer 802.1Q tag was moved to `vlan`.
    pub fn new(header: &eth::EthHeader, vlan: Option<u16>, is_gso: bool, len: usize) -> Self {
        let has_payload_tag = header.ethertype().is_vlan();
        Self { dst: header.dst(), src: header.src(), tag: vlan.map(Tci), has_payload_tag, is_gso, len }
    }
}

/// Egress port of a frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Exit {
    /// The port.
    pub port: PortId,
    /// Egress tag; `None` for untagged.
    pub tag: Option<Tci>,
}

/// Reception of the frame by the bridge's device.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Upward {
    /// Tag on reception; `None` for untagged.
    pub tag: Option<Tci>,
}

/// Destinations of a frame. One value is reused for all frames, so that a flood allocates nothing.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Egress {
    /// The frame's VLAN; `None` in a bridge without VLAN filtering.
    pub vid: Option<Vid>,
    /// Ports, in the order of their numbers; more than one after a flood.
    pub exits: Vec<Exit>,
    /// Reception by the bridge's device, if the frame is for it too.
    pub up: Option<Upward>,
}

impl Egress {
    /// Clears the last frame's destinations.
    pub(crate) fn clear(&mut self) {
        self.vid = None;
        self.exits.clear();
        self.up = None;
    }
}

/// Result of a bridge's decision.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Verdict {
    /// The frame is sent to the destinations in [`Egress`], at least one.
    Forward,
    /// The frame is link-local (01-80-C2-00-00-0x): the port's own device receives it, as without a bridge.
    LinkLocal,
    /// The frame is dropped.
    Drop(Refusal),
}

/// Rule for which a frame is dropped.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Refusal {
    /// The ingress link is not a port of this bridge.
    PortUnknown,
    /// The source is a group address or zero.
    SourceInvalid,
    /// The frame is a PAUSE frame, which bridges never forward (IEEE 802.3 Annex 31B).
    Pause,
    /// The ingress port neither learns nor forwards, or only learns.
    IngressState,
    /// The frame is untagged and the ingress port has no PVID.
    NoPvid,
    /// The ingress port is not in the frame's VLAN.
    IngressVlan,
    /// The payload begins with a VLAN tag, which the ingress port does not accept.
    PayloadTag,
    /// The ingress port is locked and the source is not an address of that port.
    Locked,
    /// The ingress port, or the port of the destination, is a standby trunk in the frame's VLAN.
    StandbyTrunk,
    /// The destination is at the ingress port.
    SamePort,
    /// The destination is at a port that does not forward.
    EgressState,
    /// The destination is at a port outside the frame's VLAN.
    EgressVlan,
    /// The ingress port and the port of the destination are both isolated.
    Isolated,
    /// The frame exceeds the MTU of each egress port.
    TooBig,
    /// The frame is for the bridge, whose device is not in the frame's VLAN.
    OwnVlan,
    /// The bridge's device sends to an address of the bridge itself.
    OwnAddress,
    /// The frame is flooded, and no port accepts it.
    NoPort,
}

impl Refusal {
    /// Every rule, in the order of the declaration.
    pub const ALL: [Self; 17] = [
        Self::PortUnknown,
        Self::SourceInvalid,
        Self::Pause,
        Self::IngressState,
        Self::NoPvid,
        Self::IngressVlan,
        Self::PayloadTag,
        Self::Locked,
        Self::StandbyTrunk,
        Self::SamePort,
        Self::EgressState,
        Self::EgressVlan,
        Self::Isolated,
        Self::TooBig,
        Self::OwnVlan,
        Self::OwnAddress,
        Self::NoPort,
    ];
}

#[cfg(test)]
mod tests {
    use wire::EtherType;

    use super::*;

    #[test]
    fn frame_with_service_tag_is_untagged() {
        let dst = MacAddr([2, 0, 0, 0, 0, 1]);
        let src = MacAddr([2, 0, 0, 0, 0, 2]);
        let cases = [(EtherType::IPV4, false), (EtherType::SERVICE_VLAN, true), (EtherType::VLAN, true)];
        for (ethertype, has_payload_tag) in cases {
            let header = eth::EthHeader::new(dst, src, ethertype);
            let frame = Frame::new(&header, None, false, 60);
            assert_eq!(frame, Frame { dst, src, tag: None, has_payload_tag, is_gso: false, len: 60 }, "{ethertype}");
        }
        let header = eth::EthHeader::new(dst, src, EtherType::IPV6);
        assert_eq!(Frame::new(&header, Some(0x6064), true, 60).tag, Tci::new(100, 3));
    }

    #[test]
    fn refusals_are_listed_in_order() {
        assert!(Refusal::ALL.is_sorted());
        assert_eq!(Refusal::ALL.last(), Some(&Refusal::NoPort));
    }
}
