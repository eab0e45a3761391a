//! Running peer, with its processes and files.

use std::path::PathBuf;

use testbed::{Daemon, Failure, Namespace, Scratch, Stop, warn};

use crate::demo::meter::Usage;
use crate::demo::topology::Topology;

/// Processes and devices of one peer at both ends, removed on drop.
#[derive(Debug)]
pub(in crate::demo) struct Running<'t> {
    /// The sender's end first.
    pub(super) daemons: Vec<Daemon>,
    /// Settings of the hosts, removed at the end in the opposite order.
    pub(super) settings: Vec<Setting<'t>>,
    /// Files outside of the scratch directory that may remain after an end has been killed.
    pub(super) leftovers: Vec<PathBuf>,
}

/// A setting of a host that stays, removed on drop.
#[derive(Debug)]
pub(super) struct Setting<'t> {
    host: &'t Namespace,
    /// The words of `ip` that remove it.
    undo: String,
}

/// Environment in which a peer is started.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ground<'t> {
    pub(super) topology: &'t Topology,
    pub(super) scratch: &'t Scratch,
    pub(super) stop: &'t Stop,
}

impl Running<'_> {
    /// Usage of both ends so far; `None` if they are no processes.
    pub(in crate::demo) fn usage(&self) -> Result<Option<[Usage; 2]>, Failure> {
        match &self.daemons[..] {
            [a, b] => Ok(Some([Usage::of(a.pid())?, Usage::of(b.pid())?])),
            _ => Ok(None),
        }
    }

    /// Adds the logs of both ends to a failure.
    pub(in crate::demo) fn explain(&mut self, failure: Failure) -> Failure {
        self.daemons.iter_mut().fold(failure, |failure, daemon| daemon.explain(failure))
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.daemons.clear();
        // A route needs the address that was set before it.
        while self.settings.pop().is_some() {}
        for file in &self.leftovers {
            // The file exists only if its daemon was killed.
            let _ = std::fs::remove_file(file);
        }
    }
}

impl<'t> Setting<'t> {
    /// Adds an address to a host, in the words of `ip addr`.
    pub(super) fn address(host: &'t Namespace, words: String, stop: &Stop) -> Result<Self, Failure> {
        Self::set(host, &format!("addr add {words}"), format!("addr del {words}"), stop)
    }

    /// Makes a setting by words of `ip`; `undo` removes it.
    pub(super) fn set(host: &'t Namespace, words: &str, undo: String, stop: &Stop) -> Result<Self, Failure> {
        host.ip(words, stop)?;
        Ok(Self { host, undo })
    }
}

impl Drop for Setting<'_> {
    fn drop(&mut self) {
        if let Err(failure) = self.host.ip(&self.undo, &Stop::never()) {
            warn(failure);
        }
    }
}
