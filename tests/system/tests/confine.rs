//! Restrictions of a gateway's process: no inherited descriptors, no core file, no reading of its memory by its user, a filter
//! of system calls, and few directories.

use std::fs;
use std::process::Command;

use libtest_mimic::Trial;
use rustix::process::{Pid, Signal, kill_process};
use system::{Gateway, Need, Netns, Outcome, Scratch, fatpath, run, trial};

const NEEDS: &[Need] = &[Need::Namespaces];

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("confine/inherited_descriptors_are_closed_but_a_managers", NEEDS, descriptors),
        trial("confine/crash_leaves_no_core_file", NEEDS, core_file),
        trial("confine/ready_gateway_has_its_filter_on_all_threads", &[Need::Namespaces, Need::Tun], filter),
        trial("confine/gateway_keeps_the_capabilities_of_its_kinds", &[Need::Namespaces, Need::Tun], capabilities),
        trial("confine/link_of_another_kind_is_refused_by_name", &[Need::Namespaces, Need::Tun], other_kind),
        trial("confine/no_sandbox_leaves_restrictions_out_and_says_so", NEEDS, no_sandbox),
        trial("confine/wrong_value_of_the_variable_is_refused", NEEDS, wrong_value),
        trial("confine/file_elsewhere_is_loaded_by_descriptor", NEEDS, file_elsewhere),
        trial("confine/socket_of_a_guest_elsewhere_is_refused_by_name", NEEDS, guest_elsewhere),
        trial("confine/process_of_the_host_side_outlives_signals", &[Need::Namespaces, Need::Tun], host_process),
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

fn filter() -> Outcome {
    let (scratch, host) = (Scratch::new()?, Netns::new("x")?);
    let toml = format!("{TUN}[crypto]\nworkers = 1\n");
    let gateway = Gateway::start(&host, &scratch, "x", &toml)?;
    for (field, want) in [("Seccomp:", "2"), ("NoNewPrivs:", "1")] {
        let values = of_threads(gateway.id(), field)?;
        assert!(values.len() > 4 && values.iter().all(|value| value == want), "{field} {values:?}");
    }
    let shown = gateway.show("sandbox")?;
    let first = shown.lines().next().unwrap_or_default();
    assert!(first.starts_with("sandbox landlock ") && first.contains(", seccomp, no_new_privs, "), "{shown}");
    let rundir = scratch.path().display();
    assert!(shown.contains(&format!("write {rundir}\n")) && !shown.contains("missing"), "{shown}");
    assert!(gateway.log().contains("x: sandbox: landlock "), "{}", gateway.log());
    let state: serde_json::Value = serde_json::from_str(&gateway.show("--json sandbox")?)?;
    assert!(state["enabled"] == true && state["threads"] == state["filtered"], "{state}");
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
    fs::write(&file, system::with_workers("[[route]]\nto = \"10.9.0.0/16\"\ntype = \"blackhole\"\n"))?;
    let mut load = Command::new(fatpath());
    load.args(["load", "--instance", "x", "-c"]).arg(&file).env("FATPATH_RUNDIR", scratch.path());
    run(&mut load)?;
    assert!(gateway.show("routes")?.contains("10.9.0.0/16"));
    // A reload opens the file itself.
    let pid = Pid::from_raw(gateway.id() as i32).ok_or("no process number")?;
    kill_process(pid, Signal::HUP)?;
    let (name, own) = (file.display().to_string(), scratch.path().display().to_string());
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

fn host_process() -> Outcome {
    let (scratch, host) = (Scratch::new()?, Netns::new("x")?);
    let mut gateway = Gateway::start(&host, &scratch, "x", TUN)?;
    let children = format!("/proc/{0}/task/{0}/children", gateway.id());
    let children = fs::read_to_string(children)?;
    let child: i32 = children.split_whitespace().next().ok_or("no process of the host side")?.parse()?;
    let child = Pid::from_raw(child).ok_or("no process number")?;
    let name = fs::read(format!("/proc/{}/cmdline", child.as_raw_nonzero()))?;
    assert!(String::from_utf8_lossy(&name).contains("host-maker"), "{name:?}");
    // A service manager sends these to all processes of a unit.
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        kill_process(child, signal)?;
    }
    gateway.reload(&format!("{TUN}{}", TUN.replace("t0", "t1")))?;
    gateway.wait_until("the new link has a device of the host side", |gateway| {
        gateway.show("host").is_ok_and(|shown| shown.contains("t1"))
    })?;
    assert!(gateway.terminate()?.success());
    system::wait_until("the process of the host side ends", std::time::Duration::from_secs(5), || {
        kill_process(child, Signal::CONT).is_err()
    })?;
    assert!(!scratch.file("x.netns").exists());
    Ok(())
}

fn capabilities() -> Outcome {
    const NET_ADMIN: u64 = 1 << 12;
    const NET_RAW: u64 = 1 << 13;
    const NET_BIND_SERVICE: u64 = 1 << 10;
    const BPF: u64 = 1 << 39;
    let (scratch, host) = (Scratch::new()?, Netns::new("x")?);
    host.sh("ip link add name va type veth peer name vb && ip link set va up && ip link set vb up")?;
    let packet = |key: &str| format!("[[link]]\nname = \"p\"\nkind = \"packet\"\ninterface = \"va\"\n{key}");
    let off = "[host]\nside = \"off\"\n";
    for (toml, want) in [
        (format!("{NONE}{TUN}"), NET_ADMIN),
        (format!("{NONE}{off}"), 0),
        (format!("{NONE}{off}{}", packet("")), NET_RAW),
        (format!("{NONE}{TUN}{}", packet("")), NET_ADMIN | NET_RAW),
        (format!("{NONE}{}", packet("exclusive = true\n")), NET_ADMIN | NET_RAW | BPF),
        (format!("# allow-links packet\n{off}"), NET_RAW),
        (format!("{NONE}{off}{UDP}"), NET_BIND_SERVICE),
    ] {
        let gateway = Gateway::start(&host, &scratch, "x", &toml)?;
        for field in ["CapEff:", "CapPrm:"] {
            let values = of_threads(gateway.id(), field)?;
            assert!(values.iter().all(|value| u64::from_str_radix(value, 16) == Ok(want)), "{field} {values:?} {toml}");
        }
        assert!(!gateway.log().contains("could not raise the priority"), "{}", gateway.log());
    }
    Ok(())
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
