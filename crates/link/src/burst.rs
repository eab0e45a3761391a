//! How a burst is sent by a socket that takes many packets in one system call.

use std::io;

use packet::Packet;

use crate::{LinkStats, Sent};

/// What becomes of a packet that the kernel did not take.
pub(crate) enum Refused {
    /// It was dropped; the others go on.
    Dropped,
    /// It is tried again.
    Again,
    /// It and those behind it stay where they are.
    Stop(Sent),
}

/// A socket that takes many packets in one system call.
pub(crate) trait Batches {
    /// Sends packets from the front of `packets` in one system call, and tells how many went.
    fn send_batch(&mut self, packets: &[Packet]) -> io::Result<usize>;

    /// What becomes of the packet at the front, which the kernel did not take.
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
                let stats = link.stats_mut();
                stats.tx_calls += 1;
                burst[gone..gone + count].iter().for_each(|packet| stats.sent(packet));
                gone += count;
            }
            Err(err) => match link.refused(first, &err) {
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
