//! AF_XDP: whole frames of an interface of this host, taken from its receive queues before the host's stack, in frames
//! of memory that packets then point into.
//!
//! A frame goes back to its ring with the last packet that points into it. The kernel copies received bytes into
//! frames, or the driver writes them there itself where it can (zero copy). Nothing is offloaded: packets to be sent
//! are segmented, checksummed and copied here.

mod attach;
mod pieces;

use std::io;
use std::num::NonZeroU32;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use base::{DropReason, ShardCount};
use driver::XdpMode;
use offload::Features;
use packet::{Copied, CopyReason, Cut, Memory, Packet};
use rustix::net::sockopt::socket_error;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, recv, socket_with};
use wire::{eth, vlan};

use self::attach::{Attached, attach, unfit};
use self::pieces::Pieces;
use crate::acquired::Acquired;
use crate::burst::{self, Batches, Refused};
use crate::config::Config;
use crate::error::failed;
use crate::offloads::Offloads;
use crate::opener::opener;
use crate::pieces::{tagged, vlan_tag};
use crate::rx_filter::RxFilter;
use crate::stats::LinkStats;
use crate::sys::errno;
use crate::sys::ifreq::Interface;
use crate::sys::sockaddr::link_layer_of;
use crate::sys::socket::{bind, has_lost_interface};
use crate::sys::xsk::{Xsk, XskQueue};
use crate::{Common, Layer, Link, OpenError, RingState, Sent};

/// Limit of frames that one call of [`Link::recv`] takes from each queue.
const BURST_FRAMES: usize = 64;

/// Headroom that the kernel reserves in front of each frame (`XDP_PACKET_HEADROOM`).
const HEADROOM: u32 = 256;

/// Bytes of a frame in front of the IP packet: the Ethernet header, and a VLAN tag.
const FRAMING: usize = eth::EthHeader::LEN + vlan::VlanHeader::LEN;

/// Sizes of frames: two to a page, or all of one.
const FRAME_SIZES: [u32; 2] = [2048, 4096];

/// Reserved EtherType (IEEE 802 numbers), which no station sends. A packet socket bound to it receives no frames, but
/// gets an error when the interface goes down, which AF_XDP sockets do not.
const UNUSED_ETHERTYPE: u16 = 0xffff;

/// No offloads; packets in any number of pieces, which are copied.
const FEATURES: Features = Features { sg: true, frag_list: true, frames: true, ..Features::NONE };

/// AF_XDP sockets on one interface, one for each of a shard's queues.
#[derive(Debug)]
pub(crate) struct XdpLink {
    common: Common,
    layer: Layer,
    /// Shared by the links of all shards. Detached from the interface before the sockets of the last one are closed; until then the host's
    /// stack receives the frames of queues whose sockets are closed.
    attached: Arc<Attached>,
    queues: Vec<RxQueue>,
    shape: Shape,
    ring: NonZeroU32,
    zero_copy: bool,
    rx_no_buffer: u64,
    /// Copies made for sending that are not in the ledger yet.
    copied: Copied,
    /// Packet socket whose error reports that the interface went down.
    watch: OwnedFd,
    /// Receive filter of the interface, by memberships of `watch`.
    filter: RxFilter,
    interface: Interface,
    index: i32,
    down: bool,
}

/// One receive queue. The first one of a shard also sends its packets.
#[derive(Debug)]
struct RxQueue {
    xsk: Xsk,
    pieces: Pieces,
    dry: bool,
}

/// Frame size, and whether a packet may need several frames.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Shape {
    frame_size: u32,
    several: bool,
}

impl Shape {
    /// The smallest frames that packets of this MTU fit.
    fn of(mtu: usize) -> Self {
        let fits = |&size: &u32| mtu + FRAMING <= (size - HEADROOM) as usize;
        match FRAME_SIZES.into_iter().find(fits) {
            Some(frame_size) => Self { frame_size, several: false },
            None => Self { frame_size: FRAME_SIZES[1], several: true },
        }
    }

