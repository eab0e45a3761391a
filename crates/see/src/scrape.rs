//! Requests of a scrape, and the gateways that get them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use client::{CliError, Client};
use ctl::state::{CountersState, DropState, LinkState, SaSumsState, SummaryState};
use ctl::{Reply, Request, Shown, StateKind};

/// Limit of sums of SAs, and of policies, above which they are not asked for.
const MAX_ROWS: u64 = 10_000;

/// Time limit for each reply of a gateway.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// State of a gateway for one scrape.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    pub(crate) summary: SummaryState,
    pub(crate) links: Vec<LinkState>,
    pub(crate) drops: Vec<DropState>,
    pub(crate) counters: CountersState,
    /// `None`: there are too many.
    pub(crate) sums: Option<SaSumsState>,
}

/// Outcome of a scrape of one gateway.
#[derive(Clone, Debug)]
pub(crate) struct Scraped {
    pub(crate) gateway: String,
    /// `None`: the gateway does not answer.
    pub(crate) sample: Option<Box<Sample>>,
    pub(crate) took: Duration,
}

/// Gateways to scrape.
#[derive(Debug)]
pub(crate) struct Gateways {
    /// Names; none for all gateways that this user may look at.
    named: Vec<String>,
    /// Control sockets of gateways that were found, and the last failure of each.
    known: BTreeMap<String, (PathBuf, Option<String>)>,
}

impl Gateways {
    /// Gateways of these names, or all if there are none.
    pub(crate) fn new(named: Vec<String>) -> Self {
        Self { named, known: BTreeMap::new() }
    }

    /// Asks all gateways. One that was found once and is gone is one that does not answer.
    pub(crate) fn scrape(&mut self) -> Vec<Scraped> {
        let found: Vec<(String, PathBuf)> = match self.named.as_slice() {
            [] => client::gateways(),
            names => names.iter().map(|name| (name.clone(), client::socket_path(name))).collect(),
        };
        for (name, path) in found {
            let is_new = !self.known.contains_key(&name);
            if is_new && self.named.is_empty() && !client::may_look(&path) {
                continue;
            }
            self.known.entry(name).or_insert((PathBuf::new(), None)).0 = path;
        }
        let scraped = self.known.iter_mut().map(|(name, (path, failure))| {
            let begun = Instant::now();
            let sample = match Sample::take(name, path) {
                Ok(sample) => {
                    if failure.take().is_some() {
                        tracing::info!("{name}: answers again");
                    }
                    Some(Box::new(sample))
                }
                Err(err) => {
                    // A line for each failure, and not for each scrape.
                    if failure.as_ref() != Some(&err.message) {
                        tracing::warn!("{name}: {}", err.message);
                    }
                    *failure = Some(err.message);
                    None
                }
            };
            Scraped { gateway: name.clone(), sample, took: begun.elapsed() }
        });
        scraped.collect()
    }
}

impl Sample {
    /// Asks the gateway `name`, whose control socket is at `path`.
    fn take(name: &str, path: &Path) -> Result<Self, CliError> {
        let mut client = Client::look_within(name, path.to_owned(), ANSWER_LIMIT)?;
        let mut show = |what| match client.ask(&Request::Show { what })? {
            Reply::Show { shown } => Ok(shown),
            _ => Err(client.confused()),
        };
        let mismatch = || CliError::failed(format!("{}: the answer is to another question", path.display()));
        let Shown::Summary(summary) = show(StateKind::Summary)? else { return Err(mismatch()) };
        let Shown::Links(links) = show(StateKind::Links)? else { return Err(mismatch()) };
        let Shown::Drops(drops) = show(StateKind::Drops)? else { return Err(mismatch()) };
        let Shown::Counters(counters) = show(StateKind::Counters)? else { return Err(mismatch()) };
        let sas = summary.sas.valid + summary.sas.dying;
        let policies = summary.policies.inbound + summary.policies.outbound + summary.policies.forward;
        let sums = if summary.sa_sums.max(sas).max(policies) <= MAX_ROWS {
            let Shown::SaSums(sums) = show(StateKind::SaSums)? else { return Err(mismatch()) };
            Some(sums)
        } else {
            None
        };
        Ok(Self { summary: *summary, links, drops, counters, sums })
    }
}
