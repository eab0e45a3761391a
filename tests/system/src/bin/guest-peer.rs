//! Traffic of a guest, checked byte by byte. It runs where there is little more than a kernel, so it uses the standard
//! library alone.
//!
//! - `serve`: answers the other commands, at port 5000 of all addresses.
//! - `ask ADDR`: datagrams of many sizes, which must be returned unchanged.
//! - `send ADDR BYTES`, `fetch ADDR BYTES`: a TCP stream to the peer, or from it. Prints its rate.
//! - `keep ADDR FILE`: parts of one TCP stream that the peer echoes, until the file exists. Prints a number every 100
//!   ms in which parts were returned, and at the end their count and the longest round trip.

use std::error::Error;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::time::{Duration, Instant};
use std::{env, thread};

const PORT: u16 = 5000;

/// Longest time without progress of a stream.
const STALL: Duration = Duration::from_secs(60);

/// Bytes of the datagrams of `ask`.
const LENGTHS: [usize; 8] = [1, 100, 1400, 1472, 1473, 4000, 9000, 30000];

/// Number of transmissions of a datagram before it counts as lost.
const ATTEMPTS: u32 = 20;

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

fn main() -> Outcome {
    let words: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["serve"] => serve(),
        ["ask", addr] => ask(addr.parse()?),
        ["send", addr, len] => stream(addr.parse()?, SEND, len.parse()?),
        ["fetch", addr, len] => stream(addr.parse()?, FETCH, len.parse()?),
        ["keep", addr, until] => keep(addr.parse()?, Path::new(until)),
        _ => Err("serve, ask ADDR, send ADDR BYTES, fetch ADDR BYTES or keep ADDR FILE".into()),
    }
}

/// First byte of a connection: the client sends, the client receives, or the server echoes.
const SEND: u8 = b's';
const FETCH: u8 = b'f';
const KEEP: u8 = b'k';

/// Bytes of a part of `keep`.
const PART: usize = 20_000;

/// Time between two parts of `keep`, long enough for an emulated processor.
const PAUSE: Duration = Duration::from_millis(20);

/// Pseudo-random numbers, the same in each run (xorshift).
struct Pattern {
    state: u64,
    block: Vec<u8>,
}

impl Pattern {
    fn new() -> Self {
        Self { state: 0x9e37_79b9_7f4a_7c15, block: vec![0; 1 << 17] }
    }

    /// The next bytes, as many as `block` has.
    fn next(&mut self) -> &[u8] {
        for word in self.block.chunks_exact_mut(8) {
            self.state ^= self.state << 13;
            self.state ^= self.state >> 7;
            self.state ^= self.state << 17;
            word.copy_from_slice(&self.state.to_le_bytes());
        }
        &self.block
    }
}

fn write_pattern(to: &mut TcpStream, len: u64) -> Outcome {
    let (mut pattern, mut left) = (Pattern::new(), len);
    while left > 0 {
        let block = pattern.next();
        let part = &block[..block.len().min(usize::try_from(left)?)];
        to.write_all(part)?;
        left -= part.len() as u64;
    }
    Ok(())
}

fn read_pattern(from: &mut TcpStream, len: u64) -> Outcome {
    let (mut pattern, mut left) = (Pattern::new(), len);
    let mut got = vec![0; pattern.block.len()];
    while left > 0 {
        let want = pattern.next();
        let want = &want[..want.len().min(usize::try_from(left)?)];
        let got = &mut got[..want.len()];
        from.read_exact(got).map_err(|error| format!("{left} of {len} bytes are missing: {error}"))?;
        if got != want {
            let at = got.iter().zip(want).take_while(|(got, want)| got == want).count() as u64;
            return Err(format!("byte {} of {len} is another", len - left + at).into());
        }
        left -= want.len() as u64;
    }
    Ok(())
}

fn serve() -> Outcome {
    let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, PORT));
    let datagrams = UdpSocket::bind(any)?;
    thread::spawn(move || {
        let mut buffer = vec![0; 65536];
        loop {
            // The peer repeats a request whose answer could not be sent.
            if let Ok((len, peer)) = datagrams.recv_from(&mut buffer) {
                let _ = datagrams.send_to(&buffer[..len], peer);
            }
        }
    });
    for connection in TcpListener::bind(any)?.incoming() {
        let connection = connection?;
        thread::spawn(move || answer(connection).unwrap_or_else(|error| println!("{error}")));
    }
    Ok(())
}

