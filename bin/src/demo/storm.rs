//! Changes of routes and SAs beside a stream: the system's `ip` at each gateway, told what to do at a steady pace.

use std::io::{self, ErrorKind, Write};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::failure::Failure;
use super::gateway::Gateway;
use super::process::{Scratch, command, end, finish};
use super::stop::Stop;
use super::topology::Side;

/// Routes and SAs that are there at any time.
const KEPT: u64 = 256;
/// Addresses of 198.18.0.0/15, which is for benchmarks (RFC 2544, appendix C.2.2).
const ADDRESSES: u64 = 1 << 17;
/// How often `ip` is given what is due.
const PACE: Duration = Duration::from_millis(5);
/// How long `ip` may take for what it has been given when the stream is over.
const DRAIN_LIMIT: Duration = Duration::from_secs(10);

/// The storm at both gateways, ended on drop.
#[derive(Debug)]
pub(super) struct Storm {
    ends: Vec<End>,
    start: Instant,
}

/// One `ip` and the thread that feeds it.
#[derive(Debug)]
struct End {
    ip: Option<Child>,
    feeder: Option<JoinHandle<io::Result<()>>>,
    over: Arc<AtomicBool>,
    changes: Arc<AtomicU64>,
}

impl Storm {
    /// Begins `rate` changes a second at each of the gateways.
    pub(super) fn start(gateways: &[Gateway; 2], scratch: &Scratch, rate: u32) -> Result<Self, Failure> {
        let ends = gateways.iter().map(|gateway| End::start(gateway, scratch, rate)).collect::<Result<_, _>>()?;
        Ok(Self { ends, start: Instant::now() })
    }

    /// Ends it, and tells how many changes a second there were at each gateway.
    pub(super) fn end(mut self, stop: &Stop) -> Result<f64, Failure> {
        let seconds = self.start.elapsed().as_secs_f64();
        let changes: u64 = self.ends.iter().map(|end| end.changes.load(Ordering::Relaxed)).sum();
        let rate = changes as f64 / self.ends.len() as f64 / seconds;
        self.ends.drain(..).try_for_each(|end| end.finish(stop))?;
        Ok(rate)
    }
}

impl End {
    fn start(gateway: &Gateway, scratch: &Scratch, rate: u32) -> Result<Self, Failure> {
        let mut command = command("/proc/self/exe");
        command.args(["ip", "--instance", gateway.instance(), "-batch", "-"]).env("FATPATH_RUNDIR", scratch.path());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut ip = command.spawn().map_err(|err| Failure::step("ip -batch", err))?;
        let stdin = ip.stdin.take();
        let (over, changes) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let feeder = stdin.map(|stdin| {
            let (over, changes) = (over.clone(), changes.clone());
            thread::spawn(move || feed(stdin, rate, &over, &changes))
        });
        Ok(Self { ip: Some(ip), feeder, over, changes })
    }

    fn finish(mut self, stop: &Stop) -> Result<(), Failure> {
        let fed = self.stop_feeding();
        if let Some(ip) = self.ip.take() {
            finish(ip, "ip -batch", DRAIN_LIMIT, stop)?;
        }
        fed.map_err(|err| Failure::step("feed ip -batch", err))
    }

    /// Closes its input. That it has ended by itself shows in its status.
    fn stop_feeding(&mut self) -> io::Result<()> {
        self.over.store(true, Ordering::Relaxed);
        match self.feeder.take().map(JoinHandle::join) {
            Some(Ok(Err(err))) if err.kind() != ErrorKind::BrokenPipe => Err(err),
            Some(Err(_)) => Err(io::Error::other("the thread that feeds it panicked")),
            _ => Ok(()),
        }
    }
}

impl Drop for End {
    fn drop(&mut self) {
        if let Some(mut ip) = self.ip.take() {
            // First, so that the feeder does not wait for it.
            end(&mut ip);
        }
        // A storm that is given up has nothing more to say.
        let _ = self.stop_feeding();
    }
}

/// Writes what is due, until it is over.
fn feed(mut ip: impl Write, rate: u32, over: &AtomicBool, changes: &AtomicU64) -> io::Result<()> {
    let (start, mut step, mut done) = (Instant::now(), 0, 0);
    while !over.load(Ordering::Relaxed) {
        let due = (start.elapsed().as_secs_f64() * f64::from(rate)) as u64;
        let mut lines = String::new();
        while done < due {
            done += changes_of(step, &mut lines);
            step += 1;
        }
        ip.write_all(lines.as_bytes())?;
        changes.store(done, Ordering::Relaxed);
        thread::sleep(PACE);
    }
    Ok(())
}

/// The lines of one step, a route and an SA that come and, once there are enough, a route and an SA that go; tells how many.
fn changes_of(step: u64, lines: &mut String) -> u64 {
    *lines += &[route("add", step), state("add", step)].concat();
    let Some(old) = step.checked_sub(KEPT) else { return 2 };
    *lines += &[route("del", old), state("delete", old)].concat();
    4
}

fn route(verb: &str, number: u64) -> String {
    let number = number % ADDRESSES;
    format!("route {verb} 198.{}.{}.{}/32 dev wan\n", 18 + (number >> 16), (number >> 8) & 0xff, number & 0xff)
}

/// An SA between the gateways that no policy asks for.
fn state(verb: &str, number: u64) -> String {
    let [a, b] = Side::BOTH.map(Side::wire);
    let id = format!("src {a} dst {b} proto esp spi {:#x}", 0x0100_0000 + number % 0x1000_0000);
    match verb {
        "add" => format!("xfrm state add {id} reqid 7 mode tunnel aead rfc4106(gcm(aes)) 0x{number:072x} 128\n"),
        _ => format!("xfrm state {verb} {id}\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_goes_again_and_so_many_stay() {
        let mut lines = String::new();
        let steps = 2 * KEPT;
        let changes: u64 = (0..steps).map(|step| changes_of(step, &mut lines)).sum();
        assert_eq!(changes as usize, lines.lines().count());
        let count = |begin: &str| lines.lines().filter(|line| line.starts_with(begin)).count() as u64;
        assert_eq!((count("route add"), count("xfrm state add")), (steps, steps));
        assert_eq!((count("route del"), count("xfrm state delete")), (KEPT, KEPT));
        let key =
            lines.lines().find_map(|line| line.split_whitespace().find_map(|word| word.strip_prefix("0x0000000")));
        assert_eq!(key.map(str::len), Some(72 - 7), "256 bits of key and 32 of salt");
        for (number, want) in [(0, "198.18.0.0/32"), (65_537, "198.19.0.1/32"), (ADDRESSES, "198.18.0.0/32")] {
            assert!(route("add", number).contains(want), "{number}");
        }
    }

    #[test]
    fn the_pace_is_kept() {
        let (over, changes) = (AtomicBool::new(false), AtomicU64::new(0));
        let start = Instant::now();
        let fed = thread::scope(|scope| {
            let feeder = scope.spawn(|| feed(io::sink(), 10_000, &over, &changes));
            thread::sleep(Duration::from_millis(100));
            over.store(true, Ordering::Relaxed);
            feeder.join().unwrap()
        });
        fed.unwrap();
        let most = start.elapsed().as_secs_f64() * 10_000.0 + 4.0;
        let changes = changes.into_inner();
        assert!(changes > 0 && changes as f64 <= most, "{changes} of at most {most}");
    }
}
