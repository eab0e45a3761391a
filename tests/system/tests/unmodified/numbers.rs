//! Numbers of links: a link's number refers to the right interface on the host, or to none.

use std::collections::HashMap;
use std::process::Command;

use libtest_mimic::Trial;
use system::{Gateway, Need, Outcome, fatpath, run, trial, wait_until};

use super::{Node, PATIENCE};

const NEEDS: &[Need] = &[Need::Namespaces, Need::Tun, Need::PYTHON];
const TCPDUMP: &[Need] = &[Need::Namespaces, Need::Tun, Need::TCPDUMP];

pub(super) fn trials() -> Vec<Trial> {
    vec![
        trial("unmodified/links_have_the_numbers_of_the_host", NEEDS, numbers),
        trial("unmodified/sockets_of_the_host_meet_the_right_interface", NEEDS, sockets),
        trial("unmodified/tcpdump_of_a_link_the_host_lacks_is_enodev", TCPDUMP, tcpdump),
        trial("unmodified/link_made_again_has_the_new_number", NEEDS, again),
        trial("unmodified/two_links_on_one_interface_are_refused", NEEDS, twice),
    ]
}

/// Each interface and its number, as `ip -o link` lists them.
fn by_name(listed: &str) -> Outcome<HashMap<String, u32>> {
    let each = listed.lines().map(|line| {
        let mut words = line.split(": ");
        let (number, name) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        Ok((name.split('@').next().unwrap_or_default().to_owned(), number.parse()?))
    });
    each.collect()
}

/// Options of `fatpath exec` with which a program's sockets stay in the host's namespace.
const ON_HOST: [&str; 2] = ["--sockets", "host"];

/// The first number of links that are no interface of the host.
const FIRST_OWN: u32 = 1_000_000_000;

fn numbers() -> Outcome {
    let node = Node::new()?;
    let listed = node.ip("-o link")?;
    let (ours, host) = (by_name(&listed)?, by_name(&node.host.sh("ip -o link")?)?);
    for name in ["lo", "eth0", "tun0"] {
        assert_eq!(ours[name], host[name], "{name}: {listed}");
    }
    assert!(host["mgmt"] == 2 && host["eth0"] == 3, "{host:?}");
    for name in ["wan", "red"] {
        assert!(ours[name] > FIRST_OWN, "{name}: {listed}");
    }
    // As Linux lists them.
    assert!(
        by_name(&listed)?.len() == 5
            && listed
                .lines()
                .map(|line| line.split(':').next())
                .is_sorted_by_key(|number| { number.and_then(|number| number.parse::<u32>().ok()) }),
        "{listed}"
    );
    Ok(())
}

/// Prints the kernel's results for sockets that name a link by its number, or by its name.
const SOCKETS: &str = r#"
import errno, socket, struct

def attempt(action):
    try:
        return action() or "ok"
    except OSError as error:
        return errno.errorcode.get(error.errno, "none")

for name in ["eth0", "tun0", "red", "wan", "mgmt"]:
    def bind_device():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, name.encode() + b"\0")
            return s.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16).rstrip(b"\0").decode()
    def bind_packet():
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as s:
            s.bind((name, 0))
    def send_packet():
        with socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0) as s:
            s.sendto(b"fatpath", (name, 0x88b5, 0, 0, b"\xff" * 6))
    def join():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
            request = struct.pack("=4s4si", bytes([224, 0, 0, 99]), bytes(4), socket.if_nametoindex(name))
            s.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, request)
    print(name, *map(attempt, [bind_device, bind_packet, send_packet, join]))
"#;

fn sockets() -> Outcome {
    let node = Node::new()?;
    // The host has an interface with the name of a gateway's link, and the number that another link would get by count.
    node.host
        .sh("ip link add wan type veth peer name nav; ip link set wan up; ip link set nav up; ip link set tun0 up")?;
    let script = node.file("sockets.py", SOCKETS)?;
    let printed = run(node.exec_with(&ON_HOST, "python3").arg(&script))?;
    let want = "eth0 eth0 ok ok ok\ntun0 tun0 ok ok ok\nred ENODEV ENODEV ENXIO ENODEV\nwan ENODEV ENODEV ENXIO ENODEV\nmgmt mgmt ENODEV ENODEV none\n";
    assert_eq!(printed, want);
    let printed = run(node.exec("python3").arg(script))?;
    let want =
        "eth0 eth0 ok ok ok\ntun0 tun0 ok ok ok\nred red ok ok ok\nwan wan ok ok ok\nmgmt ENODEV ENODEV ENODEV none\n";
    assert_eq!(printed, want, "on the host side each link is a device, and the host's interfaces are none");
    Ok(())
}

fn tcpdump() -> Outcome {
    let node = Node::new()?;
    for name in ["wan", "red"] {
        let output = node.exec_with(&ON_HOST, "tcpdump").args(["-i", name, "-c", "1"]).output()?;
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && printed.contains("No such device"), "{name}: {printed}");
    }
    Ok(())
}

fn again() -> Outcome {
    let node = Node::new()?;
    let number = |name: &str| Ok::<_, libtest_mimic::Failed>(by_name(&node.ip("-o link")?)?[name]);
    let on_host = |name: &str| Ok::<_, libtest_mimic::Failed>(by_name(&node.host.sh("ip -o link")?)?[name]);
    let (eth0, tun0) = (number("eth0")?, number("tun0")?);
    node.ip("link del tun0")?;
    node.ip("link add tun0 type tun")?;
    assert_eq!(number("tun0")?, on_host("tun0")?);
    assert_ne!(number("tun0")?, tun0);
    // It may be made with a number that is free on the host.
    node.ip("link del tun0")?;
    node.ip("link add tun0 index 4321 type tun")?;
    assert_eq!((number("tun0")?, on_host("tun0")?), (4321, 4321));
    let refused = node.ip("link add tun1 index 4321 type tun");
    assert!(refused.is_err());
    // A number that another interface of the host has.
    let refused = node.ip("link add tun1 index 2 type tun").expect_err("mgmt has it");
    assert!(refused.message().is_some_and(|text| text.contains("another interface has its number")), "{refused:?}");
    node.ip("link del eth0")?;
    node.host.sh("ip link del eth0; ip link add eth0 index 99 type veth peer name htE; ip link set eth0 up")?;
    node.ip("link add eth0 type packet")?;
    assert_eq!((number("eth0")?, eth0), (99, 3));
    node.ip("link set eth0 up")?;
    wait_until("a route by eth0 is there", PATIENCE, || {
        node.ip("addr replace 10.1.0.1/24 dev eth0").is_ok()
            && node.ip("route show dev eth0").is_ok_and(|printed| printed.contains("10.1.0.0/24"))
    })?;
    Ok(())
}

fn twice() -> Outcome {
    let node = Node::new()?;
    let toml = "[[link]]\nname = \"a\"\nkind = \"packet\"\ninterface = \"eth0\"\n";
    let _other = Gateway::start(&node.host, &node.scratch, "y", toml)?;
    let mut command = Command::new(fatpath());
    command.args(["ip", "--instance", "y", "link", "add", "eth0", "type", "packet"]);
    let refused = run(command.env("FATPATH_RUNDIR", node.scratch.path())).expect_err("eth0 is a's interface");
    let want = "Error: eth0: its interface has number 3 on the host, which is link a's.";
    assert!(refused.message().is_some_and(|text| text.contains(want)), "{refused:?}");
    Ok(())
}
