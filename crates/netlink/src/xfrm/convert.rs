//! Conversion between the structures of `linux/xfrm.h` and the types of crate `xfrm`.

use std::net::IpAddr;
use std::time::Duration;

use base::{PortId, Prefix};
use wire::{Protocol, Spi};
use xfrm::{
    Action, ConfigError, Dir, EspInUdp, Level, Lifetime, Limits, Mode, NatTraversal, PolicyConfig, PortMask, SaConfig,
    SaDir, SaFlags, Selector, Template,
};

use super::layout::{self, Addr, Encap, LifetimeCfg, PolicyInfo, ReplayEsn, SaInfo, Tmpl, family_of};
use super::nums::{mode, policy_flag, proto, sa_flag};
use super::policy::Policy;
use super::replay::Replay;
use super::sa::NewSa;
use crate::error::{Error, errno};

/// `UDP_ENCAP_ESPINUDP`.
const ESPINUDP: u16 = 2;

/// Refusal of an SA or a policy, with Linux's `errno` and text.
pub fn refusal(err: &ConfigError) -> Error {
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
    Error::owned_text(errno, err.to_string())
}

fn invalid() -> Error {
    Error::new(errno::EINVAL)
}

/// Direction of `XFRMA_SA_DIR`.
pub const fn sa_dir(dir: u8) -> Option<SaDir> {
    match dir {
        1 => Some(SaDir::In),
        2 => Some(SaDir::Out),
        _ => None,
    }
}

/// Number of `XFRMA_SA_DIR`; 0 for none.
pub const fn sa_dir_number(dir: Option<SaDir>) -> u8 {
    match dir {
        None => 0,
        Some(SaDir::In) => 1,
        Some(SaDir::Out) => 2,
    }
}

/// Requested mode of an SA.
///
/// # Errors
/// The mode is unsupported.
pub fn mode(number: u8) -> Result<Mode, Error> {
    match number {
        mode::TUNNEL | mode::TRANSPORT => Ok(to_mode(number)),
        _ => Err(Error::text(errno::EPROTONOSUPPORT, "Requested mode not found")),
    }
}

fn to_mode(number: u8) -> Mode {
    if number == mode::TUNNEL { Mode::Tunnel } else { Mode::Transport }
}

