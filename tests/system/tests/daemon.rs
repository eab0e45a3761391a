//! Operation of the program: signals, configuration files, missing privileges, lost links.

use std::fs::{self, Permissions};
use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};
use std::time::Duration;

use libtest_mimic::Trial;
use rustix::process::{Pid, Signal, kill_process};
use system::{Gateway, Need, Netns, Outcome, Process, Scratch, fatpath, ping_script, run, trial, wait_until};

use crate::{router, tunnel};

const NEEDS: &[Need] = &[Need::Namespaces, Need::Tun, Need::PING];

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("daemon/sigterm_ends_it_cleanly", NEEDS, sigterm_ends_it_cleanly),
        trial("daemon/sighup_applies_a_new_file", NEEDS, sighup_applies_a_new_file),
        trial("daemon/sighup_with_a_bad_file_changes_nothing", NEEDS, sighup_with_a_bad_file_changes_nothing),
        trial("daemon/sighup_changes_reassembly_limits", NEEDS, sighup_changes_how_fragments_wait),
        trial("daemon/an_empty_gateway_is_configured_at_run_time", NEEDS, an_empty_gateway_is_configured_at_run_time),
        trial("daemon/log_without_a_reader_does_not_end_the_gateway", &[], log_without_a_reader),
        trial("daemon/discard_thread_takes_no_signals", NEEDS, discard_thread_takes_no_signals),
        trial("daemon/sa_warnings_sleep_without_packets", NEEDS, sa_warnings_sleep),
        trial("daemon/worker_has_a_raised_priority_if_allowed", NEEDS, raised_priority),
        trial("daemon/a_lost_link_leaves_the_others_running", NEEDS, a_lost_link_leaves_the_others_running),
        trial("daemon/a_link_is_as_its_interface", NEEDS, a_link_is_as_its_interface),
        trial("daemon/packets_received_while_a_link_was_down_are_dropped", NEEDS, what_came_while_down),
        trial("cli/check_accepts_a_good_file", &[], check_accepts_a_good_file),
        trial("cli/check_names_an_error_in_one_line_and_exits_2", &[], check_names_what_is_wrong),
        trial("cli/a_missing_privilege_is_named_with_its_remedy", NEEDS, a_missing_privilege_is_named),
    ]
}

fn sigterm_ends_it_cleanly() -> Outcome {
    let mut site = tunnel::TunnelSite::new()?;
    let status = site.gateway_a.terminate()?;
    assert!(status.success(), "{status}: {}", site.gateway_a.log());
    assert!(!site.gateway_a.socket().exists(), "its socket is left");
    assert!(site.a.sh("ip link show tun0")?.contains("alias fatpath "), "its TUN device stays, and has its mark");
    Ok(())
}

/// Counts the sleeps of the thread `sa-warnings` of a gateway that receives nothing.
fn sa_warnings_sleep() -> Outcome {
    let scratch = Scratch::new()?;
    let (netns, toml) = (Netns::new("idle")?, "[[link]]\nname = \"wan\"\nkind = \"udp\"\nbind = \"127.0.0.1:4500\"\n");
    netns.sh("ip link set lo up")?;
    let gateway = Gateway::start(&netns, &scratch, "idle", toml)?;
    let sleeps = || -> Outcome<String> {
        for thread in fs::read_dir(format!("/proc/{}/task", gateway.id()))? {
            let thread = thread?.path();
            if fs::read_to_string(thread.join("comm"))?.trim() == "sa-warnings" {
                let status = fs::read_to_string(thread.join("status"))?;
                let sleeps = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
                return Ok(sleeps.ok_or("no count")?.trim().to_owned());
            }
        }
        Err("no thread sa-warnings".into())
    };
    std::thread::sleep(Duration::from_millis(1500));
    let before = sleeps()?;
    std::thread::sleep(Duration::from_millis(3500));
    assert_eq!(sleeps()?, before, "times that the thread slept");
    Ok(())
}

