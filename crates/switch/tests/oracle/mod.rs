//! Plain bridge as the test oracle, written from the rules: scans lists, without caches.

use std::collections::{BTreeMap, BTreeSet};

use switch::{FdbKind, PortState, Refusal};
use wire::MacAddr;

/// Port number of the bridge itself.
pub(crate) const OWN: u32 = 0;

/// VLANs of a port, each with a flag for untagged egress.
pub(crate) type VlanMap = BTreeMap<u16, bool>;

#[derive(Clone, Debug)]
pub(crate) struct OraclePort {
    pub(crate) mac: MacAddr,
    pub(crate) state: PortState,
    pub(crate) learning: bool,
    pub(crate) floods: [bool; 3],
    pub(crate) isolated: bool,
    pub(crate) hairpin: bool,
    pub(crate) locked: bool,
    pub(crate) limit: usize,
    pub(crate) trunk: Option<u8>,
    pub(crate) vlans: VlanMap,
    pub(crate) pvid: u16,
}

#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct OracleEntry {
    pub(crate) mac: MacAddr,
    pub(crate) vid: u16,
    pub(crate) port: u32,
    pub(crate) is_local: bool,
    pub(crate) is_static: bool,
    pub(crate) is_sticky: bool,
    pub(crate) is_by_user: bool,
    pub(crate) updated: u64,
    pub(crate) used: u64,
}

/// Destinations of a frame: ports and the bridge itself, each with its tag.
pub(crate) type Places = BTreeSet<(u32, Option<u16>)>;

pub(crate) struct Oracle {
    pub(crate) filtering: bool,
    pub(crate) ports: BTreeMap<u32, OraclePort>,
    /// The bridge's device; only its address and VLANs matter.
    pub(crate) own: OraclePort,
    pub(crate) fdb: Vec<OracleEntry>,
    pub(crate) ageing: u64,
    pub(crate) tick: u64,
}

fn new_port(mac: MacAddr) -> OraclePort {
    OraclePort {
        mac,
        state: PortState::Forwarding,
        learning: true,
        floods: [true; 3],
        isolated: false,
        hairpin: false,
        locked: false,
        limit: 1024,
        trunk: None,
        vlans: VlanMap::new(),
        pvid: 0,
    }
}

impl Oracle {
    pub(crate) fn new(mac: MacAddr) -> Self {
        let mut oracle = Self {
            filtering: false,
            ports: BTreeMap::new(),
            own: new_port(mac),
            fdb: Vec::new(),
            ageing: 30_000,
            tick: 0,
        };
        oracle.add_local(OWN, 0);
        oracle.add_vlan(OWN, 1, true, true);
        oracle
    }

    pub(crate) fn set_tick(&mut self, tick: u64) {
        self.tick = tick;
        let ageing = self.ageing;
        self.fdb.retain(|entry| entry.is_local || entry.is_static || entry.updated + ageing > tick);
    }

    pub(crate) fn port(&self, port: u32) -> &OraclePort {
        if port == OWN { &self.own } else { &self.ports[&port] }
    }

    pub(crate) fn port_mut(&mut self, port: u32) -> &mut OraclePort {
        if port == OWN { &mut self.own } else { self.ports.get_mut(&port).unwrap() }
    }

    pub(crate) fn add_port(&mut self, port: u32, mac: MacAddr) {
        self.ports.insert(port, new_port(mac));
        self.add_local(port, 0);
        self.add_vlan(port, 1, true, true);
    }

    pub(crate) fn remove_port(&mut self, port: u32) {
        let gone = self.ports.remove(&port).unwrap();
        let entries: Vec<OracleEntry> = self.fdb.iter().copied().filter(|entry| entry.port == port).collect();
        for entry in entries {
            self.lose(entry, &gone);
        }
    }

