//! The model that netlink's clients read and change, over the worker.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use config::settings::Settings;
use netlink::rtnl::{Model, Rtnl};
use netlink::{Change, generic, xfrm};
use nlsock::errno;

use super::backend::WorkerBackend;
use super::ila::WorkerIla;
use crate::apply;
use crate::command::{Handle, same};
use crate::host::HostSide;
use crate::journal::{Journal, Pending};
use crate::open::Open;
use crate::sadb::WorkerSadb;

/// Rtnetlink, over the worker.
pub(crate) type Route = Rtnl<WorkerBackend>;

/// `NETLINK_XFRM`, over the worker.
pub(crate) type Xfrm = xfrm::Xfrm<WorkerSadb>;

/// `NETLINK_GENERIC`, over the worker.
pub(crate) type Generic = generic::Generic<WorkerIla>;

/// State that netlink clients read and change.
#[derive(Debug)]
pub(crate) struct Protocols {
    pub(crate) rtnl: Route,
    pub(crate) xfrm: Xfrm,
    generic: Generic,
    pub(crate) sysctl: Sysctl,
    /// The network namespace that mirrors the model.
    pub(crate) host_side: HostSide,
    /// The model's count of changes that the host side has followed.
    followed: Option<u32>,
    /// Journal of clients' changes, if the gateway keeps its state.
    pub(crate) journal: Option<Journal>,
}

impl Protocols {
    /// The families of `NETLINK_GENERIC`, over the devices that the model has now.
    pub(crate) fn generic(&mut self) -> &mut Generic {
        let Self { rtnl, generic, sysctl, .. } = self;
        generic.ila.follow_devices(&rtnl.model, rtnl.backend.take_closed());
        generic.ila.set_max(sysctl.settings().tables.mappings);
        generic
    }

    /// Begins to note a request of a client that may change the node.
    pub(super) fn begin_change(&mut self, protocol: u32, message: &[u8]) -> Pending {
        let Some(journal) = self.journal.as_mut().filter(|journal| journal.is_on()) else { return Pending::Nothing };
        let change = match Change::of(protocol, message) {
            Change::None => return Pending::Nothing,
            Change::PolicyByIndex => match self.xfrm.removal_by_selector(message) {
                Some(removal) => Change::Request(removal),
                // The request will be refused.
                None => return Pending::Nothing,
            },
            change => change,
        };
        journal.note_links(&self.rtnl.model);
        journal.begin(protocol, change)
    }

    /// Ends what [`begin_change`](Self::begin_change) has begun.
    pub(super) fn end_change(&mut self, pending: Pending, is_done: bool) {
        if let Some(journal) = &mut self.journal {
            journal.end(pending, is_done);
        }
    }

    /// Reconciles the host side with the model.
    pub(crate) fn begin_host_side(&mut self) {
        if self.host_side.is_on() {
            self.rtnl.backend.note_deltas();
        }
        self.follow_host_side();
    }

    /// Applies the changes since the last call to the host side.
    pub(crate) fn follow_host_side(&mut self) {
        if let Some(deltas) = self.rtnl.backend.take_deltas() {
            self.host_side.follow(&self.rtnl.model, &deltas);
            self.followed = Some(self.rtnl.model.generation());
        }
    }

    /// Whether the changes since the last call of [`follow_host_side`](Self::follow_host_side) may wait for further ones: they are
    /// some routes, and nothing else.
    pub(super) fn may_host_side_wait(&self) -> bool {
        self.followed == Some(self.rtnl.model.generation()) && self.rtnl.backend.has_routes_alone(WAITING_ROUTES)
    }
}

/// Routes at most that wait for one request to the kernel of the host side.
const WAITING_ROUTES: usize = 64;

/// [`Protocols`] behind a lock.
#[derive(Clone, Debug)]
pub(crate) struct Shared(Arc<Mutex<Protocols>>);

impl Shared {
    /// An empty node over `worker`; `open` opens its links.
    pub(crate) fn new(worker: &Handle, open: Open) -> Self {
        let rtnl = Rtnl { model: Model::default(), backend: WorkerBackend::new(worker.clone(), open) };
        let xfrm = Xfrm::new(WorkerSadb(worker.clone()));
        let generic = Generic { ila: WorkerIla::new(worker.clone()) };
        let sysctl = Sysctl::new(worker.clone());
        Self(Arc::new(Mutex::new(Protocols {
            rtnl,
            xfrm,
            generic,
            sysctl,
            host_side: HostSide::default(),
            followed: None,
            journal: None,
        })))
    }

    /// Locks the state.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Protocols> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Settings that netlink clients can change (sysctl), and the worker that applies them.
#[derive(Debug)]
pub(crate) struct Sysctl {
    settings: Settings,
    worker: Handle,
}

impl Sysctl {
    /// Default settings, which are also the worker's at its start.
    fn new(worker: Handle) -> Self {
        Self { settings: Settings::default(), worker }
    }

    /// Present settings.
    pub(crate) const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Records the settings that another path has set in the worker.
    pub(crate) const fn follow(&mut self, settings: Settings) {
        self.settings = settings;
    }

    /// Flushes the cached path MTUs that ICMP has reported for IPv4 destinations.
    pub(super) fn forget_paths(&self) -> Result<(), i32> {
        self.worker.change(|node| node.datapath.fib.forget_path_mtus_v4(), same).map_err(|_| errno::EIO)
    }

    /// Sets the worker's settings.
    ///
    /// # Errors
    /// `EIO`: the worker does not reply.
    pub(crate) fn set(&mut self, settings: Settings) -> Result<(), i32> {
        if settings != self.settings {
            self.worker.change(move |node| apply::set(node, settings), same).map_err(|_| errno::EIO)?;
            self.settings = settings;
        }
        Ok(())
    }
}