fn answer(mut connection: TcpStream) -> Outcome {
    connection.set_nodelay(true)?;
    let mut request = [0; 9];
    connection.read_exact(&mut request)?;
    let len = u64::from_be_bytes(*request.last_chunk().ok_or("nine bytes have eight")?);
    match request[0] {
        SEND => {
            let outcome = read_pattern(&mut connection, len).err().map_or("ok".to_owned(), |error| error.to_string());
            connection.write_all(outcome.as_bytes())?;
        }
        FETCH => write_pattern(&mut connection, len)?,
        KEEP => {
            let mut part = vec![0; PART];
            loop {
                connection.read_exact(&mut part)?;
                connection.write_all(&part)?;
            }
        }
        _ => return Err("an unknown request".into()),
    }
    Ok(())
}

fn connect(addr: IpAddr, request: u8, len: u64) -> Outcome<TcpStream> {
    let mut connection = TcpStream::connect_timeout(&SocketAddr::new(addr, PORT), STALL)?;
    connection.set_nodelay(true)?;
    connection.set_read_timeout(Some(STALL))?;
    connection.set_write_timeout(Some(STALL))?;
    connection.write_all(&[&[request][..], &len.to_be_bytes()].concat())?;
    Ok(connection)
}

fn stream(addr: IpAddr, request: u8, len: u64) -> Outcome {
    let begin = Instant::now();
    let mut connection = connect(addr, request, len)?;
    if request == SEND {
        write_pattern(&mut connection, len)?;
        let mut printed = String::new();
        connection.read_to_string(&mut printed)?;
        if printed != "ok" {
            return Err(printed.into());
        }
    } else {
        read_pattern(&mut connection, len)?;
    }
    let seconds = begin.elapsed().as_secs_f64();
    println!("{len} bytes in {seconds:.2} s, {:.2} Gb/s", len as f64 * 8e-9 / seconds);
    Ok(())
}

fn ask(addr: IpAddr) -> Outcome {
    let any: IpAddr = if addr.is_ipv4() { [0; 4].into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect((addr, PORT))?;
    socket.set_read_timeout(Some(Duration::from_secs(1)))?;
    let (mut pattern, mut buffer) = (Pattern::new(), vec![0; 65536]);
    for len in LENGTHS {
        let sent = &pattern.next()[..len];
        let mut attempts = 0;
        while let Err(error) = exchange(&socket, sent, &mut buffer) {
            attempts += 1;
            if attempts == ATTEMPTS || !is_passing(&error) {
                return Err(format!("{len} bytes by UDP: {error}").into());
            }
            thread::sleep(PAUSE * 10);
        }
        if buffer[..len] != *sent {
            return Err(format!("{len} bytes by UDP came back as others").into());
        }
    }
    Ok(())
}

/// Sends a datagram, and receives one of the same length. Datagrams of other lengths are late replies.
fn exchange(socket: &UdpSocket, sent: &[u8], buffer: &mut [u8]) -> io::Result<()> {
    socket.send(sent)?;
    while socket.recv(buffer)? != sent.len() {}
    Ok(())
}

/// Tells whether the error may be temporary: a timeout, no listener yet, or a datagram longer than the path MTU, which
/// the kernel has learnt by now (EMSGSIZE).
fn is_passing(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, TimedOut, WouldBlock};
    matches!(error.kind(), WouldBlock | TimedOut | ConnectionRefused) || error.raw_os_error() == Some(90)
}

fn keep(addr: IpAddr, until: &Path) -> Outcome {
    let mut connection = connect(addr, KEEP, 0)?;
    let (mut pattern, mut got) = (Pattern::new(), vec![0; PART]);
    let (mut parts, mut longest, mut logged) = (0_u64, Duration::ZERO, None::<Instant>);
    while !until.exists() {
        let begin = Instant::now();
        let sent = &pattern.next()[..PART];
        connection.write_all(sent)?;
        connection.read_exact(&mut got)?;
        if got != sent {
            return Err(format!("part {parts} came back as another").into());
        }
        parts += 1;
        longest = longest.max(begin.elapsed());
        if logged.is_none_or(|logged| logged.elapsed() > Duration::from_millis(100)) {
            println!("{parts}");
            logged = Some(Instant::now());
        }
        thread::sleep(PAUSE);
    }
    println!("{parts} parts, the longest {} ms", longest.as_millis());
    Ok(())
}
