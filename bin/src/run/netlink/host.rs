//! Between netlink's model of the node and the worker.

use std::net::IpAddr;

use base::{LinkId, TableId};
use control::features::FeatureSet;
use control::model::LinkConfig;
use control::netlink::Error;
use control::netlink::error::errno;
use control::netlink::rtnl::nums::*;
use control::netlink::rtnl::{self, Delta, Host, LinkDetail, LinkNow, NeighbourNow};
use control::state::LinkStats;
use fib::{Fib, Known, Neighbour, Neighbours, Route, RouteKind, Then};
use link::Layer;
use nlsock::ethtool::LINK_MODE_WORDS;
use wire::eth::MacAddr;

use crate::run::command::{Command, Handle, LinkChange, WorkerGone};
use crate::run::node::Open;
use crate::run::snapshot;

/// The worker, as rtnetlink needs it.
#[derive(Debug)]
pub(crate) struct WorkerHost {
    worker: Handle,
    open: Open,
}

impl Host for WorkerHost {
    fn links(&mut self) -> Result<Vec<LinkNow>, Error> {
        self.worker.ask(Command::Links).map_err(|gone| silent(&gone))
    }

    fn tell(&mut self, deltas: &mut dyn Iterator<Item = Delta>) {
        self.worker.tell(deltas);
    }

    fn open(&mut self, id: LinkId, config: &LinkConfig, index: Option<u32>) -> Result<LinkNow, Error> {
        let link = (self.open)(config, index).map_err(|err| Error::said(errno::EINVAL, err.message))?;
        let mac = match link.layer() {
            Layer::Ethernet(mac) => Some(mac.0),
            Layer::Ip => None,
        };
        let (running, mtu, stats, carrier) = (false, link.mtu() as u32, LinkStats::default(), [0; 2]);
        let host_index = link.host_index();
        self.change(id, LinkChange::Open(link, config.clone()))?;
        Ok(LinkNow { id, host_index, running, mtu, mac, stats, carrier })
    }

    fn close(&mut self, id: LinkId) -> Result<(), Error> {
        self.change(id, LinkChange::Close)
    }

    fn set_mtu(&mut self, id: LinkId, mtu: u16) -> Result<(), Error> {
        self.change(id, LinkChange::Mtu(mtu))
    }

    fn set_mac(&mut self, id: LinkId, mac: [u8; 6]) -> Result<(), Error> {
        self.change(id, LinkChange::Mac(MacAddr(mac)))
    }

    fn detail(&mut self, id: LinkId) -> Result<LinkDetail, Error> {
        let found = self.worker.call(move |worker| snapshot::detail(worker, id)).map_err(|gone| silent(&gone))?;
        found.ok_or(Error::new(errno::ENODEV))
    }

    fn settings(&mut self, interface: &str) -> Result<Vec<u8>, Error> {
        // A driver may take its time, which is not the worker's.
        link::link_settings(interface, LINK_MODE_WORDS)
            .map_err(|err| Error::new(err.raw_os_error().unwrap_or(errno::EOPNOTSUPP)))
    }

    fn set_features(&mut self, id: LinkId, wanted: FeatureSet) -> Result<(), Error> {
        self.change(id, LinkChange::Features(wanted))
    }

    fn set_up(&mut self, id: LinkId, up: bool) -> Result<(), Error> {
        self.change(id, LinkChange::Up(up))
    }

    fn neighbours(&mut self) -> Result<Vec<NeighbourNow>, Error> {
        self.worker.ask(Command::Neighbours).map_err(|gone| silent(&gone))
    }

    fn neighbour(&mut self, link: LinkId, addr: IpAddr) -> Result<Option<NeighbourNow>, Error> {
        let found = self.worker.call(move |worker| worker.path.neighbours.get(link, addr).map(|it| shown(&it)));
        found.map_err(|gone| silent(&gone))
    }

    fn set_neighbour(&mut self, neighbour: &NeighbourNow) -> Result<(), Error> {
        self.worker.ask(|reply| Command::SetNeighbour(*neighbour, reply)).map_err(|gone| silent(&gone))
    }
}

impl WorkerHost {
    /// That worker, whose links `open` opens.
    pub(crate) const fn new(worker: Handle, open: Open) -> Self {
        Self { worker, open }
    }

    fn change(&self, id: LinkId, change: LinkChange) -> Result<(), Error> {
        let outcome = self.worker.ask(|reply| Command::Link(id, change, reply)).map_err(|gone| silent(&gone))?;
        outcome.map_err(|refused| Error::said(errno::EINVAL, refused))
    }
}

