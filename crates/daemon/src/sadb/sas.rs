//! Requests on SAs: find, add, change, remove.

use std::collections::VecDeque;

use base::{Instant, SaId};
use config::model::TableLimits;
use ipsec::{Ipsec, Larval, SpiRequest};
use netlink::Error;
use netlink::error::errno;
use netlink::xfrm::layout::{Addr, LifetimeCur, UserOffload};
use netlink::xfrm::nums::proto;
use netlink::xfrm::{Counts, Event, NewSa, NewSpi, Replay, Sa, SaQuery};
use wire::Spi;
use xfrm::{ConfigError, Offload, OffloadMode, Request, SaConfig, SaDir};

use super::netlink_view::{self, larval_view};
use crate::node::Node;
use crate::records::{SaRecord, wall_clock};
use crate::sa_name::SaName;
use netlink::xfrm::convert;

/// Dump positions above this value are those of larval SAs.
const LARVAE: u64 = 1 << 63;

/// An SA as one shard knows it.
#[derive(Debug)]
pub(super) struct Known {
    /// Whether the shard owns it, so that it has its counters and numbers.
    pub(super) is_owned: bool,
    pub(super) state: Sa,
}

fn not_there() -> Error {
    Error::new(errno::ESRCH)
}

/// Adds an SA, completes a larval one, or updates an existing one.
pub(super) fn add_sa(node: &mut Node, request: NewSa, update: bool, mask: u64) -> Result<(), Error> {
    let config = convert::sa(&request, node.link_of(request.info.sel.ifindex))?;
    let config = SaConfig { offload: request.offload.map(|it| offload(node, it)).transpose()?, ..config };
    let ipsec = &mut node.datapath.ipsec;
    let there = ipsec.sad().by_spi(config.dst, config.spi, config.mark.value & config.mark.mask);
    if there.is_none() {
        admit_sa(node.limits, ipsec)?;
    }
    let known = there.and_then(|id| ipsec.sa(id)?.request::<SaRecord>());
    let numbers = known.is_none().then(|| (request.replay.clone(), request.used));
    let record = match known {
        Some(known) => known.adjusted(&request),
        None => SaRecord::now(request),
    };
    let config = SaConfig { request: Some(Request::new(record)), ..config };
    let added = if update { ipsec.update_sa(&config, mask) } else { ipsec.add_sa(&config, mask) };
    let id = added.map_err(|err| refusal(node, &err))?;
    let is_owned = node.datapath.ipsec.owner_elsewhere(id).is_none();
    if let (true, Some((replay, used)), Some(sa)) = (is_owned, numbers, node.datapath.ipsec.sa_mut(id)) {
        resume(sa, replay.as_ref(), used.as_ref());
        sa.note_numbers_reported();
    }
    Ok(())
}

/// Refuses an SA more above the limit. Larval SAs are not counted.
fn admit_sa(limits: TableLimits, ipsec: &Ipsec) -> Result<(), Error> {
    let admitted = TableLimits::admit(limits.sas, ipsec.sad().len(), "sas");
    admitted.map_err(|text| Error::owned_text(errno::ENOMEM, text))
}

/// Offload to the device of a link, in the form of crate `xfrm`.
fn offload(node: &Node, wanted: UserOffload) -> Result<Offload, Error> {
    let dev = node.link_of(wanted.ifindex);
    let no_link = || Error::text(errno::ENODEV, "No link has the index of the offload request");
    let has = |flag| wanted.flags & flag != 0;
    Ok(Offload {
        dev: dev.ok_or_else(no_link)?,
        dir: if has(UserOffload::INBOUND) { SaDir::In } else { SaDir::Out },
        mode: if has(UserOffload::PACKET) { OffloadMode::Packet } else { OffloadMode::Crypto },
    })
}

/// Refusal of an SA. That of a device names the link.
fn refusal(node: &Node, err: &ConfigError) -> Error {
    let name = |dev| node.datapath.ports.get(dev).map_or("the link", |port| port.config.name.as_str());
    match *err {
        ConfigError::OffloadUnsupported(dev) => {
            Error::owned_text(errno::EINVAL, format!("{} does not support packet offload", name(dev)))
        }
        ConfigError::OffloadFailed(dev, what) => {
            Error::owned_text(errno::EINVAL, format!("The device of {} does not offload {what}", name(dev)))
        }
        _ => convert::refusal(err),
    }
}

/// Continues the sequence numbers and counts of another SA in a new one.
fn resume(sa: &mut ipsec::Sa, replay: Option<&Replay>, used: Option<&LifetimeCur>) {
    if let Some(replay) = replay {
        sa.resume_received(&convert::seen(replay, sa.flags()));
    }
    if let Some(used) = used {
        sa.resume_counts(used.packets, used.bytes);
    }
}

