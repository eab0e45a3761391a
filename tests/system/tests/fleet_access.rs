//! Access of `fatpath-fleet` to a real etcd: TLS, certificates that expire and are renewed, and what each role may write.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::{Failed, Trial};
use rcgen::{Certificate, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, Issuer, KeyPair};
use serde_json::Value;
use system::{Gateway, Need, Netns, Outcome, Process, Scratch, fatpath, run, trial, unpacked, wait_until};
use time::OffsetDateTime;

use crate::ila::gateway_netns;

const PATIENCE: Duration = Duration::from_secs(60);

const MEMBER: &str = "10.9.0.1";

/// Flags by which a member takes users from certificates.
const CLIENT_CERT_AUTH: &[&str] = &["--client-cert-auth", "--trusted-ca-file", "ca/ca.pem"];

const NODES: [&str; 4] = ["--node", "n0", "--node", "n1"];

pub(crate) fn trials() -> Vec<Trial> {
    const ETCD: Need = Need::Unpacked { path: "usr/bin/etcd", package: "etcd-server" };
    const ETCDCTL: Need = Need::Unpacked { path: "usr/bin/etcdctl", package: "etcd-client" };
    const NEEDS: &[Need] = &[Need::Namespaces, ETCD, ETCDCTL];
    vec![
        trial("fleet_access/each_role_writes_its_own_keys_alone", NEEDS, roles),
        trial("fleet_access/certificate_is_renewed_without_a_restart", NEEDS, renewal),
        trial("fleet_access/init_does_not_lock_clients_out", NEEDS, locked_out),
        trial("fleet_access/commands_of_the_page_work", NEEDS, page),
    ]
}

/// A member of etcd, a CA, and agents' files, in one namespace.
struct Site {
    scratch: Scratch,
    netns: Netns,
    member: Option<Process>,
}

fn fleet() -> PathBuf {
    fatpath().with_file_name("fatpath-fleet")
}

impl Site {
    fn new() -> Outcome<Self> {
        let netns = Netns::new("site")?;
        netns.sh(&format!("ip addr add {MEMBER}/32 dev lo; ip link set lo up"))?;
        let site = Self { scratch: Scratch::new()?, netns, member: None };
        for node in ["n0", "n1"] {
            site.write_config(node, node, &format!("node-{node}"))?;
        }
        site.write_config("mover", "n0", "mover")?;
        Ok(site)
    }

    /// Writes the file `NAME.toml` of a node, with a certificate of the CA.
    fn write_config(&self, name: &str, node: &str, cert: &str) -> Outcome {
        let number = node.strip_prefix('n').and_then(|number| number.parse::<u8>().ok()).ok_or("a node's name")? + 1;
        let text = format!(
            "fleet = \"f\"\nnode = \"{node}\"\netcd = [\"https://{MEMBER}:2379\"]\ncacert = \"ca/ca.pem\"\n\
             cert = \"ca/{cert}.pem\"\nkey = \"ca/{cert}.key\"\nlocators = \"fd00:0:{number}::/48\"\n\
             underlay = \"fd99::{number}\"\ninstance = \"{name}\"\nstate = \"{name}.state\"\n[domains]\n\
             tasks = \"2001:db8::/48\"\n"
        );
        Ok(fs::write(self.scratch.file(&format!("{name}.toml")), text)?)
    }

    fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = self.netns.command(program);
        command.current_dir(self.scratch.path()).env("FATPATH_RUNDIR", self.scratch.path()).env("ETCDCTL_API", "3");
        command
    }

    /// Runs a command of `fatpath-fleet`.
    fn fleet(&self, args: &[&str]) -> Outcome<String> {
        run(self.command(fleet()).args(args))
    }

    fn init(&self, args: &[&str]) -> Outcome<String> {
        self.fleet(&[&["init", "-c", "n0.toml", "--ca", "ca"], &NODES[..], args].concat())
    }

    /// Starts the member, by the files of a certificate.
    fn spawn_member(&mut self, cert: &str, flags: &[&str]) -> Outcome {
        self.member = None;
        let mut command = self.command(unpacked("usr/bin/etcd"));
        let url = format!("https://{MEMBER}:2379");
        command.args(["--data-dir", "etcd", "--listen-client-urls", &url, "--advertise-client-urls", &url]);
        command.args(["--cert-file", &format!("ca/{cert}.pem"), "--key-file", &format!("ca/{cert}.key")]);
        self.member = Some(Process::spawn(command.args(flags), &self.scratch)?);
        Ok(())
    }

    /// Starts the member with the certificate that `init` has made for it.
    fn start_member(&mut self, flags: &[&str]) -> Outcome {
        self.spawn_member("member-10.9.0.1", flags)?;
        let answers = || self.as_user("root", &["get", "x"]).is_ok();
        wait_until("the member answers", PATIENCE, answers).map_err(|failed| self.with_log(&failed))
    }

    /// Runs `etcdctl` with a user's certificate.
    fn as_user(&self, cert: &str, args: &[&str]) -> Outcome<String> {
        let files = ["--cert".to_owned(), format!("ca/{cert}.pem"), "--key".to_owned(), format!("ca/{cert}.key")];
        self.etcdctl(&files, args)
    }

    fn etcdctl(&self, files: &[String], args: &[&str]) -> Outcome<String> {
        let mut command = self.command(unpacked("usr/bin/etcdctl"));
        command.args(["--endpoints", &format!("https://{MEMBER}:2379"), "--cacert", "ca/ca.pem"]);
        run(command.args(files).args(args))
    }

    fn spawn_agent(&self, name: &str) -> Outcome<Process> {
        Process::spawn(self.command(fleet()).args(["run", "-c", &format!("{name}.toml")]), &self.scratch)
    }

    fn status(&self, name: &str) -> Outcome<Value> {
        Ok(serde_json::from_str(&self.fleet(&["status", "--json", "--instance", name])?)?)
    }

    /// Waits until a text of an agent's status has all parts.
    fn wait_for_status(&self, name: &str, field: &str, parts: &[&str], agent: &Process) -> Outcome {
        let has_parts = || {
            let text = self.status(name).ok().and_then(|status| status[field].as_str().map(str::to_owned));
            text.is_some_and(|text| parts.iter().all(|part| text.contains(part)))
        };
        wait_until(&format!("{field} of {name} has {parts:?}"), PATIENCE, has_parts).map_err(|failed| {
            let why = failed.message().unwrap_or_default();
            format!("{why}\n{:?}\nagent:\n{}", self.status(name).ok(), agent.output()).into()
        })
    }

    /// Makes a certificate that is valid until so many seconds from now, with a new key.
    fn make_certificate(&self, file: &str, user: &str, seconds: i64) -> Outcome {
        let mut ca = CertificateParams::default();
        ca.distinguished_name = DistinguishedName::new();
        ca.distinguished_name.push(DnType::OrganizationName, "fatpath");
        ca.distinguished_name.push(DnType::OrganizationalUnitName, "CA of fleet f");
        let issuer = Issuer::new(ca, KeyPair::from_pem(&fs::read_to_string(self.scratch.file("ca/ca.key"))?)?);
        let mut params = CertificateParams::new(vec![MEMBER.to_owned()])?;
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, user);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];
        params.not_before = OffsetDateTime::now_utc() - Duration::from_secs(3600);
        params.not_after = OffsetDateTime::now_utc() + time::Duration::seconds(seconds);
        let key = KeyPair::generate()?;
        self.write_pair(file, &params.signed_by(&key, &issuer)?, &key)
    }

    fn write_pair(&self, file: &str, certificate: &Certificate, key: &KeyPair) -> Outcome {
        let key_file = self.scratch.file(&format!("ca/{file}.key"));
        fs::write(&key_file, key.serialize_pem())?;
        fs::set_permissions(&key_file, fs::Permissions::from_mode(0o600))?;
        Ok(fs::write(self.scratch.file(&format!("ca/{file}.pem")), certificate.pem())?)
    }

    fn with_log(&self, failed: &Failed) -> Failed {
        let log = self.member.as_ref().map(Process::output).unwrap_or_default();
        let last: Vec<_> = log.lines().rev().take(15).collect();
        format!("{}\nmember:\n{}", failed.message().unwrap_or_default(), last.join("\n")).into()
    }
}

