//! Warnings about a valid configuration that cannot work, or is dangerous.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;

use ::xfrm::{Action, Algorithm, Dir, Level, Mode, Overhead, SaConfig, SaDir, Template};
use base::Prefix;

use super::faults::{Findings, Gathered, Place};
use super::index::Places;
use super::reader::{Fault, Refers, Source};
use crate::model::{Config, LinkConfig, LinkKind, RouteAction};

/// First bytes of the keys in the examples and in the documentation.
const EXAMPLE_KEYS: [[u8; 8]; 3] = [
    [0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77],
    [0xff, 0xee, 0xdd, 0xcc, 0xbb, 0xaa, 0x99, 0x88],
    [0x00, 0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07],
];

/// MTU of a TUN, TAP or UDP link without one in the file.
const DEFAULT_MTU: u16 = 1500;

/// Warnings about `config`, whose tables are at `places` of `source`.
pub(super) fn of(config: &Config, places: &Places, source: Source<'_>) -> Findings {
    let mut warnings = Warnings { config, places, gathered: Gathered::new(source), of_tunnels: HashSet::new() };
    warnings.vlans();
    warnings.keys();
    warnings.workers();
    warnings.clear_policies();
    let reach = Reach::of(config);
    warnings.peers(&reach);
    warnings.unmatched_templates();
    warnings.mtus(&reach);
    warnings.gathered.finish()
}

struct Warnings<'a> {
    config: &'a Config,
    places: &'a Places,
    gathered: Gathered<'a>,
    /// Offsets and texts of warnings about tunnels.
    of_tunnels: HashSet<(usize, String)>,
}

