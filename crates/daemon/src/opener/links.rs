//! Opening of links, and changes of devices, on orders.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use base::ShardCount;
use client::CliError;
use driver::Resource;
use netlink::message::Writer;
use netlink::rtnl::nums::RTM_GETROUTE;
use rustix::io::Errno;

use super::files::{self, Directory, FileOrder, FileWork, SocketRole};
use super::judge::{Judge, Present, Unmade};
use super::order::{Change, Gateway, LinkAnswer, LinkOrder, Opening};
use super::process::{Carried, serve};
use super::start_file::StartFile;
use crate::confine::{self, Role};
use crate::device;
use crate::host::rtnl;
use crate::rtnetlink::Rtnetlink;
use crate::viewers;

/// MTU of a TUN or TAP device without one in the file.
const DEFAULT_MTU: u16 = 1500;

/// Directories of a gateway at most: links with sockets of guests may have one each.
const MOST_DIRECTORIES: usize = 4096;

/// Links of a gateway, as they are opened and changed in the calling thread's network namespace.
#[derive(Debug)]
pub(crate) struct LinkOpener {
    gateway: Gateway,
    directories: Vec<Directory>,
    /// Devices and inodes of the sockets of guests that were made, or taken on, by their paths.
    guests: BTreeMap<PathBuf, (u64, u64)>,
    judge: Judge,
    file: StartFile,
    /// Socket for changes, from the first one on.
    kernel: Option<Rtnetlink>,
}

/// Carries out the gateway's orders until end of file.
///
/// # Errors
/// As [`serve`].
pub(crate) fn main() -> Result<(), CliError> {
    viewers::join();
    let mut links = None;
    let mut directories = Vec::new();
    let carry_out = |order, descriptors| match (order, &mut links) {
        (LinkOrder::Begin(_) | LinkOrder::Directories(_), Some(_)) => Err("it has begun already".to_owned()),
        (LinkOrder::Directories(more), None) => {
            directories.extend(more);
            match directories.len() {
                0..=MOST_DIRECTORIES => Ok((LinkAnswer::Done(vec![0]), Vec::new())),
                _ => Err(format!("files in more than {MOST_DIRECTORIES} directories")),
            }
        }
        (LinkOrder::Begin(gateway), none) => {
            // Without the right to do it the gateway keeps its user, too.
            let _ = gateway.user.map(confine::join);
            let mut missing = Vec::new();
            let mut gateway = gateway;
            if let Some(rights) = &gateway.rights {
                confine::keep(confine::of_links(rights, gateway.has_host_side))?;
                missing = confine::restrict_opener(Role::LinkOpener, Some(&files::places(&directories)));
            }
            // A gateway without Landlock may write each file of its user's.
            if missing.iter().any(|why| why.starts_with(confine::LANDLOCK)) {
                gateway.file = None;
            }
            none.insert(LinkOpener::new(gateway, std::mem::take(&mut directories))).begun(missing)
        }
        (_, None) => Err("it has not begun yet".to_owned()),
        (order, Some(links)) => links.carry_out(order, descriptors),
    };
    serve(carry_out, LinkAnswer::Refused, true)
}

impl LinkOpener {
    pub(crate) fn new(gateway: Gateway, directories: Vec<Directory>) -> Self {
        let (judge, file) = (Judge::new(gateway.clone()), StartFile::new(gateway.file.clone(), gateway.user));
        Self { gateway, directories, guests: BTreeMap::new(), judge, file, kernel: None }
    }

    /// Carries out an order.
    ///
    /// # Errors
    /// The reason of a refusal.
    pub(crate) fn carry_out(&mut self, order: LinkOrder, descriptors: Vec<OwnedFd>) -> Carried<LinkAnswer> {
        match order {
            LinkOrder::Begin(_) | LinkOrder::Directories(_) => Err("it has begun already".to_owned()),
            LinkOrder::Port => self.begun(Vec::new()),
            LinkOrder::Ready => {
                self.judge.ready();
                Ok((LinkAnswer::Done(Vec::new()), Vec::new()))
            }
            LinkOrder::Open(opening) => self.open(&opening, descriptors.first()),
            LinkOrder::Adopt(opening) => self.adopt(&opening),
            LinkOrder::Change(changes) => Ok((LinkAnswer::Done(self.change(&changes)?), Vec::new())),
            LinkOrder::Bind { address, joins } => {
                self.judge.bind(address)?;
                Ok(match link::bind_port(address, joins) {
                    Ok(socket) => (LinkAnswer::Done(vec![0]), vec![socket]),
                    Err(err) => (LinkAnswer::Done(vec![number_of(&err)]), Vec::new()),
                })
            }
            LinkOrder::Widen => {
                let [socket] = <[OwnedFd; 1]>::try_from(descriptors)
                    .map_err(|given| format!("it takes one descriptor, not {}", given.len()))?;
                let widened = link::widen(socket.as_fd());
                Ok((LinkAnswer::Done(vec![widened.map_or_else(|err| number_of(&err), |()| 0)]), Vec::new()))
            }
            LinkOrder::File(order) => self.file(&order),
        }
    }

