//! Between the structures of `linux/xfrm.h` and the terms of the `ipsec` crate.

use std::net::IpAddr;
use std::time::Duration;

use base::{LinkId, Prefix};
use ipsec::replay::ReplayWindow;
use ipsec::{
    Action, Aevents, ConfigError, Dir, EspInUdp, Level, Lifetime, Limits, Mark, Mode, NatTraversal, PolicyConfig,
    PortMask, SaConfig, SaDir, SaFlags, Selector, Template,
};
use netlink::Error;
use netlink::error::errno;
use netlink::xfrm::layout::{self, Addr, LifetimeCfg, ReplayEsn, SaInfo, Tmpl, family_of};
use netlink::xfrm::nums::{mode, proto, sa_flag};
use netlink::xfrm::{self as nl, NewSa, Replay};
use wire::{Protocol, Spi};

use crate::translate::to_ipsec::algorithm;

/// The refusal of the `ipsec` crate, with Linux's number and words.
pub(super) fn refusal(err: &ConfigError) -> Error {
    let errno = match err {
        ConfigError::Exists => return Error::new(errno::EEXIST),
        ConfigError::NotFound => return Error::new(errno::ESRCH),
        ConfigError::NoSpi => return Error::new(errno::ENOENT),
        ConfigError::TooMany => errno::ENOMEM,
        ConfigError::DirReversed | ConfigError::EncapChanged | ConfigError::NotValid => {
            return Error::new(errno::EINVAL);
        }
        _ => errno::EINVAL,
    };
    Error::said(errno, err.to_string())
}

fn invalid() -> Error {
    Error::new(errno::EINVAL)
}

pub(super) const fn mark(mark: nl::Mark) -> Mark {
    Mark { value: mark.value, mask: mark.mask }
}

pub(super) const fn nl_mark(mark: Mark) -> nl::Mark {
    nl::Mark { value: mark.value, mask: mark.mask }
}

pub(super) const fn sa_dir(dir: u8) -> Option<SaDir> {
    match dir {
        1 => Some(SaDir::In),
        2 => Some(SaDir::Out),
        _ => None,
    }
}

pub(super) const fn nl_sa_dir(dir: Option<SaDir>) -> u8 {
    match dir {
        None => 0,
        Some(SaDir::In) => 1,
        Some(SaDir::Out) => 2,
    }
}

/// The mode of an SA to come.
pub(super) fn mode(number: u8) -> Result<Mode, Error> {
    match number {
        mode::TUNNEL | mode::TRANSPORT => Ok(to_mode(number)),
        _ => Err(Error::text(errno::EPROTONOSUPPORT, "Requested mode not found")),
    }
}

fn to_mode(number: u8) -> Mode {
    if number == mode::TUNNEL { Mode::Tunnel } else { Mode::Transport }
}

pub(super) const fn nl_mode(of: Mode) -> u8 {
    match of {
        Mode::Transport => mode::TRANSPORT,
        Mode::Tunnel => mode::TUNNEL,
    }
}

fn lifetime(lft: &LifetimeCfg) -> Lifetime {
    let secs = |secs: u64| (secs != 0).then(|| Duration::from_secs(secs));
    Lifetime {
        soft: Limits {
            bytes: lft.soft_byte_limit,
            packets: lft.soft_packet_limit,
            added: secs(lft.soft_add_expires_seconds),
            used: secs(lft.soft_use_expires_seconds),
        },
        hard: Limits {
            bytes: lft.hard_byte_limit,
            packets: lft.hard_packet_limit,
            added: secs(lft.hard_add_expires_seconds),
            used: secs(lft.hard_use_expires_seconds),
        },
    }
}

/// A selector of `family`, if it says none itself, of packets by link `dev`.
pub(super) fn selector(sel: &layout::Selector, family: u16, dev: Option<LinkId>) -> Result<Selector, Error> {
    let family = if sel.family == 0 { family } else { sel.family };
    let prefix = |addr: Addr, len| Prefix::containing(addr.ip(family)?, len).ok();
    let (src, dst) = (prefix(sel.saddr, sel.prefixlen_s), prefix(sel.daddr, sel.prefixlen_d));
    Ok(Selector {
        protocol: (sel.proto != 0).then_some(Protocol(sel.proto)),
        // Same form as in the database: bits outside the mask are no part of a policy's name.
        sport: PortMask { port: sel.sport & sel.sport_mask, mask: sel.sport_mask },
        dport: PortMask { port: sel.dport & sel.dport_mask, mask: sel.dport_mask },
        dev,
        ..Selector::new(src.ok_or_else(invalid)?, dst.ok_or_else(invalid)?)
    })
}

