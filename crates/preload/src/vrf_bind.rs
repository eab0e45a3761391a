//! Local addresses of sockets that are bound to a device of a VRF: those of the VRF, as on Linux (`__inet_bind`, `__inet6_bind`). The
//! kernel of the host side has no VRFs, and would accept the addresses of all of them.

use std::mem;
use std::net::{Ipv4Addr, Ipv6Addr};

use libc::{c_int, sockaddr_in, sockaddr_in6};

use crate::errno::Errno;
use crate::program_memory::Bytes;
use crate::{interfaces, session};

/// Checks the address of a `bind(2)`.
///
/// # Errors
/// `EADDRNOTAVAIL`: the address is not one of the VRF; the gateway's error.
pub(crate) fn check(fd: c_int, to: Bytes<'_>) -> Result<(), Errno> {
    let Some(addr) = unicast(to) else { return Ok(()) };
    let device = session::option(fd, libc::SOL_SOCKET, libc::SO_BINDTOIFINDEX).unwrap_or(0);
    let is_any = |name| session::option(fd, libc::SOL_IP, name).unwrap_or(0) != 0;
    if device == 0 || is_any(libc::IP_FREEBIND) || is_any(libc::IP_TRANSPARENT) {
        return Ok(());
    }
    if interfaces::may_bind(device, &addr)? { Ok(()) } else { Err(Errno(libc::EADDRNOTAVAIL)) }
}

/// Bytes of an address of one host in a `sockaddr`, unless the address is of the scope of a link.
fn unicast(to: Bytes<'_>) -> Option<Vec<u8>> {
    let mut bytes = [0; mem::size_of::<sockaddr_in6>()];
    let len = to.copy_to(&mut bytes);
    let family = c_int::from(u16::from_ne_bytes([bytes[0], bytes[1]]));
    let v4 = match family {
        libc::AF_INET if len >= mem::size_of::<sockaddr_in>() => *bytes[4..].first_chunk()?,
        libc::AF_INET6 if len >= mem::size_of::<sockaddr_in6>() => {
            let v6 = Ipv6Addr::from(*bytes[8..].first_chunk::<16>()?);
            match v6.to_ipv4_mapped() {
                Some(v4) => v4.octets(),
                None if v6.is_unspecified() || v6.is_multicast() || v6.is_unicast_link_local() => return None,
                None => return Some(v6.octets().to_vec()),
            }
        }
        _ => return None,
    };
    let addr = Ipv4Addr::from(v4);
    let is_one = !(addr.is_unspecified() || addr.is_multicast() || addr.is_broadcast());
    is_one.then(|| v4.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_host_are_checked() {
        let v4 = |addr: &str| {
            let addr: Ipv4Addr = addr.parse().unwrap();
            [&(libc::AF_INET as u16).to_ne_bytes()[..], &[0, 80], &addr.octets(), &[0; 8]].concat()
        };
        let v6 = |addr: &str| {
            let addr: Ipv6Addr = addr.parse().unwrap();
            [&(libc::AF_INET6 as u16).to_ne_bytes()[..], &[0, 80], &[0; 4], &addr.octets(), &[0; 4]].concat()
        };
        let ipv6: Ipv6Addr = "2001:db8::1".parse().unwrap();
        let cases = [
            (v4("10.0.0.1"), Some(vec![10, 0, 0, 1])),
            (v6("::ffff:10.0.0.1"), Some(vec![10, 0, 0, 1])),
            (v6("2001:db8::1"), Some(ipv6.octets().to_vec())),
            (v4("0.0.0.0"), None),
            (v4("255.255.255.255"), None),
            (v4("224.0.0.5"), None),
            (v6("::"), None),
            (v6("::ffff:0.0.0.0"), None),
            (v6("fe80::1"), None),
            (v6("ff02::1"), None),
            (v4("10.0.0.1")[..15].to_vec(), None),
            (v6("2001:db8::1")[..27].to_vec(), None),
            (vec![0; 1], None),
            (vec![0; 28], None),
        ];
        for (bytes, want) in cases {
            assert_eq!(unicast(bytes[..].into()), want, "{bytes:?}");
        }
    }
}
