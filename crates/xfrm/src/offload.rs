//! Configuration of an SA's offload to a device.

use base::LinkId;

use crate::mode::SaDir;

/// Device that does an SA's work: iproute2's `offload crypto|packet dev DEV dir in|out`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Offload {
    /// Link of the device.
    pub dev: LinkId,
    /// Direction of the packets.
    pub dir: SaDir,
    /// Share of the work that it does.
    pub mode: OffloadMode,
}

/// Share of ESP that a device does.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum OffloadMode {
    /// The cipher. Whatever the device cannot, or not now, is done in software.
    #[default]
    Crypto,
    /// Everything: headers, numbers, the replay window, policies. There is no other way.
    Packet,
}
