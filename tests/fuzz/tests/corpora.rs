//! Inputs of `fuzz/corpus`, which fuzzers have found: each is run once by its target.

use std::collections::BTreeSet;
use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

use libtest_mimic::{Arguments, Failed, Trial};
use targets::{TARGETS, Target};

/// Most bytes of all inputs.
const MOST_BYTES: u64 = 2 << 20;

fn main() {
    let mut arguments = Arguments::from_args();
    // Targets of guests count descriptors of the process.
    arguments.test_threads = Some(1);
    let mut trials = vec![
        Trial::test("each_target_has_a_corpus_and_a_program", each_target_has_a_corpus_and_a_program),
        Trial::test("corpora_are_at_most_2_mib", corpora_are_at_most_2_mib),
    ];
    trials.extend(TARGETS.into_iter().map(|target| Trial::test(target.0, move || corpus(target))));
    libtest_mimic::run(&arguments, trials).exit();
}

/// Runs each input of a target.
fn corpus((name, target): Target) -> Result<(), Failed> {
    for file in files(&fuzz_dir().join("corpus").join(name)) {
        let input = fs::read(&file)?;
        if catch_unwind(|| target(&input)).is_err() {
            return Err(format!("{}: see the panic above", file.display()).into());
        }
    }
    Ok(())
}

fn each_target_has_a_corpus_and_a_program() -> Result<(), Failed> {
    let want: BTreeSet<String> = TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
    let names = |directory: &str, suffix: &str| -> BTreeSet<String> {
        let paths = files(&fuzz_dir().join(directory)).into_iter();
        paths.map(|path| path.file_name().unwrap().to_str().unwrap().trim_end_matches(suffix).to_owned()).collect()
    };
    assert_eq!(names("corpus", ""), want);
    assert_eq!(names("fuzz_targets", ".rs"), want);
    assert!(names("dictionaries", ".dict").is_subset(&want));
    let manifest = fs::read_to_string(fuzz_dir().join("Cargo.toml"))?;
    for name in want {
        let source = fs::read_to_string(fuzz_dir().join(format!("fuzz_targets/{name}.rs")))?;
        let body = format!("fuzz_target!(|input: &[u8]| targets::{name}::target(input));\n");
        assert!(source.ends_with(&body), "fuzz_targets/{name}.rs does not run the target {name}");
        assert!(manifest.contains(&format!("name = \"{name}\"\n")), "fuzz/Cargo.toml has no program {name}");
    }
    Ok(())
}

fn corpora_are_at_most_2_mib() -> Result<(), Failed> {
    let mut bytes = 0;
    for (name, _) in TARGETS {
        let files = files(&fuzz_dir().join("corpus").join(name));
        assert!(!files.is_empty(), "fuzz/corpus/{name} has no input");
        bytes += files.iter().map(|file| fs::metadata(file).map_or(0, |it| it.len())).sum::<u64>();
    }
    assert!(bytes <= MOST_BYTES, "{bytes} bytes: `cargo xtask fuzz` minimises them");
    Ok(())
}

/// Files and directories in a directory, in order.
fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

fn fuzz_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz")
}
