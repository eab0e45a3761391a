//! Two ends that exchange lines: `fatpath pair`, `up` and `down`, with strongSwan's charon-systemd at each end.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use system::{Need, Netns, Outcome, Scratch, fatpath, run, trial, unpacked, veth, wait_until};

const CHARON: Need = Need::Unpacked { path: "usr/sbin/charon-systemd", package: "charon-systemd" };
pub(crate) const NEEDS: &[Need] = &[
    Need::Namespaces,
    Need::Tun,
    Need::PING,
    Need::SWANCTL,
    // The libraries of charon-systemd.
    Need::CHARON,
    Need::CHARON_OPENSSL,
    CHARON,
];

/// Longest time from built programs to a ping through ESP.
pub(crate) const STOPWATCH: Duration = Duration::from_secs(60);

/// A name that no link may have.
const LONG: &str = "a-name-that-is-longer";

/// Longest time until a tunnel is back.
const BACK: Duration = Duration::from_secs(5);

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("pair/two_lines_make_a_tunnel_within_a_minute", NEEDS, stopwatch),
        trial("pair/tunnel_is_back_after_a_kill_of_either_gateway", NEEDS, killed),
        trial("pair/wrong_lines_and_names_are_refused_and_leave_nothing", &[Need::Namespaces], refused),
        trial("pair/files_are_the_users", NEEDS, edited),
        trial("pair/two_pairs_of_one_host_have_a_charon_each", NEEDS, two_pairs),
        trial("pair/up_without_ike_or_without_a_file", &[Need::Namespaces, Need::Tun], without_ike),
        trial("pair/up_keeps_the_former_log", &[Need::Namespaces, Need::Tun], former_log),
    ]
}

/// One host with its gateway's directories.
pub(crate) struct PairEnd {
    pub(crate) netns: Netns,
    pub(crate) dir: PathBuf,
    number: u8,
}

