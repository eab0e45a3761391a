//! The user of a gateway that root starts: it has none of root's rights, everything works, and root follows no link that it plants.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use libtest_mimic::Trial;
use rustix::process::{Pid, Signal, kill_process};
use system::{Gateway, Need, Netns, Outcome, Process, Scratch, fatpath, run, trial};

use super::state::{Node, kill};

const NEEDS: &[Need] = &[Need::Namespaces, Need::Tun];
const PRIVILEGES: &[Need] = &[Need::Namespaces, Need::Tun, Need::SETPRIV];

const PATIENCE: Duration = Duration::from_secs(20);

/// A user that no host has.
const UID: u32 = 61_234;

/// Options of its gateways.
const AS_USER: [&str; 2] = ["--user", "61234"];

/// Words by which a program belongs to it.
const OF_USER: [&str; 3] = ["--reuid=61234", "--regid=61234", "--clear-groups"];

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("user/gateway_changes_its_user_and_its_openers_do_not", NEEDS, changes),
        trial("user/user_is_chosen_by_name_number_or_root", PRIVILEGES, chosen),
        trial("user/links_reloads_and_programs_work", NEEDS, works),
        trial("user/state_is_kept_whichever_user_had_it", NEEDS, state),
        trial("user/sockets_of_guests_are_in_a_directory_of_root", NEEDS, guests),
        trial("user/gateway_is_replaced_by_root_alone", PRIVILEGES, replaced),
        trial("user/own_user_has_no_right_to_change_the_gateway", PRIVILEGES, own_user),
        trial("user/directory_of_the_user_is_refused_at_the_start", NEEDS, own_directory),
        trial("user/link_that_the_user_plants_is_not_followed", NEEDS, planted),
        trial("user/gateway_of_lines_runs_ip_by_its_user", NEEDS, lines),
    ]
}

/// Values of a field of `/proc/PID/status` for all threads of a process.
fn of_threads(pid: u32, field: &str) -> Outcome<Vec<String>> {
    let mut values = Vec::new();
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread may have ended.
        let Ok(status) = fs::read_to_string(thread?.path().join("status")) else { continue };
        let value = status.lines().find_map(|line| line.strip_prefix(field)).ok_or("no such field")?;
        values.push(value.split_whitespace().collect::<Vec<_>>().join(" "));
    }
    Ok(values)
}

/// Starts a gateway of root with further options.
fn start(host: &Netns, scratch: &Scratch, toml: &str, options: &[&str]) -> Outcome<Gateway> {
    let mut command = host.command("bash");
    command.args(["-c", &format!("exec \"$@\" {}", options.join(" ")), "bash"]).arg(fatpath());
    Gateway::start_under(command, scratch, "x", toml)
}

/// A command of `fatpath` for the gateways of `scratch`.
fn command(scratch: &Scratch, words: &[&str]) -> Command {
    let mut command = Command::new(fatpath());
    command.args(words).env("FATPATH_RUNDIR", scratch.path());
    command
}

const TUN: &str = "[[link]]\nname = \"t0\"\nkind = \"tun\"\naddresses = [\"10.1.0.1/24\"]\n";

fn guest(name: &str, kind: &str, socket: &Path) -> String {
    format!("[[link]]\nname = \"{name}\"\nkind = \"{kind}\"\nsocket = \"{}\"\n", socket.display())
}

fn changes() -> Outcome {
    let (scratch, host) = (Scratch::new()?, Netns::new("x")?);
    let toml = format!("# allow-links none\n{TUN}[crypto]\nworkers = 1\n");
    let mut command = host.command("setpriv");
    command.args(["--groups", "4242", "bash", "-c", "exec \"$@\" --user 61234", "bash"]).arg(fatpath());
    let gateway = Gateway::start_under(command, &scratch, "x", &toml)?;
    for (field, want) in [
        ("Uid:", "61234 61234 61234 61234"),
        ("Gid:", "61234 61234 61234 61234"),
        ("Groups:", ""),
        ("CapEff:", "0000000000000000"),
        ("CapPrm:", "0000000000000000"),
        ("CapBnd:", "0000000000000000"),
        ("NoNewPrivs:", "1"),
        ("Seccomp:", "2"),
    ] {
        let values = of_threads(gateway.id(), field)?;
        assert!(values.len() > 4 && values.iter().all(|value| value == want), "{field} {values:?}");
    }
    // Its memory is closed to its own user, too.
    assert_eq!(fs::metadata(format!("/proc/{}/mem", gateway.id())).map(|mem| of(&mem))?, 0);
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", gateway.id()))?;
    let openers: Vec<u32> = children.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
    assert_eq!(openers.len(), 2);
    for opener in openers {
        assert_eq!(of_threads(opener, "Uid:")?, ["0 0 0 0"]);
        let groups = of_threads(opener, "Groups:")?.remove(0);
        assert!(groups.split(' ').any(|group| group == "4242"), "{groups}");
    }
    let shown = gateway.show("sandbox")?;
    assert!(shown.starts_with("sandbox landlock ") && shown.contains(", no capabilities, user 61234\n"), "{shown}");
    assert!(shown.contains(&format!("read {} by its opener\n", scratch.config("x.toml")?.display())), "{shown}");
    assert!(gateway.log().contains(", no capabilities, user 61234\n"), "{}", gateway.log());
    Ok(())
}

