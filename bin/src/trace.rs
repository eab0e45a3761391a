//! `fatpath trace`: the stages that chosen packets pass in a running gateway.

use client::CliError;
use ctl::trace::PacketTrace;
use ctl::{Reply, Request};

use crate::cli::TraceArgs;
use crate::stream::Stream;

/// Prints a block for each packet until there were as many as asked for, until a signal, or until the gateway or the reader of
/// the output goes.
///
/// # Errors
/// If no gateway of that name answers, or the filter is wrong.
pub(crate) fn main(args: &TraceArgs) -> Result<(), CliError> {
    let request = Request::Trace { filter: args.filter.clone().unwrap_or_default(), packets: args.count };
    let stream = Stream { command: "trace", instance: &args.instance, request, begins_with: Reply::Tracing };
    stream.print(|line| text(line, args.json))
}

fn text(line: &str, json: bool) -> Result<String, serde_json::Error> {
    let trace = PacketTrace::from_line(line)?;
    Ok(if json { trace.to_line() } else { trace.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trace_is_a_block_of_text_or_a_line_of_json() {
        let sent = PacketTrace { packet: 1, steps: vec![] }.to_line();
        assert_eq!(text(&sent, true).unwrap(), sent);
        assert_eq!(text(&sent, false).unwrap(), "packet 1\n");
        assert!(text("garbage", false).is_err());
    }
}
