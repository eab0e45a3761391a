//! Drives one User Mode Linux kernel: boots it, runs scripts in it, ends it.
//!
//! The kernel's root is the host's file system, read-only, so every program of the host is there. Its interfaces are
//! TAP devices in a namespace of the host. Scripts and their output pass through a directory that both share; the
//! console carries the name of the script to run and the message of its end (see `guest-init`).
//!
//! This kernel is notified of input by signals, and sometimes misses the signal of a frame: the frame then waits for
//! the next input of any device. So the console gets an empty line every [`TICK`].
//!
//! It writes back 2696 bytes of a process's extended registers. Linux accepts no less than the registers of the
//! processor, which with AMX are 11 008 bytes, so it runs with a [library](XSTATE_LIBRARY) that adds
//! the missing bytes.

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use system::{Netns, Outcome, Scratch};

/// Longest time that booting or one script may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Longest time that a frame waits in this kernel after a missed signal. The terminal holds 4096 bytes while a script
/// runs.
const TICK: Duration = Duration::from_millis(50);

/// Library in front of the C library's `ptrace`, with which the kernel runs on processors with AMX too: `xstate.c`.
pub const XSTATE_LIBRARY: &str = env!("XSTATE_LIBRARY");

/// A running kernel, killed when dropped.
#[derive(Debug)]
pub struct Uml {
    child: Child,
    console: Console,
    lines: Receiver<String>,
    share: Scratch,
    scripts: u32,
}

impl Uml {
    /// Boots a kernel with one interface for each of `devices` of `netns`, named `eth0`, `eth1` and so on. A device
    /// that is there is used by a packet socket, with virtio-net headers; otherwise a TAP device of that name is made.
    /// All are set up.
    ///
    /// # Errors
    /// It does not boot; the message holds its console.
    pub fn boot(netns: &Netns, devices: &[&str]) -> Outcome<Self> {
        let share = Scratch::new()?;
        let mut command = netns.command("env");
        command.arg(format!("LD_PRELOAD={XSTATE_LIBRARY}")).arg("linux.uml");
        command.args(["mem=192M", "root=98:0", "rootfstype=hostfs", "rootflags=/", "ro", "loglevel=1", "noreboot"]);
        command.args(["con0=fd:0,fd:1", "con=null", "ssl=null", "umid=peer"]);
        command.arg(format!("uml_dir={}", share.path().display()));
        let mut name = String::new();
        for (index, device) in devices.iter().enumerate() {
            let transport = if netns.sh(&format!("ip link set {device} up 2>&1")).is_ok() {
                "raw"
            } else {
                netns.sh(&format!("ip tuntap add {device} mode tap vnet_hdr; ip link set {device} up"))?;
                "tap"
            };
            // vec=0: one frame per system call. A batched queue that the host stops reading panics this kernel.
            command.arg(format!("vec{index}:transport={transport},ifname={device},gro=1,vec=0"));
            name += &format!("ip link set vec{index} name eth{index} up\n");
        }
        let init = concat!(env!("CARGO_MANIFEST_DIR"), "/guest-init");
        command.args(["init=/bin/sh", "--", init]).arg(share.path());
        // A group of its own: the guest's processes are processes of the host, and end with it.
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(|error| format!("linux.uml: {error}"))?;
        let (Some(console), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("linux.uml has no console".into());
        };
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
                let line = String::from_utf8_lossy(&line).trim_end().to_owned();
                if !line.is_empty() && sender.send(line).is_err() {
                    break;
                }
            }
        });
        let console = Console(Arc::new(Mutex::new(console)));
        let ticking = console.clone();
        thread::spawn(move || {
            while ticking.enter("").is_ok() {
                thread::sleep(TICK);
            }
        });
        let mut uml = Self { child, console, lines, share, scripts: 0 };
        uml.await_done("boot")?;
        uml.sh(&name)?;
        Ok(uml)
    }

    /// The number of its process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Runs a shell script, up to the first command that fails, in a directory that [`Self::put`] can write to. Returns
    /// its output.
    ///
    /// # Errors
    /// It fails or does not end, or the kernel does; the message holds the output.
    pub fn sh(&mut self, script: &str) -> Outcome<String> {
        self.start(script)?.wait()
    }

    /// Starts a shell script; `Script::wait` waits for it. One runs at a time.
    ///
    /// # Errors
    /// The kernel has ended.
    pub fn start<'a>(&'a mut self, script: &'a str) -> Outcome<Script<'a>> {
        let name = format!("script-{}", self.scripts);
        self.scripts += 1;
        self.put(&name, script.as_bytes())?;
        self.console.enter(&name)?;
        Ok(Script { uml: self, name, text: script })
    }

    /// Writes the file `name`, which may have directories in front, in the directory where scripts run.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn put(&self, name: &str, content: &[u8]) -> Outcome {
        let path = self.share.file(name);
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory)?;
        }
        Ok(fs::write(path, content)?)
    }

    /// Waits until the console says that `name` is done and returns its status.
    fn await_done(&mut self, name: &str) -> Outcome<i32> {
        let mut console = String::new();
        let sign = format!("done {name} ");
        loop {
            match self.lines.recv_timeout(PATIENCE) {
                Ok(line) => {
                    if let Some(status) = line.strip_prefix(&sign) {
                        return Ok(status.parse()?);
                    }
                    console += &line;
                    console.push('\n');
                }
                Err(error) => return Err(format!("the Linux peer, {name}: {error}; its console:\n{console}").into()),
            }
        }
    }
}

/// Input of a kernel's console.
#[derive(Clone, Debug)]
struct Console(Arc<Mutex<ChildStdin>>);

impl Console {
    fn enter(&self, line: &str) -> io::Result<()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write_all(format!("{line}\n").as_bytes())
    }
}

/// A script that runs in a kernel.
#[derive(Debug)]
pub struct Script<'a> {
    uml: &'a mut Uml,
    name: String,
    text: &'a str,
}

impl Script<'_> {
    /// Waits for the end of the script and returns its output.
    ///
    /// # Errors
    /// As [`Uml::sh`].
    pub fn wait(self) -> Outcome<String> {
        let status = self.uml.await_done(&self.name)?;
        let output = fs::read(self.uml.share.file(&format!("{}.out", self.name)))?;
        let output = String::from_utf8_lossy(&output).into_owned();
        if status == 0 {
            Ok(output)
        } else {
            Err(format!("status {status} in the Linux peer of:\n{}\nwhich printed:\n{output}", self.text).into())
        }
    }
}

impl Drop for Uml {
    fn drop(&mut self) {
        // An error has no remedy here: the kernel does not power off, or has ended already.
        let _ = self.console.enter("poweroff");
        let ended = || matches!(self.child.try_wait(), Ok(Some(_)));
        if system::wait_until("the kernel powers off", Duration::from_secs(2), ended).is_err() {
            let _ = system::kill_group(&self.child);
            let _ = self.child.wait();
        }
    }
}
