//! Replacement of a running gateway by the next one (`fatpath run --replace`): traffic and SAs go on, and what is refused leaves the
//! running gateway as it is.

use std::collections::BTreeSet;
use std::env;
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Command;
use std::thread;
use std::time::Duration;

use libtest_mimic::Trial;
use system::{
    Gateway, Manager, Need, Netns, Outcome, Process, Scratch, fatpath, have_several_workers, longest_gap, lossless,
    run, transfer_during, trial, wait_until,
};

use crate::restart_traffic::{GatewayEnd, Keys, Pair, RIGHT, gap, shown};

const NEEDS: &[Need] = &[Need::Namespaces, Need::Tun, Need::PING];
const PRIVILEGES: &[Need] = &[Need::Namespaces, Need::Tun, Need::PING, Need::SETPRIV];

const PATIENCE: Duration = Duration::from_secs(20);

/// Longest time without traffic. A test build on a busy machine takes longer.
const LONGEST_GAP: Duration = Duration::from_millis(if cfg!(debug_assertions) { 1000 } else { 100 });

/// Number of routes of a large file, for figures.
const ROUTES: &str = "FATPATH_TEST_ROUTES";

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("replace/traffic_by_sas_of_the_file_goes_on", NEEDS, || goes_on(Keys::File, "")),
        trial("replace/traffic_by_sas_of_programs_goes_on", NEEDS, || goes_on(Keys::Program, "")),
        trial("replace/traffic_by_sas_of_a_key_manager_goes_on", NEEDS, || goes_on(Keys::Manager, "")),
        trial("replace/two_workers_go_on", NEEDS, || goes_on(Keys::Manager, "[worker]\ncount = 2\n")),
        trial("replace/no_datagram_is_lost_either_way", NEEDS, lossless_both_ways),
        trial("replace/large_file_is_read_while_packets_pass", NEEDS, large),
        trial("replace/changes_of_programs_are_kept", NEEDS, changes),
        trial("replace/links_are_passed_opened_and_closed", NEEDS, links),
        trial("replace/stream_of_the_host_side_goes_on", NEEDS, host_side),
        trial("replace/no_control_client_is_refused", NEEDS, clients),
        trial("replace/misfit_is_refused_and_the_gateway_goes_on", NEEDS, refusals),
        trial("replace/another_user_is_refused", PRIVILEGES, another_user),
        trial("replace/older_gateway_is_named", &[Need::Namespaces], older),
        trial("replace/service_is_refused", NEEDS, service),
        trial("replace/next_gateway_that_is_killed_changes_nothing", NEEDS, killed),
        trial("replace/next_gateway_that_is_terminated_changes_nothing", NEEDS, terminated),
        trial("replace/reload_asked_of_the_next_gateway_follows", NEEDS, reload_of_next),
        trial("replace/gateway_that_is_killed_before_is_replaced", NEEDS, killed_before),
        trial("replace/state_that_does_not_fit_is_refused", NEEDS, unfit_state),
        trial("replace/host_side_ends_if_the_next_file_has_none", NEEDS, host_side_off),
        trial("replace/device_of_a_link_that_is_gone_goes", NEEDS, device_goes),
    ]
}

fn goes_on(keys: Keys, more: &str) -> Outcome {
    let pair = Pair::without_manager(keys, more)?;
    for _ in 0..2 {
        let before = shown(&pair)?.0;
        let gap = gap(&pair, GatewayEnd::Replace)?;
        let log = pair.log();
        let waited = log.lines().find(|line| line.contains("packets waited for")).unwrap_or_default();
        println!("{keys:?}: no answer for {gap:?}: {waited}");
        assert!(gap < LONGEST_GAP, "{keys:?}: {gap:?}\n{log}");
        if keys == Keys::Manager {
            assert_eq!(shown(&pair)?.0, before, "{log}");
        }
        pair.nothing_is_replayed()?;
    }
    Ok(())
}

/// Datagrams through the tunnel wait in the queue of the TUN device, and in the packet socket.
fn lossless_both_ways() -> Outcome {
    let pair = Pair::without_manager(Keys::File, "")?;
    let [left, right] = &pair.hosts;
    for (from, to, address) in [(left, right, RIGHT), (right, left, "10.1.0.1")] {
        let sent = lossless(from, (to, address.parse()?), (200, 200), || pair.replace(&pair.toml, PATIENCE).map(drop))?;
        println!("{sent} datagrams to {address}, none is lost");
    }
    pair.nothing_is_replayed()
}

