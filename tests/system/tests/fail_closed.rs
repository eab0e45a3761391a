//! Programs under `fatpath exec` that do not load the library, or lose it: none of them reaches the host's kernel.
//!
//! Each test runs in a separate network namespace in the role of the host, and compares its state before and after.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use libtest_mimic::Trial;
use rustix::io::Errno;
use rustix::process::Signal;
use system::{Gateway, Need, Netns, Outcome, Scratch, fatpath, run, trial, unpacked};

const NEEDS: &[Need] = &[Need::Namespaces, Need::CC];
const BUSYBOX: Need = Need::Unpacked { path: "bin/busybox", package: "busybox-static" };
const BRCTL: Need = Need::Unpacked { path: "sbin/brctl", package: "bridge-utils" };
const MUSL: Need = Need::Unpacked { path: MUSL_SPECS, package: "musl-tools" };
const MUSL_LIBRARY: Need = Need::Unpacked { path: "usr/lib/x86_64-linux-musl/libc.a", package: "musl-dev" };
const MUSL_SPECS: &str = "usr/lib/x86_64-linux-musl/musl-gcc.specs";

/// Each way of the C library to start a program, as `ways.c` names it.
const WAYS: [&str; 16] = [
    "execve",
    "execve_null",
    "execv",
    "execvp",
    "execvpe",
    "execl",
    "execlp",
    "execle",
    "fexecve",
    "execveat",
    "execveat_empty",
    "posix_spawn",
    "posix_spawnp",
    "system",
    "popen",
    "vfork",
];

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("fail_closed/library_stays_over_each_way_to_start", NEEDS, ways),
        trial("fail_closed/library_stays_in_clean_environments", &[Need::Namespaces], clean_environments),
        trial("fail_closed/static_program_is_refused_by_name", NEEDS, static_program),
        trial("fail_closed/raw_calls_of_each_abi_are_refused", NEEDS, raw_calls),
        trial("fail_closed/go_program_is_refused_by_name", &[Need::Namespaces, Need::CC, Need::GO], go),
        trial("fail_closed/busybox_changes_nothing", &[Need::Namespaces, Need::CC, BUSYBOX], busybox),
        trial("fail_closed/musl_programs_change_nothing", &[Need::Namespaces, Need::CC, MUSL, MUSL_LIBRARY], musl),
        trial("fail_closed/ip_tuntap_makes_no_device", &[Need::Namespaces, Need::Tun], tuntap),
        trial("fail_closed/brctl_makes_the_gateways_bridge", &[Need::Namespaces, BRCTL], brctl),
        trial("fail_closed/packet_filters_are_refused_by_name", &[Need::Namespaces, Need::PYTHON], packet_filters),
        trial("fail_closed/libpcap_lists_interfaces_without_netfilter", &[Need::Namespaces, Need::TSHARK], libpcap),
        trial(
            "fail_closed/host_firewall_needs_a_host_side",
            &[Need::Namespaces, Need::Tun, Need::PYTHON],
            host_firewall,
        ),
        trial("fail_closed/ip_vrf_exec_is_refused_by_name", &[Need::Namespaces], vrf_exec),
        trial("fail_closed/network_namespaces_are_refused_by_name", &[Need::Namespaces, Need::PYTHON], namespaces),
        trial("fail_closed/programs_of_other_rights_are_refused", &[Need::Namespaces, Need::SETPRIV], other_rights),
        trial("fail_closed/unprivileged_programs_gain_no_rights", &[Need::Namespaces, Need::SETPRIV], unprivileged),
    ]
}

/// A host with a gateway.
struct Host {
    _gateway: Gateway,
    netns: Netns,
    scratch: Scratch,
    before: String,
}

