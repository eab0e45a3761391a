//! A node becomes what was kept, beside what its files say.

use std::collections::BTreeMap;
use std::path::Path;

use control::netlink::error::errno;
use control::netlink::rtnl::Model;
use control::netlink::{Error, carry_out, rtnl, xfrm};

use super::State;
use crate::error::CliError;
use crate::run::netlink::Protocols;

/// Carries out what `state`, of the file at `path`, holds. What is there already is the files', and stays. How many
/// requests were carried out, and how many were not because of that.
///
/// # Errors
/// Exit code 2: one of them cannot be carried out. Some of the others have been.
pub(crate) fn restore(state: &mut State, path: &Path, protocols: &mut Protocols) -> Result<[usize; 2], CliError> {
    let State { links, route, sas, xfrm: others, marks } = state;
    let mut done = [0; 2];
    let mut take = |label: &str, outcome: Result<(), Error>| match outcome {
        Ok(()) => {
            done[0] += 1;
            Ok(())
        }
        // A rule that is to go is gone.
        Err(error) if matches!(error.errno, errno::EEXIST | errno::ENOENT) => {
            done[1] += 1;
            Ok(())
        }
        Err(error) => Err(refused(path, label, &words(&error))),
    };
    let gone = |label: &str, number: u32, links: &BTreeMap<u32, String>| {
        let name = links.get(&number).map_or("?", String::as_str);
        refused(path, label, &format!("no link is named {name}"))
    };
    for kept in route {
        let model = &protocols.rtnl.model;
        let is_taken = |number| model.link(number).is_some();
        rtnl::renumber(&mut kept.message, |old| current(links, model, old), is_taken)
            .map_err(|number| gone(&kept.label, number, links))?;
        take(&kept.label, carry_out(&mut protocols.rtnl, &kept.message))?;
    }
    for (name, kept) in sas {
        let model = &protocols.rtnl.model;
        xfrm::renumber(&mut kept.message, |old| current(links, model, old))
            .map_err(|number| gone(&kept.label, number, links))?;
        if let Some(mark) = marks.get(name) {
            xfrm::set_numbers(&mut kept.message, mark.numbers());
        }
        take(&kept.label, carry_out(&mut protocols.xfrm, &kept.message))?;
    }
    for kept in others {
        let model = &protocols.rtnl.model;
        xfrm::renumber(&mut kept.message, |old| current(links, model, old))
            .map_err(|number| gone(&kept.label, number, links))?;
        take(&kept.label, carry_out(&mut protocols.xfrm, &kept.message))?;
    }
    Ok(done)
}

/// The number that the link has now that had `old`.
fn current(links: &BTreeMap<u32, String>, model: &Model, old: u32) -> Option<u32> {
    model.index_of(links.get(&old)?)
}

fn refused(path: &Path, label: &str, why: &str) -> CliError {
    CliError::bad_config(format!(
        "{}: {label}: {why}. Nothing of the saved state is restored. Put right what it needs in the configuration, or move \
         the file away to start without what it holds.",
        path.display()
    ))
}

/// Why something was refused, without its number where there are words.
fn words(error: &Error) -> String {
    match &error.text {
        Some(text) => text.trim_end_matches('.').to_owned(),
        None => {
            let text = std::io::Error::from_raw_os_error(error.errno).to_string();
            text.split(" (os error").next().unwrap_or(&text).to_owned()
        }
    }
}
