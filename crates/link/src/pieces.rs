//! A packet as the slices of an `iovec`.

use packet::Packet;
use wire::EtherType;

/// Offset of the VLAN tag in an Ethernet frame: behind the two addresses.
const TAG_AT: usize = 12;

/// Wire form of the VLAN tag in a frame's metadata.
pub(crate) fn vlan_tag(packet: &Packet) -> Option<[u8; 4]> {
    let [a, b] = EtherType::VLAN.0.to_be_bytes();
    let [c, d] = packet.meta.vlan?.to_be_bytes();
    Some([a, b, c, d])
}

/// The frame's slices, with `tag` inserted at its offset if there is one.
pub(crate) fn tagged<'a>(packet: &'a Packet, tag: Option<&'a [u8; 4]>) -> impl Iterator<Item = &'a [u8]> {
    let at = if tag.is_some() { TAG_AT.min(packet.headlen()) } else { 0 };
    let addresses = &packet.head()[..at];
    let tag = tag.map_or(&[][..], |tag| tag);
    [addresses, tag].into_iter().chain(skipping(packet, at)).filter(|piece| !piece.is_empty())
}

/// The frame's slices behind the first `n` bytes.
pub(crate) fn skipping(packet: &Packet, n: usize) -> impl Iterator<Item = &[u8]> {
    let mut skip = n;
    packet.chunks().filter_map(move |chunk| {
        let here = skip.min(chunk.len());
        skip -= here;
        (here < chunk.len()).then(|| &chunk[here..])
    })
}

#[cfg(test)]
mod tests {
    use packet::{Memory, geometry};

    use super::*;

    #[test]
    fn skipping_gives_the_same_bytes_in_every_geometry() {
        let mem = Memory::heap();
        let data: Vec<u8> = (0..200).collect();
        for skip in [0, 1, 28, 48, 199, 200] {
            for (shape, packet) in geometry::all(&mem, &data, &[20, 28]) {
                let got: Vec<u8> = skipping(&packet, skip).flatten().copied().collect();
                assert_eq!(got, data[skip..], "{shape}");
                assert!(skipping(&packet, skip).all(|piece| !piece.is_empty()), "{shape}");
            }
        }
    }

    #[test]
    fn vlan_tag_is_inserted_behind_the_addresses() {
        let mem = Memory::heap();
        let mut packet = Packet::with_data(&mem, &(0..20).collect::<Vec<u8>>()).unwrap();
        packet.meta.vlan = Some(0x2007);
        let tag = vlan_tag(&packet);
        let got: Vec<u8> = tagged(&packet, tag.as_ref()).flatten().copied().collect();
        let want: Vec<u8> = (0..12).chain([0x81, 0x00, 0x20, 0x07]).chain(12..20).collect();
        assert_eq!(got, want);
        packet.meta.vlan = None;
        assert_eq!(tagged(&packet, vlan_tag(&packet).as_ref()).flatten().count(), 20);
    }
}
