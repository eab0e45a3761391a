//! Refragmentation of a datagram that was reassembled in transit (Linux's `ip_fragment` and `ip6_fragment` with a
//! `frag_max_size`).

use base::DropReason;
use packet::{Memory, Packet};
use wire::ipv4::Ipv4;
use wire::{Version, ipv6};

use crate::fragment::cut;
use crate::fragment_v6::cut_v6;

/// Fragments a packet that was reassembled from fragments of at most `max_size` bytes, on a node that is not its
/// destination, as [`Verdict::Whole`](crate::Verdict::Whole) returns it; IPv6 fragments get the identification `id`.
/// The original fragments are restored if the packet's children are unchanged; no fragment is larger than the largest
/// original one, so the sender's path MTU discovery gets the same results as without this node (RFC 8201). A packet
/// that was not a fragment (`max_size` 0) is passed unchanged.
///
/// # Errors
/// The packet is dropped as in [`fragment`](crate::fragment()) and [`fragment_v6`](crate::fragment_v6()); and with
/// [`DropReason::PacketTooBig`], which the caller reports to the sender with `mtu`, if the largest fragment exceeded
/// `mtu` and DF, or IPv6, forbids routers to fragment the packet.
pub fn refragment(
    mem: &Memory,
    packet: Packet,
    max_size: usize,
    mtu: usize,
    id: u32,
    out: &mut Vec<Packet>,
) -> Result<(), DropReason> {
    if max_size == 0 {
        out.push(packet);
        return Ok(());
    }
    match Version::of(packet.head())? {
        Version::V4 => {
            let dont_fragment = Ipv4::parse_head(packet.head(), packet.len())?.header().dont_fragment();
            if dont_fragment && max_size > mtu {
                return Err(DropReason::PacketTooBig);
            }
            cut(mem, packet, mtu.min(max_size), out)
        }
        Version::V6 if max_size > mtu => Err(DropReason::PacketTooBig),
        // An atomic fragment is not restored (RFC 8021).
        Version::V6 if packet.len() <= max_size => {
            out.push(packet);
            Ok(())
        }
        Version::V6 => cut_v6(mem, packet, max_size.max(ipv6::MIN_MTU), id, out),
    }
}
