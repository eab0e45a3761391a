//! `fatpath doctor`: requirements of a gateway on this machine, each with its remedy.

use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::ErrorKind;
use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use client::{CliError, find_sibling, gateway_program, own_socket_path, print, raise_descriptor_limit, system_ip};
use rustix::process::geteuid;
use rustix::thread::{CapabilitySet, capabilities};

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
pub(crate) fn main() -> Result<ExitCode, CliError> {
    let lines = [
        ("kernel", kernel()),
        ("processor", processor()),
        ("run directory", run_directory()),
        ("ip", found(system_ip().map(|path| path.display().to_string()))),
        ("preload library", found(gateway_program::library().map(|path| path.display().to_string()))),
        ("fatpath-bench", bench()),
        ("capabilities", capabilities_of_process()),
        (TUN, tun()),
        ("user namespaces", user_namespaces()),
        ("descriptors", descriptors()),
        ("socket buffers", buffers()),
        ("UDP port 4500", port()),
        ("clock", clock()),
    ];
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

fn user_namespaces() -> Verdict {
    let number = |path: &str| fs::read_to_string(path).ok().and_then(|text| text.trim().parse::<u64>().ok());
    let remedy = "a gateway without root has no host side, and `fatpath try` needs sudo";
    if number("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == Some(1) {
        return Verdict::Note(format!(
            "restricted by AppArmor: {remedy}; sysctl kernel.apparmor_restrict_unprivileged_userns=0, or a profile, permits them"
        ));
    }
    if number("/proc/sys/kernel/unprivileged_userns_clone") == Some(0) {
        return Verdict::Note(format!("off: {remedy}; sysctl kernel.unprivileged_userns_clone=1 permits them"));
    }
    match number("/proc/sys/user/max_user_namespaces") {
        Some(0) => {
            Verdict::Note(format!("none permitted: {remedy}; sysctl user.max_user_namespaces=15000 permits them"))
        }
        Some(_) => Verdict::Ok("permitted".to_owned()),
        None => Verdict::Note(format!("not in this kernel: {remedy}")),
    }
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
    fn kernel_of_this_machine_is_recognized() {
        assert!(matches!(kernel(), Verdict::Ok(text) if text.starts_with("Linux ")));
    }
}
