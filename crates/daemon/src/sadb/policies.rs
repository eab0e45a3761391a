//! Requests on policies: find, add, change, remove.

use std::collections::VecDeque;

use config::model::TableLimits;
use netlink::Error;
use netlink::error::errno;
use netlink::xfrm::{Policy, PolicyQuery};
use xfrm::{PolicyConfig, PolicyKey, Request};

use super::netlink_view;
use crate::node::Node;
use crate::records::PolicyRecord;
use netlink::xfrm::convert;

pub(super) fn add_policy(node: &mut Node, request: Policy, update: bool) -> Result<(), Error> {
    let config = convert::policy(&request, node.link_of(request.info.sel.ifindex))?;
    let config = PolicyConfig { request: Some(Request::new(PolicyRecord::now(request))), ..config };
    let Node { datapath, of_file, limits, .. } = node;
    let spd = datapath.ipsec.spd();
    if spd.find(&config.key()).is_none() {
        let admitted = TableLimits::admit(limits.policies, spd.len(), "policies");
        admitted.map_err(|text| Error::owned_text(errno::ENOMEM, text))?;
    }
    of_file.set_policy(&mut datapath.ipsec, config, update).map_err(|err| convert::refusal(&err))
}

pub(super) fn find_policy(node: &mut Node, query: &PolicyQuery, remove: bool) -> Result<Policy, Error> {
    let not_there = || Error::new(errno::ENOENT);
    let spd = node.datapath.ipsec.spd();
    let key = if query.id.index == 0 {
        PolicyKey {
            dir: convert::dir(query.id.dir),
            selector: convert::selector(&query.id.sel, query.id.sel.family, node.link_of(query.id.sel.ifindex))?,
            mark: query.mark,
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
    let shown = netlink_view::policy(node, policy).ok_or_else(not_there)?;
    if remove {
        node.of_file.remove_policy(&mut node.datapath.ipsec, &key);
    }
    Ok(shown)
}

/// Adds the use of a policy by another shard.
pub(super) fn add_use(policy: &mut Policy, same: &Policy) {
    let last = &mut policy.info.curlft.use_time;
    *last = (*last).max(same.info.curlft.use_time);
}

pub(super) fn flush_policies(node: &mut Node) -> bool {
    let ipsec = &mut node.datapath.ipsec;
    let keys: Vec<PolicyKey> = ipsec.spd().iter().map(|policy| policy.config.key()).collect();
    for key in &keys {
        // Those of the file that wait for a manager's stay.
        if !node.of_file.keeps(ipsec, key) {
            node.of_file.remove_policy(ipsec, key);
        }
    }
    !keys.is_empty()
}

pub(super) fn policies(node: &Node, below: u64, limit: usize) -> VecDeque<(u64, Policy)> {
    let spd = node.datapath.ipsec.spd();
    let live = spd.by_arrival(below).rev();
    let live = live.filter_map(|(place, policy)| Some((place, netlink_view::policy(node, policy)?)));
    live.take(limit).collect()
}
