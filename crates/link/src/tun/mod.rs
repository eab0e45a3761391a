//! TUN and TAP devices (tun(4)): packets or frames to and from this host's own stack. A device may have several queues, and each shard
//! a link over its own.
//!
//! With offloads each read and write has a virtio-net header in front, and moves up to 64 KiB: TCP and UDP are
//! unsegmented and without checksums in both directions. Without offloads, every read and write is one plain packet.

mod host;
mod open;

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use arrayvec::ArrayVec;
use base::DropReason;
use packet::{Memory, Packet};
use wire::{MacAddr, eth, vlan};

pub use host::HostDevice;
pub(crate) use open::other_station;

use crate::config::DEFAULT_MTU;
use crate::error::failed;
use crate::flow_hash::FlowHash;
use crate::opener::opener;
use crate::pieces::{tagged, vlan_tag};
use crate::posted::Posted;
use crate::sys::ifreq::{Interface, tun_is_attached, tun_set_persistent};
use crate::sys::mmsg::MAX_PIECES;
use crate::sys::{errno, uninterrupted};
use crate::virtio::{Framing, HEADER_LEN, Header, decode, encode};
use crate::{Common, Duplicates, Layer, Link, OpenError, Sent};

/// Limit of packets that one call of [`Link::recv`] returns.
const BURST_PACKETS: usize = 64;

/// Bytes after which a burst ends: packets should still be in the cache when they are forwarded.
const BURST_BYTES: usize = 256 << 10;

/// A TUN or TAP device.
#[derive(Debug)]
pub(crate) struct TunLink {
    common: Common,
    layer: Layer,
    queues: Vec<OwnedFd>,
    /// The queue to be read next.
    next: usize,
    /// Whether packets have virtio-net headers.
    virtio: bool,
    /// The longest packet that can be read.
    longest: usize,
    posted: Posted,
    flow_hash: FlowHash,
    interface: Interface,
    /// Index of the interface.
    index: i32,
    /// Whether the last call found the device down.
    down: bool,
    /// Whether a call has found the queues without a device (`EBADFD`).
    gone: bool,
    /// Whether this is the first shard's link, to which what exists once belongs.
    is_first: bool,
    /// Whether the device is the node's own.
    owned: bool,
}

impl TunLink {
    /// Layer of a TAP device before its address is known.
    pub(crate) const TAP: Layer = Layer::Ethernet(MacAddr::ZERO);

    /// Reads one packet from queue `at`; `None` if the queue is empty, or no page is free.
    fn read_one(&mut self, at: usize, mem: &Memory) -> io::Result<Option<Read>> {
        let Ok(room) = self.posted.room(mem, Memory::HEADROOM, self.longest) else { return Ok(None) };
        let mut header = [0; HEADER_LEN];
        let front = if self.virtio { HEADER_LEN } else { 0 };
        let queue = self.queues[at].as_fd();
        let mut slices = [IoSliceMut::new(&mut header[..front]), IoSliceMut::new(room)];
        let read = uninterrupted(|| Ok(rustix::io::readv(queue, &mut slices)?));
        let len = match read {
            Ok(len) => len.saturating_sub(front),
            Err(err) if err.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(err) => {
                self.gone |= errno(&err) == libc::EBADFD;
                return Err(failed(&self.common.name, "readv", &err));
            }
        };
        let mut packet = Packet::from_buf(self.posted.take(len, Memory::HEADROOM, self.longest));
        if !self.virtio {
            return Ok(Some(Read::Packet(packet)));
        }
        let framing = if self.layer == Layer::Ip { Framing::Ip } else { Framing::Ethernet };
        let decoded = decode(&Header::from_bytes(header), framing, packet.head(), len).map_err(DropReason::from);
        match decoded.and_then(|decoded| decoded.apply(mem, &mut packet)) {
            Ok(()) => Ok(Some(Read::Packet(packet))),
            Err(reason) => Ok(Some(Read::Bad(reason))),
        }
    }

    /// Writes one packet.
    fn write_one(&self, packet: &Packet) -> io::Result<()> {
        let tag = vlan_tag(packet);
        let tag_len = tag.map_or(0, |tag| tag.len() as u16);
        let header = encode(packet, tag_len).ok_or(io::ErrorKind::InvalidData)?;
        let bytes = header.to_bytes();
        let mut pieces: ArrayVec<IoSlice<'_>, MAX_PIECES> = ArrayVec::new();
        if self.virtio {
            pieces.push(IoSlice::new(&bytes));
        } else if header != Header::default() {
            return Err(io::ErrorKind::InvalidData.into());
        }
        for piece in tagged(packet, tag.as_ref()) {
            pieces.try_push(IoSlice::new(piece)).map_err(|_| io::ErrorKind::InvalidData)?;
        }
        let queue = self.queues[self.queue_of(packet)].as_fd();
        uninterrupted(|| Ok(rustix::io::writev(queue, &pieces)?))?;
        Ok(())
    }

    /// Queue that a packet is written to: one per flow, which keeps a flow in order; the kernel's replies use the same
    /// queue.
    fn queue_of(&self, packet: &Packet) -> usize {
        let l3 = if self.layer == Layer::Ip { 0 } else { eth::EthHeader::LEN };
        self.flow_hash.queue(packet, l3, self.queues.len())
    }

