//! Disciplines compared with a plain model, under arbitrary operations and options.

mod common;

use std::collections::BTreeMap;
use std::time::Duration;

use base::Instant;
use common::{Cutter, GSO_SIZE, HEADER, Pkt};
use proptest::collection::vec;
use proptest::prelude::*;
use qdisc::{Depth, LinkLayer, Options, Peak, Qdisc, Queued, RateSpec, Stats, Tbf};

/// Bytes per second of the model's filter: a byte takes exactly 8 ns.
const RATE: u64 = 125_000_000;
/// Bytes per second of the filter's peak rate: 2 ns per byte.
const PEAK: u64 = 500_000_000;

#[derive(Clone, Debug)]
enum Op {
    Enqueue(u32),
    Dequeue,
    Wait(u64),
    Change(Options),
}

/// Model of a queue: a list that is summed for each operation, and tokens counted in bytes × ns.
struct Model {
    options: Options,
    list: Vec<Pkt>,
    tokens: i64,
    peak_tokens: i64,
    filled_at: u64,
    stats: Stats,
}

fn wire(pkt: &Pkt) -> u64 {
    let segments = u64::from(pkt.payload.div_ceil(GSO_SIZE).max(1));
    u64::from(pkt.payload) + segments * u64::from(HEADER)
}

fn burst_of(depth: Depth) -> u64 {
    match depth {
        Depth::Bytes(bytes) => u64::from(bytes),
        Depth::Time(_) => panic!("the model has its depths in bytes"),
    }
}

impl Model {
    fn new(now: u64, options: Options) -> Self {
        let mut model =
            Self { options, list: Vec::new(), tokens: 0, peak_tokens: 0, filled_at: now, stats: Stats::default() };
        model.change(now, options);
        model
    }

    /// Depths of both buckets, in ns.
    fn depths(&self) -> (i64, i64) {
        match self.options {
            Options::Tbf(tbf) => {
                let peak = tbf.peak.map_or(0, |peak| burst_of(peak.mtu) * 2);
                (burst_of(tbf.burst) as i64 * 8, peak as i64)
            }
            _ => (0, 0),
        }
    }

    fn change(&mut self, now: u64, options: Options) {
        self.options = options;
        (self.tokens, self.peak_tokens) = self.depths();
        self.filled_at = now;
    }

    fn enqueue(&mut self, pkt: Pkt) {
        let pieces = match self.options {
            Options::Tbf(tbf) => {
                let longest = tbf.peak.map_or(u64::MAX, |peak| burst_of(peak.mtu)).min(burst_of(tbf.burst));
                let one = u64::from(pkt.payload.min(GSO_SIZE) + HEADER);
                if wire(&pkt) <= longest {
                    vec![pkt]
                } else if one <= longest && pkt.payload > GSO_SIZE {
                    let starts = (0..pkt.payload).step_by(GSO_SIZE as usize);
                    starts
                        .enumerate()
                        .map(|(index, start)| {
                            let payload = (pkt.payload - start).min(GSO_SIZE);
                            Pkt { segment: index as u32, payload, ..pkt }
                        })
                        .collect()
                } else {
                    self.stats.drops += 1;
                    vec![]
                }
            }
            _ => vec![pkt],
        };
        for piece in pieces {
            let waiting: u64 = self.list.iter().map(wire).sum();
            let fits = match self.options {
                Options::Pfifo { limit } => self.list.len() < limit as usize,
                Options::Bfifo { limit } => waiting + wire(&piece) <= u64::from(limit),
                Options::Tbf(tbf) => waiting + wire(&piece) <= u64::from(tbf.limit),
            };
            if fits {
                self.list.push(piece);
            } else {
                self.stats.drops += 1;
            }
        }
    }

    fn dequeue(&mut self, now: u64) -> Option<Pkt> {
        let first = *self.list.first()?;
        if let Options::Tbf(tbf) = self.options {
            let (depth, peak_depth) = self.depths();
            let elapsed = (now - self.filled_at) as i64;
            let filled = (self.tokens + elapsed).min(depth);
            let peak_filled = (self.peak_tokens + elapsed).min(peak_depth);
            let cost = wire(&first) as i64 * 8;
            let peak_cost = wire(&first) as i64 * 2;
            let may = filled >= cost.min(depth) && (tbf.peak.is_none() || peak_filled >= peak_cost.min(peak_depth));
            if !may {
                self.stats.overlimits += 1;
                return None;
            }
            (self.tokens, self.peak_tokens, self.filled_at) = (filled - cost, peak_filled - peak_cost, now);
        }
        self.list.remove(0);
        self.stats.bytes += wire(&first);
        self.stats.packets += u64::from(first.payload.div_ceil(GSO_SIZE).max(1));
        Some(first)
    }

