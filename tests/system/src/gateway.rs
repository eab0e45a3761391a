//! The program under test.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::OnceLock;
use std::time::Duration;

use rustix::process::{Signal, geteuid};
use serde_json::Value;

use crate::{Netns, Outcome, Process, Scratch, run};

/// Longest time that a gateway may take to start, to reload and to end.
const PATIENCE: Duration = Duration::from_secs(20);

/// The path of the `fatpath` program, with `fatpath-bench` in the same directory: `FATPATH_BIN`, or a program that is
/// built now in this test's profile.
///
/// # Panics
/// It cannot be built.
#[must_use]
pub fn fatpath() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| env::var_os("FATPATH_BIN").map_or_else(build, PathBuf::from))
}

/// Builds the programs where this test was built, and returns the path of `fatpath`.
fn build() -> PathBuf {
    let this = env::current_exe().expect("the running test has a path");
    let profile_dir = this.ancestors().nth(2).expect("a test lies in target/debug/deps");
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(env!("CARGO_MANIFEST_DIR")).args(["build", "--package", "fatpath"]);
    cargo.args([
        "--package",
        "fatpath-bench",
        "--package",
        "fatpath-preload",
        "--package",
        "fatpath-see",
        "--package",
        "fatpath-fleet",
        "--target-dir",
    ]);
    cargo.arg(profile_dir.parent().expect("a profile lies in the target directory"));
    if !cfg!(debug_assertions) {
        cargo.arg("--release");
    }
    if let Err(failed) = run(&mut cargo) {
        panic!("{}", failed.message().unwrap_or_default());
    }
    profile_dir.join("fatpath")
}

/// A running `fatpath run`, killed when dropped.
#[derive(Debug)]
pub struct Gateway {
    process: Process,
    instance: String,
    config: PathBuf,
    rundir: PathBuf,
}

/// Number of workers of each gateway whose file does not say it.
const WORKERS: &str = "FATPATH_TEST_WORKERS";

/// User that each gateway of root changes to, unless its arguments say another one. Without the variable it changes to none, also on a
/// host that has the user of gateways.
const USER: &str = "FATPATH_TEST_USER";

/// Parts of arguments of gateways that change to no user, or to another one.
const OF_NO_USER: [&str; 3] = ["--user", "--no-sandbox", "--reuid"];

/// Words of files that have a number of workers, or what several cannot have.
const OF_ONE: [&str; 3] = ["[worker]", "[crypto]", "esp-offload"];

/// Beginning of a comment in a file with the kinds of links of `--allow-links`, or `none`. Without the comment a program or a
/// reload may add all kinds.
const ALLOWS_LINKS: &str = "# allow-links ";

/// Kinds of links that take capabilities.
const ALL_LINKS: &str = "tun,tap,packet,exclusive,xdp,udp";

/// Whether gateways have several workers, unless their files say another number.
#[must_use]
pub fn have_several_workers() -> bool {
    std::env::var(WORKERS).is_ok_and(|count| count != "1")
}

/// A file with the number of workers that the environment has, unless it has what several cannot have.
#[must_use]
pub fn with_workers(toml: &str) -> String {
    match std::env::var(WORKERS) {
        Ok(count) if !OF_ONE.iter().any(|word| toml.contains(word)) => format!("{toml}\n[worker]\ncount = {count}\n"),
        _ => toml.to_owned(),
    }
}

/// Sets the user of the gateway that a command starts.
pub fn change_user(command: &mut Command, user: &str) {
    command.env(USER, user);
}

/// Adds the user that the environment has, of the command or of this process, to the arguments of a gateway, or none. A gateway whose
/// capabilities are few ones (`setpriv --bounding-set=-all,…`) changes to none.
pub fn add_user(command: &mut Command) {
    let has_own = command.get_args().any(|arg| OF_NO_USER.iter().any(|part| arg.to_string_lossy().contains(part)));
    if !has_own && geteuid().is_root() {
        let of_command = command.get_envs().find_map(|(name, user)| user.filter(|_| name == USER).map(OsString::from));
        let has_few = command.get_args().map(|arg| arg.to_string_lossy()).any(|arg| {
            let bounds = arg.trim_start_matches("--bounding-set=");
            bounds.starts_with("-all") && !bounds.contains("setuid")
        });
        let user = of_command.or_else(|| env::var_os(USER)).filter(|_| !has_few);
        command.arg("--user").arg(user.unwrap_or_else(|| "root".into()));
    }
}

impl Gateway {
    /// Starts a gateway in `netns` with the configuration `toml` and waits until it answers. `instance` is its name.
    ///
    /// # Errors
    /// It ends at once or does not answer; the message holds its output.
    pub fn start(netns: &Netns, scratch: &Scratch, instance: &str, toml: &str) -> Outcome<Self> {
        Self::start_under(netns.command(fatpath()), scratch, instance, toml)
    }

    /// Same as [`start`](Self::start), by a `command` that takes the program's arguments. Unless it has a place for the
    /// gateway's state, the gateway keeps none. A comment of the file may have the kinds of links that it allows.
    ///
    /// # Errors
    /// Those of [`start`](Self::start).
    pub fn start_under(command: Command, scratch: &Scratch, instance: &str, toml: &str) -> Outcome<Self> {
        let mut gateway = Self::spawn(command, scratch, instance, toml, &[])?;
        gateway.wait_until("the gateway answers `fatpath show`", |gateway| {
            !gateway.process.is_running() || gateway.show("links").is_ok()
        })?;
        if gateway.process.is_running() {
            Ok(gateway)
        } else {
            Err(format!("fatpath ended at once:\n{}\nof:\n{toml}", gateway.log()).into())
        }
    }