    /// The largest MTU whose packets fit.
    fn largest_mtu(self) -> usize {
        if self.several { usize::from(u16::MAX) } else { (self.frame_size - HEADROOM) as usize - FRAMING }
    }
}

impl XdpLink {
    /// Attaches the program to the interface, and makes a packet socket for each shard with a queue, and a socket for each receive queue.
    pub(crate) fn acquire(
        interface: &str,
        ring: u16,
        mode: XdpMode,
        shards: ShardCount,
    ) -> Result<Acquired, OpenError> {
        let failed = |call| move |err: io::Error| OpenError::new(interface, call, err);
        let device = Interface::new(interface).map_err(failed("socket"))?;
        let index = device.index().map_err(|err| {
            failed("SIOCGIFINDEX")(err).with_hint(libc::ENODEV, "no such interface; `ip link` lists those there are")
        })?;
        let shape = Shape::of(device.mtu().map_err(failed("SIOCGIFMTU"))?);
        let count = device.rx_queues().map_err(failed("ETHTOOL_GCHANNELS"))?;
        let watch = |_| {
            watch(index).map_err(|err| {
                failed("socket AF_PACKET")(err).with_hint(libc::EPERM, "needs CAP_NET_RAW; run as root or grant it")
            })
        };
        let watches = (0..shards.get().min(count as usize)).map(watch).collect::<Result<Vec<_>, _>>()?;
        let (program, why_generic) = attach((interface, index), count, shape.several, mode)?;
        let charged = u32::from(ring) * 2 * shape.frame_size;
        let sockets = (0..count).map(|_| attach::socket(interface, charged)).collect::<Result<Vec<_>, _>>()?;
        Ok(Acquired { descriptors: program.into_iter().chain(watches).chain(sockets).collect(), why_generic })
    }

    /// Makes links over what [`acquire`](Self::acquire) has made for `mode`: probes how the interface can be driven, and binds a socket to
    /// each of its receive queues, which are dealt to the shards in turn. No link for a shard without a queue.
    pub(crate) fn from_program(
        config: &Config,
        interface: &str,
        ring: NonZeroU32,
        mode: XdpMode,
        acquired: Acquired,
        shards: ShardCount,
    ) -> Result<Vec<Self>, OpenError> {
        let failed = |call| move |err: io::Error| OpenError::new(interface, call, err);
        let Acquired { descriptors, why_generic } = acquired;
        let given = descriptors.len();
        let mut descriptors = descriptors.into_iter();
        let (Some(map), Some(link)) = (descriptors.next(), descriptors.next()) else {
            return Err(OpenError::wrong_descriptors(&config.name, given, shards));
        };
        let attached = Attached::of([map, link], mode, why_generic);
        let device = Interface::new(interface).map_err(failed("socket"))?;
        let index = device.index().map_err(failed("SIOCGIFINDEX"))?;
        let mac = device.mac().map_err(failed("SIOCGIFHWADDR"))?;
        let mac = mac.ok_or_else(|| unfit(interface, "SIOCGIFHWADDR", "not an Ethernet interface".to_owned()))?;
        let shape = Shape::of(device.mtu().map_err(failed("SIOCGIFMTU"))?);
        let mtu = mtu_of(&device, shape, config.mtu)?;
        let count = device.rx_queues().map_err(failed("ETHTOOL_GCHANNELS"))? as usize;
        let of_shards = shards.get().min(count);
        if descriptors.len() != of_shards + count {
            return Err(OpenError::wrong_descriptors(&config.name, given, shards));
        }
        let mut watches = Vec::new();
        for watch in descriptors.by_ref().take(of_shards) {
            let filter = RxFilter::open(watch.as_fd(), index).map_err(failed("PACKET_MR_ALLMULTI"))?;
            watches.push((watch, filter));
        }

        let flags = if shape.several { libc::XDP_USE_SG } else { 0 };
        let queue = XskQueue { index, queue: 0, ring, frame_size: shape.frame_size };
        let (sockets, why_copy) = attached.open_queues(interface, descriptors, queue, flags)?;
        let zero_copy = sockets.iter().all(Xsk::is_zero_copy);
        let offloads = offloads(&attached, mode, zero_copy, why_copy);
        let attached = Arc::new(attached);
        let mut dealt = std::iter::repeat_with(Vec::new).take(watches.len()).collect::<Vec<_>>();
        for (number, xsk) in sockets.into_iter().enumerate() {
            dealt[number % watches.len()].push(RxQueue { xsk, pieces: Pieces::default(), dry: false });
        }
        let of_shard = |(queues, (watch, filter))| {
            Ok(Self {
                common: Common { mtu, ..Common::new(&config.name, config.mtu, offloads.clone(), FEATURES) },
                layer: Layer::Ethernet(mac),
                attached: Arc::clone(&attached),
                queues,
                shape,
                ring,
                zero_copy,
                rx_no_buffer: 0,
                copied: Copied::default(),
                watch,
                filter,
                interface: Interface::new(interface).map_err(failed("socket"))?,
                index,
                down: false,
            })
        };
        dealt.into_iter().zip(watches).map(of_shard).collect()
    }

