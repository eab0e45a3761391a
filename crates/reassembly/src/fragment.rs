//! IPv4 fragmentation by reference: headers are copied, the payload is shared.

use base::DropReason;
use packet::{CopyReason, Csum, Cut, Memory, Packet};
use wire::ipv4::{self, Ipv4};
use wire::{FragOffset, Malformed};

/// Fragments begin at multiples of this many bytes (RFC 791 §3.1).
pub(crate) const BLOCK: usize = 8;

/// Fragments `packet`, which starts with its IPv4 header and may itself be a fragment, into fragments of at most `mtu`
/// bytes. The caller checks that fragmentation is allowed (DF). A packet that fits is passed unchanged. A packet with
/// children is cut at their boundaries, if these give valid fragments (as the fast path of Linux's `ip_do_fragment`
/// does).
///
/// Payload is not copied: fragments refer to it. Options without the copy bit are no-operations in all fragments except
/// the first (Linux's `ip_options_fragment`).
///
/// # Errors
/// The packet is dropped: it is fat, its checksum is partial, its header is malformed or its options leave no room for
/// data, or no memory is free. Fragments made until then are not in `out`.
pub fn fragment(mem: &Memory, mut packet: Packet, mtu: usize, out: &mut Vec<Packet>) -> Result<(), DropReason> {
    if packet.len() <= mtu {
        out.push(packet);
        return Ok(());
    }
    let whole = matches!(packet.meta.cut, Cut::Whole | Cut::Fragment);
    if !whole || matches!(packet.meta.csum, Csum::Partial { .. }) {
        return Err(DropReason::CannotSegment);
    }
    let mut header = [0_u8; 60];
    let (header, first_block, more) = {
        let view = Ipv4::parse_head(packet.head(), packet.len())?;
        let header = header.get_mut(..view.header_len()).ok_or(Malformed::Ipv4HeaderLen)?;
        header.copy_from_slice(&packet.head()[..view.header_len()]);
        (header, view.header().frag_offset().bytes(), view.header().more_fragments())
    };
    let room = mtu.saturating_sub(header.len());
    if room < BLOCK {
        return Err(DropReason::CannotSegment);
    }
    let mut cuts = Cuts::of(&packet, header.len(), room);
    packet.pull(header.len());
    let made_before = out.len();
    let mut offset = first_block;
    while !packet.is_empty() {
        let here = cuts.next(packet.len());
        let is_last = here == packet.len();
        let offset_field = FragOffset::from_bytes(offset).ok_or(DropReason::CannotSegment);
        let fragment = offset_field.and_then(|at| one(mem, header, &mut packet, here, at, more || !is_last));
        match fragment {
            Ok(fragment) => out.push(fragment),
            Err(reason) => {
                out.truncate(made_before);
                return Err(reason);
            }
        }
        if offset == first_block {
            ipv4::blank_uncopied_options(&mut header[ipv4::Ipv4Header::LEN..])?;
        }
        offset += here;
    }
    Ok(())
}

/// Payload lengths of the fragments.
#[derive(Clone, Debug)]
pub(crate) enum Cuts {
    /// Equal, except the last.
    Even(usize),
    /// The lengths of a reassembled packet's children.
    AsTheyCame(std::vec::IntoIter<usize>),
}

impl Cuts {
    /// Lengths that cut the payload behind `header_len` bytes of headers into at most `room` bytes each: at the
    /// boundaries of the children, if each child can be a fragment.
    pub(crate) fn of(packet: &Packet, header_len: usize, room: usize) -> Self {
        let children = packet.frag_list().iter().map(Packet::len);
        let first = packet.len().checked_sub(header_len + children.clone().sum::<usize>());
        let can_begin = |len: usize| len > 0 && len <= room && len.is_multiple_of(BLOCK);
        let last = packet.frag_list().len().checked_sub(1);
        match (first, last) {
            (Some(first), Some(last))
                if can_begin(first)
                    && children.clone().take(last).all(can_begin)
                    && children.clone().skip(last).all(|len| len <= room) =>
            {
                Self::AsTheyCame(std::iter::once(first).chain(children).collect::<Vec<_>>().into_iter())
            }
            _ => Self::Even(room / BLOCK * BLOCK),
        }
    }

