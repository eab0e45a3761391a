//! Orders that are refused. A gateway that was taken over sends any: nothing here trusts it.

use std::collections::{BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

use base::TableId;
use driver::{DriverKind, Resource};
use netlink::rtnl::nums::RTN_UNICAST;

use super::client;
use super::order::{Change, Gateway, Opening};
use super::start_file::NamedLink;
use crate::confine::{self, LinkRight};
use crate::device::{self, PROTOCOL};
use crate::host::rtnl::{HostRoute, TunDevice};

/// Links at most that are opened again without a client. A gateway has 1024 at most.
const MOST_KNOWN: usize = 2048;

/// Changes of one order at most.
const MOST_CHANGES: usize = 256;

/// The gateway, and what it has opened.
#[derive(Debug, Default)]
pub(crate) struct Judge {
    gateway: Gateway,
    /// Whether the gateway's start is over.
    is_ready: bool,
    /// Names and kinds of the last links that were opened at the start or by the right of a client.
    known: VecDeque<NamedLink>,
    /// Numbers of the TUN and TAP devices of links.
    devices: BTreeSet<u32>,
    /// Numbers of the interfaces of links.
    interfaces: BTreeSet<u32>,
    /// Addresses of UDP links.
    addresses: BTreeSet<IpAddr>,
}

/// Devices and routes of the host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Present<'a> {
    /// TUN and TAP devices.
    pub(crate) devices: &'a [TunDevice],
    /// Routes, if [any change takes them](Judge::takes_routes).
    pub(crate) routes: &'a [HostRoute],
}

/// Verdict about a change that is not made.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Unmade {
    /// There is no such device any more.
    Gone,
    /// The gateway may not make this change.
    Refused(String),
}

impl Judge {
    pub(crate) fn new(gateway: Gateway) -> Self {
        Self { gateway, ..Self::default() }
    }

    /// Notes the end of the gateway's start.
    pub(crate) fn ready(&mut self) {
        self.is_ready = true;
    }

    /// Judges the opening of a link. After the start, one of a kind that the file of the start did not have takes the right of the client
    /// that has asked for it, whose connection `client` is, or `is_in_file` finds it in that file; once for each name.
    ///
    /// # Errors
    /// The reason of the refusal.
    pub(crate) fn open(
        &mut self,
        opening: &Opening,
        client: Option<&OwnedFd>,
        is_in_file: impl FnOnce(&NamedLink) -> bool,
    ) -> Result<(), String> {
        let Opening { name, kind, .. } = opening;
        if let Resource::VhostSocket(_) = kind.resource() {
            return Err(format!("a link of kind {} takes no capability", kind.word()));
        }
        confine::admit(kind, self.gateway.rights.as_ref())?;
        // With a UDP link its address is admitted for all ports.
        let Some(right) = LinkRight::kept_for(kind).filter(|right| !self.gateway.of_file.contains(right)) else {
            return Ok(());
        };
        let link = (name.clone(), kind.clone());
        if let Some(at) = self.known.iter().position(|known| *known == link) {
            self.known.remove(at);
        } else if self.is_ready && !is_in_file(&link) {
            match client::check(client, &self.gateway.sockets, std::process::id()) {
                Ok(()) => {}
                // It takes no capability.
                Err(_) if LinkRight::of(kind).is_none() => return Ok(()),
                Err(why) => {
                    let word = right.word();
                    return Err(format!(
                        "link {name}: the file of the gateway's start had no link of kind {word}: {why}"
                    ));
                }
            }
        }
        self.known.truncate(MOST_KNOWN - 1);
        self.known.push_front(link);
        Ok(())
    }

    /// Notes that a link is open; `index`: the number of its device or interface.
    pub(crate) fn opened(&mut self, name: &str, kind: &DriverKind, index: Option<u32>) {
        match kind.resource() {
            Resource::Device => self.devices.extend(index),
            Resource::Interface(_) => self.interfaces.extend(index),
            Resource::UdpSocket(bind) => {
                let is_known = self.known.iter().any(|known| (known.0.as_str(), &known.1) == (name, kind));
                if is_known || self.gateway.of_file.contains(&LinkRight::Udp) {
                    self.addresses.insert(bind.ip());
                }
            }
            Resource::VhostSocket(_) => {}
        }
    }

