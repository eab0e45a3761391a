//! Packets, pairs of nodes, and an ESP decoder that shares no code with the one under test.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use aes_gcm::aead::{AeadInOut, KeyInit};
use base::{Counters, Instant, SaId};
use ipsec::engine::Cipher;
use ipsec::{Ipsec, Opened, Train};
use packet::{Csum, Cut, Gso, GsoKind, Memory, Packet};
use wire::{Protocol, Spi, Version, checksum, ipv4, ipv6, tcp, udp};
use xfrm::{Aead, Algorithm, Auth, AuthConfig, Enc, EspInUdp, Mode, SaConfig, SaFlags};

pub(crate) const HERE: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1))];
pub(crate) const THERE: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2)), IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2))];

/// A random number for each SA, as the daemon would draw it.
pub(crate) fn mask() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15) << 20
}

/// Flags that let a tunnel carry both families.
pub(crate) const BOTH_FAMILIES: SaFlags = SaFlags {
    noecn: false,
    decap_dscp: false,
    nopmtudisc: false,
    esn: false,
    dont_encap_dscp: false,
    oseq_may_wrap: false,
    wildrecv: false,
    icmp: false,
    af_unspec: true,
};

/// A tunnel SA over IPv4 with AES-GCM-256, for both families; tests change single fields.
pub(crate) fn sa() -> SaConfig {
    SaConfig {
        reqid: 1,
        replay_window: 128,
        flags: BOTH_FAMILIES,
        ..SaConfig::new(HERE[0], THERE[0], Spi(0x1000), Mode::Tunnel, gcm(36, 16))
    }
}

pub(crate) const NAT_T: Option<EspInUdp> = Some(EspInUdp { sport: 4500, dport: 4501 });

pub(crate) fn gcm(key_len: u8, icv_len: usize) -> Algorithm {
    Algorithm::aead(Aead::GcmAes, (0..key_len).map(|i| i ^ 0x5a).collect::<Vec<u8>>().into(), 8 * icv_len as u16)
}

/// `cbc(aes)` with `hmac(sha256)`.
pub(crate) fn cbc(key_len: usize, icv_len: usize) -> Algorithm {
    let auth = AuthConfig::new(Auth::HmacSha256, vec![6; 32].into(), 8 * icv_len as u16);
    Algorithm::separate(Enc::CbcAes, vec![5; key_len].into(), Some(auth))
}

/// A sender and a receiver with one SA between them.
pub(crate) struct Pair {
    pub(crate) mem: Memory,
    pub(crate) sender: Ipsec,
    pub(crate) out_sa: SaId,
    pub(crate) sent: Counters,
    pub(crate) receiver: Ipsec,
    pub(crate) in_sa: SaId,
    pub(crate) received: Counters,
    pub(crate) opened: Opened,
}

impl Pair {
    pub(crate) fn new(config: &SaConfig) -> Self {
        let (mut sender, mut receiver) = (Ipsec::new(), Ipsec::new());
        let out_sa = sender.add_sa(config, mask()).unwrap();
        let in_sa = receiver.add_sa(config, mask()).unwrap();
        let opened = Opened::default();
        let (sent, received) = (Counters::ZERO, Counters::ZERO);
        Self { mem: Memory::heap(), sender, out_sa, sent, receiver, in_sa, received, opened }
    }

    pub(crate) fn seal(&mut self, pkt: Packet, train: Train) -> Vec<Packet> {
        let mut out = Vec::new();
        let now = Instant::from_nanos(7);
        let sealed = self.sender.seal(&self.mem, now, self.out_sa, pkt, train, 1500, &mut out, &mut self.sent);
        assert_eq!(sealed, Ok(()));
        out.iter().for_each(Packet::check_invariants);
        out
    }

    /// Opens a packet and returns the contents.
    pub(crate) fn open(&mut self, pkt: Packet) -> Vec<Packet> {
        self.receiver.open(&self.mem, Instant::from_nanos(9), pkt, &mut self.opened, &mut self.received);
        let inside = std::mem::take(&mut self.opened.packets);
        inside.iter().for_each(Packet::check_invariants);
        inside
    }

    /// Opens a packet that is refused, and returns the reasons.
    pub(crate) fn refuse(&mut self, bytes: &[u8]) -> Vec<base::DropReason> {
        let pkt = Packet::with_data(&self.mem, bytes).unwrap();
        assert!(self.open(pkt).is_empty(), "{bytes:02x?} was opened");
        std::mem::take(&mut self.opened.drops)
    }
}

