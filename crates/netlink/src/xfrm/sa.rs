//! SAs in messages: parsing, validation and serialisation (Linux `verify_newsa_info`, `xfrm_state_construct`,
//! `copy_to_user_state_extra`).

use std::time::Duration;

use xfrm::{Aevents, Algorithm, Mark};

use super::algorithm;
use super::attributes::Attributes;
use super::check;
use super::layout::{Addr, Encap, Layout, LifetimeCur, SaInfo, UserOffload};
use super::nums::{attr, sa_flag};
use super::replay::{self, Replay};
use crate::attr::Attr;
use crate::error::{Error, errno};
use crate::message::Writer;

/// SA of a request, valid as far as the message alone shows.
#[derive(Clone, Debug)]
pub struct NewSa {
    /// Fixed part, with the selector's family filled in.
    pub info: SaInfo,
    /// Algorithm.
    pub algorithm: Algorithm,
    /// UDP encapsulation.
    pub encap: Option<Encap>,
    /// The care-of address of mobile IPv6, stored for replies.
    pub coaddr: Option<Addr>,
    /// Mark of the SA's packets.
    pub mark: Mark,
    /// Mark that the SA sets on its packets.
    pub set_mark: Mark,
    /// `XFRM_SA_XFLAG_*`.
    pub extra_flags: u32,
    /// Initial sequence numbers, and the window if it exceeds 32.
    pub replay: Option<Replay>,
    /// Initial counters of use.
    pub used: Option<LifetimeCur>,
    /// Length that packets are padded to; 0 for none.
    pub tfcpad: u32,
    /// Number of the SA's XFRM interface; 0 for none.
    pub if_id: u32,
    /// 1 for in, 2 for out, 0 for either.
    pub dir: u8,
    /// Seconds after which the peer's new address is reported again (`XFRMA_MTIMER_THRESH`).
    pub mapping_threshold: u32,
    /// Seconds between keepalives for a NAT.
    pub nat_keepalive: u32,
    /// Thresholds for notifications of the SA's sequence numbers.
    pub aevents: Aevents,
    /// Device that is to process the SA's packets.
    pub offload: Option<UserOffload>,
    /// Number of the CPU whose packets are sent by the SA (`XFRMA_SA_PCPU`); `None` for all.
    pub cpu: Option<u32>,
}

/// Unit of the timer of async events, independent of a kernel's `HZ`.
const TENTH: Duration = Duration::from_millis(100);

/// Thresholds of async events in a request.
pub(super) fn aevents(attrs: &Attributes<'_>) -> Aevents {
    let word = |kind| attrs.get(kind).map(Attr::u32);
    Aevents { packets: word(attr::REPLAY_THRESH), time: word(attr::ETIMER_THRESH).map(|tenths| TENTH * tenths) }
}

impl NewSa {
    /// Parses `NEWSA` and `UPDSA`.
    ///
    /// # Errors
    /// Linux's refusal of the request.
    pub(super) fn parse(info: &[u8], attrs: &Attributes<'_>) -> Result<Self, Error> {
        let mut info = SaInfo::of(info);
        check::new_sa(&info, attrs)?;
        check::supported(info.proto, info.mode)?;
        let word = |kind| attrs.get(kind).map_or(0, Attr::u32);
        let algorithm = algorithm::read(attrs)?;
        if info.sel.family == 0 && info.flags & sa_flag::AF_UNSPEC == 0 {
            info.sel.family = info.family;
        }
        check::buildable(&info, attrs)?;
        // Bits of the legacy bitmap (Linux `copy_from_user_state`).
        info.replay_window = info.replay_window.min(u32::BITS as u8);
        let mut set_mark = Mark { value: word(attr::SET_MARK), mask: word(attr::SET_MARK_MASK) };
        if attrs.get(attr::SET_MARK).is_some() && attrs.get(attr::SET_MARK_MASK).is_none() {
            set_mark.mask = u32::MAX;
        }
        Ok(Self {
            algorithm,
            encap: attrs.get(attr::ENCAP).map(|attr| Encap::of(attr.data)),
            coaddr: attrs.get(attr::COADDR).map(address),
            mark: mark(attrs),
            set_mark,
            extra_flags: word(attr::SA_EXTRA_FLAGS),
            replay: replay::of(attrs),
            used: attrs.get(attr::LTIME_VAL).map(|attr| LifetimeCur::of(attr.data)),
            tfcpad: word(attr::TFCPAD),
            if_id: word(attr::IF_ID),
            dir: attrs.get(attr::SA_DIR).map_or(0, Attr::u8),
            mapping_threshold: word(attr::MTIMER_THRESH),
            nat_keepalive: word(attr::NAT_KEEPALIVE_INTERVAL),
            aevents: aevents(attrs),
            offload: attrs.get(attr::OFFLOAD_DEV).map(|attr| UserOffload::of(attr.data)),
            cpu: attrs.get(attr::SA_PCPU).map(Attr::u32),
            info,
        })
    }

