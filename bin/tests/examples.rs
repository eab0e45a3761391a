//! Files in `examples/` and their quotes in the documentation.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

#[test]
fn every_example_is_accepted() {
    let entries = fs::read_dir(root().join("examples")).unwrap();
    let files = entries.map(|entry| entry.unwrap().path());
    let files: Vec<PathBuf> = files.filter(|file| file.extension().is_some_and(|it| it == "toml")).collect();
    assert!(files.len() >= 3, "{files:?}");
    for file in files {
        let output = Command::new(env!("CARGO_BIN_EXE_fatpath")).args(["check", "-c"]).arg(&file).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn page_of_the_tunnel_quotes_its_left_end_word_by_word() {
    let files = ["examples/tunnel-left.toml", "crates/config/tests/tunnel-left-expanded.toml"];
    assert!(quotes("docs/tunnel.md", &files) >= 6);
}

#[test]
fn page_of_guests_quotes_its_example_word_by_word() {
    assert_eq!(quotes("docs/guests.md", &["examples/guests.toml"]), 1);
}

/// Number of quotes of files in a page.
fn quotes(page: &str, files: &[&str]) -> usize {
    let page = fs::read_to_string(root().join(page)).unwrap();
    let text: Vec<String> = files.iter().map(|file| fs::read_to_string(root().join(file)).unwrap()).collect();
    let text = text.join("\n");
    let quotes = page.split("```toml\n").skip(1).filter_map(|rest| Some(rest.split_once("```")?.0));
    quotes.inspect(|quote| assert!(text.contains(quote), "not in {files:?}:\n{quote}")).count()
}
