//! TCP without a listener: a segment without a connection is answered with a reset (RFC 9293 §3.10.7.1, Linux
//! `tcp_v4_send_reset`, `tcp_v6_send_reset`).

use std::net::IpAddr;

use base::DropReason;
use packet::{Memory, Packet};
use wire::ip::Info;
use wire::tcp::{Flags, MAX_HEADER_LEN, Tcp, TcpHeader};
use wire::{Malformed, Protocol, checksum, ipv4, ipv6};

/// A segment, as far as its answer depends on it.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    header: TcpHeader,
    /// Number of sequence numbers of the segment: its payload, SYN and FIN.
    len: u32,
}

impl Segment {
    /// The segment that `packet` holds, whose summary `info` is.
    ///
    /// # Errors
    /// The header is truncated, or its length is invalid.
    pub fn read(packet: &Packet, info: &Info) -> Result<Self, Malformed> {
        let len = info.payload_len();
        let mut bytes = [0; MAX_HEADER_LEN];
        let head = &mut bytes[..len.min(MAX_HEADER_LEN)];
        if !packet.read_at(info.header_len, head) {
            return Err(Malformed::TcpShort);
        }
        let segment = Tcp::parse_head(head, len)?;
        let header = *segment.header();
        let controls = [Flags::SYN, Flags::FIN].into_iter().filter(|&it| header.flags().contains(it)).count();
        Ok(Self { header, len: (segment.payload_len() + controls) as u32 })
    }

    /// Reset that answers the segment, with its IP header; `info` is the summary of its packet. `None` for a reset, and for a segment
    /// that is not from one host.
    ///
    /// # Errors
    /// [`DropReason::NoMemory`].
    pub fn reset(&self, mem: &Memory, info: &Info) -> Result<Option<Packet>, DropReason> {
        let asked = &self.header;
        if asked.flags().contains(Flags::RST) || !crate::is_one_host(info.src) {
            return Ok(None);
        }
        let (ports, has_ack) = ((asked.dport(), asked.sport()), asked.flags().contains(Flags::ACK));
        let mut header = if has_ack {
            TcpHeader::new(ports.0, ports.1, asked.ack(), 0)
        } else {
            TcpHeader::new(ports.0, ports.1, 0, asked.seq().wrapping_add(self.len))
        };
        header.set_flags(if has_ack { Flags::RST } else { Flags::RST | Flags::ACK });
        header.set_window(0);
        let (from, to) = (info.dst, info.src);
        let pseudo = match (from, to) {
            (IpAddr::V4(from), IpAddr::V4(to)) => checksum::pseudo_v4(from, to, Protocol::TCP, TcpHeader::LEN),
            (IpAddr::V6(from), IpAddr::V6(to)) => checksum::pseudo_v6(from, to, Protocol::TCP, TcpHeader::LEN),
            _ => return Ok(None),
        };
        header.set_check(checksum::finish(checksum::add(pseudo, checksum::sum(header.as_bytes()))));
        let front = info.version().header_len();
        let mut packet = Packet::new(mem, Memory::HEADROOM + front, TcpHeader::LEN)?;
        packet.put(TcpHeader::LEN).ok_or(DropReason::NoMemory)?.copy_from_slice(header.as_bytes());
        push_ip(mem, &mut packet, from, to, info.tos)?;
        Ok(Some(packet))
    }
}

