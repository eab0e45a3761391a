//! A bridge: its ports, VLANs and addresses, and changes of them (Linux `br_if.c`, `br_vlan.c`, `br_fdb.c`).

use std::time::Duration;

use base::{Instant, PortId};
use foldhash::quality::RandomState;
use hashbrown::HashMap;
use wire::MacAddr;

use crate::error::{BridgeError, FdbError};
use crate::fdb::{BRIDGE_DEVICE, EXPIRED_PER_CALL, Fdb, FdbChanges, FdbEntry, FdbKey, FdbKind, Node, PortNumber};
use crate::loop_watch::{LoopSign, LoopWatch};
use crate::port::{GroupMask, Port, PortConfig, PortState};
use crate::stats::{LearnStats, PortStats, VlanCounters, VlanStats};
use crate::vid::{Vid, VidSet};
use crate::vlans::{VlanFlags, Vlans};

/// A bridge. Its device is the link of the bridge itself, with addresses and routes of this node.
#[derive(Clone, Debug)]
pub struct Bridge {
    pub(crate) mac: MacAddr,
    pub(crate) vlan_filtering: bool,
    pub(crate) link_local_learning: bool,
    pub(crate) group_mask: GroupMask,
    /// VLANs of the bridge's device.
    pub(crate) vlans: Vlans,
    /// Whether the bridge device receives every frame.
    pub(crate) is_promiscuous: bool,
    /// Counters of the bridge's device.
    pub(crate) stats: PortStats,
    pub(crate) vlan_counters: VlanCounters,
    pub(crate) fdb: Fdb,
    /// Ports by number; number 0 is unused.
    pub(crate) ports: Vec<Option<Port>>,
    pub(crate) numbers: HashMap<PortId, PortNumber, RandomState>,
    /// Trunks, the highest priority first; among equal priorities, the lowest link number first.
    pub(crate) trunks: Vec<PortNumber>,
    pub(crate) loop_watch: LoopWatch,
    default_pvid: Option<Vid>,
    ageing_time: Duration,
    forward_delay: Duration,
}

/// Request of an operator to change the forwarding database (`bridge fdb add|append|replace`).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct FdbRequest {
    /// Port of the address; `None` for the bridge itself.
    pub port: Option<PortId>,
    /// The address.
    pub mac: MacAddr,
    /// VLAN of the address. `None` stands for the entry without a VLAN and for each VLAN of the port.
    pub vid: Option<Vid>,
    /// Kind.
    pub kind: FdbKind,
    /// Whether the entry is sticky: it stays at its port when its address appears at another one.
    pub is_sticky: bool,
    /// Whether a missing entry is created (`NLM_F_CREATE`).
    pub create: bool,
    /// Whether an existing entry is an error (`NLM_F_EXCL`).
    pub exclusive: bool,
}

/// Filter of a flush, which removes the entries that match every condition.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct FlushFilter {
    /// Port, `Some(None)` for the bridge itself; any if `None`.
    pub port: Option<Option<PortId>>,
    /// VLAN; any if `None`.
    pub vid: Option<Vid>,
    /// Whether static entries are flushed too.
    pub statics: bool,
    /// Whether local entries are flushed too.
    pub locals: bool,
}

impl Bridge {
    /// Ports that a bridge may have (Linux `BR_MAX_PORTS`, which counts from 1).
    pub const MAX_PORTS: usize = 1023;

    /// Default ageing time: a dynamic entry expires this long after its last refresh.
    pub const AGEING_TIME: Duration = Duration::from_secs(300);

    /// Default forward delay.
    pub const FORWARD_DELAY: Duration = Duration::from_secs(15);

    /// A bridge with the address `mac`, without ports and without VLAN filtering. Its device is in VLAN 1, untagged.
    ///
    /// # Errors
    /// [`BridgeError::Mac`] if the address is not a unicast address.
    pub fn new(mac: MacAddr) -> Result<Self, BridgeError> {
        check_mac(mac)?;
        let mut bridge = Self {
            mac,
            vlan_filtering: false,
            link_local_learning: true,
            group_mask: GroupMask::NONE,
            vlans: Vlans::default(),
            is_promiscuous: false,
            stats: PortStats::ZERO,
            vlan_counters: VlanCounters::default(),
            fdb: Fdb::new(Self::AGEING_TIME),
            ports: vec![None],
            numbers: HashMap::default(),
            trunks: Vec::new(),
            loop_watch: LoopWatch::default(),
            default_pvid: Some(Vid::FIRST),
            ageing_time: Self::AGEING_TIME,
            forward_delay: Self::FORWARD_DELAY,
        };
        bridge.fdb.add_local(FdbKey::new(None, mac), BRIDGE_DEVICE);
        bridge.add_vlan_to(BRIDGE_DEVICE, Vid::FIRST, VlanFlags::DEFAULT_PVID);
        Ok(bridge)
    }

    /// Address of the bridge's device.
    pub fn mac(&self) -> MacAddr {
        self.mac
    }

    /// Tells whether the bridge filters by VLAN.
    pub fn vlan_filtering(&self) -> bool {
        self.vlan_filtering
    }

    /// VLAN of new ports.
    pub fn default_pvid(&self) -> Option<Vid> {
        self.default_pvid
    }

    /// Ageing time: a dynamic entry expires this long after its last refresh.
    pub fn ageing_time(&self) -> Duration {
        self.ageing_time
    }

    /// Forward delay, which is kept for replies alone: without the spanning tree protocol a port forwards at once, as in
    /// Linux (`br_port_carrier_check`, `br_init_port`).
    pub fn forward_delay(&self) -> Duration {
        self.forward_delay
    }

    /// Link-local groups that are forwarded.
    pub fn group_mask(&self) -> GroupMask {
        self.group_mask
    }

