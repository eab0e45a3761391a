//! Handlers of requests, one function each, and their notifications (Linux `xfrm_dispatch`).

use super::attributes::{Attributes, POLICY};
use super::database::{Counts, Database, Xfrm};
use super::dump::{SaFilter, policies, sas};
use super::layout::{Layout, LifetimeCur, PolicyId, PolicyInfo, SaId, SaInfo};
use super::nums::{HASH_MAX, ae_flag, attr, group, msg};
use super::policy::{Policy, PolicyQuery};
use super::replay;
use super::sa::{NewSa, NewSpi, Sa, SaQuery};
use crate::attr::Attr;
use crate::attr::{Strictness, parse};
use crate::error::{Error, errno};
use crate::message::HEADER_LEN;
use crate::message::{Writer, flag};
use crate::session::{Dump, Protocol, Reply, Request};

/// `XFRM_USERPOLICY_BLOCK`.
pub(super) const BLOCK: u8 = 1;
/// `XFRM_USERPOLICY_ACCEPT`.
pub(super) const ACCEPT: u8 = 2;

/// Hash thresholds of IPv4 and IPv6: local and remote prefix lengths from which Linux hashes policies. Linux's defaults,
/// which are shown and cannot be set: here policies of all prefix lengths are hashed.
const THRESHOLDS: [[u8; 2]; 2] = [[32; 2], [128; 2]];

/// Lengths of the requests' fixed parts (Linux `xfrm_msg_min`); `None` for an unknown request.
const fn fixed_len(kind: u16) -> Option<usize> {
    Some(match kind {
        msg::NEW_SA | msg::UPD_SA => SaInfo::LEN,
        msg::DEL_SA | msg::GET_SA => SaId::LEN,
        msg::NEW_POLICY | msg::UPD_POLICY => PolicyInfo::LEN,
        msg::DEL_POLICY | msg::GET_POLICY => PolicyId::LEN,
        msg::ALLOC_SPI => NewSpi::LEN,
        msg::ACQUIRE => 280,
        msg::EXPIRE => SaInfo::LEN + 8,
        msg::POL_EXPIRE => PolicyInfo::LEN + 8,
        msg::FLUSH_SA => 1,
        msg::FLUSH_POLICY => 0,
        msg::NEW_AE | msg::GET_AE => 48,
        msg::MIGRATE => PolicyId::LEN,
        msg::GET_SAD_INFO | msg::NEW_SPD_INFO | msg::GET_SPD_INFO => 4,
        msg::SET_DEFAULT | msg::GET_DEFAULT => 3,
        _ => return None,
    })
}

/// The fixed part of a request, and its attributes.
pub(super) fn split<'a>(request: &Request<'a>) -> Result<(&'a [u8], Attributes<'a>), Error> {
    let len = fixed_len(request.kind()).ok_or(Error::new(errno::EINVAL))?;
    let payload = request.payload();
    let Some(fixed) = payload.get(..len) else {
        return Err(Error::text(errno::EINVAL, "Invalid header length"));
    };
    let start = len.next_multiple_of(4);
    let rest = payload.get(start..).unwrap_or_default();
    // Attributes of `NEWSPDINFO` have their own numbers.
    let policy = if request.kind() == msg::NEW_SPD_INFO { &SPD_POLICY } else { &POLICY };
    Ok((fixed, parse(rest, (HEADER_LEN + start) as u32, policy, Strictness::Liberal)?))
}

const SPD_POLICY: crate::attr::AttrPolicy<42> = crate::attr::policy(&[
    (attr::SPD_IPV4_HTHRESH, crate::attr::Kind::Min(2)),
    (attr::SPD_IPV6_HTHRESH, crate::attr::Kind::Min(2)),
]);

