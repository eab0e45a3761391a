//! The host side of a gateway: a network namespace of its own with a device for each link.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::UdpSocket;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use libtest_mimic::Trial;
use system::{Capture, Gateway, Need, Netns, Outcome, Process, Scratch, fatpath, run, trial, veth, wait_until};

const NEEDS: &[Need] = &[Need::Namespaces, Need::Tun, Need::PYTHON, Need::SETPRIV];

const TCPDUMP: &[Need] = &[Need::Namespaces, Need::Tun, Need::TCPDUMP, Need::PING];

const AUTO: &str = "[host]\nside = \"auto\"\n";
const OFF: &str = "[host]\nside = \"off\"\n";
const LINKS: &str = "[[link]]\nname = \"eth0\"\nkind = \"packet\"\ninterface = \"eth0\"\naddresses = [\"10.1.0.1/24\", \"fd00::1/64\"]\n\
                     [[link]]\nname = \"wan\"\nkind = \"udp\"\nbind = \"127.0.0.1:4500\"\n\
                     [[route]]\nto = \"10.9.0.0/16\"\nvia = \"10.1.0.7\"\n";

/// Waits for its standard input with a socket that is bound to a device and has joined a group there.
const HOLDER: &str = "import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b'eth0')
s.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton('239.1.1.1') + socket.inet_aton('10.1.0.1'))
print('ready', flush=True)
sys.stdin.readline()
s.sendto(b'x', ('10.1.0.9', 9))
print(s.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16).rstrip(b'\\0').decode(), flush=True)
sys.stdin.readline()
";

const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("host_side/device_has_its_links_name_number_and_mac", NEEDS, devices),
        trial("host_side/sockets_reach_the_wire_and_are_reached", NEEDS, sockets),
        trial("host_side/datagrams_keep_to_a_narrow_path", NEEDS, narrow_path),
        trial("host_side/transport_mode_behind_a_nat_reaches_a_socket", NEEDS, behind_nat),
        trial("host_side/router_answers_as_a_router", TCPDUMP, roles),
        trial("host_side/address_is_there_when_it_is_acknowledged", NEEDS, addresses),
        trial("host_side/routes_follow_the_node", NEEDS, routes),
        trial("host_side/routes_of_a_batch_are_there_soon_after", NEEDS, batch),
        trial("host_side/change_of_another_program_is_put_back", NEEDS, put_back),
        trial("host_side/missing_device_is_tried_again", NEEDS, missing),
        trial("host_side/link_that_comes_and_goes_brings_its_device", NEEDS, links),
        trial("host_side/restart_attaches_again", NEEDS, restart),
        trial("host_side/connection_outlives_a_kill_in_a_mount_namespace", NEEDS, mount_namespace),
        trial("host_side/orderly_end_removes_all_but_around_programs", NEEDS, end),
        trial("host_side/links_above_the_limit_have_no_device", NEEDS, limit),
        trial("host_side/gateway_of_a_user_has_one_in_a_user_namespace", NEEDS, of_user),
        trial("host_side/users_speak_through_a_tunnel_without_privilege", NEEDS, || tunnel("666", "tun", false)),
        trial("host_side/tunnel_in_one_table_needs_no_privilege", NEEDS, || tunnel("666", "tun", true)),
        trial("host_side/source_of_a_files_route_is_an_address_of_lo", NEEDS, lo_of_file),
        trial("host_side/closed_tun_device_is_replaced_by_pairs", NEEDS, || tunnel("600", "veth", false)),
        trial("host_side/users_gateway_is_in_the_users_run_directory", NEEDS, run_dir),
        trial("host_side/interface_with_addresses_is_warned_about", NEEDS, shared_interface),
        trial("host_side/broadcast_of_a_socket_reaches_every_station", NEEDS, broadcasts),
        trial("host_side/socket_with_a_policy_of_its_own_passes_others", NEEDS, bypass),
        trial("host_side/tcpdump_sees_each_packet_once", TCPDUMP, tcpdump),
        trial("host_side/files_of_links_are_the_gateways", NEEDS, link_files),
        trial("host_side/settings_of_sockets_are_the_namespaces", NEEDS, settings),
        trial("host_side/off_leaves_programs_where_they_are", NEEDS, off),
        trial("host_side/failure_to_make_one_is_reported", NEEDS, failed),
    ]
}

/// A gateway on the host, not in a mount namespace of its own: the test can find its bind mounts.
struct Site {
    gateway: Gateway,
    // The namespace is released before the directory is removed in which it is bound.
    _bound: Bound,
    scratch: Scratch,
    host: Netns,
    far: Netns,
}

/// The file that a gateway's namespace is bound to; released when dropped.
struct Bound(PathBuf);

impl Drop for Bound {
    fn drop(&mut self) {
        if self.0.exists() {
            let _ = Command::new("umount").arg("-l").arg(&self.0).stderr(Stdio::null()).status();
            let _ = fs::remove_file(&self.0);
        }
    }
}

fn start(scratch: &Scratch, host: &Netns, toml: &str) -> Outcome<Gateway> {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net=/run/netns/{}", host.name())).arg(fatpath());
    Gateway::start_under(command, scratch, "x", toml)
}

impl Site {
    fn new(toml: &str) -> Outcome<Self> {
        let (scratch, host, far) = (Scratch::new()?, Netns::new("near")?, Netns::new("far")?);
        veth((&host, "eth0"), (&far, "eth0"))?;
        let bound = Bound(scratch.file("x.netns"));
        let gateway = start(&scratch, &host, toml)?;
        Ok(Self { gateway, _bound: bound, scratch, host, far })
    }

    /// `fatpath WORDS…` on the gateway.
    fn fatpath(&self, words: &[&str]) -> Command {
        let mut command = Command::new(fatpath());
        command.args(words).env("FATPATH_RUNDIR", self.scratch.path());
        command
    }

    /// Output of a shell script under `fatpath exec`.
    fn exec(&self, script: &str) -> Outcome<String> {
        run(&mut self.fatpath(&["exec", "--instance", "x", "--", "sh", "-ec", script]))
    }

    fn ip(&self, words: &str) -> Outcome<String> {
        let words: Vec<&str> = ["ip", "--instance", "x"].into_iter().chain(words.split_whitespace()).collect();
        run(&mut self.fatpath(&words))
    }

    /// Output of the system's `ip` in the namespace, without the preloaded library.
    fn outsider(&self, words: &str) -> Outcome<String> {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", self.scratch.file("x.netns").display())).arg("ip");
        run(command.args(words.split_whitespace()))
    }

    /// A program under `fatpath exec` with [`HOLDER`]'s socket.
    fn holder(&self) -> Outcome<Holder> {
        let mut holder = self.holder_of(HOLDER)?;
        assert_eq!(holder.next_line()?, "ready\n");
        Ok(holder)
    }

    /// A script of Python under `fatpath exec`.
    fn holder_of(&self, script: &str) -> Outcome<Holder> {
        let mut command = self.fatpath(&["exec", "--instance", "x", "--", "python3", "-c", script]);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        Holder::of(child)
    }
}

/// A program that waits for lines; killed when dropped.
struct Holder {
    child: Child,
    printed: BufReader<std::process::ChildStdout>,
}

