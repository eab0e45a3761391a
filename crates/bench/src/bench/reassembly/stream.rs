//! Good flow: UDP datagrams in fragments, in clear or in ESP.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use base::{Counters, Instant};
use ipsec::{Ipsec, Train};
use packet::{Buf, Memory, Packet};
use sim::{Flow, unique_mask};
use wire::{Spi, Version, ipv4};
use xfrm::{Aead, Algorithm, Mode, SaConfig, SaDir};

use super::receiver::MTU;

const fn v6(net: u16) -> IpAddr {
    IpAddr::V6(Ipv6Addr::new(0xfc00, net, 0, 0, 0, 0, 0, 1))
}

/// Addresses and ports of the stream, by family.
pub(super) const FLOWS: [Flow; 2] = [
    Flow {
        src: IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)),
        dst: IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2)),
        sport: 40_000,
        dport: 5201,
        ttl: 64,
        dont_fragment: false,
    },
    Flow { src: v6(1), dst: v6(2), sport: 40_000, dport: 5201, ttl: 64, dont_fragment: false },
];

/// Bytes of payload of the largest datagram that IPv6 carries in ESP with a 96-bit ICV: 65 507 bytes with headers,
/// padding and ICV would exceed the maximum payload of 65 535 by 13.
pub(super) const LARGEST_IN_ESP: usize = 65_494;

/// Length of the longest IPv6 packet.
const LONGEST: usize = 40 + 65_535;

/// The fragments of one datagram, which is repeated with other identifications.
#[derive(Clone, Debug)]
pub(super) struct FragmentStream {
    version: Version,
    fragments: Vec<Vec<u8>>,
    /// Bytes of payload of the datagram.
    pub(super) payload: usize,
}

/// S0's SA for packets of the first host.
pub(super) fn sa() -> SaConfig {
    let [src, dst] = [FLOWS[1].src, FLOWS[1].dst];
    let algorithm = Algorithm::aead(Aead::GcmAes, vec![0x0b; 20].into(), 96);
    SaConfig { reqid: 0, replay_window: 0, ..SaConfig::new(src, dst, Spi(0x1000), Mode::Transport, algorithm) }
}

impl FragmentStream {
    /// Datagrams with that payload in bytes, in clear.
    pub(super) fn clear(version: Version, payload: usize) -> Self {
        let mem = Memory::heap();
        let flow = if version == Version::V4 { &FLOWS[0] } else { &FLOWS[1] };
        let pkt = Packet::with_data(&mem, &flow.udp(payload)).expect("a heap without limit");
        let mut fragments = Vec::new();
        let cut = match version {
            Version::V4 => reassembly::fragment(&mem, pkt, MTU, &mut fragments),
            Version::V6 => reassembly::fragment_v6(&mem, pkt, MTU, 0, &mut fragments),
        };
        cut.expect("a datagram that may be fragmented");
        Self { version, fragments: fragments.iter().map(Packet::to_vec).collect(), payload }
    }

    /// The largest datagrams, sealed and then fragmented, as in transport mode.
    pub(super) fn sealed(sa: &SaConfig) -> Self {
        let mut ipsec = Ipsec::new();
        let id = ipsec.add_sa(&SaConfig { dir: Some(SaDir::Out), ..sa.clone() }, unique_mask()).expect("a good SA");
        let mem = Memory::heap();
        let pkt = Packet::with_data(&mem, &FLOWS[1].udp(LARGEST_IN_ESP)).expect("a heap without limit");
        let (mut sealed, mut sent, mut counters) = (Vec::new(), Vec::new(), Counters::ZERO);
        let done = ipsec.seal(&mem, Instant::ZERO, id, pkt, Train::None, LONGEST, &mut sealed, &mut counters);
        let cut = done.and_then(|()| reassembly::fragment_v6(&mem, sealed.remove(0), MTU, 0, &mut sent));
        cut.expect("a datagram that ESP and IPv6 have room for");
        let fragments = sent.iter().map(Packet::to_vec).collect();
        Self { version: Version::V6, fragments, payload: LARGEST_IN_ESP }
    }

    /// Number of fragments of a datagram.
    pub(super) fn len(&self) -> usize {
        self.fragments.len()
    }

    /// Writes fragment `at` of datagram `id` into `frame`, like a device.
    pub(super) fn write(&self, at: usize, id: u32, mut frame: Buf) -> Packet {
        write(&self.fragments[at], self.version, id, &mut frame);
        Packet::from_buf(frame)
    }
}

/// Writes a fragment into an empty page, with this identification.
pub(super) fn write(bytes: &[u8], version: Version, id: u32, frame: &mut Buf) {
    let to = frame.put(bytes.len()).expect("a frame has room for a packet");
    to.copy_from_slice(bytes);
    match version {
        Version::V4 => {
            ipv4::Ipv4Header::mut_from(to).expect("a header").set_id(id as u16);
            ipv4::fill_check(to).expect("a header");
        }
        Version::V6 => to[44..48].copy_from_slice(&id.to_be_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_datagram_fills_what_a_payload_may_have() {
        let stream = FragmentStream::sealed(&sa());
        let payload: usize = stream.fragments.iter().map(|bytes| bytes.len() - 48).sum();
        assert_eq!(stream.len(), 46);
        assert!((65_532..=65_535).contains(&payload), "{payload}");
        assert_eq!(FragmentStream::clear(Version::V4, 65_507).len(), 45);
    }
}
