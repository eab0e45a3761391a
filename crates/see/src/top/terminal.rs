//! The terminal: its mode, its size, keys, and lines that are drawn. Drop restores it.

use std::io::{self, Write};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::stdio::{stdin, stdout};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

use super::screen::{Key, Line, Style};

/// Size of a terminal that says none.
const SIZE: [usize; 2] = [80, 24];

/// Limits of a size, beyond which a terminal shows no text.
const MAX_SIZE: [usize; 2] = [1000, 500];

/// Second screen without a cursor, and back.
const OPEN: &[u8] = b"\x1b[?1049h\x1b[?25l";
const CLOSE: &[u8] = b"\x1b[0m\x1b[?25h\x1b[?1049l";

/// The terminal in raw mode.
#[derive(Debug)]
pub(crate) struct Terminal {
    before: Termios,
    /// Whether lines have styles (no-color.org).
    has_styles: bool,
    /// Bytes that were drawn last.
    drawn: Vec<u8>,
}

impl Terminal {
    /// Opens the terminal of standard input and output.
    pub(crate) fn open() -> io::Result<Self> {
        let before = tcgetattr(stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(stdin(), OptionalActions::Now, &raw)?;
        let has_styles = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        // From here on it is restored.
        let terminal = Self { before, has_styles, drawn: Vec::new() };
        write(OPEN)?;
        Ok(terminal)
    }

    /// Columns and rows.
    pub(crate) fn size(&self) -> [usize; 2] {
        let size = tcgetwinsize(stdout()).map(|size| [usize::from(size.ws_col), usize::from(size.ws_row)]);
        let [columns, rows] = size.ok().filter(|size| !size.contains(&0)).unwrap_or(SIZE);
        [columns.min(MAX_SIZE[0]), rows.min(MAX_SIZE[1])]
    }

    /// Draws lines that fill the screen, unless they are there.
    pub(crate) fn draw(&mut self, lines: &[Line]) -> io::Result<()> {
        let mut bytes = b"\x1b[H".to_vec();
        for (at, line) in lines.iter().enumerate() {
            if at > 0 {
                bytes.extend(b"\r\n");
            }
            let style = match line.style {
                _ if !self.has_styles => "0",
                Style::Plain => "0",
                Style::Head => "0;7",
                Style::Bad => "0;31",
                Style::Dim => "0;2",
            };
            bytes.extend(format!("\x1b[{style}m{}\x1b[0m\x1b[K", line.text).into_bytes());
        }
        bytes.extend(b"\x1b[J");
        if bytes != self.drawn {
            write(&bytes)?;
            self.drawn = bytes;
        }
        Ok(())
    }

    /// Keys within a time; `None` if the terminal is gone.
    pub(crate) fn keys(&self, limit: Duration) -> io::Result<Option<Vec<Key>>> {
        let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&stdin(), PollFlags::IN)], Some(&limit)) {
            Ok(0) | Err(Errno::INTR) => return Ok(Some(Vec::new())),
            Ok(_) => {}
            Err(err) => return Err(err.into()),
        }
        let mut bytes = [0; 256];
        match rustix::io::read(stdin(), &mut bytes) {
            Ok(0) | Err(Errno::IO) => Ok(None),
            Ok(len) => Ok(Some(keys_of(&bytes[..len]))),
            Err(Errno::INTR | Errno::AGAIN) => Ok(Some(Vec::new())),
            Err(err) => Err(err.into()),
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing.
        let _ = write(CLOSE);
        let _ = tcsetattr(stdin(), OptionalActions::Now, &self.before);
    }
}

fn write(bytes: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(bytes)?;
    out.flush()
}

/// Keys of the bytes that a terminal sends at once. Sequences of other keys are none.
fn keys_of(bytes: &[u8]) -> Vec<Key> {
    let mut keys = Vec::new();
    let mut rest = bytes;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        match byte {
            0x1b => match after {
                [b'[' | b'O', sequence @ ..] => {
                    let len = sequence
                        .iter()
                        .position(|byte| (0x40..=0x7e).contains(byte))
                        .map_or(sequence.len(), |at| at + 1);
                    let (sequence, after) = sequence.split_at(len);
                    rest = after;
                    keys.extend(match sequence {
                        b"A" => Some(Key::Up),
                        b"B" => Some(Key::Down),
                        b"5~" => Some(Key::PageUp),
                        b"6~" => Some(Key::PageDown),
                        _ => None,
                    });
                }
                _ => keys.push(Key::Escape),
            },
            b'\r' | b'\n' => keys.push(Key::Enter),
            0x7f | 0x08 => keys.push(Key::Backspace),
            0x03 => keys.push(Key::Interrupt),
            b' '..=b'~' => keys.push(Key::Char(byte.into())),
            _ => {}
        }
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_a_terminal_are_keys() {
        let want = [Key::Char('q'), Key::Up, Key::Down, Key::PageDown, Key::Escape, Key::Char('x'), Key::Interrupt];
        assert_eq!(keys_of(b"q\x1b[A\x1bOB\x1b[6~\x1bx\x03"), want);
        assert_eq!(keys_of(b"\r\x7f\x1b[1;5C\xff\x00/"), [Key::Enter, Key::Backspace, Key::Char('/')]);
        assert_eq!(keys_of(b"\x1b[12"), []);
        assert_eq!(keys_of(b"\x1b"), [Key::Escape]);
    }
}
