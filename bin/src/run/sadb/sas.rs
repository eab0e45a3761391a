//! SAs, as requests name, make and change them.

use std::collections::VecDeque;

use base::SaId;
use control::netlink::Error;
use control::netlink::error::errno;
use control::netlink::xfrm::layout::Addr;
use control::netlink::xfrm::nums::proto;
use control::netlink::xfrm::{Counts, Event, NewSa, NewSpi, Replay, Sa, SaQuery};
use ipsec::{Larval, SpiRequest};
use wire::Spi;

use super::convert;
use super::records::{SaRecord, live, wall_clock};
use super::view::{self, larval_view};
use crate::run::node::Node;

/// Above this are the places of SAs that are yet to come.
const LARVAE: u64 = 1 << 63;

fn not_there() -> Error {
    Error::new(errno::ESRCH)
}

/// Adds an SA, or completes or changes one.
pub(super) fn add_sa(node: &mut Node, said: NewSa, update: bool, mask: u64) -> Result<(), Error> {
    node.follow_file();
    let config = convert::sa(&said, node.link_of(said.info.sel.ifindex))?;
    let name = (config.dst, config.spi, config.mark);
    let ipsec = &mut node.datapath.ipsec;
    let before = live(ipsec, &name);
    // One with a mark that no packet has is not found by it.
    let place = node.sadb.place_of(&name);
    let known = place.and_then(|place| node.sadb.sas.get(&place)).and_then(|record| ipsec.sa(record.id));
    if !update && before.is_none() && known.is_some() {
        return Err(Error::new(errno::EEXIST));
    }
    let name = before.and_then(|id| ipsec.sa(id)).map_or(name, |sa| (sa.dst(), sa.spi(), sa.mark()));
    let added = if update { ipsec.update_sa(&config, mask) } else { ipsec.add_sa(&config, mask) };
    let id = added.map_err(|err| convert::refusal(&err))?;
    let Node { sadb, datapath, .. } = node;
    if before == Some(id) {
        if let Some(record) = sadb.place_of(&name).and_then(|place| sadb.sas.get_mut(&place)) {
            record.adjust(said);
        }
        return Ok(());
    }
    let place = sadb.next_place();
    if let Some(old) = sadb.places.insert(name, place) {
        sadb.sas.remove(&old);
    }
    sadb.install(&mut datapath.ipsec, place, SaRecord { id, said, added: wall_clock() });
    Ok(())
}

/// The SA that a query means, if it has come.
fn find(node: &Node, query: &SaQuery) -> Result<SaId, Error> {
    let spi = query.spi.map_err(|_: Addr| not_there())?;
    let dst = convert::addr(query.daddr, query.family)?;
    if query.proto != proto::ESP {
        return Err(not_there());
    }
    let mark = query.mark.value & query.mark.mask;
    node.datapath.ipsec.sad().by_spi(dst, Spi(spi), mark).ok_or_else(not_there)
}

/// The SA that a query means, which is no larval one.
fn find_real(node: &mut Node, query: &SaQuery) -> Result<SaId, Error> {
    node.follow_file();
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

pub(super) fn find_sa(node: &mut Node, query: &SaQuery) -> Result<Sa, Error> {
    node.follow_file();
    match find(node, query) {
        Ok(id) => view::sa(node, id).ok_or_else(not_there),
        Err(_) => find_larval(node, query).map(|it| larval_view(node, it)),
    }
}

pub(super) fn remove_sa(node: &mut Node, query: &SaQuery) -> Result<Sa, Error> {
    let was = find_sa(node, query)?;
    if let Ok(id) = find(node, query) {
        if let Some(sa) = node.datapath.ipsec.remove_sa_of(id) {
            node.sadb.forget(&(sa.dst(), sa.spi(), sa.mark()));
        }
    } else {
        let seq = find_larval(node, query)?.seq;
        node.datapath.ipsec.forget_larval(seq);
    }
    Ok(was)
}

pub(super) fn expire_sa(node: &mut Node, query: &SaQuery, hard: bool) -> Result<(), Error> {
    // What is yet to come has its own time (Linux `xfrm_add_sa_expire`).
    find_real(node, query)?;
    let sa = if hard { remove_sa(node, query)? } else { find_sa(node, query)? };
    let Sa { info, mark, if_id, dir, .. } = sa;
    node.sadb.events.push(Event::Expire { info, mark, if_id, dir, hard });
    Ok(())
}

pub(super) fn set_counts(node: &mut Node, query: &SaQuery, counts: &Counts) -> Result<(), Error> {
    let id = find_real(node, query)?;
    let sa = node.datapath.ipsec.sa_mut(id).ok_or_else(not_there)?;
    let name = (sa.dst(), sa.spi(), sa.mark());
    let place = node.sadb.place_of(&name);
    let record = place.and_then(|place| node.sadb.sas.get_mut(&place)).ok_or_else(not_there)?;
    // Those of the other form are there, and count for nothing (Linux `xfrm_update_ae_params`).
    let replay = match &record.said.replay {
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
        sa.skip_to(oseq);
        sa.set_received(size, top, &convert::seen(replay, sa.flags()));
        sa.note_numbers_told();
        record.said.replay = Some(replay.clone());
    }
    if let Some(used) = &counts.used {
        sa.resume_counts(used.packets, used.bytes);
    }
    sa.set_aevent_limits(convert::aevents(counts.thresholds).or(sa.aevent_limits()));
    Ok(())
}

pub(super) fn alloc_spi(node: &mut Node, request: &NewSpi, mut random: impl FnMut() -> u32) -> Result<Sa, Error> {
    let info = &request.info;
    let addr = |addr: Addr| addr.ip(info.family).ok_or(Error::new(errno::EAFNOSUPPORT));
    let wanted = SpiRequest {
        src: addr(info.saddr)?,
        dst: addr(info.daddr)?,
        mode: convert::mode(info.mode)?,
        reqid: info.reqid,
        mark: convert::mark(request.mark),
        if_id: request.if_id,
        dir: convert::sa_dir(request.dir),
        seq: info.seq,
        min: request.min,
        max: request.max,
    };
    let now = node.now();
    let larval = node.datapath.ipsec.alloc_spi(now, &wanted, &mut random).cloned();
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
    // By their numbers: there are marks that no packet has, by which nothing is found.
    sas.iter().for_each(|&id| drop(ipsec.remove_sa_of(id)));
    node.sadb.sas = Default::default();
    node.sadb.places = Default::default();
    some
}

/// SAs below a place, with their places; those that are yet to come are above all others.
pub(super) fn sas(node: &mut Node, below: u64, limit: usize) -> VecDeque<(u64, Sa)> {
    node.follow_file();
    let node = &*node;
    let mut found = VecDeque::new();
    if below > LARVAE {
        let mut larvae: Vec<&Larval> = node.datapath.ipsec.sad().larvae().collect();
        larvae.sort_unstable_by_key(|larval| std::cmp::Reverse(larval.seq));
        let places = larvae.iter().map(|larval| (LARVAE + u64::from(larval.seq), *larval));
        let views = places.filter(|&(place, _)| place < below);
        found.extend(views.take(limit).map(|(place, larval)| (place, larval_view(node, larval))));
    }
    let live = node
        .sadb
        .sas
        .range(..below)
        .rev()
        .filter_map(|(&place, record)| Some((place, record.view(node, node.datapath.ipsec.sa(record.id)?))));
    let room = limit.saturating_sub(found.len());
    found.extend(live.take(room));
    found
}
