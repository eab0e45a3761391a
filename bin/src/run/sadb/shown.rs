//! SAs and policies in the words of the file, for `fatpath show`.

use std::collections::HashSet;

use base::SaId;
use control::algorithm::Algorithm;
use control::model::{self, Encap, NatTraversal, SaFlags};
use control::xfrm::{Bounds, Limit, Mark};
use ipsec::{Limits, Mode};

use crate::run::monitor;
use crate::run::worker::Worker;

/// The SAs that programs have added, as the file would have said it, the oldest first; without those of `known`.
pub(crate) fn added_sas<'a>(
    worker: &'a Worker,
    known: &'a HashSet<SaId>,
) -> impl Iterator<Item = (model::SaConfig, &'a ipsec::Sa)> {
    let records = worker.sadb.sas.values().filter(|record| !known.contains(&record.id));
    records.filter_map(|record| {
        let sa = worker.path.ipsec.sa(record.id)?;
        Some((sa_config(sa, record.said.algorithm.clone()), sa))
    })
}

fn sa_config(sa: &ipsec::Sa, algorithm: Algorithm) -> model::SaConfig {
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
        dir: sa.dir().map(monitor::sa_dir),
        mode: monitor::mode(sa.mode()),
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
        selector: sa.selector().map(monitor::selector),
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

/// A policy as the file would have said it.
pub(crate) fn policy_config(config: &ipsec::PolicyConfig) -> model::PolicyConfig {
    let template = |it: &ipsec::Template| model::Template {
        src: it.src,
        dst: it.dst,
        mode: match it.mode {
            Mode::Transport => model::Mode::Transport,
            Mode::Tunnel => model::Mode::Tunnel,
        },
        reqid: it.reqid,
        level: match it.level {
            ipsec::Level::Required => model::Level::Required,
            ipsec::Level::Use => model::Level::Use,
        },
    };
    model::PolicyConfig {
        dir: monitor::dir(config.dir),
        selector: monitor::selector(&config.selector),
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
