//! Keys of a `[[link]]` of kind `bridge`, and `port` of its ports: `ip link add … type bridge` and `bridge link`, with
//! the words of iproute2.

use std::time::Duration;

use switch::{GroupMask, PortConfig, TrunkPriority, Vid, VidSet};

use super::reader::{Result, Table, Value, quoted};
use crate::model::{BridgeConfig, BridgePort};

pub(super) const KEYS: [&str; 6] =
    ["vlan-filtering", "default-pvid", "ageing-time", "forward-delay", "group-fwd-mask", "vlan-stats"];

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
    "payload-tags",
    "group-fwd-mask",
    "fdb-limit",
    "trunk",
];

/// Number of the keys that a bridge's device has, too.
const VLAN_KEYS: usize = 3;

/// Maximum limit of addresses that a port learns.
const MAX_FDB_LIMIT: u32 = 1 << 20;

/// Reads the settings of a bridge.
pub(super) fn read(table: &Table<'_>) -> Result<BridgeConfig> {
    let default = BridgeConfig::default();
    let seconds = |key, default| match table.get(key) {
        None => Ok(default),
        Some(value) => value.number(0..=u32::MAX / 100).map(|secs| Duration::from_secs(secs.into())),
    };
    Ok(BridgeConfig {
        vlan_filtering: table.get("vlan-filtering").map_or(Ok(default.vlan_filtering), |value| value.bool())?,
        default_pvid: table.get("default-pvid").map_or(Ok(default.default_pvid), |value| pvid(&value))?,
        ageing_time: seconds("ageing-time", default.ageing_time)?,
        forward_delay: seconds("forward-delay", default.forward_delay)?,
        group_mask: table
            .get("group-fwd-mask")
            .map_or(Ok(default.group_mask), |value| mask(&value, GroupMask::for_bridge))?,
        link_local_learning: default.link_local_learning,
        vlan_stats: table.get("vlan-stats").map_or(Ok(default.vlan_stats), |value| value.bool())?,
    })
}

