//! Files that are tables: interfaces, addresses, routes, neighbours, sockets.

use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr};

use crate::state::{FragmentsState, LinkState, LinkStats, NeighbourState, RouteState};

/// Number of the main table.
const MAIN: u32 = 254;

/// `/proc/net/dev` (Linux `dev_seq_printf_stats`).
pub(super) fn dev(links: &[LinkState]) -> String {
    let mut text = "Inter-|   Receive                                                |  Transmit\n \
                    face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo \
                    colls carrier compressed\n"
        .to_owned();
    let all = links.iter().map(|link| (link.name.as_str(), link.stats));
    for (name, stats) in std::iter::once(("lo", LinkStats::default())).chain(all) {
        let LinkStats {
            rx_bytes, rx_wire_packets, rx_dropped, tx_bytes, tx_wire_packets, tx_dropped, tx_errors, ..
        } = stats;
        // Writing to a String does not fail, here and below.
        let _ = writeln!(
            text,
            "{name:>6}: {rx_bytes:7} {rx_wire_packets:7} {:4} {rx_dropped:4} {:4} {:5} {:10} {:9} {tx_bytes:8} \
             {tx_wire_packets:7} {tx_errors:4} {tx_dropped:4} {:4} {:5} {:7} {:10}",
            0, 0, 0, 0, 0, 0, 0, 0, 0
        );
    }
    text
}

/// `/proc/net/if_inet6` (Linux `if6_seq_show`).
pub(super) fn if_inet6(links: &[LinkState]) -> String {
    const PERMANENT: u8 = 0x80;
    let mut text = String::new();
    for link in links {
        for address in &link.addresses {
            let IpAddr::V6(addr) = address.addr() else { continue };
            let scope = match addr {
                it if it.is_unicast_link_local() => 0x20,
                it if it.is_loopback() => 0x10,
                _ => 0,
            };
            let (number, index, len) = (addr.to_bits(), link.index, address.prefix().len());
            let _ = writeln!(text, "{number:032x} {index:02x} {len:02x} {scope:02x} {PERMANENT:02x} {:>8}", link.name);
        }
    }
    text
}

/// `/proc/net/route`: IPv4's main table (Linux `fib_route_seq_show`).
pub(super) fn route(routes: &[RouteState]) -> String {
    const LINE: usize = 127;
    const UP: u32 = 1;
    const GATEWAY: u32 = 2;
    const HOST: u32 = 4;
    const REJECT: u32 = 0x200;
    // Bytes of an address as a number in host byte order.
    let number = |addr: Ipv4Addr| u32::from_ne_bytes(addr.octets());
    let head = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT";
    let mut text = format!("{head:LINE$}\n");
    for RouteState { kind, to, via, dev, metric, table, .. } in routes {
        let IpAddr::V4(dst) = to.addr() else { continue };
        if *table != MAIN || matches!(kind.as_str(), "local" | "broadcast") {
            continue;
        }
        let via = via.and_then(|via| if let IpAddr::V4(via) = via { Some(via) } else { None });
        let mask = u32::MAX.checked_shl(32 - u32::from(to.len())).map_or(Ipv4Addr::UNSPECIFIED, Ipv4Addr::from_bits);
        let flags = UP
            | if via.is_some() { GATEWAY } else { 0 }
            | if to.is_host() { HOST } else { 0 }
            | if kind == "unicast" { 0 } else { REJECT };
        let (dev, dst, mask) = (dev.as_deref().unwrap_or("*"), number(dst), number(mask));
        let via = via.map_or(0, number);
        let line = format!("{dev}\t{dst:08X}\t{via:08X}\t{flags:04X}\t0\t0\t{metric}\t{mask:08X}\t0\t0\t0");
        let _ = writeln!(text, "{line:LINE$}");
    }
    text
}

/// `/proc/net/arp` (Linux `arp_format_neigh_entry`).
pub(super) fn arp(neighbours: &[NeighbourState]) -> String {
    const COMPLETE: u32 = 2;
    const PERMANENT: u32 = 4;
    let mut text = "IP address       HW type     Flags       HW address            Mask     Device\n".to_owned();
    for NeighbourState { to, dev, lladdr, state, .. } in neighbours.iter().filter(|it| it.to.is_ipv4()) {
        let flags = match lladdr {
            None => 0,
            Some(_) if state == "PERMANENT" => COMPLETE | PERMANENT,
            Some(_) => COMPLETE,
        };
        let (to, lladdr) = (to.to_string(), lladdr.as_deref().unwrap_or("00:00:00:00:00:00"));
        let _ = writeln!(text, "{to:<16} 0x{:<10x}0x{flags:<10x}{lladdr:<17}     *        {dev}", 1);
    }
    text
}

