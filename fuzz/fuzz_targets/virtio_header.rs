//! A virtio-net header and a frame from a hostile guest: what is accepted points at the frame's own checksum field.
#![no_main]

use libfuzzer_sys::fuzz_target;
use link::virtio::{Framing, HEADER_LEN, Header, decode};
use packet::{Csum, Cut, GsoKind};
use wire::{Protocol, eth, ip, vlan};

fuzz_target!(|input: &[u8]| {
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
            let info = ip::Info::parse(&frame[l3..], frame.len() - l3).expect("an offload needs a well-formed packet");
            assert_eq!(usize::from(start), l3 + info.header_len);
            assert!(info.fragment.is_none() && usize::from(start + offset) + 2 <= l3 + info.total_len);
            assert_eq!(offset, if info.protocol == Protocol::TCP { 16 } else { 6 });
            if let Some(gso) = gso {
                let v4 = info.version() == ip::Version::V4;
                assert_eq!(gso.kind == GsoKind::Udp, info.protocol == Protocol::UDP);
                assert!(gso.kind != GsoKind::TcpV4 || v4);
                assert!(gso.kind != GsoKind::TcpV6 || !v4);
                assert!(gso.size > 0 && gso.segs > 1);
                assert!(usize::from(gso.size) * usize::from(gso.segs - 1) < info.payload_len());
            }
        } else {
            assert_eq!(gso, None, "a fat packet has a partial checksum");
        }
        assert_ne!(decoded.cut, Cut::Fragment);
    }
});

/// Where IP starts behind VLAN tags.
fn l3_of(frame: &[u8]) -> usize {
    let Ok(header) = eth::Header::ref_from(frame) else { return 0 };
    let (mut ethertype, mut at) = (header.ethertype(), eth::Header::LEN);
    while ethertype.is_vlan() {
        let Some(Ok(tag)) = frame.get(at..).map(vlan::Header::ref_from) else { return 0 };
        (ethertype, at) = (tag.ethertype(), at + vlan::Header::LEN);
    }
    at
}
