//! ICMP for IPv4 (RFC 792, RFC 1122 §3.2.2, RFC 1191).

use zerocopy::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{Malformed, checksum};

/// Maximum length of an error with its IP header, which fits every path (RFC 1812 §4.3.2.3).
pub const MAX_ERROR_LEN: usize = 576;

/// Reason for which a destination is unreachable: the code of type 3.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct IcmpUnreachable(pub u8);

impl IcmpUnreachable {
    /// No route to the network.
    pub const NET: Self = Self(0);
    /// The last hop cannot resolve the host.
    pub const HOST: Self = Self(1);
    /// The host does not implement the protocol.
    pub const PROTOCOL: Self = Self(2);
    /// The port is closed.
    pub const PORT: Self = Self(3);
    /// Communication is administratively prohibited: sent for a prohibit route (RFC 1812 §5.2.7.1).
    pub const PROHIBITED: Self = Self(13);
}

/// The code of type 3 for a packet that exceeds the MTU and may not be fragmented (RFC 1191 §4).
const FRAG_NEEDED: u8 = 4;

/// Limit that was exceeded: the code of type 11.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct IcmpExceeded(pub u8);

impl IcmpExceeded {
    /// The TTL, in transit.
    pub const TTL: Self = Self(0);
    /// The reassembly timeout.
    pub const REASSEMBLY: Self = Self(1);
}

/// ICMP messages that a node sends and parses, without the bytes behind the first eight.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum IcmpMessage {
    /// Ping.
    EchoRequest {
        /// Identifier.
        id: u16,
        /// Sequence number.
        seq: u16,
    },
    /// Reply to a ping.
    EchoReply {
        /// Identifier.
        id: u16,
        /// Sequence number.
        seq: u16,
    },
    /// The quoted packet cannot reach its destination.
    Unreachable(IcmpUnreachable),
    /// The quoted packet exceeds the next link's MTU; the MTU is 0 from a router older than RFC 1191.
    FragNeeded {
        /// The next link's MTU.
        mtu: u16,
    },
    /// The quoted packet exceeded a limit.
    TimeExceeded(IcmpExceeded),
    /// The quoted packet's header is wrong.
    ParamProblem {
        /// 0 for the byte at `pointer`, 1 for a missing option, 2 for a bad length.
        code: u8,
        /// Offset in the quoted packet.
        pointer: u8,
    },
}

/// Type, code, checksum, and four bytes whose meaning depends on the type.
#[derive(Clone, Copy, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned)]
#[repr(C)]
pub struct IcmpHeader {
    kind: u8,
    code: u8,
    check: U16,
    rest: [U16; 2],
}

header!(IcmpHeader, 8, Malformed::IcmpShort);

impl IcmpHeader {
    /// The header of a message, without its checksum, which [`fill_check`] computes last.
    pub const fn new(message: IcmpMessage) -> Self {
        let (kind, code, rest) = match message {
            IcmpMessage::EchoReply { id, seq } => (0, 0, [id, seq]),
            IcmpMessage::Unreachable(code) => (3, code.0, [0, 0]),
            IcmpMessage::FragNeeded { mtu } => (3, FRAG_NEEDED, [0, mtu]),
            IcmpMessage::EchoRequest { id, seq } => (8, 0, [id, seq]),
            IcmpMessage::TimeExceeded(code) => (11, code.0, [0, 0]),
            IcmpMessage::ParamProblem { code, pointer } => (12, code, [(pointer as u16) << 8, 0]),
        };
        Self { kind, code, check: U16::ZERO, rest: [U16::new(rest[0]), U16::new(rest[1])] }
    }

    /// The type.
    #[inline]
    pub const fn kind(&self) -> u8 {
        self.kind
    }

    /// The code.
    #[inline]
    pub const fn code(&self) -> u8 {
        self.code
    }

    /// The checksum as stored.
    pub const fn check(&self) -> u16 {
        self.check.get()
    }

    /// Changes the checksum.
    pub const fn set_check(&mut self, check: u16) {
        self.check = U16::new(check);
    }

    /// Tells whether the message is an error, about which no error is sent (RFC 1122 §3.2.2). Source quench and
    /// redirect are errors too.
    pub const fn is_error(&self) -> bool {
        matches!(self.kind, 3 | 4 | 5 | 11 | 12)
    }

