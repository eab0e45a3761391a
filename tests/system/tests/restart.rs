//! Programs under `fatpath exec` whose gateway restarts.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use libtest_mimic::Trial;
use rustix::process::{Pid, Signal, kill_process};
use system::{Gateway, Need, Netns, Outcome, Process, Scratch, fatpath, run, trial, wait_until};

const NEEDS: &[Need] = &[Need::Namespaces, Need::CC];
const PRIVILEGES: &[Need] = &[Need::Namespaces, Need::CC, Need::SETPRIV];

const PATIENCE: Duration = Duration::from_secs(20);
const WAN: &str = "[[link]]\nname = \"wan\"\nkind = \"udp\"\nbind = \"127.0.0.1:4500\"\n";

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("restart/waiting_program_gets_enobufs_once", NEEDS, listeners),
        trial("restart/request_in_flight_ends_with_enobufs", NEEDS, request_in_flight),
        trial("restart/request_fails_without_a_next_gateway", NEEDS, request_without_gateway),
        trial("restart/idle_socket_gets_no_error", NEEDS, idle),
        trial("restart/program_that_only_requests_is_answered_again", NEEDS, asker),
        trial("restart/forked_daemon_keeps_its_socket", NEEDS, forked),
        trial("restart/unprivileged_socket_gains_no_rights", PRIVILEGES, unprivileged),
        trial("restart/python_selector_gets_enobufs_once", &[Need::Namespaces, Need::PYTHON], python),
        trial("restart/ip_monitor_goes_on", &[Need::Namespaces], ip_monitor),
    ]
}

/// A host whose gateway can be restarted.
struct Host {
    gateway: Option<Gateway>,
    netns: Netns,
    scratch: Scratch,
}

impl Host {
    fn new() -> Outcome<Self> {
        let (scratch, netns) = (Scratch::new()?, Netns::new("x")?);
        // Programs of other accounts enter the directory.
        fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o755))?;
        let mut host = Self { gateway: None, netns, scratch };
        host.start()?;
        Ok(host)
    }

    fn start(&mut self) -> Outcome {
        self.gateway = Some(Gateway::start(&self.netns, &self.scratch, "x", WAN)?);
        Ok(())
    }

    /// Ends the gateway by SIGKILL.
    fn kill(&mut self) {
        self.gateway = None;
    }

    fn fatpath(&self, words: &[&str]) -> Command {
        let mut command = self.netns.command(fatpath());
        command.args(words).env("FATPATH_RUNDIR", self.scratch.path());
        command
    }

    fn exec(&self) -> Command {
        self.fatpath(&["exec", "--instance", "x", "--"])
    }

    fn add_route(&self, number: u8) -> Outcome {
        let prefix = format!("10.{number}.0.0/16");
        run(&mut self.fatpath(&["ip", "--instance", "x", "route", "add", "blackhole", &prefix])).map(drop)
    }

    fn compiled(&self) -> Outcome<PathBuf> {
        let (file, program) = (self.scratch.file("client.c"), self.scratch.file("client"));
        fs::write(&file, include_str!("netlink_restart.c"))?;
        run(Command::new("cc").args(["-Wall", "-O1", "-o"]).arg(&program).arg(&file))?;
        Ok(program)
    }

    fn client(&self, command: &mut Command) -> Outcome<Client> {
        let process = Process::spawn(command, &self.scratch)?;
        let mut client = Client { process, pid: None, name: format!("{command:?}") };
        wait_until("a program has its socket", PATIENCE, || client.printed().contains('\n'))
            .map_err(|failed| format!("{}: {}", client.name, failed.message().unwrap_or_default()))?;
        let pid = client.printed().lines().next().and_then(|pid| pid.parse().ok()).and_then(Pid::from_raw);
        client.pid = Some(pid.ok_or_else(|| format!("{}: {}", client.name, client.printed()))?);
        // The program blocks, and its socket is kept, soon after.
        sleep(Duration::from_millis(300));
        Ok(client)
    }
}

/// A program with a netlink socket.
struct Client {
    process: Process,
    pid: Option<Pid>,
    name: String,
}

