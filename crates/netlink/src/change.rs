//! Requests that change a node, in the form in which they can be carried out again after a restart.

use std::net::IpAddr;

use nlsock::protocol;
use xfrm::Mark;
use zeroize::Zeroizing;

use super::message::{HEADER_LEN, Header, Writer, flag};
use super::saved::{find, flags_of, set_flags};
use crate::rtnl;
use crate::xfrm as sadb;

/// Change of a node by a request.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Change {
    /// The request changes nothing that [saved state](crate::Saved) has.
    None,
    /// Request that repeats the change. A request that turns an object into one that is not saved, such as an address
    /// into one with a lifetime, is repeated as the removal of the object.
    Request(Zeroizing<Vec<u8>>),
    /// Request that adds or changes an SA without a time limit. Its sequence numbers are reserved before it is used.
    Sa {
        /// The request, with keys.
        request: Zeroizing<Vec<u8>>,
        /// Destination of the SA.
        dst: IpAddr,
        /// SPI of the SA.
        spi: u32,
        /// Mark of the SA.
        mark: Mark,
    },
    /// Request that removes a policy, which it names by an index of this node
    /// ([`Xfrm::removal_by_selector`](crate::xfrm::Xfrm::removal_by_selector) names it by its selector).
    PolicyByIndex,
    /// The request sets numbers of an SA. It is not repeated: later packets have changed the numbers.
    Numbers,
}

impl Change {
    /// Change by a request of `protocol`, if it is carried out.
    pub fn of(protocol: u32, message: &[u8]) -> Self {
        if flags_of(message) & flag::REQUEST == 0 || message.len() < HEADER_LEN {
            return Self::None;
        }
        match protocol {
            protocol::ROUTE => rtnl::changing(message).map_or(Self::None, Self::Request),
            protocol::XFRM => sadb::change(message),
            protocol::GENERIC if crate::generic::ila::is_change(message) => Self::Request(again(message)),
            _ => Self::None,
        }
    }
}

/// The request, without the flags that ask for answers.
pub(super) fn again(message: &[u8]) -> Zeroizing<Vec<u8>> {
    let mut copy = Zeroizing::new(message.to_vec());
    set_flags(&mut copy, flags_of(message) & !(flag::ACK | flag::ECHO));
    copy
}

/// Request of type `kind` with the fixed part `body`, and the attribute `kept` of `message` behind a fixed part of
/// `fixed` bytes, if it is present.
pub(super) fn removal(message: &[u8], kind: u16, body: &[u8], fixed: usize, kept: &[u16]) -> Zeroizing<Vec<u8>> {
    let mut w = Writer::default();
    w.message(Header { kind, flags: flag::REQUEST, ..Header::default() }, |w| {
        w.fixed(body);
        for &attr in kept {
            let Some(at) = find(message, fixed, attr) else { continue };
            let len = message.get(at - 4..).and_then(<[u8]>::first_chunk).map_or(0, |len| u16::from_ne_bytes(*len));
            if let Some(value) = message.get(at..(at - 4) + usize::from(len)) {
                w.put(attr, value);
            }
        }
    });
    Zeroizing::new(w.into_bytes())
}

/// A number of 32 bits at offset `at` of the payload.
pub(super) fn word(message: &[u8], at: usize) -> Option<u32> {
    message.get(HEADER_LEN + at..).and_then(<[u8]>::first_chunk).map(|word| u32::from_ne_bytes(*word))
}
