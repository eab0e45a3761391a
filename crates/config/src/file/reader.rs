//! Cursor over a TOML document: each value carries its key's path and its line, so that each error contains both.

use std::fmt;
use std::ops::{Range, RangeInclusive};

use base::{IfAddr, Prefix, PrefixError};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::meter::Meter;

/// Error in a configuration file, with the values that would be valid. Displayed in one line:
/// `gw.toml:14: sa[0].aead.icv: 80 is not an ICV length; use 64, 96 or 128.`
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ConfigError {
    /// Name of the file, as the caller gave it.
    pub file: String,
    /// Line, from 1.
    pub line: usize,
    /// Path of the key; empty if the file is not TOML.
    pub key: String,
    /// Sentence without its full stop. It never contains key material.
    pub text: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: ", self.file, self.line)?;
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        for c in self.text.chars() {
            if c.is_control() { write!(f, "{}", c.escape_default())? } else { write!(f, "{c}")? }
        }
        f.write_str(".")
    }
}

impl std::error::Error for ConfigError {}

impl ConfigError {
    /// The finding as a line of a warning: `gw.toml:14: warning: policy[0]: …`.
    pub fn warning(&self) -> String {
        let Self { file, line, .. } = self;
        let whole = self.to_string();
        let place = format!("{file}:{line}: ");
        whole.strip_prefix(&place).map_or_else(|| whole.clone(), |rest| format!("{place}warning: {rest}"))
    }
}

/// Error at an offset of a file.
#[derive(Clone, Debug)]
pub(super) struct Fault {
    /// Offset in the whole file.
    pub(super) at: usize,
    /// Path of the key.
    pub(super) key: String,
    pub(super) text: String,
    pub(super) refers: Refers,
}

/// Objects that an error refers to. If one of them is itself wrong, the error may only be a consequence.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Refers {
    /// No other object.
    Nothing,
    /// The link of this name.
    Link(String),
    /// All links and routes.
    Links,
    /// All SAs.
    Sas,
}

impl Fault {
    /// The error refers to `refers`.
    pub(super) fn about(self, refers: Refers) -> Self {
        Self { refers, ..self }
    }
}

/// File or part of it; the spans of its values are offsets in `text`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source<'a> {
    file: &'a str,
    /// Text of the whole file.
    whole: &'a str,
    /// Offset of the part in the whole file.
    start: usize,
    text: &'a str,
    meter: Option<&'a Meter>,
}

/// Table and its path.
#[derive(Clone, Debug)]
pub(super) struct Table<'a> {
    source: Source<'a>,
    path: String,
    span: Range<usize>,
    entries: &'a DeTable<'a>,
}

/// Value and its path.
#[derive(Clone, Debug)]
pub(super) struct Value<'a> {
    source: Source<'a>,
    path: String,
    item: &'a Spanned<DeValue<'a>>,
}

pub(super) type Result<T> = std::result::Result<T, Fault>;

impl<'a> Source<'a> {
    /// Whole file, with its name and text.
    pub(super) fn new(file: &'a str, text: &'a str) -> Self {
        Self { file, whole: text, start: 0, text, meter: None }
    }

    /// The source, whose elements `meter` counts when they are read.
    pub(super) fn metered(self, meter: &'a Meter) -> Self {
        meter.begin(self.text.len());
        Self { meter: Some(meter), ..self }
    }

    /// Counts an element that is read.
    pub(super) fn count(self, range: &Range<usize>) {
        if let Some(meter) = self.meter {
            meter.add(range.len());
        }
    }

    /// Part of this source at `range`.
    pub(super) fn part(self, range: Range<usize>) -> Self {
        let start = self.start + range.start;
        Self { start, text: self.text.get(range).unwrap_or_default(), ..self }
    }

