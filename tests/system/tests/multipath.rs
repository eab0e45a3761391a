//! Routes with several paths: `ip` prints what it prints on Linux, and flows are spread over paths whose links are up.

use std::collections::HashSet;
use std::fmt::Write;
use std::fs;
use std::time::Duration;

use libtest_mimic::Trial;
use rustix::process::Signal;
use serde_json::Value;
use system::{Gateway, Need, Netns, Outcome, Scratch, fatpath, run, trial, veth, wait_until, with_workers};

use crate::ip::{compare_lines, exec, near};
use crate::state::Node;

const NEEDS: &[Need] = &[Need::Namespaces, Need::PING];

/// The commands, about eth0 and eth1, numbers 2 and 3.
const LINES: &str = include_str!("multipath.lines");

const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("multipath/ip_prints_the_same_as_on_linux", &[Need::Namespaces], compare),
        trial("multipath/events_are_those_of_linux", &[Need::Namespaces], events),
        trial("multipath/flows_are_spread_and_leave_a_dead_path", NEEDS, spread),
        trial("multipath/ports_select_a_path_by_policy_1", NEEDS, ports),
        trial("multipath/paths_are_kept_over_a_restart", NEEDS, kept),
        trial("multipath/paths_are_limited_and_of_unicast_routes", &[Need::Namespaces], limited),
    ]
}

const LINKS: &str = "[[link]]\nname = \"eth0\"\nkind = \"packet\"\ninterface = \"eth0\"\n
[[link]]\nname = \"eth1\"\nkind = \"packet\"\ninterface = \"eth1\"\n";

/// A namespace with eth0 and eth1.
fn two_links(role: &str, far: &Netns) -> Outcome<Netns> {
    let netns = near(role, far)?;
    let far_end = format!("{role}1");
    netns.sh(&format!(
        "ip link add eth1 address 02:00:00:00:01:02 type veth peer name {far_end} netns {}
        ip link set eth1 addrgenmode none up",
        far.name()
    ))?;
    far.sh(&format!("ip link set {far_end} addrgenmode none up"))?;
    netns.sh("until grep -q up /sys/class/net/eth1/operstate; do sleep 0.1; done")?;
    Ok(netns)
}

fn compare() -> Outcome {
    let (scratch, far) = (Scratch::new()?, Netns::new("far")?);
    let (linux, ours) = (two_links("linux", &far)?, two_links("ours", &far)?);
    let _gateway = Gateway::start(&ours, &scratch, "ours", LINKS)?;
    compare_lines(&scratch, LINES, linux.command("sh"), exec(&ours, "ours"))
}

/// Writes the messages of `ip monitor route` about changes of routes with several paths to a file.
const CHANGES: &str = r#"
set -e
ip addr add 10.1.0.1/24 dev eth0
ip addr add 10.2.0.1/24 dev eth1
ip addr add 2001:db8:1::1/64 dev eth0 nodad
ip addr add 2001:db8:2::1/64 dev eth1 nodad
ip -o monitor route > $1 &
until ip route add 10.77.0.0/24 dev eth0; ip route del 10.77.0.0/24 dev eth0; grep -q 10.77 $1; do sleep 0.05; done
sleep 0.3
ip route add 10.9.0.0/24 nexthop via 10.1.0.9 nexthop via 10.2.0.9 weight 3
ip route replace 10.9.0.0/24 nexthop via 10.1.0.10 nexthop via 10.2.0.10
ip route del 10.9.0.0/24
ip -6 route add 2001:db8:9::/48 nexthop via 2001:db8:1::9 nexthop via 2001:db8:2::9 weight 3
ip -6 route append 2001:db8:9::/48 via 2001:db8:1::8
ip -6 route del 2001:db8:9::/48 via 2001:db8:2::9
ip -6 route replace 2001:db8:9::/48 nexthop via 2001:db8:1::10 nexthop via 2001:db8:2::10
ip -6 route del 2001:db8:9::/48
ip route add 10.9.1.0/24 nexthop via 10.1.0.9 nexthop via 10.2.0.9
ip link set eth1 down
ip link set eth1 up
ip route add 10.78.0.0/24 dev eth0
until grep -q 10.78 $1; do sleep 0.05; done
kill $!
"#;

