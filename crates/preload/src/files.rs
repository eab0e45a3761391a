//! Functions that open files: those of `/proc/net` are replaced by the gateway's, as memory files; [`sysctl`] handles
//! those of `/proc/sys/net`, and [`LinkFile`] those of links in `/sys`.

use std::ffi::CStr;

use libc::{c_int, c_uint};

use crate::connection::unix_socket;
use crate::errno::{Errno, checked, returned};
use crate::fd::Fd;
use crate::interfaces::LinkFile;
use crate::memory_file::in_memory;
use crate::program_memory::{Stream, Text};
use crate::replaced::replaced;
use crate::{gateway, libc_next, sys, sysctl, table};

/// Names of the gateway's files.
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
/// Files with socket data only: on the gateway's host side the kernel's own are used.
const OF_SOCKETS: [&[u8]; 3] = [b"dev_mcast", b"igmp", b"igmp6"];
/// Maximum length of a file.
const MAX_LEN: usize = 256 << 20;

/// Opens the gateway's file if `path` is one of [`NAMES`]. `ENOENT`: the gateway does not have the file.
fn ours(path: &CStr) -> Option<Result<c_int, Errno>> {
    let bytes = path.to_bytes();
    let name = bytes.strip_prefix(b"/proc/net/").or_else(|| bytes.strip_prefix(b"/proc/self/net/"))?;
    if !NAMES.contains(&name) && !is_of_link(name) {
        return None;
    }
    gateway::address()?;
    let is_on_host_side = gateway::is_on_host_side();
    if is_on_host_side && OF_SOCKETS.contains(&name) {
        return None;
    }
    let text = ask(name).map(|text| match is_on_host_side {
        true => joined(name, &text, &of_kernel(path).unwrap_or_default()),
        false => text,
    });
    Some(text.ok_or(Errno(libc::ENOENT)).and_then(|text| in_memory(&text, libc::O_CLOEXEC)))
}

/// Contents of the kernel's own file.
fn of_kernel(path: &CStr) -> Option<Vec<u8>> {
    let fd = sys::open(path).ok()?;
    let mut text = Vec::new();
    let mut buffer = [0_u8; 4096];
    while text.len() < MAX_LEN {
        match sys::read(fd.0, &mut buffer) {
            Ok(0) => return Some(text),
            Ok(len) => text.extend(buffer.get(..len)?),
            Err(Errno(libc::EINTR)) => {}
            Err(_) => return None,
        }
    }
    None
}

/// Combines the gateway's file with the kernel's lines for sockets: the gateway's own lines for sockets are all zero.
/// Both keep their order.
fn joined(name: &[u8], gateway: &[u8], kernel: &[u8]) -> Vec<u8> {
    let of_sockets: &[&[u8]] = match name {
        b"snmp" => &[b"Tcp:", b"Udp:", b"UdpLite:"],
        b"snmp6" => &[b"Udp6", b"UdpLite6"],
        b"netstat" => &[b"TcpExt:", b"MPTcpExt:"],
        b"sockstat" => &[b"sockets:", b"TCP:", b"UDP:", b"UDPLITE:", b"RAW:"],
        b"sockstat6" => &[b"TCP6:", b"UDP6:", b"UDPLITE6:", b"RAW6:"],
        _ => &[],
    };
    let is_of_sockets = |line: &&[u8]| of_sockets.iter().any(|start| line.starts_with(start));
    if !lines(kernel).any(|line| is_of_sockets(&line)) {
        return gateway.to_vec();
    }
    let before = lines(kernel).take_while(is_of_sockets);
    let after = lines(kernel).skip_while(is_of_sockets).filter(is_of_sockets);
    let own = lines(gateway).filter(|line| !is_of_sockets(line));
    before.chain(own).chain(after).flatten().copied().collect()
}

fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split_inclusive(|&byte| byte == b'\n')
}

/// Tells whether a name is that of a link's file. Link names with characters that JSON would quote do not exist in the
/// gateway.
fn is_of_link(name: &[u8]) -> bool {
    let link = name.strip_prefix(b"dev_snmp6/").unwrap_or_default();
    !link.is_empty() && link.iter().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\' | b'/'))
}