/// An IP header with these `payload_len` bytes behind it; IPv4's has DF and identification 0xfffe.
pub(crate) fn ip_header(version: Version, src: IpAddr, dst: IpAddr, protocol: Protocol, payload_len: usize) -> Vec<u8> {
    match (version, src, dst) {
        (Version::V4, IpAddr::V4(src), IpAddr::V4(dst)) => {
            let mut header = ipv4::Ipv4Header::new(src, dst, protocol, (20 + payload_len) as u16);
            header.set_dont_fragment(true);
            header.set_id(0xfffe);
            header.fill_check();
            header.as_bytes().to_vec()
        }
        (Version::V6, IpAddr::V6(src), IpAddr::V6(dst)) => {
            let mut header = ipv6::Ipv6Header::new(src, dst, protocol, payload_len as u16);
            header.set_flow_label(0x12345);
            header.as_bytes().to_vec()
        }
        _ => panic!("addresses of another family than {version}"),
    }
}

pub(crate) fn index(version: Version) -> usize {
    if version == Version::V4 { 0 } else { 1 }
}

fn pseudo(version: Version, protocol: Protocol, len: usize) -> u32 {
    match (HERE[index(version)], THERE[index(version)]) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => checksum::pseudo_v4(src, dst, protocol, len),
        (IpAddr::V6(src), IpAddr::V6(dst)) => checksum::pseudo_v6(src, dst, protocol, len),
        _ => unreachable!(),
    }
}

fn payload(len: usize) -> impl Iterator<Item = u8> {
    (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
}

/// A finished UDP packet with `len` bytes of payload.
pub(crate) fn udp_packet(version: Version, len: usize) -> Vec<u8> {
    let (src, dst) = (HERE[index(version)], THERE[index(version)]);
    let mut bytes = ip_header(version, src, dst, Protocol::UDP, 8 + len);
    let start = bytes.len();
    bytes.extend_from_slice(udp::UdpHeader::new(1000, 2000, (8 + len) as u16).as_bytes());
    bytes.extend(payload(len));
    let sum = checksum::add(pseudo(version, Protocol::UDP, 8 + len), checksum::sum(&bytes[start..]));
    bytes[start + 6..start + 8].copy_from_slice(&checksum::finish_udp(sum).to_be_bytes());
    bytes
}

/// A fat packet as a guest sends it, with matching metadata.
pub(crate) fn fat(version: Version, is_tcp: bool, size: u16, len: usize) -> (Vec<u8>, Csum, Cut) {
    let protocol = if is_tcp { Protocol::TCP } else { Protocol::UDP };
    let header_len = if is_tcp { 32 } else { 8 };
    let (src, dst) = (HERE[index(version)], THERE[index(version)]);
    let mut bytes = ip_header(version, src, dst, protocol, header_len + len);
    let start = bytes.len();
    let check = checksum::fold(pseudo(version, protocol, header_len + len));
    if is_tcp {
        let mut header = tcp::TcpHeader::new(40_000, 5201, u32::MAX - 2000, 77);
        header.set_header_len(32);
        header.set_flags(tcp::Flags::ACK | tcp::Flags::PSH | tcp::Flags::FIN | tcp::Flags::CWR);
        header.set_check(check);
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend_from_slice(&[1, 1, 8, 10, 0, 1, 2, 3, 4, 5, 6, 7]);
    } else {
        let mut header = udp::UdpHeader::new(1000, 2000, (8 + len) as u16);
        header.set_check(check);
        bytes.extend_from_slice(header.as_bytes());
    }
    bytes.extend(payload(len));
    let offset = if is_tcp { tcp::CHECK_AT } else { udp::CHECK_AT };
    let kind = match (is_tcp, version) {
        (true, Version::V4) => GsoKind::TcpV4,
        (true, Version::V6) => GsoKind::TcpV6,
        (false, _) => GsoKind::Udp,
    };
    let segs = len.div_ceil(usize::from(size)) as u16;
    let cut = Cut::Gso(Gso { size, kind, segs, ecn: true, fixed_id: false });
    (bytes, Csum::Partial { start: start as u16, offset: offset as u16 }, cut)
}

/// Packets that general segmentation makes: the expected inside of ESP.
pub(crate) fn segments(mem: &Memory, bytes: &[u8], csum: Csum, cut: Cut) -> Vec<Vec<u8>> {
    let mut pkt = Packet::with_data(mem, bytes).unwrap();
    (pkt.meta.csum, pkt.meta.cut) = (csum, cut);
    let mut out = Vec::new();
    offload::gso::segment(mem, &offload::Features::NONE, pkt, 0, &mut out).unwrap();
    out.iter().map(Packet::to_vec).collect()
}

/// One ESP packet, decoded.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Decoded {
    pub(crate) seq: u32,
    pub(crate) next_header: u8,
    pub(crate) payload: Vec<u8>,
}

