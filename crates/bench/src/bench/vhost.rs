//! `fatpath bench vhost`: frames over vhost-user from a front end in this process to a back end in another process,
//! which drops them.
//!
//! - `large`: TCP super-packets of 64 KiB with a virtio-net header that requests segmentation and a checksum.
//! - `small`: frames of 64 bytes.
//! - `copy-large`, `copy-small`: as many bytes of the same sizes, copied into buffers by one thread and out of them by
//!   another: the minimum work of a front end and a back end. The buffers equal those of a ring in number and length.
//! - `idle`: a back end with eight guests that send nothing, for 33 slices (by default two seconds): `cpu_us` is its
//!   CPU time, `wakeups` the number of its wake-ups. A process that does not wake makes no system call.

use std::fs;
use std::hint::black_box;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};

use client::{CliError, print};
use link::vhost::{self, FrontConfig, VhostConfig, VhostFront};
use link::{Link, Sent};
use packet::{Allocations, Csum, Cut, Gso, GsoKind, Memory, Packet};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use wire::{MacAddr, Protocol, ipv4, tcp};

use super::case::{Comparison, Group, Plan, Round, Sample};
use super::cpu;

/// Address of the links, which has no effect.
const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 9]);

/// Lengths of the frames; the large one is Linux's maximum.
const LARGE: usize = 65_535;
const SMALL: usize = 64;

/// Number of frames that are sent at once.
const BURST: usize = 32;

/// Number of buffers of a ring, and the bytes of each (`link::vhost`).
const BUFFERS: usize = 256;
const BUFFER_LEN: usize = 68 << 10;

/// Number of guests of the case `idle`, and its number of slices.
const GUESTS: usize = 8;
const IDLE_SLICES: u32 = 33;

/// Limit of waits for the other process.
const PATIENCE: Duration = Duration::from_secs(10);

const RATIOS: &[Comparison] = &[
    Comparison { of: "large/copy-large", over: &["large"], under: &["copy-large"], figure: None },
    Comparison { of: "small/copy-small", over: &["small"], under: &["copy-small"], figure: None },
];

/// Every case.
pub(super) fn groups() -> Vec<Group> {
    let cases = vec![
        Plan::played("large", |round| stream(round, LARGE)),
        Plan::played("copy-large", |round| Ok(copies(round, LARGE))),
        Plan::played("small", |round| stream(round, SMALL)),
        Plan::played("copy-small", |round| Ok(copies(round, SMALL))),
        Plan::played("idle", idle),
    ];
    vec![Group { name: "vhost".to_owned(), cases, ratios: RATIOS }]
}

/// A sample of `packets` frames of `len` bytes in `time`.
fn sample(packets: u64, len: usize, time: Duration) -> Sample {
    let nanos = time.as_nanos() as f64 / packets as f64;
    let mpps = (len == SMALL).then_some(1e3 / nanos);
    Sample { nanos, gbps: len as f64 * 8.0 / nanos, ns_per_packet: nanos, mpps, ..Sample::default() }
}

