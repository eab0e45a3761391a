//! Dumps of SAs and policies. Each part fetches as many entries as fit, below the last place that was dumped: an entry
//! that exists throughout the dump is in it once, a new entry is not.

use std::collections::VecDeque;

use super::attributes::Attributes;
use super::check::matches_proto;
use super::database::{Database, Xfrm};
use super::layout::{Addr, Fields};
use super::nums::{attr, msg};
use super::sa::Sa;
use crate::attr::Attr;
use crate::session::{Dump, Progress};

/// Number of entries that are fetched in one call: the worker serves packets between two calls.
const CHUNK: usize = 64;

/// Filter of a dump of SAs: `XFRMA_ADDRESS_FILTER` and `XFRMA_PROTO`.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SaFilter {
    proto: u8,
    addresses: Option<AddressFilter>,
}

#[derive(Clone, Copy, Debug)]
struct AddressFilter {
    saddr: Addr,
    daddr: Addr,
    family: u16,
    splen: u8,
    dplen: u8,
}

impl SaFilter {
    pub(super) fn of(attrs: &Attributes<'_>) -> Self {
        let addresses = attrs.get(attr::ADDRESS_FILTER).map(|attr| {
            let mut from = Fields(attr.data);
            let (saddr, daddr) = (from.addr(), from.addr());
            AddressFilter { saddr, daddr, family: from.u16(), splen: from.u8(), dplen: from.u8() }
        });
        Self { proto: attrs.get(attr::PROTO).map_or(0, Attr::u8), addresses }
    }

    fn has(&self, sa: &Sa) -> bool {
        matches_proto(sa.info.proto, self.proto)
            && self.addresses.is_none_or(|it| {
                it.family == sa.info.family
                    && begins_with(sa.info.saddr, it.saddr, it.splen)
                    && begins_with(sa.info.daddr, it.daddr, it.dplen)
            })
    }
}

/// Whether the first `len` bits of two addresses are equal.
fn begins_with(addr: Addr, prefix: Addr, len: u8) -> bool {
    let [addr, prefix] = [addr, prefix].map(|it| u128::from_be_bytes(it.0));
    (addr ^ prefix).checked_shr(128 - u32::from(len.min(128))).unwrap_or(0) == 0
}

/// A dump of SAs.
pub(super) fn sas<D: Database + 'static>(filter: SaFilter) -> Dump<Xfrm<D>> {
    let (mut below, mut waiting) = (u64::MAX, VecDeque::new());
    Box::new(move |xfrm, part| {
        loop {
            if waiting.is_empty() {
                waiting = xfrm.database.sas(below, CHUNK)?;
            }
            let Some((place, sa)) = waiting.front() else { return Ok(Progress::Done) };
            if filter.has(sa) && !part.message(msg::NEW_SA, |w| sa.write(w)) {
                return Ok(Progress::More);
            }
            below = *place;
            waiting.pop_front();
        }
    })
}

/// A dump of policies.
pub(super) fn policies<D: Database + 'static>() -> Dump<Xfrm<D>> {
    let (mut below, mut waiting) = (u64::MAX, VecDeque::new());
    Box::new(move |xfrm, part| {
        loop {
            if waiting.is_empty() {
                waiting = xfrm.database.policies(below, CHUNK)?;
            }
            let Some((place, policy)) = waiting.front() else { return Ok(Progress::Done) };
            if !part.message(msg::NEW_POLICY, |w| policy.write(w)) {
                return Ok(Progress::More);
            }
            below = *place;
            waiting.pop_front();
        }
    })
}
