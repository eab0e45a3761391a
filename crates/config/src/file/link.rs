//! `[[link]]`: a link of the node.

use std::net::SocketAddr;

use base::IfAddr;
use driver::{DriverKind, XdpMode};

use super::faults::Place;
use super::reader::{Refers, Result, Table, Value, quoted};
use super::route::table_id;
use super::{bridge, device, qdisc};
use crate::features::FeatureSet;
use crate::model::{BridgeConfig, EspOffload, LinkConfig, LinkKind};

pub(super) const KEYS: &[&str] = &[
    "name",
    "kind",
    "mtu",
    "addresses",
    "device",
    "offloads",
    "esp-gro",
    "esp-offload",
    "queues",
    "bind",
    "interface",
    "ring",
    "mode",
    "ike",
    "clamp-mss",
    "exclusive",
    "defrag",
    "table",
    "master",
    "qdisc",
    "vlan-filtering",
    "default-pvid",
    "ageing-time",
    "forward-delay",
    "group-fwd-mask",
    "vlan-stats",
    "port",
    "socket",
    "link",
    "id",
];

/// Maximum length of a link's name, in bytes: Linux's `IFNAMSIZ` without the final zero.
const MAX_NAME_LEN: usize = 15;
/// Minimum MTU of IPv4 (RFC 791 §3.2).
pub(super) const MIN_MTU: u16 = 68;
/// Minimum MTU of IPv6 (RFC 8200 §5).
pub(super) const MIN_MTU_V6: u16 = 1280;
/// Maximum length of a Unix socket's path: `sun_path` without the final zero.
const MAX_SOCKET_LEN: usize = 107;

/// Link of each kind that a file can contain, before its settings are read.
fn kinds() -> [LinkKind; 10] {
    let (queues, bind, exclusive) = (1, SocketAddr::from(([0; 4], 0)), false);
    let (interface, socket, link) = (String::new(), String::new(), String::new());
    let xdp = DriverKind::Xdp { interface: String::new(), ring: DriverKind::XDP_RING, mode: XdpMode::Auto };
    let virtio_user = DriverKind::VirtioUser { socket: String::new(), queues, ring: DriverKind::VIRTIO_RING };
    [
        LinkKind::Driver(DriverKind::Tun { queues }),
        LinkKind::Driver(DriverKind::Tap { queues }),
        LinkKind::Driver(DriverKind::Udp { bind }),
        LinkKind::Driver(DriverKind::Packet { interface, exclusive }),
        LinkKind::Driver(xdp),
        LinkKind::Vrf { table: 0 },
        LinkKind::Bridge(BridgeConfig::default()),
        LinkKind::Vlan { link, id: 0 },
        LinkKind::Driver(DriverKind::VhostUser { socket, queues }),
        LinkKind::Driver(virtio_user),
    ]
}

/// Whether a table is that of `lo`.
pub(super) fn is_loopback(table: &Table<'_>) -> bool {
    table.get("name").is_some_and(|name| name.str().ok() == Some("lo"))
}

/// Reads the table of `lo`, which has addresses only.
pub(super) fn read_loopback(table: &Table<'_>) -> Result<Vec<IfAddr>> {
    if let Some(kind) = table.get("kind") {
        kind.word(&[("loopback", ())])?;
    }
    for key in KEYS.iter().filter(|key| !["name", "kind", "addresses"].contains(key)) {
        if let Some(value) = table.get(key) {
            return Err(value.error("is not for lo, which has addresses only; take it out"));
        }
    }
    let value = table.need("addresses", "lo exists without a table; use a list such as [\"10.1.0.1/32\"]")?;
    let addresses = device::unicast_addresses(&value)?;
    if addresses.is_empty() {
        return Err(value.error("is empty, and lo exists without a table; take the table out"));
    }
    match addresses.iter().find(|address| address.addr().is_loopback()) {
        Some(address) => {
            Err(value.error(format!("{} is a loopback address, which lo has by itself; take it out", address.addr())))
        }
        None => Ok(addresses),
    }
}

/// Refuses the name of another link.
pub(super) fn check_new_name(value: &Value<'_>, name: &str, others: &[LinkConfig], places: &[Place]) -> Result<()> {
    let mut both = others.iter().zip(places);
    let Some((_, place)) = both.find(|(other, _)| other.name == name) else { return Ok(()) };
    let path = place.path("link");
    Err(value.error(format!("{name} is already the name of {path}; names are unique")))
}

