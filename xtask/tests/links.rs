//! The documentation's links.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Every Markdown file below `directory` that is the repository's own.
fn documents(directory: &Path, found: &mut Vec<PathBuf>) {
    let entries = match fs::read_dir(directory) {
        // Another test's, which was there for a moment.
        Err(err) if err.kind() == ErrorKind::NotFound => return,
        entries => entries.unwrap(),
    };
    for entry in entries {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap_or_default();
        if name == "target" || name.starts_with('.') {
            continue;
        }
        if path.is_dir() {
            documents(&path, found);
        } else if name.ends_with(".md") {
            found.push(path);
        }
    }
}

/// Tells whether the heading that a link to a document names is there.
fn has_anchor(document: &Path, target: &str) -> bool {
    let Some((_, anchor)) = target.split_once('#') else { return true };
    let text = fs::read_to_string(document).unwrap();
    text.lines().filter(|line| line.starts_with('#')).any(|line| slug(line) == anchor)
}

/// The anchor of a heading, as GitHub makes it.
fn slug(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    text.chars()
        .filter(|&c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
        .map(|c| if c == ' ' { '-' } else { c })
        .collect()
}

#[test]
fn anchor_of_a_heading_has_no_punctuation() {
    assert_eq!(slug("## `sysctl`, and `ip`'s own"), "sysctl-and-ips-own");
}

#[test]
fn every_relative_link_in_the_documentation_leads_to_a_file() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let (mut files, mut links, mut broken) = (Vec::new(), 0, Vec::new());
    documents(root, &mut files);
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        for target in text.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0)) {
            let path = target.split('#').next().unwrap_or_default();
            if path.is_empty() || path.contains("://") {
                continue;
            }
            links += 1;
            let led_to = file.with_file_name(path);
            if !led_to.exists() || !has_anchor(&led_to, target) {
                broken.push(format!("{}: {target}", file.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
    assert!(links > 20, "only {links} links were found");
}

/// Directories of the root, with which the path of a file begins.
const ROOTS: [&str; 9] = ["bench/", "bin/", "crates/", "docs/", "examples/", "models/", "scripts/", "tests/", "xtask/"];

/// Paths from the root that a text has between backquotes.
fn quoted_paths(text: &str) -> impl Iterator<Item = &str> {
    let is_path = |quoted: &&str| {
        ROOTS.iter().any(|root| quoted.starts_with(root)) && !quoted.contains([' ', '*', '<', '{', '…', '\n'])
    };
    text.split('`').skip(1).step_by(2).filter(is_path)
}

#[test]
fn every_quoted_path_in_the_guides_is_that_of_a_file() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    // A changelog and decisions name removed files.
    let guides = ["ARCHITECTURE.md", "CONTRIBUTING.md", "README.md", "docs/README.md", "docs/bench/README.md"];
    let (mut paths, mut missing) = (0, Vec::new());
    for guide in guides {
        let text = fs::read_to_string(root.join(guide)).unwrap();
        for path in quoted_paths(&text) {
            paths += 1;
            if !root.join(path).exists() {
                missing.push(format!("{guide}: {path}"));
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
    assert!(paths > 10, "only {paths} paths were found");
}

#[test]
fn quoted_paths_begin_with_a_directory_of_the_root() {
    let text = "`crates/a.rs`, `a/b.rs`, crates/c.rs, `docs/NAME.md …`, `x`, `bin/src`";
    assert_eq!(quoted_paths(text).collect::<Vec<_>>(), ["crates/a.rs", "bin/src"]);
}
