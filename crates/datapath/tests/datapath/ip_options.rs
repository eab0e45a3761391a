//! IPv4 options: malformed ones are answered with an ICMP error, recording ones are filled in.

use std::time::Duration;

use base::{DropReason, Mib};
use sim::{Flow, Node};
use wire::icmp;

use crate::common::*;

/// An IPv4 packet with options in its header.
fn with_options(bytes: &[u8], options: &[u8]) -> Vec<u8> {
    let mut longer = [&bytes[..20], options, &bytes[20..]].concat();
    let header = wire::ipv4::Ipv4Header::mut_from(&mut longer).unwrap();
    header.set_header_len(20 + options.len());
    header.set_total_len((bytes.len() + options.len()) as u16);
    wire::ipv4::fill_check(&mut longer).unwrap();
    longer
}

/// Options of a packet after a router has forwarded it.
fn forwarded(node: &mut Node, options: &[u8]) -> Vec<u8> {
    let [flow, _] = flows();
    node.rx_bytes(NOW, INSIDE, &with_options(&flow.udp(100), options));
    let sent = only(node.tx(OUTSIDE));
    assert_eq!((info(&sent).header_len, node.drops()), (20 + options.len(), vec![]), "{options:?}");
    sent.to_vec()[20..20 + options.len()].to_vec()
}

#[test]
fn source_route_is_dropped_silently() {
    let [flow, _] = flows();
    for options in [&[131, 7, 4, 10, 9, 9, 9, 0][..], &[137, 7, 4, 10, 9, 9, 9, 0], &[1, 131, 3, 4]] {
        let mut node = router();
        node.rx_bytes(NOW, INSIDE, &with_options(&flow.udp(100), options));
        assert!(node.tx(OUTSIDE).is_empty() && node.tx(INSIDE).is_empty(), "{options:?}");
        assert_eq!(node.drops(), [(1, DropReason::Ipv4Options, 1)], "{options:?}");
        assert_eq!(node.datapath.counters, counters([(Mib::IpInReceives, 1), (Mib::IpInHdrErrors, 1)]), "{options:?}");
    }
}

#[test]
fn malformed_option_is_answered_with_its_offset() {
    let cases: [(&[u8], u8); 8] = [
        (&[7, 9, 4, 0], 20),
        (&[1, 1, 7, 1], 22),
        (&[7, 2, 0, 0], 21),
        (&[7, 7, 3, 0, 0, 0, 0, 0], 22),
        (&[7, 7, 4, 0, 0, 0, 0, 7, 3, 4, 0, 0], 27),
        (&[68, 4, 5, 0xf0], 23),
        (&[68, 4, 4, 0], 22),
        (&[148, 3, 0, 0], 21),
    ];
    for to in ["10.2.0.1", "10.1.0.254", "10.1.0.255", "10.1.0.1"] {
        for (options, pointer) in cases {
            let mut node = router();
            let flow = Flow::new("10.1.0.1", to);
            let bytes = with_options(&flow.udp(100), options);
            node.rx_bytes(NOW, INSIDE, &bytes);
            assert_eq!(node.drops(), [(1, DropReason::Ipv4Options, 1)], "{to} {options:?}");
            assert_eq!(node.datapath.counters.get(Mib::IpInHdrErrors), 1);
            if to == "10.1.0.255" {
                // The packet was a broadcast (RFC 1122 §3.2.2).
                assert!(node.tx(INSIDE).is_empty(), "{options:?}");
                continue;
            }
            let told = told(&only(node.tx(INSIDE)));
            let message = Message::V4(icmp::IcmpMessage::ParamProblem { code: 0, pointer });
            assert_eq!((told.message, told.quote), (message, bytes), "{to} {options:?}");
        }
    }
}

#[test]
fn router_records_the_address_of_the_output_link() {
    let mut node = router();
    // 1 s after 00:00:01 UT.
    node.datapath.epoch = Duration::from_secs(86_400 * 20_000 + 1);
    let time = [0, 0, 0x07, 0xd0];
    let address = [10, 2, 0, 254];
    let other = [192, 0, 2, 1];
    let cases: [(&[u8], Vec<u8>); 6] = [
        (&[148, 4, 0, 0], vec![148, 4, 0, 0]),
        (&[7, 7, 4, 0, 0, 0, 0, 0], [&[7, 7, 8][..], &address, &[0]].concat()),
        (&[7, 7, 8, 1, 2, 3, 4, 0], vec![7, 7, 8, 1, 2, 3, 4, 0]),
        (&[68, 8, 5, 0, 0, 0, 0, 0], [&[68, 8, 9, 0][..], &time].concat()),
        (&[68, 12, 5, 1, 0, 0, 0, 0, 0, 0, 0, 0], [&[68, 12, 13, 1][..], &address, &time].concat()),
        (&[68, 8, 9, 0x20, 1, 2, 3, 4], vec![68, 8, 9, 0x30, 1, 2, 3, 4]),
    ];
    for (options, want) in cases {
        assert_eq!(forwarded(&mut node, options), want, "{options:?}");
    }
    for (named, stamped) in [([10, 1, 0, 254], true), (other, false)] {
        let options = [&[68, 12, 5, 3][..], &named, &[0; 4]].concat();
        let pointer = if stamped { 13 } else { 5 };
        let entry = if stamped { time } else { [0; 4] };
        assert_eq!(forwarded(&mut node, &options), [&[68, 12, pointer, 3][..], &named, &entry].concat());
    }
}

#[test]
fn next_hop_decides_which_address_of_a_link_is_recorded() {
    let mut node = Node::new();
    node.port(1, sim::PortOptions::BARE, &["10.1.0.254/24"]);
    node.port(2, sim::PortOptions::BARE, &["10.3.0.254/24", "10.4.0.254/24"]);
    node.route("10.2.0.0/16", Some("10.4.0.1"), OUTSIDE);
    assert_eq!(forwarded(&mut node, &[7, 7, 4, 0, 0, 0, 0, 0]), [7, 7, 8, 10, 4, 0, 254, 0]);
}

#[test]
fn ping_comes_back_with_the_options_that_record() {
    let mut node = router();
    let flow = Flow::new("10.1.0.1", "10.1.0.254");
    let own = [10, 1, 0, 254];
    let time = 1000_u32.to_be_bytes();
    let cases: [(Vec<u8>, Vec<u8>); 5] = [
        (vec![148, 4, 0, 0], vec![]),
        ([&[148, 4, 0, 0, 7, 11, 4][..], &[0; 9]].concat(), [&[7, 11, 12][..], &own, &own, &[0]].concat()),
        ([&[7, 11, 8, 1, 2, 3, 4][..], &[0; 5]].concat(), [&[7, 11, 12, 1, 2, 3, 4][..], &own, &[0]].concat()),
        ([&[68, 12, 5, 0][..], &[0; 8]].concat(), [&[68, 12, 13, 0][..], &time, &time].concat()),
        ([&[68, 20, 5, 1][..], &[0; 16]].concat(), [&[68, 20, 21, 1][..], &own, &time, &own, &time].concat()),
    ];
    for (options, want) in cases {
        node.rx_bytes(NOW, INSIDE, &with_options(&flow.ping(9, 56), &options));
        let reply = only(node.tx(INSIDE));
        let header_len = info(&reply).header_len;
        assert_eq!(reply.to_vec()[20..header_len], want, "{options:?}");
        assert_eq!(told(&reply).quote.len(), 56, "{options:?}");
        assert_eq!(node.drops(), [], "{options:?}");
    }
}
