//! TOML document that is parsed in parts, to save memory.
//!
//! A parsed document takes more than twenty times the memory of its text. So a file is split at its headers. The text
//! before the first header and each `[table]` are parsed at once and kept; each `[[element]]` is parsed when it is
//! read, and then dropped. A file whose parts are not all valid TOML is parsed as a whole.

use std::ops::Range;

use toml::Spanned;
use toml::de::DeTable;

use super::faults::{Faults, Findings, Place};
use super::reader::{Result, Source, Table, Value};

/// Document, in parts or as a whole.
#[derive(Debug)]
pub(super) struct Document<'a> {
    source: Source<'a>,
    /// Place of the tunnel that the tables are made from.
    origin: Option<Place>,
    /// Parts that are parsed and kept.
    parsed: Vec<Parsed<'a>>,
    /// Lists whose elements have their own headers.
    lists: Vec<List<'a>>,
}

/// Parsed part of a document.
#[derive(Debug)]
struct Parsed<'a> {
    source: Source<'a>,
    root: Spanned<DeTable<'a>>,
}

/// Elements of a list.
#[derive(Debug)]
struct List<'a> {
    name: &'a str,
    /// Ranges of the text, headers included.
    elements: Vec<Range<usize>>,
}

impl<'a> Document<'a> {
    /// Reads a document with `read`, in parts if it can be split, otherwise as a whole.
    ///
    /// A line inside a string or inside brackets may look like a header. A split at such a line produces a part that is
    /// not valid TOML, so the result of `read` for the parts counts only if all of them are valid; otherwise `read` runs
    /// again on the whole.
    ///
    /// # Errors
    /// The document is not valid TOML, or the errors of `read`.
    pub(super) fn read<T>(
        source: Source<'a>,
        read: impl Fn(&Self) -> std::result::Result<T, Findings>,
    ) -> std::result::Result<T, Findings> {
        if let Some(document) = Self::in_parts(source) {
            let outcome = read(&document);
            if outcome.is_ok() || document.elements_are_toml() {
                return outcome;
            }
        }
        match Parsed::parse(source) {
            Ok(parsed) => read(&Self { source, origin: None, parsed: vec![parsed], lists: Vec::new() }),
            Err(fault) => Err(Findings { first: vec![source.located(fault)], more: 0 }),
        }
    }

    /// The tables that a tunnel at `origin` stands for; `None` if they cannot be read.
    pub(super) fn of_tunnel(source: Source<'a>, origin: Place) -> Option<Self> {
        Some(Self { origin: Some(origin), ..Self::in_parts(source)? })
    }

    pub(super) fn source(&self) -> Source<'a> {
        self.source
    }

    /// Ranges of the elements of a list with headers of their own.
    pub(super) fn elements(&self, key: &str) -> impl Iterator<Item = &Range<usize>> {
        self.lists.iter().filter(move |list| list.name == key).flat_map(|list| &list.elements)
    }

    /// Splits the document into parts; `None` if a part that is parsed at once is not valid TOML, or two parts define
    /// the same key.
    fn in_parts(source: Source<'a>) -> Option<Self> {
        let Parts { plain, lists } = cut(source.text())?;
        let parsed: Result<Vec<_>> = plain.into_iter().map(|range| Parsed::parse(source.part(range))).collect();
        let document = Self { source, origin: None, parsed: parsed.ok()?, lists };
        let tables = document.parsed.iter().flat_map(|part| part.root.get_ref().keys());
        let mut names: Vec<&str> = tables.map(|key| key.get_ref().as_ref()).collect();
        names.extend(document.lists.iter().map(|list| list.name));
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        let is_unique = names.len() == all;
        is_unique.then_some(document)
    }

    /// Tells whether each element is TOML by itself.
    fn elements_are_toml(&self) -> bool {
        let mut elements = self.lists.iter().flat_map(|list| &list.elements);
        elements.all(|range| Parsed::parse(self.source.part(range.clone())).is_ok())
    }

    /// Adds an error for each key that is not in `known`.
    pub(super) fn check_keys(&self, known: &[&str], faults: &mut Faults<'_>) {
        for part in &self.parsed {
            part.table().unknown_keys(known).for_each(|fault| faults.push(fault));
        }
        for list in self.lists.iter().filter(|list| !known.contains(&list.name)) {
            let Some(first) = list.elements.first() else { continue };
            match Parsed::parse(self.source.part(first.clone())) {
                Ok(part) => part.table().unknown_keys(known).for_each(|fault| faults.push(fault)),
                Err(fault) => faults.push(fault),
            }
        }
    }

    /// Value of `key`; `None` if it is missing, or a list whose elements have their own headers.
    pub(super) fn get(&self, key: &str) -> Option<Value<'_>> {
        self.parsed.iter().find_map(|part| part.table().get(key))
    }

    /// Calls `read` with each table of the list `key` in turn, and its place; not at all if the list is missing. The
    /// tables may only have the keys in `known`. An element that is not valid TOML, no table or has an unknown key, and
    /// the error of `read` are added to `faults`; later elements are read all the same, unless the document is not valid.
    pub(super) fn each(
        &self,
        key: &str,
        known: &[&str],
        faults: &mut Faults<'_>,
        mut read: impl FnMut(&Table<'_>, Place) -> Result<()>,
    ) {
        if let Some(value) = self.get(key) {
            match value.items() {
                Ok(items) => {
                    let numbered = items.iter().enumerate();
                    numbered.for_each(|(n, item)| faults.read_item((key, n), item, known, self.origin, &mut read));
                }
                Err(fault) => faults.push_once(fault),
            }
            return;
        }
        for (n, range) in self.elements(key).enumerate() {
            let part = match Parsed::parse(self.source.part(range.clone())) {
                Ok(part) => part,
                Err(fault) => return faults.push_once(fault),
            };
            if let Some(element) = part.table().get(key).and_then(|list| list.only_item(n)) {
                faults.read_item((key, n), &element, known, self.origin, &mut read);
            }
            self.source.count(range);
        }
    }
}

