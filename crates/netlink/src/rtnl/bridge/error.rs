//! Errors of bridges as netlink has them.

use ::switch::BridgeError;

use crate::error::{Error, errno};

/// Error of a bridge as an `errno` and a text.
pub(super) fn refusal(error: BridgeError) -> Error {
    let errno = match error {
        BridgeError::NoPort(_) | BridgeError::GroupMask(_) | BridgeError::PvidRange(..) | BridgeError::Range(..) => {
            errno::EINVAL
        }
        BridgeError::PortExists(_) => errno::EBUSY,
        BridgeError::TooManyPorts => errno::EXFULL,
        BridgeError::Mac(_) => errno::EADDRNOTAVAIL,
        BridgeError::Filtering => errno::EPERM,
    };
    Error::owned_text(errno, error.to_string())
}
