//! `fatpath top`: links, tunnels, drops and workers of a gateway with rates, again and again.
//!
//! A thread asks the gateway; this one reads keys and draws. So a gateway that hangs delays no key, and the age of what is shown goes on.

mod screen;
mod tables;
mod terminal;

use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use client::{CliError, TopArgs};

use crate::rates::Picture;
use crate::scrape::Sample;
use screen::Screen;
use tables::Tables;
use terminal::Terminal;

/// Longest time from a key, or a signal, to its effect.
const TICK: Duration = Duration::from_millis(100);

/// Shows a gateway until the user ends it; at once and once, as text, where there is no terminal.
///
/// # Errors
/// The gateway does not answer the first time, or the terminal fails.
pub(crate) fn run(args: &TopArgs) -> Result<(), CliError> {
    let name = client::instance_or_default(args.instance.as_deref())?;
    let interval = args.interval();
    let first = take(&name)?;
    if args.once || !io::stdin().is_terminal() || !io::stdout().is_terminal() {
        thread::sleep(interval);
        let text = tables(Some(&first), &take(&name)?).text();
        return client::print(text.as_bytes());
    }
    let answers = ask(name.clone(), interval)?;
    let ended = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP, signal_hook::consts::SIGINT] {
        let caught = signal_hook::flag::register(signal, Arc::clone(&ended));
        caught.map_err(|err| CliError::system("catch signals", &err))?;
    }
    let mut terminal = Terminal::open().map_err(|err| CliError::system("terminal", &err))?;
    let shown = show(&mut terminal, first, &answers, &ended, name);
    // Before an error is printed.
    drop(terminal);
    shown.map_err(|err| CliError::system("terminal", &err))
}

fn tables(before: Option<&Sample>, now: &Sample) -> Tables {
    Tables::new(&Picture::between(before, now))
}

/// Answer of the gateway, or the reason for which there is none.
type Answer = Result<Sample, String>;

fn take(name: &str) -> Result<Sample, CliError> {
    Sample::take(name, &client::socket_path(name))
}

/// Asks the gateway on a thread of its own.
fn ask(name: String, interval: Duration) -> Result<Receiver<Answer>, CliError> {
    let (sender, answers) = channel();
    let ask = move || {
        loop {
            thread::sleep(interval);
            if sender.send(take(&name).map_err(|err| err.message)).is_err() {
                return;
            }
        }
    };
    let started = thread::Builder::new().name("ask".to_owned()).spawn(ask);
    started.map(|_| answers).map_err(|err| CliError::system("start a thread", &err))
}

fn show(
    terminal: &mut Terminal,
    first: Sample,
    answers: &Receiver<Answer>,
    ended: &AtomicBool,
    name: String,
) -> io::Result<()> {
    let mut screen = Screen::new(name, tables(None, &first));
    let mut last = first;
    while !ended.load(Ordering::Relaxed) {
        for answer in answers.try_iter() {
            match answer {
                Ok(sample) => {
                    screen.update(Instant::now(), tables(Some(&last), &sample));
                    last = sample;
                }
                Err(why) => screen.fail(why),
            }
        }
        let [columns, rows] = terminal.size();
        terminal.draw(&screen.lines(Instant::now(), columns, rows))?;
        let Some(keys) = terminal.keys(TICK)? else { return Ok(()) };
        if keys.into_iter().any(|key| screen.key(key)) {
            return Ok(());
        }
    }
    io::stdout().flush()
}
