//! ILA: two hosts in SIR space, and two gateways that translate between SIR and ILA addresses; mappings by `ip ila` and
//! by file.

use std::fs;
use std::time::Duration;

use libtest_mimic::Trial;
use rustix::process::Signal;
use system::{Gateway, Need, Netns, Outcome, Process, Scratch, run, transfer, trial, veth, wait_until};

use crate::ip::exec;
use crate::router::{A_V6, B_V6, host};
use crate::state;

const PATIENCE: Duration = Duration::from_secs(20);

/// Changes mappings by netlink, in ways that `ip ila` does not have.
const CLIENT_OF_NETLINK: &str = include_str!("ila_client.py");

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("ila/tcp_crosses_two_translators_in_each_mode", &[Need::Namespaces], cross),
        trial("ila/connection_goes_on_while_its_identifier_moves", &[Need::Namespaces, Need::PYTHON], moves),
        trial("ila/ip_ila_adds_deletes_and_lists_mappings", &[Need::Namespaces], by_ip),
        trial("ila/file_replaces_mappings_as_a_whole", &[Need::Namespaces], by_file),
        trial("ila/routes_translate_for_sockets_of_two_nodes", &[Need::Namespaces, Need::Tun, Need::PYTHON], by_routes),
        trial(
            "ila/replacements_cost_no_packet_and_cause_no_error",
            &[Need::Namespaces, Need::PING, Need::PYTHON],
            replaced,
        ),
        trial("ila/mapping_of_one_address_moves_alone", &[Need::Namespaces, Need::PING, Need::PYTHON], of_address),
        trial("ila/blackhole_takes_what_no_mapping_translates", &[Need::Namespaces, Need::PING], blackhole),
        trial("ila/replaced_mappings_are_restored_after_a_kill", &[Need::Namespaces, Need::Tun, Need::PYTHON], kept),
        trial("ila/events_name_added_replaced_and_removed_mappings", &[Need::Namespaces, Need::PYTHON], events),
        trial("ila/many_mappings_are_loaded_without_lost_packets", &[Need::Namespaces, Need::PING, Need::PYTHON], many),
    ]
}

/// A gateway between a host's network and the other gateway. Only the locator of the other host has a route.
fn config(own: u8, more: &str) -> String {
    let peer = 3 - own;
    let links = format!(
        "[[link]]\nname = \"lan0\"\nkind = \"packet\"\ninterface = \"lan0\"\naddresses = [\"10.{own}.0.1/24\", \"fd0{own}::1/64\"]\n\n\
         [[link]]\nname = \"wan0\"\nkind = \"packet\"\ninterface = \"wan0\"\naddresses = [\"fd99::{own}/64\"]\n\n\
         [[route]]\nto = \"fd1{peer}::/64\"\nvia = \"fd99::{peer}\"\n\n"
    );
    format!("{more}{links}")
}

/// Mappings of gateway `own`: to the other host's locator, and from the own host's.
fn mappings(own: u8, mode: &str) -> String {
    let peer = 3 - own;
    let mapping = |from: String, to: String, dev: &str| {
        format!(
            "[[ila]]\nloc_match = \"{from}:0:0:0\"\nloc = \"{to}:0:0:0\"\ndev = \"{dev}\"\ncsum-mode = \"{mode}\"\n\n"
        )
    };
    let out = mapping(format!("fd0{peer}"), format!("fd1{peer}"), "lan0");
    let back = mapping(format!("fd1{own}"), format!("fd0{own}"), "wan0");
    format!("{out}{back}")
}

/// A namespace whose kernel leaves its interfaces to a gateway.
pub(crate) fn gateway_netns(role: &str) -> Outcome<Netns> {
    let netns = Netns::new(role)?;
    netns.sh("for scope in all default; do echo 1 >/proc/sys/net/ipv6/conf/$scope/disable_ipv6; done")?;
    Ok(netns)
}

