//! Gateways that open pages look at. One thread asks each, once a second, as long as a page shows it: however many pages there are.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{Access, access};
use serde::Serialize;
use tokio::sync::watch;

use crate::rates::Picture;
use crate::scrape::Sample;

/// Time between two answers.
const INTERVAL: Duration = Duration::from_secs(1);

/// Time between the first answer and the second, with which there are rates.
const FIRST_INTERVAL: Duration = Duration::from_millis(300);

/// Limits of what a page shows: links, tunnels, policies without SAs, and drops.
const MAX_LINKS: usize = 128;
const MAX_TUNNELS: usize = 128;
const MAX_POLICIES: usize = 64;
const MAX_DROPS: usize = 64;

/// State of a gateway for pages.
#[derive(Clone, Debug, Default)]
pub(super) struct Shown {
    /// The last picture as JSON, and the time of the answer.
    pub(super) picture: Option<(Arc<str>, Instant)>,
    /// Reason for which there is no newer one.
    pub(super) failure: Option<String>,
}

/// Gateways that may be looked at, and those that are.
#[derive(Debug)]
pub(super) struct Watches {
    /// Names; none for all gateways that this user may look at.
    named: Vec<String>,
    running: Mutex<HashMap<String, watch::Sender<Shown>>>,
}

impl Watches {
    pub(super) fn new(named: Vec<String>) -> Self {
        Self { named, running: Mutex::default() }
    }

    /// Names of the gateways.
    pub(super) fn names(&self) -> Vec<String> {
        match self.named.as_slice() {
            [] => client::gateways().into_iter().filter(|(_, path)| may_look(path)).map(|(name, _)| name).collect(),
            named => named.to_vec(),
        }
    }

    /// Control socket of a gateway that may be looked at.
    pub(super) fn path(&self, name: &str) -> Option<PathBuf> {
        if self.named.is_empty() {
            let found = client::gateways().into_iter().find(|(known, _)| known == name);
            return found.map(|(_, path)| path).filter(|path| may_look(path));
        }
        self.named.iter().any(|known| known == name).then(|| client::socket_path(name))
    }

    /// State of a gateway, as it changes. `None`: there is no such gateway.
    pub(super) fn of(self: &Arc<Self>, name: &str) -> Option<watch::Receiver<Shown>> {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sender) = running.get(name) {
            let mut receiver = sender.subscribe();
            receiver.mark_changed();
            return Some(receiver);
        }
        self.path(name)?;
        let (sender, receiver) = watch::channel(Shown::default());
        let (all, of) = (Arc::clone(self), name.to_owned());
        let started = thread::Builder::new().name("ask".to_owned()).spawn(move || all.ask(&of));
        // Without a thread there is no answer; a later page tries again.
        started.ok()?;
        running.insert(name.to_owned(), sender);
        Some(receiver)
    }

    /// Asks a gateway until no page shows it.
    fn ask(&self, name: &str) {
        let mut last: Option<Sample> = None;
        let mut interval = FIRST_INTERVAL;
        loop {
            let began = Instant::now();
            // A gateway of this name may have another path after a restart.
            let path = self.path(name).unwrap_or_else(|| client::socket_path(name));
            let answer = Sample::take(name, &path).map_err(|err| one_line(&err.message));
            let shown = answer.map(|sample| {
                let picture = json(&Picture::between(last.as_ref(), &sample));
                let at = sample.taken;
                last = Some(sample);
                (picture, at)
            });
            let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(sender) = running.get(name).filter(|sender| sender.receiver_count() > 0) else {
                running.remove(name);
                return;
            };
            sender.send_modify(|state| match shown {
                Ok(picture) => {
                    if state.failure.is_some() {
                        tracing::info!("{name}: answers again");
                    }
                    *state = Shown { picture: Some(picture), failure: None };
                }
                Err(why) => {
                    if state.failure.as_ref() != Some(&why) {
                        tracing::warn!("{name}: {why}");
                    }
                    state.failure = Some(why);
                }
            });
            drop(running);
            thread::sleep(interval.saturating_sub(began.elapsed()));
            interval = INTERVAL;
        }
    }
}

