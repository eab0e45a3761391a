//! Restores saved state on top of the configuration.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use client::CliError;
use netlink::error::errno;
use netlink::generic::ila;
use netlink::message::flag;
use netlink::rtnl::nums::{RTM_DELRULE, RTM_NEWLINK};
use netlink::rtnl::{Model, RouteKey};
use netlink::sysctl;
use netlink::{Error, Saved, carry_out, flags_of, kind_of, rtnl, xfrm};

use super::file::{Kept, State};
use crate::netlink::Protocols;

/// Carries out the requests in `state`, of the file at `path`. Objects that exist already are the configuration's,
/// and stay. Returns the number of requests that were carried out, and the number skipped because their object existed.
///
/// # Errors
/// Exit code 2: a request cannot be carried out. Earlier requests have been.
pub(crate) fn restore(state: &mut State, path: &Path, protocols: &mut Protocols) -> Result<[usize; 2], CliError> {
    let State { links, route, sas, xfrm: others, ila: mappings, settings, checkpoints } = state;
    let mut done = [0; 2];
    let mut take = |kept: &Kept, outcome: Result<(), Error>| match outcome {
        Ok(()) => {
            done[0] += 1;
            Ok(true)
        }
        Err(error) if is_of_files(&kept.message, &error) => {
            done[1] += 1;
            Ok(false)
        }
        Err(error) => Err(refused(path, &kept.label, &words(&error))),
    };
    // The configuration defines these objects, so they are not restored.
    let mut of_files = HashSet::new();
    let gone = |label: &str, number: u32, links: &BTreeMap<u32, String>| {
        let name = links.get(&number).map_or("?", String::as_str);
        refused(path, label, &format!("no link is named {name}"))
    };
    let of_configuration = protocols.rtnl.saved().map_err(|err| CliError::failed(err.to_string()))?;
    let of_configuration: HashSet<String> =
        of_configuration.into_iter().filter(Saved::is_alone).map(|saved| saved.label).collect();
    for kept in route {
        // The request for a link itself is checked when it is carried out, because it assigns the link's number.
        if kind_of(&kept.message) != RTM_NEWLINK && of_configuration.contains(&kept.label) {
            take(kept, Err(Error::new(errno::EEXIST)))?;
            continue;
        }
        let model = &protocols.rtnl.model;
        let is_taken = |number| model.is_taken(number) || link::has_interface(number);
        rtnl::renumber(&mut kept.message, |old| current(links, model, old), is_taken)
            .map_err(|number| gone(&kept.label, number, links))?;
        let key = RouteKey::of(&kept.message);
        let outcome = match key.filter(|key| of_files.contains(key)) {
            Some(_) => Err(Error::new(errno::EEXIST)),
            None => carry_out(&mut protocols.rtnl, &kept.message),
        };
        if !take(kept, outcome)? && is_alone(&kept.message) {
            of_files.extend(key);
        }
    }
    for (name, kept) in sas {
        let model = &protocols.rtnl.model;
        xfrm::renumber(&mut kept.message, |old| current(links, model, old))
            .map_err(|number| gone(&kept.label, number, links))?;
        if let Some(checkpoint) = checkpoints.get(name) {
            xfrm::set_numbers(&mut kept.message, checkpoint.numbers());
        }
        take(kept, carry_out(&mut protocols.xfrm, &kept.message))?;
    }
    for kept in others {
        let model = &protocols.rtnl.model;
        xfrm::renumber(&mut kept.message, |old| current(links, model, old))
            .map_err(|number| gone(&kept.label, number, links))?;
        take(kept, carry_out(&mut protocols.xfrm, &kept.message))?;
    }
    for kept in mappings {
        let model = &protocols.rtnl.model;
        ila::renumber(&mut kept.message, |old| current(links, model, old))
            .map_err(|number| gone(&kept.label, number, links))?;
        take(kept, carry_out(&mut protocols.generic, &kept.message))?;
    }
    let saved = settings.iter().map(|(name, text)| (name.as_str(), text.as_str()));
    let (set, [n, left]) = sysctl::restored(*protocols.sysctl.settings(), saved).map_err(|(name, errno)| {
        refused(path, &format!("setting net.{}", name.replace('/', ".")), &words(&Error::new(errno)))
    })?;
    let wrong = |errno| refused(path, "settings", &words(&Error::new(errno)));
    protocols.rtnl.model.set_strict_vrfs(set.vrf_strict_mode).map_err(wrong)?;
    protocols.sysctl.set(set).map_err(wrong)?;
    Ok([done[0] + n, done[1] + left])
}

/// Whether a request was refused because the configuration has its object already, or lacks the rule that it deletes.
fn is_of_files(message: &[u8], error: &Error) -> bool {
    match error.errno {
        errno::EEXIST => true,
        errno::ENOENT => kind_of(message) == RTM_DELRULE,
        _ => false,
    }
}

/// Whether a request is for an object that exists at most once.
fn is_alone(message: &[u8]) -> bool {
    flags_of(message) & flag::EXCL != 0
}

/// The current number of the link that had the number `old`.
fn current(links: &BTreeMap<u32, String>, model: &Model, old: u32) -> Option<u32> {
    let id = model.index_of(links.get(&old)?)?;
    Some(model.ifindex(id).0)
}

fn refused(path: &Path, label: &str, why: &str) -> CliError {
    CliError::bad_config(format!(
        "{}: {label}: {why}. Nothing of the saved state is restored. Correct the configuration, or move the file away to start \
         without the saved state.",
        path.display()
    ))
}

/// Reason of a refusal: its text, or its number if there is none.
fn words(error: &Error) -> String {
    match &error.text {
        Some(text) => text.trim_end_matches('.').to_owned(),
        None => {
            let text = std::io::Error::from_raw_os_error(error.errno).to_string();
            text.split(" (os error").next().unwrap_or(&text).to_owned()
        }
    }
}
