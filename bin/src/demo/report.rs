//! From rounds to the report.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write};

use super::meter::GatewayFigures;
use crate::figures::{self, Ratio, median, rounded};

/// What the ratios are about.
const CIPHER: &str = "aes-gcm-256";

/// The three ways of the same stream.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Case {
    /// Between the hosts over veth alone: the ceiling.
    Veth,
    /// Through the tunnel with every offload off.
    Thin,
    /// Through the tunnel with packets kept fat.
    Fat,
}

impl Case {
    /// In the order in which a round measures them.
    pub(super) const ALL: [Self; 3] = [Self::Veth, Self::Thin, Self::Fat];

    /// As the report names it.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Veth => "veth",
            Self::Thin => "aes-gcm-256/thin",
            Self::Fat => "aes-gcm-256/fat",
        }
    }
}

/// One stream of one round.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    /// Payload received, in 10⁹ bits per second.
    pub(super) gbps: f64,
    /// What it cost, where there are gateways.
    pub(super) gateways: Option<GatewayFigures>,
}

/// The samples of one round, in the order of [`Case::ALL`].
pub(super) type Round = [Sample; 3];

/// The whole result: what a stream cost, where there are gateways.
pub(super) type Report = figures::Report<Option<GatewayFigures>>;

/// Sums up at least one round.
pub(super) fn report(rounds: &[Round]) -> Report {
    assert!(!rounds.is_empty(), "a report of no rounds");
    let cases = Case::ALL.map(|case| case_figures(case, rounds)).into();
    let ratios =
        vec![ratio("fat/thin", rounds, Case::Fat, Case::Thin), ratio("fat/veth", rounds, Case::Fat, Case::Veth)];
    Report { bench: "demo", rounds: rounds.len(), cases, ratios }
}

fn case_figures(case: Case, rounds: &[Round]) -> figures::Case<Option<GatewayFigures>> {
    let samples: Vec<&Sample> = rounds.iter().map(|round| &round[case as usize]).collect();
    let gateways: Vec<&GatewayFigures> = samples.iter().filter_map(|sample| sample.gateways.as_ref()).collect();
    figures::Case {
        name: case.name().to_owned(),
        gbps: rounded(median(samples.iter().map(|sample| sample.gbps))),
        figures: (!gateways.is_empty()).then(|| medians(&gateways)),
    }
}

/// Each figure's median on its own.
fn medians(rounds: &[&GatewayFigures]) -> GatewayFigures {
    let of = |figure: fn(&GatewayFigures) -> f64| rounded(median(rounds.iter().map(|round| figure(round))));
    let reasons: BTreeSet<&String> = rounds.iter().flat_map(|round| round.copies.keys()).collect();
    let copies = reasons.into_iter().map(|reason| {
        let values = rounds.iter().map(|round| round.copies.get(reason).copied().unwrap_or(0.0));
        (reason.clone(), rounded(median(values)))
    });
    GatewayFigures {
        cpu_s_per_gb: of(|it| it.cpu_s_per_gb),
        tx_packets_per_call: of(|it| it.tx_packets_per_call),
        rx_packets_per_call: of(|it| it.rx_packets_per_call),
        tx_copied_bytes_per_byte: of(|it| it.tx_copied_bytes_per_byte),
        rx_copied_bytes_per_byte: of(|it| it.rx_copied_bytes_per_byte),
        copies: copies.collect(),
        rss_idle_mib: of(|it| it.rss_idle_mib),
        rss_peak_mib: of(|it| it.rss_peak_mib),
    }
}

fn ratio(of: &str, rounds: &[Round], over: Case, under: Case) -> Ratio {
    Ratio::new(CIPHER, of, rounds.iter().map(|round| (round[over as usize].gbps, round[under as usize].gbps)))
}

impl fmt::Display for Report {
    /// The table, without a last newline.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "medians of {} rounds of one TCP stream; tx: sending gateway, rx: receiving gateway\n",
            self.rounds
        )?;
        writeln!(
            f,
            "{:<17} {:>8} {:>9} {:>15} {:>17} {:>15}",
            "", "Gb/s", "CPU s/GB", "packets/call", "copied B/B", "memory MiB"
        )?;
        writeln!(
            f,
            "{:<17} {:>8} {:>9} {:>7} {:>7} {:>8} {:>8} {:>7} {:>7}",
            "", "", "", "tx", "rx", "tx", "rx", "idle", "peak"
        )?;
        for case in &self.cases {
            let mut line = format!("{:<17} {:>8.2}", case.name, case.gbps);
            if let Some(it) = &case.figures {
                write!(
                    line,
                    " {:>9.3} {:>7.1} {:>7.1} {:>8.4} {:>8.4} {:>7.1} {:>7.1}",
                    it.cpu_s_per_gb,
                    it.tx_packets_per_call,
                    it.rx_packets_per_call,
                    it.tx_copied_bytes_per_byte,
                    it.rx_copied_bytes_per_byte,
                    it.rss_idle_mib,
                    it.rss_peak_mib
                )?;
            }
            writeln!(f, "{line}")?;
        }
        writeln!(f, "\ncopied bytes per forwarded byte, by reason:")?;
        for case in &self.cases {
            if let Some(it) = &case.figures {
                writeln!(f, "  {:<17} {}", case.name, by_reason(&it.copies))?;
            }
        }
        writeln!(f, "\nratios of Gb/s, round by round:")?;
        f.write_str(&self.ratio_lines())
    }
}

