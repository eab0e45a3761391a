//! Streams what happens to SAs and policies to a control client.

use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, TrySendError, sync_channel};

use control::event::Event;
use control::{Reply, model};
use ipsec::PortMask;

use super::capture::{LOOK_EVERY, is_gone};
use super::command::{Command, Handle};

/// Events that may wait for a slow reader; what comes while they do is lost to that reader alone.
const QUEUE: usize = 1024;

/// Answers a request to monitor and then writes events until the client goes.
pub(crate) fn stream_events(mut stream: &UnixStream, worker: &Handle) -> io::Result<()> {
    let (sink, events) = sync_channel(QUEUE);
    if let Err(gone) = worker.ask(|reply| Command::Monitor { sink, reply }) {
        return stream.write_all(Reply::Error { message: gone.to_string() }.to_line().as_bytes());
    }
    stream.write_all(Reply::Monitoring.to_line().as_bytes())?;
    loop {
        match events.recv_timeout(LOOK_EVERY) {
            Ok(event) => stream.write_all(event.to_line().as_bytes())?,
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
            Err(RecvTimeoutError::Timeout) if is_gone(stream) => return Ok(()),
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

/// Those who are told.
#[derive(Debug, Default)]
pub(crate) struct Monitors(Vec<SyncSender<Event>>);

impl Monitors {
    /// One more.
    pub(crate) fn add(&mut self, sink: SyncSender<Event>) {
        self.0.push(sink);
    }

    /// Whether there are none.
    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Tells what has happened. Whoever is gone is forgotten; a slow one loses some.
    pub(crate) fn tell(&mut self, events: &[ipsec::Event]) {
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
            mode: mode(it.template.mode),
            reqid: it.template.reqid,
            selector: selector(&it.selector),
            policy: it.policy,
        },
        ipsec::Event::SaExpired(it) => Event::Expire {
            hard: it.hard,
            src: it.src,
            dst: it.dst,
            spi: it.spi.0,
            mode: mode(it.mode),
            reqid: it.reqid,
            bytes: it.stats.bytes,
            packets: it.stats.packets,
        },
        ipsec::Event::PolicyExpired(it) => {
            let dir = dir(it.key.dir);
            Event::PolicyExpire { hard: it.hard, dir, selector: selector(&it.key.selector), index: it.index }
        }
        ipsec::Event::Mapping(it) => {
            Event::Mapping { dst: it.dst, spi: it.spi.0, reqid: it.reqid, old: it.old, new: it.new }
        }
        // For whoever goes on with the SA elsewhere: not one of those who watch.
        ipsec::Event::Numbers(_) => return None,
    })
}

pub(super) const fn dir(dir: ipsec::Dir) -> model::Dir {
    match dir {
        ipsec::Dir::In => model::Dir::In,
        ipsec::Dir::Out => model::Dir::Out,
        ipsec::Dir::Fwd => model::Dir::Fwd,
    }
}

pub(super) const fn sa_dir(dir: ipsec::SaDir) -> model::SaDir {
    match dir {
        ipsec::SaDir::In => model::SaDir::In,
        ipsec::SaDir::Out => model::SaDir::Out,
    }
}

pub(super) const fn mode(mode: ipsec::Mode) -> model::Mode {
    match mode {
        ipsec::Mode::Transport => model::Mode::Transport,
        ipsec::Mode::Tunnel => model::Mode::Tunnel,
    }
}

pub(super) fn selector(selector: &ipsec::Selector) -> model::Selector {
    let has_ports = selector.protocol.is_some_and(|protocol| matches!(protocol.0, 6 | 17 | 33 | 132 | 136));
    let port = |port: PortMask| (has_ports && port.mask != 0).then_some(port.port);
    let (src, dst, proto) = (selector.src, selector.dst, selector.protocol.map(|protocol| protocol.0));
    model::Selector { src, dst, proto, sport: port(selector.sport), dport: port(selector.dport) }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use ipsec::{Dir, Flowi, Level, Mode, PolicyConfig, Selector, Template};

    use super::*;

    #[test]
    fn who_monitors_is_asked_for_sas_and_who_is_gone_is_not() {
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
        monitors.tell(&ipsec.take_events().collect::<Vec<_>>());
        let Ok(Event::Acquire { reqid: 4, selector, policy: 9, .. }) = events.try_recv() else {
            panic!("it is asked for")
        };
        assert_eq!((selector.proto, selector.sport, selector.dport), (Some(17), Some(8), Some(9)));
        drop(events);
        ipsec.handle_timeout(base::Instant::ZERO + std::time::Duration::from_secs(30), &mut base::Counters::default());
        monitors.tell(&ipsec.take_events().collect::<Vec<_>>());
        assert!(monitors.is_empty(), "nobody listens any more");
    }
}
