//! Plain words, as far as a program can tell: first words of paragraphs of documentation, persons in comments and
//! documents, names of tests, functions and types, reasons of attributes, and texts of errors;
//! and the layout of documents.

mod code;
mod layout;
mod prose;

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

/// Directories whose Rust files follow the rules.
const SOURCES: [&str; 7] = ["bench/peers", "bin", "crates", "fuzz/fuzz_targets", "models", "tests", "xtask"];

/// Files, and directories of files, whose comments begin with `#`.
const SCRIPTS: [&str; 5] = [".ci", "Cargo.toml", "Makefile", "examples", "scripts"];

/// Directories whose Markdown files follow the rules, without directories below.
const DOCUMENT_DIRECTORIES: [&str; 3] = ["docs", "docs/bench", "docs/decisions"];

/// Other Markdown files that follow the rules.
const DOCUMENTS: [&str; 4] = ["ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "README.md"];

/// Generated documents, whose sentences are comments of the source.
const GENERATED: [&str; 2] = ["docs/conformance.md", "docs/drops.md"];

/// Pages whose tables have short cells.
const PAGES_OF_SHORT_CELLS: [&str; 2] = ["docs/configuration.md", "docs/features.md"];

/// Words that begin a noun clause, name a person, or refer to something outside the sentence.
const FORBIDDEN: [&str; 17] = [
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
    "Its",
    "Which",
    "Why",
];

/// First words of a test's name that name no unit.
const NO_UNITS: [&str; 11] =
    ["what", "whatever", "who", "whoever", "whose", "how", "where", "nobody", "that", "has", "of"];

/// Characters of the longest test name.
const LONGEST_NAME: usize = 60;

/// Finds the lines that begin a doc comment or a later paragraph of one.
#[derive(Default)]
struct Paragraphs {
    /// Marker of the line before, if that was documentation.
    marker: Option<&'static str>,
    /// The line before was empty or a heading: a paragraph begins behind it.
    is_gap: bool,
    /// Inside of a fenced block of code.
    is_code: bool,
}

impl Paragraphs {
    /// The text of a trimmed line behind its marker, if a paragraph begins with it.
    fn start<'a>(&mut self, line: &'a str) -> Option<&'a str> {
        let marker = ["///", "//!"].into_iter().find(|marker| line.starts_with(marker) && !line.starts_with("////"));
        let is_first = marker != self.marker;
        self.marker = marker;
        if is_first {
            self.is_code = false;
        }
        let text = line[marker?.len()..].trim();
        if text.starts_with("```") {
            self.is_code = !self.is_code;
        }
        let begins = (is_first || self.is_gap) && !self.is_code;
        self.is_gap = text.is_empty() || text.starts_with('#') || text.starts_with("```");
        begins.then_some(text)
    }
}

/// Every fault of one file, as `line: fault`.
fn faults(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut paragraphs = Paragraphs::default();
    let mut is_test = false;
    for (number, line) in text.lines().map(str::trim).enumerate() {
        // A name in backquotes is code.
        if let Some(start) = paragraphs.start(line).filter(|start| !start.starts_with(['`', '['])) {
            let first = start.split(|c: char| !c.is_alphanumeric()).find(|word| !word.is_empty());
            if let Some(word) = first.filter(|word| FORBIDDEN.contains(word)) {
                found.push(format!("{}: paragraph of documentation starts with {word:?}", number + 1));
            }
        }
        for word in persons_of_comment(line) {
            found.push(format!("{}: {word:?} in a comment; name the caller, thread or type", number + 1));
        }
        is_test |= line.starts_with("#[test]");
        found.extend(code::fault_of_declaration(line, is_test).map(|fault| format!("{}: {fault}", number + 1)));
        if is_test && let Some(name) = function_name(line) {
            is_test = false;
            found.extend(faults_of_name(name).map(|fault| format!("{}: {fault}: {name}", number + 1)));
        }
    }
    for (number, name) in trials(text) {
        found.extend(faults_of_name(name).map(|fault| format!("{number}: {fault}: {name}")));
    }
    found.extend(code::faults_of_literals(text));
    found
}

