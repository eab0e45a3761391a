//! Restrictions of a gateway's process: no inherited descriptors, no core file, no reading of its memory by its user, a filter
//! of system calls, and few directories.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use libtest_mimic::Trial;
use rustix::process::{Pid, Signal, kill_process};
use system::{
    Gateway, Need, Netns, Outcome, Process, Scratch, change_user, fatpath, have_several_workers, run, trial,
    wait_until, with_workers,
};

const NEEDS: &[Need] = &[Need::Namespaces];

const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("confine/inherited_descriptors_are_closed_but_a_managers", NEEDS, descriptors),
        trial("confine/crash_leaves_no_core_file", NEEDS, core_file),
        trial("confine/ready_gateway_has_its_filter_on_all_threads", &[Need::Namespaces, Need::Tun], filter),
        trial("confine/openers_alone_have_capabilities", &[Need::Namespaces, Need::Tun], capabilities),
        trial("confine/links_change_without_capabilities", &[Need::Namespaces, Need::Tun], changes),
        trial("confine/interface_links_change_without_capabilities", NEEDS, interfaces),
        trial("confine/openers_end_with_a_killed_gateway", &[Need::Namespaces, Need::Tun], killed),
        trial("confine/gateway_ends_with_its_opener_of_links", &[Need::Namespaces, Need::Tun], opener_ends),
        trial("confine/link_of_another_kind_is_refused_by_name", &[Need::Namespaces, Need::Tun], other_kind),
        trial("confine/added_kind_takes_a_client_or_the_file", &[Need::Namespaces, Need::Tun], added_kind),
        trial("confine/relative_paths_of_file_and_sockets_are_evidence", &[Need::Namespaces, Need::Tun], relative),
        trial("confine/no_sandbox_leaves_restrictions_out_and_says_so", NEEDS, no_sandbox),
        trial("confine/wrong_value_of_the_variable_is_refused", NEEDS, wrong_value),
        trial("confine/file_elsewhere_is_loaded_by_descriptor", NEEDS, file_elsewhere),
        trial("confine/socket_of_a_guest_elsewhere_is_refused_by_name", NEEDS, guest_elsewhere),
        trial("confine/back_end_is_one_of_the_start_file", &[Need::Namespaces, Need::Tun], back_end),
        trial("confine/openers_outlive_signals", &[Need::Namespaces, Need::Tun], signals),
    ]
}

/// A gateway that a shell starts after `script`, in the directory of `scratch`.
fn gateway(scratch: &Scratch, host: &Netns, script: &str) -> Outcome<Gateway> {
    gateway_with(scratch, host, script, "", "")
}

/// As [`gateway`], with options of `fatpath run` and a file.
fn gateway_with(scratch: &Scratch, host: &Netns, script: &str, options: &str, toml: &str) -> Outcome<Gateway> {
    let mut command = host.command("bash");
    let script = format!("{script}; exec \"$@\" {options}");
    command.args(["-c", &script, "bash"]).arg(fatpath()).current_dir(scratch.path());
    Gateway::start_under(command, scratch, "x", toml)
}

/// Values of a field of `/proc/PID/status` for all threads of a process.
fn of_threads(pid: u32, field: &str) -> Outcome<Vec<String>> {
    let mut values = Vec::new();
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread may have ended.
        let Ok(status) = fs::read_to_string(thread?.path().join("status")) else { continue };
        let value = status.lines().find_map(|line| line.strip_prefix(field)).ok_or("no such field")?;
        values.push(value.trim().to_owned());
    }
    Ok(values)
}

