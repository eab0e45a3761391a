//! `fatpath doctor`: requirements of a gateway on this machine, each with its remedy, and the way to a peer.

use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use client::{CliError, find_sibling, gateway_program, own_socket_path, print, raise_descriptor_limit, system_ip};
use link::{Namespace, unshare};
use rustix::process::geteuid;
use rustix::thread::{CapabilitySet, capabilities};
use serde_json::Value;

use crate::cli::DoctorArgs;

/// TUN and TAP devices.
const TUN: &str = "/dev/net/tun";
/// Minimum version of the kernel: `epoll_pwait2`.
const MIN_KERNEL: (u32, u32) = (5, 11);
/// Minimum limit of socket buffers in bytes, for the buffers that the links request.
const MIN_BUFFER: u64 = 4 << 20;
/// Minimum number of descriptors.
const MIN_DESCRIPTORS: u64 = 4096;
/// UDP port of ESP in UDP (RFC 3948).
const NAT_T_PORT: u16 = 4500;
/// Seconds since 1970 at the start of 2025: an earlier time is a clock that was never set.
const START_OF_2025: u64 = 1_735_689_600;

/// MTU for which the device of a `[[tunnel]]` is made, unless its outer link has another one.
const USUAL_MTU: u64 = 1500;
/// Time in which a peer or a router on the way returns an error.
const ERROR_LIMIT: Duration = Duration::from_secs(1);
/// Keepalive of a NAT's mapping, which the receiver ignores (RFC 3948 §2.3).
const KEEPALIVE: [u8; 1] = [0xff];

/// Result of one examination.
#[derive(Debug, Eq, PartialEq)]
enum Verdict {
    /// The requirement is met.
    Ok(String),
    /// Only some uses are affected.
    Note(String),
    /// Gateways of this user do not work without it.
    Missing(String),
}