/// `/proc/net/sockstat`: a gateway has only queued fragments, no sockets.
pub(super) fn sockstat(all: &[FragmentsState]) -> String {
    let head = "sockets: used 0\nTCP: inuse 0 orphan 0 tw 0 alloc 0 mem 0\nUDP: inuse 0 mem 0\nUDPLITE: inuse 0\n\
                RAW: inuse 0\n";
    head.to_owned() + &fragments(all, "FRAG")
}

/// `/proc/net/sockstat6`.
pub(super) fn sockstat6(all: &[FragmentsState]) -> String {
    "TCP6: inuse 0\nUDP6: inuse 0\nUDPLITE6: inuse 0\nRAW6: inuse 0\n".to_owned() + &fragments(all, "FRAG6")
}

fn fragments(all: &[FragmentsState], name: &str) -> String {
    let found = all.iter().find(|it| it.name == name);
    let (inuse, memory) = found.map_or((0, 0), |it| (it.inuse, it.memory));
    format!("{name}: inuse {inuse} memory {memory}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_are_shown_as_linux_shows_them() {
        let state = |kind: &str, to: &str, via: Option<&str>, table| RouteState {
            kind: kind.to_owned(),
            to: to.parse().unwrap(),
            via: via.map(|via| via.parse().unwrap()),
            dev: (kind == "unicast").then(|| "eth0".to_owned()),
            metric: 0,
            table,
            proto: "static".to_owned(),
            scope: "global".to_owned(),
            src: None,
            encap: None,
            nexthops: Vec::new(),
        };
        let text = route(&[
            state("unicast", "0.0.0.0/0", Some("192.0.2.1"), MAIN),
            state("unicast", "192.0.2.0/24", None, MAIN),
            state("unicast", "198.51.100.7/32", None, MAIN),
            state("blackhole", "10.0.0.0/8", None, MAIN),
            state("local", "192.0.2.9/32", None, 255),
            state("unicast", "2001:db8::/32", None, MAIN),
        ]);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines.iter().all(|line| line.len() == 127), "{text}");
        let routes: Vec<String> = lines[1..].iter().map(|line| line.trim_end().replace('\t', " ")).collect();
        let want = if cfg!(target_endian = "little") {
            [
                "eth0 00000000 010200C0 0003 0 0 0 00000000 0 0 0",
                "eth0 000200C0 00000000 0001 0 0 0 00FFFFFF 0 0 0",
                "eth0 076433C6 00000000 0005 0 0 0 FFFFFFFF 0 0 0",
                "* 0000000A 00000000 0201 0 0 0 000000FF 0 0 0",
            ]
        } else {
            [
                "eth0 00000000 C0000201 0003 0 0 0 00000000 0 0 0",
                "eth0 C0000200 00000000 0001 0 0 0 FFFFFF00 0 0 0",
                "eth0 C6336407 00000000 0005 0 0 0 FFFFFFFF 0 0 0",
                "* 0A000000 00000000 0201 0 0 0 FF000000 0 0 0",
            ]
        };
        assert_eq!(routes, want);
    }

    #[test]
    fn neighbours_are_shown_as_linux_shows_them() {
        let state = |to: &str, lladdr: Option<&str>, state: &str| NeighbourState {
            to: to.parse().unwrap(),
            dev: "eth0".to_owned(),
            lladdr: lladdr.map(str::to_owned),
            state: state.to_owned(),
            queued: 0,
        };
        let mac = Some("02:fc:00:00:00:05");
        let text = arp(&[
            state("192.0.2.1", mac, "REACHABLE"),
            state("192.0.2.2", mac, "PERMANENT"),
            state("192.0.2.3", None, "FAILED"),
            state("2001:db8::1", mac, "STALE"),
        ]);
        let want = "IP address       HW type     Flags       HW address            Mask     Device\n\
                    192.0.2.1        0x1         0x2         02:fc:00:00:00:05     *        eth0\n\
                    192.0.2.2        0x1         0x6         02:fc:00:00:00:05     *        eth0\n\
                    192.0.2.3        0x1         0x0         00:00:00:00:00:00     *        eth0\n";
        assert_eq!(text, want);
    }

    #[test]
    fn interfaces_begin_with_lo() {
        let text = dev(&[]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        assert_eq!(
            lines[2],
            "    lo:       0       0    0    0    0     0          0         0        0       0    0    0    0     0       0          0"
        );
    }
}
