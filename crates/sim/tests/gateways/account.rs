//! Where the packets ended: the sums that have to agree.

use base::{DropReason, LinkId, Mib};

use crate::ledger::Ledger;
use crate::onlooker::Onlooker;
use crate::plan::Kind;
use crate::site::{INSIDE, Site, WANS};

/// What happened in some days, both ways together.
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
}

impl Sums {
    /// Checks what gateway `from` sent and the other one received, and adds it.
    pub(crate) fn add_way(&mut self, site: &Site, onlooker: &Onlooker, ledger: &Ledger, from: usize) {
        let to = 1 - from;
        let (esp, way) = (onlooker.esp[to], &ledger.ways[from]);
        let (near, far) = (&site.world.nodes[from], &site.world.nodes[to]);
        let told = format!("way {from}: {:?}\n{esp:?}\n{:?} {:?}", site.plan, near.drops(), far.drops());

        // The sender: what was never on a wire was dropped for a reason.
        let of_queue = drops(near, &[INSIDE], is_of_queue);
        let sealed = site.totals(from).sealed;
        assert!(if of_queue == 0 { sealed == esp.sent } else { sealed > esp.sent }, "{told}");
        let blocked = drops(near, &[INSIDE], |reason| reason == DropReason::PolicyBlock);
        assert_eq!(near.path.counters.get(Mib::XfrmOutPolBlock), blocked, "{told}");
        let too_big = drops(near, &[INSIDE], |reason| reason == DropReason::PacketTooBig);
        assert_eq!(blocked + too_big + of_queue, drops(near, &[INSIDE, LinkId::NONE], |_| true), "{told}");
        let (missing, whole) = (way.missing(), blocked + too_big);
        assert!(whole <= missing && (missing == 0 || whole + of_queue > 0), "{missing} are missing: {told}");
        // Thin packets that GRO has joined are one when they are dropped.
        assert!(site.plan.gro[0] || missing <= whole + of_queue, "{missing} are missing: {told}");
        assert!(way.errors <= too_big + of_queue, "{told}");

        // The receiver: what the replay window lets pass was opened and all else refused; what was opened was delivered
        // or blocked.
        let totals = site.totals(to);
        let replayed = drops(far, &WANS, |reason| reason == DropReason::EspReplay);
        assert_eq!(totals.replay + totals.replay_window, replayed, "{told}");
        // In transport mode ESP of an SA that is not known is a packet for the host, which nothing protects.
        let is_unknown = |reason| matches!(reason, DropReason::EspNoState | DropReason::PolicyMismatch);
        let unknown = drops(far, &WANS, is_unknown);
        // With extended numbers one that is left of the window is taken for one of the next subspace, and its ICV is
        // wrong then (RFC 4303 App. A2.2).
        assert!(site.plan.esn || totals.failed + unknown <= esp.damaged, "{told}");
        assert!(unknown <= esp.damaged, "{told}");
        assert_eq!(totals.failed, drops(far, &WANS, |reason| reason == DropReason::EspIcv), "{told}");
        assert_eq!(totals.opened, esp.accepted, "{told}");
        assert_eq!(esp.arrived, totals.opened + replayed + totals.failed + unknown, "{told}");
        let stopped = drops(far, &WANS, |_| true) - replayed - totals.failed - unknown;
        assert_eq!(far.path.counters.get(Mib::XfrmInPolBlock), stopped, "{told}");
        let undelivered = totals.opened - way.delivered;
        assert!(stopped <= undelivered && (undelivered == 0 || stopped > 0), "{undelivered} were stopped: {told}");
        assert!(site.plan.gro[1] || stopped == undelivered, "{undelivered} were stopped: {told}");

        self.sealed += sealed;
        self.delivered += way.delivered;
        self.lost += esp.lost;
        self.replayed += replayed;
        self.forged += totals.failed + unknown;
        self.blocked += blocked + stopped;
        self.too_big += too_big;
        self.reassembled += way.reassembled;
    }

    /// A day on which nothing went wrong proves nothing.
    pub(crate) fn check_trouble(self, kind: Kind) {
        let Self { sealed, delivered, lost, replayed, forged, blocked, too_big, reassembled, busy, rekeys } = self;
        // Transport mode has no fragments (RFC 4303 §3.3.4).
        let reassembled = if kind == Kind::Transport { 1 } else { reassembled };
        let troubles = [lost, replayed, forged, blocked, too_big, reassembled, busy, rekeys];
        assert!(troubles.iter().all(|&count| count > 0) && delivered > sealed / 2, "{self:?}");
    }
}

/// Whether it is what waits for a link or a neighbour that was given up.
fn is_of_queue(reason: DropReason) -> bool {
    matches!(
        reason,
        DropReason::TxQueueFull | DropReason::NeighbourFailed | DropReason::NeighbourQueueFull | DropReason::LinkDown
    )
}

/// How many packets that came in by some links were dropped for some reasons.
fn drops(node: &sim::Node, links: &[LinkId], of: impl Fn(DropReason) -> bool) -> u64 {
    let drops = node.path.ports.drop_counts();
    drops.filter(|&(link, reason, _)| links.contains(&link) && of(reason)).map(|(.., n)| n).sum()
}
