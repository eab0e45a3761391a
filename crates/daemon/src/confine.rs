//! Restrictions of the process, before it reads anything: only root may read its memory, which has keys, and it keeps no
//! descriptor of the program that started it, but those that a service manager passes.
//!
//! A process that is not dumpable (prctl(2), `PR_SET_DUMPABLE`) leaves no core file, also where the kernel passes core
//! files to a program whatever `RLIMIT_CORE` is, and is not traced by its own user. Its files of `/proc` belong to root:
//! a gateway without privilege may not write its `/proc/self/uid_map`. The process that makes the host side does that;
//! `execve` makes it dumpable again, and it has no keys.

use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};

use crate::service;

/// Applies the restrictions. One that the kernel lacks is logged.
pub(super) fn confine() {
    if let Err(err) = link::close_inherited(service::passed()) {
        tracing::warn!("inherited descriptors stay open: close_range: {err}");
    }
    if let Err(err) = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) }) {
        tracing::warn!("core files: RLIMIT_CORE: {err}");
    }
    if let Err(err) = set_dumpable_behavior(DumpableBehavior::NotDumpable) {
        tracing::warn!("core files: PR_SET_DUMPABLE: {err}");
    }
}
