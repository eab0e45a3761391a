//! Mappings of ILA, as netlink's clients read and change them. The workers have the same ones, and get each change before their
//! next packet, without a wait: a client may add a million.

use std::collections::BTreeMap;

use base::PortId;
use config::model::TableLimits;
use ila::{MappingChange, MappingKey, Mappings};
use netlink::Error;
use netlink::error::errno;
use netlink::generic::ila::{IlaBackend, Mapping, MappingName, MayAdd};
use netlink::rtnl::Model;
use packet::Budget;

use crate::command::{Handle, WorkerGone};
use crate::node::Node;

/// The workers as generic netlink's ILA table.
#[derive(Debug)]
pub(crate) struct WorkerIla {
    worker: Handle,
    /// The mappings after all changes, also those that the workers have yet to apply.
    mappings: Mappings,
    devices: Devices,
    /// Limit of mappings; 0 is none.
    max_mappings: u32,
}

/// Devices of the model, with the indexes that clients know.
#[derive(Debug, Default)]
struct Devices {
    /// The model's generation at which the devices were read.
    generation: Option<u32>,
    indexes: BTreeMap<PortId, u32>,
    ids: BTreeMap<u32, PortId>,
}

impl IlaBackend for WorkerIla {
    fn add(&mut self, mapping: Mapping, may: MayAdd) -> Result<bool, Error> {
        let key = self.key(mapping.name).ok_or(Error::text(errno::ENODEV, "No such device"))?;
        let is_there = self.mappings.get(key).is_some();
        match is_there {
            true if !may.replace => return Err(Error::new(errno::EEXIST)),
            false if !may.new => return Err(Error::new(errno::ENOENT)),
            true => {}
            false => TableLimits::admit(self.max_mappings, self.mappings.len(), "mappings")
                .map_err(|text| Error::owned_text(errno::ENOMEM, text))?,
        }
        let MappingKey { locator_match, identifier, link } = key;
        let Mapping { locator, csum_mode, ident_type, .. } = mapping;
        let mapping = ila::Mapping { locator_match, identifier, locator, link, csum_mode, ident_type };
        self.change(MappingChange::Set(mapping));
        Ok(is_there)
    }

    fn remove(&mut self, name: MappingName) -> Result<Option<Mapping>, Error> {
        let found = self.key(name).and_then(|key| self.mappings.get(key));
        if let Some(mapping) = &found {
            self.change(MappingChange::Remove(mapping.key()));
        }
        Ok(found.map(|mapping| self.devices.shown(&mapping)))
    }

    fn get(&mut self, name: MappingName) -> Result<Option<Mapping>, Error> {
        let found = self.key(name).and_then(|key| self.mappings.get(key));
        Ok(found.map(|mapping| self.devices.shown(&mapping)))
    }

    fn all(&mut self) -> Result<Vec<Mapping>, Error> {
        spare(self.mappings.len() * size_of::<Mapping>())?;
        let mut all: Vec<Mapping> = self.mappings.iter().map(|mapping| self.devices.shown(&mapping)).collect();
        // The order of look-up.
        all.sort_unstable_by_key(|mapping| {
            let MappingName { locator_match, identifier, ifindex } = mapping.name;
            (locator_match, identifier.is_none(), identifier, ifindex == 0, ifindex)
        });
        Ok(all)
    }

    fn flush(&mut self) -> Result<(), Error> {
        // This thread frees the memory of the old mappings.
        let flush = |node: &mut Node| vec![node.datapath.replace_ila(Mappings::default())];
        let all = |mut before: Vec<_>, others| {
            before.extend(others);
            before
        };
        self.worker
            .change(flush, all)
            .map(drop)
            .map_err(|gone: WorkerGone| Error::owned_text(errno::EBUSY, gone.to_string()))?;
        self.mappings = Mappings::default();
        Ok(())
    }
}

impl WorkerIla {
    /// No mappings, over `worker`.
    pub(super) fn new(worker: Handle) -> Self {
        Self { worker, mappings: Mappings::default(), devices: Devices::default(), max_mappings: 0 }
    }

