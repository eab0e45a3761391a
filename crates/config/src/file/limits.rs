//! `[limits]`: limits of memory and of tables.

use super::qdisc;
use super::reader::{Result, Table};
use crate::model::{Config, LimitsConfig, TableLimits};

pub(super) const KEYS: &[&str] = &["memory", "routes", "sas", "policies", "neighbours", "mappings"];

/// Minimum of `memory`: twice what requests leave free.
const MIN_MEMORY: u64 = 32 << 20;

/// Maximum of `memory`: a terabyte; more is a mistake.
const MAX_MEMORY: u64 = 1 << 40;

/// Maximum of a table's limit: Linux's `int`.
const MAX_ENTRIES: u32 = i32::MAX as u32;

/// Reads the table of a file that has the objects of `config`.
pub(super) fn read(table: &Table<'_>, config: &Config) -> Result<LimitsConfig> {
    let memory = table.get("memory").map(|value| {
        let range = || value.error("is out of range; use a size such as \"2G\", 32M to 1024G");
        let bytes = qdisc::size_up_to(&value, MAX_MEMORY).map_err(|fault| match value.is_number() {
            true => range(),
            false => fault,
        })?;
        if bytes >= MIN_MEMORY { Ok(bytes) } else { Err(range()) }
    });
    let entries = |key: &str, used: usize| -> Result<u32> {
        let Some(value) = table.get(key) else { return Ok(0) };
        let limit = value.number(1..=MAX_ENTRIES)?;
        if used > limit as usize {
            return Err(value.error(format!("{limit} is less than the {used} {key} of this file; use {used} or more")));
        }
        Ok(limit)
    };
    Ok(LimitsConfig {
        memory: memory.transpose()?,
        tables: TableLimits {
            routes: entries("routes", config.routes.len())?,
            sas: entries("sas", config.sas.len())?,
            policies: entries("policies", config.policies.len())?,
            neighbours: entries("neighbours", 0)?,
            mappings: entries("mappings", config.ila.len())?,
        },
    })
}

#[cfg(test)]
mod tests {
    use crate::model::{Config, LimitsConfig, TableLimits};

    fn read(text: &str) -> std::result::Result<LimitsConfig, String> {
        Config::from_toml(text, "gw.toml").map(|config| config.limits).map_err(|err| err.to_string())
    }

    #[test]
    fn limits_have_units_and_default_to_none() {
        assert_eq!(read(""), Ok(LimitsConfig::default()));
        assert_eq!(read("[limits]"), Ok(LimitsConfig::default()));
        for (memory, bytes) in
            [("\"2G\"", 2 << 30), ("\"64mb\"", 64 << 20), ("33554432", 32 << 20), ("\"1024G\"", 1 << 40)]
        {
            assert_eq!(read(&format!("[limits]\nmemory = {memory}")).map(|limits| limits.memory), Ok(Some(bytes)));
        }
        let tables = TableLimits { routes: 1, sas: 2, policies: 3, neighbours: 4, mappings: 2_147_483_647 };
        let text = "[limits]\nroutes = 1\nsas = 2\npolicies = 3\nneighbours = 4\nmappings = 2147483647";
        assert_eq!(read(text), Ok(LimitsConfig { memory: None, tables }));
    }

    #[test]
    fn wrong_limit_is_refused_by_name() {
        let range = "is out of range; use a size such as \"2G\", 32M to 1024G.";
        for (keys, want) in [
            ("memory = 33554431", format!("memory: {range}")),
            ("memory = \"31M\"", format!("memory: {range}")),
            ("memory = 1099511627777", format!("memory: {range}")),
            ("memory = -1", format!("memory: {range}")),
            ("memory = true", "memory: is a truth value; use a text in quotes.".to_owned()),
            ("routes = 0", "routes: 0 is out of range; use 1 to 2147483647.".to_owned()),
            ("sas = -1", "sas: -1 is out of range; use 1 to 2147483647.".to_owned()),
            ("policies = 2147483648", "policies: 2147483648 is out of range; use 1 to 2147483647.".to_owned()),
            ("neighbours = \"many\"", "neighbours: is a text; use a whole number.".to_owned()),
            ("mappings = 1.5", "mappings: is a fraction; use a whole number.".to_owned()),
            ("rotues = 3", "rotues: unknown key; use routes.".to_owned()),
        ] {
            assert_eq!(read(&format!("[limits]\n{keys}")), Err(format!("gw.toml:2: limits.{want}")), "{keys}");
        }
    }

    #[test]
    fn limit_below_the_objects_of_the_file_is_refused() {
        let route = |n: u8| format!("[[route]]\nto = \"10.{n}.0.0/16\"\ntype = \"blackhole\"\n");
        let text = format!("[limits]\nroutes = 1\n{}{}", route(1), route(2));
        let want = "gw.toml:2: limits.routes: 1 is less than the 2 routes of this file; use 2 or more.";
        assert_eq!(read(&text), Err(want.to_owned()));
        assert_eq!(read(&text.replace("routes = 1", "routes = 2")).map(|limits| limits.tables.routes), Ok(2));
    }
}