    /// Carries out an order about a file of the gateway.
    fn file(&mut self, order: &FileOrder) -> Carried<LinkAnswer> {
        let path = order.dir.join(&order.name);
        let is_own = match order.work {
            FileWork::RemoveSocket { device, inode } => self.guests.remove(&path) == Some((device, inode)),
            _ => true,
        };
        let mut directories = self.directories.iter();
        let is_admitted = directories.any(|directory| directory.admits(&self.gateway.instance, order));
        if !is_own || !is_admitted && !self.file.admits(order) {
            return Ok((LinkAnswer::Done(vec![Errno::ACCESS.raw_os_error()]), Vec::new()));
        }
        match files::carry_out(order, self.gateway.user) {
            Ok(descriptors) => {
                if let (FileWork::Bind(SocketRole::Guest), [_, file]) | (FileWork::Adopt, [file]) =
                    (&order.work, &descriptors[..])
                    && let Ok(identity) = files::identity(file)
                {
                    self.guests.insert(path, identity);
                }
                Ok((LinkAnswer::Done(vec![0]), descriptors))
            }
            Err(err) => match err.raw_os_error() {
                Some(number) => Ok((LinkAnswer::Done(vec![number]), Vec::new())),
                None => Err(err.to_string()),
            },
        }
    }

    fn begun(&mut self, missing: Vec<String>) -> Carried<LinkAnswer> {
        Ok((LinkAnswer::Begun { port: self.kernel()?.port, missing }, Vec::new()))
    }

    fn open(&mut self, opening: &Opening, client: Option<&OwnedFd>) -> Carried<LinkAnswer> {
        self.judge.open(opening, client, |link| self.file.has(link))?;
        let shards = ShardCount::new(opening.shards).ok_or_else(|| format!("{} workers", opening.shards))?;
        let prepared = match opening.kind.resource() {
            Resource::Device => {
                let Gateway { instance, keeps_devices, .. } = self.gateway.clone();
                device::prepare(self.kernel()?, (&instance, keeps_devices), &opening.name, (&opening.kind, shards))?
            }
            _ => device::Prepared::default(),
        };
        // A device may be there already, with the MTU of an earlier file.
        let mtu = opening.mtu.or(prepared.is_own.then_some(DEFAULT_MTU));
        let acquired = link::acquire(&opening.config(mtu), shards).map_err(|err| {
            let on = if err.device == opening.name { String::new() } else { format!("link {}: ", opening.name) };
            format!("{on}{err}")
        })?;
        let device = match opening.kind.resource() {
            Resource::Device => Some(opening.name.as_str()),
            Resource::Interface(interface) => Some(interface),
            Resource::UdpSocket(_) | Resource::VhostSocket(_) => None,
        };
        let index = device.map(link::interface_index).transpose();
        let index = index.map_err(|err| format!("{}: SIOCGIFINDEX: {err}", opening.name))?;
        if let Some(index) = index.filter(|_| prepared.is_own) {
            let instance = self.gateway.instance.clone();
            device::claim(self.kernel()?, &instance, index).map_err(|why| format!("{}: {why}", opening.name))?;
        }
        self.judge.opened(&opening.name, &opening.kind, index);
        let device::Prepared { is_own, is_remade } = prepared;
        let answer = LinkAnswer::Opened { is_own, is_remade, why_generic: acquired.why_generic };
        Ok((answer, acquired.descriptors))
    }

    /// Takes on a link that another gateway has opened. A device that is not there is none of this gateway.
    fn adopt(&mut self, opening: &Opening) -> Carried<LinkAnswer> {
        self.judge.open(opening, None, |link| self.file.has(link))?;
        let (index, is_own) = match opening.kind.resource() {
            Resource::Device => {
                let devices = device::tun_devices(self.kernel()?).map_err(|err| format!("list of devices: {err}"))?;
                let device = devices.into_iter().find(|device| device.name == opening.name);
                let is_own = device.as_ref().and_then(device::owner_of) == Some(self.gateway.instance.as_str());
                (device.map(|device| device.index), is_own)
            }
            Resource::Interface(interface) => (link::interface_index(interface).ok(), false),
            Resource::UdpSocket(_) | Resource::VhostSocket(_) => (None, false),
        };
        self.judge.opened(&opening.name, &opening.kind, index);
        Ok((LinkAnswer::Opened { is_own, is_remade: false, why_generic: None }, Vec::new()))
    }