impl Holder {
    /// `child` has pipes as its standard input and output.
    fn of(mut child: Child) -> Outcome<Self> {
        let printed = BufReader::new(child.stdout.take().ok_or("it has an output")?);
        Ok(Self { child, printed })
    }

    fn next_line(&mut self) -> Outcome<String> {
        let mut line = String::new();
        self.printed.read_line(&mut line)?;
        Ok(line)
    }

    fn go_on(&mut self) -> Outcome {
        use std::io::Write;
        Ok(self.child.stdin.as_mut().ok_or("it has an input")?.write_all(b"\n")?)
    }

    fn namespace(&self) -> Outcome<PathBuf> {
        Ok(fs::read_link(format!("/proc/{}/ns/net", self.child.id()))?)
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn devices() -> Outcome {
    let site = Site::new(&format!("{AUTO}{LINKS}"))?;
    for name in ["eth0", "wan"] {
        let node = site.ip(&format!("-o link show {name}"))?;
        let printed = site.exec(&format!("cd /sys/class/net/{name}; cat ifindex carrier mtu address flags"))?;
        let [index, carrier, mtu, rest @ ..] = &printed.lines().collect::<Vec<_>>()[..] else { panic!("{printed}") };
        assert!(node.starts_with(&format!("{index}: {name}:")), "{node}{printed}");
        // The MTU is the link's, and not the device's.
        assert!(*carrier == "1" && node.contains(&format!(" mtu {mtu} ")), "{node}{printed}");
        if name == "eth0" {
            assert!(node.contains(&format!("link/ether {} ", rest[0])), "{node}{printed}");
            let flags = u32::from_str_radix(rest[1].trim_start_matches("0x"), 16)?;
            assert_eq!(flags & 0x81, 0x81, "up, and without ARP: {flags:#x}");
        }
    }
    let shown = site.gateway.show("host")?;
    assert!(shown.starts_with(&format!("host side on at {}\n", site.scratch.file("x.netns").display())), "{shown}");
    assert!(shown.contains(": eth0 kind tap mtu 65521\n") && shown.contains(": wan kind tun mtu 65535\n"), "{shown}");
    assert!(site.gateway.show("host --json")?.contains("\"side\":\"on\""));
    for (file, want) in [("ipv4/conf/eth0/rp_filter", "0"), ("ipv4/conf/eth0/arp_ignore", "8")] {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", site.scratch.file("x.netns").display())).arg("cat");
        assert_eq!(run(command.arg(format!("/proc/sys/net/{file}")))?.trim(), want, "{file}");
    }
    Ok(())
}

/// UDP of all sizes, TCP, and refusals, between programs on the gateway and on a kernel at the other end of its wire.
fn sockets() -> Outcome {
    let site = Site::new(&format!("{AUTO}{LINKS}"))?;
    site.far.sh("ip addr add 10.1.0.9/24 dev eth0; ip addr add fd00::9/64 dev eth0 nodad")?;
    let script = |name: &str, text: &str| {
        let path = site.scratch.file(name);
        fs::write(&path, text).map(|()| path)
    };
    let server = script("server.py", include_str!("host_side_server.py"))?;
    let client = script("client.py", include_str!("host_side_client.py"))?;
    let on_gateway = |program: &PathBuf| {
        let mut command = site.fatpath(&["exec", "--instance", "x", "--", "python3"]);
        command.arg(program);
        command
    };
    let on_far = |program: &PathBuf| {
        let mut command = site.far.command("python3");
        command.arg(program);
        command
    };
    let _servers = [
        Process::spawn(&mut on_gateway(&server), &site.scratch)?,
        Process::spawn(&mut on_far(&server), &site.scratch)?,
    ];
    for (mut command, addr) in [
        (on_gateway(&client), "10.1.0.9"),
        (on_gateway(&client), "fd00::9"),
        (on_far(&client), "10.1.0.1"),
        (on_far(&client), "fd00::1"),
    ] {
        let printed = run(command.arg(addr)).map_err(|err| {
            let drops = site.gateway.show("drops").unwrap_or_default();
            format!("{addr}: {}{drops}{}", err.message().unwrap_or_default(), site.gateway.log())
        })?;
        assert_eq!(printed, "all as expected\n", "{addr}");
    }
    // With another address the device still has the link's address.
    site.ip("link set eth0 address 02:00:00:00:00:55")?;
    site.far.sh("ip neigh flush all")?;
    assert!(site.outsider("link show eth0")?.contains("02:00:00:00:00:55"));
    assert_eq!(run(on_gateway(&client).arg("10.1.0.9"))?, "all as expected\n");
    Ok(())
}

/// A server behind a router whose other link is narrow: its datagrams arrive as soon as the path is known.
fn narrow_path() -> Outcome {
    const CLIENT: &str = "import socket, sys
s = socket.socket(socket.AF_INET6 if ':' in sys.argv[1] else socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(1)
for attempt in range(10):
    s.sendto(bytes(1400), (sys.argv[1], 9000))
    try:
        sys.exit(len(s.recv(70000)) != 1400)
    except TimeoutError:
        pass
sys.exit('no answer')
";
    let site = Site::new(&format!(
        "{AUTO}{LINKS}[[route]]\nto = \"10.2.0.0/24\"\nvia = \"10.1.0.9\"\n\
         [[route]]\nto = \"fd02::/64\"\nvia = \"fd00::9\"\n"
    ))?;
    let behind = Netns::new("behind")?;
    veth((&site.far, "wan"), (&behind, "eth0"))?;
    site.far.sh("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1; ip link set wan mtu 1300
         ip addr add 10.1.0.9/24 dev eth0; ip addr add fd00::9/64 dev eth0 nodad
         ip addr add 10.2.0.1/24 dev wan; ip addr add fd02::1/64 dev wan nodad")?;
    behind.sh("ip link set eth0 mtu 1300; ip addr add 10.2.0.9/24 dev eth0; ip addr add fd02::9/64 dev eth0 nodad
         ip route add default via 10.2.0.1; ip route add default via fd02::1")?;
    let server = site.scratch.file("server.py");
    fs::write(&server, include_str!("host_side_server.py"))?;
    let _server =
        Process::spawn(site.fatpath(&["exec", "--instance", "x", "--", "python3"]).arg(&server), &site.scratch)?;
    for addr in ["10.1.0.1", "fd00::1"] {
        // The first answer over IPv6 is lost, and shows the path.
        run(behind.command("python3").args(["-c", CLIENT, addr])).map_err(|err| {
            let drops = site.gateway.show("drops").unwrap_or_default();
            format!("{addr}: {}\n{drops}", err.message().unwrap_or_default())
        })?;
    }
    Ok(())
}

/// ESP in UDP, in transport mode, of a sender that knows itself by another address than the gateway does.
fn behind_nat() -> Outcome {
    let site = Site::new(&format!(
        "{AUTO}{LINKS}[[sa]]\nsrc = \"10.1.0.9\"\ndst = \"10.1.0.1\"\nspi = 0x1001\ndir = \"in\"\nmode = \"transport\"\n\
         enc = \"ecb(cipher_null)\"\nreplay-window = 32\nencap = {{ type = \"espinudp\", sport = 40000, dport = 4500 }}\n"
    ))?;
    site.far.sh("ip addr add 10.1.0.9/24 dev eth0")?;
    let mut receiver = site.holder_of(
        "import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(('10.1.0.1', 5000))
s.settimeout(20)
print('ready', flush=True)
print(*s.recvfrom(100), flush=True)
",
    )?;
    assert_eq!(receiver.next_line()?, "ready\n");
    let sender = site.far.enter(|| UdpSocket::bind("10.1.0.9:40000"))?;
    // From port 700, with the checksum for 198.51.100.7; then the trailer of ESP, without padding.
    let (payload, ports) = (*b"behind", [2, 188, 0x13, 0x88]);
    let mut datagram = [&ports[..], &[0, 14, 0, 0], &payload].concat();
    let pseudo = [198, 51, 100, 7, 10, 1, 0, 1, 0, 17, 0, 14];
    let words = pseudo.chunks(2).chain(datagram.chunks(2));
    let sum = words.fold(0, |sum: u32, word| sum + u32::from(word[0]) * 256 + u32::from(word[1]));
    let check = !((sum & 0xffff) + (sum >> 16)) as u16;
    datagram[6..8].copy_from_slice(&check.to_be_bytes());
    let esp = [&[0, 0, 0x10, 1, 0, 0, 0, 1][..], &datagram, &[0, 17]].concat();
    sender.send_to(&esp, "10.1.0.1:4500")?;
    assert_eq!(receiver.next_line()?, "b'behind' ('10.1.0.9', 700)\n", "{}", site.gateway.show("drops")?);
    Ok(())
}

/// Pings that routers alone answer: their anycast address on a subnet, and their groups.
fn roles() -> Outcome {
    let site = Site::new(&format!("{AUTO}{LINKS}"))?;
    site.far.sh("ip addr add fd00::9/64 dev eth0 nodad")?;
    for addr in ["fd00::", "ff02::2%eth0", "ff02::1%eth0", "fd00::1"] {
        site.far.sh(&format!("ping -c 1 -W 10 {addr}")).map_err(|err| {
            let drops = site.gateway.show("drops").unwrap_or_default();
            format!("{addr}: {}\n{drops}", err.message().unwrap_or_default())
        })?;
    }
    Ok(())
}

/// Sends datagrams of 1400 and 4000 bytes to both kinds of broadcast address, bound to the device that its argument names.
const BROADCASTER: &str = "import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
s.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, sys.argv[1].encode())
for addr in '10.1.0.255', '255.255.255.255':
    for length in 1400, 4000:
        s.sendto(bytes(length), (addr, 5000))
";

fn broadcasts() -> Outcome {
    let site = Site::new(&format!("{AUTO}{LINKS}"))?;
    site.far.sh("ip addr add 10.1.0.9/24 dev eth0")?;
    let receiver = "import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(('', 5000))
print('ready', flush=True)
while True: print(len(s.recv(9000)), flush=True)
";
    let far = Process::spawn(site.far.command("python3").args(["-c", receiver]), &site.scratch)?;
    wait_until("the far end receives", PATIENCE, || far.output().contains("ready"))?;
    let before = site.gateway.show("drops")?;
    let mut want = "ready\n".to_owned();
    for device in ["eth0", "red"] {
        if device == "red" {
            site.ip("link add red type vrf table 300")?;
            site.ip("link set red up")?;
            site.ip("link set eth0 master red")?;
            site.ip("route add default via 10.1.0.9 table 300")?;
        }
        let mut command = site.fatpath(&["exec", "--instance", "x", "--", "python3", "-c", BROADCASTER]);
        run(command.arg(device))?;
        want += "1400\n4000\n1400\n4000\n";
        wait_until(&format!("broadcasts by {device} arrive"), PATIENCE, || far.output() == want).map_err(|err| {
            let drops = site.gateway.show("drops").unwrap_or_default();
            format!("{}: {}{drops}{}", err.message().unwrap_or_default(), far.output(), site.gateway.log())
        })?;
    }
    assert_eq!(site.gateway.show("drops")?, before);
    Ok(())
}

fn addresses() -> Outcome {
    let site = Site::new(&format!("{AUTO}{LINKS}"))?;
    let bind = |addr: &str| {
        let family = if addr.contains(':') { "INET6" } else { "INET" };
        format!(
            "python3 -c \"import socket; socket.socket(socket.AF_{family}, socket.SOCK_DGRAM).bind(('{addr}', 5000))\""
        )
    };
    for addr in ["10.1.0.1", "fd00::1"] {
        site.exec(&bind(addr))?;
    }
    for (addr, len) in [("10.7.0.1", 24), ("fd07::1", 64)] {
        assert!(site.exec(&bind(addr)).is_err(), "no node has {addr}");
        site.exec(&format!("ip addr add {addr}/{len} dev eth0; {}", bind(addr)))?;
        assert!(site.exec(&format!("ip addr del {addr}/{len} dev eth0; {}", bind(addr))).is_err(), "{addr} is gone");
    }
    site.exec(&format!("ip addr add 10.8.0.1/32 dev lo; {}", bind("10.8.0.1")))?;
    site.ip("link set eth0 down")?;
    assert!(!site.outsider("link show eth0")?.contains(",UP"));
    site.ip("link set eth0 up")?;
    let listed = site.outsider("addr show eth0")?;
    assert!(listed.contains(",UP") && listed.contains("10.1.0.1/24"), "{listed}");
    Ok(())
}

fn routes() -> Outcome {
    let site = Site::new(&format!("{AUTO}{LINKS}"))?;
    let source = |dst: &str| site.outsider(&format!("route get {dst}"));
    for dst in ["10.1.0.9", "10.9.1.1"] {
        let printed = source(dst)?;
        assert!(
            printed.contains(&format!("{dst} dev eth0 src 10.1.0.1")) && printed.contains("mtu lock 65520"),
            "{printed}"
        );
    }
    assert!(source("10.10.0.1").is_err());
    // The node's choice of source address: the one in the subnet of the next hop.
    site.ip("addr add 10.2.0.1/24 dev eth0")?;
    site.ip("route add 10.10.0.0/16 via 10.2.0.7")?;
    assert!(source("10.10.0.1")?.contains("src 10.2.0.1"));
    // Two routes of the node have one mirrored route, which stays as long as one of the two.
    site.ip("route append 10.10.0.0/16 via 10.2.0.8")?;
    site.ip("route del 10.10.0.0/16 via 10.2.0.7")?;
    assert!(source("10.10.0.1")?.contains("src 10.2.0.1"));
    site.ip("route del 10.10.0.0/16 via 10.2.0.8")?;
    assert!(source("10.10.0.1").is_err());
    site.ip("route add unreachable 10.11.0.0/16")?;
    assert!(site.outsider("route show type unreachable")?.contains("10.11.0.0/16"));
    site.ip("route add fd09::/16 via fd00::7")?;
    assert!(source("fd09::1")?.contains("src fd00::1"));
    // Sockets of a VRF are bound to its device, and use its routes.
    site.ip("link add red type vrf table 300")?;
    site.ip("link set red up")?;
    site.ip("link set eth0 master red")?;
    let printed = site.outsider("route get 10.1.0.9 oif red")?;
    assert!(printed.contains("dev red table 300 src 10.1.0.1"), "{printed}");
    assert!(source("10.1.0.9").is_err());
    Ok(())
}

/// Routes of one program that sends many requests follow together; a single one is there when it is acknowledged.
fn batch() -> Outcome {
    const ROUTES: usize = 300;
    let site = Site::new(&format!("{AUTO}{LINKS}"))?;
    let present = |beginning: &str| -> Outcome<usize> {
        let shown = site.outsider("route show")?;
        Ok(shown.lines().filter(|line| line.starts_with(beginning)).count())
    };
    for (verb, want) in [("add", ROUTES), ("del", 0)] {
        let lines = (0..ROUTES).map(|n| format!("route {verb} 10.7{}.{}.0/24 via 10.1.0.7\n", n / 256, n % 256));
        let file = site.scratch.file("batch");
        fs::write(&file, lines.collect::<String>())?;
        run(site.fatpath(&["ip", "--instance", "x", "-batch"]).arg(&file))?;
        wait_until("all routes have followed", Duration::from_secs(2), || {
            present("10.7").is_ok_and(|now| now == want)
        })?;
        site.ip(&format!("route {verb} 10.80.0.0/24 via 10.1.0.7"))?;
        assert_eq!(present("10.80.")?, want / ROUTES, "{verb}");
    }
    Ok(())
}

fn put_back() -> Outcome {
    let site = Site::new(&format!("{AUTO}{LINKS}"))?;
    // Without the order, which is the order of restoration.
    let listed = |words: &str| {
        let mut lines: Vec<String> = site.outsider(words)?.lines().map(str::to_owned).collect();
        lines.sort_unstable();
        Outcome::Ok(lines)
    };
    let before = [listed("-o addr show eth0")?, listed("route")?];
    let index = site.exec("cat /sys/class/net/wan/ifindex")?;
    let changes = [
        "addr del 10.1.0.1/24 dev eth0",
        "addr add 10.66.0.1/24 dev eth0",
        "route del 10.9.0.0/16",
        "route add 10.67.0.0/16 dev eth0",
        "link set eth0 down",
        "link set eth0 mtu 1500",
        "link set eth0 arp on",
        "link set eth0 address 02:00:00:00:00:77",
        "link del wan",
    ];
    for change in changes {
        site.outsider(change)?;
        let is_back = || {
            let now = [listed("-o addr show eth0"), listed("route")];
            now.into_iter().zip(&before).all(|(now, before)| now.is_ok_and(|now| now == *before))
                && site
                    .outsider("link show eth0")
                    .is_ok_and(|seen| seen.contains(",NOARP,UP") && seen.contains(" 65521 "))
                && site.exec("cat /sys/class/net/wan/ifindex").is_ok_and(|now| now == index)
        };
        wait_until(change, PATIENCE, is_back).map_err(|err| {
            let now = [site.outsider("addr"), site.outsider("route")];
            format!("{}: {now:?} {}", err.message().unwrap_or_default(), site.gateway.log())
        })?;
    }
    let log = site.gateway.log();
    assert!(log.contains("changed by another program, and reverted: address 10.1.0.1/24"), "{log}");
    let shown = site.gateway.show("host")?;
    assert!(!shown.contains(", 0 reverted") && !shown.contains("missing"), "{shown}");
    Ok(())
}

fn missing() -> Outcome {
    let site = Site::new(&format!("{AUTO}{LINKS}"))?;
    let batch = site.scratch.file("batch");
    fs::write(&batch, "link del wan\nlink add wan type veth peer name other\n")?;
    let is_missing = || site.gateway.show("host").is_ok_and(|shown| shown.contains(": wan kind tun mtu 65535 missing"));
    // Another device takes the name, unless the gateway is faster.
    wait_until("the name is taken", PATIENCE, || {
        let _ = site.outsider(&format!("-batch {}", batch.display()));
        is_missing()
    })?;
    // As long as the name is taken, one line is logged.
    std::thread::sleep(Duration::from_millis(2500));
    assert!(is_missing());
    let log = site.gateway.log();
    let failures = log.lines().filter(|line| line.contains("WARN") && line.contains("wan: ")).count();
    assert!((1..=2).contains(&failures), "{log}");
    site.outsider("link del wan")?;
    wait_until("the device is there again", PATIENCE, || !is_missing())?;
    site.ip("addr add 10.7.0.1/24 dev wan")?;
    assert!(site.outsider("-o addr show wan")?.contains("10.7.0.1/24"));
    assert!(site.outsider("link show wan")?.contains(",UP"), "{}", site.gateway.log());
    Ok(())
}

fn links() -> Outcome {
    let site = Site::new(&format!("{AUTO}{LINKS}"))?;
    site.ip("link add red type vrf table 300")?;
    let number = site.ip("-o link show red")?;
    let there = site.outsider("-o link show red")?;
    assert_eq!(number.split(':').next(), there.split(':').next(), "{number}{there}");
    site.ip("link del red")?;
    assert!(site.outsider("link show red").is_err());
    // The original file differs in links, not in the host side.
    let mut site = site;
    site.gateway.reload(AUTO)?;
    let host = site.scratch.file("x.netns");
    site.gateway.wait_until("the devices are gone", |_| {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", host.display())).args(["ip", "-o", "link"]);
        run(&mut command).is_ok_and(|listed| listed.lines().count() == 1)
    })?;
    site.gateway.reload("[host]\nside = \"off\"\n")?;
    site.gateway.wait_until("it is refused", |gateway| {
        gateway.log().contains("[host] is another one, which only a start can change")
    })
}

fn restart() -> Outcome {
    let toml = format!("{AUTO}{LINKS}");
    let mut site = Site::new(&toml)?;
    let mut holder = site.holder()?;
    let namespace = holder.namespace()?;
    let before = site.outsider("-o link show eth0")?;
    // Killed, without an orderly end.
    site.gateway.kill()?;
    site.gateway = start(&site.scratch, &site.host, &toml)?;
    assert_eq!(site.exec("readlink /proc/self/ns/net")?.trim(), namespace.display().to_string());
    let index = |line: &str| line.split(':').next().map(str::to_owned);
    assert_eq!(index(&site.outsider("-o link show eth0")?), index(&before));
    assert_eq!(site.exec("cat /sys/class/net/eth0/carrier")?, "1\n", "the gateway reads the device");
    holder.go_on()?;
    assert_eq!(holder.next_line()?, "eth0\n");
    assert!(site.outsider("maddr show eth0")?.contains("239.1.1.1"));
    assert!(site.gateway.log().contains(", existing"));
    Ok(())
}

/// Sends the lines of its standard input over a connection, and prints the answers.
const CONNECTED: &str = "import socket, sys
s = socket.create_connection(('10.1.0.2', 7000), 20)
s.settimeout(60)
print('ready', flush=True)
for line in sys.stdin:
    s.sendall(b'x')
    print(s.recv(1).decode(), flush=True)
";

/// Returns the bytes of one connection.
const ECHO: &str = "import socket
listener = socket.create_server(('10.1.0.2', 7000))
print('listens', flush=True)
peer, _ = listener.accept()
while data := peer.recv(100):
    peer.sendall(data)
";

fn mount_namespace() -> Outcome {
    let toml = format!("{AUTO}{LINKS}");
    let (scratch, host, far) = (Scratch::new()?, Netns::new("near")?, Netns::new("far")?);
    veth((&host, "eth0"), (&far, "eth0"))?;
    far.sh("ip addr add 10.1.0.2/24 dev eth0")?;
    let echo = Process::spawn(far.command("python3").args(["-c", ECHO]), &scratch)?;
    wait_until("the server listens", PATIENCE, || echo.output().contains("listens"))?;
    // `ip netns exec` gives each gateway a mount namespace of its own, and so does a service.
    let mut gateway = Gateway::start(&host, &scratch, "x", &toml)?;
    let mut command = Command::new(fatpath());
    command.args(["exec", "--instance", "x", "--", "python3", "-c", CONNECTED]);
    let child = command.env("FATPATH_RUNDIR", scratch.path()).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut holder = Holder::of(child)?;
    assert_eq!(holder.next_line()?, "ready\n");
    let namespace = holder.namespace()?;
    // A second instance has a namespace of its own, with a device of the same name.
    let wan = format!("{AUTO}[[link]]\nname = \"wan\"\nkind = \"udp\"\nbind = \"127.0.0.1:4501\"\n");
    let _other = Gateway::start(&host, &scratch, "y", &wan)?;
    let mut other = Command::new(fatpath());
    other.args(["exec", "--instance", "y", "--", "sleep", "100"]).env("FATPATH_RUNDIR", scratch.path());
    let _inside = Process::spawn(&mut other, &scratch)?;
    for round in 0..3 {
        gateway.kill()?;
        gateway = Gateway::start(&host, &scratch, "x", &toml)?;
        let mut inside = Command::new(fatpath());
        inside.args(["exec", "--instance", "x", "--", "readlink", "/proc/self/ns/net"]);
        let now = run(inside.env("FATPATH_RUNDIR", scratch.path()))?;
        assert_eq!(now.trim(), namespace.display().to_string(), "round {round}: {}", gateway.log());
        holder.go_on()?;
        assert_eq!(holder.next_line()?, "x\n", "round {round}");
    }
    Ok(())
}

fn end() -> Outcome {
    let toml = format!("{AUTO}{LINKS}");
    let mut site = Site::new(&toml)?;
    let bound = site.scratch.file("x.netns");
    let holder = site.holder()?;
    assert!(site.gateway.terminate()?.success());
    assert!(site.gateway.log().contains("processes are inside; the namespace is kept"));
    assert!(site.outsider("-o link show eth0")?.contains("eth0"));
    drop(holder);
    site.gateway = start(&site.scratch, &site.host, &toml)?;
    assert!(site.gateway.terminate()?.success());
    assert!(!bound.exists());
    assert!(!fs::read_to_string("/proc/mounts")?.contains(&bound.display().to_string()));
    Ok(())
}

fn limit() -> Outcome {
    let site = Site::new(&format!("{AUTO}max-links = 1\nmtu = \"link\"\n{LINKS}"))?;
    let shown = site.gateway.show("host")?;
    assert!(shown.contains(": eth0 kind tap mtu 1500\n"), "{shown}");
    assert!(shown.contains(": wan kind tun mtu 1500 missing (max-links is 1)\n"), "{shown}");
    assert!(site.outsider("link show wan").is_err());
    assert!(!site.outsider("route")?.contains("lock"));
    Ok(())
}

/// Gateways of a user without privilege, each in its namespace.
struct Users {
    scratch: Scratch,
}

impl Users {
    /// `mode` is the mode of `/dev/net/tun`: with udev's rules any user may open it.
    fn new(mode: &str) -> Outcome<Self> {
        let scratch = Scratch::new()?;
        fs::copy(fatpath(), scratch.file("fatpath"))?;
        fs::copy(fatpath().with_file_name("libfatpath_preload.so"), scratch.file("libfatpath_preload.so"))?;
        fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o1777))?;
        let device = scratch.file("tun");
        let script = "mknod \"$1\" c 10 200; chmod \"$2\" \"$1\"";
        run(Command::new("sh").args(["-ec", script, "sh"]).arg(&device).arg(mode))?;
        Ok(Self { scratch })
    }

    /// `fatpath` of the user.
    fn fatpath(&self, host: &Netns) -> Command {
        let script = "mount --bind \"$1\" /dev/net/tun; shift
            exec setpriv --reuid=65534 --regid=65534 --clear-groups \"$@\"";
        let mut command = host.command("sh");
        command.args(["-ec", script, "sh"]).args([self.scratch.file("tun"), self.scratch.file("fatpath")]);
        command.env("FATPATH_RUNDIR", self.scratch.path());
        command
    }
}

fn of_user() -> Outcome {
    let (users, host) = (Users::new("666")?, Netns::new("x")?);
    let scratch = &users.scratch;
    let as_user = || users.fatpath(&host);
    let toml = format!("{AUTO}[[link]]\nname = \"wan\"\nkind = \"udp\"\nbind = \"127.0.0.1:4500\"\n");
    let gateway = Gateway::start_under(as_user(), scratch, "x", &toml)?;
    let shown = gateway.show("host")?;
    assert!(shown.starts_with("host side on in a user namespace\n"), "{shown}{}", gateway.log());
    assert!(shown.contains(": wan kind tun mtu 65535\n"), "{shown}");
    // Files of a process that is not dumpable belong to root.
    assert_eq!(fs::metadata(format!("/proc/{}/status", gateway.id()))?.uid(), 0);
    let script = "ip addr add 10.7.0.1/24 dev wan
        python3 -c \"import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).bind(('10.7.0.1', 5000))\"
        readlink /proc/self/ns/net";
    let printed = run(as_user().args(["exec", "--instance", "x", "--", "sh", "-ec", script]))?;
    assert_ne!(printed, host.sh("readlink /proc/self/ns/net")?);
    // Root may enter the namespace and change the gateway as well.
    let mut root = Command::new(fatpath());
    let script = "ip addr del 10.7.0.1/24 dev wan; readlink /proc/self/ns/net";
    root.args(["exec", "--instance", "x", "--", "sh", "-ec", script]).env("FATPATH_RUNDIR", scratch.path());
    assert_eq!(run(&mut root)?, printed);
    Ok(())
}

/// A user's gateway has its socket in the user's run directory, where the user's programs find it.
fn run_dir() -> Outcome {
    let (users, host) = (Users::new("666")?, Netns::new("x")?);
    let dir = users.scratch.file("runtime");
    fs::create_dir(&dir)?;
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o1777))?;
    let as_user = |words: &[&str]| {
        let mut command = users.fatpath(&host);
        command.args(words).env_remove("FATPATH_RUNDIR").env("XDG_RUNTIME_DIR", &dir);
        command
    };
    let config = users.scratch.file("x.toml");
    fs::write(&config, "[[link]]\nname = \"wan\"\nkind = \"udp\"\nbind = \"127.0.0.1:4500\"\n")?;
    let _gateway = Process::spawn(as_user(&["run", "--state", "none", "-c"]).arg(&config), &users.scratch)?;
    wait_until("the gateway answers", PATIENCE, || run(&mut as_user(&["show", "links"])).is_ok())?;
    assert!(dir.join("fatpath/default.sock").exists());
    let printed = run(&mut as_user(&["exec", "--", "ip", "-br", "link"]))?;
    assert!(printed.contains("wan"), "{printed}");
    Ok(())
}