impl PairEnd {
    fn new(scratch: &Scratch, role: &str, number: u8) -> Outcome<Self> {
        let (netns, dir) = (Netns::new(role)?, scratch.file(role));
        fs::create_dir_all(dir.join("run"))?;
        Ok(Self { netns, dir, number })
    }

    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = self.netns.command(fatpath());
        command.args(words).env("FATPATH_CONFDIR", self.dir.join("conf")).env("FATPATH_RUNDIR", self.dir.join("run"));
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}", unpacked("usr/sbin").display()));
        command
    }

    pub(crate) fn fatpath(&self, words: &[&str]) -> Outcome<String> {
        run(&mut self.command(words))
    }

    /// Runs a command that has to fail, and returns its message.
    fn refusal(&self, words: &[&str]) -> Outcome<String> {
        let output = self.command(words).output()?;
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() || text.trim().lines().count() != 1 {
            return Err(format!("{words:?}: {}, not one line of refusal: {text}", output.status).into());
        }
        Ok(text)
    }

    pub(crate) fn net(&self) -> String {
        format!("10.{}.0.0/24", self.number)
    }

    /// Sends one ping to the other end's network, from the address that this host chooses.
    pub(crate) fn ping(&self) -> bool {
        self.netns.sh(&format!("ping -q -c 1 -W 0.3 10.{}.0.1", 3 - self.number)).is_ok()
    }

    /// Names of the files, of a directory of configurations that may not be there.
    fn files(&self) -> Vec<String> {
        let files = fs::read_dir(self.dir.join("conf")).into_iter().flatten().flatten();
        let mut names: Vec<String> = files.map(|file| file.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    /// Process number of the gateway.
    fn gateway(&self) -> Outcome<u32> {
        let config = format!("{}/conf/site.toml", self.dir.display());
        let found = run(Command::new("pgrep").args(["-f", &format!("run --instance site --config {config}")]))?;
        Ok(found.trim().parse()?)
    }
}

impl Drop for PairEnd {
    fn drop(&mut self) {
        // Without a failure nothing runs any more.
        for name in ["site", "two"] {
            let _ = self.command(&["down", name]).output();
        }
    }
}

/// Two hosts with a wire, and a network of its own behind each.
pub(crate) fn ends(scratch: &Scratch) -> Outcome<[PairEnd; 2]> {
    let ends = [PairEnd::new(scratch, "left", 1)?, PairEnd::new(scratch, "right", 2)?];
    veth((&ends[0].netns, "eth0"), (&ends[1].netns, "eth0"))?;
    for PairEnd { netns, number, .. } in &ends {
        netns.sh(&format!(
            "ip addr add 192.0.2.{number}/24 dev eth0
            ip link add lan type veth peer name hosts; ip link set lan up; ip link set hosts up
            ip addr add 10.{number}.0.1/24 dev lan
            ip route add default via 192.0.2.{}",
            3 - number
        ))?;
    }
    Ok(ends)
}

/// The line in the output of `pair`.
pub(crate) fn line(printed: &str) -> Outcome<String> {
    let line = printed.lines().find(|line| line.starts_with("fp1:"));
    Ok(line.ok_or_else(|| format!("no line in {printed}"))?.to_owned())
}

/// Three commands and two lines.
pub(crate) fn pair([left, right]: &[PairEnd; 2]) -> Outcome<[String; 3]> {
    let first = left.fatpath(&["pair", "site", "--net", &left.net()])?;
    let second = right.fatpath(&["pair", "site", "--net", &right.net(), &line(&first)?])?;
    let third = left.fatpath(&["pair", "site", &line(&second)?])?;
    Ok([first, second, third])
}

pub(crate) fn until_up(end: &PairEnd, limit: Duration) -> Outcome {
    wait_until("a ping comes through", limit, || end.ping())
}

fn stopwatch() -> Outcome {
    let scratch = Scratch::new()?;
    let ends = ends(&scratch)?;
    let begun = Instant::now();
    let [_, second, third] = pair(&ends)?;
    until_up(&ends[0], STOPWATCH)?;
    let taken = begun.elapsed();
    assert!(taken <= STOPWATCH, "{taken:?}");
    // Both ends print the same words for the same line.
    let words = |text: &str| -> Outcome<[String; 2]> {
        let found = text.lines().find(|line| line.contains("Words of this end:")).ok_or("no words")?;
        let mut words = found.split_whitespace().filter(|word| word.matches('-').count() == 3).map(str::to_owned);
        Ok([words.next().ok_or("no word")?, words.next().ok_or("one word")?])
    };
    let ([own, peer], [its_own, its_peer]) = (words(&second)?, words(&third)?);
    assert_eq!((&own, &peer), (&its_peer, &its_own));
    assert_ne!(own, peer);
    for end in &ends {
        assert!(until_up(end, BACK).is_ok(), "the other way");
        let status = end.fatpath(&["status", "-i", "site"])?;
        assert!(status.contains("1 tunnel") && status.contains(" up "), "{status}");
        let sas = end.fatpath(&["show", "-i", "site", "sa"])?;
        assert!(sas.contains("rfc4106(gcm(aes))") && sas.contains("reqid 1"), "{sas}");
        for (file, mode) in [("site.toml", 0o600), ("site.ike", 0o700), ("site.ike/private/own.pem", 0o600)] {
            let has =
                std::os::unix::fs::PermissionsExt::mode(&fs::metadata(end.dir.join("conf").join(file))?.permissions());
            assert_eq!(has & 0o777, mode, "{file}");
        }
    }
    // The host's own packets have the address of its network, and not the outer one.
    for end in &ends {
        let (own, far) = (end.number, 3 - end.number);
        let route = end.netns.sh(&format!("ip route get 10.{far}.0.1"))?;
        assert!(route.contains(&format!("dev site src 10.{own}.0.1")), "{route}");
        let toml = fs::read_to_string(end.dir.join("conf/site.toml"))?;
        assert!(toml.contains(&format!("addresses = [\"10.{own}.0.1/32\"]")), "{toml}");
    }
    // Up already.
    assert!(ends[0].fatpath(&["up", "site"])?.contains("was up already"));
    for end in &ends {
        let down = end.fatpath(&["down", "site"])?;
        assert!(down.contains("ended its IKE daemon; ended; removed site"), "{down}");
        for file in ["site.vici", "site.sock"] {
            assert!(!end.dir.join("run").join(file).exists(), "{file} is left");
        }
        assert!(end.gateway().is_err());
        let left = end.fatpath(&["down", "site"])?;
        assert!(left.contains("no gateway, no devices and no routes"), "{left}");
    }
    // The files are there, and up makes the tunnel again.
    for end in &ends {
        end.fatpath(&["up", "site"])?;
    }
    until_up(&ends[1], STOPWATCH)
}

/// Process numbers of the key managers of this end.
fn charons(end: &PairEnd) -> Outcome<Vec<String>> {
    let inside = run(Command::new("pgrep").args(["-f", "charon-systemd"]))?;
    let is_ours = |pid: &&str| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        String::from_utf8_lossy(&environment).contains(&format!("{}/conf/site.ike/", end.dir.display()))
    };
    Ok(inside.lines().filter(is_ours).map(str::to_owned).collect())
}

