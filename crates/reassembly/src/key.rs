//! What the fragments of one datagram have in common, and those of one source.

use std::hash::{Hash, Hasher};
use std::net::{IpAddr, Ipv6Addr};

use base::LinkId;
use packet::{Packet, SecPath};
use wire::ip::Info;
use wire::{FragInfo, Protocol};

use crate::lowpan::LowpanInfo;
use crate::user::Asker;

/// What the fragments of one datagram have in common (RFC 791 §3.2, RFC 8200 §4.5, RFC 4944 §5.3).
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Key {
    /// Source and destination, as numbers.
    src: u128,
    dst: u128,
    space: Space,
    /// IPv4 counts identifications by protocol. In IPv6 the next header of later fragments is ignored.
    protocol: Protocol,
    /// The identification; 6LoWPAN's tag, and above it the datagram's size.
    id: u32,
    /// Where a group or a link-local address means something: on one link.
    link: LinkId,
    asker: Asker,
    /// What the fragments were protected by.
    sec_path: SecPath,
}

/// What the addresses are of.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Space {
    V4,
    V6,
    Link,
}

/// Whose memory a fragment is charged to: an IPv4 address, an IPv6 subnet, a station. Whoever has one address of an IPv6
/// subnet can have them all.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) struct SourceKey(u128);

impl Key {
    /// The key of a fragment whose headers are `info`.
    pub(crate) fn ip(asker: Asker, pkt: &Packet, info: &Info, fragment: FragInfo) -> Self {
        Self::of(asker, (pkt.meta.link, &pkt.meta.sec_path), info, fragment)
    }

    /// The key of fragments that came in by `link`, and through these SAs.
    pub(crate) fn of(asker: Asker, (from, sec_path): (LinkId, &SecPath), info: &Info, fragment: FragInfo) -> Self {
        let no_link = LinkId::NONE;
        let (src, dst, space, protocol, link) = match (info.src, info.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                (src.to_bits().into(), dst.to_bits().into(), Space::V4, info.protocol, no_link)
            }
            (src, dst) => {
                let [src, dst] = [src, dst].map(to_v6);
                let on_link = dst.is_multicast() || dst.is_unicast_link_local();
                let link = if on_link { from } else { no_link };
                (src.to_bits(), dst.to_bits(), Space::V6, Protocol::FRAGMENT, link)
            }
        };
        Self { src, dst, space, protocol, id: fragment.id, link, asker, sec_path: sec_path.clone() }
    }

    /// The key of a 6LoWPAN fragment, which means something on its link alone.
    pub(crate) fn lowpan(link: LinkId, info: &LowpanInfo) -> Self {
        Self {
            src: info.src.to_bits(),
            dst: info.dst.to_bits(),
            space: Space::Link,
            protocol: Protocol::FRAGMENT,
            id: u32::from(info.size) << 16 | u32::from(info.tag),
            link,
            asker: Asker::LOCAL,
            sec_path: SecPath::new(),
        }
    }

    /// Who asked.
    pub(crate) fn asker(&self) -> Asker {
        self.asker
    }

    /// Who is charged.
    pub(crate) fn source(&self) -> SourceKey {
        SourceKey(match self.space {
            Space::V6 => self.src >> 64,
            Space::V4 | Space::Link => self.src,
        })
    }
}

impl Hash for Key {
    /// In one write. What differs in the rest alone is told by comparing.
    fn hash<H: Hasher>(&self, state: &mut H) {
        let mut bytes = [0_u8; 48];
        bytes[..16].copy_from_slice(&self.src.to_ne_bytes());
        bytes[16..32].copy_from_slice(&self.dst.to_ne_bytes());
        bytes[32..36].copy_from_slice(&self.id.to_ne_bytes());
        bytes[36..40].copy_from_slice(&self.link.0.to_ne_bytes());
        bytes[40..44].copy_from_slice(&self.asker.domain.0.to_ne_bytes());
        bytes[44..].copy_from_slice(&(u32::from(self.protocol.0) << 24 | self.asker.user.to_bits()).to_ne_bytes());
        state.write(&bytes);
        if !self.sec_path.is_empty() {
            self.sec_path.hash(state);
        }
    }
}

/// An address as one of IPv6.
const fn to_v6(addr: IpAddr) -> Ipv6Addr {
    match addr {
        IpAddr::V4(addr) => addr.to_ipv6_mapped(),
        IpAddr::V6(addr) => addr,
    }
}