/// A link on an interface with addresses of the host's is opened with a warning.
fn shared_interface() -> Outcome {
    let (scratch, host, other) = (Scratch::new()?, Netns::new("x")?, Netns::new("y")?);
    veth((&host, "eth0"), (&other, "eth0"))?;
    let toml = "[[link]]\nname = \"wan\"\nkind = \"packet\"\ninterface = \"eth0\"\n";
    for (script, warning) in
        [("true", false), ("ip addr add 192.0.2.1/24 dev eth0; ip addr add 2001:db8::1/64 dev eth0 nodad", true)]
    {
        host.sh(script)?;
        let mut gateway = Gateway::start(&host, &scratch, "x", toml)?;
        let log = gateway.log();
        let line =
            "wan: eth0 has 192.0.2.1/24, 2001:db8::1/64: the host's kernel also receives and answers packets to them";
        assert_eq!((log.contains(line), log.contains(" WARN ")), (warning, warning), "{log}");
        gateway.terminate()?;
    }
    Ok(())
}

/// Large datagrams, TCP and refusals through ESP in UDP between two users' programs, without any privilege. `is_table`:
/// the tunnel is one table of the file, else it is set up by the file and by `ip`.
fn tunnel(mode: &str, kind: &str, is_table: bool) -> Outcome {
    let users = Users::new(mode)?;
    let hosts = [Netns::new("left")?, Netns::new("right")?];
    veth((&hosts[0], "eth0"), (&hosts[1], "eth0"))?;
    let sa = |n: u8, p: u8, key: &str| {
        format!(
            "[[sa]]\nsrc = \"192.0.2.{n}\"\ndst = \"192.0.2.{p}\"\nspi = 0x{n}000\nmode = \"tunnel\"\nreqid = 1\n\
             aead = {{ name = \"rfc4106(gcm(aes))\", key = \"0x{}\", icv = 128 }}\n\
             encap = {{ type = \"espinudp\", sport = 4500, dport = 4500 }}\n",
            key.repeat(20)
        )
    };
    let policy = |dir: &str, n: u8, p: u8| {
        format!(
            "[[policy]]\ndir = \"{dir}\"\nsrc = \"10.{n}.0.0/24\"\ndst = \"10.{p}.0.0/24\"\n\
             tmpl = [{{ src = \"192.0.2.{n}\", dst = \"192.0.2.{p}\", mode = \"tunnel\", reqid = 1 }}]\n"
        )
    };
    let mut gateways = Vec::new();
    for (host, n) in hosts.iter().zip([1, 2]) {
        let p = 3 - n;
        host.sh(&format!("ip addr add 192.0.2.{n}/24 dev eth0"))?;
        let toml = [
            format!("{AUTO}[[link]]\nname = \"wan\"\nkind = \"udp\"\nbind = \"192.0.2.{n}:4500\"\n"),
            format!("[[route]]\nto = \"192.0.2.{p}/32\"\ndev = \"wan\"\n"),
            [sa(1, 2, "a1"), sa(2, 1, "b2"), policy("out", n, p), policy("in", p, n)].concat(),
        ];
        let name = format!("g{n}");
        let keys =
            [(1, "a1"), (2, "b2")].map(|(spi, key)| format!("{{ spi = {spi}, key = \"0x{}\" }}", key.repeat(36)));
        let table = format!(
            "{AUTO}[[tunnel]]\nname = \"far\"\nlocal = {{ address = \"192.0.2.{n}\", nets = [\"10.{n}.0.1/32\"] }}\n\
             remote = {{ address = \"192.0.2.{p}\", nets = [\"10.{p}.0.1/32\"] }}\ndevice = \"none\"\n\
             keys.out = {}\nkeys.in = {}\n",
            keys[n as usize - 1],
            keys[p as usize - 1]
        );
        let toml = if is_table { table } else { toml.concat() };
        gateways.push(Gateway::start_under(users.fatpath(host), &users.scratch, &name, &toml)?);
        if is_table {
            continue;
        }
        let script = format!("ip addr add 10.{n}.0.1/32 dev lo; ip route add 10.{p}.0.0/24 dev wan src 10.{n}.0.1");
        run(users.fatpath(host).args(["exec", "--instance", &name, "--", "sh", "-ec", &script]))?;
    }
    let python = |host: &Netns, name: &str, text: &str| {
        let script = users.scratch.file(&format!("{name}.py"));
        fs::write(&script, text)?;
        let mut command = users.fatpath(host);
        command.args(["exec", "--instance", name, "--", "python3"]).arg(script);
        Outcome::Ok(command)
    };
    let mut server = python(&hosts[1], "g2", include_str!("host_side_server.py"))?;
    let _server = Process::spawn(&mut server, &users.scratch)?;
    let printed = run(python(&hosts[0], "g1", include_str!("host_side_client.py"))?.arg("10.2.0.1"))?;
    assert_eq!(printed, "all as expected\n");
    let shown = gateways[0].show("host")?;
    assert!(shown.contains(&format!(": wan kind {kind} mtu ")), "{shown}");
    let sas = gateways[0].show("sa")?;
    assert!(!sas.contains("0(bytes), 0(packets)"), "{sas}");
    Ok(())
}