    /// Makes changes. Returns the `errno` of each, or 0.
    fn change(&mut self, changes: &[Change]) -> Result<Vec<i32>, String> {
        Judge::changes(changes)?;
        let takes_routes = self.judge.takes_routes(changes);
        let mut devices = Vec::new();
        if takes_routes || changes.iter().any(Change::names_device) {
            devices = device::tun_devices(self.kernel()?).map_err(|err| format!("list of devices: {err}"))?;
            self.judge.forget_absent(&devices);
        }
        let mut routes = Vec::new();
        if takes_routes {
            let listed = self.kernel()?.dump(RTM_GETROUTE, |message| routes.extend(rtnl::read_host_route(message)));
            listed.map_err(|err| format!("list of routes: {err}"))?;
        }
        let present = Present { devices: &devices, routes: &routes };
        let mut errors = Vec::new();
        for change in changes {
            errors.push(match self.judge.change(change, present) {
                Ok(()) => match self.kernel()?.ask(|writer, seq| change.write(writer, seq)) {
                    Ok(()) => 0,
                    Err(err) => err.raw_os_error().ok_or_else(|| format!("rtnetlink: {err}"))?,
                },
                Err(Unmade::Gone) => Errno::NODEV.raw_os_error(),
                Err(Unmade::Refused(why)) => return Err(why),
            });
        }
        Ok(errors)
    }

    fn kernel(&mut self) -> Result<&mut Rtnetlink, String> {
        if self.kernel.is_none() {
            self.kernel = Some(Rtnetlink::open().map_err(|err| format!("rtnetlink: {err}"))?);
        }
        self.kernel.as_mut().ok_or_else(|| "rtnetlink".to_owned())
    }
}

impl Change {
    /// Whether the judgement depends on the present devices.
    fn names_device(&self) -> bool {
        match self {
            Self::Address { .. } | Self::Remove { .. } | Self::Mtu { .. } => true,
            Self::Route { route, .. } => !route.devices.is_empty(),
            Self::Mac { .. } => false,
        }
    }

    /// Writes the request for the change.
    pub(super) fn write(&self, writer: &mut Writer, seq: u32) {
        match self {
            Self::Address { address, is_new } => rtnl::write_host_address(writer, address, *is_new, seq),
            Self::Route { route, is_new } => rtnl::write_host_route(writer, route, *is_new, seq),
            Self::Remove { index } => rtnl::write_removal(writer, *index, seq),
            Self::Mtu { index, mtu } => rtnl::write_mtu(writer, *index, *mtu, seq),
            Self::Mac { index, mac } => rtnl::write_mac(writer, *index, mac, seq),
        }
    }
}

