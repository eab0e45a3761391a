//! Peers behind a NAT: learnt addresses, redirected tunnels, and keepalives.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::common::{HERE, NAT_T, Pair, THERE, mask, sa, udp_packet};
use base::{Counters, Instant};
use ipsec::{Event, Ipsec, Keepalive, Mapping, Train};
use packet::{Csum, Memory, Packet};
use wire::{Protocol, Spi, Version, ipv4, ipv6, udp};
use xfrm::{ConfigError, EspInUdp, Mode, NatTraversal, SaConfig, SaDir};

/// SPI of the receiver's packets to the peer.
const BACK: Spi = Spi(0x2000);

/// An SA in UDP, from port 4500 to port 4501.
fn config(nat: NatTraversal) -> SaConfig {
    SaConfig { encap: NAT_T, nat, ..sa() }
}

/// The SA in the other direction.
fn back(outer: usize) -> SaConfig {
    let encap = Some(EspInUdp { sport: 4501, dport: 4500 });
    SaConfig { src: THERE[outer], dst: HERE[outer], spi: BACK, encap, replay_window: 0, ..sa() }
}

fn seal(pair: &mut Pair) -> Vec<u8> {
    let pkt = Packet::with_data(&pair.mem, &udp_packet(Version::V4, 20)).unwrap();
    pair.seal(pkt, Train::None).remove(0).to_vec()
}

/// The packet behind a NAT that has changed its source to `from`.
fn translated(bytes: &[u8], from: SocketAddr) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let at = match from.ip() {
        IpAddr::V4(src) => {
            ipv4::Ipv4Header::mut_from(&mut bytes).unwrap().set_src(src);
            ipv4::fill_check(&mut bytes).unwrap();
            20
        }
        IpAddr::V6(src) => {
            ipv6::Ipv6Header::mut_from(&mut bytes).unwrap().set_src(src);
            40
        }
    };
    bytes[at..at + 2].copy_from_slice(&from.port().to_be_bytes());
    bytes
}

/// A pair whose receiver has a listener.
fn pair(config: &SaConfig) -> Pair {
    let mut pair = Pair::new(config);
    pair.receiver.set_listener(true);
    pair
}

/// The changed mappings that a node reports.
fn mappings(node: &mut Ipsec) -> Vec<Mapping> {
    let mappings = node.take_events().map(|event| match event {
        Event::Mapping(mapping) => mapping,
        other => panic!("{other:?}"),
    });
    mappings.collect()
}

/// Opens a packet at that second, and returns the reports.
fn open_at(pair: &mut Pair, seconds: u64, bytes: &[u8]) -> Vec<Mapping> {
    let pkt = Packet::with_data(&pair.mem, bytes).unwrap();
    let now = Instant::ZERO + Duration::from_secs(seconds);
    pair.receiver.open(&pair.mem, now, pkt, &mut pair.opened, &mut pair.received);
    mappings(&mut pair.receiver)
}

/// Outer destination of a node's packets by its SA with the SPI `spi`.
fn goes_to(node: &mut Ipsec, mem: &Memory, dst: IpAddr, spi: Spi) -> SocketAddr {
    let id = node.sad().by_spi(dst, spi, 0).unwrap();
    let pkt = Packet::with_data(mem, &udp_packet(Version::V4, 20)).unwrap();
    let mut out = Vec::new();
    node.seal(mem, Instant::ZERO, id, pkt, Train::None, 1500, &mut out, &mut Counters::ZERO.clone()).unwrap();
    let bytes = out.remove(0).to_vec();
    let info = wire::ip::Info::parse(&bytes, bytes.len()).unwrap();
    SocketAddr::new(info.dst, udp::UdpHeader::ref_from(info.payload(&bytes)).unwrap().dport())
}

