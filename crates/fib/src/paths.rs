//! Sets of next hops of routes with several paths.

use std::net::IpAddr;
use std::sync::Arc;

use base::{PathHash, PortId, RouteFlow, path_of};
use foldhash::fast::RandomState;
use hashbrown::HashMap;

/// One of the paths of a route.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct NextHop {
    /// The output link.
    pub dev: PortId,
    /// The neighbour; the destination itself if `None`.
    pub via: Option<IpAddr>,
    /// Share of flows: at least 1, at most 256.
    pub weight: u16,
}

/// Number of a set of next hops in a [`Fib`](crate::Fib), which any number of its routes have.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct PathsId(u32);

#[derive(Clone, Debug)]
struct PathSet {
    hops: Arc<[NextHop]>,
    /// Sum of the weights up to each hop.
    upto: Box<[u32]>,
    /// Number of routes that have it.
    uses: usize,
}

/// The sets, equal ones once.
#[derive(Clone, Debug, Default)]
pub(crate) struct PathSets {
    sets: Vec<Option<PathSet>>,
    ids: HashMap<Arc<[NextHop]>, PathsId, RandomState>,
    free: Vec<u32>,
}

impl PathSets {
    /// Number of the set of these hops, which is made unless it exists. A set that gets no route is to be [swept](Self::sweep).
    pub(crate) fn intern(&mut self, hops: &[NextHop]) -> PathsId {
        if let Some(&id) = self.ids.get(hops) {
            return id;
        }
        let id = self.free.pop().unwrap_or(self.sets.len() as u32);
        if id as usize == self.sets.len() {
            self.sets.push(None);
        }
        let hops: Arc<[NextHop]> = hops.into();
        let upto = upto(&hops);
        self.sets[id as usize] = Some(PathSet { hops: Arc::clone(&hops), upto, uses: 0 });
        self.ids.insert(hops, PathsId(id));
        PathsId(id)
    }

    /// Number of the set of these hops, if it exists.
    pub(crate) fn find(&self, hops: &[NextHop]) -> Option<PathsId> {
        self.ids.get(hops).copied()
    }

    /// Counts a route more with that set.
    pub(crate) fn hold(&mut self, id: PathsId) {
        if let Some(Some(set)) = self.sets.get_mut(id.0 as usize) {
            set.uses += 1;
        }
    }

    /// Counts a route less, and removes a set without routes.
    pub(crate) fn release(&mut self, id: PathsId) {
        let Some(place) = self.sets.get_mut(id.0 as usize) else { return };
        let Some(set) = place else { return };
        set.uses = set.uses.saturating_sub(1);
        if set.uses == 0 {
            self.ids.remove(&set.hops);
            *place = None;
            self.free.push(id.0);
        }
    }

    /// Removes a set that no route has.
    pub(crate) fn sweep(&mut self, id: PathsId) {
        if self.sets.get(id.0 as usize).and_then(Option::as_ref).is_some_and(|set| set.uses == 0) {
            self.release(id);
        }
    }

    /// The hops of a set.
    pub(crate) fn hops(&self, id: PathsId) -> &[NextHop] {
        self.sets.get(id.0 as usize).and_then(Option::as_ref).map(|set| &*set.hops).unwrap_or_default()
    }

    /// The hop for a flow; with `oif`, of those by that link.
    #[inline]
    pub(crate) fn choose(
        &self,
        id: PathsId,
        hash: &PathHash,
        flow: &RouteFlow,
        oif: Option<PortId>,
    ) -> Option<NextHop> {
        let set = self.sets.get(id.0 as usize)?.as_ref()?;
        match oif {
            None => set.hops.get(path_of(hash.of(flow), &set.upto)).copied(),
            Some(oif) => set.choose_by(hash.of(flow), oif),
        }
    }
}

impl PathSet {
    /// The hop for a hash among those by a link.
    #[cold]
    fn choose_by(&self, hash: u32, oif: PortId) -> Option<NextHop> {
        let by_oif: Vec<NextHop> = self.hops.iter().filter(|hop| hop.dev == oif).copied().collect();
        by_oif.get(path_of(hash, &upto(&by_oif))).copied()
    }
}

/// Sum of the weights up to each hop.
fn upto(hops: &[NextHop]) -> Box<[u32]> {
    let sum = |sum: &mut u32, hop: &NextHop| {
        *sum += u32::from(hop.weight.max(1));
        Some(*sum)
    };
    hops.iter().scan(0, sum).collect()
}
