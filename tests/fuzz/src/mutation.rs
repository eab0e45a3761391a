//! Inputs that are made of others by small changes, as libFuzzer makes them, without its look at what code they reach.

use sim::Rng;

/// Most changes of an input.
const MOST_CHANGES: usize = 8;

/// Longest input.
const LONGEST: usize = 64 << 10;

/// Bytes at which counts and lengths turn: 0, 1, the largest of a sign, and all ones.
const TURNING: [u8; 6] = [0, 1, 0x7f, 0x80, 0xfe, 0xff];

/// An input made of one of `inputs`, which are not empty: up to eight bits, bytes, numbers or pieces are changed, one after the other.
/// `words` of a dictionary are put in.
pub fn mutate(inputs: &[Vec<u8>], words: &[Vec<u8>], rng: &mut Rng) -> Vec<u8> {
    let mut input = rng.pick(inputs).clone();
    for _ in 0..=rng.below(MOST_CHANGES) {
        change(&mut input, inputs, words, rng);
    }
    input.truncate(LONGEST);
    input
}

fn change(input: &mut Vec<u8>, inputs: &[Vec<u8>], words: &[Vec<u8>], rng: &mut Rng) {
    let kind = rng.below(9);
    if input.is_empty() || kind == 0 {
        // A piece of another input, or a word, is put in.
        let piece = match words {
            [_, ..] if rng.below(2) == 0 => rng.pick(words).clone(),
            _ => {
                let other = rng.pick(inputs);
                other[piece_of(other.len(), rng)].to_vec()
            }
        };
        let at = rng.below(input.len() + 1);
        input.splice(at..at, piece);
        return;
    }
    let at = rng.below(input.len());
    match kind {
        1 => input[at] ^= 1 << rng.below(8),
        2 => input[at] = rng.below(256) as u8,
        3 => input[at] = *rng.pick(&TURNING),
        4 => input[at] = input[at].wrapping_add(rng.below(33) as u8).wrapping_sub(16),
        5 => {
            let piece = piece_of(input.len(), rng);
            input.drain(piece);
        }
        6 => {
            let piece = input[piece_of(input.len(), rng)].to_vec();
            input.splice(at..at, piece);
        }
        7 => {
            // A number of 2 or 4 bytes, in either order.
            let number = (rng.below(1 << 32) as u32) >> rng.below(32);
            let bytes = if rng.below(2) == 0 { number.to_be_bytes() } else { number.to_le_bytes() };
            let bytes = if rng.below(2) == 0 { &bytes[..] } else { &bytes[..2] };
            let room = bytes.len().min(input.len() - at);
            input[at..at + room].copy_from_slice(&bytes[..room]);
        }
        _ => input.truncate(at),
    }
}

/// Place of a piece of `len` bytes, which is short more often than not.
fn piece_of(len: usize, rng: &mut Rng) -> std::ops::Range<usize> {
    let start = rng.below(len + 1);
    let most = if rng.below(4) == 0 { len } else { 16 };
    start..start + rng.below((len - start).min(most) + 1)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn mutated_inputs_are_many_and_the_same_for_a_seed() {
        let (inputs, words) = ([b"abcdefgh".to_vec(), Vec::new()], [b"word".to_vec()]);
        let made = |seed| {
            let mut rng = Rng::new(seed);
            (0..2000).map(|_| mutate(&inputs, &words, &mut rng)).collect::<Vec<_>>()
        };
        let first = made(7);
        assert!(first == made(7) && first != made(8));
        assert!(first.iter().collect::<BTreeSet<_>>().len() > 1500);
        assert!(first.iter().any(|input| input.windows(4).any(|bytes| bytes == b"word")));
        assert!(first.iter().any(Vec::is_empty) && first.iter().any(|input| input.len() > 16));
    }
}
