//! Lookup of the socket that gets a packet, in the kernel of the host side (sock_diag(7), Linux
//! `inet_diag_find_one_icsk`, `udp_diag_dump_one`).

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

use datapath::{SocketBinding, SocketQuestion};
use netlink::message::{Header, Messages, Writer, flag, kind};
use netlink::rtnl::nums::{AF_INET, AF_INET6};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use wire::{FlowKey, Protocol};

/// Type of requests and answers (`SOCK_DIAG_BY_FAMILY`).
const BY_FAMILY: u16 = 20;
/// Cookie of any socket (`INET_DIAG_NOCOOKIE`).
const ANY_COOKIE: [u8; 8] = [0xff; 8];
/// Place of `idiag_state` in `struct inet_diag_msg`, behind the netlink header.
const STATE_AT: usize = 16 + 1;
/// Place of `id.idiag_if`.
const IF_AT: usize = 16 + 4 + 2 + 2 + 16 + 16;

/// States of sockets that are connected to no peer: of TCP a listener and a connection that is over, of UDP a socket without a peer
/// (`TCP_TIME_WAIT`, `TCP_CLOSE`, `TCP_LISTEN`).
const UNCONNECTED: [u8; 3] = [6, 7, 10];

/// Socket that gets a packet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Found {
    /// Number of the device that the socket is bound to, 0 for none.
    device: u32,
    /// Whether the socket is connected to the packet's source.
    is_connected: bool,
}

/// A netlink socket of the namespace, for lookups.
#[derive(Debug)]
pub(crate) struct SocketDiag {
    socket: OwnedFd,
    seq: u32,
    buffer: Vec<u8>,
}

impl SocketDiag {
    /// Takes a socket of `NETLINK_SOCK_DIAG`, after a check that the kernel supports TCP and UDP.
    ///
    /// # Errors
    /// The kernel does not answer, or the socket does not.
    pub(crate) fn new(socket: OwnedFd) -> io::Result<Self> {
        let mut diag = Self { socket, seq: 0, buffer: vec![0; 4096] };
        for protocol in [Protocol::TCP, Protocol::UDP] {
            let any = FlowKey { src: IpAddr::from([0; 4]), dst: IpAddr::from([0; 4]), protocol, sport: 0, dport: 0 };
            // A dump of sockets in no state is empty. Without the module it is an error.
            diag.ask(flag::REQUEST | flag::DUMP, 0, &any, 0)?;
            diag.answer()?;
        }
        Ok(diag)
    }

    /// A socket whose peer is no kernel: answers are whatever the peer has sent.
    #[cfg(feature = "fuzzing")]
    pub(crate) fn of_peer(socket: OwnedFd) -> Self {
        Self { socket, seq: 0, buffer: vec![0; 4096] }
    }

    /// The binding of the socket that gets a packet, where the devices of its link and VRF have these numbers. A socket
    /// bound to one of these devices takes precedence over an unbound socket.
    ///
    /// # Errors
    /// The socket does not answer.
    pub(crate) fn binding(&mut self, question: &SocketQuestion, link: u32, vrf: u32) -> io::Result<SocketBinding> {
        let by_vrf = self.find(&question.flow, vrf)?;
        if by_vrf.is_some_and(|found| found.device == vrf) {
            return Ok(SocketBinding::Vrf);
        }
        Ok(match self.find(&question.flow, link)? {
            Some(found) if found.device == link => SocketBinding::Link,
            Some(Found { is_connected: true, .. }) => SocketBinding::Connected,
            Some(_) => SocketBinding::Unbound,
            None => SocketBinding::NoSocket,
        })
    }

    /// Socket of a packet whose input device is `by`.
    fn find(&mut self, came: &FlowKey, by: u32) -> io::Result<Option<Found>> {
        self.ask(flag::REQUEST, u32::MAX, came, by)?;
        self.answer()
    }

    fn ask(&mut self, flags: u16, states: u32, came: &FlowKey, by: u32) -> io::Result<()> {
        self.seq = self.seq.wrapping_add(1);
        let mut writer = Writer::default();
        let header = Header { kind: BY_FAMILY, flags, seq: self.seq, port: 0 };
        writer.message(header, |w| {
            let family = if came.dst.is_ipv4() { AF_INET } else { AF_INET6 };
            w.fixed(&[family, came.protocol.0, 0, 0]);
            w.fixed(&states.to_ne_bytes());
            // The socket's own end comes first, except for UDP, where Linux expects the peer first.
            let (mut first, mut second) = ((came.dport, came.dst), (came.sport, came.src));
            if came.protocol == Protocol::UDP {
                (first, second) = (second, first);
            }
            w.fixed(&[first.0.to_be_bytes(), second.0.to_be_bytes()].concat());
            w.fixed(&padded(first.1));
            w.fixed(&padded(second.1));
            w.fixed(&by.to_ne_bytes());
            w.fixed(&ANY_COOKIE);
        });
        rustix::io::retry_on_intr(|| send(&self.socket, writer.as_bytes(), SendFlags::empty()))?;
        Ok(())
    }

