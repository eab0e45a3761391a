//! Duplicates of the descriptors of a running gateway.

use std::os::fd::OwnedFd;

use base::PortId;
use config::model::LinkKind;
use driver::Resource;
use link::{Acquired, Duplicates, Layer};

use super::held::{PassedLink, resource_of, settings_of};
use crate::command::{Handle, WorkerGone};
use crate::node::Node;
use crate::slot::Slot;

/// One link of a shard.
struct ShardLink {
    id: PortId,
    name: String,
    settings: String,
    resource: String,
    mtu: usize,
    station: Option<[u8; 6]>,
    duplicates: Option<Duplicates>,
}

/// Link-layer address of a link that gets a random one.
fn station_of(slot: &Slot) -> Option<[u8; 6]> {
    let is_random = match &slot.config.kind {
        LinkKind::Bridge(_) => true,
        LinkKind::Driver(kind) => matches!(kind.resource(), Resource::VhostSocket(_)),
        LinkKind::Loopback | LinkKind::Vrf { .. } | LinkKind::Vlan { .. } => false,
    };
    match slot.link.layer() {
        Layer::Ethernet(station) if is_random => Some(station.0),
        _ => None,
    }
}

/// Bridges, and links with a driver, of a shard.
fn links_of(node: &mut Node) -> Vec<ShardLink> {
    let slots = node.slots.iter().enumerate();
    let each = slots.filter_map(|(at, slot)| {
        let slot = slot.as_ref()?;
        let (kind, name) = (slot.config.kind.driver(), slot.config.name.clone());
        let station = station_of(slot);
        if kind.is_none() && station.is_none() {
            return None;
        }
        // A link that cannot be duplicated is opened by the next gateway.
        let duplicates = slot.link.duplicate().ok().flatten().filter(|_| !slot.link.is_gone());
        Some(ShardLink {
            id: PortId(at as u32),
            settings: kind.map(|kind| settings_of(kind, slot.config.offloads)).unwrap_or_default(),
            resource: kind.map(|kind| resource_of(&name, kind)).unwrap_or_default(),
            name,
            mtu: slot.link.mtu(),
            station,
            duplicates,
        })
    });
    each.collect()
}

/// All links with a driver. One that cannot be made from its descriptors has none, and so does a bridge, of which the address is passed.
///
/// # Errors
/// The worker does not answer.
pub(super) fn links(worker: &Handle) -> Result<Vec<PassedLink>, WorkerGone> {
    let mut shards = worker.gather(links_of)?.into_iter();
    let first = shards.next().unwrap_or_default();
    let mut others: Vec<Vec<ShardLink>> = shards.collect();
    let whole = |ShardLink { id, name, settings, resource, mtu, station, duplicates }| {
        let of_others = others.iter_mut().map(|links| {
            let link = links.iter_mut().find(|link| link.id == id)?;
            link.duplicates.take()
        });
        // All shards, or none.
        let whole: Option<Vec<Duplicates>> = std::iter::once(duplicates).chain(of_others).collect();
        let descriptors = whole.map(|whole| Acquired::of_shards(whole).descriptors).unwrap_or_default();
        PassedLink { name, settings, resource, mtu, station, descriptors }
    };
    Ok(first.into_iter().map(whole).collect())
}

/// The key managers' socket, if there is one.
pub(super) fn ike(worker: &Handle) -> Option<OwnedFd> {
    let ike = worker.call(|node| node.ike.as_ref().and_then(|ike| ike.fd().try_clone_to_owned().ok()));
    ike.ok().flatten()
}
