//! The running trace with its client, the filter language, and the form in which steps are shown.

use std::net::IpAddr;
use std::sync::Weak;
use std::sync::mpsc::{SyncSender, TrySendError};
use std::time::Duration;

use base::{Instant, PortId, Prefix, ShardCount};
use ctl::trace::{PacketTrace, TraceGso, TraceStep};
use datapath::{Datapath, EspRef, Geometry, HookPoint, Step, TraceClock, TraceFilter, TraceTerm};
use packet::{Csum, GsoKind};
use wire::{FlowKey, Protocol, Version};

use super::trace_parts::{HAND_OVER, TracePart};

/// The running trace, if any.
#[derive(Debug, Default)]
pub(crate) struct Traces {
    running: Option<RunningTrace>,
    /// Number of traces started so far.
    count: u64,
}

/// A running trace.
#[derive(Debug)]
struct RunningTrace {
    number: u64,
    sink: SyncSender<TracePart>,
    /// Liveness of the client: cannot be upgraded after the client's thread has ended.
    client: Weak<()>,
}

impl Traces {
    /// Starts a trace, and returns its number.
    ///
    /// # Errors
    /// The filter is wrong, or another trace runs.
    pub(crate) fn start(
        &mut self,
        datapath: &mut Datapath,
        filter: &str,
        packets: u32,
        sink: SyncSender<TracePart>,
        client: Weak<()>,
        clock: TraceClock,
    ) -> Result<u64, String> {
        if self.running.as_ref().is_some_and(|running| running.client.strong_count() > 0) {
            return Err("another trace is running".to_owned());
        }
        let ports = || datapath.ports.iter();
        let link = |name: &str| ports().find(|(_, port)| port.config.name == name).map(|(id, _)| id);
        let filter = parse_filter(filter, link)?;
        self.count += 1;
        self.running = Some(RunningTrace { number: self.count, sink, client });
        datapath.set_trace(Some(filter), packets);
        datapath.set_trace_clock(clock);
        Ok(self.count)
    }

    /// Stops the trace `number`, if it runs.
    pub(crate) fn stop(&mut self, datapath: &mut Datapath, number: u64) {
        if self.running.as_ref().is_some_and(|running| running.number == number) {
            self.running = None;
            datapath.set_trace(None, 0);
        }
    }

    /// Sends the traced packets to the client. A slow client loses some of them; the trace ends with the last packet. In one of several
    /// shards it goes on until the client ends it, for packets that others hand over.
    pub(crate) fn deliver(&mut self, datapath: &mut Datapath) {
        let Some(running) = &self.running else { return };
        let number = running.number;
        if running.client.strong_count() == 0 {
            return self.stop(datapath, number);
        }
        let (shard, count) = datapath.shard();
        let is_over = datapath.is_trace_complete() && count == ShardCount::ONE;
        if !datapath.has_traced() && !is_over {
            return;
        }
        let ports = &datapath.ports;
        let names: Vec<(PortId, String)> = ports.iter().map(|(id, port)| (id, port.config.name.clone())).collect();
        let name =
            |id| names.iter().find(|(known, _)| *known == id).map_or_else(|| "?".to_owned(), |(_, name)| name.clone());
        let epoch = datapath.epoch;
        let parts = group(datapath.take_trace(), epoch, name).into_iter().map(|trace| TracePart { shard, trace });
        let sent: Vec<_> = parts.map(|part| running.sink.try_send(part)).collect();
        let is_gone = sent.iter().any(|sent| matches!(sent, Err(TrySendError::Disconnected(_))));
        if is_gone || is_over {
            self.stop(datapath, number);
        }
    }
}

/// Parses a filter: terms joined by `and`, each negated by a preceding `not`.
///
/// | term | chooses |
/// |---|---|
/// | `ip`, `ip6` | the version |
/// | `tcp`, `udp`, `icmp`, `icmp6`, `esp`, `proto NUMBER` | the protocol |
/// | `[src\|dst] host ADDRESS`, `[src\|dst] net PREFIX` | addresses |
/// | `[src\|dst] port NUMBER` | ports |
/// | `dev NAME` | the link that received a packet, or the VRF of that link |
///
/// # Errors
/// The wrong word, in one line.
pub(crate) fn parse_filter(text: &str, link: impl Fn(&str) -> Option<PortId>) -> Result<TraceFilter, String> {
    let mut words = text.split_whitespace().peekable();
    let mut terms = Vec::new();
    while words.peek().is_some() {
        if !terms.is_empty()
            && let Some(word) = words.next_if(|&word| word != "and")
        {
            let remedy = match word {
                "port" => "; a port has a number, and is a term of its own: `udp and port 53`",
                _ => "",
            };
            return Err(format!("filter {text:?}: terms are joined by \"and\", not {word:?}{remedy}"));
        }
        if !terms.is_empty() {
            words.next();
        }
        let mut is_negated = false;
        while words.next_if_eq(&"not").is_some() {
            is_negated = !is_negated;
        }
        terms.push((is_negated, parse_term(&mut words, &link).map_err(|why| format!("filter {text:?}: {why}"))?));
    }
    Ok(TraceFilter { terms })
}