impl Warnings<'_> {
    fn warn(&mut self, place: Option<&Place>, list: &str, text: String) {
        let Some(place) = place else { return };
        let (at, key) = (place.at as usize, place.path(list));
        // Several tables of one tunnel have one line.
        if place.is_of_tunnel && !self.of_tunnels.insert((at, text.clone())) {
            return;
        }
        self.gathered.push(Fault { at, key, text, refers: Refers::Nothing });
    }

    /// VLANs of ports whose bridge does not filter.
    fn vlans(&mut self) {
        let (config, places) = (self.config, self.places);
        let unfiltered = |name: &str| {
            let mut bridges = config.links.iter().filter(|link| link.name == name);
            bridges.any(|link| matches!(&link.kind, LinkKind::Bridge(settings) if !settings.vlan_filtering))
        };
        for (link, place) in config.links.iter().zip(&places.links) {
            let Some(port) = &link.port else { continue };
            let bridge = link.master.as_deref().unwrap_or(&link.name);
            let has_vlans = port.pvid.flatten().is_some()
                || port.tagged.iter().next().is_some()
                || port.untagged.iter().next().is_some();
            if has_vlans && unfiltered(bridge) {
                let text = format!("its VLANs have no effect, as {bridge} has no vlan-filtering = true");
                self.warn(Some(place), "link", text);
            }
        }
    }

    /// Keys that are public, or that several SAs have.
    fn keys(&mut self) {
        let (config, places) = (self.config, self.places);
        // Digests instead of keys, so that no second copy of the keys is in memory.
        let hasher = RandomState::new();
        let mut seen: HashMap<u64, usize> = HashMap::new();
        for (at, sa) in config.sas.iter().enumerate() {
            let key = secret(&sa.algorithm);
            if key.is_empty() {
                continue;
            }
            if EXAMPLE_KEYS.iter().any(|example| key.starts_with(example)) {
                let text = "its key is that of an example, which everybody knows; use one of fatpath genkey";
                self.warn(places.sas.get(at), "sa", text.to_owned());
            }
            match seen.entry(hasher.hash_one(key)) {
                Entry::Vacant(entry) => drop(entry.insert(at)),
                Entry::Occupied(entry) if secret(&config.sas[*entry.get()].algorithm) == key => {
                    let first = places.sas.get(*entry.get()).map(|place| place.path("sa")).unwrap_or_default();
                    let text =
                        format!("it has the key of {first}; use a key of its own for each SA, from fatpath genkey");
                    self.warn(places.sas.get(at), "sa", text);
                }
                Entry::Occupied(_) => {}
            }
        }
    }

    /// SAs for the packets of workers that do not exist.
    fn workers(&mut self) {
        let (config, places) = (self.config, self.places);
        let count = config.worker.count.get();
        let numbered = config.sas.iter().zip(&places.sas).filter_map(|(sa, place)| Some((sa.cpu? as usize, place)));
        for (cpu, place) in numbered.filter(|&(cpu, _)| cpu >= count) {
            let text = format!("pcpu-num {cpu} is that of no worker, so it only receives; use 0 to {}", count - 1);
            self.warn(Some(place), "sa", text);
        }
    }

    /// Policies that let packets pass in clear beside SAs.
    fn clear_policies(&mut self) {
        let (config, places) = (self.config, self.places);
        if config.sas.is_empty() {
            return;
        }
        for (policy, place) in config.policies.iter().zip(&places.policies) {
            if policy.action == Action::Allow && policy.templates.is_empty() {
                let text = "it has no tmpl, so its packets pass in clear; add tmpl, or action = \"block\"";
                self.warn(Some(place), "policy", text.to_owned());
            }
        }
    }

    /// Peers without a route.
    fn peers(&mut self, reach: &Reach<'_>) {
        let (config, places) = (self.config, self.places);
        let mut seen = HashSet::new();
        let of_sas = config.sas.iter().zip(&places.sas).filter(|(sa, _)| sa.dir != Some(SaDir::In));
        let of_sas = of_sas.map(|(sa, place)| (sa.dst, place, "sa"));
        let out = config.policies.iter().zip(&places.policies).filter(|(policy, _)| policy.dir == Dir::Out);
        let of_policies = out.flat_map(|(policy, place)| {
            policy.templates.iter().filter_map(move |template| Some((template.dst?, place, "policy")))
        });
        for (peer, place, list) in of_sas.chain(of_policies) {
            if seen.insert(peer) && !reach.own.contains(&peer) && reach.link_to(peer).is_none() {
                self.warn(Some(place), list, format!("no route of this file leads to the peer {peer}; add one"));
            }
        }
    }

    /// Templates that none of the file's SAs matches, unless a key manager or a program sets SAs.
    fn unmatched_templates(&mut self) {
        let (config, places) = (self.config, self.places);
        if config.sas.is_empty() || config.links.iter().any(|link| link.ike) {
            return;
        }
        let mut index = SaIndex::of(&config.sas);
        for (policy, place) in config.policies.iter().zip(&places.policies) {
            let required = policy.templates.iter().filter(|template| template.level == Level::Required);
            for (n, template) in required.enumerate() {
                if index.first(*template).is_none() {
                    let text = format!(
                        "no SA of this file matches tmpl[{n}], so its packets are dropped; use the src, dst and reqid of an SA"
                    );
                    self.warn(Some(place), "policy", text);
                }
            }
        }
    }

    /// Links whose packets do not fit through the tunnel that their policy prescribes.
    fn mtus(&mut self, reach: &Reach<'_>) {
        let (config, places) = (self.config, self.places);
        let mut index = SaIndex::of(&config.sas);
        let mut limits: HashMap<usize, (usize, IpAddr)> = HashMap::new();
        for policy in config.policies.iter().filter(|policy| policy.dir == Dir::Out) {
            let Some(sa) = policy.templates.first().and_then(|template| index.first(*template)) else { continue };
            let sa = &config.sas[sa];
            let outer = reach.link_to(sa.dst).and_then(|at| known_mtu(&config.links[at]));
            let (Some(outer), Mode::Tunnel) = (outer, sa.mode) else { continue };
            let Some(inside) = reach.link_to(policy.selector.src.addr()) else { continue };
            let limit = Overhead::of(sa).inner_mtu(outer.into());
            let smallest = limits.entry(inside).or_insert((limit, sa.dst));
            if limit < smallest.0 {
                *smallest = (limit, sa.dst);
            }
        }
        let mut limits: Vec<_> = limits.into_iter().collect();
        limits.sort_unstable();
        for (at, (limit, peer)) in limits {
            let link = &config.links[at];
            let Some(mtu) = known_mtu(link).filter(|mtu| usize::from(*mtu) > limit && !link.clamp_mss) else {
                continue;
            };
            let text = format!(
                "its MTU is {mtu}, and packets of {limit} bytes fit through the tunnel to {peer}; use mtu = {limit}"
            );
            self.warn(places.links.get(at), "link", text);
        }
    }
}

