//! `fatpath metrics`, `fatpath top` and `fatpath web`: command lines that `fatpath` documents and checks, and `fatpath-see` executes.

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
    /// Serve a page with gateways' links, tunnels, drops and traces
    ///
    /// The page shows, once a second, the links, bridges, VRFs and tunnels of a gateway with their rates, and its drops with cause and
    /// remedy; it traces packets through the picture of the data path, and draws results of `fatpath demo --json` and `fatpath bench
    /// --json`. It only looks, and asks for nothing from elsewhere.
    ///
    /// It is served on loopback or at a Unix socket alone. The printed URL has a secret, without which all that shows a gateway is refused;
    /// it is another one each time.
    Web(WebArgs),
}

/// Arguments of `web`.
#[derive(Args, Clone, Debug)]
pub struct WebArgs {
    /// Address of loopback and port to listen at; port 0 for a free one
    #[arg(long, value_name = "ADDRESS", default_value_t = SocketAddr::from((Ipv4Addr::LOCALHOST, 9848)), value_parser = loopback,
          value_hint = ValueHint::Other)]
    pub listen: SocketAddr,
    /// Listen at a Unix socket instead, to which a port can be forwarded: ssh -L 9848:PATH HOST
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath, conflicts_with = "listen")]
    pub socket: Option<PathBuf>,
    /// Result of `fatpath demo --json` or `fatpath bench --json` to draw; may be repeated
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub results: Vec<PathBuf>,
    /// Name of a gateway; may be repeated. If not given, all that this user may look at
    #[arg(short, long, value_name = "NAME", value_parser = instance_name, value_hint = ValueHint::Other)]
    pub instance: Vec<String>,
}

/// Parses an address of loopback with its port.
fn loopback(text: &str) -> Result<SocketAddr, String> {
    let address: SocketAddr = text.parse().map_err(|err| format!("{err}; use ADDRESS:PORT, such as 127.0.0.1:9848"))?;
    if address.ip().is_loopback() {
        return Ok(address);
    }
    Err(format!(
        "{} is not an address of loopback: the page is for this machine alone. For others, forward a port to it, as with `ssh -L`",
        address.ip()
    ))
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
