//! Links that clients create, and the requests that restore them.

use std::net::SocketAddr;

use base::{IfIndex, PortId};
use driver::DriverKind;

use super::super::entry::Link;
use super::attributes::{LinkInfo, features_of, info_of};
use super::change::{refuse_unsupported, requested_mac, requested_mtu, requested_up};
use super::message::put_vlan;
use crate::attr::{Attr, AttrPolicy, Attrs, Kind, Strictness, policy};
use crate::error::{Error, errno};
use crate::message::Writer;
use crate::rtnl::backend::Backend;
use crate::rtnl::entry::Master;
use crate::rtnl::header::{LINK_LEN, put_header, word};
use crate::rtnl::model::{LOOPBACK, MAX_INDEX, Model};
use crate::rtnl::node::Rtnl;
use crate::rtnl::nums::*;
use crate::rtnl::{bridge, enslave, vrf};
use crate::session::Reply;
use config::features::FeatureSet;
use config::model::{BridgeConfig, DeviceConfig, LinkConfig, LinkKind};

/// The port of ESP in UDP (RFC 3948 §2).
const ESP_IN_UDP: u16 = 4500;

/// Bind address of a `udp` link: the local address of a tunnel device.
fn bind_of<const N: usize>(attrs: &Attrs<'_, N>) -> Result<SocketAddr, Error> {
    let missing = || {
        Error::unsupported(
            "a udp link needs the address that its socket is bound to, as in `address 192.0.2.1 type udp`",
        )
    };
    let attr = attrs.get(IFLA_ADDRESS).ok_or_else(missing)?;
    let addr = match attr.data.len() {
        4 => attr.ip(true),
        16 => attr.ip(false),
        _ => None,
    };
    let addr = addr.filter(|addr| !addr.is_unspecified() && !addr.is_multicast());
    addr.map(|addr| SocketAddr::new(addr, ESP_IN_UDP)).ok_or_else(|| missing().at(attr.offset))
}

/// Requested VLAN device (Linux `vlan_validate`, `vlan_newlink`).
fn requested_vlan<const N: usize>(
    model: &Model,
    attrs: &Attrs<'_, N>,
    data: Option<&Attr<'_>>,
) -> Result<LinkKind, Error> {
    const DATA: AttrPolicy<6> =
        policy(&[(IFLA_VLAN_ID, Kind::Int(2)), (IFLA_VLAN_FLAGS, Kind::Any), (IFLA_VLAN_PROTOCOL, Kind::Int(2))]);
    let missing = || Error::text(errno::EINVAL, "VLAN properties not specified");
    let data = data.ok_or_else(missing)?;
    let settings = data.parse(&DATA, Strictness::Liberal)?;
    if let Some(protocol) = settings.get(IFLA_VLAN_PROTOCOL).filter(|attr| attr.data != ETH_P_8021Q.to_be_bytes()) {
        return Err(Error::unsupported("fatpath's VLAN devices support 802.1Q only").at(protocol.offset));
    }
    if let Some(flags) = settings.get(IFLA_VLAN_FLAGS) {
        let words: Vec<u32> = flags.data.chunks_exact(4).map(word).collect();
        if !matches!(words.as_slice(), &[flags, mask] if flags & mask & !VLAN_FLAG_REORDER_HDR == 0) {
            return Err(Error::unsupported("fatpath's VLAN devices have no GVRP, MVRP or bindings").at(flags.offset));
        }
    }
    let id = settings.get(IFLA_VLAN_ID).ok_or_else(|| Error::text(errno::EINVAL, "VLAN id not specified"))?;
    let (offset, id) = (id.offset, id.u16());
    if id > ::switch::Vid::LAST.get() {
        return Err(Error::text(errno::ERANGE, "Invalid VLAN id").at(offset));
    }
    if id == 0 {
        return Err(
            Error::unsupported("fatpath has no VLAN devices of VLAN 0; the link itself receives its frames").at(offset)
        );
    }
    if data.iter().any(|attr| !matches!(attr.kind, IFLA_VLAN_ID | IFLA_VLAN_FLAGS | IFLA_VLAN_PROTOCOL)) {
        return Err(Error::unsupported("fatpath's VLAN devices have no priority maps").at(data.offset));
    }
    let lower = attrs.get(IFLA_LINK).ok_or_else(|| Error::text(errno::EINVAL, "link not specified"))?;
    let lower = model.link(model.id_of(lower.u32()));
    let lower = lower.ok_or_else(|| Error::text(errno::ENODEV, "link does not exist"))?;
    if !lower.config.kind.is_ethernet() {
        return Err(Error::text(errno::EOPNOTSUPP, "VLANs not supported on device"));
    }
    let kind = LinkKind::Vlan { link: lower.config.name.clone(), id };
    match model.links_after(0).any(|(_, link)| link.config.kind == kind) {
        true => Err(Error::text(errno::EEXIST, "VLAN device already exists")),
        false => Ok(kind),
    }
}

