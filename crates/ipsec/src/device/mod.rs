//! Devices that do ESP themselves, inline: as they send and receive (Linux `xfrmdev_ops`, `struct xfrm_dev_offload`).
//!
//! A device is asked to take an SA when it is added, and told when that is gone; the packets meet it at its link. What is
//! left to it is written on the packet ([`packet::Esp`]), and any other device or stage that meets such a packet seals or drops it. In
//! [crypto mode](xfrm::OffloadMode::Crypto) the cipher alone is the device's: headers, numbers and the replay window stay here,
//! so that it can be left out for any packet. In [packet mode](xfrm::OffloadMode::Packet) all of ESP is, and nothing but the
//! device can do it. [`Crypto`](crate::crypto::Crypto) is another thing: it works for this node on packets that come back.

mod driver;
mod table;

pub(crate) use driver::leave_seed;
pub use driver::{Device, Facts, NewState, PacketDevice, Refused, Treatment, seed};
pub(crate) use table::Devices;
