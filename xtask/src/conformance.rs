//! Rules of RFCs, and the places in the tree that implement and test them.
//!
//! A rule is written where it is implemented, and named by its tests:
//!
//! ```text
//! //= RFC 4303 §3.4.3 window-after-icv: the rule in our own words,
//! //=   which may go on in a line that is indented
//! //= test RFC 4303 §3.4.3 window-after-icv
//! ```
//!
//! A second implementing place repeats the name without the words. A test's line stands above its attributes. [`RULES`]
//! is the list; `docs/conformance.md` is generated from the annotations.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

/// Rules that have to be annotated: RFC, section and a name that is unique in the section. The document has this order.
pub(crate) const RULES: [&str; 38] = [
    "RFC 4301 §4.1 simplex",
    "RFC 4301 §4.4.1 policy-order",
    "RFC 4301 §4.4.2.1 hard-limit",
    "RFC 4301 §5.1 protect-without-sa",
    "RFC 4301 §5.1.2.1 dont-fragment",
    "RFC 4301 §5.1.2.1 dscp-and-ecn",
    "RFC 4301 §5.2 clear-where-protected",
    "RFC 4301 §5.2 selectors-of-sa",
    "RFC 4301 §7 later-fragments",
    "RFC 4301 §8.2.1 icmp-names-an-sa",
    "RFC 4301 §8.2.1 inner-mtu",
    "RFC 4303 §2.1 spi-zero",
    "RFC 4303 §2.2.1 high-half",
    "RFC 4303 §2.4 alignment",
    "RFC 4303 §2.4 padding-bytes",
    "RFC 4303 §2.6 dummy",
    "RFC 4303 §2.7 tfc-padding",
    "RFC 4303 §3.3.3 no-cycle",
    "RFC 4303 §3.3.4 whole-datagrams",
    "RFC 4303 §3.4.1 reassembly-first",
    "RFC 4303 §3.4.2 unknown-sa",
    "RFC 4303 §3.4.3 duplicates",
    "RFC 4303 §3.4.3 window-after-icv",
    "RFC 4303 §3.4.4.1 wrong-icv",
    "RFC 5722 §4 no-overlaps-made",
    "RFC 5722 §4 overlap",
    "RFC 6864 §4.3 unique-id",
    "RFC 8200 §3 hop-limit",
    "RFC 8200 §4.2 unknown-options",
    "RFC 8200 §4.4 segments-left",
    "RFC 8200 §4.5 atomic",
    "RFC 8200 §4.5 header-chain",
    "RFC 8200 §4.5 multiple-of-8",
    "RFC 8200 §4.5 same-datagram",
    "RFC 8200 §4.5 source-alone",
    "RFC 8200 §4.5 timeout",
    "RFC 8200 §4.5 too-long",
    "RFC 8200 §4.7 no-next-header",
];

/// Directories whose Rust files are searched for annotations.
const SOURCES: [&str; 4] = ["bin", "crates", "models", "tests"];

/// Annotations of one rule.
#[derive(Debug, Default)]
struct Rule {
    text: String,
    /// Files that implement it, relative to the root.
    files: Vec<String>,
    /// Files and names of its tests.
    tests: Vec<(String, String)>,
}

/// Annotations by rule, and the faults of those that were read.
#[derive(Debug, Default)]
pub(crate) struct Annotations {
    rules: BTreeMap<String, Rule>,
    faults: Vec<String>,
}

impl Annotations {
    /// Reads the annotations of all sources below `root`.
    pub(crate) fn of_tree(root: &Path) -> Self {
        let mut files = Vec::new();
        SOURCES.iter().for_each(|directory| sources(&root.join(directory), &mut files));
        files.sort();
        let mut all = Self::default();
        for file in files {
            let text = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
            let name = file.strip_prefix(root).expect("a file below the root");
            all.read(&name.display().to_string(), &text);
        }
        all
    }

