//! Traffic of the hosts: TCP-like streams, datagrams and pings of all sizes, fat and thin.

use packet::Packet;
use sim::{Flow, Rng};
use wire::{Protocol, ipv4};
use xfrm::Mode;

use crate::ledger::Ledger;
use crate::site::Site;

/// First bytes of every 16 bytes of payload, which must not appear on the outer wire.
pub(crate) const MAGIC: [u8; 8] = *b"\xd1PL\xa9INT\xee";

/// Kind of traffic of a flow.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Manner {
    /// A stream in fat packets.
    FatTcp,
    /// A stream in single segments.
    ThinTcp,
    /// Trains of datagrams.
    Train,
    /// Datagrams, some slightly longer than the MTU allows.
    Datagram,
    /// Pings within the MTU.
    Ping,
    /// Datagrams of up to 20 000 bytes, which the gateway or the host fragments.
    LongDatagram,
    /// Pings of up to 20 000 bytes, which the gateway or the host fragments.
    LongPing,
}

const MANNERS: [Manner; 7] = [
    Manner::FatTcp,
    Manner::ThinTcp,
    Manner::Train,
    Manner::Datagram,
    Manner::Ping,
    Manner::LongDatagram,
    Manner::LongPing,
];

/// One flow.
#[derive(Debug)]
struct Stream {
    id: u16,
    from: usize,
    flow: Flow,
    manner: Manner,
    /// Sequence number up to which a stream was sent.
    seq: u32,
    /// Number of messages that were sent.
    sent: u32,
    /// The last packet, for a retransmission.
    last: Option<(Vec<u8>, packet::Csum, packet::Cut)>,
}

/// All flows of a site.
#[derive(Debug)]
pub(crate) struct Traffic {
    streams: Vec<Stream>,
}

impl Traffic {
    pub(crate) fn new() -> Self {
        let mut streams = Vec::new();
        for from in 0..2 {
            for v6 in [false, true] {
                for manner in MANNERS {
                    let [src, dst] = [from + 1, 2 - from].map(|n| match v6 {
                        false => format!("10.{n}.0.1"),
                        true => format!("fd00:{n}::1"),
                    });
                    let id = streams.len() as u16;
                    let flow = Flow { sport: 30_000 + id, dport: 100 + manner as u16, ..Flow::new(&src, &dst) };
                    streams.push(Stream { id, from, flow, manner, seq: 0, sent: 0, last: None });
                }
            }
        }
        Self { streams }
    }

    /// A protocol and a port of a random flow.
    pub(crate) fn some_port(rng: &mut Rng) -> (Protocol, u16) {
        *rng.pick(&[
            (Protocol::TCP, 100 + Manner::FatTcp as u16),
            (Protocol::TCP, 100 + Manner::ThinTcp as u16),
            (Protocol::UDP, 100 + Manner::Train as u16),
            (Protocol::UDP, 100 + Manner::Datagram as u16),
        ])
    }

    /// Sends a packet or message from a random host.
    pub(crate) fn send(&mut self, site: &mut Site, ledger: &mut Ledger, rng: &mut Rng) {
        let at = rng.below(self.streams.len());
        let stream = &mut self.streams[at];
        let mtu = site.inner_mtu(stream.from, stream.flow.src.is_ipv6());
        match stream.manner {
            Manner::LongDatagram | Manner::LongPing => stream.long(site, ledger, rng, mtu),
            _ => {
                for _ in 0..if stream.manner == Manner::ThinTcp { 1 + rng.below(12) } else { 1 } {
                    stream.one(site, ledger, rng, mtu);
                }
            }
        }
    }
}