fn message<T>(outcome: Outcome<T>) -> String {
    outcome.err().and_then(|failed| failed.message().map(str::to_owned)).unwrap_or_default()
}

/// Each key of a fleet is written by the one role that has it, and by no other.
fn roles() -> Outcome {
    let mut site = Site::new()?;
    let made = site.init(&["--files-only"])?;
    assert_eq!(made.lines().count(), 14, "{made}");
    site.start_member(CLIENT_CERT_AUTH)?;
    let first = site.init(&[])?;
    for line in [
        "ca: has all certificates",
        "store: made its identity",
        "role f/mover: writes /fatpath/v1/f/ila/…",
        "user f/node/n1: has role f/node/n1",
        "authentication: enabled",
    ] {
        assert!(first.lines().any(|printed| printed == line), "{line}: {first}");
    }
    let second = site.init(&[])?;
    assert_eq!(second, "ca: has all certificates\nstore: has its identity\naccess: nothing was missing\n");
    let third = site.fleet(&["init", "-c", "n0.toml", "--ca", "ca", "--node", "n2"])?;
    assert!(third.contains("ca/node-n2.pem: made") && third.contains("role f/node/n2: made"), "{third}");
    assert!(!third.contains("n0") && !third.contains("authentication"), "{third}");

    let keys = |keys: &[&str]| -> Vec<String> { keys.iter().map(|key| format!("/fatpath/v1/f/{key}")).collect() };
    let own = keys(&["node/n0", "alive/n0", "vrf/n0/red/10.0.0.0/8"]);
    let others =
        keys(&["node/n1", "alive/n1", "vrf/n1/red/10.0.0.0/8", "node/n", "node/n00", "vrf/n00/red/10.0.0.0/8"]);
    let tasks = keys(&["ila/tasks/2001:db8:0:1::/64"]);
    let ours = keys(&["meta", "mesh"]);
    let foreign = vec!["/fatpath/v1/g/ila/t/2001:db8:0:1::/64".to_owned(), "x".to_owned()];
    let all = [own.as_slice(), &others, &tasks, &ours, &foreign];
    for (user, permitted) in [("node-n0", &own[..]), ("mover", &tasks), ("reader", &[])] {
        for key in all.into_iter().flatten() {
            let outcome = site.as_user(user, &["put", key, "{}"]);
            if permitted.contains(key) {
                assert!(outcome.is_ok(), "{user} {key}: {}", message(outcome));
                site.as_user("root", &["del", key])?;
            } else {
                assert!(message(outcome).contains("permission denied"), "{user} {key}");
                assert!(message(site.as_user(user, &["del", key])).contains("permission denied"), "{user} {key}");
            }
        }
        assert!(site.as_user(user, &["get", "--prefix", "/fatpath/v1/f/"]).is_ok(), "{user}");
        for prefix in ["/fatpath/v1/g/", "/fatpath/v1/", ""] {
            let outcome = site.as_user(user, &["get", "--prefix", prefix]);
            assert!(message(outcome).contains("permission denied"), "{user} {prefix}");
        }
        let outcome = site.as_user(user, &["user", "list"]);
        assert!(message(outcome).contains("permission denied"), "{user}");
    }
    assert!(site.etcdctl(&[], &["get", "x"]).is_err(), "a client without a certificate");
    let refused = |why: &str| {
        let printed = message(site.fleet(&["remove", "-c", "stranger.toml", "2001:db8:0:1::/64"]));
        assert!(printed.contains(why), "{printed}");
    };
    site.write_config("stranger", "n0", "stranger")?;
    site.make_certificate("stranger", "stranger", 3600)?;
    refused("permission denied: user stranger, read /fatpath/v1/f/ila/tasks/2001:db8:0:1::/64");
    // A certificate that no CA has made: the alert is named, although it follows the handshake.
    let (key, mut params) = (KeyPair::generate()?, CertificateParams::default());
    params.distinguished_name.push(DnType::CommonName, "root");
    site.write_pair("stranger", &params.self_signed(&key)?, &key)?;
    for _ in 0..20 {
        refused("the member refuses the connection: received fatal alert: ");
    }

    // The program names the request that was refused, and the user.
    let add = ["add", "2001:db8:0:1::/64", "n1", "fd00:0:2:1"];
    let refused = message(site.fleet(&[&add[..], &["-c", "n0.toml"]].concat()));
    let want = "permission denied: user f/node/n0, write /fatpath/v1/f/ila/tasks/2001:db8:0:1::/64";
    assert!(refused.contains(want), "{refused}");
    site.fleet(&[&add[..], &["-c", "mover.toml"]].concat())?;
    let refused = message(site.fleet(&["init", "-c", "n0.toml"]));
    let want = "ca/node-n0.pem: roles and users are made by root, and this certificate is of f/node/n0";
    assert!(refused.contains(want), "{refused}");

    // An agent with another node's certificate writes nothing for its own.
    site.write_config("thief", "n1", "node-n0")?;
    let agent = site.spawn_agent("thief")?;
    let want = ["permission denied: user f/node/n0, write /fatpath/v1/f/node/n1"];
    site.wait_for_status("thief", "denied", &want, &agent)?;
    let text = site.fleet(&["status", "--instance", "thief"])?;
    assert!(text.contains(&format!("denied    this node's keys: etcdserver: {}", want[0])), "{text}");
    assert_eq!(site.as_user("reader", &["get", "--prefix", "/fatpath/v1/f/node/"])?, "");
    // It reads all the same.
    assert_eq!(site.status("thief")?["tasks"], 1);

    // An agent with its own writes all its keys, networks too.
    let text = fs::read_to_string(site.scratch.file("n0.toml"))?;
    let networks = "[[networks]]\nvrf = \"red\"\nvia = \"10.9.0.1\"\nprefixes = [\"10.1.0.0/16\"]\n";
    fs::write(site.scratch.file("n0.toml"), text + networks)?;
    let _agent = site.spawn_agent("n0")?;
    for key in ["node/n0", "alive/n0", "vrf/n0/red/10.1.0.0/16"] {
        let is_written = || {
            let found = site.as_user("reader", &["get", &format!("/fatpath/v1/f/{key}")]);
            found.is_ok_and(|value| !value.is_empty())
        };
        wait_until(&format!("the agent has written {key}"), PATIENCE, is_written)?;
    }
    assert!(site.status("n0")?["denied"].is_null());
    Ok(())
}