fn descriptors() -> Outcome {
    let (scratch, host) = (Scratch::new()?, Netns::new("x")?);
    let kept = scratch.file("kept");
    fs::write(&kept, "")?;
    fs::write(scratch.file("closed"), "")?;
    let inherited = |gateway: &Gateway| {
        let open = fs::read_dir(format!("/proc/{}/fd", gateway.id()))?.filter_map(Result::ok);
        let files = open.filter_map(|fd| fs::read_link(fd.path()).ok()).filter_map(|path| {
            let name = path.file_name()?.to_str()?.to_owned();
            (name == "kept" || name == "closed").then_some(name)
        });
        Outcome::Ok(files.collect::<Vec<_>>())
    };
    let plain = gateway(&scratch, &host, "exec 3<kept 4<closed 77<closed")?;
    assert!(inherited(&plain)?.is_empty(), "{:?}", inherited(&plain)?);
    drop(plain);
    let by_manager = "export LISTEN_PID=$$ LISTEN_FDS=1; exec 3<kept 4<closed 77<closed";
    let managed = gateway(&scratch, &host, by_manager)?;
    assert_eq!(inherited(&managed)?, ["kept"]);
    assert_eq!(fs::read_link(format!("/proc/{}/fd/3", managed.id()))?, kept);
    Ok(())
}

fn core_file() -> Outcome {
    let (scratch, host) = (Scratch::new()?, Netns::new("x")?);
    let mut gateway = gateway(&scratch, &host, "ulimit -c unlimited")?;
    let limits = fs::read_to_string(format!("/proc/{}/limits", gateway.id()))?;
    let limit = limits.lines().find_map(|line| line.strip_prefix("Max core file size")).ok_or("no such limit")?;
    assert_eq!(limit.split_whitespace().take(2).collect::<Vec<_>>(), ["0", "0"], "{limits}");
    let pid = Pid::from_raw(gateway.id() as i32).ok_or("no process number")?;
    kill_process(pid, Signal::ABORT)?;
    gateway.wait_until("it ends", |gateway| gateway.show("links").is_err())?;
    drop(gateway);
    let files: Vec<_> = fs::read_dir(scratch.path())?.filter_map(Result::ok).map(|file| file.file_name()).collect();
    assert!(!files.iter().any(|name| name.to_string_lossy().starts_with("core")), "{files:?}");
    // The shell's limit lets other programs leave one, where the kernel writes files.
    let pattern = fs::read_to_string("/proc/sys/kernel/core_pattern")?;
    if pattern.trim() == "core" {
        let script = "ulimit -c unlimited; sh -c 'kill -ABRT $$'; ls";
        let output = Command::new("bash").args(["-c", script]).current_dir(scratch.path()).output()?;
        assert!(String::from_utf8_lossy(&output.stdout).contains("core"), "{output:?}");
    }
    Ok(())
}

/// Comment by which the gateway has the kinds of its file alone.
const NONE: &str = "# allow-links none\n";

const UDP: &str = "[[link]]\nname = \"u\"\nkind = \"udp\"\nbind = \"127.0.0.1:4500\"\n";

const TUN: &str = "[[link]]\nname = \"t0\"\nkind = \"tun\"\n";

fn of_user(user: &str, host: &Netns, scratch: &Scratch, toml: &str) -> Outcome<Gateway> {
    let mut command = host.command(fatpath());
    change_user(&mut command, user);
    Gateway::start_under(command, scratch, "x", toml)
}

fn filter() -> Outcome {
    let (scratch, host) = (Scratch::new()?, Netns::new("x")?);
    let toml = format!("{NONE}{TUN}[crypto]\nworkers = 1\n");
    let gateway = of_user("root", &host, &scratch, &toml)?;
    for (field, want) in [("Seccomp:", "2"), ("NoNewPrivs:", "1")] {
        let values = of_threads(gateway.id(), field)?;
        assert!(values.len() > 4 && values.iter().all(|value| value == want), "{field} {values:?}");
    }
    let shown = gateway.show("sandbox")?;
    let first = shown.lines().next().unwrap_or_default();
    assert!(first.starts_with("sandbox landlock "), "{shown}");
    assert!(first.ends_with(", seccomp, no_new_privs, no capabilities"), "{shown}");
    let rundir = scratch.path().display();
    assert!(shown.contains(&format!("write {rundir} by its opener\n")) && !shown.contains("missing"), "{shown}");
    assert!(gateway.log().contains("x: sandbox: landlock "), "{}", gateway.log());
    assert!(gateway.log().contains(", no_new_privs, no capabilities\n"), "{}", gateway.log());
    let state: serde_json::Value = serde_json::from_str(&gateway.show("--json sandbox")?)?;
    assert!(state["enabled"] == true && state["threads"] == state["filtered"], "{state}");
    Ok(())
}

