//! Crates that the program for users links: none of those that are for measurements and tests, or for HTTP.

use std::env;
use std::path::Path;
use std::process::Command;

/// Crates that `fatpath` must not link.
const FOR_MEASUREMENTS: [&str; 6] = [
    "fatpath-bench",
    "fatpath-ibmveth",
    "fatpath-interop-tests",
    "fatpath-sim",
    "fatpath-system-tests",
    "fatpath-testbed",
];

/// Crates that programs beside the gateway link, and the gateway does not.
const FOR_VIEWS: [&str; 5] = ["fatpath-see", "http", "hyper", "mio", "tokio"];

/// Names of the packages that `package` links, itself among them, with all of its features.
fn linked_by(package: &str) -> Vec<String> {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap());
    cargo.args(["tree", "--locked", "--offline", "--all-features", "--edges", "normal", "--prefix", "none"]);
    let output = cargo.args(["--format", "{p}", "--package", package]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect()
}

#[test]
fn shipped_programs_link_no_crate_for_measurements() {
    for package in ["fatpath", "fatpath-preload"] {
        let linked = linked_by(package);
        assert!(linked.iter().any(|name| name == "fatpath-launch" || name == "fatpath-nlsock"), "{linked:?}");
        let wrong: Vec<_> = linked.iter().filter(|name| FOR_MEASUREMENTS.contains(&name.as_str())).collect();
        assert!(wrong.is_empty(), "{package} links {wrong:?}");
        let wrong: Vec<_> = linked.iter().filter(|name| is_for_views(name)).collect();
        assert!(wrong.is_empty(), "{package} links {wrong:?}");
    }
}

/// Whether a crate is for HTTP, for asynchronous work or for a terminal's screen.
fn is_for_views(name: &str) -> bool {
    const BEGINNINGS: [&str; 6] = ["axum", "async-", "crossterm", "hyper-", "ratatui", "tokio-"];
    FOR_VIEWS.contains(&name) || BEGINNINGS.iter().any(|beginning| name.starts_with(beginning))
}

#[test]
fn crates_for_views_are_found_where_they_are_linked() {
    let linked = linked_by("fatpath-see");
    for name in FOR_VIEWS {
        assert!(linked.iter().any(|linked| linked == name), "{name}: {linked:?}");
    }
    let wrong: Vec<_> = linked.iter().filter(|name| FOR_MEASUREMENTS.contains(&name.as_str())).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
}

#[test]
fn agent_of_a_fleet_links_no_gateway_and_no_measurement() {
    let linked = linked_by("fatpath-fleet");
    assert!(linked.iter().any(|name| name == "fatpath-fleet-core"), "{linked:?}");
    let is_of_gateway = |name: &str| matches!(name, "fatpath-daemon" | "fatpath-datapath" | "fatpath-link");
    let wrong: Vec<_> =
        linked.iter().filter(|name| FOR_MEASUREMENTS.contains(&name.as_str()) || is_of_gateway(name)).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
}

#[test]
fn crates_for_measurements_are_found_where_they_are_linked() {
    let packages = ["fatpath-bench", "fatpath-interop-tests", "fatpath-system-tests"];
    let linked: Vec<String> = packages.iter().flat_map(|package| linked_by(package)).collect();
    for name in FOR_MEASUREMENTS {
        assert!(linked.iter().any(|linked| linked == name), "{name}: {linked:?}");
    }
}
