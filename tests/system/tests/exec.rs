//! Other programs on a gateway: `fatpath exec` and `fatpath ip`.

use std::path::{Path, PathBuf};
use std::process::Command;

use libtest_mimic::Trial;
use system::{Gateway, Need, Netns, Outcome, Scratch, fatpath, ping_script, run, trial, veth};

use crate::ip::near;

const NEEDS: &[Need] = &[Need::Namespaces, Need::Tun, Need::PING];
const PYTHON: &[Need] = &[Need::Namespaces, Need::PYTHON];

const WAN: &str = "[[link]]\nname = \"wan\"\nkind = \"udp\"\nbind = \"127.0.0.1:4500\"\n";

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("exec/the_example_of_ip_xfrm_makes_a_tunnel", NEEDS, example),
        trial("exec/a_netlink_socket_is_one_in_every_way", PYTHON, netlink_socket),
        trial("exec/netlink_socket_lifetimes", PYTHON, lifetimes),
        trial("exec/nonblocking_receive_finds_the_answer", PYTHON, nonblocking),
        trial("exec/slow_close_of_a_descriptor_does_not_block_other_clients", PYTHON, lingering),
        trial("exec/netlink_sockets_are_alike_on_linux_and_here", PYTHON, || {
            const MORE: &[&str] =
                &["10.2.0.7/16 broadcast 10.2.255.255 label eth0:x", "10.3.0.1 peer 10.3.0.2", "10.3.0.3/24 brd +"];
            alike(include_str!("netlink_alike.py"), MORE)
        }),
        trial("exec/strict_route_requests_are_refused_in_linux_words", PYTHON, || {
            alike(include_str!("netlink_strict.py"), &["fd00:1::1/64 nodad"])
        }),
        trial("exec/ipv6_counters_of_a_link_are_as_on_linux", &[Need::Namespaces], dev_snmp6),
        trial("exec/confined_program_looks_up_interfaces", &[Need::Namespaces, Need::CC], confined),
        trial("exec/sockstat_is_the_gateways_fragments", PYTHON, sockstat),
        trial("exec/program_that_cannot_be_run_is_named", &[Need::Namespaces], refused),
        trial("exec/ip_prints_version_and_help_without_a_gateway", &[Need::Namespaces], about_itself),
        trial("exec/objects_of_programs_stay_over_a_reload", &[Need::Namespaces], reload),
    ]
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// `fatpath WORDS…` for programs of the gateways in `scratch`.
fn command(scratch: &Scratch, words: &[&str]) -> Command {
    let mut command = Command::new(fatpath());
    command.args(words).env("FATPATH_RUNDIR", scratch.path());
    command
}

fn example() -> Outcome {
    let scratch = Scratch::new()?;
    let ends = [("left", 1, Netns::new("left")?), ("right", 2, Netns::new("right")?)];
    veth((&ends[0].2, "eth0"), (&ends[1].2, "eth0"))?;
    let mut gateways = Vec::new();
    for (name, number, netns) in &ends {
        let peer = 3 - number;
        netns.sh(&format!("ip addr add 192.0.2.{number}/24 dev eth0"))?;
        let files = root().join("examples/ip-xfrm");
        let links = std::fs::read_to_string(files.join(format!("{name}.toml")))?;
        gateways.push(Gateway::start(netns, &scratch, name, &links)?);
        let lines = files.join(format!("{name}.ip")).display().to_string();
        run(&mut command(&scratch, &["ip", "--instance", name, "-batch", &lines]))?;
        netns.sh(&format!("ip addr add 10.{number}.0.1/24 dev tun0; ip route add 10.{peer}.0.0/24 dev tun0"))?;
    }
    ends[0].2.sh(&ping_script("10.2.0.1".parse()?, &[56, 1400]))?;
    // The counters are the gateway's, in files and in netlink replies.
    for (read, counter) in [("nstat -asz", "IpForwDatagrams"), ("cat /proc/net/xfrm_stat", "XfrmInNoPols")] {
        let printed = run(&mut command(&scratch, &["exec", "--instance", "left", "--", "sh", "-c", read]))?;
        let line =
            printed.lines().find(|line| line.starts_with(counter)).ok_or_else(|| format!("{read}: {printed}"))?;
        let value = line.split_whitespace().nth(1).ok_or("a number")?;
        assert_eq!(value == "0", counter == "XfrmInNoPols", "{line}");
    }
    let states = run(&mut command(&scratch, &["ip", "--instance", "left", "-s", "xfrm", "state"]))?;
    assert_eq!(states.matches("mode tunnel").count(), 2, "{states}");
    assert!(!states.contains("0(bytes), 0(packets)"), "{states}");
    Ok(())
}

