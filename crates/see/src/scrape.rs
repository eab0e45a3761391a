//! Requests of a scrape, and the gateways that get them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use client::{CliError, Client};
use ctl::state::{CountersState, DropState, LinkState, SaSumsState, SummaryState};
use ctl::{Reply, Request, Shown, StateKind};

/// Limit of sums of SAs, and of policies, above which they are not asked for.
const MAX_ROWS: u64 = 10_000;

/// Time limit for all replies of a gateway to one scrape.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);

/// State of a gateway for one scrape.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    pub(crate) summary: SummaryState,
    pub(crate) links: Vec<LinkState>,
    pub(crate) drops: Vec<DropState>,
    pub(crate) counters: CountersState,
    /// `None`: there are too many.
    pub(crate) sums: Option<SaSumsState>,
    /// Time of the answer since the Unix epoch.
    pub(crate) at: Duration,
    /// Time of the answer.
    pub(crate) taken: Instant,
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
    /// Gateways that were found.
    known: BTreeMap<String, Gateway>,
}

/// A gateway that was found.
#[derive(Debug)]
struct Gateway {
    /// Control socket.
    path: PathBuf,
    /// Whether it counts even if this user may not look at it: it was named, or has answered.
    is_ours: bool,
    /// The last failure.
    failure: Option<String>,
    /// Answer of the thread that asks it, until the thread ends: a gateway that hangs has one.
    asked: Option<Receiver<Answer>>,
}

/// Outcome of the questions to a gateway.
#[derive(Debug)]
struct Answer {
    /// `None`: this user may not look at it.
    sample: Option<Result<Box<Sample>, String>>,
    took: Duration,
}

impl Gateways {
    /// Gateways of these names, or all if there are none.
    pub(crate) fn new(named: Vec<String>) -> Self {
        Self { named, known: BTreeMap::new() }
    }

    /// Asks all gateways at once. One that was found once and is gone is one that does not answer.
    pub(crate) fn scrape(&mut self) -> Vec<Scraped> {
        let found: Vec<(String, PathBuf)> = match self.named.as_slice() {
            [] => client::gateways(),
            names => names.iter().map(|name| (name.clone(), client::socket_path(name))).collect(),
        };
        for (name, path) in found {
            let is_ours = !self.named.is_empty();
            let new = || Gateway { path: PathBuf::new(), is_ours, failure: None, asked: None };
            self.known.entry(name).or_insert_with(new).path = path;
        }
        let began = Instant::now();
        self.known.iter_mut().for_each(|(name, gateway)| gateway.ask(name));
        let mut scraped = Vec::new();
        self.known.retain(|name, gateway| {
            let Answer { sample, took } = gateway.answer(began);
            let Some(sample) = sample else { return false };
            let sample = gateway.judge(name, sample);
            scraped.push(Scraped { gateway: name.clone(), sample, took });
            true
        });
        scraped
    }
}

impl Gateway {
    /// Asks the gateway on a thread, if none does so yet: nothing but the thread waits for a gateway that hangs.
    fn ask(&mut self, name: &str) {
        if self.asked.as_ref().is_some_and(|asked| matches!(asked.try_recv(), Err(TryRecvError::Empty))) {
            return;
        }
        let (sender, receiver) = channel();
        let (name, path, is_ours) = (name.to_owned(), self.path.clone(), self.is_ours);
        let ask = move || {
            let began = Instant::now();
            let is_shown = is_ours || client::may_look(&path);
            let sample = is_shown.then(|| Sample::take(&name, &path));
            let why = |err: CliError| if began.elapsed() < ANSWER_LIMIT { err.message } else { too_slow() };
            let sample = sample.map(|sample| sample.map(Box::new).map_err(why));
            // The scrape may have given up.
            let _ = sender.send(Answer { sample, took: began.elapsed() });
        };
        // Without a thread there is no answer.
        self.asked = thread::Builder::new().name("ask".to_owned()).spawn(ask).is_ok().then_some(receiver);
    }

    /// Waits for the answer to a scrape that began at `began`.
    fn answer(&mut self, began: Instant) -> Answer {
        let failed = |why: String| Answer { sample: Some(Err(why)), took: began.elapsed() };
        let Some(asked) = &self.asked else { return failed("no thread can be started".to_owned()) };
        match asked.recv_timeout(ANSWER_LIMIT.saturating_sub(began.elapsed())) {
            Ok(answer) => {
                self.asked = None;
                answer
            }
            Err(RecvTimeoutError::Timeout) => failed(too_slow()),
            Err(RecvTimeoutError::Disconnected) => failed("the thread that asks it has ended".to_owned()),
        }
    }

    /// Notes a failure or its end: a line in the log for each, and not for each scrape.
    fn judge(&mut self, name: &str, sample: Result<Box<Sample>, String>) -> Option<Box<Sample>> {
        match sample {
            Ok(sample) => {
                self.is_ours = true;
                if self.failure.take().is_some() {
                    tracing::info!("{name}: answers again");
                }
                Some(sample)
            }
            Err(why) => {
                if self.failure.as_ref() != Some(&why) {
                    tracing::warn!("{name}: {why}");
                }
                self.failure = Some(why);
                None
            }
        }
    }
}

fn too_slow() -> String {
    format!("no answer within {} seconds", ANSWER_LIMIT.as_secs())
}

impl Sample {
    /// Asks the gateway `name`, whose control socket is at `path`.
    pub(crate) fn take(name: &str, path: &Path) -> Result<Self, CliError> {
        let mut client = Client::view_within(name, path.to_owned(), ANSWER_LIMIT)?;
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
        let at = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Ok(Self { summary: *summary, links, drops, counters, sums, at, taken: Instant::now() })
    }
}
