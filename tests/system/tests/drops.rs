//! Drops as a person meets them: by `fatpath monitor --drops`, `fatpath trace` and `fatpath show drops`.

use std::process::Command;
use std::time::Duration;

use libtest_mimic::Trial;
use rustix::process::Signal;
use system::{Gateway, Need, Netns, Outcome, Process, Scratch, fatpath, run, trial, veth, wait_until};

const NEEDS: &[Need] = &[Need::Namespaces, Need::Tun];
const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("drops/fresh_gateway_shows_none", &[Need::Namespaces, Need::Tun, Need::PYTHON], fresh),
        trial("drops/wrong_key_is_named_by_monitor_and_trace", NEEDS, wrong_key),
        trial("drops/monitor_has_sas_and_links", NEEDS, events),
    ]
}

/// End `own` of a tunnel, with that byte in the key.
fn config(own: u8, key: u8) -> String {
    let peer = 3 - own;
    let key = format!("0x{}", format!("{key:02x}").repeat(20));
    let (wan, far) = (format!("192.0.2.{own}"), format!("192.0.2.{peer}"));
    let sa = |src: &str, dst: &str, spi: u8, dir: &str| {
        format!(
            "[[sa]]\nsrc = \"{src}\"\ndst = \"{dst}\"\nspi = 0x100{spi}\ndir = \"{dir}\"\nmode = \"tunnel\"\nreqid = 7\n\
             aead = {{ name = \"rfc4106(gcm(aes))\", key = \"{key}\", icv = 128 }}\n{}\
             encap = {{ type = \"espinudp\", sport = 4500, dport = 4500 }}\n",
            if dir == "in" { "replay-window = 64\n" } else { "" },
        )
    };
    let policy = |dir: &str, from: u8, to: u8| {
        format!(
            "[[policy]]\ndir = \"{dir}\"\nsrc = \"10.{from}.0.0/24\"\ndst = \"10.{to}.0.0/24\"\n\
             tmpl = [{{ src = \"192.0.2.{from}\", dst = \"192.0.2.{to}\", proto = \"esp\", mode = \"tunnel\", reqid = 7 }}]\n",
        )
    };
    format!(
        "[[link]]\nname = \"tun0\"\nkind = \"tun\"\nmtu = 1400\naddresses = [\"10.{own}.0.254/24\"]\n\
         [[link]]\nname = \"wan\"\nkind = \"udp\"\nbind = \"{wan}:4500\"\n\
         [[route]]\nto = \"{far}/32\"\ndev = \"wan\"\n[[route]]\nto = \"10.{peer}.0.0/24\"\ndev = \"wan\"\n{}{}{}{}",
        sa(&wan, &far, own, "out"),
        sa(&far, &wan, peer, "in"),
        policy("out", own, peer),
        policy("fwd", peer, own),
    )
}

fn command(gateway: &Gateway, words: &[&str]) -> Command {
    let socket = gateway.socket();
    let mut command = Command::new(fatpath());
    command.arg("-i").arg(socket.file_stem().unwrap_or_default()).args(words);
    command.env("FATPATH_RUNDIR", socket.parent().unwrap());
    command
}

fn prepare(netns: &Netns, own: u8) -> Outcome {
    let peer = 3 - own;
    netns.sh(&format!(
        "ip link set tun0 up; ip addr add 10.{own}.0.1/24 dev tun0; ip route add 10.{peer}.0.0/24 dev tun0"
    ))?;
    Ok(())
}

fn fresh() -> Outcome {
    let scratch = Scratch::new()?;
    let netns = Netns::new("fresh")?;
    netns.sh("ip link set lo up; ip addr add 192.0.2.1/24 dev lo")?;
    let gateway = Gateway::start(&netns, &scratch, "fresh", &config(1, 0x11))?;
    prepare(&netns, 1)?;
    // A host solicits routers when a link is up. Namespaces of tests accept no advertisements, so a program does it here.
    netns.sh("ip -6 addr add fe80::5/64 dev tun0 nodad")?;
    let solicit = "import socket\n\
        s = socket.socket(socket.AF_INET6, socket.SOCK_RAW, 58)\n\
        s.setsockopt(41, 18, 255)\n\
        s.sendto(bytes([133] + [0] * 7), ('ff02::2', 0, 0, socket.if_nametoindex('tun0')))\n";
    run(netns.command("python3").args(["-c", solicit]))?;
    let counted = |gateway: &Gateway| gateway.show("counters").is_ok_and(|text| text.contains("Icmp6InMsgs"));
    wait_until("the host has sent neighbour discovery", PATIENCE, || counted(&gateway))?;
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(gateway.show("drops")?, "", "{}", gateway.log());
    Ok(())
}