    pub(super) fn text(self) -> &'a str {
        self.text
    }

    /// Parses the text as a TOML table.
    ///
    /// # Errors
    /// The text is no TOML.
    pub(super) fn parse(self) -> Result<Spanned<DeTable<'a>>> {
        DeTable::parse(self.text).map_err(|err| {
            let span = err.span().unwrap_or_default();
            match (err.message(), self.text.get(span.clone())) {
                ("duplicate key", Some(key)) if is_short(key) => {
                    let is_list = LISTS.contains(&key);
                    let remedy = if is_list {
                        format!("begin each with [[{key}]], two brackets")
                    } else {
                        "take one out".to_owned()
                    };
                    self.error(span.start, key, format!("given twice; {remedy}"))
                }
                (message, _) => self.error(span.start, "", message.to_owned()),
            }
        })
    }

    /// Outermost table.
    pub(super) fn root(self, document: &'a Spanned<DeTable<'a>>) -> Table<'a> {
        Table { source: self, path: String::new(), span: document.span(), entries: document.get_ref() }
    }

    fn error(self, at: usize, key: &str, text: String) -> Fault {
        Fault { at: self.start + at, key: key.to_owned(), text, refers: Refers::Nothing }
    }

    /// The error with the line of its offset.
    pub(super) fn located(self, fault: Fault) -> ConfigError {
        let whole = self.whole.as_bytes();
        let before = whole.get(..fault.at).unwrap_or(whole);
        let line = 1 + before.iter().filter(|&&byte| byte == b'\n').count();
        ConfigError { file: self.file.to_owned(), line, key: fault.key, text: fault.text }
    }

    /// Text of the whole file.
    pub(super) fn whole(self) -> &'a str {
        self.whole
    }
}

impl<'a> Table<'a> {
    /// Value of `key`, if present.
    pub(super) fn get(&self, key: &str) -> Option<Value<'a>> {
        let item = self.entries.get(key)?;
        Some(Value { source: self.source, path: self.path_of(key), item })
    }

    /// Value of `key`; if it is missing, `hint` is the error's remedy.
    pub(super) fn need(&self, key: &str, hint: &str) -> Result<Value<'a>> {
        self.get(key).ok_or_else(|| self.missing(key, hint))
    }

    /// Error for a missing `key`, at the first line of the table.
    pub(super) fn missing(&self, key: &str, hint: &str) -> Fault {
        self.source.error(self.span.start, &self.path_of(key), format!("missing; {hint}"))
    }

    fn path_of(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    /// Refuses the first key that is not in `known`.
    pub(super) fn check_keys(&self, known: &[&str]) -> Result<()> {
        self.unknown_keys(known).min_by_key(|fault| fault.at).map_or(Ok(()), Err)
    }

    /// Errors for the keys that are not in `known`.
    pub(super) fn unknown_keys(&self, known: &[&str]) -> impl Iterator<Item = Fault> {
        let unknown = self.entries.keys().filter(|key| !known.contains(&key.get_ref().as_ref()));
        unknown.map(|key| {
            let name = key.get_ref().as_ref();
            let text = match nearest(name, known) {
                Some(near) => format!("unknown key; use {near}"),
                None => format!("unknown key; use {}", one_of(known.iter().copied())),
            };
            let shown: String = name.chars().take(MAX_QUOTED).collect();
            let path = self.path_of(&shown.escape_default().to_string());
            self.source.error(key.span().start, &path, text)
        })
    }

    /// Error for the table itself.
    pub(super) fn error(&self, text: impl Into<String>) -> Fault {
        self.source.error(self.span.start, &self.path, text.into())
    }
}

/// Maximum length of a quoted wrong value, in bytes.
const MAX_QUOTED: usize = 48;

impl<'a> Value<'a> {
    /// Error for this value.
    pub(super) fn error(&self, text: impl Into<String>) -> Fault {
        self.source.error(self.item.span().start, &self.path, text.into())
    }

