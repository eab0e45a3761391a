//! Changes of SAs and policies from one configuration to the next, in the terms of the `ipsec` crate.

use std::collections::HashSet;
use std::time::Duration;

use base::SaId;
use client::CliError;
use config::Change;
use config::model::{Config, PolicyDefault, XfrmOptions};
use ipsec::Ipsec;
use xfrm::{Action, AeventLimits, ConfigError, Dir, PolicyConfig, PolicyKey, Request, SaConfig};

use super::records::{SaRecord, policy_of_file, sa_of_file};

/// One step of a change.
#[derive(Clone, Debug)]
enum Step {
    RemoveSa(SaConfig),
    AddSa(SaConfig, u64),
    UpdateSa(SaConfig),
    RemovePolicy(PolicyKey),
    AddPolicy(PolicyConfig),
    SetDefault(PolicyDefault),
}

/// Validated changes, as a list of steps.
#[derive(Clone, Debug, Default)]
pub(crate) struct Steps(Vec<Step>);

impl Steps {
    /// The steps of `change`, from `old` to `new`. `random` supplies a number for each new SA.
    ///
    /// # Errors
    /// An SA or a policy of `new` is wrong.
    pub(crate) fn between(
        old: &Config,
        new: &Config,
        change: &Change,
        mut random: impl FnMut() -> Result<u64, CliError>,
    ) -> Result<Self, CliError> {
        check(old, new, change)?;
        let mut steps = Vec::new();
        steps.extend(change.sas.removed.iter().map(|&at| Step::RemoveSa(old.sas[at].clone())));
        for kept in change.sas.kept.iter().filter(|kept| kept.changed) {
            steps.push(Step::UpdateSa(sa_of_file(&new.sas[kept.new])));
        }
        for &at in &change.sas.added {
            steps.push(Step::AddSa(sa_of_file(&new.sas[at]), random()?));
        }
        if change.policy_default {
            steps.push(Step::SetDefault(new.policy_default));
        }
        if change.policies {
            let gone = old.policies.iter().map(|it| Step::RemovePolicy(it.key()));
            steps.extend(gone.chain(new.policies.iter().map(|it| Step::AddPolicy(policy_of_file(it)))));
        }
        Ok(Self(steps))
    }

    /// Applies the steps. SAs and policies that netlink clients have changed meanwhile stay, unless the file adds one
    /// of that name.
    pub(crate) fn apply(self, ipsec: &mut Ipsec, of_file: &mut FileObjects) {
        for step in self.0 {
            if let Err(err) = step.take(ipsec, of_file) {
                // The file was validated: an object of a netlink client has the same name.
                tracing::error!("an SA or a policy of the file cannot be added: {err}");
            }
        }
        of_file.sas.retain(|&id| ipsec.sa(id).is_some());
    }
}

/// SAs and policies of a node that belong to the file, and not to a netlink client.
#[derive(Debug, Default)]
pub(crate) struct FileObjects {
    sas: HashSet<SaId>,
    policies: HashSet<PolicyKey>,
    /// Policies that wait for a key manager, and that its policies have replaced: fallbacks of these.
    waiting: HashSet<PolicyKey>,
}

impl FileObjects {
    /// Adds or replaces a policy of a netlink client. A policy of the file that waits for a key manager is back when that policy
    /// is removed.
    ///
    /// # Errors
    /// See [`Ipsec::add_policy`] and [`Ipsec::update_policy`].
    pub(crate) fn set_policy(
        &mut self,
        ipsec: &mut Ipsec,
        config: PolicyConfig,
        update: bool,
    ) -> Result<(), ConfigError> {
        let key = config.key();
        self.note_return(ipsec, &key);
        let before = || ipsec.spd().find(&key).and_then(|id| ipsec.spd().get(id)).map(|policy| policy.config.clone());
        let waiting = before().filter(|before| self.policies.contains(&key) && waits(before));
        if update { ipsec.update_policy(config) } else { ipsec.add_policy(config) }?;
        self.policies.remove(&key);
        waiting.map_or(Ok(()), |waiting| self.let_wait(ipsec, waiting))
    }

