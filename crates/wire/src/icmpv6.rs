//! ICMPv6 (RFC 4443). Its neighbour discovery messages are in [`crate::nd`].

use std::net::Ipv6Addr;

use zerocopy::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{Malformed, Protocol, checksum};

/// Maximum length of an error with its IP header: IPv6's minimum MTU (RFC 4443 §2.4 c).
pub const MAX_ERROR_LEN: usize = 1280;

/// Reason for which a destination is unreachable: the code of type 1.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Icmpv6Unreachable(pub u8);

impl Icmpv6Unreachable {
    /// No route.
    pub const NO_ROUTE: Self = Self(0);
    /// Administratively prohibited.
    pub const PROHIBITED: Self = Self(1);
    /// The last hop cannot resolve the address.
    pub const ADDRESS: Self = Self(3);
    /// The port is closed.
    pub const PORT: Self = Self(4);
}

/// Limit that was exceeded: the code of type 3.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Icmpv6Exceeded(pub u8);

impl Icmpv6Exceeded {
    /// The hop limit, in transit.
    pub const HOP_LIMIT: Self = Self(0);
    /// The reassembly timeout.
    pub const REASSEMBLY: Self = Self(1);
}

/// Fault of a header: the code of type 4.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Problem(pub u8);

impl Problem {
    /// A field has a wrong value.
    pub const FIELD: Self = Self(0);
    /// The next header is unknown.
    pub const NEXT_HEADER: Self = Self(1);
    /// An option is unknown.
    pub const OPTION: Self = Self(2);
    /// The first fragment does not hold all headers (RFC 7112).
    pub const HEADER_CHAIN: Self = Self(3);
}

/// ICMPv6 messages that a node sends and parses, without the bytes behind the first eight.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Icmpv6Message {
    /// The quoted packet cannot reach its destination.
    Unreachable(Icmpv6Unreachable),
    /// The quoted packet exceeds the next link's MTU.
    PacketTooBig {
        /// The next link's MTU.
        mtu: u32,
    },
    /// The quoted packet exceeded a limit.
    TimeExceeded(Icmpv6Exceeded),
    /// The quoted packet's headers are wrong.
    ParamProblem {
        /// Kind of fault.
        code: Problem,
        /// Offset in the quoted packet.
        pointer: u32,
    },
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
}

/// Type, code, checksum, and four bytes whose meaning depends on the type.
#[derive(Clone, Copy, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned)]
#[repr(C)]
pub struct Icmpv6Header {
    kind: u8,
    code: u8,
    check: U16,
    rest: U32,
}

header!(Icmpv6Header, 8, Malformed::Icmpv6Short);

impl Icmpv6Header {
    /// The header of a message, without its checksum, which [`fill_check`] computes last.
    pub const fn new(message: Icmpv6Message) -> Self {
        const fn echo(id: u16, seq: u16) -> u32 {
            (id as u32) << 16 | seq as u32
        }
        let (kind, code, rest) = match message {
            Icmpv6Message::Unreachable(code) => (1, code.0, 0),
            Icmpv6Message::PacketTooBig { mtu } => (2, 0, mtu),
            Icmpv6Message::TimeExceeded(code) => (3, code.0, 0),
            Icmpv6Message::ParamProblem { code, pointer } => (4, code.0, pointer),
            Icmpv6Message::EchoRequest { id, seq } => (128, 0, echo(id, seq)),
            Icmpv6Message::EchoReply { id, seq } => (129, 0, echo(id, seq)),
        };
        Self { kind, code, check: U16::ZERO, rest: U32::new(rest) }
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

    /// Tells whether the message is an error, about which no error is sent, rather than an informational message (RFC
    /// 4443 §2.1).
    pub const fn is_error(&self) -> bool {
        self.kind < 128
    }

    /// The parsed message; `None` for neighbour discovery and for types that a node does not handle.
    pub const fn message(&self) -> Option<Icmpv6Message> {
        let rest = self.rest.get();
        let (id, seq) = ((rest >> 16) as u16, rest as u16);
        Some(match (self.kind, self.code) {
            (1, code) => Icmpv6Message::Unreachable(Icmpv6Unreachable(code)),
            (2, _) => Icmpv6Message::PacketTooBig { mtu: rest }, // the code is ignored by the receiver (RFC 4443 §3.2)
            (3, code) => Icmpv6Message::TimeExceeded(Icmpv6Exceeded(code)),
            (4, code) => Icmpv6Message::ParamProblem { code: Problem(code), pointer: rest },
            (128, 0) => Icmpv6Message::EchoRequest { id, seq },
            (129, 0) => Icmpv6Message::EchoReply { id, seq },
            _ => return None,
        })
    }
}

/// Computes the checksum over `message`, from the ICMPv6 header to the end, and its pseudo-header (RFC 4443 §2.3).
///
/// # Errors
/// [`Malformed::Icmpv6Short`].
pub fn fill_check(message: &mut [u8], src: Ipv6Addr, dst: Ipv6Addr) -> Result<(), Malformed> {
    Icmpv6Header::mut_from(message)?.check = U16::ZERO;
    let pseudo = checksum::pseudo_v6(src, dst, Protocol::ICMPV6, message.len());
    let check = checksum::finish(checksum::add(pseudo, checksum::sum(message)));
    Icmpv6Header::mut_from(message)?.check = U16::new(check);
    Ok(())
}

/// A message: its header and the following bytes.
#[derive(Clone, Copy, Debug)]
pub struct Icmpv6<'a> {
    header: &'a Icmpv6Header,
    bytes: &'a [u8],
}

