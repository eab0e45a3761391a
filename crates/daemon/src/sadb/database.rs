//! SAs and policies of the node for the netlink thread: look-ups, changes, dumps.

use std::collections::VecDeque;
use std::fmt;

use netlink::Error;
use netlink::error::errno;
use netlink::xfrm::{Counts, Database, NewSa, NewSpi, Policy, PolicyQuery, Sa, SaQuery};

use super::sas::Known;
use super::{policies, sas};
use crate::command::{Handle, agreed};
use crate::node::Node;
use crate::random::random;

/// Function that makes one reply of two shards' replies.
pub(super) type Reduce<T> = fn(Result<T, Error>, Result<T, Error>) -> Result<T, Error>;

/// Runner of functions on the node.
pub(crate) trait Ask: fmt::Debug + Send + 'static {
    /// Runs a function that changes nothing on the node, and waits for its result.
    fn call<T: Send + 'static>(
        &mut self,
        what: impl FnOnce(&mut Node) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error>;

    /// Runs a function on the node, in every shard, and waits for the results. A change is at one place of the log.
    fn on_all<T: Send + 'static>(
        &mut self,
        what: impl FnOnce(&mut Node) -> Result<T, Error> + Clone + Send + 'static,
        reduce: Reduce<T>,
    ) -> Result<T, Error>;

    /// Runs a change that every shard makes alike.
    fn change<T: Send + 'static>(
        &mut self,
        what: impl FnOnce(&mut Node) -> Result<T, Error> + Clone + Send + 'static,
    ) -> Result<T, Error> {
        self.on_all(what, agreed)
    }
}

/// The SA as its owner knows it, or the first refusal.
fn as_owned(first: Result<Known, Error>, other: Result<Known, Error>) -> Result<Known, Error> {
    let (first, other) = (first?, other?);
    Ok(if other.is_owned { other } else { first })
}

impl Ask for Handle {
    fn call<T: Send + 'static>(
        &mut self,
        what: impl FnOnce(&mut Node) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        Self::call(self, what).unwrap_or_else(|gone| Err(Error::owned_text(errno::EBUSY, gone.to_string())))
    }

    fn on_all<T: Send + 'static>(
        &mut self,
        what: impl FnOnce(&mut Node) -> Result<T, Error> + Clone + Send + 'static,
        reduce: Reduce<T>,
    ) -> Result<T, Error> {
        let changed = Self::change(self, what, reduce);
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

impl<A: Ask> Database for WorkerSadb<A> {
    fn add_sa(&mut self, sa: Box<NewSa>, update: bool) -> Result<(), Error> {
        let mask = number()?;
        self.0.change(move |node| sas::add_sa(node, *sa, update, mask))
    }

    fn find_sa(&mut self, query: &SaQuery) -> Result<Sa, Error> {
        let query = *query;
        self.0.on_all(move |node| sas::find_sa(node, &query), as_owned).map(|known| known.state)
    }

    fn remove_sa(&mut self, query: &SaQuery) -> Result<Sa, Error> {
        let query = *query;
        self.0.on_all(move |node| sas::remove_sa(node, &query), as_owned).map(|known| known.state)
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
        self.0.change(move |node| sas::alloc_spi(node, &request, next))
    }

    fn flush_sas(&mut self, proto: u8) -> Result<bool, Error> {
        self.0.change(move |node| Ok(sas::flush_sas(node, proto)))
    }

    fn sas(&mut self, below: u64, limit: usize) -> Result<VecDeque<(u64, Sa)>, Error> {
        let all = self.0.on_all(
            move |node| Ok(sas::sas(node, below, limit)),
            |first, other| {
                let (mut first, other) = (first?, other?);
                first.extend(other);
                Ok(first)
            },
        )?;
        let mut all = Vec::from(all);
        all.sort_by_key(|(place, _)| std::cmp::Reverse(*place));
        all.truncate(limit);
        Ok(all.into())
    }

    fn count_sas(&mut self) -> Result<u32, Error> {
        self.0.call(|node| {
            let sad = node.datapath.ipsec.sad();
            Ok((sad.len() + sad.larvae().count()) as u32)
        })
    }

    fn add_policy(&mut self, policy: Box<Policy>, update: bool) -> Result<(), Error> {
        self.0.change(move |node| policies::add_policy(node, *policy, update))
    }

    fn find_policy(&mut self, query: &PolicyQuery, remove: bool) -> Result<Policy, Error> {
        let query = *query;
        self.0.on_all(
            move |node| policies::find_policy(node, &query, remove),
            |first, other| {
                let (mut first, other) = (first?, other?);
                policies::add_use(&mut first, &other);
                Ok(first)
            },
        )
    }

    fn flush_policies(&mut self) -> Result<bool, Error> {
        self.0.change(|node| Ok(policies::flush_policies(node)))
    }

    fn policies(&mut self, below: u64, limit: usize) -> Result<VecDeque<(u64, Policy)>, Error> {
        self.0.on_all(
            move |node| Ok(policies::policies(node, below, limit)),
            |first, other| {
                let (mut first, other) = (first?, other?);
                // All have the same ones.
                for ((_, policy), (_, same)) in first.iter_mut().zip(&other) {
                    policies::add_use(policy, same);
                }
                Ok(first)
            },
        )
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