#[test]
fn new_source_address_of_a_peer_is_reported() {
    let (near, far) = (SocketAddr::new(HERE[0], 4500), "198.51.100.7:61000".parse().unwrap());
    let other_port = SocketAddr::new(HERE[0], 4499);
    // (seconds, source, whether it is reported) with a threshold of 10 s and with none.
    let steps = [
        (0, near, [false, false]),
        (1, far, [true, true]),
        (2, far, [false, false]),
        (11, far, [false, false]),
        (12, far, [true, false]),
        (13, other_port, [true, true]),
        (14, far, [true, true]),
        (15, near, [false, false]),
    ];
    for (at, mapping_threshold) in [10, 0].into_iter().enumerate() {
        let config = config(NatTraversal { mapping_threshold, ..NatTraversal::default() });
        let mut pair = pair(&config);
        for (seconds, from, mappings) in steps {
            let bytes = translated(&seal(&mut pair), from);
            let got = open_at(&mut pair, seconds, &bytes);
            let (sa, dst, spi, reqid) = (pair.in_sa, config.dst, config.spi, config.reqid);
            let want = Mapping { sa, dst, spi, reqid, old: near, new: from, followed: false };
            assert_eq!(got, if mappings[at] { vec![want] } else { vec![] }, "after {seconds} s from {from}");
            assert_eq!(pair.opened.packets.drain(..).count(), 1, "it is opened from wherever it came");
        }
    }
}

#[test]
fn tunnel_follows_newest_authentic_source_of_the_peer() {
    for outer in 0..2 {
        let follow = NatTraversal { follow: true, ..NatTraversal::default() };
        let config = SaConfig { src: HERE[outer], dst: THERE[outer], ..config(follow) };
        let mut pair = pair(&config);
        let mem = Memory::heap();
        let first = SocketAddr::new(HERE[outer], 4500);
        let places = if outer == 0 {
            ["198.51.100.7:61000", "203.0.113.1:4500"]
        } else {
            ["[2001:db8:7::7]:61000", "[2001:db8:8::8]:4500"]
        };
        let [second, third] = places.map(|place| place.parse::<SocketAddr>().unwrap());
        let others = [
            back(outer),
            SaConfig { spi: Spi(0x2001), reqid: 2, ..back(outer) },
            SaConfig { spi: Spi(0x2002), encap: Some(EspInUdp { sport: 4501, dport: 4502 }), ..back(outer) },
            SaConfig { spi: Spi(0x2003), dir: Some(SaDir::Out), ..back(outer) },
        ];
        for config in &others {
            pair.receiver.add_sa(config, mask()).unwrap();
        }
        let dst = HERE[outer];
        assert_eq!(goes_to(&mut pair.receiver, &mem, dst, BACK), first);

        let [old, new, newer] = [(); 3].map(|()| seal(&mut pair));
        let mut forged = translated(&newer, third);
        *forged.last_mut().unwrap() ^= 1;
        assert_eq!(open_at(&mut pair, 0, &forged), [], "a forgery changes no address");
        assert_eq!(open_at(&mut pair, 0, &translated(&new, first)), []);
        assert_eq!(open_at(&mut pair, 0, &translated(&old, second)), [], "held back, and sent again from elsewhere");
        assert_eq!(goes_to(&mut pair.receiver, &mem, dst, BACK), first);

        let mappings = open_at(&mut pair, 0, &translated(&newer, second));
        assert_eq!(
            mappings.iter().map(|it| (it.old, it.new, it.followed)).collect::<Vec<_>>(),
            [(first, second, true)]
        );
        assert_eq!(open_at(&mut pair, 0, &translated(&newer, third)), [], "a replay changes no address");
        for (spi, want) in [(0x2000, second), (0x2001, first), (0x2002, SocketAddr::new(dst, 4502)), (0x2003, second)] {
            assert_eq!(goes_to(&mut pair.receiver, &mem, dst, Spi(spi)), want, "{spi:#x}");
        }
        let latest = seal(&mut pair);
        assert_eq!(open_at(&mut pair, 1, &translated(&latest, second)), [], "it is known there");
        // A new SA begins at the older SA's learnt address, and both follow later changes.
        pair.receiver.add_sa(&SaConfig { spi: Spi(0x2004), ..back(outer) }, mask()).unwrap();
        let latest = seal(&mut pair);
        assert_eq!(goes_to(&mut pair.receiver, &mem, dst, Spi(0x2004)), second);
        assert_eq!(open_at(&mut pair, 2, &translated(&latest, third)).len(), 1);
        for spi in [0x2000, 0x2004] {
            assert_eq!(goes_to(&mut pair.receiver, &mem, dst, Spi(spi)), third, "{spi:#x}");
        }
        // A new configuration of the operator replaces the learnt mapping.
        let moved = SaConfig { encap: Some(EspInUdp { sport: 4501, dport: 4600 }), ..back(outer) };
        pair.receiver.replace_sa(&moved).unwrap();
        assert_eq!(goes_to(&mut pair.receiver, &mem, dst, BACK), SocketAddr::new(dst, 4600));
    }
}

