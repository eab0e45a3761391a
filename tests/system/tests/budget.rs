//! Limits of memory and of tables: what is above them is refused, and packets go on.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use libtest_mimic::Trial;
use serde_json::Value;
use system::{Gateway, Need, Netns, Outcome, Scratch, fatpath, lossless, trial, wait_until};

use crate::router::host;

const TUN: &str =
    "[host]\nside = \"off\"\n[[link]]\nname = \"tun0\"\nkind = \"tun\"\naddresses = [\"10.1.0.254/24\"]\n";

pub(crate) fn trials() -> Vec<Trial> {
    const NEEDS: &[Need] = &[Need::Namespaces, Need::Tun, Need::PING];
    const WITH_SETPRIV: &[Need] = &[Need::Namespaces, Need::Tun, Need::PING, Need::SETPRIV];
    vec![
        trial("budget/routes_above_a_cgroup_are_refused_without_loss", NEEDS, routes_above),
        trial("budget/limit_lowered_at_run_time_counts_within_seconds", WITH_SETPRIV, lowered),
        trial("budget/reload_above_the_limit_changes_nothing", NEEDS, reload_above),
        trial("budget/entries_above_a_tables_limit_are_refused_by_name", NEEDS, tables),
        trial("budget/start_above_the_limit_is_refused", NEEDS, start_above),
    ]
}

/// A control group with a limit of memory, removed when the value is dropped.
struct Group {
    dir: PathBuf,
    file: &'static str,
}

impl Group {
    /// A group below the root of the hierarchy; `None` if this host lets none be made.
    fn new(bytes: u64) -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("fatpath-test-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        [("/sys/fs/cgroup", "memory.max"), ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")].into_iter().find_map(
            |(root, file)| {
                let dir = Path::new(root).join(&name);
                fs::create_dir(&dir).ok()?;
                let group = Self { dir, file };
                // A directory elsewhere, or of a hierarchy without the controller, has no such file.
                let is_limited = group.dir.join(file).exists() && group.set(bytes).is_ok();
                is_limited.then_some(group)
            },
        )
    }

    fn set(&self, bytes: u64) -> Outcome {
        Ok(fs::write(self.dir.join(self.file), bytes.to_string())?)
    }

    /// A command that joins the group and becomes the gateway's program in the namespace. `ip netns exec` would hide the
    /// groups.
    fn command(&self, netns: &Netns) -> Command {
        let join = format!("echo $$ >{}/cgroup.procs && exec \"$@\"", self.dir.display());
        let mut command = Command::new("sh");
        command.args(["-c", &join, "sh", "nsenter", &format!("--net=/run/netns/{}", netns.name()), "--"]);
        command.arg(fatpath());
        command
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The group of a process that has just ended is busy for a moment.
        let _ = wait_until("the group is empty", Duration::from_secs(5), || fs::remove_dir(&self.dir).is_ok());
    }
}

/// A gateway in a group of so many bytes. Where no group can be made, `[limits] memory` is nine tenths of it.
fn start(netns: &Netns, scratch: &Scratch, toml: &str, bytes: u64) -> Outcome<(Gateway, Option<Group>)> {
    match Group::new(bytes) {
        Some(group) => Ok((Gateway::start_under(group.command(netns), scratch, "gw", toml)?, Some(group))),
        None => {
            let toml = format!("{toml}\n[limits]\nmemory = {}\n", bytes / 10 * 9);
            Ok((Gateway::start(netns, scratch, "gw", &toml)?, None))
        }
    }
}

/// `fatpath ip WORDS`: whether it succeeds, and its output.
fn ip(scratch: &Scratch, words: &[&str]) -> Outcome<(bool, String)> {
    let mut command = Command::new(fatpath());
    command.args(["ip", "--instance", "gw"]).args(words).env("FATPATH_RUNDIR", scratch.path());
    let output = command.output()?;
    let text = [output.stdout, output.stderr].concat();
    Ok((output.status.success(), String::from_utf8_lossy(&text).into_owned()))
}

