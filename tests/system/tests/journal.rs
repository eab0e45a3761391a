//! State that a gateway keeps by default, and changes by programs over a kill without `fatpath save`.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::time::Duration;

use libtest_mimic::Trial;
use rustix::process::Signal;
use system::{Need, Netns, Outcome, Process, Scratch, fatpath, run, trial, veth, wait_until};

use super::state::{INTERFACES, LIMITED, LINES, Node, kill};

const NEEDS: &[Need] = &[Need::Namespaces, Need::Tun];
const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) fn trials() -> Vec<Trial> {
    const PING: &[Need] = &[Need::Namespaces, Need::Tun, Need::PING];
    vec![
        trial("journal/changes_of_programs_survive_a_kill", NEEDS, changes),
        trial("journal/changes_last_until_the_boot_and_saved_ones_longer", NEEDS, boot),
        trial("journal/object_of_the_file_is_as_the_file_says", NEEDS, file_wins),
        trial("journal/burst_of_changes_survives_a_kill_at_any_time", &[Need::Namespaces], burst),
        trial("journal/full_disk_is_one_error_and_the_gateway_goes_on", &[Need::Namespaces], full),
        trial("journal/default_place_is_private_and_of_one_gateway", &[Need::Namespaces], place),
        trial("journal/peer_accepts_packets_after_a_kill_of_either_end", PING, numbers),
        trial("journal/peer_without_state_is_named_by_the_receiver", PING, warnings),
    ]
}

fn changes() -> Outcome {
    INTERFACES.into_iter().try_for_each(changes_over)
}

fn changes_over(interface: &str) -> Outcome {
    let (scratch, netns) = (Scratch::new()?, Netns::new("x")?);
    netns.sh(interface)?;
    let node = Node { scratch: &scratch, netns: &netns, name: "x" };
    let process = node.start(&[])?;
    node.batch(LINES)?;
    // Removals, replacements, and objects that are not kept.
    node.batch(&format!(
        "{LIMITED}\nlink add br0 type bridge vlan_filtering 1\nlink add tap1 type tap\nlink set tap1 master br0\n\
         link add gone type tun\nlink set gone up\naddr add 10.77.0.1/24 dev gone\nroute add 10.78.0.0/16 dev gone\n\
         link del gone\nroute del blackhole 10.97.0.0/16\nroute replace 10.99.0.0/16 via 10.7.0.11\n\
         route append 10.99.0.0/16 via 10.7.0.12\naddr del 10.7.0.2/24 dev tun6\n\
         addr add 10.9.0.5/24 dev veth0 valid_lft 900 preferred_lft 900\nroute add 10.96.0.0/16 dev tun6\n\
         rule del pref 100\nxfrm policy update dir in src 10.1.0.0/24 dst 10.2.0.0/24 dev tun6 action block priority 9 mark 1\n\
         xfrm state deleteall src 2001:db8::2\n"
    ))?;
    let index = node.ip("-s xfrm policy list dir out")?;
    let index = index.split_once("index ").and_then(|(_, rest)| rest.split(' ').next()).ok_or("no index")?.to_owned();
    node.ip(&format!("xfrm policy delete index {index} dir out"))?;
    node.sysctl("-w net.ipv4.ipfrag_time=8")?;
    node.ip("addr del 10.9.0.5/24 dev veth0")?;
    node.ip("xfrm state delete src 192.0.2.2 dst 192.0.2.1 proto esp spi 0x1002")?;
    let before = node.dump()?;
    kill(process)?;
    let process = node.start(&[])?;
    let after = node.dump()?;
    assert_eq!(comparable(&after), comparable(&before), "{}", process.output());
    assert!(!process.output().contains("left out"), "{}", process.output());
    assert_eq!(node.sysctl("-n net.ipv4.ipfrag_time")?, "8\n");
    // The second kill finds the state that the start has written, and a journal behind it.
    node.batch("route add 10.55.0.0/16 dev tun6\nlink set tun6 mtu 1333\nroute del 10.96.0.0/16 dev tun6\n")?;
    let before = node.dump()?;
    kill(process)?;
    let process = node.start(&[])?;
    assert_eq!(comparable(&node.dump()?), comparable(&before), "{}", process.output());
    kill(process)?;
    // A torn record is cut off; a damaged one is refused.
    let journal = || -> Outcome<_> {
        let mut found: Vec<_> = fs::read_dir(scratch.path())?.filter_map(|entry| Some(entry.ok()?.path())).collect();
        found.retain(|path| path.display().to_string().contains(".state.journal-"));
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(fs::metadata(&found[0])?.permissions().mode() & 0o777, 0o600);
        Ok(found.remove(0))
    };
    let process = node.start(&[])?;
    node.batch("route add 10.41.0.0/16 dev tun6\nroute add 10.42.0.0/16 dev tun6\n")?;
    kill(process)?;
    let whole = fs::read(journal()?)?;
    let mut damaged = whole.clone();
    damaged[whole.len() - 100] ^= 1;
    fs::write(journal()?, &damaged)?;
    let output = node.try_start(&[]).output()?;
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(2) && printed.contains("is damaged. Move it away"), "{printed}");
    fs::write(journal()?, &whole[..whole.len() - 5])?;
    let process = node.start(&[])?;
    let routes = node.ip("route")?;
    assert!(routes.contains("10.41.0.0/16") && !routes.contains("10.42.0.0/16"), "{routes}");
    kill(process)
}

