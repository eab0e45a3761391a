//! `fatpath try` and `fatpath exec -c`: gateways that end with one command.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use libtest_mimic::Trial;
use rustix::process::Signal;
use system::{Esp, Mode, Need, Netns, OUTER_V4, Outcome, Process, Scratch, fatpath, trial, veth, wait_until};

use crate::tunnel;

const NEEDS: &[Need] = &[Need::Namespaces, Need::Tun, Need::PING];

const CURL_NEEDS: &[Need] = &[Need::Namespaces, Need::Tun, Need::CURL, Need::PYTHON, Need::SETPRIV];

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("try/pings_through_esp_and_leaves_nothing", NEEDS, pings),
        trial("try/works_without_privilege", NEEDS, pings_as_a_user),
        trial("exec_c/exit_code_is_the_programs_and_the_gateway_ends", NEEDS, exit_code),
        trial("exec_c/is_refused_beside_a_gateway_of_that_name", NEEDS, second),
        trial("exec_c/gateway_ends_if_the_command_is_killed", NEEDS, killed),
        trial("exec_c/leaves_no_device_no_route_and_no_state", NEEDS, leaves_nothing),
        trial("exec_c/user_without_privilege_reaches_a_root_gateway", CURL_NEEDS, curl_as_a_user),
        trial("doctor/names_what_is_missing", &[], doctor),
        trial("doctor/names_what_keeps_a_peer_away", &[Need::Namespaces], doctor_of_a_peer),
    ]
}

/// Number of gateways whose command line contains `text`.
fn gateways(text: &str) -> usize {
    let files = fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok);
    let lines = files.filter_map(|dir| fs::read(dir.path().join("cmdline")).ok());
    let is_gateway = |line: &Vec<u8>| {
        let line = String::from_utf8_lossy(line).replace('\0', " ");
        line.contains(" run --instance") && line.contains(text)
    };
    lines.filter(is_gateway).count()
}

fn checked(output: &std::process::Output) -> Outcome {
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    assert!(text.contains("3 received, 0% packet loss"), "{text}");
    assert!(text.contains("192.0.2.2:4500  up"), "{text}");
    wait_until("both gateways end", Duration::from_secs(5), || gateways("/run/fatpath-try/") == 0)
}

fn pings() -> Outcome {
    let output = Command::new(fatpath()).arg("try").stdin(Stdio::null()).output()?;
    checked(&output)
}

/// A directory with the programs, which a user without privilege may enter, as opposed to that of the build.
pub(crate) fn programs() -> Outcome<Scratch> {
    let scratch = Scratch::new()?;
    fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o755))?;
    for name in ["fatpath", "libfatpath_preload.so"] {
        fs::copy(fatpath().with_file_name(name), scratch.file(name))?;
    }
    Ok(scratch)
}

/// Options of `setpriv` for a user without any capability.
pub(crate) const NOBODY: [&str; 7] =
    ["--reuid", "65534", "--regid", "65534", "--clear-groups", "--bounding-set", "-all"];

fn pings_as_a_user() -> Outcome {
    let programs = programs()?;
    let mut command = Command::new("setpriv");
    command.args(NOBODY).arg(programs.file("fatpath")).arg("try");
    let output = command.current_dir("/").stdin(Stdio::null()).output()?;
    checked(&output)
}

