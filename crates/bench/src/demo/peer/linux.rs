//! The kernel's own ESP: SAs and policies of `ip xfrm` in both namespaces, raw ESP in tunnel mode on the wire.
//!
//! The demo does not make the kernel load ESP: where `esp4` and `xfrm_user` are modules and not loaded, this peer is
//! missing. Once they are, the kernel may load the cipher's modules by itself.

use std::fs;

use testbed::{Failure, Stop, tool};

use super::running::{Ground, Running, Setting};
use crate::demo::config::Keys;
use crate::demo::machine::{missing, program};
use crate::demo::topology::Side;

/// Number of the netlink protocol by which SAs are added (`NETLINK_XFRM` in `linux/netlink.h`).
const NETLINK_XFRM: &str = "6";
/// Remedy where the kernel has ESP in modules.
const LOAD: &str = "modprobe xfrm_user esp4, which the demo does not do by itself";

/// Fails if the kernel has no ESP, or has it in modules that are not loaded.
pub(super) fn check() -> Result<(), Failure> {
    program("unshare", "--version", "unshare", "apt-get install util-linux")?;
    let netlink = fs::read_to_string("/proc/net/netlink").unwrap_or_default();
    // Without that file the kernel has no modules at all.
    let modules = fs::read_to_string("/proc/modules").ok();
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let builtin = fs::read_to_string(format!("/lib/modules/{}/modules.builtin", release.trim())).unwrap_or_default();
    if !has_netlink(&netlink, NETLINK_XFRM) {
        return Err(match modules {
            Some(_) => missing("the kernel's module xfrm_user", LOAD),
            None => Failure::step("the kernel has no ESP", "it was built without NETLINK_XFRM"),
        });
    }
    if modules.is_some_and(|modules| !has_module(&modules, &builtin, "esp4")) {
        return Err(missing("the kernel's module esp4", LOAD));
    }
    let keys = Keys::random()?;
    // In a namespace that ends with the command.
    let probe = format!("--net ip {}", state(Side::A, keys.of_sides()[0]));
    match tool("unshare", &probe.split_whitespace().collect::<Vec<_>>(), &Stop::never()) {
        Ok(_) => Ok(()),
        Err(Failure::Step { why, .. }) => Err(Failure::step("the kernel has no ESP with AES-256-GCM", why)),
        Err(other) => Err(other),
    }
}

/// Tells whether the kernel has a socket of a netlink protocol, by the text of `/proc/net/netlink`.
fn has_netlink(table: &str, protocol: &str) -> bool {
    table.lines().any(|line| line.split_whitespace().nth(1) == Some(protocol))
}

/// Tells whether a module is loaded or built in, by the texts of `/proc/modules` and of `modules.builtin`.
fn has_module(loaded: &str, builtin: &str, name: &str) -> bool {
    let file = format!("/{name}.ko");
    loaded.lines().any(|line| line.split(' ').next() == Some(name)) || builtin.lines().any(|line| line.ends_with(&file))
}

/// Adds SAs and policies at both ends.
pub(super) fn start<'t>(ground: Ground<'t>, running: &mut Running<'t>) -> Result<(), Failure> {
    let Ground { topology, stop, .. } = ground;
    let keys = Keys::random()?;
    for side in Side::BOTH {
        let host = topology.host(side);
        let other = side.other();
        running.settings.push(Setting::address(host, format!("{}/32 dev lo", side.host()), stop)?);
        for from in Side::BOTH {
            let undo = format!("xfrm state delete {}", id(from));
            running.settings.push(Setting::set(host, &state(from, keys.of_sides()[from as usize]), undo, stop)?);
        }
        for (dir, from) in [("out", side), ("in", other), ("fwd", other)] {
            let undo = format!("xfrm policy delete {}", selector(dir, from));
            running.settings.push(Setting::set(host, &policy(dir, from), undo, stop)?);
        }
        let route = format!("{} via {} dev wire src {}", other.network(), other.wire(), side.host());
        running.settings.push(Setting::set(host, &format!("route add {route}"), format!("route del {route}"), stop)?);
    }
    Ok(())
}

/// Name of the SA of the packets that `from` sends, as `ip xfrm` takes it.
fn id(from: Side) -> String {
    let spi = 0x1000 * (from as u32 + 1);
    format!("src {} dst {} proto esp spi {spi:#x}", from.wire(), from.other().wire())
}

/// Command that adds this SA; window and sequence numbers are those of the gateways.
fn state(from: Side, key: &str) -> String {
    format!(
        "xfrm state add {} reqid 1 mode tunnel replay-window 1024 flag esn aead rfc4106(gcm(aes)) 0x{key} 128",
        id(from)
    )
}

/// Selector of the policy for packets from the host of `from` to the other host.
fn selector(dir: &str, from: Side) -> String {
    format!("src {} dst {} dir {dir}", from.network(), from.other().network())
}

/// Command that adds this policy.
fn policy(dir: &str, from: Side) -> String {
    let (src, dst) = (from.wire(), from.other().wire());
    format!("xfrm policy add {} tmpl src {src} dst {dst} proto esp reqid 1 mode tunnel", selector(dir, from))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn netlink_protocol_is_found_in_its_column() {
        let head = "sk               Eth Pid        Groups   Rmem     Wmem     Dump  Locks    Drops    Inode\n";
        let row =
            |protocol| format!("{head}00000000f9bcd664 {protocol:<3} 6          00000006 6        6        6     2\n");
        assert!(has_netlink(&row("6"), NETLINK_XFRM));
        assert!(!has_netlink(&row("16"), NETLINK_XFRM));
        assert!(!has_netlink(head, NETLINK_XFRM) && !has_netlink("", NETLINK_XFRM));
    }

    #[test]
    fn module_is_loaded_or_built_in_under_its_whole_name() {
        let loaded = "esp4 28672 0 - Live 0x0000000000000000\nxfrm_algo 16384 1 esp4, Live 0x0000000000000000\n";
        let builtin = "kernel/net/ipv4/esp4.ko\nkernel/net/xfrm/xfrm_user.ko\n";
        assert!(has_module(loaded, "", "esp4") && has_module("", builtin, "esp4"));
        assert!(!has_module("esp4_offload 1 0 - Live 0x0\n", "kernel/net/ipv4/esp4_offload.ko\n", "esp4"));
        assert!(!has_module("xfrm_algo 16384 1 esp4, Live 0x0\n", "kernel/net/ipv4/resp4.ko.xz\n", "esp4"));
    }

    #[test]
    fn out_policy_of_one_end_is_the_in_policy_of_the_other() {
        assert_eq!(policy("out", Side::A).replace("dir out", "dir in"), policy("in", Side::B.other()));
        assert!(state(Side::A, "00").contains("src 192.0.2.1 dst 192.0.2.2 proto esp spi 0x1000 reqid 1"));
        assert!(policy("out", Side::A).contains("tmpl src 192.0.2.1 dst 192.0.2.2 proto esp reqid 1"));
    }
}
