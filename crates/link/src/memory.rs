//! Two ends of a wire in this process, for tests and benchmarks. Nothing is copied: the receiver gets the sent packet
//! itself, with the metadata that a virtio-net device would carry.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::DropReason;
use offload::{CsumOffload, Features};
use packet::{Csum, Cut, Memory, Meta, Packet, SecPath};

use crate::config::DEFAULT_MTU;
use crate::offloads::{Offloads, TX_CSUM, TX_TSO4, TX_TSO6, TX_USO};
use crate::{Common, Layer, Link, OpenError, Sent};

/// Packets that one call of [`Link::recv`] returns at most.
const BURST_PACKETS: usize = 64;

/// Configuration of one end of a wire.
#[derive(Clone, Debug)]
pub struct End {
    /// Name of the link.
    pub name: String,
    /// Outermost header of its packets.
    pub layer: Layer,
    /// Layer-3 MTU in bytes.
    pub mtu: usize,
    /// Offloads for packets that are sent.
    pub features: Features,
    /// Limit of packets in flight from this end; at the limit the link is busy.
    pub queue: usize,
}

impl End {
    /// An end for fat IP packets, without a limit.
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), layer: Layer::Ip, mtu: DEFAULT_MTU, features: Features::ALL, queue: usize::MAX }
    }
}

/// One end of a wire in memory.
#[derive(Debug)]
pub struct MemoryLink {
    common: Common,
    layer: Layer,
    queue: usize,
    out: Arc<Queue>,
    into: Arc<Queue>,
}

/// Packets in flight.
#[derive(Debug, Default)]
struct Queue(Mutex<VecDeque<Packet>>);

impl Queue {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Packet>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A wire with these two ends.
pub fn pair(a: End, b: End) -> (MemoryLink, MemoryLink) {
    let (forth, back) = (Arc::new(Queue::default()), Arc::new(Queue::default()));
    (MemoryLink::new(a, forth.clone(), back.clone()), MemoryLink::new(b, back, forth))
}

impl MemoryLink {
    fn new(end: End, out: Arc<Queue>, into: Arc<Queue>) -> Self {
        let mut offloads = Offloads::EMPTY;
        let of = &end.features;
        let has = [(TX_CSUM, of.csum != CsumOffload::None), (TX_TSO4, of.tso4), (TX_TSO6, of.tso6), (TX_USO, of.uso)];
        for (name, on) in has {
            offloads.add(name, if on { Ok(None) } else { Err("not among its features".to_owned()) });
        }
        let End { name, layer, mtu, features, queue } = end;
        let common = Common { mtu, ..Common::new(&name, u16::try_from(mtu).ok(), offloads, features) };
        Self { common, layer, queue, out, into }
    }

    /// Packets sent from this end and not yet received.
    pub fn in_flight(&self) -> usize {
        self.out.lock().len()
    }

    /// Tells whether the packet fits the link's features.
    fn takes(&self, packet: &Packet) -> bool {
        let csum = !matches!(packet.meta.csum, Csum::Partial { .. }) || self.common.features.csum != CsumOffload::None;
        let cut = packet.meta.cut.gso().is_none_or(|gso| self.common.features.cuts(gso, packet.len()));
        let pieces = self.common.features.sg || packet.is_linear();
        let children = self.common.features.frag_list || packet.frag_list().is_empty();
        let together = self.common.features.frames || !matches!(packet.meta.cut, Cut::Frames(_));
        csum && cut && pieces && children && together
    }

    /// Reduces a packet's metadata to the part that the other end can know.
    fn as_received(mut packet: Packet) -> Packet {
        let csum = match packet.meta.csum {
            partial @ Csum::Partial { .. } => partial,
            _ => Csum::None,
        };
        let cut = match packet.meta.cut {
            Cut::Gso(gso) => Cut::Gso(gso),
            Cut::Whole | Cut::Frames(_) | Cut::Fragment => Cut::Whole,
        };
        packet.meta = Meta { csum, cut, vlan: packet.meta.vlan, sec_path: SecPath::new(), ..Meta::default() };
        packet
    }
}

impl Link for MemoryLink {
    fn common(&self) -> &Common {
        &self.common
    }

    fn common_mut(&mut self) -> &mut Common {
        &mut self.common
    }

    fn set_mac(&mut self, mac: wire::MacAddr) -> Result<(), OpenError> {
        if !matches!(self.layer, Layer::Ethernet(_)) {
            return Err(OpenError::no_address(self.name()));
        }
        self.layer = Layer::Ethernet(mac);
        Ok(())
    }