/// A number of `fatpath show memory`.
fn memory(gateway: &Gateway) -> Outcome<Value> {
    Ok(serde_json::from_str(&gateway.show("--json memory")?)?)
}

/// Number of entries of a table, and their bytes.
fn table(gateway: &Gateway, name: &str) -> Outcome<(u64, u64)> {
    let memory = memory(gateway)?;
    let found = memory["tables"].as_array().and_then(|all| all.iter().find(|table| table["name"] == name));
    let found = found.ok_or_else(|| format!("no {name} in {memory}"))?;
    Ok((found["entries"].as_u64().unwrap_or(0), found["bytes"].as_u64().unwrap_or(0)))
}

/// Lines of `ip` for so many routes by `dev`.
fn batch(routes: u32, dev: &str) -> String {
    (0..routes).fold(String::new(), |mut text, n| {
        let [_, a, b, c] = n.to_be_bytes();
        let _ = writeln!(text, "route add {}.{b}.{c}.0/24 dev {dev}", 20 + a);
        text
    })
}

/// Text of the limit of a group of so many bytes, or of the file where no group can be made.
fn limit_text(group: Option<&Group>, size: &str) -> String {
    match group {
        Some(_) => format!("memory limit {size}, nine tenths of the control group"),
        None => format!("memory limit {size} of [limits]"),
    }
}

fn routes_above() -> Outcome {
    const ROUTES: u32 = 300_000;
    let (scratch, netns) = (Scratch::new()?, Netns::new("gateway")?);
    let (a, b) = (Netns::new("a")?, Netns::new("b")?);
    host(&a, &netns, "left", 1)?;
    host(&b, &netns, "right", 2)?;
    let link = |name: &str, n: u8| {
        format!(
            "[[link]]\nname = \"{name}\"\nkind = \"packet\"\ninterface = \"{name}\"\naddresses = [\"10.{n}.0.1/24\"]\n"
        )
    };
    let toml = ["[host]\nside = \"off\"\n".to_owned(), link("left", 1), link("right", 2)].concat();
    let (gateway, group) = start(&netns, &scratch, &toml, 64 << 20)?;
    let want = limit_text(group.as_ref(), "57M");
    let before = (memory(&gateway)?["live"].as_u64(), table(&gateway, "routes")?.0);
    fs::write(scratch.file("batch"), batch(ROUTES, "right"))?;
    let batch = scratch.file("batch").display().to_string();
    a.sh("ping -c 1 -w 5 10.2.0.2")?;
    let sent = lossless(&a, (&b, "10.2.0.2".parse()?), (1000, 1000), || {
        let (is_done, output) = ip(&scratch, &["-batch", &batch])?;
        assert!(!is_done && output.contains(&want), "not {want}: {output}");
        let (entries, bytes) = table(&gateway, "routes")?;
        assert!((10_000..200_000).contains(&entries), "{entries} routes");
        let live = memory(&gateway)?["live"].as_u64().zip(before.0).map_or(0, |(now, before)| now - before);
        assert!(bytes < 2 * live && live < 2 * bytes, "{bytes} bytes of routes, and {live} are allocated");
        // A removal and a change are carried out.
        for words in ["route del 20.0.0.0/24", "route del 20.0.1.0/24", "link set right up"] {
            let (is_done, output) = ip(&scratch, &words.split(' ').collect::<Vec<_>>())?;
            assert!(is_done, "{words}: {output}");
        }
        Ok(())
    })?;
    assert!(sent > 500, "{sent} datagrams");
    let shown = gateway.show("memory")?;
    assert!(shown.starts_with(&format!("limit {}", want.trim_start_matches("memory limit "))), "{shown}");
    for line in ["\nroutes: entries ", "\nmappings: entries 0 limit none memory 0\n", "\npages of 2K: "] {
        assert!(shown.contains(line), "no {line:?} in {shown}");
    }
    // What the removed routes have left is used up again.
    fs::write(scratch.file("rest"), self::batch(60_000, "right").replace("add 20.", "add 30."))?;
    let (is_done, output) = ip(&scratch, &["-batch", &scratch.file("rest").display().to_string()])?;
    assert!(!is_done && output.contains(&want), "not {want}: {output}");
    // The changes that waited for the worker give their memory back, and each thread counts what it frees by and by: routes use that up.
    let mut numbers = 0..u16::MAX;
    let mut add_routes = || -> Outcome {
        let route = |n| format!("route add 100.{}.{}.0/24 dev right\n", n >> 8, n & 255);
        fs::write(scratch.file("rest"), numbers.by_ref().take(100).map(route).collect::<String>())?;
        ip(&scratch, &["-batch", &scratch.file("rest").display().to_string()]).map(drop)
    };
    // SAs, policies and neighbours are refused alike.
    for (words, undo) in [
        ("neigh add 10.2.0.9 lladdr 02:00:00:00:00:09 dev right", "neigh del 10.2.0.9 dev right"),
        (
            "xfrm policy add src 10.9.0.0/24 dst 10.8.0.0/24 dir out action block",
            "xfrm policy del src 10.9.0.0/24 dst 10.8.0.0/24 dir out",
        ),
        ("addr add 10.77.0.1/24 dev right", "addr del 10.77.0.1/24 dev right"),
        ("link add vrf9 type vrf table 9", "link del vrf9"),
    ] {
        wait_until(&format!("{words} is refused"), Duration::from_secs(30), || {
            let tried = ip(&scratch, &words.split(' ').collect::<Vec<_>>());
            let Ok((is_done, output)) = tried else { return false };
            if !is_done {
                return output.contains(&want);
            }
            let undone = ip(&scratch, &undo.split(' ').collect::<Vec<_>>());
            assert!(undone.is_ok_and(|(is_done, _)| is_done), "{undo}");
            add_routes().expect("the batch is run");
            false
        })?;
    }
    Ok(())
}

