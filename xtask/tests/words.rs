//! Plain words, as far as a program can tell: first words of doc comments and lengths of test names.

use std::fs;
use std::path::{Path, PathBuf};

/// Directories whose Rust files follow the rules. A crate joins this list once it passes, and none leaves it.
const PASSING: [&str; 12] = [
    "crates/base",
    "crates/fib",
    "crates/host",
    "crates/ibmveth",
    "crates/ila",
    "crates/launch",
    "crates/nlsock",
    "crates/packet",
    "crates/qdisc",
    "crates/reassembly",
    "crates/switch",
    "xtask",
];

/// Words that begin a noun clause, name a person, or refer to something outside the sentence.
const FORBIDDEN: [&str; 14] = [
    "What",
    "Whatever",
    "Who",
    "Whoever",
    "Whose",
    "How",
    "Where",
    "Wherever",
    "Nobody",
    "Somebody",
    "Everybody",
    "That",
    "Has",
    "Of",
];

/// Characters of the longest test name.
const LONGEST_NAME: usize = 60;

/// Every fault of one file, as `line: fault`.
fn faults(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut previous_marker = None;
    let mut is_test = false;
    for (number, line) in text.lines().map(str::trim).enumerate() {
        let marker = ["///", "//!"].into_iter().find(|marker| line.starts_with(marker) && !line.starts_with("////"));
        if let Some(marker) = marker
            && previous_marker != Some(marker)
        {
            let first = line[marker.len()..].split(|c: char| !c.is_alphanumeric()).find(|word| !word.is_empty());
            // A name in backquotes is code.
            let is_code = line[marker.len()..].trim_start().starts_with(['`', '[']);
            if let Some(word) = first.filter(|word| !is_code && FORBIDDEN.contains(word)) {
                found.push(format!("{}: doc comment starts with {word:?}", number + 1));
            }
        }
        previous_marker = marker;
        is_test |= line.starts_with("#[test]");
        if is_test && let Some(name) = function_name(line) {
            is_test = false;
            let len = name.chars().count();
            if len > LONGEST_NAME {
                found.push(format!("{}: test name of {len} characters: {name}", number + 1));
            }
        }
    }
    found
}

/// The name of the function that a line declares.
fn function_name(line: &str) -> Option<&str> {
    let declared = line.strip_prefix("fn ").or_else(|| Some(line.split_once(" fn ")?.1))?;
    declared.split(['(', '<']).next().filter(|_| !line.starts_with("//"))
}

/// The Rust files below `directory`, build output left out.
fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    let entries = fs::read_dir(directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    for entry in entries {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("target") {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn passing_crates_follow_the_rules_of_plain_words() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut files = Vec::new();
    PASSING.iter().for_each(|directory| sources(&root.join(directory), &mut files));
    let mut found = Vec::new();
    for file in &files {
        let text = fs::read_to_string(file).unwrap();
        found.extend(faults(&text).iter().map(|fault| format!("{}:{fault}", file.display())));
    }
    assert!(found.is_empty(), "CONTRIBUTING.md, \"Plain words\":\n{}", found.join("\n"));
    assert!(files.len() > 30, "only {} files were read", files.len());
}

#[test]
fn checker_accepts_nouns_verbs_code_and_later_lines() {
    let name = "n".repeat(LONGEST_NAME);
    let good = [
        "//! Offset of a fragment.\n//! What follows is a second line.",
        "/// Tells whether a prefix is one of IPv4.",
        "/// `What` is a type, and [`Who`] another.",
        "/// [Who](Self::who) is a link.",
        "/// Whatsoever and Hashes are other words.",
        "//// What no doc comment begins with.",
        "// What a comment that is no documentation begins with.",
        "/// A table:\n///\n/// | a | b |\n/// Of a cell.",
        &format!("#[test]\nfn {name}() {{}}"),
        &format!("fn {name}_that_is_no_test() {{}}"),
        &format!("#[test]\n#[cfg(unix)]\nfn short() {{}}\nfn {name}_helper() {{}}"),
    ];
    for text in good {
        assert_eq!(faults(text), [] as [&str; 0], "{text}");
    }
}

#[test]
fn checker_finds_forbidden_first_words_and_long_names() {
    let name = "n".repeat(LONGEST_NAME + 1);
    let bad = [
        ("//! What a packet is.", 1),
        ("/// Who, in a domain.", 1),
        ("///Nobody: no route.", 1),
        ("///   *How* many.", 1),
        ("/// That's a pronoun.", 1),
        ("fn f() {}\n    /// Has a link leave.", 2),
        ("//! A module.\n\n/// Where it begins.", 3),
        ("//! A module.\n/// Of an item.", 2),
        ("/// A field.\na: u8,\n/// Whoever sends.", 3),
        (&format!("#[test]\nfn {name}() {{}}"), 2),
        (&format!("#[test]\n#[ignore]\npub async fn {name}() {{}}"), 3),
        (&format!("proptest! {{\n    #[test]\n    fn {name}(a in 0..3) {{}}\n}}"), 3),
    ];
    for (text, line) in bad {
        let found = faults(text);
        assert!(found.len() == 1 && found[0].starts_with(&format!("{line}: ")), "{text}: {found:?}");
    }
}
