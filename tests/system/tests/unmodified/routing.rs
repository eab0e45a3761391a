//! Routing protocols on the gateway's sockets: BGP over TCP and OSPF over IP, with a BIRD that runs on a plain kernel.

use std::os::unix::net::UnixStream;

use libtest_mimic::Trial;
use system::{Need, Outcome, Process, run, trial, unpacked, wait_until};

use super::bird::Bird;
use super::frr::{Frr, ROOT};
use super::{Node, PATIENCE};

const NEEDS: &[Need] = &[
    Need::Namespaces,
    Need::Tun,
    Need::Unpacked { path: "usr/sbin/bird", package: "bird2" },
    Need::Unpacked { path: "usr/lib/frr/zebra", package: "frr" },
    Need::Unpacked { path: "usr/lib/x86_64-linux-gnu/libyang.so.2", package: "libyang2" },
];

pub(super) fn trials() -> Vec<Trial> {
    vec![
        trial("unmodified/bgpd_has_a_session_with_a_plain_neighbour", NEEDS, bgpd),
        trial("unmodified/bird_has_a_bgp_session_with_a_plain_neighbour", NEEDS, bird),
        trial("unmodified/ospfd_reaches_full_adjacency", NEEDS, ospfd),
    ]
}

/// The neighbour, which announces 10.20.0.0/16 and fd00:20::/32 and installs learned routes in its kernel.
const NEIGHBOUR: &str = r#"
log stderr all;
router id 10.1.0.2;
protocol device { }
protocol kernel { ipv4 { export where source != RTS_STATIC; }; }
protocol kernel { ipv6 { export where source != RTS_STATIC; }; }
protocol static s4 { ipv4; route 10.20.0.0/16 unreachable; }
protocol static s6 { ipv6; route fd00:20::/32 unreachable; }
protocol bgp b4 {
    local 10.1.0.2 as 65002; neighbor 10.1.0.1 as 65001; connect retry time 1; error wait time 1, 2;
    ipv4 { import all; export where proto = "s4"; };
}
protocol bgp b6 {
    local fd00:1::2 as 65002; neighbor fd00:1::1 as 65001; connect retry time 1; error wait time 1, 2;
    ipv6 { import all; export where proto = "s6"; };
}
protocol ospf v2 o4 {
    ipv4 { import all; export where proto = "s4"; };
    area 0 { interface "eth0" { hello 1; dead count 4; }; };
}
"#;

/// BIRD on the plain kernel at the far end.
struct Neighbour<'a> {
    node: &'a Node,
    process: Process,
}

impl<'a> Neighbour<'a> {
    fn start(node: &'a Node) -> Outcome<Self> {
        let (config, socket) = (node.file("far.conf", NEIGHBOUR)?, node.scratch.file("far.ctl"));
        let mut command = node.on_far(unpacked("usr/sbin/bird"));
        command.arg("-f").arg("-c").arg(config).arg("-s").arg(&socket).arg("-P").arg(node.scratch.file("far.pid"));
        let process = Process::spawn(&mut command, &node.scratch)?;
        wait_until("the neighbour listens", PATIENCE, || UnixStream::connect(&socket).is_ok())?;
        Ok(Self { node, process })
    }

    /// Waits until its kernel has a route.
    fn wait_for_route(&self, family: &str, route: &str) -> Outcome {
        let listed = || self.node.far.sh(&format!("ip {family} route"));
        wait_until(&format!("the neighbour has {route}"), PATIENCE, || {
            listed().is_ok_and(|printed| printed.contains(route))
        })
        .map_err(|failed| {
            let shown = ["protocols", "route all"].map(|what| self.show(what).unwrap_or_default()).concat();
            let log = self.process.output();
            format!("{}: {:?}\n{shown}\n{log}", failed.message().unwrap_or_default(), listed()).into()
        })
    }

    fn show(&self, what: &str) -> Outcome<String> {
        let mut command = self.node.on_far(unpacked("usr/sbin/birdcl"));
        run(command.arg("-s").arg(self.node.scratch.file("far.ctl")).arg("show").args(what.split(' ')))
    }
}

