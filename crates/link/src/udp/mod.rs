//! UDP sockets (udp(7)) as links of IP packets, for a node that owns no interface.
//!
//! The kernel strips IP and UDP headers from received datagrams and adds them to sent ones. This link restores them
//! ([`synthetic`]), so that the datapath sees IP packets. Trains of datagrams go through the kernel as one buffer in
//! both directions (`UDP_SEGMENT`, `UDP_GRO`), and several of them in one system call. ICMP reports of the path MTU are
//! received as ICMP messages again ([`paths`]). A sent datagram has the Don't Fragment flag of the packet's IP header
//! ([`discovery`]).
//!
//! With several shards each has a socket of its own, all at one address and port (`SO_REUSEPORT`), and the kernel chooses the owner of a
//! datagram's SPI. An ICMP error is reported by any of the sockets.

mod discovery;
mod errors;
mod ike_port;
mod joining;
mod message;
mod open;
mod paths;
mod probe;
mod socket;
mod source_ports;
mod synthetic;
mod trains;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use arrayvec::ArrayVec;
use base::DropReason;
use offload::Features;
use packet::{Maker, Memory, Packet};

use crate::burst::{self, Batches, Refused};
use crate::error::failed;
use crate::offloads::Offloads;
use crate::pieces::skipping;
use crate::posted::Posted;
use crate::stats::LinkStats;
use crate::sys::cmsg::{self, CONTROL_LEN, Control};
use crate::sys::errno;
use crate::sys::mmsg::{MAX_MESSAGES, NoRoom, Received, RecvBatch, SendBatch};
use crate::sys::sockaddr::{self, SOCKADDR_LEN, SockAddr};
use crate::{Common, Duplicates, Layer, Link, OpenError, Sent};
use discovery::Discovery;
use ike_port::IkePort;
use message::Message;
pub use paths::PeerError;
use paths::{MAX_ERRORS, Paths, TooBig, is_soft, narrow};
pub use socket::{bind_port, widen};
use source_ports::{Sender, SourcePorts};
use synthetic::{Ends, LONGEST, Unsendable, Unwrapped, set_ip, unwrap, wrap};
pub use trains::set_trains;

/// Datagrams or trains received in one system call: as many 64 KiB pages as the second-level cache holds.
const RECV_MESSAGES: usize = 8;

/// Packets after which a call of [`Link::recv`] makes no further system call.
const BURST_PACKETS: usize = 64;

/// Bytes after which a call of [`Link::recv`] makes no further system call.
const BURST_BYTES: usize = 256 << 10;

/// Retries of a packet that was refused with an error about an earlier one.
const MAX_RETRIES: u8 = 3;

/// Bursts after which the other sockets are read while the link's own socket is never empty.
const OTHERS_EVERY: u8 = 16;

const _: () = assert!(synthetic::MAX_HEADERS < Memory::HEADROOM);

/// A UDP socket.
#[derive(Debug)]
pub(crate) struct UdpLink {
    common: Common,
    socket: std::net::UdpSocket,
    /// Socket that keeps others out of the group of this address and port; `None` if the node has one shard.
    guard: Option<Arc<std::net::UdpSocket>>,
    local: SocketAddr,
    /// Whether this is the first shard's link, to which port 500 belongs.
    is_first: bool,
    /// Port 500, for IKE daemons of the host side.
    ike: Option<IkePort>,
    /// Sockets of SAs' source ports other than the link's.
    source_ports: SourcePorts,
    /// Bursts since these other sockets were read.
    others_wait: u8,
    /// Path MTU discovery mode of the last packets sent.
    discovery: Discovery,
    /// Messages in one system call; 1 without offloads.
    width: usize,
    /// Whether the link takes trains, and packets in several pieces.
    is_fat: bool,
    slots: Vec<Slot>,
    /// Last value of `SO_RXQ_OVFL`.
    overflows: u32,
    /// Retries of the packet at the front.
    retries: u8,
    /// Whether the first message of the last call was a [train of several packets](joining).
    has_joined: bool,
    /// Packets left to send singly after the kernel refused such a train.
    singly: usize,
    /// Path MTU reports.
    paths: Paths,
}

