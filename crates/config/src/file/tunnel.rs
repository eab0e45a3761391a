//! `[[tunnel]]`: links, routes, SAs and policies of a tunnel to a peer, in one table.
//!
//! A tunnel stands for other tables of the file, whose text [`expand`] writes; they are then read like the file's own.

use std::collections::HashSet;
use std::fmt::Write;
use std::net::IpAddr;
use std::ops::Range;

use ::xfrm::{Aead, Algorithm, EspInUdp, Key, Mode, Name, Overhead, PolicyConfig, SaConfig};
use base::{IfAddr, Prefix};
use wire::Spi;
use zeroize::Zeroizing;

use super::document::Document;
use super::faults::{Faults, Place};
use super::reader::{Refers, Result, Source, Table, Value, quoted};
use super::{algorithm, device, ipsec, link, route};
use crate::model::{Config, LinkConfig, TunnelName};

pub(super) const KEYS: &[&str] = &["name", "local", "remote", "keys", "cipher", "device"];
const LOCAL_KEYS: &[&str] = &["address", "port", "nets", "addresses"];
const REMOTE_KEYS: &[&str] = &["address", "port", "nets"];

/// Default port of ESP in UDP (RFC 3948 §2.1).
const PORT: u16 = 4500;
/// MTU of an outer link without one in the file.
const OUTER_MTU: u16 = 1500;
/// Replay window of an SA, in packets.
const REPLAY_WINDOW: u32 = 1024;
/// ICV length in bits that every AEAD has.
const ICV_BITS: u16 = 128;

/// Tunnel to a peer.
#[derive(Debug)]
pub(super) struct Tunnel {
    place: Place,
    name: String,
    local: End,
    remote: End,
    /// Addresses of this end in its networks.
    addresses: Vec<IfAddr>,
    /// Keys of the directions out and in; `None` if a key manager sets them.
    keys: Option<[Half; 2]>,
    cipher: Aead,
    /// Whether a TUN device is made for networks that no link of the file serves.
    has_device: bool,
    outer: Outer,
}

/// End of a tunnel.
#[derive(Debug)]
struct End {
    address: IpAddr,
    port: Option<u16>,
    nets: Vec<Prefix>,
}

/// SA of one direction.
#[derive(Debug)]
struct Half {
    spi: u32,
    key: Key,
}

/// Link that carries a tunnel's ESP.
#[derive(Debug)]
enum Outer {
    /// Link of the file that has the address; a `udp` link with its port.
    Own { name: String, mtu: u16, port: Option<u16> },
    /// Socket at the tunnel's local address and this port, of its own or of an earlier tunnel.
    Socket(u16),
}

/// Tables that a tunnel stands for.
#[derive(Debug)]
pub(super) struct Expansion {
    place: Place,
    pub(super) text: Zeroizing<String>,
    /// Ranges of the keys in `text`, with their quotes.
    pub(super) keys: Vec<Range<usize>>,
}

impl Expansion {
    /// The tables.
    pub(super) fn document(&self) -> Option<Document<'_>> {
        Document::of_tunnel(Source::new("", &self.text), self.place)
    }
}

/// Reads all tunnels. `config` has the file's own links, and `places` their places.
pub(super) fn read_all(root: &Document<'_>, config: &Config, places: &[Place], faults: &mut Faults<'_>) -> Vec<Tunnel> {
    let mut tunnels = Vec::new();
    root.each("tunnel", KEYS, faults, |table, place| {
        let tunnel = read(table, place, config, places, &tunnels)?;
        tunnels.push(tunnel);
        Ok(())
    });
    tunnels
}

