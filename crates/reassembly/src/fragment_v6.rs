//! IPv6 fragmentation at the source, by reference.

use base::DropReason;
use packet::{Csum, Cut, Memory, Packet};
use wire::ipv6::{self, Ipv6};
use wire::{FragInfo, FragOffset, Malformed, Protocol, frag};

use crate::fragment::{BLOCK, Cuts, behind};
use crate::fragment_meta::upper_len;

/// Fragments `packet`, which starts with its IPv6 header, into fragments of at most `mtu` bytes with the identification
/// `id`. Only the source node may do so (RFC 8200 §4.5), with an identification that it has not used recently for that
/// destination (RFC 7739). A packet that fits is passed unchanged.
///
/// A packet with children is cut at their boundaries, if these give valid fragments (as the fast path of Linux's
/// `ip6_fragment` does).
///
/// The headers that routers read, up to and including a routing header, are repeated in each fragment. Payload is not
/// copied: fragments refer to it.
///
/// # Errors
/// The packet is dropped: it is fat or a fragment already, its checksum is partial, its headers are malformed or do not
/// all fit the first fragment (RFC 7112), or no memory is free. Fragments made until then are not in `out`.
pub fn fragment_v6(
    mem: &Memory,
    mut packet: Packet,
    mtu: usize,
    id: u32,
    out: &mut Vec<Packet>,
) -> Result<(), DropReason> {
    if packet.len() <= mtu {
        out.push(packet);
        return Ok(());
    }
    if packet.meta.cut != Cut::Whole || matches!(packet.meta.csum, Csum::Partial { .. }) {
        return Err(DropReason::CannotSegment);
    }
    let view = Ipv6::parse_head(packet.head(), packet.len())?;
    let (chain, total_len) = (view.chain()?, view.total_len());
    let place = chain.per_fragment_end;
    let mut headers = packet.head().get(..place.offset).ok_or(Malformed::Ipv6Extension)?.to_vec();
    let named = headers.get_mut(place.next_header_at).ok_or(Malformed::Ipv6Extension)?;
    let next_header = std::mem::replace(named, Protocol::FRAGMENT.0);
    let next_header = Protocol(next_header);
    let room = mtu.saturating_sub(place.offset + frag::FragHeader::LEN);
    let headers_end = chain.offset + upper_len(chain.protocol);
    packet.trim(total_len);
    let mut cuts = Cuts::of(&packet, place.offset, room);
    let first = cuts.clone().next(packet.len().saturating_sub(place.offset));
    if chain.fragment.is_some() || room < BLOCK || headers_end.min(total_len) > place.offset + first {
        return Err(DropReason::CannotSegment);
    }
    if packet.len() <= mtu {
        out.push(packet);
        return Ok(());
    }
    headers.resize(place.offset + frag::FragHeader::LEN, 0);
    packet.pull(place.offset);
    let made_before = out.len();
    let mut at = 0;
    while !packet.is_empty() {
        let here = cuts.next(packet.len());
        let more = here < packet.len();
        let made = FragOffset::from_bytes(at).ok_or(DropReason::CannotSegment).and_then(|offset| {
            let payload_len = headers.len() - ipv6::Ipv6Header::LEN + here;
            let payload_len = u16::try_from(payload_len).map_err(|_| DropReason::CannotSegment)?;
            ipv6::Ipv6Header::mut_from(&mut headers)?.set_payload_len(payload_len);
            frag::FragHeader::new(next_header, FragInfo { offset, more, id }).write(&mut headers[place.offset..])?;
            behind(mem, &headers, &mut packet, here)
        });
        match made {
            Ok(fragment) => out.push(fragment),
            Err(reason) => {
                out.truncate(made_before);
                return Err(reason);
            }
        }
        //= RFC 5722 §4 no-overlaps-made: fragments that this node makes do not overlap
        at += here;
    }
    Ok(())
}