/// Puts an IP header in front of a segment, without ECN (RFC 3168 §6.1.1) and with Don't Fragment.
fn push_ip(mem: &Memory, packet: &mut Packet, from: IpAddr, to: IpAddr, tos: u8) -> Result<(), DropReason> {
    let dscp = tos & !3;
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let mut header =
                ipv4::Ipv4Header::new(from, to, Protocol::TCP, (ipv4::Ipv4Header::LEN + TcpHeader::LEN) as u16);
            header.set_tos(dscp);
            header.set_dont_fragment(true);
            header.fill_check();
            header.write(packet.push(mem, ipv4::Ipv4Header::LEN)?)?;
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let mut header = ipv6::Ipv6Header::new(from, to, Protocol::TCP, TcpHeader::LEN as u16);
            header.set_traffic_class(dscp);
            header.write(packet.push(mem, ipv6::Ipv6Header::LEN)?)?;
        }
        _ => return Err(DropReason::NoRoute),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use packet::geometry;

    use super::*;

    const SYN: Flags = Flags::SYN;
    const ACK: Flags = Flags::ACK;
    const RST: Flags = Flags::RST;

    /// A packet from .1 to .2 with a segment of these flags, and `len` bytes in it; its sequence number is the last one.
    fn packet(v6: bool, flags: Flags, len: usize) -> Vec<u8> {
        let mut header = TcpHeader::new(1000, 80, u32::MAX, 77);
        header.set_flags(flags);
        let segment = [header.as_bytes(), &vec![7; len]].concat();
        let mut bytes = vec![0; if v6 { ipv6::Ipv6Header::LEN } else { ipv4::Ipv4Header::LEN }];
        if v6 {
            let [src, dst] = ["2001:db8::1", "2001:db8::2"].map(|addr| addr.parse().unwrap());
            let mut header = ipv6::Ipv6Header::new(src, dst, Protocol::TCP, segment.len() as u16);
            header.set_traffic_class(0xb9);
            header.write(&mut bytes).unwrap();
        } else {
            let [src, dst] = ["192.0.2.1", "192.0.2.2"].map(|addr| addr.parse().unwrap());
            let mut header = ipv4::Ipv4Header::new(src, dst, Protocol::TCP, (20 + segment.len()) as u16);
            header.set_tos(0xb9);
            header.fill_check();
            header.write(&mut bytes).unwrap();
        }
        [bytes, segment].concat()
    }

    #[test]
    fn reset_in_every_geometry_has_expected_numbers() {
        let mem = Memory::heap();
        // (flags, bytes, sequence number, acknowledgment, flags of the reset)
        let cases = [
            (SYN, 0, 0, Some(0), RST | ACK),
            (SYN | Flags::FIN, 3, 0, Some(4), RST | ACK),
            (Flags::NONE, 9, 0, Some(8), RST | ACK),
            (ACK, 9, 77, None, RST),
            (SYN | ACK, 0, 77, None, RST),
            (Flags::FIN | ACK, 2000, 77, None, RST),
        ];
        for v6 in [false, true] {
            for (flags, len, seq, ack, want) in cases {
                let bytes = packet(v6, flags, len);
                let info = Info::parse(&bytes, bytes.len()).unwrap();
                for (shape, packet) in geometry::all(&mem, &bytes, &[20, 30, 40, 50, 60]) {
                    let segment = Segment::read(&packet, &info).unwrap();
                    let reset = segment.reset(&mem, &info).unwrap().unwrap();
                    let bytes = reset.to_vec();
                    let told = Info::parse(&bytes, bytes.len()).unwrap();
                    assert_eq!((told.src, told.dst, told.tos, told.dont_fragment), (info.dst, info.src, 0xb8, true));
                    assert!(offload::checksum::verify(&reset, &told), "{flags:?} {shape}");
                    let answer = Tcp::parse(told.payload(&bytes)).unwrap();
                    let it = answer.header();
                    assert_eq!((it.sport(), it.dport(), it.flags(), it.window()), (80, 1000, want, 0), "{flags:?}");
                    assert_eq!(
                        (it.seq(), it.ack(), answer.payload_len()),
                        (seq, ack.unwrap_or(0), 0),
                        "{flags:?} {shape}"
                    );
                }
            }
        }
    }

    #[test]
    fn reset_and_segment_without_sender_are_not_answered() {
        let mem = Memory::heap();
        let is_answered = |bytes: &[u8]| {
            let info = Info::parse(bytes, bytes.len()).unwrap();
            let packet = Packet::with_data(&mem, bytes).unwrap();
            Segment::read(&packet, &info).unwrap().reset(&mem, &info).unwrap().is_some()
        };
        for v6 in [false, true] {
            assert!(is_answered(&packet(v6, SYN, 0)));
            for flags in [RST, RST | ACK, RST | SYN] {
                assert!(!is_answered(&packet(v6, flags, 0)), "{flags:?}");
            }
        }
        let mut bytes = packet(false, SYN, 0);
        for src in [[0, 0, 0, 0], [255, 255, 255, 255], [224, 0, 0, 1], [127, 0, 0, 1]] {
            let header = ipv4::Ipv4Header::mut_from(&mut bytes).unwrap();
            header.set_src(src.into());
            header.fill_check();
            assert!(!is_answered(&bytes), "{src:?}");
        }
    }

    #[test]
    fn a_segment_whose_header_cannot_be_is_none() {
        let mem = Memory::heap();
        let whole = packet(false, SYN, 0);
        let read = |bytes: &[u8]| {
            let mut bytes = bytes.to_vec();
            let total = bytes.len() as u16;
            bytes[2..4].copy_from_slice(&total.to_be_bytes());
            ipv4::Ipv4Header::mut_from(&mut bytes).unwrap().fill_check();
            let info = Info::parse(&bytes, bytes.len()).unwrap();
            Segment::read(&Packet::with_data(&mem, &bytes).unwrap(), &info).map(drop)
        };
        for len in 20..40 {
            assert_eq!(read(&whole[..len]), Err(Malformed::TcpShort), "{len}");
        }
        for (words, want) in [(4, Malformed::TcpDataOffset), (6, Malformed::TcpShort)] {
            let mut bytes = whole.clone();
            bytes[32] = words << 4;
            assert_eq!(read(&bytes), Err(want), "{words}");
        }
    }
}
