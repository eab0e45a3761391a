//! What the fragments of one datagram have in common, and those of one source.

use std::hash::{Hash, Hasher};
use std::net::IpAddr;

use base::LinkId;
use packet::{Packet, SecPath};
use wire::ip::Info;
use wire::{FragInfo, Protocol};

use crate::lowpan::{LinkAddr, LowpanInfo};
use crate::user::Asker;

/// What the fragments of one datagram have in common (RFC 791 §3.2, RFC 8200 §4.5, RFC 4944 §5.3).
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Key {
    ends: Ends,
    /// The identification; 6LoWPAN's tag, and above it the datagram's size.
    id: u32,
    /// IPv4 counts identifications by protocol. In IPv6 the next header of later fragments is ignored.
    protocol: Protocol,
    asker: Asker,
    /// Where a group or a link-local address means something: on one link.
    link: LinkId,
    /// What the fragments were protected by.
    sec_path: SecPath,
}

/// Source and destination.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Ends {
    Ip(IpAddr, IpAddr),
    Link(LinkAddr, LinkAddr),
}

/// Whose memory a fragment is charged to: an IPv4 address, an IPv6 subnet, a station. Whoever has one address of an IPv6
/// subnet can have them all.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) struct SourceKey(u128);

impl Key {
    /// The key of a fragment whose headers are `info`.
    pub(crate) fn ip(asker: Asker, pkt: &Packet, info: &Info, fragment: FragInfo) -> Self {
        let (protocol, on_link) = match info.dst {
            IpAddr::V4(_) => (info.protocol, false),
            IpAddr::V6(dst) => (Protocol::FRAGMENT, dst.is_multicast() || dst.is_unicast_link_local()),
        };
        let link = if on_link { pkt.meta.link } else { LinkId::NONE };
        let ends = Ends::Ip(info.src, info.dst);
        Self { ends, id: fragment.id, protocol, asker, link, sec_path: pkt.meta.sec_path.clone() }
    }

    /// The key of a 6LoWPAN fragment, which means something on its link alone.
    pub(crate) fn lowpan(link: LinkId, info: &LowpanInfo) -> Self {
        Self {
            ends: Ends::Link(info.src, info.dst),
            id: u32::from(info.size) << 16 | u32::from(info.tag),
            protocol: Protocol::FRAGMENT,
            asker: Asker::LOCAL,
            link,
            sec_path: SecPath::new(),
        }
    }

    /// Who asked.
    pub(crate) fn asker(&self) -> Asker {
        self.asker
    }

    /// Who is charged.
    pub(crate) fn source(&self) -> SourceKey {
        SourceKey(match self.ends {
            Ends::Ip(IpAddr::V4(src), _) => src.to_bits().into(),
            Ends::Ip(IpAddr::V6(src), _) => src.to_bits() >> 64,
            Ends::Link(src, _) => src.to_bits(),
        })
    }
}

impl Hash for Key {
    /// In few and wide writes: what differs in the rest is told by comparing.
    fn hash<H: Hasher>(&self, state: &mut H) {
        match self.ends {
            Ends::Ip(IpAddr::V4(src), IpAddr::V4(dst)) => {
                state.write_u64(u64::from(src.to_bits()) << 32 | u64::from(dst.to_bits()));
            }
            Ends::Ip(src, dst) => (src, dst).hash(state),
            Ends::Link(src, dst) => {
                state.write_u128(src.to_bits());
                state.write_u128(dst.to_bits());
            }
        }
        state.write_u64(u64::from(self.id) << 32 | u64::from(self.protocol.0) << 24);
        self.asker.hash(state);
        state.write_u32(self.link.0);
        self.sec_path.hash(state);
    }
}