/// Terms of a filter, for error messages.
const TERMS: &str = "ip, ip6, tcp, udp, icmp, icmp6, esp, proto NUMBER, [src|dst] host ADDRESS, [src|dst] net PREFIX, [src|dst] port NUMBER, \
                     dev LINK";

fn parse_term<'a>(
    words: &mut impl Iterator<Item = &'a str>,
    link: &impl Fn(&str) -> Option<PortId>,
) -> Result<TraceTerm, String> {
    let mut next = || words.next().ok_or_else(|| "a word is missing at the end".to_owned());
    let mut word = next()?;
    let side = if matches!(word, "src" | "dst") { Some(std::mem::replace(&mut word, next()?)) } else { None };
    let of_prefix = |prefix: Prefix| match side {
        Some("src") => TraceTerm::Src(prefix),
        Some(_) => TraceTerm::Dst(prefix),
        None => TraceTerm::Either(prefix),
    };
    Ok(match word {
        "host" => {
            let addr: IpAddr = parse(next()?, "an address")?;
            of_prefix(Prefix::host(addr))
        }
        "net" => of_prefix(parse(next()?, "a prefix")?),
        "port" => {
            let port = parse(next()?, "a port")?;
            match side {
                Some("src") => TraceTerm::SrcPort(port),
                Some(_) => TraceTerm::DstPort(port),
                None => TraceTerm::Port(port),
            }
        }
        _ if side.is_some() => return Err(format!("\"host\", \"net\" or \"port\" is expected, not {word:?}")),
        "ip" => TraceTerm::Version(Version::V4),
        "ip6" => TraceTerm::Version(Version::V6),
        "tcp" => TraceTerm::Protocol(Protocol::TCP),
        "udp" => TraceTerm::Protocol(Protocol::UDP),
        "icmp" => TraceTerm::Protocol(Protocol::ICMP),
        "icmp6" => TraceTerm::Protocol(Protocol::ICMPV6),
        "esp" => TraceTerm::Protocol(Protocol::ESP),
        "proto" => TraceTerm::Protocol(Protocol(parse(next()?, "a protocol's number")?)),
        "dev" => {
            let name = next()?;
            TraceTerm::Dev(link(name).ok_or_else(|| format!("no link is named {name}"))?)
        }
        other => return Err(format!("{other:?} is no term; terms are {TERMS}")),
    })
}

fn parse<T: std::str::FromStr>(word: &str, what: &str) -> Result<T, String> {
    word.parse().map_err(|_| format!("{word:?} is not {what}"))
}

/// Groups steps by packet. `epoch` is the time from the Unix epoch to the steps' time 0.
fn group(
    steps: impl Iterator<Item = datapath::TraceStep>,
    epoch: Duration,
    name: impl Fn(PortId) -> String,
) -> Vec<PacketTrace> {
    let mut traces: Vec<PacketTrace> = Vec::new();
    for step in steps {
        // Most steps follow a step of the same packet.
        let at = traces.iter().rposition(|trace| trace.packet == step.packet).unwrap_or_else(|| {
            traces.push(PacketTrace { packet: step.packet, steps: Vec::new() });
            traces.len() - 1
        });
        traces[at].steps.push(show(&step, epoch, &name));
    }
    traces
}

fn show(step: &datapath::TraceStep, epoch: Duration, name: &impl Fn(PortId) -> String) -> TraceStep {
    let (word, dev, detail) = describe(step, name);
    let none = Geometry {
        len: 0,
        head: 0,
        slots: 0,
        children: 0,
        truesize: 0,
        csum: Csum::None,
        gso: None,
        is_fragment: false,
    };
    let Geometry { len, head, slots, children, truesize, csum, gso, is_fragment } = step.geometry.unwrap_or(none);
    let csum = match csum {
        Csum::None => "none",
        Csum::Unnecessary => "unnecessary",
        Csum::Complete(_) => "complete",
        Csum::Partial { .. } => "partial",
    };
    let gso = gso.map(|gso| {
        let kind = match gso.kind {
            GsoKind::TcpV4 => "tcp4",
            GsoKind::TcpV6 => "tcp6",
            GsoKind::Udp => "udp",
        };
        TraceGso { kind: kind.to_owned(), size: gso.size, segs: gso.segs }
    });
    TraceStep {
        time: (epoch + step.at.since(Instant::ZERO)).as_secs_f64(),
        step: word,
        dev: dev.map(name),
        detail,
        flow: step.flow.map(|flow| flow_text(&flow)),
        len,
        head,
        slots,
        children,
        truesize,
        csum: csum.to_owned(),
        gso,
        fragment: is_fragment,
    }
}

