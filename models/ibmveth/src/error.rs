//! Errors of the hypervisor, and of the driver's settings.

use std::error::Error;
use std::fmt;

/// Error of a hypervisor call that had no effect.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Refusal {
    /// The caller has to repeat the call (`H_BUSY`).
    Busy,
    /// No adapter received the frame (`H_DROPPED`).
    Dropped,
    /// An argument is invalid (`H_PARAMETER`).
    Parameter,
    /// The call does not exist (`H_FUNCTION`).
    Function,
    /// A resource is exhausted (`H_RESOURCE`).
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
    /// The pool is the last with buffers for the MTU (`EPERM`).
    LastPool,
    /// The hypervisor refuses (`EIO`).
    Refused,
    /// The partition has no such adapter (`ENONET`).
    NotRegistered,
    /// The address is not a unicast address (`EADDRNOTAVAIL`).
    Address,
    /// The transmit buffers cannot be mapped (`ENOMEM`).
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
