//! Tunnels of a gateway: its policies and SAs, grouped by outer addresses and reqid, and a verdict on each.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use base::Prefix;
use ctl::state::{LinkState, PeerErrorState, PolicyState, SaState};
use serde::Serialize;
use xfrm::{Dir, SaDir};

use super::ike::IkeStatus;

/// Seconds without a received packet after which a tunnel is idle.
const IDLE_SECS: u64 = 120;

/// Seconds since the last accepted packet after which refused packets decide: the counters of refused packets have no
/// time.
const RECENT_SECS: u64 = 10;

/// State of a tunnel.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum TunnelState {
    /// A packet was received in the last two minutes.
    Up,
    /// The SAs exist, and nothing was received for two minutes, or ever.
    Idle,
    /// Packets cannot pass.
    Down,
}

impl TunnelState {
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Idle => "idle",
            Self::Down => "down",
        }
    }
}

/// One tunnel, or one pair of hosts in transport mode.
#[derive(Clone, Debug, Serialize)]
pub(super) struct TunnelStatus {
    /// Outer address of this end.
    pub(super) local: IpAddr,
    /// Outer address of the peer, with the UDP port of ESP in UDP; the address it has moved to, if it has.
    pub(super) peer: String,
    /// Number that matches SAs to policies; 0 for none.
    pub(super) reqid: u32,
    /// State.
    pub(super) state: TunnelState,
    /// Reason for the state.
    pub(super) why: Option<String>,
    /// Protected networks, `local > remote`.
    pub(super) networks: Vec<String>,
    /// Seconds since the last received packet.
    pub(super) received_secs: Option<u64>,
    /// Bytes received by the present SAs.
    pub(super) rx_bytes: u64,
    /// Bytes sent by the present SAs.
    pub(super) tx_bytes: u64,
    /// Received bits a second between two samples.
    pub(super) rx_bits_per_second: Option<u64>,
    /// Sent bits a second between two samples.
    pub(super) tx_bits_per_second: Option<u64>,
    /// Seconds until the next rekeying, as charon says, or for SAs with a limit of time.
    pub(super) rekey_secs: Option<u64>,
    /// State of IKE, if charon manages the tunnel.
    pub(super) ike: Option<IkeStatus>,
    /// Reason for which charon says nothing about a tunnel that needs SAs of it.
    pub(super) charon: Option<String>,
    /// Facts about its SAs.
    #[serde(skip)]
    pub(super) keying: Keying,
}

/// Facts by which a tunnel and the SAs of a key manager belong together.
#[derive(Clone, Debug)]
pub(super) struct Keying {
    /// Outer address of the peer in the policies.
    pub(super) peer: IpAddr,
    /// Outer address that the peer has moved to.
    pub(super) moved_to: Option<IpAddr>,
    /// Networks of this end and of the peer.
    pub(super) networks: Vec<(Prefix, Prefix)>,
    /// SPIs of the SAs that receive.
    pub(super) spis_in: Vec<u32>,
    /// SPIs of the SAs that send.
    pub(super) spis_out: Vec<u32>,
    /// Whether a key manager has been asked for SAs.
    pub(super) is_larval: bool,
    /// Whether SAs are missing in a direction.
    pub(super) needs_sas: bool,
    /// Whether it has a policy without reqid, which any SA of the peer matches, such as that of `keys = "ike"`.
    pub(super) has_open_policy: bool,
}

impl TunnelStatus {
    /// Replaces the general reason for missing SAs; another reason stays.
    pub(super) fn explain(&mut self, why: &str) {
        if self.why.as_deref().is_some_and(|why| [ASKED, NO_SA].contains(&why)) {
            self.why = Some(why.to_owned());
        }
    }
}

/// Reason of a tunnel for whose SAs a key manager has been asked.
const ASKED: &str = "no SA yet: a key manager has been asked for one";
/// Reason of a tunnel without SAs.
const NO_SA: &str = "the policy has no SA: add SAs, or start a key manager";

/// Key of a tunnel: outer addresses of this end and of the peer, and the reqid.
pub(super) type TunnelKey = (IpAddr, IpAddr, u32);

/// Policies and SAs of a tunnel.
#[derive(Debug, Default)]
struct Parts<'a> {
    networks: Vec<(Prefix, Prefix)>,
    outbound: Vec<&'a SaState>,
    inbound: Vec<&'a SaState>,
    /// Larval SAs, which a key manager has been asked for.
    larval: bool,
    has_open_policy: bool,
}

