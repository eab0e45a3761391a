//! Segmentation of a packet on its way into ESP, and the headers of each segment (Linux `tcp_gso_segment`,
//! `__udp_gso_segment`).
//!
//! The general segmentation is `offload::gso`, which makes packets. Here segments are written straight into frames,
//! headers and payload in one pass, and their checksums completed: after encryption it is too late.

use base::DropReason;
use offload::gso::MAX_SEGMENTS;
use packet::{Csum, Cut, Gso, GsoKind, Memory, Packet};
use wire::ip::Info;
use wire::tcp::{self, Flags};
use wire::{Protocol, Version, checksum, ipv4, ipv6, udp};

/// Segmentation of a packet.
#[derive(Debug)]
pub(crate) struct Segmenter {
    /// Number of segments; 1 for a packet that is whole.
    pub(crate) segs: usize,
    /// Bytes of headers that each segment repeats; 0 for a packet that is whole.
    pub(crate) headers: usize,
    /// Bytes of payload behind the headers in total, and in each segment but the last.
    pub(crate) payload: usize,
    pub(crate) size: usize,
    /// Whether all segments have one IPv4 identification.
    pub(crate) fixed_id: bool,
    checks: Checks,
}

/// Work on checksums and on the headers that they cover.
#[derive(Debug)]
enum Checks {
    /// None: they are complete.
    Done,
    /// Complete one for a whole packet: the sum from `start` goes to `at`.
    Complete { start: usize, at: usize },
    /// Compute one for each segment. With `counts` their IPv4 identifications go up.
    Segments { counts: bool, l4: usize, transport: Transport },
}

/// Transport header of the segments between the first and the last one; `rest` is the sum of it and of the
/// pseudo-header, without the fields that differ in each.
#[derive(Debug)]
enum Transport {
    Tcp {
        seq: u32,
        /// Flags of the packet.
        flags: Flags,
        rest: u32,
    },
    Udp {
        rest: u32,
    },
    /// UDP over IPv4 without a checksum.
    Unchecked,
}

impl Segmenter {
    /// Plans the segmentation of `pkt`, whose IP headers are `info`, and brings all repeated headers into its head.
    ///
    /// # Errors
    /// [`DropReason::CannotSegment`] when a fat packet contradicts its metadata; the fault of its headers.
    pub(crate) fn new(mem: &Memory, pkt: &mut Packet, info: &Info) -> Result<Self, DropReason> {
        match pkt.meta.cut {
            Cut::Gso(gso) => Self::fat(mem, pkt, info, gso),
            Cut::Whole | Cut::Fragment => Self::whole(pkt, info),
            Cut::Frames(_) => Err(DropReason::CannotSegment),
        }
    }

    fn whole(pkt: &Packet, info: &Info) -> Result<Self, DropReason> {
        let checks = match pkt.meta.csum {
            Csum::Partial { start, offset } => {
                let (start, at) = (usize::from(start), usize::from(start) + usize::from(offset));
                if start < info.header_len || at + 2 > pkt.len() {
                    return Err(DropReason::TransportHeader);
                }
                Checks::Complete { start, at }
            }
            Csum::None | Csum::Unnecessary | Csum::Complete(_) => Checks::Done,
        };
        let payload = pkt.len();
        Ok(Self { segs: 1, headers: 0, payload, size: payload, fixed_id: true, checks })
    }

    fn fat(mem: &Memory, pkt: &mut Packet, info: &Info, gso: Gso) -> Result<Self, DropReason> {
        let (l4, size) = (info.header_len, usize::from(gso.size));
        let kind_ok = match gso.kind {
            GsoKind::TcpV4 => (info.version(), info.protocol) == (Version::V4, Protocol::TCP),
            GsoKind::TcpV6 => (info.version(), info.protocol) == (Version::V6, Protocol::TCP),
            GsoKind::Udp => info.protocol == Protocol::UDP,
        };
        // A packet that is cut inside a tunnel arrives here in segments.
        let (partial, in_tunnel) = match pkt.meta.csum {
            Csum::Partial { start, .. } => (usize::from(start) == l4, usize::from(start) > l4),
            Csum::None | Csum::Unnecessary | Csum::Complete(_) => (false, false),
        };
        if !kind_ok || in_tunnel || info.fragment.is_some() || size == 0 {
            return Err(DropReason::CannotSegment);
        }
        let headers = l4 + transport_header_len(mem, pkt, info)?;
        if !pkt.may_pull(mem, headers)? {
            return Err(DropReason::TransportHeader);
        }
        let payload = pkt.len() - headers;
        let segs = payload.div_ceil(size).max(1);
        if segs > MAX_SEGMENTS {
            return Err(DropReason::CannotSegment);
        }
        let transport = Transport::new(&pkt.head()[l4..headers], info, partial, headers - l4 + size)?;
        let counts = info.version() == Version::V4 && !gso.fixed_id;
        let checks = Checks::Segments { counts, l4, transport };
        Ok(Self { segs, headers, payload, size, fixed_id: gso.fixed_id, checks })
    }

