//! Entries of large tables on their way from the worker to a client.
//!
//! A row is made on the worker without an allocation, and completed on the thread of the client. The C library returns
//! a small block to the arena of the thread that allocated it, and merges thousands of them at that thread's next large
//! allocation, which would delay packets.

use std::net::{IpAddr, SocketAddr};

use arrayvec::ArrayVec;
use base::{Domain, DropReason, Instant, PortId};
use ctl::state::{
    Ages, DropState, FdbState, FlowState, IlaState, LimitState, NeighbourState, PmtuState, PolicySaState, PolicyState,
    SaState, SaStats,
};
use ctl::state::{SelectorState, TemplateState};
use fib::{Neighbour, PathMtu};
use ila::Mapping;
use ipsec::replay::ReplayWindow;
use ipsec::spd::Policy;
use ipsec::{Larval, Sa, State};
use switch::{FdbEntry, FdbKind, Vid};
use wire::FlowKey;
use xfrm::{Action, Algorithm, Dir, Level, MAX_TEMPLATES, MAX_WINDOW, Mark, Name, NatTraversal, SaConfig, SaFlags};

use crate::node::{LinkName, Node};
use crate::records::SaRecord;

const WINDOW_WORDS: usize = MAX_WINDOW.div_ceil(u32::BITS) as usize;

/// SA or larval SA.
pub(crate) struct SaRow {
    /// State with empty strings and lists, which allocate nothing.
    plain: SaState,
    state: State,
    algorithm: Option<&'static str>,
    auth: Option<&'static str>,
    flags: SaFlags,
    bitmap: ArrayVec<u32, WINDOW_WORDS>,
}

impl SaRow {
    /// An SA of the file.
    pub(crate) fn of_file(config: &SaConfig, sa: &Sa, now: Instant) -> Self {
        let mut row = Self::new(sa, &config.algorithm, now);
        row.flags = config.flags;
        row.plain = SaState {
            src: config.src,
            dir: config.dir,
            mode: config.mode,
            reqid: config.reqid,
            replay_window: config.replay_window,
            encap: config.encap,
            tfcpad: config.tfcpad,
            nat: config.nat,
            selector: config.selector.as_ref().map(Into::into),
            mark: mark(config.mark),
            output_mark: mark(config.output_mark),
            if_id: config.if_id,
            limit: (&config.lifetime).into(),
            ..row.plain
        };
        row
    }

    /// An SA of a netlink client, with the algorithm of the request that created it.
    pub(crate) fn added(sa: &Sa, now: Instant) -> Option<Self> {
        Some(Self::new(sa, &sa.request::<SaRecord>()?.request.algorithm, now))
    }

    /// An SA in its present state.
    fn new(sa: &Sa, algorithm: &Algorithm, now: Instant) -> Self {
        let stats = sa.stats();
        let plain = SaState {
            src: sa.src(),
            dst: sa.dst(),
            spi: sa.spi().0,
            state: String::new(),
            dir: sa.dir(),
            mode: sa.mode(),
            reqid: sa.reqid(),
            algorithm: None,
            key_bits: algorithm.key_bits(),
            auth: None,
            icv_bits: algorithm.icv_bits(),
            replay_window: sa.replay().size(),
            flags: Vec::new(),
            encap: sa.encap(),
            moved_to: sa.moved_to(),
            tfcpad: sa.tfcpad(),
            nat: sa.nat(),
            selector: sa.selector().map(Into::into),
            oseq: sa.oseq(),
            seq: sa.replay().top(),
            bitmap: Vec::new(),
            mark: mark(sa.mark()),
            output_mark: mark(sa.output_mark()),
            offload: None,
            if_id: sa.if_id(),
            cpu: sa.cpu(),
            worker: None,
            limit: (&sa.lifetime()).into(),
            dying: sa.is_dying(),
            ages: ages(now, sa.added(), sa.first_used()),
            last_used_secs: stats.last_used.map(|used| now.since(used).as_secs()),
            stats: SaStats {
                packets: stats.packets,
                bytes: stats.bytes,
                replay: stats.replay,
                replay_window: stats.replay_window,
                integrity_failed: stats.failed,
            },
        };
        Self {
            plain,
            state: sa.state(),
            algorithm: Some(algorithm.name()),
            auth: algorithm.auth().map(|auth| auth.name.name()),
            flags: sa.flags(),
            bitmap: bitmap(sa.replay()),
        }
    }

