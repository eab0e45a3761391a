//! One TCP stream between two guests, each of which has a TAP device: through a bridge with every offload off (`thin`),
//! with large send (`fat`), by a loop that only moves packets from one device to the other (`bare`); and through two
//! bridges with a tunnel of ESP in UDP behind their devices (`esp`). Open vSwitch is measured with large segments
//! (`ovs-tso`) and without (`ovs`). Another stream comes from a wire of frames of 1500 bytes, by a packet link that
//! coalesces them (`wire-gro`) or passes each on (`wire`).

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use driver::DriverKind;
use link::{Config, Link, Sent};
use packet::{Memory, Packet};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use testbed::{Failure, Namespace, Stop, tool};

use super::config::{Keys, gateway_toml_of, worker};
use super::gateway::Gateway;
use super::meter::{Cost, Usage};
use super::openvswitch::OpenVswitch;
use super::ping;
use super::sample::DemoSample;
use super::site::{Site, explain, gbps, readings};
use super::stream::Ends;
use super::topology::{Side, TUNNEL_MTU, lend, veth};

/// A path between the guests.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum SwitchSetting {
    Bare,
    Thin,
    Fat,
    Esp,
    /// From a wire of small frames.
    Wire,
    /// The same with GRO on the port.
    WireGro,
    /// Open vSwitch's userspace datapath.
    Ovs,
    /// The same with `userspace-tso-enable`.
    OvsTso,
}

impl SwitchSetting {
    /// Other switches.
    pub(super) const PEERS: [Self; 2] = [Self::Ovs, Self::OvsTso];

    /// Name of a ratio, and the two paths.
    pub(super) const RATIOS: [(&'static str, Self, Self); 5] = [
        ("fat/thin", Self::Fat, Self::Thin),
        ("fat/bare", Self::Fat, Self::Bare),
        ("wire-gro/wire", Self::WireGro, Self::Wire),
        ("fat/ovs-tso", Self::Fat, Self::OvsTso),
        ("fat/ovs", Self::Fat, Self::Ovs),
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Bare => "switch/bare",
            Self::Thin => "switch/thin",
            Self::Fat => "switch/fat",
            Self::Esp => "switch/esp",
            Self::Wire => "switch/wire",
            Self::WireGro => "switch/wire-gro",
            Self::Ovs => "switch/ovs",
            Self::OvsTso => "switch/ovs-tso",
        }
    }
}

/// The guests' devices.
const TAPS: [&str; 2] = ["guest0", "guest1"];

/// Time that the loop waits for a packet before it checks whether to end.
const POLL_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// Address of a guest on the network that both are on.
const fn guest(side: Side) -> Ipv4Addr {
    Ipv4Addr::new(10, 3, 0, side as u8 + 1)
}

/// Measures one stream.
pub(super) fn measure(site: &Site, setting: SwitchSetting) -> Result<DemoSample, Failure> {
    match setting {
        SwitchSetting::Bare => bare(site),
        SwitchSetting::Thin => bridged(site, false),
        SwitchSetting::Fat => bridged(site, true),
        SwitchSetting::Esp => esp(site),
        SwitchSetting::Wire => wire(site, false),
        SwitchSetting::WireGro => wire(site, true),
        SwitchSetting::Ovs => open_vswitch(site, false),
        SwitchSetting::OvsTso => open_vswitch(site, true),
    }
}

/// Moves the devices from the sender's namespace to the guests.
fn attach(site: &Site) -> Result<(), Failure> {
    let [a, b] = Side::BOTH.map(|side| site.topology.host(side));
    a.ip(&format!("link set {} netns {}", TAPS[1], b.name()), &site.stop)?;
    for (host, side) in [(a, Side::A), (b, Side::B)] {
        let tap = TAPS[side as usize];
        host.ip(&format!("addr add {}/24 dev {tap}", guest(side)), &site.stop)?;
        host.ip(&format!("link set {tap} up"), &site.stop)?;
    }
    Ok(())
}

