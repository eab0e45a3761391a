//! Files of `ip` lines that a gateway is started from, or checked.

use std::fs;
use std::process::Command;
use std::time::Duration;

use libtest_mimic::Trial;
use system::{Gateway, Need, Netns, Outcome, Process, Scratch, fatpath, run, trial};

const NEEDS: &[Need] = &[Need::Namespaces, Need::Tun];

/// Comments, quotes, empty lines and a continued line, as in iproute2.
const GOOD: &str = r#"# A gateway in lines of ip.
link add tun0 type tun

link set tun0 mtu 1400 up          # a comment
link add wan address 127.0.0.1 type udp
link set wan up
addr add 10.1.0.254/24 \
    dev "tun0"
route add 10.2.0.0/24 dev wan
route add 192.0.2.2 dev wan
route add blackhole '10.9.0.0/16'
rule add to 10.3.0.0/16 table 7
xfrm state add src 127.0.0.1 dst 192.0.2.2 proto esp spi 0x1000 reqid 1 mode tunnel aead 'rfc4106(gcm(aes))' 0x000102030405060708090a0b0c0d0e0f10111213 128 encap espinudp 4500 4500 0.0.0.0
xfrm policy add dir out src 10.1.0.0/24 dst 10.2.0.0/24 tmpl src 127.0.0.1 dst 192.0.2.2 proto esp reqid 1 mode tunnel
"#;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("lines/a_gateway_is_started_by_lines_of_ip", NEEDS, start),
        trial("lines/lines_come_after_a_toml_file", NEEDS, after_toml),
        trial("lines/failing_line_is_named_with_the_error_of_ip", NEEDS, bad),
        trial("lines/lines_not_for_netlink_are_refused_before_any_is_done", NEEDS, others),
        trial("lines/a_check_that_is_ended_leaves_nothing", NEEDS, check_ended),
        trial("lines/stopped_gateway_does_not_finish_them", NEEDS, ended),
    ]
}

fn command(scratch: &Scratch, words: &[&str]) -> Command {
    let mut command = Command::new(fatpath());
    command.args(words).env("FATPATH_RUNDIR", scratch.path());
    command
}

fn start() -> Outcome {
    let (scratch, netns) = (Scratch::new()?, Netns::new("x")?);
    let file = scratch.file("good.ip");
    fs::write(&file, GOOD)?;
    let name = file.display().to_string();
    let printed = run(&mut command(&scratch, &["check", "-c", &name]))?;
    assert_eq!(printed, format!("{name}: 2 links, 3 routes, 1 SA, 1 policy: ok\n"));
    let mut gateway = Gateway::start(&netns, &scratch, "x", GOOD)?;
    gateway.wait_until("it says so", |gateway| gateway.log().contains("running with 2 links: tun0, wan"))?;
    let ip = |words: &[&str]| run(&mut command(&scratch, &[&["ip", "--instance", "x"], words].concat()));
    assert_eq!(ip(&["-br", "-4", "addr"])?.lines().count(), 2);
    let routes = ip(&["route"])?;
    assert!(routes.contains("blackhole 10.9.0.0/16") && routes.contains("10.2.0.0/24 dev wan"), "{routes}");
    assert!(ip(&["rule"])?.contains("to 10.3.0.0/16 lookup 7") && ip(&["xfrm", "state"])?.contains("0x00001000"));
    assert_eq!(netns.sh("cat /sys/class/net/tun0/mtu; ss -Huln | grep -c 127.0.0.1:4500")?, "1400\n1\n");
    // Only the lines could reach the temporary socket, and it is removed.
    assert!(!scratch.file("x.starting").exists());
    gateway.reload(GOOD)?;
    gateway.wait_until("the reload is refused", |gateway| gateway.log().contains("not reloaded"))?;
    assert!(gateway.log().contains("fatpath ip -batch"), "{}", gateway.log());
    let refused = command(&scratch, &["load", "--instance", "x", "-c", &name]).output()?;
    assert!(
        refused.status.code() == Some(1) && String::from_utf8_lossy(&refused.stderr).contains("when a gateway starts")
    );
    assert_eq!(ip(&["route"])?, routes);
    assert!(gateway.terminate()?.success());
    Ok(())
}

