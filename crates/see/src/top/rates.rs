//! Rates between two answers of a gateway, as tables of text.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::net::IpAddr;
use std::time::Duration;

use base::DropReason;
use ctl::state::{DropState, LinkState, SaSumState, WorkerState};
use xfrm::SaDir;

use crate::scrape::Sample;

/// Tables of a gateway.
#[derive(Clone, Debug, Default)]
pub(crate) struct Picture {
    /// Version, age and memory of the gateway, in one line.
    pub(crate) title: String,
    pub(crate) links: Table,
    pub(crate) tunnels: Table,
    pub(crate) drops: Table,
    pub(crate) workers: Table,
}

/// Table of text.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    pub(crate) name: &'static str,
    /// Heads of the columns. The first column is aligned to the left, the others to the right.
    pub(crate) head: &'static [&'static str],
    pub(crate) rows: Vec<Row>,
    /// Line in place of rows, if there are none.
    pub(crate) none: &'static str,
}

/// Row of a table.
#[derive(Clone, Debug, Default)]
pub(crate) struct Row {
    /// Texts of the columns.
    pub(crate) cells: Vec<String>,
    /// Rate by which rows are sorted.
    pub(crate) rate: f64,
    /// Whether it is a fault.
    pub(crate) is_bad: bool,
    /// Lines below the row.
    pub(crate) notes: Vec<String>,
}

/// Two answers of one process of the gateway, and the time between them.
struct Rates<'a> {
    before: &'a Sample,
    seconds: f64,
}

impl Rates<'_> {
    /// Rate of a counter that was `before`.
    fn of(&self, before: u64, now: u64) -> f64 {
        now.saturating_sub(before) as f64 / self.seconds
    }
}

impl Picture {
    /// Picture of `now`, with rates since `before`, unless the gateway was started anew between them.
    pub(crate) fn between(before: Option<&Sample>, now: &Sample) -> Self {
        let rates = before
            .filter(|before| before.summary.started_ms == now.summary.started_ms)
            .map(|before| Rates { before, seconds: (now.taken - before.taken).as_secs_f64() })
            .filter(|rates| rates.seconds > 0.0);
        let rates = rates.as_ref();
        Self {
            title: title(now),
            links: links(rates, now),
            tunnels: tunnels(rates, now),
            drops: drops(rates, now),
            workers: workers(rates, now),
        }
    }

    /// All tables.
    pub(crate) fn text(&self) -> String {
        let mut text = format!("{}\n", self.title);
        for table in [&self.links, &self.tunnels, &self.drops, &self.workers] {
            let _ = write!(text, "\n{}\n", table.name);
            for line in table.lines(&table.sorted(true, "")) {
                let _ = writeln!(text, "{}", line.text.trim_end());
            }
        }
        text
    }
}

/// Line of a table.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct TableLine {
    pub(crate) text: String,
    pub(crate) kind: LineKind,
}

/// Kind of a line, by which it has its style.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum LineKind {
    Head,
    Plain,
    /// A fault.
    Bad,
    /// A note below a row.
    Note,
}

impl Table {
    /// Rows that have `filter` in a cell, by rate or by their first cells; faults are the first.
    pub(crate) fn sorted(&self, by_rate: bool, filter: &str) -> Vec<&Row> {
        let has = |cell: &String| cell.to_lowercase().contains(filter);
        let mut rows: Vec<&Row> = self.rows.iter().filter(|row| row.cells.iter().any(has)).collect();
        rows.sort_by(|a, b| {
            let by_name = a.cells.cmp(&b.cells);
            let by_rate = if by_rate { b.rate.total_cmp(&a.rate) } else { std::cmp::Ordering::Equal };
            b.is_bad.cmp(&a.is_bad).then(by_rate).then(by_name)
        });
        rows
    }