    /// A larval SA, without a key.
    pub(crate) fn larval(larval: &Larval) -> Self {
        let plain = SaState {
            src: larval.src,
            dst: larval.dst,
            spi: larval.spi.0,
            state: String::new(),
            dir: larval.dir,
            mode: larval.mode,
            reqid: larval.reqid,
            algorithm: None,
            key_bits: 0,
            auth: None,
            icv_bits: 0,
            replay_window: 0,
            flags: Vec::new(),
            encap: None,
            moved_to: None,
            tfcpad: 0,
            nat: NatTraversal::default(),
            selector: larval.selector.as_ref().map(Into::into),
            oseq: 0,
            seq: 0,
            bitmap: Vec::new(),
            mark: mark(larval.mark),
            output_mark: None,
            offload: None,
            if_id: larval.if_id,
            cpu: larval.cpu,
            worker: None,
            limit: LimitState::default(),
            dying: false,
            ages: Ages { add_secs: None, use_secs: None },
            last_used_secs: None,
            stats: SaStats::default(),
        };
        let (algorithm, auth, flags, bitmap) = (None, None, SaFlags::default(), ArrayVec::new_const());
        Self { plain, state: State::Acq, algorithm, auth, flags, bitmap }
    }

    /// The row, with the offload of the SA to a device.
    pub(crate) fn with_offload(mut self, offload: Option<String>) -> Self {
        self.plain.offload = offload;
        self
    }

    /// State for the client.
    pub(crate) fn complete(self) -> SaState {
        SaState {
            state: word(self.state).to_owned(),
            algorithm: self.algorithm.map(str::to_owned),
            auth: self.auth.map(str::to_owned),
            flags: self.flags.names().map(str::to_owned).collect(),
            bitmap: self.bitmap.to_vec(),
            ..self.plain
        }
    }
}

const fn word(state: State) -> &'static str {
    match state {
        State::Acq => "acq",
        State::Valid => "valid",
        State::Expired => "expired",
        State::Dead => "dead",
    }
}

/// Mark to show; `None` for any.
fn mark(mark: Mark) -> Option<Mark> {
    (mark != Mark::ANY).then_some(mark)
}

fn ages(now: Instant, added: Option<Instant>, used: Option<Instant>) -> Ages {
    let secs = |at: Option<Instant>| at.map(|at| now.since(at).as_secs());
    Ages { add_secs: secs(added), use_secs: secs(used) }
}

/// Bitmap of a replay window: bit `n`, counted from the first word's lowest, stands for the highest number less `n`.
fn bitmap(window: &ReplayWindow) -> ArrayVec<u32, WINDOW_WORDS> {
    let words = window.size().div_ceil(u32::BITS) as usize;
    let mut bitmap: ArrayVec<u32, WINDOW_WORDS> = std::iter::repeat_n(0, words.min(WINDOW_WORDS)).collect();
    for age in window.seen().map(|seq| (window.top() - seq) as usize) {
        if let Some(word) = bitmap.get_mut(age / 32) {
            *word |= 1 << (age % 32);
        }
    }
    bitmap
}

/// Policy.
pub(crate) struct PolicyRow {
    /// Number of the policy, the same in all shards.
    pub(crate) index: u32,
    dir: Dir,
    selector: SelectorState,
    priority: u32,
    action: Action,
    templates: ArrayVec<TemplateState, MAX_TEMPLATES>,
    mark: Option<Mark>,
    if_id: u32,
    limit: LimitState,
    ages: Ages,
    /// `None`: not known.
    lacks_sa: Option<bool>,
}

impl PolicyRow {
    pub(crate) fn new(policy: &Policy, now: Instant, lacks_sa: Option<bool>) -> Self {
        let config = &policy.config;
        Self {
            index: policy.index,
            dir: config.dir,
            selector: (&config.selector).into(),
            priority: config.priority,
            action: config.action,
            templates: config.templates.iter().take(MAX_TEMPLATES).map(Into::into).collect(),
            mark: mark(config.mark),
            if_id: config.if_id,
            limit: (&config.lifetime).into(),
            ages: ages(now, policy.added(), policy.used()),
            lacks_sa,
        }
    }

    /// Whether the policy has its SAs, if it requires any.
    pub(crate) fn needed_sa(self) -> Option<PolicySaState> {
        let template = self.templates.iter().rfind(|it| it.level == Level::Required).copied();
        let is_needed = self.action == Action::Allow && template.is_some();
        let Self { selector, dir, lacks_sa, .. } = self;
        is_needed.then_some(PolicySaState { selector, dir, without_sa: lacks_sa, template })
    }

