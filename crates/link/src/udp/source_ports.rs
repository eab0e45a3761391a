//! Source ports of SAs other than the link's own (RFC 9611: an SA for each CPU, which queues of network cards on the way tell apart by its
//! port).
//!
//! A socket has one source port, so there is a socket for each of these ports, from the first packet on. It only sends: a filter refuses
//! what arrives. The ports with the most recent packets are kept.
//!
//! Ports below 1024, and buffers above the administrator's limit, take a capability. A thread requests them of the
//! [opener](crate::Opener), as the caller is in the middle of packets: until its answer has come, such a port is not bound.

use std::io;
use std::mem::MaybeUninit;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};

use packet::{Memory, Packet};
use rustix::event::epoll;
use rustix::net::sockopt::socket_error;

use super::discovery::Discovery;
use super::paths::Paths;
use super::socket::{is_narrow, socket};
use crate::OpenError;
use crate::opener::{Opener, opener};
use crate::stats::LinkStats;
use crate::steering;
use crate::sys::cbpf;

/// Sockets at most: two for each CPU that an SA may name, as an SA and its successor may have different ports.
const MOST: usize = 2 * base::ShardCount::MAX as usize;

/// Sockets whose errors are read in one turn.
const AT_ONCE: usize = 16;

/// Time after which a port that could not be bound is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// Sockets by source port.
#[derive(Debug)]
pub(super) struct SourcePorts {
    /// Epoll instance of all sockets, which has an event when one has an error to read.
    errors: OwnedFd,
    /// Whether other shards may bind the same port.
    has_others: bool,
    /// The port with the most recent packet last.
    ports: Vec<SourcePort>,
}

#[derive(Debug)]
struct SourcePort {
    number: u16,
    state: State,
}

#[derive(Debug)]
enum State {
    Bound(Sender),
    /// The opener is asked for the socket.
    Requested(Receiver<io::Result<OwnedFd>>),
    /// The port is not bound, and could not be at this time.
    Refused(Option<Instant>),
}

/// A bound socket, and the path MTU discovery mode of its last packets.
#[derive(Debug)]
pub(super) struct Sender {
    pub(super) socket: UdpSocket,
    pub(super) local: SocketAddr,
    pub(super) discovery: Discovery,
}

impl SourcePorts {
    /// No ports; `has_others`: of one of several shards.
    pub(super) fn new(name: &str, has_others: bool) -> Result<Self, OpenError> {
        let errors = epoll::create(epoll::CreateFlags::CLOEXEC);
        let errors = errors.map_err(|err| OpenError::new(name, "epoll_create1", err.into()))?;
        Ok(Self { errors, has_others, ports: Vec::new() })
    }

    /// Descriptor that is readable while an error of a socket waits.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.errors.as_fd()
    }

    /// Socket for packets from `port` of the address of a link.
    ///
    /// # Errors
    /// `EADDRNOTAVAIL`: the port cannot be bound, or could not in the second before, or is not bound yet.
    pub(super) fn sender(&mut self, name: &str, link: SocketAddr, port: u16) -> io::Result<&mut Sender> {
        match self.ports.iter().position(|known| known.number == port) {
            Some(at) => self.ports[at..].rotate_left(1),
            None => {
                if self.ports.len() == MOST {
                    self.ports.remove(0);
                }
                self.ports.push(SourcePort { number: port, state: State::Refused(None) });
            }
        }
        let refused = || io::Error::from_raw_os_error(libc::EADDRNOTAVAIL);
        let Self { errors, has_others, ports } = self;
        let state = &mut ports.last_mut().ok_or_else(refused)?.state;
        let mut local = link;
        local.set_port(port);
        let is_refused = || State::Refused(Some(Instant::now()));
        if let State::Refused(at) = *state
            && at.is_none_or(|at| at.elapsed() >= RETRY)
        {
            // An SA that replaces another may be another shard's, whose socket of the port is still there.
            *state = match (socket(name, local, *has_others), opener()) {
                (Ok(socket), opener) => {
                    if let Some(opener) = opener.filter(|_| is_narrow(socket.as_fd())) {
                        widen_later(opener, &socket);
                    }
                    Sender::over(socket, local, errors.as_fd()).map_or_else(|_| is_refused(), State::Bound)
                }
                (Err(err), Some(opener)) if err.source.kind() == io::ErrorKind::PermissionDenied => {
                    State::Requested(bind_later(opener, local, *has_others))
                }
                (Err(_), _) => is_refused(),
            };
        }
        if let State::Requested(answer) = state {
            match answer.try_recv() {
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) | Ok(Err(_)) => *state = is_refused(),
                Ok(Ok(socket)) => {
                    let bound = Sender::over(socket.into(), local, errors.as_fd());
                    *state = bound.map_or_else(|_| is_refused(), State::Bound);
                }
            }
        }
        match state {
            State::Bound(sender) => Ok(sender),
            State::Requested(_) | State::Refused(_) => Err(refused()),
        }
    }

    /// Reads the error queues of the sockets that have errors, as [`Paths::recv_errors`].
    pub(super) fn recv_errors(&self, paths: &mut Paths, stats: &mut LinkStats, mem: &Memory, out: &mut Vec<Packet>) {
        if self.ports.is_empty() {
            return;
        }
        let mut events = [const { MaybeUninit::uninit() }; AT_ONCE];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        let Ok((found, _)) = epoll::wait(&self.errors, &mut events[..], Some(&now)) else { return };
        for event in found {
            let port = self.ports.iter().find(|port| u64::from(port.number) == event.data.u64());
            if let Some(SourcePort { state: State::Bound(sender), .. }) = port {
                paths.recv_errors(&sender.socket, sender.local, stats, mem, out);
                // An error that the queue lost, which would be reported for ever.
                let _ = socket_error(&sender.socket);
            }
        }
    }
}