/// The thread that closes descriptors of clients has a separate table of descriptors: a signal handler would write to
/// the wrong descriptor.
fn discard_thread_takes_no_signals() -> Outcome {
    const TAKEN_ELSEWHERE: [u32; 3] = [1, 2, 15];
    let site = tunnel::TunnelSite::new()?;
    for thread in fs::read_dir(format!("/proc/{}/task", site.gateway_a.id()))? {
        let thread = thread?.path();
        if fs::read_to_string(thread.join("comm"))?.trim() != "discard" {
            continue;
        }
        let status = fs::read_to_string(thread.join("status"))?;
        let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).ok_or("no SigBlk")?;
        let blocked = u64::from_str_radix(blocked.trim(), 16)?;
        assert!(TAKEN_ELSEWHERE.iter().all(|signal| blocked >> (signal - 1) & 1 == 1), "{status}");
        return Ok(());
    }
    Err("no thread is named discard".into())
}

fn raised_priority() -> Outcome {
    let (scratch, netns) = (Scratch::new()?, Netns::new("gateway")?);
    let toml = "[[link]]\nname = \"tun0\"\nkind = \"tun\"\n[crypto]\nworkers = 1\n";
    let nice = |gateway: &Gateway, name: &str| -> Outcome<Vec<i64>> {
        let mut found = Vec::new();
        for thread in fs::read_dir(format!("/proc/{}/task", gateway.id()))? {
            let stat = fs::read_to_string(thread?.path().join("stat"))?;
            let (front, rest) = stat.rsplit_once(')').ok_or("no name in /proc/PID/task/TID/stat")?;
            if front.contains(&format!("({name}")) {
                // The 19th field (proc_pid_stat(5)), 17th from the state on.
                found.push(rest.split_whitespace().nth(16).ok_or("no niceness")?.parse()?);
            }
        }
        Ok(found)
    };
    let with = Gateway::start(&netns, &scratch, "with", toml)?;
    let mut without = netns.command("setpriv");
    without.args(["--bounding-set", "-sys_nice"]).arg(fatpath());
    let toml = &toml.replace("tun0", "tun1");
    let without = Gateway::start_under(without, &scratch, "without", toml)?;
    let (others, own) = (nice(&with, "netlink")?, nice(&without, "netlink")?);
    assert_eq!((others.len(), &others), (1, &own), "threads that answer programs");
    for name in ["worker", "crypto"] {
        assert_eq!(nice(&with, name)?, [(others[0] - 10).max(-20)], "{name}");
        assert_eq!(nice(&without, name)?, own, "{name}, without CAP_SYS_NICE");
    }
    assert!(without.log().contains("CAP_SYS_NICE"), "{}", without.log());
    Ok(())
}

fn sighup_applies_a_new_file() -> Outcome {
    let mut site = router::PlainSite::new(true)?;
    let route = "[[route]]\nto = \"10.99.0.0/16\"\ntype = \"blackhole\"\n";
    site.gateway.reload(&(router::PlainSite::config(true) + route))?;
    site.gateway.wait_until("the new route is there", |gateway| {
        gateway.show("routes").is_ok_and(|routes| routes.contains("10.99.0.0/16"))
    })?;
    site.a.sh(&ping_script(router::PlainSite::FAR.parse()?, &[56]))?;
    Ok(())
}

fn sighup_with_a_bad_file_changes_nothing() -> Outcome {
    let mut site = router::PlainSite::new(true)?;
    let (routes, logged) = (site.gateway.show("routes")?, site.gateway.log().len());
    // The first addition is right; it must not be applied without the second.
    let additions =
        "[[route]]\nto = \"10.99.0.0/16\"\ntype = \"blackhole\"\n[[route]]\nto = \"10.98.0.0/16\"\ndev = \"no\"\n";
    site.gateway.reload(&(router::PlainSite::config(true) + additions))?;
    site.gateway.wait_until("the error is logged", |gateway| gateway.log()[logged..].contains("plain.toml"))?;
    assert_eq!(site.gateway.show("routes")?, routes);
    site.a.sh(&ping_script(router::PlainSite::FAR.parse()?, &[56]))?;
    Ok(())
}