/// Receive buffers of one message.
#[derive(Debug)]
struct Slot {
    posted: Posted,
    name: [u8; SOCKADDR_LEN],
    control: [u8; CONTROL_LEN],
}

impl UdpLink {
    /// Makes one system call. Returns the number of messages received, and their bytes.
    fn recv_batch(&mut self, mem: &Memory, out: &mut Vec<Packet>) -> io::Result<(usize, usize)> {
        let mut batch = RecvBatch::new();
        for slot in &mut self.slots {
            let Ok(room) = slot.posted.room(mem, Memory::HEADROOM, LONGEST) else { break };
            batch.push(&mut slot.name, &mut slot.control, [room]);
        }
        if batch.is_empty() {
            return Ok((0, 0));
        }
        let received = match batch.recv(self.socket.as_fd()) {
            Ok(received) => received,
            Err(err) if err.kind() == io::ErrorKind::WouldBlock => return Ok((0, 0)),
            Err(err) if is_soft(errno(&err)) => {
                self.paths.errors_wait = true;
                return Ok((0, 0));
            }
            Err(err) => return Err(failed(&self.common.name, "recvmmsg", &err)),
        };
        self.common.stats.rx_calls += u64::from(!received.is_empty());
        let mut bytes = 0;
        for (at, received) in received.iter().enumerate() {
            match self.received(at, received) {
                Ok(packet) => {
                    bytes += packet.len();
                    self.common.stats.received(&packet);
                    out.push(packet);
                }
                Err(reason) => self.common.stats.rx_drop(reason),
            }
        }
        Ok((received.len(), bytes))
    }

