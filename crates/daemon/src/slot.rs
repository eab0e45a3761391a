//! A link of the worker with its state, and the thread that reopens a link whose device was deleted and created again
//! under the same name.

use std::io;
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::thread;
use std::time::Duration;

use base::{Instant, ShardCount};
use client::CliError;
use config::features::FeatureSet;
use config::model::LinkConfig;
use ipsec::device::SoftwareDevice;
use link::{Layer, Link};
use logging::id;
use offload::Features;
use packet::{Memory, Packet};
use wire::eth::{EthHeader, MacAddr};

use super::open::{self, Queues};
use super::translate::features;

/// Pause before a device with a full queue is retried, if epoll does not report room.
pub(crate) const RETRY_DEVICE: Duration = Duration::from_millis(1);

/// Time for which a failed link stays unread before it is retried.
pub(crate) const RETRY_DOWN: Duration = Duration::from_secs(1);

/// Interval at which the worker checks whether the thread that reopens a link is done.
const REOPEN_POLL: Duration = Duration::from_millis(10);

/// A link with its state in the worker.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) link: Box<dyn Link>,
    /// Device that offloads ESP, between the link and the datapath.
    pub(crate) esp: Option<SoftwareDevice>,
    /// Configuration with which the link was opened.
    pub(crate) config: LinkConfig,
    /// Link-layer address that an operator has set.
    pub(crate) mac: Option<MacAddr>,
    /// Features that were switchable when the link was opened; some of them may have been refused since.
    pub(crate) can: FeatureSet,
    /// Requested features of `can`.
    pub(crate) wanted: FeatureSet,
    /// Whether the link is set up by the operator.
    pub(crate) admin_up: bool,
    /// Failure of the link, which is not read and written until a retry succeeds.
    pub(crate) down: Option<Down>,
    /// Life of the link, by which shards that tell each other about it know that they mean the same.
    pub(crate) life: Life,
    /// Whether the other end can receive, as the first shard knows it from the link; the others are told.
    pub(crate) has_carrier: bool,
    /// Numbers of times that the carrier was gained and lost.
    pub(crate) carrier: [u32; 2],
    /// Whether the link's queue is full, and epoll reports when it has room.
    pub(crate) full: bool,
    /// Time of the next attempt, if the link's queue is full and epoll does not report room.
    pub(crate) retry_at: Option<Instant>,
    /// Whether the first shard has a queueing discipline of the link, for a link of another shard.
    pub(crate) is_shaped_elsewhere: bool,
}

/// Life of a link between two failures, the same in all shards.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Life {
    /// Number of the opened link among all of the node.
    pub(crate) number: u64,
    /// Number of times that the first shard has brought the link up again, or opened it anew; wraps.
    pub(crate) revivals: u32,
}

/// Failure of a link.
#[derive(Debug)]
pub(crate) struct Down {
    pub(crate) why: String,
    /// Time of the next attempt. None in the other shards: the first one tries, and tells.
    pub(crate) retry_at: Option<Instant>,
    /// Whether another shard has found the failure, so that this one's queue may still report it.
    pub(crate) is_told: bool,
    /// Whether the device is gone for the queue of a shard.
    pub(crate) is_gone: bool,
    /// Whether the operator set the link down meanwhile: packets that the link has received are dropped.
    pub(crate) is_stale: bool,
    /// Result of the thread that reopens the link, while one runs.
    pub(crate) reopening: Option<Receiver<Result<Queues, CliError>>>,
}

impl Slot {
    /// Tells whether the link can pass packets.
    pub(crate) fn is_up(&self) -> bool {
        self.admin_up && self.down.is_none() && self.has_carrier
    }

    /// Enabled features.
    pub(crate) fn on(&self) -> FeatureSet {
        (features::of(&*self.link) & self.wanted).coherent()
    }

    /// Offloads of sent packets that the link performs.
    pub(crate) fn features(&self) -> Features {
        Features { esp: self.esp.is_some(), ..features::limited(self.link.features(), self.on()) }
    }

    /// Receives one burst, as [`Link::recv`]. The device decrypts ESP of its SAs.
    pub(crate) fn recv(&mut self, mem: &Memory, out: &mut Vec<Packet>) -> io::Result<()> {
        let first = out.len();
        let received = self.link.recv(mem, out);
        if let Some(device) = &self.esp {
            device.receive(mem, self.l3(), &mut out[first..]);
        }
        received
    }