impl Stream {
    /// Sends a packet that is not fragmented.
    fn one(&mut self, site: &mut Site, ledger: &mut Ledger, rng: &mut Rng, mtu: usize) {
        let host = &mut site.world.hosts[self.from];
        if let Some((bytes, csum, cut)) = self.last.as_ref().filter(|_| rng.happens(30)) {
            let mut again = Packet::with_data(&host.mem, bytes).unwrap();
            (again.meta.csum, again.meta.cut) = (*csum, *cut);
            ledger.send(self.from, self.id, &again);
            return host.send(again);
        }
        let pkt = match self.manner {
            Manner::FatTcp | Manner::ThinTcp => {
                let mss = mtu - self.flow.tcp_headers() - *rng.pick(&[0, 0, 1, 2, 3, 500]);
                let most = if self.manner == Manner::FatTcp { 65_000 } else { mss };
                let len = if rng.happens(600) { most } else { 1 + rng.below(most) };
                let payload = self.payload(len);
                let seq = self.seq;
                self.seq = self.seq.wrapping_add(len as u32);
                if rng.happens(100) && len <= mss {
                    Packet::with_data(&host.mem, &self.flow.tcp_with(seq, &payload)).unwrap()
                } else {
                    self.flow.fat_tcp_with(&host.mem, seq, &payload, mss as u16)
                }
            }
            Manner::Train => {
                let size = (1 + rng.below(mtu - self.headers())).max(600);
                let payload = self.payload(1 + rng.below(64_000.min(60 * size)));
                self.flow.fat_udp_with(&host.mem, &payload, size as u16)
            }
            Manner::Datagram => {
                let most = mtu - self.headers();
                let small = [rng.below(20), rng.below(most)];
                let len = *rng.pick(&[small[0], small[1], most - 1, most, most, most + 1]);
                let payload = self.payload(len);
                Packet::with_data(&host.mem, &self.flow.udp_with(&payload)).unwrap()
            }
            Manner::Ping | Manner::LongDatagram | Manner::LongPing => {
                let most = *rng.pick(&[20, 100, mtu - self.headers() + 1]);
                let data = self.payload(rng.below(most));
                Packet::with_data(&host.mem, &self.flow.ping_with(self.sent as u16, &data)).unwrap()
            }
        };
        self.sent += 1;
        self.last = Some((pkt.to_vec(), pkt.meta.csum, pkt.meta.cut));
        ledger.send(self.from, self.id, &pkt);
        host.send(pkt);
    }

    /// Sends a message that may need many fragments. Transport mode has no fragments (RFC 4303 §3.3.4).
    fn long(&mut self, site: &mut Site, ledger: &mut Ledger, rng: &mut Rng, mtu: usize) {
        let transport = site.plan.mode == Mode::Transport;
        let most = if transport { mtu - self.headers() + 1 } else { *rng.pick(&[2000, 20_000]) };
        let data = self.payload(rng.below(most));
        let mut whole = match self.manner {
            Manner::LongPing => self.flow.ping_with(self.sent as u16, &data),
            _ => self.flow.udp_with(&data),
        };
        let id = u32::from(self.id) << 16 | self.sent & 0xffff;
        if let Ok(header) = ipv4::Ipv4Header::mut_from(&mut whole)
            && self.flow.src.is_ipv4()
        {
            header.set_id(self.sent as u16 + 1);
            header.set_dont_fragment(false);
            ipv4::fill_check(&mut whole).unwrap();
        }
        self.sent += 1;
        let host = &mut site.world.hosts[self.from];
        let pkt = Packet::with_data(&host.mem, &whole).unwrap();
        ledger.may_be_cut(self.from, self.id, &whole);
        let mut fragments = Vec::new();
        if self.flow.src.is_ipv6() {
            reassembly::fragment_v6(&host.mem, pkt, mtu, id, &mut fragments).unwrap();
        } else if rng.happens(500) && !transport {
            let mtu = if rng.happens(500) { mtu } else { 576 };
            reassembly::fragment(&host.mem, pkt, mtu, &mut fragments).unwrap();
        } else {
            fragments.push(pkt);
        }
        for fragment in fragments {
            ledger.send(self.from, self.id, &fragment);
            host.send(fragment);
        }
    }

    /// Bytes in front of a datagram's or a ping's payload.
    const fn headers(&self) -> usize {
        self.flow.version().header_len() + 8
    }

    /// Payload that is unique among messages, if long enough for a number.
    fn payload(&self, len: usize) -> Vec<u8> {
        let mut payload = Vec::with_capacity(len + 16);
        for index in 0..len.div_ceil(16) {
            payload.extend_from_slice(&MAGIC);
            payload.extend_from_slice(&self.id.to_be_bytes());
            payload.extend_from_slice(&self.sent.to_be_bytes());
            payload.extend_from_slice(&(index as u16).to_be_bytes());
        }
        payload.truncate(len);
        payload
    }
}
