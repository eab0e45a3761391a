//! Signs of a loop: an address that moves between ports again and again, or an address of the bridge as a source.

use std::time::Duration;

use base::{Instant, PortId};
use wire::MacAddr;

use crate::fdb::FdbKey;
use crate::vid::Vid;

/// Time for which moves are counted, and in which one sign of each kind is kept.
const WINDOW: Duration = Duration::from_secs(10);

/// Number of moves of one address within the window that are a sign of a loop.
const MOVES: u32 = 5;

/// Number of addresses whose moves are counted at a time.
const MAX_WATCHED: usize = 16;

/// Sign of a loop.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LoopSign {
    /// An address moves between ports.
    Moves {
        /// The address.
        mac: MacAddr,
        /// VLAN of the address.
        vid: Option<Vid>,
        /// Port that the address was at; `None` for the bridge itself.
        from: Option<PortId>,
        /// Port that it is at now.
        to: PortId,
    },
    /// A port received a frame whose source is an address of the bridge (Linux `br_fdb_update`).
    OwnAddress {
        /// The address.
        mac: MacAddr,
        /// VLAN of the frame.
        vid: Option<Vid>,
        /// The port.
        port: PortId,
    },
}

/// Moves of addresses within a window, and the signs that were found.
#[derive(Clone, Debug, Default)]
pub(crate) struct LoopWatch {
    /// Start of the window.
    begun: Option<Instant>,
    moves: Vec<(FdbKey, u32)>,
    has_moved: bool,
    has_own: bool,
    signs: Vec<LoopSign>,
}

impl LoopWatch {
    /// Records a move.
    #[cold]
    pub(crate) fn moved(&mut self, now: Instant, key: FdbKey, from: Option<PortId>, to: PortId) {
        self.begin(now);
        let at = self.moves.iter().position(|(known, _)| *known == key).unwrap_or(self.moves.len());
        if at == self.moves.len() {
            if at == MAX_WATCHED {
                return;
            }
            self.moves.push((key, 0));
        }
        self.moves[at].1 += 1;
        if self.moves[at].1 >= MOVES && !self.has_moved {
            self.has_moved = true;
            self.signs.push(LoopSign::Moves { mac: key.mac(), vid: key.vid(), from, to });
        }
    }

    /// Records a frame from an address of the bridge.
    #[cold]
    pub(crate) fn own_address(&mut self, now: Instant, key: FdbKey, port: PortId) {
        self.begin(now);
        if !self.has_own {
            self.has_own = true;
            self.signs.push(LoopSign::OwnAddress { mac: key.mac(), vid: key.vid(), port });
        }
    }

    /// Begins a window, if the last one is over.
    fn begin(&mut self, now: Instant) {
        if self.begun.is_none_or(|begun| begun + WINDOW <= now) {
            self.begun = Some(now);
            self.moves.clear();
            (self.has_moved, self.has_own) = (false, false);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.signs.is_empty()
    }

    pub(crate) fn take(&mut self) -> Vec<LoopSign> {
        std::mem::take(&mut self.signs)
    }
}