/// Sends frames for a slice, and checks that all arrive.
fn stream(round: Round, len: usize) -> Result<Sample, String> {
    let text_of = |err: std::io::Error| err.to_string();
    let mut back = BackEnd::start(1)?;
    let mut front = connected(&back.sockets[0])?;
    let mem = Memory::heap();
    let mut first = frame(&mem, len)?;
    let mut burst = Vec::with_capacity(BURST);
    let mut received = Vec::new();
    // Every ring entry has been used, and pools have reached their size.
    let mut begin = None;
    let mut turns = 0;
    loop {
        if turns == 2 * BUFFERS / BURST {
            begin = Some((front.stats().tx_packets, Allocations::count(), mem.copies().total_bytes(), Instant::now()));
        }
        turns += 1;
        if begin.is_some_and(|(.., begin)| begin.elapsed() >= round.slice) {
            break;
        }
        while burst.len() < BURST {
            burst.push(first.clone_shared());
        }
        if front.send(&mut burst).map_err(text_of)? != Sent::All {
            wait(&front.poll_fds())?;
            front.recv(&mem, &mut received).map_err(text_of)?;
        }
        front.settle(&mem);
    }
    let Some((packets, allocations, copied, begin)) = begin else { return Err("no time".to_owned()) };
    let time = begin.elapsed();
    let sent = front.stats().tx_packets;
    let counted = sent - packets;
    if counted == 0 || front.stats().tx_dropped > 0 {
        return Err(format!("{counted} frames are sent, and {} dropped", front.stats().tx_dropped));
    }
    let allocations = Allocations::count() - allocations;
    let copied = mem.copies().total_bytes() - copied;
    let there = back.end()?;
    if (there.packets, there.bytes) != (sent, sent * len as u64) {
        return Err(format!("{} frames of {sent} arrive, with {} bytes", there.packets, there.bytes));
    }
    Ok(Sample {
        // Copies of both processes.
        copied_bytes_per_byte: copied as f64 / (counted * len as u64) as f64 + there.copied as f64 / there.bytes as f64,
        allocs_per_packet: allocations as f64 / counted as f64,
        ..sample(counted, len, time)
    })
}

/// Copies bytes into buffers on this thread, and out of them on another.
fn copies(round: Round, len: usize) -> Sample {
    let from = vec![1_u8; len];
    let (fill, filled) = mpsc::channel::<Vec<Vec<u8>>>();
    let (empty, emptied) = mpsc::channel();
    for _ in 0..BUFFERS / BURST {
        // The receiver exists.
        let _ = empty.send(vec![vec![0; BUFFER_LEN]; BURST]);
    }
    let mut packets = 0;
    let mut time = Duration::ZERO;
    thread::scope(|scope| {
        scope.spawn(move || {
            cpu::step_aside();
            let mut to = vec![0_u8; len];
            while let Some(batch) = next(&filled) {
                for buffer in &batch {
                    to.copy_from_slice(&buffer[..len]);
                    black_box(&mut to);
                }
                let _ = empty.send(batch);
            }
        });
        let begin = Instant::now();
        while time < round.slice || packets == 0 {
            let Some(mut batch) = next(&emptied) else { break };
            for buffer in &mut batch {
                buffer[..len].copy_from_slice(&from);
            }
            packets += batch.len() as u64;
            let _ = fill.send(batch);
            time = begin.elapsed();
        }
        drop(fill);
    });
    Sample { copied_bytes_per_byte: 2.0, ..sample(packets, len, time) }
}

/// The next batch, by busy-polling; `None` after the last.
fn next<T>(receiver: &Receiver<T>) -> Option<T> {
    loop {
        match receiver.try_recv() {
            Ok(batch) => return Some(batch),
            Err(TryRecvError::Empty) => thread::yield_now(),
            Err(TryRecvError::Disconnected) => return None,
        }
    }
}

/// Measures a back end with idle guests.
fn idle(round: Round) -> Result<Sample, String> {
    let mut back = BackEnd::start(GUESTS)?;
    let fronts: Vec<VhostFront> = back.sockets.iter().map(|socket| connected(socket)).collect::<Result<_, _>>()?;
    // Waits for the handshakes.
    thread::sleep(Duration::from_millis(50));
    let time = round.slice * IDLE_SLICES;
    let before = back.spent()?;
    thread::sleep(time);
    let after = back.spent()?;
    drop(fronts);
    back.end()?;
    let cpu_us = (after.nanos - before.nanos) as f64 / 1e3;
    let wakeups = (after.wakeups - before.wakeups) as f64;
    let more =
        vec![("guests", GUESTS as f64), ("seconds", time.as_secs_f64()), ("cpu_us", cpu_us), ("wakeups", wakeups)];
    Ok(Sample { more, ..Sample::default() })
}

