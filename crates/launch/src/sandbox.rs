//! Seccomp filters of a gateway that is ready, and of its openers: lists of the system calls that they make from then on (seccomp(2)).
//!
//! Calls are allowed by number, and some by an argument: families of sockets, requests of `ioctl`, commands of `bpf`,
//! threads but no processes, and memory that is not executable. No call on a list executes a program, traces another process, or
//! makes a ring of `io_uring`. Links that take capabilities are opened by an opener: of packet sockets and programs of BPF, only what
//! is done with open ones is on the gateway's list. Only the opener of the host side enters and makes namespaces, and mounts, and only
//! that of links gives files away.
//!
//! A filter evaluates numbers and arguments, but no memory. `clone3`, whose flags are in memory, returns `ENOSYS`, so
//! that the C library uses `clone`.

use std::io;

use libc::{c_int, c_long, sock_filter};

use crate::bpf::{ALLOW, Field, KILL, fails_with, if_has, if_within, load, skip_if_equal, unless_equal_skip, verdict};
use crate::sys;

/// Process that has a filter.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Role {
    /// A gateway that is ready.
    Gateway,
    /// The opener of links of a gateway.
    LinkOpener,
    /// The opener of the host side of a gateway.
    HostSideOpener,
}

/// Effect of a call that is not on the list.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Unlisted {
    /// The call fails with `EPERM`.
    Fails,
    /// The process ends, with a line on standard error that names the call.
    Ends,
}

/// Sets the filter of `role` for all threads of this process, and for all later ones. It cannot be removed, and the threads have
/// `no_new_privs` from then on.
///
/// # Errors
/// As `seccomp(2)` and `prctl(2)`: this kernel has no filters; or this processor's system calls are unknown. Nothing is
/// filtered then.
pub fn set_for_all_threads(role: Role, unlisted: Unlisted) -> io::Result<()> {
    let arch = ARCH.ok_or_else(|| {
        let text = format!("there is no list of the system calls of this processor ({})", std::env::consts::ARCH);
        io::Error::new(io::ErrorKind::Unsupported, text)
    })?;
    let refusal = match unlisted {
        Unlisted::Fails => fails_with(libc::EPERM),
        Unlisted::Ends => {
            sys::name_trapped_calls()?;
            libc::SECCOMP_RET_TRAP
        }
    };
    rustix::thread::set_no_new_privs(true)?;
    sys::set_filter_of_all(&program(role, arch, std::process::id(), refusal))
}

/// `AUDIT_ARCH_*` of this processor. Calls by another architecture's numbers end the process.
const ARCH: Option<u32> = if cfg!(target_arch = "x86_64") {
    Some(0xc000_003e)
} else if cfg!(target_arch = "aarch64") {
    Some(0xc000_00b7)
} else {
    None
};

