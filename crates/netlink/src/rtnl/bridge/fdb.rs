//! `RTM_*NEIGH` of family `AF_BRIDGE`: the forwarding database (Linux `br_fdb.c`, `rtnl_fdb_*`).

use std::time::Duration;

use ::switch::{Bridge, FdbEntry, FdbError, FdbKind, FdbRequest, Vid};
use base::{IfIndex, PortId};
use wire::MacAddr;

use crate::attr::{Attr, AttrPolicy, Attrs, Iter, Kind, Strictness, parse, policy};
use crate::error::{Error, errno};
use crate::message::{Writer, flag};
use crate::rtnl::backend::Backend;
use crate::rtnl::header::{behind, fixed, word};
use crate::rtnl::model::Model;
use crate::rtnl::node::Rtnl;
use crate::rtnl::nums::*;
use crate::session::{Dump, Reply, Request, write_each};

/// Length of `struct ndmsg`.
const LEN: usize = 12;

const POLICY: AttrPolicy<NDA_MAX> = policy(&[
    (NDA_LLADDR, Kind::Any),
    (NDA_VLAN, Kind::Int(2)),
    (NDA_IFINDEX, Kind::Int(4)),
    (NDA_MASTER, Kind::Int(4)),
    (NDA_FLAGS_EXT, Kind::Int(4)),
    (NDA_NDM_STATE_MASK, Kind::Int(2)),
    (NDA_NDM_FLAGS_MASK, Kind::Int(1)),
]);

/// Entry in a request.
struct Named<'a> {
    bridge: PortId,
    port: Option<PortId>,
    mac: MacAddr,
    vid: Option<Vid>,
    state: u16,
    flags: u8,
    attrs: Attrs<'a, NDA_MAX>,
}

impl<'a> Named<'a> {
    fn of<B: Backend>(rtnl: &Rtnl<B>, request: &Request<'a>) -> Result<Self, Error> {
        let (header, rest) = fixed::<LEN>(request)?;
        let attrs = parse(rest, behind(LEN), &POLICY, Strictness::Liberal)?;
        let index = word(&header[4..]);
        if index == 0 {
            return Err(Error::text(errno::EINVAL, "invalid ifindex"));
        }
        let id = rtnl.model.id_of(index);
        if rtnl.model.link(id).is_none() {
            return Err(Error::text(errno::ENODEV, "unknown ifindex"));
        }
        let mac = attrs.get(NDA_LLADDR).and_then(|mac| <[u8; 6]>::try_from(mac.data).ok());
        let mac = mac.ok_or_else(|| Error::text(errno::EINVAL, "invalid address"))?;
        let vid = vid_of(&attrs)?;
        let flags = header[10];
        // Without flags the request is for the master (Linux `rtnl_fdb_add`).
        let to_master = flags == 0 || flags & NTF_MASTER != 0;
        let (bridge, port) = match rtnl.model.bridge_of(id)? {
            Some((bridge, Some(port))) if to_master && flags & NTF_SELF == 0 => (bridge, Some(port)),
            Some((bridge, None)) if flags & NTF_SELF != 0 => (bridge, None),
            _ if flags & NTF_SELF != 0 => {
                return Err(Error::unsupported(
                    "fatpath's links have no address lists; use `master` for the bridge's FDB",
                ));
            }
            _ => return Err(Error::new(errno::EOPNOTSUPP)),
        };
        let state = u16::from_ne_bytes([header[8], header[9]]);
        Ok(Self { bridge, port, mac: MacAddr(mac), vid, state, flags, attrs })
    }
}

fn vid_of<const N: usize>(attrs: &Attrs<'_, N>) -> Result<Option<Vid>, Error> {
    let Some(attr) = attrs.get(NDA_VLAN) else { return Ok(None) };
    match attr.u16() {
        0 => Ok(None),
        number => {
            Vid::new(number).map(Some).ok_or_else(|| Error::text(errno::EINVAL, "invalid vlan id").at(attr.offset))
        }
    }
}

