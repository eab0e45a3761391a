//! `unshare(2)` and `setns(2)`: creating or entering a network namespace is refused, since netlink would still be the
//! gateway's there. The seccomp filter refuses the same to programs that do not load the library.

use libc::c_int;

use crate::errno::{Errno, returned};
use crate::{gateway, libc_next, report};

/// `unshare(2)`.
///
/// # Safety
/// As the manual page requires.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn unshare(what: c_int) -> c_int {
    if gateway::address().is_some() && what & libc::CLONE_NEWNET != 0 {
        return returned(Err(refuse("unshare")));
    }
    // SAFETY: passed on.
    unsafe { libc_next::unshare(what) }
}

/// `setns(2)`.
///
/// # Safety
/// As the manual page requires.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn setns(fd: c_int, kind: c_int) -> c_int {
    let is_network = kind & libc::CLONE_NEWNET != 0 || (kind == 0 && is_network_namespace(fd));
    if gateway::address().is_some() && is_network {
        return returned(Err(refuse("setns")));
    }
    // SAFETY: passed on.
    unsafe { libc_next::setns(fd, kind) }
}

/// Tells whether an open file of `/proc/PID/ns` or `/run/netns` is a network namespace.
fn is_network_namespace(fd: c_int) -> bool {
    const NS_GET_NSTYPE: c_int = 0xb703;
    // SAFETY: the request has no argument.
    let kind = unsafe { libc::syscall(libc::SYS_ioctl, fd, NS_GET_NSTYPE) };
    kind == libc::CLONE_NEWNET.into()
}

fn refuse(call: &str) -> Errno {
    report::line(format_args!(
        "{}: network namespaces are neither entered nor made ({call}), since netlink would still be the gateway's there. \
         Start the program without `fatpath exec`, or begin in the namespace: `ip netns exec NAME fatpath exec ...`.",
        report::program()
    ));
    Errno(libc::EPERM)
}
