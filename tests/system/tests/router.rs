//! The router deployment: gateways that own their interfaces, by packet sockets or AF_XDP.
//!
//! ```text
//!  host a ── gateway ══ raw ESP ══ gateway ── host b       host a ── gateway ── host b
//! ```

use std::net::IpAddr;

use libtest_mimic::Trial;
use system::{
    Cable, Capture, Esp, Gateway, Mode, Need, Netns, OUTER_V4, Outcome, PING_SIZES, Scratch, macvlan, ping_script,
    transfer, trial, veth, vxlan,
};

const NEEDS: &[Need] = &[Need::Namespaces, Need::PING];
const XDP_NEEDS: &[Need] = &[Need::Namespaces, Need::PING, Need::ETHTOOL];
const VXLAN_NEEDS: &[Need] = &[Need::Namespaces, Need::Vxlan];
const CAPTURE_NEEDS: &[Need] = &[Need::Namespaces, Need::PING, Need::ETHTOOL, Need::TCPDUMP, Need::TSHARK];

pub(crate) const A_V4: &str = "10.1.0.2";
pub(crate) const B_V4: &str = "10.2.0.2";
pub(crate) const A_V6: &str = "fd01::2";
pub(crate) const B_V6: &str = "fd02::2";

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("router/pings_of_every_size_cross_both_ways_in_esp", NEEDS, || {
            let site = EspSite::new()?;
            for (a, b) in [(A_V4, B_V4), (A_V6, B_V6)] {
                ping_both_ways(&site.a, b.parse()?, &site.b, a.parse()?)?;
            }
            Ok(())
        }),
        trial("router/tcp_streams_arrive_unchanged_both_ways_in_esp", NEEDS, || {
            let site = EspSite::new()?;
            for (a, b) in [(A_V4, B_V4), (A_V6, B_V6)] {
                transfer(&site.a, (&site.b, b.parse()?), 16 << 20)?;
                transfer(&site.b, (&site.a, a.parse()?), 16 << 20)?;
            }
            Ok(())
        }),
        trial("router/tshark_decrypts_and_accepts_sent_packets", CAPTURE_NEEDS, || {
            let site = EspSite::new()?;
            let capture = Capture::start(&site.gateway_ns, "wan0", "esp", &site.scratch)?;
            site.a.sh(&ping_script(B_V4.parse()?, &[56, 4000]))?;
            transfer(&site.a, (&site.b, B_V4.parse()?), 1 << 20)?;
            transfer(&site.b, (&site.a, A_V6.parse()?), 1 << 20)?;
            let inside = site.esp.decrypt(&capture.finish()?)?;
            for want in ["ip:icmp", "ip:tcp", "ipv6:tcp"] {
                assert!(inside.iter().any(|stack| stack.starts_with(want)), "no {want} in {inside:?}");
            }
            Ok(())
        }),
        trial("router/tcp_in_vxlan_of_the_hosts_arrives_both_ways", VXLAN_NEEDS, || {
            for is_checked in [false, true] {
                let site = PlainSite::new(true)?;
                let [a, b] = vxlan((&site.a, A_V4), (&site.b, B_V4), is_checked)?;
                transfer(&site.a, (&site.b, b.parse()?), 4 << 20)?;
                transfer(&site.b, (&site.a, a.parse()?), 4 << 20)?;
            }
            Ok(())
        }),
        trial("router/pings_and_tcp_cross_macvlan_both_ways", NEEDS, || on_macvlan(Port::Packet)),
        trial("router/pings_and_tcp_cross_macvlan_by_af_xdp", XDP_NEEDS, || on_macvlan(Port::Xdp("generic", 256))),
        trial("router/forwarded_tcp_has_right_checksums_on_the_wire", CAPTURE_NEEDS, || forwarded_checksums(true)),
        trial("router/forwarded_tcp_has_right_checksums_without_offloads", CAPTURE_NEEDS, || {
            forwarded_checksums(false)
        }),
    ]
}

/// A gateway between interfaces that filter by address, like network cards: neighbour discovery needs solicited-node groups.
fn on_macvlan(port: Port) -> Outcome {
    let site = PlainSite::on(macvlan, &PlainSite::config_by(true, port))?;
    if port != Port::Packet {
        [&site.a, &site.b].into_iter().try_for_each(finishes_its_checksums)?;
    }
    site.a.sh("ping -n -q -c 3 -i 0.1 -W 2 fd01::1; ping -n -q -c 3 -i 0.1 -W 2 10.1.0.1")?;
    for (a, b) in [(A_V4, B_V4), (A_V6, B_V6)] {
        ping_both_ways(&site.a, b.parse()?, &site.b, a.parse()?)?;
        transfer(&site.a, (&site.b, b.parse()?), 1 << 20)?;
    }
    Ok(())
}