fn read(table: &Table<'_>, place: Place, config: &Config, places: &[Place], earlier: &[Tunnel]) -> Result<Tunnel> {
    let name_value = table.need("name", "every tunnel has a name, such as \"left\"")?;
    let name = link::link_name(&name_value)?;
    if name == "lo" {
        return Err(name_value.error("lo is a link that every node has; use another name"));
    }
    link::check_new_name(&name_value, &name, &config.links, places)?;
    if let Some(other) = earlier.iter().find(|other| other.name == name) {
        let path = other.place.path("tunnel");
        return Err(name_value.error(format!("{name} is already the name of {path}; names are unique")));
    }
    let local_value = table.need("local", "use { address = \"192.0.2.1\", nets = [\"10.1.0.0/24\"] }")?;
    let local_table = local_value.table(LOCAL_KEYS)?;
    let remote_value = table.need("remote", "use { address = \"192.0.2.2\", nets = [\"10.2.0.0/24\"] }")?;
    let remote_table = remote_value.table(REMOTE_KEYS)?;
    let (local, remote) = (end(&local_table)?, end(&remote_table)?);
    let remote_address = remote_table.need("address", "")?;
    if local.address.is_ipv4() != remote.address.is_ipv4() {
        let text =
            format!("{} is not of the family of {}; use an address of that family", remote.address, local.address);
        return Err(remote_address.error(text));
    }
    if local.address == remote.address {
        return Err(remote_address.error(format!("{} is this end's own address; use the peer's", remote.address)));
    }
    check_nets(&local_table, &remote_table, &local, &remote)?;
    check_others(&local_table, &remote_table, &local, &remote, earlier)?;
    let addresses = addresses(&local_table, &local)?;
    let cipher_value = table.get("cipher");
    let cipher = cipher_value.as_ref().map_or(Ok(Aead::GcmAes), |value| algorithm::known(value, value.str()?))?;
    let keys_value = table.need("keys", "use \"ike\", or { out = { spi, key }, in = { spi, key } }")?;
    let keys = keys(&keys_value, cipher)?;
    if let (None, Some(value)) = (&keys, cipher_value) {
        return Err(value.error("is chosen by the key manager; take it out"));
    }
    if let Some([out, inward]) = &keys {
        check_spis(&keys_value, out, inward, (local.address, remote.address), earlier)?;
    }
    let has_device = table.get("device").map_or(Ok(true), |value| value.word(&[("tun", true), ("none", false)]))?;
    let outer = outer(&local_table, &local, config, earlier)?;
    let tunnel = Tunnel { place, name, local, remote, addresses, keys, cipher, has_device, outer };
    if !has_device {
        tunnel.check_lo(&local_value, config)?;
    }
    let inner_mtu = tunnel.inner_mtu();
    if tunnel.has_tun(config) && inner_mtu < tunnel.min_mtu().into() {
        let text =
            format!("packets of {inner_mtu} bytes fit through the tunnel, too few; use a larger mtu of its outer link");
        return Err(local_value.error(text));
    }
    Ok(tunnel)
}

/// Reads the address, port and networks of an end.
fn end(table: &Table<'_>) -> Result<End> {
    let value = table.need("address", "use the outer address, such as \"192.0.2.1\"")?;
    let address = match value.str()?.parse::<IpAddr>() {
        Ok(address) if device::is_unicast(address) => address,
        _ => {
            let text = format!("{} is no address of one host; use one such as \"192.0.2.1\"", quoted(value.str()?));
            return Err(value.error(text));
        }
    };
    let port = table.get("port").map(|value| value.number(1..=u16::MAX)).transpose()?;
    let value = table.need("nets", "use a list of networks, such as [\"10.1.0.0/24\"]")?;
    let mut nets: Vec<Prefix> = Vec::new();
    for item in value.list()? {
        let net = item.prefix("a prefix such as \"10.1.0.0/24\"")?;
        if net.addr().is_multicast() {
            return Err(item.error(format!("{net} is multicast, which is not routed; use a unicast prefix")));
        }
        if let Some(other) = nets.iter().find(|other| overlap(**other, net)) {
            return Err(item.error(format!("{net} overlaps with {other}; take one out")));
        }
        nets.push(net);
    }
    if nets.is_empty() {
        return Err(value.error("is empty; use a list of networks, such as [\"10.1.0.0/24\"]"));
    }
    Ok(End { address, port, nets })
}

fn overlap(a: Prefix, b: Prefix) -> bool {
    a.is_ipv4() == b.is_ipv4() && (a.contains(b.addr()) || b.contains(a.addr()))
}

