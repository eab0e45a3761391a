//! Socket filters (`SO_ATTACH_FILTER`) of netlink sockets.
//!
//! A filter is attached to the connection, and the kernel runs it on each datagram from the gateway. The datagram begins
//! with a [word](nlsock::WORD) that a netlink message does not have. So the program is rewritten: offsets, lengths and
//! results are those behind the word, and a word alone, which reports a loss, passes.

use libc::sock_filter;
use nlsock::WORD;

/// Length of the word.
const SHIFT: u32 = WORD as u32;

/// Maximum number of instructions (`BPF_MAXINSNS`).
const MAX_LEN: usize = 4096;
/// Number of words of a program's memory (`BPF_MEMWORDS`).
const MEMORY: u32 = 16;
/// Result that accepts a whole datagram.
const WHOLE: u32 = u32::MAX;

/// First offset of the data that describe a packet, from the sign bit on; those are not in the packet.
const SKF_AD_OFF: u32 = 0xffff_f000;
/// Offsets of functions that search the packet for an attribute.
const NLATTR: u32 = SKF_AD_OFF + 12;
const NLATTR_NEST: u32 = SKF_AD_OFF + 16;

const LD_LEN: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_LEN;
const LDX_LEN: u32 = libc::BPF_LDX | libc::BPF_W | libc::BPF_LEN;
const LDX_MSH: u32 = libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH;
const RET_K: u32 = libc::BPF_RET | libc::BPF_K;
const RET_A: u32 = libc::BPF_RET | libc::BPF_A;
const JA: u32 = libc::BPF_JMP | libc::BPF_JA;
const JEQ: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const JGE: u32 = libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K;
const ADD: u32 = libc::BPF_ALU | libc::BPF_ADD | libc::BPF_K;
const SUB: u32 = libc::BPF_ALU | libc::BPF_SUB | libc::BPF_K;

/// Program that does behind the word what `program` does at the front of a datagram. `None`: the program is empty or too
/// long. Other faults of the program are left for the kernel to find.
pub(crate) fn behind_word(program: &[sock_filter]) -> Option<Vec<sock_filter>> {
    if program.is_empty() || program.len() > MAX_LEN {
        return None;
    }
    rewrite(program, false).or_else(|| rewrite(program, true)).filter(|rewritten| rewritten.len() <= MAX_LEN)
}

/// Rewritten program. `None`: a conditional jump is too far. `far`: conditional jumps are two unconditional ones, which
/// reach any instruction.
fn rewrite(program: &[sock_filter], far: bool) -> Option<Vec<sock_filter>> {
    let free = free_memory(program);
    let mut blocks = Vec::with_capacity(program.len());
    let mut starts = Vec::with_capacity(program.len() + 1);
    let mut end = 0;
    for insn in program {
        let block = block(*insn, free, far)?;
        starts.push(end);
        end += block.len();
        blocks.push(block);
    }
    starts.push(end);
    let mut rewritten = word_alone_passes();
    for (at, block) in blocks.into_iter().enumerate() {
        // Number of instructions that a jump at `place` of the block skips, to get to the instruction `skipped` behind.
        let target = |place: usize, skipped: usize| {
            // A target outside of the program stays outside, and the kernel refuses it.
            let to = starts.get((at + 1).saturating_add(skipped)).copied().unwrap_or(end + 1);
            to.saturating_sub(starts[at] + place + 1)
        };
        match block {
            Block::Fixed(insns) => rewritten.extend(insns),
            Block::Jump(k) => rewritten.push(insn(JA, u32::try_from(target(0, k as usize)).ok()?)),
            Block::Branch(branch) => {
                let [jt, jf] = [branch.jt, branch.jf].map(|skipped| u8::try_from(target(0, skipped.into())));
                rewritten.push(sock_filter { jt: jt.ok()?, jf: jf.ok()?, ..branch });
            }
            Block::FarBranch(branch) => {
                rewritten.push(sock_filter { jt: 0, jf: 1, ..branch });
                for (place, skipped) in [(1, branch.jt), (2, branch.jf)] {
                    rewritten.push(insn(JA, u32::try_from(target(place, skipped.into())).ok()?));
                }
            }
        }
    }
    Some(rewritten)
}

