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
use link::Link;
use netlink::rtnl::Vrf;

use super::bridges::BridgePlan;
use super::ike::IkeSocket;
use super::xfrm::Steps;

/// Changes that lead the worker to the next configuration.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// The complete new configuration, for `fatpath show`.
    pub(crate) config: Arc<Config>,
    /// Links to remove, without VRFs.
    pub(crate) removed: Vec<PortId>,
    /// Links to add.
    pub(crate) opened: Vec<(PortId, Box<dyn Link>, LinkConfig)>,
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
    /// New CPU binding of the worker, if that changes.
    pub(crate) worker: Option<WorkerConfig>,
    /// The new crypto threads, if they change; the inner `None` stands for the worker itself.
    pub(crate) crypto: Option<Option<Box<dyn Crypto>>>,
    /// All ILA mappings, the sign of `adj-transport` and the treatment of ICMPv6 errors, if any of them changes.
    pub(crate) ila: Option<(Mappings, AdjTransport, IlaErrors)>,
    /// Settings that netlink clients can change as well, if a file changes any of them.
    pub(crate) settings: Option<Settings>,
}
