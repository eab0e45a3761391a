//! Fitting of a packet to its output device: keep, segment, linearize, complete the checksum.
//!
//! Follows Linux's `validate_xmit_skb` with one difference: a fat packet that the device could segment, but not send in
//! its present geometry, is linearized rather than segmented, so that it stays fat.

use base::DropReason;
use packet::{Csum, Cut, Gso, Memory, Meta, Packet};
use wire::{EtherType, checksum as sums, eth, vlan};

use crate::features::{CsumOffload, Features};
use crate::headers::Headers;
use crate::{checksum, gso};

/// Offset of the tag in an Ethernet header: behind both addresses.
const TAG_AT: usize = 12;

/// Converts `pkt`, whose IP header begins at `l3`, for a device with these features, and appends the result to `out`:
/// one packet, or its segments. For packets that are not IP, `l3` is the start of their payload.
///
/// In order: several packets in one buffer are split, by reference, unless the device accepts them; the VLAN tag in the
/// metadata is inserted into the bytes, which requires an Ethernet header in front of `l3` (a layer-3 device has no
/// tags); a fat packet is segmented unless the device segments it; fragments are linearized for a device without `sg`;
/// and a partial checksum is completed unless the device completes it.
///
/// # Errors
/// As [`gso::segment`] and [`checksum::complete`]; the packet is dropped, and `out` unchanged.
#[inline]
pub fn fit(mem: &Memory, features: &Features, pkt: Packet, l3: usize, out: &mut Vec<Packet>) -> Result<(), DropReason> {
    let Meta { vlan, csum, cut, .. } = &pkt.meta;
    let cut_fits = match cut {
        Cut::Whole | Cut::Fragment => true,
        Cut::Frames(_) => features.frames,
        Cut::Gso(_) => false,
    };
    let fits_any = cut_fits && vlan.is_none() && !matches!(csum, Csum::Partial { .. }) && pkt.is_linear();
    if fits_any {
        out.push(pkt);
        return Ok(());
    }
    make_fit(mem, features, pkt, l3, out)
}

fn make_fit(
    mem: &Memory,
    features: &Features,
    mut pkt: Packet,
    l3: usize,
    out: &mut Vec<Packet>,
) -> Result<(), DropReason> {
    let before = out.len();
    while let Some(frame) = pkt.take_frame() {
        make_fit(mem, features, frame, l3, out).inspect_err(|_| out.truncate(before))?;
    }
    let l3 = insert_tag(mem, &mut pkt, l3)?;
    match pkt.meta.cut {
        Cut::Gso(gso) => {
            let headers = Headers::find(mem, &mut pkt, l3)?;
            if headers.start_inside(pkt.meta.csum).is_some() {
                // Devices do not get offsets of tunnel headers.
                return gso::segment(mem, features, pkt, l3, out);
            }
            let gso = counted(&gso, &headers, pkt.len())?;
            if !features.cuts(&gso, pkt.len()) || flatten(mem, features, &mut pkt).is_err() {
                return gso::segment(mem, features, pkt, l3, out);
            }
            pkt.meta.cut = Cut::Gso(gso);
            harmonise(mem, &mut pkt, &headers)?;
        }
        Cut::Whole | Cut::Frames(_) | Cut::Fragment => {
            flatten(mem, features, &mut pkt)?;
            if !completes(mem, features.csum, &mut pkt, l3)? {
                checksum::complete(mem, &mut pkt, l3)?;
            }
        }
    }
    out.push(pkt);
    Ok(())
}

/// Segmentation of a fat packet of `len` bytes, with the number of segments computed from the length: a device refuses
/// a wrong number, and the number in the packet may come from a guest.
fn counted(gso: &Gso, headers: &Headers, len: usize) -> Result<Gso, DropReason> {
    if !headers.is(gso.kind) || gso.size == 0 {
        return Err(DropReason::CannotSegment);
    }
    let segs = (len - headers.end).div_ceil(gso.size.into());
    let segs = u16::try_from(segs).map_err(|_| DropReason::CannotSegment)?;
    Ok(Gso { segs, ..*gso })
}

