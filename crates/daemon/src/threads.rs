//! Supervision of threads: the failure of any thread ends the gateway, and the service manager's watchdog is fed only
//! while all threads reply.
//!
//! Without supervision, a gateway whose netlink thread panicked would forward packets and leave every request
//! unanswered; after a panic of its state thread, sequence numbers would no longer be saved. [`Threads::spawn`] turns a
//! panic or an error of a thread into an [`Event`] for the main thread, which ends the gateway with an error, as it
//! does when the worker fails. The service manager then restarts the gateway.
//!
//! A thread that hangs sends no event. If the service manager has set a watchdog (`WatchdogSec=`), the main thread
//! pings each [watched](Threads::watch) thread four times in that period, and notifies the manager when all have
//! replied.

use std::any::Any;
use std::fmt::Display;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::events::Event;

/// Starter of threads, and list of the threads that the watchdog checks.
#[derive(Clone, Debug)]
pub(crate) struct Threads {
    events: Sender<Event>,
    pulses: Arc<Mutex<Vec<Arc<Pulse>>>>,
}

impl Threads {
    /// Starter whose threads report their failure to `events`.
    pub(crate) fn new(events: Sender<Event>) -> Self {
        Self { events, pulses: Arc::default() }
    }

    /// The sender of what happens, for the threads.
    pub(crate) fn events(&self) -> Sender<Event> {
        self.events.clone()
    }

    /// Starts a thread. A panic of the thread, or an error that `work` returns, ends the gateway.
    ///
    /// # Errors
    /// Error of clone(2).
    pub(crate) fn spawn<E: Display>(
        &self,
        name: &str,
        work: impl FnOnce() -> Result<(), E> + Send + 'static,
    ) -> io::Result<()> {
        let (events, named) = (self.events.clone(), name.to_owned());
        thread::Builder::new().name(name.to_owned()).spawn(move || {
            let ended = catch_unwind(AssertUnwindSafe(work));
            let why = match ended {
                Ok(Ok(())) => return,
                Ok(Err(err)) => format!("the thread {named} ended: {err}"),
                Err(panic) => format!("the thread {named} panicked: {}", text_of(&*panic)),
            };
            // The receiver is dropped while the gateway ends.
            let _ = events.send(Event::ThreadEnded(why));
        })?;
        Ok(())
    }

    /// Adds a thread for the watchdog to ping. `ping` wakes the thread, which then calls [`Pulse::answer`].
    pub(crate) fn watch(&self, name: &str, ping: impl Fn(&Arc<Pulse>) + Send + Sync + 'static) -> Arc<Pulse> {
        let (pings, answered) = (AtomicU64::new(0), AtomicU64::new(0));
        let pulse = Arc::new(Pulse { name: name.to_owned(), ping: Box::new(ping), pings, answered });
        self.pulses.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&pulse));
        pulse
    }

    /// Names of the threads that have not answered the last ping of the watchdog. Pings all other threads again.
    fn ping_all(&self) -> Vec<String> {
        let pulses = self.pulses.lock().unwrap_or_else(PoisonError::into_inner);
        let silent = pulses.iter().filter(|pulse| !pulse.ping_again()).map(|pulse| pulse.name.clone());
        silent.collect()
    }
}

/// Function that wakes a thread for a ping.
type Ping = dyn Fn(&Arc<Pulse>) + Send + Sync;

/// Pings of the watchdog to one thread, and the thread's replies.
pub(crate) struct Pulse {
    name: String,
    ping: Box<Ping>,
    /// Number of pings.
    pings: AtomicU64,
    /// Value of `pings` at the last reply.
    answered: AtomicU64,
}

impl Pulse {
    /// Replies to all pings so far.
    pub(crate) fn answer(&self) {
        self.answered.store(self.pings.load(Ordering::Acquire), Ordering::Release);
    }

    /// Pings again if the thread has replied. False: it has not.
    fn ping_again(self: &Arc<Self>) -> bool {
        let has_answered = self.answered.load(Ordering::Acquire) == self.pings.load(Ordering::Acquire);
        if has_answered {
            self.pings.fetch_add(1, Ordering::AcqRel);
            (self.ping)(self);
        }
        has_answered
    }
}

impl std::fmt::Debug for Pulse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pulse").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Periodic check that all watched threads reply.
#[derive(Debug)]
pub(super) struct Watchdog {
    threads: Threads,
    period: Duration,
    next: Instant,
    /// Whether the current silence has been logged.
    is_logged: bool,
}

impl Watchdog {
    /// Watchdog that checks four times in `limit`, the longest silence that the service manager accepts.
    pub(super) fn new(threads: Threads, limit: Duration) -> Self {
        let period = limit / 4;
        Self { threads, period, next: Instant::now() + period, is_logged: false }
    }