    /// The packet in slot `at`.
    fn received(&mut self, at: usize, received: &Received) -> Result<Packet, DropReason> {
        let slot = &mut self.slots[at];
        let payload = slot.posted.take(received.len, Memory::HEADROOM, LONGEST);
        if received.truncated {
            return Err(DropReason::IpTruncated);
        }
        let name = slot.name.get(..received.name_len).and_then(sockaddr::parse);
        let mut ends = Ends { src: name.ok_or(DropReason::IpSourceInvalid)?, dst: self.local, tos: 0 };
        let mut size = None;
        for (level, kind, data) in cmsg::iter(slot.control.get(..received.control_len).unwrap_or_default()) {
            match (level, kind) {
                (libc::SOL_UDP, libc::UDP_GRO) => size = cmsg::int(data).and_then(|size| u16::try_from(size).ok()),
                (libc::IPPROTO_IP, libc::IP_TOS) => ends.tos = data.first().copied().unwrap_or(0),
                (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => ends.tos = cmsg::int(data).unwrap_or(0) as u8,
                (libc::IPPROTO_IP, libc::IP_PKTINFO) => set_ip(&mut ends.dst, sockaddr::local_of_pktinfo_v4(data)),
                (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => set_ip(&mut ends.dst, sockaddr::local_of_pktinfo_v6(data)),
                (libc::SOL_SOCKET, libc::SO_RXQ_OVFL) => {
                    let overflows = cmsg::int(data).unwrap_or(0) as u32;
                    let lost = overflows.wrapping_sub(self.overflows);
                    self.common.stats.rx_drops(DropReason::SocketFull, lost.into());
                    self.overflows = overflows;
                }
                _ => {}
            }
        }
        let size = size.filter(|&size| size > 0);
        wrap(payload, &ends, size)?.ok_or(DropReason::TransportHeader)
    }

    /// Sends the first packet if it is from port 500. Returns the number of packets sent.
    #[cold]
    fn send_ike(&self, packets: &[Packet]) -> io::Result<usize> {
        let unsendable = || io::Error::from(io::ErrorKind::InvalidData);
        let packet = packets.first().ok_or_else(unsendable)?;
        let unwrapped = unwrap(packet).map_err(|Unsendable| unsendable())?;
        let port = self.ike.as_ref().filter(|port| port.is_of(&unwrapped)).ok_or_else(unsendable)?;
        port.send(packet, &unwrapped)?;
        Ok(1)
    }

    /// Receives from port 500, and errors of the source ports, if the link's own socket was empty (`is_idle`), and every so often
    /// otherwise.
    fn recv_others(&mut self, mem: &Memory, is_idle: bool, out: &mut Vec<Packet>) {
        self.others_wait += 1;
        if is_idle || self.others_wait >= OTHERS_EVERY {
            self.others_wait = 0;
            if let Some(port) = &self.ike {
                port.recv(mem, &mut self.common.stats, out);
            }
            self.source_ports.recv_errors(&mut self.paths, &mut self.common.stats, mem, out);
        }
    }

    /// Parameters for sending a packet, if the socket can send it.
    fn prepare(&self, packet: &Packet) -> Result<Message, Unsendable> {
        let Unwrapped { ends: Ends { src, mut dst, tos }, dont_fragment, header_len } = unwrap(packet)?;
        let discovery = Discovery::of(packet.meta.cut, src.is_ipv4(), dont_fragment);
        let anywhere = self.local.ip().is_unspecified();
        if !anywhere && src.ip() != self.local.ip() {
            return Err(Unsendable);
        }
        // Another port may be an SA's, unless it is port 500. No answer would come to the datagrams of others.
        let is_other = src.port() != self.local.port();
        if is_other && (packet.meta.maker != Maker::Sa || self.ike.as_ref().is_some_and(|ike| ike.is_at(src.port()))) {
            return Err(Unsendable);
        }
        if let (SocketAddr::V6(dst), SocketAddr::V6(local)) = (&mut dst, &self.local)
            && dst.ip().is_unicast_link_local()
        {
            dst.set_scope_id(local.scope_id());
        }
        let mut control = Control::EMPTY;
        if let Some(gso) = packet.meta.cut.gso() {
            control.push(libc::SOL_UDP, libc::UDP_SEGMENT, &gso.size.to_ne_bytes());
        }
        match src.ip() {
            IpAddr::V4(src) => {
                if tos != 0 {
                    control.push(libc::IPPROTO_IP, libc::IP_TOS, &i32::from(tos).to_ne_bytes());
                }
                if anywhere {
                    control.push(libc::IPPROTO_IP, libc::IP_PKTINFO, &sockaddr::pktinfo_v4(src));
                }
            }
            IpAddr::V6(src) => {
                if tos != 0 {
                    control.push(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, &i32::from(tos).to_ne_bytes());
                }
                if anywhere {
                    control.push(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &sockaddr::pktinfo_v6(src));
                }
            }
        }
        Ok(Message { name: SockAddr::new(dst), source: src.port(), control, header_len, discovery })
    }
}

impl Batches for UdpLink {
    fn send_batch(&mut self, packets: &[Packet]) -> io::Result<usize> {
        let mut prepared = ArrayVec::<Message, MAX_MESSAGES>::new();
        for packet in packets.iter().take(self.width) {
            match self.prepare(packet) {
                Ok(message) if prepared.first().is_none_or(|first| first.socket() == message.socket()) => {
                    prepared.push(message);
                }
                Ok(_) | Err(Unsendable) => break,
            }
        }
        let Some(first) = prepared.first() else { return self.send_ike(packets) };
        let (socket, local, mode) = if first.source == self.local.port() {
            (&self.socket, self.local, &mut self.discovery)
        } else {
            let Sender { socket, local, discovery } =
                self.source_ports.sender(&self.common.name, self.local, first.source)?;
            (&*socket, *local, discovery)
        };
        mode.change(first.discovery, socket, local)?;
        let may_join = self.common.features.uso && self.singly == 0;
        let mut trains = ArrayVec::<(usize, Option<Control>), MAX_MESSAGES>::new();
        let mut at = 0;
        while at < prepared.len() {
            let count = if may_join { joining::train_len(&prepared[at..], &packets[at..]) } else { 1 };
            let size = (packets[at].len() - prepared[at].header_len) as u16;
            trains.push((count, (count > 1).then(|| prepared[at].control.and_segment(size))));
            at += count;
        }
        let mut batch = SendBatch::new();
        let mut at = 0;
        for (count, control) in &trains {
            let message = &prepared[at];
            let each = prepared[at..].iter().zip(&packets[at..]).take(*count);
            let payload = each.flat_map(|(message, packet)| skipping(packet, message.header_len));
            match batch.push(message.name.bytes(), control.as_ref().unwrap_or(&message.control).bytes(), payload) {
                Ok(()) => at += count,
                Err(NoRoom::Batch) => break,
                Err(NoRoom::Packet) => return Err(io::ErrorKind::InvalidData.into()),
            }
        }
        self.has_joined = trains.first().is_some_and(|(count, _)| *count > 1);
        let sent = batch.send(socket.as_fd()).map_err(|err| match err.kind() {
            // Room of the link's own socket is waited for.
            io::ErrorKind::WouldBlock if local != self.local => io::Error::from_raw_os_error(libc::ENOBUFS),
            _ => err,
        })?;
        self.retries = 0;
        let sent = trains[..sent].iter().map(|(count, _)| count).sum();
        self.singly = self.singly.saturating_sub(sent);
        Ok(sent)
    }

    #[cold]
    fn refused(&mut self, packet: &Packet, err: &io::Error) -> io::Result<Refused> {
        let errno = errno(err);
        // An error about an earlier packet may be returned for this one; the kernel returns it once.
        if is_soft(errno) && self.retries < MAX_RETRIES {
            self.retries += 1;
            self.paths.errors_wait = true;
            return Ok(Refused::Again);
        }
        self.retries = 0;
        // The error may be about the train only, not about each datagram in it.
        if std::mem::take(&mut self.has_joined) && matches!(errno, libc::EINVAL | libc::EIO | libc::EMSGSIZE) {
            self.singly = joining::PAUSE;
            return Ok(Refused::Again);
        }
        let reason = match errno {
            libc::EAGAIN => return Ok(Refused::Stop(Sent::Busy)),
            libc::EINVAL | libc::EIO | libc::EMSGSIZE if packet.meta.cut.gso().is_some() => {
                if let Some(found) = narrow(packet) {
                    self.paths.narrow.truncate(MAX_ERRORS);
                    self.paths.narrow.push(found);
                    self.paths.errors_wait = true;
                    DropReason::PacketTooBig
                } else if errno == libc::EMSGSIZE {
                    // A report from the network, possibly forged, is no evidence about the offload.
                    DropReason::PacketTooBig
                } else if self.common.offloads.give_up(packet, &failed(&self.common.name, "sendmmsg", err).to_string())
                {
                    self.common.features = features(&self.common.offloads, self.is_fat);
                    return Ok(Refused::Stop(Sent::Refit));
                } else {
                    DropReason::TxError
                }
            }
            libc::EBADF | libc::ENOTSOCK => return Err(failed(&self.common.name, "sendmmsg", err)),
            libc::EMSGSIZE => {
                self.paths.too_big = TooBig::of(packet);
                DropReason::PacketTooBig
            }
            libc::ENOBUFS | libc::ENOMEM => DropReason::TxQueueFull,
            libc::ENETUNREACH | libc::EHOSTUNREACH => DropReason::NoRoute,
            _ => DropReason::TxError,
        };
        self.common.stats.tx_drop(reason);
        Ok(Refused::Dropped)
    }

    fn stats_mut(&mut self) -> &mut LinkStats {
        &mut self.common.stats
    }
}

/// Offloads of the socket.
fn features(offloads: &Offloads, is_fat: bool) -> Features {
    let features = offloads.features();
    let features = if is_fat { features } else { Features { csum: features.csum, ..Features::NONE } };
    Features { ufo: true, ..features }
}

impl Link for UdpLink {
    fn common(&self) -> &Common {
        &self.common
    }

    fn common_mut(&mut self) -> &mut Common {
        &mut self.common
    }

    fn layer(&self) -> Layer {
        Layer::Ip
    }

    fn duplicate(&self) -> io::Result<Option<Duplicates>> {
        Duplicates::of([self.socket.as_fd()], self.guard.as_deref().map(AsFd::as_fd)).map(Some)
    }

    fn set_ike_port(&mut self, enabled: bool) -> Result<(), OpenError> {
        self.ike = None;
        if enabled && self.is_first {
            self.ike = IkePort::open(&self.common.name, self.local)?;
        }
        Ok(())
    }

    fn poll_fds(&self) -> Vec<BorrowedFd<'_>> {
        let own = [self.socket.as_fd(), self.source_ports.fd()];
        own.into_iter().chain(self.ike.as_ref().map(IkePort::fd)).collect()
    }

    fn room_fds(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.socket.as_fd()]
    }