/// A link of a kind that the start did not have: a program adds it, or the file of the start has it.
fn added_kind() -> Outcome {
    let (scratch, host) = (Scratch::new()?, Netns::new("x")?);
    let tap = |name: &str| format!("[[link]]\nname = \"{name}\"\nkind = \"tap\"\n");
    let mut gateway = Gateway::start(&host, &scratch, "x", &format!("# allow-links tap\n{TUN}"))?;
    ip(&scratch, "link add tap1 type tap")?;
    ip(&scratch, "link set tap1 up")?;
    // The link's device is another one, which no client opens.
    let first = host.sh("cat /sys/class/net/tap1/ifindex")?;
    // A gateway of several workers opens as many queues.
    let queues = if have_several_workers() { "multi_queue" } else { "" };
    host.sh(&format!("ip link del tap1; ip tuntap add tap1 mode tap {queues}"))?;
    gateway.wait_until("the device is opened again", |_| {
        host.sh("cat /sys/class/net/tap1/carrier; cat /sys/class/net/tap1/ifindex")
            .is_ok_and(|text| !text.contains(&first))
    })?;
    gateway.reload(&format!("{TUN}{}", tap("tap2")))?;
    gateway.wait_until("the link of the file is added", |gateway| gateway.link("tap2").is_ok())?;
    // A file of a client, by the client's right; later changes of it are those of any user, and the gateway does not read it.
    let other = scratch.file("other.toml");
    let load = || {
        run(Command::new(fatpath()).args(["-i", "x", "load", "-c"]).arg(&other).env("FATPATH_RUNDIR", scratch.path()))
    };
    fs::write(&other, with_workers(&format!("{TUN}{}", tap("tap3"))))?;
    load()?;
    assert!(gateway.link("tap3").is_ok() && gateway.link("tap2").is_err());
    fs::write(&other, with_workers(&format!("{TUN}{}{}", tap("tap3"), tap("tap4"))))?;
    kill_process(Pid::from_raw(gateway.id().try_into()?).ok_or("no process number")?, Signal::HUP)?;
    let why = "lets this gateway read ";
    gateway.wait_until("the reload is refused", |gateway| gateway.log().contains(why))?;
    assert!(gateway.link("tap3").is_ok() && gateway.link("tap4").is_err());
    load()?;
    gateway.link("tap4").map(drop)
}

/// File and sockets that the start names by relative paths, and by a symbolic link.
fn relative() -> Outcome {
    for user in ["root", "61234"] {
        let (scratch, host) = (Scratch::new()?, Netns::new("x")?);
        let config = scratch.config("x.toml")?;
        fs::write(&config, TUN)?;
        let dir = config.parent().ok_or("no directory")?;
        symlink(scratch.path(), dir.join("run"))?;
        let mut command = host.command(fatpath());
        command.args(["run", "--instance", "x", "--state", "none", "--allow-links", "tap", "--user", user]);
        command.args(["-c", "x.toml"]).current_dir(dir).env("FATPATH_RUNDIR", "run");
        let process = Process::spawn(&mut command, &scratch)?;
        let ip = |line: &str| {
            let mut command = Command::new(fatpath());
            command.args(["-i", "x", "ip"]).args(line.split(' ')).env("FATPATH_RUNDIR", scratch.path());
            run(&mut command)
        };
        let waits = |what: &str, line: &str| wait_until(what, PATIENCE, || ip(line).is_ok());
        let found = waits("it runs", "link show t0").and_then(|()| {
            ip("link add tap1 type tap")?;
            fs::write(&config, format!("{TUN}[[link]]\nname = \"tap2\"\nkind = \"tap\"\n"))?;
            process.signal(Signal::HUP)?;
            waits("the link of the file is added", "link show tap2")
        });
        found.map_err(|failed| format!("{user}: {}{}", failed.message().unwrap_or_default(), process.output()))?;
    }
    Ok(())
}

