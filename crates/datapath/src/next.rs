//! Stages of the datapath as values, and the loop that takes a packet from one to the next.
//!
//! The packet itself stays in one place, an [`IpPacket`] that the loop's caller owns and every stage borrows: moves from stage to
//! stage would cost a third of a small packet's time. The last stage takes the packet out.

use base::DropReason;
use host::icmp::Problem;
use packet::Packet;

use crate::forward::Hop;
use crate::ip_packet::IpPacket;
use crate::local::Cast;
use crate::{Cx, Datapath};
use crate::{forward, local, own, rx, trace, tx};

/// Stage that a packet goes to next. Every stage returns one, and [`Datapath::run`] is the only loop over them.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub(crate) enum Next {
    /// IP input. The packet begins with its IP header, which has not been checked.
    L3In,
    /// Local input: this node is a destination.
    Local(Cast),
    /// Forwarding to another node.
    Forward(Hop),
    /// Output of a routed packet, before the policies.
    Output(Hop),
    /// Transmission of an IP packet that fits the path, in the segments it says. Its headers may not have been parsed.
    Transmit(Hop),
    /// Drop, with an ICMP error to the sender as far as rules and rate limits allow.
    Reject(DropReason, Problem),
    /// Drop. Its headers may not have been parsed.
    Drop(DropReason),
    /// End: sent, delivered, held, or counted as dropped.
    Done,
}

impl Datapath {
    /// Takes a packet from stage to stage until it is sent, delivered, held or dropped. A stage that makes several packets of one
    /// runs each, and returns [`Next::Done`].
    pub(crate) fn run(&mut self, cx: Cx<'_>, ip: &mut IpPacket, mut next: Next) {
        loop {
            if self.trace.is_on() {
                trace::stage(self, cx, ip, next);
            }
            next = match next {
                Next::L3In => rx::l3::input(self, cx, ip),
                Next::Local(cast) => local::input(self, cx, ip, cast),
                Next::Forward(hop) => forward::forward(self, cx, ip, hop),
                Next::Output(hop) => tx::output(self, cx, ip, hop),
                Next::Transmit(hop) => tx::transmit(self, cx, ip, hop),
                Next::Reject(reason, problem) => own::reject(self, cx, ip, reason, problem),
                Next::Drop(reason) => {
                    self.count_drop(&ip.pkt, reason);
                    return;
                }
                Next::Done => return,
            }
        }
    }

    /// Runs a packet whose headers are not parsed.
    pub(crate) fn run_packet(&mut self, cx: Cx<'_>, pkt: Packet, next: Next) {
        self.run(cx, &mut IpPacket::unparsed(pkt), next);
    }
}