/// Addresses of `lo` and preferred sources of routes come from the file of a gateway without privilege, and a reload
/// replaces them.
fn lo_of_file() -> Outcome {
    let (users, host) = (Users::new("666")?, Netns::new("x")?);
    let toml = |lo: &str, src: &str| {
        format!(
            "{AUTO}{lo}[[link]]\nname = \"wan\"\nkind = \"udp\"\nbind = \"127.0.0.1:4500\"\n\
             [[route]]\nto = \"10.2.0.0/24\"\ndev = \"wan\"\n{src}"
        )
    };
    let lo = |addr: &str| format!("[[link]]\nname = \"lo\"\naddresses = [\"{addr}/32\"]\n");
    let with = |addr: &str| toml(&lo(addr), &format!("src = \"{addr}\"\n"));
    let gateway = Gateway::start_under(users.fatpath(&host), &users.scratch, "x", &with("10.1.0.1"))?;
    let exec = |script: &str| {
        let mut command = users.fatpath(&host);
        run(command.args(["exec", "--instance", "x", "--", "sh", "-ec", script]))
    };
    let source = "python3 -c \"import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.connect(('10.2.0.1', 9)); print(s.getsockname()[0])\"";
    for addr in ["10.1.0.1", "10.1.0.2"] {
        gateway.reload(&with(addr))?;
        assert_eq!(exec(source)?, format!("{addr}\n"), "{}", gateway.log());
        let routes = exec("ip route show 10.2.0.0/24")?;
        assert_eq!(routes.trim_end(), format!("10.2.0.0/24 dev wan proto static scope link src {addr}"));
        let shown = gateway.show("routes")?;
        assert!(shown.contains(&format!("10.2.0.0/24 dev wan proto static scope link src {addr}\n")), "{shown}");
        assert!(shown.contains(&format!("local {addr} dev lo table local")), "{shown}");
        let addresses = exec("ip -br addr show dev lo")?;
        let words: Vec<&str> = addresses.split_whitespace().collect();
        assert_eq!(words, ["lo", "UNKNOWN", "127.0.0.1/8", &format!("{addr}/32"), "::1/128"], "{addresses}");
        // The socket's own kernel has the address.
        exec(&format!("python3 -c \"import socket; socket.socket().bind(('{addr}', 5000))\""))?;
    }
    gateway.reload(&toml("", ""))?;
    let left = exec("ip addr show dev lo; ip route show 10.2.0.0/24; ip route show table local")?;
    assert!(!left.contains("10.1.0.") && left.contains("DOWN"), "{left}");
    exec("python3 -c \"import socket; s = socket.socket(); s.bind(('10.1.0.2', 5000))\" && exit 1 || true")?;
    Ok(())
}

