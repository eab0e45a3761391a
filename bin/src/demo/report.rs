//! From rounds to the report: medians per case, ratios round by round, as JSON or as a table.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write};

use serde::Serialize;

use super::meter::GatewayFigures;

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

/// The whole result.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    bench: &'static str,
    rounds: usize,
    cases: Vec<CaseFigures>,
    ratios: Vec<Ratio>,
}

/// Medians over the rounds.
#[derive(Debug, Serialize)]
struct CaseFigures {
    name: &'static str,
    gbps: f64,
    #[serde(flatten)]
    gateways: Option<GatewayFigures>,
}

/// Quotients taken round by round.
#[derive(Debug, Serialize)]
struct Ratio {
    name: &'static str,
    of: &'static str,
    median: f64,
    min: f64,
    max: f64,
}

impl Report {
    /// Sums up at least one round.
    pub(super) fn new(rounds: &[Round]) -> Self {
        assert!(!rounds.is_empty(), "a report of no rounds");
        let cases = Case::ALL.map(|case| case_figures(case, rounds)).into();
        let ratios =
            vec![ratio("fat/thin", rounds, Case::Fat, Case::Thin), ratio("fat/veth", rounds, Case::Fat, Case::Veth)];
        Self { bench: "demo", rounds: rounds.len(), cases, ratios }
    }

    /// One line of JSON.
    pub(super) fn to_json(&self) -> String {
        serde_json::to_string(self).expect("finite numbers under text keys always serialise")
    }
}

fn case_figures(case: Case, rounds: &[Round]) -> CaseFigures {
    let samples: Vec<&Sample> = rounds.iter().map(|round| &round[case as usize]).collect();
    let gateways: Vec<&GatewayFigures> = samples.iter().filter_map(|sample| sample.gateways.as_ref()).collect();
    CaseFigures {
        name: case.name(),
        gbps: rounded(median(samples.iter().map(|sample| sample.gbps))),
        gateways: (!gateways.is_empty()).then(|| medians(&gateways)),
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

fn ratio(of: &'static str, rounds: &[Round], over: Case, under: Case) -> Ratio {
    let quotients: Vec<f64> = rounds
        .iter()
        .map(|round| (round[over as usize].gbps, round[under as usize].gbps))
        .map(|(over, under)| if under > 0.0 { over / under } else { 0.0 })
        .collect();
    let fold = |pick: fn(f64, f64) -> f64| quotients.iter().copied().reduce(pick).unwrap_or(0.0);
    Ratio {
        name: CIPHER,
        of,
        median: rounded(median(quotients.iter().copied())),
        min: rounded(fold(f64::min)),
        max: rounded(fold(f64::max)),
    }
}

/// The middle value, or the mean of the two in the middle.
fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 1 => sorted[middle],
        _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}

/// Four decimals: more than the measurement knows.
fn rounded(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
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
            if let Some(it) = &case.gateways {
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
            if let Some(it) = &case.gateways {
                writeln!(f, "  {:<17} {}", case.name, by_reason(&it.copies))?;
            }
        }
        writeln!(f, "\nratios of Gb/s, round by round:")?;
        let lines: Vec<String> = self.ratios.iter().map(Ratio::to_string).collect();
        f.write_str(&lines.join("\n"))
    }
}

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "  {} {:<9} {:>6.2}  ({:.2} to {:.2})", self.name, self.of, self.median, self.min, self.max)
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
        assert_eq!(Report::new(&three_rounds()).to_json(), want);
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
        assert_eq!(Report::new(&three_rounds()).to_string(), want);
    }

    #[test]
    fn the_median_is_the_middle() {
        let cases: [(&[f64], f64); 5] =
            [(&[], 0.0), (&[7.0], 7.0), (&[9.0, 1.0], 5.0), (&[9.0, 1.0, 2.0], 2.0), (&[4.0, 1.0, 3.0, 2.0], 2.5)];
        for (values, want) in cases {
            assert_eq!(median(values.iter().copied()), want, "{values:?}");
        }
    }

    #[test]
    fn a_case_that_moved_nothing_leaves_a_report_that_can_be_read() {
        let nothing = || Sample { gbps: 0.0, gateways: None };
        let json = Report::new(&[[nothing(), nothing(), nothing()]]).to_json();
        let ratio = &serde_json::from_str::<serde_json::Value>(&json).unwrap()["ratios"][0];
        assert_eq!(ratio["median"], 0.0);
    }
}
