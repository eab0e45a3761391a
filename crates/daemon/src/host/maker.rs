//! The process of a host side: `fatpath host-maker`, started by the daemon before its own confinement. It makes the
//! namespace, stays inside and makes devices there, and ends when the daemon has closed the socket that is its standard
//! input: by no signal that a terminal or a service manager sends to all processes of the gateway.
//!
//! It is a process of its own because a user namespace can be entered by a process of one thread only, and because the
//! daemon enters no namespace and mounts nothing once it is confined.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use client::CliError;
use link::{HostDevice, Namespace, unshare};
use netlink::message::{Messages, Writer};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use rustix::net::netlink::SOCK_DIAG;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, socket_with};
use rustix::process::{getegid, geteuid};
use rustix::thread::{LinkNameSpaceType, set_no_new_privs};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use wire::eth::MacAddr;

use super::order::{Answer, Descriptors, Order, receive, send};
use super::rtnl;
use super::search::{self, OWN_NETWORK, enter};
use crate::rtnetlink;

/// Device file by which TUN and TAP devices are made.
const TUN: &str = "/dev/net/tun";

/// The file system of namespaces' files (`NSFS_MAGIC`).
const NSFS_MAGIC: i64 = 0x6e73_6673;

/// Settings of all present and future devices of the namespace: no forwarding, no ARP replies, no addresses but the
/// node's, and packets from the node's own addresses are accepted.
const SETTINGS: [(&str, &str); 20] = [
    ("ipv4/conf/all/forwarding", "0"),
    ("ipv4/conf/default/forwarding", "0"),
    ("ipv4/conf/all/arp_ignore", "8"),
    ("ipv4/conf/default/arp_ignore", "8"),
    ("ipv4/conf/all/rp_filter", "0"),
    ("ipv4/conf/default/rp_filter", "0"),
    ("ipv4/conf/all/accept_local", "1"),
    ("ipv4/conf/default/accept_local", "1"),
    ("ipv6/conf/all/disable_ipv6", "0"),
    ("ipv6/conf/default/disable_ipv6", "0"),
    ("ipv6/conf/all/forwarding", "0"),
    ("ipv6/conf/default/forwarding", "0"),
    ("ipv6/conf/all/accept_ra", "0"),
    ("ipv6/conf/default/accept_ra", "0"),
    ("ipv6/conf/default/autoconf", "0"),
    ("ipv6/conf/all/router_solicitations", "0"),
    ("ipv6/conf/default/router_solicitations", "0"),
    ("ipv6/conf/default/accept_dad", "0"),
    ("ipv6/conf/default/addr_gen_mode", "1"),
    ("ipv6/conf/default/keep_addr_on_down", "1"),
];

/// Rtnetlink groups that are joined: links, and addresses, routes and rules of both families. Group `n` is bit `n - 1`.
const GROUPS: u32 = 1 | 1 << 4 | 1 << 6 | 1 << 7 | 1 << 8 | 1 << 10 | 1 << 18;

/// Carries out the daemon's orders until end of file.
///
/// # Errors
/// Standard input is no socket of the daemon.
pub fn main() -> Result<(), CliError> {
    let socket = io::stdin();
    let failed = |err: io::Error| CliError::failed(format!("the daemon's socket: {err}"));
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        signal_hook::flag::register(signal, Arc::default()).map_err(failed)?;
    }
    set_no_new_privs(true).map_err(|err| failed(err.into()))?;
    let mut inside = Inside::default();
    while let Some((number, order, descriptors)) = receive::<Order>(&socket).map_err(failed)? {
        let (answer, descriptors) =
            carry_out(order, descriptors, &mut inside).unwrap_or_else(|why| (Answer::Refused(why), Vec::new()));
        let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        // The daemon may have ended.
        if send(&socket, number, &answer, &descriptors).is_err() {
            break;
        }
    }
    Ok(())
}

/// Namespaces of a host side, as far as they are there.
#[derive(Default)]
struct Inside {
    /// Whether this process is in the namespace.
    is_there: bool,
    /// File that the namespace is bound to.
    place: Option<PathBuf>,
    /// Namespace of the other ends of pairs.
    far: Option<Far>,
}

