//! Search for the SA of a template (Linux `xfrm_state_find`, `xfrm_state_look_at`).

use std::net::IpAddr;

use base::{PortId, SaId};
use wire::Version;
use xfrm::{ConfigError, Flowi, Mark, Mode, SaConfig, SaDir, Template};

use super::Sad;
use crate::sa::{Sa, State};

/// Limit of SAs of a destination and `reqid` that are looked at for a policy.
const MOST_OF_A_REQID: usize = 64;

/// Result of a search for a template.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Found {
    /// An SA to use.
    Sa(SaId),
    /// No SA, and no request for one.
    Nothing,
    /// No SA, and a request is pending.
    Pending,
    /// No SA, and the SPI of the template is used by an SA that does not match, or reserved.
    Clash,
}

/// Request of a policy's template for an SA for a flow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted<'a> {
    pub(crate) template: &'a Template,
    /// The policy's, by which SAs are chosen, and not the packet's.
    pub(crate) mark: Mark,
    /// The ends, which the template may leave to the packet.
    pub(crate) src: IpAddr,
    pub(crate) dst: IpAddr,
    pub(crate) flow: &'a Flowi,
    /// The device of the policy.
    pub(crate) device: Option<PortId>,
}

impl Sa {
    /// Tells whether its inner packets may be of that family (Linux `x->sel.family`): its selector's, else that of its
    /// own addresses, else either.
    pub(crate) fn takes(&self, inside: Version) -> bool {
        match self.selector() {
            Some(selector) => Version::of_addr(selector.src.addr()) == inside,
            None => self.flags.af_unspec || Version::of_addr(self.dst) == inside,
        }
    }

    /// Tells whether `flow` may go through it.
    fn carries(&self, flow: &Flowi) -> bool {
        self.takes(Version::of_addr(flow.key.dst)) && self.selector().is_none_or(|selector| selector.matches(flow))
    }

    /// Tells whether it is as `wanted`, except its source.
    fn suits(&self, wanted: &Wanted<'_>) -> bool {
        self.mode == wanted.template.mode
            && self.if_id == wanted.flow.if_id
            && self.mark.matches(wanted.mark.sought())
            && wanted.template.spi.is_none_or(|spi| spi == self.spi)
            && !self.flags.wildrecv
    }
}

/// The best match so far, among SAs with one kind of source.
#[derive(Clone, Copy, Debug, Default)]
struct Best {
    young: Option<SaId>,
    /// A dying one.
    dying: Option<SaId>,
    /// Whether there is one that has failed or expired.
    failed: bool,
}

impl Best {
    fn valid(self) -> Option<SaId> {
        self.young.or(self.dying)
    }
}

impl Sad {
    /// The SA for `flow` by `template`, from `src` to `dst`: a valid one; of these one that is not dying; of these the
    /// newest. An SA with that very source precedes one with any source. `mark` is the mark of the template's policy,
    /// by which SAs are chosen, and not the packet's. The caller checks the SA's direction.
    pub fn for_template(
        &self,
        template: &Template,
        mark: Mark,
        src: IpAddr,
        dst: IpAddr,
        flow: &Flowi,
    ) -> Option<SaId> {
        match self.find(&Wanted { template, mark, src, dst, flow, device: None }) {
            Found::Sa(id) => Some(id),
            Found::Nothing | Found::Pending | Found::Clash => None,
        }
    }

    /// As [`for_template`](Self::for_template). For a policy on a device the SA is on that device in packet mode,
    /// otherwise on none (Linux `xfrm_state_find`).
    pub(crate) fn find(&self, wanted: &Wanted<'_>) -> Found {
        let &Wanted { template, src, dst, flow, device, .. } = wanted;
        // Those for this CPU alone come first, and those for others are not used (RFC 9611 §3).
        let [mut of_cpu, mut same_source, mut any_source] = [Best::default(); 3];
        for sa in self.slots.list(self.newest((dst, template.reqid))) {
            if !sa.suits(wanted) || sa.packet_device() != device {
                continue;
            }
            let cpu = if self.of_cpus > 0 { sa.cpu() } else { None };
            if cpu.is_some_and(|cpu| cpu != u32::from(self.place.id.0)) {
                continue;
            }
            let has_source = sa.src == src || src.is_unspecified();
            let best = if cpu.is_some() && (has_source || sa.src.is_unspecified()) {
                &mut of_cpu
            } else if has_source {
                &mut same_source
            } else if sa.src.is_unspecified() {
                &mut any_source
            } else {
                continue;
            };
            if !sa.carries(flow) {
                continue;
            }
            match sa.state {
                // From newest to oldest: the first match is the best.
                State::Valid if !sa.dying => drop(best.young.get_or_insert(sa.id())),
                State::Valid => drop(best.dying.get_or_insert(sa.id())),
                _ => best.failed = true,
            }
            if let Some(id) = same_source.young.filter(|_| self.of_cpus == 0) {
                return Found::Sa(id);
            }
        }
        let pending = self.pending(wanted, None);
        let mark = wanted.mark.sought();
        let has = |spi| self.by_spi(dst, spi, mark).is_some() || self.larvae.by_spi(dst, spi, mark).is_some();
        let clash = || template.spi.is_some_and(has);
        match of_cpu.valid().or(same_source.valid()).or(any_source.valid().filter(|_| !pending)) {
            Some(id) => Found::Sa(id),
            None if pending || same_source.failed || any_source.failed => Found::Pending,
            None if clash() => Found::Clash,
            None => Found::Nothing,
        }
    }