/// Tables of a file with many routes.
fn routes(count: u32) -> String {
    let mut text = String::new();
    for number in 0..count {
        let [_, a, b, c] = number.to_be_bytes();
        let _ = write!(text, "[[route]]\nto = \"{}.{b}.{c}.0/24\"\ndev = \"wan\"\n", 20 + a);
    }
    text
}

fn large() -> Outcome {
    let count = env::var(ROUTES).ok().map_or(Ok(100_000), |count| count.parse())?;
    let limit = Duration::from_secs(60) + Duration::from_millis(u64::from(count) / 2);
    let pair = Pair::without_manager(Keys::File, "")?;
    let toml = format!("{}\n{}", pair.toml, routes(count));
    let (left, right) = (&pair.hosts[0], RIGHT.parse()?);
    for _ in 0..2 {
        let begun = std::time::Instant::now();
        let gap = longest_gap(left, right, &pair.scratch, || pair.replace(&toml, limit).map(drop))?;
        let log = pair.log();
        let waited = log.lines().find(|line| line.contains("packets waited for")).unwrap_or_default();
        println!("{count} routes: no answer for {gap:?} of {:?}: {waited}", begun.elapsed());
        assert!(gap < LONGEST_GAP, "{gap:?}\n{log}");
        pair.nothing_is_replayed()?;
    }
    let shown = pair.gateways.borrow()[0].show("routes")?;
    assert!(shown.lines().count() > count as usize, "{} routes", shown.lines().count());
    Ok(())
}

/// Changes of programs are there afterwards, also after two replacements.
fn changes() -> Outcome {
    let pair = Pair::without_manager(Keys::File, "")?;
    pair.ip(1, "route add 10.77.0.0/16 dev wan")?;
    pair.ip(1, "link add red type vrf table 7")?;
    pair.replace(&pair.toml, PATIENCE)?;
    let has = |words: &str, text: &str| pair.ip(1, words).is_ok_and(|found| found.contains(text));
    assert!(has("route", "10.77.0.0/16 dev wan"), "{}", pair.log());
    assert!(has("link show red", "red"), "{}", pair.log());
    // The state of the second one continues that of the first.
    pair.ip(1, "route add 10.78.0.0/16 dev wan")?;
    pair.replace(&pair.toml, PATIENCE)?;
    assert!(has("route", "10.77.0.0/16 dev wan") && has("route", "10.78.0.0/16 dev wan"), "{}", pair.log());
    assert!(!pair.log().contains("starting anew"), "{}", pair.log());
    pair.hosts[0].sh(&format!("ping -q -c 5 -i 0.01 -W 2 {RIGHT}"))?;
    pair.nothing_is_replayed()
}

/// A gateway alone, without a state.
struct Alone {
    gateway: Gateway,
    netns: Netns,
    scratch: Scratch,
}

impl Alone {
    fn start(toml: &str) -> Outcome<Self> {
        let (scratch, netns) = (Scratch::new()?, Netns::new("x")?);
        netns.sh("ip link set lo up")?;
        let gateway = Gateway::start(&netns, &scratch, "x", toml)?;
        Ok(Self { gateway, netns, scratch })
    }

    fn replace(&mut self, toml: &str) -> Outcome<Gateway> {
        self.gateway.replace(self.netns.command(fatpath()), &self.scratch, toml, PATIENCE)
    }
}

pub(crate) const TUN: &str = "[[link]]\nname = \"tun0\"\nkind = \"tun\"\naddresses = [\"10.1.0.1/24\"]\n[link.device]\naddresses = [\"10.1.0.2/24\"]\n";
const UDP: &str = "[[link]]\nname = \"wan\"\nkind = \"udp\"\nbind = \"127.0.0.1:4500\"\n";

