//! Keys of datagrams and of their sources.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use base::{Domain, PortId};
use packet::{Packet, SecPath};
use wire::ip::Info;
use wire::{FragInfo, Protocol};

use crate::secret::Secret;
use crate::slab_map::Hashed;
use crate::user::ReassemblyContext;

/// Key of a datagram: the common fields of its fragments (RFC 791 §3.2, RFC 8200 §4.5).
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Key {
    /// Source and destination, as numbers.
    src: u128,
    dst: u128,
    space: Space,
    /// Protocol in IPv4, where identifications are per protocol; 0 in IPv6, where the next header of later fragments is
    /// ignored.
    protocol: u8,
    /// The identification.
    id: u32,
    /// Link of a multicast or link-local destination.
    link: Option<PortId>,
    context: ReassemblyContext,
    /// SAs that the fragments passed.
    sec_path: SecPath,
}

/// Address space.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum Space {
    #[default]
    V4,
    V6,
}

/// Key of the source that memory is charged to: an IPv4 address, or an IPv6 subnet, since a single host can use all
/// addresses of its subnet. Equal addresses in two VRFs are two sources (Linux's `inetpeer_addr`).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct SourceKey {
    addr: u128,
    domain: Domain,
}

impl Key {
    /// The key of a fragment whose headers are `info`.
    pub(crate) fn ip(context: ReassemblyContext, pkt: &Packet, info: &Info, fragment: FragInfo) -> Self {
        let key = match (info.src, info.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                Self::v4(context, [src, dst].map(Ipv4Addr::to_bits), info.protocol, fragment.id)
            }
            (src, dst) => {
                let addresses = [src, dst].map(|addr| to_v6(addr).to_bits());
                Self::v6(context, addresses, pkt.meta.origin.port(), fragment.id)
            }
        };
        Self { sec_path: pkt.meta.sec_path.clone(), ..key }
    }

    /// The key of IPv4 fragments that passed no SA.
    #[inline(always)]
    pub(crate) fn v4(context: ReassemblyContext, addresses: [u32; 2], protocol: Protocol, id: u32) -> Self {
        let [src, dst] = addresses.map(u128::from);
        Self { src, dst, space: Space::V4, protocol: protocol.0, id, link: None, context, sec_path: SecPath::new() }
    }

    /// The key of IPv6 fragments that arrived on `link` and passed no SA.
    #[inline(always)]
    pub(crate) fn v6(context: ReassemblyContext, [src, dst]: [u128; 2], link: Option<PortId>, id: u32) -> Self {
        let addr = Ipv6Addr::from_bits(dst);
        let link = link.filter(|_| addr.is_multicast() || addr.is_unicast_link_local());
        //= RFC 8200 §4.5 same-datagram: fragments of equal source, destination and identification are one datagram;
        //=   the next header of later fragments is ignored
        Self { src, dst, space: Space::V6, protocol: 0, id, link, context, sec_path: SecPath::new() }
    }

    /// The source to which memory is charged.
    pub(crate) fn source(&self) -> SourceKey {
        let addr = match self.space {
            Space::V6 => self.src >> 64,
            Space::V4 => self.src,
        };
        SourceKey { addr, domain: self.context.domain }
    }
}

impl Hashed for Key {
    /// Hash of the key. Not all fields are hashed; equality compares all of them.
    #[inline(always)]
    fn hash(&self, secret: &Secret) -> u32 {
        let (src, dst) = (halves(self.src), halves(self.dst));
        let id = u64::from(self.id) << 32 | u64::from(self.link.map_or(0, |link| link.0));
        let user = u64::from(self.protocol) << 24 | self.context.user as u64;
        let context = u64::from(self.context.domain.number()) << 32 | user;
        if self.sec_path.is_empty() {
            return secret.hash(&[src[0], src[1], dst[0], dst[1], id, context]);
        }
        let sa = |at: usize| self.sec_path.get(at).map_or(0, |id| u64::from(id.0));
        let path = |at: usize| sa(at) << 32 | sa(at + 1);
        secret.hash(&[
            src[0],
            src[1],
            dst[0],
            dst[1],
            id,
            context,
            path(0),
            path(2),
            path(4),
            self.sec_path.len() as u64,
        ])
    }
}

impl Hashed for SourceKey {
    #[inline(always)]
    fn hash(&self, secret: &Secret) -> u32 {
        let [low, high] = halves(self.addr);
        secret.hash(&[low, high, self.domain.number().into()])
    }
}

#[inline(always)]
const fn halves(addr: u128) -> [u64; 2] {
    [addr as u64, (addr >> 64) as u64]
}

/// An address as an IPv6 address.
const fn to_v6(addr: IpAddr) -> Ipv6Addr {
    match addr {
        IpAddr::V4(addr) => addr.to_ipv6_mapped(),
        IpAddr::V6(addr) => addr,
    }
}
