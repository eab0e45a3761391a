//! Monitors: control clients that receive events of SAs, policies and links, or reports of drops.

use std::sync::Weak;
use std::sync::mpsc::{SyncSender, TrySendError};
use std::time::Duration;

use base::Instant;
use ctl::event::{Event, SaLabel};
use datapath::{Datapath, DropReport};
use ipsec::{SaChange, SaChangeKind};
use wire::{FlowKey, Protocol};

/// Number of reports of drops in a second, of all shards; further drops are counted.
const DROPS_A_SECOND: usize = 100;

/// Time for which a number of reports is permitted.
const WINDOW: Duration = Duration::from_secs(1);

/// Senders to the monitors.
#[derive(Debug, Default)]
pub(crate) struct Monitors {
    /// Readers of events.
    sinks: Vec<Sink>,
    drops: DropReaders,
    /// Listening that the node has been told.
    told: Listening,
}

/// Listening of monitors for events of SAs and policies.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Listening {
    /// Whether there is a monitor.
    pub(crate) any: bool,
    /// Whether a monitor of the control socket is there, on whose behalf SAs are acquired. One that only looks changes nothing.
    pub(crate) acquires: bool,
}

/// Sender to one reader.
#[derive(Debug)]
struct Sink {
    events: SyncSender<Event>,
    /// Liveness of the client: cannot be upgraded after the client's thread has ended.
    client: Weak<()>,
    /// Events that found the queue full.
    lost: u64,
    /// Whether it is a client of the view socket.
    is_viewer: bool,
}

impl Sink {
    fn is_alive(&self) -> bool {
        self.client.strong_count() > 0
    }

    /// Queues an event, after a notice about events that were lost before. Returns whether the reader is still there.
    fn send(&mut self, event: &Event) -> bool {
        if self.lost > 0 {
            match self.events.try_send(Event::Lost { events: self.lost }) {
                Ok(()) => self.lost = 0,
                Err(TrySendError::Full(_)) => {
                    self.lost += 1;
                    return true;
                }
                Err(TrySendError::Disconnected(_)) => return false,
            }
        }
        match self.events.try_send(event.clone()) {
            Ok(()) => true,
            Err(TrySendError::Full(_)) => {
                self.lost += 1;
                true
            }
            Err(TrySendError::Disconnected(_)) => false,
        }
    }
}

/// Readers of drops, and the limit of their events.
#[derive(Debug, Default)]
struct DropReaders {
    sinks: Vec<Sink>,
    /// Time at which further reports are permitted, if some have been made since the last time.
    refill_at: Option<Instant>,
}

impl Monitors {
    /// Adds a monitor, for as long as `client` can be upgraded.
    pub(crate) fn add(&mut self, events: SyncSender<Event>, client: Weak<()>, is_viewer: bool) {
        self.sinks.retain(Sink::is_alive);
        self.sinks.push(Sink { events, client, lost: 0, is_viewer });
    }

    /// Adds a monitor of drops, for as long as `client` can be upgraded.
    pub(crate) fn add_for_drops(&mut self, datapath: &mut Datapath, events: SyncSender<Event>, client: Weak<()>) {
        self.drops.sinks.retain(Sink::is_alive);
        self.drops.sinks.push(Sink { events, client, lost: 0, is_viewer: false });
        if self.drops.refill_at.is_none() {
            datapath.watch_drops(Some(drops_a_second(datapath)));
        }
    }

    /// Ends the reports of drops if their last reader is gone.
    pub(crate) fn end_drops(&mut self, datapath: &mut Datapath) {
        self.drops.sinks.retain(Sink::is_alive);
        if self.drops.sinks.is_empty() {
            self.drops.refill_at = None;
            datapath.watch_drops(None);
        }
    }

    /// Listening of the monitors.
    pub(crate) fn listening(&self) -> Listening {
        Listening { any: !self.sinks.is_empty(), acquires: self.sinks.iter().any(|sink| !sink.is_viewer) }
    }

