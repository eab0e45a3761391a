//! Host side: the sockets of the node, which are in a kernel's network namespace of the node's own.
//!
//! A link may have a device of the same name in that namespace. Packets for this node that no protocol of the node consumes are
//! [delivered](deliver::deliver) by the device of their input link, each as one packet of any length; packets that sockets send are [output of
//! the node](down::receive): policies, ESP and routes are the node's.
//!
//! A device of the host side is a [`Port`](crate::Port) with a queue and offloads of its own, and the number [`host_port`] of its
//! link: [`handle_rx`](Datapath::handle_rx) takes packets of sockets by that number, and
//! [`take_tx`](Datapath::take_tx) gives packets to them. Without such a device the node answers pings, and refuses TCP and UDP (reset, port unreachable).

pub(crate) mod deliver;
pub(crate) mod demux;
pub(crate) mod down;
pub(crate) mod flows;
pub(crate) mod up;
pub(crate) mod watch;

use base::{DropReason, PortId};

use crate::node::ports::{Device, host_port};
use crate::{Datapath, PortConfig};

impl Datapath {
    /// Adds the host side's device of a link as the port [`host_port`], changes its configuration, or removes it with `None`. The
    /// device has the link's MAC address, or none as the link.
    pub fn set_host_port(&mut self, link: PortId, config: Option<PortConfig>) {
        // Queued frames have the device's previous MAC address.
        self.drop_tx(host_port(link), DropReason::LinkDown);
        match config {
            Some(config) => self.ports.set(host_port(link), Device::HostSide, config),
            None => drop(self.ports.remove(host_port(link))),
        }
        if self.ports.with_host_port().next().is_none() {
            self.established.clear();
        }
        self.set_watched(link, false);
    }

    /// Sets whether a packet socket on the host side's device of `link` is promiscuous. If so, frames of the link that do not go to
    /// the host side are copied to the device, addressed to no station. A device without link-layer addresses gets no copies: the
    /// kernel there would receive the packets again. Returns whether the setting was applied.
    pub fn set_watched(&mut self, link: PortId, is_watched: bool) -> bool {
        let has_stations = self.ports.get(host_port(link)).is_some_and(|port| port.config.mac.is_some());
        let is_watched = is_watched && has_stations;
        if let Some(port) = self.ports.get_mut(link) {
            port.is_watched = is_watched && port.config.mac.is_some();
        }
        self.update_shortcuts();
        is_watched
    }

    /// The link of the lowest number from `first` on whose host side's device has packets to be sent, as
    /// [`next_to_send`](Self::next_to_send).
    pub fn next_to_send_to_host(&mut self, first: PortId) -> Option<PortId> {
        self.ports.next_to_send_to_host(first)
    }
}