/// A frame of `len` bytes; a TCP super-packet for a large one.
fn frame(mem: &Memory, len: usize) -> Result<Packet, String> {
    let headers = 14 + ipv4::Ipv4Header::LEN + tcp::TcpHeader::LEN;
    let mut ip = ipv4::Ipv4Header::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), Protocol::TCP, (len - 14) as u16);
    ip.fill_check();
    let mut bytes = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    bytes.extend_from_slice(ip.as_bytes());
    bytes.extend_from_slice(tcp::TcpHeader::new(1, 2, 3, 4).as_bytes());
    bytes.resize(len, 1);
    let mut buf = mem.take(Memory::HEADROOM, len).map_err(|_| "no memory")?;
    buf.put(len).ok_or("no memory")?.copy_from_slice(&bytes);
    let mut packet = Packet::from_buf(buf);
    packet.meta.csum = Csum::Partial { start: 34, offset: 16 };
    if len == LARGE {
        let segs = (len - headers).div_ceil(1460) as u16;
        packet.meta.cut = Cut::Gso(Gso { kind: GsoKind::TcpV4, size: 1460, segs, ecn: false, fixed_id: false });
    }
    Ok(packet)
}

/// A front end that is connected to the back end's socket.
fn connected(socket: &Path) -> Result<VhostFront, String> {
    let mut front = vhost::open_front(&FrontConfig::new("front", socket, MAC)).map_err(|err| err.to_string())?;
    let mem = Memory::heap();
    while !front.guest().running {
        wait(&front.poll_fds())?;
        front.recv(&mem, &mut Vec::new()).map_err(|err| err.to_string())?;
    }
    while front.send(&mut Vec::new()).map_err(|err| err.to_string())? == Sent::Refit {}
    Ok(front)
}

/// Waits until one of the descriptors is readable.
fn wait(fds: &[BorrowedFd<'_>]) -> Result<(), String> {
    let limit = Timespec::try_from(PATIENCE).map_err(|err| err.to_string())?;
    let mut fds: Vec<PollFd<'_>> = fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    match poll(&mut fds, Some(&limit)) {
        Ok(0) => Err("the back end does nothing for ten seconds".to_owned()),
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(err) => Err(err.to_string()),
    }
}

/// The back end process; killed on drop.
struct BackEnd {
    child: Child,
    /// Standard input, whose close ends the process.
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    sockets: Vec<PathBuf>,
}

/// CPU time of a back end, and its number of sleeps.
struct Spent {
    nanos: u64,
    wakeups: u64,
}

/// Counters printed by a back end.
#[derive(Clone, Copy, Debug, Default)]
struct Received {
    packets: u64,
    bytes: u64,
    copied: u64,
}

impl BackEnd {
    /// Starts a back end with `ports` ports, off the measured CPU.
    fn start(ports: usize) -> Result<Self, String> {
        let text_of = |err: std::io::Error| format!("back end: {err}");
        let own = std::process::id();
        let path = |port| std::env::temp_dir().join(format!("fatpath-bench-vhost-{own}-{port}.sock"));
        let sockets: Vec<PathBuf> = (0..ports).map(path).collect();
        let mut command = Command::new(std::env::current_exe().map_err(text_of)?);
        command.arg("vhost-back-end").args(&sockets).stdin(Stdio::piped()).stdout(Stdio::piped());
        // A process starts on the CPUs of the thread that starts it.
        let spawn = move || {
            cpu::step_aside();
            command.spawn()
        };
        let mut child = thread::spawn(spawn).join().map_err(|_| "back end: no thread")?.map_err(text_of)?;
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().ok_or("back end: no output")?);
        let mut back = Self { child, input, output, sockets };
        let mut line = String::new();
        back.output.read_line(&mut line).map_err(text_of)?;
        if line == "ready\n" { Ok(back) } else { Err(format!("back end: {line:?}")) }
    }

    /// Ends the back end after it has received all frames.
    fn end(&mut self) -> Result<Received, String> {
        self.input = None;
        let mut text = String::new();
        self.output.read_to_string(&mut text).map_err(|err| format!("back end: {err}"))?;
        let numbers: Vec<u64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        let [packets, bytes, copied] = numbers[..] else { return Err(format!("back end: {text:?}")) };
        Ok(Received { packets, bytes, copied })
    }

    /// CPU time and wake-ups of the process so far (proc(5)).
    fn spent(&self) -> Result<Spent, String> {
        let read = |name| {
            let path = format!("/proc/{}/{name}", self.child.id());
            fs::read_to_string(&path).map_err(|err| format!("{path}: {err}"))
        };
        let nanos = read("schedstat")?;
        let nanos = nanos.split(' ').next().and_then(|number| number.parse().ok());
        let status = read("status")?;
        let wakeups = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        let wakeups = wakeups.and_then(|number| number.trim().parse().ok());
        match (nanos, wakeups) {
            (Some(nanos), Some(wakeups)) => Ok(Spent { nanos, wakeups }),
            _ => Err("back end: no figures of its process".to_owned()),
        }
    }
}

