//! Packet sockets (packet(7)): whole frames of an interface of this host, with virtio-net headers.
//!
//! The kernel delivers frames as the interface received them, merged by its GRO or never segmented (veth), and segments
//! what we send if the interface does not. The host's own stack sees the same frames, unless the link is exclusive: an
//! interface that fatpath owns has no addresses there.
//!
//! With several shards each has a socket of its own, in one group, and the kernel chooses the socket of a frame.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use arrayvec::ArrayVec;
use base::{DropReason, ShardCount, ShardId};
use offload::Features;
use packet::{Cut, Memory, Packet};
use rustix::net::sockopt::socket_error;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use wire::eth::EtherType;
use wire::{MacAddr, eth, vlan};

use crate::burst::{self, Batches, Refused};
use crate::config::Config;
use crate::error::failed;
use crate::offloads::{BY_CONFIGURATION, Offloads, TX_CSUM, TX_TSO4, TX_TSO6, TX_USO};
use crate::opener::opener;
use crate::pieces::{tagged, vlan_tag};
use crate::posted::Posted;
use crate::rx_filter::RxFilter;
use crate::stats::LinkStats;
use crate::steering;
use crate::sys::bpf;
use crate::sys::cbpf;
use crate::sys::cmsg::{self, CONTROL_LEN};
use crate::sys::errno;
use crate::sys::ifreq::Interface;
use crate::sys::mmsg::{MAX_MESSAGES, NoRoom, Received, RecvBatch, SendBatch};
use crate::sys::sockaddr::link_layer;
use crate::sys::socket::{bind, get_option, has_lost_interface, set_buffer, set_option};
use crate::virtio::{Framing, HEADER_LEN, Header, decode, encode};
use crate::{Common, Duplicates, Layer, Link, OpenError, Sent};

/// Frames requested in one system call from a quiet interface; up to [`MAX_MESSAGES`] from a busy one.
const FEW_MESSAGES: usize = 4;

/// Frames after which a call of [`Link::recv`] makes no further system call.
const BURST_PACKETS: usize = 64;

/// Bytes after which a call of [`Link::recv`] makes no further system call.
const BURST_BYTES: usize = 256 << 10;

/// Longest frame.
const LONGEST: usize = 65_575 + eth::EthHeader::LEN + 2 * vlan::VlanHeader::LEN;

/// Bytes of a frame that go to a small page.
const FRONT: usize = Memory::SMALL - Memory::HEADROOM;

/// Size of the socket buffer in each direction, in bytes.
const SOCKET_BUFFER: i32 = 8 << 20;

/// A packet socket on one interface.
#[derive(Debug)]
pub(crate) struct PacketLink {
    common: Common,
    layer: Layer,
    socket: OwnedFd,
    /// Frames sent in one system call; 1 without offloads.
    width: usize,
    slots: Vec<Slot>,
    /// Slots passed to the next system call: about twice the frames that the last call received.
    batch_len: usize,
    interface: Interface,
    /// Index of the interface when the socket was bound.
    index: i32,
    /// Receive filter of the interface; `None` for one whose frames are those of a station, which does not filter.
    filter: Option<RxFilter>,
    /// Whether the last call found the interface down.
    down: bool,
    /// Whether frames that carry no IP, or are for another station, are dropped.
    ip_only: bool,
    /// Program at the interface's ingress that drops frames behind the packet sockets, until the last of these is closed.
    ingress: Option<Arc<OwnedFd>>,
}

/// Peer device of a veth pair whose other device is the packet link's interface.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Station {
    pub(crate) mac: MacAddr,
    /// Whether the link carries IP only.
    pub(crate) ip_only: bool,
}

/// Receive buffers of one frame: a small page, which holds a frame of wire size, and a large one for the remainder of a
/// fat frame.
#[derive(Debug)]
struct Slot {
    front: Posted,
    rest: Posted,
    header: [u8; HEADER_LEN],
    control: [u8; CONTROL_LEN],
}

