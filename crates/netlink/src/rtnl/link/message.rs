//! Serialisation of links (Linux `rtnl_fill_ifinfo`, `inet6_fill_ifinfo`).

use base::IfIndex;

use crate::message::Writer;
use crate::rtnl::bridge::{put_bridge, put_port};
use crate::rtnl::entry::{Link, Master};
use crate::rtnl::header::{arphrd, operstate, put_header, put_header_of};
use crate::rtnl::nums::*;
use crate::rtnl::state::{Bridging, LinkNow};
use crate::rtnl::vrf;
use config::model::LinkKind;
use ctl::state::LinkStats;

/// Generic attributes of a link, without kind-specific ones: `IFLA_*` of the 6.18 kernel, in its order.
struct Plain {
    mtu: u32,
    min_mtu: u32,
    max_mtu: u32,
    txqlen: u32,
    group: u32,
    promiscuity: u32,
    allmulti: u32,
    queues: u32,
    operstate: u8,
    lower: Option<IfIndex>,
    master: Option<u32>,
    carrier: bool,
}

impl Plain {
    fn put(&self, w: &mut Writer) {
        const ALLMULTI: u16 = 61;
        w.put_u32(IFLA_TXQLEN, self.txqlen);
        w.put_u8(IFLA_OPERSTATE, self.operstate);
        w.put_u8(IFLA_LINKMODE, 0);
        w.put_u32(IFLA_MTU, self.mtu);
        w.put_u32(IFLA_MIN_MTU, self.min_mtu);
        w.put_u32(IFLA_MAX_MTU, self.max_mtu);
        for (kind, value) in [(IFLA_GROUP, self.group), (IFLA_PROMISCUITY, self.promiscuity), (ALLMULTI, self.allmulti)]
        {
            w.put_u32(kind, value);
        }
        w.put_u32(IFLA_NUM_TX_QUEUES, self.queues);
        FAT_SIZES.into_iter().for_each(|(kind, value)| w.put_u32(kind, value));
        w.put_u32(IFLA_NUM_RX_QUEUES, self.queues);
        if let Some(lower) = self.lower {
            w.put_u32(IFLA_LINK, lower.0);
        }
        if let Some(master) = self.master {
            w.put_u32(IFLA_MASTER, master);
        }
        w.put_u8(IFLA_CARRIER, self.carrier.into());
    }
}

/// Default sizes of a device's segmentation offloads.
pub(super) const FAT_SIZES: [(u16, u32); 7] =
    [(40, 65535), (41, 65536), (58, 65536), (63, 65536), (64, 65536), (59, 65536), (60, 65535)];

/// Broadcast link-layer address of a link.
pub(super) fn broadcast(link: &Link) -> [u8; 6] {
    if link.is_loopback() { [0; 6] } else { [0xff; 6] }
}

/// Number of carrier changes.
fn put_carrier(w: &mut Writer, [ups, downs]: [u32; 2]) {
    let counts = [(IFLA_CARRIER_CHANGES, ups.wrapping_add(downs)), (IFLA_CARRIER_UP_COUNT, ups)];
    counts.into_iter().chain([(IFLA_CARRIER_DOWN_COUNT, downs)]).for_each(|(kind, count)| w.put_u32(kind, count));
}

/// Writes the link `id`, as Linux's `rtnl_fill_ifinfo`. `lower` is a VLAN device's lower link.
pub(in crate::rtnl) fn write(
    w: &mut Writer,
    id: u32,
    link: &Link,
    lower: Option<IfIndex>,
    now: Option<&LinkNow>,
    ext_mask: u32,
    change: u32,
) {
    let (running, operstate) = operstate(link, now);
    put_header(w, arphrd(link), link.ifindex(id), link.flags(running), change);
    w.put_str(IFLA_IFNAME, &link.config.name);
    let queues = now.and_then(|now| now.queues).unwrap_or(link.queues());
    let (mtu, group, txqlen) = (link.mtu, link.group, link.txqlen);
    let (promiscuity, allmulti) = now.map_or((0, 0), |now| (now.promiscuity, now.allmulti));
    let (min_mtu, max_mtu) = mtus(&link.config.kind);
    let carrier = running || link.is_virtual();
    let master = link.master.map(|master| master.ifindex().0);
    let plain = Plain {
        mtu,
        min_mtu,
        max_mtu,
        txqlen,
        group,
        promiscuity,
        allmulti,
        queues,
        operstate,
        lower,
        master,
        carrier,
    };
    plain.put(w);
    if let Some(alias) = &link.alias {
        w.put_str(IFLA_IFALIAS, alias);
    }
    put_carrier(w, now.map_or([0; 2], |now| now.carrier));
    if let Some(mac) = link.mac {
        w.put(IFLA_ADDRESS, &mac);
        w.put(IFLA_BROADCAST, &broadcast(link));
    }
    if ext_mask & RTEXT_FILTER_SKIP_STATS == 0 {
        put_stats(w, now.map_or(&LinkStats::default(), |now| &now.stats));
    }
    if !link.is_loopback() {
        w.nest(IFLA_LINKINFO, |w| put_info(w, link, now));
    }
    w.put_str(IFLA_QDISC, link.shown_qdisc().map_or("noop", |qdisc| qdisc.kind()));
    w.nest(IFLA_AF_SPEC, |w| {
        w.nest(AF_INET6.into(), |w| w.put_u8(IFLA_INET6_ADDR_GEN_MODE, addr_gen_mode(link)));
    });
}