    /// Makes a policy of the file the fallback of the key manager's with its key.
    fn let_wait(&mut self, ipsec: &mut Ipsec, policy: PolicyConfig) -> Result<(), ConfigError> {
        let key = policy.key();
        ipsec.set_fallback_policy(policy)?;
        self.waiting.insert(key);
        Ok(())
    }

    /// Notes that the policy of the file is there again, after a key manager's expired.
    fn note_return(&mut self, ipsec: &Ipsec, key: &PolicyKey) {
        if !ipsec.spd().has_fallback(key) && self.waiting.remove(key) {
            self.policies.insert(*key);
        }
    }

    /// Whether a policy is one of the file that a flush keeps: a key manager that starts flushes what it finds, and packets would
    /// pass in clear until it has its own.
    pub(crate) fn keeps(&mut self, ipsec: &Ipsec, key: &PolicyKey) -> bool {
        self.note_return(ipsec, key);
        let policy = ipsec.spd().find(key).and_then(|id| ipsec.spd().get(id));
        self.policies.contains(key) && policy.is_some_and(|policy| waits(&policy.config))
    }

    /// Removes a policy for a netlink client. One of the file that waited behind it takes its place at once, so that no packet passes
    /// in clear when a key manager ends.
    pub(crate) fn remove_policy(&mut self, ipsec: &mut Ipsec, key: &PolicyKey) {
        self.note_return(ipsec, key);
        self.waiting.remove(key);
        if let Some(waiting) = ipsec.take_fallback_policy(key)
            && ipsec.update_policy(waiting).is_ok()
        {
            self.policies.insert(*key);
            return;
        }
        self.policies.remove(key);
        drop(ipsec.remove_policy(key));
    }
}

/// Whether a policy of the file stays behind those of a key manager.
fn waits(policy: &PolicyConfig) -> bool {
    PolicyConfig::waits(policy.action, policy.priority, policy.templates.iter().map(|template| template.reqid))
}

/// Removes the SA or larval SA with the SPI of `config`. False if there is none.
fn make_way(ipsec: &mut Ipsec, config: &SaConfig) -> bool {
    let (dst, spi, mark) = (config.dst, config.spi, config.mark.value & config.mark.mask);
    let promised = ipsec.sad().larval(dst, spi, mark).map(|larval| larval.seq);
    if promised.is_some_and(|seq| ipsec.forget_larval(seq)) {
        return true;
    }
    let there = ipsec.sad().by_spi(dst, spi, mark).or_else(|| ipsec.sad().named(dst, spi, config.mark));
    there.is_some_and(|id| ipsec.remove_sa_of(id).is_some())
}

impl Step {
    fn take(self, ipsec: &mut Ipsec, of_file: &mut FileObjects) -> Result<(), ConfigError> {
        match self {
            Self::RemoveSa(SaConfig { dst, spi, mark, .. }) => {
                // The SA may have expired, or been replaced.
                if let Some(id) = ipsec.sad().named(dst, spi, mark).filter(|id| of_file.sas.remove(id)) {
                    drop(ipsec.remove_sa_of(id));
                }
                Ok(())
            }
            Self::AddSa(config, mask) => {
                // A netlink client may have added the SA meanwhile, or allocated its SPI.
                let id = loop {
                    match ipsec.add_sa(&config, mask) {
                        Err(ConfigError::Exists) if make_way(ipsec, &config) => {}
                        added => break added?,
                    }
                };
                of_file.sas.insert(id);
                Ok(())
            }
            Self::UpdateSa(mut config) => {
                let id = ipsec.sad().named(config.dst, config.spi, config.mark).filter(|id| of_file.sas.contains(id));
                // An expired SA does not return under its old key.
                let Some(id) = id else { return Ok(()) };
                let record = |request: &Request| request.get::<SaRecord>().cloned();
                let old = ipsec.sa(id).and_then(|sa| sa.request::<SaRecord>());
                if let (Some(new), Some(old)) = (config.request.as_ref().and_then(record), old) {
                    config.request = Some(Request::new(SaRecord { added: old.added, ..new }));
                }
                ipsec.replace_sa(&config).map(drop)
            }
            Self::RemovePolicy(key) => {
                of_file.note_return(ipsec, &key);
                of_file.waiting.remove(&key);
                drop(ipsec.take_fallback_policy(&key));
                if of_file.policies.remove(&key) {
                    drop(ipsec.remove_policy(&key));
                }
                Ok(())
            }
            Self::AddPolicy(config) => {
                of_file.note_return(ipsec, &config.key());
                let there = ipsec.spd().find(&config.key()).and_then(|id| ipsec.spd().get(id));
                let is_managed = there.is_some_and(|policy| !policy.config.templates.is_empty());
                if waits(&config) && is_managed && !of_file.policies.contains(&config.key()) {
                    return of_file.let_wait(ipsec, config);
                }
                of_file.policies.insert(config.key());
                ipsec.update_policy(config)
            }
            Self::SetDefault(default) => {
                set_default(ipsec, default);
                Ok(())
            }
        }
    }
}