/// A back end that a reload adds: one of the start's file, and another one.
fn back_end() -> Outcome {
    let (scratch, elsewhere, host) = (Scratch::new()?, Scratch::new()?, Netns::new("x")?);
    let link =
        |socket: &Path| format!("[[link]]\nname = \"g0\"\nkind = \"virtio-user\"\nsocket = \"{}\"\n", socket.display());
    let mut gateway = Gateway::start(&host, &scratch, "x", TUN)?;
    let (first, second) = (elsewhere.file("first"), elsewhere.file("second"));
    let listener = UnixListener::bind(&first)?;
    symlink(&first, elsewhere.file("link"))?;
    listener.set_nonblocking(true)?;
    gateway.reload(&format!("{TUN}{}", link(&elsewhere.file("link"))))?;
    gateway.wait_until("the gateway connects", |_| listener.accept().is_ok())?;
    // A file of a client names none.
    let other = scratch.file("other.toml");
    fs::write(&other, with_workers(&format!("{TUN}{}", link(&second))))?;
    let mut load = Command::new(fatpath());
    load.args(["-i", "x", "load", "-c"]).arg(&other).env("FATPATH_RUNDIR", scratch.path());
    let refused = run(&mut load).err().and_then(|failed| failed.message().map(str::to_owned)).unwrap_or_default();
    assert!(refused.contains("connect to back ends of the file of its start alone: restart it"), "{refused}");
    Ok(())
}

fn no_sandbox() -> Outcome {
    let (scratch, host) = (Scratch::new()?, Netns::new("x")?);
    let gateway = gateway_with(&scratch, &host, "ulimit -c unlimited", "--no-sandbox", "")?;
    assert!(of_threads(gateway.id(), "Seccomp:")?.iter().all(|value| value == "0"));
    let shown = gateway.show("sandbox")?;
    assert!(shown.starts_with("sandbox off, ") && shown.contains(" filtered 0\n"), "{shown}");
    assert!(gateway.log().contains("x: no sandbox (--no-sandbox): "), "{}", gateway.log());
    let limits = fs::read_to_string(format!("/proc/{}/limits", gateway.id()))?;
    let limit = limits.lines().find(|line| line.starts_with("Max core file size")).ok_or("no such limit")?;
    assert!(limit.contains("unlimited"), "{limit}");
    Ok(())
}

fn wrong_value() -> Outcome {
    let (scratch, host) = (Scratch::new()?, Netns::new("x")?);
    let Err(failed) = gateway(&scratch, &host, "export FATPATH_SANDBOX=off") else {
        return Err("the gateway runs".into());
    };
    let log = failed.message().unwrap_or_default().to_owned();
    assert!(log.contains("Error: FATPATH_SANDBOX=off: the only value is trap."), "{log}");
    Ok(())
}

fn file_elsewhere() -> Outcome {
    let (scratch, elsewhere, host) = (Scratch::new()?, Scratch::new()?, Netns::new("x")?);
    let mut gateway = gateway(&scratch, &host, "true")?;
    let file = elsewhere.file("other.toml");
    fs::write(&file, with_workers("[[route]]\nto = \"10.9.0.0/16\"\ntype = \"blackhole\"\n"))?;
    let mut load = Command::new(fatpath());
    load.args(["load", "--instance", "x", "-c"]).arg(&file).env("FATPATH_RUNDIR", scratch.path());
    run(&mut load)?;
    assert!(gateway.show("routes")?.contains("10.9.0.0/16"));
    // A reload opens the file itself.
    let pid = Pid::from_raw(gateway.id() as i32).ok_or("no process number")?;
    kill_process(pid, Signal::HUP)?;
    let (name, own) = (file.display().to_string(), scratch.config("x.toml")?.display().to_string());
    let hint = format!("the sandbox lets this gateway read {own} alone: `fatpath load -c FILE` passes it another file");
    gateway.wait_until("the reload is refused by name", |gateway| {
        let log = gateway.log();
        log.lines().any(|line| {
            line.contains("not reloaded, nothing has changed") && line.contains(&name) && line.contains(&hint)
        })
    })?;
    assert!(gateway.show("routes")?.contains("10.9.0.0/16"));
    Ok(())
}