/// Checks the networks of both ends against each other. The networks behind the peer may be all (`0.0.0.0/0`).
fn check_nets(local_table: &Table<'_>, remote_table: &Table<'_>, local: &End, remote: &End) -> Result<()> {
    for (n, &net) in remote.nets.iter().enumerate() {
        if let Some(own) = local.nets.iter().find(|own| net.len() > 0 && overlap(**own, net)) {
            return Err(net_error(remote_table, n, format!("{net} overlaps with the local network {own}")));
        }
    }
    for (table, nets, others, side) in
        [(local_table, &local.nets, &remote.nets, "remote"), (remote_table, &remote.nets, &local.nets, "local")]
    {
        let is_alone = |net: &Prefix| !others.iter().any(|other| other.is_ipv4() == net.is_ipv4());
        if let Some(n) = nets.iter().position(is_alone) {
            return Err(net_error(table, n, format!("no {side} network is of the family of {}", nets[n])));
        }
    }
    let (own, peer) = (local.address, remote.address);
    let both = local.nets.iter().any(|net| net.contains(own)) && remote.nets.iter().any(|net| net.contains(peer));
    if both {
        let text = format!("the tunnel from {own} to {peer} would carry its own packets; take one out of the networks");
        return Err(remote_table.error(text));
    }
    Ok(())
}

/// Refuses networks that another tunnel leads to, or has behind this node.
fn check_others(
    local_table: &Table<'_>,
    remote_table: &Table<'_>,
    local: &End,
    remote: &End,
    earlier: &[Tunnel],
) -> Result<()> {
    for other in earlier {
        for (n, &net) in remote.nets.iter().enumerate() {
            let with = other.remote.nets.iter().find(|its| overlap(**its, net));
            let behind = other.local.nets.iter().find(|its| net.len() > 0 && overlap(**its, net));
            if let Some(its) = with.or(behind) {
                let text = format!("{net} overlaps with {its} of tunnel {}", other.name);
                return Err(net_error(remote_table, n, text));
            }
        }
        for (n, &net) in local.nets.iter().enumerate() {
            if let Some(its) = other.remote.nets.iter().find(|its| its.len() > 0 && overlap(**its, net)) {
                let text = format!("{net} overlaps with {its} of tunnel {}", other.name);
                return Err(net_error(local_table, n, text));
            }
        }
    }
    Ok(())
}

/// Error for network number `n` of an end.
fn net_error(table: &Table<'_>, n: usize, text: String) -> super::reader::Fault {
    let item = table.get("nets").and_then(|value| value.list().ok()?.into_iter().nth(n));
    item.map_or_else(|| table.error(text.clone()), |item| item.error(format!("{text}; use another network")))
}

/// Addresses of this end: those of the file, and each network that is one host.
fn addresses(table: &Table<'_>, local: &End) -> Result<Vec<IfAddr>> {
    let value = table.get("addresses");
    let mut addresses = value.as_ref().map_or_else(|| Ok(Vec::new()), device::unicast_addresses)?;
    for (n, address) in addresses.iter().enumerate() {
        let addr = address.addr();
        if !local.nets.iter().any(|net| net.contains(addr)) {
            let item = value.as_ref().and_then(|value| value.list().ok()?.into_iter().nth(n));
            let text = format!("{addr} is in none of the local networks; use an address in one of them");
            return Err(item.map_or_else(|| table.error(text.clone()), |item| item.error(text.clone())));
        }
    }
    for net in local.nets.iter().filter(|net| net.is_host()) {
        if !addresses.iter().any(|address| address.addr() == net.addr()) {
            addresses.push(IfAddr::host(net.addr()));
        }
    }
    Ok(addresses)
}

