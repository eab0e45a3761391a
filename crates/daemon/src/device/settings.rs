//! Addresses and routes of the file on devices: the difference from what the kernel has is carried out as a whole or
//! undone. Addresses and routes of other programs are left alone.

use std::collections::BTreeSet;
use std::fmt;
use std::io;

use base::TableId;
use config::model::{DeviceConfig, DeviceRoute};
use netlink::rtnl::nums::{RTM_GETADDR, RTM_GETROUTE, RTN_UNICAST};

use super::PROTOCOL;
use super::owner::tun_devices;
use crate::host::rtnl::{self, HostAddress, HostRoute};
use crate::opener::order::Change;
use crate::opener::request;
use crate::rtnetlink::Rtnetlink;

/// Device of a link, with its settings in the file.
#[derive(Clone, Debug)]
pub(crate) struct DeviceSettings {
    pub(crate) name: String,
    /// Number of the interface.
    pub(crate) index: u32,
    pub(crate) config: DeviceConfig,
}

/// Address or route of a device.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Item {
    Address(HostAddress),
    Route(HostRoute),
}

impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => write!(f, "address {}", address.addr),
            Self::Route(route) => {
                write!(f, "route to {}", route.prefix)?;
                route.src.map_or(Ok(()), |src| write!(f, " with src {src}"))
            }
        }
    }
}

/// Change of an item.
#[derive(Clone, Debug)]
struct Step {
    /// Name of the device.
    name: String,
    item: Item,
    is_new: bool,
}

/// Steps that were carried out.
#[derive(Debug, Default)]
pub(crate) struct Done(Vec<Step>);

impl Done {
    /// Undoes the steps.
    pub(crate) fn undo(self) {
        for Step { name, item, is_new } in self.0.into_iter().rev() {
            if let Err(err) = carry_out(&item, !is_new) {
                tracing::error!("{name}: {item}: not restored: {err}");
            }
        }
    }
}

/// Addresses and routes that the kernel has.
#[derive(Debug, Default)]
struct Present {
    addresses: Vec<HostAddress>,
    /// Routes of the main table.
    routes: Vec<HostRoute>,
}

impl Present {
    fn read(kernel: &mut Rtnetlink) -> io::Result<Self> {
        let mut present = Self::default();
        kernel.dump(RTM_GETADDR, |message| present.addresses.extend(rtnl::read_host_address(message)))?;
        kernel.dump(RTM_GETROUTE, |message| {
            let route = rtnl::read_host_route(message);
            present.routes.extend(route.filter(|route| route.table == TableId::MAIN.0));
        })?;
        Ok(present)
    }

    /// The file's items on devices with these numbers, also those of an earlier run.
    fn of_file(&self, devices: &BTreeSet<u32>) -> impl Iterator<Item = Item> {
        let is_ours = |route: &&HostRoute| {
            route.protocol == PROTOCOL && matches!(route.devices[..], [index] if devices.contains(&index))
        };
        let routes = self.routes.iter().filter(is_ours).cloned().map(Item::Route);
        let is_ours = |address: &&HostAddress| address.protocol == PROTOCOL && devices.contains(&address.index);
        routes.chain(self.addresses.iter().filter(is_ours).copied().map(Item::Address))
    }
}

/// The items of a device.
fn items(device: &DeviceSettings) -> impl Iterator<Item = Item> + '_ {
    let index = device.index;
    let addresses = device.config.addresses.iter();
    let addresses = addresses.map(move |&addr| Item::Address(HostAddress { index, addr, protocol: PROTOCOL }));
    let route = move |&DeviceRoute { to, src, metric }: &DeviceRoute| {
        let (table, kind, devices) = (TableId::MAIN.0, RTN_UNICAST, vec![index]);
        Item::Route(HostRoute { table, prefix: to, metric, kind, protocol: PROTOCOL, src, devices, mark: 0 })
    };
    addresses.chain(device.config.routes.iter().map(route))
}

