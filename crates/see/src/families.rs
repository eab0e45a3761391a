//! Metrics of gateways: names, labels and values.
//!
//! Labels are names that an operator gives, kinds, outer addresses of tunnels, and `reqid`. SPIs, ports and times are none: each new one
//! would be a new series. A peer whose outer address changes does begin one.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::time::Duration;

use ctl::state::{
    CountersState, DropState, LinkState, MemoryState, SaSumsState, SummaryState, TunnelNameState, WorkerState,
};

use crate::exposition::{Family, Kind, Labels, Value};
use crate::scrape::{Sample, Scraped};

/// Families of the metrics of all gateways.
pub(crate) fn families(scraped: &[Scraped]) -> Vec<Family> {
    let mut families = Families::default();
    for Scraped { gateway, sample, took } in scraped {
        let mut of = families.of(gateway);
        of.gauge("fatpath_up", "Whether the gateway answers.", [], sample.is_some().into());
        let took = Value::Nanos(took.as_nanos() as u64);
        of.add(
            Kind::Gauge,
            "fatpath_scrape_duration_seconds",
            "Time that the gateway's answers took.",
            Vec::new(),
            took,
        );
        if let Some(sample) = sample {
            of.sample(sample);
        }
    }
    families.all
}

/// Families, in the order of their first samples.
#[derive(Debug, Default)]
struct Families {
    all: Vec<Family>,
    /// Places in `all` by name.
    places: HashMap<String, usize>,
}

impl Families {
    fn of<'a>(&'a mut self, gateway: &'a str) -> OfGateway<'a> {
        OfGateway { families: self, gateway }
    }

    fn family(&mut self, kind: Kind, name: &str, help: &'static str) -> &mut Family {
        let all = &mut self.all;
        let place = *self.places.entry(name.to_owned()).or_insert_with(|| {
            all.push(Family { name: name.to_owned(), help, kind, samples: Default::default() });
            all.len() - 1
        });
        &mut all[place]
    }
}

/// Families, for samples of one gateway.
#[derive(Debug)]
struct OfGateway<'a> {
    families: &'a mut Families,
    gateway: &'a str,
}

