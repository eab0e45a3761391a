//! Output of `fatpath show`: states in the layout of well-known tools. Links, routes and neighbours are formatted as by
//! `ip`, SAs and policies as by `ip -s xfrm`, counters as by `nstat` and in `/proc/net/xfrm_stat`.

use std::fmt::{self, Display, Formatter, Write as _};
use std::net::IpAddr;

use base::{Prefix, TableId};
use config::protocols::PROTOCOLS;
use xfrm::{Action, Level, NatTraversal};

use crate::request::Shown;
use crate::state::{
    Ages, BridgePortState, CountersState, DropState, FdbState, FlowState, FragmentsState, GuestQueueState, GuestState,
    HostState, IlaEncapState, IlaState, LimitState, LinkState, LinkStats, MemoryState, NeighbourState, PeerErrorState,
    PmtuState, PolicyCountState, PolicyState, QdiscState, RingState, RouteState, SaCountState, SaState, SaSumState,
    SaSumsState, SandboxState, SelectorState, SummaryState, WorkerState,
};

impl Shown {
    /// Text for a terminal, in whole lines. Counters at zero are omitted unless `all`.
    pub fn to_text(&self, all: bool) -> String {
        match self {
            Self::Links(links) => whole(links),
            Self::Routes(routes) => whole(routes),
            Self::Neighbours(neighbours) => with_header(NEIGHBOUR_HEADER, neighbours),
            Self::Fdb(entries) => with_header(FDB_HEADER, entries),
            Self::Pmtus(pmtus) => whole(pmtus),
            Self::Sa(sas) => whole(sas),
            Self::SaSums(sums) => sums.to_string(),
            Self::Policies(policies) => whole(policies),
            Self::Counters(counters) => counters.to_text(all),
            Self::Drops(drops) => whole(drops),
            Self::Fragments(fragments) => whole(fragments),
            Self::Host(host) => host.to_string(),
            Self::Ila(mappings) => whole(mappings),
            Self::Flows(flows) => whole(flows),
            Self::Workers(workers) => with_header(WORKER_HEADER, workers),
            Self::Summary(summary) => summary.to_string(),
            Self::Memory(memory) => memory.to_string(),
            Self::Sandbox(sandbox) => sandbox.to_string(),
        }
    }
}

fn whole<T: Display>(items: &[T]) -> String {
    items.iter().map(ToString::to_string).collect()
}

/// Headers of lists whose lines have the form of `ip neigh` and `bridge fdb`: the order of their values.
const NEIGHBOUR_HEADER: &str = "ADDRESS dev LINK [lladdr ADDRESS] [queued PACKETS] STATE\n";
const FDB_HEADER: &str = "ADDRESS dev PORT [vlan ID] master BRIDGE [sticky] [static|permanent]\n";

/// Header of the list of workers. Busy is the share of its time that a worker has run.
const WORKER_HEADER: &str = "WORKER   CPU   BUSY      WAKEUPS      RECEIVED   HANDED OVER    TAKEN OVER   QUEUED\n";

/// Text of a list below its header; nothing for an empty list.
fn with_header<T: Display>(header: &str, items: &[T]) -> String {
    if items.is_empty() { String::new() } else { header.to_owned() + &whole(items) }
}

/// Writes ` word value`, or nothing for `None`.
fn optional<T: Display>(f: &mut Formatter<'_>, word: &str, value: Option<T>) -> fmt::Result {
    value.map_or(Ok(()), |value| write!(f, " {word} {value}"))
}

