//! Table of mappings, by locator, identifier and device (Linux `ila_xlat.c`, which has no mappings by identifier).

use std::fmt;
use std::net::Ipv6Addr;

use base::PortId;

use crate::checksum::{CsumMode, Diff};
use crate::identifier::{IdentType, Identifier};
use crate::locator::Locator;
use crate::parted_table::{Keyed, PartedTable};
use crate::translate::Rewrite;

/// Mapping of one locator to another, for all addresses of the first or for a single one.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Mapping {
    /// Locator of the destinations to translate.
    pub locator_match: Locator,
    /// Identifier of the destination to translate, as it is in the packet; `None` for all of the locator.
    pub identifier: Option<Identifier>,
    /// Locator after the translation.
    pub locator: Locator,
    /// Device on which the packets arrive, a link or a VRF; `None` for any.
    pub link: Option<PortId>,
    /// Treatment of checksums.
    pub csum_mode: CsumMode,
    /// Type of the identifiers, as information for the operator.
    pub ident_type: IdentType,
}

/// Properties by which a mapping is unique.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct MappingKey {
    /// Locator of the destinations to translate.
    pub locator_match: Locator,
    /// Identifier of the destination to translate; `None` for all of the locator.
    pub identifier: Option<Identifier>,
    /// Device on which the packets arrive; `None` for any.
    pub link: Option<PortId>,
}

/// Change of a table.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum MappingChange {
    /// The mapping is added, or replaces the one with its key.
    Set(Mapping),
    /// The mapping with the key is removed, if present.
    Remove(MappingKey),
}

/// Error: a mapping of the same addresses for the same device exists already.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Exists;

/// The mappings. A locator, and each of its addresses, has at most one mapping for each device, and one for any device. A
/// mapping of the address takes precedence over one of its locator; of two of either kind, the one for the packet's own
/// device over the one for any device.
///
/// The table has one owner, for look-ups and changes, so a look-up sees every earlier change, and meets either the replaced
/// mapping or the new one. Growth moves a small part of the mappings at a time. The table takes at most
/// [`BYTES_OF_MAPPING`](Self::BYTES_OF_MAPPING) per mapping of a locator, and
/// [`BYTES_OF_ADDRESS`](Self::BYTES_OF_ADDRESS) per mapping of an address, from 16 384 mappings on.
#[derive(Clone, Default)]
pub struct Mappings {
    /// Mappings of locators.
    locators: PartedTable<Entry>,
    /// Mappings of addresses.
    addresses: PartedTable<AddressEntry>,
    /// Mappings for one device.
    of_devices: usize,
}

/// Device number that stands for any device.
const ANY: u32 = 0;

/// Mapping of a locator in the table.
#[derive(Clone, Copy, Debug)]
struct Entry {
    locator_match: Locator,
    locator: Locator,
    /// Number of the device; 0, which no link has, stands for any device.
    device: u32,
    diff: Diff,
    csum_mode: CsumMode,
    ident_type: IdentType,
}

/// Mapping of an address in the table.
#[derive(Clone, Copy, Debug)]
struct AddressEntry {
    identifier: Identifier,
    entry: Entry,
}

impl Keyed for Entry {
    type Key = (Locator, u32);

    #[inline]
    fn key(&self) -> Self::Key {
        (self.locator_match, self.device)
    }
}

impl Keyed for AddressEntry {
    type Key = (Locator, Identifier, u32);

    #[inline]
    fn key(&self) -> Self::Key {
        (self.entry.locator_match, self.identifier, self.entry.device)
    }
}

impl Entry {
    fn new(mapping: &Mapping) -> Self {
        let Mapping { locator_match, locator, link, csum_mode, ident_type, .. } = *mapping;
        let diff = Diff::between(locator_match, locator);
        Self { locator_match, locator, device: number_of(link), diff, csum_mode, ident_type }
    }