impl Drop for BackEnd {
    fn drop(&mut self) {
        self.input = None;
        let _ = self.child.kill();
        let _ = self.child.wait();
        for socket in &self.sockets {
            // The process removes the files itself unless it was killed.
            let _ = fs::remove_file(socket);
        }
    }
}

/// The back end: receives from its sockets, drops the frames, and prints their number at the end of its standard input.
///
/// # Errors
/// A socket cannot be created, or a front end violates the protocol.
pub(crate) fn back_end(sockets: &[PathBuf]) -> Result<(), CliError> {
    let text_of = |err: &dyn std::fmt::Display| CliError::failed(err.to_string());
    let open = |socket: &PathBuf| vhost::open(&VhostConfig::new("back", socket, MAC)).map_err(|err| text_of(&err));
    let mut links = sockets.iter().map(open).collect::<Result<Vec<_>, _>>()?;
    print(b"ready\n")?;
    std::io::stdout().flush().map_err(|err| text_of(&err))?;
    let mem = Memory::heap();
    let input = std::io::stdin();
    let mut received = Received::default();
    let mut burst = Vec::new();
    loop {
        let ready: Vec<bool> = {
            let fds = links.iter().flat_map(Link::poll_fds).chain([input.as_fd()]);
            let mut fds: Vec<PollFd<'_>> = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
            match poll(&mut fds, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(err) => return Err(text_of(&err)),
            }
            fds.iter().map(|fd| !fd.revents().is_empty()).collect()
        };
        let is_over = ready.last() == Some(&true);
        for (link, _) in links.iter_mut().zip(ready).filter(|&(_, ready)| ready || is_over) {
            loop {
                match link.recv(&mem, &mut burst) {
                    Ok(()) => {}
                    Err(_) if !link.guest().connected && link.guest().violations == 0 => {}
                    Err(err) => return Err(text_of(&err)),
                }
                if burst.is_empty() {
                    break;
                }
                for packet in burst.drain(..) {
                    received.packets += 1;
                    received.bytes += packet.len() as u64;
                }
            }
        }
        if is_over {
            received.copied = mem.copies().total_bytes();
            let Received { packets, bytes, copied } = received;
            return print(format!("{packets} {bytes} {copied}\n").as_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_counted_once_for_each_buffer() {
        let round = Round { number: 0, slice: Duration::from_millis(5) };
        for len in [LARGE, SMALL] {
            let sample = copies(round, len);
            assert!(sample.gbps > 0.0 && sample.nanos.is_finite(), "{sample:?}");
            assert_eq!(sample.mpps.is_some(), len == SMALL);
        }
    }

    #[test]
    fn frames_are_as_long_as_a_ring_has_room_for() {
        let mem = Memory::heap();
        const { assert!(LARGE + 12 <= BUFFER_LEN) };
        let shape = |len| frame(&mem, len).map(|packet| (packet.len(), packet.meta.cut.gso().map(|gso| gso.segs)));
        assert_eq!(shape(LARGE), Ok((LARGE, Some(45))));
        assert_eq!(shape(SMALL), Ok((SMALL, None)));
    }
}