    /// The value as a table in which only the keys `known` are allowed.
    pub(super) fn table(&self, known: &[&str]) -> Result<Table<'a>> {
        let table = self.any_table()?;
        table.check_keys(known)?;
        Ok(table)
    }

    /// The value as a table with any keys.
    pub(super) fn any_table(&self) -> Result<Table<'a>> {
        let Some(entries) = self.item.get_ref().as_table() else { return Err(self.wrong_type("a table")) };
        Ok(Table { source: self.source, path: self.path.clone(), span: self.item.span(), entries })
    }

    /// The items of an array in the outermost table.
    pub(super) fn items(&self) -> Result<Vec<Value<'a>>> {
        if self.is_table() {
            let key = &self.path;
            return Err(self.error(format!("is a single table; begin each {key} with [[{key}]]")));
        }
        self.list()
    }

    /// Range of the value in the whole file.
    pub(super) fn range(&self) -> Range<usize> {
        let span = self.item.span();
        self.source.start + span.start..self.source.start + span.end
    }

    /// The only value of an array that contains one element, number `n`, of the document's array.
    pub(super) fn only_item(&self, n: usize) -> Option<Value<'a>> {
        let item = self.item.get_ref().as_array()?.first()?;
        Some(Value { source: self.source, path: format!("{}[{n}]", self.path), item })
    }

    /// The values of an array.
    pub(super) fn list(&self) -> Result<Vec<Value<'a>>> {
        let Some(items) = self.item.get_ref().as_array() else { return Err(self.wrong_type("a list in brackets")) };
        let value = |(n, item)| Value { source: self.source, path: format!("{}[{n}]", self.path), item };
        Ok(items.iter().enumerate().map(value).collect())
    }

    /// The value as a text.
    pub(super) fn str(&self) -> Result<&'a str> {
        self.item.get_ref().as_str().ok_or_else(|| self.wrong_type("a text in quotes"))
    }

    /// The value as a boolean.
    pub(super) fn bool(&self) -> Result<bool> {
        self.item.get_ref().as_bool().ok_or_else(|| self.wrong_type("true or false"))
    }

    /// The value as a whole number in `range`.
    pub(super) fn number<T: Copy + Into<u64> + TryFrom<u64>>(&self, range: RangeInclusive<T>) -> Result<T> {
        let DeValue::Integer(digits) = self.item.get_ref() else { return Err(self.wrong_type("a whole number")) };
        let number = u64::from_str_radix(digits.as_str(), digits.radix()).ok();
        let (low, high): (u64, u64) = ((*range.start()).into(), (*range.end()).into());
        number.filter(|number| (low..=high).contains(number)).and_then(|number| T::try_from(number).ok()).ok_or_else(
            || {
                let given = Some(digits.to_string()).filter(|digits| is_short(digits));
                let given = given.as_deref().unwrap_or("this number");
                self.error(format!("{given} is out of range; use {low} to {high}"))
            },
        )
    }

    /// The value as a prefix; `hint` is an example for errors.
    pub(super) fn prefix(&self, hint: &str) -> Result<Prefix> {
        let text = self.str()?;
        text.parse().map_err(|err: PrefixError| match text.parse::<IfAddr>() {
            Ok(addr) => self.error(format!("{err}; use {}", addr.prefix())),
            Err(_) => self.prefix_error(&err, hint),
        })
    }

    /// The value as an address with its prefix length; `hint` is an example for errors.
    pub(super) fn if_addr(&self, hint: &str) -> Result<IfAddr> {
        self.str()?.parse().map_err(|err| self.prefix_error(&err, hint))
    }

    fn prefix_error(&self, err: &PrefixError, hint: &str) -> Fault {
        match self.str() {
            Ok(text) if is_short(text) => self.error(format!("{err}; use {hint}")),
            _ => self.error(format!("is no prefix; use {hint}")),
        }
    }

    /// The value as one of `words`.
    pub(super) fn word<T: Copy>(&self, words: &[(&str, T)]) -> Result<T> {
        let text = self.str()?;
        let found = words.iter().find(|(word, _)| *word == text);
        found.map(|&(_, value)| value).ok_or_else(|| {
            self.error(format!("{} is unknown; use {}", quoted(text), one_of(words.iter().map(|&(word, _)| word))))
        })
    }

    /// Whether the value is a whole number, for keys that take a number or a word.
    pub(super) fn is_number(&self) -> bool {
        self.item.get_ref().is_integer()
    }

    /// Whether the value is a table, for keys that take a table or a word.
    pub(super) fn is_table(&self) -> bool {
        self.item.get_ref().is_table()
    }

    /// Error for a value of the wrong TOML type. It contains the type but not the value, which may be a secret key.
    fn wrong_type(&self, want: &str) -> Fault {
        let has = match self.item.get_ref() {
            DeValue::String(_) => "a text",
            DeValue::Integer(_) => "a whole number",
            DeValue::Float(_) => "a fraction",
            DeValue::Boolean(_) => "a truth value",
            DeValue::Datetime(_) => "a date",
            DeValue::Array(_) => "a list",
            DeValue::Table(_) => "a table",
        };
        self.error(format!("is {has}; use {want}"))
    }
}