/// Reads the keys of the directions out and in; `None` for those of a key manager.
fn keys(value: &Value<'_>, cipher: Aead) -> Result<Option<[Half; 2]>> {
    if !value.is_table() {
        return value.word(&[("ike", ())]).map(|()| None);
    }
    let table = value.table(&["out", "in"])?;
    let half = |key: &str| {
        let table = table.need(key, "use { spi = 0x1000, key = \"0x…\" }, with a key of fatpath genkey")?;
        let table = table.table(&["spi", "key"])?;
        let spi = table.need("spi", "use a number, such as 0x1000")?.number(1..=u32::MAX)?;
        Ok(Half { spi, key: algorithm::key(&table, cipher)? })
    };
    let (out, inward) = (half("out")?, half("in")?);
    if out.spi == inward.spi {
        return Err(value.error(format!("{:#x} is the SPI of both directions; use two numbers", out.spi)));
    }
    if out.key == inward.key {
        return Err(value.error("both directions have one key; use a key of its own for each"));
    }
    Ok(Some([out, inward]))
}

/// Refuses the SPIs of an earlier tunnel.
fn check_spis(
    value: &Value<'_>,
    out: &Half,
    inward: &Half,
    (own, peer): (IpAddr, IpAddr),
    earlier: &[Tunnel],
) -> Result<()> {
    for other in earlier {
        let Some([its_out, its_in]) = &other.keys else { continue };
        let same = [(other.remote.address == peer, its_out, out), (other.local.address == own, its_in, inward)];
        if let Some((_, _, half)) = same.iter().find(|(address, its, half)| *address && its.spi == half.spi) {
            let text = format!("{:#x} is already an SPI of tunnel {}; use another", half.spi, other.name);
            return Err(value.error(text));
        }
    }
    Ok(())
}

/// Link that carries the ESP of a tunnel.
fn outer(table: &Table<'_>, local: &End, config: &Config, earlier: &[Tunnel]) -> Result<Outer> {
    let has = |link: &&LinkConfig| link.own_addresses().any(|own| own.addr() == local.address);
    let of_udp = |link: &LinkConfig| link.kind.bind().map(|bind| bind.port());
    let mut own: Vec<&LinkConfig> = config.links.iter().filter(has).collect();
    // An interface with the address carries ESP with and without UDP.
    own.sort_by_key(|link| of_udp(link).is_some());
    let named =
        |link: &LinkConfig, port| Outer::Own { name: link.name.clone(), mtu: link.mtu.unwrap_or(OUTER_MTU), port };
    let wrong_port = |port: u16, owner: String| {
        let text = format!("{owner} has port {port} of {}; use that", local.address);
        table.get("port").map_or_else(|| table.error(text.clone()), |value| value.error(text.clone()))
    };
    if let Some(&link) = own.first() {
        let Some(first) = of_udp(link) else { return Ok(named(link, None)) };
        let mut fitting = own.iter().filter(|link| local.port.is_none_or(|port| of_udp(link) == Some(port)));
        return match fitting.next() {
            Some(link) => Ok(named(link, of_udp(link))),
            None => Err(wrong_port(first, format!("link {}", link.name))),
        };
    }
    let port = local.port.unwrap_or(PORT);
    for other in earlier.iter().filter(|other| other.local.address == local.address) {
        if let Outer::Socket(its) = other.outer
            && its != port
        {
            return Err(wrong_port(its, format!("tunnel {}", other.name)));
        }
    }
    Ok(Outer::Socket(port))
}

impl Tunnel {
    /// Name and outer addresses.
    pub(super) fn named(&self) -> TunnelName {
        TunnelName { name: self.name.clone(), local: self.local.address, remote: self.remote.address }
    }

    /// UDP encapsulation of ESP.
    fn encap(&self) -> Option<EspInUdp> {
        let (sport, is_needed) = match self.outer {
            Outer::Socket(port) | Outer::Own { port: Some(port), .. } => (port, true),
            Outer::Own { port: None, .. } => (self.local.port.unwrap_or(PORT), self.local.port.is_some()),
        };
        let dport = self.remote.port.unwrap_or(PORT);
        (is_needed || self.remote.port.is_some()).then_some(EspInUdp { sport, dport })
    }

