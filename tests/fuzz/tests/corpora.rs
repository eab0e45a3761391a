//! Inputs of `fuzz/corpus`, which fuzzers have found: each is run once by its target.
//!
//! With `FATPATH_FUZZ_SECONDS` each target also runs mutations of them for that long, of `FATPATH_FUZZ_SEED`, or of a seed that is printed;
//! `FATPATH_FUZZ_PART=N/M` leaves out all targets but each M-th from the N-th on. An input that fails is kept in `fuzz/artifacts`.

use std::collections::BTreeSet;
use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Failed, Trial};
use sim::Rng;
use targets::mutation::mutate;
use targets::{TARGETS, Target};

/// Most bytes of all inputs.
const MOST_BYTES: u64 = 2 << 20;

/// Longest time of an input, on a busy machine. A target takes a millisecond at most.
const LONGEST: Duration = Duration::from_secs(10);

/// Mutations that are run.
#[derive(Clone, Copy)]
struct Fuzz {
    duration: Duration,
    seed: u64,
}

impl Fuzz {
    /// Mutations that the environment asks for.
    fn of_environment() -> Option<Self> {
        let seconds = std::env::var("FATPATH_FUZZ_SECONDS").ok()?.parse().expect("FATPATH_FUZZ_SECONDS is a number");
        let seed = std::env::var("FATPATH_FUZZ_SEED").map(|seed| seed.parse().expect("FATPATH_FUZZ_SEED is a number"));
        let seed = seed.unwrap_or_else(|_| {
            let since = std::time::UNIX_EPOCH.elapsed().expect("a clock behind 1970");
            since.as_nanos() as u64
        });
        println!("FATPATH_FUZZ_SEED={seed}");
        Some(Self { duration: Duration::from_secs(seconds), seed })
    }

    /// Runs mutations of the corpus of a target.
    fn run(self, (name, target): Target) -> Result<(), Failed> {
        let inputs: Vec<_> =
            files(&fuzz_dir().join("corpus").join(name)).iter().map(fs::read).collect::<Result<_, _>>()?;
        let words = dictionary(name);
        let mut rng = Rng::new(self.seed);
        let (begun, mut count) = (Instant::now(), 0_u64);
        while begun.elapsed() < self.duration {
            let input = mutate(&inputs, &words, &mut rng);
            let start = Instant::now();
            let panicked = catch_unwind(|| target(&input)).is_err();
            if panicked || start.elapsed() > LONGEST {
                let directory = fuzz_dir().join("artifacts").join(name);
                fs::create_dir_all(&directory)?;
                let file = directory.join(format!("mutation-{}-{count}", self.seed));
                fs::write(&file, input)?;
                let why = if panicked { "see the panic above" } else { "it takes too long" };
                return Err(format!("{}: {why}", file.display()).into());
            }
            count += 1;
        }
        println!("{name}: {count} mutations");
        Ok(())
    }
}

/// Whether a target is of the part that the environment has: `N/M`.
fn is_of_part(at: usize) -> bool {
    let Ok(part) = std::env::var("FATPATH_FUZZ_PART") else { return true };
    let (number, parts) = part.split_once('/').expect("FATPATH_FUZZ_PART is N/M");
    let [number, parts]: [usize; 2] = [number, parts].map(|text| text.parse().expect("FATPATH_FUZZ_PART is N/M"));
    at % parts == number % parts
}

/// Words of the dictionary of a target, without the escapes of bytes that are no text.
fn dictionary(name: &str) -> Vec<Vec<u8>> {
    let text =
        fs::read_to_string(fuzz_dir().join("dictionaries").join(name).with_extension("dict")).unwrap_or_default();
    let quoted = |line: &str| Some(line.split_once('"')?.1.strip_suffix('"')?.as_bytes().to_vec());
    text.lines().filter(|line| !line.starts_with('#') && !line.contains('\\')).filter_map(quoted).collect()
}

fn main() {
    let mut arguments = Arguments::from_args();
    // Targets of guests count descriptors of the process.
    arguments.test_threads = Some(1);
    if let Some(fuzz) = Fuzz::of_environment() {
        let targets = TARGETS.into_iter().enumerate().filter(|&(at, _)| is_of_part(at));
        let trials = targets.map(|(_, target)| Trial::test(target.0, move || fuzz.run(target)));
        libtest_mimic::run(&arguments, trials.collect()).exit();
    }
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