/// A dump without sequence numbers, which continue farther ahead, indexes of interfaces, and link-layer addresses that
/// the kernel or chance chooses.
fn comparable(dump: &str) -> String {
    let is_fixed = |line: &&str| !line.contains("link/ether") || line.contains("02:00:00:00:33:44");
    let unnumbered = |line: &'_ str| match line.split_once(": ") {
        Some((number, rest)) if number.parse::<u32>().is_ok() => rest.to_owned(),
        _ => line.to_owned(),
    };
    let dump: Vec<String> = dump.lines().filter(is_fixed).map(unnumbered).collect();
    let line = |line: &str| match line.split_once("oseq 0x") {
        Some((before, _)) => format!("{before}oseq\n"),
        None => format!("{line}\n"),
    };
    dump.iter().map(|shown| line(shown)).collect()
}

fn boot() -> Outcome {
    let (scratch, netns) = (Scratch::new()?, Netns::new("x")?);
    let node = Node { scratch: &scratch, netns: &netns, name: "x" };
    let start = |boot: &str| {
        let file = scratch.file("boot");
        fs::write(&file, format!("{boot}\n"))?;
        let mut command = netns.command("sh");
        let script = "mount --bind \"$BOOT\" /proc/sys/kernel/random/boot_id && exec \"$0\" run --instance x";
        command.args(["-c", script]).arg(fatpath()).env("BOOT", &file).env("FATPATH_RUNDIR", scratch.path());
        node.start_by(command)
    };
    let routes = || node.ip("route");
    let process = start("one")?;
    node.ip("route add blackhole 10.1.0.0/16")?;
    node.save()?;
    node.batch("route add blackhole 10.2.0.0/16\n")?;
    kill(process)?;
    // In the same boot, twice: from the journal, and from the state.
    for _ in 0..2 {
        let process = start("one")?;
        assert_eq!(routes()?, "blackhole 10.1.0.0/16 \nblackhole 10.2.0.0/16 \n", "{}", process.output());
        kill(process)?;
    }
    let process = start("two")?;
    assert_eq!(routes()?, "blackhole 10.1.0.0/16 \n", "{}", process.output());
    node.ip("route del blackhole 10.1.0.0/16")?;
    kill(process)?;
    let process = start("two")?;
    assert_eq!(routes()?, "", "{}", process.output());
    kill(process)?;
    let process = start("three")?;
    assert_eq!(routes()?, "blackhole 10.1.0.0/16 \n", "{}", process.output());
    kill(process)
}