fn netlink_socket() -> Outcome {
    as_expected(include_str!("netlink_socket.py"))
}

fn lifetimes() -> Outcome {
    as_expected(include_str!("netlink_lifetimes.py"))
}

fn nonblocking() -> Outcome {
    as_expected(include_str!("netlink_nonblocking.py"))
}

fn lingering() -> Outcome {
    let (scratch, netns) = (Scratch::new()?, Netns::new("x")?);
    let gateway = Gateway::start(&netns, &scratch, "x", "")?;
    netns.sh("ip link set lo up")?;
    let script = scratch.file("program.py");
    std::fs::write(&script, include_str!("netlink_lingering.py"))?;
    let (socket, id) = (scratch.file("x.netlink"), gateway.id().to_string());
    let printed = run(netns.command("python3").arg(&script).arg(socket).arg(id))?;
    assert_eq!(printed, "all as expected\n");
    Ok(())
}

/// A program that refuses itself all but a few system calls looks up an interface of the gateway.
fn confined() -> Outcome {
    let (scratch, netns) = (Scratch::new()?, Netns::new("x")?);
    let _gateway = Gateway::start(&netns, &scratch, "x", WAN)?;
    run(&mut command(&scratch, &["ip", "--instance", "x", "link", "set", "wan", "mtu", "1400"]))?;
    let (source, program) = (scratch.file("confined.c"), scratch.file("confined"));
    std::fs::write(&source, include_str!("confined.c"))?;
    run(Command::new("cc").args(["-Wall", "-O1", "-o"]).arg(&program).arg(&source))?;
    let looked_up = "mtu 1400\nup 1\nkind 65534\nmissing -19\nclosed -9\npipe -25\n";
    let forked = "parent 1400\nchild 0\nchild 0\nchild 0\nchild 0\n";
    let ways = [
        ("prctl", looked_up),
        ("seccomp", looked_up),
        ("chroot", looked_up),
        ("closed", looked_up),
        ("forked", forked),
        ("taken", "taken -1\nown\n"),
        ("file", &format!("socket -1\n{}", "read 3\n30\nmissing -2\nindex 1\n".repeat(3))),
    ];
    for (way, want) in ways {
        let mut command = command(&scratch, &["exec", "--instance", "x", "--"]);
        let printed = run(command.arg(&program).args([way, "wan"]))
            .map_err(|failed| format!("{way}: {}", failed.message().unwrap_or_default()))?;
        assert_eq!(printed, want, "{way}");
    }
    Ok(())
}

/// Runs a Python program on a gateway; the program checks its own expectations.
fn as_expected(program: &str) -> Outcome {
    let (scratch, netns) = (Scratch::new()?, Netns::new("x")?);
    let _gateway = Gateway::start(&netns, &scratch, "x", WAN)?;
    let script = scratch.file("program.py");
    std::fs::write(&script, program)?;
    let printed = run(command(&scratch, &["exec", "--instance", "x", "--", "python3"]).arg(&script))?;
    assert_eq!(printed, "all as expected\n");
    Ok(())
}

/// Compares the output of the same program on this host's kernel and on a gateway.
fn alike(program: &str, more_addresses: &[&str]) -> Outcome {
    let (scratch, far) = (Scratch::new()?, Netns::new("far")?);
    let script = scratch.file("alike.py");
    std::fs::write(&script, program)?;
    let (linux, ours) = (near("linux", &far)?, near("ours", &far)?);
    let link = "[[link]]\nname = \"eth0\"\nkind = \"packet\"\ninterface = \"eth0\"\naddresses = [\"10.1.0.1/24\"]\n";
    let _gateway = Gateway::start(&ours, &scratch, "ours", link)?;
    linux.sh("ip addr add 10.1.0.1/24 dev eth0")?;
    for more in more_addresses {
        linux.sh(&format!("ip addr add {more} dev eth0"))?;
        let words = format!("ip --instance ours addr add {more} dev eth0");
        run(&mut command(&scratch, &words.split(' ').collect::<Vec<_>>()))?;
    }
    let want = run(linux.command("python3").arg(&script))?;
    let got = run(command(&scratch, &["exec", "--instance", "ours", "--", "python3"]).arg(&script))?;
    let (want, got): (Vec<_>, Vec<_>) = (want.lines().collect(), got.lines().collect());
    let differ = want.iter().zip(&got).filter(|(want, got)| want != got);
    let report: Vec<String> = differ.map(|(want, got)| format!("Linux: {want}\nfatpath: {got}\n")).collect();
    assert!(report.is_empty() && want.len() == got.len(), "{} lines, {}:\n{}", want.len(), got.len(), report.concat());
    Ok(())
}

