//! Links of the host, opened from a configuration.

use std::io;
use std::net::IpAddr;
use std::path::Path;

use base::ShardCount;
use client::CliError;
use config::model::{LinkConfig, LinkKind};
use driver::{DriverKind, Resource};
use link::{Acquired, InternalLink, Link};
use wire::eth::MacAddr;

use super::confine;
use super::files;
use super::host;
use super::opener::order::Opening;
use super::opener::request;
use super::random::random;
use super::replace::held::{self, Way};

/// Links over the queues of one device, one for each shard.
pub(crate) type Queues = Vec<Box<dyn Link>>;

/// Opener of links, which returns one for each shard. A device that is created for the link gets the interface index, if one is given.
pub(crate) type Open = fn(&LinkConfig, Option<u32>, ShardCount) -> Result<Queues, CliError>;

/// Tells whether the link's device exists on the host.
pub(crate) fn has_device(config: &LinkConfig) -> bool {
    config.kind.driver().is_some_and(|kind| link::has_device(&config.name, kind))
}

/// Opens a link of the host, or creates one of this node: one link for each shard, over a queue of its own. A shard for which the
/// device has no queue gets a link [elsewhere](InternalLink::elsewhere). A device that is created for the link gets the interface index
/// `index`, if one is given.
pub(crate) fn open(
    config: &LinkConfig,
    index: Option<u32>,
    shards: ShardCount,
) -> Result<Vec<Box<dyn Link>>, CliError> {
    let internal = |link: &dyn Fn() -> InternalLink| shards.all().map(|_| Box::new(link()) as Box<dyn Link>).collect();
    let kind = match &config.kind {
        LinkKind::Vlan { .. } => return Ok(internal(&|| InternalLink::vlan(&config.name, config.mtu))),
        LinkKind::Bridge(_) => {
            let station = station(&config.name)?;
            return Ok(internal(&|| InternalLink::bridge(&config.name, station, config.mtu)));
        }
        LinkKind::Loopback | LinkKind::Vrf { .. } => {
            let kind = config.kind.word();
            return Err(CliError::failed(format!("link {}: a link of kind {kind} has no device", config.name)));
        }
        LinkKind::Driver(kind) => kind.clone(),
    };
    let admitted = confine::admit(&kind, confine::rights());
    admitted.map_err(|why| CliError::failed(format!("link {}: {why}", config.name)))?;
    let LinkConfig { ref name, mtu, offloads, .. } = *config;
    let is_guests = matches!(kind.resource(), Resource::VhostSocket(_));
    let mac = is_guests.then(|| station(&config.name)).transpose()?;
    let opening = || {
        let (name, kind, shards) = (name.clone(), kind.clone(), shards.get() as u8);
        Opening { name, kind, mtu, offloads, index, shards }
    };
    let driver_config = link::Config { name: name.clone(), kind: kind.clone(), mac, mtu, offloads, index };
    if let DriverKind::VirtioUser { socket, .. } = &kind {
        files::find_back_end(Path::new(socket)).map_err(|err| {
            let hint = if err.kind() == io::ErrorKind::PermissionDenied { confine::connect_hint() } else { "" };
            CliError::failed(format!("link {name}: {socket}: {err}{hint}"))
        })?;
    }
    let (opened, is_own) = loop {
        match held::way_to(&driver_config) {
            Way::Open if is_guests => {
                break (link::from_descriptors(&driver_config, Acquired::default(), shards), false);
            }
            Way::Open => {
                let (acquired, is_own) = request::open(opening()).map_err(CliError::failed)?;
                break (link::from_descriptors(&driver_config, acquired, shards), is_own);
            }
            Way::Make(acquired) => {
                let is_own = !is_guests && request::adopt(opening()).map_err(CliError::failed)?;
                match link::from_descriptors(&driver_config, acquired, shards) {
                    Ok(made) => break (Ok(made), is_own),
                    // Its device may be another one by now.
                    Err(err) => tracing::warn!("link {name}: opened anew: {err}"),
                }
            }
            Way::Wait => {
                // It is opened after the start, when it would take a client's right.
                if !is_guests {
                    request::adopt(opening()).map_err(CliError::failed)?;
                }
                return Ok(shards.all().map(|_| Box::new(link::held(&driver_config)) as Box<dyn Link>).collect());
            }
        }
    };
    let mut queues = opened.map_err(|err| {
        let on = if err.device == config.name { String::new() } else { format!("link {}: ", config.name) };
        let socket = match driver_config.kind.resource() {
            Resource::VhostSocket(path) if err.source.kind() == io::ErrorKind::PermissionDenied => {
                confine::write_hint(Path::new(path))
            }
            _ => String::new(),
        };
        CliError::failed(format!("{on}{err}{socket}"))
    })?;
    let Some(opened) = queues.first_mut() else {
        return Err(CliError::failed(format!("link {}: its device has no queue", config.name)));
    };
    if is_own {
        opened.own();
    }
    if let Some(ring) = opened.ring() {
        let found = opened.offloads().iter().filter(|found| !found.on);
        let found: Vec<_> =
            found.map(|found| format!("{}: {}", found.name, found.why.as_deref().unwrap_or(""))).collect();
        let mode = if ring.native { "native" } else { "generic" };
        let copy = if ring.zero_copy { "zero copy" } else { "copy" };
        tracing::info!(
            queues = ring.queues,
            frames = ring.frames,
            "{}: {mode} XDP, {copy}; {}",
            config.name,
            found.join("; ")
        );
    }
    warn_of_host_addresses(config, &**opened);
    let others: Vec<_> = (queues.len()..shards.get()).map(|_| InternalLink::elsewhere(&*queues[0])).collect();
    queues.extend(others.into_iter().map(|link| Box::new(link) as Box<dyn Link>));
    Ok(queues)
}

/// Warns about a link on an interface whose addresses also belong to the host: the host's kernel replies to packets for
/// them, as the node does.
fn warn_of_host_addresses(config: &LinkConfig, link: &dyn Link) {
    let LinkKind::Driver(DriverKind::Packet { interface, exclusive: false }) = &config.kind else { return };
    let found = link.host_index().map(host::addresses_of_interface);
    let Some(Ok(found)) = found else { return };
    // The kernel assigns a link-local address to each interface.
    let is_link_local = |addr: IpAddr| matches!(addr, IpAddr::V6(addr) if addr.is_unicast_link_local());
    let found: Vec<_> = found.iter().filter(|found| !is_link_local(found.addr())).map(ToString::to_string).collect();
    if !found.is_empty() {
        let addresses = found.join(", ");
        tracing::warn!(
            "{}: {interface} has {addresses}: the host's kernel also receives and answers packets to them",
            config.name
        );
    }
}

/// Link-layer address of a link: that of the gateway before, or a random one, locally administered (Linux `eth_random_addr`).
fn station(name: &str) -> Result<MacAddr, CliError> {
    if let Some(station) = held::station_of(name) {
        return Ok(station);
    }
    let bits = random().map_err(|err| CliError::system("getrandom", &err))?;
    let [first, b, c, d, e, f, ..] = bits.to_le_bytes();
    Ok(MacAddr([first & 0xfc | 2, b, c, d, e, f]))
}