fn guest_elsewhere() -> Outcome {
    let (scratch, elsewhere, host) = (Scratch::new()?, Scratch::new()?, Netns::new("x")?);
    let mut gateway = gateway(&scratch, &host, "true")?;
    let link = |dir: &Scratch| {
        let socket = dir.file("guest.sock");
        format!("[[link]]\nname = \"g0\"\nkind = \"vhost-user\"\nsocket = \"{}\"\n", socket.display())
    };
    gateway.reload(&link(&elsewhere))?;
    let hint = format!("the sandbox lets this gateway make sockets in {} alone", scratch.path().display());
    gateway.wait_until("the link is refused by name", |gateway| gateway.log().contains(&hint))?;
    assert!(gateway.show("links")?.lines().all(|line| !line.contains("g0")));
    gateway.reload(&link(&scratch))?;
    gateway.wait_until("the link is there", |gateway| gateway.link("g0").is_ok())
}

/// Openers of a gateway, each with the argument that names its work.
fn openers(gateway: &Gateway) -> Outcome<Vec<(String, Pid)>> {
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", gateway.id()))?;
    let mut openers = Vec::new();
    for child in children.split_whitespace() {
        let words = String::from_utf8(fs::read(format!("/proc/{child}/cmdline"))?)?;
        let mut words = words.split('\0').skip(1);
        assert_eq!(words.next(), Some("opener"), "{child}");
        let pid = Pid::from_raw(child.parse()?).ok_or("no process number")?;
        openers.push((words.next().ok_or("no work")?.to_owned(), pid));
    }
    Ok(openers)
}

fn signals() -> Outcome {
    let (scratch, host) = (Scratch::new()?, Netns::new("x")?);
    let mut gateway = Gateway::start(&host, &scratch, "x", TUN)?;
    let openers = openers(&gateway)?;
    let names: Vec<&str> = openers.iter().map(|(name, _)| name.as_str()).collect();
    assert!(names.len() == 2 && names.contains(&"links") && names.contains(&"host-side"), "{names:?}");
    // A service manager sends these to all processes of a unit.
    for &(_, opener) in &openers {
        for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
            kill_process(opener, signal)?;
        }
    }
    gateway.reload(&format!("{TUN}{}", TUN.replace("t0", "t1")))?;
    gateway.wait_until("the new link has a device of the host side", |gateway| {
        gateway.show("host").is_ok_and(|shown| shown.contains("t1"))
    })?;
    assert!(gateway.terminate()?.success());
    for (name, opener) in openers {
        end_of(&name, opener)?;
    }
    assert!(!scratch.file("x.netns").exists());
    Ok(())
}

/// Waits for the end of an opener.
fn end_of(name: &str, opener: Pid) -> Outcome {
    let what = format!("the opener of {name} ends");
    system::wait_until(&what, std::time::Duration::from_secs(5), || kill_process(opener, Signal::CONT).is_err())
}

fn killed() -> Outcome {
    let (scratch, host) = (Scratch::new()?, Netns::new("x")?);
    let mut gateway = Gateway::start(&host, &scratch, "x", TUN)?;
    let openers = openers(&gateway)?;
    assert_eq!(openers.len(), 2);
    gateway.kill()?;
    openers.into_iter().try_for_each(|(name, opener)| end_of(&name, opener))
}

/// Numbers of capabilities (capabilities(7)).
const NET_BIND_SERVICE: u64 = 1 << 10;
const NET_ADMIN: u64 = 1 << 12;
const NET_RAW: u64 = 1 << 13;
const IPC_LOCK: u64 = 1 << 14;
const SYS_PTRACE: u64 = 1 << 19;
const SYS_ADMIN: u64 = 1 << 21;
const SYS_RESOURCE: u64 = 1 << 24;
const SETFCAP: u64 = 1 << 31;
const BPF: u64 = 1 << 39;

