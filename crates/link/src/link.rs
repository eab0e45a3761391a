//! The trait of all links, and its results.

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;

use offload::Features;
use packet::{Memory, Packet};
use wire::eth::MacAddr;

use crate::udp::PeerError;
use crate::vhost::{GuestState, PassedConnection};
use crate::{Common, Duplicates, LinkStats, Offload, OpenError, RingState};

/// A link, which receives and sends packets in bursts; no call blocks.
///
/// [`recv`](Self::recv) or [`send`](Self::send) of a link whose device goes down or away is an error, with the device
/// and the call in its text. From then on `recv` fails until the device is up again. A device that [is
/// gone](Self::is_gone) does not come back: the link is opened anew on another device of the same name.
pub trait Link: fmt::Debug + Send {
    /// State that every link has. The getters below return what is in it.
    fn common(&self) -> &Common;

    /// State that every link has, to be changed.
    fn common_mut(&mut self) -> &mut Common;

    /// Name in this node.
    fn name(&self) -> &str {
        &self.common().name
    }

    /// Index of the host's interface, in the interface's network namespace; `None` if the link has none.
    fn host_index(&self) -> Option<u32> {
        None
    }

    /// The layer-3 MTU in bytes.
    fn mtu(&self) -> usize {
        self.common().mtu
    }

    /// Changes the MTU of the open link; `None` as in [`Config::mtu`](crate::Config::mtu).
    ///
    /// # Errors
    /// The system refuses; the MTU is unchanged.
    fn set_mtu(&mut self, mtu: Option<u16>) -> Result<(), OpenError> {
        self.common_mut().set_mtu(mtu);
        Ok(())
    }

    /// Configured MTU, as in [`Common::configured_mtu`](crate::Common::configured_mtu); `None` for the default of the kind.
    fn configured_mtu(&self) -> Option<u16> {
        self.common().configured_mtu
    }

    /// Rereads the state of the host's interface. Tells whether the MTU has changed.
    ///
    /// # Errors
    /// The interface is down or gone.
    fn look(&mut self) -> io::Result<bool> {
        Ok(false)
    }

    /// Tells whether the device of a failed link was deleted or has left the namespace for good.
    fn is_gone(&self) -> bool {
        false
    }

    /// Releases a device that [is gone](Self::is_gone), so that the link can be opened again on a new device of that
    /// name.
    fn release(&mut self) {}

    /// Duplicates of the link's descriptors, from which another process [makes](crate::from_descriptors) the same link; `None` for a
    /// link that cannot be made so.
    ///
    /// # Errors
    /// Error of fcntl(2).
    fn duplicate(&self) -> io::Result<Option<Duplicates>> {
        Ok(None)
    }

    /// Makes the device of a TUN or TAP link this node's own, so that [`keep`](Self::keep) applies to it. For other links, and for
    /// [queues](crate::open_queues) of other shards than the first, the call does nothing.
    fn own(&mut self) {}

    /// Sets whether an [own](Self::own) device stays when the link is closed.
    ///
    /// # Errors
    /// The system refuses.
    fn keep(&mut self, _kept: bool) -> io::Result<()> {
        Ok(())
    }

    /// Whether the device of a TUN or TAP link exists, in whatever network namespace; true for other links.
    fn has_device(&self) -> bool {
        true
    }

    /// Changes the link-layer address of the open link, and of its interface of the host, if it has one.
    ///
    /// # Errors
    /// The link has no address, or the system refuses; the address is unchanged.
    fn set_mac(&mut self, _mac: MacAddr) -> Result<(), OpenError> {
        Err(OpenError::no_address(self.name()))
    }

    /// Sets whether the link receives frames to all stations (Linux `dev_set_promiscuity`), not only to its own address and to groups. For
    /// a link whose device does not filter the call does nothing.
    ///
    /// # Errors
    /// The system refuses. The next call tries again.
    fn set_promiscuous(&mut self, _on: bool) -> io::Result<()> {
        Ok(())
    }

    /// Opens or closes port 500 of the link's address, where IKE begins. Only a UDP link that is bound to a single
    /// address and to the port of ESP in UDP has this port; for any other link, and for [queues](crate::open_queues) of other shards than
    /// the first, the call does nothing.
    ///
    /// # Errors
    /// The system refuses; the port is closed.
    fn set_ike_port(&mut self, _wanted: bool) -> Result<(), OpenError> {
        Ok(())
    }