impl Host {
    fn new() -> Outcome<Self> {
        let (scratch, netns) = (Scratch::new()?, Netns::new("host")?);
        // Programs of other accounts enter the directory.
        fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o755))?;
        let wan = "[[link]]\nname = \"wan\"\nkind = \"udp\"\nbind = \"127.0.0.1:4500\"\n";
        let gateway = Gateway::start(&netns, &scratch, "x", wan)?;
        let before = state(&netns)?;
        Ok(Self { _gateway: gateway, netns, scratch, before })
    }

    /// `fatpath exec -- PROGRAM` on this host.
    fn exec(&self, program: impl AsRef<Path>) -> Command {
        let mut command = self.netns.command(fatpath());
        command
            .args(["exec", "--instance", "x", "--"])
            .arg(program.as_ref())
            .env("FATPATH_RUNDIR", self.scratch.path());
        command
    }

    /// Output of a shell's line under `fatpath exec`.
    fn sh(&self, line: &str) -> Outcome<Printed> {
        printed(self.exec("sh").args(["-c", line]))
    }

    /// Compiles a C program with `cc OPTIONS`.
    fn compile(&self, source: &str, name: &str, options: &[&str]) -> Outcome<PathBuf> {
        let (file, program) = (self.scratch.file(&format!("{name}.c")), self.scratch.file(name));
        fs::write(&file, source)?;
        run(Command::new("cc").args(["-Wall", "-O1", "-o"]).arg(&program).arg(&file).args(options))?;
        Ok(program)
    }

    /// Checks that the host is unchanged.
    fn assert_unchanged(&self) -> Outcome {
        assert_eq!(state(&self.netns)?, self.before, "the host is as it was");
        Ok(())
    }
}

/// State of a network namespace that netlink and requests of `ioctl` can change.
fn state(netns: &Netns) -> Outcome<String> {
    netns.sh("ip -d link; ip addr; ip route show table all; ip -6 route show table all; ip rule; ip neigh; ip tunnel")
}

/// Output of a program, and its exit code.
#[derive(Debug)]
struct Printed {
    code: Option<i32>,
    out: String,
    err: String,
}

fn printed(command: &mut Command) -> Outcome<Printed> {
    let Output { status, stdout, stderr } = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok(Printed { code: status.code(), out: text(&stdout), err: text(&stderr) })
}

const RAW: &str = include_str!("exec_start/raw.c");
const STATIC: &str = "it is linked statically and loads no library";

fn ways() -> Outcome {
    let host = Host::new()?;
    let ways = host.compile(include_str!("exec_start/ways.c"), "ways", &[])?;
    let fixed = host.compile("int main(void) { return 0; }", "fixed", &["-static"])?;
    let ip = run(Command::new("sh").args(["-c", "command -v ip"]))?;
    for (way, number) in WAYS.iter().zip(0_u8..) {
        let route = format!("10.{number}.0.0/24");
        let done = printed(host.exec(&ways).args([way, ip.trim(), "route", "add", "unreachable", &route]))?;
        assert_eq!((done.code, done.err.as_str()), (Some(0), ""), "{way}");
        let refused = printed(host.exec(&ways).arg(way).arg(&fixed).args(["a", "b", "c", "d"]))?;
        assert_eq!(refused.code, Some(126), "{way}: {refused:?}");
        assert!(refused.err.contains(STATIC), "{way}: {refused:?}");
    }
    let routes = host.sh("ip route show type unreachable")?.out;
    for (way, number) in WAYS.iter().zip(0_u8..) {
        assert!(routes.contains(&format!("10.{number}.0.0/24")), "{way}: {routes}");
    }
    host.assert_unchanged()
}

fn clean_environments() -> Outcome {
    let host = Host::new()?;
    let script = host.scratch.file("script");
    fs::write(&script, "#!/usr/bin/env -S -i sh\nip route add unreachable 10.3.0.0/24\n")?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
    let lines = [
        "env -i ip route add unreachable 10.1.0.0/24",
        "unset LD_PRELOAD FATPATH_NETLINK; ip route add unreachable 10.2.0.0/24",
        &script.display().to_string(),
        "LD_PRELOAD= FATPATH_NETLINK= env -i sh -c 'ip route add unreachable 10.4.0.0/24'",
    ];
    for line in lines {
        let done = host.sh(line)?;
        assert_eq!((done.code, done.err.as_str()), (Some(0), ""), "{line}");
    }
    let routes = host.sh("env -i ip route show type unreachable")?.out;
    assert_eq!(routes.lines().count(), lines.len(), "{routes}");
    let second = Gateway::start(&host.netns, &host.scratch, "second", "")?;
    let nested = format!(
        "env -i FATPATH_RUNDIR={} {} exec --instance second -- ip route",
        host.scratch.path().display(),
        fatpath().display()
    );
    assert_eq!(host.sh(&nested)?.out, "", "another gateway is chosen inside");
    drop(second);
    host.assert_unchanged()
}

