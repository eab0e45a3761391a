//! The port of ESP in UDP: IKE for a key manager, keepalives, and a path that becomes narrower.

use std::io;
use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use libtest_mimic::Trial;
use system::{Esp, Gateway, Mode, Need, Netns, OUTER_V4, Outcome, Scratch, transfer, trial, veth};

use crate::tunnel;

const NEEDS: &[Need] = &[Need::Namespaces];
const TUN_NEEDS: &[Need] = &[Need::Namespaces, Need::Tun];

/// Timeout of a datagram.
const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("nat/ike_passes_both_ways_on_the_port_of_esp", NEEDS, ike),
        trial("nat/a_key_manager_that_sends_nonsense_ends_nothing", NEEDS, nonsense),
        trial("nat/a_quiet_tunnel_is_kept_alive", NEEDS, keepalive),
        trial("nat/tcp_inside_goes_on_when_the_path_shrinks", TUN_NEEDS, shrinking),
    ]
}

/// A gateway with IKE at 192.0.2.1, port 4500, a peer of the host's kernel at 192.0.2.2, and a key manager.
struct Site {
    gateway: Gateway,
    peer: UdpSocket,
    manager: UnixDatagram,
    _netns: Netns,
    _scratch: Scratch,
}

fn site(more: &str) -> Outcome<Site> {
    let scratch = Scratch::new()?;
    let netns = Netns::new("a")?;
    netns.sh("ip link set lo up; ip addr add 192.0.2.1/32 dev lo; ip addr add 192.0.2.2/32 dev lo")?;
    let config = format!(
        "[[link]]\nname = \"wan\"\nkind = \"udp\"\nbind = \"192.0.2.1:4500\"\nike = true\n\
         [[route]]\nto = \"192.0.2.2/32\"\ndev = \"wan\"\n{more}"
    );
    let gateway = Gateway::start(&netns, &scratch, "x", &config)?;
    let peer = netns.enter(|| UdpSocket::bind("192.0.2.2:61000"))?;
    peer.set_read_timeout(Some(PATIENCE))?;
    let manager = UnixDatagram::bind(scratch.file("x.ike-manager"))?;
    manager.set_read_timeout(Some(PATIENCE))?;
    manager.connect(gateway.socket().with_extension("ike"))?;
    Ok(Site { gateway, peer, manager, _netns: netns, _scratch: scratch })
}

/// The header between that peer and the gateway.
fn header() -> Vec<u8> {
    let mut bytes = vec![4, 0];
    bytes.extend(61_000_u16.to_be_bytes());
    bytes.extend([192, 0, 2, 2]);
    bytes.extend([0; 12]);
    bytes.extend(4500_u16.to_be_bytes());
    bytes.extend([0, 0, 192, 0, 2, 1]);
    bytes.extend([0; 12]);
    bytes
}

fn receive(from: impl Fn(&mut [u8]) -> io::Result<usize>) -> Outcome<Vec<u8>> {
    let mut buffer = vec![0; 70_000];
    let len = from(&mut buffer)?;
    buffer.truncate(len);
    Ok(buffer)
}

fn ike() -> Outcome {
    let mut site = site("")?;
    let path = site.gateway.socket().with_extension("ike");
    let mode = std::fs::metadata(&path)?.permissions().mode();
    assert_eq!(mode & 0o077, 0, "other users have access: {mode:o}");
    site.manager.send(&[])?;
    for len in [1_usize, 500, 1400, 20_000] {
        let message: Vec<u8> = (0..len).map(|at| at as u8).collect();
        let datagram = [&header()[..], &message].concat();
        // The gateway must have the key manager's address first.
        site.manager.send(&datagram)?;
        assert_eq!(receive(|to| site.peer.recv(to))?, [&[0; 4][..], &message].concat(), "{len} bytes to the peer");
        site.peer.send_to(&[&[0; 4][..], &message].concat(), "192.0.2.1:4500")?;
        assert_eq!(receive(|to| site.manager.recv(to))?, datagram, "{len} bytes to the manager");
    }
    assert!(site.gateway.terminate()?.success());
    assert!(!path.exists());
    Ok(())
}

fn nonsense() -> Outcome {
    let site = site("")?;
    let elsewhere = [&header()[..20], &[0x11, 0x95], &header()[22..], b"x"].concat();
    let huge = vec![4; 65_600];
    for bad in [&b"x"[..], &header(), &[0xff; 41], &elsewhere, &huge] {
        site.manager.send(bad)?;
    }
    let good = [&header()[..], b"still here"].concat();
    site.manager.send(&good)?;
    assert_eq!(receive(|to| site.peer.recv(to))?, b"\0\0\0\0still here");
    let drops = site.gateway.show("drops")?;
    assert!(drops.contains("IkeUnsendable"), "{drops}");
    Ok(())
}

fn keepalive() -> Outcome {
    let sa = "[[sa]]\nsrc = \"192.0.2.1\"\ndst = \"192.0.2.2\"\nspi = 0x1000\ndir = \"out\"\nmode = \"tunnel\"\n\
              enc = \"ecb(cipher_null)\"\nencap = { type = \"espinudp\", sport = 4500, dport = 61000 }\n\
              nat-keepalive-interval = 1\n";
    let site = site(sa)?;
    for _ in 0..2 {
        assert_eq!(receive(|to| site.peer.recv(to))?, [0xff]);
    }
    Ok(())
}

/// Two gateways with a router between them, whose second link becomes narrow.
fn shrinking() -> Outcome {
    let scratch = Scratch::new()?;
    let (a, router, b) = (Netns::new("a")?, Netns::new("r")?, Netns::new("b")?);
    veth((&a, "wan0"), (&router, "near"))?;
    veth((&router, "far"), (&b, "wan0"))?;
    router.sh("sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.near.proxy_arp=1 net.ipv4.conf.far.proxy_arp=1
         ip addr add 192.0.2.253/32 dev near; ip addr add 192.0.2.254/32 dev far
         ip route add 192.0.2.1/32 dev near; ip route add 192.0.2.2/32 dev far")?;
    let inner = [("10.1.0.0/24", "10.2.0.0/24"), ("fd01::/64", "fd02::/64")];
    let esp = Esp { udp: true, ..Esp::new(Mode::Tunnel, OUTER_V4, &inner) };
    let gateway = tunnel::start(&a, "a", &esp, 1, &scratch)?;
    let _far = tunnel::start(&b, "b", &esp.reversed(), 2, &scratch)?;
    for mtu in [1500, 1280] {
        router.sh(&format!("ip link set far mtu {mtu}"))?;
        for to in ["10.2.0.1", "fd02::1"] {
            transfer(&a, (&b, to.parse()?), 4 << 20).map_err(|failed| {
                let drops = gateway.show("drops").unwrap_or_default();
                format!("to {to} over {mtu}: {}\n{drops}", failed.message().unwrap_or_default())
            })?;
        }
    }
    Ok(())
}
