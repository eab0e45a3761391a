//! `fatpath exec -c`: a gateway and a program on it in one command, which end together.

use std::env;
use std::io::Write as _;
use std::process::{Command, ExitCode};
use std::thread;

use clap::ValueEnum as _;
use client::CliError;
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::cli::ExecArgs;
use crate::own_gateway::{OwnGateway, RunDir, Started, exit_code, set_run_dir};

/// Starts a gateway, runs the program as `fatpath exec` does, and ends the gateway. Returns the program's exit code.
///
/// # Errors
/// The gateway or the program cannot be started.
pub(crate) fn main(args: &ExecArgs, instance: &str) -> Result<ExitCode, CliError> {
    let run_dir = RunDir::make()?;
    // Ctrl-C at a terminal reaches the program, which may handle it; the gateway ends behind the program.
    let mut signals =
        Signals::new([SIGINT, SIGQUIT, SIGTERM, SIGHUP]).map_err(|err| CliError::system("catch signals", &err))?;
    let mut gateway = match OwnGateway::start(instance, &args.config, run_dir.as_ref(), &[])? {
        Started::Ready(gateway) => gateway,
        Started::Ended(code) => return Ok(code),
    };
    let own = env::current_exe().map_err(|err| CliError::system("the program's own path", &err))?;
    let mut command = Command::new(own);
    command.args(["exec", "--instance", instance]);
    if let Some(vrf) = &args.vrf {
        command.args(["--vrf", vrf]);
    } else if args.host_firewall {
        command.arg("--host-firewall");
    } else {
        let sockets = args.sockets.to_possible_value().expect("no place is hidden");
        command.args(["--sockets", sockets.get_name()]);
    }
    set_run_dir(&mut command, run_dir.as_ref());
    let mut program =
        command.arg("--").args(&args.program).spawn().map_err(|err| CliError::system("fatpath exec", &err))?;
    let pid = i32::try_from(program.id()).ok().and_then(Pid::from_raw);
    let handle = signals.handle();
    let forwarder = thread::spawn(move || {
        for signal in signals.forever() {
            let signal = match signal {
                SIGHUP => Signal::HUP,
                SIGTERM => Signal::TERM,
                // The terminal sends SIGINT and SIGQUIT to the program, too.
                _ => continue,
            };
            if let Some(pid) = pid {
                let _ = kill_process(pid, signal);
            }
        }
    });
    let status = program.wait().map_err(|err| CliError::system("wait for the program", &err));
    handle.close();
    let _ = forwarder.join();
    if gateway.ended()?.is_some() {
        let _ = writeln!(std::io::stderr(), "fatpath exec: the gateway ended before the program");
    }
    Ok(exit_code(status?))
}