    /// Reads the annotations of one file.
    fn read(&mut self, file: &str, text: &str) {
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        let mut continued: Option<String> = None;
        for (at, line) in lines.iter().enumerate() {
            let Some(rest) = line.strip_prefix("//=") else {
                continued = None;
                continue;
            };
            let place = format!("{file}:{}", at + 1);
            if rest.starts_with("   ") {
                match continued.as_ref().and_then(|name| self.rules.get_mut(name)) {
                    Some(rule) => rule.text = format!("{} {}", rule.text, rest.trim()),
                    None => self.faults.push(format!("{place}: nothing is continued here")),
                }
                continue;
            }
            let rest = rest.trim();
            if let Some(name) = rest.strip_prefix("test ") {
                let test = test_name(&lines[at + 1..]);
                match test {
                    Some(test) => self.rule(&place, name).tests.push((file.to_owned(), test.to_owned())),
                    None => self.faults.push(format!("{place}: no test that runs follows")),
                }
                continued = None;
                continue;
            }
            let (name, text) = rest.split_once(": ").unwrap_or((rest, ""));
            let rule = self.rule(&place, name);
            if !rule.files.iter().any(|known| known == file) {
                rule.files.push(file.to_owned());
            }
            let has_text = !rule.text.is_empty();
            if !has_text {
                text.clone_into(&mut rule.text);
            }
            if has_text && !text.is_empty() {
                self.faults.push(format!("{place}: {name} has its words at another place"));
            }
            continued = (!text.is_empty()).then(|| name.to_owned());
        }
    }

    /// Annotations of the rule `name`, which has to be listed.
    fn rule(&mut self, place: &str, name: &str) -> &mut Rule {
        if !RULES.contains(&name) {
            self.faults.push(format!("{place}: {name:?} is no rule of xtask/src/conformance.rs"));
        }
        self.rules.entry(name.to_owned()).or_default()
    }

    /// Every fault: of an annotation, and of a rule that lacks one.
    pub(crate) fn faults(&self) -> Vec<String> {
        let mut faults = self.faults.clone();
        for name in RULES {
            let Some(rule) = self.rules.get(name) else {
                faults.push(format!("{name}: neither implemented nor tested"));
                continue;
            };
            if rule.files.is_empty() {
                faults.push(format!("{name}: no file implements it"));
            } else if rule.text.is_empty() {
                faults.push(format!("{name}: no words say what it is"));
            }
            if rule.tests.is_empty() {
                faults.push(format!("{name}: no test shows it"));
            }
        }
        faults
    }

    /// Text of `docs/conformance.md`.
    pub(crate) fn document(&self) -> String {
        let mut text = String::from(
            "# Rules of RFCs, where they are implemented, and the tests that show them\n\n\
             Generated by `cargo xtask conformance` from annotations in the source (`//= RFC 4303 §3.4.3 …`);\n\
             [CONTRIBUTING](../CONTRIBUTING.md) says how to write one.\n\
             The words are ours and shorter than the RFC's. The list holds the rules that matter most, not all;\n\
             [features.md](features.md) says what is not there.\n",
        );
        let mut heading = "";
        for name in RULES {
            let Some(rule) = self.rules.get(name) else { continue };
            let (rfc, section) = name.split_once(" §").expect("an RFC and a section");
            if rfc != heading {
                heading = rfc;
                let _ =
                    write!(text, "\n## {rfc}: {}\n\n| section | rule | file | test |\n|---|---|---|---|\n", title(rfc));
            }
            let section = section.split(' ').next().unwrap_or_default();
            let files: Vec<String> = rule.files.iter().map(|file| link(file, file)).collect();
            let tests: Vec<String> = rule.tests.iter().map(|(file, test)| link(test, file)).collect();
            let (files, tests) = (files.join(", "), tests.join(", "));
            let _ = writeln!(text, "| {section} | {} | {files} | {tests} |", sentence(&rule.text));
        }
        text
    }
}

/// A link from `docs/` to a file of the tree.
fn link(text: &str, file: &str) -> String {
    let text = text.strip_prefix("crates/").unwrap_or(text);
    format!("[{text}](../{file})")
}

/// The text with a capital letter and a full stop.
fn sentence(text: &str) -> String {
    let mut chars = text.chars();
    let first = chars.next().map(char::to_uppercase).into_iter().flatten();
    let end = if text.ends_with('.') { "" } else { "." };
    first.chain(chars).chain(end.chars()).collect()
}

fn title(rfc: &str) -> &'static str {
    match rfc {
        "RFC 4301" => "security architecture",
        "RFC 4303" => "ESP",
        "RFC 5722" => "overlapping IPv6 fragments",
        "RFC 6864" => "identification of IPv4 packets",
        "RFC 8200" => "IPv6",
        _ => "",
    }
}

