//! Report of a demo, made from its rounds.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write};

use serde::Serialize;

use super::case::DemoCase;
use super::meter::{Cost, GatewayFigures};
use super::requests::Transactions;
use super::sample::DemoSample;
use super::{fragments, ila, switch};
use crate::figures::{self, Busy, Missing, Ratio, median, rounded};

/// Cipher of the ratios.
const CIPHER: &str = "aes-gcm-256";

/// The samples of one round.
pub(super) type DemoRound = BTreeMap<DemoCase, DemoSample>;

/// Names of the demos: of TCP, of a storm, of large datagrams, of requests, of a switch.
pub(super) const TCP: &str = "demo";
pub(super) const STORM: &str = "demo-storm";
pub(super) const UDP_FRAGMENTS: &str = "demo-udp-fragments";
pub(super) const REQUESTS: &str = "demo-rr";
pub(super) const SWITCH: &str = "demo-switch";

/// The whole result.
pub(super) type DemoReport = figures::Results<Figures>;

/// Figures of a stream in addition to its throughput.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Figures {
    /// The share of the datagrams that arrived.
    #[serde(skip_serializing_if = "Option::is_none")]
    arrived: Option<f64>,
    /// Changes of routes and SAs a second at each gateway.
    #[serde(skip_serializing_if = "Option::is_none")]
    changes_per_second: Option<f64>,
    /// Processor time of a change, in millionths of a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    change_cpu_us: Option<f64>,
    /// The transactions, where streams are of requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    transactions: Option<Transactions>,
    /// Cost of the stream, if a tunnel carries it.
    #[serde(flatten)]
    cost: Option<Cost>,
}

/// Sums up at least one round: the cases that every round has.
pub(super) fn report(rounds: &[DemoRound]) -> DemoReport {
    let first = rounds.first().expect("a report of no rounds");
    let cases = || first.keys().copied().filter(|case| rounds.iter().all(|round| round.contains_key(case)));
    let mut ratios: Vec<Ratio> = cases().filter_map(|case| ratio(rounds, case)).collect();
    ratios.sort_by_key(|ratio| ratio.of != "fat/thin");
    ratios.extend(bare_ratio(rounds));
    ratios.extend(storm_ratios(rounds));
    ratios.extend(large_ratios(rounds));
    ratios.extend(request_ratios(rounds));
    ratios.extend(switch_ratios(rounds));
    let cases = cases().map(|case| case_figures(case, rounds)).collect();
    DemoReport { bench: TCP, rounds: rounds.len(), cases, ratios, missing: Vec::new(), busy: None }
}

fn case_figures(case: DemoCase, rounds: &[DemoRound]) -> figures::CaseResults<Figures> {
    let samples: Vec<&DemoSample> = rounds.iter().map(|round| &round[&case]).collect();
    let costs: Vec<&Cost> = samples.iter().filter_map(|sample| sample.cost.as_ref()).collect();
    let all = |of: fn(&DemoSample) -> Option<f64>| {
        let values: Vec<f64> = samples.iter().filter_map(|sample| of(sample)).collect();
        (!values.is_empty()).then(|| rounded(median(values.into_iter())))
    };
    figures::CaseResults {
        name: case.name().to_owned(),
        gbps: rounded(median(samples.iter().map(|sample| sample.gbps))),
        figures: Figures {
            arrived: all(|sample| sample.arrived),
            changes_per_second: all(|sample| sample.changes.map(|changes| changes.per_second)),
            change_cpu_us: all(|sample| sample.changes.map(|changes| changes.cpu_us)),
            transactions: transaction_medians(&samples),
            cost: (!costs.is_empty()).then(|| medians(&costs)),
        },
    }
}

fn ratio(rounds: &[DemoRound], under: DemoCase) -> Option<Ratio> {
    Some(Ratio::new(CIPHER, &under.ratio()?, pairs(rounds, DemoCase::Fat, under)?.into_iter()))
}