impl<'a> Parsed<'a> {
    fn parse(source: Source<'a>) -> Result<Self> {
        Ok(Self { source, root: source.parse()? })
    }

    fn table(&self) -> Table<'_> {
        self.source.root(&self.root)
    }
}

/// Text split at its headers.
struct Parts<'a> {
    /// The text before the first header, and each table with its header.
    plain: Vec<Range<usize>>,
    lists: Vec<List<'a>>,
}

/// Splits a text before each line that is a header of one bare name. `None` if a line looks like a header but is not
/// one, or is a header `[name.…]` outside of the part `name`.
fn cut(text: &str) -> Option<Parts<'_>> {
    let mut parts = Parts { plain: Vec::new(), lists: Vec::new() };
    let (mut begun, mut start, mut at) = (None, 0, 0);
    for line in text.split_inclusive('\n') {
        if let Some(header) = Header::of(line) {
            let header = header?;
            match (header, begun) {
                (Header::Inside(name), Some(Header::Table(part) | Header::Element(part))) if name == part => {}
                (Header::Inside(_), _) => return None,
                (Header::Table(_) | Header::Element(_), _) => {
                    parts.add(begun, start..at);
                    (begun, start) = (Some(header), at);
                }
            }
        }
        at += line.len();
    }
    parts.add(begun, start..at);
    Some(parts)
}

impl<'a> Parts<'a> {
    /// Adds the part that begins with `header`.
    fn add(&mut self, header: Option<Header<'a>>, range: Range<usize>) {
        let Some(Header::Element(name)) = header else {
            self.plain.push(range);
            return;
        };
        // The number of lists is small.
        let at = self.lists.iter().position(|list| list.name == name).unwrap_or_else(|| {
            self.lists.push(List { name, elements: Vec::new() });
            self.lists.len() - 1
        });
        self.lists[at].elements.push(range);
    }
}

