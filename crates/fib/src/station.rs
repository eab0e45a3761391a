//! This node as a station of an Ethernet link.

use base::PortId;
use packet::{Memory, Packet, PoolDry};
use wire::{EtherType, MacAddr, eth};

/// A link, and this node's own link-layer address on it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Station {
    /// The link.
    pub link: PortId,
    /// Address of this node on the link.
    pub mac: MacAddr,
}

/// Prepends an Ethernet header to `packet`.
pub(crate) fn frame(
    mem: &Memory,
    mut packet: Packet,
    from: MacAddr,
    to: MacAddr,
    ethertype: EtherType,
) -> Result<Packet, PoolDry> {
    let header = eth::EthHeader::new(to, from, ethertype);
    packet.push(mem, eth::EthHeader::LEN)?.copy_from_slice(header.as_bytes());
    Ok(packet)
}
