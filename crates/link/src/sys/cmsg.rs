//! Control messages (cmsg(3)) as bytes. No pointers, so nothing here is unsafe.

use std::ffi::c_int;

/// Bytes of `struct cmsghdr`: a length, a level, a type.
const HEADER: usize = size_of::<usize>() + 8;

/// Room for the control messages that come with a packet.
pub(crate) const CONTROL_LEN: usize = 192;

/// Room for the control messages of a packet to be sent: segment size, traffic class and source address of an IPv6
/// train.
const SEND_LEN: usize = 96;

/// Offset of the next control message.
const fn align(len: usize) -> usize {
    len.next_multiple_of(size_of::<usize>())
}

/// The control messages of a packet to be sent.
#[derive(Clone, Debug)]
pub(crate) struct Control {
    bytes: [u8; SEND_LEN],
    len: usize,
}

impl Control {
    pub(crate) const EMPTY: Self = Self { bytes: [0; SEND_LEN], len: 0 };

    /// Appends a message.
    ///
    /// # Panics
    /// When there is no room, which [`SEND_LEN`] is chosen against.
    pub(crate) fn push(&mut self, level: c_int, kind: c_int, data: &[u8]) {
        let end = self.len + HEADER + data.len();
        assert!(align(end) <= SEND_LEN, "{} bytes more than {} of control messages", data.len(), self.len);
        let (header, rest) = self.bytes[self.len..].split_at_mut(HEADER);
        header[..size_of::<usize>()].copy_from_slice(&(HEADER + data.len()).to_ne_bytes());
        header[HEADER - 8..HEADER - 4].copy_from_slice(&level.to_ne_bytes());
        header[HEADER - 4..].copy_from_slice(&kind.to_ne_bytes());
        rest[..data.len()].copy_from_slice(data);
        self.len = align(end);
    }

    /// Copy with the segment size of a train of datagrams of `size` bytes.
    pub(crate) fn and_segment(&self, size: u16) -> Self {
        let mut control = self.clone();
        control.push(libc::SOL_UDP, libc::UDP_SEGMENT, &size.to_ne_bytes());
        control
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The control messages that came with a packet: level, type and data of each.
pub(crate) fn iter(mut bytes: &[u8]) -> impl Iterator<Item = (c_int, c_int, &[u8])> {
    std::iter::from_fn(move || {
        let (&len, rest) = bytes.split_first_chunk()?;
        let (&level, rest) = rest.split_first_chunk()?;
        let (&kind, _) = rest.split_first_chunk()?;
        let len = usize::from_ne_bytes(len);
        let data = bytes.get(HEADER..len)?;
        bytes = bytes.get(align(len)..).unwrap_or_default();
        Some((c_int::from_ne_bytes(level), c_int::from_ne_bytes(kind), data))
    })
}

/// The `int` that a message holds.
pub(crate) fn int(data: &[u8]) -> Option<c_int> {
    Some(c_int::from_ne_bytes(*data.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_read_as_they_were_written() {
        let mut control = Control::EMPTY;
        control.push(libc::SOL_UDP, libc::UDP_SEGMENT, &1400_u16.to_ne_bytes());
        control.push(libc::IPPROTO_IP, libc::IP_TOS, &[3]);
        let read: Vec<_> = iter(control.bytes()).collect();
        let size = 1400_u16.to_ne_bytes();
        assert_eq!(read, [(libc::SOL_UDP, libc::UDP_SEGMENT, &size[..]), (libc::IPPROTO_IP, libc::IP_TOS, &[3][..])]);
    }

    #[test]
    fn message_with_a_bad_length_ends_the_list() {
        for len in [0_usize, 15, 18, usize::MAX, usize::MAX - 7] {
            let mut bytes = [0; 24];
            bytes[..size_of::<usize>()].copy_from_slice(&len.to_ne_bytes());
            assert_eq!(iter(&bytes[..17]).count(), 0, "{len}");
        }
        assert_eq!(iter(&[0; 3]).count(), 0);
    }
}
