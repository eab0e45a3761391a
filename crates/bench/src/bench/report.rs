//! Report of a benchmark, made from samples.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::case::{Case, Comparison, Group, Sample};
use super::shards;
use crate::figures::{self, Missing, Ratio, median, rounded};

/// Cost per packet.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Costs {
    /// Time per packet on the wire.
    ns_per_packet: f64,
    /// Bytes of payload copied per byte of payload.
    copied_bytes_per_byte: f64,
    /// Bytes of headers written for each packet, per byte of payload.
    header_bytes_per_byte: f64,
    allocs_per_packet: f64,
    /// Millions of packets a second, for small packets.
    #[serde(skip_serializing_if = "Option::is_none")]
    mpps: Option<f64>,
    /// Further figures of the case, by name.
    #[serde(flatten)]
    more: BTreeMap<&'static str, f64>,
}

/// The complete result.
pub(super) type BenchReport = figures::Results<Costs>;

/// Collects the groups of a benchmark.
#[derive(Debug, Default)]
pub(super) struct Tally {
    cases: Vec<figures::CaseResults<Costs>>,
    ratios: Vec<Ratio>,
    missing: Vec<Missing>,
}

impl Tally {
    /// Adds the measurements of a group. A missing case has neither figures nor ratios.
    pub(super) fn add(&mut self, group: &Group, cases: &[Case]) {
        let name = |case: &Case| format!("{}/{}", group.name, case.name);
        for case in cases {
            if let Some(why) = &case.missing {
                self.missing.push(Missing { name: name(case), why: why.clone() });
                continue;
            }
            let of = |figure: fn(&Sample) -> f64| rounded(median(case.rounds.iter().map(figure)));
            let mpps = case.rounds.first().and_then(|sample| sample.mpps);
            let names = case.rounds.first().map(|sample| sample.more.as_slice()).unwrap_or_default();
            let more = names.iter().enumerate().map(|(at, &(name, _))| {
                let values = case.rounds.iter().filter_map(|sample| sample.more.get(at));
                (name, rounded(median(values.map(|&(_, value)| value))))
            });
            self.cases.push(figures::CaseResults {
                name: name(case),
                gbps: of(|sample| sample.gbps),
                figures: Costs {
                    ns_per_packet: of(|sample| sample.ns_per_packet),
                    copied_bytes_per_byte: of(|sample| sample.copied_bytes_per_byte),
                    header_bytes_per_byte: of(|sample| sample.header_bytes_per_byte),
                    allocs_per_packet: of(|sample| sample.allocs_per_packet),
                    mpps: mpps.map(|_| of(|sample| sample.mpps.unwrap_or(0.0))),
                    more: more.collect(),
                },
            });
        }
        let sums = |names: &[&str], value: &dyn Fn(&Sample) -> Option<f64>| -> Option<Vec<f64>> {
            let measured = |name| cases.iter().find(|case| case.name == name && case.missing.is_none());
            let chosen = names.iter().map(|name| measured(*name));
            let chosen: Vec<&Case> = chosen.collect::<Option<_>>()?;
            let round = |at: usize| chosen.iter().map(|case| value(&case.rounds[at])).sum();
            (0..chosen.first()?.rounds.len()).map(round).collect()
        };
        for &Comparison { of, over, under, figure } in group.ratios {
            let quotients = match figure {
                None => {
                    let nanos = |sample: &Sample| Some(sample.nanos);
                    sums(under, &nanos).zip(sums(over, &nanos))
                }
                Some(figure) => {
                    let value =
                        |sample: &Sample| sample.more.iter().find(|(name, _)| *name == figure).map(|more| more.1);
                    sums(over, &value).zip(sums(under, &value))
                }
            };
            if let Some((over, under)) = quotients {
                self.ratios.push(Ratio::new(&group.name, of, over.into_iter().zip(under)));
            }
        }
    }

