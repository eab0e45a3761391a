//! Tables of text of a gateway's state and rates.

use std::fmt::Write as _;

use crate::rates::{DropRates, LinkRates, Picture, TunnelRates, WorkerRates};

/// Tables of a gateway.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tables {
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

impl Tables {
    pub(crate) fn new(picture: &Picture) -> Self {
        Self {
            title: title(picture),
            links: links(picture),
            tunnels: tunnels(picture),
            drops: drops(picture),
            workers: workers(picture),
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

fn title(picture: &Picture) -> String {
    let Picture { version, up_secs, memory, memory_limit, sas, dying, larval, .. } = picture;
    let mut title = format!("fatpath {version}  up {}  memory {}", time(*up_secs), bytes(*memory));
    if let Some(limit) = memory_limit {
        let _ = write!(title, " of {}", bytes(*limit));
    }
    let _ = write!(title, "  sa {sas} dying {dying} larval {larval}");
    title
}

fn links(picture: &Picture) -> Table {
    let row = |link: &LinkRates| Row {
        cells: vec![
            shown(&link.name),
            if link.up { "up" } else { "down" }.to_owned(),
            number(link.received),
            number(link.sent),
            number(link.received_packets),
            number(link.sent_packets),
            link.per_call.map_or_else(none, |ratio| format!("{ratio:.1}")),
            number(link.drop_rate),
            link.drops.to_string(),
        ],
        rate: sum(link.received, link.sent),
        is_bad: !link.up,
        notes: Vec::new(),
    };
    Table {
        name: "links",
        head: &["link", "", "in bit/s", "out bit/s", "in p/s", "out p/s", "p/call", "drops/s", "drops"],
        rows: picture.links.iter().map(row).collect(),
        none: "no links",
    }
}

fn tunnels(picture: &Picture) -> Table {
    const NONE: Table = Table {
        name: "tunnels",
        head: &["tunnel", "reqid", "in bit/s", "out bit/s", "ends in"],
        rows: Vec::new(),
        none: "no SAs, and no policy needs any",
    };
    let Some(tunnels) = &picture.tunnels else {
        return Table { none: "too many SAs or policies to ask for", ..NONE };
    };
    let row = |tunnel: &TunnelRates| {
        let name = tunnel.name.as_ref().map_or_else(String::new, |name| format!("{} ", shown(name)));
        let [local, remote] = [tunnel.local, tunnel.remote].map(|end| end.map_or_else(none, |end| end.to_string()));
        Row {
            cells: vec![
                format!("{name}{local} > {remote}"),
                tunnel.reqid.to_string(),
                number(tunnel.received),
                number(tunnel.sent),
                tunnel.ends_ms.map_or_else(none, |left| time(left / 1000)),
            ],
            rate: sum(tunnel.received, tunnel.sent),
            is_bad: tunnel.fault.is_some(),
            notes: tunnel.fault.iter().map(|fault| shown(fault)).collect(),
        }
    };
    let mut rows: Vec<Row> = tunnels.iter().map(row).collect();
    for policy in &picture.without_sa {
        let selector = &policy.selector;
        rows.push(Row {
            cells: vec![format!("{} > {} dir {}: no SA", selector.src, selector.dst, policy.dir)],
            is_bad: true,
            ..Row::default()
        });
    }
    Table { rows, ..NONE }
}

fn drops(picture: &Picture) -> Table {
    let row = |drop: &DropRates| {
        // Only of those that happen now: the table stays short.
        let happens = drop.rate.is_some_and(|rate| rate > 0.0);
        let notes = [&drop.cause, &drop.remedy].into_iter().flatten().filter(|_| happens);
        Row {
            cells: vec![
                shown(&drop.reason),
                drop.link.as_deref().map_or_else(none, shown),
                number(drop.rate),
                drop.count.to_string(),
            ],
            rate: drop.rate.unwrap_or_default(),
            is_bad: happens,
            notes: notes.cloned().collect(),
        }
    };
    Table {
        name: "drops",
        head: &["reason", "link", "packets/s", "packets"],
        rows: picture.drops.iter().map(row).collect(),
        none: "no packet has been dropped",
    }
}

fn workers(picture: &Picture) -> Table {
    let row = |worker: &WorkerRates| Row {
        cells: vec![
            worker.worker.to_string(),
            worker.busy.map_or_else(none, |busy| format!("{:.0} %", 100.0 * busy)),
            number(worker.wakeups),
            number(worker.bursts),
            number(worker.received_packets),
            number(worker.sent_packets),
            worker.queued.to_string(),
            worker.sealing.to_string(),
            worker.opening.to_string(),
        ],
        rate: worker.busy.unwrap_or_default(),
        is_bad: worker.busy.is_some_and(|busy| busy > 0.95),
        notes: Vec::new(),
    };
    Table {
        name: "workers",
        head: &["worker", "busy", "wakeups/s", "bursts/s", "in p/s", "out p/s", "queued", "to encrypt", "to decrypt"],
        rows: picture.workers.iter().map(row).collect(),
        none: "no workers",
    }
}

fn sum(a: Option<f64>, b: Option<f64>) -> f64 {
    a.unwrap_or_default() + b.unwrap_or_default()
}

/// Text of a name: control characters, which a terminal would obey, are replaced.
pub(crate) fn shown(name: &str) -> String {
    name.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

fn none() -> String {
    "-".to_owned()
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
