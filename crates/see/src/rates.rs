//! Rates of a gateway between two of its answers: the numbers of `fatpath top` and of the page.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::time::Duration;

use base::DropReason;
use ctl::state::{DropState, LinkState, PolicySaState, SaSumState, SaSumsState, WorkerState};
use serde::Serialize;
use xfrm::{Dir, SaDir};

use crate::scrape::Sample;

/// Time for which an error that the network reports about a peer makes its tunnel faulty, in seconds.
const PEER_ERROR_SECS: u64 = 3;

/// State of a gateway, with its rates if there is an answer before.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Picture {
    pub(crate) version: String,
    /// Start of the process, in milliseconds since the Unix epoch.
    pub(crate) started_ms: u64,
    /// Age of the process.
    pub(crate) up_secs: u64,
    pub(crate) memory: u64,
    pub(crate) memory_limit: Option<u64>,
    /// SAs: all, those that have reached a soft limit, and larval ones.
    pub(crate) sas: u64,
    pub(crate) dying: u64,
    pub(crate) larval: u64,
    /// Links, in the order of the gateway.
    pub(crate) links: Vec<LinkRates>,
    /// `None`: there are too many SAs or policies to ask for.
    pub(crate) tunnels: Option<Vec<TunnelRates>>,
    /// Policies that need an SA and have none.
    pub(crate) without_sa: Vec<PolicySaState>,
    pub(crate) drops: Vec<DropRates>,
    pub(crate) workers: Vec<WorkerRates>,
}

/// Rates of a link; `None` without an answer before.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct LinkRates {
    pub(crate) name: String,
    pub(crate) kind: String,
    pub(crate) on: Option<String>,
    pub(crate) vrf: Option<String>,
    pub(crate) bridge: Option<String>,
    pub(crate) up: bool,
    pub(crate) why_down: Option<String>,
    /// Bits a second.
    pub(crate) received: Option<f64>,
    pub(crate) sent: Option<f64>,
    /// Packets of the wire a second.
    pub(crate) received_packets: Option<f64>,
    pub(crate) sent_packets: Option<f64>,
    /// Packets of the wire for each system call.
    pub(crate) per_call: Option<f64>,
    /// Drops a second, and since the link was made.
    pub(crate) drop_rate: Option<f64>,
    pub(crate) drops: u64,
}

/// Rates of the SAs between two outer addresses.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct TunnelRates {
    pub(crate) name: Option<String>,
    pub(crate) local: Option<IpAddr>,
    pub(crate) remote: Option<IpAddr>,
    pub(crate) reqid: u32,
    /// Bits a second.
    pub(crate) received: Option<f64>,
    pub(crate) sent: Option<f64>,
    /// Milliseconds until the first of the two directions has no SA any more.
    pub(crate) ends_ms: Option<u64>,
    /// Reason for which packets do not get through, as far as the gateway knows.
    pub(crate) fault: Option<String>,
}

/// Rate of the drops for a reason at a link.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct DropRates {
    pub(crate) reason: String,
    pub(crate) link: Option<String>,
    /// Packets a second.
    pub(crate) rate: Option<f64>,
    pub(crate) count: u64,
    pub(crate) cause: Option<String>,
    pub(crate) remedy: Option<String>,
}

/// Rates of a worker.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct WorkerRates {
    pub(crate) worker: u8,
    /// Share of its time.
    pub(crate) busy: Option<f64>,
    pub(crate) wakeups: Option<f64>,
    pub(crate) bursts: Option<f64>,
    pub(crate) received_packets: Option<f64>,
    pub(crate) sent_packets: Option<f64>,
    pub(crate) queued: u64,
    pub(crate) sealing: u64,
    pub(crate) opening: u64,
}

/// An earlier answer of the same process, and the time since then.
#[derive(Debug)]
struct Before<'a> {
    sample: &'a Sample,
    seconds: f64,
}

impl Before<'_> {
    /// Rate of a counter.
    fn rate(&self, before: u64, now: u64) -> f64 {
        now.saturating_sub(before) as f64 / self.seconds
    }
}