    /// Largest packet that fits through the tunnel. A key manager's cipher is taken to be an AEAD.
    fn inner_mtu(&self) -> usize {
        let outer = match self.outer {
            Outer::Own { mtu, .. } => mtu,
            Outer::Socket(_) => OUTER_MTU,
        };
        let algorithm = Algorithm::aead(self.cipher, Key::default(), ICV_BITS);
        let ends = (self.local.address, self.remote.address);
        let sa = SaConfig { encap: self.encap(), ..SaConfig::new(ends.0, ends.1, Spi(1), Mode::Tunnel, algorithm) };
        Overhead::of(&sa).inner_mtu(outer.into())
    }

    /// Smallest MTU of the networks' families.
    fn min_mtu(&self) -> u16 {
        if self.local.nets.iter().all(|net| net.is_ipv4()) { link::MIN_MTU } else { link::MIN_MTU_V6 }
    }

    /// Local networks that no link of the file serves.
    fn unserved<'a>(&'a self, config: &'a Config) -> impl Iterator<Item = Prefix> + 'a {
        self.local.nets.iter().copied().filter(|net| {
            let addresses = config.links.iter().flat_map(|link| &link.addresses).map(|address| address.prefix());
            let of_lo = config.lo.iter().map(|address| Prefix::host(address.addr()));
            let serves = |prefix: Prefix| prefix.len() <= net.len() && overlap(prefix, *net);
            !addresses.chain(of_lo).any(serves)
        })
    }

    /// Networks behind the peer to which packets from other sources than the local networks must not leave in clear: those of a
    /// tunnel over an interface. A `udp` link sends nothing in clear; other traffic to everything else (`0.0.0.0/0`) is ordinary, and
    /// so is that to the peer itself.
    fn guarded(&self) -> impl Iterator<Item = &Prefix> {
        let is_interface = matches!(self.outer, Outer::Own { port: None, .. });
        let nets = self.remote.nets.iter();
        nets.filter(move |net| is_interface && net.len() > 0 && !net.contains(self.remote.address))
    }

    fn has_tun(&self, config: &Config) -> bool {
        self.has_device && self.unserved(config).next().is_some()
    }

    /// Refuses a tunnel without a device whose addresses are nowhere.
    fn check_lo(&self, local: &Value<'_>, config: &Config) -> Result<()> {
        let mut unserved = self.unserved(config);
        let has_address = |net: Prefix| self.addresses.iter().any(|address| net.contains(address.addr()));
        if let Some(net) = unserved.find(|net| !has_address(*net)) {
            let text = format!("{net} has no device and no address of this end; use addresses, or device = \"tun\"");
            return Err(local.error(text).about(Refers::Links));
        }
        let is_missing = |address: &&IfAddr| !config.lo.iter().any(|own| own.addr() == address.addr());
        if !config.lo.is_empty()
            && let Some(address) = self.addresses.iter().find(is_missing)
        {
            let addr = address.addr();
            return Err(local.error(format!("lo of this file has not the address {addr}; add it there")));
        }
        Ok(())
    }

    /// The node's own address in the local networks, as a source of packets to a network of the family.
    fn source(&self, config: &Config, v4: bool) -> Option<IpAddr> {
        let of_links = config.links.iter().flat_map(|link| &link.addresses).chain(&config.lo).map(|own| own.addr());
        let of_lo = self.addresses.iter().map(|own| own.addr()).filter(|_| !self.has_device);
        let mut own = of_lo.chain(of_links).filter(|own| own.is_ipv4() == v4);
        own.find(|own| self.local.nets.iter().any(|net| net.contains(*own)))
    }
}

/// The tables that the tunnels stand for, each with those that it shares with later tunnels. `config` has the links of
/// the file.
pub(super) fn expand(tunnels: &[Tunnel], root: &Document<'_>, config: &Config) -> Vec<Expansion> {
    if tunnels.is_empty() {
        return Vec::new();
    }
    let mut writer = Writer::new(tunnels, root, config);
    tunnels.iter().map(|tunnel| writer.expansion(tunnel)).collect()
}

/// Writer of tunnels' tables.
struct Writer<'a> {
    tunnels: &'a [Tunnel],
    config: &'a Config,
    /// Names that are taken by links and tunnels.
    names: HashSet<&'a str>,
    /// Sockets, with the names of their links.
    sockets: Vec<(IpAddr, String)>,
    has_lo: bool,
    /// Destinations of the main table's routes, which are not written again.
    routes: HashSet<Prefix>,
    /// Destinations of the file's own policies for packets from everywhere.
    policies: HashSet<Prefix>,
    reqids: HashSet<u32>,
}

