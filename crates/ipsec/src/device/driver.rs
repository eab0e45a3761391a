//! Interface of a device driver that offloads ESP.

use std::fmt;

use base::{DropReason, SaId};
use wire::esp;

use crate::config::{PolicyConfig, PolicyKey, SaConfig};
use crate::sa::SaStats;

/// An SA that a device is asked to take.
#[derive(Debug)]
pub struct NewState<'a> {
    /// Number, by which packets and callbacks name it.
    pub id: SaId,
    /// Configuration, with its key and its [`Offload`](super::Offload).
    pub config: &'a SaConfig,
    /// A random number of its own, for the initialisation vectors of a device that makes them.
    pub mask: u64,
}

/// Reason for which a device does not take an SA or a policy.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Refused {
    /// It is none for such (`EOPNOTSUPP`). Software does what can be done in software.
    Unsupported,
    /// The device failed, for this reason, which is reported to the client.
    Failed(&'static str),
}

/// Facts about a packet that a device is given before it gets the packet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Facts {
    /// The SA.
    pub sa: SaId,
    /// Bytes of its longest segment, with the IP header.
    pub len: usize,
    /// Whether that fits the SA's inner MTU.
    pub fits: bool,
    /// Whether its IP header has options, or extension headers behind it.
    pub has_options: bool,
    /// Whether a UDP header goes around its ESP.
    pub encap: bool,
}

/// Place where ESP of a packet is made.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Treatment {
    /// This node.
    Software,
    /// This node, but for the cipher: [`Train::Inline`](crate::Train::Inline).
    Cipher,
    /// The device: the packet goes to it as it is, with [`Esp::Protect`](packet::Esp::Protect).
    Device,
    /// Neither place.
    Refused(DropReason),
}

/// A network device that offloads ESP. How it gets at the packets is its link's concern.
pub trait Device: fmt::Debug + Send {
    /// Takes an SA (`xdo_dev_state_add`).
    ///
    /// # Errors
    /// The driver's reason to refuse it.
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

    /// Packet mode, if it has one.
    fn packet_mode(&mut self) -> Option<&mut dyn PacketDevice>;
}

/// Functions of a device in packet mode.
pub trait PacketDevice {
    /// Takes a policy (`xdo_dev_policy_add`).
    ///
    /// # Errors
    /// The driver's reason to refuse it.
    fn add_policy(&mut self, policy: &PolicyConfig) -> Result<(), Refused>;

    /// Forgets a policy (`xdo_dev_policy_delete`, `xdo_dev_policy_free`).
    fn delete_policy(&mut self, key: &PolicyKey);

    /// Counters of an SA (`xdo_dev_state_update_stats`); `None` for one that it does not have.
    fn stats(&self, id: SaId) -> Option<SaStats>;
}

/// Writes the seed of the initialisation vector to the vector's place in `frame`, for the device that seals it.
pub(crate) fn leave_seed(frame: &mut [u8], iv_len: usize, iv: [u8; 8]) {
    let room = &mut frame[esp::Header::LEN..][..iv_len];
    room.fill(0);
    let n = room.len().min(iv.len());
    room[..n].copy_from_slice(&iv[..n]);
}

/// Reads the seed of the initialisation vector from a frame that a device is to seal; `None` if the frame is too short.
#[must_use]
pub fn seed(frame: &[u8], iv_len: usize) -> Option<[u8; 8]> {
    let mut iv = [0; 8];
    let n = iv_len.min(iv.len());
    iv[..n].copy_from_slice(frame.get(esp::Header::LEN..)?.get(..n)?);
    Some(iv)
}