/// Source address and port that the NAT shows for the sender, over IPv4 and IPv6.
const SHOWN: [&str; 2] = ["198.51.100.7:61000", "[2001:db8:7::7]:61000"];

/// SA in transport mode over this version.
fn transport(version: Version, encap: Option<EspInUdp>) -> SaConfig {
    let at = crate::common::index(version);
    SaConfig { mode: Mode::Transport, src: HERE[at], dst: THERE[at], encap, ..sa() }
}

/// Packet with this upper layer behind an extension header; its checksum is filled in if `check_at` is given.
fn upper(version: Version, extension: &[u8], protocol: Protocol, upper: &[u8], check_at: Option<usize>) -> Vec<u8> {
    let at = crate::common::index(version);
    let first = if extension.is_empty() { protocol } else { Protocol::DEST_OPTS };
    let mut bytes = crate::common::ip_header(version, HERE[at], THERE[at], first, extension.len() + upper.len());
    bytes.extend_from_slice(extension);
    let start = bytes.len();
    bytes.extend_from_slice(upper);
    if let Some(check_at) = check_at {
        let info = wire::ip::Info::parse(&bytes, bytes.len()).unwrap();
        let check = offload::checksum::transport_check(&Packet::with_data(&Memory::heap(), &bytes).unwrap(), &info);
        bytes[start + check_at..][..2].copy_from_slice(&check.to_be_bytes());
    }
    bytes
}

/// Contents of ESP in UDP behind the NAT.
fn opened_behind_nat(pair: &mut Pair, bytes: &[u8]) -> Packet {
    let version = Version::of(bytes).unwrap();
    let sealed = pair.seal(Packet::with_data(&pair.mem, bytes).unwrap(), Train::None).remove(0).to_vec();
    let shown = translated(&sealed, SHOWN[crate::common::index(version)].parse().unwrap());
    pair.open(Packet::with_data(&pair.mem, &shown).unwrap()).remove(0)
}

/// Tells whether the bytes of a packet have a right checksum, whatever its metadata say.
fn has_right_bytes(pkt: &Packet) -> bool {
    let bytes = pkt.to_vec();
    let info = wire::ip::Info::parse(&bytes, bytes.len()).unwrap();
    offload::checksum::verify(&Packet::with_data(&Memory::heap(), &bytes).unwrap(), &info)
}

