//! The trace that runs, and the client that it is for.

use std::sync::mpsc::{SyncSender, TrySendError};

use control::trace::PacketTrace;

use super::super::trace;
use super::Worker;

/// A trace that runs.
#[derive(Debug)]
pub(super) struct RunningTrace {
    number: u64,
    sink: SyncSender<PacketTrace>,
}

impl Worker {
    /// Starts a trace, and returns its number.
    ///
    /// # Errors
    /// The filter is wrong, or another trace runs.
    pub(crate) fn start_trace(
        &mut self,
        filter: &str,
        packets: u32,
        sink: SyncSender<PacketTrace>,
    ) -> Result<u64, String> {
        if self.trace.is_some() {
            return Err("another trace is running".to_owned());
        }
        let ports = || self.path.ports.iter();
        let link = |name: &str| ports().find(|(_, port)| port.config.name == name).map(|(id, _)| id);
        let filter = trace::parse_filter(filter, link)?;
        self.traces += 1;
        self.trace = Some(RunningTrace { number: self.traces, sink });
        self.path.set_trace(Some(filter), packets);
        Ok(self.traces)
    }

    /// Stops the trace of that number, if it runs.
    pub(crate) fn stop_trace(&mut self, number: u64) {
        if self.trace.as_ref().is_some_and(|running| running.number == number) {
            self.trace = None;
            self.path.set_trace(None, 0);
        }
    }

    /// Sends what was traced to the client. A slow client loses some; with the last packet the trace ends.
    pub(super) fn deliver_traces(&mut self) {
        let Some(running) = &self.trace else { return };
        let ports = &self.path.ports;
        let names: Vec<(base::LinkId, String)> =
            ports.iter().map(|(id, port)| (id, port.config.name.clone())).collect();
        let name =
            |id| names.iter().find(|(known, _)| *known == id).map_or_else(|| "?".to_owned(), |(_, name)| name.clone());
        let traced = trace::group(self.path.take_trace(), self.clock.epoch, name);
        let sent: Vec<_> = traced.into_iter().map(|traced| running.sink.try_send(traced)).collect();
        let is_gone = sent.iter().any(|sent| matches!(sent, Err(TrySendError::Disconnected(_))));
        if is_gone || self.path.is_trace_complete() {
            self.stop_trace(running.number);
        }
    }
}