impl Drop for Client {
    fn drop(&mut self) {
        // With mode `fork` it is a child of the process that is killed here; it may have ended.
        if let Some(pid) = self.pid {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

impl Client {
    fn printed(&self) -> String {
        self.process.output()
    }

    /// Lines that it has printed, without the first, and without failures of requests because the next gateway has
    /// started late.
    fn lines(&self) -> Vec<String> {
        self.printed().lines().skip(1).filter(|&line| line != FAILED).map(str::to_owned).collect()
    }

    /// Number of its requests that have failed without a gateway.
    fn failed(&self) -> usize {
        self.printed().lines().filter(|&line| line == FAILED).count()
    }

    fn ask(&self) -> Outcome {
        Ok(kill_process(self.pid.ok_or("no process")?, Signal::USR1)?)
    }

    /// Waits until it has printed these lines and no others.
    fn expect(&self, lines: &[&str]) -> Outcome {
        let waited = wait_until("a program prints lines", PATIENCE, || self.lines().len() >= lines.len());
        assert_eq!(self.lines(), lines, "{}: {waited:?}", self.name);
        Ok(())
    }
}

/// Failure of a request without a gateway.
const FAILED: &str = "error ECONNREFUSED";

const REFUSED: &str = "send ECONNREFUSED, recv EAGAIN, poll 0";

fn listeners() -> Outcome {
    let mut host = Host::new()?;
    let program = host.compiled()?;
    let mut clients = Vec::new();
    for mode in ["blocking", "nonblocking", "select", "poll", "epoll", "epoll-edge", "dup"] {
        clients.push(host.client(host.exec().arg(&program).arg(mode))?);
    }
    let mut expected = Vec::new();
    for round in 0..2 {
        host.kill();
        // Time in which a repeated report would be printed.
        sleep(Duration::from_millis(500));
        clients.iter().try_for_each(Client::ask)?;
        expected.push(REFUSED);
        clients.iter().try_for_each(|client| client.expect(&expected))?;
        host.start()?;
        expected.extend(["ENOBUFS", "error EINVAL"]);
        clients.iter().try_for_each(|client| client.expect(&expected))?;
        host.add_route(10 + round)?;
        expected.push("route");
        clients.iter().try_for_each(|client| client.expect(&expected))?;
    }
    sleep(Duration::from_millis(300));
    clients.iter().try_for_each(|client| client.expect(&expected))
}

/// A program whose request is in flight, to a gateway that has stopped.
fn with_request(host: &Host) -> Outcome<Client> {
    let program = host.compiled()?;
    let client = host.client(host.exec().arg(&program).arg("request"))?;
    let gateway = host.gateway.as_ref().map(Gateway::id).and_then(|id| Pid::from_raw(id as i32)).ok_or("a gateway")?;
    kill_process(gateway, Signal::STOP)?;
    let stat = format!("/proc/{}/stat", gateway.as_raw_nonzero());
    wait_until("the gateway has stopped", PATIENCE, || {
        fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") T "))
    })?;
    client.ask()?;
    client.expect(&["sent one"])?;
    Ok(client)
}

fn request_in_flight() -> Outcome {
    let mut host = Host::new()?;
    let client = with_request(&host)?;
    host.kill();
    sleep(Duration::from_millis(300));
    client.expect(&["sent one"])?;
    host.start()?;
    let has_ended = || !client.lines().is_empty() && client.printed().contains("ENOBUFS") || client.failed() > 0;
    wait_until("the request ends", PATIENCE, has_ended)?;
    // Without a loss there is no further request.
    client.expect(if client.failed() > 0 { &["sent one"] } else { &["sent one", "ENOBUFS", "error EINVAL"] })
}

fn request_without_gateway() -> Outcome {
    let mut host = Host::new()?;
    let client = with_request(&host)?;
    host.kill();
    wait_until("the request fails", PATIENCE, || client.failed() == 1)?;
    // Once, and so does a request that is refused, as some programs wait for the reply anyway.
    client.ask()?;
    wait_until("the next request fails", PATIENCE, || client.failed() == 2)?;
    sleep(Duration::from_millis(500));
    assert_eq!(client.failed(), 2);
    client.expect(&["sent one", "sent ECONNREFUSED"])?;
    // Nothing is lost for the next gateway to report.
    host.start()?;
    let answered = "error EINVAL".to_owned();
    wait_until("a request is answered", PATIENCE, || {
        sleep(Duration::from_millis(100));
        client.ask().is_ok() && client.lines().contains(&answered)
    })?;
    assert!(!client.printed().contains("ENOBUFS"), "{}", client.printed());
    Ok(())
}

fn idle() -> Outcome {
    let mut host = Host::new()?;
    let program = host.compiled()?;
    let client = host.client(host.exec().arg(&program).arg("idle"))?;
    host.kill();
    sleep(Duration::from_millis(300));
    host.start()?;
    sleep(Duration::from_millis(500));
    client.ask()?;
    // The first part of the dump is taken by the attempt; it ends with `done`.
    wait_until("the dump ends", PATIENCE, || client.printed().contains("done"))?;
    assert_eq!(client.lines().len(), 2, "{}", client.printed());
    assert!(client.lines()[0].starts_with("send taken, recv something"), "{}", client.printed());
    Ok(())
}

fn asker() -> Outcome {
    let mut host = Host::new()?;
    let program = host.compiled()?;
    let client = host.client(host.exec().arg(&program).arg("ask"))?;
    client.expect(&["answered"])?;
    host.kill();
    sleep(Duration::from_millis(300));
    host.start()?;
    // A request that was in flight waits for the next gateway; all others are refused. In the former case no outcome
    // changes, so the program sends another request.
    client.ask()?;
    let is_answered_again = |lines: &[String]| lines.len() > 1 && lines.last().is_some_and(|line| line == "answered");
    wait_until("it is answered again", PATIENCE, || is_answered_again(&client.lines()))?;
    let lines = client.lines();
    assert!(lines.iter().all(|line| ["answered", "ECONNREFUSED", "ENOBUFS"].contains(&line.as_str())), "{lines:?}");
    Ok(())
}

fn forked() -> Outcome {
    let mut host = Host::new()?;
    let program = host.compiled()?;
    let mut client = host.client(host.exec().arg(&program).arg("fork"))?;
    host.kill();
    sleep(Duration::from_millis(300));
    host.start()?;
    client.expect(&["ENOBUFS", "error EINVAL"])?;
    // The parent has kept the socket, too. It ends, and with it the parent's duplicate.
    client.process.signal(Signal::KILL)?;
    client.process.wait(PATIENCE)?;
    host.kill();
    sleep(Duration::from_millis(300));
    client.ask()?;
    client.expect(&["ENOBUFS", "error EINVAL", REFUSED])?;
    host.start()?;
    client.expect(&["ENOBUFS", "error EINVAL", REFUSED, "ENOBUFS", "error EINVAL"])
}

fn unprivileged() -> Outcome {
    let mut host = Host::new()?;
    let program = host.compiled()?;
    let unprivileged = ["--reuid=65534", "--regid=65534", "--clear-groups"];
    let client = host.client(host.exec().arg("setpriv").args(unprivileged).arg(&program).arg("poll"))?;
    host.kill();
    sleep(Duration::from_millis(300));
    client.ask()?;
    client.expect(&[REFUSED])?;
    host.start()?;
    client.expect(&[REFUSED, "ENOBUFS", "error EPERM"])?;
    host.add_route(10)?;
    client.expect(&[REFUSED, "ENOBUFS", "error EPERM", "route"])
}

fn python() -> Outcome {
    let mut host = Host::new()?;
    let script = host.scratch.file("client.py");
    fs::write(&script, include_str!("netlink_restart.py"))?;
    let client = host.client(host.exec().arg("python3").arg(&script))?;
    host.kill();
    sleep(Duration::from_millis(300));
    client.expect(&[])?;
    host.start()?;
    client.expect(&["ENOBUFS", "error EINVAL"])?;
    host.add_route(10)?;
    client.expect(&["ENOBUFS", "error EINVAL", "route"])
}

fn ip_monitor() -> Outcome {
    let mut host = Host::new()?;
    let mut monitor = Process::spawn(host.exec().args(["ip", "monitor", "route"]), &host.scratch)?;
    let sees = |monitor: &Process, host: &Host, number: u8| {
        host.add_route(number)?;
        let prefix = format!("blackhole 10.{number}.0.0/16");
        wait_until("`ip monitor` prints a route", Duration::from_secs(2), || monitor.output().contains(&prefix))
    };
    // The monitor begins to listen some time after its start.
    let is_listening = (10..30).any(|number| sees(&monitor, &host, number).is_ok());
    assert!(is_listening, "{}", monitor.output());
    host.kill();
    sleep(Duration::from_millis(500));
    let before = monitor.output();
    host.start()?;
    wait_until("the loss is reported", PATIENCE, || monitor.output().contains("No buffer space available"))?;
    sees(&monitor, &host, 30)?;
    assert!(monitor.is_running());
    let after = monitor.output();
    assert_eq!(after.matches("No buffer space available").count(), 1, "{before}{after}");
    Ok(())
}
