//! The [opener](crate::opener) of a host side. It makes the namespace, stays inside, and makes and changes devices,
//! addresses, routes and rules there.
//!
//! It is a process of its own because a user namespace can be entered by a process of one thread only, and cannot be left.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use client::CliError;
use link::{HostDevice, Namespace, unshare};
use netlink::message::{Messages, Writer};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use rustix::net::netlink::SOCK_DIAG;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, socket_with};
use rustix::process::{getegid, geteuid};
use rustix::thread::LinkNameSpaceType;
use wire::eth::MacAddr;

use super::content::Step;
use super::order::{Answer, Descriptors, Files, Order};
use super::rtnl;
use super::search::{self, OWN_NETWORK, enter};
use crate::confine::{self, Role};
use crate::opener::process::{Carried, close_memory, serve};
use crate::rtnetlink::{self, Rtnetlink};

/// Steps of one order at most: their answers fit into the socket's buffer.
pub(super) const BATCH: usize = 64;

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

/// Carries out the gateway's orders until end of file.
///
/// # Errors
/// As [`serve`].
pub(crate) fn main() -> Result<(), CliError> {
    let mut inside = Inside::default();
    serve(|order, descriptors| inside.carry_out(order, descriptors), Answer::Refused, false)
}

/// Namespaces of a host side, as far as they are there.
#[derive(Default)]
struct Inside {
    files: Option<Files>,
    /// Whether the order for the namespace has come: the files of a gateway that runs are not to be trusted.
    is_made: bool,
    /// Socket for changes in the namespace, once this process is there.
    changes: Option<Rtnetlink>,
    /// Namespace of the other ends of pairs.
    far: Option<Far>,
}

impl Inside {
    /// Carries out an order. But for the first two, which make the namespace, orders are about that namespace alone.
    fn carry_out(&mut self, order: Order, descriptors: Vec<OwnedFd>) -> Carried<Answer> {
        let files = match (&order, &self.files) {
            (Order::Begin(_), Some(_)) => return Err("it has begun already".to_owned()),
            (Order::Begin(files), None) => {
                let mut missing = Vec::new();
                if files.is_confined {
                    confine::keep(confine::of_host_side())?;
                    // It mounts the namespace to its file, which Landlock forbids.
                    missing = confine::restrict_opener(Role::HostSideOpener, None);
                }
                self.files = Some(files.clone());
                return Ok((Answer::Begun { missing }, Vec::new()));
            }
            (_, None) => return Err("it has not begun yet".to_owned()),
            (_, Some(files)) => files,
        };
        if let Order::Namespace = order {
            if self.is_made {
                return Err("there is a namespace already".to_owned());
            }
            self.is_made = true;
            let (answer, descriptors, changes) = namespace(files, descriptors.into_iter().next())?;
            // From here on files of /proc of this process need not be its user's.
            close_memory();
            self.changes = Some(changes);
            return Ok((answer, descriptors.into_vec()));
        }
        let changes = self.changes.as_mut().ok_or("there is no namespace yet")?;
        match order {
            Order::Begin(_) | Order::Namespace => Err("it has begun already".to_owned()),
            Order::Change(steps) => Ok((Answer::Changed(change(changes, &steps)?), Vec::new())),
            Order::Remove(index) => {
                let removed = changes.ask_all(1, |writer, seq, _| rtnl::write_removal(writer, index, seq));
                let numbers = removed.map_err(named("rtnetlink"))?.into_iter().map(|(_, number)| number);
                Ok((Answer::Changed(numbers.collect()), Vec::new()))
            }
            Order::Look => Ok((Answer::Entered(search::is_entered().map_err(named("/proc"))?), Vec::new())),
            Order::Unbind => {
                let place = files.place.as_ref().ok_or("the namespace has no file")?;
                unmount(place, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)
                    .map_err(io::Error::from)
                    .and_then(|()| fs::remove_file(place))
                    .map_err(named(place.display()))?;
                Ok((Answer::Done, Vec::new()))
            }
            Order::Device { name, index, mac, mtu } => {
                let device = HostDevice { name, index, mac: mac.map(MacAddr), mtu };
                let queue = device.make().map_err(|err| err.to_string())?;
                Ok((Answer::Done, vec![queue]))
            }
            Order::Pair { name, index, mac, mtu, peer } => {
                let far = match &mut self.far {
                    Some(far) => far,
                    none => none.insert(Far::make()?),
                };
                Ok((Answer::Done, far.pair(&name, index, mac, mtu, &peer)?))
            }
        }
    }
}

