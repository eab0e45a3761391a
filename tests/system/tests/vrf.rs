//! Two VRFs on one router, with equal addresses, between hosts that are kernels: the example `examples/vrf.toml`.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use rustix::process::Signal;
use system::{Gateway, Need, Netns, Outcome, Process, Scratch, fatpath, run, trial, wait_until};

const EXAMPLE: &str = include_str!("../../../examples/vrf.toml");
const TUNNELS: &str = include_str!("../../../examples/vrf.ip");

pub(crate) fn trials() -> Vec<Trial> {
    const SOCKETS: &[Need] = &[Need::Namespaces, Need::Tun, Need::PYTHON];
    vec![
        trial("vrf/two_with_equal_addresses_stay_apart", &[Need::Namespaces, Need::PING], apart),
        trial("vrf/exec_binds_programs_to_their_customer", SOCKETS, exec),
        trial("vrf/each_customer_has_a_tunnel_and_one_is_shaped", SOCKETS, tunnels),
    ]
}

/// The hosts of the two customers: the link of each to the router, and to its provider.
fn hosts(router: &Netns) -> Outcome<Vec<Netns>> {
    let roles = ["red-lan", "red-wan", "blue-lan", "blue-wan"];
    let mut hosts = Vec::new();
    for (at, role) in roles.into_iter().enumerate() {
        let host = Netns::new(role)?;
        let eth = format!("eth{}", at + 1);
        router.sh(&format!("ip link add {eth} type veth peer name eth0 netns {}", host.name()))?;
        router.sh(&format!("ip link set {eth} addrgenmode none up"))?;
        host.sh("ip link set lo up; ip link set eth0 up")?;
        if role.ends_with("lan") {
            host.sh("ip addr add 10.0.0.2/24 dev eth0; ip route add default via 10.0.0.1")?;
            host.sh("ip addr add fd00::2/64 dev eth0 nodad")?;
        } else {
            host.sh("ip addr add 192.0.2.254/24 dev eth0; ip route add 10.0.0.0/24 via 192.0.2.1")?;
        }
        hosts.push(host);
    }
    Ok(hosts)
}

fn apart() -> Outcome {
    let (scratch, router) = (Scratch::new()?, Netns::new("router")?);
    let hosts = hosts(&router)?;
    let [red_lan, red_wan, blue_lan, blue_wan] = &hosts[..] else { return Err("four hosts".into()) };
    // An address of red's provider that blue's provider does not have.
    red_wan.sh("ip addr add 203.0.113.9/32 dev lo")?;
    let gateway = Gateway::start(&router, &scratch, "router", EXAMPLE)?;
    for lan in [red_lan, blue_lan] {
        lan.sh("ping -n -q -c 1 -W 5 192.0.2.254")?;
        lan.sh("ping -n -q -c 1 -W 5 10.0.0.1; ping -n -q -c 1 -W 5 fd00::1")?;
        lan.sh("ping -n -q -c 3 -i 0.2 -W 5 -s 4000 10.0.0.1; ping -n -q -c 3 -i 0.2 -W 5 -s 4000 fd00::1")?;
    }
    red_lan.sh("ping -n -q -c 1 -W 5 203.0.113.9")?;
    assert!(blue_lan.sh("ping -n -q -c 2 -i 0.2 -W 1 203.0.113.9").is_err(), "blue reaches what red has");
    // Errors return to the sender, from the router's address in its VRF.
    let hops = red_lan.sh("ping -n -c 1 -W 5 -t 1 203.0.113.9 || true")?;
    assert!(hops.contains("From 10.0.0.1 icmp_seq=1 Time to live exceeded"), "{hops}");
    let none = blue_lan.sh("ping -n -c 1 -W 5 -6 2001:db8::9 || true")?;
    assert!(!none.contains("1 received"), "{none}");
    // Each VRF has only its own neighbours.
    assert!(blue_wan.sh("ip neigh show")?.contains("192.0.2.1"));
    looked_at(&gateway, red_lan, &scratch)
}

/// Sends its argument to each client of port 80, over both families.
const SERVER: &str = "import socket, sys
own = socket.create_server(('::', 80), family=socket.AF_INET6, dualstack_ipv6=True)
print('ready', flush=True)
while True:
    peer, _ = own.accept()
    peer.sendall(sys.argv[1].encode())
    peer.close()
";

/// Prints the answer of a server on port 80 of its argument, or the error.
const CLIENT: &str = "import socket, sys
try:
    own = socket.create_connection((sys.argv[1], 80), 5)
    print('told', own.recv(100).decode())
except OSError as err:
    print('failed', err.strerror or err)
";

