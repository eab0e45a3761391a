//! `fatpath top` in a terminal, and without one.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use libtest_mimic::Trial;
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Termios, Winsize, tcgetattr, tcsetwinsize};
use system::{Gateway, Need, Netns, Outcome, Process, Scratch, fatpath, run, trial, wait_until};

const PATIENCE: Duration = Duration::from_secs(20);

const LAN: &str = "[[link]]\nname = \"lan\"\nkind = \"tun\"\naddresses = [\"10.1.0.1/24\"]\n";

/// Restores a terminal.
const CLOSE: &str = "\x1b[?25h\x1b[?1049l";

pub(crate) fn trials() -> Vec<Trial> {
    const NEEDS: &[Need] = &[Need::Namespaces, Need::Tun, Need::PING];
    vec![
        trial("top/keys_and_sizes_change_what_a_terminal_shows", NEEDS, keys),
        trial("top/terminal_is_restored_when_it_is_killed", NEEDS, killed),
        trial("top/gateway_that_is_gone_is_shown_with_its_age", NEEDS, gone),
        trial("top/tables_are_printed_without_a_terminal", NEEDS, once),
    ]
}

/// A gateway with packets that it answers, and packets that it drops.
struct Site {
    scratch: Scratch,
    host: Netns,
    gateway: Gateway,
    _pings: [Process; 2],
}

impl Site {
    fn start() -> Outcome<Self> {
        let (scratch, host) = (Scratch::new()?, Netns::new("x")?);
        let gateway = Gateway::start(&host, &scratch, "x", LAN)?;
        host.sh("ip addr add 10.1.0.2/24 dev lan; ip link set lan up; ip route add 10.9.0.0/24 dev lan")?;
        let ping = |to: &str| Process::spawn(host.command("ping").args(["-i", "0.05", "-q", to]), &scratch);
        let pings = [ping("10.1.0.1")?, ping("10.9.0.1")?];
        Ok(Self { scratch, host, gateway, _pings: pings })
    }

    fn top(&self) -> Command {
        let mut command = self.host.command(fatpath());
        command.args(["top", "-i", "x"]).env("FATPATH_RUNDIR", self.scratch.path()).env_remove("NO_COLOR");
        command
    }
}

/// A program in a terminal, killed when dropped.
pub(crate) struct InTerminal {
    pub(crate) child: Child,
    controller: File,
    terminal: OwnedFd,
    before: Termios,
    output: Arc<Mutex<Vec<u8>>>,
}

impl InTerminal {
    pub(crate) fn start(mut command: Command, size: [u16; 2]) -> Outcome<Self> {
        let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        grantpt(&controller)?;
        unlockpt(&controller)?;
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let terminal = openat(CWD, ptsname(&controller, Vec::new())?, flags, Mode::empty())?;
        let before = tcgetattr(&terminal)?;
        let controller = File::from(controller);
        let output = Arc::new(Mutex::new(Vec::new()));
        let (mut reader, shared) = (controller.try_clone()?, Arc::clone(&output));
        thread::spawn(move || {
            let mut bytes = [0; 1 << 16];
            loop {
                match reader.read(&mut bytes) {
                    Ok(len @ 1..) => {
                        shared.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(&bytes[..len]);
                    }
                    Err(err) if err.kind() == ErrorKind::Interrupted => {}
                    // The terminal is open nowhere else.
                    _ => return,
                }
            }
        });
        tcsetwinsize(&controller, winsize(size))?;
        let stream = || terminal.try_clone();
        let child = command.stdin(stream()?).stdout(stream()?).stderr(stream()?).spawn()?;
        Ok(Self { child, controller, terminal, before, output })
    }

    pub(crate) fn output(&self) -> String {
        String::from_utf8_lossy(&self.output.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }

    /// Lines of the last whole picture.
    fn lines(&self) -> Vec<String> {
        let output = self.output();
        let pictures = output.split("\x1b[H").skip(1);
        let last = pictures.filter_map(|picture| picture.split_once("\x1b[J")).last();
        last.map_or_else(Vec::new, |(picture, _)| picture.split("\r\n").map(without_styles).collect())
    }

    fn has_line(&self, parts: &[&str]) -> bool {
        self.lines().iter().any(|line| parts.iter().all(|part| line.contains(part)))
    }

    fn wait_for(&self, parts: &[&str]) -> Outcome {
        wait_until(&format!("a line with {parts:?}"), PATIENCE, || self.has_line(parts))
            .map_err(|err| format!("{}: {:#?}", err.message().unwrap_or_default(), self.lines()).into())
    }

    fn press(&mut self, keys: &str) -> Outcome {
        Ok(self.controller.write_all(keys.as_bytes())?)
    }

    fn resize(&self, size: [u16; 2]) -> Outcome {
        Ok(tcsetwinsize(&self.controller, winsize(size))?)
    }

    /// Whether the program has ended.
    pub(crate) fn has_ended(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(Some(_)))
    }

