//! `fatpath metrics` and `fatpath top`: command lines that `fatpath` documents and checks, and `fatpath-see` executes.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueHint};

use crate::control_socket::instance_name;

/// Commands of `fatpath-see`, which `fatpath` has, too.
#[derive(Debug, Subcommand)]
pub enum SeeCommand {
    /// Serve metrics of running gateways for Prometheus
    ///
    /// Metrics of all gateways that this user may look at, or of those that are named, at /metrics of a local address: in the classic
    /// text format, or as OpenMetrics for a client that accepts it. A gateway that does not answer has fatpath_up 0. With --textfile
    /// a file for node_exporter's textfile collector is written instead, and no port is open.
    ///
    /// On a loopback address a request must name a host of loopback.
    Metrics(MetricsArgs),
    /// Show a gateway's links, tunnels, drops and workers with their rates
    ///
    /// Rates are those since the answer before, a second ago. Keys: l, t, d and w choose links, tunnels, drops or workers, s sorts by rate
    /// or by name, / filters, arrows and page keys scroll, q ends. Faults are at the top, and drops that happen now have cause and remedy.
    ///
    /// Without a terminal, or with --once, all tables are printed once.
    Top(TopArgs),
}

/// Arguments of `top`.
#[derive(Args, Clone, Debug)]
pub struct TopArgs {
    /// Print all tables once, as text
    #[arg(long)]
    pub once: bool,
    /// Time between two answers of the gateway
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=3600))]
    interval: u16,
    /// Name of the gateway; if not given, that of FATPATH_INSTANCE in the environment, or `default`
    #[arg(short, long, value_name = "NAME", value_parser = instance_name, value_hint = ValueHint::Other)]
    pub instance: Option<String>,
}

impl TopArgs {
    /// Time between two answers.
    pub const fn interval(&self) -> Duration {
        Duration::from_secs(self.interval as u64)
    }
}

/// Arguments of `metrics`.
#[derive(Args, Clone, Debug)]
pub struct MetricsArgs {
    /// Address and port to listen at
    #[arg(long, value_name = "ADDRESS", default_value_t = SocketAddr::from((Ipv4Addr::LOCALHOST, 9847)), value_hint = ValueHint::Other)]
    pub listen: SocketAddr,
    /// Write DIR/fatpath.prom instead, again and again
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, conflicts_with = "listen")]
    pub textfile: Option<PathBuf>,
    /// Time between two files; 0 for one file
    #[arg(long, value_name = "SECONDS", default_value_t = 15, requires = "textfile")]
    interval: u16,
    /// Name of a gateway; may be repeated
    #[arg(short, long, value_name = "NAME", value_parser = instance_name, value_hint = ValueHint::Other)]
    pub instance: Vec<String>,
}

impl MetricsArgs {
    /// Time between two files; `None` for one file.
    pub fn interval(&self) -> Option<Duration> {
        Some(Duration::from_secs(self.interval.into())).filter(|interval| !interval.is_zero())
    }
}