/// Instructions in place of one.
enum Block {
    /// Instructions that jump only among themselves.
    Fixed(Vec<sock_filter>),
    /// An unconditional jump, over that many instructions of the original program.
    Jump(u32),
    /// A conditional jump.
    Branch(sock_filter),
    /// A conditional jump by three instructions.
    FarBranch(sock_filter),
}

impl Block {
    fn len(&self) -> usize {
        match self {
            Self::Fixed(insns) => insns.len(),
            Self::Jump(_) | Self::Branch(_) => 1,
            Self::FarBranch(_) => 3,
        }
    }
}

/// Instructions in place of `original`. `free`: word of memory that the program does not use. `None`: such a word is
/// needed, and there is none.
fn block(original: sock_filter, free: Option<u32>, far: bool) -> Option<Block> {
    let code = u32::from(original.code);
    let k = original.k;
    let moved = |k: u32| Block::Fixed(vec![sock_filter { k, ..original }]);
    Some(match (code & 0x07, code) {
        (_, LD_LEN) => Block::Fixed(vec![original, insn(SUB, SHIFT)]),
        (_, LDX_LEN) => {
            let free = free?;
            Block::Fixed(vec![
                insn(libc::BPF_ST, free),
                insn(LD_LEN, 0),
                insn(SUB, SHIFT),
                insn(libc::BPF_MISC | libc::BPF_TAX, 0),
                insn(libc::BPF_LD | libc::BPF_MEM, free),
            ])
        }
        (_, LDX_MSH) => moved(beyond(k)),
        (libc::BPF_LD, _) if code & 0xe0 == libc::BPF_ABS && matches!(k, NLATTR | NLATTR_NEST) => {
            // The offset of the search, and of the attribute; 0 if it is not found.
            Block::Fixed(vec![insn(ADD, SHIFT), original, branch(JEQ, 0, 1, 0), insn(SUB, SHIFT)])
        }
        (libc::BPF_LD, _) if code & 0xe0 == libc::BPF_ABS => moved(beyond(k)),
        // The index may be negative.
        (libc::BPF_LD, _) if code & 0xe0 == libc::BPF_IND => {
            moved(if k <= i32::MAX as u32 || k >= SKF_AD_OFF { k.wrapping_add(SHIFT) } else { k })
        }
        (_, RET_K) => moved(if k == 0 { 0 } else { k.saturating_add(SHIFT) }),
        (_, RET_A) => Block::Fixed(vec![
            branch(JEQ, 0, 2, 0),
            branch(JGE, WHOLE - SHIFT, 2, 0),
            insn(ADD, SHIFT),
            original,
            insn(RET_K, WHOLE),
        ]),
        (_, JA) => Block::Jump(k),
        (libc::BPF_JMP, _) if far => Block::FarBranch(original),
        (libc::BPF_JMP, _) => Block::Branch(original),
        _ => moved(k),
    })
}

/// Offset in a packet, behind the word. An offset of other data is unchanged.
const fn beyond(offset: u32) -> u32 {
    const LAST: u32 = i32::MAX as u32;
    if offset > LAST {
        offset
    } else if offset > LAST - SHIFT {
        LAST
    } else {
        offset + SHIFT
    }
}

/// Word of memory that a program neither reads nor writes.
fn free_memory(program: &[sock_filter]) -> Option<u32> {
    let of_memory = |insn: &&sock_filter| {
        let code = u32::from(insn.code);
        match code & 0x07 {
            libc::BPF_ST | libc::BPF_STX => true,
            libc::BPF_LD | libc::BPF_LDX => code & 0xe0 == libc::BPF_MEM,
            _ => false,
        }
    };
    let used = program.iter().filter(of_memory).fold(0_u32, |used, insn| used | 1 << (insn.k % MEMORY));
    Some(used.trailing_ones()).filter(|&free| free < MEMORY)
}

