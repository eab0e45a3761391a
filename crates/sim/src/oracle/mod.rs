//! Oracle of IPsec's databases: plain lists with linear searches, which must agree after every operation.

mod draw;
mod policy_key;
mod search;

use std::collections::VecDeque;
use std::time::Duration;

use base::{Counters, Instant, SaId};
use ipsec::{Decision, Ipsec};
use xfrm::{Action, ConfigError, Dir, Flowi, Level, Limits, Mode, PolicyConfig, PolicyKey, SaConfig, Template};

use crate::Choices;
use draw::{HOSTS, dir, end, flow, policy, sa, spi};
use policy_key::{known, same};

/// Number of flows that are looked up after each step.
const RECENT_FLOWS: usize = 6;

/// The databases, and the lists to compare.
#[derive(Debug)]
pub struct Oracle {
    ipsec: Ipsec,
    now: Instant,
    born: u64,
    sas: Vec<PlainSa>,
    policies: Vec<PlainPolicy>,
    defaults: [Action; 3],
    counters: Counters,
    /// Flows of recent look-ups, whose results may be cached.
    recent_flows: VecDeque<Flowi>,
    protected: u64,
}

#[derive(Debug)]
struct PlainSa {
    id: SaId,
    config: SaConfig,
    /// Order in which the SA got its destination and `reqid`.
    listed: u64,
    born: u64,
    added: Option<Instant>,
    dying: bool,
}

#[derive(Debug)]
struct PlainPolicy {
    config: PolicyConfig,
    born: u64,
    added: Option<Instant>,
}

impl Default for Oracle {
    fn default() -> Self {
        Self::new()
    }
}

impl Oracle {
    /// Empty databases.
    pub fn new() -> Self {
        Self {
            ipsec: Ipsec::new(),
            now: Instant::ZERO + Duration::from_secs(1),
            born: 0,
            sas: Vec::new(),
            policies: Vec::new(),
            defaults: [Action::Allow; 3],
            counters: Counters::ZERO,
            recent_flows: VecDeque::new(),
            protected: 0,
        }
    }

    /// Number of look-ups whose packet is protected by SAs.
    pub const fn protected(&self) -> u64 {
        self.protected
    }

    /// Applies one operation to both.
    ///
    /// # Panics
    /// If they disagree.
    pub fn step(&mut self, choices: &mut Choices<'_>) {
        match choices.byte() % 32 {
            0..8 => self.add_sa(choices),
            8 => self.replace_sa(choices),
            9 => self.update_sa(choices),
            10 => self.remove_sa(choices),
            11..15 => self.put_policy(choices),
            15 => self.remove_policy(choices),
            16 => self.pass(choices),
            17 if choices.once_in(4) => {
                let (dir, action) = (dir(choices), choices.pick(&[Action::Allow, Action::Block]));
                self.ipsec.set_default_policy(dir, action);
                self.defaults[dir as usize] = action;
            }
            _ => self.ask(choices),
        }
        for at in 0..self.recent_flows.len() {
            let flow = self.recent_flows[at];
            self.look_up_again(&flow);
        }
        assert_eq!(self.ipsec.sad().len(), self.sas.len(), "{:#?}", self.sas);
        assert_eq!(self.ipsec.spd().len(), self.policies.len(), "{:#?}", self.policies);
    }

    fn add_sa(&mut self, choices: &mut Choices<'_>) {
        let mut config = sa(choices);
        if choices.once_in(2) {
            self.fit(&mut config, choices);
        }
        let is_found = self.by_spi(config.dst, config.spi, config.mark.value & config.mark.mask).is_some();
        let taken = is_found || self.named(&config).is_some();
        self.born += 1;
        let got = self.ipsec.add_sa(&config, self.born << 32);
        let want = config_error(&config).or(taken.then_some(ConfigError::Exists));
        assert_eq!(got.err(), want, "{config:?}");
        if let Ok(id) = got {
            let born = self.born;
            self.sas.push(PlainSa { id, config, listed: born, born, added: None, dying: false });
        }
    }

    /// Changes an SA so that it matches a policy.
    fn fit(&self, config: &mut SaConfig, choices: &mut Choices<'_>) {
        let templates: Vec<&Template> = self.policies.iter().flat_map(|policy| &policy.config.templates).collect();
        let Some(template) = (!templates.is_empty()).then(|| choices.pick(&templates)) else { return };
        if let Some(dst) = template.dst.filter(|dst| dst.is_ipv4() == config.src.is_ipv4()) {
            config.dst = dst;
            config.src = template.src.filter(|src| src.is_ipv4() == dst.is_ipv4()).unwrap_or(config.src);
        }
        (config.mode, config.reqid) = (template.mode, template.reqid);
    }

