//! `fatpath monitor`: what happens to the SAs and policies of a running gateway, as it happens.

use std::io::{self, BufRead, ErrorKind, Write};

use control::event::Event;
use control::{Reply, Request};

use crate::capture::{end_on_signal, end_with_reader};
use crate::cli::MonitorArgs;
use crate::client::Client;
use crate::error::CliError;

/// Prints a line for each event until a signal, or until the gateway or the reader of the output goes.
///
/// # Errors
/// If no gateway of that name answers.
pub(crate) fn main(args: &MonitorArgs) -> Result<(), CliError> {
    let mut client = Client::connect(&args.instance)?;
    if client.ask(&Request::Monitor)? != Reply::Monitoring {
        return Err(client.confused());
    }
    let failed = |err: io::Error| CliError::failed(format!("monitor: {err}"));
    let (events, connection) = client.into_stream().map_err(failed)?;
    end_on_signal(connection.try_clone().map_err(failed)?).map_err(failed)?;
    end_with_reader(io::stdout(), connection).map_err(failed)?;
    match copy(events, io::stdout().lock(), args.json) {
        Err(err) if err.kind() == ErrorKind::BrokenPipe => Ok(()),
        copied => copied.map_err(failed),
    }
}

fn copy(from: impl BufRead, mut to: impl Write, json: bool) -> io::Result<()> {
    for line in from.lines() {
        let event = Event::from_line(&line?).map_err(|err| io::Error::new(ErrorKind::InvalidData, err))?;
        let text = if json { event.to_line() } else { format!("{event}\n") };
        to.write_all(text.as_bytes())?;
        to.flush()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_event_is_a_line_of_text_or_of_json() {
        let [old, new] = ["192.0.2.1:1".parse().unwrap(), "192.0.2.1:2".parse().unwrap()];
        let event = Event::Mapping { dst: "192.0.2.2".parse().unwrap(), spi: 1, reqid: 0, old, new };
        let sent = [event.to_line(), event.to_line()].concat();
        for (json, want) in [(false, format!("{event}\n{event}\n")), (true, sent.clone())] {
            let mut got = Vec::new();
            copy(sent.as_bytes(), &mut got, json).unwrap();
            assert_eq!(String::from_utf8(got).unwrap(), want);
        }
        assert!(copy("garbage\n".as_bytes(), io::sink(), false).is_err());
    }
}