    pub(crate) fn add_vlan(&mut self, port: u32, vid: u16, is_pvid: bool, is_untagged: bool) {
        let target = self.port_mut(port);
        if is_pvid {
            target.pvid = vid;
        } else if target.pvid == vid {
            target.pvid = 0;
        }
        if target.vlans.insert(vid, is_untagged).is_none() {
            self.add_local(port, vid);
        }
    }

    pub(crate) fn remove_vlan(&mut self, port: u32, vid: u16) {
        let target = self.port_mut(port);
        if target.vlans.remove(&vid).is_none() {
            return;
        }
        if target.pvid == vid {
            target.pvid = 0;
        }
        let loser = target.clone();
        let entries: Vec<OracleEntry> =
            self.fdb.iter().copied().filter(|entry| entry.port == port && entry.vid == vid).collect();
        for entry in entries {
            let is_own = entry.is_local && !entry.is_by_user && entry.mac == loser.mac;
            if is_own || !entry.is_local && !entry.is_static {
                self.lose(entry, &loser);
            }
        }
    }

    pub(crate) fn set_mac(&mut self, port: u32, mac: MacAddr) {
        let loser = self.port(port).clone();
        let entries: Vec<OracleEntry> = self.fdb.iter().copied().filter(|entry| entry.port == port).collect();
        for entry in entries {
            if entry.is_local && !entry.is_by_user && entry.mac == loser.mac {
                self.lose(entry, &loser);
            }
        }
        self.port_mut(port).mac = mac;
        let vids: Vec<u16> = std::iter::once(0).chain(self.port(port).vlans.keys().copied()).collect();
        for vid in vids {
            self.add_local(port, vid);
        }
    }

    pub(crate) fn set_fdb(&mut self, port: u32, mac: MacAddr, vid: u16, kind: FdbKind, is_sticky: bool) {
        let (is_local, is_static) = (kind == FdbKind::Local, kind != FdbKind::Dynamic);
        let (updated, used) = (self.tick, self.tick);
        let new = OracleEntry { mac, vid, port, is_local, is_static, is_sticky, is_by_user: true, updated, used };
        match self.fdb.iter_mut().find(|entry| entry.mac == mac && entry.vid == vid) {
            None => self.fdb.push(new),
            Some(old) => {
                let same = (old.port, old.is_local, old.is_static, old.is_sticky);
                let updated = if same == (port, is_local, is_static, is_sticky) { old.updated } else { updated };
                *old = OracleEntry { updated, ..new };
            }
        }
    }

    pub(crate) fn find(&self, mac: MacAddr, vid: u16) -> Option<&OracleEntry> {
        self.fdb.iter().find(|entry| entry.mac == mac && entry.vid == vid)
    }

    /// Active trunk of a VLAN.
    pub(crate) fn active_trunk(&self, vid: u16) -> Option<u32> {
        let trunks = self.ports.iter().filter(|(_, port)| {
            port.trunk.is_some() && port.state == PortState::Forwarding && (vid == 0 || port.vlans.contains_key(&vid))
        });
        trunks.max_by_key(|(link, port)| (port.trunk, std::cmp::Reverse(**link))).map(|(link, _)| *link)
    }

    /// Flushes dynamic entries of standby trunks.
    pub(crate) fn settle_trunks(&mut self) {
        let mut kept = std::mem::take(&mut self.fdb);
        kept.retain(|entry| {
            let vid = if self.filtering { entry.vid } else { 0 };
            let is_trunk = entry.port != OWN && self.ports[&entry.port].trunk.is_some();
            let active = self.active_trunk(vid);
            entry.is_static || entry.is_local || !is_trunk || active.is_none() || active == Some(entry.port)
        });
        self.fdb = kept;
    }