fn lowered() -> Outcome {
    let (scratch, netns) = (Scratch::new()?, Netns::new("gateway")?);
    let (mut gateway, group) = start(&netns, &scratch, TUN, 512 << 20)?;
    let add = |n: u16| {
        let [a, b] = n.to_be_bytes();
        ip(&scratch, &["route", "add", &format!("20.{a}.{b}.0/24"), "dev", "tun0"])
    };
    assert!(add(1)?.0);
    let mut n = 1;
    // Without a group the address space alone is lowered.
    if let Some(group) = &group {
        group.set(20 << 20)?;
        gateway.wait_until("a route is refused", |_| {
            n += 1;
            let want = "memory limit 18M, nine tenths of the control group";
            add(n).is_ok_and(|(is_done, output)| !is_done && output.contains(want))
        })?;
        group.set(512 << 20)?;
        gateway.wait_until("a route is accepted", |_| {
            n += 1;
            add(n).is_ok_and(|(is_done, _)| is_done)
        })?;
    }
    // The address space, of which the process may use less than it has.
    let status = fs::read_to_string(format!("/proc/{}/status", gateway.id()))?;
    let id = |field: &str| -> Outcome<String> {
        let ids = status.lines().find_map(|line| line.strip_prefix(field)).ok_or("no user")?;
        Ok(ids.split_whitespace().next().unwrap_or_default().to_owned())
    };
    let by_user = [format!("--reuid={}", id("Uid:")?), format!("--regid={}", id("Gid:")?)];
    let address_space = |bytes: &str| {
        // Root may lack the capability to change another user's limit, which the user may.
        let mut command = Command::new("setpriv");
        command.args(&by_user).args(["--clear-groups", "prlimit"]);
        command.args(["--pid", &gateway.id().to_string(), &format!("--as={bytes}")]).status()
    };
    assert!(address_space("400000000:unlimited")?.success());
    wait_until("a route is refused", Duration::from_secs(10), || {
        n += 1;
        add(n).is_ok_and(|(is_done, output)| !is_done && output.contains("memory limit 343M, nine tenths of RLIMIT_AS"))
    })?;
    assert!(address_space("unlimited:unlimited")?.success());
    wait_until("a route is accepted", Duration::from_secs(10), || {
        n += 1;
        add(n).is_ok_and(|(is_done, _)| is_done)
    })
}

