//! What every link can do.

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;

use offload::Features;
use packet::{Memory, Packet};
use wire::eth::MacAddr;

use crate::vhost::GuestState;
use crate::{LinkStats, Offload, OpenError, RingState};

/// A link: packets come in and go out in bursts, and no call waits.
///
/// A link that goes down or away says so as an error of [`recv`](Self::recv) or [`send`](Self::send), with the device
/// and the call in its text. From then on `recv` says so until it is up again. A device that [is gone](Self::is_gone) does not
/// come back: a link on another device of its name is opened anew.
pub trait Link: fmt::Debug + Send {
    /// Its name in this node.
    fn name(&self) -> &str;

    /// What moves its bytes.
    fn kind(&self) -> Kind;

    /// The number of the host's interface that it is, as its network namespace numbers it; `None` if it is none.
    fn host_index(&self) -> Option<u32>;

    /// The layer-3 MTU in bytes.
    fn mtu(&self) -> usize;

    /// Gives it another MTU while it is open; `None` as in [`Config::mtu`](crate::Config::mtu).
    ///
    /// # Errors
    /// The system does not allow it; the MTU is as it was.
    fn set_mtu(&mut self, mtu: Option<u16>) -> Result<(), OpenError>;

    /// What it was told of its MTU last, as in [`set_mtu`](Self::set_mtu).
    fn wanted_mtu(&self) -> Option<u16> {
        u16::try_from(self.mtu()).ok()
    }

    /// Looks at what the host has made of its interface meanwhile. Tells whether it has another MTU.
    ///
    /// # Errors
    /// The interface is down or gone.
    fn look(&mut self) -> io::Result<bool> {
        Ok(false)
    }

    /// Tells, of a link that has failed, whether its device was deleted or has left the namespace for good.
    fn is_gone(&self) -> bool {
        false
    }

    /// Lets go of a device that [is gone](Self::is_gone) and may have come back, so that the link can be opened on it again.
    fn release(&mut self) {}

    /// Gives it another link-layer address while it is open; an interface of the host's gets it too.
    ///
    /// # Errors
    /// It has none, or the system does not allow it; the address is as it was.
    fn set_mac(&mut self, _mac: MacAddr) -> Result<(), OpenError> {
        Err(OpenError::no_address(self.name()))
    }

    /// Opens port 500 of its address, where IKE begins, or closes it. A link has one if its address is the host's, and one address, and its
    /// port that of ESP in UDP; another does nothing.
    ///
    /// # Errors
    /// The system does not allow it; the port is closed.
    fn set_ike_port(&mut self, _wanted: bool) -> Result<(), OpenError> {
        Ok(())
    }

    /// What its packets begin with.
    fn layer(&self) -> Layer;

    /// What it takes over of the work on packets that are sent. Only [`Sent::Refit`] changes it.
    fn features(&self) -> Features;

    /// Each offload that it can have, and whether it has.
    fn offloads(&self) -> &[Offload];

    /// What it has moved and dropped.
    fn stats(&self) -> &LinkStats;

    /// Sets the counters, to continue those of the link that this one replaces.
    fn set_stats(&mut self, stats: LinkStats);

    /// The device's ring, if it receives into frames of one.
    fn ring(&self) -> Option<RingState> {
        None
    }

    /// Whether the other end can receive. A guest's port has no carrier until the guest's driver runs.
    fn has_carrier(&self) -> bool {
        true
    }

    /// State of the guest, for a guest's port.
    fn guest(&self) -> Option<GuestState> {
        None
    }

    /// Gives the device back what came home from packets, and enters in the ledger what it had to copy. To be called once
    /// after packets have been dropped or sent, also if the link has nothing to receive: a ring that ran dry brings nothing.
    ///
    /// Returns whether the device has yet to be told again of some of what was sent: then it is to be called again after a
    /// while, of which nothing tells.
    fn settle(&mut self, _mem: &Memory) -> bool {
        false
    }

    /// Each descriptor to wait for: readable when there is something to receive. None for a link in memory.
    fn poll_fds(&self) -> Vec<BorrowedFd<'_>>;

    /// Those of them that become writable again after [`Sent::Busy`]. None: nothing tells, and it is to be tried again.
    fn room_fds(&self) -> Vec<BorrowedFd<'_>> {
        self.poll_fds()
    }

    /// Appends a burst of what has come in, possibly nothing. What is malformed or too long is dropped and counted.
    ///
    /// The packets' [`Meta::origin`](packet::Meta::origin) is left to the caller.
    ///
    /// # Errors
    /// The link is down or gone. Packets appended before are good.
    fn recv(&mut self, mem: &Memory, out: &mut Vec<Packet>) -> io::Result<()>;

    /// Sends packets from the front of `burst` and removes them. What the system refuses for another reason than an
    /// offload is dropped and counted.
    ///
    /// # Errors
    /// The link is down or gone. What was not sent is still in `burst`.
    fn send(&mut self, burst: &mut Vec<Packet>) -> io::Result<Sent>;
}

/// How far [`Link::send`] came.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[must_use]
pub enum Sent {
    /// Everything is gone.
    All,
    /// The link takes no more at present; the rest is still in the burst.
    Busy,
    /// The first packet that is left was refused for an offload, which is now off: fit the rest again to
    /// [`Link::features`].
    Refit,
}

/// What a link's packets begin with.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Layer {
    /// An Ethernet header; this is our own address.
    Ethernet(MacAddr),
    /// An IP header.
    Ip,
}

/// What moves a link's bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kind {
    /// A TUN device.
    Tun,
    /// A TAP device.
    Tap,
    /// A UDP socket.
    Udp,
    /// A packet socket on an interface.
    Packet,
    /// AF_XDP sockets on an interface.
    Xdp,
    /// The own port of a bridge.
    Bridge,
    /// A VLAN of another link.
    Vlan,
    /// A guest's memory, by vhost-user.
    VhostUser,
    /// A back end of vhost-user.
    VirtioUser,
    /// A model of a virtual Ethernet adapter, in this process.
    TrunkAdapter,
    /// A queue in this process.
    Memory,
}

impl Kind {
    /// The word for it in a configuration and in `fatpath show links`.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Tun => "tun",
            Self::Tap => "tap",
            Self::Udp => "udp",
            Self::Packet => "packet",
            Self::Xdp => "xdp",
            Self::Bridge => "bridge",
            Self::Vlan => "vlan",
            Self::VhostUser => "vhost-user",
            Self::VirtioUser => "virtio-user",
            Self::TrunkAdapter => "trunk-adapter",
            Self::Memory => "memory",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}