    pub(crate) fn receive(
        &mut self,
        link: u32,
        src: MacAddr,
        dst: MacAddr,
        tag: Option<u16>,
    ) -> Result<Places, Refusal> {
        if src.is_multicast() || src == MacAddr::ZERO {
            return Err(Refusal::SourceInvalid);
        }
        let port = self.ports.get(&link).ok_or(Refusal::PortUnknown)?.clone();
        if port.state != PortState::Forwarding && port.state != PortState::Learning {
            return Err(Refusal::IngressState);
        }
        let (vid, inner) = self.classify(&port, tag)?;
        if port.trunk.is_some() && self.active_trunk(vid).is_some_and(|active| active != link) {
            return Err(Refusal::StandbyTrunk);
        }
        if port.locked && !self.find(src, vid).is_some_and(|entry| entry.port == link && !entry.is_local) {
            return Err(Refusal::Locked);
        }
        if port.learning {
            self.learn(link, src, vid);
        }
        if port.state == PortState::Learning {
            return Err(Refusal::IngressState);
        }
        let mut places = Places::new();
        let mut refusal = None;
        let mut goes_up = false;
        let mut is_local = false;
        if dst.is_multicast() {
            goes_up = true;
            places = self.flood(link, vid, inner, if dst == MacAddr::BROADCAST { 2 } else { 1 });
        } else if let Some(entry) = self.find(dst, vid).copied() {
            if entry.is_local {
                is_local = true;
            } else {
                let tick = self.tick;
                self.fdb.iter_mut().find(|other| other.mac == dst && other.vid == vid).unwrap().used = tick;
                match self.leave(link, entry.port, vid, inner) {
                    Ok(tag) => drop(places.insert((entry.port, tag))),
                    Err(why) => refusal = Some(why),
                }
            }
        } else {
            (places, refusal) = self.unknown(link, vid, inner);
        }
        if goes_up || is_local {
            let membership = if self.filtering { self.own.vlans.get(&vid).copied() } else { Some(false) };
            match membership {
                Some(is_untagged) => drop(places.insert((OWN, inner.filter(|_| !is_untagged)))),
                None if is_local => refusal = Some(Refusal::OwnVlan),
                None => {}
            }
        }
        if places.is_empty() { Err(refusal.unwrap_or(Refusal::NoPort)) } else { Ok(places) }
    }

    pub(crate) fn send(&mut self, dst: MacAddr, tag: Option<u16>) -> Result<Places, Refusal> {
        let (vid, inner) = self.classify(&self.own, tag)?;
        let mut places = Places::new();
        let mut refusal = None;
        if dst.is_multicast() {
            places = self.flood(OWN, vid, inner, if dst == MacAddr::BROADCAST { 2 } else { 1 });
        } else if let Some(entry) = self.find(dst, vid) {
            if entry.port == OWN {
                return Err(Refusal::OwnAddress);
            }
            match self.leave(OWN, entry.port, vid, inner) {
                Ok(tag) => drop(places.insert((entry.port, tag))),
                Err(why) => refusal = Some(why),
            }
        } else {
            (places, refusal) = self.unknown(OWN, vid, inner);
        }
        if places.is_empty() { Err(refusal.unwrap_or(Refusal::NoPort)) } else { Ok(places) }
    }

    fn add_local(&mut self, port: u32, vid: u16) {
        let mac = self.port(port).mac;
        if self.find(mac, vid).is_some_and(|entry| entry.is_local) {
            return;
        }
        self.fdb.retain(|entry| entry.mac != mac || entry.vid != vid);
        let (updated, used) = (self.tick, self.tick);
        let (is_local, is_static, is_sticky, is_by_user) = (true, true, false, false);
        self.fdb.push(OracleEntry { mac, vid, port, is_local, is_static, is_sticky, is_by_user, updated, used });
    }

    /// Removes an entry from a port. A local address moves to another port with the same address.
    fn lose(&mut self, entry: OracleEntry, loser: &OraclePort) {
        let has = |port: &OraclePort| port.mac == entry.mac && (entry.vid == 0 || port.vlans.contains_key(&entry.vid));
        let _ = loser;
        // The tests add ports in an order in which the bridge's numbers equal the links'.
        let other = self.ports.iter().find(|(link, port)| **link != entry.port && has(port)).map(|(link, _)| *link);
        let heir = other.or((entry.port != OWN && has(&self.own)).then_some(OWN));
        let at = self.fdb.iter().position(|other| *other == entry).unwrap();
        match heir {
            Some(heir) if entry.is_local => {
                self.fdb[at].port = heir;
                self.fdb[at].is_by_user = false;
            }
            _ => drop(self.fdb.remove(at)),
        }
    }