/// Linearizes the packet as far as the device needs.
fn flatten(mem: &Memory, features: &Features, pkt: &mut Packet) -> Result<(), DropReason> {
    if features.takes_pieces_of(pkt) { Ok(()) } else { Ok(pkt.linearize(mem)?) }
}

/// Tells whether the device completes the packet's checksum, or the checksum is complete. No device can fill a field
/// past the packet's end.
fn completes(mem: &Memory, csum: CsumOffload, pkt: &mut Packet, l3: usize) -> Result<bool, DropReason> {
    let Csum::Partial { start, offset } = pkt.meta.csum else { return Ok(true) };
    if usize::from(start) + usize::from(offset) + 2 > pkt.len() {
        return Err(DropReason::TransportHeader);
    }
    Ok(match csum {
        CsumOffload::Any => true,
        CsumOffload::None => false,
        // The device locates the transport header itself, which must be the one of the checksum.
        _ => Headers::find(mem, pkt, l3)
            .is_ok_and(|headers| headers.partial_csum() == Some(pkt.meta.csum) && csum.completes(&headers)),
    })
}

/// Writes the pseudo-header's sum into the checksum field, as segmenting devices require.
fn harmonise(mem: &Memory, pkt: &mut Packet, headers: &Headers) -> Result<(), DropReason> {
    let csum = headers.partial_csum().ok_or(DropReason::CannotSegment)?;
    if pkt.meta.csum == csum {
        return Ok(());
    }
    let pseudo = headers.pseudo(pkt.head(), pkt.len() - headers.l4);
    let at = headers.l4 + headers.check_at();
    let head = pkt.writable_head(mem)?;
    head[at..at + 2].copy_from_slice(&sums::fold(pseudo).to_be_bytes());
    pkt.meta.csum = csum;
    Ok(())
}

/// Moves the tag from the metadata into the bytes. Returns the new offset of the IP header, which was at `l3`.
///
/// # Errors
/// [`DropReason::EthTruncated`]; [`DropReason::NoMemory`].
pub fn insert_tag(mem: &Memory, pkt: &mut Packet, l3: usize) -> Result<usize, DropReason> {
    let Some(tci) = pkt.meta.vlan.take() else { return Ok(l3) };
    if l3 < eth::EthHeader::LEN {
        return Ok(l3);
    }
    push_tag(mem, pkt, EtherType::VLAN, tci)?;
    Ok(l3 + vlan::VlanHeader::LEN)
}

/// Offset of the IP header behind the VLAN tags in a frame's bytes. Without tags, or without an Ethernet header, it is at `l3`.
pub fn behind_tags(mem: &Memory, pkt: &mut Packet, mut l3: usize) -> usize {
    let is_tag = |pkt: &Packet, l3: usize| match pkt.head().get(l3.wrapping_sub(2)..l3) {
        Some(&[high, low]) => EtherType(u16::from_be_bytes([high, low])).is_vlan(),
        _ => false,
    };
    while is_tag(pkt, l3) && pkt.may_pull(mem, l3 + vlan::VlanHeader::LEN).unwrap_or(false) {
        l3 += vlan::VlanHeader::LEN;
    }
    l3
}

/// Inserts a tag of type `tpid` into a frame's bytes, in front of the frame's own type and tags.
///
/// # Errors
/// [`DropReason::EthTruncated`]; [`DropReason::NoMemory`].
pub fn push_tag(mem: &Memory, pkt: &mut Packet, tpid: EtherType, tci: u16) -> Result<(), DropReason> {
    if !pkt.may_pull(mem, TAG_AT)? {
        return Err(DropReason::EthTruncated);
    }
    pkt.push(mem, vlan::VlanHeader::LEN)?;
    let head = pkt.head_mut().ok_or(DropReason::NoMemory)?;
    head.copy_within(vlan::VlanHeader::LEN..vlan::VlanHeader::LEN + TAG_AT, 0);
    // The tag's type replaces the frame's type, which follows the tag.
    head[TAG_AT..TAG_AT + 2].copy_from_slice(&tpid.0.to_be_bytes());
    head[TAG_AT + 2..TAG_AT + 4].copy_from_slice(&tci.to_be_bytes());
    Ok(())
}
