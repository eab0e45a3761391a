//! Numbers by the hash of a name, without the name: whoever asks knows where it is written.
//!
//! Open addressing with linear probes, at most half full, eight entries to a cache line: a look-up touches one line, as a
//! rule, and so does one in vain. An entry keeps its whole hash, so growing looks at nothing else.

/// Numbers, which are no [`NOBODY`], each under the hash of its name. Several may have one hash.
#[derive(Debug)]
pub(crate) struct Names {
    /// A power of two of them.
    entries: Box<[Entry]>,
    len: usize,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    hash: u32,
    number: u32,
}

/// No number.
pub(crate) const NOBODY: u32 = u32::MAX;

const FREE: Entry = Entry { hash: 0, number: NOBODY };

/// One cache line of them.
const FEWEST: usize = 8;

impl Default for Names {
    fn default() -> Self {
        Self { entries: Box::new([FREE; FEWEST]), len: 0 }
    }
}

impl Names {
    /// How many numbers there are.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Every number under `hash`, and hardly ever one more.
    #[inline]
    pub(crate) fn with(&self, hash: u32) -> impl Iterator<Item = u32> {
        let mask = self.entries.len() - 1;
        let probes = (0..self.entries.len()).map(move |probe| self.entries[(hash as usize + probe) & mask]);
        probes.take_while(|entry| entry.number != NOBODY).filter(move |entry| entry.hash == hash).map(|it| it.number)
    }

    /// Adds a number that is not there.
    pub(crate) fn insert(&mut self, hash: u32, number: u32) {
        if 2 * (self.len + 1) > self.entries.len() {
            let grown = vec![FREE; 2 * self.entries.len()].into_boxed_slice();
            let old = std::mem::replace(&mut self.entries, grown);
            old.iter().filter(|entry| entry.number != NOBODY).for_each(|&entry| self.put(entry));
        }
        self.put(Entry { hash, number });
        self.len += 1;
    }

    fn put(&mut self, entry: Entry) {
        let mask = self.entries.len() - 1;
        let mut at = entry.hash as usize & mask;
        while self.entries[at].number != NOBODY {
            at = (at + 1) & mask;
        }
        self.entries[at] = entry;
    }

    fn find(&self, hash: u32, number: u32) -> Option<usize> {
        let mask = self.entries.len() - 1;
        let mut at = hash as usize & mask;
        while self.entries[at].number != NOBODY {
            if self.entries[at].number == number {
                return Some(at);
            }
            at = (at + 1) & mask;
        }
        None
    }

    /// Puts `new` in the place of `old`, which has the same name.
    pub(crate) fn replace(&mut self, hash: u32, old: u32, new: u32) {
        if let Some(at) = self.find(hash, old) {
            self.entries[at].number = new;
        }
    }

    /// Takes a number out, and lets those behind it that had to go further move up: no trace of it is left.
    pub(crate) fn remove(&mut self, hash: u32, number: u32) {
        let Some(mut gap) = self.find(hash, number) else { return };
        let mask = self.entries.len() - 1;
        let mut at = gap;
        loop {
            at = (at + 1) & mask;
            let Entry { hash, number } = self.entries[at];
            if number == NOBODY {
                break;
            }
            let from_home = at.wrapping_sub(hash as usize) & mask;
            if from_home >= at.wrapping_sub(gap) & mask {
                self.entries[gap] = self.entries[at];
                gap = at;
            }
        }
        self.entries[gap] = FREE;
        self.len -= 1;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Hashes of which many are the same, or neighbours across the end of the table.
        #[test]
        fn every_number_is_found_under_its_hash_and_no_other(
            steps in prop::collection::vec((prop_oneof![0..12_u32, u32::MAX - 4..=u32::MAX, any::<u32>()], 0..3_u8), 1..200),
        ) {
            let (mut names, mut model) = (Names::default(), Vec::<(u32, u32)>::new());
            let mut next = 0;
            for (hash, what) in steps {
                match (what, model.iter().position(|&(other, _)| other == hash)) {
                    (0, Some(at)) => {
                        let (hash, number) = model.swap_remove(at);
                        names.remove(hash, number);
                    }
                    (1, Some(at)) => {
                        names.replace(hash, model[at].1, next);
                        model[at].1 = next;
                    }
                    _ => {
                        names.insert(hash, next);
                        model.push((hash, next));
                    }
                }
                next += 1;
                names.remove(hash, NOBODY - 1);
                prop_assert_eq!(names.len(), model.len());
                for &(hash, _) in &model {
                    let mut found: Vec<u32> = names.with(hash).collect();
                    let mut want: Vec<u32> = model.iter().filter(|it| it.0 == hash).map(|it| it.1).collect();
                    found.sort_unstable();
                    want.sort_unstable();
                    prop_assert_eq!(found, want);
                }
                let longest = names.entries.split(|entry| entry.number == NOBODY).map(<[Entry]>::len).max();
                prop_assert!(longest < Some(names.entries.len()), "a look-up in vain has an end");
            }
            for (hash, number) in model {
                names.remove(hash, number);
            }
            prop_assert!(names.entries.iter().all(|entry| entry.number == NOBODY));
        }
    }
}