impl<'a> Writer<'a> {
    fn new(tunnels: &'a [Tunnel], root: &Document<'_>, config: &'a Config) -> Self {
        let links = config.links.iter().map(|link| link.name.as_str());
        let names = links.chain(tunnels.iter().map(|tunnel| tunnel.name.as_str())).collect();
        let (mut routes, mut reqids) = (HashSet::new(), HashSet::new());
        // Errors of these tables are found when they are read.
        let mut ignored = Faults::new(root.source());
        root.each("route", route::KEYS, &mut ignored, |table, _| {
            let is_elsewhere = ["table", "vrf", "metric"].iter().any(|key| table.get(key).is_some());
            let to: Option<Prefix> = table.get("to").and_then(|to| to.str().ok()?.parse().ok());
            routes.extend(to.filter(|_| !is_elsewhere));
            Ok(())
        });
        let mut policies = HashSet::new();
        root.each("policy", ipsec::POLICY_KEYS, &mut ignored, |table, _| {
            let text = |key: &str| table.get(key).and_then(|value| Some(value.str().ok()?.to_owned()));
            let is_from_all = text("src").is_none_or(|src| matches!(src.as_str(), "0.0.0.0/0" | "::/0"));
            if text("dir").as_deref() == Some("out") && is_from_all {
                policies.extend(text("dst").and_then(|dst| dst.parse::<Prefix>().ok()));
            }
            Ok(())
        });
        root.each("sa", ipsec::SA_KEYS, &mut ignored, |table, _| {
            reqids.extend(table.get("reqid").and_then(|value| value.number(0..=u32::MAX).ok()));
            Ok(())
        });
        Self { tunnels, config, names, sockets: Vec::new(), has_lo: false, routes, policies, reqids }
    }

    fn expansion(&mut self, tunnel: &Tunnel) -> Expansion {
        let mut out = Tables::new(tunnel);
        out.line(&format!("# Tunnel {}.", tunnel.name));
        let local_nets: Vec<Prefix> = tunnel.unserved(self.config).filter(|_| tunnel.has_device).collect();
        if !local_nets.is_empty() {
            out.tun(tunnel);
        }
        let outer = self.outer(tunnel, &mut out);
        self.lo(tunnel, &mut out);
        if tunnel.encap().is_some() && !matches!(tunnel.outer, Outer::Own { port: None, .. }) {
            self.route(Prefix::host(tunnel.remote.address), &outer, None, &mut out);
        }
        for net in local_nets {
            self.route(net, &tunnel.name, None, &mut out);
        }
        for &net in &tunnel.remote.nets {
            self.route(net, &outer, tunnel.source(self.config, net.is_ipv4()), &mut out);
        }
        let reqid = if tunnel.keys.is_some() { self.reqid() } else { 0 };
        if let Some([sent, received]) = &tunnel.keys {
            out.sa(tunnel, sent, reqid, true);
            out.sa(tunnel, received, reqid, false);
        }
        for &own in &tunnel.local.nets {
            for &peer in tunnel.remote.nets.iter().filter(|peer| peer.is_ipv4() == own.is_ipv4()) {
                out.policies(tunnel, own, peer, reqid);
            }
        }
        for &net in tunnel.guarded().filter(|net| !self.policies.contains(net)) {
            out.guard(net);
        }
        out.finish(tunnel.place)
    }

