//! Plain words in code: names of functions and types, reasons of lint attributes, and texts of errors.

use super::prose;

/// Words of names that stand for a person or a person's act, or for an object of everyday life instead of the field's word.
const NAME_WORDS: [&str; 13] = [
    "who",
    "whom",
    "whoever",
    "nobody",
    "somebody",
    "everybody",
    "anybody",
    "someone",
    "obey",
    "obeys",
    "news",
    "rung",
    "bell",
];

/// Words that are no name of a type: they refer to something outside of it.
const NO_TYPES: [&str; 7] = ["how", "that", "then", "this", "those", "what", "where"];

/// First words of a reason that name nothing: the noun is elsewhere.
const NO_NOUNS: [&str; 12] =
    ["all", "each", "how", "it", "its", "not", "that", "they", "this", "what", "where", "which"];

/// Beginnings of calls whose first argument is the text of an error, or `format!` of one.
const ERRORS: [&str; 17] = [
    "CliError::failed(",
    "CliError::system(",
    "Err(",
    "Error::new(",
    "Error::other(",
    "Error::unsupported(",
    "bail!(",
    "error(",
    "map_err(|_| ",
    "map_err(|err| ",
    "map_err(|error| ",
    "map_err(|why| ",
    "ok_or(",
    "ok_or_else(|| ",
    "refuse(",
    "write!(f, ",
    "write_str(",
];

/// The name that a line declares, and whether it is a type's.
fn declared(line: &str) -> Option<(&str, bool)> {
    let mut words = line.split_whitespace();
    let keyword = words.find(|word| !word.starts_with("pub") && !matches!(*word, "const" | "async" | "unsafe"))?;
    let is_type = match keyword {
        "fn" => false,
        "struct" | "enum" | "trait" | "type" => true,
        _ => return None,
    };
    let name = words.next()?.split(|c: char| !c.is_alphanumeric() && c != '_').next()?;
    Some((name, is_type))
}

