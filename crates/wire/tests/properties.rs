//! Properties of every header and of random bytes: building and parsing are inverse, parsers do not panic, and an
//! incremental checksum equals the recomputed one.
#![forbid(unsafe_code)]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use proptest::collection::vec;
use proptest::prelude::*;
use wire::ip::Info;
use wire::{EtherType, MacAddr, Malformed, ipv4, ipv6, nd, tcp, udp, vlan};
use wire::{FlowKey, FragInfo, FragOffset, Protocol, Spi, arp, checksum, esp, eth, ext, frag, icmp, icmpv6};

fn v4() -> impl Strategy<Value = Ipv4Addr> {
    any::<u32>().prop_map(Ipv4Addr::from_bits)
}

fn v6() -> impl Strategy<Value = Ipv6Addr> {
    any::<u128>().prop_map(Ipv6Addr::from_bits)
}

fn mac() -> impl Strategy<Value = MacAddr> {
    any::<[u8; 6]>().prop_map(MacAddr)
}

/// Parses random bytes as every header. The results are ignored; panics fail the test.
fn parse_everything(bytes: &[u8], packet_len: usize) {
    let _ = eth::Eth::parse(bytes).map(|frame| vlan::Vlan::parse(frame.payload()).map(|tag| tag.header().tci()));
    let _ = arp::ArpHeader::parse(bytes).map(|arp| (arp.sender_ip(), arp.target_ip()));
    if let Ok(packet) = ipv4::Ipv4::parse_head(bytes, packet_len) {
        let _ = (packet.options().count(), packet.check_ok(), packet.payload(), packet.payload_len());
        let _ = (packet.transport_check_ok(), packet.header().fragment());
    }
    if let Ok(packet) = ipv6::Ipv6::parse_head(bytes, packet_len) {
        let _ = packet.chain().map(|chain| packet.transport_check_ok(&chain));
        let _ = ext::ExtOptions::parse(packet.payload()).map(Iterator::count);
    }
    if let Ok(info) = Info::parse(bytes, packet_len) {
        assert!(info.header_len <= info.total_len && info.total_len <= packet_len, "{info:?} in {packet_len}");
        assert!(info.header_len <= bytes.len() && info.next_header_at < info.header_len, "{info:?}");
        let _ = (FlowKey::new(&info, bytes), info.payload(bytes));
    }
    if let Ok(segment) = tcp::Tcp::parse_head(bytes, packet_len) {
        assert_eq!(segment.header_len() + segment.payload_len(), packet_len);
        let _ = (segment.options().count(), segment.payload());
    }
    if let Ok(datagram) = udp::Udp::parse_head(bytes, packet_len) {
        assert!(datagram.payload().len() <= datagram.payload_len() && datagram.payload_len() < packet_len);
    }
    let _ = icmp::Icmp::parse(bytes).map(|message| (message.header().message(), message.check_ok(), message.payload()));
    let _ = icmpv6::Icmpv6::parse(bytes).map(|message| (message.header().message(), message.payload()));
    let _ = nd::Nd::parse(bytes, Ipv6Addr::LOCALHOST, nd::ALL_NODES, nd::HOP_LIMIT);
    let _ = nd::NdOptions::parse(bytes).map(Iterator::count);
    let _ = frag::FragHeader::ref_from(bytes).map(frag::FragHeader::info);
    if let Ok(trailer) = esp::Trailer::parse(bytes) {
        assert!(trailer.trailer_len() <= bytes.len());
    }
    let mut changed = bytes.to_vec();
    let _ = (ipv4::fill_check(&mut changed), ipv4::blank_uncopied_options(&mut changed));
}

