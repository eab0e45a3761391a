//! An echo request from inside a namespace (RFC 792), without a program for it.

use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, UdpSocket};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, socket_with};
use wire::checksum;

use super::failure::Failure;
use super::netns::Namespace;
use super::stop::Stop;

/// How long the first answer may take: neighbours must be found and three requests may be lost.
const LIMIT: Duration = Duration::from_secs(4);
/// How long one request waits for its answer.
const INTERVAL: Duration = Duration::from_millis(200);
/// Payload, all zero.
const PAYLOAD_LEN: usize = 56;
const HEADER_LEN: usize = 8;
const ECHO_REPLY: u8 = 0;
const ECHO_REQUEST: u8 = 8;

/// Asks until `to` answers.
pub(super) fn ping(from: &Namespace, to: Ipv4Addr, stop: &Stop) -> Result<(), Failure> {
    let doing = format!("ping {to}");
    let fail = |err: io::Error| Failure::step(&doing, err);
    let socket = from.enter(|| open(to).map_err(fail))?;
    let id = std::process::id() as u16;
    let mut seq = 0;
    stop.wait(&doing, LIMIT, || {
        seq += 1;
        match socket.send(&request(id, seq)) {
            Ok(_) => answered(&socket, id).map_err(fail),
            // An ICMP error for an earlier request, such as a host that does not answer ARP yet.
            Err(err) if is_passing(&err) => Ok(None),
            Err(err) => Err(fail(err)),
        }
    })
}

/// A raw ICMP socket that hears `to` alone. The standard library's datagram socket serves it: send, receive, time-out.
fn open(to: Ipv4Addr) -> io::Result<UdpSocket> {
    let socket = socket_with(AddressFamily::INET, SocketType::RAW, SocketFlags::CLOEXEC, Some(ipproto::ICMP))?;
    let socket = UdpSocket::from(socket);
    socket.connect((to, 0))?;
    socket.set_read_timeout(Some(INTERVAL))?;
    Ok(socket)
}

/// An echo request with its checksum.
fn request(id: u16, seq: u16) -> [u8; HEADER_LEN + PAYLOAD_LEN] {
    let mut message = [0; HEADER_LEN + PAYLOAD_LEN];
    message[0] = ECHO_REQUEST;
    message[4..6].copy_from_slice(&id.to_be_bytes());
    message[6..8].copy_from_slice(&seq.to_be_bytes());
    let checksum = checksum::finish(checksum::sum(&message));
    message[2..4].copy_from_slice(&checksum.to_be_bytes());
    message
}

/// Waits for an answer to any of our requests.
fn answered(socket: &UdpSocket, id: u16) -> io::Result<Option<()>> {
    let mut packet = [0; 1500];
    loop {
        match socket.recv(&mut packet) {
            Ok(len) if is_reply(&packet[..len], id) => return Ok(Some(())),
            Ok(_) => {}
            Err(err) if is_passing(&err) => return Ok(None),
            Err(err) => return Err(err),
        }
    }
}

/// Whether an IPv4 packet, as a raw socket gives it, is an echo reply to `id`.
fn is_reply(packet: &[u8], id: u16) -> bool {
    let Some(&first) = packet.first() else { return false };
    let icmp = packet.get(usize::from(first & 0xf) * 4..).unwrap_or_default();
    icmp.first() == Some(&ECHO_REPLY) && icmp.get(4..6) == Some(&id.to_be_bytes())
}

/// Whether the next request may fare better.
fn is_passing(err: &io::Error) -> bool {
    use ErrorKind::{ConnectionRefused, HostUnreachable, Interrupted, NetworkUnreachable, TimedOut, WouldBlock};
    matches!(err.kind(), WouldBlock | TimedOut | Interrupted | HostUnreachable | NetworkUnreachable | ConnectionRefused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_carries_a_right_checksum() {
        let message = request(0x1234, 7);
        assert_eq!(message[..2], [ECHO_REQUEST, 0]);
        assert_eq!(message[4..8], [0x12, 0x34, 0, 7]);
        // The one's complement sum over a message with its checksum is all ones (RFC 1071 §1).
        assert_eq!(checksum::fold(checksum::sum(&message)), 0xffff);
    }

    #[test]
    fn only_an_answer_to_us_is_an_answer() {
        let mut reply = vec![0x45; 20];
        reply.extend([ECHO_REPLY, 0, 0, 0, 0x12, 0x34, 0, 1]);
        assert!(is_reply(&reply, 0x1234));
        assert!(!is_reply(&reply, 0x1235), "another's");
        assert!(!is_reply(&reply[..25], 0x1234), "cut short");
        assert!(!is_reply(&[], 0x1234), "nothing");
        reply[0] = 0x4f;
        assert!(!is_reply(&reply, 0x1234), "options up to the end");
        reply[0] = 0x45;
        reply[20] = ECHO_REQUEST;
        assert!(!is_reply(&reply, 0x1234), "a question");
    }
}
