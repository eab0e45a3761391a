//! Large datagrams through a receive ring of few frames, on a simulated clock.
//!
//! The ring is a pool of pages: each fragment takes a frame on arrival, its owner holds the frame, and the last drop
//! returns it. A fragment without a free frame is dropped and counted (`rx_no_buffer`), as on a NIC or an AF_XDP
//! socket. The wire delivers fragments in bursts as fast as the receiver accepts them, at most 100 Gb/s, so only
//! waiting fragments can exhaust a ring. An exhausted ring is measured for two minutes, in which incomplete datagrams
//! time out; other rings for their slice of time, and for enough fragments to exhaust a ring.

use std::time::Duration;

use packet::{Memory, Packet, Pool};
use reassembly::{Coalesce, Config, Policy};
use sim::Rng;

use super::receiver::Receiver;
use super::stream::{FragmentStream, sa};
use crate::bench::case::{Comparison, Group, Plan, Round, Sample};

/// Frames of the rings.
const RINGS: [usize; 3] = [256, 1024, 4096];

/// Lost fragments per hundred thousand.
const LOSSES: [(usize, &str); 3] = [(0, "0"), (100, "0.1%"), (1000, "1%")];

/// Number of fragments that a device delivers at once.
const BURST: usize = 64;

/// Minimum number of fragments for each frame of a ring: enough on any CPU to exhaust the ring, if losses do.
const LEAST_PER_FRAME: usize = 16;

/// Measuring time of an exhausted ring: both families' longest reassembly timeout, twice.
const TWO_MINUTES: Duration = Duration::from_secs(120);

/// Datagrams of the warm-up.
const WARM: u64 = 20;

/// Number of consecutive datagrams that lose half of all fragments.
const BAD_LUCK: u64 = 100;

/// Number of consecutive delivered datagrams that mark the recovery.
const GOOD: u64 = 20;

const COMPARISONS: &[Comparison] = &[
    Comparison { of: "on/off", over: &["on"], under: &["off"], figure: None },
    Comparison { of: "copy/off", over: &["copy"], under: &["off"], figure: None },
];

/// Setting of one case.
#[derive(Clone, Copy, Debug)]
struct Setting {
    frames: usize,
    loss: usize,
    config: Config,
}

/// Every case of large datagrams.
pub(super) fn groups() -> Vec<Group> {
    // As in Linux before it coalesced, as in this node, and with every fragment copied.
    let off = Config { policy: Policy::Linux, coalesce: Coalesce::Off, ..Config::default() };
    let copy = Config { coalesce: Coalesce::Copy, ..Config::default() };
    let ways = [("off", off), ("on", Config::default()), ("copy", copy)];
    let mut groups = Vec::new();
    for frames in RINGS {
        for (loss, name) in LOSSES {
            let case = |(way, config)| {
                let setting = Setting { frames, loss, config };
                Plan::played(way, move |round| Run::new(setting, round.number).play(round))
            };
            groups.push(Group {
                name: format!("ring-{frames}/loss-{name}"),
                cases: ways.map(case).into(),
                ratios: COMPARISONS,
            });
        }
    }
    groups
}

/// One case in one round.
#[derive(Debug)]
struct Run {
    setting: Setting,
    receiver: Receiver,
    ring: Pool,
    stream: FragmentStream,
    chance: Rng,
    /// Lost fragments per hundred thousand.
    loss: usize,
    /// The current datagram, the number of its fragments that were sent, and whether none of them was lost.
    id: u32,
    at: usize,
    is_intact: bool,
    /// Number of datagrams without a lost fragment on the wire.
    intact: f64,
    rx_no_buffer: u64,
    burst: Vec<Packet>,
}

impl Run {
    fn new(setting: Setting, seed: u64) -> Self {
        let sa = sa();
        Self {
            receiver: Receiver::with_sa(setting.config, &sa),
            ring: Pool::bounded(Memory::SMALL, setting.frames),
            stream: FragmentStream::sealed(&sa),
            chance: Rng::new(seed),
            loss: 0,
            id: 0,
            at: 0,
            is_intact: true,
            intact: 0.0,
            rx_no_buffer: 0,
            burst: Vec::with_capacity(BURST),
            setting,
        }
    }

