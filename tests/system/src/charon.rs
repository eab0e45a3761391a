//! strongSwan's IKE daemon on a gateway, with the files of `examples/strongswan`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;

use crate::{Need, Netns, Outcome, Process, Scratch, fatpath, run, wait_until};

/// Path of the daemon in Debian.
const PROGRAM: &str = "/usr/lib/ipsec/charon";

/// Longest time that it may take to start.
const PATIENCE: Duration = Duration::from_secs(30);

/// Authentication of the two ends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Auth {
    /// A pre-shared key.
    Psk,
    /// Certificates of one authority.
    Certificates,
}

impl Need {
    /// The daemon.
    pub const CHARON: Self = Self::File { path: PROGRAM, package: "strongswan-charon" };
    /// Charon's plugin with its ciphers.
    pub const CHARON_OPENSSL: Self = Self::File {
        path: "/usr/lib/ipsec/plugins/libstrongswan-openssl.so",
        package: "libstrongswan-standard-plugins",
    };
    /// The program that loads connections into the daemon.
    pub const SWANCTL: Self = Self::Program { name: "swanctl", package: "strongswan-swanctl" };
    /// The program that creates keys and certificates.
    pub const PKI: Self = Self::Program { name: "pki", package: "strongswan-pki" };
}

/// The file `name` of `examples/strongswan`.
///
/// # Errors
/// It cannot be read.
pub fn strongswan_example(name: &str) -> Outcome<String> {
    let path = examples().join(name);
    fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()).into())
}

/// A file of `examples/strongswan` with IPv6 addresses for the outer ones, which IPv4 routes cannot have as next hops.
#[must_use]
pub fn outer_v6(text: &str) -> String {
    let text = text.lines().filter(|line| !line.starts_with("via = ")).map(|line| line.to_owned() + "\n").collect();
    ["1", "2"].into_iter().fold(text, |text: String, number| {
        let (v4, v6) = (format!("192.0.2.{number}"), format!("2001:db8::{number}"));
        text.replace(&format!("{v4}:4500"), &format!("[{v6}]:4500"))
            .replace(&format!("{v4}/32"), &format!("{v6}/128"))
            .replace(&format!("{v4}/24"), &format!("{v6}/64"))
            .replace(&v4, &v6)
    })
}

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/strongswan")
}

/// The files of one end, in a directory of their own: `strongswan.conf`, and those of `swanctl` from `/etc/swanctl`.
#[derive(Clone, Debug)]
pub struct CharonFiles {
    dir: PathBuf,
}

impl CharonFiles {
    /// Files of the end `left` or `right`. The first of two ends with certificates makes them.
    ///
    /// # Errors
    /// An example is not there, or a file cannot be written.
    pub fn new(scratch: &Scratch, end: &str, auth: Auth) -> Outcome<Self> {
        let connections = match auth {
            Auth::Psk => format!("{end}.swanctl.conf"),
            Auth::Certificates => format!("certificates/{end}.swanctl.conf"),
        };
        Self::with(scratch, end, auth, &connections)
    }

