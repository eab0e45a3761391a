//! Index of the entries of a file that have been read: hash maps for duplicate entries, and for SAs and routes that
//! later entries refer to, without a scan of the whole file per entry.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;

use base::{Prefix, TableId};
use wire::Spi;
use xfrm::{Mark, Mode, PolicyConfig, PolicyKey, SaConfig, Template};

use super::faults::Place;
use crate::model::{LinkConfig, LinkKind, RouteConfig};

/// Key of a route: destinations, table and metric.
pub(super) type RouteKey = (Prefix, TableId, u32);

/// Key of an SA (RFC 4301 §4.1).
pub(super) type SaKey = (IpAddr, Spi, Mark);

/// Places of the entries in the file, in the order of the configuration's lists.
#[derive(Debug, Default)]
pub(super) struct Places {
    pub(super) links: Vec<Place>,
    pub(super) routes: Vec<Place>,
    pub(super) sas: Vec<Place>,
    pub(super) policies: Vec<Place>,
}

/// Routes, SAs and policies by their keys, with their positions in the configuration's lists.
#[derive(Debug, Default)]
pub(super) struct Index {
    pub(super) places: Places,
    routes: HashMap<RouteKey, u32>,
    /// Tables of VRFs, by the names of their devices and members.
    domains: HashMap<String, TableId>,
    direct: Direct,
    sas: HashMap<SaKey, usize>,
    policies: HashMap<PolicyKey, usize>,
    serving: Serving,
}

impl Index {
    /// Index of a file with the given links.
    pub(super) fn of_links(links: &[LinkConfig], places: Vec<Place>) -> Self {
        let mut index = Self { places: Places { links: places, ..Places::default() }, ..Self::default() };
        let vrfs = links.iter().filter_map(|link| match link.kind {
            LinkKind::Vrf { table } => Some((link.name.clone(), TableId(table))),
            _ => None,
        });
        index.domains = vrfs.collect();
        let vrf_of = |link: &LinkConfig| Some((link.name.clone(), *index.domains.get(link.master.as_ref()?)?));
        let slaves: Vec<_> = links.iter().filter_map(vrf_of).collect();
        index.domains.extend(slaves);
        for link in links {
            link.addresses.iter().for_each(|address| index.push_direct(address.prefix(), &link.name));
        }
        index
    }

    /// Table of the VRF whose device or member a link is.
    pub(super) fn domain(&self, link: &str) -> Option<TableId> {
        self.domains.get(link).copied()
    }

    /// Tells whether a table is a VRF's.
    pub(super) fn has_vrf(&self, table: TableId) -> bool {
        self.domains.values().any(|&domain| domain == table)
    }

    /// Path of the route with a key.
    pub(super) fn route(&self, name: &RouteKey) -> Option<String> {
        let &at = self.routes.get(name)?;
        Some(self.places.routes.get(at as usize)?.path("route"))
    }

    /// Adds the next route.
    pub(super) fn push_route(&mut self, route: &RouteConfig, place: Place) {
        self.places.routes.push(place);
        self.routes.insert((route.to, route.table, route.metric), self.routes.len() as u32);
    }

    /// Records that the addresses of `prefix` are neighbours on a link.
    pub(super) fn push_direct(&mut self, prefix: Prefix, link: &str) {
        self.direct.push(prefix, link);
    }

    /// Link on which `via` is a neighbour, among those that `may_be`: by the longest prefix, and for equal ones the
    /// last.
    pub(super) fn link_of(&self, via: IpAddr, may_be: impl Fn(&str) -> bool) -> Option<&str> {
        self.direct.link_of(via, may_be)
    }

    /// Path of the SA with a key.
    pub(super) fn sa(&self, name: &SaKey) -> Option<String> {
        self.sas.get(name).map(|&at| self.sa_path(at))
    }

    /// Path of an SA, by its position.
    pub(super) fn sa_path(&self, at: usize) -> String {
        self.places.sas.get(at).map(|place| place.path("sa")).unwrap_or_default()
    }

    /// Adds the next SA.
    pub(super) fn push_sa(&mut self, sa: &SaConfig, place: Place) {
        self.places.sas.push(place);
        self.sas.insert((sa.dst, sa.spi, sa.mark), self.sas.len());
    }