    /// State for the client.
    pub(crate) fn complete(self) -> PolicyState {
        let Self { index: _, dir, selector, priority, action, templates, mark, if_id, limit, ages, lacks_sa } = self;
        let (templates, without_sa) = (templates.to_vec(), lacks_sa == Some(true));
        PolicyState { dir, selector, priority, action, templates, mark, if_id, limit, ages, without_sa }
    }
}

/// Neighbour.
pub(crate) struct NeighbourRow {
    pub(crate) neighbour: Neighbour,
    dev: Option<LinkName>,
}

impl NeighbourRow {
    pub(crate) fn new(node: &Node, neighbour: Neighbour) -> Self {
        Self { dev: node.short_name_of(neighbour.link), neighbour }
    }

    /// State for the client; `None` if the link has been removed.
    pub(crate) fn complete(self) -> Option<NeighbourState> {
        let Neighbour { addr, mac, state, queued, .. } = self.neighbour;
        Some(NeighbourState {
            to: addr,
            dev: self.dev?.to_string(),
            lladdr: mac.map(|mac| mac.to_string()),
            state: state.name().to_owned(),
            queued: queued as u32,
        })
    }
}

/// Entry of a bridge's forwarding database.
pub(crate) struct FdbRow {
    /// Link of the bridge's device.
    pub(crate) own: PortId,
    pub(crate) entry: FdbEntry,
    master: Option<LinkName>,
    dev: Option<LinkName>,
}

impl FdbRow {
    /// A row whose names [`set_names`](Self::set_names) sets.
    pub(crate) const fn new(own: PortId, entry: FdbEntry) -> Self {
        Self { own, entry, master: None, dev: None }
    }

    pub(crate) fn set_names(&mut self, node: &Node) {
        self.master = node.short_name_of(self.own);
        self.dev = node.short_name_of(self.entry.port.unwrap_or(self.own));
    }

    /// State for the client; `None` if the bridge or the port has been removed.
    pub(crate) fn complete(self) -> Option<FdbState> {
        let entry = self.entry;
        let state = match entry.kind {
            FdbKind::Local => "permanent",
            FdbKind::Static => "static",
            FdbKind::Dynamic => "dynamic",
        };
        Some(FdbState {
            mac: entry.mac.to_string(),
            dev: self.dev?.to_string(),
            vlan: entry.vid.map(Vid::get),
            master: self.master?.to_string(),
            state: state.to_owned(),
            sticky: entry.is_sticky,
            updated_secs: entry.updated.as_secs(),
            used_secs: entry.used.as_secs(),
        })
    }
}

/// Flow of a socket.
pub(crate) struct FlowRow {
    flow: FlowKey,
    vrf: Option<LinkName>,
}

impl FlowRow {
    pub(crate) fn new(node: &Node, domain: Domain, flow: FlowKey) -> Self {
        Self { flow, vrf: domain.vrf_device().and_then(|device| node.short_name_of(device)) }
    }

    /// State for the client.
    pub(crate) fn complete(self) -> FlowState {
        let Self { flow, vrf } = self;
        FlowState {
            proto: flow.protocol.to_string(),
            local: SocketAddr::new(flow.dst, flow.dport),
            peer: SocketAddr::new(flow.src, flow.sport),
            vrf: vrf.map(|vrf| vrf.to_string()),
        }
    }
}

/// Drops of a link for a reason; without a link, those of packets of this node.
pub(crate) struct DropRow {
    pub(crate) link: Option<PortId>,
    pub(crate) reason: DropReason,
    pub(crate) count: u64,
    name: Option<LinkName>,
}

impl DropRow {
    /// `None` if the link is removed.
    pub(crate) fn new(node: &Node, link: Option<PortId>, reason: DropReason, count: u64) -> Option<Self> {
        let name = match link {
            Some(link) => Some(node.short_name_of(link)?),
            None => None,
        };
        Some(Self { link, reason, count, name })
    }

    /// State for the client.
    pub(crate) fn complete(self) -> DropState {
        let Self { reason, count, name, .. } = self;
        DropState { link: name.map(|name| name.to_string()), reason: reason.name().to_owned(), count }
    }
}

/// Learnt path MTU.
pub(crate) struct PmtuRow {
    to: IpAddr,
    vrf: Option<LinkName>,
    mtu: u32,
    expires_secs: u64,
}

