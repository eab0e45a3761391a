//! The worker as the host of netlink's model.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ::fib::Known;
use base::{Instant, PortId};
use config::features::FeatureSet;
use config::model::{LinkConfig, LinkKind, TableLimits};
use ctl::state::LinkStats;
use link::Layer;
use netlink::Error;
use netlink::error::errno;
use netlink::rtnl::{Backend, Delta, LinkDetail, LinkNow, NeighbourNow};
use nlsock::ethtool::LINK_MODE_WORDS;
use packet::Budget;
use qdisc::{Options, Stats};
use switch::Bridge;
use wire::eth::MacAddr;

use crate::command::{Handle, PATIENCE, WorkerGone, agreed, same};
use crate::links::LinkChange;
use crate::node::Node;
use crate::open::Open;
use crate::snapshot;
use crate::sums::sum;
use crate::translate::fib::{known, neighbours, shown};

/// The worker as rtnetlink's [`Host`].
#[derive(Debug)]
pub(crate) struct WorkerBackend {
    worker: Handle,
    open: Open,
    /// Changes for the host side, if the gateway has one.
    noted: Option<Vec<Delta>>,
    /// Links and VRF devices that were removed.
    closed: BTreeSet<PortId>,
    /// Time of the host's creation.
    start: std::time::Instant,
}

impl Backend for WorkerBackend {
    fn now(&self) -> Instant {
        Instant::ZERO + self.start.elapsed()
    }

    fn links(&mut self) -> Result<Vec<LinkNow>, Error> {
        let all = self.worker.gather(|node| snapshot::links(node)).map_err(|gone| silent(&gone))?;
        Ok(sum(all).unwrap_or_default())
    }

    fn apply(&mut self, deltas: &mut dyn Iterator<Item = Delta>) {
        let Self { worker, noted, closed, .. } = self;
        worker.queue_deltas(deltas.inspect(|delta| {
            noted.iter_mut().for_each(|noted| noted.push((*delta).clone()));
            if let Delta::Vrf(device, None) = delta {
                closed.insert(*device);
            }
        }));
    }

    fn open(&mut self, id: PortId, config: &LinkConfig, index: Option<u32>) -> Result<LinkNow, Error> {
        let opened = (self.open)(config, index, self.worker.count());
        let opened = opened.map_err(|err| Error::owned_text(errno::EINVAL, err.message))?;
        let link = opened.first().ok_or(Error::new(errno::ENODEV))?;
        let mac = match link.layer() {
            Layer::Ethernet(mac) => Some(mac.0),
            Layer::Ip => None,
        };
        let (running, mtu, stats, carrier) = (false, link.mtu() as u32, LinkStats::default(), [0; 2]);
        let host_index = link.host_index();
        let queues = link.ring().map(|ring| ring.queues);
        let parts = opened.into_iter().map(|queue| {
            let of_link = config.clone();
            move |node: &mut Node| node.add_link(id, queue, of_link)
        });
        self.worker.on_all(parts, Some(PATIENCE)).map_err(|gone| silent(&gone))?;
        if let LinkKind::Vlan { .. } = config.kind {
            // A VLAN takes MTU, address and state from its lower link.
            let links = self.links()?;
            return links.into_iter().find(|now| now.id == id).ok_or(Error::new(errno::ENODEV));
        }
        let bridging = None;
        Ok(LinkNow { id, host_index, running, mtu, mac, stats, carrier, queues, promiscuity: 0, allmulti: 0, bridging })
    }

    fn close(&mut self, id: PortId) -> Result<(), Error> {
        self.change(id, LinkChange::Close)?;
        self.closed.insert(id);
        Ok(())
    }

    fn set_mtu(&mut self, id: PortId, mtu: u16) -> Result<(), Error> {
        self.change(id, LinkChange::Mtu(mtu))
    }

    fn set_mac(&mut self, id: PortId, mac: [u8; 6]) -> Result<(), Error> {
        self.change(id, LinkChange::Mac(MacAddr(mac)))
    }

    fn detail(&mut self, id: PortId) -> Result<LinkDetail, Error> {
        let all = self.worker.gather(move |node| snapshot::detail(node, id)).map_err(|gone| silent(&gone))?;
        let found = sum(all).flatten();
        found.ok_or(Error::new(errno::ENODEV))
    }

    fn settings(&mut self, interface: &str) -> Result<Vec<u8>, Error> {
        // A driver may take long, so the query runs on this thread and not on the worker's.
        link::link_settings(interface, LINK_MODE_WORDS)
            .map_err(|err| Error::new(err.raw_os_error().unwrap_or(errno::EOPNOTSUPP)))
    }

    fn set_features(&mut self, id: PortId, requested: FeatureSet) -> Result<(), Error> {
        self.change(id, LinkChange::Features(requested))
    }