    fn replace_sa(&mut self, choices: &mut Choices<'_>) {
        let config = sa(choices);
        let got = self.ipsec.replace_sa(&config);
        let at = self.named(&config);
        let want = config_error(&config).map_or_else(
            || {
                let old = &self.sas[at.ok_or(ConfigError::NotFound)?].config;
                let reversed = old.dir.is_some() && config.dir.is_some() && old.dir != config.dir;
                match old.flags.esn != config.flags.esn {
                    true => Err(ConfigError::EsnChanged),
                    false if reversed => Err(ConfigError::DirReversed),
                    false => Ok(()),
                }
            },
            Err,
        );
        assert_eq!(got.map(drop), want, "{config:?}");
        let Some(sa) = at.filter(|_| got.is_ok()).map(|at| &mut self.sas[at]) else { return };
        if sa.config.reqid != config.reqid {
            self.born += 1;
            sa.listed = self.born;
        }
        if sa.config.lifetime != config.lifetime {
            sa.dying = false;
        }
        sa.config = SaConfig { mark: sa.config.mark, ..config };
    }

    fn update_sa(&mut self, choices: &mut Choices<'_>) {
        let config = sa(choices);
        let got = self.ipsec.update_sa(&config, 0);
        let at = self.by_spi(config.dst, config.spi, config.mark.value & config.mark.mask);
        let want = config_error(&config).map_or_else(
            || {
                let old = &self.sas[at.ok_or(ConfigError::NotFound)?].config;
                match old.encap.is_some() != config.encap.is_some() {
                    _ if old.dir != config.dir => Err(ConfigError::DirReversed),
                    true => Err(ConfigError::EncapChanged),
                    false => Ok(()),
                }
            },
            Err,
        );
        assert_eq!(got.map(drop), want, "{config:?}");
        let Some(sa) = at.filter(|_| got.is_ok()).map(|at| &mut self.sas[at]) else { return };
        sa.config.lifetime = config.lifetime;
        sa.config.encap = config.encap;
        sa.dying = false;
        if config.if_id != 0 {
            sa.config.if_id = config.if_id;
        }
    }

    fn remove_sa(&mut self, choices: &mut Choices<'_>) {
        let dst = end(choices);
        let spi = spi(choices);
        let mark = u32::from(choices.byte() & 7);
        let at = self.by_spi(dst, spi, mark);
        let gone = self.ipsec.remove_sa(dst, spi, mark).map(|sa| sa.id());
        assert_eq!(gone, at.map(|at| self.sas.remove(at).id));
    }

    fn put_policy(&mut self, choices: &mut Choices<'_>) {
        let mut config = policy(choices);
        if choices.once_in(3) && !self.policies.is_empty() {
            let other = usize::from(choices.byte()) % self.policies.len();
            let PolicyKey { dir, selector, mark, if_id } = self.policies[other].config.key();
            config = PolicyConfig { dir, selector, mark, if_id, ..config };
        }
        let at = self.policies.iter().position(|other| same(&other.config.key(), &config.key()));
        let replaces = choices.once_in(2);
        let got = match replaces {
            true => self.ipsec.update_policy(config.clone()),
            false => self.ipsec.add_policy(config.clone()),
        };
        let want = policy_error(&config).or((at.is_some() && !replaces).then_some(ConfigError::Exists));
        assert_eq!(got.err(), want, "{config:?}");
        if got.is_err() {
            return;
        }
        self.born += 1;
        let old = at.map(|at| self.policies.remove(at));
        let stays = old.filter(|old| old.config.priority == config.priority);
        let born = stays.map_or(self.born, |old| old.born);
        self.policies.push(PlainPolicy { config, born, added: None });
    }

    fn remove_policy(&mut self, choices: &mut Choices<'_>) {
        let key = match choices.once_in(2) {
            true => policy(choices).key(),
            false if self.policies.is_empty() => return,
            false => self.policies[usize::from(choices.byte()) % self.policies.len()].config.key(),
        };
        let at = self.policies.iter().position(|other| same(&other.config.key(), &key));
        assert_eq!(self.ipsec.remove_policy(&key).is_some(), at.is_some(), "{key:?}");
        if let Some(at) = at {
            self.policies.remove(at);
        }
    }