    fn layer(&self) -> Layer {
        self.layer
    }

    fn poll_fds(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    fn recv(&mut self, _: &Memory, out: &mut Vec<Packet>) -> io::Result<()> {
        let mut queue = self.into.lock();
        let count = queue.len().min(BURST_PACKETS);
        for packet in queue.drain(..count) {
            self.common.stats.received(&packet);
            out.push(packet);
        }
        self.common.stats.rx_calls += u64::from(count > 0);
        Ok(())
    }

    fn send(&mut self, burst: &mut Vec<Packet>) -> io::Result<Sent> {
        let out = Arc::clone(&self.out);
        let mut queue = out.lock();
        if self.common.features.frames && burst.iter().any(|packet| packet.meta.cut.packets() > 1) {
            // Each wire packet counts against the limit.
            std::mem::take(burst).into_iter().for_each(|packet| packet.into_frames(burst));
        }
        let count = self.queue.saturating_sub(queue.len()).min(burst.len());
        self.common.stats.tx_calls += u64::from(count > 0);
        for packet in burst.drain(..count) {
            if self.takes(&packet) {
                self.common.stats.sent(&packet);
                queue.push_back(Self::as_received(packet));
            } else {
                self.common.stats.tx_drop(DropReason::TxError);
            }
        }
        Ok(if burst.is_empty() { Sent::All } else { Sent::Busy })
    }
}

#[cfg(test)]
mod tests {
    use packet::{Gso, GsoKind};

    use super::*;

    fn packets(mem: &Memory, count: u8) -> Vec<Packet> {
        (0..count).map(|byte| Packet::with_data(mem, &[byte; 40]).unwrap()).collect()
    }

    fn fat(mem: &Memory) -> Packet {
        let mut packet = Packet::with_data(mem, &[7; 4000]).unwrap();
        packet.meta.csum = Csum::Partial { start: 20, offset: 16 };
        packet.meta.cut = Cut::Gso(Gso { kind: GsoKind::TcpV4, size: 1400, segs: 3, ecn: false, fixed_id: false });
        packet
    }

    #[test]
    fn packets_sent_are_received_in_order() {
        let mem = Memory::heap();
        let (mut a, mut b) = pair(End::new("a"), End::new("b"));
        let (mut burst, mut got) = (packets(&mem, 3), Vec::new());
        burst.push(fat(&mem));
        assert_eq!(a.send(&mut burst).unwrap(), Sent::All);
        b.recv(&mem, &mut got).unwrap();
        assert_eq!(got.iter().map(|packet| packet.head()[0]).collect::<Vec<_>>(), [0, 1, 2, 7]);
        assert_eq!(got[3].meta.cut.segs(), 3);
        assert_eq!((b.stats().rx_packets, b.stats().rx_wire_packets, b.stats().rx_calls), (4, 6, 1));
        assert_eq!((a.stats().tx_packets, a.stats().tx_wire_packets, a.stats().tx_bytes), (4, 6, 4120));
    }

    #[test]
    fn full_queue_is_busy_and_keeps_unsent_packets() {
        let mem = Memory::heap();
        let (mut a, mut b) = pair(End { queue: 2, ..End::new("a") }, End::new("b"));
        let (mut burst, mut got) = (packets(&mem, 5), Vec::new());
        for left in [3, 1, 0] {
            let want = if left > 0 { Sent::Busy } else { Sent::All };
            assert_eq!((a.send(&mut burst).unwrap(), burst.len()), (want, left));
            b.recv(&mem, &mut got).unwrap();
        }
        assert_eq!(got.iter().map(|packet| packet.head()[0]).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn packet_beyond_the_features_is_dropped_and_counted() {
        let mem = Memory::heap();
        let (mut a, _b) = pair(End { features: Features::NONE, ..End::new("a") }, End::new("b"));
        let mut in_pieces = packets(&mem, 1).remove(0);
        in_pieces.append(packets(&mem, 1).remove(0));
        let mut partial = packets(&mem, 1).remove(0);
        partial.meta.csum = Csum::Partial { start: 20, offset: 16 };
        let mut burst = vec![fat(&mem), in_pieces, partial];
        assert_eq!(a.send(&mut burst).unwrap(), Sent::All);
        assert_eq!((a.stats().dropped_for(DropReason::TxError), a.in_flight()), (3, 0));
    }
}
