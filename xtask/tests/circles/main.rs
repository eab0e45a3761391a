//! Circles of files in the crates, and the scanner that finds them.

mod graph;
mod tokens;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::{env, fs, process};

use graph::Graph;

/// Circles of a crate that consists of these files.
fn circles(files: &[(&str, &str)]) -> Vec<Vec<String>> {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let directory = env::temp_dir().join(format!("xtask-circles-{}-{}", process::id(), NEXT.fetch_add(1, Relaxed)));
    for (name, text) in files {
        let file = directory.join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }
    let found = Graph::of_crate(&directory.join(files[0].0)).circles();
    fs::remove_dir_all(directory).unwrap();
    found
}

/// Circles of `lib.rs` with these modules and `a.rs` and `b.rs`.
fn of_two(lib: &str, a: &str, b: &str) -> Vec<Vec<String>> {
    circles(&[("lib.rs", &format!("mod a;\nmod b;\n{lib}")), ("a.rs", a), ("b.rs", b)])
}

#[test]
fn files_that_use_each_other_are_a_circle() {
    let ways = [
        "use crate::b::B;",
        "pub use crate::b::B; type X = B;",
        "use super::b::B as C;",
        "use crate::{self as _, b::{B, X}};",
        "use crate::b::*;",
        "use crate::b;",
        "fn f() { crate::b::g(); }",
        "fn f() { let x: super::b::B; }",
        "fn f() { assert!(crate::b::g() == 1, \"x\"); }",
        "fn f() { use crate::b::g; g(); }",
        "mod inner { use super::super::b::B; }",
        "mod inner { fn f() { crate::b::g() } }",
        "#[cfg(not(test))] use crate::b::B;",
        "#[cfg(any(test, feature = \"x\"))] use crate::b::B;",
        "impl crate::b::T for A {}",
        "const X: [crate::b::B; 2] = [];",
        "#[cfg(test)] use std::fmt;\nuse crate::b::B;",
        "#[cfg(test)] mod tests { fn f() { if a { } } }\nuse crate::b::B;",
        "struct S { #[cfg(test)] x: u8, y: crate::b::B }",
        "#[cfg(test)] #[derive(Debug)] struct T { x: [u8; 2] }\nfn f(b: &crate::b::B) {}",
    ];
    for way in ways {
        let b = "use crate::a::A;\npub struct B;\npub fn g() -> A {}";
        assert_eq!(of_two("", &format!("{way}\npub struct A;"), b), [["a.rs", "b.rs"]], "{way}");
    }
}

#[test]
fn file_that_does_not_use_the_other_makes_no_circle() {
    let ways = [
        "",
        "// use crate::b::B;",
        "/* crate::b::B */",
        "/// Links to [`B`](crate::b::B).\nstruct X;",
        "const X: &str = \"crate::b::B\";",
        "const X: &str = r#\"use crate::b::B;\"#;",
        "#[cfg(test)] use crate::b::B;",
        "#[cfg(test)] mod tests { use crate::b::B; }",
        "#[cfg(all(test, unix))] mod tests { use crate::b::B; }",
        "#[test] fn f() { crate::b::g() }",
        "struct S { #[cfg(test)] x: crate::b::B, y: u8 }",
        "use other::b::B;",
        "use ::b::B;",
        "fn f() { b::g(); x.b(); }",
        "pub use crate::b::B;",
    ];
    for way in ways {
        let b = "use crate::a::A;\npub struct B;";
        assert_eq!(of_two("", &format!("{way}\npub struct A;"), b), [[""; 0]; 0], "{way}");
    }
}