/// Five datagrams of three fragments each, and their answers, as they are counted for the link that they pass.
fn dev_snmp6() -> Outcome {
    const COUNTED: [&str; 8] = [
        "Ip6ReasmReqds",
        "Ip6ReasmOKs",
        "Ip6ReasmFails",
        "Ip6FragOKs",
        "Ip6FragCreates",
        "Ip6InHdrErrors",
        "Icmp6InEchos",
        "Icmp6OutEchoReplies",
    ];
    let scratch = Scratch::new()?;
    let link = "[[link]]\nname = \"eth0\"\nkind = \"packet\"\ninterface = \"eth0\"\naddresses = [\"fd00::1/64\"]\n\
                [host]\nside = \"off\"\n";
    let counted = |is_ours: bool| {
        let (near, far) = (Netns::new("near")?, Netns::new("far")?);
        veth((&near, "eth0"), (&far, "eth0"))?;
        let gateway = if is_ours { Some(Gateway::start(&near, &scratch, "ours", link)?) } else { None };
        if !is_ours {
            near.sh("ip addr add fd00::1/64 dev eth0 nodad")?;
        }
        far.sh("ip addr add fd00::2/64 dev eth0 nodad; ping -q -c 5 -i 0.1 -W 5 -s 4000 fd00::1")?;
        let read = "cat /proc/net/dev_snmp6/eth0";
        let text = match gateway {
            Some(_) => run(&mut command(&scratch, &["exec", "--instance", "ours", "--", "sh", "-c", read]))?,
            None => near.sh(read)?,
        };
        let value = |name: &str| {
            let line = text.lines().map(str::split_whitespace).find(|line| line.clone().next() == Some(name));
            let value = line.and_then(|mut line| line.nth(1)).ok_or_else(|| format!("{name} is not in\n{text}"))?;
            Outcome::Ok(value.to_owned())
        };
        COUNTED.iter().map(|name| value(name)).collect::<Outcome<Vec<_>>>()
    };
    let want = counted(false)?;
    assert_eq!(want[..2], ["15", "5"], "what Linux counts");
    assert_eq!(counted(true)?, want);
    Ok(())
}

/// Two incomplete datagrams of IPv4 and one of IPv6, in the counters that a program reads.
fn sockstat() -> Outcome {
    let (scratch, netns, far) = (Scratch::new()?, Netns::new("near")?, Netns::new("far")?);
    veth((&netns, "eth0"), (&far, "eth0"))?;
    far.sh("ip addr add 10.1.0.2/24 dev eth0; ip addr add fd00::2/64 dev eth0 nodad")?;
    let link = "[[link]]\nname = \"eth0\"\nkind = \"packet\"\ninterface = \"eth0\"\naddresses = [\"10.1.0.1/24\", \"fd00::1/64\"]\n";
    let gateway = Gateway::start(&netns, &scratch, "x", link)?;
    let read = || {
        run(&mut command(
            &scratch,
            &["exec", "--sockets", "host", "--instance", "x", "--", "cat", "/proc/net/sockstat", "/proc/net/sockstat6"],
        ))
    };
    let lines = |frag: &str, frag6: &str| {
        let v4 = "sockets: used 0\nTCP: inuse 0 orphan 0 tw 0 alloc 0 mem 0\nUDP: inuse 0 mem 0\nUDPLITE: inuse 0\nRAW: inuse 0\n";
        let v6 = "TCP6: inuse 0\nUDP6: inuse 0\nUDPLITE6: inuse 0\nRAW6: inuse 0\n";
        format!("{v4}{frag}\n{v6}{frag6}\n")
    };
    assert_eq!(read()?, lines("FRAG: inuse 0 memory 0", "FRAG6: inuse 0 memory 0"));
    let script = scratch.file("first.py");
    std::fs::write(&script, include_str!("first_fragments.py"))?;
    run(far.command("python3").arg(&script))?;
    system::wait_until("fragments wait", std::time::Duration::from_secs(10), || {
        gateway.show("fragments").is_ok_and(|shown| shown.contains("FRAG: inuse 2") && shown.contains("FRAG6: inuse 1"))
    })?;
    let shown = gateway.show("fragments")?;
    let waiting = |name: &str| shown.lines().find(|line| line.starts_with(name)).unwrap_or_default().to_owned();
    let (frag, frag6) = (waiting("FRAG:"), waiting("FRAG6:"));
    assert!(!frag.ends_with("memory 0") && !frag6.ends_with("memory 0"), "{shown}");
    assert_eq!(read()?, lines(&frag, &frag6));
    // On the host side the sockets are those of its kernel, and the fragments the gateway's.
    let script = "import socket
sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(3)]
for it in sockets: it.bind(('10.1.0.1', 0))
for name in ['sockstat', 'sockstat6']: print(open('/proc/net/' + name).read(), end='')
for line in open('/proc/net/snmp'): print(line, end='')";
    let printed = run(&mut command(&scratch, &["exec", "--instance", "x", "--", "python3", "-c", script]))?;
    for line in ["UDP: inuse 3 ", &frag, &frag6, "Tcp: 1 200 120000 -1 ", "UDP6: inuse 0"] {
        assert!(printed.lines().any(|it| it.starts_with(line)), "{line} in {printed}");
    }
    assert_eq!(printed.lines().filter(|line| line.starts_with("FRAG: ")).count(), 1, "{printed}");
    Ok(())
}