/// Validates `new` completely: as the first configuration of a node, and its kept SAs as changed ones.
fn check(old: &Config, new: &Config, change: &Change) -> Result<(), CliError> {
    let bad_sa = |it: &SaConfig, err: ConfigError| {
        CliError::bad_config(format!("SA with destination {} and SPI {:#x}: {err}.", it.dst, it.spi.0))
    };
    let mut node = Ipsec::new();
    for kept in change.sas.kept.iter().filter(|kept| kept.changed) {
        let (old, new) = (&old.sas[kept.old], &new.sas[kept.new]);
        // No packet is sealed here, so any number will do.
        node.add_sa(old, 0).and_then(|_| node.replace_sa(new)).map_err(|err| bad_sa(new, err))?;
    }
    let mut node = Ipsec::new();
    for it in &new.sas {
        node.add_sa(it, 0).map_err(|err| bad_sa(it, err))?;
    }
    for it in &new.policies {
        node.add_policy(it.clone()).map_err(|err| {
            CliError::bad_config(format!("policy {} from {} to {}: {err}.", it.dir, it.selector.src, it.selector.dst))
        })?;
    }
    Ok(())
}

fn set_default(ipsec: &mut Ipsec, default: PolicyDefault) {
    let PolicyDefault { block_in, block_out, block_fwd } = default;
    for (dir, block) in [(Dir::In, block_in), (Dir::Out, block_out), (Dir::Fwd, block_fwd)] {
        ipsec.set_default_policy(dir, if block { Action::Block } else { Action::Allow });
    }
}

/// Sets the options that apply to all SAs.
pub(super) fn set_options(ipsec: &mut Ipsec, options: XfrmOptions) {
    let XfrmOptions { larval_drop, acq_expires, aevent_rseqth, aevent_etime } = options;
    ipsec.set_larval_drop(larval_drop);
    ipsec.set_acq_expires(Duration::from_secs(acq_expires.into()));
    ipsec.set_aevent_limits(AeventLimits { packets: aevent_rseqth, time: Duration::from_millis(100) * aevent_etime });
}

#[cfg(test)]
mod tests {
    use base::{Counters, Instant};
    use ipsec::{Decision, SpiRequest};
    use wire::{FlowKey, Protocol, Spi};
    use xfrm::{Lifetime, Limits, Mode, PortMask, SaDir, SaFlags};

    use super::*;

    const SA: &str = r#"
        [[sa]]
        src = "192.0.2.1"
        dst = "192.0.2.2"
        spi = 0x1000
        mode = "tunnel"
        reqid = 1
        aead = { name = "rfc4106(gcm(aes))", key = "0x000102030405060708090a0b0c0d0e0fa0a1a2a3", icv = 128 }
        replay-window = 64
    "#;
    const POLICIES: &str = r#"
        [[policy]]
        dir = "out"
        src = "10.1.0.0/24"
        dst = "10.2.0.0/24"
        proto = "udp"
        dport = 53
        priority = 7
        tmpl = [{ src = "192.0.2.1", dst = "192.0.2.2", mode = "tunnel", reqid = 1 }]
        [[policy]]
        dir = "in"
        src = "10.2.0.0/24"
        dst = "10.1.0.0/24"
        action = "block"
    "#;