    /// Lines of these rows with aligned columns, below those of the head.
    pub(crate) fn lines(&self, rows: &[&Row]) -> Vec<TableLine> {
        if rows.is_empty() {
            let text = if self.rows.is_empty() { self.none } else { "no row has this filter" };
            return vec![TableLine { text: text.to_owned(), kind: LineKind::Note }];
        }
        let width = |at: usize| {
            let cells = rows.iter().filter_map(|row| row.cells.get(at)).map(|cell| cell.chars().count());
            cells.max().unwrap_or_default().max(self.head[at].len())
        };
        let widths: Vec<usize> = (0..self.head.len()).map(width).collect();
        let line = |cells: &mut dyn Iterator<Item = &str>| {
            let mut text = String::new();
            for (at, (cell, &width)) in cells.zip(&widths).enumerate() {
                // Writing to a string does not fail.
                let _ = match at {
                    0 => write!(text, "{cell:<width$}"),
                    _ => write!(text, "  {cell:>width$}"),
                };
            }
            text
        };
        let mut lines = vec![TableLine { text: line(&mut self.head.iter().copied()), kind: LineKind::Head }];
        for row in rows {
            let kind = if row.is_bad { LineKind::Bad } else { LineKind::Plain };
            lines.push(TableLine { text: line(&mut row.cells.iter().map(String::as_str)), kind });
            lines.extend(row.notes.iter().map(|note| TableLine { text: format!("    {note}"), kind: LineKind::Note }));
        }
        lines
    }
}

fn title(now: &Sample) -> String {
    let summary = &now.summary;
    let age = now.at.saturating_sub(Duration::from_millis(summary.started_ms)).as_secs();
    let mut title = format!("fatpath {}  up {}  memory {}", summary.version, time(age), bytes(summary.memory.used));
    if let Some(limit) = summary.memory.limit {
        let _ = write!(title, " of {}", bytes(limit));
    }
    let sas = &summary.sas;
    let _ = write!(title, "  sa {} dying {} larval {}", sas.valid + sas.dying, sas.dying, sas.larval);
    title
}

fn links(rates: Option<&Rates<'_>>, now: &Sample) -> Table {
    let old: HashMap<&str, &LinkState> =
        rates.iter().flat_map(|rates| &rates.before.links).map(|link| (link.name.as_str(), link)).collect();
    let row = |link: &LinkState| {
        let stats = &link.stats;
        // Counters of a link that was made anew begin at 0.
        let found = rates.zip(old.get(link.name.as_str()).filter(|old| old.index == link.index));
        let rate = |count: fn(&LinkState) -> u64| found.map(|(rates, old)| rates.of(count(old), count(link)));
        let (received, sent) = (rate(|it| it.stats.rx_bytes), rate(|it| it.stats.tx_bytes));
        let dropped = rate(|it| it.stats.rx_dropped + it.stats.tx_dropped);
        let calls = rate(|it| it.stats.rx_calls + it.stats.tx_calls).filter(|calls| *calls > 0.0);
        let packets = rate(|it| it.stats.rx_wire_packets + it.stats.tx_wire_packets);
        let per_call = packets.zip(calls).map(|(packets, calls)| packets / calls);
        Row {
            cells: vec![
                shown(&link.name),
                if link.up { "up" } else { "down" }.to_owned(),
                bits(received),
                bits(sent),
                number(rate(|it| it.stats.rx_wire_packets)),
                number(rate(|it| it.stats.tx_wire_packets)),
                per_call.map_or_else(none, |ratio| format!("{ratio:.1}")),
                number(dropped),
                (stats.rx_dropped + stats.tx_dropped).to_string(),
            ],
            rate: received.unwrap_or_default() + sent.unwrap_or_default(),
            is_bad: !link.up,
            notes: Vec::new(),
        }
    };
    Table {
        name: "links",
        head: &["link", "", "in bit/s", "out bit/s", "in p/s", "out p/s", "p/call", "drops/s", "drops"],
        rows: now.links.iter().map(row).collect(),
        none: "no links",
    }
}

/// Outer addresses of this end and of the peer, and the reqid.
type TunnelEnds = (IpAddr, IpAddr, u32);

/// Whether the SAs of a sum receive, with the ends of their tunnel.
fn ends_of(sum: &SaSumState) -> (bool, TunnelEnds) {
    match sum.dir {
        SaDir::In => (true, (sum.dst, sum.src, sum.reqid)),
        SaDir::Out => (false, (sum.src, sum.dst, sum.reqid)),
    }
}