    /// Reads the answer, which is already queued: the kernel answers within the send call.
    fn answer(&mut self) -> io::Result<Option<Found>> {
        loop {
            let (len, _) =
                rustix::io::retry_on_intr(|| recv(&self.socket, self.buffer.as_mut_slice(), RecvFlags::DONTWAIT))?;
            for message in Messages::new(&self.buffer[..len.min(self.buffer.len())]) {
                if message.header.seq != self.seq {
                    continue;
                }
                return match message.header.kind {
                    kind::DONE => Ok(None),
                    kind::ERROR => match super::rtnl::errno_of(&message) {
                        errno if errno == Errno::NOENT.raw_os_error() => Ok(None),
                        errno => Err(io::Error::from_raw_os_error(errno)),
                    },
                    _ => {
                        let device = message.bytes.get(IF_AT..IF_AT + 4).and_then(|bytes| bytes.try_into().ok());
                        let is_connected =
                            !message.bytes.get(STATE_AT).is_some_and(|state| UNCONNECTED.contains(state));
                        Ok(device.map(|device| Found { device: u32::from_ne_bytes(device), is_connected }))
                    }
                };
            }
        }
    }
}

fn padded(addr: IpAddr) -> [u8; 16] {
    match addr {
        IpAddr::V6(addr) => addr.octets(),
        IpAddr::V4(addr) => {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&addr.octets());
            bytes
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpListener, UdpSocket};

    use base::PortId;
    use rustix::net::AddressFamily;

    use super::*;

    /// Number of `lo`, which every namespace has.
    const LO: u32 = 1;
    /// Number that no device has.
    const OTHER: u32 = 9999;

    fn question(protocol: Protocol, own: SocketAddr) -> SocketQuestion {
        let src = if own.is_ipv4() { IpAddr::from([127, 0, 0, 9]) } else { "::1".parse().unwrap() };
        let flow = FlowKey { src, dst: own.ip(), protocol, sport: 40_000, dport: own.port() };
        SocketQuestion { flow, link: PortId(2), vrf: PortId(3) }
    }

    #[test]
    fn socket_is_found_with_what_it_is_bound_to() {
        let mut diag = SocketDiag::new(super::super::opener::sock_diag().unwrap()).unwrap();
        for any in ["127.0.0.1:0", "[::1]:0"] {
            let (tcp, udp) = (TcpListener::bind(any).unwrap(), UdpSocket::bind(any).unwrap());
            let both = [(Protocol::TCP, tcp.local_addr().unwrap()), (Protocol::UDP, udp.local_addr().unwrap())];
            let mut ask = |protocol, own, link, vrf| diag.binding(&question(protocol, own), link, vrf).unwrap();
            for (protocol, own) in both {
                assert_eq!(ask(protocol, own, LO, OTHER), SocketBinding::Unbound, "{protocol:?} {own}");
            }
            drop((tcp, udp));
            for (protocol, own) in both {
                assert_eq!(ask(protocol, own, LO, OTHER), SocketBinding::NoSocket, "{protocol:?} {own}");
            }
        }
    }

    #[test]
    fn connected_socket_is_distinguished_from_its_server() {
        let mut diag = SocketDiag::new(super::super::opener::sock_diag().unwrap()).unwrap();
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = std::net::TcpStream::connect(server.local_addr().unwrap()).unwrap();
        let udp = [UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap()];
        udp[0].connect(udp[1].local_addr().unwrap()).unwrap();
        let pairs = [
            (Protocol::TCP, server.local_addr().unwrap(), peer.local_addr().unwrap()),
            (Protocol::UDP, udp[0].local_addr().unwrap(), udp[1].local_addr().unwrap()),
        ];
        for (protocol, own, peer) in pairs {
            let mut question = question(protocol, own);
            let other = diag.binding(&question, LO, OTHER).unwrap();
            let want = if protocol == Protocol::TCP { SocketBinding::Unbound } else { SocketBinding::NoSocket };
            assert_eq!(other, want, "{protocol:?} of another peer");
            (question.flow.src, question.flow.sport) = (peer.ip(), peer.port());
            assert_eq!(diag.binding(&question, LO, OTHER).unwrap(), SocketBinding::Connected, "{protocol:?}");
        }
    }

    #[test]
    fn socket_bound_to_a_device_is_found_by_that_alone() {
        let mut diag = SocketDiag::new(super::super::opener::sock_diag().unwrap()).unwrap();
        // A group of a link's scope binds a socket to the device.
        let group = std::net::SocketAddrV6::new("ff02::99".parse().unwrap(), 0, 0, LO);
        let socket = UdpSocket::bind(group).unwrap();
        let own = socket.local_addr().unwrap();
        let mut ask = |link, vrf| diag.binding(&question(Protocol::UDP, own), link, vrf).unwrap();
        assert_eq!(ask(LO, OTHER), SocketBinding::Link);
        assert_eq!(ask(OTHER, LO), SocketBinding::Vrf);
        assert_eq!(ask(OTHER, OTHER + 1), SocketBinding::NoSocket);
    }

    #[test]
    fn socket_of_another_protocol_is_refused() {
        let other = rustix::net::socket_with(
            AddressFamily::NETLINK,
            rustix::net::SocketType::RAW,
            rustix::net::SocketFlags::CLOEXEC,
            None,
        );
        assert!(SocketDiag::new(other.unwrap()).is_err(), "rtnetlink has no such message");
    }
}