/// Converts an error of a forwarding database to an `errno`. Linux has no texts for these errors.
fn refusal(error: FdbError) -> Error {
    Error::new(match error {
        FdbError::NoPort(_)
        | FdbError::ZeroAddress
        | FdbError::NotInVlan(_)
        | FdbError::NotLocal
        | FdbError::StickyLocal => errno::EINVAL,
        FdbError::Exists(..) => errno::EEXIST,
        FdbError::Missing(..) => errno::ENOENT,
        FdbError::PortNotLearning(_) => errno::EPERM,
    })
}

/// Carries out an `RTM_NEWNEIGH` (Linux `br_fdb_add`).
pub(in super::super) fn add<B: Backend>(rtnl: &mut Rtnl<B>, request: &Request<'_>) -> Result<(), Error> {
    let named = Named::of(rtnl, request)?;
    if named.state & (NUD_PERMANENT | NUD_NOARP | NUD_REACHABLE) == 0 {
        return Err(Error::new(errno::EINVAL));
    }
    if named.flags & !(NTF_SELF | NTF_MASTER | NTF_STICKY) != 0
        || named.attrs.get(NDA_FLAGS_EXT).is_some_and(|flags| flags.u32() != 0)
    {
        return Err(Error::unsupported("fatpath's FDB entries cannot be set to learnt, used or offloaded"));
    }
    let flags = request.message.header.flags;
    let kind = match named.state {
        state if state & NUD_PERMANENT != 0 => FdbKind::Local,
        state if state & NUD_NOARP != 0 => FdbKind::Static,
        _ => FdbKind::Dynamic,
    };
    let requested = FdbRequest {
        port: named.port,
        mac: named.mac,
        vid: named.vid,
        kind,
        is_sticky: named.flags & NTF_STICKY != 0,
        create: flags & flag::CREATE != 0,
        exclusive: flags & flag::EXCL != 0,
    };
    rtnl.backend.with_bridge(named.bridge, move |bridge, now| bridge.add_fdb(now, &requested))?.map_err(refusal)?;
    rtnl.model.touch();
    Ok(())
}

/// Carries out an `RTM_DELNEIGH` (Linux `br_fdb_delete`).
pub(in super::super) fn remove<B: Backend>(rtnl: &mut Rtnl<B>, request: &Request<'_>) -> Result<(), Error> {
    if request.message.header.flags & flag::BULK != 0 {
        return flush(rtnl, request);
    }
    let Named { port, mac, vid, bridge, .. } = Named::of(rtnl, request)?;
    rtnl.backend.with_bridge(bridge, move |bridge, now| bridge.remove_fdb(now, port, mac, vid))?.map_err(refusal)?;
    rtnl.model.touch();
    Ok(())
}

/// Removes the entries that match (Linux `br_fdb_delete_bulk`).
fn flush<B: Backend>(rtnl: &mut Rtnl<B>, request: &Request<'_>) -> Result<(), Error> {
    let (header, rest) = fixed::<LEN>(request)?;
    let attrs = parse(rest, behind(LEN), &POLICY, Strictness::Liberal)?;
    let id = rtnl.model.id_of(word(&header[4..]));
    if rtnl.model.link(id).is_none() {
        return Err(Error::text(errno::ENODEV, "unknown ifindex"));
    }
    let flags = header[10];
    let (bridge, mut port) = match rtnl.model.bridge_of(id)? {
        Some((bridge, Some(port))) if flags & NTF_SELF == 0 => (bridge, Some(port)),
        Some((bridge, None)) if flags & NTF_SELF != 0 => (bridge, None),
        _ => return Err(Error::new(errno::EOPNOTSUPP)),
    };
    let mut of_bridge = false;
    if let Some(named) = attrs.get(NDA_IFINDEX).map(Attr::u32).filter(|&named| named != 0) {
        let named = rtnl.model.id_of(named);
        of_bridge = named == bridge.0;
        match rtnl.model.bridge_of(named) {
            Ok(Some((its, Some(link)))) if its == bridge => port = Some(link),
            _ if of_bridge => {}
            _ => return Err(Error::text(errno::EINVAL, "Port is not a bridge slave")),
        }
    }
    if attrs.get(NDA_NDM_FLAGS_MASK).is_some_and(|mask| mask.u8() & !NTF_STICKY != 0) {
        return Err(Error::unsupported("fatpath's FDB entries have no learnt, used or offloaded flags to select by"));
    }
    let (sticky_mask, state_mask) = (
        attrs.get(NDA_NDM_FLAGS_MASK).map_or(0, Attr::u8) & NTF_STICKY,
        attrs.get(NDA_NDM_STATE_MASK).map_or(0, Attr::u16) & (NUD_PERMANENT | NUD_NOARP),
    );
    let state = u16::from_ne_bytes([header[8], header[9]]) & state_mask;
    let vid = vid_of(&attrs)?;
    let fits = move |entry: &FdbEntry| {
        let bits = match entry.kind {
            FdbKind::Local => NUD_PERMANENT | NUD_NOARP,
            FdbKind::Static => NUD_NOARP,
            FdbKind::Dynamic => 0,
        };
        let is_sticky = if entry.is_sticky { NTF_STICKY } else { 0 };
        (port.is_none() || entry.port == port)
            && !(of_bridge && entry.port.is_some())
            && (vid.is_none() || entry.vid == vid)
            && bits & state_mask == state
            && is_sticky & sticky_mask == flags & sticky_mask
    };
    let removed = move |bridge: &mut Bridge, now| {
        let entries: Vec<FdbEntry> = bridge.fdb_entries(now).filter(fits).collect();
        for entry in &entries {
            // The entry exists: it was listed in the same call.
            let _ = bridge.remove_fdb_entry(entry.mac, entry.vid);
        }
    };
    rtnl.backend.with_bridge(bridge, removed)?;
    rtnl.model.touch();
    Ok(())
}

