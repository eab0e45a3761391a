//! `libfatpath_preload.so`: connects an unmodified program's netlink sockets to a fatpath gateway.
//!
//! # Decides
//! Redirection of a program's calls. `fatpath exec` preloads this library before the C library (`LD_PRELOAD`) and names
//! the gateway's netlink socket (`FATPATH_NETLINK`). From then on:
//!
//! - A socket of `AF_NETLINK` with a protocol that the gateway serves (`NETLINK_ROUTE`, `NETLINK_XFRM`,
//!   `NETLINK_GENERIC`) is a connection to it ([`nlsock`]), and the gateway carries out requests of `ioctl` for network
//!   interfaces, routes, neighbours and bridges (`interfaces`). Look-ups go on after a program has shut itself in (`kept`).
//! - Sockets and options of packet filters are refused (`calls::netfilter`).
//! - A key manager's sockets of UDP ports 500 and 4500 are the gateway's, which has ESP there (`ike`), or on the
//!   gateway's host side ports that bypass policies (`bypass`).
//! - Files of counters and of `/proc/sys/net` are the gateway's (`files`, `sysctl`).
//! - Each started program gets the library's variables in any environment (`environment`). A program that would not
//!   load the library, or bypass it, is not started (`start_check`), nor is `ip vrf exec` (`vrf_exec`). Entering
//!   network namespaces is refused (`calls::namespaces`).
//! - All other calls are passed on unchanged.
//!
//! Pointers of the program are arguments of types whose values only its calls make (`program_memory`); `replaced` declares
//! functions with them, and `sys` has the library's own system calls.
//!
//! # Leaves to others
//! All semantics of netlink and IKE (crates `netlink` and `daemon`, by the words of [`nlsock`]); checks of programs and
//! the filter for calls that bypass this library ([`launch`]).
//!
//! # Limits
//! - 1024 connections of a process (`MAX_SLOTS` in `table.rs`), by descriptors below 65 536 (`MAX_FDS`); 64 open
//!   directories of `/proc/sys/net` (`MAX_OPEN` in `sysctl/directory.rs`); IKE messages of 65 507 bytes (`MAX_LEN` in
//!   `ike/mod.rs`).
//! - System calls without the C library are not seen; the seccomp filter of `fatpath exec` refuses those that would
//!   reach the host's network.
//! - Netlink sockets that a program inherits over `execve` or as `SCM_RIGHTS` are the kernel's.
//! - `getaddrinfo` in the C library gets no netlink socket and continues as if the host had addresses of both families.
//! - `wordexp(3)` starts its shell with the program's own environment.
//!
//! # Standards
//! No RFC, but for the non-ESP marker of RFC 3948 §2.2. The functions are those of POSIX and glibc; ld.so(8),
//! netlink(7).
//!
//! # Connections
//! Such a connection is a kernel descriptor, so that `poll`, `epoll`, `fork`, `close`, close-on-exec and signals work
//! without this library. A connection differs from a netlink socket in the word in front of each datagram and in the
//! addresses; the functions concerned are replaced (`calls`). They keep only a table of connections by descriptor,
//! allocate nothing (except to start the thread), hold no lock while they block, and can be cancelled where the C
//! library's can. Over a restart of the gateway a thread keeps the gateway's ends of the connections (`reconnect`).

mod bypass;
mod bypass_ports;
mod callbacks;
mod calls;
mod connection;
mod deferred_setup;
mod environment;
mod errno;
mod fd;
mod files;
mod gateway;
mod ike;
mod interfaces;
mod kept;
mod libc_next;
mod memory_file;
mod plain;
mod program_memory;
mod receive;
mod reconnect;
mod replaced;
mod report;
mod send;
mod session;
mod socket_filter;
mod stack;
mod start;
mod start_check;
mod switches;
mod sys;
mod sysctl;
mod table;
mod vrf_bind;
mod vrf_exec;
mod vrf_socket;
