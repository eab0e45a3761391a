//! `fatpath load`: applies a configuration file to a running gateway.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::AsFd;
use std::path;

use client::{CliError, Client, print};
use ctl::{LoadStage, Reply, Request};
use daemon::Meter;

use crate::cli::LoadArgs;
use crate::progress::Progress;

/// Length from which on a file is long, so that the gateway is asked for the progress: an earlier release refuses to say it.
const LONG: u64 = 1 << 20;

/// Checks the file, makes the gateway load it, and prints a summary.
///
/// # Errors
/// Exit code 2 if the file is invalid; 1 if the gateway does not reply, or cannot apply the file.
pub(crate) fn main(args: &LoadArgs, instance: &str) -> Result<(), CliError> {
    if args.config.as_os_str() == "-" {
        return Err(CliError::failed(
            "-c -: the gateway reads the file itself, and again at each SIGHUP; name a file.",
        ));
    }
    check(args)?;
    let named = |why: &dyn std::fmt::Display| CliError::failed(format!("{}: {why}", args.config.display()));
    let file = path::absolute(&args.config).map_err(|err| named(&err))?;
    let file = file.into_os_string().into_string().map_err(|_| named(&"its path is not UTF-8; rename it."))?;
    // The gateway's sandbox may not let it open the file.
    let opened = File::open(&args.config).map_err(|err| named(&err))?;
    let is_long = opened.metadata().is_ok_and(|file| file.len() >= LONG);
    let mut client = Client::connect(instance)?;
    let request = Request::Load { file, progress: is_long };
    let running = apply(args, &mut client, &request, &opened)?;
    print(format!("{instance}: running with {running}\n").as_bytes())
}

/// Checks the file, and prints warnings.
fn check(args: &LoadArgs) -> Result<(), CliError> {
    let (progress, meter) = (Progress::on_stderr(), Meter::default());
    let stage = format!("{}: checking", args.config.display());
    let checked = progress.during(&stage, || meter.get(), || daemon::load_config(&args.config, &meter));
    drop(progress);
    for warning in &checked?.1 {
        // With standard error closed, the exit code is the only report.
        let _ = writeln!(io::stderr(), "{}", warning.line());
    }
    Ok(())
}

/// Makes the gateway load the file, and returns the summary.
fn apply(args: &LoadArgs, client: &mut Client, request: &Request, opened: &File) -> Result<String, CliError> {
    let progress = Progress::on_stderr();
    let mut reply = client.ask_with(request, &[opened.as_fd()])?;
    loop {
        match reply {
            Reply::Loaded { running } => return Ok(running),
            Reply::Loading { stage, read, len } => {
                let (what, done) = match stage {
                    LoadStage::Waiting => ("waits for the gateway", (0, 0)),
                    LoadStage::Reading => ("the gateway reads it", (read, len)),
                    LoadStage::Planning => ("the gateway prepares it", (0, 0)),
                    LoadStage::Applying => ("the workers take it over", (0, 0)),
                    LoadStage::Publishing => ("netlink clients are told", (0, 0)),
                };
                progress.say(&format!("{}: {what}", args.config.display()), done);
            }
            _ => return Err(client.confused()),
        }
        reply = client.next_reply()?;
    }
}
