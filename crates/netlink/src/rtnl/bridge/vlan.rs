//! VLANs of ports: `struct bridge_vlan_info` and its ranges (Linux `br_process_vlan_info`, `br_vlan.c`).

use ::switch::{Bridge, BridgeError, Vid, VlanFlags, Vlans};
use base::{IfIndex, PortId};

use crate::attr::{Attr, Iter};
use crate::error::{Error, errno};
use crate::message::Writer;
use crate::rtnl::backend::Backend;
use crate::rtnl::header::{behind, fixed, word};
use crate::rtnl::node::Rtnl;
use crate::rtnl::nums::*;
use crate::rtnl::state::{Bridging, find};
use crate::session::{Dump, Request, write_each};
use config::bridge::flags_of;

/// Range of VLANs in a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Range {
    first: Vid,
    last: Vid,
    flags: VlanFlags,
}

fn invalid(text: &'static str) -> Error {
    Error::text(errno::EINVAL, text)
}

/// Parses the VLANs of a request.
pub(super) fn requested<'a>(infos: impl Iterator<Item = Attr<'a>>) -> Result<Vec<Range>, Error> {
    let mut all = Vec::new();
    let mut start: Option<(Vid, u16)> = None;
    for attr in infos {
        let &[a, b, c, d] = attr.data else { return Err(Error::new(errno::EINVAL).at(attr.offset)) };
        let (flags, number) = (u16::from_ne_bytes([a, b]), u16::from_ne_bytes([c, d]));
        let vid = Vid::new(number).ok_or_else(|| invalid("bridge: Vlan id is invalid").at(attr.offset))?;
        let (begins, ends) = (flags & BRIDGE_VLAN_INFO_RANGE_BEGIN != 0, flags & BRIDGE_VLAN_INFO_RANGE_END != 0);
        let of = |flags: u16| VlanFlags {
            is_pvid: flags & BRIDGE_VLAN_INFO_PVID != 0,
            is_untagged: flags & BRIDGE_VLAN_INFO_UNTAGGED != 0,
        };
        if (begins || ends || start.is_some()) && flags & BRIDGE_VLAN_INFO_PVID != 0 {
            return Err(invalid("bridge: Pvid isn't allowed in a range").at(attr.offset));
        }
        match start.take() {
            None if begins => start = Some((vid, flags)),
            None if ends => return Err(invalid("bridge: Vlan range start is missing").at(attr.offset)),
            None => all.push(Range { first: vid, last: vid, flags: of(flags) }),
            Some(_) if begins => {
                return Err(invalid("bridge: Found a new vlan range start while processing one").at(attr.offset));
            }
            Some(_) if !ends => return Err(invalid("bridge: Vlan range end flag is missing").at(attr.offset)),
            Some((first, _)) if vid <= first => {
                return Err(invalid("bridge: End vlan id is less than or equal to start vlan id").at(attr.offset));
            }
            Some((first, flags)) => all.push(Range { first, last: vid, flags: of(flags) }),
        }
    }
    if start.is_some() {
        return Err(invalid("bridge: Vlan range end is missing"));
    }
    Ok(all)
}

/// Adds VLANs to a port, or to the bridge's device (`None`), or removes them.
pub(super) fn change<B: Backend>(
    rtnl: &mut Rtnl<B>,
    bridge: PortId,
    port: Option<PortId>,
    vlans: Vec<Range>,
    adds: bool,
) -> Result<(), Error> {
    if vlans.is_empty() {
        return Ok(());
    }
    let apply = move |bridge: &mut Bridge, _| {
        vlans.into_iter().try_for_each(|Range { first, last, flags }| match adds {
            true => bridge.add_vlans(port, first, last, flags),
            false => bridge.remove_vlans(port, first, last).map(drop),
        })
    };
    rtnl.backend.with_bridge(bridge, apply)?.map_err(|error: BridgeError| Error::from(error))
}

/// Ranges of consecutive VLANs with the same flags, with their `BRIDGE_VLAN_INFO_*`. The PVID is a separate range.
fn ranges(vlans: &Vlans) -> Vec<(Vid, Vid, u16)> {
    let mut all: Vec<(Vid, Vid, u16)> = Vec::new();
    for vid in vlans.members().iter() {
        let Some(VlanFlags { is_pvid, is_untagged }) = flags_of(vlans, vid) else { continue };
        let pvid = if is_pvid { BRIDGE_VLAN_INFO_PVID } else { 0 };
        let flags = pvid | if is_untagged { BRIDGE_VLAN_INFO_UNTAGGED } else { 0 };
        match all.last_mut() {
            Some((_, last, same)) if last.get() + 1 == vid.get() && *same == flags && !is_pvid => *last = vid,
            _ => all.push((vid, vid, flags)),
        }
    }
    all
}

