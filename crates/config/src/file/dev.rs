//! `dev`: the name of a configured link.

use super::reader::{Refers, Result, Value, quoted};
use crate::model::Config;

/// Reads the name of a link, which must be configured.
pub(super) fn read(value: &Value<'_>, config: &Config) -> Result<String> {
    let name = value.str()?;
    if config.links.iter().any(|link| link.name == name) {
        return Ok(name.to_owned());
    }
    let names: Vec<&str> = config.links.iter().map(|link| link.name.as_str()).collect();
    let hint =
        if names.is_empty() { "no link is configured".to_owned() } else { format!("links are {}", names.join(", ")) };
    Err(value.error(format!("no link is named {}; {hint}", quoted(name))).about(Refers::Link(name.to_owned())))
}
