//! Stages of the datapath as values, and the loop that takes a packet from one to the next.

use base::DropReason;
use host::icmp::Problem;
use packet::Packet;

use crate::forward::Hop;
use crate::local::Cast;
use crate::{Cx, Datapath, IpPacket};
use crate::{forward, local, own, rx, trace, tx};

/// Stage that a packet goes to next. Every stage returns one, and [`Datapath::run`] is the only loop over them.
#[derive(Debug)]
#[must_use]
pub(crate) enum Next {
    /// IP input. The packet begins with its IP header, of which nothing was checked.
    L3In(Packet),
    /// Local input: this node is a destination.
    Local(IpPacket, Cast),
    /// Forwarding to another node.
    Forward(IpPacket, Hop),
    /// Output of a routed packet, before the policies.
    Output(IpPacket, Hop),
    /// Transmission of an IP packet that fits the path, in the segments it says.
    Transmit(Packet, Hop),
    /// Drop of a packet whose sender is told why, as far as rules and rate limits allow.
    Reject(IpPacket, DropReason, Problem),
    /// Drop.
    Drop(Packet, DropReason),
    /// End: sent, delivered, held, or counted as dropped.
    Done,
}

impl Datapath {
    /// Takes a packet from stage to stage until it is sent, delivered, held or dropped. A stage that makes several packets of one
    /// runs each, and returns [`Next::Done`].
    pub(crate) fn run(&mut self, cx: Cx<'_>, mut next: Next) {
        loop {
            if self.trace.is_on() {
                trace::stage(self, cx, &mut next);
            }
            next = match next {
                Next::L3In(pkt) => rx::l3::input(self, cx, pkt),
                Next::Local(ip, cast) => local::input(self, cx, ip, cast),
                Next::Forward(ip, hop) => forward::forward(self, cx, ip, hop),
                Next::Output(ip, hop) => tx::output(self, cx, ip, hop),
                Next::Transmit(pkt, hop) => tx::transmit(self, cx, pkt, hop),
                Next::Reject(ip, reason, problem) => own::reject(self, cx, &ip, reason, problem),
                Next::Drop(pkt, reason) => {
                    self.count_drop(&pkt, reason);
                    return;
                }
                Next::Done => return,
            }
        }
    }
}
