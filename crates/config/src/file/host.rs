//! `[host]`: the node's own network namespace.

use super::reader::{Result, Table};
use crate::model::{HostConfig, HostMtu, HostSide};

pub(super) const KEYS: &[&str] = &["side", "max-links", "mtu"];

pub(super) fn read(table: &Table<'_>) -> Result<HostConfig> {
    let default = HostConfig::default();
    let sides = [("auto", HostSide::Auto), ("off", HostSide::Off)];
    let mtus = [("largest", HostMtu::Largest), ("link", HostMtu::Link)];
    Ok(HostConfig {
        side: table.get("side").map_or(Ok(default.side), |value| value.word(&sides))?,
        max_links: table
            .get("max-links")
            .map_or(Ok(default.max_links), |value| value.number(1..=HostConfig::MAX_LINKS))?,
        mtu: table.get("mtu").map_or(Ok(default.mtu), |value| value.word(&mtus))?,
    })
}

#[cfg(test)]
mod tests {
    use crate::model::{Config, HostConfig, HostMtu, HostSide};

    #[test]
    fn host_table_sets_side_limit_and_mtu() {
        let read = |text| Config::from_toml(text, "gw.toml").map(|config| config.host).map_err(|err| err.to_string());
        let off = HostConfig { side: HostSide::Off, max_links: 256, mtu: HostMtu::Largest };
        assert_eq!(read(""), Ok(HostConfig { side: HostSide::Auto, ..off }));
        assert_eq!(read("[host]\nside = \"off\""), Ok(off));
        let small = HostConfig { side: HostSide::Auto, max_links: 2, mtu: HostMtu::Link };
        assert_eq!(read("[host]\nside = \"auto\"\nmax-links = 2\nmtu = \"link\""), Ok(small));
        let refused = [
            ("[host]\nside = \"on\"", "gw.toml:2: host.side: on is unknown; use auto or off."),
            ("[host]\nmax-links = 0", "gw.toml:2: host.max-links: 0 is out of range; use 1 to 256."),
            ("[host]\nmtu = 1500", "gw.toml:2: host.mtu: is a whole number; use a text in quotes."),
        ];
        for (text, want) in refused {
            assert_eq!(read(text), Err(want.to_owned()), "{text}");
        }
    }
}