fn reload_above() -> Outcome {
    let (scratch, netns) = (Scratch::new()?, Netns::new("gateway")?);
    let (mut gateway, group) = start(&netns, &scratch, TUN, 64 << 20)?;
    let routes = |gateway: &Gateway| table(gateway, "routes").map(|(entries, _)| entries);
    let before = routes(&gateway)?;
    let file = |routes: u32| {
        (0..routes).fold(TUN.to_owned(), |mut toml, n| {
            let [_, a, b, c] = n.to_be_bytes();
            let _ = write!(toml, "[[route]]\nto = \"{}.{b}.{c}.0/24\"\ndev = \"tun0\"\n", 20 + a);
            toml
        })
    };
    let refused = |gateway: &mut Gateway, toml: &str, want: &str| -> Outcome {
        let count = |gateway: &Gateway| gateway.log().matches("not reloaded, nothing has changed").count();
        let was = count(gateway);
        gateway.reload(toml)?;
        gateway.wait_until("the reload is refused", |gateway| count(gateway) > was)?;
        let log = gateway.log();
        let line = log.lines().rfind(|line| line.contains("not reloaded")).unwrap_or_default().to_owned();
        assert!(line.contains(want), "no {want}: {line}");
        assert_eq!(routes(gateway)?, before);
        Ok(())
    };
    if group.is_some() {
        // By the length of the file.
        refused(&mut gateway, &file(300_000), "memory limit 57M, nine tenths of the control group")?;
    }
    // By the limit that the file would set: 20 MB are in use, and 16 stay free.
    let small = format!("{TUN}[limits]\nmemory = \"64M\"\n");
    gateway.reload(&small)?;
    gateway.wait_until("it has reloaded", |gateway| gateway.log().contains("reloaded, running"))?;
    let full = format!("{}[limits]\nmemory = \"32M\"\n", file(30_000));
    refused(&mut gateway, &full, "memory limit 32M of [limits]")?;
    let mut load = Command::new(fatpath());
    load.args(["load", "--instance", "gw", "-c"]).arg(scratch.config("gw.toml")?).env("FATPATH_RUNDIR", scratch.path());
    let output = load.output()?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && text.contains("memory limit 32M of [limits]"), "{text}");
    assert_eq!(routes(&gateway)?, before);
    Ok(())
}

fn start_above() -> Outcome {
    let (scratch, netns) = (Scratch::new()?, Netns::new("gateway")?);
    let mut toml = format!("{TUN}[limits]\nmemory = \"32M\"\n");
    for n in 0..40_000_u32 {
        let [_, a, b, c] = n.to_be_bytes();
        let _ = write!(toml, "[[route]]\nto = \"{}.{b}.{c}.0/24\"\ndev = \"tun0\"\n", 20 + a);
    }
    let Err(failed) = Gateway::start(&netns, &scratch, "gw", &toml) else {
        return Err("it has started".into());
    };
    let message = failed.message().unwrap_or_default();
    let first = message.lines().find(|line| line.contains("memory limit")).unwrap_or_default();
    assert!(first.contains("memory limit 32M of [limits]"), "{}", &message[..message.len().min(500)]);
    Ok(())
}

