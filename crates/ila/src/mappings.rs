//! Table of mappings, by locator and device (Linux `ila_xlat.c`).

use std::fmt;
use std::hash::BuildHasher;

use base::PortId;
use foldhash::quality::RandomState;
use hashbrown::HashTable;

use crate::checksum::{CsumMode, Diff};
use crate::identifier::IdentType;
use crate::locator::Locator;
use crate::translate::Rewrite;

/// Mapping of one locator to another.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Mapping {
    /// Locator of the destinations to translate.
    pub locator_match: Locator,
    /// Locator after the translation.
    pub locator: Locator,
    /// Device on which the packets arrive, a link or a VRF; `None` for any.
    pub link: Option<PortId>,
    /// Treatment of checksums.
    pub csum_mode: CsumMode,
    /// Type of the identifiers, as information for the operator.
    pub ident_type: IdentType,
}

/// Error: a mapping of the same locator for the same device exists already.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Exists;

/// The mappings. A locator has at most one mapping for each device, and one for any device; a mapping for the packet's
/// own device takes precedence over the one for any device.
///
/// The table has one owner, for look-ups and changes, so a look-up sees every earlier change. The table doubles when it
/// grows, and takes at most [`BYTES_OF_MAPPING`](Self::BYTES_OF_MAPPING) per mapping, from 1024 mappings on.
#[derive(Clone, Default)]
pub struct Mappings {
    table: HashTable<Entry>,
    hasher: RandomState,
    /// Mappings for one device.
    of_devices: usize,
}

/// Device number that stands for any device.
const ANY: u32 = 0;

/// Mapping in the table.
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

impl Entry {
    fn mapping(&self) -> Mapping {
        let Self { locator_match, locator, device, csum_mode, ident_type, .. } = *self;
        let link = (device != ANY).then_some(PortId(device));
        Mapping { locator_match, locator, link, csum_mode, ident_type }
    }

    #[inline]
    fn is(&self, locator: Locator, device: u32) -> bool {
        self.locator_match == locator && self.device == device
    }
}

impl Mappings {
    /// Maximum number of bytes per mapping, in a table of 1024 mappings or more, right after growth: 24 and one of the
    /// hash table's own, while less than half of the entries are in use.
    pub const BYTES_OF_MAPPING: usize = 58;

    /// Adds a mapping.
    ///
    /// # Errors
    /// [`Exists`] if the locator has a mapping for that device.
    pub fn add(&mut self, mapping: Mapping) -> Result<(), Exists> {
        let Mapping { locator_match, locator, link, csum_mode, ident_type } = mapping;
        let device = number_of(link);
        if self.find(locator_match, device).is_some() {
            return Err(Exists);
        }
        let diff = Diff::between(locator_match, locator);
        let entry = Entry { locator_match, locator, device, diff, csum_mode, ident_type };
        let Self { table, hasher, of_devices } = self;
        let hash = |entry: &Entry| hasher.hash_one((entry.locator_match, entry.device));
        table.insert_unique(hash(&entry), entry, hash);
        *of_devices += usize::from(link.is_some());
        Ok(())
    }

    /// Removes the mapping of a locator for a device. Returns whether it existed.
    pub fn remove(&mut self, locator_match: Locator, link: Option<PortId>) -> bool {
        let device = number_of(link);
        let hash = self.hash(locator_match, device);
        let Ok(found) = self.table.find_entry(hash, |entry| entry.is(locator_match, device)) else { return false };
        found.remove();
        self.of_devices -= usize::from(link.is_some());
        self.shrink();
        true
    }

    /// Removes the mappings for a removed device, and returns them.
    pub fn remove_link(&mut self, link: PortId) -> Vec<Mapping> {
        if self.of_devices == 0 {
            return Vec::new();
        }
        let gone: Vec<Mapping> =
            self.table.extract_if(|entry| entry.device == link.0).map(|entry| entry.mapping()).collect();
        self.of_devices -= gone.len();
        self.shrink();
        gone
    }

    /// Reserves room for that many more mappings, so that their addition moves the table only once.
    pub fn reserve(&mut self, additional: usize) {
        let Self { table, hasher, .. } = self;
        table.reserve(additional, |entry| hasher.hash_one((entry.locator_match, entry.device)));
    }

    /// Mapping of exactly that locator and device.
    pub fn get(&self, locator_match: Locator, link: Option<PortId>) -> Option<Mapping> {
        self.find(locator_match, number_of(link)).map(Entry::mapping)
    }

    /// Translation for a packet with that destination locator that arrived on `link`: the mapping for that device, else
    /// the one for any device.
    #[inline]
    pub fn lookup(&self, locator: Locator, link: PortId) -> Option<Rewrite> {
        let of_device = if self.of_devices > 0 { self.find(locator, link.0) } else { None };
        let Entry { locator, csum_mode, diff, .. } = *of_device.or_else(|| self.find(locator, ANY))?;
        Some(Rewrite { locator, csum_mode, diff: Some(diff) })
    }