    fn config(text: &str) -> Config {
        Config::from_toml(text, "test.toml").unwrap()
    }

    /// Changes a node from `old` to `new`, as the daemon does.
    fn change(ipsec: &mut Ipsec, old: &Config, new: &Config) -> Result<usize, CliError> {
        let sas = ipsec.sad().iter().map(ipsec::Sa::id).collect();
        let policies = ipsec.spd().iter().map(|policy| policy.config.key()).collect();
        change_of((ipsec, &mut FileObjects { sas, policies, ..FileObjects::default() }), old, new)
    }

    /// Same as [`change`], where some objects do not belong to the file.
    fn change_of(
        (ipsec, of_file): (&mut Ipsec, &mut FileObjects),
        old: &Config,
        new: &Config,
    ) -> Result<usize, CliError> {
        let mut mask = 0;
        let random = || {
            mask += 1 << 40;
            Ok(mask)
        };
        let steps = Steps::between(old, new, &Change::between(old, new), random)?;
        let n = steps.0.len();
        steps.apply(ipsec, of_file);
        Ok(n)
    }

    #[test]
    fn examples_protect_both_families_of_their_policies() {
        let examples = [
            include_str!("../../../examples/tunnel-left.toml"),
            include_str!("../../../examples/tunnel-right.toml"),
            include_str!("../../../examples/router.toml"),
        ];
        for text in examples {
            let (mut ipsec, new) = (Ipsec::new(), config(text));
            change(&mut ipsec, &Config::default(), &new).unwrap();
            let outbound = new.policies.iter().filter(|policy| policy.dir == Dir::Out);
            let flows: Vec<FlowKey> = outbound
                .map(|policy| FlowKey {
                    src: policy.selector.src.addr(),
                    dst: policy.selector.dst.addr(),
                    protocol: Protocol::TCP,
                    sport: 1,
                    dport: 2,
                })
                .collect();
            assert!(flows.iter().any(|flow| flow.src.is_ipv4()) && flows.iter().any(|flow| flow.src.is_ipv6()));
            let mut counters = Counters::ZERO;
            for flow in flows {
                let decision = ipsec.lookup(Instant::ZERO, &flow.into(), &mut counters);
                assert!(matches!(decision, Decision::Protect(_)), "{flow:?}: {decision:?}");
            }
        }
    }

    #[test]
    fn configured_sas_and_policies_are_added() {
        let (mut ipsec, new) = (Ipsec::new(), config(&[SA, POLICIES].concat()));
        change(&mut ipsec, &Config::default(), &new).unwrap();
        let sa = ipsec.sad().iter().next().unwrap();
        assert_eq!((sa.spi(), sa.mode(), sa.reqid(), sa.replay().size()), (Spi(0x1000), Mode::Tunnel, 1, 64));
        assert_eq!((sa.dir(), sa.flags().esn), (None, false));
        let policies: Vec<&PolicyConfig> = ipsec.spd().iter().map(|policy| &policy.config).collect();
        assert_eq!((policies.len(), policies[0].dir, policies[0].action), (2, Dir::In, Action::Block));
        assert_eq!((policies[1].dir, policies[1].priority, policies[1].templates.len()), (Dir::Out, 7, 1));
        let selector = policies[1].selector;
        assert_eq!((selector.protocol, selector.dport), (Some(Protocol::UDP), PortMask::exactly(53)));
        assert_eq!(selector.sport, PortMask::ANY);
        change(&mut ipsec, &new, &Config::default()).unwrap();
        assert!(ipsec.is_idle());
    }

