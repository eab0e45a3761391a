//! Text of `fatpath status`: a heading for each gateway, a line for each tunnel, and then faults.

use std::fmt::Write as _;

use super::gateway::GatewayStatus;
use super::tunnel::TunnelStatus;

/// Number of reasons for drops that are printed; `fatpath show drops` has all.
const MAX_DROPS: usize = 5;

/// Text for a terminal, in whole lines.
pub(super) fn text(status: &GatewayStatus) -> String {
    let mut text = String::new();
    // Writing to a String does not fail.
    let _ = write(&mut text, status);
    text
}

fn write(text: &mut String, status: &GatewayStatus) -> std::fmt::Result {
    let name = &status.name;
    if let Some(error) = &status.error {
        return writeln!(text, "{name}: {error}");
    }
    let count = |n: usize, one: &str| if n == 1 { format!("1 {one}") } else { format!("{n} {one}s") };
    let links = count(status.links.len(), "link");
    let tunnels = match &status.tunnels_left_out {
        Some(_) => "tunnels left out".to_owned(),
        None => count(status.tunnels.len(), "tunnel"),
    };
    writeln!(text, "{name}: running, {links} ({}), {tunnels}", status.links.join(", "))?;
    if let Some(why) = &status.tunnels_left_out {
        writeln!(text, "  the tunnels are left out: {why}")?;
    }
    let rows: Vec<[String; 7]> = status.tunnels.iter().map(cells).collect();
    let mut widths = [0; 7];
    for row in &rows {
        widths.iter_mut().zip(row).for_each(|(width, cell)| *width = cell.chars().count().max(*width));
    }
    for row in &rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(widths) {
            if width > 0 {
                write!(line, "  {cell:width$}")?;
            }
        }
        writeln!(text, "{}", line.trim_end())?;
    }
    for down in &status.links_down {
        let why = down.why.as_deref().unwrap_or("set down");
        writeln!(text, "  link {} is down: {why}", down.link)?;
    }
    for sum in status.drops.iter().take(MAX_DROPS) {
        let links = if sum.links.is_empty() { "own packets".to_owned() } else { sum.links.join(", ") };
        writeln!(text, "  {} dropped, {} ({links}): {}; {}", sum.count, sum.reason, sum.cause, sum.remedy)?;
    }
    if let Some(more) = status.drops.len().checked_sub(MAX_DROPS).filter(|&more| more > 0) {
        writeln!(text, "  … and {}: fatpath show drops", count(more, "more reason"))?;
    }
    Ok(())
}

/// Columns of a tunnel.
fn cells(tunnel: &TunnelStatus) -> [String; 7] {
    let why = tunnel.why.as_ref().map_or_else(String::new, |why| format!(": {why}"));
    let rate = |word: &str, rate: Option<u64>| rate.map_or_else(String::new, |rate| format!("{word} {}", bits(rate)));
    [
        tunnel.peer.clone(),
        format!("{}{why}", tunnel.state.word()),
        tunnel.received_secs.map_or_else(String::new, |secs| format!("received {} ago", duration(secs))),
        [rate("rx", tunnel.rx_bits_per_second), rate("tx", tunnel.tx_bits_per_second)].join("  ").trim().to_owned(),
        tunnel.rekey_secs.map_or_else(String::new, |secs| format!("rekey in {}", duration(secs))),
        ike(tunnel),
        tunnel.networks.join(", "),
    ]
}

/// State of IKE, or the reason for which charon does not tell it.
fn ike(tunnel: &TunnelStatus) -> String {
    let Some(ike) = &tunnel.ike else {
        return tunnel.charon.as_ref().map_or_else(String::new, |why| format!("charon: {why}"));
    };
    let rekey = ike.rekey_secs.map_or_else(String::new, |secs| format!(", rekey in {}", duration(secs)));
    format!("IKE: {}{rekey}", ike.text)
}

/// Formats a rate with three digits, such as `1.20 Mb/s`.
fn bits(rate: u64) -> String {
    const UNITS: [&str; 5] = ["b/s", "kb/s", "Mb/s", "Gb/s", "Tb/s"];
    let (mut value, mut unit) = (rate as f64, 0);
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    let digits = match value {
        _ if unit == 0 => 0,
        value if value < 9.995 => 2,
        value if value < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.digits$} {}", UNITS[unit])
}

