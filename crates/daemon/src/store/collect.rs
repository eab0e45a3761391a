//! State of a node, and the part that does not come from its files.

use std::collections::{BTreeMap, HashMap, HashSet};

use config::Config;
use config::model::{IlaConfig, PolicyDefault};
use config::settings::Settings;
use netlink::generic::ila::{IlaBackend as _, Mapping, MappingName};
use netlink::sysctl;
use netlink::xfrm::{Database, Policy, Sa, convert, saved_defaults};
use netlink::{Error, Saved, rtnl, set_flags};

use super::file::{Kept, State};
use crate::netlink::Protocols;
use crate::sa_name::SaName;

/// Names of links by their numbers.
pub(super) type Links = BTreeMap<u32, String>;

/// Number of SAs and policies that are fetched at once.
const CHUNK: usize = 256;

/// All state of a node.
#[derive(Debug)]
pub(crate) struct Collected {
    links: Vec<(u32, String)>,
    route: rtnl::Snapshot,
    sas: Vec<(SaName, Saved)>,
    /// SAs with a time limit.
    limited: HashSet<SaName>,
    /// Reservations of the SPIs of SAs that a restart loses.
    lost: Vec<(SaName, Saved)>,
    policies: Vec<Saved>,
    ila: Vec<(IlaConfig, Saved)>,
    /// Whether in, out and fwd block packets without a policy.
    defaults: [bool; 3],
    settings: Settings,
}

impl Collected {
    /// State of a node, taken while no netlink client changes it.
    ///
    /// # Errors
    /// The worker does not answer.
    pub(crate) fn of(protocols: &mut Protocols) -> Result<Self, String> {
        let route = protocols.rtnl.snapshot().map_err(|err| err.to_string())?;
        let model = &protocols.rtnl.model;
        let links = model.links_after(0);
        let links: Vec<(u32, String)> =
            links.map(|(id, link)| (model.ifindex(id).0, link.config.name.clone())).collect();
        let ila = saved_mappings(protocols, &links)?;
        let settings = *protocols.sysctl.settings();
        let database = protocols.xfrm.database_mut();
        let defaults = database.defaults().map_err(|err| err.to_string())?;
        let (sas, limited, lost, policies) = (Vec::new(), HashSet::new(), Vec::new(), Vec::new());
        let mut collected = Self { links, route, sas, limited, lost, policies, ila, defaults, settings };
        each(|below| database.sas(below, CHUNK), |sa| collected.add_sa(&sa))?;
        each(|below| database.policies(below, CHUNK), |policy: Policy| collected.policies.push(policy.saved()))?;
        // The newest is listed first.
        collected.sas.reverse();
        collected.policies.reverse();
        Ok(collected)
    }

    fn add_sa(&mut self, sa: &Sa) {
        let Some(dst) = sa.info.daddr.ip(sa.info.family) else { return };
        let name = SaName { dst, spi: sa.info.spi, mark: sa.mark };
        self.lost.extend(sa.lost().map(|saved| (name, saved)));
        let Some(saved) = sa.saved() else { return };
        if sa.has_time_limit() {
            self.limited.insert(name);
        } else {
            self.sas.push((name, saved));
        }
    }

    /// The state to save, a summary of it in words, and in the summary the number of SAs left out for their time limit.
    pub(crate) fn without(self, of_files: &OfFiles) -> (State, String) {
        let Self { links, route, sas, limited, lost, policies, ila, defaults, settings } = self;
        let limited = limited.difference(&of_files.sas).count();
        let route = rtnl::without(route.requests(), |saved| of_files.has(saved)).into_iter();
        let sas = sas.into_iter().filter(|(name, _)| !of_files.sas.contains(name));
        // A direction that the files block is blocked after a restart too, also if a program has changed it.
        let block = [0, 1, 2].map(|dir| defaults[dir] && !of_files.defaults[dir]);
        let defaults = Some(saved_defaults(block)).filter(|_| block.contains(&true));
        let policies = policies.into_iter().filter(|saved| !of_files.has(saved));
        let ila = ila.into_iter().map(|(_, saved)| saved).filter(|saved| !of_files.has(saved));
        let lost = lost.into_iter().filter(|(name, _)| !of_files.sas.contains(name)).map(|(_, saved)| saved);
        let lost = lost.map(|Saved { label, message, .. }| Kept { label, message });
        let mut counts = Counts::default();
        let mut keep = |saved: Saved| {
            counts.add(saved.noun);
            Kept { label: saved.label, message: saved.message }
        };
        let state = State {
            links: links.into_iter().collect(),
            route: route.map(&mut keep).collect(),
            sas: sas.map(|(name, saved)| (name, keep(saved))).collect(),
            xfrm: policies.chain(defaults).map(&mut keep).chain(lost).collect(),
            ila: ila.map(keep).collect(),
            settings: sysctl::saved(&settings, &of_files.settings)
                .map(|(name, text)| (name.to_owned(), text))
                .collect(),
            checkpoints: Default::default(),
        };
        state.settings.iter().for_each(|_| counts.add("setting"));
        (state, counts.say(limited))
    }
}