fn of(metadata: &fs::Metadata) -> u32 {
    std::os::unix::fs::MetadataExt::uid(metadata)
}

fn chosen() -> Outcome {
    let (scratch, host) = (Scratch::new()?, Netns::new("x")?);
    let entry = |name: &str| run(Command::new("getent").args(["passwd", name]));
    let nobody = entry("nobody")?;
    let mut fields = nobody.split(':').skip(2);
    let [uid, gid] = [fields.next(), fields.next()].map(|field| field.unwrap_or_default().to_owned());
    for (user, ids) in [("nobody", [&uid, &gid]), (&uid, [&uid, &gid]), ("root", [&"0".to_owned(); 2])] {
        let gateway = start(&host, &scratch, "", &["--user", user])?;
        for (field, id) in ["Uid:", "Gid:"].into_iter().zip(ids) {
            let values = of_threads(gateway.id(), field)?;
            assert!(values.iter().all(|value| *value == [id.as_str(); 4].join(" ")), "{user} {values:?}");
        }
        let named = if user == "root" { None } else { Some(", user nobody\n") };
        let shown = gateway.show("sandbox")?;
        assert_eq!(shown.contains(", user "), named.is_some(), "{shown}");
        assert!(named.is_none_or(|named| shown.contains(named)), "{shown}");
    }
    let refusal = |options: &[&str], words: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(options).arg("--").arg(fatpath()).args(["run", "--instance", "x", "--state", "none"]);
        let output = command.args(words).env("FATPATH_RUNDIR", scratch.path()).output()?;
        assert!(!output.status.success(), "{output:?}");
        Outcome::Ok(String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let why = refusal(&["--no-new-privs"], &["--user", "no-such-user"])?;
    assert!(why.contains("Error: --user no-such-user: this host has no such user"), "{why}");
    let why = refusal(&["--no-new-privs"], &["--user", "nobody", "--no-sandbox"])?;
    assert!(why.contains("cannot be used with"), "{why}");
    let program = scratch.file("fatpath");
    fs::copy(fatpath(), &program)?;
    let mut other = Command::new("setpriv");
    other.args(OF_USER).arg(&program).args(["run", "--instance", "x", "--user", "nobody"]);
    let output = other.env("FATPATH_RUNDIR", scratch.path()).output()?;
    let why = String::from_utf8_lossy(&output.stderr);
    assert!(why.contains("Error: --user nobody: only root may start a gateway of another user"), "{why}");
    // The default, with a file of users of its own.
    let users = scratch.file("passwd");
    let others = fs::read_to_string("/etc/passwd")?;
    fs::write(&users, format!("{others}\nfatpath:x:{UID}:{UID}:gateways:/nonexistent:/usr/sbin/nologin\n"))?;
    for (few, missing) in [
        ("", None),
        ("setpriv --bounding-set=-setuid,-setgid", Some("setgroups")),
        ("setpriv --groups 4242 --bounding-set=-setuid", Some("setresuid")),
    ] {
        let is_changed = missing.is_none();
        let script = format!("mount --bind \"$USERS\" /etc/passwd && exec {few} \"$@\"");
        let mut command = host.command("unshare");
        command.args(["--mount", "bash", "-c", &script, "without --user"]).arg(fatpath()).env("USERS", &users);
        let gateway = Gateway::start_under(command, &scratch, "x", TUN)?;
        let shown = gateway.show("sandbox")?;
        assert_eq!(shown.contains(", user fatpath\n"), is_changed, "{shown}");
        let call = missing.unwrap_or_default();
        assert_eq!(shown.contains(&format!("missing user fatpath: {call}: ")), !is_changed, "{shown}");
        if missing == Some("setresuid") {
            // Nothing of the change stays.
            assert_eq!(of_threads(gateway.id(), "Gid:")?.remove(0), "0 0 0 0");
            assert_eq!(of_threads(gateway.id(), "Groups:")?.remove(0), "4242");
        }
        let want = if is_changed { "61234 61234 61234 61234" } else { "0 0 0 0" };
        assert!(of_threads(gateway.id(), "Uid:")?.iter().all(|ids| ids == want));
    }
    // A user that was not chosen is left out where it could change the gateway's files.
    let open = scratch.file("open");
    fs::create_dir(&open)?;
    fs::set_permissions(&open, fs::Permissions::from_mode(0o777))?;
    let script = "mount --bind \"$USERS\" /etc/passwd && exec \"$@\" --state \"$STATE\"";
    let mut command = host.command("unshare");
    command.args(["--mount", "bash", "-c", script, "without --user"]).arg(fatpath());
    command.env("USERS", &users).env("STATE", open.join("state"));
    let gateway = Gateway::start_under(command, &scratch, "x", TUN)?;
    let why = format!("the gateway's user 61234 may change {}; give it to root, ", open.display());
    assert!(gateway.log().contains("the gateway stays root: user fatpath: ") && gateway.log().contains(&why));
    assert!(of_threads(gateway.id(), "Uid:")?.iter().all(|ids| ids == "0 0 0 0"));
    drop(gateway);
    // Without the capability there is no change, and a user that was chosen is not left out.
    let why = refusal(&["--bounding-set=-setuid,-setgid"], &AS_USER)?;
    assert!(why.contains("Error: --user 61234: setgroups: Operation not permitted"), "{why}");
    Ok(())
}

fn works() -> Outcome {
    let (scratch, elsewhere, host) = (Scratch::new()?, Scratch::new()?, Netns::new("x")?);
    let config = scratch.config("x.toml")?;
    let mut gateway = start(&host, &scratch, TUN, &AS_USER)?;
    assert!(host.sh("ip link show t0")?.contains("alias fatpath x"));
    // An editor puts another file in the place of the first one, for root alone.
    let edited = scratch.file("edited");
    fs::write(&edited, system::with_workers(&format!("{TUN}{}", TUN.replace("t0", "t1").replace("10.1.0", "10.2.0"))))?;
    fs::set_permissions(&edited, fs::Permissions::from_mode(0o600))?;
    fs::rename(&edited, &config)?;
    let pid = Pid::from_raw(gateway.id() as i32).ok_or("no process number")?;
    kill_process(pid, Signal::HUP)?;
    gateway.wait_until("the reload is applied", |gateway| gateway.link("t1").is_ok())?;
    // A client passes a file that this user may not read.
    let file = elsewhere.file("other.toml");
    fs::write(&file, system::with_workers(&format!("{TUN}[[route]]\nto = \"10.9.0.0/16\"\ntype = \"blackhole\"\n")))?;
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600))?;
    let file = file.display().to_string();
    run(&mut command(&scratch, &["load", "--instance", "x", "-c", &file]))?;
    assert!(gateway.show("routes")?.contains("10.9.0.0/16") && gateway.link("t1").is_err());
    // The file that is the gateway's by now is none of its start.
    kill_process(pid, Signal::HUP)?;
    let hint = format!("lets this gateway read {} alone", config.display());
    gateway.wait_until("the reload is refused by name", |gateway| {
        gateway.log().lines().any(|line| line.contains("not reloaded") && line.contains(&file) && line.contains(&hint))
    })?;
    for line in ["link add t2 type tun", "link set t2 up", "link set t0 mtu 1300", "link add br0 type bridge"] {
        run(command(&scratch, &["-i", "x", "ip"]).args(line.split(' ')))?;
    }
    assert!(host.sh("ip link show t0")?.contains(" mtu 1300 ") && host.sh("ip link show t2").is_ok());
    let ping = ["-i", "x", "exec", "--", "ping", "-c", "1", "-W", "2", "10.1.0.1"];
    run(&mut command(&scratch, &ping))?;
    assert!(gateway.show("host")?.contains("host side on at "));
    let mut capture = command(&scratch, &["-i", "x", "capture", "t0"]);
    let mut capture = Process::spawn(&mut capture, &scratch)?;
    std::thread::sleep(Duration::from_millis(300));
    assert!(capture.is_running(), "{}", capture.output());
    drop(capture);
    assert!(gateway.terminate()?.success(), "{}", gateway.log());
    let left: Vec<_> =
        fs::read_dir(scratch.path())?.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    assert!(!left.iter().any(|name| name.starts_with("x.") && name != "x.toml"), "{left:?}");
    assert!(!gateway.log().contains("ermission denied; "), "{}", gateway.log());
    Ok(())
}