proptest! {
    #[test]
    fn no_bytes_make_a_parser_panic(mut bytes in vec(any::<u8>(), 0..200), first in prop::option::of(0u8..16), more in 0usize..70_000) {
        // Random bytes are seldom IP, so half of the cases begin with an IP version.
        if let (Some(ihl), Some(byte)) = (first, bytes.first_mut()) {
            *byte = if ihl & 1 == 1 { 0x60 } else { 0x40 | ihl };
        }
        parse_everything(&bytes, bytes.len());
        parse_everything(&bytes, bytes.len() + more);
    }

    #[test]
    fn a_valid_ipv6_chain_cut_anywhere_is_refused(
        kinds in vec(prop::sample::select(vec![43u8, 44, 60]), 1..8),
        blocks in vec(0u8..4, 8),
        more in any::<bool>(),
    ) {
        let mut chain = Vec::new();
        for (i, &kind) in kinds.iter().enumerate() {
            let next = kinds.get(i + 1).copied().unwrap_or(17);
            let len = if kind == 44 { 0 } else { blocks[i] };
            chain.extend([next, len]);
            chain.resize(chain.len() + 6 + usize::from(len) * 8, 0);
        }
        let header = ipv6::Ipv6Header::new(Ipv6Addr::LOCALHOST, Ipv6Addr::LOCALHOST, Protocol(kinds[0]), chain.len() as u16);
        let mut bytes = [header.as_bytes(), &chain].concat();
        bytes.extend(if more { &[1u8, 2, 3][..] } else { &[] });
        let whole = Info::parse(&bytes, bytes.len()).unwrap();
        let fragments = kinds.iter().filter(|&&kind| kind == 44).count();
        if fragments < 2 {
            prop_assert_eq!((whole.protocol, whole.header_len), (Protocol::UDP, 40 + chain.len()));
        } else {
            prop_assert_eq!(whole.protocol, Protocol::FRAGMENT);
        }
        for cut in 40..whole.header_len {
            prop_assert_eq!(Info::parse(&bytes[..cut], bytes.len()), Err(Malformed::OutsideHead), "cut at {}", cut);
            prop_assert_eq!(Info::parse(&bytes[..cut], cut), Err(Malformed::IpTruncated), "cut at {}", cut);
        }
    }

    #[test]
    fn an_ipv4_header_reads_as_it_was_built(
        (src, dst) in (v4(), v4()),
        (protocol, tos, ttl, id) in any::<(u8, u8, u8, u16)>(),
        (blocks, more, df) in (0u16..8192, any::<bool>(), any::<bool>()),
        options in vec(Just(1u8), 0..=10),
        payload in vec(any::<u8>(), 0..64),
    ) {
        let options: Vec<u8> = options.iter().flat_map(|_| [1, 1, 1, 1]).collect();
        let header_len = 20 + options.len();
        let total_len = header_len + payload.len();
        let offset = FragOffset::from_bytes(8 * usize::from(blocks)).unwrap();
        let mut header = ipv4::Ipv4Header::new(src, dst, Protocol(protocol), total_len as u16);
        header.set_header_len(header_len);
        header.set_tos(tos);
        header.set_ttl(ttl);
        header.set_id(id);
        header.set_dont_fragment(df);
        header.set_fragment(offset, more);
        let mut bytes = [header.as_bytes(), &options, &payload].concat();
        ipv4::fill_check(&mut bytes).unwrap();
        let fragment = (more || blocks != 0).then_some(FragInfo { offset, more, id: u32::from(id) });
        let want = Info {
            src: IpAddr::V4(src), dst: IpAddr::V4(dst), protocol: Protocol(protocol), ttl, tos, dont_fragment: df,
            plain: options.is_empty(), header_len, next_header_at: 9, total_len, fragment, id, flow_label: 0,
        };
        prop_assert_eq!(Info::parse(&bytes, total_len), Ok(want));
        prop_assert_eq!(ipv4::Ipv4::parse(&bytes).unwrap().payload(), &payload);
    }

    #[test]
    fn an_ipv6_header_reads_as_it_was_built(
        (src, dst) in (v6(), v6()),
        (class, hop_limit) in any::<(u8, u8)>(),
        label in 0u32..1 << 20,
        payload in vec(any::<u8>(), 0..64),
    ) {
        let mut header = ipv6::Ipv6Header::new(src, dst, Protocol::UDP, payload.len() as u16);
        header.set_traffic_class(class);
        header.set_flow_label(label);
        header.set_hop_limit(hop_limit);
        let bytes = [header.as_bytes(), &payload].concat();
        let want = Info {
            src: IpAddr::V6(src), dst: IpAddr::V6(dst), protocol: Protocol::UDP, ttl: hop_limit, tos: class,
            dont_fragment: true, plain: true, header_len: 40, next_header_at: 6, total_len: bytes.len(),
            fragment: None, id: 0, flow_label: label,
        };
        prop_assert_eq!(Info::parse(&bytes, bytes.len()), Ok(want));
        prop_assert_eq!(want.payload(&bytes), &payload);
    }

    #[test]
    fn a_transport_header_reads_as_it_was_built(
        (sport, dport, seq, ack, bits) in any::<(u16, u16, u32, u32, u16)>(),
        (window, check, urgent) in any::<(u16, u16, u16)>(),
        words in 0usize..=10,
    ) {
        let flags = tcp::Flags::from_bits(bits);
        let mut header = tcp::TcpHeader::new(sport, dport, seq, ack);
        header.set_flags(flags);
        header.set_header_len(20 + words * 4);
        header.set_window(window);
        header.set_check(check);
        let mut fixed = header.as_bytes().to_vec();
        fixed[18..].copy_from_slice(&urgent.to_be_bytes());
        let header = *tcp::TcpHeader::ref_from(&fixed).unwrap();
        let bytes = [header.as_bytes(), &vec![1; words * 4]].concat();
        let seen = tcp::Tcp::parse(&bytes).unwrap();
        prop_assert_eq!(seen.header(), &header);
        prop_assert_eq!((seen.header().sport(), seen.header().dport()), (sport, dport));
        prop_assert_eq!((seen.header().seq(), seen.header().ack(), seen.header().flags()), (seq, ack, flags));
        prop_assert_eq!((seen.header().window(), seen.header().check(), seen.header().urgent()), (window, check, urgent));
        prop_assert_eq!((seen.header_len(), seen.option_bytes().len()), (bytes.len(), words * 4));

        let mut header = udp::UdpHeader::new(sport, dport, 8);
        header.set_check(check);
        let seen = *udp::Udp::parse(header.as_bytes()).unwrap().header();
        prop_assert_eq!((seen.sport(), seen.dport(), seen.len(), seen.check()), (sport, dport, 8, check));
    }

    #[test]
    fn a_link_layer_header_reads_as_it_was_built(
        (dst, src) in (mac(), mac()),
        (ethertype, tci, id, seq) in any::<(u16, u16, u16, u32)>(),
        addr in v4(),
    ) {
        let header = eth::EthHeader::new(dst, src, EtherType(ethertype));
        let frame = eth::Eth::parse(header.as_bytes()).unwrap();
        prop_assert_eq!((frame.header().dst(), frame.header().src()), (dst, src));
        prop_assert_eq!(frame.header().ethertype(), EtherType(ethertype));
        prop_assert_eq!(dst.to_string().parse::<MacAddr>(), Ok(dst));
        let tag = vlan::VlanHeader::new(vlan::Tci(tci), EtherType(ethertype));
        prop_assert_eq!((tag.tci(), tag.ethertype()), (vlan::Tci(tci), EtherType(ethertype)));
        let arp = arp::ArpHeader::reply((src, addr), (dst, addr));
        prop_assert_eq!(arp::ArpHeader::parse(arp.as_bytes()), Ok(&arp));
        let esp = esp::EspHeader::new(Spi(seq), u32::from(id));
        prop_assert_eq!((esp.spi(), esp.seq()), (Spi(seq), u32::from(id)));
    }

    #[test]
    fn an_esp_trailer_reads_as_it_was_built(
        payload in vec(any::<u8>(), 0..200),
        align in prop::sample::select(vec![4usize, 8, 16, 64, 128]),
        next in any::<u8>(),
    ) {
        let len = esp::trailer_len(payload.len(), align);
        let mut plaintext = payload.clone();
        plaintext.resize(payload.len() + len, 0);
        esp::write_trailer(&mut plaintext[payload.len()..], Protocol(next));
        prop_assert_eq!(plaintext.len() % align, 0);
        let trailer = esp::Trailer::parse(&plaintext).unwrap();
        prop_assert_eq!((trailer.trailer_len(), trailer.next_header), (len, Protocol(next)));
    }

    #[test]
    fn an_updated_checksum_is_the_recomputed_one(
        mut bytes in vec(any::<u8>(), 34..300),
        at in any::<prop::sample::Index>(),
        new in any::<[u8; 16]>(),
    ) {
        bytes[0] |= 1; // all zeros have two checksums
        let check = |bytes: &[u8]| checksum::finish(checksum::sum(bytes));
        let before = check(&bytes);
        let at = 2 + at.index((bytes.len() - 18) / 2) * 2;
        for width in [2, 4, 16] {
            let mut changed = bytes.clone();
            changed[at..at + width].copy_from_slice(&new[..width]);
            let old = &bytes[at..at + width];
            if width == 2 {
                prop_assert_eq!(checksum::replace2(before, be16(old), be16(&new)), check(&changed), "at {}", at);
            }
            let diff = checksum::sub(checksum::sum(&new[..width]), checksum::sum(old));
            prop_assert_eq!(checksum::replace_by_diff(before, diff), check(&changed), "{} bytes at {}", width, at);
        }
    }

    #[test]
    fn sums_of_parts_are_the_sum_of_the_whole(
        bytes in vec(any::<u8>(), 0..3000),
        cuts in vec(any::<prop::sample::Index>(), 0..6),
    ) {
        let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        let whole = checksum::sum(&bytes);
        let mut sum = 0;
        for part in cuts.windows(2) {
            sum = checksum::block_add(sum, checksum::sum(&bytes[part[0]..part[1]]), part[0]);
        }
        prop_assert_eq!(checksum::fold(sum), checksum::fold(whole));
        // Removing bytes at the front, as a pull does, leaves the sum of the remaining bytes, also at an odd offset.
        let cut = cuts[1];
        let rest = checksum::sub(whole, checksum::sum(&bytes[..cut]));
        let want = checksum::block_add(0, checksum::sum(&bytes[cut..]), cut);
        prop_assert_eq!(checksum::fold(rest) % 0xffff, checksum::fold(want) % 0xffff, "cut at {}", cut);
    }
}

fn be16(bytes: &[u8]) -> u16 {
    u16::from_be_bytes([bytes[0], bytes[1]])
}