    /// VLANs of the bridge's device.
    pub fn vlans(&self) -> &Vlans {
        &self.vlans
    }

    /// Tells whether there are signs of a loop.
    #[inline]
    pub fn has_loop_signs(&self) -> bool {
        !self.loop_watch.is_empty()
    }

    /// Signs of a loop since the last call, at most one of each kind in ten seconds.
    pub fn take_loop_signs(&mut self) -> Vec<LoopSign> {
        self.loop_watch.take()
    }

    /// Counters of the bridge's device.
    pub fn stats(&self) -> PortStats {
        self.stats
    }

    /// Tells whether frames are counted by VLAN.
    pub fn vlan_stats_enabled(&self) -> bool {
        self.vlan_counters.is_counting
    }

    /// Enables or disables counters by VLAN (`vlan_stats_enabled`). A bridge without VLAN filtering counts nothing by
    /// VLAN.
    pub fn set_vlan_stats_enabled(&mut self, enabled: bool) {
        self.vlan_counters.set_counting(enabled);
    }

    /// Counters of a VLAN, zero until frames are counted by VLAN. They are reset when a VLAN without ports gets a port.
    pub fn vlan_stats(&self, vid: Vid) -> VlanStats {
        self.vlan_counters.get(vid)
    }

    /// The port of a link.
    pub fn port(&self, link: PortId) -> Option<&Port> {
        self.ports.get(usize::from(*self.numbers.get(&link)?))?.as_ref()
    }

    /// The ports, in the order of their numbers.
    pub fn ports(&self) -> impl Iterator<Item = &Port> {
        self.ports.iter().flatten()
    }

    /// Adds a link as a port with Linux's defaults, in the default PVID, untagged. Returns the port's number.
    ///
    /// # Errors
    /// [`BridgeError::PortExists`], [`BridgeError::TooManyPorts`], [`BridgeError::Mac`].
    pub fn add_port(&mut self, link: PortId, mac: MacAddr, mtu: usize) -> Result<u16, BridgeError> {
        check_mac(mac)?;
        if self.numbers.contains_key(&link) {
            return Err(BridgeError::PortExists(link));
        }
        let free = (1..self.ports.len()).find(|&number| self.ports[number].is_none());
        let number = free.unwrap_or(self.ports.len());
        if number > Self::MAX_PORTS {
            return Err(BridgeError::TooManyPorts);
        }
        let port = Port {
            link,
            number: number as PortNumber,
            mac,
            mtu,
            config: PortConfig::default(),
            vlans: Vlans::default(),
            stats: PortStats::ZERO,
            learn_stats: LearnStats::default(),
        };
        if number == self.ports.len() {
            self.ports.push(Some(port));
        } else {
            self.ports[number] = Some(port);
        }
        let number = number as PortNumber;
        self.numbers.insert(link, number);
        self.fdb.set_owner_link(number, Some(link));
        self.fdb.add_local(FdbKey::new(None, mac), number);
        if let Some(vid) = self.default_pvid {
            self.add_vlan_to(number, vid, VlanFlags::DEFAULT_PVID);
        }
        Ok(number)
    }

    /// Removes a port with its addresses.
    ///
    /// # Errors
    /// [`BridgeError::NoPort`].
    pub fn remove_port(&mut self, link: PortId) -> Result<(), BridgeError> {
        let number = self.number_of(link)?;
        self.numbers.remove(&link);
        self.trunks.retain(|&trunk| trunk != number);
        // The entries are removed first, so that local ones move to other ports of the same address.
        let keys = self.fdb.keys_of(number, |_| true);
        self.ports[usize::from(number)] = None;
        for key in keys {
            self.remove_entry_of_port(key);
        }
        Ok(())
    }

    /// Changes a port's settings. Learnt addresses above a reduced limit stay until they expire.
    ///
    /// # Errors
    /// [`BridgeError::NoPort`].
    pub fn configure(&mut self, link: PortId, config: PortConfig) -> Result<(), BridgeError> {
        let number = self.number_of(link)?;
        self.port_mut(number).config = config;
        self.elect_trunks();
        Ok(())
    }

    /// Updates a port whose link has changed its state: an up port forwards; a down port is disabled and its dynamic
    /// entries are flushed (Linux `br_stp_enable_port`, `br_stp_disable_port`).
    ///
    /// # Errors
    /// [`BridgeError::NoPort`].
    pub fn set_link_up(&mut self, link: PortId, is_up: bool) -> Result<(), BridgeError> {
        let number = self.number_of(link)?;
        self.port_mut(number).config.state = if is_up { PortState::Forwarding } else { PortState::Disabled };
        if !is_up {
            self.flush_port(number);
        }
        self.elect_trunks();
        Ok(())
    }

    /// Updates the MTU of a port.
    ///
    /// # Errors
    /// [`BridgeError::NoPort`].
    pub fn set_mtu(&mut self, link: PortId, mtu: usize) -> Result<(), BridgeError> {
        let number = self.number_of(link)?;
        self.port_mut(number).mtu = mtu;
        Ok(())
    }

    /// Updates the address of a port, and replaces its local entries (Linux `br_fdb_changeaddr`).
    ///
    /// # Errors
    /// [`BridgeError::NoPort`], [`BridgeError::Mac`].
    pub fn set_port_mac(&mut self, link: PortId, mac: MacAddr) -> Result<(), BridgeError> {
        check_mac(mac)?;
        let number = self.number_of(link)?;
        self.change_mac(number, mac);
        Ok(())
    }

    /// Changes the bridge's own address (Linux `br_fdb_change_mac_address`).
    ///
    /// # Errors
    /// [`BridgeError::Mac`].
    pub fn set_mac(&mut self, mac: MacAddr) -> Result<(), BridgeError> {
        check_mac(mac)?;
        self.change_mac(BRIDGE_DEVICE, mac);
        Ok(())
    }

