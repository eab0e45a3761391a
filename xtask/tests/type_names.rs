//! Names of types: one that other files of a crate can see is unique in its crate.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Rust files below `directory`.
fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    let entries = fs::read_dir(directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    for entry in entries {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// Names of the types that a file declares for others: `pub` or `pub(…)`, outside of its tests and of `impl` blocks and
/// traits.
fn visible_types(text: &str) -> BTreeSet<&str> {
    let mut names = BTreeSet::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line == "mod tests {" {
            // Its end is the next brace in the first column.
            let _ = lines.find(|line| line.starts_with('}'));
        }
        names.extend(visible_type(line));
    }
    names
}

fn visible_type(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("pub")?;
    let rest = if rest.starts_with('(') { rest.split_once(')')?.1 } else { rest };
    let mut words = rest.split_whitespace().filter(|word| *word != "unsafe");
    let kind = words.next()?;
    let name = words.next()?.split(['<', '(', '{', ';', ':', '=']).next()?;
    matches!(kind, "struct" | "enum" | "union" | "trait" | "type").then_some(name)
}

#[test]
fn visible_type_is_unique_in_its_crate() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut packages: Vec<PathBuf> = ["bin", "bench/peers", "tests/fuzz", "tests/interop", "tests/system", "xtask"]
        .map(|name| root.join(name))
        .into();
    for parent in ["crates", "models"] {
        packages.extend(fs::read_dir(root.join(parent)).unwrap().map(|entry| entry.unwrap().path()));
    }
    // Files of `tests` are a crate, or several.
    let directories = packages.iter().flat_map(|package| ["src", "tests"].map(|name| package.join(name)));
    let mut twice = Vec::new();
    for directory in directories.filter(|path| path.exists()) {
        let mut files = Vec::new();
        sources(&directory, &mut files);
        let mut names: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for file in files {
            let text = fs::read_to_string(&file).unwrap();
            for name in visible_types(&text) {
                let file = file.strip_prefix(&directory).unwrap().display().to_string();
                names.entry(name.to_owned()).or_default().push(file);
            }
        }
        let directory = directory.strip_prefix(root).unwrap().display().to_string();
        for (name, files) in names.iter().filter(|(_, files)| files.len() > 1) {
            twice.push(format!("{directory} {name}: {}", files.join(", ")));
        }
    }
    assert!(twice.is_empty(), "declared more than once:\n{}", twice.join("\n"));
}

#[test]
fn visible_types_are_those_that_other_files_can_name() {
    let text = "pub struct A<T>(T);\npub(crate) enum B {\npub(in crate::x) type C = u8;\nstruct D;\n    pub struct E;\n\
        pub unsafe trait F: Send {\npub fn g() {}\npub use h::H;\npub(super) union I {\n#[cfg(test)]\nmod tests {\npub struct J;\n}\npub struct K;";
    assert_eq!(visible_types(text).into_iter().collect::<Vec<_>>(), ["A", "B", "C", "F", "I", "K"]);
}
