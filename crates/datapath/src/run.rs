//! Stages of the datapath as values, and the loop that takes a packet from one to the next.
//!
//! The packet itself stays in one place, an [`IpPacket`] that the loop's caller owns and every stage borrows: moves from stage to
//! stage would cost a third of a small packet's time. The last stage takes the packet out.

use packet::Packet;

use crate::ip_packet::IpPacket;
use crate::next::Next;
use crate::{Cx, Datapath, forward, local, own, rx, trace, tx};

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
