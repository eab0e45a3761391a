//! The bridges of a node.

use base::{DropReason, Instant, PortId};
use packet::Packet;
use switch::{Bridge, Egress, FdbChanges, FlushFilter, Frame, Refusal};
use wire::eth;

use crate::bridge::gro::FrameGro;

/// The bridges of a node, by the links of their devices.
#[derive(Debug, Default)]
pub(crate) struct Bridges {
    pub(crate) all: Vec<(PortId, Bridge)>,
    /// Frames that ports have received and that may grow.
    pub(crate) gro: FrameGro,
    /// Destinations of the current frame, kept for its storage.
    pub(crate) egress: Egress,
    /// Whether changes of forwarding databases are kept.
    pub(crate) is_watched: bool,
    /// Last changes of bridges that were removed since changes were taken.
    pub(crate) removed: Vec<(PortId, FdbChanges)>,
}

impl Bridges {
    pub(crate) fn get_mut(&mut self, id: PortId) -> Option<&mut Bridge> {
        self.all.iter_mut().find(|(own, _)| *own == id).map(|(_, bridge)| bridge)
    }

    /// Removes a bridge, with every address (Linux `br_dev_delete`).
    pub(crate) fn remove(&mut self, id: PortId) {
        let Some(at) = self.all.iter().position(|(own, _)| *own == id) else { return };
        let (_, mut bridge) = self.all.swap_remove(at);
        if self.is_watched {
            let everything = FlushFilter { statics: true, locals: true, ..FlushFilter::default() };
            // Without a port in the filter, none is missing.
            bridge.flush_fdb(&everything).ok();
            self.removed.push((id, bridge.take_fdb_changes()));
        }
    }

    /// Removes expired addresses.
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        for (_, bridge) in &mut self.all {
            bridge.handle_timeout(now);
        }
    }
}

/// Drop reason of a bridge's rule.
pub(crate) fn reason_of(refusal: Refusal) -> DropReason {
    match refusal {
        Refusal::SourceInvalid | Refusal::Pause => DropReason::BridgeSource,
        Refusal::PortUnknown | Refusal::IngressState | Refusal::EgressState => DropReason::BridgeState,
        Refusal::NoPvid | Refusal::IngressVlan | Refusal::EgressVlan | Refusal::OwnVlan => DropReason::BridgeVlan,
        Refusal::PayloadTag => DropReason::BridgePayloadTag,
        Refusal::Locked => DropReason::BridgeLocked,
        Refusal::StandbyTrunk => DropReason::BridgeStandby,
        Refusal::SamePort | Refusal::OwnAddress => DropReason::BridgeSamePort,
        Refusal::Isolated => DropReason::BridgeIsolated,
        Refusal::TooBig => DropReason::BridgeTooBig,
        Refusal::NoPort => DropReason::BridgeNoPort,
    }
}

/// Summary of a frame for a bridge.
///
/// # Errors
/// [`DropReason::EthTruncated`].
pub(crate) fn summary(pkt: &Packet) -> Result<Frame, DropReason> {
    let header = eth::EthHeader::ref_from(pkt.head())?;
    Ok(Frame::new(header, pkt.meta.vlan, pkt.meta.cut.gso().is_some(), pkt.len()))
}
