//! Packets in tunnels, built and checked byte by byte, without the code under test.

/// Maximum number of nested tunnels in this model.
pub(crate) const MAX: u8 = 3;

/// One tunnel around a packet: the lower bits select the kind, one bit each IPv6 and IP options.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tunnel(pub(crate) u8);

const IP_IN_IP: u8 = 0;
const GRE: u8 = 1;
const GRE_KEY: u8 = 2;
const GRE_BRIDGED: u8 = 3;
const VXLAN: u8 = 4;
const VXLAN_CHECKED: u8 = 5;
const GENEVE_CHECKED: u8 = 6;
const GRE_CHECKED_AND_COUNTED: u8 = 7;
const OVER_V6: u8 = 8;
const WITH_OPTIONS: u8 = 16;

impl Tunnel {
    /// Each kind over IPv4 and IPv6, with and without options.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        (0..32).map(Self)
    }

    /// Tells whether all segments can have the same tunnel header.
    pub(crate) fn is_constant(self) -> bool {
        self.kind() != GRE_CHECKED_AND_COUNTED
    }

    fn kind(self) -> u8 {
        self.0 & 7
    }

    fn has(self, flag: u8) -> bool {
        self.0 & flag != 0
    }

    fn is_udp(self) -> bool {
        matches!(self.kind(), VXLAN | VXLAN_CHECKED | GENEVE_CHECKED)
    }

    fn is_checked(self) -> bool {
        matches!(self.kind(), VXLAN_CHECKED | GENEVE_CHECKED)
    }

    /// The header between the outer IP header and the inner packet, without UDP's checksum and length.
    fn header(self, inner: &[u8]) -> Vec<u8> {
        let ethertype: &[u8] = if is_v6(inner) { &[0x86, 0xdd] } else { &[8, 0] };
        let ethernet = [&[2; 12], ethertype].concat();
        let tagged = [&[2; 12][..], &[0x81, 0, 0, 7], ethertype].concat();
        let udp = [0xc0, 0x12, 0x21, 0x18, 0, 0, 0, 0];
        match self.kind() {
            IP_IN_IP => Vec::new(),
            GRE => [&[0, 0], ethertype].concat(),
            GRE_KEY => [&[0x20, 0], ethertype, &[0, 0, 0, 9]].concat(),
            GRE_BRIDGED => [&[0, 0, 0x65, 0x58], &tagged[..]].concat(),
            VXLAN | VXLAN_CHECKED => [&udp, &[8, 0, 0, 0, 0, 0, 5, 0], &ethernet[..]].concat(),
            GENEVE_CHECKED => {
                [&udp[..], &[2, 0, 0x65, 0x58, 0, 0, 5, 0], &[1, 2, 3, 1, 5, 6, 7, 8], &ethernet].concat()
            }
            _ => [&[0xb0, 0], ethertype, &[0; 12]].concat(),
        }
    }

    /// `inner` in this tunnel, with correct lengths and checksums; an IPv4 header has the identification `id`.
    pub(crate) fn around(self, inner: &[u8], id: u16) -> Vec<u8> {
        let mut payload = [&self.header(inner)[..], inner].concat();
        let protocol = match self.kind() {
            IP_IN_IP if is_v6(inner) => 41,
            IP_IN_IP => 4,
            _ if self.is_udp() => 17,
            _ => 47,
        };
        if self.is_udp() {
            let len = payload.len() as u16;
            payload[4..6].copy_from_slice(&len.to_be_bytes());
        }
        let mut out = if self.has(OVER_V6) {
            let options: &[u8] = if self.has(WITH_OPTIONS) { &[protocol, 0, 1, 4, 0, 0, 0, 0] } else { &[] };
            let mut out = vec![0x60, 0, 0, 0];
            out.extend(((options.len() + payload.len()) as u16).to_be_bytes());
            out.extend([if options.is_empty() { protocol } else { 60 }, 64]);
            out.extend([[0xfd; 16], [0xfc; 16]].concat());
            out.extend(options);
            out
        } else {
            let words = if self.has(WITH_OPTIONS) { 6 } else { 5 };
            let mut out = vec![0x40 | words, 0];
            for field in [(usize::from(words) * 4 + payload.len()) as u16, id, 0] {
                out.extend(field.to_be_bytes());
            }
            out.extend([64, protocol, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2]);
            out.resize(usize::from(words) * 4, 1);
            let check = !sum(&out);
            out[10..12].copy_from_slice(&check.to_be_bytes());
            out
        };
        if self.is_checked() {
            let check = match !transport_sum(&out, protocol, &payload) {
                0 => 0xffff,
                check => check,
            };
            payload[6..8].copy_from_slice(&check.to_be_bytes());
        }
        out.extend(payload);
        out
    }

    /// Checks lengths and checksums of a packet in this tunnel, and returns the inner packet.
    fn check(self, packet: &[u8]) -> &[u8] {
        let (l4, protocol) = check_ip(packet);
        let payload = &packet[l4..];
        if self.is_udp() {
            assert_eq!(protocol, 17);
            assert_eq!(usize::from(u16::from_be_bytes([payload[4], payload[5]])), payload.len(), "outer UDP length");
            assert_eq!(payload[6..8] == [0, 0], !self.is_checked(), "outer UDP check");
            if self.is_checked() {
                assert_eq!(transport_sum(packet, protocol, payload), 0xffff, "outer UDP check");
            }
        }
        let behind = |inner: &[u8]| self.header(inner).len();
        &payload[behind(&[0x45])..]
    }
}