fn ends(site: &Site, address: Ipv4Addr) -> Ends<'_> {
    let (sender, receiver) = (site.topology.host(Side::A), site.topology.host(Side::B));
    Ends { sender, receiver, address }
}

/// Through one bridge.
fn bridged(site: &Site, fat: bool) -> Result<DemoSample, Failure> {
    let gateway = Gateway::launch(&site.topology, &site.scratch, Side::A, &switch_toml(fat), &site.stop)?;
    attach(site)?;
    let mut gateways = [gateway];
    ping::ping(site.topology.host(Side::A), guest(Side::B), &site.stop)
        .map_err(|failure| explain(failure, &mut gateways))?;
    let before = Usage::of(gateways[0].pid())?;
    let stream = site.stream_between(ends(site, guest(Side::B)));
    let stream = stream.map_err(|failure| explain(failure, &mut gateways))?;
    let after = Usage::of(gateways[0].pid())?;
    let cost = Some(Cost::between([before, Usage::default()], [after, Usage::default()], stream));
    Ok(DemoSample { gbps: gbps(stream), arrived: None, changes: None, transactions: None, cost })
}

/// Interface at either end of the wire.
const WIRE: &str = "uplink";

/// From the receiver's namespace over a wire of frames of 1500 bytes to the guest in the sender's namespace: neither end of the
/// wire segments, coalesces or computes a checksum.
fn wire(site: &Site, gro: bool) -> Result<DemoSample, Failure> {
    let [near, far] = Side::BOTH.map(|side| site.topology.host(side));
    let _wire = Wire::add(site)?;
    let gateway = Gateway::launch(&site.topology, &site.scratch, Side::A, &wire_toml(gro), &site.stop)?;
    near.ip(&format!("addr add {}/24 dev {}", guest(Side::A), TAPS[0]), &site.stop)?;
    near.ip(&format!("link set {} up", TAPS[0]), &site.stop)?;
    let mut gateways = [gateway];
    ping::ping(far, guest(Side::A), &site.stop).map_err(|failure| explain(failure, &mut gateways))?;
    let before = Usage::of(gateways[0].pid())?;
    let stream = site.stream_between(Ends { sender: far, receiver: near, address: guest(Side::A) });
    let stream = stream.map_err(|failure| explain(failure, &mut gateways))?;
    let after = Usage::of(gateways[0].pid())?;
    let cost = Some(Cost::between([before, Usage::default()], [after, Usage::default()], stream));
    Ok(DemoSample { gbps: gbps(stream), arrived: None, changes: None, transactions: None, cost })
}

/// A veth pair between the namespaces, removed on drop.
struct Wire<'s>(&'s Site);

impl<'s> Wire<'s> {
    fn add(site: &'s Site) -> Result<Self, Failure> {
        let [near, far] = Side::BOTH.map(|side| site.topology.host(side));
        veth((near, WIRE), (far, WIRE), &site.stop)?;
        let wire = Self(site);
        for host in [near, far] {
            let off = ["-K", WIRE, "tx", "off", "sg", "off", "tso", "off", "gso", "off", "gro", "off"];
            host.enter(|| tool("ethtool", &off, &site.stop).map(drop))?;
        }
        lend(near, WIRE, &site.stop)?;
        far.ip(&format!("addr add {}/24 dev {WIRE}", guest(Side::B)), &site.stop)?;
        far.ip(&format!("link set {WIRE} up"), &site.stop)?;
        Ok(wire)
    }
}

impl Drop for Wire<'_> {
    fn drop(&mut self) {
        // Gone already if its namespaces are.
        let _ = self.0.topology.host(Side::A).ip(&format!("link del {WIRE}"), &Stop::never());
    }
}

/// The file of the gateway with a bridge of the wire and a guest.
fn wire_toml(gro: bool) -> String {
    format!(
        "[[link]]\nname = \"br0\"\nkind = \"bridge\"\n\n\
         [[link]]\nname = \"{WIRE}\"\nkind = \"packet\"\ninterface = \"{WIRE}\"\nmaster = \"br0\"\noffloads = {gro}\n\n\
         [[link]]\nname = \"{}\"\nkind = \"tap\"\nmaster = \"br0\"\n{}",
        TAPS[0],
        worker(Side::A)
    )
}

