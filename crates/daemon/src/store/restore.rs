//! Restores saved state on top of the configuration.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use std::time::Duration;

use base::Instant;
use client::CliError;
use netlink::error::errno;
use netlink::generic::ila;
use netlink::message::flag;
use netlink::rtnl::nums::{
    RTM_DELLINK, RTM_DELRULE, RTM_NEWADDR, RTM_NEWLINK, RTM_NEWNEIGH, RTM_NEWQDISC, RTM_NEWROUTE, RTM_SETLINK,
};
use netlink::rtnl::{Model, RouteKey};
use netlink::sysctl;
use netlink::xfrm::nums::msg;
use netlink::xfrm::time_left;
use netlink::{Change, Error, carry_out, flags_of, kind_of, rtnl, xfrm};
use nlsock::protocol;
use packet::Budget;

use super::collect::OfFiles;
use super::file::{Kept, State};
use super::sealed::{SealedSa, SealedSas};
use crate::command::{Handle, WorkerGone, same};
use crate::journal::Record;
use crate::netlink::{Protocols, write_sysctl};
use crate::node::{Node, since_boot};
use crate::path_hash;
use crate::sa_name::SaName;
use crate::sadb;

/// Numbers of requests: carried out, skipped because the files have their objects, and left out because they do not
/// fit the files.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Counts {
    pub(crate) done: usize,
    pub(crate) of_files: usize,
    pub(crate) left_out: usize,
}

impl Counts {
    fn leave_out(&mut self, path: &Path, label: &str, why: &str) {
        self.left_out += 1;
        match self.left_out {
            1..=MAX_WARNINGS => tracing::warn!("{}: {label}: {why}; it is left out", path.display()),
            _ => tracing::debug!("{}: {label}: {why}; it is left out", path.display()),
        }
    }

    /// Logs the number of warnings that were not printed.
    fn warn_of_others(&self, path: &Path) {
        if let Some(others) = self.left_out.checked_sub(MAX_WARNINGS).filter(|others| *others > 0) {
            tracing::warn!("{}: {others} other objects do not fit the files and are left out", path.display());
        }
    }
}

/// Number of objects that a start names in warnings.
const MAX_WARNINGS: usize = 10;

