//! Openers over a new start of the gateway's program in the same process, which has their sockets by their numbers, and its user over
//! that start: by then it cannot read the host's users any more.

use std::collections::BTreeMap;
use std::os::fd::RawFd;
use std::process::Command;

/// Variable of a gateway that starts anew: descriptors of the openers that it has started before, by names.
const VARIABLE: &str = "FATPATH_OPENERS";

/// Variable of a gateway that starts anew: name of the user that it has changed to; empty without one.
const USER: &str = "FATPATH_CHANGED_USER";

/// Names descriptors to the program of `command`, which they are left open for, and the user that this process has changed to.
pub(super) fn name<'a>(command: &mut Command, openers: impl IntoIterator<Item = (&'a str, RawFd)>, user: Option<&str>) {
    let openers: Vec<_> = openers.into_iter().map(|(name, number)| format!("{name}={number}")).collect();
    command.env(VARIABLE, openers.join(",")).env(USER, user.unwrap_or_default());
}

/// Whether this program is the new start of a gateway.
pub(crate) fn is_started_anew() -> bool {
    std::env::var_os(VARIABLE).is_some()
}

/// User that is [named](name) to this program.
pub(super) fn user() -> Option<String> {
    std::env::var(USER).ok().filter(|name| !name.is_empty())
}

/// Numbers of the descriptors that are [named](name) to this program.
pub(crate) fn named() -> BTreeMap<RawFd, String> {
    let variable = std::env::var(VARIABLE).unwrap_or_default();
    let each = variable.split(',').filter_map(|one| one.split_once('='));
    each.filter_map(|(name, number)| Some((number.parse().ok()?, name.to_owned()))).collect()
}
