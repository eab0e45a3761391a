//! Tunnel headers: IP in IP (RFC 2003, RFC 2473, RFC 4213), GRE (RFC 2784, RFC 2890), VXLAN (RFC 7348) and Geneve (RFC
//! 8926).
//!
//! Only the offset of the inner packet is computed. UDP ports are not read: an administrator chooses them (Linux's
//! default for VXLAN is 8472), so VXLAN and Geneve are recognised by their fixed bits. Other payloads are unknown.

use crate::{EtherType, Malformed, Protocol, Version, eth, udp, vlan};

/// Maximum number of VLAN tags in an inner Ethernet frame.
const MAX_TAGS: usize = 2;

/// Bytes of the fixed part of a GRE header.
const GRE_LEN: usize = 4;
/// Bytes of each optional GRE field: checksum with the reserved half word, key, sequence number.
const GRE_FIELD_LEN: usize = 4;
/// GRE flags (RFC 2890 §2), and the version, which is 0; routing is RFC 1701's.
const GRE_CHECKSUM: u16 = 0x8000;
const GRE_ROUTING: u16 = 0x4000;
const GRE_KEY: u16 = 0x2000;
const GRE_SEQUENCE: u16 = 0x1000;
const GRE_VERSION: u16 = 0x0007;

/// Ethernet in GRE and Geneve (Transparent Ethernet Bridging, RFC 7637).
const BRIDGED: EtherType = EtherType(0x6558);

/// Bytes of a VXLAN header, and of the fixed part of a Geneve header.
const UDP_TUNNEL_LEN: usize = 8;
/// The first byte of a VXLAN header: a valid VNI, and no other flag except the group policy's.
const VXLAN_FLAGS: u8 = 0x08;
const VXLAN_GROUP_POLICY: u8 = 0x80;
/// Flag in the second byte of a VXLAN header: the receiver completes the inner checksum (Linux `VXLAN_HF_RCO`).
const VXLAN_REMOTE_CHECKSUM: u8 = 0x20;
/// The first byte of a Geneve header: version, which is 0, and words of options.
const GENEVE_VERSION: u8 = 0xc0;
const GENEVE_OPTIONS: u8 = 0x3f;
/// Flag in the second byte of a Geneve header: a control message.
const GENEVE_CONTROL: u8 = 0x80;

/// Place of an inner IP packet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Inside {
    /// Offset of the inner IP header, from the first byte behind the outer IP headers.
    pub at: usize,
    /// IP version in the tunnel header.
    pub version: Version,
    /// Whether all packets of a flow have the same tunnel header, which then holds neither checksum nor sequence
    /// number.
    pub is_constant: bool,
}

impl Inside {
    /// Finds the inner packet in `payload`, the bytes behind IP headers with the protocol `protocol`.
    ///
    /// # Errors
    /// [`Malformed::TunnelShort`] when `payload` ends before the inner packet; [`Malformed::TunnelUnknown`] for another
    /// protocol, and for inner packets that are not IP.
    pub fn find(protocol: Protocol, payload: &[u8]) -> Result<Self, Malformed> {
        match protocol {
            Protocol::IPIP => Ok(Self { at: 0, version: Version::V4, is_constant: true }),
            Protocol::IPV6 => Ok(Self { at: 0, version: Version::V6, is_constant: true }),
            Protocol::GRE => in_gre(payload),
            Protocol::UDP => in_udp(payload),
            _ => Err(Malformed::TunnelUnknown),
        }
    }

    fn behind(self, outer_len: usize) -> Self {
        Self { at: self.at + outer_len, ..self }
    }
}

fn in_gre(bytes: &[u8]) -> Result<Inside, Malformed> {
    let [a, b, c, d] = *bytes.first_chunk::<GRE_LEN>().ok_or(Malformed::TunnelShort)?;
    let flags = u16::from_be_bytes([a, b]);
    if flags & (GRE_ROUTING | GRE_VERSION) != 0 {
        return Err(Malformed::TunnelUnknown);
    }
    let fields = (flags & (GRE_CHECKSUM | GRE_KEY | GRE_SEQUENCE)).count_ones() as usize;
    let is_constant = flags & (GRE_CHECKSUM | GRE_SEQUENCE) == 0;
    let inside = of_type(bytes, EtherType(u16::from_be_bytes([c, d])), GRE_LEN + fields * GRE_FIELD_LEN)?;
    Ok(Inside { is_constant, ..inside })
}

