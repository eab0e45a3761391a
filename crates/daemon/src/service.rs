//! Notifications to the service manager (sd_notify(3)): the gateway is ready, reloads its file, or ends. Without a
//! service manager none are sent. The manager also keeps a descriptor over restarts, if its unit allows that
//! (`FileDescriptorStoreMax=`).

use std::fs::File;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use sd_notify::{NotifyState, listen_fds, listen_fds_with_names, notify};

/// Environment variable of the manager's socket.
const NOTIFY_SOCKET: &str = "NOTIFY_SOCKET";

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

/// Number of descriptors that the manager has passed to this process, from descriptor 3 on (sd_listen_fds(3)).
pub(super) fn passed() -> u32 {
    listen_fds().map_or(0, |fds| fds.len() as u32)
}

/// The descriptor that an earlier run has [stored](store) under `name`.
pub(super) fn stored(name: &str) -> Option<OwnedFd> {
    let (number, _) = listen_fds_with_names().ok()?.find(|(_, of)| of == name)?;
    // Opened again, as the number alone is no owner.
    File::open(format!("/proc/self/fd/{number}")).ok().map(OwnedFd::from)
}

/// Passes a descriptor to the manager, in place of an earlier one of that name. Returns whether there is a manager.
pub(super) fn store(name: &str, fd: BorrowedFd<'_>) -> bool {
    let Some(path) = std::env::var_os(NOTIFY_SOCKET) else { return false };
    let sent = UnixDatagram::unbound().and_then(|socket| {
        socket.connect(path)?;
        socket.send(format!("FDSTOREREMOVE=1\nFDNAME={name}\n").as_bytes())?;
        let fds = [fd];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&fds));
        let text = format!("FDSTORE=1\nFDNAME={name}\n");
        sendmsg(&socket, &[IoSlice::new(text.as_bytes())], &mut control, SendFlags::NOSIGNAL).map_err(io::Error::from)
    });
    if let Err(err) = &sent {
        tracing::warn!("service manager: {err}");
    }
    sent.is_ok()
}

fn send(state: &[NotifyState<'_>]) {
    if let Err(err) = notify(state) {
        tracing::warn!("service manager: {err}");
    }
}
