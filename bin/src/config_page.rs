//! `fatpath.toml(5)`, made from `docs/configuration.md`: headings, paragraphs, lists, blocks and tables of Markdown.

use std::iter::Peekable;
use std::str::Lines;

use clap_mangen::roff::{Inline, Roff, bold, italic, roman};

/// Documentation of the file's keys.
const DOCUMENT: &str = include_str!("../../docs/configuration.md");

/// The man page, in roff.
pub(crate) fn render() -> String {
    let source = concat!("fatpath ", env!("CARGO_PKG_VERSION"));
    let mut page = Roff::new();
    page.control("TH", ["fatpath.toml", "5", "", source, "File formats"]);
    page.control("SH", ["NAME"]).text([roman("fatpath.toml - configuration file of a fatpath gateway")]);
    page.control("SH", ["DESCRIPTION"]);
    body(DOCUMENT, &mut page);
    page.control("SH", ["SEE ALSO"]);
    page.text([bold("fatpath-run"), roman("(1), "), bold("fatpath-check"), roman("(1), "), bold("ip"), roman("(8)")]);
    page.render()
}

/// Renders the document behind its title.
fn body(document: &str, page: &mut Roff) {
    let mut lines = document.lines().peekable();
    while let Some(line) = lines.next() {
        if let Some(heading) = line.strip_prefix("### ") {
            page.control("SS", [plain(heading).as_str()]);
        } else if let Some(heading) = line.strip_prefix("## ") {
            page.control("SH", [plain(heading).to_uppercase().as_str()]);
        } else if line.starts_with("```") {
            block(page, lines.by_ref().take_while(|line| !line.starts_with("```")).collect());
        } else if line.starts_with("    ") {
            let mut block_lines = vec![line];
            block_lines.extend(while_next(&mut lines, |line| line.starts_with("    ")));
            block(page, block_lines);
        } else if line.starts_with('|') {
            let mut rows = vec![line];
            rows.extend(while_next(&mut lines, |line| line.starts_with('|')));
            table(page, &rows);
        } else if let Some(item) = line.strip_prefix("- ") {
            page.control("IP", ["\\(bu", "2"]).text(inline(&paragraph(item, &mut lines)));
        } else if !line.trim().is_empty() && !line.starts_with("# ") {
            page.control("PP", []).text(inline(&paragraph(line, &mut lines)));
        }
    }
}

/// Lines that `is_part` accepts, up to the first other one.
fn while_next<'a>(lines: &mut Peekable<Lines<'a>>, is_part: impl Fn(&str) -> bool) -> Vec<&'a str> {
    let mut taken = Vec::new();
    while let Some(line) = lines.next_if(|line| is_part(line)) {
        taken.push(line);
    }
    taken
}

/// A paragraph or list item that begins with `first`, as one line.
fn paragraph(first: &str, lines: &mut Peekable<Lines<'_>>) -> String {
    let is_continued = |line: &str| {
        !line.trim().is_empty() && !["- ", "#", "|", "```", "    "].iter().any(|start| line.starts_with(start))
    };
    let mut text = first.to_owned();
    for line in while_next(lines, is_continued) {
        text.push(' ');
        text.push_str(line.trim());
    }
    text
}

/// Lines that are printed as they are.
fn block(page: &mut Roff, lines: Vec<&str>) {
    page.control("PP", []).control("RS", ["4"]).control("nf", []);
    for line in lines {
        page.text([roman(line.strip_prefix("    ").unwrap_or(line))]);
    }
    page.control("fi", []).control("RE", []);
}

/// A table: an entry for each row, with the meaning first, and the other columns behind their headings.
fn table(page: &mut Roff, rows: &[&str]) {
    let cells: Vec<Vec<String>> = rows.iter().map(|row| split_row(row)).collect();
    let [headings, _, rows @ ..] = cells.as_slice() else { return };
    for row in rows {
        let Some((subject, values)) = row.split_first() else { continue };
        page.control("TP", []).text([bold(plain(subject))]);
        let columns = || headings.iter().skip(1).zip(values).filter(|(_, value)| !value.is_empty());
        let is_meaning = |heading: &str| heading.is_empty() || heading == "means";
        for (_, value) in columns().filter(|(heading, _)| is_meaning(heading)) {
            page.text(inline(&sentence(value)));
        }
        for (heading, value) in columns().filter(|(heading, _)| !is_meaning(heading)) {
            let mut line = vec![italic(plain(heading)), roman(": ")];
            line.extend(inline(value));
            page.control("br", []).text(line);
        }
    }
}

/// Cells of a row; `\|` is no border.
fn split_row(row: &str) -> Vec<String> {
    let row = row.trim().trim_start_matches('|');
    let row = row.strip_suffix('|').unwrap_or(row).replace("\\|", "\u{0}");
    row.split('|').map(|cell| cell.trim().replace('\u{0}', "|")).collect()
}