fn state() -> Outcome {
    let (scratch, netns) = (Scratch::new()?, Netns::new("x")?);
    let node = Node { scratch: &scratch, netns: &netns, name: "x" };
    let toml = scratch.file("x.toml");
    fs::write(&toml, TUN)?;
    fs::set_permissions(&toml, fs::Permissions::from_mode(0o600))?;
    let config = toml.display().to_string();
    let start = |user: &str| node.start(&["-c", &config, "--user", user]);
    let private = || {
        let found = fs::read_dir(scratch.path())?.filter_map(Result::ok);
        let state = found.filter(|entry| entry.file_name().to_string_lossy().starts_with("x.state"));
        let modes = state.map(|entry| entry.metadata().map(|found| (of(&found), found.permissions().mode() & 0o777)));
        Outcome::Ok(modes.collect::<Result<Vec<_>, _>>()?)
    };
    // Files of root's gateway are read by the user's, and the reverse.
    let users = ["root", "61234", "61234", "root", "61234"];
    for (round, user) in users.into_iter().enumerate() {
        let process = start(user)?;
        let routes = node.ip("route")?;
        for before in 0..round {
            assert!(routes.contains(&format!("10.5{before}.0.0/16")), "{user} {routes} {}", process.output());
        }
        node.ip(&format!("route add 10.5{round}.0.0/16 dev t0"))?;
        if round == 1 {
            node.save()?;
        }
        let modes = private()?;
        assert!(modes.len() > 1 && modes.iter().all(|mode| *mode == (0, 0o600)), "{modes:?}");
        match round {
            2 => {
                process.signal(Signal::TERM)?;
                drop(process);
            }
            _ => kill(process)?,
        }
    }
    // A change of an object of the file counts no more, and the gateway starts anew, by its user.
    let anew = |user: &str, route: &str| {
        let process = start(user)?;
        node.ip("addr del 10.1.0.1/24 dev t0")?;
        node.ip(&format!("route add {route} dev t0"))?;
        kill(process)?;
        let process = start(user)?;
        let log = process.output();
        assert!(log.contains("starting anew") && !log.contains("/etc/passwd"), "{log}");
        assert!(node.ip("addr show dev t0")?.contains("10.1.0.1/24"), "{log}");
        assert!(node.ip("route")?.contains(route), "{log}");
        Outcome::Ok(process)
    };
    for (user, route) in [("nobody", "10.62.0.0/16"), ("root", "10.63.0.0/16")] {
        let process = anew(user, route)?;
        let shown = run(&mut command(&scratch, &["show", "sandbox", "--instance", "x"]))?;
        assert_eq!(shown.contains(", user nobody\n"), user == "nobody", "{shown}");
        kill(process)?;
    }
    let process = anew("61234", "10.60.0.0/16")?;
    assert!(of_threads(process.id(), "Uid:")?.iter().all(|ids| ids.starts_with("61234 61234")));
    let shown = run(&mut command(&scratch, &["show", "sandbox", "--instance", "x"]))?;
    assert!(shown.contains(", user 61234\n"), "{shown}");
    // The files of the second start are read by the opener of the first.
    fs::write(&toml, format!("{TUN}{}", TUN.replace("t0", "t1").replace("10.1.0", "10.2.0")))?;
    process.signal(Signal::HUP)?;
    system::wait_until("the reload is applied", PATIENCE, || node.ip("link show t1").is_ok())?;
    node.ip("route add 10.61.0.0/16 dev t1")?;
    kill(process)?;
    let process = start("root")?;
    assert!(node.ip("route")?.contains("10.61.0.0/16"), "{}", process.output());
    kill(process)
}

