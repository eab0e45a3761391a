//! The tunnel deployment: a TUN device towards the host's kernel, ESP in UDP by a socket of that kernel.
//!
//! ```text
//!  host a ─ tun0 ─ gateway ─ UDP ─ wan0 ══ wan0 ─ UDP ─ gateway ─ tun0 ─ host b
//! ```

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use libtest_mimic::Trial;
use system::{
    Capture, Esp, Gateway, Mode, Need, Netns, OUTER_V4, OUTER_V6, Outcome, PING_SIZES, Scratch, ping_script, transfer,
    trial, veth, vxlan, wait_until,
};

const NEEDS: &[Need] = &[Need::Namespaces, Need::Tun, Need::PING];
const VXLAN_NEEDS: &[Need] = &[Need::Namespaces, Need::Tun, Need::Vxlan];
const CAPTURE_NEEDS: &[Need] = &[Need::Namespaces, Need::Tun, Need::PING, Need::ETHTOOL, Need::TCPDUMP, Need::TSHARK];

const A_V4: &str = "10.1.0.1";
const B_V4: &str = "10.2.0.1";
const A_V6: &str = "fd01::1";
const B_V6: &str = "fd02::1";

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("tunnel/pings_of_every_size_cross_both_ways", NEEDS, || {
            let site = TunnelSite::new()?;
            for (a, b) in [(A_V4, B_V4), (A_V6, B_V6)] {
                site.a.sh(&ping_script(b.parse()?, PING_SIZES))?;
                site.b.sh(&ping_script(a.parse()?, PING_SIZES))?;
            }
            Ok(())
        }),
        trial("tunnel/tcp_streams_arrive_unchanged_both_ways", NEEDS, || {
            let site = TunnelSite::new()?;
            for (a, b) in [(A_V4, B_V4), (A_V6, B_V6)] {
                transfer(&site.a, (&site.b, b.parse()?), 32 << 20)?;
                transfer(&site.b, (&site.a, a.parse()?), 32 << 20)?;
            }
            Ok(())
        }),
        trial("tunnel/tcp_in_vxlan_of_the_hosts_arrives_both_ways", VXLAN_NEEDS, || {
            for is_checked in [false, true] {
                let site = TunnelSite::new()?;
                let [a, b] = vxlan((&site.a, A_V4), (&site.b, B_V4), is_checked)?;
                transfer(&site.a, (&site.b, b.parse()?), 4 << 20)?;
                transfer(&site.b, (&site.a, a.parse()?), 4 << 20)?;
            }
            Ok(())
        }),
        trial("tunnel/tshark_decrypts_and_accepts_sent_packets", CAPTURE_NEEDS, || {
            let site = TunnelSite::new()?;
            // Without offloads the capture has datagrams as on a wire, with checksums.
            site.a.sh("ethtool -K wan0 tx off tso off >/dev/null")?;
            let capture = Capture::start(&site.a, "wan0", &format!("src {} and udp", OUTER_V4[0]), &site.scratch)?;
            let to: IpAddr = B_V4.parse()?;
            site.a.sh(&ping_script(to, &[56, 4000]))?;
            transfer(&site.a, (&site.b, to), 1 << 20)?;
            let file = capture.finish()?;
            system::wire_checksums(&file)?;
            let inside = site.esp.decrypt(&file)?;
            for want in ["ip:icmp", "ip:tcp"] {
                assert!(inside.iter().any(|stack| stack.starts_with(want)), "no {want} in {inside:?}");
            }
            Ok(())
        }),
        trial("tunnel/host_learns_that_the_tunnels_own_wire_is_narrow", NEEDS, narrow_wire),
        trial("tunnel/two_tunnels_of_one_address_share_its_socket", NEEDS, two_peers),
    ]
}

/// The wire of a `udp` link has a smaller MTU than the tunnel needs: the host in front of the gateway is told its MTU.
fn narrow_wire() -> Outcome {
    let cases = [("auto", OUTER_V4, 1238), ("off", OUTER_V4, 1238), ("auto", OUTER_V6, 1218), ("off", OUTER_V6, 1218)];
    for (side, outer, want) in cases {
        let scratch = Scratch::new()?;
        let (a, b) = (Netns::new("a")?, Netns::new("b")?);
        veth((&a, "wan0"), (&b, "wan0"))?;
        a.sh("ip link set wan0 mtu 1300")?;
        let inner = [("10.1.0.0/24", "10.2.0.0/24"), ("fd01::/64", "fd02::/64")];
        let esp = Esp { udp: true, ..Esp::new(Mode::Tunnel, outer, &inner) };
        let gateway =
            start_with(&a, "a", &esp, 1, &scratch, &format!("[host]\nside = \"{side}\"\n{}", config(&esp, 1)))?;
        for (addr, size, mtu) in [(B_V4, 1360, want), (B_V6, 1340, 1280)] {
            let is_told = || {
                a.sh(&format!("ping -M do -s {size} -c 1 -W 1 {addr} || true; ip route get {addr}"))
                    .is_ok_and(|printed| printed.contains(&format!(" mtu {mtu}")))
            };
            wait_until(&format!("{addr} has MTU {mtu}"), Duration::from_secs(20), is_told).map_err(|err| {
                let drops = gateway.show("drops").unwrap_or_default();
                format!("{side}, {outer:?}: {}\n{drops}{}", err.message().unwrap_or_default(), gateway.log())
            })?;
        }
        let drops = gateway.show("drops")?;
        assert!(!drops.contains("IpSourceInvalid") && !drops.contains("IcmpQuote"), "{side}, {outer:?}: {drops}");
    }
    Ok(())
}

