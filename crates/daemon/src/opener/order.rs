//! Orders about links and their devices, and the answers.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;

use driver::DriverKind;
use serde::{Deserialize, Serialize};

use super::child;
use super::files::{Directory, FileOrder};
use crate::confine::{LinkRight, UserIds};
use crate::host::rtnl::{HostAddress, HostRoute};

/// An order.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) enum LinkOrder {
    /// Work in these directories, too. Before [`Begin`](Self::Begin) alone. Answered by [`LinkAnswer::Done`].
    Directories(Vec<Directory>),
    /// Work for the gateway of this name, before the orders that follow. Answered by [`LinkAnswer::Begun`].
    Begin(Gateway),
    /// Tell the port of the socket that makes changes. Answered by [`LinkAnswer::Begun`].
    Port,
    /// From now on a link of a kind that the file of the start did not have takes a client's right, or stands in that file. Answered by
    /// [`LinkAnswer::Done`].
    Ready,
    /// Make the descriptors of a link: [`link::acquire`]. A TUN or TAP device that is made is the gateway's own. The message may have
    /// the connection of the client that has asked for the link. Answered by [`LinkAnswer::Opened`].
    Open(Opening),
    /// Take on a link that another gateway has opened. Answered by [`LinkAnswer::Opened`] without descriptors.
    Adopt(Opening),
    /// Make changes, in order. Answered by [`LinkAnswer::Done`].
    Change(Vec<Change>),
    /// Make a UDP socket at another port of the address of a link: [`link::bind_port`]. Answered by [`LinkAnswer::Done`] with the
    /// socket.
    Bind { address: SocketAddr, joins: bool },
    /// Set the buffers of the message's socket: [`link::widen`]. Answered by [`LinkAnswer::Done`].
    Widen,
    /// Read, make or remove a file. Answered by [`LinkAnswer::Done`] with the descriptors of the work.
    File(FileOrder),
}

/// A gateway, as an opener knows it.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) struct Gateway {
    /// Name, by which devices and routes are marked.
    pub(crate) instance: String,
    /// Whether devices that the gateway makes stay when it ends.
    pub(crate) keeps_devices: bool,
    /// Rights to open links; `None`: all.
    pub(crate) rights: Option<BTreeSet<LinkRight>>,
    /// Rights for links of the file of the start, which take no client's.
    pub(crate) of_file: BTreeSet<LinkRight>,
    /// The file of the start, if it can be read again.
    pub(crate) file: Option<PathBuf>,
    /// Paths to which the sockets are bound that clients connect to.
    pub(crate) sockets: Vec<PathBuf>,
    pub(crate) has_host_side: bool,
    /// User of the gateway, if it is another one than the opener's.
    pub(crate) user: Option<UserIds>,
}

/// A link to be opened.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) struct Opening {
    pub(crate) name: String,
    pub(crate) kind: DriverKind,
    pub(crate) mtu: Option<u16>,
    pub(crate) offloads: bool,
    /// Interface index of a device that is made.
    pub(crate) index: Option<u32>,
    pub(crate) shards: u8,
}

/// Change of a device, or of an address or a route of the host.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) enum Change {
    /// Add (`is_new`) or remove an address.
    Address { address: HostAddress, is_new: bool },
    /// Add or remove a route.
    Route { route: HostRoute, is_new: bool },
    /// Remove the device of an earlier run with this index.
    Remove { index: u32 },
    /// Set the MTU of the device with this index.
    Mtu { index: u32, mtu: u32 },
    /// Set the link-layer address of the interface with this index.
    Mac { index: u32, mac: [u8; 6] },
}

/// An answer.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) enum LinkAnswer {
    /// The opener has begun.
    Begun {
        /// Port of the netlink socket that makes changes, which their notifications have.
        port: u32,
        /// Restrictions of the opener that could not be set, each with the reason.
        missing: Vec<String>,
    },
    /// The message has the descriptors.
    Opened {
        /// Whether the link's device is the gateway's own.
        is_own: bool,
        /// Whether a device of the gateway was removed and made again, and has lost its routes.
        is_remade: bool,
        /// As in [`link::Acquired`].
        why_generic: Option<String>,
    },
    /// The order is carried out, with the `errno` of each change or call, or 0.
    Done(Vec<i32>),
    /// The order is refused, for this reason.
    Refused(String),
}

impl child::FromOpener for LinkAnswer {
    fn carried_out(self) -> Result<Self, String> {
        match self {
            Self::Refused(why) => Err(why),
            done => Ok(done),
        }
    }
}

impl Opening {
    /// The configuration of the link, with an MTU of its device.
    pub(crate) fn config(&self, mtu: Option<u16>) -> link::Config {
        let Self { name, kind, offloads, index, .. } = self;
        link::Config { name: name.clone(), kind: kind.clone(), mac: None, mtu, offloads: *offloads, index: *index }
    }
}
