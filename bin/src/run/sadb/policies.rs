//! Policies, as requests name, make and change them.

use std::collections::VecDeque;

use control::netlink::Error;
use control::netlink::error::errno;
use control::netlink::xfrm::{Policy, PolicyQuery};
use ipsec::PolicyKey;

use super::super::worker::Worker;
use super::{PolicyRecord, Sadb, convert, wall_clock};

impl Sadb {
    pub(super) fn add_policy(worker: &mut Worker, said: Policy, update: bool) -> Result<(), Error> {
        Self::follow(worker);
        let config = convert::policy(&said, worker.link_of(said.info.sel.ifindex))?;
        let key = config.key();
        let ipsec = &mut worker.path.ipsec;
        let added = if update { ipsec.update_policy(config) } else { ipsec.add_policy(config) };
        added.map_err(|err| convert::refusal(&err))?;
        worker.sadb.of_file.forget_policy(&key);
        let place = worker.sadb.next_policy_place();
        worker.sadb.insert_policy(place, PolicyRecord { key, said, added: wall_clock() });
        Ok(())
    }

    pub(super) fn find_policy(worker: &mut Worker, query: &PolicyQuery, remove: bool) -> Result<Policy, Error> {
        Self::follow(worker);
        let not_there = || Error::new(errno::ENOENT);
        let spd = worker.path.ipsec.spd();
        let key = if query.id.index == 0 {
            PolicyKey {
                dir: convert::dir(query.id.dir),
                selector: convert::selector(&query.id.sel, query.id.sel.family, worker.link_of(query.id.sel.ifindex))?,
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
        let place = worker.sadb.keys.get(&key).copied().ok_or_else(not_there)?;
        let shown = worker.sadb.policies.get(&place).ok_or_else(not_there)?.view(worker, policy);
        if remove {
            drop(worker.path.ipsec.remove_policy(&key));
            worker.sadb.of_file.forget_policy(&key);
            worker.sadb.keys.remove(&key);
            worker.sadb.policies.remove(&place);
        }
        Ok(shown)
    }

    pub(super) fn flush_policies(worker: &mut Worker) -> bool {
        let ipsec = &mut worker.path.ipsec;
        let keys: Vec<PolicyKey> = ipsec.spd().iter().map(|policy| policy.config.key()).collect();
        for key in &keys {
            drop(ipsec.remove_policy(key));
            worker.sadb.of_file.forget_policy(key);
        }
        (worker.sadb.policies, worker.sadb.keys) = Default::default();
        !keys.is_empty()
    }

    pub(super) fn policies(worker: &mut Worker, below: u64, limit: usize) -> VecDeque<(u64, Policy)> {
        Self::follow(worker);
        let spd = worker.path.ipsec.spd();
        let live = worker
            .sadb
            .policies
            .range(..below)
            .rev()
            .filter_map(|(&place, record)| Some((place, record.view(worker, spd.get(spd.find(&record.key)?)?))));
        live.take(limit).collect()
    }
}
