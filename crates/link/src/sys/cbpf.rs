//! Classic BPF programs of sockets (Linux `Documentation/networking/filter.rst`). No program needs a privilege beyond the socket's own.

use std::ffi::c_int;
use std::io;
use std::os::fd::BorrowedFd;

use super::socket::set_bytes;

/// Instruction of a program: `struct sock_filter`.
pub(crate) type Instruction = libc::sock_filter;

/// Sets the program that chooses the socket of a `SO_REUSEPORT` group for a datagram, by its position in the order in which the sockets
/// joined. The program reads the payload.
pub(crate) fn steer_group(fd: BorrowedFd<'_>, program: &[Instruction]) -> io::Result<()> {
    set_program(fd, libc::SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_CBPF, program)
}

/// Sets the program that chooses the socket of a `PACKET_FANOUT_CBPF` group for a frame, by its position. The program reads the frame from
/// its network header on.
pub(crate) fn steer_fanout(fd: BorrowedFd<'_>, program: &[Instruction]) -> io::Result<()> {
    set_program(fd, libc::SOL_PACKET, libc::PACKET_FANOUT_DATA, program)
}

/// Sets the filter of a socket, which replaces the one before: the program returns how many bytes of a packet the socket receives.
pub(crate) fn filter(fd: BorrowedFd<'_>, program: &[Instruction]) -> io::Result<()> {
    set_program(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, program)
}

fn set_program(fd: BorrowedFd<'_>, level: c_int, name: c_int, program: &[Instruction]) -> io::Result<()> {
    let len = u16::try_from(program.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    // `struct sock_fprog`: the length, and the address behind the padding.
    let mut bytes = [0; size_of::<libc::sock_fprog>()];
    let address = program.as_ptr().expose_provenance().to_ne_bytes();
    let at = std::mem::offset_of!(libc::sock_fprog, filter);
    bytes[..2].copy_from_slice(&len.to_ne_bytes());
    bytes[at..at + address.len()].copy_from_slice(&address);
    // The kernel copies the program during the call, and verifies it.
    set_bytes(fd, level, name, &bytes)
}
