//! Linear searches.

use std::net::IpAddr;

use base::DropReason;
use ipsec::Decision;
use wire::{Spi, Version};
use xfrm::{Action, Dir, Flowi, Level, Mark, Mode, PolicyConfig, PortMask, SaConfig, SaDir, Selector, Template};

use super::{Oracle, PlainPolicy, PlainSa};

impl Oracle {
    pub(super) fn by_spi(&self, dst: IpAddr, spi: Spi, mark: u32) -> Option<usize> {
        let is_it = |sa: &PlainSa| (sa.config.dst, sa.config.spi) == (dst, spi) && matches(sa.config.mark, mark);
        let found = self.sas.iter().enumerate().filter(|(_, sa)| is_it(sa));
        found.max_by_key(|(_, sa)| sa.born).map(|(at, _)| at)
    }

    /// The SA with that destination, SPI and mark, even if no packet can match its mark.
    pub(super) fn named(&self, config: &SaConfig) -> Option<usize> {
        let name = |config: &SaConfig| (config.dst, config.spi, config.mark);
        self.sas.iter().position(|sa| name(&sa.config) == name(config))
    }

    pub(super) fn policy_for(&self, dir: Dir, flow: &Flowi) -> Option<&PlainPolicy> {
        let is_for = |policy: &&PlainPolicy| {
            let PolicyConfig { dir: of, selector, mark, if_id, .. } = &policy.config;
            (*of, *if_id) == (dir, flow.if_id) && selector.matches(flow) && matches(*mark, flow.mark)
        };
        self.policies.iter().filter(is_for).min_by_key(|policy| (policy.config.priority, policy.born))
    }

    /// Tells whether a policy before the first match of `flow` has ports in its selector, and may match the same
    /// datagram.
    pub(super) fn may_stop_fragment(&self, dir: Dir, flow: &Flowi) -> bool {
        let order = |policy: &PlainPolicy| (policy.config.priority, policy.born);
        let first = self.policy_for(dir, flow).map(order);
        self.policies.iter().any(|policy| {
            let PolicyConfig { dir: of, selector, mark, if_id, action, templates, .. } = &policy.config;
            let any = Selector { sport: PortMask::ANY, dport: PortMask::ANY, ..*selector };
            let any = Selector { protocol: any.protocol.filter(|_| flow.key.dst.is_ipv4()), ..any };
            let clear = *action == Action::Allow && templates.iter().all(|template| template.level == Level::Use);
            (*of, *if_id) == (dir, flow.if_id)
                && any.matches(flow)
                && matches(*mark, flow.mark)
                && !clear
                && first.is_none_or(|first| order(policy) < first)
        })
    }

    pub(super) fn decide(&self, flow: &Flowi) -> Decision {
        let Some(PlainPolicy { config, .. }) = self.policy_for(Dir::Out, flow) else {
            return match self.defaults[Dir::Out as usize] {
                Action::Allow => Decision::Bypass,
                Action::Block => Decision::Drop(DropReason::PolicyBlock),
            };
        };
        if config.action == Action::Block {
            return Decision::Drop(DropReason::PolicyBlock);
        }
        if config.templates.len() > 5 {
            return Decision::Drop(DropReason::PolicyDepth);
        }
        let mut bundle = ipsec::Bundle::new();
        let mut ends = (flow.key.src, flow.key.dst);
        for template in &config.templates {
            if let (Mode::Tunnel, Some(dst)) = (template.mode, template.dst) {
                let any = if dst.is_ipv4() { "0.0.0.0" } else { "::" };
                ends = (template.src.unwrap_or_else(|| any.parse().expect("an address")), dst);
            }
            match self.sa_for(template, config.mark, ends, flow) {
                Some(sa) if sa.config.dir == Some(SaDir::In) => return Decision::Drop(DropReason::EspDirection),
                Some(sa) => bundle.push(sa.id),
                None if template.level == Level::Use => {}
                None => return Decision::Drop(DropReason::PolicyNoState),
            }
        }
        if bundle.is_empty() { Decision::Bypass } else { Decision::Protect(bundle) }
    }

    /// The best SA for a template of a policy with `mark`: an exact source before any source, mature before dying,
    /// newest first.
    pub(super) fn sa_for(
        &self,
        template: &Template,
        mark: Mark,
        (src, dst): (IpAddr, IpAddr),
        flow: &Flowi,
    ) -> Option<&PlainSa> {
        let rank = |sa: &PlainSa| {
            let same_source = sa.config.src == src || src.is_unspecified();
            (same_source, !sa.dying, sa.listed)
        };
        let fits = |sa: &&PlainSa| {
            let config = &sa.config;
            let inside = Version::of_addr(flow.key.dst);
            let carries = match &config.selector {
                Some(selector) => selector.matches(flow),
                None => config.flags.af_unspec || Version::of_addr(config.dst) == inside,
            };
            (config.dst, config.reqid, config.mode, config.if_id) == (dst, template.reqid, template.mode, flow.if_id)
                && matches(config.mark, mark.value & mark.mask)
                && template.spi.is_none_or(|spi| spi == config.spi)
                && !config.flags.wildrecv
                && (config.src == src || src.is_unspecified() || config.src.is_unspecified())
                && carries
        };
        self.sas.iter().filter(fits).max_by_key(|sa| rank(sa))
    }
}

const fn matches(mark: Mark, of_packet: u32) -> bool {
    of_packet & mark.mask == mark.value
}
