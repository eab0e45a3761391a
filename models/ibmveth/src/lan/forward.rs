//! Forwarding: choice of the adapters that receive a frame.

use wire::MacAddr;

use super::deliver::Sent;
use super::{Firmware, Lan, Unit};
use crate::attributes::Attributes;
use crate::descriptor::{BufDesc, FrameFlags};
use crate::error::Refusal;

/// Bytes of an Ethernet header, and of one with a tag.
const HEADER: usize = 14;
pub(crate) const TAGGED_HEADER: usize = 18;

/// Maximum length of a frame: the size of a transmit buffer.
const MAX_FRAME: usize = 1 << 16;

/// Minimum MSS of a fat frame, in bytes.
pub(crate) const MIN_MSS: u16 = 224;

/// Result of a send call.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[must_use]
pub struct SendAnswer {
    /// Result.
    pub result: Result<(), Refusal>,
    /// Correlator to continue a call that was answered with [`Refusal::Busy`].
    pub correlator: u64,
}

/// Header of a frame.
#[derive(Clone, Copy, Debug)]
struct EthHeader {
    dst: MacAddr,
    src: MacAddr,
    tag: Option<u16>,
}

impl Lan {
    /// Sends the frame that `descs` describe (`H_SEND_LOGICAL_LAN`), with the MSS of a fat one. The first buffer must
    /// hold the header.
    ///
    /// The result is [`Refusal::Parameter`] for an adapter that is not open, descriptors that are invalid, not mapped,
    /// too many or differ in their flags, a frame shorter than its header or longer than 64 KiB, and flags that were
    /// not negotiated; [`Refusal::Dropped`] if there is no receiver, or none with a buffer; [`Refusal::Busy`] if the
    /// call must be repeated for further receivers.
    pub fn send(&mut self, unit: Unit, descs: &[BufDesc], correlator: u64, mss: u16) -> SendAnswer {
        self.counters.calls += 1;
        let mut next = correlator;
        let result = self.forward(unit, descs, &mut next, mss);
        SendAnswer { result, correlator: next }
    }

    fn forward(&mut self, unit: Unit, descs: &[BufDesc], next: &mut u64, mss: u16) -> Result<(), Refusal> {
        let flags = self.describe(unit, descs, mss)?;
        let port = &self.ports[unit.0];
        let header = descs.first().and_then(|desc| port.io.bytes(desc.address(), desc.len().min(TAGGED_HEADER)));
        let EthHeader { dst, src, tag } = header.and_then(EthHeader::read).ok_or(Refusal::Parameter)?;
        let vid = tag.map(|tag| tag & 0xfff).filter(|&vid| vid != 0).unwrap_or(port.place.pvid);
        let is_own = port.open.as_ref().is_some_and(|open| open.mac == src);
        let is_standby = port.place.trunk.is_some() && self.trunk_of(vid) != Some(unit.0);
        if !self.is_member(unit.0, vid) || is_standby && !is_own {
            self.counters.no_receiver += 1;
            return Err(Refusal::Dropped);
        }
        let frame = Sent { descs, flags, mss, vid, tag };
        if dst.is_multicast() {
            return self.flood(unit.0, dst, &frame, next);
        }
        let known = (0..self.ports.len()).find(|&at| at != unit.0 && self.is_member(at, vid) && self.is_at(at, dst));
        let to = known.or_else(|| self.trunk_of(vid)).filter(|&to| to != unit.0);
        let Some(to) = to else {
            self.counters.no_receiver += 1;
            return Err(Refusal::Dropped);
        };
        if self.deliver(unit.0, to, &frame) { Ok(()) } else { Err(Refusal::Dropped) }
    }