    /// Sets the number of mappings above which requests for mappings are refused; 0 is no limit.
    pub(super) const fn set_max(&mut self, limit: u32) {
        self.max_mappings = limit;
    }

    /// Takes over the mappings that a configuration has given the workers.
    pub(crate) fn follow(&mut self, mappings: Mappings) {
        self.mappings = mappings;
    }

    /// Removes the mappings for devices that are gone, as the workers do: those in `closed`, and those that `model` does not have any
    /// more.
    pub(super) fn follow_devices(&mut self, model: &Model, closed: impl IntoIterator<Item = PortId>) {
        closed.into_iter().for_each(|id| drop(self.mappings.remove_link(id)));
        if self.devices.generation == Some(model.generation()) {
            return;
        }
        let before = std::mem::replace(&mut self.devices, Devices::of(model));
        for &id in before.indexes.keys().filter(|&id| !self.devices.indexes.contains_key(id)) {
            self.mappings.remove_link(id);
        }
    }

    /// Key of the mapping of a name; `None` if its device does not exist.
    fn key(&self, name: MappingName) -> Option<MappingKey> {
        let MappingName { locator_match, identifier, ifindex } = name;
        let link = if ifindex == 0 { None } else { Some(*self.devices.ids.get(&ifindex)?) };
        Some(MappingKey { locator_match, identifier, link })
    }

    fn change(&mut self, change: MappingChange) {
        self.mappings.apply(change);
        self.worker.queue_mapping(change);
    }
}

impl Devices {
    fn of(model: &Model) -> Self {
        let indexes: BTreeMap<PortId, u32> =
            model.links_after(0).map(|(id, _)| (PortId(id), model.ifindex(id).0)).collect();
        let ids = indexes.iter().map(|(&id, &index)| (index, id)).collect();
        Self { generation: Some(model.generation()), indexes, ids }
    }

    /// A mapping with the index of its device.
    fn shown(&self, mapping: &ila::Mapping) -> Mapping {
        let ila::Mapping { locator_match, identifier, locator, link, csum_mode, ident_type } = *mapping;
        // A mapping goes with its device.
        let ifindex = link.map_or(0, |link| self.indexes.get(&link).copied().unwrap_or(link.0));
        let name = MappingName { locator_match, identifier, ifindex };
        Mapping { name, locator, csum_mode, ident_type }
    }
}

/// Refuses a copy of so many bytes if it leaves less than half of the reserve.
fn spare(bytes: usize) -> Result<(), Error> {
    if Budget::spares(bytes as u64) { Ok(()) } else { Err(Error::new(errno::ENOMEM)) }
}

#[cfg(test)]
mod tests {
    use config::Config;
    use ila::{CsumMode, IdentType, Identifier, Locator};

    use super::*;
    use crate::command::{Inbox, Operation, channels};

    const NEW: MayAdd = MayAdd { new: true, replace: false };
    const REPLACE: MayAdd = MayAdd { new: false, replace: true };
    const LINK: u32 = 2;

    fn mapping(locator: u64, identifier: Option<u64>, ifindex: u32) -> Mapping {
        let name = MappingName { locator_match: Locator(1), identifier: identifier.map(Identifier), ifindex };
        let (csum_mode, ident_type) = (CsumMode::NeutralMap, IdentType::Luid);
        Mapping { name, locator: Locator(locator), csum_mode, ident_type }
    }

    /// Changes that wait for the worker, which was not woken for them.
    fn queued(inbox: &Inbox) -> Vec<MappingChange> {
        let mut operations = Vec::new();
        inbox.take(&mut operations);
        let change = |operation| match operation {
            Operation::Mapping(change) => change,
            other => panic!("{other:?}"),
        };
        operations.into_iter().map(change).collect()
    }

    /// A model with links of these names, of which the first has the number [`LINK`].
    fn model(names: &[&str]) -> Model {
        let link = |name| format!("[[link]]\nname = \"{name}\"\nkind = \"tun\"\n");
        let text: String = names.iter().map(link).collect();
        let config = Config::from_toml(&text, "x.toml").unwrap();
        let ids: Vec<PortId> = (LINK..).take(names.len()).map(PortId).collect();
        let mut model = Model::default();
        model.read(&config, &ids, &[], LINK);
        model
    }