/// Sends a datagram from each of two ports, of which one has a policy that lets all pass; then waits for its standard
/// input.
const KEY_MANAGER: &str = "import errno, select, socket, struct, sys
netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 6)
netlink.bind((0, 0))
netlink.send(struct.pack('=IHHIII', 20, 0x23, 1, 1, 0, 0))
netlink.recv(4096)
def policy(direction, action, more=b''):
    return bytes(152) + struct.pack('=IIBBBB4x', 0, 0, direction, action, 0, 0) + more
def attempt(s, value):
    try:
        s.setsockopt(socket.IPPROTO_IP, 17, value)
        return 'ok'
    except OSError as error:
        return errno.errorcode[error.errno]
past, other = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2)]
print(attempt(other, policy(1, 1)), attempt(other, policy(1, 0, bytes(64))), attempt(other, policy(7, 0)), attempt(past, policy(1, 0)),
    attempt(past, policy(0, 0)), flush=True)
past.bind(('10.1.0.1', 1500))
other.bind(('10.1.0.1', 1501))
while select.select([sys.stdin], [], []) and sys.stdin.readline():
    for s in (past, other):
        s.sendto(b'x', ('10.1.0.9', 9))
";

/// Only a key manager's ports bypass policies, as long as it runs.
fn bypass() -> Outcome {
    let mut site = Site::new(&format!("{AUTO}{LINKS}"))?;
    site.far.sh("ip addr add 10.1.0.9/24 dev eth0")?;
    let block = |site: &Site| -> Outcome {
        let add = |dir| site.ip(&format!("xfrm policy add src 10.1.0.0/24 dst 10.1.0.0/24 dir {dir} action block"));
        ["out", "in"].into_iter().try_for_each(|dir| add(dir).map(drop))
    };
    block(&site)?;
    let capture = Capture::start(&site.far, "eth0", "udp and src host 10.1.0.1", &site.scratch)?;
    let mut manager = site.holder_of(KEY_MANAGER)?;
    assert_eq!(manager.next_line()?, "ENOTSUP ENOTSUP EINVAL ok ok\n");
    let seen = || run(Command::new("tcpdump").args(["-nr"]).arg(site.scratch.file("eth0.pcap"))).unwrap_or_default();
    let count = |port: u16| seen().matches(&format!("10.1.0.1.{port} > 10.1.0.9.9: ")).count();
    let mut passes = |what: &str| {
        let before = count(1500);
        wait_until(what, PATIENCE, || {
            let resumed = manager.go_on();
            std::thread::sleep(Duration::from_millis(100));
            resumed.is_ok() && count(1500) > before
        })
    };
    passes("a datagram passes")?;
    // The next gateway gets the port, too.
    site.gateway.kill()?;
    site.gateway = start(&site.scratch, &site.host, &format!("{AUTO}{LINKS}"))?;
    block(&site)?;
    passes("a datagram passes the next gateway")?;
    capture.finish()?;
    assert_eq!(count(1501), 0, "{}", seen());
    drop(manager);
    let script = "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(('10.1.0.1', 1500)); s.sendto(b'x', ('10.1.0.9', 9))";
    // The key manager has ended, and policies apply to its port again.
    wait_until("another program's datagram is dropped", PATIENCE, || {
        let before = site.gateway.show("drops").unwrap_or_default();
        site.exec(&format!("python3 -c \"{script}\"")).is_ok()
            && site.gateway.show("drops").is_ok_and(|now| now != before && now.contains("PolicyBlock"))
    })
}