/// Header of a table or of an element of a list.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Header<'a> {
    /// `[name]`.
    Table(&'a str),
    /// `[[name]]`.
    Element(&'a str),
    /// `[name.…]` or `[[name.…]]`.
    Inside(&'a str),
}

impl<'a> Header<'a> {
    /// Parses a line. `None` if it does not begin like a header; `Some(None)` if it does, and is no header of these
    /// forms.
    fn of(line: &'a str) -> Option<Option<Self>> {
        let line = line.trim_matches([' ', '\t', '\r', '\n']);
        let (rest, close) = match line.strip_prefix("[[") {
            Some(rest) => (rest, "]]"),
            None => (line.strip_prefix('[')?, "]"),
        };
        let rest = rest.trim_start_matches([' ', '\t']);
        let is_bare = |byte: char| byte.is_ascii_alphanumeric() || byte == '_' || byte == '-';
        let (name, rest) = rest.split_at(rest.find(|c| !is_bare(c)).unwrap_or(rest.len()));
        let rest = rest.trim_start_matches([' ', '\t']);
        if name.is_empty() {
            return Some(None);
        }
        if rest.starts_with('.') {
            return Some(Some(Self::Inside(name)));
        }
        let behind = rest.strip_prefix(close).map(|rest| rest.trim_start_matches([' ', '\t']));
        let is_whole = behind.is_some_and(|behind| behind.is_empty() || behind.starts_with('#'));
        Some(is_whole.then_some(if close == "]]" { Self::Element(name) } else { Self::Table(name) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Number of elements of `a`, whose `x` is a digit, and whether `b` exists.
    fn contents(document: &Document<'_>) -> std::result::Result<(usize, bool), Findings> {
        let mut faults = Faults::new(document.source());
        document.check_keys(&["a", "b"], &mut faults);
        let mut count = 0;
        document.each("a", &["x", "y"], &mut faults, |table, _| {
            count += 1;
            table.need("x", "")?.number(0_u64..=9).map(drop)
        });
        faults.finish((count, document.get("b").is_some()))
    }

    #[test]
    fn header_of_line_is_parsed() {
        let cases = [
            ("x = 1", None),
            ("# [a]", None),
            ("[a]", Some(Some(Header::Table("a")))),
            (" [ a ] # b", Some(Some(Header::Table("a")))),
            ("[[a-b_1]]\r\n", Some(Some(Header::Element("a-b_1")))),
            ("[a . b]", Some(Some(Header::Inside("a")))),
            ("[[a.\"b\"]]", Some(Some(Header::Inside("a")))),
            ("[\"a\"]", Some(None)),
            ("[[a]", Some(None)),
            ("[a]]", Some(None)),
            ("[a] b", Some(None)),
            ("[1, 2],", Some(None)),
            ("[]", Some(None)),
        ];
        for (line, want) in cases {
            assert_eq!(Header::of(line), want, "{line}");
        }
    }

    #[test]
    fn document_in_parts_reads_like_the_whole() {
        let cases = [
            ("", Ok((0, false))),
            ("[[a]]\nx = 1\n[b]\nk = 1\n[[a]]\nx = 2\n", Ok((2, true))),
            ("a = [{ x = 1 }, { x = 2 }]\nb = {}\n", Ok((2, true))),
            ("[[a]]\nx = 1\n[a.y]\nz = 1\n[[a]]\nx = 2\n", Ok((2, false))),
            ("[[a]]\nx = 1\n[b]\n[a.y]\n[b.c]\n", Ok((1, true))),
            ("[[a]]\nx = 1\ny = [\n[[1]],\n[2]\n]\n", Ok((1, false))),
            ("[[a]]\nx = 1\ny = \"\"\"\n[[ a . b\n\"\"\"\n", Ok((1, false))),
            ("[b]\n[c]\n[b]\n", Err((3, "b", "given twice; take one out"))),
            ("a = []\n[[a]]\nx = 1\n", Err((2, "a", "given twice; take one out"))),
            ("[[a]]\nx = 1\n[a]\n", Err((3, "a", "given twice; take one out"))),
            ("b.c = 1\n[b]\n", Err((2, "b", "given twice; take one out"))),
            ("[link]\nx = 1\n[link]\n", Err((3, "link", "given twice; begin each with [[link]], two brackets"))),
            ("[[a]]\nx = 1\n\n[[a]]\nx = 10\n", Err((5, "a[1].x", "10 is out of range; use 0 to 9"))),
            ("[[a]]\nx = 1\n[[a]]\nz = 1\n", Err((4, "a[1].z", "unknown key; use x"))),
            ("[[a]]\nx = 1\n[[a]]\ny = 1\n", Err((3, "a[1].x", "missing; "))),
            ("[[a]]\nx = 1\n[[a]]\nx = =\n", Err((4, "", ""))),
            ("[[a]]\nx = 1\n[[d]]\n[e]\n", Err((3, "d", "unknown key; use a"))),
            ("[[a]]\nx = \"\"\"\n[[a]]\n\"\"\"\n", Err((2, "a[0].x", "is a text; use a whole number"))),
            // Lines inside strings and brackets that look like headers.
            ("[[a]]\nx = 1\ny = \"\"\"\n[[a]]\n\"\"\"\n[[a]]\nx = 2\n", Ok((2, false))),
            ("[[a]]\nx = 1\ny = '''\n[[d]]\nz = 1\n'''\n[b]\n", Ok((1, true))),
            ("[[a]]\nx = 1\n[b]\nk = \"\"\"\n[a]\n[[a]]\n\"\"\"\n", Ok((1, true))),
            ("[[a]]\nx = 1\ny = [\n[1]\n]\n[[a]]\nx = 1\ny = [\n[[1]]\n]\n", Ok((2, false))),
            ("[[a]]\nx = 1\ny = \"\"\"\n[[a]]\n\"\"\"\n[[a]]\nz = 2\n", Err((7, "a[1].z", "unknown key; use x"))),
        ];
        for (text, want) in cases {
            match (Document::read(Source::new("f", text), contents), want) {
                (Ok(read), Ok(want)) => assert_eq!(read, want, "{text}"),
                (Err(errors), Err((line, key, what))) => {
                    let err = &errors.first[0];
                    assert_eq!((err.line, err.key.as_str()), (line, key), "{text}: {err}");
                    assert!(what.is_empty() || err.text == what, "{text}: {err}");
                }
                (read, want) => panic!("{text}: {read:?}, not {want:?}"),
            }
        }
    }
}
