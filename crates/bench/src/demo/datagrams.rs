//! One UDP stream of large datagrams from a socket to another, for a given time. Each datagram is about 46 fragments on
//! a 1500-byte wire; one lost fragment loses its datagram, whose other fragments may stay in memory for half a minute.
//! UDP has no flow control, and fragments are dropped while memory is full. So this sender counts arrivals, and does
//! not send more datagrams than queues have room for.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use testbed::{Failure, Opened, Stop};

use super::stream::Stream;

/// Bytes of payload of a datagram: the most that crosses a TAP device whole over IPv6.
const LARGEST: usize = 65_473;
/// Timeout of the first datagram, which includes neighbour discovery.
const REACH_LIMIT: Duration = Duration::from_secs(5);
/// Size of the receive buffer: no datagram is lost while the receiver is not scheduled.
const RECEIVE_BUFFER: usize = 64 << 20;
/// Time after which a datagram is counted as lost.
const LOST_AFTER: Duration = Duration::from_millis(50);
/// Sleep of the sender between two checks.
const POLL_INTERVAL: Duration = Duration::from_micros(20);
/// Time without a datagram that ends the measurement once the last one is sent.
const QUIET: Duration = Duration::from_millis(300);

/// Received stream, and the share of the sent datagrams in it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Datagrams {
    /// Stream as measured by the receiver.
    pub(super) stream: Stream,
    /// The share of the datagrams that arrived.
    pub(super) arrived: f64,
}

/// The two ends of a stream: their namespaces and addresses.
#[derive(Clone, Copy, Debug)]
pub(super) struct DatagramEnds<'a> {
    pub(super) sender: &'a Opened,
    pub(super) receiver: &'a Opened,
    pub(super) from: IpAddr,
    pub(super) to: IpAddr,
    /// Limit of datagrams in flight.
    pub(super) window: u64,
    /// Whether a stream without arrivals is no failure.
    pub(super) may_starve: bool,
    /// Time for which datagrams are sent before they count.
    pub(super) warm_up: Duration,
}

/// Sends for `length` from one thread and receives on another; `begins` is called right before. A stream without
/// arrivals counts as one datagram if it `may_starve`: an upper bound.
pub(super) fn builtin(
    ends: DatagramEnds<'_>,
    length: Duration,
    stop: &Stop,
    begins: impl FnOnce() -> Result<(), Failure>,
) -> Result<Datagrams, Failure> {
    let doing = format!("udp to {}", ends.to);
    let fail = |err: io::Error| Failure::step(&doing, err);
    let receiving = ends.receiver.enter(|| UdpSocket::bind((ends.to, 0)).map_err(fail))?;
    let sending = ends.sender.enter(|| UdpSocket::bind((ends.from, 0)).map_err(fail))?;
    set_socket_recv_buffer_size_force(&receiving, RECEIVE_BUFFER).map_err(|err| fail(err.into()))?;
    sending.connect(receiving.local_addr().map_err(fail)?).map_err(fail)?;
    receiving.set_nonblocking(true).map_err(fail)?;
    stop.wait(&doing, REACH_LIMIT, || {
        // The call fails while the path is not up yet.
        let _ = sending.send(&[]);
        thread::sleep(QUIET / 100);
        Ok(receiving.recv(&mut []).ok())
    })?;
    // Later datagrams that were sent in the meantime.
    thread::sleep(QUIET / 10);
    while receiving.recv(&mut []).is_ok() {}
    receiving.set_nonblocking(false).map_err(fail)?;
    if !ends.warm_up.is_zero() {
        let (sent, received) = transfer(&sending, &receiving, (ends.warm_up, ends.window), stop);
        sent.and(received).map_err(fail)?;
    }
    begins()?;
    let (sent, received) = transfer(&sending, &receiving, (length, ends.window), stop);
    let (sent, received) = (sent.map_err(fail)?, received.map_err(fail)?);
    stop.check()?;
    if received == 0 && !ends.may_starve {
        return Err(Failure::step(&doing, format!("none of {sent} datagrams arrived")));
    }
    let stream = Stream { bytes: received.max(1) * LARGEST as u64, seconds: length.as_secs_f64() };
    Ok(Datagrams { stream, arrived: received as f64 / sent.max(1) as f64 })
}

