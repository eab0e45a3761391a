//! State that programs have set, over a restart: `fatpath run --state` and `fatpath save`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Duration;

use libtest_mimic::Trial;
use rustix::process::Signal;
use system::{Need, Netns, Outcome, Process, Scratch, fatpath, ping_script, run, trial, veth};

const NEEDS: &[Need] = &[Need::Namespaces, Need::Tun];

/// Longest time that a start or an end may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// Objects of all kinds, on a node that has a veth device.
pub(crate) const LINES: &str = "\
link add veth0 type packet
link set veth0 up mtu 1400 alias hello address 02:00:00:00:33:44
link add gone type tun
link add wan address 127.0.0.1 type udp
link set wan up
link del gone
link add tun6 index 20 type tun
link set tun6 up
addr add 10.7.0.1/24 dev tun6
addr add 10.7.0.2/24 dev tun6
addr add 2001:db8:7::1/64 dev tun6
addr add 2001:db8:7::2/64 dev tun6
addr add 10.8.0.1 peer 10.8.0.2 dev veth0
rule del pref 32767
rule add to 10.3.0.0/16 table 7 pref 100
rule add to 10.4.0.0/16 prohibit
route add 10.99.0.0/16 via 10.7.0.9
route append 10.99.0.0/16 via 10.7.0.10
route add 10.98.0.0/16 dev tun6 metric 5 table 7
route add blackhole 10.97.0.0/16
route add throw 10.96.0.0/16 table 7
route add 2001:db8:99::/48 via 2001:db8:7::9
neigh add 10.8.0.2 lladdr 02:00:00:00:00:09 dev veth0 nud permanent
xfrm state add src 192.0.2.1 dst 192.0.2.2 proto esp spi 0x1000 reqid 1 mode tunnel replay-window 1024 flag esn aead rfc4106(gcm(aes)) 0x000102030405060708090a0b0c0d0e0f10111213 128 encap espinudp 4500 4500 0.0.0.0 sel src 10.0.0.0/8 dst 0.0.0.0/0 dev tun6
xfrm state add src 192.0.2.2 dst 192.0.2.1 proto esp spi 0x1001 reqid 1 mode tunnel replay-window 32 enc cbc(aes) 0x000102030405060708090a0b0c0d0e0f auth-trunc hmac(sha256) 0x000102030405060708090a0b0c0d0e0f 128 mark 0x5 mask 0xff
xfrm state add src 2001:db8::2 dst 2001:db8::1 proto esp spi 0x1003 mode transport enc cbc(aes) 0x000102030405060708090a0b0c0d0e0f limit byte-hard 36000000
xfrm policy add dir out src 10.1.0.0/24 dst 10.2.0.0/24 tmpl src 192.0.2.1 dst 192.0.2.2 proto esp reqid 1 mode tunnel
xfrm policy add dir in src 10.1.0.0/24 dst 10.2.0.0/24 dev tun6 action block priority 7 mark 1
xfrm policy setdefault in block
ila add loc_match 2001:db8:0:1 loc fd00:0:0:7 csum-mode neutral-map ident-type luid
ila add loc_match 2001:db8:0:1 loc fd00:0:0:8 dev tun6
";

/// An SA as a key manager adds it.
pub(crate) const LIMITED: &str = "xfrm state add src 192.0.2.2 dst 192.0.2.1 proto esp spi 0x1002 reqid 1 mode tunnel \
                       enc cbc(aes) 0x000102030405060708090a0b0c0d0e0f limit time-hard 3600";

pub(crate) fn trials() -> Vec<Trial> {
    const PING: &[Need] = &[Need::Namespaces, Need::Tun, Need::PING];
    vec![
        trial("state/objects_of_programs_are_restored_after_a_kill", NEEDS, again),
        trial("state/object_in_the_file_too_is_as_the_file_says", NEEDS, file_wins),
        trial("state/objects_of_programs_are_saved_whatever_file_is_loaded", NEEDS, beside),
        trial("state/sysctls_are_restored_after_a_kill", &[Need::Namespaces, Need::SYSCTL], settings),
        trial("state/peer_accepts_packets_after_a_kill", PING, numbers),
        trial("state/peer_accepts_packets_of_a_configured_sa_after_a_kill", PING, numbers_of_the_file),
        trial("state/a_save_that_is_killed_leaves_a_whole_state", &[Need::Namespaces], killed),
        trial("state/unrestorable_state_ends_the_start_with_the_reason", NEEDS, refused),
    ]
}

