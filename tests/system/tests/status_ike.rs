//! `fatpath status` of tunnels that strongSwan's charon manages: the state of IKE, and why there are no SAs.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use rustix::net::sockopt::socket_peercred;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use system::{Need, Netns, Outcome, Process, Scratch, fatpath, run, strongswan_example, trial, veth, wait_until};

use crate::pair::{self, PairEnd, STOPWATCH, ends, line, until_up};

const MACHINES_NEEDS: &[Need] =
    &[Need::Namespaces, Need::Tun, Need::PING, Need::SWANCTL, Need::CHARON, Need::CHARON_OPENSSL];

/// Longest time until a state is shown.
const PATIENCE: Duration = Duration::from_secs(20);

/// Longest time of `fatpath status`: half a second for rates, one for charon, and the rest for a busy machine.
const STATUS_LIMIT: Duration = Duration::from_secs(5);

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("status/ike_connects_to_a_silent_peer_and_is_established", pair::NEEDS, established),
        trial("status/ike_failures_are_named", pair::NEEDS, failures),
        trial("status/stopped_and_ended_charon_is_named", pair::NEEDS, charon_ends),
        trial("status/charon_of_the_machine_is_its_gateways", MACHINES_NEEDS, machines),
    ]
}

/// Output of `fatpath status` of a pair's end, and its exit code.
fn status(end: &PairEnd, words: &[&str]) -> Outcome<(String, Option<i32>)> {
    let begun = Instant::now();
    let output = end.command(&[&["status", "-i", "site"], words].concat()).output()?;
    assert!(begun.elapsed() < STATUS_LIMIT, "{:?}", begun.elapsed());
    Ok((String::from_utf8_lossy(&output.stdout).into_owned(), output.status.code()))
}

/// Waits until the status of `end` contains `want`, with pings meanwhile.
fn wait_for(end: &PairEnd, want: &str) -> Outcome<String> {
    let mut last = String::new();
    let is_shown = wait_until(want, PATIENCE, || {
        let _ = end.ping();
        last = status(end, &[]).map_or_else(|err| format!("{err:?}"), |(text, _)| text);
        last.contains(want)
    });
    is_shown.map_err(|err| format!("{}\n{last}", err.message().unwrap_or_default()))?;
    Ok(last)
}

fn json(end: &PairEnd) -> Outcome<Value> {
    let (text, _) = status(end, &["--json"])?;
    let shown: Value = serde_json::from_str(&text)?;
    Ok(shown[0]["tunnels"][0].clone())
}

/// Process of the charon of a pair.
fn charon(end: &PairEnd) -> Outcome<Pid> {
    let stream = UnixStream::connect(end.dir.join("run/site.vici"))?;
    Ok(socket_peercred(stream.as_fd())?.pid)
}

/// Makes `netns` drop what `sender` sends to `address`, without an error of the network: the address is away, and its neighbour entry
/// stays.
fn silence(netns: &Netns, sender: &Netns, device: &str, address: &str) -> Outcome {
    let mac = netns.sh(&format!("cat /sys/class/net/{device}/address"))?;
    netns.sh(&format!("ip addr flush dev {device}"))?;
    sender.sh(&format!("ip neigh replace {address} lladdr {} dev {device} nud permanent", mac.trim()))?;
    Ok(())
}

fn established() -> Outcome {
    let scratch = Scratch::new()?;
    let [left, right] = ends(&scratch)?;
    let first = line(&left.fatpath(&["pair", "site", "--net", &left.net()])?)?;
    silence(&left.netns, &right.netns, "eth0", "192.0.2.1")?;
    let second = line(&right.fatpath(&["pair", "site", "--net", &right.net(), &first])?)?;
    let text = status(&right, &[])?.0;
    assert!(text.contains("down: no SA yet") && text.contains("IKE: not connected to 192.0.2.1  "), "{text}");
    let text = wait_for(&right, "IKE: connecting to 192.0.2.1, no answer yet")?;
    assert!(text.contains("down: no SA yet"), "{text}");
    assert_eq!(status(&right, &[])?.1, Some(1));
    let tunnel = json(&right)?;
    assert_eq!((&tunnel["ike"]["state"], &tunnel["state"]), (&"connecting".into(), &"down".into()), "{tunnel}");
    // The peer is there.
    left.netns.sh("ip addr add 192.0.2.1/24 dev eth0; ip route replace default via 192.0.2.2")?;
    left.fatpath(&["pair", "site", &second])?;
    until_up(&left, STOPWATCH)?;
    for end in [&left, &right] {
        let text = wait_for(end, "IKE: established, rekey in ")?;
        assert!(text.contains(" up ") && text.matches("rekey in ").count() == 2, "{text}");
        assert_eq!(status(end, &[])?.1, Some(0));
        let tunnel = json(end)?;
        let ike = &tunnel["ike"];
        assert_eq!((&ike["state"], &tunnel["charon"]), (&"established".into(), &Value::Null), "{tunnel}");
        // A CHILD_SA is rekeyed after an hour, an IKE_SA after four, less a tenth that is random.
        let secs = |value: &Value| value.as_u64().unwrap_or(u64::MAX);
        assert!((3000..=3600).contains(&secs(&tunnel["rekey_secs"])), "{tunnel}");
        assert!((12_000..=14_400).contains(&secs(&ike["rekey_secs"])), "{tunnel}");
        assert!(secs(&ike["established_secs"]) <= 60, "{tunnel}");
    }
    Ok(())
}

