//! Other tunnels in user space, for the same stream over the same wire.
//!
//! Each is set up as its own documents say, with its own defaults, and given nothing that slows it down. One that is not
//! installed or does not start is left out, and the report says why.

mod strongswan;
mod wireguard;

use std::path::PathBuf;

use super::daemon::Daemon;
use super::failure::Failure;
use super::machine::program;
use super::meter::Usage;
use super::netns::Namespace;
use super::process::{Scratch, command};
use super::stop::Stop;
use super::topology::{Side, Topology};

/// Another tunnel.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum Peer {
    /// WireGuard in Go.
    WireguardGo,
    /// WireGuard in Rust.
    Boringtun,
    /// strongSwan's own ESP (its plugin kernel-libipsec), with AES-256-GCM.
    Strongswan,
}

/// Processes and devices of one peer at both ends; gone on drop.
#[derive(Debug)]
pub(super) struct Running<'t> {
    /// The sender's end first.
    daemons: Vec<Daemon>,
    /// Addresses that have to be taken back.
    addresses: Vec<Address<'t>>,
    /// Files outside of the scratch directory that an end may leave behind.
    leftovers: Vec<PathBuf>,
}

/// An address of a device that stays.
#[derive(Debug)]
struct Address<'t> {
    host: &'t Namespace,
    /// Address and device, as `ip addr` takes them.
    words: String,
}

/// Environment in which a peer is started.
#[derive(Clone, Copy, Debug)]
struct Ground<'t> {
    topology: &'t Topology,
    scratch: &'t Scratch,
    stop: &'t Stop,
}

impl Peer {
    /// Peers in the order in which a round measures them.
    pub(super) const ALL: [Self; 3] = [Self::WireguardGo, Self::Boringtun, Self::Strongswan];

    /// Name in the report.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::WireguardGo => "wireguard-go",
            Self::Boringtun => "boringtun",
            Self::Strongswan => "strongswan",
        }
    }

    /// Fails with the first thing that is not installed.
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
        }
    }

    /// Starts it at both ends, and joins the hosts to it.
    pub(super) fn start<'t>(
        self,
        topology: &'t Topology,
        scratch: &'t Scratch,
        stop: &'t Stop,
    ) -> Result<Running<'t>, Failure> {
        let ground = Ground { topology, scratch, stop };
        let mut running = Running { daemons: Vec::new(), addresses: Vec::new(), leftovers: Vec::new() };
        let started = match self {
            Self::WireguardGo => wireguard::start(ground, &mut running, "wireguard-go", |device| {
                let mut command = command("wireguard-go");
                command.args(["-f", device]);
                command
            }),
            Self::Boringtun => wireguard::start(ground, &mut running, "boringtun", |device| {
                let mut command = command("boringtun-cli");
                // To drop privileges takes a login session.
                command.args(["--foreground", "--disable-drop-privileges", device]);
                command
            }),
            Self::Strongswan => strongswan::start(ground, &mut running),
        };
        match started {
            Ok(()) => Ok(running),
            Err(failure) => Err(running.explain(failure)),
        }
    }
}

impl Running<'_> {
    /// Usage of both ends so far.
    pub(super) fn usage(&self) -> Result<[Usage; 2], Failure> {
        let of = |side: Side| Usage::of(self.daemons[side as usize].pid());
        Ok([of(Side::A)?, of(Side::B)?])
    }

    /// Adds the logs of both ends to a failure.
    pub(super) fn explain(&mut self, failure: Failure) -> Failure {
        self.daemons.iter_mut().fold(failure, |failure, daemon| daemon.explain(failure))
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.daemons.clear();
        for file in &self.leftovers {
            // It is there only if its daemon had to be killed.
            let _ = std::fs::remove_file(file);
        }
    }
}

impl<'t> Address<'t> {
    fn add(host: &'t Namespace, words: String, stop: &Stop) -> Result<Self, Failure> {
        host.ip(&format!("addr add {words}"), stop)?;
        Ok(Self { host, words })
    }
}

impl Drop for Address<'_> {
    fn drop(&mut self) {
        if let Err(failure) = self.host.ip(&format!("addr del {}", self.words), &Stop::never()) {
            super::failure::warn(failure);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_peer_is_reported_with_the_way_to_get_it() {
        for peer in Peer::ALL {
            match peer.check() {
                Ok(()) => {}
                Err(Failure::Missing { how, .. }) => assert!(how.contains("install"), "{how}"),
                Err(other) => panic!("{other}"),
            }
        }
    }
}