fn events() -> Outcome {
    let (scratch, far) = (Scratch::new()?, Netns::new("far")?);
    let (linux, ours) = (two_links("linux", &far)?, two_links("ours", &far)?);
    let _gateway = Gateway::start(&ours, &scratch, "ours", LINKS)?;
    let seen = |mut command: std::process::Command, name: &str| -> Outcome<Vec<String>> {
        let file = scratch.file(name);
        let script = ["-c", CHANGES, "sh"];
        run(command.args(script).arg(&file).env("FATPATH_RUNDIR", scratch.path()))?;
        let text = fs::read_to_string(file)?;
        // Linux has routes of its own, to fe80::/64 and ff00::/8, at other times.
        let about = |line: &&str| line.contains("10.9.") || line.contains("2001:db8:9:");
        Ok(text.lines().filter(about).map(|line| line.trim().to_owned()).collect())
    };
    let (want, got) = (seen(linux.command("sh"), "linux.events")?, seen(exec(&ours, "ours"), "ours.events")?);
    assert!(want.len() >= 8, "{want:?}");
    assert_eq!(got, want);
    Ok(())
}

/// A gateway between a host and two neighbours, each with all of 10.9.0.0/24 and 2001:db8:9::/64.
struct Site {
    gateway: Gateway,
    host: Netns,
    netns: Netns,
    far: [Netns; 2],
    scratch: Scratch,
}

