//! `[worker]`: the packet worker.

use super::crypto::MAX_CPU;
use super::reader::{Result, Table};
use crate::model::WorkerConfig;

pub(super) const KEYS: &[&str] = &["cpu"];

pub(super) fn read(table: &Table<'_>) -> Result<WorkerConfig> {
    let cpu = table.get("cpu").map(|value| value.number(0..=MAX_CPU)).transpose()?;
    Ok(WorkerConfig { cpu })
}

#[cfg(test)]
mod tests {
    use crate::model::Config;

    #[test]
    fn worker_may_have_a_cpu() {
        let read =
            |text| Config::from_toml(text, "gw.toml").map(|config| config.worker.cpu).map_err(|err| err.to_string());
        assert_eq!((read(""), read("[worker]"), read("[worker]\ncpu = 3")), (Ok(None), Ok(None), Ok(Some(3))));
        let want = "gw.toml:2: worker.cpu: 8192 is out of range; use 0 to 8191.";
        assert_eq!(read("[worker]\ncpu = 8192"), Err(want.to_owned()));
    }
}
