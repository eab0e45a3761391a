//! What is tried: the kinds of ESP connection, and the traffic that each has to carry.

use std::net::{IpAddr, SocketAddr};

use system::{Endpoint, Esp, Mode, OUTER_V4, OUTER_V6, Outcome, PING_SIZES, blob, digest, ping_script};

use crate::site::{INNER_V4, INNER_V6, Inner, Near, Site};

/// Bytes of each TCP transfer.
const STREAM_LEN: usize = 4 << 20;

/// Sizes for the end that needs not try them all, since the answer to a ping is as long as the ping.
const SOME_SIZES: &[u16] = &[0, 56, 1408, 1473, 20000];

/// One kind of connection.
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    mode: Mode,
    outer: [&'static str; 2],
    inner: Inner,
    icv_bits: u16,
    esn: bool,
    udp: bool,
    /// Whether the near end is a host that knows nothing of IPsec, with the gateway's transport mode in front of it
    /// (RFC 4301 §3.3, "bump in the wire"). Linux opens nothing for other hosts.
    pub(crate) behind: bool,
}

const TUNNEL: Scenario = Scenario {
    name: "tunnel_v4",
    mode: Mode::Tunnel,
    outer: OUTER_V4,
    inner: INNER_V4,
    icv_bits: 128,
    esn: false,
    udp: false,
    behind: false,
};

const TRANSPORT: Scenario =
    Scenario { name: "transport_v4", mode: Mode::Transport, inner: Inner::hosts(OUTER_V4), ..TUNNEL };

const BEHIND: Scenario = Scenario {
    name: "transport_tcp_v4",
    outer: INNER_V4.ends(),
    inner: Inner::hosts(INNER_V4.ends()),
    behind: true,
    ..TRANSPORT
};

/// All of them.
pub(crate) static SCENARIOS: &[Scenario] = &[
    TUNNEL,
    Scenario { name: "tunnel_v6", outer: OUTER_V6, inner: INNER_V6, ..TUNNEL },
    Scenario { name: "tunnel_v4_in_v6", outer: OUTER_V6, ..TUNNEL },
    Scenario { name: "tunnel_v6_in_v4", inner: INNER_V6, ..TUNNEL },
    Scenario { name: "tunnel_v4_icv_96", icv_bits: 96, ..TUNNEL },
    Scenario { name: "tunnel_v4_esn", esn: true, ..TUNNEL },
    Scenario { name: "tunnel_v4_in_udp", udp: true, ..TUNNEL },
    Scenario { name: "tunnel_v6_in_udp_esn", udp: true, esn: true, inner: INNER_V6, ..TUNNEL },
    TRANSPORT,
    Scenario { name: "transport_v6", outer: OUTER_V6, inner: Inner::hosts(OUTER_V6), ..TRANSPORT },
    Scenario { name: "transport_v4_esn", esn: true, ..TRANSPORT },
    BEHIND,
    Scenario { name: "transport_tcp_v6", outer: INNER_V6.ends(), inner: Inner::hosts(INNER_V6.ends()), ..BEHIND },
    Scenario { name: "transport_tcp_v4_esn", esn: true, ..BEHIND },
];

impl Scenario {
    /// Builds the site and carries traffic over it.
    pub(crate) fn run(&self, near: Near) -> Outcome {
        let esp = Esp {
            icv_bits: self.icv_bits,
            esn: self.esn,
            udp: self.udp,
            behind: self.behind,
            ..Esp::new(self.mode, self.outer, &[(self.inner.near_net, self.inner.peer_net)])
        };
        let mut site = Site::new(near, &esp)?;
        match self.mode {
            Mode::Tunnel => tunnel_traffic(&mut site, &self.inner),
            Mode::Transport if self.behind => behind_traffic(&mut site, &self.inner),
            Mode::Transport => transport_traffic(&mut site, near, &self.inner),
        }
        .map_err(|failed| format!("{}{}", failed.message().unwrap_or_default(), site.evidence()))?;
        site.peer_errors()
    }
}

/// Traffic between a host behind the near end and the peer itself.
fn tunnel_traffic(site: &mut Site, inner: &Inner) -> Outcome {
    let (host, peer) = (inner.near.parse()?, inner.peer.parse()?);
    // The first packet that fills the link teaches the host the tunnel's MTU, and may be lost by that (RFC 1191).
    let _ = site.host.sh(&ping_script(peer, &[1472]));
    site.host.sh(&ping_script(peer, PING_SIZES))?;
    site.peer.sh(&ping_script(host, SOME_SIZES))?;
    stream_to_host(site, host)?;
    stream_to_peer(site, host)
}

/// Pings between the ends of the connection; fatpath's own end answers and asks nothing.
fn transport_traffic(site: &mut Site, near: Near, inner: &Inner) -> Outcome {
    let (own, peer): (IpAddr, IpAddr) = (inner.near.parse()?, inner.peer.parse()?);
    match near {
        Near::Linux => {
            site.peer.sh(&ping_script(own, PING_SIZES))?;
            site.near_linux()?.sh(&ping_script(peer, SOME_SIZES))?;
        }
        Near::Fatpath => {
            site.peer.sh(&ping_script(own, PING_SIZES))?;
        }
    }
    Ok(())
}

/// Traffic between the peer and a host that both are ends of the connection. A gateway cannot protect fragments.
fn behind_traffic(site: &mut Site, inner: &Inner) -> Outcome {
    let (host, peer): (IpAddr, IpAddr) = (inner.near.parse()?, inner.peer.parse()?);
    let largest = if host.is_ipv4() { 1438 } else { 1418 };
    let whole: Vec<u16> = PING_SIZES.iter().copied().filter(|&size| size < largest).chain([largest]).collect();
    site.host.sh(&ping_script(peer, &whole))?;
    site.peer.sh(&ping_script(host, &whole))?;
    stream_to_host(site, host)?;
    stream_to_peer(site, host)
}

/// A TCP stream from the peer to a host behind the near end.
fn stream_to_host(site: &mut Site, host: IpAddr) -> Outcome {
    let data = blob(STREAM_LEN);
    let endpoint = Endpoint::listen(&site.host, SocketAddr::new(host, 0))?;
    site.peer.put("stream", &data)?;
    let script = format!("exec timeout 20 bash -c 'cat stream >/dev/tcp/{host}/{}'", endpoint.address()?.port());
    let sending = site.peer.start(&script)?;
    let received = endpoint.receive();
    sending.wait()?;
    compare(&digest(&received?).to_string(), &data)
}

/// A TCP stream from a host behind the near end to the peer.
fn stream_to_peer(site: &mut Site, host: IpAddr) -> Outcome {
    let data = blob(STREAM_LEN);
    let endpoint = Endpoint::listen(&site.host, SocketAddr::new(host, 0))?;
    let script = format!("exec timeout 20 bash -c 'sha256sum </dev/tcp/{host}/{}'", endpoint.address()?.port());
    let receiving = site.peer.start(&script)?;
    let sent = endpoint.send(&data);
    let sum = receiving.wait()?;
    sent?;
    compare(sum.split_whitespace().next().unwrap_or_default(), &data)
}

fn compare(sum: &str, data: &[u8]) -> Outcome {
    let want = digest(data).to_string();
    if sum == want { Ok(()) } else { Err(format!("the stream's SHA-256 is {sum}, {want} was sent").into()) }
}
