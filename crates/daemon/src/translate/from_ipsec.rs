//! SAs and policies of crate `ipsec`, in the words of the file.

use config::algorithm::Algorithm;
use config::model::{self, Encap, NatTraversal, SaFlags};
use config::xfrm::{Bounds, Limit, Mark};
use ipsec::{Limits, PortMask};

pub(crate) const fn dir(dir: ipsec::Dir) -> model::Dir {
    match dir {
        ipsec::Dir::In => model::Dir::In,
        ipsec::Dir::Out => model::Dir::Out,
        ipsec::Dir::Fwd => model::Dir::Fwd,
    }
}

pub(crate) const fn sa_dir(dir: ipsec::SaDir) -> model::SaDir {
    match dir {
        ipsec::SaDir::In => model::SaDir::In,
        ipsec::SaDir::Out => model::SaDir::Out,
    }
}

pub(crate) const fn mode(mode: ipsec::Mode) -> model::Mode {
    match mode {
        ipsec::Mode::Transport => model::Mode::Transport,
        ipsec::Mode::Tunnel => model::Mode::Tunnel,
    }
}

pub(crate) fn selector(selector: &ipsec::Selector) -> model::Selector {
    let has_ports = selector.protocol.is_some_and(|protocol| matches!(protocol.0, 6 | 17 | 33 | 132 | 136));
    let port = |port: PortMask| (has_ports && port.mask != 0).then_some(port.port);
    let (src, dst, proto) = (selector.src, selector.dst, selector.protocol.map(|protocol| protocol.0));
    model::Selector { src, dst, proto, sport: port(selector.sport), dport: port(selector.dport) }
}

/// An SA as the file would have configured it. Its algorithm is not known from it.
pub(crate) fn sa_config(sa: &ipsec::Sa, algorithm: Algorithm) -> model::SaConfig {
    let ipsec::SaFlags {
        noecn,
        decap_dscp,
        nopmtudisc,
        wildrecv,
        icmp,
        af_unspec,
        esn,
        dont_encap_dscp,
        oseq_may_wrap,
    } = sa.flags();
    let ipsec::NatTraversal { keepalive_interval, mapping_threshold, follow } = sa.nat();
    model::SaConfig {
        src: sa.src(),
        dst: sa.dst(),
        spi: sa.spi().0,
        dir: sa.dir().map(sa_dir),
        mode: mode(sa.mode()),
        reqid: sa.reqid(),
        algorithm,
        replay_window: sa.replay().size(),
        flags: SaFlags {
            noecn,
            decap_dscp,
            nopmtudisc,
            wildrecv,
            icmp,
            af_unspec,
            esn,
            dont_encap_dscp,
            oseq_may_wrap,
        },
        encap: sa.encap().map(|encap| Encap { sport: encap.sport, dport: encap.dport }),
        selector: sa.selector().map(selector),
        seq: sa.replay().top(),
        oseq: sa.oseq(),
        mark: mark(sa.mark()),
        output_mark: mark(sa.output_mark()),
        if_id: sa.if_id(),
        limit: limit(&sa.lifetime()),
        tfcpad: sa.tfcpad(),
        nat: NatTraversal { keepalive_interval, mapping_threshold, follow },
    }
}

fn mark(mark: ipsec::Mark) -> Option<Mark> {
    (mark != ipsec::Mark::ANY).then_some(Mark { value: mark.value, mask: mark.mask })
}

fn limit(lifetime: &ipsec::Lifetime) -> Limit {
    let number = |limit: u64| (limit != u64::MAX).then_some(limit);
    let bounds = |limits: &Limits| Bounds {
        bytes: number(limits.bytes),
        packets: number(limits.packets),
        add_secs: limits.added.map(|it| it.as_secs()),
        use_secs: limits.used.map(|it| it.as_secs()),
    };
    Limit { soft: bounds(&lifetime.soft), hard: bounds(&lifetime.hard) }
}

/// A policy as the file would have configured it.
pub(crate) fn policy_config(config: &ipsec::PolicyConfig) -> model::PolicyConfig {
    let template = |it: &ipsec::Template| model::Template {
        src: it.src,
        dst: it.dst,
        mode: mode(it.mode),
        reqid: it.reqid,
        level: match it.level {
            ipsec::Level::Required => model::Level::Required,
            ipsec::Level::Use => model::Level::Use,
        },
    };
    model::PolicyConfig {
        dir: dir(config.dir),
        selector: selector(&config.selector),
        priority: config.priority,
        action: match config.action {
            ipsec::Action::Allow => model::PolicyAction::Allow,
            ipsec::Action::Block => model::PolicyAction::Block,
        },
        templates: config.templates.iter().map(template).collect(),
        mark: mark(config.mark),
        if_id: config.if_id,
        limit: limit(&config.lifetime),
    }
}