impl PacketLink {
    /// Makes a socket for each shard and binds it to the interface. Each frame is received by one of them, which the kernel chooses. If the
    /// link is `exclusive`, the host's own stack gets none of the interface's frames until the last descriptor is closed.
    pub(crate) fn acquire(interface: &str, exclusive: bool, shards: ShardCount) -> Result<Vec<OwnedFd>, OpenError> {
        let failed = |call| move |err: io::Error| OpenError::new(interface, call, err);
        let index = index_of(&Interface::new(interface).map_err(failed("socket"))?)?;
        let mut sockets = Vec::new();
        let mut group = None;
        for shard in shards.all() {
            let socket = socket(interface)?;
            let fd = socket.as_fd();
            if shard != ShardId::FIRST {
                // Until it has joined the group, the socket would receive every frame once more.
                cbpf::filter(fd, &steering::nothing()).map_err(failed("SO_ATTACH_FILTER"))?;
            }
            set_up(fd, interface, index)?;
            if shards != ShardCount::ONE {
                group = Some(join(fd, group, shards).map_err(|err| {
                    let hint = "a kernel before 6.13 requires an interface that is up; `ip link set` it up first";
                    failed("PACKET_FANOUT")(err).with_hint(libc::EINVAL, hint)
                })?);
                cbpf::filter(fd, &steering::received()).map_err(failed("SO_ATTACH_FILTER"))?;
            }
            sockets.push(socket);
        }
        if exclusive {
            let attached = bpf::load_drop().and_then(|program| bpf::attach_to_ingress(program.as_fd(), index));
            sockets.push(attached.map_err(|err| {
                let hint = "exclusive takes Linux 6.6, CAP_BPF and CAP_NET_ADMIN; without it the host's stack sees the frames as well";
                let failed = failed("BPF_LINK_CREATE")(err);
                failed.with_hint(libc::EINVAL, hint).with_hint(libc::EPERM, hint)
            })?);
        }
        Ok(sockets)
    }

    /// Makes a socket and binds it to an interface of the calling thread's network namespace.
    pub(crate) fn acquire_one(interface: &str) -> Result<OwnedFd, OpenError> {
        Ok(Self::acquire(interface, false, ShardCount::ONE)?.remove(0))
    }

    /// Makes a link for each shard over the sockets of an interface, and the program of an `exclusive` one.
    pub(crate) fn from_sockets(
        config: &Config,
        interface: &str,
        exclusive: bool,
        mut sockets: Vec<OwnedFd>,
        shards: ShardCount,
    ) -> Result<Vec<Self>, OpenError> {
        let failed = |call| move |err: io::Error| OpenError::new(interface, call, err);
        if sockets.len() != shards.get() + usize::from(exclusive) {
            return Err(OpenError::wrong_descriptors(&config.name, sockets.len(), shards));
        }
        let ingress = if exclusive { sockets.pop().map(Arc::new) } else { None };
        let of_socket = |socket| {
            let device = Interface::new(interface).map_err(failed("socket"))?;
            let mut link = Self::over(config, device, socket, None)?;
            let filter = RxFilter::open(link.socket.as_fd(), link.index).map_err(failed("PACKET_MR_ALLMULTI"))?;
            (link.filter, link.ingress) = (Some(filter), ingress.clone());
            Ok(link)
        };
        sockets.into_iter().map(of_socket).collect()
    }

