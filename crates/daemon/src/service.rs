//! Notifications to the service manager (sd_notify(3)): that the gateway serves, reads its file again, ends. Without a
//! service manager there are none.

use std::time::Duration;

use sd_notify::{NotifyState, notify};

/// Reports that the gateway serves: units that wait for it may begin. `status` is shown by `systemctl status`.
pub(super) fn ready(status: &str) {
    send(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// Reports that the gateway reads its file again, until it is [`ready`] once more.
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