/// The guests' devices, removed on drop from any namespace.
struct Devices<'s>(&'s Site);

impl Drop for Devices<'_> {
    fn drop(&mut self) {
        for host in Side::BOTH.map(|side| self.0.topology.host(side)) {
            for tap in TAPS {
                // The device is in one of the namespaces, or was not created.
                let _ = host.ip(&format!("link del {tap}"), &Stop::never());
            }
        }
    }
}

/// Through Open vSwitch.
fn open_vswitch(site: &Site, tso: bool) -> Result<DemoSample, Failure> {
    // The devices outlive the switch.
    let _devices = Devices(site);
    let mut switch = OpenVswitch::start(site, TAPS, tso)?;
    attach(site)?;
    let pinged = ping::ping(site.topology.host(Side::A), guest(Side::B), &site.stop);
    pinged.map_err(|failure| switch.explain(failure))?;
    let before = switch.usage()?;
    let stream = site.stream_between(ends(site, guest(Side::B)));
    let stream = stream.map_err(|failure| switch.explain(failure))?;
    let cost = Some(Cost::between([before, Usage::default()], [switch.usage()?, Usage::default()], stream));
    Ok(DemoSample { gbps: gbps(stream), arrived: None, changes: None, transactions: None, cost })
}

/// The file of the gateway with one bridge.
fn switch_toml(fat: bool) -> String {
    let mut toml = "[[link]]\nname = \"br0\"\nkind = \"bridge\"\n".to_owned();
    for tap in TAPS {
        toml += &format!("\n[[link]]\nname = \"{tap}\"\nkind = \"tap\"\nmaster = \"br0\"\noffloads = {fat}\n");
    }
    toml + &worker(Side::A)
}

/// Measures a loop that moves packets from one device to the other.
fn bare(site: &Site) -> Result<DemoSample, Failure> {
    let [one, other] = site.topology.host(Side::A).enter(|| open(TAPS))?;
    attach(site)?;
    let ends_now = AtomicBool::new(false);
    let stream = thread::scope(|scope| {
        let moving = scope.spawn(|| move_packets(one, other, &ends_now));
        let pinged = ping::ping(site.topology.host(Side::A), guest(Side::B), &site.stop);
        let stream = pinged.and_then(|()| site.stream_between(ends(site, guest(Side::B))));
        ends_now.store(true, Ordering::Relaxed);
        let moved = moving.join().unwrap_or_else(|panicked| std::panic::resume_unwind(panicked));
        stream.and_then(|stream| moved.map(|()| stream))
    })?;
    Ok(DemoSample { gbps: gbps(stream), arrived: None, changes: None, transactions: None, cost: None })
}

fn open(names: [&str; 2]) -> Result<[Box<dyn Link>; 2], Failure> {
    let open = |name: &str| {
        let (kind, mac, mtu, index) = (DriverKind::Tap { queues: 1 }, None, None, None);
        let config = Config { name: name.to_owned(), kind, mac, mtu, offloads: true, index };
        link::open(&config).map_err(|err| Failure::step("open a TAP device", err))
    };
    Ok([open(names[0])?, open(names[1])?])
}