    /// Link over a socket that is bound to the interface, whose frames are those of a `station`, if not the host's own.
    pub(crate) fn over(
        config: &Config,
        device: Interface,
        socket: OwnedFd,
        station: Option<Station>,
    ) -> Result<Self, OpenError> {
        let name = device.name().to_owned();
        let interface = name.as_str();
        let failed = |call| move |err: io::Error| OpenError::new(interface, call, err);
        let index = index_of(&device)?;
        let mac = device.mac().map_err(failed("SIOCGIFHWADDR"))?;
        let mac = mac
            .ok_or(io::ErrorKind::Unsupported)
            .map_err(|kind| failed("SIOCGIFHWADDR")(io::Error::new(kind, "not an Ethernet interface")))?;
        let mtu = mtu_of(&device, interface, config.mtu)?;

        let mut offloads = Offloads::EMPTY;
        // This side cannot refuse a frame of the interface, so this type is always accepted.
        offloads.add("rx-super-packets", Ok(Some("as the interface delivers them".to_owned())));
        for name in [TX_CSUM, TX_TSO4, TX_TSO6, TX_USO] {
            offloads.add(name, if config.offloads { Ok(None) } else { Err(BY_CONFIGURATION.to_owned()) });
        }
        let (features, send, recv) = match config.offloads {
            true => (features(&offloads), MAX_MESSAGES, MAX_MESSAGES),
            false => (Features::NONE, 1, 1),
        };
        let slot =
            || Slot { front: Posted::new(), rest: Posted::new(), header: [0; HEADER_LEN], control: [0; CONTROL_LEN] };
        Ok(Self {
            common: Common { mtu, ..Common::new(&config.name, config.mtu, offloads, features) },
            layer: Layer::Ethernet(station.map_or(mac, |station| station.mac)),
            socket,
            width: send,
            slots: std::iter::repeat_with(slot).take(recv).collect(),
            batch_len: FEW_MESSAGES.min(recv),
            interface: device,
            index,
            filter: None,
            down: false,
            ip_only: station.is_some_and(|station| station.ip_only),
            ingress: None,
        })
    }

    /// Tells whether a frame carries IP, and is for the node or a group.
    fn is_ip(&self, packet: &Packet) -> bool {
        let Ok(header) = eth::EthHeader::ref_from(packet.head()) else { return false };
        let is_ip = matches!(header.ethertype(), EtherType::IPV4 | EtherType::IPV6) && packet.meta.vlan.is_none();
        let dst = header.dst();
        let is_group = dst.is_multicast() && dst != MacAddr::BROADCAST;
        is_ip && (is_group || self.layer == Layer::Ethernet(dst))
    }

    /// Checks whether the interface is up again. The socket reports once that it went down, and never that it is
    /// up again.
    #[cold]
    fn see_if_back(&mut self) -> io::Result<()> {
        self.interface.check_up(self.index).map_err(|(call, err)| failed(&self.common.name, call, &err))?;
        if self.is_gone() {
            return Err(failed(&self.common.name, "getsockname", &io::Error::from_raw_os_error(libc::ENODEV)));
        }
        // Clears the pending ENETDOWN, which is still there if another call found the interface down.
        let _ = socket_error(&self.socket);
        self.down = false;
        Ok(())
    }

    fn went_down(&mut self, call: &'static str, err: &io::Error) -> io::Error {
        self.down = true;
        failed(&self.common.name, call, err)
    }

    /// Makes one system call. Returns the number of frames received, and their bytes.
    fn recv_batch(&mut self, mem: &Memory, out: &mut Vec<Packet>) -> io::Result<(usize, usize)> {
        let mut batch = RecvBatch::new();
        for slot in &mut self.slots[..self.batch_len] {
            let front = slot.front.room(mem, Memory::HEADROOM, FRONT);
            let (Ok(front), Ok(rest)) = (front, slot.rest.room(mem, 0, LONGEST - FRONT)) else { break };
            batch.push(&mut [], &mut slot.control, [&mut slot.header, &mut front[..FRONT], rest]);
        }
        if batch.is_empty() {
            return Ok((0, 0));
        }
        let received = match batch.recv(self.socket.as_fd()) {
            Ok(received) => received,
            Err(err) if err.kind() == io::ErrorKind::WouldBlock => return Ok((0, 0)),
            // The kernel has dropped a frame whose offload a virtio-net header cannot describe.
            Err(err) if errno(&err) == libc::EINVAL => {
                self.common.stats.rx_drop(DropReason::VirtioHeader);
                return Ok((0, 0));
            }
            Err(err) => return Err(self.went_down("recvmmsg", &err)),
        };
        self.common.stats.rx_calls += u64::from(!received.is_empty());
        self.batch_len = (2 * received.len()).clamp(FEW_MESSAGES.min(self.slots.len()), self.slots.len());
        let mut bytes = 0;
        let mut slots = std::mem::take(&mut self.slots);
        for (slot, received) in slots.iter_mut().zip(&received) {
            match slot.received(mem, received) {
                Ok(packet) if self.ip_only && !self.is_ip(&packet) => {
                    self.common.stats.rx_drop(DropReason::EthNotForUs);
                }
                Ok(packet) => {
                    bytes += packet.len();
                    self.common.stats.received(&packet);
                    out.push(packet);
                }
                Err(reason) => self.common.stats.rx_drop(reason),
            }
        }
        self.slots = slots;
        Ok((received.len(), bytes))
    }
}