/// Whether this user may connect to a gateway's control socket, or to its view socket. Connecting may take long, if the gateway hangs.
fn may_look(path: &Path) -> bool {
    [path.to_path_buf(), client::view_socket(path)].iter().any(|socket| access(socket, Access::WRITE_OK).is_ok())
}

/// Text without line breaks and other control characters.
pub(super) fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Content of a page: a picture, up to limits.
#[derive(Debug, Serialize)]
struct ShownPicture<'a> {
    #[serde(flatten)]
    picture: &'a Picture,
    /// Numbers of rows that are left out.
    more_links: usize,
    more_tunnels: usize,
    more_policies: usize,
    more_drops: usize,
}

/// JSON of a picture, up to the limits: of links and tunnels those with faults and the highest rates, in their order.
fn json(picture: &Picture) -> Arc<str> {
    let mut picture = picture.clone();
    let rate = |a: Option<f64>, b: Option<f64>| a.unwrap_or_default() + b.unwrap_or_default();
    let more_links = shorten(&mut picture.links, MAX_LINKS, |link| (!link.up, rate(link.received, link.sent)));
    let tunnels = picture.tunnels.as_mut();
    let more_tunnels = tunnels.map_or(0, |tunnels| {
        shorten(tunnels, MAX_TUNNELS, |tunnel| (tunnel.fault.is_some(), rate(tunnel.received, tunnel.sent)))
    });
    let more_policies = shorten(&mut picture.without_sa, MAX_POLICIES, |_| (false, 0.0));
    let more_drops = shorten(&mut picture.drops, MAX_DROPS, |drop| (false, drop.rate.unwrap_or_default()));
    let shown = ShownPicture { picture: &picture, more_links, more_tunnels, more_policies, more_drops };
    serde_json::to_string(&shown).unwrap_or_else(|_| "null".to_owned()).into()
}

/// Keeps `most` of the rows: faulty ones, and those with the highest rates. Returns the number of the others.
fn shorten<T>(rows: &mut Vec<T>, most: usize, weight: impl Fn(&T) -> (bool, f64)) -> usize {
    if rows.len() <= most {
        return 0;
    }
    let mut order: Vec<usize> = (0..rows.len()).collect();
    order.sort_by(|&a, &b| {
        let [(a_bad, a_rate), (b_bad, b_rate)] = [a, b].map(|at| weight(&rows[at]));
        b_bad.cmp(&a_bad).then(b_rate.total_cmp(&a_rate)).then(a.cmp(&b))
    });
    let mut is_kept = vec![false; rows.len()];
    order[..most].iter().for_each(|&at| is_kept[at] = true);
    let left_out = rows.len() - most;
    let mut kept = is_kept.into_iter();
    rows.retain(|_| kept.next().unwrap_or(false));
    left_out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rates::{LinkRates, TunnelRates};

    #[test]
    fn picture_of_many_links_is_short_and_has_its_faults() {
        let link = |at: usize| LinkRates {
            name: format!("link{at:04}"),
            up: at != 700,
            received: Some(at as f64),
            ..LinkRates::default()
        };
        let tunnel = |at: usize| TunnelRates {
            reqid: at as u32,
            fault: (at == 9).then(|| "no SA".to_owned()),
            ..TunnelRates::default()
        };
        let picture = Picture {
            links: (0..1000).map(link).collect(),
            tunnels: Some((0..1000).map(tunnel).collect()),
            ..Picture::default()
        };
        let text = json(&picture);
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        let names: Vec<&str> =
            value["links"].as_array().unwrap().iter().filter_map(|link| link["name"].as_str()).collect();
        assert_eq!((names.len(), names[0], names[127]), (128, "link0700", "link0999"));
        assert!(names.is_sorted());
        assert_eq!((&value["more_links"], &value["more_tunnels"]), (&872.into(), &872.into()));
        assert!(value["tunnels"].as_array().unwrap().iter().any(|tunnel| tunnel["fault"] == "no SA"));
        assert!(text.len() < 100_000 && !text.contains('\n'), "{}", text.len());
    }

    #[test]
    fn text_of_a_failure_is_one_line() {
        assert_eq!(one_line("a\nb\u{1b}c"), "a b c");
    }
}
