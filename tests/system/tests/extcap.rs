//! Links of gateways in tshark, by `fatpath-extcap`.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::Duration;

use libtest_mimic::Trial;
use rustix::process::Signal;
use system::{
    Esp, Gateway, Mode, Need, Netns, OUTER_V4, Outcome, Process, Scratch, fatpath, run, trial, veth, wait_until,
};

use crate::{tunnel, view};

const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) fn trials() -> Vec<Trial> {
    const TSHARK: &[Need] = &[Need::Namespaces, Need::Tun, Need::PING, Need::TSHARK];
    const NEEDS: &[Need] = &[Need::Namespaces, Need::Tun];
    vec![
        trial("extcap/tshark_sees_a_ping_on_each_kind_of_link", TSHARK, kinds),
        trial("extcap/tshark_sees_a_tunnel_on_its_wire_and_fat", TSHARK, wire),
        trial("extcap/interfaces_are_for_the_gateways_user", &[Need::Namespaces, Need::SETPRIV], only_looks),
        trial("extcap/capture_ends_with_reader_signal_or_gateway", NEEDS, ends),
        trial("extcap/wrong_input_is_a_line_and_an_exit_code", NEEDS, refused),
    ]
}

/// The program `fatpath-see`.
fn see() -> PathBuf {
    fatpath().with_file_name("fatpath-see")
}

/// The plugin in a user's directory for plugins, which is `config` of `scratch`.
fn install(scratch: &Scratch) -> Outcome<PathBuf> {
    let dir = scratch.file("config/wireshark/extcap");
    fs::create_dir_all(&dir)?;
    let plugin = dir.join("fatpath-extcap");
    symlink(see(), &plugin)?;
    Ok(plugin)
}

fn tshark(scratch: &Scratch, words: &[&str]) -> Outcome<Output> {
    let mut command = Command::new("timeout");
    command.args(["--kill-after", "5", "40", "tshark", "-n"]).args(words);
    command.env("XDG_CONFIG_HOME", scratch.file("config")).env("FATPATH_RUNDIR", scratch.path());
    Ok(command.output()?)
}

