//! Limits, inputs and outputs of the neighbour tables.

use std::net::IpAddr;
use std::time::Duration;

use base::{DropReason, LinkId, Rate};
use packet::Packet;
use wire::MacAddr;

/// Timers and limits. The defaults are Linux's, from RFC 4861 §10. The rates, and the limits for a table and in total, are not
/// in Linux.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Multicast solicitations before an unknown neighbour counts as failed (`mcast_solicit`).
    pub multicast_probes: u8,
    /// Unicast solicitations before a known neighbour counts as failed (`ucast_solicit`).
    pub unicast_probes: u8,
    /// Time between solicitations (`retrans_time_ms`).
    pub retransmit: Duration,
    /// Time for which a neighbour that answered counts as reachable (`base_reachable_time_ms`). Not randomised.
    pub reachable: Duration,
    /// Time from the first use of a stale neighbour to its first probe (`delay_first_probe_time`).
    pub delay: Duration,
    /// Time for which a failed neighbour is remembered (`gc_stale_time`).
    pub failed: Duration,
    /// Entries of one table, without those that are permanent (`gc_thresh3`). A table holds the neighbours of one family
    /// on one link; at least one entry fits.
    pub entries: usize,
    /// Entries made by solicitations and ARP requests, for each table.
    pub solicitations: Rate,
    /// Resolutions of neighbours that have never answered, for each table (RFC 6583 §6.4, §7.1).
    pub resolutions: Rate,
    /// Answers to stations that have not answered this node themselves, for each table.
    pub answers: Rate,
    /// Least time between two answers to a confirmed neighbour that do not count for `answers`.
    pub answer_interval: Duration,
    /// Packets that may wait for one neighbour (`unres_qlen`, Linux's default); at least one. A datagram of 64 KiB has 46 fragments.
    pub waiting_packets: usize,
    /// Memory of the packets that wait for one neighbour, by `truesize` (`unres_qlen_bytes`).
    pub waiting_bytes: usize,
    /// Memory of the packets that wait for the neighbours of one table.
    pub waiting_bytes_table: usize,
    /// Memory of the packets that wait for any neighbour.
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
    /// The packet is given back, to be dropped for this reason.
    Dropped(Packet, DropReason),
}

/// A task for the owner of [`Neighbours`](super::Neighbours).
#[derive(Debug)]
pub enum Action {
    /// Send a solicitation for `target` on `link`.
    Solicit {
        /// The link.
        link: LinkId,
        /// The address to be resolved.
        target: IpAddr,
        /// The link-layer address of a known neighbour, which is probed; `None` for a multicast or broadcast.
        unicast_to: Option<MacAddr>,
    },
    /// Send on `link` a packet that waited.
    Send {
        /// The link.
        link: LinkId,
        /// The link-layer address of its next hop.
        to: MacAddr,
        /// The packet.
        packet: Packet,
    },
    /// Send on `link` a complete frame: the answer to a solicitation or ARP request for an address of this node.
    Answer {
        /// The link.
        link: LinkId,
        /// The frame, from its Ethernet header on.
        frame: Packet,
    },
    /// Drop a packet that waited. For [`DropReason::NeighbourFailed`] its sender gets an ICMP error.
    Drop {
        /// The link by which it should have left.
        link: LinkId,
        /// The packet.
        packet: Packet,
        /// The reason.
        reason: DropReason,
    },
    /// Tell the operator: another station uses this node's own address.
    Conflict {
        /// The link.
        link: LinkId,
        /// The address.
        addr: IpAddr,
        /// The other station.
        station: MacAddr,
    },
}

/// Statement of a neighbour's message about the sender's link-layer address.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LladdrUpdate {
    /// The message solicits one of this node's addresses and has the sender's link-layer address: an ARP request to this
    /// node, a neighbour solicitation with a source link-layer address (RFC 4861 §7.2.3). It makes a STALE entry.
    Solicitation(MacAddr),
    /// The message has the sender's own address. It changes an entry and creates none. An ARP reply, or a request to others; a
    /// neighbour advertisement (RFC 4861 §7.2.5).
    Advertised {
        /// The sender's link-layer address, if the message has one.
        mac: Option<MacAddr>,
        /// The message claims to answer a solicitation: the sender is reachable both ways.
        solicited: bool,
        /// The message may replace another link-layer address.
        overrides: bool,
    },
}

/// State of a neighbour as the operator sets it (`ip neigh … nud`).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Known {
    /// This link-layer address; messages do not change it.
    Permanent(MacAddr),
    /// This link-layer address, as if the neighbour had answered.
    Reachable(MacAddr),
    /// This link-layer address, to be probed when it is used.
    Stale(MacAddr),
    /// No entry.
    Nothing,
}

/// A neighbour, for a dump.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Neighbour {
    /// The link.
    pub link: LinkId,
    /// The neighbour's address.
    pub addr: IpAddr,
    /// The link-layer address, once known.
    pub mac: Option<MacAddr>,
    /// Linux's word for the state, such as `REACHABLE`.
    pub state: &'static str,
    /// Packets that wait for the link-layer address.
    pub queued: usize,
    /// The protocol that set the entry (`RTPROT_*`); 0 if it was learnt or the protocol is not known.
    pub protocol: u8,
}

/// Neighbours whose state has changed without the operator, for `ip monitor neigh`.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Changed {
    /// Entries that changed or were removed, in order; one that changed twice may be in it twice.
    pub who: Vec<(LinkId, IpAddr)>,
    /// Entries that were removed with their link, as they were.
    pub gone: Vec<Neighbour>,
    /// There were more changes than are kept.
    pub more: bool,
}
