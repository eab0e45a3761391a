//! Frames for the tests, built and checked byte by byte, without the code under test.

use base::{Origin, PortId};
use offload::gro::Config;
use offload::{CsumOffload, Features, Gro};
use packet::{Buf, Csum, Memory, Packet};

pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;

pub(crate) const FIN: u16 = 0x01;
pub(crate) const SYN: u16 = 0x02;
pub(crate) const RST: u16 = 0x04;
pub(crate) const PSH: u16 = 0x08;
pub(crate) const ACK: u16 = 0x10;
pub(crate) const URG: u16 = 0x20;
pub(crate) const ECE: u16 = 0x40;
pub(crate) const CWR: u16 = 0x80;

/// Options: no-op, no-op, timestamps.
pub(crate) const TIMESTAMPS: [u8; 12] = [1, 1, 8, 10, 0, 0, 1, 2, 0, 0, 3, 4];

/// Configuration for all protocols and any geometry.
pub(crate) const MERGE: Config = Config { udp: true, frag_list: true };

/// A device with support for page fragments, without other offloads.
pub(crate) const SG: Features = Features { sg: true, frag_list: true, ..Features::NONE };

/// A device with support for page fragments and checksum completion.
pub(crate) const SG_CSUM: Features = Features { csum: CsumOffload::Any, ..SG };

/// A TCP segment or UDP datagram in an IP packet.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    pub(crate) v6: bool,
    pub(crate) protocol: u8,
    /// Field that distinguishes flows.
    pub(crate) port: u16,
    pub(crate) ttl: u8,
    pub(crate) tos: u8,
    pub(crate) id: u16,
    /// IPv4's flags and fragment offset.
    pub(crate) frag: u16,
    pub(crate) flow_label: u32,
    /// IPv4 options, a multiple of four bytes.
    pub(crate) ip_options: Vec<u8>,
    /// A destination options header, if not empty.
    pub(crate) dest_opts: Vec<u8>,
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    pub(crate) flags: u16,
    pub(crate) window: u16,
    pub(crate) urgent: u16,
    pub(crate) options: Vec<u8>,
    pub(crate) payload: Vec<u8>,
}

pub(crate) const DF: u16 = 0x4000;

/// Change of a frame by a test.
pub(crate) type ChangeFrame = fn(&mut Frame);

/// Change of a packet by a test.
pub(crate) type ChangePacket = fn(&mut Packet);

/// An IPv4 TCP segment with timestamps.
pub(crate) fn tcp4(seq: u32, id: u16, len: usize) -> Frame {
    Frame {
        v6: false,
        protocol: TCP,
        port: 1000,
        ttl: 64,
        tos: 0,
        id,
        frag: DF,
        flow_label: 0,
        ip_options: Vec::new(),
        dest_opts: Vec::new(),
        seq,
        ack: 0x8765_4321,
        flags: ACK,
        window: 502,
        urgent: 0,
        options: TIMESTAMPS.to_vec(),
        payload: bytes(len, seq),
    }
}

/// An IPv6 TCP segment with timestamps.
pub(crate) fn tcp6(seq: u32, len: usize) -> Frame {
    Frame { v6: true, flow_label: 0x12345, ..tcp4(seq, 0, len) }
}

/// A datagram over IPv4.
pub(crate) fn udp4(id: u16, len: usize) -> Frame {
    Frame { protocol: UDP, ..tcp4(u32::from(id), id, len) }
}

/// A datagram over IPv6.
pub(crate) fn udp6(salt: u16, len: usize) -> Frame {
    Frame { v6: true, ..udp4(salt, len) }
}

/// Pseudorandom bytes.
pub(crate) fn bytes(len: usize, salt: u32) -> Vec<u8> {
    (0..len as u32).map(|i| ((i ^ salt.rotate_left(7)).wrapping_mul(2_654_435_761) >> 23) as u8).collect()
}

