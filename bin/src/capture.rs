//! `fatpath capture`: receives a link's packets as pcapng and writes them to a file or a pipe.

use std::fs::File;
use std::io::{self, IsTerminal, Write};

use client::{Capture, CliError, Client};

use crate::cli::CaptureArgs;

/// Captures until a signal, or until the gateway or the reader of the output closes its end.
///
/// # Errors
/// The link does not exist, the gateway does not run, or the output cannot be written.
pub(crate) fn main(args: &CaptureArgs, instance: &str) -> Result<(), CliError> {
    if args.write.is_none() && io::stdout().is_terminal() {
        return Err(CliError::failed("a capture is not text; name a file with -w, or pipe it to another program."));
    }
    let capture = Capture::begin(Client::connect(instance)?, &args.link, args.after_gro)?;
    let captured = match &args.write {
        Some(path) => {
            let named = |err: io::Error| CliError::system(&path.display().to_string(), &err);
            capture.copy(File::create(path).map_err(named)?).map_err(named)?
        }
        None => capture.copy(io::stdout().lock()).map_err(|err| CliError::system("capture", &err))?,
    };
    let packets = captured.packets;
    let _ = writeln!(io::stderr(), "{packets} {} captured", if packets == 1 { "packet" } else { "packets" });
    Ok(())
}