    /// Tells whether there is a valid SA for a template of a policy. `None`: the template leaves its destination or `reqid` to the packet,
    /// or there are too many SAs to look at.
    pub(crate) fn has_for_policy(&self, template: &Template, mark: Mark, if_id: u32) -> Option<bool> {
        let dst = template.dst.filter(|dst| !dst.is_unspecified() && template.reqid != 0)?;
        let src = template.src.filter(|src| !src.is_unspecified());
        let suits = |sa: &Sa| {
            let has_source = src.is_none_or(|src| sa.src == src || sa.src.is_unspecified());
            let has_spi = template.spi.is_none_or(|spi| spi == sa.spi);
            has_source && has_spi && sa.mode == template.mode && sa.if_id == if_id && sa.state == State::Valid
        };
        let mut looked_at = 0;
        for sa in self.slots.list(self.newest((dst, template.reqid))) {
            if suits(sa) && sa.mark.matches(mark.sought()) {
                return Some(true);
            }
            looked_at += 1;
            if looked_at == MOST_OF_A_REQID {
                return None;
            }
        }
        Some(false)
    }

    /// Tells whether there is an SA as `wanted`, in whatever state, for that CPU or for all.
    pub(crate) fn has(&self, wanted: &Wanted<'_>, cpu: Option<u32>) -> bool {
        let &Wanted { template, src, dst, flow, device, .. } = wanted;
        let has_source = |sa: &Sa| sa.src == src || src.is_unspecified() || sa.src.is_unspecified();
        self.slots.list(self.newest((dst, template.reqid))).any(|sa| {
            sa.suits(wanted) && (sa.packet_device(), sa.cpu()) == (device, cpu) && has_source(sa) && sa.carries(flow)
        })
    }

    /// The tunnels to `dst` with that `reqid`, the newest first.
    pub(crate) fn tunnels_to(&self, dst: IpAddr, reqid: u32) -> impl Iterator<Item = &Sa> {
        self.slots.list(self.newest((dst, reqid))).filter(|sa| sa.mode == Mode::Tunnel)
    }

    /// Tells whether a request for an SA as `wanted` is pending, for any flow, and for that CPU or for all.
    pub(crate) fn pending(&self, wanted: &Wanted<'_>, cpu: Option<u32>) -> bool {
        let &Wanted { template, mark, src, dst, flow, .. } = wanted;
        self.larvae.with(dst, template.reqid).any(|larval| {
            (larval.src == src || src.is_unspecified() || larval.src.is_unspecified())
                && (larval.mode, larval.if_id, larval.cpu) == (template.mode, flow.if_id, cpu)
                && larval.mark.matches(mark.sought())
                && template.spi.is_none_or(|spi| spi == larval.spi)
        })
    }
}

impl Sa {
    /// Applies the values that may change in a valid SA (Linux `xfrm_state_update`).
    ///
    /// # Errors
    /// [`ConfigError::DirReversed`], [`ConfigError::EncapChanged`], [`ConfigError::NotValid`].
    pub(super) fn adjust(&mut self, config: &SaConfig) -> Result<(), ConfigError> {
        if self.dir != config.dir {
            return Err(ConfigError::DirReversed);
        }
        if self.state != State::Valid {
            return Err(ConfigError::NotValid);
        }
        if self.encap.is_some() != config.encap.is_some() {
            return Err(ConfigError::EncapChanged);
        }
        if config.if_id != 0 && self.offload.is_some_and(|offload| offload.dir == SaDir::In) {
            return Err(ConfigError::Offload("if_id"));
        }
        if self.encap != config.encap {
            self.settle(config);
        }
        self.encap = config.encap;
        if config.output_mark != Mark::ANY {
            self.output_mark = config.output_mark;
        }
        if config.if_id != 0 {
            self.if_id = config.if_id;
        }
        if config.request.is_some() {
            self.age.request.clone_from(&config.request);
        }
        Ok(())
    }
}
