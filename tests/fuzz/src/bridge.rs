//! Bridge of four ports, with VLAN devices beside and above it, as a list of operations: arbitrary frames, settings of
//! ports, VLANs and addresses, links that go down, ports that are removed, and time. After each operation the bridge's
//! tables are consistent, a port is within its limit of learnt addresses, and its device can send each packet; at the
//! end all memory has been returned.

use std::time::Duration;

use base::{Instant, PortId};
use offload::Features;
use packet::{Buf, Csum, Cut, Gso, GsoKind, Packet};
use sim::{AddAddress as _, Choices, Flow, Node, PortOptions};
use switch::{FdbKind, FdbRequest, FlushFilter, PortConfig, PortState, TrunkPriority, Vid, VlanFlags};
use wire::{EtherType, MacAddr, eth};

const OWN: PortId = PortId(9);
const PORTS: [PortId; 4] = [PortId(1), PortId(2), PortId(3), PortId(4)];
/// VLAN 5 of port 4, and VLAN 6 of the bridge's device.
const DEVICES: [(PortId, PortId, u16); 2] = [(PortId(5), PortId(4), 5), (PortId(6), OWN, 6)];
const FDB_LIMIT: u32 = 16;

/// Runs one input.
pub fn target(input: &[u8]) {
    let mut input = Choices::new(input);
    let mut node = node();
    let mut now = Instant::ZERO;
    for _ in 0..256 {
        if input.is_over() {
            break;
        }
        step(&mut input, &mut node, &mut now);
        let bridge = node.datapath.bridge(OWN).expect("the bridge stays");
        bridge.check_invariants();
        for port in PORTS {
            assert!(bridge.learnt(port) <= FDB_LIMIT, "{port:?}");
        }
        for port in PORTS {
            for pkt in node.tx(port) {
                let features = node.datapath.ports.get(port).expect("a port").config.features;
                assert!(features.sg || pkt.is_linear());
                assert!(pkt.meta.cut.gso().is_none_or(|gso| features.cuts(gso, pkt.len())));
            }
        }
    }
    node.datapath.finish(now, &node.mem);
    for port in PORTS {
        drop(node.tx(port));
    }
    for id in PORTS.into_iter().chain([OWN]).chain(DEVICES.map(|(own, ..)| own)) {
        node.datapath.remove_port(now, &node.mem, id);
    }
    assert_eq!(node.pages_in_use(), 0);
}

fn node() -> Node {
    let mut node = Node::new();
    for (id, number) in PORTS.iter().zip(1..) {
        let features = [Features::ALL, Features::NONE, Features::BY_REFERENCE, Features::ALL][number as usize - 1];
        node.port(id.0, PortOptions::ethernet(number).features(Features { frames: false, ..features }), &[]);
    }
    node.datapath.add_bridge(OWN, "br0".to_owned(), MacAddr([2, 0, 0, 0, 0, 9]), 1500).expect("a bridge");
    node.datapath.fib.add_address(OWN, "10.1.0.254/24".parse().expect("an address"));
    for id in PORTS {
        node.datapath.set_bridge(Instant::ZERO, &node.mem, id, Some(OWN)).expect("a port");
    }
    for (own, below, vid) in DEVICES {
        node.port(own.0, PortOptions::ethernet(own.0 as u8), &["10.2.0.254/24"]);
        node.datapath.set_vlan(own, below, vid).expect("a VLAN device");
    }
    node
}