impl Site {
    fn new() -> Outcome<Self> {
        let (scratch, host, netns) = (Scratch::new()?, Netns::new("host")?, Netns::new("gateway")?);
        netns.sh("for scope in all default; do echo 1 >/proc/sys/net/ipv6/conf/$scope/disable_ipv6; done")?;
        let far = [Netns::new("first")?, Netns::new("second")?];
        veth((&netns, "lan"), (&host, "eth0"))?;
        host.sh("ip addr add 10.1.0.2/24 dev eth0; ip route add default via 10.1.0.1
            ip addr add fd01::2/64 dev eth0 nodad; ip route add default via fd01::1")?;
        let mut config = String::new();
        for (link, addresses) in [
            ("lan", "\"10.1.0.1/24\", \"fd01::1/64\""),
            ("up1", "\"10.11.0.1/24\", \"fd11::1/64\""),
            ("up2", "\"10.12.0.1/24\", \"fd12::1/64\""),
        ] {
            writeln!(
                config,
                "[[link]]\nname = \"{link}\"\nkind = \"packet\"\ninterface = \"{link}\"\naddresses = [{addresses}]\n"
            )?;
        }
        for (at, netns_of) in (11..).zip(&far) {
            let link = format!("up{}", at - 10);
            veth((&netns, &link), (netns_of, "eth0"))?;
            netns_of.sh(&format!(
                "ip addr add 10.{at}.0.2/24 dev eth0; ip addr add fd{at}::2/64 dev eth0 nodad
                ip route add local 10.9.0.0/24 dev lo; ip -6 route add local 2001:db8:9::/64 dev lo
                ip route add default via 10.{at}.0.1; ip route add default via fd{at}::1"
            ))?;
        }
        let gateway = Gateway::start(&netns, &scratch, "router", &config)?;
        let site = Self { gateway, host, netns, far, scratch };
        for words in [
            "route add 10.9.0.0/24 nexthop via 10.11.0.2 nexthop via 10.12.0.2",
            "route add 2001:db8:9::/64 nexthop via fd11::2 nexthop via fd12::2",
        ] {
            site.ip(words)?;
        }
        Ok(site)
    }

    /// Runs `ip` on the gateway.
    fn ip(&self, words: &str) -> Outcome<String> {
        let mut command = self.netns.command(fatpath());
        command.args(["ip", "--instance", "router"]).args(words.split_whitespace());
        run(command.env("FATPATH_RUNDIR", self.scratch.path()))
    }

    /// Packets that the gateway has sent by each uplink.
    fn sent(&self) -> Outcome<[u64; 2]> {
        let links: Value = serde_json::from_str(&self.gateway.show("--json links")?)?;
        let of = |name: &str| {
            let link = links.as_array().and_then(|links| links.iter().find(|link| link["name"] == name));
            link.and_then(|link| link["stats"]["tx_wire_packets"].as_u64()).ok_or("no counter")
        };
        Ok([of("up1")?, of("up2")?])
    }

    /// Packets that were sent by each uplink meanwhile.
    fn sent_by(&self, what: impl FnOnce() -> Outcome) -> Outcome<[u64; 2]> {
        let before = self.sent()?;
        what()?;
        let after = self.sent()?;
        Ok([after[0] - before[0], after[1] - before[1]])
    }

    /// One ping to each of 64 addresses of a prefix, from the host or from the gateway's own sockets. All are answered.
    fn pings(&self, prefix: &str, is_own: bool) -> Outcome {
        let script = format!(
            "for n in $(seq 64); do ping -n -q -c 1 -W 5 {prefix}$n >/dev/null || {{ echo $n; exit 1; }}; done"
        );
        if is_own {
            let mut exec = self.netns.command(fatpath());
            exec.args(["exec", "--instance", "router", "--", "sh", "-c", &script]);
            run(exec.env("FATPATH_RUNDIR", self.scratch.path()))?;
        } else {
            self.host.sh(&script)?;
        }
        Ok(())
    }
}

fn spread() -> Outcome {
    let site = Site::new()?;
    // Neighbours first, whose resolution has packets of its own.
    for far in &site.far {
        far.sh("ping -n -q -c 1 -W 5 10.1.0.2; ping -n -q -c 1 -W 5 fd01::2")?;
    }
    for (prefix, is_own) in [("10.9.0.", false), ("2001:db8:9::", false), ("10.9.0.", true), ("2001:db8:9::", true)] {
        let sent = site.sent_by(|| site.pings(prefix, is_own))?;
        assert!(sent.iter().all(|&sent| sent >= 10), "{prefix} {is_own}: {sent:?}");
        assert!(sent.iter().sum::<u64>() < 100, "{sent:?}");
        // A flow keeps its path.
        let one = || {
            let ping = format!("ping -n -q -c 20 -i 0.02 -W 5 {prefix}7");
            site.host.sh(&ping).map(drop)
        };
        let sent = site.sent_by(one)?;
        assert!(sent.iter().any(|&sent| sent >= 20) && sent.iter().any(|&sent| sent < 5), "{prefix}: {sent:?}");
    }
    // A stream of large packets, in one direction and the other, has one path.
    let server = "import socket
own = socket.create_server(('10.9.0.5', 7000)); print('ready', flush=True)
peer, _ = own.accept(); got = 0
while data := peer.recv(1 << 16): got += len(data)
print(got, flush=True)";
    let servers: Vec<_> = site
        .far
        .iter()
        .map(|far| system::Process::spawn(far.command("python3").args(["-c", server]), &site.scratch))
        .collect::<Result<_, _>>()?;
    for server in &servers {
        wait_until("a server listens", PATIENCE, || server.output().contains("ready"))?;
    }
    let client = "import socket
own = socket.create_connection(('10.9.0.5', 7000), 20); own.sendall(bytes(8 << 20)); own.close()";
    let sent = site.sent_by(|| run(site.host.command("python3").args(["-c", client])).map(drop))?;
    assert!(sent.iter().any(|&sent| sent > 5000) && sent.iter().any(|&sent| sent < 20), "{sent:?}");
    // Without the first path all packets take the second one; when it is back, both.
    site.ip("link set up1 down")?;
    let routes = site.ip("route show")?;
    assert!(routes.contains("nexthop via 10.11.0.2 dev up1 weight 1 dead linkdown"), "{routes}");
    assert!(site.gateway.show("routes")?.contains("\tnexthop via 10.11.0.2 dev up1 weight 1 dead linkdown\n"));
    for (prefix, is_own) in [("10.9.0.", false), ("2001:db8:9::", false), ("10.9.0.", true)] {
        let [first, second] = site.sent_by(|| site.pings(prefix, is_own))?;
        assert!(first == 0 && second >= 64, "{prefix}: {first} {second}");
    }
    site.ip("link set up1 up")?;
    let sent = site.sent_by(|| site.pings("10.9.0.", false))?;
    assert!(sent.iter().all(|&sent| sent >= 10), "{sent:?}");
    // Sockets that are bound to the link of the second path take that path.
    let ping = "for n in $(seq 20); do ping -n -q -c 1 -W 5 -I up2 10.9.0.$n || exit 1; done";
    let mut exec = site.netns.command(fatpath());
    exec.args(["exec", "--instance", "router", "--", "sh", "-c", ping]).env("FATPATH_RUNDIR", site.scratch.path());
    let [first, second] = site.sent_by(|| run(&mut exec).map(drop))?;
    assert!(first < 5 && second >= 20, "{first} {second}");
    // The whole IPv4 route goes with one of its links; an IPv6 route has the other path.
    site.ip("link del up1")?;
    assert!(!site.ip("route show")?.contains("10.9.0.0/24"));
    site.pings("2001:db8:9::", false)?;
    Ok(())
}

/// Datagrams from one address to another have one path, or one for each source port.
fn ports() -> Outcome {
    let site = Site::new()?;
    for far in &site.far {
        far.sh("ping -n -q -c 1 -W 5 10.1.0.2")?;
    }
    let send = "import socket
for port in range(64):
    own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); own.bind(('10.1.0.2', 5000 + port)); own.sendto(b'x', ('10.9.0.3', 9))";
    let sent = |site: &Site| {
        site.sent_by(|| {
            run(site.host.command("python3").args(["-c", send]))?;
            // The last of them are still on their way.
            std::thread::sleep(Duration::from_millis(300));
            Ok(())
        })
    };
    let by_addresses = sent(&site)?;
    assert!(
        by_addresses.iter().any(|&sent| sent >= 64) && by_addresses.iter().any(|&sent| sent < 5),
        "{by_addresses:?}"
    );
    let mut exec = site.netns.command(fatpath());
    exec.args(["exec", "--instance", "router", "--", "sysctl", "-w", "net.ipv4.fib_multipath_hash_policy=1"]);
    run(exec.env("FATPATH_RUNDIR", site.scratch.path()))?;
    let by_ports = sent(&site)?;
    assert!(by_ports.iter().all(|&sent| sent >= 10), "{by_ports:?}");
    Ok(())
}

