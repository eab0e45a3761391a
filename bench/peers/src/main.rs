//! Cost of a fragment in fatpath, smoltcp and gVisor, in alternating rounds of one run: `make bench-peers`.
//!
//! All three get the same fragments in sequence, and reassemble them to datagrams ready for a socket. Buffers are
//! filled before the clock starts. UDP checksums are verified, as for fragments from a wire; in cases named `verified`
//! the device has verified them, so that an implementation may skip the verification.
//!
//! `fatpath-bench-peers [--json] [--rounds N] [--gvisor PROGRAM]`
#![forbid(unsafe_code)]

mod fatpath;
mod gvisor;
mod smol;
mod train;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use train::Train;

/// Measuring time of each implementation in a round.
const SLICE: Duration = Duration::from_millis(50);

/// Warm-up passes, which are not measured.
const WARM: u64 = 4;

const NAMES: [&str; 3] = ["fatpath", "smoltcp", "gvisor"];

fn main() -> ExitCode {
    let mut rounds = 9;
    let mut is_json = false;
    let mut program = "gvisor-reassembly".to_owned();
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match (arg.as_str(), args.len()) {
            ("--json", _) => is_json = true,
            ("--rounds", 1..) => match args.next().and_then(|n| n.parse().ok()).filter(|&n| n > 0) {
                Some(n) => rounds = n,
                None => return usage(),
            },
            ("--gvisor", 1..) => program = args.next().unwrap_or_default(),
            _ => return usage(),
        }
    }
    let cases: Vec<Case> = Train::all().into_iter().map(|train| Case::measure(&train, rounds, &program)).collect();
    println!("{}", if is_json { to_json(&cases, rounds).to_string() } else { to_table(&cases, rounds) });
    // A case without a result of fatpath is a failure; a peer may be missing.
    if cases.iter().all(|case| case.nanos[0].is_ok()) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn usage() -> ExitCode {
    eprintln!("usage: fatpath-bench-peers [--json] [--rounds N] [--gvisor PROGRAM]");
    ExitCode::FAILURE
}

/// Time per fragment of one train in each implementation, round by round, or the reason for a missing measurement.
struct Case {
    name: String,
    nanos: [Result<Vec<f64>, String>; 3],
}

impl Case {
    fn measure(train: &Train, rounds: usize, program: &str) -> Self {
        let mut nanos = NAMES.map(|_| Ok(Vec::new()));
        for _ in 0..rounds {
            for (who, so_far) in nanos.iter_mut().enumerate() {
                let Ok(values) = so_far else { continue };
                let measured = match who {
                    0 => fatpath::measure(train, SLICE),
                    1 => smol::measure(train, SLICE),
                    _ => gvisor::measure(program, train, SLICE),
                };
                match measured {
                    Ok(value) => values.push(value),
                    Err(why) => *so_far = Err(why),
                }
            }
        }
        Self { name: train.name.clone(), nanos }
    }

    /// Ratio of fatpath's fragments per second to a peer's over the rounds: median, minimum and maximum.
    fn ratio(&self, peer: usize) -> Option<[f64; 3]> {
        let (own, peer) = (self.nanos[0].as_ref().ok()?, self.nanos[peer].as_ref().ok()?);
        let mut quotients: Vec<f64> = own.iter().zip(peer).map(|(own, peer)| peer / own).collect();
        quotients.sort_by(f64::total_cmp);
        Some([quotients[quotients.len() / 2], quotients[0], quotients[quotients.len() - 1]])
    }
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

fn rounded(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

fn to_json(cases: &[Case], rounds: usize) -> Value {
    let mut all = Vec::new();
    let mut ratios = Vec::new();
    let mut missing = Vec::new();
    for case in cases {
        for (who, nanos) in NAMES.iter().zip(&case.nanos) {
            let name = format!("{}/{who}", case.name);
            match nanos {
                Ok(nanos) => {
                    let nanos = median(nanos);
                    all.push(json!({ "name": name, "ns_per_fragment": rounded(nanos), "mfps": rounded(1e3 / nanos) }));
                }
                Err(why) => missing.push(json!({ "name": name, "why": why })),
            }
        }
        for (peer, who) in NAMES.iter().enumerate().skip(1) {
            if let Some([median, min, max]) = case.ratio(peer).map(|ratio| ratio.map(rounded)) {
                let of = format!("fatpath/{who}");
                ratios.push(json!({ "name": case.name, "of": of, "median": median, "min": min, "max": max }));
            }
        }
    }
    json!({ "bench": "reassembly-peers", "rounds": rounds, "cases": all, "ratios": ratios, "missing": missing })
}

fn to_table(cases: &[Case], rounds: usize) -> String {
    let mut text = format!(
        "medians of {rounds} rounds; ns per fragment, and how many times a peer's fragments per second fatpath's are\n\n"
    );
    text += &format!(
        "{:<25} {:>9} {:>9} {:>9}   {:>18}   {:>18}\n",
        "", NAMES[0], NAMES[1], NAMES[2], "x smoltcp", "x gvisor"
    );
    for case in cases {
        text += &format!("{:<25}", case.name);
        for nanos in &case.nanos {
            text += &nanos.as_ref().map_or(format!(" {:>9}", "-"), |nanos| format!(" {:>9.1}", median(nanos)));
        }
        for peer in [1, 2] {
            text += &case.ratio(peer).map_or(format!("   {:>18}", "-"), |[median, min, max]| {
                format!("   {:>18}", format!("{median:.2} ({min:.2} to {max:.2})"))
            });
        }
        text += "\n";
    }
    text += &format!("\nhow each was driven:\n  {}\n  {}\n  {}", fatpath::HOW, smol::HOW, gvisor::HOW);
    let missing = cases.iter().flat_map(|case| {
        let failed = NAMES.iter().zip(&case.nanos).filter_map(|(who, nanos)| Some((who, nanos.as_ref().err()?)));
        failed.map(|(who, why)| format!("\n  {} {who}: {why}", case.name))
    });
    let missing: String = missing.collect();
    if !missing.is_empty() {
        text += &format!("\n\nnot measured:{missing}");
    }
    text
}

/// Runs passes for at least `length`, and returns the nanoseconds of the median pass and the number of passes. Other
/// programs on the CPU lengthen a few passes, which do not affect the median.
fn middle(length: Duration, pass: &mut impl FnMut() -> Duration) -> (f64, u64) {
    for _ in 0..WARM {
        pass();
    }
    let (start, mut taken) = (Instant::now(), Vec::new());
    while start.elapsed() < length || taken.is_empty() {
        taken.push(pass().as_nanos() as f64);
    }
    (median(&taken), WARM + taken.len() as u64)
}