    fn recv(&mut self, mem: &Memory, out: &mut Vec<Packet>) -> io::Result<()> {
        let mut packets = 0;
        let mut bytes = 0;
        let mut errors = 0;
        while packets < BURST_PACKETS && bytes < BURST_BYTES {
            let (more, more_bytes) = self.recv_batch(mem, out)?;
            (packets, bytes) = (packets + more, bytes + more_bytes);
            // A wakeup without a packet may be for an error that another system call has already returned.
            if self.paths.errors_wait || packets == 0 {
                let failed = self.paths.errors_wait;
                self.paths.recv_errors(&self.socket, self.local, &mut self.common.stats, mem, out);
                errors += 1;
                if failed && more == 0 && errors < MAX_ERRORS {
                    continue;
                }
            }
            if more < self.slots.len() {
                break;
            }
        }
        self.recv_others(mem, packets == 0, out);
        Ok(())
    }

    fn send(&mut self, burst: &mut Vec<Packet>) -> io::Result<Sent> {
        burst::send(self, burst)
    }

    fn peer_errors(&self) -> Vec<PeerError> {
        self.paths.unreachable.iter().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use driver::DriverKind;
    use packet::{Cut, Gso, GsoKind};
    use wire::{Protocol, ipv4, udp};

    use super::*;
    use crate::config::Config;

    /// A forged "fragmentation needed" that quotes our port makes any call fail with `EMSGSIZE`.
    #[test]
    fn forged_emsgsize_for_a_train_costs_no_offload() {
        let bind: SocketAddr = "127.0.0.1:0".parse().expect("an address");
        let config = Config {
            name: "wan".to_owned(),
            kind: DriverKind::Udp { bind },
            mac: None,
            mtu: None,
            offloads: true,
            index: None,
        };
        let mut link = UdpLink::of_one(&config, bind);
        let mut train = ipv4::Ipv4Header::new([127, 0, 0, 1].into(), [127, 0, 0, 1].into(), Protocol::UDP, 128);
        train.fill_check();
        let train = [train.as_bytes(), udp::UdpHeader::new(link.local.port(), 9, 108).as_bytes(), &[0; 100]].concat();
        let mut train = Packet::with_data(&Memory::heap(), &train).expect("memory");
        train.meta.cut = Cut::Gso(Gso { kind: GsoKind::Udp, size: 50, segs: 2, ecn: false, fixed_id: false });
        let before = link.features();
        let err = io::Error::from_raw_os_error(libc::EMSGSIZE);
        let answers: Vec<_> = (0..20).map(|_| link.refused(&train, &err).expect("the link goes on")).collect();
        assert!(!answers.iter().any(|answer| matches!(answer, Refused::Stop(_))));
        let dropped = answers.iter().filter(|answer| matches!(answer, Refused::Dropped)).count() as u64;
        assert_eq!((link.features(), link.stats().tx_dropped, dropped), (before, 5, 5));
    }
}