    fn mapping(&self) -> Mapping {
        let Self { locator_match, locator, device, csum_mode, ident_type, .. } = *self;
        let link = (device != ANY).then_some(PortId(device));
        Mapping { locator_match, identifier: None, locator, link, csum_mode, ident_type }
    }

    #[inline]
    const fn rewrite(&self) -> Rewrite {
        Rewrite { locator: self.locator, csum_mode: self.csum_mode, diff: Some(self.diff) }
    }
}

impl AddressEntry {
    fn mapping(&self) -> Mapping {
        Mapping { identifier: Some(self.identifier), ..self.entry.mapping() }
    }
}

impl Mapping {
    /// The mapping's key.
    pub const fn key(&self) -> MappingKey {
        MappingKey { locator_match: self.locator_match, identifier: self.identifier, link: self.link }
    }
}

impl MappingKey {
    /// Key of a mapping of all addresses of a locator.
    pub const fn of_locator(locator_match: Locator, link: Option<PortId>) -> Self {
        Self { locator_match, identifier: None, link }
    }

    /// Place in a list: by locator, mappings of addresses first; of equal ones the mapping for any device comes last.
    pub fn place(&self) -> impl Ord + Copy + use<> {
        let Self { locator_match, identifier, link } = *self;
        (locator_match, identifier.is_none(), identifier, link.is_none(), link)
    }
}

impl Mappings {
    /// Maximum number of bytes per mapping of a locator, in a table of 16 384 or more: 24 and one of the hash table's own,
    /// while less than half of the entries are in use.
    pub const BYTES_OF_MAPPING: usize = 58;

    /// Maximum number of bytes per mapping of an address, likewise: 32 and one.
    pub const BYTES_OF_ADDRESS: usize = 77;

    /// Adds a mapping.
    ///
    /// # Errors
    /// [`Exists`] if there is one with its key.
    pub fn add(&mut self, mapping: Mapping) -> Result<(), Exists> {
        if self.get(mapping.key()).is_some() {
            return Err(Exists);
        }
        self.set(mapping);
        Ok(())
    }

    /// Adds a mapping, or replaces the one with its key in one step. Returns the replaced one.
    pub fn set(&mut self, mapping: Mapping) -> Option<Mapping> {
        let entry = Entry::new(&mapping);
        let replaced = match mapping.identifier {
            None => self.locators.set(entry).map(|it| it.mapping()),
            Some(identifier) => self.addresses.set(AddressEntry { identifier, entry }).map(|it| it.mapping()),
        };
        self.of_devices += usize::from(replaced.is_none() && mapping.link.is_some());
        replaced
    }

    /// Removes the mapping with a key, and returns it.
    pub fn remove(&mut self, key: MappingKey) -> Option<Mapping> {
        let MappingKey { locator_match, identifier, link } = key;
        let device = number_of(link);
        let removed = match identifier {
            None => self.locators.remove((locator_match, device)).map(|it| it.mapping()),
            Some(identifier) => self.addresses.remove((locator_match, identifier, device)).map(|it| it.mapping()),
        };
        self.of_devices -= usize::from(removed.is_some() && link.is_some());
        removed
    }

    /// Makes a change. Returns the mapping that was there.
    pub fn apply(&mut self, change: MappingChange) -> Option<Mapping> {
        match change {
            MappingChange::Set(mapping) => self.set(mapping),
            MappingChange::Remove(key) => self.remove(key),
        }
    }

    /// Removes the mappings for a removed device, and returns them.
    pub fn remove_link(&mut self, link: PortId) -> Vec<Mapping> {
        if self.of_devices == 0 {
            return Vec::new();
        }
        let of_locators = self.locators.extract(|entry| entry.device == link.0);
        let of_addresses = self.addresses.extract(|it| it.entry.device == link.0);
        let of_addresses = of_addresses.iter().map(AddressEntry::mapping);
        let gone: Vec<Mapping> = of_locators.iter().map(Entry::mapping).chain(of_addresses).collect();
        self.of_devices -= gone.len();
        gone
    }

    /// Reserves room for that many more mappings of locators, so that their addition moves few others.
    pub fn reserve(&mut self, additional: usize) {
        self.locators.reserve(additional);
    }

