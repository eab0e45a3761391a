//! What clients have made of a node, as the requests that make it again.

use super::super::saved::{Saved, renumber_attribute, renumber_field};
use super::*;
use crate::model::LinkKind;

impl<H: Host> Rtnl<H> {
    /// The requests that make a node without links what this one is, in the order in which they can be carried out. Left
    /// out are the routes that addresses make, and neighbours that will be learnt again.
    ///
    /// # Errors
    /// The packets' side does not answer.
    pub fn saved(&mut self) -> Result<Vec<Saved>, Error> {
        let neighbours = self.host.neighbours()?;
        let model = &self.model;
        let mut all = Vec::new();
        let made = flag::CREATE | flag::EXCL;
        for (index, link) in model.links_after(0) {
            let label = format!("link {}", link.config.name);
            all.push(Saved::new("link", label, RTM_NEWLINK, made, |w| link::write_request(w, index, link)));
        }
        for (index, link) in model.links_after(0) {
            let name = &link.config.name;
            // A UDP link has its socket's by itself.
            let bound: Vec<_> = match link.config.kind {
                LinkKind::Udp { .. } => link.config.own_addresses().collect(),
                _ => Vec::new(),
            };
            // Of IPv6 the newest is listed first.
            let v4 = link.addresses.iter().filter(|address| address.addr.addr().is_ipv4());
            let v6 = link.addresses.iter().rev().filter(|address| address.addr.addr().is_ipv6());
            let each = v4.chain(v6).filter(|address| !bound.contains(&address.addr));
            all.extend(each.map(|address| {
                let label = format!("address {} dev {name}", address.addr);
                Saved::new("address", label, RTM_NEWADDR, made, |w| addr::write(w, index, name, address))
            }));
        }
        for v4 in [true, false] {
            let rules = model.rules(v4);
            let first = Rule::first(v4);
            let rule = |rule: &Rule, kind, flags| {
                let label = format!("rule {}", rule.priority);
                Saved::new("rule", label, kind, flags, |w| rule::write(w, v4, rule))
            };
            all.extend(first.iter().filter(|it| !rules.contains(it)).map(|it| rule(it, RTM_DELRULE, 0)));
            all.extend(rules.iter().filter(|it| !first.contains(it)).map(|it| rule(it, RTM_NEWRULE, made)));
        }
        all.extend(self.saved_routes());
        let permanent = neighbours.iter().filter(|neighbour| neighbour.state == NUD_PERMANENT);
        all.extend(permanent.map(|it| {
            let label = format!("neighbour {}", it.addr);
            Saved::new("neighbour", label, RTM_NEWNEIGH, made, |w| neigh::write(w, it))
        }));
        Ok(all)
    }

    /// Routes by links come before those by neighbours, which have to be on a link.
    fn saved_routes(&self) -> Vec<Saved> {
        let routes = self.model.routes().filter(|(_, route)| route.protocol != RTPROT_KERNEL);
        let routes: Vec<(TableId, &Route)> = routes.collect();
        // Equals stand beside each other, and their order is kept.
        let equal = |a: &(TableId, &Route), b: &(TableId, &Route)| {
            a.0 == b.0 && a.1.prefix == b.1.prefix && a.1.metric == b.1.metric
        };
        let groups: Vec<&[(TableId, &Route)]> = routes.chunk_by(equal).collect();
        let (by_neighbour, by_link): (Vec<_>, Vec<_>) =
            groups.into_iter().partition(|group| group.iter().any(|(_, route)| route.via.is_some()));
        let write = |group: &[(TableId, &Route)]| {
            let each = group.iter().enumerate().map(|(at, (table, route))| {
                let flags = flag::CREATE | if at == 0 { flag::EXCL } else { flag::APPEND };
                let label = format!("route {}", route.prefix);
                Saved::new("route", label, RTM_NEWROUTE, flags, |w| route::write(w, table.0, route))
            });
            each.collect::<Vec<_>>()
        };
        by_link.into_iter().chain(by_neighbour).flat_map(write).collect()
    }
}

/// Exchanges the numbers of links in a request for those that `now` gives. One that is to come may have its number, unless
/// that `is_taken`.
///
/// # Errors
/// The number for which it gives none.
pub fn renumber(
    message: &mut [u8],
    now: impl Fn(u32) -> Option<u32>,
    is_taken: impl Fn(u32) -> bool,
) -> Result<(), u32> {
    let kind = message.get(4..6).and_then(<[u8]>::first_chunk).map_or(0, |kind| u16::from_ne_bytes(*kind));
    let now = |old| if old == 0 || old == LOOPBACK { Some(old) } else { now(old) };
    match kind {
        // `ifi_index`; 0 is any.
        RTM_NEWLINK => renumber_field(message, 4, |old| Some(if is_taken(old) { 0 } else { old })),
        // `ifa_index`, `ndm_ifindex`.
        RTM_NEWADDR | RTM_NEWNEIGH => renumber_field(message, 4, now),
        RTM_NEWROUTE => renumber_attribute(message, route::LEN, RTA_OIF, now),
        _ => Ok(()),
    }
}
