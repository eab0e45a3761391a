//! Packets of one flow, with verifiable checksums and payload.

use std::net::IpAddr;

use packet::{Csum, Cut, Gso, GsoKind, Memory, Packet};
use wire::{Protocol, Version, checksum, icmp, icmpv6, ipv4, ipv6, tcp, udp};

/// Length of a TCP header with the timestamp option, as Linux sends it (RFC 7323).
const TCP_LEN: usize = tcp::TcpHeader::LEN + 12;

/// Endpoints of a flow, and constructors of its packets, each of which begins with an IP header.
#[derive(Clone, Copy, Debug)]
pub struct Flow {
    /// The source.
    pub src: IpAddr,
    /// The destination, of the same family.
    pub dst: IpAddr,
    /// The source port.
    pub sport: u16,
    /// The destination port.
    pub dport: u16,
    /// TTL or hop limit.
    pub ttl: u8,
    /// IPv4's Don't Fragment.
    pub dont_fragment: bool,
}

/// The byte at offset `at` of every stream.
pub const fn stream_byte(at: u32) -> u8 {
    (at.wrapping_mul(2_654_435_761) >> 23) as u8
}

/// `len` bytes of every stream, from offset `first` on.
fn stream(first: u32, len: usize) -> Vec<u8> {
    (0..len as u32).map(|at| stream_byte(first.wrapping_add(at))).collect()
}

impl Flow {
    /// A flow with a TTL of 64 and Don't Fragment, from port 40000 to port 5201.
    ///
    /// # Panics
    /// If these are not two addresses of one family.
    pub fn new(src: &str, dst: &str) -> Self {
        let [src, dst] = [src, dst].map(|addr| addr.parse::<IpAddr>().expect("an address"));
        assert_eq!(src.is_ipv4(), dst.is_ipv4(), "{src} and {dst}");
        Self { src, dst, sport: 40_000, dport: 5201, ttl: 64, dont_fragment: true }
    }

    /// The flow of the replies.
    #[must_use]
    pub const fn reversed(self) -> Self {
        Self { src: self.dst, dst: self.src, sport: self.dport, dport: self.sport, ..self }
    }

    /// IPv4 or IPv6.
    pub const fn version(&self) -> Version {
        Version::of_addr(self.src)
    }

    /// Length of the headers in front of a TCP segment's payload.
    pub const fn tcp_headers(&self) -> usize {
        self.version().header_len() + TCP_LEN
    }