impl<'a> Icmpv6<'a> {
    /// Parses the upper-layer part of an IPv6 packet, or its part in the head.
    ///
    /// # Errors
    /// [`Malformed::Icmpv6Short`].
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        Ok(Self { header: Icmpv6Header::ref_from(bytes)?, bytes })
    }

    /// The header.
    pub const fn header(&self) -> &'a Icmpv6Header {
        self.header
    }

    /// The complete message, for neighbour discovery.
    pub const fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Bytes behind the header: an echo's data, or an error's quote.
    pub fn payload(&self) -> &'a [u8] {
        &self.bytes[Icmpv6Header::LEN..]
    }

    /// Tells whether the checksum is right. Only for a message that is completely in the head.
    pub fn check_ok(&self, src: Ipv6Addr, dst: Ipv6Addr) -> bool {
        let pseudo = checksum::pseudo_v6(src, dst, Protocol::ICMPV6, self.bytes.len());
        checksum::fold(checksum::add(pseudo, checksum::sum(self.bytes))) == 0xffff
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_on_the_wire_as_rfc_4443_has_them() {
        let cases = [
            (Icmpv6Message::Unreachable(Icmpv6Unreachable::ADDRESS), [1, 3, 0, 0, 0, 0, 0, 0]),
            (Icmpv6Message::PacketTooBig { mtu: 1280 }, [2, 0, 0, 0, 0, 0, 5, 0]),
            (Icmpv6Message::TimeExceeded(Icmpv6Exceeded::HOP_LIMIT), [3, 0, 0, 0, 0, 0, 0, 0]),
            (Icmpv6Message::ParamProblem { code: Problem::NEXT_HEADER, pointer: 40 }, [4, 1, 0, 0, 0, 0, 0, 40]),
            (Icmpv6Message::EchoRequest { id: 0x0102, seq: 0x0304 }, [128, 0, 0, 0, 1, 2, 3, 4]),
            (Icmpv6Message::EchoReply { id: 0x0102, seq: 0x0304 }, [129, 0, 0, 0, 1, 2, 3, 4]),
        ];
        for (message, bytes) in cases {
            let header = Icmpv6Header::new(message);
            assert_eq!(header.as_bytes(), bytes, "{message:?}");
            assert_eq!(Icmpv6Header::ref_from(&bytes).unwrap().message(), Some(message));
            assert_eq!(header.is_error(), bytes[0] < 128);
        }
        assert_eq!(Icmpv6Header::ref_from(&[135, 0, 0, 0, 0, 0, 0, 0]).unwrap().message(), None);
        assert_eq!(Icmpv6Header::ref_from(&[128, 1, 0, 0, 0, 0, 0, 0]).unwrap().message(), None);
    }

    #[test]
    fn a_checksum_covers_the_addresses_too() {
        let (src, dst) = ("fe80::1".parse().unwrap(), "ff02::1".parse().unwrap());
        let mut bytes = Icmpv6Header::new(Icmpv6Message::EchoRequest { id: 1, seq: 2 }).as_bytes().to_vec();
        bytes.extend([9; 5]);
        fill_check(&mut bytes, src, dst).unwrap();
        let message = Icmpv6::parse(&bytes).unwrap();
        assert!(message.check_ok(src, dst));
        assert!(!message.check_ok(src, "ff02::2".parse().unwrap()));
        assert_eq!(message.payload(), [9; 5]);
        assert_eq!(Icmpv6::parse(&bytes[..7]).err(), Some(Malformed::Icmpv6Short));
    }
}