/// One end is a user's `fatpath exec -c`, with its inner address on `lo`; the other is root's gateway with a TUN device.
fn curl_as_a_user() -> Outcome {
    let programs = programs()?;
    let scratch = Scratch::new()?;
    let (a, b) = (Netns::new("a")?, Netns::new("b")?);
    veth((&a, "wan0"), (&b, "wan0"))?;
    a.sh("ip addr add 192.0.2.1/24 dev wan0")?;
    let esp = Esp { udp: true, ..Esp::new(Mode::Tunnel, OUTER_V4, &[("10.1.0.0/24", "10.2.0.0/24")]) };
    let _right = tunnel::start(&b, "b", &esp.reversed(), 2, &scratch)?;
    fs::write(scratch.file("index.html"), "through ESP\n")?;
    let mut server = b.command("python3");
    server.args(["-m", "http.server", "8080", "--bind", "10.2.0.1", "--directory"]).arg(scratch.path());
    let _server = Process::spawn(&mut server, &scratch)?;
    let config = programs.file("left.toml");
    let toml = rootless_toml(&esp.to_toml());
    fs::write(&config, toml)?;
    fs::set_permissions(&config, fs::Permissions::from_mode(0o644))?;
    let mut command = a.command("setpriv");
    command.args(NOBODY).args(["env", "-u", "XDG_RUNTIME_DIR"]).arg(programs.file("fatpath"));
    command.args(["exec", "-c"]).arg(&config).args(["--", "curl", "-sS", "--retry", "20", "--retry-connrefused"]);
    let output = command.args(["--max-time", "20", "http://10.2.0.1:8080/index.html"]).current_dir("/").output()?;
    assert_eq!(String::from_utf8_lossy(&output.stdout), "through ESP\n", "{output:?}");
    assert!(output.status.success(), "{output:?}");
    Ok(())
}

/// A gateway without privilege at 192.0.2.1, with its inner address on `lo`, and with these SAs and policies.
pub(crate) fn rootless_toml(esp: &str) -> String {
    format!(
        r#"[[link]]
name = "wan"
kind = "udp"
bind = "192.0.2.1:4500"

[[link]]
name = "lo"
addresses = ["10.1.0.1/32"]

[[route]]
to = "192.0.2.2/32"
dev = "wan"

[[route]]
to = "10.2.0.0/24"
dev = "wan"
src = "10.1.0.1"

{esp}"#
    )
}

const EMPTY: &str = "[host]\nside = \"auto\"\n";

/// A namespace, a directory, and a command for `fatpath exec -c` with an empty configuration.
fn site() -> Outcome<(Netns, Scratch)> {
    let scratch = Scratch::new()?;
    fs::write(scratch.file("empty.toml"), EMPTY)?;
    Ok((Netns::new("a")?, scratch))
}

fn exec(netns: &Netns, scratch: &Scratch, name: &str, program: &[&str]) -> Command {
    let mut command = netns.command(fatpath());
    command.args(["exec", "-c"]).arg(scratch.file("empty.toml")).args(["--instance", name, "--"]);
    command.args(program).env("FATPATH_RUNDIR", scratch.path());
    command
}

fn exit_code() -> Outcome {
    let (netns, scratch) = site()?;
    let script = "ip link show lo >/dev/null && ip link add red type vrf table 7 && ip link show red && exit 7";
    let output = exec(&netns, &scratch, "x", &["sh", "-c", script]).output()?;
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    assert!(!scratch.file("x.sock").exists(), "the gateway has not ended");
    let output = exec(&netns, &scratch, "x", &["sh", "-c", "kill -KILL $$"]).output()?;
    assert_eq!(output.status.code(), Some(137), "{output:?}");
    let output = exec(&netns, &scratch, "x", &["no-such-program"]).output()?;
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "Error: no-such-program: no such program.\n");
    fs::write(scratch.file("empty.toml"), "[[link]]\nname = 3\n")?;
    let output = exec(&netns, &scratch, "x", &["true"]).output()?;
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stderr).lines().count(), 1, "{output:?}");
    Ok(())
}

fn second() -> Outcome {
    let (netns, scratch) = site()?;
    let _first = Process::spawn(&mut exec(&netns, &scratch, "x", &["sleep", "60"]), &scratch)?;
    wait_until("the gateway runs", Duration::from_secs(20), || scratch.file("x.sock").exists())?;
    let output = exec(&netns, &scratch, "x", &["true"]).output()?;
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.lines().count() == 1 && text.contains("x.sock"), "{output:?}");
    assert!(scratch.file("x.sock").exists(), "the first gateway is gone");
    Ok(())
}

fn killed() -> Outcome {
    let (netns, scratch) = site()?;
    let process = Process::spawn(&mut exec(&netns, &scratch, "killed", &["sleep", "60"]), &scratch)?;
    let place = scratch.path().display().to_string();
    wait_until("the gateway runs", Duration::from_secs(20), || scratch.file("killed.sock").exists())?;
    assert_eq!(gateways(&place), 1);
    process.signal(Signal::KILL)?;
    wait_until("the gateway ends", Duration::from_secs(20), || gateways(&place) == 0)
}