/// Reads the settings of a port, or of a bridge's device.
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
        payload_tags: flag("payload-tags", default.payload_tags)?,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;
    use crate::model::LinkKind;

    const BRIDGE: &str = "[[link]]\nname = \"br0\"\nkind = \"bridge\"\n";

    fn tap(port: &str) -> String {
        format!("{BRIDGE}[[link]]\nname = \"tap0\"\nkind = \"tap\"\nmaster = \"br0\"\nport = {{ {port} }}\n")
    }

    #[test]
    fn keys_of_bridge_and_port_are_read() {
        let toml = BRIDGE.to_owned()
            + "vlan-filtering = true\ndefault-pvid = 0\nageing-time = 7\nforward-delay = 0\ngroup-fwd-mask = 8\nvlan-stats = true\nport = { pvid = 5 }\n";
        let config = Config::from_toml(&toml, "f").unwrap();
        let want = BridgeConfig {
            vlan_filtering: true,
            default_pvid: None,
            ageing_time: Duration::from_secs(7),
            forward_delay: Duration::ZERO,
            group_mask: GroupMask::for_bridge(8).unwrap(),
            link_local_learning: true,
            vlan_stats: true,
        };
        assert_eq!(config.links[0].kind, LinkKind::Bridge(want));
        assert_eq!(config.links[0].port.as_ref().unwrap().pvid, Some(Vid::new(5)));
        let toml = tap(
            "pvid = 0, tagged = [20, \"30-31\"], untagged = [40], learning = false, flood = false, mcast-flood = false, \
             bcast-flood = false, isolated = true, hairpin = true, locked = true, \
             payload-tags = false, group-fwd-mask = 1, fdb-limit = 5, trunk = 0",
        );
        let config = Config::from_toml(&toml, "f").unwrap();
        let port = config.links[1].port.as_ref().unwrap();
        let numbers = |set: &VidSet| set.iter().map(Vid::get).collect::<Vec<_>>();
        assert_eq!(
            (port.pvid, numbers(&port.tagged), numbers(&port.untagged)),
            (Some(None), vec![20, 30, 31], vec![40])
        );
        let want = PortConfig {
            state: PortConfig::default().state,
            learning: false,
            unicast_flood: false,
            multicast_flood: false,
            broadcast_flood: false,
            isolated: true,
            hairpin: true,
            locked: true,
            payload_tags: false,
            group_mask: GroupMask::for_port(1).unwrap(),
            fdb_limit: 5,
            trunk: TrunkPriority::new(0),
        };
        assert_eq!(port.config, want);
    }

    #[test]
    fn bridge_with_invalid_settings_is_refused_by_name() {
        let refused = |toml: &str| Config::from_toml(toml, "f").unwrap_err().to_string();
        for (port, want) in [
            ("pvid = 4095", "4095 is out of range; use 0 to 4094"),
            ("tagged = [0]", "0 is out of range; use 1 to 4094"),
            ("tagged = [\"20-10\"]", "20-10 is no range of VLANs"),
            ("tagged = [\"10-4095\"]", "10-4095 is no range of VLANs"),
            ("tagged = [\"ten\"]", "ten is no range of VLANs"),
            ("pvid = 10, tagged = [\"9-11\"]", "VLAN 10 leaves the port untagged already"),
            ("trunk = 16", "16 is no priority of a trunk"),
            ("group-fwd-mask = 2", "Invalid group mask"),
            ("fdb-limit = 1048577", "1048577 is out of range"),
            ("mtu = 5", "unknown key"),
        ] {
            let error = refused(&tap(port));
            assert!(error.contains(want), "{port}: {error}");
        }
        let tun = "[[link]]\nname = \"tun0\"\nkind = \"tun\"\n";
        let above = "[[link]]\nname = \"br0.5\"\nkind = \"vlan\"\nlink = \"br0\"\nid = 5\n";
        let second = "[[link]]\nname = \"br1\"\nkind = \"bridge\"\n\
            [[link]]\nname = \"br1.6\"\nkind = \"vlan\"\nlink = \"br1\"\nid = 6\nmaster = \"br0\"\n";
        let vm =
            |socket: &str| format!("[[link]]\nname = \"{socket}\"\nkind = \"vhost-user\"\nsocket = \"{socket}\"\n");
        for (toml, want) in [
            (vm("run"), "run is no path of a socket"),
            (vm("/a").replace("\"/a\"\nkind", "\"a\"\nkind") + "queues = 65\n", "65 is out of range"),
            (
                vm("/a").replace("name = \"/a\"", "name = \"a\"") + &vm("/a").replace("name = \"/a\"", "name = \"b\""),
                "/a already belongs to link a",
            ),
            (format!("{tun}socket = \"/a\"\n"), "is only for links of kind vhost-user or virtio-user"),
            (format!("{BRIDGE}{tun}master = \"br0\"\n"), "can be its ports"),
            (
                format!("{BRIDGE}{tun}port = {{ pvid = 1 }}\n"),
                "is only for links of kind tap, packet, xdp, vhost-user, virtio-user, bridge or vlan",
            ),
            (format!("{tun}vlan-filtering = true\n"), "is only for links of kind bridge"),
            (format!("{BRIDGE}port = {{ trunk = 1 }}\n"), "unknown key"),
            (format!("{BRIDGE}group-fwd-mask = 4\n"), "Invalid group mask"),
            (tap("").replace("master = \"br0\"\n", ""), "name the bridge as its master"),
            (tap("").replace("master = \"br0\"", "master = \"br1\""), "no VRF or bridge is named br1"),
            (format!("{BRIDGE}{above}master = \"br0\"\n"), "br0.5 is above the bridge br0 itself"),
            (format!("{BRIDGE}{above}master = \"br1\"\n{second}"), "br0.5 is above the bridge br1 itself"),
            (tap("").replace("kind = \"bridge\"", "kind = \"vrf\"\ntable = 10"), "and br0 is a VRF"),
        ] {
            let error = refused(&toml);
            assert!(error.contains(want), "{toml}: {error}");
        }
    }
}
