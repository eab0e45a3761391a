//! Trains of UDP datagrams, as packets.

use std::net::{IpAddr, SocketAddr};

use link::{Link, Sent};
use packet::{Csum, Cut, Gso, GsoKind, Memory, Packet};
use system::{Outcome, wait_until};
use wire::{Protocol, ipv4, ipv6, udp};

/// A UDP datagram that is not to be fragmented, or a train of them if the payload is longer than `size`, headers in the
/// head and the payload in pieces of 1000 bytes behind it.
pub(crate) fn train(mem: &Memory, src: SocketAddr, dst: SocketAddr, tos: u8, payload: &[u8], size: u16) -> Packet {
    let udp_len = (udp::UdpHeader::LEN + payload.len()) as u16;
    let mut head = match (src.ip(), dst.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let mut header = ipv4::Ipv4Header::new(from, to, Protocol::UDP, 20 + udp_len);
            header.set_tos(tos);
            header.set_dont_fragment(true);
            header.fill_check();
            header.as_bytes().to_vec()
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let mut header = ipv6::Ipv6Header::new(from, to, Protocol::UDP, udp_len);
            header.set_traffic_class(tos);
            header.as_bytes().to_vec()
        }
        _ => unreachable!("one train, one family"),
    };
    let start = head.len() as u16;
    head.extend(udp::UdpHeader::new(src.port(), dst.port(), udp_len).as_bytes());
    let mut packet = Packet::with_data(mem, &head).expect("memory");
    for piece in payload.chunks(1000) {
        packet.append(Packet::with_data(mem, piece).expect("memory"));
    }
    packet.meta.csum = Csum::Partial { start, offset: 6 };
    let segs = payload.len().div_ceil(usize::from(size)) as u16;
    if segs > 1 {
        packet.meta.cut = Cut::Gso(Gso { kind: GsoKind::Udp, size, segs, ecn: false, fixed_id: false });
    }
    packet
}

/// The same packet without IPv4's Don't Fragment.
pub(crate) fn without_df(mut packet: Packet) -> Packet {
    let header = ipv4::Ipv4Header::mut_from(packet.head_mut().expect("its own")).expect("an IPv4 header");
    header.set_dont_fragment(false);
    header.fill_check();
    packet
}

/// Sends one packet.
pub(crate) fn send(link: &mut dyn Link, packet: Packet) -> Outcome<Sent> {
    let mut burst = vec![packet];
    let sent = link.send(&mut burst)?;
    assert_eq!(burst.is_empty(), sent == Sent::All);
    Ok(sent)
}

/// Receives until there are `bytes` of UDP payload.
pub(crate) fn receive(link: &mut dyn Link, mem: &Memory, header_len: usize, bytes: usize) -> Outcome<Vec<Packet>> {
    let mut got: Vec<Packet> = Vec::new();
    let mut failed = None;
    wait_until("the train arrives", std::time::Duration::from_secs(20), || {
        failed = link.recv(mem, &mut got).err();
        failed.is_some() || got.iter().map(|packet| packet.len() - header_len).sum::<usize>() >= bytes
    })?;
    match failed {
        Some(err) => Err(err.into()),
        None => Ok(got),
    }
}