/// The `errno` of a failure.
fn number_of(err: &std::io::Error) -> i32 {
    err.raw_os_error().unwrap_or(Errno::INVAL.raw_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_without_its_descriptor_is_refused() {
        let mut links = LinkOpener::new(Gateway::default(), Vec::new());
        let mut why = |given| links.carry_out(LinkOrder::Widen, given).unwrap_err();
        assert_eq!(why(Vec::new()), "it takes one descriptor, not 0");
        let file = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        assert_eq!(why(vec![file(), file()]), "it takes one descriptor, not 2");
        let (answer, _) = links.carry_out(LinkOrder::Widen, vec![file()]).unwrap();
        assert_eq!(answer, LinkAnswer::Done(vec![Errno::NOTSOCK.raw_os_error()]));
    }

    #[test]
    fn socket_of_a_guest_is_removed_by_its_maker_alone() {
        let dir = std::env::temp_dir().join(format!("fatpath-links-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let directories = vec![Directory { path: dir.clone(), files: files::Named::Guests }];
        let mut links = LinkOpener::new(Gateway::default(), directories.clone());
        let order = |work| LinkOrder::File(FileOrder { dir: dir.clone(), name: "vm1".to_owned(), work });
        let (answer, descriptors) = links.carry_out(order(FileWork::Bind(SocketRole::Guest)), Vec::new()).unwrap();
        assert_eq!((answer, descriptors.len()), (LinkAnswer::Done(vec![0]), 2));
        let (device, inode) = files::identity(&descriptors[1]).unwrap();
        // Nothing listens there yet.
        let remove = || order(FileWork::RemoveSocket { device, inode });
        let refused = LinkAnswer::Done(vec![Errno::ACCESS.raw_os_error()]);
        let mut other = LinkOpener::new(Gateway::default(), directories);
        assert_eq!(other.carry_out(remove(), Vec::new()).unwrap().0, refused);
        assert!(dir.join("vm1").exists());
        assert_eq!(links.carry_out(remove(), Vec::new()).unwrap().0, LinkAnswer::Done(vec![0]));
        assert!(!dir.join("vm1").exists());
        // The opener of a later gateway takes it on, once.
        let (_, again) = links.carry_out(order(FileWork::Bind(SocketRole::Guest)), Vec::new()).unwrap();
        let (device, inode) = files::identity(&again[1]).unwrap();
        let remove = || order(FileWork::RemoveSocket { device, inode });
        let (answer, adopted) = other.carry_out(order(FileWork::Adopt), Vec::new()).unwrap();
        assert_eq!((answer, files::identity(&adopted[0]).unwrap()), (LinkAnswer::Done(vec![0]), (device, inode)));
        assert_eq!(other.carry_out(remove(), Vec::new()).unwrap().0, LinkAnswer::Done(vec![0]));
        assert!(!dir.join("vm1").exists());
        assert_eq!(other.carry_out(remove(), Vec::new()).unwrap().0, refused);
        // A file of another path is none of those.
        let (_, made) = links.carry_out(order(FileWork::Bind(SocketRole::Guest)), Vec::new()).unwrap();
        let (device, inode) = files::identity(&made[1]).unwrap();
        std::fs::rename(dir.join("vm1"), dir.join("vm2")).unwrap();
        let renamed =
            FileOrder { dir: dir.clone(), name: "vm2".to_owned(), work: FileWork::RemoveSocket { device, inode } };
        assert_eq!(links.carry_out(LinkOrder::File(renamed), Vec::new()).unwrap().0, refused);
        assert!(dir.join("vm2").exists());
        // No order leads out of the directories of the start.
        let elsewhere = FileOrder { dir: "/etc".into(), name: "vm1".to_owned(), work: FileWork::Read };
        assert_eq!(links.carry_out(LinkOrder::File(elsewhere), Vec::new()).unwrap().0, refused);
        std::fs::remove_dir_all(&dir).unwrap();
    }

    /// Orders that a gateway which was taken over sends about sockets of others in the directory of its own.
    #[test]
    fn socket_of_another_gateway_is_neither_made_nor_connected_to() {
        let dir = std::env::temp_dir().join(format!("fatpath-others-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let at = |files| Directory { path: dir.clone(), files };
        let state = files::Named::State("a.state".to_owned());
        let guest = files::Named::Guest("vm1.sock".to_owned());
        let directories = vec![at(files::Named::Sockets), at(state), at(guest)];
        let config = dir.join("a.toml");
        let gateway = Gateway { instance: "a".to_owned(), file: Some(config.clone()), ..Gateway::default() };
        let mut links = LinkOpener::new(gateway, directories);
        let mut number = |name: &str, work| {
            let order = FileOrder { dir: dir.clone(), name: name.to_owned(), work };
            match links.carry_out(LinkOrder::File(order), Vec::new()).unwrap().0 {
                LinkAnswer::Done(numbers) => numbers[0],
                other => panic!("{other:?}"),
            }
        };
        let refused = Errno::ACCESS.raw_os_error();
        let other = std::os::unix::net::UnixListener::bind(dir.join("b.sock")).unwrap();
        for name in ["b.sock", "a.sock", "vm1.sock"] {
            assert_eq!(number(name, FileWork::Connect), refused, "{name}");
        }
        for name in ["b.vici", "b.state", "b.sock", "c.sock"] {
            assert_eq!(number(name, FileWork::Bind(SocketRole::Guest)), refused, "{name}");
            assert_eq!(number(name, FileWork::Adopt), refused, "{name}");
        }
        assert_eq!(number("vm1.sock", FileWork::Bind(SocketRole::Guest)), 0);
        // The file of the start, as it is now, has more.
        let link = |name: &str, kind: &str, socket: &str| {
            let socket = dir.join(socket).display().to_string();
            format!("[[link]]\nname = \"{name}\"\nkind = \"{kind}\"\nsocket = \"{socket}\"\n")
        };
        std::fs::write(&config, link("g0", "vhost-user", "vm2.sock") + &link("g1", "virtio-user", "b.sock")).unwrap();
        assert_eq!(number("vm2.sock", FileWork::Bind(SocketRole::Guest)), 0);
        assert_eq!(number("b.sock", FileWork::Bind(SocketRole::Guest)), refused);
        assert_eq!((number("b.sock", FileWork::Find), number("b.sock", FileWork::Connect)), (0, 0));
        assert_eq!(number("vm2.sock", FileWork::Connect), refused);
        drop(other);
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn gateway_of_a_begun_opener_stays() {
        let mut links = LinkOpener::new(Gateway::default(), Vec::new());
        let why = links.carry_out(LinkOrder::Begin(Gateway::default()), Vec::new()).unwrap_err();
        assert_eq!(why, "it has begun already");
    }
}
