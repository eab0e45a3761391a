//! User and capabilities (capabilities(7)): the gateway keeps none of the second. Its [openers](crate::opener) keep those that open
//! links of the kinds in its files and of `--allow-links`, and that make the host side. Links of other kinds are refused by name, also
//! to root.
//!
//! Limits of resources replace two capabilities where the system lets them be raised: `RLIMIT_NICE` stands for
//! `CAP_SYS_NICE`, and `RLIMIT_MEMLOCK` for `CAP_IPC_LOCK`. Elsewhere a thread has `CAP_SYS_NICE` until it has set its
//! priority, and a gateway of AF_XDP links, whose memory is pinned by itself, keeps `CAP_IPC_LOCK`.

use std::collections::BTreeSet;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use driver::{DriverKind, Resource};
use rustix::process::{Resource as Limited, Rlimit, getrlimit, setrlimit};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, remove_capability_from_bounding_set, set_capabilities,
    set_keep_capabilities,
};
use serde::{Deserialize, Serialize};

use super::user::User;

/// First port that takes no capability.
const FIRST_FREE_PORT: u16 = 1024;

/// `RLIMIT_NICE` that lets a packet thread precede others: 20 less the niceness -10.
const NICE: u64 = 30;

/// Whether the process has kept `CAP_SYS_NICE`, which each thread gives up when its priority is set.
static HAS_NICE: AtomicBool = AtomicBool::new(false);

/// Rights that were kept at the start; all before.
static KEPT: OnceLock<BTreeSet<LinkRight>> = OnceLock::new();

/// Right to open links of a kind that takes capabilities.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub enum LinkRight {
    /// TUN devices.
    Tun,
    /// TAP devices.
    Tap,
    /// Packet sockets.
    Packet,
    /// Packet sockets that keep frames from the host.
    Exclusive,
    /// AF_XDP sockets.
    Xdp,
    /// UDP sockets with ports below 1024.
    Udp,
}

impl LinkRight {
    /// All rights.
    pub const ALL: [Self; 6] = [Self::Tun, Self::Tap, Self::Packet, Self::Exclusive, Self::Xdp, Self::Udp];

    /// Word of `--allow-links`.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Tun => "tun",
            Self::Tap => "tap",
            Self::Packet => "packet",
            Self::Exclusive => "exclusive",
            Self::Xdp => "xdp",
            Self::Udp => "udp",
        }
    }

    /// The right to open a link; `None` for one that takes no capability.
    pub(crate) fn of(kind: &DriverKind) -> Option<Self> {
        match (kind, kind.resource()) {
            (DriverKind::Tun { .. }, _) => Some(Self::Tun),
            (DriverKind::Tap { .. }, _) => Some(Self::Tap),
            (DriverKind::Packet { exclusive: false, .. }, _) => Some(Self::Packet),
            (DriverKind::Packet { exclusive: true, .. }, _) => Some(Self::Exclusive),
            (DriverKind::Xdp { .. }, _) => Some(Self::Xdp),
            (_, Resource::UdpSocket(bind)) if bind.port() < FIRST_FREE_PORT => Some(Self::Udp),
            _ => None,
        }
    }

    /// The right that a gateway keeps for a link of its file: sockets of UDP links on the host side have port 500, too.
    pub(crate) fn kept_for(kind: &DriverKind) -> Option<Self> {
        match kind {
            DriverKind::Udp { .. } => Some(Self::Udp),
            _ => Self::of(kind),
        }
    }

    const fn capabilities(self) -> CapabilitySet {
        match self {
            Self::Tun | Self::Tap => CapabilitySet::NET_ADMIN,
            Self::Packet => CapabilitySet::NET_RAW,
            Self::Exclusive | Self::Xdp => {
                CapabilitySet::NET_RAW.union(CapabilitySet::NET_ADMIN).union(CapabilitySet::BPF)
            }
            Self::Udp => CapabilitySet::NET_BIND_SERVICE,
        }
    }
}

/// Checks that a link may be opened in a gateway with these rights; `None`: with all.
///
/// # Errors
/// Text with the option that adds the right.
pub(crate) fn admit(kind: &DriverKind, rights: Option<&BTreeSet<LinkRight>>) -> Result<(), String> {
    match (LinkRight::of(kind), rights) {
        (Some(right), Some(kept)) if !kept.contains(&right) => {
            let word = right.word();
            Err(format!(
                "{} is none of the kinds that this gateway may open since its start; start it with --allow-links {word}",
                match right {
                    LinkRight::Udp => "udp with a port below 1024",
                    LinkRight::Exclusive => "packet with exclusive",
                    _ => word,
                }
            ))
        }
        _ => Ok(()),
    }
}

/// Rights of this gateway; `None`: all.
pub(crate) fn rights() -> Option<&'static BTreeSet<LinkRight>> {
    KEPT.get()
}

/// Capabilities that open links of `rights`. Those that remove the devices of an earlier gateway are among them, if there may
/// be such: with a host side.
pub(crate) fn of_links(rights: &BTreeSet<LinkRight>, has_host_side: bool) -> CapabilitySet {
    let more = if has_host_side { CapabilitySet::NET_ADMIN } else { CapabilitySet::empty() };
    rights.iter().fold(more, |all, right| all | right.capabilities())
}

