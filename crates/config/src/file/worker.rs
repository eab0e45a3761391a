//! `[worker]`: the packet workers.

use std::collections::HashSet;
use std::num::NonZero;
use std::thread;

use base::ShardCount;

use super::crypto::MAX_CPU;
use super::reader::{Result, Table};
use crate::model::{Config, WorkerConfig};

/// Word for as many workers as the machine has room for.
const AUTO: &str = "auto";

pub(super) const KEYS: &[&str] = &["count", "cpu", "cpus"];

/// Reads the settings, for the node that `config` is otherwise.
pub(super) fn read(table: &Table<'_>, config: &Config) -> Result<WorkerConfig> {
    let auto = table.get("count").filter(|value| !value.is_number());
    let count = match (table.get("count"), &auto) {
        (Some(_), Some(auto)) => {
            auto.word(&[(AUTO, ())])?;
            if let Some(cpus) = table.get("cpus") {
                return Err(cpus.error("is given beside count = \"auto\"; use a number as count"));
            }
            if config.feature_of_one_worker().is_some() { ShardCount::ONE } else { one_less_than_cpus() }
        }
        (Some(value), None) => {
            let count = value.number(1..=ShardCount::MAX)?;
            if count > 1
                && let Some(feature) = config.feature_of_one_worker()
            {
                return Err(value.error(format!("several workers cannot have {feature} yet; use count = 1")));
            }
            ShardCount::new(count).unwrap_or(ShardCount::ONE)
        }
        (None, _) => ShardCount::ONE,
    };
    let cpus = match (table.get("cpu"), table.get("cpus")) {
        (Some(_), Some(cpus)) => return Err(cpus.error("is given beside `cpu`; use one of them")),
        (Some(cpu), None) if count != ShardCount::ONE || auto.is_some() => {
            return Err(cpu.error("is for one worker; name a CPU for each in `cpus`"));
        }
        (Some(cpu), None) => vec![cpu.number(0..=MAX_CPU)?],
        (None, Some(value)) => {
            let cpus = value.list()?.iter().map(|cpu| cpu.number(0..=MAX_CPU)).collect::<Result<Vec<u16>>>()?;
            let mut seen = HashSet::new();
            if let Some(twice) = cpus.iter().find(|&&cpu| !seen.insert(cpu)) {
                return Err(value.error(format!("names CPU {twice} twice")));
            }
            if cpus.len() != count.get() {
                let (named, workers) = (cpus.len(), count.get());
                return Err(value.error(format!(
                    "names {named} CPUs, and the workers are {workers}; name one for each, or set count"
                )));
            }
            cpus
        }
        (None, None) => Vec::new(),
    };
    Ok(WorkerConfig { count, is_auto: auto.is_some(), cpus })
}

/// Number of workers by the word [`AUTO`]: the CPUs that this process may use, less one for programs.
fn one_less_than_cpus() -> ShardCount {
    let cpus = thread::available_parallelism().map_or(1, NonZero::get);
    let count = u8::try_from(cpus - 1).unwrap_or(u8::MAX).clamp(1, ShardCount::MAX);
    ShardCount::new(count).unwrap_or(ShardCount::ONE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> std::result::Result<(usize, Vec<u16>), String> {
        let read = Config::from_toml(text, "gw.toml").map_err(|err| err.to_string())?;
        Ok((read.worker.count.get(), read.worker.cpus))
    }

    #[test]
    fn workers_and_their_cpus() {
        assert_eq!((read(""), read("[worker]")), (Ok((1, vec![])), Ok((1, vec![]))));
        assert_eq!(read("[worker]\ncpu = 3"), Ok((1, vec![3])));
        assert_eq!(read("[worker]\ncpus = [3]"), Ok((1, vec![3])));
        assert_eq!(read("[worker]\ncount = 2\ncpus = [3, 1]"), Ok((2, vec![3, 1])));
        assert_eq!(read("[worker]\ncount = 64"), Ok((64, vec![])));
        let refused = [
            ("cpu = 8192", "gw.toml:2: worker.cpu: 8192 is out of range; use 0 to 8191."),
            ("count = 0", "gw.toml:2: worker.count: 0 is out of range; use 1 to 64."),
            ("count = 65", "gw.toml:2: worker.count: 65 is out of range; use 1 to 64."),
            ("cpu = 1\ncpus = [1]", "gw.toml:3: worker.cpus: is given beside `cpu`; use one of them."),
            ("count = 2\ncpu = 1", "gw.toml:3: worker.cpu: is for one worker; name a CPU for each in `cpus`."),
            (
                "count = 3\ncpus = [0, 1]",
                "gw.toml:3: worker.cpus: names 2 CPUs, and the workers are 3; name one for each, or set count.",
            ),
            (
                "cpus = [0, 1]",
                "gw.toml:2: worker.cpus: names 2 CPUs, and the workers are 1; name one for each, or set count.",
            ),
            ("count = 2\ncpus = [1, 1]", "gw.toml:3: worker.cpus: names CPU 1 twice."),
            ("count = \"all\"", "gw.toml:2: worker.count: all is unknown; use auto."),
            (
                "count = \"auto\"\ncpus = [0]",
                "gw.toml:3: worker.cpus: is given beside count = \"auto\"; use a number as count.",
            ),
            ("count = \"auto\"\ncpu = 0", "gw.toml:3: worker.cpu: is for one worker; name a CPU for each in `cpus`."),
        ];
        for (text, want) in refused {
            assert_eq!(read(&format!("[worker]\n{text}")), Err(want.to_owned()), "{text}");
        }
    }

    #[test]
    fn automatic_workers_leave_a_cpu_to_programs() {
        let cpus = thread::available_parallelism().unwrap().get();
        assert_eq!(read("[worker]\ncount = \"auto\""), Ok(((cpus - 1).clamp(1, 64), vec![])));
        // What several workers cannot have is served by one.
        assert_eq!(read("[crypto]\nworkers = 1\n[worker]\ncount = \"auto\""), Ok((1, vec![])));
    }

    #[test]
    fn workers_with_features_of_one_are_refused_by_name() {
        let link = |more: &str| format!("[[link]]\nname = \"a\"\nkind = \"packet\"\ninterface = \"a\"\n{more}");
        let cases = [
            (link("esp-offload = \"software\"\n"), "`esp-offload`"),
            ("[crypto]\nworkers = 1\n".to_owned(), "threads of `[crypto]`"),
        ];
        for (text, feature) in cases {
            assert!(read(&format!("{text}[worker]\ncount = 1")).is_ok(), "{text}");
            let refused = read(&format!("{text}[worker]\ncount = 2")).unwrap_err();
            let want = format!("worker.count: several workers cannot have {feature} yet; use count = 1.");
            assert!(refused.ends_with(&want), "{refused}");
        }
    }
}
