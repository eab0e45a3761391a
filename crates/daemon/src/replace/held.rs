//! Links and sockets that the gateway before this one has passed, and links whose devices it keeps until it has ended.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use driver::{DriverKind, Resource};
use link::Acquired;
use link::vhost::{EndedListener, PassedConnection, end_listening, listening_path};
use serde::{Deserialize, Serialize};
use wire::eth::MacAddr;

/// State of the gateway before this one. Without one everything is free.
static EARLIER: Mutex<Earlier> = Mutex::new(Earlier {
    links: Vec::new(),
    stations: BTreeMap::new(),
    sockets: Vec::new(),
    guests: Vec::new(),
    ended: Vec::new(),
});

#[derive(Debug)]
struct Earlier {
    links: Vec<PassedLink>,
    /// Random link-layer addresses by the names of links: neighbours know them.
    stations: BTreeMap<String, MacAddr>,
    sockets: Vec<(Socket, OwnedFd)>,
    guests: Vec<PassedGuest>,
    /// Sockets for guests of links that are not known.
    ended: Vec<EndedListener>,
}

/// A link of the gateway before.
#[derive(Debug)]
pub(crate) struct PassedLink {
    pub(super) name: String,
    pub(super) settings: String,
    pub(super) resource: String,
    pub(super) mtu: usize,
    /// Link-layer address, of a bridge or a guest's port.
    pub(super) station: Option<[u8; 6]>,
    /// Descriptors of the link; none if it cannot be made from them.
    pub(super) descriptors: Vec<OwnedFd>,
}

/// The connection of a guest of the gateway before.
#[derive(Debug)]
pub(crate) struct PassedGuest {
    /// Name of the port's link.
    pub(crate) link: String,
    /// Settings of that link.
    pub(super) settings: String,
    pub(crate) connection: PassedConnection,
}

/// A socket of the gateway before that is no link's.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) enum Socket {
    /// Listening socket of control clients.
    Control,
    /// Listening socket of clients that only look.
    View,
    /// Listening socket of netlink clients.
    Netlink,
    /// Socket of key managers.
    Ike,
    /// The host side's namespace.
    HostSide,
}

/// Way to a new link.
#[derive(Debug)]
pub(crate) enum Way {
    /// The link is opened.
    Open,
    /// The link is made from these descriptors, which another gateway had.
    Make(Acquired),
    /// Another gateway has the link's device still.
    Wait,
}

/// Way to the link of that configuration.
pub(crate) fn way_to(config: &link::Config) -> Way {
    let mut earlier = lock();
    let settings = settings_of(&config.kind, config.offloads);
    // The first half of opening a link sets the MTU of TUN and TAP devices.
    let has_mtu = |passed: &PassedLink| {
        !matches!(config.kind.resource(), Resource::Device)
            || config.mtu.is_none_or(|mtu| usize::from(mtu) == passed.mtu)
    };
    let is_same = |passed: &PassedLink| {
        let is_whole = !passed.descriptors.is_empty();
        // A socket that listens for guests is not the name's.
        let has_name = passed.name == config.name || matches!(config.kind, DriverKind::VhostUser { .. });
        is_whole && has_name && passed.settings == settings && has_mtu(passed)
    };
    if let Some(at) = earlier.links.iter().position(is_same) {
        return Way::Make(std::mem::take(&mut earlier.links[at].descriptors).into());
    }
    let resource = resource_of(&config.name, &config.kind);
    if earlier.links.iter().any(|passed| passed.resource == resource) { Way::Wait } else { Way::Open }
}

/// The socket that the gateway before has passed, once.
pub(crate) fn take_socket(socket: Socket) -> Option<OwnedFd> {
    let mut earlier = lock();
    let at = earlier.sockets.iter().position(|(of, _)| *of == socket)?;
    Some(earlier.sockets.swap_remove(at).1)
}

/// Whether the gateway before has passed a socket.
pub(crate) fn has_socket(socket: Socket) -> bool {
    lock().sockets.iter().any(|(of, _)| *of == socket)
}

/// Notes that the gateway before keeps no device any more. Its links can still be made from what it has passed.
pub(super) fn release() {
    lock().links.iter_mut().for_each(|passed| passed.resource.clear());
}

/// Link-layer address that a link of this name had in the gateway before.
pub(crate) fn station_of(name: &str) -> Option<MacAddr> {
    lock().stations.get(name).copied()
}

/// Paths of the sockets for guests: one that no link gets is removed.
pub(crate) fn listening_paths() -> Vec<PathBuf> {
    let earlier = lock();
    let of_links = earlier.links.iter().flat_map(|passed| &passed.descriptors).filter_map(listening_path);
    of_links.chain(earlier.ended.iter().filter_map(EndedListener::path)).collect()
}

/// Closes all that was passed and is not used, but for guests. Returns the names of its links.
pub(crate) fn close() -> Vec<String> {
    let links = {
        let mut earlier = lock();
        earlier.sockets.clear();
        std::mem::take(&mut earlier.links)
    };
    let unused = links.into_iter().filter(|passed| !passed.descriptors.is_empty());
    let close = |passed: PassedLink| {
        passed.descriptors.into_iter().for_each(end);
        passed.name
    };
    let names = unused.map(close).collect();
    remove_ended();
    names
}

