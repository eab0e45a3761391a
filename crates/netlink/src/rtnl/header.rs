//! Fixed parts of requests and messages: the `struct` in front of the attributes; and the attributes of links.

use base::IfIndex;

use super::entry::Link;
use super::nums::*;
use super::state::LinkNow;
use crate::attr::{AttrPolicy, Kind, Strictness, policy};
use crate::error::{Error, errno};
use crate::message::{HEADER_LEN, Writer, align};
use crate::session::Request;

/// The fixed part of a request, of `N` bytes, and the attributes behind it.
///
/// # Errors
/// `EINVAL` for a shorter request.
pub(super) fn fixed<'a, const N: usize>(request: &Request<'a>) -> Result<(&'a [u8; N], &'a [u8]), Error> {
    let payload = request.payload();
    let (fixed, rest) =
        payload.split_first_chunk().ok_or_else(|| Error::text(errno::EINVAL, "Invalid header length"))?;
    Ok((fixed, rest.get(align(N) - N..).unwrap_or_default()))
}

/// Offset of the attributes behind a fixed part of `len` bytes, from the beginning of the message.
pub(super) const fn behind(len: usize) -> u32 {
    (HEADER_LEN + align(len)) as u32
}

/// Strictness for the attributes of a request (`NETLINK_GET_STRICT_CHK`).
pub(super) fn strictness(request: &Request<'_>) -> Strictness {
    if request.strict { Strictness::Strict } else { Strictness::Liberal }
}

/// First four bytes as a number in host byte order; 0 if there are fewer.
pub(super) fn word(bytes: &[u8]) -> u32 {
    bytes.first_chunk().map_or(0, |bytes| u32::from_ne_bytes(*bytes))
}

/// Length of `struct ifinfomsg`, the fixed part of requests and messages of links.
pub(super) const LINK_LEN: usize = 16;

/// Longest name, with its zero byte (`IFNAMSIZ`).
pub(super) const IFNAMSIZ: u16 = 16;

/// Attributes of a request for links.
pub(super) const LINK_POLICY: AttrPolicy<IFLA_MAX> = policy(&[
    (IFLA_IFNAME, Kind::Str(IFNAMSIZ - 1)),
    (IFLA_ALT_IFNAME, Kind::Str(127)),
    (IFLA_ADDRESS, Kind::Max(32)),
    (IFLA_BROADCAST, Kind::Max(32)),
    (IFLA_MTU, Kind::Int(4)),
    (IFLA_LINK, Kind::Int(4)),
    (IFLA_MASTER, Kind::Int(4)),
    (IFLA_CARRIER, Kind::Int(1)),
    (IFLA_TXQLEN, Kind::Int(4)),
    (IFLA_OPERSTATE, Kind::Int(1)),
    (IFLA_LINKMODE, Kind::Int(1)),
    (IFLA_LINKINFO, Kind::Nested),
    (IFLA_NET_NS_PID, Kind::Int(4)),
    (IFLA_NET_NS_FD, Kind::Int(4)),
    (IFLA_IFALIAS, Kind::Max(255)),
    (IFLA_GROUP, Kind::Int(4)),
    (IFLA_EXT_MASK, Kind::Int(4)),
    (IFLA_NUM_TX_QUEUES, Kind::Int(4)),
    (IFLA_NUM_RX_QUEUES, Kind::Int(4)),
    (IFLA_AF_SPEC, Kind::Nested),
    (IFLA_VFINFO_LIST, Kind::Nested),
    (IFLA_PROTO_DOWN, Kind::Int(1)),
    (IFLA_GSO_MAX_SEGS, Kind::Int(4)),
    (IFLA_GSO_MAX_SIZE, Kind::Int(4)),
    (IFLA_XDP, Kind::Nested),
    (IFLA_GRO_MAX_SIZE, Kind::Int(4)),
    (IFLA_GSO_IPV4_MAX_SIZE, Kind::Int(4)),
    (IFLA_GRO_IPV4_MAX_SIZE, Kind::Int(4)),
]);

/// Writes a `struct ifinfomsg`.
pub(super) fn put_header(w: &mut Writer, arphrd: u16, index: IfIndex, flags: u32, change: u32) {
    put_header_of(w, AF_UNSPEC, arphrd, index, flags, change);
}

/// Writes a `struct ifinfomsg` of an address family.
pub(super) fn put_header_of(w: &mut Writer, family: u8, arphrd: u16, index: IfIndex, flags: u32, change: u32) {
    let [low, high] = arphrd.to_ne_bytes();
    w.fixed(&[family, 0, low, high]);
    for word in [index.0, flags, change] {
        w.fixed(&word.to_ne_bytes());
    }
}

/// Hardware type of a link (`ARPHRD_*`).
pub(super) fn arphrd(link: &Link) -> u16 {
    match link.mac {
        _ if link.is_loopback() => ARPHRD_LOOPBACK,
        Some(_) => ARPHRD_ETHER,
        None => ARPHRD_NONE,
    }
}

/// Whether packets can pass; and RFC 2863's operational state, by the numbers of `linux/if.h`. The state of `lo` is
/// unknown.
pub(super) fn operstate(link: &Link, now: Option<&LinkNow>) -> (bool, u8) {
    match (link.up, link.is_virtual() || now.is_some_and(|now| now.running)) {
        (true, true) if link.is_loopback() => (true, 0),
        (true, true) => (true, 6),
        _ => (false, 2),
    }
}
