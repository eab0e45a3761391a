//! `sysctl`, `cat` and `echo` on files of `/proc/sys/net`: the same commands under `fatpath exec` and on this host's
//! kernel; and the commands change the gateway, not the host.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Duration;

use libtest_mimic::Trial;
use system::{Gateway, Need, Netns, Outcome, Scratch, fatpath, run, trial, wait_until};

use crate::ip::{compare_lines, exec, near};

const PYTHON: Need = Need::Program { name: "python3", package: "python3-minimal" };
const PERL: Need = Need::Program { name: "perl", package: "perl-base" };
const MAWK: Need = Need::Program { name: "mawk", package: "mawk" };
const SETPRIV: Need = Need::Program { name: "setpriv", package: "util-linux" };

/// The commands, for a shell, about a router with one Ethernet interface: eth0.
const LINES: &str = include_str!("sysctl.lines");

/// Commands of a user that may not change the node.
const READER: &str = "\
cat /proc/sys/net/ipv4/ipfrag_time
sysctl net.ipv4.ipfrag_high_thresh net.ipv4.ip_forward
stat -c '%a %u' /proc/sys/net/ipv4/ipfrag_time
echo 1 >/proc/sys/net/ipv4/ipfrag_time; echo $?
bash -c 'echo 1 >/proc/sys/net/ipv4/ipfrag_time; echo $?'
sysctl -w net.ipv4.ipfrag_time=1
sysctl -w net.ipv4.nonexistent=1
for at in -e -r -w -x; do test $at /proc/sys/net/ipv4/ipfrag_time; echo $at $?; done
cat /proc/sys/net/ipv4/ipfrag_time
";

const ETH0: &str = "[[link]]\nname = \"eth0\"\nkind = \"packet\"\ninterface = \"eth0\"\n";
const TUN: &str = "[[link]]\nname = \"tun0\"\nkind = \"tun\"\naddresses = [\"10.1.0.1/24\"]\n";

pub(crate) fn trials() -> Vec<Trial> {
    const NEEDS: &[Need] = &[Need::Namespaces, Need::SYSCTL, PYTHON, PERL, MAWK];
    vec![
        trial("sysctl/output_is_the_same_as_on_linux_without_host_changes", NEEDS, compare),
        trial("sysctl/unprivileged_user_may_only_read", &[Need::Namespaces, Need::SYSCTL, SETPRIV], reader),
        trial("sysctl/hostile_clients_of_the_socket_are_answered_or_closed", &[Need::Namespaces, PYTHON], hostile),
        trial("sysctl/written_value_takes_effect", &[Need::Namespaces, Need::Tun, Need::PING], effect),
        trial("sysctl/a_reload_changes_what_the_file_changes", &[Need::Namespaces], reload),
        trial("sysctl/impossible_value_is_refused", &[Need::Namespaces, Need::SYSCTL, PYTHON], refused),
    ]
}

/// Settings of a namespace's kernel that a gateway has, too.
fn of_host(netns: &Netns) -> Outcome<String> {
    netns.sh("grep -r . /proc/sys/net/ipv4/ipfrag* /proc/sys/net/ipv6/ip6frag* /proc/sys/net/core/xfrm* /proc/sys/net/ipv4/ip_forward")
}

fn compare() -> Outcome {
    let (scratch, far) = (Scratch::new()?, Netns::new("far")?);
    let (linux, ours) = (near("linux", &far)?, near("ours", &far)?);
    linux.sh("sysctl -q -w net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1")?;
    let before = of_host(&ours)?;
    let _gateway = Gateway::start(&ours, &scratch, "ours", ETH0)?;
    fs::write(scratch.file("alike.py"), include_str!("sysctl_alike.py"))?;
    compare_lines(&scratch, LINES, linux.command("sh"), exec(&ours, "ours"))?;
    assert_eq!(of_host(&ours)?, before);
    assert_ne!(of_host(&linux)?, before, "the lines change something");
    Ok(())
}

fn reader() -> Outcome {
    let (scratch, netns) = (Scratch::new()?, Netns::new("reader")?);
    let linux = Netns::new("linux")?;
    linux.sh("echo 1 >/proc/sys/net/ipv4/ip_forward")?;
    let _gateway = Gateway::start(&netns, &scratch, "x", "")?;
    // The build directory may be closed to other users.
    let program = scratch.file("fatpath");
    fs::copy(fatpath(), &program)?;
    fs::copy(fatpath().with_file_name("libfatpath_preload.so"), scratch.file("libfatpath_preload.so"))?;
    fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o777))?;
    let somebody = |netns: &Netns, words: &[&str]| {
        let mut command = netns.command("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).args(words);
        command
    };
    let program = program.display().to_string();
    let ours = somebody(&netns, &[&program, "exec", "--instance", "x", "--", "sh"]);
    compare_lines(&scratch, READER, somebody(&linux, &["sh"]), ours)
}

fn hostile() -> Outcome {
    let (scratch, netns) = (Scratch::new()?, Netns::new("hostile")?);
    let gateway = Gateway::start(&netns, &scratch, "x", "")?;
    fs::write(scratch.file("hostile.py"), include_str!("sysctl_hostile.py"))?;
    let (script, socket) = (scratch.file("hostile.py"), scratch.file("x.netlink"));
    // First a user that may not change the gateway, then root.
    for user in ["65534", "0"] {
        let printed = run(netns.command("python3").arg(&script).arg(&socket).arg(user))?;
        assert_eq!(printed, "all as expected\n");
    }
    gateway.show("links").map(drop)
}

/// A shell's script on the gateway `x`.
fn script(netns: &Netns, scratch: &Scratch, script: &str) -> Command {
    let mut command = exec(netns, "x");
    command.args(["-c", script]).env("FATPATH_RUNDIR", scratch.path());
    command
}