fn wrong_key() -> Outcome {
    let scratch = Scratch::new()?;
    let (left, right) = (Netns::new("left")?, Netns::new("right")?);
    veth((&left, "wan0"), (&right, "wan0"))?;
    let mut gateways = Vec::new();
    for (netns, own, name) in [(&left, 1, "left"), (&right, 2, "right")] {
        netns.sh(&format!("ip addr add 192.0.2.{own}/24 dev wan0; ip link set wan0 up; ip link set lo up"))?;
        netns.wait_for_carrier("wan0")?;
        gateways.push(Gateway::start(netns, &scratch, name, &config(own, 0x10 + own))?);
        prepare(netns, own)?;
    }
    let far = &gateways[1];
    let mut monitor = Process::spawn(&mut command(far, &["monitor", "--drops"]), &scratch)?;
    let mut json = Process::spawn(&mut command(far, &["monitor", "--drops", "--json"]), &scratch)?;
    let mut trace =
        Process::spawn(&mut command(far, &["trace", "--filter", "udp and dst port 4500", "-c", "1"]), &scratch)?;
    let ping = || left.sh("ping -q -c 1 -W 1 -I 10.1.0.1 10.2.0.1 || true").map(drop);
    let want = "drop wan EspIcv 192.0.2.1 > 192.0.2.2 esp spi 0x1001\n";
    wait_until("the drop is reported", PATIENCE, || {
        ping().is_ok()
            && monitor.output().contains(want)
            && json.output().contains("\"spi\":4097")
            && !trace.is_running()
    })?;
    let text = trace.output();
    let last = text.lines().last().unwrap_or_default();
    assert!(last.ends_with("  drop wan EspIcv spi 0x1001 from 192.0.2.1"), "{text}");
    assert!(text.contains("decrypt wan spi 0x1001 reqid 7\n"), "{text}");
    for reader in [&mut monitor, &mut json] {
        reader.signal(Signal::INT)?;
        assert!(reader.wait(PATIENCE)?.success(), "{}", reader.output());
    }
    // The near end names policy and SA.
    let near = &gateways[0];
    let mut trace = Process::spawn(&mut command(near, &["trace", "--filter", "icmp", "-c", "1", "-v"]), &scratch)?;
    wait_until("a ping is traced", PATIENCE, || ping().is_ok() && !trace.is_running())?;
    let text = trace.output();
    let words = ["policy out 10.1.0.0/24 > 10.2.0.0/24 ", "encrypt spi 0x1001 reqid 7 ", " len 84 "];
    assert!(words.iter().all(|word| text.contains(word)), "{text}");
    Ok(())
}

fn events() -> Outcome {
    let scratch = Scratch::new()?;
    let netns = Netns::new("events")?;
    netns.sh("ip link set lo up; ip addr add 192.0.2.1/24 dev lo")?;
    let gateway = Gateway::start(&netns, &scratch, "events", &config(1, 0x11))?;
    let monitor = Process::spawn(&mut command(&gateway, &["monitor"]), &scratch)?;
    let ip = |words: &str| {
        let words: Vec<&str> = ["ip"].into_iter().chain(words.split_whitespace()).collect();
        run(&mut command(&gateway, &words)).map(drop)
    };
    // A listener that has not connected yet would miss the first event.
    wait_until("the monitor is connected", PATIENCE, || {
        ip("link set tun0 down").is_ok()
            && ip("link set tun0 up").is_ok()
            && monitor.output().contains("link tun0 up\n")
    })?;
    let state = "src 192.0.2.1 dst 192.0.2.2 proto esp";
    let key = format!("0x{}", "22".repeat(20));
    ip(&format!("xfrm state add {state} spi 0x2000 mode tunnel reqid 7 aead rfc4106(gcm(aes)) {key} 128"))?;
    ip(&format!("xfrm state add {state} spi 0x2001 mode tunnel reqid 8 aead rfc4106(gcm(aes)) {key} 128"))?;
    ip("xfrm state delete src 192.0.2.1 dst 192.0.2.2 proto esp spi 0x1001")?;
    let lines = [
        "link tun0 down\n".to_owned(),
        format!("sa rekeyed {state} spi 0x00002000 reqid 7 old spi 0x00001001\n"),
        format!("sa added {state} spi 0x00002001 reqid 8\n"),
        format!("sa removed {state} spi 0x00001001 reqid 7\n"),
    ];
    wait_until("all events are printed", PATIENCE, || lines.iter().all(|line| monitor.output().contains(line)))?;
    let log = gateway.log();
    assert!(lines[1..].iter().all(|line| log.contains(line.trim_end())), "{log}");
    assert!(log.contains(&format!("sa added {state} spi 0x00001001 reqid 7")), "{log}");
    Ok(())
}
