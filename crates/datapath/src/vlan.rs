//! VLAN devices: links that have the frames of one VLAN of another link (Linux `net/8021q/vlan_core.c`, `vlan_dev.c`).
//!
//! A received frame's tag is moved to metadata, and the device of that VLAN receives the frame, before any bridge. If no bridge has the
//! frame, tags of VLAN 0 are removed from in front of other tags, which decide then. A frame that a device sends gets its tag in
//! metadata and is sent by the link below, fat or not: the tag goes into the bytes when the link below fits the frame to its own
//! device. A second tag (802.1Q in 802.1Q) goes into the bytes below the first.

use base::{DropReason, Origin, PortId};
use packet::{Csum, Memory, Packet};
use wire::eth::{self, EtherType};
use wire::vlan::{self, Tci};

use crate::{Cx, Datapath, Device};

/// Bytes of both addresses, behind which a tag stands.
const ADDRESSES: usize = 12;

/// Port of the VLAN device that receives a frame, whose Ethernet header is in its head; `None` if no device has the frame's VLAN, and
/// the frame continues on the link.
///
/// # Errors
/// As [`pop_tag`]; [`DropReason::LinkDown`] if the device is down.
pub(crate) fn receive(
    dp: &mut Datapath,
    cx: Cx<'_>,
    link: PortId,
    pkt: &mut Packet,
) -> Result<Option<PortId>, DropReason> {
    pop_tag(cx.mem, pkt)?;
    let Some(tci) = pkt.meta.vlan else { return Ok(None) };
    let Some(&own) = dp.vlans.0.get(&(link, Tci(tci).vid())) else { return Ok(None) };
    let Some(port) = dp.ports.get_mut(own).filter(|port| port.up) else { return Err(DropReason::LinkDown) };
    port.traffic.rx_packets += 1;
    port.traffic.rx_bytes += pkt.len() as u64;
    pkt.meta.vlan = None;
    pkt.meta.origin = Origin::Port(own).into();
    Ok(Some(own))
}

/// Same as [`receive`] for a frame that no bridge has taken, by the first tag that names a VLAN: tags of VLAN 0, 802.1Q or 802.1ad, are
/// removed from in front of another tag (Linux `__netif_receive_skb_core`).
///
/// # Errors
/// As [`receive`].
pub(crate) fn receive_behind_priority_tags(
    dp: &mut Datapath,
    cx: Cx<'_>,
    link: PortId,
    pkt: &mut Packet,
) -> Result<Option<PortId>, DropReason> {
    while remove_priority_tag(cx.mem, pkt)? {
        if let Some(own) = receive(dp, cx, link, pkt)? {
            return Ok(Some(own));
        }
    }
    Ok(None)
}

/// Removes the outer tag, if it names no VLAN and another tag follows. Tells whether it did.
fn remove_priority_tag(mem: &Memory, pkt: &mut Packet) -> Result<bool, DropReason> {
    if let Some(tci) = pkt.meta.vlan {
        let is_in_front = eth::EthHeader::ref_from(pkt.head())?.ethertype().is_vlan();
        if is_in_front && Tci(tci).vid() == 0 {
            pkt.meta.vlan = None;
            return Ok(true);
        }
        return Ok(false);
    }
    if eth::EthHeader::ref_from(pkt.head())?.ethertype() != EtherType::SERVICE_VLAN {
        return Ok(false);
    }
    let tag = outer_tag(mem, pkt)?;
    let is_removed = tag.tci().vid() == 0 && tag.ethertype().is_vlan();
    if is_removed {
        pull_outer_tag(mem, pkt)?;
    }
    Ok(is_removed)
}

/// Puts the tag of a device on a frame that the device sends. The IP header begins at `l3`. Returns the link below, and the offset of
/// the IP header there.
///
/// # Errors
/// [`DropReason::LinkDown`] for a device that is down; as [`offload::insert_tag`].
pub(crate) fn tag(
    dp: &mut Datapath,
    cx: Cx<'_>,
    own: PortId,
    pkt: &mut Packet,
    l3: usize,
) -> Result<(PortId, usize), DropReason> {
    let port = dp.ports.get(own).filter(|port| port.up).ok_or(DropReason::LinkDown)?;
    let Device::Vlan { lower, vid } = port.device else { return Err(DropReason::LinkDown) };
    dp.ports.pass_vlan(cx.mem, own, pkt, l3);
    let l3 = offload::insert_tag(cx.mem, pkt, l3)?;
    pkt.meta.vlan = Some(vid);
    Ok((lower, l3))
}

