//! How a burst is sent by a socket that takes many packets in one system call.

use std::io;

use packet::Packet;

use crate::{LinkStats, Sent};

/// A socket that takes many packets in one system call.
pub(crate) trait Batches {
    /// Sends packets from the front of `packets` in one system call, and tells how many went.
    fn send_batch(&mut self, packets: &[Packet]) -> io::Result<usize>;

    /// What becomes of the packet at the front, which the kernel did not take. `None`: it was dropped, go on.
    fn refused(&mut self, packet: &Packet, err: &io::Error) -> io::Result<Option<Sent>>;

    fn stats_mut(&mut self) -> &mut LinkStats;
}

/// [`Link::send`](crate::Link::send) for such a socket.
pub(crate) fn send(link: &mut impl Batches, burst: &mut Vec<Packet>) -> io::Result<Sent> {
    let mut gone = 0;
    let outcome = loop {
        let Some(first) = burst.get(gone) else { break Ok(Sent::All) };
        match link.send_batch(&burst[gone..]) {
            Ok(count) => {
                let stats = link.stats_mut();
                stats.tx_calls += 1;
                burst[gone..gone + count].iter().for_each(|packet| stats.sent(packet));
                gone += count;
            }
            Err(err) => match link.refused(first, &err) {
                Ok(None) => gone += 1,
                Ok(Some(stop)) => break Ok(stop),
                Err(err) => break Err(err),
            },
        }
    };
    burst.drain(..gone);
    outcome
}