/// The SA that a query names, if the SA exists.
fn find(node: &Node, query: &SaQuery) -> Result<SaId, Error> {
    let spi = query.spi.map_err(|_: Addr| not_there())?;
    let dst = convert::addr(query.daddr, query.family)?;
    if query.proto != proto::ESP {
        return Err(not_there());
    }
    let mark = query.mark.value & query.mark.mask;
    node.datapath.ipsec.sad().by_spi(dst, Spi(spi), mark).ok_or_else(not_there)
}

/// The SA that a query names, if that is not larval.
fn find_real(node: &Node, query: &SaQuery) -> Result<SaId, Error> {
    match find(node, query) {
        Err(_) if find_larval(node, query).is_ok() => Err(Error::text(errno::EINVAL, "SA must be in VALID state")),
        found => found,
    }
}

fn find_larval<'a>(node: &'a Node, query: &SaQuery) -> Result<&'a Larval, Error> {
    let spi = query.spi.map_err(|_: Addr| not_there())?;
    let dst = convert::addr(query.daddr, query.family)?;
    let mark = query.mark.value & query.mark.mask;
    let larval = node.datapath.ipsec.sad().larval(dst, Spi(spi), mark);
    larval.filter(|_| query.proto == proto::ESP).ok_or_else(not_there)
}

pub(super) fn find_sa(node: &Node, query: &SaQuery) -> Result<Known, Error> {
    let Ok(id) = find(node, query) else {
        let state = find_larval(node, query).map(|it| larval_view(node, it))?;
        return Ok(Known { is_owned: node.datapath.is_first_shard(), state });
    };
    let ipsec = &node.datapath.ipsec;
    let state = ipsec.sa(id).and_then(|sa| netlink_view::sa(node, sa)).ok_or_else(not_there)?;
    Ok(Known { is_owned: ipsec.owner_elsewhere(id).is_none(), state })
}

pub(super) fn remove_sa(node: &mut Node, query: &SaQuery) -> Result<Known, Error> {
    let was = find_sa(node, query)?;
    if let Ok(id) = find(node, query) {
        drop(node.datapath.ipsec.remove_sa_of(id));
    } else {
        let seq = find_larval(node, query)?.seq;
        node.datapath.ipsec.forget_larval(seq);
    }
    Ok(was)
}

pub(super) fn expire_sa(node: &mut Node, query: &SaQuery, hard: bool) -> Result<(), Error> {
    // A larval SA has its own timer (Linux `xfrm_add_sa_expire`).
    find_real(node, query)?;
    let sa = if hard { remove_sa(node, query)? } else { find_sa(node, query)? };
    let Known { is_owned, state: Sa { info, mark, if_id, dir, cpu, .. } } = sa;
    if is_owned {
        node.xfrm_events.events.push(Event::Expire { info, mark, if_id, dir, cpu, hard });
    }
    Ok(())
}

pub(super) fn set_counts(node: &mut Node, query: &SaQuery, counts: &Counts) -> Result<(), Error> {
    let id = find_real(node, query)?;
    if node.datapath.ipsec.owner_elsewhere(id).is_some() {
        return Ok(());
    }
    let sa = node.datapath.ipsec.sa_mut(id).ok_or_else(not_there)?;
    let record = sa.request::<SaRecord>().ok_or_else(not_there)?;
    // Numbers in the other form may be present, and are ignored (Linux `xfrm_update_ae_params`).
    let replay = match &record.request.replay {
        Some(Replay::Esn(made)) => {
            // Linux `xfrm_replay_verify_len`.
            if let Some(Replay::Esn(it)) = &counts.esn
                && (it.bmp.len() != made.bmp.len() || it.replay_window as usize > 32 * made.bmp.len())
            {
                return Err(Error::new(errno::EINVAL));
            }
            &counts.esn
        }
        _ => &counts.legacy,
    };
    if let Some(replay) = replay {
        let (oseq, top) = convert::begins_at(Some(replay), sa.flags());
        if oseq < sa.oseq() {
            return Err(Error::unsupported(
                "fatpath sends no sequence number twice: initialisation vectors would repeat",
            ));
        }
        let size = match replay {
            Replay::Esn(it) => it.replay_window,
            Replay::Legacy(_) => sa.replay().size(),
        };
        let request = NewSa { replay: Some(replay.clone()), ..record.request.clone() };
        let record = SaRecord { request, added: record.added };
        sa.skip_to(oseq);
        sa.set_received(size, top, &convert::seen(replay, sa.flags()));
        sa.note_numbers_reported();
        sa.set_request(Request::new(record));
    }
    if let Some(used) = &counts.used {
        sa.resume_counts(used.packets, used.bytes);
    }
    sa.set_aevent_limits(counts.aevents.or(sa.aevent_limits()));
    Ok(())
}