    fn stats(&self) -> Stats {
        Stats { qlen: self.list.len() as u32, backlog: self.list.iter().map(wire).sum(), ..self.stats }
    }
}

fn plain(rate: u64) -> RateSpec {
    RateSpec { rate, overhead: 0, mpu: 0, link_layer: LinkLayer::ETHERNET }
}

fn fifo_options() -> impl Strategy<Value = Options> {
    prop_oneof![
        (0_u32..8).prop_map(|limit| Options::Pfifo { limit }),
        (0_u32..200_000).prop_map(|limit| Options::Bfifo { limit }),
    ]
}

fn tbf_options() -> impl Strategy<Value = Options> {
    let depth = || prop_oneof![1_u32..200, 1400_u32..1600, 1600_u32..100_000].prop_map(Depth::Bytes);
    (0_u32..300_000, depth(), proptest::option::of(depth())).prop_map(|(limit, burst, mtu)| {
        let peak = mtu.map(|mtu| Peak { rate: plain(PEAK), mtu });
        Options::Tbf(Tbf { limit, rate: plain(RATE), burst, peak })
    })
}

fn op(options: impl Strategy<Value = Options> + 'static) -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => prop_oneof![0_u32..1461, 1461_u32..65_000].prop_map(Op::Enqueue),
        5 => Just(Op::Dequeue),
        3 => prop_oneof![0_u64..1000, 0_u64..1_000_000].prop_map(Op::Wait),
        1 => options.prop_map(Op::Change),
    ]
}

/// Runs operations on discipline and model: both dequeue the same packets, and all counters are equal.
fn run(options: Options, ops: Vec<Op>) -> Result<(), TestCaseError> {
    let mut now = 1_000;
    let mut qdisc = Qdisc::new(Instant::from_nanos(now), options).unwrap();
    let mut model = Model::new(now, options);
    for (number, op) in ops.into_iter().enumerate() {
        match op {
            Op::Enqueue(payload) => {
                let pkt = Pkt::new(number as u64, payload);
                let (before, mut dropped) = (qdisc.stats().drops, Vec::new());
                qdisc.enqueue(pkt, &mut Cutter::default(), &mut dropped);
                prop_assert_eq!(qdisc.stats().drops - before, dropped.len() as u64);
                model.enqueue(pkt);
            }
            Op::Dequeue => {
                let ready = qdisc.poll_timeout();
                let pkt = qdisc.dequeue(Instant::from_nanos(now));
                prop_assert_eq!(pkt, model.dequeue(now));
                prop_assert_eq!(pkt.is_some(), ready.is_some_and(|at| at <= Instant::from_nanos(now)));
            }
            Op::Wait(nanos) => now += nanos,
            Op::Change(options) => {
                let is_same_kind = options.kind() == qdisc.options().kind();
                prop_assert_eq!(qdisc.change(Instant::from_nanos(now), options).is_ok(), is_same_kind);
                if is_same_kind {
                    model.change(now, options);
                }
            }
        }
        prop_assert_eq!(qdisc.stats(), model.stats());
    }
    Ok(())
}

fn spec() -> impl Strategy<Value = RateSpec> {
    (any::<u64>(), 0_u32..64, any::<u16>(), any::<u16>(), any::<u8>()).prop_map(
        |(rate, shift, overhead, mpu, layer)| RateSpec {
            rate: rate >> shift,
            overhead,
            mpu,
            link_layer: LinkLayer::new(layer),
        },
    )
}