impl<D: Database + 'static> Protocol for Xfrm<D> {
    /// `XFRMNLGRP_MAPPING`.
    const GROUPS: u32 = 8;
    const ANYONE_LISTENS: bool = false;

    /// Replies contain keys, so unprivileged clients may not read them either.
    fn only_reads(_: &Request<'_>) -> bool {
        false
    }

    fn adds(request: &Request<'_>) -> bool {
        matches!(request.kind(), msg::NEW_SA | msg::UPD_SA | msg::ALLOC_SPI | msg::NEW_POLICY | msg::UPD_POLICY)
    }

    fn is_dump(request: &Request<'_>) -> bool {
        matches!(request.kind(), msg::GET_SA | msg::GET_POLICY) && request.message.header.flags & flag::DUMP != 0
    }

    fn handle(&mut self, request: &Request<'_>, reply: &mut Reply<'_>) -> Result<(), Error> {
        let (fixed, attrs) = split(request)?;
        let attrs = &attrs;
        match request.kind() {
            kind @ (msg::NEW_SA | msg::UPD_SA) => self.new_sa(kind, fixed, attrs, reply),
            msg::DEL_SA => self.del_sa(&SaQuery::parse(fixed, attrs)?, reply),
            msg::GET_SA => {
                let sa = self.database.find_sa(&SaQuery::parse(fixed, attrs)?)?;
                reply.send(msg::NEW_SA, 0, |w| sa.write(w));
                Ok(())
            }
            msg::ALLOC_SPI => {
                let sa = self.database.alloc_spi(Box::new(NewSpi::parse(fixed, attrs)?))?;
                reply.send(msg::NEW_SA, 0, |w| sa.write(w));
                Ok(())
            }
            msg::FLUSH_SA => self.flush_sa(fixed, reply),
            msg::EXPIRE => self.expire(fixed, attrs),
            msg::GET_AE => self.get_ae(fixed, attrs, reply),
            msg::NEW_AE => self.new_ae(request, fixed, attrs, reply),
            kind @ (msg::NEW_POLICY | msg::UPD_POLICY) => self.new_policy(kind, fixed, attrs, reply),
            msg::DEL_POLICY => self.del_policy(&PolicyQuery::parse(fixed, attrs)?, reply),
            msg::GET_POLICY => {
                let policy = self.database.find_policy(&PolicyQuery::parse(fixed, attrs)?, false)?;
                reply.send(msg::NEW_POLICY, 0, |w| policy.write(w));
                Ok(())
            }
            msg::POL_EXPIRE => self.policy_expire(fixed, attrs),
            msg::FLUSH_POLICY => self.flush_policy(attrs, reply),
            msg::GET_SAD_INFO => self.sad_info(fixed, reply),
            msg::GET_SPD_INFO => self.spd_info(fixed, reply),
            msg::NEW_SPD_INFO => check_thresholds(attrs),
            msg::SET_DEFAULT => self.set_default(fixed, reply),
            msg::GET_DEFAULT => {
                let bytes = self.default_bytes()?;
                reply.send(msg::GET_DEFAULT, 0, |w| w.fixed(&bytes));
                Ok(())
            }
            msg::MIGRATE => Err(Error::unsupported("SAs cannot migrate")),
            _ => Err(Error::unsupported("fatpath takes no acquire messages; it sends them, for packets")),
        }
    }

    fn dump(&mut self, request: &Request<'_>) -> Result<Dump<Self>, Error> {
        let kind = request.kind();
        // A dump request may lack the fixed part, which is ignored.
        let attrs = split(request).map(|(_, attrs)| attrs);
        if kind == msg::GET_POLICY {
            return Ok(policies());
        }
        let filter = attrs.map(|attrs| SaFilter::of(&attrs)).unwrap_or_default();
        Ok(sas(filter))
    }
}

