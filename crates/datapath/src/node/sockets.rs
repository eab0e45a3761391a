//! Sockets of the host side: settings of early demux, and the look-up of a socket's device for packets of VRFs.

use std::collections::VecDeque;
use std::hash::BuildHasher;
use std::net::IpAddr;
use std::time::Duration;

use base::{Instant, PortId};
use foldhash::quality::RandomState;
use packet::Packet;
use wire::{FlowKey, Protocol};

use crate::next::Cast;

/// Settings of early demux (`net.ipv4.ip_early_demux`, `tcp_early_demux`, `udp_early_demux`).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct EarlyDemux {
    /// Early demux of any protocol.
    pub ip: bool,
    /// Early demux of TCP.
    pub tcp: bool,
    /// Early demux of UDP.
    pub udp: bool,
}

impl Default for EarlyDemux {
    fn default() -> Self {
        Self { ip: true, tcp: true, udp: true }
    }
}

/// Counters of early demux.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct DemuxCounts {
    /// Packets that went up without a route lookup.
    pub hits: u64,
    /// Packets of no established flow, or of a flow without a cached route.
    pub misses: u64,
}

/// Time for which an answer is valid: there is no event for a created, bound or closed socket.
const FRESH: Duration = Duration::from_secs(1);

/// Destinations whose answers are kept; a power of two.
const SLOTS: usize = 256;

/// Rate limit of questions: burst, and questions per second. A scan of all ports costs a tenth of a processor at most.
const BURST: f64 = 1_000.0;

const PER_SECOND: f64 = 10_000.0;

/// Question to the kernel of the host side: which socket gets a packet of this flow?
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SocketQuestion {
    /// Addresses and ports of the received packet: TCP or UDP.
    pub flow: FlowKey,
    /// Input link.
    pub link: PortId,
    /// VRF of the link; the link itself if it is in none.
    pub vrf: PortId,
}

/// Answer: the binding of the socket that gets the packet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SocketBinding {
    /// To the device of the link.
    Link,
    /// To the device of the VRF.
    Vrf,
    /// To no device: the socket gets packets of VRFs only if [`L3mdevAccept`] allows it.
    Unbound,
    /// To no device, and the socket is connected to the packet's source: it is the socket of a flow that exists.
    Connected,
    /// No socket.
    NoSocket,
}

/// Whether sockets that are bound to no device get packets of VRFs (`net.ipv4.tcp_l3mdev_accept`, `udp_l3mdev_accept`).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct L3mdevAccept {
    /// Sockets of TCP.
    pub tcp: bool,
    /// Sockets of UDP.
    pub udp: bool,
}

/// Pending and answered look-ups of sockets.
#[derive(Debug, Default)]
pub(crate) struct SocketLookups {
    /// Whether the caller answers.
    pub(crate) is_enabled: bool,
    pub(crate) accept: L3mdevAccept,
    pub(crate) waiting: VecDeque<WaitingPacket>,
    known: Vec<Option<CachedBinding>>,
    hasher: RandomState,
    pub(crate) budget: Budget,
}

#[derive(Debug)]
pub(crate) struct WaitingPacket {
    pub(crate) pkt: Packet,
    pub(crate) cast: Cast,
    pub(crate) question: SocketQuestion,
}

/// Local end of flows, the key of an answer.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) struct LocalEnd {
    link: PortId,
    vrf: PortId,
    protocol: Protocol,
    addr: IpAddr,
    port: u16,
}

#[derive(Clone, Copy, Debug)]
struct CachedBinding {
    end: LocalEnd,
    binding: SocketBinding,
    at: Instant,
}

/// Token bucket of questions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    left: f64,
    at: Instant,
}

impl Default for Budget {
    fn default() -> Self {
        Self { left: BURST, at: Instant::ZERO }
    }
}

impl Budget {
    pub(crate) fn take(&mut self, now: Instant) -> bool {
        self.left = (self.left + now.since(self.at).as_secs_f64() * PER_SECOND).min(BURST);
        self.at = now;
        let is_left = self.left >= 1.0;
        if is_left {
            self.left -= 1.0;
        }
        is_left
    }
}

impl SocketQuestion {
    pub(crate) const fn end(&self) -> LocalEnd {
        let Self { flow: FlowKey { dst: addr, dport: port, protocol, .. }, link, vrf } = *self;
        LocalEnd { link, vrf, protocol, addr, port }
    }
}

impl SocketLookups {
    pub(crate) fn known(&self, now: Instant, end: &LocalEnd) -> Option<SocketBinding> {
        let known = self.known.get(self.slot_of(end))?.as_ref()?;
        (known.end == *end && now.since(known.at) < FRESH).then_some(known.binding)
    }

    pub(crate) fn learn(&mut self, now: Instant, end: LocalEnd, binding: SocketBinding) {
        let binding = match binding {
            // Another peer gets another socket: the server's, of that port.
            SocketBinding::Connected => SocketBinding::Unbound,
            other => other,
        };
        if self.known.is_empty() {
            self.known = vec![None; SLOTS];
        }
        let slot = self.slot_of(&end);
        self.known[slot] = Some(CachedBinding { end, binding, at: now });
    }

    fn slot_of(&self, end: &LocalEnd) -> usize {
        self.hasher.hash_one(end) as usize % SLOTS
    }

    pub(crate) fn accepts(&self, protocol: Protocol) -> bool {
        match protocol {
            Protocol::TCP => self.accept.tcp,
            Protocol::UDP => self.accept.udp,
            _ => false,
        }
    }
}
