//! Plan of the next configuration, which the worker only has to apply.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::PortId;
use config::features::FeatureSet;
use config::model::{Config, IlaErrors, LinkConfig, WorkerConfig};
use config::settings::Settings;
use datapath::IkeAt;
use fib::Fib;
use ila::{AdjTransport, Mappings};
use ipsec::crypto::Crypto;
use netlink::rtnl::Vrf;

use super::bridges::BridgePlan;
use super::ike::IkeSocket;
use super::open::Queues;
use super::xfrm::Steps;

/// Changes that lead the worker to the next configuration.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// The complete new configuration, for `fatpath show`.
    pub(crate) config: Arc<Config>,
    /// Links to remove, without VRFs.
    pub(crate) removed: Vec<PortId>,
    /// Links to add, over a queue for each shard.
    pub(crate) opened: Vec<(PortId, Queues, LinkConfig)>,
    /// Kept links whose MTU changes.
    pub(crate) mtus: Vec<(PortId, Option<u16>)>,
    /// Added and changed links, with their requested features.
    pub(crate) ports: Vec<(PortId, FeatureSet)>,
    /// Added links with a queueing discipline, and links whose discipline changes or is removed.
    pub(crate) qdiscs: Vec<(PortId, Option<qdisc::Options>)>,
    /// All IKE ports.
    pub(crate) ike: Vec<(PortId, IkeAt)>,
    /// Links on which the MSS of forwarded SYNs is lowered.
    pub(crate) clamp_mss: Vec<PortId>,
    /// Links that receive forwarded datagrams reassembled.
    pub(crate) defrag: Vec<PortId>,
    /// The key manager's socket, if the plan opens one.
    pub(crate) ike_socket: Option<IkeSocket>,
    /// All routes, if any route changes; then `vrfs` holds all VRFs.
    pub(crate) fib: Option<Fib>,
    /// See `fib`.
    pub(crate) vrfs: BTreeMap<PortId, Vrf>,
    /// Every bridge, if any link changes.
    pub(crate) bridges: Option<Vec<BridgePlan>>,
    /// Changes of SAs and policies.
    pub(crate) ipsec: Steps,
    /// New CPU bindings of the workers, if they change.
    pub(crate) worker: Option<WorkerConfig>,
    /// The new crypto threads, if they change; the inner `None` stands for the worker itself.
    pub(crate) crypto: Option<Option<Box<dyn Crypto>>>,
    /// All ILA mappings, the sign of `adj-transport` and the treatment of ICMPv6 errors, if any of them changes.
    pub(crate) ila: Option<(Mappings, AdjTransport, IlaErrors)>,
    /// Settings that netlink clients can change as well, if a file changes any of them.
    pub(crate) settings: Option<Settings>,
}

impl Plan {
    /// A copy of all ILA mappings, if any of them changes.
    pub(crate) fn mappings(&self) -> Option<Mappings> {
        self.ila.as_ref().map(|(mappings, ..)| mappings.clone())
    }

    /// The parts of the plan for `count` shards: each has its own queues of the links. What exists once is the first shard's.
    pub(crate) fn for_shards(mut self, count: usize) -> Vec<Self> {
        let mut queues: Vec<_> =
            self.opened.iter_mut().map(|(_, queues, _)| std::mem::take(queues).into_iter()).collect();
        let mut parts: Vec<Self> = (1..count).map(|_| self.part()).collect();
        parts.insert(0, self);
        for part in &mut parts {
            for (opened, queues) in part.opened.iter_mut().zip(&mut queues) {
                opened.1 = queues.next().into_iter().collect();
            }
        }
        parts
    }

    /// A part of the plan without links' queues and what exists once.
    fn part(&self) -> Self {
        let opened = self.opened.iter().map(|(id, _, config)| (*id, Vec::new(), config.clone()));
        Self {
            config: Arc::clone(&self.config),
            removed: self.removed.clone(),
            opened: opened.collect(),
            mtus: self.mtus.clone(),
            ports: self.ports.clone(),
            qdiscs: self.qdiscs.clone(),
            ike: self.ike.clone(),
            clamp_mss: self.clamp_mss.clone(),
            defrag: self.defrag.clone(),
            ike_socket: None,
            fib: self.fib.clone(),
            vrfs: self.vrfs.clone(),
            bridges: self.bridges.clone(),
            ipsec: self.ipsec.clone(),
            worker: self.worker.clone(),
            crypto: None,
            ila: self.ila.clone(),
            settings: self.settings,
        }
    }
}
