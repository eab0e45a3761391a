//! `fatpath status`: reasons for which a tunnel does not work.

use std::process::{Command, Output};
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use system::{Esp, Gateway, Mode, Need, Netns, OUTER_V4, Outcome, Process, Scratch, fatpath, trial, veth, wait_until};

use crate::tunnel;

const NEEDS: &[Need] = &[Need::Namespaces, Need::Tun, Need::PING];

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("status/working_tunnel_is_up_and_exit_code_is_0", NEEDS, working),
        trial("status/each_of_six_faults_is_named", NEEDS, faults),
        trial("status/without_a_gateway_exit_code_is_3", &[], without_gateway),
        trial("status/gateway_that_hangs_is_one_line_beside_the_others", &[Need::Namespaces], hanging),
        trial("status/watch_prints_until_a_signal", &[Need::Namespaces], watch),
    ]
}

/// Output of `fatpath status` with these arguments.
fn status(scratch: &Scratch, arguments: &[&str]) -> Outcome<Output> {
    let mut command = Command::new(fatpath());
    Ok(command.arg("status").args(arguments).env("FATPATH_RUNDIR", scratch.path()).output()?)
}

/// Two hosts with a wire, and the parameters of their tunnel.
struct Site {
    scratch: Scratch,
    a: Netns,
    b: Netns,
    esp: Esp,
}

impl Site {
    fn new() -> Outcome<Self> {
        let (scratch, a, b) = (Scratch::new()?, Netns::new("a")?, Netns::new("b")?);
        veth((&a, "wan0"), (&b, "wan0"))?;
        let esp = Esp { udp: true, ..Esp::new(Mode::Tunnel, OUTER_V4, &[("10.1.0.0/24", "10.2.0.0/24")]) };
        Ok(Self { scratch, a, b, esp })
    }

    /// Starts a gateway at `a`, with the edited configuration.
    fn left(&self, edit: impl Fn(String) -> String) -> Outcome<Gateway> {
        let toml = edit(tunnel::config(&self.esp, 1));
        tunnel::start_with(&self.a, "a", &self.esp, 1, &self.scratch, &toml)
    }

    /// Starts a gateway at `b`, with the edited configuration.
    fn right(&self, edit: impl Fn(String) -> String) -> Outcome<Gateway> {
        let esp = self.esp.reversed();
        tunnel::start_with(&self.b, "b", &esp, 2, &self.scratch, &edit(tunnel::config(&esp, 2)))
    }

    /// Pings from `a`, with or without a reply, until the status of a gateway contains `want`.
    fn wait_for(&self, instance: &str, ping: &str, want: &str) -> Outcome {
        let mut last = String::new();
        let is_named = wait_until(want, Duration::from_secs(20), || {
            let _ = self.a.sh(&format!("ping -c 2 -i 0.2 -W 1 {ping} 10.2.0.1"));
            let printed = status(&self.scratch, &["--instance", instance]).map(|output| output.stdout);
            last = String::from_utf8_lossy(&printed.unwrap_or_default()).into_owned();
            last.contains(want)
        });
        is_named.map_err(|err| format!("{}\n{last}", err.message().unwrap_or_default()).into())
    }
}

fn working() -> Outcome {
    let site = Site::new()?;
    let (_left, _right) = (site.left(|toml| toml)?, site.right(|toml| toml)?);
    site.wait_for("a", "", "192.0.2.2:4500  up  received ")?;
    let output = status(&site.scratch, &["--json"])?;
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let shown: Value = serde_json::from_slice(&output.stdout)?;
    assert_eq!((&shown[0]["name"], &shown[1]["name"]), (&"a".into(), &"b".into()), "all gateways: {shown}");
    let tunnel = &shown[0]["tunnels"][0];
    assert_eq!((&tunnel["state"], &tunnel["networks"][0]), (&"up".into(), &"10.1.0.0/24 > 10.2.0.0/24".into()));
    // Without a command, and without a state to show.
    for arguments in [&[][..], &["show", "--instance", "a"]] {
        let mut command = Command::new(fatpath());
        let printed = command.args(arguments).env("FATPATH_RUNDIR", site.scratch.path()).output()?;
        let text = String::from_utf8_lossy(&printed.stdout);
        assert!(printed.status.success() && text.contains("192.0.2.2:4500  up"), "{arguments:?}: {printed:?}");
    }
    Ok(())
}

