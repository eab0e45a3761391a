//! The namespaces, veth pairs and addresses of the two deployments.
//!
//! Tunnel: `a ── wire ── b`, where each namespace is a host with its gateway process and a TUN device between the two.
//!
//! Router: `host a ── gateway a ── wire ── gateway b ── host b`, and a veth pair from host to host past the gateways,
//! for the ceiling.

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use testbed::{Failure, Namespace, Stop, tool};

/// The largest inner packet that ESP in UDP carries over 1500 bytes (IPv4 20, UDP 8, ESP 8, IV 8, trailer 2, ICV 16;
/// the ciphertext is a multiple of 4).
pub(super) const TUNNEL_MTU: u32 = 1438;

/// Deployment of fatpath.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Deployment {
    /// A TUN device towards the host, a UDP socket towards the wire.
    Tunnel,
    /// Packet links on both sides, raw ESP on the wire.
    Router,
}

/// The sending end or the receiving end.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Side {
    /// The TCP sender's end.
    A,
    /// The TCP receiver's end.
    B,
}

impl Side {
    /// Both, sender first.
    pub(super) const BOTH: [Self; 2] = [Self::A, Self::B];

    /// The other end.
    pub(super) const fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }

    /// Letter of the side in names of namespaces, instances and files.
    pub(super) const fn letter(self) -> char {
        match self {
            Self::A => 'a',
            Self::B => 'b',
        }
    }

    const fn number(self) -> u8 {
        match self {
            Self::A => 1,
            Self::B => 2,
        }
    }

    /// The host's address, which the tunnel connects to the peer's.
    pub(super) const fn host(self) -> Ipv4Addr {
        Ipv4Addr::new(10, self.number(), 0, 1)
    }

    /// The gateway's own address on the host's network.
    pub(super) const fn gateway(self) -> Ipv4Addr {
        Ipv4Addr::new(10, self.number(), 0, 254)
    }

    /// The gateway's address on the wire (RFC 5737).
    pub(super) const fn wire(self) -> Ipv4Addr {
        Ipv4Addr::new(192, 0, 2, self.number())
    }

    /// The host's address on the pair that only the router topology's ceiling uses (RFC 5737).
    const fn beside(self) -> Ipv4Addr {
        Ipv4Addr::new(198, 51, 100, self.number())
    }

    /// The host's network.
    pub(super) fn network(self) -> String {
        format!("10.{}.0.0/24", self.number())
    }
}

/// Namespaces and devices of the demo. Dropping it removes the namespaces, and with them every device.
#[derive(Debug)]
pub(super) struct Topology {
    deployment: Deployment,
    hosts: [Namespace; 2],
    /// Namespaces of the router's gateways; a tunnel gateway is in its host's namespace.
    gateways: Option<[Namespace; 2]>,
}

impl Topology {
    /// Builds the namespaces, whose names begin with `prefix`.
    pub(super) fn build(deployment: Deployment, prefix: &str, stop: &Stop) -> Result<Self, Failure> {
        match deployment {
            Deployment::Tunnel => Self::tunnel(prefix, stop),
            Deployment::Router => Self::router(prefix, stop),
        }
    }

    fn tunnel(prefix: &str, stop: &Stop) -> Result<Self, Failure> {
        let hosts = [Namespace::create(format!("{prefix}-a"))?, Namespace::create(format!("{prefix}-b"))?];
        veth((&hosts[0], "wire"), (&hosts[1], "wire"), stop)?;
        for side in Side::BOTH {
            let host = &hosts[side as usize];
            host.ip(&format!("addr add {}/24 dev wire", side.wire()), stop)?;
            host.ip("link set wire up", stop)?;
        }
        Ok(Self { deployment: Deployment::Tunnel, hosts, gateways: None })
    }