/// Tcpdump on the device of a link captures forwarded packets and packets for sockets, and nothing is copied after its
/// end.
fn tcpdump() -> Outcome {
    let link = |name: &str, addr: &str| {
        format!("[[link]]\nname = \"{name}\"\nkind = \"packet\"\ninterface = \"{name}\"\naddresses = [\"{addr}/24\"]\n")
    };
    let wan = link("eth0", "10.1.0.1");
    let mut site = Site::new(&wan)?;
    let lan = Netns::new("lan")?;
    veth((&site.host, "eth1"), (&lan, "eth0"))?;
    site.gateway.reload(&(wan + &link("eth1", "10.2.0.1")))?;
    site.gateway
        .wait_until("the link is there", |gateway| gateway.show("links").is_ok_and(|shown| shown.contains("eth1")))?;
    lan.sh("ip addr add 10.2.0.2/24 dev eth0; ip route add 10.1.0.0/24 via 10.2.0.1")?;
    site.far.sh("ip addr add 10.1.0.2/24 dev eth0; ip route add 10.2.0.0/24 via 10.1.0.1")?;
    let pings = || site.far.sh("for to in 10.2.0.2 10.1.0.1; do ping -n -q -c 3 -i 0.1 -W 5 -s 3000 $to; done");
    pings()?;
    let copied = || -> Outcome<String> {
        let shown = site.gateway.show("counters")?;
        Ok(shown.lines().filter(|line| line.starts_with("copied host-side")).collect())
    };
    let (file, log) = (site.scratch.file("dump"), site.scratch.file("dump.log"));
    let script = format!("exec tcpdump -Z root -n -l -i eth0 icmp >{} 2>{}", file.display(), log.display());
    let mut tcpdump = site.fatpath(&["exec", "--instance", "x", "--", "sh", "-c", &script]).spawn()?;
    wait_until("tcpdump listens", PATIENCE, || {
        fs::read_to_string(&log).is_ok_and(|text| text.contains("listening on"))
    })?;
    // The gateway is notified a moment later.
    let are_copied = || {
        let before = copied()?;
        site.far.sh("ping -n -q -c 1 -W 5 10.2.0.2")?;
        Ok::<_, libtest_mimic::Failed>(copied()? != before)
    };
    wait_until("frames are copied", PATIENCE, || are_copied().unwrap_or(false))?;
    pings()?;
    // Each of a ping's three fragments, forwarded and to the gateway; pings to the gateway are captured reassembled
    // too.
    let is_short = |line: &str| line.ends_with("length 64");
    let seen = || {
        fs::read_to_string(&file)
            .map(|text| text.lines().filter(|line| !is_short(line)).map(str::to_owned).collect::<Vec<_>>())
    };
    wait_until("tcpdump has seen it all", PATIENCE, || seen().is_ok_and(|seen| seen.len() >= 3 * (6 + 3 + 1 + 1)))?;
    rustix::process::kill_process(rustix::process::Pid::from_child(&tcpdump), rustix::process::Signal::INT)?;
    tcpdump.wait()?;
    let seen = seen()?;
    let count = |what: &str| seen.iter().filter(|line| line.contains(what)).count();
    let counts =
        ["10.1.0.2 > 10.2.0.2: ", "10.2.0.2 > 10.1.0.2: ", "10.1.0.2 > 10.1.0.1: ", "10.1.0.1 > 10.1.0.2: "].map(count);
    assert_eq!(counts, [9, 9, 12, 3], "{seen:#?}");
    let before = copied()?;
    pings()?;
    assert_eq!(copied()?, before);
    Ok(())
}

