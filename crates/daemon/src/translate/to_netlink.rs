//! SAs and policies of the file, as netlink requests.

use config::model::{self, Limit};
use netlink::xfrm::layout::{Encap, LifetimeCfg, PolicyInfo, ReplayEsn, SaInfo, Selector, Tmpl, family_of};
use netlink::xfrm::nums::{mode, proto, sa_flag};
use netlink::xfrm::{Mark, NewSa, Policy, Replay};

fn mark(mark: Option<model::Mark>) -> Mark {
    mark.map_or(Mark::default(), |model::Mark { value, mask }| Mark { value, mask })
}

fn lifetime(limit: &Limit) -> LifetimeCfg {
    let inf = |limit: Option<u64>| limit.unwrap_or(u64::MAX);
    let Limit { soft, hard } = limit;
    LifetimeCfg {
        soft_byte_limit: inf(soft.bytes),
        hard_byte_limit: inf(hard.bytes),
        soft_packet_limit: inf(soft.packets),
        hard_packet_limit: inf(hard.packets),
        soft_add_expires_seconds: soft.add_secs.unwrap_or(0),
        hard_add_expires_seconds: hard.add_secs.unwrap_or(0),
        soft_use_expires_seconds: soft.use_secs.unwrap_or(0),
        hard_use_expires_seconds: hard.use_secs.unwrap_or(0),
    }
}

fn selector(selector: &model::Selector) -> Selector {
    let port = |port: Option<u16>| (port.unwrap_or(0), if port.is_some() { u16::MAX } else { 0 });
    let ((sport, sport_mask), (dport, dport_mask)) = (port(selector.sport), port(selector.dport));
    Selector {
        daddr: selector.dst.addr().into(),
        saddr: selector.src.addr().into(),
        dport,
        dport_mask,
        sport,
        sport_mask,
        family: family_of(selector.dst.addr()),
        prefixlen_d: selector.dst.len(),
        prefixlen_s: selector.src.len(),
        proto: selector.proto.unwrap_or(0),
        ..Selector::default()
    }
}

const fn nl_mode(of: model::Mode) -> u8 {
    match of {
        model::Mode::Transport => mode::TRANSPORT,
        model::Mode::Tunnel => mode::TUNNEL,
    }
}

/// An SA of the file.
pub(crate) fn sa(config: &model::SaConfig) -> NewSa {
    let family = family_of(config.dst);
    let of = |on: bool, flag: u8| if on { flag } else { 0 };
    let flags = config.flags;
    let sel = match &config.selector {
        Some(it) => selector(it),
        None if flags.af_unspec => Selector::default(),
        None => Selector { family, ..Selector::default() },
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
            spi: config.spi,
            proto: proto::ESP,
            saddr: config.src.into(),
            lft: lifetime(&config.limit),
            reqid: config.reqid,
            family,
            mode: nl_mode(config.mode),
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
        mark: mark(config.mark),
        set_mark: mark(config.output_mark),
        extra_flags: extra.iter().filter(|(on, _)| *on).fold(0, |all, (_, flag)| all | flag),
        replay: Some(replay),
        used: None,
        tfcpad: config.tfcpad,
        if_id: config.if_id,
        dir: match config.dir {
            None => 0,
            Some(model::SaDir::In) => 1,
            Some(model::SaDir::Out) => 2,
        },
        mapping_threshold: config.nat.mapping_threshold,
        nat_keepalive: config.nat.keepalive_interval,
        thresholds: Default::default(),
    }
}

/// `UDP_ENCAP_ESPINUDP`.
const ESPINUDP: u16 = 2;

/// A policy of the file.
pub(crate) fn policy(config: &model::PolicyConfig) -> Policy {
    let family = family_of(config.selector.dst.addr());
    let template = |it: &model::Template| Tmpl {
        daddr: it.dst.map(Into::into).unwrap_or_default(),
        saddr: it.src.map(Into::into).unwrap_or_default(),
        proto: proto::ESP,
        family: it.dst.or(it.src).map_or(family, family_of),
        reqid: it.reqid,
        mode: nl_mode(it.mode),
        optional: u8::from(it.level == model::Level::Use),
        algos: [u32::MAX; 3],
        ..Tmpl::default()
    };
    Policy {
        info: PolicyInfo {
            sel: selector(&config.selector),
            lft: lifetime(&config.limit),
            priority: config.priority,
            dir: config.dir as u8,
            action: match config.action {
                model::PolicyAction::Allow => 0,
                model::PolicyAction::Block => 1,
            },
            ..PolicyInfo::default()
        },
        templates: config.templates.iter().map(template).collect(),
        mark: mark(config.mark),
        if_id: config.if_id,
    }
}