impl Frame {
    /// The packet on the wire, with correct lengths and checksums.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let transport = self.transport();
        let mut packet = if self.v6 { self.ip6(transport.len()) } else { self.ip4(transport.len()) };
        let l4 = packet.len();
        packet.extend(transport);
        if self.frag & 0x3fff == 0 {
            let at = l4 + if self.protocol == UDP { 6 } else { 16 };
            let check = match transport_sum(&packet, l4, self.protocol) {
                0xffff if self.protocol == UDP => 0xffff,
                sum => !sum,
            };
            packet[at..at + 2].copy_from_slice(&check.to_be_bytes());
        }
        packet
    }

    /// Offset of the payload.
    pub(crate) fn header_len(&self) -> usize {
        self.bytes().len() - self.payload.len()
    }

    fn transport(&self) -> Vec<u8> {
        let mut out = [self.port.to_be_bytes(), 2000u16.to_be_bytes()].concat();
        if self.protocol == UDP {
            out.extend((8 + self.payload.len() as u16).to_be_bytes());
            out.extend([0, 0]);
        } else {
            out.extend(self.seq.to_be_bytes());
            out.extend(self.ack.to_be_bytes());
            let words = (20 + self.options.len() as u16) / 4;
            for field in [words << 12 | self.flags, self.window, 0, self.urgent] {
                out.extend(field.to_be_bytes());
            }
            out.extend(&self.options);
        }
        out.extend(&self.payload);
        out
    }

    fn ip4(&self, transport_len: usize) -> Vec<u8> {
        let header_len = 20 + self.ip_options.len();
        let mut out = vec![0x40 | (header_len / 4) as u8, self.tos];
        for field in [(header_len + transport_len) as u16, self.id, self.frag] {
            out.extend(field.to_be_bytes());
        }
        out.extend([self.ttl, self.protocol, 0, 0, 10, 1, 0, 1, 10, 2, 0, 2]);
        out.extend(&self.ip_options);
        let check = !plain_sum(&out);
        out[10..12].copy_from_slice(&check.to_be_bytes());
        out
    }

    fn ip6(&self, transport_len: usize) -> Vec<u8> {
        let word = 6 << 28 | u32::from(self.tos) << 20 | self.flow_label;
        let mut out = word.to_be_bytes().to_vec();
        out.extend(((self.dest_opts.len() + transport_len) as u16).to_be_bytes());
        out.extend([if self.dest_opts.is_empty() { self.protocol } else { 60 }, self.ttl]);
        out.extend([0xfd, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        out.extend([0xfd, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
        out.extend(&self.dest_opts);
        out
    }
}

/// RFC 1071 §4.1, byte by byte.
pub(crate) fn plain_sum(bytes: &[u8]) -> u16 {
    let mut sum = 0u64;
    for pair in bytes.chunks(2) {
        sum += u64::from(pair[0]) << 8 | u64::from(*pair.get(1).unwrap_or(&0));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// The sum that a transport checksum covers, pseudo-header first.
fn transport_sum(packet: &[u8], l4: usize, protocol: u8) -> u16 {
    let addresses = if packet[0] >> 4 == 4 { &packet[12..20] } else { &packet[8..40] };
    let transport = &packet[l4..];
    let len = (transport.len() as u32).to_be_bytes();
    plain_sum(&[addresses, &len, &[0, 0, 0, protocol], transport].concat())
}

/// Offset of the transport header, and its protocol.
fn find_transport(packet: &[u8]) -> (usize, u8) {
    match packet[0] >> 4 {
        4 => (usize::from(packet[0] & 15) * 4, packet[9]),
        6 if packet[6] == 60 => (48 + usize::from(packet[41]) * 8, packet[40]),
        6 => (40, packet[6]),
        version => panic!("IP version {version}"),
    }
}

/// Panics unless `packet` is an IP packet with correct lengths and checksums.
pub(crate) fn check_on_wire(packet: &[u8]) {
    let (l4, protocol) = find_transport(packet);
    let stated = usize::from(u16::from_be_bytes([packet[2], packet[3]]));
    if packet[0] >> 4 == 4 {
        assert_eq!(stated, packet.len(), "total length");
        assert_eq!(plain_sum(&packet[..l4]), 0xffff, "IPv4 checksum");
    } else {
        let stated = usize::from(u16::from_be_bytes([packet[4], packet[5]]));
        assert_eq!(stated + 40, packet.len(), "payload length");
    }
    if protocol == UDP {
        assert_eq!(usize::from(u16::from_be_bytes([packet[l4 + 4], packet[l4 + 5]])), packet.len() - l4, "UDP length");
        assert_ne!(&packet[l4 + 6..l4 + 8], [0, 0], "UDP check none");
    }
    assert_eq!(transport_sum(packet, l4, protocol), 0xffff, "transport checksum");
}

/// The packet on the wire after its receiver has completed a partial checksum, by start and offset.
pub(crate) fn completed(pkt: &Packet) -> Vec<u8> {
    let mut bytes = pkt.to_vec();
    if let Csum::Partial { start, offset } = pkt.meta.csum {
        let (start, at) = (usize::from(start), usize::from(start + offset));
        let check = match !plain_sum(&bytes[start..]) {
            0 if offset == 6 => 0xffff,
            check => check,
        };
        bytes[at..at + 2].copy_from_slice(&check.to_be_bytes());
    }
    bytes
}

/// A received packet: linear, exclusive, in a separate page, with an unverified checksum.
pub(crate) fn received(mem: &Memory, bytes: &[u8]) -> Packet {
    let mut packet = Packet::with_data(mem, bytes).expect("memory");
    packet.meta.origin = Origin::Port(PortId(7)).into();
    packet
}

/// Layouts of received packets.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Layout {
    /// Each packet in a separate page.
    Linear,
    /// The headers in the head, the payload in a page fragment.
    Paged,
    /// All packets of a burst one behind the other in large pages.
    Train,
}

impl Layout {
    pub(crate) const ALL: [Self; 3] = [Self::Linear, Self::Paged, Self::Train];

    /// Packets with these bytes, each with the length of its headers.
    pub(crate) fn packets(self, mem: &Memory, frames: &[(Vec<u8>, usize)]) -> Vec<Packet> {
        let buf = |bytes: &[u8]| {
            let mut buf = mem.take(Memory::HEADROOM, bytes.len()).expect("memory");
            buf.put(bytes.len()).expect("room").copy_from_slice(bytes);
            buf
        };
        let mut page: Option<Buf> = None;
        let mut train = |bytes: &[u8]| {
            if page.as_ref().is_none_or(|page| page.tailroom() < bytes.len()) {
                page = Some(mem.large().take(Memory::HEADROOM).expect("memory"));
            }
            let page = page.as_mut().expect("just taken");
            page.put(bytes.len()).expect("room").copy_from_slice(bytes);
            page.split_to(bytes.len())
        };
        let build = |(bytes, header_len): &(Vec<u8>, usize)| {
            let mut packet = match self {
                Self::Linear => Packet::from_buf(buf(bytes)),
                Self::Train => Packet::from_buf(train(bytes)),
                Self::Paged => {
                    let (headers, payload) = bytes.split_at(*header_len);
                    let mut packet = Packet::from_buf(buf(headers));
                    packet.push_frag(buf(payload)).expect("a free slot");
                    packet
                }
            };
            packet.meta.origin = Origin::Port(PortId(7)).into();
            packet
        };
        frames.iter().map(build).collect()
    }
}

/// Packets that GRO returns for one burst.
pub(crate) fn glue(mem: &Memory, config: Config, packets: Vec<Packet>) -> Vec<Packet> {
    let mut gro = Gro::new(config);
    let mut out = Vec::new();
    for packet in packets {
        gro.receive(mem, packet, &mut out);
    }
    gro.flush(&mut out);
    assert_eq!(gro.held(), 0);
    out.iter().for_each(Packet::check_invariants);
    out
}

/// As [`glue`], for frames; returns the payload length of each resulting packet.
pub(crate) fn glue_frames(config: Config, frames: &[Frame]) -> Vec<usize> {
    let mem = Memory::heap();
    let packets = frames.iter().map(|frame| received(&mem, &frame.bytes())).collect();
    let header_len = frames[0].header_len();
    glue(&mem, config, packets).iter().map(|packet| packet.len().saturating_sub(header_len)).collect()
}

/// Segments `pkt` if it is fat, by features.
pub(crate) fn cut(mem: &Memory, features: &Features, pkt: Packet, l3: usize) -> Vec<Packet> {
    let mut out = Vec::new();
    if pkt.meta.cut.gso().is_some() {
        offload::gso::segment(mem, features, pkt, l3, &mut out).expect("a fat packet");
    } else {
        out.push(pkt);
    }
    out.iter().for_each(Packet::check_invariants);
    out
}