fn links() -> Outcome {
    let mut alone = Alone::start(&format!("{TUN}{UDP}"))?;
    let guest = alone.scratch.file("guest");
    let socket = |alone: &Alone| -> Outcome<String> {
        let sockets = alone.netns.sh("cat /proc/net/udp")?;
        let line = sockets.lines().find(|line| line.contains("0100007F:1194")).ok_or("no socket at port 4500")?;
        Ok(line.split_whitespace().nth(9).unwrap_or_default().to_owned())
    };
    let index = |alone: &Alone| alone.netns.sh("cat /sys/class/net/tun0/ifindex");
    let before = (socket(&alone)?, index(&alone)?);
    // The one that is new takes no capability, and those that stay are the same.
    let with_guest = format!("[[link]]\nname = \"vm\"\nkind = \"vhost-user\"\nsocket = \"{}\"\n", guest.display());
    alone.replace(&format!("{TUN}{UDP}{with_guest}"))?;
    assert_eq!((socket(&alone)?, index(&alone)?), before, "{}", alone.gateway.log());
    alone.netns.sh("ping -c 3 -i 0.01 -W 2 10.1.0.1")?;
    let _front_end = UnixStream::connect(&guest)?;
    // The port of guests is passed, too.
    alone.replace(&format!("{TUN}{UDP}{with_guest}"))?;
    alone.gateway.wait_until("the guest's port is open", |_| UnixStream::connect(&guest).is_ok())?;
    assert!(alone.gateway.show("links")?.contains("vm"), "{}", alone.gateway.log());
    // Other settings: the link waits for the end of the gateway that has the device.
    let two_queues = TUN.replace("\"tun\"\n", "\"tun\"\noffloads = false\nmtu = 1400\n");
    alone.replace(&two_queues)?;
    let log = alone.gateway.log();
    assert!(log.contains("its links ") && log.contains("are closed"), "{log}");
    alone.gateway.wait_until("the link is open", |gateway| {
        gateway.link("tun0").is_ok_and(|link| link["up"] == true && link["mtu"] == 1400)
    })?;
    alone.netns.sh("ping -c 3 -i 0.01 -W 2 10.1.0.1")?;
    assert!(socket(&alone).is_err() && !guest.exists());
    assert!(alone.gateway.terminate()?.success(), "{}", alone.gateway.log());
    for name in ["x.sock", "x.netlink", "x.starting"] {
        assert!(!alone.scratch.file(name).exists(), "{name}");
    }
    // Policies without a state.
    let mut alone = Alone::start(TUN)?;
    let mut command = Command::new(fatpath());
    command.args([
        "-i",
        "x",
        "ip",
        "xfrm",
        "policy",
        "add",
        "dir",
        "out",
        "src",
        "10.66.0.0/24",
        "dst",
        "10.67.0.0/24",
    ]);
    run(command.args(["action", "block"]).env("FATPATH_RUNDIR", alone.scratch.path()))?;
    let refused = refused(&mut alone, TUN)?;
    assert!(refused.contains("so policies that programs may have added would be lost"), "{refused}");
    alone.netns.sh("ping -c 3 -i 0.01 -W 2 10.1.0.1").map(drop)
}

/// A TCP stream from a socket of the host side to the host's kernel.
/// Runs `next` beside a TCP connection of a program on the host side of the gateway `x`, which has the file [`TUN`]. Fails unless the
/// connection and the host side's namespace go on.
pub(crate) fn stream_goes_on(
    netns: &Netns,
    scratch: &Scratch,
    next: impl FnOnce() -> Outcome<Gateway>,
) -> Outcome<Gateway> {
    let namespace = || {
        let mut command = Command::new(fatpath());
        command.args(["exec", "-i", "x", "--", "readlink", "/proc/self/ns/net"]);
        run(command.env("FATPATH_RUNDIR", scratch.path()))
    };
    let before = namespace()?;
    let mut server = netns.command("python3");
    let script = "import socket\ns = socket.create_server(('10.1.0.2', 7000))\nc, _ = s.accept()\nn = 0\nwhile d := c.recv(65536): n += len(d)\nprint('received', n, flush=True)";
    let server = Process::spawn(server.args(["-c", script]), scratch)?;
    let listens = || netns.sh("ss -Htln sport = 7000").is_ok_and(|found| !found.is_empty());
    wait_until("the server listens", PATIENCE, listens)?;
    let mut client = Command::new(fatpath());
    let script = "import socket, time\ns = socket.create_connection(('10.1.0.2', 7000), 5)\ns.settimeout(10)\nfor _ in range(1500):\n    s.sendall(bytes(1000))\n    time.sleep(0.002)\nprint('sent', flush=True)";
    client.args(["exec", "-i", "x", "--", "python3", "-c", script]).env("FATPATH_RUNDIR", scratch.path());
    let mut client = Process::spawn(&mut client, scratch)?;
    thread::sleep(Duration::from_millis(700));
    assert!(client.is_running(), "{}", client.output());
    let gateway = next()?;
    let status = client.wait(PATIENCE)?;
    assert!(status.success() && client.output().contains("sent"), "{}\n{}", client.output(), gateway.log());
    wait_until("all has arrived", PATIENCE, || server.output().contains("received 1500000"))?;
    assert_eq!(namespace()?, before, "{}", gateway.log());
    Ok(gateway)
}