fn tunnels(rates: Option<&Rates<'_>>, now: &Sample) -> Table {
    const NONE: Table = Table {
        name: "tunnels",
        head: &["tunnel", "reqid", "in bit/s", "out bit/s", "ends in"],
        rows: Vec::new(),
        none: "no SAs, and no policy needs any",
    };
    let Some(sums) = &now.sums else { return Table { none: "too many SAs or policies to ask for", ..NONE } };
    let old: HashMap<(bool, TunnelEnds), u64> = rates
        .and_then(|rates| rates.before.sums.as_ref())
        .iter()
        .flat_map(|sums| &sums.sums)
        .map(|sum| (ends_of(sum), sum.bytes))
        .collect();
    /// Rates in and out, and the time of the first end.
    #[derive(Default)]
    struct Both {
        rates: [Option<f64>; 2],
        end_ms: Option<u64>,
    }
    let mut both: BTreeMap<TunnelEnds, Both> = BTreeMap::new();
    for sum in &sums.sums {
        let (is_in, ends) = ends_of(sum);
        let tunnel = both.entry(ends).or_default();
        let before = old.get(&(is_in, ends));
        tunnel.rates[usize::from(!is_in)] = rates.zip(before).map(|(rates, before)| rates.of(*before, sum.bytes));
        tunnel.end_ms = tunnel.end_ms.into_iter().chain(sum.expires_ms).min();
    }
    let mut rows: Vec<Row> = Vec::new();
    for ((local, remote, reqid), Both { rates: [received, sent], end_ms }) in both {
        let named = sums.tunnels.iter().find(|tunnel| (tunnel.local, tunnel.remote) == (local, remote));
        let name = named.map_or_else(String::new, |tunnel| format!("{} ", shown(&tunnel.name)));
        rows.push(Row {
            cells: vec![
                format!("{name}{local} > {remote}"),
                reqid.to_string(),
                bits(received),
                bits(sent),
                end_ms.map_or_else(none, |left| time(left / 1000)),
            ],
            rate: received.unwrap_or_default() + sent.unwrap_or_default(),
            ..Row::default()
        });
    }
    for policy in sums.policies.iter().filter(|policy| policy.without_sa == Some(true)) {
        let selector = &policy.selector;
        rows.push(Row {
            cells: vec![format!("{} > {} dir {}: no SA", selector.src, selector.dst, policy.dir)],
            is_bad: true,
            ..Row::default()
        });
    }
    Table { rows, ..NONE }
}

fn drops(rates: Option<&Rates<'_>>, now: &Sample) -> Table {
    let key = |drop: &DropState| (drop.reason.clone(), drop.link.clone());
    let old: HashMap<_, u64> =
        rates.iter().flat_map(|rates| &rates.before.drops).map(|drop| (key(drop), drop.count)).collect();
    let row = |drop: &DropState| {
        let rate = rates.map(|rates| rates.of(old.get(&key(drop)).copied().unwrap_or_default(), drop.count));
        let known = DropReason::ALL.iter().copied().find(|reason| reason.name() == drop.reason);
        // Only of those that happen now: the table stays short.
        let happens = rate.is_some_and(|rate| rate > 0.0);
        let notes = known.filter(|_| happens).map(|reason| vec![reason.cause(), reason.remedy()]).unwrap_or_default();
        Row {
            cells: vec![
                shown(&drop.reason),
                drop.link.as_deref().map_or_else(none, shown),
                number(rate),
                drop.count.to_string(),
            ],
            rate: rate.unwrap_or_default(),
            is_bad: happens,
            notes,
        }
    };
    Table {
        name: "drops",
        head: &["reason", "link", "packets/s", "packets"],
        rows: now.drops.iter().map(row).collect(),
        none: "no packet has been dropped",
    }
}