/// Tunnels of the policies and SAs of a gateway, in the order of their keys.
pub(super) fn tunnels(
    links: &[LinkState],
    policies: &[PolicyState],
    sas: &[SaState],
) -> Vec<(TunnelKey, TunnelStatus)> {
    let mut parts: BTreeMap<TunnelKey, Parts<'_>> = BTreeMap::new();
    for policy in policies.iter().filter(|policy| policy.dir == Dir::Out) {
        for template in &policy.templates {
            let selector = &policy.selector;
            let local = template.src.unwrap_or_else(|| selector.src.addr());
            let peer = template.dst.unwrap_or_else(|| selector.dst.addr());
            let part = parts.entry((local, peer, template.reqid)).or_default();
            part.has_open_policy |= template.reqid == 0;
            let network = (selector.src, selector.dst);
            if !part.networks.contains(&network) {
                part.networks.push(network);
            }
        }
    }
    for sa in sas {
        let is_inbound = match sa.dir {
            Some(dir) => dir == SaDir::In,
            None => links.iter().any(|link| link.addresses.iter().any(|own| own.addr() == sa.dst)),
        };
        let (local, peer) = if is_inbound { (sa.dst, sa.src) } else { (sa.src, sa.dst) };
        let part = parts.entry((local, peer, sa.reqid)).or_default();
        match (sa.state.as_str(), is_inbound) {
            ("acq", _) => part.larval = true,
            ("valid", true) => part.inbound.push(sa),
            ("valid", false) => part.outbound.push(sa),
            _ => {}
        }
    }
    fold(&mut parts);
    let errors: Vec<&PeerErrorState> = links.iter().flat_map(|link| &link.peer_errors).collect();
    let statuses = parts.into_iter().map(|(key, part)| (key, part.status(key, &errors)));
    statuses.collect()
}

/// Folds policies without a reqid and without SAs, such as those of `keys = "ike"`, into the parts of a key manager
/// that uses the same addresses: their SAs carry the packets, and its policies precede them.
fn fold(parts: &mut BTreeMap<TunnelKey, Parts<'_>>) {
    let is_bare = |(key, part): (&TunnelKey, &Parts<'_>)| (key.2 == 0 && !part.has_sas()).then_some(*key);
    let bare: Vec<TunnelKey> = parts.iter().filter_map(is_bare).collect();
    for key in bare {
        let Some(mut part) = parts.remove(&key) else { continue };
        let (local, peer, _) = key;
        let mut managed: Vec<&mut Parts<'_>> =
            parts.range_mut((local, peer, 1)..=(local, peer, u32::MAX)).map(|(_, part)| part).collect();
        part.networks.retain(|network| {
            let mut is_others = false;
            for other in managed.iter_mut().filter(|other| other.networks.contains(network)) {
                other.has_open_policy = true;
                is_others = true;
            }
            !is_others
        });
        let target = match managed.iter().position(|other| other.has_sas()) {
            Some(at) => Some(at),
            // Neither has SAs: policies for the same networks are one tunnel.
            None if part.networks.is_empty() && !managed.is_empty() => Some(0),
            None => None,
        };
        match target {
            Some(at) => {
                managed[at].networks.append(&mut part.networks);
                managed[at].larval |= part.larval;
                managed[at].has_open_policy = true;
            }
            None => {
                parts.insert(key, part);
            }
        }
    }
}

impl Parts<'_> {
    const fn has_sas(&self) -> bool {
        !self.outbound.is_empty() || !self.inbound.is_empty()
    }

    fn status(&self, (local, peer, reqid): TunnelKey, errors: &[&PeerErrorState]) -> TunnelStatus {
        let received_secs = self.inbound.iter().filter_map(|sa| sa.last_used_secs).min();
        // An error since the last received packet.
        let error = errors
            .iter()
            .find(|error| error.peer.ip() == peer && received_secs.is_none_or(|received| error.last_secs < received));
        let (state, why) = match error {
            Some(error) => {
                let ago = error.last_secs;
                (TunnelState::Down, Some(format!("{}: {} {ago}s ago", error.peer, reported(&error.error))))
            }
            None => self.verdict(received_secs),
        };
        let newest = self.outbound.last();
        let port = newest.and_then(|sa| sa.encap).map(|encap| encap.dport);
        let keying = Keying {
            peer,
            moved_to: newest.and_then(|sa| sa.moved_to).map(|moved| moved.ip()),
            networks: self.networks.clone(),
            spis_in: self.inbound.iter().map(|sa| sa.spi).collect(),
            spis_out: self.outbound.iter().map(|sa| sa.spi).collect(),
            is_larval: self.larval,
            needs_sas: self.outbound.is_empty() || self.inbound.is_empty(),
            has_open_policy: self.has_open_policy,
        };
        let peer = match (newest.and_then(|sa| sa.moved_to), port) {
            (Some(moved), _) => moved.to_string(),
            (None, Some(port)) => SocketAddr::new(peer, port).to_string(),
            (None, None) => peer.to_string(),
        };
        let until_soft = |sa: &&SaState| Some(sa.limit.soft.add_secs?.saturating_sub(sa.ages.add_secs?));
        TunnelStatus {
            local,
            peer,
            reqid,
            state,
            why,
            networks: self.networks.iter().map(|(local, remote)| format!("{local} > {remote}")).collect(),
            received_secs,
            rx_bytes: self.inbound.iter().map(|sa| sa.stats.bytes).sum(),
            tx_bytes: self.outbound.iter().map(|sa| sa.stats.bytes).sum(),
            rx_bits_per_second: None,
            tx_bits_per_second: None,
            rekey_secs: self.outbound.iter().filter_map(until_soft).max(),
            ike: None,
            charon: None,
            keying,
        }
    }

    /// State and its reason.
    fn verdict(&self, received_secs: Option<u64>) -> (TunnelState, Option<String>) {
        let down = |why: &str| (TunnelState::Down, Some(why.to_owned()));
        match (self.outbound.is_empty(), self.inbound.is_empty()) {
            (true, _) if self.larval => return down(ASKED),
            (true, true) => return down(NO_SA),
            (true, false) => return down("no SA towards the peer"),
            (false, true) => return down("no SA from the peer"),
            (false, false) => {}
        }
        if self.networks.is_empty() && self.outbound.iter().all(|sa| sa.stats.packets == 0) {
            return down("no policy of dir out uses its SAs");
        }
        let sum = |count: fn(&SaState) -> u64| self.inbound.iter().map(|sa| count(sa)).sum::<u64>();
        let failed = sum(|sa| sa.stats.integrity_failed);
        let replayed = sum(|sa| sa.stats.replay + sa.stats.replay_window);
        let is_recent = received_secs.is_some_and(|secs| secs <= RECENT_SECS);
        let refused = match (failed, replayed) {
            (0, 0) => None,
            (0, n) => {
                Some(format!("{n} packets are replays: the peer's numbers went back, as after a restart without state"))
            }
            (n, _) => Some(format!("{n} packets fail their ICV: another key, or the peer was restarted without state")),
        };
        match (refused, received_secs) {
            (Some(refused), _) if !is_recent => (TunnelState::Down, Some(refused)),
            (refused, Some(secs)) if secs < IDLE_SECS => (TunnelState::Up, refused),
            (_, None) => {
                let sent = self.outbound.iter().map(|sa| sa.stats.packets).sum::<u64>();
                let why =
                    if sent > 0 { format!("nothing received, {sent} packets sent") } else { "never used".to_owned() };
                (TunnelState::Idle, Some(why))
            }
            _ => (TunnelState::Idle, None),
        }
    }
}

