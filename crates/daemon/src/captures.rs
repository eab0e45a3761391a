//! Captures: the links whose packets they copy, and the receivers of the copies.

use std::sync::Weak;
use std::sync::mpsc::{SyncSender, TrySendError};
use std::time::Duration;

use base::{Instant, PortId};
use datapath::{Datapath, TapPoints};
use packet::Budget;

/// Link of a capture, for the header of the capture file.
#[derive(Debug)]
pub(crate) struct CaptureLink {
    /// Ethernet frames, or IP packets.
    pub(crate) ethernet: bool,
    /// Zero of the clock of [`Frame::at`], since the Unix epoch.
    pub(crate) epoch: Duration,
}

/// A captured packet.
#[derive(Debug)]
pub(crate) struct Frame {
    /// Time at which it was copied.
    pub(crate) at: Instant,
    /// Whether the packet was on its way out.
    pub(crate) outbound: bool,
    /// Bytes of the packet.
    pub(crate) bytes: Vec<u8>,
}

/// One capture.
#[derive(Debug)]
struct Capture {
    link: PortId,
    /// Whether the tap is behind GRO and before segmentation, and not at the wire.
    fat: bool,
    sink: SyncSender<Frame>,
    /// Liveness of the reader: cannot be upgraded after its thread has ended.
    client: Weak<()>,
}

/// All captures.
#[derive(Debug, Default)]
pub(crate) struct Captures(Vec<Capture>);

impl Captures {
    /// Starts a capture of the link `name`, which sends its packets to `sink`.
    ///
    /// # Errors
    /// No link has that name.
    pub(crate) fn start(
        &mut self,
        datapath: &mut Datapath,
        name: &str,
        fat: bool,
        sink: SyncSender<Frame>,
        client: Weak<()>,
    ) -> Result<CaptureLink, String> {
        let found = datapath.ports.iter().find(|(_, port)| port.config.name == name);
        let Some((link, ethernet)) = found.map(|(id, port)| (id, port.config.mac.is_some())) else {
            let names: Vec<&str> = datapath.ports.iter().map(|(_, port)| port.config.name.as_str()).collect();
            return Err(format!("no link is named {name}; links are {}", names.join(", ")));
        };
        self.0.push(Capture { link, fat, sink, client });
        self.set_taps(datapath);
        // Behind GRO a packet has no link-layer header any more.
        Ok(CaptureLink { ethernet: ethernet && !fat, epoch: datapath.epoch })
    }

    /// Number of captures.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Ends the captures of a link that is closed.
    pub(crate) fn close(&mut self, link: PortId) {
        self.0.retain(|capture| capture.link != link);
    }

    /// Ends the captures whose readers are gone.
    pub(crate) fn sweep(&mut self, datapath: &mut Datapath) {
        self.0.retain(|capture| capture.client.strong_count() > 0);
        self.set_taps(datapath);
    }

    /// Enables taps on the links with a capture, and disables all others.
    fn set_taps(&self, datapath: &mut Datapath) {
        let links: Vec<PortId> = datapath.ports.iter().map(|(id, _)| id).collect();
        for id in links {
            let on = |fat| self.0.iter().any(|capture| capture.link == id && capture.fat == fat);
            datapath.set_tap(id, TapPoints { wire: on(false), fat: on(true) });
        }
    }

    /// Sends packets that were tapped until `at` to their captures. A slow reader loses some packets; a capture ends
    /// when its reader has disconnected.
    pub(crate) fn deliver(&mut self, datapath: &mut Datapath, at: Instant) {
        if self.0.is_empty() {
            return;
        }
        let before = self.0.len();
        let is_short = Budget::is_short();
        for tapped in datapath.take_tapped() {
            self.0.retain(|capture| {
                if (capture.link, capture.fat) != (tapped.link, tapped.fat) {
                    return true;
                }
                // Lost, as to a slow reader.
                if is_short {
                    return true;
                }
                let frame = Frame { at, outbound: tapped.outbound, bytes: tapped.bytes.clone() };
                !matches!(capture.sink.try_send(frame), Err(TrySendError::Disconnected(_)))
            });
        }
        if self.0.len() != before {
            self.set_taps(datapath);
        }
    }
}
