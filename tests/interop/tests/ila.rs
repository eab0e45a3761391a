//! ILA against a Linux kernel: two hosts in SIR space, one behind a gateway and one behind a Linux router, each of
//! which translates packets that it sends to the other.

use std::net::IpAddr;

use interop::Uml;
use libtest_mimic::Trial;
use system::{
    Gateway, Need, Netns, Outcome, PING_SIZES, Process, Scratch, ping_script, transfer, trial, veth, wait_until,
};

const NEEDS: &[Need] = &[Need::Namespaces, Need::Tun, Need::UML, Need::MODPROBE, Need::PING, Need::PYTHON];

/// Host `a` is fd01::2 with the ILA address fd11::2; host `b` is fd02::2 with the ILA address fd12::2, or other
/// addresses of these locators.
const A: &str = "fd01::2";
const B: &str = "fd02::2";

/// Bytes of each TCP transfer.
const STREAM_LEN: usize = 1 << 20;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("fatpath/ila_translates_as_linux_in_each_mode", NEEDS, each_mode),
        trial("fatpath/ila_routes_translate_as_linux_in_each_mode", NEEDS, each_mode_by_routes),
    ]
}

/// The gateway in front of `a`, with `more` behind its links.
fn gateway(more: &str) -> String {
    let link = |name: &str, addr: &str| {
        format!(
            "[[link]]\nname = \"{name}\"\nkind = \"packet\"\ninterface = \"{name}\"\naddresses = [\"{addr}/64\"]\n\n"
        )
    };
    let route = "[[route]]\nto = \"fd12::/64\"\nvia = \"fd99::2\"\n\n";
    format!("{}{}{route}{more}", link("lan0", "fd01::1"), link("wan0", "fd99::1"))
}

/// Mappings of the gateway of that mode.
fn mappings_of_gateway(mode: &str) -> String {
    let mapping = |from: &str, to: &str, dev: &str| {
        format!(
            "[[ila]]\nloc_match = \"{from}:0:0:0\"\nloc = \"{to}:0:0:0\"\ndev = \"{dev}\"\ncsum-mode = \"{mode}\"\n\n"
        )
    };
    mapping("fd02", "fd12", "lan0") + &mapping("fd11", "fd01", "wan0")
}

/// Routes of the gateway of that mode: to the locator of `b`, and from the locator of `a`. The identifiers are of any
/// type.
fn routes_of_gateway(mode: &str) -> String {
    let encap = |loc: &str, hook: &str| {
        format!(
            "encap = {{ type = \"ila\", loc = \"{loc}:0:0:0\", csum-mode = \"{mode}\", ident-type = \"luid\", hook-type = \"{hook}\" }}"
        )
    };
    format!(
        "[[route]]\nto = \"fd02::/64\"\nvia = \"fd99::2\"\n{}\n\n[[route]]\nto = \"fd11::/64\"\ndev = \"lan0\"\n{}\n\n",
        encap("fd12", "output"),
        encap("fd01", "input")
    )
}

/// The router in front of `b`: eth0 leads there, eth1 to the gateway.
const LINUX: &str = "
/run/modprobe ila
for scope in all default eth0 eth1; do echo 0 >/proc/sys/net/ipv6/conf/$scope/accept_dad; done
echo 1 >/proc/sys/net/ipv6/conf/all/forwarding
ip addr add fd02::1/64 dev eth0 nodad
ip addr add fd99::2/64 dev eth1 nodad
ip link set eth0 up
ip link set eth1 up
ip route add fd11::/64 via fd99::1 dev eth1
";

/// Lines that add the router's mappings of that mode.
fn mappings(mode: &str) -> String {
    format!(
        "ip ila add loc_match fd01:0:0:0 loc fd11:0:0:0 csum-mode {mode} dev eth0
        ip ila add loc_match fd12:0:0:0 loc fd02:0:0:0 csum-mode {mode} dev eth1"
    )
}

const NO_MAPPINGS: &str = "ip ila del loc_match fd01:0:0:0 dev eth0; ip ila del loc_match fd12:0:0:0 dev eth1";

/// Lines that add the router's routes of that mode.
fn routes(mode: &str) -> String {
    format!(
        "ip route replace fd01::/64 encap ila fd11:0:0:0 csum-mode {mode} ident-type luid via fd99::1 dev eth1
        ip route replace fd12::/64 encap ila fd02:0:0:0 csum-mode {mode} ident-type luid hook-type input dev eth0"
    )
}

const NO_ROUTES: &str = "ip route del fd01::/64; ip route del fd12::/64";

/// Two hosts, the gateway of one of them and the Linux router of the other.
struct Site {
    a: Netns,
    near: Netns,
    linux: Uml,
    gateway: Gateway,
    scratch: Scratch,
}

