//! Calls that wait for descriptors. Netlink sockets are handed to the keeper before, so that they survive a restart of
//! the gateway.

use libc::{c_int, epoll_event, fd_set, nfds_t, pollfd, sigset_t, size_t, timespec, timeval};

use crate::reconnect;
use crate::replaced::replaced;

macro_rules! waits {
    ($($name:ident($($arg:ident: $type:ty),*);)*) => {
        replaced! {$(
            #[doc = concat!("`", stringify!($name), "(2)`, before which new netlink sockets are kept.")]
            fn $name($($arg: $type),*) -> c_int, next {
                reconnect::keep_new();
                next()
            }
        )*}
    };
}

waits! {
    poll(fds: *mut pollfd, count: nfds_t, timeout_ms: c_int);
    __poll_chk(fds: *mut pollfd, count: nfds_t, timeout_ms: c_int, room: size_t);
    ppoll(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t);
    __ppoll_chk(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t, room: size_t);
    select(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval);
    pselect(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *const timespec,
        mask: *const sigset_t);
    epoll_wait(fd: c_int, events: *mut epoll_event, room: c_int, timeout_ms: c_int);
    epoll_pwait(fd: c_int, events: *mut epoll_event, room: c_int, timeout_ms: c_int, mask: *const sigset_t);
    epoll_pwait2(fd: c_int, events: *mut epoll_event, room: c_int, timeout: *const timespec, mask: *const sigset_t);
}
