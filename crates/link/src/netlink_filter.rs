//! Filter of a netlink socket that receives notifications.

use std::io;
use std::os::fd::BorrowedFd;

use crate::steering;
use crate::sys::cbpf;

/// Keeps notifications of changes by the socket with that port from `socket`, whose reader they would wake. Where the kernel fills
/// in no port, they arrive.
///
/// # Errors
/// Error of setsockopt(2).
pub fn hear_other_ports(socket: BorrowedFd<'_>, port: u32) -> io::Result<()> {
    cbpf::filter(socket, &steering::of_other_ports(port))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::net::netlink::{SocketAddrNetlink, USERSOCK};
    use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
    use rustix::net::{bind, getsockname, recv, sendto, socket_with};

    use super::*;

    #[test]
    fn messages_of_one_port_alone_are_kept_out() {
        let socket =
            || socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, Some(USERSOCK)).unwrap();
        let (from, to) = (socket(), socket());
        bind(&to, &SocketAddrNetlink::new(0, 0)).unwrap();
        let address = SocketAddrNetlink::try_from(getsockname(&to).unwrap()).unwrap();
        hear_other_ports(to.as_fd(), 0x0102_0304).unwrap();
        // `struct nlmsghdr`: length, type, flags, number, port.
        for port in [0x0102_0304_u32, 0x0403_0201, 0x0102_0304, 0] {
            let message = [&16_u32.to_ne_bytes()[..], &[0; 8], &port.to_ne_bytes()].concat();
            sendto(&from, &message, SendFlags::empty(), &address).unwrap();
        }
        let mut buffer = [0; 32];
        let mut ports = Vec::new();
        while let Ok((len, _)) = recv(&to, buffer.as_mut_slice(), RecvFlags::DONTWAIT) {
            assert_eq!(len, 16);
            ports.push(u32::from_ne_bytes(buffer[12..16].try_into().unwrap()));
        }
        assert_eq!(ports, [0x0403_0201, 0]);
    }
}
