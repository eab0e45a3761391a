//! The agent's file.

use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base::Prefix;
use client::CliError;
use fleet::{Domain, Key, NetworkValue, NodeValue, Settings};
use ila::CsumMode;
use serde::Deserialize;

use crate::etcd::{CertFiles, Endpoint, TlsFiles};

/// Quota of etcd's database, unless its `--quota-backend-bytes` is another one.
const QUOTA_MIB: u64 = 2048;

/// Metric of networks without one.
const METRIC: u32 = 100;

/// Time between two looks at all keys.
const LOOK_EVERY: Duration = Duration::from_secs(600);

/// The file as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct File {
    fleet: String,
    node: String,
    etcd: Vec<String>,
    cacert: Option<PathBuf>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
    #[serde(default)]
    insecure_transport: bool,
    locators: String,
    underlay: Option<Ipv6Addr>,
    instance: Option<String>,
    state: Option<PathBuf>,
    #[serde(default = "yes")]
    routes: bool,
    csum_mode: Option<String>,
    quota_mib: Option<u64>,
    domains: BTreeMap<String, String>,
    #[serde(default)]
    networks: Vec<FileNetworks>,
}

/// Networks of the node in a VRF, as they are written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileNetworks {
    vrf: String,
    via: IpAddr,
    metric: Option<u32>,
    prefixes: Vec<String>,
}

const fn yes() -> bool {
    true
}

/// The file's settings.
#[derive(Clone, Debug)]
pub(crate) struct AgentConfig {
    pub(crate) settings: Settings,
    pub(crate) own: NodeValue,
    /// Keys of this node's networks, with their values.
    pub(crate) networks: BTreeMap<String, Vec<u8>>,
    pub(crate) endpoints: Vec<Endpoint>,
    /// Name of the gateway.
    pub(crate) instance: String,
    /// File of the saved state.
    pub(crate) state: PathBuf,
    /// Quota of etcd's database.
    pub(crate) quota_bytes: u64,
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
        let endpoints = endpoints(&file)?;
        let mut settings = Settings {
            fleet: file.fleet,
            node: file.node,
            locators: prefix(&file.locators)?,
            domains,
            networks: Vec::new(),
            routes: file.routes,
            csum_mode,
            look_every: LOOK_EVERY,
        };
        settings.check().map_err(|err| err.to_string())?;
        let instance = client::instance_or_default(file.instance.as_deref()).map_err(|err| err.messages())?;
        let state = match file.state {
            Some(state) => state,
            None => client::state_dir(rustix::process::geteuid().is_root())
                .ok_or("Missing state: this user has no home directory")?
                .join(format!("{instance}.fleet")),
        };
        let own = NodeValue::new(settings.locators, file.underlay);
        let networks = networks(&mut settings, file.networks)?;
        let quota_bytes = match file.quota_mib.unwrap_or(QUOTA_MIB).checked_mul(1 << 20) {
            None | Some(0) => return Err("Invalid quota-mib: out of range".to_owned()),
            Some(bytes) => bytes,
        };
        Ok(Self { settings, own, networks, endpoints, instance, state, quota_bytes })
    }
}

/// Addresses of the members, with the files of TLS.
fn endpoints(file: &File) -> Result<Vec<Endpoint>, String> {
    let pair = match (&file.cert, &file.key) {
        (None, None) => None,
        (Some(cert), Some(key)) => Some(CertFiles { cert: cert.clone(), key: key.clone() }),
        (Some(_), None) => return Err("Missing key: cert has none".to_owned()),
        (None, Some(_)) => return Err("Missing cert: key has none".to_owned()),
    };
    let tls = match (&file.cacert, pair) {
        (None, None) => None,
        (Some(cacert), pair) => Some(Arc::new(TlsFiles::new(cacert.clone(), pair))),
        (None, Some(_)) => return Err("Missing cacert: cert and key are for members of a CA".to_owned()),
    };
    let endpoints: Result<Vec<_>, _> = file.etcd.iter().map(|text| Endpoint::parse(text, tls.as_ref())).collect();
    let endpoints = endpoints.map_err(|err| err.to_string())?;
    if endpoints.is_empty() {
        return Err("Missing member: etcd has none".to_owned());
    }
    let is_open = |endpoint: &&Endpoint| endpoint.tls().is_none() && !endpoint.is_loopback();
    match endpoints.iter().find(is_open) {
        Some(endpoint) if !file.insecure_transport => Err(format!(
            "Invalid address of a member {endpoint}: plain text to another machine; use https://, or say \
             `insecure-transport = true` if the network below is trusted or encrypted"
        )),
        _ => Ok(endpoints),
    }
}

