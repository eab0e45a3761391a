//! Orders to the opener of the host side, and the answers.

use std::os::fd::OwnedFd;
use std::path::PathBuf;

use link::HostDevice;
use serde::{Deserialize, Serialize};
use wire::eth::MacAddr;

use super::content::Step;
use crate::opener::child;

/// An order.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(super) enum Order {
    /// Work for the gateway with these files, the first order. Answered by [`Answer::Begun`].
    Begin(Files),
    /// Enter the namespace that is bound to the place, or the one of the record, which is that of the message's descriptor or
    /// has a process inside, or make one. Bind it to the place, and write the record. Once. Answered by [`Answer::Namespace`].
    Namespace,
    /// Take steps in the namespace, in order. Answered by [`Answer::Changed`].
    Change(Vec<Step>),
    /// Remove the device with this index from the namespace. Answered by [`Answer::Changed`].
    Remove(u32),
    /// Make a device in the namespace. Answered by [`Answer::Done`] with its queue.
    Device { name: String, index: u32, mac: Option<[u8; 6]>, mtu: Option<u16> },
    /// Create a pair of devices whose other end has the name `peer` and is in an empty namespace. Answered by
    /// [`Answer::Done`] with a packet socket and a socket for `ioctl` requests in that namespace.
    Pair { name: String, index: u32, mac: [u8; 6], mtu: u32, peer: String },
    /// Tell whether other processes are in the namespace. Answered by [`Answer::Entered`].
    Look,
    /// Remove the file that the namespace is bound to. Answered by [`Answer::Done`].
    Unbind,
}

/// Files by which a namespace is found again.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) struct Files {
    /// File that the namespace is bound to.
    pub(super) place: Option<PathBuf>,
    /// File beside the control socket.
    pub(super) record: PathBuf,
    /// Whether the opener restricts itself.
    pub(super) is_confined: bool,
}

/// An answer.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(super) enum Answer {
    /// The opener has begun, without these restrictions, each with the reason.
    Begun { missing: Vec<String> },
    /// The message has descriptors in the order of [`Descriptors`].
    Namespace {
        /// Whether the namespace existed before.
        found: bool,
        /// Reason for which the namespace is not bound to the place.
        unbound: Option<String>,
        /// Reason for which no TUN or TAP device can be made.
        tun_closed: Option<String>,
        /// Port of the netlink socket that makes changes, which their notifications have.
        port: u32,
    },
    /// Whether processes other than this one are in the namespace, as far as it may inspect them.
    Entered(bool),
    /// The order is carried out.
    Done,
    /// The order is carried out, with the `errno` of each step, or 0.
    Changed(Vec<i32>),
    /// The order cannot be carried out, for this reason.
    Refused(String),
}

/// Descriptors of a namespace.
#[derive(Debug)]
pub(super) struct Descriptors {
    /// Network namespace.
    pub(super) network: OwnedFd,
    /// Netlink socket in the namespace, for dumps.
    pub(super) dumps: OwnedFd,
    /// Netlink socket in the namespace that receives notifications of changes.
    pub(super) events: OwnedFd,
    /// Socket in the namespace for `ioctl` requests.
    pub(super) control: OwnedFd,
    /// Netlink socket of `sock_diag` in the namespace.
    pub(super) sock_diag: OwnedFd,
    /// User namespace that owns the network namespace.
    pub(super) user: Option<OwnedFd>,
}

impl Descriptors {
    /// Descriptors of a message.
    pub(super) fn of(descriptors: Vec<OwnedFd>) -> Option<Self> {
        let mut each = descriptors.into_iter();
        Some(Self {
            network: each.next()?,
            dumps: each.next()?,
            events: each.next()?,
            control: each.next()?,
            sock_diag: each.next()?,
            user: each.next(),
        })
    }

    /// Descriptors in the order in which a message has them.
    pub(super) fn into_vec(self) -> Vec<OwnedFd> {
        [self.network, self.dumps, self.events, self.control, self.sock_diag].into_iter().chain(self.user).collect()
    }
}

impl Order {
    /// The order to make a pair of devices; `None` for a device without a link-layer address.
    pub(super) fn pair(device: &HostDevice) -> Option<Self> {
        let MacAddr(mac) = device.mac?;
        let (name, mtu) = (device.name.clone(), device.mtu() as u32);
        Some(Self::Pair { name, index: device.index, mac, mtu, peer: peer_of(device) })
    }

    /// The order to make a device.
    pub(super) fn device(device: &HostDevice) -> Self {
        let HostDevice { ref name, index, mac, mtu } = *device;
        Self::Device { name: name.clone(), index, mac: mac.map(|MacAddr(bytes)| bytes), mtu }
    }
}

/// Name of the other end of a device, by its number, which has at most 10 digits.
pub(super) fn peer_of(device: &HostDevice) -> String {
    format!("peer{}", device.index)
}

impl child::FromOpener for Answer {
    fn carried_out(self) -> Result<Self, String> {
        match self {
            Self::Refused(why) => Err(why),
            done => Ok(done),
        }
    }
}
