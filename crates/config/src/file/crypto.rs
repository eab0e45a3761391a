//! `[crypto]`: the threads that encrypt and decrypt ESP packets.

use super::reader::{Result, Table};
use crate::model::CryptoConfig;

pub(super) const KEYS: &[&str] = &["workers", "cpus"];

/// Maximum number of threads; more are a mistake.
const MAX_WORKERS: u16 = 64;

/// Highest CPU number: Linux's largest `CONFIG_NR_CPUS`, less one.
pub(super) const MAX_CPU: u16 = 8191;

pub(super) fn read(table: &Table<'_>) -> Result<CryptoConfig> {
    let workers = table.get("workers").map_or(Ok(0), |value| value.number(0..=MAX_WORKERS))?;
    let cpus = match table.get("cpus") {
        Some(value) if workers == 0 => return Err(value.error("has no workers to bind; set workers too")),
        Some(value) => value.list()?.iter().map(|cpu| cpu.number(0..=MAX_CPU)).collect::<Result<_>>()?,
        None => Vec::new(),
    };
    Ok(CryptoConfig { workers, cpus })
}

#[cfg(test)]
mod tests {
    use crate::model::{Config, CryptoConfig};

    #[test]
    fn workers_and_their_cpus() {
        let read = |text| Config::from_toml(text, "gw.toml").map(|config| config.crypto).map_err(|err| err.to_string());
        let config = |workers, cpus: &[u16]| Ok(CryptoConfig { workers, cpus: cpus.to_vec() });
        assert_eq!(read(""), config(0, &[]));
        assert_eq!(read("[crypto]\nworkers = 2"), config(2, &[]));
        assert_eq!(read("[crypto]\nworkers = 2\ncpus = [1, 3]"), config(2, &[1, 3]));
        let refused = [
            ("[crypto]\nworkers = 65", "gw.toml:2: crypto.workers: 65 is out of range; use 0 to 64."),
            ("[crypto]\ncpus = [1]", "gw.toml:2: crypto.cpus: has no workers to bind; set workers too."),
            ("[crypto]\nworkers = 1\ncpus = [9999]", "gw.toml:3: crypto.cpus[0]: 9999 is out of range; use 0 to 8191."),
        ];
        for (text, want) in refused {
            assert_eq!(read(text), Err(want.to_owned()), "{text}");
        }
    }
}