fn by_reason(copies: &BTreeMap<String, f64>) -> String {
    let parts: Vec<String> = copies.iter().map(|(reason, value)| format!("{reason} {value:.4}")).collect();
    if parts.is_empty() { "none".to_owned() } else { parts.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(gbps: f64, tx_copied: f64) -> Sample {
        let gateways = GatewayFigures {
            cpu_s_per_gb: 0.25,
            tx_packets_per_call: 44.0,
            rx_packets_per_call: 40.0,
            tx_copied_bytes_per_byte: tx_copied,
            rx_copied_bytes_per_byte: 0.0,
            copies: if tx_copied > 0.0 { [("tx/wire-frame".to_owned(), tx_copied)].into() } else { BTreeMap::new() },
            rss_idle_mib: 9.5,
            rss_peak_mib: 20.0,
        };
        Sample { gbps, gateways: Some(gateways) }
    }

    fn three_rounds() -> [Round; 3] {
        let veth = |gbps| Sample { gbps, gateways: None };
        [
            [veth(40.0), sample(1.0, 0.0), sample(8.0, 1.0)],
            [veth(20.0), sample(2.0, 0.0), sample(8.0, 1.0)],
            [veth(30.0), sample(1.6, 0.0), sample(9.0, 1.1)],
        ]
    }

    #[test]
    fn the_json_has_the_shape_of_every_benchmark() {
        let cost = r#""cpu_s_per_gb":0.25,"tx_packets_per_call":44.0,"rx_packets_per_call":40.0"#;
        let memory = r#""rss_idle_mib":9.5,"rss_peak_mib":20.0"#;
        let want = format!(
            r#"{{"bench":"demo","rounds":3,"cases":[{{"name":"veth","gbps":30.0}},{{"name":"aes-gcm-256/thin","gbps":1.6,{cost},"tx_copied_bytes_per_byte":0.0,"rx_copied_bytes_per_byte":0.0,"copies":{{}},{memory}}},{{"name":"aes-gcm-256/fat","gbps":8.0,{cost},"tx_copied_bytes_per_byte":1.0,"rx_copied_bytes_per_byte":0.0,"copies":{{"tx/wire-frame":1.0}},{memory}}}],"ratios":[{{"name":"aes-gcm-256","of":"fat/thin","median":5.625,"min":4.0,"max":8.0}},{{"name":"aes-gcm-256","of":"fat/veth","median":0.3,"min":0.2,"max":0.4}}]}}"#
        );
        assert_eq!(report(&three_rounds()).to_json(), want);
    }

    #[test]
    fn the_table_says_the_same() {
        let want = "\
medians of 3 rounds of one TCP stream; tx: sending gateway, rx: receiving gateway

                      Gb/s  CPU s/GB    packets/call        copied B/B      memory MiB
                                          tx      rx       tx       rx    idle    peak
veth                 30.00
aes-gcm-256/thin      1.60     0.250    44.0    40.0   0.0000   0.0000     9.5    20.0
aes-gcm-256/fat       8.00     0.250    44.0    40.0   1.0000   0.0000     9.5    20.0

copied bytes per forwarded byte, by reason:
  aes-gcm-256/thin  none
  aes-gcm-256/fat   tx/wire-frame 1.0000

ratios of Gb/s, round by round:
  aes-gcm-256 fat/thin    5.62  (4.00 to 8.00)
  aes-gcm-256 fat/veth    0.30  (0.20 to 0.40)";
        assert_eq!(report(&three_rounds()).to_string(), want);
    }

    #[test]
    fn a_case_that_moved_nothing_leaves_a_report_that_can_be_read() {
        let nothing = || Sample { gbps: 0.0, gateways: None };
        let json = report(&[[nothing(), nothing(), nothing()]]).to_json();
        let ratio = &serde_json::from_str::<serde_json::Value>(&json).unwrap()["ratios"][0];
        assert_eq!(ratio["median"], 0.0);
    }
}