    /// Writes the link of a tunnel's ESP unless it exists, and returns its name.
    fn outer(&mut self, tunnel: &Tunnel, out: &mut Tables) -> String {
        let port = match &tunnel.outer {
            Outer::Own { name, .. } => return name.clone(),
            Outer::Socket(port) => *port,
        };
        let address = tunnel.local.address;
        if let Some((_, name)) = self.sockets.iter().find(|(its, _)| *its == address) {
            return name.clone();
        }
        let is_free =
            |name: &String| !self.names.contains(name.as_str()) && !self.sockets.iter().any(|(_, other)| other == name);
        let numbered = (1..).map(|n: u32| format!("wan{n}"));
        let name = std::iter::once("wan".to_owned()).chain(numbered).find(is_free).unwrap_or_default();
        let has_ike = self.tunnels.iter().any(|other| other.local.address == address && other.keys.is_none());
        out.socket(&name, std::net::SocketAddr::new(address, port), has_ike);
        self.sockets.push((address, name.clone()));
        name
    }

    /// Writes `lo` with the addresses of all tunnels without a device, once.
    fn lo(&mut self, tunnel: &Tunnel, out: &mut Tables) {
        if tunnel.has_device || self.has_lo || !self.config.lo.is_empty() {
            return;
        }
        self.has_lo = true;
        let mut addresses: Vec<IpAddr> = Vec::new();
        for other in self.tunnels.iter().filter(|other| !other.has_device) {
            let is_of_link = |own: IpAddr| {
                self.config.links.iter().any(|link| link.addresses.iter().any(|address| address.addr() == own))
            };
            for own in other.addresses.iter().map(|own| own.addr()) {
                if !addresses.contains(&own) && !is_of_link(own) {
                    addresses.push(own);
                }
            }
        }
        if !addresses.is_empty() {
            out.lo(&addresses);
        }
    }

    /// Writes a route unless the file or an earlier tunnel has one to the prefix.
    fn route(&mut self, to: Prefix, dev: &str, src: Option<IpAddr>, out: &mut Tables) {
        if self.routes.insert(to) {
            out.route(to, dev, src);
        }
    }

    /// Smallest number that no SA has.
    fn reqid(&mut self) -> u32 {
        let reqid = (1..=u32::MAX).find(|reqid| !self.reqids.contains(reqid)).unwrap_or(u32::MAX);
        self.reqids.insert(reqid);
        reqid
    }
}

/// Text of tables.
struct Tables {
    text: Zeroizing<String>,
    keys: Vec<Range<usize>>,
}

impl Tables {
    fn new(tunnel: &Tunnel) -> Self {
        let pairs = tunnel.local.nets.len() * tunnel.remote.nets.len();
        let nets = tunnel.local.nets.len() + tunnel.remote.nets.len() + tunnel.addresses.len();
        // The text holds keys: its buffer is large enough from the start.
        let capacity = 1400 + 900 * pairs + 250 * nets;
        Self { text: Zeroizing::new(String::with_capacity(capacity)), keys: Vec::new() }
    }

    fn line(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
    }

    fn table(&mut self, list: &str) {
        let gap = if self.text.ends_with(".\n") { "" } else { "\n" };
        self.line(&format!("{gap}[[{list}]]"));
    }

    fn tun(&mut self, tunnel: &Tunnel) {
        self.table("link");
        self.line(&format!("name = {}", text(&tunnel.name)));
        self.line("kind = \"tun\"");
        self.line(&format!("mtu = {}", tunnel.inner_mtu()));
        let source = |v4| tunnel.addresses.iter().map(|own| own.addr()).find(|own: &IpAddr| own.is_ipv4() == v4);
        // A default route of the host would lead the tunnel's own packets into the tunnel.
        let nets = tunnel.remote.nets.iter().filter(|net| net.len() > 0);
        let routes = nets.map(|net| match source(net.is_ipv4()) {
            Some(src) => format!("{{ to = \"{net}\", src = \"{src}\" }}"),
            None => format!("\"{net}\""),
        });
        let routes: Vec<String> = routes.collect();
        let addresses = list(&tunnel.addresses);
        self.line(&format!("device = {{ addresses = {addresses}, routes = [{}] }}", routes.join(", ")));
    }

    fn socket(&mut self, name: &str, bind: std::net::SocketAddr, has_ike: bool) {
        self.table("link");
        self.line(&format!("name = {}", text(name)));
        self.line("kind = \"udp\"");
        self.line(&format!("bind = \"{bind}\""));
        if has_ike {
            self.line("ike = true");
        }
    }

