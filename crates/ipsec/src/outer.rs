//! Headers in front of ESP: a new IP header (tunnel) or the packet's own (transport), and UDP's if there is one.

use std::net::IpAddr;

use base::DropReason;
use wire::ip::Info;
use wire::{Ecn, Protocol, Version, checksum, ipv4, ipv6, udp};
use xfrm::EspInUdp;

use crate::sa::Sa;

/// The headers in front of ESP, of which lengths, identification and checksums are filled in for each packet.
#[derive(Debug)]
pub(crate) struct Outer {
    ip: OuterIp,
    encap: Option<EspInUdp>,
    /// Bytes of IP headers.
    ip_len: usize,
}

#[derive(Debug)]
enum OuterIp {
    /// With `counts` the identification goes up with each packet. Length and checksum are set by
    /// [`expect`](Outer::expect).
    V4 {
        header: ipv4::Ipv4Header,
        counts: bool,
    },
    V6(ipv6::Ipv6Header),
    /// The packet's own headers in front of ESP, with the offset of the byte that names the next protocol: IPv4 with
    /// options, or IPv6.
    Own {
        next_header_at: usize,
        version: Version,
        counts: bool,
    },
}

impl Outer {
    /// The header of a tunnel for inner packets like the one of `info`, which are `len` bytes long when cut; `id` is
    /// the IPv4 identification of the first. DSCP, ECN, DF and flow label follow the inner header as in Linux's
    /// `xfrm4_tunnel_encap_add` and `xfrm6_tunnel_encap_add` (RFC 4301 §5.1.2, RFC 6040).
    ///
    /// # Errors
    /// [`DropReason::EspMismatch`] when the SA has no source address to send from.
    pub(crate) fn tunnel(sa: &Sa, info: &Info, len: usize, id: u16) -> Result<Self, DropReason> {
        //= RFC 4301 §5.1.2.1 dscp-and-ecn: DSCP and ECN are copied to the outer header; decapsulation keeps the inner DSCP,
        //=   and copies a congestion mark if the inner header is ECN-capable
        let dscp = if sa.flags.dont_encap_dscp { 0 } else { info.tos };
        let ecn = match info.ecn() {
            _ if sa.flags.noecn => Ecn::NotEct,
            Ecn::Ce => Ecn::Ect0,
            other => other,
        };
        let tos = ecn.in_tos(dscp);
        if sa.src.is_unspecified() {
            return Err(DropReason::EspMismatch);
        }
        let encap = sa.encap_to();
        let ip = match (sa.src, sa.end()) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let mut header = ipv4::Ipv4Header::new(src, dst, below(encap), 0);
                let small_v6 = info.version() == Version::V6 && len <= ipv6::MIN_MTU;
                header.set_tos(tos);
                header.set_id(id);
                //= RFC 4301 §5.1.2.1 dont-fragment: Don't Fragment of the outer header is copied from the inner one,
                //=   or clear if the SA has the flag nopmtudisc
                header.set_dont_fragment(info.dont_fragment && !sa.flags.nopmtudisc && !small_v6);
                header.fill_check();
                OuterIp::V4 { header, counts: true }
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                let mut header = ipv6::Ipv6Header::new(src, dst, below(encap), 0);
                header.set_traffic_class(tos);
                header.set_flow_label(info.flow_label);
                OuterIp::V6(header)
            }
            _ => return Err(DropReason::EspMismatch),
        };
        Ok(Self { ip, encap, ip_len: Version::of_addr(sa.dst).header_len() })
    }

    /// The packet's own IP headers, `own`, in front of ESP (RFC 4303 §3.1.1). With `counts` the IPv4 identifications of
    /// segments go up.
    pub(crate) fn own(sa: &Sa, own: &[u8], version: Version, next_header_at: usize, counts: bool) -> Self {
        let ip = match ipv4::Ipv4Header::ref_from(own) {
            Ok(&(mut header)) if version == Version::V4 && own.len() == ipv4::Ipv4Header::LEN => {
                header.replace_protocol(below(sa.encap));
                OuterIp::V4 { header, counts }
            }
            _ => OuterIp::Own { next_header_at, version, counts },
        };
        Self { ip, encap: sa.encap, ip_len: own.len() }
    }

    /// Bytes in front of ESP.
    pub(crate) const fn len(&self) -> usize {
        self.ip_len + if self.encap.is_some() { udp::UdpHeader::LEN } else { 0 }
    }

    /// Offset of the UDP header, if its checksum is left to be completed: IPv6 demands one (RFC 8200 §8.1), IPv4 gets
    /// none (RFC 3948 §2.1).
    pub(crate) fn udp_check_at(&self) -> Option<usize> {
        (self.encap.is_some() && self.version() == Version::V6).then_some(self.ip_len)
    }

    /// Maximum length of ESP behind these headers.
    pub(crate) fn max_esp_len(&self) -> usize {
        let ip_max = match self.version() {
            Version::V4 => 65_535,
            Version::V6 => 65_535 + ipv6::Ipv6Header::LEN,
        };
        ip_max - self.len()
    }

    /// Precomputes length and checksum for packets with `esp_len` bytes of ESP.
    pub(crate) const fn expect(&mut self, esp_len: usize) {
        let total = self.len() + esp_len;
        if let OuterIp::V4 { header, .. } = &mut self.ip {
            header.replace_total_len(total as u16);
        }
    }

    /// Writes the headers in front of `esp_len` bytes of ESP to `to`, which is [`len`](Self::len) bytes. `head` is the
    /// packet's front, [prepared](crate::segmenter::Segmenter::prepare). `index` is added to the IPv4 identification.
    /// The caller keeps within [`max_esp_len`](Self::max_esp_len).
    #[inline(always)]
    pub(crate) fn write(&self, to: &mut [u8], head: &[u8], esp_len: usize, index: u16) {
        let (ip, rest) = to.split_at_mut(self.ip_len);
        let total = self.len() + esp_len;
        match &self.ip {
            OuterIp::V4 { header, counts } => {
                let mut header = *header;
                if header.total_len() != total {
                    header.replace_total_len(total as u16);
                }
                header.raise_id(if *counts { index } else { 0 });
                ip.copy_from_slice(header.as_bytes());
            }
            OuterIp::V6(header) => {
                let mut header = *header;
                header.set_payload_len((total - ipv6::Ipv6Header::LEN) as u16);
                ip.copy_from_slice(header.as_bytes());
            }
            OuterIp::Own { next_header_at, version, counts } => {
                let index = if *counts { index } else { 0 };
                write_own(ip, &head[..self.ip_len], *version, *next_header_at, below(self.encap), total, index);
            }
        }
        if let Some(encap) = self.encap {
            self.write_udp(encap, ip, rest, esp_len);
        }
    }

    /// Writes UDP's header, behind the IP headers `ip`, in front of `esp_len` bytes of ESP.
    fn write_udp(&self, EspInUdp { sport, dport }: EspInUdp, ip: &[u8], to: &mut [u8], esp_len: usize) {
        let len = udp::UdpHeader::LEN + esp_len;
        let mut header = udp::UdpHeader::new(sport, dport, len as u16);
        if self.version() == Version::V6 {
            header.set_check(checksum::fold(pseudo_v6(ip, len)));
        }
        to.copy_from_slice(header.as_bytes());
    }

    fn version(&self) -> Version {
        match &self.ip {
            OuterIp::V4 { .. } => Version::V4,
            OuterIp::V6(_) => Version::V6,
            OuterIp::Own { version, .. } => *version,
        }
    }
}