fn sighup_changes_how_fragments_wait() -> Outcome {
    let mut site = router::PlainSite::new(true)?;
    let configure = |gateway: &mut Gateway, toml: &str| -> Outcome {
        let logged = gateway.log().len();
        gateway.reload(&(router::PlainSite::config(true) + "[reassembly]\n" + toml))?;
        gateway.wait_until("it is reloaded", |gateway| gateway.log()[logged..].contains("reloaded"))
    };
    let ping = |site: &router::PlainSite, to: &str| site.a.sh(&format!("ping -n -c 1 -W 2 -s 4000 {to}"));
    let own = ["10.1.0.1", "fd01::1"];
    for to in own {
        ping(&site, to)?;
    }
    configure(&mut site.gateway, "ipfrag_high_thresh = 0\nip6frag_high_thresh = 0\n")?;
    for to in own {
        assert!(ping(&site, to).is_err(), "{to}: fragments are put together where there is no memory for any");
    }
    assert!(site.gateway.show("drops")?.contains("FragmentMemory"));
    assert_eq!(site.gateway.show("fragments")?, "FRAG: inuse 0 memory 0\nFRAG6: inuse 0 memory 0\n");
    configure(&mut site.gateway, "policy = \"linux\"\ncoalesce = \"copy\"\n")?;
    for to in own {
        ping(&site, to)?;
    }
    Ok(())
}

fn a_lost_link_leaves_the_others_running() -> Outcome {
    let mut site = router::PlainSite::new(true)?;
    for link in ["spare", "tun9"] {
        site.gateway_ns.sh(&format!("ip link del {link}"))?;
        site.gateway.wait_until(&format!("{link} is logged as down"), |gateway| {
            gateway.show("links").is_ok_and(|links| {
                links.lines().any(|line| line.contains(link) && line.to_lowercase().contains("down"))
            })
        })?;
        site.a.sh(&ping_script(router::PlainSite::FAR.parse()?, &[0, 56, 4000]))?;
    }
    Ok(())
}

/// Link state follows the interface without any packet.
fn a_link_is_as_its_interface() -> Outcome {
    let mut site = router::PlainSite::new(true)?;
    let changes = [
        ("right mtu 1300", "right: <UP> mtu 1300"),
        ("right mtu 1500", "right: <UP> mtu 1500"),
        ("spare down", "spare: <DOWN>"),
        ("spare up", "spare: <UP>"),
        ("tun9 down", "tun9: <DOWN>"),
        ("tun9 up", "tun9: <UP>"),
    ];
    for (change, shown) in changes {
        site.gateway_ns.sh(&format!("ip link set {change}"))?;
        if let Some(mtu) = change.strip_prefix("right ") {
            site.b.sh(&format!("ip link set eth0 {mtu}"))?;
        }
        site.gateway.wait_until(&format!("{change} is seen"), |gateway| {
            gateway.show("links").is_ok_and(|links| links.contains(shown))
        })?;
        if change.ends_with("1300") {
            // The sender handles a packet that no longer fits: the first ping's error gives the path MTU to the next.
            let ping = format!("ping -n -c 2 -W 2 -M do -s 1400 {} 2>&1 || true", router::PlainSite::FAR);
            let printed = site.a.sh(&ping)?;
            assert!(printed.contains("mtu = 1300") || printed.contains("mtu=1300"), "{printed}");
        }
        site.a.sh(&ping_script(router::PlainSite::FAR.parse()?, &[0, 56, 1200, 4000]))?;
    }
    Ok(())
}

/// Also if its interface was down before, and was created again in the meantime.
fn what_came_while_down() -> Outcome {
    let mut site = router::PlainSite::new(true)?;
    let rundir = site.scratch.path().to_owned();
    let ip = |words: &str| {
        let mut command = Command::new(fatpath());
        command.args(["ip", "--instance", "plain", "link", "set", "left"]).args(words.split(' '));
        run(command.env("FATPATH_RUNDIR", &rundir)).map(drop)
    };
    let ping = |site: &router::PlainSite, count: u8| {
        site.a.sh(&format!("ping -n -q -c {count} -i 0.1 -W 1 {}", router::PlainSite::FAR))
    };
    let passed_on = |site: &router::PlainSite| site.b.sh("nstat -asz IcmpInEchos | awk '/IcmpInEchos/ { print $2 }'");
    let dropped = |site: &router::PlainSite| -> Outcome<u64> {
        let drops = site.gateway.show("drops")?;
        let counts = drops.lines().filter(|line| line.contains("LinkDown")).flat_map(str::split_whitespace);
        Ok(counts.filter_map(|word| word.parse::<u64>().ok()).sum())
    };
    // A sent packet does not wait for a reply of the gateway.
    site.a.sh("ping -n -q -c 1 -W 5 10.1.0.1")?;
    site.a.sh(
        "ip neigh replace 10.1.0.1 dev eth0 nud permanent lladdr $(ip neigh show 10.1.0.1 dev eth0 | awk '{ print $3 }')",
    )?;
    for (failed_before, mtu) in [(false, 1400), (true, 1300)] {
        ping(&site, 1)?;
        if failed_before {
            site.gateway_ns.sh("ip link set left down")?;
            site.gateway.wait_until("its interface is down", |gateway| {
                gateway.show("links").is_ok_and(|links| links.contains("left: <DOWN>"))
            })?;
        }
        ip("down")?;
        site.gateway_ns.sh(&format!("ip link set left up mtu {mtu}"))?;
        site.a.sh(&format!("ip link set eth0 mtu {mtu}"))?;
        let before = (passed_on(&site)?, dropped(&site)?);
        site.a
            .sh("for i in $(seq 100); do [ $(cat /sys/class/net/eth0/operstate) = up ] && break; sleep 0.05; done")?;
        assert!(ping(&site, 3).is_err(), "it is down");
        ip("up")?;
        site.gateway.wait_until("it is up, and as its interface", |gateway| {
            gateway.show("links").is_ok_and(|links| links.contains(&format!("left: <UP> mtu {mtu}")))
        })?;
        assert_eq!(passed_on(&site)?, before.0, "nothing of what came meanwhile is passed on");
        assert!(dropped(&site)? >= before.1 + 3, "it is counted");
    }
    ping(&site, 3)?;
    Ok(())
}

