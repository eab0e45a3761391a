//! Seccomp filter of programs under `fatpath exec` (seccomp(2); Linux `seccomp_run_filters`).
//!
//! The filter refuses calls that would reach the host's network instead of the gateway's:
//!
//! - `socket(AF_NETLINK)` with a protocol that the library serves: the library itself uses Unix sockets.
//! - unless [allowed](Netfilter::HostSide), sockets and options that configure packet filters ([`netfilter`]).
//! - requests of `ioctl` that create or change interfaces, addresses, routes and neighbours. Requests that only read
//!   are allowed, since the C library itself looks up the number of an interface.
//! - `io_uring_setup`: a ring creates sockets without a system call for each.
//! - for a program whose sockets are bound to a VRF, `socket(AF_INET)` and `socket(AF_INET6)` outside of the library:
//!   the socket would not be bound.
//! - entering or creating a network namespace, where the library's netlink would still be the gateway's.
//! - attaching BPF programs to control groups and interfaces, as `ip vrf exec` does.
//!
//! A filter evaluates numbers and arguments, but no memory. Calls whose effect depends on memory are refused as a
//! whole: i386's `socketcall`, whose arguments are in memory; and `clone3`, whose flags are in memory, returns
//! `ENOSYS`, so that the C library uses `clone`.

use std::io;

use libc::sock_filter;

use crate::bpf::{
    ALLOW, Field, KILL, fails_with, if_within, jump, load, skip_if_equal, statement, unless_equal_skip, verdict,
};
use crate::{netfilter, sys};

/// Sixth argument of the library's own `socket(2)`; the kernel ignores it.
pub const SOCKET_MARK: u32 = 0x0fa7_9a7d;

/// Permitted Internet sockets of a program.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Internet {
    /// All sockets.
    Any,
    /// Only sockets that the library creates and binds.
    Marked,
}

/// Packet filters that a program may configure.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Netfilter {
    /// None.
    None,
    /// Those of the kernel, for the sockets of the gateway's host side.
    HostSide,
}

/// Sets the filter for this thread and for all programs that it executes or starts. The filter cannot be removed.
///
/// Without `CAP_SYS_ADMIN` the kernel accepts a filter only from a thread with `no_new_privs`, which this function then
/// sets: programs with setuid or file capabilities gain no privileges any more.
///
/// # Errors
/// As `seccomp(2)` and `prctl(2)`: this kernel has no filters; or this processor's system calls are unknown.
pub fn set(internet: Internet, netfilter: Netfilter) -> io::Result<()> {
    let program = program(known_abis(ABIS)?, internet, netfilter);
    match sys::set_filter(&program) {
        Err(err) if err.raw_os_error() == Some(libc::EACCES) => {
            rustix::thread::set_no_new_privs(true)?;
            sys::set_filter(&program)
        }
        done => done,
    }
}

/// # Errors
/// The list is empty: a filter of it would refuse nothing, or kill each program.
fn known_abis(abis: &[Abi]) -> io::Result<&[Abi]> {
    if abis.is_empty() {
        let text = format!("there is no list of the system calls of this processor ({})", std::env::consts::ARCH);
        return Err(io::Error::new(io::ErrorKind::Unsupported, text));
    }
    Ok(abis)
}

/// Refused calls of one architecture, by number.
struct Abi {
    /// `AUDIT_ARCH_*`.
    arch: u32,
    /// Mask of the significant bits of a call's number.
    number_bits: u32,
    calls: &'static [(u32, Call)],
}

/// Condition on its arguments under which a call is refused.
#[derive(Clone, Copy)]
enum Call {
    /// `socket(2)` of a netlink protocol that the library serves, or an Internet socket without the required mark.
    Socket,
    /// `socketcall(2)` that creates a socket, or accesses an option.
    Socketcall,
    /// `setsockopt(2)` or `getsockopt(2)` of a packet filter.
    Option,
    /// `ioctl(2)` that changes a network setting.
    Ioctl,
    /// A call with `CLONE_NEWNET` in the flags, which are the argument with this index.
    NetworkNamespace(u32),
    /// `bpf(2)` that attaches a program.
    Bpf,
    /// Any call.
    Any,
    /// Any call, with the error of a kernel without it.
    Missing,
}

