//! The packet in the datapath, with its parsed headers.

use std::net::{IpAddr, Ipv6Addr};
use std::ops::{Deref, DerefMut};

use base::{Domain, DropReason, PortId, RouteFlow};
use offload::ip_headers;
use packet::{Cut, GsoKind, Packet};
use wire::ip::Info;
use wire::{FlowKey, Protocol, Version, tcp, udp};
use xfrm::Flowi;

use crate::next::Cx;

/// Bytes in which a transport header has its ports, and the whole header of ICMP.
const PORTS_LEN: usize = 8;

/// Bytes in which a GRE header has its key (RFC 2890 §2).
const GRE_KEY_LEN: usize = 12;

/// A packet that begins with its IP header, with the summary of its headers.
#[derive(Debug)]
pub(crate) struct IpPacket {
    pub(crate) pkt: Carried,
    /// Summary of the headers.
    pub(crate) info: Info,
    /// Addresses and ports.
    pub(crate) flow: FlowKey,
    /// Device by which the socket of the flow sends, if early demux has found it.
    pub(crate) socket_device: Option<PortId>,
    /// Length of the longest fragment of a reassembled packet that is not delivered locally, with its headers (Linux
    /// `IPCB(skb)->frag_max_size`).
    pub(crate) frag_max_size: Option<usize>,
    /// Place of the packet's ESP header, once [`esp::offset`](crate::local::esp::offset) has looked for it.
    pub(crate) esp_at: EspAt,
}

/// Place of an ESP header.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum EspAt {
    /// Not looked for since the headers were parsed or the destination changed.
    Unknown,
    /// The packet is no ESP that this node decrypts.
    None,
    /// Offset in the packet.
    Offset(usize),
}

/// A packet between stages, until the last stage takes it out.
#[derive(Debug)]
pub(crate) struct Carried(Option<Packet>);

/// Summary of no packet.
const UNPARSED: Info = Info {
    src: IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    dst: IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    protocol: Protocol::NO_NEXT,
    ttl: 0,
    tos: 0,
    dont_fragment: true,
    plain: false,
    header_len: 0,
    next_header_at: 0,
    total_len: 0,
    fragment: None,
    id: 0,
    flow_label: 0,
};

/// Flow of no packet.
const NO_FLOW: FlowKey =
    FlowKey { src: UNPARSED.src, dst: UNPARSED.dst, protocol: UNPARSED.protocol, sport: 0, dport: 0 };

impl IpPacket {
    /// Flow that the packet's route is looked up for in a domain (Linux `struct flowi4`, `struct flowi6`).
    #[inline]
    pub(crate) fn route_flow(&self, domain: Domain) -> RouteFlow {
        let origin = self.pkt.meta.origin.get();
        let by = || domain.vrf_device().unwrap_or(origin.device());
        RouteFlow {
            domain,
            dst: self.info.dst,
            src: Some(self.info.src),
            input: (!origin.is_local()).then(by),
            tos: self.info.tos,
            protocol: self.info.protocol.0,
            sport: self.flow.sport,
            dport: self.flow.dport,
        }
    }

    /// As [`route_flow`](Self::route_flow), for the choice of a path: fragments of a datagram have no ports, so that all take one.
    #[inline]
    pub(crate) fn path_flow(&self, domain: Domain) -> RouteFlow {
        let flow = self.route_flow(domain);
        if self.info.fragment.is_some() { RouteFlow { sport: 0, dport: 0, ..flow } } else { flow }
    }

    /// A packet whose headers are not parsed.
    #[inline]
    pub(crate) const fn unparsed(pkt: Packet) -> Self {
        Self {
            pkt: Carried::new(pkt),
            info: UNPARSED,
            flow: NO_FLOW,
            socket_device: None,
            frag_max_size: None,
            esp_at: EspAt::Unknown,
        }
    }

    /// Empty slot for a packet.
    #[inline]
    pub(crate) const fn empty() -> Self {
        Self {
            pkt: Carried(None),
            info: UNPARSED,
            flow: NO_FLOW,
            socket_device: None,
            frag_max_size: None,
            esp_at: EspAt::Unknown,
        }
    }

    /// Sets the summary of the headers.
    #[inline]
    pub(crate) fn set_info(&mut self, info: Info) {
        self.info = info;
        self.esp_at = EspAt::Unknown;
    }

    /// Sets the destination in the summary and the flow, after it was translated.
    pub(crate) fn set_dst(&mut self, dst: IpAddr) {
        (self.info.dst, self.flow.dst) = (dst, dst);
        self.esp_at = EspAt::Unknown;
    }

