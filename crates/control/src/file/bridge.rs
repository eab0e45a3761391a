//! Keys of a `[[link]]` of kind `bridge`, and `port` of the links that are its ports: `ip link add … type bridge` and `bridge link`,
//! with the words of iproute2.

use std::time::Duration;

use switch::{GroupMask, PortConfig, TrunkPriority, Vid, VidSet};

use super::reader::{Result, Table, Value, quoted};
use crate::model::{BridgeConfig, BridgePort};

pub(super) const KEYS: [&str; 4] = ["vlan-filtering", "default-pvid", "ageing-time", "group-fwd-mask"];

const PORT_KEYS: &[&str] = &[
    "pvid",
    "tagged",
    "untagged",
    "learning",
    "flood",
    "mcast-flood",
    "bcast-flood",
    "isolated",
    "hairpin",
    "locked",
    "group-fwd-mask",
    "fdb-limit",
    "trunk",
];

/// Keys that a bridge's own port has, too.
const VLAN_KEYS: usize = 3;

/// Most addresses that a port may be allowed to learn.
const MAX_FDB_LIMIT: u32 = 1 << 20;

/// Reads the settings of a bridge.
pub(super) fn read(table: &Table<'_>) -> Result<BridgeConfig> {
    let default = BridgeConfig::default();
    Ok(BridgeConfig {
        vlan_filtering: table.get("vlan-filtering").map_or(Ok(default.vlan_filtering), |value| value.bool())?,
        default_pvid: table.get("default-pvid").map_or(Ok(default.default_pvid), |value| pvid(&value))?,
        ageing_time: table.get("ageing-time").map_or(Ok(default.ageing_time), |value| {
            value.number(0..=u32::MAX / 100).map(|secs| Duration::from_secs(secs.into()))
        })?,
        group_mask: table
            .get("group-fwd-mask")
            .map_or(Ok(default.group_mask), |value| mask(&value, GroupMask::for_bridge))?,
        link_local_learning: default.link_local_learning,
    })
}

/// Reads the settings of a port, or of a bridge's own port.
pub(super) fn port(value: &Value<'_>, is_own: bool) -> Result<BridgePort> {
    let table = value.table(if is_own { &PORT_KEYS[..VLAN_KEYS] } else { PORT_KEYS })?;
    let default = PortConfig::default();
    let flag = |key, default| table.get(key).map_or(Ok(default), |value| value.bool());
    let config = PortConfig {
        state: default.state,
        learning: flag("learning", default.learning)?,
        unicast_flood: flag("flood", default.unicast_flood)?,
        multicast_flood: flag("mcast-flood", default.multicast_flood)?,
        broadcast_flood: flag("bcast-flood", default.broadcast_flood)?,
        isolated: flag("isolated", default.isolated)?,
        hairpin: flag("hairpin", default.hairpin)?,
        locked: flag("locked", default.locked)?,
        group_mask: table
            .get("group-fwd-mask")
            .map_or(Ok(default.group_mask), |value| mask(&value, GroupMask::for_port))?,
        fdb_limit: table.get("fdb-limit").map_or(Ok(default.fdb_limit), |value| value.number(0..=MAX_FDB_LIMIT))?,
        trunk: table.get("trunk").map(|value| trunk(&value)).transpose()?,
    };
    let pvid = table.get("pvid").map(|value| pvid(&value)).transpose()?;
    let vlans = |key| table.get(key).map_or_else(|| Ok(VidSet::new()), |value| vlans(&value));
    let (tagged, untagged) = (vlans("tagged")?, vlans("untagged")?);
    let is_twice = |vid: &Vid| untagged.contains(*vid) || pvid.flatten() == Some(*vid);
    if let (Some(vid), Some(value)) = (tagged.iter().find(is_twice), table.get("tagged")) {
        return Err(value.error(format!("VLAN {vid} leaves the port untagged already; take one out")));
    }
    Ok(BridgePort { config, pvid, tagged, untagged })
}

/// Reads a PVID; 0 is none.
fn pvid(value: &Value<'_>) -> Result<Option<Vid>> {
    Ok(Vid::new(value.number(0..=Vid::LAST.get())?))
}

fn mask<E: std::fmt::Display>(
    value: &Value<'_>,
    of: impl Fn(u16) -> std::result::Result<GroupMask, E>,
) -> Result<GroupMask> {
    of(value.number(0..=u16::MAX)?).map_err(|err| value.error(err.to_string()))
}

fn trunk(value: &Value<'_>) -> Result<TrunkPriority> {
    let number = value.number(0..=u8::MAX)?;
    TrunkPriority::new(number).ok_or_else(|| value.error(format!("{number} is no priority of a trunk; use 1 to 15")))
}

/// Reads a list of VLANs: numbers, and ranges such as "10-20".
fn vlans(value: &Value<'_>) -> Result<VidSet> {
    const HINT: &str = "numbers 1 to 4094 and ranges such as \"10-20\"";
    let mut set = VidSet::new();
    for item in value.list()? {
        let (first, last) = if item.is_number() {
            let number = item.number(1..=Vid::LAST.get())?;
            (number, number)
        } else {
            let text = item.str()?;
            let ends = text.split_once('-').and_then(|(first, last)| Some((first.parse().ok()?, last.parse().ok()?)));
            ends.ok_or_else(|| item.error(format!("{} is no range of VLANs; use {HINT}", quoted(text))))?
        };
        let ends = Vid::new(first).zip(Vid::new(last)).filter(|(first, last)| first <= last);
        let Some((first, last)) = ends else {
            return Err(item.error(format!("{first}-{last} is no range of VLANs; use {HINT}")));
        };
        Vid::range(first, last).for_each(|vid| {
            set.insert(vid);
        });
    }
    Ok(set)
}
