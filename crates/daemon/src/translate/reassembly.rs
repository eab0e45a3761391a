//! Translation of the reassembly configuration.

use std::time::Duration;

use config::model::{Coalesce, Eviction, FragLimits, ReassemblyConfig};
use reassembly::{Config, Limits, Policy};

/// Configuration of the `reassembly` crate.
pub(crate) fn config(config: ReassemblyConfig) -> Config {
    let ReassemblyConfig { policy, coalesce, v4, v6, max_distance } = config;
    Config {
        policy: match policy {
            Eviction::Fair => Policy::Fair,
            Eviction::Linux => Policy::Linux,
        },
        coalesce: match coalesce {
            Coalesce::Move => reassembly::Coalesce::Move,
            Coalesce::Copy => reassembly::Coalesce::Copy,
            Coalesce::Off => reassembly::Coalesce::Off,
        },
        v4: limits(v4),
        v6: limits(v6),
        max_distance,
    }
}

fn limits(FragLimits { high_thresh, low_thresh: _, timeout_secs }: FragLimits) -> Limits {
    Limits {
        high_thresh: usize::try_from(high_thresh).unwrap_or(usize::MAX),
        timeout: Duration::from_secs(timeout_secs.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_file_has_the_defaults() {
        assert_eq!(config(ReassemblyConfig::default()), Config::default());
    }

    #[test]
    fn limits_of_a_family_hold_for_it_alone() {
        let v4 = FragLimits { high_thresh: 1000, low_thresh: 0, timeout_secs: 2 };
        let settings = ReassemblyConfig { policy: Eviction::Linux, coalesce: Coalesce::Copy, v4, ..Default::default() };
        let limits = Limits { high_thresh: 1000, timeout: Duration::from_secs(2) };
        let want =
            Config { policy: Policy::Linux, coalesce: reassembly::Coalesce::Copy, v4: limits, ..Config::default() };
        assert_eq!(config(settings), want);
    }
}