/// SAs with a time limit that the files do not have, the oldest first, and the names of the links that they refer to.
///
/// # Errors
/// The worker does not answer.
pub(super) fn limited(protocols: &mut Protocols, of_files: &OfFiles) -> Result<(Vec<(SaName, Saved)>, Links), String> {
    let model = &protocols.rtnl.model;
    let links = model.links_after(0).map(|(id, link)| (model.ifindex(id).0, link.config.name.clone())).collect();
    let database = protocols.xfrm.database_mut();
    let mut found = Vec::new();
    let add = |sa: Sa| {
        let name = sa.info.daddr.ip(sa.info.family).map(|dst| SaName { dst, spi: sa.info.spi, mark: sa.mark });
        let name = name.filter(|name| sa.has_time_limit() && !of_files.sas.contains(name));
        found.extend(name.and_then(|name| Some((name, sa.saved()?))));
    };
    each(|below| database.sas(below, CHUNK), add)?;
    // The newest is listed first.
    found.reverse();
    Ok((found, links))
}

/// ILA's mappings, with the names of their devices from `links`.
fn saved_mappings(protocols: &mut Protocols, links: &[(u32, String)]) -> Result<Vec<(IlaConfig, Saved)>, String> {
    let names: HashMap<u32, &str> = links.iter().map(|(number, name)| (*number, name.as_str())).collect();
    let all = protocols.generic().ila.all().map_err(|err| err.to_string())?;
    let each = all.into_iter().map(|mapping| {
        let Mapping { name, locator, csum_mode, ident_type } = mapping;
        let MappingName { locator_match, identifier, ifindex } = name;
        let found = names.get(&ifindex).copied();
        let dev = found.map(str::to_owned);
        let config = IlaConfig { locator_match, identifier, locator, dev, csum_mode, ident_type };
        (config, mapping.saved(found))
    });
    Ok(each.collect())
}

/// Fetches all, a part at a time.
fn each<T>(
    mut fetch: impl FnMut(u64) -> Result<std::collections::VecDeque<(u64, T)>, Error>,
    mut take: impl FnMut(T),
) -> Result<(), String> {
    let mut below = u64::MAX;
    loop {
        let part = fetch(below).map_err(|err| err.to_string())?;
        let Some(&(last, _)) = part.back() else { return Ok(()) };
        below = last;
        part.into_iter().for_each(|(_, item)| take(item));
    }
}

/// Requests that make a node, for comparison with a later state of it.
#[derive(Debug)]
pub(crate) struct Fingerprint(HashSet<Vec<u8>>, [bool; 3], Settings);

impl Collected {
    /// Fingerprint of the node. It does not have sequence numbers of SAs.
    pub(crate) fn fingerprint(&self) -> Fingerprint {
        let sas = self.sas.iter().map(|(_, saved)| {
            let mut saved = saved.clone();
            netlink::xfrm::set_numbers(&mut saved.message, netlink::xfrm::Numbers::default());
            without_flags(&saved)
        });
        let route = self.route.requests();
        let others = route.iter().chain(&self.policies).chain(self.ila.iter().map(|(_, saved)| saved));
        Fingerprint(others.map(without_flags).chain(sas).collect(), self.defaults, self.settings)
    }
}

impl Fingerprint {
    /// Whether this node has all objects of an earlier one, unchanged.
    pub(crate) fn has_all_of(&self, before: &Self) -> bool {
        let is_blocked = [0, 1, 2].into_iter().all(|dir| self.1[dir] >= before.1[dir]);
        let set = |settings| sysctl::saved(settings, &Settings::default()).collect::<HashSet<_>>();
        before.0.is_subset(&self.0) && is_blocked && set(&before.2).is_subset(&set(&self.2))
    }
}

