//! What happens by itself, on its way from the worker to netlink's clients.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use base::LinkId;
use control::netlink::Groups;
use control::netlink::rtnl::nums::{NUD_FAILED, RTNLGRP_LINK, RTNLGRP_NEIGH};
use control::netlink::rtnl::{LinkNow, NeighbourNow};
use control::netlink::xfrm::Event;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use super::netlink::shown;
use super::snapshot::links;
use super::worker::Worker;

/// Something that has happened.
#[derive(Clone, Debug)]
pub(crate) enum News {
    /// To SAs or policies.
    Xfrm(Event),
    /// To a link, which has failed or come back.
    Link(LinkNow),
    /// To a neighbour.
    Neighbour {
        /// As it is, or as it was last.
        now: NeighbourNow,
        /// Nothing is known of it any more.
        gone: bool,
    },
}

/// News on their way to netlink's thread, which it is woken for.
#[derive(Debug)]
pub(crate) struct Bell {
    rung: Mutex<Rung>,
    fd: OwnedFd,
}

/// What a bell was rung for.
#[derive(Debug, Default)]
pub(crate) struct Rung {
    /// What has happened.
    pub(crate) news: Vec<News>,
    /// Whether more has, for which there was no room.
    pub(crate) lost: bool,
}

/// So many may wait for that thread; what comes while they do is lost, and listeners are told so.
const MAX_WAITING: usize = 4096;

impl Bell {
    /// One that has not been rung.
    pub(crate) fn new() -> Result<Self, Errno> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { rung: Mutex::default(), fd })
    }

    /// What becomes readable when it is rung.
    pub(crate) const fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// What it was rung for.
    pub(crate) fn take(&self) -> Rung {
        let mut count = [0; 8];
        // Nothing to read means that nobody rang, which is as good.
        let _ = rustix::io::read(&self.fd, &mut count);
        std::mem::take(&mut *self.rung.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Tells `news`; `lost`: some were lost already.
    pub(crate) fn ring(&self, mut news: impl Iterator<Item = News>, lost: bool) {
        let mut rung = self.rung.lock().unwrap_or_else(PoisonError::into_inner);
        let room = MAX_WAITING.saturating_sub(rung.news.len());
        rung.news.extend(news.by_ref().take(room));
        rung.lost |= lost || news.next().is_some();
        // Full: it has been rung, and not looked after yet.
        let _ = rustix::io::write(&self.fd, &1_u64.to_ne_bytes());
    }
}

/// Who listens to what happens to links and neighbours, and what has happened to links.
#[derive(Debug, Default)]
pub(crate) struct Listeners {
    bell: Option<Arc<Bell>>,
    links: bool,
    changed: Vec<LinkId>,
}

impl Listeners {
    /// The groups of rtnetlink that are told what happens by itself.
    pub(crate) fn told() -> Groups {
        let mut groups = Groups::default();
        [RTNLGRP_LINK, RTNLGRP_NEIGH].iter().for_each(|&group| groups.set(group, true));
        groups
    }

    /// Notes that a link has failed or come back.
    pub(crate) fn link_changed(&mut self, id: LinkId) {
        if self.links && !self.changed.contains(&id) {
            self.changed.push(id);
        }
    }

    /// Has news told by ringing `bell`, as far as somebody hears them.
    pub(crate) fn listen(worker: &mut Worker, heard: Groups, bell: Arc<Bell>) {
        let neighbours = heard.has(RTNLGRP_NEIGH);
        worker.path.neighbours.watch(neighbours);
        let links = heard.has(RTNLGRP_LINK);
        worker.listeners = Self { bell: (links || neighbours).then_some(bell), links, changed: Vec::new() };
    }

    /// Tells what has happened.
    pub(crate) fn tell(worker: &mut Worker) {
        let Some(bell) = worker.listeners.bell.clone() else { return };
        let changed = std::mem::take(&mut worker.listeners.changed);
        let neighbours = worker.path.neighbours.take_changed();
        if changed.is_empty() && neighbours.who.is_empty() && neighbours.gone.is_empty() {
            return;
        }
        let of_links = if changed.is_empty() { Vec::new() } else { links(worker) };
        let of_links = of_links.into_iter().filter(|link| changed.contains(&link.id)).map(News::Link);
        let all = &worker.path.neighbours;
        let of_neighbours = neighbours.who.iter().map(|&(link, addr)| match all.get(link, addr) {
            Some(now) => News::Neighbour { now: shown(&now), gone: false },
            None => {
                let now = NeighbourNow { link, addr, mac: None, state: NUD_FAILED, protocol: 0 };
                News::Neighbour { now, gone: true }
            }
        });
        let gone = neighbours.gone.iter().map(|was| News::Neighbour { now: shown(was), gone: true });
        bell.ring(of_links.chain(of_neighbours).chain(gone), neighbours.more);
    }
}