/// Takes steps. Returns the `errno` of each, or 0.
fn change(changes: &mut Rtnetlink, steps: &[Step]) -> Result<Vec<i32>, String> {
    if steps.len() > BATCH {
        return Err(format!("{} steps are more than {BATCH}", steps.len()));
    }
    let written = |writer: &mut _, seq, at: usize| rtnl::write_step(writer, &steps[at], seq);
    let mut numbers = vec![0; steps.len()];
    for (at, number) in changes.ask_all(steps.len(), written).map_err(named("rtnetlink"))? {
        numbers[at] = number;
    }
    Ok(numbers)
}

/// Enters the namespace that is bound to the place, or the one of the record, or creates one. Binds it there, and applies the
/// settings for devices. `stored`: a namespace that the service manager has kept. Returns also a socket for changes in it.
fn namespace(files: &Files, stored: Option<OwnedFd>) -> Result<(Answer, Descriptors, Rtnetlink), String> {
    let (place, record) = (files.place.as_deref(), files.record.as_path());
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
        dumps: netlink(0)?,
        events: netlink(GROUPS)?,
        control: control.map_err(|err| format!("socket: {err}"))?,
        sock_diag: sock_diag().map_err(|err| format!("sock_diag: {err}"))?,
        user: if is_of_user { Some(open("/proc/self/ns/user")?) } else { None },
    };
    let tun_closed = OpenOptions::new().read(true).write(true).open(TUN).err().map(|err| format!("{TUN}: {err}"));
    let changes = Rtnetlink::open().map_err(named("rtnetlink"))?;
    let (found, port) = (found.is_some(), changes.port);
    Ok((Answer::Namespace { found, unbound, tun_closed, port }, descriptors, changes))
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
    let is_own = fs::metadata(OWN_NETWORK).ok()?.ino() == file.metadata().ok()?.ino();
    (is_namespace && !is_own).then(|| file.into())
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

/// Reads an order, and writes its requests to the kernel, without carrying it out. Tells whether the order was one.
#[cfg(feature = "fuzzing")]
pub(crate) fn check_order(bytes: &[u8]) -> bool {
    let Ok((_, Some(order), _)) = crate::opener::message::parse::<Order>(bytes) else { return false };
    let mut writer = Writer::default();
    if let Order::Change(steps) = &order {
        steps.iter().for_each(|step| rtnl::write_step(&mut writer, step, 1));
        assert_eq!(Messages::new(writer.as_bytes()).count(), steps.len());
    }
    assert!(Inside { files: Some(Files::default()), ..Inside::default() }.is_refused(order));
    true
}

#[cfg(feature = "fuzzing")]
impl Inside {
    /// Whether an order is refused before there is a namespace.
    fn is_refused(&mut self, order: Order) -> bool {
        matches!(order, Order::Namespace) || self.carry_out(order, Vec::new()).is_err()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Refusal of an order of a gateway with files, if there are any.
    fn refused(files: Option<Files>, order: Order) -> String {
        Inside { files, ..Inside::default() }.carry_out(order, Vec::new()).unwrap_err()
    }

    #[test]
    fn order_before_its_time_is_refused() {
        let device = || Order::Device { name: "t0".to_owned(), index: 7, mac: None, mtu: None };
        assert_eq!(refused(None, device()), "it has not begun yet");
        assert_eq!(refused(None, Order::Namespace), "it has not begun yet");
        let begun = || Some(Files::default());
        for order in [device(), Order::Look, Order::Unbind, Order::Remove(1), Order::Change(Vec::new())] {
            assert_eq!(refused(begun(), order), "there is no namespace yet");
        }
        assert_eq!(refused(begun(), Order::Begin(Files::default())), "it has begun already");
    }

    #[test]
    fn namespace_is_entered_once_even_if_that_fails() {
        let mut inside = Inside { files: Some(Files::default()), is_made: true, ..Inside::default() };
        assert_eq!(inside.carry_out(Order::Namespace, Vec::new()).unwrap_err(), "there is a namespace already");
        assert_eq!(inside.carry_out(Order::Look, Vec::new()).unwrap_err(), "there is no namespace yet");
    }

    #[test]
    fn order_with_too_many_steps_is_refused() {
        let step = Step::Device(
            1,
            super::super::content::Device { name: "lo".to_owned(), mac: None, mtu: 1, up: true, has_arp: false },
        );
        let mut changes = Rtnetlink::open().unwrap();
        assert_eq!(change(&mut changes, &vec![step; BATCH + 1]).unwrap_err(), "65 steps are more than 64");
    }
}