/// Requests the text of a file from the gateway's control socket.
fn ask(name: &[u8]) -> Option<Vec<u8>> {
    let address = gateway::beside(b".sock")?;
    let fd = unix_socket(libc::SOCK_STREAM | libc::SOCK_CLOEXEC).ok()?;
    sys::connect(fd.0, &address).ok()?;
    let request = [b"{\"request\":\"stat-file\",\"name\":\"", name, b"\"}\n"].concat();
    if sys::send(fd.0, &request, libc::MSG_NOSIGNAL) != Ok(request.len()) {
        return None;
    }
    let mut line = Vec::new();
    let mut buffer = [0_u8; 4096];
    while line.last() != Some(&b'\n') && line.len() < MAX_LEN {
        match sys::read(fd.0, &mut buffer) {
            Err(Errno(libc::EINTR)) => {}
            len => line.extend(buffer.get(..len.ok().filter(|&len| len > 0)?)?),
        }
    }
    unquoted(&line)
}

/// Text in a reply. The text consists of names, numbers and white space, so no other escapes occur.
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

/// Opens the gateway's file in place of `path`, if it is one of the gateway's.
fn opened(at: c_int, path: Text<'_>, flags: c_int) -> Option<Result<c_int, Errno>> {
    let ours = ours(path.get()?).or_else(|| sysctl::open(at, path, flags));
    ours.or_else(|| of_link(path.get()?).map(|file| file.open(flags)))
}

/// File of a link in `/sys`, by its path.
fn of_link(path: &CStr) -> Option<LinkFile> {
    gateway::address()?;
    LinkFile::of_path(path.to_bytes())
}

/// Gateway's counterpart of a file of the host's kernel.
enum Counterpart {
    Sysctl(sysctl::Name),
    Link(LinkFile),
}

impl Counterpart {
    /// Counterpart of the file that is open as `fd`, which may have been opened under any name.
    fn of_hosts(fd: c_int) -> Option<Self> {
        gateway::address().filter(|_| fd >= 0)?;
        sysctl::Name::of_hosts(fd).map(Self::Sysctl).or_else(|| LinkFile::of_hosts(fd).map(Self::Link))
    }

    fn open(&self, flags: c_int) -> Result<c_int, Errno> {
        match self {
            Self::Sysctl(name) => name.open(flags),
            Self::Link(file) => file.open(flags),
        }
    }
}

macro_rules! opens {
    ($($name:ident($($mode:ident)?);)*) => {
        replaced! {$(
            #[doc = concat!("`", stringify!($name), "(2)`. Its mode, where there is one, comes where a third argument does.")]
            fn $name(path: Text<'_>, flags: c_int $(, $mode: c_uint)?) -> c_int, next {
                opened(libc::AT_FDCWD, path, flags).map_or_else(|| returned_instead(next(), flags), returned)
            }
        )*}
    };
}

macro_rules! opens_at {
    ($($name:ident($($mode:ident)?);)*) => {
        replaced! {$(
            #[doc = concat!("`", stringify!($name), "(2)`, whose mode comes where a fourth argument does.")]
            fn $name(at: c_int, path: Text<'_>, flags: c_int $(, $mode: c_uint)?) -> c_int, next {
                opened(at, path, flags).map_or_else(|| returned_instead(next(), flags), returned)
            }
        )*}
    };
}

macro_rules! creates {
    ($($name:ident;)*) => {
        replaced! {$(
            #[doc = concat!("`", stringify!($name), "(2)`.")]
            fn $name(path: Text<'_>, mode: c_uint) -> c_int, next {
                let flags = libc::O_WRONLY | libc::O_CREAT;
                opened(libc::AT_FDCWD, path, flags).map_or_else(|| returned_instead(next(), flags), returned)
            }
        )*}
    };
}

macro_rules! streams {
    ($($name:ident;)*) => {
        replaced! {$(
            #[doc = concat!("`", stringify!($name), "(3)`.")]
            fn $name(path: Text<'_>, mode: Text<'_>) -> Stream<'static>, next {
                let Some(mode) = mode.get() else { return next() };
                let flags = sysctl::flags_of(mode);
                if let Some(file) = opened(libc::AT_FDCWD, path, flags) {
                    return stream(file, mode);
                }
                let found = next();
                match of_hosts(found) {
                    None => found,
                    Some(counterpart) => {
                        close(found);
                        stream(counterpart.open(flags), mode)
                    }
                }
            }
        )*}
    };
}