fn host_side() -> Outcome {
    let Alone { mut gateway, netns, scratch } = Alone::start(TUN)?;
    let gateway = stream_goes_on(&netns, &scratch, || {
        gateway.replace(netns.command(fatpath()), &scratch, TUN, PATIENCE)?;
        Ok(gateway)
    })?;
    let mut alone = Alone { gateway, netns, scratch };
    // The content of the namespace follows the next file.
    let addresses = |alone: &Alone| {
        let mut command = Command::new(fatpath());
        command.args(["exec", "-i", "x", "--", "python3", "-c"]).arg(BIND).env("FATPATH_RUNDIR", alone.scratch.path());
        run(&mut command)
    };
    assert!(addresses(&alone)?.contains("10.1.0.1 True 10.1.0.9 False"), "{}", alone.gateway.log());
    alone.replace(&TUN.replace("10.1.0.1/24", "10.1.0.9/24"))?;
    wait_until("the namespace has the next address", PATIENCE, || {
        addresses(&alone).is_ok_and(|found| found.contains("10.1.0.1 False 10.1.0.9 True"))
    })
    .map_err(|failed| format!("{}: {}", failed.message().unwrap_or_default(), alone.gateway.log()))?;
    let log = alone.gateway.log();
    assert!(!log.contains("ERROR") && !log.contains("removed") && !log.contains("reverted"), "{log}");
    Ok(())
}

/// Whether sockets can have these addresses.
const BIND: &str = "
import socket
def has(address):
    try:
        socket.socket().bind((address, 0))
        return True
    except OSError:
        return False
print(*(word for address in ('10.1.0.1', '10.1.0.9') for word in (address, has(address))))
";

/// Clients that connect at any time are served.
fn clients() -> Outcome {
    let alone = Alone::start(TUN)?;
    let dir = alone.scratch.path().to_owned();
    let is_over = std::sync::atomic::AtomicBool::new(false);
    let alone = std::cell::RefCell::new(alone);
    thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let mut asked = 0;
            while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                let mut client = UnixStream::connect(dir.join("x.sock")).map_err(|err| format!("connect: {err}"))?;
                client.set_read_timeout(Some(PATIENCE)).map_err(|err| err.to_string())?;
                // A client that was accepted just before the end may get no answer, as at any end.
                if client.write_all(b"{\"request\":\"ping\"}\n").is_ok() {
                    let mut line = String::new();
                    let _ = BufReader::new(&client).read_line(&mut line);
                    asked += usize::from(line.contains("pong"));
                }
            }
            Ok::<_, String>(asked)
        });
        let mut done = Ok(());
        for _ in 0..3 {
            done = done.and_then(|()| alone.borrow_mut().replace(TUN).map(drop));
        }
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        let asked = asking.join().map_err(|_| "the client panicked")??;
        assert!(asked > 10, "{asked}");
        done
    })
}

/// Output of a `fatpath run --replace` that fails.
fn refused(alone: &mut Alone, toml: &str) -> Outcome<String> {
    match alone.replace(toml) {
        Ok(_) => Err(format!("it was replaced: {}", alone.gateway.log()).into()),
        Err(failed) => Ok(failed.message().unwrap_or_default().to_owned()),
    }
}