/// Creates a link, as Linux's `rtnl_newlink_create`: a TUN or TAP device, a packet socket on the host's interface of
/// the same name, a UDP socket, a VRF, a bridge, or a VLAN of another link.
pub(super) fn create<B: Backend>(
    rtnl: &mut Rtnl<B>,
    header: &[u8; LINK_LEN],
    attrs: &Attrs<'_, IFLA_MAX>,
    reply: &mut Reply<'_>,
) -> Result<u32, Error> {
    let LinkInfo { kind, data, .. } = attrs.get(IFLA_LINKINFO).map_or(Ok(LinkInfo::default()), info_of)?;
    let kind = kind.ok_or(Error::new(errno::EINVAL))?;
    let kind = match kind.as_str() {
        "bridge" => LinkKind::Bridge(bridge::requested(data.as_ref(), &BridgeConfig::default())?),
        "vlan" => requested_vlan(&rtnl.model, attrs, data.as_ref())?,
        "vrf" => LinkKind::Vrf { table: vrf::requested_table(data.as_ref())? },
        "tun" => LinkKind::Driver(DriverKind::Tun { queues: 1 }),
        "tap" => LinkKind::Driver(DriverKind::Tap { queues: 1 }),
        "packet" => LinkKind::Driver(DriverKind::Packet { interface: String::new(), exclusive: false }),
        "udp" => LinkKind::Driver(DriverKind::Udp { bind: bind_of(attrs)? }),
        _ => return Err(Error::text(errno::EOPNOTSUPP, "Unknown device type")),
    };
    let is_vlan = matches!(kind, LinkKind::Vlan { .. });
    refuse_unsupported(attrs, None, |attr| is_vlan && attr.kind == IFLA_LINK)?;
    // The attribute of a udp link is the address of its socket.
    let address = attrs.get(IFLA_ADDRESS).filter(|_| kind.bind().is_none());
    let mtu = requested_mtu(attrs, &kind)?;
    if let LinkKind::Vrf { table } = kind {
        rtnl.model.check_table_of_vrf(table)?;
    }
    let master = attrs.get(IFLA_MASTER).map(|master| rtnl.model.id_of(master.u32())).filter(|&master| master != 0);
    let master = master.map(|master| enslave::check(&rtnl.model, None, &kind, master)).transpose()?;
    let name = attrs.get(IFLA_IFNAME).and_then(Attr::text).unwrap_or_default();
    if name.is_empty()
        || name == "."
        || name == ".."
        || name.contains(|c: char| c == '/' || c == ':' || c.is_whitespace())
    {
        return Err(Error::new(errno::EINVAL));
    }
    if rtnl.model.links_after(0).count() >= MAX_LINKS {
        return Err(Error::owned_text(errno::ENOMEM, format!("fatpath has at most {MAX_LINKS} links")));
    }
    if rtnl.model.index_of(name).is_some() {
        return Err(Error::new(errno::EEXIST));
    }
    let wish = IfIndex(word(&header[4..]));
    let index = match wish.as_own() {
        Some(_) if rtnl.model.is_taken(wish.0) => {
            let text = format!("number {} stands for the place of another link", wish.0);
            return Err(Error::owned_text(errno::EBUSY, text));
        }
        Some(id) if id.0 <= MAX_INDEX && !is_of_host(&kind) => id.0,
        _ if wish == IfIndex::default() || is_of_host(&kind) => {
            rtnl.model.next_index().ok_or(Error::new(errno::ENOMEM))?
        }
        _ => return Err(Error::owned_text(errno::EINVAL, not_wished())),
    };
    let name = name.to_owned();
    let kind = match kind {
        LinkKind::Driver(DriverKind::Packet { exclusive, .. }) => {
            LinkKind::Driver(DriverKind::Packet { interface: name.clone(), exclusive })
        }
        kind => kind,
    };
    let features = features_of(attrs)?.unwrap_or(FeatureSet::initial(true, true));
    let (of_device, ike, clamp_mss, defrag, offloads) =
        (mtu.and_then(|mtu| u16::try_from(mtu).ok()), false, false, false, true);
    let addresses = Vec::new();
    let config = LinkConfig {
        name,
        kind,
        mtu: of_device,
        addresses,
        device: DeviceConfig::default(),
        ike,
        clamp_mss,
        defrag,
        offloads,
        esp_gro: true,
        esp_offload: None,
        features,
        master: None,
        port: None,
        qdisc: None,
    };
    if let (LinkKind::Bridge(_), Some(data)) = (&config.kind, &data) {
        bridge::warn_of_snooping(&mut rtnl.model, &config.name, data);
    }
    let id = PortId(index);
    let is_vrf = matches!(config.kind, LinkKind::Vrf { .. });
    let mut now = match is_vrf {
        true => vrf::new(id, mtu),
        false => rtnl.backend.open(id, &config, Some(wish.0).filter(|&number| number != 0))?,
    };
    if let Err(refused) = check_number(&rtnl.model, &config.name, now.host_index, wish) {
        rtnl.backend.close(id)?;
        return Err(refused);
    }
    let mac = address.map_or(Ok(None), |address| requested_mac(address, now.mac));
    let set = mac.and_then(|mac| {
        mac.map_or(Ok(()), |mac| {
            now.mac = Some(mac);
            if is_vrf { Ok(()) } else { rtnl.backend.set_mac(id, mac) }
        })
    });
    if let Err(refused) = set {
        if !is_vrf {
            rtnl.backend.close(id)?;
        }
        return Err(refused);
    }
    let up = requested_up(header) == Some(true);
    let (group, txqlen) = (attrs.get(IFLA_GROUP).map_or(0, Attr::u32), attrs.get(IFLA_TXQLEN).map_or(1000, Attr::u32));
    let alias = attrs.get(IFLA_IFALIAS).and_then(Attr::text).map(str::to_owned);
    let (mtu, mac, mac_set, addresses) = (now.mtu, now.mac, address.is_some(), Vec::new());
    let own: Vec<_> = config.own_addresses().collect();
    let (up_now, was_up) = (false, false);
    let host_index = now.host_index;
    let link = Link {
        config,
        host_index,
        mtu,
        mac,
        mac_set,
        up: up_now,
        was_up,
        addresses,
        group,
        alias,
        txqlen,
        master: None,
        qdisc: None,
    };
    rtnl.model.insert_link(index, link);
    if is_vrf {
        rtnl.add_vrf(index, reply);
    }
    for addr in own {
        let address = rtnl.model.new_address(index, addr);
        rtnl.model.add_address(index, address);
    }
    if master.is_some() {
        rtnl.enslave(index, master, reply)?;
    }
    if up {
        if !is_vrf {
            rtnl.backend.set_up(id, true)?;
        }
        rtnl.model.set_up(index, true);
    }
    Ok(index)
}

