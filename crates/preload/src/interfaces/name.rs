//! Name of an interface in a `struct ifreq`.

use libc::c_char;

/// Writes a name, truncated to the buffer and padded with zeros.
pub(super) fn put_name(name: &[u8], to: &mut [c_char; libc::IFNAMSIZ]) {
    *to = [0; libc::IFNAMSIZ];
    let (room, _) = to.split_at_mut(libc::IFNAMSIZ - 1);
    room.iter_mut().zip(name).for_each(|(to, &byte)| *to = byte as c_char);
}
