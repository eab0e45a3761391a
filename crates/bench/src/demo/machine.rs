//! Requirements of the demo on the machine, checked before the demo changes the machine.

use std::env;
use std::fs::OpenOptions;
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::process::Stdio;

use client::{PROGRAM_VARIABLE, find_sibling};

use super::failure::Failure;
use super::process::command;
use super::topology::Deployment;

/// TUN and TAP devices.
pub(super) const TUN: &str = "/dev/net/tun";

/// Opens `/dev/net/tun` and closes it again.
///
/// # Errors
/// The device does not exist, or this user may not open it.
pub(super) fn open_tun() -> io::Result<()> {
    OpenOptions::new().read(true).write(true).open(TUN).map(drop)
}

/// Fails with the first missing requirement and its remedy.
pub(super) fn check(deployment: Deployment, iperf3: bool, switch: bool) -> Result<(), Failure> {
    fatpath()?;
    if !rustix::process::geteuid().is_root() {
        let how = "run it as `fatpath demo`, which makes namespaces of its own, or with sudo";
        return Err(missing("root, to create network namespaces", how));
    }
    program("ip", "-V", "iproute2's ip", "apt-get install iproute2")?;
    match deployment {
        Deployment::Tunnel => {
            if let Err(err) = open_tun() {
                let how = "modprobe tun, or give the container its device with --device /dev/net/tun";
                return Err(missing(&format!("{TUN} ({err})"), how));
            }
        }
        Deployment::Router => program("ethtool", "--version", "ethtool, for --router", "apt-get install ethtool")?,
    }
    if switch {
        program("ethtool", "--version", "ethtool, for --switch", "apt-get install ethtool")?;
    }
    if iperf3 {
        program("iperf3", "--version", "iperf3, for --iperf3", "apt-get install iperf3")?;
    }
    Ok(())
}

/// Path of the program `fatpath`: the one that started this program, or one in this program's directory or in `PATH`.
///
/// # Errors
/// There is no such program.
pub(super) fn fatpath() -> Result<PathBuf, Failure> {
    let started_by = env::var_os(PROGRAM_VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from);
    started_by.or_else(|| find_sibling("fatpath")).ok_or_else(|| {
        missing(
            "fatpath, in the directory of fatpath-bench or in PATH",
            "build it with `cargo build --release -p fatpath`",
        )
    })
}

/// Fails if a program cannot be found.
pub(super) fn program(name: &str, version_option: &str, what: &str, how: &'static str) -> Result<(), Failure> {
    let ran = command(name).arg(version_option).stdout(Stdio::null()).stderr(Stdio::null()).status();
    match ran {
        Err(err) if err.kind() == ErrorKind::NotFound => Err(missing(what, how)),
        Err(err) => Err(Failure::step(name, err)),
        Ok(_) => Ok(()),
    }
}

/// Failure for a missing requirement.
pub(super) fn missing(what: &str, how: &'static str) -> Failure {
    Failure::Missing { what: what.to_owned(), how }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_program_is_named_with_its_package() {
        let missing = program("fatpath-no-such-program", "-V", "a program", "install it").unwrap_err();
        assert_eq!(missing.to_string(), "demo needs a program: install it");
        assert!(program("sh", "-c", "a shell", "install it").is_ok());
    }
}
