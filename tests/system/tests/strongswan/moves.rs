//! Ends that are somewhere else from one moment to the next.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use system::{Netns, Outcome, wait_until};

use crate::strongswan::site::{EXAMPLE, PATIENCE, Setup, Site, Wan};

/// MOBIKE (RFC 4555): the left end gets another address.
pub(crate) fn address() -> Outcome {
    let site = Site::new(&Setup { wan: Wan::Interface, ..EXAMPLE })?;
    site.up()?;
    let [left, right] = &site.ends;
    site.ip(left, "addr del 192.0.2.1/24 dev wan")?;
    site.ip(left, "addr add 192.0.2.11/24 dev wan")?;
    // As in Linux, it has gone with the last address.
    site.ip(left, "route add 10.2.0.0/24 via 192.0.2.2 dev wan")?;
    wait_until("the SAs have moved", PATIENCE, || {
        [left, right].iter().all(|end| {
            let states = site.xfrm(end, "state").unwrap_or_default();
            states.contains("src 192.0.2.11 dst 192.0.2.2") && !states.contains("192.0.2.1 ")
        })
    })
    .map_err(|failed| site.explain(&failed))?;
    for (end, to) in [(left, "10.2.0.1"), (right, "10.1.0.1")] {
        end.netns.sh(&format!("ping -c 10 -i 0.05 -W 2 {to}")).map_err(|failed| site.explain(&failed))?;
    }
    let initiations = left.log().matches("initiating IKE_SA").count();
    assert_eq!(initiations, 1, "it is still the first IKE_SA: {}", left.log());
    Ok(())
}

/// Direction of a NAT: a port, and the destination of packets to it.
struct Way {
    near: UdpSocket,
    /// The address and port that the far end sees.
    outside: UdpSocket,
    to: SocketAddr,
    /// Sender of packets to `near`.
    from: Option<SocketAddr>,
}

impl Way {
    fn new(netns: &Netns, port: u16) -> Outcome<Self> {
        let near = netns.enter(|| UdpSocket::bind(("192.0.2.254", port)))?;
        near.set_nonblocking(true)?;
        Ok(Self { near, outside: outside(netns)?, to: format!("198.51.100.2:{port}").parse()?, from: None })
    }

    /// Forwards datagrams that have come; tells whether there were any.
    fn carry(&mut self) -> io::Result<bool> {
        let (mut bytes, mut any) = ([0; 65_536], false);
        while let Some((len, from)) = next(&self.near, &mut bytes)? {
            (self.from, any) = (Some(from), true);
            self.outside.send_to(&bytes[..len], self.to)?;
        }
        while let Some((len, _)) = next(&self.outside, &mut bytes)? {
            any = true;
            if let Some(from) = self.from {
                self.near.send_to(&bytes[..len], from)?;
            }
        }
        Ok(any)
    }
}

/// A port of the NAT towards the far end.
fn outside(netns: &Netns) -> Outcome<UdpSocket> {
    let socket = netns.enter(|| UdpSocket::bind("198.51.100.254:0"))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

fn next(socket: &UdpSocket, bytes: &mut [u8]) -> io::Result<Option<(usize, SocketAddr)>> {
    match socket.recv_from(bytes) {
        Ok(received) => Ok(Some(received)),
        // A datagram to a port without a socket comes back as an error.
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionRefused) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Carries UDP ports 500 and 4500 between the ends until `over`, with another port outside for each turn of `turns`.
/// Tells which port the far end saw last behind 4500.
fn nat(netns: &Netns, over: &AtomicBool, turns: &AtomicU32) -> Outcome<u16> {
    let mut ways = [Way::new(netns, 500)?, Way::new(netns, 4500)?];
    let mut turned = 0;
    while !over.load(Ordering::Relaxed) {
        if turns.load(Ordering::Relaxed) != turned {
            turned += 1;
            ways[1].outside = outside(netns)?;
        }
        let mut any = false;
        for way in &mut ways {
            any |= way.carry()?;
        }
        if !any {
            thread::sleep(Duration::from_micros(200));
        }
    }
    Ok(ways[1].outside.local_addr()?.port())
}

/// The left end is behind a NAT, which forgets it and gives it another port.
pub(crate) fn port() -> Outcome {
    let between = Netns::new("nat")?;
    let (over, turns) = (AtomicBool::new(false), AtomicU32::new(0));
    let mut site = Site::behind(&between)?;
    thread::scope(|scope| {
        let nat = scope.spawn(|| nat(&between, &over, &turns));
        let went = behind_nat(&mut site, &turns);
        over.store(true, Ordering::Relaxed);
        let port = nat.join().unwrap_or_else(|_| Err("the NAT panicked".into()))?;
        went.map_err(|failed| site.explain(&failed))?;
        let states = site.xfrm(&site.ends[1], "state list nokeys")?;
        assert!(states.contains(&format!("encap type espinudp sport {port} dport 4500")), "{port}: {states}");
        assert!(states.contains(&format!("encap type espinudp sport 4500 dport {port}")), "{port}: {states}");
        let initiations = site.ends[0].log().matches("initiating IKE_SA").count();
        assert_eq!(initiations, 1, "it is still the first IKE_SA: {}", site.ends[0].log());
        Ok(())
    })
}

fn behind_nat(site: &mut Site, turns: &AtomicU32) -> Outcome {
    site.start()?;
    site.up()?;
    let [left, right] = &site.ends;
    left.netns.sh("ping -c 5 -i 0.05 -W 2 10.2.0.1")?;
    right.netns.sh("ping -c 5 -i 0.05 -W 2 10.1.0.1")?;
    for _ in 0..2 {
        turns.fetch_add(1, Ordering::Relaxed);
        // Answers go astray until the far end has heard from the new port.
        wait_until("an answer comes by the new port", PATIENCE, || left.netns.sh("ping -c 1 -W 1 10.2.0.1").is_ok())?;
        right.netns.sh("ping -c 5 -i 0.05 -W 2 10.1.0.1")?;
    }
    Ok(())
}
