//! `fatpath trace`: stages that selected packets pass in a running gateway.

use client::CliError;
use ctl::trace::PacketTrace;
use ctl::{Reply, Request};

use crate::cli::TraceArgs;
use crate::stream::Stream;

/// Prints a block for each packet until the requested number of packets, until a signal, or until the gateway or the
/// reader of the output closes its end.
///
/// # Errors
/// The gateway does not reply, or the filter is invalid.
pub(crate) fn main(args: &TraceArgs, instance: &str) -> Result<(), CliError> {
    let request = Request::Trace { filter: args.filter.clone().unwrap_or_default(), packets: args.count };
    let stream = Stream { command: "trace", instance, request, begins_with: Reply::Tracing };
    stream.print(|line| text(line, args.json, args.verbose))
}

fn text(line: &str, json: bool, verbose: bool) -> Result<String, serde_json::Error> {
    let trace = PacketTrace::from_line(line)?;
    Ok(if json { trace.to_line() } else { trace.to_text(verbose) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trace_is_a_block_of_text_or_a_line_of_json() {
        let sent = PacketTrace { packet: 1, steps: vec![] }.to_line();
        assert_eq!(text(&sent, true, false).unwrap(), sent);
        assert_eq!(text(&sent, false, true).unwrap(), "packet 1\n");
        assert!(text("garbage", false, false).is_err());
    }
}
