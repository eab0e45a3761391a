//! Errors of refused requests, and their serialisation: `NLMSG_ERROR` with extended acknowledgement attributes.

use std::borrow::Cow;
use std::fmt;

use ::switch::BridgeError;
use packet::OverBudget;

use super::message::{HEADER_LEN, Header, Message, Writer, flag, kind};

/// Linux's error numbers that this crate uses.
pub mod errno {
    /// Operation not permitted.
    pub const EPERM: i32 = 1;
    /// No such file or directory: the rule, table or policy does not exist.
    pub const ENOENT: i32 = 2;
    /// No such process: the route or SA does not exist.
    pub const ESRCH: i32 = 3;
    /// Cannot allocate memory.
    pub const ENOMEM: i32 = 12;
    /// Device or resource busy.
    pub const EBUSY: i32 = 16;
    /// No buffer space available: too many requests at once.
    pub const ENOBUFS: i32 = 105;
    /// File exists.
    pub const EEXIST: i32 = 17;
    /// No such device.
    pub const ENODEV: i32 = 19;
    /// Invalid argument.
    pub const EINVAL: i32 = 22;
    /// Numerical result out of range.
    pub const ERANGE: i32 = 34;
    /// Function not implemented: the algorithm is unknown.
    pub const ENOSYS: i32 = 38;
    /// Protocol not supported.
    pub const EPROTONOSUPPORT: i32 = 93;
    /// Operation not supported.
    pub const EOPNOTSUPP: i32 = 95;
    /// Address family not supported by protocol.
    pub const EAFNOSUPPORT: i32 = 97;
    /// Cannot assign requested address.
    pub const EADDRNOTAVAIL: i32 = 99;
    /// Network is down.
    pub const ENETDOWN: i32 = 100;
    /// Network is unreachable.
    pub const ENETUNREACH: i32 = 101;
    /// No route to host.
    pub const EHOSTUNREACH: i32 = 113;
    /// Permission denied, as for a `prohibit` route.
    pub const EACCES: i32 = 13;
    /// Too many levels of symbolic links: a loop of stacked links.
    pub const ELOOP: i32 = 40;
    /// Exchange full: a table is full.
    pub const EXFULL: i32 = 54;
}

/// Attributes of an error (`NLMSGERR_ATTR_*`).
mod attr {
    pub(super) const MSG: u16 = 1;
    pub(super) const OFFS: u16 = 2;
    pub(super) const MISS_TYPE: u16 = 5;
    pub(super) const MISS_NEST: u16 = 6;
}

/// Reason for which a request is refused.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Error {
    /// See [`errno`]; positive.
    pub errno: i32,
    /// The reason in words, Linux's where Linux has one, without a full stop.
    pub text: Option<Cow<'static, str>>,
    /// Offset of the offending attribute, counted from the message's header.
    pub offset: Option<u32>,
    /// Type of the missing attribute, and offset of the nest that lacks the attribute, if it is not the message.
    pub missing: Option<(u16, Option<u32>)>,
}

impl Error {
    /// Error without a text.
    pub const fn new(errno: i32) -> Self {
        Self { errno, text: None, offset: None, missing: None }
    }

    /// Error with Linux's text.
    pub const fn text(errno: i32, text: &'static str) -> Self {
        Self { errno, text: Some(Cow::Borrowed(text)), offset: None, missing: None }
    }

    /// Error with a text that contains a value.
    pub const fn owned_text(errno: i32, text: String) -> Self {
        Self { errno, text: Some(Cow::Owned(text)), offset: None, missing: None }
    }

    /// Refusal of an unsupported feature, which `text` names.
    pub const fn unsupported(text: &'static str) -> Self {
        Self::text(errno::EOPNOTSUPP, text)
    }

    /// The same error with the offset of the offending attribute (`NLMSGERR_ATTR_OFFS`).
    #[must_use]
    pub fn at(self, offset: u32) -> Self {
        Self { offset: Some(offset), ..self }
    }

    /// The same error with the type of the missing attribute (`NLMSGERR_ATTR_MISS_TYPE`).
    #[must_use]
    pub fn missing(self, kind: u16) -> Self {
        Self { missing: Some((kind, None)), ..self }
    }

    fn put(&self, w: &mut Writer) {
        if let Some(text) = &self.text {
            w.put_str(attr::MSG, text);
        }
        if let Some(offset) = self.offset {
            w.put_u32(attr::OFFS, offset);
        }
        if let Some((kind, nest)) = self.missing {
            w.put_u32(attr::MISS_TYPE, kind.into());
            if let Some(nest) = nest {
                w.put_u32(attr::MISS_NEST, nest);
            }
        }
    }

    fn has_attributes(&self) -> bool {
        self.text.is_some() || self.offset.is_some() || self.missing.is_some()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.text {
            Some(text) => write!(f, "{text} (errno {})", self.errno),
            None => write!(f, "errno {}", self.errno),
        }
    }
}

impl std::error::Error for Error {}

/// Options of the client's socket for the form of acknowledgements.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct AckOptions {
    /// `NETLINK_CAP_ACK`: the request is not quoted.
    pub cap: bool,
    /// `NETLINK_EXT_ACK`: the acknowledgement has the error's text and attribute.
    pub ext: bool,
}

