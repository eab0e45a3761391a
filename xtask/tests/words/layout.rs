//! Layout of Markdown: width of lines outside of tables and code, and length of tables' cells.

use super::prose::{Block, Blocks};

/// Columns of the longest line.
const LONGEST_LINE: usize = 140;

/// Words of the longest cell.
const LONGEST_CELL: usize = 14;

/// Lines that are too long, as `line: fault`.
pub(crate) fn long_lines(text: &str) -> Vec<String> {
    let mut blocks = Blocks::default();
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let columns = line.chars().count();
        if blocks.next(line) != Block::Code && !is_row(line) && columns > LONGEST_LINE {
            found.push(format!("{}: {columns} columns, at most {LONGEST_LINE}", number + 1));
        }
    }
    found
}

/// Cells of tables that are too long, as `line: fault`.
pub(crate) fn long_cells(text: &str) -> Vec<String> {
    let mut blocks = Blocks::default();
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if blocks.next(line) == Block::Code || !is_row(line) {
            continue;
        }
        for cell in line.replace("\\|", "").split('|') {
            let words = words(cell);
            if words > LONGEST_CELL {
                found.push(format!("{}: cell of {words} words, at most {LONGEST_CELL}: {}", number + 1, cell.trim()));
            }
        }
    }
    found
}

fn is_row(line: &str) -> bool {
    line.trim_start().starts_with('|')
}

/// Words of a cell; a span of code is one word, and the target of a link none.
fn words(cell: &str) -> usize {
    let mut text = String::new();
    for (number, part) in cell.split('`').enumerate() {
        text.push_str(if number % 2 == 1 { "code" } else { part });
    }
    let mut links = text.split("](");
    let mut plain = links.next().unwrap_or_default().to_owned();
    for link in links {
        plain.push_str(link.split_once(')').map_or("", |(_, behind)| behind));
    }
    plain.split_whitespace().count()
}

#[test]
fn long_lines_are_found_outside_of_tables_and_code() {
    let long = "x".repeat(LONGEST_LINE + 1);
    let wide = "→".repeat(LONGEST_LINE);
    for text in [format!("| {long} |"), format!("```\n{long}\n```"), format!("a\n\n    {long}"), wide] {
        assert_eq!(long_lines(&text), [] as [&str; 0], "{text}");
    }
    for text in [format!("a\n{long}"), format!("\n- {long}"), format!("a\n    {long}"), format!("\n# {long}")] {
        let found = long_lines(&text);
        assert!(found.len() == 1 && found[0].starts_with("2: "), "{text}: {found:?}");
    }
}

#[test]
fn long_cells_are_found_by_their_words() {
    let long = "w ".repeat(LONGEST_CELL + 1);
    let full = "w ".repeat(LONGEST_CELL - 3);
    for text in [&long, &format!("| {full} `code of words` [a link](b.md#c), | x |"), &format!("```\n| {long} |\n```")]
    {
        assert_eq!(long_cells(text), [] as [&str; 0], "{text}");
    }
    for text in [format!("a\n| x | {long} |"), format!("\n| {full} `a` `b` [c](d) `e` |")] {
        let found = long_cells(&text);
        assert!(found.len() == 1 && found[0].starts_with("2: "), "{text}: {found:?}");
    }
}
