//! Interface to the datapath for rtnetlink.

use std::fmt;
use std::net::IpAddr;

use ::qdisc::{Options, Stats};
use ::switch::Bridge;
use base::{Instant, PortId};

use super::model::Delta;
use super::state::{LinkDetail, LinkNow};
use crate::error::Error;
use config::features::FeatureSet;
use config::model::LinkConfig;

/// Calls to the datapath.
pub trait Backend: fmt::Debug + Send + 'static {
    /// Current state of the links.
    ///
    /// # Errors
    /// The datapath does not answer.
    fn links(&mut self) -> Result<Vec<LinkNow>, Error>;

    /// Applies changes, before the client gets its reply.
    fn apply(&mut self, deltas: &mut dyn Iterator<Item = Delta>);

    /// Opens a link, in state down. A device that is created on the host gets the interface index `index`, if given.
    ///
    /// # Errors
    /// The system lacks a feature, or refuses the link.
    fn open(&mut self, id: PortId, config: &LinkConfig, index: Option<u32>) -> Result<LinkNow, Error>;

    /// Closes a link.
    ///
    /// # Errors
    /// The datapath does not answer.
    fn close(&mut self, id: PortId) -> Result<(), Error>;

    /// Sets the MTU of a link.
    ///
    /// # Errors
    /// The system refuses the MTU.
    fn set_mtu(&mut self, id: PortId, mtu: u16) -> Result<(), Error>;

    /// Sets the link-layer address of a link.
    ///
    /// # Errors
    /// The system refuses the address.
    fn set_mac(&mut self, id: PortId, mac: [u8; 6]) -> Result<(), Error>;

    /// Sets or removes the queueing discipline of a link. Packets queued in the old one are dropped.
    ///
    /// # Errors
    /// The datapath does not answer, or refuses the options.
    fn set_qdisc(&mut self, id: PortId, options: Option<Options>) -> Result<(), Error>;

    /// Changes the options of a link's queueing discipline, without changing its kind. Queued packets stay.
    ///
    /// # Errors
    /// As [`set_qdisc`](Self::set_qdisc).
    fn change_qdisc(&mut self, id: PortId, options: Options) -> Result<(), Error>;

    /// Counters of every queueing discipline.
    ///
    /// # Errors
    /// The datapath does not answer.
    fn qdisc_stats(&mut self) -> Result<Vec<(PortId, Stats)>, Error>;

    /// Makes a link a port of a bridge, or removes it from its bridge with `None`.
    ///
    /// # Errors
    /// The datapath does not answer, or the bridge refuses the link.
    fn set_bridge(&mut self, id: PortId, bridge: Option<PortId>) -> Result<(), Error>;

    /// Runs `call` on a bridge, with the datapath's time; on each copy of the bridge, if the datapath has several.
    ///
    /// # Errors
    /// The datapath does not answer, or the bridge does not exist.
    fn with_bridge<T: Send + 'static>(
        &mut self,
        bridge: PortId,
        call: impl FnOnce(&mut Bridge, Instant) -> T + Clone + Send + 'static,
    ) -> Result<T, Error>;

    /// Sets a link up or down.
    ///
    /// # Errors
    /// The datapath does not answer.
    fn set_up(&mut self, id: PortId, up: bool) -> Result<(), Error>;

    /// State of a link for `ethtool`.
    ///
    /// # Errors
    /// The datapath does not answer, or the link does not exist.
    fn detail(&mut self, id: PortId) -> Result<LinkDetail, Error>;

    /// Link settings from the driver of an interface of the host: `struct ethtool_link_settings`, followed by three
    /// link mode sets of [`LINK_MODE_WORDS`](nlsock::ethtool::LINK_MODE_WORDS) words each.
    ///
    /// # Errors
    /// The kernel's `errno`.
    fn settings(&mut self, interface: &str) -> Result<Vec<u8>, Error>;

    /// Enables the `wanted` features that the link supports, and disables the others.
    ///
    /// # Errors
    /// The datapath does not answer.
    fn set_features(&mut self, id: PortId, wanted: FeatureSet) -> Result<(), Error>;

    /// Time by the node's clock.
    fn now(&self) -> Instant;

    /// All neighbours, by link and address.
    ///
    /// # Errors
    /// The datapath does not answer.
    fn neighbours(&mut self) -> Result<Vec<NeighbourNow>, Error>;

    /// Neighbour of the given link and address, if it exists.
    ///
    /// # Errors
    /// The datapath does not answer.
    fn neighbour(&mut self, link: PortId, addr: IpAddr) -> Result<Option<NeighbourNow>, Error>;

    /// Adds or changes a neighbour, or removes it if its state is 0.
    ///
    /// # Errors
    /// The datapath does not answer.
    fn set_neighbour(&mut self, neighbour: &NeighbourNow) -> Result<(), Error>;
}

/// A neighbour.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct NeighbourNow {
    /// Link of the neighbour.
    pub link: PortId,
    /// IP address.
    pub addr: IpAddr,
    /// Link-layer address, if resolved.
    pub mac: Option<[u8; 6]>,
    /// `NUD_*`.
    pub state: u16,
    /// Origin (`RTPROT_*`); 0 if it is unknown. A request to set a neighbour with 0 leaves the origin as it is.
    pub protocol: u8,
}