/// Checks that no thread of a gateway has a capability, or can get one. A gateway `of_xdp` links has `CAP_IPC_LOCK` where a
/// process may not raise `RLIMIT_MEMLOCK`.
fn has_none(gateway: &Gateway, of_xdp: bool) -> Outcome {
    let own = of_threads(std::process::id(), "CapEff:")?;
    let may_raise = u64::from_str_radix(own.first().ok_or("no thread")?, 16)? & SYS_RESOURCE != 0;
    for field in ["CapEff:", "CapPrm:", "CapInh:", "CapBnd:", "CapAmb:"] {
        let values = of_threads(gateway.id(), field)?;
        let most = if of_xdp && !may_raise && ["CapEff:", "CapPrm:"].contains(&field) { IPC_LOCK } else { 0 };
        assert!(values.iter().all(|value| u64::from_str_radix(value, 16) == Ok(most)), "{field} {values:?}");
    }
    Ok(())
}

fn capabilities() -> Outcome {
    let (scratch, host) = (Scratch::new()?, Netns::new("x")?);
    host.sh("ip link add name va type veth peer name vb && ip link set va up && ip link set vb up")?;
    let packet = |key: &str| format!("[[link]]\nname = \"p\"\nkind = \"packet\"\ninterface = \"va\"\n{key}");
    let off = "[host]\nside = \"off\"\n";
    let host_side = SYS_ADMIN | NET_ADMIN | NET_RAW | SYS_PTRACE | SETFCAP;
    let cases = [
        (format!("{NONE}{TUN}"), Some(NET_ADMIN), true),
        (format!("{NONE}{off}"), None, false),
        (format!("{NONE}{off}{}", packet("")), Some(NET_RAW), false),
        (format!("{NONE}{TUN}{}", packet("")), Some(NET_ADMIN | NET_RAW), true),
        (format!("{NONE}{}", packet("exclusive = true\n")), Some(NET_ADMIN | NET_RAW | BPF), true),
        (format!("# allow-links packet\n{off}"), Some(NET_RAW), false),
        (format!("{NONE}{off}{}", UDP.replace("4500", "53")), Some(NET_BIND_SERVICE), false),
    ];
    for (user, (toml, of_links, has_host_side)) in
        ["root", "61234"].into_iter().flat_map(|user| cases.iter().map(move |case| (user, case)))
    {
        // An opener without a capability works with the files.
        let of_links = of_links.or((user != "root").then_some(0));
        let gateway = of_user(user, &host, &scratch, toml)?;
        has_none(&gateway, false)?;
        let mut held = [None; 2];
        for (name, opener) in openers(&gateway)? {
            let sets = ["CapEff:", "CapPrm:", "CapBnd:"].map(|field| {
                let values = of_threads(opener.as_raw_nonzero().get().unsigned_abs(), field)?;
                Outcome::Ok(values.iter().map(|value| u64::from_str_radix(value, 16)).collect::<Result<Vec<_>, _>>()?)
            });
            let [effective, permitted, bounding] = sets;
            let effective = effective?;
            assert_eq!((&effective, &effective), (&permitted?, &bounding?), "{name} {toml}");
            for (field, want) in [("NoNewPrivs:", "1"), ("Seccomp:", "2")] {
                assert_eq!(of_threads(opener.as_raw_nonzero().get().unsigned_abs(), field)?, [want], "{name}");
            }
            held[usize::from(name == "host-side")] = effective.first().copied();
        }
        assert_eq!(held, [of_links, has_host_side.then_some(host_side)], "{user} {toml}");
        assert!(!gateway.log().contains("could not raise the priority"), "{}", gateway.log());
    }
    Ok(())
}

/// Runs `ip` on the gateway.
fn ip(scratch: &Scratch, line: &str) -> Outcome<String> {
    let mut command = Command::new(fatpath());
    command.args(["-i", "x", "ip"]).args(line.split(' ')).env("FATPATH_RUNDIR", scratch.path());
    run(&mut command)
}

