//! Where jobs are while there is something to do for them.

use std::ops::{Deref, DerefMut};

/// A job in a place of its own, so that little is moved however often it changes hands, also from one thread to another.
#[derive(Debug)]
pub(crate) struct Placed<J>(Box<Option<J>>);

/// Places for jobs, kept for the next ones.
#[derive(Debug)]
pub(crate) struct Places<J> {
    spare: Vec<Box<Option<J>>>,
}

impl<J> Default for Places<J> {
    fn default() -> Self {
        Self { spare: Vec::new() }
    }
}

impl<J> Places<J> {
    /// Gives a job a place.
    pub(crate) fn put(&mut self, job: J) -> Placed<J> {
        let mut place = self.spare.pop().unwrap_or_default();
        *place = Some(job);
        Placed(place)
    }

    /// Takes a job out of its place.
    pub(crate) fn take(&mut self, placed: Placed<J>) -> J {
        let Placed(mut place) = placed;
        let job = place.take().expect(THERE);
        self.spare.push(place);
        job
    }
}

const THERE: &str = "a job is in its place until it is taken out";

impl<J> Deref for Placed<J> {
    type Target = J;

    #[inline]
    fn deref(&self) -> &J {
        (*self.0).as_ref().expect(THERE)
    }
}

impl<J> DerefMut for Placed<J> {
    #[inline]
    fn deref_mut(&mut self) -> &mut J {
        (*self.0).as_mut().expect(THERE)
    }
}
