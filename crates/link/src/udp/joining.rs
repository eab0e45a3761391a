//! Joining of adjacent datagrams of one flow in a burst into one UDP GSO train (`UDP_SEGMENT`, udp(7)), so that the
//! kernel traverses its stack once for all of them.

use packet::{Cut, Packet};

use super::message::Message;

/// Datagrams in a train at most, as Linux's `UDP_MAX_SEGMENTS` was before 6.10.
const MAX_TRAIN: usize = 64;

/// Bytes of a train's payload at most: with its headers it is an IP packet.
const MAX_LEN: usize = 65_000;

/// Datagrams that are sent singly after a train that the kernel has refused.
pub(super) const PAUSE: usize = 1024;

/// Number of packets at the front of `packets`, sent as `messages` say, that form one train: datagrams of one length to
/// one destination; the last may be shorter. 1 if the first packet cannot be joined.
pub(super) fn train_len(messages: &[Message], packets: &[Packet]) -> usize {
    let payload = |at: usize| packets[at].len().saturating_sub(messages[at].header_len);
    let size = payload(0);
    let (mut count, mut total) = (1, size);
    let may_join = |at: usize| {
        let (first, here) = (&messages[0], &messages[at]);
        packets[at].meta.cut == Cut::Whole
            && (1..=size).contains(&payload(at))
            && (first.name.bytes(), first.control.bytes(), first.discovery)
                == (here.name.bytes(), here.control.bytes(), here.discovery)
    };
    let most = messages.len().min(packets.len()).min(MAX_TRAIN);
    if most == 0 || !may_join(0) {
        return 1;
    }
    while count < most && may_join(count) && total + payload(count) <= MAX_LEN {
        total += payload(count);
        count += 1;
        if payload(count - 1) < size {
            break;
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use packet::{Gso, GsoKind, Memory};

    use super::*;
    use crate::sys::cmsg::Control;
    use crate::sys::sockaddr::SockAddr;
    use crate::udp::discovery::Discovery;

    /// A datagram of `len` bytes behind 28 of headers.
    fn datagram(mem: &Memory, len: usize) -> Packet {
        Packet::with_data(mem, &vec![0; 28 + len]).expect("memory")
    }

    fn message(port: u16) -> Message {
        let name = SockAddr::new(([192, 0, 2, 1], port).into());
        Message { name, source: 4500, control: Control::EMPTY, header_len: 28, discovery: Discovery::Probe }
    }

    fn joined(lens: &[usize]) -> usize {
        let mem = Memory::heap();
        let packets: Vec<_> = lens.iter().map(|&len| datagram(&mem, len)).collect();
        let messages: Vec<_> = lens.iter().map(|_| message(4500)).collect();
        train_len(&messages, &packets)
    }

    #[test]
    fn train_is_equal_datagrams_and_a_shorter_last_one() {
        let cases: [(&[usize], usize); 7] = [
            (&[1400], 1),
            (&[1400, 1400, 1400], 3),
            (&[1400, 1400, 900, 1400], 3),
            (&[900, 1400], 1),
            (&[1400, 0, 1400], 1),
            (&[0, 0], 1),
            (&[40_000, 40_000], 1),
        ];
        for (lens, want) in cases {
            assert_eq!(joined(lens), want, "{lens:?}");
        }
        assert_eq!(joined(&[100; 100]), MAX_TRAIN);
        assert_eq!(joined(&[1438; 64]), 45, "65 000 bytes");
    }

    #[test]
    fn train_ends_at_another_destination_mode_or_train() {
        let mem = Memory::heap();
        let packets: Vec<_> = (0..3).map(|_| datagram(&mem, 100)).collect();
        assert_eq!(train_len(&[message(4500), message(4501), message(4500)], &packets), 1);
        let mut messages: Vec<_> = (0..3).map(|_| message(4500)).collect();
        messages[2].discovery = Discovery::Omit;
        assert_eq!(train_len(&messages, &packets), 2);
        let mut packets = packets;
        let train = Gso { kind: GsoKind::Udp, size: 50, segs: 2, ecn: false, fixed_id: false };
        for cut in [Cut::Gso(train), Cut::Fragment] {
            packets[1].meta.cut = cut;
            assert_eq!(train_len(&messages, &packets), 1, "{cut:?}");
            assert_eq!(train_len(&messages[1..], &packets[1..]), 1, "{cut:?}");
        }
    }
}