    /// Advances the time. The lifetime of new objects begins; others may expire.
    fn pass(&mut self, choices: &mut Choices<'_>) {
        self.now = self.now + Duration::from_secs(u64::from(choices.byte() % 8));
        let now = self.now;
        self.ipsec.handle_timeout(now, &mut self.counters);
        let is_over = |added: &mut Option<Instant>, limits: Limits| {
            let added = *added.get_or_insert(now);
            limits.added.is_some_and(|limit| added + limit <= now)
        };
        self.sas.retain_mut(|sa| {
            let PlainSa { added, dying, config, .. } = sa;
            *dying |= is_over(added, config.lifetime.soft);
            !is_over(added, config.lifetime.hard)
        });
        self.policies.retain_mut(|policy| !is_over(&mut policy.added, policy.config.lifetime.hard));
    }

    /// Looks up an outbound packet, and the SA of an inbound one, in both.
    fn ask(&mut self, choices: &mut Choices<'_>) {
        let dst = end(choices);
        let spi = spi(choices);
        let mark = u32::from(choices.byte() & 7);
        let found = self.by_spi(dst, spi, mark).map(|at| self.sas[at].id);
        assert_eq!(self.ipsec.sad().by_spi(dst, spi, mark), found, "{dst} {spi} marked {mark}");
        for port in [500, 4500] {
            let expects =
                |sa: &PlainSa| sa.config.dst == dst && sa.config.encap.is_some_and(|encap| encap.dport == port);
            assert_eq!(self.ipsec.sad().is_encap_port(dst, port), self.sas.iter().any(expects), "{dst} {port}");
        }
        let mut flow = flow(choices);
        if !self.policies.is_empty() && choices.once_in(2) {
            let at = usize::from(choices.byte()) % self.policies.len();
            let PolicyConfig { selector, if_id, .. } = &self.policies[at].config;
            let hosts = HOSTS[usize::from(!selector.dst.is_ipv4())].map(|host| host.parse().expect("an address"));
            let of = |net: base::Prefix| hosts.into_iter().find(|&host| net.contains(host));
            if let (Some(src), Some(dst)) = (of(selector.src), of(selector.dst)) {
                (flow.key.src, flow.key.dst, flow.if_id) = (src, dst, *if_id);
            }
        }
        for dir in [Dir::In, Dir::Out, Dir::Fwd] {
            let found = self.ipsec.spd().lookup(dir, &flow).and_then(|id| self.ipsec.spd().get(id));
            let want = self.policy_for(dir, &flow);
            assert_eq!(
                found.map(|policy| policy.config.key()),
                want.map(|policy| known(policy.config.key())),
                "{flow:?}"
            );
            let stops = self.may_stop_fragment(dir, &flow);
            assert_eq!(self.ipsec.spd().may_stop_fragment(dir, &flow), stops, "{dir:?} {flow:?}: {:#?}", self.policies);
        }
        self.recent_flows.push_front(flow);
        self.recent_flows.truncate(RECENT_FLOWS);
    }

    /// Looks up one flow again.
    fn look_up_again(&mut self, flow: &Flowi) {
        let want = self.decide(flow);
        let got = self.ipsec.lookup(self.now, flow, &mut self.counters);
        assert_eq!(got, want, "{flow:?}: {:#?} {:#?}", self.policies, self.sas);
        self.protected += u64::from(matches!(got, Decision::Protect(_)));
    }
}

/// Expected error for an SA that [`sa`] made.
fn config_error(config: &SaConfig) -> Option<ConfigError> {
    let families = [config.src, config.dst].map(|addr| addr.is_ipv4());
    if families[0] != families[1] {
        Some(ConfigError::Family(config.src, config.dst))
    } else {
        config.dst.is_unspecified().then_some(ConfigError::NoDestination)
    }
}

/// Expected error for a policy that [`policy`] made.
fn policy_error(config: &PolicyConfig) -> Option<ConfigError> {
    if config.selector.src.is_ipv4() != config.selector.dst.is_ipv4() {
        return Some(ConfigError::SelectorFamily);
    }
    if config.templates.len() > 6 {
        return Some(ConfigError::Templates(config.templates.len()));
    }
    config.templates.iter().find_map(|template| match (template.src, template.dst) {
        (Some(src), Some(dst)) if src.is_ipv4() != dst.is_ipv4() => Some(ConfigError::Family(src, dst)),
        (_, dst) if template.mode == Mode::Tunnel && dst.is_none_or(|dst| dst.is_unspecified()) => {
            Some(ConfigError::NoDestination)
        }
        _ => (template.mode == Mode::Tunnel && template.level == Level::Use && config.dir == Dir::Out)
            .then_some(ConfigError::OptionalTunnel),
    })
}