/// A saved route has both paths, also while one is dead; so has one that was not saved.
fn kept() -> Outcome {
    let (scratch, far) = (Scratch::new()?, Netns::new("far")?);
    let netns = two_links("ours", &far)?;
    let node = Node { scratch: &scratch, netns: &netns, name: "ours" };
    let file = scratch.file("ours.toml");
    fs::write(&file, with_workers(LINKS))?;
    let state = scratch.file("state");
    let words = ["--config", &file.display().to_string(), "--state", &state.display().to_string()].map(str::to_owned);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut gateway = node.start(&words)?;
    for words in [
        "addr add 10.1.0.1/24 dev eth0",
        "addr add 10.2.0.1/24 dev eth1",
        "addr add 2001:db8:1::1/64 dev eth0",
        "addr add 2001:db8:2::1/64 dev eth1",
        "route add 10.9.0.0/24 nexthop via 10.1.0.9 nexthop via 10.2.0.9 weight 3",
        "route add 2001:db8:9::/48 nexthop via 2001:db8:1::9 nexthop via 2001:db8:2::9 weight 3",
    ] {
        node.ip(words)?;
    }
    node.sysctl("-w net.ipv4.fib_multipath_hash_policy=1")?;
    let routes = || -> Outcome<[String; 2]> {
        Ok([node.ip("route show 10.9.0.0/24")?, node.ip("-6 route show 2001:db8:9::/48")?])
    };
    let alive = |texts: [String; 2]| texts.map(|text| text.replace(" dead linkdown", ""));
    // A link that was down has no IPv6 address when it is up again, and its path is there.
    for (change, is_saved) in [
        ("link set eth1 up", true),
        ("link set eth1 down", false),
        ("link set eth1 down", true),
        ("link set eth1 up", true),
        ("addr del 10.2.0.1/24 dev eth1", true),
    ] {
        node.ip(change)?;
        let before = routes()?;
        assert!(before.iter().all(|text| text.matches("nexthop").count() == 2), "{change}: {before:?}");
        assert_eq!(before[0].contains("dead linkdown"), !change.ends_with("up"), "{change}: {before:?}");
        if is_saved {
            node.save()?;
        }
        gateway.signal(Signal::TERM)?;
        gateway.wait(PATIENCE)?;
        gateway = node.start(&words)?;
        // The file sets links up.
        assert_eq!(alive(routes()?), alive(before), "{change}, saved: {is_saved}");
        assert_eq!(node.sysctl("-n net.ipv4.fib_multipath_hash_policy")?, "1\n");
    }
    // `ip route get` has the policy that was restored.
    let gateways = || -> Outcome<usize> {
        let found = (5000..5032).map(|port| {
            let text = node.ip(&format!("route get 10.9.0.1 from 10.1.0.1 ipproto udp sport {port} dport 9"))?;
            Ok(text.split_whitespace().skip_while(|word| *word != "via").nth(1).unwrap_or_default().to_owned())
        });
        Ok(found.collect::<Outcome<HashSet<String>>>()?.len())
    };
    assert_eq!(gateways()?, 1, "one path is dead");
    node.ip("addr add 10.2.0.1/24 dev eth1")?;
    assert_eq!(
        gateways()?,
        2,
        "{:?} {}",
        routes()?,
        node.ip("route get 10.9.0.1 from 10.1.0.1 ipproto udp sport 5000 dport 9")?
    );
    Ok(())
}