fn link_files() -> Outcome {
    let site = Site::new(&format!("{AUTO}{LINKS}"))?;
    site.ip("link set eth0 mtu 1400")?;
    let read = |script: &str| site.exec(script);
    // By its path, relative to a directory, by the device's path, and by streams.
    for script in [
        "cat /sys/class/net/eth0/mtu",
        "cd /sys/class/net/eth0; cat mtu",
        "cat /sys/devices/virtual/net/eth0/mtu",
        "python3 -c \"print(open('/sys/class/net/eth0/mtu').read(), end='')\"",
        "awk '{print}' /sys/class/net/eth0/mtu",
    ] {
        assert_eq!(read(script)?, "1400\n", "{script}");
    }
    assert_eq!(read("cat /sys/class/net/eth0/operstate")?, "up\n");
    assert_eq!(read("cat /sys/class/net/wan/mtu")?, read("ip -o link show wan | sed 's/.* mtu //; s/ .*//'")?);
    // The speed that `ethtool` shows; an interface without one has none.
    let speed = site.exec("cat /sys/class/net/eth0/speed")?;
    let of_host = site.host.sh("cat /sys/class/net/eth0/speed")?;
    assert_eq!(speed, of_host);
    for (script, why) in [
        ("echo 1300 >/sys/class/net/eth0/mtu", ""),
        ("cat /sys/class/net/eth7/mtu", "No such file"),
        ("cat /sys/class/net/lo/speed", "Invalid argument"),
    ] {
        let failed = site.exec(script).err().and_then(|err| err.message().map(str::to_owned));
        assert!(failed.as_ref().is_some_and(|text| text.contains(why)), "{script}: {failed:?}");
    }
    assert!(site.outsider("-o link show eth0")?.contains(" mtu 65521 "));
    assert!(site.ip("-o link show eth0")?.contains(" mtu 1400 "));
    Ok(())
}