fn describe(step: &datapath::TraceStep, name: &impl Fn(PortId) -> String) -> (String, Option<PortId>, Option<String>) {
    let link = step.origin.port();
    match step.step {
        Step::Input => ("input".to_owned(), link, None),
        Step::Hook { point, dev } => (format!("hook {}", point_word(point)), Some(dev), None),
        Step::Ila { from } => ("ila".to_owned(), None, Some(format!("from {from}"))),
        Step::Route { table, prefix, domain } => {
            let found = match (table, prefix) {
                (Some(table), Some(prefix)) => format!("table {table} {prefix}"),
                (None, Some(prefix)) => format!("rule {prefix}"),
                (_, None) => "no route".to_owned(),
            };
            let vrf = domain.vrf_device().map_or(String::new(), |device| format!(" vrf {}", name(device)));
            ("route".to_owned(), None, Some(found + &vrf))
        }
        Step::Local => ("local".to_owned(), link, None),
        Step::Forward { dev, next_hop } => ("forward".to_owned(), Some(dev), Some(format!("via {next_hop}"))),
        Step::Output { dev } => ("output".to_owned(), Some(dev), None),
        Step::Up { dev } => ("up".to_owned(), Some(dev), None),
        Step::Policy { dir, src, dst } => ("policy".to_owned(), None, Some(format!("{dir} {src} > {dst}"))),
        Step::Decrypt { sa } => ("decrypt".to_owned(), link, sa.map(sa_text)),
        Step::Encrypt { sa } => ("encrypt".to_owned(), None, sa.map(sa_text)),
        Step::Transmit { dev, next_hop } => ("transmit".to_owned(), Some(dev), Some(format!("via {next_hop}"))),
        Step::Resolve { dev } => ("resolve".to_owned(), Some(dev), None),
        Step::HandOver { to } => (HAND_OVER.to_owned(), None, Some(format!("to worker {to}"))),
        Step::Queued { dev } => ("queued".to_owned(), Some(dev), None),
        Step::Drop(reason) => ("drop".to_owned(), link, Some(reason.name().to_owned())),
        Step::EspDrop { reason, spi, peer, outbound } => {
            let spi = spi.map_or_else(String::new, |spi| format!(" spi {:#x}", spi.0));
            let side = if outbound { "to" } else { "from" };
            ("drop".to_owned(), link, Some(format!("{}{spi} {side} {peer}", reason.name())))
        }
        Step::Reject(reason, _) => ("reject".to_owned(), link, Some(reason.name().to_owned())),
    }
}

fn sa_text(sa: EspRef) -> String {
    format!("spi {:#x} reqid {}", sa.spi.0, sa.reqid)
}

const fn point_word(point: HookPoint) -> &'static str {
    match point {
        HookPoint::PreRouting => "pre-routing",
        HookPoint::LocalIn => "local-in",
        HookPoint::Forward => "forward",
        HookPoint::LocalOut => "local-out",
        HookPoint::PostRouting => "post-routing",
    }
}

fn flow_text(flow: &FlowKey) -> String {
    let FlowKey { src, dst, protocol, sport, dport } = *flow;
    match protocol {
        Protocol::TCP | Protocol::UDP | Protocol::SCTP => {
            let [from, to] = [(src, sport), (dst, dport)].map(std::net::SocketAddr::from);
            format!("{from} > {to} {protocol}")
        }
        _ => format!("{src} > {dst} {protocol}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(name: &str) -> Option<PortId> {
        (name == "lan").then_some(PortId(1))
    }

    #[test]
    fn filter_terms_are_parsed_or_refused_by_name() {
        let terms = parse_filter("ip and not src net 10.0.0.0/8 and dst port 53 and dev lan and host fd00::1", link);
        let terms = terms.unwrap().terms;
        assert_eq!(terms.len(), 5);
        assert_eq!(terms[0], (false, TraceTerm::Version(Version::V4)));
        assert_eq!(terms[1], (true, TraceTerm::Src("10.0.0.0/8".parse().unwrap())));
        assert_eq!(terms[2], (false, TraceTerm::DstPort(53)));
        assert_eq!(terms[3], (false, TraceTerm::Dev(PortId(1))));
        assert_eq!(terms[4], (false, TraceTerm::Either("fd00::1/128".parse().unwrap())));
        assert_eq!(parse_filter("", link), Ok(TraceFilter::default()));
        for (text, why) in [
            ("tcp udp", "joined by \"and\", not \"udp\""),
            ("udp port", "a port has a number, and is a term of its own: `udp and port 53`"),
            ("tcpp", "\"tcpp\" is no term; terms are ip, ip6, tcp, udp, icmp,"),
            ("tcp and", "missing at the end"),
            ("src", "missing at the end"),
            ("src tcp", "not \"tcp\""),
            ("host 10.0.0", "\"10.0.0\" is not an address"),
            ("net 10.0.0.1/8", "is not a prefix"),
            ("port 70000", "\"70000\" is not a port"),
            ("proto esp", "is not a protocol's number"),
            ("dev wan", "no link is named wan"),
            ("or", "\"or\" is no term"),
        ] {
            let error = parse_filter(text, link).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