/// Condition on its arguments under which a call is allowed.
#[derive(Clone, Copy)]
enum Call {
    /// The argument with this index is in one of the ranges from first to last.
    Within(u32, &'static [(u32, u32)]),
    /// The argument with this index has none of the bits.
    Without(u32, u32),
    /// The argument with this index is the number of this process.
    Own(u32),
    /// The flags of `clone` are those of a thread in the same namespaces.
    Thread,
    /// The call does not exist.
    Missing,
}

/// Calls that are allowed by their arguments, to each process.
const CHECKED: [(c_long, Call); 5] = [
    (libc::SYS_mmap, Call::Without(2, libc::PROT_EXEC as u32)),
    (libc::SYS_mprotect, Call::Without(2, libc::PROT_EXEC as u32)),
    // Limits of the calling process.
    (libc::SYS_prlimit64, Call::Within(0, &[(0, 0)])),
    (libc::SYS_tgkill, Call::Own(0)),
    (libc::SYS_clone3, Call::Missing),
];

/// Calls that are allowed to a gateway by their arguments.
const OF_GATEWAY: &[(c_long, Call)] = &[
    (libc::SYS_socket, Call::Within(0, &FAMILIES)),
    (libc::SYS_ioctl, Call::Within(1, &REQUESTS)),
    (libc::SYS_prctl, Call::Within(0, &[(libc::PR_SET_NAME as u32, libc::PR_GET_NAME as u32)])),
    (libc::SYS_bpf, Call::Within(0, &BPF_COMMANDS)),
    (libc::SYS_unshare, Call::Without(0, !(libc::CLONE_FILES as u32))),
    (libc::SYS_clone, Call::Thread),
];

/// Calls that are allowed to an opener of links by their arguments.
const OF_LINK_OPENER: &[(c_long, Call)] = &[
    (libc::SYS_socket, Call::Within(0, &OPENED_FAMILIES)),
    (libc::SYS_ioctl, Call::Within(1, &OPENED_REQUESTS)),
    (libc::SYS_bpf, Call::Within(0, &OPENED_BPF_COMMANDS)),
];

/// Calls that are allowed to an opener of the host side by their arguments.
const OF_HOST_SIDE_OPENER: &[(c_long, Call)] = &[
    (libc::SYS_socket, Call::Within(0, &HOST_SIDE_FAMILIES)),
    (libc::SYS_ioctl, Call::Within(1, &OPENED_REQUESTS)),
    (libc::SYS_setns, Call::Within(1, &[of_one(libc::CLONE_NEWNET)])),
    (libc::SYS_unshare, Call::Without(0, !((libc::CLONE_NEWNET | libc::CLONE_NEWUSER) as u32))),
    // Its memory is closed once it is in a namespace.
    (libc::SYS_prctl, Call::Within(0, &[of_one(libc::PR_SET_DUMPABLE)])),
];

/// Families of sockets: those of clients and guests, of UDP links, and of the kernel's answers about devices.
const FAMILIES: [(u32, u32); 4] =
    [of_one(libc::AF_UNIX), of_one(libc::AF_INET), of_one(libc::AF_INET6), of_one(libc::AF_NETLINK)];

/// Families of the sockets that an opener of links makes.
const OPENED_FAMILIES: [(u32, u32); 6] = [
    of_one(libc::AF_UNIX),
    of_one(libc::AF_INET),
    of_one(libc::AF_INET6),
    of_one(libc::AF_NETLINK),
    of_one(libc::AF_PACKET),
    of_one(libc::AF_XDP),
];

/// Families of the sockets that an opener of the host side makes.
const HOST_SIDE_FAMILIES: [(u32, u32); 4] =
    [of_one(libc::AF_UNIX), of_one(libc::AF_INET), of_one(libc::AF_NETLINK), of_one(libc::AF_PACKET)];

const fn of_one(number: c_int) -> (u32, u32) {
    (number as u32, number as u32)
}

/// Requests of `ioctl`.
const REQUESTS: [(u32, u32); 12] = [
    (0x541b, 0x541b),           // FIONREAD
    (0x5421, 0x5421),           // FIONBIO
    (0x5451, 0x5451),           // FIOCLEX
    (0x8910, 0x8910),           // SIOCGIFNAME
    (0x8913, 0x8913),           // SIOCGIFFLAGS
    (0x8921, 0x8921),           // SIOCGIFMTU
    (0x8927, 0x8927),           // SIOCGIFHWADDR
    (0x8933, 0x8933),           // SIOCGIFINDEX
    (0x8946, 0x8946),           // SIOCETHTOOL
    (0x4004_54ca, 0x4004_54cb), // TUNSETIFF, TUNSETPERSIST
    (0x4004_54d0, 0x4004_54da), // TUNSETOFFLOAD, TUNSETVNETHDRSZ, TUNSETQUEUE, TUNSETIFINDEX
    (0x8004_54d2, 0x8004_54d2), // TUNGETIFF
];

/// Requests of `ioctl` of an opener, which makes devices and brings them up. Addresses and routes are set by netlink.
const OPENED_REQUESTS: [(u32, u32); 10] = [
    (0x5421, 0x5421),           // FIONBIO
    (0x8910, 0x8910),           // SIOCGIFNAME
    (0x8913, 0x8914),           // SIOCGIFFLAGS, SIOCSIFFLAGS
    (0x8921, 0x8922),           // SIOCGIFMTU, SIOCSIFMTU
    (0x8924, 0x8924),           // SIOCSIFHWADDR, on the host side
    (0x8927, 0x8927),           // SIOCGIFHWADDR
    (0x8933, 0x8933),           // SIOCGIFINDEX
    (0x8946, 0x8946),           // SIOCETHTOOL
    (0x4004_54ca, 0x4004_54da), // TUNSETIFF to TUNSETIFINDEX
    (0x8004_54d2, 0x8004_54d2), // TUNGETIFF
];

/// Commands of `bpf` of an opener of links, which loads programs and attaches them.
const OPENED_BPF_COMMANDS: [(u32, u32); 5] = [
    (0, 0),   // BPF_MAP_CREATE
    (2, 2),   // BPF_MAP_UPDATE_ELEM
    (5, 5),   // BPF_PROG_LOAD
    (28, 28), // BPF_LINK_CREATE
    (34, 34), // BPF_LINK_DETACH
];

/// Commands of `bpf`: entries of the maps of AF_XDP sockets, and ends of links to interfaces.
const BPF_COMMANDS: [(u32, u32); 2] = [
    (2, 2),   // BPF_MAP_UPDATE_ELEM
    (34, 34), // BPF_LINK_DETACH
];

/// Flags of `clone` that make namespaces.
const NAMESPACES: u32 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET) as u32;

