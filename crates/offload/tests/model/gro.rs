//! Model of GRO: bursts of packets are held, merged or passed; segmented again they are the original packets.

use std::collections::BTreeMap;

use base::{Origin, PortId};
use offload::gro::Config;
use offload::{CsumOffload, Features, Gro, gso};
use packet::{Csum, Memory, Packet};
use wire::ipv6::Chain;
use wire::{Protocol, checksum as sums};

use super::{fill_checks, fill_lengths, headers, on_wire, shaped};

/// One packet: flow, action, payload length, and a parameter of the action.
pub(crate) type Step = (u8, u8, u16, u16);

/// State of each flow: the next sequence number and identification, and the identification's step.
#[derive(Clone, Copy, Default)]
struct Flow {
    seq: u32,
    id: u16,
    id_step: u16,
}

/// Key of packets that must stay in order: link, tag, and the flow's fields.
type Key = (PortId, Option<u16>, u8, u8, u32, Vec<u8>, Vec<u8>);

/// Passes a packet of one buffer to `Gro::join`, and returns it if it is not merged.
fn join(gro: &mut Gro, mem: &Memory, packet: Packet, out: &mut Vec<Packet>) -> Option<Packet> {
    if !packet.is_linear() {
        return Some(packet);
    }
    let meta = packet.meta.clone();
    let buf = gro.join(mem, packet.into_head(), &meta, out).err()?;
    let mut packet = Packet::from_buf(buf);
    packet.meta = meta;
    Some(packet)
}

/// Runs the packets through GRO, in bursts whose ends are part of the steps.
pub(crate) fn run(options: u8, steps: &[Step]) {
    let mem = Memory::heap();
    let mut gro = Gro::new(Config { udp: options & 1 != 0, frag_list: options & 2 != 0 });
    let mut flows = [Flow { id_step: 1, ..Flow::default() }; 256];
    let (mut came, mut out) = (BTreeMap::new(), Vec::new());
    let mut bytes_in = 0;
    for &step in steps {
        let packet = arrival(&mem, &mut flows[usize::from(step.0)], step);
        bytes_in += packet.len();
        add(&mut came, &packet, on_wire(&packet));
        let unmerged = if options & 16 != 0 { join(&mut gro, &mem, packet, &mut out) } else { Some(packet) };
        if let Some(packet) = unmerged {
            gro.receive(&mem, packet, &mut out);
        }
        assert!(gro.held() <= 64, "{} held", gro.held());
        if step.1 % 64 == 63 {
            gro.flush(&mut out);
            assert_eq!(gro.held(), 0);
        }
    }
    gro.flush(&mut out);
    let mut segments = Vec::new();
    let csum = if options & 4 != 0 { CsumOffload::Any } else { CsumOffload::None };
    let features = Features { sg: options & 8 != 0, frag_list: true, csum, ..Features::NONE };
    for packet in out {
        packet.check_invariants();
        let want = packet.meta.cut.segs() as usize;
        let before = segments.len();
        if packet.meta.cut.gso().is_some() {
            gso::segment(&mem, &features, packet, 0, &mut segments).expect("merged packets can be cut");
        } else {
            segments.push(packet);
        }
        assert_eq!(segments.len() - before, want);
    }
    assert_eq!(segments.iter().map(Packet::len).sum::<usize>(), bytes_in, "bytes that came and went");
    let mut went = BTreeMap::new();
    for packet in segments {
        packet.check_invariants();
        add(&mut went, &packet, on_wire(&packet));
    }
    same_flows(&went, &came);
    assert_eq!((mem.small().in_use(), mem.large().in_use()), (0, 0), "pages that did not come home");
}

/// Panics unless each flow's packets arrived, in order; prints the difference only.
fn same_flows(went: &BTreeMap<Key, Vec<Vec<u8>>>, came: &BTreeMap<Key, Vec<Vec<u8>>>) {
    assert!(went.keys().eq(came.keys()), "{:?} went, {:?} came", went.keys(), came.keys());
    for (key, came) in came {
        let went = &went[key];
        assert_eq!(went.len(), came.len(), "packets of {key:?}");
        for (at, (went, came)) in went.iter().zip(came).enumerate() {
            let differs = |&byte: &usize| went.get(byte) != came.get(byte);
            let where_ = (0..went.len().max(came.len())).filter(differs).take(8).collect::<Vec<_>>();
            let head = |bytes: &[u8]| bytes[..bytes.len().min(60)].to_vec();
            assert!(went == came, "packet {at} of {key:?} at {where_:?}: {:?} went, {:?} came", head(went), head(came));
        }
    }
}