fn move_packets(one: Box<dyn Link>, other: Box<dyn Link>, ends_now: &AtomicBool) -> Result<(), Failure> {
    let mem = Memory::heap();
    let mut links = [one, other];
    let mut waiting: [Vec<Packet>; 2] = Default::default();
    let fail = |err: std::io::Error| Failure::step("move packets", err);
    while !ends_now.load(Ordering::Relaxed) {
        let mut moved = false;
        for (from, to) in [(0, 1), (1, 0)] {
            links[from].recv(&mem, &mut waiting[to]).map_err(fail)?;
            moved |= !waiting[to].is_empty();
            while !waiting[to].is_empty() {
                match links[to].send(&mut waiting[to]).map_err(fail)? {
                    Sent::All => {}
                    // The guest is slower, and TCP retransmits.
                    Sent::Busy => waiting[to].clear(),
                    Sent::Refit => return Err(Failure::step("move packets", "the device refuses an offload")),
                }
            }
            links[to].settle(&mem);
        }
        if !moved {
            let fds: Vec<_> = links.iter().flat_map(|link| link.poll_fds()).collect();
            let mut fds: Vec<PollFd<'_>> = fds.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
            poll(&mut fds, Some(&POLL_INTERVAL)).map_err(|err| Failure::step("poll", err))?;
        }
    }
    Ok(())
}

/// Through a bridge, the tunnel behind its device, and another bridge.
fn esp(site: &Site) -> Result<DemoSample, Failure> {
    let keys = Keys::random()?;
    let start = |side: Side| {
        let toml = gateway_toml_of(&bridge_toml(side), side, true, &keys);
        let gateway = Gateway::launch(&site.topology, &site.scratch, side, &toml, &site.stop)?;
        attach_behind(site.topology.host(side), side, site)?;
        Ok::<_, Failure>(gateway)
    };
    let mut gateways = [start(Side::A)?, start(Side::B)?];
    ping::ping(site.topology.host(Side::A), Side::B.host(), &site.stop)
        .map_err(|failure| explain(failure, &mut gateways))?;
    let before = readings(&gateways)?;
    let stream = site.stream_between(ends(site, Side::B.host()));
    let stream = stream.map_err(|failure| explain(failure, &mut gateways))?;
    let cost = Some(Cost::of_gateways(&before, &readings(&gateways)?, stream));
    Ok(DemoSample { gbps: gbps(stream), arrived: None, changes: None, transactions: None, cost })
}

/// A bridge whose device has the gateway's address, and the guest's device.
fn bridge_toml(side: Side) -> String {
    format!(
        "[[link]]\nname = \"br0\"\nkind = \"bridge\"\nmtu = {TUNNEL_MTU}\naddresses = [\"{}/24\"]\n\n\
         [[link]]\nname = \"{}\"\nkind = \"tap\"\nmtu = {TUNNEL_MTU}\nmaster = \"br0\"\n\n",
        side.gateway(),
        TAPS[0]
    )
}

fn attach_behind(host: &Namespace, side: Side, site: &Site) -> Result<(), Failure> {
    let tap = TAPS[0];
    host.ip(&format!("addr add {}/24 dev {tap}", side.host()), &site.stop)?;
    host.ip(&format!("link set {tap} mtu {TUNNEL_MTU} up"), &site.stop)?;
    let route = format!("route add {} via {} src {}", side.other().network(), side.gateway(), side.host());
    host.ip(&route, &site.stop)
}

#[cfg(test)]
mod tests {
    use config::Config;
    use config::model::LinkKind;

    use super::*;

    #[test]
    fn files_are_accepted_and_have_bridges() {
        for fat in [true, false] {
            let config = Config::from_toml(&switch_toml(fat), "demo.toml").unwrap();
            assert!(matches!(config.links[0].kind, LinkKind::Bridge(_)));
            assert!(config.links[1..].iter().all(|link| link.offloads == fat && link.master.as_deref() == Some("br0")));
        }
        for gro in [true, false] {
            let config = Config::from_toml(&wire_toml(gro), "demo.toml").unwrap();
            assert_eq!(config.links[1].offloads, gro);
        }
        let keys = Keys::random().unwrap();
        for side in Side::BOTH {
            let toml = gateway_toml_of(&bridge_toml(side), side, true, &keys);
            let config = Config::from_toml(&toml, "demo.toml").unwrap_or_else(|err| panic!("{err}\n{toml}"));
            let kinds: Vec<&str> = config.links.iter().map(|link| link.kind.word()).collect();
            assert_eq!(kinds, ["bridge", "tap", "udp"]);
        }
    }
}
