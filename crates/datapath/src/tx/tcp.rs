//! TCP and the path MTU. MSS clamping: the MSS of SYNs is lowered to the path MTU (Linux `xt_TCPMSS --clamp-mss-to-pmtu`, RFC 9293
//! §3.7.1), always for the host side, and for forwarded packets where a link is configured so. Segments of the host side, which
//! are made for the MTU of its device, are cut.

use base::{DropReason, PortId, RouteFlow};
use ipsec::Decision as Policy;
use packet::{Csum, Cut, Gso, GsoKind, Memory};
use wire::{Protocol, Version, checksum, tcp};
use xfrm::Flowi;

use crate::ip_packet::wire_len;
use crate::next::Hop;
use crate::tx::sa_path::path_through;
use crate::{Cx, Datapath, IpPacket};

/// Offset of the lower eight flags in a TCP header (RFC 9293 §3.1).
const FLAGS_AT: usize = 13;

/// Offset of the options in a TCP header.
const OPTIONS_AT: usize = tcp::TcpHeader::LEN;

/// Kinds of TCP options that are read here (RFC 9293 §3.2).
const END: u8 = 0;
const NO_OPERATION: u8 = 1;
const MSS: u8 = 2;
/// TCP-AO, which signs the options (RFC 5925 §2.2).
const AO: u8 = 29;
/// MD5 signatures. They do not cover the options (RFC 2385), but a SYN with one is left alone as well.
const MD5: u8 = 19;

/// Fits TCP of the host side to a path of `mtu` bytes that begins with `dev`: lowers the MSS of a SYN, and cuts a longer segment.
/// Tells whether a segment was cut.
///
/// # Errors
/// [`DropReason::NoMemory`].
#[inline]
pub(crate) fn fit_tcp(
    dp: &mut Datapath,
    cx: Cx<'_>,
    ip: &mut IpPacket,
    dev: PortId,
    mtu: usize,
) -> Result<bool, DropReason> {
    if ip.info.protocol != Protocol::TCP || (!dp.ports.has_host_side() && dp.clamp_mss.is_empty()) {
        return Ok(false);
    }
    if !ip.pkt.meta.origin.is_local() {
        return clamp_forwarded(dp, cx, ip, dev, mtu).map(|()| false);
    }
    if !dp.ports.has_host_side() {
        return Ok(false);
    }
    clamp_mss(cx.mem, ip, mtu)?;
    Ok(wire_len(&ip.pkt, &ip.info) > mtu && cut_to(ip, mtu))
}

/// Lowers the MSS of a forwarded SYN to the smaller MTU of the paths in both directions, if its input or output link has MSS
/// clamping.
///
/// # Errors
/// [`DropReason::NoMemory`].
fn clamp_forwarded(
    dp: &mut Datapath,
    cx: Cx<'_>,
    ip: &mut IpPacket,
    dev: PortId,
    mtu: usize,
) -> Result<(), DropReason> {
    let is_clamped = dp.clamp_mss.iter().any(|&link| link == dev || link == ip.pkt.meta.origin.device());
    if !is_clamped || !is_syn(ip) {
        return Ok(());
    }
    let back = mtu_back(dp, cx, ip).unwrap_or(mtu);
    clamp_mss(cx.mem, ip, mtu.min(back))
}

/// Lowers the MSS of a SYN for a socket of the host side to the MTU of the path back: the socket uses the MTU of its device.
///
/// # Errors
/// [`DropReason::NoMemory`].
pub(crate) fn clamp_delivered(dp: &mut Datapath, cx: Cx<'_>, ip: &mut IpPacket) -> Result<(), DropReason> {
    if ip.info.protocol != Protocol::TCP || !is_syn(ip) {
        return Ok(());
    }
    mtu_back(dp, cx, ip).map_or(Ok(()), |mtu| clamp_mss(cx.mem, ip, mtu))
}

/// MTU of the path back to a packet's source, as far as it is local to this node: that of the link, or, if the packet came through an SA,
/// the MTU inside the SAs of the reply.
fn mtu_back(dp: &mut Datapath, cx: Cx<'_>, ip: &IpPacket) -> Option<usize> {
    let domain = dp.fib.domain(ip.pkt.meta.origin.device());
    let back = ip.flow.reversed();
    let flow = RouteFlow {
        src: Some(back.src),
        protocol: back.protocol.0,
        sport: back.sport,
        dport: back.dport,
        ..RouteFlow::to(domain, back.dst)
    };
    let hop = Hop::of(dp.decide_flow(&flow)).ok()?;
    if ip.pkt.meta.sec_path.is_empty() {
        return dp.mtu_of(hop.dev);
    }
    let flow = Flowi { key: ip.flow.reversed(), ..ip.flowi(hop.dev, dp.fib.domain(hop.dev).vrf_device()) };
    match dp.ipsec.lookup(cx.now, &flow, &mut dp.counters) {
        Policy::Protect(bundle) => Some(path_through(dp, cx, &bundle, ip.info.src, hop).ok()?.inner_mtu),
        _ => dp.mtu_of(hop.dev),
    }
}