fn file_wins() -> Outcome {
    let (scratch, netns) = (Scratch::new()?, Netns::new("x")?);
    let node = Node { scratch: &scratch, netns: &netns, name: "x" };
    let toml = scratch.file("x.toml").display().to_string();
    let base = "[[link]]\nname = \"tun0\"\nkind = \"tun\"\naddresses = [\"10.1.0.254/24\"]\n\
                [[route]]\nto = \"10.50.0.0/16\"\ndev = \"tun0\"\n";
    fs::write(&toml, base)?;
    let process = node.start(&["-c", &toml])?;
    node.batch(
        "link set tun0 mtu 1300\nroute del 10.50.0.0/16\nroute add 10.51.0.0/16 dev tun0\naddr add 10.1.0.7/24 dev tun0\n",
    )?;
    kill(process)?;
    let process = node.start(&["-c", &toml])?;
    let log = process.output();
    assert!(log.contains("starting anew"), "{log}");
    let seen = || Ok::<_, libtest_mimic::Failed>([node.ip("route")?, node.ip("link show tun0")?].concat());
    let shown = seen()?;
    assert!(shown.contains("10.50.0.0/16 dev tun0") && shown.contains("10.51.0.0/16 dev tun0"), "{shown}{log}");
    assert!(shown.contains("mtu 1500"), "{shown}");
    assert!(node.ip("addr show dev tun0")?.contains("10.1.0.7/24"));
    assert!(node.command(&["show", "host", "--instance", "x"]).output()?.stdout.starts_with(b"host side on"));
    // A reload removes what programs have added, also for the next start.
    run(&mut node.command(&["load", "--instance", "x", "-c", &toml]))?;
    assert!(!seen()?.contains("10.51.0.0/16"));
    kill(process)?;
    let process = node.start(&["-c", &toml])?;
    assert!(!seen()?.contains("10.51.0.0/16"), "{}", process.output());
    kill(process)
}

fn burst() -> Outcome {
    let (scratch, netns) = (Scratch::new()?, Netns::new("x")?);
    let node = Node { scratch: &scratch, netns: &netns, name: "x" };
    for (rounds, wait) in [0, 3, 10, 40, 150, 400].into_iter().enumerate() {
        let process = node.start(&[])?;
        let old = node.ip("route")?.lines().count();
        let lines = (0..3000).map(|n| format!("route add blackhole 10.{rounds}.{}.{}/32\n", n / 250, n % 250));
        let file = scratch.file("burst.ip");
        fs::write(&file, lines.collect::<String>())?;
        let mut batch = node.command(&["ip", "--instance", "x", "-batch"]);
        let mut batch = Process::spawn(batch.arg(&file), &scratch)?;
        wait_until("the first is there", PATIENCE, || node.ip("route").is_ok_and(|now| now.lines().count() > old))?;
        std::thread::sleep(Duration::from_millis(wait));
        let acknowledged = node.ip("route")?.lines().count();
        kill(process)?;
        batch.signal(Signal::KILL).ok();
        batch.wait(PATIENCE)?;
        let process = node.start(&[])?;
        let now = node.ip("route")?;
        assert!((acknowledged..=old + 3000).contains(&now.lines().count()), "{acknowledged}, {}", process.output());
        // All before the last one are there.
        let new = now.lines().filter(|line| line.contains(&format!("10.{rounds}."))).count();
        let last = new - 1;
        assert!(now.contains(&format!("10.{rounds}.{}.{} ", last / 250, last % 250)), "{last}");
        kill(process)?;
    }
    Ok(())
}

fn full() -> Outcome {
    let (scratch, netns) = (Scratch::new()?, Netns::new("x")?);
    let node = Node { scratch: &scratch, netns: &netns, name: "x" };
    let dir = scratch.file("small");
    fs::create_dir(&dir)?;
    let mut command = netns.command("sh");
    let script =
        "mount -t tmpfs -o size=4m,mode=700 none \"$DIR\" && exec \"$0\" run --instance x --state \"$DIR/state\"";
    command.args(["-c", script]).arg(fatpath()).env("DIR", &dir).env("FATPATH_RUNDIR", scratch.path());
    let process = node.start_by(command)?;
    let inside = format!("/proc/{}/root{}", process.id(), dir.display());
    fs::write(format!("{inside}/rest"), vec![0; 8 << 20]).unwrap_err();
    let lines: String = (0..2000).map(|n| format!("route add blackhole 10.1.{}.{}/32\n", n / 250, n % 250)).collect();
    node.batch(&lines)?;
    assert_eq!(node.ip("route")?.lines().count(), 2000);
    let errors = process.output().matches("changes by programs are not kept over a crash").count();
    assert_eq!(errors, 1, "{}", process.output());
    // The next write of the state has all changes.
    fs::remove_file(format!("{inside}/rest"))?;
    node.save()?;
    kill(process)
}