fn killed() -> Outcome {
    let scratch = Scratch::new()?;
    let ends = ends(&scratch)?;
    pair(&ends)?;
    until_up(&ends[0], STOPWATCH)?;
    for end in [&ends[0], &ends[1]] {
        let charon = charons(end)?;
        assert_eq!(charon.len(), 1, "{charon:?}");
        run(Command::new("kill").args(["-9", &end.gateway()?.to_string()]))?;
        let begun = Instant::now();
        let up = end.fatpath(&["up", "site"])?;
        assert!(up.contains("site: up;"), "{up}");
        until_up(&ends[0], BACK)?;
        println!("the tunnel is back after {:?}", begun.elapsed());
        assert!(begun.elapsed() <= BACK, "{:?}", begun.elapsed());
        assert_eq!(charons(end)?, charon, "the key manager is left alone");
        let status = end.fatpath(&["status", "-i", "site"])?;
        assert!(status.contains("1 tunnel") && status.contains(" up "), "{status}");
        // The key manager's policies replace the file's again.
        let log = fs::read_to_string(end.dir.join("run/site.log"))?;
        let restored =
            log.lines().rfind(|line| line.contains("saved requests restored")).ok_or("nothing was restored")?;
        assert!(!restored.contains("the configuration has the others"), "{restored}");
    }
    Ok(())
}

