//! Files of `/proc/net` with the node's state, in Linux's format, for `nstat`, `netstat`, `route` and `arp`.
//!
//! Linux counters that do not exist in fatpath read as 0, as in a kernel where the event never happened.

mod tables;

use std::fmt::Write;

use crate::request::{Shown, StateKind};
use crate::state::{CounterState, LinkState};

/// `/proc/net/snmp`: groups, and the counters of each.
const SNMP: &[(&str, &str)] = &[
    (
        "Ip",
        "Forwarding DefaultTTL InReceives InHdrErrors InAddrErrors ForwDatagrams InUnknownProtos InDiscards InDelivers \
         OutRequests OutDiscards OutNoRoutes ReasmTimeout ReasmReqds ReasmOKs ReasmFails FragOKs FragFails FragCreates \
         OutTransmits",
    ),
    (
        "Icmp",
        "InMsgs InErrors InCsumErrors InDestUnreachs InTimeExcds InParmProbs InSrcQuenchs InRedirects InEchos InEchoReps \
         InTimestamps InTimestampReps InAddrMasks InAddrMaskReps OutMsgs OutErrors OutRateLimitGlobal OutRateLimitHost \
         OutDestUnreachs OutTimeExcds OutParmProbs OutSrcQuenchs OutRedirects OutEchos OutEchoReps OutTimestamps \
         OutTimestampReps OutAddrMasks OutAddrMaskReps",
    ),
    (
        "Tcp",
        "RtoAlgorithm RtoMin RtoMax MaxConn ActiveOpens PassiveOpens AttemptFails EstabResets CurrEstab InSegs OutSegs \
         RetransSegs InErrs OutRsts InCsumErrors",
    ),
    ("Udp", "InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors SndbufErrors InCsumErrors IgnoredMulti MemErrors"),
    (
        "UdpLite",
        "InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors SndbufErrors InCsumErrors IgnoredMulti MemErrors",
    ),
];

/// `/proc/net/netstat`.
const NETSTAT: &[(&str, &str)] = &[(
    "IpExt",
    "InNoRoutes InTruncatedPkts InMcastPkts OutMcastPkts InBcastPkts OutBcastPkts InOctets OutOctets InMcastOctets \
     OutMcastOctets InBcastOctets OutBcastOctets InCsumErrors InNoECTPkts InECT1Pkts InECT0Pkts InCEPkts ReasmOverlaps",
)];

/// `/proc/net/snmp6`, without the ICMPv6 messages that Linux counts by type.
const SNMP6: &str = "Ip6InReceives Ip6InHdrErrors Ip6InTooBigErrors Ip6InNoRoutes Ip6InAddrErrors Ip6InUnknownProtos \
     Ip6InTruncatedPkts Ip6InDiscards Ip6InDelivers Ip6OutForwDatagrams Ip6OutRequests Ip6OutDiscards Ip6OutNoRoutes \
     Ip6ReasmTimeout Ip6ReasmReqds Ip6ReasmOKs Ip6ReasmFails Ip6FragOKs Ip6FragFails Ip6FragCreates Ip6InMcastPkts \
     Ip6OutMcastPkts Ip6InOctets Ip6OutOctets Ip6InMcastOctets Ip6OutMcastOctets Ip6InBcastOctets Ip6OutBcastOctets \
     Ip6InNoECTPkts Ip6InECT1Pkts Ip6InECT0Pkts Ip6InCEPkts Ip6OutTransmits Icmp6InMsgs Icmp6InErrors Icmp6OutMsgs \
     Icmp6OutErrors Icmp6InCsumErrors Icmp6OutRateLimitHost Icmp6InDestUnreachs Icmp6InPktTooBigs Icmp6InTimeExcds \
     Icmp6InParmProblems Icmp6InEchos Icmp6InEchoReplies Icmp6InGroupMembQueries Icmp6InGroupMembResponses \
     Icmp6InGroupMembReductions Icmp6InRouterSolicits Icmp6InRouterAdvertisements Icmp6InNeighborSolicits \
     Icmp6InNeighborAdvertisements Icmp6InRedirects Icmp6InMLDv2Reports Icmp6OutDestUnreachs Icmp6OutPktTooBigs \
     Icmp6OutTimeExcds Icmp6OutParmProblems Icmp6OutEchos Icmp6OutEchoReplies Icmp6OutGroupMembQueries \
     Icmp6OutGroupMembResponses Icmp6OutGroupMembReductions Icmp6OutRouterSolicits Icmp6OutRouterAdvertisements \
     Icmp6OutNeighborSolicits Icmp6OutNeighborAdvertisements Icmp6OutRedirects Icmp6OutMLDv2Reports Udp6InDatagrams \
     Udp6NoPorts Udp6InErrors Udp6OutDatagrams Udp6RcvbufErrors Udp6SndbufErrors Udp6InCsumErrors Udp6IgnoredMulti \
     Udp6MemErrors UdpLite6InDatagrams UdpLite6NoPorts UdpLite6InErrors UdpLite6OutDatagrams UdpLite6RcvbufErrors \
     UdpLite6SndbufErrors UdpLite6InCsumErrors UdpLite6MemErrors";

