//! SAs and policies of the node for the netlink thread: look-ups, changes, dumps.

use std::collections::VecDeque;
use std::fmt;

use base::ShardCount;
use netlink::Error;
use netlink::error::errno;
use netlink::xfrm::{Counts, Database, NewSa, NewSpi, Policy, PolicyQuery, Sa, SaQuery};

use super::{policies, sas};
use crate::command::{Handle, agreed};
use crate::node::Node;
use crate::random::random;

/// Runner of functions on the node.
pub(crate) trait Ask: fmt::Debug + Send + 'static {
    /// Runs a function that changes nothing on the node, and waits for its result.
    fn call<T: Send + 'static>(
        &mut self,
        what: impl FnOnce(&mut Node) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error>;

    /// Runs a change on the node, in every shard, and waits for the result.
    fn change<T: Send + 'static>(
        &mut self,
        what: impl FnOnce(&mut Node) -> Result<T, Error> + Clone + Send + 'static,
    ) -> Result<T, Error>;
}

impl Ask for Handle {
    fn call<T: Send + 'static>(
        &mut self,
        what: impl FnOnce(&mut Node) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        Self::call(self, what).unwrap_or_else(|gone| Err(Error::owned_text(errno::EBUSY, gone.to_string())))
    }

    fn change<T: Send + 'static>(
        &mut self,
        what: impl FnOnce(&mut Node) -> Result<T, Error> + Clone + Send + 'static,
    ) -> Result<T, Error> {
        let changed = Self::change(self, what, agreed);
        changed.unwrap_or_else(|gone| Err(Error::owned_text(errno::EBUSY, gone.to_string())))
    }
}

/// The node as the SA and policy database of `NETLINK_XFRM`. Each request runs between two bursts of packets.
#[derive(Debug)]
pub(crate) struct WorkerSadb<A = Handle>(pub(crate) A);

/// A random number.
fn number() -> Result<u64, Error> {
    random().map_err(|err| Error::new(err.raw_os_error().unwrap_or(errno::EBUSY)))
}

/// Refuses what several workers cannot have yet.
fn only_worker(node: &Node) -> Result<(), Error> {
    let is_only = node.shard_count() == ShardCount::ONE;
    let text = "several workers cannot have SAs and policies yet; start with [worker] count = 1";
    if is_only { Ok(()) } else { Err(Error::text(errno::EOPNOTSUPP, text)) }
}

impl<A: Ask> Database for WorkerSadb<A> {
    fn add_sa(&mut self, sa: Box<NewSa>, update: bool) -> Result<(), Error> {
        let mask = number()?;
        self.0.change(move |node| only_worker(node).and_then(|()| sas::add_sa(node, *sa, update, mask)))
    }

    fn find_sa(&mut self, query: &SaQuery) -> Result<Sa, Error> {
        let query = *query;
        self.0.call(move |node| sas::find_sa(node, &query))
    }

    fn remove_sa(&mut self, query: &SaQuery) -> Result<Sa, Error> {
        let query = *query;
        self.0.change(move |node| sas::remove_sa(node, &query))
    }

    fn expire_sa(&mut self, query: &SaQuery, hard: bool) -> Result<(), Error> {
        let query = *query;
        self.0.change(move |node| sas::expire_sa(node, &query, hard))
    }

    fn set_counts(&mut self, query: &SaQuery, counts: Counts) -> Result<(), Error> {
        let query = *query;
        self.0.change(move |node| sas::set_counts(node, &query, &counts))
    }

    fn alloc_spi(&mut self, request: Box<NewSpi>) -> Result<Sa, Error> {
        let mut state = number()?;
        // Good enough for choosing a free SPI, which is not secret.
        let next = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 32) as u32
        };
        self.0.change(move |node| only_worker(node).and_then(|()| sas::alloc_spi(node, &request, next)))
    }

    fn flush_sas(&mut self, proto: u8) -> Result<bool, Error> {
        self.0.change(move |node| Ok(sas::flush_sas(node, proto)))
    }

    fn sas(&mut self, below: u64, limit: usize) -> Result<VecDeque<(u64, Sa)>, Error> {
        self.0.call(move |node| Ok(sas::sas(node, below, limit)))
    }

    fn count_sas(&mut self) -> Result<u32, Error> {
        self.0.call(|node| {
            let sad = node.datapath.ipsec.sad();
            Ok((sad.len() + sad.larvae().count()) as u32)
        })
    }

    fn add_policy(&mut self, policy: Box<Policy>, update: bool) -> Result<(), Error> {
        self.0.change(move |node| only_worker(node).and_then(|()| policies::add_policy(node, *policy, update)))
    }

    fn find_policy(&mut self, query: &PolicyQuery, remove: bool) -> Result<Policy, Error> {
        let query = *query;
        match remove {
            true => self.0.change(move |node| policies::find_policy(node, &query, true)),
            false => self.0.call(move |node| policies::find_policy(node, &query, false)),
        }
    }

    fn flush_policies(&mut self) -> Result<bool, Error> {
        self.0.change(|node| Ok(policies::flush_policies(node)))
    }

    fn policies(&mut self, below: u64, limit: usize) -> Result<VecDeque<(u64, Policy)>, Error> {
        self.0.call(move |node| Ok(policies::policies(node, below, limit)))
    }

    fn count_policies(&mut self) -> Result<[u32; 3], Error> {
        self.0.call(|node| Ok(node.datapath.ipsec.spd().counts()))
    }

    fn defaults(&mut self) -> Result<[bool; 3], Error> {
        self.0.call(|node| {
            let spd = node.datapath.ipsec.spd();
            Ok(DIRS.map(|dir| spd.default_action(dir) == xfrm::Action::Block))
        })
    }

    fn set_defaults(&mut self, block: [Option<bool>; 3]) -> Result<(), Error> {
        self.0.change(move |node| {
            only_worker(node)?;
            for (dir, block) in DIRS.into_iter().zip(block) {
                let action = match block {
                    None => continue,
                    Some(true) => xfrm::Action::Block,
                    Some(false) => xfrm::Action::Allow,
                };
                node.datapath.ipsec.set_default_policy(dir, action);
            }
            Ok(())
        })
    }
}

/// Directions in the order of their numbers in Linux.
const DIRS: [xfrm::Dir; 3] = [xfrm::Dir::In, xfrm::Dir::Out, xfrm::Dir::Fwd];
