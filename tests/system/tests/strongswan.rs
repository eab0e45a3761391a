//! strongSwan as it is, over its stock kernel interface: the example of `docs/strongswan.md`.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use libtest_mimic::Trial;
use system::{Gateway, Need, Netns, Outcome, Process, Scratch, fatpath, run, trial, veth, wait_until};

const CHARON: &str = "/usr/lib/ipsec/charon";
const NEEDS: &[Need] = &[
    Need::Namespaces,
    Need::Tun,
    Need::PING,
    Need::Program { name: "swanctl", package: "strongswan-swanctl" },
    Need::File { path: CHARON, package: "strongswan-charon" },
    Need::File { path: "/usr/lib/ipsec/plugins/libstrongswan-openssl.so", package: "libstrongswan-standard-plugins" },
];

/// How long IKE may take for anything.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("strongswan/a_packet_brings_up_the_tunnel_that_it_needs", NEEDS, trap),
        trial("strongswan/keys_are_changed_under_traffic_without_a_loss", NEEDS, rekey),
        trial("strongswan/an_sa_that_is_about_to_end_is_replaced", NEEDS, expire),
        trial("strongswan/a_peer_that_is_gone_is_noticed_and_found_again", NEEDS, dead_peer),
    ]
}

/// One of the two ends.
struct End {
    name: &'static str,
    charon: Option<Process>,
    gateway: Gateway,
    files: PathBuf,
    netns: Netns,
}

/// Both, on one wire.
struct Site {
    ends: [End; 2],
    scratch: Scratch,
}

fn example(file: &str) -> Outcome<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/strongswan").join(file);
    fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()).into())
}

impl Site {
    fn new() -> Outcome<Self> {
        Self::with("1h")
    }

    /// One whose keys are to be changed after that time, which other settings may follow.
    fn with(rekey_time: &str) -> Outcome<Self> {
        let scratch = Scratch::new()?;
        let [left, right] = [Netns::new("left")?, Netns::new("right")?];
        veth((&left, "eth0"), (&right, "eth0"))?;
        let ends =
            [End::start("left", 1, left, &scratch, rekey_time)?, End::start("right", 2, right, &scratch, rekey_time)?];
        let mut site = Self { ends, scratch };
        for at in 0..2 {
            site.start_charon(at)?;
        }
        Ok(site)
    }

    fn start_charon(&mut self, at: usize) -> Outcome {
        let end = &mut self.ends[at];
        let mut command = end.netns.command("unshare");
        // Two of them would share one file in /run; so each has a /run of its own.
        command.args(["--mount", "sh", "-c", "mount -t tmpfs tmpfs /run && exec \"$@\"", "sh"]);
        command.arg(fatpath()).args(["exec", "--instance", end.name, "--", CHARON]);
        command.env("FATPATH_RUNDIR", self.scratch.path()).env("STRONGSWAN_CONF", end.files.join("strongswan.conf"));
        let charon = Process::spawn(&mut command, &self.scratch)?;
        wait_until("charon answers", PATIENCE, || end.files.join("vici").exists())
            .map_err(|failed| format!("{}: {}", failed.message().unwrap_or_default(), charon.output()))?;
        end.charon = Some(charon);
        end.swanctl(&["--load-all", "--file", &end.files.join("swanctl.conf").display().to_string()])?;
        Ok(())
    }

    fn explain(&self, failed: &libtest_mimic::Failed) -> String {
        let mut text = failed.message().unwrap_or_default().to_owned();
        for end in &self.ends {
            let shown = |what| end.gateway.show(what).unwrap_or_default();
            let log = end.charon.as_ref().map(Process::output).unwrap_or_default();
            text += &format!(
                "\n--- {}\n{log}\n{}\n{}\n{}\n{}",
                end.name,
                end.gateway.log(),
                shown("sa"),
                shown("counters"),
                shown("drops")
            );
        }
        text
    }
}

impl End {
    fn start(name: &'static str, number: u8, netns: Netns, scratch: &Scratch, rekey_time: &str) -> Outcome<Self> {
        let peer = 3 - number;
        netns.sh(&format!("ip addr add 192.0.2.{number}/24 dev eth0"))?;
        let gateway = Gateway::start(&netns, scratch, name, &example(&format!("{name}.toml"))?)?;
        netns.sh(&format!("ip addr add 10.{number}.0.1/24 dev tun0; ip route add 10.{peer}.0.0/24 dev tun0"))?;
        let files = scratch.file(&format!("{name}.d"));
        fs::create_dir(&files)?;
        // Two on one host have a socket each; and a peer that is gone is to be gone soon.
        let own = format!(
            "  plugins {{\n    vici {{\n      socket = unix://{}\n    }}\n  }}\n  retransmit_tries = 1\n  retransmit_timeout = 1\n",
            files.join("vici").display()
        );
        let conf = example("strongswan.conf")?.replacen("charon {\n", &format!("charon {{\n{own}"), 1);
        fs::write(files.join("strongswan.conf"), conf)?;
        let connections = example(&format!("{name}.swanctl.conf"))?;
        let connections = connections.replacen("rekey_time = 1h", &format!("rekey_time = {rekey_time}"), 1);
        fs::write(files.join("swanctl.conf"), connections)?;
        Ok(Self { name, charon: None, gateway, files, netns })
    }