/// Calls that are allowed to each process, with any argument.
const LISTED: &[c_long] = &[
    // Bytes and messages.
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    // Waiting, and clocks.
    libc::SYS_futex,
    libc::SYS_sched_yield,
    libc::SYS_restart_syscall,
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_ppoll,
    // Sockets.
    libc::SYS_socketpair,
    libc::SYS_bind,
    libc::SYS_connect,
    libc::SYS_shutdown,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    // Files.
    libc::SYS_openat,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_fcntl,
    libc::SYS_dup,
    libc::SYS_lseek,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_statfs,
    libc::SYS_fstatfs,
    libc::SYS_readlinkat,
    libc::SYS_getdents64,
    // Memory.
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_brk,
    // Threads, signals, and this process.
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_sched_getaffinity,
    libc::SYS_sigaltstack,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    // A thread gives up what it has, and can gain nothing.
    libc::SYS_capget,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_getrandom,
    libc::SYS_sysinfo,
    libc::SYS_uname,
];

/// Calls that are allowed to a gateway, with any argument.
const LISTED_TO_GATEWAY: &[c_long] = &[
    // Bytes and messages.
    libc::SYS_pwrite64,
    libc::SYS_recvmmsg,
    libc::SYS_sendmmsg,
    libc::SYS_io_setup,
    libc::SYS_io_submit,
    libc::SYS_io_getevents,
    libc::SYS_io_destroy,
    // Waiting, and clocks.
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_eventfd2,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime,
    // Sockets.
    libc::SYS_listen,
    libc::SYS_accept,
    libc::SYS_accept4,
    // Files.
    libc::SYS_dup3,
    libc::SYS_pipe2,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_getcwd,
    libc::SYS_unlinkat,
    libc::SYS_mkdirat,
    libc::SYS_renameat2,
    libc::SYS_linkat,
    libc::SYS_umask,
    libc::SYS_fchmodat,
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_fadvise64,
    libc::SYS_flock,
    libc::SYS_memfd_create,
    // Memory.
    libc::SYS_membarrier,
    libc::SYS_get_mempolicy,
    // Threads, signals, and this process.
    libc::SYS_sched_setaffinity,
    libc::SYS_getpriority,
    libc::SYS_setpriority,
    // A thread gives up what it has, and can gain nothing.
    libc::SYS_capset,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_getfd,
    libc::SYS_getrusage,
];

/// Calls that are allowed to an opener of links, with any argument: of the gateway's sockets and files, and `pidfd_open`, by which it
/// identifies a client before Linux 6.5.
const LISTED_TO_LINK_OPENER: &[c_long] = &[
    libc::SYS_umask,
    libc::SYS_unlinkat,
    libc::SYS_renameat2,
    libc::SYS_fchownat,
    libc::SYS_fchmodat,
    libc::SYS_pidfd_open,
];

/// Calls that are allowed to an opener of the host side, with any argument: of the file of its namespace, and of that of its record.
const LISTED_TO_HOST_SIDE_OPENER: &[c_long] =
    &[libc::SYS_mount, libc::SYS_umount2, libc::SYS_mkdirat, libc::SYS_unlinkat];

/// Calls that newer processors do not have; C libraries of x86-64 use them beside their successors.
#[cfg(target_arch = "x86_64")]
const LEGACY: &[c_long] = &[
    libc::SYS_open,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_access,
    libc::SYS_readlink,
    libc::SYS_unlink,
    libc::SYS_mkdir,
    libc::SYS_poll,
];
#[cfg(not(target_arch = "x86_64"))]
const LEGACY: &[c_long] = &[];

