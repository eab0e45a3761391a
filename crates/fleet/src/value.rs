//! Values of the store: small JSON objects with `"v": 1`. Unknown fields are ignored.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use base::Prefix;
use ila::Locator;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::refusal::Refusal;

/// Longest value, in bytes.
pub const MAX_VALUE: usize = 4096;

/// Version of the values of this program.
const VERSION: u64 = 1;

/// Value of `meta`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct MetaValue {
    /// Version, 1.
    v: u64,
    /// Identity of the store, made once.
    pub uuid: String,
}

/// Value of `node/NODE`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct NodeValue {
    /// Version, 1.
    v: u64,
    /// Prefix of the node's locators.
    pub locators: String,
    /// Address by which other nodes reach these.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub underlay: Option<Ipv6Addr>,
}

/// Value of `vrf/NODE/VRF/PREFIX`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct NetworkValue {
    /// Version, 1.
    v: u64,
    /// Address of the node in the VRF, by which other nodes reach the network.
    pub via: IpAddr,
    /// Metric of their routes, not 0.
    pub metric: u32,
}

/// Place of a task's mapping in its life.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TaskState {
    /// The task is at its node.
    Here,
    /// The task is on the way to another node.
    Moving,
}

/// Value of `ila/DOMAIN/SIR`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct TaskValue {
    /// Version, 1.
    v: u64,
    /// Name of the task's node.
    pub node: String,
    /// Locator of the task at that node, as `fd00:0:1:7`.
    pub locator: String,
    /// State.
    pub state: TaskState,
    /// Name of the node that the task moves to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// Locator of the task at that node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to_locator: Option<String>,
}

/// Version of a value whose other fields have another form.
#[derive(Deserialize)]
struct VersionOnly {
    v: u64,
}

/// Parses a value.
fn parse<T: DeserializeOwned>(value: &[u8], version: impl Fn(&T) -> u64) -> Result<T, Refusal> {
    if value.len() > MAX_VALUE {
        return Err(Refusal::Malformed);
    }
    match serde_json::from_slice::<T>(value) {
        Ok(parsed) if version(&parsed) == VERSION => Ok(parsed),
        Ok(_) => Err(Refusal::Version),
        Err(_) => match serde_json::from_slice(value) {
            Ok(VersionOnly { v }) if v != VERSION => Err(Refusal::Version),
            _ => Err(Refusal::Malformed),
        },
    }
}

fn bytes(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_default()
}

impl MetaValue {
    /// Identity of a new store.
    pub const fn new(uuid: String) -> Self {
        Self { v: VERSION, uuid }
    }

    /// Parses a value.
    ///
    /// # Errors
    /// The value is malformed, or of another version.
    pub fn parse(value: &[u8]) -> Result<Self, Refusal> {
        let parsed: Self = parse(value, |it: &Self| it.v)?;
        if parsed.uuid.is_empty() { Err(Refusal::Malformed) } else { Ok(parsed) }
    }

    /// JSON of the value.
    pub fn to_bytes(&self) -> Vec<u8> {
        bytes(self)
    }
}

impl NodeValue {
    /// Locators of a node, and its underlay address.
    pub fn new(locators: Prefix, underlay: Option<Ipv6Addr>) -> Self {
        Self { v: VERSION, locators: locators.to_string(), underlay }
    }

    /// Parses a value.
    ///
    /// # Errors
    /// The value is malformed, or of another version.
    pub fn parse(value: &[u8]) -> Result<Self, Refusal> {
        parse(value, |it: &Self| it.v)
    }

    /// Prefix of the locators.
    pub(crate) fn prefix(&self) -> Result<Prefix, Refusal> {
        self.locators.parse().map_err(|_| Refusal::Malformed)
    }

    /// JSON of the value.
    pub fn to_bytes(&self) -> Vec<u8> {
        bytes(self)
    }
}

impl NetworkValue {
    /// Way to a network.
    pub const fn new(via: IpAddr, metric: u32) -> Self {
        Self { v: VERSION, via, metric }
    }

    /// Parses a value.
    ///
    /// # Errors
    /// The value is malformed, or of another version.
    pub fn parse(value: &[u8]) -> Result<Self, Refusal> {
        parse(value, |it: &Self| it.v)
    }

    /// Checks the way to a prefix.
    ///
    /// # Errors
    /// The address is of another family, of one link alone or no host's, or the metric is 0.
    pub fn check(&self, prefix: Prefix) -> Result<(), Refusal> {
        let is_same_family = prefix.is_ipv4() == self.via.is_ipv4();
        let is_broadcast = self.via == IpAddr::V4(Ipv4Addr::BROADCAST);
        let is_of_link = matches!(self.via, IpAddr::V6(via) if via.is_unicast_link_local());
        let is_special = self.via.is_unspecified() || self.via.is_loopback() || self.via.is_multicast();
        let is_of_host = !(is_special || is_broadcast || is_of_link);
        if is_same_family && is_of_host && self.metric != 0 { Ok(()) } else { Err(Refusal::Malformed) }
    }

