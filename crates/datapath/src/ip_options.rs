//! IPv4 options: checked of every packet, filled in where one passes, and returned with the answer to a ping (RFC 791 §3.1,
//! RFC 1812 §5.3.13, RFC 1122 §3.2.2.6; Linux `ip_rcv_options`, `ip_forward_options`, `ip_options_echo`).

use std::net::{IpAddr, Ipv4Addr};

use base::DropReason;
use host::icmp::Problem;
use wire::icmpv6;
use wire::ipv4::{self, Ipv4, Ipv4Option};

use crate::ext_headers::Fault;
use crate::next::Hop;
use crate::{Cx, Datapath, IpPacket};

/// Milliseconds of a day, the modulus of timestamps.
const DAY_MS: u128 = 86_400_000;

/// Fills in the record route and timestamp options of a packet that is forwarded to `hop`.
#[cold]
pub(crate) fn record_hop(dp: &Datapath, cx: Cx<'_>, ip: &mut IpPacket, hop: Hop) -> Result<(), DropReason> {
    let domain = dp.fib.domain(ip.pkt.meta.origin.device());
    // Linux `rt_nexthop`.
    let towards = if hop.next_hop.is_ipv4() { hop.next_hop } else { ip.info.dst };
    let Some(IpAddr::V4(own)) = dp.fib.source(hop.dev, towards) else { return Ok(()) };
    let head = ip.pkt.writable_head(cx.mem)?;
    let options = head.get_mut(ipv4::Ipv4Header::LEN..ip.info.header_len).unwrap_or_default();
    let is_own = |addr: Ipv4Addr| dp.fib.is_local(domain, addr.into());
    if ipv4::record_visit(options, own, time_of_day(dp, cx), is_own) {
        ipv4::fill_check(head)?;
    }
    Ok(())
}

/// Writes the options of the reply to a ping to `options`, and returns their length: the recording options, in which this node
/// appears twice, as the end of the request's path and the start of the reply's.
#[cold]
pub(crate) fn returned_options(
    dp: &Datapath,
    cx: Cx<'_>,
    ip: &IpPacket,
    options: &mut [u8; ipv4::MAX_OPTIONS],
) -> usize {
    let IpAddr::V4(own) = ip.info.dst else { return 0 };
    let domain = dp.fib.domain(ip.pkt.meta.origin.device());
    let came = ip.pkt.head().get(ipv4::Ipv4Header::LEN..ip.info.header_len).unwrap_or_default();
    let options = &mut options[..came.len()];
    options.copy_from_slice(came);
    let (time, is_own) = (time_of_day(dp, cx), |addr: Ipv4Addr| dp.fib.is_local(domain, addr.into()));
    if !ipv4::record_visit(options, own, time, is_own) {
        return 0;
    }
    let len = ipv4::keep_recorded(options);
    ipv4::record_visit(&mut options[..len], own, time, is_own);
    len
}

/// Milliseconds since midnight UT.
fn time_of_day(dp: &Datapath, cx: Cx<'_>) -> u32 {
    ((dp.epoch + cx.now.since(base::Instant::ZERO)).as_millis() % DAY_MS) as u32
}

/// Checks the options of an IPv4 packet that begins with `head`. A source route is not followed, and no error is sent
/// (Linux's `accept_source_route=0`).
pub(crate) fn check(head: &[u8]) -> Result<(), Fault> {
    let packet = Ipv4::parse_head(head, usize::MAX).map_err(|_| None)?;
    ipv4::check_options(packet.option_bytes()).map_err(|at| {
        // Over IPv4 there is one code for all.
        Some(Problem::Parameter { code: icmpv6::Problem::FIELD, at: ipv4::Ipv4Header::LEN + at })
    })?;
    let is_source_route = |kind| matches!(kind, Ipv4Option::LOOSE_SOURCE_ROUTE | Ipv4Option::STRICT_SOURCE_ROUTE);
    if packet.options().flatten().any(|option| is_source_route(option.kind)) { Err(None) } else { Ok(()) }
}