    fn set_qdisc(&mut self, id: PortId, options: Option<Options>) -> Result<(), Error> {
        self.change(id, LinkChange::Qdisc(options))
    }

    fn change_qdisc(&mut self, id: PortId, options: Options) -> Result<(), Error> {
        self.change(id, LinkChange::ChangeQdisc(options))
    }

    fn qdisc_stats(&mut self) -> Result<Vec<(PortId, Stats)>, Error> {
        self.worker.call(|node| snapshot::qdiscs(node)).map_err(|gone| silent(&gone))
    }

    fn set_bridge(&mut self, id: PortId, bridge: Option<PortId>) -> Result<(), Error> {
        self.change(id, LinkChange::Bridge(bridge))
    }

    fn with_bridge<T: Send + 'static>(
        &mut self,
        bridge: PortId,
        call: impl FnOnce(&mut Bridge, Instant) -> T + Clone + Send + 'static,
    ) -> Result<T, Error> {
        let on_bridge = move |node: &mut Node| {
            let now = node.now();
            node.datapath.bridge_mut(bridge).map(|bridge| call(bridge, now))
        };
        let called = self.worker.change(on_bridge, same);
        called.map_err(|gone| silent(&gone))?.ok_or(Error::new(errno::ENODEV))
    }

    fn set_up(&mut self, id: PortId, up: bool) -> Result<(), Error> {
        self.change(id, LinkChange::Up(up))
    }

    fn neighbours(&mut self) -> Result<Vec<NeighbourNow>, Error> {
        let all = |node: &mut Node| {
            let table = &node.datapath.neighbours;
            let is_spared = Budget::spares((table.len() * size_of::<NeighbourNow>()) as u64);
            is_spared.then(|| neighbours(table)).ok_or(Error::new(errno::ENOMEM))
        };
        self.worker.call(all).map_err(|gone| silent(&gone))?
    }

    fn neighbour(&mut self, link: PortId, addr: IpAddr) -> Result<Option<NeighbourNow>, Error> {
        let found = self.worker.call(move |node| node.datapath.neighbours.get(link, addr).map(|it| shown(&it)));
        found.map_err(|gone| silent(&gone))
    }

    fn set_neighbour(&mut self, neighbour: &NeighbourNow) -> Result<(), Error> {
        let Some((link, addr, known)) = known(neighbour) else { return Ok(()) };
        let protocol = neighbour.protocol;
        let set = move |node: &mut Node| {
            let now = node.now();
            let neighbours = &node.datapath.neighbours;
            let is_new = matches!(known, Known::Permanent(_)) && !neighbours.is_permanent(link, addr);
            // The other shards have no neighbours of their own.
            if is_new && node.limits.neighbours != 0 && node.datapath.is_first_shard() {
                TableLimits::admit(node.limits.neighbours, neighbours.permanent(), "neighbours")
                    .map_err(|text| Error::owned_text(errno::ENOMEM, text))?;
            }
            node.datapath.set_neighbour(now, &node.mem, link, addr, known, protocol);
            Ok(())
        };
        self.worker.change(set, agreed).map_err(|gone| silent(&gone))?
    }
}

impl WorkerBackend {
    /// Host over `worker`; `open` opens its links.
    pub(crate) fn new(worker: Handle, open: Open) -> Self {
        Self { worker, open, noted: None, closed: BTreeSet::new(), start: std::time::Instant::now() }
    }

    /// Starts to record changes for the host side.
    pub(super) fn note_deltas(&mut self) {
        self.noted = Some(Vec::new());
    }

    /// The links and VRF devices that were removed since the last call.
    pub(super) fn take_closed(&mut self) -> BTreeSet<PortId> {
        std::mem::take(&mut self.closed)
    }

    /// The changes since the last call; `None` if changes are not recorded.
    pub(super) fn take_deltas(&mut self) -> Option<Vec<Delta>> {
        self.noted.as_mut().map(std::mem::take)
    }

    /// Whether the changes since the last call of [`take_deltas`](Self::take_deltas) are some routes, `most` at most, and nothing
    /// else.
    pub(super) fn has_routes_alone(&self, most: usize) -> bool {
        let noted = self.noted.as_deref().unwrap_or_default();
        (1..=most).contains(&noted.len()) && noted.iter().all(Delta::is_of_route)
    }

    fn change(&self, id: PortId, change: LinkChange) -> Result<(), Error> {
        let changed = self.worker.change(move |node| node.change_link(id, change), agreed);
        let outcome = changed.map_err(|gone| silent(&gone))?;
        outcome.map_err(|refused| Error::owned_text(errno::EINVAL, refused))
    }
}

fn silent(gone: &WorkerGone) -> Error {
    Error::owned_text(errno::EBUSY, gone.to_string())
}