fn info(flags: u16, vid: Vid) -> [u8; 4] {
    let ([a, b], [c, d]) = (flags.to_ne_bytes(), vid.get().to_ne_bytes());
    [a, b, c, d]
}

/// Writes the VLANs of a port, each or as ranges (Linux `br_fill_ifvlaninfo_compressed`).
pub(super) fn put(w: &mut Writer, vlans: &Vlans, is_short: bool) {
    for (first, last, flags) in ranges(vlans) {
        if first == last {
            w.put(IFLA_BRIDGE_VLAN_INFO, &info(flags, first));
        } else if is_short {
            w.put(IFLA_BRIDGE_VLAN_INFO, &info(flags | BRIDGE_VLAN_INFO_RANGE_BEGIN, first));
            w.put(IFLA_BRIDGE_VLAN_INFO, &info(flags | BRIDGE_VLAN_INFO_RANGE_END, last));
        } else {
            Vid::range(first, last).for_each(|vid| w.put(IFLA_BRIDGE_VLAN_INFO, &info(flags, vid)));
        }
    }
}

/// Writes the range of all valid VLANs.
pub(super) fn put_all(w: &mut Writer) {
    w.put(IFLA_BRIDGE_VLAN_INFO, &info(BRIDGE_VLAN_INFO_RANGE_BEGIN, Vid::FIRST));
    w.put(IFLA_BRIDGE_VLAN_INFO, &info(BRIDGE_VLAN_INFO_RANGE_END, Vid::LAST));
}

/// Dumps the VLANs of all ports, for `bridge -d vlan show` (Linux `br_vlan_rtm_dump`).
pub(in super::super) fn dump<B: Backend>(rtnl: &mut Rtnl<B>, request: &Request<'_>) -> Result<Dump<Rtnl<B>>, Error> {
    /// Length of `struct br_vlan_msg`.
    const LEN: usize = 8;
    /// `BRIDGE_VLANDB_DUMP_FLAGS`, and its flag `BRIDGE_VLANDB_DUMPF_GLOBAL`.
    const DUMP_FLAGS: u16 = 1;
    const GLOBAL: u32 = 2;
    /// `BR_STATE_FORWARDING`: VLANs have no separate state.
    const FORWARDING: u8 = 3;
    let (header, rest) = fixed::<LEN>(request)?;
    let named = word(&header[4..]);
    let flags = Iter::new(rest, behind(LEN)).find(|attr| attr.kind == DUMP_FLAGS);
    let is_global = flags.is_some_and(|flags| flags.u32() & GLOBAL != 0);
    let now = rtnl.links_now()?;
    let mut last = None;
    Ok(Box::new(move |rtnl: &mut Rtnl<B>, part| {
        let links = rtnl.model.by_ifindex(last.unwrap_or_default()).into_iter();
        let links = links.map(|(ifindex, id, link)| (ifindex, (id, link)));
        Ok(write_each(part, &mut last, links, |part, ifindex: IfIndex, (id, _)| {
            let vlans = match find(&now, id).and_then(|now| now.bridging.as_ref()) {
                Some(Bridging::Port(port)) => &port.vlans,
                Some(Bridging::Bridge(bridge)) => &bridge.vlans,
                None => return true,
            };
            if is_global || (named != 0 && named != ifindex.0) || vlans.members().is_empty() {
                return true;
            }
            part.message(RTM_NEWVLAN, |w| {
                w.fixed(&[AF_BRIDGE, 0, 0, 0]);
                w.fixed(&ifindex.0.to_ne_bytes());
                for (first, last, flags) in ranges(vlans) {
                    w.nest(BRIDGE_VLANDB_ENTRY, |w| {
                        w.put(BRIDGE_VLANDB_ENTRY_INFO, &info(flags, first));
                        if first != last {
                            w.put_u16(BRIDGE_VLANDB_ENTRY_RANGE, last.get());
                        }
                        w.put_u8(BRIDGE_VLANDB_ENTRY_STATE, FORWARDING);
                    });
                }
            })
        }))
    }))
}
