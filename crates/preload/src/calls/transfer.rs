//! Functions that send and receive, under all their names.

use std::time::{Duration, Instant};

use libc::{c_int, c_uint, c_void, size_t, sockaddr, socklen_t, ssize_t, timespec};

use crate::errno::{Errno, returned};
use crate::program_memory::{AddressRoom, Bytes, CountedMessage, In, InOut, Message, Room, pieces};
use crate::receive::{is_received_next, receive, receive_message, source};
use crate::replaced::replaced;
use crate::table::{Slot, get, is_file};
use crate::{ike, send, sysctl};

replaced! {
    /// `send(2)`.
    fn send(fd: c_int, bytes: *const c_void, len: size_t, flags: c_int) -> ssize_t, next {
        let Some(slot) = get(fd) else { return next() };
        // SAFETY: the manual page requires that length.
        let bytes = unsafe { Bytes::new(bytes, len) };
        returned(send::send(fd, slot, &[bytes], Bytes::NONE, flags))
    }

    /// `sendto(2)`.
    fn sendto(
        fd: c_int, bytes: *const c_void, len: size_t, flags: c_int, to: *const sockaddr, to_len: socklen_t,
    ) -> ssize_t, next {
        let Some(slot) = get(fd) else { return next() };
        // SAFETY: the manual page requires that length.
        let bytes = unsafe { Bytes::new(bytes, len) };
        // SAFETY: the manual page requires that length.
        let to = unsafe { Bytes::new(to, to_len as usize) };
        returned(send::send(fd, slot, &[bytes], to, flags))
    }

    /// `write(2)`.
    fn write(fd: c_int, bytes: *const c_void, len: size_t) -> ssize_t, next {
        let slot = get(fd);
        if slot.is_none() && !is_file(fd) {
            return next();
        }
        // SAFETY: the manual page requires that length.
        let bytes = unsafe { Bytes::new(bytes, len) };
        returned(write_pieces(fd, slot, &[bytes]))
    }

    /// `writev(2)`.
    fn writev(fd: c_int, first: *const Bytes<'_>, count: c_int) -> ssize_t, next {
        let slot = get(fd);
        if slot.is_none() && !is_file(fd) {
            return next();
        }
        // SAFETY: the manual page requires that length.
        let pieces = number(count).and_then(|count| unsafe { pieces(first, count) });
        returned(pieces.and_then(|pieces| write_pieces(fd, slot, pieces)))
    }

    /// `sendmsg(2)`. Control messages are ignored: the gateway uses none.
    fn sendmsg(fd: c_int, message: In<'_, Message<Bytes<'_>>>, flags: c_int) -> ssize_t, next {
        match get(fd) {
            Some(slot) => returned(message.read().and_then(|message| send_message(fd, slot, &message, flags))),
            None if ike::is(fd) => returned(message.read().and_then(|message| ike::send(fd, &message, flags))),
            None => next(),
        }
    }

    /// `sendmmsg(2)`.
    fn sendmmsg(fd: c_int, first: InOut<'_, CountedMessage<Bytes<'_>>>, count: c_uint, flags: c_int) -> c_int, next {
        let Some(slot) = get(fd) else { return next() };
        // SAFETY: the manual page requires that length.
        let messages = unsafe { first.array(count.min(MAX_MESSAGES) as usize) };
        let mut done = 0;
        for place in messages {
            let sent = place.read().and_then(|CountedMessage { message, .. }| {
                let len = send_message(fd, slot, &message, flags)?;
                place.write(CountedMessage { message, len: len as c_uint })
            });
            match sent {
                Ok(()) => done += 1,
                Err(errno) if done == 0 => return returned(Err(errno)),
                Err(_) => break,
            }
        }
        done
    }

    /// `recv(2)`.
    fn recv(fd: c_int, bytes: *mut c_void, len: size_t, flags: c_int) -> ssize_t, next {
        let Some(slot) = get(fd) else { return next() };
        // SAFETY: the manual page requires that length.
        receive_one(fd, slot, unsafe { Room::new(bytes, len) }, flags)
    }

    /// `recv(2)`, for calls whose buffer size the compiler knows. The C library ends the program if the buffer is too small.
    fn __recv_chk(fd: c_int, bytes: *mut c_void, len: size_t, room: size_t, flags: c_int) -> ssize_t, next {
        let Some(slot) = get(fd).filter(|_| len <= room) else { return next() };
        // SAFETY: the manual page requires that length.
        receive_one(fd, slot, unsafe { Room::new(bytes, len) }, flags)
    }

    /// `read(2)`.
    fn read(fd: c_int, bytes: *mut c_void, len: size_t) -> ssize_t, next {
        let Some(slot) = get(fd) else { return next() };
        // SAFETY: the manual page requires that length.
        receive_one(fd, slot, unsafe { Room::new(bytes, len) }, 0)
    }

    /// `read(2)`, as `__recv_chk`.
    fn __read_chk(fd: c_int, bytes: *mut c_void, len: size_t, room: size_t) -> ssize_t, next {
        let Some(slot) = get(fd).filter(|_| len <= room) else { return next() };
        // SAFETY: the manual page requires that length.
        receive_one(fd, slot, unsafe { Room::new(bytes, len) }, 0)
    }

    /// `readv(2)`.
    fn readv(fd: c_int, first: *const Room<'_>, count: c_int) -> ssize_t, next {
        let Some(slot) = get(fd) else { return next() };
        // SAFETY: the manual page requires that length.
        let pieces = number(count).and_then(|count| unsafe { pieces(first, count) });
        returned(pieces.and_then(|pieces| receive(fd, slot, pieces, 0)).map(|received| received.len))
    }

    /// `recvfrom(2)`.
    fn recvfrom(
        fd: c_int, bytes: *mut c_void, len: size_t, flags: c_int, from: *mut sockaddr, from_len: InOut<'_, socklen_t>,
    ) -> ssize_t, next {
        let Some(slot) = get(fd) else { return next() };
        // SAFETY: the manual page requires that length.
        let bytes = unsafe { Room::new(bytes, len) };
        // SAFETY: the manual page requires that length.
        let from = unsafe { AddressRoom::new(from, from_len) };
        receive_from(fd, slot, bytes, flags, from)
    }

    /// `recvfrom(2)`, as `__recv_chk`.
    fn __recvfrom_chk(
        fd: c_int, bytes: *mut c_void, len: size_t, room: size_t, flags: c_int, from: *mut sockaddr,
        from_len: InOut<'_, socklen_t>,
    ) -> ssize_t, next {
        let Some(slot) = get(fd).filter(|_| len <= room) else { return next() };
        // SAFETY: the manual page requires that length.
        let bytes = unsafe { Room::new(bytes, len) };
        // SAFETY: the manual page requires that length.
        let from = unsafe { AddressRoom::new(from, from_len) };
        receive_from(fd, slot, bytes, flags, from)
    }

    /// `recvmsg(2)`.
    fn recvmsg(fd: c_int, place: InOut<'_, Message<Room<'_>>>, flags: c_int) -> ssize_t, next {
        let slot = get(fd);
        if slot.is_none() && !ike::is(fd) {
            return next();
        }
        returned(place.read().and_then(|mut message| {
            let len = match slot {
                Some(slot) => receive_message(fd, slot, &mut message, flags)?,
                None => ike::receive(fd, &mut message, flags)?,
            };
            place.write(message).map(|()| len)
        }))
    }

    /// `recvmmsg(2)`.
    fn recvmmsg(
        fd: c_int, first: InOut<'_, CountedMessage<Room<'_>>>, count: c_uint, flags: c_int, timeout: InOut<'_, timespec>,
    ) -> c_int, next {
        let Some(slot) = get(fd) else { return next() };
        // SAFETY: the manual page requires that length.
        let messages = unsafe { first.array(count.min(MAX_MESSAGES) as usize) };
        returned(receive_messages(fd, slot, messages, flags, timeout.read().ok()))
    }
}

