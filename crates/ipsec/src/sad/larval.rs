//! Larval SAs: acquired by a packet, or an SPI reserved for a peer (Linux `XFRM_STATE_ACQ`).
//!
//! They have no key, so they neither send nor receive. Each ends when its SA is added, or by a timeout.

use std::net::IpAddr;
use std::time::Duration;

use base::{DropReason, Instant, Mib};
use hashbrown::HashMap;
use wire::Spi;
use xfrm::{Mark, Mode, SaConfig, SaDir, Selector};

use crate::events::{Event, SaExpired};
use crate::sa::SaStats;
use crate::timers::{Timer, Timers};

/// Maximum number of larval SAs: packets of others cause them.
pub const MAX_LARVAE: usize = 1 << 14;

/// A larval SA.
#[derive(Clone, Debug)]
pub struct Larval {
    /// Number of the request.
    pub seq: u32,
    /// The outer source; unspecified for any.
    pub src: IpAddr,
    /// The outer destination.
    pub dst: IpAddr,
    /// The SPI: reserved for a peer, or required by the policy. 0 for none yet.
    pub spi: Spi,
    /// Tunnel or transport.
    pub mode: Mode,
    /// Number that templates name.
    pub reqid: u32,
    /// The only direction in which it may be used.
    pub dir: Option<SaDir>,
    /// The flow that acquired it.
    pub selector: Option<Selector>,
    /// Marks of the packets that it is for.
    pub mark: Mark,
    /// The number of the XFRM interface.
    pub if_id: u32,
    /// Time of its request.
    pub added: Instant,
    /// Whether its SPI was chosen by this node, which will receive by it.
    pub(crate) is_allocated: bool,
    /// Number of the CPU whose packets the SA is for.
    pub cpu: Option<u32>,
    /// Whether it stands for an SA whose key was lost in a restart ([`Ipsec::hold_lost`](crate::Ipsec::hold_lost)).
    pub(crate) is_lost: bool,
    pub(crate) timer: Timer,
}

/// Key by which one is looked up: destination and `reqid`.
type Key = (IpAddr, u32);

/// The larval SAs of a node.
#[derive(Debug, Default)]
pub(crate) struct Larvae {
    by_seq: HashMap<u32, Larval, foldhash::fast::RandomState>,
    by_key: HashMap<Key, Vec<u32>, foldhash::fast::RandomState>,
    /// Numbers by destination and SPI, which larval SAs of several marks share.
    by_spi: HashMap<(IpAddr, Spi), Vec<u32>, foldhash::fast::RandomState>,
    /// Number of larval SAs with each SPI.
    spis: HashMap<Spi, u32, foldhash::fast::RandomState>,
    timers: Timers<u32>,
    last_seq: u32,
}

impl Larval {
    /// One with a name only.
    pub(crate) fn new(src: IpAddr, dst: IpAddr, mode: Mode, reqid: u32) -> Self {
        Self {
            seq: 0,
            src,
            dst,
            spi: Spi(0),
            mode,
            reqid,
            dir: None,
            selector: None,
            mark: Mark::ANY,
            if_id: 0,
            added: Instant::ZERO,
            is_allocated: false,
            cpu: None,
            is_lost: false,
            timer: Timer::default(),
        }
    }

    /// Tells whether `config` is its SA (Linux `__find_acq_core`).
    fn is_answered_by(&self, config: &SaConfig) -> bool {
        let same_ends = (self.src, self.dst) == (config.src, config.dst);
        let same_use = (self.mode, self.reqid, self.if_id) == (config.mode, config.reqid, config.if_id);
        self.spi.0 == 0 && same_ends && same_use && (self.mark, self.cpu) == (config.mark, config.cpu)
    }

    /// Event of its end.
    pub(super) fn expired(&self) -> Event {
        let &Self { src, dst, spi, mark, mode, reqid, if_id, dir, cpu, .. } = self;
        let (hard, first_used, stats, request) = (true, None, SaStats::default(), None);
        Event::SaExpired(SaExpired {
            hard,
            src,
            dst,
            spi,
            mark,
            mode,
            reqid,
            if_id,
            dir,
            cpu,
            first_used,
            stats,
            request,
        })
    }
}

impl Larvae {
    /// Adds one, which ends after `lasts`. `None` at the limit.
    pub(crate) fn add(&mut self, now: Instant, lasts: Duration, mut larval: Larval) -> Option<u32> {
        if self.by_seq.len() >= MAX_LARVAE {
            return None;
        }
        let seq = self.free_seq();
        (larval.seq, larval.added) = (seq, now);
        self.timers.set(seq, &mut larval.timer, Some(now + lasts));
        self.by_key.entry((larval.dst, larval.reqid)).or_default().push(seq);
        self.name(seq, larval.dst, larval.spi);
        self.by_seq.insert(seq, larval);
        Some(seq)
    }

    /// The next free number; never 0.
    fn free_seq(&mut self) -> u32 {
        loop {
            self.last_seq = self.last_seq.wrapping_add(1);
            if self.last_seq != 0 && !self.by_seq.contains_key(&self.last_seq) {
                return self.last_seq;
            }
        }
    }

