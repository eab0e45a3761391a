//! Account of all packets: sums that must agree.

use base::{DropReason, Mib, PortId};

use crate::ledger::Ledger;
use crate::onlooker::Onlooker;
use crate::plan::Kind;
use crate::site::{INSIDE, Site, WANS};

/// Sums of several runs, for both directions together.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sums {
    pub(crate) sealed: u64,
    pub(crate) delivered: u64,
    pub(crate) lost: u64,
    pub(crate) replayed: u64,
    pub(crate) forged: u64,
    pub(crate) blocked: u64,
    pub(crate) too_big: u64,
    pub(crate) reassembled: u64,
    pub(crate) busy: u64,
    pub(crate) rekeys: u64,
    pub(crate) expired: u64,
    pub(crate) held: u64,
    pub(crate) without_sa: u64,
    pub(crate) nested: u64,
}

impl Sums {
    /// Checks the packets that gateway `from` sent and the other one received, and adds them to the sums.
    pub(crate) fn add_way(&mut self, site: &Site, onlooker: &Onlooker, ledger: &Ledger, from: usize) {
        let to = 1 - from;
        let (esp, way) = (onlooker.esp[to], &ledger.ways[from]);
        let (near, far) = (&site.world.nodes[from], &site.world.nodes[to]);
        let case = format!("way {from}: {:?}\n{esp:?}\n{:?} {:?}", site.plan, near.drops(), far.drops());

        // Sender: a packet that never reached a wire was dropped for a reason.
        let of_queue = drops(near, &[INSIDE], is_of_queue);
        let sealed = site.totals(from).sealed;
        // Between the end of an SA and the start of its successor no SA exists. The inner SA has counted packets that
        // the outer one has not.
        let no_sa = drops(near, &[INSIDE], is_without_sa);
        let nested = site.plan.around.is_some();
        let once_each = if nested { 2 * esp.sent } else { esp.sent };
        let is_accounted = match (of_queue, no_sa) {
            (0, 0) => sealed == once_each,
            (0, _) => sealed == once_each || nested && sealed > once_each,
            _ => sealed > once_each,
        };
        assert!(is_accounted, "{case}");
        let blocked = drops(near, &[INSIDE], |reason| reason == DropReason::PolicyBlock);
        assert_eq!(near.datapath.counters.get(Mib::XfrmOutPolBlock), blocked, "{case}");
        let too_big = drops(near, &[INSIDE], |reason| reason == DropReason::PacketTooBig);
        let of_node: u64 = near.datapath.ports.drop_counts().filter(|(link, ..)| link.is_none()).map(|(.., n)| n).sum();
        assert_eq!(blocked + too_big + of_queue + no_sa, drops(near, &[INSIDE], |_| true) + of_node, "{case}");
        let (missing, whole, perhaps) = (way.missing(), blocked + too_big, of_queue + no_sa);
        assert!(whole <= missing && (missing == 0 || whole + perhaps > 0), "{missing} are missing: {case}");
        // Thin packets merged by GRO count as one when they are dropped.
        assert!(site.plan.gro[0] || missing <= whole + perhaps, "{missing} are missing: {case}");
        assert!(way.errors <= too_big + perhaps, "{case}");

        // Receiver: packets within the replay window were opened and all others refused; opened packets were delivered
        // or blocked.
        let totals = site.totals(to);
        let replayed = drops(far, &WANS, |reason| reason == DropReason::EspReplay);
        assert_eq!(totals.replay + totals.replay_window, replayed, "{case}");
        // In transport mode ESP of an unknown SA is an unprotected packet for the host. A flipped bit may change an SPI
        // to that of another SA, whose ESP is not in UDP.
        let is_unknown =
            |reason| matches!(reason, DropReason::EspNoState | DropReason::EspMismatch | DropReason::PolicyMismatch);
        let unknown = drops(far, &WANS, is_unknown);
        // With extended sequence numbers, a number left of the window is interpreted as one of the next subspace, and
        // its ICV is then wrong (RFC 4303 App. A2.2).
        assert!(site.plan.esn || totals.failed + unknown <= esp.damaged, "{case}");
        assert!(unknown <= esp.damaged, "{case}");
        assert_eq!(totals.failed, drops(far, &WANS, |reason| reason == DropReason::EspIcv), "{case}");
        assert_eq!(totals.opened, esp.accepted, "{case}");
        assert_eq!(esp.arrived + esp.peeled, totals.opened + replayed + totals.failed + unknown, "{case}");
        let stopped = drops(far, &WANS, |_| true) - replayed - totals.failed - unknown;
        assert_eq!(far.datapath.counters.get(Mib::XfrmInPolBlock), stopped, "{case}");
        let undelivered = totals.opened - esp.peeled - way.delivered;
        assert!(stopped <= undelivered && (undelivered == 0 || stopped > 0), "{undelivered} were stopped: {case}");
        assert!(site.plan.gro[1] || stopped == undelivered, "{undelivered} were stopped: {case}");

        self.without_sa += no_sa;
        self.nested += esp.peeled;
        self.sealed += esp.sent;
        self.delivered += way.delivered;
        self.lost += esp.lost;
        self.replayed += replayed;
        self.forged += totals.failed + unknown;
        self.blocked += blocked + stopped;
        self.too_big += too_big;
        self.reassembled += way.reassembled;
    }

    /// Checks that every kind of fault occurred: a run without faults proves nothing.
    pub(crate) fn check_trouble(self, kind: Kind) {
        let Self { sealed, delivered, lost, replayed, forged, blocked, too_big, busy, rekeys, expired, .. } = self;
        // Transport mode has neither fragments (RFC 4303 §3.3.4) nor, in these tests, nested SAs.
        let of_tunnels = if kind == Kind::Transport { [1; 2] } else { [self.reassembled, self.nested] };
        let of_all = [lost, replayed, forged, blocked, too_big, busy, rekeys, expired, self.held, self.without_sa];
        let mut troubles = of_all.iter().chain(&of_tunnels);
        assert!(troubles.all(|&count| count > 0) && delivered > sealed / 2, "{self:?}");
    }
}

/// Tells whether a packet was dropped while it waited for a link or a neighbour.
fn is_of_queue(reason: DropReason) -> bool {
    matches!(
        reason,
        DropReason::TxQueueFull | DropReason::NeighbourFailed | DropReason::NeighbourQueueFull | DropReason::LinkDown
    )
}

/// Tells whether an SA was missing, or expired.
fn is_without_sa(reason: DropReason) -> bool {
    use DropReason::{EspExpired, EspState, PolicyNoState, PolicyQueueFull};
    matches!(reason, PolicyNoState | PolicyQueueFull | EspExpired | EspState)
}

/// Number of packets received on these links and dropped for these reasons.
fn drops(node: &sim::Node, links: &[PortId], of: impl Fn(DropReason) -> bool) -> u64 {
    let drops = node.datapath.ports.drop_counts();
    drops
        .filter(|&(link, reason, _)| link.is_some_and(|link| links.contains(&link)) && of(reason))
        .map(|(.., n)| n)
        .sum()
}