    /// Checks that the program has ended, with success if `is_success`, and has restored the terminal.
    fn check_end(mut self, is_success: bool) -> Outcome {
        wait_until("it ends", PATIENCE, || self.has_ended())?;
        assert_eq!(self.child.wait()?.success(), is_success, "{}", self.output());
        let modes = |termios: &Termios| (termios.input_modes, termios.output_modes, termios.local_modes);
        assert_eq!(modes(&tcgetattr(&self.terminal)?), modes(&self.before));
        wait_until("its screen is closed", PATIENCE, || self.output().ends_with(CLOSE))
    }
}

impl Drop for InTerminal {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn winsize([columns, rows]: [u16; 2]) -> Winsize {
    Winsize { ws_col: columns, ws_row: rows, ws_xpixel: 0, ws_ypixel: 0 }
}

/// A line without sequences that choose styles or erase.
fn without_styles(line: &str) -> String {
    let mut parts = line.split("\x1b[");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + part.split_once(['m', 'K']).map_or("", |(_, rest)| rest))
}

fn keys() -> Outcome {
    let site = Site::start()?;
    let mut top = InTerminal::start(site.top(), [80, 24])?;
    top.wait_for(&["x  fatpath ", "up ", "memory"])?;
    // Packets of both pings come in: 40 a second, or as many as a busy machine sends.
    let rate_of_lan = |top: &InTerminal| -> Option<f64> {
        let lines = top.lines();
        let line = lines.iter().find(|line| line.starts_with("lan "))?;
        line.split_whitespace().nth(4)?.parse().ok()
    };
    wait_until("packets come in", PATIENCE, || rate_of_lan(&top).is_some_and(|rate| (5.0..60.0).contains(&rate)))
        .map_err(|err| format!("{}: {:#?}", err.message().unwrap_or_default(), top.lines()))?;
    let lines = top.lines();
    assert_eq!((lines.len(), lines[0].chars().count()), (24, 80), "{lines:#?}");
    assert!(lines[23].starts_with("L LINKS  t tunnels"), "{lines:#?}");
    top.press("d")?;
    top.wait_for(&["NoRoute", "lan"])?;
    // Its cause and remedy.
    top.wait_for(&["    ", "route"])?;
    top.press("w")?;
    top.wait_for(&["worker", "busy", "bursts/s"])?;
    top.press("t")?;
    top.wait_for(&["no SAs, and no policy needs any"])?;
    top.press("l/ZZ\r")?;
    top.wait_for(&["no row has this filter"])?;
    top.press("\x1b")?;
    top.wait_for(&["lan "])?;
    top.resize([120, 40])?;
    wait_until("it fills the larger screen", PATIENCE, || {
        let lines = top.lines();
        lines.len() == 40 && lines.iter().all(|line| line.chars().count() == 120)
    })?;
    assert!(top.output().contains("\x1b[0;7m"), "it has styles");
    top.press("q")?;
    top.check_end(true)?;
    let mut plain = site.top();
    plain.env("NO_COLOR", "1");
    let mut top = InTerminal::start(plain, [80, 24])?;
    top.wait_for(&["lan "])?;
    assert!(!top.output().contains("\x1b[0;"), "{}", top.output());
    top.press("\x03")?;
    top.check_end(true)
}

fn killed() -> Outcome {
    let site = Site::start()?;
    for signal in [Signal::TERM, Signal::HUP, Signal::INT] {
        let top = InTerminal::start(site.top(), [80, 24])?;
        top.wait_for(&["lan "])?;
        // The program that `fatpath` has become.
        kill_process(Pid::from_child(&top.child), signal)?;
        top.check_end(true)?;
    }
    Ok(())
}

fn gone() -> Outcome {
    let mut site = Site::start()?;
    let mut top = InTerminal::start(site.top(), [80, 24])?;
    top.wait_for(&["lan ", "up"])?;
    site.gateway.kill()?;
    top.wait_for(&["as of ", "s ago", "x.sock"])?;
    assert!(top.has_line(&["lan ", "up"]), "the last answer stays: {:#?}", top.lines());
    let _next = Gateway::start(&site.host, &site.scratch, "x", LAN)?;
    wait_until("it answers again", PATIENCE, || !top.has_line(&["as of "]))?;
    top.press("q")?;
    top.check_end(true)
}

fn once() -> Outcome {
    let site = Site::start()?;
    for options in [&[][..], &["--once"]] {
        let text = run(site.top().args(options))?;
        let has = |parts: &[&str]| text.lines().any(|line| parts.iter().all(|part| line.contains(part)));
        assert!(has(&["lan ", "up"]) && has(&["NoRoute", "lan"]) && has(&["worker", "busy"]), "{text}");
        assert!(!text.contains('\x1b'), "{text}");
    }
    let mut other = Command::new(fatpath());
    let output = other.args(["top", "-i", "y"]).env("FATPATH_RUNDIR", site.scratch.path()).output()?;
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && error.starts_with("Error: ") && error.lines().count() == 1, "{error}");
    Ok(())
}