/// Bit of x86-64 calls with 32-bit pointers: their numbers are those of x86-64, or separate ones from 512 on.
#[cfg(any(test, target_arch = "x86_64"))]
const X32_BIT: u32 = 1 << 30;

#[cfg(target_arch = "x86_64")]
const ABIS: &[Abi] = X86_64;
#[cfg(target_arch = "aarch64")]
const ABIS: &[Abi] = AARCH64;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const ABIS: &[Abi] = &[];

/// Calls of x86-64, of its variant x32, and of i386. Tests of each processor check the lists of all.
#[cfg(any(test, target_arch = "x86_64"))]
const X86_64: &[Abi] = &[
    Abi {
        arch: 0xc000_003e,
        number_bits: !X32_BIT,
        calls: &[
            (41, Call::Socket),
            (54, Call::Option),
            (55, Call::Option),
            (541, Call::Option),
            (542, Call::Option),
            (16, Call::Ioctl),
            (514, Call::Ioctl),
            (56, Call::NetworkNamespace(0)),
            (272, Call::NetworkNamespace(0)),
            (308, Call::NetworkNamespace(1)),
            (321, Call::Bpf),
            (425, Call::Any),
            (435, Call::Missing),
        ],
    },
    Abi {
        arch: 0x4000_0003,
        number_bits: !0,
        calls: &[
            (359, Call::Socket),
            (365, Call::Option),
            (366, Call::Option),
            (102, Call::Socketcall),
            (54, Call::Ioctl),
            (120, Call::NetworkNamespace(0)),
            (310, Call::NetworkNamespace(0)),
            (346, Call::NetworkNamespace(1)),
            (357, Call::Bpf),
            (425, Call::Any),
            (435, Call::Missing),
        ],
    },
];

/// Calls of aarch64. Programs of 32-bit ARM are not started, and are ended at their first call.
#[cfg(any(test, target_arch = "aarch64"))]
const AARCH64: &[Abi] = &[Abi {
    arch: 0xc000_00b7,
    number_bits: !0,
    calls: &[
        (198, Call::Socket),
        (208, Call::Option),
        (209, Call::Option),
        (29, Call::Ioctl),
        (220, Call::NetworkNamespace(0)),
        (97, Call::NetworkNamespace(0)),
        (268, Call::NetworkNamespace(1)),
        (280, Call::Bpf),
        (425, Call::Any),
        (435, Call::Missing),
    ],
}];

/// `TUNSETIFF`.
const TUN_SET_INTERFACE: u32 = 0x4004_54ca;
/// `PPPIOCNEWUNIT`.
const PPP_NEW_UNIT: u32 = 0xc004_743e;
/// Requests of sockets (`SOCK_IOC_TYPE`), and of wireless interfaces, as ranges.
const OF_SOCKETS: (u32, u32) = (0x8900, 0x89ff);
const OF_WIRELESS: (u32, u32) = (0x8b00, 0x8bff);

/// Requests of sockets that change no network setting. Some requests outside this list seem to be read-only, but take
/// commands in memory that write (`SIOCGIFBR`, `SIOCGIFVLAN`, `SIOCETHTOOL`).
const HARMLESS: [(u32, u32); 19] = [
    (0x8901, 0x8907), // owner, out-of-band mark, time stamps
    (0x8910, 0x8910), // SIOCGIFNAME
    (0x8912, 0x8913), // SIOCGIFCONF, SIOCGIFFLAGS
    (0x8915, 0x8915), // SIOCGIFADDR
    (0x8917, 0x8917), // SIOCGIFDSTADDR
    (0x8919, 0x8919), // SIOCGIFBRDADDR
    (0x891b, 0x891b), // SIOCGIFNETMASK
    (0x891d, 0x891d), // SIOCGIFMETRIC
    (0x891f, 0x891f), // SIOCGIFMEM
    (0x8921, 0x8921), // SIOCGIFMTU
    (0x8927, 0x8927), // SIOCGIFHWADDR
    (0x8929, 0x8929), // SIOCGIFSLAVE
    (0x8933, 0x8933), // SIOCGIFINDEX
    (0x8935, 0x8935), // SIOCGIFPFLAGS
    (0x8942, 0x8942), // SIOCGIFTXQLEN
    (0x894b, 0x894c), // SIOCOUTQNSD, SIOCGSKNS
    (0x8954, 0x8954), // SIOCGARP
    (0x8970, 0x8970), // SIOCGIFMAP
    (0x89e0, 0x89ef), // counters of multicast routing (SIOCPROTOPRIVATE)
];