fn step(input: &mut Choices<'_>, node: &mut Node, now: &mut Instant) {
    let op = input.byte();
    let link = PORTS[usize::from(op & 3)];
    let vid = Vid::new(u16::from(input.byte() & 7)).unwrap_or(Vid::FIRST);
    let of_port = if op & 4 == 0 { Some(link) } else { None };
    // A refused operation changes nothing.
    match op >> 3 {
        0 => *now = *now + Duration::from_secs(u64::from(input.byte())),
        1 => node.datapath.set_up(*now, &node.mem, link, input.byte() & 1 == 0),
        2 => {
            let bridge = (input.byte() & 1 == 0).then_some(OWN);
            node.datapath.set_bridge(*now, &node.mem, link, bridge).expect("a port leaves or comes");
        }
        3 => node.datapath.set_up(*now, &node.mem, OWN, input.byte() & 7 != 0),
        kind => {
            let Some(bridge) = node.datapath.bridge_mut(OWN) else { return };
            match kind {
                4 => bridge.set_vlan_filtering(op & 4 == 0),
                5 => {
                    let flags = VlanFlags { is_pvid: op & 1 != 0, is_untagged: op & 2 != 0 };
                    let _ = bridge.add_vlans(of_port, vid, vid, flags);
                }
                6 => drop(bridge.remove_vlans(of_port, Vid::FIRST, vid)),
                7 => {
                    let bits = input.byte();
                    let state = PortState::from_number(bits >> 5).unwrap_or(PortState::Forwarding);
                    let config = PortConfig {
                        state,
                        learning: bits & 1 == 0,
                        unicast_flood: bits & 2 == 0,
                        isolated: bits & 4 != 0,
                        hairpin: bits & 8 != 0,
                        locked: bits & 16 != 0,
                        fdb_limit: FDB_LIMIT,
                        trunk: (op & 4 != 0).then(|| TrunkPriority::new(bits & 15)).flatten(),
                        ..PortConfig::default()
                    };
                    let _ = bridge.configure(link, config);
                }
                8 => {
                    let kind = input.pick(&[FdbKind::Local, FdbKind::Static, FdbKind::Dynamic]);
                    let (is_sticky, mac) = (input.byte() & 1 == 0, address(input));
                    let vid = Some(vid);
                    let wanted =
                        FdbRequest { port: of_port, mac, vid, kind, is_sticky, create: true, exclusive: false };
                    // The limit does not apply to dynamic entries of an operator.
                    if kind != FdbKind::Dynamic {
                        let _ = bridge.add_fdb(*now, &wanted);
                    }
                }
                9 => drop(bridge.remove_fdb(*now, of_port, address(input), Some(vid))),
                10 => {
                    let filter = FlushFilter { statics: op & 1 == 0, locals: false, ..FlushFilter::default() };
                    let _ = bridge.flush_fdb(&filter);
                }
                11 => drop(bridge.set_default_pvid(Some(vid))),
                12 => bridge.set_ageing_time(Duration::from_secs(u64::from(input.byte()))),
                _ => {
                    let pkt = frame(input, node);
                    node.rx(*now, link, vec![pkt]);
                }
            }
        }
    }
    node.timeout(*now);
}

/// One of a few addresses, or any address.
fn address(input: &mut Choices<'_>) -> MacAddr {
    match input.byte() {
        0 => MacAddr([0xff; 6]),
        1 => MacAddr([0x01, 0x80, 0xc2, 0, 0, input.byte() & 15]),
        2 => MacAddr([0x33, 0x33, 0, 0, 0, 1]),
        3 => MacAddr::ZERO,
        few if few < 128 => MacAddr([2, 0, 0, 0, 0, few & 15]),
        _ => {
            let mut mac = [2; 6];
            let bytes = input.bytes(4);
            mac[2..2 + bytes.len()].copy_from_slice(bytes);
            MacAddr(mac)
        }
    }
}

/// A frame with valid addresses, and an arbitrary tag or packet.
fn frame(input: &mut Choices<'_>, node: &Node) -> Packet {
    let form = input.byte();
    let (to, from) = (address(input), address(input));
    let len = usize::from(input.word() % 2048);
    let ip = match form & 3 {
        0 => input.bytes(len).to_vec(),
        1 => Flow::new("10.1.0.1", "10.2.0.1").udp(len),
        2 => Flow::new("10.1.0.1", "10.1.0.254").tcp(1, len),
        _ => Flow::new("fd00:1::1", "fd00:2::1").udp(len),
    };
    let ethertype = if form & 3 == 3 { EtherType::IPV6 } else { EtherType::IPV4 };
    let mut bytes = eth::EthHeader::new(to, from, ethertype).as_bytes().to_vec();
    if form & 4 != 0 {
        bytes.splice(12..12, [0x81, 0, input.byte(), input.byte() & 7]);
    }
    bytes.extend(ip);
    bytes.truncate(usize::from(input.word()).max(10));
    let cut = usize::from(input.byte()).min(bytes.len());
    let mut pkt = if form & 8 == 0 {
        Packet::with_data(&node.mem, &bytes).expect("memory")
    } else {
        let mut pkt = Packet::with_data(&node.mem, &bytes[..cut]).expect("memory");
        let mut rest: Buf = node.mem.take(0, bytes.len() - cut).expect("memory");
        rest.put(bytes.len() - cut).expect("room").copy_from_slice(&bytes[cut..]);
        if form & 16 == 0 {
            pkt.push_frag(rest).expect("a free slot");
        } else {
            pkt.push_child(Packet::from_buf(rest));
        }
        pkt
    };
    if form & 32 != 0 {
        pkt.meta.csum = Csum::Partial { start: u16::from(input.byte()), offset: u16::from(input.byte()) };
    }
    if form & 64 != 0 {
        let kind = input.pick(&[GsoKind::TcpV4, GsoKind::TcpV6, GsoKind::Udp]);
        let (size, segs) = (input.word().max(1), u16::from(input.byte()));
        pkt.meta.cut = Cut::Gso(Gso { size, kind, segs, ecn: false, fixed_id: false });
    }
    if form & 128 != 0 {
        pkt.meta.vlan = Some(u16::from(input.byte() & 7));
    }
    pkt
}