/// A gateway that keeps its state.
pub(crate) struct Node<'a> {
    pub(crate) scratch: &'a Scratch,
    pub(crate) netns: &'a Netns,
    pub(crate) name: &'a str,
}

impl Node<'_> {
    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(fatpath());
        command.args(words).env("FATPATH_RUNDIR", self.scratch.path());
        command
    }

    /// Command that starts the gateway, for its output, however it ends.
    pub(crate) fn try_start(&self, more: &[&str]) -> Command {
        let mut command = self.netns.command(fatpath());
        command.args(["run", "--instance", self.name]).args(more).env("FATPATH_RUNDIR", self.scratch.path());
        system::add_user(&mut command);
        command
    }

    pub(crate) fn start(&self, more: &[&str]) -> Outcome<Process> {
        self.start_by(self.try_start(more))
    }

    /// Starts the gateway by `command`.
    pub(crate) fn start_by(&self, mut command: Command) -> Outcome<Process> {
        let mut process = Process::spawn(&mut command, self.scratch)?;
        system::wait_until("the gateway answers", PATIENCE, || {
            !process.is_running() || run(&mut self.command(&["show", "links", "--instance", self.name])).is_ok()
        })?;
        if process.is_running() { Ok(process) } else { Err(process.output().into()) }
    }

    pub(crate) fn ip(&self, words: &str) -> Outcome<String> {
        let words: Vec<&str> = ["ip", "--instance", self.name].into_iter().chain(words.split(' ')).collect();
        run(&mut self.command(&words))
    }

    pub(crate) fn batch(&self, lines: &str) -> Outcome<String> {
        let file = self.scratch.file("batch.ip");
        fs::write(&file, lines)?;
        self.ip(&format!("-batch {}", file.display()))
    }

    pub(crate) fn sysctl(&self, words: &str) -> Outcome<String> {
        let words: Vec<&str> =
            ["exec", "--instance", self.name, "--", "sysctl"].into_iter().chain(words.split(' ')).collect();
        run(&mut self.command(&words))
    }

    pub(crate) fn save(&self) -> Outcome<String> {
        run(&mut self.command(&["save", "--instance", self.name]))
    }

    /// Output of `ip` about the whole node, without times.
    pub(crate) fn dump(&self) -> Outcome<String> {
        let shows = ["link", "addr", "route show table all", "-6 route show table all", "rule", "-6 rule", "neigh"];
        let xfrm = ["xfrm state", "xfrm policy", "xfrm policy getdefault"];
        let shown: Outcome<String> =
            shows.iter().chain(&xfrm).map(|show| Ok(format!("# {show}\n{}", self.ip(show)?))).collect();
        // Debian's `ip ila list` prints locators wrong.
        let mappings = run(&mut self.command(&["show", "ila", "--instance", self.name]))?;
        Ok(format!("{}# ila\n{mappings}", shown?))
    }
}

fn settings() -> Outcome {
    let (scratch, netns) = (Scratch::new()?, Netns::new("settings")?);
    let node = Node { scratch: &scratch, netns: &netns, name: "settings" };
    let (file, state) = (scratch.file("gw.toml"), scratch.file("state").display().to_string());
    let config = file.display().to_string();
    let with = ["-c", &config, "--state", &state];
    fs::write(&file, "[reassembly]\nipfrag_time = 9\n")?;
    let process = node.start(&with)?;
    let names = "net.ipv4.ipfrag_time net.ipv4.ipfrag_high_thresh net.ipv4.ipfrag_low_thresh net.core.xfrm_acq_expires";
    node.sysctl("-w net.ipv4.ipfrag_time=8 net.core.xfrm_acq_expires=165")?;
    node.sysctl("-w net.ipv4.ipfrag_high_thresh=9000000 net.ipv4.ipfrag_low_thresh=8000000")?;
    assert!(node.save()?.contains("3 settings"), "what the file has is not saved");
    node.sysctl("-w net.ipv4.ipfrag_high_thresh=10000000")?;
    kill(process)?;
    let process = node.start(&with)?;
    assert_eq!(node.sysctl(&format!("-n {names}"))?, "9\n10000000\n8000000\n165\n");
    kill(process)?;
    fs::write(&file, "[ipsec]\nacq-expires = 7\n")?;
    let process = node.start(&with)?;
    assert_eq!(node.sysctl(&format!("-n {names}"))?, "30\n10000000\n8000000\n7\n");
    kill(process)
}