    /// Checks whether the interface is up again.
    #[cold]
    fn see_if_back(&mut self) -> io::Result<()> {
        self.interface.check_up(self.index).map_err(|(call, err)| failed(&self.common.name, call, &err))?;
        if self.is_gone() {
            return Err(failed(&self.common.name, "getsockname", &io::Error::from_raw_os_error(libc::ENODEV)));
        }
        // Clears the pending ENETDOWN, which is still there if another call found the interface down.
        let _ = socket_error(&self.watch);
        self.down = false;
        Ok(())
    }

    /// Checks whether the interface went down. Discards a frame of the unused type.
    fn look_at_watch(&mut self) -> io::Result<()> {
        match recv(&self.watch, &mut [0; 1], RecvFlags::DONTWAIT) {
            Ok(_) | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(()),
            Err(err) => Err(self.went_down("recv", &err.into())),
        }
    }

    fn went_down(&mut self, call: &'static str, err: &io::Error) -> io::Error {
        self.down = true;
        failed(&self.common.name, call, err)
    }

    /// Kicks the kernel to send the frames in the ring.
    fn flush(&mut self) -> io::Result<()> {
        match self.queues[0].xsk.flush() {
            // With zero copy, a busy driver has dropped no packet.
            Ok(dropped) if !self.zero_copy => (0..dropped).for_each(|_| self.common.stats.tx_drop(DropReason::TxError)),
            Ok(_) => {}
            Err(err) => {
                self.down |= is_down(&err);
                return Err(err);
            }
        }
        Ok(())
    }

    fn longest_frame(&self) -> usize {
        self.common.mtu + FRAMING
    }
}

/// Tells whether an error says that the interface is down or gone.
fn is_down(err: &io::Error) -> bool {
    matches!(errno(err), libc::ENETDOWN | libc::ENXIO | libc::ENODEV | libc::EBADF)
}

/// Packet socket that gets an error when the interface goes down, and receives nothing.
fn watch(index: i32) -> io::Result<OwnedFd> {
    let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    bind(socket.as_fd(), &link_layer_of(index, UNUSED_ETHERTYPE))?;
    Ok(socket)
}

/// XDP modes of the link, shown as offloads.
fn offloads(attached: &Attached, mode: XdpMode, zero_copy: bool, why_copy: Option<String>) -> Offloads {
    let by_configuration = || "mode = \"generic\"".to_owned();
    let native = match attached.is_native() {
        true => Ok(None),
        false if mode == XdpMode::Generic => Err(by_configuration()),
        false => Err(attached.why_generic.clone().unwrap_or_default()),
    };
    let zero_copy = match zero_copy {
        true => Ok(None),
        false => Err(why_copy.unwrap_or_else(|| "not without xdp-native".to_owned())),
    };
    let mut offloads = Offloads::EMPTY;
    offloads.add("xdp-native", native);
    offloads.add("xdp-zero-copy", zero_copy);
    offloads
}