/// Carries out an order. But for the first one, which makes the namespace, orders are about that namespace alone.
fn carry_out(order: Order, descriptors: Vec<OwnedFd>, inside: &mut Inside) -> Result<(Answer, Vec<OwnedFd>), String> {
    match order {
        Order::Namespace { .. } if inside.is_there => Err("there is a namespace already".to_owned()),
        Order::Namespace { place, record } => {
            let (answer, descriptors) = namespace(place.as_deref(), &record, descriptors.into_iter().next())?;
            inside.is_there = true;
            inside.place = place;
            Ok((answer, descriptors.into_vec()))
        }
        _ if !inside.is_there => Err("there is no namespace yet".to_owned()),
        Order::Look => Ok((Answer::Entered(search::is_entered().map_err(named("/proc"))?), Vec::new())),
        Order::Unbind { place } if inside.place.as_ref() == Some(&place) => {
            unmount(&place, UnmountFlags::DETACH)
                .map_err(io::Error::from)
                .and_then(|()| fs::remove_file(&place))
                .map_err(named(place.display()))?;
            Ok((Answer::Done, Vec::new()))
        }
        Order::Unbind { place } => Err(format!("{}: not the file of this namespace", place.display())),
        Order::Device { name, index, mac, mtu } => {
            let device = HostDevice { name, index, mac: mac.map(MacAddr), mtu };
            let queue = device.make().map_err(|err| err.to_string())?;
            Ok((Answer::Done, vec![queue]))
        }
        Order::Pair { name, index, mac, mtu, peer } => {
            let far = match &mut inside.far {
                Some(far) => far,
                none => none.insert(Far::make()?),
            };
            Ok((Answer::Done, far.pair(&name, index, mac, mtu, &peer)?))
        }
    }
}

/// Enters the namespace that is bound to `place`, or the one of `record`, or creates one. Binds it there, and applies the
/// settings for devices. `stored`: a namespace that the service manager has kept.
fn namespace(place: Option<&Path>, record: &Path, stored: Option<OwnedFd>) -> Result<(Answer, Descriptors), String> {
    let bound = place.and_then(bound);
    let is_bound = bound.is_some();
    // Without a record there is no earlier namespace.
    let found = bound.or_else(|| search::find(record, stored).ok()?);
    let is_of_user = match &found {
        Some(found) => {
            enter(found, LinkNameSpaceType::Network).map_err(named("setns, network namespace"))?;
            false
        }
        None => match unshare(&[Namespace::Network]) {
            Ok(()) => false,
            Err(err) if err.kind() == ErrorKind::PermissionDenied => {
                unshare_as_user()?;
                true
            }
            Err(err) => return Err(format!("unshare, network namespace: {err}")),
        },
    };
    for (name, value) in SETTINGS {
        set(name, value)?;
    }
    // Without a record, as on a kernel without cookies of namespaces, the next gateway finds the namespace by its file alone.
    let _ = search::write(record);
    let unbound = match place {
        _ if is_bound => None,
        Some(_) if is_of_user => Some("a file for it needs CAP_SYS_ADMIN, as root has".to_owned()),
        place => place.and_then(|place| bind_to(place).err()),
    };
    let open = |name: &str| File::open(name).map(OwnedFd::from).map_err(named(name));
    let netlink = |groups| rtnetlink::socket(groups).map_err(|err| format!("rtnetlink: {err}"));
    let control = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None);
    let descriptors = Descriptors {
        network: open(OWN_NETWORK)?,
        requests: netlink(0)?,
        events: netlink(GROUPS)?,
        control: control.map_err(|err| format!("socket: {err}"))?,
        sock_diag: sock_diag().map_err(|err| format!("sock_diag: {err}"))?,
        user: if is_of_user { Some(open("/proc/self/ns/user")?) } else { None },
    };
    let tun_closed = OpenOptions::new().read(true).write(true).open(TUN).err().map(|err| format!("{TUN}: {err}"));
    Ok((Answer::Namespace { found: found.is_some(), unbound, tun_closed }, descriptors))
}

/// Namespace with the other ends of pairs of devices only. It is removed, with the pairs, when this process has ended and
/// the last packet socket is closed.
struct Far {
    /// The host side's namespace, which this process is in.
    near: OwnedFd,
    network: OwnedFd,
    requests: OwnedFd,
}

impl Far {
    fn make() -> Result<Self, String> {
        let open = || File::open(OWN_NETWORK).map(OwnedFd::from).map_err(named(OWN_NETWORK));
        let near = open()?;
        let requests = rtnetlink::socket(0).map_err(|err| format!("rtnetlink: {err}"))?;
        unshare(&[Namespace::Network]).map_err(named("unshare, network namespace"))?;
        // The host side sends no packets of its own.
        ["all", "default"].iter().try_for_each(|scope| set(&format!("ipv6/conf/{scope}/disable_ipv6"), "1"))?;
        let network = open()?;
        enter(&near, LinkNameSpaceType::Network).map_err(named("setns, network namespace"))?;
        Ok(Self { near, network, requests })
    }