/// Moves the outer 802.1Q tag from the bytes into metadata (Linux `skb_vlan_untag`).
///
/// # Errors
/// [`DropReason::EthTruncated`] for half a tag; [`DropReason::VirtioHeader`] for a checksum that covers it.
pub(crate) fn pop_tag(mem: &Memory, pkt: &mut Packet) -> Result<(), DropReason> {
    if pkt.meta.vlan.is_some() || eth::EthHeader::ref_from(pkt.head())?.ethertype() != EtherType::VLAN {
        return Ok(());
    }
    let tci = outer_tag(mem, pkt)?.tci();
    pull_outer_tag(mem, pkt)?;
    pkt.meta.vlan = Some(tci.0);
    Ok(())
}

/// The outer tag in a frame's bytes, which begin with an Ethernet header and a tag.
///
/// # Errors
/// As [`pop_tag`].
fn outer_tag(mem: &Memory, pkt: &mut Packet) -> Result<vlan::VlanHeader, DropReason> {
    if let Csum::Partial { start, .. } = pkt.meta.csum
        && usize::from(start) < eth::EthHeader::LEN + vlan::VlanHeader::LEN
    {
        return Err(DropReason::VirtioHeader);
    }
    if !pkt.may_pull(mem, eth::EthHeader::LEN + vlan::VlanHeader::LEN)? {
        return Err(DropReason::EthTruncated);
    }
    Ok(*vlan::VlanHeader::ref_from(&pkt.head()[eth::EthHeader::LEN..])?)
}

/// Removes the [outer tag](outer_tag) from the bytes.
fn pull_outer_tag(mem: &Memory, pkt: &mut Packet) -> Result<(), DropReason> {
    pkt.writable_head(mem)?.copy_within(..ADDRESSES, vlan::VlanHeader::LEN);
    pkt.pull(vlan::VlanHeader::LEN);
    Ok(())
}

/// Removes a link, or a device, and the entries of a link's devices from the table.
pub(crate) fn forget(dp: &mut Datapath, link: PortId) {
    dp.vlans.0.retain(|&(lower, _), own| lower != link && *own != link);
    mark_below(dp, link);
}

/// Updates the mark of the link below a port, if the port is a VLAN device: whether it has VLAN devices.
fn mark_below(dp: &mut Datapath, link: PortId) {
    let Some(Device::Vlan { lower, .. }) = dp.ports.get(link).map(|port| port.device) else { return };
    let has_vlans = dp.vlans.0.keys().any(|(below, _)| *below == lower);
    if let Some(port) = dp.ports.get_mut(lower) {
        port.has_vlans = has_vlans;
    }
}

impl Datapath {
    /// Makes a port the device of VLAN `vid` of another port, with an Ethernet header. `vid` is 1 to 4094.
    ///
    /// # Errors
    /// [`VlanError`]; the port is unchanged.
    pub fn set_vlan(&mut self, id: PortId, lower: PortId, vid: u16) -> Result<(), VlanError> {
        let is_below = |mut at: PortId| loop {
            match self.ports.get(at).map(|port| port.device) {
                _ if at == id => break true,
                Some(Device::Vlan { lower, .. }) => at = lower,
                _ => break false,
            }
        };
        if is_below(lower) {
            return Err(VlanError::Loop);
        }
        if self.ports.get(lower).is_none_or(|port| port.config.mac.is_none()) {
            return Err(VlanError::NotEthernet);
        }
        if vid == 0 || vid > Tci::MAX_VID {
            return Err(VlanError::Vid(vid));
        }
        if self.vlans.0.get(&(lower, vid)).is_some_and(|&own| own != id) {
            return Err(VlanError::Exists(vid));
        }
        if self.ports.get(id).is_none_or(|port| port.config.mac.is_none()) {
            return Err(VlanError::NotEthernet);
        }
        // VLAN devices of this device stay.
        self.vlans.0.retain(|_, own| *own != id);
        mark_below(self, id);
        if let Some(port) = self.ports.get_mut(id) {
            port.device = Device::Vlan { lower, vid };
        }
        self.vlans.0.insert((lower, vid), id);
        mark_below(self, id);
        Ok(())
    }
}

/// Reasons to refuse a VLAN device.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum VlanError {
    /// The link below would be above the device.
    Loop,
    /// The link below is not there, or has no Ethernet header.
    NotEthernet,
    /// No VLAN has that number.
    Vid(u16),
    /// The link below has a device of that VLAN.
    Exists(u16),
}

impl std::fmt::Display for VlanError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Loop => f.write_str("The link below is above the device itself."),
            Self::NotEthernet => f.write_str("VLANs not supported on device"),
            Self::Vid(vid) => write!(f, "{vid} is no VLAN."),
            Self::Exists(vid) => write!(f, "The link below has a device of VLAN {vid} already."),
        }
    }
}

impl std::error::Error for VlanError {}
