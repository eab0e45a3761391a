//! Interface of a device driver that offloads ESP.

use std::fmt;

use base::{DropReason, SaId};
use wire::esp;
use xfrm::{PolicyConfig, PolicyKey, SaConfig};

use crate::sa::SaStats;

/// An SA offered to a device.
#[derive(Debug)]
pub struct NewState<'a> {
    /// Number of the SA in packets and callbacks.
    pub id: SaId,
    /// Configuration, with its key and its [`Offload`](xfrm::Offload).
    pub config: &'a SaConfig,
    /// Random number of this SA, for the initialisation vectors of a device that makes them.
    pub mask: u64,
}

/// Reason for which a device refuses an SA or a policy.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Refused {
    /// The device has no such function (`EOPNOTSUPP`). Software takes over where it can.
    Unsupported,
    /// The device failed, for this reason, which is reported to the client.
    Failed(&'static str),
}

/// Properties of a packet by which a device decides whether it can offload it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct OffloadFacts {
    /// The SA.
    pub sa: SaId,
    /// Bytes of its longest segment, with the IP header.
    pub len: usize,
    /// Whether that segment fits the SA's inner MTU.
    pub fits: bool,
    /// Whether its IP header has options, or extension headers behind it.
    pub has_options: bool,
    /// Whether a UDP header goes around its ESP.
    pub encap: bool,
}

/// Decision which part of ESP a device does for a packet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum OffloadDecision {
    /// Software does all of it.
    Software,
    /// The device runs the cipher, software the rest: [`Train::Inline`](crate::Train::Inline).
    Cipher,
    /// The device does all of it: it gets the packet in clear, with [`Esp::Protect`](packet::Esp::Protect).
    Device,
    /// The packet is dropped.
    Refused(DropReason),
}

/// A network device that offloads ESP. Its link hands it the packets.
pub trait Device: fmt::Debug + Send {
    /// Takes an SA (`xdo_dev_state_add`).
    ///
    /// # Errors
    /// The driver's reason to refuse it.
    fn add_state(&mut self, state: &NewState<'_>) -> Result<(), Refused>;

    /// Removes an SA; packets of it that are still to come are dropped (`xdo_dev_state_delete`, `xdo_dev_state_free`).
    fn delete_state(&mut self, id: SaId);

    /// Tells whether it can do this packet (`xdo_dev_offload_ok`).
    fn offload_ok(&self, packet: &OffloadFacts) -> bool;

    /// Tells whether it tracks extended sequence numbers: in crypto mode, a device that does not gets no SA that has
    /// them.
    fn follows_esn(&self) -> bool;

    /// Reports `top`, the highest number received by an SA of crypto mode (`xdo_dev_state_advance_esn`). Called
    /// whenever its uppermost 33 bits change; so the number of the next packet is above `top - 2³⁰` and at most 2³²
    /// above that.
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

    /// Removes a policy (`xdo_dev_policy_delete`, `xdo_dev_policy_free`).
    fn delete_policy(&mut self, key: &PolicyKey);

    /// Counters of an SA (`xdo_dev_state_update_stats`); `None` if the device does not have it.
    fn stats(&self, id: SaId) -> Option<SaStats>;
}

/// Writes the seed of the initialisation vector to the vector's place in `frame`, for the device that seals it.
pub(crate) fn leave_seed(frame: &mut [u8], iv_len: usize, iv: [u8; 8]) {
    let room = &mut frame[esp::EspHeader::LEN..][..iv_len];
    room.fill(0);
    let n = room.len().min(iv.len());
    room[..n].copy_from_slice(&iv[..n]);
}

/// Reads the seed of the initialisation vector from a frame that a device is to seal; `None` if the frame is too short.
#[must_use]
pub fn seed(frame: &[u8], iv_len: usize) -> Option<[u8; 8]> {
    let mut iv = [0; 8];
    let n = iv_len.min(iv.len());
    iv[..n].copy_from_slice(frame.get(esp::EspHeader::LEN..)?.get(..n)?);
    Some(iv)
}
