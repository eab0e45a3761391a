//! Devices that do ESP themselves, inline: as they send and receive (Linux `xfrmdev_ops`, `struct xfrm_dev_offload`).
//!
//! A device is asked to take an SA when it is added, and told when that is gone; the packets meet it at its link. What is
//! left to it is written on the packet ([`packet::Esp`]), and whoever else comes upon such a packet seals or drops it. In
//! [crypto mode](OffloadMode::Crypto) the cipher alone is the device's: headers, numbers and the replay window stay here,
//! so that it can be left out for any packet. In [packet mode](OffloadMode::Packet) all of ESP is, and nothing but the
//! device can do it. [`Crypto`](crate::crypto::Crypto) is another thing: it works for this node on packets that come back.

mod outcome;
mod soft;
mod soft_packet;
mod table;

use std::fmt;

use base::SaId;

use crate::config::{PolicyConfig, PolicyKey, SaConfig};
use crate::sa::SaStats;

pub use crate::config::{Offload, OffloadMode};
pub use outcome::{Facts, Treatment};
pub(crate) use outcome::{leave_seed, seed};
pub use soft::{Faults, SoftDevice, SoftStats};
pub(crate) use table::Devices;

/// An SA that a device is asked to take.
#[derive(Debug)]
pub struct NewState<'a> {
    /// Its number, by which packets and callbacks name it.
    pub id: SaId,
    /// What it is, with its key and its [`Offload`].
    pub config: &'a SaConfig,
    /// A random number of its own, for the initialisation vectors of a device that makes them.
    pub mask: u64,
}

/// Why a device does not take an SA or a policy.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Refused {
    /// It is none for such (`EOPNOTSUPP`). Software does what can be done in software.
    Unsupported,
    /// It could not, for this reason: whoever asked is told.
    Failed(&'static str),
}

/// A network device that offloads ESP. How it gets at the packets is its link's concern.
pub trait Device: fmt::Debug + Send {
    /// Takes an SA (`xdo_dev_state_add`).
    ///
    /// # Errors
    /// Why not.
    fn add_state(&mut self, state: &NewState<'_>) -> Result<(), Refused>;

    /// Forgets an SA, whose packets that are still to come go nowhere (`xdo_dev_state_delete`, `xdo_dev_state_free`).
    fn delete_state(&mut self, id: SaId);

    /// Whether it can do this packet (`xdo_dev_offload_ok`).
    fn offload_ok(&self, packet: &Facts) -> bool;

    /// Whether it follows extended sequence numbers: without, in crypto mode, it gets no SA that has them.
    fn follows_esn(&self) -> bool;

    /// The highest number received by an SA of crypto mode is `top` now (`xdo_dev_state_advance_esn`). Told whenever its
    /// uppermost 33 bits change; so the number of the next packet is above `top - 2³⁰` and at most 2³² above that.
    fn advance_esn(&mut self, id: SaId, top: u64);

    /// Its packet mode, if it has one.
    fn packet_mode(&mut self) -> Option<&mut dyn PacketDevice>;
}

/// What a device does beyond that in packet mode.
pub trait PacketDevice {
    /// Takes a policy (`xdo_dev_policy_add`).
    ///
    /// # Errors
    /// Why not.
    fn add_policy(&mut self, policy: &PolicyConfig) -> Result<(), Refused>;

    /// Forgets a policy (`xdo_dev_policy_delete`, `xdo_dev_policy_free`).
    fn delete_policy(&mut self, key: &PolicyKey);

    /// What an SA has counted (`xdo_dev_state_update_stats`); `None` for one that it does not have.
    fn stats(&self, id: SaId) -> Option<SaStats>;
}