    /// Creates a pair whose other end is up. Returns a packet socket and a socket for `ioctl` requests, both in the
    /// namespace of the other end.
    fn pair(&self, name: &str, index: u32, mac: [u8; 6], mtu: u32, peer: &str) -> Result<Vec<OwnedFd>, String> {
        let mut writer = Writer::default();
        rtnl::write_pair(&mut writer, index, (name, peer), mac, mtu, self.network.as_raw_fd() as u32);
        ask(&self.requests, &writer).map_err(named(format!("{name}: veth")))?;
        enter(&self.network, LinkNameSpaceType::Network).map_err(named("setns, network namespace"))?;
        let made = self.sockets(peer);
        enter(&self.near, LinkNameSpaceType::Network).map_err(named("setns, network namespace"))?;
        made.map_err(|why| format!("{name}: the other end: {why}"))
    }

    fn sockets(&self, peer: &str) -> Result<Vec<OwnedFd>, String> {
        let failed = |err: io::Error| err.to_string();
        let requests = rtnetlink::socket(0).map_err(|err| failed(err.into()))?;
        let mut writer = Writer::default();
        rtnl::write_up(&mut writer, peer);
        ask(&requests, &writer).map_err(failed)?;
        let packet = HostDevice::make_pair_socket(peer).map_err(|err| err.to_string())?;
        let control = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None);
        Ok(vec![packet, control.map_err(|err| failed(err.into()))?])
    }
}

/// Sends one request to rtnetlink, and reads its answer.
fn ask(socket: &OwnedFd, request: &Writer) -> io::Result<()> {
    rustix::net::send(socket, request.as_bytes(), SendFlags::empty())?;
    let mut answer = [0; 4096];
    let (len, _) = rustix::net::recv(socket, answer.as_mut_slice(), RecvFlags::empty())?;
    let errno = Messages::new(&answer[..len.min(answer.len())]).next().map_or(0, |message| rtnl::errno_of(&message));
    if errno == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(errno)) }
}

/// The namespace that is bound to a file.
fn bound(place: &Path) -> Option<OwnedFd> {
    let file = File::open(place).ok()?;
    let is_namespace = rustix::fs::fstatfs(&file).is_ok_and(|found| found.f_type == NSFS_MAGIC);
    is_namespace.then(|| file.into())
}

/// Creates a file and binds the network namespace to it.
fn bind_to(place: &Path) -> Result<(), String> {
    if let Some(dir) = place.parent() {
        fs::create_dir_all(dir).map_err(named(dir.display()))?;
    }
    OpenOptions::new().write(true).create(true).truncate(false).open(place).map_err(named(place.display()))?;
    rustix::mount::mount_bind(OWN_NETWORK, place).map_err(|err| {
        // An empty file would make `ip netns` fail.
        let _ = fs::remove_file(place);
        format!("{}: mount: {err}", place.display())
    })
}

/// Creates a user namespace in which this user is root, and a network namespace in it.
fn unshare_as_user() -> Result<(), String> {
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    unshare(&[Namespace::User, Namespace::Network]).map_err(named("unshare, user namespace"))?;
    let maps =
        [("setgroups", "deny".to_owned()), ("uid_map", format!("0 {user} 1")), ("gid_map", format!("0 {group} 1"))];
    for (name, text) in maps {
        let path = format!("/proc/self/{name}");
        write(&path, &text).map_err(named(path))?;
    }
    Ok(())
}

/// Writes a file of `/proc/sys/net`, if the kernel has it.
fn set(name: &str, value: &str) -> Result<(), String> {
    let path = format!("/proc/sys/net/{name}");
    match write(&path, value) {
        Err(err) if err.kind() == ErrorKind::NotFound => Ok(()),
        // If /proc/sys is read-only, the file may already have the value.
        Err(_) if fs::read_to_string(&path).is_ok_and(|now| now.trim() == value) => Ok(()),
        done => done.map_err(named(path)),
    }
}

fn write(path: &str, text: &str) -> io::Result<()> {
    OpenOptions::new().write(true).open(path)?.write_all(text.as_bytes())
}

/// Netlink socket of `sock_diag`, for the sockets of the namespace.
pub(super) fn sock_diag() -> Result<OwnedFd, Errno> {
    socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, Some(SOCK_DIAG))
}

fn named(what: impl std::fmt::Display) -> impl FnOnce(io::Error) -> String {
    move |err| format!("{what}: {err}")
}
