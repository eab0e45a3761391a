//! `[reassembly]`: fragment reassembly, with the names of Linux's sysctls.

use super::reader::{Result, Table};
use crate::model::{Coalesce, Eviction, FragLimits, ReassemblyConfig};

pub(super) const KEYS: &[&str] = &[
    "policy",
    "coalesce",
    "ipfrag_high_thresh",
    "ipfrag_low_thresh",
    "ipfrag_time",
    "ipfrag_max_dist",
    "ip6frag_high_thresh",
    "ip6frag_low_thresh",
    "ip6frag_time",
];

/// Maximum memory limit: a terabyte; more is a mistake.
const MAX_THRESH: u64 = 1 << 40;

/// Maximum timeout: an hour. A sender gives up long before.
const MAX_TIME: u32 = 3600;

/// Maximum of Linux's `int`.
const MAX_DISTANCE: u32 = i32::MAX as u32;

pub(super) fn read(table: &Table<'_>) -> Result<ReassemblyConfig> {
    let default = ReassemblyConfig::default();
    let policies = [("fair", Eviction::Fair), ("linux", Eviction::Linux)];
    let ways = [("move", Coalesce::Move), ("copy", Coalesce::Copy), ("off", Coalesce::Off)];
    Ok(ReassemblyConfig {
        policy: table.get("policy").map_or(Ok(default.policy), |value| value.word(&policies))?,
        coalesce: table.get("coalesce").map_or(Ok(default.coalesce), |value| value.word(&ways))?,
        v4: limits(table, "ipfrag", default.v4)?,
        v6: limits(table, "ip6frag", default.v6)?,
        max_distance: table
            .get("ipfrag_max_dist")
            .map_or(Ok(default.max_distance), |value| value.number(0..=MAX_DISTANCE))?,
    })
}

fn limits(table: &Table<'_>, family: &str, default: FragLimits) -> Result<FragLimits> {
    let get = |key: &str| table.get(&format!("{family}_{key}"));
    let high_thresh = get("high_thresh").map_or(Ok(default.high_thresh), |value| value.number(0..=MAX_THRESH))?;
    let low_thresh = match get("low_thresh") {
        None => default.low_thresh.min(high_thresh),
        Some(value) => {
            let low_thresh = value.number(0..=MAX_THRESH)?;
            if low_thresh > high_thresh {
                return Err(value.error(format!("is above {family}_high_thresh; use 0 to {high_thresh}")));
            }
            low_thresh
        }
    };
    let timeout_secs = get("time").map_or(Ok(default.timeout_secs), |value| value.number(1..=MAX_TIME))?;
    Ok(FragLimits { high_thresh, low_thresh, timeout_secs })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Config;

    fn read(keys: &str) -> std::result::Result<ReassemblyConfig, String> {
        let config = Config::from_toml(&format!("[reassembly]\n{keys}"), "gw.toml");
        config.map(|config| config.reassembly).map_err(|err| err.to_string())
    }

    #[test]
    fn the_keys_are_those_of_sysctl() {
        let default = ReassemblyConfig::default();
        assert_eq!(Config::from_toml("", "gw.toml").unwrap().reassembly, default);
        assert_eq!(read(""), Ok(default));
        assert_eq!((default.v4.high_thresh, default.v4.timeout_secs), (4_194_304, 30));
        assert_eq!((default.v6.high_thresh, default.v6.timeout_secs, default.max_distance), (4_194_304, 60, 64));
        assert_eq!((default.v4.low_thresh, default.v6.low_thresh), (3_145_728, 3_145_728));
        let limits = |high_thresh, timeout_secs| FragLimits { high_thresh, low_thresh: high_thresh, timeout_secs };
        let cases = [
            ("policy = \"linux\"", ReassemblyConfig { policy: Eviction::Linux, ..default }),
            ("policy = \"fair\"", default),
            ("coalesce = \"copy\"", ReassemblyConfig { coalesce: Coalesce::Copy, ..default }),
            ("coalesce = \"off\"", ReassemblyConfig { coalesce: Coalesce::Off, ..default }),
            ("coalesce = \"move\"", default),
            ("ipfrag_high_thresh = 0\nipfrag_time = 1", ReassemblyConfig { v4: limits(0, 1), ..default }),
            ("ipfrag_max_dist = 0", ReassemblyConfig { max_distance: 0, ..default }),
            (
                "ip6frag_high_thresh = 262144\nip6frag_low_thresh = 262144\nip6frag_time = 2",
                ReassemblyConfig { v6: limits(262_144, 2), ..default },
            ),
        ];
        for (keys, want) in cases {
            assert_eq!(read(keys), Ok(want), "{keys}");
        }
    }

    #[test]
    fn reassembly_value_out_of_range_is_refused_with_the_range() {
        let refused = [
            ("policy = \"lru\"", "policy: lru is unknown; use fair or linux."),
            ("coalesce = true", "coalesce: is a truth value; use a text in quotes."),
            ("ipfrag_time = 0", "ipfrag_time: 0 is out of range; use 1 to 3600."),
            ("ip6frag_time = 3601", "ip6frag_time: 3601 is out of range; use 1 to 3600."),
            ("ipfrag_max_dist = -1", "ipfrag_max_dist: -1 is out of range; use 0 to 2147483647."),
            (
                "ipfrag_high_thresh = 1099511627777",
                "ipfrag_high_thresh: 1099511627777 is out of range; use 0 to 1099511627776.",
            ),
            ("ipfrag_low_thresh = 4194305", "ipfrag_low_thresh: is above ipfrag_high_thresh; use 0 to 4194304."),
            ("ip6frag_tmie = 3", "ip6frag_tmie: unknown key; use ip6frag_time."),
        ];
        for (keys, want) in refused {
            assert_eq!(read(keys), Err(format!("gw.toml:2: reassembly.{want}")), "{keys}");
        }
    }
}
