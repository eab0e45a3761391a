//! The agent's file.

use std::collections::BTreeMap;
use std::fs;
use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base::Prefix;
use client::CliError;
use fleet::{Domain, NodeValue, Settings};
use ila::CsumMode;
use serde::Deserialize;

use crate::etcd::Endpoint;

/// Time between two looks at all keys.
const LOOK_EVERY: Duration = Duration::from_secs(600);

/// The file as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct File {
    fleet: String,
    node: String,
    etcd: Vec<String>,
    locators: String,
    underlay: Option<Ipv6Addr>,
    instance: Option<String>,
    state: Option<PathBuf>,
    #[serde(default = "yes")]
    routes: bool,
    csum_mode: Option<String>,
    domains: BTreeMap<String, String>,
}

const fn yes() -> bool {
    true
}

/// The file's settings.
#[derive(Clone, Debug)]
pub(crate) struct AgentConfig {
    pub(crate) settings: Settings,
    pub(crate) own: NodeValue,
    pub(crate) endpoints: Vec<Endpoint>,
    /// Name of the gateway.
    pub(crate) instance: String,
    /// File of the saved state.
    pub(crate) state: PathBuf,
}

impl AgentConfig {
    /// Reads a file.
    ///
    /// # Errors
    /// The file cannot be read, or a value is wrong.
    pub(crate) fn read(path: &Path) -> Result<Self, CliError> {
        let text = fs::read_to_string(path).map_err(|err| CliError::system(&path.display().to_string(), &err))?;
        Self::parse(&text).map_err(|why| CliError::failed(format!("{}: {why}", path.display())))
    }

    fn parse(text: &str) -> Result<Self, String> {
        let file: File = toml::from_str(text).map_err(|err| err.to_string())?;
        let prefix = |text: &str| text.parse::<Prefix>().map_err(|err| err.to_string());
        let mut domains = Vec::new();
        for (name, of_domain) in &file.domains {
            domains.push(Domain { name: name.clone(), prefix: prefix(of_domain)? });
        }
        if domains.is_empty() {
            return Err("Missing domain: [domains] has none".to_owned());
        }
        let csum_mode = match file.csum_mode.as_deref() {
            None | Some("neutral-map-auto") => CsumMode::NeutralMapAuto,
            Some("neutral-map") => CsumMode::NeutralMap,
            Some("no-action") => CsumMode::NoAction,
            Some("adj-transport") => CsumMode::AdjTransport,
            Some(other) => return Err(format!("Unknown checksum mode {other:?}")),
        };
        let settings = Settings {
            fleet: file.fleet,
            node: file.node,
            locators: prefix(&file.locators)?,
            domains,
            routes: file.routes,
            csum_mode,
            look_every: LOOK_EVERY,
        };
        settings.check().map_err(|err| err.to_string())?;
        let endpoints: Result<Vec<Endpoint>, _> = file.etcd.iter().map(|text| text.parse()).collect();
        let endpoints = endpoints.map_err(|err| err.to_string())?;
        if endpoints.is_empty() {
            return Err("Missing member: etcd has none".to_owned());
        }
        let instance = client::instance_or_default(file.instance.as_deref()).map_err(|err| err.messages())?;
        let state = match file.state {
            Some(state) => state,
            None => client::state_dir(rustix::process::geteuid().is_root())
                .ok_or("Missing state: this user has no home directory")?
                .join(format!("{instance}.fleet")),
        };
        let own = NodeValue::new(settings.locators, file.underlay);
        Ok(Self { settings, own, endpoints, instance, state })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "fleet = \"f\"\nnode = \"a\"\netcd = [\"http://10.0.0.1:2379\"]\nlocators = \"fd00:0:1::/48\"\n\
        underlay = \"fd99::1\"\nstate = \"/tmp/x\"\n[domains]\ntasks = \"2001:db8::/48\"\n";

    #[test]
    fn file_of_few_lines_is_read() {
        let config = AgentConfig::parse(GOOD).unwrap();
        assert_eq!(config.settings.domains[0].prefix.to_string(), "2001:db8::/48");
        assert_eq!(config.settings.csum_mode, CsumMode::NeutralMapAuto);
        assert_eq!(config.own.underlay, Some("fd99::1".parse().unwrap()));
        assert!(config.settings.routes);
        assert_eq!(config.endpoints.len(), 1);
    }

    #[test]
    fn wrong_value_is_named() {
        for (from, to, want) in [
            ("\"a\"", "\"a/b\"", "Invalid name"),
            ("http://", "https://", "Invalid address of a member"),
            ("[\"http://10.0.0.1:2379\"]", "[]", "Missing member"),
            ("fd00:0:1::/48", "fd00:0:1::1/48", "host bits set"),
            ("2001:db8::/48", "fd00::/16", "overlaps"),
            ("tasks =", "#", "Missing domain"),
            ("underlay", "underlie", "unknown field"),
            ("state =", "csum-mode =", "Unknown checksum mode"),
        ] {
            let text = GOOD.replace(from, to);
            let why = AgentConfig::parse(&text).unwrap_err();
            assert!(why.contains(want), "{why}");
        }
    }
}
