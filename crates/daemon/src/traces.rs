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

/// Packets of a viewer's trace in a second, of all shards.
const VIEWED_A_SECOND: u32 = 100;

/// Time for which such a number of packets is permitted.
const WINDOW: Duration = Duration::from_secs(1);

/// Limit of terms of a filter, each of which costs time for every packet.
const MAX_TERMS: usize = 32;

/// The running trace, if any.
#[derive(Debug, Default)]
pub(crate) struct Traces {
    running: Option<RunningTrace>,
}

/// Refusal of a trace beside another one.
pub(crate) const IS_RUNNING: &str = "another trace is running";

/// A running trace.
#[derive(Debug)]
struct RunningTrace {
    client: TraceClient,
    /// Packets that it may choose in later windows.
    rest: u32,
    /// Time at which it may choose further ones, if it has used up a window.
    refill_at: Option<Instant>,
}

/// Client of a trace.
#[derive(Clone, Debug)]
pub(crate) struct TraceClient {
    pub(crate) sink: SyncSender<TracePart>,
    /// Liveness of the client: cannot be upgraded after the client's thread has ended.
    pub(crate) alive: Weak<()>,
    /// Whether it is one of the view socket: its trace has a limited rate, and ends when one of the control socket begins.
    pub(crate) is_viewer: bool,
}

impl TraceClient {
    fn is_alive(&self) -> bool {
        self.alive.strong_count() > 0
    }
}

impl Traces {
    /// Starts a trace. A viewer's trace ends for one of the control socket.
    ///
    /// # Errors
    /// The filter is wrong, or another trace runs.
    pub(crate) fn start(
        &mut self,
        datapath: &mut Datapath,
        filter: &str,
        packets: u32,
        client: TraceClient,
        clock: TraceClock,
    ) -> Result<(), String> {
        let is_first =
            |running: &RunningTrace| running.client.is_alive() && (client.is_viewer || !running.client.is_viewer);
        if self.running.as_ref().is_some_and(is_first) {
            return Err(IS_RUNNING.to_owned());
        }
        let ports = || datapath.ports.iter();
        let link = |name: &str| ports().find(|(_, port)| port.config.name == name).map(|(id, _)| id);
        let filter = parse_filter(filter, link)?;
        let first = if client.is_viewer { packets.min(viewed_a_second(datapath)) } else { packets };
        self.running = Some(RunningTrace { client, rest: packets - first, refill_at: None });
        datapath.set_trace(Some(filter), first);
        datapath.set_trace_clock(clock);
        Ok(())
    }

    /// Stops the trace of this client, if it runs.
    pub(crate) fn stop(&mut self, datapath: &mut Datapath, client: &Weak<()>) {
        if self.running.as_ref().is_some_and(|running| running.client.alive.ptr_eq(client)) {
            self.end(datapath);
        }
    }

    fn end(&mut self, datapath: &mut Datapath) {
        self.running = None;
        datapath.set_trace(None, 0);
    }

    /// Sends the traced packets to the client. A slow client loses some of them; the trace ends with the last packet. In one of several
    /// shards it goes on until the client ends it, for packets that others hand over.
    pub(crate) fn deliver(&mut self, datapath: &mut Datapath, now: Instant) {
        let Some(running) = &mut self.running else { return };
        if !running.client.is_alive() {
            return self.end(datapath);
        }
        let (shard, count) = datapath.shard();
        running.refill(datapath, now);
        let is_over = datapath.is_trace_complete() && running.rest == 0 && count == ShardCount::ONE;
        if !datapath.has_traced() && !is_over {
            return;
        }
        let ports = &datapath.ports;
        let names: Vec<(PortId, String)> = ports.iter().map(|(id, port)| (id, port.config.name.clone())).collect();
        let name =
            |id| names.iter().find(|(known, _)| *known == id).map_or_else(|| "?".to_owned(), |(_, name)| name.clone());
        let epoch = datapath.epoch;
        let parts = group(datapath.take_trace(), epoch, name).into_iter().map(|trace| TracePart { shard, trace });
        let sent: Vec<_> = parts.map(|part| running.client.sink.try_send(part)).collect();
        let is_gone = sent.iter().any(|sent| matches!(sent, Err(TrySendError::Disconnected(_))));
        if is_gone || is_over {
            self.end(datapath);
        }
    }

    /// Time at which [`deliver`](Self::deliver) has to be called.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.running.as_ref().and_then(|running| running.refill_at)
    }
}