fn settings() -> Outcome {
    let site = Site::new(&format!("{AUTO}{LINKS}"))?;
    let of_host = || site.host.sh("cat /proc/sys/net/core/somaxconn /proc/sys/net/ipv4/tcp_keepalive_time");
    let before = of_host()?;
    site.exec(
        "echo 77 >/proc/sys/net/core/somaxconn
        cd /proc/sys/net/ipv4; echo 78 >tcp_keepalive_time
        python3 -c \"open('/proc/sys/net/ipv4/ip_local_port_range', 'w').write('20000 20010')\"
        test -w /proc/sys/net/ipv4/ip_nonlocal_bind
        echo 1 >/proc/sys/net/ipv4/ip_nonlocal_bind",
    )?;
    let read =
        "cd /proc/sys/net; cat core/somaxconn ipv4/tcp_keepalive_time ipv4/ip_local_port_range ipv4/ip_nonlocal_bind";
    assert_eq!(site.exec(read)?, "77\n78\n20000\t20010\n1\n");
    let mut outside = Command::new("nsenter");
    outside.arg(format!("--net={}", site.scratch.file("x.netns").display())).args(["sh", "-ec", read]);
    assert_eq!(run(&mut outside)?, "77\n78\n20000\t20010\n1\n", "the kernel of the host side has them");
    assert_eq!(of_host()?, before, "the host is as it was");
    // Sockets obey them.
    let script = "import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.connect(('10.1.0.1', 9))
print(20000 <= s.getsockname()[1] <= 20010)
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).bind(('10.99.0.1', 5000))";
    assert_eq!(site.exec(&format!("python3 -c \"{script}\""))?, "True\n");
    // Names that the gateway has are the gateway's, and others do not exist.
    site.exec("echo 1 >/proc/sys/net/ipv4/tcp_l3mdev_accept")?;
    let mut outside = Command::new("nsenter");
    outside.arg(format!("--net={}", site.scratch.file("x.netns").display()));
    assert_eq!(run(outside.args(["cat", "/proc/sys/net/ipv4/tcp_l3mdev_accept"]))?, "0\n");
    for absent in ["ipv4/igmp_max_memberships", "ipv4/tcp_no_such_setting", "ipv4/conf/all/arp_ignore"] {
        assert!(site.exec(&format!("cat /proc/sys/net/{absent}")).is_err(), "{absent}");
    }
    let listed = site.exec("ls /proc/sys/net/ipv4 /proc/sys/net/core")?;
    for name in ["tcp_rmem", "tcp_l3mdev_accept", "somaxconn", "ip_forward", "ipfrag_time"] {
        assert_eq!(listed.lines().filter(|&line| line == name).count(), 1, "{name} in {listed}");
    }
    assert!(!listed.contains("igmp_max_memberships"), "{listed}");
    // Without the host side they would be the caller's namespace's.
    let mut host = site.fatpath(&["exec", "--instance", "x", "--sockets", "host", "--"]);
    host.args(["sh", "-c", "cat /proc/sys/net/core/somaxconn; ls /proc/sys/net/core"]);
    assert!(!run(&mut host)?.contains("somaxconn"));
    Ok(())
}

fn off() -> Outcome {
    let site = Site::new(&format!("{OFF}{LINKS}"))?;
    let own = fs::read_link("/proc/self/ns/net")?.display().to_string();
    assert_eq!(site.exec("readlink /proc/self/ns/net")?.trim(), own);
    assert_eq!(site.gateway.show("host")?, "host side off\n");
    drop(site);
    let site = Site::new(LINKS)?;
    let words = ["exec", "--sockets", "host", "--instance", "x", "--", "readlink", "/proc/self/ns/net"];
    assert_eq!(run(&mut site.fatpath(&words))?.trim(), own);
    // A user without permission to enter gets an error.
    fs::set_permissions(site.scratch.path(), fs::Permissions::from_mode(0o755))?;
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(fatpath());
    command.args(["exec", "--instance", "x", "--", "readlink", "/proc/self/ns/net"]);
    let output = command.env("FATPATH_RUNDIR", site.scratch.path()).output()?;
    let printed = String::from_utf8_lossy(&output.stderr);
    assert_eq!(
        printed,
        "fatpath exec: may not enter the gateway's host side; sockets remain in the caller's namespace\n"
    );
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), own);
    Ok(())
}

fn failed() -> Outcome {
    let (scratch, host) = (Scratch::new()?, Netns::new("x")?);
    let bound = Bound(scratch.file("x.netns"));
    let mut command = host.command("sh");
    command.args(["-ec", "mount --bind /proc/sys /proc/sys; mount -o remount,bind,ro /proc/sys; exec \"$@\"", "sh"]);
    command.arg(fatpath());
    let gateway = Gateway::start_under(command, &scratch, "x", AUTO)?;
    let shown = gateway.show("host")?;
    assert!(shown.starts_with("host side failed (/proc/sys/net/ipv4/conf/"), "{shown}");
    assert!(shown.contains("Read-only file system") && !bound.0.exists(), "{shown}");
    let mut command = Command::new(fatpath());
    command.args(["exec", "--instance", "x", "--", "true"]).env("FATPATH_RUNDIR", scratch.path());
    let output = command.output()?;
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && printed.lines().count() == 1, "{printed}");
    assert!(printed.starts_with("fatpath exec: the gateway has no host side (/proc/sys"), "{printed}");
    Ok(())
}