fn in_udp(bytes: &[u8]) -> Result<Inside, Malformed> {
    let tunnel = bytes.get(udp::UdpHeader::LEN..).ok_or(Malformed::TunnelShort)?;
    let [first, second, a, b, ..] = *tunnel.first_chunk::<UDP_TUNNEL_LEN>().ok_or(Malformed::TunnelShort)?;
    let ethertype = EtherType(u16::from_be_bytes([a, b]));
    let is_geneve_type = matches!(ethertype, BRIDGED | EtherType::IPV4 | EtherType::IPV6);
    // VXLAN has zeros there, or a group number after a flag that is part of Geneve's version.
    let inside = if is_geneve_type && first & GENEVE_VERSION == 0 && second & GENEVE_CONTROL == 0 {
        of_type(tunnel, ethertype, UDP_TUNNEL_LEN + 4 * usize::from(first & GENEVE_OPTIONS))?
    } else if first & !VXLAN_GROUP_POLICY == VXLAN_FLAGS && second & VXLAN_REMOTE_CHECKSUM == 0 {
        of_type(tunnel, BRIDGED, UDP_TUNNEL_LEN)?
    } else {
        return Err(Malformed::TunnelUnknown);
    };
    Ok(inside.behind(udp::UdpHeader::LEN))
}

/// Finds the inner packet at `at`, which begins with an Ethernet or IP header according to `ethertype`.
fn of_type(bytes: &[u8], ethertype: EtherType, at: usize) -> Result<Inside, Malformed> {
    match ethertype {
        EtherType::IPV4 => Ok(Inside { at, version: Version::V4, is_constant: true }),
        EtherType::IPV6 => Ok(Inside { at, version: Version::V6, is_constant: true }),
        BRIDGED => in_ethernet(bytes.get(at..).ok_or(Malformed::TunnelShort)?).map(|inside| inside.behind(at)),
        _ => Err(Malformed::TunnelUnknown),
    }
}

