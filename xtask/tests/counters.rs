//! The counters: each is counted somewhere, and the result of a call that drops packets is not thrown away.

use std::fs;
use std::path::Path;

/// The text of every Rust file below `directory`.
fn sources(directory: &Path, text: &mut String) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, text);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            *text += &fs::read_to_string(&path).unwrap();
        }
    }
}

#[test]
fn every_counter_is_named_where_something_is_counted() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let list = fs::read_to_string(root.join("crates/base/src/counters.rs")).unwrap();
    let list = list.split_once("\nmib! {").and_then(|(_, rest)| rest.split_once('}')).unwrap().0;
    let mut text = String::new();
    for name in ["datapath", "host", "ipsec", "reassembly"] {
        sources(&root.join("crates").join(name).join("src"), &mut text);
    }
    let words = |text: &str| text.split(|c: char| !c.is_alphanumeric()).map(str::to_owned).collect::<Vec<_>>();
    let words: std::collections::HashSet<String> = words(&text).into_iter().collect();
    let counters: Vec<&str> = list.split_whitespace().collect();
    assert!(counters.len() > 90, "{counters:?}");
    let never: Vec<&&str> = counters.iter().filter(|name| !words.contains(**name)).collect();
    assert!(never.is_empty(), "nothing counts {never:?}");
}

#[test]
fn results_about_drops_are_not_thrown_away() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let source = root.join("crates/datapath/src");
    let mut text = String::new();
    sources(&source, &mut text);
    // The compiler refuses a statement that throws one away, but not `let _`.
    assert!(text.contains("#![deny(unused_must_use)]"), "lib.rs of datapath");
    let ports = fs::read_to_string(source.join("node/ports.rs")).unwrap();
    let (before, _) = ports.split_once("struct Dropped(());").expect("the type of counted drops");
    assert!(before.rsplit('\n').take(2).any(|line| line.starts_with("#[must_use")), "Dropped");
    let thrown: Vec<&str> = text.lines().filter(|line| line.trim_start().starts_with("let _ = ")).collect();
    assert!(thrown.is_empty(), "a drop is counted, or ended by `Dropped::end`: {thrown:#?}");
}
