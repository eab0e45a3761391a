//! Queueing disciplines: the system's own `tc`, word for word, and what passes them.

use libtest_mimic::Trial;
use system::{Gateway, Need, Netns, Outcome, Scratch, trial};

use crate::ip::{ETH0, compare_lines, exec, near_with};

/// Commands, for a shell, about one Ethernet interface: eth0, number 2.
const LINES: &str = include_str!("qdisc.lines");

pub(crate) fn trials() -> Vec<Trial> {
    vec![trial("qdisc/tc_prints_what_it_prints_of_linux", &[Need::Namespaces], compare)]
}

fn compare() -> Outcome {
    let (scratch, far) = (Scratch::new()?, Netns::new("far")?);
    let near = |role: &str| {
        let netns = near_with(role, &far, "numtxqueues 1 numrxqueues 1")?;
        // Nothing is sent that would be counted.
        netns.sh("echo 1 >/proc/sys/net/ipv6/conf/eth0/disable_ipv6")?;
        Ok::<_, libtest_mimic::Failed>(netns)
    };
    let (linux, ours) = (near("linux")?, near("ours")?);
    let _gateway = Gateway::start(&ours, &scratch, "ours", ETH0)?;
    compare_lines(&scratch, LINES, linux.command("sh"), exec(&ours, "ours"))
}
