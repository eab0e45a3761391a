//! `[[link]]`: a link of the node.

use std::net::SocketAddr;

use base::IfAddr;
use driver::{DriverKind, XdpMode};

use super::faults::Place;
use super::reader::{Refers, Result, Table, Value, one_of, quoted};
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
    "memory",
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
fn kinds() -> Vec<LinkKind> {
    let vlan = LinkKind::Vlan { link: String::new(), id: 0 };
    let of_node = [LinkKind::Vrf { table: 0 }, LinkKind::Bridge(BridgeConfig::default()), vlan];
    DriverKind::defaults().into_iter().map(LinkKind::Driver).chain(of_node).collect()
}

/// Words of the kinds with a property: `tun, tap or udp`.
fn kinds_with(has: impl Fn(&LinkKind) -> bool) -> String {
    one_of(kinds().iter().filter(|kind| has(kind)).map(LinkKind::word))
}

/// Whether the table of a link of this kind can have `key`.
fn has_key(kind: &LinkKind, key: &str) -> bool {
    match key {
        "name" | "kind" | "addresses" | "qdisc" => true,
        "mtu" | "offloads" | "esp-gro" | "clamp-mss" | "master" => !matches!(kind, LinkKind::Vrf { .. }),
        "table" => matches!(kind, LinkKind::Vrf { .. }),
        "link" | "id" => matches!(kind, LinkKind::Vlan { .. }),
        "device" => kind.is_tun(),
        "defrag" => kind.is_tun() && !kind.is_ethernet(),
        "ike" => kind.bind().is_some() || kind.interface().is_some(),
        "port" => kind.is_ethernet(),
        // Packets of a UDP link are ESP in UDP, which is not offloaded.
        "esp-offload" => kind.driver().is_some() && kind.bind().is_none(),
        key if bridge::KEYS.contains(&key) => matches!(kind, LinkKind::Bridge(_)),
        key => kind.driver().is_some_and(|driver| driver.has_key(key)),
    }
}

/// Whether a link of this kind can be a port of a bridge.
fn can_be_port(kind: &LinkKind) -> bool {
    kind.is_ethernet() && !matches!(kind, LinkKind::Bridge(_))
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
    let words: Vec<_> = kinds.iter().map(|kind| (kind.word(), kind)).collect();
    let mut kind = table.need("kind", &format!("use {}", kinds_with(|_| true)))?.word(&words)?.clone();
    for key in KEYS.iter().filter(|key| !has_key(&kind, key)) {
        if let Some(value) = table.get(key) {
            let fitting = kinds_with(|kind| has_key(kind, key));
            return Err(value.error(format!("is only for links of kind {fitting}; take it out")));
        }
    }
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
    let addresses = addresses(table, kind.bind().is_some())?;
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
    let port = table
        .get("port")
        .map(|value| bridge::port(&value, matches!(kind, LinkKind::Bridge(_))))
        .transpose()?
        .map(Box::new);
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
        DriverKind::VhostUser { socket: path, queues, memory } => {
            let most = DriverKind::MAX_VHOST_MEMORY;
            *memory = table.get("memory").map_or(Ok(*memory), |value| qdisc::size_up_to(&value, most))?;
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
        (LinkKind::Bridge(_), own) if can_be_port(own) => Ok(()),
        (LinkKind::Bridge(_), _) => {
            let fitting = kinds_with(can_be_port);
            Err(value.error(format!("{name} is a bridge, and only links of kind {fitting} can be its ports")))
        }
        (_, LinkKind::Bridge(_)) => Ok(()),
        _ => match table.get("port") {
            Some(port) => Err(port.error(format!("is only for a port of a bridge, and {name} is a VRF; take it out"))),
            None => Ok(()),
        },
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
    match others.iter().find(|other| other.kind.bind() == Some(addr)) {
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
    let bound_to_v6 = kind.bind().is_some_and(|bind| bind.is_ipv6());
    if mtu < MIN_MTU_V6 && (bound_to_v6 || has_v6) {
        return Err(value.error(format!("{mtu} is too small for the link's IPv6 address; use at least {MIN_MTU_V6}")));
    }
    Ok(mtu)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_belongs_to_a_kind() {
        let without: Vec<_> = KEYS.iter().filter(|key| kinds_with(|kind| has_key(kind, key)).is_empty()).collect();
        assert!(without.is_empty(), "no kind of link has {without:?}");
    }
}