    fn classify(&self, port: &OraclePort, tag: Option<u16>) -> Result<(u16, Option<u16>), Refusal> {
        if !self.filtering {
            return Ok((0, tag));
        }
        let tci = tag.unwrap_or(0);
        match tci % 4096 {
            0 if port.pvid == 0 => Err(Refusal::NoPvid),
            0 => Ok((port.pvid, Some(tci + port.pvid))),
            vid if port.vlans.contains_key(&vid) => Ok((vid, Some(tci))),
            _ => Err(Refusal::IngressVlan),
        }
    }

    fn learn(&mut self, link: u32, src: MacAddr, vid: u16) {
        if self.ageing == 0 {
            return;
        }
        let limit = self.ports[&link].limit;
        let learnt = self.fdb.iter().filter(|e| e.port == link && !e.is_static && !e.is_local && !e.is_by_user).count();
        let tick = self.tick;
        let Some(at) = self.fdb.iter().position(|entry| entry.mac == src && entry.vid == vid) else {
            if learnt < limit {
                let (is_local, is_static, is_sticky, is_by_user) = (false, false, false, false);
                let (updated, used) = (tick, tick);
                let mac = src;
                self.fdb.push(OracleEntry {
                    mac,
                    vid,
                    port: link,
                    is_local,
                    is_static,
                    is_sticky,
                    is_by_user,
                    updated,
                    used,
                });
            }
            return;
        };
        let entry = &mut self.fdb[at];
        if entry.is_local {
            return;
        }
        let counts = !entry.is_static && !entry.is_by_user;
        if entry.port != link && !entry.is_sticky {
            if counts && learnt >= limit {
                self.fdb.remove(at);
                return;
            }
            entry.port = link;
        }
        entry.updated = tick;
    }

    fn leave(&self, from: u32, to: u32, vid: u16, inner: Option<u16>) -> Result<Option<u16>, Refusal> {
        let port = &self.ports[&to];
        if from == to && !port.hairpin {
            return Err(Refusal::SamePort);
        }
        if port.state != PortState::Forwarding {
            return Err(Refusal::EgressState);
        }
        let tag = if self.filtering {
            let is_untagged = port.vlans.get(&vid).ok_or(Refusal::EgressVlan)?;
            inner.filter(|_| !is_untagged)
        } else {
            inner
        };
        if from != OWN && self.ports[&from].isolated && port.isolated {
            return Err(Refusal::Isolated);
        }
        if port.trunk.is_some() && self.active_trunk(vid) != Some(to) {
            return Err(Refusal::StandbyTrunk);
        }
        Ok(tag)
    }

    fn unknown(&self, from: u32, vid: u16, inner: Option<u16>) -> (Places, Option<Refusal>) {
        if let Some(trunk) = self.active_trunk(vid)
            && trunk != from
            && self.ports[&trunk].floods[0]
        {
            return match self.leave(from, trunk, vid, inner) {
                Ok(tag) => ([(trunk, tag)].into_iter().collect(), None),
                Err(refusal) => (Places::new(), Some(refusal)),
            };
        }
        (self.flood(from, vid, inner, 0), None)
    }

    fn flood(&self, from: u32, vid: u16, inner: Option<u16>, kind: usize) -> Places {
        let takes = |port: &OraclePort| port.floods[kind] || kind > 0 && from == OWN;
        let ports = self.ports.iter().filter(|(_, port)| takes(port));
        ports.filter_map(|(link, _)| self.leave(from, *link, vid, inner).ok().map(|tag| (*link, tag))).collect()
    }
}