fn guests() -> Outcome {
    let (scratch, host, right) = (Scratch::new()?, Netns::new("x")?, Netns::new("right")?);
    let dir = scratch.file("guests");
    fs::create_dir(&dir)?;
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o700))?;
    let [first, second, stale] = ["first", "second", "stale"].map(|name| dir.join(name));
    drop(std::os::unix::net::UnixListener::bind(&stale)?);
    let one = guest("g0", "vhost-user", &first);
    let mut back = start(&host, &scratch, &one, &AS_USER)?;
    drop(UnixStream::connect(&first)?);
    back.reload(&format!("{one}{}{}", guest("g1", "vhost-user", &second), guest("g2", "vhost-user", &stale)))?;
    back.wait_until("the links are there", |gateway| gateway.link("g1").is_ok() && gateway.link("g2").is_ok())?;
    for socket in [&first, &second, &stale] {
        assert_eq!(of(&fs::symlink_metadata(socket)?), 0, "{}", socket.display());
    }
    // The other end of the connection.
    let mut front = right.command(fatpath());
    front.args(["--instance", "front"]);
    let toml = scratch.file("front.toml");
    fs::write(&toml, guest("g0", "virtio-user", &second))?;
    let mut command = right.command(fatpath());
    command.args(["run", "--instance", "front", "--state", "none", "-c"]).arg(&toml).args(AS_USER);
    let front = Process::spawn(command.env("FATPATH_RUNDIR", scratch.path()), &scratch)?;
    back.wait_until("the front end has connected", |gateway| {
        gateway.link("g1").is_ok_and(|link| link["guest"]["connected"] == true)
    })
    .map_err(|failed| format!("{}{}", failed.message().unwrap_or_default(), front.output()))?;
    drop(front);
    back.reload(&one)?;
    back.wait_until("the socket is removed", |_| !second.exists())?;
    // Another program's socket in its place stays.
    fs::remove_file(&first)?;
    let other = std::os::unix::net::UnixListener::bind(&first)?;
    assert!(back.terminate()?.success(), "{}", back.log());
    assert!(first.exists() && !stale.exists(), "{}", back.log());
    drop(other);
    Ok(())
}