    /// Enables or disables VLAN filtering; without it tags are ignored. Learnt addresses stay.
    pub fn set_vlan_filtering(&mut self, filtering: bool) {
        self.vlan_filtering = filtering;
        self.elect_trunks();
    }

    /// Sets whether the bridge device receives every frame in its VLANs, not only those to addresses of the bridge and to groups (Linux
    /// `IFF_PROMISC`).
    pub fn set_promiscuous(&mut self, is_promiscuous: bool) {
        self.is_promiscuous = is_promiscuous;
    }

    /// Tells whether a frame that the bridge device has received is to the node: any unicast frame, unless the bridge is promiscuous; then one to
    /// an address of the bridge or of a port.
    pub fn is_own(&self, dst: MacAddr) -> bool {
        let hit = self.fdb.get(FdbKey::new(None, dst));
        !self.is_promiscuous || hit.is_some_and(|hit| hit.kind == FdbKind::Local)
    }

    /// Sets whether sources of link-local frames are learnt; false is Linux's `no_linklocal_learn`, which a bridge with
    /// locked ports needs.
    pub fn set_link_local_learning(&mut self, learning: bool) {
        self.link_local_learning = learning;
    }

    /// Sets the link-local groups that are forwarded.
    pub fn set_group_mask(&mut self, mask: GroupMask) {
        self.group_mask = mask;
    }

    /// Sets the forward delay.
    pub fn set_forward_delay(&mut self, delay: Duration) {
        self.forward_delay = delay;
    }

    /// Sets the ageing time, in steps of 10 ms. With zero nothing is learnt, and every unicast frame is flooded.
    pub fn set_ageing_time(&mut self, time: Duration) {
        self.ageing_time = time;
        self.fdb.set_ageing_time(time);
    }

    /// Tells whether sources of frames to link-local groups are learnt.
    pub fn link_local_learning(&self) -> bool {
        self.link_local_learning
    }

    /// Sets the VLAN of new ports. Ports with their initial membership in the old default move to the new one, unless
    /// they are members of the new one already (Linux `__br_vlan_set_default_pvid`).
    ///
    /// # Errors
    /// [`BridgeError::Filtering`].
    pub fn set_default_pvid(&mut self, vid: Option<Vid>) -> Result<(), BridgeError> {
        let old = self.default_pvid;
        if old == vid {
            return Ok(());
        }
        if self.vlan_filtering {
            return Err(BridgeError::Filtering);
        }
        let numbers: Vec<PortNumber> = std::iter::once(BRIDGE_DEVICE).chain(self.ports().map(Port::number)).collect();
        for number in numbers {
            let vlans = self.vlans_of(number);
            let follows = old.is_none_or(|old| vlans.has_default(old));
            if !follows || vid.is_some_and(|vid| vlans.members().contains(vid)) {
                continue;
            }
            if let Some(vid) = vid {
                self.add_vlan_to(number, vid, VlanFlags::DEFAULT_PVID);
            }
            if let Some(old) = old {
                self.remove_vlan_from(number, old);
            }
        }
        self.default_pvid = vid;
        self.elect_trunks();
        Ok(())
    }

    /// Adds the VLANs from `first` to `last` to a port, or to the bridge's own (`None`), and changes the flags of
    /// existing ones (`bridge vlan add`).
    ///
    /// # Errors
    /// [`BridgeError::NoPort`], [`BridgeError::Range`], [`BridgeError::PvidRange`].
    pub fn add_vlans(
        &mut self,
        port: Option<PortId>,
        first: Vid,
        last: Vid,
        flags: VlanFlags,
    ) -> Result<(), BridgeError> {
        let number = self.number_or_own(port)?;
        if first > last {
            return Err(BridgeError::Range(first, last));
        }
        if flags.is_pvid && first != last {
            return Err(BridgeError::PvidRange(first, last));
        }
        for vid in Vid::range(first, last) {
            self.add_vlan_to(number, vid, flags);
        }
        self.elect_trunks();
        Ok(())
    }

    /// Removes the VLANs from `first` to `last` from a port, or from the bridge's own (`None`), with their dynamic
    /// entries (`bridge vlan del`). Returns the number of removed VLANs.
    ///
    /// # Errors
    /// [`BridgeError::NoPort`], [`BridgeError::Range`].
    pub fn remove_vlans(&mut self, port: Option<PortId>, first: Vid, last: Vid) -> Result<usize, BridgeError> {
        let number = self.number_or_own(port)?;
        if first > last {
            return Err(BridgeError::Range(first, last));
        }
        let removed = Vid::range(first, last).filter(|&vid| self.vlans_of_mut(number).remove(vid));
        // Collected first, so that entries are flushed in one pass.
        let removed: VidSet = removed.collect();
        self.flush_vlans_of(number, &removed);
        self.elect_trunks();
        Ok(removed.len())
    }

    /// Adds or changes entries (Linux `br_fdb_add`).
    ///
    /// # Errors
    /// [`FdbError`]; never `Missing` for a request with `create`, never `Exists` for one without `exclusive`.
    pub fn add_fdb(&mut self, now: Instant, request: &FdbRequest) -> Result<(), FdbError> {
        self.fdb.set_now(now);
        let number = self.fdb_owner(request.port)?;
        if request.mac == MacAddr::ZERO {
            return Err(FdbError::ZeroAddress);
        }
        if let Some(vid) = request.vid.filter(|&vid| !self.vlans_of(number).members().contains(vid)) {
            return Err(FdbError::NotInVlan(vid));
        }
        match (request.port, request.kind) {
            (None, FdbKind::Static | FdbKind::Dynamic) => return Err(FdbError::NotLocal),
            (Some(link), FdbKind::Dynamic) if !self.port_mut(number).config.state.can_learn() => {
                return Err(FdbError::PortNotLearning(link));
            }
            (_, FdbKind::Local) if request.is_sticky => return Err(FdbError::StickyLocal),
            _ => {}
        }
        let keys = self.keys_of_request(number, request.mac, request.vid);
        for &key in &keys {
            match self.fdb.get(key).is_some() {
                false if !request.create => return Err(FdbError::Missing(key.mac(), key.vid())),
                true if request.exclusive => return Err(FdbError::Exists(key.mac(), key.vid())),
                _ => {}
            }
        }
        for key in keys {
            self.fdb.set(key, number, request.kind, request.is_sticky);
        }
        Ok(())
    }

