//! Limits, inputs and outputs of the neighbour tables.

use std::net::IpAddr;
use std::time::Duration;

use base::{DropReason, PortId, Rate};
use packet::Packet;
use wire::MacAddr;

/// Timers and limits. The defaults are Linux's, from RFC 4861 §10; Linux has no counterpart of the rates and of the
/// limits for a table and in total.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Multicast solicitations before an unknown neighbour is marked as failed (`mcast_solicit`).
    pub multicast_probes: u8,
    /// Unicast solicitations before a known neighbour is marked as failed (`ucast_solicit`).
    pub unicast_probes: u8,
    /// Time between solicitations (`retrans_time_ms`).
    pub retransmit: Duration,
    /// Time for which a neighbour that answered is reachable (`base_reachable_time_ms`). Not randomised.
    pub reachable: Duration,
    /// Time from the first use of a stale neighbour to its first probe (`delay_first_probe_time`).
    pub delay: Duration,
    /// Time for which a failed neighbour is kept (`gc_stale_time`).
    pub failed: Duration,
    /// Entries of one table, without permanent ones (`gc_thresh3`). A table holds the neighbours of one family on one
    /// link, and at least one entry.
    pub entries: usize,
    /// Entries created by solicitations and ARP requests, for each table.
    pub solicitations: Rate,
    /// Resolutions of neighbours that have never answered, for each table (RFC 6583 §6.4, §7.1).
    pub resolutions: Rate,
    /// Replies to stations that have never answered this node, for each table.
    pub answers: Rate,
    /// Minimum time between two replies to a confirmed neighbour that are outside the limit `answers`.
    pub answer_interval: Duration,
    /// Packets that may wait for one neighbour (`unres_qlen`, Linux's default); at least one. A datagram of 64 KiB has
    /// 46 fragments.
    pub waiting_packets: usize,
    /// Memory of one neighbour's waiting packets, by `truesize` (`unres_qlen_bytes`).
    pub waiting_bytes: usize,
    /// Memory of one table's waiting packets.
    pub waiting_bytes_table: usize,
    /// Memory of all waiting packets.
    pub waiting_bytes_total: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            multicast_probes: 3,
            unicast_probes: 3,
            retransmit: Duration::from_secs(1),
            reachable: Duration::from_secs(30),
            delay: Duration::from_secs(5),
            failed: Duration::from_secs(60),
            entries: 1024,
            solicitations: Rate::new(256, 256),
            // An unanswered resolution takes three seconds: a scan occupies at most three quarters of a table.
            resolutions: Rate::new(256, 256),
            answers: Rate::new(10_000, 10_000),
            answer_interval: Duration::from_millis(100),
            waiting_packets: 101,
            waiting_bytes: 212_992,
            waiting_bytes_table: 4 << 20,
            waiting_bytes_total: 8 << 20,
        }
    }
}

/// The result of [`resolve`](super::Neighbours::resolve) for a packet.
#[derive(Debug)]
pub enum Resolution {
    /// The packet may be sent to this link-layer address.
    Send(MacAddr, Packet),
    /// The packet waits; a later [`Action`] sends or drops it.
    Queued,
    /// The packet is returned, to be dropped with this reason.
    Dropped(Packet, DropReason),
}

/// Action for the owner of [`Neighbours`](super::Neighbours).
#[derive(Debug)]
pub enum Action {
    /// Send a solicitation for `target` on `link`.
    Solicit {
        /// The link.
        link: PortId,
        /// Address to resolve.
        target: IpAddr,
        /// Link-layer address of a known neighbour to probe; `None` for a multicast or broadcast.
        unicast_to: Option<MacAddr>,
    },
    /// Send a waiting packet on `link`.
    Send {
        /// The link.
        link: PortId,
        /// Link-layer address of the packet's next hop.
        to: MacAddr,
        /// The packet.
        packet: Packet,
    },
    /// Send a complete frame on `link`: the reply to a solicitation or ARP request for an address of this node.
    Answer {
        /// The link.
        link: PortId,
        /// The frame, from its Ethernet header on.
        frame: Packet,
    },
    /// Drop a waiting packet. For [`DropReason::NeighbourFailed`] the packet's sender gets an ICMP error.
    Drop {
        /// Output link of the packet.
        link: PortId,
        /// The packet.
        packet: Packet,
        /// The reason.
        reason: DropReason,
    },
    /// Report a conflict to the operator: another station uses this node's own address.
    Conflict {
        /// The link.
        link: PortId,
        /// The address.
        addr: IpAddr,
        /// The other station.
        station: MacAddr,
    },
}

/// Content of a neighbour's message about the sender's link-layer address.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LladdrUpdate {
    /// The message solicits one of this node's addresses and has the sender's link-layer address: an ARP request to
    /// this node, or a neighbour solicitation with a source link-layer address (RFC 4861 §7.2.3). It creates a STALE
    /// entry.
    Solicitation(MacAddr),
    /// The message has the sender's own address: an ARP reply or a request to others, or a neighbour advertisement (RFC
    /// 4861 §7.2.5). It updates an entry and creates none.
    Advertised {
        /// The sender's link-layer address, if the message contains it.
        mac: Option<MacAddr>,
        /// The message claims to answer a solicitation: the neighbour is reachable in both directions.
        solicited: bool,
        /// The message may replace a different link-layer address.
        overrides: bool,
    },
}

/// State of a neighbour set by the operator (`ip neigh … nud`).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Known {
    /// Fixed link-layer address, unaffected by messages.
    Permanent(MacAddr),
    /// Link-layer address of a neighbour that counts as having answered.
    Reachable(MacAddr),
    /// Link-layer address to probe on use.
    Stale(MacAddr),
    /// No entry.
    Nothing,
}

/// State of a neighbour: Linux's `NUD_*`, RFC 4861 §7.3.2.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum NudState {
    /// Solicited by multicast, unanswered so far.
    Incomplete,
    /// Recently confirmed as reachable.
    Reachable,
    /// Not recently confirmed, and unused since.
    Stale,
    /// In use again; probed unless confirmed in time.
    Delay,
    /// Probed by unicast.
    Probe,
    /// Solicitations stayed unanswered.
    Failed,
    /// Set by the operator.
    Permanent,
}

impl NudState {
    /// All states.
    pub const ALL: [Self; 7] =
        [Self::Incomplete, Self::Reachable, Self::Stale, Self::Delay, Self::Probe, Self::Failed, Self::Permanent];

    /// Linux's name of the state.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Incomplete => "INCOMPLETE",
            Self::Reachable => "REACHABLE",
            Self::Stale => "STALE",
            Self::Delay => "DELAY",
            Self::Probe => "PROBE",
            Self::Failed => "FAILED",
            Self::Permanent => "PERMANENT",
        }
    }
}

/// A neighbour, for a dump.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Neighbour {
    /// The link.
    pub link: PortId,
    /// The neighbour's address.
    pub addr: IpAddr,
    /// The link-layer address, if known.
    pub mac: Option<MacAddr>,
    /// The state.
    pub state: NudState,
    /// Number of packets that wait for the link-layer address.
    pub queued: usize,
    /// The protocol that set the entry (`RTPROT_*`); 0 if the entry was learnt or the protocol is unknown.
    pub protocol: u8,
}

/// Neighbours whose state has changed without the operator, for `ip monitor neigh`.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Changes {
    /// Entries that changed or were removed, in order; possibly with duplicates.
    pub entries: Vec<(PortId, IpAddr)>,
    /// Entries that were removed with their link, with their last state.
    pub removed: Vec<Neighbour>,
    /// Whether changes beyond the limit were lost.
    pub is_truncated: bool,
}