    /// JSON of the value.
    pub fn to_bytes(&self) -> Vec<u8> {
        bytes(self)
    }
}

impl TaskValue {
    /// Task at its node.
    pub fn here(node: &str, locator: Locator) -> Self {
        let node = node.to_owned();
        let locator = locator.to_string();
        Self { v: VERSION, node, locator, state: TaskState::Here, to: None, to_locator: None }
    }

    /// This task on its way to another node.
    #[must_use]
    pub fn moving(&self, to: &str, to_locator: Locator) -> Self {
        let to = Some(to.to_owned());
        let to_locator = Some(to_locator.to_string());
        Self { state: TaskState::Moving, to, to_locator, ..self.clone() }
    }

    /// Parses a value.
    ///
    /// # Errors
    /// The value is malformed, or of another version.
    pub fn parse(value: &[u8]) -> Result<Self, Refusal> {
        let parsed: Self = parse(value, |it: &Self| it.v)?;
        let is_moving = parsed.state == TaskState::Moving;
        let is_whole = parsed.to.is_some() == is_moving && parsed.to_locator.is_some() == is_moving;
        if is_whole { Ok(parsed) } else { Err(Refusal::Malformed) }
    }

    /// JSON of the value.
    pub fn to_bytes(&self) -> Vec<u8> {
        bytes(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_of_another_version_or_form_is_refused() {
        let deep = format!("{{\"v\":1,\"node\":{}{}}}", "[".repeat(2000), "]".repeat(2000));
        let long = format!("{{\"v\":1,\"node\":\"{}\"}}", "x".repeat(MAX_VALUE));
        for (value, want) in [
            ("{\"v\":2,\"node\":7}", Refusal::Version),
            ("{\"v\":2,\"node\":\"a\",\"locator\":\"1:2:3:4\",\"state\":\"here\"}", Refusal::Version),
            ("{\"v\":1,\"node\":7}", Refusal::Malformed),
            ("{\"v\":-1}", Refusal::Malformed),
            ("{\"node\":\"a\"}", Refusal::Malformed),
            ("", Refusal::Malformed),
            ("[]", Refusal::Malformed),
            ("{\"v\":1,\"node\":\"a\",\"locator\":\"1:2:3:4\",\"state\":\"there\"}", Refusal::Malformed),
            ("{\"v\":1,\"node\":\"a\",\"locator\":\"1:2:3:4\",\"state\":\"moving\"}", Refusal::Malformed),
            ("{\"v\":1,\"node\":\"a\",\"locator\":\"1:2:3:4\",\"state\":\"here\",\"to\":\"b\"}", Refusal::Malformed),
            ("{\"v\":1,\"v\":1,\"node\":\"a\",\"locator\":\"1:2:3:4\",\"state\":\"here\"}", Refusal::Malformed),
            (&deep, Refusal::Malformed),
            (&long, Refusal::Malformed),
        ] {
            assert_eq!(TaskValue::parse(value.as_bytes()), Err(want), "{value}");
        }
        assert_eq!(MetaValue::parse(b"{\"v\":1,\"uuid\":\"\"}"), Err(Refusal::Malformed));
        for (value, want) in [
            ("{\"v\":2,\"via\":\"10.0.0.1\",\"metric\":1}", Refusal::Version),
            ("{\"v\":1,\"via\":\"10.0.0\",\"metric\":1}", Refusal::Malformed),
            ("{\"v\":1,\"via\":\"10.0.0.1\",\"metric\":-1}", Refusal::Malformed),
            ("{\"v\":1,\"via\":\"10.0.0.1\"}", Refusal::Malformed),
        ] {
            assert_eq!(NetworkValue::parse(value.as_bytes()), Err(want), "{value}");
        }
    }

    #[test]
    fn value_is_read_as_written_with_unknown_fields() {
        let task = TaskValue::here("a", "fd00:0:1:7".parse().unwrap());
        assert_eq!(task.to_bytes(), b"{\"v\":1,\"node\":\"a\",\"locator\":\"fd00:0:1:7\",\"state\":\"here\"}");
        let network = NetworkValue::new("10.0.0.1".parse().unwrap(), 100);
        assert_eq!(network.to_bytes(), b"{\"v\":1,\"via\":\"10.0.0.1\",\"metric\":100}");
        assert_eq!(NetworkValue::parse(&network.to_bytes()), Ok(network));
        let moving = task.moving("b", "fd00:0:2:7".parse().unwrap());
        for value in [task, moving] {
            assert_eq!(TaskValue::parse(&value.to_bytes()), Ok(value));
        }
        assert!(
            NodeValue::parse(b"{\"v\":1,\"locators\":\"fd00:0:1::/48\",\"ike\":{\"key\":\"x\"},\"networks\":[]}")
                .is_ok()
        );
    }
}
