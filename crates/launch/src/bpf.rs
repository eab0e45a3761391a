//! Instructions of seccomp filters (classic BPF over `struct seccomp_data`), and their verdicts.

use libc::{c_int, sock_filter};

pub(crate) const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
pub(crate) const KILL: u32 = libc::SECCOMP_RET_KILL_PROCESS;

/// Verdict by which a call fails with an error.
pub(crate) const fn fails_with(errno: c_int) -> u32 {
    libc::SECCOMP_RET_ERRNO | errno as u32
}

/// Field of `struct seccomp_data`.
pub(crate) enum Field {
    Number,
    Arch,
    /// Low 32 bits of an argument: for the kernel, all checked arguments are 32 bits long, or have their flags there.
    Argument(u32),
}

pub(crate) fn load(program: &mut Vec<sock_filter>, field: Field) {
    let offset = match field {
        Field::Number => 0,
        Field::Arch => 4,
        Field::Argument(number) => 16 + 8 * number + if cfg!(target_endian = "big") { 4 } else { 0 },
    };
    program.push(statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset));
}

/// Returns `result` if the loaded value is in the range from first to last.
pub(crate) fn if_within(program: &mut Vec<sock_filter>, (first, last): (u32, u32), result: u32) {
    if first == last {
        program.push(unless_equal_skip(first, 1));
    } else {
        program.push(jump(libc::BPF_JGE, first, 0, 2));
        program.push(jump(libc::BPF_JGT, last, 1, 0));
    }
    program.push(verdict(result));
}

/// Returns `result` if the loaded value has one of the bits.
pub(crate) fn if_has(program: &mut Vec<sock_filter>, bits: u32, result: u32) {
    program.push(jump(libc::BPF_JSET, bits, 0, 1));
    program.push(verdict(result));
}

pub(crate) fn skip_if_equal(value: u32, count: usize) -> sock_filter {
    jump(libc::BPF_JEQ, value, count, 0)
}

pub(crate) fn unless_equal_skip(value: u32, count: usize) -> sock_filter {
    jump(libc::BPF_JEQ, value, 0, count)
}

pub(crate) fn verdict(result: u32) -> sock_filter {
    statement(libc::BPF_RET | libc::BPF_K, result)
}

pub(crate) fn statement(code: u32, k: u32) -> sock_filter {
    sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

/// Conditional jump that skips the given number of instructions.
pub(crate) fn jump(condition: u32, k: u32, if_true: usize, if_false: usize) -> sock_filter {
    let count = |count: usize| u8::try_from(count).expect("a block is shorter than 256 instructions");
    sock_filter { code: (libc::BPF_JMP | condition | libc::BPF_K) as u16, jt: count(if_true), jf: count(if_false), k }
}

/// Interpreter of the instructions, for tests.
#[cfg(test)]
pub(crate) mod interpreter {
    use super::sock_filter;

    /// `struct seccomp_data` without the instruction pointer.
    #[derive(Clone, Copy, Debug)]
    pub(crate) struct Data {
        pub(crate) number: u32,
        pub(crate) arch: u32,
        pub(crate) arguments: [u64; 6],
    }

    /// Verdict of `program`.
    pub(crate) fn run(program: &[sock_filter], data: Data) -> u32 {
        let (mut at, mut value) = (0, 0_u32);
        loop {
            let insn = program[at];
            at += 1;
            let is = |condition: bool| usize::from(if condition { insn.jt } else { insn.jf });
            match u32::from(insn.code) {
                code if code == libc::BPF_LD | libc::BPF_W | libc::BPF_ABS => {
                    value = match insn.k {
                        0 => data.number,
                        4 => data.arch,
                        offset => data.arguments[(offset as usize - 16) / 8] as u32,
                    };
                }
                code if code == libc::BPF_ALU | libc::BPF_AND => value &= insn.k,
                code if code == libc::BPF_JMP | libc::BPF_JA => at += insn.k as usize,
                code if code == libc::BPF_JMP | libc::BPF_JEQ => at += is(value == insn.k),
                code if code == libc::BPF_JMP | libc::BPF_JGE => at += is(value >= insn.k),
                code if code == libc::BPF_JMP | libc::BPF_JGT => at += is(value > insn.k),
                code if code == libc::BPF_JMP | libc::BPF_JSET => at += is(value & insn.k != 0),
                code if code == libc::BPF_RET => return insn.k,
                code => panic!("{code:#x}"),
            }
        }
    }
}
