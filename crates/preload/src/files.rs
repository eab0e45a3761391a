//! Files of `/proc/net`: a program that opens one gets the gateway's, as a file in memory.

use std::ffi::CStr;
use std::mem;

use libc::{FILE, c_char, c_int, c_uint};

use crate::errno::{Errno, checked, returned};
use crate::next;
use crate::session::{self, Fd};

/// Those that the gateway has.
const NAMES: [&[u8]; 13] = [
    b"snmp",
    b"snmp6",
    b"netstat",
    b"xfrm_stat",
    b"dev",
    b"if_inet6",
    b"dev_mcast",
    b"igmp",
    b"igmp6",
    b"route",
    b"arp",
    b"sockstat",
    b"sockstat6",
];
/// More than any of them has.
const MAX_LEN: usize = 256 << 20;

/// The gateway's file, if `path` is one: `ENOENT` if the gateway does not give it.
///
/// # Safety
/// `path`, if not null, is a C string.
unsafe fn ours(path: *const c_char) -> Option<Result<c_int, Errno>> {
    if path.is_null() {
        return None;
    }
    // SAFETY: the caller's word.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    let name = path.strip_prefix(b"/proc/net/").or_else(|| path.strip_prefix(b"/proc/self/net/"))?;
    let name = NAMES.iter().find(|&&known| known == name)?;
    session::gateway()?;
    Some(ask(name).and_then(|text| in_memory(&text)).ok_or(Errno(libc::ENOENT)))
}

/// The text of a file, from the gateway's control socket.
fn ask(name: &[u8]) -> Option<Vec<u8>> {
    let address = session::beside(b".sock")?;
    // SAFETY: it takes no pointers.
    let fd = Fd(checked(unsafe { next::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) }).ok()?);
    // SAFETY: the address is that long.
    let done = unsafe { libc::syscall(libc::SYS_connect, fd.0, &raw const address, mem::size_of_val(&address)) };
    let request = [b"{\"request\":\"stat-file\",\"name\":\"", name, b"\"}\n"].concat();
    // SAFETY: there are as many bytes.
    let sent =
        unsafe { libc::syscall(libc::SYS_sendto, fd.0, request.as_ptr(), request.len(), libc::MSG_NOSIGNAL, 0, 0) };
    if done != 0 || usize::try_from(sent) != Ok(request.len()) {
        return None;
    }
    let mut line = Vec::new();
    let mut buffer = [0_u8; 4096];
    while line.last() != Some(&b'\n') && line.len() < MAX_LEN {
        // SAFETY: there is as much room.
        let len = unsafe { libc::syscall(libc::SYS_read, fd.0, buffer.as_mut_ptr(), buffer.len()) };
        if len < 0 && Errno::last() == Errno(libc::EINTR) {
            continue;
        }
        line.extend(buffer.get(..usize::try_from(len).ok().filter(|&len| len > 0)?)?);
    }
    unquoted(&line)
}

/// The text that a reply quotes. It is names, numbers and white space, so no other escapes are in it.
fn unquoted(reply: &[u8]) -> Option<Vec<u8>> {
    let quoted = reply.strip_prefix(b"{\"reply\":\"stat-file\",\"text\":\"")?.strip_suffix(b"\"}\n")?;
    let mut text = Vec::with_capacity(quoted.len());
    let mut bytes = quoted.iter();
    while let Some(&byte) = bytes.next() {
        text.push(match byte {
            b'\\' => match bytes.next()? {
                b'n' => b'\n',
                b't' => b'\t',
                _ => return None,
            },
            byte => byte,
        });
    }
    Some(text)
}

/// A file in memory that holds `text`.
fn in_memory(text: &[u8]) -> Option<c_int> {
    // SAFETY: the name is a C string.
    let fd = checked(unsafe { libc::memfd_create(c"fatpath".as_ptr(), libc::MFD_CLOEXEC) }).ok()?;
    let fd = Fd(fd);
    // SAFETY: there are as many bytes. The place to read from stays the beginning.
    let written = unsafe { libc::syscall(libc::SYS_pwrite64, fd.0, text.as_ptr(), text.len(), 0) };
    if usize::try_from(written) != Ok(text.len()) {
        return None;
    }
    let made = fd.0;
    mem::forget(fd);
    Some(made)
}

macro_rules! opens {
    ($($name:ident;)*) => {$(
        #[doc = concat!("`", stringify!($name), "(2)`. Its mode, where there is one, comes where a third argument does.")]
        ///
        /// # Safety
        /// As the manual page says.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C-unwind" fn $name(path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
            // SAFETY: the caller's word.
            if let Some(file) = unsafe { ours(path) } {
                return returned(file);
            }
            // SAFETY: passed on.
            unsafe { next::$name(path, flags, mode) }
        }
    )*};
}

macro_rules! opens_at {
    ($($name:ident;)*) => {$(
        #[doc = concat!("`", stringify!($name), "(2)`, whose mode comes where a fourth argument does.")]
        ///
        /// # Safety
        /// As the manual page says.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C-unwind" fn $name(
            at: c_int,
            path: *const c_char,
            flags: c_int,
            mode: c_uint,
        ) -> c_int {
            // SAFETY: the caller's word.
            if let Some(file) = unsafe { ours(path) } {
                return returned(file);
            }
            // SAFETY: passed on.
            unsafe { next::$name(at, path, flags, mode) }
        }
    )*};
}

macro_rules! streams {
    ($($name:ident;)*) => {$(
        #[doc = concat!("`", stringify!($name), "(3)`.")]
        ///
        /// # Safety
        /// As the manual page says.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C-unwind" fn $name(path: *const c_char, mode: *const c_char) -> *mut FILE {
            // SAFETY: the caller's word.
            match unsafe { ours(path) } {
                // SAFETY: the descriptor is open, and the mode the caller's.
                Some(Ok(fd)) => return unsafe { libc::fdopen(fd, mode) },
                Some(Err(errno)) => return returned(Err(errno)),
                None => {}
            }
            // SAFETY: passed on.
            unsafe { next::$name(path, mode) }
        }
    )*};
}

opens! { open; open64; }
opens_at! { openat; openat64; }
streams! { fopen; fopen64; }

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_is_unquoted_or_no_file() {
        let reply = b"{\"reply\":\"stat-file\",\"text\":\"Ip: A B\\nIp: 1\\t2\\n\"}\n";
        assert_eq!(unquoted(reply).as_deref(), Some(&b"Ip: A B\nIp: 1\t2\n"[..]));
        for bad in [
            &b"{\"reply\":\"error\",\"message\":\"no\"}\n"[..],
            b"",
            b"{\"reply\":\"stat-file\",\"text\":\"\\u0041\"}\n",
        ] {
            assert_eq!(unquoted(bad), None);
        }
    }
}
