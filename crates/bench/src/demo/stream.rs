//! One TCP stream from host to host, for a given time.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};
use testbed::{Failure, Helper, Namespace, Stop, command, finish};

/// Largest number of bytes of one read or write.
const CHUNK: usize = 256 * 1024;
/// Longest time that a connection may take; covers two lost SYNs.
const CONNECT_LIMIT: Duration = Duration::from_secs(4);
/// Time for which a read or write blocks before it checks for the stop signal.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Time without progress after which a stream has failed.
const STALL_LIMIT: Duration = Duration::from_secs(5);
/// Longest time for bytes in flight at the end to arrive.
const DRAIN_LIMIT: Duration = Duration::from_secs(20);
/// Port of iperf3's server.
const IPERF3_PORT: &str = "5201";

/// Stream as measured by the receiver.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Stream {
    /// Payload bytes.
    pub(super) bytes: u64,
    /// Time from the connection to the last byte.
    pub(super) seconds: f64,
}

/// The two ends of a stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ends<'a> {
    /// Namespace of the sender.
    pub(super) sender: &'a Namespace,
    /// Namespace of the receiver.
    pub(super) receiver: &'a Namespace,
    /// The receiver's address.
    pub(super) address: Ipv4Addr,
}

/// Sends for `length` from one thread and receives on another, over std sockets.
pub(super) fn builtin(ends: Ends<'_>, length: Duration, stop: &Stop) -> Result<Stream, Failure> {
    let doing = format!("tcp to {}", ends.address);
    let fail = |err: io::Error| Failure::step(&doing, err);
    let listener = ends.receiver.enter(|| TcpListener::bind((ends.address, 0)).map_err(fail))?;
    listener.set_nonblocking(true).map_err(fail)?;
    let to = listener.local_addr().map_err(fail)?;
    let sending = ends.sender.enter(|| connect(to).map_err(fail))?;
    let receiving = stop.wait(&doing, CONNECT_LIMIT, || match listener.accept() {
        Ok((stream, _)) => Ok(Some(stream)),
        Err(err) if err.kind() == ErrorKind::WouldBlock => Ok(None),
        Err(err) => Err(fail(err)),
    })?;
    let (sent, received) = transfer(sending, receiving, length, stop);
    // If both failed, the sender's failure is the cause.
    let sent = sent.map_err(fail)?;
    let stream = received.map_err(fail)?;
    stop.check()?;
    if stream.bytes != sent {
        return Err(Failure::step(&doing, format!("{sent} bytes sent, {} received", stream.bytes)));
    }
    Ok(stream)
}

fn connect(to: SocketAddr) -> io::Result<TcpStream> {
    TcpStream::connect_timeout(&to, CONNECT_LIMIT)
}

/// Runs both ends of a connected pair: returns the number of bytes sent, and the received stream.
fn transfer(
    sending: TcpStream,
    receiving: TcpStream,
    length: Duration,
    stop: &Stop,
) -> (io::Result<u64>, io::Result<Stream>) {
    thread::scope(|scope| {
        let receiver = scope.spawn(move || receive(receiving, length + DRAIN_LIMIT, stop));
        let sent = send(sending, length, stop);
        let received = receiver.join().unwrap_or_else(|panicked| std::panic::resume_unwind(panicked));
        (sent, received)
    })
}

fn send(mut stream: TcpStream, length: Duration, stop: &Stop) -> io::Result<u64> {
    stream.set_write_timeout(Some(POLL_INTERVAL))?;
    let chunk = vec![0x5a; CHUNK];
    let start = Instant::now();
    let (mut bytes, mut moved) = (0, start);
    while start.elapsed() < length && stop.check().is_ok() {
        match stream.write(&chunk) {
            Ok(n) => (bytes, moved) = (bytes + n as u64, Instant::now()),
            Err(err) if is_look(&err) => stalled(moved, bytes)?,
            Err(err) => return Err(err),
        }
    }
    stream.shutdown(Shutdown::Write)?;
    Ok(bytes)
}