fn an_empty_gateway_is_configured_at_run_time() -> Outcome {
    let scratch = Scratch::new()?;
    let fatpath = |words: &[&str]| {
        let mut command = Command::new(fatpath());
        command.args(words).env("FATPATH_RUNDIR", scratch.path()).current_dir(scratch.path());
        command
    };
    let mut gateway = Process::spawn(&mut fatpath(&["run"]), &scratch)?;
    let socket = scratch.file("default.sock");
    wait_until("it listens", Duration::from_secs(20), || socket.exists())?;
    let free = UdpSocket::bind("127.0.0.1:0")?.local_addr()?;
    let good = format!("[[link]]\nname = \"w\"\nkind = \"udp\"\nbind = \"{free}\"\n");
    let taken = good.replace('w', "x");
    let files = [("wrong.toml", format!("{good}mtoo = 1\n")), ("good.toml", good), ("taken.toml", taken)];
    for (name, toml) in &files {
        fs::write(scratch.file(name), toml)?;
    }
    let load = |file| -> Outcome<(Option<i32>, String)> {
        let output = fatpath(&["load", "-c", file]).output()?;
        Ok((output.status.code(), String::from_utf8(output.stdout)? + &String::from_utf8(output.stderr)?))
    };
    let links = || run(&mut fatpath(&["show", "links"]));
    let (code, printed) = load("wrong.toml")?;
    assert!(code == Some(2) && printed.contains("wrong.toml:5") && printed.contains("mtoo"), "{printed}");
    assert_eq!(links()?, "");
    assert_eq!(load("good.toml")?, (Some(0), "default: running with 1 link: w; +1 link\n".to_owned()));
    assert!(links()?.contains("w: <UP>"), "{}", links()?);
    // The port is in use as long as the first link is there, and then nothing changes.
    let (code, printed) = load("taken.toml")?;
    assert!(code == Some(1) && printed.lines().count() == 1 && printed.contains("taken.toml"), "{printed}");
    assert!(links()?.contains("w: <UP>"), "{}", links()?);
    // SIGHUP reads that file, unless an opener does, which knows files of the start alone.
    let route = "[[route]]\nto = \"10.99.0.0/16\"\ntype = \"blackhole\"\n";
    fs::write(scratch.file("good.toml"), files[1].1.clone() + route)?;
    gateway.signal(Signal::HUP)?;
    let has_route = || run(&mut fatpath(&["show", "routes"])).is_ok_and(|routes| routes.contains("10.99.0.0/16"));
    let mut is_refused = false;
    wait_until("the route is there, or refused by name", Duration::from_secs(20), || {
        let file = scratch.file("good.toml").display().to_string();
        let hint = "; the sandbox lets this gateway read no file: `fatpath load -c FILE` passes it one";
        is_refused = gateway.output().lines().any(|line| {
            line.contains(&format!("not reloaded, nothing has changed: {file}: Permission denied"))
                && line.ends_with(hint)
        });
        is_refused || has_route()
    })?;
    let has_opener = run(&mut fatpath(&["show", "sandbox"]))?.contains(" by its opener\n");
    assert_eq!((is_refused, has_route()), (has_opener, !has_opener), "{}", gateway.output());
    assert_eq!(load("good.toml")?.0, Some(0));
    assert!(has_route());
    gateway.signal(Signal::TERM)?;
    assert!(gateway.wait(Duration::from_secs(20))?.success());
    Ok(())
}

