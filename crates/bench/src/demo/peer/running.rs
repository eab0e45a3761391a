//! Running peer, with its processes and files.

use std::path::PathBuf;

use crate::demo::daemon::Daemon;
use crate::demo::failure::{Failure, warn};
use crate::demo::meter::Usage;
use crate::demo::netns::Namespace;
use crate::demo::process::Scratch;
use crate::demo::stop::Stop;
use crate::demo::topology::{Side, Topology};

/// Processes and devices of one peer at both ends, removed on drop.
#[derive(Debug)]
pub(in crate::demo) struct Running<'t> {
    /// The sender's end first.
    pub(super) daemons: Vec<Daemon>,
    /// Addresses that are removed at the end.
    pub(super) addresses: Vec<Address<'t>>,
    /// Files outside of the scratch directory that may remain after an end has been killed.
    pub(super) leftovers: Vec<PathBuf>,
}

/// An address of a device that stays.
#[derive(Debug)]
pub(super) struct Address<'t> {
    host: &'t Namespace,
    /// Address and device, as `ip addr` takes them.
    words: String,
}

/// Environment in which a peer is started.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ground<'t> {
    pub(super) topology: &'t Topology,
    pub(super) scratch: &'t Scratch,
    pub(super) stop: &'t Stop,
}

impl Running<'_> {
    /// Usage of both ends so far.
    pub(in crate::demo) fn usage(&self) -> Result<[Usage; 2], Failure> {
        let of = |side: Side| Usage::of(self.daemons[side as usize].pid());
        Ok([of(Side::A)?, of(Side::B)?])
    }

    /// Adds the logs of both ends to a failure.
    pub(in crate::demo) fn explain(&mut self, failure: Failure) -> Failure {
        self.daemons.iter_mut().fold(failure, |failure, daemon| daemon.explain(failure))
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.daemons.clear();
        for file in &self.leftovers {
            // The file exists only if its daemon was killed.
            let _ = std::fs::remove_file(file);
        }
    }
}

impl<'t> Address<'t> {
    /// Adds the address to a host.
    pub(super) fn add(host: &'t Namespace, words: String, stop: &Stop) -> Result<Self, Failure> {
        host.ip(&format!("addr add {words}"), stop)?;
        Ok(Self { host, words })
    }
}

impl Drop for Address<'_> {
    fn drop(&mut self) {
        if let Err(failure) = self.host.ip(&format!("addr del {}", self.words), &Stop::never()) {
            warn(failure);
        }
    }
}
