//! Assembly of a packet from several frames.

use base::DropReason;
use packet::Packet;

use crate::stats::LinkStats;
use crate::sys::frames::FramePiece;

/// Received part of a packet whose last frame has not arrived.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    packet: Option<Packet>,
    /// Reason to drop the packet at its last frame.
    wrong: Option<DropReason>,
}

impl Pieces {
    /// Adds a piece. A complete packet goes to `out`.
    pub(super) fn add(&mut self, piece: Result<FramePiece, DropReason>, stats: &mut LinkStats, out: &mut Vec<Packet>) {
        match piece {
            Ok(FramePiece { bytes, continues }) => {
                match &mut self.packet {
                    None => self.packet = Some(Packet::from_buf(bytes)),
                    Some(packet) => {
                        if packet.push_frag(bytes).is_err() {
                            self.wrong = Some(DropReason::NoMemory);
                        }
                    }
                }
                if continues {
                    return;
                }
            }
            // A bad descriptor does not tell reliably whether more frames follow, so the packet ends here.
            Err(reason) => self.wrong = Some(reason),
        }
        let (packet, wrong) = (self.packet.take(), self.wrong.take());
        match (packet, wrong) {
            (Some(packet), None) => {
                stats.received(&packet);
                out.push(packet);
            }
            (_, Some(reason)) => stats.rx_drop(reason),
            (None, None) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use packet::{MAX_FRAGS, Memory};

    use super::*;

    fn piece(mem: &Memory, byte: u8, continues: bool) -> Result<FramePiece, DropReason> {
        let mut bytes = mem.take(0, 100).unwrap();
        bytes.put(100).unwrap().fill(byte);
        Ok(FramePiece { bytes, continues })
    }

    fn all(pieces: impl IntoIterator<Item = Result<FramePiece, DropReason>>) -> (Vec<Vec<u8>>, LinkStats) {
        let mut state = Pieces::default();
        let mut stats = LinkStats::ZERO;
        let mut out = Vec::new();
        pieces.into_iter().for_each(|piece| state.add(piece, &mut stats, &mut out));
        assert!(state.packet.is_none() && state.wrong.is_none());
        (out.iter().map(Packet::to_vec).collect(), stats)
    }

    #[test]
    fn packet_ends_at_the_descriptor_without_continuation() {
        let mem = Memory::heap();
        let (got, stats) =
            all([(1, false), (2, true), (3, true), (4, false), (5, false)].map(|(b, c)| piece(&mem, b, c)));
        assert_eq!(got, [vec![1; 100], [[2; 100], [3; 100], [4; 100]].concat(), vec![5; 100]]);
        assert_eq!((stats.rx_packets, stats.rx_bytes, stats.rx_dropped), (3, 500, 0));
    }

    #[test]
    fn packet_with_a_bad_descriptor_is_dropped_alone() {
        let mem = Memory::heap();
        let wrong = Err(DropReason::RingDescriptor);
        let (got, stats) = all([piece(&mem, 1, true), wrong, piece(&mem, 2, false)]);
        assert_eq!((got, stats.dropped_for(DropReason::RingDescriptor)), (vec![vec![2; 100]], 1));
    }

    #[test]
    fn packet_with_too_many_frags_is_dropped_and_freed() {
        let mem = Memory::heap();
        for (more, kept) in [(MAX_FRAGS, true), (MAX_FRAGS + 1, false)] {
            let pieces = (0..=more).map(|at| piece(&mem, 7, at < more));
            let (got, stats) = all(pieces.collect::<Vec<_>>());
            assert_eq!((got.len(), stats.dropped_for(DropReason::NoMemory)), (usize::from(kept), u64::from(!kept)));
        }
        assert_eq!(mem.small().in_use(), 0);
    }
}