/// Number of objects of each kind.
#[derive(Debug, Default)]
struct Counts(Vec<(&'static str, usize)>);

impl Counts {
    fn add(&mut self, noun: &'static str) {
        match self.0.iter_mut().find(|(there, _)| *there == noun) {
            Some((_, n)) => *n += 1,
            None => self.0.push((noun, 1)),
        }
    }

    fn say(&self, limited: usize) -> String {
        let plural = |noun: &str, n: usize| match (noun, n) {
            (noun, 1) => format!("1 {noun}"),
            ("address", n) => format!("{n} addresses"),
            ("link of a VRF", n) => format!("{n} links of VRFs"),
            ("port of a bridge", n) => format!("{n} ports of bridges"),
            ("address of a bridge", n) => format!("{n} addresses of bridges"),
            ("policy", n) => format!("{n} policies"),
            (noun, n) => format!("{n} {noun}s"),
        };
        let each: Vec<String> = self.0.iter().map(|(noun, n)| plural(noun, *n)).collect();
        let kept = if each.is_empty() { "nothing".to_owned() } else { each.join(", ") };
        match limited {
            0 => kept,
            n => format!("{kept}, but not {} with a time limit", plural("SA", n)),
        }
    }
}

/// Objects of a node that its files define, and that are not saved therefore.
#[derive(Debug, Default)]
pub(crate) struct OfFiles {
    /// Labels of requests for objects that exist at most once.
    alone: HashSet<String>,
    /// Requests without their flags, which only order a route among others.
    messages: HashSet<Vec<u8>>,
    sas: HashSet<SaName>,
    /// Directions that block packets without a policy.
    defaults: [bool; 3],
    settings: Settings,
}

impl OfFiles {
    /// Objects of a node that has just started, which all come from its files.
    pub(crate) fn all(collected: Collected) -> Self {
        let Collected { route, sas, limited, policies, ila, defaults, settings, .. } = collected;
        let mut of_files = Self { sas: limited, defaults, settings, ..Self::default() };
        of_files.sas.extend(sas.into_iter().map(|(name, _)| name));
        let ila = ila.into_iter().map(|(_, saved)| saved);
        route.requests().into_iter().chain(policies).chain(ila).for_each(|saved| of_files.add(saved));
        of_files
    }

    /// A node that has just loaded `config`: its links, addresses, routes and rules are from the file, other objects
    /// may be from programs.
    pub(crate) fn loaded(collected: Collected, config: &Config) -> Self {
        let PolicyDefault { block_in, block_out, block_fwd } = config.policy_default;
        let (defaults, settings) = ([block_in, block_out, block_fwd], Settings::of(config));
        let mut of_files = Self { defaults, settings, ..Self::default() };
        let route = collected.route.requests().into_iter().filter(|saved| saved.noun != "neighbour");
        route.for_each(|saved| of_files.add(saved));
        of_files.sas.extend(config.sas.iter().map(|sa| SaName { dst: sa.dst, spi: sa.spi.0, mark: sa.mark }));
        config.policies.iter().for_each(|policy| of_files.add(convert::new_policy(policy).saved()));
        let mappings: HashSet<&IlaConfig> = config.ila.iter().collect();
        let ila = collected.ila.into_iter().filter(|(mapping, _)| mappings.contains(mapping));
        ila.for_each(|(_, saved)| of_files.add(saved));
        of_files
    }

    /// Their SAs.
    pub(crate) fn sas(&self) -> impl Iterator<Item = SaName> + '_ {
        self.sas.iter().copied()
    }

    /// Whether they define the object with this label, which exists at most once.
    pub(super) fn has_alone(&self, label: &str) -> bool {
        self.alone.contains(label)
    }

    fn add(&mut self, saved: Saved) {
        if saved.is_alone() {
            self.alone.insert(saved.label);
        } else {
            self.messages.insert(without_flags(&saved));
        }
    }

    fn has(&self, saved: &Saved) -> bool {
        if saved.is_alone() {
            return self.alone.contains(&saved.label);
        }
        self.messages.contains(&without_flags(saved))
    }
}

/// The message without its flags.
fn without_flags(saved: &Saved) -> Vec<u8> {
    let mut message = saved.message.to_vec();
    set_flags(&mut message, 0);
    message
}