fn after_toml() -> Outcome {
    let (scratch, netns) = (Scratch::new()?, Netns::new("x")?);
    let (toml, lines) = (scratch.file("x.toml"), scratch.file("x.ip"));
    fs::write(&toml, "[[link]]\nname = \"wan\"\nkind = \"udp\"\nbind = \"127.0.0.1:4501\"\n")?;
    fs::write(&lines, "route add 10.2.0.0/24 dev wan")?;
    let (toml, lines) = (toml.display().to_string(), lines.display().to_string());
    let printed = run(&mut command(&scratch, &["check", "-c", &lines, "-c", &toml]))?;
    assert_eq!(printed, format!("{lines}, {toml}: 1 link, 1 route, 0 SAs, 0 policies: ok\n"));
    let example = |file: &str| format!("{}/../../examples/ip-xfrm/{file}", env!("CARGO_MANIFEST_DIR"));
    for side in ["left", "right"] {
        let (links, sas) = (example(&format!("{side}.toml")), example(&format!("{side}.ip")));
        let printed = run(&mut command(&scratch, &["check", "-c", &links, "-c", &sas]))?;
        assert!(printed.ends_with(": 2 links, 2 routes, 2 SAs, 3 policies: ok\n"), "{printed}");
    }
    let both = command(&scratch, &["run", "-c", &toml, "-c", &toml]).output()?;
    assert!(both.status.code() == Some(1) && String::from_utf8_lossy(&both.stderr).contains("are TOML, both"));
    let mut run_it = netns.command(fatpath());
    run_it.args(["run", "--instance", "x", "-c", &lines, "-c", &toml]).env("FATPATH_RUNDIR", scratch.path());
    let process = Process::spawn(&mut run_it, &scratch)?;
    system::wait_until("its route is there", Duration::from_secs(20), || {
        let routes = run(&mut command(&scratch, &["ip", "--instance", "x", "route"]));
        routes.is_ok_and(|routes| routes == "10.2.0.0/24 dev wan scope link \n")
    })
    .map_err(|failed| format!("{}\n{}", failed.message().unwrap_or_default(), process.output()).into())
}

fn bad() -> Outcome {
    let (scratch, netns) = (Scratch::new()?, Netns::new("x")?);
    let file = scratch.file("bad.ip");
    let name = file.display().to_string();
    let long = format!("route add 10.8.0.0/16 dev tun0 {}frob x", " ".repeat(10_000));
    // The gateway's messages in full; of the messages of `ip`, which differ between releases, only a part.
    let cases = [
        ("route add 10.8.0.0/16 via 10.99.0.9", "Nexthop has invalid gateway."),
        ("route add 10.8.0.0/99 dev tun0", "10.8.0.0/99"),
        ("route add 10.2.0.0/24 dev wan", "File exists"),
        ("link add tun0 type tun", "File exists"),
        ("link add g type vhost", "Unknown device type."),
        (
            "link add w type udp",
            "a udp link needs the address that its socket is bound to, as in `address 192.0.2.1 type udp`.",
        ),
        (
            "link add w address 02:00:00:00:00:01 type udp",
            "a udp link needs the address that its socket is bound to, as in `address 192.0.2.1 type udp`.",
        ),
        ("xfrm state add src 1.1.1.1", "XFRM-PROTO"),
        (&long, "\"frob\""),
    ];
    for (line, want) in cases {
        // Many lines follow, which are not carried out and not counted.
        fs::write(&file, format!("{GOOD}{line}\n{}", "route add 10.77.0.0/16 dev tun0\n".repeat(5000)))?;
        let number = GOOD.lines().count() + 1;
        let place = format!("Error: {name}:{number}: ");
        for verb in ["check", "run"] {
            let mut it = netns.command(fatpath());
            let state: &[&str] = if verb == "run" { &["--state", "none"] } else { &[] };
            let output = it.args([verb, "-c", &name]).args(state).env("FATPATH_RUNDIR", scratch.path()).output()?;
            let printed = String::from_utf8_lossy(&output.stderr);
            // The gateway has its host side by then, and logs that.
            let printed: String =
                printed.split_inclusive('\n').filter(|line| !line.contains(" INFO host side")).collect();
            assert_eq!(output.status.code(), Some(2), "{verb}: {line}: {printed}");
            let is_it = |what: &str| what.contains(want) && what.lines().count() == 1;
            assert!(printed.strip_prefix(&place).is_some_and(is_it), "{verb}: {line}: {printed}");
        }
    }
    // No device and no socket is left.
    let left = fs::read_dir(scratch.path())?.filter_map(Result::ok).map(|entry| entry.file_name()).collect::<Vec<_>>();
    assert_eq!((left, netns.sh("ls /sys/class/net")?), (vec!["bad.ip".into()], "lo\n".to_owned()));
    Ok(())
}