const REFUSE: u32 = fails_with(libc::EPERM);

/// Instructions of the filter. A call from an unknown architecture ends the process.
fn program(abis: &[Abi], internet: Internet, netfilter: Netfilter) -> Vec<sock_filter> {
    let mut program = Vec::new();
    load(&mut program, Field::Arch);
    for abi in abis {
        let mut section = Vec::new();
        load(&mut section, Field::Number);
        section.push(statement(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, abi.number_bits));
        for (number, call) in abi.calls {
            let block = call.refused(internet, netfilter);
            section.push(unless_equal_skip(*number, block.len()));
            section.extend(block);
        }
        section.push(verdict(ALLOW));
        // A section may be longer than a conditional jump.
        program.push(skip_if_equal(abi.arch, 1));
        program.push(statement(libc::BPF_JMP | libc::BPF_JA, section.len() as u32));
        program.extend(section);
    }
    program.push(verdict(KILL));
    program
}

impl Call {
    /// Instructions for the condition, which end with a verdict.
    fn refused(self, internet: Internet, netfilter: Netfilter) -> Vec<sock_filter> {
        let mut block = Vec::new();
        match self {
            Self::Any => block.push(verdict(REFUSE)),
            Self::Missing => block.push(verdict(fails_with(libc::ENOSYS))),
            Self::Socket => {
                load(&mut block, Field::Argument(0));
                if internet == Internet::Marked {
                    let mut by_mark = Vec::new();
                    load(&mut by_mark, Field::Argument(5));
                    if_within(&mut by_mark, (SOCKET_MARK, SOCKET_MARK), ALLOW);
                    by_mark.push(verdict(REFUSE));
                    for family in [libc::AF_INET, libc::AF_INET6] {
                        block.push(unless_equal_skip(family as u32, by_mark.len()));
                        block.extend(by_mark.iter().copied());
                    }
                }
                block.push(skip_if_equal(libc::AF_NETLINK as u32, 1));
                block.push(verdict(ALLOW));
                load(&mut block, Field::Argument(2));
                for protocol in [libc::NETLINK_ROUTE, libc::NETLINK_XFRM, libc::NETLINK_GENERIC] {
                    if_within(&mut block, (protocol as u32, protocol as u32), REFUSE);
                }
                if netfilter == Netfilter::None {
                    let protocol = libc::NETLINK_NETFILTER as u32;
                    if_within(&mut block, (protocol, protocol), fails_with(netfilter::NO_PROTOCOL));
                }
                block.push(verdict(ALLOW));
            }
            Self::Socketcall => {
                const SYS_SOCKET: u32 = 1;
                const SYS_SETSOCKOPT: u32 = 14;
                const SYS_GETSOCKOPT: u32 = 15;
                load(&mut block, Field::Argument(0));
                if_within(&mut block, (SYS_SOCKET, SYS_SOCKET), REFUSE);
                if netfilter == Netfilter::None {
                    if_within(&mut block, (SYS_SETSOCKOPT, SYS_GETSOCKOPT), REFUSE);
                }
                block.push(verdict(ALLOW));
            }
            Self::Option => {
                let refused = if netfilter == Netfilter::None { &netfilter::OPTIONS[..] } else { &[] };
                for &(level, first, last) in refused {
                    let mut by_name = Vec::new();
                    load(&mut by_name, Field::Argument(2));
                    if_within(&mut by_name, (first as u32, last as u32), fails_with(netfilter::NO_OPTION));
                    load(&mut block, Field::Argument(1));
                    block.push(unless_equal_skip(level as u32, by_name.len()));
                    block.extend(by_name);
                }
                block.push(verdict(ALLOW));
            }
            Self::Ioctl => {
                load(&mut block, Field::Argument(1));
                for request in [TUN_SET_INTERFACE, PPP_NEW_UNIT] {
                    if_within(&mut block, (request, request), REFUSE);
                }
                if_within(&mut block, OF_WIRELESS, REFUSE);
                for range in HARMLESS {
                    if_within(&mut block, range, ALLOW);
                }
                if_within(&mut block, OF_SOCKETS, REFUSE);
                block.push(verdict(ALLOW));
            }
            Self::NetworkNamespace(argument) => {
                load(&mut block, Field::Argument(argument));
                block.push(jump(libc::BPF_JSET, libc::CLONE_NEWNET as u32, 0, 1));
                block.push(verdict(REFUSE));
                block.push(verdict(ALLOW));
            }
            Self::Bpf => {
                const BPF_PROG_ATTACH: u32 = 8;
                const BPF_LINK_CREATE: u32 = 28;
                load(&mut block, Field::Argument(0));
                for command in [BPF_PROG_ATTACH, BPF_LINK_CREATE] {
                    if_within(&mut block, (command, command), REFUSE);
                }
                block.push(verdict(ALLOW));
            }
        }
        block
    }
}

