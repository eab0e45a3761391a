//! Between netlink's model of the node and the worker.

use base::LinkId;
use control::netlink::Error;
use control::netlink::error::errno;
use control::netlink::rtnl::nums::{
    RTN_BLACKHOLE, RTN_BROADCAST, RTN_LOCAL, RTN_PROHIBIT, RTN_THROW, RTN_UNICAST, RTN_UNREACHABLE,
};
use control::netlink::rtnl::{self, Delta, Host, LinkNow};
use fib::{Fib, Route, RouteKind};

use crate::run::command::{Command, Handle};

/// The worker, as rtnetlink needs it.
#[derive(Debug)]
pub(crate) struct WorkerHost(pub(crate) Handle);

impl Host for WorkerHost {
    fn links(&mut self) -> Result<Vec<LinkNow>, Error> {
        self.0.ask(Command::Links).map_err(|gone| Error::said(errno::EBUSY, gone.to_string()))
    }

    fn tell(&mut self, deltas: &mut dyn Iterator<Item = Delta>) {
        self.0.tell(deltas);
    }
}

/// Changes the worker's routes. What does not decide on packets is not there to be changed.
pub(crate) fn apply(fib: &mut Fib, delta: &Delta) {
    match delta {
        Delta::AddRoute { table, route, ahead } => {
            if let Some(route) = to_fib(route) {
                fib.insert(*table, route, *ahead);
            }
        }
        Delta::RemoveRoute { table, route } => {
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
        Delta::AddAddress(link, addr) => fib.set_address(*link, *addr, true),
        Delta::RemoveAddress(link, addr) => fib.set_address(*link, *addr, false),
    }
}

fn to_fib(route: &rtnl::Route) -> Option<Route> {
    let dev = LinkId(route.dev);
    let kind = match route.kind {
        RTN_UNICAST => RouteKind::Unicast { via: route.via, dev },
        RTN_LOCAL => RouteKind::Local { dev },
        RTN_BROADCAST => RouteKind::Broadcast { dev },
        RTN_BLACKHOLE => RouteKind::Blackhole,
        RTN_UNREACHABLE => RouteKind::Unreachable,
        RTN_PROHIBIT => RouteKind::Prohibit,
        RTN_THROW => RouteKind::Throw,
        _ => return None,
    };
    Some(Route { prefix: route.prefix, kind, metric: route.metric })
}