/// Summaries of the first packets on an interface.
fn packets(scratch: &Scratch, interface: &str) -> Outcome<String> {
    let output = tshark(scratch, &["-i", interface, "-c", "4"])?;
    if !output.status.success() {
        return Err(format!("{interface}: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// Links of all kinds that a gateway opens without a peer of ours.
const LINKS: &str = r#"
[[link]]
name = "tun0"
kind = "tun"
addresses = ["10.1.0.1/24"]

[[link]]
name = "up0"
kind = "packet"
interface = "up0"
addresses = ["10.2.0.1/24"]

[[link]]
name = "up0.5"
kind = "vlan"
link = "up0"
id = 5
addresses = ["10.3.0.1/24"]

[[link]]
name = "br0"
kind = "bridge"
addresses = ["10.4.0.1/24"]

[[link]]
name = "tap0"
kind = "tap"
master = "br0"

[[link]]
name = "red"
kind = "vrf"
table = 10

[[link]]
name = "tun1"
kind = "tun"
master = "red"
addresses = ["10.5.0.1/24"]

[[link]]
name = "a}{value=x<b>"
kind = "vlan"
link = "up0"
id = 6
addresses = ["10.6.0.1/24"]
"#;

fn kinds() -> Outcome {
    let (scratch, host, peer) = (Scratch::new()?, Netns::new("x")?, Netns::new("y")?);
    veth((&host, "up0"), (&peer, "up0"))?;
    let _gateway = Gateway::start(&host, &scratch, "x", LINKS)?;
    install(&scratch)?;
    host.sh(
        "ip addr add 10.1.0.2/24 dev tun0; ip link set tun0 up; ip addr add 10.4.0.2/24 dev tap0; ip link set tap0 up
        ip addr add 10.5.0.2/24 dev tun1; ip link set tun1 up",
    )?;
    peer.sh("ip addr add 10.2.0.2/24 dev up0")?;
    // Pings in VLANs are the gateway's own, to a neighbour that does not answer.
    let program = |words: &[&str]| {
        let mut command = host.command(fatpath());
        command.args(words).env("FATPATH_RUNDIR", scratch.path());
        command
    };
    for (link, to) in [("up0.5", "10.3.0.2"), ("a}{value=x<b>", "10.6.0.2")] {
        let neighbour = ["neigh", "add", to, "lladdr", "02:00:00:00:00:02", "dev", link, "nud", "permanent"];
        run(&mut program(&[&["ip", "--instance", "x"][..], &neighbour].concat()))?;
    }
    let own_ping = |to: &str| {
        let words = ["exec", "--instance", "x", "--", "ping", "-i", "0.05", "-q", to];
        Process::spawn(&mut program(&words), &scratch)
    };
    let ping = |from: &Netns, to: &str| Process::spawn(from.command("ping").args(["-i", "0.05", "-q", to]), &scratch);
    let _pings = [
        ping(&host, "10.1.0.1")?,
        ping(&peer, "10.2.0.1")?,
        own_ping("10.3.0.2")?,
        ping(&host, "10.4.0.1")?,
        ping(&host, "10.5.0.1")?,
        own_ping("10.6.0.2")?,
    ];
    let listed = tshark(&scratch, &["-D"])?;
    let listed = String::from_utf8(listed.stdout)?;
    let hostile = "a%7D%7Bvalue%3Dx%3Cb%3E";
    for (link, address) in [
        ("tun0", "10.1.0.1"),
        ("tun0 (fat)", "10.1.0.1"),
        ("up0", "10.2.0.1"),
        ("up0.5", "10.3.0.1"),
        ("br0", "10.4.0.1"),
        ("tap0", "10.4.0.1"),
        ("red", "10.5.0.1"),
        ("tun1", "10.5.0.1"),
        (hostile, "10.6.0.1"),
    ] {
        let interface = format!("fatpath:x/{link}");
        assert!(listed.lines().any(|line| line.contains(&format!(". {interface} ("))), "{interface}: {listed}");
        let seen = packets(&scratch, &interface)?;
        assert!(seen.contains("Echo (ping) request") && seen.contains(address), "{interface}: {seen}");
    }
    assert!(listed.contains(&format!("fatpath:x/{hostile} (fatpath x: {hostile} (vlan))")), "{listed}");
    assert_eq!(listed.matches(". fatpath:").count(), 2 * 8, "{listed}");
    Ok(())
}

fn wire() -> Outcome {
    let (scratch, a, b) = (Scratch::new()?, Netns::new("a")?, Netns::new("b")?);
    veth((&a, "wan0"), (&b, "wan0"))?;
    let esp = Esp { udp: true, ..Esp::new(Mode::Tunnel, OUTER_V4, &[("10.1.0.0/24", "10.2.0.0/24")]) };
    let there = esp.reversed();
    let _a = tunnel::start_with(&a, "a", &esp, 1, &scratch, &tunnel::config(&esp, 1))?;
    let _b = tunnel::start_with(&b, "b", &there, 2, &scratch, &tunnel::config(&there, 2))?;
    install(&scratch)?;
    let _ping = Process::spawn(a.command("ping").args(["-i", "0.05", "-q", "10.2.0.1"]), &scratch)?;
    for (interface, part) in [
        ("fatpath:a/wan", "ESP (SPI="),
        ("fatpath:b/wan", "ESP (SPI="),
        ("fatpath:a/wan (fat)", "ESP (SPI="),
        ("fatpath:b/tun0 (fat)", "Echo (ping) request"),
    ] {
        let seen = packets(&scratch, interface)?;
        assert!(seen.contains(part), "{interface}: {seen}");
    }
    Ok(())
}

fn only_looks() -> Outcome {
    let (scratch, host) = (Scratch::new()?, Netns::new("x")?);
    let _gateway = Gateway::start_under(view::with_the_group(&scratch, &host)?, &scratch, "x", "")?;
    let plugin = scratch.file("fatpath-extcap");
    fs::copy(see(), &plugin)?;
    fs::set_permissions(&plugin, fs::Permissions::from_mode(0o755))?;
    let mut member = view::run_as(&plugin, &scratch, &format!("--groups={}", view::GROUP));
    let output = member.arg("--extcap-interfaces").output()?;
    assert!(output.status.success());
    let (out, err) = (String::from_utf8(output.stdout)?, String::from_utf8(output.stderr)?);
    assert!(out.starts_with("extcap {version=") && out.lines().count() == 1, "{out}");
    assert!(err.starts_with("fatpath-extcap: no links of x: ") && err.lines().count() == 1, "{err}");
    assert!(err.contains("x.sock: permission denied; use the account that runs the gateway"), "{err}");
    Ok(())
}

/// A gateway with a link, and the plugin.
struct Site {
    scratch: Scratch,
    _host: Netns,
    gateway: Gateway,
    plugin: PathBuf,
}

impl Site {
    fn new() -> Outcome<Self> {
        let (scratch, host) = (Scratch::new()?, Netns::new("x")?);
        let toml = "[[link]]\nname = \"tun0\"\nkind = \"tun\"\naddresses = [\"10.1.0.1/24\"]\n";
        let gateway = Gateway::start(&host, &scratch, "x", toml)?;
        let plugin = install(&scratch)?;
        Ok(Self { scratch, _host: host, gateway, plugin })
    }

    fn plugin(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.plugin);
        command.args(words).env("FATPATH_RUNDIR", self.scratch.path());
        command
    }

    /// A capture with a reader of its FIFO, once packets could arrive.
    fn capture(&self, name: &str) -> Outcome<[Process; 2]> {
        let fifo = self.scratch.file(name);
        run(Command::new("mkfifo").arg(&fifo))?;
        let file = self.scratch.file(&format!("{name}.pcapng"));
        let mut cat = Command::new("sh");
        cat.args(["-c", "exec cat \"$0\" >\"$1\""]).arg(&fifo).arg(&file);
        let reader = Process::spawn(&mut cat, &self.scratch)?;
        let fifo = fifo.to_str().ok_or("no UTF-8")?;
        let capture = Process::spawn(
            &mut self.plugin(&["--fifo", fifo, "--capture", "--extcap-interface=fatpath:x/tun0"]),
            &self.scratch,
        )?;
        wait_until("the capture begins", PATIENCE, || fs::metadata(&file).is_ok_and(|file| file.len() > 0))?;
        Ok([capture, reader])
    }
}

fn ends() -> Outcome {
    let mut site = Site::new()?;
    // No packet is written that would find the reader gone.
    let [mut capture, reader] = site.capture("one")?;
    reader.signal(Signal::KILL)?;
    assert!(capture.wait(PATIENCE)?.success(), "{}", capture.output());
    let [mut capture, _reader] = site.capture("two")?;
    capture.signal(Signal::TERM)?;
    assert!(capture.wait(PATIENCE)?.success(), "{}", capture.output());
    let [mut capture, mut reader] = site.capture("three")?;
    site.gateway.kill()?;
    assert_eq!(capture.wait(PATIENCE)?.code(), Some(1));
    let text = capture.output();
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.contains("fatpath:x/tun0: the gateway has ended the capture"), "{text}");
    assert!(reader.wait(PATIENCE)?.success());
    Ok(())
}

fn refused() -> Outcome {
    let site = Site::new()?;
    let fifo = site.scratch.file("fifo");
    run(Command::new("mkfifo").arg(&fifo))?;
    let fifo = fifo.to_str().ok_or("no UTF-8")?;
    let capture = |interface| ["--capture", "--extcap-interface", interface, "--fifo", fifo];
    for (words, part) in [
        (&capture("fatpath:x/tun9")[..], "no link is named tun9; links are tun0"),
        (&capture("fatpath:x/<img>}{"), "no link is named <img>}{; links are tun0"),
        (&capture("fatpath:y/tun0"), "no gateway named y is running"),
        (&capture("fatpath:../x/tun0"), "it is no `fatpath:GATEWAY/LINK`"),
        (&capture("eth0"), "it is no `fatpath:GATEWAY/LINK`"),
        (&["--capture", "--extcap-interface", "fatpath:x/tun0"], "--fifo"),
        (
            &["--capture", "--extcap-interface", "fatpath:x/tun0", "--fifo", "/nonexistent/fifo"],
            "/nonexistent/fifo: No such file",
        ),
        (
            &[&capture("fatpath:x/tun0")[..], &["--extcap-capture-filter=icmp"]].concat(),
            "there are no capture filters here",
        ),
        (&["--extcap-dlts", "--extcap-interface", "fatpath:x/tun9"], "no link is named tun9"),
        (&["--what"], "--what"),
        (&[], "required"),
    ] {
        let output = site.plugin(words).output()?;
        let text = String::from_utf8(output.stderr)?;
        assert_eq!((output.status.code(), text.lines().count()), (Some(1), 1), "{words:?}: {text}");
        assert!(text.contains(part), "{words:?}: {text}");
    }
    let dlts = run(&mut site.plugin(&["--extcap-interface=fatpath:x/tun0", "--extcap-dlts"]))?;
    assert_eq!(dlts, "dlt {number=101}{name=RAW}{display=IP}\n");
    assert_eq!(run(&mut site.plugin(&["--extcap-config", "--extcap-interface", "fatpath:x/tun0"]))?, "");
    Ok(())
}
