//! Judgement of orders without carrying them out, for the fuzz targets.

use std::collections::BTreeSet;
use std::path::PathBuf;

use base::{Prefix, TableId};
use driver::DriverKind;
use netlink::message::{Messages, Writer};
use netlink::rtnl::nums::RTN_UNICAST;

use super::files::{Directory, FileOrder, FileWork, Named, SocketRole};
use super::judge::{Judge, Present, Unmade};
use super::message::parse;
use super::order::{Change, Gateway, LinkOrder};
use crate::confine::LinkRight;
use crate::device;
use crate::host::rtnl::{self, HostRoute, TunDevice};

/// Judges an order in the opener of the gateway `a`, which may open TUN devices and UDP sockets and has opened device 7. Tells
/// whether the order was one.
///
/// # Panics
/// A change of a foreign device or route is admitted, or the kernel is asked for another change than the admitted one.
pub(crate) fn judge(bytes: &[u8]) -> bool {
    let Ok((_, Some(order), _)) = parse::<LinkOrder>(bytes) else { return false };
    let of_file = BTreeSet::from([LinkRight::Tun]);
    let rights = Some(of_file.clone());
    let mut judge = Judge::new(Gateway { instance: "a".to_owned(), rights, of_file, ..Gateway::default() });
    judge.opened("t7", &DriverKind::Tun { queues: 1 }, Some(7));
    judge.ready();
    match order {
        LinkOrder::Begin(_) | LinkOrder::Directories(_) | LinkOrder::Port | LinkOrder::Ready | LinkOrder::Widen => {}
        LinkOrder::File(order) => judged_file(&order),
        LinkOrder::Open(opening) if judge.open(&opening, None, |_| false).is_ok() => {
            let is_free = |port: u16| port >= 1024;
            assert!(match opening.kind {
                DriverKind::Tun { .. } => true,
                DriverKind::Udp { bind } => is_free(bind.port()),
                _ => false,
            });
        }
        LinkOrder::Open(_) | LinkOrder::Adopt(_) => {}
        LinkOrder::Bind { address, .. } => assert!(judge.bind(address).is_err(), "no UDP link is open"),
        LinkOrder::Change(changes) => {
            if Judge::changes(&changes).is_ok() {
                changes.iter().for_each(|change| judged(&judge, change));
            }
        }
    }
    true
}

/// Judges an order about a file of the gateway `a`, with its state, its configuration, a guest and a back end in the directory of its
/// sockets, and guests in another one.
fn judged_file(order: &FileOrder) {
    let at = |files| Directory { path: PathBuf::from("/run/fatpath"), files };
    let state = || "a.state".to_owned();
    let directories = [
        at(Named::Sockets),
        at(Named::State(state())),
        at(Named::Configuration("a.toml".to_owned())),
        at(Named::Guest("guest.sock".to_owned())),
        at(Named::BackEnd("back.sock".to_owned())),
        at(Named::EarlierGuest("earlier.sock".to_owned())),
        Directory { path: PathBuf::from("/run/guests"), files: Named::Guests },
    ];
    let [.., of_guests] = &directories;
    if !directories.iter().any(|directory| directory.admits("a", order)) {
        return;
    }
    let FileOrder { dir, name, work } = order;
    assert!(!name.contains('/'), "{name}");
    // Of the sockets that the opener has made or taken on.
    if matches!(work, FileWork::RemoveSocket { .. }) {
        return;
    }
    if *dir == of_guests.path {
        assert!(matches!(work, FileWork::Bind(SocketRole::Guest) | FileWork::Adopt));
        return;
    }
    assert_eq!(*dir, directories[0].path);
    match work {
        FileWork::Bind(SocketRole::Guest) => return assert_eq!(name, "guest.sock"),
        FileWork::Adopt => return assert!(matches!(name.as_str(), "guest.sock" | "earlier.sock")),
        FileWork::Find | FileWork::Connect => return assert_eq!(name, "back.sock"),
        FileWork::Read => assert!(name == "a.toml" || name.starts_with("a.state"), "{name}"),
        FileWork::Write => assert_eq!(*name, state()),
        FileWork::Make => assert!(name.starts_with("a.state.journal-"), "{name}"),
        FileWork::Remove => assert!(*name != state() && name != "a.toml", "{name}"),
        FileWork::Rename(to) => assert!(to.starts_with("a.") && !to.contains('/') && *to != state(), "{to}"),
        FileWork::Share => assert!(name.starts_with("a.ike-"), "{name}"),
        FileWork::AdmitViewers => assert_eq!(name, "a.view.sock"),
        FileWork::Bind(_) | FileWork::RemoveSocket { .. } => {}
    }
    assert!(name.starts_with("a."), "{name}");
}

fn judged(judge: &Judge, change: &Change) {
    let device = |index: u32, alias: &str, is_attached| TunDevice {
        index,
        name: format!("t{index}"),
        alias: Some(alias.to_owned()),
        up: true,
        is_tap: false,
        has_many_queues: false,
        is_attached,
    };
    let devices = [device(7, "", true), device(8, "fatpath a", false), device(9, "fatpath b", false)];
    let routes = [7, 9].map(|index| HostRoute {
        table: TableId::MAIN.0,
        prefix: Prefix::ANY_V4,
        metric: u32::from(index == 9),
        kind: RTN_UNICAST,
        protocol: 3,
        src: None,
        devices: vec![index],
        mark: 0,
    });
    match judge.change(change, Present { devices: &devices, routes: &routes }) {
        Ok(()) => {}
        Err(Unmade::Gone | Unmade::Refused(_)) => return,
    }
    let is_own = |index: u32| matches!(index, 7 | 8);
    let mut writer = Writer::default();
    change.write(&mut writer, 1);
    let message = Messages::new(writer.as_bytes()).next().expect("a request");
    match change {
        Change::Address { address, is_new: true } => {
            assert!(is_own(address.index));
            assert_eq!(rtnl::read_host_address(&message), Some(*address));
        }
        Change::Address { address: rtnl::HostAddress { index, .. }, is_new: false } | Change::Mtu { index, .. } => {
            assert!(is_own(*index));
            assert_eq!(rtnl::index_of(&message), Some(*index));
        }
        Change::Route { route, .. } => {
            let is_behind = (route.prefix, route.metric) == (Prefix::ANY_V4, 1);
            let is_wall = device::is_wall_of(route, "a") && is_behind;
            assert!(is_wall || matches!(route.devices[..], [index] if is_own(index)));
            if route.src.is_none_or(|src| src.is_ipv4() == route.prefix.is_ipv4()) {
                assert_eq!(rtnl::read_host_route(&message).as_ref(), Some(route));
            }
        }
        Change::Remove { index } => assert_eq!((*index, rtnl::index_of(&message)), (8, Some(8))),
        Change::Mac { .. } => panic!("no interface is open"),
    }
}
