//! TCP of the host side, whose MTU is that of its device and not that of the path: segments are cut to the path's size, and the
//! MSS of SYNs is lowered to it (Linux `xt_TCPMSS`, RFC 9293 §3.7.1).

use base::DropReason;
use packet::{Csum, Cut, Gso, GsoKind, Memory};
use wire::{Protocol, Version, checksum, tcp};

use crate::ip_packet::wire_len;
use crate::{Cx, Datapath, IpPacket};

/// Offset of the options in a TCP header.
const OPTIONS_AT: usize = tcp::Header::LEN;

/// Kinds of TCP options that are read here (RFC 9293 §3.2).
const END: u8 = 0;
const NO_OPERATION: u8 = 1;
const MSS: u8 = 2;
/// TCP-AO, which signs the options (RFC 5925 §2.2).
const AO: u8 = 29;
/// MD5 signatures sign no options, but the pair of ends that use them agrees on none either (RFC 2385).
const MD5: u8 = 19;

/// Makes TCP of the host side fit a path of `mtu` bytes: the MSS of a SYN is lowered, a longer segment cut. Tells whether one was cut.
///
/// # Errors
/// [`DropReason::NoMemory`].
#[inline]
pub(crate) fn fit_tcp(dp: &Datapath, cx: Cx<'_>, ip: &mut IpPacket, mtu: usize) -> Result<bool, DropReason> {
    if dp.ports.hosts.is_empty() || ip.info.protocol != Protocol::TCP || !ip.pkt.meta.origin.is_local() {
        return Ok(false);
    }
    clamp_mss(cx.mem, ip, mtu)?;
    Ok(wire_len(&ip.pkt, &ip.info) > mtu && cut_to(ip, mtu))
}

/// Makes a super-packet, or a segment that is too long, one whose segments are `mtu` bytes with their headers. Tells whether it is now.
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

/// Lowers the MSS of a SYN to what fits `mtu` bytes, unless its options are signed.
///
/// # Errors
/// [`DropReason::NoMemory`].
fn clamp_mss(mem: &Memory, ip: &mut IpPacket, mtu: usize) -> Result<(), DropReason> {
    if ip.info.fragment.is_some() {
        return Ok(());
    }
    let mut header = [0; tcp::Header::LEN];
    if !ip.pkt.read_at(ip.info.header_len, &mut header) {
        return Ok(());
    }
    let Ok(tcp) = tcp::Header::ref_from(&header) else { return Ok(()) };
    if !tcp.flags().contains(tcp::Flags::SYN) {
        return Ok(());
    }
    let most = mtu.saturating_sub(ip.info.version().header_len() + tcp::Header::LEN);
    let Ok(most) = u16::try_from(most) else { return Ok(()) };
    let (at, header_len) = (ip.info.header_len, tcp.header_len());
    if header_len < tcp::Header::LEN || !ip.pkt.may_pull(mem, at + header_len)? {
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
    // An unfinished checksum is made of the bytes as they will be.
    if !matches!(csum, Csum::Partial { .. }) {
        let check_at = at + tcp::CHECK_AT;
        let check = u16::from_be_bytes([head[check_at], head[check_at + 1]]);
        // A word that does not begin at an even offset has its bytes the other way round in the sum.
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
    let mut header = [0; tcp::Header::LEN];
    ip.pkt.read_at(ip.info.header_len, &mut header).then_some(())?;
    let len = tcp::Header::ref_from(&header).ok()?.header_len();
    (len >= tcp::Header::LEN).then_some(len)
}