/// A selector as netlink has it, with the link's index `ifindex`.
pub(super) fn nl_selector(selector: &Selector, ifindex: u32) -> layout::Selector {
    let &Selector { src, dst, protocol, sport, dport, dev: _ } = selector;
    layout::Selector {
        daddr: dst.addr().into(),
        saddr: src.addr().into(),
        dport: dport.port,
        dport_mask: dport.mask,
        sport: sport.port,
        sport_mask: sport.mask,
        family: family_of(dst.addr()),
        prefixlen_d: dst.len(),
        prefixlen_s: src.len(),
        proto: protocol.map_or(0, |it| it.0),
        ifindex,
        user: 0,
    }
}

/// The numbers that an SA with those flags begins with: sent, and received. Without ESN the lower halves count alone; but
/// one that may start over is counted on in both, so that its vectors do not.
pub(super) fn begins_at(replay: Option<&Replay>, flags: SaFlags) -> (u64, u64) {
    match replay {
        None => (0, 0),
        Some(&Replay::Legacy([oseq, seq, _])) => (oseq.into(), seq.into()),
        Some(Replay::Esn(it)) => {
            let whole = |is_wide: bool, hi: u32, lo: u32| u64::from(if is_wide { hi } else { 0 }) << 32 | u64::from(lo);
            let goes_on = flags.esn || flags.oseq_may_wrap;
            (whole(goes_on, it.oseq_hi, it.oseq), whole(flags.esn, it.seq_hi, it.seq))
        }
    }
}

/// The SA that a message describes.
pub(super) fn sa(new: &NewSa, dev: Option<LinkId>) -> Result<SaConfig, Error> {
    let info = &new.info;
    let addr = |addr: Addr| addr.ip(info.family).ok_or_else(invalid);
    let (src, dst) = (addr(info.saddr)?, addr(info.daddr)?);
    let flag = |flag: u8| info.flags & flag != 0;
    let extra = |flag: u32| new.extra_flags & flag != 0;
    let flags = SaFlags {
        noecn: flag(sa_flag::NOECN),
        decap_dscp: flag(sa_flag::DECAP_DSCP),
        nopmtudisc: flag(sa_flag::NOPMTUDISC),
        esn: flag(sa_flag::ESN),
        dont_encap_dscp: extra(sa_flag::EXTRA_DONT_ENCAP_DSCP),
        oseq_may_wrap: extra(sa_flag::EXTRA_OSEQ_MAY_WRAP),
        wildrecv: flag(sa_flag::WILDRECV),
        icmp: flag(sa_flag::ICMP),
        af_unspec: flag(sa_flag::AF_UNSPEC),
    };
    // One that is for everything of the SA's own family says no more than none.
    let sel = Some(info.sel).filter(|sel| sel.family != 0).map(|sel| selector(&sel, info.family, dev)).transpose()?;
    let any = |prefix: Prefix| prefix.is_ipv4() == dst.is_ipv4() && prefix.len() == 0;
    let everything = |sel: &Selector| *sel == Selector::new(sel.src, sel.dst) && any(sel.src) && any(sel.dst);
    let sel = sel.filter(|sel| flags.af_unspec || !everything(sel));
    let (oseq, seq) = begins_at(new.replay.as_ref(), flags);
    Ok(SaConfig {
        dir: sa_dir(new.dir),
        reqid: info.reqid,
        replay_window: new.replay_window(),
        flags,
        encap: new.encap.map(|encap| EspInUdp { sport: encap.sport, dport: encap.dport }),
        selector: sel,
        oseq,
        seq,
        tfcpad: new.tfcpad,
        nat: NatTraversal {
            keepalive_interval: new.nat_keepalive,
            mapping_threshold: new.mapping_threshold,
            follow: false,
        },
        mark: mark(new.mark),
        output_mark: mark(new.set_mark),
        if_id: new.if_id,
        lifetime: lifetime(&info.lft),
        acquire_seq: info.seq,
        aevents: aevents(new.thresholds),
        ..SaConfig::new(src, dst, Spi(info.spi), to_mode(info.mode), algorithm(&new.algorithm))
    })
}

/// Thresholds of an SA's async events.
pub(super) fn aevents(said: nl::Thresholds) -> Aevents {
    Aevents { packets: said.replay, time: said.etimer.map(|tenths| TENTH * tenths) }
}

/// Unit of the timer of async events, whatever a kernel's `HZ`.
pub(super) const TENTH: Duration = Duration::from_millis(100);