/// Instructions before the program, which accept a datagram of a word alone.
fn word_alone_passes() -> Vec<sock_filter> {
    // The last instruction restores the register's first value.
    vec![insn(LD_LEN, 0), branch(JEQ, SHIFT, 0, 1), insn(RET_K, WHOLE), insn(libc::BPF_LD | libc::BPF_IMM, 0)]
}

const fn insn(code: u32, k: u32) -> sock_filter {
    branch(code, k, 0, 0)
}

const fn branch(code: u32, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code: code as u16, jt, jf, k }
}

#[cfg(test)]
mod tests {
    use std::mem;

    use libc::{c_int, sock_fprog};

    use super::*;

    const LD_WORD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    const LD_HALF: u32 = libc::BPF_LD | libc::BPF_H | libc::BPF_ABS;
    const LD_BYTE_AT: u32 = libc::BPF_LD | libc::BPF_B | libc::BPF_IND;
    const LDX_IMM: u32 = libc::BPF_LDX | libc::BPF_W | libc::BPF_IMM;
    const LD_IMM: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_IMM;
    const TXA: u32 = libc::BPF_MISC | libc::BPF_TXA;

    /// Two connected sockets of a kind. Datagrams of the first one are received by the second.
    fn pair() -> [c_int; 2] {
        let mut ends = [0; 2];
        // SAFETY: the buffer has space for two descriptors.
        let made = unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0, ends.as_mut_ptr()) };
        assert_eq!(made, 0);
        ends
    }

    fn attach(fd: c_int, program: &[sock_filter]) -> bool {
        let program = sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
        let len = mem::size_of_val(&program) as libc::socklen_t;
        let (level, name) = (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER);
        // SAFETY: the value has that length, and its program the length in it.
        unsafe { libc::setsockopt(fd, level, name, (&raw const program).cast(), len) == 0 }
    }

    /// Bytes of `datagram` that get through the filter; `None`: it is dropped.
    fn filtered([from, to]: [c_int; 2], datagram: &[u8]) -> Option<Vec<u8>> {
        // SAFETY: the buffer is that long.
        let sent = unsafe { libc::send(from, datagram.as_ptr().cast(), datagram.len(), 0) };
        assert_eq!(sent, datagram.len() as isize);
        let mut buffer = vec![0; 1000];
        // SAFETY: the buffer is that long.
        let len = unsafe { libc::recv(to, buffer.as_mut_ptr().cast(), buffer.len(), libc::MSG_DONTWAIT) };
        buffer.truncate(usize::try_from(len).ok()?);
        Some(buffer)
    }

    /// The kernel runs a program on messages, and the rewritten program on the same messages behind a word.
    fn compare(program: &[sock_filter], name: &str) {
        let (plain, behind) = (pair(), pair());
        assert!(attach(plain[1], program), "{name}: the kernel accepts the program");
        for far in [false, true] {
            let Some(rewritten) = rewrite(program, far) else { continue };
            assert!(attach(behind[1], &rewritten), "{name}: the kernel accepts the rewritten program");
            for len in [1, 2, 4, 15, 16, 17, 20, 40, 200] {
                for first in [0, 4, 16, 0x45, 200] {
                    let message: Vec<u8> = (0..len).map(|at| if at == 0 { first } else { at as u8 }).collect();
                    let want = filtered(plain, &message);
                    let datagram = [&[9; WORD][..], &message].concat();
                    let got = filtered(behind, &datagram).map(|datagram| datagram[WORD..].to_vec());
                    assert_eq!(got, want, "{name}, {len} bytes from {first} on, far: {far}");
                }
            }
            let word = [9; WORD];
            assert_eq!(filtered(behind, &word), Some(word.to_vec()), "{name}: a word alone passes");
        }
        for fd in plain.into_iter().chain(behind) {
            // SAFETY: the descriptors are this test's.
            unsafe { libc::close(fd) };
        }
    }

    #[test]
    fn filter_behind_the_word_accepts_the_same_as_without() {
        let attribute = |function| {
            vec![insn(LD_IMM, 4), insn(LDX_IMM, 0x0706), insn(LD_WORD, function), insn(ADD, 0), insn(RET_A, 0)]
        };
        let all_memory = |then: &[sock_filter]| {
            let stores: Vec<_> = (0..15).map(|at| insn(libc::BPF_ST, at)).collect();
            [&stores, then].concat()
        };
        let long_jump = || {
            let middle = vec![insn(LD_LEN, 0); 200];
            [&[insn(LD_LEN, 0), branch(JEQ, 20, 200, 0)][..], &middle, &[insn(RET_K, 0), insn(RET_A, 0)]].concat()
        };
        let programs = [
            ("all", vec![insn(RET_K, WHOLE)]),
            ("none", vec![insn(RET_K, 0)]),
            ("first byte", vec![insn(RET_K, 1)]),
            ("its length", vec![insn(LD_LEN, 0), insn(RET_A, 0)]),
            ("at least 17 bytes", vec![insn(LD_LEN, 0), branch(JGE, 17, 1, 0), insn(RET_K, 0), insn(RET_K, WHOLE)]),
            ("length less 16", vec![insn(LD_LEN, 0), insn(SUB, 16), insn(RET_A, 0)]),
            ("a type", vec![insn(LD_HALF, 4), branch(JEQ, 0x0405, 0, 1), insn(RET_K, WHOLE), insn(RET_K, 0)]),
            ("a word at its end", vec![insn(LD_WORD, 16), insn(RET_K, WHOLE)]),
            ("far outside", vec![insn(LD_WORD, i32::MAX as u32 - 2), insn(RET_K, WHOLE)]),
            ("by index", vec![insn(LDX_IMM, 3), insn(LD_BYTE_AT, 2), insn(RET_A, 0)]),
            ("by an index from behind", vec![insn(LDX_IMM, 8), insn(LD_BYTE_AT, 2_u32.wrapping_neg()), insn(RET_A, 0)]),
            ("a header's length", vec![insn(LDX_MSH, 0), insn(TXA, 0), insn(RET_A, 0)]),
            ("length as index", vec![insn(LD_IMM, 7), insn(LDX_LEN, 0), insn(RET_A, 0)]),
            ("length as index, little memory", all_memory(&[insn(LDX_LEN, 0), insn(TXA, 0), insn(RET_A, 0)])),
            ("attribute", attribute(NLATTR)),
            ("nested attribute", attribute(NLATTR_NEST)),
            ("protocol", vec![insn(LD_WORD, SKF_AD_OFF + 4), insn(RET_K, WHOLE)]),
            ("a jump", vec![insn(JA, 1), insn(RET_K, 0), insn(LD_LEN, 0), insn(RET_A, 0)]),
            ("a long jump", long_jump()),
        ];
        for (name, program) in &programs {
            compare(program, name);
        }
        let words = insn(libc::BPF_ST, 15);
        assert!(behind_word(&all_memory(&[words, insn(LDX_LEN, 0), insn(RET_K, 1)])).is_none());
        assert!(behind_word(&[]).is_none() && behind_word(&vec![insn(RET_K, 0); MAX_LEN + 1]).is_none());
        // A jump out of the program, or an unknown instruction, remains one.
        for bad in [vec![insn(JA, 7), insn(RET_K, 0)], vec![insn(0xffff, 0), insn(RET_K, 0)], vec![insn(LD_LEN, 0)]] {
            let ends = pair();
            assert!(!attach(ends[1], &behind_word(&bad).unwrap()), "{:?}", bad.first().map(|insn| insn.code));
        }
    }
}