/// Notes the networks, and returns their keys with their values.
fn networks(settings: &mut Settings, all: Vec<FileNetworks>) -> Result<BTreeMap<String, Vec<u8>>, String> {
    let mut keys = BTreeMap::new();
    for FileNetworks { vrf, via, metric, prefixes } in all {
        for prefix in prefixes {
            let prefix: Prefix = prefix.parse().map_err(|err: base::PrefixError| err.to_string())?;
            let key = Key::Network { node: settings.node.clone(), vrf: vrf.clone(), prefix }.text(&settings.fleet);
            let value = NetworkValue::new(via, metric.unwrap_or(METRIC));
            // As all nodes will judge it.
            let is_good = Key::parse(&settings.fleet, key.as_bytes()).is_ok() && value.check(prefix).is_ok();
            if !is_good {
                return Err(format!(
                    "Invalid network {prefix} of VRF {vrf:?} via {via}: a name, an address of the same family, a metric above 0"
                ));
            }
            settings.networks.push((vrf.clone(), prefix));
            if keys.insert(key, value.to_bytes()).is_some() {
                return Err(format!("Two networks {prefix} of VRF {vrf:?}"));
            }
        }
    }
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "fleet = \"f\"\nnode = \"a\"\netcd = [\"https://10.0.0.1:2379\"]\ncacert = \"ca.pem\"\n\
        cert = \"a.pem\"\nkey = \"a.key\"\nlocators = \"fd00:0:1::/48\"\nunderlay = \"fd99::1\"\nstate = \"/tmp/x\"\n\
        [domains]\ntasks = \"2001:db8::/48\"\n";

    #[test]
    fn file_of_few_lines_is_read() {
        let config = AgentConfig::parse(GOOD).unwrap();
        assert_eq!(config.settings.domains[0].prefix.to_string(), "2001:db8::/48");
        assert_eq!(config.settings.csum_mode, CsumMode::NeutralMapAuto);
        assert_eq!(config.own.underlay, Some("fd99::1".parse().unwrap()));
        assert!(config.settings.routes);
        assert_eq!(config.endpoints.len(), 1);
        assert_eq!(config.quota_bytes, 2 << 30);
        let config = AgentConfig::parse(&GOOD.replace("node =", "quota-mib = 8192\nnode =")).unwrap();
        assert_eq!(config.quota_bytes, 8 << 30);
    }

    #[test]
    fn networks_are_keys_with_values() {
        let red = "[[networks]]\nvrf = \"red\"\nvia = \"10.9.0.1\"\nprefixes = [\"10.1.0.0/16\", \"10.2.0.0/16\"]\n";
        let config = AgentConfig::parse(&format!("{GOOD}{red}")).unwrap();
        let keys: Vec<_> = config.networks.keys().map(String::as_str).collect();
        assert_eq!(keys, ["/fatpath/v1/f/vrf/a/red/10.1.0.0/16", "/fatpath/v1/f/vrf/a/red/10.2.0.0/16"]);
        let value = NetworkValue::new("10.9.0.1".parse().unwrap(), METRIC).to_bytes();
        assert!(config.networks.values().all(|it| *it == value));
        for (from, to, want) in [
            ("10.9.0.1", "fd00::1", "Invalid network 10.1.0.0/16 of VRF \"red\" via fd00::1"),
            ("10.9.0.1", "0.0.0.0", "Invalid network"),
            ("\"red\"", "\"r/d\"", "Invalid network"),
            ("10.2.0.0/16", "10.1.0.0/16", "Two networks 10.1.0.0/16 of VRF \"red\""),
            ("10.2.0.0/16", "10.2.0.1/16", "host bits set"),
            ("prefixes", "metric = 0\nprefixes", "a metric above 0"),
            ("prefixes", "prefix", "unknown field"),
        ] {
            let why = AgentConfig::parse(&format!("{GOOD}{}", red.replace(from, to))).unwrap_err();
            assert!(why.contains(want), "{why}");
        }
    }

    #[test]
    fn plain_text_to_another_machine_has_to_be_named() {
        let (before, behind) = GOOD.split_once("cacert").unwrap();
        let (_, behind) = behind.split_once("a.key\"\n").unwrap();
        let plain = format!("{before}{behind}").replace("https", "http");
        let why = AgentConfig::parse(&plain).unwrap_err();
        assert!(why.contains("http://10.0.0.1:2379") && why.contains("insecure-transport"), "{why}");
        assert!(AgentConfig::parse(&format!("insecure-transport = true\n{plain}")).is_ok());
        assert!(AgentConfig::parse(&plain.replace("10.0.0.1", "127.0.0.1")).is_ok());
        let encrypted = plain.replace("http", "https");
        let why = AgentConfig::parse(&encrypted).unwrap_err();
        assert!(why.contains("https:// needs cacert"), "{why}");
    }

    #[test]
    fn wrong_value_is_named() {
        for (from, to, want) in [
            ("\"a\"", "\"a/b\"", "Invalid name"),
            ("https://", "ftp://", "Invalid address of a member"),
            ("https://", "http://", "https:// alone"),
            ("cacert = \"ca.pem\"\n", "", "Missing cacert"),
            ("cert = \"a.pem\"\n", "", "Missing cert"),
            ("key = \"a.key\"\n", "", "Missing key"),
            ("[\"https://10.0.0.1:2379\"]", "[]", "Missing member"),
            ("fd00:0:1::/48", "fd00:0:1::1/48", "host bits set"),
            ("2001:db8::/48", "fd00::/16", "overlaps"),
            ("tasks =", "#", "Missing domain"),
            ("underlay", "underlie", "unknown field"),
            ("state =", "csum-mode =", "Unknown checksum mode"),
            ("underlay = \"fd99::1\"", "quota-mib = 0", "Invalid quota-mib"),
        ] {
            let text = GOOD.replace(from, to);
            let why = AgentConfig::parse(&text).unwrap_err();
            assert!(why.contains(want), "{why}");
        }
    }
}