/// Address generation mode of a link. Linux reports the same mode for `lo`, which generates no addresses either.
fn addr_gen_mode(link: &Link) -> u8 {
    if link.is_virtual() { IN6_ADDR_GEN_MODE_EUI64 } else { IN6_ADDR_GEN_MODE_NONE }
}

/// Writes the link `id`, as Linux's `inet6_fill_ifinfo`, for a request of family `AF_INET6`.
pub(super) fn write_v6(w: &mut Writer, id: u32, link: &Link, now: Option<&LinkNow>) {
    let (running, operstate) = operstate(link, now);
    put_header_of(w, AF_INET6, arphrd(link), link.ifindex(id), link.flags(running), 0);
    w.put_str(IFLA_IFNAME, &link.config.name);
    if let Some(mac) = link.mac {
        w.put(IFLA_ADDRESS, &mac);
    }
    w.put_u32(IFLA_MTU, link.mtu);
    w.put_u32(IFLA_TXQLEN, link.txqlen);
    w.put_u8(IFLA_OPERSTATE, operstate);
    w.nest(IFLA_PROTINFO, |w| {
        w.put(IFLA_INET6_TOKEN, &[0; 16]);
        w.put_u8(
            IFLA_INET6_ADDR_GEN_MODE,
            if link.is_loopback() { IN6_ADDR_GEN_MODE_NONE } else { addr_gen_mode(link) },
        );
    });
}

/// Minimum and maximum MTU of a link; 0 for `lo`, whose MTU is fixed.
pub(super) fn mtus(kind: &LinkKind) -> (u32, u32) {
    match kind {
        LinkKind::Loopback => (0, 0),
        LinkKind::Vrf { .. } => (vrf::MIN_MTU, vrf::MTU),
        // IPv4's minimum.
        _ => (68, 65535),
    }
}

fn put_info(w: &mut Writer, link: &Link, now: Option<&LinkNow>) {
    w.put_str(IFLA_INFO_KIND, kind_word(link));
    let bridging = now.and_then(|now| now.bridging.as_ref());
    let of_tun = |w: &mut Writer, kind: u8| {
        // `IFLA_TUN_TYPE`, `_PI`, `_VNET_HDR`, `_PERSIST`, `_MULTI_QUEUE`.
        for (attr, value) in [(3, kind), (4, 0), (5, link.config.offloads.into()), (6, 0), (7, 0)] {
            w.put_u8(attr, value);
        }
    };
    match &link.config.kind {
        kind if kind.is_tun() => w.nest(IFLA_INFO_DATA, |w| of_tun(w, if kind.is_ethernet() { 2 } else { 1 })),
        LinkKind::Vrf { table } => w.nest(IFLA_INFO_DATA, |w| w.put_u32(IFLA_VRF_TABLE, *table)),
        LinkKind::Bridge(_) => {
            if let Some(Bridging::Bridge(bridge)) = bridging {
                w.nest(IFLA_INFO_DATA, |w| put_bridge(w, bridge));
            }
        }
        LinkKind::Vlan { id, .. } => w.nest(IFLA_INFO_DATA, |w| put_vlan(w, *id)),
        LinkKind::Loopback | LinkKind::Driver(_) => {}
    }
    match (link.master, bridging) {
        (Some(Master { table: Some(table), .. }), _) => {
            w.put_str(IFLA_INFO_SLAVE_KIND, "vrf");
            w.nest(IFLA_INFO_SLAVE_DATA, |w| w.put_u32(IFLA_VRF_PORT_TABLE, table));
        }
        (Some(Master { table: None, .. }), Some(Bridging::Port(port))) => {
            w.put_str(IFLA_INFO_SLAVE_KIND, "bridge");
            w.nest(IFLA_INFO_SLAVE_DATA, |w| put_port(w, port));
        }
        _ => {}
    }
}

/// Writes the settings of a VLAN device (Linux `vlan_fill_info`).
pub(super) fn put_vlan(w: &mut Writer, id: u16) {
    w.put(IFLA_VLAN_PROTOCOL, &ETH_P_8021Q.to_be_bytes());
    w.put_u16(IFLA_VLAN_ID, id);
    // `struct ifla_vlan_flags`: the default, reordered headers.
    w.put(IFLA_VLAN_FLAGS, [VLAN_FLAG_REORDER_HDR.to_ne_bytes(), u32::MAX.to_ne_bytes()].as_flattened());
}

/// Writes `struct rtnl_link_stats64` and `rtnl_link_stats`.
fn put_stats(w: &mut Writer, stats: &LinkStats) {
    let counters = counters(stats);
    w.put(IFLA_STATS64, counters.map(u64::to_ne_bytes).as_flattened());
    let narrow: Vec<u8> = counters[..COUNTERS - 1].iter().flat_map(|&value| (value as u32).to_ne_bytes()).collect();
    w.put(IFLA_STATS, &narrow);
}

const COUNTERS: usize = 25;

/// Fields of `struct rtnl_link_stats64`.
pub(in super::super) fn counters(stats: &LinkStats) -> [u64; COUNTERS] {
    let LinkStats { rx_wire_packets, rx_bytes, rx_dropped, tx_wire_packets, tx_bytes, tx_dropped, tx_errors, .. } =
        *stats;
    let mut counters = [0_u64; COUNTERS];
    counters[..4].copy_from_slice(&[rx_wire_packets, tx_wire_packets, rx_bytes, tx_bytes]);
    counters[5..8].copy_from_slice(&[tx_errors, rx_dropped, tx_dropped]);
    counters
}

/// Keyword of the link's kind in `ip link … type`.
pub(super) fn kind_word(link: &Link) -> &'static str {
    if link.config.kind.is_tun() { "tun" } else { link.config.kind.word() }
}