/// Leads from the settings of the devices `old` to those of `new`. What the file still has and another program has
/// removed is set again. Devices that have left this network namespace are left alone.
///
/// # Errors
/// An address or a route is refused, or rtnetlink does not answer. Nothing has changed then.
pub(crate) fn change(old: &[DeviceSettings], new: &[DeviceSettings]) -> Result<Done, String> {
    let is_plain = |device: &DeviceSettings| device.config.is_empty();
    if new.is_empty() && old.is_empty() || !old.is_empty() && old.iter().chain(new).all(is_plain) {
        return Ok(Done::default());
    }
    let unread = |err: io::Error| format!("rtnetlink: addresses and routes of devices: {err}");
    let mut kernel = Rtnetlink::open().map_err(unread)?;
    let here: BTreeSet<u32> = tun_devices(&mut kernel).map_err(unread)?.iter().map(|device| device.index).collect();
    let (there, away): (Vec<&DeviceSettings>, Vec<&DeviceSettings>) =
        new.iter().partition(|device| here.contains(&device.index));
    for device in away.into_iter().filter(|device| !is_plain(device)) {
        tracing::warn!(
            "{}: the device is in another network namespace; its addresses and routes are not set",
            device.name
        );
    }
    let present = Present::read(&mut kernel).map_err(unread)?;
    let name_of = |item: &Item| {
        let index = match item {
            Item::Address(address) => address.index,
            Item::Route(route) => route.devices.first().copied().unwrap_or(0),
        };
        let device = old.iter().chain(new).find(|device| device.index == index);
        device.map_or_else(|| index.to_string(), |device| device.name.clone())
    };
    let all: BTreeSet<u32> =
        old.iter().chain(new).map(|device| device.index).filter(|index| here.contains(index)).collect();
    let wanted: BTreeSet<Item> = there.iter().flat_map(|device| items(device)).collect();
    // Linux before 5.18 does not know whose addresses are.
    let of_old = old.iter().filter(|device| here.contains(&device.index)).flat_map(items);
    let mut gone: Vec<Item> = present.of_file(&all).chain(of_old).filter(|item| !wanted.contains(item)).collect();
    gone.sort_by(|a, b| b.cmp(a));
    gone.dedup();
    let mut done = Done::default();
    let gone = gone.into_iter().map(|item| (item, false));
    for (item, is_new) in gone.chain(wanted.into_iter().map(|item| (item, true))) {
        let name = name_of(&item);
        match carry_out(&item, is_new) {
            Ok(()) => done.0.push(Step { name, item, is_new }),
            Err(err) => match refusal(&err, &item, is_new, &present) {
                None => {}
                Some(Refusal::Later) => tracing::warn!("{name}: {item}: the device is down; a reload sets it again"),
                Some(Refusal::Final(why)) => {
                    done.undo();
                    return Err(format!("{name}: {item}: {err}{why}"));
                }
            },
        }
    }
    Ok(done)
}

fn carry_out(item: &Item, is_new: bool) -> io::Result<()> {
    request::change_one(match item.clone() {
        Item::Address(address) => Change::Address { address, is_new },
        Item::Route(route) => Change::Route { route, is_new },
    })
}

/// Result of a refused step.
enum Refusal {
    /// The step can be repeated when the device is up.
    Later,
    /// The step fails, with the remedy.
    Final(String),
}

/// Judges the kernel's refusal; `None` if everything is as wanted.
fn refusal(err: &io::Error, item: &Item, is_new: bool, present: &Present) -> Option<Refusal> {
    use rustix::io::Errno;
    // Without a number it is no answer of the kernel: nothing is known to be as wanted.
    let Some(errno) = Errno::from_io_error(err) else { return Some(Refusal::Final(String::new())) };
    let remedy = match (errno, item) {
        (Errno::SRCH | Errno::ADDRNOTAVAIL | Errno::NODEV | Errno::NOENT, _) if !is_new => return None,
        (Errno::EXIST, Item::Address(_)) => return None,
        (Errno::EXIST, Item::Route(route)) => {
            let same = |other: &&HostRoute| (other.prefix, other.metric) == (route.prefix, route.metric);
            let is_there = |other: &HostRoute| other.devices == route.devices && other.src == route.src;
            if present.routes.iter().filter(same).any(is_there) {
                return None;
            }
            "; another route to that prefix has this metric, give one of them another".to_owned()
        }
        (Errno::NETDOWN, _) if is_new => return Some(Refusal::Later),
        (Errno::INVAL, Item::Route(HostRoute { src: Some(src), .. })) => {
            format!("; {src} is no address of this host")
        }
        (Errno::ACCESS | Errno::OPNOTSUPP, Item::Address(address)) if address.addr.addr().is_ipv6() => {
            "; this host has IPv6 off (net.ipv6.conf.*.disable_ipv6)".to_owned()
        }
        (Errno::PERM, _) => "; that takes CAP_NET_ADMIN".to_owned(),
        _ => String::new(),
    };
    Some(Refusal::Final(remedy))
}