/// [`LEGACY`] calls of a gateway alone.
#[cfg(target_arch = "x86_64")]
const LEGACY_OF_GATEWAY: &[c_long] =
    &[libc::SYS_rename, libc::SYS_renameat, libc::SYS_link, libc::SYS_chmod, libc::SYS_dup2, libc::SYS_epoll_wait];
/// `renameat`, which crate `libc` has not for this processor.
#[cfg(target_arch = "aarch64")]
const LEGACY_OF_GATEWAY: &[c_long] = &[38];
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const LEGACY_OF_GATEWAY: &[c_long] = &[];

/// [`LEGACY`] calls of an opener of links alone.
#[cfg(target_arch = "x86_64")]
const LEGACY_OF_LINK_OPENER: &[c_long] = &[libc::SYS_rename, libc::SYS_renameat, libc::SYS_chmod];
#[cfg(not(target_arch = "x86_64"))]
const LEGACY_OF_LINK_OPENER: &[c_long] = LEGACY_OF_GATEWAY;

impl Role {
    /// Calls that are allowed by their arguments.
    fn checked(self) -> impl Iterator<Item = (c_long, Call)> {
        let more = match self {
            Self::Gateway => OF_GATEWAY,
            Self::LinkOpener => OF_LINK_OPENER,
            Self::HostSideOpener => OF_HOST_SIDE_OPENER,
        };
        more.iter().chain(&CHECKED).copied()
    }

    /// Calls that are allowed with any argument.
    fn listed(self) -> impl Iterator<Item = c_long> {
        let [more, legacy]: [&[c_long]; 2] = match self {
            Self::Gateway => [LISTED_TO_GATEWAY, LEGACY_OF_GATEWAY],
            Self::LinkOpener => [LISTED_TO_LINK_OPENER, LEGACY_OF_LINK_OPENER],
            Self::HostSideOpener => [LISTED_TO_HOST_SIDE_OPENER, &[]],
        };
        [LISTED, LEGACY, more, legacy].into_iter().flatten().copied()
    }
}

/// Instructions of the filter of `role` for the process `own`. Calls that are not on the list end in `refusal`.
fn program(role: Role, arch: u32, own: u32, refusal: u32) -> Vec<sock_filter> {
    let mut program = Vec::new();
    load(&mut program, Field::Arch);
    program.push(skip_if_equal(arch, 1));
    program.push(verdict(KILL));
    load(&mut program, Field::Number);
    // The kernel keeps the numbers that are allowed with any argument, and runs the filter for the others alone.
    for (number, call) in role.checked() {
        let block = call.judged(own, refusal);
        program.push(unless_equal_skip(number as u32, block.len()));
        program.extend(block);
    }
    for number in role.listed() {
        if_within(&mut program, (number as u32, number as u32), ALLOW);
    }
    program.push(verdict(refusal));
    program
}