    fn play(mut self, round: Round) -> Result<Sample, String> {
        self.datagrams(WARM);
        if self.receiver.spent().delivered != WARM {
            return Err(format!(
                "{} of {WARM} datagrams came: {}",
                self.receiver.spent().delivered,
                self.receiver.drops()
            ));
        }
        self.loss = self.setting.loss;
        let (before, from) = (self.receiver.spent(), self.receiver.now);
        (self.intact, self.rx_no_buffer) = (0.0, 0);
        let mut length = round.slice;
        let mut least = LEAST_PER_FRAME * self.setting.frames;
        while least > 0 || self.receiver.now.since(from) < length {
            if self.is_stuck() {
                (length, least) = (TWO_MINUTES, 0);
                self.wait();
            } else {
                self.fragments(BURST);
                least = least.saturating_sub(BURST);
            }
        }
        let mut sample = self.receiver.sample((before, from), self.stream.payload);
        let of_intact = (self.receiver.spent().delivered - before.delivered) as f64 / self.intact.max(1.0);
        let rx_no_buffer = self.rx_no_buffer as f64;
        let recovery = self.recovery();
        self.receiver.drain(self.setting.config.policy == Policy::Linux)?;
        if self.ring.in_use() > 0 {
            return Err(format!("{} frames did not come home", self.ring.in_use()));
        }
        sample.more = vec![
            ("rx_no_buffer", rx_no_buffer),
            ("of_intact", of_intact),
            ("memory_high_water", self.receiver.high_water() as f64),
            ("recovery_ms", recovery.as_secs_f64() * 1e3),
        ];
        if self.setting.config.coalesce == Coalesce::Move {
            sample.more.push(("copied_by_moving", sample.copied_bytes_per_byte));
        }
        Ok(sample)
    }

    /// Time from the end of a burst of loss until uninterrupted delivery, at most two minutes: a timeout may free only
    /// as many frames as the next stranded fragments take.
    fn recovery(&mut self) -> Duration {
        self.loss = 50_000;
        self.datagrams(BAD_LUCK);
        self.loss = 0;
        let bad = self.receiver.now;
        let (mut since, mut in_a_row) = (bad, 0);
        while in_a_row < GOOD {
            if self.is_stuck() {
                self.wait();
                in_a_row = 0;
            }
            if in_a_row == 0 {
                since = self.receiver.now;
            }
            let before = self.receiver.spent().delivered;
            self.datagrams(1);
            in_a_row = if self.receiver.spent().delivered > before { in_a_row + 1 } else { 0 };
            if self.receiver.now.since(bad) > TWO_MINUTES {
                return TWO_MINUTES;
            }
        }
        since.since(bad)
    }

    /// Tells whether no fragment is accepted before the next timeout.
    fn is_stuck(&self) -> bool {
        self.ring.in_use() >= self.setting.frames
            || (self.setting.config.policy == Policy::Linux && self.receiver.is_full())
    }

    /// Advances the clock until a datagram times out. Fragments that the wire delivers meanwhile are dropped.
    fn wait(&mut self) {
        let is_dry = self.ring.in_use() >= self.setting.frames;
        let Some(missed) = self.receiver.sleep() else { return };
        if is_dry {
            self.rx_no_buffer += missed;
        }
        let datagrams = missed as f64 / self.stream.len() as f64;
        self.intact += datagrams * (1.0 - self.loss as f64 / 1e5).powi(self.stream.len() as i32);
    }

    /// Sends the remaining fragments of the current datagram, and `count` more datagrams.
    fn datagrams(&mut self, count: u64) {
        if self.at > 0 {
            self.fragments(self.stream.len() - self.at);
        }
        for _ in 0..count {
            self.fragments(self.stream.len());
        }
    }

    /// Sends the next fragments, as one burst.
    fn fragments(&mut self, count: usize) {
        for _ in 0..count {
            let is_lost = self.loss > 0 && self.chance.below(100_000) < self.loss;
            self.is_intact &= !is_lost;
            if !is_lost {
                match self.ring.take(Memory::HEADROOM) {
                    Ok(frame) => self.burst.push(self.stream.write(self.at, self.id, frame)),
                    Err(_) => self.rx_no_buffer += 1,
                }
            }
            self.at += 1;
            if self.at == self.stream.len() {
                self.intact += f64::from(u8::from(self.is_intact));
                (self.at, self.id, self.is_intact) = (0, self.id.wrapping_add(1), true);
            }
        }
        self.receiver.take(&mut self.burst, count as u64);
    }
}