fn replaced() -> Outcome {
    let (scratch, host) = (Scratch::new()?, Netns::new("x")?);
    symlink(scratch.path(), scratch.file("link"))?;
    let under = |user: &str| {
        let mut command = host.command("bash");
        // Another path to the same state.
        let state = scratch.file(if user == "root" { "link/state" } else { "state" });
        let script = format!("exec \"$@\" --state {} --user {user}", state.display());
        command.args(["-c", &script, "bash"]).arg(fatpath());
        command
    };
    let mut gateway = Gateway::start_under(under("61234"), &scratch, "x", TUN)?;
    let uid = |gateway: &Gateway| Outcome::Ok(of_threads(gateway.id(), "Uid:")?.remove(0));
    for (number, user) in ["61234", "root", "61234"].into_iter().enumerate() {
        let route = format!("route add blackhole 10.5{number}.0.0/16");
        run(command(&scratch, &["-i", "x", "ip"]).args(route.split(' ')))?;
        let before = gateway.replace(under(user), &scratch, TUN, PATIENCE)?;
        assert!(before.log().contains("handed over to process"), "{}", before.log());
        let want = if user == "root" { "0 0 0 0" } else { "61234 61234 61234 61234" };
        assert_eq!(uid(&gateway)?, want);
        assert!(gateway.show("routes")?.contains(&format!("10.5{number}.0.0/16")), "{}", gateway.log());
    }
    gateway.reload(&format!("{TUN}{}", TUN.replace("t0", "t1").replace("10.1.0", "10.2.0")))?;
    gateway.wait_until("the reload is applied", |gateway| gateway.link("t1").is_ok())?;
    // Another process of its user does not even reach the socket, and would be refused there.
    let program = scratch.file("fatpath");
    fs::copy(fatpath(), &program)?;
    for (mode, want) in [(0o700, "ermission denied"), (0o777, "only the gateway's own user and root may replace it")] {
        fs::set_permissions(gateway.socket(), fs::Permissions::from_mode(mode))?;
        let mut other = Command::new("setpriv");
        other.args(OF_USER).arg(&program).args(["run", "--replace", "--instance", "x", "--state", "none"]);
        let output = other.env("FATPATH_RUNDIR", scratch.path()).output()?;
        let why = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && why.contains(want), "{why}");
    }
    assert!(gateway.link("t1").is_ok());
    Ok(())
}

