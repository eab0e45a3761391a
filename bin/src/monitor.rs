//! `fatpath monitor`: events of SAs, policies and links of a running gateway, or dropped packets, as they happen.

use client::CliError;
use ctl::event::Event;
use ctl::{Reply, Request};

use crate::cli::MonitorArgs;
use crate::stream::Stream;

/// Prints a line for each event until a signal, or until the gateway or the reader of the output closes its end.
///
/// # Errors
/// The gateway does not reply.
pub(crate) fn main(args: &MonitorArgs, instance: &str) -> Result<(), CliError> {
    let request = if args.drops { Request::MonitorDrops } else { Request::Monitor };
    let stream = Stream { command: "monitor", instance, request, begins_with: Reply::Monitoring };
    stream.print(|line| text(line, args.json))
}

fn text(line: &str, json: bool) -> Result<String, String> {
    let event = Event::from_line(line)?;
    Ok(if json { event.to_line() } else { format!("{event}\n") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_is_a_line_of_text_or_of_json() {
        let [old, new] = ["192.0.2.1:1".parse().unwrap(), "192.0.2.1:2".parse().unwrap()];
        let event = Event::Mapping { dst: "192.0.2.2".parse().unwrap(), spi: 1, reqid: 0, old, new };
        let sent = event.to_line();
        assert_eq!(text(&sent, false).unwrap(), format!("{event}\n"));
        assert_eq!(text(&sent, true).unwrap(), sent);
        assert!(text("garbage", false).is_err());
    }
}
