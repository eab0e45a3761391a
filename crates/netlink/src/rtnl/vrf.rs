//! VRFs (`drivers/net/vrf.c`): devices whose member links share a separate routing table.
//!
//! No packet passes through a VRF's device, so the datapath opens no link for it; the datapath gets the table and the
//! members of the VRF.

use std::collections::HashMap;

use base::{PortId, TableId};

use super::entry::Master;
use super::nums::*;
use super::state::LinkNow;
use crate::attr::{Attr, AttrPolicy, Kind, Strictness, policy};
use crate::error::{Error, errno};
use config::model::{Config, LinkKind};
use ctl::state::LinkStats;

/// Default MTU of a VRF's device, also the maximum (`IP6_MAX_MTU`): no packet is fragmented.
pub(super) const MTU: u32 = 65575;
/// Minimum MTU of a VRF's device (`IPV6_MIN_MTU`).
pub(super) const MIN_MTU: u32 = 1280;

/// State of a VRF for the datapath.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Vrf {
    /// Name of the VRF's device.
    pub name: String,
    /// Table.
    pub table: TableId,
    /// Whether the VRF's device is up.
    pub up: bool,
    /// MTU of the VRF's device.
    pub mtu: u32,
}

impl Vrf {
    /// VRF of a configuration file, with its device up.
    pub fn of_file(name: &str, table: u32) -> Self {
        Self { name: name.to_owned(), table: TableId(table), up: true, mtu: MTU }
    }
}

/// Link-layer address of a VRF's device: locally administered, and unused on any wire.
pub(super) const fn mac(index: u32) -> [u8; 6] {
    let [a, b, c, d] = index.to_be_bytes();
    [2, 0, a, b, c, d]
}

/// State of a new VRF's device, with the requested MTU if any.
pub(super) fn new(id: PortId, mtu: Option<u32>) -> LinkNow {
    let (mtu, mac) = (mtu.unwrap_or(MTU), Some(mac(id.0)));
    let (host_index, running, stats, carrier) = (None, true, LinkStats::default(), [0; 2]);
    let (queues, bridging) = (None, None);
    LinkNow { id, host_index, running, mtu, mac, stats, carrier, queues, promiscuity: 0, allmulti: 0, bridging }
}

/// Parses the table in a request for a VRF (Linux `vrf_newlink`).
pub(super) fn requested_table(data: Option<&Attr<'_>>) -> Result<u32, Error> {
    const DATA: AttrPolicy<2> = policy(&[(IFLA_VRF_TABLE, Kind::Int(4))]);
    let missing = || Error::text(errno::EINVAL, "VRF table id is missing");
    let data = data.ok_or_else(missing)?.parse(&DATA, Strictness::Liberal)?;
    let table = data.get(IFLA_VRF_TABLE).ok_or_else(missing)?;
    match table.u32() {
        RT_TABLE_UNSPEC => Err(Error::text(errno::EINVAL, "Invalid VRF table id").at(table.offset)),
        id => Ok(id),
    }
}

/// VRFs and bridges of a configuration file, by name, with the numbers of their devices.
pub(super) fn masters_of<'a>(config: &'a Config, ids: &[PortId]) -> HashMap<&'a str, Master> {
    let each = config.links.iter().zip(ids).filter_map(|(link, id)| match link.kind {
        LinkKind::Bridge(_) => Some((link.name.as_str(), Master { index: id.0, table: None })),
        LinkKind::Vrf { table } => Some((link.name.as_str(), Master { index: id.0, table: Some(table) })),
        _ => None,
    });
    each.collect()
}
