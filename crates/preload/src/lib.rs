//! `libfatpath_preload.so`: has an unmodified program's netlink sockets reach a fatpath gateway.
//!
//! `fatpath exec` puts this library in front of the C library (`LD_PRELOAD`) and names the gateway's netlink socket
//! (`FATPATH_NETLINK`). From then on a socket of `AF_NETLINK` and one of the protocols that the gateway serves
//! (`NETLINK_ROUTE`, `NETLINK_XFRM`, `NETLINK_GENERIC`) is a connection to it ([`nlsock`]), and what asks the kernel for
//! network interfaces asks the gateway. All other calls go on as they came.
//!
//! Such a connection is a descriptor of the kernel, so that `poll`, `epoll`, `fork`, `close`, close-on-exec and signals
//! work without this library. A connection differs from a netlink socket in the word in front of each datagram and in the
//! addresses; the functions that see those are replaced (`calls`). They keep no more state than which descriptors are whose,
//! allocate nothing (but where the thread is started), hold no lock while they wait, and can be cancelled where the C library's can.
//!
//! When the gateway ends, its ends of the connections are kept for the next one, by a thread (`reconnect`).
//!
//! And a key manager's sockets of UDP ports 500 and 4500 are the gateway's, which has ESP there (`ike`), or on the gateway's host side
//! ports that bypass policies (`bypass`); files of counters and
//! of `/proc/sys/net` are the gateway's (`files`, `sysctl`).
//!
//! Each program that is started gets the library's variables, whatever environment it is given (`environment`). One that
//! would not load the library, or not call it, is not started (`start_check`), nor is `ip vrf exec` (`vrf_exec`).
//! Network namespaces are not entered (`calls::namespaces`).
//!
//! Limits: system calls that a program makes without the C library are not seen; of these the seccomp filter of `fatpath
//! exec` refuses what would reach the host's network. Netlink sockets that a program inherits over `execve` or as
//! `SCM_RIGHTS` are the kernel's. `getaddrinfo` in the C library finds no netlink and goes on as if the host had addresses of
//! both families. `wordexp(3)` starts its shell with the environment that the program has.

mod bypass;
mod bypass_ports;
mod calls;
mod connection;
mod environment;
mod errno;
mod fd;
mod files;
mod gateway;
mod ike;
mod interfaces;
mod memory_file;
mod next;
mod receive;
mod reconnect;
mod report;
mod send;
mod session;
mod stack;
mod start;
mod start_check;
mod stream_functions;
mod switches;
mod sysctl;
mod table;
mod unsaid;
mod vrf_exec;
mod vrf_socket;
