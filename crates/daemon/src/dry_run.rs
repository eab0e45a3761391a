//! Dry run of configuration files on a gateway in memory, with unconnected links.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::mpsc::channel;

use base::ShardCount;
use client::CliError;
use config::Config;
use config::model::LinkConfig;
use link::memory::{End, pair};
use link::{Layer, Link};
use netlink::rtnl::LOOPBACK;
use netlink::rtnl::nums::RTPROT_KERNEL;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use wire::eth::MacAddr;

use super::netlink::{NetlinkServer, Shared, start_discard};
use super::planner::Planner;
use super::random::random;
use super::running::Running;
use super::threads::Threads;
use crate::config_file::{self, Sources, Warning};

/// Numbers of objects in a configuration.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ObjectCounts {
    /// Links.
    pub links: usize,
    /// Routes without the connected ones.
    pub routes: usize,
    /// SAs.
    pub sas: usize,
    /// Policies.
    pub policies: usize,
}

impl ObjectCounts {
    /// Numbers of objects in a TOML file.
    fn by(config: &Config) -> Self {
        Self {
            links: config.links.len(),
            routes: config.routes.len(),
            sas: config.sas.len(),
            policies: config.policies.len(),
        }
    }
}

/// Checks configuration files together, as at a start, and counts their objects; returns the warnings, too. Nothing is changed.
///
/// # Errors
/// Errors of a start with the files; devices and privileges are not checked.
pub fn check(paths: &[PathBuf]) -> Result<(ObjectCounts, Vec<Warning>), CliError> {
    let mut sources = config_file::load_all(paths)?;
    let warnings = std::mem::take(&mut sources.warnings);
    let counts = if sources.lines.is_empty() { ObjectCounts::by(&sources.config) } else { dry_run(sources)? };
    Ok((counts, warnings))
}

/// Dry run: applies `sources` to a gateway in memory, without crypto threads, and counts its links, routes, SAs and policies.
///
/// # Errors
/// Errors of a start with `sources`; devices and privileges are not checked.
fn dry_run(sources: Sources) -> Result<ObjectCounts, CliError> {
    // Catches the signals, so that a signal that ends the dry run leaves no files behind.
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(|err| CliError::system("catch signals", &err))?;
    let config = Config { crypto: Default::default(), ..sources.config };
    let (planner, plan) = Planner::new(open).plan(config)?;
    let worker = Running::start(planner.config().worker.count, &signals.handle())
        .map_err(|err| CliError::system("start the worker", &err))?;
    let mappings = plan.mappings();
    worker.apply(plan).map_err(CliError::failed)?;
    let shared = Shared::new(&worker.handle, open);
    planner.publish(&worker.handle, &mut shared.lock(), mappings).map_err(CliError::failed)?;
    let dir = PrivateDir::make()?;
    let netlink = dir.0.join("netlink");
    // No main thread receives events: requests to a thread that has ended fail.
    let threads = Threads::new(channel().0);
    let discard = start_discard(&threads)?;
    let _server = NetlinkServer::start(&netlink, shared.clone(), &worker.handle, &discard, &threads)?;
    for lines in &sources.lines {
        if !lines.carry_out(&netlink, || signals.pending().next().is_some())? {
            worker.stop()?;
            return Err(CliError::failed("ended by a signal"));
        }
    }
    let (sas, policies) = worker
        .handle
        .call(|node| (node.datapath.ipsec.sad().len(), node.datapath.ipsec.spd().len()))
        .map_err(|gone| CliError::failed(gone.to_string()))?;
    let model = &shared.lock().rtnl.model;
    let routes = model.routes().filter(|(_, route)| route.protocol != RTPROT_KERNEL).count();
    let made = ObjectCounts { links: model.links_after(LOOPBACK).count(), routes, sas, policies };
    worker.stop()?;
    Ok(made)
}

/// Opens an unconnected link for each shard.
pub(crate) fn open(config: &LinkConfig, _: Option<u32>, shards: ShardCount) -> Result<Vec<Box<dyn Link>>, CliError> {
    if config.kind.driver().is_none() {
        // A virtual link uses a locally administered address and no device.
        return super::open::open(config, None, shards);
    }
    let layer = if config.kind.is_ethernet() { Layer::Ethernet(MacAddr([2, 0, 0, 0, 0, 1])) } else { Layer::Ip };
    let end = End::new(&config.name);
    let mtu = config.mtu.map_or(end.mtu, usize::from);
    let link = |_| Box::new(pair(End { layer, mtu, ..end.clone() }, end.clone()).0) as Box<dyn Link>;
    Ok(shards.all().map(link).collect())
}

/// A directory that only this user may enter, removed when dropped.
#[derive(Debug)]
struct PrivateDir(PathBuf);

impl PrivateDir {
    fn make() -> Result<Self, CliError> {
        // A directory of that name may be a leftover, or belong to another user.
        let mut left = 16;
        loop {
            let path = std::env::temp_dir()
                .join(format!("fatpath-check-{:016x}", random().map_err(|err| CliError::system("getrandom", &err))?));
            left -= 1;
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Self(path)),
                Err(err) if left > 0 && err.kind() == io::ErrorKind::AlreadyExists => {}
                Err(err) => return Err(CliError::failed(format!("{}: {err}", path.display()))),
            }
        }
    }
}

impl Drop for PrivateDir {
    fn drop(&mut self) {
        // The server has removed its socket already. Files of other processes may keep the directory.
        let _ = std::fs::remove_dir(&self.0);
    }
}