/// Number of a mode.
pub const fn mode_number(of: Mode) -> u8 {
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

/// Selector of packets on link `dev`; `family` applies if the selector has none.
///
/// # Errors
/// `EINVAL` for a prefix that is invalid in the family.
pub fn selector(sel: &layout::Selector, family: u16, dev: Option<PortId>) -> Result<Selector, Error> {
    let family = if sel.family == 0 { family } else { sel.family };
    let prefix = |addr: Addr, len| Prefix::containing(addr.ip(family)?, len).ok();
    let (src, dst) = (prefix(sel.saddr, sel.prefixlen_s), prefix(sel.daddr, sel.prefixlen_d));
    Ok(Selector {
        protocol: (sel.proto != 0).then_some(Protocol(sel.proto)),
        // Same form as in the database: bits outside the mask are no part of a policy's key.
        sport: PortMask { port: sel.sport & sel.sport_mask, mask: sel.sport_mask },
        dport: PortMask { port: sel.dport & sel.dport_mask, mask: sel.dport_mask },
        dev,
        ..Selector::new(src.ok_or_else(invalid)?, dst.ok_or_else(invalid)?)
    })
}

/// Selector with the interface index `ifindex`.
pub fn wire_selector(selector: &Selector, ifindex: u32) -> layout::Selector {
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

/// Initial sequence numbers of an SA with these flags: sent, and received. Without ESN only the lower halves count; but
/// an outgoing number that may wrap keeps both halves, so that initialisation vectors never repeat.
pub fn begins_at(replay: Option<&Replay>, flags: SaFlags) -> (u64, u64) {
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

/// The SA in a message.
///
/// # Errors
/// `EINVAL` for invalid addresses.
pub fn sa(new: &NewSa, dev: Option<PortId>) -> Result<SaConfig, Error> {
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
    // A selector for all packets of the SA's own family is the same as no selector.
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
        mark: new.mark,
        output_mark: new.set_mark,
        if_id: new.if_id,
        lifetime: lifetime(&info.lft),
        acquire_seq: info.seq,
        aevents: new.aevents,
        cpu: new.cpu,
        ..SaConfig::new(src, dst, Spi(info.spi), to_mode(info.mode), new.algorithm.clone())
    })
}

/// Received sequence numbers of an SA with these flags, as far as a message contains them.
pub fn seen(replay: &Replay, flags: SaFlags) -> Vec<u64> {
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

/// The policy in a message.
///
/// # Errors
/// As [`selector`].
pub fn policy(policy: &Policy, dev: Option<PortId>) -> Result<PolicyConfig, Error> {
    let info = &policy.info;
    Ok(PolicyConfig {
        priority: info.priority,
        action: if info.action == 0 { Action::Allow } else { Action::Block },
        templates: policy.templates.iter().map(template).collect(),
        mark: policy.mark,
        if_id: policy.if_id,
        lifetime: lifetime(&info.lft),
        cpu_acquire: info.flags & policy_flag::CPU_ACQUIRE != 0,
        ..PolicyConfig::new(dir(info.dir), selector(&info.sel, info.sel.family, dev)?)
    })
}

/// Direction of a policy.
pub const fn dir(dir: u8) -> Dir {
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

/// Request that creates an SA. It contains no device, neither the selector's nor one for offload.
pub fn new_sa(config: &SaConfig) -> NewSa {
    let family = family_of(config.dst);
    let of = |on: bool, flag: u8| if on { flag } else { 0 };
    let flags = config.flags;
    let sel = match &config.selector {
        Some(it) => wire_selector(it, 0),
        None if flags.af_unspec => layout::Selector::default(),
        None => layout::Selector { family, ..layout::Selector::default() },
    };
    let wide = flags.esn || config.replay_window > 32;
    let replay = if wide {
        Replay::Esn(ReplayEsn {
            oseq: config.oseq as u32,
            oseq_hi: (config.oseq >> 32) as u32,
            seq: config.seq as u32,
            seq_hi: (config.seq >> 32) as u32,
            replay_window: config.replay_window,
            bmp: vec![0; config.replay_window.div_ceil(32) as usize],
        })
    } else {
        Replay::Legacy([config.oseq as u32, config.seq as u32, 0])
    };
    let extra =
        [(flags.dont_encap_dscp, sa_flag::EXTRA_DONT_ENCAP_DSCP), (flags.oseq_may_wrap, sa_flag::EXTRA_OSEQ_MAY_WRAP)];
    NewSa {
        info: SaInfo {
            sel,
            daddr: config.dst.into(),
            spi: config.spi.0,
            proto: proto::ESP,
            saddr: config.src.into(),
            lft: wire_lifetime(&config.lifetime),
            seq: config.acquire_seq,
            reqid: config.reqid,
            family,
            mode: mode_number(config.mode),
            replay_window: if wide { 0 } else { config.replay_window as u8 },
            flags: of(flags.noecn, sa_flag::NOECN)
                | of(flags.decap_dscp, sa_flag::DECAP_DSCP)
                | of(flags.nopmtudisc, sa_flag::NOPMTUDISC)
                | of(flags.wildrecv, sa_flag::WILDRECV)
                | of(flags.icmp, sa_flag::ICMP)
                | of(flags.af_unspec, sa_flag::AF_UNSPEC)
                | of(flags.esn, sa_flag::ESN),
            ..SaInfo::default()
        },
        algorithm: config.algorithm.clone(),
        encap: config.encap.map(|encap| Encap {
            kind: ESPINUDP,
            sport: encap.sport,
            dport: encap.dport,
            ..Encap::default()
        }),
        coaddr: None,
        mark: config.mark,
        set_mark: config.output_mark,
        extra_flags: extra.iter().filter(|(on, _)| *on).fold(0, |all, (_, flag)| all | flag),
        replay: Some(replay),
        used: None,
        tfcpad: config.tfcpad,
        if_id: config.if_id,
        dir: sa_dir_number(config.dir),
        mapping_threshold: config.nat.mapping_threshold,
        nat_keepalive: config.nat.keepalive_interval,
        aevents: config.aevents,
        offload: None,
        cpu: config.cpu,
    }
}

/// Request that creates a policy. It contains no device.
pub fn new_policy(config: &PolicyConfig) -> Policy {
    let family = family_of(config.selector.dst.addr());
    Policy {
        info: PolicyInfo {
            sel: wire_selector(&config.selector, 0),
            lft: wire_lifetime(&config.lifetime),
            priority: config.priority,
            dir: config.dir as u8,
            action: match config.action {
                Action::Allow => 0,
                Action::Block => 1,
            },
            flags: if config.cpu_acquire { policy_flag::CPU_ACQUIRE } else { 0 },
            ..PolicyInfo::default()
        },
        templates: config.templates.iter().map(|it| wire_template(it, family)).collect(),
        mark: config.mark,
        if_id: config.if_id,
    }
}

/// A template of a policy whose selector is of `family`.
pub fn wire_template(template: &Template, family: u16) -> Tmpl {
    let &Template { src, dst, spi, mode, reqid, level } = template;
    Tmpl {
        daddr: dst.map(Into::into).unwrap_or_default(),
        spi: spi.map_or(0, |spi| spi.0),
        saddr: src.map(Into::into).unwrap_or_default(),
        proto: proto::ESP,
        family: dst.or(src).map_or(family, family_of),
        reqid,
        mode: mode_number(mode),
        optional: u8::from(level == Level::Use),
        algos: [u32::MAX; 3],
        ..Tmpl::default()
    }
}

fn wire_lifetime(lifetime: &Lifetime) -> LifetimeCfg {
    let secs = |limit: Option<Duration>| limit.map_or(0, |limit| limit.as_secs());
    let Lifetime { soft, hard } = lifetime;
    LifetimeCfg {
        soft_byte_limit: soft.bytes,
        hard_byte_limit: hard.bytes,
        soft_packet_limit: soft.packets,
        hard_packet_limit: hard.packets,
        soft_add_expires_seconds: secs(soft.added),
        hard_add_expires_seconds: secs(hard.added),
        soft_use_expires_seconds: secs(soft.used),
        hard_use_expires_seconds: secs(hard.used),
    }
}

/// Address of a query.
///
/// # Errors
/// `ESRCH` for an unknown family.
pub fn addr(addr: Addr, family: u16) -> Result<IpAddr, Error> {
    addr.ip(family).ok_or(Error::new(errno::ESRCH))
}

#[cfg(test)]
mod tests {
    use xfrm::{Aead, Aevents, Algorithm, Auth, AuthConfig, Enc, Mark};

    use super::*;

    fn limits(n: u64) -> Limits {
        let [added, used] = [2, 3].map(|secs| Some(Duration::from_secs(secs * n)));
        Limits { bytes: n, packets: n + 1, added, used }
    }

    fn selector_of_dns() -> Selector {
        let [src, dst] = ["10.1.0.0/16", "10.2.3.4/32"].map(|prefix| prefix.parse().unwrap());
        let sport = PortMask { port: 0x100, mask: 0xff00 };
        Selector { protocol: Some(Protocol::UDP), sport, dport: PortMask::exactly(53), ..Selector::new(src, dst) }
    }

    #[test]
    fn sa_of_its_request_is_equal() {
        let [src, dst] = ["192.0.2.1", "192.0.2.2"].map(|addr| addr.parse().unwrap());
        let plain = |spi, mode, algorithm| SaConfig::new(src, dst, Spi(spi), mode, algorithm);
        let gcm = Algorithm::aead(Aead::GcmAes, vec![1; 20].into(), 96);
        let auth = AuthConfig::new(Auth::HmacSha1, vec![2; 20].into(), 96);
        let cbc = Algorithm::separate(Enc::CbcAes, vec![3; 16].into(), Some(auth));
        let mut every_flag = SaFlags::default();
        assert!(SaFlags::NAMES.iter().all(|name| every_flag.set(name)));
        let configs = [
            plain(1, Mode::Transport, Algorithm::null()),
            SaConfig {
                replay_window: 32,
                seq: 5,
                oseq: 7,
                dir: Some(SaDir::In),
                ..plain(2, Mode::Tunnel, gcm.clone())
            },
            SaConfig {
                dir: Some(SaDir::Out),
                reqid: 4,
                replay_window: 128,
                flags: every_flag,
                encap: Some(EspInUdp { sport: 4500, dport: 4501 }),
                selector: Some(selector_of_dns()),
                oseq: 1 << 33,
                seq: 2 << 33,
                tfcpad: 1400,
                nat: NatTraversal { keepalive_interval: 20, mapping_threshold: 10, follow: false },
                mark: Mark { value: 5, mask: 0xff },
                output_mark: Mark::exactly(6),
                if_id: 8,
                lifetime: Lifetime { soft: limits(10), hard: limits(20) },
                acquire_seq: 9,
                aevents: Aevents { packets: Some(3), time: Some(Duration::from_secs(5)) },
                ..plain(3, Mode::Tunnel, cbc)
            },
        ];
        for config in configs {
            assert_eq!(sa(&new_sa(&config), None).unwrap(), config);
        }
    }

    #[test]
    fn policy_of_its_request_is_equal() {
        let [src, dst] = ["192.0.2.1", "192.0.2.2"].map(|addr| Some(addr.parse().unwrap()));
        let required = Template { src, dst, spi: Some(Spi(7)), mode: Mode::Tunnel, reqid: 4, level: Level::Required };
        let optional = Template { src: None, dst: None, spi: None, mode: Mode::Transport, reqid: 0, level: Level::Use };
        let any = Selector::new(Prefix::ANY_V6, Prefix::ANY_V6);
        let configs = [
            PolicyConfig { action: Action::Block, ..PolicyConfig::new(Dir::Fwd, any) },
            PolicyConfig {
                priority: 3,
                templates: vec![required, optional],
                mark: Mark { value: 5, mask: 0xff },
                if_id: 8,
                lifetime: Lifetime { soft: limits(10), hard: limits(20) },
                ..PolicyConfig::new(Dir::Out, selector_of_dns())
            },
        ];
        for config in configs {
            assert_eq!(policy(&new_policy(&config), None).unwrap(), config);
        }
    }
}