/// Writes the acknowledgement of `request`: success, or the error (Linux `netlink_ack`).
pub fn write_ack(w: &mut Writer, request: &Message<'_>, port: u32, outcome: &Result<(), Error>, options: AckOptions) {
    let error = outcome.as_ref().err();
    let quote = error.is_some() && !options.cap;
    let reported = error.filter(|error| options.ext && error.has_attributes());
    let flags = if quote { 0 } else { flag::CAPPED } | if reported.is_some() { flag::ACK_TLVS } else { 0 };
    let header = Header { kind: kind::ERROR, flags, seq: request.header.seq, port };
    w.message(header, |w| {
        w.fixed(&error.map_or(0, |error| -error.errno).to_ne_bytes());
        w.fixed(if quote { request.bytes } else { &request.bytes[..HEADER_LEN] });
        if let Some(error) = reported {
            error.put(w);
        }
    });
}

/// Writes the end of the dump of `request`, with the error that stopped the dump, if any (Linux `netlink_dump_done`).
pub fn write_done(w: &mut Writer, seq: u32, port: u32, flags: u16, outcome: &Result<(), Error>, options: AckOptions) {
    let error = outcome.as_ref().err();
    let reported = error.filter(|error| options.ext && error.has_attributes());
    let flags = flags | flag::MULTI | if reported.is_some() { flag::ACK_TLVS } else { 0 };
    w.message(Header { kind: kind::DONE, flags, seq, port }, |w| {
        w.fixed(&error.map_or(0, |error| -error.errno).to_ne_bytes());
        if let Some(error) = reported {
            error.put(w);
        }
    });
}

impl From<OverBudget> for Error {
    /// Refusal for lack of memory (Linux: a failed `kmalloc`).
    fn from(refused: OverBudget) -> Self {
        Self::owned_text(errno::ENOMEM, refused.to_string())
    }
}

impl From<BridgeError> for Error {
    /// Converts an error of a bridge to an `errno` and a text.
    fn from(error: BridgeError) -> Self {
        let errno = match error {
            BridgeError::NoPort(_)
            | BridgeError::GroupMask(_)
            | BridgeError::PvidRange(..)
            | BridgeError::Range(..) => errno::EINVAL,
            BridgeError::PortExists(_) | BridgeError::Loop(_) => errno::EBUSY,
            BridgeError::TooManyPorts => errno::EXFULL,
            BridgeError::Mac(_) => errno::EADDRNOTAVAIL,
            BridgeError::Filtering => errno::EPERM,
        };
        Self::owned_text(errno, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Messages;

    /// The flags of the acknowledgement and the bytes behind its error number.
    fn answered(outcome: &Result<(), Error>, options: AckOptions) -> (u16, i32, Vec<u8>) {
        let mut request = Writer::default();
        request.message(Header { kind: 24, flags: 5, seq: 9, port: 0 }, |w| w.put_u32(1, 2));
        let message = Messages::new(request.as_bytes()).next().unwrap();
        let mut w = Writer::default();
        write_ack(&mut w, &message, 77, outcome, options);
        let answer = Messages::new(w.as_bytes()).next().unwrap();
        assert_eq!((answer.header.kind, answer.header.seq, answer.header.port), (kind::ERROR, 9, 77));
        let (error, rest) = answer.payload().split_first_chunk().unwrap();
        (answer.header.flags, i32::from_ne_bytes(*error), rest.to_vec())
    }

    #[test]
    fn an_answer_quotes_and_explains_as_much_as_its_client_wants() {
        let error = Error::text(errno::EINVAL, "No").at(16);
        let (cap, ext) = (AckOptions { cap: true, ext: false }, AckOptions { cap: false, ext: true });
        let attributes = [6 + 1, 0, 1, 0, b'N', b'o', 0, 0, 8, 0, 2, 0, 16, 0, 0, 0];
        for (outcome, options, flags, code, len, tail) in [
            (Ok(()), AckOptions::default(), flag::CAPPED, 0, 16, &[] as &[u8]),
            (Ok(()), ext, flag::CAPPED, 0, 16, &[]),
            (Err(error.clone()), AckOptions::default(), 0, -22, 24, &[]),
            (Err(error.clone()), cap, flag::CAPPED, -22, 16, &[]),
            (Err(error), ext, flag::ACK_TLVS, -22, 24 + 16, &attributes),
            (Err(Error::new(1)), ext, 0, -1, 24, &[]),
        ] {
            let (got_flags, got_code, rest) = answered(&outcome, options);
            assert_eq!((got_flags, got_code, rest.len()), (flags, code, len), "{outcome:?} {options:?}");
            assert!(rest.ends_with(tail), "{rest:?}");
        }
    }

    #[test]
    fn a_missing_attribute_is_named() {
        let error = Error::new(errno::EINVAL).missing(3);
        let (_, _, rest) = answered(&Err(error), AckOptions { cap: true, ext: true });
        assert_eq!(rest[16..], [8, 0, 5, 0, 3, 0, 0, 0]);
    }
}
