//! Trains of fragments from a seed: a datagram fragmented at random, and then disturbed.

use wire::{Protocol, Version, ipv4};

use crate::world::{Piece, last, part};

/// A protocol without a handler (RFC 3692), so that a raw socket gets all of it.
pub(crate) const PROTOCOL: Protocol = Protocol(253);

/// Another protocol without a handler.
pub(crate) const OTHER_PROTOCOL: Protocol = Protocol(254);

/// A fragment of a datagram of a protocol without a handler.
pub(crate) fn without_addresses(piece: Piece) -> Piece {
    if piece.protocol == OTHER_PROTOCOL { piece } else { Piece { protocol: PROTOCOL, ..piece } }
}

/// A fragment in wire format; with no-op options in front of IPv6's fragment header, if requested.
pub(crate) fn bytes(version: Version, options: bool, piece: Piece) -> Vec<u8> {
    let mut bytes = piece.bytes(version);
    if !options {
        return bytes;
    }
    match version {
        Version::V4 => {
            bytes.splice(20..20, [1; 4]);
            bytes[0] = 0x46;
            let total_len = bytes.len() as u16;
            bytes[2..4].copy_from_slice(&total_len.to_be_bytes());
            ipv4::fill_check(&mut bytes).expect("a header");
        }
        Version::V6 => {
            bytes.splice(40..40, [44, 0, 1, 4, 0, 0, 0, 0]);
            bytes[6] = 0;
            let payload_len = bytes.len() as u16 - 40;
            bytes[4..6].copy_from_slice(&payload_len.to_be_bytes());
        }
    }
    bytes
}

/// Source of random numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seed(pub(crate) u64);

/// A generator of 64 bits (SplitMix).
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ z >> 31) % end as u64) as usize
    }
}

/// The fragments of one case, in the order in which they are sent.
pub(crate) fn train(seed: Seed, version: Version) -> Vec<Piece> {
    let mut random = Random(seed.0);
    let id = seed.0 as u32;
    let mut pieces = Vec::new();
    let mut at = 0;
    for _ in 0..1 + random.below(7) {
        let len = 8 * (1 + random.below(6));
        pieces.push(Piece { id, protocol: PROTOCOL, ..part(at, len) });
        at += len;
    }
    pieces.push(Piece { id, protocol: PROTOCOL, ..last(at, 1 + random.below(40)) });
    if random.below(3) == 0 {
        pieces.reverse();
    }
    if random.below(2) == 0 {
        for at in (1..pieces.len()).rev() {
            pieces.swap(at, random.below(at + 1));
        }
    }
    for _ in 0..random.below(4) {
        disturb(&mut random, &mut pieces);
    }
    if random.below(40) == 0 && version == Version::V4 {
        let where_to = random.below(pieces.len() + 1);
        let others = 62 + random.below(5) as u32;
        let other = |n: u32| Piece { id: 40_000 + n, protocol: PROTOCOL, ..part(0, 8) };
        pieces.splice(where_to..where_to, (0..others).map(other));
    }
    pieces
}

fn disturb(random: &mut Random, pieces: &mut Vec<Piece>) {
    let count = pieces.len();
    if count == 0 {
        return;
    }
    let which = random.below(count);
    let piece = pieces[which];
    let elsewhere = random.below(count + 1);
    let step = 8 * (1 + random.below(3));
    match random.below(15) {
        0 => pieces.insert(elsewhere, piece),
        1 => pieces.insert(elsewhere, Piece { change: 1, ..piece }),
        2 => pieces.insert(elsewhere, Piece { len: piece.len + step, ..piece }),
        3 => pieces.insert(elsewhere, Piece { at: (piece.at + step).min(65_528), more: true, ..piece }),
        4 => pieces.insert(
            elsewhere,
            Piece { at: piece.at.saturating_sub(step), more: true, len: piece.len / 8 * 8, ..piece },
        ),
        5 => drop(pieces.remove(which)),
        6 => pieces[which].len = piece.len.saturating_sub(1 + random.below(7)),
        7 => pieces.insert(elsewhere, Piece { len: 0, ..piece }),
        8 => pieces[which].tos = random.below(256) as u8,
        9 => pieces.iter_mut().for_each(|piece| piece.tos = [0x28, 1, 2, 3][random.below(4)]),
        10 => pieces.insert(elsewhere, Piece { more: !piece.more, ..piece }),
        11 => pieces[which].dont_fragment = true,
        12 => pieces[which].protocol = if piece.at == 0 { PROTOCOL } else { OTHER_PROTOCOL },
        13 => pieces[which].reserved = random.below(256) as u8,
        _ => pieces.insert(elsewhere, Piece { at: 65_528 - 8 * random.below(2), more: random.below(2) == 0, ..piece }),
    }
}
