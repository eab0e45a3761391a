//! Notifications to the service manager (sd_notify(3)): the gateway is ready, reloads its file, or ends. Without a
//! service manager none are sent.

use std::time::Duration;

use sd_notify::{NotifyState, notify};

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

fn send(state: &[NotifyState<'_>]) {
    if let Err(err) = notify(state) {
        tracing::warn!("service manager: {err}");
    }
}