fn static_program() -> Outcome {
    let host = Host::new()?;
    let program = host.compile(RAW, "raw", &["-static"])?;
    let first = printed(&mut host.exec(&program))?;
    assert_eq!((first.code, first.out.as_str()), (Some(1), ""));
    assert_eq!(first.err, format!("Error: {}: {STATIC}.\n", program.display()));
    for shell in ["sh", "bash"] {
        let below = printed(host.exec(shell).arg("-c").arg(&program))?;
        let want = format!("fatpath exec: {}: {STATIC}.\n", program.display());
        assert!(below.code == Some(126) && below.err.starts_with(&want), "{shell}: {below:?}");
        assert_eq!(below.err.matches(STATIC).count(), 1, "{shell}: {below:?}");
    }
    let found = host.sh(&format!("PATH={}:$PATH env -i PATH=$PATH raw", host.scratch.path().display()))?;
    assert!(found.code == Some(127), "env finds it in its own PATH: {found:?}");
    let found = host.sh(&format!("PATH={0}:{0}/. raw", host.scratch.path().display()))?;
    assert!(found.code == Some(126), "{found:?}");
    assert_eq!(found.err.matches(STATIC).count(), 1, "one line for one file in two directories: {found:?}");
    host.assert_unchanged()
}

/// A program that starts others without the C library, and so bypasses the preloaded library.
fn raw_calls() -> Outcome {
    let host = Host::new()?;
    let program = host.compile(RAW, "raw", &["-static"])?;
    let ways = host.compile(include_str!("exec_start/ways.c"), "ways", &[])?;
    let outside = run(&mut host.netns.command(&program))?;
    for call in ["route 0", "clone 0", "unshare 0"] {
        assert!(outside.contains(&format!("x86-64 {call}\n")), "the host does it: {outside}");
    }
    let inside = printed(host.exec(&ways).arg("syscall").arg(&program).args(["a", "b", "c", "d"]))?;
    assert_eq!((inside.code, inside.err.as_str()), (Some(0), ""));
    let mut counts = [("x86-64", 0), ("x32", 0), ("i386", 0)];
    for line in inside.out.lines() {
        let [abi, call, errno] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
        let (want, count) = match call {
            "inet" | "unix" | "uevent" => (0, 1),
            "clone3" => (Errno::NOSYS.raw_os_error(), 1),
            "netfilter" => (Errno::PROTONOSUPPORT.raw_os_error(), 1),
            call if call.contains("_SO_") => (Errno::NOPROTOOPT.raw_os_error(), 1),
            // The kernel has no calls by i386's numbers: the first one ended the process.
            "signal" if abi == "i386" => (Signal::SEGV.as_raw(), 23),
            _ => (Errno::PERM.raw_os_error(), 1),
        };
        assert_eq!(errno, want.to_string(), "{abi} {call}");
        counts.iter_mut().filter(|(name, _)| *name == abi).for_each(|(_, counted)| *counted += count);
    }
    assert_eq!(counts, [("x86-64", 25), ("x32", 22), ("i386", 23)], "{}", inside.out);
    host.assert_unchanged()
}

fn go() -> Outcome {
    let host = Host::new()?;
    let source = host.scratch.file("links.go");
    fs::write(&source, include_str!("exec_start/links.go"))?;
    let ways = host.compile(include_str!("exec_start/ways.c"), "ways", &[])?;
    for (cgo, name) in [("1", "dynamic"), ("0", "static")] {
        let program = host.scratch.file(name);
        let mut build = Command::new("go");
        build.args(["build", "-o"]).arg(&program).arg(&source).current_dir(host.scratch.path());
        build.envs([("CGO_ENABLED", cgo), ("GOTOOLCHAIN", "local"), ("GOPROXY", "off"), ("GOFLAGS", "")]);
        run(build.env("GOCACHE", unpacked("go-cache")))?;
        assert_eq!(run(&mut host.netns.command(&program))?, "lo\n", "{name}: without `fatpath exec` it is the host's");
        let refused = printed(&mut host.exec(&program))?;
        let why = "it is a Go program, which makes system calls without the C library.";
        assert_eq!((refused.code, refused.err), (Some(1), format!("Error: {}: {why}\n", program.display())), "{name}");
        let below = host.sh(&program.display().to_string())?;
        assert!(below.code == Some(126) && below.err.contains(why), "{name}: {below:?}");
        let unseen = printed(host.exec(&ways).arg("syscall").arg(&program).args(["a", "b", "c", "d"]))?;
        assert!(unseen.code == Some(3) && unseen.out.contains("operation not permitted"), "{name}: {unseen:?}");
    }
    host.assert_unchanged()
}