fn any_depth() -> impl Strategy<Value = Depth> {
    prop_oneof![
        any::<u32>().prop_map(Depth::Bytes),
        any::<u64>().prop_map(|nanos| Depth::Time(Duration::from_nanos(nanos))),
        // Ticks of 64 ns, as in netlink.
        any::<u32>().prop_map(|ticks| Depth::Time(Duration::from_nanos(u64::from(ticks) << 6))),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn fifo_agrees_with_a_list(options in fifo_options(), ops in vec(op(fifo_options()), 0..200)) {
        run(options, ops)?;
    }

    #[test]
    fn tbf_agrees_with_a_list_and_counted_tokens(options in tbf_options(), ops in vec(op(tbf_options()), 0..200)) {
        run(options, ops)?;
    }

    /// Definition of a token bucket: in every interval the bytes sent are at most the burst and the rate's share of the
    /// interval.
    #[test]
    fn no_interval_exceeds_burst_and_rate(
        rate in 1_000_u64..10_000_000_000,
        burst in 1514_u32..200_000,
        arrivals in vec((0_u32..65_000, 0_u64..2_000_000), 1..60),
    ) {
        let options = Tbf { limit: u32::MAX, rate: plain(rate), burst: Depth::Bytes(burst), peak: None };
        let mut now = Instant::ZERO;
        let mut qdisc = Qdisc::new(now, Options::Tbf(options)).unwrap();
        let mut sent: Vec<(u64, u64)> = Vec::new();
        for (number, (payload, gap)) in arrivals.into_iter().enumerate() {
            qdisc.enqueue(Pkt::new(number as u64, payload), &mut Cutter::default(), &mut Vec::new());
            now = now + Duration::from_nanos(gap);
            sent.extend(std::iter::from_fn(|| qdisc.dequeue(now)).map(|pkt| (now.as_nanos(), wire(&pkt))));
        }
        while let Some(ready) = qdisc.poll_timeout() {
            now = now.max(ready);
            let pkt = qdisc.dequeue(now).expect("a packet is ready when its time has come");
            sent.push((now.as_nanos(), wire(&pkt)));
        }
        for first in (0..sent.len()).step_by(7) {
            let mut bytes = 0;
            for &(at, len) in &sent[first..] {
                bytes += len;
                let nanos = at - sent[first].0;
                let share = u128::from(nanos) * u128::from(rate) / 1_000_000_000;
                // Times are rounded to a nanosecond per packet, rates to 2⁻³¹.
                let slack = (sent.len() as u128 + 1) * (1 + u128::from(rate) / 1_000_000_000) + (share >> 30);
                let most = u128::from(burst) + share + slack;
                prop_assert!(u128::from(bytes) <= most, "{} of {} bytes in {} ns", bytes, most, nanos);
            }
        }
    }

    /// Options as from a hostile client: every queued packet leaves, at the time of `poll_timeout`.
    #[test]
    fn hostile_options_neither_panic_nor_stall(
        limit: u32,
        rate in spec(),
        burst in any_depth(),
        peak in proptest::option::of((spec(), any_depth())),
        later in (spec(), any_depth()),
        payloads in vec(0_u32..10_000_000, 1..20),
        start in any::<u64>(),
    ) {
        let peak = peak.map(|(rate, mtu)| Peak { rate, mtu });
        let options = Tbf { limit, rate, burst, peak };
        let mut now = Instant::from_nanos(start);
        let Ok(mut qdisc) = Qdisc::new(now, Options::Tbf(options)) else { return Ok(()) };
        let mut offered: BTreeMap<u64, u32> = BTreeMap::new();
        let mut dropped = Vec::new();
        for (number, payload) in payloads.into_iter().enumerate() {
            let pkt = Pkt::new(number as u64, payload);
            offered.insert(pkt.number, payload);
            qdisc.enqueue(pkt, &mut Cutter::default(), &mut dropped);
        }
        let waiting = qdisc.stats();
        let changed = Tbf { rate: later.0, burst: later.1, ..options };
        let is_changed = qdisc.change(now, Options::Tbf(changed)).is_ok();
        prop_assert_eq!(*qdisc.options(), Options::Tbf(if is_changed { changed } else { options }));
        prop_assert_eq!(qdisc.stats(), waiting);
        for _ in 0..waiting.qlen {
            let ready = qdisc.poll_timeout().expect("packets wait");
            now = now.max(ready);
            let pkt = qdisc.dequeue(now);
            prop_assert!(pkt.is_some(), "{:?} at {:?}", qdisc, now);
            let pkt = pkt.unwrap();
            *offered.get_mut(&pkt.number).unwrap() -= pkt.payload;
        }
        prop_assert_eq!(qdisc.poll_timeout(), None);
        prop_assert_eq!((qdisc.stats().qlen, qdisc.stats().backlog), (0, 0));
        for dropped in dropped {
            prop_assert!(dropped.pkt.geometry().wire_len() > 0);
            *offered.get_mut(&dropped.pkt.number).unwrap() -= dropped.pkt.payload;
        }
        prop_assert!(offered.values().all(|&left| left == 0), "{:?}", offered);
    }
}
