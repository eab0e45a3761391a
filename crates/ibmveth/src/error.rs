//! Refusals: the hypervisor's answers, and the driver's to its operator.

use std::error::Error;
use std::fmt;

/// Answer of the hypervisor to a call that it did not carry out.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Refusal {
    /// Call again (`H_BUSY`).
    Busy,
    /// The frame reached no one (`H_DROPPED`).
    Dropped,
    /// An argument is wrong (`H_PARAMETER`).
    Parameter,
    /// There is no such call (`H_FUNCTION`).
    Function,
    /// There is no room (`H_RESOURCE`).
    Resource,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Busy => "H_BUSY",
            Self::Dropped => "H_DROPPED",
            Self::Parameter => "H_PARAMETER",
            Self::Function => "H_FUNCTION",
            Self::Resource => "H_RESOURCE",
        })
    }
}

impl Error for Refusal {}

/// Reason for which a setting is refused, or an adapter does not open.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SettingError {
    /// The value is out of range (`EINVAL`).
    Range(usize),
    /// It is the last pool with buffers for the MTU (`EPERM`).
    LastPool,
    /// The hypervisor does not agree (`EIO`).
    Refused,
    /// The hypervisor has no such adapter for the partition, or no more of them (`ENONET`).
    NotRegistered,
    /// No station has such an address (`EADDRNOTAVAIL`).
    Address,
    /// Memory for the transmit buffers cannot be mapped (`ENOMEM`).
    Memory,
}

impl fmt::Display for SettingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Range(value) => write!(f, "{value} is out of range"),
            Self::LastPool => f.write_str("the last pool with buffers for the MTU cannot be disabled"),
            Self::Refused => f.write_str("the hypervisor does not agree to the offload"),
            Self::NotRegistered => f.write_str("the hypervisor does not register the adapter"),
            Self::Address => f.write_str("no station can have that address"),
            Self::Memory => f.write_str("transmit buffers cannot be mapped"),
        }
    }
}

impl Error for SettingError {}
