//! Fields of a line of text.

use std::fmt;

use tracing::field::Field;
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::{Writer, debug_fn};

/// Fields for entries of the journal, which the message has in words.
const IN_WORDS: [&str; 3] = ["link", "message_id", "reason"];

/// Format of the message, and of fields behind it, but those that the message has in words.
pub(crate) fn fields() -> impl for<'writer> FormatFields<'writer> + Send + Sync + 'static {
    debug_fn(write)
}

fn write(writer: &mut Writer<'_>, field: &Field, value: &dyn fmt::Debug) -> fmt::Result {
    match field.name() {
        "message" => write!(writer, "{value:?}"),
        name if IN_WORDS.contains(&name) => Ok(()),
        name => write!(writer, " {name}={value:?}"),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn line_has_fields_that_its_message_lacks() {
        let lines = Lines::default();
        let writer = lines.clone();
        let log = tracing_subscriber::fmt().with_writer(move || writer.clone()).without_time().with_ansi(false);
        tracing::subscriber::with_default(log.fmt_fields(fields()).with_target(false).finish(), || {
            tracing::error!(message_id = crate::id::LINK_DOWN, link = "wan", reason = %"gone", "wan: gone");
            tracing::warn!(uid = 7, "too many clients");
        });
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        assert_eq!(text, "ERROR wan: gone\n WARN too many clients uid=7\n");
    }
}