/// Faults of a test's name.
fn faults_of_name(name: &str) -> impl Iterator<Item = String> {
    let len = name.chars().count();
    let is_long = (len > LONGEST_NAME).then(|| format!("test name of {len} characters"));
    let has_no_unit = name.split('_').next().is_some_and(|word| NO_UNITS.contains(&word));
    is_long.into_iter().chain(has_no_unit.then(|| "test name without a unit in front".to_owned()))
}

/// Names of tests that are registered by `trial`, without their group, and their lines.
fn trials(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.match_indices("trial(").filter_map(|(at, call)| {
        let name = text[at + call.len()..].trim_start().strip_prefix('"')?.split('"').next()?;
        let is_name = name.chars().all(|c| c.is_alphanumeric() || "_/-{}".contains(c));
        is_name.then(|| (text[..at].matches('\n').count() + 1, name.rsplit('/').next().unwrap_or(name)))
    })
}

/// Every fault of a file whose comments begin with `#`.
fn faults_of_script(text: &str) -> Vec<String> {
    let comments =
        text.lines().enumerate().filter_map(|(number, line)| Some((number + 1, line.trim().strip_prefix('#')?)));
    let persons = comments.flat_map(|(number, comment)| prose::persons(comment).map(move |word| (number, word)));
    persons.map(|(number, word)| format!("{number}: {word:?} in a comment; name the caller, program or type")).collect()
}

/// Persons in the comment that a line has, but for code in backquotes.
fn persons_of_comment(line: &str) -> impl Iterator<Item = &str> {
    let at = if line.starts_with("//") { Some(0) } else { line.find(" // ") };
    let comment = at.map_or("", |at| &line[at..]);
    comment.split('`').step_by(2).flat_map(prose::persons)
}

/// The name of the function that a line declares.
fn function_name(line: &str) -> Option<&str> {
    let declared = line.strip_prefix("fn ").or_else(|| Some(line.split_once(" fn ")?.1))?;
    declared.split(['(', '<']).next().filter(|_| !line.starts_with("//"))
}

/// The files below `place` that `is_meant` accepts, build output left out; `place` itself, if it is a file.
fn files_below(place: &Path, is_meant: &dyn Fn(&Path) -> bool, found: &mut Vec<PathBuf>) {
    if !place.is_dir() {
        found.push(place.to_owned());
        return;
    }
    let entries = fs::read_dir(place).unwrap_or_else(|error| panic!("{}: {error}", place.display()));
    for path in entries.map(|entry| entry.unwrap().path()) {
        if path.is_dir() && !path.ends_with("target") {
            files_below(&path, is_meant, found);
        } else if path.is_file() && is_meant(&path) {
            found.push(path);
        }
    }
}

fn is_of(path: &Path, extension: &str) -> bool {
    path.extension().is_some_and(|its| its == extension)
}

/// The Markdown files below `root` that follow the rules.
fn documents(root: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = DOCUMENTS.map(|name| root.join(name)).into();
    for directory in DOCUMENT_DIRECTORIES.map(|name| root.join(name)) {
        let entries = fs::read_dir(&directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
        found.extend(entries.map(|entry| entry.unwrap().path()).filter(|path| is_document(path)));
    }
    found
}

/// Tells whether a file of a document directory follows the rules.
fn is_document(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "md") && !GENERATED.iter().any(|name| path.ends_with(name))
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the root of the workspace")
}

#[test]
fn comments_documents_and_test_names_are_in_plain_words() {
    let mut files = documents(root());
    SOURCES.iter().for_each(|directory| files_below(&root().join(directory), &|path| is_of(path, "rs"), &mut files));
    SCRIPTS.iter().for_each(|place| files_below(&root().join(place), &|path| !is_of(path, "md"), &mut files));
    let mut found = Vec::new();
    for file in &files {
        let text = fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let name = file.strip_prefix(root()).unwrap().display().to_string();
        let faults = match file.extension().and_then(OsStr::to_str) {
            Some("md") => prose::faults(&text),
            Some("rs") => faults(&text),
            _ => faults_of_script(&text),
        };
        found.extend(faults.iter().map(|fault| format!("{name}:{fault}")));
    }
    assert!(found.is_empty(), "CONTRIBUTING.md, \"Plain words\":\n{}", found.join("\n"));
}

