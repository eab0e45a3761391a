//! Views and builders of wire headers: Ethernet, VLAN, ARP, IPv4, IPv6, ICMP, ICMPv6, UDP, TCP, ESP, and tunnel
//! headers.
//!
//! Nothing is copied and there is no state: a view borrows bytes, a builder is a header value that is written into a
//! caller's slice. Left to others: which packets are valid in context. Every module has two kinds of types:
//!
//! - `Header`, the fixed part, laid over the bytes in place (`Header::ref_from`, `Header::mut_from`, `Header::write`).
//!   Its accessors return host byte order and check nothing: a length is the wire's claim.
//! - A checked view (`Ipv4`, `Udp`, …) made by `parse`, which compares its lengths with the available bytes. Its
//!   accessors cannot fail.
//!
//! A fat packet has its headers in the linear head and its payload in page fragments, so views have a `parse_head` that
//! takes the head's bytes and the packet's length separately; their `payload` is then the part of it in the head.
//! [`ip::Info`] is the summary that the data path makes once per packet.
//!
//! Errors are [`Malformed`], whose variants map to a [`base::DropReason`]. Limits: an IPv6 chain has at
//! most [`ipv6::MAX_EXTENSIONS`] extension headers; no jumbograms (RFC 2675), so no packet is longer than 65 575 bytes.
//!
//! Sources: RFC 791, 792, 768, 826, 894, 1071, 1624, 2003, 2464, 2473, 2784, 2890, 4303, 4443, 4861, 7348, 8200, 8926,
//! 9293, IEEE 802.1Q.
#![forbid(unsafe_code)]

/// The ways on and off the wire that every header has: laid over bytes in place, split from them, written to them.
macro_rules! header {
    ($name:ident, $len:literal, $short:expr) => {
        const _: () = assert!(size_of::<$name>() == $len && align_of::<$name>() == 1);

        impl $name {
            /// Bytes on the wire.
            pub const LEN: usize = $len;

            /// The header at the front of `bytes`, in place.
            ///
            /// # Errors
            /// `bytes` is shorter than the header.
            #[inline]
            pub fn ref_from(bytes: &[u8]) -> Result<&Self, $crate::Malformed> {
                Self::split_from(bytes).map(|(header, _)| header)
            }

            /// The header at the front of `bytes`, in place and changeable.
            ///
            /// # Errors
            /// `bytes` is shorter than the header.
            #[inline]
            pub fn mut_from(bytes: &mut [u8]) -> Result<&mut Self, $crate::Malformed> {
                zerocopy::FromBytes::mut_from_prefix(bytes).map(|(header, _)| header).map_err(|_| $short)
            }

            /// The header at the front of `bytes`, and what follows it.
            ///
            /// # Errors
            /// `bytes` is shorter than the header.
            #[inline]
            pub fn split_from(bytes: &[u8]) -> Result<(&Self, &[u8]), $crate::Malformed> {
                zerocopy::FromBytes::ref_from_prefix(bytes).map_err(|_| $short)
            }

            /// Writes the header to the front of `out`, and gives the room behind it.
            ///
            /// # Errors
            /// `out` is shorter than the header; it is left as it was.
            #[inline]
            pub fn write<'a>(&self, out: &'a mut [u8]) -> Result<&'a mut [u8], $crate::Malformed> {
                let (front, rest) = out.split_at_mut_checked($len).ok_or($short)?;
                front.copy_from_slice(self.as_bytes());
                Ok(rest)
            }

            /// The header as it is on the wire.
            #[inline]
            pub fn as_bytes(&self) -> &[u8] {
                zerocopy::IntoBytes::as_bytes(self)
            }
        }
    };
}

pub mod arp;
pub mod checksum;
pub mod esp;
pub mod eth;
pub mod ext;
pub mod flow;
pub mod frag;
pub mod icmp;
pub mod icmpv6;
pub mod ip;
pub mod ipv4;
pub mod ipv6;
pub mod nd;
pub mod tcp;
pub mod tunnel;
pub mod udp;
pub mod vlan;

mod ecn;
mod malformed;
mod pattern;
mod prediction;
mod protocol;
mod quote;

pub use ecn::Ecn;
pub use esp::Spi;
pub use eth::{EtherType, MacAddr};
pub use flow::FlowKey;
pub use frag::{FragInfo, FragOffset};
pub use ip::Version;
pub use malformed::Malformed;
pub use pattern::Pattern;
pub use prediction::{Prediction, RisingNumber};
pub use protocol::Protocol;
pub use quote::Quote;