pub(super) fn alloc_spi(node: &mut Node, request: &NewSpi, mut random: impl FnMut() -> u32) -> Result<Sa, Error> {
    admit_sa(node.limits, &node.datapath.ipsec)?;
    let info = &request.info;
    let addr = |addr: Addr| addr.ip(info.family).ok_or(Error::new(errno::EAFNOSUPPORT));
    let requested = SpiRequest {
        src: addr(info.saddr)?,
        dst: addr(info.daddr)?,
        mode: convert::mode(info.mode)?,
        reqid: info.reqid,
        mark: request.mark,
        if_id: request.if_id,
        dir: convert::sa_dir(request.dir),
        cpu: request.cpu,
        seq: info.seq,
        min: request.min,
        max: request.max,
    };
    let now = node.now();
    let larval = node.datapath.ipsec.alloc_spi(now, &requested, &mut random).cloned();
    Ok(larval_view(node, &larval.map_err(|err| convert::refusal(&err))?))
}

pub(super) fn flush_sas(node: &mut Node, of: u8) -> bool {
    if !matches!(of, proto::ESP | proto::ANY | 0) {
        return false;
    }
    let ipsec = &mut node.datapath.ipsec;
    let sas: Vec<SaId> = ipsec.sad().iter().map(ipsec::Sa::id).collect();
    let larvae: Vec<u32> = ipsec.sad().larvae().map(|larval| larval.seq).collect();
    let some = !sas.is_empty() || !larvae.is_empty();
    for &seq in &larvae {
        ipsec.forget_larval(seq);
    }
    // Removes by id: a look-up by mark would miss SAs whose mark no packet can have.
    sas.iter().for_each(|&id| drop(ipsec.remove_sa_of(id)));
    some
}

/// Removes the larval SA that reserves the SPI of an SA.
pub(crate) fn forget_reserved(node: &mut Node, SaName { dst, spi, mark }: SaName) {
    let ipsec = &mut node.datapath.ipsec;
    if let Some(seq) = ipsec.sad().larval(dst, Spi(spi), mark.sought()).map(|larval| larval.seq) {
        ipsec.forget_larval(seq);
    }
}

/// Times of addition and of first use of an SA, if this shard owns it.
pub(crate) fn times_of(node: &Node, SaName { dst, spi, mark }: SaName) -> Option<(Instant, Option<Instant>)> {
    let sad = node.datapath.ipsec.sad();
    let sa = sad.get(sad.named(dst, Spi(spi), mark)?).filter(|sa| sad.owns(sa))?;
    Some((sa.added().unwrap_or(node.now()), sa.first_used()))
}

/// Continues the lifetimes of SAs that were added and first used at these times, in an earlier gateway.
pub(crate) fn resume_lifetimes(node: &mut Node, lifetimes: &[(SaName, Instant, Option<Instant>)]) {
    let now = node.now();
    let ipsec = &mut node.datapath.ipsec;
    for &(SaName { dst, spi, mark }, added, first_used) in lifetimes {
        let Some(id) = ipsec.sad().named(dst, Spi(spi), mark) else { continue };
        ipsec.resume_lifetime(id, added, first_used);
        let Some(sa) = ipsec.sa_mut(id) else { continue };
        if let Some(record) = sa.request::<SaRecord>() {
            let added = wall_clock().saturating_sub(now.since(added).as_secs());
            let request = Request::new(SaRecord { added, ..record.clone() });
            sa.set_request(request);
        }
    }
}

/// SAs that this shard owns below a dump position, with their positions; larval SAs are the first shard's, and above all others.
pub(super) fn sas(node: &Node, below: u64, limit: usize) -> VecDeque<(u64, Sa)> {
    let mut found = VecDeque::new();
    if below > LARVAE && node.datapath.is_first_shard() {
        let mut larvae: Vec<&Larval> = node.datapath.ipsec.sad().larvae().collect();
        larvae.sort_unstable_by_key(|larval| std::cmp::Reverse(larval.seq));
        let places = larvae.iter().map(|larval| (LARVAE + u64::from(larval.seq), *larval));
        let views = places.filter(|&(place, _)| place < below);
        found.extend(views.take(limit).map(|(place, larval)| (place, larval_view(node, larval))));
    }
    let sad = node.datapath.ipsec.sad();
    let owned = sad.by_birth(below).rev().filter(|(_, sa)| sad.owns(sa));
    let live = owned.filter_map(|(place, sa)| Some((place, netlink_view::sa(node, sa)?)));
    let room = limit.saturating_sub(found.len());
    found.extend(live.take(room));
    found
}
