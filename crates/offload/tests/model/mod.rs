//! Random packets and bursts, with their invariants. The property tests and the fuzz targets run the same steps.

pub(crate) mod gro;
pub(crate) mod gso;
pub(crate) mod tunnel;

use packet::{Buf, Csum, Memory, Packet};
use wire::checksum as sums;
use wire::{Protocol, ipv4, ipv6};

/// Headers of a segment or datagram of flow `number`, ports included, without lengths and checksums.
///
/// TCP and UDP over both families, with and without options and extension headers, with and without DF.
fn headers(number: u8) -> (Vec<u8>, usize) {
    let is_tcp = number % 6 < 4;
    let protocol = if is_tcp { Protocol::TCP } else { Protocol::UDP };
    let mut out = Vec::new();
    match number % 6 {
        0 | 1 | 4 => {
            let mut header = ipv4::Ipv4Header::new([10, 1, 0, 1].into(), [10, 2, 0, 1].into(), protocol, 0);
            header.set_dont_fragment(number % 6 != 1);
            out.extend(header.as_bytes());
        }
        kind => {
            let (src, dst) = ([0xfd00, 1, 0, 0, 0, 0, 0, 1].into(), [0xfd00, 2, 0, 0, 0, 0, 0, 1].into());
            let next = if kind == 3 { Protocol::DEST_OPTS } else { protocol };
            out.extend(ipv6::Ipv6Header::new(src, dst, next, 0).as_bytes());
            if kind == 3 {
                out.extend([Protocol::TCP.0, 0, 1, 4, 0, 0, 0, 0]);
            }
        }
    }
    let l4 = out.len();
    out.extend([0x10, number / 6, 0x20, 0]);
    if is_tcp {
        // Sequence number, acknowledgment, data offset and ACK, window, checksum, urgent pointer, time stamps.
        let options = if number % 6 == 1 { 0 } else { 12 };
        out.extend([0, 0, 0, 0, 0, 0, 0, 9, (5 + options as u8 / 4) << 4, 0x10, 1, 0, 0, 0, 0, 0]);
        out.extend(&[1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2][..options]);
    } else {
        out.extend([0; 4]);
    }
    (out, l4)
}

/// Writes the lengths of the packet, whose headers are those of flow `number`.
fn fill_lengths(number: u8, l4: usize, bytes: &mut [u8]) {
    let len = bytes.len();
    if bytes[0] >> 4 == 4 {
        bytes[2..4].copy_from_slice(&(len as u16).to_be_bytes());
    } else {
        bytes[4..6].copy_from_slice(&((len - ipv6::Ipv6Header::LEN) as u16).to_be_bytes());
    }
    if number % 6 >= 4 {
        bytes[l4 + 4..l4 + 6].copy_from_slice(&((len - l4) as u16).to_be_bytes());
    }
}

/// Writes correct checksums; the transport's is the pseudo-header's sum if it is partial.
fn fill_checks(number: u8, l4: usize, bytes: &mut [u8], to_be_made: bool) {
    let is_v4 = matches!(number % 6, 0 | 1 | 4);
    let (protocol, at) = if number % 6 < 4 { (6, l4 + 16) } else { (17, l4 + 6) };
    if is_v4 {
        bytes[10..12].fill(0);
        let check = sums::finish(sums::sum(&bytes[..l4]));
        bytes[10..12].copy_from_slice(&check.to_be_bytes());
    }
    bytes[at..at + 2].fill(0);
    let addresses = if is_v4 { &bytes[12..20] } else { &bytes[8..40] };
    let pseudo = sums::add(sums::sum(addresses), protocol + (bytes.len() - l4) as u32);
    let check = if to_be_made {
        sums::fold(pseudo)
    } else if protocol == 17 {
        sums::finish_udp(sums::add(pseudo, sums::sum(&bytes[l4..])))
    } else {
        sums::finish(sums::add(pseudo, sums::sum(&bytes[l4..])))
    };
    bytes[at..at + 2].copy_from_slice(&check.to_be_bytes());
}

/// A packet of these bytes, in one of several shapes.
fn shaped(mem: &Memory, bytes: &[u8], shape: u8, cut: usize) -> Packet {
    let (front, back) = bytes.split_at(cut.min(bytes.len()));
    match shape % 6 {
        0 => Packet::with_data(mem, bytes).expect("memory"),
        1 => {
            let mut packet = Packet::with_data(mem, front).expect("memory");
            packet.append(Packet::with_data(mem, back).expect("memory"));
            packet
        }
        2 => {
            let mut packet = Packet::with_data(mem, front).expect("memory");
            packet.push_child(Packet::with_data(mem, back).expect("memory"));
            packet
        }
        3 => Packet::from_buf(Buf::foreign(bytes.to_vec())),
        4 => {
            let mut packet = Packet::with_data(mem, front).expect("memory");
            packet.append(Packet::from_buf(Buf::foreign(back.to_vec())));
            packet
        }
        _ => {
            // All slots, then children.
            let mut packet = Packet::with_data(mem, front).expect("memory");
            for piece in back.chunks(1 + back.len() / 60) {
                packet.append(Packet::with_data(mem, piece).expect("memory"));
            }
            packet
        }
    }
}

/// The bytes on the wire, after the receiver has completed the checksum.
fn on_wire(packet: &Packet) -> Vec<u8> {
    let mut bytes = packet.to_vec();
    if let Csum::Partial { start, offset } = packet.meta.csum {
        let (start, at) = (usize::from(start), usize::from(start) + usize::from(offset));
        let sum = sums::sum(bytes.get(start..).unwrap_or_default());
        let check = if offset == 6 { sums::finish_udp(sum) } else { sums::finish(sum) };
        if let Some(field) = bytes.get_mut(at..at + 2) {
            field.copy_from_slice(&check.to_be_bytes());
        }
    }
    bytes
}