/// Replaces `from` in the left end's connection and starts it again.
fn with_edited(end: &PairEnd, from: &str, to: &str) -> Outcome {
    end.fatpath(&["down", "site"])?;
    let file = end.dir.join("conf/site.ike/swanctl.conf");
    let text = fs::read_to_string(&file)?;
    assert!(text.contains(from), "{text}");
    fs::write(&file, text.replace(from, to))?;
    end.fatpath(&["up", "site"])?;
    Ok(())
}

fn failures() -> Outcome {
    let scratch = Scratch::new()?;
    let ends = ends(&scratch)?;
    pair::pair(&ends)?;
    let [left, right] = &ends;
    until_up(left, STOPWATCH)?;
    // No proposal of IKE in common: the IKE_SA ends at once.
    with_edited(left, "proposals = aes256gcm16-prfsha384-ecp384", "proposals = aes128gcm16-prfsha256-ecp256")?;
    let want = "IKE: not connected to 192.0.2.2: the last attempt has ended; charon's log has the reason";
    wait_for(left, want)?;
    assert!(fs::read_to_string(left.dir.join("run/site.ike.log"))?.contains("NO_PROPOSAL_CHOSEN"));
    // None for ESP: the IKE_SA stays, without a CHILD_SA.
    with_edited(left, "proposals = aes128gcm16-prfsha256-ecp256", "proposals = aes256gcm16-prfsha384-ecp384")?;
    with_edited(left, "esp_proposals = aes256gcm16-esn", "esp_proposals = aes128gcm16-esn")?;
    let want = "IKE: established, without a CHILD_SA for these networks; charon's log has the reason";
    wait_for(left, want)?;
    // No connection of the peer.
    let uri = format!("unix://{}", right.dir.join("run/site.vici").display());
    let settings = right.dir.join("conf/site.ike/strongswan.conf");
    fs::write(right.dir.join("empty"), "")?;
    let mut command = Command::new("swanctl");
    command.args(["--load-all", "--uri", &uri, "--file"]).arg(right.dir.join("empty"));
    run(command.env("STRONGSWAN_CONF", &settings))?;
    let mut command = Command::new("swanctl");
    command.args(["--terminate", "--ike", "site", "--force", "--uri", &uri]);
    let _ = command.env("STRONGSWAN_CONF", &settings).output();
    wait_for(right, "charon: no connection to 192.0.2.1 is loaded; swanctl --load-all loads it")?;
    Ok(())
}

fn charon_ends() -> Outcome {
    let scratch = Scratch::new()?;
    let ends = ends(&scratch)?;
    pair::pair(&ends)?;
    let [left, right] = &ends;
    until_up(left, STOPWATCH)?;
    wait_for(left, "IKE: established")?;
    // A stopped charon is no news about a tunnel that works, and does not hold the status.
    kill_process(charon(left)?, Signal::STOP)?;
    let (text, code) = status(left, &[])?;
    assert!(text.contains(" up ") && !text.contains("IKE") && !text.contains("charon"), "{text}");
    assert_eq!(code, Some(0));
    left.fatpath(&["ip", "--instance", "site", "xfrm", "state", "flush"])?;
    let (text, code) = status(left, &[])?;
    assert!(text.contains("down: ") && text.contains("charon: no complete answer in time"), "{text}");
    assert_eq!(code, Some(1));
    // It counts the SAs as installed that were flushed.
    kill_process(charon(left)?, Signal::CONT)?;
    wait_for(
        left,
        "IKE: established, but the gateway does not have the SAs that charon has installed; restart charon",
    )?;
    // Without charon.
    let process = charon(left)?;
    kill_process(process, Signal::TERM)?;
    wait_until("charon ends", PATIENCE, || UnixStream::connect(left.dir.join("run/site.vici")).is_err())?;
    let (text, code) = status(left, &[])?;
    assert!(text.contains("down: ") && text.contains("charon: not running; fatpath up site starts it"), "{text}");
    assert_eq!(code, Some(1));
    // The remedy works.
    left.fatpath(&["up", "site"])?;
    until_up(left, STOPWATCH)?;
    wait_for(right, "IKE: established")?;
    wait_for(left, "IKE: established")?;
    Ok(())
}

