//! DHCP: a client on the gateway whose address becomes the gateway's.

use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;

use libtest_mimic::Trial;
use rustix::process::Signal;
use system::{Need, Netns, Outcome, PING_SIZES, Process, ping_script, trial, unpacked, wait_until};

use super::{Node, PATIENCE};

const NEEDS: &[Need] = &[
    Need::Namespaces,
    Need::Tun,
    Need::PING,
    Need::Unpacked { path: "sbin/dhclient", package: "isc-dhcp-client" },
    Need::Unpacked { path: "usr/sbin/dnsmasq", package: "dnsmasq-base" },
    Need::Unpacked { path: "usr/lib/x86_64-linux-gnu/libnetfilter_conntrack.so.3", package: "libnetfilter-conntrack3" },
    Need::Unpacked { path: "usr/lib/x86_64-linux-gnu/libnftables.so.1", package: "libnftables1" },
    Need::Unpacked { path: "usr/lib/x86_64-linux-gnu/libnftnl.so.11", package: "libnftnl11" },
    Need::Unpacked { path: "usr/lib/x86_64-linux-gnu/libnfnetlink.so.0", package: "libnfnetlink0" },
    Need::Unpacked { path: "usr/lib/x86_64-linux-gnu/libjansson.so.4", package: "libjansson4" },
];

pub(super) fn trials() -> Vec<Trial> {
    vec![
        trial("unmodified/dhclient_gives_the_gateway_an_address", NEEDS, dhclient),
        trial("unmodified/dnsmasq_gives_a_guest_of_a_bridge_an_address", NEEDS, dnsmasq),
    ]
}

/// A DHCP server on the host side, whose offer to the guest's address is sent before the guest has the address: the
/// server adds the neighbour by `SIOCSARP`.
fn dnsmasq() -> Outcome {
    let node = Node::new()?;
    node.kill_gateway();
    node.start_gateway_with(
        "[[link]]\nname = \"br0\"\nkind = \"bridge\"\naddresses = [\"10.7.0.1/24\"]\n\
         [[link]]\nname = \"tap0\"\nkind = \"tap\"\nmaster = \"br0\"\n",
    )?;
    let guest = Netns::new("guest")?;
    node.host.sh(&format!("ip link set tap0 netns {}", guest.name()))?;
    guest.sh("ip link set tap0 up")?;
    let mut command = node.exec(unpacked("usr/sbin/dnsmasq"));
    command.args(["-k", "-C", "/dev/null", "--port=0", "--user=root", "--log-facility=-", "--log-dhcp"]);
    command.args([
        "--interface=br0",
        "--bind-interfaces",
        "--dhcp-range=10.7.0.50,10.7.0.50,2m",
        "--dhcp-authoritative",
    ]);
    command.args(["--dhcp-leasefile=/dev/null", "--pid-file=", "--no-ping"]);
    let server = Process::spawn(&mut command, &node.scratch)?;
    wait_until("dnsmasq is ready", PATIENCE, || server.output().contains("DHCP, IP range 10.7.0.50"))
        .map_err(|failed| format!("{}: {}", failed.message().unwrap_or_default(), server.output()))?;
    // A client that only prints what it gets, and leaves the guest's address and resolver as they are.
    let script = node.file("lease", "#!/bin/sh\n[ -z \"$new_ip_address\" ] || echo \"$reason $new_ip_address\"\n")?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
    let mut client = guest.command(unpacked("sbin/dhclient"));
    client.env("LD_LIBRARY_PATH", super::libraries()).args(["-1", "-d", "-4", "-cf", "/dev/null", "-sf"]).arg(&script);
    client.arg("-lf").arg(node.scratch.file("leases")).arg("-pf").arg(node.scratch.file("pid")).arg("tap0");
    let client = Process::spawn(&mut client, &node.scratch)?;
    wait_until("the guest gets its address", PATIENCE, || client.output().contains("BOUND 10.7.0.50"))
        .map_err(|_| format!("no lease:\n{}\n{}", client.output(), server.output()))?;
    assert!(!server.output().contains("ARP-cache injection failed"), "{}", server.output());
    Ok(())
}

fn dhclient() -> Outcome {
    let node = Node::new()?;
    // The lease is the only configuration.
    node.ip("addr flush dev eth0")?;
    let mut command = node.on_far(unpacked("usr/sbin/dnsmasq"));
    command.args(["-k", "-C", "/dev/null", "--port=0", "--user=root", "--log-facility=-", "--log-dhcp"]);
    command.args(["--interface=eth0", "--bind-interfaces", "--dhcp-range=10.1.0.50,10.1.0.50,2m"]);
    command.args(["--dhcp-option=3,10.1.0.2", "--dhcp-option=6", "--dhcp-authoritative", "--dhcp-leasefile=/dev/null"]);
    let server = Process::spawn(command.arg("--pid-file=").arg("--no-ping"), &node.scratch)?;
    wait_until("dnsmasq is ready", PATIENCE, || server.output().contains("DHCP, IP range 10.1.0.50"))
        .map_err(|failed| format!("{}: {}", failed.message().unwrap_or_default(), server.output()))?;
    let config = node.file("dhclient.conf", "request subnet-mask, routers;\nretry 2;\ninitial-interval 1;\n")?;
    let resolv = fs::read("/etc/resolv.conf").ok();
    let command = |mode: &str| {
        let mut command = node.exec(unpacked("sbin/dhclient"));
        command.args([mode, "-v", "-4", "-cf"]).arg(&config).arg("-sf").arg(unpacked("sbin/dhclient-script"));
        command.arg("-lf").arg(node.scratch.file("leases")).arg("-pf").arg(node.scratch.file("dhclient.pid"));
        command
    };
    let mut client = Process::spawn(command("-d").arg("eth0"), &node.scratch)?;
    node.wait_for_ip("addr show dev eth0", "inet 10.1.0.50/24 brd 10.1.0.255 scope global dynamic eth0\n")
        .and_then(|()| node.wait_for_ip("route", "default via 10.1.0.2 dev eth0 \n"))
        .map_err(|failed| {
            let printed = [client.output(), server.output()].concat();
            format!("{}:\n{printed}", failed.message().unwrap_or_default())
        })?;
    // The address works for sockets and on the wire.
    let there: IpAddr = "10.1.0.50".parse()?;
    node.far.sh(&ping_script(there, PING_SIZES))?;
    system::run(node.exec("ping").args(["-n", "-q", "-c", "1", "-W", "5", "-I", "10.1.0.50", "10.1.0.2"]))?;
    // The lease is released by unicast from its address; then the address is deleted.
    client.signal(Signal::TERM)?;
    client.wait(PATIENCE)?;
    system::run(command("-r").arg("eth0"))?;
    wait_until("the server gets the release", PATIENCE, || server.output().contains("DHCPRELEASE(eth0) 10.1.0.50"))
        .map_err(|failed| format!("{}: {}", failed.message().unwrap_or_default(), server.output()))?;
    assert!(!node.ip("addr show dev eth0")?.contains("10.1.0.50"));
    assert_eq!(fs::read("/etc/resolv.conf").ok(), resolv, "the host's resolver is as it was");
    Ok(())
}
