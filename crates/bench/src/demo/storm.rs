//! Changes of routes and SAs during a stream: the system's `ip` at each gateway, fed at a steady pace.

use std::io::{self, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::io::ioctl_fionread;
use rustix::pipe::fcntl_setpipe_size;
use testbed::{Failure, Scratch, Stop, command, end, finish};

use super::gateway::Gateway;
use super::machine::fatpath;
use super::meter::thread_seconds;
use super::sample::Changes;
use super::topology::Side;

/// Number of routes and SAs that exist at any time.
const KEPT: u64 = 256;
/// Addresses of 198.18.0.0/15, which is reserved for benchmarks (RFC 2544, appendix C.2.2).
const ADDRESSES: u64 = 1 << 17;
/// Interval at which due changes are written to `ip`.
const PACE: Duration = Duration::from_millis(5);
/// Largest backlog of changes. A larger backlog is skipped: a slow machine makes fewer changes.
const CATCH_UP: u64 = 1000;
/// Bytes of lines queued for `ip`: one page, the smallest pipe.
const AHEAD: usize = 4096;
/// Longest time that `ip` may take to start, and to finish its backlog at the end of the stream.
const LIMIT: Duration = Duration::from_secs(10);

/// The storm at both gateways, ended on drop.
#[derive(Debug)]
pub(super) struct Storm {
    ends: Vec<End>,
    start: Instant,
}

/// One `ip` and the thread that feeds it, which returns the number of changes written.
#[derive(Debug)]
struct End {
    ip: Option<Child>,
    /// Standard input of `ip`, before a thread feeds it.
    lines: Option<io::PipeWriter>,
    feeder: Option<JoinHandle<io::Result<u64>>>,
    over: Arc<AtomicBool>,
}

impl Storm {
    /// Begins `rate` changes a second at each gateway. The start of `ip` is not counted, and is over when this returns.
    pub(super) fn start(gateways: &[Gateway; 2], scratch: &Scratch, rate: u32, stop: &Stop) -> Result<Self, Failure> {
        let program = fatpath()?;
        let ends = gateways.iter().map(|gateway| {
            let mut ip = command(&program);
            ip.args(["ip", "--instance", gateway.instance(), "-batch", "-"]).env("FATPATH_RUNDIR", scratch.path());
            End::start(ip, LIMIT, stop)
        });
        let mut ends = ends.collect::<Result<Vec<_>, _>>()?;
        ends.iter_mut().for_each(|end| end.feed(rate));
        Ok(Self { ends, start: Instant::now() })
    }

    /// Processor time so far, in seconds: of `ip`, and of the gateways.
    pub(super) fn cpu_seconds(&self, gateways: &[Gateway; 2]) -> f64 {
        let clients = self.ends.iter().filter_map(|end| end.ip.as_ref()).map(|ip| thread_seconds(ip.id(), "ip"));
        let daemons = gateways.iter().map(|gateway| thread_seconds(gateway.pid(), "netlink"));
        clients.chain(daemons).sum()
    }

    /// Ends the storm after all changes are carried out, and returns the changes per second at each gateway. `load` is
    /// their processor time per second.
    pub(super) fn end(mut self, load: f64, stop: &Stop) -> Result<Changes, Failure> {
        for end in &self.ends {
            end.over.store(true, Ordering::Relaxed);
        }
        let ends = self.ends.len() as f64;
        let changes: u64 = self.ends.drain(..).map(|end| end.finish(LIMIT, stop)).sum::<Result<_, _>>()?;
        let per_second = changes as f64 / self.start.elapsed().as_secs_f64();
        Ok(Changes {
            per_second: per_second / ends,
            cpu_us: if per_second > 0.0 { load / per_second * 1e6 } else { 0.0 },
        })
    }
}

impl End {
    /// Starts `ip`, and waits for at most `limit` until it takes its first lines.
    fn start(mut ip: Command, limit: Duration, stop: &Stop) -> Result<Self, Failure> {
        let failed = |err| Failure::step("ip -batch", err);
        let (lines, mut write) = io::pipe().map_err(failed)?;
        fcntl_setpipe_size(&write, AHEAD).map_err(|err| failed(err.into()))?;
        let ip = ip.stdin(lines).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(failed)?;
        let mut end = Self { ip: Some(ip), lines: None, feeder: None, over: Arc::default() };
        let mut first = String::new();
        changes_of(0, &mut first);
        write.write_all(first.as_bytes()).map_err(failed)?;
        stop.wait("ip -batch", limit, || {
            // The error of a program that ends before it reads its input is reported at the end.
            let has_ended = end.ip.as_mut().is_none_or(|ip| !matches!(ip.try_wait(), Ok(None)));
            let unread = ioctl_fionread(&write).map_err(|err| failed(err.into()))?;
            Ok((has_ended || unread == 0).then_some(()))
        })?;
        end.lines = Some(write);
        Ok(end)
    }

    /// Starts the feeding thread.
    fn feed(&mut self, rate: u32) {
        let over = self.over.clone();
        self.feeder = self.lines.take().map(|lines| thread::spawn(move || feed(lines, rate, &over)));
    }

    /// Waits at most `limit` until `ip` has carried out the changes written to it, and returns their number.
    fn finish(mut self, limit: Duration, stop: &Stop) -> Result<u64, Failure> {
        self.over.store(true, Ordering::Relaxed);
        if let Some(ip) = self.ip.take() {
            // `ip` reads end of file once the feeder has seen the flag. The feeder, in turn, may be blocked by a full
            // pipe.
            finish(ip, "ip -batch", limit, stop)?;
        }
        self.join().map_err(|err| Failure::step("feed ip -batch", err))
    }

    fn join(&mut self) -> io::Result<u64> {
        self.feeder.take().map_or(Ok(0), |feeder| {
            feeder.join().unwrap_or_else(|_| Err(io::Error::other("the thread that feeds it panicked")))
        })
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(mut ip) = self.ip.take() {
            // First, so that the feeder does not block on the pipe.
            end(&mut ip);
        }
        // The result of an abandoned storm is not used.
        let _ = self.join();
    }
}

/// Writes the due changes after the first step, until `over`; returns their number.
fn feed(mut ip: impl Write, rate: u32, over: &AtomicBool) -> io::Result<u64> {
    let (start, mut step, mut done, mut skipped) = (Instant::now(), 1, 0, 0);
    loop {
        let late = late(start.elapsed(), rate, done, &mut skipped);
        let turn = done + late;
        while done < turn {
            if over.load(Ordering::Relaxed) {
                return Ok(done);
            }
            let mut lines = String::new();
            let changes = changes_of(step, &mut lines);
            ip.write_all(lines.as_bytes())?;
            (step, done) = (step + 1, done + changes);
        }
        if over.load(Ordering::Relaxed) {
            return Ok(done);
        }
        thread::sleep(PACE);
    }
}

/// Number of changes that are due, without those of a backlog above [`CATCH_UP`], which are skipped.
fn late(elapsed: Duration, rate: u32, done: u64, skipped: &mut u64) -> u64 {
    let due = (elapsed.as_secs_f64() * f64::from(rate)) as u64;
    let late = due.saturating_sub(done + *skipped);
    *skipped += late.saturating_sub(CATCH_UP);
    late.min(CATCH_UP)
}

/// The lines of one step and their number: a route and an SA are added and, once there are enough, a route and an SA
/// deleted.
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

/// An SA between the gateways that no policy uses.
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
    fn added_objects_are_deleted_again_but_for_a_constant_number() {
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
        let over = AtomicBool::new(false);
        let start = Instant::now();
        let fed = thread::scope(|scope| {
            let feeder = scope.spawn(|| feed(io::sink(), 10_000, &over));
            thread::sleep(Duration::from_millis(100));
            over.store(true, Ordering::Relaxed);
            feeder.join().unwrap()
        });
        let most = start.elapsed().as_secs_f64() * 10_000.0 + 4.0;
        let changes = fed.unwrap();
        assert!(changes > 0 && changes as f64 <= most, "{changes} of at most {most}");
    }

    #[test]
    fn backlog_above_the_limit_is_skipped() {
        let mut skipped = 0;
        let [first, tenth] = [1, 10].map(Duration::from_secs);
        assert_eq!(late(first, 1_000_000, 0, &mut skipped), CATCH_UP);
        assert_eq!(late(first, 1_000_000, CATCH_UP, &mut skipped), 0);
        assert_eq!(late(tenth, 1_000_000, CATCH_UP, &mut skipped), CATCH_UP);
        assert_eq!(skipped, 10_000_000 - 2 * CATCH_UP);
        assert_eq!(late(tenth, 100, 998, &mut 0), 2);
    }

    #[test]
    fn no_change_is_due_after_the_end() {
        struct Reader<'a>(&'a AtomicBool, u32);
        impl Write for Reader<'_> {
            fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
                assert!(!self.0.load(Ordering::Relaxed), "it is over");
                self.1 += 1;
                self.0.store(self.1 == 20, Ordering::Relaxed);
                Ok(lines.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let over = AtomicBool::new(false);
        assert_eq!(feed(Reader(&over, 0), 1_000_000, &over).unwrap(), 40);
    }

    #[test]
    fn client_that_reads_nothing_is_stopped_at_its_limit() {
        let start = |script: &str, limit| {
            let mut reader = command("sh");
            reader.args(["-c", script]);
            let mut end = End::start(reader, limit, &Stop::never())?;
            end.feed(1_000_000);
            Ok::<_, Failure>(end)
        };
        let failed = start("exec sleep 600", Duration::from_millis(20)).unwrap_err();
        assert_eq!(failed.to_string(), "ip -batch: nothing after 0.0 s", "it has not begun");
        let end = start("read route; read state; exec sleep 600", LIMIT).unwrap();
        // The pipe is full now.
        thread::sleep(Duration::from_millis(50));
        let failed = end.finish(Duration::from_millis(20), &Stop::never()).unwrap_err();
        assert_eq!(failed.to_string(), "ip -batch: nothing after 0.0 s");
        let end = start("exit 1", LIMIT).unwrap();
        while end.feeder.as_ref().is_some_and(|feeder| !feeder.is_finished()) {
            thread::sleep(PACE);
        }
        assert!(end.finish(Duration::from_secs(60), &Stop::never()).is_err(), "it has read nothing");
        let mut all = command("cat");
        all.arg("-");
        let mut end = End::start(all, LIMIT, &Stop::never()).unwrap();
        end.feed(1000);
        thread::sleep(Duration::from_millis(50));
        let given = end.finish(Duration::from_secs(60), &Stop::never()).unwrap();
        assert_eq!(given % 2, 0, "whole steps");
    }
}