impl Display for HostState {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "host side {}", self.side)?;
        optional(f, "at", self.namespace.as_deref())?;
        if self.user_namespace {
            f.write_str(" in a user namespace")?;
        }
        match &self.why {
            Some(why) => writeln!(f, " ({why})")?,
            None => writeln!(f)?,
        }
        for device in &self.devices {
            write!(f, "    {}: {} kind {} mtu {}", device.index, device.name, device.kind, device.mtu)?;
            match &device.why_not {
                Some(why) => writeln!(f, " missing ({why})")?,
                None => writeln!(f)?,
            }
        }
        if self.side == "on" {
            let limited = if self.routes_limited { " for all of the node's" } else { "" };
            writeln!(
                f,
                "    {} addresses, {} routes{limited}, {} reverted",
                self.addresses, self.routes, self.put_back
            )?;
        }
        if let Some(refused) = &self.refused {
            writeln!(f, "    refused: {refused}")?;
        }
        Ok(())
    }
}

impl Display for LinkState {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let flags = if self.up { "UP" } else { "DOWN" };
        write!(f, "{}: {}: <{flags}> mtu {} kind {}", self.index, self.name, self.mtu, self.kind)?;
        optional(f, "on", self.on.as_deref())?;
        optional(f, "table", self.table)?;
        optional(f, "master", self.vrf.as_deref())?;
        writeln!(f)?;
        if let Some(why) = &self.why_down {
            writeln!(f, "    down ({why})")?;
        }
        if let Some(lladdr) = &self.lladdr {
            writeln!(f, "    link/ether {lladdr}")?;
        }
        for address in &self.addresses {
            writeln!(f, "    {} {address}", if address.addr().is_ipv4() { "inet" } else { "inet6" })?;
        }
        for offload in &self.offloads {
            write!(f, "    {} {}", offload.name, if offload.on { "on" } else { "off" })?;
            match &offload.why {
                Some(why) => writeln!(f, " ({why})")?,
                None => writeln!(f)?,
            }
        }
        if let Some(port) = &self.port {
            port.fmt(f)?;
        }
        if let Some(guest) = &self.guest {
            guest.fmt(f)?;
        }
        if let Some(ring) = &self.ring {
            ring.fmt(f)?;
        }
        if let Some(qdisc) = &self.qdisc {
            qdisc.fmt(f)?;
        }
        for PeerErrorState { peer, error, count, last_secs } in &self.peer_errors {
            writeln!(f, "    peer {peer} {error}, {count} times, last {last_secs}s ago")?;
        }
        self.stats.fmt(f)
    }
}

impl Display for QdiscState {
    /// Writes a line like the first of `tc -s qdisc`, and a line of counters.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { kind, bytes, packets, drops, overlimits, backlog, qlen } = self;
        writeln!(f, "    qdisc {kind} backlog {backlog}b {qlen}p")?;
        writeln!(f, "        bytes {bytes} packets {packets} dropped {drops} overlimits {overlimits}")
    }
}

impl Display for RingState {
    /// Writes the ring's mode, its frames in use, and the kernel's counters.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { mode, queues, frames, frame_size, held, rx_no_buffer, .. } = self;
        let copy = if self.zero_copy { "zero-copy" } else { "copy" };
        writeln!(f, "    ring {mode} {copy} queues {queues} frames {frames} of {frame_size} bytes")?;
        writeln!(f, "        held {held} rx_no_buffer {rx_no_buffer}")?;
        let Self { rx_dropped, rx_invalid_descs, rx_ring_full, rx_fill_ring_empty_descs, .. } = self;
        write!(f, "        rx_dropped {rx_dropped} rx_invalid_descs {rx_invalid_descs} rx_ring_full {rx_ring_full}")?;
        writeln!(f, " rx_fill_ring_empty_descs {rx_fill_ring_empty_descs}")?;
        let Self { tx_invalid_descs, tx_ring_empty_descs, .. } = self;
        writeln!(f, "        tx_invalid_descs {tx_invalid_descs} tx_ring_empty_descs {tx_ring_empty_descs}")
    }
}