/// Examination with its subject.
type Line = (&'static str, Verdict);

/// Prints a line for each requirement. The exit code is 1 if one is missing.
///
/// # Errors
/// Standard output cannot be written.
pub(crate) fn main(args: &DoctorArgs) -> Result<ExitCode, CliError> {
    let mut lines = vec![
        ("kernel", kernel()),
        ("processor", processor()),
        ("run directory", run_directory()),
        ("ip", found(system_ip().map(|path| path.display().to_string()))),
        ("preload library", found(gateway_program::library().map(|path| path.display().to_string()))),
        ("fatpath-bench", bench()),
        ("capabilities", capabilities_of_process()),
        (TUN, tun()),
        ("descriptors", descriptors()),
        ("socket buffers", buffers()),
        ("UDP port 4500", port()),
        ("MTU", mtu()),
        ("clock", clock()),
    ];
    lines.extend(args.peer.map(|address| ("peer", peer(address))));
    // The last one: it moves this process to a user namespace.
    lines.push(("user namespaces", user_namespaces()));
    print(text(&lines).as_bytes())?;
    let is_missing = lines.iter().any(|(_, verdict)| matches!(verdict, Verdict::Missing(_)));
    Ok(if is_missing { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn text(lines: &[Line]) -> String {
    lines.iter().fold(String::new(), |mut text, (subject, verdict)| {
        let (word, what) = match verdict {
            Verdict::Ok(what) => ("ok", what),
            Verdict::Note(what) => ("note", what),
            Verdict::Missing(what) => ("missing", what),
        };
        let _ = writeln!(text, "{word:<8} {subject:<16} {what}");
        text
    })
}

fn found(result: Result<String, CliError>) -> Verdict {
    result.map_or_else(|err| Verdict::Missing(err.message), Verdict::Ok)
}

fn kernel() -> Verdict {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|number| number.parse().ok());
    let version: (u32, u32) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version < MIN_KERNEL {
        return Verdict::Missing(format!("Linux {release}: 5.11 or later is needed (epoll_pwait2)"));
    }
    Verdict::Ok(format!("Linux {release}"))
}

fn processor() -> Verdict {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = info.lines().find(|line| line.starts_with("flags") || line.starts_with("Features")).unwrap_or_default();
    let flags: Vec<&str> =
        flags.split_whitespace().filter(|flag| ["aes", "vaes", "avx2", "avx512f"].contains(flag)).collect();
    if flags.contains(&"aes") {
        return Verdict::Ok(flags.join(" "));
    }
    Verdict::Note("no AES instructions: use chacha20-poly1305, which is faster without them".to_owned())
}

fn run_directory() -> Verdict {
    let socket = own_socket_path("default");
    let dir = socket.parent().unwrap_or(Path::new("/"));
    let remedy = "set XDG_RUNTIME_DIR or FATPATH_RUNDIR to a directory of yours";
    // The daemon makes the last directory.
    let place = dir.ancestors().find(|place| place.exists()).unwrap_or(dir);
    match fs::metadata(place) {
        Ok(data) if geteuid().is_root() || rustix::fs::access(place, rustix::fs::Access::WRITE_OK).is_ok() => {
            let mode = data.permissions().mode() & 0o7777;
            Verdict::Ok(format!("{} (in {} with mode {mode:o})", dir.display(), place.display()))
        }
        Ok(_) => Verdict::Missing(format!("{}: no right to write; {remedy}", place.display())),
        Err(err) => Verdict::Missing(format!("{}: {err}; {remedy}", place.display())),
    }
}

fn bench() -> Verdict {
    match find_sibling("fatpath-bench") {
        Some(path) => Verdict::Ok(path.display().to_string()),
        None => Verdict::Note(
            "not found: demo and bench need it; install the package fatpath-bench, or build it with `cargo build \
             --release -p fatpath-bench`"
                .to_owned(),
        ),
    }
}

fn capabilities_of_process() -> Verdict {
    let Ok(sets) = capabilities(None) else { return Verdict::Note("unknown".to_owned()) };
    let wanted = [
        (CapabilitySet::NET_ADMIN, "NET_ADMIN (tun, tap, xdp, packet in promiscuous mode)"),
        (CapabilitySet::NET_RAW, "NET_RAW (packet)"),
        (CapabilitySet::SYS_ADMIN, "SYS_ADMIN (host side without a user namespace)"),
        (CapabilitySet::BPF, "BPF (xdp)"),
    ];
    let missing: Vec<&str> =
        wanted.iter().filter(|(set, _)| !sets.effective.contains(*set)).map(|(_, name)| *name).collect();
    match missing.as_slice() {
        [] => Verdict::Ok("all that links can need".to_owned()),
        missing => Verdict::Note(format!(
            "without CAP_{}: udp and vhost-user links work; run as root for the others",
            missing.join(", CAP_")
        )),
    }
}

fn tun() -> Verdict {
    match OpenOptions::new().read(true).write(true).open(TUN) {
        Ok(_) => Verdict::Ok("opens".to_owned()),
        Err(err) if err.kind() == ErrorKind::NotFound => Verdict::Note(
            "does not exist: no tun and tap links; modprobe tun, in docker: --device /dev/net/tun".to_owned(),
        ),
        Err(err) => Verdict::Note(format!("{err}: no tun and tap links; in docker: --device /dev/net/tun")),
    }
}

/// Settings of the kernel about user namespaces, and the result of an attempt to make one.
struct UserNamespaces {
    is_restricted_by_apparmor: bool,
    is_off: bool,
    /// Maximum number; `None` for a kernel without them.
    limit: Option<u64>,
    refusal: Option<io::Error>,
    /// Whether a seccomp filter restricts the system calls of this process.
    has_filter: bool,
}

impl UserNamespaces {
    fn verdict(&self) -> Verdict {
        let remedy = "a gateway without root has no host side, and `fatpath try` needs sudo";
        if self.is_restricted_by_apparmor {
            return Verdict::Note(format!(
                "restricted by AppArmor: {remedy}; sysctl kernel.apparmor_restrict_unprivileged_userns=0, or a profile, permits them"
            ));
        }
        if self.is_off {
            return Verdict::Note(format!("off: {remedy}; sysctl kernel.unprivileged_userns_clone=1 permits them"));
        }
        match (self.limit, &self.refusal) {
            (None, _) => Verdict::Note(format!("not in this kernel: {remedy}")),
            (Some(0), _) => {
                Verdict::Note(format!("none permitted: {remedy}; sysctl user.max_user_namespaces=15000 permits them"))
            }
            (Some(_), Some(err)) if self.has_filter => Verdict::Note(format!(
                "{err}, by the seccomp filter of a container: {remedy}; docker and podman permit them by \
                 --security-opt seccomp=unconfined, or --cap-add SYS_ADMIN"
            )),
            (Some(_), Some(err)) => Verdict::Note(format!("{err}: {remedy}")),
            (Some(_), None) => Verdict::Ok("permitted".to_owned()),
        }
    }
}

/// Makes a user namespace for this process, which has one thread.
fn user_namespaces() -> Verdict {
    let number = |path: &str| fs::read_to_string(path).ok().and_then(|text| text.trim().parse::<u64>().ok());
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let seccomp = status.lines().find_map(|line| line.strip_prefix("Seccomp:")).map(str::trim);
    UserNamespaces {
        is_restricted_by_apparmor: number("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == Some(1),
        is_off: number("/proc/sys/kernel/unprivileged_userns_clone") == Some(0),
        limit: number("/proc/sys/user/max_user_namespaces"),
        refusal: unshare(&[Namespace::User, Namespace::Network]).err(),
        has_filter: seccomp.is_some_and(|mode| mode != "0"),
    }
    .verdict()
}

/// MTU of the interface to which the default route of IPv4 leads.
fn mtu() -> Verdict {
    let routes = fs::read_to_string("/proc/net/route").unwrap_or_default();
    let Some(device) = default_device(&routes) else { return Verdict::Ok("no default route".to_owned()) };
    // `/sys` may be that of another network namespace.
    let links: Value = serde_json::from_str(&ip(&["-json", "link", "show", "dev", device])).unwrap_or_default();
    match links[0]["mtu"].as_u64() {
        Some(mtu) if mtu < USUAL_MTU => Verdict::Note(format!(
            "{device} {mtu}: a tunnel's device is made for {USUAL_MTU}; hosts learn the smaller size by path MTU discovery, \
             or write the links with `mtu` (fatpath check --expand)"
        )),
        Some(mtu) => Verdict::Ok(format!("{device} {mtu}")),
        None => Verdict::Note(format!("{device}: unknown")),
    }
}

/// Interface of the default route in the text of `/proc/net/route`.
fn default_device(routes: &str) -> Option<&str> {
    routes.lines().skip(1).find_map(|line| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let is_default = columns.get(1) == Some(&"00000000") && columns.get(7) == Some(&"00000000");
        columns.first().copied().filter(|_| is_default)
    })
}

/// Sends a keepalive to a peer's port for ESP and IKE, and waits for an error.
fn peer(address: IpAddr) -> Verdict {
    let any: IpAddr = if address.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
    let sent = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect((address, NAT_T_PORT))?;
        socket.send(&KEEPALIVE)?;
        Ok(socket)
    });
    let socket = match sent {
        Ok(socket) => socket,
        Err(err) if matches!(err.kind(), ErrorKind::NetworkUnreachable | ErrorKind::HostUnreachable) => {
            return Verdict::Missing(format!("{address}: no route leads there; ip route add"));
        }
        Err(err) if err.kind() == ErrorKind::PermissionDenied => {
            return Verdict::Missing(format!(
                "{address}: {err}: the packet filter of this host drops UDP to port {NAT_T_PORT}; permit it"
            ));
        }
        Err(err) => return Verdict::Missing(format!("{address}: {err}")),
    };
    let own = socket.local_addr().map(|own| own.ip().to_string()).unwrap_or_default();
    let received = socket.set_read_timeout(Some(ERROR_LIMIT)).and_then(|()| socket.recv(&mut [0; 16]));
    match received.map_err(|err| err.kind()) {
        Err(ErrorKind::ConnectionRefused) => Verdict::Missing(format!(
            "{address}: UDP port {NAT_T_PORT} is unreachable: start the gateway there, or permit the port in its packet filter"
        )),
        _ if has_no_neighbour(address) => {
            Verdict::Missing(format!("{address}: no host answers for this address on its network; is it up?"))
        }
        _ => Verdict::Ok(format!(
            "{address}: no error from UDP port {NAT_T_PORT} within a second, from {own}; a filter that drops in silence looks alike"
        )),
    }
}

/// Output of the system's `ip`; empty if it fails.
fn ip(words: &[&str]) -> String {
    let output = system_ip().ok().and_then(|ip| Command::new(ip).args(words).stdin(Stdio::null()).output().ok());
    output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default()
}

/// Whether this host has asked its network for the address in vain, as ip-neighbour(8) tells.
fn has_no_neighbour(address: IpAddr) -> bool {
    let text = ip(&["neigh", "show", "to", &address.to_string()]);
    text.split_whitespace().any(|word| matches!(word, "INCOMPLETE" | "FAILED"))
}

fn descriptors() -> Verdict {
    // The gateway raises its limit in the same way.
    let _ = raise_descriptor_limit();
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
    if limit < MIN_DESCRIPTORS {
        return Verdict::Note(format!(
            "{limit}: few for many links and clients; raise the hard limit, as by ulimit -Hn"
        ));
    }
    Verdict::Ok(limit.to_string())
}

fn buffers() -> Verdict {
    let limits = ["rmem_max", "wmem_max"].map(|name| {
        let text = fs::read_to_string(format!("/proc/sys/net/core/{name}")).unwrap_or_default();
        (name, text.trim().parse::<u64>().ok())
    });
    let is_admin = capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::NET_ADMIN));
    let small: Vec<String> = limits
        .iter()
        .filter_map(|(name, limit)| limit.filter(|&limit| limit < MIN_BUFFER).map(|limit| format!("{name} {limit}")))
        .collect();
    match small.as_slice() {
        _ if is_admin => Verdict::Ok("CAP_NET_ADMIN exceeds their limits".to_owned()),
        [] => Verdict::Ok("large enough".to_owned()),
        small => Verdict::Note(format!(
            "net.core.{}: small for bursts; sysctl net.core.rmem_max={MIN_BUFFER} net.core.wmem_max={MIN_BUFFER}",
            small.join(", net.core.")
        )),
    }
}