fn changes() -> Outcome {
    let (scratch, host) = (Scratch::new()?, Netns::new("x")?);
    host.sh("ip link set lo up")?;
    let device = "device = { addresses = [\"10.1.0.1/24\"], routes = [\"10.2.0.0/24\"] }\n";
    let toml = format!("{NONE}{TUN}{device}{UDP}");
    let mut gateway = Gateway::start(&host, &scratch, "x", &toml)?;
    has_none(&gateway, false)?;
    // Port 500 is that of key managers on the host side.
    gateway.wait_until("port 500 is bound", |_| {
        host.sh("ss -Hlun").is_ok_and(|sockets| sockets.contains("127.0.0.1:500 "))
    })?;
    for mtu in [1300, 1400] {
        ip(&scratch, &format!("link set t0 mtu {mtu}"))?;
        assert!(host.sh("ip link show t0")?.contains(&format!(" mtu {mtu} ")));
    }
    let refused = ip(&scratch, "link set t0 mtu 10").err().map(|failed| failed.message().unwrap_or("").to_owned());
    assert!(refused.is_some());
    assert!(host.sh("ip link show t0")?.contains(" mtu 1400 "));
    for state in ["down", "up"] {
        ip(&scratch, &format!("link set t0 {state}"))?;
    }
    assert!(host.sh("ip addr show t0")?.contains("inet 10.1.0.1/24 "));
    let walls = |route: &str| host.sh("ip route show proto 104").is_ok_and(|walls| walls.contains(route));
    assert!(host.sh("ip route show proto 103")?.contains("10.2.0.0/24 dev t0 "));
    gateway.wait_until("routes have walls", |_| walls("blackhole 10.1.0.0/24 ") && walls("blackhole 10.2.0.0/24 "))?;
    host.sh("ip route add 10.3.0.0/24 dev t0")?;
    gateway.wait_until("a new route has a wall", |_| walls("blackhole 10.3.0.0/24 "))?;
    let other = device.replace("10.1.0.1", "10.1.0.9").replace("10.2.0.0", "10.4.0.0");
    gateway.reload(&format!("{TUN}{other}{UDP}{}", TUN.replace("t0", "t1")))?;
    gateway.wait_until("the reload is applied", |gateway| gateway.link("t1").is_ok())?;
    let addresses = host.sh("ip addr show t0")?;
    assert!(addresses.contains("inet 10.1.0.9/24 ") && !addresses.contains("10.1.0.1/24"), "{addresses}");
    assert_eq!(host.sh("ip route show proto 103")?.trim(), "10.4.0.0/24 dev t0 scope link");
    assert!(host.sh("ip link show t1")?.contains("alias fatpath x"));
    host.sh("ip link del t1; ip tuntap add dev t1 mode tun")?;
    gateway
        .wait_until("the device is opened again", |gateway| gateway.log().contains("t1: its device was made again"))?;
    // A reload that changes routes alone: the opener makes walls and routes by one socket.
    for (routes, want) in [("\"10.4.0.0/24\", \"10.5.0.0/24\"", true), ("\"10.4.0.0/24\"", false)] {
        let changed = other.replace("\"10.4.0.0/24\"", routes);
        gateway.reload(&format!("{TUN}{changed}{UDP}{}", TUN.replace("t0", "t1")))?;
        gateway.wait_until("walls follow a reload", |_| {
            walls("blackhole 10.4.0.0/24 ") && walls("blackhole 10.5.0.0/24 ") == want
        })?;
    }
    // Addresses, routes and rules of the host side.
    ip(&scratch, "addr add 10.8.0.1/24 dev t0")?;
    ip(&scratch, "route add 10.9.0.0/16 dev t0")?;
    let shown = gateway.show("host")?;
    assert!(!shown.contains("refused"), "{shown}");
    ip(&scratch, "addr del 10.8.0.1/24 dev t0")?;
    has_none(&gateway, false)?;
    assert!(!gateway.log().contains("not permitted"), "{}", gateway.log());
    Ok(())
}