    #[test]
    fn reload_keeps_programs_sas_unless_the_file_newly_has_them() {
        let (mut ipsec, mut of_file) = (Ipsec::new(), FileObjects::default());
        let old = config(&[SA, POLICIES].concat());
        change_of((&mut ipsec, &mut of_file), &Config::default(), &old).unwrap();
        let mine = ipsec.sad().iter().next().unwrap().id();
        assert!(of_file.sas.contains(&mine));
        // A netlink client removes the file's SA, and adds one of the same name that the file's SA cannot be updated
        // to.
        let other = SaConfig { flags: SaFlags { esn: true, ..SaFlags::default() }, ..old.sas[0].clone() };
        ipsec.remove_sa(other.dst, other.spi, 0).unwrap();
        let theirs = ipsec.add_sa(&other, 1).unwrap();
        let open = PolicyConfig { templates: Vec::new(), ..old.policies[0].clone() };
        of_file.set_policy(&mut ipsec, open.clone(), true).unwrap();
        let is_theirs = |ipsec: &Ipsec| ipsec.sa(theirs).is_some_and(|sa| sa.flags().esn && sa.replay().size() == 64);
        let wider = config(&[&SA.replace("= 64", "= 128"), POLICIES].concat());
        change_of((&mut ipsec, &mut of_file), &old, &wider).unwrap();
        assert!(is_theirs(&ipsec));
        let without = config("");
        change_of((&mut ipsec, &mut of_file), &wider, &without).unwrap();
        assert!(is_theirs(&ipsec) && ipsec.spd().find(&open.key()).is_some());
        assert_eq!((ipsec.sad().len(), ipsec.spd().len()), (1, 1));
        change_of((&mut ipsec, &mut of_file), &without, &old).unwrap();
        let now: Vec<_> = ipsec.sad().iter().map(|sa| (sa.flags().esn, of_file.sas.contains(&sa.id()))).collect();
        assert_eq!((now, ipsec.sa(theirs).is_some(), ipsec.spd().len()), (vec![(false, true)], false, 2));
        assert!(of_file.policies.contains(&open.key()));
    }

    #[test]
    fn sa_of_the_file_replaces_larval_or_existing_sa_of_its_spi() {
        let new = config(&[SA, POLICIES].concat());
        let of_file = new.sas[0].clone();
        let promise = |ipsec: &mut Ipsec| {
            let &SaConfig { src, dst, mode, mark, if_id, dir, spi: Spi(spi), .. } = &of_file;
            let request =
                SpiRequest { src, dst, mode, reqid: 9, mark, if_id, dir, cpu: None, seq: 0, min: spi, max: spi };
            ipsec.alloc_spi(Instant::ZERO, &request, &mut || 0).map(drop)
        };
        let add = |ipsec: &mut Ipsec| ipsec.add_sa(&of_file, 1).map(drop);
        for before in [&promise as &dyn Fn(&mut Ipsec) -> _, &add] {
            let mut ipsec = Ipsec::new();
            before(&mut ipsec).unwrap();
            change(&mut ipsec, &Config::default(), &new).unwrap();
            let spis: Vec<_> = ipsec.sad().iter().map(ipsec::Sa::spi).collect();
            assert_eq!((spis, ipsec.sad().larvae().count()), (vec![of_file.spi], 0));
        }
    }