impl PmtuRow {
    pub(crate) fn new(node: &Node, (domain, to): (Domain, IpAddr), known: PathMtu, now: Instant) -> Self {
        let vrf = domain.vrf_device().and_then(|device| node.short_name_of(device));
        Self { to, vrf, mtu: known.mtu as u32, expires_secs: known.expires.since(now).as_secs() }
    }

    /// State for the client.
    pub(crate) fn complete(self) -> PmtuState {
        let Self { to, vrf, mtu, expires_secs } = self;
        PmtuState { to, vrf: vrf.map(|vrf| vrf.to_string()), mtu, expires_secs }
    }
}

/// ILA mapping.
pub(crate) struct IlaRow {
    pub(crate) mapping: Mapping,
    /// Name of the device, or its index if it has none.
    interface: Option<Result<LinkName, u32>>,
}

impl IlaRow {
    pub(crate) fn new(node: &Node, mapping: Mapping) -> Self {
        let name = |id| node.short_name_of(id).ok_or_else(|| node.ifindex(id).0);
        Self { interface: mapping.link.map(name), mapping }
    }

    /// State for the client.
    pub(crate) fn complete(self) -> IlaState {
        let mapping = self.mapping;
        let name = |found| match found {
            Ok(name) => LinkName::to_string(&name),
            Err(_) if mapping.link == Some(PortId::LOOPBACK) => "lo".to_owned(),
            Err(index) => format!("if{index}"),
        };
        IlaState {
            locator_match: mapping.locator_match,
            identifier: mapping.identifier.map(|identifier| identifier.to_string()),
            locator: mapping.locator,
            interface: self.interface.map(name),
            csum_mode: mapping.csum_mode.name().to_owned(),
            ident_type: mapping.ident_type.name().to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use base::{Counters, Prefix};
    use ipsec::Ipsec;
    use wire::Protocol;
    use xfrm::{Flowi, Mode, SaDir};

    use super::*;

    #[test]
    fn acquired_sa_is_shown_until_it_is_added_or_expires() {
        let any = xfrm::Selector::new(Prefix::ANY_V4, Prefix::ANY_V4);
        let [src, dst] = ["192.0.2.1", "192.0.2.2"].map(|addr| addr.parse().unwrap());
        let (mode, level) = (xfrm::Mode::Tunnel, xfrm::Level::Required);
        let template = xfrm::Template { src: Some(src), dst: Some(dst), spi: None, mode, reqid: 4, level };
        let policy = xfrm::PolicyConfig { templates: vec![template], ..xfrm::PolicyConfig::new(xfrm::Dir::Out, any) };
        let mut ipsec = Ipsec::new();
        ipsec.add_policy(policy).unwrap();
        ipsec.set_listener(true);
        let [from, to] = ["10.0.0.1", "10.0.0.2"].map(|addr| addr.parse().unwrap());
        let flow = FlowKey { src: from, dst: to, protocol: Protocol::UDP, sport: 8, dport: 9 };
        let (now, mut counters) = (Instant::ZERO, Counters::default());
        ipsec.lookup(now, &Flowi::from(flow), &mut counters);
        let shown =
            |ipsec: &Ipsec| ipsec.sad().larvae().map(|larval| SaRow::larval(larval).complete()).collect::<Vec<_>>();
        let states = shown(&ipsec);
        let [state] = states.as_slice() else { panic!("{states:?}") };
        assert_eq!((state.src, state.dst, state.spi, state.state.as_str()), (src, dst, 0, "acq"));
        assert_eq!((state.mode, state.reqid, state.dir), (Mode::Tunnel, 4, Some(SaDir::Out)));
        let selector = state.selector.unwrap();
        assert_eq!((selector.src, selector.dst), (Prefix::host(from), Prefix::host(to)));
        assert_eq!((selector.proto, selector.sport, selector.dport), (Some(17), Some(8), Some(9)));
        ipsec.handle_timeout(now + Duration::from_secs(30), &mut counters);
        assert!(shown(&ipsec).is_empty());
    }

    #[test]
    fn a_window_is_shown_from_its_highest_number_down() {
        let mut window = ReplayWindow::new(64, false, 0);
        assert_eq!(bitmap(&window).as_slice(), [0, 0]);
        for seq in [1, 3, 40] {
            window.mark(seq).unwrap();
        }
        assert_eq!(bitmap(&window).as_slice(), [1, 1 << (37 - 32) | 1 << (39 - 32)]);
        assert!(bitmap(&ReplayWindow::new(0, false, 0)).is_empty());
    }
}
