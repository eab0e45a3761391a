//! Bytes of a packet as a sequence of buffers, writable where they are exclusive.

use crate::buf::Buf;
use crate::packet::Packet;

/// A piece of a packet's data.
#[derive(Debug)]
pub enum Piece<'a> {
    /// Bytes without other references.
    Writable(&'a mut [u8]),
    /// Bytes that may be shared.
    ReadOnly(&'a [u8]),
}

impl Piece<'_> {
    /// The bytes.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Writable(bytes) => bytes,
            Self::ReadOnly(bytes) => bytes,
        }
    }
}

impl Packet {
    /// All data, buffer by buffer, in order.
    pub fn pieces_mut(&mut self) -> impl Iterator<Item = Piece<'_>> {
        self.bufs_mut().map(|buf: &mut Buf| {
            if buf.is_writable() {
                Piece::Writable(buf.bytes_mut().unwrap_or_default())
            } else {
                Piece::ReadOnly(buf.bytes())
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Buf, Memory};

    #[test]
    fn shared_bytes_are_not_for_writing() {
        let mem = Memory::heap();
        let mut pkt = Packet::with_data(&mem, b"head").unwrap();
        pkt.push_frag(Buf::foreign(b"guest".to_vec())).unwrap();
        pkt.push_child(Packet::with_data(&mem, b"child").unwrap());
        let pieces = |pkt: &mut Packet| -> Vec<(bool, Vec<u8>)> {
            pkt.pieces_mut().map(|piece| (matches!(piece, Piece::Writable(_)), piece.bytes().to_vec())).collect()
        };
        let want =
            |writable| vec![(writable, b"head".to_vec()), (false, b"guest".to_vec()), (writable, b"child".to_vec())];
        assert_eq!(pieces(&mut pkt), want(true));
        let other = pkt.clone_shared();
        assert_eq!(pieces(&mut pkt), want(false));
        drop(other);
        assert_eq!(pieces(&mut pkt), want(true), "the last one has it to itself");
        for piece in pkt.pieces_mut() {
            if let Piece::Writable(bytes) = piece {
                bytes.fill(b'x');
            }
        }
        assert_eq!(pkt.to_vec(), b"xxxxguestxxxxx");
    }
}