    /// Mapping with exactly that key.
    pub fn get(&self, key: MappingKey) -> Option<Mapping> {
        let MappingKey { locator_match, identifier, link } = key;
        let device = number_of(link);
        match identifier {
            None => self.locators.find((locator_match, device)).map(Entry::mapping),
            Some(identifier) => self.addresses.find((locator_match, identifier, device)).map(AddressEntry::mapping),
        }
    }

    /// Translation for a packet to `dst` that arrived on `link`: the mapping of the address for that device, else for any
    /// device, else that of its locator for the device, else for any.
    #[inline]
    pub fn lookup(&self, dst: Ipv6Addr, link: PortId) -> Option<Rewrite> {
        if !self.addresses.is_empty()
            && let Some(entry) = self.find_address(dst, link)
        {
            return Some(entry.rewrite());
        }
        let locator = Locator::of(dst);
        let of_device = if self.of_devices > 0 { self.locators.find((locator, link.0)) } else { None };
        Some(of_device.or_else(|| self.locators.find((locator, ANY)))?.rewrite())
    }

    fn find_address(&self, dst: Ipv6Addr, link: PortId) -> Option<&Entry> {
        let (locator, identifier) = (Locator::of(dst), Identifier::of(dst));
        let find = |device| self.addresses.find((locator, identifier, device));
        let of_device = if self.of_devices > 0 { find(link.0) } else { None };
        of_device.or_else(|| find(ANY)).map(|it| &it.entry)
    }

    /// Number of mappings.
    pub const fn len(&self) -> usize {
        self.locators.len() + self.addresses.len()
    }

    /// Tells whether there are no mappings.
    pub const fn is_empty(&self) -> bool {
        self.locators.is_empty() && self.addresses.is_empty()
    }

    /// All mappings, in arbitrary order.
    pub fn iter(&self) -> impl Iterator<Item = Mapping> + '_ {
        self.locators.iter().map(Entry::mapping).chain(self.addresses.iter().map(AddressEntry::mapping))
    }

    /// Mappings from a position on, each with its position. A change may move mappings to other positions.
    pub fn from_position(&self, from: usize) -> impl Iterator<Item = (usize, Mapping)> + '_ {
        let locators = (from < ADDRESSES).then(|| self.locators.starting_at(from));
        let addresses = self.addresses.starting_at(from.saturating_sub(ADDRESSES));
        let of_locators = locators.into_iter().flatten().map(|(at, entry)| (at, entry.mapping()));
        of_locators.chain(addresses.map(|(at, it)| (ADDRESSES + at, it.mapping())))
    }

    /// All mappings, in the order of their [places](MappingKey::place).
    pub fn snapshot(&self) -> Vec<Mapping> {
        let mut all: Vec<Mapping> = self.iter().collect();
        all.sort_unstable_by_key(|mapping| mapping.key().place());
        all
    }
}

/// Position of the first mapping of an address, behind all of locators.
const ADDRESSES: usize = 1 << 60;

impl fmt::Debug for Mappings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mappings({})", self.len())
    }
}

/// Number of a mapping's device in the table.
fn number_of(link: Option<PortId>) -> u32 {
    link.map_or(ANY, |link| link.0)
}

impl fmt::Display for Exists {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("there is a mapping of that locator, or of that address, for that device already")
    }
}

impl std::error::Error for Exists {}

#[cfg(test)]
mod tests {
    use super::*;

    const NET: Option<PortId> = None;
    const ETH: Option<PortId> = Some(PortId(2));
    const WAN: Option<PortId> = Some(PortId(3));

    fn mapping(locator_match: u64, locator: u64, link: Option<PortId>) -> Mapping {
        Mapping {
            locator_match: Locator(locator_match),
            identifier: None,
            locator: Locator(locator),
            link,
            csum_mode: CsumMode::NeutralMap,
            ident_type: IdentType::Luid,
        }
    }