#[cfg(test)]
mod tests {
    use libc::c_int;

    use super::*;
    use crate::bpf::interpreter::{Data, run};

    const NO_SYS: u32 = fails_with(libc::ENOSYS);

    /// Numbers of socket, ioctl, clone, unshare, setns, bpf, io_uring_setup, clone3, getpid, setsockopt and getsockopt,
    /// for the architectures of a list.
    type Numbers = [(u32, [u32; 11])];

    const X86_64_NUMBERS: &Numbers = &[
        (AUDIT_X86_64, [41, 16, 56, 272, 308, 321, 425, 435, 39, 54, 55]),
        (
            AUDIT_X86_64,
            [
                X32_BIT + 41,
                X32_BIT + 514,
                X32_BIT + 56,
                X32_BIT + 272,
                X32_BIT + 308,
                X32_BIT + 321,
                X32_BIT + 425,
                X32_BIT + 435,
                X32_BIT + 39,
                X32_BIT + 541,
                X32_BIT + 542,
            ],
        ),
        (0x4000_0003, [359, 54, 120, 310, 346, 357, 425, 435, 20, 366, 365]),
    ];
    const AARCH64_NUMBERS: &Numbers = &[(AUDIT_AARCH64, [198, 29, 220, 97, 268, 280, 425, 435, 172, 208, 209])];

    /// Lists of all processors, each with its numbers.
    const LISTS: [(&[Abi], &Numbers); 2] = [(X86_64, X86_64_NUMBERS), (AARCH64, AARCH64_NUMBERS)];

    /// `AUDIT_ARCH_X86_64` and `AUDIT_ARCH_AARCH64`.
    const AUDIT_X86_64: u32 = 0xc000_003e;
    const AUDIT_AARCH64: u32 = 0xc000_00b7;

    fn refusing_program(abis: &[Abi], internet: Internet) -> Vec<sock_filter> {
        program(abis, internet, Netfilter::None)
    }

    #[test]
    fn filter_numbers_of_this_processor_are_the_c_librarys() {
        let known = [
            libc::SYS_socket,
            libc::SYS_ioctl,
            libc::SYS_clone,
            libc::SYS_unshare,
            libc::SYS_setns,
            libc::SYS_bpf,
            libc::SYS_io_uring_setup,
            libc::SYS_clone3,
            libc::SYS_getpid,
            libc::SYS_setsockopt,
            libc::SYS_getsockopt,
        ];
        let own = LISTS.iter().find(|(abis, _)| abis[0].arch == ABIS[0].arch).map(|(_, numbers)| numbers[0].1);
        assert_eq!(own, Some(known.map(|number| number as u32)));
        let arch = if cfg!(target_arch = "aarch64") { AUDIT_AARCH64 } else { AUDIT_X86_64 };
        assert_eq!(ABIS[0].arch, arch);
    }

