//! `fatpath status`: one line for each tunnel of the running gateways, and reasons for those that do not work.

mod charon;
mod gateway;
mod ike;
mod text;
mod tunnel;
mod vici;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use client::{CliError, gateways, print, socket_path};
use gateway::{GatewayStatus, Sample};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::cli::StatusArgs;

/// Time between the two samples that rates are computed from, without `--watch`.
const RATE_WINDOW: Duration = Duration::from_millis(500);

/// Clears a terminal and moves the cursor to its first line.
const CLEAR: &str = "\x1b[H\x1b[2J\x1b[3J";

/// A gateway that is asked, with its previous sample.
struct Asked {
    name: String,
    path: PathBuf,
    previous: Option<Sample>,
    /// Reason that it has not answered the first time; it is not asked twice then.
    failure: Option<String>,
}

/// Prints the status of the gateway `only`, or of all that this user has started and root's.
///
/// # Errors
/// Standard output cannot be written. No gateway runs, which is exit code 3. A tunnel is down or a gateway does not
/// answer, which is exit code 1 without a message.
pub(crate) fn main(args: &StatusArgs, only: Option<&str>) -> Result<ExitCode, CliError> {
    match args.watch {
        Some(seconds) => watch(args, only, Duration::from_secs(seconds.into())),
        None => once(args, only),
    }
}

fn once(args: &StatusArgs, only: Option<&str>) -> Result<ExitCode, CliError> {
    let mut asked = asked(only)?;
    for gateway in &mut asked {
        match Sample::take(&gateway.name, &gateway.path) {
            Ok(sample) => gateway.previous = Some(sample),
            Err(err) => gateway.failure = Some(err.message),
        }
    }
    thread::sleep(RATE_WINDOW);
    let statuses = sample(&mut asked);
    print(shown(&statuses, args.json).as_bytes())?;
    let failed = statuses.iter().any(GatewayStatus::has_failure);
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Prints the status again and again, until a signal or until the reader of the output closes its end.
fn watch(args: &StatusArgs, only: Option<&str>, interval: Duration) -> Result<ExitCode, CliError> {
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(|err| CliError::system("catch signals", &err))?;
    let (ended, has_ended) = channel();
    thread::spawn(move || signals.forever().next().map(|_| ended.send(())));
    let clear = if std::io::stdout().is_terminal() && !args.json { CLEAR } else { "" };
    let mut known: Vec<Asked> = Vec::new();
    loop {
        // Gateways come and go.
        let mut now = asked(only).or_else(|err| if err.exit_code == NO_GATEWAY { Ok(Vec::new()) } else { Err(err) })?;
        for gateway in &mut now {
            let before = known.iter_mut().find(|before| before.path == gateway.path);
            gateway.previous = before.and_then(|before| before.previous.take());
        }
        let statuses = sample(&mut now);
        let text = if now.is_empty() && !args.json {
            "no gateway is running\n".to_owned()
        } else {
            shown(&statuses, args.json)
        };
        print(format!("{clear}{text}").as_bytes())?;
        known = now;
        match has_ended.recv_timeout(interval) {
            Err(RecvTimeoutError::Timeout) => {}
            _ => return Ok(ExitCode::SUCCESS),
        }
    }
}

/// Exit code if no gateway runs.
const NO_GATEWAY: u8 = 3;

fn asked(only: Option<&str>) -> Result<Vec<Asked>, CliError> {
    let one = |name: &str| vec![(name.to_owned(), socket_path(name))];
    let found = only.map_or_else(gateways, one);
    let running: Vec<Asked> = found
        .into_iter()
        .filter(|(_, path)| client::is_running(path))
        .map(|(name, path)| Asked { name, path, previous: None, failure: None })
        .collect();
    if running.is_empty() {
        let (which, option) = match only {
            Some(name) => (format!("no gateway named {name} is running"), format!(" -i {name}")),
            None => ("no gateway is running".to_owned(), String::new()),
        };
        let message = format!("{which}; start one with `fatpath run -c FILE{option}`.");
        return Err(CliError { exit_code: NO_GATEWAY, ..CliError::failed(message) });
    }
    Ok(running)
}

fn sample(gateways: &mut [Asked]) -> Vec<GatewayStatus> {
    let status = |gateway: &mut Asked| {
        if let Some(why) = gateway.failure.take() {
            return GatewayStatus::unreachable(&gateway.name, why);
        }
        match Sample::take(&gateway.name, &gateway.path) {
            Ok(sample) => {
                let status = sample.status(&gateway.name, gateway.previous.as_ref());
                gateway.previous = Some(sample);
                status
            }
            Err(err) => GatewayStatus::unreachable(&gateway.name, err.message),
        }
    };
    let mut statuses: Vec<(GatewayStatus, PathBuf)> =
        gateways.iter_mut().map(|gateway| (status(gateway), gateway.path.clone())).collect();
    charon::add(&mut statuses);
    statuses.into_iter().map(|(status, _)| status).collect()
}

fn shown(statuses: &[GatewayStatus], json: bool) -> String {
    if json {
        serde_json::to_string(statuses).expect("plain values with text keys always serialise") + "\n"
    } else {
        statuses.iter().map(text::text).collect()
    }
}
