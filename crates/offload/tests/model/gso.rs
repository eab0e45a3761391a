//! Model of GSO: fat packets from a guest, valid and invalid. Invalid ones are refused, and segments are complete.

use base::DropReason;
use offload::{CsumOffload, Features, checksum, fit, gso};
use packet::{Csum, Cut, Gso, GsoKind, Memory, Packet, Pool};
use wire::Protocol;
use wire::ip::Info;

use super::{fill_checks, fill_lengths, headers, on_wire, shaped, tunnel};

/// Metadata of a packet, and its layout in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claims {
    /// Number of the flow that supplies the headers.
    pub(crate) number: u8,
    /// Offset of a changed header byte, and the change.
    pub(crate) change: (u16, u8),
    /// Bytes in front of the IP header.
    pub(crate) l3: u8,
    /// Number of tunnels around the packet, and their kinds.
    pub(crate) tunnels: (u8, u16),
    pub(crate) kind: u8,
    pub(crate) size: u16,
    pub(crate) segs: u16,
    pub(crate) csum: (u8, u16, u16),
    pub(crate) shape: (u8, u16),
    pub(crate) features: u16,
    /// Pages of memory; 0 for no limit.
    pub(crate) pages: u8,
}

/// Segments a packet with this payload, and fits it to a device.
pub(crate) fn run(claims: &Claims, payload: &[u8]) {
    let made = Memory::heap();
    let limit = if claims.pages == 0 { usize::MAX } else { usize::from(claims.pages) };
    let mem = Memory::new(Pool::bounded(Memory::SMALL, limit), Pool::bounded(Memory::LARGE, limit));
    let bits = |n: u16| claims.features >> n & 1 != 0;
    let csums = [CsumOffload::None, CsumOffload::Ipv4, CsumOffload::Ipv6, CsumOffload::Both, CsumOffload::Any];
    let features = Features {
        sg: bits(0),
        frag_list: bits(1),
        tso4: bits(2),
        tso6: bits(3),
        uso: bits(4),
        tso_ecn: bits(5),
        csum: csums[usize::from(claims.features >> 8) % csums.len()],
        gso_max_segs: if bits(6) { 64 } else { 65_535 },
        ..Features::ALL
    };
    let l3 = usize::from(claims.l3 % 40);
    let tunnels = tunnel::some(claims.tunnels.0, claims.tunnels.1);
    let is_honest = claims.change.1 == 0 && claims.csum.0 % 4 == 1;
    let bystander = || Packet::with_data(&made, &[1]).expect("memory");
    for whole_way in [false, true] {
        let packet = packet(&made, claims, l3, payload);
        let before = packet.to_vec();
        let (csum, cut, vlan) = (packet.meta.csum, packet.meta.cut, packet.meta.vlan);
        let mut out = vec![bystander()];
        let result = if whole_way {
            fit(&mem, &features, packet, l3, &mut out)
        } else {
            gso::segment(&mem, &features, packet, l3, &mut out)
        };
        assert_eq!(out.remove(0).to_vec(), [1], "what was there before");
        assert_eq!(result.is_ok(), !out.is_empty(), "{result:?}");
        out.iter().for_each(Packet::check_invariants);
        let tag = if whole_way && vlan.is_some() && l3 >= 14 { 4 } else { 0 };
        let trusted = matches!(csum, Csum::Partial { .. });
        if result.is_ok() {
            if whole_way {
                check_fit(&features, &out);
            }
            check_cut(cut, &before, &out, l3, tag);
            if !trusted && cut.gso().is_some() {
                // A packet that stays fat gets its headers when the device segments it.
                out.iter()
                    .filter(|packet| packet.meta.cut == Cut::Whole)
                    .for_each(|packet| check_right(packet, l3 + tag));
            }
            if !tunnels.is_empty() && is_honest && cut.gso().is_some() {
                out.iter().for_each(|packet| tunnel::check_on_wire(&tunnels, &packet.to_vec()[l3 + tag..]));
            }
        }
        let is_foreign = tunnels.iter().any(|tunnel| !tunnel.is_constant());
        if is_foreign && is_honest && claims.pages == 0 && cut.gso().is_some() {
            assert_eq!(result, Err(DropReason::GsoEncapsulation));
        }
        drop(out);
        assert_eq!((mem.small().in_use(), mem.large().in_use()), (0, 0), "pages that did not come home");
    }
    assert_eq!((made.small().in_use(), made.large().in_use()), (0, 0), "pages that did not come home");
}

