//! Fragmenting again what was put together on its way (Linux's `ip_fragment` and `ip6_fragment` with a
//! `frag_max_size`).

use base::DropReason;
use packet::{Memory, Packet};
use wire::ipv4::Ipv4;
use wire::{Version, ipv6};

use crate::fragment::cut;
use crate::fragment_v6::cut_v6;

/// Cuts a packet that was put together from fragments of at most `max_size` bytes, for a node that is not its
/// destination, as [`Verdict::Whole`](crate::Verdict::Whole) has them; IPv6 gets the identification `id`. Where its pieces
/// are what came, they go out as they came; no fragment is larger than the largest that came, so the sender's discovery of
/// the path's MTU sees what it would see without us (RFC 8201). A packet that was no fragment (`max_size` 0) goes out as it
/// is.
///
/// # Errors
/// The packet is dropped as in [`fragment`](crate::fragment) and [`fragment_v6`](crate::fragment_v6); and for
/// [`DropReason::PacketTooBig`], which the caller answers with `mtu`, if the largest fragment was larger than that and
/// its sender, or IPv6, has routers not fragment it.
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
        // An atomic fragment is not made one again (RFC 8021).
        Version::V6 if packet.len() <= max_size => {
            out.push(packet);
            Ok(())
        }
        Version::V6 => cut_v6(mem, packet, max_size.max(ipv6::MIN_MTU), id, out),
    }
}