fn bgpd() -> Outcome {
    let node = Node::new()?;
    let neighbour = Neighbour::start(&node)?;
    // Over IPv6 bgpd announces a link-local next hop to a neighbour on its link, too.
    node.ip("addr add fe80::1/64 dev eth0")?;
    let frr = Frr::new(&node, ROOT)?;
    let _zebra = frr.start("zebra", "")?;
    let bgpd = frr.start(
        "bgpd",
        "router bgp 65001
 bgp router-id 10.1.0.1
 no bgp ebgp-requires-policy
 timers bgp 1 3
 neighbor 10.1.0.2 remote-as 65002
 neighbor fd00:1::2 remote-as 65002
 address-family ipv4 unicast
  network 10.3.0.0/24
  no neighbor fd00:1::2 activate
 address-family ipv6 unicast
  redistribute connected
  neighbor fd00:1::2 activate
",
    )?;
    let summary = || frr.show("bgpd", "bgp summary").unwrap_or_default();
    let explain = |failed: libtest_mimic::Failed| -> libtest_mimic::Failed {
        format!("{}\n{}\n{}", failed.message().unwrap_or_default(), summary(), bgpd.output()).into()
    };
    node.wait_for_ip("route", "10.20.0.0/16 via 10.1.0.2 dev eth0 proto bgp metric 20 \n").map_err(explain)?;
    node.wait_for_ip("-6 route", "fd00:20::/32 via fe80::").map_err(explain)?;
    neighbour.wait_for_route("", "10.3.0.0/24 via 10.1.0.1 dev eth0 proto bird").map_err(explain)?;
    Ok(())
}

fn bird() -> Outcome {
    let node = Node::new()?;
    let neighbour = Neighbour::start(&node)?;
    let bird = Bird::start(
        &node,
        "log stderr all;
router id 10.1.0.1;
protocol device { scan time 1; }
protocol direct { ipv4; ipv6; }
protocol kernel { ipv4 { export where source = RTS_BGP; }; }
protocol kernel { ipv6 { export where source = RTS_BGP; }; }
protocol bgp b4 {
    local 10.1.0.1 as 65001; neighbor 10.1.0.2 as 65002; connect retry time 1; error wait time 1, 2;
    ipv4 { import all; export where source = RTS_DEVICE; };
}
protocol bgp b6 {
    local fd00:1::1 as 65001; neighbor fd00:1::2 as 65002; connect retry time 1; error wait time 1, 2;
    ipv6 { import all; export where source = RTS_DEVICE; };
}
",
    )?;
    bird.wait_for("protocols", &["b4         BGP        ---        up", "b6         BGP        ---        up"])?;
    node.wait_for_ip("route", "10.20.0.0/16 via 10.1.0.2 dev eth0 proto bird metric 32 \n")?;
    node.wait_for_ip("-6 route", "fd00:20::/32 via ")?;
    neighbour.wait_for_route("", "10.3.0.0/24 via 10.1.0.1 dev eth0 proto bird")
}

fn ospfd() -> Outcome {
    let node = Node::new()?;
    let neighbour = Neighbour::start(&node)?;
    let frr = Frr::new(&node, ROOT)?;
    let _zebra = frr.start("zebra", "")?;
    let ospfd = frr.start(
        "ospfd",
        "interface eth0
 ip ospf hello-interval 1
 ip ospf dead-interval 4
router ospf
 ospf router-id 10.1.0.1
 network 10.1.0.0/24 area 0
 redistribute connected
",
    )?;
    let shown = || frr.show("ospfd", "ip ospf neighbor").unwrap_or_default();
    let explain = |failed: libtest_mimic::Failed| -> libtest_mimic::Failed {
        format!("{}\n{}\n{}", failed.message().unwrap_or_default(), shown(), ospfd.output()).into()
    };
    wait_until("the adjacency is full", PATIENCE, || shown().contains("Full/")).map_err(explain)?;
    node.wait_for_ip("route", "10.20.0.0/16 via 10.1.0.2 dev eth0 proto ospf metric 20 \n").map_err(explain)?;
    neighbour.wait_for_route("", "10.3.0.0/24 via 10.1.0.1 dev eth0 proto bird")?;
    let neighbours = neighbour.show("ospf neighbors o4")?;
    assert!(neighbours.contains("Full/"), "{neighbours}");
    Ok(())
}