    fn swanctl(&self, words: &[&str]) -> Outcome<String> {
        let mut command = self.netns.command("swanctl");
        command.args(words).args(["--uri", &format!("unix://{}", self.files.join("vici").display())]);
        run(command.env("STRONGSWAN_CONF", self.files.join("strongswan.conf")))
    }

    /// What `ip xfrm` says of the gateway.
    fn xfrm(&self, scratch: &Scratch, words: &str) -> Outcome<String> {
        let mut command = std::process::Command::new(fatpath());
        command.args(["ip", "--instance", self.name, "xfrm"]).args(words.split_whitespace());
        run(command.env("FATPATH_RUNDIR", scratch.path()))
    }
}

fn up(site: &Site) -> Outcome {
    let [left, _] = &site.ends;
    // What needs the tunnel waits for it, or is lost: the first packets are.
    wait_until("a packet comes through", PATIENCE, || left.netns.sh("ping -c 1 -W 1 10.2.0.1").is_ok())
}

fn trap() -> Outcome {
    let site = Site::new()?;
    let [left, right] = &site.ends;
    let policies = left.xfrm(&site.scratch, "policy")?;
    assert!(policies.contains("src 10.1.0.0/24 dst 10.2.0.0/24"), "{policies}");
    assert_eq!(left.xfrm(&site.scratch, "state")?, "", "nothing was asked for yet");
    up(&site).map_err(|failed| site.explain(&failed))?;
    for end in [left, right] {
        let states = end.xfrm(&site.scratch, "state list nokeys")?;
        assert_eq!(states.matches("aead rfc4106(gcm(aes)) <<Keys hidden>> 128").count(), 2, "{states}");
        assert_eq!(states.matches("encap type espinudp sport 4500 dport 4500").count(), 2, "{states}");
    }
    left.netns.sh("ping -c 20 -i 0.05 -W 2 10.2.0.1").map_err(|failed| site.explain(&failed))?;
    Ok(())
}

fn rekey() -> Outcome {
    let site = Site::new()?;
    up(&site).map_err(|failed| site.explain(&failed))?;
    let [left, right] = &site.ends;
    let mut ping = left.netns.command("ping");
    ping.args(["-q", "-i", "0.005", "-c", "1200", "-W", "3", "10.2.0.1"]).stdout(std::process::Stdio::piped());
    let ping = ping.spawn()?;
    for end in [left, right, left, right, left, right] {
        end.swanctl(&["--rekey", "--child", "net"])?;
        std::thread::sleep(Duration::from_millis(700));
    }
    let output = String::from_utf8_lossy(&ping.wait_with_output()?.stdout).into_owned();
    assert!(output.contains("1200 received, 0% packet loss"), "{}", site.explain(&output.into()));
    Ok(())
}

fn expire() -> Outcome {
    let site = Site::with("4s\n        life_time = 1m\n        rand_time = 1s")?;
    up(&site).map_err(|failed| site.explain(&failed))?;
    let [left, right] = &site.ends;
    let spis = |end: &End| -> Outcome<Vec<String>> {
        let states = end.xfrm(&site.scratch, "state list nokeys")?;
        Ok(states.lines().filter(|line| line.contains("spi 0x")).map(str::to_owned).collect())
    };
    let first = spis(left)?;
    // The gateway tells of the soft limit, and charon makes other SAs in time.
    wait_until("all SAs are others", PATIENCE, || {
        spis(left).is_ok_and(|now| now.len() >= 2 && now.iter().all(|spi| !first.contains(spi)))
    })
    .map_err(|failed| site.explain(&failed))?;
    for end in [left, right] {
        let log = end.charon.as_ref().map(Process::output).unwrap_or_default();
        assert!(!log.contains("hard"), "{log}");
    }
    left.netns.sh("ping -c 5 -i 0.05 -W 2 10.2.0.1").map_err(|failed| site.explain(&failed))?;
    let shown = left.gateway.show("sa")?;
    assert!(shown.matches("mode tunnel").count() >= 2, "{shown}");
    assert!(left.gateway.show("policies")?.contains("src 10.1.0.0/24 dst 10.2.0.0/24"));
    Ok(())
}

fn dead_peer() -> Outcome {
    let mut site = Site::new()?;
    up(&site).map_err(|failed| site.explain(&failed))?;
    // The peer forgets everything without a word.
    drop(site.ends[1].charon.take());
    fs::remove_file(site.ends[1].files.join("vici"))?;
    site.ends[1].xfrm(&site.scratch, "state flush")?;
    site.ends[1].xfrm(&site.scratch, "policy flush")?;
    site.start_charon(1)?;
    wait_until("the tunnel is made anew", Duration::from_secs(60), || {
        site.ends[0].netns.sh("ping -c 1 -W 1 10.2.0.1").is_ok()
    })
    .map_err(|failed| site.explain(&failed))?;
    Ok(())
}
