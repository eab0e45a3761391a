//! Headers behind an IPv6 fragment header, and the part of them that a first fragment must hold.

use reassembly::Policy;
use system::Outcome;
use wire::{Protocol, Version};

use crate::host::Host;
use crate::world::{Piece, World, last, limited, part};

/// A header: its number and length. The kernel ignores its contents.
type Header = (u8, usize);

const HOP_BY_HOP: Header = (0, 8);
const DEST_OPTS: Header = (60, 8);
const FRAGMENT: Header = (44, 8);
const AH: Header = (51, 24);

/// A fragment of a datagram that begins with `headers`, the last one with the next header `next`, and then has a
/// piece's payload.
fn fragment(headers: &[Header], next: Protocol, piece: Piece) -> Vec<u8> {
    let kinds: Vec<u8> = headers.iter().map(|header| header.0).chain([next.0]).collect();
    let mut bytes = Piece { protocol: Protocol(kinds[0]), ..piece }.bytes(Version::V6);
    let mut chain = Vec::new();
    for (&(kind, len), &next) in headers.iter().zip(&kinds[1..]) {
        let blocks = if kind == AH.0 { len / 4 - 2 } else { len / 8 - 1 };
        let padding = [1, len as u8 - 4];
        let start = if kind == FRAGMENT.0 { [0; 2] } else { padding };
        chain.extend([next, blocks as u8, start[0], start[1]]);
        chain.resize(chain.len() + len - 4, 0);
    }
    for (byte, at) in bytes[48..].iter_mut().zip(piece.at..) {
        if let Some(&of_chain) = chain.get(at) {
            *byte = of_chain;
        }
    }
    bytes
}

pub(crate) fn judge() -> Outcome {
    let mut host = Host::new(Version::V6)?;
    let halves = [part(0, 64), last(64, 100)];
    let [first, end] = halves;
    let atomic = last(0, 100);
    let only = |len| vec![part(0, len)];
    let cases: Vec<(&[Header], Protocol, Vec<Piece>)> = vec![
        (&[HOP_BY_HOP], Protocol::UDP, halves.to_vec()),
        (&[HOP_BY_HOP, FRAGMENT], Protocol::UDP, halves.to_vec()),
        (&[HOP_BY_HOP, FRAGMENT], Protocol::UDP, vec![end, first]),
        (&[HOP_BY_HOP, FRAGMENT], Protocol::UDP, vec![atomic]),
        (&[FRAGMENT], Protocol::UDP, halves.to_vec()),
        (&[FRAGMENT], Protocol::UDP, vec![atomic]),
        (&[DEST_OPTS, FRAGMENT], Protocol::UDP, halves.to_vec()),
        (&[DEST_OPTS, FRAGMENT], Protocol::UDP, vec![atomic]),
        (&[AH], Protocol::UDP, only(8)),
        (&[AH], Protocol::UDP, only(24)),
        (&[AH], Protocol::UDP, only(32)),
        (&[AH, DEST_OPTS], Protocol::UDP, only(32)),
        (&[AH, DEST_OPTS], Protocol::UDP, only(40)),
        (&[HOP_BY_HOP], Protocol::UDP, only(8)),
        (&[HOP_BY_HOP], Protocol::UDP, only(16)),
        (&[FRAGMENT], Protocol::UDP, only(8)),
        (&[FRAGMENT], Protocol::UDP, only(16)),
        (&[DEST_OPTS], Protocol::NO_NEXT, only(8)),
        (&[], Protocol::NO_NEXT, only(0)),
        (&[], Protocol::NO_NEXT, only(8)),
    ];
    for (id, (headers, next, pieces)) in cases.into_iter().enumerate() {
        // One world for each case: the kernel keeps an empty queue after an error answer.
        let mut world = World::with_config(Version::V6, limited(Policy::Linux, 4 << 20, 64));
        let pieces = pieces.into_iter().map(|piece| Piece { id: id as u32, ..piece });
        let fragments: Vec<_> = pieces.map(|piece| fragment(headers, next, piece)).collect();
        let want = host.send(&fragments)?;
        assert_eq!(crate::ours(&mut world, &fragments), want, "{headers:?} and {next}: {fragments:02x?}");
    }
    Ok(())
}