impl OfGateway<'_> {
    fn add(&mut self, kind: Kind, name: &str, help: &'static str, labels: Labels, value: Value) {
        let gateway = ("gateway", self.gateway.to_owned());
        let labels = std::iter::once(gateway).chain(labels).collect();
        self.families.family(kind, name, help).samples.insert(labels, value);
    }

    /// A counter, whose samples' names end in `_total` besides.
    fn counter<const N: usize>(
        &mut self,
        name: &str,
        help: &'static str,
        labels: [(&'static str, &str); N],
        value: u64,
    ) {
        self.add(Kind::Counter, name, help, owned(labels), Value::Integer(value));
    }

    fn gauge<const N: usize>(&mut self, name: &str, help: &'static str, labels: [(&'static str, &str); N], value: u64) {
        self.add(Kind::Gauge, name, help, owned(labels), Value::Integer(value));
    }

    fn sample(&mut self, sample: &Sample) {
        let Sample { summary, links, drops, counters, sums, at, .. } = sample;
        self.summary(summary);
        links.iter().for_each(|link| self.link(link));
        drops.iter().for_each(|drop| self.drop_count(drop));
        self.counters(counters);
        self.gauge(
            "fatpath_sa_sums_left_out",
            "Whether there are too many SAs or policies for their metrics.",
            [],
            sums.is_none().into(),
        );
        if let Some(sums) = sums {
            self.sums(sums, *at);
        }
    }

    fn summary(&mut self, summary: &SummaryState) {
        self.gauge("fatpath_build_info", "Version of the gateway; the value is 1.", [("version", &summary.version)], 1);
        let started = Value::Millis(summary.started_ms);
        const START: &str = "Start of the gateway since the Unix epoch: its counters began then.";
        self.add(Kind::Gauge, "fatpath_start_time_seconds", START, Vec::new(), started);
        for table in &summary.routes {
            self.gauge("fatpath_routes", "Routes of a table.", [("table", &table.table.to_string())], table.count);
        }
        let sas = &summary.sas;
        for (state, count) in [("valid", sas.valid), ("dying", sas.dying), ("larval", sas.larval)] {
            self.gauge("fatpath_sas", "Security associations in a state.", [("state", state)], count);
        }
        let policies = &summary.policies;
        for (dir, count) in [("in", policies.inbound), ("out", policies.outbound), ("fwd", policies.forward)] {
            self.gauge("fatpath_policies", "Policies of a direction.", [("dir", dir)], count);
        }
        self.gauge("fatpath_ila_mappings", "ILA mappings.", [], summary.mappings);
        self.gauge("fatpath_flows", "Flows of the host side's sockets.", [], summary.flows);
        for neighbours in &summary.neighbours {
            let state = neighbours.state.to_ascii_lowercase();
            self.gauge("fatpath_neighbours", "Neighbours in a state.", [("state", &state)], neighbours.count);
        }
        for family in &summary.fragments {
            let name = if family.name == "FRAG" { "ipv4" } else { "ipv6" };
            let labels = || [("family", name)];
            self.gauge("fatpath_fragments_memory_bytes", "Memory of fragments in reassembly.", labels(), family.memory);
            self.gauge("fatpath_fragments_datagrams", "Incomplete datagrams in reassembly.", labels(), family.inuse);
        }
        self.memory(&summary.memory);
        summary.workers.iter().for_each(|worker| self.worker(worker));
    }

    fn memory(&mut self, memory: &MemoryState) {
        if let Some(limit) = memory.limit {
            self.gauge("fatpath_memory_limit_bytes", "Budget of memory.", [], limit);
        }
        self.gauge("fatpath_memory_used_bytes", "Memory that counts for the budget.", [], memory.used);
        let kept_free = memory.reserve + memory.growth;
        self.gauge("fatpath_memory_kept_free_bytes", "Part of the budget that requests leave free.", [], kept_free);
        for table in &memory.tables {
            let labels = || [("table", table.name.as_str())];
            self.gauge("fatpath_table_entries", "Entries of a table of [limits].", labels(), table.entries);
            if let Some(limit) = table.limit {
                self.gauge("fatpath_table_entries_limit", "Limit of entries of a table.", labels(), limit);
            }
        }
        self.gauge("fatpath_queues_memory_bytes", "True size of packets that wait for links.", [], memory.queues);
        self.gauge("fatpath_captures", "Captures in progress.", [], memory.captures);
        for pool in &memory.pools {
            let size = pool.page_size.to_string();
            let labels = || [("page_size", size.as_str())];
            self.gauge("fatpath_pool_pages", "Pages of a pool.", labels(), pool.pages);
            self.gauge("fatpath_pool_pages_in_use", "Pages of a pool that packets have.", labels(), pool.in_use);
            self.counter("fatpath_pool_dry", "Requests for a page that failed.", labels(), pool.dry);
        }
    }

    fn worker(&mut self, worker: &WorkerState) {
        let number = worker.worker.to_string();
        let labels = || vec![("worker", number.clone())];
        let busy = Value::Nanos(worker.busy_ns);
        self.add(Kind::Counter, "fatpath_worker_busy_seconds", "Time within a worker's turns.", labels(), busy);
        let idle = Value::Nanos(worker.idle_ns);
        self.add(Kind::Counter, "fatpath_worker_idle_seconds", "Time between a worker's turns.", labels(), idle);
        for (name, help, value) in [
            ("fatpath_worker_wakeups", "Times that a worker was woken.", worker.wakeups),
            ("fatpath_worker_bursts", "Bursts that a worker received.", worker.bursts),
            ("fatpath_worker_receive_packets", "Packets that a worker received, fat ones as one.", worker.rx_packets),
            (
                "fatpath_worker_receive_wire_packets",
                "Packets of the wire that a worker received.",
                worker.rx_wire_packets,
            ),
            ("fatpath_worker_receive_calls", "System calls by which a worker received.", worker.rx_calls),
            ("fatpath_worker_transmit_wire_packets", "Packets of the wire that a worker sent.", worker.tx_wire_packets),
            ("fatpath_worker_transmit_calls", "System calls by which a worker sent.", worker.tx_calls),
            ("fatpath_worker_handed_over_packets", "Packets handed over to other workers.", worker.handed_over),
            ("fatpath_worker_taken_over_packets", "Packets taken over from other workers.", worker.taken_over),
        ] {
            self.counter(name, help, [("worker", &number)], value);
        }
        const QUEUED: &str = "Packets from other workers that wait.";
        self.gauge("fatpath_worker_queued_packets", QUEUED, [("worker", &number)], worker.queued);
        for (work, packets) in [("encrypt", worker.sealing), ("decrypt", worker.opening)] {
            const DEPTH: &str = "Packets that wait for a cipher.";
            self.gauge("fatpath_crypto_queue_packets", DEPTH, [("worker", &number), ("work", work)], packets);
        }
    }

    fn link(&mut self, link: &LinkState) {
        let name = link.name.as_str();
        let master = link.port.as_ref().map_or("", |port| port.bridge.as_str());
        let vrf = link.vrf.as_deref().unwrap_or_default();
        let labels = [("link", name), ("kind", &link.kind), ("vrf", vrf), ("master", master)];
        self.gauge("fatpath_link_info", "Kind and place of a link; the value is 1.", labels, 1);
        self.gauge("fatpath_link_up", "Whether a link is up.", [("link", name)], link.up.into());
        self.gauge("fatpath_link_mtu_bytes", "Layer-3 MTU of a link.", [("link", name)], link.mtu.into());
        let stats = &link.stats;
        for (name, help, value) in [
            ("fatpath_link_receive_bytes", "Bytes that a link received.", stats.rx_bytes),
            ("fatpath_link_receive_packets", "Packets that a link received, fat ones as one.", stats.rx_packets),
            ("fatpath_link_receive_wire_packets", "Packets of the wire that a link received.", stats.rx_wire_packets),
            ("fatpath_link_receive_calls", "System calls by which a link received.", stats.rx_calls),
            ("fatpath_link_receive_drop", "Packets that came in by a link and were dropped.", stats.rx_dropped),
            ("fatpath_link_transmit_bytes", "Bytes that a link sent.", stats.tx_bytes),
            ("fatpath_link_transmit_packets", "Packets that a link sent, fat ones as one.", stats.tx_packets),
            ("fatpath_link_transmit_wire_packets", "Packets of the wire that a link sent.", stats.tx_wire_packets),
            ("fatpath_link_transmit_calls", "System calls by which a link sent.", stats.tx_calls),
            ("fatpath_link_transmit_drop", "Packets that a link could not send.", stats.tx_dropped),
        ] {
            self.counter(name, help, [("link", &link.name)], value);
        }
    }

    fn drop_count(&mut self, drop: &DropState) {
        let labels = [("link", drop.link.as_deref().unwrap_or_default()), ("reason", &drop.reason)];
        const HELP: &str = "Dropped packets by the link that they came in by, and by reason.";
        self.counter("fatpath_drop_packets", HELP, labels, drop.count);
    }

    fn counters(&mut self, counters: &CountersState) {
        self.counter(
            "fatpath_forwarded_packets",
            "Forwarded packets, fat ones as one.",
            [],
            counters.forwarded_packets,
        );
        self.counter("fatpath_forwarded_bytes", "Bytes of forwarded packets.", [], counters.forwarded_bytes);
        for copy in &counters.copies {
            let labels = || [("reason", copy.reason.as_str())];
            self.counter("fatpath_copies", "Copies between packet buffers.", labels(), copy.copies);
            self.counter("fatpath_copied_bytes", "Bytes copied between packet buffers.", labels(), copy.bytes);
        }
        for counter in &counters.counters {
            if let Some((protocol, name)) = netstat(&counter.name) {
                let name = format!("fatpath_netstat_{protocol}_{name}");
                const HELP: &str = "Counter by its Linux name.";
                self.add(Kind::Unknown, &name, HELP, Vec::new(), Value::Integer(counter.value));
            }
        }
    }

    /// Names of tunnels by their outer addresses, in both directions. Tunnels with the same addresses have one series: an expression that
    /// joins it needs one name.
    fn tunnels(&mut self, tunnels: &[TunnelNameState]) {
        let mut names: BTreeMap<[IpAddr; 2], String> = BTreeMap::new();
        for TunnelNameState { name, local, remote } in tunnels {
            for ends in [[*local, *remote], [*remote, *local]] {
                let names = names.entry(ends).or_default();
                if !names.is_empty() {
                    names.push(',');
                }
                names.push_str(name);
            }
        }
        for ([src, dst], name) in &names {
            let labels = [("src", src.to_string()), ("dst", dst.to_string()), ("name", name.clone())].to_vec();
            const HELP: &str = "Name of the tunnel with these outer addresses; the value is 1.";
            self.add(Kind::Gauge, "fatpath_peer_info", HELP, labels, Value::Integer(1));
        }
    }

    fn sums(&mut self, sums: &SaSumsState, now: Duration) {
        for sum in &sums.sums {
            let [src, dst, reqid, dir] =
                [sum.src.to_string(), sum.dst.to_string(), sum.reqid.to_string(), sum.dir.to_string()];
            let labels = || [("src", src.as_str()), ("dst", &dst), ("reqid", &reqid), ("dir", &dir)];
            const BYTES: &str = "Bytes protected by SAs that followed one another.";
            self.counter("fatpath_sa_bytes", BYTES, labels(), sum.bytes);
            const PACKETS: &str = "ESP packets of SAs that followed one another.";
            self.counter("fatpath_sa_packets", PACKETS, labels(), sum.packets);
            if let Some(left) = sum.expires_ms {
                // To the second: else each scrape would have another time.
                let at = (now + Duration::from_millis(left + 500)).as_secs();
                const EXPIRES: &str = "Time since the Unix epoch at which the last SA ends, unless it is rekeyed.";
                self.gauge("fatpath_sa_expires_timestamp_seconds", EXPIRES, labels(), at);
            }
        }
        self.tunnels(&sums.tunnels);
        // Policies that differ in ports alone are one series: 1 if any has none. One that is not judged is no part of it.
        let mut without: HashMap<[String; 3], bool> = HashMap::new();
        for policy in &sums.policies {
            let selector = &policy.selector;
            let labels = [selector.src.to_string(), selector.dst.to_string(), policy.dir.to_string()];
            if let Some(without_sa) = policy.without_sa {
                *without.entry(labels).or_default() |= without_sa;
            }
        }
        for ([src, dst, dir], is_without) in &without {
            const HELP: &str = "Whether a policy needs an SA that does not exist: its packets wait or are dropped.";
            let labels = [("src", src.as_str()), ("dst", dst), ("dir", dir)];
            self.gauge("fatpath_policy_without_sa", HELP, labels, u64::from(*is_without));
        }
    }
}