pub(crate) fn kill(mut process: Process) -> Outcome {
    process.signal(Signal::KILL)?;
    process.wait(PATIENCE).map(drop)
}

/// Commands that make the interface `veth0` of [`LINES`] as a veth, a macvlan, a bridge or a TAP device.
pub(crate) const INTERFACES: [&str; 4] = [
    "ip link add veth0 type veth peer name veth1; ip link set veth0 up; ip link set veth1 up",
    "ip link add lower mtu 9000 type veth peer name veth1; ip link set lower up; ip link set veth1 up
     ip link add veth0 link lower type macvlan mode bridge; ip link set veth0 up mtu 2000",
    "ip link add lower mtu 9000 type veth peer name veth1; ip link set lower up; ip link set veth1 up
     ip link add veth0 type bridge; ip link set lower master veth0; ip link set veth0 up mtu 9000",
    "ip tuntap add veth0 mode tap; ip link set veth0 up mtu 4000",
];

/// Name of the SA with a time limit, which is kept for a key manager.
const LOST: &str = "src 192.0.2.2 dst 192.0.2.1\n\tproto esp spi 0x00001002 reqid 1 mode tunnel\n\treplay-window 0 \n\tanti-replay \
                    context: seq 0x0, oseq 0x0, bitmap 0x00000000\n\tsel src 192.0.2.2/32 dst 192.0.2.1/32 \n";

fn again() -> Outcome {
    INTERFACES.into_iter().try_for_each(again_over)
}

fn again_over(interface: &str) -> Outcome {
    let (scratch, netns) = (Scratch::new()?, Netns::new("x")?);
    netns.sh(interface)?;
    let node = Node { scratch: &scratch, netns: &netns, name: "x" };
    let file = scratch.file("x.state").display().to_string();
    let process = node.start(&["--state", &file])?;
    assert_eq!(node.save()?, format!("x: nothing: saved to {file}\n"));
    node.batch(LINES)?;
    let before = node.dump()?;
    node.batch(LIMITED)?;
    let printed = node.save()?;
    let want = "3 links, 5 addresses, 3 rules, 6 routes, 1 neighbour, 3 SAs, 2 policies, 1 policy default, 2 ILA mappings, but not 1 SA \
                with a time limit";
    assert_eq!(printed, format!("x: {want}: saved to {file}\n"));
    assert_eq!(fs::metadata(&file)?.permissions().mode() & 0o777, 0o600);
    kill(process)?;
    let process = node.start(&["--state", &file])?;
    let after = node.dump()?;
    // The SAs continue with sequence numbers that they had not used.
    assert_eq!(after.matches("oseq 0x1000000").count(), 3, "{after}");
    assert!(after.contains(LOST), "{after}");
    assert_eq!(after.replace(LOST, "").replace("oseq 0x1000000", "oseq 0x0"), before, "{}", process.output());
    kill(process)?;
    let mut process = node.start(&["--state", &file])?;
    let after = node.dump()?;
    assert_eq!(after.matches("oseq 0x2000000").count(), 3, "{after}");
    // After an orderly end they continue with the next number.
    process.signal(Signal::TERM)?;
    assert!(process.wait(PATIENCE)?.success(), "{}", process.output());
    let process = node.start(&["--state", &file])?;
    assert_eq!(node.dump()?, after);
    drop(process);
    let _process = node.start(&["--state", "none"])?;
    let printed = node.command(&["save", "--instance", "x"]).output()?;
    let printed = (printed.status.code(), String::from_utf8_lossy(&printed.stderr).into_owned());
    let want = "Error: this gateway keeps no state; start it without --state none\n";
    assert_eq!(printed, (Some(1), want.to_owned()));
    Ok(())
}

