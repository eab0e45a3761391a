//! Headers of a reassembled datagram (Linux's `ip_frag_reasm`, `ip6_frag_reasm`).

use base::DropReason;
use packet::{Csum, Memory, Packet};
use wire::{FragOffset, checksum, frag, ipv4, ipv6};

/// Turns the header of a first fragment into that of the complete datagram: total length, TOS and DF. `header_len`
/// includes the options.
///
/// # Errors
/// No memory for a copy of a shared header.
pub(crate) fn v4(
    mem: &Memory,
    pkt: &mut Packet,
    header_len: usize,
    total_len: u16,
    tos: u8,
    dont_fragment: bool,
) -> Result<(), DropReason> {
    rewrite(mem, pkt, header_len, |header| {
        let place = ipv4::Ipv4Header::mut_from(header)?;
        // Written at once: a checksum over recent smaller stores would stall.
        let mut fields = *place;
        fields.set_total_len(total_len);
        fields.set_tos(tos);
        fields.set_fragment(FragOffset::ZERO, false);
        fields.set_dont_fragment(dont_fragment);
        if header_len == ipv4::Ipv4Header::LEN {
            fields.fill_check();
            *place = fields;
            return Ok(());
        }
        *place = fields;
        Ok(ipv4::fill_check(header)?)
    })
}

/// Removes the fragment header, which ends at `header_len` and is named by the byte at `next_header_at`, from a first
/// or atomic fragment, and sets payload length and traffic class.
///
/// # Errors
/// No memory for a copy of a shared header.
pub(crate) fn v6(
    mem: &Memory,
    pkt: &mut Packet,
    (header_len, next_header_at): (usize, usize),
    payload_len: u16,
    tos: u8,
) -> Result<(), DropReason> {
    let before = header_len.checked_sub(frag::FragHeader::LEN).ok_or(DropReason::Ipv6Header)?;
    rewrite(mem, pkt, header_len, |headers| {
        let next_header = frag::FragHeader::ref_from(&headers[before..])?.next_header();
        *headers.get_mut(next_header_at).ok_or(DropReason::Ipv6Header)? = next_header.0;
        headers.copy_within(..before, frag::FragHeader::LEN);
        let fields = ipv6::Ipv6Header::mut_from(&mut headers[frag::FragHeader::LEN..])?;
        fields.set_payload_len(payload_len);
        fields.set_traffic_class(tos);
        Ok(())
    })?;
    pkt.pull(frag::FragHeader::LEN);
    Ok(())
}

/// Changes the first `len` bytes, which lie in the head, and updates the packet's sum.
fn rewrite(
    mem: &Memory,
    pkt: &mut Packet,
    len: usize,
    change: impl FnOnce(&mut [u8]) -> Result<(), DropReason>,
) -> Result<(), DropReason> {
    let csum = pkt.meta.csum;
    let bytes = pkt.writable_head(mem)?.get_mut(..len).ok_or(DropReason::IpTruncated)?;
    let Csum::Complete(sum) = csum else { return change(bytes) };
    let before = checksum::sum(bytes);
    change(bytes)?;
    let diff = checksum::sub(checksum::sum(bytes), before);
    pkt.meta.csum = Csum::Complete(checksum::fold(checksum::add(sum.into(), diff)));
    Ok(())
}
