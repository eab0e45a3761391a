//! Streams of lines from a running gateway, printed as text or as JSON: `fatpath monitor` and `fatpath trace`.

use std::fmt::Display;
use std::io::{self, BufRead, ErrorKind, Write};

use client::{CliError, Client, StreamEnd};
use ctl::{Reply, Request};

/// Request for a stream.
pub(crate) struct Stream<'a> {
    /// Subcommand, for error messages.
    pub(crate) command: &'static str,
    pub(crate) instance: &'a str,
    pub(crate) request: Request,
    /// Expected reply before the first line.
    pub(crate) begins_with: Reply,
}

impl Stream<'_> {
    /// Prints each line of the stream, formatted by `to_text`, until a signal, or until the gateway or the reader of
    /// the output closes its end.
    ///
    /// # Errors
    /// The gateway does not reply or refuses the request, or a line cannot be parsed.
    pub(crate) fn print<E: Display>(self, to_text: impl Fn(&str) -> Result<String, E>) -> Result<(), CliError> {
        let mut client = Client::look(self.instance)?;
        if client.ask(&self.request)? != self.begins_with {
            return Err(client.confused());
        }
        let failed = |err: io::Error| CliError::failed(format!("{}: {err}", self.command));
        let (lines, connection) = client.into_stream().map_err(failed)?;
        let end = StreamEnd::new(connection);
        end.at_signals().and_then(|()| end.with_reader(io::stdout())).map_err(failed)?;
        match copy(lines, io::stdout().lock(), to_text) {
            Err(err) if err.kind() == ErrorKind::BrokenPipe => Ok(()),
            copied => copied.map_err(failed),
        }
    }
}

fn copy<E: Display>(
    from: impl BufRead,
    mut to: impl Write,
    to_text: impl Fn(&str) -> Result<String, E>,
) -> io::Result<()> {
    for line in from.lines() {
        let text = to_text(&line?).map_err(|err| io::Error::new(ErrorKind::InvalidData, err.to_string()))?;
        to.write_all(text.as_bytes())?;
        to.flush()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stream_is_copied_line_by_line_up_to_an_error() {
        let to_text = |line: &str| line.parse().map(|n: u32| format!("<{}>", n + 1));
        let mut got = Vec::new();
        copy("1\n2\n".as_bytes(), &mut got, to_text).unwrap();
        assert_eq!(got, b"<2><3>");
        let err = copy("7\ngarbage\n9\n".as_bytes(), &mut got, to_text).unwrap_err();
        assert_eq!((err.kind(), &got[6..]), (ErrorKind::InvalidData, &b"<8>"[..]));
    }
}