/// The sender's checksum covers the address before translation (RFC 3948 §3.1.2).
#[test]
fn transport_mode_checksum_is_right_behind_a_nat() {
    let udp = |len: u16, claimed: u16| {
        let mut bytes = vec![7; usize::from(len)];
        bytes[..8].copy_from_slice(udp::UdpHeader::new(1000, 2000, claimed).as_bytes());
        bytes
    };
    let options = [Protocol::UDP.0, 0, 1, 4, 0, 0, 0, 0];
    let (v4, v6) = (Version::V4, Version::V6);
    let mut tcp = [0; 61];
    tcp[12] = 0x50;
    let icmpv6 = [128, 0, 0, 0, 1, 2, 3, 4, 9];
    let cases = [
        upper(v4, &[], Protocol::UDP, &udp(101, 101), Some(6)),
        upper(v6, &[], Protocol::UDP, &udp(101, 101), Some(6)),
        upper(v6, &options, Protocol::UDP, &udp(101, 101), Some(6)),
        upper(v4, &[], Protocol::TCP, &tcp, Some(16)),
        upper(v6, &[], Protocol::TCP, &tcp, Some(16)),
        upper(v6, &[], Protocol::ICMPV6, &icmpv6, Some(2)),
    ];
    for bytes in cases {
        let version = Version::of(&bytes).unwrap();
        let mut pair = Pair::new(&transport(version, NAT_T));
        let got = opened_behind_nat(&mut pair, &bytes);
        assert_ne!(got.to_vec()[..40], bytes[..40], "the address is another one");
        assert!(has_right_bytes(&got) && got.meta.csum == Csum::Unnecessary, "{bytes:02x?}");
    }
    // A checksum that is not there is not invented, and bytes behind the datagram do not count.
    for (version, accepted) in [(v4, true), (v6, false)] {
        let mut pair = Pair::new(&transport(version, NAT_T));
        let got = opened_behind_nat(&mut pair, &upper(version, &[], Protocol::UDP, &udp(30, 30), None));
        let bytes = got.to_vec();
        assert_eq!(bytes[bytes.len() - 24..][..2], [0, 0]);
        assert_eq!((has_right_bytes(&got), got.meta.csum), (accepted, Csum::None));
        let mut padded = udp(32, 30);
        padded[6] = 1;
        let mut bytes = opened_behind_nat(&mut pair, &upper(version, &[], Protocol::UDP, &padded, None)).to_vec();
        bytes.truncate(bytes.len() - 2);
        match version {
            Version::V4 => {
                ipv4::Ipv4Header::mut_from(&mut bytes).unwrap().set_total_len(50);
                ipv4::fill_check(&mut bytes).unwrap();
            }
            Version::V6 => ipv6::Ipv6Header::mut_from(&mut bytes).unwrap().set_payload_len(30),
        }
        assert!(has_right_bytes(&Packet::with_data(&pair.mem, &bytes).unwrap()), "{version}");
        // Truncated headers and other protocols stay as they are.
        for (protocol, len) in [(Protocol::UDP, 7), (Protocol::TCP, 19), (Protocol::SCTP, 30), (Protocol::ICMPV6, 3)] {
            let bytes = upper(version, &[], protocol, &vec![9; len], None);
            let got = opened_behind_nat(&mut pair, &bytes);
            assert_eq!((&got.to_vec()[got.len() - len..], got.meta.csum), (&vec![9; len][..], Csum::None));
        }
    }
}

#[test]
fn train_behind_a_nat_has_right_checksums() {
    for version in [Version::V4, Version::V6] {
        let mut pair = Pair::new(&transport(version, NAT_T));
        let (bytes, csum, cut) = crate::common::fat(version, true, 1000, 10_000);
        let mut pkt = Packet::with_data(&pair.mem, &bytes).unwrap();
        (pkt.meta.csum, pkt.meta.cut) = (csum, cut);
        let train = pair.seal(pkt, Train::Udp).remove(0);
        let shown = translated(&train.to_vec(), SHOWN[crate::common::index(version)].parse().unwrap());
        let mut pkt = Packet::with_data(&pair.mem, &shown).unwrap();
        pkt.meta.cut = train.meta.cut;
        let got = pair.open(pkt);
        assert!(got.len() == 10 && got.iter().all(has_right_bytes), "{version}");
    }
}

#[test]
fn transport_mode_without_a_nat_keeps_its_checksum() {
    let mut pair = Pair::new(&transport(Version::V4, None));
    let bytes = udp_packet(Version::V4, 20);
    let sealed = pair.seal(Packet::with_data(&pair.mem, &bytes).unwrap(), Train::None).remove(0);
    let got = pair.open(sealed).remove(0);
    assert_eq!((got.to_vec(), got.meta.csum), (bytes, Csum::None));
}

#[test]
fn train_from_a_new_source_is_reported_once() {
    let follow = NatTraversal { follow: true, ..NatTraversal::default() };
    let mut pair = pair(&config(follow));
    let (bytes, csum, cut) = crate::common::fat(Version::V4, true, 1000, 10_000);
    let mut pkt = Packet::with_data(&pair.mem, &bytes).unwrap();
    (pkt.meta.csum, pkt.meta.cut) = (csum, cut);
    let train = pair.seal(pkt, Train::Udp).remove(0);
    let mut pkt =
        Packet::with_data(&pair.mem, &translated(&train.to_vec(), "198.51.100.7:61000".parse().unwrap())).unwrap();
    pkt.meta.cut = train.meta.cut;
    assert_eq!(pair.open(pkt).len(), 10);
    assert_eq!(mappings(&mut pair.receiver).len(), 1);
}