fn file_wins() -> Outcome {
    let (scratch, netns) = (Scratch::new()?, Netns::new("x")?);
    let node = Node { scratch: &scratch, netns: &netns, name: "x" };
    let (state, toml) = (scratch.file("x.state").display().to_string(), scratch.file("x.toml").display().to_string());
    let lines = scratch.file("x.ip").display().to_string();
    let base = "[[link]]\nname = \"tun0\"\nkind = \"tun\"\naddresses = [\"10.1.0.254/24\"]\n\
                [[route]]\nto = \"10.50.0.0/16\"\ndev = \"tun0\"\n";
    let of_file = "[[sa]]\nsrc = \"192.0.2.1\"\ndst = \"192.0.2.2\"\nspi = 0x77\nmode = \"tunnel\"\nenc = { name = \"cbc(aes)\", \
                   key = \"0x000102030405060708090a0b0c0d0e0f\" }\n";
    fs::write(&toml, format!("{base}{of_file}"))?;
    fs::write(&lines, "rule add to 10.3.0.0/16 table 7 pref 100\n")?;
    let args = ["--state", &state, "-c", &toml, "-c", &lines];
    let process = node.start(&args)?;
    node.batch(
        "route change 10.50.0.0/16 via 10.1.0.9\nroute add 10.51.0.0/16 via 10.1.0.9\naddr add 10.1.0.7/24 dev tun0\n\
         link set tun0 mtu 1300\nrule del pref 100\n",
    )?;
    assert!(node.save()?.starts_with("x: 1 address, 2 routes: saved"), "{}", node.save()?);
    kill(process)?;
    // The file has a new first link, and one of the saved routes.
    let more = "[[link]]\nname = \"tun9\"\nkind = \"tun\"\n";
    fs::write(&toml, format!("{more}{base}[[route]]\nto = \"10.51.0.0/16\"\ndev = \"tun0\"\n"))?;
    let process = node.start(&args)?;
    let routes = node.ip("route show proto static")?;
    assert_eq!(
        routes,
        "10.50.0.0/16 dev tun0 scope link \n10.51.0.0/16 dev tun0 scope link \n",
        "{}",
        process.output()
    );
    assert!(node.ip("addr show dev tun0")?.contains("10.1.0.7/24") && node.ip("rule")?.contains("100:"));
    assert!(node.ip("link show tun0")?.contains("mtu 1500"));
    // The SA of the file is deleted with it.
    assert_eq!(node.ip("xfrm state")?, "");
    // A loaded file replaces restored objects; SAs that programs have added stay, and are saved.
    node.batch("xfrm state add src 192.0.2.1 dst 192.0.2.2 proto esp spi 0x78 enc cbc(aes) 0x000102030405060708090a0b0c0d0e0f\n")?;
    fs::write(&toml, format!("{base}{of_file}"))?;
    run(&mut node.command(&["load", "--instance", "x", "-c", &toml]))?;
    assert_eq!(node.save()?, format!("x: 1 SA: saved to {state}\n"));
    kill(process)
}

