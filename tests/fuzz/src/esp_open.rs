//! Received ESP: any bytes behind a valid outer header, as a packet or a train, in any fragments. With NULL encryption
//! the fuzzer writes the inner packet as well. Each packet of a train is accounted for exactly once, and all memory is
//! returned.

use std::net::Ipv4Addr;

use base::{Counters, Instant};
use ipsec::{Ipsec, Opened};
use packet::{Cut, Gso, GsoKind, Memory, Packet};
use wire::{Protocol, Spi, ipv4, udp};
use xfrm::{Aead, Algorithm, EspInUdp, Mode, SaConfig, SaFlags};

const SRC: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const DST: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);

/// SPIs 1 to 8: tunnel or transport, raw or in UDP, NULL or AES-GCM.
fn node() -> Ipsec {
    let mut node = Ipsec::new();
    for bits in 0..8u32 {
        let key = vec![7; 20].into();
        let mode = if bits & 1 == 0 { Mode::Tunnel } else { Mode::Transport };
        let algorithm = if bits & 4 == 0 { Algorithm::null() } else { Algorithm::aead(Aead::GcmAes, key, 96) };
        let config = SaConfig {
            replay_window: 64,
            flags: SaFlags { esn: bits & 1 == 0, decap_dscp: true, af_unspec: true, ..SaFlags::default() },
            encap: (bits & 2 != 0).then_some(EspInUdp { sport: 4500, dport: 4500 }),
            ..SaConfig::new(SRC.into(), DST.into(), Spi(bits + 1), mode, algorithm)
        };
        node.add_sa(&config, u64::from(bits)).expect("a good configuration");
    }
    node
}

/// Runs one input.
pub fn target(input: &[u8]) {
    let Some((&[shape, size, cut], payload)) = input.split_first_chunk() else { return };
    let payload = &payload[..payload.len().min(60_000)];
    let is_udp = shape & 1 != 0;
    let udp = udp::UdpHeader::new(4500, 4500, (8 + payload.len()) as u16);
    let udp = if is_udp { udp.as_bytes() } else { &[] };
    let protocol = if is_udp { Protocol::UDP } else { Protocol::ESP };
    let mut ip = ipv4::Ipv4Header::new(SRC, DST, protocol, (20 + udp.len() + payload.len()) as u16);
    ip.set_tos(shape >> 2);
    ip.fill_check();
    let bytes = [ip.as_bytes(), udp, payload].concat();

    let mem = Memory::heap();
    let (front, back) = bytes.split_at(usize::from(cut).min(bytes.len()));
    let mut pkt = Packet::with_data(&mem, front).expect("memory");
    if let Some(buf) = mem.take(0, back.len()).ok().filter(|_| !back.is_empty()) {
        let mut buf = buf;
        buf.put(back.len()).expect("room").copy_from_slice(back);
        if shape & 2 != 0 {
            pkt.push_child(Packet::from_buf(buf));
        } else {
            pkt.push_frag(buf).expect("a free slot");
        }
    }
    let size = 4 * usize::from(size);
    let mut segs = 1;
    if is_udp && size > 0 && size < payload.len() {
        segs = payload.len().div_ceil(size);
        let kind = GsoKind::Udp;
        pkt.meta.cut = Cut::Gso(Gso { size: size as u16, kind, segs: segs as u16, ecn: false, fixed_id: false });
    }
    let mut opened = Opened::default();
    let mut counters = Counters::ZERO;
    node().open(&mem, Instant::ZERO, pkt, &mut opened, &mut counters);
    let Opened { packets, not_esp, keepalives, elsewhere, drops } = opened;
    assert!(elsewhere.is_empty(), "the only shard owns every SA");
    assert_eq!(packets.len() + not_esp.len() + drops.len() + keepalives as usize, segs);
    packets.iter().chain(&not_esp).for_each(Packet::check_invariants);
    drop((packets, not_esp));
    assert_eq!((mem.small().in_use(), mem.large().in_use()), (0, 0));
}
