//! Sockets and VRFs against a Linux kernel that has them: connections of sockets bound to nothing, to the VRF and to
//! its link, from the host itself and from another (Linux `fcnal-test.sh`).

use std::process::{Command, Stdio};
use std::time::Duration;

use interop::Uml;
use libtest_mimic::Trial;
use system::{Gateway, Need, Netns, Outcome, Process, Scratch, fatpath, trial, veth, wait_until};

const NEEDS: &[Need] = &[Need::Namespaces, Need::Tun, Need::UML, Need::MODPROBE, Need::PING, Need::PYTHON];
const SCRIPT: &str = include_str!("vrf_sockets.py");
const PATIENCE: Duration = Duration::from_secs(90);

pub(crate) fn trials() -> Vec<Trial> {
    vec![trial("fatpath/sockets_of_a_vrf_reach_the_same_peers_as_on_linux", NEEDS, compare)]
}

/// Creates a VRF with `eth0` and the servers on a host, and runs a client there. `PYTHON` is the path of the script.
const NODE: &str = "
ip link add red type vrf table 10
ip link set red up
ip link set eth0 master red
ip link set eth0 up
for family in -4 -6; do ip $family rule add pref 32765 table local; ip $family rule del pref 0; done
ip addr add 10.1.0.1/24 dev eth0
ip -6 addr add fd00:1::1/64 dev eth0 nodad
sleep 1
python3 PYTHON serve none red eth0 >/dev/null &
server=$!
sleep 4
python3 PYTHON ask node
sleep 12
sysctl -q -w net.ipv4.tcp_l3mdev_accept=1 net.ipv4.udp_l3mdev_accept=1
echo accepting
python3 PYTHON ask node
sleep 12
kill $server
";

const FAR: &str = "ip link set lo up; ip link set eth0 up
ip addr add 10.1.0.9/24 dev eth0; ip addr add fd00:1::9/64 dev eth0 nodad";

/// Known differences, each with the node's output.
const DIFFERENT: &[(&str, &str)] = &[
    // Linux does not report the refusal of the datagram to this socket.
    ("udp4 eth0 to node none", "ECONNREFUSED"),
];

fn compare() -> Outcome {
    let (scratch, linux_far) = (Scratch::new()?, Netns::new("linux")?);
    let (node, far) = (Netns::new("node")?, Netns::new("far")?);
    let script = scratch.file("vrf_sockets.py");
    std::fs::write(&script, SCRIPT)?;
    let script = script.display().to_string();
    let mut linux = Uml::boot(&linux_far, &["eth0"])?;
    linux.put("vrf_sockets.py", SCRIPT.as_bytes())?;
    linux.sh("/run/modprobe vrf; ip link set lo up")?;
    veth((&node, "eth0"), (&far, "eth0"))?;
    let file = "[[link]]\nname = \"eth0\"\nkind = \"packet\"\ninterface = \"eth0\"\n";
    let gateway = Gateway::start(&node, &scratch, "node", file)?;
    let mut servers = Vec::new();
    for far in [&linux_far, &far] {
        far.sh(FAR)?;
        let mut server = far.command("python3");
        server.args([&script, "serve", "none"]);
        servers.push(Process::spawn(&mut server, &scratch)?);
    }
    let of_linux = NODE.replace("PYTHON", "vrf_sockets.py");
    let running = linux.start(&of_linux)?;
    let mut exec = Command::new(fatpath());
    exec.args(["exec", "--instance", "node", "--", "sh", "-c", &NODE.replace("PYTHON", &script)]);
    exec.current_dir(scratch.path()).env("FATPATH_RUNDIR", scratch.path());
    let mut ours = Process::spawn(&mut exec, &scratch)?;
    let mut outputs = [String::new(), String::new()];
    // Port 5000 of the unbound server is refused at first and answered later.
    for port in [5001, 5000] {
        for (far, outputs) in [&linux_far, &far].into_iter().zip(&mut outputs) {
            let reached = format!("import socket; socket.create_connection(('10.1.0.1', {port}), 1)");
            wait_until("the server in the VRF", PATIENCE, || {
                far.command("python3")
                    .args(["-c", &reached])
                    .stderr(Stdio::null())
                    .status()
                    .is_ok_and(|it| it.success())
            })?;
            *outputs += &far.sh(&format!("python3 {script} ask far"))?;
        }
    }
    let linux = running.wait()? + &outputs[0];
    ours.wait(PATIENCE)?;
    let got = ours.output() + &outputs[1];
    let cells = |text: &str| -> Vec<String> {
        text.lines().filter(|line| line.contains(" to ")).map(ToOwned::to_owned).collect()
    };
    let (want, got) = (cells(&linux), cells(&got));
    assert_eq!((want.len(), got.len()), (148, 148), "Linux:\n{linux}\nfatpath:\n{got:#?}");
    let is_known = |line: &str| DIFFERENT.iter().any(|(cell, text)| line == format!("{cell}: {text}"));
    let report: String = want
        .iter()
        .zip(&got)
        .filter(|(want, got)| want != got && !is_known(got))
        .map(|(want, got)| format!("Linux {want}\n      {got}\n"))
        .collect();
    if report.is_empty() { Ok(()) } else { Err(format!("{report}{}", gateway.show("drops")?).into()) }
}
