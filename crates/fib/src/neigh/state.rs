//! States of a neighbour, and their transitions by messages (RFC 4861 §7.2.3, §7.2.5, App. C).

use std::collections::VecDeque;

use base::Instant;
use packet::Packet;
use wire::MacAddr;

use super::types::{Limits, LladdrUpdate, NudState};

/// State of a neighbour, with the data of that state only.
#[derive(Debug)]
pub(super) enum State {
    /// Solicited `sent` times by multicast, unanswered so far.
    Incomplete { waiting: Waiting, sent: u8, until: Instant },
    /// Recently confirmed as reachable.
    Reachable { mac: MacAddr, until: Instant },
    /// Not recently confirmed, and unused since.
    Stale { mac: MacAddr },
    /// In use again; probed unless confirmed in time.
    Delay { mac: MacAddr, until: Instant },
    /// Probed by unicast `sent` times.
    Probe { mac: MacAddr, sent: u8, until: Instant },
    /// Solicitations stayed unanswered.
    Failed { until: Instant },
    /// Permanent, set by the operator.
    Permanent { mac: MacAddr },
}

/// Waiting packets, in order, with the memory that they pin.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    packets: VecDeque<(Packet, usize)>,
    bytes: usize,
}

impl State {
    /// The link-layer address, if known.
    pub(super) fn mac(&self) -> Option<MacAddr> {
        match self {
            Self::Reachable { mac, .. }
            | Self::Stale { mac }
            | Self::Delay { mac, .. }
            | Self::Probe { mac, .. }
            | Self::Permanent { mac } => Some(*mac),
            Self::Incomplete { .. } | Self::Failed { .. } => None,
        }
    }

    /// The link-layer address for the packets of other shards; `None` if a packet has to pass the state machine, which resolves the
    /// neighbour or begins to probe it.
    pub(super) const fn shared_mac(&self) -> Option<MacAddr> {
        match self {
            Self::Reachable { mac, .. }
            | Self::Delay { mac, .. }
            | Self::Probe { mac, .. }
            | Self::Permanent { mac } => Some(*mac),
            Self::Stale { .. } | Self::Incomplete { .. } | Self::Failed { .. } => None,
        }
    }

    /// Time at which the state ends without a message, if it does.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match self {
            Self::Incomplete { until, .. }
            | Self::Reachable { until, .. }
            | Self::Delay { until, .. }
            | Self::Probe { until, .. }
            | Self::Failed { until } => Some(*until),
            Self::Stale { .. } | Self::Permanent { .. } => None,
        }
    }

    /// The state without its data.
    pub(super) const fn kind(&self) -> NudState {
        match self {
            Self::Incomplete { .. } => NudState::Incomplete,
            Self::Reachable { .. } => NudState::Reachable,
            Self::Stale { .. } => NudState::Stale,
            Self::Delay { .. } => NudState::Delay,
            Self::Probe { .. } => NudState::Probe,
            Self::Failed { .. } => NudState::Failed,
            Self::Permanent { .. } => NudState::Permanent,
        }
    }

    /// Number of waiting packets.
    pub(super) fn queued(&self) -> usize {
        match self {
            Self::Incomplete { waiting, .. } => waiting.packets.len(),
            _ => 0,
        }
    }

    /// Memory of the waiting packets.
    pub(super) fn waiting_bytes(&self) -> usize {
        match self {
            Self::Incomplete { waiting, .. } => waiting.bytes,
            _ => 0,
        }
    }

    /// The waiting packets, in order.
    pub(super) fn into_waiting(self) -> impl Iterator<Item = Packet> {
        let waiting = match self {
            Self::Incomplete { waiting, .. } => waiting,
            _ => Waiting::default(),
        };
        waiting.packets.into_iter().map(|(packet, _)| packet)
    }

    /// Tells whether the entry is permanent.
    pub(super) const fn is_permanent(&self) -> bool {
        matches!(self, Self::Permanent { .. })
    }

    /// Tells whether a solicitation of this node is still unanswered.
    pub(super) const fn is_solicited(&self) -> bool {
        matches!(self, Self::Incomplete { .. } | Self::Probe { .. })
    }

    /// The state after `update`; `None` for no change. For a neighbour without a link-layer address, also after it has
    /// failed, the rows of INCOMPLETE in RFC 4861 App. C apply.
    pub(super) fn after(&self, now: Instant, update: LladdrUpdate, limits: &Limits) -> Option<Self> {
        if self.is_permanent() {
            return None;
        }
        let stale = |mac| Self::Stale { mac };
        let reachable = |mac| Self::Reachable { mac, until: now + limits.reachable };
        match (self.mac(), update) {
            (None, LladdrUpdate::Solicitation(mac)) => Some(stale(mac)),
            (Some(known), LladdrUpdate::Solicitation(mac)) => (mac != known).then(|| stale(mac)),
            (None, LladdrUpdate::Advertised { mac, solicited, .. }) => {
                mac.map(|mac| if solicited { reachable(mac) } else { stale(mac) })
            }
            (Some(known), LladdrUpdate::Advertised { mac, solicited, overrides }) => {
                let mac = mac.unwrap_or(known);
                match (mac == known, overrides, solicited) {
                    (true, _, true) | (false, true, true) => Some(reachable(mac)),
                    (true, _, false) => None,
                    (false, true, false) => Some(stale(mac)),
                    // A different link-layer address that may not replace the known one makes the entry stale.
                    (false, false, _) => matches!(self, Self::Reachable { .. }).then(|| stale(known)),
                }
            }
        }
    }
}

impl Waiting {
    /// The number of packets.
    pub(super) fn len(&self) -> usize {
        self.packets.len()
    }

    /// Memory that the packets pin.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds a packet, which pins `truesize` bytes.
    pub(super) fn push(&mut self, packet: Packet, truesize: usize) {
        self.bytes += truesize;
        self.packets.push_back((packet, truesize));
    }

    /// Removes and returns the oldest packet, with its memory.
    pub(super) fn pop(&mut self) -> Option<(Packet, usize)> {
        let (packet, truesize) = self.packets.pop_front()?;
        self.bytes -= truesize;
        Some((packet, truesize))
    }
}