    /// Parses the headers.
    ///
    /// # Errors
    /// As [`ip_headers`], or no memory for the headers.
    pub(crate) fn parse(&mut self, cx: Cx<'_>) -> Result<(), DropReason> {
        let info = ip_headers(cx.mem, &mut self.pkt)?;
        self.set_info(info);
        self.flow = flow_of(cx, &mut self.pkt, &self.info)?;
        Ok(())
    }

    /// Summary of a UDP packet, trimmed to the length of its datagram; `None` if the UDP header is truncated, or has an impossible
    /// length (Linux `__udp4_lib_rcv`, `__udp6_lib_rcv`). A length of 0 over IPv6 is that of a jumbogram, whose length is the
    /// packet's (RFC 2675 §4).
    pub(crate) fn udp_datagram(&self) -> Option<Info> {
        let mut header = [0; udp::UdpHeader::LEN];
        let payload_len = self.info.payload_len();
        if payload_len < header.len() || !self.pkt.read_at(self.info.header_len, &mut header) {
            return None;
        }
        let len = match udp::UdpHeader::ref_from(&header).ok()?.len() {
            _ if self.pkt.meta.cut.gso().is_some() => payload_len,
            0 if self.info.version() == Version::V6 => payload_len,
            len => Some(len).filter(|&len| (udp::UdpHeader::LEN..=payload_len).contains(&len))?,
        };
        Some(Info { total_len: self.info.header_len + len, ..self.info })
    }

    /// Flow for a policy lookup, by this link in the domain of that device.
    pub(crate) fn flowi(&self, link: PortId, domain_device: Option<PortId>) -> Flowi {
        Flowi { key: self.flow, mark: self.pkt.meta.mark, if_id: 0, link: Some(link), domain_device }
    }
}

/// Length of a packet's longest segment on the wire, in bytes with its IP header, to compare with an MTU (Linux
/// `skb_gso_network_seglen`).
pub(crate) fn wire_len(pkt: &Packet, info: &Info) -> usize {
    let Cut::Gso(gso) = pkt.meta.cut else { return pkt.len() };
    let transport = match gso.kind {
        GsoKind::Udp => udp::UdpHeader::LEN,
        GsoKind::TcpV4 | GsoKind::TcpV6 => {
            let mut header = [0; tcp::TcpHeader::LEN];
            pkt.read_at(info.header_len, &mut header);
            tcp::TcpHeader::ref_from(&header).map_or(tcp::TcpHeader::LEN, tcp::TcpHeader::header_len)
        }
    };
    pkt.len().min(info.header_len + transport + usize::from(gso.size))
}

/// Flow of a packet. The ports are pulled into the head first, so that a packet in pieces cannot hide them.
pub(crate) fn flow_of(cx: Cx<'_>, pkt: &mut Packet, info: &Info) -> Result<FlowKey, DropReason> {
    let ports_len = match info.protocol {
        Protocol::TCP | Protocol::UDP | Protocol::ICMP | Protocol::ICMPV6 => PORTS_LEN,
        Protocol::SCTP | Protocol::DCCP | Protocol::UDPLITE | Protocol::MH => PORTS_LEN,
        Protocol::GRE => GRE_KEY_LEN,
        _ => 0,
    };
    if info.has_transport() && ports_len > 0 {
        pkt.may_pull(cx.mem, info.total_len.min(info.header_len + ports_len))?;
    }
    Ok(FlowKey::new(info, pkt.head()))
}

impl Carried {
    /// A packet for one stage.
    #[inline]
    pub(crate) const fn new(pkt: Packet) -> Self {
        Self(Some(pkt))
    }

    /// Takes the packet out, which ends its path through the stages.
    ///
    /// # Panics
    /// If a stage has taken the packet before.
    #[inline]
    pub(crate) fn take(&mut self) -> Packet {
        self.0.take().expect("a stage has taken the packet before")
    }

    /// Replaces the packet.
    #[inline]
    pub(crate) fn put(&mut self, pkt: Packet) {
        self.0 = Some(pkt);
    }
}

impl Deref for Carried {
    type Target = Packet;

    #[inline]
    fn deref(&self) -> &Packet {
        self.0.as_ref().expect("a stage has taken the packet before")
    }
}

impl DerefMut for Carried {
    #[inline]
    fn deref_mut(&mut self) -> &mut Packet {
        self.0.as_mut().expect("a stage has taken the packet before")
    }
}

/// IP version that a link-layer header names; `None` where there is no such header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Framing(Option<Version>);

impl Framing {
    /// No link-layer header.
    pub(crate) const NONE: Self = Self(None);

    /// Header that names `version`.
    pub(crate) const fn of(version: Version) -> Self {
        Self(Some(version))
    }

    /// Tells whether a packet of `version` may stand behind the header.
    pub(crate) fn allows(self, version: Version) -> bool {
        self.0.is_none_or(|named| named == version)
    }
}