    #[test]
    fn filter_calls_of_each_abi_are_refused_by_argument() {
        // System call number, arguments, result.
        let cases: &[(usize, [u64; 3], u32)] = &[
            (0, [16, 3, 0], REFUSE),
            (0, [16, 0x80003, 6], REFUSE),
            (0, [0xdead_0000_0000 | 16, 3, 16], REFUSE),
            (0, [16, 3, 4], ALLOW),
            (0, [16, 3, 15], ALLOW),
            (0, [1, 5, 0], ALLOW),
            (0, [2, 2, 0], ALLOW),
            (0, [17, 3, 16], ALLOW),
            (1, [9, 0x4004_54ca, 0], REFUSE),
            (1, [9, 0xffff_ffff_0000_89a0, 0], REFUSE),
            (1, [9, 0xc004_743e, 0], REFUSE),
            (1, [9, 0x8b1a, 0], REFUSE),
            (1, [9, 0x5401, 0], ALLOW),
            (1, [9, 0x8006_8906, 0], ALLOW),
            (2, [0x4000_0011, 0, 0], REFUSE),
            (2, [0x003d_0f00, 0, 0], ALLOW),
            (3, [0x4002_0000, 0, 0], REFUSE),
            (3, [0x0002_0000, 0, 0], ALLOW),
            (4, [3, 0x4000_0000, 0], REFUSE),
            (4, [0x4000_0000, 0, 0], ALLOW),
            (5, [8, 0, 0], REFUSE),
            (5, [28, 0, 0], REFUSE),
            (5, [5, 0, 0], ALLOW),
            (6, [8, 0, 0], REFUSE),
            (7, [0, 88, 0], NO_SYS),
            (8, [16, 0, 0], ALLOW),
        ];
        for (abis, lists) in LISTS {
            let program = refusing_program(abis, Internet::Any);
            for &(arch, numbers) in lists {
                for &(which, [first, second, third], want) in cases {
                    let data = Data { number: numbers[which], arch, arguments: [first, second, third, 0, 0, 0] };
                    assert_eq!(run(&program, data), want, "{data:x?}");
                }
            }
        }
    }

    #[test]
    fn filter_ioctls_that_change_a_network_are_refused() {
        let refused = [
            0x890b, 0x890c, 0x8911, 0x8914, 0x8916, 0x891a, 0x8922, 0x8923, 0x8924, 0x8930, 0x8931, 0x8936, 0x8940,
            0x8941, 0x8943, 0x8946, 0x8949, 0x8953, 0x8955, 0x8971, 0x8982, 0x8983, 0x8990, 0x89a0, 0x89a1, 0x89a2,
            0x89a3, 0x89b0, 0x89f1, 0x89f2, 0x89f3, 0x89ff, 0x8900,
        ];
        let allowed = [0x8901, 0x8905, 0x8907, 0x8910, 0x8912, 0x8913, 0x8927, 0x8933, 0x8954, 0x89e1, 0x88ff, 0x8a00];
        for (abis, lists) in LISTS {
            let program = refusing_program(abis, Internet::Any);
            let (arch, numbers) = lists[0];
            for (requests, want) in [(&refused[..], REFUSE), (&allowed[..], ALLOW)] {
                for &request in requests {
                    let data = Data { number: numbers[1], arch, arguments: [3, request, 0, 0, 0, 0] };
                    assert_eq!(run(&program, data), want, "{arch:#x} {request:#x}");
                }
            }
        }
    }

    #[test]
    fn filter_configures_no_packet_filter_unless_allowed() {
        const NETFILTER: u64 = libc::NETLINK_NETFILTER as u64;
        let (no_protocol, no_option) = (fails_with(libc::EPROTONOSUPPORT), fails_with(libc::ENOPROTOOPT));
        // Index of the number, arguments, and the verdict without permission.
        let mut cases = vec![(0, [16, 3, NETFILTER], no_protocol), (0, [2, 3, NETFILTER], ALLOW)];
        for (level, name, verdict) in [
            (0, 63, ALLOW),
            (0, 64, no_option),
            (0, 65, no_option),
            (0, 66, ALLOW),
            (0, 80, ALLOW), // SO_ORIGINAL_DST
            (0, 95, ALLOW),
            (0, 96, no_option),
            (0, 97, no_option),
            (0, 98, ALLOW),
            (0, 127, ALLOW),
            (0, 128, no_option),
            (0, 129, no_option),
            (0, 130, ALLOW),
            (41, 63, ALLOW),
            (41, 64, no_option),
            (41, 65, no_option),
            (41, 66, ALLOW), // IPV6_RECVTCLASS
            (41, 67, ALLOW), // IPV6_TCLASS
            (41, 96, ALLOW),
            (41, 128, ALLOW),
            (1, 64, ALLOW),
            (17, 64, ALLOW),
        ] {
            cases.extend([9, 10].map(|which| (which, [3, level, name], verdict)));
            assert_eq!(netfilter::is_option(level as c_int, name as c_int), verdict != ALLOW, "{level} {name}");
        }
        for (abis, lists) in LISTS {
            let refused = refusing_program(abis, Internet::Any);
            let allowed = program(abis, Internet::Any, Netfilter::HostSide);
            for &(arch, numbers) in lists {
                for &(which, [first, second, third], want) in &cases {
                    let data = Data { number: numbers[which], arch, arguments: [first, second, third, 0, 0, 0] };
                    assert_eq!(run(&refused, data), want, "{data:x?}");
                    assert_eq!(run(&allowed, data), ALLOW, "{data:x?}");
                }
            }
        }
    }