impl<D: Database> Xfrm<D> {
    fn new_sa(&mut self, kind: u16, fixed: &[u8], attrs: &Attributes<'_>, reply: &mut Reply<'_>) -> Result<(), Error> {
        let new = NewSa::parse(fixed, attrs)?;
        let SaInfo { daddr, spi, family, proto, .. } = new.info;
        let sought = xfrm::Mark { value: new.mark.value & new.mark.mask, ..new.mark };
        let query = SaQuery { daddr, spi: Ok(spi), family, proto, mark: sought };
        self.database.add_sa(Box::new(new), kind == msg::UPD_SA)?;
        if reply.has_listeners(group::SA)
            && let Ok(sa) = self.database.find_sa(&query)
        {
            reply.notify(group::SA, kind, 0, |w| sa.write(w));
        }
        Ok(())
    }

    fn del_sa(&mut self, query: &SaQuery, reply: &mut Reply<'_>) -> Result<(), Error> {
        let sa = self.database.remove_sa(query)?;
        reply.notify(group::SA, msg::DEL_SA, 0, |w| {
            w.fixed(&sa.id().to_bytes());
            sa.info.put(w, attr::SA);
            sa.write_attributes(w);
        });
        Ok(())
    }

    fn flush_sa(&mut self, fixed: &[u8], reply: &mut Reply<'_>) -> Result<(), Error> {
        let proto = fixed.first().copied().unwrap_or_default();
        if self.database.flush_sas(proto)? {
            reply.notify(group::SA, msg::FLUSH_SA, 0, |w| w.fixed(&[proto]));
        }
        Ok(())
    }

    fn expire(&mut self, fixed: &[u8], attrs: &Attributes<'_>) -> Result<(), Error> {
        let info = SaInfo::of(fixed);
        let hard = fixed.get(SaInfo::LEN).is_some_and(|&hard| hard != 0);
        let SaInfo { daddr, spi, family, proto, .. } = info;
        let query = SaQuery { daddr, spi: Ok(spi), family, proto, mark: super::sa::mark(attrs) };
        match self.database.expire_sa(&query, hard) {
            // Linux returns `ENOENT` for a missing SA here.
            Err(error) if error.errno == errno::ESRCH => Err(Error::new(errno::ENOENT)),
            outcome => outcome,
        }
    }

    fn get_ae(&mut self, fixed: &[u8], attrs: &Attributes<'_>, reply: &mut Reply<'_>) -> Result<(), Error> {
        let sa = self.database.find_sa(&ae_query(fixed, attrs))?;
        let flags = fixed.get(40..).and_then(<[u8]>::first_chunk).map_or(0, |it| u32::from_ne_bytes(*it));
        reply.send(msg::NEW_AE, 0, |w| write_ae(w, &sa, flags));
        Ok(())
    }

    fn new_ae(
        &mut self,
        request: &Request<'_>,
        fixed: &[u8],
        attrs: &Attributes<'_>,
        reply: &mut Reply<'_>,
    ) -> Result<(), Error> {
        let has = |kind| attrs.get(kind).is_some();
        let settable =
            [attr::LTIME_VAL, attr::REPLAY_VAL, attr::REPLAY_ESN_VAL, attr::ETIMER_THRESH, attr::REPLAY_THRESH];
        if !settable.into_iter().any(has) {
            return Err(Error::text(errno::EINVAL, "Missing required attribute for AE"));
        }
        if !request.has(flag::REPLACE) {
            return Err(Error::text(errno::EINVAL, "NLM_F_REPLACE flag is required"));
        }
        let counts = Counts {
            legacy: replay::legacy(attrs),
            esn: replay::esn(attrs),
            used: attrs.get(attr::LTIME_VAL).map(|attr| LifetimeCur::of(attr.data)),
            aevents: super::sa::aevents(attrs),
        };
        let query = ae_query(fixed, attrs);
        self.database.set_counts(&query, counts)?;
        if reply.has_listeners(group::AEVENTS) {
            let sa = self.database.find_sa(&query)?;
            reply.notify(group::AEVENTS, msg::NEW_AE, 0, |w| write_ae(w, &sa, ae_flag::UPDATED));
        }
        Ok(())
    }