/// `[[tunnel]]` of the end `own`, with the peer `far`; both have the SPIs of `number`.
fn table(number: u32, own: u8, far: u8) -> String {
    let half = |spi: u32| format!("{{ spi = {spi:#x}, key = \"{}\" }}", Esp::key(spi, 36));
    let spis = [0x1000 * number, 0x1000 * number + 1];
    let [out, inward] = if own < far { spis } else { [spis[1], spis[0]] };
    format!(
        "[[tunnel]]\nname = \"t{number}\"\n\
         local = {{ address = \"192.0.2.{own}\", nets = [\"10.{own}.0.0/24\"], addresses = [\"10.{own}.0.1/24\"] }}\n\
         remote = {{ address = \"192.0.2.{far}\", nets = [\"10.{far}.0.0/24\"] }}\n\
         keys = {{ out = {}, in = {} }}\n",
        half(out),
        half(inward)
    )
}

/// A gateway with a tunnel to each of two peers, from one address and one network.
fn two_peers() -> Outcome {
    let scratch = Scratch::new()?;
    let [a, b, c] = [Netns::new("a")?, Netns::new("b")?, Netns::new("c")?];
    a.sh("ip link set lo up; ip addr add 192.0.2.1/32 dev lo")?;
    for (peer, own) in [(&b, 2), (&c, 3)] {
        veth((&a, &format!("w{own}")), (peer, "wan0"))?;
        a.sh(&format!("ip route add 192.0.2.{own}/32 dev w{own}"))?;
        peer.sh(&format!("ip addr add 192.0.2.{own}/32 dev wan0; ip route add 192.0.2.1/32 dev wan0"))?;
    }
    let gateway = Gateway::start(&a, &scratch, "a", &(table(1, 1, 2) + &table(2, 1, 3)))?;
    let _peers =
        [Gateway::start(&b, &scratch, "b", &table(1, 2, 1))?, Gateway::start(&c, &scratch, "c", &table(2, 3, 1))?];
    for (netns, to) in [(&a, "10.2.0.1"), (&a, "10.3.0.1"), (&b, "10.1.0.1"), (&c, "10.1.0.1")] {
        netns.sh(&ping_script(to.parse()?, &[56, 4000])).map_err(|err| {
            let drops = gateway.show("drops").unwrap_or_default();
            format!("{to}: {}\n{drops}{}", err.message().unwrap_or_default(), gateway.log())
        })?;
    }
    let links = gateway.show("links")?;
    assert_eq!(links.matches("192.0.2.1:4500").count(), 1, "one socket: {links}");
    Ok(())
}

/// Two hosts, each with a gateway; programs end before their namespaces.
pub(crate) struct TunnelSite {
    pub(crate) gateway_a: Gateway,
    _gateway_b: Gateway,
    pub(crate) a: Netns,
    b: Netns,
    esp: Esp,
    scratch: Scratch,
}

impl TunnelSite {
    pub(crate) fn new() -> Outcome<Self> {
        let scratch = Scratch::new()?;
        let (a, b) = (Netns::new("a")?, Netns::new("b")?);
        veth((&a, "wan0"), (&b, "wan0"))?;
        let inner = [("10.1.0.0/24", "10.2.0.0/24"), ("fd01::/64", "fd02::/64")];
        let esp = Esp { udp: true, ..Esp::new(Mode::Tunnel, OUTER_V4, &inner) };
        let gateway_a = start(&a, "a", &esp, 1, &scratch)?;
        let _gateway_b = start(&b, "b", &esp.reversed(), 2, &scratch)?;
        Ok(Self { gateway_a, _gateway_b, a, b, esp, scratch })
    }
}

/// Starts the gateway of the host whose inner networks have the number `own`.
pub(crate) fn start(netns: &Netns, instance: &str, esp: &Esp, own: u8, scratch: &Scratch) -> Outcome<Gateway> {
    start_with(netns, instance, esp, own, scratch, &config(esp, own))
}

/// As [`start`], with that configuration.
pub(crate) fn start_with(
    netns: &Netns,
    instance: &str,
    esp: &Esp,
    own: u8,
    scratch: &Scratch,
    toml: &str,
) -> Outcome<Gateway> {
    let peer = 3 - own;
    let len = if esp.own.is_ipv4() { 24 } else { 64 };
    netns.sh(&format!("ip addr replace {}/{len} dev wan0", esp.own))?;
    let gateway = Gateway::start(netns, scratch, instance, toml)?;
    netns.sh(&format!(
        "ip addr replace 10.{own}.0.1/24 dev tun0
        ip addr replace fd0{own}::1/64 dev tun0
        ip link set tun0 mtu 1438 up
        ip route replace 10.{peer}.0.0/24 dev tun0
        ip route replace fd0{peer}::/64 dev tun0"
    ))?;
    Ok(gateway)
}

/// The configuration of the gateway of [`start`].
pub(crate) fn config(esp: &Esp, own: u8) -> String {
    let peer = 3 - own;
    format!(
        r#"
[[link]]
name = "tun0"
kind = "tun"
mtu = 1438
addresses = ["10.{own}.0.254/24", "fd0{own}::fe/64"]

[[link]]
name = "wan"
kind = "udp"
bind = "{}"

[[route]]
to = "{}/{}"
dev = "wan"

[[route]]
to = "10.{peer}.0.0/24"
dev = "wan"

[[route]]
to = "fd0{peer}::/64"
dev = "wan"

{}"#,
        SocketAddr::new(esp.own, 4500),
        esp.peer,
        if esp.peer.is_ipv4() { 32 } else { 128 },
        esp.to_toml()
    )
}