    fn lo(&mut self, addresses: &[IpAddr]) {
        self.table("link");
        self.line("name = \"lo\"");
        let addresses: Vec<Prefix> = addresses.iter().copied().map(Prefix::host).collect();
        self.line(&format!("addresses = {}", list(&addresses)));
    }

    fn route(&mut self, to: Prefix, dev: &str, src: Option<IpAddr>) {
        self.table("route");
        self.line(&format!("to = \"{to}\""));
        self.line(&format!("dev = {}", text(dev)));
        if let Some(src) = src {
            self.line(&format!("src = \"{src}\""));
        }
    }

    fn sa(&mut self, tunnel: &Tunnel, half: &Half, reqid: u32, is_out: bool) {
        let (own, peer) = (tunnel.local.address, tunnel.remote.address);
        let (src, dst, dir) = if is_out { (own, peer, "out") } else { (peer, own, "in") };
        self.table("sa");
        self.line(&format!("src = \"{src}\""));
        self.line(&format!("dst = \"{dst}\""));
        self.line(&format!("spi = {:#x}", half.spi));
        self.line(&format!("dir = \"{dir}\""));
        self.line("mode = \"tunnel\"");
        self.line(&format!("reqid = {reqid}"));
        self.text.push_str(&format!("aead = {{ name = \"{}\", key = ", tunnel.cipher.name()));
        let start = self.text.len();
        self.text.push_str("\"0x");
        for byte in half.key.bytes() {
            let _ = write!(self.text, "{byte:02x}");
        }
        self.text.push('"');
        self.keys.push(start..self.text.len());
        self.line(&format!(", icv = {ICV_BITS} }}"));
        if !is_out {
            self.line(&format!("replay-window = {REPLAY_WINDOW}"));
        }
        self.line("flags = [\"esn\", \"af-unspec\"]");
        if let Some(EspInUdp { sport, dport }) = tunnel.encap() {
            let (sport, dport) = if is_out { (sport, dport) } else { (dport, sport) };
            self.line(&format!("encap = {{ type = \"espinudp\", sport = {sport}, dport = {dport} }}"));
        }
    }

    fn policies(&mut self, tunnel: &Tunnel, own: Prefix, peer: Prefix, reqid: u32) {
        let ends = (tunnel.local.address, tunnel.remote.address);
        let out = ((own, peer), ends);
        let inward = ((peer, own), (ends.1, ends.0));
        for (dir, ((src, dst), (from, to))) in [("out", out), ("fwd", inward), ("in", inward)] {
            self.table("policy");
            self.line(&format!("dir = \"{dir}\""));
            self.line(&format!("src = \"{src}\""));
            self.line(&format!("dst = \"{dst}\""));
            if tunnel.keys.is_none() {
                // Policies of the key manager come first.
                self.line(&format!("priority = {}", PolicyConfig::WAITING));
            }
            let reqid = if reqid > 0 { format!(", reqid = {reqid}") } else { String::new() };
            let ends = format!("src = \"{from}\", dst = \"{to}\"");
            self.line(&format!("tmpl = [{{ {ends}, proto = \"esp\", mode = \"tunnel\"{reqid} }}]"));
        }
    }

    /// Policy that blocks packets to a network which no other policy covers.
    fn guard(&mut self, net: Prefix) {
        self.table("policy");
        self.line("dir = \"out\"");
        self.line(&format!("dst = \"{net}\""));
        self.line(&format!("priority = {}", PolicyConfig::BLOCKING));
        self.line("action = \"block\"");
    }

    fn finish(self, place: Place) -> Expansion {
        let place = Place { is_of_tunnel: true, ..place };
        Expansion { place, text: self.text, keys: self.keys }
    }
}

/// TOML text of a link's name.
fn text(name: &str) -> String {
    format!("\"{}\"", name.replace('\\', "\\\\").replace('"', "\\\""))
}

/// TOML list of addresses.
fn list<T: std::fmt::Display>(items: &[T]) -> String {
    let texts: Vec<String> = items.iter().map(|item| format!("\"{item}\"")).collect();
    format!("[{}]", texts.join(", "))
}