fn tables() -> Outcome {
    let (scratch, netns) = (Scratch::new()?, Netns::new("gateway")?);
    let toml = "[host]\nside = \"off\"\n[[link]]\nname = \"tap0\"\nkind = \"tap\"\naddresses = [\"10.1.0.1/24\"]\n\
                [limits]\nsas = 2\npolicies = 2\nneighbours = 2\nmappings = 2\n";
    let gateway = Gateway::start(&netns, &scratch, "gw", toml)?;
    let of = |words: String| ip(&scratch, &words.split(' ').collect::<Vec<_>>());
    let key = format!("0x{:040x}", 7);
    let route = |n: u32| of(format!("route add 20.{n}.0.0/16 dev tap0"));
    let sa = |n: u32| {
        let mut words: Vec<String> = format!("xfrm state add src 10.1.0.1 dst 10.1.0.2 proto esp spi {n} mode tunnel")
            .split(' ')
            .map(str::to_owned)
            .collect();
        words.extend(["aead", "rfc4106(gcm(aes))", &key, "128"].map(str::to_owned));
        ip(&scratch, &words.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let policy = |n: u32| of(format!("xfrm policy add src 10.9.{n}.0/24 dst 10.8.0.0/24 dir out action block"));
    let neighbour = |n: u32| of(format!("neigh replace 10.1.0.{n} lladdr 02:00:00:00:00:01 nud permanent dev tap0"));
    let mapping = |n: u32| of(format!("ila add loc_match 2001:db8:0:{n} loc fd00:0:0:7"));
    let refused = |outcome: Outcome<(bool, String)>, want: &str| -> Outcome {
        let (is_done, output) = outcome?;
        assert!(!is_done && output.contains(want), "not {want}: {output}");
        Ok(())
    };
    let accepted = |outcome: Outcome<(bool, String)>| -> Outcome {
        let (is_done, output) = outcome?;
        assert!(is_done, "{output}");
        Ok(())
    };
    for n in [11, 12] {
        [sa(0x1000 + n), policy(n), neighbour(n), mapping(n)].into_iter().try_for_each(accepted)?;
    }
    refused(sa(0x1013), "limit of 2 sas of [limits]")?;
    refused(policy(13), "limit of 2 policies of [limits]")?;
    refused(neighbour(13), "limit of 2 neighbours of [limits]")?;
    // `ip ila` prints the number of the error alone.
    refused(mapping(13), "")?;
    // A change of an entry that is there, and an entry instead of another one.
    accepted(neighbour(12))?;
    accepted(of("ila del loc_match 2001:db8:0:12".to_owned()))?;
    accepted(mapping(14))?;
    // Routes by sysctl: those of addresses count, and none is refused that is there.
    let entries = table(&gateway, "routes")?.0;
    let sysctl = |value: u64| -> Outcome<bool> {
        let mut command = netns.command(fatpath());
        let write = format!("echo {value} >/proc/sys/net/fatpath/max_routes");
        command.args(["exec", "--instance", "gw", "--", "sh", "-c", &write]).env("FATPATH_RUNDIR", scratch.path());
        Ok(command.status()?.success())
    };
    assert!(sysctl(entries + 1)?);
    accepted(route(1))?;
    refused(route(2), &format!("limit of {} routes of [limits]", entries + 1))?;
    assert!(gateway.show("memory")?.contains(&format!("routes: entries {0} limit {0} ", entries + 1)));
    assert!(sysctl(0)?);
    accepted(route(2))?;
    // A file with more entries than its own limit is refused, and changes nothing.
    let more = format!(
        "{toml}routes = 1\n{}",
        "[[route]]\nto = \"10.7.0.0/16\"\ntype = \"blackhole\"\n[[route]]\nto = \"10.6.0.0/16\"\ntype = \"blackhole\"\n"
    );
    fs::write(scratch.file("more.toml"), more)?;
    let mut load = Command::new(fatpath());
    load.args(["load", "--instance", "gw", "-c"]).arg(scratch.file("more.toml")).env("FATPATH_RUNDIR", scratch.path());
    let output = load.output()?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && text.contains("limits.routes: 1 is less than the 2 routes"), "{text}");
    Ok(())
}