    /// Listening of the monitors, if it has changed since the last call.
    pub(crate) fn take_change(&mut self) -> Option<Listening> {
        let now = self.listening();
        (std::mem::replace(&mut self.told, now) != now).then_some(now)
    }

    /// Sends `events` of SAs and policies to all monitors. A disconnected monitor is removed; a slow one loses events.
    pub(crate) fn send(&mut self, events: &[ipsec::Event]) {
        events.iter().filter_map(event).for_each(|event| self.tell(&event));
    }

    /// Sends an event to all monitors, as [`send`](Self::send).
    pub(crate) fn tell(&mut self, event: &Event) {
        self.sinks.retain_mut(|sink| sink.send(event));
    }

    /// Time at which [`deliver_drops`](Self::deliver_drops) has to be called.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.drops.refill_at
    }

    /// Sends reports of drops to their readers, at most a number of them in a second, and the number of further ones.
    pub(crate) fn deliver_drops(&mut self, datapath: &mut Datapath, now: Instant) {
        let DropReaders { sinks, refill_at } = &mut self.drops;
        if sinks.is_empty() {
            return;
        }
        let has_dropped = datapath.has_drop_reports() || datapath.unreported_drops() > 0;
        if has_dropped && refill_at.is_none() {
            *refill_at = Some(now + WINDOW);
        }
        let mut events = Vec::new();
        if datapath.has_drop_reports() {
            let reports: Vec<_> = datapath.take_drop_reports().collect();
            events.extend(reports.iter().map(|report| drop_event(datapath, report)));
        }
        if refill_at.is_some_and(|at| at <= now) {
            let packets = datapath.take_unreported_drops();
            if packets > 0 {
                events.push(Event::MoreDrops { packets });
            }
            datapath.watch_drops(Some(drops_a_second(datapath)));
            *refill_at = None;
        }
        if !events.is_empty() {
            sinks.retain_mut(|sink| events.iter().all(|event| sink.send(event)));
            if sinks.is_empty() {
                self.end_drops(datapath);
            }
        }
    }
}

/// Number of reports that a shard makes in a second.
fn drops_a_second(datapath: &Datapath) -> usize {
    let (id, count) = datapath.shard();
    let has_one_more = usize::from(id.0) < DROPS_A_SECOND % count.get();
    DROPS_A_SECOND / count.get() + usize::from(has_one_more)
}

fn drop_event(datapath: &Datapath, report: &DropReport) -> Event {
    let DropReport { link, reason, packets, flow, esp } = *report;
    let link = link.and_then(|link| datapath.ports.get(link)).map(|port| port.config.name.clone());
    let has_ports = |flow: &FlowKey| matches!(flow.protocol, Protocol::TCP | Protocol::UDP | Protocol::SCTP);
    let ports = flow.filter(has_ports).map(|flow| (flow.sport, flow.dport));
    let ends = flow.map(|flow| (flow.src, flow.dst)).or(esp.map(|esp| (esp.src, esp.dst)));
    let proto = flow.map(|flow| flow.protocol).or(esp.map(|_| Protocol::ESP));
    Event::Drop {
        link,
        reason: reason.name().to_owned(),
        packets,
        src: ends.map(|(src, _)| src),
        dst: ends.map(|(_, dst)| dst),
        proto: proto.map(|proto| proto.to_string()),
        sport: ports.map(|(sport, _)| sport),
        dport: ports.map(|(_, dport)| dport),
        spi: esp.and_then(|esp| esp.spi).map(|spi| spi.0),
    }
}

/// Event of an added or removed SA.
pub(crate) fn sa_event(change: &SaChange) -> Event {
    let SaChange { kind, spi, src, dst, reqid } = *change;
    let sa = SaLabel { spi: spi.0, src, dst, reqid };
    match kind {
        SaChangeKind::Added => Event::SaAdded(sa),
        SaChangeKind::Rekeyed { old } => Event::SaRekeyed { sa, old: old.0 },
        SaChangeKind::Removed => Event::SaRemoved(sa),
    }
}