    /// Outermost header of the link's packets.
    fn layer(&self) -> Layer;

    /// Offloads of the link for packets that are sent. They change only with [`Sent::Refit`].
    fn features(&self) -> Features {
        self.common().features
    }

    /// Each offload of this kind of link, and whether it is on.
    fn offloads(&self) -> &[Offload] {
        self.common().offloads.all()
    }

    /// Counters of packets moved and dropped.
    fn stats(&self) -> &LinkStats {
        &self.common().stats
    }

    /// Sets the counters, to continue those of the link that this one replaces.
    fn set_stats(&mut self, stats: LinkStats) {
        self.common_mut().stats = stats;
    }

    /// State of the device's ring, if the link receives into ring frames.
    fn ring(&self) -> Option<RingState> {
        None
    }

    /// Tells whether another shard of the node sends by the link's device, as this one has no queue of it. For a guest's port this changes
    /// while the link is open.
    fn is_elsewhere(&self) -> bool {
        false
    }

    /// Tells whether the shards that have a queue are others than at the last call. The first shard's link says so; links of the other
    /// shards [follow](Self::is_elsewhere) by themselves.
    fn take_shared_change(&mut self) -> bool {
        false
    }

    /// Tells whether the other end can receive. A guest's port has no carrier until the guest's driver runs.
    fn has_carrier(&self) -> bool {
        true
    }

    /// Leaves a guest's port to another process, with the connection of the guest, if there is one. No link of the port, in any
    /// shard, receives or sends from then on. Other links have none.
    ///
    /// # Errors
    /// The reason why the connection is closed instead. The port is left.
    fn pass_guest(&mut self) -> Result<Option<PassedConnection>, String> {
        Ok(None)
    }

    /// Takes a guest's port of another process, which does not use it any more, and goes on with its connection. Called on each link
    /// that is made from the descriptors of another process, before it first receives.
    ///
    /// # Errors
    /// The reason why the connection is closed instead. A link of another kind has no use for one.
    fn take_guest(&mut self, passed: Option<PassedConnection>) -> Result<(), String> {
        let Some(passed) = passed else { return Ok(()) };
        passed.close();
        Err("it is no port of a guest".to_owned())
    }

    /// State of the guest, for a guest's port.
    fn guest(&self) -> Option<GuestState> {
        None
    }

    /// Last errors that the network reported about peers of the link, for a UDP link.
    fn peer_errors(&self) -> Vec<PeerError> {
        Vec::new()
    }

    /// Returns freed frames to the device's ring, and enters copies in the ledger. Called once after packets were
    /// dropped or sent, also if there is nothing to receive: an empty ring receives nothing.
    ///
    /// Returns whether the device still has to be kicked for some sent packets: then the call is to be repeated after a
    /// while, since no descriptor becomes ready.
    fn settle(&mut self, _mem: &Memory) -> bool {
        false
    }

    /// Descriptors to poll: readable when there is something to receive. None for a link in memory.
    fn poll_fds(&self) -> Vec<BorrowedFd<'_>>;

    /// Descriptors that become writable again after [`Sent::Busy`]. If there are none, the caller retries after a
    /// while.
    fn room_fds(&self) -> Vec<BorrowedFd<'_>> {
        self.poll_fds()
    }

    /// Appends a burst of received packets, possibly none. Malformed and too long packets are dropped and counted.
    ///
    /// The packets' [`Meta::origin`](packet::Meta::origin) is left to the caller.
    ///
    /// # Errors
    /// The link is down or gone. Packets appended before the error are valid.
    fn recv(&mut self, mem: &Memory, out: &mut Vec<Packet>) -> io::Result<()>;

    /// Sends packets from the front of `burst` and removes them. A packet that the system refuses for another reason
    /// than an offload is dropped and counted.
    ///
    /// # Errors
    /// The link is down or gone. Packets that were not sent are still in `burst`.
    fn send(&mut self, burst: &mut Vec<Packet>) -> io::Result<Sent>;
}

/// Result of [`Link::send`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[must_use]
pub enum Sent {
    /// The burst is empty.
    All,
    /// The link is full; unsent packets are still in the burst.
    Busy,
    /// The first packet left in the burst was refused for an offload, which is now off: fit the burst again to
    /// [`Link::features`].
    Refit,
}

/// Outermost header of a link's packets.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Layer {
    /// An Ethernet header, and this node's own address.
    Ethernet(MacAddr),
    /// An IP header.
    Ip,
}