impl Display for LinkStats {
    /// Writes two blocks of a heading and a line of numbers, as in `ip -s link`.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let rx = [self.rx_bytes, self.rx_packets, self.rx_wire_packets, self.rx_calls, self.rx_dropped];
        let tx = [self.tx_bytes, self.tx_packets, self.tx_wire_packets, self.tx_calls, self.tx_dropped];
        let names = ["bytes", "packets", "wire-packets", "calls", "dropped"];
        for (way, values) in [("RX:", rx), ("TX:", tx)] {
            let (mut heading, mut line) = (format!("    {way}"), "       ".to_owned());
            for (n, (name, value)) in names.iter().zip(rx.iter().zip(tx)).enumerate() {
                let width = name.len().max(value.0.to_string().len()).max(value.1.to_string().len());
                write!(heading, " {name:>width$}")?;
                write!(line, " {:>width$}", values[n])?;
            }
            writeln!(f, "{heading}\n{line}")?;
        }
        Ok(())
    }
}

/// Formats a destination as `ip route`: `default`, an address alone, or a prefix.
fn destination(to: Prefix) -> String {
    match to {
        _ if to.len() == 0 => "default".to_owned(),
        _ if to.is_host() => to.addr().to_string(),
        _ => to.to_string(),
    }
}

impl Display for RouteState {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.kind != "unicast" {
            write!(f, "{} ", self.kind)?;
        }
        write!(f, "{}", destination(self.to))?;
        if let Some(IlaEncapState { locator, csum_mode, ident_type, hook_type }) = &self.encap {
            write!(f, " encap ila {locator} csum-mode {csum_mode} ident-type {ident_type} hook-type {hook_type}")?;
        }
        let v4 = self.to.is_ipv4();
        let via = |f: &mut Formatter<'_>, via: Option<IpAddr>| {
            optional(f, if v4 && via.is_some_and(|via| via.is_ipv6()) { "via inet6" } else { "via" }, via)
        };
        if self.nexthops.is_empty() {
            via(f, self.via)?;
            optional(f, "dev", self.dev.as_deref())?;
        }
        optional(f, "table", Some(TableId(self.table)).filter(|&table| table != TableId::MAIN))?;
        let word = |word: &str, hidden| Some(word.to_owned()).filter(|word| !word.is_empty() && word != hidden);
        optional(f, "proto", word(&self.proto, ""))?;
        optional(f, "scope", word(&self.scope, "global"))?;
        optional(f, "src", self.src)?;
        optional(f, "metric", Some(self.metric).filter(|&metric| metric != 0))?;
        writeln!(f)?;
        for path in &self.nexthops {
            f.write_str("\tnexthop")?;
            via(f, path.via)?;
            let dead = if path.dead { " dead linkdown" } else { "" };
            writeln!(f, " dev {} weight {}{dead}", path.dev, path.weight)?;
        }
        Ok(())
    }
}

impl Display for NeighbourState {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} dev {}", self.to, self.dev)?;
        optional(f, "lladdr", self.lladdr.as_deref())?;
        optional(f, "queued", Some(self.queued).filter(|&queued| queued != 0))?;
        writeln!(f, " {}", self.state)
    }
}

impl Display for FdbState {
    /// Writes an entry as `bridge fdb`.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} dev {}", self.mac, self.dev)?;
        optional(f, "vlan", self.vlan)?;
        write!(f, " master {}", self.master)?;
        f.write_str(if self.sticky { " sticky" } else { "" })?;
        writeln!(f, "{}", if self.state == "dynamic" { String::new() } else { format!(" {}", self.state) })
    }
}

impl Display for GuestState {
    /// Writes a line for the connection, a line of features, and a line for each queue.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let state = match (self.connected, self.running) {
            (false, _) => "not connected",
            (true, false) => "connected, no driver",
            (true, true) => "connected",
        };
        let Self { regions, connections, violations, copied, .. } = self;
        writeln!(
            f,
            "    guest {state} connections {connections} violations {violations} regions {regions} copied {copied}"
        )?;
        if !self.features.is_empty() {
            writeln!(f, "        features {}", self.features.join(" "))?;
        }
        for (number, queue) in self.queues.iter().enumerate() {
            let GuestQueueState { running, enabled, size, chains, calls, full } = queue;
            let way = if number % 2 == 0 { "receive" } else { "send" };
            let state = match (running, enabled) {
                (true, true) => "on",
                (true, false) => "disabled",
                (false, _) => "off",
            };
            writeln!(f, "        queue {number} {way} {state} size {size} chains {chains} calls {calls} full {full}")?;
        }
        Ok(())
    }
}

