//! The files in `examples/` and what `docs/tunnel.md` quotes of them.

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
    let page = fs::read_to_string(root().join("docs/tunnel.md")).unwrap();
    let example = fs::read_to_string(root().join("examples/tunnel-left.toml")).unwrap();
    let quotes: Vec<&str> =
        page.split("```toml\n").skip(1).filter_map(|rest| Some(rest.split_once("```")?.0)).collect();
    assert!(quotes.len() >= 4, "{quotes:?}");
    for quote in quotes {
        assert!(example.contains(quote), "not in examples/tunnel-left.toml:\n{quote}");
    }
}
