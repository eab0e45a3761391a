//! `fatpath bench`: one mechanism compared with its absence, on in-memory links, in alternating rounds in one process.
//!
//! An in-memory link delivers packets like a device, in bursts and in separate pages, at no cost: its buffers are
//! filled before the clock starts.

mod case;
mod cpu;
mod esp;
mod forward;
mod ila;
mod reassembly;
mod report;
mod shards;
mod trunk;
mod vhost;
mod vrf;
mod workers;

pub(crate) use vhost::back_end as vhost_back_end;

use case::{Case, Group, Plan};
use ipsec::engine::Library;
use report::{BenchReport, Tally};

use crate::progress::Progress;
use client::{BenchArgs, BenchName, CliError, print};

/// Runs a benchmark and prints its report.
///
/// # Errors
/// No case has that name, or packets of a case were lost.
pub(crate) fn main(args: &BenchArgs) -> Result<(), CliError> {
    let (bench, groups) = match args.name {
        BenchName::Esp => ("esp", esp::groups()),
        BenchName::Forward => ("forward", forward::groups()),
        BenchName::Ila => ("ila", ila::groups()),
        BenchName::Vhost => ("vhost", vhost::groups()),
        BenchName::Vrf => ("vrf", vrf::groups()),
        BenchName::Trunk => ("trunk", trunk::groups()),
        BenchName::Reassembly => ("reassembly", reassembly::groups()),
        BenchName::Shards => ("shards", shards::groups()),
        BenchName::Workers => ("workers", workers::groups()),
    };
    let matches = |name: &str| args.only.as_ref().is_none_or(|only| name.contains(only.as_str()));
    let groups: Vec<Group> = groups.into_iter().filter_map(|group| group.only(matches)).collect();
    if groups.is_empty() {
        let only = args.only.as_deref().unwrap_or_default();
        return Err(CliError::failed(format!("bench {bench}: no case has {only} in its name")));
    }
    let rounds = u64::from(args.rounds);
    let progress = Progress::on_stderr(groups.len() as u64 * rounds, args.json);
    let seconds = groups.iter().map(|group| group.cases.len()).sum::<usize>() as f64
        * f64::from(args.rounds)
        * args.slice().as_secs_f64();
    // Gateways are processes, and have priorities and processors of their own.
    let is_by_gateways = matches!(args.name, BenchName::Forward | BenchName::Workers);
    let cpu = if is_by_gateways { "by gateways in network namespaces".to_owned() } else { cpu::settle() };
    let seconds = if is_by_gateways { seconds * f64::from(forward::SLICES) } else { seconds };
    let library = Library::fastest();
    progress.announce(&format!("fatpath bench {bench}: about {seconds:.0} s, {cpu}, AES-GCM by {library}"));
    let mut tally = Tally::default();
    for (at, group) in (0..).zip(&groups) {
        progress.say(at * rounds, &group.name);
        measure(group, args, &mut tally, |round| progress.advance(at * rounds + round))?;
    }
    drop(progress);
    let report: BenchReport = tally.report(bench, args.rounds as usize);
    if let ([], [missing, ..]) = (&report.cases[..], &report.missing[..]) {
        return Err(CliError::failed(format!("bench: {}: {}", missing.name, missing.why)));
    }
    let text = if args.json { report.to_json() } else { report.to_string() };
    print((text + "\n").as_bytes())
}

/// Measures the cases of a group alternately, round by round. `ended` is called with the number of rounds between two of them.
fn measure(group: &Group, args: &BenchArgs, tally: &mut Tally, ended: impl Fn(u64)) -> Result<(), CliError> {
    let failed = |why: String| CliError::failed(format!("bench: {}: {why}", group.name));
    let mut cases: Vec<Case> = group.cases.iter().map(Plan::start).collect();
    for case in &mut cases {
        case.warm().map_err(failed)?;
    }
    for number in 0..args.rounds {
        for _ in 0..SHARES {
            for case in &mut cases {
                case.slice(args.slice() / SHARES).map_err(failed)?;
            }
        }
        cases.iter_mut().try_for_each(|case| case.end_round(number.into())).map_err(failed)?;
        ended(u64::from(number) + 1);
    }
    tally.add(group, &cases);
    Ok(())
}

/// Number of shares into which a round divides the time of each case, alternating between cases, so that a disturbance
/// of the machine affects all of them.
const SHARES: u32 = 3;
