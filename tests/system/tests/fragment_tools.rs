//! Results of public attack tools for our rules for fragments: SI6 Networks' `frag6`, and `fragmentation6` and
//! `implementation6` of THC's toolkit, each case against a host's kernel and against fatpath.
//!
//! The verdict on a case is the tool's, or the change of the counters if the tool prints none. Ours are recorded in
//! `fragment_tools.txt`; where the kernel's verdict differs, the file has it with the reason.

use std::fmt::Write as _;
use std::ops::RangeInclusive;
use std::thread;
use std::time::Duration;

use libtest_mimic::Trial;
use serde_json::Value;
use system::{Gateway, Need, Netns, Outcome, Scratch, trial, veth, wait_until};

const NEEDS: &[Need] = &[Need::Namespaces, Need::PING, Need::ETHTOOL, Need::FRAG6, Need::THC_IPV6];

const RECORD: &str = include_str!("fragment_tools.txt");

const TARGET: &str = "fd01::1";

/// Reassembly timeout of both targets, in seconds: longer than the tools' pauses within one datagram.
const TIMEOUT: u32 = 4;

/// Counters that are compared when the tool is silent.
const COUNTED: [&str; 7] = [
    "Ip6ReasmReqds",
    "Ip6ReasmOKs",
    "Ip6ReasmFails",
    "Ip6ReasmTimeout",
    "Icmp6OutEchoReplies",
    "Icmp6OutParmProblems",
    "Icmp6OutTimeExcds",
];

/// The cases of `implementation6` that are about fragments.
const ABOUT_FRAGMENTS: [u32; 14] = [11, 12, 13, 14, 15, 16, 17, 22, 23, 24, 25, 26, 27, 57];

/// A case and its verdict.
type Verdict = (String, String);

/// Function that runs a tool.
type Run = fn(&Site) -> Outcome<Vec<Verdict>>;

pub(crate) fn trials() -> Vec<Trial> {
    vec![trial("fragment_tools/verdicts_are_the_recorded_ones", NEEDS, all)]
}

/// All runs in parallel, each between separate namespaces: they sleep most of the time.
fn all() -> Outcome {
    let tools: [Run; 7] = [
        |site| fragmentation6(site, 1..=8),
        |site| fragmentation6(site, 9..=16),
        |site| fragmentation6(site, 17..=24),
        |site| fragmentation6(site, 25..=33),
        implementation6,
        frag6,
        frag6_policy,
    ];
    thread::scope(|scope| {
        let threads = tools.map(|run| scope.spawn(move || judge(run)));
        let outcomes = threads.map(|thread| thread.join().expect("the tool's thread"));
        let failures: Vec<_> = outcomes.into_iter().filter_map(Result::err).collect();
        let texts: Vec<_> = failures.iter().filter_map(|failed| failed.message()).collect();
        if failures.is_empty() { Ok(()) } else { Err(texts.join("\n").into()) }
    })
}

/// An attacker and its target at the other end of a cable.
struct Site {
    target: Target,
    attacker: Netns,
}

enum Target {
    /// By AF_XDP, with the smallest ring.
    Us {
        gateway: Gateway,
        _netns: Netns,
        _scratch: Scratch,
    },
    Kernel(Netns),
}

