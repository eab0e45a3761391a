//! WireGuard in user space: a program that creates a TUN device and gets its keys from `wg`.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use testbed::{Daemon, Failure, tool};

use super::running::{Ground, Running};
use crate::demo::topology::Side;

/// Longest time until a program accepts commands.
const START_LIMIT: Duration = Duration::from_secs(5);
/// UDP port of both ends.
const PORT: u16 = 51_820;
/// The MTU that wg-quick sets on a device over a 1500-byte wire, for both outer families.
const MTU: u32 = 1420;
/// Directory of these programs' sockets, which are named after the device.
const SOCKETS: &str = "/var/run/wireguard";

/// Starts `program` at both ends; `run` is its command for a device.
pub(super) fn start(
    ground: Ground<'_>,
    running: &mut Running<'_>,
    program: &'static str,
    run: fn(&str) -> Command,
) -> Result<(), Failure> {
    let Ground { topology, scratch, stop } = ground;
    // The sockets of all namespaces are in one directory.
    let device = |side: Side| format!("fp{}{}", side.letter(), std::process::id());
    let mut keys = Vec::new();
    for side in Side::BOTH {
        let (name, device) = (format!("{program} {}", side.letter()), device(side));
        running.leftovers.push(Path::new(SOCKETS).join(format!("{device}.sock")));
        let mut daemon = Daemon::start(name, &device, scratch, topology.gateway(side), || run(&device))?;
        stop.wait(&format!("{} to answer", daemon.name()), START_LIMIT, || {
            daemon.check()?;
            Ok(tool("wg", &["show", &device], stop).ok())
        })
        .map_err(|failure| daemon.explain(failure))?;
        running.daemons.push(daemon);
        let private = tool("wg", &["genkey"], stop)?;
        let file = scratch.write(&format!("{device}.key"), &private)?;
        let public = tool("sh", &["-c", "wg pubkey <\"$0\"", &file.display().to_string()], stop)?;
        keys.push((private, public));
    }
    for side in Side::BOTH {
        let device = device(side);
        let (private, public) = (&keys[side as usize].0, &keys[side.other() as usize].1);
        let file = scratch.write(&format!("{device}.conf"), &config(side, private, public))?;
        let host = topology.host(side);
        host.enter(|| tool("wg", &["setconf", &device, &file.display().to_string()], stop).map(drop))?;
        host.ip(&format!("link set {device} mtu {MTU} up"), stop)?;
        host.ip(&format!("addr add {}/24 dev {device}", side.host()), stop)?;
        host.ip(&format!("route add {} dev {device} src {}", side.other().network(), side.host()), stop)?;
    }
    Ok(())
}

/// Input of `wg setconf` for one end.
fn config(side: Side, private: &str, public: &str) -> String {
    let (network, wire) = (side.other().network(), side.other().wire());
    format!(
        "[Interface]\nPrivateKey = {}\nListenPort = {PORT}\n\n\
         [Peer]\nPublicKey = {}\nAllowedIPs = {network}\nEndpoint = {wire}:{PORT}\n",
        private.trim(),
        public.trim()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_end_has_the_address_of_the_other() {
        let want = "[Interface]\nPrivateKey = own\nListenPort = 51820\n\n\
                    [Peer]\nPublicKey = its\nAllowedIPs = 10.2.0.0/24\nEndpoint = 192.0.2.2:51820\n";
        assert_eq!(config(Side::A, "own\n", "its\n"), want);
    }
}
