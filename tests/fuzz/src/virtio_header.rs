//! A virtio-net header and a frame from a hostile guest: an accepted header refers to the frame's own checksum field.

use link::virtio::{Framing, HEADER_LEN, Header, decode};
use packet::{Csum, Cut, GsoKind};
use wire::{Protocol, eth, ip, vlan};

/// Runs one input.
pub fn target(input: &[u8]) {
    let Some((&header, frame)) = input.split_first_chunk::<HEADER_LEN>() else { return };
    let header = Header::from_bytes(header);
    assert_eq!(Header::from_bytes(header.to_bytes()), header);
    for framing in [Framing::Ip, Framing::Ethernet] {
        let Ok(decoded) = decode(&header, framing, frame, frame.len()) else { continue };
        let l3 = match framing {
            Framing::Ip => 0,
            Framing::Ethernet => l3_of(frame),
        };
        let gso = decoded.cut.gso();
        if let Some((at, _)) = decoded.seed {
            assert!(at + 2 <= frame.len());
        }
        if let Csum::Partial { start, offset } = decoded.csum {
            let (start, offset) = (usize::from(start), usize::from(offset));
            assert!(start + offset + 2 <= frame.len());
            if decoded.complete.is_some() {
                assert_eq!(gso, None, "segments have a checksum each");
                continue;
            }
            let info = ip::Info::parse(&frame[l3..], frame.len() - l3).expect("what is left for later is well-formed");
            assert!(info.fragment.is_none());
            // The transport header that the checksum covers: behind the IP header, or inside a tunnel for a fat packet.
            let (version, protocol, end) = if start == l3 + info.header_len {
                (info.version(), info.protocol, l3 + info.total_len)
            } else {
                assert!(gso.is_some() && start > l3 + info.header_len);
                let inner = offload::inner_headers(frame, frame.len(), l3, start).expect("headers that lead there");
                (inner.version, inner.protocol, frame.len())
            };
            assert_eq!(offset, if protocol == Protocol::TCP { 16 } else { 6 });
            assert!(start + offset + 2 <= end);
            if let Some(gso) = gso {
                let v4 = version == ip::Version::V4;
                assert_eq!(gso.kind == GsoKind::Udp, protocol == Protocol::UDP);
                assert!(gso.kind != GsoKind::TcpV4 || v4);
                assert!(gso.kind != GsoKind::TcpV6 || !v4);
                assert!(gso.size > 0 && gso.segs > 0);
                assert!(gso.segs == 1 || usize::from(gso.size) * usize::from(gso.segs - 1) < end - start);
            }
        } else {
            assert_eq!(gso, None, "a fat packet has a partial checksum");
        }
        assert_ne!(decoded.cut, Cut::Fragment);
    }
}

/// Offset of the IP header behind VLAN tags.
fn l3_of(frame: &[u8]) -> usize {
    let Ok(header) = eth::EthHeader::ref_from(frame) else { return 0 };
    let (mut ethertype, mut at) = (header.ethertype(), eth::EthHeader::LEN);
    while ethertype.is_vlan() {
        let Some(Ok(tag)) = frame.get(at..).map(vlan::VlanHeader::ref_from) else { return 0 };
        (ethertype, at) = (tag.ethertype(), at + vlan::VlanHeader::LEN);
    }
    at
}