impl RunningTrace {
    /// Permits the packets of the next window, once the last ones are chosen and a window has passed since.
    fn refill(&mut self, datapath: &mut Datapath, now: Instant) {
        if self.rest == 0 || !datapath.is_trace_complete() {
            return;
        }
        if now >= *self.refill_at.get_or_insert(now + WINDOW) {
            let packets = self.rest.min(viewed_a_second(datapath));
            self.rest -= packets;
            self.refill_at = None;
            datapath.extend_trace(packets);
        }
    }
}

/// Packets that a viewer's trace chooses in a shard and a second.
fn viewed_a_second(datapath: &Datapath) -> u32 {
    let (_, count) = datapath.shard();
    VIEWED_A_SECOND.div_ceil(count.get() as u32)
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
/// The wrong word, in one line, or there are too many terms.
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
        if terms.len() == MAX_TERMS {
            return Err(format!("a filter has at most {MAX_TERMS} terms"));
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
        let terms = |count: usize| vec!["ip"; count].join(" and ");
        assert!(parse_filter(&terms(MAX_TERMS), link).is_ok());
        assert_eq!(parse_filter(&terms(MAX_TERMS + 1), link), Err("a filter has at most 32 terms".to_owned()));
    }

    /// Client of a trace, with what keeps it alive.
    fn client(is_viewer: bool) -> (TraceClient, std::sync::Arc<()>, std::sync::mpsc::Receiver<TracePart>) {
        let (sink, parts) = std::sync::mpsc::sync_channel(1024);
        let alive = std::sync::Arc::new(());
        (TraceClient { sink, alive: std::sync::Arc::downgrade(&alive), is_viewer }, alive, parts)
    }

    fn clock() -> TraceClock {
        TraceClock(Box::new(|| Instant::ZERO))
    }

    #[test]
    fn trace_of_a_viewer_ends_no_other_and_gives_way() {
        let mut datapath = Datapath::new();
        let mut traces = Traces::default();
        let (viewer, _viewer_lives, viewed) = client(true);
        let (other, _other_lives, seen) = client(false);
        let mut start = |client: &TraceClient| traces.start(&mut datapath, "", 5, client.clone(), clock());
        start(&viewer).unwrap();
        assert_eq!(start(&viewer), Err("another trace is running".to_owned()));
        start(&other).unwrap();
        assert_eq!(start(&viewer), Err("another trace is running".to_owned()));
        assert_eq!(start(&other), Err("another trace is running".to_owned()));
        let [of_viewer, of_other] = [viewer, other].map(|client| client.alive);
        let is_over = |parts: &std::sync::mpsc::Receiver<TracePart>| {
            matches!(parts.try_recv(), Err(std::sync::mpsc::TryRecvError::Disconnected))
        };
        assert!(is_over(&viewed) && !is_over(&seen));
        traces.stop(&mut datapath, &of_viewer);
        assert!(!is_over(&seen), "the end of the viewer's trace is not that of the other");
        traces.stop(&mut datapath, &of_other);
        assert!(is_over(&seen));
    }

    #[test]
    fn trace_of_a_viewer_has_a_limited_rate() {
        let mut datapath = Datapath::new();
        let mut traces = Traces::default();
        let (viewer, _lives, _parts) = client(true);
        traces.start(&mut datapath, "", VIEWED_A_SECOND + 20, viewer, clock()).unwrap();
        let at = |millis| Instant::ZERO + Duration::from_millis(millis);
        let use_up = |datapath: &mut Datapath| datapath.set_trace(Some(TraceFilter::default()), 0);
        assert!(!datapath.is_trace_complete());
        use_up(&mut datapath);
        traces.deliver(&mut datapath, at(5000));
        assert_eq!(traces.poll_timeout(), Some(at(6000)));
        traces.deliver(&mut datapath, at(5999));
        assert!(datapath.is_trace_complete());
        traces.deliver(&mut datapath, at(6000));
        let rest = |traces: &Traces| traces.running.as_ref().map(|running| running.rest);
        assert_eq!((datapath.is_trace_complete(), traces.poll_timeout(), rest(&traces)), (false, None, Some(0)));
        use_up(&mut datapath);
        traces.deliver(&mut datapath, at(6001));
        assert_eq!((rest(&traces), traces.poll_timeout()), (None, None), "it is over");
    }
}