fn port() -> Verdict {
    match UdpSocket::bind(("0.0.0.0", NAT_T_PORT)) {
        Ok(_) => Verdict::Ok("free".to_owned()),
        Err(err) if err.kind() == ErrorKind::AddrInUse => Verdict::Note(
            "in use, by a gateway or an IKE daemon: a udp link on the same address needs another port".to_owned(),
        ),
        Err(err) => Verdict::Note(err.to_string()),
    }
}

fn clock() -> Verdict {
    match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(time) if time.as_secs() >= START_OF_2025 => Verdict::Ok("set".to_owned()),
        _ => Verdict::Note("before 2025: certificates of IKE are not valid yet; set the time".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_has_verdict_subject_and_remedy() {
        let lines = [("ip", Verdict::Ok("/sbin/ip".to_owned())), (TUN, Verdict::Missing("make it".to_owned()))];
        assert_eq!(text(&lines), "ok       ip               /sbin/ip\nmissing  /dev/net/tun     make it\n");
    }

    #[test]
    fn user_namespaces_have_a_remedy_for_each_refusal() {
        let permitted = || UserNamespaces {
            is_restricted_by_apparmor: false,
            is_off: false,
            limit: Some(100),
            refusal: None,
            has_filter: false,
        };
        let refusal = || Some(io::Error::from(ErrorKind::PermissionDenied));
        let cases = [
            (
                UserNamespaces { is_restricted_by_apparmor: true, refusal: refusal(), ..permitted() },
                "userns=0, or a profile",
            ),
            (UserNamespaces { is_off: true, refusal: refusal(), ..permitted() }, "unprivileged_userns_clone=1"),
            (UserNamespaces { limit: Some(0), refusal: refusal(), ..permitted() }, "max_user_namespaces=15000"),
            (UserNamespaces { limit: None, refusal: refusal(), ..permitted() }, "not in this kernel"),
            (UserNamespaces { refusal: refusal(), has_filter: true, ..permitted() }, "seccomp=unconfined"),
            (UserNamespaces { refusal: refusal(), ..permitted() }, "permission denied: a gateway without root"),
        ];
        for (settings, want) in cases {
            let Verdict::Note(text) = settings.verdict() else { panic!("{want}") };
            assert!(text.contains(want), "{text}");
        }
        // A filter that permits them is no fault.
        let filtered = UserNamespaces { has_filter: true, ..permitted() };
        assert_eq!(filtered.verdict(), Verdict::Ok("permitted".to_owned()));
    }

    #[test]
    fn device_is_that_of_the_default_route() {
        let head = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n";
        let own = "eth1\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n";
        let half = "tun0\t00000000\t00000000\t0001\t0\t0\t0\t00000080\t0\t0\t0\n";
        let default = "eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n";
        assert_eq!(default_device(&[head, own, half, default].concat()), Some("eth0"));
        assert_eq!(default_device(&[head, own, half].concat()), None);
        assert_eq!(default_device(""), None);
    }

    #[test]
    fn kernel_of_this_machine_is_recognized() {
        assert!(matches!(kernel(), Verdict::Ok(text) if text.starts_with("Linux ")));
    }
}