fn own_user() -> Outcome {
    let (scratch, host) = (Scratch::new()?, Netns::new("x")?);
    let _gateway = start(&host, &scratch, TUN, &AS_USER)?;
    for file in ["fatpath", "libfatpath_preload.so"] {
        fs::copy(fatpath().with_file_name(file), scratch.file(file))?;
    }
    let by = |words: &[&str], line: &str| {
        let mut command = Command::new("setpriv");
        command.args(words).arg(scratch.file("fatpath")).args(["-i", "x"]).args(line.split(' '));
        let output = command.env("FATPATH_RUNDIR", scratch.path()).output()?;
        let printed = [output.stdout, output.stderr].concat();
        Outcome::Ok((output.status.success(), String::from_utf8_lossy(&printed).into_owned()))
    };
    let (done, printed) = by(&OF_USER, "show links")?;
    assert!(!done && printed.contains("permission denied"), "{printed}");
    let (done, printed) = by(&OF_USER, "ip route add blackhole 10.78.0.0/16")?;
    assert!(!done && printed.contains("Operation not permitted"), "{printed}");
    let (done, printed) = by(&OF_USER, "ip link show t0")?;
    assert!(done && printed.contains("t0"), "every user may read: {printed}");
    let (done, printed) = by(&["--no-new-privs"], "ip route add blackhole 10.79.0.0/16")?;
    assert!(done, "{printed}");
    Ok(())
}

fn own_directory() -> Outcome {
    let (scratch, host) = (Scratch::new()?, Netns::new("x")?);
    let own = scratch.file("own");
    fs::create_dir(&own)?;
    chown(&own, Some(UID), Some(UID))?;
    let toml = scratch.file("x.toml");
    let start = |rundir: &Path, text: &str, more: &[&str]| {
        fs::write(&toml, text)?;
        let mut command = host.command(fatpath());
        command.args(["run", "--instance", "x", "-c"]).arg(&toml).args(AS_USER).args(more);
        let output = command.env("FATPATH_RUNDIR", rundir).output()?;
        Outcome::Ok(String::from_utf8_lossy(&output.stderr).into_owned())
    };
    // A directory of sockets that the user cannot search; one that the start makes is readable whatever the mask is.
    let closed = scratch.file("closed");
    fs::create_dir(&closed)?;
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o711))?;
    let why = start(&closed, "", &["--state", "none"])?;
    let may_not = format!("the gateway's user 61234 may not read {}; let all users read it", closed.display());
    assert!(why.contains(&may_not), "{why}");
    let made = scratch.file("made");
    let mut masked = host.command("bash");
    masked.args(["-c", "umask 077; exec \"$@\"", "bash"]).arg(fatpath()).args(["run", "--instance", "x"]).args(AS_USER);
    let mut masked =
        Process::spawn(masked.args(["--state", "none"]).env("FATPATH_RUNDIR", made.join("run")), &scratch)?;
    system::wait_until("it runs", PATIENCE, || !masked.is_running() || masked.output().contains("x: running"))?;
    assert!(masked.is_running(), "{}", masked.output());
    assert_eq!(fs::metadata(made.join("run"))?.permissions().mode() & 0o777, 0o755);
    drop(masked);
    let may = format!("the gateway's user 61234 may change {}", own.display());
    let state = own.join("state").display().to_string();
    for (rundir, text, more) in [
        (own.as_path(), String::new(), ["--state", "none"]),
        (scratch.path(), String::new(), ["--state", &state]),
        (scratch.path(), guest("g0", "vhost-user", &own.join("g")), ["--state", "none"]),
    ] {
        let why = start(rundir, &text, &more)?;
        assert!(why.contains(&may) && why.contains("run the gateway with --user root"), "{why}");
    }
    Ok(())
}