#[test]
fn documents_have_short_lines_and_references_short_cells() {
    let generated = GENERATED.map(|name| root().join(name));
    let mut found = Vec::new();
    for file in documents(root()).into_iter().chain(generated) {
        let text = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let name = file.strip_prefix(root()).unwrap().display().to_string();
        let mut faults = layout::long_lines(&text);
        if PAGES_OF_SHORT_CELLS.contains(&name.as_str()) {
            faults.extend(layout::long_cells(&text));
        }
        found.extend(faults.iter().map(|fault| format!("{name}:{fault}")));
    }
    assert!(found.is_empty(), "wrap lines; move sentences of cells below their table:\n{}", found.join("\n"));
}

#[test]
fn documents_leave_out_generated_ones() {
    let found = documents(root());
    for (name, is_one) in [
        ("README.md", true),
        ("docs/README.md", true),
        ("docs/bench/esp.md", true),
        (GENERATED[0], false),
        (GENERATED[1], false),
    ] {
        assert!(root().join(name).exists(), "{name}");
        assert_eq!(found.contains(&root().join(name)), is_one, "{name}");
    }
}

#[test]
fn checker_accepts_nouns_verbs_code_and_later_lines() {
    let name = "n".repeat(LONGEST_NAME);
    let good = [
        "//! Offset of a fragment.\n//! What follows is a second line.",
        "/// Tells whether a prefix is one of IPv4.",
        "/// `What` is a type, and [`Who`] another.",
        "/// [Where](Self::place) is a link.",
        "/// Whatsoever and Hashes are other words.",
        "//// What no doc comment begins with.",
        "/// Name of `who` and of `nobody`, as whole words.",
        "/// Prefix whose host bits are zero.",
        "let url = \"http://who\";",
        "let x = 1; // the whole of it",
        "#[test]\nfn whatsoever_is_another_word() {}",
        "// What a comment that is no documentation begins with.",
        "/// A table:\n///\n/// | a | b |\n/// Of a cell.",
        "/// # Errors\n///\n/// A refusal.",
        "/// Example:\n/// ```\n///\n/// Of(code)\n/// ```\n/// More words.",
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
        ("/// Its length.", 1),
        ("/// Packet that nobody takes.", 1),
        ("let x = 1; /\u{2f} for whoever asks", 1),
        ("// Who asks.", 1),
        ("#[test]\nfn what_is_long_is_cut() {}", 2),
        ("#[test]\nfn of_two_packets_one_is_cut() {}", 2),
        ("/// Where, in a domain.", 1),
        ("///That: no route.", 1),
        ("///   *How* many.", 1),
        ("/// That's a pronoun.", 1),
        ("fn f() {}\n    /// Has a link leave.", 2),
        ("//! A module.\n\n/// Where it begins.", 3),
        ("//! A module.\n/// Of an item.", 2),
        ("/// A field.\na: u8,\n/// Which one sends.", 3),
        ("/// Reads a link.\n///\n/// Where none is, it fails.", 3),
        ("//! A module.\n//!\n//! Its bounds.\n//! Of those there are two.", 3),
        ("/// Reads a link.\n///\n/// # Errors\n/// What the system says.", 4),
        ("    /// # Panics\n    ///\n    /// That is a fault.", 3),
        ("/// ```\n/// code();\n/// ```\n/// How it ends.", 4),
        ("/// ```\nfn f() {}\n/// How it ends.", 3),
        (&format!("#[test]\nfn {name}() {{}}"), 2),
        (&format!("vec![\n    trial(\"udp/{name}\", NEEDS, run),"), 2),
        ("trial(\n    \"udp/what_is_long_is_cut\",\n    NEEDS,", 1),
        (&format!("#[test]\n#[ignore]\npub async fn {name}() {{}}"), 3),
        (&format!("proptest! {{\n    #[test]\n    fn {name}(a in 0..3) {{}}\n}}"), 3),
    ];
    for (text, line) in bad {
        let found = faults(text);
        assert!(found.len() == 1 && found[0].starts_with(&format!("{line}: ")), "{text}: {found:?}");
    }
}
