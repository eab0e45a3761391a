//! IPv6 extension headers that this node reads: hop-by-hop options of every packet, and destination options and routing
//! headers of those for itself (RFC 8200 §4.2 to §4.4, RFC 5095; Linux `ip6_parse_tlv`, `ipv6_rthdr_rcv`).

use base::DropReason;
use host::icmp::Problem;
use wire::ext::{self, ExtOption, Unrecognised};
use wire::ip::Info;
use wire::{Protocol, Version, icmpv6, ipv6};

use crate::mib::MibPair;
use crate::{Datapath, IpPacket, Next};

/// Maximum of options in one header, besides padding (Linux's `max_dst_opts_number`, `max_hbh_opts_number`).
const MAX_OPTIONS: usize = 8;
/// Maximum of consecutive padding bytes; more serve no alignment.
const MAX_PADDING: usize = 7;
/// Offset of a routing header's type, followed by its segments left.
const ROUTING_TYPE_AT: usize = 2;
/// A jumbo payload, which no link here carries (RFC 2675 §3).
const JUMBO: u8 = 0xc2;

/// Fault of an extension header, or of IPv4 options; `None` if the sender gets no error.
pub(crate) type Fault = Option<Problem>;

/// Drops a packet with malformed extension headers or IPv4 options, and sends the ICMP error of the fault, if any.
#[cold]
pub(crate) fn drop_faulty(dp: &mut Datapath, ip: &mut IpPacket, fault: Fault) -> Next {
    let version = ip.info.version();
    let reason = match version {
        Version::V4 => DropReason::Ipv4Options,
        Version::V6 => DropReason::Ipv6Header,
    };
    dp.count(ip.pkt.meta.origin.device(), MibPair::IN_HDR_ERRORS.of(version));
    match fault {
        Some(problem) => Next::Reject(reason, problem),
        None => Next::Drop(reason),
    }
}

/// Checks the hop-by-hop options of a packet that begins with `head`, as every node on the path does.
pub(crate) fn check_hop_by_hop(head: &[u8]) -> Result<(), Fault> {
    match head.get(ipv6::NEXT_HEADER_AT) {
        Some(&kind) if Protocol(kind) == Protocol::HOP_BY_HOP => check_options(head, ipv6::Ipv6Header::LEN, true),
        _ => Ok(()),
    }
}

/// Checks the extension headers that only the destination reads, up to the fragment header. The packet begins with `head`, and
/// `info` is its summary.
pub(crate) fn check_for_node(head: &[u8], info: &Info) -> Result<(), Fault> {
    let (mut at, mut next) = (ipv6::Ipv6Header::LEN, Protocol(head[ipv6::NEXT_HEADER_AT]));
    while at < info.header_len {
        let header = ext::ExtHeader::ref_from(&head[at..]).map_err(|_| None)?;
        match next {
            // Headers behind the fragment header are read after reassembly.
            Protocol::FRAGMENT => return Ok(()),
            Protocol::DEST_OPTS => check_options(head, at, false)?,
            //= RFC 8200 §4.4 segments-left: a routing header of an unknown type is ignored with no segments left,
            //=   and otherwise answered with a pointer to its type
            // No type of routing is known here: one with segments left cannot be followed.
            Protocol::ROUTING if head[at + ROUTING_TYPE_AT + 1] > 0 => {
                return Err(Some(parameter(icmpv6::Problem::FIELD, at + ROUTING_TYPE_AT)));
            }
            _ => {}
        }
        at += header.header_len();
        next = header.next_header();
    }
    Ok(())
}

/// Checks the options of the header at `at`.
fn check_options(head: &[u8], at: usize, hop_by_hop: bool) -> Result<(), Fault> {
    let header = ext::ExtHeader::ref_from(head.get(at..).ok_or(None)?).map_err(|_| None)?;
    let end = at + header.header_len();
    let mut from = at + ext::ExtHeader::LEN;
    let (mut padding, mut options) = (0, 0);
    while from < end {
        let &kind = head.get(from).ok_or(None)?;
        if kind == 0 {
            (from, padding) = (from + 1, padding + 1);
        } else {
            let (&len, rest) = head.get(from + 1..end).and_then(<[u8]>::split_first).ok_or(None)?;
            let data = rest.get(..usize::from(len)).ok_or(None)?;
            let option = ExtOption { kind, at: from - at, data };
            let is_padding = kind == 1;
            if is_padding {
                padding += 2 + data.len();
                data.iter().all(|&byte| byte == 0).then_some(()).ok_or(None)?;
            } else {
                (padding, options) = (0, options + 1);
                check_option(&option, from, hop_by_hop)?;
            }
            from += 2 + data.len();
        }
        if padding > MAX_PADDING || options > MAX_OPTIONS {
            return Err(None);
        }
    }
    Ok(())
}

fn check_option(option: &ExtOption<'_>, at: usize, hop_by_hop: bool) -> Result<(), Fault> {
    match option.kind {
        ExtOption::ROUTER_ALERT if hop_by_hop => (option.data.len() == 2).then_some(()).ok_or(None),
        JUMBO if hop_by_hop => Err(Some(parameter(icmpv6::Problem::FIELD, at))),
        //= RFC 8200 §4.2 unknown-options: the two high bits of an unknown option select: skip it, or drop the packet,
        //=   with an ICMP error or without
        _ => match option.if_unrecognised() {
            Unrecognised::Skip => Ok(()),
            Unrecognised::Drop => Err(None),
            Unrecognised::Report | Unrecognised::ReportUnicast => Err(Some(parameter(icmpv6::Problem::OPTION, at))),
        },
    }
}

const fn parameter(code: icmpv6::Problem, at: usize) -> Problem {
    Problem::Parameter { code, at }
}