/// Configured MTU, or the interface's own.
fn mtu_of(interface: &Interface, shape: Shape, configured: Option<u16>) -> Result<usize, OpenError> {
    let limit = interface.mtu().map_err(|err| OpenError::new(interface.name(), "SIOCGIFMTU", err))?;
    let mtu = configured.map_or(limit, usize::from);
    if mtu > limit {
        return Err(unfit(interface.name(), "mtu", format!("{mtu} is more than the interface's {limit}")));
    }
    if mtu > shape.largest_mtu() {
        let (largest, size) = (shape.largest_mtu(), shape.frame_size);
        return Err(unfit(
            interface.name(),
            "mtu",
            format!("{mtu} is more than the {largest} that frames of {size} bytes have room for; open the link anew"),
        ));
    }
    Ok(mtu)
}

impl Batches for XdpLink {
    /// Sends as many packets as the ring has room for.
    fn send_batch(&mut self, packets: &[Packet]) -> io::Result<usize> {
        if self.down {
            return Err(io::Error::from_raw_os_error(libc::ENETDOWN));
        }
        let longest = self.longest_frame();
        let xsk = &mut self.queues[0].xsk;
        xsk.complete();
        let mut count = 0;
        let mut push = |len: usize, pieces: &mut dyn Iterator<Item = &[u8]>| {
            let room = len <= longest && xsk.send(len, pieces);
            if room {
                count += 1;
                self.copied.copies += 1;
                self.copied.bytes += len as u64;
            }
            room
        };
        let mut pushed = packets.iter().map(|packet| match packet.meta.cut {
            Cut::Frames(_) => packet.frames().all(|frame| push(frame.len(), &mut std::iter::once(frame))),
            Cut::Whole | Cut::Gso(_) | Cut::Fragment => {
                let tag = vlan_tag(packet);
                let len = packet.len() + tag.map_or(0, |tag| tag.len());
                push(len, &mut tagged(packet, tag.as_ref()))
            }
        });
        let _all = pushed.all(|pushed| pushed);
        let flushed = self.flush();
        // Frames in the ring count as sent, whatever the kick returns; none are added while the interface is down.
        match (count, packets.first()) {
            (0, Some(first)) if frame_len(first) > longest => Err(io::Error::from_raw_os_error(libc::EMSGSIZE)),
            (0, _) => Err(flushed.err().unwrap_or_else(|| io::Error::from_raw_os_error(libc::EAGAIN))),
            (count, _) => Ok(count),
        }
    }

    #[cold]
    fn refused(&mut self, _: &Packet, err: &io::Error) -> io::Result<Refused> {
        let reason = match errno(err) {
            libc::EAGAIN => return Ok(Refused::Stop(Sent::Busy)),
            libc::EMSGSIZE => DropReason::PacketTooBig,
            _ if is_down(err) => return Err(self.went_down("sendto", err)),
            _ => DropReason::TxError,
        };
        self.common.stats.tx_drop(reason);
        Ok(Refused::Dropped)
    }

    fn stats_mut(&mut self) -> &mut LinkStats {
        &mut self.common.stats
    }
}

/// Length of a packet as a frame; for packets that share a buffer, of the first.
fn frame_len(packet: &Packet) -> usize {
    match packet.meta.cut {
        Cut::Frames(_) => packet.frames().next().map_or(0, <[u8]>::len),
        Cut::Whole | Cut::Gso(_) | Cut::Fragment => packet.len() + vlan_tag(packet).map_or(0, |tag| tag.len()),
    }
}