impl Picture {
    /// Picture of `now`, with rates since `before`, unless the gateway was started anew between them.
    pub(crate) fn between(before: Option<&Sample>, now: &Sample) -> Self {
        let before = before
            .filter(|before| before.summary.started_ms == now.summary.started_ms)
            .map(|before| Before { sample: before, seconds: (now.taken - before.taken).as_secs_f64() })
            .filter(|before| before.seconds > 0.0);
        let before = before.as_ref();
        let summary = &now.summary;
        let without_sa = now.sums.iter().flat_map(|sums| &sums.policies);
        Self {
            version: summary.version.clone(),
            started_ms: summary.started_ms,
            up_secs: now.at.saturating_sub(Duration::from_millis(summary.started_ms)).as_secs(),
            memory: summary.memory.used,
            memory_limit: summary.memory.limit,
            sas: summary.sas.valid + summary.sas.dying,
            dying: summary.sas.dying,
            larval: summary.sas.larval,
            links: links(before, now),
            tunnels: now.sums.as_ref().map(|sums| tunnels(before, now, sums)),
            without_sa: without_sa.filter(|policy| policy.without_sa == Some(true)).copied().collect(),
            drops: drops(before, now),
            workers: workers(before, now),
        }
    }
}

fn links(before: Option<&Before<'_>>, now: &Sample) -> Vec<LinkRates> {
    let old: HashMap<&str, &LinkState> =
        before.iter().flat_map(|before| &before.sample.links).map(|link| (link.name.as_str(), link)).collect();
    let of = |link: &LinkState| {
        // Counters of a link that was made anew begin at 0.
        let found = before.zip(old.get(link.name.as_str()).filter(|old| old.index == link.index));
        let rate = |count: fn(&LinkState) -> u64| found.map(|(before, old)| before.rate(count(old), count(link)));
        let calls = rate(|it| it.stats.rx_calls + it.stats.tx_calls).filter(|calls| *calls > 0.0);
        let packets = rate(|it| it.stats.rx_wire_packets + it.stats.tx_wire_packets);
        LinkRates {
            name: link.name.clone(),
            kind: link.kind.clone(),
            on: link.on.clone(),
            vrf: link.vrf.clone(),
            bridge: link.port.as_ref().map(|port| port.bridge.clone()),
            up: link.up,
            why_down: link.why_down.clone(),
            received: rate(|it| it.stats.rx_bytes).map(bits),
            sent: rate(|it| it.stats.tx_bytes).map(bits),
            received_packets: rate(|it| it.stats.rx_wire_packets),
            sent_packets: rate(|it| it.stats.tx_wire_packets),
            per_call: packets.zip(calls).map(|(packets, calls)| packets / calls),
            drop_rate: rate(|it| it.stats.rx_dropped + it.stats.tx_dropped),
            drops: link.stats.rx_dropped + link.stats.tx_dropped,
        }
    };
    now.links.iter().map(of).collect()
}

/// Bits of a number of bytes.
fn bits(bytes: f64) -> f64 {
    8.0 * bytes
}

/// Outer addresses of this end and of the peer, and the reqid.
type TunnelEnds = (Option<IpAddr>, Option<IpAddr>, u32);

/// Whether the SAs of a sum receive, with the ends of their tunnel.
fn ends_of(sum: &SaSumState) -> (bool, TunnelEnds) {
    match sum.dir {
        SaDir::In => (true, (Some(sum.dst), Some(sum.src), sum.reqid)),
        SaDir::Out => (false, (Some(sum.src), Some(sum.dst), sum.reqid)),
    }
}

/// Ends of the tunnel that a policy needs.
fn ends_for(policy: &PolicySaState) -> Option<TunnelEnds> {
    let template = policy.template.as_ref()?;
    Some(match policy.dir {
        Dir::Out => (template.src, template.dst, template.reqid),
        _ => (template.dst, template.src, template.reqid),
    })
}