impl Display for BridgePortState {
    /// Writes a line below the link's.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "    port of {} state {}", self.bridge, self.state)?;
        optional(f, "pvid", self.pvid)?;
        for (word, vlans) in [("untagged", &self.untagged), ("tagged", &self.tagged)] {
            optional(f, word, Some(vlans.join(",")).filter(|list| !list.is_empty()))?;
        }
        optional(f, "trunk", self.trunk)?;
        write!(f, " learnt {}", self.learnt)?;
        let counts = [
            ("fdb-full", self.fdb_full),
            ("moved", self.moved),
            ("pinned", self.pinned),
            ("rx-dropped", self.rx_dropped),
            ("tx-dropped", self.tx_dropped),
            ("tx-errors", self.tx_errors),
        ];
        for (word, count) in counts {
            optional(f, word, Some(count).filter(|&count| count != 0))?;
        }
        writeln!(f)
    }
}

impl Display for PmtuState {
    /// Writes an entry in the format of the end of `ip route get`.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.to)?;
        optional(f, "vrf", self.vrf.as_deref())?;
        writeln!(f, " cache expires {}sec mtu {}", self.expires_secs, self.mtu)
    }
}

/// Extra flags of iproute2, which are printed after a separate word.
const EXTRA_FLAGS: [&str; 2] = ["dont-encap-dscp", "oseq-may-wrap"];

/// Maximum window of Linux's first form of replay state, `xfrm_replay_state`.
const MAX_LEGACY_WINDOW: u32 = 32;

impl Display for SaState {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "src {} dst {}", self.src, self.dst)?;
        writeln!(f, "\tproto esp spi {:#010x} reqid {} mode {}", self.spi, self.reqid, self.mode)?;
        if self.state != "valid" {
            writeln!(f, "\tstate {}", self.state)?;
        }
        let (extra, flags): (Vec<&str>, Vec<&str>) =
            self.flags.iter().map(String::as_str).partition(|flag| EXTRA_FLAGS.contains(flag));
        write!(f, "\treplay-window {}", self.replay_window)?;
        optional(f, "flag", Some(flags.join(" ")).filter(|flags| !flags.is_empty()))?;
        optional(f, "extra_flag", Some(extra.join(" ")).filter(|flags| !flags.is_empty()))?;
        writeln!(f)?;
        for (word, mark) in [("mark", self.mark), ("output-mark", self.output_mark)] {
            if let Some(mark) = mark {
                writeln!(f, "\t{word} {mark}")?;
            }
        }
        self.algorithms(f)?;
        if let Some(encap) = self.encap {
            let any = if self.dst.is_ipv4() { IpAddr::from([0; 4]) } else { IpAddr::from([0; 16]) };
            writeln!(f, "\tencap type espinudp sport {} dport {} addr {any}", encap.sport, encap.dport)?;
        }
        if let Some(place) = self.moved_to {
            writeln!(f, "\tmoved to {} dport {}", place.ip(), place.port())?;
        }
        if self.tfcpad > 0 {
            writeln!(f, "\ttfcpad {}", self.tfcpad)?;
        }
        let NatTraversal { keepalive_interval, mapping_threshold, follow } = self.nat;
        for (name, seconds) in
            [("nat-keepalive-interval", keepalive_interval), ("nat-mapping-threshold", mapping_threshold)]
        {
            if seconds > 0 {
                writeln!(f, "\t{name} {seconds}")?;
            }
        }
        if follow {
            writeln!(f, "\tnat-follow")?;
        }
        self.anti_replay(f)?;
        if let Some(offload) = &self.offload {
            writeln!(f, "\tcrypto offload parameters: {offload}")?;
        }
        if self.if_id != 0 {
            writeln!(f, "\tif_id {:#x}", self.if_id)?;
        }
        if let Some(dir) = self.dir {
            writeln!(f, "\tdir {dir}")?;
        }
        for (word, number) in [("pcpu-num", self.cpu), ("worker", self.worker.map(u32::from))] {
            if let Some(number) = number {
                writeln!(f, "\t{word} {number}")?;
            }
        }
        if let Some(selector) = &self.selector {
            writeln!(f, "\tsel {selector}")?;
        }
        let stats = &self.stats;
        write!(f, "{}", self.limit)?;
        writeln!(f, "\tlifetime current:\n\t  {}(bytes), {}(packets)", stats.bytes, stats.packets)?;
        write!(f, "{}", self.ages)?;
        if let Some(secs) = self.last_used_secs {
            writeln!(f, "\tlastused {secs}s ago")?;
        }
        if self.dying {
            writeln!(f, "\t  dying")?;
        }
        write!(f, "\tstats:\n\t  replay-window {} replay {}", stats.replay_window, stats.replay)?;
        writeln!(f, " failed {}", stats.integrity_failed)
    }
}