/// Carries out an `RTM_GETNEIGH` for one entry (Linux `rtnl_fdb_get`).
pub(in super::super) fn get<B: Backend>(
    rtnl: &mut Rtnl<B>,
    request: &Request<'_>,
    reply: &mut Reply<'_>,
) -> Result<(), Error> {
    let (header, rest) = fixed::<LEN>(request)?;
    let attrs = parse(rest, behind(LEN), &POLICY, Strictness::Liberal)?;
    let named = attrs.get(NDA_MASTER).map(Attr::u32).filter(|&master| master != 0);
    let index = named.unwrap_or(word(&header[4..]));
    if index == 0 {
        return Err(Error::text(errno::ENODEV, "No device specified"));
    }
    let id = rtnl.model.id_of(index);
    if rtnl.model.link(id).is_none() {
        return Err(Error::text(errno::ENODEV, "Unknown device ifindex"));
    }
    let mac = attrs.get(NDA_LLADDR).and_then(|mac| <[u8; 6]>::try_from(mac.data).ok()).map(MacAddr);
    let mac = mac.ok_or_else(|| Error::text(errno::EINVAL, "Missing lookup address for fdb get request"))?;
    let vid = vid_of(&attrs)?;
    let (bridge, _) =
        rtnl.model.bridge_of(id)?.ok_or(Error::text(errno::EOPNOTSUPP, "Get operation not supported by device"))?;
    let entry = rtnl.backend.with_bridge(bridge, move |bridge, now| bridge.fdb_entry(now, mac, vid))?;
    let entry = entry.ok_or(Error::text(errno::ENOENT, "Fdb entry not found"))?;
    reply.send(RTM_NEWNEIGH, 0, |w| write(w, &rtnl.model, bridge, &entry));
    Ok(())
}