/// `/proc/net/xfrm_stat` (Linux `xfrm_mib_list`).
const XFRM_STAT: &str = "XfrmInError XfrmInBufferError XfrmInHdrError XfrmInNoStates XfrmInStateProtoError XfrmInStateModeError \
     XfrmInStateSeqError XfrmInStateExpired XfrmInStateMismatch XfrmInStateInvalid XfrmInTmplMismatch XfrmInNoPols \
     XfrmInPolBlock XfrmInPolError XfrmOutError XfrmOutBundleGenError XfrmOutBundleCheckError XfrmOutNoStates \
     XfrmOutStateProtoError XfrmOutStateModeError XfrmOutStateSeqError XfrmOutStateExpired XfrmOutPolBlock \
     XfrmOutPolDead XfrmOutPolError XfrmFwdHdrError XfrmOutStateInvalid XfrmAcquireError XfrmOutStateDirError \
     XfrmInStateDirError XfrmInIptfsError XfrmOutNoQueueSpace";

/// Files, and the state that each shows.
const FILES: [(&str, StateKind); 13] = [
    ("snmp", StateKind::Counters),
    ("netstat", StateKind::Counters),
    ("snmp6", StateKind::Counters),
    ("xfrm_stat", StateKind::Counters),
    ("dev", StateKind::Links),
    ("if_inet6", StateKind::Links),
    ("dev_mcast", StateKind::Links),
    ("igmp", StateKind::Links),
    ("igmp6", StateKind::Links),
    ("route", StateKind::Routes),
    ("arp", StateKind::Neighbours),
    ("sockstat", StateKind::Fragments),
    ("sockstat6", StateKind::Fragments),
];

/// Directory with a file of IPv6 counters for each link, under the link's name.
const DEV_SNMP6: &str = "dev_snmp6/";

/// State that the file `name` shows. `None`: the file does not exist.
pub fn shows(name: &str) -> Option<StateKind> {
    if name.starts_with(DEV_SNMP6) {
        return Some(StateKind::Links);
    }
    FILES.iter().find(|(known, _)| *known == name).map(|&(_, what)| what)
}

/// Contents of the file `name`, from the state in [`shows`]; `None` for a link that does not exist.
pub fn text(name: &str, shown: &Shown) -> Option<String> {
    if let (Some(link), Shown::Links(links)) = (name.strip_prefix(DEV_SNMP6), shown) {
        return links.iter().find(|it| it.name == link).map(dev_snmp6);
    }
    Some(match (name, shown) {
        ("snmp", Shown::Counters(it)) => counts(SNMP, &it.counters),
        ("netstat", Shown::Counters(it)) => counts(NETSTAT, &it.counters),
        ("snmp6", Shown::Counters(it)) => lines(SNMP6.split(' '), 32, &it.counters),
        ("xfrm_stat", Shown::Counters(it)) => lines(XFRM_STAT.split(' '), 24, &it.counters),
        ("dev", Shown::Links(links)) => tables::dev(links),
        ("if_inet6", Shown::Links(links)) => tables::if_inet6(links),
        // Links have no multicast group memberships of their own.
        ("dev_mcast" | "igmp6", _) => String::new(),
        ("igmp", _) => "Idx\tDevice    : Count Querier\tGroup    Users Timer\tReporter\n".to_owned(),
        ("route", Shown::Routes(routes)) => tables::route(routes),
        ("arp", Shown::Neighbours(neighbours)) => tables::arp(neighbours),
        ("sockstat", Shown::Fragments(all)) => tables::sockstat(all),
        ("sockstat6", Shown::Fragments(all)) => tables::sockstat6(all),
        _ => return None,
    })
}