/// Reads one link. `others` are the earlier links, and `places` their places.
pub(super) fn read(table: &Table<'_>, others: &[LinkConfig], places: &[Place]) -> Result<LinkConfig> {
    let name_value = table.need("name", "every link has a name, such as \"tun0\"")?;
    let name = link_name(&name_value)?;
    check_new_name(&name_value, &name, others, places)?;
    let kinds = kinds();
    let words = kinds.each_ref().map(|kind| (kind.word(), kind));
    let mut kind = table
        .need("kind", "use tun, tap, udp, packet, xdp, vrf, bridge, vlan, vhost-user or virtio-user")?
        .word(&words)?
        .clone();
    let driver = kind.driver();
    let is_vhost = matches!(driver, Some(DriverKind::VhostUser { .. } | DriverKind::VirtioUser { .. }));
    let is_tun = matches!(driver, Some(DriverKind::Tun { .. }));
    let is_udp = matches!(driver, Some(DriverKind::Udp { .. }));
    let is_packet = matches!(driver, Some(DriverKind::Packet { .. }));
    let is_xdp = matches!(driver, Some(DriverKind::Xdp { .. }));
    let has_device = is_tun || matches!(driver, Some(DriverKind::Tap { .. }));
    let has_queues = has_device || is_vhost;
    let has_ring = is_xdp || matches!(driver, Some(DriverKind::VirtioUser { .. }));
    let (is_vlan, is_vrf) = (matches!(kind, LinkKind::Vlan { .. }), matches!(kind, LinkKind::Vrf { .. }));
    let is_bridge = matches!(kind, LinkKind::Bridge(_));
    belongs(table, "queues", has_queues, "tun, tap, vhost-user or virtio-user")?;
    belongs(table, "link", is_vlan, "vlan")?;
    belongs(table, "id", is_vlan, "vlan")?;
    belongs(table, "socket", is_vhost, "vhost-user or virtio-user")?;
    belongs(table, "bind", is_udp, "udp")?;
    belongs(table, "defrag", is_tun, "tun")?;
    belongs(table, "device", has_device, "tun or tap")?;
    belongs(table, "exclusive", is_packet, "packet")?;
    belongs(table, "clamp-mss", !is_vrf, "tun, tap, udp, packet, xdp, bridge, vlan, vhost-user or virtio-user")?;
    belongs(table, "ike", is_udp || is_packet || is_xdp, "udp, packet or xdp")?;
    belongs(table, "interface", is_packet || is_xdp, "packet or xdp")?;
    belongs(table, "ring", has_ring, "xdp or virtio-user")?;
    belongs(table, "mode", is_xdp, "xdp")?;
    // Packets of a UDP link are ESP in UDP, which is not offloaded.
    let has_esp_offload = driver.is_some() && !is_udp;
    belongs(table, "esp-offload", has_esp_offload, "tun, tap, packet, xdp, vhost-user or virtio-user")?;
    belongs(table, "table", is_vrf, "vrf")?;
    for key in ["mtu", "offloads", "esp-gro", "master"] {
        belongs(table, key, !is_vrf, "tun, tap, udp, packet, xdp, bridge, vlan, vhost-user or virtio-user")?;
    }
    for key in bridge::KEYS {
        belongs(table, key, is_bridge, "bridge")?;
    }
    belongs(table, "port", kind.is_ethernet(), "tap, packet, xdp, vlan, vhost-user, virtio-user or bridge")?;
    match &mut kind {
        LinkKind::Loopback => {}
        LinkKind::Vrf { table: number } => {
            let value = table.need("table", "use the number of a routing table, 1 to 4294967295")?;
            *number = table_id(&value)?.0;
        }
        LinkKind::Bridge(settings) => *settings = bridge::read(table)?,
        LinkKind::Vlan { link, id } => (*link, *id) = vlan(table, others)?,
        LinkKind::Driver(driver) => read_driver(driver, table, others)?,
    }
    let addresses = addresses(table, is_udp)?;
    let device =
        table.get("device").map(|value| device::read(&value, &addresses, others)).transpose()?.unwrap_or_default();
    let master = table.get("master").map(|value| link_name(&value)).transpose()?;
    let all_addresses = || addresses.iter().chain(&device.addresses);
    let has_v6 = all_addresses().any(|address| address.addr().is_ipv6());
    let mtu = table.get("mtu").map(|value| mtu(&value, &kind, has_v6)).transpose()?;
    let offloads = table.get("offloads").map_or(Ok(true), |value| value.bool())?;
    let ike = table.get("ike").map_or(Ok(false), |value| value.bool())?;
    let defrag = table.get("defrag").map_or(Ok(false), |value| value.bool())?;
    let clamp_mss = table.get("clamp-mss").map_or(Ok(false), |value| value.bool())?;
    let esp_gro = table.get("esp-gro").map_or(Ok(offloads), |value| value.bool())?;
    if esp_gro && !offloads {
        let value = table.need("esp-gro", "true or false")?;
        return Err(value.error("esp-gro is an offload, and offloads = false switches every one off"));
    }
    let esp_offload = table.get("esp-offload").map(|value| value.word(&[("software", EspOffload::Software)]));
    let esp_offload = esp_offload.transpose()?;
    if esp_offload.is_some() && !offloads {
        let value = table.need("esp-offload", "software")?;
        return Err(value.error("esp-offload is an offload, and offloads = false switches every one off"));
    }
    let features = FeatureSet::initial(offloads, esp_gro);
    let qdisc = table.get("qdisc").map(|value| qdisc::read(&value)).transpose()?;
    let port = table.get("port").map(|value| bridge::port(&value, is_bridge)).transpose()?.map(Box::new);
    Ok(LinkConfig {
        name,
        kind,
        mtu,
        addresses,
        device,
        ike,
        clamp_mss,
        defrag,
        offloads,
        esp_gro,
        esp_offload,
        features,
        master,
        port,
        qdisc,
    })
}