fn faults() -> Outcome {
    let same = |toml: String| toml;
    // Another key.
    let site = Site::new()?;
    let other_key = |toml: String| {
        let (head, tail) = toml.rsplit_once("key = \"0x").unwrap_or_default();
        format!("{head}key = \"0xffff{}", tail.get(4..).unwrap_or_default())
    };
    {
        let (_left, _right) = (site.left(same)?, site.right(other_key)?);
        let end = if site.esp.reversed().to_toml().rfind("dir = \"in\"")
            > site.esp.reversed().to_toml().rfind("dir = \"out\"")
        {
            "b"
        } else {
            "a"
        };
        site.wait_for(end, "", "fail their ICV: another key")?;
        assert_eq!(status(&site.scratch, &[])?.status.code(), Some(1));
    }
    // A restart of the peer without state.
    let site = Site::new()?;
    {
        let _right = site.right(same)?;
        {
            let _left = site.left(same)?;
            site.wait_for("b", "-c 40", "up  received")?;
        }
        site.a.sh("ip addr flush dev wan0")?;
        let _left = site.left(same)?;
        site.wait_for("b", "", "without state")?;
    }
    // No route.
    let site = Site::new()?;
    let unrouted = |toml: String| toml.replace("[[route]]\nto = \"10.2.0.0/24\"\ndev = \"wan\"\n", "");
    let left = site.left(unrouted)?;
    site.wait_for("a", "", "NoRoute (tun0)")?;
    drop(left);
    // No policy.
    let site = Site::new()?;
    let without_policies = |toml: String| toml.split("[[policy]]").next().unwrap_or_default().to_owned();
    let left = site.left(without_policies)?;
    site.wait_for("a", "", "down: no policy of dir out uses its SAs")?;
    drop(left);
    // A packet that is larger than the tunnel carries.
    let site = Site::new()?;
    let left = site.left(|toml| toml.replacen("mtu = 1438", "mtu = 9000", 1))?;
    site.a.sh("ip link set tun0 mtu 9000")?;
    site.wait_for("a", "-M do -s 3000", "PacketTooBig (tun0)")?;
    drop(left);
    // No gateway at the other end.
    let site = Site::new()?;
    site.b.sh("ip addr add 192.0.2.2/24 dev wan0")?;
    let left = site.left(same)?;
    site.wait_for("a", "", "down: 192.0.2.2:4500: port unreachable")?;
    drop(left);
    Ok(())
}

fn without_gateway() -> Outcome {
    let scratch = Scratch::new()?;
    let output = status(&scratch, &[])?;
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.starts_with("Error: no gateway is running; start one with `fatpath run"), "{text}");
    let output = status(&scratch, &["--instance", "x"])?;
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("no gateway named x is running"), "{output:?}");
    Ok(())
}

/// A gateway that needs no privilege.
const PLAIN: &str = "[[link]]\nname = \"w\"\nkind = \"udp\"\nbind = \"127.0.0.1:4500\"\n";

fn hanging() -> Outcome {
    let (scratch, netns) = (Scratch::new()?, Netns::new("a")?);
    netns.sh("ip link set lo up")?;
    let _works = Gateway::start(&netns, &scratch, "works", PLAIN)?;
    let hangs = Gateway::start(&netns, &scratch, "hangs", &PLAIN.replace("4500", "4501"))?;
    let pid = Pid::from_raw(i32::try_from(hangs.id())?).ok_or("no process")?;
    kill_process(pid, Signal::STOP)?;
    let begun = Instant::now();
    let output = status(&scratch, &[])?;
    let taken = begun.elapsed();
    let (text, json) = (String::from_utf8_lossy(&output.stdout), status(&scratch, &["--json"])?);
    kill_process(pid, Signal::CONT)?;
    assert_eq!((output.status.code(), output.stderr.len()), (Some(1), 0), "{output:?}");
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines.len() == 2 && lines[0].starts_with("hangs: "), "{text}");
    assert!(lines[0].ends_with("hangs.sock: no answer within 3 seconds"), "{text}");
    assert_eq!(lines[1], "works: running, 1 link (w), 0 tunnels");
    // It is asked once, and not again for rates.
    assert!(taken < Duration::from_secs(6), "{taken:?}");
    let shown: Value = serde_json::from_slice(&json.stdout)?;
    let error = shown[0]["error"].as_str().unwrap_or_default();
    assert!(error.ends_with("no answer within 3 seconds") && shown[1]["error"].is_null(), "{shown}");
    assert_eq!(status(&scratch, &[])?.status.code(), Some(0), "it answers again");
    Ok(())
}

fn watch() -> Outcome {
    let (scratch, netns) = (Scratch::new()?, Netns::new("a")?);
    netns.sh("ip link set lo up")?;
    let mut command = Command::new(fatpath());
    command.args(["status", "--watch", "1"]).env("FATPATH_RUNDIR", scratch.path());
    let mut watch = Process::spawn(&mut command, &scratch)?;
    let limit = Duration::from_secs(20);
    let has = |watch: &Process, line: &str, times: usize| watch.output().matches(line).count() >= times;
    // Gateways come and go.
    wait_until("nothing runs", limit, || has(&watch, "no gateway is running\n", 2))?;
    let gateway = Gateway::start(&netns, &scratch, "a", PLAIN)?;
    wait_until("the gateway is shown", limit, || has(&watch, "a: running, 1 link (w), 0 tunnels\n", 2))?;
    let before = watch.output().matches("no gateway is running\n").count();
    drop(gateway);
    wait_until("it is gone", limit, || has(&watch, "no gateway is running\n", before + 1))?;
    watch.signal(Signal::INT)?;
    assert_eq!(watch.wait(limit)?.code(), Some(0), "{}", watch.output());
    Ok(())
}