/// Ratio of the processor time of the loops without a datapath to that of fatpath: 1 if fatpath needed nothing beyond it.
fn bare_ratio(rounds: &[DemoRound]) -> Option<Ratio> {
    let cpu = |round: &DemoRound, case| Some(round.get(&case)?.cost.as_ref()?.cpu_s_per_gb);
    let of = |round: &DemoRound| Some((cpu(round, DemoCase::Bare)?, cpu(round, DemoCase::Fat)?));
    let pairs: Vec<_> = rounds.iter().filter_map(of).collect();
    (!pairs.is_empty()).then(|| Ratio::new(&format!("{CIPHER}/cpu-per-byte"), "bare/fat", pairs.into_iter()))
}

/// Throughput of two cases in each round that has both; `None` if none has.
fn pairs(rounds: &[DemoRound], over: DemoCase, under: DemoCase) -> Option<Vec<(f64, f64)>> {
    let of = |round: &DemoRound| Some((round.get(&over)?.gbps, round.get(&under)?.gbps));
    let pairs: Vec<_> = rounds.iter().filter_map(of).collect();
    (!pairs.is_empty()).then_some(pairs)
}

/// Ratios of streams of large datagrams, if these were measured.
fn large_ratios(rounds: &[DemoRound]) -> Vec<Ratio> {
    let all = fragments::FragmentsSetting::RATIOS.iter().filter_map(|&(name, what, over, under)| {
        let under = under.map_or(DemoCase::Veth, DemoCase::Large);
        Some(Ratio::new(name, what, pairs(rounds, DemoCase::Large(over), under)?.into_iter()))
    });
    all.collect()
}

/// Ratios of transactions with and without ILA, if these were measured.
fn request_ratios(rounds: &[DemoRound]) -> Vec<Ratio> {
    let all = ila::IlaSetting::RATIOS.iter().filter_map(|&(of, over, under)| {
        let pairs = pairs(rounds, DemoCase::Requests(over), DemoCase::Requests(under))?;
        Some(Ratio::new("rr", of, pairs.into_iter()))
    });
    all.collect()
}

/// Ratios of a bridge to less, and of a tunnel behind one to the tunnel alone.
fn switch_ratios(rounds: &[DemoRound]) -> Vec<Ratio> {
    let own = switch::SwitchSetting::RATIOS.map(|(of, over, under)| (of, over, DemoCase::Switch(under)));
    let all = own.into_iter().chain([("esp/tunnel", switch::SwitchSetting::Esp, DemoCase::Fat)]);
    let all = all.filter_map(|(of, over, under)| {
        Some(Ratio::new("switch", of, pairs(rounds, DemoCase::Switch(over), under)?.into_iter()))
    });
    all.collect()
}

/// Median of each figure separately.
fn transaction_medians(samples: &[&DemoSample]) -> Option<Transactions> {
    let all: Vec<&Transactions> = samples.iter().filter_map(|sample| sample.transactions.as_ref()).collect();
    let of = |figure: fn(&Transactions) -> f64| rounded(median(all.iter().map(|it| figure(it))));
    (!all.is_empty()).then(|| Transactions {
        per_second: of(|it| it.per_second),
        p50_us: of(|it| it.p50_us),
        p90_us: of(|it| it.p90_us),
        p99_us: of(|it| it.p99_us),
        cpu_us: of(|it| it.cpu_us),
    })
}

/// Throughput and worker time per byte under a storm, relative to the figures without a storm. On a machine with busy
/// processors the cost of the storm itself only lowers the throughput.
fn storm_ratios(rounds: &[DemoRound]) -> Vec<Ratio> {
    if !rounds.iter().all(|round| round.contains_key(&DemoCase::Storm)) {
        return Vec::new();
    }
    let of = |figure: fn(&DemoSample) -> f64| {
        rounds
            .iter()
            .filter_map(move |round| Some((figure(round.get(&DemoCase::Storm)?), figure(round.get(&DemoCase::Fat)?))))
    };
    let worker_cpu = |sample: &DemoSample| {
        let gateways = sample.cost.as_ref().and_then(|cost| cost.gateways.as_ref());
        gateways.map_or(0.0, |gateways| gateways.worker_cpu_s_per_gb)
    };
    vec![
        Ratio::new(CIPHER, "storm/fat", of(|sample| sample.gbps)),
        Ratio::new(&format!("{CIPHER}/worker-cpu-per-byte"), "storm/fat", of(worker_cpu)),
    ]
}