/// Reads the settings of a link's driver.
fn read_driver(driver: &mut DriverKind, table: &Table<'_>, others: &[LinkConfig]) -> Result<()> {
    let queues_up_to = |most| table.get("queues").map_or(Ok(1), |value| value.number(1..=most));
    match driver {
        DriverKind::Tun { queues } | DriverKind::Tap { queues } => {
            *queues = queues_up_to(DriverKind::MAX_TUN_QUEUES)?;
        }
        DriverKind::Udp { bind: addr } => *addr = bind(table, others)?,
        DriverKind::Packet { interface: name, exclusive } => {
            *name = interface(table, others)?;
            *exclusive = table.get("exclusive").map_or(Ok(false), |value| value.bool())?;
        }
        DriverKind::Xdp { interface: name, ring: frames, mode } => {
            *name = interface(table, others)?;
            *frames = table.get("ring").map_or(Ok(*frames), |value| ring(&value, DriverKind::XDP_RINGS))?;
            *mode = table.get("mode").map_or(Ok(*mode), |value| value.word(XdpMode::WORDS))?;
        }
        DriverKind::VhostUser { socket: path, queues } => {
            *queues = queues_up_to(DriverKind::MAX_VHOST_QUEUES)?;
            *path = socket(table, others)?;
        }
        DriverKind::VirtioUser { socket: path, queues, ring: descriptors } => {
            *queues = queues_up_to(DriverKind::MAX_VHOST_QUEUES)?;
            *descriptors =
                table.get("ring").map_or(Ok(*descriptors), |value| ring(&value, DriverKind::VIRTIO_RINGS))?;
            *path = socket(table, others)?;
        }
    }
    Ok(())
}

/// Tells whether a link is above a bridge: a VLAN device of the bridge, or of a bridge below it.
fn is_above(links: &[LinkConfig], link: &LinkConfig, bridge: &LinkConfig) -> bool {
    let below = |name| match links.iter().find(|link| link.name == name).map(|link| &link.kind) {
        Some(LinkKind::Vlan { link, .. }) => vec![link.as_str()],
        Some(LinkKind::Bridge(_)) => {
            let is_port = |link: &&LinkConfig| link.master.as_deref() == Some(name);
            links.iter().filter(is_port).map(|link| link.name.as_str()).collect()
        }
        _ => Vec::new(),
    };
    matches!(link.kind, LinkKind::Vlan { .. }) && switch::is_above(link.name.as_str(), bridge.name.as_str(), below)
}