    /// Judges a socket at another port of a link's address. An address of a link that takes no capability, and that neither a client nor the
    /// file has asked for, is none.
    ///
    /// # Errors
    /// The reason of the refusal.
    pub(crate) fn bind(&self, address: SocketAddr) -> Result<(), String> {
        confine::admit(&DriverKind::Udp { bind: address }, self.gateway.rights.as_ref())?;
        if self.addresses.contains(&address.ip()) {
            return Ok(());
        }
        Err(format!("{}: no address of a link of this gateway", address.ip()))
    }

    /// Judges the number of changes of one order.
    ///
    /// # Errors
    /// The reason of the refusal.
    pub(crate) fn changes(changes: &[Change]) -> Result<(), String> {
        match changes.len() {
            0..=MOST_CHANGES => Ok(()),
            count => Err(format!("{count} changes are more than {MOST_CHANGES}")),
        }
    }

    /// Forgets devices that are there no more: others may get their numbers.
    pub(crate) fn forget_absent(&mut self, present: &[TunDevice]) {
        self.devices.retain(|&index| present.iter().any(|device| device.index == index));
    }

    /// Whether the judgement of changes takes the routes of the host.
    pub(crate) fn takes_routes(&self, changes: &[Change]) -> bool {
        changes.iter().any(|change| matches!(change, Change::Route { route, .. } if self.is_wall(route)))
    }

    fn is_wall(&self, route: &HostRoute) -> bool {
        device::is_wall_of(route, &self.gateway.instance)
    }

    /// Judges a change.
    ///
    /// # Errors
    /// The reason of the refusal.
    pub(crate) fn change(
        &self,
        change: &Change,
        Present { devices: present, routes }: Present<'_>,
    ) -> Result<(), Unmade> {
        let refused = |why: String| Err(Unmade::Refused(why));
        match change {
            Change::Address { address, .. } if address.protocol != PROTOCOL => {
                refused(format!("address {}: protocol {} is not the gateway's", address.addr, address.protocol))
            }
            Change::Address { address, .. } => self.own_device(address.index, present).map(drop),
            Change::Route { route, is_new } if self.is_wall(route) => {
                let own = present.iter().filter(|device| self.is_own(device)).map(|device| device.index).collect();
                match *is_new {
                    true if device::has_room_for_wall(route, routes, &own) => Ok(()),
                    true => refused(format!(
                        "blackhole route to {}: behind no route over a device of this gateway",
                        route.prefix
                    )),
                    false if device::is_present(route, routes) => Ok(()),
                    false => Err(Unmade::Gone),
                }
            }
            Change::Route { route: HostRoute { devices, kind, protocol, table, mark: 0, .. }, .. }
                if (*kind, *protocol, *table) == (RTN_UNICAST, PROTOCOL, TableId::MAIN.0) && devices.len() == 1 =>
            {
                self.own_device(devices[0], present).map(drop)
            }
            Change::Route { route, .. } => refused(format!("route to {}: none that the gateway has", route.prefix)),
            Change::Remove { index } => match self.own_device(*index, present)? {
                device if device.is_attached => refused(format!("{}: a program has the device", device.name)),
                device if !self.is_marked(device) => refused(format!("{}: the gateway has not made it", device.name)),
                _ => Ok(()),
            },
            Change::Mtu { index, .. } => self.own_device(*index, present).map(drop),
            Change::Mac { index, .. } if self.interfaces.contains(index) => Ok(()),
            Change::Mac { index, .. } => refused(format!("interface {index}: no link of this gateway has it")),
        }
    }

    /// The device with that number, if a link of the gateway has it, or an earlier run has made it.
    fn own_device<'a>(&self, index: u32, present: &'a [TunDevice]) -> Result<&'a TunDevice, Unmade> {
        let device = present.iter().find(|device| device.index == index).ok_or(Unmade::Gone)?;
        if self.is_own(device) {
            return Ok(device);
        }
        Err(Unmade::Refused(format!("{}: no device of this gateway", device.name)))
    }

    /// Whether a link of the gateway has a device, or an earlier run has made it. A mark counts before a number.
    fn is_own(&self, device: &TunDevice) -> bool {
        match device::owner_of(device) {
            Some(owner) => owner == self.gateway.instance,
            None => self.devices.contains(&device.index),
        }
    }

    fn is_marked(&self, device: &TunDevice) -> bool {
        device::owner_of(device) == Some(self.gateway.instance.as_str())
    }
}

#[cfg(test)]
mod tests {
    use base::Prefix;
    use driver::XdpMode;
    use netlink::rtnl::nums::RTN_BLACKHOLE;

