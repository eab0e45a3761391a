//! Notifications to the service manager (sd_notify(3)): the gateway is ready, reloads its file, or ends. Without a
//! service manager none are sent. The manager also keeps descriptors over restarts, if its unit allows that
//! (`FileDescriptorStoreMax=`).

use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{FdFlags, fcntl_setfd, retry_on_intr};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::pipe::{PipeFlags, pipe_with};
use sd_notify::{NotifyState, listen_fds_with_names, notify};

use crate::opener::inherited;
use crate::opener::process::OpenerWork;

/// Environment variable of the manager's socket.
const NOTIFY_SOCKET: &str = "NOTIFY_SOCKET";

/// Longest wait for the manager's confirmation: it may be reading all of its units.
const PATIENCE: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };

/// Descriptors that the manager has passed, with their names.
static PASSED: Mutex<Vec<(String, OwnedFd)>> = Mutex::new(Vec::new());

/// Start of the process, in milliseconds since the Unix epoch. To be called at the start.
pub(super) fn started_ms() -> u64 {
    static STARTED: OnceLock<u64> = OnceLock::new();
    *STARTED.get_or_init(|| {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        now.as_millis() as u64
    })
}

/// Reports that the gateway is ready: units that wait for it may start. `status` is shown by `systemctl status`.
pub(super) fn ready(status: &str) {
    send(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// Reports that the gateway reloads its file, until it is [`ready`] again.
pub(super) fn reloading() {
    // `Type=notify-reload` requires the time of the reload.
    match NotifyState::monotonic_usec_now() {
        Ok(now) => send(&[NotifyState::Reloading, now]),
        Err(err) => tracing::warn!("service manager: clock: {err}"),
    }
}

/// Longest silence that the service manager accepts (`WATCHDOG_USEC`), if it has a watchdog.
pub(super) fn watchdog_limit() -> Option<Duration> {
    sd_notify::watchdog_enabled().filter(|limit| !limit.is_zero())
}

/// Feeds the service manager's watchdog.
pub(super) fn well() {
    send(&[NotifyState::Watchdog]);
}

/// Reports that the gateway ends.
pub(super) fn stopping() {
    send(&[NotifyState::Stopping]);
}

/// Takes the descriptors that the manager has passed to this process (sd_listen_fds(3)), and those of the openers of a gateway
/// that has started anew as this one. Closes all others but the standard streams. To be called once, before this process
/// opens any, also for its log: returns a line for it, if the manager's are not known.
///
/// # Errors
/// As [`link::take_inherited`].
pub(super) fn take_passed() -> io::Result<Option<String>> {
    let mut warning = None;
    let mut named: BTreeMap<_, _> = match listen_fds_with_names() {
        // A gateway that was taken over may have stored a descriptor under the name of an opener.
        Ok(named) => named.filter(|(_, name)| !OpenerWork::ALL.iter().any(|work| work.passed_name() == name)).collect(),
        Err(err) => {
            warning = Some(format!("service manager: descriptors: {err}"));
            BTreeMap::new()
        }
    };
    // One of the manager's that was closed since may have had the number.
    named.extend(inherited::named());
    let inherited = link::take_inherited(|number| named.contains_key(&number))?;
    let passed = inherited.into_iter().filter_map(|descriptor| {
        let name = named.get(&descriptor.as_raw_fd())?;
        Some((name.clone(), descriptor))
    });
    PASSED.lock().unwrap_or_else(PoisonError::into_inner).extend(passed);
    Ok(warning)
}

/// The descriptor that an earlier run has [stored](store) under `name`.
pub(super) fn stored(name: &str) -> Option<OwnedFd> {
    let passed = PASSED.lock().unwrap_or_else(PoisonError::into_inner);
    passed.iter().find(|(of, _)| of == name)?.1.try_clone().ok()
}

/// Names under which an earlier run has [stored](store) descriptors, as far as they begin with `beginning`.
pub(super) fn stored_names(beginning: &str) -> Vec<String> {
    let passed = PASSED.lock().unwrap_or_else(PoisonError::into_inner);
    passed.iter().map(|(name, _)| name.clone()).filter(|name| name.starts_with(beginning)).collect()
}

/// Keeps a descriptor as one that an earlier run has [stored](store) under `name`, in place of another one.
pub(super) fn put(name: &str, descriptor: OwnedFd) {
    let mut passed = PASSED.lock().unwrap_or_else(PoisonError::into_inner);
    passed.retain(|(of, _)| of != name);
    passed.push((name.to_owned(), descriptor));
}

/// Whether there is a manager.
pub(super) fn has_manager() -> bool {
    std::env::var_os(NOTIFY_SOCKET).is_some()
}

/// The descriptor that was passed under `name`, which is not kept any longer.
pub(super) fn take(name: &str) -> Option<OwnedFd> {
    let mut passed = PASSED.lock().unwrap_or_else(PoisonError::into_inner);
    let at = passed.iter().position(|(of, _)| of == name)?;
    Some(passed.remove(at).1)
}

/// Leaves the passed descriptors open for the program that this process executes in its place.
pub(super) fn pass_on() {
    for (name, descriptor) in PASSED.lock().unwrap_or_else(PoisonError::into_inner).iter() {
        if let Err(err) = fcntl_setfd(descriptor, FdFlags::empty()) {
            tracing::warn!("service manager: {name}: {err}");
        }
    }
}

/// As [`store`], of a descriptor that the manager keeps also if it has an error, such as that of a peer of a socket.
pub(super) fn store_unpolled(name: &str, fd: BorrowedFd<'_>) -> bool {
    store_as(name, "FDPOLL=0\n", fd)
}

/// Passes a descriptor to the manager, in place of an earlier one of that name. Returns whether there is a manager.
pub(super) fn store(name: &str, fd: BorrowedFd<'_>) -> bool {
    store_as(name, "", fd)
}

fn store_as(name: &str, how: &str, fd: BorrowedFd<'_>) -> bool {
    let Some(socket) = manager() else { return false };
    let sent = socket.and_then(|socket| {
        socket.send(removal(name).as_bytes())?;
        send_with(&socket, &format!("FDSTORE=1\nFDNAME={name}\n{how}"), fd)
    });
    if let Err(err) = &sent {
        tracing::warn!("service manager: {err}");
    }
    sent.is_ok()
}

/// Closes the descriptors that an earlier run has [stored](store) under `name`, and has the manager remove them: no later
/// run gets them.
///
/// # Errors
/// The manager does not confirm the removal.
pub(super) fn remove(name: &str) -> io::Result<()> {
    PASSED.lock().unwrap_or_else(PoisonError::into_inner).retain(|(of, _)| of != name);
    let socket = manager().ok_or_else(|| io::Error::other(format!("there is no {NOTIFY_SOCKET}")))??;
    socket.send(removal(name).as_bytes())?;
    // The manager closes its end when it has handled all earlier messages (sd_notify_barrier(3)).
    let (closed, end) = pipe_with(PipeFlags::CLOEXEC)?;
    send_with(&socket, "BARRIER=1", end.as_fd())?;
    drop(end);
    match retry_on_intr(|| poll(&mut [PollFd::new(&closed, PollFlags::empty())], Some(&PATIENCE)))? {
        0 => Err(io::Error::new(io::ErrorKind::TimedOut, "it does not answer")),
        _ => Ok(()),
    }
}

/// Asks the manager to remove the descriptors that an earlier run has [stored](store) under `name`, and waits for nothing.
pub(super) fn discard(name: &str) {
    if let Some(Err(err)) = manager().map(|socket| socket?.send(removal(name).as_bytes())) {
        tracing::warn!("service manager: {err}");
    }
}

/// Closes the descriptors that an earlier run has [stored](store) under `name`, and [has the manager remove](discard) them.
pub(super) fn release(name: &str) {
    PASSED.lock().unwrap_or_else(PoisonError::into_inner).retain(|(of, _)| of != name);
    discard(name);
}

/// Request to remove the descriptors with this name.
fn removal(name: &str) -> String {
    format!("FDSTOREREMOVE=1\nFDNAME={name}\n")
}

/// Socket that is connected to the manager's; `None` without a manager.
fn manager() -> Option<io::Result<UnixDatagram>> {
    let path = std::env::var_os(NOTIFY_SOCKET)?;
    let connected = UnixDatagram::unbound().and_then(|socket| {
        match path.as_encoded_bytes().strip_prefix(b"@") {
            Some(name) => socket.connect_addr(&SocketAddr::from_abstract_name(name)?)?,
            None => socket.connect(&path)?,
        }
        // A manager that hangs does not hold this process up.
        socket.set_write_timeout(Some(Duration::from_secs(PATIENCE.tv_sec as u64)))?;
        Ok(socket)
    });
    Some(connected)
}

fn send_with(socket: &UnixDatagram, text: &str, fd: BorrowedFd<'_>) -> io::Result<()> {
    let fds = [fd];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&fds));
    sendmsg(socket, &[IoSlice::new(text.as_bytes())], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

fn send(state: &[NotifyState<'_>]) {
    if let Err(err) = notify(state) {
        tracing::warn!("service manager: {err}");
    }
}