/// Binds a socket to the device of its first argument, if any, and to each further address; prints the errors.
const BINDER: &str = "import errno, socket, sys
device, *addresses = sys.argv[1:]
for address in addresses:
    own = socket.socket(socket.AF_INET6 if ':' in address else socket.AF_INET)
    if device: own.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device.encode())
    try: own.bind((address, 0)); print('bound')
    except OSError as err: print(errno.errorcode[err.errno])
";

/// Makes an Internet socket without the C library.
const RAW: &str = "import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
print(libc.syscall(41 if os.uname().machine == 'x86_64' else 198, 2, 1, 0), os.strerror(ctypes.get_errno()))
";

/// Servers with equal addresses and ports answer each its own customer; clients reach their own customer's hosts.
fn exec() -> Outcome {
    const PATIENCE: Duration = Duration::from_secs(20);
    let (scratch, router) = (Scratch::new()?, Netns::new("router")?);
    let hosts = hosts(&router)?;
    let [red_lan, _, blue_lan, _] = &hosts[..] else { return Err("four hosts".into()) };
    let gateway = Gateway::start(&router, &scratch, "router", EXAMPLE)?;
    let exec = |vrf: &str, words: &[&str]| {
        let mut command = Command::new(fatpath());
        command.args(["exec", "--instance", "router", "--vrf", vrf, "--", "python3", "-c"]).args(words);
        command.env("FATPATH_RUNDIR", gateway.socket().parent().unwrap());
        command
    };
    let printed = |mut command: Command| -> Outcome<String> {
        let output = command.output()?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr))
    };
    let mut servers = Vec::new();
    for (vrf, lan) in [("red", red_lan), ("blue", blue_lan)] {
        for (program, name) in [(exec(vrf, &[SERVER, &format!("router of {vrf}")]), vrf), {
            let mut far = lan.command("python3");
            far.args(["-c", SERVER, &format!("host of {vrf}")]);
            (far, lan.name())
        }] {
            let mut program = program;
            let server = Process::spawn(&mut program, &scratch)?;
            wait_until(&format!("the server {name}"), PATIENCE, || server.output().contains("ready"))?;
            servers.push(server);
        }
    }
    for (vrf, lan) in [("red", red_lan), ("blue", blue_lan)] {
        for [router, host] in [["10.0.0.1", "10.0.0.2"], ["fd00::1", "fd00::2"]] {
            let mut far = lan.command("python3");
            far.args(["-c", CLIENT, router]);
            assert_eq!(printed(far)?, format!("told router of {vrf}\n"), "from {vrf}'s host");
            assert_eq!(printed(exec(vrf, &[CLIENT, host]))?, format!("told host of {vrf}\n"), "to {vrf}'s host");
            // The node itself, in the VRF.
            assert_eq!(printed(exec(vrf, &[CLIENT, router]))?, format!("told router of {vrf}\n"), "{vrf} to itself");
        }
        assert_eq!(printed(exec(vrf, &[RAW]))?, "-1 Operation not permitted\n", "a socket that would not be bound");
    }
    // Packets that the node's sockets send in a VRF pass the discipline of its device.
    let tc = |line: &str| {
        let mut command = Command::new(fatpath());
        command.args(["exec", "--instance", "router", "--", "sh", "-c", line]);
        run(command.env("FATPATH_RUNDIR", gateway.socket().parent().unwrap()))
    };
    tc("tc qdisc add dev red root handle 7: pfifo limit 9 && ip link show red | grep -q 'qdisc pfifo'")?;
    assert_eq!(printed(exec("red", &[CLIENT, "10.0.0.2"]))?, "told host of red\n");
    assert_eq!(printed(exec("blue", &[CLIENT, "10.0.0.2"]))?, "told host of blue\n");
    let shown = tc("tc -s qdisc show dev red")?;
    let packets = |text: &str| text.split(" pkt").next()?.rsplit(' ').next()?.parse::<u64>().ok();
    assert!(shown.contains("pfifo 7: root refcnt 2 limit 9p") && packets(&shown) >= Some(4), "{shown}");
    tc("tc qdisc del dev red root")?;
    // An address of another VRF, or of none, is no local address of a socket of this one.
    tc("ip addr add 10.77.0.1/32 dev blue-lan && ip addr add fd00:77::1/128 dev blue-lan nodad")?;
    tc("ip addr add 10.78.0.1/32 dev lo && ip addr add fd00:78::1/128 dev lo")?;
    let own = ["10.0.0.1", "192.0.2.1", "fd00::1", "::ffff:10.0.0.1", "0.0.0.0", "::"];
    let others = ["10.77.0.1", "fd00:77::1", "::ffff:10.77.0.1", "10.78.0.1", "fd00:78::1"];
    for device in ["", "red", "red-lan"] {
        let words = [&[BINDER, device], &own[..], &others[..]].concat();
        let want = "bound\n".repeat(own.len()) + &"EADDRNOTAVAIL\n".repeat(others.len());
        assert_eq!(printed(exec("red", &words))?, want, "{device}");
    }
    assert_eq!(printed(exec("blue", &[BINDER, "", "10.77.0.1", "fd00:77::1"]))?, "bound\nbound\n");
    assert_eq!(printed(exec("red", &[CLIENT, "10.0.0.2"]))?, "told host of red\n");
    drop(servers.remove(0));
    wait_until("the port is free", PATIENCE, || {
        let mut again = red_lan.command("python3");
        again.args(["-c", CLIENT, "10.0.0.1"]);
        printed(again).is_ok_and(|printed| printed == "failed Connection refused\n")
    })?;
    for (vrf, why) in [("green", "--vrf green: there is no such VRF."), ("red-lan", "--vrf red-lan: that is no VRF.")] {
        assert!(printed(exec(vrf, &[CLIENT, "10.0.0.1"]))?.contains(why), "{vrf}");
    }
    Ok(())
}