    use super::*;
    use crate::confine::LinkRight;
    use crate::host::rtnl::HostAddress;

    /// The judge of the gateway `a`, which may open TUN devices and has opened number 7.
    fn judge() -> Judge {
        let rights = Some(BTreeSet::from([LinkRight::Tun]));
        let mut judge = Judge::new(Gateway { instance: "a".to_owned(), rights, ..Gateway::default() });
        judge.opened("t7", &DriverKind::Tun { queues: 1 }, Some(7));
        judge
    }

    fn device(index: u32, alias: Option<&str>, is_attached: bool) -> TunDevice {
        TunDevice {
            index,
            name: format!("t{index}"),
            alias: alias.map(str::to_owned),
            up: true,
            is_tap: false,
            has_many_queues: false,
            is_attached,
        }
    }

    /// Devices of the gateway, of another one, and of a program.
    fn present() -> [TunDevice; 5] {
        [
            device(7, None, true),
            device(8, Some("fatpath a"), false),
            device(9, Some("fatpath b"), false),
            device(10, None, false),
            device(11, Some("fatpath a"), true),
        ]
    }

    /// Devices without routes.
    const fn of(devices: &[TunDevice]) -> Present<'_> {
        Present { devices, routes: &[] }
    }

    fn refused(change: &Change) -> String {
        match judge().change(change, of(&present())) {
            Err(Unmade::Refused(why)) => why,
            other => panic!("{change:?}: {other:?}"),
        }
    }

    fn address(index: u32, protocol: u8) -> Change {
        Change::Address { address: HostAddress { index, addr: "10.0.0.1/24".parse().unwrap(), protocol }, is_new: true }
    }

    fn route(device: u32) -> HostRoute {
        HostRoute {
            table: TableId::MAIN.0,
            prefix: "10.9.0.0/16".parse().unwrap(),
            metric: 0,
            kind: RTN_UNICAST,
            protocol: PROTOCOL,
            src: None,
            devices: vec![device],
            mark: 0,
        }
    }

    #[test]
    fn kind_that_is_not_admitted_is_refused_by_name() {
        let open = |kind| {
            let (name, mtu, offloads, index, shards) = ("l".to_owned(), None, true, None, 1);
            judge().open(&Opening { name, kind, mtu, offloads, index, shards }, None, |_| false)
        };
        let interface = || "eth0".to_owned();
        open(DriverKind::Tun { queues: 2 }).unwrap();
        open(DriverKind::Udp { bind: "192.0.2.1:4500".parse().unwrap() }).unwrap();
        for (kind, word) in [
            (DriverKind::Tap { queues: 1 }, "tap is none of the kinds"),
            (DriverKind::Packet { interface: interface(), exclusive: false }, "--allow-links packet"),
            (DriverKind::Packet { interface: interface(), exclusive: true }, "--allow-links exclusive"),
            (DriverKind::Xdp { interface: interface(), ring: 256, mode: XdpMode::Auto }, "--allow-links xdp"),
            (DriverKind::Udp { bind: "192.0.2.1:500".parse().unwrap() }, "--allow-links udp"),
            (DriverKind::VirtioUser { socket: "/etc/shadow".to_owned(), queues: 1, ring: 64 }, "takes no capability"),
        ] {
            let why = open(kind).unwrap_err();
            assert!(why.contains(word), "{why}");
        }
    }

    #[test]
    fn added_kind_takes_a_client_of_the_gateway_or_the_file() {
        let (rights, of_file) =
            (Some(BTreeSet::from([LinkRight::Tun, LinkRight::Tap])), BTreeSet::from([LinkRight::Tun]));
        let mut judge = Judge::new(Gateway { instance: "a".to_owned(), rights, of_file, ..Gateway::default() });
        let opening = |name: &str, kind| {
            let (name, mtu, offloads, index, shards) = (name.to_owned(), None, true, None, 1);
            Opening { name, kind, mtu, offloads, index, shards }
        };
        let tap = |name: &str| opening(name, DriverKind::Tap { queues: 1 });
        judge.open(&tap("t0"), None, |_| false).unwrap();
        judge.ready();
        // Known from the start, and a kind of its file.
        judge.open(&tap("t0"), None, |_| false).unwrap();
        judge.open(&opening("t1", DriverKind::Tun { queues: 1 }), None, |_| false).unwrap();
        let why = judge.open(&tap("t1"), None, |_| false).unwrap_err();
        assert!(
            why.starts_with("link t1: the file of the gateway's start had no link of kind tap: a program"),
            "{why}"
        );
        assert!(judge.open(&opening("t0", DriverKind::Tap { queues: 2 }), None, |_| false).is_err());
        judge.open(&tap("t1"), None, |link| link.0 == "t1").unwrap();
        // The last ones are known.
        for number in 0..MOST_KNOWN {
            judge.open(&tap(&format!("n{number}")), None, |_| true).unwrap();
            judge.open(&tap("t1"), None, |_| false).unwrap();
        }
        assert!(judge.open(&tap("t0"), None, |_| false).is_err(), "forgotten");
    }

    #[test]
    fn device_of_another_gateway_or_program_is_not_changed() {
        let mtu = |index| Change::Mtu { index, mtu: 1400 };
        for index in [7, 8, 11] {
            for change in [mtu(index), address(index, PROTOCOL), Change::Route { route: route(index), is_new: false }] {
                assert_eq!(judge().change(&change, of(&present())), Ok(()), "{change:?}");
            }
        }
        for index in [9, 10] {
            for change in [mtu(index), address(index, PROTOCOL), Change::Route { route: route(index), is_new: true }] {
                assert_eq!(refused(&change), format!("t{index}: no device of this gateway"));
            }
        }
        // An interface that is no TUN device: also one that has the number of a device that was there.
        for index in [1, 12, 0] {
            assert_eq!(judge().change(&mtu(index), of(&present())), Err(Unmade::Gone));
        }
        assert_eq!(judge().change(&mtu(7), of(&[])), Err(Unmade::Gone));
        assert_eq!(refused(&address(7, 4)), "address 10.0.0.1/24: protocol 4 is not the gateway's");
    }

    #[test]
    fn devices_that_an_earlier_run_has_left_alone_are_removed() {
        let remove = |index| Change::Remove { index };
        assert_eq!(judge().change(&remove(8), of(&present())), Ok(()));
        assert_eq!(refused(&remove(11)), "t11: a program has the device");
        assert_eq!(refused(&remove(9)), "t9: no device of this gateway");
        let free = [device(7, None, false)];
        let why = Err(Unmade::Refused("t7: the gateway has not made it".to_owned()));
        assert_eq!(judge().change(&remove(7), of(&free)), why);
    }

    #[test]
    fn route_without_the_gateways_mark_is_not_changed() {
        let wall = |instance| device::wall_of(instance, "10.9.0.0/16".parse().unwrap());
        let judged = |route| judge().change(&Change::Route { route, is_new: true }, of(&present()));
        let why = Err(Unmade::Refused("route to 10.9.0.0/16: none that the gateway has".to_owned()));
        let others = [
            wall("b"),
            HostRoute { mark: 0, ..wall("a") },
            HostRoute { devices: vec![7], ..wall("a") },
            HostRoute { protocol: 4, ..wall("a") },
            HostRoute { kind: RTN_BLACKHOLE, ..route(7) },
            HostRoute { table: 255, ..route(7) },
            HostRoute { protocol: 4, ..route(7) },
            HostRoute { mark: 1, ..route(7) },
            HostRoute { devices: vec![], ..route(7) },
            HostRoute { devices: vec![7, 1], ..route(7) },
        ];
        for route in others {
            assert_eq!(judged(route.clone()), why, "{route:?}");
        }
        let default = HostRoute { prefix: Prefix::ANY_V4, ..route(2) };
        assert_eq!(judged(default), Err(Unmade::Gone));
    }

    #[test]
    fn wall_is_set_behind_a_route_of_the_gateway_alone() {
        let devices = present();
        let wall = device::wall_of("a", "10.9.0.0/16".parse().unwrap());
        let judged = |route: &HostRoute, is_new, routes: &[HostRoute]| {
            let change = Change::Route { route: route.clone(), is_new };
            assert!(judge().takes_routes(std::slice::from_ref(&change)));
            judge().change(&change, Present { devices: &devices, routes })
        };
        assert_eq!(judged(&wall, true, &[route(7)]), Ok(()));
        assert_eq!(judged(&wall, true, &[route(11)]), Ok(()));
        let why = "blackhole route to 10.9.0.0/16: behind no route over a device of this gateway".to_owned();
        let why = Err(Unmade::Refused(why));
        let wider = HostRoute { prefix: "10.0.0.0/8".parse().unwrap(), ..route(7) };
        for routes in [
            &[][..],
            &[route(9)],
            &[wider],
            &[HostRoute { metric: 1, ..route(7) }],
            &[HostRoute { table: 9, ..route(7) }],
        ] {
            assert_eq!(judged(&wall, true, routes), why, "{routes:?}");
        }
        // The first route of all tables is no place behind one.
        let first = HostRoute { metric: 0, ..wall.clone() };
        assert_eq!(judged(&first, true, &[route(7)]), why);
        assert_eq!(judged(&wall, false, std::slice::from_ref(&wall)), Ok(()));
        let of_another = device::wall_of("b", wall.prefix);
        assert_eq!(judged(&wall, false, &[of_another, route(7)]), Err(Unmade::Gone));
    }

    #[test]
    fn number_of_a_device_that_is_gone_is_forgotten() {
        let mtu = Change::Mtu { index: 7, mtu: 1400 };
        let mut judge = judge();
        judge.forget_absent(&[device(7, None, true)]);
        assert_eq!(judge.change(&mtu, of(&[device(7, None, true)])), Ok(()));
        // A mark of another gateway counts before the number.
        let why = Err(Unmade::Refused("t7: no device of this gateway".to_owned()));
        assert_eq!(judge.change(&mtu, of(&[device(7, Some("fatpath b"), true)])), why);
        judge.forget_absent(&[device(8, None, true)]);
        assert_eq!(judge.change(&mtu, of(&[device(7, None, true)])), why);
    }

    #[test]
    fn interface_and_address_of_no_link_are_refused() {
        let mac = |index| Change::Mac { index, mac: [2, 0, 0, 0, 0, 1] };
        let rights = Some(BTreeSet::from([LinkRight::Packet, LinkRight::Udp]));
        let mut judge = Judge::new(Gateway { instance: "a".to_owned(), rights, ..Gateway::default() });
        judge.opened("p", &DriverKind::Packet { interface: "eth0".to_owned(), exclusive: false }, Some(2));
        let udp = |bind: &str| {
            let (name, kind) = ("u".to_owned(), DriverKind::Udp { bind: bind.parse().unwrap() });
            Opening { name, kind, mtu: None, offloads: true, index: None, shards: 1 }
        };
        let open = |judge: &mut Judge, opening: &Opening| {
            judge.open(opening, None, |_| false).unwrap();
            judge.opened(&opening.name, &opening.kind, None);
        };
        open(&mut judge, &udp("192.0.2.1:4500"));
        assert_eq!(judge.change(&mac(2), of(&[])), Ok(()));
        let why = Err(Unmade::Refused("interface 3: no link of this gateway has it".to_owned()));
        assert_eq!(judge.change(&mac(3), of(&[])), why);
        assert_eq!(judge.bind("192.0.2.1:500".parse().unwrap()), Ok(()));
        let why = Err("0.0.0.0: no address of a link of this gateway".to_owned());
        assert_eq!(judge.bind("0.0.0.0:53".parse().unwrap()), why);
        // After the start a link that takes no capability admits no port of its address, unless the file or a client has it.
        judge.ready();
        open(&mut judge, &udp("127.0.0.1:5000"));
        let why = Err("127.0.0.1: no address of a link of this gateway".to_owned());
        assert_eq!(judge.bind("127.0.0.1:53".parse().unwrap()), why);
        judge.open(&udp("127.0.0.2:5000"), None, |_| true).unwrap();
        judge.opened("u", &udp("127.0.0.2:5000").kind, None);
        assert_eq!(judge.bind("127.0.0.2:53".parse().unwrap()), Ok(()));
        let mut unprivileged = self::judge();
        open(&mut unprivileged, &udp("192.0.2.1:4500"));
        assert!(unprivileged.bind("192.0.2.1:500".parse().unwrap()).unwrap_err().contains("--allow-links udp"));
        unprivileged.bind("192.0.2.1:2000".parse().unwrap()).unwrap();
    }

    #[test]
    fn order_with_too_many_changes_is_refused() {
        let change = Change::Mtu { index: 7, mtu: 1400 };
        Judge::changes(&vec![change.clone(); MOST_CHANGES]).unwrap();
        let why = Judge::changes(&vec![change; MOST_CHANGES + 1]).unwrap_err();
        assert_eq!(why, "257 changes are more than 256");
    }
}
