//! Events of SAs and policies without a request (Linux `build_acquire`, `build_expire`, `build_polexpire`,
//! `build_mapping`, `build_aevent`).

use std::net::SocketAddr;

use super::layout::{Addr, Layout, PolicyInfo, SaId, SaInfo, Selector, family_of};
use super::nums::{ae_flag, attr, group, msg, proto};
use super::policy::Policy;
use super::protocol::write_ae;
use super::sa::{Sa, put_mark};
use crate::message::Writer;
use crate::session::{Groups, Outbox};
use xfrm::Mark;

/// Something that has happened.
#[derive(Clone, Debug)]
pub enum Event {
    /// A packet needs an SA.
    Acquire(Acquire),
    /// An SA is about to end, or has.
    Expire {
        /// The SA.
        info: SaInfo,
        /// Mark.
        mark: Mark,
        /// The number of its XFRM interface.
        if_id: u32,
        /// 1 for in, 2 for out, 0 for either.
        dir: u8,
        /// It has.
        hard: bool,
    },
    /// A policy is about to end, or has.
    PolicyExpire {
        /// The policy.
        policy: Policy,
        /// It has.
        hard: bool,
    },
    /// A peer sends from elsewhere.
    Mapping {
        /// The SA that it sends by.
        id: SaId,
        /// `reqid`.
        reqid: u32,
        /// Former place of the peer.
        old: SocketAddr,
        /// New place of the peer.
        new: SocketAddr,
    },
    /// An SA's numbers have changed.
    Numbers {
        /// The SA.
        sa: Box<Sa>,
        /// Time has passed since they were told of; else there were as many packets.
        by_time: bool,
    },
}

/// The SA that a packet needs.
#[derive(Clone, Debug)]
pub struct Acquire {
    /// Number by which it is answered.
    pub seq: u32,
    /// The SA's destination.
    pub daddr: Addr,
    /// The SPI that the template wants; 0 for any.
    pub spi: u32,
    /// The SA's source.
    pub saddr: Addr,
    /// The packet.
    pub sel: Selector,
    /// The policy that asks for it, with the template that does.
    pub policy: Policy,
}

impl Event {
    /// The group that is told.
    pub const fn group(&self) -> u32 {
        match self {
            Self::Acquire(_) => group::ACQUIRE,
            Self::Expire { .. } | Self::PolicyExpire { .. } => group::EXPIRE,
            Self::Mapping { .. } => group::MAPPING,
            Self::Numbers { .. } => group::AEVENTS,
        }
    }

    /// Notifies the listeners.
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
            Self::Expire { info, mark, if_id, dir, hard } => {
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
        let Self { seq, daddr, spi, saddr, sel, policy } = self;
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
    }
}

/// The name of an SA.
pub fn sa_id(dst: std::net::IpAddr, spi: u32) -> SaId {
    SaId { daddr: dst.into(), spi, family: family_of(dst), proto: proto::ESP }
}
