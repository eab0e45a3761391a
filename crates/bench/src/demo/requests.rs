//! Request/response streams over TCP, one byte each way (netperf's `TCP_RR`): each sends its next request after the
//! response to the previous one.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::time::Timespec;
use serde::Serialize;
use testbed::{Failure, Opened, Stop};

/// Timeout of a connection; that of the first includes neighbour discovery.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// Longest time without a response; then a connection has failed.
const SILENCE_LIMIT: Duration = Duration::from_secs(5);
/// Interval of the checks whether the other end has finished.
const POLL_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
/// Limit of events that one call returns.
const EVENTS: usize = 256;
/// Event number of the listening socket; those of streams are their indices.
const LISTENER: u64 = u64::MAX;
const NANOS_PER_MICRO: f64 = 1e3;

/// The two ends: the namespaces of their sockets, and the server's address.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestEnds<'a> {
    pub(super) client: &'a Opened,
    pub(super) server: &'a Opened,
    pub(super) to: IpAddr,
    /// Connections.
    pub(super) streams: u16,
}

/// Transactions of all streams in the measured time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Transactions {
    /// Transactions a second.
    pub(super) per_second: f64,
    /// Time from request to answer in microseconds: the median, and the 90th and 99th percentiles.
    pub(super) p50_us: f64,
    pub(super) p90_us: f64,
    pub(super) p99_us: f64,
    /// Processor time of both gateways for a transaction, in microseconds.
    pub(super) cpu_us: f64,
}

impl Transactions {
    /// Sums up the times, in nanoseconds, of the transactions within `elapsed`.
    pub(super) fn of(times: &mut [u64], elapsed: Duration) -> Self {
        times.sort_unstable();
        // The nearest rank: the smallest time that this percentage of the times does not exceed.
        let percentile = |percent: usize| {
            let rank = (times.len() * percent).div_ceil(100).max(1) - 1;
            times.get(rank).map_or(0.0, |&nanos| nanos as f64 / NANOS_PER_MICRO)
        };
        Self {
            per_second: times.len() as f64 / elapsed.as_secs_f64().max(f64::MIN_POSITIVE),
            p50_us: percentile(50),
            p90_us: percentile(90),
            p99_us: percentile(99),
            cpu_us: 0.0,
        }
    }
}

/// Runs the streams for `length`, after one uncounted transaction of each; `begins` is called right before. Returns the
/// time of each transaction, in nanoseconds, and the total time.
pub(super) fn builtin(
    ends: RequestEnds<'_>,
    length: Duration,
    stop: &Stop,
    begins: impl FnOnce() -> Result<(), Failure>,
) -> Result<(Vec<u64>, Duration), Failure> {
    let doing = format!("{} TCP streams to {}", ends.streams, ends.to);
    let fail = |err: io::Error| Failure::step(&doing, err);
    let listener = ends.server.enter(|| TcpListener::bind((ends.to, 0)).map_err(fail))?;
    let server = listener.local_addr().map_err(fail)?;
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let serving = scope.spawn(|| serve(&listener, &is_over));
        let run = || {
            let mut client = ends.client.enter(|| Client::connect(server, ends.streams, stop, &doing))?;
            client.transact(Duration::ZERO, stop).map_err(fail)?;
            begins()?;
            let start = Instant::now();
            let times = client.transact(length, stop).map_err(fail)?;
            stop.check()?;
            // The connections stay open until the server has finished.
            Ok((client, times, start.elapsed()))
        };
        let result = {
            let _end = EndOnDrop(&is_over);
            run()
        };
        let served = serving.join().unwrap_or_else(|panicked| std::panic::resume_unwind(panicked));
        match (result, served) {
            // A client that has failed closes its connections.
            (Err(failure), Err(err)) if err.kind() == ErrorKind::UnexpectedEof => Err(failure),
            (Err(Failure::Interrupted), _) => Err(Failure::Interrupted),
            (_, Err(err)) => Err(fail(err)),
            (Err(failure), Ok(())) => Err(failure),
            (Ok((_client, times, elapsed)), Ok(())) => Ok((times, elapsed)),
        }
    })
}

/// Ends the server when the client has finished or failed.
struct EndOnDrop<'a>(&'a AtomicBool);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Echoes bytes on every connection until `is_over` is set.
fn serve(listener: &TcpListener, is_over: &AtomicBool) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let epoll = epoll::create(CreateFlags::CLOEXEC)?;
    epoll::add(&epoll, listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
    let mut streams: Vec<TcpStream> = Vec::new();
    while !is_over.load(Ordering::Relaxed) {
        for at in ready(&epoll)? {
            if at == LISTENER {
                while let Some((stream, _)) = unless_blocked(listener.accept())? {
                    add(&epoll, &stream, streams.len())?;
                    streams.push(stream);
                }
            } else if let Some(stream) = streams.get_mut(at as usize) {
                answer(stream)?;
            }
        }
    }
    Ok(())
}

fn answer(stream: &mut TcpStream) -> io::Result<()> {
    let mut bytes = [0; 16];
    match unless_blocked(stream.read(&mut bytes))? {
        None => Ok(()),
        Some(0) => Err(io::Error::new(ErrorKind::UnexpectedEof, "a client has closed its connection")),
        Some(len) => stream.write_all(&bytes[..len]),
    }
}