impl Batches for PacketLink {
    fn send_batch(&mut self, packets: &[Packet]) -> io::Result<usize> {
        let prepare = |packet: &Packet| {
            let tag = vlan_tag(packet);
            let header = encode(packet, tag.map_or(0, |tag| tag.len() as u16))?;
            Some((header.to_bytes(), tag))
        };
        let prepared: ArrayVec<_, MAX_MESSAGES> = packets.iter().take(self.width).map_while(prepare).collect();
        let mut batch = SendBatch::new();
        for ((header, tag), packet) in prepared.iter().zip(packets) {
            let pushed = match packet.meta.cut {
                Cut::Frames(_) => {
                    packet.frames().try_for_each(|frame| batch.push(&[], &[], [&header[..], frame].into_iter()))
                }
                Cut::Whole | Cut::Gso(_) | Cut::Fragment => {
                    batch.push(&[], &[], std::iter::once(&header[..]).chain(tagged(packet, tag.as_ref())))
                }
            };
            match pushed {
                Ok(()) => {}
                Err(NoRoom::Batch) => break,
                Err(NoRoom::Packet) => return Err(io::ErrorKind::InvalidData.into()),
            }
        }
        if batch.is_empty() {
            return Err(io::ErrorKind::InvalidData.into());
        }
        batch.send(self.socket.as_fd())
    }

    #[cold]
    fn refused(&mut self, packet: &Packet, err: &io::Error) -> io::Result<Refused> {
        let reason = match errno(err) {
            libc::EAGAIN => return Ok(Refused::Stop(Sent::Busy)),
            libc::EINVAL | libc::EIO => {
                if self.common.offloads.give_up(packet, &failed(&self.common.name, "sendmmsg", err).to_string()) {
                    self.common.features = features(&self.common.offloads);
                    return Ok(Refused::Stop(Sent::Refit));
                }
                DropReason::TxError
            }
            libc::ENETDOWN | libc::ENXIO | libc::ENODEV | libc::EBADF => {
                return Err(self.went_down("sendmmsg", err));
            }
            libc::EMSGSIZE => DropReason::PacketTooBig,
            libc::ENOBUFS | libc::ENOMEM => DropReason::TxQueueFull,
            _ => DropReason::TxError,
        };
        self.common.stats.tx_drop(reason);
        Ok(Refused::Dropped)
    }

    fn stats_mut(&mut self) -> &mut LinkStats {
        &mut self.common.stats
    }
}

impl Slot {
    /// The received frame.
    fn received(&mut self, mem: &Memory, received: &Received) -> Result<Packet, DropReason> {
        let len = received.len.saturating_sub(HEADER_LEN);
        let mut packet = Packet::from_buf(self.front.take(len.min(FRONT), Memory::HEADROOM, FRONT));
        if let Some(more) = len.checked_sub(FRONT).filter(|&more| more > 0) {
            packet.push_frag(self.rest.take(more, 0, LONGEST - FRONT)).map_err(|_| DropReason::NoMemory)?;
        }
        if received.truncated || received.len < HEADER_LEN {
            return Err(DropReason::IpTruncated);
        }
        let header = Header::from_bytes(self.header);
        decode(&header, Framing::Ethernet, packet.head(), len)?.apply(mem, &mut packet)?;
        let messages = cmsg::iter(self.control.get(..received.control_len).unwrap_or_default());
        for (_, _, data) in
            messages.filter(|&(level, kind, _)| (level, kind) == (libc::SOL_PACKET, libc::PACKET_AUXDATA))
        {
            match tag_of(data) {
                None => {}
                Some((EtherType::VLAN, tci)) => packet.meta.vlan = Some(tci),
                // Metadata is for 802.1Q alone.
                Some((tpid, tci)) => offload::push_tag(mem, &mut packet, tpid, tci)?,
            }
        }
        Ok(packet)
    }
}