impl SaState {
    /// Writes the algorithms, with the length of each key in place of the key.
    fn algorithms(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { algorithm, key_bits, auth, icv_bits, .. } = self;
        let Some(algorithm) = algorithm else { return Ok(()) };
        if let Some(auth) = auth {
            writeln!(f, "\tauth-trunc {auth} <<Keys hidden>> {icv_bits}")?;
        }
        match (key_bits, auth, icv_bits) {
            (0, ..) => writeln!(f, "\tenc {algorithm} "),
            (_, None, 1..) => writeln!(f, "\taead {algorithm} <<Keys hidden>> {icv_bits} ({key_bits}-bit key)"),
            _ => writeln!(f, "\tenc {algorithm} <<Keys hidden>> ({key_bits}-bit key)"),
        }
    }

    /// Writes the replay state in Linux's form: the second one for ESN and for windows above 32.
    fn anti_replay(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (seq, oseq) = (self.seq, self.oseq);
        if self.replay_window <= MAX_LEGACY_WINDOW && !self.flags.iter().any(|flag| flag == "esn") {
            let bitmap = self.bitmap.first().copied().unwrap_or(0);
            let (seq, oseq) = (seq as u32, oseq as u32);
            return writeln!(f, "\tanti-replay context: seq {seq:#x}, oseq {oseq:#x}, bitmap {bitmap:#010x}");
        }
        writeln!(f, "\tanti-replay esn context:")?;
        write!(f, "\t seq-hi {:#x}, seq {:#x}", seq >> 32, seq as u32)?;
        writeln!(f, ", oseq-hi {:#x}, oseq {:#x}", oseq >> 32, oseq as u32)?;
        writeln!(f, "\t replay_window {}, bitmap-length {}", self.replay_window, self.bitmap.len())?;
        let words: Vec<String> = self.bitmap.iter().rev().map(|word| format!("{word:08x} ")).collect();
        words.chunks(8).try_for_each(|line| writeln!(f, "\t {}", line.concat()))
    }
}

impl Display for PolicyState {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n\tdir {} ", self.selector, self.dir)?;
        if self.action == Action::Block {
            write!(f, "action block ")?;
        }
        writeln!(f, "priority {} ", self.priority)?;
        for template in &self.templates {
            let any = if self.selector.src.is_ipv4() { Prefix::ANY_V4 } else { Prefix::ANY_V6 }.addr();
            let (src, dst) = (template.src.unwrap_or(any), template.dst.unwrap_or(any));
            writeln!(f, "\ttmpl src {src} dst {dst}\n\t\tproto esp reqid {} mode {}", template.reqid, template.mode)?;
            if template.level == Level::Use {
                writeln!(f, "\t\tlevel use")?;
            }
        }
        if self.without_sa {
            writeln!(f, "\twithout sa")?;
        }
        if let Some(mark) = self.mark {
            writeln!(f, "\tmark {mark}")?;
        }
        if self.if_id != 0 {
            writeln!(f, "\tif_id {:#x}", self.if_id)?;
        }
        write!(f, "{}\tlifetime current:\n{}", self.limit, self.ages)
    }
}

