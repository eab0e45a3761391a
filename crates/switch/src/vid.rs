//! VLAN identifiers and sets of them (IEEE 802.1Q §9.6).

use std::fmt;
use std::num::NonZeroU16;
use std::ops::RangeInclusive;

use wire::vlan::Tci;

/// A VLAN identifier in use: 1 to 4094. 0 means no VLAN on the wire and 4095 is reserved.
///
/// `Option<Vid>` takes two bytes; `None` is the key of addresses in a bridge that does not filter by VLAN.
#[derive(Clone, Copy, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Vid(NonZeroU16);

impl Vid {
    /// The smallest identifier, which is also the default PVID of a bridge.
    pub const FIRST: Self = Self(NonZeroU16::MIN);

    /// The largest identifier.
    pub const LAST: Self = Self(NonZeroU16::new(Tci::MAX_VID).unwrap());

    /// The VLAN of that number; `None` for 0 and for 4095 and above.
    #[inline]
    pub const fn new(number: u16) -> Option<Self> {
        if number > Tci::MAX_VID {
            return None;
        }
        match NonZeroU16::new(number) {
            Some(number) => Some(Self(number)),
            None => None,
        }
    }

    /// The number, 1 to 4094.
    #[inline]
    pub const fn get(self) -> u16 {
        self.0.get()
    }

    /// Each VLAN from `first` to `last`, in ascending order; none if `last` is smaller.
    pub fn range(first: Self, last: Self) -> impl Iterator<Item = Self> + Clone {
        (first.get()..=last.get()).filter_map(Self::new)
    }
}

impl fmt::Display for Vid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.get(), f)
    }
}

impl fmt::Debug for Vid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Bits of a word of a [`VidSet`].
const WORD: usize = u64::BITS as usize;

/// A set of VLANs: one bit for each of 4096 numbers, so that a test costs the same for one VLAN as for 4094.
#[derive(Clone, Eq, PartialEq)]
pub struct VidSet(Box<[u64; 4096 / WORD]>);

impl VidSet {
    /// The empty set.
    pub fn new() -> Self {
        Self(Box::new([0; 4096 / WORD]))
    }

    /// Tells whether `vid` is a member.
    #[inline]
    pub fn contains(&self, vid: Vid) -> bool {
        let at = usize::from(vid.get());
        self.0[at / WORD] >> (at % WORD) & 1 == 1
    }

    /// Adds a VLAN. Returns whether it is new.
    pub fn insert(&mut self, vid: Vid) -> bool {
        let was_member = self.contains(vid);
        let at = usize::from(vid.get());
        self.0[at / WORD] |= 1 << (at % WORD);
        !was_member
    }

    /// Removes a VLAN. Returns whether it was a member.
    pub fn remove(&mut self, vid: Vid) -> bool {
        let was_member = self.contains(vid);
        let at = usize::from(vid.get());
        self.0[at / WORD] &= !(1 << (at % WORD));
        was_member
    }

    /// Number of members.
    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Tells whether there are no members.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    /// The members in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = Vid> + '_ {
        self.0.iter().enumerate().flat_map(|(index, &word)| {
            let bits = std::iter::successors(Some(word), |word| Some(word & word.wrapping_sub(1)));
            let members = bits.take_while(|word| *word != 0);
            members.filter_map(move |word| Vid::new((index * WORD) as u16 + word.trailing_zeros() as u16))
        })
    }

    /// The members as ranges in ascending order, as `bridge -c vlan show` prints them.
    pub fn ranges(&self) -> Vec<RangeInclusive<Vid>> {
        let mut ranges: Vec<RangeInclusive<Vid>> = Vec::new();
        for vid in self.iter() {
            match ranges.last_mut() {
                Some(last) if last.end().get() + 1 == vid.get() => *last = *last.start()..=vid,
                _ => ranges.push(vid..=vid),
            }
        }
        ranges
    }
}

impl Default for VidSet {
    fn default() -> Self {
        Self::new()
    }
}

impl FromIterator<Vid> for VidSet {
    fn from_iter<I: IntoIterator<Item = Vid>>(vids: I) -> Self {
        let mut set = Self::new();
        for vid in vids {
            set.insert(vid);
        }
        set
    }
}

impl fmt::Debug for VidSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.ranges()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vid_is_between_1_and_4094() {
        let cases = [(0, None), (1, Some(1)), (4094, Some(4094)), (4095, None), (4096, None), (u16::MAX, None)];
        for (number, want) in cases {
            assert_eq!(Vid::new(number).map(Vid::get), want, "{number}");
        }
        assert_eq!(size_of::<Option<Vid>>(), 2);
    }

    #[test]
    fn set_holds_members_at_both_ends_of_each_word() {
        let mut set = VidSet::new();
        let members: Vec<Vid> = [1, 63, 64, 65, 127, 128, 4031, 4032, 4094].into_iter().filter_map(Vid::new).collect();
        for &vid in &members {
            assert!(set.insert(vid) && !set.insert(vid), "{vid}");
        }
        assert_eq!(set.iter().collect::<Vec<_>>(), members);
        assert_eq!(set.len(), members.len());
        for &vid in &members {
            assert!(set.contains(vid) && set.remove(vid) && !set.remove(vid), "{vid}");
        }
        assert!(set.is_empty());
    }

    #[test]
    fn set_ranges_join_neighbours() {
        let set = |numbers: &[u16]| numbers.iter().copied().filter_map(Vid::new).collect::<VidSet>();
        let cases: [(&[u16], &str); 4] =
            [(&[], "{}"), (&[5], "{5..=5}"), (&[1, 2, 3, 5], "{1..=3, 5..=5}"), (&[63, 64, 65], "{63..=65}")];
        for (numbers, want) in cases {
            assert_eq!(format!("{:?}", set(numbers)), want);
        }
        let all: VidSet = Vid::range(Vid::FIRST, Vid::new(4094).unwrap()).collect();
        assert_eq!((all.len(), all.ranges().len()), (4094, 1));
    }
}
