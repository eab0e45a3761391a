//! Captures: which links they see, and where they go.

use std::sync::mpsc::{SyncSender, TrySendError};

use base::LinkId;
use datapath::TapPoints;

use super::super::command::{CaptureLink, Frame};
use super::Worker;

/// A capture that is on.
#[derive(Debug)]
pub(super) struct Capture {
    pub(super) link: LinkId,
    fat: bool,
    sink: SyncSender<Frame>,
}

impl Worker {
    pub(super) fn start_capture(
        &mut self,
        name: &str,
        fat: bool,
        sink: SyncSender<Frame>,
    ) -> Result<CaptureLink, String> {
        let found = self.path.ports.iter().find(|(_, port)| port.config.name == name);
        let Some((id, ethernet)) = found.map(|(id, port)| (id, port.config.mac.is_some())) else {
            let names: Vec<&str> = self.path.ports.iter().map(|(_, port)| port.config.name.as_str()).collect();
            return Err(format!("no link is named {name}; links are {}", names.join(", ")));
        };
        self.captures.push(Capture { link: id, fat, sink });
        self.set_taps();
        // Behind GRO a packet has no link-layer header any more.
        Ok(CaptureLink { ethernet: ethernet && !fat, epoch: self.clock.epoch })
    }

    /// Switches the path's taps on where a capture is, and off elsewhere.
    pub(super) fn set_taps(&mut self) {
        let ports: Vec<LinkId> = self.path.ports.iter().map(|(id, _)| id).collect();
        for id in ports {
            let on = |fat| self.captures.iter().any(|capture| capture.link == id && capture.fat == fat);
            let points = TapPoints { wire: on(false), fat: on(true) };
            self.path.set_tap(id, points);
        }
    }

    /// Hands captured packets to whoever asked. A slow reader loses some; one that is gone ends its capture.
    pub(super) fn deliver_captures(&mut self) {
        if self.captures.is_empty() {
            return;
        }
        let at = self.clock.now();
        let before = self.captures.len();
        for tapped in self.path.take_tapped() {
            self.captures.retain(|capture| {
                if (capture.link, capture.fat) != (tapped.link, tapped.fat) {
                    return true;
                }
                let frame = Frame { at, outbound: tapped.outbound, bytes: tapped.bytes.clone() };
                !matches!(capture.sink.try_send(frame), Err(TrySendError::Disconnected(_)))
            });
        }
        if self.captures.len() != before {
            self.set_taps();
        }
    }
}