fn log_without_a_reader() -> Outcome {
    let scratch = Scratch::new()?;
    let file = scratch.file("w.toml");
    let free = UdpSocket::bind("127.0.0.1:0")?.local_addr()?;
    fs::write(&file, format!("[[link]]\nname = \"w\"\nkind = \"udp\"\nbind = \"{free}\"\n"))?;
    let full = fs::OpenOptions::new().write(true).open("/dev/full")?;
    let mut command = Command::new(fatpath());
    command.args(["run", "-c"]).arg(&file).env("FATPATH_RUNDIR", scratch.path()).stderr(full);
    let mut gateway = command.spawn()?;
    let socket = scratch.file("default.sock");
    let outcome = wait_until("it listens", Duration::from_secs(20), || socket.exists()).and_then(|()| {
        let pid = Pid::from_child(&gateway);
        kill_process(pid, Signal::HUP)?;
        kill_process(pid, Signal::TERM)?;
        let mut status = None;
        wait_until("it has ended", Duration::from_secs(20), || {
            status = gateway.try_wait().ok().flatten();
            status.is_some()
        })?;
        assert_eq!(status.and_then(|status| status.code()), Some(0));
        Ok(())
    });
    // Only if it has not ended by itself.
    let _ = gateway.kill();
    outcome
}

fn check_accepts_a_good_file() -> Outcome {
    let scratch = Scratch::new()?;
    let output = check(&scratch, &router::PlainSite::config(true))?;
    assert!(output.status.success(), "{output:?}");
    Ok(())
}

fn check_names_what_is_wrong() -> Outcome {
    let scratch = Scratch::new()?;
    // A file, and the line and the word in its error message.
    let files = [
        ("[[link]]\nname = \"tun0\"\nkind = \"tun\"\nmtoo = 1400\n", 4, "mtoo"),
        ("[[link]]\nname = \"tun0\"\nkind = \"tunnel\"\n", 3, "kind"),
        ("[[link]]\nname = \"tun0\"\nkind = \"tun\"\naddresses = [\"10.1.0.300/24\"]\n", 4, "addresses"),
        ("[[route]]\nto = \"10.0.0.0/8\"\ndev = \"nowhere\"\n", 3, "dev"),
        ("[[sa]]\nsrc = \"192.0.2.1\"\ndst = \"192.0.2.2\"\nspi = 0\n", 4, "spi"),
        ("[[link]\n", 1, "]"),
    ];
    for (toml, line, word) in files {
        let output = check(&scratch, toml)?;
        let printed = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{toml}{printed}");
        assert_eq!(printed.lines().count(), 1, "{toml}{printed}");
        assert!(printed.contains(&format!("checked.toml:{line}")), "{toml}{printed}");
        assert!(printed.contains(word), "{toml}{printed}");
    }
    Ok(())
}

fn check(scratch: &Scratch, toml: &str) -> Outcome<Output> {
    let file = scratch.file("checked.toml");
    fs::write(&file, toml)?;
    Ok(Command::new(fatpath()).args(["check", "-c"]).arg(file).output()?)
}

fn a_missing_privilege_is_named() -> Outcome {
    // Another user can neither enter the build directory nor read this user's files.
    let scratch = Scratch::new()?;
    let (program, file) = (scratch.file("fatpath"), scratch.file("nobody.toml"));
    fs::copy(fatpath(), &program)?;
    fs::write(&file, "[[link]]\nname = \"tun0\"\nkind = \"tun\"\n")?;
    for (path, mode) in [(scratch.path(), 0o1777), (&program, 0o755), (&file, 0o644)] {
        fs::set_permissions(path, Permissions::from_mode(mode))?;
    }
    let mut command = Command::new("timeout");
    command.args(["5", "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&program);
    command.args(["run", "-c"]).arg(&file).env("FATPATH_RUNDIR", scratch.path());
    let output = command.output()?;
    let printed = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{printed}");
    assert!(printed.contains("tun0"), "the link is not named: {printed}");
    assert!(printed.contains("CAP_NET_ADMIN"), "the privilege is not named: {printed}");
    Ok(())
}