impl Display for SelectorState {
    /// Writes a selector with a trailing blank, as iproute2's `xfrm_selector_print`.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "src {} dst {} ", self.src, self.dst)?;
        if let Some(proto) = self.proto {
            match PROTOCOLS.iter().find(|&&(_, number)| number == proto) {
                Some((name, _)) => write!(f, "proto {name} ")?,
                None => write!(f, "proto {proto} ")?,
            }
        }
        for (word, port) in [("sport", self.sport), ("dport", self.dport)] {
            if let Some(port) = port {
                write!(f, "{word} {port} ")?;
            }
        }
        Ok(())
    }
}

impl Display for LimitState {
    /// Writes limits as iproute2's `xfrm_lifetime_print`, if there are any.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if *self == Self::default() {
            return Ok(());
        }
        let number = |limit: Option<u64>| limit.map_or("(INF)".to_owned(), |limit| limit.to_string());
        let secs = |limit: Option<u64>| limit.unwrap_or(0);
        let Self { soft, hard } = self;
        writeln!(f, "\tlifetime config:")?;
        writeln!(f, "\t  limit: soft {}(bytes), hard {}(bytes)", number(soft.bytes), number(hard.bytes))?;
        writeln!(f, "\t  limit: soft {}(packets), hard {}(packets)", number(soft.packets), number(hard.packets))?;
        writeln!(f, "\t  expire add: soft {}(sec), hard {}(sec)", secs(soft.add_secs), secs(hard.add_secs))?;
        writeln!(f, "\t  expire use: soft {}(sec), hard {}(sec)", secs(soft.use_secs), secs(hard.use_secs))
    }
}

impl Display for Ages {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let ago = |secs: Option<u64>| secs.map_or("-".to_owned(), |secs| format!("{secs}s ago"));
        writeln!(f, "\t  add {} use {}", ago(self.add_secs), ago(self.use_secs))
    }
}

impl Display for DropState {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let link = self.link.as_deref().map_or_else(String::new, |link| format!(" dev {link}"));
        let place = format!("{}{link}", self.count);
        // A gateway of another release may have a reason that this program does not know.
        match base::DropReason::by_name(&self.reason) {
            Some(reason) => writeln!(f, "{:<32}{place:<24} {}", self.reason, reason.short_cause()),
            None => writeln!(f, "{:<32}{place}", self.reason),
        }
    }
}

impl Display for FlowState {
    /// Writes addresses as `ss`.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { proto, local, peer, vrf } = self;
        let (local, peer) = (local.to_string(), peer.to_string());
        write!(f, "{proto:<6}{local:<32}{peer:<32}")?;
        optional(f, "vrf", vrf.as_deref())?;
        writeln!(f)
    }
}

impl Display for IlaState {
    /// Writes a line of `ip ila list`, with the identifier of a single address behind it.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { locator_match, identifier, locator, interface, csum_mode, ident_type } = self;
        let interface = interface.as_deref().unwrap_or("*");
        write!(f, "{locator_match:<20}{locator:<20}{interface:<16}{csum_mode:<20}{ident_type}")?;
        if let Some(identifier) = identifier {
            write!(f, " identifier {identifier}")?;
        }
        writeln!(f)
    }
}

impl Display for WorkerState {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { worker, cpu, busy_ns, idle_ns, wakeups, rx_packets, handed_over, taken_over, queued, .. } = self;
        let cpu = cpu.map_or_else(|| "any".to_owned(), |cpu| cpu.to_string());
        let all_ns = (busy_ns + idle_ns).max(1);
        let busy = format!("{:.1}%", *busy_ns as f64 * 100.0 / all_ns as f64);
        writeln!(
            f,
            "{worker:<6} {cpu:>5} {busy:>6} {wakeups:>12} {rx_packets:>13} {handed_over:>13} {taken_over:>13} {queued:>8}"
        )?;
        match &self.without_queue[..] {
            [] => Ok(()),
            links => writeln!(f, "       no queue on {}: worker 0 sends there", links.join(", ")),
        }
    }
}

