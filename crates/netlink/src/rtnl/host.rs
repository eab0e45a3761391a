//! Interface to the datapath for rtnetlink.

use std::fmt;
use std::net::IpAddr;

use ::qdisc::{Options, Stats};
use ::switch::Bridge;
use base::{Instant, LinkId};

use super::link_detail::LinkDetail;
use super::link_now::LinkNow;
use super::model::Delta;
use crate::error::Error;
use config::features::FeatureSet;
use config::model::LinkConfig;

/// Calls to the datapath.
pub trait Host: fmt::Debug + Send + 'static {
    /// Current state of the links.
    ///
    /// # Errors
    /// The datapath does not answer.
    fn links(&mut self) -> Result<Vec<LinkNow>, Error>;

    /// Applies changes, before the client gets its reply.
    fn apply(&mut self, deltas: &mut dyn Iterator<Item = Delta>);

    /// Opens a link, which is down then. A device that is created for it gets the number `index` on the host, if there is one.
    ///
    /// # Errors
    /// The system lacks something, or refuses the link.
    fn open(&mut self, id: LinkId, config: &LinkConfig, index: Option<u32>) -> Result<LinkNow, Error>;

    /// Closes a link.
    ///
    /// # Errors
    /// The datapath does not answer.
    fn close(&mut self, id: LinkId) -> Result<(), Error>;

    /// Sets the MTU of a link.
    ///
    /// # Errors
    /// The system refuses it.
    fn set_mtu(&mut self, id: LinkId, mtu: u16) -> Result<(), Error>;

    /// Sets the link-layer address of a link.
    ///
    /// # Errors
    /// The system refuses it.
    fn set_mac(&mut self, id: LinkId, mac: [u8; 6]) -> Result<(), Error>;

    /// Sets the queueing discipline of a link, or removes it. Packets in the old one are dropped.
    ///
    /// # Errors
    /// The datapath does not answer, or refuses the options.
    fn set_qdisc(&mut self, id: LinkId, options: Option<Options>) -> Result<(), Error>;

    /// Changes the options of a link's queueing discipline, of the same kind. Packets in it stay.
    ///
    /// # Errors
    /// As [`set_qdisc`](Self::set_qdisc).
    fn change_qdisc(&mut self, id: LinkId, options: Options) -> Result<(), Error>;

    /// Counters of every queueing discipline.
    ///
    /// # Errors
    /// The datapath does not answer.
    fn qdisc_stats(&mut self) -> Result<Vec<(LinkId, Stats)>, Error>;

    /// Makes a link a port of a bridge, or a link of this node again with `None`.
    ///
    /// # Errors
    /// The datapath does not answer, or the bridge refuses it.
    fn set_bridge(&mut self, id: LinkId, bridge: Option<LinkId>) -> Result<(), Error>;

    /// Reads or changes a bridge, at the time of the datapath.
    ///
    /// # Errors
    /// The datapath does not answer, or has no such bridge.
    fn with_bridge<T: Send + 'static>(
        &mut self,
        bridge: LinkId,
        call: impl FnOnce(&mut Bridge, Instant) -> T + Send + 'static,
    ) -> Result<T, Error>;

    /// Sets a link up or down.
    ///
    /// # Errors
    /// The datapath does not answer.
    fn set_up(&mut self, id: LinkId, up: bool) -> Result<(), Error>;

    /// State of a link as `ethtool` shows it.
    ///
    /// # Errors
    /// The datapath does not answer, or has no such link.
    fn detail(&mut self, id: LinkId) -> Result<LinkDetail, Error>;

    /// Link settings that the driver of an interface of the host reports: `struct ethtool_link_settings` with
    /// [`LINK_MODE_WORDS`](nlsock::ethtool::LINK_MODE_WORDS) words for each of the three sets behind it.
    ///
    /// # Errors
    /// The kernel's `errno`.
    fn settings(&mut self, interface: &str) -> Result<Vec<u8>, Error>;

    /// Switches on those features of a link that are `wanted` and that the link can have, and the others off.
    ///
    /// # Errors
    /// The datapath does not answer.
    fn set_features(&mut self, id: LinkId, wanted: FeatureSet) -> Result<(), Error>;

    /// Time by the node's clock.
    fn now(&self) -> Instant;

    /// Every neighbour, by link and address.
    ///
    /// # Errors
    /// The datapath does not answer.
    fn neighbours(&mut self) -> Result<Vec<NeighbourNow>, Error>;

    /// The neighbour of that link and address, if there is one.
    ///
    /// # Errors
    /// The datapath does not answer.
    fn neighbour(&mut self, link: LinkId, addr: IpAddr) -> Result<Option<NeighbourNow>, Error>;

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
    pub link: LinkId,
    /// IP address.
    pub addr: IpAddr,
    /// Link-layer address, if it is known.
    pub mac: Option<[u8; 6]>,
    /// `NUD_*`.
    pub state: u16,
    /// Origin (`RTPROT_*`); 0 if it is unknown. A request to set a neighbour with 0 leaves the origin as it is.
    pub protocol: u8,
}