    /// Removes an address of a port, or of the bridge itself (`None`). Without a VLAN the address is removed from each
    /// VLAN of the port (Linux `br_fdb_delete`).
    ///
    /// # Errors
    /// [`FdbError::NoPort`], [`FdbError::Missing`] if there is no entry at all.
    pub fn remove_fdb(
        &mut self,
        now: Instant,
        port: Option<PortId>,
        mac: MacAddr,
        vid: Option<Vid>,
    ) -> Result<(), FdbError> {
        self.fdb.set_now(now);
        let number = self.fdb_owner(port)?;
        let mut is_missing = true;
        for key in self.keys_of_request(number, mac, vid) {
            if self.fdb.get(key).is_some_and(|hit| hit.owner == number) {
                is_missing &= !self.fdb.remove(key);
            }
        }
        if is_missing { Err(FdbError::Missing(mac, vid)) } else { Ok(()) }
    }

    /// Removes the entry of exactly that VLAN and address. Returns whether it existed.
    pub fn remove_fdb_entry(&mut self, mac: MacAddr, vid: Option<Vid>) -> bool {
        self.fdb.remove(FdbKey::new(vid, mac))
    }

    /// Removes the entries that match, and returns their number. The cost is linear in the port's entries, or in the
    /// table if the filter names no port.
    ///
    /// # Errors
    /// [`FdbError::NoPort`].
    pub fn flush_fdb(&mut self, filter: &FlushFilter) -> Result<usize, FdbError> {
        let owner = match filter.port {
            None => None,
            Some(port) => Some(self.fdb_owner(port)?),
        };
        let fits = |node: &Node| {
            let kind = match node.kind {
                FdbKind::Local => filter.locals,
                FdbKind::Static => filter.statics,
                FdbKind::Dynamic => true,
            };
            kind && filter.vid.is_none_or(|vid| node.key.vid() == Some(vid))
        };
        let keys = match owner {
            Some(number) => self.fdb.keys_of(number, fits),
            None => self.fdb.iter().filter(|node| fits(node)).map(|node| node.key).collect(),
        };
        for &key in &keys {
            self.fdb.remove(key);
        }
        Ok(keys.len())
    }

    /// Entry of exactly that VLAN and address.
    pub fn fdb_entry(&mut self, now: Instant, mac: MacAddr, vid: Option<Vid>) -> Option<FdbEntry> {
        self.fdb.set_now(now);
        let key = FdbKey::new(vid, mac);
        self.fdb.get(key)?;
        self.fdb.node(key).map(|node| self.fdb.entry_of(node))
    }