/// Program that counts the bytes that a peer sends to port 80, and returns their number.
const COUNTER: &str = "import socket
own = socket.create_server(('10.9.0.1', 80))
print('ready', flush=True)
while True:
    peer, _ = own.accept()
    count = 0
    while data := peer.recv(1 << 16):
        count += len(data)
    peer.sendall(str(count).encode())
    peer.close()
";

/// Program that sends bytes to the counter, and prints the number that it returns.
const SENDER: &str = "import socket, sys
own = socket.create_connection(('10.9.0.1', 80), 10, (sys.argv[2], 0) if sys.argv[2:] else None)
own.sendall(bytes(int(sys.argv[1])))
own.shutdown(socket.SHUT_WR)
print(own.recv(100).decode())
";

/// The example of docs/vrf.md: equal tunnels of two customers, with other keys, one of which is shaped.
fn tunnels() -> Outcome {
    const PATIENCE: Duration = Duration::from_secs(20);
    const LEN: usize = 1 << 20;
    let (scratch, router) = (Scratch::new()?, Netns::new("router")?);
    let hosts = hosts(&router)?;
    let [red_lan, red_wan, blue_lan, blue_wan] = &hosts[..] else { return Err("four hosts".into()) };
    let gateway = Gateway::start(&router, &scratch, "router", EXAMPLE)?;
    let of = |instance: &str, words: &[&str]| {
        let mut command = Command::new(fatpath());
        command.args(&words[..1]).args(["--instance", instance]).args(&words[1..]);
        command.env("FATPATH_RUNDIR", gateway.socket().parent().unwrap());
        command
    };
    run(&mut of("router", &["ip", "-batch", concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/vrf.ip")]))?;
    let (mut gateways, mut servers) = (Vec::new(), Vec::new());
    for (customer, wan) in [("red", red_wan), ("blue", blue_wan)] {
        wan.sh("ip addr flush dev eth0; ip route flush table main")?;
        let file = "[[link]]\nname = \"eth0\"\nkind = \"packet\"\ninterface = \"eth0\"\naddresses = [\"192.0.2.254/24\"]\n\
                    [[link]]\nname = \"site\"\nkind = \"tun\"\naddresses = [\"10.9.0.1/24\"]\n\
                    [[route]]\nto = \"10.0.0.0/24\"\nvia = \"192.0.2.1\"\n";
        gateways.push(Gateway::start(wan, &scratch, customer, file)?);
        // The other end of the lines with this customer's reqid.
        let number = if customer == "red" { "1" } else { "2" };
        let lines = TUNNELS.lines().filter(|line| line.contains(&format!("reqid {number} ")));
        let lines: String = lines.map(|line| mirrored(line) + "\n").collect();
        let path = scratch.file(&format!("{customer}.ip"));
        fs::write(&path, lines)?;
        run(&mut of(customer, &["ip", "-batch", &path.display().to_string()]))?;
        let server = Process::spawn(&mut of(customer, &["exec", "--", "python3", "-c", COUNTER]), &scratch)?;
        wait_until("the server", PATIENCE, || server.output().contains("ready"))?;
        servers.push(server);
    }
    run(&mut of(
        "router",
        &["exec", "--", "sh", "-c", "tc qdisc add dev red-wan root tbf rate 8mbit burst 32k latency 100ms"],
    ))?;
    let taken = |lan: &Netns| -> Outcome<Duration> {
        let start = Instant::now();
        assert_eq!(lan.sh(&format!("python3 -c \"{SENDER}\" {LEN}"))?.trim(), LEN.to_string());
        Ok(start.elapsed())
    };
    let (red, blue) = (taken(red_lan)?, taken(blue_lan)?);
    // A byte takes a microsecond, including headers.
    assert!(red > Duration::from_millis(950) && blue < red / 2, "red {red:?}, blue {blue:?}");
    let shown = run(&mut of("router", &["exec", "--", "tc", "-s", "qdisc", "show", "dev", "red-wan"]))?;
    let sent: u64 = shown.split("Sent ").nth(1).and_then(|rest| rest.split(' ').next()?.parse().ok()).unwrap_or(0);
    assert!(sent > LEN as u64 && shown.contains("qdisc tbf"), "{shown}");
    // Sockets of the gateway itself, in the tunnel of their VRF, past its device's discipline or not.
    for line in [
        "true",
        "tc qdisc add dev blue root pfifo",
        "tc qdisc replace dev blue root tbf rate 80mbit burst 64k limit 1m",
    ] {
        run(&mut of("router", &["exec", "--", "sh", "-c", line]))?;
        let words = ["exec", "--vrf", "blue", "--", "python3", "-c", SENDER, "100000", "10.0.0.1"];
        assert_eq!(run(&mut of("router", &words))?.trim(), "100000", "{line}");
    }
    // Each by its own SA.
    let states = run(&mut of("router", &["ip", "-s", "xfrm", "state"]))?;
    let used = |spi: &str| {
        states
            .split("proto esp spi ")
            .filter(|state| state.starts_with(spi))
            .any(|it| it.contains("(packets)") && !it.contains(" 0(packets)"))
    };
    for spi in ["0x00001000", "0x00001001", "0x00002000", "0x00002001"] {
        assert!(used(spi), "{spi} of {states}");
    }
    Ok(())
}

/// A line of the example, for the other end: packets sent here are received there.
fn mirrored(line: &str) -> String {
    let line = line.replace(" dev red", "").replace(" dev blue", "");
    match line.split_once("policy add dir ") {
        None if line.contains("replay-window") => line.replace(" replay-window 1024", ""),
        None => line.replace(" mode tunnel aead", " mode tunnel replay-window 1024 aead"),
        Some((front, rest)) => {
            let (dir, rest) = rest.split_once(' ').unwrap_or_default();
            let there = if dir == "out" { "in" } else { "out" };
            // A packet forwarded here comes from a socket there.
            if dir == "fwd" { format!("# {rest}") } else { format!("{front}policy add dir {there} {rest}") }
        }
    }
}

/// The devices of the VRFs count, are captured, and are in the traces of their packets.
fn looked_at(gateway: &Gateway, red_lan: &Netns, scratch: &Scratch) -> Outcome {
    const PATIENCE: Duration = Duration::from_secs(20);
    let links = gateway.show("links")?;
    let (_, red) = links.split_once(": red:").ok_or_else(|| format!("no red: {links}"))?;
    let counted = red.lines().skip_while(|line| !line.trim_start().starts_with("RX:")).nth(1).unwrap_or_default();
    let numbers: Vec<u64> = counted.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    assert!(numbers.len() >= 2 && numbers[..2].iter().all(|&n| n > 0), "{links}");
    let of_gateway = |words: &[&str]| {
        let mut command = Command::new(fatpath());
        command.args(words).args(["--instance", "router"]).env("FATPATH_RUNDIR", gateway.socket().parent().unwrap());
        command
    };
    let ping = || red_lan.sh("ping -n -q -c 1 -W 5 203.0.113.9").is_ok();
    let filter = "icmp and src host 10.0.0.2 and dst net 203.0.113.0/24";
    let mut trace = Process::spawn(&mut of_gateway(&["trace", "--filter", filter, "-c", "1", "-v"]), scratch)?;
    wait_until("a ping is traced", PATIENCE, || ping() && !trace.is_running())?;
    let text = trace.output();
    let want = ["packet 1: 10.0.0.2 > 203.0.113.9", "hook pre-routing red-lan", "hook pre-routing red ", "table 10 "];
    let more = ["vrf red", "forward red-wan via 192.0.2.254", "queued red-wan", "csum none"];
    assert!(want.iter().chain(&more).all(|words| text.contains(words)), "{text}");
    for (words, error) in [
        (["trace", "--filter", "no such"], "\"no\" is no term"),
        (["trace", "--filter", "dev eth9"], "no link is named eth9"),
    ] {
        let refused = of_gateway(&words).output()?;
        assert!(!refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains(error), "{refused:?}");
    }
    let file = scratch.file("red.pcapng");
    let mut capture = Process::spawn(of_gateway(&["capture", "red"]).arg("-w").arg(&file), scratch)?;
    let len = || fs::metadata(&file).map_or(0, |file| file.len());
    // The file begins with a header, and only the ping is longer than 1000 bytes.
    wait_until("pings are captured", PATIENCE, || ping() && len() > 1000)?;
    capture.signal(Signal::INT)?;
    assert!(capture.wait(PATIENCE)?.success(), "{}", capture.output());
    let address = [203, 0, 113, 9];
    let bytes = fs::read(&file)?;
    assert!(bytes.windows(4).any(|window| window == address), "no ping in {} bytes", bytes.len());
    Ok(())
}
