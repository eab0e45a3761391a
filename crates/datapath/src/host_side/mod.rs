//! Host side: the sockets of the node, which a kernel has in a network namespace of the node's own.
//!
//! For a link there is a device of the same name there. What is for this node and no part of the node consumes goes [up](up) by the
//! device of the link that it came by, as one packet however long it is; what sockets send comes [down](down), and is output of the
//! node: policies, ESP and routes are the node's.
//!
//! A device of the host side is a [`Port`](crate::Port) with a queue, offloads and counters of its own, and has the number of its
//! link. Without one the node answers by itself: pings, TCP resets, port unreachable.

pub(crate) mod down;
pub(crate) mod tcp;
pub(crate) mod up;

use base::{Instant, LinkId};
use packet::{Memory, Packet};

use crate::ports::Device;
use crate::{Cx, Datapath, PortConfig};

impl Datapath {
    /// Adds the host side's device of a link, gives it another configuration, or removes it with `None`. The device has the link's
    /// MAC address, or none as the link.
    pub fn set_host_port(&mut self, link: LinkId, config: Option<PortConfig>) {
        match config {
            Some(config) => self.ports.hosts.set(link, Device::HostSide, config),
            None => drop(self.ports.hosts.remove(link)),
        }
    }

    /// Tells whether a link has a device of the host side.
    #[must_use]
    pub fn has_host_port(&self, link: LinkId) -> bool {
        self.ports.hosts.get(link).is_some()
    }

    /// Takes what sockets have sent by the host side's device of `link`, in order. Empties `burst`.
    pub fn handle_host_rx(&mut self, now: Instant, mem: &Memory, link: LinkId, burst: &mut Vec<Packet>) {
        let cx = Cx { now, mem };
        for pkt in burst.drain(..) {
            down::take(self, cx, link, pkt);
        }
        self.drain_all(cx);
    }

    /// Queue of packets for the host side's device of `link`, in order; the caller takes the sent ones from the front.
    pub fn take_host_tx(&mut self, link: LinkId) -> Option<&mut Vec<Packet>> {
        self.ports.hosts.get_mut(link).map(crate::Port::take_tx)
    }

    /// Links whose devices of the host side have packets waiting.
    pub fn host_ports_waiting(&self) -> impl Iterator<Item = LinkId> + '_ {
        self.ports.hosts.iter().filter(|(_, port)| port.is_waiting()).map(|(link, _)| link)
    }
}
