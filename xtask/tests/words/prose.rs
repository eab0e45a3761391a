//! Plain words in Markdown: persons in prose, outside of code, quotations, emphasis and targets of links.

/// Pronouns and nouns that stand for a person, and verbs of which only a person can be the subject.
const PERSONS: [&str; 31] = [
    "nobody",
    "somebody",
    "everybody",
    "anybody",
    "someone",
    "anyone",
    "everyone",
    "whoever",
    "whomever",
    "who",
    "whom",
    "he",
    "she",
    "him",
    "his",
    "her",
    "himself",
    "herself",
    "eat",
    "eats",
    "eaten",
    "careless",
    "people",
    "believe",
    "believes",
    "believed",
    "hear",
    "hears",
    "heard",
    "wants",
    "wishes",
];

/// Words of a text that stand for a person or a person's act.
pub(crate) fn persons(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
    words.filter(|word| PERSONS.contains(&word.to_lowercase().as_str()))
}

/// Every fault of a Markdown file, as `line: fault`.
pub(crate) fn faults(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut blocks = Blocks::default();
    let mut open: Option<(usize, Span)> = None;
    // A blank line closes the last paragraph.
    for (number, line) in text.lines().chain([""]).enumerate().map(|(at, line)| (at + 1, line)) {
        let block = blocks.next(line);
        if block != Block::Continuation
            && let Some((start, span)) = open.take()
        {
            found.push(format!("{start}: {:?} without an end", span.mark()));
        }
        if block == Block::Code {
            continue;
        }
        let (prose, left) = prose(line, open.map(|(_, span)| span));
        open = left.map(|span| (open.filter(|&(_, before)| before == span).map_or(number, |(start, _)| start), span));
        found.extend(
            persons(&prose).map(|word| format!("{number}: {word:?} in prose; name the caller, program or type")),
        );
    }
    found
}

/// Kind of a line.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Block {
    /// A fenced or indented block of code, or its fence.
    Code,
    /// First line of a paragraph, item, heading or row, or a blank line.
    Start,
    /// Later line of a paragraph or an item.
    Continuation,
}

/// Position in the block structure of a file.
#[derive(Debug)]
pub(crate) struct Blocks {
    is_fenced: bool,
    /// The line before was blank, a heading or code, so that indentation begins code.
    is_gap: bool,
    /// Indentation of the text of the current list item, or 0.
    item: usize,
}

impl Default for Blocks {
    fn default() -> Self {
        Self { is_fenced: false, is_gap: true, item: 0 }
    }
}

impl Blocks {
    /// The kind of the next line.
    pub(crate) fn next(&mut self, line: &str) -> Block {
        let text = line.trim_start();
        let indent = line.len() - text.len();
        if text.starts_with("```") {
            self.is_fenced = !self.is_fenced;
            self.is_gap = true;
            return Block::Code;
        }
        if self.is_fenced {
            return Block::Code;
        }
        if text.is_empty() {
            self.is_gap = true;
            return Block::Start;
        }
        if self.is_gap && indent < self.item {
            self.item = 0;
        }
        if self.is_gap && indent >= self.item + 4 {
            return Block::Code;
        }
        let marker = marker_len(text);
        if marker > 0 {
            self.item = indent + marker;
        }
        let starts = self.is_gap || marker > 0 || text.starts_with(['|', '#', '>']);
        self.is_gap = text.starts_with('#');
        if starts { Block::Start } else { Block::Continuation }
    }
}

/// Length of the marker of a list item in front of its text, or 0.
fn marker_len(text: &str) -> usize {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    if text.starts_with("- ") || text.starts_with("* ") {
        2
    } else if digits > 0 && text[digits..].starts_with(". ") {
        digits + 2
    } else {
        0
    }
}

/// Part of a paragraph that is no prose of its own.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Span {
    Code,
    Quotation,
    Emphasis,
    LinkTarget,
}

impl Span {
    /// The character that ends the span.
    const fn mark(self) -> char {
        match self {
            Self::Code => '`',
            Self::Quotation => '"',
            Self::Emphasis => '*',
            Self::LinkTarget => ')',
        }
    }
}

/// A line without its spans, and the span that is open behind it. `open` is the one in front of it.
fn prose(line: &str, mut open: Option<Span>) -> (String, Option<Span>) {
    let mut prose = String::new();
    let mut rest = line;
    while let Some(c) = rest.chars().next() {
        let behind = &rest[c.len_utf8()..];
        rest = behind;
        if let Some(span) = open {
            if c == span.mark() {
                open = None;
                prose.push(' ');
            }
        } else if c == '*' && behind.starts_with('*') {
            // Strong emphasis is prose.
            rest = &behind[1..];
        } else if c == ']' && behind.starts_with('(') {
            open = Some(Span::LinkTarget);
        } else {
            let is_opening = !behind.is_empty() && !behind.starts_with(' ');
            open = match c {
                '`' => Some(Span::Code),
                '"' => Some(Span::Quotation),
                '*' if is_opening => Some(Span::Emphasis),
                _ => None,
            };
            if open.is_none() {
                prose.push(c);
            }
        }
    }
    (prose, open)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn persons_are_whole_words_in_any_case() {
        let text = "Who asks nobody, whole; who_asks, whose; Somebody's.";
        assert_eq!(persons(text).collect::<Vec<_>>(), ["Who", "nobody", "Somebody"]);
    }

    #[test]
    fn markdown_faults_leave_out_code_quotations_and_link_targets() {
        let good = [
            "`who` and \"whoever asks\", *Who, nobody* or [decision 26](0026-who-asks.md).",
            "A name `cargo\nwho` over two lines.",
            "\"A quotation of two lines\nwho asks.\"",
            "```\nwho\n\nwho\n```",
            "Text:\n\n    who\n\n    whom\n",
            "    who\nA paragraph.",
            "# Heading\n    who",
            "- An item:\n\n      who",
            "**Bold** of `*` and `\"`, 2 * 3.",
            "| `a*` | *who* |",
        ];
        for text in good {
            assert_eq!(faults(text), [] as [&str; 0], "{text}");
        }
    }

    #[test]
    fn markdown_faults_are_found_in_every_kind_of_prose() {
        let bad = [
            ("A text\nfor whoever reads.", 2),
            ("# Who may change it", 1),
            ("**Nobody** waits.", 1),
            ("Text\n    of nobody.", 2),
            ("- An item\n  for someone.", 2),
            ("- An item.\n\n  Its text for someone.", 3),
            ("1. An item.\n\n    Its text for someone.", 3),
            ("- An item.\n\nText:\n\n    who\n\nWho.", 7),
            ("| a | who |", 1),
            ("[Who asks](a.md)", 1),
            ("`a` nobody `b`", 1),
            ("```\ncode\n```\nWho.", 4),
            ("A \"quotation\nwithout an end.\n\nA text.", 1),
            ("A text.\n| `code |", 2),
            ("*A text of\n`code`", 1),
        ];
        for (text, line) in bad {
            let found = faults(text);
            assert!(found.len() == 1 && found[0].starts_with(&format!("{line}: ")), "{text}: {found:?}");
        }
    }
}