    /// Encrypts the packets of `burst` that are left to the device: the only place that a packet in clear passes on its way to the
    /// wire. Returns the packets that cannot be encrypted, as their SA is gone.
    pub(crate) fn encrypt(&self, burst: &mut Vec<Packet>) -> Vec<Packet> {
        self.esp.as_ref().map_or_else(Vec::new, |device| device.transmit(self.l3(), burst))
    }

    /// Offset of the IP header in packets of the link.
    fn l3(&self) -> usize {
        match self.link.layer() {
            Layer::Ethernet(_) => EthHeader::LEN,
            Layer::Ip => 0,
        }
    }

    /// Counts a change of the carrier: gained (`up`) or lost.
    pub(crate) const fn count_carrier(&mut self, up: bool) {
        let [ups, downs] = &mut self.carrier;
        let count = if up { ups } else { downs };
        *count = count.wrapping_add(1);
    }

    /// Logs a failure of the link, with its state from then on. A guest that shuts down is no error, nor is an interface that an operator
    /// sets down, moves or deletes.
    #[cold]
    pub(crate) fn log_failure(link: &str, err: &io::Error, state: &str) {
        let text = format!("{err}; the link {state}, other links continue");
        match err.kind() {
            io::ErrorKind::ConnectionReset => {
                tracing::info!(message_id = id::LINK_DOWN, link, reason = %err, "{text}");
            }
            io::ErrorKind::NetworkDown => tracing::warn!(message_id = id::LINK_DOWN, link, reason = %err, "{text}"),
            _ => tracing::error!(message_id = id::LINK_DOWN, link, reason = %err, "{text}"),
        }
    }

    /// Sets the reason why the link is down.
    pub(crate) fn set_why_down(&mut self, why: String) {
        if let Some(down) = &mut self.down {
            down.why = why;
        }
    }

    /// Starts a thread that opens the link on the device of its name, as the open may take long, for all shards. False if there
    /// is no such device or no thread can be started.
    pub(crate) fn reopen(&mut self, now: Instant, count: ShardCount) -> bool {
        let config = LinkConfig { mtu: self.link.configured_mtu(), ..self.config.clone() };
        if !open::has_device(&config) {
            return false;
        }
        self.link.release();
        let (sender, reopening) = mpsc::channel();
        let open = move || {
            // The link may have been closed meanwhile.
            let _ = sender.send(open::open(&config, None, count));
        };
        if let Err(err) = thread::Builder::new().name("open".to_owned()).spawn(open) {
            tracing::error!("{}: start a thread: {err}", self.link.name());
            return false;
        }
        if let Some(down) = &mut self.down {
            down.reopening = Some(reopening);
            down.retry_at = Some(now + REOPEN_POLL);
        }
        true
    }

    /// Links of all shards over the device that was made again. `None` if the open failed or is still in progress.
    pub(crate) fn take_reopened(&mut self, now: Instant) -> Option<Queues> {
        let down = self.down.as_mut()?;
        let opened = match down.reopening.as_ref().map(Receiver::try_recv) {
            None => return None,
            Some(Err(TryRecvError::Empty)) => {
                down.retry_at = Some(now + REOPEN_POLL);
                return None;
            }
            Some(Ok(opened)) => opened,
            Some(Err(TryRecvError::Disconnected)) => Err(CliError::failed("the thread that opens it has panicked")),
        };
        down.reopening = None;
        let opened = opened.and_then(|queues| match queues.is_empty() {
            true => Err(CliError::failed("its device has no queue")),
            false => Ok(queues),
        });
        match opened {
            Ok(queues) => {
                let link = self.link.name();
                tracing::info!(link, "{link}: its device was made again, and is opened");
                Some(queues)
            }
            Err(err) => {
                if down.why != err.message {
                    let (link, why) = (self.link.name(), err.message.as_str());
                    tracing::error!(
                        link,
                        reason = why,
                        "{link}: its device was made again, and cannot be opened: {why}"
                    );
                }
                down.retry_at = Some(now + RETRY_DOWN);
                self.set_why_down(err.message);
                None
            }
        }
    }

    /// Replaces the link with one that has been opened on its device. A failed link stays down until it is read.
    pub(crate) fn replace(&mut self, mut link: Box<dyn Link>) {
        if let Some(Err(err)) = self.mac.map(|mac| link.set_mac(mac)) {
            tracing::warn!("{}: cannot restore its link-layer address: {err}", link.name());
        }
        link.set_stats(*self.link.stats());
        self.can = features::of(&*link);
        self.link = link;
        if let Some(down) = &mut self.down {
            (down.is_gone, down.is_told) = (false, false);
        }
    }
}