fn in_ethernet(frame: &[u8]) -> Result<Inside, Malformed> {
    let (header, mut behind) = eth::EthHeader::split_from(frame).map_err(|_| Malformed::TunnelShort)?;
    let mut ethertype = header.ethertype();
    for _ in 0..MAX_TAGS {
        if !ethertype.is_vlan() {
            break;
        }
        let (tag, rest) = vlan::VlanHeader::split_from(behind).map_err(|_| Malformed::TunnelShort)?;
        (ethertype, behind) = (tag.ethertype(), rest);
    }
    match ethertype {
        EtherType::IPV4 | EtherType::IPV6 => of_type(frame, ethertype, frame.len() - behind.len()),
        _ => Err(Malformed::TunnelUnknown),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ETHERNET: [u8; 12] = [2; 12];
    const UDP: [u8; 8] = [0x12, 0x34, 0x21, 0x18, 0, 99, 0, 0];

    fn bridged(ethertype: &[u8]) -> Vec<u8> {
        [&ETHERNET[..], ethertype].concat()
    }

    fn in_udp(header: &[u8], behind: &[u8]) -> Vec<u8> {
        [&UDP[..], header, behind].concat()
    }

    #[test]
    fn inside_of_each_tunnel_is_found_behind_its_header() {
        use Version::{V4, V6};
        let (v4, v6) = (bridged(&[8, 0]), bridged(&[0x86, 0xdd]));
        let tagged = bridged(&[0x88, 0xa8, 0, 1, 0x81, 0, 0, 2, 8, 0]);
        let vxlan = [8, 0, 0, 0, 0, 0, 5, 0];
        let group = [0x88, 0, 0x65, 0x58, 0, 0, 5, 0];
        let geneve = |first, ethertype: [u8; 2]| [first, 0, ethertype[0], ethertype[1], 0, 0, 5, 0];
        let options = |header: [u8; 8], frame: &[u8]| [&header[..], &[0; 8], frame].concat();
        let cases = [
            ("IPv4 in IP", Protocol::IPIP, vec![], 0, V4, true),
            ("IPv6 in IP", Protocol::IPV6, vec![], 0, V6, true),
            ("GRE", Protocol::GRE, vec![0, 0, 8, 0], 4, V4, true),
            ("GRE key", Protocol::GRE, vec![0x20, 0, 0x86, 0xdd, 0, 0, 0, 7], 8, V6, true),
            ("GRE checksum", Protocol::GRE, vec![0x80, 0, 8, 0, 1, 2, 0, 0], 8, V4, false),
            ("GRE sequence", Protocol::GRE, vec![0x10, 0, 8, 0, 0, 0, 0, 1], 8, V4, false),
            ("GRE all", Protocol::GRE, vec![0xb0, 0, 8, 0], 16, V4, false),
            ("bridged GRE", Protocol::GRE, [&[0, 0, 0x65, 0x58], &v6[..]].concat(), 18, V6, true),
            ("bridged GRE all", Protocol::GRE, [&[0xb0, 0, 0x65, 0x58][..], &[0; 12], &v4].concat(), 30, V4, false),
            ("VXLAN", Protocol::UDP, in_udp(&vxlan, &v4), 30, V4, true),
            ("VXLAN with tags", Protocol::UDP, in_udp(&vxlan, &tagged), 38, V4, true),
            ("VXLAN group policy", Protocol::UDP, in_udp(&group, &v6), 30, V6, true),
            ("Geneve", Protocol::UDP, in_udp(&geneve(0, [0x65, 0x58]), &v4), 30, V4, true),
            ("Geneve options", Protocol::UDP, in_udp(&options(geneve(2, [0x65, 0x58]), &v6), &[]), 38, V6, true),
            ("Geneve of IPv6", Protocol::UDP, in_udp(&geneve(8, [0x86, 0xdd]), &[]), 48, V6, true),
        ];
        for (name, protocol, bytes, at, version, is_constant) in cases {
            let want = Inside { at, version, is_constant };
            assert_eq!(Inside::find(protocol, &bytes), Ok(want), "{name}");
        }
    }

    #[test]
    fn inside_of_what_is_no_tunnel_is_unknown() {
        let arp = bridged(&[8, 6]);
        let tags = bridged(&[0x81, 0, 0, 1, 0x81, 0, 0, 2, 0x81, 0, 0, 3, 8, 0]);
        let v4 = bridged(&[8, 0]);
        let cases = [
            ("TCP", Protocol::TCP, vec![0; 60]),
            ("ESP", Protocol::ESP, vec![0; 60]),
            ("GRE routing", Protocol::GRE, vec![0x40, 0, 8, 0]),
            ("GRE version 1", Protocol::GRE, vec![0x20, 1, 8, 0, 0, 0, 0, 0]),
            ("MPLS in GRE", Protocol::GRE, vec![0, 0, 0x88, 0x47]),
            ("no VNI", Protocol::UDP, in_udp(&[0; 8], &v4)),
            ("VXLAN-GPE", Protocol::UDP, in_udp(&[0x0c, 0, 0, 1, 0, 0, 5, 0], &v4)),
            ("VXLAN remote checksum", Protocol::UDP, in_udp(&[8, 0x20, 0, 0, 0, 0, 5, 0], &v4)),
            ("Geneve version 1", Protocol::UDP, in_udp(&[0x40, 0, 0x65, 0x58, 0, 0, 5, 0], &v4)),
            ("Geneve control", Protocol::UDP, in_udp(&[0, 0x80, 0x65, 0x58, 0, 0, 5, 0], &v4)),
            ("ARP in VXLAN", Protocol::UDP, in_udp(&[8, 0, 0, 0, 0, 0, 5, 0], &arp)),
            ("three tags", Protocol::UDP, in_udp(&[8, 0, 0, 0, 0, 0, 5, 0], &tags)),
        ];
        for (name, protocol, bytes) in cases {
            assert_eq!(Inside::find(protocol, &bytes), Err(Malformed::TunnelUnknown), "{name}");
        }
    }

    #[test]
    fn inside_of_fewer_bytes_than_the_header_is_short() {
        let tagged = bridged(&[0x88, 0xa8, 0, 1, 0x81, 0, 0, 2, 8, 0]);
        let cases = [
            (Protocol::GRE, vec![0, 0, 8, 0]),
            (Protocol::GRE, [&[0x20, 0, 0x65, 0x58, 0, 0, 0, 1], &tagged[..]].concat()),
            (Protocol::UDP, in_udp(&[8, 0, 0, 0, 0, 0, 5, 0], &tagged)),
            (Protocol::UDP, in_udp(&[1, 0, 0x65, 0x58, 0, 0, 5, 0], &[&[0; 4], &tagged[..]].concat())),
        ];
        for (protocol, bytes) in cases {
            assert!(Inside::find(protocol, &bytes).is_ok());
            for len in 0..bytes.len() {
                assert_eq!(Inside::find(protocol, &bytes[..len]), Err(Malformed::TunnelShort), "{len} of {bytes:?}");
            }
        }
    }
}