fn busybox() -> Outcome {
    let host = Host::new()?;
    let busybox = unpacked("bin/busybox");
    let shown = busybox.display();
    let ways = host.compile(include_str!("exec_start/ways.c"), "ways", &[])?;
    let refused = printed(host.exec(&busybox).args(["ip", "link"]))?;
    assert!(refused.code == Some(1) && refused.err.contains(STATIC), "{refused:?}");
    let below = host.sh(&format!("{shown} ip link add name d0 type dummy"))?;
    assert!(below.code == Some(126) && below.err.contains(STATIC), "{below:?}");
    let lines = [
        "ip link add name d0 type dummy",
        "ip route add unreachable 10.1.0.0/24",
        "ip addr add 10.1.0.1/24 dev lo",
        "ifconfig lo 127.0.0.9",
        "ifconfig lo mtu 1400",
        "route add -net 10.1.0.0/24 reject",
        "arp -s 127.0.0.5 02:00:00:00:00:05",
        "vconfig add lo 7",
        "brctl addbr br7",
        "tunctl -t tap7",
        "unshare -n true",
    ];
    for line in lines {
        let script = host.scratch.file("line");
        fs::write(&script, format!("exec {shown} {line}\n"))?;
        let unseen = printed(host.exec(&ways).arg("syscall").arg(&busybox).args(["sh", "-e"]).arg(&script).arg(""))?;
        assert!(unseen.code.is_some_and(|code| code != 0), "{line}: {unseen:?}");
        assert!(unseen.err.contains("Operation not permitted"), "{line}: {unseen:?}");
    }
    host.assert_unchanged()
}

fn musl() -> Outcome {
    let host = Host::new()?;
    let specs = host.scratch.file("specs");
    // The package's names where it would be installed, but that of the loader.
    let prefix = unpacked("usr").display().to_string();
    let text = fs::read_to_string(unpacked(MUSL_SPECS))?;
    let moved = ["lib", "include"].iter().fold(text, |text, part| {
        text.replace(&format!("/usr/{part}/x86_64-linux-musl"), &format!("{prefix}/{part}/x86_64-linux-musl"))
    });
    fs::write(&specs, moved)?;
    let by_musl = format!("-specs={}", specs.display());
    let dynamic = host.compile(RAW, "dynamic", &[&by_musl])?;
    let fixed = host.compile(RAW, "fixed", &[&by_musl, "-static"])?;
    let ways = host.compile(include_str!("exec_start/ways.c"), "ways", &[])?;
    for (program, why) in [(&dynamic, "it is linked with another C library than GNU's"), (&fixed, STATIC)] {
        let refused = printed(&mut host.exec(program))?;
        assert_eq!((refused.code, refused.err), (Some(1), format!("Error: {}: {why}.\n", program.display())));
        let below = host.sh(&program.display().to_string())?;
        assert!(below.code == Some(126) && below.err.contains(why), "{below:?}");
    }
    let unseen = printed(host.exec(&ways).arg("syscall").arg(&fixed).args(["a", "b", "c", "d"]))?;
    assert!(unseen.out.contains("x86-64 route 1\n"), "{unseen:?}");
    host.assert_unchanged()
}

fn tuntap() -> Outcome {
    let host = Host::new()?;
    for line in [
        "ip tuntap add dev t7 mode tun",
        "ip tuntap add dev t7 mode tap",
        "ip tunnel add t8 mode ipip remote 192.0.2.9",
    ] {
        let refused = host.sh(line)?;
        assert!(refused.code == Some(1) && !refused.err.is_empty(), "{line}: {refused:?}");
    }
    host.assert_unchanged()
}

fn brctl() -> Outcome {
    let host = Host::new()?;
    let brctl = |words: &[&str]| printed(host.exec(unpacked("sbin/brctl")).args(words));
    for words in [&["addbr", "br7"][..], &["delbr", "br7"], &["addbr", "br8"]] {
        let done = brctl(words)?;
        assert_eq!((done.code, done.err.as_str()), (Some(0), ""), "{words:?}");
    }
    assert!(host.sh("ip link show type bridge")?.out.contains("br8"), "the bridge is the gateway's");
    host.assert_unchanged()
}

