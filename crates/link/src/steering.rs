//! Programs of classic BPF by which the kernel chooses the shard whose socket receives a packet. A packet of ESP goes to the
//! [owner](ShardCount::owner_of_spi) of its SPI.
//!
//! A load behind the end of a packet ends the program with 0, the first shard.

use std::hash::BuildHasher;

use base::ShardCount;
use foldhash::quality::RandomState;
use wire::{EtherType, Protocol};

use crate::sys::cbpf::Instruction;

/// Port of ESP in UDP (RFC 3948 §2.1).
const ENCAP_PORT: u32 = 4500;

/// Load and arithmetic instructions, which libc has in parts.
const LOAD_WORD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const LOAD_HALF: u32 = libc::BPF_LD | libc::BPF_H | libc::BPF_ABS;
const LOAD_BYTE: u32 = libc::BPF_LD | libc::BPF_B | libc::BPF_ABS;
const LOAD_WORD_AT_X: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_IND;
const LOAD_HALF_AT_X: u32 = libc::BPF_LD | libc::BPF_H | libc::BPF_IND;
/// X is four times the low four bits of a byte: the length of an IPv4 header.
const X_HEADER_LEN: u32 = libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH;
const X_RESULT: u32 = libc::BPF_MISC | libc::BPF_TAX;
const ADD_X: u32 = libc::BPF_ALU | libc::BPF_ADD | libc::BPF_X;
const XOR_X: u32 = libc::BPF_ALU | libc::BPF_XOR | libc::BPF_X;
const MULTIPLY: u32 = libc::BPF_ALU | libc::BPF_MUL | libc::BPF_K;
const SHIFT_RIGHT: u32 = libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K;
const MODULO: u32 = libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K;
const IF_EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const IF_SET: u32 = libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K;
const RETURN: u32 = libc::BPF_RET | libc::BPF_K;
const RETURN_RESULT: u32 = libc::BPF_RET | libc::BPF_A;

/// Chooses by the SPI at the begin of a datagram's payload. The marker of IKE is SPI 0, whose owner is the first shard, as of keepalives
/// and other datagrams that are shorter than an SPI.
pub(crate) fn by_spi(shards: ShardCount) -> Vec<Instruction> {
    [vec![plain(LOAD_WORD, 0)], owner(shards)].concat()
}

/// Chooses the first shard for every packet.
pub(crate) fn first() -> Vec<Instruction> {
    vec![plain(RETURN, 0)]
}

/// Accepts no packet, as a socket's filter.
pub(crate) fn nothing() -> Vec<Instruction> {
    vec![plain(RETURN, 0)]
}

/// Accepts all messages of netlink but those of the socket with a port, as a socket's filter.
pub(crate) fn of_other_ports(port: u32) -> Vec<Instruction> {
    /// Offset of `nlmsg_pid` in `struct nlmsghdr`, which has the byte order of the machine.
    const PORT: u32 = 12;
    let own = vec![plain(RETURN, 0)];
    [vec![plain(LOAD_WORD, PORT)], branch(IF_EQUAL, port.to_be(), own), vec![plain(RETURN, u32::MAX)]].concat()
}

/// Accepts all frames but those that the host sends, as a socket's filter.
pub(crate) fn received() -> Vec<Instruction> {
    /// `PACKET_OUTGOING` of `linux/if_packet.h`.
    const OUTGOING: u32 = 4;
    let sent = vec![plain(RETURN, 0)];
    [
        vec![plain(LOAD_BYTE, auxiliary(libc::SKF_AD_PKTTYPE))],
        branch(IF_EQUAL, OUTGOING, sent),
        vec![plain(RETURN, u32::MAX)],
    ]
    .concat()
}

/// Chooses a shard for a frame, which the program reads from the network header on: by the SPI of ESP and ESP in UDP, over IPv4 and over
/// IPv6 without extension headers, and for other packets by their flow. The first shard for frames without IP.
///
/// A flow is the addresses, and the ports of TCP and UDP. Fragments, and packets with extension headers, are told apart by addresses
/// alone. The hash is keyed, like that of queues that this node chooses. (The kernel's own, `SKF_AD_RXHASH`, is zero if no driver has
/// computed it, and changes while a local sender's flow lives.)
///
/// The kernel has removed one VLAN tag; one more may be in front of the IP header.
pub(crate) fn by_spi_or_flow(shards: ShardCount) -> Vec<Instruction> {
    /// Bytes of a VLAN tag, and the offset of the type that follows it.
    const TAG_LEN: u32 = 4;
    const TYPE_IN_TAG: u32 = 2;
    let flows = Flows { shards, keys: Keys::random() };
    let by_type = |l3| {
        [
            branch(IF_EQUAL, EtherType::IPV4.0.into(), flows.ipv4(l3)),
            branch(IF_EQUAL, EtherType::IPV6.0.into(), flows.ipv6(l3)),
        ]
        .concat()
    };
    let tagged = [vec![plain(LOAD_HALF, TYPE_IN_TAG)], by_type(TAG_LEN), first()].concat();
    [
        vec![plain(LOAD_HALF, auxiliary(libc::SKF_AD_PROTOCOL))],
        by_type(0),
        branch(IF_EQUAL, EtherType::VLAN.0.into(), tagged.clone()),
        branch(IF_EQUAL, EtherType::SERVICE_VLAN.0.into(), tagged),
        first(),
    ]
    .concat()
}

/// Factors of the hash: odd numbers that the senders of packets do not know.
struct Keys {
    ports: u32,
    addresses: [u32; 8],
    last: u32,
}

