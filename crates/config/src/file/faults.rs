//! Errors and warnings of a file, gathered while its tables are read.

use std::collections::{BTreeMap, HashSet};
use std::fmt;

use super::reader::{ConfigError, Fault, Refers, Source, Table, Value};

/// Errors or warnings of a file, in the order of their lines: at most [`Findings::MAX`], and the number of further ones.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Findings {
    /// The first ones.
    pub first: Vec<ConfigError>,
    /// Number of further ones.
    pub more: usize,
}

impl Findings {
    /// Maximum number of findings with their texts.
    pub const MAX: usize = 20;

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.first.is_empty()
    }

    /// A line for each error.
    pub fn errors(&self) -> Vec<String> {
        self.lines(ToString::to_string)
    }

    /// A line for each warning.
    pub fn warnings(&self) -> Vec<String> {
        self.lines(ConfigError::warning)
    }

    fn lines(&self, line: impl Fn(&ConfigError) -> String) -> Vec<String> {
        let more = (self.more > 0).then(|| format!("… and {} more", self.more));
        self.first.iter().map(line).chain(more).collect()
    }
}

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.errors().join("\n"))
    }
}

impl std::error::Error for Findings {}

/// First findings of a file, by offset, with bounded memory.
#[derive(Debug)]
pub(super) struct Gathered<'a> {
    source: Source<'a>,
    kept: BTreeMap<(usize, usize), Fault>,
    count: usize,
}

impl<'a> Gathered<'a> {
    pub(super) fn new(source: Source<'a>) -> Self {
        Self { source, kept: BTreeMap::new(), count: 0 }
    }

    pub(super) fn push(&mut self, fault: Fault) {
        self.kept.insert((fault.at, self.count), fault);
        self.count += 1;
        if self.kept.len() > Findings::MAX {
            self.kept.pop_last();
        }
    }

    pub(super) fn finish(self) -> Findings {
        let more = self.count - self.kept.len();
        let first = self.kept.into_values().map(|fault| self.source.located(fault)).collect();
        Findings { first, more }
    }
}

/// Position of a table in a file.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Place {
    /// Offset in the file.
    pub(super) at: u32,
    /// Number in its list, or the number of the tunnel that the table is made from.
    pub(super) n: u32,
    pub(super) is_of_tunnel: bool,
}

impl Place {
    /// Path of the table, which is in the list `list` unless it is made from a tunnel.
    pub(super) fn path(self, list: &str) -> String {
        let list = if self.is_of_tunnel { "tunnel" } else { list };
        format!("{list}[{}]", self.n)
    }
}

/// Errors of a file, one for each table that has any. Errors that may be consequences of others are left out.
#[derive(Debug)]
pub(super) struct Faults<'a> {
    gathered: Gathered<'a>,
    /// Offsets of the tables with errors, which are not read again.
    failed: HashSet<usize>,
    /// Names of links with errors.
    links: HashSet<String>,
    /// Whether a link with errors has no name.
    is_link_unnamed: bool,
    /// Whether a link has errors, or a route that was not read.
    has_link: bool,
    /// Whether an SA has errors.
    has_sa: bool,
}

impl<'a> Faults<'a> {
    pub(super) fn new(source: Source<'a>) -> Self {
        Self {
            gathered: Gathered::new(source),
            failed: HashSet::new(),
            links: HashSet::new(),
            is_link_unnamed: false,
            has_link: false,
            has_sa: false,
        }
    }

    /// Adds an error, unless it may be a consequence of another.
    pub(super) fn push(&mut self, fault: Fault) {
        let is_consequence = match &fault.refers {
            Refers::Nothing => false,
            Refers::Link(name) => self.is_link_unnamed || self.links.contains(name),
            Refers::Links => self.has_link,
            Refers::Sas => self.has_sa,
        };
        if !is_consequence {
            self.gathered.push(fault);
        }
    }

    /// The value of `outcome`, whose error is added.
    pub(super) fn ok<T>(&mut self, outcome: Result<T, Fault>) -> Option<T> {
        outcome.map_err(|fault| self.push(fault)).ok()
    }

    /// Adds an error of a value at `at`, once for all passes over the file.
    pub(super) fn push_once(&mut self, fault: Fault) {
        if self.failed.insert(fault.at) {
            self.push(fault);
        }
    }

    /// Reads table number `n` of the list `key` with `read`, unless an earlier pass failed for it. The table may only
    /// have the keys in `known`. `origin` is the place of the tunnel that the table is made from.
    pub(super) fn read_item(
        &mut self,
        (key, n): (&str, usize),
        item: &Value<'_>,
        known: &[&str],
        origin: Option<Place>,
        read: impl FnOnce(&Table<'_>, Place) -> Result<(), Fault>,
    ) {
        let at = origin.map_or(item.range().start, |origin| origin.at as usize);
        if self.failed.contains(&at) {
            return;
        }
        let table = match item.any_table() {
            Ok(table) => table,
            Err(fault) => {
                self.failed.insert(at);
                self.push(fault);
                return self.note(key, None, true);
            }
        };
        let mut faults: Vec<Fault> = table.unknown_keys(known).collect();
        let own = Place { at: at as u32, n: n as u32, is_of_tunnel: false };
        let is_unread = !faults.is_empty();
        if !is_unread {
            faults.extend(read(&table, origin.unwrap_or(own)).err());
        }
        if faults.is_empty() {
            return;
        }
        self.failed.insert(at);
        let name = table.get("name").and_then(|name| name.str().ok());
        // A name that another link has is not the intended one.
        let name = name.filter(|_| !faults.iter().any(|fault| fault.key.ends_with(".name")));
        for mut fault in faults {
            if let Some(origin) = origin {
                (fault.at, fault.key) = (origin.at as usize, origin.path(key));
            }
            self.push(fault);
        }
        let list = if origin.is_some() { "tunnel" } else { key };
        self.note(list, name, is_unread);
    }

    /// Records that a table of the list `key` is wrong, and whether nothing of it was read.
    fn note(&mut self, key: &str, name: Option<&str>, is_unread: bool) {
        match (key, name) {
            ("link", Some(name)) => {
                self.links.insert(name.to_owned());
            }
            ("link" | "tunnel", _) => self.is_link_unnamed = true,
            _ => {}
        }
        self.has_link |= matches!(key, "link" | "tunnel") || key == "route" && is_unread;
        self.has_sa |= matches!(key, "sa" | "tunnel");
    }

    /// `value`, or the errors if there are any.
    pub(super) fn finish<T>(self, value: T) -> Result<T, Findings> {
        if self.gathered.count == 0 { Ok(value) } else { Err(self.gathered.finish()) }
    }
}
