//! Configuration of links of the host, as an operator writes it.

use driver::DriverKind;
use wire::eth::MacAddr;

/// Default MTU of a link without an interface.
pub(crate) const DEFAULT_MTU: usize = 1500;

/// Configuration of a link to be opened.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Config {
    /// Name. A TUN or TAP device has the same name on the host.
    pub name: String,
    /// Kind of the link, with its settings.
    pub kind: DriverKind,
    /// The link's own address, for vhost-user, where no device has one; the other kinds have that of their device, or none.
    pub mac: Option<MacAddr>,
    /// Layer-3 MTU in bytes; `None` is the interface's own for a packet socket or AF_XDP, and 1500 for other kinds. A TUN or TAP
    /// device that exists keeps its own when the link is opened.
    pub mtu: Option<u16>,
    /// False turns every offload off, and moves one packet per system call.
    pub offloads: bool,
    /// Interface index of a TUN or TAP device that is made for the link; `None` lets the host choose.
    pub index: Option<u32>,
}