fn silent(gone: &WorkerGone) -> Error {
    Error::said(errno::EBUSY, gone.to_string())
}

/// Every neighbour, as netlink shows it.
pub(crate) fn neighbours(all: &Neighbours) -> Vec<NeighbourNow> {
    all.iter().map(|neighbour| shown(&neighbour)).collect()
}

/// A neighbour, as netlink shows it.
pub(crate) fn shown(neighbour: &Neighbour) -> NeighbourNow {
    let state = match neighbour.state {
        "INCOMPLETE" => NUD_INCOMPLETE,
        "REACHABLE" => NUD_REACHABLE,
        "STALE" => NUD_STALE,
        "DELAY" => NUD_DELAY,
        "PROBE" => NUD_PROBE,
        "PERMANENT" => NUD_PERMANENT,
        _ => NUD_FAILED,
    };
    let &Neighbour { link, addr, protocol, .. } = neighbour;
    NeighbourNow { link, addr, mac: neighbour.mac.map(|mac| mac.0), state, protocol }
}

/// What a client says of a neighbour.
pub(crate) fn known(wanted: &NeighbourNow) -> Option<(LinkId, IpAddr, Known)> {
    let known = match (wanted.state, wanted.mac.map(MacAddr)) {
        (0, _) => Known::Nothing,
        (NUD_PERMANENT, Some(mac)) => Known::Permanent(mac),
        (NUD_REACHABLE, Some(mac)) => Known::Reachable(mac),
        (NUD_STALE, Some(mac)) => Known::Stale(mac),
        _ => return None,
    };
    Some((wanted.link, wanted.addr, known))
}

/// Changes the worker's routes. What does not decide on packets is not there to be changed.
pub(crate) fn apply(fib: &mut Fib, delta: &Delta) {
    match delta {
        Delta::AddRoute { table, route, ahead } => {
            if let Some(route) = to_fib(route) {
                fib.insert(*table, route, *ahead);
            }
        }
        Delta::RemoveRoute { table, route, .. } => {
            if let Some(route) = to_fib(route) {
                fib.remove(*table, &route);
            }
        }
        Delta::ReplaceRoute { table, old, new } => match (to_fib(old), to_fib(new)) {
            (Some(old), Some(new)) => drop(fib.exchange(*table, &old, new)),
            (Some(old), None) => drop(fib.remove(*table, &old)),
            (None, Some(new)) => fib.insert(*table, new, false),
            (None, None) => {}
        },
        // No packet leaves this node with an address that is for itself alone.
        Delta::AddAddress(_, address) | Delta::RemoveAddress(_, address) if address.scope >= RT_SCOPE_HOST => {}
        Delta::AddAddress(link, address) => fib.set_address(*link, address.addr, true),
        Delta::RemoveAddress(link, address) => fib.set_address(*link, address.addr, false),
        Delta::Rules { v4, rules } => fib.set_rules(*v4, rules.iter().map(|rule| to_rule(*v4, rule)).collect()),
        Delta::Vrf(device, vrf) => fib.set_vrf(*device, vrf.as_ref().map(to_vrf)),
        Delta::Domain(link, domain) => fib.set_domain(*link, *domain),
        Delta::ChangeAddress(..) => {}
    }
}

const fn to_vrf(vrf: &rtnl::Vrf) -> fib::Vrf {
    fib::Vrf { table: vrf.table, up: vrf.up }
}

fn to_rule(v4: bool, rule: &rtnl::Rule) -> fib::Rule {
    let then = match rule.verdict(v4).as_ref().and_then(to_fib) {
        Some(route) => Then::Take(route),
        None if rule.l3mdev => Then::AskVrf,
        None => Then::Ask(TableId(rule.table)),
    };
    fib::Rule { to: rule.prefix(), l3mdev: rule.l3mdev, then }
}

fn to_fib(route: &rtnl::Route) -> Option<Route> {
    let dev = LinkId(route.dev);
    let kind = match route.kind {
        RTN_UNICAST => RouteKind::Unicast { via: route.via, dev },
        RTN_LOCAL => RouteKind::Local { dev },
        RTN_BROADCAST => RouteKind::Broadcast { dev },
        RTN_ANYCAST => RouteKind::Anycast { dev },
        RTN_BLACKHOLE => RouteKind::Blackhole,
        RTN_UNREACHABLE => RouteKind::Unreachable,
        RTN_PROHIBIT => RouteKind::Prohibit,
        RTN_THROW => RouteKind::Throw,
        _ => return None,
    };
    Some(Route { prefix: route.prefix, kind, metric: route.metric })
}
