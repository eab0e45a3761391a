//! First pages: the head of each crate says what it decides, what it leaves to others, its limits and its standards.

use std::fs;
use std::path::{Path, PathBuf};

/// Headings of the four parts, and words of which each part has one at least. A limit is a number.
const PARTS: [(&str, &[&str]); 4] = [
    ("# Decides", &[" "]),
    ("# Leaves to others", &["crate", "program"]),
    ("# Limits", &["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"]),
    ("# Standards", &["RFC ", "IEEE ", "No RFC."]),
];

/// Faults of a crate's first page: headings of parts that are missing, or do not say what they are for.
fn faults(source: &str) -> Vec<&'static str> {
    let head: Vec<&str> = source.lines().map_while(|line| line.strip_prefix("//!")).map(str::trim).collect();
    let part = |heading: &str| {
        let text = head.iter().skip_while(|line| **line != heading).skip(1);
        text.take_while(|line| !line.starts_with("# ")).copied().collect::<Vec<_>>().join(" ")
    };
    let is_missing = |(heading, words): &(&str, &[&str])| !words.iter().any(|word| part(heading).contains(word));
    PARTS.into_iter().filter(is_missing).map(|(heading, _)| heading).collect()
}

/// The file with the first page of each member of the workspace: that of the library or, without one, of the program.
fn first_pages(root: &Path) -> Vec<PathBuf> {
    let manifest = fs::read_to_string(root.join("Cargo.toml")).unwrap();
    let members = manifest.split_once("members = [").and_then(|(_, rest)| rest.split_once(']')).unwrap().0;
    let mut crates = Vec::new();
    for member in members.split('"').skip(1).step_by(2) {
        match member.strip_suffix("/*") {
            Some(parent) => crates.extend(fs::read_dir(root.join(parent)).unwrap().map(|entry| entry.unwrap().path())),
            None => crates.push(root.join(member)),
        }
    }
    let file = |directory: PathBuf| {
        let [library, program] = ["src/lib.rs", "src/main.rs"].map(|name| directory.join(name));
        if library.exists() { library } else { program }
    };
    crates.into_iter().map(file).collect()
}

#[test]
fn first_page_of_each_crate_has_its_four_parts() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let pages = first_pages(root);
    assert!(pages.len() > 25, "{pages:?}");
    let mut missing = Vec::new();
    for page in pages {
        let source = fs::read_to_string(&page).unwrap_or_else(|error| panic!("{}: {error}", page.display()));
        let page = page.strip_prefix(root).unwrap().display().to_string();
        missing.extend(faults(&source).into_iter().map(|part| format!("{page}: {part}")));
    }
    assert!(missing.is_empty(), "parts of first pages that are missing or empty:\n{}", missing.join("\n"));
}

#[test]
fn page_without_a_part_or_with_an_empty_one_is_named() {
    let whole = "//! A crate.\n//!\n//! # Decides\n//! All of it.\n//! # Leaves to others\n//! Sockets (crate `link`).\n\
        //! # Limits\n//! 8 links.\n//! # Standards\n//! No RFC.\nmod a;";
    assert_eq!(faults(whole), Vec::<&str>::new());
    assert_eq!(faults(&whole.replace("//! # Limits\n", "")), ["# Limits"]);
    assert_eq!(faults(&whole.replace("8 links", "Few links")), ["# Limits"]);
    assert_eq!(faults(&whole.replace("//! No RFC.\n", "")), ["# Standards"]);
    assert_eq!(faults(&whole.replace("//! All of it.\n", "")), ["# Decides"]);
    assert_eq!(faults(&whole.replace("# Leaves", "## Leaves")), ["# Leaves to others"]);
    assert_eq!(faults(&format!("mod b;\n{whole}")).len(), 4);
}
