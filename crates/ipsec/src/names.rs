//! Numbers by the hash of a name, without the name: whoever asks knows where it is written.
//!
//! A hash table of buckets that are a cache line each, half full on the whole: a look-up touches one line, as a rule, and
//! so does one in vain, and no branch of it depends on where in the line something is. What does not fit into its bucket
//! is in the next one. An entry keeps its whole hash, so growing looks at nothing else.

/// Numbers, each under the hash of its name. Several may have one hash.
#[derive(Debug)]
pub(crate) struct Names {
    /// A power of two of them.
    buckets: Box<[Bucket]>,
    len: usize,
}

const PER_BUCKET: usize = 8;

/// Entries, those in use first.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Bucket {
    /// 0 of those that are free.
    hashes: [u32; PER_BUCKET],
    numbers: [u32; PER_BUCKET],
}

impl Bucket {
    const EMPTY: Self = Self { hashes: [0; PER_BUCKET], numbers: [0; PER_BUCKET] };

    /// Which entries have that hash, a bit each.
    #[inline]
    fn with(&self, hash: u32) -> u32 {
        self.hashes.iter().enumerate().fold(0, |found, (at, &it)| found | u32::from(it == hash) << at)
    }

    const fn is_full(&self) -> bool {
        self.hashes[PER_BUCKET - 1] != 0
    }

    fn len(&self) -> usize {
        self.hashes.iter().take_while(|&&hash| hash != 0).count()
    }

    /// Adds an entry, if there is room.
    fn push(&mut self, hash: u32, number: u32) -> bool {
        let at = self.len();
        if at < PER_BUCKET {
            (self.hashes[at], self.numbers[at]) = (hash, number);
        }
        at < PER_BUCKET
    }

    /// Takes an entry out, in whose place the last one comes.
    fn swap_remove(&mut self, at: usize) -> (u32, u32) {
        let last = self.len() - 1;
        let gone = (self.hashes[at], self.numbers[at]);
        (self.hashes[at], self.numbers[at]) = (self.hashes[last], self.numbers[last]);
        (self.hashes[last], self.numbers[last]) = (0, 0);
        gone
    }
}

/// The numbers under one hash.
#[derive(Debug)]
pub(crate) struct With<'a> {
    names: &'a Names,
    hash: u32,
    bucket: usize,
    /// Those in the bucket that are still to come.
    left: u32,
}

impl Iterator for With<'_> {
    type Item = u32;

    #[inline]
    fn next(&mut self) -> Option<u32> {
        while self.left == 0 {
            if !self.names.buckets[self.bucket].is_full() {
                return None;
            }
            self.bucket = (self.bucket + 1) & self.names.mask();
            self.left = self.names.buckets[self.bucket].with(self.hash);
        }
        let at = self.left.trailing_zeros() as usize;
        self.left &= self.left - 1;
        Some(self.names.buckets[self.bucket].numbers[at])
    }
}

/// A hash that is not 0.
const fn of_entry(hash: u32) -> u32 {
    hash | 1 << 31
}

impl Default for Names {
    fn default() -> Self {
        Self { buckets: Box::new([Bucket::EMPTY]), len: 0 }
    }
}

impl Names {
    /// How many numbers there are.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    const fn mask(&self) -> usize {
        self.buckets.len() - 1
    }

    /// Every number under `hash`, and hardly ever one more.
    #[inline]
    pub(crate) fn with(&self, hash: u32) -> With<'_> {
        let hash = of_entry(hash);
        let bucket = hash as usize & self.mask();
        With { names: self, hash, bucket, left: self.buckets[bucket].with(hash) }
    }

    /// Adds a number that is not there.
    pub(crate) fn insert(&mut self, hash: u32, number: u32) {
        if 2 * (self.len + 1) > PER_BUCKET * self.buckets.len() {
            let grown = vec![Bucket::EMPTY; 2 * self.buckets.len()].into_boxed_slice();
            let old = std::mem::replace(&mut self.buckets, grown);
            for bucket in old {
                (0..bucket.len()).for_each(|at| self.put(bucket.hashes[at], bucket.numbers[at]));
            }
        }
        self.put(of_entry(hash), number);
        self.len += 1;
    }

    fn put(&mut self, hash: u32, number: u32) {
        let mut bucket = hash as usize & self.mask();
        while !self.buckets[bucket].push(hash, number) {
            bucket = (bucket + 1) & self.mask();
        }
    }

    /// The bucket of an entry, and its place there.
    fn find(&self, hash: u32, number: u32) -> Option<(usize, usize)> {
        let mut with = self.with(hash);
        with.find(|&it| it == number)?;
        let bucket = &self.buckets[with.bucket];
        let at = (0..PER_BUCKET).find(|&at| (bucket.hashes[at], bucket.numbers[at]) == (with.hash, number))?;
        Some((with.bucket, at))
    }

    /// Puts `new` in the place of `old`, which has the same name.
    pub(crate) fn replace(&mut self, hash: u32, old: u32, new: u32) {
        if let Some((bucket, at)) = self.find(hash, old) {
            self.buckets[bucket].numbers[at] = new;
        }
    }

    /// Takes a number out. One that had to go on to a bucket behind comes back in its place: no trace of it is left.
    pub(crate) fn remove(&mut self, hash: u32, number: u32) {
        let Some((mut gap, at)) = self.find(hash, number) else { return };
        let mut was_full = self.buckets[gap].is_full();
        self.buckets[gap].swap_remove(at);
        self.len -= 1;
        let mut next = gap;
        while was_full {
            next = (next + 1) & self.mask();
            was_full = self.buckets[next].is_full();
            let from_gap = next.wrapping_sub(gap) & self.mask();
            let went_on = |&at: &usize| {
                let home = self.buckets[next].hashes[at] as usize;
                next.wrapping_sub(home) & self.mask() >= from_gap
            };
            if let Some(at) = (0..self.buckets[next].len()).find(went_on) {
                let (hash, number) = self.buckets[next].swap_remove(at);
                self.buckets[gap].push(hash, number);
                gap = next;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Hashes of which many are the same, or of neighbouring buckets, also across the end of the table.
        #[test]
        fn every_number_is_found_under_its_hash_and_no_other(
            steps in prop::collection::vec((prop_oneof![4 => 0..3_u32, 1 => 0..40_u32, 4 => u32::MAX - 4..=u32::MAX, 1 => any::<u32>()], 0..3_u8), 1..200),
        ) {
            let (mut names, mut model) = (Names::default(), Vec::<(u32, u32)>::new());
            for (next, (hash, what)) in (0..).zip(steps) {
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
                names.remove(hash, u32::MAX);
                prop_assert_eq!(names.len(), model.len());
                for &(hash, _) in &model {
                    let mut found: Vec<u32> = names.with(hash).collect();
                    let mut want: Vec<u32> = model.iter().filter(|it| it.0 == hash).map(|it| it.1).collect();
                    found.sort_unstable();
                    want.sort_unstable();
                    prop_assert_eq!(found, want);
                }
                prop_assert!(!names.buckets.iter().all(Bucket::is_full), "a look-up in vain has an end");
            }
            for (hash, number) in model {
                names.remove(hash, number);
            }
            prop_assert!(names.buckets.iter().all(|bucket| bucket.hashes == [0; PER_BUCKET]));
        }
    }
}
