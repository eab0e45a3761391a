//! ILA: the destination of an IPv6 packet is translated at pre-routing, before its route is looked up (Linux `ila_nf_input`).
//!
//! The mappings belong to the worker. The first mapping adds ILA as a user of the hook; the removal of the last one removes the
//! user. Received packets whose destination has a mapping take no shortcut.

use std::net::IpAddr;

use base::{DropReason, Mib, PortId};
use ila::{AdjTransport, Direction, Exists, Mapping, MappingChange, MappingKey, Mappings, Rewrite};

use crate::addresses::check_addresses;
use crate::node::hooks::HookUser;
use crate::node::trace::Step;
use crate::{Cx, Datapath, IpPacket, trace};

/// Translates the destination of an IPv6 packet that passes `dev`, if there is a mapping. Tells whether there was one.
///
/// # Errors
/// [`DropReason::IpDestinationInvalid`] if no packet may be to the new destination, [`DropReason::NoMemory`].
pub(crate) fn translate(dp: &mut Datapath, cx: Cx<'_>, dev: PortId, ip: &mut IpPacket) -> Result<bool, DropReason> {
    let IpAddr::V6(old) = ip.info.dst else { return Ok(false) };
    let Some(rewrite) = dp.ila.mappings.lookup(old, dev) else { return Ok(false) };
    apply(dp, cx, ip, rewrite, Direction::IlaToSir)?;
    Ok(true)
}

/// Tells whether packets to an address that pass `dev` are translated.
#[inline]
pub(crate) fn is_mapped(dp: &Datapath, dev: PortId, dst: IpAddr) -> bool {
    let IpAddr::V6(dst) = dst else { return false };
    dp.hooks.is_set(HookUser::Ila) && dp.ila.mappings.lookup(dst, dev).is_some()
}

/// Translates the destination of a parsed packet.
///
/// # Errors
/// [`DropReason::IpDestinationInvalid`] if no packet may be to the new destination, [`DropReason::NoMemory`],
/// [`DropReason::Ipv6Header`] for a packet of IPv4.
#[inline]
pub(crate) fn apply(
    dp: &mut Datapath,
    cx: Cx<'_>,
    ip: &mut IpPacket,
    rewrite: Rewrite,
    direction: Direction,
) -> Result<(), DropReason> {
    let old = ip.info.dst;
    let new = rewrite.packet(cx.mem, &mut ip.pkt, &ip.info, direction, dp.ila.sign)?;
    dp.ila.translated += 1;
    ip.set_dst(IpAddr::V6(new));
    if let IpAddr::V6(from) = old {
        trace::step(dp, cx, &mut ip.pkt, Step::Ila { from });
    }
    // The sender chooses the identifier.
    check_addresses(ip.info.src, ip.info.dst).inspect_err(|_| {
        dp.count(ip.pkt.meta.origin.device(), Mib::Ip6InAddrErrors);
    })
}

impl Datapath {
    /// Adds an ILA mapping.
    ///
    /// # Errors
    /// [`Exists`] if there is one with its key.
    pub fn add_ila(&mut self, mapping: Mapping) -> Result<(), Exists> {
        self.ila.mappings.add(mapping)?;
        self.update_ila();
        Ok(())
    }

    /// Removes the ILA mapping with a key. Tells whether there was one.
    pub fn remove_ila(&mut self, key: MappingKey) -> bool {
        let is_removed = self.ila.mappings.remove(key).is_some();
        self.update_ila();
        is_removed
    }

    /// Makes a change of the ILA mappings. A packet meets the mapping before the change or the one after it.
    pub fn change_ila(&mut self, change: MappingChange) {
        self.ila.mappings.apply(change);
        self.update_ila();
    }

    /// Replaces all ILA mappings, and returns the previous ones.
    pub fn replace_ila(&mut self, mappings: Mappings) -> Mappings {
        let before = std::mem::replace(&mut self.ila.mappings, mappings);
        self.update_ila();
        before
    }

    /// The ILA mappings.
    pub fn ila(&self) -> &Mappings {
        &self.ila.mappings
    }

    /// Packets whose destination was translated; a super-packet is one.
    pub fn ila_translated(&self) -> u64 {
        self.ila.translated
    }

    /// Sets the sign of the checksum mode `adj-transport`.
    pub fn set_ila_adj_transport(&mut self, sign: AdjTransport) {
        self.ila.sign = sign;
    }

    /// Removes the ILA mappings for a device that is gone.
    pub(crate) fn forget_ila_of(&mut self, link: PortId) {
        if !self.ila.mappings.remove_link(link).is_empty() {
            self.update_ila();
        }
    }

    /// Makes ILA a user of its hook if there are mappings.
    fn update_ila(&mut self) {
        let is_used = !self.ila.mappings.is_empty();
        if self.hooks.is_set(HookUser::Ila) != is_used {
            self.hooks.set(HookUser::Ila, is_used);
            self.ipsec.invalidate_templates();
        }
    }
}