/// Decodes ESP (RFC 4303 §2): AES-GCM with RustCrypto's, byte by byte from RFC 4106; other algorithms with this crate's
/// cipher, which is tested against packets of another program.
pub(crate) fn decode(config: &SaConfig, esp: &[u8], seq_high: u32) -> Decoded {
    assert_eq!(esp[..4], config.spi.0.to_be_bytes());
    let seq = u32::from_be_bytes(esp[4..8].try_into().unwrap());
    let mut text = match &config.algorithm {
        null if null.is_null() => esp[8..].to_vec(),
        Algorithm::Aead { name: Aead::GcmAes, key, icv_bits } => {
            let (key, salt) = key.bytes().split_at(key.bytes().len() - 4);
            let icv_len = usize::from(icv_bits / 8);
            let (text, icv) = esp[16..].split_at(esp.len() - 16 - icv_len);
            let nonce: [u8; 12] = [salt, &esp[8..16]].concat().try_into().unwrap();
            let high = if config.flags.esn { seq_high.to_be_bytes().to_vec() } else { vec![] };
            let aad = [&esp[..4], &high, &esp[4..8]].concat();
            let mut text = text.to_vec();
            seal_with(key, nonce, &aad, &mut text); // the key stream is its own inverse
            let mut again = text.clone();
            let tag = seal_with(key, nonce, &aad, &mut again);
            assert_eq!(&tag[..icv_len], icv, "ICV of sequence number {seq}");
            text
        }
        other => {
            let high = config.flags.esn.then_some(seq_high);
            let cipher = Cipher::new(other).unwrap();
            cipher.open(&mut esp.to_vec(), high).expect("an authentic packet").to_vec()
        }
    };
    let align = Cipher::new(&config.algorithm).unwrap().align();
    assert_eq!(text.len() % align, 0);
    let next_header = text.pop().unwrap();
    let pad_len = usize::from(text.pop().unwrap());
    let padding = text.split_off(text.len() - pad_len);
    assert!(padding.iter().copied().eq(1..=pad_len as u8) && pad_len < align, "padding {padding:?}");
    Decoded { seq, next_header, payload: text }
}

fn seal_with(key: &[u8], nonce: [u8; 12], aad: &[u8], text: &mut [u8]) -> [u8; 16] {
    use aes_gcm::aes::{Aes192, cipher::consts::U12};
    let (nonce, text) = (&nonce.into(), text.into());
    let tag = match key.len() {
        16 => aes_gcm::Aes128Gcm::new_from_slice(key).unwrap().encrypt_inout_detached(nonce, aad, text),
        24 => aes_gcm::AesGcm::<Aes192, U12>::new_from_slice(key).unwrap().encrypt_inout_detached(nonce, aad, text),
        _ => aes_gcm::Aes256Gcm::new_from_slice(key).unwrap().encrypt_inout_detached(nonce, aad, text),
    };
    tag.unwrap().into()
}

/// The ESP packets in a wire packet, and the headers in front of them, whose lengths are checked.
pub(crate) fn split_wire(pkt: &Packet) -> (Vec<u8>, Vec<Vec<u8>>) {
    let bytes = pkt.to_vec();
    let (mut at, protocol) = match bytes[0] >> 4 {
        4 => {
            assert_eq!(u16::from_be_bytes([bytes[2], bytes[3]]) as usize, bytes.len());
            let len = usize::from(bytes[0] & 15) * 4;
            assert_eq!(checksum::sum(&bytes[..len]), 0xffff, "IPv4 header checksum");
            (len, bytes[9])
        }
        _ => {
            assert_eq!(u16::from_be_bytes([bytes[4], bytes[5]]) as usize + 40, bytes.len());
            let (mut at, mut next) = (40, bytes[6]);
            while matches!(next, 0 | 43 | 60) {
                (next, at) = (bytes[at], at + 8 + 8 * usize::from(bytes[at + 1]));
            }
            (at, next)
        }
    };
    if protocol == 17 {
        assert_eq!(u16::from_be_bytes([bytes[at + 4], bytes[at + 5]]) as usize, bytes.len() - at);
        at += 8;
    } else {
        assert_eq!(protocol, 50);
    }
    let size = pkt.meta.cut.gso().map_or(usize::MAX, |gso| usize::from(gso.size));
    (bytes[..at].to_vec(), bytes[at..].chunks(size).map(<[u8]>::to_vec).collect())
}