/// Makes a packet socket, not bound to an interface.
fn socket(interface: &str) -> Result<OwnedFd, OpenError> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None).map_err(|err| {
        OpenError::new(interface, "socket AF_PACKET", err.into())
            .with_hint(libc::EPERM, "needs CAP_NET_RAW; run as root or grant it")
    })
}

/// Sets the options of a packet socket, and binds it to the interface of that index.
fn set_up(fd: BorrowedFd<'_>, interface: &str, index: i32) -> Result<(), OpenError> {
    let failed = |call| move |err: io::Error| OpenError::new(interface, call, err);
    let option = |name, call| set_option(fd, libc::SOL_PACKET, name, 1).map_err(failed(call));
    option(libc::PACKET_VNET_HDR, "PACKET_VNET_HDR")?;
    option(libc::PACKET_AUXDATA, "PACKET_AUXDATA")?;
    option(libc::PACKET_IGNORE_OUTGOING, "PACKET_IGNORE_OUTGOING")?;
    set_buffer(fd, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, SOCKET_BUFFER).map_err(failed("SO_RCVBUF"))?;
    set_buffer(fd, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, SOCKET_BUFFER).map_err(failed("SO_SNDBUF"))?;
    bind(fd, &link_layer(index)).map_err(failed("bind"))
}

/// Index of an interface.
fn index_of(device: &Interface) -> Result<i32, OpenError> {
    device.index().map_err(|err| {
        OpenError::new(device.name(), "SIOCGIFINDEX", err)
            .with_hint(libc::ENODEV, "no such interface; `ip link` lists those there are")
    })
}

/// Adds a bound socket to a group whose sockets share the interface's frames (packet(7), `PACKET_FANOUT`), or to a new one. Returns the
/// group's number.
///
/// Kernels before 6.2 ignore `IGNORE_OUTGOING`; there the sockets' filter drops frames that this host sends.
fn join(socket: BorrowedFd<'_>, group: Option<u16>, shards: ShardCount) -> io::Result<u16> {
    let mut kind = libc::PACKET_FANOUT_CBPF | libc::PACKET_FANOUT_FLAG_IGNORE_OUTGOING;
    if group.is_none() {
        kind |= libc::PACKET_FANOUT_FLAG_UNIQUEID;
    }
    let request = u32::from(group.unwrap_or(0)) | kind << 16;
    set_option(socket, libc::SOL_PACKET, libc::PACKET_FANOUT, request.cast_signed())?;
    match group {
        Some(group) => Ok(group),
        None => {
            cbpf::steer_fanout(socket, &steering::by_spi_or_flow(shards))?;
            // The low half of the option is the number.
            Ok(get_option(socket, libc::SOL_PACKET, libc::PACKET_FANOUT)? as u16)
        }
    }
}

/// Features of the socket: the kernel's offloads, and many packets in one call.
fn features(offloads: &Offloads) -> Features {
    Features { frames: true, ..offloads.features() }
}

/// Configured MTU, or the interface's own.
fn mtu_of(interface: &Interface, name: &str, configured: Option<u16>) -> Result<usize, OpenError> {
    let limit = interface.mtu().map_err(|err| OpenError::new(name, "SIOCGIFMTU", err))?;
    let mtu = configured.map_or(limit, usize::from);
    if mtu > limit {
        let text = format!("{mtu} is more than the interface's {limit}");
        return Err(OpenError::new(name, "mtu", io::Error::new(io::ErrorKind::InvalidInput, text)));
    }
    Ok(mtu)
}

/// The VLAN tag in `struct tpacket_auxdata`, which the kernel took out of the frame: its type, and its control information.
fn tag_of(auxdata: &[u8]) -> Option<(EtherType, u16)> {
    let status = u32::from_ne_bytes(*auxdata.first_chunk()?);
    // The tag follows status, len, snaplen, mac and net.
    let tci = u16::from_ne_bytes(*auxdata.get(16..)?.first_chunk()?);
    let tpid = u16::from_ne_bytes(*auxdata.get(18..)?.first_chunk()?);
    let tpid = if status & libc::TP_STATUS_VLAN_TPID_VALID == 0 { EtherType::VLAN } else { EtherType(tpid) };
    (status & libc::TP_STATUS_VLAN_VALID != 0).then_some((tpid, tci))
}

