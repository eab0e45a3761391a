//! The build script that names the commit in `fatpath --version`, in sources with and without a repository.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Directory of one test, removed at its end.
struct Source {
    directory: PathBuf,
}

impl Source {
    /// A workspace with one crate, in `place` below a new directory.
    fn new(name: &str, place: &str) -> Self {
        let directory = env::temp_dir().join(format!("fatpath-version-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        let workspace = directory.join(place);
        fs::create_dir_all(workspace.join("bin")).unwrap();
        fs::write(workspace.join("Cargo.lock"), "").unwrap();
        Self { directory }
    }

    /// Makes `place` below the directory a repository with one commit, and returns the commit.
    fn commit(&self, place: &str) -> String {
        let git = |arguments: &[&str]| {
            let mut git = Command::new("git");
            git.current_dir(self.directory.join(place)).args(["-c", "user.name=n", "-c", "user.email=n@example.org"]);
            git.args(arguments);
            let output = git.output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8(output.stdout).unwrap().trim().to_owned()
        };
        git(&["init", "--quiet"]);
        git(&["commit", "--quiet", "--allow-empty", "--message", "first"]);
        git(&["rev-parse", "--short=12", "HEAD"])
    }

    /// The script's output for the crate in `place`.
    fn script(&self, place: &str, profile: &str, commit: Option<&str>) -> String {
        let built = self.directory.join("script");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../bin/build.rs");
        let mut rustc = Command::new(env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
        let status = rustc.args(["--edition", "2024", "-o"]).arg(&built).arg(source).status().unwrap();
        assert!(status.success());
        let mut script = Command::new(built);
        script.env("CARGO_PKG_VERSION", "1.2.3").env("PROFILE", profile).env_remove("FATPATH_COMMIT");
        script.env("CARGO_MANIFEST_DIR", self.directory.join(place).join("bin"));
        script.envs(commit.map(|commit| ("FATPATH_COMMIT", commit)));
        let output = script.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// The version that a script's output gives the crate.
fn version(output: &str) -> &str {
    output.lines().find_map(|line| line.strip_prefix("cargo:rustc-env=FATPATH_VERSION=")).unwrap()
}

#[test]
fn version_in_a_repository_names_its_commit() {
    let source = Source::new("repository", "");
    let commit = source.commit("");
    let output = source.script("", "release", None);
    assert_eq!(version(&output), format!("1.2.3 ({commit})"));
    assert!(
        output.lines().any(|line| line.starts_with("cargo:rerun-if-changed=") && line.ends_with("/HEAD")),
        "{output}"
    );
    assert!(output.contains("/refs/heads/"), "{output}");
    // A debug build is not run again by a commit.
    let output = source.script("", "debug", None);
    assert_eq!(version(&output), "1.2.3");
    assert!(!output.contains("HEAD"), "{output}");
}

#[test]
fn version_without_a_repository_has_no_commit() {
    let source = Source::new("none", "");
    assert_eq!(version(&source.script("", "release", None)), "1.2.3");
    assert_eq!(version(&source.script("", "debug", Some("0123abc"))), "1.2.3 (0123abc)");
    assert_eq!(version(&source.script("", "release", Some(""))), "1.2.3");
}

#[test]
fn version_is_not_that_of_a_repository_around_the_source() {
    let source = Source::new("around", "package");
    source.commit("");
    assert_eq!(version(&source.script("package", "release", None)), "1.2.3");
}