fn event(event: &ipsec::Event) -> Option<Event> {
    Some(match event {
        ipsec::Event::Acquire(it) => Event::Acquire {
            seq: it.seq,
            src: it.src,
            dst: it.dst,
            mode: it.template.mode,
            reqid: it.template.reqid,
            selector: (&it.selector).into(),
            policy: it.policy,
        },
        ipsec::Event::SaExpired(it) => Event::Expire {
            hard: it.hard,
            src: it.src,
            dst: it.dst,
            spi: it.spi.0,
            mode: it.mode,
            reqid: it.reqid,
            bytes: it.stats.bytes,
            packets: it.stats.packets,
        },
        ipsec::Event::PolicyExpired(it) => {
            let selector = (&it.key.selector).into();
            Event::PolicyExpire { hard: it.hard, dir: it.key.dir, selector, index: it.index }
        }
        ipsec::Event::Mapping(it) => {
            Event::Mapping { dst: it.dst, spi: it.spi.0, reqid: it.reqid, old: it.old, new: it.new }
        }
        // Input of the program that continues the SA elsewhere, not for monitors.
        ipsec::Event::Numbers(_) => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::sync_channel;

    use base::{DropReason, Origin, PortId, ShardCount};

    use xfrm::{Dir, Flowi, Level, Mode, PolicyConfig, Selector, Template};

    use super::*;

    #[test]
    fn monitor_receives_acquires_until_it_is_gone() {
        let mut ipsec = ipsec::Ipsec::new();
        ipsec.set_listener(true);
        let any = Selector::new(base::Prefix::ANY_V4, base::Prefix::ANY_V4);
        let [src, dst] = ["192.0.2.1", "192.0.2.2"].map(|addr| Some(addr.parse().unwrap()));
        let template = Template { src, dst, spi: None, mode: Mode::Tunnel, reqid: 4, level: Level::Required };
        ipsec.add_policy(PolicyConfig { templates: vec![template], ..PolicyConfig::new(Dir::Out, any) }).unwrap();
        let mut monitors = Monitors::default();
        let (sink, events) = sync_channel(9);
        let client = Arc::new(());
        monitors.add(sink, Arc::downgrade(&client), false);
        let [from, to] = ["10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap()];
        let flow =
            |protocol| wire::FlowKey { src: from, dst: to, protocol: wire::Protocol(protocol), sport: 8, dport: 9 };
        let ask = |ipsec: &mut ipsec::Ipsec, protocol| {
            ipsec.lookup(base::Instant::ZERO, &Flowi::from(flow(protocol)), &mut base::Counters::default());
        };
        ask(&mut ipsec, 17);
        monitors.send(&ipsec.take_events().collect::<Vec<_>>());
        let Ok(Event::Acquire { reqid: 4, selector, policy: 9, .. }) = events.try_recv() else {
            panic!("an SA is acquired")
        };
        assert_eq!((selector.proto, selector.sport, selector.dport), (Some(17), Some(8), Some(9)));
        drop(events);
        ipsec.handle_timeout(base::Instant::ZERO + std::time::Duration::from_secs(30), &mut base::Counters::default());
        monitors.send(&ipsec.take_events().collect::<Vec<_>>());
        assert!(!monitors.listening().any, "there is no listener any more");
    }

    #[test]
    fn monitor_that_only_looks_acquires_no_sas() {
        let mut monitors = Monitors::default();
        let [looks, full] = [true, false].map(|is_viewer| {
            let (sink, events) = sync_channel(1);
            let client = Arc::new(());
            monitors.add(sink, Arc::downgrade(&client), is_viewer);
            (events, client)
        });
        assert_eq!(monitors.take_change(), Some(Listening { any: true, acquires: true }));
        assert_eq!(monitors.take_change(), None);
        drop(full);
        monitors.tell(&Event::MoreSas { changes: 1 });
        assert_eq!(monitors.take_change(), Some(Listening { any: true, acquires: false }));
        drop(looks);
        monitors.tell(&Event::MoreSas { changes: 1 });
        assert_eq!(monitors.take_change(), Some(Listening::default()));
    }

    #[test]
    fn slow_reader_loses_events_and_is_told_how_many() {
        let (events, queue) = sync_channel(2);
        let client = Arc::new(());
        let mut sink = Sink { events, client: Arc::downgrade(&client), lost: 0, is_viewer: false };
        let event = |changes| Event::MoreSas { changes };
        assert!((1..=5).all(|n| sink.send(&event(n))));
        assert_eq!(queue.try_iter().collect::<Vec<_>>(), [event(1), event(2)]);
        assert!(sink.send(&event(6)));
        assert_eq!(queue.try_iter().collect::<Vec<_>>(), [Event::Lost { events: 3 }, event(6)]);
        drop(queue);
        assert!(!sink.send(&event(7)));
    }

    #[test]
    fn shards_report_no_more_drops_than_one() {
        for count in [1, 2, 3, 64] {
            let mut reports = 0;
            for mut datapath in Datapath::shards(ShardCount::new(count).unwrap()) {
                let (sink, queue) = sync_channel(1024);
                let client = Arc::new(());
                let mut monitors = Monitors::default();
                monitors.add_for_drops(&mut datapath, sink, Arc::downgrade(&client));
                for second in [1, 2] {
                    (0..150).for_each(|_| datapath.ports.drop(Origin::Port(PortId(7)), DropReason::NoRoute).end());
                    monitors.deliver_drops(&mut datapath, Instant::ZERO + Duration::from_secs(second));
                }
                let is_report = |event: &Event| matches!(event, Event::Drop { .. });
                reports += queue.try_iter().filter(is_report).count();
            }
            assert_eq!(reports, DROPS_A_SECOND, "{count} shards, in one second");
        }
    }

    #[test]
    fn drops_are_limited_in_rate_and_the_others_counted() {
        let mut monitors = Monitors::default();
        let mut datapath = Datapath::new();
        let (sink, queue) = sync_channel(1024);
        let client = Arc::new(());
        monitors.add_for_drops(&mut datapath, sink, Arc::downgrade(&client));
        let drop_packets = |datapath: &mut Datapath, n: u64| {
            (0..n).for_each(|_| datapath.ports.drop(Origin::Port(PortId(7)), DropReason::NoRoute).end());
        };
        let second = |n| Instant::ZERO + Duration::from_secs(n);
        drop_packets(&mut datapath, 150);
        monitors.deliver_drops(&mut datapath, second(1));
        assert_eq!((queue.try_iter().count(), monitors.poll_timeout()), (DROPS_A_SECOND, Some(second(2))));
        drop_packets(&mut datapath, 50);
        monitors.deliver_drops(&mut datapath, second(1) + Duration::from_millis(999));
        assert_eq!(queue.try_iter().count(), 0);
        monitors.deliver_drops(&mut datapath, second(2));
        assert_eq!(queue.try_iter().collect::<Vec<_>>(), [Event::MoreDrops { packets: 100 }]);
        assert_eq!(monitors.poll_timeout(), None, "an idle gateway is not woken");
        drop_packets(&mut datapath, 1);
        monitors.deliver_drops(&mut datapath, second(9));
        assert!(matches!(queue.try_recv(), Ok(Event::Drop { packets: 1, .. })));
        drop(client);
        monitors.end_drops(&mut datapath);
        drop_packets(&mut datapath, 1);
        assert!(!datapath.has_drop_reports() && datapath.unreported_drops() == 0);
    }
}