fn beside() -> Outcome {
    let (scratch, netns) = (Scratch::new()?, Netns::new("x")?);
    let node = Node { scratch: &scratch, netns: &netns, name: "x" };
    let (state, toml) = (scratch.file("x.state").display().to_string(), scratch.file("x.toml").display().to_string());
    let base = "[[link]]\nname = \"tap0\"\nkind = \"tap\"\naddresses = [\"10.1.0.254/24\"]\n\
                [[route]]\nto = \"10.99.0.0/16\"\nvia = \"10.1.0.1\"\n";
    fs::write(&toml, base)?;
    let args = ["--state", &state, "-c", &toml];
    let process = node.start(&args)?;
    node.batch(
        "route prepend 10.99.0.0/16 via 10.1.0.10\nroute append 10.99.0.0/16 via 10.1.0.2\n\
         route add 10.98.0.0/16 via 10.1.0.3\nroute append 10.98.0.0/16 via 10.1.0.4\nxfrm policy setdefault out block\n",
    )?;
    assert_eq!(node.save()?, format!("x: 4 routes, 1 policy default: saved to {state}\n"));
    let routes = node.ip("route")?;
    kill(process)?;
    // The file has a policy default now.
    let more = "[policy-default]\nin = \"block\"\n";
    fs::write(&toml, format!("{more}{base}"))?;
    let process = node.start(&args)?;
    assert_eq!(node.ip("route")?, routes, "{}", process.output());
    let default = node.ip("xfrm policy getdefault")?;
    assert_eq!(default.split_whitespace().filter(|word| *word == "block").count(), 2, "{default}");
    // Objects that stay after a load are saved, and removed objects are not.
    fs::write(&toml, base)?;
    run(&mut node.command(&["load", "--instance", "x", "-c", &toml]))?;
    node.batch(
        "neigh add 10.1.0.10 lladdr 02:00:00:00:00:09 dev tap0 nud permanent\nxfrm policy setdefault in block\n",
    )?;
    run(&mut node.command(&["load", "--instance", "x", "-c", &toml]))?;
    assert_eq!(node.save()?, format!("x: 1 neighbour, 1 policy default: saved to {state}\n"));
    kill(process)?;
    let process = node.start(&args)?;
    assert!(node.ip("neigh")?.contains("02:00:00:00:00:09") && node.ip("xfrm policy getdefault")?.contains("block"));
    // The routes of one group are saved all or none, as the file says.
    node.batch("route add 10.97.0.0/16 via 10.1.0.3\nroute append 10.97.0.0/16 via 10.1.0.4\n")?;
    node.save()?;
    kill(process)?;
    fs::write(&toml, format!("{base}[[route]]\nto = \"10.97.0.0/16\"\nvia = \"10.1.0.5\"\n"))?;
    let process = node.start(&args)?;
    assert_eq!(node.ip("route show 10.97.0.0/16")?, "10.97.0.0/16 via 10.1.0.5 dev tap0 proto static \n");
    kill(process)
}

fn numbers() -> Outcome {
    let scratch = Scratch::new()?;
    let ends = [("left", 1, Netns::new("left")?), ("right", 2, Netns::new("right")?)];
    veth((&ends[0].2, "eth0"), (&ends[1].2, "eth0"))?;
    let file = |name: &str| format!("{}/../../examples/ip-xfrm/{name}", env!("CARGO_MANIFEST_DIR"));
    let state = scratch.file("left.state").display().to_string();
    let links = |name: &str| file(&format!("{name}.toml"));
    let tun = |number: u32| {
        format!("ip addr replace 10.{number}.0.1/24 dev tun0; ip route replace 10.{}.0.0/24 dev tun0", 3 - number)
    };
    let nodes = ends.each_ref().map(|(name, _, netns)| Node { scratch: &scratch, netns, name });
    let [left, right] = &nodes;
    for (_, number, netns) in &ends {
        netns.sh(&format!("ip addr add 192.0.2.{number}/24 dev eth0"))?;
    }
    let _right = right.start(&["-c", &links("right"), "-c", &file("right.ip")])?;
    ends[1].2.sh(&tun(2))?;
    let start_left = |args: &[&str]| {
        let process = left.start(args)?;
        ends[0].2.sh(&tun(1))?;
        Outcome::Ok(process)
    };
    let process = start_left(&["-c", &links("left"), "--state", &state])?;
    left.ip(&format!("-batch {}", file("left.ip")))?;
    assert!(left.save()?.starts_with("left: 2 SAs, 3 policies: saved"));
    let ping = ping_script("10.2.0.1".parse()?, &[56, 1400]);
    ends[0].2.sh(&ping)?;
    // More packets than the window of the peer spans, after the save.
    ends[0].2.sh("ping -q -f -c 1500 10.2.0.1")?;
    // Received numbers are saved within a second.
    std::thread::sleep(Duration::from_millis(2500));
    kill(process)?;
    let process = start_left(&["-c", &links("left"), "--state", &state])?;
    ends[0].2.sh(&ping)?;
    ends[1].2.sh(&ping_script("10.1.0.1".parse()?, &[56]))?;
    let received = left.ip("xfrm state list src 192.0.2.2")?;
    assert!(!received.contains("seq 0x0,"), "{received}");
    drop(process);
    // Without the state the peer has received all these numbers before.
    let _left = start_left(&["-c", &links("left"), "-c", &file("left.ip"), "--state", "none"])?;
    assert!(ends[0].2.sh("ping -q -c 3 -i 0.2 -w 2 10.2.0.1").is_err());
    Ok(())
}