/// Median of each figure separately.
fn medians(rounds: &[&Cost]) -> Cost {
    let of = |figure: fn(&Cost) -> f64| rounded(median(rounds.iter().map(|round| figure(round))));
    let gateways: Vec<&GatewayFigures> = rounds.iter().filter_map(|round| round.gateways.as_ref()).collect();
    Cost {
        cpu_s_per_gb: of(|it| it.cpu_s_per_gb),
        rss_idle_mib: of(|it| it.rss_idle_mib),
        rss_peak_mib: of(|it| it.rss_peak_mib),
        gateways: (!gateways.is_empty()).then(|| gateway_medians(&gateways)),
    }
}

fn gateway_medians(rounds: &[&GatewayFigures]) -> GatewayFigures {
    let of = |figure: fn(&GatewayFigures) -> f64| rounded(median(rounds.iter().map(|round| figure(round))));
    let reasons: BTreeSet<&String> = rounds.iter().flat_map(|round| round.copies.keys()).collect();
    let copies = reasons.into_iter().map(|reason| {
        let values = rounds.iter().map(|round| round.copies.get(reason).copied().unwrap_or(0.0));
        (reason.clone(), rounded(median(values)))
    });
    GatewayFigures {
        worker_cpu_s_per_gb: of(|it| it.worker_cpu_s_per_gb),
        dropped: rounds.iter().flat_map(|round| &round.dropped).fold(BTreeMap::new(), |mut all, (reason, count)| {
            *all.entry(reason.clone()).or_default() += count;
            all
        }),
        tx_packets_per_call: of(|it| it.tx_packets_per_call),
        rx_packets_per_call: of(|it| it.rx_packets_per_call),
        tx_copied_bytes_per_byte: of(|it| it.tx_copied_bytes_per_byte),
        rx_copied_bytes_per_byte: of(|it| it.rx_copied_bytes_per_byte),
        copies: copies.collect(),
    }
}

impl fmt::Display for DemoReport {
    /// The table, without a last newline.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.bench == REQUESTS {
            return write_requests(self, f);
        }
        let of = if self.bench == UDP_FRAGMENTS { "UDP stream of large datagrams" } else { "TCP stream" };
        writeln!(f, "medians of {} rounds of one {of}; tx: sending end, rx: receiving end\n", self.rounds)?;
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
            if let Some(cost) = &case.figures.cost {
                write!(line, " {:>9.3} ", cost.cpu_s_per_gb)?;
                match &cost.gateways {
                    Some(it) => write!(
                        line,
                        "{:>7.1} {:>7.1} {:>8.4} {:>8.4}",
                        it.tx_packets_per_call,
                        it.rx_packets_per_call,
                        it.tx_copied_bytes_per_byte,
                        it.rx_copied_bytes_per_byte
                    )?,
                    None => write!(line, "{:33}", "")?,
                }
                write!(line, " {:>7.1} {:>7.1}", cost.rss_idle_mib, cost.rss_peak_mib)?;
            }
            writeln!(f, "{line}")?;
        }
        writeln!(f, "\ncopied bytes per byte, by reason:")?;
        for case in &self.cases {
            if let Some(it) = case.figures.cost.as_ref().and_then(|cost| cost.gateways.as_ref()) {
                writeln!(f, "  {:<17} {}", case.name, by_reason(&it.copies))?;
            }
        }
        if self.cases.iter().any(|case| case.figures.arrived.is_some()) {
            writeln!(f, "\ndatagrams that arrived:")?;
        }
        for case in &self.cases {
            if let Some(arrived) = case.figures.arrived {
                writeln!(f, "  {:<17} {:.2} %", case.name, arrived * 100.0)?;
            }
        }
        for case in &self.cases {
            let gateways = case.figures.cost.as_ref().and_then(|cost| cost.gateways.as_ref());
            if let (STORM, Some(it)) = (self.bench, gateways) {
                let changes = case.figures.changes_per_second.unwrap_or(0.0);
                let cost = case.figures.change_cpu_us.map_or_else(String::new, |us| format!(" of {us:.0} CPU us each"));
                writeln!(
                    f,
                    "\n{}: {changes:.0} changes of routes and SAs a second at each gateway{cost}; dropped in all rounds: {}; \
                     workers {:.3} CPU s/GB",
                    case.name,
                    counted(&it.dropped),
                    it.worker_cpu_s_per_gb
                )?;
            }
        }
        writeln!(f, "\nratios of Gb/s, round by round:")?;
        f.write_str(&self.ratio_lines())?;
        if !self.missing.is_empty() {
            write!(f, "\n\nnot measured:")?;
        }
        self.missing.iter().try_for_each(|Missing { name, why }| write!(f, "\n  {name:<17} {why}"))?;
        write_busy(self, f)?;
        write_sentence(self, f)
    }
}