    /// Bytes of payload in segment `index`.
    #[inline]
    pub(crate) fn payload_of(&self, index: usize) -> usize {
        if index + 1 < self.segs { self.size } else { self.payload - (self.segs - 1) * self.size }
    }

    /// Tells whether each segment gets a checksum of its own, for which its payload has to be summed.
    #[inline]
    pub(crate) const fn sums_payload(&self) -> bool {
        use Transport::{Tcp, Udp};
        matches!(self.checks, Checks::Segments { transport: Tcp { .. } | Udp { .. }, .. })
    }

    /// Makes the packet's headers those of a segment between the first and the last one, except the fields that
    /// [`patch`](Self::patch) sets.
    pub(crate) fn prepare(&self, headers: &mut [u8]) {
        let Checks::Segments { l4, transport, .. } = &self.checks else { return };
        let len = self.headers + self.size;
        put_len(headers, len);
        match transport {
            Transport::Tcp { flags, .. } => tcp_header(&mut headers[*l4..]).set_flags(between(*flags)),
            Transport::Udp { .. } | Transport::Unchecked => udp_header(&mut headers[*l4..]).set_len((len - l4) as u16),
        }
    }

    /// Makes `inside`, [prepared](Self::prepare) headers and a segment's payload without the first `skipped` bytes,
    /// which stay outside of ESP, the segment `index`. `sum` is the partial sum of its payload.
    #[inline(always)]
    pub(crate) fn patch(&self, inside: &mut [u8], skipped: usize, index: usize, sum: u32) {
        let (counts, l4, transport) = match &self.checks {
            Checks::Segments { counts, l4, transport } => (*counts, *l4, transport),
            Checks::Complete { start, at } => return complete(inside, start - skipped, at - skipped),
            Checks::Done => return,
        };
        let is_between = index > 0 && index + 1 < self.segs;
        let own = if is_between { 0 } else { self.patch_end(inside, skipped, index) };
        if counts && skipped == 0 {
            ipv4_header(inside).raise_id(index as u16);
        }
        match transport {
            Transport::Tcp { seq, rest, .. } => {
                let (seq, header) =
                    (seq.wrapping_add((index * self.size) as u32), tcp_header(&mut inside[l4 - skipped..]));
                header.set_seq(seq);
                header.set_check(checksum::finish(checksum::add_all([sum, *rest, own, seq])));
            }
            Transport::Udp { rest } => {
                let check = checksum::finish_udp(checksum::add_all([sum, *rest, own]));
                udp_header(&mut inside[l4 - skipped..]).set_check(check);
            }
            Transport::Unchecked => {}
        }
    }

    /// Changes the fields in which the first or last segment differs: its length, and TCP's flags (CWR in the first,
    /// FIN and PSH in the last). Returns the change of the transport's sum.
    #[inline(never)]
    fn patch_end(&self, inside: &mut [u8], skipped: usize, index: usize) -> u32 {
        let Checks::Segments { l4, transport, .. } = &self.checks else { return 0 };
        let len = inside.len() + skipped;
        let longer = checksum::sub(len as u32, (self.headers + self.size) as u32);
        if skipped == 0 {
            put_len(inside, len);
        }
        let header = &mut inside[l4 - skipped..];
        match transport {
            Transport::Tcp { flags, .. } => {
                let first = if index == 0 { Flags::NONE } else { Flags::CWR };
                let last = if index + 1 == self.segs { Flags::NONE } else { Flags::FIN | Flags::PSH };
                let own = *flags & !(first | last);
                tcp_header(header).set_flags(own);
                let more = checksum::sub(own.bits().into(), between(*flags).bits().into());
                checksum::add(longer, more)
            }
            Transport::Udp { .. } | Transport::Unchecked => {
                udp_header(header).set_len((len - l4) as u16);
                // The length is in the pseudo-header as well.
                checksum::add(longer, longer)
            }
        }
    }
}