/// Capabilities that make the host side, whose pairs of devices have packet sockets, and find programs inside: `CAP_SYS_PTRACE` lets
/// the namespaces of their processes be read. `CAP_SETFCAP` lets root without `CAP_SYS_ADMIN` make a user namespace.
pub(crate) fn of_host_side() -> CapabilitySet {
    CapabilitySet::SYS_ADMIN
        | CapabilitySet::NET_ADMIN
        | CapabilitySet::NET_RAW
        | CapabilitySet::SYS_PTRACE
        | CapabilitySet::SETFCAP
}

/// Capabilities of `set` that this process has.
pub(crate) fn held(set: CapabilitySet) -> CapabilitySet {
    capabilities(None).map_or_else(|_| CapabilitySet::empty(), |own| own.permitted & set)
}

/// Gives up all capabilities but those of `kept`. Threads and programs that are started later have no others.
///
/// # Errors
/// Text of the call that the kernel refuses.
pub(crate) fn keep(kept: CapabilitySet) -> Result<(), String> {
    bound(kept);
    set(kept)
}

/// Keeps programs that this process executes from other capabilities than `most`.
fn bound(most: CapabilitySet) {
    for capability in CapabilitySet::all().iter().filter(|&capability| !most.contains(capability)) {
        // Without CAP_SETPCAP, no_new_privs alone keeps execve from giving capabilities; newer ones are unknown here.
        let _ = remove_capability_from_bounding_set(capability);
    }
}

fn set(kept: CapabilitySet) -> Result<(), String> {
    let before = capabilities(None).map_err(|err| format!("capget: {err}"))?;
    let kept = kept & before.permitted;
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: before.inheritable & kept };
    set_capabilities(None, sets).map_err(|err| format!("capset: {err}"))
}

/// Changes to `user`, if there is one, and gives up all capabilities, as links of `rights` are opened by another process. Returns the
/// results of both, with texts of calls that the kernel refuses.
pub(super) fn give_up(rights: BTreeSet<LinkRight>, user: Option<&User>) -> (Result<(), String>, Result<(), String>) {
    let mut kept = CapabilitySet::empty();
    if !raise(Limited::Nice, Some(NICE)) {
        kept |= CapabilitySet::SYS_NICE;
    }
    if rights.contains(&LinkRight::Xdp) && !raise(Limited::Memlock, None) {
        kept |= CapabilitySet::IPC_LOCK;
    }
    if user.is_some() && !raise(Limited::Nproc, None) {
        // Threads of all gateways of the user count, and not those of root.
        let most = getrlimit(Limited::Nproc).maximum;
        let _ = setrlimit(Limited::Nproc, Rlimit { current: most, maximum: most });
    }
    HAS_NICE.store(held(kept).contains(CapabilitySet::SYS_NICE), Ordering::Relaxed);
    bound(CapabilitySet::empty());
    // What is kept is permitted still behind a change of the user, and effective again by the last call.
    let has_some = !held(kept).is_empty();
    let changed = match user {
        Some(user) => set_keep_capabilities(has_some)
            .map_err(|err| format!("PR_SET_KEEPCAPS: {err}"))
            .and_then(|()| user.change_process())
            .and_then(|()| set_keep_capabilities(false).map_err(|err| format!("PR_SET_KEEPCAPS: {err}"))),
        None => Ok(()),
    };
    let given_up = set(kept);
    if given_up.is_ok() {
        // A process has one set of rights.
        let _ = KEPT.set(rights);
    }
    (changed, given_up)
}

/// Gives up the right of the calling thread, and of those that it starts later, to raise its priority.
pub(crate) fn settle_priority() {
    if HAS_NICE.load(Ordering::Relaxed)
        && let Ok(own) = capabilities(None)
        && own.permitted.contains(CapabilitySet::SYS_NICE)
    {
        let without = |set: CapabilitySet| set.difference(CapabilitySet::SYS_NICE);
        let [effective, permitted, inheritable] = [own.effective, own.permitted, own.inheritable].map(without);
        // A thread may always give up capabilities.
        let _ = set_capabilities(None, CapabilitySets { effective, permitted, inheritable });
    }
}

/// Raises both limits of a resource; `None` is infinity. False: the process may not.
fn raise(limited: Limited, to: Option<u64>) -> bool {
    setrlimit(limited, Rlimit { current: to, maximum: to }).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_are_those_of_kinds_that_take_capabilities() {
        let udp = |port| DriverKind::Udp { bind: format!("192.0.2.1:{port}").parse().unwrap() };
        let packet = |exclusive| DriverKind::Packet { interface: "eth0".to_owned(), exclusive };
        let guest = DriverKind::VhostUser { socket: "/run/a".to_owned(), queues: 1, memory: 1 << 30 };
        for (kind, want) in [
            (DriverKind::Tun { queues: 1 }, Some(LinkRight::Tun)),
            (DriverKind::Tap { queues: 2 }, Some(LinkRight::Tap)),
            (packet(false), Some(LinkRight::Packet)),
            (packet(true), Some(LinkRight::Exclusive)),
            (udp(1023), Some(LinkRight::Udp)),
            (udp(1024), None),
            (guest, None),
        ] {
            assert_eq!(LinkRight::of(&kind), want, "{kind:?}");
        }
        assert_eq!(LinkRight::kept_for(&udp(4500)), Some(LinkRight::Udp));
        for right in LinkRight::ALL {
            assert!(!right.capabilities().is_empty(), "{right:?}");
        }
    }
}