/// Sends TCP through a gateway, and checks each output packet of the gateway with tcpdump.
fn forwarded_checksums(offloads: bool) -> Outcome {
    let site = PlainSite::new(offloads)?;
    // The host's kernel completes the checksums and segments that the gateway leaves to the device, as a network card
    // would, before tcpdump captures the packets.
    site.gateway_ns.sh("ethtool -K right tx off tso off >/dev/null")?;
    let capture = Capture::start(&site.gateway_ns, "right", "src 10.1.0.2 or src fd01::2", &site.scratch)?;
    judge_checksums(&site, capture)
}

/// Sends pings and TCP from one host to the other, and checks each packet of `capture` with tcpdump.
pub(crate) fn judge_checksums(site: &PlainSite, capture: Capture) -> Outcome {
    for b in [B_V4, B_V6] {
        site.a.sh(&ping_script(b.parse()?, &[56, 4000]))?;
        transfer(&site.a, (&site.b, b.parse()?), 4 << 20)?;
    }
    let packets = system::wire_checksums(&capture.finish()?)?;
    // tcpdump misses some packets on a busy machine.
    assert!(packets > (4 << 20) / 1500, "only {packets} packets were captured");
    Ok(())
}

/// Pings from `a` to `to_b` and from `b` to `to_a`, after one ping that gives both hosts the path MTU, which replies
/// need as well as requests.
pub(crate) fn ping_both_ways(a: &Netns, to_b: IpAddr, b: &Netns, to_a: IpAddr) -> Outcome {
    let ways = [(a, to_b), (b, to_a)];
    for (from, to) in ways {
        // Lost if the gateway answers it with Packet Too Big.
        let _ = from.sh(&ping_script(to, &[1452]));
    }
    ways.into_iter().try_for_each(|(from, to)| from.sh(&ping_script(to, PING_SIZES)).map(drop))
}

/// Driver of a gateway's interfaces.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Port {
    /// A packet socket.
    Packet,
    /// AF_XDP of this mode, in rings of so many frames.
    Xdp(&'static str, u16),
}

/// Two hosts behind two gateways, raw ESP in between; programs end before their namespaces.
pub(crate) struct EspSite {
    pub(crate) gateways: [Gateway; 2],
    pub(crate) a: Netns,
    pub(crate) b: Netns,
    gateway_ns: Netns,
    _other_gateway_ns: Netns,
    esp: Esp,
    scratch: Scratch,
}

impl EspSite {
    fn new() -> Outcome<Self> {
        Self::by(Port::Packet)
    }

    /// A site whose gateways have their interfaces by `port`.
    pub(crate) fn by(port: Port) -> Outcome<Self> {
        let scratch = Scratch::new()?;
        let (a, b) = (Netns::new("a")?, Netns::new("b")?);
        let (left, right) = (gateway_netns("left")?, gateway_netns("right")?);
        veth((&left, "wan0"), (&right, "wan0"))?;
        let inner = [("10.1.0.0/24", "10.2.0.0/24"), ("fd01::/64", "fd02::/64")];
        let esp = Esp::new(Mode::Tunnel, OUTER_V4, &inner);
        host(&a, &left, "lan0", 1)?;
        host(&b, &right, "lan0", 2)?;
        if port != Port::Packet {
            [&a, &b].into_iter().try_for_each(finishes_its_checksums)?;
        }
        let gateways = [
            Gateway::start(&left, &scratch, "left", &esp_config(&esp, 1, port))?,
            Gateway::start(&right, &scratch, "right", &esp_config(&esp.reversed(), 2, port))?,
        ];
        Ok(Self { gateways, a, b, gateway_ns: left, _other_gateway_ns: right, esp, scratch })
    }
}

/// Two hosts and one gateway that only forwards, with two unused interfaces.
pub(crate) struct PlainSite {
    pub(crate) gateway: Gateway,
    pub(crate) a: Netns,
    pub(crate) b: Netns,
    pub(crate) gateway_ns: Netns,
    pub(crate) scratch: Scratch,
}

impl PlainSite {
    /// An address that is reached through the gateway.
    pub(crate) const FAR: &str = B_V4;

