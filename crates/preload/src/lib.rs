//! `libfatpath_preload.so`: has an unmodified program's netlink sockets reach a fatpath gateway.
//!
//! `fatpath exec` puts this library in front of the C library (`LD_PRELOAD`) and names the gateway's netlink socket
//! (`FATPATH_NETLINK`). From then on a socket of `AF_NETLINK` and one of the protocols that the gateway serves
//! (`NETLINK_ROUTE`, `NETLINK_XFRM`, `NETLINK_GENERIC`) is a connection to it ([`nlsock`]), and what asks the kernel for
//! network interfaces asks the gateway. All other calls go on as they came.
//!
//! Such a connection is a descriptor of the kernel, so that `poll`, `epoll`, `fork`, `close`, close-on-exec and signals
//! need nothing from here, but that one that was closed becomes the next socket where nobody can tell (`spare`). What differs
//! from a netlink socket is the word in front of each datagram and the addresses: the functions that see those are the ones
//! taken over (`calls`). They keep no more state than which descriptors are whose, allocate nothing, hold no lock while they
//! wait, and can be cancelled where the C library's can.
//!
//! And a key manager's sockets of UDP ports 500 and 4500 are the gateway's, which has ESP there (`ike`), and files of counters and
//! of `/proc/sys/net` are the gateway's (`files`, `sysctl`).
//!
//! Limits: programs of another C library, static or privileged ones (`AT_SECURE`) do not load this library; system calls
//! that a program makes without the C library, `io_uring`, and netlink sockets that it inherits over `execve` or as
//! `SCM_RIGHTS` are not seen. The C library's own lookups (`getaddrinfo`) go on asking the kernel.

mod calls;
mod errno;
mod files;
mod ike;
mod interfaces;
mod next;
mod receive;
mod send;
mod session;
mod spare;
mod sysctl;
mod table;
mod unsaid;