/// A route has as many paths as a message has room for; only unicast routes have several.
fn limited() -> Outcome {
    let (scratch, far) = (Scratch::new()?, Netns::new("far")?);
    let netns = two_links("ours", &far)?;
    let _gateway = Gateway::start(&netns, &scratch, "ours", LINKS)?;
    let sh = |script: &str| run(exec(&netns, "ours").args(["-c", script]).env("FATPATH_RUNDIR", scratch.path()));
    sh("ip addr add 2001:db8:1::1/64 dev eth0 nodad; ip addr add 10.1.0.1/24 dev eth0")?;
    sh("for n in $(seq 100); do ip -6 route append 2001:db8:9::/48 via 2001:db8:1::1:$n || exit 1; done")?;
    let refused = |words: &str| sh(&format!("{words} 2>&1 || true"));
    let one_more = refused("ip -6 route append 2001:db8:9::/48 via 2001:db8:1::2:1")?;
    assert!(one_more.contains("fatpath has at most 100 paths of a route"), "{one_more}");
    assert_eq!(sh("ip -6 route show 2001:db8:9::/48")?.matches("nexthop via").count(), 100);
    let hops: String = (1..=101).map(|n| format!(" nexthop via 10.1.0.{}", n + 1)).collect();
    let many = refused(&format!("ip route add 10.9.0.0/24{hops}"))?;
    assert!(many.contains("fatpath has at most 100 paths of a route"), "{many}");
    for kind in ["blackhole", "unreachable", "prohibit", "throw", "local", "broadcast"] {
        for (to, hops) in [
            ("2001:db8:a::/48", "nexthop via 2001:db8:1::9 nexthop via 2001:db8:1::10"),
            ("10.9.1.0/24", "nexthop dev eth0 nexthop dev eth1"),
        ] {
            let text = refused(&format!("ip route add {kind} {to} {hops}"))?;
            assert!(
                text.contains("can not be specified for this route type") || text.contains("can not have multiple"),
                "{kind} {to}: {text}"
            );
        }
    }
    Ok(())
}