/// Target of a gateway's mapping.
fn target(gateway: &Gateway, matched: &str) -> Option<String> {
    let shown = gateway.show("ila").ok()?;
    let line = shown.lines().find(|line| line.split_whitespace().next() == Some(matched))?;
    line.split_whitespace().nth(1).map(str::to_owned)
}

/// A certificate expires and a permission is taken away: the agent says so and withdraws nothing; both are mended, and it goes on.
fn renewal() -> Outcome {
    const LIFE: i64 = 20;
    let mut site = Site::new()?;
    site.init(&["--files-only"])?;
    site.start_member(CLIENT_CERT_AUTH)?;
    site.init(&[])?;
    let other = "{\"v\":1,\"locators\":\"fd00:0:2::/48\",\"underlay\":\"fd99::2\"}";
    site.as_user("node-n1", &["put", "/fatpath/v1/f/node/n1", other])?;
    let add = |task: usize| {
        let (sir, locator) = (format!("2001:db8:0:{task}::/64"), format!("fd00:0:2:{task}"));
        site.fleet(&["add", "-c", "mover.toml", &sir, "n1", &locator]).map(drop)
    };
    add(1)?;
    let netns = gateway_netns("g0")?;
    netns.sh("ip link add wan0 type veth peer name wan1; ip link set wan0 up; ip link set wan1 up")?;
    let link = "[[link]]\nname = \"wan0\"\nkind = \"packet\"\ninterface = \"wan0\"\naddresses = [\"fd99::1/64\"]\n";
    let gateway = Gateway::start(&netns, &site.scratch, "n0", link)?;
    site.make_certificate("node-n0", "f/node/n0", LIFE)?;
    let expires = Instant::now() + Duration::from_secs(LIFE.unsigned_abs() + 1);
    let mut agent = site.spawn_agent("n0")?;
    let has =
        |task: usize| target(&gateway, &format!("2001:db8:0:{task}")).as_deref() == Some(&format!("fd00:0:2:{task}"));
    let arrives = |task: usize, site: &Site, agent: &Process| {
        wait_until(&format!("task {task} is mapped"), PATIENCE, || has(task)).map_err(|failed| {
            let why = failed.message().unwrap_or_default();
            Failed::from(format!("{why}\n{:?}\nagent:\n{}", site.status("n0").ok(), agent.output()))
        })
    };
    arrives(1, &site, &agent)?;
    let mapped = gateway.show("ila")?;
    let keeps_all = |what: &str, time: Duration| -> Outcome {
        let end = Instant::now() + time;
        while Instant::now() < end {
            let now = gateway.show("ila")?;
            assert_eq!(now, mapped, "{what}");
            thread::sleep(Duration::from_millis(200));
        }
        Ok(())
    };

    // The certificate expires. Its connection goes on, and the next one is not made.
    thread::sleep(expires.saturating_duration_since(Instant::now()));
    assert!(site.status("n0")?["member"].is_string());
    site.start_member(CLIENT_CERT_AUTH)?;
    site.wait_for_status("n0", "failure", &["ca/node-n0.pem: the certificate expired at 20", " UTC"], &agent)?;
    let text = site.fleet(&["status", "--instance", "n0"])?;
    assert!(text.contains("store     none is connected (https://10.9.0.1:2379: ca/node-n0.pem: the cert"), "{text}");
    keeps_all("the certificate has expired", Duration::from_secs(12))?;
    let log = agent.output();
    assert_eq!(log.matches("the certificate expired at").count(), 1, "{log}");
    // Another one takes its place, first with a key that others may read.
    site.make_certificate("node-n0", "f/node/n0", 3600)?;
    let key = site.scratch.file("ca/node-n0.key");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644))?;
    site.wait_for_status("n0", "failure", &["ca/node-n0.key: Group or others may", "mode 0644"], &agent)?;
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600))?;
    site.wait_for_status("n0", "member", &[MEMBER], &agent)?;
    keeps_all("the certificate is renewed", Duration::from_secs(1))?;

    // A certificate is renewed while the old one is valid: the next connection has it.
    site.make_certificate("node-n0", "f/node/n0", 3600)?;
    site.start_member(CLIENT_CERT_AUTH)?;
    site.wait_for_status("n0", "member", &[MEMBER], &agent)?;

    // The node may read nothing more: nothing is withdrawn.
    let end = "/fatpath/v1/f0";
    site.as_user("root", &["role", "revoke-permission", "f/node/n0", "/fatpath/v1/f/", end])?;
    site.start_member(CLIENT_CERT_AUTH)?;
    site.wait_for_status("n0", "failure", &["permission denied: user f/node/n0, ", " /fatpath/v1/f/"], &agent)?;
    keeps_all("the node may not read", Duration::from_secs(12))?;
    let log = agent.output();
    assert!(log.matches("permission denied").count() < 10, "attempts without a pause: {log}");
    let mended = site.init(&[])?;
    assert!(mended.contains("role f/node/n0: reads /fatpath/v1/f/…"), "{mended}");
    site.wait_for_status("n0", "member", &[MEMBER], &agent)?;
    let (sir, locator) = ("2001:db8:0:2::/64", "fd00:0:2:2");
    site.fleet(&["add", "-c", "mover.toml", sir, "n1", locator])?;
    arrives(2, &site, &agent)?;
    assert!(has(1) && agent.is_running());
    Ok(())
}