/// The gateway's file has a device with a route of the host; it ends in good order, and is killed with the command.
fn leaves_nothing() -> Outcome {
    let (netns, scratch) = site()?;
    netns.sh("ip link add wire type veth peer name other; ip addr add 192.0.2.1/24 dev wire; ip link set wire up")?;
    let device = "device = { addresses = [\"10.1.0.1/24\"], routes = [\"10.2.0.0/24\"] }";
    fs::write(scratch.file("empty.toml"), format!("[[link]]\nname = \"tun0\"\nkind = \"tun\"\n{device}\n"))?;
    let shown =
        || netns.sh("ip -o link | cut -d: -f2; ip -4 route show table all; ip -6 route show table all type blackhole");
    let before = shown()?;
    let output = exec(&netns, &scratch, "x", &["sleep", "0.5"]).output()?;
    assert!(output.status.success(), "{output:?}");
    assert_eq!(shown()?, before);
    let process = Process::spawn(&mut exec(&netns, &scratch, "x", &["sleep", "60"]), &scratch)?;
    let has_route = || netns.sh("ip route show 10.2.0.0/24").is_ok_and(|routes| routes.contains("dev tun0"));
    wait_until("the device has its route", Duration::from_secs(20), has_route)?;
    process.signal(Signal::KILL)?;
    let is_as_before = || shown().is_ok_and(|now| now == before);
    wait_until("device and route are gone", Duration::from_secs(20), is_as_before)
        .map_err(|err| format!("{}: {:?}", err.message().unwrap_or_default(), shown()))?;
    let files = fs::read_dir(scratch.path())?.flatten().map(|file| file.file_name().to_string_lossy().into_owned());
    let states: Vec<String> = files.filter(|name| name.contains(".state")).collect();
    assert!(states.is_empty(), "{states:?}");
    Ok(())
}

fn doctor() -> Outcome {
    let output = Command::new(fatpath()).arg("doctor").output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    for subject in ["kernel", "/dev/net/tun", "MTU", "clock", "user namespaces", "preload library"] {
        assert!(text.lines().any(|line| line.contains(subject)), "{text}");
    }
    let output = Command::new(fatpath()).arg("doctor").env("FATPATH_PRELOAD", "/no/such.so").output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.lines().any(|line| line.starts_with("missing") && line.contains("preload library")), "{text}");
    Ok(())
}

fn doctor_of_a_peer() -> Outcome {
    let (host, peer) = (Netns::new("a")?, Netns::new("b")?);
    veth((&host, "eth0"), (&peer, "eth0"))?;
    host.sh("ip addr add 192.0.2.1/24 dev eth0; ip route add default via 192.0.2.2; ip link set eth0 mtu 1400")?;
    peer.sh("ip addr add 192.0.2.2/24 dev eth0; ip link set lo up")?;
    let doctor = |address: &str| -> Outcome<(Option<i32>, String)> {
        let output = host.command(fatpath()).args(["doctor", address]).output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(text.lines().any(|line| line.starts_with("note     MTU") && line.contains("eth0 1400: ")), "{text}");
        let line = text.lines().find(|line| line.contains(" peer ")).unwrap_or_default().to_owned();
        Ok((output.status.code(), line))
    };
    let refusals = [
        ("192.0.2.2", "192.0.2.2: UDP port 4500 is unreachable: start the gateway there"),
        ("192.0.2.7", "192.0.2.7: no host answers for this address"),
        ("2001:db8::7", "2001:db8::7: no route leads there"),
    ];
    for (address, why) in refusals {
        let (code, line) = doctor(address)?;
        assert!(code == Some(1) && line.starts_with("missing  peer") && line.contains(why), "{address}: {line}");
    }
    // A program at the port, which does not answer.
    let _server = peer.enter(|| std::net::UdpSocket::bind("0.0.0.0:4500"))?;
    let (_, line) = doctor("192.0.2.2")?;
    assert!(line.starts_with("ok       peer") && line.contains("from 192.0.2.1"), "{line}");
    let output = host.command(fatpath()).args(["doctor", "left.example"]).output()?;
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("'left.example' for '[PEER]'"), "{output:?}");
    Ok(())
}