fn numbers_of_the_file() -> Outcome {
    let scratch = Scratch::new()?;
    let ends = [("left", 1, Netns::new("left")?), ("right", 2, Netns::new("right")?)];
    veth((&ends[0].2, "eth0"), (&ends[1].2, "eth0"))?;
    let state = scratch.file("left.state").display().to_string();
    let file = |name: &str| format!("{}/../../examples/tunnel-{name}.toml", env!("CARGO_MANIFEST_DIR"));
    for (_, number, netns) in &ends {
        netns.sh(&format!("ip addr add 192.0.2.{number}/24 dev eth0"))?;
    }
    let [left, right] = ends.each_ref().map(|(name, _, netns)| Node { scratch: &scratch, netns, name });
    let start = |args: &[&str]| {
        let process = left.start(&[args, &["-c", &file("left")]].concat())?;
        Outcome::Ok(process)
    };
    let _right = right.start(&["-c", &file("right")])?;
    // Twice: the second start goes on where the first one was killed, without a save between them.
    for _ in 0..2 {
        let process = start(&["--state", &state])?;
        ends[0].2.sh("ping -q -f -c 1500 10.2.0.1")?;
        kill(process)?;
    }
    let process = start(&["--state", &state])?;
    let sent = left.ip("xfrm state list src 192.0.2.1")?;
    assert!(sent.contains("oseq 0x2000000"), "{sent}");
    kill(process)?;
    let _left = start(&["--state", "none"])?;
    assert!(ends[0].2.sh("ping -q -c 3 -i 0.2 -w 2 10.2.0.1").is_err());
    Ok(())
}

fn killed() -> Outcome {
    let (scratch, netns) = (Scratch::new()?, Netns::new("x")?);
    let node = Node { scratch: &scratch, netns: &netns, name: "x" };
    let state = scratch.file("x.state").display().to_string();
    let lines = |net: u32| {
        let each = (0..3000).map(|n| format!("route add blackhole 10.{net}.{}.{}/32\n", n / 250, n % 250));
        each.collect::<String>()
    };
    let process = node.start(&["--state", &state])?;
    node.batch(&lines(1))?;
    node.save()?;
    kill(process)?;
    let mut found = Vec::new();
    for round in 0..12 {
        let process = node.start(&["--state", &state])?;
        let routes = node.ip("route")?.lines().count();
        found.push(routes);
        // The node changes to the other set of objects, which is then saved.
        if routes == 3000 {
            node.batch(&lines(2))?;
        } else {
            assert_eq!(routes, 6000);
            node.batch(&lines(2).replace("add", "del"))?;
        }
        let mut saving = Process::spawn(&mut node.command(&["save", "--instance", "x"]), &scratch)?;
        match round {
            // This save is done, at any load of the machine.
            0 => assert!(saving.wait(PATIENCE)?.success(), "{}", saving.output()),
            _ => std::thread::sleep(Duration::from_millis((round - 1) * 6)),
        }
        kill(process)?;
        drop(saving);
    }
    let process = node.start(&["--state", &state])?;
    found.push(node.ip("route")?.lines().count());
    kill(process)?;
    assert!(found.iter().all(|&routes| routes == 3000 || routes == 6000), "{found:?}");
    assert_ne!(found[0], found[1], "{found:?}");
    Ok(())
}