    #[test]
    fn waiting_policy_is_back_when_a_key_manager_removes_its_own() {
        let (mut ipsec, mut of_file) = (Ipsec::new(), FileObjects::default());
        let tunnel = |nets: &str| {
            let local = "local = { address = \"192.0.2.1\", nets = [\"10.1.0.0/24\"] }";
            let remote = format!("remote = {{ address = \"192.0.2.2\", nets = [{nets}] }}");
            config(&format!("[[tunnel]]\nname = \"tun0\"\n{local}\n{remote}\nkeys = \"ike\"\n"))
        };
        let one = tunnel("\"10.2.0.0/24\"");
        change_of((&mut ipsec, &mut of_file), &Config::default(), &one).unwrap();
        let waiting = one.policies[0].clone();
        let key = waiting.key();
        let priority = |ipsec: &Ipsec| ipsec.spd().find(&key).and_then(|id| Some(ipsec.spd().get(id)?.config.priority));
        let mut of_manager = PolicyConfig { priority: 1000, ..waiting.clone() };
        of_manager.templates[0].reqid = 1;
        // Twice, as for a rekeyed SA.
        for _ in 0..2 {
            of_file.set_policy(&mut ipsec, of_manager.clone(), true).unwrap();
            assert_eq!((priority(&ipsec), of_file.keeps(&ipsec, &key)), (Some(1000), false));
        }
        // A reload with more networks leaves the key manager's policy alone.
        let two = tunnel("\"10.2.0.0/24\", \"10.3.0.0/24\"");
        change_of((&mut ipsec, &mut of_file), &one, &two).unwrap();
        assert_eq!((priority(&ipsec), ipsec.spd().len()), (Some(1000), 6));
        of_file.remove_policy(&mut ipsec, &key);
        assert_eq!((priority(&ipsec), of_file.policies.contains(&key)), (Some(PolicyConfig::WAITING), true));
        assert!(of_file.keeps(&ipsec, &key), "over a flush");
        // The file's own can be removed by name.
        of_file.remove_policy(&mut ipsec, &key);
        assert_eq!(priority(&ipsec), None);
        // A policy that the file no longer has does not come back.
        let other = &two.policies.iter().find(|policy| policy.key() != key).unwrap().clone();
        of_file.set_policy(&mut ipsec, PolicyConfig { priority: 1, ..other.clone() }, true).unwrap();
        change_of((&mut ipsec, &mut of_file), &two, &Config::default()).unwrap();
        assert_eq!(ipsec.spd().len(), 1);
        of_file.remove_policy(&mut ipsec, &other.key());
        assert!(ipsec.is_idle());
    }

    #[test]
    fn block_of_a_tunnel_is_back_when_a_program_removes_its_own() {
        let (mut ipsec, mut of_file) = (Ipsec::new(), FileObjects::default());
        let wan = "[[link]]\nname = \"wan\"\nkind = \"packet\"\ninterface = \"eth0\"\naddresses = [\"192.0.2.1/24\"]\n";
        let ends = "local = { address = \"192.0.2.1\", nets = [\"10.1.0.0/24\"] }\n\
                    remote = { address = \"192.0.2.2\", nets = [\"10.2.0.0/24\"] }";
        let file = config(&format!("{wan}[[tunnel]]\nname = \"tun0\"\n{ends}\nkeys = \"ike\"\n"));
        change_of((&mut ipsec, &mut of_file), &Config::default(), &file).unwrap();
        let block = file.policies.iter().find(|policy| policy.templates.is_empty()).unwrap().clone();
        let key = block.key();
        let action = |ipsec: &Ipsec| ipsec.spd().find(&key).and_then(|id| Some(ipsec.spd().get(id)?.config.action));
        of_file.set_policy(&mut ipsec, PolicyConfig { action: Action::Allow, ..block }, true).unwrap();
        assert_eq!((action(&ipsec), of_file.keeps(&ipsec, &key)), (Some(Action::Allow), false));
        of_file.remove_policy(&mut ipsec, &key);
        assert_eq!((action(&ipsec), of_file.keeps(&ipsec, &key)), (Some(Action::Block), true));
        change_of((&mut ipsec, &mut of_file), &file, &Config::default()).unwrap();
        assert!(ipsec.is_idle());
    }