fn owned<const N: usize>(labels: [(&'static str, &str); N]) -> Labels {
    labels.into_iter().map(|(name, value)| (name, value.to_owned())).collect()
}

/// Protocol and name of a counter, as node_exporter splits them; `None` for a counter that Linux does not have.
fn netstat(counter: &str) -> Option<(&'static str, &str)> {
    // A protocol whose name another one begins with comes behind that one.
    const PROTOCOLS: [&str; 12] =
        ["Icmp6", "IcmpMsg", "Icmp", "IpExt", "Ip6", "Ip", "TcpExt", "Tcp", "UdpLite", "Udp6", "Udp", "Xfrm"];
    PROTOCOLS.into_iter().find_map(|protocol| {
        let name = counter.strip_prefix(protocol)?;
        let is_whole = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        is_whole.then_some((protocol, name))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exposition::Format;

    #[test]
    fn counter_is_split_as_node_exporter_splits_it() {
        for (counter, want) in [
            ("IpForwDatagrams", Some(("Ip", "ForwDatagrams"))),
            ("Ip6InReceives", Some(("Ip6", "InReceives"))),
            ("Icmp6InMsgs", Some(("Icmp6", "InMsgs"))),
            ("XfrmInNoStates", Some(("Xfrm", "InNoStates"))),
            ("ShowSlices", None),
            ("Ip", None),
            ("Ip\nx", None),
        ] {
            assert_eq!(netstat(counter), want, "{counter}");
        }
    }

    #[test]
    fn gateway_that_does_not_answer_is_down_and_nothing_else() {
        let gone = Scraped { gateway: "a\"b".to_owned(), sample: None, took: Duration::from_millis(2) };
        let text = Format::Classic.text(&families(&[gone]));
        let samples: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let want =
            ["fatpath_up{gateway=\"a\\\"b\"} 0", "fatpath_scrape_duration_seconds{gateway=\"a\\\"b\"} 0.002000000"];
        assert_eq!(samples, want);
    }

    #[test]
    fn policies_that_differ_in_ports_are_one_series() {
        let policy = |without_sa: &str, sport: u16, src: &str| {
            format!(
                r#"{{"selector":{{"src":"{src}","dst":"10.2.0.0/24","proto":17,"sport":{sport},"dport":null}},
                    "dir":"out","without_sa":{without_sa}}}"#
            )
        };
        let reply = format!(
            r#"{{"reply":"show","shown":{{"sa-sums":{{"sums":[],"left_out":0,"policies":[{},{},{},{}]}}}}}}"#,
            policy("true", 1, "10.1.0.0/24"),
            policy("false", 2, "10.1.0.0/24"),
            policy("null", 3, "10.1.0.0/24"),
            // One that is not judged has no series: it is not a healthy one.
            policy("null", 1, "10.9.0.0/24")
        );
        let Ok(ctl::Reply::Show { shown: ctl::Shown::SaSums(sums) }) = ctl::Reply::from_line(&reply) else {
            panic!("{:?}", ctl::Reply::from_line(&reply));
        };
        let mut families = Families::default();
        families.of("g").sums(&sums, Duration::ZERO);
        let text = Format::Classic.text(&families.all);
        let sample = "fatpath_policy_without_sa{gateway=\"g\",src=\"10.1.0.0/24\",dst=\"10.2.0.0/24\",dir=\"out\"} 1";
        assert_eq!(text.lines().last(), Some(sample), "{text}");
        assert!(!text.contains("10.9.0.0"), "{text}");
    }

    #[test]
    fn tunnel_has_its_name_and_the_time_of_its_end() {
        let ends = r#""local":"192.0.2.1","remote":"192.0.2.2""#;
        let sum =
            r#"{"src":"192.0.2.1","dst":"192.0.2.2","reqid":1,"dir":"out","packets":2,"bytes":3,"expires_ms":59700}"#;
        let reply = format!(
            r#"{{"reply":"show","shown":{{"sa-sums":{{"sums":[{sum}],"left_out":0,"policies":[],"tunnels":[{{"name":"site",{ends}}},{{"name":"lab",{ends}}}]}}}}}}"#
        );
        let Ok(ctl::Reply::Show { shown: ctl::Shown::SaSums(sums) }) = ctl::Reply::from_line(&reply) else {
            panic!("{:?}", ctl::Reply::from_line(&reply));
        };
        let mut families = Families::default();
        families.of("g").sums(&sums, Duration::from_millis(1_000_100));
        let text = Format::Classic.text(&families.all);
        for sample in [
            r#"fatpath_sa_expires_timestamp_seconds{gateway="g",src="192.0.2.1",dst="192.0.2.2",reqid="1",dir="out"} 1060"#,
            r#"fatpath_peer_info{gateway="g",src="192.0.2.1",dst="192.0.2.2",name="site,lab"} 1"#,
            r#"fatpath_peer_info{gateway="g",src="192.0.2.2",dst="192.0.2.1",name="site,lab"} 1"#,
        ] {
            assert!(text.lines().any(|line| line == sample), "no {sample} in {text}");
        }
    }
}