/// Tunnels chosen by two bytes of the fuzzer, outermost first.
pub(crate) fn some(count: u8, kinds: u16) -> Vec<Tunnel> {
    (0..count % (MAX + 1)).map(|at| Tunnel((kinds >> (5 * at)) as u8 & 31)).collect()
}

/// `inner` in all of these tunnels, outermost first.
pub(crate) fn around(tunnels: &[Tunnel], inner: &[u8], id: u16) -> Vec<u8> {
    tunnels.iter().rev().fold(inner.to_vec(), |inner, tunnel| tunnel.around(&inner, id))
}

/// Panics unless all lengths and checksums of a TCP segment or UDP datagram in these tunnels are right.
pub(crate) fn check_on_wire(tunnels: &[Tunnel], packet: &[u8]) {
    let inner = tunnels.iter().fold(packet, |packet, tunnel| tunnel.check(packet));
    let (l4, protocol) = check_ip(inner);
    let transport = &inner[l4..];
    if protocol == 17 {
        assert_eq!(usize::from(u16::from_be_bytes([transport[4], transport[5]])), transport.len(), "UDP length");
    }
    assert_eq!(transport_sum(inner, protocol, transport), 0xffff, "transport check");
}

/// Checks an IP header, and returns the offset and protocol of its payload.
fn check_ip(packet: &[u8]) -> (usize, u8) {
    if is_v6(packet) {
        assert_eq!(usize::from(u16::from_be_bytes([packet[4], packet[5]])) + 40, packet.len(), "payload length");
        return if packet[6] == 60 { (48, packet[40]) } else { (40, packet[6]) };
    }
    let header_len = usize::from(packet[0] & 15) * 4;
    assert_eq!(usize::from(u16::from_be_bytes([packet[2], packet[3]])), packet.len(), "total length");
    assert_eq!(sum(&packet[..header_len]), 0xffff, "IPv4 checksum");
    (header_len, packet[9])
}

fn is_v6(packet: &[u8]) -> bool {
    packet[0] >> 4 == 6
}

/// The sum that the checksum covers, for a transport behind the IP header of `packet`.
fn transport_sum(packet: &[u8], protocol: u8, transport: &[u8]) -> u16 {
    let addresses = if is_v6(packet) { &packet[8..40] } else { &packet[12..20] };
    let len = (transport.len() as u32).to_be_bytes();
    sum(&[addresses, &len, &[0, 0, 0, protocol], transport].concat())
}

/// RFC 1071 §4.1, byte by byte.
fn sum(bytes: &[u8]) -> u16 {
    let mut sum = 0u64;
    for pair in bytes.chunks(2) {
        sum += u64::from(pair[0]) << 8 | u64::from(*pair.get(1).unwrap_or(&0));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}