impl Display for SaSumsState {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for SaSumState { src, dst, reqid, dir, packets, bytes, expires_ms } in &self.sums {
            write!(f, "src {src} dst {dst} reqid {reqid} dir {dir}: packets {packets} bytes {bytes}")?;
            match expires_ms {
                Some(left) => writeln!(f, " expires in {} s", left / 1000)?,
                None => writeln!(f)?,
            }
        }
        if self.left_out > 0 {
            writeln!(f, "{} SAs are in no sum: there are too many sums", self.left_out)?;
        }
        for policy in self.policies.iter().filter(|policy| policy.without_sa == Some(true)) {
            writeln!(f, "policy without sa: {}dir {}", policy.selector, policy.dir)?;
        }
        Ok(())
    }
}

impl Display for SummaryState {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { version, pid, sas, policies, mappings, flows, .. } = self;
        writeln!(f, "fatpath {version} pid {pid}")?;
        f.write_str("routes")?;
        for table in &self.routes {
            write!(f, " {} in table {}", table.count, table.table)?;
        }
        writeln!(f)?;
        let SaCountState { valid, dying, larval, inbound, outbound, undirected } = sas;
        writeln!(
            f,
            "sa valid {valid} dying {dying} larval {larval}: in {inbound} out {outbound} without dir {undirected}"
        )?;
        let PolicyCountState { inbound, outbound, forward } = policies;
        writeln!(f, "policies in {inbound} out {outbound} fwd {forward}")?;
        writeln!(f, "mappings {mappings} flows {flows}")?;
        f.write_str("neighbours")?;
        for neighbours in self.neighbours.iter().filter(|it| it.count > 0) {
            write!(f, " {} {}", neighbours.count, neighbours.state)?;
        }
        writeln!(f)?;
        f.write_str(&whole(&self.fragments))?;
        write!(f, "memory {}", self.memory)?;
        f.write_str(&with_header(WORKER_HEADER, &self.workers))?;
        for worker in &self.workers {
            let per_call = |packets: u64, calls: u64| packets as f64 / calls.max(1) as f64;
            let received = per_call(worker.rx_wire_packets, worker.rx_calls);
            let sent = per_call(worker.tx_wire_packets, worker.tx_calls);
            let WorkerState { worker, bursts, sealing, opening, .. } = worker;
            writeln!(
                f,
                "worker {worker}: bursts {bursts}, packets a call {received:.1} in {sent:.1} out, to encrypt {sealing}, to decrypt {opening}"
            )?;
        }
        Ok(())
    }
}

impl Display for FragmentsState {
    /// Writes a line as in `/proc/net/sockstat`.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: inuse {} memory {}", self.name, self.inuse, self.memory)
    }
}

