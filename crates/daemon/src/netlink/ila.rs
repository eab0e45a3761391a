//! Netlink's view of the ILA mappings, which the worker owns.

use base::PortId;
use config::model::TableLimits;
use ila::Locator;
use netlink::Error;
use netlink::error::errno;
use netlink::generic::ila::{IlaBackend, Mapping};
use packet::Budget;

use crate::command::{Handle, WorkerGone, agreed, same};
use crate::node::Node;

/// The worker as generic netlink's ILA table.
#[derive(Debug)]
pub(crate) struct WorkerIla(pub(super) Handle);

impl IlaBackend for WorkerIla {
    fn add(&mut self, mapping: Mapping) -> Result<(), Error> {
        let add = move |node: &mut Node| {
            let Mapping { locator_match, locator, ifindex, csum_mode, ident_type } = mapping;
            let link = node.link_of(ifindex);
            let is_there = |link| link == PortId::LOOPBACK || node.datapath.ports.get(link).is_some();
            if !link.is_none_or(is_there) {
                return Err(Error::text(errno::ENODEV, "No such device"));
            }
            let used = node.datapath.ila().len();
            TableLimits::admit(node.limits.mappings, used, "mappings")
                .map_err(|text| Error::owned_text(errno::ENOMEM, text))?;
            let mapping = ila::Mapping { locator_match, locator, link, csum_mode, ident_type };
            node.datapath.add_ila(mapping).map_err(|ila::Exists| Error::new(errno::EEXIST))
        };
        self.0.change(add, agreed).map_err(|gone| silent(&gone))?
    }

    fn remove(&mut self, locator_match: Locator, ifindex: u32) -> Result<(), Error> {
        let remove = move |node: &mut Node| {
            let link = node.link_of(ifindex);
            node.datapath.remove_ila(locator_match, link);
        };
        self.0.change(remove, same).map_err(|gone| silent(&gone))
    }

    fn get(&mut self, locator_match: Locator, ifindex: u32) -> Result<Option<Mapping>, Error> {
        self.call(move |node| {
            let found = node.datapath.ila().get(locator_match, node.link_of(ifindex));
            found.map(|mapping| shown(node, &mapping))
        })
    }

    fn all(&mut self) -> Result<Vec<Mapping>, Error> {
        let mut all = self.call(|node| {
            spare(node.datapath.ila().len() * size_of::<Mapping>())?;
            let all = node.datapath.ila().iter();
            Ok::<_, Error>(all.map(|mapping| shown(node, &mapping)).collect::<Vec<_>>())
        })??;
        // The order of look-up. This thread sorts, as the worker must process packets.
        all.sort_unstable_by_key(|mapping| (mapping.locator_match, mapping.ifindex == 0, mapping.ifindex));
        Ok(all)
    }

    fn flush(&mut self) -> Result<(), Error> {
        // This thread frees the memory of the old mappings.
        let flush = |node: &mut Node| vec![node.datapath.replace_ila(ila::Mappings::default())];
        let all = |mut before: Vec<_>, others| {
            before.extend(others);
            before
        };
        self.0.change(flush, all).map(drop).map_err(|gone| silent(&gone))
    }
}

impl WorkerIla {
    fn call<T: Send + 'static>(&self, what: impl FnOnce(&mut Node) -> T + Send + 'static) -> Result<T, Error> {
        self.0.call(what).map_err(|gone| silent(&gone))
    }
}

/// Refuses a copy of so many bytes if it leaves less than half of the reserve.
fn spare(bytes: usize) -> Result<(), Error> {
    if Budget::spares(bytes as u64) { Ok(()) } else { Err(Error::new(errno::ENOMEM)) }
}

fn silent(gone: &WorkerGone) -> Error {
    Error::owned_text(errno::EBUSY, gone.to_string())
}

/// A mapping with the index of its device.
fn shown(node: &Node, mapping: &ila::Mapping) -> Mapping {
    let ila::Mapping { locator_match, locator, link, csum_mode, ident_type } = *mapping;
    let ifindex = link.map_or(0, |link| node.ifindex(link).0);
    Mapping { locator_match, locator, ifindex, csum_mode, ident_type }
}