    #[test]
    fn filter_without_a_list_of_calls_names_the_processor() {
        let refused = known_abis(&[]).err().unwrap().to_string();
        assert!(
            refused.contains("no list of the system calls") && refused.contains(std::env::consts::ARCH),
            "{refused}"
        );
        assert!(known_abis(ABIS).is_ok());
    }

    #[test]
    fn filter_socketcall_makes_no_socket_of_any_kind() {
        let program = refusing_program(X86_64, Internet::Any);
        let of = |first| Data { number: 102, arch: 0x4000_0003, arguments: [first, 0, 0, 0, 0, 0] };
        assert_eq!([1, 14, 15].map(|call| run(&program, of(call))), [REFUSE; 3]);
        assert_eq!([2, 3, 8, 11].map(|call| run(&program, of(call))), [ALLOW; 4]);
    }

    #[test]
    fn filter_unknown_architecture_ends_the_process() {
        // 32-bit ARM, RISC-V, an invalid architecture, and the one of the other list.
        for (abis, other) in [(X86_64, AUDIT_AARCH64), (AARCH64, AUDIT_X86_64)] {
            for arch in [0x4000_0028, 0xc000_00f3, 0, other] {
                let program = refusing_program(abis, Internet::Any);
                assert_eq!(run(&program, Data { number: 1, arch, arguments: [0; 6] }), KILL, "{arch:#x}");
            }
        }
    }

    #[test]
    fn filter_set_on_a_thread_refuses_its_calls_alone() {
        use rustix::io::Errno;
        use rustix::net::{AddressFamily, SocketFlags, SocketType, netlink, socket_with};
        let make =
            |protocol| socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol).map(drop);
        let inside = std::thread::spawn(move || {
            set(Internet::Any, Netfilter::None).unwrap();
            [make(None), make(Some(netlink::XFRM)), make(Some(netlink::GENERIC)), make(Some(netlink::KOBJECT_UEVENT))]
        });
        assert_eq!(inside.join().unwrap(), [Err(Errno::PERM), Err(Errno::PERM), Err(Errno::PERM), Ok(())]);
        assert_eq!(make(None), Ok(()));
    }

    #[test]
    fn internet_sockets_of_a_vrf_are_the_librarys_alone() {
        for (abis, abi) in LISTS.iter().flat_map(|&(abis, _)| abis.iter().map(move |abi| (abis, abi))) {
            for &(number, _) in abi.calls.iter().filter(|(_, call)| matches!(call, Call::Socket)) {
                for (family, mark, internet, verdict) in [
                    (libc::AF_INET, 0, Internet::Any, ALLOW),
                    (libc::AF_INET, 0, Internet::Marked, REFUSE),
                    (libc::AF_INET6, 0, Internet::Marked, REFUSE),
                    (libc::AF_INET, SOCKET_MARK, Internet::Marked, ALLOW),
                    (libc::AF_INET6, SOCKET_MARK, Internet::Marked, ALLOW),
                    (libc::AF_UNIX, 0, Internet::Marked, ALLOW),
                    (libc::AF_PACKET, 0, Internet::Marked, ALLOW),
                    (libc::AF_NETLINK, SOCKET_MARK, Internet::Marked, REFUSE),
                ] {
                    let arguments = [family as u64, 2, 0, 0, 0, mark.into()];
                    let data = Data { number, arch: abi.arch, arguments };
                    assert_eq!(run(&refusing_program(abis, internet), data), verdict, "{data:?} {internet:?}");
                }
            }
        }
    }
}