    /// The parsed message; `None` for types that a node does not handle.
    pub const fn message(&self) -> Option<IcmpMessage> {
        let [a, b] = [self.rest[0].get(), self.rest[1].get()];
        Some(match (self.kind, self.code) {
            (0, 0) => IcmpMessage::EchoReply { id: a, seq: b },
            (3, FRAG_NEEDED) => IcmpMessage::FragNeeded { mtu: b },
            (3, code) => IcmpMessage::Unreachable(IcmpUnreachable(code)),
            (8, 0) => IcmpMessage::EchoRequest { id: a, seq: b },
            (11, code) => IcmpMessage::TimeExceeded(IcmpExceeded(code)),
            (12, code) => IcmpMessage::ParamProblem { code, pointer: (a >> 8) as u8 },
            _ => return None,
        })
    }
}

/// Computes the checksum over `message`, from the ICMP header to the end.
///
/// # Errors
/// [`Malformed::IcmpShort`].
pub fn fill_check(message: &mut [u8]) -> Result<(), Malformed> {
    IcmpHeader::mut_from(message)?.check = U16::ZERO;
    let check = checksum::finish(checksum::sum(message));
    IcmpHeader::mut_from(message)?.check = U16::new(check);
    Ok(())
}

/// A message: its header and the following bytes.
#[derive(Clone, Copy, Debug)]
pub struct Icmp<'a> {
    header: &'a IcmpHeader,
    bytes: &'a [u8],
}

impl<'a> Icmp<'a> {
    /// Parses the payload of an IP packet, or its part in the head.
    ///
    /// # Errors
    /// [`Malformed::IcmpShort`].
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        Ok(Self { header: IcmpHeader::ref_from(bytes)?, bytes })
    }

    /// The header.
    pub const fn header(&self) -> &'a IcmpHeader {
        self.header
    }

    /// Bytes behind the header: an echo's data, or an error's quote.
    pub fn payload(&self) -> &'a [u8] {
        &self.bytes[IcmpHeader::LEN..]
    }

    /// Tells whether the checksum is right. Only for a message that is completely in the head.
    pub fn check_ok(&self) -> bool {
        checksum::sum(self.bytes) == 0xffff
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_on_the_wire_as_rfc_792_and_1191_have_them() {
        let cases = [
            (IcmpMessage::EchoReply { id: 0x0102, seq: 0x0304 }, [0, 0, 0, 0, 1, 2, 3, 4]),
            (IcmpMessage::EchoRequest { id: 0x0102, seq: 0x0304 }, [8, 0, 0, 0, 1, 2, 3, 4]),
            (IcmpMessage::Unreachable(IcmpUnreachable::PORT), [3, 3, 0, 0, 0, 0, 0, 0]),
            (IcmpMessage::FragNeeded { mtu: 1438 }, [3, 4, 0, 0, 0, 0, 0x05, 0x9e]),
            (IcmpMessage::TimeExceeded(IcmpExceeded::REASSEMBLY), [11, 1, 0, 0, 0, 0, 0, 0]),
            (IcmpMessage::ParamProblem { code: 0, pointer: 20 }, [12, 0, 0, 0, 20, 0, 0, 0]),
        ];
        for (message, bytes) in cases {
            assert_eq!(IcmpHeader::new(message).as_bytes(), bytes, "{message:?}");
            assert_eq!(IcmpHeader::ref_from(&bytes).unwrap().message(), Some(message));
        }
    }

    #[test]
    fn no_error_is_sent_about_an_error() {
        for kind in 0..=u8::MAX {
            let header = [kind, 0, 0, 0, 0, 0, 0, 0];
            let is_error = IcmpHeader::ref_from(&header).unwrap().is_error();
            assert_eq!(is_error, [3, 4, 5, 11, 12].contains(&kind), "type {kind}");
        }
        assert_eq!(IcmpHeader::ref_from(&[5, 0, 0, 0, 0, 0, 0, 0]).unwrap().message(), None);
        assert_eq!(IcmpHeader::ref_from(&[8, 1, 0, 0, 0, 0, 0, 0]).unwrap().message(), None, "an echo with a code");
    }

    #[test]
    fn a_checksum_covers_the_whole_message() {
        let mut bytes = IcmpHeader::new(IcmpMessage::EchoRequest { id: 1, seq: 2 }).as_bytes().to_vec();
        bytes.extend([1, 2, 3]);
        fill_check(&mut bytes).unwrap();
        assert!(Icmp::parse(&bytes).unwrap().check_ok());
        assert_eq!(Icmp::parse(&bytes).unwrap().payload(), [1, 2, 3]);
        bytes[10] ^= 1;
        assert!(!Icmp::parse(&bytes).unwrap().check_ok());
        assert_eq!(fill_check(&mut bytes[..7]), Err(Malformed::IcmpShort));
    }
}
