//! A security association: its configuration and its state.

pub(crate) mod aevents;
mod age;
mod offload;
mod peer;
mod place;
mod state;

use std::any::Any;
use std::net::IpAddr;
use std::sync::Arc;

use base::{Instant, SaId, ShardId};
use wire::{Spi, Version};

use crate::engine::Cipher;
use crate::replay::ReplayWindow;
use crate::sequence::OutSequence;

pub use aevents::Aevent;
pub(crate) use age::Age;
pub use place::Mapping;
use place::Place;
pub(crate) use state::Expired;
pub use state::State;
use xfrm::{
    ConfigError, EspInUdp, Flowi, Lifetime, Mark, Mode, NatTraversal, Offload, Overhead, Request, SaConfig, SaDir,
    SaFlags, Selector,
};

/// A security association (RFC 4301 §4.4.2). An outbound one takes numbers from [`OutSequence`], an inbound one has a
/// [`ReplayWindow`]; its direction decides, or, if it has none, its use, as in Linux.
///
/// Four cache lines hold the fields that a packet needs; the first of them is all that a look-up reads. Rarely used
/// fields are elsewhere.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Sa {
    id: SaId,
    pub(crate) spi: Spi,
    pub(crate) mark: Mark,
    pub(crate) reqid: u32,
    pub(crate) if_id: u32,
    pub(crate) dst: IpAddr,
    pub(crate) src: IpAddr,
    pub(crate) dir: Option<SaDir>,
    pub(crate) mode: Mode,
    pub(crate) state: State,
    /// Whether a soft limit is reached: another SA is preferred (RFC 4301 §4.4.2.1).
    pub(crate) dying: bool,
    /// The next outer IPv4 identification (RFC 6864: only fragments need it).
    pub(crate) ip_id: u16,

    pub(crate) replay: ReplayWindow,
    pub(crate) cipher: Arc<Cipher>,
    pub(crate) flags: SaFlags,
    /// The shard that seals and opens its packets. The others know its lengths, and neither its key nor its numbers.
    owner: ShardId,
    pub(crate) encap: Option<EspInUdp>,
    /// `None` without any of these options.
    pub(crate) extras: Option<Box<Extras>>,

    pub(crate) out: OutSequence,
    /// Number of bytes at which the slow path checks its limits.
    pub(crate) next_bytes: u64,
    pub(crate) next_packets: u64,
    /// The device that it is offloaded to. `None` also if the configured device refused and software does the work.
    pub(crate) offload: Option<Offload>,
    pub(crate) output_mark: Mark,
    pub(crate) age: Box<Age>,

    pub(crate) stats: SaStats,
}

/// Rarely used options, boxed to keep `Sa` small.
#[derive(Debug, Default)]
pub(crate) struct Extras {
    pub(crate) selector: Option<Selector>,
    pub(crate) tfcpad: u32,
    pub(crate) nat: NatTraversal,
    pub(crate) cpu: Option<u32>,
    pub(crate) place: Place,
}

/// Counters of an SA: `ip -s xfrm state`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct SaStats {
    /// Bytes protected: inner packets in tunnel mode, what follows the IP header in transport mode.
    pub bytes: u64,
    /// Packets protected, as many as were on the wire.
    pub packets: u64,
    /// Packets that were left of the replay window.
    pub replay_window: u64,
    /// Packets that had been received before.
    pub replay: u64,
    /// Packets whose integrity check failed.
    pub failed: u64,
    /// Time of its last use.
    pub last_used: Option<Instant>,
}

impl Sa {
    /// The SA of `config`, in slot `id`. `mask` is a random number of its own (see [`OutSequence`]). `has_key`: this shard is its
    /// `owner`.
    ///
    /// # Errors
    /// The first invalid value of `config`.
    pub(crate) fn new(
        id: SaId,
        config: &SaConfig,
        mask: u64,
        (owner, has_key): (ShardId, bool),
    ) -> Result<Self, ConfigError> {
        config.check()?;
        // Also in a shard that does not make the cipher: all refuse the same.
        config.algorithm.check()?;
        let SaFlags { esn, oseq_may_wrap, .. } = config.flags;
        Ok(Self {
            id,
            src: config.src,
            dst: config.dst,
            spi: config.spi,
            dir: config.dir,
            mode: config.mode,
            state: State::Valid,
            dying: false,
            reqid: config.reqid,
            flags: config.flags,
            owner,
            encap: config.encap,
            extras: Extras::new(config, Place::default()),
            cipher: Arc::new(if has_key { Cipher::new(&config.algorithm)? } else { Cipher::elsewhere(config) }),
            out: OutSequence::new(config.oseq, esn, oseq_may_wrap, mask),
            replay: ReplayWindow::new(config.replay_window, esn, config.seq),
            ip_id: mask as u16,
            stats: SaStats::default(),
            mark: config.mark,
            output_mark: config.output_mark,
            if_id: config.if_id,
            next_bytes: 0,
            next_packets: 0,
            age: Box::new(Age::new(config)),
            offload: None,
        })
    }