fn tunnels(before: Option<&Before<'_>>, now: &Sample, sums: &SaSumsState) -> Vec<TunnelRates> {
    let old: HashMap<(bool, TunnelEnds), u64> = before
        .and_then(|before| before.sample.sums.as_ref())
        .iter()
        .flat_map(|sums| &sums.sums)
        .map(|sum| (ends_of(sum), sum.bytes))
        .collect();
    let mut all: BTreeMap<TunnelEnds, TunnelRates> = BTreeMap::new();
    for sum in &sums.sums {
        let (is_in, ends) = ends_of(sum);
        let tunnel = all.entry(ends).or_default();
        let old = old.get(&(is_in, ends));
        let rate = before.zip(old).map(|(before, old)| bits(before.rate(*old, sum.bytes)));
        *(if is_in { &mut tunnel.received } else { &mut tunnel.sent }) = rate;
        tunnel.ends_ms = tunnel.ends_ms.into_iter().chain(sum.expires_ms).min();
    }
    // One without any SA so far has no sum.
    for policy in sums.policies.iter().filter(|policy| policy.without_sa == Some(true)) {
        let Some(ends) = ends_for(policy) else { continue };
        let fault = || format!("no SA for {} > {} dir {}", policy.selector.src, policy.selector.dst, policy.dir);
        all.entry(ends).or_default().fault.get_or_insert_with(fault);
    }
    let errors: HashMap<IpAddr, &str> = now
        .links
        .iter()
        .flat_map(|link| &link.peer_errors)
        .filter(|error| error.last_secs < PEER_ERROR_SECS)
        // Without the number that Rust adds to a text of the system.
        .map(|error| (error.peer.ip(), error.error.split(" (os error").next().unwrap_or_default()))
        .collect();
    let named = |local: Option<IpAddr>, remote: Option<IpAddr>| {
        let mut names = sums.tunnels.iter().filter(|it| (Some(it.local), Some(it.remote)) == (local, remote));
        names.next().map(|it| it.name.clone())
    };
    let complete = |((local, remote, reqid), tunnel): (TunnelEnds, TunnelRates)| {
        let error = remote.and_then(|remote| errors.get(&remote)).map(|&error| error.to_owned());
        let (name, fault) = (named(local, remote), tunnel.fault.or(error));
        TunnelRates { name, local, remote, reqid, fault, ..tunnel }
    };
    all.into_iter().map(complete).collect()
}

fn drops(before: Option<&Before<'_>>, now: &Sample) -> Vec<DropRates> {
    let key = |drop: &DropState| (drop.reason.clone(), drop.link.clone());
    let old: HashMap<_, u64> =
        before.iter().flat_map(|before| &before.sample.drops).map(|drop| (key(drop), drop.count)).collect();
    let of = |drop: &DropState| {
        let known = DropReason::ALL.iter().copied().find(|reason| reason.name() == drop.reason);
        DropRates {
            reason: drop.reason.clone(),
            link: drop.link.clone(),
            rate: before.map(|before| before.rate(old.get(&key(drop)).copied().unwrap_or_default(), drop.count)),
            count: drop.count,
            cause: known.map(DropReason::cause),
            remedy: known.map(DropReason::remedy),
        }
    };
    now.drops.iter().map(of).collect()
}