/// Runs both ends, and returns the numbers of sent and of received datagrams.
fn transfer(
    sending: &UdpSocket,
    receiving: &UdpSocket,
    (length, window): (Duration, u64),
    stop: &Stop,
) -> (io::Result<u64>, io::Result<u64>) {
    let (is_over, arrived) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let receiver = scope.spawn(|| receive(receiving, &is_over, &arrived));
        let sent = send(sending, (length, window), &arrived, stop);
        is_over.store(true, Ordering::Relaxed);
        let received = receiver.join().unwrap_or_else(|panicked| std::panic::resume_unwind(panicked));
        (sent, received)
    })
}

fn send(socket: &UdpSocket, (length, window): (Duration, u64), arrived: &AtomicU64, stop: &Stop) -> io::Result<u64> {
    let datagram = vec![0x5a; LARGEST];
    let start = Instant::now();
    // Datagrams sent, datagrams no longer in flight, and the time of the last change.
    let (mut sent, mut lost, mut known, mut changed) = (0, 0, 0, start);
    while start.elapsed() < length && stop.check().is_ok() {
        let now_known = arrived.load(Ordering::Relaxed);
        if now_known != known {
            (known, changed) = (now_known, Instant::now());
        }
        if sent - (known + lost).min(sent) >= window {
            if changed.elapsed() > LOST_AFTER {
                (lost, changed) = (sent - known.min(sent), Instant::now());
            }
            thread::sleep(POLL_INTERVAL);
            continue;
        }
        match socket.send(&datagram) {
            Ok(_) => sent += 1,
            // A path MTU was learnt, a queue is full, or the receiver's socket is not open yet.
            Err(err) if is_passing(&err) => thread::yield_now(),
            Err(err) => return Err(err),
        }
    }
    Ok(sent)
}

fn is_passing(err: &io::Error) -> bool {
    let errno = err.raw_os_error();
    err.kind() == ErrorKind::ConnectionRefused || [libc::EMSGSIZE, libc::ENOBUFS].contains(&errno.unwrap_or(0))
}

fn receive(socket: &UdpSocket, is_over: &AtomicBool, arrived: &AtomicU64) -> io::Result<u64> {
    socket.set_read_timeout(Some(QUIET))?;
    let mut datagram = vec![0; LARGEST + 1];
    loop {
        match socket.recv(&mut datagram) {
            Ok(LARGEST) => _ = arrived.fetch_add(1, Ordering::Relaxed),
            Ok(other) => return Err(io::Error::other(format!("a datagram of {other} bytes arrived"))),
            Err(err) if matches!(err.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                if is_over.load(Ordering::Relaxed) {
                    return Ok(arrived.load(Ordering::Relaxed));
                }
            }
            Err(err) if err.kind() == ErrorKind::Interrupted => {}
            Err(err) => return Err(err),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_that_arrive_are_counted() {
        let receiving = UdpSocket::bind("127.0.0.1:0").unwrap();
        let sending = UdpSocket::bind("127.0.0.1:0").unwrap();
        sending.connect(receiving.local_addr().unwrap()).unwrap();
        let (sent, received) = transfer(&sending, &receiving, (Duration::from_millis(50), 8), &Stop::never());
        let (sent, received) = (sent.unwrap(), received.unwrap());
        assert!(received > 0 && received <= sent, "{received} of {sent}");
    }

    #[test]
    fn a_datagram_of_another_size_is_a_mistake() {
        let receiving = UdpSocket::bind("127.0.0.1:0").unwrap();
        let sending = UdpSocket::bind("127.0.0.1:0").unwrap();
        sending.send_to(&[0; 9], receiving.local_addr().unwrap()).unwrap();
        assert!(receive(&receiving, &AtomicBool::new(true), &AtomicU64::new(0)).is_err());
    }
}