/// Checks that a link's VRF or bridge exists, anywhere in the file.
pub(super) fn check_master(table: &Table<'_>, links: &[LinkConfig]) -> Result<()> {
    let is_bridge = |link: &&LinkConfig| matches!(link.kind, LinkKind::Bridge(_));
    let Some(value) = table.get("master") else {
        let name = table.get("name").map(|name| name.str()).transpose()?;
        let is_port = !links.iter().filter(is_bridge).any(|link| Some(link.name.as_str()) == name);
        return match table.get("port") {
            Some(port) if is_port => Err(port.error("is only for a port of a bridge; name the bridge as its master")),
            _ => Ok(()),
        };
    };
    let name = value.str()?;
    let is_master = |link: &&LinkConfig| matches!(link.kind, LinkKind::Vrf { .. } | LinkKind::Bridge(_));
    let Some(master) = links.iter().filter(is_master).find(|link| link.name == name) else {
        let names: Vec<&str> = links.iter().filter(is_master).map(|link| link.name.as_str()).collect();
        let hint = if names.is_empty() {
            "there is none".to_owned()
        } else {
            format!("VRFs and bridges are {}", names.join(", "))
        };
        let text = format!("no VRF or bridge is named {}; {hint}", quoted(name));
        return Err(value.error(text).about(Refers::Link(name.to_owned())));
    };
    let own_name = table.get("name").map(|name| name.str()).transpose()?;
    let own = links.iter().find(|link| Some(link.name.as_str()) == own_name);
    let Some(own) = own else { return Ok(()) };
    if matches!(master.kind, LinkKind::Bridge(_)) && is_above(links, own, master) {
        let text = format!("{} is above the bridge {name} itself, and so cannot be its port", own.name);
        return Err(value.error(text).about(Refers::Link(name.to_owned())));
    }
    match (&master.kind, &own.kind) {
        (LinkKind::Bridge(_), own) if own.is_ethernet() && !matches!(own, LinkKind::Bridge(_)) => Ok(()),
        (LinkKind::Bridge(_), _) => Err(value.error(format!(
            "{name} is a bridge, and only links of kind tap, packet, xdp, vlan, vhost-user or virtio-user can be its ports"
        ))),
        (_, LinkKind::Bridge(_)) => Ok(()),
        _ => match table.get("port") {
            Some(port) => Err(port.error(format!("is only for a port of a bridge, and {name} is a VRF; take it out"))),
            None => Ok(()),
        },
    }
}

/// Refuses `key` for a link of another kind.
fn belongs(table: &Table<'_>, key: &str, fits: bool, kinds: &str) -> Result<()> {
    match table.get(key) {
        Some(value) if !fits => Err(value.error(format!("is only for links of kind {kinds}; take it out"))),
        _ => Ok(()),
    }
}

/// Reads a name that is valid for a device in Linux (`dev_valid_name`).
pub(super) fn link_name(value: &Value<'_>) -> Result<String> {
    let name = value.str()?;
    let wrong = |what: &str| Err(value.error(format!("{} is no name of a link; {what}", quoted(name))));
    if name.is_empty() {
        return wrong("use 1 to 15 bytes");
    }
    if name.len() > MAX_NAME_LEN {
        let len = name.len();
        // No name, and perhaps a key.
        let shown = if len <= 2 * MAX_NAME_LEN { format!("\"{name}\"") } else { "this text".to_owned() };
        return Err(value.error(format!("{shown} has {len} bytes, and a name of a link at most {MAX_NAME_LEN}")));
    }
    if matches!(name, "." | "..")
        || name.contains(|c: char| matches!(c, '/' | ':' | '%') || c.is_whitespace() || c.is_control())
    {
        return wrong("use no '/', ':', '%' or white space");
    }
    Ok(name.to_owned())
}