/// Opens the sockets and options of nft, iptables, ip6tables, arptables and ebtables, as the tools do, and prints each
/// error's name.
const FILTERS: &str = "
import errno, socket
def name(call):
    try:
        call()
        return 'OK'
    except OSError as error:
        return errno.errorcode[error.errno]
v4 = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
v6 = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
print(name(lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12)))
for fd, level, option in [(v4, 0, 64), (v4, 0, 65), (v6, 41, 64), (v6, 41, 65), (v4, 0, 96), (v4, 0, 97), (v4, 0, 128), (v4, 0, 129)]:
    print(name(lambda: fd.setsockopt(level, option, bytes(40))), name(lambda: fd.getsockopt(level, option, 84)))
v6.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, 8)
v6.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVTCLASS, 1)
print(v6.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS))
";

fn packet_filters() -> Outcome {
    let host = Host::new()?;
    let script = host.scratch.file("filters.py");
    fs::write(&script, FILTERS)?;
    let done = printed(host.exec("python3").arg(&script))?;
    let refused = "ENOPROTOOPT ENOPROTOOPT\n".repeat(8);
    assert_eq!(done.out, format!("EPROTONOSUPPORT\n{refused}8\n"), "{done:?}");
    let name = "fatpath exec: python3: the gateway has no packet filter and no NAT";
    assert!(done.err.starts_with(name) && done.err.lines().count() == 1, "{done:?}");
    host.assert_unchanged()
}

/// libpcap looks for netfilter when it lists interfaces.
fn libpcap() -> Outcome {
    let host = Host::new()?;
    let listed = host.sh("dumpcap -D && tshark -D")?;
    assert_eq!(listed.out.lines().filter(|line| line.ends_with(". any")).count(), 2, "{listed:?}");
    assert!(!listed.err.contains("fatpath exec"), "{listed:?}");
    host.assert_unchanged()
}

/// The same sockets, allowed for the kernel of the host side; its rules are not those of the host.
fn host_firewall() -> Outcome {
    let (scratch, netns) = (Scratch::new()?, Netns::new("host")?);
    let _gateways = [
        Gateway::start(&netns, &scratch, "with", "[[link]]\nname = \"tun0\"\nkind = \"tun\"\n")?,
        Gateway::start(&netns, &scratch, "without", "[host]\nside = \"off\"\n")?,
    ];
    let script = scratch.file("filters.py");
    fs::write(&script, FILTERS)?;
    let exec = |options: &[&str]| {
        let mut command = netns.command(fatpath());
        command.arg("exec").args(options).args(["--", "python3"]).arg(&script);
        printed(command.env("FATPATH_RUNDIR", scratch.path()))
    };
    let refused = exec(&["--instance", "with"])?;
    assert!(refused.out.starts_with("EPROTONOSUPPORT\n") && !refused.err.is_empty(), "{refused:?}");
    let allowed = exec(&["--instance", "with", "--host-firewall"])?;
    assert_eq!((allowed.code, allowed.err.as_str()), (Some(0), ""));
    assert!(allowed.out.starts_with("OK\n"), "{allowed:?}");
    let nowhere = exec(&["--instance", "without", "--host-firewall"])?;
    let name = "--host-firewall: sockets are not on the gateway's host side.";
    assert!(nowhere.code == Some(1) && nowhere.out.is_empty() && nowhere.err.contains(name), "{nowhere:?}");
    let both = exec(&["--instance", "with", "--host-firewall", "--sockets", "host"])?;
    assert!(both.code == Some(1) && both.err.contains("cannot be used with"), "{both:?}");
    Ok(())
}

fn vrf_exec() -> Outcome {
    let host = Host::new()?;
    let groups =
        || run(Command::new("sh").args(["-c", "find /sys/fs/cgroup -type d -path '*vrf*' 2>/dev/null || true"]));
    let before = groups()?;
    host.sh("ip link add red type vrf table 10")?;
    for line in ["ip vrf exec red true", "ip -d vrf ex red true", "env -i ip vrf exec red true"] {
        let refused = host.sh(line)?;
        assert_eq!((refused.code, refused.out.as_str()), (Some(1), ""), "{line}");
        let name = "fatpath exec: ip vrf exec: a kernel's control groups know no VRF";
        assert!(refused.err.starts_with(name) && refused.err.lines().count() == 1, "{line}: {refused:?}");
    }
    assert_eq!(groups()?, before, "no control group is left");
    let shown = host.sh("ip vrf show; ip -br link show vrf red; ip vrf show exec")?;
    assert!(shown.out.contains("red"), "other commands are answered: {shown:?}");
    host.assert_unchanged()
}