/// Load of the machine by others, if it was busy.
fn write_busy(report: &DemoReport, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let Some(Busy { load, processors, steal_percent }) = report.busy else { return Ok(()) };
    write!(
        f,
        "\n\nThe machine was busy: load {load:.2} on {processors} processors before the first round, {steal_percent:.1} % steal \
         during the rounds. Repeat it on an idle machine: figures are too low, and ratios vary."
    )
}

/// The result in words, where one stream was measured fat and thin.
fn write_sentence(report: &DemoReport, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let ratio = report.ratios.iter().find(|ratio| ratio.name == CIPHER && ratio.of == "fat/thin");
    let Some(Ratio { median, min, max, .. }) = ratio.filter(|_| report.bench == TCP) else { return Ok(()) };
    write!(
        f,
        "\n\nthin: every offload off, each packet of the wire's size passes the gateways alone.\n\
         fat: packets of a flow pass in one of up to 64 KiB, and are segmented at the output.\n\
         Here the tunnel carries {median:.1} times as much fat as thin ({min:.1} to {max:.1})."
    )
}

/// The table of transactions, without a last newline.
fn write_requests(report: &DemoReport, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    writeln!(f, "medians of {} rounds of TCP streams, one byte each way in turn\n", report.rounds)?;
    writeln!(
        f,
        "{:<10} {:>14} {:>9} {:>9} {:>9} {:>18}",
        "", "transactions/s", "p50 us", "p90 us", "p99 us", "CPU us/transaction"
    )?;
    for case in &report.cases {
        if let Some(it) = &case.figures.transactions {
            writeln!(
                f,
                "{:<10} {:>14.0} {:>9.0} {:>9.0} {:>9.0} {:>18.1}",
                case.name, it.per_second, it.p50_us, it.p90_us, it.p99_us, it.cpu_us
            )?;
        }
    }
    writeln!(f, "\nratios of transactions, round by round:")?;
    f.write_str(&report.ratio_lines())?;
    write_busy(report, f)
}

fn by_reason(copies: &BTreeMap<String, f64>) -> String {
    let parts: Vec<String> = copies.iter().map(|(reason, value)| format!("{reason} {value:.4}")).collect();
    if parts.is_empty() { "none".to_owned() } else { parts.join(", ") }
}

