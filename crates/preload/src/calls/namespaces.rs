//! `unshare(2)` and `setns(2)`: creating or entering a network namespace is refused, since netlink would still be the
//! gateway's there. The seccomp filter refuses the same to programs that do not load the library.

use libc::c_int;

use crate::errno::{Errno, returned};
use crate::replaced::replaced;
use crate::{gateway, report, sys};

replaced! {
    /// `unshare(2)`.
    fn unshare(what: c_int) -> c_int, next {
        if gateway::address().is_some() && what & libc::CLONE_NEWNET != 0 {
            return returned(Err(refuse("unshare")));
        }
        next()
    }

    /// `setns(2)`.
    fn setns(fd: c_int, kind: c_int) -> c_int, next {
        // A file of `/proc/PID/ns` or `/run/netns` has its kind itself.
        let is_network =
            kind & libc::CLONE_NEWNET != 0 || (kind == 0 && sys::namespace_kind(fd) == Ok(libc::CLONE_NEWNET));
        if gateway::address().is_some() && is_network {
            return returned(Err(refuse("setns")));
        }
        next()
    }
}

fn refuse(call: &str) -> Errno {
    report::line(format_args!(
        "{}: network namespaces are neither entered nor made ({call}), since netlink would still be the gateway's there. \
         Start the program without `fatpath exec`, or begin in the namespace: `ip netns exec NAME fatpath exec ...`.",
        report::program()
    ));
    Errno(libc::EPERM)
}