    fn of_address(locator_match: u64, identifier: u64, locator: u64, link: Option<PortId>) -> Mapping {
        Mapping { identifier: Some(Identifier(identifier)), ..mapping(locator_match, locator, link) }
    }

    fn key(locator_match: u64, link: Option<PortId>) -> MappingKey {
        MappingKey::of_locator(Locator(locator_match), link)
    }

    fn found_of(mappings: &Mappings, locator: u64, identifier: u64, link: PortId) -> Option<u64> {
        let dst = Locator(locator).with(Identifier(identifier));
        mappings.lookup(dst, link).map(|rewrite| rewrite.locator.0)
    }

    fn found(mappings: &Mappings, locator: u64, link: PortId) -> Option<u64> {
        found_of(mappings, locator, 7, link)
    }

    #[test]
    fn mapping_for_device_is_used_before_one_for_any() {
        // In each order of addition, and again while the mappings are removed one by one.
        let all = [mapping(1, 10, NET), mapping(1, 12, ETH), mapping(1, 13, WAN)];
        for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            let mut mappings = Mappings::default();
            for at in order {
                mappings.add(all[at]).unwrap();
            }
            let seen = |mappings: &Mappings| [2, 3, 4].map(PortId).map(|link| found(mappings, 1, link));
            assert_eq!(seen(&mappings), [Some(12), Some(13), Some(10)]);
            assert_eq!(mappings.remove(key(1, ETH)), Some(all[1]));
            assert_eq!(seen(&mappings), [Some(10), Some(13), Some(10)]);
            assert_eq!(mappings.remove(key(1, NET)), Some(all[0]));
            assert_eq!(seen(&mappings), [None, Some(13), None]);
            assert_eq!(mappings.remove(key(1, WAN)), Some(all[2]));
            assert_eq!(seen(&mappings), [None; 3]);
            assert!(mappings.is_empty());
        }
    }

    #[test]
    fn mapping_of_address_is_used_before_its_locators() {
        let all = [
            mapping(1, 10, NET),
            mapping(1, 12, ETH),
            of_address(1, 5, 20, NET),
            of_address(1, 5, 22, ETH),
            of_address(1, 6, 30, NET),
        ];
        let mut mappings = Mappings::default();
        for at in [3, 1, 0, 4, 2] {
            mappings.add(all[at]).unwrap();
        }
        assert_eq!(mappings.add(of_address(1, 5, 9, ETH)), Err(Exists));
        let seen = |mappings: &Mappings, link: u32| [5, 6, 7].map(|it| found_of(mappings, 1, it, PortId(link)));
        assert_eq!(seen(&mappings, 2), [Some(22), Some(30), Some(12)]);
        assert_eq!(seen(&mappings, 4), [Some(20), Some(30), Some(10)]);
        assert_eq!(found_of(&mappings, 2, 5, PortId(2)), None, "another locator");
        assert_eq!(mappings.get(all[3].key()), Some(all[3]));
        assert_eq!(mappings.remove(all[3].key()), Some(all[3]));
        // Of the address for any device, although the locator has one for the device.
        assert_eq!(seen(&mappings, 2), [Some(20), Some(30), Some(12)]);
        assert_eq!(mappings.remove(key(1, NET)), Some(all[0]));
        assert_eq!(seen(&mappings, 4), [Some(20), Some(30), None]);
        assert_eq!(mappings.remove(all[2].key()), Some(all[2]));
        assert_eq!(seen(&mappings, 2), [Some(12), Some(30), Some(12)]);
        assert_eq!(mappings.len(), 2);
    }

    #[test]
    fn second_mapping_of_locator_and_device_is_refused() {
        let mut mappings = Mappings::default();
        mappings.add(mapping(1, 10, ETH)).unwrap();
        assert_eq!(mappings.add(mapping(1, 11, ETH)), Err(Exists));
        assert_eq!(mappings.get(key(1, ETH)), Some(mapping(1, 10, ETH)));
        assert_eq!(mappings.get(key(1, NET)), None);
        assert_eq!(mappings.remove(key(1, NET)), None);
        assert_eq!(mappings.len(), 1);
    }

    #[test]
    fn replaced_mapping_has_the_difference_of_the_new_one() {
        let mut mappings = Mappings::default();
        for before in [mapping(1, 10, ETH), of_address(1, 7, 10, ETH)] {
            let after = Mapping { locator: Locator(0xfd00 << 48), csum_mode: CsumMode::NoAction, ..before };
            assert_eq!(mappings.set(before), None);
            assert_eq!(mappings.set(after), Some(before));
            assert_eq!((mappings.get(before.key()), mappings.of_devices), (Some(after), 1));
            let (locator, csum_mode) = (after.locator, after.csum_mode);
            let want = Rewrite { locator, csum_mode, diff: Some(Diff::between(Locator(1), locator)) };
            assert_eq!(mappings.lookup(Locator(1).with(Identifier(7)), PortId(2)), Some(want));
            mappings.apply(MappingChange::Remove(before.key()));
            assert_eq!((mappings.len(), mappings.of_devices), (0, 0));
        }
    }

    #[test]
    fn snapshot_is_in_order_and_whole() {
        let mut mappings = Mappings::default();
        let sorted = [
            mapping(0, 9, NET),
            of_address(1, 2, 1, WAN),
            of_address(1, 2, 8, NET),
            of_address(1, 3, 1, ETH),
            mapping(1, 3, ETH),
            mapping(1, 2, WAN),
            mapping(1, 7, NET),
            mapping(2, 1, NET),
        ];
        for at in [3, 0, 4, 7, 2, 6, 1, 5] {
            mappings.apply(MappingChange::Set(sorted[at]));
        }
        assert_eq!(mappings.snapshot(), sorted);
        let mut by_position: Vec<Mapping> = Vec::new();
        let mut next = 0;
        while let Some((at, mapping)) = mappings.from_position(next).next() {
            by_position.push(mapping);
            next = at + 1;
        }
        by_position.sort_unstable_by_key(|mapping| mapping.key().place());
        assert_eq!(by_position, sorted);
        let mut gone = mappings.remove_link(PortId(2));
        gone.sort_unstable_by_key(|mapping| mapping.key().place());
        assert_eq!(gone, [sorted[3], sorted[4]]);
        assert_eq!(mappings.remove_link(PortId(4)), []);
        let left = [sorted[0], sorted[1], sorted[2], sorted[5], sorted[6], sorted[7]];
        assert_eq!((mappings.snapshot(), mappings.of_devices), (left.to_vec(), 2));
    }

    #[test]
    fn million_mappings_take_the_documented_memory() {
        let mut mappings = Mappings::default();
        for n in 0..1_000_000 {
            mappings.add(mapping(n << 16, n, NET)).unwrap();
            if n >= 16_384 && n % 1024 == 0 {
                let most = Mappings::BYTES_OF_MAPPING * mappings.len();
                let bytes = mappings.locators.allocation_size();
                assert!(bytes <= most, "{bytes} B for {n}");
            }
        }
        for n in 0..1_000_000 {
            assert_eq!(found(&mappings, n << 16, PortId(2)), Some(n));
        }
        for n in 0..1_000_000 {
            assert!(mappings.remove(key(n << 16, NET)).is_some(), "{n}");
        }
        let bytes = mappings.locators.allocation_size();
        assert_eq!(bytes, 0, "{bytes} B are left");
    }

    #[test]
    fn mappings_of_addresses_take_the_documented_memory() {
        let mut mappings = Mappings::default();
        for n in 0..200_000 {
            mappings.add(of_address(1, n, n, NET)).unwrap();
            if n >= 16_384 && n % 1024 == 0 {
                let most = Mappings::BYTES_OF_ADDRESS * mappings.len();
                let bytes = mappings.addresses.allocation_size();
                assert!(bytes <= most, "{bytes} B for {n}");
            }
        }
        assert_eq!(mappings.iter().count(), 200_000);
    }
}