/// Carries out the requests in `state`, of the file at `path`. Objects that exist already are the configuration's,
/// `of_configuration`, and stay. An address, a route, a neighbour, or a property of a link that does not fit the configuration
/// is left out, with a warning: without it no packet passes that should not.
///
/// # Errors
/// Exit code 2: a request for another object cannot be carried out. Earlier requests have been.
pub(crate) fn restore(
    state: &mut State,
    path: &Path,
    of_configuration: &OfFiles,
    protocols: &mut Protocols,
) -> Result<Counts, CliError> {
    let State { links, route, sas, xfrm: others, ila: mappings, settings, checkpoints } = state;
    let mut counts = Counts::default();
    let mut take = |kept: &Kept, is_route: bool, outcome: Result<(), Error>| match outcome {
        Ok(()) => {
            counts.done += 1;
            Ok(true)
        }
        Err(error) if is_of_files(&kept.message, &error) => {
            counts.of_files += 1;
            Ok(false)
        }
        // Without memory the rest of the state would be left out, too.
        Err(error) if error.errno == errno::ENOMEM && Budget::admit().is_err() => {
            Err(refused(path, &kept.label, &words(&error)))
        }
        // Types of `NETLINK_XFRM` have the same numbers.
        Err(error) if is_route && may_be_missing(&kept.message) => {
            counts.leave_out(path, &kept.label, &words(&error));
            Ok(false)
        }
        Err(error) => Err(refused(path, &kept.label, &words(&error))),
    };
    // The configuration defines these objects, so they are not restored.
    let mut of_files = HashSet::new();
    let gone = |number: u32, links: &BTreeMap<u32, String>| {
        let name = links.get(&number).map_or("?", String::as_str);
        Error::owned_text(errno::ENODEV, format!("no link is named {name}"))
    };
    for kept in route {
        // The request for a link itself is checked when it is carried out, because it assigns the link's number.
        if kind_of(&kept.message) != RTM_NEWLINK && of_configuration.has_alone(&kept.label) {
            take(kept, true, Err(Error::new(errno::EEXIST)))?;
            continue;
        }
        let model = &protocols.rtnl.model;
        let is_taken = |number| model.is_taken(number) || link::has_interface(number);
        let renumbered = rtnl::renumber(&mut kept.message, |old| current(links, model, old), is_taken);
        let key = RouteKey::of(&kept.message);
        let outcome = match (renumbered, key.filter(|key| of_files.contains(key))) {
            (Err(number), _) => Err(gone(number, links)),
            (_, Some(_)) => Err(Error::new(errno::EEXIST)),
            _ => carry_out(&mut protocols.rtnl, &kept.message),
        };
        let is_of_files = outcome.as_ref().is_err_and(|error| is_of_files(&kept.message, error));
        take(kept, true, outcome)?;
        if is_of_files && is_alone(&kept.message) {
            of_files.extend(key);
        }
    }
    for (name, kept) in sas {
        let model = &protocols.rtnl.model;
        if let Some(checkpoint) = checkpoints.get(name) {
            xfrm::set_numbers(&mut kept.message, checkpoint.numbers());
        }
        let outcome = match xfrm::renumber(&mut kept.message, |old| current(links, model, old)) {
            Err(number) => Err(gone(number, links)),
            Ok(()) => carry_out(&mut protocols.xfrm, &kept.message),
        };
        take(kept, false, outcome)?;
    }
    for kept in others {
        let model = &protocols.rtnl.model;
        let outcome = match xfrm::renumber(&mut kept.message, |old| current(links, model, old)) {
            Err(number) => Err(gone(number, links)),
            Ok(()) => {
                protocols.xfrm.replace_waiting_policy(&mut kept.message);
                carry_out(&mut protocols.xfrm, &kept.message)
            }
        };
        match outcome {
            // The configuration has an SA of that name.
            Err(_) if xfrm::is_lost(&kept.message) => {}
            outcome => drop(take(kept, false, outcome)?),
        }
    }
    for kept in mappings {
        let model = &protocols.rtnl.model;
        let outcome = match ila::renumber(&mut kept.message, |old| current(links, model, old)) {
            Err(number) => Err(gone(number, links)),
            Ok(()) => carry_out(protocols.generic(), &kept.message),
        };
        take(kept, false, outcome)?;
    }
    let saved = settings.iter().map(|(name, text)| (name.as_str(), text.as_str()));
    let (set, [n, left]) = sysctl::restored(*protocols.sysctl.settings(), saved).map_err(|(name, errno)| {
        refused(path, &format!("setting net.{}", name.replace('/', ".")), &words(&Error::new(errno)))
    })?;
    let wrong = |errno| refused(path, "settings", &words(&Error::new(errno)));
    protocols.rtnl.model.set_strict_vrfs(set.vrf_strict_mode).map_err(wrong)?;
    protocols.rtnl.model.set_max_routes(set.tables.routes);
    protocols.rtnl.model.set_path_hash(path_hash::of(set.path_hash));
    protocols.sysctl.set(set).map_err(wrong)?;
    counts.warn_of_others(path);
    Ok(Counts { done: counts.done + n, of_files: counts.of_files + left, ..counts })
}

/// Whether an object that cannot be restored is left out: not one that restricts the traffic, nor a link, on which
/// others depend.
fn may_be_missing(message: &[u8]) -> bool {
    matches!(kind_of(message), RTM_NEWADDR | RTM_NEWROUTE | RTM_NEWNEIGH | RTM_NEWQDISC | RTM_SETLINK | RTM_DELLINK)
}

/// Checks that the links that objects of the state at `path` need are in `model`, or in the state itself. Objects that
/// [may be missing](may_be_missing) are left out without their links.
///
/// # Errors
/// Exit code 2: a link is missing, with the same text as [`restore`].
pub(super) fn check_state_links(state: &mut State, path: &Path, model: &Model) -> Result<(), CliError> {
    let State { links, route, sas, xfrm: others, ila: mappings, .. } = state;
    let mut made = HashSet::new();
    let missing = |kept: &Kept, number: u32| {
        let name = links.get(&number).map_or("?", String::as_str);
        refused(path, &kept.label, &format!("no link is named {name}"))
    };
    let now = |made: &HashSet<u32>, old| current(links, model, old).or_else(|| made.get(&old).copied());
    for kept in route.iter_mut().filter(|kept| !may_be_missing(&kept.message)) {
        if kind_of(&kept.message) == RTM_NEWLINK {
            made.extend(rtnl::index_of_link(&kept.message));
        }
        rtnl::renumber(&mut kept.message, |old| now(&made, old), |_| false).map_err(|number| missing(kept, number))?;
    }
    for kept in sas.iter_mut().map(|(_, kept)| kept).chain(others) {
        xfrm::renumber(&mut kept.message, |old| now(&made, old)).map_err(|number| missing(kept, number))?;
    }
    for kept in mappings {
        ila::renumber(&mut kept.message, |old| now(&made, old)).map_err(|number| missing(kept, number))?;
    }
    Ok(())
}

/// SAs of a journal that have been added, and the start of their numbers.
#[derive(Debug, Default)]
pub(crate) struct Replayed {
    pub(crate) counts: Counts,
    /// SAs whose numbers the state does not have: they continue behind a reservation.
    pub(crate) added: Vec<SaName>,
}

