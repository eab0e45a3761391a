//! Memory of a gateway whose routes, neighbours, SAs, links, guests and files come and go beside packets.
//!
//! `FATPATH_TEST_CHURN` is the duration in seconds; a run of half an hour is one by hand.

use std::fmt::Write;
use std::fs;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use serde_json::Value;
use system::{
    Gateway, Need, Netns, Outcome, Scratch, fatpath, have_several_workers, lossless, run, trial, veth, wait_until,
};

use crate::router::{B_V4, PlainSite, Port};

/// Duration without the environment's.
const DURATION: Duration = Duration::from_secs(15);

/// Rounds at least.
const LEAST: usize = 12;

/// Pause between rounds of a run of minutes, beside which the machine does other work.
const PAUSE: Duration = Duration::from_secs(2);

/// Growth of the resident memory that is none: pages that the allocator keeps of one round or the other.
const SLACK: u64 = 2 << 20;

/// Growth of the counted memory that is none: up to 64 KiB that each thread has not yet added.
const REMAINDERS: u64 = 256 << 10;

/// Growth beside several workers: each queue of a link takes its page of 64 KiB with the first packet that comes to it.
const FIRST_PAGES: u64 = 1 << 20;

pub(crate) fn trials() -> Vec<Trial> {
    const NEEDS: &[Need] = &[Need::Namespaces, Need::Tun, Need::PING];
    vec![trial("churn/memory_is_flat_while_everything_comes_and_goes", NEEDS, flat)]
}

/// Resident memory, and that which the gateway has allocated and not freed by its own count, in bytes.
#[derive(Clone, Copy, Debug)]
struct Sample {
    resident: u64,
    live: u64,
}

impl Sample {
    fn of(gateway: &Gateway) -> Outcome<Self> {
        let status = fs::read_to_string(format!("/proc/{}/status", gateway.id()))?;
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
        let kib: u64 = resident.trim().trim_end_matches(" kB").parse()?;
        let memory: Value = serde_json::from_str(&gateway.show("--json memory")?)?;
        let live = memory["live"].as_u64().ok_or_else(|| format!("no count in {memory}"))?;
        Ok(Self { resident: kib << 10, live })
    }
}

/// Lines of `ip` that add or delete what programs set. The first ones of `del` are those of `add`, in reverse.
fn lines(is_new: bool) -> String {
    let mut lines = Vec::new();
    let verb = if is_new { "add" } else { "del" };
    lines.push(format!("link {verb} red{}", if is_new { " type vrf table 77" } else { "" }));
    lines.push(format!("link {verb} tun77{}", if is_new { " type tun" } else { "" }));
    for n in 0..200_u32 {
        lines.push(format!("route {verb} 20.0.{n}.0/24 via 10.2.0.2"));
    }
    for n in 10..60_u32 {
        let mac = if is_new { format!(" lladdr 02:00:00:00:00:{n:02x}") } else { String::new() };
        lines.push(format!("neigh {verb} 10.3.0.{n} dev spare{mac}"));
    }
    for n in 0..20_u32 {
        let sa = format!("xfrm state {verb} src 192.0.2.1 dst 192.0.2.2 proto esp spi {:#x}", 0x7700 + n);
        let key = format!(" reqid 7 mode tunnel aead rfc4106(gcm(aes)) 0x{n:040x} 128");
        lines.push(sa + if is_new { &key } else { "" });
        let template = " tmpl src 192.0.2.1 dst 192.0.2.2 proto esp reqid 7 mode tunnel";
        let policy = format!("xfrm policy {verb} dir out src 10.77.{n}.0/24 dst 10.78.0.0/16");
        lines.push(policy + if is_new { template } else { "" });
    }
    if !is_new {
        lines.reverse();
    }
    lines.into_iter().fold(String::new(), |mut text, line| {
        let _ = writeln!(text, "{line}");
        text
    })
}

struct Churn {
    site: PlainSite,
    guest_ns: Netns,
    guest_scratch: Scratch,
}

impl Churn {
    fn new() -> Outcome<Self> {
        let scratch = Scratch::new()?;
        let site = PlainSite::on(veth, &Self::file(&scratch, true))?;
        Ok(Self { site, guest_ns: Netns::new("guest")?, guest_scratch: scratch })
    }