    fn new_policy(
        &mut self,
        kind: u16,
        fixed: &[u8],
        attrs: &Attributes<'_>,
        reply: &mut Reply<'_>,
    ) -> Result<(), Error> {
        let policy = Policy::parse(fixed, attrs)?;
        let PolicyInfo { sel, dir, .. } = policy.info;
        let (mark, if_id) = (policy.mark, policy.if_id);
        self.database.add_policy(Box::new(policy), kind == msg::UPD_POLICY)?;
        if reply.has_listeners(group::POLICY) {
            let query = PolicyQuery { id: PolicyId { sel, index: 0, dir }, mark, if_id };
            if let Ok(policy) = self.database.find_policy(&query, false) {
                reply.notify(group::POLICY, kind, 0, |w| policy.write(w));
            }
        }
        Ok(())
    }

    fn del_policy(&mut self, query: &PolicyQuery, reply: &mut Reply<'_>) -> Result<(), Error> {
        let policy = self.database.find_policy(query, true)?;
        reply.notify(group::POLICY, msg::DEL_POLICY, 0, |w| {
            let PolicyInfo { sel, index, dir, .. } = policy.info;
            let id = match query.id.index {
                0 => PolicyId { sel, index: 0, dir },
                _ => PolicyId { index, dir, ..PolicyId::default() },
            };
            w.fixed(&id.to_bytes());
            policy.info.put(w, attr::POLICY);
            policy.write_attributes(w);
        });
        Ok(())
    }

    fn policy_expire(&mut self, fixed: &[u8], attrs: &Attributes<'_>) -> Result<(), Error> {
        let PolicyInfo { sel, index, dir, .. } = PolicyInfo::of(fixed);
        super::check::policy_dir(dir)?;
        let hard = fixed.get(PolicyInfo::LEN).is_some_and(|&hard| hard != 0);
        let if_id = attrs.get(attr::IF_ID).map_or(0, Attr::u32);
        let query = PolicyQuery { id: PolicyId { sel, index, dir }, mark: super::sa::mark(attrs), if_id };
        self.database.find_policy(&query, hard).map(drop)
    }

    fn flush_policy(&mut self, attrs: &Attributes<'_>, reply: &mut Reply<'_>) -> Result<(), Error> {
        super::check::policy_type(attrs)?;
        if self.database.flush_policies()? {
            reply.notify(group::POLICY, msg::FLUSH_POLICY, 0, |w| w.put(attr::POLICY_TYPE, &[0; 6]));
        }
        Ok(())
    }

    fn sad_info(&mut self, fixed: &[u8], reply: &mut Reply<'_>) -> Result<(), Error> {
        let count = self.database.count_sas()?;
        reply.send(msg::NEW_SAD_INFO, 0, |w| {
            w.fixed(fixed);
            w.put_u32(attr::SAD_CNT, count);
            // The number of buckets that Linux would have.
            let buckets = count.clamp(8, HASH_MAX).next_power_of_two();
            w.put(attr::SAD_HINFO, &[buckets.to_ne_bytes(), HASH_MAX.to_ne_bytes()].concat());
        });
        Ok(())
    }

    fn spd_info(&mut self, fixed: &[u8], reply: &mut Reply<'_>) -> Result<(), Error> {
        let [incoming, outgoing, forwarded] = self.database.count_policies()?;
        reply.send(msg::NEW_SPD_INFO, 0, |w| {
            w.fixed(fixed);
            let counts: Vec<u8> =
                [incoming, outgoing, forwarded, 0, 0, 0].iter().flat_map(|it| it.to_ne_bytes()).collect();
            w.put(attr::SPD_INFO, &counts);
            let most = incoming.max(outgoing).max(forwarded).clamp(8, HASH_MAX).next_power_of_two() - 1;
            w.put(attr::SPD_HINFO, &[most.to_ne_bytes(), HASH_MAX.to_ne_bytes()].concat());
            w.put(attr::SPD_IPV4_HTHRESH, &THRESHOLDS[0]);
            w.put(attr::SPD_IPV6_HTHRESH, &THRESHOLDS[1]);
        });
        Ok(())
    }

