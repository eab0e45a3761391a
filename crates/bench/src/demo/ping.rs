//! An echo request from inside a namespace (RFC 792), without a program for it.

use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, UdpSocket};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, socket_with};
use testbed::{Failure, Namespace, Stop};
use wire::Malformed;
use wire::icmp::{self, Icmp, IcmpHeader, IcmpMessage};
use wire::ipv4::Ipv4;

/// Longest time to the first reply: it includes neighbour discovery, and three requests may be lost.
const LIMIT: Duration = Duration::from_secs(4);
/// Timeout of one request.
const INTERVAL: Duration = Duration::from_millis(200);
/// Payload, all zero.
const PAYLOAD_LEN: usize = 56;
const MESSAGE_LEN: usize = IcmpHeader::LEN + PAYLOAD_LEN;

/// Pings until `to` replies.
pub(super) fn ping(from: &Namespace, to: Ipv4Addr, stop: &Stop) -> Result<(), Failure> {
    let doing = format!("ping {to}");
    let fail = |err: io::Error| Failure::step(&doing, err);
    let socket = from.enter(|| open(to).map_err(fail))?;
    let id = std::process::id() as u16;
    let mut seq = 0;
    stop.wait(&doing, LIMIT, || {
        seq += 1;
        let request = request(id, seq).map_err(|err| Failure::step(&doing, err))?;
        match socket.send(&request) {
            Ok(_) => answered(&socket, id).map_err(fail),
            // An ICMP error for an earlier request, such as a host that does not answer ARP yet.
            Err(err) if is_passing(&err) => Ok(None),
            Err(err) => Err(fail(err)),
        }
    })
}

/// A raw ICMP socket connected to `to`, as the standard library's datagram socket: send, receive, time-out.
fn open(to: Ipv4Addr) -> io::Result<UdpSocket> {
    let socket = socket_with(AddressFamily::INET, SocketType::RAW, SocketFlags::CLOEXEC, Some(ipproto::ICMP))?;
    let socket = UdpSocket::from(socket);
    socket.connect((to, 0))?;
    socket.set_read_timeout(Some(INTERVAL))?;
    Ok(socket)
}

/// An echo request with its checksum.
fn request(id: u16, seq: u16) -> Result<[u8; MESSAGE_LEN], Malformed> {
    let mut message = [0; MESSAGE_LEN];
    IcmpHeader::new(IcmpMessage::EchoRequest { id, seq }).write(&mut message)?;
    icmp::fill_check(&mut message)?;
    Ok(message)
}

/// Waits for a reply to any of the sent requests.
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
    let message = Ipv4::parse(packet).and_then(|packet| Icmp::parse(packet.payload()));
    let message = message.ok().and_then(|icmp| icmp.header().message());
    matches!(message, Some(IcmpMessage::EchoReply { id: to, .. }) if to == id)
}

/// Whether the error may be temporary.
fn is_passing(err: &io::Error) -> bool {
    use ErrorKind::{ConnectionRefused, HostUnreachable, Interrupted, NetworkUnreachable, TimedOut, WouldBlock};
    matches!(err.kind(), WouldBlock | TimedOut | Interrupted | HostUnreachable | NetworkUnreachable | ConnectionRefused)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An IPv4 packet without options around an ICMP message.
    fn packet(message: IcmpMessage) -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 28, 0, 0, 0, 0, 64, 1, 0, 0, 10, 2, 0, 1, 10, 1, 0, 1];
        packet.extend(IcmpHeader::new(message).as_bytes());
        packet
    }

    #[test]
    fn a_request_carries_its_number_and_a_right_checksum() {
        let message = request(0x1234, 7).unwrap();
        let icmp = Icmp::parse(&message).unwrap();
        assert_eq!(icmp.header().message(), Some(IcmpMessage::EchoRequest { id: 0x1234, seq: 7 }));
        assert!(icmp.check_ok());
        assert_eq!(icmp.payload().len(), PAYLOAD_LEN);
    }

    #[test]
    fn only_replies_to_own_requests_count() {
        let (id, seq) = (0x1234, 1);
        let reply = packet(IcmpMessage::EchoReply { id, seq });
        assert!(is_reply(&reply, id));
        assert!(!is_reply(&reply, id + 1), "another's");
        assert!(!is_reply(&reply[..27], id), "truncated");
        assert!(!is_reply(&[], id), "nothing");
        assert!(!is_reply(&packet(IcmpMessage::EchoRequest { id, seq }), id), "a question");
        assert!(!is_reply(&packet(IcmpMessage::FragNeeded { mtu: id }), id), "an error");
    }
}
