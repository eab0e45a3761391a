//! Counters as the files of `/proc/net` hold them, in Linux's layout: what `nstat` and `netstat -s` read.
//!
//! What is not counted here is 0, as in a kernel that never did it.

use std::fmt::Write;

use crate::state::CounterState;

/// `/proc/net/snmp`: its groups, and what each counts.
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

/// What a file of that name holds. `None`: there is none.
pub fn text(name: &str, counters: &[CounterState]) -> Option<String> {
    Some(match name {
        "snmp" => tables(SNMP, counters),
        "netstat" => tables(NETSTAT, counters),
        "snmp6" => lines(&["Ip6", "Icmp6", "Udp6"], 32, counters),
        "xfrm_stat" => lines(&["Xfrm"], 24, counters),
        _ => return None,
    })
}

/// Two lines for each group: names and numbers.
fn tables(groups: &[(&str, &str)], counters: &[CounterState]) -> String {
    let mut text = String::new();
    for (group, names) in groups {
        let value = |name: &str| match (*group, name) {
            // A router, whose own packets have this TTL.
            ("Ip", "Forwarding") => "1".to_owned(),
            ("Ip", "DefaultTTL") => "64".to_owned(),
            // What Linux says of a TCP that was never used.
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

/// A line for each counter whose name begins so.
fn lines(groups: &[&str], width: usize, counters: &[CounterState]) -> String {
    let mut text = String::new();
    for CounterState { name, value } in counters {
        if groups.iter().any(|group| name.starts_with(group)) {
            // Writing to a String does not fail.
            let _ = writeln!(text, "{name:width$}\t{value}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_counter_is_in_its_file_under_its_name() {
        let counters: Vec<CounterState> =
            (1..).zip(base::Mib::ALL).map(|(value, mib)| CounterState { name: mib.name().to_owned(), value }).collect();
        let files: String =
            ["snmp", "netstat", "snmp6", "xfrm_stat"].iter().filter_map(|it| text(it, &counters)).collect();
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
        assert_eq!(text("tcp", &[]), None);
    }
}