fn refused() -> Outcome {
    let (scratch, netns) = (Scratch::new()?, Netns::new("x")?);
    let _gateway = Gateway::start(&netns, &scratch, "x", WAN)?;
    let fails = |words: &[&str], library: Option<&str>| {
        let mut command = command(&scratch, words);
        command.envs(library.map(|library| ("FATPATH_PRELOAD", library)));
        let output = command.output()?;
        Outcome::Ok((output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned()))
    };
    let cases: [(&[&str], Option<&str>, &str); 4] = [
        (&["exec", "--instance", "nobody", "--", "true"], None, "no gateway named nobody is running"),
        (&["exec", "--instance", "x", "--", "no-such-program"], None, "no-such-program: no such program."),
        (
            &["ip", "--instance", "x", "link"],
            Some("/nowhere.so"),
            "FATPATH_PRELOAD: /nowhere.so: there is no such file.",
        ),
        (&["exec", "--instance", "x", "--", "/sbin/ldconfig"], None, "/sbin/ldconfig: it is linked statically"),
    ];
    for (words, library, printed) in cases {
        let (code, text) = fails(words, library)?;
        assert!(code == Some(1) && text.starts_with("Error: ") && text.contains(printed), "{words:?}: {code:?} {text}");
    }
    Ok(())
}

fn about_itself() -> Outcome {
    let scratch = Scratch::new()?;
    for words in [&["--help"][..], &["help"], &["-V"], &[]] {
        let here = Command::new("ip").args(words).output()?;
        assert_eq!(command(&scratch, &[&["ip"], words].concat()).output()?, here, "{words:?}");
    }
    Ok(())
}

fn reload() -> Outcome {
    let (scratch, netns) = (Scratch::new()?, Netns::new("x")?);
    let gateway = Gateway::start(&netns, &scratch, "x", WAN)?;
    let ip = |words: &str| {
        let words: Vec<&str> = ["ip", "--instance", "x", "xfrm"].into_iter().chain(words.split(' ')).collect();
        run(&mut command(&scratch, &words))
    };
    let key = "enc cbc(aes) 0x00112233445566778899aabbccddeeff mode tunnel";
    for spi in [0x10, 0x20] {
        ip(&format!("state add src 192.0.2.1 dst 192.0.2.2 proto esp spi {spi} {key}"))?;
    }
    ip("policy add dir out src 10.1.0.0/24 dst 10.2.0.0/24 priority 7")?;
    let more = "[[sa]]\nsrc = \"192.0.2.1\"\ndst = \"192.0.2.2\"\nspi = 0x20\nmode = \"tunnel\"\nreqid = 9\n\
                enc = { name = \"cbc(aes)\", key = \"0x00112233445566778899aabbccddeeff\" }\n[[policy]]\ndir = \"out\"\nsrc = \"10.1.0.0/24\"\ndst = \"10.2.0.0/24\"\n";
    gateway.reload(&format!("{WAN}{more}"))?;
    system::wait_until("the file's SA is there", std::time::Duration::from_secs(20), || {
        ip("state list reqid 9").is_ok_and(|text| text.contains("0x00000020"))
    })?;
    let (states, policies) = (ip("state")?, ip("policy")?);
    assert_eq!(
        (states.matches("proto esp").count(), policies.matches("dir out").count()),
        (2, 1),
        "{states}{policies}"
    );
    assert!(states.contains("spi 0x00000010") && policies.contains("priority 0"), "{states}{policies}");
    Ok(())
}
