//! Choice of a queue by flow, for devices with several queues.

use std::hash::BuildHasher;

use foldhash::quality::RandomState;
use packet::Packet;
use wire::ip::Info;
use wire::{FlowKey, Protocol};

/// Keyed hash of flows. Each link has a key of its own, so that the sender of a packet selects addresses
/// and ports, and not the queue.
#[derive(Clone, Debug, Default)]
pub(crate) struct FlowHash {
    hasher: RandomState,
}

impl FlowHash {
    /// Queue among `count` of a packet whose IP header begins at `l3`. One for each flow, which keeps a flow in order.
    /// Queue 0 if there are no valid IP headers.
    ///
    /// Fragments are hashed by addresses alone: only the first has ports, and extension headers behind the fragment
    /// header hide the protocol of the others.
    pub(crate) fn queue(&self, packet: &Packet, l3: usize, count: usize) -> usize {
        if count <= 1 {
            return 0;
        }
        let head = packet.head().get(l3..).unwrap_or_default();
        let Ok(info) = Info::parse(head, packet.len().saturating_sub(l3)) else { return 0 };
        let flow = match info.fragment {
            Some(fragment) if !fragment.is_atomic() => {
                FlowKey { src: info.src, dst: info.dst, protocol: Protocol(0), sport: 0, dport: 0 }
            }
            _ => FlowKey::new(&info, head),
        };
        (self.hasher.hash_one(flow) % count as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use packet::Memory;
    use wire::frag::FragHeader;
    use wire::{FragInfo, FragOffset, ipv4, ipv6, udp};

    use super::*;

    const QUEUES: usize = 8;

    /// UDP from a numbered port, or a later part of it at that offset.
    fn v4(sport: u16, id: u16, offset: usize, more: bool, payload: &[u8]) -> Vec<u8> {
        let udp = udp::UdpHeader::new(sport, 53, 8 + payload.len() as u16);
        let transport = if offset == 0 { [udp.as_bytes(), payload].concat() } else { payload.to_vec() };
        let (src, dst) = ([10, 1, 0, 2].into(), [10, 2, 0, 2].into());
        let mut header = ipv4::Ipv4Header::new(src, dst, Protocol::UDP, 20 + transport.len() as u16);
        header.set_id(id);
        header.set_fragment(FragOffset::from_bytes(offset).unwrap(), more);
        header.fill_check();
        [header.as_bytes(), &transport].concat()
    }

    /// As `v4`, with a fragment header that names `next`.
    fn v6(sport: u16, offset: usize, more: bool, next: Protocol) -> Vec<u8> {
        let udp = udp::UdpHeader::new(sport, 53, 16);
        let transport = if offset == 0 { [udp.as_bytes(), &[0; 8]].concat() } else { vec![0; 16] };
        let offset = FragOffset::from_bytes(offset).unwrap();
        let frag = FragHeader::new(next, FragInfo { offset, more, id: u32::from(sport) });
        let (src, dst) = ("fd00::1".parse().unwrap(), "fd00::2".parse().unwrap());
        let header = ipv6::Ipv6Header::new(src, dst, Protocol::FRAGMENT, (8 + transport.len()) as u16);
        [header.as_bytes(), frag.as_bytes(), &transport].concat()
    }

    fn queue(hash: &FlowHash, bytes: &[u8]) -> usize {
        hash.queue(&Packet::with_data(&Memory::heap(), bytes).unwrap(), 0, QUEUES)
    }

    #[test]
    fn packets_of_a_flow_share_a_queue_whatever_they_carry() {
        let hash = FlowHash::default();
        for sport in 1..200 {
            let first = queue(&hash, &v4(sport, 0, 0, false, &[]));
            assert_eq!(queue(&hash, &v4(sport, 9, 0, false, &[1; 64])), first, "port {sport}");
            let framed = [&[0; 14][..], &v4(sport, 0, 0, false, &[7])].concat();
            let packet = Packet::with_data(&Memory::heap(), &framed).unwrap();
            assert_eq!(hash.queue(&packet, 14, QUEUES), first, "port {sport}, in a frame");
        }
    }

    #[test]
    fn fragments_of_a_datagram_share_a_queue() {
        let hash = FlowHash::default();
        for sport in 1..200 {
            let parts = [(0, true), (16, true), (32, false)];
            let of_v4 = parts.map(|(offset, more)| queue(&hash, &v4(sport, sport, offset, more, &[3; 8])));
            assert_eq!(of_v4, [of_v4[0]; 3], "IPv4, port {sport}");
            // In later fragments the named header may be one that is in the first alone.
            let of_v6 = parts.map(|(offset, more)| {
                queue(&hash, &v6(sport, offset, more, if offset == 0 { Protocol::UDP } else { Protocol::DEST_OPTS }))
            });
            assert_eq!(of_v6, [of_v6[0]; 3], "IPv6, port {sport}");
        }
    }

    #[test]
    fn atomic_fragments_are_spread_as_whole_packets() {
        let hash = FlowHash::default();
        let mut met = [false; QUEUES];
        (1..200).for_each(|sport| met[queue(&hash, &v6(sport, 0, false, Protocol::UDP))] = true);
        assert_eq!(met, [true; QUEUES]);
    }

    #[test]
    fn flows_are_spread_evenly() {
        let mut counts = [0; QUEUES];
        let hash = FlowHash::default();
        (1..=4000).for_each(|sport| counts[queue(&hash, &v4(sport, 0, 0, false, &[]))] += 1);
        // 500 expected in each, with a standard deviation of 21.
        assert!(counts.iter().all(|count| (350..650).contains(count)), "{counts:?}");
    }

    #[test]
    fn queues_of_two_links_are_unrelated() {
        let [one, other] = [(); 2].map(|()| FlowHash::default());
        let packets = (1..=4000).map(|sport| v4(sport, 0, 0, false, &[]));
        let same = packets.filter(|packet| queue(&one, packet) == queue(&other, packet)).count();
        assert!((350..650).contains(&same), "{same} of 4000");
    }

    #[test]
    fn packet_without_ip_headers_and_one_queue_give_queue_0() {
        let hash = FlowHash::default();
        for bytes in [&[][..], &[0x45; 10], &[0; 60]] {
            assert_eq!(queue(&hash, bytes), 0, "{bytes:?}");
        }
        let packet = Packet::with_data(&Memory::heap(), &v4(7, 0, 0, false, &[])).unwrap();
        assert_eq!([hash.queue(&packet, 0, 0), hash.queue(&packet, 0, 1), hash.queue(&packet, 99, QUEUES)], [0; 3]);
    }
}
