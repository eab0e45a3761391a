//! The states of a neighbour, and what a message makes of them (RFC 4861 §7.2.3, §7.2.5, App. C).

use std::collections::VecDeque;

use base::Instant;
use packet::Packet;
use wire::MacAddr;

use super::{Heard, Limits};

/// What is known of a neighbour. Each state holds only what exists in it.
#[derive(Debug)]
pub(super) enum State {
    /// Asked for, `sent` times, and not heard of yet.
    Incomplete { waiting: Waiting, sent: u8, until: Instant },
    /// Heard of lately, as an answer to us.
    Reachable { mac: MacAddr, until: Instant },
    /// Not heard of lately; nothing has been sent to it since.
    Stale { mac: MacAddr, since: Instant },
    /// In use again: it has a while to be heard of without being asked.
    Delay { mac: MacAddr, until: Instant },
    /// Asked itself, `sent` times, whether it is still there.
    Probe { mac: MacAddr, sent: u8, until: Instant },
    /// It did not answer.
    Failed { until: Instant },
    /// The operator has said so.
    Permanent { mac: MacAddr },
}

/// Packets that wait, in order, with the memory that they pin.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    packets: VecDeque<(Packet, usize)>,
    bytes: usize,
}

/// What a neighbour is worth to a full table; the least goes first, and of equals the eldest.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum Worth {
    Failed(Instant),
    Incomplete(Instant),
    Stale(Instant),
    Confirmed(Instant),
}

impl State {
    /// The link-layer address, where there is one.
    pub(super) fn mac(&self) -> Option<MacAddr> {
        match self {
            Self::Reachable { mac, .. }
            | Self::Stale { mac, .. }
            | Self::Delay { mac, .. }
            | Self::Probe { mac, .. }
            | Self::Permanent { mac } => Some(*mac),
            Self::Incomplete { .. } | Self::Failed { .. } => None,
        }
    }

    /// When it ends by itself, if it does.
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

    /// Linux's word.
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

    pub(super) fn queued(&self) -> usize {
        match self {
            Self::Incomplete { waiting, .. } => waiting.len(),
            _ => 0,
        }
    }

    /// Tells whether the operator has set it for good.
    pub(super) const fn is_permanent(&self) -> bool {
        matches!(self, Self::Permanent { .. })
    }

    /// What it is worth; `None` for one that does not go.
    pub(super) fn worth(&self) -> Option<Worth> {
        match self {
            Self::Failed { until } => Some(Worth::Failed(*until)),
            Self::Incomplete { until, .. } => Some(Worth::Incomplete(*until)),
            Self::Stale { since, .. } => Some(Worth::Stale(*since)),
            Self::Reachable { until, .. } | Self::Delay { until, .. } | Self::Probe { until, .. } => {
                Some(Worth::Confirmed(*until))
            }
            Self::Permanent { .. } => None,
        }
    }

    /// The state after `heard`; `None` when that changes nothing. A neighbour that was not known goes by the columns of
    /// INCOMPLETE in RFC 4861 App. C, also when it had failed.
    pub(super) fn after(&self, now: Instant, heard: Heard, limits: &Limits) -> Option<Self> {
        if self.is_permanent() {
            return None;
        }
        let stale = |mac| Self::Stale { mac, since: now };
        let reachable = |mac| Self::Reachable { mac, until: now + limits.reachable };
        match (self.mac(), heard) {
            (None, Heard::Asked(mac)) => Some(stale(mac)),
            (Some(known), Heard::Asked(mac)) => (mac != known).then(|| stale(mac)),
            (None, Heard::Advertised { mac, solicited, .. }) => {
                mac.map(|mac| if solicited { reachable(mac) } else { stale(mac) })
            }
            (Some(known), Heard::Advertised { mac, solicited, overrides }) => {
                let mac = mac.unwrap_or(known);
                match (mac == known, overrides, solicited) {
                    (true, _, true) | (false, true, true) => Some(reachable(mac)),
                    (true, _, false) => None,
                    (false, true, false) => Some(stale(mac)),
                    // Somebody disagrees and may not override: what is known becomes doubtful, and is kept.
                    (false, false, _) => matches!(self, Self::Reachable { .. }).then(|| stale(known)),
                }
            }
        }
    }
}

impl Worth {
    pub(super) fn is_confirmed(self) -> bool {
        matches!(self, Self::Confirmed(_))
    }
}

impl Waiting {
    pub(super) fn len(&self) -> usize {
        self.packets.len()
    }

    /// Memory that the packets pin.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn push(&mut self, packet: Packet, truesize: usize) {
        self.bytes += truesize;
        self.packets.push_back((packet, truesize));
    }

    /// The eldest packet, with its memory.
    pub(super) fn pop(&mut self) -> Option<(Packet, usize)> {
        let (packet, truesize) = self.packets.pop_front()?;
        self.bytes -= truesize;
        Some((packet, truesize))
    }

    pub(super) fn into_iter(self) -> impl Iterator<Item = Packet> {
        self.packets.into_iter().map(|(packet, _)| packet)
    }
}