/// Members whose flags would lock all clients out, root too, keep open; so does a store that others use.
fn locked_out() -> Outcome {
    let mut site = Site::new()?;
    site.init(&["--files-only"])?;
    let is_open = |site: &Site| site.as_user("reader", &["put", "/fatpath/v1/f/x", "{}"]).is_ok();

    site.start_member(&[])?;
    let refused = message(site.init(&[]));
    assert!(refused.contains("takes clients without a certificate"), "{refused}");
    assert!(is_open(&site));

    site.as_user("root", &["put", "/registry/pods/a", "{}"])?;
    site.start_member(CLIENT_CERT_AUTH)?;
    let refused = message(site.init(&[]));
    assert!(refused.contains("Others use this store, for one the key \"/registry/pods/a\""), "{refused}");
    assert!(is_open(&site));
    site.as_user("root", &["del", "/registry/pods/a"])?;

    // Another fleet, another form of keys, and a node that is not named.
    for (key, want) in [
        ("/fatpath/v1/g/meta", "would be locked out: fleet g: "),
        ("/fatpath/v1/f/node/n9", "would be locked out: node n9 of fleet f: "),
        ("/fatpath/v2/x", "Others use this store, for one the key \"/fatpath/v2/x\""),
    ] {
        site.as_user("root", &["put", key, "{}"])?;
        let refused = message(site.init(&[]));
        assert!(refused.contains(want), "{refused}");
        assert!(is_open(&site));
        site.as_user("root", &["del", key])?;
    }

    // A run that has failed leaves nothing that the next one cannot undo.
    site.start_member(&["--trusted-ca-file", "ca/ca.pem"])?;
    for _ in 0..2 {
        let refused = message(site.init(&[]));
        let want = ["takes no user from a certificate", "authentication is disabled again"];
        assert!(want.iter().all(|want| refused.contains(want)), "{refused}");
        assert!(is_open(&site));
    }

    // The member's own certificate is out of its time.
    site.make_certificate("old", "", -60)?;
    site.spawn_member("old", CLIENT_CERT_AUTH)?;
    let add = ["add", "-c", "mover.toml", "2001:db8:0:1::/64", "n1", "fd00:0:2:1"];
    wait_until("the member's certificate is refused", PATIENCE, || {
        message(site.fleet(&add)).contains("https://10.9.0.1:2379: the member's certificate expired at 20")
    })?;

    site.start_member(CLIENT_CERT_AUTH)?;
    let made = site.init(&[])?;
    assert!(made.contains("authentication: enabled"), "{made}");
    assert!(!is_open(&site));
    Ok(())
}

