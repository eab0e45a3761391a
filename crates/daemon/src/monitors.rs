//! Monitors: control clients that receive events of SAs and policies.

use std::sync::mpsc::{SyncSender, TrySendError};

use ctl::event::Event;

/// Senders to the monitors.
#[derive(Debug, Default)]
pub(crate) struct Monitors(Vec<SyncSender<Event>>);

impl Monitors {
    /// Adds a monitor.
    pub(crate) fn add(&mut self, sink: SyncSender<Event>) {
        self.0.push(sink);
    }

    /// Tells whether the list is empty.
    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Sends `events` to all monitors. A disconnected monitor is removed; a slow one loses events.
    pub(crate) fn send(&mut self, events: &[ipsec::Event]) {
        for event in events.iter().filter_map(event) {
            self.0.retain(|sink| !matches!(sink.try_send(event.clone()), Err(TrySendError::Disconnected(_))));
        }
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
    use std::sync::mpsc::sync_channel;

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
        monitors.add(sink);
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
        assert!(monitors.is_empty(), "there is no listener any more");
    }
}
