//! Rules that select a table (`ip rule`): forwarded packets and sockets of the host side leave by the uplink of their rule.

use std::fmt::Write;

use libtest_mimic::Trial;
use system::{Gateway, Need, Netns, Outcome, Scratch, fatpath, run, trial, veth};

const NEEDS: &[Need] = &[Need::Namespaces, Need::PING];

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("rules/forwarded_packets_leave_by_the_uplink_of_their_rule", NEEDS, forwarded),
        trial("rules/sockets_of_the_host_side_obey", NEEDS, sockets),
        trial("rules/input_link_of_a_rule_may_come_later", NEEDS, later),
    ]
}

/// A gateway between a host, and two uplinks with a server each: 203.0.113.1 is behind the first alone, 203.0.113.2 behind the
/// second alone. The main table has a default route by the first one, table 100 by the second.
struct Site {
    gateway: Gateway,
    host: Netns,
    netns: Netns,
    _uplinks: [Netns; 2],
    scratch: Scratch,
}

/// The servers, by uplink.
const SERVERS: [(&str, &str); 2] = [("203.0.113.1", "2001:db8:f::1"), ("203.0.113.2", "2001:db8:f::2")];

impl Site {
    fn new() -> Outcome<Self> {
        let (scratch, host, netns) = (Scratch::new()?, Netns::new("host")?, Netns::new("gateway")?);
        netns.sh("for scope in all default; do echo 1 >/proc/sys/net/ipv6/conf/$scope/disable_ipv6; done")?;
        let uplinks = [Netns::new("first")?, Netns::new("second")?];
        veth((&netns, "lan"), (&host, "eth0"))?;
        host.sh(
            "ip addr add 10.1.0.2/24 dev eth0; ip addr add 10.1.0.3/24 dev eth0; ip route add default via 10.1.0.1
            ip addr add fd01::2/64 dev eth0 nodad; ip addr add fd01::3/64 dev eth0 nodad; ip route add default via fd01::1",
        )?;
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
        for (number, (uplink, (v4, v6))) in uplinks.iter().zip(SERVERS).enumerate() {
            let (at, link) = (11 + number, format!("up{}", number + 1));
            veth((&netns, &link), (uplink, "eth0"))?;
            uplink.sh(&format!(
                "ip addr add 10.{at}.0.2/24 dev eth0; ip addr add fd{at}::2/64 dev eth0 nodad
                ip addr add {v4}/32 dev lo; ip addr add {v6}/128 dev lo nodad
                ip route add default via 10.{at}.0.1; ip route add default via fd{at}::1"
            ))?;
            let table = ["", "table = 100\n"][number];
            for (to, via) in [("0.0.0.0/0", format!("10.{at}.0.2")), ("::/0", format!("fd{at}::2"))] {
                writeln!(config, "[[route]]\nto = \"{to}\"\nvia = \"{via}\"\n{table}")?;
            }
        }
        // A rule `not from` the host is about the servers' answers, too.
        writeln!(config, "[[route]]\nto = \"10.1.0.0/24\"\ndev = \"lan\"\ntable = 100\n")?;
        let gateway = Gateway::start(&netns, &scratch, "router", &config)?;
        Ok(Self { gateway, host, netns, _uplinks: uplinks, scratch })
    }

    /// Runs `ip` on the gateway.
    fn ip(&self, words: &str) -> Outcome<String> {
        let mut command = self.netns.command(fatpath());
        command.args(["ip", "--instance", "router"]).args(words.split_whitespace());
        run(command.env("FATPATH_RUNDIR", self.scratch.path()))
    }

    /// The uplinks whose servers answer pings with these options, from the host, or from the gateway's own sockets.
    fn answers(&self, is_own: bool, options: &str) -> Outcome<Vec<usize>> {
        let ping = |server: &str| format!("ping -n -q -c 1 -W 2 {options} {server} >/dev/null 2>&1");
        let is_v6 = options.contains(':') || options.contains("-6");
        let servers = SERVERS.map(|(v4, v6)| if is_v6 { v6 } else { v4 });
        let script = servers.map(|server| format!("if {}; then echo y; else echo n; fi", ping(server))).join("; ");
        let printed = if is_own {
            let mut exec = self.netns.command(fatpath());
            exec.args(["exec", "--instance", "router", "--", "sh", "-c", &script]);
            run(exec.env("FATPATH_RUNDIR", self.scratch.path()))?
        } else {
            self.host.sh(&script)?
        };
        Ok(printed.lines().zip(1..).filter(|(line, _)| *line == "y").map(|(_, number)| number).collect())
    }
}