    /// Length of the replay window in packets.
    pub fn replay_window(&self) -> u32 {
        match &self.replay {
            Some(Replay::Esn(replay)) => replay.replay_window,
            _ => self.info.replay_window.into(),
        }
    }
}

/// Mark of a request; bits of the value outside the mask are kept, as in Linux.
pub(super) fn mark(attrs: &Attributes<'_>) -> Mark {
    let Some(attr) = attrs.get(attr::MARK) else { return Mark::default() };
    let mask = attr.data.get(4..).and_then(<[u8]>::first_chunk).map_or(0, |it| u32::from_ne_bytes(*it));
    Mark { value: attr.u32(), mask }
}

/// Address in an attribute.
pub(super) fn address(attr: &crate::attr::Attr<'_>) -> Addr {
    super::layout::Fields(attr.data).addr()
}

/// Current state of an SA.
#[derive(Clone, Debug)]
pub struct Sa {
    /// Fixed part, with counters.
    pub info: SaInfo,
    /// Algorithm; `None` for a larval SA.
    pub algorithm: Option<Algorithm>,
    /// UDP encapsulation.
    pub encap: Option<Encap>,
    /// The care-of address of mobile IPv6.
    pub coaddr: Option<Addr>,
    /// Time of the last use, in seconds since the Unix epoch; 0 for never.
    pub last_used: u64,
    /// Mark of the SA's packets.
    pub mark: Mark,
    /// Mark that the SA sets on its packets.
    pub set_mark: Mark,
    /// `XFRM_SA_XFLAG_*`.
    pub extra_flags: u32,
    /// Sequence numbers.
    pub replay: Replay,
    /// Device that processes the SA's packets.
    pub offload: Option<UserOffload>,
    /// Length that packets are padded to.
    pub tfcpad: u32,
    /// Number of the SA's XFRM interface.
    pub if_id: u32,
    /// 1 for in, 2 for out, 0 for either.
    pub dir: u8,
    /// Seconds after which the peer's new address is reported again (`XFRMA_MTIMER_THRESH`).
    pub mapping_threshold: u32,
    /// Seconds between keepalives.
    pub nat_keepalive: u32,
    /// Packet threshold for notifications (`XFRMA_REPLAY_THRESH`).
    pub replay_thresh: u32,
    /// Timer for notifications, in tenths of a second (`XFRMA_ETIMER_THRESH`).
    pub etimer_thresh: u32,
    /// Number of the CPU whose packets are sent by the SA (`XFRMA_SA_PCPU`); `None` for all.
    pub cpu: Option<u32>,
}

impl Sa {
    /// Key of the SA.
    pub(super) const fn id(&self) -> super::layout::SaId {
        let SaInfo { daddr, spi, family, proto, .. } = self.info;
        super::layout::SaId { daddr, spi, family, proto }
    }

    /// Writes the payload of `NEWSA`.
    pub(super) fn write(&self, w: &mut Writer) {
        w.fixed(&self.info.to_bytes());
        self.write_attributes(w);
    }