    /// The gateway's file, with or without some links and routes.
    fn file(scratch: &Scratch, is_long: bool) -> String {
        let socket = scratch.file("vm.sock");
        let mut file = PlainSite::config_by(true, Port::Packet);
        let _ = write!(
            file,
            "[[link]]\nname = \"vm0\"\nkind = \"vhost-user\"\nsocket = \"{}\"\naddresses = [\"10.5.0.1/24\"]\n",
            socket.display()
        );
        if is_long {
            file.push_str("[[link]]\nname = \"tun8\"\nkind = \"tun\"\naddresses = [\"10.8.0.1/24\"]\n");
            for n in 0..100 {
                let _ = write!(file, "[[route]]\nto = \"30.0.{n}.0/24\"\nvia = \"10.2.0.2\"\n");
            }
        }
        file
    }

    fn batch(&self, is_new: bool) -> Outcome {
        let file = self.site.scratch.file("batch");
        fs::write(&file, lines(is_new))?;
        let mut command = Command::new(fatpath());
        command.args(["ip", "-batch"]).arg(&file);
        command.env("FATPATH_RUNDIR", self.site.scratch.path()).env("FATPATH_INSTANCE", "plain");
        run(&mut command).map(drop)
    }

    fn load(&self, is_long: bool) -> Outcome {
        let file = self.guest_scratch.file("other.toml");
        fs::write(&file, system::with_workers(&Self::file(&self.guest_scratch, is_long)))?;
        let mut command = Command::new(fatpath());
        command.args(["load", "-c"]).arg(&file);
        command.env("FATPATH_RUNDIR", self.site.scratch.path()).env("FATPATH_INSTANCE", "plain");
        run(&mut command).map(drop)
    }

    fn guest(&self) -> Outcome {
        let socket = self.guest_scratch.file("vm.sock");
        let file = format!(
            "[[link]]\nname = \"vm0\"\nkind = \"virtio-user\"\nsocket = \"{}\"\naddresses = [\"10.5.0.2/24\"]\n\
             [[route]]\nto = \"10.1.0.0/16\"\nvia = \"10.5.0.1\"\n",
            socket.display()
        );
        let guest = Gateway::start(&self.guest_ns, &self.guest_scratch, "guest", &file)?;
        wait_until("the guest runs", Duration::from_secs(20), || {
            self.site.gateway.link("vm0").is_ok_and(|link| link["up"] == true)
        })?;
        self.site.a.sh("ping -n -q -c 2 -i 0.05 -W 5 10.5.0.2")?;
        drop(guest);
        wait_until("the guest is gone", Duration::from_secs(20), || {
            self.site.gateway.link("vm0").is_ok_and(|link| link["up"] == false)
        })
    }

    fn round(&self) -> Outcome<Sample> {
        self.batch(true)?;
        self.guest()?;
        self.batch(false)?;
        self.load(false)?;
        self.load(true)?;
        Sample::of(&self.site.gateway)
    }
}

fn flat() -> Outcome {
    let seconds = std::env::var("FATPATH_TEST_CHURN").ok().map(|text| text.parse().expect("seconds"));
    let duration = seconds.map_or(DURATION, Duration::from_secs);
    let churn = Churn::new()?;
    let mut samples = Vec::new();
    let datagrams = lossless(&churn.site.a, (&churn.site.b, B_V4.parse()?), (400, 2000), || {
        let start = Instant::now();
        while start.elapsed() < duration || samples.len() < LEAST {
            samples.push(churn.round()?);
            if duration > DURATION {
                thread::sleep(PAUSE);
            }
        }
        Ok(())
    })?;
    // Lists and pools reach their sizes in the first third, at rounds that differ with the machine's load.
    let samples = &samples[samples.len() / 3..];
    let most = |part: &[Sample], of: fn(&Sample) -> u64| part.iter().map(of).max().unwrap_or_default();
    let (first, last) = samples.split_at(samples.len() / 2);
    let [resident, live] = [(|sample| sample.resident) as fn(&Sample) -> u64, |sample| sample.live]
        .map(|of| (most(first, of), most(last, of)));
    println!("{} rounds, {datagrams} datagrams: resident {resident:?}, live {live:?}", samples.len());
    let slack = REMAINDERS + if have_several_workers() { FIRST_PAGES } else { 0 };
    assert!(resident.1 <= resident.0 + SLACK && live.1 <= live.0 + slack, "{samples:?}");
    Ok(())
}