    pub(crate) fn remove(&mut self, seq: u32) -> Option<Larval> {
        let mut larval = self.by_seq.remove(&seq)?;
        self.timers.set(seq, &mut larval.timer, None);
        self.forget_name(seq, larval.dst, larval.spi);
        let key = (larval.dst, larval.reqid);
        if let Some(seqs) = self.by_key.get_mut(&key) {
            seqs.retain(|&other| other != seq);
            if seqs.is_empty() {
                self.by_key.remove(&key);
            }
        }
        Some(larval)
    }

    /// Reserves an SPI that no other larval SA has.
    pub(crate) fn set_spi(&mut self, seq: u32, spi: Spi, dir: Option<SaDir>) {
        if let Some(larval) = self.by_seq.get_mut(&seq) {
            (larval.spi, larval.dir, larval.is_allocated) = (spi, dir.or(larval.dir), true);
            let dst = larval.dst;
            self.name(seq, dst, spi);
        }
    }

    /// Indexes it by its SPI, if it has one.
    fn name(&mut self, seq: u32, dst: IpAddr, spi: Spi) {
        if spi.0 != 0 {
            self.by_spi.entry((dst, spi)).or_default().push(seq);
            *self.spis.entry(spi).or_default() += 1;
        }
    }

    fn forget_name(&mut self, seq: u32, dst: IpAddr, spi: Spi) {
        if let Some(seqs) = self.by_spi.get_mut(&(dst, spi)) {
            seqs.retain(|&other| other != seq);
            if seqs.is_empty() {
                self.by_spi.remove(&(dst, spi));
            }
        }
        if let Some(users) = self.spis.get_mut(&spi) {
            *users -= 1;
            if *users == 0 {
                self.spis.remove(&spi);
            }
        }
    }

    /// Tells whether a larval SA has that SPI.
    pub(crate) fn has_spi(&self, spi: Spi) -> bool {
        self.spis.contains_key(&spi)
    }

    pub(crate) fn get(&self, seq: u32) -> Option<&Larval> {
        self.by_seq.get(&seq)
    }

    /// The larval SA with that number and destination, if it is for such marks (Linux `__xfrm_find_acq_byseq`).
    pub(crate) fn numbered(&self, seq: u32, dst: IpAddr, mark: Mark, cpu: Option<u32>) -> Option<&Larval> {
        self.get(seq).filter(|larval| (larval.dst, larval.cpu) == (dst, cpu) && larval.mark.matches(mark.sought()))
    }

    /// The larval SA with that SPI that packets marked `mark` find.
    pub(crate) fn by_spi(&self, dst: IpAddr, spi: Spi, mark: u32) -> Option<&Larval> {
        let mut named = self.by_spi.get(&(dst, spi)).into_iter().flatten().filter_map(|seq| self.by_seq.get(seq));
        named.find(|larval| larval.mark.matches(mark))
    }

    /// Drop reason of a packet whose SPI is no SA's: it may be a larval one's (Linux `xfrm_input`).
    pub(crate) fn refuse(&self, dst: IpAddr, spi: Spi, mark: u32) -> (Mib, DropReason) {
        match self.by_spi(dst, spi, mark).map(|larval| larval.dir) {
            Some(Some(SaDir::Out)) => (Mib::XfrmInStateDirError, DropReason::EspDirection),
            Some(_) => (Mib::XfrmAcquireError, DropReason::EspState),
            //= RFC 4303 §3.4.2 unknown-sa: a packet whose SPI and destination match no SA is dropped and counted
            None => (Mib::XfrmInNoStates, DropReason::EspNoState),
        }
    }

    /// Larval SAs with that destination and `reqid`.
    pub(crate) fn with(&self, dst: IpAddr, reqid: u32) -> impl Iterator<Item = &Larval> {
        self.by_key.get(&(dst, reqid)).into_iter().flatten().filter_map(|seq| self.by_seq.get(seq))
    }

    /// The larval SA that `config` completes: by its number, whatever its SPI, else by its fields.
    pub(crate) fn answered_by(&self, config: &SaConfig) -> Option<u32> {
        let named = self.numbered(config.acquire_seq, config.dst, config.mark, config.cpu);
        let found = named.or_else(|| self.with(config.dst, config.reqid).find(|it| it.is_answered_by(config)));
        found.map(|larval| larval.seq)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Larval> {
        self.by_seq.values()
    }

    pub(crate) fn len(&self) -> usize {
        self.by_seq.len()
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// One that has timed out.
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<u32> {
        let seq = self.timers.pop(now)?;
        if let Some(larval) = self.by_seq.get_mut(&seq) {
            larval.timer.clear();
        }
        Some(seq)
    }

    /// Marks all as lost SAs.
    pub(crate) fn hold_lost(&mut self) {
        self.by_seq.values_mut().for_each(|larval| larval.is_lost = true);
    }

    /// The lost ones, in the order of their numbers.
    pub(crate) fn lost(&self) -> Vec<u32> {
        let mut lost: Vec<u32> =
            self.by_seq.values().filter(|larval| larval.is_lost).map(|larval| larval.seq).collect();
        lost.sort_unstable();
        lost
    }
}