fn cross() -> Outcome {
    let scratch = Scratch::new()?;
    let (a, b) = (Netns::new("a")?, Netns::new("b")?);
    let (left, right) = (gateway_netns("left")?, gateway_netns("right")?);
    veth((&left, "wan0"), (&right, "wan0"))?;
    host(&a, &left, "lan0", 1)?;
    host(&b, &right, "lan0", 2)?;
    let start = |netns: &Netns, name: &str, own: u8| Gateway::start(netns, &scratch, name, &config(own, ""));
    let gateways = [start(&left, "left", 1)?, start(&right, "right", 2)?];
    for (mode, sign) in [
        ("neutral-map-auto", ""),
        ("no-action", ""),
        ("adj-transport", ""),
        ("adj-transport", "ila-adj-transport = \"rfc1624\"\n"),
    ] {
        for (gateway, own) in gateways.iter().zip([1, 2]) {
            gateway.reload(&format!("{}{}", config(own, sign), mappings(own, mode)))?;
            let is_loaded = || gateway.show("ila").is_ok_and(|shown| shown.matches(&format!(" {mode} ")).count() == 2);
            wait_until("the mappings are there", PATIENCE, is_loaded)?;
        }
        let translated = || -> Outcome<Vec<u64>> { gateways.iter().map(translations).collect() };
        let before = translated()?;
        transfer(&a, (&b, B_V6.parse()?), 2 << 20)?;
        transfer(&b, (&a, A_V6.parse()?), 2 << 20)?;
        let after = translated()?;
        assert!(before.iter().zip(&after).all(|(before, after)| after > before), "{mode}: {before:?} {after:?}");
    }
    Ok(())
}

/// Program that returns received bytes, on one connection.
pub(crate) const ECHO: &str = "import socket
listener = socket.socket(socket.AF_INET6)
listener.bind(('::', 7))
listener.listen()
peer, _ = listener.accept()
while data := peer.recv(1 << 16):
    peer.sendall(data)
";

/// Program that sends blocks to the task, compares the returned ones, and prints their number.
pub(crate) const CLIENT: &str = "import socket
server = socket.create_connection(('2001:db8:0:a::1', 7), 20)
for number in range(1 << 30):
    block = bytes((number + at) % 251 for at in range(5000))
    server.sendall(block)
    got = b''
    while len(got) < len(block):
        more = server.recv(1 << 16)
        assert more, 'the connection has ended'
        got += more
    assert got == block, f'block {number} differs'
    print(number, flush=True)
";