    /// All entries that have not expired, in arbitrary order.
    pub fn fdb_entries(&mut self, now: Instant) -> impl Iterator<Item = FdbEntry> + '_ {
        self.fdb.set_now(now);
        let Self { fdb, .. } = &*self;
        fdb.iter().map(|node| fdb.entry_of(node))
    }

    /// Enables or disables the recording of changes for [`take_fdb_changes`](Self::take_fdb_changes).
    pub fn watch_fdb(&mut self, on: bool) {
        self.fdb.watch(on);
    }

    /// Changes of entries since the last call, if recording is enabled.
    pub fn take_fdb_changes(&mut self) -> FdbChanges {
        self.fdb.take_changes()
    }

    /// Number of entries, including expired ones that [`handle_timeout`](Self::handle_timeout) has not removed yet.
    pub fn fdb_len(&self) -> usize {
        self.fdb.len()
    }

    /// Number of addresses learnt at a port, at most its limit.
    pub fn learnt(&self, link: PortId) -> u32 {
        self.numbers.get(&link).map_or(0, |&number| self.fdb.learnt(number))
    }

    /// Time at which the next entry expires.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.fdb.next_expiry()
    }

    /// Removes at most 1024 expired entries, and returns their number. If more have expired,
    /// [`poll_timeout`](Self::poll_timeout) is in the past.
    pub fn handle_timeout(&mut self, now: Instant) -> usize {
        self.fdb.set_now(now);
        self.fdb.expire(EXPIRED_PER_CALL)
    }

    /// Checks that the tables are consistent, for tests.
    ///
    /// # Panics
    /// If the tables are inconsistent.
    pub fn check_invariants(&self) {
        self.fdb.check_invariants();
        assert_eq!(self.numbers.len(), self.ports().count());
        for (at, port) in self.ports.iter().enumerate() {
            let Some(port) = port else { continue };
            assert_eq!((usize::from(port.number), self.numbers.get(&port.link)), (at, Some(&port.number)));
            assert_eq!(self.trunks.contains(&port.number), port.config.trunk.is_some(), "{:?}", port.link);
        }
        for vlans in self.ports().map(Port::vlans).chain([&self.vlans]) {
            assert!(vlans.pvid().is_none_or(|vid| vlans.members().contains(vid)), "{vlans:?}");
            assert!(vlans.untagged().iter().all(|vid| vlans.members().contains(vid)), "{vlans:?}");
        }
        for node in self.fdb.iter() {
            let has_port = self.ports.get(usize::from(node.owner)).is_some_and(Option::is_some);
            assert!(node.owner == BRIDGE_DEVICE || has_port, "{node:?} is behind no port");
        }
    }

    pub(crate) fn number_of(&self, link: PortId) -> Result<PortNumber, BridgeError> {
        self.numbers.get(&link).copied().ok_or(BridgeError::NoPort(link))
    }

    /// The port of that number.
    ///
    /// # Panics
    /// If there is no such port: callers take numbers from the tables.
    #[inline]
    pub(crate) fn port_at(&self, number: PortNumber) -> &Port {
        self.ports[usize::from(number)].as_ref().expect("a number in a table is a port's")
    }

    /// The port of that number, for changes.
    ///
    /// # Panics
    /// If there is no such port: callers take numbers from the tables.
    #[inline]
    pub(crate) fn port_mut(&mut self, number: PortNumber) -> &mut Port {
        self.ports[usize::from(number)].as_mut().expect("a number in a table is a port's")
    }

    /// Active trunk of a VLAN, or of all frames in a bridge without VLAN filtering: among forwarding members, the trunk
    /// with the highest priority.
    #[inline]
    pub(crate) fn active_trunk(&self, vid: Option<Vid>) -> Option<PortNumber> {
        self.trunks.iter().copied().find(|&number| {
            let port = self.port_at(number);
            port.config.state == PortState::Forwarding && vid.is_none_or(|vid| port.vlans.members().contains(vid))
        })
    }

    fn number_or_own(&self, port: Option<PortId>) -> Result<PortNumber, BridgeError> {
        port.map_or(Ok(BRIDGE_DEVICE), |link| self.number_of(link))
    }

    fn fdb_owner(&self, port: Option<PortId>) -> Result<PortNumber, FdbError> {
        match port {
            None => Ok(BRIDGE_DEVICE),
            Some(link) => self.number_of(link).map_err(|_| FdbError::NoPort(link)),
        }
    }

    fn vlans_of(&self, number: PortNumber) -> &Vlans {
        if number == BRIDGE_DEVICE { &self.vlans } else { &self.port_at(number).vlans }
    }

    fn vlans_of_mut(&mut self, number: PortNumber) -> &mut Vlans {
        if number == BRIDGE_DEVICE { &mut self.vlans } else { &mut self.port_mut(number).vlans }
    }

    fn mac_of(&self, number: PortNumber) -> MacAddr {
        if number == BRIDGE_DEVICE { self.mac } else { self.port_at(number).mac }
    }

    /// Keys for a request without a VLAN: one without a VLAN, and one for each VLAN of the port.
    fn keys_of_request(&self, number: PortNumber, mac: MacAddr, vid: Option<Vid>) -> Vec<FdbKey> {
        let each = vid.is_none().then(|| self.vlans_of(number).members().iter());
        std::iter::once(vid).chain(each.into_iter().flatten().map(Some)).map(|vid| FdbKey::new(vid, mac)).collect()
    }

    fn add_vlan_to(&mut self, number: PortNumber, vid: Vid, flags: VlanFlags) {
        if !self.ports().map(Port::vlans).chain([&self.vlans]).any(|vlans| vlans.members().contains(vid)) {
            self.vlan_counters.reset(vid);
        }
        if self.vlans_of_mut(number).add(vid, flags) {
            let key = FdbKey::new(Some(vid), self.mac_of(number));
            self.fdb.add_local(key, number);
        }
    }

    fn remove_vlan_from(&mut self, number: PortNumber, vid: Vid) {
        if self.vlans_of_mut(number).remove(vid) {
            self.flush_vlans_of(number, &[vid].into_iter().collect());
        }
    }

    /// Removes a port's dynamic entries, and the local entry of its own address, in VLANs that were removed from the
    /// port.
    fn flush_vlans_of(&mut self, number: PortNumber, vids: &VidSet) {
        let mac = self.mac_of(number);
        let keys = self.fdb.keys_of(number, |node| {
            let is_own = node.kind == FdbKind::Local && !node.is_by_user && node.key.mac() == mac;
            (is_own || node.kind == FdbKind::Dynamic) && node.key.vid().is_some_and(|vid| vids.contains(vid))
        });
        for key in keys {
            self.remove_entry_of_port(key);
        }
    }

    /// Removes a port's dynamic entries.
    fn flush_port(&mut self, number: PortNumber) {
        for key in self.fdb.keys_of(number, |node| node.kind == FdbKind::Dynamic) {
            self.fdb.remove(key);
        }
    }

    /// Removes an entry of a port. A local entry moves to another port of the same address in that VLAN, or to the
    /// bridge (Linux `fdb_delete_local`).
    fn remove_entry_of_port(&mut self, key: FdbKey) {
        let Some(&Node { kind, owner, .. }) = self.fdb.node(key) else { return };
        match self.heir_of(key, owner).filter(|_| kind == FdbKind::Local) {
            Some(heir) => self.fdb.hand_over(key, heir),
            None => {
                self.fdb.remove(key);
            }
        }
    }

    /// Another port with that address in that VLAN, or the bridge.
    fn heir_of(&self, key: FdbKey, owner: PortNumber) -> Option<PortNumber> {
        let has_address =
            |mac: MacAddr, vlans: &Vlans| mac == key.mac() && key.vid().is_none_or(|vid| vlans.members().contains(vid));
        let mut heirs = self.ports().filter(|port| port.number != owner && has_address(port.mac, &port.vlans));
        let own = (owner != BRIDGE_DEVICE && has_address(self.mac, &self.vlans)).then_some(BRIDGE_DEVICE);
        heirs.next().map(Port::number).or(own)
    }

    /// Replaces the local entries of a port, or of the bridge.
    fn change_mac(&mut self, number: PortNumber, mac: MacAddr) {
        let old = self.mac_of(number);
        let keys =
            self.fdb.keys_of(number, |node| node.kind == FdbKind::Local && !node.is_by_user && node.key.mac() == old);
        for key in keys {
            self.remove_entry_of_port(key);
        }
        if number == BRIDGE_DEVICE {
            self.mac = mac;
        } else {
            self.port_mut(number).mac = mac;
        }
        for key in self.keys_of_request(number, mac, None) {
            self.fdb.add_local(key, number);
        }
    }

    /// Sorts the trunks, and flushes dynamic entries of trunks that are on standby in the entry's VLAN: those addresses
    /// are now reached through the active trunk.
    fn elect_trunks(&mut self) {
        let mut trunks: Vec<(_, PortId, PortNumber)> = self
            .ports()
            .filter_map(|port| Some((std::cmp::Reverse(port.config.trunk?), port.link, port.number)))
            .collect();
        trunks.sort_unstable();
        self.trunks = trunks.into_iter().map(|(_, _, number)| number).collect();
        if self.trunks.len() < 2 {
            return;
        }
        for number in self.trunks.clone() {
            let keys = self.fdb.keys_of(number, |node| {
                let vid = node.key.vid().filter(|_| self.vlan_filtering);
                node.kind == FdbKind::Dynamic && self.active_trunk(vid).is_some_and(|active| active != number)
            });
            for key in keys {
                self.fdb.remove(key);
            }
        }
    }
}