impl Sender {
    /// Sends by a socket that is bound to `local`. Its errors are reported by the epoll instance `errors`.
    fn over(socket: UdpSocket, local: SocketAddr, errors: BorrowedFd<'_>) -> io::Result<Self> {
        cbpf::filter(socket.as_fd(), &steering::nothing())?;
        // No event but errors, which are always reported.
        epoll::add(errors, &socket, epoll::EventData::new_u64(local.port().into()), epoll::EventFlags::empty())?;
        Ok(Self { socket, local, discovery: Discovery::Probe })
    }
}

/// Requests a socket at `local` of the opener, in a thread.
fn bind_later(opener: &'static dyn Opener, local: SocketAddr, joins: bool) -> Receiver<io::Result<OwnedFd>> {
    let (sender, answer) = mpsc::channel();
    // Without a thread the receiver is disconnected. The port may be evicted before the answer comes.
    let ask = move || drop(sender.send(opener.bind(local, joins)));
    let _ = thread::Builder::new().name("open".to_owned()).spawn(ask);
    answer
}

/// Requests buffers of the size of a link's for a socket of the opener, in a thread. Meanwhile, and if it is refused, the
/// administrator's limit holds.
fn widen_later(opener: &'static dyn Opener, socket: &UdpSocket) {
    if let Ok(socket) = socket.try_clone() {
        let ask = move || drop(opener.widen(socket.as_fd()));
        let _ = thread::Builder::new().name("open".to_owned()).spawn(ask);
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use driver::DriverKind;
    use wire::{Protocol, ipv4, udp};

    use super::super::UdpLink;
    use super::*;
    use crate::config::Config;
    use crate::{Link, Sent};
    use packet::Maker;

    fn link() -> UdpLink {
        let bind = "127.0.0.1:0".parse().unwrap();
        let kind = DriverKind::Udp { bind };
        let config = Config { name: "wan".to_owned(), kind, mac: None, mtu: None, offloads: true, index: None };
        UdpLink::of_one(&config, bind)
    }

    fn peer() -> UdpSocket {
        let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
        peer.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        peer
    }

    /// A port that is free.
    fn free() -> u16 {
        UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
    }

    fn datagram(mem: &Memory, source: u16, to: &UdpSocket) -> Packet {
        let host = [127, 0, 0, 1].into();
        let mut ip = ipv4::Ipv4Header::new(host, host, Protocol::UDP, 128);
        ip.fill_check();
        let udp = udp::UdpHeader::new(source, to.local_addr().unwrap().port(), 108);
        let mut packet = Packet::with_data(mem, &[ip.as_bytes(), udp.as_bytes(), &[1; 100]].concat()).unwrap();
        packet.meta.maker = Maker::Sa;
        packet
    }

    #[test]
    fn packets_leave_from_their_sas_port_in_order() {
        let (mem, mut link, peer) = (Memory::heap(), link(), peer());
        let (own, other) = (link.local.port(), free());
        let ports = [own, other, other, own, other];
        let mut packets: Vec<_> = ports.iter().map(|&port| datagram(&mem, port, &peer)).collect();
        assert!(matches!(link.send(&mut packets), Ok(Sent::All)));
        let came: Vec<u16> = ports.iter().map(|_| peer.recv_from(&mut [0; 200]).unwrap().1.port()).collect();
        let count = |came: &[u16], port| came.iter().filter(|&&it| it == port).count();
        assert_eq!((count(&came, own), count(&came, other)), (2, 3), "{came:?}");
        assert_eq!((link.stats().tx_packets, link.stats().tx_dropped), (5, 0));
        // It receives nothing.
        peer.send_to(b"esp!", ("127.0.0.1", other)).unwrap();
        let mut came = Vec::new();
        link.recv(&mem, &mut came).unwrap();
        assert!(came.is_empty());
    }

    #[test]
    fn datagram_of_no_sa_opens_no_port() {
        let (mem, mut link, peer) = (Memory::heap(), link(), peer());
        let mut packet = datagram(&mem, free(), &peer);
        packet.meta.maker = Maker::Socket;
        assert!(matches!(link.send(&mut vec![packet]), Ok(Sent::All)));
        assert_eq!((link.stats().tx_packets, link.stats().tx_dropped), (0, 1));
        assert!(link.source_ports.ports.is_empty());
    }

    #[test]
    fn port_of_another_program_drops_until_it_is_free() {
        let (mem, mut link, peer) = (Memory::heap(), link(), peer());
        let other = UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = other.local_addr().unwrap().port();
        let send =
            |link: &mut UdpLink| assert!(matches!(link.send(&mut vec![datagram(&mem, port, &peer)]), Ok(Sent::All)));
        send(&mut link);
        assert_eq!((link.stats().tx_packets, link.stats().tx_dropped), (0, 1));
        drop(other);
        // Within a second it is not tried again.
        send(&mut link);
        assert_eq!((link.stats().tx_packets, link.stats().tx_dropped), (0, 2));
        link.source_ports.ports[0].state = State::Refused(Some(Instant::now() - RETRY));
        send(&mut link);
        assert_eq!((link.stats().tx_packets, link.stats().tx_dropped), (1, 2));
    }

    #[test]
    fn ports_with_the_latest_packets_are_kept() {
        let link = link();
        let mut ports = SourcePorts::new("wan", false).unwrap();
        // Those that are not free count as well.
        let all: Vec<u16> = (20_000..).take(MOST + 1).collect();
        for &port in all[..MOST].iter().chain([&all[0], &all[MOST]]) {
            let _ = ports.sender("wan", link.local, port);
        }
        let kept: Vec<u16> = ports.ports.iter().map(|port| port.number).collect();
        assert_eq!(kept.len(), MOST);
        assert!(!kept.contains(&all[1]) && kept.ends_with(&[all[0], all[MOST]]));
    }

    #[test]
    fn error_about_a_port_is_read_and_names_the_peer() {
        let (mem, mut link) = (Memory::heap(), link());
        let gone = peer();
        let mut packet = vec![datagram(&mem, free(), &gone)];
        let address = gone.local_addr().unwrap();
        drop(gone);
        assert!(matches!(link.send(&mut packet), Ok(Sent::All)));
        let mut events = [rustix::event::PollFd::new(&link.source_ports.errors, rustix::event::PollFlags::IN)];
        let timeout = rustix::event::Timespec { tv_sec: 5, tv_nsec: 0 };
        assert_eq!(rustix::event::poll(&mut events, Some(&timeout)), Ok(1));
        link.recv(&mem, &mut Vec::new()).unwrap();
        let errors = link.peer_errors();
        assert_eq!(errors.iter().map(|error| error.peer).collect::<Vec<_>>(), [address]);
        // It is read.
        let mut events = [rustix::event::PollFd::new(&link.source_ports.errors, rustix::event::PollFlags::IN)];
        assert_eq!(rustix::event::poll(&mut events, Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(0));
    }
}
