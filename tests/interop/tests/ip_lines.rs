//! VRFs and ILA by `ip`, word for word: the same lines under `fatpath exec` and in a Linux kernel that has them, about
//! two Ethernet interfaces, eth0 and eth1. Their output, on either stream, and their exit codes are compared.

use interop::Uml;
use libtest_mimic::Trial;
use system::{Gateway, LINE_RUNNER, Need, Netns, Outcome, Scratch, trial};

use crate::alike::compare_lines;

const NEEDS: &[Need] = &[Need::Namespaces, Need::UML, Need::MODPROBE];

/// The lines. Each is a command for a shell.
const VRF: &str = include_str!("ip_vrf.lines");
/// `ip ila list` of iproute2 6.1 prints wrong locators, so that they are left out.
const ILA: &str = include_str!("ip_ila.lines");

/// The namespace of the Linux kernel that has the interfaces, each of which leads to the other one.
const LINUX: &str = "
/run/modprobe ila
mkdir -p /run/netns
ip netns add near
ip netns add far
for scope in all default; do
    echo 0 | ip netns exec near tee /proc/sys/net/ipv6/conf/$scope/accept_dad
done
echo 1 | ip netns exec near tee /proc/sys/net/ipv6/conf/all/forwarding
for n in 0 1; do
    ip -n near link add eth$n index $((n + 2)) address 02:00:00:00:01:0$n type veth peer name far$n netns far
    ip -n near link set eth$n addrgenmode none up
    ip -n far link set far$n addrgenmode none up
done
";

/// A gateway on both interfaces.
const GATEWAY: &str = "
[[link]]
name = \"eth0\"
kind = \"packet\"
interface = \"eth0\"

[[link]]
name = \"eth1\"
kind = \"packet\"
interface = \"eth1\"
";

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("fatpath/output_of_ip_about_vrfs_is_the_same_as_on_linux", NEEDS, || compare(VRF)),
        trial("fatpath/output_of_ip_ila_is_the_same_as_on_linux", NEEDS, || compare(ILA)),
    ]
}

fn compare(lines: &str) -> Outcome {
    let (scratch, netns, far) = (Scratch::new()?, Netns::new("near")?, Netns::new("far")?);
    let mut linux = Uml::boot(&netns, &[])?;
    linux.put("runner", LINE_RUNNER.as_bytes())?;
    linux.sh(LINUX)?;
    let mut want = String::new();
    // A guest starts programs slowly, so the lines are run in chunks, each with its own timeout.
    for some in lines.lines().collect::<Vec<_>>().chunks(20) {
        linux.put("lines", (some.join("\n") + "\n").as_bytes())?;
        want += &linux.sh("ip netns exec near sh ./runner lines")?;
    }
    for n in 0..2 {
        let peer = format!("type veth peer name far{n} netns {}", far.name());
        netns.sh(&format!("ip link add eth{n} address 02:00:00:00:01:0{n} {peer}"))?;
        netns.sh(&format!("ip link set eth{n} addrgenmode none up"))?;
        far.sh(&format!("ip link set far{n} addrgenmode none up"))?;
        netns.sh(&format!("until grep -q up /sys/class/net/eth{n}/operstate; do sleep 0.1; done"))?;
    }
    let _gateway = Gateway::start(&netns, &scratch, "near", GATEWAY)?;
    compare_lines(&scratch, lines, &want, normal)
}

/// A line without the marks of a veth, and with the numbers that Linux gives to VRFs.
fn normal(line: &str) -> String {
    // The node's numbers are larger by 1000000000.
    let mut line = line.replace("100000000", "").replace("10000000", "");
    // A kernel for one processor does not print the number of receive queues.
    line = line.replace(" numrxqueues 1", "");
    for (begin, end) in [("@if", &[':', ' '][..]), (" link-netns ", &[' '][..])] {
        if let Some(at) = line.find(begin) {
            let rest = at + begin.len();
            let end = line[rest..].find(end).map_or(line.len(), |end| rest + end);
            line.replace_range(at..end, "");
        }
    }
    // `ip -br` has columns.
    let is_brief = ["eth0 ", "eth1 "].iter().any(|name| line.starts_with(name));
    if is_brief { line.split_whitespace().collect::<Vec<_>>().join(" ") } else { line }
}