impl Site {
    fn new(kernel: bool) -> Outcome<Self> {
        let (attacker, netns) = (Netns::new("attacker")?, Netns::new("target")?);
        veth((&attacker, "eth0"), (&netns, "eth0"))?;
        attacker.sh("ip addr add fd01::2/64 dev eth0; ethtool -K eth0 tx off >/dev/null")?;
        let target = if kernel {
            netns.sh(&format!(
                "ip addr add {TARGET}/64 dev eth0; cd /proc/sys/net/ipv6
                echo {TIMEOUT} >ip6frag_time; echo 0 >icmp/ratelimit"
            ))?;
            Target::Kernel(netns)
        } else {
            netns.sh("for scope in all eth0; do echo 1 >/proc/sys/net/ipv6/conf/$scope/disable_ipv6; done")?;
            let scratch = Scratch::new()?;
            let config = format!(
                "[[link]]\nname = \"eth0\"\nkind = \"xdp\"\ninterface = \"eth0\"\nring = 256\n\
                 addresses = [\"{TARGET}/64\"]\n\n[host]\nside = \"off\"\n\n[reassembly]\nip6frag_time = {TIMEOUT}\n"
            );
            let gateway = Gateway::start(&netns, &scratch, "target", &config)?;
            Target::Us { gateway, _netns: netns, _scratch: scratch }
        };
        attacker.sh(&format!("ping -n -c 1 -W 10 {TARGET}"))?;
        Ok(Self { target, attacker })
    }

    /// Runs a tool for so many seconds at most, and returns its output.
    fn tool(&self, seconds: u32, words: &str) -> Outcome<String> {
        self.attacker.sh(&format!("timeout -k 1 {seconds} stdbuf -oL {words} 2>&1 || true"))
    }

    fn counters(&self) -> Outcome<[u64; COUNTED.len()]> {
        let mut counters = [0; COUNTED.len()];
        let mut note = |name: &str, value: Option<u64>| {
            if let Some(at) = COUNTED.iter().position(|counted| *counted == name) {
                counters[at] = value.unwrap_or_default();
            }
        };
        match &self.target {
            Target::Us { gateway, .. } => {
                let shown: Value = serde_json::from_str(&gateway.show("counters --json")?)?;
                for counter in shown["counters"].as_array().into_iter().flatten() {
                    note(counter["name"].as_str().unwrap_or_default(), counter["value"].as_u64());
                }
            }
            Target::Kernel(netns) => {
                for line in netns.sh("cat /proc/net/snmp6")?.lines() {
                    let mut words = line.split_whitespace();
                    note(words.next().unwrap_or_default(), words.next().and_then(|word| word.parse().ok()));
                }
            }
        }
        Ok(counters)
    }

    /// Incomplete datagrams: their number and their bytes, as in `/proc/net/sockstat6`.
    fn waiting(&self) -> Outcome<String> {
        let text = match &self.target {
            Target::Us { gateway, .. } => gateway.show("fragments")?,
            Target::Kernel(netns) => netns.sh("cat /proc/net/sockstat6")?,
        };
        Ok(text.lines().find(|line| line.starts_with("FRAG6")).unwrap_or_default().to_owned())
    }

    /// Waits until no datagram is incomplete.
    fn settle(&self) -> Outcome {
        wait_until("no fragment waits", Duration::from_secs(20), || {
            self.waiting().is_ok_and(|line| line == "FRAG6: inuse 0 memory 0")
        })
    }

    /// Change of the counters from before a tool's run until no datagram is incomplete.
    fn moved(&self, seconds: u32, words: &str) -> Outcome<String> {
        let before = self.counters()?;
        self.tool(seconds, words)?;
        self.settle()?;
        let after = self.counters()?;
        let moved = COUNTED.iter().zip(after.iter().zip(before)).filter(|(_, (after, before))| *after > before);
        let moved: Vec<_> = moved
            .map(|(name, (after, before))| {
                format!("{} {}", name.trim_start_matches("Ip6").trim_start_matches("Icmp6"), after - before)
            })
            .collect();
        Ok(if moved.is_empty() { "nothing".to_owned() } else { moved.join(", ") })
    }
}

/// Cases of the tool, by their numbers.
fn fragmentation6(site: &Site, cases: RangeInclusive<u32>) -> Outcome<Vec<Verdict>> {
    let case = |number: u32| {
        let moved = site.moved(20, &format!("atk6-fragmentation6 -p eth0 {TARGET} {number}"))?;
        Ok((format!("fragmentation6 {number}"), moved))
    };
    cases.map(case).collect()
}

