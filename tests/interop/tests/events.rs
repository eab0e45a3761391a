//! Events of packets that `ip xfrm monitor` prints: acquires, limits that are reached, and replay numbers. Each is
//! caused in a Linux kernel and on fatpath, by pings that the node answers, and both must print the same.
//!
//! ```text
//!  far 10.1.0.9 ── eth0 10.1.0.1 node
//! ```

use std::process::{Command, Stdio};
use std::time::Duration;

use interop::Uml;
use libtest_mimic::Trial;
use system::{Gateway, Need, Netns, Outcome, Process, Scratch, fatpath, trial};

const NEEDS: &[Need] = &[Need::Namespaces, Need::UML, Need::MODPROBE, Need::PING];

/// Group of the monitor, commands that set the node up, and the event printed on both sides when the node answers
/// pings.
const CASES: &[(&str, &str, &str)] = &[
    (EXPIRE, "ip xfrm policy add dir out src 10.1.0.1 dst 10.1.0.9 $TMPL", "acquire proto esp"),
    (
        EXPIRE,
        "ip xfrm policy add dir out src 10.1.0.0/24 dst 10.1.0.9 proto icmp priority 5 mark 0 mask 0 $TMPL",
        "acquire proto esp",
    ),
    (
        EXPIRE,
        "$SA limit packet-soft 2 limit packet-hard 4; ip xfrm policy add dir out src 10.1.0.1 dst 10.1.0.9 $TMPL",
        "hard 1",
    ),
    (
        EXPIRE,
        "$SA limit byte-soft 100 limit byte-hard 100000; ip xfrm policy add dir out src 10.1.0.1 dst 10.1.0.9 $TMPL",
        "hard 0",
    ),
    (EXPIRE, "$SA limit time-use-soft 1; ip xfrm policy add dir out src 10.1.0.1 dst 10.1.0.9 $TMPL", "hard 0"),
    // An acquire of an SPI makes a larval SA of that SPI, so adding the SA fails.
    (
        EXPIRE,
        "ip xfrm policy add dir out src 10.1.0.1 dst 10.1.0.9 $SPI_TMPL; sleep 9; $SA 2>&1 || true",
        "File exists",
    ),
    ("aevent", "$SA; ip xfrm policy add dir out src 10.1.0.1 dst 10.1.0.9 $TMPL", "timer expired"),
];

const EXPIRE: &str = "acquire expire";

/// Runs `ip xfrm monitor` of `GROUPS` during `WHAT`, and then shows the SAs.
const SCRIPT: &str = "
TMPL='tmpl src 10.1.0.1 dst 10.1.0.9 proto esp reqid 7 mode transport'
SPI_TMPL='tmpl src 10.1.0.1 dst 10.1.0.9 proto esp spi 0x700 reqid 7 mode transport'
SA='ip xfrm state add src 10.1.0.1 dst 10.1.0.9 proto esp spi 0x700 reqid 7 mode transport'
SA=\"$SA aead rfc4106(gcm(aes)) 0x00112233445566778899aabbccddeeff01020304 128\"
timeout 14 ip xfrm monitor GROUPS >monitor &
sleep 2
WHAT
wait
cat monitor
ip xfrm state
ip xfrm state flush
ip xfrm policy flush
";

/// Waits until the policy is there: one ping is not answered. Then there are eight more.
const PINGS: &str = "
sleep 2
while ping -q -c 1 -W 0.5 10.1.0.1; do sleep 0.2; done
ping -q -c 8 -i 0.2 -W 1 10.1.0.1 || true
";

pub(crate) fn trials() -> Vec<Trial> {
    vec![trial("fatpath/events_of_ip_xfrm_monitor_are_the_same_as_on_linux", NEEDS, compare)]
}

fn compare() -> Outcome {
    let (scratch, linux_far) = (Scratch::new()?, Netns::new("linux")?);
    let (node, far) = (Netns::new("node")?, Netns::new("far")?);
    let mut linux = Uml::boot(&linux_far, &["eth0"])?;
    linux.sh("ip addr add 10.1.0.1/24 dev eth0")?;
    linux_far.sh("ip addr add 10.1.0.9/24 dev eth0")?;
    node.sh(&format!("ip link add eth0 type veth peer name eth0 netns {}; ip link set eth0 up", far.name()))?;
    far.sh("ip link set eth0 up; ip addr add 10.1.0.9/24 dev eth0")?;
    let file = "[[link]]\nname = \"eth0\"\nkind = \"packet\"\ninterface = \"eth0\"\naddresses = [\"10.1.0.1/24\"]\n";
    let _gateway = Gateway::start(&node, &scratch, "node", file)?;
    let mut report = String::new();
    for (groups, what, heard) in CASES {
        let script = SCRIPT.replace("WHAT", &what.replace("; ", "\n")).replace("GROUPS", groups);
        let running = linux.start(&script)?;
        let mut exec = Command::new(fatpath());
        exec.args(["exec", "--instance", "node", "--", "sh", "-c", &script]);
        exec.current_dir(scratch.path()).env("FATPATH_RUNDIR", scratch.path());
        let mut ours = Process::spawn(&mut exec, &scratch)?;
        let mut pings = Vec::new();
        for far in [&linux_far, &far] {
            pings.push(far.command("sh").args(["-ec", PINGS]).stdout(Stdio::null()).spawn()?);
        }
        for mut pings in pings {
            pings.wait()?;
        }
        let want = normal(&running.wait()?);
        ours.wait(Duration::from_secs(30))?;
        let got = normal(&ours.output());
        if want != got || !want.contains(heard) {
            report += &format!("$ {what}\nLinux: {want}\nfatpath: {got}\n");
        }
    }
    if report.is_empty() { Ok(()) } else { Err(report.into()) }
}

/// Output with words in place of policies' and requests' numbers, and without fields of outbound SAs that earlier
/// kernels do not print.
fn normal(text: &str) -> String {
    let lines: Vec<&str> = text.lines().filter(|line| !line.contains("lastused")).collect();
    let text = lines.join("\n");
    let mut words: Vec<&str> = text.split(' ').collect();
    for at in 1..words.len() {
        if matches!(words[at - 1].trim_start(), "index" | "seq") {
            words[at] = "N";
        }
    }
    words.join(" ")
}
