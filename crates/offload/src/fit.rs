//! Fitting a packet to the device that is to send it: keep, cut, linearize, complete the checksum.
//!
//! Follows Linux's `validate_xmit_skb` with one difference: a fat packet that the device could cut but not take in its
//! geometry is linearized rather than cut, so that it stays fat.

use base::DropReason;
use packet::{Csum, Cut, Gso, Memory, Meta, Packet};
use wire::{EtherType, checksum as sums, eth, vlan};

use crate::features::{CsumOffload, Features};
use crate::headers::Headers;
use crate::{checksum, gso};

/// Offset of the tag in an Ethernet header: behind both addresses.
const TAG_AT: usize = 12;

/// Makes of `pkt`, whose IP header begins at `l3`, what a device with these features sends, and appends it to `out`:
/// one packet, or the segments of one. Packets that are not IP pass too, with `l3` where their payload begins.
///
/// In order: packets in one buffer are split, by reference, unless the device takes them so; the VLAN tag in the metadata goes into the bytes, which takes an Ethernet header in front of `l3` (a
/// layer-3 device has no tags); a fat packet is cut unless the device does it; pieces become one for a device that
/// takes no pieces; and a partial checksum is completed unless the device does it.
///
/// # Errors
/// As [`gso::segment`] and [`checksum::complete`]; the packet is gone, and `out` as it was.
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
                // No device is told where the tunnels' headers are.
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

/// Segmentation of a fat packet of `len` bytes, with the number of segments that its length gives: a device refuses a wrong
/// number, and the packet's own comes from guests too.
fn counted(gso: &Gso, headers: &Headers, len: usize) -> Result<Gso, DropReason> {
    if !headers.is(gso.kind) || gso.size == 0 {
        return Err(DropReason::CannotSegment);
    }
    let segs = (len - headers.end).div_ceil(gso.size.into());
    let segs = u16::try_from(segs).map_err(|_| DropReason::CannotSegment)?;
    Ok(Gso { segs, ..*gso })
}

/// Brings the packet into a geometry that the device takes.
fn flatten(mem: &Memory, features: &Features, pkt: &mut Packet) -> Result<(), DropReason> {
    if features.takes_pieces_of(pkt) { Ok(()) } else { Ok(pkt.linearize(mem)?) }
}

/// Tells whether the device completes the packet's checksum, or nothing is left to complete. A field beyond the packet
/// is one that no device can fill.
fn completes(mem: &Memory, csum: CsumOffload, pkt: &mut Packet, l3: usize) -> Result<bool, DropReason> {
    let Csum::Partial { start, offset } = pkt.meta.csum else { return Ok(true) };
    if usize::from(start) + usize::from(offset) + 2 > pkt.len() {
        return Err(DropReason::TransportHeader);
    }
    Ok(match csum {
        CsumOffload::Any => true,
        CsumOffload::None => false,
        // The device looks for the transport header itself: it has to find the one that is meant.
        _ => Headers::find(mem, pkt, l3)
            .is_ok_and(|headers| headers.partial_csum() == Some(pkt.meta.csum) && csum.completes(&headers)),
    })
}

/// A device that cuts expects the pseudo-header's sum in the check field.
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

/// Moves the tag from the metadata into the bytes. Returns where the IP header is now, which was at `l3`.
///
/// # Errors
/// [`DropReason::EthTruncated`]; [`DropReason::NoMemory`].
pub fn insert_tag(mem: &Memory, pkt: &mut Packet, l3: usize) -> Result<usize, DropReason> {
    let Some(tci) = pkt.meta.vlan.take() else { return Ok(l3) };
    if l3 < eth::Header::LEN {
        return Ok(l3);
    }
    if !pkt.may_pull(mem, TAG_AT)? {
        return Err(DropReason::EthTruncated);
    }
    pkt.push(mem, vlan::Header::LEN)?;
    let head = pkt.head_mut().ok_or(DropReason::NoMemory)?;
    head.copy_within(vlan::Header::LEN..vlan::Header::LEN + TAG_AT, 0);
    // The tag is the type of the frame, then what a tag has in front of the type that the frame had.
    head[TAG_AT..TAG_AT + 2].copy_from_slice(&EtherType::VLAN.0.to_be_bytes());
    head[TAG_AT + 2..TAG_AT + 4].copy_from_slice(&tci.to_be_bytes());
    Ok(l3 + vlan::Header::LEN)
}