    #[test]
    fn changes_are_queued_and_refusals_are_exact() {
        let (handle, [inbox]) = channels().unwrap();
        let mut ila = WorkerIla::new(handle);
        assert!(inbox.may_sleep());
        for identifier in [None, Some(7)] {
            let [first, second] = [10, 11].map(|locator| mapping(locator, identifier, 0));
            let name = first.name;
            let errno = |outcome: Result<bool, Error>| outcome.unwrap_err().errno;
            assert_eq!(errno(ila.add(first, REPLACE)), errno::ENOENT);
            assert_eq!(ila.remove(name).unwrap(), None);
            assert_eq!(errno(ila.add(mapping(10, identifier, 77), NEW)), errno::ENODEV);
            assert_eq!(queued(&inbox), []);
            assert!(!ila.add(first, NEW).unwrap());
            assert_eq!(errno(ila.add(second, NEW)), errno::EEXIST);
            assert_eq!(ila.get(name).unwrap(), Some(first));
            assert!(ila.add(second, REPLACE).unwrap());
            assert_eq!(ila.all().unwrap(), [second]);
            assert_eq!(ila.remove(name).unwrap(), Some(second));
            let changes = queued(&inbox);
            let locators = changes.iter().map(|change| match change {
                MappingChange::Set(mapping) => Some(mapping.locator.0),
                MappingChange::Remove(_) => None,
            });
            assert_eq!(locators.collect::<Vec<_>>(), [Some(10), Some(11), None]);
        }
        assert!(inbox.may_sleep(), "the worker is not woken");
    }

    #[test]
    fn limit_refuses_new_mappings_and_no_replacement() {
        let (handle, [inbox]) = channels().unwrap();
        let mut ila = WorkerIla::new(handle);
        ila.set_max(1);
        ila.add(mapping(10, None, 0), NEW).unwrap();
        let refused = ila.add(mapping(10, Some(7), 0), NEW).unwrap_err();
        assert_eq!(refused.errno, errno::ENOMEM);
        assert!(ila.add(mapping(11, None, 0), REPLACE).unwrap());
        assert_eq!(queued(&inbox).len(), 2);
    }

    #[test]
    fn mappings_of_a_device_go_with_it() {
        let (handle, [inbox]) = channels().unwrap();
        let mut ila = WorkerIla::new(handle);
        let both = model(&["a", "b"]);
        ila.follow_devices(&both, []);
        let [of_a, of_b] = [0, 1].map(|nth| mapping(10, Some(7), both.ifindex(LINK + nth).0));
        let any = mapping(10, None, 0);
        for one in [of_a, of_b, any] {
            ila.add(one, NEW).unwrap();
        }
        assert_eq!(ila.all().unwrap(), [of_a, of_b, any]);
        // It was made again meanwhile, with the same number.
        ila.follow_devices(&both, [PortId(LINK)]);
        assert_eq!(ila.all().unwrap(), [of_b, any]);
        // A file was loaded that does not have it.
        let mut one = model(&["a"]);
        one.read(&Config::default(), &[], &[], LINK);
        ila.follow_devices(&one, []);
        assert_eq!(ila.all().unwrap(), [any]);
        assert_eq!(ila.add(of_b, NEW).unwrap_err().errno, errno::ENODEV);
        // The worker removes those of a closed link itself.
        assert_eq!(queued(&inbox).len(), 3);
        let mut loaded = Mappings::default();
        loaded
            .add(ila::Mapping {
                locator_match: Locator(5),
                identifier: None,
                locator: Locator(6),
                link: None,
                csum_mode: CsumMode::NoAction,
                ident_type: IdentType::UseFormat,
            })
            .unwrap();
        ila.follow(loaded);
        assert_eq!(ila.all().unwrap().len(), 1);
        assert_eq!(queued(&inbox).len(), 0, "the workers have them from the plan");
    }
}