/// The example of `docs/ila.md`: a task moves to another node, the mapping of the client's node follows, and its
/// connection goes on.
fn moves() -> Outcome {
    let scratch = Scratch::new()?;
    let (switch, task, client) = (Netns::new("switch")?, Netns::new("task")?, Netns::new("client")?);
    switch.sh("ip link add br0 type bridge; ip link set br0 up")?;
    let mut gateways = Vec::new();
    for (name, host, interface) in [("first", &task, "eth1"), ("second", &task, "eth2"), ("client", &client, "eth0")] {
        let netns = gateway_netns(name)?;
        veth((&switch, name), (&netns, "wan0"))?;
        switch.sh(&format!("ip link set {name} master br0"))?;
        veth((host, interface), (&netns, "lan0"))?;
        let example = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../examples/ila/{name}.toml"));
        let gateway = Gateway::start(&netns, &scratch, name, &fs::read_to_string(example)?)?;
        gateways.push((gateway, netns));
    }
    let (first, second, of_client) = (&gateways[0].0, &gateways[1].0, &gateways[2].0);
    let task_is_at = |from: &str, interface: &str| {
        task.sh(&format!(
            "ip addr flush dev {from} scope global; ip addr add 2001:db8:0:a::1/64 dev {interface} nodad
            ip route replace default via 2001:db8:0:a::ffff dev {interface}"
        ))
    };
    task_is_at("eth2", "eth1")?;
    client.sh("ip addr add fd0c::2/64 dev eth0 nodad; ip route add default via fd0c::1")?;
    let _echo = Process::spawn(task.command("python3").args(["-c", ECHO]), &scratch)?;
    // A connection to a port that is not open yet would be refused.
    let listens = || task.sh("ss -Hltn 'sport = 7'").is_ok_and(|printed| !printed.is_empty());
    wait_until("the task listens", PATIENCE, listens)?;
    let mut talk = Process::spawn(client.command("python3").args(["-c", CLIENT]), &scratch)?;
    let goes_on = |talk: &mut Process, what: &str| {
        let before = talk.output().lines().count();
        wait_until(what, PATIENCE, || talk.output().lines().count() > before + 20 || !talk.is_running()).and_then(
            |()| {
                let printed = talk.output();
                if talk.is_running() { Ok(()) } else { Err(format!("{what}: {printed}").into()) }
            },
        )
    };
    goes_on(&mut talk, "blocks come back by the first node")?;
    assert!(translations(first)? > 20 && translations(of_client)? > 20);
    assert_eq!(translations(second)?, 0);
    task_is_at("eth1", "eth2")?;
    let sh =
        |script: &str| run(exec(&gateways[2].1, "client").args(["-c", script]).env("FATPATH_RUNDIR", scratch.path()));
    sh("ip ila del loc_match 2001:db8:0:a dev lan0
        ip ila add loc_match 2001:db8:0:a loc fd00:0:0:2 dev lan0 csum-mode neutral-map-auto")?;
    goes_on(&mut talk, "blocks come back by the second node")?;
    let by_first = translations(first)?;
    goes_on(&mut talk, "blocks come back")?;
    assert!(translations(second)? > 20);
    assert_eq!(translations(first)?, by_first, "nothing comes to the first node any more");
    Ok(())
}

/// Packets that a gateway has translated.
fn translations(gateway: &Gateway) -> Outcome<u64> {
    let shown = gateway.show("counters")?;
    let counted = shown.lines().find_map(|line| line.strip_prefix("IlaTranslated"));
    Ok(counted.unwrap_or("0").trim().parse()?)
}

/// One link, and no host.
const ALONE: &str = "[[link]]\nname = \"lan0\"\nkind = \"packet\"\ninterface = \"lan0\"\n";

fn alone(name: &str, toml: &str) -> Outcome<(Scratch, Netns, Netns, Gateway)> {
    let scratch = Scratch::new()?;
    let (netns, other) = (gateway_netns(name)?, Netns::new("other")?);
    veth((&netns, "lan0"), (&other, "eth0"))?;
    let gateway = Gateway::start(&netns, &scratch, name, toml)?;
    Ok((scratch, netns, other, gateway))
}

fn by_ip() -> Outcome {
    let (scratch, netns, _other, gateway) = alone("byip", ALONE)?;
    let sh = |script: &str| run(exec(&netns, "byip").args(["-c", script]).env("FATPATH_RUNDIR", scratch.path()));
    sh("ip ila add loc_match 2001:db8:0:1 loc fd00:0:0:7")?;
    sh("ip ila add loc_match 2001:db8:0:1 loc fd00:0:0:8 dev lan0 csum-mode neutral-map ident-type luid")?;
    let refused = sh("ip ila add loc_match 2001:db8:0:1 loc fd00:0:0:9 dev lan0").expect_err("there is one");
    assert!(refused.message().is_some_and(|printed| printed.contains("File exists")), "{refused:?}");
    let want = "\
2001:db8:0:1        fd00:0:0:8          lan0            neutral-map         luid
2001:db8:0:1        fd00:0:0:7          *               no-action           use-format
";
    assert_eq!(gateway.show("ila")?, want);
    // Some versions print wrong locators; keywords and devices are right.
    let listed = sh("ip ila list")?;
    let words: Vec<Vec<&str>> = listed.lines().map(|line| line.split_whitespace().skip(2).collect()).collect();
    assert_eq!(words.len(), 2, "{listed}");
    assert!(listed.contains("lan0") && listed.contains("neutral-map") && listed.contains("use-format"), "{listed}");
    sh("ip ila del loc_match 2001:db8:0:1 dev lan0")?;
    sh("ip ila del loc_match 2001:db8:0:1 dev lan0")?;
    assert_eq!(gateway.show("ila")?.lines().collect::<Vec<_>>(), [want.lines().nth(1).unwrap_or_default()]);
    let lines: String = (0..5000).map(|n| format!("ila add loc_match 2001:db8:1:{n:x} loc fd00:0:1:{n:x}\n")).collect();
    fs::write(scratch.file("batch"), lines)?;
    sh(&format!("ip -batch {}", scratch.file("batch").display()))?;
    assert_eq!(gateway.show("ila")?.lines().count(), 5001);
    assert_eq!(sh("ip ila list")?.lines().count(), 5001);
    // The mappings of a deleted device are removed.
    sh("ip link add red type vrf table 10; ip ila add loc_match 1:2:3:4 loc 5:6:7:8 dev red")?;
    assert!(gateway.show("ila")?.contains("red"));
    sh("ip link del red")?;
    assert_eq!(gateway.show("ila")?.lines().count(), 5001);
    Ok(())
}

fn by_file() -> Outcome {
    let mapping =
        |n: u32, more: &str| format!("[[ila]]\nloc_match = \"2001:db8:0:{n:x}\"\nloc = \"fd00:0:0:{n:x}\"\n{more}");
    let (scratch, netns, _other, gateway) = alone("byfile", &format!("{ALONE}{}{}", mapping(1, ""), mapping(2, "")))?;
    assert_eq!(gateway.show("ila")?.lines().count(), 2);
    let sh = |script: &str| run(exec(&netns, "byfile").args(["-c", script]).env("FATPATH_RUNDIR", scratch.path()));
    sh("ip ila add loc_match 9:9:9:9 loc 8:8:8:8; ip ila del loc_match 2001:db8:0:1")?;
    let is_shown = |want: &str| gateway.show("ila").is_ok_and(|shown| shown == want);
    let many: String = (2..4).map(|n| mapping(n, "dev = \"lan0\"\ncsum-mode = \"neutral-map\"\n")).collect();
    gateway.reload(&format!("{ALONE}{many}"))?;
    let want = "\
2001:db8:0:2        fd00:0:0:2          lan0            neutral-map         use-format
2001:db8:0:3        fd00:0:0:3          lan0            neutral-map         use-format
";
    wait_until("the file's mappings are there alone", PATIENCE, || is_shown(want))?;
    // An invalid file changes nothing.
    gateway.reload(&format!("{ALONE}{}", mapping(7, "dev = \"wan9\"\n")))?;
    let is_refused = || gateway.log().contains("no link is named wan9");
    wait_until("a wrong file is refused", PATIENCE, is_refused)?;
    assert!(is_shown(want));
    gateway.reload(ALONE)?;
    wait_until("no mapping is there", PATIENCE, || is_shown(""))
}

/// A node with a host side and without ILA: its SIR address is on a separate link.
fn node(own: u8) -> String {
    format!(
        "[[link]]\nname = \"wan0\"\nkind = \"packet\"\ninterface = \"wan0\"\naddresses = [\"fd99::{own}/64\"]\n\n\
         [[link]]\nname = \"sir0\"\nkind = \"tap\"\naddresses = [\"3333:0:0:1:2000:0:0:{own}/128\"]\n\n"
    )
}

/// The routes of node `own`: to the other node's locator, and from its own, which is fd0N. A prefix of 67 bits leaves
/// the C bit open.
fn routes(own: u8, csum_mode: &str) -> String {
    let peer = 3 - own;
    format!(
        "ip -6 route replace fd0{peer}::/64 via fd99::{peer} dev wan0
         ip -6 route replace 3333:0:0:1:2000:0:0:{peer}/128 encap ila fd0{peer}:0:0:0 csum-mode {csum_mode} dev wan0 \
            src 3333:0:0:1:2000:0:0:{own}
         ip -6 route replace local fd0{own}:0:0:0:2000::/67 encap ila 3333:0:0:1 csum-mode {csum_mode} ident-type luid \
            hook-type input dev sir0 table local
        "
    )
}

/// Sockets of two nodes communicate by their SIR addresses, and packets on the wire have ILA addresses, by routes
/// without mappings or hooks.
fn by_routes() -> Outcome {
    let scratch = Scratch::new()?;
    let (left, right) = (gateway_netns("left")?, gateway_netns("right")?);
    veth((&left, "wan0"), (&right, "wan0"))?;
    let nodes = [("left", &left, 1), ("right", &right, 2)];
    let mut gateways = Vec::new();
    for (name, netns, own) in nodes {
        gateways.push(Gateway::start(netns, &scratch, name, &node(own))?);
    }
    let sh = |at: usize, script: &str| {
        let (name, netns, _) = nodes[at];
        run(exec(netns, name).args(["-c", script]).env("FATPATH_RUNDIR", scratch.path()))
    };
    for csum_mode in ["no-action", "adj-transport", "neutral-map-auto", "neutral-map"] {
        for (at, (_, _, own)) in nodes.into_iter().enumerate() {
            sh(at, &routes(own, csum_mode))?;
        }
        let before = gateways.iter().map(translations).collect::<Outcome<Vec<u64>>>()?;
        for size in [56, 1400, 4000] {
            // Fragments have no checksum that adj-transport could adjust, on Linux either.
            if size < 1500 || csum_mode != "adj-transport" {
                let ping = format!("ping -n -q -c 2 -i 0.05 -W 2 -s {size} 3333:0:0:1:2000:0:0:2");
                sh(0, &ping).map_err(|err| format!("{csum_mode} {size}: {err:?}\n{}", gateways[1].log()))?;
            }
        }
        let after = gateways.iter().map(translations).collect::<Outcome<Vec<u64>>>()?;
        assert!(
            before.iter().zip(&after).all(|(before, after)| *after >= before + 8),
            "{csum_mode}: {before:?} {after:?}"
        );
    }
    let _server = Process::spawn(
        exec(&right, "right").args(["-c", "exec python3 -c \"$0\"", SINK]).env("FATPATH_RUNDIR", scratch.path()),
        &scratch,
    )?;
    let listens = || sh(1, "ss -Hltn 'sport = 7'").is_ok_and(|printed| !printed.is_empty());
    wait_until("the server listens", PATIENCE, listens)?;
    for csum_mode in ["neutral-map", "no-action"] {
        for (at, (_, _, own)) in nodes.into_iter().enumerate() {
            sh(at, &routes(own, csum_mode))?;
        }
        run(exec(&left, "left")
            .args(["-c", "exec timeout 60 python3 -c \"$0\"", SOURCE])
            .env("FATPATH_RUNDIR", scratch.path()))
        .map_err(|err| format!("{csum_mode}: {err:?}\n{}", gateways[0].show("drops").unwrap_or_default()))?;
    }
    // The prefix does not contain a type, and the identifier is of type iid; Linux refuses both.
    sh(
        1,
        "ip -6 addr add 3333:0:0:1::9/128 dev sir0
        ip -6 route add local fd02:0:0:0::/64 encap ila 3333:0:0:1 hook-type input dev sir0 table local",
    )?;
    sh(0, "ip -6 route add 3333:0:0:1::9/128 encap ila fd02:0:0:0 dev wan0 src 3333:0:0:1:2000:0:0:1")?;
    sh(0, "ping -n -q -c 2 -i 0.05 -W 2 3333:0:0:1::9")?;
    // No node has the locator: the socket gets an error with the SIR address.
    sh(0, "ip -6 route replace 3333:0:0:1:2000:0:0:9/128 encap ila fd09:0:0:0 dev wan0")?;
    let output = sh(0, "ping -n -c 1 -W 2 3333:0:0:1:2000:0:0:9 2>&1; true")?;
    assert!(output.contains("Address unreachable"), "{output}");
    Ok(())
}

/// Replies to each client with the number of bytes received.
const SINK: &str = "import socket
listener = socket.socket(socket.AF_INET6)
listener.bind(('3333:0:0:1:2000::2', 7))
listener.listen()
while True:
    peer, _ = listener.accept()
    got = 0
    while data := peer.recv(1 << 16):
        got += len(data)
    peer.sendall(str(got).encode())
    peer.close()
";

/// Sends 4 MiB, and prints the number of bytes that the other end counted.
const SOURCE: &str = "import socket
peer = socket.create_connection(('3333:0:0:1:2000::2', 7), 20)
peer.sendall(bytes(4 << 20))
peer.shutdown(socket.SHUT_WR)
assert int(peer.recv(100)) == 4 << 20
";

/// Two hosts, each behind a gateway. The left one has routes to two locators of the right one, and the right one has mappings of both.
struct TwoLocators {
    scratch: Scratch,
    a: Netns,
    b: Netns,
    left: Gateway,
    right: Gateway,
    left_netns: Netns,
    _right_netns: Netns,
}

/// Route of the left gateway to the second locator, and mapping of the right one.
const SECOND_ROUTE: &str = "[[route]]\nto = \"fd13::/64\"\nvia = \"fd99::2\"\n\n";
const SECOND_MAPPING: &str =
    "[[ila]]\nloc_match = \"fd13:0:0:0\"\nloc = \"fd02:0:0:0\"\ndev = \"wan0\"\ncsum-mode = \"neutral-map-auto\"\n\n";

impl TwoLocators {
    /// `of_left`: more of the left gateway's file.
    fn new(of_left: &str) -> Outcome<Self> {
        let scratch = Scratch::new()?;
        let (a, b) = (Netns::new("a")?, Netns::new("b")?);
        let (left_netns, right_netns) = (gateway_netns("left")?, gateway_netns("right")?);
        veth((&left_netns, "wan0"), (&right_netns, "wan0"))?;
        host(&a, &left_netns, "lan0", 1)?;
        host(&b, &right_netns, "lan0", 2)?;
        let mode = "neutral-map-auto";
        let left = format!("{}{SECOND_ROUTE}{of_left}", config(1, ""));
        let left = Gateway::start(&left_netns, &scratch, "left", &left)?;
        let right = format!("{}{}{SECOND_MAPPING}", config(2, ""), mappings(2, mode));
        let right = Gateway::start(&right_netns, &scratch, "right", &right)?;
        fs::write(scratch.file("ila_client.py"), CLIENT_OF_NETLINK)?;
        Ok(Self { scratch, a, b, left, right, left_netns, _right_netns: right_netns })
    }

    /// A command of the client on the left gateway.
    fn client(&self, words: &str) -> std::process::Command {
        let mut command = exec(&self.left_netns, "left");
        let script = format!("exec python3 {} {words}", self.scratch.file("ila_client.py").display());
        command.args(["-c", &script]).env("FATPATH_RUNDIR", self.scratch.path());
        command
    }

    fn sh(&self, script: &str) -> Outcome<String> {
        run(exec(&self.left_netns, "left").args(["-c", script]).env("FATPATH_RUNDIR", self.scratch.path()))
    }

    /// Whether `count` pings of the first host are answered, and nothing else comes.
    fn pings(&self, count: u32, to: &str) -> Outcome<bool> {
        let printed = self.a.sh(&format!("ping -n -q -i 0.002 -c {count} -W 2 {to} || true"))?;
        Ok(printed.contains(&format!("{count} packets transmitted, {count} received, 0% packet loss")))
    }
}

/// Mappings of the left gateway, to the first locator.
fn left_mappings() -> String {
    mappings(1, "neutral-map-auto")
}

fn replaced() -> Outcome {
    let pair = TwoLocators::new(&left_mappings())?;
    assert!(pair.pings(20, B_V6)?, "{}", pair.left.log());
    let index = pair.sh("ip -o link show dev lan0 | cut -d: -f1")?;
    let index = index.trim();
    // The mapping of the locator, and then one of the address.
    for more in ["", " identifier 0:0:0:2"] {
        run(&mut pair.client(&format!("set fd02:0:0:0 fd12:0:0:0 dev {index}{more} csum-mode 3")))?;
        let words = format!("alternate fd02:0:0:0 fd12:0:0:0 fd13:0:0:0 dev {index}{more} csum-mode 3");
        let mut changes = Process::spawn(&mut pair.client(&words), &pair.scratch)?;
        let count = |changes: &Process| changes.output().lines().last().and_then(|line| line.parse().ok()).unwrap_or(0);
        wait_until("mappings are replaced", PATIENCE, || count(&changes) > 0 || !changes.is_running())?;
        let mut rounds = 0;
        while rounds < 2 || count(&changes) < 4000 {
            assert!(changes.is_running(), "{}", changes.output());
            assert!(pair.pings(500, B_V6)?, "{more}, round {rounds}, {} replacements", count(&changes));
            rounds += 1;
        }
        changes.signal(Signal::KILL)?;
        changes.wait(PATIENCE)?;
    }
    // Both locators were used.
    let drops = pair.left.show("drops")?;
    assert_eq!(drops.lines().filter(|line| line.contains("NoRoute")).count(), 0, "{drops}");
    assert_eq!(pair.left.show("ila")?.lines().count(), 3);
    Ok(())
}

fn of_address() -> Outcome {
    let third = "[[ila]]\nloc_match = \"fd02:0:0:0\"\nidentifier = \"0:0:0:3\"\nloc = \"fd13:0:0:0\"\ncsum-mode = \"neutral-map-auto\"\n\n";
    let pair = TwoLocators::new(&format!("{}{third}", left_mappings()))?;
    pair.b.sh("ip addr add fd02::3/64 dev eth0 nodad")?;
    let shown = pair.left.show("ila")?;
    let want =
        "fd02:0:0:0          fd13:0:0:0          *               neutral-map-auto    use-format identifier 0:0:0:3";
    assert!(shown.lines().any(|line| line == want), "{shown}");
    assert!(pair.pings(10, B_V6)? && pair.pings(10, "fd02::3")?);
    // Without the second locator's mapping at the right gateway the second address alone is lost.
    pair.right.reload(&format!("{}{}", config(2, ""), mappings(2, "neutral-map-auto")))?;
    let is_loaded = || pair.right.show("ila").is_ok_and(|shown| shown.lines().count() == 2);
    wait_until("the mapping is gone", PATIENCE, is_loaded)?;
    assert!(pair.pings(10, B_V6)? && !pair.pings(3, "fd02::3")?);
    // It moves to the first locator, and then to the mapping of all.
    run(&mut pair.client("replace fd02:0:0:0 fd12:0:0:0 identifier 0:0:0:3 csum-mode 3"))?;
    assert!(pair.pings(10, B_V6)? && pair.pings(10, "fd02::3")?);
    run(&mut pair.client("set fd02:0:0:0 fd19:0:0:0 identifier 0:0:0:3 csum-mode 3"))?;
    assert!(pair.pings(10, B_V6)? && !pair.pings(3, "fd02::3")?);
    run(&mut pair.client("del fd02:0:0:0 identifier 0:0:0:3"))?;
    assert!(pair.pings(10, B_V6)? && pair.pings(10, "fd02::3")?);
    assert!(!pair.left.show("ila")?.contains("identifier"));
    Ok(())
}

/// A default route leads untranslated packets to the underlay, and a route `blackhole` to the prefix of the domain keeps them from it.
fn blackhole() -> Outcome {
    let default = "[[route]]\nto = \"::/0\"\nvia = \"fd99::2\"\n\n";
    let back = "[[ila]]\nloc_match = \"fd11:0:0:0\"\nloc = \"fd01:0:0:0\"\ndev = \"wan0\"\ncsum-mode = \"neutral-map-auto\"\n\n";
    let pair = TwoLocators::new(&format!("{default}{back}"))?;
    let dropped = || -> Outcome<u64> {
        let shown = pair.left.show("drops")?;
        let counts = shown.lines().filter(|line| line.contains("Blackhole"));
        let counts = counts.flat_map(|line| line.split_whitespace().filter_map(|word| word.parse::<u64>().ok()));
        Ok(counts.max().unwrap_or(0))
    };
    // The right gateway delivers what leaks.
    assert!(pair.pings(5, B_V6)?);
    assert_eq!((translations(&pair.left)?, dropped()?), (5, 0), "replies alone are translated");
    pair.sh("ip -6 route add blackhole fd02::/32")?;
    let printed = pair.a.sh(&format!("ping -n -q -i 0.01 -c 5 -W 1 {B_V6} || true"))?;
    assert!(printed.contains("5 packets transmitted, 0 received, 100% packet loss"), "{printed}");
    assert_eq!((translations(&pair.left)?, dropped()?), (5, 5));
    pair.sh("ip ila add loc_match fd02:0:0:0 loc fd12:0:0:0 dev lan0 csum-mode neutral-map-auto")?;
    assert!(pair.pings(5, B_V6)?);
    assert_eq!((translations(&pair.left)?, dropped()?), (15, 5));
    // Another address of the domain, and the same one without its mapping.
    assert!(!pair.pings(1, "fd02:0:0:7::2")?);
    pair.sh("ip ila del loc_match fd02:0:0:0 dev lan0")?;
    assert!(!pair.pings(1, B_V6)?);
    assert_eq!((translations(&pair.left)?, dropped()?), (15, 7));
    Ok(())
}

fn kept() -> Outcome {
    let (scratch, netns) = (Scratch::new()?, Netns::new("x")?);
    let node = state::Node { scratch: &scratch, netns: &netns, name: "x" };
    fs::write(scratch.file("ila_client.py"), CLIENT_OF_NETLINK)?;
    let client = |words: &str| -> Outcome<Option<i32>> {
        let script = scratch.file("ila_client.py").display().to_string();
        let words = ["exec", "--instance", "x", "--", "python3", &script].into_iter().chain(words.split(' '));
        Ok(node.command(&words.collect::<Vec<_>>()).output()?.status.code())
    };
    let show = || run(&mut node.command(&["show", "ila", "--instance", "x"]));
    let (file, toml) = (scratch.file("x.state").display().to_string(), scratch.file("x.toml").display().to_string());
    let of_file = "[[ila]]\nloc_match = \"2001:db8:0:5\"\nloc = \"fd00:0:0:5\"\n";
    fs::write(&toml, of_file)?;
    let args = ["--state", &file, "-c", &toml, "--allow-links", "tun"];
    let process = node.start(&args)?;
    node.batch(
        "link add tun6 index 20 type tun\nila add loc_match 2001:db8:0:1 loc fd00:0:0:7\n\
         ila add loc_match 2001:db8:0:1 loc fd00:0:0:8 dev tun6\n",
    )?;
    let (exists, missing) = (Some(17), Some(2));
    let cases = [
        ("add 2001:db8:0:1 fd00:0:0:9", exists),
        ("replace 2001:db8:0:1 fd00:0:0:9 csum-mode 3", Some(0)),
        ("replace 2001:db8:0:1 fd00:0:0:a dev 20", Some(0)),
        ("replace 2001:db8:0:2 fd00:0:0:a", missing),
        ("add 2001:db8:0:1 fd00:0:0:b identifier 2000:0:0:7", Some(0)),
        ("add 2001:db8:0:1 fd00:0:0:b identifier 2000:0:0:7", exists),
        ("replace 2001:db8:0:1 fd00:0:0:b identifier 2000:0:0:8", missing),
        ("set 2001:db8:0:1 fd00:0:0:b identifier 2000:0:0:8", Some(0)),
        ("replace 2001:db8:0:1 fd00:0:0:c identifier 2000:0:0:8", Some(0)),
        ("set 2001:db8:0:1 fd00:0:0:d identifier 2000:0:0:9 dev 20", Some(0)),
        ("del 2001:db8:0:1 identifier 2000:0:0:7", Some(0)),
        ("replace 2001:db8:0:5 fd00:0:0:6", Some(0)),
    ];
    for (words, want) in cases {
        assert_eq!(client(words)?, want, "{words}");
    }
    let after = |locator: &str| {
        format!(
            "\
2001:db8:0:1        fd00:0:0:c          *               no-action           use-format identifier 2000:0:0:8
2001:db8:0:1        fd00:0:0:d          tun6            no-action           use-format identifier 2000:0:0:9
2001:db8:0:1        fd00:0:0:a          tun6            no-action           use-format
2001:db8:0:1        fd00:0:0:9          *               neutral-map-auto    use-format
2001:db8:0:5        {locator}          *               no-action           use-format
"
        )
    };
    assert_eq!(show()?, after("fd00:0:0:6"));
    // From the journal. The mapping of the file is as the file says.
    state::kill(process)?;
    let mut process = node.start(&args)?;
    assert_eq!(show()?, after("fd00:0:0:5"), "{}", process.output());
    // From the state.
    process.signal(Signal::TERM)?;
    assert!(process.wait(PATIENCE)?.success(), "{}", process.output());
    let process = node.start(&args)?;
    assert_eq!(show()?, after("fd00:0:0:5"), "{}", process.output());
    // The mappings of a device go with it.
    node.batch("link del tun6\nlink add tun6 index 20 type tun\n")?;
    let left: Vec<String> =
        after("fd00:0:0:5").lines().filter(|line| !line.contains("tun6")).map(str::to_owned).collect();
    assert_eq!(show()?.lines().collect::<Vec<_>>(), left);
    assert_eq!(client("add 2001:db8:0:1 fd00:0:0:a dev 20")?, Some(0));
    assert_eq!(node.ip("ila list")?.lines().count(), 4);
    drop(process);
    Ok(())
}

fn events() -> Outcome {
    let (scratch, netns, _other, _gateway) = alone("events", ALONE)?;
    fs::write(scratch.file("ila_client.py"), CLIENT_OF_NETLINK)?;
    let client = |words: &str| {
        let mut command = exec(&netns, "events");
        let script = format!("exec python3 {} {words}", scratch.file("ila_client.py").display());
        command.args(["-c", &script]).env("FATPATH_RUNDIR", scratch.path());
        command
    };
    let listener = Process::spawn(&mut client("events"), &scratch)?;
    wait_until("the client listens", PATIENCE, || listener.output().contains("listens"))?;
    run(&mut client("add 1:2:3:4 5:6:7:8"))?;
    run(&mut client("replace 1:2:3:4 5:6:7:9"))?;
    run(&mut client("add 1:2:3:4 5:6:7:a identifier 0:0:0:1"))?;
    run(&mut client("del 1:2:3:4 identifier 0:0:0:2"))?;
    run(&mut client("del 1:2:3:4"))?;
    let want = "listens
1 0x400 0005000600070008 all
1 0x100 0005000600070009 all
1 0x400 000500060007000a 0000000000000001
2 0x0 0005000600070009 all
";
    wait_until("the events are there", PATIENCE, || listener.output().lines().count() >= 5)?;
    assert_eq!(listener.output(), want);
    Ok(())
}

/// Mappings are loaded while pings pass. `FATPATH_ILA_MAPPINGS` is their number; the time of the load and those of the pings are printed.
fn many() -> Outcome {
    let count: usize = std::env::var("FATPATH_ILA_MAPPINGS").map_or(Ok(50_000), |count| count.parse())?;
    let pair = TwoLocators::new(&left_mappings())?;
    assert!(pair.pings(20, B_V6)?);
    let pings = format!("{}", 1500 + count / 300);
    let mut ping = pair.a.command("ping");
    ping.args(["-n", "-q", "-i", "0.002", "-c", &pings, "-W", "5", B_V6]);
    let mut ping = Process::spawn(&mut ping, &pair.scratch)?;
    let load = run(&mut pair.client(&format!("load {count}")))?;
    let is_during = ping.is_running();
    ping.wait(Duration::from_secs(120))?;
    let printed = ping.output();
    println!("{load}during all of it: {is_during}\n{printed}");
    assert!(printed.contains(&format!("{pings} packets transmitted, {pings} received")), "{printed}");
    assert_eq!(pair.left.show("ila")?.lines().count(), count + 2);
    assert_eq!(pair.client("load 1").status()?.code(), Some(17), "there is one");
    assert_eq!(pair.sh("ip ila list | wc -l")?.trim(), (count + 2).to_string());
    Ok(())
}
