//! Figures of one stream.

use super::meter::Cost;
use super::requests::Transactions;

/// One stream of one round.
#[derive(Clone, Debug)]
pub(super) struct DemoSample {
    /// Payload received, in 10⁹ bits per second.
    pub(super) gbps: f64,
    /// The share of the datagrams that arrived, where the stream is of datagrams.
    pub(super) arrived: Option<f64>,
    /// The changes of routes and SAs, where there is a storm.
    pub(super) changes: Option<Changes>,
    /// The transactions, where streams are of requests.
    pub(super) transactions: Option<Transactions>,
    /// Cost of the stream, if a tunnel carries it.
    pub(super) cost: Option<Cost>,
}

impl DemoSample {
    /// Main figure, for the line of progress.
    pub(super) fn short(&self) -> String {
        match &self.transactions {
            Some(it) => format!("{:.0} transactions/s", it.per_second),
            None => format!("{:.2} Gb/s", self.gbps),
        }
    }
}

/// Changes that a storm made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Changes {
    /// Changes a second at each gateway.
    pub(super) per_second: f64,
    /// Processor time of a change in microseconds: of the program that requests it and of the gateway's netlink thread.
    pub(super) cpu_us: f64,
}