impl Link for PacketLink {
    fn common(&self) -> &Common {
        &self.common
    }

    fn common_mut(&mut self) -> &mut Common {
        &mut self.common
    }

    fn host_index(&self) -> Option<u32> {
        u32::try_from(self.index).ok()
    }

    fn set_mtu(&mut self, mtu: Option<u16>) -> Result<(), OpenError> {
        self.common.mtu = mtu_of(&self.interface, self.interface.name(), mtu)?;
        self.common.configured_mtu = mtu;
        Ok(())
    }

    fn look(&mut self) -> io::Result<bool> {
        let mtu = self.interface.mtu_now(self.index, self.common.configured_mtu);
        let mtu = mtu.map_err(|(call, err)| self.went_down(call, &err))?;
        if let (Some(filter), Layer::Ethernet(own)) = (&mut self.filter, self.layer) {
            filter.follow_address(self.socket.as_fd(), &self.interface, own)?;
        }
        Ok(std::mem::replace(&mut self.common.mtu, mtu) != mtu)
    }

    fn is_gone(&self) -> bool {
        has_lost_interface(self.socket.as_fd(), self.index)
    }

    fn duplicate(&self) -> io::Result<Option<Duplicates>> {
        Duplicates::of([self.socket.as_fd()], self.ingress.as_deref().map(AsFd::as_fd)).map(Some)
    }

    fn set_mac(&mut self, mac: eth::MacAddr) -> Result<(), OpenError> {
        let set = match opener() {
            Some(opener) => opener.set_mac(self.index as u32, mac),
            None => self.interface.set_mac(mac),
        };
        set.map_err(|err| OpenError::new(self.interface.name(), "SIOCSIFHWADDR", err))?;
        self.layer = Layer::Ethernet(mac);
        Ok(())
    }

    fn set_promiscuous(&mut self, on: bool) -> io::Result<()> {
        match &mut self.filter {
            Some(filter) => filter.set_promiscuous(self.socket.as_fd(), &self.interface, on),
            None => Ok(()),
        }
    }

    fn layer(&self) -> Layer {
        self.layer
    }

    fn poll_fds(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.socket.as_fd()]
    }

    fn recv(&mut self, mem: &Memory, out: &mut Vec<Packet>) -> io::Result<()> {
        if self.down {
            self.see_if_back()?;
        }
        let (mut packets, mut bytes) = (0, 0);
        while packets < BURST_PACKETS && bytes < BURST_BYTES {
            let requested = self.batch_len;
            let (more, more_bytes) = self.recv_batch(mem, out)?;
            (packets, bytes) = (packets + more, bytes + more_bytes);
            // A short batch: the socket is empty. `self.batch_len` is already the size of the next batch.
            if more < requested {
                break;
            }
        }
        Ok(())
    }

    fn send(&mut self, burst: &mut Vec<Packet>) -> io::Result<Sent> {
        burst::send(self, burst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vlan_tag_is_read_with_its_type_if_its_flags_are_set() {
        let mut auxdata = [0; 20];
        auxdata[16..18].copy_from_slice(&0x2007_u16.to_ne_bytes());
        auxdata[18..20].copy_from_slice(&0x88a8_u16.to_ne_bytes());
        let tag = |status: u32| {
            let mut auxdata = auxdata;
            auxdata[..4].copy_from_slice(&status.to_ne_bytes());
            assert_eq!(tag_of(&auxdata[..19]), None);
            tag_of(&auxdata)
        };
        assert_eq!((tag(0), tag(libc::TP_STATUS_VLAN_TPID_VALID)), (None, None));
        assert_eq!(tag(libc::TP_STATUS_VLAN_VALID), Some((EtherType::VLAN, 0x2007)));
        let both = libc::TP_STATUS_VLAN_VALID | libc::TP_STATUS_VLAN_TPID_VALID;
        assert_eq!(tag(both), Some((EtherType::SERVICE_VLAN, 0x2007)));
    }
}
