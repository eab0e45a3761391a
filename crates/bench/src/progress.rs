//! Progress of a measurement, on standard error: a bar that changes on a terminal, plain lines elsewhere, nothing beside JSON.

use std::io::{self, IsTerminal, Write};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Form of the bar, and number of redraws a second at most.
const STYLE: &str = "{bar:24} {pos}/{len} {elapsed} {wide_msg}";
const REDRAWS: u8 = 20;

/// Printer of progress.
#[derive(Debug)]
pub(crate) enum Progress {
    /// Nothing.
    Silent,
    /// A line for each step.
    Lines(Steps),
    /// One line of the terminal. It is drawn by calls, and not by a thread, which would disturb the measurement.
    Bar(ProgressBar),
}

/// Steps in all.
#[derive(Debug)]
pub(crate) struct Steps(u64);

impl Progress {
    /// Progress of a number of steps on standard error, terminal or not. `is_json`: the result is for a program.
    pub(crate) fn on_stderr(steps: u64, is_json: bool) -> Self {
        if is_json {
            Self::Silent
        } else if io::stderr().is_terminal() {
            let bar = ProgressBar::with_draw_target(Some(steps), ProgressDrawTarget::stderr_with_hz(REDRAWS));
            Self::Bar(match ProgressStyle::with_template(STYLE) {
                Ok(style) => bar.with_style(style),
                Err(_) => bar,
            })
        } else {
            Self::Lines(Steps(steps))
        }
    }

    /// Prints a line that stays. A closed standard error is no reason to fail.
    pub(crate) fn announce(&self, text: &str) {
        match self {
            Self::Silent => {}
            Self::Lines(_) => drop(writeln!(io::stderr(), "{text}")),
            Self::Bar(bar) => bar.suspend(|| drop(writeln!(io::stderr(), "{text}"))),
        }
    }

    /// Prints the step that begins, behind `done` steps.
    pub(crate) fn say(&self, done: u64, text: &str) {
        match self {
            Self::Silent => {}
            Self::Lines(Steps(all)) => drop(writeln!(io::stderr(), "{}/{all} {text}", done + 1)),
            Self::Bar(bar) => {
                bar.set_position(done);
                bar.set_message(text.to_owned());
                bar.tick();
            }
        }
    }

    /// Draws the number of steps that are done, within a step that was printed.
    pub(crate) fn advance(&self, done: u64) {
        if let Self::Bar(bar) = self {
            bar.set_position(done);
            bar.tick();
        }
    }
}

impl Drop for Progress {
    /// Clears the terminal's line for later output.
    fn drop(&mut self) {
        if let Self::Bar(bar) = self {
            bar.finish_and_clear();
        }
    }
}