/// A network namespace with a `/run` of its own, which lives as long as a process there.
struct Machine {
    holder: Process,
    scratch: Scratch,
    netns: Netns,
}

impl Machine {
    fn new() -> Outcome<Self> {
        let (scratch, netns) = (Scratch::new()?, Netns::new("left")?);
        let mut command = netns.command("unshare");
        command.args(["--mount", "sh", "-c", "mount -t tmpfs tmpfs /run && echo ready && exec sleep 600"]);
        let holder = Process::spawn(&mut command, &scratch)?;
        wait_until("the namespace is there", PATIENCE, || holder.output().contains("ready"))?;
        Ok(Self { holder, scratch, netns })
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--mount", "--net", "-t", &self.holder.id().to_string(), "--", program]);
        command.env("FATPATH_RUNDIR", self.scratch.path());
        command
    }

    fn status(&self, instance: &str) -> Outcome<String> {
        let output = self.command(fatpath().to_str().ok_or("path")?).args(["status", "-i", instance]).output()?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn wait_for(&self, instance: &str, want: &str) -> Outcome {
        let mut last = String::new();
        let is_shown = wait_until(want, PATIENCE, || {
            let _ = self.netns.sh("ping -q -c 1 -W 0.2 -I 10.1.0.1 10.2.0.1");
            last = self.status(instance).unwrap_or_default();
            last.contains(want)
        });
        Ok(is_shown.map_err(|err| format!("{}\n{last}", err.message().unwrap_or_default()))?)
    }

    /// Starts a gateway with a tunnel from 192.0.2.`number`.
    fn gateway(&self, name: &str, number: u8) -> Outcome<Process> {
        let toml = format!(
            "[[tunnel]]\nname = \"tun{number}\"\nlocal = {{ address = \"192.0.2.{number}\", nets = [\"10.{number}.0.0/24\"] }}\n\
             remote = {{ address = \"192.0.2.2\", nets = [\"10.{}.0.0/24\"] }}\nkeys = \"ike\"\n",
            number + 1
        );
        let file = self.scratch.file(&format!("{name}.toml"));
        fs::write(&file, toml)?;
        let mut command = self.command(fatpath().to_str().ok_or("path")?);
        command.args(["run", "--instance", name, "--config"]).arg(&file);
        let process = Process::spawn(&mut command, &self.scratch)?;
        let socket = self.scratch.file(&format!("{name}.sock"));
        let started = wait_until("the gateway answers", PATIENCE, || UnixStream::connect(&socket).is_ok());
        started.map_err(|err| format!("{}\n{}", err.message().unwrap_or_default(), process.output()))?;
        Ok(process)
    }
}

fn machines() -> Outcome {
    let machine = Machine::new()?;
    let peer = Netns::new("peer")?;
    veth((&machine.netns, "eth0"), (&peer, "eth0"))?;
    machine
        .netns
        .sh("ip addr add 192.0.2.1/24 dev eth0; ip addr add 192.0.2.3/24 dev eth0; ip addr add 10.1.0.1/32 dev lo")?;
    silence(&peer, &machine.netns, "eth0", "192.0.2.2")?;
    let _left = machine.gateway("left", 1)?;
    machine.wait_for("left", "charon: not running at /run/charon.vici")?;
    let settings = machine.scratch.file("strongswan.conf");
    fs::write(&settings, strongswan_example("strongswan.conf")?)?;
    let mut command = machine.command(fatpath().to_str().ok_or("path")?);
    command.args(["exec", "--instance", "left", "--", "/usr/lib/ipsec/charon"]).env("STRONGSWAN_CONF", &settings);
    let charon = Process::spawn(&mut command, &machine.scratch)?;
    machine
        .wait_for("left", "charon: no connection to 192.0.2.2 is loaded; swanctl --load-all loads it")
        .map_err(|err| format!("{}\n{}", err.message().unwrap_or_default(), charon.output()))?;
    let connections = machine.scratch.file("swanctl.conf");
    fs::write(&connections, strongswan_example("left.swanctl.conf")?)?;
    let mut command = machine.command("swanctl");
    command.args(["--load-all", "--noprompt", "--file"]).arg(&connections).env("STRONGSWAN_CONF", &settings);
    run(&mut command)?;
    machine.wait_for("left", "IKE: connecting to 192.0.2.2, no answer yet")?;
    // It is not the charon of another gateway there, whose tunnel is to the same peer.
    let _other = machine.gateway("other", 3)?;
    machine.wait_for("other", "charon: the one at /run/charon.vici is not of this gateway")?;
    drop(charon);
    thread::sleep(Duration::from_millis(100));
    machine.wait_for("left", "charon: not running at /run/charon.vici")
}