/// Text that begins with a capital, if it begins with a word, and ends with a full stop.
fn sentence(text: &str) -> String {
    let mut chars = text.chars();
    let mut done: String = chars.next().into_iter().flat_map(char::to_uppercase).collect();
    done.push_str(chars.as_str());
    if !done.ends_with(['.', '!', '?']) {
        done.push('.');
    }
    done
}

/// Text without its marks: code, emphasis, and links' targets.
fn plain(text: &str) -> String {
    spans(text).into_iter().map(|(_, text)| text).collect()
}

/// Text with code and emphasis in bold.
fn inline(text: &str) -> Vec<Inline> {
    spans(text).into_iter().map(|(is_marked, text)| if is_marked { bold(text) } else { roman(text) }).collect()
}

/// Parts of a text, each with whether it is code or emphasised.
fn spans(text: &str) -> Vec<(bool, String)> {
    let text = without_targets(text);
    let mut parts = Vec::new();
    for (i, part) in text.split('`').enumerate() {
        if i % 2 == 1 {
            parts.push((true, part.to_owned()));
            continue;
        }
        for (i, strong) in part.split("**").enumerate() {
            // One asterisk is emphasis of a word that is defined.
            parts.push((i % 2 == 1, strong.replace('*', "")));
        }
    }
    parts.retain(|(_, text)| !text.is_empty());
    parts
}

/// Replaces `[text](target)` by its text. Brackets in code are left alone.
fn without_targets(text: &str) -> String {
    let mut done = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(end) = rest.find("](") {
        let Some(length) = rest[end..].find(')') else { break };
        let Some(start) = link_start(&rest[..end]) else { break };
        done.push_str(&rest[..start]);
        done.push_str(&rest[start + 1..end]);
        rest = &rest[end + length + 1..];
    }
    done + rest
}

/// Place of the bracket that begins a link's text, at the end of `text`. The text may have brackets of its own.
fn link_start(text: &str) -> Option<usize> {
    let mut depth = 1;
    for (place, byte) in text.bytes().enumerate().rev() {
        match byte {
            b']' => depth += 1,
            b'[' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(place);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Body of a small document.
    fn rendered(document: &str) -> String {
        let mut page = Roff::new();
        body(document, &mut page);
        page.to_roff()
    }

    #[test]
    fn table_row_becomes_entry_with_meaning_first() {
        let table = "| key | value | default | means |\n|---|---|---|---|\n\
            | `cpu` | `\"a\\|b\"` | | the [worker](#w)'s CPU |\n";
        assert_eq!(
            rendered(table),
            ".TP\n\\fBcpu\\fR\nThe worker\\*(Aqs CPU.\n.br\n\\fIvalue\\fR: \\fB\"a|b\"\\fR\n".replace("\\*(Aq", "'")
        );
    }

    #[test]
    fn text_loses_links_and_keeps_brackets_of_code() {
        assert_eq!(plain("see [`[[link]]`](#link) and **all** of `*`"), "see [[link]] and all of *");
        assert_eq!(plain("`[[tunnel]]`, once"), "[[tunnel]], once");
    }

    #[test]
    fn block_and_list_keep_their_lines_apart() {
        let text = rendered("a\nb:\n\n    x = 1\n    .y\n\n- one\n  more\n- two\n");
        assert_eq!(
            text,
            ".PP\na b:\n.PP\n.RS 4\n.nf\nx = 1\n\\&.y\n.fi\n.RE\n.IP \\(bu 2\none more\n.IP \\(bu 2\ntwo\n"
        );
    }

    #[test]
    fn page_has_an_entry_for_each_key_of_the_document() {
        let page = render();
        let (mut count, mut is_table_of_keys) = (0, false);
        for line in DOCUMENT.lines() {
            if !line.starts_with('|') {
                is_table_of_keys = false;
            } else if line.starts_with("| key") || line.starts_with("| `name` |") {
                is_table_of_keys = true;
            } else if is_table_of_keys && !line.starts_with("|--") {
                let subject = line.trim_start_matches("| ").split(" | ").next().unwrap();
                let entry = format!("\n.TP\n\\fB{}\\fR\n", subject.replace('`', "").replace('-', "\\-"));
                assert!(page.contains(&entry), "{subject}");
                count += 1;
            }
        }
        assert!(count > 120, "{count}");
        for heading in DOCUMENT.lines().filter_map(|line| line.strip_prefix("## ")) {
            let heading = heading.replace('`', "").to_uppercase();
            let lines = [format!("\n.SH \"{heading}\"\n"), format!("\n.SH {heading}\n")];
            assert!(lines.iter().any(|line| page.contains(line)), "{heading}");
        }
    }
}