#[test]
fn reexport_leads_to_the_declaring_file() {
    let b = "use crate::a::A;\npub struct B;";
    let a = "use crate::B;\npub struct A;";
    assert_eq!(of_two("pub use b::B;", a, b), [["a.rs", "b.rs"]]);
    assert_eq!(of_two("pub use b::*;", a, b), [["a.rs", "b.rs"]]);
    assert_eq!(
        of_two("pub mod c { pub use crate::b::B as D; }", "use crate::c::D;\npub struct A;", b),
        [["a.rs", "b.rs"]]
    );
    assert_eq!(of_two("pub use b::B;", "use crate::B;\npub struct A;", "pub struct B;"), [[""; 0]; 0]);
}

#[test]
fn root_is_in_a_circle_only_with_what_its_code_uses() {
    let b = "use crate::Root;\npub struct B;";
    assert_eq!(of_two("pub struct Root;\npub use b::B;", "", b), [[""; 0]; 0]);
    assert_eq!(of_two("pub struct Root(B);\npub use b::B;", "", b), [["b.rs", "lib.rs"]]);
    assert_eq!(of_two("pub struct Root(b::B);", "", b), [["b.rs", "lib.rs"]]);
    assert_eq!(of_two("use b::B;\npub struct Root;", "", b), [["b.rs", "lib.rs"]]);
    // An item that a macro declares counts as the module's own.
    assert_eq!(of_two("make! { Root }\npub struct X(b::B);", "", b), [["b.rs", "lib.rs"]]);
}

#[test]
fn circle_of_three_and_modules_in_directories_are_found() {
    let files = [
        ("main.rs", "mod a;\n#[path = \"odd.rs\"]\nmod c;"),
        ("a/mod.rs", "mod inner;\nuse crate::c::C;\npub struct A;"),
        ("a/inner.rs", "mod deep;\npub struct I;"),
        ("a/inner/deep.rs", "use super::super::A;\npub struct D;"),
        ("odd.rs", "use crate::a::inner::deep::D;\npub struct C;"),
    ];
    assert_eq!(circles(&files), [["a/inner/deep.rs", "a/mod.rs", "odd.rs"]]);
}

#[test]
fn uses_within_a_circle_are_shown_with_their_lines() {
    let directory = env::temp_dir().join(format!("xtask-uses-{}", process::id()));
    fs::create_dir_all(&directory).unwrap();
    for (name, text) in [("lib.rs", "mod a;\nmod b;"), ("a.rs", "\nuse crate::b;"), ("b.rs", "use crate::a::f;")] {
        fs::write(directory.join(name), text).unwrap();
    }
    let graph = Graph::of_crate(&directory.join("lib.rs"));
    fs::remove_dir_all(directory).unwrap();
    let want = ["a.rs:2 uses b.rs: crate::b", "b.rs:1 uses a.rs: crate::a::f"];
    assert_eq!(graph.uses_within(&graph.circles()[0]), want);
}

/// Root of the workspace.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// Root files of all crates of the workspace.
fn crate_roots() -> Vec<PathBuf> {
    let mut packages: Vec<PathBuf> =
        ["bin", "xtask", "tests/fuzz", "tests/interop", "tests/system"].map(|name| root().join(name)).into();
    for parent in ["crates", "models"] {
        let entries = fs::read_dir(root().join(parent)).unwrap();
        packages.extend(entries.map(|entry| entry.unwrap().path()));
    }
    let files = packages.iter().flat_map(|package| ["src/lib.rs", "src/main.rs"].map(|name| package.join(name)));
    files.filter(|file| file.exists()).collect()
}

#[test]
fn no_crate_has_a_circle_of_files() {
    let mut faults = Vec::new();
    let roots = crate_roots();
    assert!(roots.len() > 15, "{roots:?}");
    for file in roots {
        let graph = Graph::of_crate(&file);
        let directory = file.parent().unwrap().strip_prefix(root()).unwrap().display().to_string();
        for circle in graph.circles() {
            let uses = graph.uses_within(&circle);
            faults.push(format!("{directory}: {circle:?} in a circle of files:\n  {}", uses.join("\n  ")));
        }
    }
    assert!(faults.is_empty(), "CONTRIBUTING.md, \"How the code reads\":\n{}", faults.join("\n"));
}