    fn router(prefix: &str, stop: &Stop) -> Result<Self, Failure> {
        let hosts = [Namespace::create(format!("{prefix}-ha"))?, Namespace::create(format!("{prefix}-hb"))?];
        let gateways = [Namespace::create(format!("{prefix}-ga"))?, Namespace::create(format!("{prefix}-gb"))?];
        veth((&hosts[0], "beside"), (&hosts[1], "beside"), stop)?;
        veth((&gateways[0], "wan"), (&gateways[1], "wan"), stop)?;
        for side in Side::BOTH {
            let (host, gateway) = (&hosts[side as usize], &gateways[side as usize]);
            veth((host, "eth0"), (gateway, "lan"), stop)?;
            for device in ["lan", "wan"] {
                lend(gateway, device, stop)?;
            }
            host.ip(&format!("addr add {}/24 dev eth0", side.host()), stop)?;
            host.ip("link set eth0 up", stop)?;
            host.ip(&format!("route add {} via {}", side.other().network(), side.gateway()), stop)?;
            host.ip(&format!("addr add {}/24 dev beside", side.beside()), stop)?;
            host.ip("link set beside up", stop)?;
        }
        Ok(Self { deployment: Deployment::Router, hosts, gateways: Some(gateways) })
    }

    /// Connects the two hosts by a second wire, whose devices have no kernel addresses: `bare` in both.
    pub(super) fn add_bare_wire(&self, stop: &Stop) -> Result<(), Failure> {
        veth((&self.hosts[0], "bare"), (&self.hosts[1], "bare"), stop)?;
        self.hosts.iter().try_for_each(|host| lend(host, "bare", stop))
    }

    /// The deployment.
    pub(super) fn deployment(&self) -> Deployment {
        self.deployment
    }

    /// Namespace of the TCP end of a side.
    pub(super) fn host(&self, side: Side) -> &Namespace {
        &self.hosts[side as usize]
    }

    /// Namespace of the gateway of a side.
    pub(super) fn gateway(&self, side: Side) -> &Namespace {
        &self.gateways.as_ref().unwrap_or(&self.hosts)[side as usize]
    }

    /// The receiver's address that the sender reaches over veth alone.
    pub(super) fn plain_address(&self) -> Ipv4Addr {
        match self.deployment {
            Deployment::Tunnel => Side::B.wire(),
            Deployment::Router => Side::B.beside(),
        }
    }

    /// Connects a host to the gateway that has just been started for it. `fat`: the host's device may pass
    /// super-packets, as the gateway's own offloads do.
    pub(super) fn attach(&self, side: Side, fat: bool, stop: &Stop) -> Result<(), Failure> {
        let host = self.host(side);
        match self.deployment {
            Deployment::Tunnel => {
                host.ip(&format!("link set tun0 mtu {TUNNEL_MTU} up"), stop)?;
                host.ip(&format!("addr add {}/24 dev tun0", side.host()), stop)?;
                host.ip(&format!("route add {} dev tun0 src {}", side.other().network(), side.host()), stop)
            }
            Deployment::Router => {
                // A veth passes super-packets without checksums to its peer. Without offloads, frames are complete.
                let state = if fat { "on" } else { "off" };
                let args = ["-K", "eth0", "tx", state, "sg", state, "tso", state, "gso", state];
                let run = || tool("ethtool", &args, stop).map(drop);
                host.enter(run)
            }
        }
    }
}

/// Whether the kernel has IPv6, and it is not switched off at boot.
fn kernel_has_ipv6() -> bool {
    Path::new("/proc/self/net/if_inet6").exists()
}

/// Sets a device up on which the kernel only carries frames, as docs/router.md advises: without IPv6, or the kernel
/// would answer each frame that it cannot route.
pub(crate) fn lend(namespace: &Namespace, device: &str, stop: &Stop) -> Result<(), Failure> {
    if kernel_has_ipv6() {
        let setting = format!("/proc/sys/net/ipv6/conf/{device}/disable_ipv6");
        namespace.enter(|| fs::write(&setting, "1").map_err(|err| Failure::step(&setting, err)))?;
    }
    namespace.ip(&format!("link set {device} up"), stop)
}

/// A veth pair of 1500-byte devices between two namespaces.
pub(crate) fn veth(one: (&Namespace, &str), other: (&Namespace, &str), stop: &Stop) -> Result<(), Failure> {
    let (peer, device) = (other.0.name(), other.1);
    one.0.ip(&format!("link add {} mtu 1500 type veth peer name {device} mtu 1500 netns {peer}", one.1), stop)
}