/// Maximum number of messages of a call (Linux `UIO_MAXIOV`).
const MAX_MESSAGES: c_uint = 1024;

/// Number of buffers of `readv` and `writev`.
fn number(count: c_int) -> Result<usize, Errno> {
    usize::try_from(count).map_err(|_| Errno(libc::EINVAL))
}

/// `writev(2)` to a connection, or to a file of `/proc/sys/net`.
fn write_pieces(fd: c_int, slot: Option<&Slot>, pieces: &[Bytes<'_>]) -> Result<ssize_t, Errno> {
    match slot {
        Some(slot) => send::send(fd, slot, pieces, Bytes::NONE, 0),
        None => sysctl::write(fd, pieces),
    }
}

fn send_message(fd: c_int, slot: &Slot, message: &Message<Bytes<'_>>, flags: c_int) -> Result<ssize_t, Errno> {
    send::send(fd, slot, message.pieces()?, message.name(), flags)
}

/// Receives into one buffer.
fn receive_one(fd: c_int, slot: &Slot, bytes: Room<'_>, flags: c_int) -> ssize_t {
    returned(receive(fd, slot, &[bytes], flags).map(|received| received.len))
}

/// `recvfrom(2)` of a connection.
fn receive_from(fd: c_int, slot: &Slot, bytes: Room<'_>, flags: c_int, from: AddressRoom<'_>) -> ssize_t {
    returned(receive(fd, slot, &[bytes], flags).map(|received| {
        // A program that passes no buffer does not want the address.
        let _ = from.write(&source(received.group));
        received.len
    }))
}

/// `recvmmsg(2)` of a connection, whose number of messages it returns.
fn receive_messages<'a, 'b: 'a>(
    fd: c_int,
    slot: &Slot,
    messages: impl Iterator<Item = InOut<'a, CountedMessage<Room<'b>>>>,
    flags: c_int,
    timeout: Option<timespec>,
) -> Result<c_int, Errno> {
    let limit =
        timeout.map(|it| Duration::from_secs(it.tv_sec as u64).saturating_add(Duration::from_nanos(it.tv_nsec as u64)));
    let start = Instant::now();
    let mut flags_now = flags & !libc::MSG_WAITFORONE;
    let mut done = 0;
    for place in messages {
        // An error after a received message is left to the next call, as in Linux (`sk_err`).
        if done > 0 && !is_received_next(fd, flags_now) {
            break;
        }
        let received = place.read().and_then(|CountedMessage { mut message, .. }| {
            let len = receive_message(fd, slot, &mut message, flags_now)?;
            place.write(CountedMessage { message, len: len as c_uint })
        });
        match received {
            Ok(()) => done += 1,
            Err(errno) if done == 0 => return Err(errno),
            Err(_) => break,
        }
        if flags & libc::MSG_WAITFORONE != 0 {
            flags_now |= libc::MSG_DONTWAIT;
        }
        // As in Linux, the timeout is checked after each datagram only.
        if limit.is_some_and(|limit| start.elapsed() >= limit) {
            break;
        }
    }
    Ok(done)
}
