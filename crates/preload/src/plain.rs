//! Structures of C that any bytes are a value of.

use libc::{c_int, c_uint, c_ulong};

/// Structure of numbers, addresses and arrays, for which any bytes are a value. It may have padding.
///
/// # Safety
/// Any bytes are a value of the type.
pub(crate) unsafe trait Plain: Copy {}

macro_rules! plain {
    ($($type:ty),* $(,)?) => {$(
        // SAFETY: the C library declares it with fields and unions of integers, addresses and arrays of these.
        unsafe impl Plain for $type {}
    )*};
}

plain! {
    u8, i8, u16, c_int, c_uint, c_ulong, libc::sockaddr, libc::sockaddr_in, libc::sockaddr_in6, libc::sockaddr_ll,
    libc::sockaddr_nl, libc::sockaddr_storage, libc::sockaddr_un, libc::in_pktinfo, libc::in6_pktinfo, libc::ucred,
    libc::cmsghdr, libc::msghdr, libc::timeval, libc::ifreq, libc::dirent, libc::stat, libc::statfs, libc::statx,
    libc::sock_fprog, libc::sock_filter, libc::Dl_info, libc::sigset_t,
}

/// Value of zeros alone.
pub(crate) const fn zeroed<T: Plain>() -> T {
    // SAFETY: any bytes are a value.
    unsafe { std::mem::zeroed() }
}
