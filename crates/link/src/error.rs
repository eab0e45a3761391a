//! Errors of the system, with the device and the call.

use std::borrow::Cow;
use std::fmt;
use std::io;

use base::ShardCount;

/// Failure to open a link.
#[derive(Debug)]
pub struct OpenError {
    /// The link, or its device.
    pub device: String,
    /// The call that failed.
    pub call: &'static str,
    /// Error of the system.
    pub source: io::Error,
    /// Remedy, if one is known.
    pub hint: Option<Cow<'static, str>>,
}

impl OpenError {
    pub(crate) fn new(device: &str, call: &'static str, source: io::Error) -> Self {
        let hint = match source.raw_os_error() {
            Some(libc::EPERM) => Some("needs CAP_NET_ADMIN; run as root or grant it".into()),
            _ => None,
        };
        Self { device: device.to_owned(), call, source, hint }
    }

    /// Error of setting the address of a link that has none.
    pub(crate) fn no_address(device: &str) -> Self {
        Self::new(device, "address", io::Error::from_raw_os_error(libc::EOPNOTSUPP))
    }

    /// Error of `count` descriptors that are not those of a link with that number of shards.
    pub(crate) fn wrong_descriptors(device: &str, count: usize, shards: ShardCount) -> Self {
        let text = format!("{count} are not those of this kind of link for {} workers", shards.get());
        Self::new(device, "descriptors", io::Error::new(io::ErrorKind::InvalidInput, text))
    }

    pub(crate) fn with_hint(self, errno: i32, hint: impl Into<Cow<'static, str>>) -> Self {
        if self.source.raw_os_error() == Some(errno) { Self { hint: Some(hint.into()), ..self } } else { self }
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.device, self.call, text(&self.source))?;
        match &self.hint {
            Some(hint) => write!(f, " ({hint})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

/// Text of an error without the number that std appends.
pub(crate) fn text(err: &io::Error) -> String {
    let text = err.to_string();
    match err.raw_os_error() {
        Some(number) => text.trim_end_matches(&format!(" (os error {number})")).to_owned(),
        None => text,
    }
}

/// Error of an open link, with the device and the call. Its kind is `NetworkDown` if the device is down, was deleted, or is in another
/// namespace.
#[cold]
pub(crate) fn failed(device: &str, call: &'static str, source: &io::Error) -> io::Error {
    let kind = match source.raw_os_error() {
        Some(libc::ENODEV | libc::ENXIO | libc::EBADFD) => io::ErrorKind::NetworkDown,
        _ => source.kind(),
    };
    let hint = match source.raw_os_error() {
        // Only a descriptor of a TUN or TAP device has this state.
        Some(libc::EBADFD) => " (the device was deleted; make it again with `ip tuntap add`, or restart the gateway)",
        _ => "",
    };
    io::Error::new(kind, format!("{device}: {call}: {}{hint}", text(source)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deleted_device_is_named_with_a_remedy() {
        let err = failed("tun0", "readv", &io::Error::from_raw_os_error(libc::EBADFD));
        assert_eq!(err.kind(), io::ErrorKind::NetworkDown);
        let text = err.to_string();
        assert!(text.contains("the device was deleted; make it again with `ip tuntap add`"), "{text}");
    }

    #[test]
    fn error_names_device_call_and_remedy() {
        let err = OpenError::new("tun0", "TUNSETIFF", io::Error::from_raw_os_error(libc::EPERM));
        let want = "tun0: TUNSETIFF: Operation not permitted (needs CAP_NET_ADMIN; run as root or grant it)";
        assert_eq!(err.to_string(), want);
        let err = OpenError::new("tun0", "TUNSETIFF", io::Error::from_raw_os_error(libc::EBUSY));
        assert_eq!(
            err.with_hint(libc::EBUSY, "in use").to_string(),
            "tun0: TUNSETIFF: Device or resource busy (in use)"
        );
        for (number, text, kind) in [
            (libc::ENETDOWN, "Network is down", io::ErrorKind::NetworkDown),
            (libc::ENODEV, "No such device", io::ErrorKind::NetworkDown),
            (libc::EPERM, "Operation not permitted", io::ErrorKind::PermissionDenied),
        ] {
            let err = failed("eth1", "recvmmsg", &io::Error::from_raw_os_error(number));
            assert_eq!((err.to_string(), err.kind()), (format!("eth1: recvmmsg: {text}"), kind));
        }
    }
}
