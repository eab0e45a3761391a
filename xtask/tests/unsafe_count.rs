//! Number of uses of `unsafe` in each crate, which may only fall.

use std::fs;
use std::path::{Path, PathBuf};

/// Uses of `unsafe` in the sources of each crate that has any: blocks, functions, implementations and attributes.
const MOST: [(&str, usize); 6] =
    [("ipsec", 46), ("launch", 8), ("link", 83), ("offload", 5), ("packet", 60), ("preload", 198)];

/// Number of uses of `unsafe` in a source file, comments left out, and the keyword `'unsafe-inline'` of a page's policy.
fn uses(source: &str) -> usize {
    let code = source.lines().map(|line| line.split_once("//").map_or(line, |(code, _)| code));
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let code = code.map(|line| line.replace("'unsafe-inline'", ""));
    code.map(|line| line.split(|c| !is_word(c)).filter(|word| *word == "unsafe").count()).sum()
}

/// Source files below a directory.
fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display())) {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|it| it == "rs") {
            found.push(path);
        }
    }
}

/// Name of each crate below `root`, and its number of uses, without those that have none.
fn counts(root: &Path) -> Vec<(String, usize)> {
    let children = |parent: &str| fs::read_dir(root.join(parent)).unwrap().map(|entry| entry.unwrap().path());
    let crates = children("crates").chain(children("models")).chain([root.join("bin")]);
    let mut counts = Vec::new();
    for directory in crates {
        let mut files = Vec::new();
        sources(&directory.join("src"), &mut files);
        let count: usize = files.iter().map(|file| uses(&fs::read_to_string(file).unwrap())).sum();
        if count > 0 {
            counts.push((directory.file_name().unwrap().to_str().unwrap().to_owned(), count));
        }
    }
    counts.sort();
    counts
}

#[test]
fn uses_of_unsafe_in_each_crate_only_fall() {
    let counts = counts(Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap());
    let most: Vec<_> = MOST.iter().map(|&(name, count)| (name.to_owned(), count)).collect();
    assert_eq!(counts, most, "more: write it without `unsafe`; fewer: write the new number into `MOST`");
}

#[test]
fn unsafe_is_counted_in_code_alone() {
    let source =
        "// unsafe\n#![forbid(unsafe_code)]\n#[unsafe(no_mangle)]\nunsafe fn a() { unsafe { b() } } // unsafe\n";
    assert_eq!(uses(source), 3);
}
