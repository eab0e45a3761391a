//! VRFs (`drivers/net/vrf.c`): devices that give the links which belong to them a routing table of their own.
//!
//! No packet passes by such a device, so the datapath opens none; it gets the table and the members of the VRF.

use std::collections::HashMap;

use base::{LinkId, TableId};

use super::entry::Master;
use super::link_now::LinkNow;
use super::nums::*;
use crate::attr::{Attr, AttrPolicy, Kind, Strictness, policy};
use crate::error::{Error, errno};
use config::model::{Config, LinkKind};
use ctl::state::LinkStats;

/// The MTU of a new one, and the largest (`IP6_MAX_MTU`): it never has a packet cut.
pub(super) const MTU: u32 = 65575;
/// The smallest (`IPV6_MIN_MTU`).
pub(super) const MIN_MTU: u32 = 1280;

/// State of a VRF for the datapath.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Vrf {
    /// The name of its device.
    pub name: String,
    /// Table.
    pub table: TableId,
    /// Whether its device is up.
    pub up: bool,
    /// The MTU of its device.
    pub mtu: u32,
}

impl Vrf {
    /// One of a file, whose device is up.
    pub fn of_file(name: &str, table: u32) -> Self {
        Self { name: name.to_owned(), table: TableId(table), up: true, mtu: MTU }
    }
}

/// The link-layer address of the VRF's device of that number: locally administered, and on no wire.
pub(super) const fn mac(index: u32) -> [u8; 6] {
    let [a, b, c, d] = index.to_be_bytes();
    [2, 0, a, b, c, d]
}

/// A new VRF's device, of that MTU if one is wished for.
pub(super) fn new(id: LinkId, mtu: Option<u32>) -> LinkNow {
    let (mtu, mac) = (mtu.unwrap_or(MTU), Some(mac(id.0)));
    let (host_index, running, stats, carrier) = (None, true, LinkStats::default(), [0; 2]);
    LinkNow { id, host_index, running, mtu, mac, stats, carrier, bridging: None }
}

/// The table that a request for a VRF names (Linux `vrf_newlink`).
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

/// The VRFs and bridges of a file, by name, with the numbers of their devices.
pub(super) fn masters_of<'a>(config: &'a Config, ids: &[LinkId]) -> HashMap<&'a str, Master> {
    let each = config.links.iter().zip(ids).filter_map(|(link, id)| match link.kind {
        LinkKind::Bridge(_) => Some((link.name.as_str(), Master { index: id.0, table: None })),
        LinkKind::Vrf { table } => Some((link.name.as_str(), Master { index: id.0, table: Some(table) })),
        _ => None,
    });
    each.collect()
}