/// Checks that an address is a unicast address.
fn check_mac(mac: MacAddr) -> Result<(), BridgeError> {
    if mac.is_unicast() { Ok(()) } else { Err(BridgeError::Mac(mac)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant::ZERO;

    fn vid(number: u16) -> Vid {
        Vid::new(number).unwrap()
    }

    fn mac(n: u8) -> MacAddr {
        MacAddr([2, 0, 0, 0, 0, n])
    }

    fn station(n: u8) -> MacAddr {
        MacAddr([2, 1, 0, 0, 0, n])
    }

    /// A bridge of address 0 with ports 1 and 2 of addresses 1 and 2.
    fn bridge() -> Bridge {
        let mut bridge = Bridge::new(mac(0)).unwrap();
        for number in 1..=2 {
            assert_eq!(bridge.add_port(PortId(number), mac(number as u8), 1500), Ok(number as u16));
        }
        bridge
    }

    /// Entries as text, in order of addresses and VLANs.
    fn entries(bridge: &mut Bridge) -> Vec<String> {
        bridge.check_invariants();
        let mut entries: Vec<FdbEntry> = bridge.fdb_entries(NOW).collect();
        entries.sort_unstable_by_key(|entry| (entry.mac, entry.vid));
        let text = |entry: &FdbEntry| {
            let number = entry.vid.map_or(0, Vid::get);
            format!("{:x}/{number} {:?} {:?}", entry.mac.0[5], entry.port.map_or(0, |link| link.0), entry.kind)
        };
        entries.iter().map(text).collect()
    }

    fn request(port: Option<u32>, n: u8, vid: Option<Vid>, kind: FdbKind) -> FdbRequest {
        let port = port.map(PortId);
        FdbRequest { port, mac: station(n), vid, kind, is_sticky: false, create: true, exclusive: false }
    }

    #[test]
    fn new_port_has_local_entries_in_its_vlans() {
        let want = ["0/0 0 Local", "0/1 0 Local", "1/0 1 Local", "1/1 1 Local", "2/0 2 Local", "2/1 2 Local"];
        assert_eq!(entries(&mut bridge()), want);
    }

    #[test]
    fn port_is_added_once_and_its_number_is_reused() {
        let mut bridge = bridge();
        assert_eq!(bridge.add_port(PortId(1), mac(9), 1500), Err(BridgeError::PortExists(PortId(1))));
        for address in [MacAddr::ZERO, MacAddr::BROADCAST] {
            assert_eq!(bridge.add_port(PortId(9), address, 1500), Err(BridgeError::Mac(address)));
            assert_eq!(Bridge::new(address).err(), Some(BridgeError::Mac(address)));
        }
        bridge.remove_port(PortId(1)).unwrap();
        assert_eq!(bridge.remove_port(PortId(1)), Err(BridgeError::NoPort(PortId(1))));
        assert_eq!(bridge.add_port(PortId(7), mac(7), 1500), Ok(1));
        bridge.check_invariants();
    }

    #[test]
    fn bridge_has_at_most_1023_ports() {
        let mut bridge = Bridge::new(mac(0)).unwrap();
        for number in 1..=Bridge::MAX_PORTS as u32 {
            bridge.add_port(PortId(number), mac(1), 1500).unwrap();
        }
        assert_eq!(bridge.add_port(PortId(5000), mac(1), 1500), Err(BridgeError::TooManyPorts));
        bridge.remove_port(PortId(500)).unwrap();
        assert_eq!(bridge.add_port(PortId(5000), mac(1), 1500), Ok(500));
        bridge.check_invariants();
    }

    #[test]
    fn local_entry_passes_to_another_port_of_the_same_address() {
        let mut bridge = bridge();
        bridge.set_port_mac(PortId(2), mac(1)).unwrap();
        bridge.set_mac(mac(1)).unwrap();
        assert_eq!(entries(&mut bridge), ["1/0 1 Local", "1/1 1 Local"]);
        bridge.remove_port(PortId(1)).unwrap();
        assert_eq!(entries(&mut bridge), ["1/0 2 Local", "1/1 2 Local"]);
        // After leaving VLAN 1 the port keeps the entry without a VLAN.
        bridge.remove_vlans(Some(PortId(2)), vid(1), vid(1)).unwrap();
        assert_eq!(entries(&mut bridge), ["1/0 2 Local", "1/1 0 Local"]);
        bridge.remove_port(PortId(2)).unwrap();
        assert_eq!(entries(&mut bridge), ["1/0 0 Local", "1/1 0 Local"]);
        bridge.set_mac(mac(3)).unwrap();
        assert_eq!(entries(&mut bridge), ["3/0 0 Local", "3/1 0 Local"]);
    }

    #[test]
    fn removed_vlan_takes_its_dynamic_entries_along() {
        let mut bridge = bridge();
        bridge.add_vlans(Some(PortId(1)), vid(5), vid(7), VlanFlags::default()).unwrap();
        for (n, number, kind) in [(0x21, 5, FdbKind::Dynamic), (0x22, 5, FdbKind::Static), (0x23, 8, FdbKind::Dynamic)]
        {
            let added = bridge.add_fdb(NOW, &request(Some(1), n, Some(vid(number)), kind));
            assert_eq!(added, if number == 8 { Err(FdbError::NotInVlan(vid(8))) } else { Ok(()) });
        }
        assert_eq!(bridge.remove_vlans(Some(PortId(1)), vid(5), vid(6)), Ok(2));
        assert_eq!(bridge.remove_vlans(Some(PortId(1)), vid(5), vid(6)), Ok(0));
        let left = entries(&mut bridge);
        assert!(left.contains(&"22/5 1 Static".to_owned()) && left.contains(&"1/7 1 Local".to_owned()), "{left:?}");
        assert!(!left.iter().any(|entry| entry.starts_with("21/") || entry.starts_with("1/5")), "{left:?}");
    }

    #[test]
    fn vlan_ranges_are_checked() {
        let mut bridge = bridge();
        let port = Some(PortId(1));
        let pvid = VlanFlags::DEFAULT_PVID;
        let cases = [
            (bridge.add_vlans(port, vid(5), vid(4), VlanFlags::default()), Err(BridgeError::Range(vid(5), vid(4)))),
            (bridge.add_vlans(port, vid(4), vid(5), pvid), Err(BridgeError::PvidRange(vid(4), vid(5)))),
            (bridge.add_vlans(Some(PortId(9)), vid(4), vid(4), pvid), Err(BridgeError::NoPort(PortId(9)))),
            (bridge.remove_vlans(port, vid(5), vid(4)).map(|_| ()), Err(BridgeError::Range(vid(5), vid(4)))),
            (bridge.add_vlans(port, vid(1), vid(4094), VlanFlags::default()), Ok(())),
        ];
        for (got, want) in cases {
            assert_eq!(got, want);
        }
        let vlans = bridge.port(PortId(1)).unwrap().vlans();
        assert_eq!((vlans.members().len(), vlans.pvid(), vlans.untagged().is_empty()), (4094, None, true));
    }

    #[test]
    fn default_pvid_moves_ports_that_are_as_created() {
        let mut bridge = bridge();
        // Port 2 has other flags than the default, and keeps its VLANs.
        bridge.add_vlans(Some(PortId(2)), vid(1), vid(1), VlanFlags::default()).unwrap();
        bridge.set_vlan_filtering(true);
        assert_eq!(bridge.set_default_pvid(Some(vid(9))), Err(BridgeError::Filtering));
        assert_eq!(bridge.set_default_pvid(Some(vid(1))), Ok(()));
        bridge.set_vlan_filtering(false);
        bridge.set_default_pvid(Some(vid(9))).unwrap();
        let pvids = |bridge: &Bridge| {
            let ports = [1, 2].map(|link| bridge.port(PortId(link)).unwrap().vlans().pvid().map_or(0, Vid::get));
            (bridge.vlans().pvid().map_or(0, Vid::get), ports)
        };
        assert_eq!(pvids(&bridge), (9, [9, 0]));
        assert_eq!(bridge.port(PortId(1)).unwrap().vlans().members().len(), 1);
        bridge.set_default_pvid(None).unwrap();
        assert_eq!(pvids(&bridge), (0, [0, 0]));
        bridge.add_port(PortId(3), mac(3), 1500).unwrap();
        assert!(bridge.port(PortId(3)).unwrap().vlans().members().is_empty());
        // Without a default PVID before, every port joins that is not in the VLAN yet.
        bridge.set_default_pvid(Some(vid(1))).unwrap();
        assert_eq!(pvids(&bridge), (1, [1, 0]));
        bridge.check_invariants();
    }

    #[test]
    fn fdb_requests_have_linux_errors() {
        use FdbKind::{Dynamic, Local, Static};
        let mut bridge = bridge();
        let add = |bridge: &mut Bridge, request: FdbRequest| bridge.add_fdb(NOW, &request);
        let base = request(Some(1), 9, None, Static);
        let missing = Err(FdbError::Missing(station(9), None));
        assert_eq!(add(&mut bridge, FdbRequest { create: false, ..base }), missing);
        assert_eq!(add(&mut bridge, FdbRequest { exclusive: true, ..base }), Ok(()));
        assert_eq!(add(&mut bridge, FdbRequest { exclusive: true, ..base }), Err(FdbError::Exists(station(9), None)));
        assert_eq!(add(&mut bridge, FdbRequest { create: false, ..base }), Ok(()));
        assert_eq!(add(&mut bridge, FdbRequest { mac: MacAddr::ZERO, ..base }), Err(FdbError::ZeroAddress));
        assert_eq!(add(&mut bridge, FdbRequest { port: Some(PortId(9)), ..base }), Err(FdbError::NoPort(PortId(9))));
        for kind in [Static, Dynamic] {
            assert_eq!(add(&mut bridge, request(None, 8, None, kind)), Err(FdbError::NotLocal));
        }
        assert_eq!(add(&mut bridge, request(None, 8, None, Local)), Ok(()));
        let sticky = FdbRequest { is_sticky: true, ..request(Some(1), 7, None, Local) };
        assert_eq!(add(&mut bridge, sticky), Err(FdbError::StickyLocal));
        bridge.set_link_up(PortId(1), false).unwrap();
        let dynamic = request(Some(1), 7, None, Dynamic);
        assert_eq!(add(&mut bridge, dynamic), Err(FdbError::PortNotLearning(PortId(1))));
        assert_eq!(add(&mut bridge, request(Some(1), 7, None, Static)), Ok(()));
        bridge.check_invariants();
    }

    #[test]
    fn fdb_request_without_vlan_is_for_each_vlan_or_none() {
        let mut bridge = bridge();
        bridge.add_vlans(Some(PortId(1)), vid(5), vid(5), VlanFlags::default()).unwrap();
        bridge.add_fdb(NOW, &request(Some(1), 9, Some(vid(5)), FdbKind::Static)).unwrap();
        let exclusive = FdbRequest { exclusive: true, ..request(Some(1), 9, None, FdbKind::Static) };
        assert_eq!(bridge.add_fdb(NOW, &exclusive), Err(FdbError::Exists(station(9), Some(vid(5)))));
        assert_eq!(bridge.fdb_entry(NOW, station(9), None), None);
        bridge.add_fdb(NOW, &request(Some(1), 9, None, FdbKind::Dynamic)).unwrap();
        let found = [None, Some(vid(1)), Some(vid(5))].map(|vid| bridge.fdb_entry(NOW, station(9), vid).unwrap().kind);
        assert_eq!(found, [FdbKind::Dynamic; 3]);
        // Port 2 has no entry of that address.
        let missing = Err(FdbError::Missing(station(9), None));
        assert_eq!(bridge.remove_fdb(NOW, Some(PortId(2)), station(9), None), missing);
        assert_eq!(bridge.remove_fdb(NOW, Some(PortId(1)), station(9), Some(vid(5))), Ok(()));
        assert_eq!(bridge.remove_fdb(NOW, Some(PortId(1)), station(9), None), Ok(()));
        assert_eq!(bridge.remove_fdb(NOW, Some(PortId(1)), station(9), None), missing);
    }

    #[test]
    fn flush_removes_what_fits() {
        let filter = FlushFilter::default();
        let port = Some(Some(PortId(1)));
        // The six local entries; one static and one dynamic at each port, without a VLAN and in VLAN 1.
        let cases = [
            (filter, 4),
            (FlushFilter { statics: true, ..filter }, 8),
            (FlushFilter { statics: true, locals: true, ..filter }, 14),
            (FlushFilter { port, ..filter }, 2),
            (FlushFilter { port, statics: true, locals: true, ..filter }, 6),
            (FlushFilter { port: Some(None), locals: true, ..filter }, 2),
            (FlushFilter { vid: Some(vid(1)), ..filter }, 2),
            (FlushFilter { vid: Some(vid(2)), statics: true, locals: true, ..filter }, 0),
            (FlushFilter { port, vid: Some(vid(1)), statics: true, ..filter }, 2),
        ];
        for (filter, want) in cases {
            let mut bridge = bridge();
            for link in 1..=2 {
                bridge.add_fdb(NOW, &request(Some(link), 0x10 + link as u8, None, FdbKind::Static)).unwrap();
                bridge.add_fdb(NOW, &request(Some(link), 0x20 + link as u8, None, FdbKind::Dynamic)).unwrap();
            }
            assert_eq!((bridge.fdb_len(), bridge.flush_fdb(&filter)), (14, Ok(want)), "{filter:?}");
            assert_eq!(bridge.fdb_len(), 14 - want);
            bridge.check_invariants();
        }
        let unknown = FlushFilter { port: Some(Some(PortId(9))), ..filter };
        assert_eq!(bridge().flush_fdb(&unknown), Err(FdbError::NoPort(PortId(9))));
    }

    #[test]
    fn link_down_flushes_dynamic_entries_and_disables() {
        let mut bridge = bridge();
        bridge.add_fdb(NOW, &request(Some(1), 0x11, None, FdbKind::Static)).unwrap();
        bridge.add_fdb(NOW, &request(Some(1), 0x21, None, FdbKind::Dynamic)).unwrap();
        bridge.set_link_up(PortId(1), false).unwrap();
        assert_eq!(bridge.port(PortId(1)).unwrap().config().state, PortState::Disabled);
        assert_eq!(bridge.fdb_entry(NOW, station(0x21), None), None);
        assert!(bridge.fdb_entry(NOW, station(0x11), None).is_some());
        bridge.set_link_up(PortId(1), true).unwrap();
        assert_eq!(bridge.port(PortId(1)).unwrap().config().state, PortState::Forwarding);
    }

    #[test]
    fn timeout_removes_entries_at_their_deadline() {
        let mut bridge = bridge();
        assert_eq!(bridge.poll_timeout(), None);
        bridge.add_fdb(NOW, &request(Some(1), 9, Some(vid(1)), FdbKind::Dynamic)).unwrap();
        let deadline = NOW + Bridge::AGEING_TIME;
        assert_eq!(bridge.poll_timeout(), Some(deadline));
        assert_eq!(bridge.handle_timeout(deadline - Duration::from_nanos(1)), 0);
        assert_eq!((bridge.handle_timeout(deadline), bridge.poll_timeout()), (1, None));
    }

    #[test]
    fn default_pvid_keeps_port_with_other_untagged_flag() {
        let mut bridge = bridge();
        let tagged_pvid = VlanFlags { is_pvid: true, is_untagged: false };
        bridge.add_vlans(Some(PortId(1)), vid(1), vid(1), tagged_pvid).unwrap();
        bridge.set_default_pvid(Some(vid(2))).unwrap();
        assert_eq!(bridge.port(PortId(1)).unwrap().vlans().pvid(), Some(vid(1)));
        assert_eq!(bridge.port(PortId(2)).unwrap().vlans().pvid(), Some(vid(2)));
    }
}