impl Site {
    fn new() -> Outcome<Self> {
        let (scratch, a, near) = (Scratch::new()?, Netns::new("a")?, Netns::new("near")?);
        // The kernel of `near` is host `b`, and leaves the gateway's interfaces to the gateway.
        veth((&a, "eth0"), (&near, "lan0"))?;
        a.sh("ip addr add fd01::2/64 dev eth0 nodad; ip route add default via fd01::1")?;
        let mut linux = Uml::boot(&near, &["far0", "wan0"])?;
        near.sh("for name in lan0 wan0; do echo 1 >/proc/sys/net/ipv6/conf/$name/disable_ipv6; done
            ip addr add fd02::2/64 dev far0 nodad; ip route add default via fd02::1")?;
        linux.sh(LINUX)?;
        let gateway = Gateway::start(&near, &scratch, "near", &gateway(""))?;
        Ok(Self { a, near, linux, gateway, scratch })
    }

    /// ICMP, TCP and UDP both ways, in fragments as well where these are translated as a whole.
    fn exchange(&self, mode: &str) -> Outcome {
        let (to_a, to_b): (IpAddr, IpAddr) = (A.parse()?, B.parse()?);
        let explained = |failed: libtest_mimic::Failed| explain(&failed, &self.gateway, mode);
        wait_until("packets pass", std::time::Duration::from_secs(20), || {
            self.a.sh(&format!("ping -n -q -c 1 -W 1 {B}")).is_ok()
        })
        .map_err(explained)?;
        // Packets with an extension header are left alone by adj-transport, at both ends.
        let sizes: &[u16] = if mode == "adj-transport" { &[0, 56, 1400] } else { PING_SIZES };
        for (from, to, there) in [(&self.a, &self.near, to_b), (&self.near, &self.a, to_a)] {
            from.sh(&ping_script(there, sizes)).map_err(explained)?;
            transfer(from, (to, there), STREAM_LEN).map_err(explained)?;
            let _echo = Process::spawn(to.command("python3").args(["-c", UDP_ECHO]), &self.scratch)?;
            let largest = sizes.iter().max().map_or(0, |&size| usize::from(size));
            from.sh(&format!("python3 -c '{UDP_CLIENT}' {there} {largest}")).map_err(explained)?;
        }
        Ok(())
    }
}

/// Returns each datagram to its sender.
const UDP_ECHO: &str = "import socket
server = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
server.bind((\"::\", 9007))
while True:
    data, peer = server.recvfrom(1 << 16)
    server.sendto(data, peer)
";

/// Program that sends datagrams of several sizes and compares the returned ones. The server may start late, and the
/// first datagrams be lost.
const UDP_CLIENT: &str = "import socket, sys
there, largest = sys.argv[1], int(sys.argv[2])
client = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
client.connect((there, 9007))
client.settimeout(0.5)
for size in [0, 1, 2, 999, 1300, largest]:
    block = bytes((size + at) % 251 for at in range(size))
    for attempt in range(20):
        try:
            client.send(block)
            got = client.recv(1 << 16)
        except OSError:
            continue
        if got == block:
            break
    else:
        sys.exit(f\"{size} bytes did not come back\")
";

fn each_mode() -> Outcome {
    let mut site = Site::new()?;
    for mode in ["no-action", "neutral-map-auto", "adj-transport"] {
        site.linux.sh(&mappings(mode))?;
        site.gateway.reload(&gateway(&mappings_of_gateway(mode)))?;
        site.gateway.wait_until("it has the mappings", |it| {
            it.show("ila").is_ok_and(|shown| shown.matches(&format!(" {mode} ")).count() == 2)
        })?;
        site.exchange(mode)?;
        site.linux.sh(NO_MAPPINGS)?;
    }
    Ok(())
}

fn each_mode_by_routes() -> Outcome {
    let mut site = Site::new()?;
    for mode in ["no-action", "neutral-map", "neutral-map-auto", "adj-transport"] {
        site.linux.sh(&routes(mode))?;
        site.gateway.reload(&gateway(&routes_of_gateway(mode)))?;
        // Packets of the previous mode may pass until the file is read; the four modes differ on the wire.
        site.gateway.wait_until("it has the routes", |it| {
            it.show("routes").is_ok_and(|shown| shown.matches(&format!("csum-mode {mode} ")).count() == 2)
        })?;
        site.exchange(mode)?;
        site.linux.sh(NO_ROUTES)?;
    }
    Ok(())
}

fn explain(failed: &libtest_mimic::Failed, gateway: &Gateway, mode: &str) -> libtest_mimic::Failed {
    let shown = ["counters", "drops", "ila"].map(|what| gateway.show(what).unwrap_or_default()).concat();
    format!("{mode}: {}\n{shown}\n{}", failed.message().unwrap_or_default(), gateway.log()).into()
}