    /// Number of mappings.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Tells whether there are no mappings.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// All mappings, in arbitrary order.
    pub fn iter(&self) -> impl Iterator<Item = Mapping> + '_ {
        self.table.iter().map(Entry::mapping)
    }

    /// Mappings from a bucket of the hash table on, each with its bucket. An addition may move mappings to other buckets.
    pub fn from_bucket(&self, bucket: usize) -> impl Iterator<Item = (usize, Mapping)> + '_ {
        let mapping = |at| Some((at, self.table.get_bucket(at)?.mapping()));
        (bucket..self.table.num_buckets()).filter_map(mapping)
    }

    /// All mappings, by locator; among equal locators the mapping for any device comes last.
    pub fn snapshot(&self) -> Vec<Mapping> {
        let mut all: Vec<Mapping> = self.iter().collect();
        all.sort_unstable_by_key(|mapping| (mapping.locator_match, mapping.link.is_none(), mapping.link));
        all
    }

    #[inline]
    fn find(&self, locator_match: Locator, device: u32) -> Option<&Entry> {
        self.table.find(self.hash(locator_match, device), |entry| entry.is(locator_match, device))
    }

    #[inline]
    fn hash(&self, locator_match: Locator, device: u32) -> u64 {
        self.hasher.hash_one((locator_match, device))
    }

    /// Shrinks the table when three quarters of it are empty.
    fn shrink(&mut self) {
        let Self { table, hasher, .. } = self;
        if table.capacity() > 1024 && table.len() < table.capacity() / 4 {
            table.shrink_to(2 * table.len(), |entry| hasher.hash_one((entry.locator_match, entry.device)));
        }
    }
}

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
        f.write_str("there is a mapping of that locator for that device already")
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
            locator: Locator(locator),
            link,
            csum_mode: CsumMode::NeutralMap,
            ident_type: IdentType::Luid,
        }
    }

    fn found(mappings: &Mappings, locator: u64, link: PortId) -> Option<u64> {
        mappings.lookup(Locator(locator), link).map(|rewrite| rewrite.locator.0)
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
            assert!(mappings.remove(Locator(1), ETH));
            assert_eq!(seen(&mappings), [Some(10), Some(13), Some(10)]);
            assert!(mappings.remove(Locator(1), NET));
            assert_eq!(seen(&mappings), [None, Some(13), None]);
            assert!(mappings.remove(Locator(1), WAN));
            assert_eq!(seen(&mappings), [None; 3]);
            assert!(mappings.is_empty());
        }
    }

    #[test]
    fn second_mapping_of_locator_and_device_is_refused() {
        let mut mappings = Mappings::default();
        mappings.add(mapping(1, 10, ETH)).unwrap();
        assert_eq!(mappings.add(mapping(1, 11, ETH)), Err(Exists));
        assert_eq!(mappings.get(Locator(1), ETH), Some(mapping(1, 10, ETH)));
        assert_eq!(mappings.get(Locator(1), NET), None);
        assert!(!mappings.remove(Locator(1), NET));
        assert_eq!(mappings.len(), 1);
    }

    #[test]
    fn snapshot_is_in_order_and_whole() {
        let mut mappings = Mappings::default();
        let sorted =
            [mapping(0, 9, NET), mapping(1, 3, ETH), mapping(1, 2, WAN), mapping(1, 7, NET), mapping(2, 1, NET)];
        for at in [3, 0, 4, 2, 1] {
            mappings.add(sorted[at]).unwrap();
        }
        assert_eq!(mappings.snapshot(), sorted);
        assert_eq!(mappings.remove_link(PortId(2)), [sorted[1]]);
        assert_eq!(mappings.remove_link(PortId(4)), []);
        assert_eq!(mappings.snapshot(), [sorted[0], sorted[2], sorted[3], sorted[4]]);
    }

    #[test]
    fn million_mappings_take_the_documented_memory() {
        let mut mappings = Mappings::default();
        for n in 0..1_000_000 {
            mappings.add(mapping(n << 16, n, NET)).unwrap();
            // Each time, right after the table has grown.
            let most = Mappings::BYTES_OF_MAPPING * mappings.len();
            let bytes = mappings.table.allocation_size();
            assert!(n < 1024 || bytes <= most, "{bytes} B for {n}");
        }
        for n in 0..1_000_000 {
            assert_eq!(found(&mappings, n << 16, PortId(2)), Some(n));
        }
        for n in 0..1_000_000 {
            assert!(mappings.remove(Locator(n << 16), NET), "{n}");
        }
        let bytes = mappings.table.allocation_size();
        assert!(bytes < 1 << 20, "{bytes} B are left");
    }
}