#[test]
fn keepalive_is_sent_on_an_idle_sa() {
    let nat = NatTraversal { keepalive_interval: 20, ..NatTraversal::default() };
    let out = SaConfig { dir: Some(SaDir::Out), replay_window: 0, ..config(nat) };
    let mut pair = Pair::new(&SaConfig { encap: NAT_T, ..sa() });
    let mut node = Ipsec::new();
    let id = node.add_sa(&out, mask()).unwrap();
    let want = Keepalive { src: out.src, dst: out.dst, ports: NAT_T.unwrap() };
    let at = |seconds: u64| Instant::ZERO + Duration::from_secs(seconds);
    let due = |node: &mut Ipsec, seconds| {
        let mut out = Vec::new();
        node.handle_keepalives(at(seconds), &mut out);
        out
    };
    assert_eq!((node.poll_keepalives(), due(&mut node, 5)), (Some(Instant::ZERO), vec![want]));
    assert_eq!((node.poll_keepalives(), due(&mut node, 24)), (Some(at(25)), vec![]));
    assert_eq!(due(&mut node, 25), [want]);
    // A packet sent at 40 s makes a keepalive unnecessary until 60 s.
    let pkt = Packet::with_data(&pair.mem, &udp_packet(Version::V4, 20)).unwrap();
    node.seal(&pair.mem, at(40), id, pkt, Train::None, 1500, &mut Vec::new(), &mut pair.sent).unwrap();
    assert_eq!((due(&mut node, 45), node.poll_keepalives()), (vec![], Some(at(60))));
    assert_eq!(due(&mut node, 60), [want]);
    // A change takes effect at once.
    node.replace_sa(&SaConfig { nat: NatTraversal { keepalive_interval: 30, ..nat }, ..out.clone() }).unwrap();
    assert_eq!((due(&mut node, 61), node.poll_keepalives()), (vec![], Some(at(70))));
    node.replace_sa(&SaConfig { nat: NatTraversal::default(), ..out.clone() }).unwrap();
    assert_eq!((due(&mut node, 90), node.poll_keepalives()), (vec![], None));
    node.replace_sa(&out).unwrap();
    node.remove_sa(out.dst, out.spi, 0).unwrap();
    assert_eq!((due(&mut node, 91), node.poll_keepalives()), (vec![], None));
}

#[test]
fn impossible_nat_traversal_is_refused() {
    let none = NatTraversal::default();
    let keepalive = NatTraversal { keepalive_interval: 1, ..none };
    let threshold = NatTraversal { mapping_threshold: 1, ..none };
    let follow = NatTraversal { follow: true, ..none };
    let direction = |dir, name| Err(ConfigError::Direction(dir, name));
    let with = |nat, dir, replay_window| SaConfig { dir, replay_window, ..config(nat) };
    let cases = [
        (SaConfig { nat: keepalive, ..sa() }, Err(ConfigError::WithoutEncap("nat-keepalive-interval"))),
        (SaConfig { nat: threshold, ..sa() }, Err(ConfigError::WithoutEncap("nat-mapping-threshold"))),
        (SaConfig { nat: follow, ..sa() }, Err(ConfigError::WithoutEncap("nat-follow"))),
        (with(keepalive, Some(SaDir::In), 1), direction(SaDir::In, "nat-keepalive-interval")),
        (with(keepalive, None, 1), Err(ConfigError::KeepaliveWithoutDir)),
        (with(threshold, Some(SaDir::Out), 0), direction(SaDir::Out, "nat-mapping-threshold")),
        (with(follow, Some(SaDir::Out), 0), direction(SaDir::Out, "nat-follow")),
        (with(follow, Some(SaDir::In), 0), Err(ConfigError::FollowWithoutWindow)),
        (with(follow, None, 0), Err(ConfigError::FollowWithoutWindow)),
        (SaConfig { mode: Mode::Transport, tfcpad: 1, ..sa() }, Err(ConfigError::TfcTransport)),
        (SaConfig { dir: Some(SaDir::In), tfcpad: 1, ..sa() }, Ok(())),
        (with(keepalive, Some(SaDir::Out), 0), Ok(())),
        (with(NatTraversal { mapping_threshold: 1, ..follow }, Some(SaDir::In), 1), Ok(())),
        (SaConfig { tfcpad: u32::MAX, ..sa() }, Ok(())),
    ];
    for (config, want) in cases {
        assert_eq!(Ipsec::new().add_sa(&config, mask()).map(drop), want, "{config:?}");
    }
}