fn bind(table: &Table<'_>, others: &[LinkConfig]) -> Result<SocketAddr> {
    let hint = "an address of this host and a port, such as \"192.0.2.1:4500\"";
    let value = table.need("bind", &format!("use {hint}"))?;
    let Ok(addr) = value.str()?.parse::<SocketAddr>() else {
        return Err(value.error(format!("{} is no address with port; use {hint}", quoted(value.str()?))));
    };
    if addr.ip().is_unspecified() || addr.ip().is_multicast() {
        return Err(value.error(format!("{} is no address of one host; use {hint}", addr.ip())));
    }
    if addr.port() == 0 {
        return Err(value.error("port 0 is no port; use 1 to 65535"));
    }
    let same = |other: &&LinkConfig| matches!(other.kind, LinkKind::Driver(DriverKind::Udp { bind }) if bind == addr);
    match others.iter().find(same) {
        Some(other) => Err(value.error(format!("{addr} is already bound by link {}; use another", other.name))),
        None => Ok(addr),
    }
}

fn interface(table: &Table<'_>, others: &[LinkConfig]) -> Result<String> {
    let value = table.need("interface", "use the name of a network interface of this host")?;
    let name = link_name(&value)?;
    match others.iter().find(|other| other.kind.interface() == Some(&name)) {
        Some(other) => Err(value.error(format!("{name} already belongs to link {}; use another", other.name))),
        None => Ok(name),
    }
}

fn ring(value: &Value<'_>, sizes: [u16; 5]) -> Result<u16> {
    let frames = value.number(sizes[0]..=sizes[sizes.len() - 1])?;
    if sizes.contains(&frames) {
        return Ok(frames);
    }
    Err(value.error(format!("{frames} is no power of two; use {}", sizes.map(|ring| ring.to_string()).join(", "))))
}

/// Reads a VLAN of an earlier link.
fn vlan(table: &Table<'_>, others: &[LinkConfig]) -> Result<(String, u16)> {
    let value = table.need("link", "use the name of the link below, such as \"eth0\"")?;
    let link = value.str()?;
    let Some(lower) = others.iter().find(|other| other.name == link) else {
        let text = format!("no link before this one is named {}", quoted(link));
        return Err(value.error(text).about(Refers::Link(link.to_owned())));
    };
    if !lower.kind.is_ethernet() {
        return Err(value.error(format!("{link} has no Ethernet frames, and so no VLANs")));
    }
    let id_value = table.need("id", "use the number of a VLAN, 1 to 4094")?;
    let id = id_value.number(1..=switch::Vid::LAST.get())?;
    let kind = LinkKind::Vlan { link: link.to_owned(), id };
    match others.iter().find(|other| other.kind == kind) {
        Some(other) => Err(id_value.error(format!("VLAN {id} of {link} already is link {}; use another", other.name))),
        None => Ok((link.to_owned(), id)),
    }
}

/// Path of a vhost-user socket, which no other link of the same kind has.
fn socket(table: &Table<'_>, others: &[LinkConfig]) -> Result<String> {
    const HINT: &str = "the absolute path of a socket, such as \"/run/vm0.sock\"";
    let value = table.need("socket", &format!("use {HINT}"))?;
    let path = value.str()?;
    if !path.starts_with('/') || path.contains('\0') || path.len() > MAX_SOCKET_LEN {
        return Err(value.error(format!("{} is no path of a socket; use {HINT}", quoted(path))));
    }
    match others.iter().find(|other| other.kind.socket() == Some(path)) {
        Some(other) => Err(value.error(format!("{path} already belongs to link {}; use another", other.name))),
        None => Ok(path.to_owned()),
    }
}

fn addresses(table: &Table<'_>, is_udp: bool) -> Result<Vec<IfAddr>> {
    let Some(value) = table.get("addresses") else { return Ok(Vec::new()) };
    if is_udp {
        return Err(value.error("a udp link's only address is that of bind; take it out"));
    }
    device::unicast_addresses(&value)
}

fn mtu(value: &Value<'_>, kind: &LinkKind, has_v6: bool) -> Result<u16> {
    let mtu = value.number(MIN_MTU..=u16::MAX)?;
    let bound_to_v6 = matches!(kind, LinkKind::Driver(DriverKind::Udp { bind }) if bind.is_ipv6());
    if mtu < MIN_MTU_V6 && (bound_to_v6 || has_v6) {
        return Err(value.error(format!("{mtu} is too small for the link's IPv6 address; use at least {MIN_MTU_V6}")));
    }
    Ok(mtu)
}
