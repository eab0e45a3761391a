//! Openers over a new start of the gateway's program in the same process, which has their sockets by their numbers.

use std::collections::BTreeMap;
use std::os::fd::RawFd;
use std::process::Command;

/// Variable of a gateway that starts anew: descriptors of the openers that it has started before, by names.
const VARIABLE: &str = "FATPATH_OPENERS";

/// Names descriptors to the program of `command`, which they are left open for.
pub(super) fn name<'a>(command: &mut Command, openers: impl IntoIterator<Item = (&'a str, RawFd)>) {
    let openers: Vec<_> = openers.into_iter().map(|(name, number)| format!("{name}={number}")).collect();
    command.env(VARIABLE, openers.join(","));
}

/// Numbers of the descriptors that are [named](name) to this program.
pub(crate) fn named() -> BTreeMap<RawFd, String> {
    let variable = std::env::var(VARIABLE).unwrap_or_default();
    let each = variable.split(',').filter_map(|one| one.split_once('='));
    each.filter_map(|(name, number)| Some((number.parse().ok()?, name.to_owned()))).collect()
}