    /// The report of all groups.
    pub(super) fn report(self, bench: &'static str, rounds: usize) -> BenchReport {
        BenchReport { bench, rounds, cases: self.cases, ratios: self.ratios, missing: self.missing, busy: None }
    }
}

impl fmt::Display for BenchReport {
    /// The table, without a trailing newline.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "medians of {} rounds; Gb/s of payload, packets as the wire has them\n", self.rounds)?;
        let names = self.cases.iter().map(|case| &case.name).chain(self.missing.iter().map(|case| &case.name));
        let width = names.map(String::len).max().unwrap_or(0);
        writeln!(
            f,
            "{:<width$} {:>8} {:>10} {:>11} {:>11} {:>13} {:>7}",
            "", "Gb/s", "ns/packet", "copied B/B", "headers B/B", "allocs/packet", "Mpps"
        )?;
        for case in &self.cases {
            let Costs { ns_per_packet, copied_bytes_per_byte, header_bytes_per_byte, allocs_per_packet, mpps, more } =
                &case.figures;
            let mpps = mpps.map(|mpps| format!(" {mpps:>7.2}")).unwrap_or_default();
            // Figures of a name are aligned; a case without small packets leaves their column empty.
            let gap = if mpps.is_empty() && !more.is_empty() { " ".repeat(8) } else { String::new() };
            let more: String = more
                .iter()
                .map(|(name, value)| format!("  {name} {value:>width$.2}", width = self.width_of(name)))
                .collect();
            writeln!(
                f,
                "{:<width$} {:>8.2} {ns_per_packet:>10.1} {copied_bytes_per_byte:>11.4} {header_bytes_per_byte:>11.4} \
                 {allocs_per_packet:>13.4}{mpps}{gap}{more}",
                case.name, case.gbps
            )?;
        }
        self.missing.iter().try_for_each(|Missing { name, why }| writeln!(f, "{name:<width$}  not measured: {why}"))?;
        if self.cases.iter().any(|case| case.name.ends_with("/limit")) {
            writeln!(
                f,
                "\nlimit: the cipher alone, on one processor; worker has a crypto thread on a second one, and may exceed it"
            )?;
        }
        write!(f, "\nratios of Gb/s, or of the figure that is named, round by round:\n{}", self.ratio_lines())?;
        let model = shards::model(&self.ratios);
        if model.is_empty() { Ok(()) } else { write!(f, "\n\n{model}") }
    }
}