    /// Replaces this gateway by one with the configuration `toml` (`fatpath run --replace`), by a `command` as for
    /// [`start_under`](Self::start_under), within `limit`. Returns the gateway that was replaced, which has ended.
    ///
    /// # Errors
    /// The next gateway does not take over: the message has its log, and this gateway is as before.
    pub fn replace(&mut self, command: Command, scratch: &Scratch, toml: &str, limit: Duration) -> Outcome<Self> {
        let mut next = Self::spawn(command, scratch, &self.instance, toml, &["--replace"])?;
        crate::wait_until("the next gateway takes over", limit, || {
            !next.process.is_running() || next.log().contains("took over from process")
        })
        .map_err(|failed| format!("{}: {}", failed.message().unwrap_or_default(), next.log()))?;
        if !next.process.is_running() {
            return Err(next.log().into());
        }
        let mut before = std::mem::replace(self, next);
        let status = before.process.wait(limit)?;
        if status.success() { Ok(before) } else { Err(format!("{status}: {}", before.log()).into()) }
    }

    /// Starts the program, with further options, and does not wait for it.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn spawn(
        mut command: Command,
        scratch: &Scratch,
        instance: &str,
        toml: &str,
        options: &[&str],
    ) -> Outcome<Self> {
        let config = scratch.config(&format!("{instance}.toml"))?;
        fs::write(&config, with_workers(toml))?;
        let rundir = scratch.path().to_owned();
        let has_state = command.get_args().any(|arg| arg.as_encoded_bytes().windows(7).any(|part| part == b"--state"));
        command.args(["run", "--instance", instance, "-c"]).arg(&config).args(options).env("FATPATH_RUNDIR", &rundir);
        if !has_state {
            command.args(["--state", "none"]);
        }
        match toml.lines().find_map(|line| line.strip_prefix(ALLOWS_LINKS)) {
            Some("none") => {}
            kinds => drop(command.args(["--allow-links", kinds.unwrap_or(ALL_LINKS)])),
        }
        add_user(&mut command);
        let process = Process::spawn(&mut command, scratch)?;
        Ok(Self { process, instance: instance.to_owned(), config, rundir })
    }

    /// Output of `fatpath show WHAT` for the gateway; `what` may hold options.
    ///
    /// # Errors
    /// It does not answer.
    pub fn show(&self, what: &str) -> Outcome<String> {
        let mut command = Command::new(fatpath());
        command.arg("show").args(what.split_whitespace()).args(["--instance", &self.instance]);
        run(command.env("FATPATH_RUNDIR", &self.rundir))
    }

    /// A link as `fatpath show --json links` has it.
    ///
    /// # Errors
    /// It does not answer, or there is no such link.
    pub fn link(&self, name: &str) -> Outcome<Value> {
        let shown: Value = serde_json::from_str(&self.show("--json links")?)?;
        let found = shown.as_array().and_then(|all| all.iter().find(|link| link["name"] == name));
        Ok(found.ok_or_else(|| format!("no link {name} in {shown}"))?.clone())
    }

    /// Average length of the packets that the link has sent, in bytes.
    ///
    /// # Errors
    /// As [`Self::link`].
    pub fn sent_size(&self, name: &str) -> Outcome<u64> {
        let link = self.link(name)?;
        let counted = |name: &str| link["stats"][name].as_u64().ok_or_else(|| format!("no {name} in {link}"));
        Ok(counted("tx_bytes")? / counted("tx_packets")?.max(1))
    }

    /// Process number of the gateway.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Log of the gateway.
    #[must_use]
    pub fn log(&self) -> String {
        self.process.output()
    }

    /// Writes `toml` to the configuration file and reloads it (SIGHUP).
    ///
    /// # Errors
    /// The file cannot be written, or the gateway has ended.
    pub fn reload(&self, toml: &str) -> Outcome {
        fs::write(&self.config, with_workers(toml))?;
        self.process.signal(Signal::HUP)
    }

    /// Waits until `condition` holds for the gateway.
    ///
    /// # Errors
    /// It does not soon; the message holds `what` and the gateway's log.
    pub fn wait_until(&mut self, what: &str, mut condition: impl FnMut(&mut Self) -> bool) -> Outcome {
        crate::wait_until(what, PATIENCE, || condition(self))
            .map_err(|failed| format!("{}; it logged:\n{}", failed.message().unwrap_or_default(), self.log()).into())
    }

    /// Ends the gateway with SIGTERM and returns its status.
    ///
    /// # Errors
    /// It does not end.
    pub fn terminate(&mut self) -> Outcome<ExitStatus> {
        self.process.signal(Signal::TERM)?;
        self.process.wait(PATIENCE)
    }

    /// Kills the gateway (SIGKILL).
    ///
    /// # Errors
    /// It has ended.
    pub fn kill(&mut self) -> Outcome {
        self.process.signal(Signal::KILL)?;
        self.process.wait(PATIENCE).map(drop)
    }

    /// The control socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.rundir.join(format!("{}.sock", self.instance))
    }
}