    /// Time until the next check.
    pub(super) fn timeout(&self) -> Duration {
        self.next.saturating_duration_since(Instant::now())
    }

    /// Checks the threads if the next check is due. True: it was due, and all have replied to the last ping.
    pub(super) fn is_well(&mut self) -> bool {
        if self.timeout() > Duration::ZERO {
            return false;
        }
        self.next = Instant::now() + self.period;
        let silent = self.threads.ping_all();
        if silent.is_empty() {
            self.is_logged = false;
        } else if !std::mem::replace(&mut self.is_logged, true) {
            let message_id = logging::id::THREADS_SILENT;
            tracing::error!(message_id, "no answer from threads: {}", silent.join(", "));
        }
        silent.is_empty()
    }
}

/// Message of a panic.
pub(super) fn text_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("without a message")
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn threads() -> (Threads, Receiver<Event>) {
        let (events, happened) = channel();
        (Threads::new(events), happened)
    }

    fn event_text(happened: &Receiver<Event>) -> String {
        match happened.recv_timeout(LONG) {
            Ok(Event::ThreadEnded(why)) => why,
            Ok(_) => panic!("another event"),
            Err(err) => panic!("{err}"),
        }
    }

    #[test]
    fn spawn_thread_that_panics_or_fails_sends_the_reason() {
        let (threads, happened) = threads();
        threads.spawn("netlink", || -> Result<(), Infallible> { panic!("7 is not {}", 6 + 2) }).unwrap();
        assert_eq!(event_text(&happened), "the thread netlink panicked: 7 is not 8");
        threads.spawn("control", || -> Result<(), Infallible> { panic!("no") }).unwrap();
        assert_eq!(event_text(&happened), "the thread control panicked: no");
        threads.spawn("netlink", || Err::<(), _>("epoll: no")).unwrap();
        assert_eq!(event_text(&happened), "the thread netlink ended: epoll: no");
    }

    #[test]
    fn spawn_thread_that_returns_ok_sends_nothing() {
        let (threads, happened) = threads();
        let (done, is_done) = channel::<Infallible>();
        let work = move || -> Result<(), Infallible> {
            drop(done);
            Ok(())
        };
        threads.spawn("client", work).unwrap();
        assert!(is_done.recv().is_err());
        drop(threads);
        assert_eq!(happened.recv_timeout(LONG).err(), Some(RecvTimeoutError::Disconnected));
    }

    /// Watched thread that replies to each ping. A receiver sent to the thread makes it hang until the receiver
    /// disconnects.
    fn watched(threads: &Threads, name: &'static str) -> std::sync::mpsc::Sender<Receiver<Infallible>> {
        let (work, inbox) = channel::<()>();
        let asking = Mutex::new(work.clone());
        let pulse = threads.watch(name, move |_| asking.lock().unwrap().send(()).unwrap());
        let (hang, hangs) = channel::<Receiver<Infallible>>();
        threads
            .spawn(name, move || -> Result<(), Infallible> {
                for _ in inbox {
                    if let Ok(until) = hangs.try_recv() {
                        let _ = until.recv();
                    }
                    pulse.answer();
                }
                Ok(())
            })
            .unwrap();
        hang
    }

    /// Polls until exactly the threads named by `want` do not reply.
    fn look_until(threads: &Threads, want: &[&str]) {
        let limit = Instant::now() + LONG;
        while threads.ping_all() != want {
            assert!(Instant::now() < limit, "not {want:?}");
            thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn watchdog_with_hung_thread_is_not_fed() {
        let (threads, _happened) = threads();
        let hang = ["netlink", "control"].map(|name| watched(&threads, name));
        look_until(&threads, &[]);
        let (release, until) = channel();
        hang[1].send(until).unwrap();
        // `control` was pinged together with `netlink`, and hangs.
        look_until(&threads, &["control"]);
        let mut watchdog = Watchdog::new(threads.clone(), Duration::ZERO);
        for _ in 0..20 {
            assert!(!watchdog.is_well());
            thread::sleep(Duration::from_millis(2));
        }
        drop(release);
        look_until(&threads, &[]);
    }

    #[test]
    fn watchdog_before_its_time_pings_no_thread() {
        let (threads, _happened) = threads();
        let pulse = threads.watch("netlink", |_| ());
        let mut watchdog = Watchdog::new(threads, LONG * 4);
        assert!(!watchdog.is_well());
        assert!(watchdog.timeout() > LONG / 2 && pulse.pings.load(Ordering::Relaxed) == 0);
    }
}