    /// Path of the policy with a key.
    pub(super) fn policy(&self, key: &PolicyKey) -> Option<String> {
        let &at = self.policies.get(key)?;
        Some(self.places.policies.get(at)?.path("policy"))
    }

    /// Adds the next policy.
    pub(super) fn push_policy(&mut self, policy: &PolicyConfig, place: Place) {
        self.places.policies.push(place);
        self.policies.insert(policy.key(), self.policies.len());
    }

    /// Position of the first of `sas` that matches the template in all but its mode, if no SA matches it completely.
    /// `sas` is the same list in all calls.
    pub(super) fn other_mode(&mut self, template: Template, sas: &[SaConfig]) -> Option<usize> {
        self.serving.other_mode(template, sas)
    }
}

/// Links on which addresses are neighbours, by prefix. A prefix rarely has two links, and a file may have a million
/// prefixes: a prefix with one link needs no allocation.
#[derive(Debug, Default)]
struct Direct {
    links: Vec<String>,
    numbers: HashMap<String, u32>,
    /// Number of each prefix's first link.
    first: HashMap<Prefix, u32>,
    /// Numbers of a prefix's further links, in the order of the file.
    others: HashMap<Prefix, Vec<u32>>,
}

impl Direct {
    /// Adds a prefix on a link. A link that does not exist is reported when the route is read.
    fn push(&mut self, prefix: Prefix, link: &str) {
        let number = self.numbers.get(link).copied().unwrap_or_else(|| {
            let number = self.links.len() as u32;
            self.links.push(link.to_owned());
            self.numbers.insert(link.to_owned(), number);
            number
        });
        match self.first.entry(prefix) {
            Entry::Vacant(entry) => drop(entry.insert(number)),
            Entry::Occupied(_) => self.others.entry(prefix).or_default().push(number),
        }
    }

    /// See [`Index::link_of`].
    fn link_of(&self, via: IpAddr, may_be: impl Fn(&str) -> bool) -> Option<&str> {
        let longest = Prefix::host(via).len();
        let prefixes = (0..=longest).rev().filter_map(|len| Prefix::containing(via, len).ok());
        let numbers = prefixes.flat_map(|prefix| {
            let others = self.others.get(&prefix).into_iter().flatten().rev();
            others.chain(self.first.get(&prefix))
        });
        numbers.filter_map(|&number| self.links.get(number as usize)).map(String::as_str).find(|&link| may_be(link))
    }
}

/// Conditions of a template on its SA: `reqid`, source and destination, each if the template contains it.
type TemplateKey = (Option<u32>, Option<IpAddr>, Option<IpAddr>);

/// SAs by the conditions of templates: a table for each combination of conditions, filled for the first template with
/// it.
#[derive(Debug, Default)]
struct Serving([Option<HashMap<TemplateKey, Served>>; 8]);

/// SAs with the same values.
#[derive(Debug)]
struct Served {
    first: usize,
    transport: bool,
    tunnel: bool,
}

impl Serving {
    fn other_mode(&mut self, template: Template, sas: &[SaConfig]) -> Option<usize> {
        let Template { src, dst, mode, .. } = template;
        let key: TemplateKey = (Some(template.reqid).filter(|&reqid| reqid > 0), src, dst);
        let has = (key.0.is_some(), src.is_some(), dst.is_some());
        if has == (false, false, false) {
            return None;
        }
        let table = usize::from(has.0) | usize::from(has.1) << 1 | usize::from(has.2) << 2;
        let by_key = self.0[table].get_or_insert_with(|| {
            let mut by_key = HashMap::<TemplateKey, Served>::new();
            for (at, sa) in sas.iter().enumerate() {
                let own = (has.0.then_some(sa.reqid), has.1.then_some(sa.src), has.2.then_some(sa.dst));
                let served = by_key.entry(own).or_insert(Served { first: at, transport: false, tunnel: false });
                match sa.mode {
                    Mode::Transport => served.transport = true,
                    Mode::Tunnel => served.tunnel = true,
                }
            }
            by_key
        });
        let served = by_key.get(&key)?;
        let has_mode = match mode {
            Mode::Transport => served.transport,
            Mode::Tunnel => served.tunnel,
        };
        (!has_mode).then_some(served.first)
    }
}
