//! The program under a service manager: the unit in `examples/systemd`, and the notifications.

use std::fs;
use std::io::{ErrorKind, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::time::Duration;

use libtest_mimic::Trial;
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::process::Signal;
use system::{
    Gateway, Need, Netns, Outcome, Process, Scratch, add_user, fatpath, notify_socket, run, trial, unpacked, wait_until,
};

const UNIT: &str = include_str!("../../../examples/systemd/fatpath@.service");
const PAIR_UNIT: &str = include_str!("../../../examples/systemd/fatpath-pair@.service");
const METRICS_UNIT: &str = include_str!("../../../examples/systemd/fatpath-metrics.service");
const WEB_UNIT: &str = include_str!("../../../examples/systemd/fatpath-web.service");
const FLEET_UNIT: &str = include_str!("../../../examples/systemd/fatpath-fleet@.service");
const CHARON_UNIT: &str = include_str!("../../../examples/systemd/fatpath-charon@.service");

const PATIENCE: Duration = Duration::from_secs(20);

/// A link that needs no more privileges than the unit leaves.
const FILE: &str = "# allow-links none\n[[link]]\nname = \"tun7\"\nkind = \"tun\"\naddresses = [\"10.7.0.1/24\"]\n";

pub(crate) fn trials() -> Vec<Trial> {
    const NEEDS: &[Need] = &[Need::Namespaces, Need::Tun];
    vec![
        trial("service/the_unit_is_one_that_systemd_accepts", &[Need::SYSTEMD_ANALYZE], the_unit_is_accepted),
        trial(
            "service/the_unit_of_strongswan_is_one_that_systemd_accepts",
            &[
                Need::SYSTEMD_ANALYZE,
                Need::CHARON,
                Need::SWANCTL,
                Need::Unpacked { path: "usr/sbin/charon-systemd", package: "charon-systemd" },
            ],
            the_unit_of_strongswan_is_accepted,
        ),
        trial("service/exposure_of_units_is_not_above_the_recorded_one", &[Need::SYSTEMD_ANALYZE], exposure),
        trial("service/the_capabilities_that_the_unit_leaves_are_enough", NEEDS, the_capabilities_are_enough),
        trial("service/manager_is_notified_of_start_reload_and_stop", NEEDS, manager_is_notified),
        trial("service/namespace_in_the_managers_store_is_entered_again", NEEDS, store),
        trial("service/gateway_with_a_failing_thread_ends", NEEDS, failing_thread),
        trial("service/watchdog_is_fed_only_while_all_threads_answer", NEEDS, watchdog),
    ]
}

fn the_unit_is_accepted() -> Outcome {
    let scratch = Scratch::new()?;
    assert_eq!(verify(&scratch, "fatpath@left.service", UNIT)?, "");
    assert_eq!(verify(&scratch, "fatpath-metrics.service", METRICS_UNIT)?, "");
    assert_eq!(verify(&scratch, "fatpath-web.service", WEB_UNIT)?, "");
    assert_eq!(verify(&scratch, "fatpath-fleet@left.service", FLEET_UNIT)?, "");
    // The address of a UDP link may come minutes late: by systemd's defaults, five failures within ten seconds are the end.
    for line in ["StartLimitIntervalSec=0", "Restart=on-failure", "RestartSec=1"] {
        assert!(UNIT.lines().any(|own| own == line), "{line}");
    }
    // The verification finds a wrong keyword.
    let wrong = UNIT.replace("RestartPreventExitStatus=2", "RestartPreventExitStatuses=2");
    let printed = verify(&scratch, "fatpath@left.service", &wrong)?;
    assert!(printed.contains("RestartPreventExitStatuses"), "{printed}");
    Ok(())
}

fn the_unit_of_strongswan_is_accepted() -> Outcome {
    let scratch = Scratch::new()?;
    // The unit is bound to the other one.
    verify(&scratch, "fatpath@left.service", UNIT)?;
    assert_eq!(verify(&scratch, "fatpath-charon@left.service", CHARON_UNIT)?, "");
    // charon-systemd is not installed, as it would start a service.
    let charon = unpacked("usr/sbin/charon-systemd");
    let pair = PAIR_UNIT.replace("/usr/sbin/charon-systemd", charon.to_str().ok_or("a path that is no text")?);
    assert_eq!(verify(&scratch, "fatpath-pair@left.service", &pair)?, "");
    Ok(())
}

/// `systemd-analyze security` of a unit, which fails if its exposure, in tenths, is above `most`.
fn exposure_is_at_most(scratch: &Scratch, name: &str, unit: &str, most: u32) -> Outcome<bool> {
    let file = scratch.file(name);
    fs::write(&file, unit)?;
    let mut command = Command::new("systemd-analyze");
    command.args(["security", "--offline=true", "--no-pager", &format!("--threshold={most}")]).arg(&file);
    let output = command.output()?;
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(printed.contains("Overall exposure level for "), "{output:?}");
    Ok(output.status.success())
}

/// Values measured with systemd 252; a later version that weighs further options may need other ones. The IKE daemons run under
/// strongSwan's own rules, and their units restrict nothing.
fn exposure() -> Outcome {
    let scratch = Scratch::new()?;
    for (name, unit, most) in [
        ("fatpath@left.service", UNIT, 36),
        ("fatpath-charon@left.service", CHARON_UNIT, 96),
        ("fatpath-pair@left.service", PAIR_UNIT, 96),
        ("fatpath-metrics.service", METRICS_UNIT, 15),
        ("fatpath-web.service", WEB_UNIT, 15),
        ("fatpath-fleet@left.service", FLEET_UNIT, 20),
    ] {
        assert!(exposure_is_at_most(&scratch, name, unit, most)?, "{name}: above {most}");
    }
    // The recorded value is the measured one, and an option less is found.
    assert!(!exposure_is_at_most(&scratch, "fatpath@left.service", UNIT, 35)?);
    let weaker = UNIT.replace("ProtectSystem=strict\n", "");
    assert!(weaker != UNIT && !exposure_is_at_most(&scratch, "fatpath@left.service", &weaker, 36)?);
    Ok(())
}

/// Findings of `systemd-analyze verify` for a unit, with the tested `fatpath` as its program.
fn verify(scratch: &Scratch, name: &str, unit: &str) -> Outcome<String> {
    let program = fatpath().to_str().ok_or("a path that is no text")?;
    let file = scratch.file(name);
    fs::write(&file, unit.replace("/usr/local/bin/fatpath", program))?;
    let mut command = Command::new("systemd-analyze");
    let output = command.args(["verify", "--man=no", "--recursive-errors=no"]).arg(&file).output()?;
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    if printed.is_empty() && !output.status.success() { Err(output.status.to_string().into()) } else { Ok(printed) }
}

fn the_capabilities_are_enough() -> Outcome {
    let listed = UNIT.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet=")).ok_or("no such line")?;
    let bounds: Vec<String> = listed.split(' ').map(|name| name.replace("CAP_", "+").to_lowercase()).collect();
    let (scratch, host) = (Scratch::new()?, Netns::new("service")?);
    // The unit's limit in place of CAP_SYS_NICE, which a test without CAP_SYS_RESOURCE cannot raise.
    assert!(UNIT.lines().any(|line| line == "LimitNICE=-10"));
    let mut command = host.command("setpriv");
    command.args(["--no-new-privs", &format!("--bounding-set=-all,{}", bounds.join(","))]).arg(fatpath());
    let mut gateway = Gateway::start_under(command, &scratch, "left", FILE)?;
    // The opener of the host side has its own of them, that of links the one of its link, and the gateway has none.
    let held = |pid: &str| {
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let held = status.lines().find_map(|line| line.strip_prefix("CapEff:\t")).ok_or("no capabilities")?;
        Outcome::Ok(u64::from_str_radix(held, 16)?)
    };
    let own = gateway.id().to_string();
    let children = fs::read_to_string(format!("/proc/{own}/task/{own}/children"))?;
    let mut openers = children.split_whitespace().map(held).collect::<Outcome<Vec<u64>>>()?;
    openers.sort_unstable();
    assert_eq!(openers, [1 << 12, 1 << 12 | 1 << 13 | 1 << 21]);
    assert_eq!(held(&own)?, 0, "{}", gateway.show("sandbox")?);
    run(host.command("ip").args(["link", "show", "tun7"]))?;
    let shown = gateway.show("host")?;
    assert!(shown.starts_with("host side on"), "{shown}");
    // A test cannot start a service with these options, so only their text is checked.
    assert!(UNIT.lines().any(|line| line == "RestrictNamespaces=net") && !UNIT.contains("ProtectKernelTunables="));
    assert!(gateway.terminate()?.success(), "{}", gateway.log());
    Ok(())
}

fn manager_is_notified() -> Outcome {
    let (scratch, host) = (Scratch::new()?, Netns::new("service")?);
    let socket = scratch.file("notify");
    let manager = notify_socket(&socket)?;
    manager.set_read_timeout(Some(Duration::from_secs(20)))?;
    let next = || {
        loop {
            let mut message = [0; 4096];
            let n = manager.recv(&mut message)?;
            let text = String::from_utf8_lossy(&message[..n]).into_owned();
            // Another test is about what the manager stores.
            if !text.starts_with("FDSTORE") {
                return Ok::<_, std::io::Error>(text);
            }
        }
    };
    let mut command = host.command(fatpath());
    command.env("NOTIFY_SOCKET", &socket);
    let mut gateway = Gateway::start_under(command, &scratch, "left", FILE)?;
    assert_eq!(next()?.trim_end(), "READY=1\nSTATUS=running with 1 link: tun7");
    gateway.reload("")?;
    let reloading = next()?;
    assert!(reloading.starts_with("RELOADING=1\nMONOTONIC_USEC="), "{reloading}");
    assert_eq!(next()?.trim_end(), "READY=1\nSTATUS=running with no links");
    gateway.reload("mtoo = 1")?;
    assert!(next()?.starts_with("RELOADING=1\n"));
    let refused = next()?;
    assert!(refused.starts_with("READY=1\nSTATUS=running with no links; not reloaded: "), "{refused}");
    assert!(refused.contains("left.toml:1: mtoo"), "{refused}");
    assert!(gateway.terminate()?.success(), "{}", gateway.log());
    assert_eq!(next()?.trim_end(), "STOPPING=1");
    Ok(())
}

/// Receives messages until one has a descriptor.
fn stored(manager: &UnixDatagram) -> Outcome<OwnedFd> {
    for _ in 0..4 {
        let mut text = [0; 4096];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = recvmsg(manager, &mut [IoSliceMut::new(&mut text)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
        let rights = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        });
        if let Some(fd) = rights {
            assert_eq!(&text[..received.bytes], b"FDSTORE=1\nFDNAME=host-side\n");
            return Ok(fd);
        }
    }
    Err("the manager has got no descriptor".into())
}

fn store() -> Outcome {
    assert!(UNIT.lines().any(|line| line == "FileDescriptorStoreMax=2048"));
    let (scratch, host) = (Scratch::new()?, Netns::new("service")?);
    let socket = scratch.file("notify");
    let manager = notify_socket(&socket)?;
    manager.set_read_timeout(Some(PATIENCE))?;
    // As by the unit, the gateway may not see the namespaces of root's processes.
    let few = ["--no-new-privs", "--bounding-set=-all,+net_admin,+net_raw,+sys_admin"];
    let start = |script: &str| {
        let mut command = host.command("bash");
        command.args(["-c", &format!("{script} exec setpriv \"$@\""), "bash"]).args(few).arg(fatpath());
        command.env("NOTIFY_SOCKET", &socket);
        Gateway::start_under(command, &scratch, "left", FILE)
    };
    let inside = |program: &[&str]| {
        let mut command = Command::new(fatpath());
        command.args(["exec", "--instance", "left", "--"]).args(program).env("FATPATH_RUNDIR", scratch.path());
        command
    };
    let namespace = || run(&mut inside(&["readlink", "/proc/self/ns/net"]));
    let mut gateway = start("")?;
    let kept = stored(&manager)?;
    let before = namespace()?;
    let _program = Process::spawn(&mut inside(&["sleep", "100"]), &scratch)?;
    let pass = |fd: &OwnedFd| {
        let path = format!("/proc/{}/fd/{}", std::process::id(), fd.as_raw_fd());
        format!("exec 3<{path}; export LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=host-side;")
    };
    gateway.kill()?;
    gateway = start(&pass(&kept))?;
    assert_eq!(namespace()?, before, "{}", gateway.log());
    gateway.kill()?;
    // Any other namespace that the manager may have is not the host side.
    let other = OwnedFd::from(fs::File::open(format!("/run/netns/{}", host.name()))?);
    let gateway = start(&pass(&other))?;
    let now = namespace()?;
    assert!(now != before && now != host.sh("readlink /proc/self/ns/net")?, "{now} {}", gateway.log());
    Ok(())
}

/// Arguments of a gateway `left` in `scratch` that has all threads, that of `--state` too.
fn run_with_state(command: &mut Command, scratch: &Scratch) -> Outcome<Process> {
    let config = scratch.file("left.toml");
    fs::write(&config, FILE)?;
    command.args(["run", "--instance", "left", "--state"]).arg(scratch.file("state")).arg("-c").arg(&config);
    add_user(command);
    Process::spawn(command.env("FATPATH_RUNDIR", scratch.path()), scratch)
}

/// Interrupts one thread of a process by ptrace(2), so that `then` can stop it or change the result of its system call.
fn trace(scratch: &Scratch, process: &Process, thread: &str, then: &str) -> Outcome<Process> {
    let tracer = Process::spawn(
        Command::new("python3").args(["-c", TRACE_THREAD, &process.id().to_string(), thread, then]),
        scratch,
    )?;
    wait_until("the thread is traced", PATIENCE, || tracer.output().contains("traced"))?;
    Ok(tracer)
}

const TRACE_THREAD: &str = r#"
import ctypes, os, sys, time
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
POKEUSER, DETACH, SEIZE, INTERRUPT, RAX, WALL = 6, 17, 0x4206, 0x4207, 80, 0x40000000
def ptrace(request, address=None, data=None):
    if libc.ptrace(request, task, address, data) != 0:
        sys.exit(f"ptrace {request:#x}: {os.strerror(ctypes.get_errno())}")
process, name, then = sys.argv[1:]
tasks = f"/proc/{process}/task"
task, = [int(task) for task in os.listdir(tasks) if open(f"{tasks}/{task}/comm").read().strip() == name]
ptrace(SEIZE)
ptrace(INTERRUPT)
assert os.waitpid(task, WALL)[0] == task
if then == "stop":
    print("traced", flush=True)
    time.sleep(300)
# The system call that the thread waits in is not restarted, but fails with this error.
ptrace(POKEUSER, RAX, ctypes.c_void_p(-int(then)))
ptrace(DETACH)
print("traced", flush=True)
"#;

fn failing_thread() -> Outcome {
    const CASES: [(&str, Errno, &str); 3] = [
        ("netlink", Errno::BADF, "the thread netlink ended: Bad file descriptor (os error 9)"),
        ("control", Errno::BADF, "the thread control ended: Bad file descriptor (os error 9)"),
        // The standard library panics if a sleep fails.
        ("state", Errno::INVAL, "the thread state panicked: "),
    ];
    for (thread, error, text) in CASES {
        let (scratch, host) = (Scratch::new()?, Netns::new("service")?);
        let mut process = run_with_state(&mut host.command(fatpath()), &scratch)?;
        wait_until("the gateway runs", PATIENCE, || process.output().contains("left: running with"))?;
        trace(&scratch, &process, thread, &error.raw_os_error().to_string())?;
        let status = process.wait(PATIENCE)?;
        let output = process.output();
        assert_eq!(status.code(), Some(1), "{thread}: {output}");
        let is_logged = |line: &str| line.contains("ERROR") && line.contains(&format!("left: {text}"));
        assert_eq!(output.lines().filter(|line| is_logged(line)).count(), 1, "{thread}: {output}");
        assert!(output.contains(&format!("Error: {text}")), "{thread}: {output}");
        assert!(!scratch.file("left.netlink").exists(), "{thread}: its sockets are removed");
    }
    Ok(())
}

fn watchdog() -> Outcome {
    let (scratch, host) = (Scratch::new()?, Netns::new("service")?);
    let socket = scratch.file("notify");
    let manager = notify_socket(&socket)?;
    // Threads are pinged four times in this period. No notification in such a period means that a thread does not
    // answer.
    const LIMIT: Duration = Duration::from_secs(8);
    let is_fed = |within: Duration| {
        let mut message = [0; 4096];
        manager.set_read_timeout(Some(within))?;
        match manager.recv(&mut message) {
            Ok(len) => Ok(message[..len].trim_ascii() == b"WATCHDOG=1"),
            Err(err) if matches!(err.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => Ok(false),
            Err(err) => Err(err),
        }
    };
    let mut command = host.command(fatpath());
    command.env("NOTIFY_SOCKET", &socket).env("WATCHDOG_USEC", LIMIT.as_micros().to_string());
    let mut process = run_with_state(&mut command, &scratch)?;
    // Two messages about the manager's store, and the one that the gateway is ready.
    for _ in 0..3 {
        assert!(!is_fed(PATIENCE)?, "{}", process.output());
    }
    assert!(is_fed(PATIENCE)?, "{}", process.output());
    for thread in ["netlink", "control", "worker", "state"] {
        let mut tracer = trace(&scratch, &process, thread, "stop")?;
        // The thread may have answered just before.
        while is_fed(LIMIT)? {}
        assert!(process.output().contains(&format!("no answer from threads: {thread}")), "{}", process.output());
        tracer.signal(Signal::KILL)?;
        tracer.wait(PATIENCE)?;
        assert!(is_fed(PATIENCE)?, "{thread} goes on: {}", process.output());
    }
    process.signal(Signal::TERM)?;
    assert!(process.wait(PATIENCE)?.success(), "{}", process.output());
    Ok(())
}