/// The commands of docs/fleet.md about access, as they are there.
fn page() -> Outcome {
    const PAGE: &str = include_str!("../../../docs/fleet.md");
    let (_, section) = PAGE.split_once("## Access\n").ok_or("no section")?;
    let (section, _) = section.split_once("\n## ").ok_or("no end of the section")?;
    let section = section.replace(" \\\n", " ");
    let lines = section.lines().filter_map(|line| line.strip_prefix("    "));
    let (settings, commands): (Vec<_>, Vec<_>) = lines.partition(|line| line.contains(" = "));
    assert_eq!((settings.len(), commands.len()), (4, 5), "{settings:?} {commands:?}");
    let site = Site::new()?;
    site.netns.sh("ip addr add 10.0.0.1/32 dev lo")?;
    let of_node = "fleet = \"prod\"\nnode = \"a\"\nlocators = \"fd00:0:1::/48\"\n";
    let text = format!("{of_node}{}\n[domains]\ntasks = \"2001:db8::/48\"\n", settings.join("\n"));
    fs::write(site.scratch.file("fleet.toml"), text.replace("/etc/fatpath/", "ca/"))?;
    let path = std::env::var("PATH").unwrap_or_default();
    let own = fleet().parent().map(Path::to_path_buf).unwrap_or_default();
    let path = format!("{}:{}:{path}", own.display(), unpacked("usr/bin").display());
    let shell = |line: &str| {
        let mut command = site.command("sh");
        command.env("PATH", &path).args(["-ec", line]);
        command
    };
    let mut member = None;
    for line in commands {
        if line.starts_with("etcd ") {
            member = Some(Process::spawn(&mut shell(&format!("exec {line}")), &site.scratch)?);
            continue;
        }
        let mut last = String::new();
        let works = || match run(&mut shell(line)) {
            Ok(printed) => {
                last = printed;
                true
            }
            Err(failed) => {
                last = failed.message().unwrap_or_default().to_owned();
                false
            }
        };
        // The member takes its time to start.
        let outcome = wait_until(line, Duration::from_secs(20), works);
        outcome.map_err(|failed| format!("{}: {last}", failed.message().unwrap_or_default()))?;
        if line.contains("get --prefix") {
            assert!(last.contains("/fatpath/v1/prod/meta"), "{last}");
        }
    }
    drop(member);
    Ok(())
}