/// Name of the test that the lines after its annotation declare. An ignored test shows nothing.
fn test_name<'t>(lines: &[&'t str]) -> Option<&'t str> {
    let mut is_test = false;
    for line in lines {
        if line.starts_with("//") {
            continue;
        }
        if line.starts_with("#[") {
            is_test |= *line == "#[test]";
            if line.starts_with("#[ignore") {
                return None;
            }
            continue;
        }
        let name = line.strip_prefix("fn ")?.split(['(', '<']).next()?;
        return is_test.then_some(name);
    }
    None
}

/// Rust files below `directory`, build output left out.
pub(crate) fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    let entries = fs::read_dir(directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    for entry in entries {
        let path = entry.unwrap_or_else(|error| panic!("{}: {error}", directory.display())).path();
        if path.is_dir() && !path.ends_with("target") {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::root;

    fn read(text: &str) -> Annotations {
        let mut annotations = Annotations::default();
        annotations.read("a.rs", text);
        annotations
    }

    #[test]
    fn every_listed_rule_is_implemented_and_tested() {
        let annotations = Annotations::of_tree(root());
        let faults = annotations.faults();
        assert!(faults.is_empty(), "CONTRIBUTING.md, \"Rules of RFCs\":\n{}", faults.join("\n"));
        let document = fs::read_to_string(root().join("docs/conformance.md")).unwrap_or_default();
        assert!(document == annotations.document(), "docs/conformance.md is stale: run cargo xtask conformance");
    }

    #[test]
    fn rules_are_unique_and_in_order() {
        for pair in RULES.windows(2) {
            assert!(pair[0] < pair[1], "{pair:?}");
        }
    }

    #[test]
    fn annotations_of_a_rule_end_in_one_row() {
        let text = "fn f() {\n    //= RFC 8200 §3 hop-limit: a packet loses a hop,\n    //=   and ends at zero\n    f();\n}\n\
            //= RFC 8200 §3 hop-limit\nfn g() {}\n\
            //= test RFC 8200 §3 hop-limit\n//= test RFC 8200 §4.5 timeout\n/// Doc.\n#[test]\n#[cfg(unix)]\nfn hop_ends() {}\n";
        let annotations = read(text);
        assert_eq!(annotations.faults, [] as [&str; 0]);
        let document = annotations.document();
        let row = "| 3 | A packet loses a hop, and ends at zero. | [a.rs](../a.rs) | [hop_ends](../a.rs) |";
        assert!(document.contains(row), "{document}");
        let faults = annotations.faults();
        assert_eq!(faults.len(), RULES.len() - 1, "{faults:?}");
        assert!(faults.contains(&"RFC 8200 §4.5 timeout: no file implements it".to_owned()), "{faults:?}");
        assert!(faults.contains(&"RFC 8200 §4.5 too-long: neither implemented nor tested".to_owned()), "{faults:?}");
    }

    #[test]
    fn faulty_annotation_is_found_with_its_line() {
        let cases = [
            ("//= RFC 8200 §9 hop-limit: text", "a.rs:1: \"RFC 8200 §9 hop-limit\" is no rule"),
            ("\n//= test RFC 8200 §3 hops\n#[test]\nfn f() {}", "a.rs:2: \"RFC 8200 §3 hops\" is no rule"),
            ("//= test RFC 8200 §3 hop-limit\nfn f() {}", "a.rs:1: no test that runs follows"),
            ("//= test RFC 8200 §3 hop-limit\n#[test]\n#[ignore]\nfn f() {}", "a.rs:1: no test that runs follows"),
            ("//= test RFC 8200 §3 hop-limit", "a.rs:1: no test that runs follows"),
            ("//=   goes on", "a.rs:1: nothing is continued here"),
            ("//= RFC 8200 §3 hop-limit\n//=   goes on", "a.rs:2: nothing is continued here"),
            (
                "//= RFC 8200 §3 hop-limit: one\n//= RFC 8200 §3 hop-limit: two",
                "a.rs:2: RFC 8200 §3 hop-limit has its words at another place",
            ),
        ];
        for (text, want) in cases {
            let faults = read(text).faults;
            assert!(faults.len() == 1 && faults[0].starts_with(want), "{text}: {faults:?}");
        }
    }

    #[test]
    fn rule_without_words_or_test_is_a_fault() {
        let faults = read("//= RFC 8200 §3 hop-limit").faults();
        for fault in ["no words say what it is", "no test shows it"] {
            assert!(faults.contains(&format!("RFC 8200 §3 hop-limit: {fault}")), "{faults:?}");
        }
    }
}
