//! `fatpath exec` and `fatpath ip`: other programs, whose netlink sockets connect to a gateway and never to the host's
//! kernel ([`launch`]).

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use client::gateway_program::HostSidePlace;
use client::{CliError, Client, gateway_program, netlink_path, system_ip, unreachable};
use ctl::state::HostDeviceState;
use ctl::{Reply, Request, Shown, StateKind};
use launch::filter::{Internet, Netfilter};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};

use crate::cli::{ExecArgs, IpArgs, Sockets};
use crate::enter::enter;

/// Executes the program in this process.
///
/// # Errors
/// The gateway does not run, the library is missing, or the program cannot load it.
pub(crate) fn main(args: &ExecArgs, instance: &str) -> Result<(), CliError> {
    let (program, rest) = args.program.split_first().ok_or_else(|| CliError::failed("no program"))?;
    let place = HostSidePlace { vrf: args.vrf.as_deref(), host_firewall: args.host_firewall };
    exec(instance, args.sockets, place, program, rest)
}

/// Executes the system's `ip`. Options for `ip` itself, such as `-V`, need no gateway.
///
/// # Errors
/// As [`main`].
pub(crate) fn ip(args: &IpArgs, instance: &str) -> Result<(), CliError> {
    let misplaced = behind_options(&args.words).iter().find(|word| *word == "-i");
    if let Some(word) = args.words.iter().find(|word| is_instance(word)).or(misplaced) {
        let text = format!("{}: it goes before ip's own words: fatpath -i NAME ip ...", word.display());
        return Err(CliError::failed(text));
    }
    if args.words.windows(2).any(|words| is_tunnel_change(&words[0], &words[1])) {
        let text = "ip tunnel: fatpath has no such tunnels; `ip xfrm` makes those of ESP.";
        return Err(CliError::failed(text));
    }
    let ip = system_ip()?;
    if is_about_itself(&args.words) {
        return Err(CliError::failed(format!("{}: {}", ip.display(), Command::new(&ip).args(&args.words).exec())));
    }
    // `ip` works through netlink alone, so its other sockets may stay.
    let place = HostSidePlace { vrf: None, host_firewall: false };
    exec(instance, Sockets::Host, place, ip.as_os_str(), &args.words)
}

/// Whether a word is the option for the gateway's name, which `ip` has not.
fn is_instance(word: &OsStr) -> bool {
    word == "--instance" || word.as_encoded_bytes().starts_with(b"--instance=")
}

/// The words behind ip's own options, of which `-i` is a short form of `-iec`.
fn behind_options(mut words: &[OsString]) -> &[OsString] {
    const WITH_VALUE: [&str; 5] = ["-family", "-netns", "-batch", "-loops", "-rcvbuf"];
    while let [first, rest @ ..] = words
        && let Some(option) = first.to_str().filter(|word| word.starts_with('-'))
    {
        let option = if option.starts_with("--") { &option[1..] } else { option };
        let has_value = option.len() > 1 && WITH_VALUE.iter().any(|known| known.starts_with(option));
        words = if has_value { rest.get(1..).unwrap_or_default() } else { rest };
    }
    words
}

/// Whether two words make `ip` change a tunnel, which it asks the kernel for by `ioctl` (`ip tunnel`).
fn is_tunnel_change(object: &OsStr, verb: &OsStr) -> bool {
    let [object, verb] = [object, verb].map(OsStr::as_encoded_bytes);
    object.starts_with(b"tunn")
        && b"tunnel".starts_with(object)
        && [&b"add"[..], b"change", b"chg", b"delete"].iter().any(|known| !verb.is_empty() && known.starts_with(verb))
}

/// Whether `ip` would only print its usage or version: its first argument decides.
fn is_about_itself(words: &[OsString]) -> bool {
    words.first().is_none_or(|word| ["help", "-help", "--help", "-V", "-Version"].iter().any(|it| word == it))
}

fn exec(
    instance: &str,
    sockets: Sockets,
    place: HostSidePlace<'_>,
    program: &OsStr,
    arguments: &[OsString],
) -> Result<(), CliError> {
    let shown = program.to_string_lossy();
    let netlink = netlink_path(instance);
    let mut command = gateway_program::command(program, &netlink)?;
    try_connect(&netlink).map_err(|errno| unreachable(instance, &netlink, &errno.into()))?;
    if let Some(vrf) = place.vrf {
        check_vrf(instance, vrf)?;
    }
    if sockets == Sockets::Gateway && enter(instance)? {
        gateway_program::set_gateway(&mut command, &netlink, Some(place))?;
    } else if let Some(vrf) = place.vrf {
        return Err(CliError::failed(format!("--vrf {vrf}: sockets are not on the gateway's host side.")));
    } else if place.host_firewall {
        return Err(CliError::failed("--host-firewall: sockets are not on the gateway's host side."));
    }
    let internet = if place.vrf.is_some() { Internet::Marked } else { Internet::Any };
    let netfilter = if place.host_firewall { Netfilter::HostSide } else { Netfilter::None };
    launch::filter::set(internet, netfilter)
        .map_err(|err| CliError::failed(format!("seccomp: {err}; without it no program is started.")))?;
    // With the filter, the program may have lost the rights because of which its loader would ignore the library.
    gateway_program::check_loads(program, &command)?;
    Err(CliError::failed(format!("{shown}: {}", command.args(arguments).exec())))
}

/// Checks that the gateway has a VRF of that name, with a device on its host side.
///
/// # Errors
/// The VRF does not exist, or has no device there.
fn check_vrf(instance: &str, vrf: &str) -> Result<(), CliError> {
    let mut client = Client::connect(instance)?;
    let Reply::Show { shown: Shown::Links(links) } = client.ask(&Request::Show { what: StateKind::Links })? else {
        return Err(client.confused());
    };
    let refused = |why: &str| Err(CliError::failed(format!("--vrf {vrf}: {why}.")));
    match links.iter().find(|link| link.name == vrf) {
        None => return refused("there is no such VRF"),
        Some(link) if link.kind != "vrf" => return refused("that is no VRF"),
        Some(_) => {}
    }
    let Reply::Show { shown: Shown::Host(host) } = client.ask(&Request::ShowHost)? else {
        return Err(client.confused());
    };
    match host.devices.iter().find(|device| device.name == vrf) {
        Some(HostDeviceState { why_not: None, .. }) => Ok(()),
        Some(HostDeviceState { why_not: Some(why), .. }) => refused(&format!("no device on the host side: {why}")),
        None => refused("the gateway has no host side"),
    }
}

/// Fails if no gateway serves netlink at `path`.
fn try_connect(path: &Path) -> Result<(), Errno> {
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ip_help_and_version_need_no_gateway() {
        let about = |words: &str| is_about_itself(&words.split_whitespace().map(OsString::from).collect::<Vec<_>>());
        for words in ["", "help", "-help", "--help", "-V", "help link"] {
            assert!(about(words), "{words}");
        }
        for words in ["link", "-h link", "link del help", "link show help", "-s help"] {
            assert!(!about(words), "{words}");
        }
    }
}