/// A number of bytes in the largest unit that leaves two digits or is exact, such as `64M`.
pub fn size(bytes: u64) -> String {
    let units = [(1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")];
    let fits = |unit: u64| bytes >= 10 * unit || (bytes > 0 && bytes.is_multiple_of(unit));
    match units.into_iter().find(|(unit, _)| fits(*unit)) {
        Some((unit, name)) => format!("{}{name}", bytes / unit),
        None => bytes.to_string(),
    }
}

impl Display for MemoryState {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match (self.limit, self.source.as_deref()) {
            (Some(limit), Some(source @ "[limits]")) => write!(f, "limit {} of {source}", size(limit))?,
            (Some(limit), source) => {
                write!(f, "limit {}, nine tenths of {}", size(limit), source.unwrap_or("the system"))?;
            }
            (None, _) => f.write_str("no limit")?,
        }
        let [used, live, reserve] = [self.used, self.live, self.reserve + self.growth].map(size);
        let [tables, queues, fragments] = [self.page_tables, self.queues, self.fragments].map(size);
        writeln!(f, ": used {used}, allocated {live}, kept free {reserve}")?;
        writeln!(f, "page tables {tables}, queues {queues}, fragments {fragments}, captures {}", self.captures)?;
        for table in &self.tables {
            let limit = table.limit.map_or_else(|| "none".to_owned(), |limit| limit.to_string());
            let bytes = size(table.bytes);
            writeln!(f, "{}: entries {} limit {limit} memory {bytes}", table.name, table.entries)?;
        }
        for pool in &self.pools {
            let [page, bytes] = [pool.page_size, pool.bytes].map(size);
            writeln!(f, "pages of {page}: {} in-use {} memory {bytes} dry {}", pool.pages, pool.in_use, pool.dry)?;
        }
        Ok(())
    }
}

impl SandboxState {
    /// The restrictions in one line, such as `landlock 7, seccomp, no_new_privs, no capabilities, user fatpath`.
    pub fn summary(&self) -> String {
        let mut words: Vec<String> = self.landlock.iter().map(|abi| format!("landlock {abi}")).collect();
        if self.filtered == self.threads && self.threads > 0 {
            words.push("seccomp".to_owned());
        }
        if self.no_new_privs {
            words.push("no_new_privs".to_owned());
        }
        words.push(match self.capabilities.as_slice() {
            [] => "no capabilities".to_owned(),
            some => format!("capabilities {}", some.join(" ")),
        });
        words.extend(self.user.iter().map(|user| format!("user {user}")));
        words.join(", ")
    }
}

impl Display for SandboxState {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let off = if self.enabled { "" } else { "off, " };
        writeln!(f, "sandbox {off}{}", self.summary())?;
        writeln!(f, "threads {} filtered {}", self.threads, self.filtered)?;
        let by = if self.by_opener { " by its opener" } else { "" };
        self.read.iter().try_for_each(|dir| writeln!(f, "read {dir}{by}"))?;
        self.write.iter().try_for_each(|dir| writeln!(f, "write {dir}{by}"))?;
        self.missing.iter().try_for_each(|missing| writeln!(f, "missing {missing}"))
    }
}

impl CountersState {
    fn to_text(&self, all: bool) -> String {
        let mut text = String::new();
        for counter in self.counters.iter().filter(|counter| all || counter.value != 0) {
            text += &format!("{:<32}{}\n", counter.name, counter.value);
        }
        for copy in self.copies.iter().filter(|copy| all || copy.copies != 0) {
            let name = format!("copied {}", copy.reason);
            text += &format!("{name:<32}{} bytes, {} times\n", copy.bytes, copy.copies);
        }
        if all || self.forwarded_packets != 0 {
            let (bytes, packets) = (self.forwarded_bytes, self.forwarded_packets);
            text += &format!("{:<32}{bytes} bytes, {packets} packets\n", "forwarded");
        }
        if self.forwarded_bytes != 0 {
            let copied = self.copies.iter().fold(0_u64, |sum, copy| sum.saturating_add(copy.bytes));
            let ratio = copied as f64 / self.forwarded_bytes as f64;
            text += &format!("{:<32}{ratio:.3}\n", "copied bytes per forwarded byte");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use crate::state::FlowState;

    #[test]
    fn flow_state_shows_both_ends_and_the_vrf() {
        let flow = |vrf: Option<&str>| FlowState {
            proto: "tcp".to_owned(),
            local: "[fd00::1]:443".parse().unwrap(),
            peer: "[fd00::2]:5000".parse().unwrap(),
            vrf: vrf.map(str::to_owned),
        };
        assert_eq!(
            flow(Some("red")).to_string(),
            "tcp   [fd00::1]:443                   [fd00::2]:5000                   vrf red\n"
        );
        assert!(!flow(None).to_string().contains("vrf"));
    }
}