impl Keys {
    fn random() -> Self {
        let state = RandomState::default();
        let key = |number: u32| state.hash_one(number) as u32 | 1;
        Self { ports: key(0), addresses: std::array::from_fn(|at| key(at as u32 + 1)), last: key(9) }
    }
}

/// Parts of the program for frames. Each ends it.
struct Flows {
    shards: ShardCount,
    keys: Keys,
}

impl Flows {
    /// For an IPv4 header at an offset.
    fn ipv4(&self, l3: u32) -> Vec<Instruction> {
        const FRAGMENT: u32 = 6;
        const PROTOCOL: u32 = 9;
        const ADDRESSES: u32 = 12;
        /// More fragments, or an offset.
        const IS_FRAGMENT: u32 = 0x3fff;
        let addresses = |start| [start, self.add_addresses(l3 + ADDRESSES, 2), self.shard_of_hash()].concat();
        let by_flow = || addresses(self.ports(LOAD_WORD_AT_X, l3));
        let udp = [
            vec![plain(LOAD_HALF_AT_X, l3 + 2)],
            branch(IF_EQUAL, ENCAP_PORT, [vec![plain(LOAD_WORD_AT_X, l3 + 8)], owner(self.shards)].concat()),
            by_flow(),
        ];
        [
            vec![plain(LOAD_HALF, l3 + FRAGMENT)],
            branch(IF_SET, IS_FRAGMENT, addresses(no_ports())),
            vec![plain(X_HEADER_LEN, l3), plain(LOAD_BYTE, l3 + PROTOCOL)],
            is(Protocol::ESP, [vec![plain(LOAD_WORD_AT_X, l3)], owner(self.shards)].concat()),
            is(Protocol::UDP, udp.concat()),
            is(Protocol::TCP, by_flow()),
            addresses(no_ports()),
        ]
        .concat()
    }

    /// For an IPv6 header at an offset.
    fn ipv6(&self, l3: u32) -> Vec<Instruction> {
        const NEXT_HEADER: u32 = 6;
        const ADDRESSES: u32 = 8;
        const LEN: u32 = 40;
        let addresses = |start| [start, self.add_addresses(l3 + ADDRESSES, 8), self.shard_of_hash()].concat();
        let by_flow = || addresses(self.ports(LOAD_WORD, l3 + LEN));
        let udp = [
            vec![plain(LOAD_HALF, l3 + LEN + 2)],
            branch(IF_EQUAL, ENCAP_PORT, [vec![plain(LOAD_WORD, l3 + LEN + 8)], owner(self.shards)].concat()),
            by_flow(),
        ];
        [
            vec![plain(LOAD_BYTE, l3 + NEXT_HEADER)],
            is(Protocol::ESP, [vec![plain(LOAD_WORD, l3 + LEN)], owner(self.shards)].concat()),
            is(Protocol::UDP, udp.concat()),
            is(Protocol::TCP, by_flow()),
            addresses(no_ports()),
        ]
        .concat()
    }

    /// Begins a hash in X with both ports.
    fn ports(&self, load: u32, offset: u32) -> Vec<Instruction> {
        vec![plain(load, offset), plain(MULTIPLY, self.keys.ports), plain(X_RESULT, 0)]
    }

    /// Adds words of addresses to the hash in X.
    fn add_addresses(&self, offset: u32, words: usize) -> Vec<Instruction> {
        let word = |(at, key): (u32, &u32)| {
            [plain(LOAD_WORD, offset + 4 * at), plain(MULTIPLY, *key), plain(ADD_X, 0), plain(X_RESULT, 0)]
        };
        (0..).zip(&self.keys.addresses[..words]).flat_map(word).collect()
    }

    /// Ends the program with the shard of the hash in X, and in the result. The low half, where differences of source ports are not, is
    /// mixed with the other before the last product.
    fn shard_of_hash(&self) -> Vec<Instruction> {
        vec![
            plain(SHIFT_RIGHT, 16),
            plain(XOR_X, 0),
            plain(MULTIPLY, self.keys.last),
            plain(SHIFT_RIGHT, 16),
            plain(MODULO, self.shards.get() as u32),
            plain(RETURN_RESULT, 0),
        ]
    }
}

/// Begins a hash in X without ports.
fn no_ports() -> Vec<Instruction> {
    vec![plain(libc::BPF_LDX | libc::BPF_IMM, 0)]
}

/// Ends the program with the owner of the SPI that is the result.
fn owner(shards: ShardCount) -> Vec<Instruction> {
    vec![
        plain(MULTIPLY, ShardCount::SPI_FACTOR),
        plain(SHIFT_RIGHT, ShardCount::SPI_SHIFT),
        plain(MODULO, shards.get() as u32),
        plain(RETURN_RESULT, 0),
    ]
}

/// Instructions for a protocol, if the result is its number.
fn is(protocol: Protocol, then: Vec<Instruction>) -> Vec<Instruction> {
    branch(IF_EQUAL, protocol.0.into(), then)
}

/// Instructions that are passed over unless the condition holds for the result.
fn branch(condition: u32, k: u32, then: Vec<Instruction>) -> Vec<Instruction> {
    let over = u8::try_from(then.len()).expect("a branch has less than 256 instructions");
    [vec![Instruction { code: condition as u16, jt: 0, jf: over, k }], then].concat()
}

/// An instruction without jumps.
const fn plain(code: u32, k: u32) -> Instruction {
    Instruction { code: code as u16, jt: 0, jf: 0, k }
}

/// Offset of a property of the packet (`SKF_AD_OFF`).
const fn auxiliary(property: i32) -> u32 {
    (libc::SKF_AD_OFF + property) as u32
}