macro_rules! streams_again {
    ($($name:ident;)*) => {
        replaced! {$(
            #[doc = concat!("`", stringify!($name), "(3)`.")]
            fn $name(path: Text<'_>, mode: Text<'_>, stream: Stream<'_>) -> Stream<'static>, next {
                let flags = sysctl::flags_of(mode.get().unwrap_or_default());
                let found = opened(libc::AT_FDCWD, path, flags);
                let stream = match &found {
                    None => next(),
                    // SAFETY: the stream and the mode are the program's.
                    Some(_) => unsafe { libc_next::$name(c"/dev/null".into(), mode, stream) },
                };
                let Some(found) = found.or_else(|| of_hosts(stream).map(|it| it.open(flags))) else {
                    return stream;
                };
                returned(found.and_then(|fd| become_file(stream, Fd(fd))).inspect_err(|_| close(stream)))
            }
        )*}
    };
}

/// Returns a descriptor, or the gateway's file instead if there is a counterpart of the descriptor's file.
fn returned_instead(fd: c_int, flags: c_int) -> c_int {
    let Some(counterpart) = Counterpart::of_hosts(fd) else { return fd };
    drop(Fd(fd));
    returned(counterpart.open(flags))
}

/// Stream for an opened file.
fn stream(file: Result<c_int, Errno>, mode: &CStr) -> Stream<'static> {
    match file {
        Ok(fd) if table::is_file(fd) => sysctl::stream::of(fd),
        Ok(fd) => sys::stream(fd, mode),
        Err(errno) => returned(Err(errno)),
    }
}

/// Gateway's counterpart of a stream's file.
fn of_hosts(stream: Stream<'_>) -> Option<Counterpart> {
    gateway::address()?;
    Counterpart::of_hosts(sys::number(stream)?)
}

/// Closes a stream, if it is not null, that the program does not get.
fn close(stream: Stream<'_>) {
    if !stream.is_null() {
        // SAFETY: the program does not get the stream.
        unsafe { libc_next::fclose(stream) };
    }
}

/// Replaces the file of an open stream by `fd`.
fn become_file(stream: Stream<'static>, fd: Fd) -> Result<Stream<'static>, Errno> {
    let to = sys::number(stream).ok_or_else(Errno::last)?;
    // SAFETY: the call takes no pointers.
    checked(unsafe { libc_next::dup2(fd.0, to) })?;
    table::duplicated(fd.0, to);
    Ok(stream)
}

opens! { open(mode); open64(mode); __open_2(); __open64_2(); }
opens_at! { openat(mode); openat64(mode); __openat_2(); __openat64_2(); }
creates! { creat; creat64; }
streams! { fopen; fopen64; }
streams_again! { freopen; freopen64; }

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_sockets_are_the_kernels_and_others_the_gateways() {
        let join = |name: &str, gateway: &str, kernel: &str| {
            String::from_utf8(joined(name.as_bytes(), gateway.as_bytes(), kernel.as_bytes())).unwrap()
        };
        let gateway = "Ip: A\nIp: 1\nIcmp: A\nIcmp: 1\nTcp: A\nTcp: 0\nUdp: A\nUdp: 0\nUdpLite: A\nUdpLite: 0\n";
        let kernel = "Ip: A\nIp: 2\nIcmp: A\nIcmp: 2\nTcp: A B\nTcp: 2 3\nUdp: A\nUdp: 2\nUdpLite: A\nUdpLite: 2\n";
        let want = "Ip: A\nIp: 1\nIcmp: A\nIcmp: 1\nTcp: A B\nTcp: 2 3\nUdp: A\nUdp: 2\nUdpLite: A\nUdpLite: 2\n";
        assert_eq!(join("snmp", gateway, kernel), want);
        assert_eq!(join("snmp", gateway, ""), gateway);
        assert_eq!(join("xfrm_stat", gateway, kernel), gateway);
        let netstat = join("netstat", "TcpExt: A\nIpExt: 1\n", "TcpExt: B\nIpExt: 2\nMPTcpExt: C\n");
        assert_eq!(netstat, "TcpExt: B\nIpExt: 1\nMPTcpExt: C\n");
        let sockstat = join("sockstat", "sockets: used 0\nFRAG: inuse 1\n", "sockets: used 7\nFRAG: inuse 0\n");
        assert_eq!(sockstat, "sockets: used 7\nFRAG: inuse 1\n");
        assert_eq!(join("snmp6", "Ip6A 1\nUdp6A 0\n", "Ip6A 2\nUdp6A 2\n"), "Ip6A 1\nUdp6A 2\n");
    }

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