/// Connections to the server.
struct Client {
    epoll: OwnedFd,
    streams: Vec<TcpStream>,
    /// Start of the transaction of each.
    began: Vec<Instant>,
}

impl Client {
    fn connect(server: SocketAddr, streams: u16, stop: &Stop, doing: &str) -> Result<Self, Failure> {
        let fail = |err: io::Error| Failure::step(doing, err);
        let connect = || TcpStream::connect_timeout(&server, CONNECT_LIMIT);
        // The path may not be up yet.
        let first = stop.wait(doing, CONNECT_LIMIT, || Ok(connect().ok()))?;
        let others = (1..streams).map(|_| stop.check().and_then(|()| connect().map_err(fail)));
        let streams = std::iter::once(Ok(first)).chain(others).collect::<Result<Vec<_>, Failure>>()?;
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(|err| fail(err.into()))?;
        for (at, stream) in streams.iter().enumerate() {
            add(&epoll, stream, at).map_err(fail)?;
        }
        let began = vec![Instant::now(); streams.len()];
        Ok(Self { epoll, streams, began })
    }

    /// Makes transactions on every stream until `length` is over, and waits for the last responses. Returns the time of
    /// each in nanoseconds.
    fn transact(&mut self, length: Duration, stop: &Stop) -> io::Result<Vec<u64>> {
        let start = Instant::now();
        let mut times = Vec::new();
        for at in 0..self.streams.len() {
            self.request(at)?;
        }
        let mut outstanding = self.streams.len();
        let mut heard = start;
        while outstanding > 0 && stop.check().is_ok() {
            for at in ready(&self.epoll)? {
                let at = at as usize;
                let Some(got) = self.streams.get_mut(at).map(|stream| unless_blocked(stream.read(&mut [0; 16]))) else {
                    continue;
                };
                match got? {
                    None => continue,
                    Some(1) => {}
                    Some(len) => return Err(io::Error::other(format!("an answer of {len} bytes"))),
                }
                heard = Instant::now();
                times.push(heard.duration_since(self.began[at]).as_nanos() as u64);
                if heard.duration_since(start) < length { self.request(at)? } else { outstanding -= 1 }
            }
            if heard.elapsed() > SILENCE_LIMIT {
                return Err(io::Error::new(ErrorKind::TimedOut, format!("{outstanding} responses are missing")));
            }
        }
        Ok(times)
    }

    fn request(&mut self, at: usize) -> io::Result<()> {
        self.began[at] = Instant::now();
        self.streams[at].write_all(&[0x5a])
    }
}

/// Registers a stream with epoll under the number `at`.
fn add(epoll: &OwnedFd, stream: &TcpStream, at: usize) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    Ok(epoll::add(epoll, stream, EventData::new_u64(at as u64), EventFlags::IN)?)
}

/// Numbers of the sockets that are ready, after at most [`POLL_INTERVAL`].
fn ready(epoll: &OwnedFd) -> io::Result<Vec<u64>> {
    let mut events: Vec<Event> = Vec::with_capacity(EVENTS);
    match epoll::wait(epoll, rustix::buffer::spare_capacity(&mut events), Some(&POLL_INTERVAL)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(events.iter().map(|event| event.data.u64()).collect()),
        Err(err) => Err(err.into()),
    }
}

fn unless_blocked<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(err) if matches!(err.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(None),
        Err(err) => Err(err),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_the_nearest_ranks() {
        let second = Duration::from_secs(1);
        let us = |all: &[u64]| {
            let mut times: Vec<u64> = all.iter().map(|us| us * 1000).collect();
            let it = Transactions::of(&mut times, second);
            (it.p50_us, it.p90_us, it.p99_us)
        };
        let hundred: Vec<u64> = (1..=100).rev().collect();
        assert_eq!(us(&hundred), (50.0, 90.0, 99.0));
        assert_eq!(us(&[7]), (7.0, 7.0, 7.0));
        assert_eq!(us(&[9, 1, 5]), (5.0, 9.0, 9.0));
        assert_eq!(us(&[]), (0.0, 0.0, 0.0));
        assert_eq!(Transactions::of(&mut [1; 300], second * 2).per_second, 150.0);
    }

    fn server() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        (listener, addr)
    }

    #[test]
    fn every_stream_has_its_transactions() {
        let (listener, addr) = server();
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            let serving = scope.spawn(|| serve(&listener, &is_over));
            let mut client = Client::connect(addr, 5, &Stop::never(), "connect").unwrap();
            assert_eq!(client.transact(Duration::ZERO, &Stop::never()).unwrap().len(), 5);
            assert!(client.transact(Duration::from_millis(20), &Stop::never()).unwrap().len() > 10);
            is_over.store(true, Ordering::Relaxed);
            serving.join().unwrap().unwrap();
        });
    }

    #[test]
    fn connection_that_ends_is_an_error() {
        let (listener, addr) = server();
        let mut client = Client::connect(addr, 1, &Stop::never(), "connect").unwrap();
        drop(listener.accept().unwrap());
        assert!(client.transact(Duration::ZERO, &Stop::never()).is_err());
        // The server does not count it as a request either.
        let is_over = AtomicBool::new(false);
        drop(Client::connect(addr, 1, &Stop::never(), "connect").unwrap());
        assert_eq!(serve(&listener, &is_over).unwrap_err().kind(), ErrorKind::UnexpectedEof);
    }
}