    /// Checks the descriptors of a frame. Returns the frame's flags.
    fn describe(&self, unit: Unit, descs: &[BufDesc], mss: u16) -> Result<FrameFlags, Refusal> {
        let port = self.ports.get(unit.0).filter(|port| port.open.is_some()).ok_or(Refusal::Parameter)?;
        let first = descs.first().ok_or(Refusal::Parameter)?;
        if descs.len() > self.firmware.descriptors.min(Firmware::MAX_DESCRIPTORS) {
            return Err(Refusal::Parameter);
        }
        let flags = first.flags();
        let is_good = |desc: &BufDesc| {
            let is_mapped = port.io.bytes(desc.address(), desc.len()).is_some();
            desc.is_valid() && !desc.is_empty() && desc.flags() == flags && is_mapped
        };
        let len: usize = descs.iter().map(|desc| desc.len()).sum();
        let has_header = first.len() >= len.min(TAGGED_HEADER) && (HEADER..=MAX_FRAME).contains(&len);
        if !has_header || !descs.iter().all(is_good) {
            return Err(Refusal::Parameter);
        }
        let csum = port.set & (Attributes::IPV4_TCP_CSUM | Attributes::IPV6_TCP_CSUM);
        let is_large = flags.contains(FrameFlags::LARGE);
        let lacks_csum = flags.contains(FrameFlags::NO_CSUM) && csum == Attributes::NONE;
        let lacks_large = is_large && !port.set.contains(Attributes::LARGE_SEND_ENABLED);
        if lacks_csum || lacks_large || is_large && mss < MIN_MSS {
            return Err(Refusal::Parameter);
        }
        Ok(flags)
    }

    /// Delivers a frame to a group, from adapter `next` on, to as many adapters as one call serves.
    fn flood(&mut self, from: usize, group: MacAddr, frame: &Sent<'_>, next: &mut u64) -> Result<(), Refusal> {
        let trunk = self.trunk_of(frame.vid);
        let mut copies = 0;
        let first = usize::try_from(*next).unwrap_or(usize::MAX);
        for at in first.min(self.ports.len())..self.ports.len() {
            let port = &self.ports[at];
            let takes = port.open.as_ref().is_some_and(|open| open.filter.takes(group) || trunk == Some(at));
            let is_standby = port.place.trunk.is_some() && trunk != Some(at);
            if at == from || !takes || is_standby || !self.is_member(at, frame.vid) {
                continue;
            }
            if copies == self.firmware.copies_per_call {
                *next = at as u64;
                return Err(Refusal::Busy);
            }
            // An adapter without a buffer loses only the copy for itself.
            self.deliver(from, at, frame);
            copies += 1;
        }
        Ok(())
    }

    /// The active trunk of a VLAN: the open trunk with the best priority, and among equals the first.
    fn trunk_of(&self, vid: u16) -> Option<usize> {
        let trunks = self.ports.iter().enumerate().filter(|(_, port)| port.open.is_some());
        let trunks = trunks.filter_map(|(at, port)| Some((port.place.trunk?, at)));
        trunks.filter(|&(_, at)| self.is_member(at, vid)).min().map(|(_, at)| at)
    }

    /// Tells whether an adapter is the active trunk of one of its VLANs.
    pub(super) fn is_active_trunk(&self, unit: Unit) -> bool {
        let Some(port) = self.ports.get(unit.0).filter(|port| port.place.trunk.is_some()) else { return false };
        port.place.vlans.iter().chain([&port.place.pvid]).any(|&vid| self.trunk_of(vid) == Some(unit.0))
    }

    /// Tells whether an adapter is open and in a VLAN.
    fn is_member(&self, at: usize, vid: u16) -> bool {
        let port = self.ports.get(at).filter(|port| port.open.is_some());
        port.is_some_and(|port| port.place.pvid == vid || port.place.vlans.contains(&vid))
    }

    fn is_at(&self, at: usize, mac: MacAddr) -> bool {
        self.ports[at].open.as_ref().is_some_and(|open| open.mac == mac)
    }
}

impl EthHeader {
    fn read(bytes: &[u8]) -> Option<Self> {
        let dst = MacAddr(*bytes.first_chunk()?);
        let src = MacAddr(*bytes.get(6..)?.first_chunk()?);
        let tag = match bytes.get(12..14)? {
            [0x81, 0x00] => Some(u16::from_be_bytes(*bytes.get(14..)?.first_chunk()?)),
            _ => None,
        };
        // A truncated tag makes the header incomplete.
        if tag.is_some() && bytes.len() < TAGGED_HEADER {
            return None;
        }
        Some(Self { dst, src, tag })
    }
}
