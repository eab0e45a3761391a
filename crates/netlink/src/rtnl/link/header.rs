//! Header of messages for links.

use base::IfIndex;

use crate::message::Writer;
use crate::rtnl::nums::*;

/// Writes a `struct ifinfomsg`.
pub(in super::super) fn put_header(w: &mut Writer, arphrd: u16, index: IfIndex, flags: u32, change: u32) {
    put_header_of(w, AF_UNSPEC, arphrd, index, flags, change);
}

/// Writes a `struct ifinfomsg` of an address family.
pub(in super::super) fn put_header_of(
    w: &mut Writer,
    family: u8,
    arphrd: u16,
    index: IfIndex,
    flags: u32,
    change: u32,
) {
    let [low, high] = arphrd.to_ne_bytes();
    w.fixed(&[family, 0, low, high]);
    for word in [index.0, flags, change] {
        w.fixed(&word.to_ne_bytes());
    }
}
