//! Fixed settings that clients can read: `netconf` (`net/ipv4/devinet.c`).

use base::IfIndex;

use super::backend::Backend;
use super::header::{behind, fixed, strictness};
use super::node::Rtnl;
use super::nums::*;
use crate::attr::{AttrPolicy, Kind, parse, policy};
use crate::error::{Error, errno};
use crate::message::Writer;
use crate::session::{Dump, Reply, Request, write_each};

/// Pseudo interface indexes of `netconf`: all links, and the default for new ones.
const ALL: u32 = u32::MAX;
const DEFAULT: u32 = u32::MAX - 1;

/// Dumps the fixed configuration of each link for IPv4, IPv6 or both: a router without reverse path filter.
pub(super) fn netconf<B: Backend>(family: u8) -> Dump<Rtnl<B>> {
    let families: &[u8] = match family {
        AF_UNSPEC => &[AF_INET, AF_INET6],
        AF_INET => &[AF_INET],
        AF_INET6 => &[AF_INET6],
        _ => &[],
    };
    let mut last: Option<(usize, u32)> = None;
    Box::new(move |rtnl: &mut Rtnl<B>, part| {
        let links: Vec<u32> = rtnl.model.by_ifindex(IfIndex(0)).iter().map(|(index, ..)| index.0).collect();
        let all = families.iter().enumerate().flat_map(|(at, family)| {
            links.iter().copied().chain([DEFAULT, ALL]).map(move |index| ((at, index), *family))
        });
        let left: Vec<_> = all.filter(|(key, _)| last.is_none_or(|last| *key > last)).collect();
        Ok(write_each(part, &mut last, left.into_iter(), |part, (_, index), family| {
            part.message(RTM_NEWNETCONF, |w| write_netconf(w, family, index))
        }))
    })
}

/// Carries out an `RTM_GETNETCONF` for one link, or all (Linux `inet_netconf_get_devconf`).
pub(super) fn netconf_of<B: Backend>(
    rtnl: &Rtnl<B>,
    request: &Request<'_>,
    reply: &mut Reply<'_>,
) -> Result<(), Error> {
    const POLICY: AttrPolicy<8> = policy(&[(IFINDEX, Kind::Int(4))]);
    let (&[family], rest) = fixed::<1>(request)?;
    let attrs = parse(rest, behind(1), &POLICY, strictness(request))?;
    let index = attrs.get(IFINDEX).ok_or(Error::new(errno::EINVAL))?.u32();
    if !matches!(index, ALL | DEFAULT) && rtnl.model.link(rtnl.model.id_of(index)).is_none() {
        return Err(Error::new(errno::ENODEV));
    }
    reply.send(RTM_NEWNETCONF, 0, |w| write_netconf(w, family, index));
    Ok(())
}

/// `NETCONFA_IFINDEX`.
const IFINDEX: u16 = 1;

/// Writes a configuration, as Linux's `inet_netconf_fill_devconf` and `inet6_netconf_fill_devconf`.
fn write_netconf(w: &mut Writer, family: u8, index: u32) {
    const FORWARDING: u16 = 2;
    const RP_FILTER: u16 = 3;
    const MC_FORWARDING: u16 = 4;
    const PROXY_NEIGH: u16 = 5;
    const IGNORE_ROUTES_WITH_LINKDOWN: u16 = 6;
    w.fixed(&[family, 0, 0, 0]);
    w.put_u32(IFINDEX, index);
    w.put_u32(FORWARDING, 1);
    if family == AF_INET {
        w.put_u32(RP_FILTER, 0);
    }
    [MC_FORWARDING, PROXY_NEIGH, IGNORE_ROUTES_WITH_LINKDOWN].into_iter().for_each(|kind| w.put_u32(kind, 0));
}