/// Each rule sends some packets by the second uplink; the others keep the first.
fn forwarded() -> Outcome {
    let site = Site::new()?;
    let [first, second] = ["-I 10.1.0.2", "-I 10.1.0.3"];
    assert_eq!([site.answers(false, first)?, site.answers(false, second)?], [[1], [1]]);
    // By rule: the options of pings that it is about, and of others.
    let rules = [
        ("from 10.1.0.3 lookup 100", second, first),
        ("from 10.1.0.3/32 to 203.0.113.0/24 iif lan ipproto icmp lookup 100", second, first),
        ("not from 10.1.0.2 lookup 100", second, first),
        ("tos 0x10 lookup 100", "-Q 0x10", "-Q 0x08"),
        ("not iif lan lookup main", first, ""),
    ];
    for (rule, about, others) in rules {
        site.ip(&format!("rule add pref 500 {rule}"))?;
        if others.is_empty() {
            assert_eq!(site.answers(false, about)?, [1], "{rule}");
        } else {
            assert_eq!([site.answers(false, about)?, site.answers(false, others)?], [[2], [1]], "{rule}");
        }
        site.ip(&format!("rule del pref 500 {rule}"))?;
    }
    // Ports: UDP to a port without a socket is answered by an ICMP error of the server that it reaches.
    site.ip("rule add pref 500 ipproto udp dport 5000-5009 lookup 100")?;
    let probe = "import socket, sys
for server, port in [(server, port) for server in ('203.0.113.1', '203.0.113.2') for port in (5005, 5010)]:
    own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); own.settimeout(1); own.connect((server, port)); own.send(b'x')
    try: own.recv(1)
    except ConnectionRefusedError: print(server[-1], port)
    except OSError: pass
";
    assert_eq!(run(site.host.command("python3").args(["-c", probe]))?, "1 5010\n2 5005\n");
    site.ip("rule del pref 500")?;
    // Routes of the main table but its default one, then another table's (as wg-quick writes it).
    site.ip("rule add pref 500 lookup main suppress_prefixlength 0")?;
    site.ip("rule add pref 501 lookup 100")?;
    assert_eq!(site.answers(false, first)?, [2]);
    site.host.sh("ping -n -q -c 1 -W 2 10.11.0.2")?;
    // The rule between is passed over.
    site.ip("rule add pref 499 from 10.1.0.2 goto 600")?;
    assert_eq!([site.answers(false, first)?, site.answers(false, second)?], [[2], [2]], "an unresolved goto");
    assert!(site.ip("rule show")?.contains("goto 600 [unresolved]"));
    site.ip("rule add pref 600 nop")?;
    assert_eq!([site.answers(false, first)?, site.answers(false, second)?], [[1], [2]]);
    let trace = site.gateway.show("drops")?;
    // IPv6.
    site.ip("-6 rule add pref 500 from fd01::3 lookup 100")?;
    assert_eq!([site.answers(false, "-I fd01::2")?, site.answers(false, "-I fd01::3")?], [[1], [2]], "{trace}");
    Ok(())
}

/// The kernel of the host side chooses addresses and devices by the same rules.
fn sockets() -> Outcome {
    let site = Site::new()?;
    assert_eq!(site.answers(true, "")?, [1]);
    site.ip("rule add pref 500 from 10.12.0.1 lookup 100")?;
    site.ip("-6 rule add pref 500 from fd12::1 lookup 100")?;
    assert_eq!([site.answers(true, "-I 10.11.0.1")?, site.answers(true, "-I 10.12.0.1")?], [[1], [2]]);
    assert_eq!([site.answers(true, "-I fd11::1")?, site.answers(true, "-I fd12::1")?], [[1], [2]]);
    site.ip("rule del pref 500")?;
    // Packets of the node itself come by `lo`; the source is that of the second uplink.
    site.ip("rule add pref 500 iif lo to 203.0.113.0/24 lookup 100")?;
    assert_eq!([site.answers(true, "")?, site.answers(false, "-I 10.1.0.2")?], [[2], [1]]);
    site.ip("rule del pref 500")?;
    assert_eq!(site.answers(true, "")?, [1]);
    // An error reaches the socket as one of its call.
    site.ip("rule add pref 500 to 203.0.113.0/24 prohibit")?;
    let mut exec = site.netns.command(fatpath());
    exec.args(["exec", "--instance", "router", "--", "sh", "-c", "ping -n -c 1 -W 2 203.0.113.1 2>&1; echo code $?"]);
    let printed = run(exec.env("FATPATH_RUNDIR", site.scratch.path()))?;
    assert!(printed.contains("check your local firewall rules") && printed.contains("code 2"), "{printed}");
    site.ip("rule del pref 500")?;
    // The local table behind others, as scripts of VRFs write it.
    site.ip("rule add pref 32765 lookup local")?;
    site.ip("rule del pref 0")?;
    assert_eq!(site.answers(true, "")?, [1]);
    site.host.sh("ping -n -q -c 1 -W 2 10.1.0.1")?;
    Ok(())
}

/// A rule by a link that does not exist matches nothing, and is about the link as soon as there is one.
fn later() -> Outcome {
    let site = Site::new()?;
    site.ip("rule add pref 500 iif late lookup 100")?;
    assert!(site.ip("rule show")?.contains("iif late [detached] lookup 100"));
    site.ip("link add late type vrf table 77")?;
    assert!(site.ip("rule show")?.contains("iif late lookup 100"));
    site.ip("link del late")?;
    assert!(site.ip("rule show")?.contains("iif late [detached] lookup 100"));
    assert_eq!(site.answers(false, "-I 10.1.0.2")?, [1]);
    // Rules are saved with the state.
    drop(site.gateway);
    Ok(())
}
