//! Sockets and options of packet filters, which are refused: a kernel's rules would filter nothing that the gateway
//! forwards. The seccomp filter refuses the same to programs that do not load the library.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use libc::c_int;

use crate::errno::Errno;
use crate::{gateway, report};

/// Error for a netlink socket of the packet filter; `None`: any other socket, or the program may configure the filter
/// of the host side.
pub(super) fn refused_socket(domain: c_int, protocol: c_int) -> Option<Errno> {
    let is_of_filter = domain == libc::AF_NETLINK && protocol == libc::NETLINK_NETFILTER;
    if !is_of_filter || !is_without_filter() {
        return None;
    }
    Some(if has_libpcap() { Errno(launch::netfilter::NO_PROTOCOL) } else { refuse(launch::netfilter::NO_PROTOCOL) })
}

/// Tells whether the program has libpcap, which looks for the protocol whenever it lists interfaces, and goes on without.
/// A line on standard error would mislead `tshark`, which parses that of `dumpcap`.
fn has_libpcap() -> bool {
    // SAFETY: the name is a C string.
    !unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"pcap_findalldevs".as_ptr()) }.is_null()
}

/// Error for an option of a packet filter; `None` as for [`refused_socket`].
pub(super) fn refused_option(level: c_int, name: c_int) -> Option<Errno> {
    (launch::netfilter::is_option(level, name) && is_without_filter()).then(|| refuse(launch::netfilter::NO_OPTION))
}

fn is_without_filter() -> bool {
    gateway::address().is_some() && !gateway::has_host_firewall()
}

/// Prints the reason, once in a process: a program may try several ways.
fn refuse(errno: c_int) -> Errno {
    static IS_PRINTED: AtomicBool = AtomicBool::new(false);
    if !IS_PRINTED.swap(true, Relaxed) {
        report::line(format_args!(
            "{}: the gateway has no packet filter and no NAT: rules would not apply to packets that it forwards. \
             `fatpath exec --host-firewall` sets the rules for sockets on the gateway's host side.",
            report::program()
        ));
    }
    Errno(errno)
}