    /// A packet of any protocol.
    pub fn raw(&self, protocol: Protocol, payload: &[u8]) -> Vec<u8> {
        let mut bytes = match (self.src, self.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let mut header =
                    ipv4::Ipv4Header::new(src, dst, protocol, (ipv4::Ipv4Header::LEN + payload.len()) as u16);
                header.set_ttl(self.ttl);
                header.set_id(0x1234);
                header.set_dont_fragment(self.dont_fragment);
                header.fill_check();
                header.as_bytes().to_vec()
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                let mut header = ipv6::Ipv6Header::new(src, dst, protocol, payload.len() as u16);
                header.set_hop_limit(self.ttl);
                header.as_bytes().to_vec()
            }
            _ => unreachable!("checked when made"),
        };
        bytes.extend_from_slice(payload);
        bytes
    }

    /// A finished TCP segment with `len` bytes of the stream, from `seq` on.
    pub fn tcp(&self, seq: u32, len: usize) -> Vec<u8> {
        self.tcp_with(seq, &stream(seq, len))
    }

    /// A finished TCP segment with the given payload.
    pub fn tcp_with(&self, seq: u32, payload: &[u8]) -> Vec<u8> {
        let mut segment = self.tcp_segment(seq, tcp::Flags::ACK, payload);
        self.finish(Protocol::TCP, tcp::CHECK_AT, &mut segment);
        self.raw(Protocol::TCP, &segment)
    }

    /// A finished TCP segment without payload, with the given flags.
    pub fn tcp_flags(&self, seq: u32, flags: tcp::Flags) -> Vec<u8> {
        let mut segment = self.tcp_segment(seq, flags, &[]);
        self.finish(Protocol::TCP, tcp::CHECK_AT, &mut segment);
        self.raw(Protocol::TCP, &segment)
    }

    /// `len` bytes of the stream, from `seq` on, as one fat packet with segments of `size` bytes and a partial
    /// checksum. A payload of one segment gives an ordinary packet.
    ///
    /// # Panics
    /// If no memory is free.
    pub fn fat_tcp(&self, mem: &Memory, seq: u32, len: usize, size: u16) -> Packet {
        self.fat_tcp_with(mem, seq, &stream(seq, len), size)
    }

    /// A packet as of [`fat_tcp`](Self::fat_tcp), with the given payload.
    ///
    /// # Panics
    /// If no memory is free.
    pub fn fat_tcp_with(&self, mem: &Memory, seq: u32, payload: &[u8], size: u16) -> Packet {
        let kind = if self.version() == Version::V4 { GsoKind::TcpV4 } else { GsoKind::TcpV6 };
        self.fat(mem, Protocol::TCP, &mut self.tcp_segment(seq, tcp::Flags::ACK, payload), (payload.len(), size, kind))
    }

    /// A finished UDP datagram with `len` bytes of the stream.
    pub fn udp(&self, len: usize) -> Vec<u8> {
        self.udp_with(&stream(0, len))
    }

    /// A finished UDP datagram with the given payload.
    pub fn udp_with(&self, payload: &[u8]) -> Vec<u8> {
        let mut datagram = self.datagram(payload);
        self.finish(Protocol::UDP, udp::CHECK_AT, &mut datagram);
        self.raw(Protocol::UDP, &datagram)
    }

    /// A train of UDP datagrams of `size` bytes each, with `len` bytes of the stream in total.
    ///
    /// # Panics
    /// If no memory is free.
    pub fn fat_udp(&self, mem: &Memory, len: usize, size: u16) -> Packet {
        self.fat_udp_with(mem, &stream(0, len), size)
    }

    /// A train as of [`fat_udp`](Self::fat_udp), with the given payload.
    ///
    /// # Panics
    /// If no memory is free.
    pub fn fat_udp_with(&self, mem: &Memory, payload: &[u8], size: u16) -> Packet {
        self.fat(mem, Protocol::UDP, &mut self.datagram(payload), (payload.len(), size, GsoKind::Udp))
    }

    /// A ping with `len` bytes of data.
    pub fn ping(&self, seq: u16, len: usize) -> Vec<u8> {
        self.ping_with(seq, &stream(0, len))
    }

    /// A ping with the given data.
    ///
    /// # Panics
    /// Never: the message has its header.
    pub fn ping_with(&self, seq: u16, data: &[u8]) -> Vec<u8> {
        let mut message = [&[0; icmp::IcmpHeader::LEN], data].concat();
        let id = self.sport;
        match (self.src, self.dst) {
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                let header = icmpv6::Icmpv6Header::new(icmpv6::Icmpv6Message::EchoRequest { id, seq });
                header.write(&mut message).expect("room");
                icmpv6::fill_check(&mut message, src, dst).expect("a message");
                self.raw(Protocol::ICMPV6, &message)
            }
            _ => {
                icmp::IcmpHeader::new(icmp::IcmpMessage::EchoRequest { id, seq }).write(&mut message).expect("room");
                icmp::fill_check(&mut message).expect("a message");
                self.raw(Protocol::ICMP, &message)
            }
        }
    }

    fn tcp_segment(&self, seq: u32, flags: tcp::Flags, payload: &[u8]) -> Vec<u8> {
        let mut header = tcp::TcpHeader::new(self.sport, self.dport, seq, 1);
        header.set_header_len(TCP_LEN);
        header.set_flags(flags);
        header.set_window(512);
        let mut segment = header.as_bytes().to_vec();
        segment.extend_from_slice(&[1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2]);
        segment.extend_from_slice(payload);
        segment
    }

    fn datagram(&self, payload: &[u8]) -> Vec<u8> {
        let header = udp::UdpHeader::new(self.sport, self.dport, (udp::UdpHeader::LEN + payload.len()) as u16);
        [header.as_bytes(), payload].concat()
    }

    fn pseudo(&self, protocol: Protocol, len: usize) -> u32 {
        match (self.src, self.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => checksum::pseudo_v4(src, dst, protocol, len),
            (IpAddr::V6(src), IpAddr::V6(dst)) => checksum::pseudo_v6(src, dst, protocol, len),
            _ => unreachable!("checked when made"),
        }
    }

    fn finish(&self, protocol: Protocol, check_at: usize, transport: &mut [u8]) {
        let sum = checksum::add(self.pseudo(protocol, transport.len()), checksum::sum(transport));
        let check = if protocol == Protocol::UDP { checksum::finish_udp(sum) } else { checksum::finish(sum) };
        transport[check_at..check_at + 2].copy_from_slice(&check.to_be_bytes());
    }

    fn fat(
        &self,
        mem: &Memory,
        protocol: Protocol,
        transport: &mut [u8],
        (len, size, kind): (usize, u16, GsoKind),
    ) -> Packet {
        let offset = if protocol == Protocol::UDP { udp::CHECK_AT } else { tcp::CHECK_AT };
        let check = checksum::fold(self.pseudo(protocol, transport.len()));
        transport[offset..offset + 2].copy_from_slice(&check.to_be_bytes());
        let mut pkt = Packet::with_data(mem, &self.raw(protocol, transport)).expect("memory");
        pkt.meta.csum = Csum::Partial { start: self.version().header_len() as u16, offset: offset as u16 };
        let segs = len.div_ceil(usize::from(size)) as u16;
        if segs > 1 {
            pkt.meta.cut = Cut::Gso(Gso { size, kind, segs, ecn: false, fixed_id: false });
        }
        pkt
    }
}
