//! Duplicates of the descriptors of a running gateway.

use std::os::fd::OwnedFd;

use base::PortId;
use link::{Acquired, Duplicates};

use super::held::{PassedLink, resource_of, settings_of};
use crate::command::{Handle, WorkerGone};
use crate::node::Node;

/// One link of a shard.
struct ShardLink {
    id: PortId,
    name: String,
    settings: String,
    resource: String,
    mtu: usize,
    duplicates: Option<Duplicates>,
}

/// Links with a driver of a shard.
fn links_of(node: &mut Node) -> Vec<ShardLink> {
    let slots = node.slots.iter().enumerate();
    let each = slots.filter_map(|(at, slot)| {
        let slot = slot.as_ref()?;
        let (kind, name) = (slot.config.kind.driver()?, slot.config.name.clone());
        // A link that cannot be duplicated is opened by the next gateway.
        let duplicates = slot.link.duplicate().ok().flatten().filter(|_| !slot.link.is_gone());
        Some(ShardLink {
            id: PortId(at as u32),
            settings: settings_of(kind, slot.config.offloads),
            resource: resource_of(&name, kind),
            name,
            mtu: slot.link.mtu(),
            duplicates,
        })
    });
    each.collect()
}

/// All links with a driver. One that cannot be made from its descriptors has none.
///
/// # Errors
/// The worker does not answer.
pub(super) fn links(worker: &Handle) -> Result<Vec<PassedLink>, WorkerGone> {
    let mut shards = worker.gather(links_of)?.into_iter();
    let first = shards.next().unwrap_or_default();
    let mut others: Vec<Vec<ShardLink>> = shards.collect();
    let whole = |ShardLink { id, name, settings, resource, mtu, duplicates }| {
        let of_others = others.iter_mut().map(|links| {
            let link = links.iter_mut().find(|link| link.id == id)?;
            link.duplicates.take()
        });
        // All shards, or none.
        let whole: Option<Vec<Duplicates>> = std::iter::once(duplicates).chain(of_others).collect();
        let descriptors = whole.map(|whole| Acquired::of_shards(whole).descriptors).unwrap_or_default();
        PassedLink { name, settings, resource, mtu, descriptors }
    };
    Ok(first.into_iter().map(whole).collect())
}

/// The key managers' socket, if there is one.
pub(super) fn ike(worker: &Handle) -> Option<OwnedFd> {
    let ike = worker.call(|node| node.ike.as_ref().and_then(|ike| ike.fd().try_clone_to_owned().ok()));
    ike.ok().flatten()
}