/// Output of the tool for each case, behind the name of the case.
fn implementation6(site: &Site) -> Outcome<Vec<Verdict>> {
    let case = |number: u32| {
        let printed = site.tool(20, &format!("atk6-implementation6 -p eth0 {TARGET} {number}"))?;
        let verdict =
            printed.lines().find_map(|line| line.strip_prefix("Test ")?.split_once('\t')).unwrap_or_default().1;
        site.settle()?;
        Ok((format!("implementation6 {number}"), verdict.trim().to_owned()))
    };
    ABOUT_FRAGMENTS.into_iter().map(case).collect()
}

/// A ping of death, one fragment of each kind, and how identifications are chosen.
fn frag6(site: &Site) -> Outcome<Vec<Verdict>> {
    let command = |options: &str| format!("frag6 -i eth0 -d {TARGET} {options}");
    let mut verdicts = Vec::new();
    // The tool waits a minute for a reply that takes seconds.
    for options in ["-X", "-O atomic", "-O first", "-O middle -o 64", "-O last -o 64"] {
        verdicts.push((format!("frag6 {options}"), site.moved(7, &command(options))?));
    }
    let printed = site.tool(30, &command("-W"))?;
    let policy = printed.lines().find(|line| line.starts_with("Fragment ID policy")).unwrap_or(&printed);
    // Later words are figures of these random numbers.
    verdicts.push(("frag6 -W".to_owned(), policy.split(" (").next().unwrap_or_default().to_owned()));
    site.settle()?;
    Ok(verdicts)
}

/// Reassembly policy for overlapping fragments, by case of the tool.
fn frag6_policy(site: &Site) -> Outcome<Vec<Verdict>> {
    let printed = site.tool(120, &format!("frag6 -i eth0 -d {TARGET} -p"))?;
    let tests = printed.lines().filter_map(|line| line.strip_prefix("Test #")?.split_once(": "));
    let verdicts = tests.map(|(test, verdict)| (format!("frag6 -p {test}"), verdict.trim().to_owned())).collect();
    site.settle()?;
    Ok(verdicts)
}

/// Compares a tool's verdicts on the kernel and on fatpath with each other and with the record.
fn judge(run: Run) -> Outcome {
    let (us, kernel) = (Site::new(false)?, Site::new(true)?);
    let (ours, theirs) = thread::scope(|scope| {
        let theirs = scope.spawn(|| run(&kernel));
        (run(&us), theirs.join().expect("the other run"))
    });
    let (ours, theirs) = (ours?, theirs?);
    assert!(!ours.is_empty() && ours.len() == theirs.len(), "{ours:?}, {theirs:?}");
    let record: Vec<Vec<&str>> = RECORD.lines().map(|line| line.split(" | ").collect()).collect();
    let mut wrong = String::new();
    for ((case, ours), (_, theirs)) in ours.iter().zip(&theirs) {
        let recorded = record.iter().find(|columns| columns[0] == case).map(Vec::as_slice);
        let is_recorded = match recorded {
            Some([_, verdict]) => verdict == ours && ours == theirs,
            Some([_, verdict, other, _why]) => verdict == ours && other == theirs && ours != theirs,
            _ => false,
        };
        if !is_recorded {
            let other = if ours == theirs { String::new() } else { format!(" | {theirs} | ?") };
            let _ = writeln!(wrong, "{case} | {ours}{other}");
        }
    }
    if !wrong.is_empty() {
        return Err(format!("not as recorded:\n{wrong}").into());
    }
    // The gateway runs, and its ring has all its frames.
    let Target::Us { gateway, .. } = &us.target else { return Err("not us".into()) };
    let links: Value = serde_json::from_str(&gateway.show("links --json")?)?;
    let ring = &links[0]["ring"];
    assert_eq!((&ring["held"], &ring["rx_no_buffer"]), (&0.into(), &0.into()), "{ring}");
    assert!(us.counters()?[0] > 0, "no fragment came");
    us.attacker.sh(&format!("ping -n -c 1 -W 10 -s 20000 {TARGET}")).map(drop)
}