/// Whether links of kind `kind` are interfaces of the host.
fn is_of_host(kind: &LinkKind) -> bool {
    kind.is_tun() || kind.interface().is_some()
}

/// Checks the host's interface index of a new link: it must equal a requested index, and be unused.
fn check_number(model: &Model, name: &str, host_index: Option<u32>, wish: IfIndex) -> Result<(), Error> {
    let Some(number) = host_index else { return Ok(()) };
    if wish != IfIndex::default() && wish.0 != number {
        let text = format!("fatpath numbers {name} as the host does, and its interface has number {number} there");
        return Err(Error::owned_text(errno::EINVAL, text));
    }
    match model.refusal(number) {
        Some(text) => Err(Error::owned_text(errno::EBUSY, format!("{name}: {text}"))),
        None => Ok(()),
    }
}

fn not_wished() -> String {
    let (first, last) = (IfIndex::FIRST_OWN + LOOPBACK + 1, IfIndex::FIRST_OWN + MAX_INDEX);
    format!("fatpath numbers links that are no interface of the host from {first}; up to {last} as is wished")
}

/// Limit of a node's links.
const MAX_LINKS: usize = 1024;

/// Request that restores a link that a client has created.
pub(in super::super) fn write_request(w: &mut Writer, index: u32, link: &Link, lower: Option<IfIndex>) {
    // The host assigns the index of an existing interface.
    let wish = if link.config.kind.interface().is_some() { IfIndex::default() } else { link.ifindex(index) };
    put_header(w, 0, wish, if link.up { IFF_UP } else { 0 }, IFF_UP);
    w.put_str(IFLA_IFNAME, &link.config.name);
    for (kind, value) in [(IFLA_MTU, link.mtu), (IFLA_GROUP, link.group), (IFLA_TXQLEN, link.txqlen)] {
        w.put_u32(kind, value);
    }
    if let Some(lower) = lower {
        w.put_u32(IFLA_LINK, lower.0);
    }
    if let Some(alias) = &link.alias {
        w.put_str(IFLA_IFALIAS, alias);
    }
    if let Some(mac) = link.mac.filter(|_| link.mac_set) {
        w.put(IFLA_ADDRESS, &mac);
    }
    if let Some(bind) = link.config.kind.bind() {
        w.put_ip(IFLA_ADDRESS, bind.ip());
    }
    w.nest(IFLA_LINKINFO, |w| {
        w.put_str(IFLA_INFO_KIND, link.config.kind.word());
        let features = link.config.features;
        if features != link.config.first_features() {
            w.nest(IFLA_INFO_DATA, |w| w.put_u64(IFLA_FATPATH_FEATURES, features.0));
        }
        if let LinkKind::Vrf { table } = link.config.kind {
            w.nest(IFLA_INFO_DATA, |w| w.put_u32(IFLA_VRF_TABLE, table));
        }
        if let LinkKind::Vlan { id, .. } = link.config.kind {
            w.nest(IFLA_INFO_DATA, |w| put_vlan(w, id));
        }
        if let LinkKind::Bridge(config) = &link.config.kind {
            w.nest(IFLA_INFO_DATA, |w| bridge::put_config(w, config));
        }
    });
}

/// Writes the request that makes a link a member of a VRF or bridge.
pub(in super::super) fn write_enslaving(w: &mut Writer, index: IfIndex, master: Master) {
    put_header(w, 0, index, 0, 0);
    w.put_u32(IFLA_MASTER, master.ifindex().0);
}