/// TCP's flags between the first segment and the last one.
fn between(flags: Flags) -> Flags {
    flags & !(Flags::CWR | Flags::FIN | Flags::PSH)
}

/// Length of a fat packet's transport header, whose fixed part is brought into the head.
fn transport_header_len(mem: &Memory, pkt: &mut Packet, info: &Info) -> Result<usize, DropReason> {
    if info.protocol == Protocol::UDP {
        return Ok(udp::UdpHeader::LEN);
    }
    if !pkt.may_pull(mem, info.header_len + tcp::TcpHeader::LEN)? {
        return Err(DropReason::TransportHeader);
    }
    match tcp::TcpHeader::ref_from(&pkt.head()[info.header_len..])?.header_len() {
        len if len < tcp::TcpHeader::LEN => Err(DropReason::TransportHeader),
        len => Ok(len),
    }
}

impl Transport {
    /// Header of segments with `len` bytes behind the IP header. With `partial` the check is the pseudo-header's sum:
    /// the sender knows the final address, also when a routing header hides it.
    fn new(header: &[u8], info: &Info, partial: bool, len: usize) -> Result<Self, DropReason> {
        let pseudo = |check: u16| {
            if partial { checksum::sub(check.into(), info.payload_len() as u32) } else { pseudo(info) }
        };
        // Incremental checksum update: old words out, new words in (RFC 1624).
        let rest = |check, exchanged: &[(u32, u32)]| {
            let all = checksum::add_all([pseudo(check), checksum::sum(header), len as u32]);
            let all = checksum::sub(all, check.into());
            exchanged.iter().fold(all, |all, &(old, new)| checksum::add(checksum::sub(all, old), new))
        };
        if info.protocol == Protocol::TCP {
            let tcp = tcp::TcpHeader::ref_from(header)?;
            let (seq, flags) = (tcp.seq(), tcp.flags());
            let exchanged = [(seq, 0), (flags.bits().into(), between(flags).bits().into())];
            return Ok(Self::Tcp { seq, flags, rest: rest(tcp.check(), &exchanged) });
        }
        let udp = udp::UdpHeader::ref_from(header)?;
        if !partial && udp.check() == 0 && info.version() == Version::V4 {
            return Ok(Self::Unchecked);
        }
        Ok(Self::Udp { rest: rest(udp.check(), &[(udp.len() as u32, len as u32)]) })
    }
}

fn ipv4_header(packet: &mut [u8]) -> &mut ipv4::Ipv4Header {
    ipv4::Ipv4Header::mut_from(packet).expect("an IPv4 header, parsed before")
}

fn tcp_header(transport: &mut [u8]) -> &mut tcp::TcpHeader {
    tcp::TcpHeader::mut_from(transport).expect("a TCP header, parsed before")
}

fn udp_header(transport: &mut [u8]) -> &mut udp::UdpHeader {
    udp::UdpHeader::mut_from(transport).expect("a UDP header, parsed before")
}

/// Sets the length in the IP headers of a packet of `len` bytes.
fn put_len(packet: &mut [u8], len: usize) {
    if Version::of(packet) == Ok(Version::V4) {
        ipv4_header(packet).set_total_len(len as u16);
        ipv4::fill_check(packet).expect("an IPv4 header, parsed before");
    } else {
        let header = ipv6::Ipv6Header::mut_from(packet).expect("an IPv6 header, parsed before");
        header.set_payload_len((len - ipv6::Ipv6Header::LEN) as u16);
    }
}

/// Completes a whole packet's checksum.
#[inline(never)]
fn complete(packet: &mut [u8], start: usize, at: usize) {
    let sum = offload::checksum::sum(&packet[start..]);
    let check = if at - start == udp::CHECK_AT { checksum::finish_udp(sum) } else { checksum::finish(sum) };
    packet[at..at + 2].copy_from_slice(&check.to_be_bytes());
}

/// The pseudo-header's partial sum, without the length.
fn pseudo(info: &Info) -> u32 {
    use std::net::IpAddr::{V4, V6};
    match (info.src, info.dst) {
        (V4(src), V4(dst)) => checksum::pseudo_v4(src, dst, info.protocol, 0),
        (V6(src), V6(dst)) => checksum::pseudo_v6(src, dst, info.protocol, 0),
        _ => unreachable!("both addresses are of one header"),
    }
}
