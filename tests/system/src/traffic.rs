//! Pings of many sizes and streams with a checksum.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ring::digest::{Context, SHA256};
use rustix::net::sockopt::set_socket_recv_buffer_size_force;

use crate::{Netns, Outcome, Process, Scratch, wait_until};

/// Payload sizes from nothing to many fragments, dense around the limit of an Ethernet packet with and without ESP.
pub const PING_SIZES: &[u16] = &[
    0, 1, 8, 56, 511, 1280, 1390, 1405, 1406, 1407, 1408, 1409, 1410, 1411, 1412, 1438, 1444, 1472, 1473, 2000, 4000,
    8000, 12000, 20000,
];

/// Longest time without progress of a stream.
const STALL: Duration = Duration::from_secs(10);

/// A shell script that pings `to` once with each of `sizes` payload bytes and fails if an answer is missing or altered.
#[must_use]
pub fn ping_script(to: IpAddr, sizes: &[u16]) -> String {
    let sizes: Vec<String> = sizes.iter().map(u16::to_string).collect();
    format!(
        "status=0
        for size in {}; do
            said=$(ping -n -c 1 -W 10 -s $size {to} 2>&1) || {{ status=1; echo \"size $size: $said\"; }}
            case $said in *wrong*) status=1; echo \"size $size: $said\";; esac
        done
        exit $status",
        sizes.join(" ")
    )
}

/// A SHA-256 sum, written as `sha256sum` does.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Digest(String);

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The sum of `data`.
#[must_use]
pub fn digest(data: &[u8]) -> Digest {
    let mut context = Context::new(&SHA256);
    context.update(data);
    Digest(context.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// `len` pseudo-random bytes, the same in each run (xorshift).
#[must_use]
pub fn blob(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// A listening TCP socket in a namespace, for one connection.
#[derive(Debug)]
pub struct Endpoint(TcpListener);

impl Endpoint {
    /// Listens at `address`; port 0 takes a free one.
    ///
    /// # Errors
    /// The address cannot be bound.
    pub fn listen(netns: &Netns, address: SocketAddr) -> Outcome<Self> {
        let listener = netns.enter(|| TcpListener::bind(address)).map_err(|error| format!("{address}: {error}"))?;
        listener.set_nonblocking(true)?;
        Ok(Self(listener))
    }

    /// Address of the listening socket.
    ///
    /// # Errors
    /// Error of the kernel.
    pub fn address(&self) -> Outcome<SocketAddr> {
        Ok(self.0.local_addr()?)
    }

    /// Accepts one connection and reads it to the end.
    ///
    /// # Errors
    /// No client connects, or the stream breaks off or stalls.
    pub fn receive(&self) -> Outcome<Vec<u8>> {
        let mut data = Vec::new();
        self.accept()?.read_to_end(&mut data).map_err(|error| format!("after {} bytes: {error}", data.len()))?;
        Ok(data)
    }

    /// Accepts one connection and writes `data` to it.
    ///
    /// # Errors
    /// As [`Self::receive`].
    pub fn send(&self, data: &[u8]) -> Outcome {
        self.accept()?.write_all(data)?;
        Ok(())
    }

    fn accept(&self) -> Outcome<TcpStream> {
        let deadline = Instant::now() + STALL;
        let stream = loop {
            match self.0.accept() {
                Ok((stream, _)) => break stream,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < deadline => {
                    thread::sleep(Duration::from_millis(5));
                }
                Err(error) => return Err(format!("no connection: {error}").into()),
            }
        };
        stream.set_nonblocking(false)?;
        with_timeouts(stream)
    }
}

/// Sends `len` bytes over TCP from one namespace to `address` in another and compares the received bytes.
///
/// # Errors
/// No connection, a stalled stream, or a sum that differs.
pub fn transfer(from: &Netns, (to, address): (&Netns, IpAddr), len: usize) -> Outcome {
    let endpoint = Endpoint::listen(to, SocketAddr::new(address, 0))?;
    let target = endpoint.address()?;
    let data = blob(len);
    let received = thread::scope(|scope| {
        let receiver = scope.spawn(|| endpoint.receive());
        let sent = from.enter(|| -> Outcome {
            with_timeouts(TcpStream::connect_timeout(&target, STALL)?)?.write_all(&data)?;
            Ok(())
        });
        let received = receiver.join().unwrap_or_else(|_| Err("the receiver panicked".into()));
        sent.and(received)
    })?;
    if digest(&received) == digest(&data) {
        Ok(())
    } else {
        Err(format!("{len} bytes sent to {address}, {} others arrived", received.len()).into())
    }
}

/// Sends over one TCP connection from one namespace to `address` in another until `meanwhile` is done, a few kilobytes
/// every 2 ms, and compares the number of bytes that have arrived.
///
/// # Errors
/// Errors of `meanwhile`; no connection, a reset, a stalled stream, or bytes that are missing.
pub fn transfer_during(
    from: &Netns,
    (to, address): (&Netns, IpAddr),
    meanwhile: impl FnOnce() -> Outcome,
) -> Outcome<usize> {
    let endpoint = Endpoint::listen(to, SocketAddr::new(address, 0))?;
    let target = endpoint.address()?;
    let over = AtomicBool::new(false);
    let (done, sent, received) = thread::scope(|scope| {
        let receiver = scope.spawn(|| endpoint.receive());
        let sender = scope.spawn(|| {
            from.enter(|| -> Outcome<usize> {
                let mut stream = with_timeouts(TcpStream::connect_timeout(&target, STALL)?)?;
                let (data, mut sent) = (blob(4096), 0);
                while !over.load(Ordering::Relaxed) {
                    stream.write_all(&data).map_err(|error| format!("after {sent} bytes: {error}"))?;
                    sent += data.len();
                    thread::sleep(Duration::from_millis(2));
                }
                Ok(sent)
            })
        });
        let done = meanwhile();
        over.store(true, Ordering::Relaxed);
        let panicked = |_| Err("a thread of the stream panicked".into());
        (
            done,
            sender.join().unwrap_or_else(panicked),
            receiver.join().unwrap_or_else(|_| Err("the receiver panicked".into())),
        )
    });
    done?;
    let (sent, received) = (sent?, received?.len());
    if received == sent { Ok(sent) } else { Err(format!("{sent} bytes sent, {received} arrived").into()) }
}

/// Longest time between two answers to a ping each 2 ms from one namespace to `address` until `meanwhile` is done.
///
/// # Errors
/// Errors of `meanwhile`; too few answers.
pub fn longest_gap(
    from: &Netns,
    address: IpAddr,
    scratch: &Scratch,
    meanwhile: impl FnOnce() -> Outcome,
) -> Outcome<Duration> {
    let mut ping = from.command("ping");
    let ping = Process::spawn(ping.args(["-n", "-D", "-i", "0.002", "-W", "1"]).arg(address.to_string()), scratch)?;
    let answers = |output: &str| -> Vec<f64> {
        let times = output.lines().filter(|line| line.contains("bytes from"));
        times.filter_map(|line| line.strip_prefix('[')?.split_once(']')?.0.parse().ok()).collect()
    };
    wait_until("pings are answered", STALL, || answers(&ping.output()).len() > 20)?;
    meanwhile()?;
    let before = answers(&ping.output()).len();
    wait_until("pings are answered afterwards", STALL, || answers(&ping.output()).len() > before + 20)?;
    let times = answers(&ping.output());
    let longest = times.windows(2).map(|pair| pair[1] - pair[0]).fold(0.0, f64::max);
    Ok(Duration::from_secs_f64(longest))
}

/// Largest burst of datagrams after a delay of the sender.
const CATCH_UP: u64 = 100;

/// Sends numbered UDP datagrams of `len` bytes, at most `rate` a second, from one namespace to `address` in another
/// until `meanwhile` is done, and fails unless each has arrived, once. Returns their number.
///
/// # Errors
/// Errors of `meanwhile`; datagrams that are lost or duplicated.
pub fn lossless(
    from: &Netns,
    (to, address): (&Netns, IpAddr),
    (len, rate): (usize, u32),
    meanwhile: impl FnOnce() -> Outcome,
) -> Outcome<u64> {
    let counts = numbered(from, (to, address), (len, rate), meanwhile)?;
    let wrong: Vec<String> = (0..)
        .zip(&counts)
        .filter(|&(_, &count)| count != 1)
        .map(|(at, count): (u64, _)| format!("{at}: {count}"))
        .collect();
    if wrong.is_empty() {
        return Ok(counts.len() as u64);
    }
    let some = wrong[..wrong.len().min(20)].join(", ");
    Err(format!("of {} datagrams {} came not once: {some}", counts.len(), wrong.len()).into())
}

/// Sends numbered UDP datagrams as [`lossless`] does, and returns for each the number of its arrivals.
///
/// # Errors
/// Errors of `meanwhile`.
pub fn numbered(
    from: &Netns,
    (to, address): (&Netns, IpAddr),
    (len, rate): (usize, u32),
    meanwhile: impl FnOnce() -> Outcome,
) -> Outcome<Vec<u32>> {
    let receiving = to.enter(|| UdpSocket::bind((address, 0)))?;
    set_socket_recv_buffer_size_force(&receiving, 64 << 20)?;
    receiving.set_read_timeout(Some(Duration::from_millis(500)))?;
    let target = receiving.local_addr()?;
    let sending = from.enter(|| -> io::Result<UdpSocket> {
        let socket = UdpSocket::bind((if address.is_ipv4() { "0.0.0.0" } else { "::" }, 0))?;
        socket.connect(target)?;
        Ok(socket)
    })?;
    let (over, sent) = (AtomicBool::new(false), AtomicU64::new(0));
    let send = || -> io::Result<()> {
        let (start, mut skipped, mut datagram) = (Instant::now(), 0, vec![0; len.max(8)]);
        while !over.load(Ordering::Acquire) {
            let due = (start.elapsed().as_secs_f64() * f64::from(rate)) as u64;
            let late = due.saturating_sub(skipped + sent.load(Ordering::Relaxed));
            skipped += late.saturating_sub(CATCH_UP);
            for _ in 0..late.min(CATCH_UP) {
                datagram[..8].copy_from_slice(&sent.fetch_add(1, Ordering::AcqRel).to_be_bytes());
                sending.send(&datagram)?;
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    };
    let receive = || -> io::Result<Vec<u32>> {
        let (mut counts, mut datagram) = (Vec::new(), vec![0; len.max(8)]);
        loop {
            match receiving.recv(&mut datagram) {
                Ok(_) => {
                    let number = datagram.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes)) as usize;
                    counts.resize(counts.len().max(number + 1), 0);
                    counts[number] += 1;
                }
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                    if over.load(Ordering::Acquire) {
                        return Ok(counts);
                    }
                }
                Err(error) => return Err(error),
            }
        }
    };
    let (done, was_sent, counts) = thread::scope(|scope| {
        let (sender, receiver) = (scope.spawn(send), scope.spawn(receive));
        let done = meanwhile();
        over.store(true, Ordering::Release);
        let panicked = |_| Err(io::Error::other("panicked"));
        (
            done,
            sender.join().unwrap_or_else(panicked),
            receiver.join().unwrap_or_else(|_| Err(io::Error::other("panicked"))),
        )
    });
    done?;
    was_sent?;
    let (sent, mut counts) = (sent.into_inner(), counts?);
    counts.resize(counts.len().max(sent as usize), 0);
    Ok(counts)
}

fn with_timeouts(stream: TcpStream) -> Outcome<TcpStream> {
    stream.set_read_timeout(Some(STALL))?;
    stream.set_write_timeout(Some(STALL))?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_reads_as_sha256sum_prints_it() {
        // FIPS 180-2, appendix B.1.
        let want = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(digest(b"abc").to_string(), want);
    }

    #[test]
    fn a_blob_has_the_length_asked_for_and_repeats() {
        for len in [0, 1, 7, 8, 9, 4096] {
            assert_eq!(blob(len).len(), len);
        }
        assert_eq!(blob(100)[..50], blob(50));
    }
}
