//! Other tunnels for the same stream over the same wire: programs in user space, and the kernel's own ESP.
//!
//! Each is set up as documented, with its defaults, and without options that slow it down. A peer that is not installed
//! or does not start is skipped, and the report has the reason.

mod linux;
mod running;
mod strongswan;
mod wireguard;

use testbed::{Failure, Scratch, Stop, command};

use super::machine::program;
use super::topology::Topology;
use running::{Ground, Running};

/// Another tunnel.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum Peer {
    /// WireGuard in Go.
    WireguardGo,
    /// WireGuard in Rust.
    Boringtun,
    /// strongSwan's own ESP (its plugin kernel-libipsec), with AES-256-GCM.
    Strongswan,
    /// The kernel's own ESP, with AES-256-GCM.
    LinuxEsp,
}

impl Peer {
    /// Peers in the order in which a round measures them.
    pub(super) const ALL: [Self; 4] = [Self::WireguardGo, Self::Boringtun, Self::Strongswan, Self::LinuxEsp];

    /// Name in the report.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::WireguardGo => "wireguard-go",
            Self::Boringtun => "boringtun",
            Self::Strongswan => "strongswan",
            Self::LinuxEsp => "linux-esp",
        }
    }

    /// Fails with the first missing program, or the kernel's lack.
    pub(super) fn check(self) -> Result<(), Failure> {
        let wg = || program("wg", "--version", "wg", "apt-get install wireguard-tools");
        match self {
            Self::WireguardGo => {
                let how = "go install golang.zx2c4.com/wireguard@latest, and name it so";
                program("wireguard-go", "--version", "wireguard-go", how).and_then(|()| wg())
            }
            Self::Boringtun => {
                program("boringtun-cli", "--version", "boringtun-cli", "cargo install --locked boringtun-cli")
                    .and_then(|()| wg())
            }
            Self::Strongswan => strongswan::check(),
            Self::LinuxEsp => linux::check(),
        }
    }

    /// Starts the peer at both ends, and connects the hosts to it.
    pub(super) fn start<'t>(
        self,
        topology: &'t Topology,
        scratch: &'t Scratch,
        stop: &'t Stop,
    ) -> Result<Running<'t>, Failure> {
        let ground = Ground { topology, scratch, stop };
        let mut running = Running { daemons: Vec::new(), settings: Vec::new(), leftovers: Vec::new() };
        let started = match self {
            Self::WireguardGo => wireguard::start(ground, &mut running, "wireguard-go", |device| {
                let mut command = command("wireguard-go");
                command.args(["-f", device]);
                command
            }),
            Self::Boringtun => wireguard::start(ground, &mut running, "boringtun", |device| {
                let mut command = command("boringtun-cli");
                // Dropping privileges takes a login session.
                command.args(["--foreground", "--disable-drop-privileges", device]);
                command
            }),
            Self::Strongswan => strongswan::start(ground, &mut running),
            Self::LinuxEsp => linux::start(ground, &mut running),
        };
        match started {
            Ok(()) => Ok(running),
            Err(failure) => Err(running.explain(failure)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_peer_is_reported_with_its_remedy() {
        for peer in Peer::ALL {
            match peer.check() {
                Ok(()) => {}
                Err(Failure::Missing { how, .. }) => {
                    let word = if peer == Peer::LinuxEsp { "modprobe" } else { "install" };
                    assert!(how.contains(word), "{how}");
                }
                // No package remedies a kernel.
                Err(Failure::Step { doing, .. }) if peer == Peer::LinuxEsp => {
                    assert!(doing.starts_with("the kernel has no ESP"), "{doing}");
                }
                Err(other) => panic!("{other}"),
            }
        }
    }
}