    /// Decides whether `config` may [replace](Self::replace) its own.
    ///
    /// # Errors
    /// [`ConfigError::EsnChanged`], [`ConfigError::DirReversed`].
    pub(crate) fn check_replacement(&self, config: &SaConfig) -> Result<(), ConfigError> {
        if config.flags.esn != self.flags.esn {
            return Err(ConfigError::EsnChanged);
        }
        if let (Some(old), Some(new)) = (self.dir, config.dir)
            && old != new
        {
            return Err(ConfigError::DirReversed);
        }
        Ok(())
    }

    /// Applies `config`, which was checked, except identity, key and lifetime. Sequence numbers and window stay.
    pub(crate) fn replace(&mut self, config: &SaConfig) {
        self.settle(config);
        self.src = config.src;
        self.dir = config.dir;
        self.mode = config.mode;
        self.reqid = config.reqid;
        self.flags = config.flags;
        self.encap = config.encap;
        let place = self.extras.take().map(|extras| extras.place).unwrap_or_default();
        self.extras = Extras::new(config, place);
        self.output_mark = config.output_mark;
        self.if_id = config.if_id;
        self.age.request.clone_from(&config.request);
        self.out.set_may_wrap(config.flags.oseq_may_wrap);
        if config.replay_window != self.replay.size() {
            self.replay = self.replay.resized(config.replay_window);
        }
    }

    /// Tells whether `flow` may have come through it. For an ICMP error, a match of `quoted` is enough (Linux
    /// `xfrm_selector_inner_icmp_match`).
    pub(crate) fn may_have_carried(&self, flow: &Flowi, quoted: Option<&Flowi>) -> bool {
        let quoted = quoted.filter(|_| self.flags.icmp);
        self.selector().is_none_or(|it| it.matches(flow) || quoted.is_some_and(|quoted| it.matches(quoted)))
    }

    /// Number on this node.
    pub const fn id(&self) -> SaId {
        self.id
    }

    /// The shard that seals and opens its packets.
    #[inline]
    pub const fn owner(&self) -> ShardId {
        self.owner
    }

    /// Number of the CPU whose packets it is for.
    pub fn cpu(&self) -> Option<u32> {
        self.extras.as_deref()?.cpu
    }

    /// The outer source; unspecified for any.
    pub const fn src(&self) -> IpAddr {
        self.src
    }

    /// The outer destination.
    pub const fn dst(&self) -> IpAddr {
        self.dst
    }

    /// The security parameters index.
    pub const fn spi(&self) -> Spi {
        self.spi
    }

    /// The only direction in which it may be used.
    pub const fn dir(&self) -> Option<SaDir> {
        self.dir
    }

    /// Mode.
    pub const fn mode(&self) -> Mode {
        self.mode
    }

    /// The number that ties it to templates.
    pub const fn reqid(&self) -> u32 {
        self.reqid
    }

    /// Options.
    pub const fn flags(&self) -> SaFlags {
        self.flags
    }

    /// The UDP header around ESP.
    pub const fn encap(&self) -> Option<EspInUdp> {
        self.encap
    }

    /// Inner packets that may use it.
    #[inline]
    pub fn selector(&self) -> Option<&Selector> {
        self.extras.as_deref()?.selector.as_ref()
    }

    /// Length to which inner packets are padded.
    pub fn tfcpad(&self) -> u32 {
        self.extras.as_ref().map_or(0, |extras| extras.tfcpad)
    }

    /// Behaviour towards a NAT.
    pub fn nat(&self) -> NatTraversal {
        self.extras.as_ref().map_or_else(NatTraversal::default, |extras| extras.nat)
    }

    /// The last sequence number sent.
    pub const fn oseq(&self) -> u64 {
        self.out.last()
    }

    /// The replay window.
    pub const fn replay(&self) -> &ReplayWindow {
        &self.replay
    }

    /// Marks of the packets that it is for.
    pub const fn mark(&self) -> Mark {
        self.mark
    }

    /// Mark that its packets get.
    pub const fn output_mark(&self) -> Mark {
        self.output_mark
    }

    /// The number of its XFRM interface; 0 for none.
    pub const fn if_id(&self) -> u32 {
        self.if_id
    }

    /// Limits of its lifetime.
    pub fn lifetime(&self) -> Lifetime {
        self.age.lifetime
    }

    /// State of its life.
    pub const fn state(&self) -> State {
        self.state
    }

    /// Tells whether a soft limit is reached, and another SA is better.
    pub const fn is_dying(&self) -> bool {
        self.dying
    }

    /// Time of its addition, or of the first timer call after it.
    pub fn added(&self) -> Option<Instant> {
        self.age.added
    }

    /// Time of its first use.
    pub fn first_used(&self) -> Option<Instant> {
        self.age.first_used
    }

    /// The request that made it, if that is a `T`.
    pub fn request<T: Any>(&self) -> Option<&T> {
        self.age.request.as_ref()?.get()
    }

    /// Replaces the kept request.
    pub fn set_request(&mut self, request: Request) {
        self.age.request = Some(request);
    }

    /// Counters.
    pub const fn stats(&self) -> SaStats {
        self.stats
    }