/// Formats a time in its largest whole unit, such as `55m`.
fn duration(secs: u64) -> String {
    match secs {
        0..120 => format!("{secs}s"),
        120..7200 => format!("{}m", secs / 60),
        7200..172_800 => format!("{}h", secs / 3600),
        _ => format!("{}d", secs / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::super::gateway::{DropSum, LinkDown};
    use super::super::ike::{IkeState, IkeStatus};
    use super::super::tunnel::TunnelState;
    use super::*;

    #[test]
    fn tunnel_is_a_line_and_faults_follow() {
        let tunnel = |peer: &str, state, why: Option<&str>| TunnelStatus {
            peer: peer.to_owned(),
            state,
            why: why.map(str::to_owned),
            networks: vec!["10.1.0.0/24 > 10.2.0.0/24".to_owned()],
            received_secs: (state == TunnelState::Up).then_some(1),
            rx_bits_per_second: (state == TunnelState::Up).then_some(1_200_000),
            tx_bits_per_second: (state == TunnelState::Up).then_some(0),
            rekey_secs: (state == TunnelState::Up).then_some(3300),
            ..TunnelStatus::of_peer("192.0.2.2", 1)
        };
        let drop = DropSum {
            reason: "NoRoute".to_owned(),
            count: 3,
            links: vec!["tun0".to_owned()],
            cause: "No route".to_owned(),
            remedy: "add one".to_owned(),
        };
        let status = GatewayStatus {
            name: "left".to_owned(),
            error: None,
            links: vec!["tun0".to_owned(), "wan".to_owned()],
            links_down: vec![LinkDown { link: "wan".to_owned(), why: None }],
            tunnels: vec![
                tunnel("192.0.2.2:4500", TunnelState::Up, None),
                tunnel("192.0.2.30", TunnelState::Down, Some("no SA")),
            ],
            drops: vec![drop],
            tunnels_left_out: None,
        };
        let want = "left: running, 2 links (tun0, wan), 2 tunnels
  192.0.2.2:4500  up           received 1s ago  rx 1.20 Mb/s  tx 0 b/s  rekey in 55m  10.1.0.0/24 > 10.2.0.0/24
  192.0.2.30      down: no SA                                                         10.1.0.0/24 > 10.2.0.0/24
  link wan is down: set down
  3 dropped, NoRoute (tun0): No route; add one
";
        assert_eq!(text(&status), want);
        let status = GatewayStatus {
            tunnels: Vec::new(),
            links_down: Vec::new(),
            drops: Vec::new(),
            tunnels_left_out: Some("40000 SAs".to_owned()),
            ..status
        };
        let want = "left: running, 2 links (tun0, wan), tunnels left out\n  the tunnels are left out: 40000 SAs\n";
        assert_eq!(text(&status), want);
        assert_eq!(text(&GatewayStatus::unreachable("x", "no answer".to_owned())), "x: no answer\n");
    }

    #[test]
    fn row_has_the_state_of_ike() {
        let ike = |rekey_secs| IkeStatus {
            state: IkeState::Established,
            text: "established".to_owned(),
            established_secs: Some(5),
            rekey_secs,
        };
        let mut tunnel = TunnelStatus::of_peer("192.0.2.2", 1);
        for (ike_status, charon, want) in [
            (None, None, ""),
            (Some(ike(Some(9000))), None, "IKE: established, rekey in 2h"),
            (Some(ike(None)), None, "IKE: established"),
            (None, Some("not running"), "charon: not running"),
        ] {
            tunnel.ike = ike_status;
            tunnel.charon = charon.map(str::to_owned);
            assert_eq!(cells(&tunnel)[5], want);
        }
    }

    #[test]
    fn rates_have_three_digits_and_times_one_unit() {
        let rates =
            [(0, "0 b/s"), (999, "999 b/s"), (1000, "1.00 kb/s"), (12_345_678, "12.3 Mb/s"), (999_600, "1.00 Mb/s")];
        for (rate, want) in rates {
            assert_eq!(bits(rate), want);
        }
        for (secs, want) in [(119, "119s"), (120, "2m"), (7199, "119m"), (7200, "2h"), (172_800, "2d")] {
            assert_eq!(duration(secs), want);
        }
    }
}