fn workers(rates: Option<&Rates<'_>>, now: &Sample) -> Table {
    let row = |worker: &WorkerState| {
        let old = rates.and_then(|rates| rates.before.summary.workers.iter().find(|old| old.worker == worker.worker));
        let found = rates.zip(old);
        let rate = |count: fn(&WorkerState) -> u64| found.map(|(rates, old)| rates.of(count(old), count(worker)));
        let busy = rate(|it| it.busy_ns).map(|nanos| (nanos / 1e9).min(1.0));
        let wakeups = rate(|it| it.wakeups);
        Row {
            cells: vec![
                worker.worker.to_string(),
                busy.map_or_else(none, |busy| format!("{:.0} %", 100.0 * busy)),
                number(wakeups),
                number(rate(|it| it.bursts)),
                number(rate(|it| it.rx_wire_packets)),
                number(rate(|it| it.tx_wire_packets)),
                worker.queued.to_string(),
                worker.sealing.to_string(),
                worker.opening.to_string(),
            ],
            rate: busy.unwrap_or_default(),
            is_bad: busy.is_some_and(|busy| busy > 0.95),
            notes: Vec::new(),
        }
    };
    Table {
        name: "workers",
        head: &["worker", "busy", "wakeups/s", "bursts/s", "in p/s", "out p/s", "queued", "to encrypt", "to decrypt"],
        rows: now.summary.workers.iter().map(row).collect(),
        none: "no workers",
    }
}

/// Text of a name: control characters, which a terminal would obey, are replaced.
pub(crate) fn shown(name: &str) -> String {
    name.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

fn none() -> String {
    "-".to_owned()
}

fn bits(bytes: Option<f64>) -> String {
    number(bytes.map(|bytes| 8.0 * bytes))
}

/// Number with three digits and a prefix of 1000.
fn number(number: Option<f64>) -> String {
    let Some(mut number) = number else { return none() };
    for prefix in ["", "k", "M", "G", "T"] {
        if number < 999.5 {
            let digits = if prefix.is_empty() || number >= 99.95 { 0 } else { 1 };
            return format!("{number:.digits$}{prefix}");
        }
        number /= 1000.0;
    }
    format!("{number:.0}P")
}

fn bytes(bytes: u64) -> String {
    match bytes {
        0..0x10_0000 => format!("{} KiB", bytes >> 10),
        0x10_0000..0x4000_0000 => format!("{} MiB", bytes >> 20),
        _ => format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30)),
    }
}

/// Time in its two greatest units.
fn time(seconds: u64) -> String {
    let [days, hours, minutes] = [seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60];
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, _) => format!("{minutes} min {} s", seconds % 60),
        (0, ..) => format!("{hours} h {minutes} min"),
        _ => format!("{days} d {hours} h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits() {
        for (value, want) in [
            (0.0, "0"),
            (999.4, "999"),
            (999.6, "1.0k"),
            (12_345.0, "12.3k"),
            (99_960.0, "100k"),
            (2.5e6, "2.5M"),
            (6.04e9, "6.0G"),
            (7e15, "7P"),
        ] {
            assert_eq!(number(Some(value)), want, "{value}");
        }
        assert_eq!(number(None), "-");
        for (seconds, want) in [(59, "59 s"), (61, "1 min 1 s"), (7260, "2 h 1 min"), (90_000, "1 d 1 h")] {
            assert_eq!(time(seconds), want);
        }
        assert_eq!([1 << 10, 5 << 20, 3 << 29].map(bytes), ["1 KiB", "5 MiB", "1.5 GiB"]);
    }

    #[test]
    fn faults_are_first_and_a_filter_leaves_its_rows() {
        let row = |name: &str, rate: f64, is_bad: bool| Row {
            cells: vec![name.to_owned()],
            rate,
            is_bad,
            notes: vec![format!("of {name}")],
        };
        let rows = vec![row("b", 1.0, false), row("a", 2.0, false), row("ca", 0.0, true)];
        let table = Table { name: "x", head: &["name"], rows, none: "none" };
        let names = |by_rate, filter| -> Vec<String> {
            table.sorted(by_rate, filter).iter().map(|row| row.cells[0].clone()).collect()
        };
        assert_eq!(names(true, ""), ["ca", "a", "b"]);
        assert_eq!(names(false, ""), ["ca", "a", "b"]);
        assert_eq!(names(false, "a"), ["ca", "a"]);
        let lines: Vec<String> = table.lines(&table.sorted(true, "b")).into_iter().map(|line| line.text).collect();
        assert_eq!(lines, ["name", "b   ", "    of b"]);
        assert_eq!(table.lines(&[])[0].text, "no row has this filter");
    }

    #[test]
    fn name_with_control_characters_is_harmless() {
        assert_eq!(shown("a\u{1b}[2Jb\u{9b}1mé"), "a\u{fffd}[2Jb\u{fffd}1mé");
    }
}
