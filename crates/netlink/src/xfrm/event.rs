//! Notifications of SAs and policies that no request causes (Linux `build_acquire`, `build_expire`, `build_polexpire`,
//! `build_mapping`, `build_aevent`).

use std::net::SocketAddr;

use super::layout::{Addr, Layout, PolicyInfo, SaId, SaInfo, Selector, family_of};
use super::nums::{ae_flag, attr, group, msg, proto};
use super::policy::Policy;
use super::protocol::write_ae;
use super::sa::{Sa, put_cpu, put_mark};
use crate::message::Writer;
use crate::session::{Groups, Outbox};
use xfrm::Mark;

/// Event of the database.
#[derive(Clone, Debug)]
pub enum Event {
    /// A packet needs an SA.
    Acquire(Acquire),
    /// The soft or hard lifetime of an SA has expired.
    Expire {
        /// The SA.
        info: SaInfo,
        /// Mark.
        mark: Mark,
        /// Number of the SA's XFRM interface.
        if_id: u32,
        /// 1 for in, 2 for out, 0 for either.
        dir: u8,
        /// Number of the CPU whose packets the SA was for; `None` for all.
        cpu: Option<u32>,
        /// Whether the hard lifetime has expired.
        hard: bool,
    },
    /// The soft or hard lifetime of a policy has expired.
    PolicyExpire {
        /// The policy.
        policy: Policy,
        /// Whether the hard lifetime has expired.
        hard: bool,
    },
    /// A peer's address or port has changed.
    Mapping {
        /// The inbound SA.
        id: SaId,
        /// `reqid`.
        reqid: u32,
        /// Former address of the peer.
        old: SocketAddr,
        /// New address of the peer.
        new: SocketAddr,
    },
    /// Sequence numbers of an SA have changed.
    Numbers {
        /// The SA.
        sa: Box<Sa>,
        /// Whether the timer has expired (`XFRM_AE_CE`); false if the packet threshold was reached (`XFRM_AE_CR`).
        by_time: bool,
    },
}

/// Request for an SA that a packet needs.
#[derive(Clone, Debug)]
pub struct Acquire {
    /// Sequence number that the reply quotes.
    pub seq: u32,
    /// The SA's destination.
    pub daddr: Addr,
    /// SPI of the template; 0 for any.
    pub spi: u32,
    /// The SA's source.
    pub saddr: Addr,
    /// Selector of the packet.
    pub sel: Selector,
    /// The policy, with the template that requires the SA.
    pub policy: Policy,
    /// Number of the CPU whose packets need the SA; `None` for all.
    pub cpu: Option<u32>,
}

impl Event {
    /// Group of the notification.
    pub const fn group(&self) -> u32 {
        match self {
            Self::Acquire(_) => group::ACQUIRE,
            Self::Expire { .. } | Self::PolicyExpire { .. } => group::EXPIRE,
            Self::Mapping { .. } => group::MAPPING,
            Self::Numbers { .. } => group::AEVENTS,
        }
    }

    /// Sends the notification to the members of the group.
    pub fn announce(&self, listeners: Groups, outbox: &mut Outbox) {
        let kind = match self {
            Self::Acquire(_) => msg::ACQUIRE,
            Self::Expire { .. } => msg::EXPIRE,
            Self::PolicyExpire { .. } => msg::POL_EXPIRE,
            Self::Mapping { .. } => msg::MAPPING,
            Self::Numbers { .. } => msg::NEW_AE,
        };
        outbox.announce(listeners, self.group(), kind, |w| self.write(w));
    }

    fn write(&self, w: &mut Writer) {
        match self {
            Self::Acquire(it) => it.write(w),
            Self::Expire { info, mark, if_id, dir, cpu, hard } => {
                let mut bytes = info.to_bytes();
                bytes.extend([u8::from(*hard), 0, 0, 0, 0, 0, 0, 0]);
                w.fixed(&bytes);
                put_mark(w, *mark);
                if *if_id != 0 {
                    w.put_u32(attr::IF_ID, *if_id);
                }
                if *dir != 0 {
                    w.put_u8(attr::SA_DIR, *dir);
                }
                put_cpu(w, *cpu);
            }
            Self::PolicyExpire { policy, hard } => {
                let mut bytes = policy.info.to_bytes();
                bytes.extend([u8::from(*hard), 0, 0, 0, 0, 0, 0, 0]);
                w.fixed(&bytes);
                policy.write_attributes(w);
            }
            Self::Mapping { id, reqid, old, new } => {
                let mut bytes = id.to_bytes();
                bytes.extend(reqid.to_ne_bytes());
                bytes.extend(Addr::from(old.ip()).0);
                bytes.extend(Addr::from(new.ip()).0);
                bytes.extend(old.port().to_be_bytes());
                bytes.extend(new.port().to_be_bytes());
                w.fixed(&bytes);
            }
            Self::Numbers { sa, by_time } => {
                write_ae(w, sa, if *by_time { ae_flag::TIMEOUT } else { ae_flag::REACHED });
            }
        }
    }
}

impl Acquire {
    fn write(&self, w: &mut Writer) {
        let Self { seq, daddr, spi, saddr, sel, policy, cpu } = self;
        let mut bytes = daddr.0.to_vec();
        bytes.extend(spi.to_be_bytes());
        bytes.extend([proto::ESP, 0, 0, 0]);
        bytes.extend(saddr.0);
        sel.write(&mut bytes);
        PolicyInfo { curlft: Default::default(), ..policy.info }.write(&mut bytes);
        let algos = policy.templates.first().map_or([u32::MAX; 3], |template| template.algos);
        algos.iter().chain([seq]).for_each(|word| bytes.extend(word.to_ne_bytes()));
        w.fixed(&bytes);
        policy.write_attributes(w);
        put_cpu(w, *cpu);
    }
}

/// Key of an SA.
pub fn sa_id(dst: std::net::IpAddr, spi: u32) -> SaId {
    SaId { daddr: dst.into(), spi, family: family_of(dst), proto: proto::ESP }
}