impl BenchReport {
    /// Width of the longest value of a further figure.
    fn width_of(&self, name: &str) -> usize {
        let values = self.cases.iter().filter_map(|case| case.figures.more.get(name));
        values.map(|value| format!("{value:.2}").len()).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::case::Plan;
    use super::*;

    fn report() -> BenchReport {
        let case = |name: &str, gbps, mpps| figures::CaseResults {
            name: format!("tx/tunnel/null/{name}"),
            gbps,
            figures: Costs {
                ns_per_packet: 50.25,
                copied_bytes_per_byte: 1.05,
                header_bytes_per_byte: 0.04,
                allocs_per_packet: 0.0,
                mpps,
                more: if mpps.is_some() { [("rx_no_buffer", 7.0)].into() } else { BTreeMap::new() },
            },
        };
        let pairs = [(30.0, 10.0), (31.0, 10.0)];
        BenchReport {
            bench: "esp",
            rounds: 2,
            cases: vec![case("baseline", 10.0, None), case("fat", 30.5, Some(2.5))],
            ratios: vec![Ratio::new("tx/tunnel/null", "fat/baseline", pairs.into_iter())],
            missing: Vec::new(),
            busy: None,
        }
    }

    #[test]
    fn ratio_of_a_figure_is_over_divided_by_under() {
        let case = |name, nanos, cpu| {
            let sample = move |_| Ok(Sample { nanos, more: vec![("cpu_ns", cpu)], ..Sample::default() });
            let mut case = Plan::played(name, sample).start();
            (0..2).try_for_each(|number| case.end_round(number)).unwrap();
            case
        };
        const RATIOS: &[Comparison] = &[
            Comparison { of: "two/one", over: &["two"], under: &["one"], figure: None },
            Comparison { of: "two/one cpu_ns", over: &["two"], under: &["one"], figure: Some("cpu_ns") },
            Comparison { of: "two/one absent", over: &["two"], under: &["one"], figure: Some("absent") },
        ];
        let group = Group { name: "esp".to_owned(), cases: Vec::new(), ratios: RATIOS };
        let mut tally = Tally::default();
        tally.add(&group, &[case("one", 100.0, 80.0), case("two", 50.0, 100.0)]);
        let ratios: Vec<(&str, f64)> = tally.ratios.iter().map(|ratio| (ratio.of.as_str(), ratio.median)).collect();
        assert_eq!(ratios, [("two/one", 2.0), ("two/one cpu_ns", 1.25)]);
    }

    #[test]
    fn the_json_has_the_shape_of_every_benchmark() {
        let costs = r#""ns_per_packet":50.25,"copied_bytes_per_byte":1.05,"header_bytes_per_byte":0.04,"allocs_per_packet":0.0"#;
        let want = format!(
            r#"{{"bench":"esp","rounds":2,"cases":[{{"name":"tx/tunnel/null/baseline","gbps":10.0,{costs}}},{{"name":"tx/tunnel/null/fat","gbps":30.5,{costs},"mpps":2.5,"rx_no_buffer":7.0}}],"ratios":[{{"name":"tx/tunnel/null","of":"fat/baseline","median":3.05,"min":3.0,"max":3.1}}]}}"#
        );
        assert_eq!(report().to_json(), want);
    }

    #[test]
    fn table_has_the_same_figures() {
        let want = "\
medians of 2 rounds; Gb/s of payload, packets as the wire has them

                            Gb/s  ns/packet  copied B/B headers B/B allocs/packet    Mpps
tx/tunnel/null/baseline    10.00       50.2      1.0500      0.0400        0.0000
tx/tunnel/null/fat         30.50       50.2      1.0500      0.0400        0.0000    2.50  rx_no_buffer 7.00

ratios of Gb/s, or of the figure that is named, round by round:
  tx/tunnel/null fat/baseline    3.05  (3.00 to 3.10)";
        assert_eq!(report().to_string(), want);
    }

    #[test]
    fn case_that_was_not_measured_has_a_row_with_the_reason() {
        let mut report = report();
        report
            .missing
            .push(Missing { name: "forward/a-peer-with-a-long-name".to_owned(), why: "not in PATH".to_owned() });
        let text = report.to_string();
        let starts = |start: &str| text.lines().any(|line| line.starts_with(start));
        assert!(starts("forward/a-peer-with-a-long-name  not measured: not in PATH"), "{text}");
        assert!(starts("tx/tunnel/null/baseline            10.00"), "{text}");
        let json = report.to_json();
        let want = r#","missing":[{"name":"forward/a-peer-with-a-long-name","why":"not in PATH"}]}"#;
        assert!(json.ends_with(want), "{json}");
    }

    #[test]
    fn table_aligns_further_figures_and_explains_the_limit() {
        let mut report = report();
        assert!(!report.to_string().contains("limit"));
        for (case, (name, cpu)) in report.cases.iter_mut().zip([("limit", 674.8269), ("worker", 12.0)]) {
            case.name = format!("tx/{name}");
            case.figures.mpps = None;
            case.figures.more = [("copies", 1.0), ("cpu_ns", cpu)].into();
        }
        let text = report.to_string();
        let ends: Vec<&str> =
            text.lines().filter_map(|line| line.split_once("0.0000        ")).map(|(_, end)| end).collect();
        assert_eq!(ends, ["  copies 1.00  cpu_ns 674.83", "  copies 1.00  cpu_ns  12.00"], "{text}");
        assert!(text.contains("\nlimit: the cipher alone, on one processor; worker has a crypto thread"), "{text}");
    }
}
