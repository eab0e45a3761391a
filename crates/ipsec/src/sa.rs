//! A security association: what it does, what it has seen.

use std::net::IpAddr;
use std::sync::Arc;

use base::{Instant, SaId};
use wire::{Spi, Version};

use crate::config::{ConfigError, EspInUdp, Mode, NatTraversal, SaConfig, SaDir, SaFlags, Selector};
use crate::device::Offload;
use crate::engine::Cipher;
use crate::flowi::Flowi;
use crate::lifetime::Lifetime;
use crate::mark::Mark;
use crate::mtu::Overhead;
use crate::nat::Place;
use crate::replay::ReplayWindow;
use crate::sad::{Age, State};
use crate::sequence::OutSequence;

/// A security association (RFC 4301 §4.4.2). One that sends draws from [`OutSequence`], one that receives keeps a
/// [`ReplayWindow`]; which it is, is told by its direction, or by its use alone if it names none, as in Linux.
#[derive(Debug)]
pub struct Sa {
    id: SaId,
    pub(crate) src: IpAddr,
    pub(crate) dst: IpAddr,
    pub(crate) spi: Spi,
    pub(crate) dir: Option<SaDir>,
    pub(crate) mode: Mode,
    pub(crate) reqid: u32,
    pub(crate) flags: SaFlags,
    pub(crate) encap: Option<EspInUdp>,
    pub(crate) selector: Option<Selector>,
    pub(crate) tfcpad: u32,
    pub(crate) nat: NatTraversal,
    pub(crate) place: Place,
    pub(crate) cipher: Arc<Cipher>,
    pub(crate) out: OutSequence,
    pub(crate) replay: ReplayWindow,
    /// The next outer IPv4 identification (RFC 6864: of use to fragments alone).
    pub(crate) ip_id: u16,
    pub(crate) stats: SaStats,
    pub(crate) mark: Mark,
    pub(crate) output_mark: Mark,
    pub(crate) if_id: u32,
    pub(crate) age: Age,
    /// The device that does its work. `None` also if one was asked for, and software does it.
    pub(crate) offload: Option<Offload>,
    /// The highest number received when its device was last told.
    pub(crate) esn_told: u64,
    /// How many SAs were added before it.
    pub(crate) born: u64,
}

/// What an SA has counted: `ip -s xfrm state`.
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
    /// When it was last used.
    pub last_used: Option<Instant>,
}

impl Sa {
    /// The SA of `config`, in slot `id`. `mask` is a random number of its own (see [`OutSequence`]).
    ///
    /// # Errors
    /// What is wrong with `config`.
    pub(crate) fn new(id: SaId, config: &SaConfig, mask: u64) -> Result<Self, ConfigError> {
        config.check()?;
        let SaFlags { esn, oseq_may_wrap, .. } = config.flags;
        Ok(Self {
            id,
            src: config.src,
            dst: config.dst,
            spi: config.spi,
            dir: config.dir,
            mode: config.mode,
            reqid: config.reqid,
            flags: config.flags,
            encap: config.encap,
            selector: config.selector,
            tfcpad: config.tfcpad,
            nat: config.nat,
            place: Place::default(),
            cipher: Arc::new(Cipher::new(&config.algorithm)?),
            out: OutSequence::new(config.oseq, esn, oseq_may_wrap, mask),
            replay: ReplayWindow::new(config.replay_window, esn, config.seq),
            ip_id: mask as u16,
            stats: SaStats::default(),
            mark: config.mark,
            output_mark: config.output_mark,
            if_id: config.if_id,
            age: Age::new(config.lifetime),
            offload: None,
            esn_told: config.seq,
            born: 0,
        })
    }