fn namespaces() -> Outcome {
    let (host, other) = (Host::new()?, Netns::new("other")?);
    let (before, name) = (state(&other)?, other.name());
    let lines = [
        format!("ip -n {name} link add d0 type dummy"),
        format!("ip netns exec {name} ip link add d0 type dummy"),
        format!("ip netns exec {name} true"),
        format!("nsenter --net=/run/netns/{name} ip link add d0 type dummy"),
        "unshare -n true".to_owned(),
        "unshare -n -m ip link add d0 type dummy".to_owned(),
        format!("python3 -c 'import ctypes, os; exit(ctypes.CDLL(None).setns(os.open(\"/run/netns/{name}\", 0), 0))'"),
    ];
    for line in &lines {
        let refused = host.sh(line)?;
        let program = line.split(' ').next().unwrap_or_default();
        let text = format!("fatpath exec: {program}: network namespaces are neither entered nor made");
        assert!(refused.code.is_some_and(|code| code != 0) && refused.err.starts_with(&text), "{line}: {refused:?}");
    }
    let kept = host.sh("unshare -m true && unshare -u true && ip netns list")?;
    assert_eq!((kept.code, kept.err.as_str()), (Some(0), ""), "other namespaces are no business of the gateway's");
    assert_eq!(state(&other)?, before, "the other namespace is as it was");
    host.assert_unchanged()
}

/// Below root's `fatpath exec`, another account starts programs with rights of their own, which ignore the library.
fn other_rights() -> Outcome {
    let host = Host::new()?;
    let (with_id, with_caps) = (host.scratch.file("with-id"), host.scratch.file("with-caps"));
    for program in [&with_id, &with_caps] {
        fs::copy("/bin/true", program)?;
    }
    fs::set_permissions(&with_id, fs::Permissions::from_mode(0o4755))?;
    // cap_net_admin, effective and permitted (capabilities(7)).
    let caps = [1, 0, 0, 2, 0, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    rustix::fs::setxattr(&with_caps, "security.capability", &caps, rustix::fs::XattrFlags::empty())?;
    for (program, why) in
        [(&with_id, "another account's rights (setuid or setgid)"), (&with_caps, "its file has capabilities")]
    {
        let path = program.display();
        let by_root = host.sh(&path.to_string())?;
        assert_eq!((by_root.code, by_root.err.as_str()), (Some(0), ""), "root has these rights anyway");
        let other = host.sh(&format!("setpriv --reuid 65534 --regid 65534 --clear-groups sh -c {path}"))?;
        assert!(other.code == Some(126) && other.err.contains(why), "{other:?}");
    }
    host.assert_unchanged()
}

fn unprivileged() -> Outcome {
    let host = Host::new()?;
    let with_id = host.scratch.file("with-id");
    fs::copy("/usr/bin/id", &with_id)?;
    fs::set_permissions(&with_id, fs::Permissions::from_mode(0o4755))?;
    let as_unprivileged = |program: &str| {
        let mut command = host.netns.command("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(fatpath());
        command.args(["exec", "--instance", "x", "--", program]).env("FATPATH_RUNDIR", host.scratch.path());
        command
    };
    let set = printed(as_unprivileged("grep").args(["-E", "NoNewPrivs|Seccomp:", "/proc/self/status"]))?;
    assert_eq!(set.out, "NoNewPrivs:\t1\nSeccomp:\t2\n", "{set:?}");
    let id = printed(as_unprivileged(&with_id.display().to_string()).arg("-u"))?;
    assert_eq!((id.code, id.out.as_str()), (Some(0), "65534\n"), "{id:?}");
    let by_root = host.sh("grep -E 'NoNewPrivs|Seccomp:' /proc/self/status")?;
    assert_eq!(by_root.out, "NoNewPrivs:\t0\nSeccomp:\t2\n");
    host.assert_unchanged()
}
