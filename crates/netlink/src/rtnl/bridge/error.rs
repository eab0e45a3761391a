//! Errors of bridges, converted to netlink's.

use ::switch::BridgeError;

use crate::error::{Error, errno};

/// Converts an error of a bridge to an `errno` and a text.
pub(super) fn refusal(error: BridgeError) -> Error {
    let errno = match error {
        BridgeError::NoPort(_) | BridgeError::GroupMask(_) | BridgeError::PvidRange(..) | BridgeError::Range(..) => {
            errno::EINVAL
        }
        BridgeError::PortExists(_) | BridgeError::Loop(_) => errno::EBUSY,
        BridgeError::TooManyPorts => errno::EXFULL,
        BridgeError::Mac(_) => errno::EADDRNOTAVAIL,
        BridgeError::Filtering => errno::EPERM,
    };
    Error::owned_text(errno, error.to_string())
}