fn is_syn(ip: &IpPacket) -> bool {
    let mut flags = [0];
    ip.info.fragment.is_none()
        && ip.pkt.read_at(ip.info.header_len + FLAGS_AT, &mut flags)
        && tcp::Flags::from_bits(flags[0].into()).contains(tcp::Flags::SYN)
}

/// Sets the segment size of a super-packet, or of a segment that is too long, so that segments have `mtu` bytes with their headers.
/// Tells whether the packet fits now.
fn cut_to(ip: &mut IpPacket, mtu: usize) -> bool {
    if ip.info.fragment.is_some() {
        return false;
    }
    let Some(header_len) = header_len(ip) else { return false };
    let headers = ip.info.header_len + header_len;
    let payload = ip.pkt.len().saturating_sub(headers);
    let Some(size) = mtu.checked_sub(headers).filter(|&size| size > 0 && payload > 0) else { return false };
    let (Ok(size), Ok(segs)) = (u16::try_from(size), u16::try_from(payload.div_ceil(size))) else { return false };
    let kind = match ip.info.version() {
        Version::V4 => GsoKind::TcpV4,
        Version::V6 => GsoKind::TcpV6,
    };
    let gso = match ip.pkt.meta.cut {
        Cut::Gso(gso) => Gso { size, segs, ..gso },
        Cut::Whole => Gso { kind, size, segs, ecn: false, fixed_id: false },
        Cut::Frames(_) | Cut::Fragment => return false,
    };
    ip.pkt.meta.cut = Cut::Gso(gso);
    true
}

/// Lowers the MSS of a SYN to fit `mtu` bytes, unless its options are signed.
///
/// # Errors
/// [`DropReason::NoMemory`].
fn clamp_mss(mem: &Memory, ip: &mut IpPacket, mtu: usize) -> Result<(), DropReason> {
    if !is_syn(ip) {
        return Ok(());
    }
    let most = mtu.saturating_sub(ip.info.version().header_len() + tcp::TcpHeader::LEN);
    let Ok(most) = u16::try_from(most) else { return Ok(()) };
    let (at, Some(header_len)) = (ip.info.header_len, header_len(ip)) else { return Ok(()) };
    if !ip.pkt.may_pull(mem, at + header_len)? {
        return Ok(());
    }
    let Some(mss_at) = mss_at(&ip.pkt.head()[at..at + header_len]) else { return Ok(()) };
    let csum = ip.pkt.meta.csum;
    let head = ip.pkt.writable_head(mem)?;
    let old = u16::from_be_bytes([head[at + mss_at], head[at + mss_at + 1]]);
    if old <= most {
        return Ok(());
    }
    head[at + mss_at..at + mss_at + 2].copy_from_slice(&most.to_be_bytes());
    // A partial checksum is computed over the changed bytes later.
    if !matches!(csum, Csum::Partial { .. }) {
        let check_at = at + tcp::CHECK_AT;
        let check = u16::from_be_bytes([head[check_at], head[check_at + 1]]);
        // A word at an odd offset has its bytes swapped in the sum.
        let swapped = |word: u16| if mss_at % 2 == 0 { word } else { word.swap_bytes() };
        let new = checksum::replace2(check, swapped(old), swapped(most));
        head[check_at..check_at + 2].copy_from_slice(&new.to_be_bytes());
        if let Csum::Complete(_) = csum {
            ip.pkt.meta.csum = Csum::None;
        }
    }
    Ok(())
}

/// Offset of the MSS in a TCP header with its options; `None` without one, or if the options are signed or malformed.
fn mss_at(header: &[u8]) -> Option<usize> {
    let mut at = OPTIONS_AT;
    let mut found = None;
    while let Some(&kind) = header.get(at) {
        let len = match kind {
            END => break,
            NO_OPERATION => 1,
            _ => usize::from(*header.get(at + 1)?),
        };
        if kind != NO_OPERATION && len < 2 || at + len > header.len() {
            return None;
        }
        match kind {
            AO | MD5 => return None,
            MSS if len == 4 => found = Some(at + 2),
            _ => {}
        }
        at += len;
    }
    found
}

fn header_len(ip: &IpPacket) -> Option<usize> {
    let mut header = [0; tcp::TcpHeader::LEN];
    ip.pkt.read_at(ip.info.header_len, &mut header).then_some(())?;
    let len = tcp::TcpHeader::ref_from(&header).ok()?.header_len();
    (len >= tcp::TcpHeader::LEN).then_some(len)
}
