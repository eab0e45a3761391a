//! Progress of long work: a line that changes on a terminal, plain lines elsewhere, nothing beside JSON.

use std::fs;
use std::process::Command;
use std::thread;
use std::time::Duration;

use libtest_mimic::Trial;
use system::{Gateway, Need, Netns, Outcome, Scratch, fatpath, trial, wait_until};

use crate::large_file;
use crate::top::InTerminal;

const PATIENCE: Duration = Duration::from_secs(120);

/// Number of routes whose load takes some seconds, also where the tests are fast.
const ROUTES: u32 = 400_000;

pub(crate) fn trials() -> Vec<Trial> {
    const NEEDS: &[Need] = &[Need::Namespaces, Need::Tun];
    vec![
        trial("progress/bench_is_a_bar_or_lines_or_silent", &[], bench),
        trial("progress/demo_is_a_bar_or_lines_or_silent", NEEDS, demo),
        trial("progress/load_of_a_large_file_says_how_far_it_is", NEEDS, load),
    ]
}

/// Output of a program in a terminal, once it has ended with success.
fn in_terminal(mut command: Command) -> Outcome<String> {
    command.env("TERM", "xterm");
    let mut terminal = InTerminal::start(command, [100, 24])?;
    wait_until("it ends", PATIENCE, || terminal.has_ended())?;
    // What it has written last is read by another thread.
    let mut output = String::new();
    wait_until("its output is whole", PATIENCE, || {
        let before = std::mem::replace(&mut output, terminal.output());
        thread::sleep(Duration::from_millis(200));
        before == output
    })?;
    if terminal.child.wait()?.success() { Ok(output) } else { Err(output.into()) }
}

/// Standard output and standard error.
fn in_pipes(mut command: Command) -> Outcome<[String; 2]> {
    let output = command.output()?;
    let texts = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    if output.status.success() { Ok(texts) } else { Err(texts.concat().into()) }
}

/// Checks the progress of a measurement of `steps` steps, of which the first is `first`.
fn check(command: impl Fn() -> Command, steps: usize, first: &str) -> Outcome {
    let json = || {
        let mut command = command();
        command.arg("--json");
        command
    };
    let output = in_terminal(command())?;
    let bar = |done: usize| format!("{done}/{steps} ");
    assert!(output.contains(&bar(0)) && output.contains(first) && output.contains('░'), "{output:?}");
    assert!((1..=steps).any(|done| output.contains(&bar(done)) && output.contains('█')), "{output:?}");
    // It is cleared before the result.
    let result = output.rsplit_once("\x1b[2K").or(output.rsplit_once("\x1b[K")).ok_or(output.clone())?.1;
    let name = first.rsplit(' ').next().unwrap_or_default();
    assert!(result.contains(name) && !result.contains('█'), "{output:?}");
    let output = in_terminal(json())?;
    assert!(output.trim_end().starts_with('{') && output.trim_end().ends_with('}'), "{output:?}");
    let [result, progress] = in_pipes(command())?;
    let lines: Vec<&str> = progress.lines().collect();
    assert!(lines[0].contains("about "), "{progress}");
    assert!(lines[1].starts_with(&format!("1/{steps} ")) && lines[1].contains(first), "{progress}");
    assert!(!progress.contains('\x1b') && !result.contains('\x1b'), "{progress}");
    let [result, progress] = in_pipes(json())?;
    assert!(result.starts_with('{') && progress.is_empty(), "{progress}");
    Ok(())
}

fn bench() -> Outcome {
    let _running = crate::bench::alone();
    let command = || {
        let mut command = Command::new(fatpath());
        command.args(["bench", "esp", "--rounds", "2", "--slice", "100", "--only", "transport/null/fat"]);
        command
    };
    check(command, 4, "transport/null")
}

fn demo() -> Outcome {
    let command = || {
        let mut command = Command::new(fatpath());
        command.args(["demo", "--seconds", "1", "--rounds", "1"]);
        command
    };
    check(command, 3, "round 1 of 1: veth")
}

fn load() -> Outcome {
    let (scratch, netns) = (Scratch::new()?, Netns::new("gateway")?);
    let small = format!("[host]\nside = \"off\"\n{}", large_file::SMALL);
    let gateway = Gateway::start(&netns, &scratch, "gw", &small)?;
    let file = scratch.config("large.toml")?;
    fs::write(&file, system::with_workers(&format!("[host]\nside = \"off\"\n{}", large_file::large(ROUTES, 0))))?;
    let command = || {
        let mut command = Command::new(fatpath());
        command.args(["load", "--instance", "gw", "-c"]).arg(&file).env("FATPATH_RUNDIR", scratch.path());
        command
    };
    let [result, progress] = in_pipes(command())?;
    assert!(result.contains("gw: running with 1 link") && result.contains(&format!("+{ROUTES} routes")), "{result}");
    assert!(progress.lines().count() > 0 && !progress.contains('\x1b'), "{progress}");
    for line in progress.lines() {
        assert!(line.starts_with(&format!("{}: ", file.display())), "{progress}");
    }
    assert!(progress.contains(": checking ") && progress.contains(" %"), "{progress}");
    // The gateway's part has its own lines.
    fs::write(&file, system::with_workers(&format!("[host]\nside = \"off\"\n{}", large_file::large(ROUTES + 1, 0))))?;
    let output = in_terminal(command())?;
    assert!(output.contains("\r\x1b[K") && output.contains(": checking ") && output.contains(" %"), "{output:?}");
    assert!(output.contains(": the gateway ") || output.contains(": the workers "), "{output:?}");
    let last = output.rsplit("\r\x1b[K").next().unwrap_or_default();
    assert!(last.starts_with("gw: running with"), "{output:?}");
    drop(gateway);
    Ok(())
}