/// The numbers that an SA with those flags has received, as far as a message remembers them.
pub(super) fn seen(replay: &Replay, flags: SaFlags) -> Vec<u64> {
    let (_, top) = begins_at(Some(replay), flags);
    match replay {
        Replay::Legacy([_, _, bitmap]) => {
            (0..32).filter(|age| bitmap >> age & 1 == 1).filter_map(|age| top.checked_sub(age)).collect()
        }
        Replay::Esn(it) => {
            let window = u64::from(it.replay_window).min(32 * it.bmp.len() as u64);
            let is_set = |seq: u64| {
                let at = (seq - 1) % window;
                it.bmp.get(at as usize / 32).is_some_and(|word| word >> (at % 32) & 1 == 1)
            };
            let bottom = top.saturating_sub(window.saturating_sub(1)).max(1);
            (bottom..=top).filter(|&seq| window > 0 && is_set(seq)).collect()
        }
    }
}

/// An SA's numbers as they are shown: in the form that it was made in.
pub(super) fn replay(as_made: Option<&Replay>, window: &ReplayWindow, oseq: u64) -> Replay {
    let Some(Replay::Esn(made)) = as_made else {
        let bitmap = window.seen().map(|seq| window.top() - seq).filter(|&age| age < 32);
        return Replay::Legacy([oseq as u32, window.top() as u32, bitmap.fold(0, |all, age| all | 1 << age)]);
    };
    let mut bmp = vec![0_u32; made.bmp.len()];
    let size = u64::from(window.size());
    for at in window.seen().filter(|&seq| seq > 0 && size > 0).map(|seq| ((seq - 1) % size) as usize) {
        if let Some(word) = bmp.get_mut(at / 32) {
            *word |= 1 << (at % 32);
        }
    }
    Replay::Esn(ReplayEsn {
        oseq: oseq as u32,
        oseq_hi: (oseq >> 32) as u32,
        seq: window.top() as u32,
        seq_hi: (window.top() >> 32) as u32,
        replay_window: made.replay_window,
        bmp,
    })
}

/// A larval SA's fixed part, with `ifindex` for the number of its selector's link (Linux `xfrm_find_acq`).
pub(super) fn larval(larval: &ipsec::Larval, ifindex: impl Fn(LinkId) -> u32, lasts: u64) -> SaInfo {
    let between = || Selector::new(Prefix::host(larval.src), Prefix::host(larval.dst));
    let selector = larval.selector.unwrap_or_else(between);
    let sel = nl_selector(&selector, selector.dev.map_or(0, ifindex));
    SaInfo {
        sel,
        daddr: larval.dst.into(),
        spi: larval.spi.0,
        proto: proto::ESP,
        saddr: larval.src.into(),
        lft: LifetimeCfg { hard_add_expires_seconds: lasts, ..LifetimeCfg::INFINITE },
        seq: if larval.selector.is_some() { larval.seq } else { 0 },
        reqid: larval.reqid,
        family: family_of(larval.dst),
        mode: nl_mode(larval.mode),
        ..SaInfo::default()
    }
}

/// The policy that a message describes.
pub(super) fn policy(policy: &nl::Policy, dev: Option<LinkId>) -> Result<PolicyConfig, Error> {
    let info = &policy.info;
    Ok(PolicyConfig {
        priority: info.priority,
        action: if info.action == 0 { Action::Allow } else { Action::Block },
        templates: policy.templates.iter().map(template).collect(),
        mark: mark(policy.mark),
        if_id: policy.if_id,
        lifetime: lifetime(&info.lft),
        ..PolicyConfig::new(dir(info.dir), selector(&info.sel, info.sel.family, dev)?)
    })
}

pub(super) const fn dir(dir: u8) -> Dir {
    match dir {
        0 => Dir::In,
        1 => Dir::Out,
        _ => Dir::Fwd,
    }
}

fn template(tmpl: &Tmpl) -> Template {
    let addr = |addr: Addr| addr.ip(tmpl.family).filter(|addr| !addr.is_unspecified());
    Template {
        src: addr(tmpl.saddr),
        dst: addr(tmpl.daddr),
        spi: (tmpl.spi != 0).then_some(Spi(tmpl.spi)),
        mode: to_mode(tmpl.mode),
        reqid: tmpl.reqid,
        level: if tmpl.optional == 0 { Level::Required } else { Level::Use },
    }
}

/// The address of a query.
pub(super) fn addr(addr: Addr, family: u16) -> Result<IpAddr, Error> {
    addr.ip(family).ok_or(Error::new(errno::ESRCH))
}