/// Key of an algorithm: that of the cipher, or of the authentication alone.
fn secret(algorithm: &Algorithm) -> &[u8] {
    let key = algorithm.key().bytes();
    match algorithm.auth() {
        Some(auth) if key.is_empty() => auth.key.bytes(),
        _ => key,
    }
}

/// MTU of a link, if the file determines it.
fn known_mtu(link: &LinkConfig) -> Option<u16> {
    let is_made = link.kind.is_tun() || link.kind.bind().is_some();
    link.mtu.or(is_made.then_some(DEFAULT_MTU))
}

/// Links to which the file's routes lead.
struct Reach<'a> {
    own: HashSet<IpAddr>,
    prefixes: HashMap<Prefix, usize>,
    /// Prefix lengths of `prefixes`, by family.
    lens: [BTreeSet<u8>; 2],
    numbers: HashMap<&'a str, usize>,
}

impl<'a> Reach<'a> {
    fn of(config: &'a Config) -> Self {
        let numbers = config.links.iter().enumerate().map(|(at, link)| (link.name.as_str(), at)).collect();
        let own = config.links.iter().flat_map(LinkConfig::own_addresses).chain(config.lo.iter().copied());
        let own = own.map(base::IfAddr::addr).collect();
        let mut reach = Self { own, prefixes: HashMap::new(), lens: [BTreeSet::new(), BTreeSet::new()], numbers };
        for (at, link) in config.links.iter().enumerate() {
            link.addresses.iter().for_each(|address| reach.push(address.prefix(), at));
        }
        for route in &config.routes {
            if let RouteAction::Unicast { dev, .. } = &route.action
                && let Some(&at) = reach.numbers.get(dev.as_str())
            {
                reach.push(route.to, at);
            }
        }
        reach
    }

    fn push(&mut self, prefix: Prefix, at: usize) {
        self.lens[usize::from(!prefix.is_ipv4())].insert(prefix.len());
        self.prefixes.entry(prefix).or_insert(at);
    }

    /// Link of the longest prefix that contains an address.
    fn link_to(&self, addr: IpAddr) -> Option<usize> {
        let lens = self.lens[usize::from(!addr.is_ipv4())].iter().rev();
        lens.filter_map(|&len| Prefix::containing(addr, len).ok())
            .find_map(|prefix| self.prefixes.get(&prefix).copied())
    }
}

/// Conditions of a template on its SA: mode, `reqid`, source and destination.
type Wanted = (Mode, Option<u32>, Option<IpAddr>, Option<IpAddr>);

/// SAs by the conditions of templates: a table for each combination of conditions, filled for the first template with
/// it.
struct SaIndex<'a> {
    sas: &'a [SaConfig],
    tables: [Option<HashMap<Wanted, usize>>; 8],
}

impl<'a> SaIndex<'a> {
    fn of(sas: &'a [SaConfig]) -> Self {
        Self { sas, tables: Default::default() }
    }

    /// Position of the first SA that matches a template.
    fn first(&mut self, template: Template) -> Option<usize> {
        let Template { src, dst, mode, .. } = template;
        let wanted: Wanted = (mode, Some(template.reqid).filter(|&reqid| reqid > 0), src, dst);
        let has = (wanted.1.is_some(), src.is_some(), dst.is_some());
        let number = usize::from(has.0) | usize::from(has.1) << 1 | usize::from(has.2) << 2;
        let sas = self.sas;
        let table = self.tables[number].get_or_insert_with(|| {
            let mut table = HashMap::new();
            for (at, sa) in sas.iter().enumerate() {
                let own = (sa.mode, has.0.then_some(sa.reqid), has.1.then_some(sa.src), has.2.then_some(sa.dst));
                table.entry(own).or_insert(at);
            }
            table
        });
        table.get(&wanted).copied()
    }
}