fn place() -> Outcome {
    let (scratch, netns) = (Scratch::new()?, Netns::new("x")?);
    let node = Node { scratch: &scratch, netns: &netns, name: "x" };
    let process = node.start(&[])?;
    let state = scratch.file("x.state");
    assert_eq!(fs::metadata(&state)?.permissions().mode() & 0o777, 0o600);
    let other = Node { name: "y", ..node };
    let output = other.try_start(&["--state", &state.display().to_string()]).output()?;
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    let want = format!("Error: {}: in use by another gateway", state.display());
    assert!(output.status.code() == Some(1) && printed.contains(&want), "{printed}");
    kill(process)?;
    let process = node.start(&["--state", "none"])?;
    assert!(!process.output().contains("no state is kept"), "{}", process.output());
    kill(process)?;
    // A user without a directory for the state, and with one.
    let program = scratch.file("fatpath");
    fs::copy(fatpath(), &program)?;
    fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o755))?;
    let own = scratch.file("own");
    fs::create_dir(&own)?;
    std::os::unix::fs::chown(&own, Some(65534), Some(65534))?;
    for (home, is_kept) in [("/proc", false), ("own", true)] {
        let home = scratch.file(home);
        let mut command = netns.command("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&program);
        command.args(["run", "--instance", "z"]).env_remove("FATPATH_RUNDIR").env_remove("XDG_STATE_HOME");
        command.env("XDG_RUNTIME_DIR", &own).env("HOME", &home);
        let mut process = Process::spawn(&mut command, &scratch)?;
        wait_until("it runs", PATIENCE, || !process.is_running() || process.output().contains("z: running"))?;
        let log = process.output();
        assert!(process.is_running(), "{log}");
        assert_eq!(log.matches("WARN no state is kept: ").count(), usize::from(!is_kept), "{log}");
        let dir = own.join(".local/state/fatpath");
        assert_eq!(dir.exists(), is_kept, "{log}");
        if is_kept {
            assert_eq!(fs::metadata(&dir)?.mode() & 0o777, 0o700);
            assert!(dir.join("z.state").exists());
        }
        kill(process)?;
    }
    // A state that is there, and cannot be opened, is not ignored.
    fs::set_permissions(&state, fs::Permissions::from_mode(0o666))?;
    let output = node.try_start(&[]).output()?;
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

fn numbers() -> Outcome {
    // Of the left end; the right end has the other end of the cable.
    let macvlan = "ip link add eth0 link wire type macvlan mode bridge; ip link set eth0 up mtu 1280";
    let bridge = "ip link add eth0 type bridge; ip link set wire master eth0; ip link set eth0 up";
    for (flags, window, outer) in [("", "32", None), ("flag esn", "128", Some(macvlan)), ("", "32", Some(bridge))] {
        let scratch = Scratch::new()?;
        let ends = [("left", 1, Netns::new("left")?), ("right", 2, Netns::new("right")?)];
        veth((&ends[0].2, if outer.is_some() { "wire" } else { "eth0" }), (&ends[1].2, "eth0"))?;
        ends[0].2.sh(outer.unwrap_or_default())?;
        let file = |name: &str| format!("{}/../../examples/ip-xfrm/{name}.toml", env!("CARGO_MANIFEST_DIR"));
        for (_, number, netns) in &ends {
            netns.sh(&format!("ip addr add 192.0.2.{number}/24 dev eth0"))?;
        }
        let nodes = ends.each_ref().map(|(name, _, netns)| Node { scratch: &scratch, netns, name });
        let start = |at: usize| {
            let process = nodes[at].start(&["-c", &file(ends[at].0)])?;
            let number = at + 1;
            let script = format!(
                "ip addr replace 10.{number}.0.1/24 dev tun0; ip route replace 10.{}.0.0/24 dev tun0",
                3 - number
            );
            ends[at].2.sh(&script)?;
            Outcome::Ok(process)
        };
        let mut processes = [Some(start(0)?), Some(start(1)?)];
        // Static keys by `ip`, as examples/ip-xfrm has them.
        for (node, (name, ..)) in nodes.iter().zip(&ends) {
            let path = format!("{}/../../examples/ip-xfrm/{name}.ip", env!("CARGO_MANIFEST_DIR"));
            let lines = fs::read_to_string(path)?;
            let lines: String = lines
                .replace("\\\n", " ")
                .lines()
                .map(|line| match line.contains("xfrm state add") || line.contains("state add") {
                    true => format!("{} replay-window {window} {flags}\n", without_window(line)),
                    false => format!("{line}\n"),
                })
                .collect();
            node.batch(&lines)?;
        }
        let refused = |at: usize| -> Outcome<String> {
            let shown = run(&mut nodes[at].command(&["show", "drops", "--instance", ends[at].0]))?;
            let wrong = shown.lines().filter(|line| line.contains("EspReplay") || line.contains("EspIcv"));
            Ok(wrong.collect::<Vec<_>>().join("\n"))
        };
        // The first kill comes before any checkpoint could be written by a clock.
        for killed in [0, 1, 0, 1] {
            ends[0].2.sh("ping -q -f -c 300 -w 10 10.2.0.1")?;
            let mut traffic = ends[0].2.command("ping");
            let mut traffic = Process::spawn(traffic.args(["-q", "-i", "0.002", "10.2.0.1"]), &scratch)?;
            std::thread::sleep(Duration::from_millis(200));
            kill(processes[killed].take().ok_or("no process")?)?;
            processes[killed] = Some(start(killed)?);
            ends[0].2.sh("ping -q -f -c 300 -w 10 10.2.0.1")?;
            ends[1].2.sh("ping -q -f -c 300 -w 10 10.1.0.1")?;
            traffic.signal(Signal::INT)?;
            traffic.wait(PATIENCE)?;
            for at in [0, 1] {
                assert_eq!(refused(at)?, "", "{} after a kill of {killed}, {flags}, {outer:?}", ends[at].0);
            }
        }
    }
    Ok(())
}

fn warnings() -> Outcome {
    let scratch = Scratch::new()?;
    let ends = [("left", 1, Netns::new("left")?), ("right", 2, Netns::new("right")?)];
    veth((&ends[0].2, "eth0"), (&ends[1].2, "eth0"))?;
    let file = |name: &str| format!("{}/../../examples/tunnel-{name}.toml", env!("CARGO_MANIFEST_DIR"));
    for (_, number, netns) in &ends {
        netns.sh(&format!("ip addr add 192.0.2.{number}/24 dev eth0"))?;
    }
    let [left, right] = ends.each_ref().map(|(name, _, netns)| Node { scratch: &scratch, netns, name });
    let right = right.start(&["-c", &file("right")])?;
    let start = || left.start(&["-c", &file("left"), "--state", "none"]);
    let process = start()?;
    assert_eq!(process.output().matches("WARN --state none: after a restart SAs").count(), 1, "{}", process.output());
    ends[0].2.sh("ping -q -f -c 1500 10.2.0.1")?;
    assert!(!right.output().contains("restarted without state"), "{}", right.output());
    kill(process)?;
    let _process = start()?;
    // Its packets are refused, longer than one look takes.
    assert!(ends[0].2.sh("ping -q -c 40 -i 0.1 -w 4 10.2.0.1").is_err());
    let log = right.output();
    let found: Vec<_> = log.lines().filter(|line| line.contains("the peer was restarted without state")).collect();
    assert!(found.len() == 1 && found[0].contains("WARN SA 0x") && found[0].contains(" from 192.0.2.1: "), "{log}");
    Ok(())
}

/// A line of `ip xfrm state add` without its options for the window.
fn without_window(line: &str) -> String {
    let mut words = line.split_whitespace();
    let mut kept = Vec::new();
    while let Some(word) = words.next() {
        match word {
            "replay-window" | "flag" => drop(words.next()),
            word => kept.push(word),
        }
    }
    kept.join(" ")
}
