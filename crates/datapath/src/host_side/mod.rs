//! Host side: the sockets of the node, which are in a kernel's network namespace of the node's own.
//!
//! A link may have a device of the same name in that namespace. Packets for this node that no protocol of the node consumes are
//! [delivered](deliver::deliver) by the device of their input link, each as one packet of any length; packets that sockets send are [output of
//! the node](down::take): policies, ESP and routes are the node's.
//!
//! A device of the host side is a [`Port`](crate::Port) with a queue, offloads and counters of its own, and has the number of its
//! link. Without such a device the node answers pings, and refuses TCP and UDP (reset, port unreachable).

pub(crate) mod deliver;
pub(crate) mod demux;
pub(crate) mod down;
pub(crate) mod flows;
pub(crate) mod up;
pub(crate) mod watch;

use base::{DropReason, LinkId};
use offload::Features;
use packet::{Memory, Packet};

use crate::node::ports::Device;
use crate::{Datapath, PortConfig};

impl Datapath {
    /// Adds the host side's device of a link, changes its configuration, or removes it with `None`. The device has the link's
    /// MAC address, or none as the link.
    pub fn set_host_port(&mut self, link: LinkId, config: Option<PortConfig>) {
        // Queued frames have the device's previous MAC address.
        self.drop_host_tx(link);
        match config {
            Some(config) => self.ports.hosts.set(link, Device::HostSide, config),
            None => drop(self.ports.hosts.remove(link)),
        }
        if self.ports.hosts.iter().next().is_none() {
            self.established.clear();
        }
        self.set_watched(link, false);
    }

    /// Sets whether a packet socket on the host side's device of `link` is promiscuous. If so, frames of the link that do not go to
    /// the host side are copied to the device, addressed to no station. A device without link-layer addresses gets no copies: the
    /// kernel there would receive the packets again. Returns whether the setting was applied.
    pub fn set_watched(&mut self, link: LinkId, is_watched: bool) -> bool {
        let has_stations = self.ports.hosts.get(link).is_some_and(|port| port.config.mac.is_some());
        let is_watched = is_watched && has_stations;
        if let Some(port) = self.ports.get_mut(link) {
            port.is_watched = is_watched && port.config.mac.is_some();
        }
        self.update_shortcuts();
        is_watched
    }

    /// Queue of packets for the host side's device of `link`, in order; the caller takes the sent ones from the front.
    pub fn take_host_tx(&mut self, link: LinkId) -> Option<&mut Vec<Packet>> {
        self.ports.hosts.get_mut(link).map(crate::Port::take_tx)
    }

    /// As [`next_to_send`](Self::next_to_send), among the host side's devices.
    pub fn next_to_send_to_host(&mut self, first: LinkId) -> Option<LinkId> {
        self.ports.hosts.next_to_send(first)
    }

    /// Drops the packets queued for the host side's device of `link`.
    pub fn drop_host_tx(&mut self, link: LinkId) {
        let Some(port) = self.ports.hosts.get_mut(link) else { return };
        for pkt in std::mem::take(port.take_tx()) {
            self.count_drop(&pkt, DropReason::LinkDown);
        }
    }

    /// Sets whether the host side's device of `link` is busy.
    pub fn set_host_port_busy(&mut self, mem: &Memory, link: LinkId, is_busy: bool) {
        if let Some(port) = self.ports.hosts.get_mut(link) {
            port.set_busy(mem, is_busy);
        }
    }

    /// Fits the packets queued for the host side's device of `link` to its features again, after the device has lost some.
    pub fn refit_host_port(&mut self, mem: &Memory, link: LinkId, features: Features) {
        let Some(port) = self.ports.hosts.get_mut(link) else { return };
        port.config.features = features;
        let l3 = port.l3();
        for pkt in std::mem::take(port.take_tx()) {
            let origin = pkt.meta.origin.get();
            if let Err(reason) = self.ports.hosts.enqueue(mem, link, pkt, l3).map(drop) {
                self.ports.drop(origin, reason);
            }
        }
    }
}