/// Formats two lines for each group: names and values.
fn counts(groups: &[(&str, &str)], counters: &[CounterState]) -> String {
    let mut text = String::new();
    for (group, names) in groups {
        let value = |name: &str| match (*group, name) {
            // A router, with the TTL of its own packets.
            ("Ip", "Forwarding") => "1".to_owned(),
            ("Ip", "DefaultTTL") => "64".to_owned(),
            // Linux's values for an unused TCP.
            ("Tcp", "RtoAlgorithm") => "1".to_owned(),
            ("Tcp", "RtoMin") => "200".to_owned(),
            ("Tcp", "RtoMax") => "120000".to_owned(),
            ("Tcp", "MaxConn") => "-1".to_owned(),
            _ => {
                let counted = counters.iter().find(|it| it.name.strip_prefix(group) == Some(name));
                counted.map_or(0, |it| it.value).to_string()
            }
        };
        let values: Vec<String> = names.split(' ').map(value).collect();
        // Writing to a String does not fail.
        let _ = write!(text, "{group}: {names}\n{group}: {}\n", values.join(" "));
    }
    text
}

/// Formats a link's number and counters. ICMPv6's rate limit counter belongs to the node.
fn dev_snmp6(link: &LinkState) -> String {
    let of_links =
        |name: &&str| (name.starts_with("Ip6") || name.starts_with("Icmp6")) && !name.ends_with("RateLimitHost");
    format!("{:32}\t{}\n", "ifIndex", link.index) + &lines(SNMP6.split(' ').filter(of_links), 32, &link.ip6)
}

/// Formats a line for each name, with the counter's value or 0.
fn lines<'a>(names: impl Iterator<Item = &'a str>, width: usize, counters: &[CounterState]) -> String {
    let mut text = String::new();
    for name in names {
        let value = counters.iter().find(|it| it.name == name).map_or(0, |it| it.value);
        // Writing to a String does not fail.
        let _ = writeln!(text, "{name:width$}\t{value}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::CountersState;

    #[test]
    fn each_counter_is_in_its_file_under_its_name() {
        let counters: Vec<CounterState> =
            (1..).zip(base::Mib::ALL).map(|(value, mib)| CounterState { name: mib.name().to_owned(), value }).collect();
        let shown = Shown::Counters(CountersState { counters: counters.clone(), ..CountersState::default() });
        let files: String = FILES.iter().filter_map(|(name, _)| text(name, &shown)).collect();
        let mut found = Vec::new();
        let mut names: Option<Vec<String>> = None;
        for line in files.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                [name, value] => found.push((name.to_owned(), value.to_owned())),
                [group, ref rest @ ..] => {
                    let group = group.trim_end_matches(':');
                    match names.take() {
                        None => names = Some(rest.iter().map(|name| group.to_owned() + name).collect()),
                        Some(names) => found.extend(names.into_iter().zip(rest.iter().map(|it| (*it).to_owned()))),
                    }
                }
                [] => panic!("an empty line"),
            }
        }
        for CounterState { name, value } in counters {
            assert!(found.contains(&(name.clone(), value.to_string())), "{name} is in no file");
        }
        assert_eq!(shows("tcp"), None);
    }

    #[test]
    fn xfrm_stat_has_linuxs_lines_and_0_for_what_is_not_counted() {
        let named = |mib: &base::Mib| CounterState { name: mib.name().to_owned(), value: 7 };
        let counters: Vec<CounterState> = base::Mib::ALL.iter().map(named).collect();
        let value = |name: &str| if counters.iter().any(|it| it.name == name) { 7 } else { 0 };
        let want: String = XFRM_STAT.split(' ').map(|name| format!("{name:<24}\t{}\n", value(name))).collect();
        let shown = Shown::Counters(CountersState { counters: counters.clone(), ..CountersState::default() });
        let got = text("xfrm_stat", &shown);
        assert_eq!((got, XFRM_STAT.split(' ').count()), (Some(want), 32));
        let never: Vec<&str> = XFRM_STAT.split(' ').filter(|name| value(name) == 0).collect();
        // Same list as in docs/netlink.md.
        let listed =
            ["XfrmInPolError", "XfrmOutBundleCheckError", "XfrmOutPolDead", "XfrmFwdHdrError", "XfrmInIptfsError"];
        assert_eq!(never, listed);
    }
}