/// Dumps the entries of all bridges, by port (Linux `rtnl_fdb_dump`).
pub(in super::super) fn dump<B: Backend>(rtnl: &mut Rtnl<B>, request: &Request<'_>) -> Result<Dump<Rtnl<B>>, Error> {
    /// Length of `struct ifinfomsg`, the header of programs without strict checks.
    const LEGACY_LEN: usize = 16;
    let payload = request.payload();
    let is_legacy = match payload.len() {
        len if len == LEN => false,
        // An `ndmsg` with one 32-bit attribute is longer by 8 (Linux `valid_fdb_dump_legacy`).
        len => len != LEN + 8 && len >= LEGACY_LEN,
    };
    let index = payload.get(4..).map_or(0, word);
    let rest = payload.get(if is_legacy { LEGACY_LEN } else { LEN }..).unwrap_or_default();
    let master_kind = if is_legacy { IFLA_MASTER } else { NDA_MASTER };
    let mut master = 0;
    let mut brport = if is_legacy || !request.strict { index } else { 0 };
    for attr in Iter::new(rest, behind(if is_legacy { LEGACY_LEN } else { LEN })) {
        match attr.kind {
            kind if kind == master_kind => master = attr.u32(),
            NDA_IFINDEX if !is_legacy => brport = attr.u32(),
            _ if request.strict => {
                return Err(Error::text(errno::EINVAL, "Unsupported attribute in fdb dump request"));
            }
            _ => {}
        }
    }
    let mut all = Vec::new();
    let bridges: Vec<u32> = rtnl
        .model
        .by_ifindex(IfIndex::default())
        .into_iter()
        .filter(|(.., link)| link.is_bridge())
        .map(|(_, id, _)| id)
        .collect();
    for bridge in bridges {
        if master != 0 && rtnl.model.ifindex(bridge).0 != master {
            continue;
        }
        let bridge = PortId(bridge);
        let mut entries: Vec<FdbEntry> =
            rtnl.backend.with_bridge(bridge, |bridge, now| bridge.fdb_entries(now).collect())?;
        let place = |entry: &FdbEntry| rtnl.model.ifindex(entry.port.unwrap_or(bridge).0);
        entries.retain(|entry| brport == 0 || place(entry).0 == brport);
        entries.sort_unstable_by_key(|entry| (place(entry), entry.mac.0, entry.vid));
        all.extend(entries.into_iter().map(|entry| (bridge, entry)));
    }
    all.sort_by_key(|(bridge, entry)| rtnl.model.ifindex(entry.port.unwrap_or(*bridge).0));
    let mut last = None;
    Ok(Box::new(move |rtnl: &mut Rtnl<B>, part| {
        let left = all.iter().enumerate().skip(last.map_or(0, |last| last + 1));
        Ok(write_each(part, &mut last, left, |part, _, (bridge, entry)| {
            part.message(RTM_NEWNEIGH, |w| write(w, &rtnl.model, *bridge, entry))
        }))
    }))
}

/// Writes an entry, as Linux's `fdb_fill_info`.
pub(in super::super) fn write(w: &mut Writer, model: &Model, bridge: PortId, entry: &FdbEntry) {
    let ticks = |time: Duration| u32::try_from(time.as_millis() / 10).unwrap_or(u32::MAX).to_ne_bytes();
    put_header(w, model, bridge, entry, 0);
    w.put(NDA_LLADDR, &entry.mac.0);
    w.put_u32(NDA_MASTER, model.ifindex(bridge.0).0);
    w.put_u32(NDA_FLAGS_EXT, 0);
    // `struct nda_cacheinfo`: confirmed, used, updated, references.
    let used = ticks(entry.used);
    w.put(NDA_CACHEINFO, [[0; 4], used, ticks(entry.updated), [0; 4]].as_flattened());
    if let Some(vid) = entry.vid {
        w.put_u16(NDA_VLAN, vid.get());
    }
}

fn put_header(w: &mut Writer, model: &Model, bridge: PortId, entry: &FdbEntry, flags: u8) {
    let state = match entry.kind {
        FdbKind::Local => NUD_PERMANENT,
        FdbKind::Static => NUD_NOARP,
        FdbKind::Dynamic if entry.has_expired => NUD_STALE,
        FdbKind::Dynamic => NUD_REACHABLE,
    };
    let sticky = if entry.is_sticky { NTF_STICKY } else { 0 };
    w.fixed(&[AF_BRIDGE, 0, 0, 0]);
    w.fixed(&model.ifindex(entry.port.unwrap_or(bridge).0).0.to_ne_bytes());
    let [low, high] = state.to_ne_bytes();
    w.fixed(&[low, high, flags | sticky, 0]);
}

/// Request that restores an entry that a client has added.
pub(in super::super) fn write_request(w: &mut Writer, model: &Model, bridge: PortId, entry: &FdbEntry) {
    let to = if entry.port.is_some() { NTF_MASTER } else { NTF_SELF };
    put_header(w, model, bridge, entry, to);
    w.put(NDA_LLADDR, &entry.mac.0);
    if let Some(vid) = entry.vid {
        w.put_u16(NDA_VLAN, vid.get());
    }
}