fn refusals() -> Outcome {
    let (scratch, netns) = (Scratch::new()?, Netns::new("none")?);
    let mut none = Gateway::spawn(netns.command(fatpath()), &scratch, "x", TUN, &["--replace"])?;
    none.wait_until("it ends", |gateway| gateway.log().contains("no gateway named x is running"))?;
    let mut alone = Alone::start(&format!("{TUN}{UDP}"))?;
    let (before, device) = (alone.gateway.id(), alone.netns.sh("ip addr show tun0")?);
    let (has, other) = if have_several_workers() { (2, 1) } else { (1, 2) };
    let why = format!("x: not replaced: worker.count is {other}, and {has} in the running gateway");
    for (toml, why) in [
        (format!("{TUN}[worker]\ncount = {other}\n"), why.as_str()),
        (format!("{TUN}mtoo = 1\n"), "mtoo"),
        (format!("{TUN}[[link]]\nname = \"b\"\nkind = \"packet\"\ninterface = \"none0\"\n"), "none0"),
    ] {
        let refused = refused(&mut alone, &toml)?;
        assert!(refused.contains(why), "{why}: {refused}");
    }
    // Another place of the state.
    let mut command = alone.netns.command("sh");
    let state = alone.scratch.file("other.state");
    command.args(["-c", &format!("exec {} \"$@\" --state {}", fatpath().display(), state.display()), "sh"]);
    let failed = alone.gateway.replace(command, &alone.scratch, TUN, PATIENCE).map(|_| ()).unwrap_err();
    let text = failed.message().unwrap_or_default();
    assert!(text.contains("x: not replaced: the running gateway keeps no state; use --state none"), "{text}");
    assert_eq!(alone.gateway.id(), before);
    assert_eq!(alone.netns.sh("ip addr show tun0")?, device);
    alone.netns.sh("ping -c 3 -i 0.01 -W 2 10.1.0.1")?;
    assert!(alone.gateway.terminate()?.success(), "{}", alone.gateway.log());
    // SAs without a state.
    let pair = Pair::without_manager(Keys::File, "")?;
    let keys = format!(
        "{TUN}[[sa]]\nsrc = \"192.0.2.1\"\ndst = \"192.0.2.2\"\nspi = 4096\nmode = \"tunnel\"\n\
         aead = {{ name = \"rfc4106(gcm(aes))\", key = \"0x{:040x}\", icv = 128 }}\n",
        7
    );
    let mut alone = Alone::start(&keys)?;
    let refused = refused(&mut alone, &keys)?;
    assert!(
        refused.contains("x: not replaced: this gateway keeps no state (--state none), so its SAs would"),
        "{refused}"
    );
    let failed =
        pair.gateways.borrow_mut()[0].replace(pair.hosts[0].command(fatpath()), &pair.scratch, &pair.toml, PATIENCE);
    let failed = failed.map(|_| ()).unwrap_err();
    let text = failed.message().unwrap_or_default();
    assert!(text.contains("left: not replaced: the running gateway keeps its state in /"), "{text}");
    pair.hosts[0].sh(&format!("ping -q -c 5 -i 0.01 -W 2 {RIGHT}"))?;
    Ok(())
}