/// Writes a packet's `own` IP headers, whose lengths and IPv4 checksum are correct, to `to` as those of a packet of
/// `total` bytes with `protocol` inside. `next_header_at` is the offset of the protocol byte; `index` is added to the
/// identification.
#[inline]
pub(crate) fn write_own(
    to: &mut [u8],
    own: &[u8],
    version: Version,
    next_header_at: usize,
    protocol: Protocol,
    total: usize,
    index: u16,
) {
    match version {
        Version::V4 => {
            let mut header = *ipv4::Ipv4Header::ref_from(own).expect("an IPv4 header, parsed before");
            header.replace_protocol(protocol);
            header.replace_total_len(total as u16);
            write_v4(to, header, own, index);
        }
        Version::V6 => {
            to.copy_from_slice(own);
            to[next_header_at] = protocol.0;
            let header = ipv6::Ipv6Header::mut_from(to).expect("an IPv6 header, parsed before");
            header.set_payload_len((total - ipv6::Ipv6Header::LEN) as u16);
        }
    }
}

/// Writes an IPv4 header, with its identification raised by `index`, and the options of `own` to `to`.
#[inline]
pub(crate) fn write_v4(to: &mut [u8], mut header: ipv4::Ipv4Header, own: &[u8], index: u16) {
    // Changed before it is written: a load that spans parts of a recent store would stall.
    header.raise_id(index);
    *ipv4::Ipv4Header::mut_from(to).expect("as long") = header;
    if own.len() > ipv4::Ipv4Header::LEN {
        to[ipv4::Ipv4Header::LEN..].copy_from_slice(&own[ipv4::Ipv4Header::LEN..]);
    }
}

/// Protocol in the outer IP header.
const fn below(encap: Option<EspInUdp>) -> Protocol {
    if encap.is_some() { Protocol::UDP } else { Protocol::ESP }
}

/// The partial sum of UDP's pseudo-header behind the IPv6 headers `ip`.
fn pseudo_v6(ip: &[u8], len: usize) -> u32 {
    let header = ipv6::Ipv6Header::ref_from(ip).expect("an IPv6 header, just written");
    checksum::pseudo_v6(header.src(), header.dst(), Protocol::UDP, len)
}
