//! Names the commit of the source in `FATPATH_VERSION`, for `--version` of the programs.
//!
//! The commit is that of the environment variable `FATPATH_COMMIT`, else, in a release build, of the git repository
//! whose work tree this source is; a source without either has the version alone. Only the crates of programs run this
//! script, so that a commit rebuilds no library; and no debug build, which would rarely be of the commit that it names.

use std::env;
use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-env-changed=FATPATH_COMMIT");
    let version = env::var("CARGO_PKG_VERSION").expect("cargo sets the version");
    let commit = env::var("FATPATH_COMMIT").ok().filter(|commit| !commit.is_empty()).or_else(commit_of_repository);
    let shown = commit.map_or_else(|| version.clone(), |commit| format!("{version} ({commit})"));
    println!("cargo:rustc-env=FATPATH_VERSION={shown}");
}

/// Abbreviated commit of the repository, of which the workspace is the work tree.
fn commit_of_repository() -> Option<String> {
    let manifest = env::var("CARGO_MANIFEST_DIR").ok()?;
    let root = Path::new(&manifest).ancestors().find(|place| place.join("Cargo.lock").is_file())?;
    println!("cargo:rerun-if-changed={}", root.join("Cargo.lock").display());
    // Another repository may surround a source package.
    if env::var("PROFILE").is_ok_and(|profile| profile == "debug") || !root.join(".git").exists() {
        return None;
    }
    let git = |arguments: &[&str]| {
        let output = Command::new("git").arg("-C").arg(root).args(arguments).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
        (output.status.success() && !text.is_empty()).then_some(text)
    };
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    let branch = git(&["symbolic-ref", "--quiet", "HEAD"]);
    for file in ["HEAD", "packed-refs"].into_iter().chain(branch.as_deref()) {
        let path = git(&["rev-parse", "--git-path", file]).map(|path| root.join(path));
        // Cargo would run this script each time for a file that does not exist.
        if let Some(path) = path.filter(|path| path.exists()) {
            println!("cargo:rerun-if-changed={}", path.display());
        }
    }
    Some(commit)
}
