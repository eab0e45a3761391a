//! Encoding of a packet's metadata as a virtio-net header.

use packet::{Csum, GsoKind, Packet};
use wire::{tcp, udp};

use super::{GSO_ECN, GSO_NONE, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, Header, NEEDS_CSUM};

/// Header for a packet that has `skip` more bytes in front on the wire than in memory (a VLAN tag that is still in
/// metadata). `None` if the packet is fat but its checksum is not partial, or its headers are not in the head; the
/// fitting step produces no such packet.
pub fn encode(packet: &Packet, skip: u16) -> Option<Header> {
    let mut header = Header::default();
    if let Csum::Partial { start, offset } = packet.meta.csum {
        header.flags = NEEDS_CSUM;
        header.csum_start = start.checked_add(skip)?;
        header.csum_offset = offset;
    }
    let Some(gso) = packet.meta.cut.gso() else { return Some(header) };
    let Csum::Partial { start, .. } = packet.meta.csum else { return None };
    let transport = packet.head().get(usize::from(start)..)?;
    let transport_len = match gso.kind {
        GsoKind::TcpV4 | GsoKind::TcpV6 => tcp::TcpHeader::ref_from(transport).ok()?.header_len(),
        GsoKind::Udp => udp::UdpHeader::LEN,
    };
    let gso_type = match gso.kind {
        GsoKind::TcpV4 => GSO_TCPV4,
        GsoKind::TcpV6 => GSO_TCPV6,
        GsoKind::Udp => GSO_UDP_L4,
    };
    header.gso_type = gso_type | if gso.ecn { GSO_ECN } else { GSO_NONE };
    header.gso_size = gso.size;
    header.hdr_len = header.csum_start.checked_add(transport_len as u16)?;
    Some(header)
}

#[cfg(test)]
mod tests {
    use packet::{Cut, Gso, Memory};

    use super::*;
    use crate::virtio::{Framing, decode};

    const GSO: Gso = Gso { kind: GsoKind::TcpV4, size: 1448, segs: 3, ecn: true, fixed_id: false };
    const PARTIAL: Csum = Csum::Partial { start: 20, offset: 16 };

    /// A fat TCP packet over IPv4 with a 32-byte TCP header.
    fn fat(mem: &Memory) -> Packet {
        let (src, dst) = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
        let mut ip = wire::ipv4::Ipv4Header::new(src, dst, wire::Protocol::TCP, 4000);
        ip.fill_check();
        let mut tcp = tcp::TcpHeader::new(1, 2, 3, 4);
        tcp.set_header_len(32);
        let mut bytes = [ip.as_bytes(), tcp.as_bytes()].concat();
        bytes.resize(4000, 1);
        let mut packet = Packet::with_data(mem, &bytes).unwrap();
        (packet.meta.csum, packet.meta.cut) = (PARTIAL, Cut::Gso(GSO));
        packet
    }

    #[test]
    fn encoded_packet_decodes_to_the_same_metadata() {
        let mem = Memory::heap();
        let packet = fat(&mem);
        let header = encode(&packet, 0).unwrap();
        assert_eq!(header.hdr_len, 52);
        let back = Header::from_bytes(header.to_bytes());
        let got = decode(&back, Framing::Ip, packet.head(), packet.len()).unwrap();
        assert_eq!((got.csum, got.cut, got.seed), (packet.meta.csum, packet.meta.cut, None));
    }

    #[test]
    fn vlan_tag_in_metadata_moves_the_offsets() {
        let mem = Memory::heap();
        let header = encode(&fat(&mem), 4).unwrap();
        assert_eq!((header.csum_start, header.hdr_len), (24, 56));
    }

    #[test]
    fn packet_that_was_not_fitted_has_no_header() {
        let mem = Memory::heap();
        let mut packet = fat(&mem);
        packet.meta.csum = Csum::Unnecessary;
        assert_eq!(encode(&packet, 0), None);
        packet.meta.cut = Cut::Whole;
        assert_eq!(encode(&packet, 0), Some(Header::default()));
        let mut packet = fat(&mem);
        packet.trim(39);
        assert_eq!(encode(&packet, 0), None);
    }
}