fn refused() -> Outcome {
    let scratch = Scratch::new()?;
    let [left, right] = ends(&scratch)?;
    let first = left.fatpath(&["pair", "site", "--net", "10.1.0.0/24"])?;
    let own = line(&first)?;
    // The line stays the same.
    assert_eq!(line(&left.fatpath(&["pair", "site"])?)?, own);
    let refusals: [(&[&str], &str); 16] = [
        (&["pair", "site", &own[..own.len() - 3]], "cut or damaged"),
        (&["pair", "site", &own.replace("fp1:", "fp1:A")], "cut or damaged"),
        (&["pair", "site", &own.replace("fp1:", "fp9:")], "version 9"),
        (&["pair", "site", "10.2.0.0/24"], "no line of fatpath pair"),
        (&["pair", "site", &own], "own line"),
        (&["pair", "site", "--net", "10.9.0.0/24"], "site exists, with 10.1.0.0/24 at 192.0.2.1"),
        (&["pair", "other", "--net", "10.9.0.0/24"], "192.0.2.1 port 4500 is that of tunnel site"),
        (&["pair", "other"], "--net is needed"),
        (&["pair", "a.b", "--net", "10.9.0.0/24"], "no connection with a dot in its name"),
        (&["pair", "other", "--net", "10.9.0.0/24", "--endpoint", "::1", &own], "not of one family"),
        (&["pair", "other", "--net", "10.9.0.0/24", "--endpoint", "192.0.2.77"], "this host has no address 192.0.2.77"),
        (&["pair", "other", "--net", "224.0.0.0/4", "--endpoint", "127.0.0.1"], "multicast"),
        (&["pair", "other", "--net", "10.9.0.0/24", "--net", "10.9.0.0/16", "--endpoint", "127.0.0.1"], "overlaps"),
        (&["pair", LONG, "--net", "10.9.0.0/24", "--endpoint", "127.0.0.1"], "name"),
        (&["pair", "other", "--net", "10.9.0.0/24", "--endpoint", "127.0.0.1", &own], "own line of tunnel site"),
        (&["up", "other"], "there is no "),
    ];
    for (words, why) in refusals {
        let text = left.refusal(words)?;
        assert!(text.contains(why), "{words:?}: {text}");
        assert_eq!(left.files(), ["site.ike"], "after {words:?}");
    }
    // Without a route, and without a default route.
    right.netns.sh("ip route del default")?;
    let text = right.refusal(&["pair", "site", "--net", "10.2.0.0/24"])?;
    assert!(
        text.contains("without a default route, the address that the peer reaches is unknown: add the route, or name"),
        "{text}"
    );
    // Networks of the other end that overlap, and a name that is a gateway's already.
    let text = right.refusal(&["pair", "site", "--net", "10.1.0.0/16", &own])?;
    assert!(text.contains("10.1.0.0/24 of the peer overlaps with 10.1.0.0/16"), "{text}");
    // Networks of a family that this end does not have.
    let both = line(&left.fatpath(&[
        "pair",
        "two",
        "--net",
        "10.4.0.0/24",
        "--net",
        "fd00:4::/64",
        "--endpoint",
        "127.0.0.1",
    ])?)?;
    let text = right.refusal(&["pair", "site", "--net", "10.2.0.0/24", "--endpoint", "192.0.2.2", &both])?;
    assert!(text.contains("family"), "{text}");
    assert_eq!(right.files(), Vec::<String>::new());
    fs::create_dir_all(right.dir.join("conf"))?;
    fs::write(right.dir.join("conf/site.toml"), "")?;
    let text = right.refusal(&["pair", "site", "--net", "10.2.0.0/24", &own])?;
    assert!(text.contains("site exists: "), "{text}");
    assert_eq!(right.files(), ["site.toml"]);
    Ok(())
}

fn edited() -> Outcome {
    let scratch = Scratch::new()?;
    let ends = ends(&scratch)?;
    let [_, second, _] = pair(&ends)?;
    let file = ends[0].dir.join("conf/site.toml");
    let text = fs::read_to_string(&file)? + "# mine\n";
    fs::write(&file, &text)?;
    let again = ends[0].fatpath(&["pair", "site", &line(&second)?])?;
    assert!(again.contains("nothing was changed"), "{again}");
    assert_eq!(fs::read_to_string(&file)?, text);
    // Another peer's line does not replace it, and the peer's line serves one tunnel.
    let third = PairEnd::new(&scratch, "third", 3)?;
    third.netns.sh("ip addr add 192.0.2.7/32 dev lo")?;
    ends[0].netns.sh("ip addr add 192.0.2.8/32 dev lo")?;
    let other = line(&third.fatpath(&["pair", "x", "--net", "10.7.0.0/24", "--endpoint", "192.0.2.7"])?)?;
    assert!(ends[0].refusal(&["pair", "site", &other])?.contains("has another peer"));
    let twice = ["pair", "y", "--net", "10.8.0.0/24", "--endpoint", "192.0.2.8", &line(&second)?];
    assert!(ends[0].refusal(&twice)?.contains("the peer's of tunnel site already"));
    assert_eq!(ends[0].files(), ["site.ike", "site.toml"]);
    Ok(())
}