    /// Length of the next fragment's payload; `left` bytes remain.
    pub(crate) fn next(&mut self, left: usize) -> usize {
        match self {
            Self::Even(step) => left.min(*step),
            Self::AsTheyCame(lens) => lens.next().unwrap_or(left).min(left),
        }
    }
}

/// One IPv4 fragment with the first `len` bytes of `payload`, which are removed from `payload`.
fn one(
    mem: &Memory,
    header: &mut [u8],
    payload: &mut Packet,
    len: usize,
    offset: FragOffset,
    more: bool,
) -> Result<Packet, DropReason> {
    let total_len = u16::try_from(header.len() + len).map_err(|_| DropReason::CannotSegment)?;
    let fields = ipv4::Ipv4Header::mut_from(header)?;
    fields.set_total_len(total_len);
    fields.set_fragment(offset, more);
    ipv4::fill_check(header)?;
    behind(mem, header, payload, len)
}

/// A fragment of `header` and the first `len` bytes of `payload`, which are removed from `payload`. The bytes are
/// copied if they lie in more buffers than a packet has slots.
pub(crate) fn behind(mem: &Memory, header: &[u8], payload: &mut Packet, len: usize) -> Result<Packet, DropReason> {
    let mut fragment = Packet::new(mem, Memory::HEADROOM, header.len())?;
    fragment.put(header.len()).ok_or(DropReason::NoMemory)?.copy_from_slice(header);
    mem.copied(CopyReason::Fragment, header.len());
    if payload.move_front(len, &mut fragment).is_err() {
        let mut linear = Packet::new(mem, Memory::HEADROOM, header.len() + len)?;
        linear.put(header.len()).ok_or(DropReason::NoMemory)?.copy_from_slice(header);
        payload.read_at(0, linear.put(len).ok_or(DropReason::NoMemory)?);
        payload.pull(len);
        mem.copied(CopyReason::Fragment, len);
        fragment = linear;
    }
    fragment.meta = payload.meta.clone();
    (fragment.meta.cut, fragment.meta.csum) = (Cut::Fragment, Csum::None);
    Ok(fragment)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use packet::geometry;
    use wire::Protocol;

    use super::*;

    /// A packet with `options` and `len` bytes of payload with values that depend on the offset.
    fn datagram(options: &[u8], len: usize) -> Vec<u8> {
        let header_len = 20 + options.len();
        let total = (header_len + len) as u16;
        let mut header = ipv4::Ipv4Header::new(Ipv4Addr::LOCALHOST, Ipv4Addr::BROADCAST, Protocol::UDP, total);
        header.set_header_len(header_len);
        header.set_id(0x1234);
        let mut bytes = vec![0; 20];
        header.write(&mut bytes).unwrap();
        bytes.extend_from_slice(options);
        bytes.extend((0..len).map(|at| (at / 8 % 251) as u8));
        ipv4::fill_check(&mut bytes).unwrap();
        bytes
    }

    /// Offset, more-fragments flag and payload of each fragment; checks their common properties.
    fn taken_apart(fragments: &[Packet], mtu: usize) -> Vec<(usize, bool, Vec<u8>)> {
        let one = |fragment: &Packet| {
            let bytes = fragment.to_vec();
            assert!(bytes.len() <= mtu, "{} bytes over an MTU of {mtu}", bytes.len());
            assert_eq!(fragment.meta.cut, Cut::Fragment);
            let view = Ipv4::parse(&bytes).unwrap();
            assert!(view.check_ok());
            assert_eq!(view.header().id(), 0x1234);
            (view.header().frag_offset().bytes(), view.header().more_fragments(), view.payload().to_vec())
        };
        fragments.iter().map(one).collect()
    }

    #[test]
    fn fragments_in_every_geometry_reassemble() {
        let mem = Memory::heap();
        for (mtu, len) in [(576, 4000), (1500, 1481), (68, 1000), (1500, 65_000), (1499, 3000)] {
            let bytes = datagram(&[], len);
            for (shape, packet) in geometry::all(&mem, &bytes, &[20, 28]) {
                let mut packet = packet;
                packet.may_pull(&mem, 20).unwrap();
                let mut out = Vec::new();
                fragment(&mem, packet, mtu, &mut out).unwrap();
                let parts = taken_apart(&out, mtu);
                let mut joined = vec![];
                for (at, (offset, more, payload)) in parts.iter().enumerate() {
                    assert_eq!((*offset, *more), (joined.len(), at + 1 < parts.len()), "{shape}, fragment {at}");
                    joined.extend_from_slice(payload);
                }
                assert!(joined == bytes[20..], "{shape}: {len} bytes over an MTU of {mtu}");
            }
        }
    }

    #[test]
    fn a_payload_in_one_page_is_not_copied() {
        let mem = Memory::heap();
        let packet = Packet::with_data(&mem, &datagram(&[], 60_000)).unwrap();
        let mut out = Vec::new();
        fragment(&mem, packet, 1500, &mut out).unwrap();
        assert_eq!(out.len(), 41);
        assert_eq!(mem.copies().total_bytes(), 41 * 20);
    }

    #[test]
    fn option_without_copy_bit_is_in_first_fragment_only() {
        let mem = Memory::heap();
        // Record route (7) is not copied, router alert (148) is.
        let options = [7, 7, 4, 0, 0, 0, 0, 148, 4, 0, 0, 0];
        let packet = Packet::with_data(&mem, &datagram(&options, 100)).unwrap();
        let mut out = Vec::new();
        fragment(&mem, packet, 80, &mut out).unwrap();
        let of = |at: usize| out[at].head()[20..32].to_vec();
        assert_eq!(of(0), options);
        for at in 1..out.len() {
            assert_eq!(of(at), [1, 1, 1, 1, 1, 1, 1, 148, 4, 0, 0, 0], "fragment {at}");
        }
    }

    #[test]
    fn fragment_of_a_fragment_keeps_its_offset() {
        let mem = Memory::heap();
        let mut bytes = datagram(&[], 200);
        let header = ipv4::Ipv4Header::mut_from(&mut bytes).unwrap();
        header.set_fragment(FragOffset::from_bytes(800).unwrap(), true);
        ipv4::fill_check(&mut bytes).unwrap();
        let mut packet = Packet::with_data(&mem, &bytes).unwrap();
        packet.meta.cut = Cut::Fragment;
        let mut out = Vec::new();
        fragment(&mem, packet, 120, &mut out).unwrap();
        let places: Vec<_> =
            taken_apart(&out, 120).into_iter().map(|(at, more, part)| (at, more, part.len())).collect();
        assert_eq!(places, [(800, true, 96), (896, true, 96), (992, true, 8)]);
    }

    #[test]
    fn packet_that_cannot_be_fragmented_leaves_no_fragments() {
        let mem = Memory::heap();
        let mut out = Vec::new();
        let packet = || Packet::with_data(&mem, &datagram(&[], 2000)).unwrap();
        assert_eq!(fragment(&mem, packet(), 27, &mut out), Err(DropReason::CannotSegment));
        let mut unfinished = packet();
        unfinished.meta.csum = Csum::Partial { start: 20, offset: 6 };
        assert_eq!(fragment(&mem, unfinished, 1500, &mut out), Err(DropReason::CannotSegment));
        let short = Packet::with_data(&mem, &[0x45; 2000]).unwrap();
        assert!(fragment(&mem, short, 19, &mut out).is_err());
        assert!(out.is_empty());
        let small = packet::Pool::bounded(Memory::SMALL, 2);
        let dry = Memory::new(small, packet::Pool::heap(Memory::LARGE));
        assert_eq!(fragment(&dry, packet(), 700, &mut out), Err(DropReason::NoMemory));
        assert!(out.is_empty());
    }
}
