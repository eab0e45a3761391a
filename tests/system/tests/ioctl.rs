//! Programs that change interfaces, routes, neighbours and bridges by `ioctl`: the same commands on a gateway and on this
//! host's kernel.

use libtest_mimic::Trial;
use system::{Gateway, Need, Netns, Outcome, Scratch, trial, unpacked};

use crate::ip::{ETH0, compare_lines, exec, near};

/// Commands, for a shell, about one Ethernet interface: eth0, number 2.
const LINES: &str = include_str!("ioctl.lines");

const NEEDS: &[Need] = &[
    Need::Namespaces,
    Need::Tun,
    Need::Program { name: "ifconfig", package: "net-tools" },
    Need::Unpacked { path: "sbin/brctl", package: "bridge-utils" },
];

pub(crate) fn trials() -> Vec<Trial> {
    vec![trial("ioctl/ifconfig_route_arp_brctl_are_as_on_linux", NEEDS, compare)]
}

fn compare() -> Outcome {
    let (scratch, far) = (Scratch::new()?, Netns::new("far")?);
    let (linux, ours) = (near("linux", &far)?, near("ours", &far)?);
    let _gateway = Gateway::start(&ours, &scratch, "ours", ETH0)?;
    let [mut linux, mut ours] = [linux.command("sh"), exec(&ours, "ours")];
    for shell in [&mut linux, &mut ours] {
        shell.env("BRCTL", unpacked("sbin/brctl"));
    }
    compare_lines(&scratch, LINES, linux, ours)
}