/// Appends the bytes of a packet to those that it must not overtake. The bytes are not completed: a partial checksum
/// may be anywhere, even at the offset of the protocol.
fn add(flows: &mut BTreeMap<Key, Vec<Vec<u8>>>, packet: &Packet, mut bytes: Vec<u8>) {
    let seen = packet.to_vec();
    let part = |from: usize, to: usize| seen.get(from..to).unwrap_or_default().to_vec();
    let version = seen.first().map_or(0, |byte| byte >> 4);
    let (protocol, label, addresses, l4) = match version {
        4 if seen.len() >= 20 => (Protocol(seen[9]), 0, part(12, 20), 20),
        6 if seen.len() >= 40 => {
            let (protocol, l4) =
                Chain::walk(&seen, seen.len()).map_or((Protocol(255), 40), |chain| (chain.protocol, chain.offset));
            (protocol, u32::from_be_bytes([0, seen[1] & 15, seen[2], seen[3]]), part(8, 40), l4)
        }
        _ => (Protocol(255), 0, Vec::new(), 0),
    };
    let key = (packet.meta.origin.device(), packet.meta.vlan, version, protocol.0, label, addresses, part(l4, l4 + 4));
    // One's complement has two zeros: a receiver accepts both, and a sender writes 0, except in UDP.
    if version == 4 {
        zero(&mut bytes, 10);
    }
    if protocol == Protocol::TCP {
        zero(&mut bytes, l4 + 16);
    }
    flows.entry(key).or_default().push(bytes);
}

fn zero(bytes: &mut [u8], at: usize) {
    if let Some(check) = bytes.get_mut(at..at + 2)
        && *check == [0xff, 0xff]
    {
        check.fill(0);
    }
}

/// The next packet of a flow, changed by the action.
fn arrival(mem: &Memory, flow: &mut Flow, (number, action, len, n): Step) -> Packet {
    let (mut bytes, l4) = headers(number);
    let end = bytes.len();
    let len = usize::from(len % 9000);
    bytes.extend((0..len).map(|at| (at as u16 ^ n) as u8));
    let is_tcp = number % 6 < 4;
    let at = usize::from(n) % end;
    if is_tcp {
        bytes[l4 + 4..l4 + 8].copy_from_slice(&flow.seq.to_be_bytes());
    }
    if bytes[0] >> 4 == 4 {
        bytes[4..6].copy_from_slice(&flow.id.to_be_bytes());
    }
    flow.seq = flow.seq.wrapping_add(len as u32);
    flow.id = flow.id.wrapping_add(flow.id_step);
    fill_lengths(number, l4, &mut bytes);
    // A change before the checksums are computed gives another valid packet; a later change a corrupt one.
    match action % 16 {
        0 => bytes[at] ^= (n >> 8) as u8,
        1 if is_tcp => bytes[l4 + 13] ^= n as u8,
        2 if is_tcp => bytes[l4 + 12] ^= n as u8 & 0x0f,
        3 => flow.seq = flow.seq.wrapping_add(u32::from(n)),
        4 => flow.id_step = n % 3,
        5 => bytes[1] ^= n as u8 & 3,
        _ => {}
    }
    let to_be_made = action % 16 == 6;
    fill_checks(number, l4, &mut bytes, to_be_made);
    let mut csum = match action % 16 {
        6 if is_tcp => Csum::Partial { start: l4 as u16, offset: 16 },
        6 => Csum::Partial { start: l4 as u16, offset: 6 },
        7 => Csum::Unnecessary,
        _ => Csum::None,
    };
    match action % 16 {
        8 => bytes[at] ^= (n >> 8) as u8,
        9 => bytes.extend(vec![0; usize::from(n % 20)]),
        10 => bytes.truncate(usize::from(n) % (bytes.len() + 1)),
        11 => csum = Csum::Complete(sums::fold(sums::sum(&bytes))),
        12 if usize::from(n % 80) != l4 => csum = Csum::Partial { start: n % 80, offset: n >> 8 },
        _ => {}
    }
    let mut packet = shaped(mem, &bytes, action >> 4, usize::from(n) % (end + 8));
    packet.meta.csum = csum;
    packet.meta.origin = Origin::Port(PortId(u32::from(action % 16 == 13))).into();
    packet.meta.vlan = (action % 16 == 14).then_some(n % 4096);
    packet
}