    /// Handles an error of the kernel about a packet. `None` if the packet was dropped and the burst goes on.
    #[cold]
    fn refused(&mut self, packet: &Packet, err: &io::Error) -> io::Result<Option<Sent>> {
        let reason = match errno(err) {
            libc::EAGAIN => return Ok(Some(Sent::Busy)),
            libc::EIO if !self.interface.is_up().unwrap_or(false) => {
                self.down = true;
                return Err(failed(&self.common.name, "writev", &io::Error::from_raw_os_error(libc::ENETDOWN)));
            }
            libc::EINVAL | libc::EIO => {
                if self.common.offloads.give_up(packet, &failed(&self.common.name, "writev", err).to_string()) {
                    self.common.features = self.common.offloads.features();
                    return Ok(Some(Sent::Refit));
                }
                DropReason::TxError
            }
            number @ (libc::EBADFD | libc::EBADF | libc::ENODEV) => {
                self.gone |= number == libc::EBADFD;
                return Err(failed(&self.common.name, "writev", err));
            }
            libc::EMSGSIZE => DropReason::PacketTooBig,
            libc::ENOBUFS | libc::ENOMEM => DropReason::TxQueueFull,
            _ => DropReason::TxError,
        };
        self.common.stats.tx_drop(reason);
        Ok(None)
    }
}

/// Longest IP packet.
const LONGEST_PACKET: usize = 65_575;

/// Longest packet that can be read from a device of that MTU.
fn longest(virtio: bool, mtu: usize, layer: Layer) -> usize {
    let framing = if layer == Layer::Ip { 0 } else { eth::EthHeader::LEN + 2 * vlan::VlanHeader::LEN };
    framing + if virtio { LONGEST_PACKET } else { mtu }
}

/// Result of a read.
enum Read {
    Packet(Packet),
    Bad(DropReason),
}

impl Link for TunLink {
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
        let mtu = mtu.map_or(DEFAULT_MTU, usize::from);
        let set = match opener() {
            Some(opener) => opener.set_mtu(self.index as u32, mtu as u32),
            None => self.interface.set_mtu(mtu),
        };
        set.map_err(|err| OpenError::new(&self.common.name, "SIOCSIFMTU", err))?;
        (self.common.mtu, self.common.configured_mtu) = (mtu, u16::try_from(mtu).ok());
        self.longest = longest(self.virtio, mtu, self.layer);
        Ok(())
    }

    /// Sets the address of our end; the host's end keeps its own.
    fn set_mac(&mut self, mac: MacAddr) -> Result<(), OpenError> {
        if !matches!(self.layer, Layer::Ethernet(_)) {
            return Err(OpenError::no_address(self.name()));
        }
        self.layer = Layer::Ethernet(mac);
        Ok(())
    }

    fn layer(&self) -> Layer {
        self.layer
    }

    /// Checks only whether the device is up: the MTU is this link's own. A device that was renamed or moved to another
    /// namespace keeps working; a deleted one is reported by the next read.
    fn look(&mut self) -> io::Result<bool> {
        self.down = match self.interface.is_up() {
            Ok(up) => !up,
            Err(err) if errno(&err) == libc::ENODEV => false,
            Err(err) => return Err(failed(&self.common.name, "SIOCGIFFLAGS", &err)),
        };
        match self.down {
            true => Err(failed(&self.common.name, "SIOCGIFFLAGS", &io::Error::from_raw_os_error(libc::ENETDOWN))),
            false => Ok(false),
        }
    }

    fn is_gone(&self) -> bool {
        self.gone
    }

    fn duplicate(&self) -> io::Result<Option<Duplicates>> {
        Duplicates::of(self.queues.iter().map(AsFd::as_fd), None).map(Some)
    }

    fn own(&mut self) {
        self.owned = self.is_first;
    }

    fn keep(&mut self, kept: bool) -> io::Result<()> {
        if !self.owned {
            return Ok(());
        }
        let set = tun_set_persistent(self.queues[0].as_fd(), kept);
        set.map_err(|err| failed(&self.common.name, "TUNSETPERSIST", &err))
    }

    fn has_device(&self) -> bool {
        tun_is_attached(self.queues[0].as_fd())
    }

    fn poll_fds(&self) -> Vec<BorrowedFd<'_>> {
        self.queues.iter().map(AsFd::as_fd).collect()
    }

    fn recv(&mut self, mem: &Memory, out: &mut Vec<Packet>) -> io::Result<()> {
        if self.down {
            // A read does not report that the device is up again.
            self.look()?;
        }
        let mut packets = 0;
        let mut bytes = 0;
        let mut empty = 0;
        while packets < BURST_PACKETS && bytes < BURST_BYTES && empty < self.queues.len() {
            match self.read_one(self.next, mem)? {
                Some(read) => {
                    packets += 1;
                    self.common.stats.rx_calls += 1;
                    match read {
                        Read::Packet(packet) => {
                            bytes += packet.len();
                            self.common.stats.received(&packet);
                            out.push(packet);
                        }
                        Read::Bad(reason) => self.common.stats.rx_drop(reason),
                    }
                }
                None => {
                    empty += 1;
                    self.next = (self.next + 1) % self.queues.len();
                }
            }
        }
        Ok(())
    }

    fn send(&mut self, burst: &mut Vec<Packet>) -> io::Result<Sent> {
        let mut gone = 0;
        let outcome = loop {
            let Some(packet) = burst.get(gone) else { break Ok(Sent::All) };
            match self.write_one(packet) {
                Ok(()) => {
                    self.common.stats.tx_calls += 1;
                    self.common.stats.sent(packet);
                }
                Err(err) => match self.refused(packet, &err) {
                    Ok(None) => {}
                    Ok(Some(stop)) => break Ok(stop),
                    Err(err) => break Err(err),
                },
            }
            gone += 1;
        };
        burst.drain(..gone);
        outcome
    }
}
