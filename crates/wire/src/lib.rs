//! Views and builders of wire headers: Ethernet, VLAN, ARP, IPv4, IPv6, ICMP, ICMPv6, UDP, TCP, ESP, and tunnel
//! headers.
//!
//! # Decides
//! Formats of headers, and whether their lengths fit the available bytes. Nothing is copied and there is no state: a
//! view borrows bytes, a builder is a header value that is written into a caller's slice. Every module has two kinds of
//! types:
//!
//! - A header (`Ipv4Header`, `UdpHeader`, …), the fixed part, laid over the bytes in place (`ref_from`, `mut_from`,
//!   `write`). Its accessors return host byte order and check nothing: a length is the wire's claim.
//! - A checked view (`Ipv4`, `Udp`, …) made by `parse`, which compares its lengths with the available bytes. Its
//!   accessors cannot fail.
//!
//! A fat packet has its headers in the linear head and its payload in page fragments, so views have a `parse_head` that
//! takes the head's bytes and the packet's length separately; their `payload` is then the part of it in the head.
//! [`ip::Info`] is the summary that the data path makes once per packet.
//!
//! # Leaves to others
//! Validity in context (crates `datapath`, `reassembly`, `ipsec` and `fib`), and checksums of payload in several
//! buffers (crate `offload`). Errors are [`Malformed`], whose variants map to a [`base::DropReason`].
//!
//! # Limits
//! An IPv6 chain has at most [`ext::MAX_EXTENSIONS`] extension headers (8). There are no jumbograms (RFC 2675), so no
//! packet is longer than 65 575 bytes.
//!
//! # Standards
//! | header | sections |
//! |---|---|
//! | Ethernet, VLAN | RFC 894, RFC 2464 §4 and §7; IEEE 802.1Q §9.6 |
//! | ARP | RFC 826, RFC 5227 §1.1 |
//! | IPv4 and its options | RFC 791 §3.1, RFC 1122 §3.2.1, RFC 6864 |
//! | IPv6 and extension headers | RFC 8200 §3, §4 and §8.1; RFC 6437 |
//! | DSCP, ECN | RFC 2474; RFC 3168 §5 |
//! | ICMP, ICMPv6 | RFC 792, RFC 1122 §3.2.2, RFC 1191 §4, RFC 1812 §4.3.2.3; RFC 4443 §2 and §3 |
//! | neighbour discovery | RFC 4861 §4 and §6.1, RFC 2464 §6 |
//! | UDP, TCP | RFC 768; RFC 9293 §3.1, RFC 7323 §2 and §3, RFC 2018 §2 and §3 |
//! | ESP | RFC 4303 §2, RFC 3948 |
//! | tunnels | RFC 2003, RFC 2473, RFC 4213; RFC 2784, RFC 2890 §2; RFC 7348; RFC 8926 |
//! | checksums | RFC 1071 §2 and §4.1, RFC 1624 §3 |
#![forbid(unsafe_code)]

/// Conversions of a header to and from bytes: a reference in place, a split, a write.
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

            /// The header at the front of `bytes`, in place and mutable.
            ///
            /// # Errors
            /// `bytes` is shorter than the header.
            #[inline]
            pub fn mut_from(bytes: &mut [u8]) -> Result<&mut Self, $crate::Malformed> {
                zerocopy::FromBytes::mut_from_prefix(bytes).map(|(header, _)| header).map_err(|_| $short)
            }

            /// The header at the front of `bytes`, and the following bytes.
            ///
            /// # Errors
            /// `bytes` is shorter than the header.
            #[inline]
            pub fn split_from(bytes: &[u8]) -> Result<(&Self, &[u8]), $crate::Malformed> {
                zerocopy::FromBytes::ref_from_prefix(bytes).map_err(|_| $short)
            }

            /// Writes the header to the front of `out`, and returns the remaining slice.
            ///
            /// # Errors
            /// `out` is shorter than the header; it stays unchanged.
            #[inline]
            pub fn write<'a>(&self, out: &'a mut [u8]) -> Result<&'a mut [u8], $crate::Malformed> {
                let (front, rest) = out.split_at_mut_checked($len).ok_or($short)?;
                front.copy_from_slice(self.as_bytes());
                Ok(rest)
            }

            /// The header in wire format.
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