fn workers(before: Option<&Before<'_>>, now: &Sample) -> Vec<WorkerRates> {
    let of = |worker: &WorkerState| {
        let old =
            before.and_then(|before| before.sample.summary.workers.iter().find(|old| old.worker == worker.worker));
        let found = before.zip(old);
        let rate = |count: fn(&WorkerState) -> u64| found.map(|(before, old)| before.rate(count(old), count(worker)));
        WorkerRates {
            worker: worker.worker,
            busy: rate(|it| it.busy_ns).map(|nanos| (nanos / 1e9).min(1.0)),
            wakeups: rate(|it| it.wakeups),
            bursts: rate(|it| it.bursts),
            received_packets: rate(|it| it.rx_wire_packets),
            sent_packets: rate(|it| it.tx_wire_packets),
            queued: worker.queued,
            sealing: worker.sealing,
            opening: worker.opening,
        }
    };
    now.summary.workers.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sums(shown: &str) -> SaSumsState {
        let reply = format!(r#"{{"reply":"show","shown":{{"sa-sums":{shown}}}}}"#);
        match ctl::Reply::from_line(&reply) {
            Ok(ctl::Reply::Show { shown: ctl::Shown::SaSums(sums) }) => sums,
            other => panic!("{other:?}"),
        }
    }

    fn links(shown: &str) -> Vec<LinkState> {
        match ctl::Reply::from_line(&format!(r#"{{"reply":"show","shown":{{"links":{shown}}}}}"#)) {
            Ok(ctl::Reply::Show { shown: ctl::Shown::Links(links) }) => links,
            other => panic!("{other:?}"),
        }
    }

    const SUMMARY: &str = r#"{"version":"1","pid":1,"started_ms":1000,"routes":[],
        "sas":{"valid":0,"dying":0,"larval":0,"inbound":0,"outbound":0,"undirected":0},"sa_sums":0,
        "policies":{"inbound":0,"outbound":0,"forward":0},"mappings":0,"flows":0,"neighbours":[],"fragments":[],
        "memory":{"limit":null,"source":null,"used":1,"live":1,"reserve":0,"growth":0,"page_tables":0,"tables":[],"queues":0,
        "fragments":0,"captures":0,"pools":[]},"workers":[]}"#;

    fn sample(sums: SaSumsState, links: Vec<LinkState>) -> Sample {
        let reply = format!(r#"{{"reply":"show","shown":{{"summary":{SUMMARY}}}}}"#);
        let Ok(ctl::Reply::Show { shown: ctl::Shown::Summary(summary) }) = ctl::Reply::from_line(&reply) else {
            panic!("{:?}", ctl::Reply::from_line(&reply));
        };
        let counters = ctl::state::CountersState {
            counters: Vec::new(),
            copies: Vec::new(),
            forwarded_packets: 0,
            forwarded_bytes: 0,
        };
        let (at, taken) = (Duration::from_secs(11), std::time::Instant::now());
        Sample { summary: *summary, links, drops: Vec::new(), counters, sums: Some(sums), at, taken }
    }

    const SELECTOR: &str = r#"{"src":"10.1.0.0/24","dst":"10.2.0.0/24","proto":null,"sport":null,"dport":null}"#;

    #[test]
    fn tunnel_whose_policy_has_no_sa_is_faulty() {
        let template = r#"{"src":"192.0.2.1","dst":"192.0.2.2","mode":"tunnel","reqid":7,"level":"required"}"#;
        let policy = |lacks: bool| {
            format!(r#"{{"selector":{SELECTOR},"dir":"out","without_sa":{lacks},"template":{template}}}"#)
        };
        let name = r#"{"name":"site","local":"192.0.2.1","remote":"192.0.2.2"}"#;
        let sum = |dir: &str, src: u8, dst: u8| {
            format!(r#"{{"src":"192.0.2.{src}","dst":"192.0.2.{dst}","reqid":7,"dir":"{dir}","packets":1,"bytes":9}}"#)
        };
        let both = format!("{},{}", sum("out", 1, 2), sum("in", 2, 1));
        for (sums_of, lacks, fault) in [
            (both.as_str(), false, None),
            (&both, true, Some("no SA for 10.1.0.0/24 > 10.2.0.0/24 dir out")),
            ("", true, Some("no SA for 10.1.0.0/24 > 10.2.0.0/24 dir out")),
        ] {
            let shown =
                format!(r#"{{"sums":[{sums_of}],"left_out":0,"policies":[{}],"tunnels":[{name}]}}"#, policy(lacks));
            let picture = Picture::between(None, &sample(sums(&shown), Vec::new()));
            let tunnels = picture.tunnels.unwrap();
            assert_eq!(tunnels.len(), 1, "{tunnels:?}");
            let TunnelRates { name, remote, reqid, fault: found, .. } = &tunnels[0];
            assert_eq!((name.as_deref(), *reqid, found.as_deref()), (Some("site"), 7, fault));
            assert_eq!(*remote, Some("192.0.2.2".parse().unwrap()));
            assert_eq!((picture.without_sa.len(), picture.up_secs), (usize::from(lacks), 10));
        }
    }

    #[test]
    fn tunnel_of_an_unreachable_peer_is_faulty_for_a_while() {
        let link = |secs: u64| {
            format!(
                r#"[{{"index":1,"name":"wan","kind":"udp","on":null,"vrf":null,"port":null,"guest":null,"table":null,"mtu":1500,"up":true,
                "why_down":null,"lladdr":null,"addresses":[],"offloads":[],"ring":null,
                "stats":{{"rx_packets":0,"rx_bytes":0,"rx_wire_packets":0,"rx_calls":0,"rx_dropped":0,"tx_packets":0,"tx_bytes":0,
                "tx_wire_packets":0,"tx_calls":0,"tx_dropped":0}},
                "peer_errors":[{{"peer":"192.0.2.2:4500","error":"Connection refused (os error 111)","count":3,"last_secs":{secs}}}]}}]"#
            )
        };
        let sum = r#"{"src":"192.0.2.1","dst":"192.0.2.2","reqid":1,"dir":"out","packets":1,"bytes":9}"#;
        for (secs, want) in [(0, Some("Connection refused")), (2, Some("Connection refused")), (3, None)] {
            let shown = format!(r#"{{"sums":[{sum}],"left_out":0,"policies":[]}}"#);
            let tunnels = Picture::between(None, &sample(sums(&shown), links(&link(secs)))).tunnels.unwrap();
            assert_eq!(tunnels[0].fault.as_deref(), want, "{secs}");
        }
    }
}
