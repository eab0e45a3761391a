//! `fatpath trace`: the stages that chosen packets pass in a running gateway.

use std::io::{self, BufRead, ErrorKind, Write};

use control::trace::PacketTrace;
use control::{Reply, Request};

use crate::capture::{end_on_signal, end_with_reader};
use crate::cli::TraceArgs;
use crate::client::Client;
use crate::error::CliError;

/// Prints a block for each packet until there were as many as asked for, until a signal, or until the gateway or the reader of
/// the output goes.
///
/// # Errors
/// If no gateway of that name answers, or the filter is wrong.
pub(crate) fn main(args: &TraceArgs) -> Result<(), CliError> {
    let mut client = Client::connect(&args.instance)?;
    let request = Request::Trace { filter: args.filter.clone().unwrap_or_default(), packets: args.count };
    if client.ask(&request)? != Reply::Tracing {
        return Err(client.confused());
    }
    let failed = |err: io::Error| CliError::failed(format!("trace: {err}"));
    let (traces, connection) = client.into_stream().map_err(failed)?;
    end_on_signal(connection.try_clone().map_err(failed)?).map_err(failed)?;
    end_with_reader(io::stdout(), connection).map_err(failed)?;
    match copy(traces, io::stdout().lock(), args.json) {
        Err(err) if err.kind() == ErrorKind::BrokenPipe => Ok(()),
        copied => copied.map_err(failed),
    }
}

fn copy(from: impl BufRead, mut to: impl Write, json: bool) -> io::Result<()> {
    for line in from.lines() {
        let trace = PacketTrace::from_line(&line?).map_err(|err| io::Error::new(ErrorKind::InvalidData, err))?;
        let text = if json { trace.to_line() } else { trace.to_string() };
        to.write_all(text.as_bytes())?;
        to.flush()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trace_is_copied_as_json_or_as_text() {
        let sent = PacketTrace { packet: 1, steps: vec![] }.to_line();
        for (json, want) in [(true, sent.as_str()), (false, "packet 1\n")] {
            let mut got = Vec::new();
            copy(sent.as_bytes(), &mut got, json).unwrap();
            assert_eq!(String::from_utf8(got).unwrap(), want);
        }
        assert!(copy("garbage\n".as_bytes(), io::sink(), false).is_err());
    }
}