fn another_user() -> Outcome {
    let mut alone = Alone::start(TUN)?;
    fs::set_permissions(alone.scratch.path(), fs::Permissions::from_mode(0o1777))?;
    let mut command = alone.netns.command("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(fatpath());
    let failed = alone.gateway.replace(command, &alone.scratch, "", PATIENCE).map(|_| ()).unwrap_err();
    let text = failed.message().unwrap_or_default();
    assert!(text.contains("permission denied; use the account that runs the gateway"), "{text}");
    alone.netns.sh("ping -c 3 -i 0.01 -W 2 10.1.0.1").map(drop)
}

/// A gateway of an earlier version does not know the request.
fn older() -> Outcome {
    let (scratch, netns) = (Scratch::new()?, Netns::new("older")?);
    let listener = UnixListener::bind(scratch.file("x.sock"))?;
    let answering = thread::spawn(move || -> std::io::Result<String> {
        let (mut stream, _) = listener.accept()?;
        let mut line = String::new();
        BufReader::new(&stream).read_line(&mut line)?;
        stream
            .write_all(b"{\"reply\":\"error\",\"message\":\"request not understood: unknown variant `replace`\"}\n")?;
        Ok(line)
    });
    let mut next = Gateway::spawn(netns.command(fatpath()), &scratch, "x", "", &["--replace"])?;
    next.wait_until("it ends", |next| {
        next.log().contains("x: the running gateway is of an earlier version, which cannot be replaced while it runs")
    })?;
    let line = answering.join().map_err(|_| "the older gateway panicked")??;
    assert_eq!(line, "{\"request\":\"replace\",\"format\":1}\n");
    Ok(())
}

fn service() -> Outcome {
    let (scratch, netns) = (Scratch::new()?, Netns::new("x")?);
    let manager = Manager::new(&scratch)?;
    let command = || manager.command(&netns, &scratch.file("x.state"));
    let mut gateway = Gateway::start_under(command()?, &scratch, "x", TUN)?;
    let failed = gateway.replace(command()?, &scratch, TUN, PATIENCE).map(|_| ()).unwrap_err();
    let text = failed.message().unwrap_or_default();
    assert!(text.contains("x: not replaced: this gateway is a service, whose manager"), "{text}");
    gateway.show("links").map(drop)
}

/// The next gateway is killed while it plans.
fn killed() -> Outcome {
    let pair = Pair::without_manager(Keys::File, "")?;
    let before = shown(&pair)?.0;
    // It reads and plans for a quarter of a second at least.
    let toml = format!("{}\n{}", pair.toml, routes(100_000));
    let (left, right) = (&pair.hosts[0], (&pair.hosts[1], RIGHT.parse()?));
    for wait in [0, 50, 150] {
        let sent = transfer_during(left, right, || {
            let mut next = Gateway::spawn(pair.plain(), &pair.scratch, "left", &toml, &["--replace"])?;
            next.wait_until("it reads its file", |next| next.log().contains("lets other users at its keys"))?;
            thread::sleep(Duration::from_millis(wait));
            assert!(!next.log().contains("took over"), "after {wait} ms: {}", next.log());
            next.kill()
        })?;
        assert!(sent > 0);
    }
    assert_eq!(shown(&pair)?.0, before);
    assert!(!pair.log().contains("ERROR") && !pair.log().contains("handed"), "{}", pair.log());
    pair.nothing_is_replayed()?;
    pair.replace(&pair.toml, PATIENCE)?;
    let text = pair.ip(1, "xfrm state")?;
    assert!(text.contains("spi "), "{text}");
    Ok(())
}

/// Waits until the next gateway has sockets of the left one.
fn wait_for_sockets(pair: &Pair, next: &Gateway) -> Outcome {
    let sockets = |process: u32| {
        let all = fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
        let targets = all.filter_map(|entry| fs::read_link(entry.path()).ok());
        targets.filter(|target| target.to_string_lossy().starts_with("socket:")).collect::<BTreeSet<_>>()
    };
    let before = pair.gateways.borrow()[0].id();
    let has_them = || sockets(before).intersection(&sockets(next.id())).count() >= 3;
    wait_until("sockets are passed", PATIENCE, has_them).map_err(|_| next.log().into())
}

/// SIGTERM to the next gateway while it plans: the running one goes on.
fn terminated() -> Outcome {
    let pair = Pair::without_manager(Keys::File, "")?;
    let toml = format!("{}\n{}", pair.toml, routes(100_000));
    let mut next = Gateway::spawn(pair.plain(), &pair.scratch, "left", &toml, &["--replace"])?;
    // A second one is refused meanwhile.
    let refused = |pair: &Pair| pair.replace(&pair.toml, PATIENCE).map(drop).unwrap_err();
    wait_for_sockets(&pair, &next)?;
    let text = refused(&pair).message().unwrap_or_default().to_owned();
    assert!(text.contains(&format!("left: not replaced: process {} replaces it already", next.id())), "{text}");
    assert!(next.terminate()?.success(), "{}", next.log());
    let log = next.log();
    assert!(log.contains("left: ending; the running gateway goes on") && !log.contains("took over"), "{log}");
    pair.hosts[0].sh(&format!("ping -q -c 5 -i 0.01 -W 2 {RIGHT}"))?;
    assert!(!pair.log().contains("ending"), "{}", pair.log());
    pair.replace(&pair.toml, PATIENCE)?;
    pair.nothing_is_replayed()
}

/// SIGHUP to the next gateway while it plans: it applies the file of then once it has taken over.
fn reload_of_next() -> Outcome {
    let pair = Pair::without_manager(Keys::File, "")?;
    let toml = format!("{}\n{}", pair.toml, routes(50_000));
    let mut next = Gateway::spawn(pair.plain(), &pair.scratch, "left", &toml, &["--replace"])?;
    wait_for_sockets(&pair, &next)?;
    next.reload(&format!("{}[[route]]\nto = \"10.79.0.0/16\"\ndev = \"wan\"\n", pair.toml))?;
    assert!(!next.log().contains("took over"), "{}", next.log());
    next.wait_until("it is reloaded", |next| next.log().contains("left: reloaded"))?;
    assert!(next.log().contains("took over"), "{}", next.log());
    let before = std::mem::replace(&mut pair.gateways.borrow_mut()[0], next);
    drop(before);
    let routes = pair.ip(1, "route")?;
    assert!(routes.contains("10.79.0.0/16 dev wan") && routes.lines().count() < 100, "{routes}");
    pair.hosts[0].sh(&format!("ping -q -c 5 -i 0.01 -W 2 {RIGHT}"))?;
    pair.nothing_is_replayed()
}

/// The gateway before is killed while the next one plans: that one goes on from its state and journal.
fn killed_before() -> Outcome {
    let pair = Pair::without_manager(Keys::File, "")?;
    let toml = format!("{}\n{}", pair.toml, routes(50_000));
    let next = Gateway::spawn(pair.plain(), &pair.scratch, "left", &toml, &["--replace"])?;
    wait_for_sockets(&pair, &next)?;
    pair.ip(1, "route add 10.77.0.0/16 dev wan")?;
    assert!(!next.log().contains("took over"), "{}", next.log());
    pair.gateways.borrow_mut()[0].kill()?;
    wait_until("the next one runs", PATIENCE, || next.log().contains("left: running")).map_err(|_| next.log())?;
    assert!(next.log().contains("was killed before it handed over"), "{}", next.log());
    pair.gateways.borrow_mut()[0] = next;
    let kept = pair.ip(1, "route")?;
    assert!(kept.contains("10.77.0.0/16 dev wan"), "{}", pair.log());
    pair.hosts[0].sh(&format!("ping -q -c 5 -i 0.01 -W 2 {RIGHT}"))?;
    pair.nothing_is_replayed()
}

/// A state that the next gateway cannot restore is refused, and the running one goes on: it needs a link that the file lacks, or is
/// of a newer format.
fn unfit_state() -> Outcome {
    let more = "[[link]]\nname = \"spare\"\nkind = \"tun\"\n";
    let pair = Pair::without_manager(Keys::File, more)?;
    pair.ip(1, "xfrm policy add dir out src 10.66.0.0/24 dst 10.67.0.0/24 dev spare action block")?;
    let text = pair.replace(&pair.toml.replace(more, ""), PATIENCE).map(drop).unwrap_err();
    let text = text.message().unwrap_or_default();
    assert!(text.contains("left: not replaced: ") && text.contains("no link is named spare"), "{text}");
    pair.hosts[0].sh(&format!("ping -q -c 5 -i 0.01 -W 2 {RIGHT}"))?;
    assert!(pair.ip(1, "xfrm policy")?.contains("10.66.0.0/24"), "{}", pair.log());
    pair.replace(&pair.toml, PATIENCE)?;
    assert!(pair.ip(1, "xfrm policy")?.contains("10.66.0.0/24"), "{}", pair.log());
    pair.nothing_is_replayed()
}

/// A file without a host side ends that of the gateway before.
fn host_side_off() -> Outcome {
    let mut alone = Alone::start(TUN)?;
    let place = alone.scratch.file("x.netns");
    assert!(place.exists());
    alone.replace(&format!("{TUN}[host]\nside = \"off\"\n"))?;
    wait_until("the host side is gone", PATIENCE, || !place.exists()).map_err(|_| alone.gateway.log())?;
    alone.netns.sh("ping -c 3 -i 0.01 -W 2 10.1.0.1")?;
    // And the next one has one again.
    alone.replace(TUN)?;
    wait_until("the host side is back", PATIENCE, || place.exists()).map_err(|_| alone.gateway.log().into())
}

/// The device of a link that the next file lacks goes.
fn device_goes() -> Outcome {
    let mut alone = Alone::start(&format!("{TUN}[[link]]\nname = \"tun1\"\nkind = \"tun\"\n"))?;
    alone.netns.sh("ip link show tun1")?;
    alone.replace(TUN)?;
    let is_gone = || alone.netns.sh("ip link show tun1").is_err();
    wait_until("the device is gone", PATIENCE, is_gone).map_err(|_| alone.gateway.log().into())
}