/// The words of a name, in lower case.
fn words_of(name: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for part in name.split('_') {
        words.push(String::new());
        for c in part.chars() {
            if c.is_uppercase() {
                words.push(String::new());
            }
            words.last_mut().expect("just pushed").extend(c.to_lowercase());
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// Fault of the name of a function or type that a trimmed line declares. The name of a test is a sentence, with rules of its own.
pub(crate) fn fault_of_declaration(line: &str, is_test: bool) -> Option<String> {
    let (name, is_type) = declared(line)?;
    let words = words_of(name);
    let is_pronoun = |word: &String| word == "it" && words.len() > 1;
    if let Some(word) = words.iter().find(|word| NAME_WORDS.contains(&word.as_str())) {
        return Some(format!("{word:?} in the name {name}; use the field's word"));
    }
    if is_type && NO_TYPES.contains(&name.to_lowercase().as_str()) {
        return Some(format!("{name} is no name of a type"));
    }
    let ends_with_it = !is_type && !is_test && words.last().is_some_and(is_pronoun);
    ends_with_it.then(|| format!("{name} ends with a pronoun; name the object or leave it out"))
}

/// The literal that a text begins with, without its quotes.
fn literal(text: &str) -> Option<&str> {
    let text = text.strip_prefix('"')?;
    let mut is_escaped = false;
    let end = text.find(|c: char| {
        let ends = c == '"' && !is_escaped;
        is_escaped = c == '\\' && !is_escaped;
        ends
    })?;
    Some(&text[..end])
}

/// Faults of the reasons of attributes and of the texts of errors, with their lines.
pub(crate) fn faults_of_literals(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut add = |at: usize, kind: &str, fault: String| {
        found.push(format!("{}: {fault} in {kind}", text[..at].matches('\n').count() + 1));
    };
    for (at, mark) in text.match_indices("reason = \"") {
        let is_attribute = text[..at].rsplit(['\n', ';']).next().is_some_and(|line| {
            let line = line.trim_start();
            line.is_empty() || line.starts_with("#[") || line.starts_with("#![")
        });
        let Some(reason) = literal(&text[at + mark.len() - 1..]).filter(|_| is_attribute) else { continue };
        let first = reason.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default().to_lowercase();
        if NO_NOUNS.contains(&first.as_str()) {
            add(at, "the reason of an attribute", format!("first word {first:?}, which is no noun,"));
        }
        prose::persons(reason).for_each(|word| add(at, "the reason of an attribute", format!("{word:?}")));
    }
    for mark in ERRORS {
        for (at, _) in text.match_indices(mark) {
            let argument = text[at + mark.len()..].trim_start();
            let argument = argument.strip_prefix("format!(").unwrap_or(argument).trim_start();
            let Some(error) = literal(argument) else { continue };
            // A name in backquotes or braces is code.
            let prose = error.split(['`', '{', '}']).step_by(2);
            prose.flat_map(prose::persons).for_each(|word| add(at, "a text", format!("{word:?}")));
        }
    }
    found
}

#[test]
fn names_are_split_into_words() {
    for (name, words) in [
        ("run_commands", &["run", "commands"][..]),
        ("EventQueue", &["event", "queue"]),
        ("Doorbell", &["doorbell"]),
        ("_it", &["it"]),
        ("MAX_LEN", &["m", "a", "x", "l", "e", "n"]),
    ] {
        assert_eq!(words_of(name), words, "{name}");
    }
}

#[test]
fn declarations_have_plain_names() {
    let good = [
        "fn run_commands(&mut self) {",
        "pub(crate) struct Doorbell {",
        "pub const fn it() -> u8 {",
        "let obey = 1;",
        "fn limit(&self) -> usize {",
        "// fn obey() {",
        "impl Who for X {",
        "enum Whereabouts {",
    ];
    for line in good {
        assert_eq!(fault_of_declaration(line, false), None, "{line}");
    }
    let bad = [
        "fn obey(&mut self) -> bool {",
        "pub(crate) enum News {",
        "pub struct OldBell<'a> {",
        "type Rung = Vec<u8>;",
        "pub(super) const fn who_asks() {}",
        "pub unsafe fn close_it(fd: i32) {",
        "async fn send_to_nobody<T>() {",
        "pub enum Then {",
        "trait Where {",
    ];
    for line in bad {
        assert!(fault_of_declaration(line, false).is_some(), "{line}");
    }
    assert_eq!(fault_of_declaration("fn packet_is_cut_by_the_link_that_sends_it() {", true), None);
    assert!(fault_of_declaration("fn nobody_answers() {", true).is_some());
}

#[test]
fn reasons_and_texts_of_errors_are_in_plain_words() {
    let good = [
        "#[expect(dead_code, reason = \"test files use parts of this module\")]",
        "let reason = \"who\";",
        "log(reason = \"it\");",
        "return Err(format!(\"{who}: no such link\"));",
        "f.write_str(\"a key for `who`\")",
        "assert_eq!(shown(x), format!(\"who has {x}\"));",
        "Err(who)",
    ];
    for text in good {
        assert_eq!(faults_of_literals(text), [] as [&str; 0], "{text}");
    }
    let bad = [
        ("#[allow(dead_code, reason = \"what is found is read\")]", 1),
        ("#[expect(\n    dead_code,\n    reason = \"not all of it is used\"\n)]", 3),
        ("#![expect(dead_code, reason = \"for whoever asks\")]", 1),
        ("fn f() {\n    Err(\"nobody answers\")\n}", 2),
        ("x.ok_or_else(|| \"somebody has that address\")", 1),
        ("return Err(format!(\n    \"{name}: wants a \\\"key\\\", which he\",\n));", 1),
        ("f.write_str(\"a peer who is away\")", 1),
        ("open(x).map_err(|err| format!(\"nobody has it: {err}\"))", 1),
    ];
    for (text, line) in bad {
        let found = faults_of_literals(text);
        assert!(!found.is_empty() && found[0].starts_with(&format!("{line}: ")), "{text}: {found:?}");
    }
}