    #[test]
    fn waiting_policy_is_back_when_a_managers_policy_expires() {
        let (mut ipsec, mut of_file) = (Ipsec::new(), FileObjects::default());
        let local = "local = { address = \"192.0.2.1\", nets = [\"10.1.0.0/24\"] }";
        let remote = "remote = { address = \"192.0.2.2\", nets = [\"10.2.0.0/24\"] }";
        let file = config(&format!("[[tunnel]]\nname = \"tun0\"\n{local}\n{remote}\nkeys = \"ike\"\n"));
        change_of((&mut ipsec, &mut of_file), &Config::default(), &file).unwrap();
        let waiting = file.policies[0].clone();
        let key = waiting.key();
        let priority = |ipsec: &Ipsec| ipsec.spd().find(&key).and_then(|id| Some(ipsec.spd().get(id)?.config.priority));
        let minute = Limits { added: Some(Duration::from_secs(60)), ..Limits::NONE };
        let mut of_manager = PolicyConfig { priority: 1000, ..waiting };
        of_manager.lifetime = Lifetime { hard: minute, ..Lifetime::default() };
        let mut now = Instant::ZERO;
        // Each time, so that it waits again behind the next policy.
        for _ in 0..3 {
            of_file.set_policy(&mut ipsec, of_manager.clone(), true).unwrap();
            ipsec.handle_timeout(now, &mut Counters::default());
            assert_eq!((priority(&ipsec), ipsec.spd().len()), (Some(1000), 3));
            now = now + Duration::from_secs(61);
            ipsec.handle_timeout(now, &mut Counters::default());
            assert_eq!((priority(&ipsec), ipsec.spd().len()), (Some(PolicyConfig::WAITING), 3));
            assert!(of_file.keeps(&ipsec, &key));
        }
        // It is the file's: a reload without it removes it.
        change_of((&mut ipsec, &mut of_file), &file, &Config::default()).unwrap();
        assert!(ipsec.is_idle());
        // A reload without it while the manager's is there leaves no fallback.
        change_of((&mut ipsec, &mut of_file), &Config::default(), &file).unwrap();
        of_file.set_policy(&mut ipsec, of_manager, true).unwrap();
        change_of((&mut ipsec, &mut of_file), &file, &Config::default()).unwrap();
        ipsec.handle_timeout(now, &mut Counters::default());
        ipsec.handle_timeout(now + Duration::from_secs(61), &mut Counters::default());
        assert!(ipsec.is_idle());
    }

    #[test]
    fn unchanged_sas_and_policies_are_not_touched() {
        let (mut ipsec, old) = (Ipsec::new(), config(&[SA, POLICIES].concat()));
        change(&mut ipsec, &Config::default(), &old).unwrap();
        let before = ipsec.sad().iter().next().unwrap().id();
        assert_eq!(change(&mut ipsec, &old, &old).unwrap(), 0);
        let other = config(&[SA, &SA.replace("0x1000", "0x2000"), POLICIES].concat());
        assert_eq!(change(&mut ipsec, &old, &other).unwrap(), 1);
        let wider = config(&[&SA.replace("= 64", "= 128"), POLICIES].concat());
        assert_eq!(change(&mut ipsec, &other, &wider).unwrap(), 2);
        let sas: Vec<_> = ipsec.sad().iter().map(|sa| (sa.id(), sa.replay().size())).collect();
        assert_eq!(sas, [(before, 128)]);
    }

    #[test]
    fn an_sa_is_given_a_direction_and_keeps_it() {
        let dir = |dir: &str| config(&SA.replace("replay-window = 64", &format!("dir = \"{dir}\"")));
        let (mut ipsec, old) = (Ipsec::new(), config(SA));
        change(&mut ipsec, &Config::default(), &old).unwrap();
        assert_eq!(change(&mut ipsec, &old, &dir("in")).unwrap(), 1);
        let err = change(&mut ipsec, &dir("in"), &dir("out")).unwrap_err();
        assert_eq!((err.exit_code, err.message.contains("0x1000: dir cannot be reversed")), (2, true), "{err}");
        assert_eq!(ipsec.sad().iter().next().unwrap().dir(), Some(SaDir::In));
    }

    #[test]
    fn impossible_change_is_refused_before_any_step() {
        let (mut ipsec, old) = (Ipsec::new(), config(SA));
        change(&mut ipsec, &Config::default(), &old).unwrap();
        let esn = config(&SA.replace("replay-window = 64", "replay-window = 64\nflags = [\"esn\"]"));
        let err = change(&mut ipsec, &old, &esn).unwrap_err();
        assert_eq!((err.exit_code, err.message.contains("0x1000: esn cannot change")), (2, true), "{err}");
        assert!(!ipsec.sad().iter().next().unwrap().flags().esn);
    }
}
