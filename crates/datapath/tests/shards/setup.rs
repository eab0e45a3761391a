//! The node under test: links of every kind, a VLAN device, a VRF, ILA mappings, queueing disciplines.

use std::net::IpAddr;

use base::{Instant, PortId, TableId};
use fib::{Route, RouteKind};
use ila::{CsumMode, IdentType, Locator, Mapping};
use offload::Features;
use qdisc::{Depth, LinkLayer, Options, RateSpec, Tbf};
use sim::{Node, PortOptions, Rng};
use wire::MacAddr;

pub(crate) const START: Instant = Instant::from_nanos(1_000_000_000);

/// A bare link of a large MTU, whose packets may be fat.
pub(crate) const INSIDE: PortId = PortId(1);
pub(crate) const ETHERNET: PortId = PortId(2);
/// An Ethernet link of the least MTU of IPv6.
pub(crate) const SMALL: PortId = PortId(3);
/// An Ethernet link with a queueing discipline.
pub(crate) const SHAPED: PortId = PortId(4);
/// A bare link to which datagrams are sent reassembled.
pub(crate) const DEFRAG: PortId = PortId(5);
/// A VLAN of [`ETHERNET`].
pub(crate) const VLAN: PortId = PortId(6);
/// The Ethernet link of the VRF.
pub(crate) const RED_ETHERNET: PortId = PortId(7);
/// The bare link of the VRF.
pub(crate) const RED_BARE: PortId = PortId(8);
/// The VRF's device.
pub(crate) const RED: PortId = PortId(9);
/// A bare link of the first shard alone.
pub(crate) const SINGLE: PortId = PortId(10);

/// Links of the default VRF, and those of the other.
pub(crate) const DOMAINS: [&[PortId]; 2] =
    [&[INSIDE, ETHERNET, SMALL, SHAPED, DEFRAG, VLAN, SINGLE], &[RED_ETHERNET, RED_BARE]];

/// All ports.
pub(crate) const PORTS: [PortId; 10] =
    [INSIDE, ETHERNET, SMALL, SHAPED, DEFRAG, VLAN, RED_ETHERNET, RED_BARE, RED, SINGLE];

/// Identifier of the VLAN.
pub(crate) const VID: u16 = 6;

/// Locators that are translated to each other's network: that of packets, and that of [`ETHERNET`].
pub(crate) const ILA: Locator = Locator(0x2001_0db8_0001_0001);
const SIR: Locator = Locator(0xfd00_0002_0000_0000);

const RED_TABLE: u32 = 100;

/// Choices of one seed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    /// Whether links coalesce packets, so that counters of packets differ.
    pub(crate) gro: bool,
    /// The queueing discipline of [`SHAPED`], and that of the VRF.
    pub(crate) qdiscs: [Option<Options>; 2],
    /// Whether [`SMALL`] and [`SHAPED`] have no queue in shards but the first.
    pub(crate) is_elsewhere: [bool; 2],
}

impl Setup {
    pub(crate) fn new(rng: &mut Rng) -> Self {
        let mut qdisc = || match rng.below(3) {
            0 => None,
            1 => Some(Options::Pfifo { limit: 10_000 }),
            _ => Some(tbf()),
        };
        Self { qdiscs: [qdisc(), qdisc()], gro: rng.happens(300), is_elsewhere: [rng.happens(300), rng.happens(300)] }
    }

    /// Links that exist in the first shard alone.
    pub(crate) fn elsewhere(&self) -> Vec<PortId> {
        let [small, shaped] = self.is_elsewhere;
        let chosen = [(true, SINGLE), (small, SMALL), (shaped, SHAPED)];
        chosen.into_iter().filter(|&(is_elsewhere, _)| is_elsewhere).map(|(_, port)| port).collect()
    }