    /// Skips numbers up to `oseq`: another SA of its name may have sent them, before a restart.
    pub const fn skip_to(&mut self, oseq: u64) {
        self.out.skip_to(oseq);
    }

    /// Marks these numbers as received, the lowest first: another node's SA has received them, and this SA continues
    /// it.
    pub fn resume_received(&mut self, seqs: &[u64]) {
        for &seq in seqs {
            // A number left of the window need not be remembered.
            let _ = self.replay.mark(seq);
        }
    }

    /// Sets its window to `size` packets up to `top`, in which exactly `seqs` and `top` are marked as received. The
    /// operator's request overrides the former state.
    ///
    /// # Panics
    /// As [`ReplayWindow::new`].
    pub fn set_received(&mut self, size: u32, top: u64, seqs: &[u64]) {
        self.replay = ReplayWindow::new(size, self.replay.esn(), top);
        self.resume_received(seqs);
    }

    /// Adds to its counters those of another SA that it continues. Its [sum](crate::SaSum) has its own packets alone.
    pub fn resume_counts(&mut self, packets: u64, bytes: u64) {
        let (summed_packets, summed_bytes) = &mut self.age.summed;
        *summed_packets = summed_packets.wrapping_add(packets.wrapping_sub(self.stats.packets));
        *summed_bytes = summed_bytes.wrapping_add(bytes.wrapping_sub(self.stats.bytes));
        (self.stats.packets, self.stats.bytes) = (packets, bytes);
        (self.next_packets, self.next_bytes) = (0, 0);
    }

    /// Bytes that it adds to a packet.
    pub fn overhead(&self) -> Overhead {
        Overhead {
            mode: self.mode,
            outer: Version::of_addr(self.dst),
            udp: self.encap.is_some(),
            iv_len: self.cipher.iv_len(),
            icv_len: self.cipher.icv_len(),
            align: self.cipher.align(),
        }
    }

    /// The largest inner packet that leaves over a link of `mtu` bytes.
    pub fn inner_mtu(&self, mtu: usize) -> usize {
        self.overhead().inner_mtu(mtu)
    }

    /// Length to which its inner packets are padded when the path's MTU is `mtu` (Linux `esp_output`).
    pub(crate) fn pad_to(&self, mtu: usize) -> usize {
        if self.tfcpad() == 0 {
            return 0;
        }
        let (most, padded) = (self.inner_mtu(mtu), self.tfcpad() as usize);
        if padded < most { padded } else { most }
    }

    /// Notes `packets` packets with `bytes` bytes of protected payload.
    pub(crate) const fn used(&mut self, now: Instant, packets: u64, bytes: u64) {
        self.stats.packets = self.stats.packets.wrapping_add(packets);
        self.stats.bytes = self.stats.bytes.wrapping_add(bytes);
        self.stats.last_used = Some(now);
    }
}

impl Extras {
    /// Rarely used options of `config`, with its peer at `place`; `None` without any.
    fn new(config: &SaConfig, place: Place) -> Option<Box<Self>> {
        let &SaConfig { selector, tfcpad, nat, cpu, .. } = config;
        let has_nat = nat != NatTraversal::default() || place != Place::default();
        let has_some = selector.is_some() || tfcpad > 0 || has_nat || cpu.is_some();
        has_some.then(|| Box::new(Self { selector, tfcpad, nat, cpu, place }))
    }
}

#[cfg(test)]
mod tests {
    use std::mem::{offset_of, size_of};

    use super::*;
    use xfrm::Algorithm;

    #[test]
    fn operator_sets_the_replay_state_of_an_sa() {
        let algorithm = Algorithm::null();
        for (esn, top) in [(false, 100), (true, 7 << 32)] {
            let flags = SaFlags { esn, ..SaFlags::default() };
            let [src, dst] = [1, 2].map(|last| IpAddr::from([192, 0, 2, last]));
            let config = SaConfig {
                replay_window: 32,
                flags,
                ..SaConfig::new(src, dst, Spi(1), Mode::Tunnel, algorithm.clone())
            };
            let mut sa = Sa::new(SaId(1), &config, 0, (ShardId::FIRST, true)).unwrap();
            sa.resume_received(&[top + 400, top + 500]);
            // (size, received, marked afterwards): in windows smaller and larger than before.
            for (size, received, want) in [
                (32, vec![], vec![top]),
                (32, vec![top - 31, top - 2], vec![top, top - 2, top - 31]),
                (64, vec![top - 63, top - 64], vec![top, top - 63]),
            ] {
                sa.set_received(size, top, &received);
                assert_eq!(sa.replay().seen().collect::<Vec<_>>(), want, "{size}, esn {esn}");
                assert_eq!((sa.replay().size(), sa.replay().top(), sa.replay().esn()), (size, top, esn));
                assert_eq!(sa.replay().check(top as u32 + 1), Ok(top + 1));
            }
        }
    }

    #[test]
    fn sa_fits_four_cache_lines_and_its_lookup_fits_one() {
        assert_eq!(size_of::<Option<Sa>>(), 4 * 64);
        assert_eq!(offset_of!(Sa, replay), 64);
        assert_eq!(offset_of!(Sa, out), 128);
    }
}
