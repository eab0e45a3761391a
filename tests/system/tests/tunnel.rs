//! The tunnel deployment: a TUN device towards the host's kernel, ESP in UDP by a socket of that kernel.
//!
//! ```text
//!  host a ─ tun0 ─ gateway ─ UDP ─ wan0 ══ wan0 ─ UDP ─ gateway ─ tun0 ─ host b
//! ```

use std::net::IpAddr;

use libtest_mimic::Trial;
use system::{
    Capture, Esp, Gateway, Mode, Need, Netns, OUTER_V4, Outcome, PING_SIZES, Scratch, ping_script, transfer, trial,
    veth, vxlan,
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
    ]
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
    let peer = 3 - own;
    netns.sh(&format!("ip addr add {}/24 dev wan0", esp.own))?;
    let gateway = Gateway::start(netns, scratch, instance, &config(esp, own))?;
    netns.sh(&format!(
        "ip addr add 10.{own}.0.1/24 dev tun0
        ip addr add fd0{own}::1/64 dev tun0
        ip link set tun0 mtu 1438 up
        ip route add 10.{peer}.0.0/24 dev tun0
        ip route add fd0{peer}::/64 dev tun0"
    ))?;
    Ok(gateway)
}

/// The configuration of the gateway of [`start`].
fn config(esp: &Esp, own: u8) -> String {
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
bind = "{}:4500"

[[route]]
to = "{}/32"
dev = "wan"

[[route]]
to = "10.{peer}.0.0/24"
dev = "wan"

[[route]]
to = "fd0{peer}::/64"
dev = "wan"

{}"#,
        esp.own,
        esp.peer,
        esp.to_toml()
    )
}