    pub(crate) fn configure(&self, node: &mut Node) {
        node.vrf(RED.0, RED_TABLE, &[RED_ETHERNET.0, RED_BARE.0]);
        node.datapath.set_vrf_port(START, RED, Some(("red".to_owned(), 65_575)));
        for port in PORTS.into_iter().filter(|&port| port != RED) {
            let net = port.0;
            let prefix = if mac_of(port).is_none() { 16 } else { 24 };
            let addresses = [format!("10.{net}.0.254/{prefix}"), format!("fd00:{net}::254/64")];
            node.port(net, options(port), &addresses.each_ref().map(String::as_str));
            let mut config = node.datapath.ports.get(port).expect("added").config.clone();
            config.gro = self.gro;
            node.datapath.set_port(port, config);
        }
        node.datapath.set_vlan(VLAN, ETHERNET, VID).expect("an Ethernet port");
        node.datapath.set_defrag(vec![DEFRAG]);
        for (to, via, dev) in [
            ("10.22.0.0/16", Some("10.2.0.1"), ETHERNET),
            ("fd00:22::/64", Some("fd00:2::1"), ETHERNET),
            ("10.23.0.0/16", Some("10.3.0.1"), SMALL),
            ("10.24.0.0/16", Some("10.4.0.1"), SHAPED),
            ("10.26.0.0/16", Some("10.6.0.1"), VLAN),
        ] {
            node.route(to, via, dev);
        }
        node.route_of("10.30.0.0/16", RouteKind::Blackhole);
        node.route_of("10.31.0.0/16", RouteKind::Unreachable);
        node.route_of("fd00:31::/64", RouteKind::Prohibit);
        let via = Some("10.7.0.1".parse().expect("an address"));
        let kind = RouteKind::Unicast { via, dev: RED_ETHERNET };
        let route = Route { prefix: "10.27.0.0/16".parse().expect("a prefix"), kind, metric: 0 };
        node.datapath.fib.add(TableId(RED_TABLE), route).expect("a new route");
        node.datapath.add_ila(mapping()).expect("a new mapping");
        for (port, options) in [SHAPED, RED].into_iter().zip(self.qdiscs) {
            node.datapath.set_qdisc(START, &node.mem, port, options).expect("good options");
        }
    }
}

pub(crate) fn mapping() -> Mapping {
    Mapping {
        locator_match: ILA,
        identifier: None,
        locator: SIR,
        link: None,
        csum_mode: CsumMode::NeutralMap,
        ident_type: IdentType::Luid,
    }
}

/// A byte takes a microsecond, and 20 000 may leave at once.
pub(crate) fn tbf() -> Options {
    let rate = RateSpec { rate: 1_000_000, overhead: 0, mpu: 0, link_layer: LinkLayer::ETHERNET };
    Options::Tbf(Tbf { limit: 10_000_000, rate, burst: Depth::Bytes(20_000), peak: None })
}

fn options(port: PortId) -> PortOptions {
    let ethernet = PortOptions::ethernet(port.0 as u8);
    match port {
        INSIDE => PortOptions::BARE.mtu(9000),
        SMALL => ethernet.mtu(1280).features(Features::ALL),
        DEFRAG => PortOptions::BARE.features(Features::NONE),
        ETHERNET | SHAPED | VLAN | RED_ETHERNET => ethernet,
        _ => PortOptions::BARE,
    }
}

/// The node's station address at a link; `None` for a bare link.
pub(crate) fn mac_of(port: PortId) -> Option<MacAddr> {
    options(port).mac
}

/// Address of a station of a link. `host` is below 200 on Ethernet links, or the station never answers.
pub(crate) fn address(port: PortId, host: u16, is_v4: bool) -> IpAddr {
    let (net, [high, low]) = (port.0 as u8, host.to_be_bytes());
    if is_v4 {
        [10, net, high, low].into()
    } else {
        // Identifiers of ILA are of a type that is not 0.
        [0xfd00, u16::from_str_radix(&net.to_string(), 16).expect("digits"), 0, 0, 0x2000, 0, 0, host].into()
    }
}

/// The node's own address at a link.
pub(crate) fn own(port: PortId, is_v4: bool) -> IpAddr {
    let net = port.0;
    let text = if is_v4 { format!("10.{net}.0.254") } else { format!("fd00:{net}::254") };
    text.parse().expect("an address")
}

/// Link-layer address of a station, which may have moved.
pub(crate) fn station(port: PortId, host: u16, moved: u8) -> MacAddr {
    let [high, low] = host.to_be_bytes();
    MacAddr([2, moved, 0x11, port.0 as u8, high, low])
}