/// Carries out the requests of a journal on top of a restored state, in which `links` were the links.
///
/// A request that does not fit any more is left out: its object has been removed, or is the configuration's. But an SA
/// or a policy is missed.
///
/// # Errors
/// Exit code 2: an SA or a policy cannot be added.
pub(crate) fn replay(
    records: Vec<Record>,
    state: &State,
    path: &Path,
    protocols: &mut Protocols,
) -> Result<Replayed, CliError> {
    let mut replayed = Replayed::default();
    let mut links = state.links.clone();
    // Position of the last record that the state has an SA's numbers.
    let noted = records.iter().enumerate().filter_map(|(at, record)| match record {
        Record::Noted(name) => Some((*name, at)),
        _ => None,
    });
    let noted: HashMap<SaName, usize> = noted.collect();
    let last = records.len().saturating_sub(1);
    let mut records = records.into_iter().enumerate().peekable();
    while let Some((at, record)) = records.next() {
        match record {
            Record::Link(index, name) if name.is_empty() => {
                links.remove(&index);
            }
            Record::Link(index, name) => {
                links.insert(index, name);
            }
            Record::Request(protocol, mut message) => {
                let is_refused = records.peek().is_some_and(|(_, next)| *next == Record::Refused);
                if is_refused {
                    continue;
                }
                let sa = xfrm_sa(protocol, &message);
                if let Some(name) = sa {
                    xfrm::with_numbers(&mut message);
                    match state.checkpoints.get(&name).filter(|_| noted.get(&name).is_some_and(|noted| *noted > at)) {
                        Some(checkpoint) => xfrm::set_numbers(&mut message, checkpoint.numbers()),
                        None => replayed.added.push(name),
                    }
                }
                let label = match protocol {
                    protocol::ROUTE => rtnl::label_of(&message),
                    protocol::XFRM => xfrm::label_of(&message),
                    _ => "ILA mapping".to_owned(),
                };
                match repeat(protocol, &mut message, &links, protocols) {
                    Ok(()) => replayed.counts.done += 1,
                    // An object that is removed may have been one that is not kept, such as an address with a lifetime.
                    Err(error) if is_expected(&error) || is_removal(protocol, &message) => {
                        replayed.counts.of_files += 1;
                    }
                    // The end of the process was between the request and its outcome.
                    Err(_) if at == last && sa.is_some() => {}
                    Err(error)
                        if protocol == protocol::XFRM && xfrm::adds(&message)
                            || error.errno == errno::ENOMEM && Budget::admit().is_err() =>
                    {
                        return Err(refused(path, &label, &words(&error)));
                    }
                    Err(error) => replayed.counts.leave_out(path, &label, &words(&error)),
                }
            }
            Record::Setting(name, text) => match write_sysctl(&name, &text, protocols) {
                Ok(()) => replayed.counts.done += 1,
                Err(errno) => {
                    let name = format!("setting net.{}", name.replace('/', "."));
                    replayed.counts.leave_out(path, &name, &words(&Error::new(errno)));
                }
            },
            Record::Refused | Record::Noted(_) => {}
        }
    }
    replayed.counts.warn_of_others(path);
    Ok(replayed)
}

/// Outcome of [`resume`], in numbers of SAs.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Resumed {
    pub(crate) done: usize,
    /// SAs that have ended meanwhile, or are about to.
    pub(crate) ended: usize,
    /// SAs that the configuration has, or that do not fit it.
    pub(crate) left_out: usize,
}

/// Least time that a resumed SA has left: its key manager has to be back to be told of its end.
const LEAST_LEFT: Duration = Duration::from_secs(5);