fn effect() -> Outcome {
    let (scratch, netns) = (Scratch::new()?, Netns::new("x")?);
    let gateway = Gateway::start(&netns, &scratch, "x", TUN)?;
    netns.sh("ip addr add 10.1.0.2/24 dev tun0")?;
    let set = |text: &str| run(&mut script(&netns, &scratch, text));
    let ping = || netns.sh("ping -n -q -c 1 -W 2 -s 4000 10.1.0.1");
    ping()?;
    set("cd /proc/sys/net/ipv4; echo 0 >ipfrag_low_thresh; echo 0 >ipfrag_high_thresh")?;
    assert!(ping().is_err(), "fragments were taken");
    set("echo 4194304 >/proc/sys/net/ipv4/ipfrag_high_thresh")?;
    ping()?;
    // An incomplete datagram.
    let waiting = || -> Outcome<bool> { Ok(!gateway.show("fragments")?.contains("FRAG: inuse 0")) };
    let first = "import socket, struct\n\
                 s = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)\n\
                 head = struct.pack('!BBHHHBBH4s4s', 0x45, 0, 0, 7, 0x2000, 64, 17, 0, bytes([10, 1, 0, 2]), bytes([10, 1, 0, 1]))\n\
                 s.sendto(head + bytes(800), ('10.1.0.1', 0))";
    fs::write(scratch.file("first.py"), first)?;
    let first = || run(netns.command("python3").arg(scratch.file("first.py")));
    set("echo 3 >/proc/sys/net/ipv4/ipfrag_time")?;
    first()?;
    wait_until("a fragment waits", Duration::from_secs(2), || waiting().unwrap_or(false))?;
    wait_until("a fragment is given up", Duration::from_secs(10), || !waiting().unwrap_or(true))
}

fn reload() -> Outcome {
    let (scratch, netns) = (Scratch::new()?, Netns::new("x")?);
    let gateway = Gateway::start(&netns, &scratch, "x", "")?;
    let get =
        || run(&mut script(&netns, &scratch, "cat /proc/sys/net/ipv4/ipfrag_time /proc/sys/net/ipv6/ip6frag_time"));
    run(&mut script(&netns, &scratch, "for v in ipv4/ipfrag ipv6/ip6frag; do echo 20 >/proc/sys/net/${v}_time; done"))?;
    let reloads = |toml: &str, count| {
        gateway.reload(toml)?;
        wait_until("it has reloaded", Duration::from_secs(20), || gateway.log().matches("reloaded").count() == count)
    };
    reloads("[crypto]\nworkers = 0\n", 1)?;
    assert_eq!(get()?, "20\n20\n");
    reloads("[reassembly]\nip6frag_time = 9\n", 2)?;
    assert_eq!(get()?, "20\n9\n");
    Ok(())
}

fn refused() -> Outcome {
    let (scratch, netns) = (Scratch::new()?, Netns::new("x")?);
    let before = of_host(&netns)?;
    let gateway = Gateway::start(&netns, &scratch, "x", "")?;
    let unable = "Operation not supported";
    let cases = [
        ("sysctl -w net.ipv4.ip_forward=0", "sysctl: setting key \"net.ipv4.ip_forward\": Operation not supported"),
        ("bash -c 'echo 0 >/proc/sys/net/ipv4/ip_forward'", unable),
        ("/bin/echo 0 >/proc/sys/net/ipv4/conf/lo/forwarding", unable),
        ("sysctl -w net.ipv4.ip_default_ttl=63", unable),
        ("sysctl -w net.ipv4.ipfrag_time=-1", unable),
        ("sysctl -w net.core.xfrm_acq_expires=0", unable),
        // A setting of Linux that a gateway does not have, nor its host side for sockets.
        ("sysctl net.ipv4.igmp_max_msf", "No such file or directory"),
        ("cat /proc/sys/net/ipv4/igmp_qrv", "No such file or directory"),
        ("echo 1 >/proc/sys/net/ipv4/igmp_qrv", "nonexistent"),
        ("cd /proc/sys/net/ipv4; echo 1 >igmp_qrv", "nonexistent"),
        ("ln -s /proc/sys/net/ipv4/igmp_qrv link; echo 1 >link", "nonexistent"),
        (
            "perl -e 'open F, \">\", \"/proc/self/root/proc/sys/net/ipv4/igmp_qrv\" or die $!'",
            "No such file or directory",
        ),
        // To be read and written at once, and descriptors of directories.
        ("python3 -c 'open(\"/proc/sys/net/ipv4/ipfrag_time\", \"rb+\", 0)'", unable),
        ("find /proc/sys/net/ipv4", unable),
    ];
    for (line, why) in cases {
        let output = script(&netns, &scratch, line).current_dir(scratch.path()).output()?;
        let printed = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && printed.contains(why), "{line}: {printed}");
    }
    let id = gateway.id();
    let gone = format!(
        "kill {id}; while kill -0 {id} 2>&-; do sleep 0.1; done; cat /proc/sys/net/ipv4/ipfrag_time; \
         echo 1 >/proc/sys/net/ipv4/ipfrag_time; ls /proc/sys/net/ipv4"
    );
    // `kill` fails once the process was waited for.
    let mut gateway = gateway;
    let gone = script(&netns, &scratch, &gone)
        .stderr(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()?;
    gateway.wait_until("it ends", |gateway| gateway.show("links").is_err())?;
    drop(gateway);
    let output = gone.wait_with_output()?;
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(output.stdout.is_empty() && printed.matches("Connection refused").count() == 3, "{printed}");
    assert_eq!(of_host(&netns)?, before);
    Ok(())
}
