//! Removal of what a gateway that has ended leaves in its network namespace.

use client::CliError;
use netlink::rtnl::nums::RTM_GETROUTE;

use super::owner::{owner_of, tun_devices};
use super::wall::{self, Wall};
use crate::host::rtnl;
use crate::rtnetlink::Rtnetlink;

/// Objects that were removed.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Removed {
    /// Names of devices.
    pub devices: Vec<String>,
    /// Number of routes that dropped packets.
    pub routes: usize,
}

/// Removes the devices of the gateway `instance` in the present network namespace, and the routes that drop packets in
/// its absence.
///
/// # Errors
/// A program has one of the devices; nothing is removed. Or the kernel refuses.
pub fn remove(instance: &str) -> Result<Removed, CliError> {
    let failed = |what: &str, err: &std::io::Error| {
        let remedy = if err.kind() == std::io::ErrorKind::PermissionDenied {
            "; that takes CAP_NET_ADMIN, as with sudo"
        } else {
            ""
        };
        CliError::failed(format!("{what}: {err}{remedy}."))
    };
    let mut kernel = Rtnetlink::open().map_err(|err| failed("rtnetlink", &err))?;
    let mut devices = tun_devices(&mut kernel).map_err(|err| failed("list of devices", &err))?;
    devices.retain(|device| owner_of(device) == Some(instance));
    if let Some(device) = devices.iter().find(|device| device.is_attached) {
        return Err(CliError::failed(format!(
            "{}: a program has the device; does a gateway named {instance} run with another FATPATH_RUNDIR?",
            device.name
        )));
    }
    let mut removed = Removed::default();
    for device in devices {
        kernel
            .ask(|writer, seq| rtnl::write_removal(writer, device.index, seq))
            .map_err(|err| failed(&device.name, &err))?;
        removed.devices.push(device.name);
    }
    let (mark, mut walls) = (wall::mark(instance), Vec::new());
    kernel
        .dump(RTM_GETROUTE, |message| {
            walls.extend(rtnl::read_host_route(message).and_then(|route| Wall::of(&route, mark)));
        })
        .map_err(|err| failed("list of routes", &err))?;
    for wall in walls {
        let route = wall.route(mark);
        kernel
            .ask(|writer, seq| rtnl::write_host_route(writer, &route, false, seq))
            .map_err(|err| failed(&format!("blackhole route to {}", wall.prefix), &err))?;
        removed.routes += 1;
    }
    Ok(removed)
}