/// A gateway does not run on without what keeps its routes' walls and opens its links.
fn opener_ends() -> Outcome {
    let (scratch, host) = (Scratch::new()?, Netns::new("x")?);
    for name in ["host-side", "links"] {
        let mut gateway = Gateway::start(&host, &scratch, "x", &format!("{NONE}{TUN}"))?;
        let opener = openers(&gateway)?.into_iter().find(|(of, _)| of == name).ok_or("no such opener")?.1;
        kill_process(opener, Signal::KILL)?;
        if name == "links" {
            gateway.wait_until("the gateway has ended", |gateway| {
                gateway.log().contains("the opener of links has ended") && gateway.link("t0").is_err()
            })?;
        } else {
            gateway.wait_until("the end is logged", |gateway| gateway.log().contains("its opener has ended"))?;
            assert!(gateway.link("t0").is_ok());
        }
    }
    Ok(())
}

fn interfaces() -> Outcome {
    let (scratch, host) = (Scratch::new()?, Netns::new("x")?);
    host.sh("ip link add name va type veth peer name vb && ip link set va up && ip link set vb up
        ip link add name mv link vb type macvlan mode bridge && ip link set mv up")?;
    let link = |name: &str, interface: &str, rest: &str| {
        format!("[[link]]\nname = \"{name}\"\ninterface = \"{interface}\"\n{rest}\n")
    };
    let first = link("p", "va", "kind = \"packet\"");
    let mut gateway = Gateway::start(&host, &scratch, "x", &first)?;
    ip(&scratch, "link set p address 02:00:00:00:00:77")?;
    assert!(host.sh("ip link show va")?.contains("link/ether 02:00:00:00:00:77 "));
    let exclusive = link("m", "mv", "kind = \"packet\"\nexclusive = true");
    gateway.reload(&format!("{first}{exclusive}"))?;
    gateway.wait_until("the exclusive link is added", |gateway| gateway.link("m").is_ok())?;
    gateway.reload(&link("p", "va", "kind = \"xdp\""))?;
    gateway.wait_until("the link is one of AF_XDP", |gateway| {
        gateway.link("p").is_ok_and(|link| link["kind"] == "xdp") && gateway.link("m").is_err()
    })?;
    ip(&scratch, "link set p address 02:00:00:00:00:78")?;
    assert!(host.sh("ip -d link show va")?.contains("link/ether 02:00:00:00:00:78 "));
    assert!(host.sh("ip -d link show va")?.contains("xdp"));
    has_none(&gateway, true)?;
    assert!(gateway.terminate()?.success());
    system::wait_until("the program is detached", std::time::Duration::from_secs(5), || {
        host.sh("ip -d link show va").is_ok_and(|shown| !shown.contains("prog/xdp"))
    })
}

fn other_kind() -> Outcome {
    let (scratch, host) = (Scratch::new()?, Netns::new("x")?);
    host.sh("ip link add name va type veth peer name vb && ip link set va up && ip link set vb up")?;
    let packet = "[[link]]\nname = \"p\"\nkind = \"packet\"\ninterface = \"va\"\n";
    let why =
        "packet is none of the kinds that this gateway may open since its start; start it with --allow-links packet";
    let mut gateway = Gateway::start(&host, &scratch, "x", &format!("{NONE}{TUN}"))?;
    gateway.reload(&format!("{TUN}{packet}"))?;
    gateway.wait_until("the reload is refused", |gateway| gateway.log().contains(why))?;
    assert!(gateway.link("p").is_err() && gateway.link("t0").is_ok());
    // Links of a kind of the file, and of kinds without privilege, can be added.
    gateway.reload(&format!("{TUN}{}{UDP}", TUN.replace("t0", "t1")))?;
    gateway.wait_until("the links are added", |gateway| gateway.link("t1").is_ok() && gateway.link("u").is_ok())?;
    drop(gateway);
    let mut allowing = Gateway::start(&host, &scratch, "x", &format!("# allow-links packet\n{TUN}"))?;
    allowing.reload(&format!("{TUN}{packet}"))?;
    allowing.wait_until("the link is added", |gateway| gateway.link("p").is_ok())
}
