//! Policies, as requests name, make and change them.

use std::collections::VecDeque;

use control::netlink::Error;
use control::netlink::error::errno;
use control::netlink::xfrm::{Policy, PolicyQuery};
use ipsec::PolicyKey;

use super::convert;
use super::records::{PolicyRecord, wall_clock};
use crate::run::node::Node;

pub(super) fn add_policy(node: &mut Node, said: Policy, update: bool) -> Result<(), Error> {
    node.follow_file();
    let config = convert::policy(&said, node.link_of(said.info.sel.ifindex))?;
    let key = config.key();
    let ipsec = &mut node.datapath.ipsec;
    let added = if update { ipsec.update_policy(config) } else { ipsec.add_policy(config) };
    added.map_err(|err| convert::refusal(&err))?;
    node.sadb.of_file.forget_policy(&key);
    let place = node.sadb.next_policy_place();
    node.sadb.insert_policy(place, PolicyRecord { key, said, added: wall_clock() });
    Ok(())
}

pub(super) fn find_policy(node: &mut Node, query: &PolicyQuery, remove: bool) -> Result<Policy, Error> {
    node.follow_file();
    let not_there = || Error::new(errno::ENOENT);
    let spd = node.datapath.ipsec.spd();
    let key = if query.id.index == 0 {
        PolicyKey {
            dir: convert::dir(query.id.dir),
            selector: convert::selector(&query.id.sel, query.id.sel.family, node.link_of(query.id.sel.ifindex))?,
            mark: convert::mark(query.mark),
            if_id: query.if_id,
        }
    } else {
        let has = |it: &&ipsec::spd::Policy| {
            it.index == query.id.index
                && it.config.dir == convert::dir(query.id.dir)
                && it.config.if_id == query.if_id
                && it.config.mark.matches(query.mark.value & query.mark.mask)
        };
        spd.iter().find(has).ok_or_else(not_there)?.config.key()
    };
    let id = spd.find(&key).ok_or_else(not_there)?;
    let policy = spd.get(id).ok_or_else(not_there)?;
    let place = node.sadb.keys.get(&key).copied().ok_or_else(not_there)?;
    let shown = node.sadb.policies.get(&place).ok_or_else(not_there)?.view(node, policy);
    if remove {
        drop(node.datapath.ipsec.remove_policy(&key));
        node.sadb.of_file.forget_policy(&key);
        node.sadb.keys.remove(&key);
        node.sadb.policies.remove(&place);
    }
    Ok(shown)
}

pub(super) fn flush_policies(node: &mut Node) -> bool {
    let ipsec = &mut node.datapath.ipsec;
    let keys: Vec<PolicyKey> = ipsec.spd().iter().map(|policy| policy.config.key()).collect();
    for key in &keys {
        drop(ipsec.remove_policy(key));
        node.sadb.of_file.forget_policy(key);
    }
    (node.sadb.policies, node.sadb.keys) = Default::default();
    !keys.is_empty()
}

pub(super) fn policies(node: &mut Node, below: u64, limit: usize) -> VecDeque<(u64, Policy)> {
    node.follow_file();
    let spd = node.datapath.ipsec.spd();
    let live = node
        .sadb
        .policies
        .range(..below)
        .rev()
        .filter_map(|(&place, record)| Some((place, record.view(node, spd.get(spd.find(&record.key)?)?))));
    live.take(limit).collect()
}
