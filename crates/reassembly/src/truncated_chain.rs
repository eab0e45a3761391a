//! IPv6 fragments with a truncated header chain, which have no summary but cause an ICMPv6 error.

use std::net::IpAddr;

use base::DropReason;
use packet::{Memory, Packet};
use wire::ip::Info;
use wire::{Protocol, ext, frag, icmpv6, ipv6};

/// A fragment that is dropped for its headers and reported with an ICMPv6 parameter problem.
#[derive(Clone, Copy, Debug)]
pub struct TruncatedChain {
    /// The part of a summary that an error message needs.
    pub info: Info,
    /// Reason.
    pub reason: DropReason,
    /// The message's code.
    pub code: icmpv6::Problem,
    /// The message's pointer, in bytes from the front of the packet.
    pub pointer: usize,
}

impl TruncatedChain {
    /// Finds the fault of an IPv6 packet that [`Info::parse`] refused, if the fault concerns the fragment header: the
    /// header is missing in an empty payload (Linux reports the offset where it should be), or the packet is a first
    /// fragment with an incomplete header chain (RFC 7112 §5).
    ///
    /// A caller that counts the packet as `Ip6InHdrErrors` counts it as `Ip6ReasmReqds` too, if the packet is for this
    /// node.
    pub fn find(mem: &Memory, pkt: &mut Packet) -> Option<Self> {
        pull(mem, pkt, ipv6::Ipv6Header::LEN)?;
        let header = *ipv6::Ipv6Header::ref_from(pkt.head()).ok()?;
        let end = ipv6::Ipv6Header::LEN + header.payload_len();
        if header.version() != 6 || end > pkt.len() {
            return None;
        }
        let mut info = Info {
            src: IpAddr::V6(header.src()),
            dst: IpAddr::V6(header.dst()),
            protocol: header.next_header(),
            ttl: header.hop_limit(),
            tos: header.traffic_class(),
            dont_fragment: true,
            plain: false,
            header_len: ipv6::Ipv6Header::LEN,
            next_header_at: ipv6::NEXT_HEADER_AT,
            total_len: end,
            fragment: None,
            id: 0,
            flow_label: header.flow_label(),
        };
        for _ in 0..=ipv6::MAX_EXTENSIONS {
            let at = info.header_len;
            let is_fragment = info.protocol == Protocol::FRAGMENT && info.fragment.is_none();
            if !is_fragment && !matches!(info.protocol, Protocol::HOP_BY_HOP | Protocol::ROUTING | Protocol::DEST_OPTS)
            {
                return None;
            }
            // Each of these headers has at least eight bytes.
            let len = if at + frag::FragHeader::LEN > end {
                None
            } else {
                pull(mem, pkt, at + frag::FragHeader::LEN)?;
                let bytes = pkt.head().get(at..)?;
                let len = if is_fragment {
                    info.fragment = Some(frag::FragHeader::ref_from(bytes).ok()?.info());
                    frag::FragHeader::LEN
                } else {
                    ext::ExtHeader::ref_from(bytes).ok()?.header_len()
                };
                info.protocol = ext::ExtHeader::ref_from(bytes).ok()?.next_header();
                (at + len <= end).then_some(len)
            };
            match (len, info.fragment) {
                (Some(_), Some(fragment)) if !fragment.is_first() => return None,
                (Some(len), _) => (info.next_header_at, info.header_len) = (at, at + len),
                (None, None) if is_fragment => {
                    let (reason, code) = (DropReason::Ipv6Header, icmpv6::Problem::FIELD);
                    return Some(Self { info, reason, code, pointer: at });
                }
                //= RFC 8200 §4.5 header-chain
                (None, Some(fragment)) if fragment.more => {
                    let (reason, code) = (DropReason::FragmentHeaderChain, icmpv6::Problem::HEADER_CHAIN);
                    return Some(Self { info, reason, code, pointer: 0 });
                }
                (None, _) => return None,
            }
        }
        None
    }
}

/// Pulls the first `len` bytes into the head, if the packet is long enough and memory is free.
fn pull(mem: &Memory, pkt: &mut Packet, len: usize) -> Option<()> {
    pkt.may_pull(mem, len).ok()?.then_some(())
}