fn others() -> Outcome {
    let (scratch, netns) = (Scratch::new()?, Netns::new("x")?);
    let file = scratch.file("bad.ip");
    let name = file.display().to_string();
    let made = scratch.file("made").display().to_string();
    let lines = [
        ("frob", "frob x".to_owned()),
        ("tuntap", "tuntap add t9 mode tun".to_owned()),
        ("tunnel", "tunnel add t9 mode ipip remote 192.0.2.1 local 192.0.2.2".to_owned()),
        ("vrf", format!("vrf exec x touch {made}")),
        ("netns", format!("ne\\\ntns exec x touch {made}")),
    ];
    for (word, line) in lines {
        fs::write(&file, format!("{GOOD}{line}\n"))?;
        let number = GOOD.lines().count() + 1;
        let want = format!(
            "Error: {name}:{number}: \"{word}\": lines can be about link, address, route, rule, neighbour and xfrm, which \
             `ip` asks netlink for\n"
        );
        for verb in ["check", "run"] {
            let mut it = netns.command(fatpath());
            let output = it.args([verb, "-c", &name]).env("FATPATH_RUNDIR", scratch.path()).output()?;
            let printed = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!((output.status.code(), printed), (Some(2), want.clone()), "{verb}: {line}");
        }
    }
    assert_eq!((netns.sh("ls /sys/class/net")?, scratch.file("made").exists()), ("lo\n".to_owned(), false));
    Ok(())
}

/// Lines that take longer than a test waits for them, the first with a visible effect.
fn many_lines() -> String {
    "link add tun0 type tun\n".to_owned() + &"link set tun0 up\n".repeat(3_000_000)
}

/// An interrupted check leaves no files, and leftovers of other checks do not affect it.
fn check_ended() -> Outcome {
    let (scratch, netns) = (Scratch::new()?, Netns::new("x")?);
    let (file, dir) = (scratch.file("x.ip"), scratch.file("tmp"));
    fs::create_dir(&dir)?;
    fs::write(&file, many_lines())?;
    let names = || Outcome::Ok(fs::read_dir(&dir)?.filter_map(Result::ok).count());
    let mut it = netns.command(fatpath());
    it.args(["check", "-c"]).arg(&file).env("TMPDIR", &dir);
    let mut process = Process::spawn(&mut it, &scratch)?;
    system::wait_until("it has begun", Duration::from_secs(20), || names().is_ok_and(|names| names == 1))?;
    process.signal(rustix::process::Signal::INT)?;
    assert_eq!(process.wait(Duration::from_secs(20))?.code(), Some(1), "{}", process.output());
    assert_eq!(names()?, 0, "{}", process.output());
    Ok(())
}

fn ended() -> Outcome {
    let (scratch, netns) = (Scratch::new()?, Netns::new("x")?);
    let file = scratch.file("x.ip");
    fs::write(&file, many_lines())?;
    let mut it = netns.command(fatpath());
    it.args(["run", "--instance", "x", "-c"]).arg(&file).env("FATPATH_RUNDIR", scratch.path());
    let mut process = Process::spawn(&mut it, &scratch)?;
    system::wait_until("the first line is done", Duration::from_secs(20), || {
        netns.sh("ls /sys/class/net").is_ok_and(|links| links.contains("tun0"))
    })?;
    assert!(process.is_running() && !scratch.file("x.netlink").exists(), "{}", process.output());
    process.signal(rustix::process::Signal::TERM)?;
    assert!(process.wait(Duration::from_secs(20))?.success(), "{}", process.output());
    assert!(!scratch.file("x.starting").exists() && !scratch.file("x.sock").exists());
    Ok(())
}