fn planted() -> Outcome {
    let (scratch, host) = (Scratch::new()?, Netns::new("x")?);
    let secret = scratch.file("secret");
    fs::write(&secret, "[[route]]\nto = \"10.99.0.0/16\"\ntype = \"blackhole\"\n")?;
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600))?;
    let dirs = ["guests", "config", "state"].map(|name| scratch.file(name));
    dirs.iter().try_for_each(fs::create_dir)?;
    let [guests, config, state] = &dirs;
    let toml = config.join("x.toml");
    let text = |name: &str| guest("g0", "vhost-user", &guests.join(name));
    fs::write(&toml, text("first"))?;
    let mut command = host.command(fatpath());
    command.args(["run", "--instance", "x", "-c"]).arg(&toml).arg("--state").arg(state.join("state")).args(AS_USER);
    let gateway = Process::spawn(command.env("FATPATH_RUNDIR", scratch.path()), &scratch)?;
    let logs = |what: &str| system::wait_until(what, PATIENCE, || gateway.output().contains(what));
    logs("x: running with 1 link: g0")?;
    let give = |path: &Path| std::os::unix::fs::lchown(path, Some(UID), Some(UID));
    // A link in place of the configuration, in a directory of root, too.
    fs::remove_file(&toml)?;
    symlink(&secret, &toml)?;
    give(&toml)?;
    gateway.signal(Signal::HUP)?;
    logs(&format!("the gateway's user 61234 may change {}", toml.display()))?;
    // Root's own link is followed.
    fs::remove_file(&toml)?;
    let real = config.join("real.toml");
    fs::write(&real, format!("{}[[route]]\nto = \"10.98.0.0/16\"\ntype = \"blackhole\"\n", text("first")))?;
    symlink(&real, &toml)?;
    gateway.signal(Signal::HUP)?;
    logs("x: reloaded")?;
    // Directories that are the user's by now.
    dirs.iter().try_for_each(|dir| give(dir))?;
    let journal = |number: u32| state.join(format!("state.journal-{number}"));
    for number in 0..9 {
        // The gateway's next ones.
        if !journal(number).exists() {
            symlink(&secret, journal(number))?;
        }
    }
    symlink(&secret, guests.join("second"))?;
    let load = scratch.file("load.toml");
    fs::write(&load, text("second"))?;
    let refused = run(&mut command_of(&scratch, &["load", "-c", &load.display().to_string()]));
    let why = refused.err().map(|failed| failed.message().unwrap_or_default().to_owned()).unwrap_or_default();
    assert!(why.contains(&format!("the gateway's user 61234 may change {}", guests.display())), "{why}");
    let refused = run(&mut command_of(&scratch, &["save"]));
    let why = refused.err().map(|failed| failed.message().unwrap_or_default().to_owned()).unwrap_or_default();
    assert!(why.contains(&format!("the gateway's user 61234 may change {}", state.display())), "{why}");
    let shown = run(&mut command_of(&scratch, &["show", "routes"]))?;
    assert!(shown.contains("10.98.0.0/16") && !shown.contains("10.99.0.0/16"), "{shown}");
    gateway.signal(Signal::TERM)?;
    let mut gateway = gateway;
    gateway.wait(PATIENCE)?;
    assert_eq!(fs::read_to_string(&secret)?, "[[route]]\nto = \"10.99.0.0/16\"\ntype = \"blackhole\"\n");
    assert_eq!((of(&fs::metadata(&secret)?), fs::metadata(&secret)?.permissions().mode() & 0o777), (0, 0o600));
    Ok(())
}

/// As [`command`], for the gateway `x`.
fn command_of(scratch: &Scratch, words: &[&str]) -> Command {
    let mut command = command(scratch, words);
    command.args(["--instance", "x"]);
    command
}

fn lines() -> Outcome {
    let (scratch, host) = (Scratch::new()?, Netns::new("x")?);
    for file in ["fatpath", "libfatpath_preload.so"] {
        fs::copy(fatpath().with_file_name(file), scratch.file(file))?;
    }
    let file = scratch.file("x.ip");
    fs::write(
        &file,
        "link add t0 type tun\nlink set t0 up\naddr add 10.1.0.1/24 dev t0\nroute add 10.2.0.0/16 dev t0\n",
    )?;
    let mut command = host.command(scratch.file("fatpath"));
    command.args(["run", "--instance", "x", "--state", "none", "-c"]).arg(&file).args(AS_USER);
    let mut gateway = Process::spawn(command.env("FATPATH_RUNDIR", scratch.path()), &scratch)?;
    system::wait_until("it runs", PATIENCE, || !gateway.is_running() || gateway.output().contains("x: running"))?;
    assert!(gateway.is_running(), "{}", gateway.output());
    let routes = run(&mut command_of(&scratch, &["show", "routes"]))?;
    assert!(routes.contains("10.2.0.0/16"), "{routes}");
    Ok(())
}
