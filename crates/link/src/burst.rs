//! Sending of a burst by a socket that takes many packets in one system call.

use std::io;

use packet::Packet;

use crate::{LinkStats, Sent};

/// Result of a packet that the kernel refused.
pub(crate) enum Refused {
    /// The packet was dropped; the others are sent.
    Dropped,
    /// The packet is tried again.
    Again,
    /// The packet and those behind it stay in the burst.
    Stop(Sent),
}

/// A socket that takes many packets in one system call.
pub(crate) trait Batches {
    /// Sends packets from the front of `packets` in one system call, and returns how many were sent. Packets that share
    /// a buffer count one by one.
    fn send_batch(&mut self, packets: &[Packet]) -> io::Result<usize>;

    /// Handles an error of the kernel about the packet at the front.
    fn refused(&mut self, packet: &Packet, err: &io::Error) -> io::Result<Refused>;

    fn stats_mut(&mut self) -> &mut LinkStats;
}

/// [`Link::send`](crate::Link::send) for such a socket.
pub(crate) fn send(link: &mut impl Batches, burst: &mut Vec<Packet>) -> io::Result<Sent> {
    let mut gone = 0;
    let outcome = loop {
        let Some(first) = burst.get(gone) else { break Ok(Sent::All) };
        match link.send_batch(&burst[gone..]) {
            Ok(count) => {
                link.stats_mut().tx_calls += 1;
                gone += sent(link.stats_mut(), &mut burst[gone..], count);
            }
            Err(err) => match link.refused(first, &err) {
                Ok(Refused::Dropped) if first.meta.cut.packets() > 1 => burst[gone].skip_frames(1),
                Ok(Refused::Dropped) => gone += 1,
                Ok(Refused::Again) => {}
                Ok(Refused::Stop(stop)) => break Ok(stop),
                Err(err) => break Err(err),
            },
        }
    };
    burst.drain(..gone);
    outcome
}

/// Counts the first `count` wire packets as sent, including those that share a buffer. Returns how many of `packets`
/// were sent whole; the one behind them may have lost some of its wire packets.
fn sent(stats: &mut LinkStats, packets: &mut [Packet], count: usize) -> usize {
    let mut left = count;
    for (gone, packet) in packets.iter_mut().enumerate() {
        let here = packet.meta.cut.packets() as usize;
        if left < here {
            packet.frames().take(left).for_each(|frame| stats.sent_frame(frame));
            packet.skip_frames(left);
            return gone;
        }
        stats.sent(packet);
        left -= here;
    }
    packets.len()
}

#[cfg(test)]
mod tests {
    use packet::{Cut, Frames, Memory};

    use super::*;

    /// A socket that takes so many packets in a call, and refuses one of them for good.
    struct Narrow {
        width: usize,
        refuses: u8,
        taken: Vec<Vec<u8>>,
        stats: LinkStats,
    }

    impl Batches for Narrow {
        fn send_batch(&mut self, packets: &[Packet]) -> io::Result<usize> {
            let all = packets.iter().flat_map(|packet| match packet.meta.cut {
                Cut::Frames(_) => packet.frames().map(<[u8]>::to_vec).collect(),
                _ => vec![packet.to_vec()],
            });
            let before = self.taken.len();
            self.taken.extend(all.take(self.width).take_while(|bytes| bytes[0] != self.refuses));
            match self.taken.len() - before {
                0 => Err(io::ErrorKind::InvalidInput.into()),
                count => Ok(count),
            }
        }

        fn refused(&mut self, _: &Packet, _: &io::Error) -> io::Result<Refused> {
            Ok(Refused::Dropped)
        }

        fn stats_mut(&mut self) -> &mut LinkStats {
            &mut self.stats
        }
    }

    /// Packets of 100 bytes with 20 between them, in one buffer; the last has 30.
    fn together(mem: &Memory, numbers: std::ops::Range<u8>) -> Packet {
        let mut bytes: Vec<u8> =
            numbers.clone().flat_map(|number| [[number; 100].as_slice(), &[0xee; 20]].concat()).collect();
        bytes.truncate(bytes.len() - 90);
        let mut packet = Packet::with_data(mem, &bytes).unwrap();
        packet.meta.cut = Cut::Frames(Frames { size: 100, stride: 120, count: numbers.len() as u16 });
        packet
    }

    #[test]
    fn send_call_may_end_within_a_buffer_of_packets() {
        let mem = Memory::heap();
        for width in 1..=9 {
            for refuses in [0, 1, 2, 5, 7, 9] {
                let link = Narrow { width, refuses, taken: Vec::new(), stats: LinkStats::ZERO };
                let mut link = link;
                let single = Packet::with_data(&mem, &[0; 100]).unwrap();
                let mut burst = vec![single, together(&mem, 1..6), together(&mem, 6..9)];
                assert_eq!(send(&mut link, &mut burst).unwrap(), Sent::All);
                let want: Vec<Vec<u8>> = (0..9u8)
                    .filter(|&number| number != refuses)
                    .map(|number| vec![number; if [5, 8].contains(&number) { 30 } else { 100 }])
                    .collect();
                assert!(burst.is_empty());
                assert_eq!(link.taken, want, "{width} at once without {refuses}");
                let bytes: usize = want.iter().map(Vec::len).sum();
                let LinkStats { tx_wire_packets, tx_bytes, .. } = link.stats;
                assert_eq!((tx_wire_packets, tx_bytes), (want.len() as u64, bytes as u64));
            }
        }
    }
}