fn refused() -> Outcome {
    let (scratch, netns) = (Scratch::new()?, Netns::new("x")?);
    netns.sh("ip link add veth0 type veth peer name veth1; ip link set veth0 up")?;
    let node = Node { scratch: &scratch, netns: &netns, name: "x" };
    let path = scratch.file("x.state");
    let state = path.display().to_string();
    let process = node.start(&["--state", &state])?;
    node.batch(
        "link add tun0 type tun\nlink add veth0 type packet\nlink set veth0 up\nroute add 10.9.0.0/16 dev veth0\n",
    )?;
    node.save()?;
    kill(process)?;
    netns.sh("ip link del tun0")?;
    let fails = |args: &[&str]| {
        let output = node.try_start(args).output()?;
        let left = netns.sh("ls /sys/class/net")?;
        assert!(!left.contains("tun0") && !scratch.file("x.sock").exists(), "{left}");
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        let printed = printed.lines().find(|line| line.starts_with("Error: ")).unwrap_or_default().to_owned();
        Outcome::Ok((output.status.code(), printed))
    };
    netns.sh("ip link del veth0")?;
    let (code, printed) = fails(&["--state", &state])?;
    assert!(code == Some(2) && printed.starts_with(&format!("Error: {state}: link veth0: ")), "{printed}");
    assert!(
        printed.contains("Nothing of the saved state is restored.") && printed.contains("move the file away"),
        "{printed}"
    );
    // With the missing device the state can be restored again.
    netns.sh("ip link add veth0 type veth peer name veth1; ip link set veth0 up")?;
    let process = node.start(&["--state", &state])?;
    assert_eq!(node.ip("route")?, "10.9.0.0/16 dev veth0 scope link \n");
    let (code, printed) = fails_beside(&node, &state)?;
    assert!(code == Some(1) && printed.contains("in use by another gateway"), "{printed}");
    kill(process)?;
    // A link of the file that saved addresses are on is no longer there.
    let toml = scratch.file("x.toml").display().to_string();
    let other = scratch.file("other.state").display().to_string();
    fs::write(&toml, "[[link]]\nname = \"tun1\"\nkind = \"tun\"\n")?;
    let process = node.start(&["--state", &other, "-c", &toml])?;
    node.ip("addr add 10.1.0.7/24 dev tun1")?;
    node.save()?;
    kill(process)?;
    let process = node.start(&["--state", &other])?;
    let want = format!("{other}: address 10.1.0.7/24 dev tun1: no link is named tun1; it is left out");
    assert!(process.output().contains(&want), "{}", process.output());
    kill(process)?;
    // An SA or a policy is not left out.
    let mut process = Some(node.start(&["--state", &other, "-c", &toml])?);
    node.batch("xfrm policy add dir out src 10.1.0.0/24 dst 10.2.0.0/24 dev tun1 action block\n")?;
    for saved in [false, true] {
        let process = match process.take() {
            Some(process) => process,
            None => node.start(&["--state", &other, "-c", &toml])?,
        };
        if saved {
            node.save()?;
        }
        kill(process)?;
        let (code, printed) = fails(&["--state", &other])?;
        let want = format!("Error: {other}: policy out 10.1.0.0/24 10.2.0.0/24: no link is named tun1.");
        assert!(code == Some(2) && printed.starts_with(&want), "{saved}: {printed}");
    }
    let whole = fs::read(&path)?;
    for (bytes, why) in [(&whole[..5000], ""), (b"[[link]]\n", ""), (b"", "it is empty")] {
        fs::write(&path, bytes)?;
        let (code, printed) = fails(&["--state", &state])?;
        let words = "no state that can be restored: ";
        assert!(code == Some(2) && printed.contains(words) && printed.contains(why), "{printed}");
        assert!(printed.contains("Move the file away") && fs::read(&path)? == bytes, "{printed}");
    }
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644))?;
    let (code, printed) = fails(&["--state", &state])?;
    assert!(code == Some(1) && printed.contains("other users have access"), "{printed}");
    Ok(())
}

/// Exit code and error of a second gateway with the same state file.
fn fails_beside(node: &Node<'_>, state: &str) -> Outcome<(Option<i32>, String)> {
    let other = Node { name: "y", ..*node };
    let output = other.try_start(&["--state", state]).output()?;
    Ok((output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned()))
}