fn packet(mem: &Memory, claims: &Claims, l3: usize, payload: &[u8]) -> Packet {
    let &Claims { number, change: (at, xor), kind, size, segs, csum: (csum, start, offset), shape, .. } = claims;
    let (mut ip, mut l4) = headers(number);
    ip.extend(payload);
    fill_lengths(number, l4, &mut ip);
    fill_checks(number, l4, &mut ip, csum % 4 == 1);
    let inner_len = ip.len();
    ip = tunnel::around(&tunnel::some(claims.tunnels.0, claims.tunnels.1), &ip, 7);
    l4 += ip.len() - inner_len;
    let mut bytes = vec![0xee; l3];
    bytes.extend(ip);
    let at = usize::from(at) % bytes.len();
    bytes[at] ^= xor;
    let mut packet = shaped(mem, &bytes, shape.0, usize::from(shape.1) % 200);
    let check_at = if number % 6 < 4 { 16 } else { 6 };
    packet.meta.csum = match csum % 4 {
        0 => Csum::None,
        1 => Csum::Partial { start: (l3 + l4) as u16, offset: check_at },
        2 => Csum::Unnecessary,
        _ => Csum::Partial { start, offset },
    };
    let right = [GsoKind::TcpV4, GsoKind::TcpV4, GsoKind::TcpV6, GsoKind::TcpV6, GsoKind::Udp, GsoKind::Udp];
    let kind = match kind % 8 {
        0 => GsoKind::TcpV4,
        1 => GsoKind::TcpV6,
        2 => GsoKind::Udp,
        _ => right[usize::from(number % 6)],
    };
    packet.meta.cut = match claims.kind >> 5 {
        6 => Cut::Whole,
        7 => Cut::Fragment,
        bits => Cut::Gso(Gso { kind, size, segs, ecn: bits & 1 != 0, fixed_id: bits & 2 != 0 }),
    };
    packet.meta.vlan = (claims.kind & 0x10 != 0).then_some(0x6001);
    packet
}

/// Checks that the device can send the packets.
fn check_fit(features: &Features, out: &[Packet]) {
    for packet in out {
        let takes = packet.is_linear() || (features.sg && (features.frag_list || packet.frag_list().is_empty()));
        assert!(takes, "{} slots, {} children", packet.frags().len(), packet.frag_list().len());
        let is_partial = matches!(packet.meta.csum, Csum::Partial { .. });
        assert!(!is_partial || features.csum != CsumOffload::None, "{packet:?}");
        assert_eq!(packet.meta.vlan, None);
        if let Cut::Gso(gso) = packet.meta.cut {
            assert!(features.cuts(&gso, packet.len()) && is_partial && gso.size > 0, "{packet:?}");
        }
    }
}

/// Checks that the segments have the original payload and the requested size.
fn check_cut(cut: Cut, before: &[u8], out: &[Packet], l3: usize, tag: usize) {
    let len: usize = out.iter().map(|packet| packet.len() - tag).sum();
    if let [packet] = out {
        assert_eq!(len, before.len(), "one packet is all of it, in {} slots", packet.frags().len());
        return;
    }
    let Cut::Gso(gso) = cut else { panic!("{} packets of one", out.len()) };
    // Length of the repeated headers.
    let end = (len - before.len()) / (out.len() - 1);
    let (mut payload, last) = (Vec::new(), out.len() - 1);
    for (index, packet) in out.iter().enumerate() {
        let bytes = packet.to_vec();
        let (front, here) = bytes.split_at(end + tag);
        assert_eq!(front[..l3.min(12)], before[..l3.min(12)]);
        assert!(here.len() == usize::from(gso.size) || (index == last && (1..=gso.size.into()).contains(&here.len())));
        assert_eq!(packet.meta.cut, Cut::Whole);
        payload.extend_from_slice(here);
    }
    assert!(payload == before[end..], "the payload");
}

/// Checks lengths and checksums, after completion by the receiver.
fn check_right(packet: &Packet, l3: usize) {
    let bytes = on_wire(packet).split_off(l3);
    let info = Info::parse(&bytes, bytes.len()).expect("headers that were found before");
    assert_eq!(info.total_len, bytes.len());
    if bytes[0] >> 4 == 4 {
        let header = &bytes[..usize::from(bytes[0] & 15) * 4];
        assert_eq!(wire::checksum::sum(header), 0xffff, "IPv4 checksum");
    }
    let no_check = info.protocol == Protocol::UDP && bytes[info.header_len + 6..][..2] == [0, 0];
    if !no_check {
        let whole = Packet::with_data(&Memory::heap(), &bytes).expect("memory");
        assert_eq!(checksum::transport_check(&whole, &info), 0, "transport checksum");
    }
}