impl Call {
    /// Instructions for the condition, which end with a verdict.
    fn judged(self, own: u32, refusal: u32) -> Vec<sock_filter> {
        let mut block = Vec::new();
        match self {
            Self::Within(argument, ranges) => {
                load(&mut block, Field::Argument(argument));
                ranges.iter().for_each(|&range| if_within(&mut block, range, ALLOW));
                block.push(verdict(refusal));
            }
            Self::Without(argument, bits) => {
                load(&mut block, Field::Argument(argument));
                if_has(&mut block, bits, refusal);
                block.push(verdict(ALLOW));
            }
            Self::Own(argument) => {
                load(&mut block, Field::Argument(argument));
                if_within(&mut block, (own, own), ALLOW);
                block.push(verdict(refusal));
            }
            Self::Thread => {
                load(&mut block, Field::Argument(0));
                if_has(&mut block, NAMESPACES, refusal);
                if_has(&mut block, libc::CLONE_THREAD as u32, ALLOW);
                block.push(verdict(refusal));
            }
            Self::Missing => block.push(verdict(fails_with(libc::ENOSYS))),
        }
        block
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::interpreter::{Data, run};

    const REFUSED: u32 = fails_with(libc::EPERM);
    const OWN: u32 = 77;

    const ROLES: [Role; 3] = [Role::Gateway, Role::LinkOpener, Role::HostSideOpener];

    /// Verdict of a call with its first three arguments.
    fn judged(role: Role, number: c_long, [first, second, third]: [u64; 3]) -> u32 {
        let arch = ARCH.unwrap();
        let data = Data { number: number as u32, arch, arguments: [first, second, third, 0, 0, 0] };
        run(&program(role, arch, OWN, REFUSED), data)
    }

    #[test]
    fn sandbox_calls_outside_of_the_list_are_refused() {
        let refused = [
            libc::SYS_execve,
            libc::SYS_execveat,
            libc::SYS_pivot_root,
            libc::SYS_chroot,
            libc::SYS_ptrace,
            libc::SYS_process_vm_readv,
            libc::SYS_process_vm_writev,
            libc::SYS_io_uring_setup,
            libc::SYS_kill,
            libc::SYS_pidfd_send_signal,
            libc::SYS_init_module,
            libc::SYS_finit_module,
            libc::SYS_kexec_load,
            libc::SYS_keyctl,
            libc::SYS_perf_event_open,
            libc::SYS_userfaultfd,
            libc::SYS_setresuid,
            libc::SYS_personality,
            libc::SYS_pkey_mprotect,
            libc::SYS_open_by_handle_at,
            libc::SYS_seccomp,
            libc::SYS_quotactl,
            libc::SYS_reboot,
            libc::SYS_mknodat,
            libc::SYS_symlinkat,
        ];
        for role in ROLES {
            for number in refused {
                assert_eq!(judged(role, number, [0; 3]), REFUSED, "{role:?} {number}");
            }
            for number in role.listed() {
                assert_eq!(judged(role, number, [u64::MAX; 3]), ALLOW, "{role:?} {number}");
            }
            // A call with 32-bit pointers (x32).
            assert_eq!(judged(role, libc::SYS_read | 1 << 30, [0; 3]), REFUSED);
        }
        let of_host_side = [libc::SYS_setns, libc::SYS_mount, libc::SYS_umount2, libc::SYS_unshare];
        let of_gateway = [libc::SYS_listen, libc::SYS_ftruncate, libc::SYS_pidfd_getfd, libc::SYS_capset];
        let of_links = [libc::SYS_fchownat, libc::SYS_renameat2];
        for (role, numbers) in [
            (Role::Gateway, &of_host_side[..3]),
            (Role::LinkOpener, &of_host_side[..]),
            (Role::LinkOpener, &of_gateway),
            (Role::HostSideOpener, &of_gateway),
            (Role::HostSideOpener, &of_links),
            (Role::Gateway, &of_links[..1]),
        ] {
            for &number in numbers {
                assert_eq!(judged(role, number, [u64::MAX; 3]), REFUSED, "{role:?} {number}");
            }
        }
    }

    #[test]
    fn sandbox_calls_are_allowed_by_argument() {
        let exec = (libc::PROT_READ | libc::PROT_EXEC) as u64;
        let thread = (libc::CLONE_VM | libc::CLONE_FS | libc::CLONE_FILES | libc::CLONE_THREAD) as u64;
        let net = libc::CLONE_NEWNET as u64;
        let cases = [
            (libc::SYS_socket, [1, 0, 0], ALLOW),
            (libc::SYS_socket, [2, 0, 0], ALLOW),
            (libc::SYS_socket, [16, 0, 0], ALLOW),
            (libc::SYS_socket, [17, 0, 0], REFUSED), // AF_PACKET
            (libc::SYS_socket, [38, 0, 0], REFUSED), // AF_ALG
            (libc::SYS_socket, [40, 0, 0], REFUSED), // AF_VSOCK
            (libc::SYS_ioctl, [3, 0x4004_54ca, 0], ALLOW),
            (libc::SYS_ioctl, [3, 0x5412, 0], REFUSED), // TIOCSTI
            (libc::SYS_ioctl, [3, 0x8916, 0], REFUSED), // SIOCSIFADDR
            (libc::SYS_ioctl, [3, 0xffff_ffff_0000_8946, 0], ALLOW),
            (libc::SYS_mmap, [0, 4096, 3], ALLOW),
            (libc::SYS_mmap, [0, 4096, exec], REFUSED),
            (libc::SYS_mprotect, [0, 4096, 3], ALLOW),
            (libc::SYS_mprotect, [0, 4096, exec], REFUSED),
            (libc::SYS_prctl, [15, 0, 0], ALLOW),
            (libc::SYS_prctl, [4, 1, 0], REFUSED), // PR_SET_DUMPABLE
            // PR_GET_AUXV, which kernels before 6.4 lack: no part of the gateway may need it.
            (libc::SYS_prctl, [0x4155_5856, 0, 0], REFUSED),
            (libc::SYS_ioctl, [3, 0x8914, 0], REFUSED), // SIOCSIFFLAGS
            (libc::SYS_bpf, [2, 0, 0], ALLOW),
            (libc::SYS_bpf, [5, 0, 0], REFUSED), // BPF_PROG_LOAD
            (libc::SYS_bpf, [8, 0, 0], REFUSED), // BPF_PROG_ATTACH
            (libc::SYS_unshare, [libc::CLONE_FILES as u64, 0, 0], ALLOW),
            (libc::SYS_unshare, [libc::CLONE_FILES as u64 | net, 0, 0], REFUSED),
            (libc::SYS_tgkill, [OWN.into(), 1, 6], ALLOW),
            (libc::SYS_tgkill, [1, 1, 9], REFUSED),
            (libc::SYS_clone, [thread, 0, 0], ALLOW),
            (libc::SYS_clone, [thread | net, 0, 0], REFUSED),
            (libc::SYS_clone, [libc::SIGCHLD as u64, 0, 0], REFUSED),
            (libc::SYS_clone3, [0; 3], fails_with(libc::ENOSYS)),
        ];
        for (number, arguments, want) in cases {
            assert_eq!(judged(Role::Gateway, number, arguments), want, "{number} {arguments:x?}");
        }
        let user = libc::CLONE_NEWUSER as u64;
        let (links, host_side) = (Role::LinkOpener, Role::HostSideOpener);
        let cases = [
            (links, libc::SYS_socket, [17, 0, 0], ALLOW),
            (links, libc::SYS_socket, [44, 0, 0], ALLOW),   // AF_XDP
            (links, libc::SYS_socket, [38, 0, 0], REFUSED), // AF_ALG
            (host_side, libc::SYS_socket, [17, 0, 0], ALLOW),
            (host_side, libc::SYS_socket, [44, 0, 0], REFUSED),
            (links, libc::SYS_ioctl, [3, 0x8914, 0], ALLOW),
            (links, libc::SYS_ioctl, [3, 0x8916, 0], REFUSED), // SIOCSIFADDR
            (host_side, libc::SYS_ioctl, [3, 0x5412, 0], REFUSED),
            (links, libc::SYS_bpf, [5, 0, 0], ALLOW),
            (links, libc::SYS_bpf, [8, 0, 0], REFUSED),
            (host_side, libc::SYS_bpf, [5, 0, 0], REFUSED),
            (links, libc::SYS_clone, [thread, 0, 0], REFUSED),
            (host_side, libc::SYS_clone, [thread, 0, 0], REFUSED),
            (links, libc::SYS_prctl, [4, 1, 0], REFUSED),
            (host_side, libc::SYS_prctl, [4, 0, 0], ALLOW),
            (host_side, libc::SYS_prctl, [15, 0, 0], REFUSED),
            (host_side, libc::SYS_setns, [3, net, 0], ALLOW),
            (host_side, libc::SYS_setns, [3, 0, 0], REFUSED),
            (host_side, libc::SYS_setns, [3, user, 0], REFUSED),
            (host_side, libc::SYS_unshare, [net | user, 0, 0], ALLOW),
            (host_side, libc::SYS_unshare, [libc::CLONE_NEWNS as u64, 0, 0], REFUSED),
        ];
        for (role, number, arguments, want) in cases {
            assert_eq!(judged(role, number, arguments), want, "{role:?} {number} {arguments:x?}");
        }
        // Limits of the own process, and of no other.
        for role in ROLES {
            assert_eq!(judged(role, libc::SYS_prlimit64, [0, 7, 0]), ALLOW);
            assert_eq!(judged(role, libc::SYS_prlimit64, [OWN.into(), 7, 0]), REFUSED);
        }
    }

    #[test]
    fn sandbox_other_architecture_ends_the_process() {
        let program = program(Role::Gateway, ARCH.unwrap(), OWN, REFUSED);
        let data = Data { number: libc::SYS_read as u32, arch: 0x4000_0003, arguments: [0; 6] };
        assert_eq!(run(&program, data), KILL);
    }

    #[test]
    fn sandbox_lists_name_each_call_once() {
        for role in ROLES {
            let mut all: Vec<c_long> = role.checked().map(|(number, _)| number).chain(role.listed()).collect();
            let count = all.len();
            all.sort_unstable();
            all.dedup();
            assert_eq!(all.len(), count, "{role:?}");
        }
    }
}
