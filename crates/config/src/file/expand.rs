//! `fatpath check --expand`: the text of a file with each `[[tunnel]]` replaced by the tables that it stands for.

use std::ops::Range;

use zeroize::Zeroizing;

use super::algorithm;
use super::document::Document;
use super::faults::{Faults, Findings};
use super::ipsec;
use super::tunnel::Expansion;

/// TOML text in the place of a key: [`algorithm::HIDDEN`].
const HIDDEN: &str = "\"…\"";

/// The text of `root`, whose tunnels are `expansions`. The tables of tunnels are at the end.
pub(super) fn text(
    root: &Document<'_>,
    expansions: &[Expansion],
    with_keys: bool,
) -> std::result::Result<Zeroizing<String>, Findings> {
    let mut faults = Faults::new(root.source());
    if let Some(value) = root.get("tunnel") {
        faults.push(value.error("cannot be expanded as a list in brackets; begin each tunnel with [[tunnel]]"));
    }
    let mut edits: Vec<(Range<usize>, &str)> = root.elements("tunnel").map(|range| (range.clone(), "")).collect();
    if !with_keys {
        root.each("sa", ipsec::SA_KEYS, &mut faults, |table, _| {
            for value in algorithm::KEYS.iter().filter_map(|key| table.get(key)).filter(super::reader::Value::is_table)
            {
                if let Some(key) = value.any_table()?.get("key") {
                    edits.push((key.range(), HIDDEN));
                }
            }
            Ok(())
        });
    }
    edits.sort_by_key(|(range, _)| range.start);
    let whole = root.source().whole();
    let generated = expansions.iter().map(|expansion| expansion.text.len() + (1 + expansion.keys.len()) * HIDDEN.len());
    // The text holds keys: it is never moved to a larger buffer.
    let capacity = whole.len() + edits.len() * HIDDEN.len() + generated.sum::<usize>();
    let mut text = Zeroizing::new(String::with_capacity(capacity));
    replace(whole, &edits, &mut text);
    for expansion in expansions {
        if !text.is_empty() && !text.ends_with("\n\n") {
            let end = if text.ends_with('\n') { "\n" } else { "\n\n" };
            text.push_str(end);
        }
        let keys = expansion.keys.iter().filter(|_| !with_keys);
        let edits: Vec<_> = keys.map(|range| (range.clone(), HIDDEN)).collect();
        replace(&expansion.text, &edits, &mut text);
    }
    faults.finish(text)
}

/// Appends `from` to `to`, with other texts at some ranges.
fn replace(from: &str, edits: &[(Range<usize>, &str)], to: &mut String) {
    let mut at = 0;
    for (range, by) in edits {
        to.push_str(from.get(at..range.start).unwrap_or_default());
        to.push_str(by);
        at = range.end;
    }
    to.push_str(from.get(at..).unwrap_or_default());
}