/// Each gateway has an address and a charon of its own, whose sockets lie beside each other.
fn two_pairs() -> Outcome {
    let scratch = Scratch::new()?;
    let ends = ends(&scratch)?;
    let [left, right] = &ends;
    for end in &ends {
        let number = end.number + 2;
        end.netns.sh(&format!("ip addr add 192.0.2.{number}/24 dev eth0; ip addr add 10.{number}.0.1/32 dev lo"))?;
    }
    pair(&ends)?;
    let of = |number: u8| [format!("10.{number}.0.0/24"), format!("192.0.2.{number}")];
    let ([left_net, left_address], [right_net, right_address]) = (of(3), of(4));
    let first = left.fatpath(&["pair", "two", "--net", &left_net, "--endpoint", &left_address])?;
    let second = right.fatpath(&["pair", "two", "--net", &right_net, "--endpoint", &right_address, &line(&first)?])?;
    left.fatpath(&["pair", "two", &line(&second)?])?;
    let second_pings = || left.netns.sh("ping -q -c 1 -W 0.3 -I 10.3.0.1 10.4.0.1").is_ok();
    until_up(left, STOPWATCH)?;
    wait_until("a ping comes through the second tunnel", STOPWATCH, second_pings)?;
    // The status of each gateway is by its own charon.
    let status = left.fatpath(&["status"])?;
    assert_eq!(status.matches("IKE: established").count(), 2, "{status}");
    for end in &ends {
        for socket in ["site.vici", "two.vici"] {
            assert!(end.dir.join("run").join(socket).exists(), "{socket}");
        }
    }
    // The end of one leaves the other alone.
    let down = left.fatpath(&["down", "site"])?;
    assert!(down.contains("ended its IKE daemon; ended; removed site"), "{down}");
    assert!(second_pings(), "{}", left.fatpath(&["status"])?);
    let status = left.fatpath(&["status"])?;
    assert!(status.starts_with("two: running") && status.matches("IKE: established").count() == 1, "{status}");
    for end in &ends {
        assert!(end.fatpath(&["down", "two"])?.contains("ended its IKE daemon; ended; removed two"));
    }
    Ok(())
}

fn without_ike() -> Outcome {
    let scratch = Scratch::new()?;
    let end = PairEnd::new(&scratch, "alone", 1)?;
    fs::create_dir_all(end.dir.join("conf"))?;
    fs::write(end.dir.join("conf/site.toml"), "[[link]]\nname = \"site\"\nkind = \"tun\"\n")?;
    assert!(end.fatpath(&["up", "site"])?.contains("site: up;"));
    assert!(end.fatpath(&["down", "site"])?.contains("ended; removed site"));
    fs::write(end.dir.join("conf/site.toml"), "[[link]]\nname = \"site\"\nkind = \"tunnel\"\n")?;
    let text = end.command(&["up", "site"]).output()?;
    assert!(!text.status.success() && String::from_utf8_lossy(&text.stderr).contains("site.log"), "{text:?}");
    Ok(())
}

fn former_log() -> Outcome {
    let scratch = Scratch::new()?;
    let end = PairEnd::new(&scratch, "alone", 1)?;
    fs::create_dir_all(end.dir.join("conf"))?;
    fs::write(end.dir.join("conf/site.toml"), "[[link]]\nname = \"site\"\nkind = \"tun\"\n")?;
    let (log, old) = (end.dir.join("run/site.log"), end.dir.join("run/site.log.old"));
    let mut former: Option<String> = None;
    for _ in 0..3 {
        end.fatpath(&["up", "site"])?;
        end.fatpath(&["down", "site"])?;
        assert_eq!(fs::read_to_string(&old).ok(), former, "the log of the start before");
        let text = fs::read_to_string(&log)?;
        assert_eq!(text.matches("site: running with 1 link").count(), 1, "one start: {text}");
        former = Some(text);
    }
    // A log that cannot be kept is not overwritten.
    fs::remove_file(&old)?;
    fs::create_dir_all(old.join("x"))?;
    let refused = end.refusal(&["up", "site"])?;
    assert!(refused.contains("site.log") && fs::read_to_string(&log).ok() == former, "{refused}");
    Ok(())
}
