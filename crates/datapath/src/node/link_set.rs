//! A set of links, in the order of their numbers.

use base::PortId;

/// Set of links, one bit for each.
#[derive(Debug, Default)]
pub(crate) struct LinkSet {
    words: Vec<u64>,
}

/// Links in a word.
const PER_WORD: usize = u64::BITS as usize;

impl LinkSet {
    /// Adds a link. Allocates only for a number that is greater than all before.
    #[inline]
    pub(crate) fn insert(&mut self, id: PortId) {
        let (word, bit) = place(id);
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
        }
        self.words[word] |= 1 << bit;
    }

    /// Removes a link.
    pub(crate) fn remove(&mut self, id: PortId) {
        let (word, bit) = place(id);
        if let Some(word) = self.words.get_mut(word) {
            *word &= !(1 << bit);
        }
    }

    /// The link of the lowest number from `first` on.
    pub(crate) fn next(&self, first: PortId) -> Option<PortId> {
        let (start, bit) = place(first);
        let mut mask = u64::MAX << bit;
        for (word, &links) in self.words.iter().enumerate().skip(start) {
            let found = links & mask;
            if found != 0 {
                return Some(PortId((word * PER_WORD) as u32 + found.trailing_zeros()));
            }
            mask = u64::MAX;
        }
        None
    }
}

/// Word and bit of a link.
const fn place(id: PortId) -> (usize, usize) {
    (id.0 as usize / PER_WORD, id.0 as usize % PER_WORD)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(set: &LinkSet) -> Vec<u32> {
        let mut first = 0;
        std::iter::from_fn(|| {
            let PortId(id) = set.next(PortId(first))?;
            first = id + 1;
            Some(id)
        })
        .collect()
    }

    #[test]
    fn links_are_returned_once_and_in_order() {
        let mut set = LinkSet::default();
        assert_eq!(all(&set), []);
        [200, 0, 63, 64, 127, 0].into_iter().for_each(|id| set.insert(PortId(id)));
        assert_eq!(all(&set), [0, 63, 64, 127, 200]);
        assert_eq!((set.next(PortId(65)), set.next(PortId(201))), (Some(PortId(127)), None));
        assert_eq!(set.next(PortId(u32::MAX)), None);
    }

    #[test]
    fn removed_link_is_not_returned() {
        let mut set = LinkSet::default();
        (0..130).for_each(|id| set.insert(PortId(id)));
        [0, 64, 129, 500].into_iter().for_each(|id| set.remove(PortId(id)));
        assert_eq!(all(&set), (0..130).filter(|id| ![0, 64, 129].contains(id)).collect::<Vec<_>>());
    }
}