/// Removes the files of sockets for guests that were [ended](end).
pub(crate) fn remove_ended() {
    let ended = std::mem::take(&mut lock().ended);
    for listener in ended {
        let path = listener.path().unwrap_or_default();
        if let Err(err) = listener.remove_file() {
            tracing::warn!("{}: the socket of an earlier gateway's guest stays: {err}", path.display());
        }
    }
}

/// Connections of guests that the gateway before has passed, once.
pub(crate) fn take_guests() -> Vec<PassedGuest> {
    std::mem::take(&mut lock().guests)
}

/// Ends the listening of a socket for guests, whose file is [removed](remove_ended) later. Another descriptor is closed.
pub(super) fn end(descriptor: OwnedFd) {
    if let Some(ended) = end_listening(descriptor) {
        lock().ended.push(ended);
    }
}

pub(super) fn add_guest(guest: PassedGuest) {
    lock().guests.push(guest);
}

pub(super) fn add_link(link: PassedLink) {
    let mut earlier = lock();
    if let Some(station) = link.station {
        earlier.stations.insert(link.name.clone(), MacAddr(station));
    }
    earlier.links.push(link);
}

pub(super) fn add_socket(socket: Socket, descriptor: OwnedFd) {
    lock().sockets.push((socket, descriptor));
}

/// Settings of a link that its descriptors have.
pub(super) fn settings_of(kind: &DriverKind, has_offloads: bool) -> String {
    match kind {
        // The listener has no other: a guest's connection is checked against those of the link.
        DriverKind::VhostUser { socket, .. } => format!("VhostUser at {socket}"),
        _ => format!("{kind:?}, offloads {has_offloads}"),
    }
}

/// Resource that at most one of two links may have.
pub(super) fn resource_of(name: &str, kind: &DriverKind) -> String {
    match kind.resource() {
        Resource::Device => format!("device {name}"),
        Resource::Interface(interface) => format!("interface {interface}"),
        // A socket of any address has the port of all.
        Resource::UdpSocket(bind) => format!("UDP port {}", bind.port()),
        Resource::VhostSocket(path) => format!("socket {path}"),
    }
}

fn lock() -> MutexGuard<'static, Earlier> {
    EARLIER.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    fn config(name: &str, kind: DriverKind, mtu: Option<u16>) -> link::Config {
        link::Config { name: name.to_owned(), kind, mac: None, mtu, offloads: true, index: None }
    }

    #[test]
    fn link_is_made_waited_for_or_opened_by_its_settings() {
        let tun = |queues| DriverKind::Tun { queues };
        let udp = |bind: &str| DriverKind::Udp { bind: bind.parse().unwrap() };
        let descriptors = || vec![OwnedFd::from(File::open("/dev/null").unwrap())];
        let passed = |name: &str, kind: &DriverKind, descriptors| PassedLink {
            name: name.to_owned(),
            settings: settings_of(kind, true),
            resource: resource_of(name, kind),
            mtu: 1400,
            station: None,
            descriptors,
        };
        add_link(passed("tun0", &tun(1), descriptors()));
        add_link(passed("wan", &udp("192.0.2.1:4500"), descriptors()));
        add_link(passed(
            "x",
            &DriverKind::Xdp { interface: "eth0".to_owned(), ring: 64, mode: Default::default() },
            Vec::new(),
        ));
        let way = |name: &str, kind, mtu| format!("{:?}", way_to(&config(name, kind, mtu)));
        let packet = |interface: &str| DriverKind::Packet { interface: interface.to_owned(), exclusive: false };
        for (name, kind, mtu, want) in [
            ("tun0", tun(2), None, "Wait"),
            ("tun0", tun(1), Some(1500), "Wait"),
            ("tun1", tun(1), None, "Open"),
            ("wan", udp("0.0.0.0:4500"), None, "Wait"),
            ("wan2", udp("192.0.2.1:4500"), None, "Wait"),
            ("wan", udp("192.0.2.1:4501"), None, "Open"),
            ("x", packet("eth0"), None, "Wait"),
            ("y", packet("eth1"), None, "Open"),
        ] {
            assert_eq!(way(name, kind, mtu), want, "{name} {mtu:?}");
        }
        assert!(way("tun0", tun(1), Some(1400)).starts_with("Make"));
        assert_eq!(way("tun0", tun(1), None), "Wait", "descriptors make one link");
        // The settings of a guest's port are not its listener's, nor is the name.
        let guests = |queues, memory| DriverKind::VhostUser { socket: "/run/vm.sock".to_owned(), queues, memory };
        add_link(passed("vm0", &guests(1, 1 << 20), descriptors()));
        assert!(way("vm1", guests(2, 1 << 30), Some(9000)).starts_with("Make"));
        assert_eq!(way("vm1", guests(2, 1 << 30), None), "Wait");
        let front = DriverKind::VirtioUser { socket: "/run/vm.sock".to_owned(), queues: 1, ring: 64 };
        assert_eq!(way("vm0", front, None), "Wait");
        release();
        assert!(
            way("wan", udp("192.0.2.1:4500"), Some(9000)).starts_with("Make"),
            "the MTU of a socket is the link's own"
        );
        assert_eq!(way("wan", udp("192.0.2.1:4500"), None), "Open");
        add_link(passed("lan", &tun(1), descriptors()));
        add_link(PassedLink { station: Some([2; 6]), ..passed("br0", &tun(1), Vec::new()) });
        assert_eq!(close(), ["lan"]);
        assert_eq!([station_of("br0"), station_of("lan")], [Some(MacAddr([2; 6])), None]);
    }
}
