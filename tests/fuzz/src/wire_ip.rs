//! An IP packet of which the head holds a part: for any bytes, lengths stay within the packet, and views of the same
//! bytes agree.

use wire::ip::{Info, Version};
use wire::{FlowKey, Protocol, checksum, esp, ext, ipv4, ipv6, tcp, udp};

use crate::structured::structured;

/// Runs one input.
pub fn target(input: &[u8]) {
    let Some((outside, whole, head)) = structured::<(u16, bool, &[u8])>(input) else { return };
    let packet_len = head.len() + if whole { 0 } else { usize::from(outside) };

    // Most inputs fail at the header checksum, so the packet is also parsed with a correct one.
    let mut repaired = head.to_vec();
    if Version::of(head) == Ok(Version::V4) && ipv4::fill_check(&mut repaired).is_ok() {
        look_at(&repaired, packet_len);
        forward(&mut repaired, packet_len);
    }
    look_at(head, packet_len);
}

fn look_at(head: &[u8], packet_len: usize) {
    let Ok(info) = Info::parse(head, packet_len) else { return };
    assert!(info.header_len <= info.total_len && info.total_len <= packet_len, "{info:?}");
    assert!(info.header_len <= head.len() && info.next_header_at < info.header_len, "{info:?}");
    let payload = info.payload(head);
    assert!(payload.len() <= info.payload_len());
    let flow = FlowKey::new(&info, head);
    assert_eq!(flow.reversed().reversed(), flow);

    match info.version() {
        Version::V4 => {
            let packet = ipv4::Ipv4::parse_head(head, packet_len).expect("the summary was made of it");
            assert_eq!((packet.payload(), packet.header_len()), (payload, info.header_len));
            assert!(packet.options().count() <= packet.option_bytes().len());
        }
        Version::V6 => {
            let packet = ipv6::Ipv6::parse_head(head, packet_len).expect("the summary was made of it");
            let chain = packet.chain().expect("the summary was made of it");
            assert_eq!(head[chain.next_header_at], info.protocol.0);
            assert!(chain.per_fragment_end.offset <= chain.offset);
            assert!(chain.per_fragment_end.next_header_at < chain.per_fragment_end.offset);
            if let Some(fragment) = chain.fragment {
                assert_eq!(head[fragment.place.next_header_at], Protocol::FRAGMENT.0);
                assert!(chain.per_fragment_end.offset <= fragment.place.offset);
            }
            if matches!(packet.header().next_header(), Protocol::HOP_BY_HOP | Protocol::DEST_OPTS) {
                let options = ext::ExtOptions::parse(packet.payload()).map(Iterator::count);
                assert!(options.is_ok_and(|count| count <= 2048), "the walk found the header whole");
            }
        }
    }
    upper_layer(payload, info.payload_len());
}

fn upper_layer(payload: &[u8], len: usize) {
    if let Ok(segment) = tcp::Tcp::parse_head(payload, len) {
        assert_eq!(segment.header_len() + segment.payload_len(), len);
        assert!(segment.options().count() <= segment.option_bytes().len());
    }
    if let Ok(datagram) = udp::Udp::parse_head(payload, len) {
        assert!(datagram.payload().len() <= datagram.payload_len() && datagram.payload_len() < len);
    }
    if let Ok(trailer) = esp::Trailer::parse(payload) {
        assert!(trailer.trailer_len() <= payload.len());
    }
    let (front, back) = payload.split_at(payload.len() / 3);
    let parts = checksum::block_add(checksum::sum(front), checksum::sum(back), front.len());
    assert_eq!(checksum::fold(parts), checksum::fold(checksum::sum(payload)));
}

/// A router's changes to an IPv4 header keep the checksum correct.
fn forward(packet: &mut [u8], packet_len: usize) {
    if Info::parse(packet, packet_len).is_err() {
        return;
    }
    let header = ipv4::Ipv4Header::mut_from(packet).expect("just parsed");
    header.decrement_ttl();
    header.replace_tos(header.tos() ^ 3);
    assert!(Info::parse(packet, packet_len).is_ok());
    let header_len = ipv4::Ipv4Header::ref_from(packet).expect("just parsed").header_len();
    let _ = ipv4::blank_uncopied_options(&mut packet[ipv4::Ipv4Header::LEN..header_len]);
}
