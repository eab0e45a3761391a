//! Keepalives of ESP in UDP (RFC 3948 §4, Linux `nat_keepalive_send`).

use std::net::IpAddr;

use base::{DropReason, Origin, RouteFlow};
use ipsec::{KEEPALIVE, Keepalive};
use packet::{Maker, Packet};
use wire::{Protocol, Version, checksum, ipv4, ipv6, udp};
use xfrm::EspInUdp;

use crate::mib::MibPair;
use crate::next::Hop;
use crate::tx::transmit::transmit_packet;
use crate::{Cx, Datapath};

/// Sends the keepalives that are due, without a policy lookup: they are part of the tunnel.
pub(crate) fn send_keepalives(dp: &mut Datapath, cx: Cx<'_>) {
    let mut due = Vec::new();
    dp.ipsec.handle_keepalives(cx.now, &mut due);
    for keepalive in due {
        if let Err(reason) = send_keepalive(dp, cx, keepalive) {
            dp.ports.drop(Origin::NODE, reason).end();
        }
    }
}

fn send_keepalive(dp: &mut Datapath, cx: Cx<'_>, keepalive: Keepalive) -> Result<(), DropReason> {
    let version = Version::of_addr(keepalive.dst);
    let flow = RouteFlow {
        src: Some(keepalive.src),
        protocol: Protocol::UDP.0,
        sport: keepalive.ports.sport,
        dport: keepalive.ports.dport,
        ..RouteFlow::to(dp.fib.domain_of(keepalive.src), keepalive.dst)
    };
    let decision = dp.decide_flow(&flow);
    let hop = Hop::of(decision).inspect_err(|_| dp.counters.count(MibPair::OUT_NO_ROUTES.of(version)))?;
    let pkt = packet(cx, &keepalive)?;
    dp.count(hop.dev, MibPair::OUT_REQUESTS.of(version));
    transmit_packet(dp, cx, pkt, hop);
    Ok(())
}

/// The packet: over IPv4 without a UDP checksum (RFC 3948 §2.3), over IPv6 with one.
fn packet(cx: Cx<'_>, keepalive: &Keepalive) -> Result<Packet, DropReason> {
    let EspInUdp { sport, dport } = keepalive.ports;
    let mut pkt = Packet::with_data(cx.mem, &KEEPALIVE)?;
    let len = udp::UdpHeader::LEN + KEEPALIVE.len();
    let mut header = udp::UdpHeader::new(sport, dport, len as u16);
    match (keepalive.src, keepalive.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            pkt.push(cx.mem, udp::UdpHeader::LEN)?.copy_from_slice(header.as_bytes());
            let mut ip = ipv4::Ipv4Header::new(src, dst, Protocol::UDP, (ipv4::Ipv4Header::LEN + len) as u16);
            ip.set_dont_fragment(true);
            ip.fill_check();
            pkt.push(cx.mem, ipv4::Ipv4Header::LEN)?.copy_from_slice(ip.as_bytes());
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let pseudo = checksum::pseudo_v6(src, dst, Protocol::UDP, len);
            let sum = [pseudo, checksum::sum(header.as_bytes()), checksum::sum(&KEEPALIVE)];
            header.set_check(checksum::finish_udp(sum.into_iter().fold(0, checksum::add)));
            pkt.push(cx.mem, udp::UdpHeader::LEN)?.copy_from_slice(header.as_bytes());
            let ip = ipv6::Ipv6Header::new(src, dst, Protocol::UDP, len as u16);
            pkt.push(cx.mem, ipv6::Ipv6Header::LEN)?.copy_from_slice(ip.as_bytes());
        }
        _ => return Err(DropReason::NoRoute),
    }
    pkt.meta.maker = Maker::Sa;
    Ok(pkt)
}