fn counted(dropped: &BTreeMap<String, u64>) -> String {
    let parts: Vec<String> = dropped.iter().map(|(reason, count)| format!("{reason} {count}")).collect();
    if parts.is_empty() { "nothing".to_owned() } else { parts.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::peer::Peer;
    use crate::demo::sample::Changes;

    fn sample(gbps: f64, tx_copied: f64) -> DemoSample {
        let gateways = GatewayFigures {
            worker_cpu_s_per_gb: 0.2,
            dropped: BTreeMap::new(),
            tx_packets_per_call: 44.0,
            rx_packets_per_call: 40.0,
            tx_copied_bytes_per_byte: tx_copied,
            rx_copied_bytes_per_byte: 0.0,
            copies: if tx_copied > 0.0 { [("tx/wire-frame".to_owned(), tx_copied)].into() } else { BTreeMap::new() },
        };
        DemoSample {
            gbps,
            arrived: None,
            changes: None,
            transactions: None,
            cost: Some(Cost { gateways: Some(gateways), ..peer_cost() }),
        }
    }

    fn peer_cost() -> Cost {
        Cost { cpu_s_per_gb: 0.25, rss_idle_mib: 9.5, rss_peak_mib: 20.0, gateways: None }
    }

    fn three_rounds() -> [DemoRound; 3] {
        let veth = |gbps| DemoSample { gbps, arrived: None, changes: None, transactions: None, cost: None };
        let round = |samples: [DemoSample; 3]| DemoCase::OWN.into_iter().zip(samples).collect();
        [
            round([veth(40.0), sample(1.0, 0.0), sample(8.0, 1.0)]),
            round([veth(20.0), sample(2.0, 0.0), sample(8.0, 1.0)]),
            round([veth(30.0), sample(1.6, 0.0), sample(9.0, 1.1)]),
        ]
    }

    #[test]
    fn the_json_has_the_shape_of_every_benchmark() {
        let cost = r#""cpu_s_per_gb":0.25,"rss_idle_mib":9.5,"rss_peak_mib":20.0,"worker_cpu_s_per_gb":0.2,"dropped":{},"tx_packets_per_call":44.0,"rx_packets_per_call":40.0"#;
        let want = format!(
            r#"{{"bench":"demo","rounds":3,"cases":[{{"name":"veth","gbps":30.0}},{{"name":"aes-gcm-256/thin","gbps":1.6,{cost},"tx_copied_bytes_per_byte":0.0,"rx_copied_bytes_per_byte":0.0,"copies":{{}}}},{{"name":"aes-gcm-256/fat","gbps":8.0,{cost},"tx_copied_bytes_per_byte":1.0,"rx_copied_bytes_per_byte":0.0,"copies":{{"tx/wire-frame":1.0}}}}],"ratios":[{{"name":"aes-gcm-256","of":"fat/thin","median":5.625,"min":4.0,"max":8.0}},{{"name":"aes-gcm-256","of":"fat/veth","median":0.3,"min":0.2,"max":0.4}}]}}"#
        );
        assert_eq!(report(&three_rounds()).to_json(), want);
    }

    #[test]
    fn table_has_the_same_figures() {
        let want = "\
medians of 3 rounds of one TCP stream; tx: sending end, rx: receiving end

                      Gb/s  CPU s/GB    packets/call        copied B/B      memory MiB
                                          tx      rx       tx       rx    idle    peak
veth                 30.00
aes-gcm-256/thin      1.60     0.250    44.0    40.0   0.0000   0.0000     9.5    20.0
aes-gcm-256/fat       8.00     0.250    44.0    40.0   1.0000   0.0000     9.5    20.0

copied bytes per byte, by reason:
  aes-gcm-256/thin  none
  aes-gcm-256/fat   tx/wire-frame 1.0000

ratios of Gb/s, round by round:
  aes-gcm-256 fat/thin    5.62  (4.00 to 8.00)
  aes-gcm-256 fat/veth    0.30  (0.20 to 0.40)

thin: every offload off, each packet of the wire's size passes the gateways alone.
fat: packets of a flow pass in one of up to 64 KiB, and are segmented at the output.
Here the tunnel carries 5.6 times as much fat as thin (4.0 to 8.0).";
        assert_eq!(report(&three_rounds()).to_string(), want);
    }

    #[test]
    fn peer_is_compared_and_skipped_after_a_failure() {
        let mut rounds = three_rounds();
        for (at, round) in rounds.iter_mut().enumerate() {
            let sample =
                DemoSample { gbps: 4.0, arrived: None, changes: None, transactions: None, cost: Some(peer_cost()) };
            round.insert(DemoCase::Peer(Peer::WireguardGo), sample.clone());
            if at != 1 {
                round.insert(DemoCase::Peer(Peer::Boringtun), sample);
            }
        }
        let text = report(&rounds).to_string();
        let line = "\nwireguard-go          4.00     0.250                                       9.5    20.0\n";
        assert!(text.contains(line), "{text}");
        assert!(text.contains("\n  aes-gcm-256 fat/wireguard-go    2.00  (2.00 to 2.25)\n"), "{text}");
        assert!(!text.contains("boringtun"), "{text}");
    }

    #[test]
    fn report_says_if_the_machine_was_busy() {
        let idle = report(&three_rounds());
        assert!(!idle.to_string().contains("busy") && !idle.to_json().contains("busy"));
        let report = DemoReport { busy: Some(Busy { load: 3.2, processors: 2, steal_percent: 4.26 }), ..idle };
        let text = report.to_string();
        assert!(
            text.contains("\nThe machine was busy: load 3.20 on 2 processors before the first round, 4.3 % steal"),
            "{text}"
        );
        assert!(report.to_json().ends_with(r#""busy":{"load":3.2,"processors":2,"steal_percent":4.26}}"#));
    }

    #[test]
    fn report_of_datagrams_has_the_share_that_arrived() {
        let mut rounds = three_rounds();
        for round in &mut rounds {
            round.values_mut().for_each(|sample| sample.arrived = Some(0.995));
        }
        let report = DemoReport { bench: UDP_FRAGMENTS, ..report(&rounds) };
        let text = report.to_string();
        assert!(text.starts_with("medians of 3 rounds of one UDP stream of large datagrams; "), "{text}");
        assert!(text.contains("\ndatagrams that arrived:\n  veth              99.50 %\n"), "{text}");
        assert!(report.to_json().contains(r#"{"name":"veth","gbps":30.0,"arrived":0.995}"#), "{}", report.to_json());
    }

    #[test]
    fn storm_is_measured_by_throughput_and_worker_time() {
        let mut rounds =
            [(); 3].map(|()| DemoRound::from([(DemoCase::Fat, sample(8.0, 1.0)), (DemoCase::Storm, sample(7.6, 1.0))]));
        for (round, dropped) in rounds.iter_mut().zip([0, 2, 1]) {
            let storm = round.get_mut(&DemoCase::Storm).unwrap();
            storm.changes = Some(Changes { per_second: 999.6, cpu_us: 41.7 });
            let gateways = storm.cost.as_mut().unwrap().gateways.as_mut().unwrap();
            gateways.worker_cpu_s_per_gb = 0.202;
            gateways.dropped.insert("NoRoute".to_owned(), dropped);
        }
        let report = DemoReport { bench: STORM, ..report(&rounds) };
        let of: Vec<(&str, &str, f64)> =
            report.ratios.iter().map(|it| (it.name.as_str(), it.of.as_str(), it.median)).collect();
        let worker = "aes-gcm-256/worker-cpu-per-byte";
        assert_eq!(of, [("aes-gcm-256", "storm/fat", 0.95), (worker, "storm/fat", 1.01)]);
        let text = report.to_string();
        let line = "\naes-gcm-256/storm: 1000 changes of routes and SAs a second at each gateway of 42 CPU us each; \
                    dropped in all rounds: NoRoute 3; workers 0.202 CPU s/GB\n";
        assert!(text.contains(line), "{text}");
        assert!(text.contains("\naes-gcm-256/fat: 0 changes of routes and SAs a second at each gateway; dropped in all rounds: nothing"), "{text}");
    }

    #[test]
    fn a_case_that_moved_nothing_leaves_a_report_that_can_be_read() {
        let nothing =
            |case| (case, DemoSample { gbps: 0.0, arrived: None, changes: None, transactions: None, cost: None });
        let json = report(&[DemoCase::OWN.map(nothing).into()]).to_json();
        let ratio = &serde_json::from_str::<serde_json::Value>(&json).unwrap()["ratios"][0];
        assert_eq!(ratio["median"], 0.0);
    }
}
