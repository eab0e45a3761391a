//! The program `fatpath-see`: metrics of running gateways for monitors, rates for a terminal, a page for a browser,
//! and links for Wireshark.
//!
//! # Decides
//! Names and labels of metrics ([`families`]), their two text formats ([`exposition`]), and the requests of a scrape ([`scrape`]): those
//! whose cost no table of a gateway raises, and sums of SAs and policies up to a limit. [Rates](rates) between two answers, and what a
//! terminal ([`top`]) and a page ([`web`]) show of them. Clients of HTTP that are served ([`http`]), and those that may read the page's data.
//! Names of links for Wireshark, which runs this program as `fatpath-extcap` ([`extcap`]).
//!
//! # Leaves to others
//! Arguments (crate [`client`]), contents of replies (crate [`ctl`]), charts of results (crate [`plot`]), and counting (the gateways, which
//! are asked by their view sockets). HTTP is hyper's, by tokio: neither is in the gateway or in the preloaded library.
//!
//! # Limits
//! 16 connections, heads of requests of 64 KiB, 10 seconds for a connection (`http.rs`), and 16 open pages besides (`web/events.rs`); 10 000
//! sums of SAs and as many policies of a gateway (`scrape.rs`). A gateway answers a scrape within 2 seconds.
//!
//! # Standards
//! The Prometheus text format 0.0.4 and OpenMetrics 1.0.0; server-sent events of the HTML standard; RFC 9110 and 9112 as hyper has them;
//! extcap(4) of Wireshark.
#![forbid(unsafe_code)]

mod exposition;
mod extcap;
mod families;
mod http;
mod log;
mod metrics;
mod rates;
mod scrape;
mod textfile;
mod top;
mod web;

use std::env;
use std::path::Path;
use std::process::ExitCode;

use clap::Parser;
use client::{CliError, MetricsArgs, SeeCommand, command_line};

use scrape::Gateways;

/// Views of gateways: `fatpath metrics`, `fatpath top` and `fatpath web`
#[derive(Debug, Parser)]
#[command(name = "fatpath-see", version = env!("FATPATH_VERSION"), max_term_width = 100, disable_help_subcommand = true)]
struct Cli {
    /// View of gateways
    #[command(subcommand)]
    command: SeeCommand,
}

fn main() -> ExitCode {
    let name = env::args_os().next().unwrap_or_default();
    if Path::new(&name).file_name().is_some_and(|name| name == extcap::NAME) {
        return extcap::main();
    }
    let cli: Cli = match command_line::parse() {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    let outcome = match cli.command {
        SeeCommand::Metrics(args) => {
            log::start();
            metrics(&args)
        }
        SeeCommand::Web(args) => {
            log::start();
            web::run(args)
        }
        // A log line would be in the picture.
        SeeCommand::Top(args) => top::run(&args),
    };
    command_line::exit_code(outcome.map(|()| ExitCode::SUCCESS))
}

fn metrics(args: &MetricsArgs) -> Result<(), CliError> {
    let gateways = Gateways::new(args.instance.clone());
    match &args.textfile {
        Some(dir) => textfile::write_all(gateways, dir, args.interval()),
        None => metrics::serve(gateways, args.listen),
    }
}
