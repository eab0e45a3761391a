//! Configuration of an SA's offload to a device.

use base::PortId;

use crate::mode::SaDir;

/// Device that processes an SA's packets: iproute2's `offload crypto|packet dev DEV dir in|out`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Offload {
    /// Link of the device.
    pub dev: PortId,
    /// Direction of the packets.
    pub dir: SaDir,
    /// Share of the work on the device.
    pub mode: OffloadMode,
}

/// Share of ESP processing on a device.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum OffloadMode {
    /// The cipher. Software does it when the device cannot.
    #[default]
    Crypto,
    /// All processing: headers, numbers, the replay window, policies. Software does not replace the device.
    Packet,
}