impl Link for XdpLink {
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
        self.common.mtu = mtu_of(&self.interface, self.shape, mtu)?;
        self.common.configured_mtu = mtu;
        Ok(())
    }

    fn look(&mut self) -> io::Result<bool> {
        let mtu = self.interface.mtu_now(self.index, self.common.configured_mtu);
        let mtu = mtu.map_err(|(call, err)| self.went_down(call, &err))?.min(self.shape.largest_mtu());
        if let Layer::Ethernet(own) = self.layer {
            self.filter.follow_address(self.watch.as_fd(), &self.interface, own)?;
        }
        Ok(std::mem::replace(&mut self.common.mtu, mtu) != mtu)
    }

    fn is_gone(&self) -> bool {
        has_lost_interface(self.watch.as_fd(), self.index)
    }

    fn release(&mut self) {
        // An interface that went to another namespace and came back still has the program.
        self.attached.detach();
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
        self.filter.set_promiscuous(self.watch.as_fd(), &self.interface, on)
    }

    fn layer(&self) -> Layer {
        self.layer
    }

    fn ring(&self) -> Option<RingState> {
        let mut state = RingState {
            native: self.attached.is_native(),
            zero_copy: self.zero_copy,
            queues: self.queues.len() as u32,
            frames: self.ring.get(),
            frame_size: self.shape.frame_size,
            rx_no_buffer: self.rx_no_buffer,
            ..RingState::default()
        };
        for queue in &self.queues {
            state.held += queue.xsk.held() as u64;
            state.kernel.add(&queue.xsk.stats());
        }
        Some(state)
    }

    fn settle(&mut self, mem: &Memory) -> bool {
        for queue in &mut self.queues {
            let dry = !queue.xsk.refill();
            self.rx_no_buffer += u64::from(dry && !queue.dry);
            queue.dry = dry;
        }
        // An error is reported by the next send.
        if !self.down && self.queues[0].xsk.has_unsent() {
            let _ = self.flush();
        }
        if self.copied != Copied::default() {
            mem.copies().add_all(CopyReason::DeviceFrame, std::mem::take(&mut self.copied));
        }
        !self.down && self.queues[0].xsk.is_stuck()
    }

    fn poll_fds(&self) -> Vec<BorrowedFd<'_>> {
        let sockets = self.queues.iter().map(|queue| queue.xsk.fd());
        sockets.chain([self.watch.as_fd()]).collect()
    }

    /// None: a socket polls writable when its ring is half empty, whether or not frames are free or the device has
    /// room.
    fn room_fds(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    fn recv(&mut self, mem: &Memory, out: &mut Vec<Packet>) -> io::Result<()> {
        if self.down {
            self.see_if_back()?;
        }
        self.settle(mem);
        let before = out.len();
        for RxQueue { xsk, pieces, .. } in &mut self.queues {
            for _ in 0..BURST_FRAMES {
                match xsk.receive() {
                    None => break,
                    Some(piece) => pieces.add(piece, &mut self.common.stats, out),
                }
            }
            xsk.release();
        }
        if out.len() == before { self.look_at_watch() } else { Ok(()) }
    }

    fn send(&mut self, burst: &mut Vec<Packet>) -> io::Result<Sent> {
        if self.down {
            self.see_if_back()?;
        }
        burst::send(self, burst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_as_small_as_the_mtu_allows() {
        let (small, page) = (2048 - 256 - 18, 4096 - 256 - 18);
        let cases = [
            (1500, 2048, false),
            (small, 2048, false),
            (small + 1, 4096, false),
            (page, 4096, false),
            (page + 1, 4096, true),
            (65_535, 4096, true),
        ];
        for (mtu, frame_size, several) in cases {
            let shape = Shape::of(mtu);
            assert_eq!(shape, Shape { frame_size, several }, "{mtu}");
            assert!(shape.largest_mtu() >= mtu);
        }
    }
}