    /// `struct xfrm_userpolicy_default`: in, fwd, out.
    fn default_bytes(&mut self) -> Result<[u8; 3], Error> {
        let [incoming, outgoing, forwarded] = self.database.defaults()?;
        Ok([incoming, forwarded, outgoing].map(|block| if block { BLOCK } else { ACCEPT }))
    }

    fn set_default(&mut self, fixed: &[u8], reply: &mut Reply<'_>) -> Result<(), Error> {
        let default_at = |at: usize| match fixed.get(at) {
            Some(&BLOCK) => Some(true),
            Some(&ACCEPT) => Some(false),
            _ => None,
        };
        self.database.set_defaults([default_at(0), default_at(2), default_at(1)])?;
        if reply.has_listeners(group::POLICY) {
            let bytes = self.default_bytes()?;
            reply.notify(group::POLICY, msg::GET_DEFAULT, 0, |w| w.fixed(&bytes));
        }
        Ok(())
    }
}

/// Checks hash thresholds: Linux's defaults are no change (strongSwan may set them), and others are refused.
fn check_thresholds(attrs: &Attributes<'_>) -> Result<(), Error> {
    let families = [
        (attr::SPD_IPV4_HTHRESH, "Invalid hash threshold (must be <= 32 for IPv4)"),
        (attr::SPD_IPV6_HTHRESH, "Invalid hash threshold (must be <= 128 for IPv6)"),
    ];
    let mut other = None;
    for ((kind, text), fixed) in families.into_iter().zip(THRESHOLDS) {
        let Some(attr) = attrs.get(kind) else { continue };
        let Some(bits) = attr.data.first_chunk::<2>() else { continue };
        if bits.iter().zip(fixed).any(|(&bits, most)| bits > most) {
            return Err(Error::text(errno::EINVAL, text));
        }
        if *bits != fixed {
            other = other.or(Some(attr.offset));
        }
    }
    let refuse = |at| Error::unsupported("hthresh: fatpath hashes policies of all prefix lengths").at(at);
    other.map_or(Ok(()), |at| Err(refuse(at)))
}

/// The payload of `NEWAE` (Linux `build_aevent`).
pub(super) fn write_ae(w: &mut Writer, sa: &Sa, flags: u32) {
    let mut bytes = sa.id().to_bytes();
    bytes.extend(sa.info.saddr.0);
    bytes.extend(flags.to_ne_bytes());
    bytes.extend(sa.info.reqid.to_ne_bytes());
    w.fixed(&bytes);
    sa.write_replay(w);
    sa.info.curlft.put(w, attr::LTIME_VAL);
    if flags & ae_flag::REPLAY_THRESH != 0 {
        w.put_u32(attr::REPLAY_THRESH, sa.replay_thresh);
    }
    if flags & ae_flag::ETIMER_THRESH != 0 {
        w.put_u32(attr::ETIMER_THRESH, sa.etimer_thresh);
    }
    super::sa::put_mark(w, sa.mark);
    if sa.if_id != 0 {
        w.put_u32(attr::IF_ID, sa.if_id);
    }
    if sa.dir != 0 {
        w.put_u8(attr::SA_DIR, sa.dir);
    }
    super::sa::put_cpu(w, sa.cpu);
}

/// Key of the SA in `struct xfrm_aevent_id`.
fn ae_query(fixed: &[u8], attrs: &Attributes<'_>) -> SaQuery {
    let SaId { daddr, spi, family, proto } = SaId::of(fixed);
    SaQuery { daddr, spi: Ok(spi), family, proto, mark: super::sa::mark(attrs) }
}
