//! Orders of the daemon to the process of its host side, and the answers: a JSON value in each message of a socket pair,
//! with descriptors. Each order has a number, which its answer repeats: an answer may come after its order was given up.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use client::passing;
use link::HostDevice;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use wire::eth::MacAddr;

/// The longest message in bytes.
const MAX_LEN: usize = 16 << 10;

/// An order.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(super) enum Order {
    /// Enter the namespace that is bound to `place`, or the one of the file `record`, which is that of the message's
    /// descriptor or has a process inside, or make one. Bind it to `place`, and write the file. Answered by
    /// [`Answer::Namespace`].
    Namespace { place: Option<PathBuf>, record: PathBuf },
    /// Make a device in the namespace. Answered by [`Answer::Done`] with its queue.
    Device { name: String, index: u32, mac: Option<[u8; 6]>, mtu: Option<u16> },
    /// Create a pair of devices whose other end has the name `peer` and is in an empty namespace. Answered by
    /// [`Answer::Done`] with a packet socket and a socket for `ioctl` requests in that namespace.
    Pair { name: String, index: u32, mac: [u8; 6], mtu: u32, peer: String },
    /// Tell whether other processes are in the namespace. Answered by [`Answer::Entered`].
    Look,
    /// Remove the file that the namespace is bound to. Answered by [`Answer::Done`].
    Unbind { place: PathBuf },
}

/// An answer.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(super) enum Answer {
    /// The message has descriptors in the order of [`Descriptors`].
    Namespace {
        /// Whether the namespace existed before.
        found: bool,
        /// Reason for which the namespace is not bound to the place.
        unbound: Option<String>,
        /// Reason for which no TUN or TAP device can be made.
        tun_closed: Option<String>,
    },
    /// Whether processes other than this one are in the namespace, as far as it may inspect them.
    Entered(bool),
    /// The order is carried out.
    Done,
    /// The order cannot be carried out, for this reason.
    Refused(String),
}

/// Descriptors of a namespace.
#[derive(Debug)]
pub(super) struct Descriptors {
    /// Network namespace.
    pub(super) network: OwnedFd,
    /// Netlink socket in the namespace, for requests.
    pub(super) requests: OwnedFd,
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
            requests: each.next()?,
            events: each.next()?,
            control: each.next()?,
            sock_diag: each.next()?,
            user: each.next(),
        })
    }

    /// Descriptors in the order in which a message has them.
    pub(super) fn into_vec(self) -> Vec<OwnedFd> {
        [self.network, self.requests, self.events, self.control, self.sock_diag].into_iter().chain(self.user).collect()
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

/// Sends an order, or the answer to one, with the order's number.
///
/// # Errors
/// Errors of sendmsg(2).
pub(super) fn send(
    socket: impl AsFd,
    number: u64,
    message: &impl Serialize,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    passing::send(socket, &serde_json::to_vec(&(number, message))?, descriptors)
}

/// Receives the number of an order, and the order or its answer; `None` when the other side has closed.
///
/// # Errors
/// Errors of recvmsg(2), and of a malformed message.
pub(super) fn receive<T: DeserializeOwned>(socket: impl AsFd) -> io::Result<Option<(u64, T, Vec<OwnedFd>)>> {
    let mut buffer = vec![0; MAX_LEN];
    let (len, descriptors) = passing::receive(socket, &mut buffer)?;
    if len == 0 {
        return Ok(None);
    }
    let (number, message) = serde_json::from_slice(&buffer[..len])?;
    Ok(Some((number, message, descriptors)))
}