    /// Files of an end whose gateway has an interface to itself.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn on_interface(scratch: &Scratch, end: &str) -> Outcome<Self> {
        Self::with(scratch, end, Auth::Psk, &format!("interface/{end}.swanctl.conf"))
    }

    fn with(scratch: &Scratch, end: &str, auth: Auth, connections: &str) -> Outcome<Self> {
        let all = scratch.file("swanctl");
        let files = Self { dir: all.join(end) };
        if auth == Auth::Certificates && !all.join("ca.pem").exists() {
            fs::create_dir_all(&all)?;
            run(Command::new(examples().join("certificates/make")).current_dir(&all))?;
        }
        fs::create_dir_all(&files.dir)?;
        fs::write(files.file("swanctl.conf"), strongswan_example(connections)?)?;
        fs::write(files.file("strongswan.conf"), strongswan_example("strongswan.conf")?)?;
        Ok(files)
    }

    /// The file `name` there.
    #[must_use]
    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Replaces the first `from` in the file `name` by `to`.
    ///
    /// # Errors
    /// The file does not contain `from`.
    pub fn change(&self, name: &str, from: &str, to: &str) -> Outcome {
        let text = fs::read_to_string(self.file(name))?;
        if !text.contains(from) {
            return Err(format!("{name} has no {from:?}:\n{text}").into());
        }
        Ok(fs::write(self.file(name), text.replacen(from, to, 1))?)
    }

    /// Replaces the content of the file `name` by the result of `edit`.
    ///
    /// # Errors
    /// It cannot be read or written.
    pub fn edit(&self, name: &str, edit: impl FnOnce(String) -> String) -> Outcome {
        Ok(fs::write(self.file(name), edit(fs::read_to_string(self.file(name))?))?)
    }

    /// Sets a socket of the daemon in this directory, since several daemons may run on one host.
    ///
    /// # Errors
    /// The file cannot be changed.
    pub fn with_own_socket(&self) -> Outcome {
        self.set(&format!("plugins {{ vici {{ socket = unix://{} }} }}", self.file("vici").display()))
    }

    /// Sets the daemon's timeout of a silent peer to 3 seconds.
    ///
    /// # Errors
    /// The file cannot be changed.
    pub fn giving_up_soon(&self) -> Outcome {
        self.set("retransmit_tries = 1\n  retransmit_timeout = 1")
    }

    fn set(&self, settings: &str) -> Outcome {
        self.change("strongswan.conf", "charon {\n", &format!("charon {{\n  {settings}\n"))
    }

    /// Names and contents of the files.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn contents(&self) -> Outcome<Vec<(String, Vec<u8>)>> {
        let mut contents = Vec::new();
        let mut directories = vec![self.dir.clone()];
        while let Some(directory) = directories.pop() {
            for entry in fs::read_dir(directory)? {
                let path = entry?.path();
                if path.is_dir() {
                    directories.push(path);
                } else {
                    let name = path.strip_prefix(&self.dir)?.display().to_string();
                    contents.push((name, fs::read(&path)?));
                }
            }
        }
        Ok(contents)
    }
}

/// A running daemon that manages the SAs of a gateway, killed when dropped.
#[derive(Debug)]
pub struct Charon {
    process: Process,
    files: CharonFiles,
}

impl Charon {
    /// Starts a daemon for the gateway `instance` in `netns` and loads its connections.
    ///
    /// # Errors
    /// It does not start, or refuses its connections; the message holds its log.
    pub fn start(netns: &Netns, scratch: &Scratch, instance: &str, files: &CharonFiles) -> Outcome<Self> {
        let files = files.clone();
        let vici = files.file("vici");
        // The socket may remain of a killed daemon.
        let _ = fs::remove_file(&vici);
        let mut command = netns.command("unshare");
        // Two daemons would share files in /run, so each has a separate /run.
        command.args(["--mount", "sh", "-c", "mount -t tmpfs tmpfs /run && exec \"$@\"", "sh"]);
        command.arg(fatpath()).args(["exec", "--instance", instance, "--", PROGRAM]);
        command.env("FATPATH_RUNDIR", scratch.path()).env("STRONGSWAN_CONF", files.file("strongswan.conf"));
        let mut charon = Self { process: Process::spawn(&mut command, scratch)?, files };
        let answers = || vici.exists() || !charon.process.is_running();
        let started = wait_until("charon answers", PATIENCE, answers);
        started
            .and_then(|()| {
                charon.swanctl(&["--load-all", "--file", &charon.files.file("swanctl.conf").display().to_string()])
            })
            .map_err(|failed| format!("{}: {}", failed.message().unwrap_or_default(), charon.log()))?;
        Ok(charon)
    }

    /// Runs `swanctl` with `words`, and returns its output.
    ///
    /// # Errors
    /// The program fails.
    pub fn swanctl(&self, words: &[&str]) -> Outcome<String> {
        let mut command = Command::new("swanctl");
        command.args(words).args(["--uri", &format!("unix://{}", self.files.file("vici").display())]);
        command.env("STRONGSWAN_CONF", self.files.file("strongswan.conf")).env("SWANCTL_DIR", &self.files.dir);
        run(&mut command)
    }

    /// Ends the daemon with `signal`, such as SIGTERM, at which it removes its SAs and policies.
    ///
    /// # Errors
    /// It does not end.
    pub fn end(&mut self, signal: Signal) -> Outcome {
        self.process.signal(signal)?;
        self.process.wait(PATIENCE).map(drop)
    }

    /// Log of the daemon.
    #[must_use]
    pub fn log(&self) -> String {
        self.process.output()
    }
}
