//! The states of a neighbour, and their transitions by messages (RFC 4861 §7.2.3, §7.2.5, App. C).

use std::collections::VecDeque;

use base::Instant;
use packet::Packet;
use wire::MacAddr;

use super::types::{Limits, LladdrUpdate};

/// State of a neighbour. Each state holds only what exists in it.
#[derive(Debug)]
pub(super) enum State {
    /// Solicited by multicast `sent` times, without an answer yet.
    Incomplete { waiting: Waiting, sent: u8, until: Instant },
    /// Reachability was confirmed lately.
    Reachable { mac: MacAddr, until: Instant },
    /// Not confirmed lately, and not used since.
    Stale { mac: MacAddr },
    /// In use again; probed unless it is confirmed in time.
    Delay { mac: MacAddr, until: Instant },
    /// Probed by unicast `sent` times.
    Probe { mac: MacAddr, sent: u8, until: Instant },
    /// Solicitations were not answered.
    Failed { until: Instant },
    /// Permanent, set by the operator.
    Permanent { mac: MacAddr },
}

/// Packets that wait, in order, with the memory that they pin.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    packets: VecDeque<(Packet, usize)>,
    bytes: usize,
}

impl State {
    /// The link-layer address, where there is one.
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

    /// The time at which the state ends by itself, if it does.
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

    /// Linux's word for the state.
    pub(super) fn word(&self) -> &'static str {
        match self {
            Self::Incomplete { .. } => "INCOMPLETE",
            Self::Reachable { .. } => "REACHABLE",
            Self::Stale { .. } => "STALE",
            Self::Delay { .. } => "DELAY",
            Self::Probe { .. } => "PROBE",
            Self::Failed { .. } => "FAILED",
            Self::Permanent { .. } => "PERMANENT",
        }
    }

    /// The number of packets that wait.
    pub(super) fn queued(&self) -> usize {
        match self {
            Self::Incomplete { waiting, .. } => waiting.packets.len(),
            _ => 0,
        }
    }

    /// Memory of the packets that wait.
    pub(super) fn waiting_bytes(&self) -> usize {
        match self {
            Self::Incomplete { waiting, .. } => waiting.bytes,
            _ => 0,
        }
    }

    /// The packets that wait, in order.
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

    /// Tells whether a solicitation of this node has yet to be answered.
    pub(super) const fn is_solicited(&self) -> bool {
        matches!(self, Self::Incomplete { .. } | Self::Probe { .. })
    }

    /// The state after `update`; `None` when that changes nothing. A neighbour without a link-layer address goes by the
    /// rows of INCOMPLETE in RFC 4861 App. C, also after it has failed.
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
                    // Another link-layer address that may not replace the known one puts it in doubt.
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

    /// Takes the oldest packet, with its memory.
    pub(super) fn pop(&mut self) -> Option<(Packet, usize)> {
        let (packet, truesize) = self.packets.pop_front()?;
        self.bytes -= truesize;
        Some((packet, truesize))
    }
}
