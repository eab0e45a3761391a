//! IP headers in every geometry, and trimmed padding.

use base::DropReason;
use offload::ip_headers;
use packet::{Memory, geometry};
use wire::ip::Info;

use crate::frames::*;

#[test]
fn headers_are_found_in_every_geometry_and_padding_is_cut_off() {
    let mem = Memory::heap();
    let dest_opts = vec![UDP, 0, 1, 4, 0, 0, 0, 0];
    let optioned = Frame { ip_options: vec![1; 8], ..tcp4(1, 1, 100) };
    for frame in [tcp4(1, 1, 100), optioned, tcp6(1, 100), udp4(1, 0), Frame { dest_opts, ..udp6(1, 33) }] {
        let bytes = frame.bytes();
        let want = Info::parse(&bytes, bytes.len()).unwrap();
        for padding in [0, 1, 26] {
            let padded = [bytes.clone(), vec![0; padding]].concat();
            for (name, mut packet) in geometry::all(&mem, &padded, &[0, 1, 19, 20, 40, 44, 48, bytes.len()]) {
                let info = ip_headers(&mem, &mut packet).expect(&name);
                packet.check_invariants();
                assert_eq!((info, packet.to_vec()), (want, bytes.clone()), "{name} {padding} {frame:?}");
                assert!(packet.headlen() >= info.header_len, "{name}");
            }
        }
    }
}

#[test]
fn packet_that_is_no_ip_is_refused_without_a_copy() {
    for first in [0x00, 0x55, 0xff] {
        let mem = Memory::heap();
        let data = [&[first][..], &bytes(3000, 1)].concat();
        for (name, mut packet) in geometry::all(&mem, &data, &[1, 20]) {
            assert_eq!(ip_headers(&mem, &mut packet), Err(DropReason::Ipv4Header), "{name}");
            assert_eq!((packet.to_vec(), mem.copies().total_bytes()), (data.clone(), 0), "{name}");
        }
    }
}

#[test]
fn header_longer_than_the_packet_is_refused() {
    let mem = Memory::heap();
    for (frame, want) in [(tcp4(1, 1, 100), DropReason::IpTruncated), (tcp6(1, 100), DropReason::IpTruncated)] {
        let bytes = frame.bytes();
        for (name, mut packet) in geometry::all(&mem, &bytes[..bytes.len() - 1], &[1, 20, 40]) {
            assert_eq!(ip_headers(&mem, &mut packet), Err(want), "{name}");
        }
    }
    for (name, mut packet) in geometry::all(&mem, &[], &[]) {
        assert!(ip_headers(&mem, &mut packet).is_err(), "{name}");
    }
}