/// Adds the SAs of an earlier gateway, in place of the SPIs that are reserved for them, and continues their lifetimes. The
/// reservation of an SA that is not added stays: its key manager is told that it is gone.
///
/// # Errors
/// The worker does not answer.
pub(crate) fn resume(sealed: SealedSas, protocols: &mut Protocols, worker: &Handle) -> Result<Resumed, WorkerGone> {
    let SealedSas { links, sas } = sealed;
    let mut resumed = Resumed::default();
    let now = since_boot();
    let age = |since: Instant| now.since(since);
    let all = sas.len();
    let is_alive = |sa: &SealedSa| {
        let left = time_left(&sa.message, age(sa.added), sa.first_used.map(age));
        // Another process may have written the times.
        let has_times = sa.added <= now && sa.first_used.is_none_or(|used| (sa.added..=now).contains(&used));
        has_times && xfrm::has_limit(&sa.message) && left.is_none_or(|left| left >= LEAST_LEFT)
    };
    let mut alive: Vec<SealedSa> = sas.into_iter().filter(is_alive).collect();
    resumed.ended = all - alive.len();
    for chunk in alive.chunks_mut(SAS_AT_ONCE) {
        let names: Vec<SaName> = chunk.iter().map(|sa| sa.name).collect();
        worker.change(move |node| names.iter().for_each(|name| sadb::forget_reserved(node, *name)), same)?;
        let mut lifetimes = Vec::with_capacity(chunk.len());
        for SealedSa { name, added, first_used, message } in chunk {
            let model = &protocols.rtnl.model;
            let outcome = match xfrm::renumber(message, |old| current(&links, model, old)) {
                Err(_) => Err(Error::new(errno::ENODEV)),
                Ok(()) => carry_out(&mut protocols.xfrm, message),
            };
            match outcome {
                Ok(()) => lifetimes.push((*name, *added, *first_used)),
                Err(error) => {
                    resumed.left_out += 1;
                    if resumed.left_out <= MAX_WARNINGS {
                        tracing::warn!("SA {} {:#010x} is not restored: {}", name.dst, name.spi, words(&error));
                    }
                    if let Change::Request(reservation) = Change::of(protocol::XFRM, message) {
                        // The configuration has an SA of that name.
                        let _ = carry_out(&mut protocols.xfrm, &reservation);
                    }
                }
            }
        }
        resumed.done += lifetimes.len();
        worker.change(move |node| sadb::resume_lifetimes(node, &lifetimes), same)?;
    }
    Ok(resumed)
}

/// Times of addition and of first use of SAs, by their names.
///
/// # Errors
/// The worker does not answer.
pub(super) fn lifetimes(worker: &Handle, names: &[SaName]) -> Result<HashMap<SaName, SaTimes>, WorkerGone> {
    let mut found = HashMap::with_capacity(names.len());
    for chunk in names.chunks(SAS_AT_ONCE) {
        let chunk = chunk.to_vec();
        let of_shard = move |node: &mut Node| {
            let times = |name| Some((name, sadb::times_of(node, name)?));
            chunk.into_iter().filter_map(times).collect::<Vec<_>>()
        };
        found.extend(worker.gather(of_shard)?.into_iter().flatten());
    }
    Ok(found)
}

/// Times of addition and of first use of an SA.
type SaTimes = (Instant, Option<Instant>);

/// Number of SAs in one request to the worker, which moves packets between two requests.
const SAS_AT_ONCE: usize = 512;

/// Name of the SA that a request adds or changes.
fn xfrm_sa(protocol: u32, message: &[u8]) -> Option<SaName> {
    let is_sa = protocol == protocol::XFRM && matches!(kind_of(message), msg::NEW_SA | msg::UPD_SA);
    let (dst, spi, mark) = xfrm::sa_key(message).filter(|_| is_sa)?;
    Some(SaName { dst, spi, mark })
}

/// Carries out a request of a journal, in which `links` have their indexes.
fn repeat(
    protocol: u32,
    message: &mut [u8],
    links: &BTreeMap<u32, String>,
    protocols: &mut Protocols,
) -> Result<(), Error> {
    let model = &protocols.rtnl.model;
    let now = |old| current(links, model, old);
    let is_taken = |number| model.is_taken(number) || link::has_interface(number);
    let renumbered = match protocol {
        protocol::ROUTE => rtnl::renumber_change(message, now, |old| links.contains_key(&old), is_taken),
        protocol::XFRM => xfrm::renumber(message, now),
        _ => ila::renumber(message, now),
    };
    renumbered.map_err(|old| {
        let name = links.get(&old).map_or("?", String::as_str);
        Error::owned_text(errno::ENODEV, format!("no link is named {name}"))
    })?;
    match protocol {
        protocol::ROUTE => carry_out(&mut protocols.rtnl, message),
        protocol::XFRM => repeat_xfrm(message, protocols),
        _ => carry_out(protocols.generic(), message),
    }
}

fn repeat_xfrm(message: &mut [u8], protocols: &mut Protocols) -> Result<(), Error> {
    // An SA without a time limit has become one with a limit.
    if let Some(before) = xfrm::removal_before(message) {
        let _ = carry_out(&mut protocols.xfrm, &before);
    }
    match carry_out(&mut protocols.xfrm, message) {
        // It completed an SA that had been requested from a key manager.
        Err(error) if error.errno == errno::ESRCH && xfrm::is_update(message) => {
            xfrm::make_new(message);
            carry_out(&mut protocols.xfrm, message)
        }
        outcome => outcome,
    }
}

/// Whether a request removes an object of rtnetlink (`RTM_DEL*`).
fn is_removal(protocol: u32, message: &[u8]) -> bool {
    protocol == protocol::ROUTE && kind_of(message) & 3 == 1
}

/// Whether an object is there already, or is gone already.
fn is_expected(error: &Error) -> bool {
    matches!(error.errno, errno::EEXIST | errno::ENOENT | errno::ESRCH)
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