/// Description of an error that the network has reported.
fn reported(error: &str) -> &str {
    if error.starts_with("Connection refused") { "port unreachable" } else { error }
}

#[cfg(test)]
impl TunnelStatus {
    /// A tunnel from 192.0.2.1 that is down, without networks and SAs.
    pub(super) fn of_peer(peer: &str, reqid: u32) -> Self {
        let parts = Parts { larval: true, ..Parts::default() };
        parts.status((IpAddr::from([192, 0, 2, 1]), peer.parse().unwrap(), reqid), &[])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sa(dir: &str, state: &str) -> SaState {
        let (src, dst) = if dir == "out" { ("192.0.2.1", "192.0.2.2") } else { ("192.0.2.2", "192.0.2.1") };
        let json = format!(
            r#"{{"src":"{src}","dst":"{dst}","spi":1,"state":"{state}","dir":"{dir}","mode":"tunnel","reqid":1,
            "algorithm":null,"key_bits":0,"auth":null,"icv_bits":0,"replay_window":0,"flags":[],"encap":null,
            "moved_to":null,"tfcpad":0,"nat":{{"keepalive_interval":0,"mapping_threshold":0,"follow":false}},"selector":null,"oseq":0,"seq":0,"bitmap":[],"mark":null,
            "output_mark":null,"if_id":0,"limit":{{"soft":{{}},"hard":{{}}}},"dying":false,"ages":{{}},
            "stats":{{"packets":0,"bytes":0,"replay":0,"replay_window":0,"integrity_failed":0}}}}"#
        );
        serde_json::from_str(&json).unwrap()
    }

    fn verdict(change: impl Fn(&mut SaState, &mut SaState)) -> (TunnelState, Option<String>) {
        let (mut out, mut input) = (sa("out", "valid"), sa("in", "valid"));
        out.stats.packets = 4;
        change(&mut out, &mut input);
        let sas = [out, input];
        let found = tunnels(&[], &[], &sas);
        let [(_, status)] = found.as_slice() else { panic!("{found:?}") };
        (status.state, status.why.clone())
    }

    fn policy(reqid: u32, src: &str) -> PolicyState {
        let json = format!(
            r#"{{"dir":"out","priority":0,"action":"allow","mark":null,"if_id":0,"templates":[{{"src":"192.0.2.1",
            "dst":"192.0.2.2","mode":"tunnel","reqid":{reqid},"level":"required"}}],"limit":{{"soft":{{}},"hard":{{}}}},
            "selector":{{"src":"{src}","dst":"10.2.0.0/24","proto":null,"sport":null,"dport":null}},"ages":{{}}}}"#
        );
        serde_json::from_str(&json).unwrap()
    }

    #[test]
    fn policies_without_reqid_belong_to_the_managed_tunnel() {
        /// Reqids and networks of policies, SAs with direction, state and reqid, and the result.
        type Case<'a> = (&'a [(u32, &'a str)], &'a [(&'a str, &'a str, u32)], &'a str);
        let found = |policies: &[(u32, &str)], sas: &[(&str, &str, u32)]| {
            let policies: Vec<_> = policies.iter().map(|(reqid, src)| policy(*reqid, src)).collect();
            let sas: Vec<_> =
                sas.iter().map(|(dir, state, reqid)| SaState { reqid: *reqid, ..sa(dir, state) }).collect();
            let found = tunnels(&[], &policies, &sas);
            let line = |((_, _, reqid), status): &(TunnelKey, TunnelStatus)| {
                let networks: Vec<&str> = status.networks.iter().filter_map(|n| n.split('/').next()).collect();
                format!("{reqid} {} {}", status.state.word(), networks.join(","))
            };
            found.iter().map(line).collect::<Vec<_>>().join("; ")
        };
        let (one, two) = ("10.1.0.0/24", "10.3.0.0/24");
        let pair = [("out", "valid", 7), ("in", "valid", 7)];
        let cases: &[Case<'_>] = &[
            (&[(0, one)], &[], "0 down 10.1.0.0"),
            (&[(0, one), (7, one)], &pair, "7 idle 10.1.0.0"),
            (&[(0, one)], &pair, "7 idle 10.1.0.0"),
            (&[(0, one), (0, two), (7, one)], &pair, "7 idle 10.1.0.0,10.3.0.0"),
            // A network of another child of the key manager is that child's.
            (&[(0, one), (0, two), (7, one), (8, two)], &pair, "7 idle 10.1.0.0; 8 down 10.3.0.0"),
            // Before the first SA.
            (&[(0, one), (7, one)], &[], "7 down 10.1.0.0"),
            (&[(0, one), (0, two), (7, one)], &[], "0 down 10.3.0.0; 7 down 10.1.0.0"),
            (&[(0, one), (7, one)], &[("out", "acq", 0)], "7 down 10.1.0.0"),
            // SAs without a reqid are a tunnel of their own.
            (&[(0, one), (7, two)], &[("out", "valid", 0)], "0 down 10.1.0.0; 7 down 10.3.0.0"),
        ];
        for (policies, sas, want) in cases {
            assert_eq!(found(policies, sas), *want, "{policies:?} with {sas:?}");
        }
    }

    #[test]
    fn tunnel_is_up_idle_or_down_by_its_sas() {
        let (state, why) = verdict(|_, input| input.last_used_secs = Some(3));
        assert_eq!((state, why), (TunnelState::Up, None));
        let (state, why) = verdict(|_, input| input.last_used_secs = Some(121));
        assert_eq!((state, why), (TunnelState::Idle, None));
        let (state, why) = verdict(|_, _| {});
        assert_eq!((state, why.as_deref()), (TunnelState::Idle, Some("nothing received, 4 packets sent")));
        let (state, why) = verdict(|_, input| input.stats.integrity_failed = 5);
        assert_eq!(state, TunnelState::Down);
        assert!(why.unwrap().starts_with("5 packets fail their ICV: another key"));
        let (state, why) = verdict(|_, input| (input.stats.replay, input.last_used_secs) = (2, Some(30)));
        assert_eq!(state, TunnelState::Down);
        assert!(why.unwrap().contains("2 packets are replays"));
        let (state, why) = verdict(|_, input| (input.stats.integrity_failed, input.last_used_secs) = (5, Some(1)));
        assert_eq!(state, TunnelState::Up, "{why:?}");
        assert!(why.unwrap().contains("5 packets fail"));
        let (state, why) = verdict(|out, _| out.stats.packets = 0);
        assert_eq!((state, why.as_deref()), (TunnelState::Down, Some("no policy of dir out uses its SAs")));
        let (state, why) = verdict(|out, _| out.state = "expired".to_owned());
        assert_eq!((state, why.as_deref()), (TunnelState::Down, Some("no SA towards the peer")));
        let (state, why) = verdict(|out, _| out.state = "acq".to_owned());
        assert_eq!(
            (state, why.as_deref()),
            (TunnelState::Down, Some("no SA yet: a key manager has been asked for one"))
        );
    }
}