    pub(crate) fn new(offloads: bool) -> Outcome<Self> {
        Self::with(&Self::config(offloads))
    }

    /// A site whose gateway has its interfaces by `port`.
    pub(crate) fn by(port: Port) -> Outcome<Self> {
        let site = Self::with(&Self::config_by(true, port))?;
        [&site.a, &site.b].into_iter().try_for_each(finishes_its_checksums)?;
        Ok(site)
    }

    fn with(config: &str) -> Outcome<Self> {
        Self::on(veth, config)
    }

    /// A site whose gateway has interfaces of that kind.
    pub(crate) fn on(cable: Cable, config: &str) -> Outcome<Self> {
        let scratch = Scratch::new()?;
        let (a, b) = (Netns::new("a")?, Netns::new("b")?);
        let gateway_ns = gateway_netns("gateway")?;
        host_by(cable, &a, &gateway_ns, "left", 1)?;
        host_by(cable, &b, &gateway_ns, "right", 2)?;
        veth((&gateway_ns, "spare"), (&b, "spare"))?;
        let gateway = Gateway::start(&gateway_ns, &scratch, "plain", config)?;
        Ok(Self { gateway, a, b, gateway_ns, scratch })
    }

    /// Configuration of the gateway.
    pub(crate) fn config(offloads: bool) -> String {
        Self::config_by(offloads, Port::Packet)
    }

    pub(crate) fn config_by(offloads: bool, port: Port) -> String {
        let link = |name: &str, number: u8| {
            format!(
                "{}addresses = [\"10.{number}.0.1/24\", \"fd0{number}::1/64\"]\noffloads = {offloads}\n\n",
                port.link(name)
            )
        };
        [link("left", 1), link("right", 2), link("spare", 3), "[[link]]\nname = \"tun9\"\nkind = \"tun\"\n".into()]
            .concat()
    }
}

/// A namespace whose kernel leaves its interfaces to a gateway.
fn gateway_netns(role: &str) -> Outcome<Netns> {
    let netns = Netns::new(role)?;
    netns.sh("for scope in all default; do echo 1 >/proc/sys/net/ipv6/conf/$scope/disable_ipv6; done")?;
    Ok(netns)
}

/// Connects `netns` to `interface` of a gateway and gives it the addresses of network `number`.
pub(crate) fn host(netns: &Netns, gateway: &Netns, interface: &str, number: u8) -> Outcome {
    host_by(veth, netns, gateway, interface, number)
}

/// Same as [`host`], with an interface of that kind.
fn host_by(cable: Cable, netns: &Netns, gateway: &Netns, interface: &str, number: u8) -> Outcome {
    cable((gateway, interface), (netns, "eth0"))?;
    netns.sh(&format!(
        "ip addr add 10.{number}.0.2/24 dev eth0
        ip addr add fd0{number}::2/64 dev eth0
        ip route add default via 10.{number}.0.1
        ip route add default via fd0{number}::1"
    ))?;
    Ok(())
}

/// Makes a host compute the checksums of sent packets: a veth leaves them out, and AF_XDP has no metadata about that.
pub(crate) fn finishes_its_checksums(host: &Netns) -> Outcome {
    host.sh("ethtool -K eth0 tx off >/dev/null").map(drop)
}

/// The configuration of the gateway of network `own`.
fn esp_config(esp: &Esp, own: u8, port: Port) -> String {
    let peer = 3 - own;
    format!(
        "{}addresses = [\"10.{own}.0.1/24\", \"fd0{own}::1/64\"]\n\n\
         {}addresses = [\"{}/24\"]\n\n\
         [[route]]\nto = \"10.{peer}.0.0/24\"\nvia = \"{}\"\n\n\
         [[route]]\nto = \"fd0{peer}::/64\"\ndev = \"wan0\"\n\n{}",
        port.link("lan0"),
        port.link("wan0"),
        esp.own,
        esp.peer,
        esp.to_toml()
    )
}

impl Port {
    /// The head of a link on the interface of the same name.
    fn link(self, name: &str) -> String {
        let kind = match self {
            Self::Packet => "kind = \"packet\"".to_owned(),
            Self::Xdp(mode, ring) => format!("kind = \"xdp\"\nmode = \"{mode}\"\nring = {ring}"),
        };
        format!("[[link]]\nname = \"{name}\"\n{kind}\ninterface = \"{name}\"\n")
    }
}
