//! Programs of classic BPF by which the kernel chooses the shard whose socket receives a packet. A packet of ESP goes to the
//! [owner](ShardCount::owner_of_spi) of its SPI.
//!
//! A load behind the end of a packet ends the program with 0, the first shard.

use base::ShardCount;

use crate::sys::cbpf::Instruction;

/// Loads the number of 32 bits at an offset.
const LOAD_WORD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const MULTIPLY: u32 = libc::BPF_ALU | libc::BPF_MUL | libc::BPF_K;
const SHIFT_RIGHT: u32 = libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K;
/// `BPF_MOD`, which libc lacks.
const MODULO: u32 = libc::BPF_ALU | 0x90 | libc::BPF_K;
const RETURN: u32 = libc::BPF_RET | libc::BPF_K;
/// `BPF_A`: returns the accumulator.
const RETURN_RESULT: u32 = libc::BPF_RET | 0x10;

/// An instruction without jumps.
const fn plain(code: u32, k: u32) -> Instruction {
    Instruction { code: code as u16, jt: 0, jf: 0, k }
}

/// Chooses by the SPI at the begin of a datagram's payload. The marker of IKE is SPI 0, whose owner is the first shard, as of keepalives
/// and other datagrams that are shorter than an SPI.
pub(crate) fn by_spi(shards: ShardCount) -> Vec<Instruction> {
    [vec![plain(LOAD_WORD, 0)], owner(shards)].concat()
}

/// Chooses the first shard for every packet.
pub(crate) fn first() -> Vec<Instruction> {
    vec![plain(RETURN, 0)]
}

/// Returns the owner of the SPI in the accumulator.
fn owner(shards: ShardCount) -> Vec<Instruction> {
    vec![
        plain(MULTIPLY, ShardCount::SPI_FACTOR),
        plain(SHIFT_RIGHT, ShardCount::SPI_SHIFT),
        plain(MODULO, shards.get() as u32),
        plain(RETURN_RESULT, 0),
    ]
}