/// Quotes a wrong value for an error. Long values are not quoted: they may be a secret key under the wrong name.
pub(super) fn quoted(text: &str) -> String {
    match text {
        _ if !is_short(text) => "this text".to_owned(),
        _ if text.is_empty() || text.contains(char::is_whitespace) => format!("\"{text}\""),
        _ => text.to_owned(),
    }
}

/// Lists of a file, each element of which has a header of its own.
const LISTS: [&str; 5] = ["link", "route", "sa", "policy", "ila"];

/// Whether an error may quote `text`. The shortest AES key has 16 bytes, or 34 characters in hexadecimal; the longest
/// prefix has 43 characters, and colons.
fn is_short(text: &str) -> bool {
    text.len() < 16 || (text.len() <= MAX_QUOTED && text.contains([':', '.', '(']))
}

/// Joins words as `a`, `a or b`, `a, b or c`.
pub(super) fn one_of<'s>(words: impl Iterator<Item = &'s str>) -> String {
    let words: Vec<&str> = words.collect();
    match words.as_slice() {
        [rest @ .., last] if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        words => words.concat(),
    }
}

/// The known word that `name` most likely misspells.
fn nearest<'k>(name: &str, known: &[&'k str]) -> Option<&'k str> {
    if name.len() > MAX_QUOTED {
        return None;
    }
    let closest = known.iter().map(|word| (edit_distance(name, word), *word)).min()?;
    (closest.0 <= 1 + closest.1.len() / 4).then_some(closest.1)
}

/// Levenshtein distance, with the exchange of two neighbours counted as one step.
fn edit_distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![(0..=b.len()).collect::<Vec<usize>>()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let change = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = change.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_finger_is_recognised() {
        let known = ["name", "kind", "mtu", "addresses", "replay-window"];
        let cases = [
            ("mut", Some("mtu")),
            ("nmae", Some("name")),
            ("address", Some("addresses")),
            ("replay_window", Some("replay-window")),
            ("colour", None),
            ("", None),
        ];
        for (name, want) in cases {
            assert_eq!(nearest(name, &known), want, "{name}");
        }
    }

    #[test]
    fn words_are_listed_as_a_sentence_does() {
        assert_eq!(one_of(["in"].into_iter()), "in");
        assert_eq!(one_of(["in", "out"].into_iter()), "in or out");
        assert_eq!(one_of(["in", "out", "fwd"].into_iter()), "in, out or fwd");
    }

    #[test]
    fn an_error_is_one_line_whatever_is_in_it() {
        let error = ConfigError { file: "f".into(), line: 1, key: "k".into(), text: "a\nb\u{1b}[0m".into() };
        assert_eq!(error.to_string(), "f:1: k: a\\nb\\u{1b}[0m.");
    }
}