fn receive(mut stream: TcpStream, limit: Duration, stop: &Stop) -> io::Result<Stream> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(POLL_INTERVAL))?;
    let mut chunk = vec![0; CHUNK];
    let start = Instant::now();
    let (mut bytes, mut moved) = (0, start);
    while stop.check().is_ok() {
        match stream.read(&mut chunk) {
            Ok(0) => break,
            Ok(n) => (bytes, moved) = (bytes + n as u64, Instant::now()),
            Err(err) if is_look(&err) => stalled(moved, bytes)?,
            Err(err) => return Err(err),
        }
        if start.elapsed() > limit {
            return Err(io::Error::new(ErrorKind::TimedOut, format!("no end after {bytes} bytes")));
        }
    }
    Ok(Stream { bytes, seconds: (moved - start).as_secs_f64() })
}

/// Whether a call only returned for the check of the stop signal.
fn is_look(err: &io::Error) -> bool {
    matches!(err.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

/// Fails after [`STALL_LIMIT`] without progress.
fn stalled(moved: Instant, bytes: u64) -> io::Result<()> {
    if moved.elapsed() < STALL_LIMIT {
        return Ok(());
    }
    Err(io::Error::new(ErrorKind::TimedOut, format!("stalled after {bytes} bytes")))
}

/// The same by iperf3 at both ends.
pub(super) fn iperf3(ends: Ends<'_>, length: Duration, stop: &Stop) -> Result<Stream, Failure> {
    let spawn = |namespace: &Namespace, args: &[&str], stdout: fn() -> Stdio| {
        namespace.enter(|| {
            let mut command = command("iperf3");
            command.args(args).stdout(stdout()).stderr(Stdio::piped());
            command.spawn().map_err(|err| Failure::step("iperf3", err))
        })
    };
    let address = ends.address.to_string();
    let seconds = length.as_secs_f64().ceil().to_string();
    let server_args = ["-s", "-1", "-p", IPERF3_PORT, "-B", &address];
    let client_args = ["-c", &address, "-p", IPERF3_PORT, "-t", &seconds, "-i", "0", "-J"];
    let mut server = Helper::new(spawn(ends.receiver, &server_args, Stdio::null)?);
    // The server prints nothing when it listens, so the client retries.
    let json = stop.wait("iperf3", CONNECT_LIMIT, || {
        let client = spawn(ends.sender, &client_args, Stdio::piped)?;
        match finish(client, "iperf3 -c", length + CONNECT_LIMIT + DRAIN_LIMIT, stop) {
            Ok(json) => Ok(Some(json)),
            Err(refused) if refused.to_string().contains("Connection refused") => {
                server.check("iperf3 -s").map(|()| None)
            }
            Err(failed) => Err(failed),
        }
    })?;
    iperf3_sum(&json)
}

/// The receiver's sum of an `iperf3 -J` report.
fn iperf3_sum(json: &str) -> Result<Stream, Failure> {
    let report: serde_json::Value = serde_json::from_str(json).map_err(|err| Failure::step("iperf3 -J", err))?;
    let sum = &report["end"]["sum_received"];
    match (sum["bytes"].as_u64(), sum["seconds"].as_f64()) {
        (Some(bytes), Some(seconds)) if seconds > 0.0 => Ok(Stream { bytes, seconds }),
        _ => Err(Failure::step("iperf3 -J", "no end.sum_received in its report")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let sending = connect(listener.local_addr().unwrap()).unwrap();
        (sending, listener.accept().unwrap().0)
    }

    #[test]
    fn stream_is_received_in_the_configured_time() {
        let (sending, receiving) = pair();
        let (sent, received) = transfer(sending, receiving, Duration::from_millis(60), &Stop::never());
        let (sent, received) = (sent.unwrap(), received.unwrap());
        assert!(sent > 0);
        assert_eq!(received.bytes, sent);
        assert!(received.seconds > 0.03, "{received:?}");
    }

    #[test]
    fn a_sender_whose_peer_is_gone_fails() {
        let (sending, receiving) = pair();
        drop(receiving);
        assert!(send(sending, Duration::from_secs(60), &Stop::never()).is_err());
    }

    #[test]
    fn the_receivers_sum_is_read_from_iperf3() {
        let json = r#"{"end":{"sum_sent":{"bytes":9},"sum_received":{"bytes":8,"seconds":2.5}}}"#;
        assert_eq!(iperf3_sum(json).unwrap(), Stream { bytes: 8, seconds: 2.5 });
        for bad in ["", "{}", r#"{"end":{"sum_received":{"bytes":8,"seconds":0}}}"#] {
            assert!(iperf3_sum(bad).is_err(), "{bad}");
        }
    }
}