    /// Writes the attributes.
    pub(super) fn write_attributes(&self, w: &mut Writer) {
        let put_if_set = |w: &mut Writer, kind, value| {
            if value != 0 {
                w.put_u32(kind, value);
            }
        };
        put_if_set(w, attr::SA_EXTRA_FLAGS, self.extra_flags);
        if let Some(coaddr) = self.coaddr {
            w.put(attr::COADDR, &coaddr.0);
        }
        if self.last_used != 0 {
            w.put_u64(attr::LASTUSED, self.last_used);
        }
        if let Some(algorithm) = &self.algorithm {
            algorithm::write(algorithm, w);
        }
        if let Some(encap) = self.encap {
            encap.put(w, attr::ENCAP);
        }
        put_if_set(w, attr::TFCPAD, self.tfcpad);
        put_mark(w, self.mark);
        if self.set_mark != Mark::default() {
            w.put_u32(attr::SET_MARK, self.set_mark.value);
            w.put_u32(attr::SET_MARK_MASK, self.set_mark.mask);
        }
        self.write_replay(w);
        if let Some(offload) = self.offload {
            offload.put(w, attr::OFFLOAD_DEV);
        }
        put_if_set(w, attr::IF_ID, self.if_id);
        put_if_set(w, attr::MTIMER_THRESH, self.mapping_threshold);
        if self.dir != 0 {
            w.put_u8(attr::SA_DIR, self.dir);
        }
        put_if_set(w, attr::NAT_KEEPALIVE_INTERVAL, self.nat_keepalive);
        put_cpu(w, self.cpu);
    }

    /// Writes the sequence numbers.
    pub(super) fn write_replay(&self, w: &mut Writer) {
        match &self.replay {
            Replay::Legacy(words) => {
                let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
                w.put(attr::REPLAY_VAL, &bytes);
            }
            Replay::Esn(replay) => replay.put(w, attr::REPLAY_ESN_VAL),
        }
    }
}

/// Writes the number of an SA's CPU, if it has one.
pub(super) fn put_cpu(w: &mut Writer, cpu: Option<u32>) {
    if let Some(cpu) = cpu {
        w.put_u32(attr::SA_PCPU, cpu);
    }
}

/// Writes a mark, unless it is zero.
pub(super) fn put_mark(w: &mut Writer, mark: Mark) {
    if mark != Mark::default() {
        w.put(attr::MARK, &[mark.value.to_ne_bytes(), mark.mask.to_ne_bytes()].concat());
    }
}

/// Key of the SA in a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SaQuery {
    /// Destination.
    pub daddr: Addr,
    /// SPI; or a source address, which selects any SA from that source.
    pub spi: Result<u32, Addr>,
    /// Family of the addresses.
    pub family: u16,
    /// Protocol.
    pub proto: u8,
    /// Mark of the SA's packets.
    pub mark: Mark,
}

impl SaQuery {
    /// Parses `DELSA` and `GETSA` (Linux `xfrm_user_state_lookup`).
    pub(super) fn parse(id: &[u8], attrs: &Attributes<'_>) -> Result<Self, Error> {
        let id = super::layout::SaId::of(id);
        let spi = if check::is_ipsec(id.proto) {
            Ok(id.spi)
        } else {
            let source = attrs.get(attr::SRCADDR).ok_or(Error::new(errno::EINVAL))?;
            Err(address(source))
        };
        Ok(Self { daddr: id.daddr, spi, family: id.family, proto: id.proto, mark: mark(attrs) })
    }
}

/// Request for an SPI (`struct xfrm_userspi_info`).
#[derive(Clone, Debug)]
pub struct NewSpi {
    /// The larval SA.
    pub info: SaInfo,
    /// Lowest acceptable SPI.
    pub min: u32,
    /// Highest acceptable SPI.
    pub max: u32,
    /// Mark.
    pub mark: Mark,
    /// Number of the SA's XFRM interface.
    pub if_id: u32,
    /// 1 for in, 2 for out, 0 for either.
    pub dir: u8,
    /// Number of the CPU whose packets are sent by the SA; `None` for all.
    pub cpu: Option<u32>,
}

impl NewSpi {
    /// The length of the fixed part.
    pub(super) const LEN: usize = SaInfo::LEN + 8;

    /// Parses `ALLOCSPI`.
    pub(super) fn parse(bytes: &[u8], attrs: &Attributes<'_>) -> Result<Self, Error> {
        let mut from = super::layout::Fields(bytes);
        let info = SaInfo::read(&mut from);
        let (min, max) = (from.u32(), from.u32());
        check::known_direction(attrs)?;
        check::spi_range(info.proto, min, max)?;
        check::supported(info.proto, info.mode)?;
        check::interface(attrs)?;
        let if_id = attrs.get(attr::IF_ID).map_or(0, Attr::u32);
        let dir = attrs.get(attr::SA_DIR).map_or(0, Attr::u8);
        let cpu = attrs.get(attr::SA_PCPU).map(Attr::u32);
        check::cpu(attrs, errno::EINVAL)?;
        Ok(Self { info, min, max, mark: mark(attrs), if_id, dir, cpu })
    }
}
