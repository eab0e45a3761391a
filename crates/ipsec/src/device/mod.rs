//! Devices that do ESP themselves, inline: as they send and receive (Linux `xfrmdev_ops`, `struct xfrm_dev_offload`).
//!
//! An SA is offered to its device when it is added, and removed from the device with the SA; packets reach the device
//! through its link.
//! [`packet::Esp`] in the metadata says which work is left to the device; any other device or stage that gets such a
//! packet seals or drops it. In [crypto mode](xfrm::OffloadMode::Crypto) the device runs the cipher alone: headers, numbers
//! and the replay window stay here, so software can take over for any packet. In [packet mode](xfrm::OffloadMode::Packet) the
//! device does all of ESP, and software cannot take over. This is not [`Crypto`](crate::crypto::Crypto), which runs
//! ciphers for this node and returns the packets.

mod driver;
mod software;
mod table;

pub(crate) use driver::leave_seed;
pub use driver::{Device, NewState, OffloadDecision, OffloadFacts, PacketDevice, Refused, seed};
pub use software::{DeviceStates, ReceivedEsp, SoftwareDevice, find_esp};
pub(crate) use table::Devices;
