//! Pages that a newcomer reads first: lengths of README and of the tunnel's examples, and warnings in front of steps that cut off a
//! remote login.

use std::fs;
use std::path::Path;

fn read(name: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    fs::read_to_string(root.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[test]
fn readme_is_a_door_of_at_most_110_lines() {
    let text = read("README.md");
    assert!(text.lines().count() <= 110, "{} lines; details are for a page in docs", text.lines().count());
    let first = text.lines().position(|line| line.contains("fatpath try")).unwrap();
    let comparison = text.lines().position(|line| line.starts_with("## Where it fits")).unwrap();
    assert!(first < comparison, "a first ping comes before comparisons");
}

#[test]
fn examples_of_the_tunnel_have_at_most_12_lines() {
    for name in ["examples/tunnel-left.toml", "examples/tunnel-right.toml"] {
        let lines = read(name).lines().count();
        assert!(lines <= 12, "{name}: {lines} lines");
    }
}

#[test]
fn pages_that_take_addresses_of_interfaces_begin_with_a_warning() {
    for name in ["router", "switch", "ila", "vrf"] {
        let page = format!("docs/{name}.md");
        let head: Vec<String> = read(&page).lines().take(5).map(str::to_owned).collect();
        assert!(head.iter().any(|line| line.starts_with("> **Not over SSH")), "{page}: {head:?}");
    }
}

#[test]
fn pages_about_other_implementations_name_what_was_tried() {
    for name in ["tunnel", "pair", "rootless", "strongswan"] {
        let page = format!("docs/{name}.md");
        let text = read(&page);
        let tried = text.split_once("Tried").map(|(_, rest)| rest).unwrap_or_default();
        assert!(tried.chars().any(|digit| digit.is_ascii_digit()), "{page}: no version of what was tried");
    }
}