    /// Takes over what `config`, which was checked, says beside identity, key and lifetime. What was sent and seen stays
    /// so.
    ///
    /// # Errors
    /// [`ConfigError::EsnChanged`], [`ConfigError::DirReversed`].
    pub(crate) fn replace(&mut self, config: &SaConfig) -> Result<(), ConfigError> {
        if config.flags.esn != self.flags.esn {
            return Err(ConfigError::EsnChanged);
        }
        if let (Some(old), Some(new)) = (self.dir, config.dir)
            && old != new
        {
            return Err(ConfigError::DirReversed);
        }
        self.settle(config);
        self.src = config.src;
        self.dir = config.dir;
        self.mode = config.mode;
        self.reqid = config.reqid;
        self.flags = config.flags;
        self.encap = config.encap;
        self.selector = config.selector;
        self.tfcpad = config.tfcpad;
        self.nat = config.nat;
        self.output_mark = config.output_mark;
        self.if_id = config.if_id;
        self.out.set_may_wrap(config.flags.oseq_may_wrap);
        if config.replay_window != self.replay.size() {
            self.replay = self.replay.resized(config.replay_window);
        }
        Ok(())
    }

    /// Tells whether `flow` may have come through it. Of an ICMP error it may be enough that `quoted` may (Linux
    /// `xfrm_selector_inner_icmp_match`).
    pub(crate) fn may_have_carried(&self, flow: &Flowi, quoted: Option<&Flowi>) -> bool {
        let quoted = quoted.filter(|_| self.flags.icmp);
        self.selector.is_none_or(|it| it.matches(flow) || quoted.is_some_and(|quoted| it.matches(quoted)))
    }

    /// Its number on this node.
    pub const fn id(&self) -> SaId {
        self.id
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

    /// What it protects.
    pub const fn mode(&self) -> Mode {
        self.mode
    }

    /// The number that ties it to templates.
    pub const fn reqid(&self) -> u32 {
        self.reqid
    }

    /// Its options.
    pub const fn flags(&self) -> SaFlags {
        self.flags
    }

    /// The UDP header around ESP.
    pub const fn encap(&self) -> Option<EspInUdp> {
        self.encap
    }

    /// Which inner packets may use it.
    pub const fn selector(&self) -> Option<Selector> {
        self.selector
    }

    /// To how many bytes inner packets are padded.
    pub const fn tfcpad(&self) -> u32 {
        self.tfcpad
    }

    /// What it does about a NAT.
    pub const fn nat(&self) -> NatTraversal {
        self.nat
    }

    /// The last sequence number sent.
    pub const fn oseq(&self) -> u64 {
        self.out.last()
    }

    /// The replay window.
    pub const fn replay(&self) -> &ReplayWindow {
        &self.replay
    }

    /// Which marked packets it is for.
    pub const fn mark(&self) -> Mark {
        self.mark
    }

    /// What its packets are marked with afterwards.
    pub const fn output_mark(&self) -> Mark {
        self.output_mark
    }

    /// The number of its XFRM interface; 0 for none.
    pub const fn if_id(&self) -> u32 {
        self.if_id
    }

    /// When it ends.
    pub const fn lifetime(&self) -> Lifetime {
        self.age.lifetime
    }

    /// What may be done with it.
    pub const fn state(&self) -> State {
        self.age.state
    }

    /// Whether a soft limit is reached, and another SA is better.
    pub const fn is_dying(&self) -> bool {
        self.age.dying
    }

    /// When it was added, as far as time has passed since.
    pub const fn added(&self) -> Option<Instant> {
        self.age.added
    }

    /// When it was used first.
    pub const fn first_used(&self) -> Option<Instant> {
        self.age.first_used
    }

    /// What it has counted.
    pub const fn stats(&self) -> SaStats {
        self.stats
    }

    /// What it adds to a packet.
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

    /// Notes `packets` packets with `bytes` bytes of protected payload.
    pub(crate) const fn used(&mut self, now: Instant, packets: u64, bytes: u64) {
        self.stats.packets = self.stats.packets.wrapping_add(packets);
        self.stats.bytes = self.stats.bytes.wrapping_add(bytes);
        self.stats.last_used = Some(now);
    }
}
